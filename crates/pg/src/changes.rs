//! The change list: which units of which blocks changed recently.
//!
//! Invariants
//!   1. The list holds every change of the PG at this member with a version above `reach`.
//!   2. The list holds at most `count_max` changes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::Version;
use blockstore::BlockKey;

use crate::units::Units;

/// The change list; see the module.
pub struct Changes {
    reach: Version,
    count_max: usize,
    list: VecDeque<Changed>,
}

struct Changed {
    version: Version,
    key: BlockKey,
    first: u16,
    end: u16,
}

impl Changes {
    /// Returns an empty list that lacks all changes up to `reach`. Of later changes it keeps the last
    /// `count_max`.
    pub fn new(reach: Version, count_max: usize) -> Changes {
        Changes { reach, count_max, list: VecDeque::new() }
    }

    /// Adds a change to a block. A full list drops its oldest change.
    pub fn add(&mut self, version: Version, key: BlockKey, units: Range<u32>) {
        if self.list.len() == self.count_max
            && let Some(oldest) = self.list.pop_front()
        {
            self.reach = self.reach.max(oldest.version);
        }
        let (first, end) = (units.start as u16, units.end as u16);
        self.list.push_back(Changed { version, key, first, end });
    }

    /// Returns the blocks with changes above `version`, and the units that changed. Returns `None` if the
    /// list does not reach back that far.
    pub fn since(&self, version: Version) -> Option<BTreeMap<BlockKey, Units>> {
        if self.reach > version {
            return None;
        }
        let mut blocks: BTreeMap<BlockKey, Units> = BTreeMap::new();
        for change in self.list.iter().filter(|change| change.version > version) {
            let units = blocks.entry(change.key).or_default();
            units.add_range(u32::from(change.first)..u32::from(change.end));
        }
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn key(stripe: u32) -> BlockKey {
        let (image, stripe) = (ImageId::FIRST, StripeIndex::new(stripe));
        BlockKey { pool: PoolId::FIRST, hash: 1, image, stripe }
    }

    #[test]
    fn units_that_changed_since_a_version_are_told() {
        let mut changes = Changes::new(version(2), 12);
        changes.add(version(3), key(1), 0..2);
        changes.add(version(4), key(1), 3..4);
        changes.add(version(5), key(2), 0..1);
        assert!(changes.since(version(1)).is_none());
        let all = changes.since(version(2)).unwrap();
        assert_eq!(all[&key(1)], Units::from_range(0..2).with(&Units::from_range(3..4)));
        let late = changes.since(version(3)).unwrap();
        assert_eq!(late[&key(1)], Units::from_range(3..4));
        assert_eq!(late.len(), 2);
    }

    #[test]
    fn what_fell_out_of_the_list_is_not_told() {
        let mut changes = Changes::new(Version::ZERO, 12);
        for counter in 1..=13 {
            changes.add(version(counter), key(counter as u32), 0..1);
        }
        assert!(changes.since(Version::ZERO).is_none());
        assert_eq!(changes.since(version(1)).unwrap().len(), 12);
    }
}
