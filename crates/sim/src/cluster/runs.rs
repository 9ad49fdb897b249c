//! The runs of processes: the number of the present run of each, and which processes are frozen.

use std::collections::BTreeMap;

use base::Time;

use super::process::Process;

/// The runs of all processes.
#[derive(Default)]
pub struct Runs {
    /// How many runs of each process have ended.
    ended: BTreeMap<Process, u64>,
    /// Frozen processes, and until when.
    frozen: BTreeMap<Process, Time>,
}

impl Runs {
    /// Returns the number of the present run of a process, or of its next one if it does not run.
    pub fn number(&self, process: Process) -> u64 {
        self.ended.get(&process).copied().unwrap_or(0)
    }

    /// Ends the run of a process.
    pub fn end(&mut self, process: Process) {
        *self.ended.entry(process).or_default() += 1;
        self.frozen.remove(&process);
    }

    /// Freezes a process: it handles no event before `until`.
    pub fn freeze(&mut self, process: Process, until: Time) {
        self.frozen.insert(process, until);
    }

    /// Resumes the processes that were frozen until now.
    pub fn thaw(&mut self, now: Time) {
        self.frozen.retain(|_, until| *until > now);
    }

    /// Returns until when a process is frozen, if it is.
    pub fn frozen_until(&self, process: Process) -> Option<Time> {
        self.frozen.get(&process).copied()
    }

    /// Returns one of the frozen processes.
    pub fn any_frozen(&self) -> Option<Process> {
        self.frozen.keys().next().copied()
    }
}
