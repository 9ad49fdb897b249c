//! Data that members may still have to store for writes of past epochs. The primary counts it against the
//! room that they promised.
//!
//! Invariants
//!   1. A debt stays until an epoch is active here (by then every such write has reached all acting members),
//!      or until this OSD has had no part in the PG for long enough.

use std::collections::BTreeMap;

use base::OsdId;

/// After this many calls of [`Owed::forget_later`], other members have settled the writes that this OSD
/// began.
const CALLS_MAX: u32 = 10;

/// Bytes that members owe.
#[derive(Default)]
pub struct Owed {
    bytes: BTreeMap<OsdId, u64>,
    /// Calls of [`Owed::forget_later`] since the last debt was added.
    calls: u32,
}

impl Owed {
    /// Adds a debt: the epoch is over, and the member has not answered writes of this many bytes.
    pub fn add(&mut self, osd: OsdId, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry(osd).or_default() += bytes;
            self.calls = 0;
        }
    }

    /// Returns the bytes that a member owes.
    pub fn by(&self, osd: OsdId) -> u64 {
        self.bytes.get(&osd).copied().unwrap_or(0)
    }

    /// Clears all debts: the writes of earlier epochs have reached all acting members.
    pub fn settle(&mut self) {
        self.bytes.clear();
    }

    /// Called periodically while this OSD has no part in the PG. Other members settle the writes that it
    /// began, so after `CALLS_MAX` calls the debts are cleared.
    pub fn forget_later(&mut self) {
        self.calls += 1;
        if self.calls > CALLS_MAX {
            self.bytes.clear();
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
        owed.add(osd, 4096);
        for _ in 0..CALLS_MAX {
            owed.forget_later();
        }
        assert_eq!(owed.by(osd), 4096);
        owed.add(osd, 4096);
        owed.forget_later();
        assert_eq!(owed.by(osd), 8192, "the count of calls begins anew");
        for _ in 0..CALLS_MAX {
            owed.forget_later();
        }
        assert_eq!(owed.by(osd), 0);
    }
}
