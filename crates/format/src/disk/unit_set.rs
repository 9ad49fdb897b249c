//! Sets of units: which units of a block are written, damaged, or covered.

use std::fmt;

use base::UNIT_SIZE;

/// A set of the 4 KiB units of one block: bit `i` of word `i / 64` is unit `i`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitSet([u64; 4]);

impl UnitSet {
    /// The empty set.
    pub const EMPTY: UnitSet = UnitSet([0; 4]);

    /// Returns the set of the first `count` units. Requires: at most 256.
    pub fn first(count: u32) -> UnitSet {
        let mut set = UnitSet::EMPTY;
        for unit in 0..count {
            set.insert(unit);
        }
        set
    }

    /// Returns the set of the units whose bits are set.
    pub const fn from_words(words: [u64; 4]) -> UnitSet {
        UnitSet(words)
    }

    /// Whether the unit is in the set.
    pub fn contains(&self, unit: u32) -> bool {
        self.0[unit as usize / 64] & (1 << (unit % 64)) != 0
    }

    /// Adds the unit.
    pub fn insert(&mut self, unit: u32) {
        self.0[unit as usize / 64] |= 1 << (unit % 64);
    }

    /// Removes the unit.
    pub fn remove(&mut self, unit: u32) {
        self.0[unit as usize / 64] &= !(1 << (unit % 64));
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Returns the number of units in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the units in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..256).filter(|unit| self.contains(*unit))
    }

    /// Returns all words of the set.
    pub const fn all_words(&self) -> &[u64; 4] {
        &self.0
    }

    /// Returns the set of the units in these words; missing words count as zeros. Requires: at most 4
    /// words.
    pub fn from_slice(words: &[u64]) -> UnitSet {
        let mut all = [0; 4];
        all[..words.len()].copy_from_slice(words);
        UnitSet(all)
    }

    /// Whether all units are also in `other`.
    pub fn is_within(&self, other: &UnitSet) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, other)| mine & !other == 0)
    }

    /// Returns the units that are in both sets.
    pub fn within(&self, other: &UnitSet) -> UnitSet {
        let mut both = self.0;
        both.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
        UnitSet(both)
    }

    /// Returns offset and length, in bytes, of the range from the first unit to the last; zeros if the set
    /// is empty.
    pub fn span(&self) -> (u32, u32) {
        let Some(first) = self.iter().next() else { return (0, 0) };
        let last = (first..256).rev().find(|unit| self.contains(*unit)).unwrap_or(first);
        let unit = UNIT_SIZE as u32;
        (first * unit, (last + 1 - first) * unit)
    }

    /// Returns the words needed for a block of `unit_count` units.
    pub fn words(&self, unit_count: u32) -> Vec<u64> {
        self.0[..(unit_count as usize).div_ceil(64)].to_vec()
    }
}

impl fmt::Debug for UnitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
