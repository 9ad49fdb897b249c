//! Batches and pages in replay: what the disk has of one, and how it takes effect. See rules 3, 9 and 18 of
//! `docs/internals/objects.md`.
//!
//! Invariants
//!   1. An entry takes effect as a whole or not at all; data that is lost counts as damaged units.
//!   2. A store has a prefix of what it had of a PG: behind an entry that is dropped, all of its PG is dropped.

use std::collections::BTreeMap;
use std::ops::Range;

use base::planted::{self, Bug};
use base::{Lsn, PgId, UNIT_SIZE};
use format::disk::{BlockAction, BlockChange, Body, EntryHeader, LOCATION_NONE, UnitSet};

use super::replay::unit_range;
use super::{Progress, Recovery, is_emptied};
use crate::BlockKey;
use crate::allocator::Place;
use crate::decide::Content;
use crate::index::location_of;
use crate::parts::BatchChange;

/// What the disk has of a batch or page whose body is whole.
pub struct BatchFound {
    body: Body,
    /// The data behind the body.
    pub units: Content,
    /// Units whose data is lost.
    bad: BTreeMap<BlockKey, UnitSet>,
    /// Data at places before this line was compared.
    line_next: usize,
}

impl BatchFound {
    /// Decodes the body of the entry at the front of `bytes`, and compares the data behind it; `None`: the
    /// body is lost. Of an entry in the checkpoint, the data does not matter. `is_lost`: whether a range of
    /// the entry cannot be read.
    pub fn of(
        header: &EntryHeader,
        bytes: &[u8],
        (sector_size, is_in_checkpoint): (u32, bool),
        is_lost: impl Fn(Range<usize>) -> bool,
    ) -> Option<BatchFound> {
        let body = Body::decode(header, header.body(bytes))?;
        let mut found =
            BatchFound { body, units: Content::Whole, bad: BTreeMap::new(), line_next: 0 };
        let mut at = header.header_size(sector_size) as usize;
        if is_in_checkpoint {
            return Some(found);
        }
        for line in found.body.blocks.iter().filter(|line| line.action == BlockAction::Units) {
            let data = &bytes[at..at + line.size_here()];
            let indices: Vec<u32> = (0..line.units.count()).collect();
            let is_lost = |index: u32| {
                let range = unit_range(index);
                is_lost(at + range.start..at + range.end)
            };
            let content = compare(line, data, &indices, is_lost, &mut found.bad);
            found.units = found.units.worse(content);
            at += line.size_here();
        }
        Some(found)
    }

    /// Returns the line whose place is to be read next.
    fn next_line(&self) -> Option<usize> {
        let mut lines = (self.line_next..).zip(&self.body.blocks[self.line_next..]);
        let next = lines.find(|(_, line)| line.action == BlockAction::UnitsAtPlace);
        next.map(|(index, _)| index)
    }

    /// Returns location, offset and length of the data to be read next, in bytes.
    pub fn next_place(&self) -> Option<(u32, u32, u32)> {
        let line = &self.body.blocks[self.next_line()?];
        let (offset, length) = line.units.span();
        Some((line.location, offset, length))
    }

    /// Leaves data at places unread if it does not matter, or if the entry ends the journal.
    pub fn ends_without_places(&mut self, is_known: bool) {
        if is_known || self.units == Content::Bad {
            self.line_next = self.body.blocks.len();
        }
    }

    /// Compares the data of the next place. Returns its state, location and offset. `is_lost`: whether the
    /// unit at this position of the data cannot be read.
    pub fn on_place_read(
        &mut self,
        data: &[u8],
        is_lost: impl Fn(u32) -> bool,
    ) -> (Content, u32, u32) {
        let index = self.next_line().expect("it was read");
        self.line_next = index + 1;
        let line = &self.body.blocks[index];
        let (offset, _) = line.units.span();
        let first = offset / UNIT_SIZE as u32;
        let positions: Vec<u32> = line.units.iter().map(|unit| unit - first).collect();
        let content = match planted::on(Bug::StaleDataAccepted) {
            true => Content::Whole,
            false => compare(line, data, &positions, is_lost, &mut self.bad),
        };
        (content, line.location, offset)
    }
}

/// Compares data with the checksums of a line, and adds the units that do not match to `bad`. `positions`:
/// where each unit is in the data, in units.
fn compare(
    line: &BlockChange,
    data: &[u8],
    positions: &[u32],
    is_lost: impl Fn(u32) -> bool,
    bad: &mut BTreeMap<BlockKey, UnitSet>,
) -> Content {
    let mut content = Content::Whole;
    for ((unit, position), checksum) in line.units.iter().zip(positions).zip(&line.checksums) {
        if base::crc32c(&data[unit_range(*position)]) != *checksum {
            bad.entry(line.key).or_insert(UnitSet::EMPTY).insert(unit);
            let found = if is_lost(*position) { Content::Unreadable } else { Content::Bad };
            content = content.worse(found);
        }
    }
    content
}

impl Recovery {
    /// Whether the entry changes a PG of an object pool, so that it goes with what was dropped before it.
    pub(super) fn is_of_objects(&self, header: &EntryHeader) -> bool {
        if planted::on(Bug::LaterBatchKept) {
            return false;
        }
        let has_family = |key: &BlockKey| {
            self.families_named.iter().any(|named| named.family == key.pool)
                || self.replay.families.contains_key(&key.pool)
        };
        header.kind.has_body() || header.key.as_ref().is_some_and(has_family)
    }

    /// Applies a batch. Its records are for the second reading.
    pub(super) fn replay_batch(&mut self, header: &EntryHeader, batch: &BatchFound) -> Progress {
        let parts = self.parts.as_mut().expect("the superblock is known");
        let (pg, block_size) = header.pg.zip(header.block_size).expect("the format demands both");
        if header.lsn < parts.root.until {
            return Ok(());
        }
        let named = batch.body.blocks.iter().filter(|line| line.location != LOCATION_NONE);
        for BlockChange { key, location, .. } in named {
            if header.lsn >= self.survey.acked {
                self.replay.places.insert(Place { location: *location, block_size });
            }
            if location_of(parts.blocks.get(key)) != *location {
                let pages = &mut parts.pages;
                parts.blocks.occupy(*location, block_size, |overlay, key, info| {
                    is_emptied(pages, overlay, &key, info)
                })?;
            }
        }
        let data_lsn = header.lsn.advance(u64::from(header.size - header.data_size()));
        let (body, bad) = (&batch.body, &batch.bad);
        let left_out =
            parts.apply_batch(&BatchChange { header, body, lsn: header.lsn, data_lsn, bad });
        for (key, units) in bad.iter().filter(|(key, _)| !left_out.contains(key)) {
            parts.blocks.damage.found(*key, *units);
        }
        if !left_out.is_empty() {
            self.replay.lost_batches.insert(pg, header.lsn);
        }
        Ok(())
    }

    /// Notes that only the header of a batch or page is left. Its version was given, so it counts.
    pub(super) fn lose_batch(&mut self, header: &EntryHeader) {
        let pg = header.pg.expect("the format demands it");
        self.replay.kept_from_engine.insert(header.lsn);
        self.replay.lost_batches.insert(pg, header.lsn);
        let parts = self.parts_mut();
        if header.lsn >= parts.root.until {
            parts.pgs.apply(header, pg, header.lsn);
        }
    }

    /// Returns the PGs of which an entry is lost, and nothing behind it says so.
    pub(super) fn pgs_with_lost_batches(&self) -> impl Iterator<Item = PgId> {
        let parts = self.parts();
        let is_said = |pg: &PgId, lost: &Lsn| {
            let record = parts.pgs.get(*pg);
            let said = record.suspect.max(record.absolved).max(parts.superblock.suspect);
            said.is_some_and(|said| said > *lost)
        };
        let lost = self.replay.lost_batches.iter();
        lost.filter(move |(pg, lost)| !is_said(pg, lost)).map(|(pg, _)| *pg)
    }
}
