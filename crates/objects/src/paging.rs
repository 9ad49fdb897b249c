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
//!   3. What is passed without being read begins with a common prefix, and lies behind a record of which the page
//!      tells as this common prefix: one with flags that are passed is told of by nobody ([`Folding`]).

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;
use format::engine::{Flags, Folding, Query, Records};

use crate::keys::behind_all;
use crate::listing::{Lister, Listing, Page, PageValue};
use crate::touched::Touched;

/// The most records of several ranges that a page with a delimiter reads at once, about: ranges may have the
/// same common prefixes, of which each is told once.
const FOLDED_MAX: usize = 4_096;
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
    /// Records with these flags are passed over.
    passed: Vec<Flags>,
    /// Whether the page has all of what was read: else it has room for more keys than its size would tell.
    tells_all: bool,
    /// Makes the page's value of a record's value. The inner `None`: the key is passed over. The outer one:
    /// a record with this key cannot have this value.
    decode: Decode<V>,
}

/// See [`Paging::new`].
pub(crate) type Decode<V> = Box<dyn Fn(&Bytes) -> Option<Option<V>> + Send>;

/// Keys that begin with the same bytes, and are sorted by the rest.
struct Range<V> {
    prefix: Vec<u8>,
    /// Where to read on, without the prefix. `None`: all was read.
    next: Option<Vec<u8>>,
    /// Keys that were read and not told yet, without the prefix. `None`: the key is passed over.
    ahead: VecDeque<(Bytes, Option<V>)>,
}

impl<V: PageValue> Paging<V> {
    /// Begins a page of what lies behind these prefixes of keys: at least one. `passed`: all that `decode`
    /// passes over has one of these flags. `tells_all`: what it tells of a record is about as long as the
    /// record. Requires: [`Listing::check`] accepts the listing.
    pub fn new(
        listing: Listing,
        prefixes: impl IntoIterator<Item = Vec<u8>>,
        passed: Vec<Flags>,
        tells_all: bool,
        decode: impl Fn(&Bytes) -> Option<Option<V>> + Send + 'static,
    ) -> Paging<V> {
        let decode = Box::new(decode);
        let lister = Lister::new(listing);
        let range = |prefix| Range { prefix, next: Some(Vec::new()), ahead: VecDeque::new() };
        let ranges = prefixes.into_iter().map(range).collect();
        let mut paging =
            Paging { lister, ranges, fronts: BinaryHeap::new(), passed, tells_all, decode };
        paging.tell();
        paging
    }

    /// Returns what to read next; nothing if the page is complete.
    pub fn queries(&self) -> Vec<Query> {
        let Some((_, end)) = self.lister.range() else { return Vec::new() };
        let (count, size) = self.lister.room();
        // One key more than fits shows where the next page begins.
        let Listing { prefix: listed, delimiter, .. } = self.lister.listing();
        // The page ends where the range ends that was read least far: some of each more than its share.
        let share = |ranges: usize| (count + count / 4) / ranges + 8;
        let count_max = match self.ranges.len() {
            1 => count + 1,
            ranges if delimiter.is_empty() => share(ranges),
            ranges => share(ranges).max(FOLDED_MAX / ranges).min(count + 1),
        };
        let size_of = |prefix: &[u8]| match self.ranges.len() {
            1 => size + 1 + count_max * prefix.len(),
            ranges => {
                let wanted = if self.tells_all { size + size / 4 } else { SCANS_SIZE };
                wanted.min(SCANS_SIZE) / ranges + SCAN_SIZE_MIN
            }
        };
        let query = |Range { prefix, next, .. }: &Range<V>| {
            let end = end.map_or_else(|| behind_all(prefix), |end| [prefix, end].concat());
            Some(Query::List {
                start: [&prefix[..], next.as_ref()?].concat(),
                end: Some(end),
                count_max,
                size_max: size_of(prefix),
                folding: Folding {
                    prefix_size: prefix.len() + listed.len(),
                    delimiter: delimiter.clone(),
                    passed: self.passed.clone(),
                },
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
        }
        self.tell();
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
