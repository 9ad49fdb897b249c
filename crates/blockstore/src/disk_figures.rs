//! Counters of disk operations: how many, how long they took, by kind, and how many reads failed.
//!
//! Reads, journal writes and flushes are counted separately: on most disks one kind takes many times as long
//! as another, so a mean over all kinds would depend more on the workload than on the disk. Large writes,
//! write-back and checkpoints are not counted, because their sizes differ too much to be compared.
//!
//! Invariant: while the store is open, no number decreases, so the difference of two samples gives the mean
//! in between.

use base::Duration;

/// Operations of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct OperationFigures {
    /// Number of finished operations.
    pub count: u64,
    /// Total duration of these operations, in nanoseconds on the clock of [`crate::Store::ran`].
    pub nanos: u64,
}

impl OperationFigures {
    pub(crate) fn count(&mut self, span: Duration) {
        self.count += 1;
        self.nanos = self.nanos.saturating_add(span.as_nanos());
    }
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DiskFigures {
    /// Reads of data and of leaves.
    pub reads: OperationFigures,
    /// Writes of groups of journal entries.
    pub writes: OperationFigures,
    /// Flushes of journal entries. Flushes of checkpoints are not counted: they also wait for written-back
    /// data.
    pub flushes: OperationFigures,
    /// Reads for which the disk reported an error. The pieces in which such a read is repeated do not count.
    /// A read that succeeds when repeated has lost nothing, but is an early warning.
    pub read_errors: u64,
}
