//! The runs of processes: which run of each is the present one, and which stand still.

use std::collections::BTreeMap;

use base::Time;

use super::process::Process;

/// The runs of all processes.
#[derive(Default)]
pub struct Runs {
    /// How many runs of each are over.
    ended: BTreeMap<Process, u64>,
    /// Processes that stand still, and until when.
    frozen: BTreeMap<Process, Time>,
}

impl Runs {
    /// The number of the present run of a process, or of its next one.
    pub fn number(&self, process: Process) -> u64 {
        self.ended.get(&process).copied().unwrap_or(0)
    }

    /// The run of a process is over.
    pub fn end(&mut self, process: Process) {
        *self.ended.entry(process).or_default() += 1;
        self.frozen.remove(&process);
    }

    /// A process takes no event before `until`.
    pub fn freeze(&mut self, process: Process, until: Time) {
        self.frozen.insert(process, until);
    }

    /// Those that stood still until now go on.
    pub fn thaw(&mut self, now: Time) {
        self.frozen.retain(|_, until| *until > now);
    }

    /// Until when a process stands still, if it does.
    pub fn frozen_until(&self, process: Process) -> Option<Time> {
        self.frozen.get(&process).copied()
    }

    /// One of those that stand still.
    pub fn any_frozen(&self) -> Option<Process> {
        self.frozen.keys().next().copied()
    }
}
