//! A page of keys that lie in one range of the engine, or spread over several: names of objects are sorted
//! within each shard only, and are merged here.
//!
//! ```text
//!   range 1   a   d   f ┆            read up to f      ┆: everything below is known, and can be told
//!   range 2     b     ┆ g     k      read up to k
//!   page      a b d
//! ```
//!
//! Invariants
//!   1. A key is told only when each range was read beyond it.
//!   2. With one range, nothing that was read waits to be told: what the page tells is all that was read.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;
use format::engine::{Query, Records};

use crate::keys::behind_all;
use crate::listing::{Lister, Listing, Page, PageValue};
use crate::touched::Touched;

/// How many keys of each range a page with a delimiter reads first, and again behind each common prefix:
/// what else a common prefix stands for is read for nothing.
const PORTION_MIN: usize = 16;
/// The most bytes that a page of several ranges reads at once, about.
const SCANS_SIZE: usize = 2 << 20;
/// The fewest bytes that it reads of each range.
const SCAN_SIZE_MIN: usize = 8 << 10;

/// A record of the engine cannot be what its key says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRecord {
    /// Its key.
    pub key: Vec<u8>,
}

/// Makes a page of keys from the ranges in which they lie.
pub(crate) struct Paging<V> {
    lister: Lister<V>,
    ranges: Vec<Range<V>>,
    /// The first key of each range that was read and not told yet, with the range's index.
    fronts: BinaryHeap<Reverse<(Bytes, usize)>>,
    /// How many keys of each range to read next, at most.
    portion: usize,
    /// Whether the page has all of what was read: else it has room for more keys than its size would tell.
    tells_all: bool,
    /// Makes the page's value of a record's value. The inner `None`: the key is passed over. The outer one:
    /// a record with this key cannot have this value.
    decode: fn(&Bytes) -> Option<Option<V>>,
}

/// Keys that begin with the same bytes, and are sorted by the rest.
struct Range<V> {
    prefix: Vec<u8>,
    /// Where to read on, without the prefix. `None`: all was read.
    next: Option<Vec<u8>>,
    /// Keys that were read and not told yet, without the prefix. `None`: the key is passed over.
    ahead: VecDeque<(Bytes, Option<V>)>,
}

impl<V: PageValue> Paging<V> {
    /// Begins a page of what lies behind these prefixes of keys: at least one. `tells_all`: what it tells of
    /// a record is about as long as the record. Requires: [`Listing::check`]
    /// accepts the listing.
    pub fn new(
        listing: Listing,
        prefixes: impl IntoIterator<Item = Vec<u8>>,
        tells_all: bool,
        decode: fn(&Bytes) -> Option<Option<V>>,
    ) -> Paging<V> {
        let portion = if listing.delimiter.is_empty() { usize::MAX } else { PORTION_MIN };
        let lister = Lister::new(listing);
        let range = |prefix| Range { prefix, next: Some(Vec::new()), ahead: VecDeque::new() };
        let ranges = prefixes.into_iter().map(range).collect();
        let mut paging =
            Paging { lister, ranges, fronts: BinaryHeap::new(), portion, tells_all, decode };
        paging.tell();
        paging
    }

    /// Returns what to read next; nothing if the page is complete.
    pub fn queries(&self) -> Vec<Query> {
        let Some((_, end)) = self.lister.range() else { return Vec::new() };
        let (count, size) = self.lister.room();
        // One key more than fits shows where the next page begins.
        let count = match self.ranges.len() {
            1 => count + 1,
            // The page ends where the range ends that was read least far: some of each more than its share.
            ranges => (count + count / 4) / ranges + 8,
        };
        let count_max = count.min(self.portion);
        let size_of = |prefix: &[u8]| match self.ranges.len() {
            1 => size + 1 + count_max * prefix.len(),
            ranges => {
                let wanted = if self.tells_all { size + size / 4 } else { SCANS_SIZE };
                wanted.min(SCANS_SIZE) / ranges + SCAN_SIZE_MIN
            }
        };
        let query = |Range { prefix, next, .. }: &Range<V>| {
            let end = end.map_or_else(|| behind_all(prefix), |end| [prefix, end].concat());
            Some(Query::Scan {
                start: [&prefix[..], next.as_ref()?].concat(),
                end: Some(end),
                count_max,
                size_max: size_of(prefix),
            })
        };
        self.ranges.iter().filter_map(query).collect()
    }

    /// Takes the answers to [`Paging::queries`]: records, and whether there are more. After an error it
    /// cannot go on.
    pub fn supply(
        &mut self,
        answers: impl IntoIterator<Item = (Records, bool)>,
    ) -> Result<(), BadRecord> {
        let end = self.lister.range().and_then(|(_, end)| end.map(<[u8]>::to_vec));
        let mut reached = None;
        let open = self.ranges.iter_mut().enumerate().filter(|(_, range)| range.next.is_some());
        for ((index, range), (records, more)) in open.zip(answers) {
            assert!(!more || !records.is_empty(), "a scan that stops early has a record");
            let behind = |last: &[u8]| [&last[range.prefix.len()..], &[0]].concat();
            let next = records.last_key().filter(|_| more).map(behind);
            let had_none = range.ahead.is_empty();
            for (key, value) in records.into_shared() {
                let value = (self.decode)(&value).ok_or_else(|| BadRecord { key: key.to_vec() })?;
                let key = key.slice(range.prefix.len()..);
                // Else few bytes of a key would hold the memory of all that was read.
                let key = if self.tells_all { key } else { Bytes::copy_from_slice(&key) };
                range.ahead.push_back((key, value));
            }
            let front = range.ahead.front().filter(|_| had_none);
            self.fronts.extend(front.map(|(key, _)| Reverse((key.clone(), index))));
            range.next = next.filter(|next| end.as_ref().is_none_or(|end| next < end));
            reached = reached.max(range.next.clone());
        }
        self.tell();
        let start = self.lister.range().map(|(start, _)| start);
        let is_beyond = start.is_some_and(|start| reached.is_some_and(|it| start > &it[..]));
        self.portion = match is_beyond {
            true => PORTION_MIN,
            false => self.portion.saturating_mul(2),
        };
        Ok(())
    }

    /// Adds to the page what is known of all ranges, and passes in all of them what it does not need.
    fn tell(&mut self) {
        loop {
            let known = self.ranges.iter().filter_map(|range| range.next.as_ref()).min().cloned();
            while self.lister.range().is_some()
                && let Some(front) = self.fronts.peek_mut()
                && known.as_ref().is_none_or(|known| front.0.0 < known[..])
            {
                let ahead = &mut self.ranges[front.0.1].ahead;
                let first = ahead.pop_front().expect("its key was known");
                match ahead.front() {
                    Some((next, _)) => {
                        let mut front = front;
                        front.0.0 = next.clone();
                    }
                    None => _ = PeekMut::pop(front),
                }
                self.lister.add([first], false);
            }
            if known.is_none() && self.lister.range().is_some() {
                self.lister.add([], true);
            }
            let Some((start, _)) = self.lister.range() else { return };
            let mut has_passed = false;
            for range in &mut self.ranges {
                if let Some(next) = &mut range.next
                    && &next[..] < start
                {
                    *next = start.to_vec();
                    has_passed = true;
                }
            }
            if !has_passed {
                return;
            }
        }
    }

    /// Whether the page is complete.
    pub fn is_complete(&self) -> bool {
        self.lister.range().is_none()
    }

    /// Ends the page where it is, if it is not complete.
    pub fn stop(&mut self) {
        if !self.is_complete() {
            self.lister.stop();
        }
    }

    /// Whether changes touch what the page tells so far.
    pub fn is_met_by(&self, touched: &Touched) -> bool {
        let (first, behind) = self.lister.told();
        self.ranges.iter().any(|Range { prefix, .. }| {
            let start = [&prefix[..], &first].concat();
            let end = behind.map_or_else(|| behind_all(prefix), |it| [&prefix[..], it].concat());
            start < end && touched.meets(&start, &end)
        })
    }

    /// Returns the page. Requires: it is complete.
    pub fn finish(self) -> Page<V> {
        self.lister.finish()
    }
}
