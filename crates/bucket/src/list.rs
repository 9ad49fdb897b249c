//! Lists of the objects of a bucket. `docs/internals/buckets.md`, rule 13.
//!
//! Invariants
//!   1. Pages that follow one another have each key and common prefix that was there throughout exactly once.
//!   2. A token names a place in its bucket, whatever bytes it has.

use std::time::Duration;

use base::planted::{self, Bug};
use bytes::Bytes;
use objects::listing::{PAGE_COUNT_MAX, PAGE_SIZE_MAX, behind};
use objects::{Listed, Listing, PageEntry};

use crate::api::{Bucket, ListEntry, ListPage, ListRequest};
use crate::core::{Core, Result};
use crate::door::{Door, ListQuery};
use crate::failure::Failure;
use crate::head::{HIDDEN, Head};
use crate::names::{FRONT_SIZE, IndexName, KEY_SIZE_MAX, Shards, front};

/// A page with an entry ends after this time.
pub const PAGE_WITHIN: Duration = Duration::from_millis(200);
/// A page without an entry ends after this time.
pub const EMPTY_PAGE_WITHIN: Duration = Duration::from_secs(20);
/// The most bytes of a token: a key, its end, and a byte behind it.
const TOKEN_SIZE_MAX: usize = KEY_SIZE_MAX + 4;

pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() > KEY_SIZE_MAX {
        return Err(Failure::KeyTooLong);
    }
    match text.contains('\0') {
        true => Err(Failure::Invalid { why: format!("{what} has no byte 0") }),
        false => Ok(()),
    }
}

/// Returns where a page begins, without what all keys of the bucket begin with.
fn first_of_page(request: &ListRequest) -> Result<Vec<u8>> {
    if let Some(token) = &request.token {
        return match token.len() <= TOKEN_SIZE_MAX {
            true => Ok(token.clone()),
            false => Err(Failure::Invalid { why: "the continuation token is none of ours".into() }),
        };
    }
    let Some(after) = &request.after else { return Ok(Vec::new()) };
    check_text("a marker", after)?;
    // A marker that is a common prefix stands for all that begins with it: else it is told for ever.
    let ListRequest { prefix, delimiter, .. } = request;
    let rest = after.strip_prefix(prefix.as_str()).filter(|_| !delimiter.is_empty());
    let is_common = rest.is_some_and(|rest| {
        rest.find(delimiter.as_str()).is_some_and(|at| at + delimiter.len() == rest.len())
    });
    match is_common {
        true => Ok(behind(after.as_bytes()).expect("no text ends with FF")),
        false => Ok([after.as_bytes(), &[0, 0xff]].concat()),
    }
}

impl<D: Door> Core<D> {
    pub(crate) async fn list(&self, bucket: &Bucket, request: &ListRequest) -> Result<ListPage> {
        check_text("a prefix", &request.prefix)?;
        check_text("a delimiter", &request.delimiter)?;
        let first = first_of_page(request)?;
        let count_max = request.count_max.min(PAGE_COUNT_MAX);
        let mut page = ListPage::default();
        if count_max == 0 {
            return Ok(page);
        }
        let began_us = self.door.running_us();
        let group = bucket.id.group();
        let front = front(b'k', group);
        let mut from = [&front[..], &first].concat();
        loop {
            let listing = Listing {
                prefix: [&front[..], request.prefix.as_bytes()].concat(),
                from,
                before: None,
                delimiter: request.delimiter.as_bytes().to_vec(),
                count_max: count_max - page.entries.len(),
                size_max: PAGE_SIZE_MAX,
            };
            let shards = Shards::Of { group, spread: bucket.spread };
            let query = ListQuery { shards, listing, skip: skipped(), with_data: true };
            let part = self.door.list(query).await?;
            let mut next = part.next;
            if let (Some(next), Some(PageEntry::CommonPrefix(last))) =
                (&mut next, part.entries.last())
                && next.starts_with(last)
            {
                *next = behind(last).expect("no text ends with FF");
            }
            for entry in part.entries {
                page.entries.extend(entry_of(entry)?);
            }
            let Some(next) = next else { return Ok(page) };
            let waited = self.since(began_us);
            let is_over = match page.entries.is_empty() {
                true => waited >= EMPTY_PAGE_WITHIN,
                false => waited >= PAGE_WITHIN || page.entries.len() >= count_max,
            };
            if is_over {
                page.next = Some(next.get(FRONT_SIZE..).unwrap_or_default().to_vec());
                return Ok(page);
            }
            from = next;
        }
    }
}

/// Returns which heads a list passes.
fn skipped() -> u8 {
    if planted::on(Bug::HiddenUnderPrefix) { 0 } else { HIDDEN }
}

/// Returns an entry as clients see it. `None`: it is hidden.
fn entry_of(entry: PageEntry<Listed>) -> Result<Option<ListEntry>> {
    let text = |bytes: &Bytes| {
        let text = bytes.get(FRONT_SIZE..).and_then(|text| std::str::from_utf8(text).ok());
        text.map(str::to_owned)
    };
    let damaged = |name: &Bytes, what: &str| {
        Err(Failure::Damaged { what: format!("{what} (\"{}\")", name.escape_ascii()) })
    };
    match entry {
        PageEntry::CommonPrefix(prefix) => match text(&prefix) {
            Some(prefix) => Ok(Some(ListEntry::CommonPrefix(prefix))),
            None => damaged(&prefix, "a key is not UTF-8"),
        },
        PageEntry::Key(name, listed) => {
            let Some(IndexName::Key { key, .. }) = IndexName::decode(&name) else {
                return damaged(&name, "the name of a key is malformed");
            };
            let head = listed.data.as_deref().map(Head::decode);
            match head {
                Some(Ok(head)) if head.current.is_hidden => Ok(None),
                Some(Ok(head)) => {
                    Ok(Some(ListEntry::Object(key.as_str().to_owned(), head.current.info())))
                }
                _ => damaged(&name, "the head of a key is malformed"),
            }
        }
    }
}
