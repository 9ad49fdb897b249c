//! What a run counts for itself: events, operations, and the numbers that it gives out.

use crate::register::{Moment, Value};

/// The counters of a run.
#[derive(Default)]
pub struct Counters {
    /// Events so far.
    pub(super) steps: u64,
    /// Operations that clients asked by themselves.
    pub(super) asked: u64,
    moment_last: Moment,
    value_last: Value,
}

impl Counters {
    /// A moment that is later than all before.
    pub fn next_moment(&mut self) -> Moment {
        self.moment_last += 1;
        self.moment_last
    }

    /// A value that was never written.
    pub fn next_value(&mut self) -> Value {
        self.value_last += 1;
        self.value_last
    }
}
