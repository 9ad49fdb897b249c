//! Random numbers: all streams of a run come from one seed, and each subsystem has its own stream.
//!
//! The streams are independent, so an additional draw in the workload does not change the faults.

use std::ops::Range;

use base::hash::stripe_hash;
use base::{ImageId, StripeIndex};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A probability in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Chance(pub u32);

impl Chance {
    /// The probability 0.
    pub const NEVER: Chance = Chance(0);

    /// Returns a probability given in percent.
    pub const fn percent(percent: u32) -> Chance {
        Chance(percent * 10_000)
    }
}

/// One stream of random numbers.
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Creates the stream named `subsystem` of a seed.
    pub fn new(seed: u64, subsystem: &str) -> Random {
        // The stripe hash, whose definition never changes, mixes the name into the seed; the generator
        // provides the quality of the randomness.
        let name = subsystem.bytes().fold(1u32, |sum, byte| {
            let id = ImageId::new(sum.max(1)).expect("not 0");
            stripe_hash(id, StripeIndex::new(u32::from(byte)))
        });
        Random(Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(name) << 32)))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`. Requires: `end` is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0);
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number in the range. Requires: the range is not empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end);
        range.start + self.below(range.end - range.start)
    }

    /// Returns an index below `count`. Requires: `count` is not 0.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Draws whether an event with this probability happens.
    pub fn chance(&mut self, chance: Chance) -> bool {
        chance.0 > 0 && self.below(1_000_000) < u64::from(chance.0)
    }

    /// Returns one of the elements. Requires: the slice is not empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// Returns the index of a weight, drawn in proportion to the weights. Requires: their sum is not 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut left = self.below(sum);
        for (index, weight) in weights.iter().enumerate() {
            if left < u64::from(*weight) {
                return index;
            }
            left -= u64::from(*weight);
        }
        unreachable!("the draw is below the sum of the weights")
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }

    /// Returns a number in the range whose logarithm is evenly distributed, so that each order of
    /// magnitude is equally likely. Requires: the range is not empty and starts above 0.
    pub fn scale(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start > 0);
        assert!(range.start < range.end);
        let last = range.end - 1;
        let shift = self.below(u64::from(last.ilog2() - range.start.ilog2()) + 1) as u32;
        let low = (range.start << shift).min(last);
        let high = (low.saturating_mul(2)).min(range.end);
        if low + 1 >= high { low } else { self.range(low..high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let draw = |seed, name| {
            let mut random = Random::new(seed, name);
            [random.bits(), random.bits()]
        };
        assert_eq!(draw(1, "disk"), draw(1, "disk"));
        assert_ne!(draw(1, "disk"), draw(1, "net"));
        assert_ne!(draw(1, "disk"), draw(2, "disk"));
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(7, "test");
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[random.range(10..15) as usize - 10] += 1;
            let scaled = random.scale(3..1000);
            assert!((3..1000).contains(&scaled));
            assert!(random.weighted(&[0, 3, 0, 1]) % 2 == 1);
        }
        assert!(seen.iter().all(|count| *count > 100));
        assert_eq!((0..1000).filter(|_| random.chance(Chance::NEVER)).count(), 0);
        let tenth = (0..10_000).filter(|_| random.chance(Chance::percent(10))).count();
        assert!((800..1200).contains(&tenth));
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3, "test").shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
