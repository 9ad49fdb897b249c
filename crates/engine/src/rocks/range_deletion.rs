//! Range deletions of few keys: the writing thread deletes these keys instead.
//!
//! RocksDB keeps the range deletions of a memtable in a list. The first read after each new one builds the list anew,
//! so with 150,000 of them each read took up to 226 ms, on the thread that waits for it. Most ranges that callers
//! delete are the attributes and records of one object, and hold few keys or none.
//!
//! Invariants
//!   1. The keys that are deleted are at least all that the range holds when its deletion takes effect: those of
//!      RocksDB, and those that the group has put before it. No iterator of RocksDB sees the latter.
//!   2. Where a bounded search does not find out all these keys, the range deletion is written as it is.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use rocksdb::{BoundColumnFamily, ReadOptions};

use super::Database;

/// A range with more keys is deleted as a range.
const KEY_COUNT_MAX: usize = 64;
/// The search ends where RocksDB passes more deleted or replaced records between two keys.
const SKIPPED_COUNT_MAX: u64 = 1000;

/// The keys of one family that a group has put so far.
#[derive(Default)]
pub(super) struct GroupPuts {
    sorted: BTreeSet<Vec<u8>>,
    /// Those since the last range deletion: most groups have none, and sort nothing.
    newest: Vec<Vec<u8>>,
}

impl GroupPuts {
    pub(super) fn add(&mut self, key: Vec<u8>) {
        self.newest.push(key);
    }

    /// Returns the keys to delete instead of the range. `None`: there are too many, or RocksDB cannot tell
    /// them soon.
    pub(super) fn keys_in_range(
        &mut self,
        database: &Database,
        column_family: &Arc<BoundColumnFamily<'_>>,
        start: &[u8],
        end: &[u8],
    ) -> Option<BTreeSet<Vec<u8>>> {
        self.sorted.extend(self.newest.drain(..));
        let range = (Bound::Included(start), Bound::Excluded(end));
        let put = self.sorted.range::<[u8], _>(range);
        let mut keys: BTreeSet<Vec<u8>> = put.take(KEY_COUNT_MAX + 1).cloned().collect();

        let mut iterator = database.raw_iterator_cf_opt(column_family, options(end));
        iterator.seek(start);
        while keys.len() <= KEY_COUNT_MAX
            && let Some(key) = iterator.key()
        {
            keys.insert(key.to_vec());
            iterator.next();
        }
        let has_all = iterator.status().is_ok() && keys.len() <= KEY_COUNT_MAX;
        has_all.then_some(keys)
    }
}

/// What range deletions have deleted is found as long as RocksDB has it. Otherwise it would be passed
/// without any limit, and the list of range deletions be built here.
fn options(end: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    options.set_max_skippable_internal_keys(SKIPPED_COUNT_MAX);
    options.set_ignore_range_deletions(true);
    options
}
