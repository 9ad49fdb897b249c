//! Write-back: copies journal data of frozen blocks to their places, a bounded number of blocks at once.
//!
//! Invariant: data read from the journal is verified before it is written. A unit whose data is lost
//! becomes damaged, and its place is not touched.

use std::collections::{BTreeMap, VecDeque};

use base::{Buffer, Lsn, UNIT_SIZE};
use format::disk::{BlockKey, LOCATION_NONE, UnitSet};

use crate::blocks::{Blocks, matches};
use crate::disk::{Io, Purpose};
use crate::journal::Journal;
use crate::overlay::UnitState;
use crate::parts::Parts;

const UNIT: usize = UNIT_SIZE as usize;
/// Maximum number of blocks written back at once.
const WRITE_BACKS_MAX: usize = 64;

/// Blocks to write back.
pub struct WriteBack {
    /// Blocks that have not begun, sorted by place.
    todo: VecDeque<(u32, BlockKey)>,
    /// Blocks whose journal data is being read.
    reading: BTreeMap<BlockKey, BlockData>,
    writes: usize,
}

/// Journal data of a block, and how many reads are outstanding. The units are in no particular order.
#[derive(Default)]
struct BlockData {
    /// Data from memory. It was verified when it arrived, and is not verified again.
    kept: Vec<(u32, Buffer)>,
    /// Data from the disk, which must be verified.
    read: Vec<(u32, Buffer)>,
    missing: usize,
}

/// Units of a block whose data is contiguous in the journal.
struct Run {
    first_unit: u32,
    lsn: Lsn,
    count: usize,
}

impl Run {
    /// Whether this unit, with its data at `lsn`, continues the run.
    fn is_followed_by(&self, unit: u32, lsn: Lsn) -> bool {
        self.first_unit + self.count as u32 == unit
            && self.lsn.advance((self.count * UNIT) as u64) == lsn
    }

    fn fetch(&self, key: BlockKey, journal: &Journal, io: &mut Io<'_>) {
        let purpose = Purpose::WriteBackRead { key, unit: self.first_unit };
        io.read(purpose, journal.place(self.lsn), self.count * UNIT);
    }
}

impl WriteBack {
    /// Plans the write-back of all frozen blocks that have data in the journal.
    pub fn plan(blocks: &Blocks) -> WriteBack {
        let mut todo: Vec<(u32, BlockKey)> = blocks
            .overlays()
            .frozen_in(..)
            .filter(|(_, overlay)| overlay.has_journal_data())
            .filter_map(|(key, _)| Some((blocks.frozen_info(key)?.location, *key)))
            .collect();
        todo.sort_unstable();
        assert!(todo.iter().all(|(location, _)| *location != LOCATION_NONE));
        WriteBack { todo: todo.into(), reading: BTreeMap::new(), writes: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.todo.is_empty() && self.reading.is_empty() && self.writes == 0
    }

    /// Begins more blocks, up to the limit.
    pub fn advance(&mut self, parts: &mut Parts, io: &mut Io<'_>) {
        while self.writes + self.reading.len() < WRITE_BACKS_MAX {
            let Some((_, key)) = self.todo.pop_front() else { return };
            let data = collect(key, parts, io);
            match data.missing {
                0 => self.writes += write_block(key, data, parts, io),
                _ => {
                    self.reading.insert(key, data);
                }
            }
        }
    }

    /// Handles journal data of a block that was read, starting at this unit.
    pub fn on_read(
        &mut self,
        key: BlockKey,
        unit: u32,
        buffer: &Buffer,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let data = self.reading.get_mut(&key).expect("its data was being read");
        data.missing -= 1;
        for index in 0..buffer.len() / UNIT {
            let bytes = buffer.slice(index * UNIT..(index + 1) * UNIT);
            data.read.push((unit + index as u32, bytes));
        }
        if data.missing == 0 {
            let data = self.reading.remove(&key).expect("it was just seen");
            self.writes += write_block(key, data, parts, io);
        }
    }

    pub fn on_written(&mut self) {
        assert!(self.writes > 0);
        self.writes -= 1;
    }
}

/// Collects the journal data of a frozen block from memory, and starts to read the rest in runs.
fn collect(key: BlockKey, parts: &Parts, io: &mut Io<'_>) -> BlockData {
    let mut data = BlockData::default();
    let mut run: Option<Run> = None;
    let overlay = parts.blocks.overlays().frozen(&key).expect("it is written back");
    for (unit, state) in overlay.iter() {
        let UnitState::Journal(_, lsn) = state else { continue };
        if let Some(bytes) = parts.journal.data(lsn, UNIT) {
            data.kept.push((unit, bytes));
            continue;
        }
        match &mut run {
            Some(run) if run.is_followed_by(unit, lsn) => run.count += 1,
            _ => {
                if let Some(before) = run.replace(Run { first_unit: unit, lsn, count: 1 }) {
                    data.missing += 1;
                    before.fetch(key, &parts.journal, io);
                }
            }
        }
    }
    if let Some(last) = run {
        data.missing += 1;
        last.fetch(key, &parts.journal, io);
    }
    data
}

/// Writes journal data of a block to its place, in runs of units. Returns the number of writes started.
fn write_block(key: BlockKey, data: BlockData, parts: &mut Parts, io: &mut Io<'_>) -> usize {
    let location = parts.blocks.frozen_info(&key).expect("it has a place").location;
    assert!(location != LOCATION_NONE);
    let place = parts.place(location);
    let units = whole_units(key, data, &mut parts.blocks);
    let mut count = 0;
    for run in units.chunk_by(|before, next| before.0 + 1 == next.0) {
        let offset = place + run[0].0 as u64 * UNIT_SIZE;
        let buffers = run.iter().map(|(_, bytes)| bytes.clone()).collect();
        io.write(Purpose::WriteBack, offset, buffers, false);
        count += 1;
    }
    count
}

/// Returns the journal data of a frozen block in the order of units, after verifying what was read. Units
/// whose data is lost become damaged.
fn whole_units(key: BlockKey, data: BlockData, blocks: &mut Blocks) -> Vec<(u32, Buffer)> {
    let BlockData { kept: mut units, read, missing } = data;
    assert!(missing == 0);
    let overlay = blocks.overlays().frozen(&key).expect("it is frozen");
    let expected = overlay.journal_units_count();
    if units.len() == expected {
        return units;
    }
    units.extend(read.into_iter().filter(|(unit, bytes)| match overlay.get(*unit) {
        Some(UnitState::Journal(checksum, _)) => matches(bytes, checksum),
        _ => unreachable!("only journal data is read"),
    }));
    units.sort_unstable_by_key(|(unit, _)| *unit);
    assert!(units.len() <= expected);
    if units.len() < expected {
        let is_lost = |(unit, state): (u32, UnitState)| {
            let is_whole = units.binary_search_by_key(&unit, |(unit, _)| *unit).is_ok();
            (matches!(state, UnitState::Journal(..)) && !is_whole).then_some(unit)
        };
        let mut lost = UnitSet::EMPTY;
        overlay.iter().filter_map(is_lost).for_each(|unit| lost.insert(unit));
        blocks.lose_frozen(key, lost);
    }
    units
}
