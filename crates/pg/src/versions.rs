//! The versions that a primary assigns in its epoch, and which of them are acknowledged and durable.
//!
//! ```text
//!   adopted ... ended ......................... newest
//!               everything up to it is          in between: writes in flight, and lazy ones that
//!               durable on all acting members   were answered and are not durable
//! ```
//!
//! Invariants
//!   1. Versions have no gaps: each counter is one more than the last, and the first is one more than that of
//!      the version that the epoch adopted.
//!   2. A version is assigned once, and its counter is its place in the window.

use base::planted::{self, Bug};
use base::{Epoch, Version};

use super::slots::WriteSlot;
use super::window::Window;

/// The versions of an epoch; see the module.
pub struct Versions {
    /// The newest version that was assigned. It is of an earlier epoch until the present one is active.
    newest: Version,
    /// What a version of a run belongs to has no slot.
    window: Window<Option<WriteSlot>>,
}

impl Versions {
    /// Returns the state before any epoch was active here.
    pub fn new() -> Versions {
        Versions { newest: Version::ZERO, window: Window::new(0) }
    }

    /// Continues versions from the one that the epoch adopted.
    pub fn go_on_from(&mut self, adopted: Version) {
        self.newest = adopted;
        self.window = Window::new(adopted.counter);
    }

    /// Empties the window: the epoch is over, and nothing is in flight any more.
    pub fn abandon(&mut self) {
        self.window = Window::new(0);
    }

    /// Assigns the next version to the write in this slot.
    pub fn give(&mut self, epoch: Epoch, slot: WriteSlot) -> Version {
        let version = next_version(self.newest, epoch);
        assert!(version > self.newest);
        assert!(version.counter == self.newest.counter + 1);
        let counter = self.window.begin(Some(slot));
        assert!(counter == version.counter);
        self.newest = version;
        version
    }

    /// Assigns the next versions to a batch, one to each of its operations. Returns the first one.
    pub fn give_run(&mut self, epoch: Epoch, count: u32) -> Version {
        assert!(count > 0);
        let first = next_version(self.newest, epoch);
        assert!(first > self.newest);
        (0..count).for_each(|_| {
            self.window.begin(None);
        });
        self.newest = Version { counter: self.window.begun(), ..first };
        assert!(self.newest.counter == first.counter + u64::from(count) - 1);
        first
    }

    /// Notes that the batch with these versions is durable on all members that must have it.
    pub fn end_run(&mut self, first: Version, last: Version) {
        assert!(self.was_given(first) && self.was_given(last));
        (first.counter..=last.counter).for_each(|counter| self.window.end(counter));
    }

    pub fn newest(&self) -> Version {
        self.newest
    }

    /// Returns whether this version was assigned in this epoch. The version that the epoch adopted is of an
    /// earlier one.
    pub fn was_given(&self, version: Version) -> bool {
        version <= self.newest && version.epoch == self.newest.epoch
    }

    /// Returns the slot of the write with this version, if it is in flight. Requires: the version was
    /// assigned in this epoch.
    pub fn slot(&self, version: Version) -> Option<WriteSlot> {
        self.window.slot(version.counter).flatten()
    }

    /// Returns the slots of all writes in flight, oldest first.
    pub fn slots(&self) -> impl Iterator<Item = WriteSlot> + '_ {
        self.window.slots().flatten()
    }

    /// Notes that the write of this version is acknowledged. `is_durable`: it is durable on all members that
    /// must have it.
    pub fn acknowledge(&mut self, version: Version, is_durable: bool) {
        assert!(self.was_given(version));
        if is_durable {
            self.window.end(version.counter);
        } else {
            self.window.answer(version.counter);
        }
    }

    /// Notes that everything acknowledged up to this counter is durable.
    pub fn settle(&mut self, upto: u64) {
        self.window.settle(upto);
    }

    /// Returns how many writes are acknowledged but not durable.
    pub fn undurable_count(&self) -> usize {
        self.window.answered_count()
    }

    /// Returns whether the write of this version, of any epoch, is acknowledged but not durable.
    pub fn is_undurable(&self, version: Version) -> bool {
        version.epoch == self.newest.epoch && self.window.is_answered(version.counter)
    }

    /// Returns the version up to which all writes are durable.
    pub fn ended(&self) -> Version {
        Version { epoch: self.newest.epoch, counter: self.window.ended() }
    }

    /// Returns the counter of the newest version that was assigned.
    pub fn begun(&self) -> u64 {
        self.window.begun()
    }
}

/// Returns the version that follows `before` in an epoch.
pub fn next_version(before: Version, epoch: Epoch) -> Version {
    let is_reused = planted::on(Bug::CounterReusedAfterRestart) && before.epoch > Epoch::ZERO;
    before.next_in(if is_reused { before.epoch } else { epoch })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slot;

    #[test]
    fn versions_continue_from_what_the_epoch_adopted() {
        let adopted = Version { epoch: Epoch::new(3), counter: 17 };
        let mut versions = Versions::new();
        versions.go_on_from(adopted);
        let epoch = Epoch::new(4);
        let [first, second] =
            [0, 1].map(|index| versions.give(epoch, WriteSlot::from_index(index)));
        assert_eq!([first, second], [18, 19].map(|counter| Version { epoch, counter }));
        assert_eq!(versions.slot(second), Some(WriteSlot::from_index(1)));
        assert!(!versions.was_given(adopted), "its epoch is over");
        versions.acknowledge(second, true);
        assert_eq!(versions.ended().counter, 17, "the first one is in flight");
        versions.acknowledge(first, false);
        assert!(versions.is_undurable(first) && !versions.is_undurable(second));
        assert_eq!((versions.ended().counter, versions.undurable_count()), (17, 1));
        versions.settle(18);
        assert_eq!(versions.ended(), second);
    }

    #[test]
    fn a_run_has_no_gap_and_ends_as_one() {
        let epoch = Epoch::new(4);
        let mut versions = Versions::new();
        versions.go_on_from(Version { epoch: Epoch::new(3), counter: 17 });
        let firsts = [3, 1].map(|count| versions.give_run(epoch, count));
        assert_eq!(firsts, [18, 21].map(|counter| Version { epoch, counter }));
        versions.end_run(firsts[1], firsts[1]);
        assert_eq!(versions.ended().counter, 17, "the first run is in flight");
        versions.end_run(firsts[0], Version { epoch, counter: 20 });
        assert_eq!(versions.ended(), firsts[1]);
        assert_eq!(versions.newest(), firsts[1]);
    }
}
