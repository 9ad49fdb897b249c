//! Looking at a store that is not running: `inspect` tells, `check` verifies. Both only read.

use crate::{CommitMode, Identity, RecoveryReport, Space};

/// How deep to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// Compare every written unit with its checksum.
    pub data: bool,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// Empty: the store is clean.
    pub findings: Vec<Finding>,
    /// What a start would do now.
    pub recovery: RecoveryReport,
    /// Units of 4 KiB compared.
    pub units_checked: u64,
}

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// For people: what, where, what to do.
    pub text: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Worth knowing; nothing is lost.
    Warning,
    /// Data or metadata is damaged.
    Error,
}

/// What a store is, as it lies on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Who it is.
    pub identity: Identity,
    /// When its writes are durable.
    pub commit: CommitMode,
    /// Logical block in bytes.
    pub sector_size: u32,
    /// Size of the store in bytes.
    pub size_bytes: u64,
    /// Journal ring: (offset, length) in bytes.
    pub journal: (u64, u64),
    /// Checkpoint area: (offset, length) in bytes.
    pub checkpoints: (u64, u64),
    /// Data area: (offset, length) in bytes.
    pub data: (u64, u64),
    /// The journal is replayed from here.
    pub journal_head: u64,
    /// The journal ends here.
    pub journal_tail: u64,
    /// Checkpoints since the store was made.
    pub checkpoint_sequence: u64,
    /// Blocks that hold or held data, without tombstones.
    pub blocks: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Notes.
    pub notes: u64,
    /// Space for data.
    pub space: Space,
    /// Whether recovery found damage that is not settled.
    pub suspect: bool,
    /// What a start would do now.
    pub recovery: RecoveryReport,
}

/// Verifies a store. `read` fills the buffer from the device; `Err` says that the place cannot be
/// read, which is a finding, not an end.
pub fn check(
    _read: &mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>,
    _device_size: u64,
    _options: CheckOptions,
) -> CheckReport {
    CheckReport { findings: Vec::new(), recovery: RecoveryReport::default(), units_checked: 0 }
}

/// Tells what a store is; `Err` says why it is none, or none that can be opened.
pub fn inspect(
    _read: &mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>,
    _device_size: u64,
) -> Result<Inspection, String> {
    Err(String::new())
}
