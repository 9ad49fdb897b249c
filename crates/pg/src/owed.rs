//! Data that members may still have to store for writes of epochs that are over: the primary counts it
//! against the room that they promised.
//!
//! Invariants
//!   1. A debt stays until an epoch is active here, which has brought every such write to all acting
//!      members, or until this OSD has had no part in the PG for long enough.

use std::collections::BTreeMap;

use base::OsdId;

/// After this many calls of [`Owed::forget_later`], other members have settled the writes that this OSD
/// began.
const CALLS_MAX: u32 = 10;

/// Bytes by member.
#[derive(Default)]
pub struct Owed {
    bytes: BTreeMap<OsdId, u64>,
    /// Calls of [`Owed::forget_later`] since the last debt was added.
    calls: u32,
}

impl Owed {
    /// A member did not answer writes of so many bytes, and the epoch is over.
    pub fn add(&mut self, osd: OsdId, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry(osd).or_default() += bytes;
            self.calls = 0;
        }
    }

    /// What this member owes.
    pub fn by(&self, osd: OsdId) -> u64 {
        self.bytes.get(&osd).copied().unwrap_or(0)
    }

    /// All writes of earlier epochs have come to all acting members.
    pub fn settle(&mut self) {
        self.bytes.clear();
    }

    /// This OSD has no part in the PG: other members settle what it began, soon.
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
