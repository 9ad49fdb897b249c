//! The ranges of changes that wait, to find the newest older change that overlaps another one.
//!
//! A range is cut into *nodes*: aligned blocks of 16^level units, as large as fit. Each node that contains one of its
//! ends is known to be touched by it. Two ranges overlap exactly if a node of one lies in a node of the other, so few
//! look-ups tell, however many ranges there are and however long they are.
//!
//! ```text
//!   level 1  |       16..32      |       32..48      |    range 14..40 covers 14, 15, the node 16..32, and 32 to 39;
//!   level 0  ..14 15 | ..        | 32 .. 39 ..             it touches these, and the nodes of 14 and 39 on all levels
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use crate::queue::Turn;

const LEVEL_BITS: u32 = 4;
/// The highest level. A volume has at most 2^42 units, so at most four nodes of this level.
const LEVEL_MAX: u32 = 10;

/// An aligned block of units: its level, and its number in the level.
type Node = (u32, u64);

/// Ranges of units, each of one request.
#[derive(Default)]
pub(crate) struct WaitingRanges {
    /// Nodes all of whose units are in the range of the request.
    covered: BTreeSet<(Node, Turn)>,
    /// Nodes some of whose units are.
    touched: BTreeSet<(Node, Turn)>,
}

impl WaitingRanges {
    /// Adds a range. Requires: it is not empty, and the request has none.
    pub(crate) fn insert(&mut self, range: &Range<u64>, turn: Turn) {
        for node in inner_nodes(range) {
            self.covered.insert((node, turn));
            self.touched.insert((node, turn));
        }
        self.touched.extend(outer_nodes(range).map(|node| (node, turn)));
    }

    /// Removes the range of a request.
    pub(crate) fn remove(&mut self, range: &Range<u64>, turn: Turn) {
        for node in inner_nodes(range) {
            self.covered.remove(&(node, turn));
            self.touched.remove(&(node, turn));
        }
        for node in outer_nodes(range) {
            self.touched.remove(&(node, turn));
        }
    }

    /// Returns the newest request that is older than this one and whose range overlaps this range.
    pub(crate) fn newest_before(&self, range: &Range<u64>, turn: Turn) -> Option<Turn> {
        if self.touched.is_empty() {
            return None;
        }
        let newest = |of: &BTreeSet<(Node, Turn)>, node: Node| {
            let older = of.range((node, Turn::NONE)..(node, turn));
            older.map(|(_, older)| *older).next_back()
        };
        let inner = inner_nodes(range).filter_map(|node| newest(&self.touched, node)).max();
        let outer = outer_nodes(range).filter_map(|node| newest(&self.covered, node)).max();
        inner.max(outer)
    }
}

/// Returns the largest nodes of which a range consists.
fn inner_nodes(range: &Range<u64>) -> impl Iterator<Item = Node> + use<> {
    let mut rest = range.clone();
    (0..=LEVEL_MAX).flat_map(move |level| {
        let Range { start, end } = rest;
        let (up, down) = (start.next_multiple_of(1 << LEVEL_BITS), end >> LEVEL_BITS << LEVEL_BITS);
        let (head, tail) = match level < LEVEL_MAX && up < down {
            true => (start..up, down..end),
            false => (start..end, end..end),
        };
        rest = match head.end == end {
            true => 0..0,
            false => up >> LEVEL_BITS..down >> LEVEL_BITS,
        };
        head.chain(tail).map(move |number| (level, number))
    })
}

/// Returns the nodes that contain the first or the last unit of a range.
fn outer_nodes(range: &Range<u64>) -> impl Iterator<Item = Node> + use<> {
    let (first, last) = (range.start, range.end - 1);
    (0..=LEVEL_MAX).flat_map(move |level| {
        let of = |unit: u64| unit >> (level * LEVEL_BITS);
        let second = (of(first) != of(last)).then_some((level, of(last)));
        std::iter::once((level, of(first))).chain(second)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_range() -> impl Strategy<Value = Range<u64>> {
        let end = 1 << 42;
        let start = prop_oneof![0..600u64, end - 600..end - 1, 0..end - 1];
        let length = prop_oneof![1..5u64, 1..600u64, 1..end];
        (start, length).prop_map(move |(start, length)| start..(start + length).min(end))
    }

    #[test]
    fn a_range_consists_of_its_nodes() {
        for range in [0..1, 14..40, 16..32, 3..70_000, 0..1 << 42, (1 << 42) - 1..1 << 42] {
            let mut nodes: Vec<Range<u64>> = inner_nodes(&range)
                .map(|(level, number)| number << (4 * level)..(number + 1) << (4 * level))
                .collect();
            assert!(nodes.len() <= 30 * LEVEL_MAX as usize);
            nodes.sort_by_key(|node| node.start);
            let ends = nodes.iter().map(|node| node.end);
            assert!(
                std::iter::once(range.start)
                    .chain(ends)
                    .eq(nodes.iter().map(|node| node.start).chain([range.end]))
            );
        }
    }

    proptest! {
        #[test]
        fn the_newest_older_range_that_overlaps_is_found(
            ranges in proptest::collection::vec(some_range(), 1..30),
            removed in proptest::collection::vec(any::<bool>(), 30),
            asked in some_range(),
            before in 1..31u64,
        ) {
            let mut index = WaitingRanges::default();
            let turn = |place: usize| Turn::of_user(place as u64 + 1);
            for (place, range) in ranges.iter().enumerate() {
                index.insert(range, turn(place));
            }
            for (place, range) in ranges.iter().enumerate().filter(|(place, _)| removed[*place]) {
                index.remove(range, turn(place));
            }
            let overlaps = |place: &usize| {
                let range = &ranges[*place];
                !removed[*place] && range.start < asked.end && asked.start < range.end
            };
            let expected = (0..ranges.len().min(before as usize - 1)).rev().find(overlaps);
            let found = index.newest_before(&asked, Turn::of_user(before));
            prop_assert_eq!(found, expected.map(turn));
            for (place, range) in ranges.iter().enumerate().filter(|(place, _)| !removed[*place]) {
                index.remove(range, turn(place));
            }
            prop_assert!(index.covered.is_empty() && index.touched.is_empty());
        }
    }
}
