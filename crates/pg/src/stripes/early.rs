//! Differences that arrived at a parity member before their versions. A data member sends them over a
//! connection of its own, so they may overtake the primary's message.
//!
//! Invariants
//!   1. What is held is limited in bytes and in number. A difference beyond the limit is dropped: it is asked
//!      for like a lost one.

use std::collections::BTreeMap;

use base::{BlockSize, Position, UNIT_SIZE, Version};
use blockstore::BlockKey;

use super::part::Part;

/// Maximum size of the differences that are held, in blocks.
const BLOCK_COUNT_MAX: u64 = 8;
/// Maximum number of differences that are held. Some hold no data.
const COUNT_MAX: usize = 256;

/// The differences that are held; see the module.
#[derive(Default)]
pub struct EarlyDeltas {
    held: BTreeMap<(Version, Position), EarlyDelta>,
    bytes: u64,
}

/// A difference that arrived before its version.
pub struct EarlyDelta {
    pub key: BlockKey,
    pub part: Position,
    pub delta: Part,
}

impl EarlyDelta {
    fn bytes(&self) -> u64 {
        self.delta.written.len() as u64 * UNIT_SIZE
    }
}

impl EarlyDeltas {
    /// Holds a difference until its version arrives, if there is room for it.
    pub fn hold(&mut self, version: Version, early: EarlyDelta, block_size: BlockSize) {
        let bytes = early.bytes();
        let has_room = self.bytes + bytes <= BLOCK_COUNT_MAX * block_size.bytes();
        let place = (version, early.part);
        if has_room && self.held.len() < COUNT_MAX && !self.held.contains_key(&place) {
            self.bytes += bytes;
            self.held.insert(place, early);
        }
    }

    /// Removes and returns the differences of this version, which has arrived.
    pub fn take(&mut self, version: Version) -> Vec<EarlyDelta> {
        let mut taken = Vec::new();
        while let Some(entry) = self.held.first_entry() {
            let (its, _) = *entry.key();
            if its > version {
                break;
            }
            let early = entry.remove();
            self.bytes -= early.bytes();
            taken.extend(Some(early).filter(|_| its == version));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use base::{BufferPool, Epoch, ImageId, PoolId, StripeIndex};

    use super::super::part::UnitData;
    use super::*;

    const SIZE: BlockSize = BlockSize::MIN;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(3), counter }
    }

    fn early(part: u8, units: u32) -> EarlyDelta {
        let buffers = BufferPool::default();
        let unit = |unit| (unit, UnitData::of(&[7; UNIT_SIZE as usize], &buffers));
        let written = (0..units).map(unit).collect();
        let delta = Part { written, ..Part::nothing(SIZE) };
        let (pool, image) = (PoolId::FIRST, ImageId::FIRST);
        let key = BlockKey { pool, hash: 1, image, stripe: StripeIndex::new(0) };
        EarlyDelta { key, part: Position::new(part).unwrap(), delta }
    }

    #[test]
    fn a_version_takes_its_own_differences_and_drops_older_ones() {
        let mut deltas = EarlyDeltas::default();
        for (counter, part) in [(4, 0), (5, 1), (5, 0), (7, 1)] {
            deltas.hold(version(counter), early(part, 1), SIZE);
        }
        let parts = |taken: Vec<EarlyDelta>| -> Vec<u8> {
            taken.into_iter().map(|early| early.part.get()).collect()
        };
        assert_eq!(parts(deltas.take(version(5))), [0, 1]);
        assert!(deltas.take(version(6)).is_empty());
        assert_eq!(parts(deltas.take(version(7))), [1]);
        assert_eq!((deltas.held.len(), deltas.bytes), (0, 0));
    }

    #[test]
    fn what_is_held_is_limited() {
        let mut deltas = EarlyDeltas::default();
        let count = SIZE.unit_count();
        for counter in 1..=20 {
            deltas.hold(version(counter), early(0, count), SIZE);
        }
        assert_eq!(deltas.bytes, 8 * SIZE.bytes());
        let mut deltas = EarlyDeltas::default();
        for counter in 1..=400 {
            deltas.hold(version(counter), early(0, 0), SIZE);
        }
        assert_eq!(deltas.held.len(), COUNT_MAX);
        deltas.take(version(400));
        assert_eq!((deltas.held.len(), deltas.bytes), (0, 0));
    }
}
