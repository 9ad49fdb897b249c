//! What changes take of a member's store, and what members may still have to store for changes of past epochs.
//! The primary counts the latter against what they promised.
//!
//! Invariants
//!   1. A debt stays until an epoch is active here (by then every such write has reached all acting members),
//!      or until this OSD has had no part in the PG for long enough.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use base::OsdId;

/// After this many calls of [`Owed::forget_later`], other members have settled the writes that this OSD
/// began.
const CALLS_MAX: u32 = 10;

/// What a change may take of each member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Charge {
    /// Space for data, in whole blocks.
    pub space_bytes: u64,
    /// Room for a prepared version in the journal; 0 in pools of copies.
    pub room_bytes: u64,
    /// What is taken of a member of an older version, which has one credit for both: whole blocks.
    pub whole_bytes: u64,
}

impl AddAssign for Charge {
    fn add_assign(&mut self, other: Charge) {
        self.space_bytes += other.space_bytes;
        self.room_bytes += other.room_bytes;
        self.whole_bytes += other.whole_bytes;
    }
}

impl SubAssign for Charge {
    fn sub_assign(&mut self, other: Charge) {
        assert!(self.space_bytes >= other.space_bytes);
        assert!(self.room_bytes >= other.room_bytes);
        assert!(self.whole_bytes >= other.whole_bytes);
        self.space_bytes -= other.space_bytes;
        self.room_bytes -= other.room_bytes;
        self.whole_bytes -= other.whole_bytes;
    }
}

/// What members owe.
#[derive(Default)]
pub struct Owed {
    charges: BTreeMap<OsdId, Charge>,
    /// Calls of [`Owed::forget_later`] since the last debt was added.
    calls: u32,
}

impl Owed {
    /// Adds a debt: the epoch is over, and the member has not answered changes with this charge.
    pub fn add(&mut self, osd: OsdId, charge: Charge) {
        if charge != Charge::default() {
            *self.charges.entry(osd).or_default() += charge;
            self.calls = 0;
        }
    }

    /// Returns what a member owes.
    pub fn by(&self, osd: OsdId) -> Charge {
        self.charges.get(&osd).copied().unwrap_or_default()
    }

    /// Clears all debts: the writes of earlier epochs have reached all acting members.
    pub fn settle(&mut self) {
        self.charges.clear();
    }

    /// Called periodically while this OSD has no part in the PG. Other members settle the writes that it
    /// began, so after `CALLS_MAX` calls the debts are cleared.
    pub fn forget_later(&mut self) {
        self.calls += 1;
        if self.calls > CALLS_MAX {
            self.charges.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_forgotten_after_some_calls_unless_another_one_is_added() {
        let osd = OsdId::new(3).unwrap();
        let mut owed = Owed::default();
        let charge = Charge { space_bytes: 4096, room_bytes: 8192, whole_bytes: 4096 };
        let mut both = charge;
        both += charge;
        owed.add(osd, charge);
        for _ in 0..CALLS_MAX {
            owed.forget_later();
        }
        assert_eq!(owed.by(osd), charge);
        owed.add(osd, charge);
        owed.forget_later();
        assert_eq!(owed.by(osd), both, "the count of calls begins anew");
        for _ in 0..CALLS_MAX {
            owed.forget_later();
        }
        assert_eq!(owed.by(osd), Charge::default());
    }
}
