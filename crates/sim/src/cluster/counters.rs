//! Counters of a run: events, operations, and the unique numbers that the run hands out.

use crate::register::{Moment, Value};

/// The counters of a run.
#[derive(Default)]
pub struct Counters {
    /// Events so far.
    pub(super) steps: u64,
    /// Operations that users have issued as random work, not for a drill or another scenario.
    pub(super) asked: u64,
    moment_last: Moment,
    value_last: Value,
}

impl Counters {
    /// Returns a moment that is later than all before.
    pub fn next_moment(&mut self) -> Moment {
        self.moment_last += 1;
        self.moment_last
    }

    /// Returns a value that was never written.
    pub fn next_value(&mut self) -> Value {
        self.value_last += 1;
        self.value_last
    }
}
