//! Examines a store that is not running: `inspect` describes it, `check` verifies it. Both only read.

use base::UNIT_SIZE;
use format::disk::LOCATION_NONE;

use crate::index::KEY_FIRST;
use crate::stopped::{ReadDevice, StoppedStore};
use crate::stopped_engine::ReadEngine;
use crate::{AsOf, BlockKey, CommitMode, Identity, RecoveryReport, Space, StoreError};

/// How thorough a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// Verify every written unit against its checksum.
    pub data: bool,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// What is wrong. Empty: the store is clean.
    pub findings: Vec<Finding>,
    /// What recovery would do if the store were started now.
    pub recovery: RecoveryReport,
    /// Units of 4 KiB verified.
    pub units_checked: u64,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad the finding is.
    pub severity: Severity,
    /// For the operator: what is wrong, where, and what to do.
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

/// Facts about a store on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// The ids of the store, its cluster and its OSD.
    pub identity: Identity,
    /// How its writes become durable.
    pub commit: CommitMode,
    /// Logical block of the device, in bytes.
    pub sector_size: u32,
    /// Size of the store in bytes.
    pub size_bytes: u64,
    /// Journal ring: (offset, length) in bytes.
    pub journal: (u64, u64),
    /// Checkpoint area: (offset, length) in bytes.
    pub checkpoints: (u64, u64),
    /// Data area: (offset, length) in bytes.
    pub data: (u64, u64),
    /// The lsn from which the journal is replayed.
    pub journal_head: u64,
    /// The lsn at which the journal ends.
    pub journal_tail: u64,
    /// Number of checkpoints since the store was created.
    pub checkpoint_sequence: u64,
    /// Number of blocks, without tombstones.
    pub blocks: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Number of versions that may still be rolled back.
    pub prepared: u64,
    /// Number of notes.
    pub notes: u64,
    /// Space for data.
    pub space: Space,
    /// Whether recovery found damage that the operator has not yet accepted.
    pub suspect: bool,
    /// What recovery would do if the store were started now.
    pub recovery: RecoveryReport,
}

/// Maximum number of findings that a report lists.
const FINDINGS_MAX: usize = 1000;

/// Verifies a store. `read` fills the buffer from the device. An error from it means that the device cannot
/// be read there, which is a finding and does not end the check. A journal that a start would simply replay
/// is clean.
pub fn check(read: ReadDevice, device_size: u64, options: CheckOptions) -> CheckReport {
    match StoppedStore::open(read, device_size) {
        Ok(mut stopped) => check_stopped(&mut stopped, options),
        Err(reason) => CheckReport::of_none(reason),
    }
}

/// Verifies a store that was opened. Its records are not looked at.
pub fn check_stopped(stopped: &mut StoppedStore<'_>, options: CheckOptions) -> CheckReport {
    let mut report =
        CheckReport { findings: Vec::new(), recovery: RecoveryReport::default(), units_checked: 0 };
    report.recovery = stopped.store().recovery_report();
    for (row, count) in report.recovery.rows.clone() {
        if let Some((severity, text)) = finding_of_row(row) {
            report.find(severity, format!("{text} (recovery table row @{row}, {count} times)"));
        }
    }
    if stopped.store().has_unsettled_damage() {
        let text = "the store is suspect: an earlier start found damage that may have lost \
                    acknowledged writes; where no other copy is left, `ashlar pg give-up` accepts \
                    the loss";
        report.find(Severity::Warning, text.to_owned());
    }
    if options.data {
        check_data(stopped, &mut report);
    }
    report
}

/// Returns the finding for a row of the recovery table; `None` for rows of an ordinary start.
fn finding_of_row(row: char) -> Option<(Severity, &'static str)> {
    let found = match row {
        'C' => (Severity::Error, "data of an acknowledged write is damaged in the journal"),
        'E' => (Severity::Error, "the disk confirmed a journal write and lost it"),
        'G' => (Severity::Error, "an acknowledged journal entry is damaged"),
        'T' | 'U' => (Severity::Error, "part of the journal cannot be read"),
        'V' | 'X' | 'Z' => (Severity::Error, "data of the last writes cannot be read"),
        'W' => (Severity::Error, "a note in the journal cannot be read"),
        'Y' => (Severity::Warning, "a root cannot be read; the other one and the journal suffice"),
        'I' | 'J' => {
            (Severity::Error, "a journal write went to the wrong place, or a root is lost")
        }
        'L' => (Severity::Error, "an acknowledged journal entry is missing"),
        'M' => (Severity::Error, "an acknowledged note is damaged in the journal"),
        'Q' => (
            Severity::Warning,
            "one copy of the superblock is damaged; the next start of the OSD rewrites it",
        ),
        'R' => (Severity::Error, "the newest checkpoint's directory is damaged"),
        'a' => (Severity::Error, "records of objects in the journal cannot be read"),
        'c' => (Severity::Error, "data of objects in the journal is damaged"),
        'S' => (Severity::Error, "a page of the index is damaged: its blocks are lost"),
        'h' => (Severity::Error, "the engine lost records that it had made durable"),
        'i' => (Severity::Warning, "the engine has records of a pool that is not there"),
        'j' => (Severity::Error, "files of the engine are damaged"),
        _ => return None,
    };
    Some(found)
}

fn check_data(stopped: &mut StoppedStore<'_>, report: &mut CheckReport) {
    let all = &stopped.store().parts().blocks;
    let stable = all.index().iter_from(KEY_FIRST).map(|(key, _)| (key, AsOf::Stable));
    let prepared = all.prepared.keys_from(KEY_FIRST).map(|key| (key, AsOf::View));
    let blocks: Vec<(BlockKey, AsOf, u32)> = stable
        .chain(prepared)
        .filter_map(|(key, as_of)| Some((key, as_of, all.as_of(&key, as_of)?)))
        .filter(|(.., info)| info.location != LOCATION_NONE)
        .map(|(key, as_of, info)| (key, as_of, info.block_size.bytes() as u32))
        .collect();
    for (key, as_of, size) in blocks {
        report.units_checked += size as u64 / UNIT_SIZE;
        if let Err(StoreError::Damaged { units }) = stopped.read_as_of(key, as_of, size) {
            let count: u32 = units.iter().map(|word| word.count_ones()).sum();
            let text = format!(
                "block {} of image {} (pool {}): {count} 4 KiB units are damaged; reads of them \
                 fail until they are rewritten or discarded",
                key.stripe, key.image, key.pool
            );
            report.find(Severity::Error, text);
        }
    }
}

impl CheckReport {
    /// Creates the report of a store that cannot be opened.
    pub fn of_none(reason: String) -> CheckReport {
        let findings = vec![Finding { severity: Severity::Error, text: reason }];
        CheckReport { findings, recovery: RecoveryReport::default(), units_checked: 0 }
    }

    /// Adds a finding, unless there are too many.
    pub fn find(&mut self, severity: Severity, text: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { severity, text });
        } else if self.findings.len() == FINDINGS_MAX {
            let text = "not all findings are listed".to_owned();
            self.findings.push(Finding { severity, text });
        }
    }
}

/// Describes a store. `engine`: if it has one, that. The error says why the device holds no store, or why the
/// store cannot be opened.
pub fn inspect<'a>(
    read: ReadDevice<'a>,
    device_size: u64,
    engine: Option<&'a mut dyn ReadEngine>,
) -> Result<Inspection, String> {
    let stopped = StoppedStore::open_with(read, device_size, engine)?;
    let store = stopped.store();
    let parts = store.parts();
    let superblock = &parts.superblock;
    let tombstones = parts.blocks.index().tombstone_count();
    Ok(Inspection {
        identity: store.identity(),
        commit: superblock.commit,
        sector_size: superblock.sector_size,
        size_bytes: superblock.size,
        journal: (superblock.journal.offset, superblock.journal.size),
        checkpoints: (superblock.checkpoints.offset, superblock.checkpoints.size),
        data: (superblock.data.offset, superblock.data.size),
        journal_head: parts.root.replay.get(),
        journal_tail: parts.journal.tail().get(),
        checkpoint_sequence: parts.root.sequence,
        blocks: parts.blocks.index().count() - tombstones,
        tombstones,
        prepared: parts.blocks.prepared.count(),
        notes: parts.notes.count(),
        space: store.space(),
        suspect: store.has_unsettled_damage(),
        recovery: store.recovery_report(),
    })
}
