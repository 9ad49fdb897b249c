//! Counters of a run: events, operations, and sources of unique numbers.

use crate::register::{Moment, Value};

/// The counters of a run.
#[derive(Default)]
pub struct Counters {
    /// The number of events so far.
    pub(super) steps: u64,
    /// The number of operations that users have issued as random work, not for a drill or another
    /// scenario.
    pub(super) asked: u64,
    moment_last: Moment,
    value_last: Value,
}

impl Counters {
    /// Returns a moment that is later than all moments returned before.
    pub fn next_moment(&mut self) -> Moment {
        self.moment_last += 1;
        self.moment_last
    }

    /// Returns a value that has never been written.
    pub fn next_value(&mut self) -> Value {
        self.value_last += 1;
        self.value_last
    }
}
