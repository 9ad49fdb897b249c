//! Returns the space of freed blocks to the device: ranges of freed blocks are discarded a few at a time.
//!
//! ```text
//!   freed by a durable checkpoint ──▶ queue ──discard──▶ in flight ──▶ free
//!   after a crash in between: the checkpoint lists the segments, and the next start queues them in `again`
//! ```
//!
//! Invariant: `by_segment` counts the blocks in the queue and in flight; no count is zero.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::allocator::{Place, segment_of};

/// Maximum number of discards in flight.
const IN_FLIGHT_MAX: usize = 16;
/// Maximum number of ranges of segments that a checkpoint lists.
const RANGES_MAX: usize = 4096;

/// Adjacent freed blocks whose space is given back with one discard.
#[derive(Debug)]
pub struct Discard {
    /// Position on the device in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    pub places: Vec<Place>,
}

/// Discards in flight, and discards that wait.
#[derive(Default)]
pub struct Discards {
    queue: VecDeque<Discard>,
    in_flight_count: usize,
    /// Blocks whose space is being given back, by segment.
    by_segment: BTreeMap<u32, u32>,
    /// Segments in which a crash may have prevented discards.
    again: VecDeque<Range<u32>>,
}

impl Discards {
    /// Sets the segments whose space may not have been given back before the start.
    pub fn repeat(&mut self, segments: Vec<Range<u32>>) {
        self.again = segments.into();
    }

    /// Returns the next segment whose discards must be repeated.
    pub fn next_repeated(&mut self) -> Option<u32> {
        let range = self.again.front_mut()?;
        let index = range.start;
        range.start += 1;
        if range.start == range.end {
            self.again.pop_front();
        }
        Some(index)
    }

    /// Whether no discard waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight_count == 0
    }

    /// Queues the place at `offset` on the device. Joins it with the last queued place if they are
    /// adjacent.
    pub fn push(&mut self, offset: u64, place: Place) {
        let size = place.block_size.bytes();
        *self.by_segment.entry(segment_of(place.location)).or_default() += 1;
        match self.queue.back_mut() {
            Some(discard) if discard.offset + discard.length == offset => {
                discard.length += size;
                discard.places.push(place);
            }
            _ => self.queue.push_back(Discard { offset, length: size, places: vec![place] }),
        }
    }

    /// Returns the next discard to start; `None` if none waits or the limit is reached.
    pub fn begin_next(&mut self) -> Option<Discard> {
        if self.in_flight_count >= IN_FLIGHT_MAX {
            return None;
        }
        let discard = self.queue.pop_front()?;
        self.in_flight_count += 1;
        Some(discard)
    }

    /// Ends a discard of these places.
    pub fn end(&mut self, places: &[Place]) {
        assert!(self.in_flight_count > 0);
        self.in_flight_count -= 1;
        for place in places {
            let Entry::Occupied(mut left) = self.by_segment.entry(segment_of(place.location))
            else {
                unreachable!("it was queued")
            };
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
    }

    /// Returns the segments that still need discards once the checkpoint that frees blocks in the segments
    /// `freed` is durable. A start repeats these discards. If there are too many ranges, the result also
    /// includes segments between them.
    pub fn segments(&self, freed: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
        let single = self.by_segment.keys().copied().chain(freed).map(|index| index..index + 1);
        let mut segments: Vec<Range<u32>> = single.chain(self.again.iter().cloned()).collect();
        segments.sort_unstable_by_key(|range| range.start);
        let mut gap = 0;
        loop {
            let ranges = join_ranges(&segments, gap);
            if ranges.len() <= RANGES_MAX {
                return ranges;
            }
            gap = 2 * gap + 1;
        }
    }
}

/// Joins ranges that overlap or are up to `gap` apart. Requires: they are sorted by their starts.
fn join_ranges(ranges: &[Range<u32>], gap: u32) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_segments_are_joined_where_there_are_many() {
        let mut discards = Discards::default();
        let many: Vec<Range<u32>> = (0..10_000).map(|index| 4 * index..4 * index + 2).collect();
        discards.repeat(many.clone());
        let ranges = discards.segments([].into_iter());
        assert!(ranges.len() <= 4096, "{}", ranges.len());
        let is_within = |range: &Range<u32>| {
            ranges.iter().any(|other| other.start <= range.start && range.end <= other.end)
        };
        assert!(many.iter().all(is_within));
        discards.repeat(vec![3..7, 5..6, 7..9, 11..12]);
        assert_eq!(discards.segments([].into_iter()), [3..9, 11..12]);
    }
}
