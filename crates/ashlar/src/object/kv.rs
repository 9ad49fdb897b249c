//! `ashlar kv`: small values under sorted keys. A key is the name of an object, its value the object's data.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::Path;

use client::objects::{
    Listing, Name, ObjectChange, ObjectError, ObjectPool, ObjectSteps, PageEntry,
};
use client::{Config, block_on};
use cluster::message::Failure;
use objects::listing::PAGE_COUNT_MAX;
use objects::operation::INLINE_SIZE_MAX;
use serde_json::json;

use super::{
    Bar, assertions_of, assertions_of_version, escape, failed, list_failed, listing, merged, named,
    open, print_version, remove_all, value_of, warn_of_partial, write_file,
};
use crate::cli::KvCommand;
use crate::output::{Format, RowPages, failure, print_json};

/// `bulk` sends so many changes, or bytes, at a time.
const PORTION_COUNT: usize = 50_000;
const PORTION_SIZE: usize = 16 << 20;

/// Runs `ashlar kv`.
pub fn kv(config: &Config, command: KvCommand, format: Format) -> Result<(), Failure> {
    match command {
        KvCommand::Put { key, value, condition, pool } => {
            let (key, assertions) = (named(&key)?, assertions_of(&condition)?);
            let value = value_of(value)?;
            check_value(&key, &value)?;
            let pool = open(config, format, &pool)?;
            let put = block_on(pool.put(&key, assertions, value, |_| {}));
            print_version(format, &key, put.map_err(|error| failed(&key, &error))?)?;
            Ok(())
        }
        KvCommand::Get { key, pool } => {
            let key = named(&key)?;
            let pool = open(config, format, &pool)?;
            let found = block_on(pool.get(&key));
            let found = found.map_err(|error| failed(&key, &error))?;
            let (stat, value) = found.ok_or_else(|| failed(&key, &ObjectError::Absent))?;
            warn_of_partial(&key, &stat);
            match format {
                Format::Json => {
                    let row =
                        merged(escape::json("key", key.bytes()), escape::json("value", &value));
                    print_json(&merged(row, json!({ "version": stat.version.to_string() })))?;
                    Ok(())
                }
                Format::Text => write_file(Path::new("-"), &value),
            }
        }
        KvCommand::Del { keys, condition, pool } => {
            let assertions = assertions_of_version(&condition, keys.len())?;
            let pool = open(config, format, &pool)?;
            remove_all(&pool, &keys, &assertions)
        }
        KvCommand::Scan { range, pool } => {
            let pool = open(config, format, &pool)?;
            scan(&pool, listing(&range), range.limit, format)
        }
        KvCommand::Bulk { file, pool } => {
            let pool = open(config, format, &pool)?;
            let mut bar = Bar::new(format, "bulk");
            let count = match file == Path::new("-") {
                true => bulk(&pool, io::stdin().lock(), |_| {})?,
                false => {
                    let opened = std::fs::File::open(&file);
                    let opened = opened.map_err(|error| cannot_read(&file, &error))?;
                    let size = opened.metadata().map_or(0, |found| found.len());
                    bulk(&pool, io::BufReader::new(opened), |done| bar.set(done, size))?
                }
            };
            drop(bar);
            match format {
                Format::Json => print_json(&json!({ "changed": count }))?,
                Format::Text => print_line!("{count} keys changed")?,
            }
            Ok(())
        }
    }
}

fn cannot_read(file: &Path, error: &io::Error) -> Failure {
    failure("io", format!("cannot read {}: {error}", file.display()), "")
}

fn check_value(key: &Name, value: &[u8]) -> Result<(), Failure> {
    if value.len() as u64 <= INLINE_SIZE_MAX {
        return Ok(());
    }
    let message = format!(
        "{}: the value has {} bytes; at most {INLINE_SIZE_MAX} are allowed",
        escape::shown(key.bytes()),
        value.len()
    );
    Err(failure("invalid", message, "store it with `ashlar object put`"))
}

/// Prints all values in the order of their keys, page by page.
fn scan(
    pool: &ObjectPool,
    mut listing: Listing,
    limit: Option<u64>,
    format: Format,
) -> Result<(), Failure> {
    let mut left = limit.unwrap_or(u64::MAX);
    let (mut pages, mut passed_count) = (RowPages::new(format, &[]), 0_u64);
    while left > 0 {
        let page = match left > PAGE_COUNT_MAX as u64 {
            true => block_on(pool.scan(&listing, true)),
            false => block_on(pool.list(&listing, true)),
        };
        let page = page.map_err(|error| list_failed(&error))?;
        let (mut rows, mut lines) = (Vec::new(), String::new());
        for entry in page.entries {
            let PageEntry::Key(key, found) = entry else { continue };
            if left == 0 {
                break;
            }
            // Longer data, or data that is not all there, is an object's, and no value.
            let Some(value) = found.data.filter(|_| !found.stat.is_partial) else {
                passed_count += 1;
                continue;
            };
            left -= 1;
            if format == Format::Json {
                rows.push(merged(escape::json("key", &key), escape::json("value", &value)));
                continue;
            }
            let (key, value) = (escape::escaped(&key), escape::escaped(&value));
            lines.push_str(&format!("{key}\t{value}\n"));
        }
        print_text!("{lines}")?;
        pages.add(&rows)?;
        match page.next {
            Some(next) => listing.from = next,
            None => break,
        }
    }
    if format == Format::Json {
        pages.end("")?;
    }
    if passed_count > 0 {
        note!(
            "ashlar: {passed_count} objects were passed over: they have more than {INLINE_SIZE_MAX} \
             bytes, or are partial. `ashlar object ls` lists them"
        );
    }
    Ok(())
}

/// Stores what the lines say. Returns how many keys changed. `progress` is told how many bytes are stored.
fn bulk(
    pool: &ObjectPool,
    mut lines: impl BufRead,
    mut progress: impl FnMut(u64),
) -> Result<usize, Failure> {
    let (mut changes, mut size, mut done, mut stored) = (BTreeMap::new(), 0, 0, 0);
    let mut send = |changes: BTreeMap<Name, Option<Vec<u8>>>| {
        let steps = changes.into_iter().map(|(name, value)| {
            let change = value.map_or(ObjectChange::Remove, ObjectChange::Put);
            ObjectSteps { name, assertions: Vec::new(), changes: vec![change] }
        });
        let (count, result) = block_on(pool.bulk(steps.collect()));
        done += count;
        result.map_err(|error| {
            let message = format!("{done} keys changed, then: {error}");
            failure("bulk", message, "what changed stays; run it again to store the rest")
        })
    };
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = lines.read_until(b'\n', &mut line);
        if read.map_err(|error| cannot_read(Path::new("the lines"), &error))? == 0 {
            break;
        }
        if line.pop_if(|last| *last == b'\n').is_none() {
            // A key that was cut off would be removed, and a value stored in part.
            let message = format!("line {number} does not end with a line feed: it may be cut off");
            return Err(failure("invalid", message, "complete it; lines before it may be stored"));
        }
        if line.is_empty() {
            continue;
        }
        let (key, value) = parse(&line).map_err(|why| {
            failure("invalid", format!("line {number}: {why}"), "`ashlar kv scan` shows the form")
        })?;
        size += line.len();
        changes.insert(key, value);
        if changes.len() >= PORTION_COUNT || size >= PORTION_SIZE {
            send(std::mem::take(&mut changes))?;
            stored += size as u64;
            progress(stored);
            size = 0;
        }
    }
    send(changes)?;
    Ok(done)
}

/// Reads one line: the key and, behind a tab, the value.
fn parse(line: &[u8]) -> Result<(Name, Option<Vec<u8>>), String> {
    let (key, value) = match line.iter().position(|byte| *byte == b'\t') {
        Some(at) => (&line[..at], Some(&line[at + 1..])),
        None => (line, None),
    };
    let field = |bytes: &[u8]| {
        escape::unescaped(bytes).ok_or_else(|| "a backslash begins nothing known".to_string())
    };
    let key = Name::new(&field(key)?).ok_or("a key has 1 to 1,088 bytes")?;
    let value = value.map(field).transpose()?;
    match value.as_ref().map_or(0, Vec::len) as u64 {
        ..=INLINE_SIZE_MAX => Ok((key, value)),
        size => Err(format!("a value has {size} bytes; at most {INLINE_SIZE_MAX} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_printed() {
        let name = |bytes: &[u8]| Name::new(bytes).expect("short");
        assert_eq!(parse(b"a\tb"), Ok((name(b"a"), Some(b"b".to_vec()))));
        assert_eq!(parse(b"a\t"), Ok((name(b"a"), Some(Vec::new()))));
        assert_eq!(parse(b"a"), Ok((name(b"a"), None)));
        assert_eq!(parse(b"a\\tb\t\\xff\\n"), Ok((name(b"a\tb"), Some(b"\xff\n".to_vec()))));
        assert!(parse(b"\tb").is_err());
        assert!(parse(b"a\\q\tb").is_err());
        let long = [b"a\t".to_vec(), vec![b'x'; (32 << 10) + 1]].concat();
        assert!(parse(&long).is_err());
        assert!(parse(&long[..long.len() - 1]).is_ok());
    }
}
