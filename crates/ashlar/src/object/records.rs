//! `ashlar object records`, and lists of attributes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use client::Config;
use client::block_on;
use client::objects::{
    Bytes, Field, Listing, Name, ObjectChange, ObjectError, Page, PageEntry, StepResult,
};
use cluster::message::Failure;
use serde_json::json;

use super::{
    assertions_of, assertions_of_version, change, escape, failed, listing, merged, named, open,
    print_field, set, unset, value_of,
};
use crate::cli::RecordsCommand;
use crate::output::{Column, Format, RowPages, column, failure, print_json};

const FIELD: &[Column] = &[column("KEY", "key"), column("VALUE", "value")];

/// Runs `ashlar object records`.
pub fn records(config: &Config, command: RecordsCommand, format: Format) -> Result<(), Failure> {
    match command {
        RecordsCommand::Ls { name, range, pool } => {
            let pool = open(config, format, &pool)?;
            let name = named(&name)?;
            let pages = |listing| pool.records(&name, listing);
            print_fields(&name, listing(&range), range.limit, pages, format)
        }
        RecordsCommand::Get { name, key, pool } => {
            let pool = open(config, format, &pool)?;
            print_field(&pool, &named(&name)?, Field::Record(key.as_bytes().to_vec()), format)
        }
        RecordsCommand::Set { name, key, value, condition, pool } => {
            let field = Field::Record(key.as_bytes().to_vec());
            let (value, assertions) = (value_of(value)?, assertions_of(&condition)?);
            let pool = open(config, format, &pool)?;
            set(&pool, &named(&name)?, (assertions, field, value), format)
        }
        RecordsCommand::Add { name, key, amount, pool } => {
            let pool = open(config, format, &pool)?;
            let name = named(&name)?;
            let change = ObjectChange::Add(Field::Record(key.as_bytes().to_vec()), amount);
            let executed = block_on(pool.change(&name, vec![change]));
            let executed = executed.map_err(|error| match error {
                ObjectError::Asserted { .. } => no_number(&name, key.as_bytes()),
                error => failed(&name, &error),
            })?;
            let sum = executed.results.into_iter().find_map(|result| match result {
                StepResult::Sum(sum) => Some(sum),
                _ => None,
            });
            match format {
                Format::Json => {
                    print_json(&json!({ "sum": sum, "version": executed.version.to_string() }))?
                }
                Format::Text => print_line!("{}", sum.unwrap_or_default())?,
            }
            Ok(())
        }
        RecordsCommand::Rm { name, keys, condition, pool } => {
            let assertions = assertions_of_version(&condition, keys.len())?;
            let pool = open(config, format, &pool)?;
            let fields = keys.iter().map(|key| Field::Record(key.as_bytes().to_vec())).collect();
            unset(&pool, &named(&name)?, &assertions, fields)
        }
        RecordsCommand::Clear { name, from, before, condition, pool } => {
            let assertions = assertions_of_version(&condition, 1)?;
            let pool = open(config, format, &pool)?;
            let name = named(&name)?;
            let before = before.map(OsString::into_encoded_bytes);
            let from = from.into_encoded_bytes();
            change(&pool, &name, assertions, ObjectChange::RemoveRecords { from, before }, format)
        }
    }
}

/// Returns what to say of a record to which nothing can be added.
fn no_number(name: &Name, key: &[u8]) -> Failure {
    let (name, key) = (escape::shown(name.bytes()), escape::shown(key));
    failure(
        "asserted",
        format!("{name}: record {key} is no number of 8 bytes, or the sum would exceed 64 bits"),
        "`ashlar object records get` shows its value; `records set` replaces it",
    )
}

/// Prints attributes or records, of which `pages` reads a page.
pub fn print_fields<Read: Future<Output = Result<Page<Bytes>, ObjectError>>>(
    name: &Name,
    mut listing: Listing,
    limit: Option<u64>,
    pages: impl Fn(Listing) -> Read,
    format: Format,
) -> Result<(), Failure> {
    let (mut printed, mut left) = (RowPages::new(format, FIELD), limit.unwrap_or(u64::MAX));
    while left > 0 {
        let page = block_on(pages(listing.clone())).map_err(|error| failed(name, &error))?;
        let mut rows = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let PageEntry::Key(key, value) = entry else { continue };
            if left > 0 {
                left -= 1;
                let value = escape::field(format, "value", &value);
                rows.push(merged(escape::field(format, "key", &key), value));
            }
        }
        printed.add(&rows)?;
        match page.next {
            Some(next) => listing.from = next,
            None => break,
        }
    }
    printed.end("none")?;
    Ok(())
}
