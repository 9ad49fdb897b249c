//! Errors in the text of a record, worded for people who edit a record by hand: which field, its value, and
//! what is expected. They do not contain names of Rust types.

use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};

/// Maximum length of a value shown in an error, in characters.
const SHOWN_MAX: usize = 40;

/// Parses a record. The error text is worded as part of a sentence.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| explain::<T>(text, &error))
}

fn explain<T: DeserializeOwned>(text: &str, error: &serde_json::Error) -> String {
    if error.classify() != Category::Data {
        let (line, column) = (error.line(), error.column());
        return format!("not valid JSON: line {line}, column {column} cannot be read");
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
        return "not a JSON object like {\"name\": \"value\"}".into();
    };
    let told = |fields: Map<String, Value>| {
        serde_json::from_value::<T>(Value::Object(fields)).err().map(|error| error.to_string())
    };
    // A JSON object keeps only the last of several fields with the same name, so parsing it can succeed here.
    let Some(what) = told(fields.clone()) else { return "a field appears twice".into() };
    if let Some(name) = missing_in(&what) {
        let mut more = fields.clone();
        more.insert(name.clone(), Value::Null);
        if told(more).as_ref() != Some(&what) {
            return said(&what);
        }
    }
    // A field matters if its removal changes the error. The faulty field has the value that the error is
    // about, or contains that value.
    let matters = |name: &str| {
        let mut others = fields.clone();
        others.remove(name);
        told(others).as_ref() != Some(&what)
    };
    let is_named = |value: &Value| what.contains(&format!(": {}, ", kind_of(value)));
    let is_nested = |value: &Value| value.is_array() || value.is_object();
    let mut at_fault = fields.iter().filter(|(name, value)| is_named(value) && matters(name));
    let mut around = fields.iter().filter(|(name, value)| is_nested(value) && matters(name));
    match at_fault.next().or_else(|| around.next()) {
        Some((name, value)) => format!("\"{name}\" is {}: {}", shown(value), said(&what)),
        None => said(&what),
    }
}

/// Returns how the library (serde) describes an unexpected value.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => format!("boolean `{value}`"),
        Value::Number(number) if number.is_f64() => format!("floating point `{number}`"),
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => format!("string {text:?}"),
        Value::Array(_) => "sequence".into(),
        Value::Object(_) => "map".into(),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn missing_in(what: &str) -> Option<String> {
    what.strip_prefix("missing field ").map(|name| name.trim_matches('`').to_string())
}

/// Rewords the library's error without names of types.
fn said(what: &str) -> String {
    if let Some(name) = missing_in(what) {
        return format!("the field \"{name}\" is missing");
    }
    match what.split_once(", expected ") {
        Some((_, expected)) => format!("expected {}", in_words(expected)),
        None => what.replace('`', "\""),
    }
}

/// Describes the expected value in plain words, from the library's name for it.
fn in_words(expected: &str) -> String {
    let number = |bits: &str, least: u64| {
        let bits: u32 = bits.parse().ok().filter(|bits| (8..=64).contains(bits))?;
        Some(format!("a whole number from {least} to {}", u64::MAX >> (64 - bits)))
    };
    let whole = expected.strip_prefix('u').and_then(|bits| number(bits, 0));
    let nonzero = expected.strip_prefix("a nonzero u").and_then(|bits| number(bits, 1));
    if let Some(words) = whole.or(nonzero) {
        return words;
    }
    let words = match expected.split_whitespace().next() {
        Some("struct" | "map" | "enum" | "internally" | "adjacently") => "an object",
        Some("tuple" | "sequence") => "a list",
        Some("i64" | "f64" | "usize" | "i128" | "u128") => "a number",
        _ => match expected {
            "a map" => "an object",
            "a sequence" => "a list",
            "a boolean" => "true or false",
            "a string" => "a string in quotes",
            _ => return expected.replace('`', "\""),
        },
    };
    words.into()
}

#[cfg(test)]
mod tests {
    use crate::records::{Key, Record};

    fn error(key: &str, text: &str) -> String {
        Record::parse(&Key::parse(key).expect("a key"), text).expect_err("it is wrong")
    }

    const OSD: &str = r#"{"id":3,"revision":9,"addresses":[],"incarnation":2,"up":true,"in":true,
        "store":"00","host":"a","path":"/d","supervised":false,"pid":4,"size_bytes":9,"suspect":false}"#;

    #[test]
    fn what_is_wrong_with_a_record_is_said_in_plain_words() {
        Record::parse(&Key::parse("osd/3").expect("a key"), OSD).expect("it is right");
        let with = |from: &str, to: &str| error("osd/3", &OSD.replace(from, to));
        assert_eq!(with("true,\"in", "1,\"in"), "\"up\" is 1: expected true or false");
        assert_eq!(
            with("\"host\":\"a\"", "\"host\":7"),
            "\"host\" is 7: expected a string in quotes"
        );
        let number = "expected a whole number from 0 to 18446744073709551615";
        assert_eq!(
            with("\"incarnation\":2", "\"incarnation\":-2"),
            format!("\"incarnation\" is -2: {number}")
        );
        assert_eq!(with("\"up\":true,", ""), "the field \"up\" is missing");
        assert_eq!(with("\"up\":true,", "\"up\":true,\"up\":true,"), "a field appears twice");
        let pgs = r#"{"pgs":[{"pg":{"pool":1}}]}"#;
        assert_eq!(
            error("pg/1/0", pgs),
            "\"pgs\" is [{\"pg\":{\"pool\":1}}]: the field \"number\" is missing"
        );
        assert_eq!(with("[]", "\"x\""), "\"addresses\" is \"x\": expected a list");
        assert!(with("}", "").starts_with("not valid JSON: line 2, column"), "{}", with("}", ""));
        assert!(error("osd/3", "[]").starts_with("not a JSON object"));
        assert!(error("osd/3", "7").starts_with("not a JSON object"));
    }

    #[test]
    fn no_kind_of_record_shows_the_name_of_a_type() {
        let keys = [
            "cluster",
            "leader",
            "change",
            "recovery",
            "monitor/1",
            "osd/1",
            "pool/1",
            "pg/1/0",
            "fence/1",
            "image/1",
            "index/image/a",
            "lock/1",
            "session/1",
            "task/1",
            "removed_pool/1",
        ];
        // Replace each field of each record with values of other kinds, one at a time.
        let values = ["true", "\"x\"", "-1", "1.5", "[7]", "{\"a\":1}", "null"];
        for key in keys {
            let mut known: Vec<String> = Vec::new();
            while let Some(name) = missing_field(key, &known) {
                for value in values {
                    let text = format!("{{\"{name}\":{value}}}");
                    if let Err(said) = Record::parse(&Key::parse(key).expect("a key"), &text) {
                        for part in
                            ["Record", "struct", "u32", "u64", "variant", "enum", "tuple", "`"]
                        {
                            assert!(!said.contains(part), "{key} {text}: {said}");
                        }
                    }
                }
                known.push(name);
            }
        }
    }

    /// Returns the first missing field that is not in `known`, if any.
    fn missing_field(key: &str, known: &[String]) -> Option<String> {
        let fields: Vec<String> = known.iter().map(|name| format!("\"{name}\":null")).collect();
        let said = Record::parse(&Key::parse(key)?, &format!("{{{}}}", fields.join(","))).err()?;
        let name = said.strip_prefix("the field \"")?.strip_suffix("\" is missing")?;
        (!known.iter().any(|other| other == name)).then(|| name.to_string())
    }
}
