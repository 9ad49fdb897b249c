//! Range deletions of few keys: the writing thread deletes these keys instead.
//!
//! RocksDB keeps the range deletions of a memtable in a list. The first read after each new one builds the list anew,
//! so with 150,000 of them each read took up to 226 ms, on the thread that waits for it. Most ranges that callers
//! delete are the attributes and records of one object, and hold few keys or none.
//!
//! Where a range is found empty, its neighbours are looked at, too: most objects have no attributes and records, nor
//! have those beside them. Then the whole range between two keys is known to be empty, and the next deletions in it
//! search nothing.
//!
//! Invariants
//!   1. The keys that are deleted are at least all that the range holds when its deletion takes effect: those of
//!      RocksDB, and those that the group has put before it. No iterator of RocksDB sees the latter.
//!   2. Where a bounded search does not find out all these keys, the range deletion is written as it is.
//!   3. What is known to be empty is what RocksDB has before the group. The group's puts cut it when the group is
//!      written, and after a failure nothing is known.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use format::engine::behind;
use rocksdb::{BoundColumnFamily, DBRawIteratorWithThreadMode, ReadOptions};

use super::Database;
use super::empty_ranges::EmptyRanges;

/// A range with more keys is deleted as a range.
const KEY_COUNT_MAX: usize = 64;
/// The search ends where RocksDB passes more deleted or replaced records between two keys.
const SKIPPED_COUNT_MAX: u64 = 1000;
/// Keys of callers begin with what they are of, in so many bytes: neighbours in another part are not
/// looked at,
/// since much may be deleted on the way.
const PLACE_SIZE: usize = 3;
/// The search for neighbours ends where RocksDB passes more deleted or replaced records.
const NEIGHBOUR_SKIPPED_COUNT_MAX: u64 = 64;
/// After such an end so many searches do without neighbours.
const NEIGHBOURS_PAUSE: u32 = 64;

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

    /// Returns those in a range, but no more than make it too many.
    fn in_range(&mut self, start: &[u8], end: &[u8]) -> BTreeSet<Vec<u8>> {
        self.sorted.extend(self.newest.drain(..));
        let range = (Bound::Included(start), Bound::Excluded(end));
        let put = self.sorted.range::<[u8], _>(range);
        put.take(KEY_COUNT_MAX + 1).cloned().collect()
    }
}

/// The search for the keys of one family's range deletions.
#[derive(Default)]
pub(super) struct RangeSearch {
    empty: EmptyRanges,
    /// How many searches do without neighbours.
    pause: u32,
    /// How often RocksDB was asked.
    #[cfg(test)]
    pub(super) count: u32,
}

impl RangeSearch {
    /// Returns the keys to delete instead of the range. `None`: there are too many, or RocksDB cannot tell
    /// them soon.
    pub(super) fn keys_in_range(
        &mut self,
        puts: &mut GroupPuts,
        (database, column_family): (&Database, &Arc<BoundColumnFamily<'_>>),
        start: &[u8],
        end: &[u8],
    ) -> Option<BTreeSet<Vec<u8>>> {
        let mut keys = puts.in_range(start, end);
        if keys.len() > KEY_COUNT_MAX {
            return None;
        }
        if self.empty.covers(start, end) {
            return Some(keys);
        }
        #[cfg(test)]
        {
            self.count += 1;
        }
        self.pause = self.pause.saturating_sub(1);
        let place = place_of(start).filter(|place| self.pause == 0 && end <= &place.1[..]);
        if let Some((first, behind)) = place {
            let mut options = options(&behind, NEIGHBOUR_SKIPPED_COUNT_MAX);
            options.set_iterate_lower_bound(&first[..]);
            let mut iterator = database.raw_iterator_cf_opt(column_family, options);
            let is_empty = collect(&mut iterator, start, end, &mut keys);
            if iterator.status().is_ok() {
                if is_empty {
                    self.note_empty(&mut iterator, start, (&first, &behind));
                }
                return (keys.len() <= KEY_COUNT_MAX).then_some(keys);
            }
            self.pause = NEIGHBOURS_PAUSE;
        }
        let options = options(end, SKIPPED_COUNT_MAX);
        let mut iterator = database.raw_iterator_cf_opt(column_family, options);
        collect(&mut iterator, start, end, &mut keys);
        let has_all = iterator.status().is_ok() && keys.len() <= KEY_COUNT_MAX;
        has_all.then_some(keys)
    }

    /// Notes how far RocksDB has nothing around a range. Requires: the iterator has just passed all of the
    /// range without a key, and has these bounds.
    fn note_empty(
        &mut self,
        iterator: &mut RawIterator<'_>,
        start: &[u8],
        (first, behind): (&[u8], &[u8]),
    ) {
        let end = iterator.key().unwrap_or(behind).to_vec();
        iterator.seek_for_prev(start);
        let from = match (iterator.status(), iterator.key()) {
            (Err(_), _) => start.to_vec(),
            (Ok(()), None) => first.to_vec(),
            (Ok(()), Some(before)) => [before, &[0]].concat(),
        };
        self.empty.add(&from, &end);
    }

    /// Takes in what a group has put, whether or not that succeeded.
    pub(super) fn on_written(&mut self, puts: &GroupPuts) {
        if !self.empty.is_empty() {
            puts.sorted.iter().chain(&puts.newest).for_each(|key| self.empty.cut(key));
        }
    }
}

type RawIterator<'a> = DBRawIteratorWithThreadMode<'a, Database>;

/// Adds RocksDB's keys in a range, but no more than make it too many. Returns whether there are none; the
/// status
/// of the iterator says whether that is true.
fn collect(
    iterator: &mut RawIterator<'_>,
    start: &[u8],
    end: &[u8],
    keys: &mut BTreeSet<Vec<u8>>,
) -> bool {
    let mut is_empty = true;
    iterator.seek(start);
    while keys.len() <= KEY_COUNT_MAX
        && let Some(key) = iterator.key().filter(|key| *key < end)
    {
        is_empty = false;
        keys.insert(key.to_vec());
        iterator.next();
    }
    is_empty
}

/// Returns the range of all keys that are of the same.
fn place_of(key: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let first = key.get(..PLACE_SIZE)?.to_vec();
    let behind = behind(&first)?;
    Some((first, behind))
}

/// What range deletions have deleted is found as long as RocksDB has it. Otherwise it would be passed
/// without any limit, and the list of range deletions be built here.
fn options(end: &[u8], skipped_count_max: u64) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    options.set_max_skippable_internal_keys(skipped_count_max);
    options.set_ignore_range_deletions(true);
    options
}
