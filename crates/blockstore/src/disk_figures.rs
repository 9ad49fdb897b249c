//! What a store counts of its disk: how long operations took, by kind, and reads that the disk failed.
//!
//! Reads, journal writes and flushes are counted apart: on most disks one of them takes many times as long
//! as another, so a mean over all of them would say more about the workload than about the disk. Large
//! writes, write-back and checkpoints are not counted: their sizes differ too much to be compared.
//!
//! Invariant: every number only grows while the store is open, so two looks give the mean in between.

use base::Duration;

/// Operations of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct OperationFigures {
    /// How many have ended.
    pub count: u64,
    /// How long they took together, in nanoseconds, on the clock of [`crate::Store::ran`].
    pub nanos: u64,
}

impl OperationFigures {
    pub(crate) fn count(&mut self, span: Duration) {
        self.count += 1;
        self.nanos = self.nanos.saturating_add(span.as_nanos());
    }
}

/// What is counted since the store was opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DiskFigures {
    /// Reads of data and of leaves.
    pub reads: OperationFigures,
    /// Writes of groups of journal entries.
    pub writes: OperationFigures,
    /// Flushes of journal entries; those of checkpoints wait for what was written back before.
    pub flushes: OperationFigures,
    /// Reads that the disk answered with an error. The pieces in which such a read is repeated do not count.
    /// A read that succeeds when it is repeated lost nothing, but is a sign of what comes.
    pub read_errors: u64,
}
