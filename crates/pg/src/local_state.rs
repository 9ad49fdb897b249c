//! What a member has of its PG, and states when a new epoch begins.
//!
//! Invariants
//!   1. Up to [`LocalState::complete`] the member has every write of its PG, durably once nothing is
//!      under way at its store.
//!   2. A note that a suspect store kept is not believed; one that was written since is.

use base::{Epoch, Version};
use blockstore::PgFacts;
use format::wire::MemberState;

use super::Record;

/// What a member has, besides its record.
pub struct LocalState {
    /// The highest version that was given to its store in version order.
    pub last: Version,
    /// The highest version of any block it ever had.
    pub held: Version,
    /// The lowest version of the epoch of `last` that its store dropped or refused.
    hole: Option<Version>,
    /// Tombstones up to it are gone.
    pub floor: Version,
    /// Damage may have cost acknowledged writes.
    pub is_suspect: bool,
    /// The record was written since the damage was found, or there was none.
    is_believed: bool,
}

impl LocalState {
    pub fn new(facts: PgFacts) -> LocalState {
        LocalState {
            last: facts.last,
            held: facts.held.max(facts.last),
            hole: facts.hole,
            floor: facts.floor,
            is_suspect: facts.is_suspect,
            is_believed: !facts.is_suspect,
        }
    }

    /// A write in version order goes to the store.
    pub fn wrote(&mut self, version: Version) {
        self.last = self.last.max(version);
        self.held = self.held.max(version);
    }

    /// The store refused a write; it gets no later one of this epoch.
    pub fn lacks(&mut self, version: Version) {
        let known = self.hole.filter(|hole| hole.epoch == version.epoch);
        self.hole = Some(known.map_or(version, |hole| hole.min(version)));
    }

    /// A record was written in this run.
    pub fn recorded(&mut self) {
        self.is_believed = true;
    }

    /// What was lost is given up, or filled again.
    pub fn absolved(&mut self) {
        self.is_suspect = false;
        self.is_believed = true;
    }

    /// The version up to which the member has everything.
    fn complete(&self, record: &Record) -> Version {
        if let Some(filling) = &record.filling {
            return filling.complete;
        }
        let epoch = record.entry.epoch;
        let hole = self.hole.filter(|hole| hole.epoch == epoch);
        let complete = match hole {
            _ if self.last.epoch != epoch => record.adopted,
            None => self.last,
            Some(hole) => version_before(hole, record),
        };
        match record.dropped {
            Some(dropped) if dropped <= complete => version_before(dropped, record),
            _ => complete,
        }
    }

    /// What the member states. `is_in_role`: what it holds is what its position in the new entry holds.
    pub fn state(&self, record: Option<&Record>, is_in_role: bool) -> MemberState {
        let record = record.filter(|_| self.is_believed && is_in_role);
        MemberState {
            record_epoch: record.map_or(Epoch::ZERO, |record| record.entry.epoch),
            complete: record.map_or(Version::ZERO, |record| self.complete(record)),
            held: self.held,
            floor: self.floor,
            is_suspect: self.is_suspect,
            history: record.map(|record| record.history.clone()).unwrap_or_default(),
            filling: record.and_then(|record| record.filling.clone()),
        }
    }
}

/// The version before one of the record's epoch.
fn version_before(version: Version, record: &Record) -> Version {
    let counter = version.counter - 1;
    let adopted = record.history.last().map_or(record.adopted, |activation| activation.adopted);
    if counter <= adopted.counter { adopted } else { Version { epoch: version.epoch, counter } }
}
