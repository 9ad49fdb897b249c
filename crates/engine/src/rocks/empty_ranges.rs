//! Ranges of a family's keys that are known to be empty, so that nothing is searched there again.
//!
//! Invariants
//!   1. RocksDB has no key in them, not even one that only a range deletion has deleted. Puts that are still to be
//!      written do not count: they cut the ranges when they are.
//!   2. They neither overlap nor touch, and are bounded in number: beyond that all are forgotten.

use std::collections::BTreeMap;
use std::ops::Bound;

const RANGES_MAX: usize = 4096;

/// Empty ranges of one family: by the first key, the first key behind the range.
#[derive(Default)]
pub(super) struct EmptyRanges(BTreeMap<Vec<u8>, Vec<u8>>);

impl EmptyRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all of this range is known to be empty.
    pub(super) fn covers(&self, start: &[u8], end: &[u8]) -> bool {
        self.at(start).is_some_and(|(_, behind)| end <= behind)
    }

    /// Notes that a range is empty.
    pub(super) fn add(&mut self, start: &[u8], end: &[u8]) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start.to_vec(), end.to_vec());
        if let Some((first, _)) =
            self.last_up_to(&start).filter(|(_, behind)| start[..] <= **behind)
        {
            start = first.to_vec();
        }
        let inside = (Bound::Included(&start[..]), Bound::Included(&end[..]));
        let inside: Vec<Vec<u8>> =
            self.0.range::<[u8], _>(inside).map(|(first, _)| first.clone()).collect();
        for first in inside {
            let behind = self.0.remove(&first).expect("it was just found");
            end = end.max(behind);
        }
        if self.0.len() == RANGES_MAX {
            self.0.clear();
        }
        self.0.insert(start, end);
    }

    /// Notes that there may be a key.
    pub(super) fn cut(&mut self, key: &[u8]) {
        let Some((first, _)) = self.at(key) else { return };
        let first = first.to_vec();
        let behind = self.0.remove(&first).expect("it was just found");
        let after = [key, &[0]].concat();
        if after < behind && self.0.len() + 2 <= RANGES_MAX {
            self.0.insert(after, behind);
        }
        if first[..] < *key {
            self.0.insert(first, key.to_vec());
        }
    }

    /// Returns the range that has this key.
    fn at(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        self.last_up_to(key).filter(|(_, behind)| key < *behind)
    }

    /// Returns the last range that begins at this key, or before it.
    fn last_up_to(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        self.0.range::<[u8], _>(up_to).next_back().map(|(first, behind)| (&first[..], &behind[..]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, u8),
        Cut(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let add = (0..30u8, 0..12u8).prop_map(|(start, size)| Step::Add(start, start + size));
        prop_oneof![add, (0..40u8).prop_map(Step::Cut)]
    }

    proptest! {
        #[test]
        fn covered_is_what_was_added_and_not_cut_since(
            steps in prop::collection::vec(step(), 0..40),
            start in 0..40u8,
            size in 1..5u8,
        ) {
            let (mut ranges, mut plain) = (EmptyRanges::default(), [false; 64]);
            for step in steps {
                match step {
                    Step::Add(start, end) => {
                        ranges.add(&[start], &[end]);
                        plain[usize::from(start)..usize::from(end)].fill(true);
                    }
                    Step::Cut(key) => {
                        ranges.cut(&[key]);
                        plain[usize::from(key)] = false;
                    }
                }
            }
            let end = start + size;
            let expected = plain[usize::from(start)..usize::from(end)].iter().all(|it| *it);
            prop_assert_eq!(ranges.covers(&[start], &[end]), expected);
            let mut pairs = ranges.0.iter().zip(ranges.0.iter().skip(1));
            prop_assert!(pairs.all(|((_, behind), (next, _))| behind < next));
        }
    }

    #[test]
    fn too_many_ranges_are_forgotten() {
        let mut ranges = EmptyRanges::default();
        let key = |at: usize| format!("{at:08}").into_bytes();
        ranges.add(&key(0), &key(100_000));
        for at in 1..10_000 {
            ranges.cut(&key(at * 2));
            assert!(ranges.0.len() <= RANGES_MAX);
        }
        assert!(ranges.covers(&key(1), &key(2)));
        for at in 0..10_000 {
            ranges.add(&key(100_000 + at * 2), &key(100_001 + at * 2));
            assert!(ranges.0.len() <= RANGES_MAX);
        }
        assert!(!ranges.covers(&key(1), &key(2)));
    }
}
