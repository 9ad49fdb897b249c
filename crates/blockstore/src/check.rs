//! Looking at a store that is not running: `inspect` tells, `check` verifies. Both only read.
//!
//! Both open the store as a start would, on a sheet over the device that takes what recovery
//! writes. So they see every page and every journal entry, and decide as a start would decide.

use std::collections::{BTreeMap, VecDeque};

use base::{BufferPool, Time, UNIT_SIZE};
use format::disk::LOCATION_NONE;
use format::door::{DiskEffect, DiskError, DiskEvent};

use crate::index::KEY_FIRST;
use crate::{
    Answer, BlockKey, CommitMode, Effect, Event, Identity, RecoveryReport, Request, RequestId,
    Settings, Space, Store, StoreError,
};

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

/// Most findings that a report lists.
const FINDINGS_MAX: usize = 1000;

/// Reads the device: fills the buffer from an offset in bytes, or says why it cannot.
pub type ReadDevice<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>;

/// The device with a sheet over it: what recovery writes lands on the sheet.
struct Scratch<'a> {
    read: ReadDevice<'a>,
    /// Sectors of 512 bytes that were written, by their number.
    written: BTreeMap<u64, Vec<u8>>,
}

const SHEET_SECTOR: u64 = 512;

impl Scratch<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        (self.read)(offset, buffer).map_err(DiskError::Io)?;
        let end = offset + buffer.len() as u64;
        let sectors = self.written.range(offset / SHEET_SECTOR..end.div_ceil(SHEET_SECTOR));
        for (number, bytes) in sectors {
            let at = (number * SHEET_SECTOR - offset) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SHEET_SECTOR as usize).enumerate() {
            self.written.insert(offset / SHEET_SECTOR + index as u64, sector.to_vec());
        }
    }

    fn done(&mut self, effect: DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Read { op, offset, mut buffer } => {
                let result = self.read(offset, &mut buffer);
                DiskEvent::Read { op, buffer, result }
            }
            DiskEffect::Write { op, offset, buffers, .. } => {
                let mut at = offset;
                for buffer in buffers {
                    self.write(at, &buffer);
                    at += buffer.len() as u64;
                }
                DiskEvent::Done { op, result: Ok(()) }
            }
            DiskEffect::Flush { op }
            | DiskEffect::Reserve { op, .. }
            | DiskEffect::Discard { op, .. } => DiskEvent::Done { op, result: Ok(()) },
        }
    }
}

/// A store opened on a sheet over the device: it decides what a start would decide.
struct Trial<'a> {
    disk: Scratch<'a>,
    store: Store,
    effects: VecDeque<Effect>,
    request_last: u64,
}

impl<'a> Trial<'a> {
    /// The error says why the store cannot be opened.
    fn open(read: ReadDevice<'a>, device_size: u64) -> Result<Trial<'a>, String> {
        let mut effects = Vec::new();
        let pool = BufferPool::default();
        let store = Store::open(Settings::default(), pool, device_size, &mut effects);
        let disk = Scratch { read, written: BTreeMap::new() };
        let mut trial = Trial { disk, store, effects: effects.into(), request_last: 0 };
        match trial.run() {
            Some(Effect::Opened) => Ok(trial),
            Some(Effect::Stopped { reason }) => Err(reason),
            other => unreachable!("opening ends with Opened or Stopped, not with {other:?}"),
        }
    }

    /// Serves the store's disk operations until it says something else.
    fn run(&mut self) -> Option<Effect> {
        while let Some(effect) = self.effects.pop_front() {
            let Effect::Disk(effect) = effect else { return Some(effect) };
            let event = Event::Disk(self.disk.done(effect));
            self.apply(event);
        }
        None
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.store.apply(Time::ZERO, event, &mut effects);
        self.store.submit(&mut effects);
        self.effects.extend(effects);
    }

    fn read(&mut self, key: BlockKey, length: u32) -> Result<Answer, StoreError> {
        self.request_last += 1;
        let id = RequestId(self.request_last);
        self.apply(Event::Request { id, request: Request::Read { key, offset: 0, length } });
        match self.run() {
            Some(Effect::Done { result, .. }) => result,
            other => unreachable!("a read ends with an answer, not with {other:?}"),
        }
    }
}

/// Verifies a store. `read` fills the buffer from the device; `Err` says that the place cannot be
/// read, which is a finding, not an end. A journal that a start would simply replay is clean.
pub fn check(read: ReadDevice, device_size: u64, options: CheckOptions) -> CheckReport {
    let mut report =
        CheckReport { findings: Vec::new(), recovery: RecoveryReport::default(), units_checked: 0 };
    let mut trial = match Trial::open(read, device_size) {
        Ok(trial) => trial,
        Err(reason) => {
            report.find(Severity::Error, reason);
            return report;
        }
    };
    report.recovery = trial.store.recovery_report();
    for (row, count) in report.recovery.rows.clone() {
        if let Some((severity, text)) = finding_of_row(row) {
            report.find(severity, format!("{text} (recovery table row @{row}, {count} times)"));
        }
    }
    if trial.store.has_unsettled_damage() {
        let text = "the store is suspect: an earlier start found damage that may have cost \
                    acknowledged writes; `pg give-up` accepts the loss where no copy is left";
        report.find(Severity::Warning, text.to_owned());
    }
    if options.data {
        check_data(&mut trial, &mut report);
    }
    report
}

/// What rows mean that are not part of an ordinary start.
fn finding_of_row(row: char) -> Option<(Severity, &'static str)> {
    let found = match row {
        'C' => (Severity::Error, "data of an acknowledged write is damaged in the journal"),
        'E' => (Severity::Error, "the disk confirmed a journal write and lost it"),
        'G' => (Severity::Error, "an acknowledged journal entry is damaged"),
        'T' | 'U' => (Severity::Error, "a part of the journal cannot be read"),
        'V' | 'X' => (Severity::Error, "data of the last writes cannot be read"),
        'W' => (Severity::Error, "a note in the journal cannot be read"),
        'Y' => (Severity::Warning, "a root cannot be read; the other one and the journal suffice"),
        'I' | 'J' => {
            (Severity::Error, "a journal write went to the wrong place, or a root is lost")
        }
        'L' => (Severity::Error, "an acknowledged journal entry is missing"),
        'M' => (Severity::Error, "an acknowledged note is damaged in the journal"),
        'Q' => (Severity::Warning, "one copy of the superblock is damaged; a start rewrites it"),
        'R' => (Severity::Error, "the newest checkpoint's directory is damaged"),
        'S' => (Severity::Error, "a page of the index is damaged: its blocks are lost"),
        _ => return None,
    };
    Some(found)
}

fn check_data(trial: &mut Trial, report: &mut CheckReport) {
    let blocks: Vec<(BlockKey, u32)> = trial
        .store
        .parts()
        .index
        .iter_from(KEY_FIRST)
        .filter(|(_, info)| info.location != LOCATION_NONE)
        .map(|(key, info)| (key, info.block_size.bytes() as u32))
        .collect();
    for (key, size) in blocks {
        report.units_checked += size as u64 / UNIT_SIZE;
        if let Err(StoreError::Damaged { units }) = trial.read(key, size) {
            let count: u32 = units.iter().map(|word| word.count_ones()).sum();
            let text = format!(
                "block {} of image {} (pool {}): {count} units of 4 KiB are damaged; reads of \
                 them fail until they are written again or discarded",
                key.stripe, key.image, key.pool
            );
            report.find(Severity::Error, text);
        }
    }
}

impl CheckReport {
    fn find(&mut self, severity: Severity, text: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { severity, text });
        } else if self.findings.len() == FINDINGS_MAX {
            let text = "there are more findings than are listed".to_owned();
            self.findings.push(Finding { severity, text });
        }
    }
}

/// Tells what a store is; `Err` says why it is none, or none that can be opened.
pub fn inspect(read: ReadDevice, device_size: u64) -> Result<Inspection, String> {
    let trial = Trial::open(read, device_size)?;
    let store = &trial.store;
    let parts = store.parts();
    let superblock = &parts.superblock;
    let tombstones = parts.index.tombstone_count();
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
        blocks: parts.index.count() - tombstones,
        tombstones,
        notes: parts.notes.len() as u64,
        space: store.space(),
        suspect: store.has_unsettled_damage(),
        recovery: store.recovery_report(),
    })
}
