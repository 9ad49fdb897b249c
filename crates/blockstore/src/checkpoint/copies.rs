//! Copies of old prepared versions. When a checkpoint begins, it journals these versions again in the same
//! event, so that they do not hold back the journal's head.
//!
//! ```text
//!   due ──▶ Gather: read data that is no longer in memory ──▶ begin: append copies and marks ──▶ `until`
//! ```
//!
//! Invariants
//!   1. Only versions that are still prepared when the checkpoint begins are copied.
//!   2. Data read from the disk is verified. A copy lists units whose data is lost as damaged, and contains
//!      no data for them.
//!   3. A copy keeps the place that its version allocated.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{Buffer, BufferPool, Lsn, UNIT_SIZE, Version};
use format::disk::{BlockKey, EntryHeader, EntryKind, LOCATION_NONE, UnitSet, encode_marks};

use crate::blocks::{Change, matches};
use crate::disk::{Io, Purpose};
use crate::journal::{IDLE_RESERVE, padded, plain_header};
use crate::parts::Parts;
use crate::prepared::{MARKS_MAX, PreparedVersion};

/// A prepared version is old if its entry lies this fraction (1/n) of the journal behind the tail.
const OLD_SHARE: u64 = 8;
const UNIT: usize = UNIT_SIZE as usize;

/// Data of old prepared versions, read before a checkpoint begins.
#[derive(Default)]
pub struct Gather {
    /// The data, by the lsn where it begins.
    data: BTreeMap<Lsn, Buffer>,
    outstanding: usize,
}

impl Gather {
    /// Starts to read the data that is not in memory.
    pub fn begin(parts: &Parts, io: &mut Io<'_>) -> Gather {
        let mut gather = Gather::default();
        for version in old_versions(parts) {
            let size = version.header.data_size() as usize;
            if size > 0 && parts.journal.data(version.data_lsn, size).is_none() {
                gather.outstanding += 1;
                let purpose = Purpose::GatherRead(version.data_lsn);
                io.read(purpose, parts.journal.place(version.data_lsn), size);
            }
        }
        gather
    }

    /// Handles data that was read.
    pub fn on_read(&mut self, data_lsn: Lsn, bytes: Buffer) {
        assert!(self.outstanding > 0);
        self.outstanding -= 1;
        self.data.insert(data_lsn, bytes);
    }

    pub fn is_done(&self) -> bool {
        self.outstanding == 0
    }

    /// Journals copies of old versions that are still prepared, then everything that PGs have committed.
    pub fn copy(self, parts: &mut Parts, pool: &BufferPool) {
        let old: Vec<(BlockKey, Version)> =
            old_versions(parts).map(|version| (version.key(), version.header.version)).collect();
        for (key, number) in old {
            let version = parts.blocks.prepared.get(&key, number);
            let size = version.header.data_size() as usize;
            let data = match size {
                0 => Some(pool.take(0).freeze()),
                _ => parts.journal.data(version.data_lsn, size),
            };
            // The version became old after the reads began: it holds back the head until the next checkpoint.
            let Some(data) = data.or_else(|| self.data.get(&version.data_lsn).cloned()) else {
                break;
            };
            let (mut header, data) = copy_of(version, &data, pool);
            header.committed = parts.pgs.get(version.pg()).committed;
            let size = header.entry_size(parts.superblock.sector_size);
            let marks_bytes = parts.blocks.prepared.marks_bytes(parts.superblock.sector_size);
            if !parts.journal.has_room_for(size, IDLE_RESERVE + marks_bytes) {
                break;
            }
            let data = header.kind.is_inline().then_some(data);
            let (lsn, data_lsn) = parts.journal.append(&mut header, data);
            let bad = UnitSet::EMPTY;
            parts.apply(&Change { header: &header, old: None, lsn, data_lsn, bad }, &[]);
        }
        if !planted::on(Bug::WriteBackBeforeMarks) {
            say_all(parts, pool);
        }
    }
}

/// Returns the old prepared versions, in the order of their entries.
fn old_versions(parts: &Parts) -> impl Iterator<Item = &PreparedVersion> {
    let (tail, span) = (parts.journal.tail(), parts.journal.size() / OLD_SHARE);
    let versions = parts.blocks.prepared.in_journal_order();
    versions.take_while(move |version| tail.since(version.header.lsn) > span)
}

/// Journals the commits that the journal does not record yet, for all PGs. Otherwise, after a crash, these
/// versions would be prepared again, on top of stable content that write-back has already changed.
fn say_all(parts: &mut Parts, pool: &BufferPool) {
    let unsaid = parts.blocks.prepared.unsaid().map(|pg| (pg, parts.pgs.get(pg).committed));
    let unsaid: Vec<_> = unsaid.collect();
    for marks in unsaid.chunks(MARKS_MAX) {
        let bytes = encode_marks(marks.iter().copied());
        let (data, checksums) = padded(&bytes, pool);
        let length = bytes.len() as u32;
        let mut header = EntryHeader { length, checksums, ..plain_header(EntryKind::Marks) };
        let (lsn, data_lsn) = parts.journal.append(&mut header, Some(data.clone()));
        let bad = UnitSet::EMPTY;
        parts.apply(&Change { header: &header, old: None, lsn, data_lsn, bad }, &data);
    }
}

/// Returns the header and the inline data of a copy. `data`: the inline data of the version.
fn copy_of(version: &PreparedVersion, data: &Buffer, pool: &BufferPool) -> (EntryHeader, Buffer) {
    let mut header = version.header.clone();
    header.flags.is_copy = true;
    let inline = header.kind.is_inline();
    let mut lost = version.bad;
    if inline {
        let units = data.chunks_exact(UNIT).zip(&header.checksums).enumerate();
        units
            .filter(|(_, (unit, checksum))| !matches(unit, **checksum))
            .for_each(|(index, _)| lost.insert(index as u32));
    }
    if lost.is_empty() {
        return (header, data.clone());
    }
    header.flags.has_lost = true;
    let units: Vec<u32> = header.data_units().collect();
    let kept = (0..units.len() as u32).filter(|index| !lost.contains(*index));
    let kept: Vec<usize> = kept.map(|index| index as usize).collect();
    for index in lost.iter() {
        header.written.remove(units[index as usize]);
        header.damaged.insert(units[index as usize]);
    }
    header.checksums = kept.iter().map(|index| header.checksums[*index]).collect();
    if !inline {
        (header.offset, header.length) = header.written.span();
    }
    if header.written.is_empty() && header.location != LOCATION_NONE {
        header.kind = EntryKind::Prepare;
        (header.offset, header.length) = (0, 0);
    }
    let mut rest = pool.take(if inline { kept.len() * UNIT } else { 0 });
    for (to, index) in rest.chunks_exact_mut(UNIT).zip(&kept) {
        to.copy_from_slice(&data[index * UNIT..(index + 1) * UNIT]);
    }
    (header, rest.freeze())
}
