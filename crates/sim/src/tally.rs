//! Totals of a run: counts of operations and faults. If a kind never happens over many seeds, the simulator
//! no longer tests it.

use std::collections::BTreeMap;

/// Counts by name. All names are given at the start, so that a kind that never happens is visible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// Creates counts with these names, all zero.
    pub fn new(names: &[&'static str]) -> Counts {
        Counts(names.iter().map(|name| (*name, 0)).collect())
    }

    /// Adds to the count with this name. Requires: the name was given at the start.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.get_mut(name).expect("every name is known beforehand") += count;
    }

    /// Returns the count with this name. Requires: the name was given at the start.
    pub fn get(&self, name: &'static str) -> u64 {
        self.0[name]
    }

    /// Returns the sum of all counts.
    pub fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Counts) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Returns the names whose count is zero.
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect()
    }

    /// Returns all names and counts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, count)| (*name, *count))
    }
}

/// Totals of one run, or of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Operations of users, by kind.
    pub operations: Counts,
    /// Faults, by kind.
    pub faults: Counts,
    /// Consequences of operations and faults, by kind.
    pub consequences: Counts,
}

impl Tally {
    /// Creates a tally with all counts at zero.
    pub fn new(
        operations: &[&'static str],
        faults: &[&'static str],
        consequences: &[&'static str],
    ) -> Tally {
        Tally {
            operations: Counts::new(operations),
            faults: Counts::new(faults),
            consequences: Counts::new(consequences),
        }
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Tally) {
        self.operations.merge(&other.operations);
        self.faults.merge(&other.faults);
        self.consequences.merge(&other.consequences);
    }
}
