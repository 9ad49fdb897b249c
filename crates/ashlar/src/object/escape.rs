//! Bytes as text: names, keys and values may have any bytes.
//!
//! Invariants
//!   1. [`unescaped`] returns the bytes that [`escaped`] was given, and the text has no tab and no line feed.

use serde_json::{Value, json};

use crate::output::Format;

/// Returns bytes as one field of a line: `\t`, `\n` and `\\`, and `\xHH` for bytes that are no text.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\\' => text.push_str("\\\\"),
                char if char.is_control() => {
                    let mut bytes = [0; 4];
                    char.encode_utf8(&mut bytes).bytes().for_each(|byte| push_hex(&mut text, byte));
                }
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut text, *byte));
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

/// Returns the bytes of an escaped text. `None`: it has a backslash that begins nothing of these.
pub fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'\\' => b'\\',
            b'x' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            _ => return None,
        });
    }
    Some(bytes)
}

/// Returns bytes as people read them in a message.
pub fn shown(bytes: &[u8]) -> String {
    escaped(bytes)
}

/// Returns a row of a list with one field: for a table the bytes as people read them, so that no name can
/// look like another row or reach the terminal as a command.
pub fn field(format: Format, field: &str, bytes: &[u8]) -> Value {
    match format {
        Format::Json => json(field, bytes),
        Format::Text => json!({ field: shown(bytes) }),
    }
}

/// Returns a JSON object with one field: the bytes as text or, if they are none, `FIELD_hex`.
pub fn json(field: &str, bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ field: text }),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ format!("{field}_hex"): hex, field: escaped(bytes) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let umlaut = "Müller\u{85}\t\\x41\n".as_bytes();
        for bytes in [&all[..], umlaut, b"", b"plain"] {
            let text = escaped(bytes);
            assert!(!text.contains(['\t', '\n']));
            assert_eq!(unescaped(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(escaped("Müller\t1".as_bytes()), "Müller\\t1");
        for text in ["\\", "\\q", "\\x1", "\\xgg"] {
            assert_eq!(unescaped(text.as_bytes()), None, "{text}");
        }
        assert_eq!(json("key", b"a"), json!({ "key": "a" }));
        let row = field(Format::Text, "name", b"a\n\x1b[2Jb");
        assert_eq!(row, json!({ "name": "a\\n\\x1b[2Jb" }), "a table has one line for each name");
        assert_eq!(field(Format::Json, "name", b"a\nb"), json!({ "name": "a\nb" }));
        assert_eq!(json("key", &[0xff]), json!({ "key_hex": "ff", "key": "\\xff" }));
    }
}
