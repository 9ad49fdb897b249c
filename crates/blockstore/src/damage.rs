//! Units that reads found damaged and that have not been written since.
//!
//! Invariant: no block is listed without a damaged unit.

use std::collections::BTreeMap;

use format::disk::{BlockKey, UnitSet};

/// Damaged units of all blocks.
#[derive(Default)]
pub struct Damage {
    units: BTreeMap<BlockKey, UnitSet>,
    found_count: u64,
}

impl Damage {
    /// Returns the number of damaged units found since the start. A unit that is rewritten and damaged
    /// again counts twice.
    pub fn found_count(&self) -> u64 {
        self.found_count
    }

    /// Returns the number of units that are damaged now, of those found since the start.
    pub fn left_count(&self) -> u64 {
        self.units.values().map(|units| u64::from(units.count())).sum()
    }

    /// Returns the damaged units of a block.
    pub fn of(&self, key: &BlockKey) -> UnitSet {
        self.units.get(key).copied().unwrap_or_default()
    }

    /// Records units that cannot be read. Requires: at least one unit.
    pub fn found(&mut self, key: BlockKey, units: UnitSet) {
        assert!(!units.is_empty());
        let known = self.units.entry(key).or_default();
        for unit in units.iter() {
            self.found_count += u64::from(!known.contains(unit));
            known.insert(unit);
        }
    }

    /// Removes the damage records of a block whose content was replaced.
    pub fn forget(&mut self, key: &BlockKey) {
        self.units.remove(key);
    }

    /// Removes the damage records of units whose content was replaced.
    pub fn forget_units(&mut self, key: &BlockKey, units: impl Iterator<Item = u32>) {
        let Some(damaged) = self.units.get_mut(key) else { return };
        units.for_each(|unit| damaged.remove(unit));
        if damaged.is_empty() {
            self.units.remove(key);
        }
    }
}
