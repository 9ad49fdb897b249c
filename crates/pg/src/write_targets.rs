//! Who gets the writes of an epoch, and without whose copies none is acknowledged.
//!
//! | member | gets writes | must acknowledge |
//! |---|---|---|
//! | acting | yes | yes |
//! | learner | from its activation on | once it is bound, or while it lags too far behind |
//!
//! Invariants
//!   1. From the moment an epoch is active its acting members get every write and must acknowledge it.
//!   2. A learner that must acknowledge writes was bound while it got them; one that is lost since is still waited for
//!      until that is given up.

use super::MemberSet;

/// See the module. Empty before the epoch is active.
#[derive(Clone, Copy, Default)]
pub struct WriteTargets {
    targets: MemberSet,
    ack_required: MemberSet,
}

impl WriteTargets {
    /// The epoch is active.
    pub fn of_acting(acting: MemberSet) -> WriteTargets {
        WriteTargets { targets: acting, ack_required: acting }
    }

    /// A learner gets every write from now on.
    pub fn add_learner(&mut self, index: usize) {
        self.targets.add(index);
    }

    /// A learner gets no more writes. It still counts in `ack_required` until that is given up.
    pub fn remove_learner(&mut self, index: usize) {
        self.targets.take(index);
    }

    /// From now on nothing is acknowledged without this learner.
    pub fn require(&mut self, index: usize) {
        assert!(self.targets.has(index));
        self.ack_required.add(index);
    }

    /// Writes are acknowledged without this learner again; false: they were before.
    pub fn require_no_more(&mut self, index: usize) -> bool {
        let was_required = self.ack_required.has(index);
        self.ack_required.take(index);
        was_required
    }

    /// Who gets a write that is sent now.
    pub fn targets(&self) -> MemberSet {
        self.targets
    }

    pub fn ack_required(&self) -> MemberSet {
        self.ack_required
    }

    /// Whether nobody gets writes: the epoch is not active, and fills no learner.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether a write that only these members lack is acknowledged.
    pub fn is_acknowledged_without(&self, missing: MemberSet) -> bool {
        missing.within(self.ack_required).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learner_gets_writes_before_it_must_acknowledge_them() {
        let mut targets = WriteTargets::of_acting(MemberSet::all(2));
        targets.add_learner(2);
        let mut missing = targets.targets();
        assert!(missing.has(2));
        missing.take(0);
        assert!(!targets.is_acknowledged_without(missing), "an acting member lacks it");
        missing.take(1);
        assert!(targets.is_acknowledged_without(missing));
        targets.require(2);
        assert!(!targets.is_acknowledged_without(missing));
        assert!(targets.require_no_more(2));
        assert!(targets.is_acknowledged_without(missing));
        assert!(!targets.require_no_more(2));
    }
}
