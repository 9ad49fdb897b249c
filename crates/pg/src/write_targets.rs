//! Which members receive the writes of an epoch, and which of them must have a write before it is
//! acknowledged.
//!
//! | member | receives writes | must acknowledge |
//! |---|---|---|
//! | acting | yes | yes |
//! | learner | from its activation on | once it is bound, or while it lags too far behind |
//!
//! Invariants
//!   1. From the moment an epoch is active, its acting members receive every write and must acknowledge it.
//!   2. A learner can be required only while it receives writes. A learner that is lost afterwards is still
//!      awaited until [`WriteTargets::require_no_more`].

use super::MemberSet;

/// The write targets of an epoch; see the module. Empty before the epoch is active.
#[derive(Clone, Copy, Default)]
pub struct WriteTargets {
    targets: MemberSet,
    ack_required: MemberSet,
}

impl WriteTargets {
    /// Returns the targets when an epoch becomes active.
    pub fn of_acting(acting: MemberSet) -> WriteTargets {
        WriteTargets { targets: acting, ack_required: acting }
    }

    /// Adds a learner to the members that receive writes.
    pub fn add_learner(&mut self, index: usize) {
        self.targets.add(index);
    }

    /// Removes a learner from the members that receive writes. If the learner is in `ack_required`, it stays
    /// there until [`WriteTargets::require_no_more`].
    pub fn remove_learner(&mut self, index: usize) {
        self.targets.take(index);
    }

    /// Requires this learner from now on: no write is acknowledged without it.
    pub fn require(&mut self, index: usize) {
        assert!(self.targets.has(index));
        self.ack_required.add(index);
    }

    /// Lets writes be acknowledged without this learner again. Returns false if it was not required before.
    pub fn require_no_more(&mut self, index: usize) -> bool {
        let was_required = self.ack_required.has(index);
        self.ack_required.take(index);
        was_required
    }

    /// Returns the members that receive writes.
    pub fn targets(&self) -> MemberSet {
        self.targets
    }

    pub fn ack_required(&self) -> MemberSet {
        self.ack_required
    }

    /// Returns whether no member receives writes: the epoch is not active and fills no learner.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns whether a write is acknowledged that only these members lack.
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
