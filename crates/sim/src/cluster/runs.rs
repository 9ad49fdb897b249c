//! The runs of processes: the number of each process's current run, and which processes are frozen.

use std::collections::BTreeMap;

use base::Time;

use super::process::Process;

/// The runs of all processes.
#[derive(Default)]
pub struct Runs {
    /// The number of runs of each process that have ended.
    ended: BTreeMap<Process, u64>,
    /// Frozen processes, each with the time at which it resumes.
    frozen: BTreeMap<Process, Time>,
}

impl Runs {
    /// Returns the number of a process's current run, or of its next run if it is down.
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

    /// Resumes the processes whose frozen time has ended.
    pub fn thaw(&mut self, now: Time) {
        self.frozen.retain(|_, until| *until > now);
    }

    /// Returns the time until which a process is frozen, or `None` if it is not frozen.
    pub fn frozen_until(&self, process: Process) -> Option<Time> {
        self.frozen.get(&process).copied()
    }

    /// Returns one of the frozen processes.
    pub fn any_frozen(&self) -> Option<Process> {
        self.frozen.keys().next().copied()
    }
}
