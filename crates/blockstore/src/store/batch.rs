//! Batches and pages of object pools: admitted, batches in the order of their PG, journaled, seen by reads at once, given
//! to the engine when they are durable. See `docs/internals/objects.md`.
//!
//! ```text
//!   records, lines ─▶ plan: what gets a place ─▶ room ─▶ [header, body | units here] and, in parallel, the places ─▶ answer
//! ```
//!
//! Invariant: nothing of a batch changes before all that it needs is there: places, room in the journal and for records.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{Buffer, BufferPool, Lsn, PgId, PoolId, Version, checksum};
use format::disk::{
    BlockAction, BlockChange, Body, EntryHeader, EntryKind, LOCATION_NONE, UNITS_SIZE_MAX,
    record_size,
};
use format::engine::{Compression, EngineEvent};

use crate::disk::{Io, Purpose};
use crate::index::location_of;
use crate::journal::{Asker, Awaited, LARGE_IN_FLIGHT_MAX, LargePlace, plain_header};
use crate::parts::BatchChange;
use crate::pending::{EntryPlace, FamilyStage};
use crate::store::Store;
use crate::store::repair::spread;
use crate::store::write::{Admit, LARGE_SIZE_MIN, WRITE_RESERVE_SHARE};
use crate::{Answer, Batch, Effect, Page, Request, RequestId, StoreError};

/// A family is flushed when its low lies this fraction (1/n) of what makes a checkpoint due behind the tail.
/// So the checkpoint that follows usually trims what it contains.
const FLUSH_SHARE: u64 = 2;
/// Stands for a place that is allocated when the batch is accepted.
const PLACE_TO_COME: u32 = 0;

impl Store {
    /// Tries to accept a batch, or a page. Returns the request if it must wait.
    pub(super) fn try_batch(
        &mut self,
        id: RequestId,
        mut batch: Batch,
        kind: EntryKind,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let header = EntryHeader {
            pg: Some(batch.pg),
            block_size: Some(batch.block_size),
            version: batch.version,
            after: batch.after,
            ..plain_header(kind)
        };
        let (records, note) = (std::mem::take(&mut batch.records), batch.note.take());
        let has_order = kind == EntryKind::Batch && note.is_none();
        let mut body = Body { records, blocks: self.lines_of(&batch, true), note };
        // An id may be used again once it was answered.
        let is_compared = self.compared.take() == Some(id);
        let judged = self.judge_batch(&batch, &body, kind);
        if let Err(error) = judged.and_then(|()| self.compare(&batch, is_compared)) {
            // What comes out of its order was not the next version, and one that is may still come.
            if has_order && error != StoreError::Unordered {
                self.refused.insert(batch.pg, batch.version.epoch);
            }
            effects.push(Effect::Done { id, result: Err(error) });
            return None;
        }
        self.want_places(&batch, place_count(&body), effects);
        match self.admit_batch(&batch, &header, &mut body) {
            Admit::Now(()) => {
                self.accept_batch(id, header, body, batch.blocks, effects);
                None
            }
            Admit::Wait { checkpoint } => {
                self.wait_for_room(checkpoint);
                self.compared = Some(id);
                (batch.records, batch.note) = (body.records, body.note);
                Some(match kind {
                    EntryKind::Page => Request::Page(page_of(batch)),
                    _ => Request::Batch(batch),
                })
            }
            Admit::Refuse(error) => {
                if has_order {
                    self.refused.insert(batch.pg, batch.version.epoch);
                }
                effects.push(Effect::Done { id, result: Err(error) });
                None
            }
        }
    }

    /// Returns the lines of the entry, with places to come: data gets one if it is a whole block, or large
    /// and its block has none, or holds nothing else afterwards; or if it is the first of its block.
    /// `may_replace`: whether a block that has a place may get another one.
    fn lines_of(&self, batch: &Batch, may_replace: bool) -> Vec<BlockChange> {
        let mut lines: Vec<BlockChange> =
            batch.blocks.iter().map(|(line, _)| line.clone()).collect();
        for lines in lines.chunk_by_mut(|one, next| one.key == next.key) {
            let has_place = location_of(self.parts().blocks.get(&lines[0].key)) != LOCATION_NONE;
            let unit_count = batch.block_size.unit_count();
            let is_all = lines.iter().map(|line| line.units.count()).sum::<u32>() == unit_count;
            let may_go = !has_place || is_all && may_replace;
            let mut has_named = false;
            for line in lines.iter_mut().filter(|line| line.action == BlockAction::Units) {
                let is_whole = line.units.count() == unit_count;
                let is_large = is_whole || line.size_here() as u64 >= LARGE_SIZE_MIN;
                if has_named || !may_go || !is_large && has_place {
                    continue;
                }
                if is_large {
                    line.action = BlockAction::UnitsAtPlace;
                }
                line.location = PLACE_TO_COME;
                has_named = true;
            }
            // What is damaged is kept with a place, too.
            let mut damaged = lines.iter_mut().filter(|line| line.action == BlockAction::Damaged);
            if !has_place
                && !has_named
                && let Some(line) = damaged.next()
            {
                line.location = PLACE_TO_COME;
            }
        }
        lines
    }

    /// Whether the batch is one that this store can have, and the next one of its PG; forwards and pages
    /// have no order here.
    fn judge_batch(&self, batch: &Batch, body: &Body, kind: EntryKind) -> Result<(), StoreError> {
        let Batch { pg, block_size, after, version, blocks, .. } = batch;
        let has_order = kind == EntryKind::Batch && body.note.is_none();
        if has_order && self.is_refused(Some((*pg, *version))) {
            return Err(StoreError::Full);
        }
        if !self.pending.has_family(pg.pool) {
            return Err(StoreError::NoFamily);
        }
        let is_of_run = |line: &BlockChange| *after < line.version && line.version <= *version;
        let is_fitting = |line: &BlockChange| match line.action {
            BlockAction::UnitsAtPlace => false,
            BlockAction::Damaged => !has_order,
            _ => !has_order || is_of_run(line),
        };
        let has_size = |line: &BlockChange| {
            let old = self.parts().blocks.get(&line.key);
            location_of(old) == LOCATION_NONE
                || old.is_some_and(|old| old.block_size == *block_size)
        };
        let is_whole = |(line, data): &(BlockChange, Buffer)| {
            is_fitting(line)
                && line.location == LOCATION_NONE
                && has_size(line)
                && data.len() == line.size_here()
        };
        let fits = body.is_sound(kind, *pg, *block_size);
        if !fits || !blocks.iter().all(is_whole) {
            return Err(StoreError::Corrupted);
        }
        let last = self.parts().pgs.get(*pg).last;
        // The first one in an epoch may follow any version: a learner has more than its batches.
        let follows = *after == last || last.epoch < version.epoch;
        let is_next = match (kind, has_order) {
            (EntryKind::Page, _) => true,
            (_, true) => after < version && last < *version && follows,
            (_, false) => after < version,
        };
        is_next.then_some(()).ok_or(StoreError::Unordered)
    }

    /// Compares the data of a batch with its checksums: once, however long it waits.
    fn compare(&mut self, batch: &Batch, is_compared: bool) -> Result<(), StoreError> {
        if is_compared {
            return Ok(());
        }
        #[cfg(test)]
        {
            self.comparisons += 1;
        }
        let matches = |(line, data): &(BlockChange, Buffer)| {
            checksum::first_mismatch(data, &line.checksums).is_none()
        };
        match batch.blocks.iter().all(matches) {
            true => Ok(()),
            false => Err(StoreError::Corrupted),
        }
    }

    /// Records that blocks need places, and reserves space if too few are ready.
    fn want_places(&mut self, batch: &Batch, count: u64, effects: &mut Vec<Effect>) {
        let size = batch.block_size;
        if count > 0 {
            self.want_place(size, effects);
            if !self.has_places(batch, count) {
                self.reserve(effects);
            }
        }
    }

    fn has_places(&self, batch: &Batch, count: u64) -> bool {
        let ready = self.parts().blocks.area.allocator.ready_bytes_of(batch.block_size);
        ready >= count * batch.block_size.bytes()
    }

    /// Decides whether a batch is accepted now. If it is, `body` has the lines for which there are places.
    fn admit_batch(&self, batch: &Batch, header: &EntryHeader, body: &mut Body) -> Admit<()> {
        let (parts, area) = (self.parts(), &self.parts().blocks.area);
        let has_data = body.blocks.iter().any(|line| line.action.has_data());
        if !self.has_room_for_records(batch, body) || has_data && self.disk.has_no_space() {
            return Admit::Refuse(StoreError::Full);
        }
        if place_count(body) > 0 && area.holds_places() {
            return Admit::Wait { checkpoint: true };
        }
        if !self.has_places(batch, place_count(body)) {
            if area.is_reserving() {
                return Admit::Wait { checkpoint: false };
            }
            if area.freed_bytes() > 0 {
                return Admit::Wait { checkpoint: true };
            }
            // All space is in segments of other block sizes, or the file system is full: blocks keep their
            // places as far as the entry can have their data.
            body.blocks = self.lines_of(batch, false);
            if body.units_size() > UNITS_SIZE_MAX || !self.has_places(batch, place_count(body)) {
                return match self.moves.is_moving(area) {
                    true => Admit::Wait { checkpoint: false },
                    false => Admit::Refuse(StoreError::Full),
                };
            }
        }
        let is_large = body.blocks.iter().any(|line| line.action == BlockAction::UnitsAtPlace);
        if is_large && parts.journal.large_count() >= LARGE_IN_FLIGHT_MAX {
            return Admit::Wait { checkpoint: false };
        }
        let header = EntryHeader {
            offset: body.units_size() as u32,
            length: body.size(batch.block_size) as u32,
            ..header.clone()
        };
        let entry_size = header.entry_size(self.sector_size());
        let reserve = parts.journal.size() / WRITE_RESERVE_SHARE;
        let has_memory = body.blocks.is_empty() || self.has_memory();
        match has_memory && parts.has_room_for((header.kind, entry_size), reserve) {
            true => Admit::Now(()),
            false => Admit::Wait { checkpoint: true },
        }
    }

    /// Whether there is room for what a checkpoint writes of the blocks and the note.
    fn has_room_for_records(&self, batch: &Batch, body: &Body) -> bool {
        let (mut before, mut after) = (0, 0);
        if let Some((key, note)) = &body.note {
            before += self.parts().notes.get(key).map_or(0, |note| note.len()) as u64;
            after += note.len() as u64;
        }
        for lines in batch.blocks.chunk_by(|(one, _), (next, _)| one.key == next.key) {
            let old = self.parts().blocks.get(&lines[0].0.key);
            before += old.map_or(0, |old| old.record_size());
            let has_data = lines.iter().any(|(line, _)| line.action != BlockAction::Zeros);
            let has_place = has_data || location_of(old) != LOCATION_NONE;
            if lines[0].0.action != BlockAction::Gone {
                after += record_size(batch.block_size, has_place) as u64;
            }
        }
        self.parts().record_room().can_change(before, after)
    }

    /// Journals a batch, applies it, and writes the data that has places.
    fn accept_batch(
        &mut self,
        id: RequestId,
        mut header: EntryHeader,
        mut body: Body,
        blocks: Vec<(BlockChange, Buffer)>,
        effects: &mut Vec<Effect>,
    ) {
        self.written_at = self.now;
        let (pg, block_size) = header.pg.zip(header.block_size).expect("a batch has both");
        let sector_size = self.sector_size() as usize;
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let (mut places, mut here) = (Vec::new(), Vec::new());
        for (line, (_, data)) in body.blocks.iter_mut().zip(blocks) {
            if line.location != LOCATION_NONE {
                let allocated = parts.blocks.area.allocator.allocate(block_size);
                line.location = allocated.expect("admitted only with space");
            }
            match line.action {
                BlockAction::UnitsAtPlace => {
                    let data = spread(data, &line.units, &self.pool);
                    let data = match data.is_aligned_to(sector_size) {
                        true => data,
                        false => self.pool.copy_of(&data),
                    };
                    let (offset, _) = line.units.span();
                    places.push(LargePlace::new((line.key, line.location), offset, data));
                }
                BlockAction::Units => here.push(data),
                _ => {}
            }
        }
        let apart = match planted::on(Bug::ForwardWithoutRecord) {
            true => body.note.take(),
            false => None,
        };
        let encoded = body.encode(&mut header);
        let data = joined(here, &self.pool);
        let (lsn, data_lsn) = parts.journal.append_with(&mut header, &encoded, data);
        let bad = &BTreeMap::new();
        let change = BatchChange { header: &header, body: &body, lsn, data_lsn, bad };
        assert!(parts.apply_batch(&change).is_empty(), "a block with data got a place");
        let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
        let durable = parts.journal.is_immediate();
        for (index, place) in places.iter().enumerate() {
            let offset = parts.blocks.area.place(place.location) + u64::from(place.offset);
            let data = place.data().expect("it is to be written").clone();
            assert!(offset + data.len() as u64 <= parts.superblock.data.end());
            io.write(Purpose::Large { lsn, index }, offset, vec![data], durable);
        }
        if !places.is_empty() {
            parts.journal.begin_large(lsn, pg, places);
        }
        let place = EntryPlace { lsn, end: parts.journal.tail(), previous: header.previous };
        if let Some((key, note)) = apart {
            self.journal_note(key, &note);
        }
        self.parts_mut().journal.wait(Asker::plain(id), lsn, Awaited::OfPg(pg));
        if header.kind == EntryKind::Page {
            self.lag.pages.insert(id);
        }
        if !body.records.is_empty() {
            self.value_cache.touch(pg.pool, &body.records);
            self.pending.push(pg.pool, place, body.records);
        }
    }

    /// Tries to accept the creation or removal of a family. Returns the request if it must wait.
    pub(super) fn try_family(
        &mut self,
        id: RequestId,
        pool: PoolId,
        compression: Option<Compression>,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let found = self.pending.stage(pool);
        let result = match (found, compression) {
            _ if self.parts().superblock.engine.is_none() => Err(StoreError::NoFamily),
            (Some(FamilyStage::Creating(_) | FamilyStage::Removing(_)), _) => {
                Err(StoreError::Unordered)
            }
            (None, None) => Ok(Answer::Durable),
            (Some(FamilyStage::There), Some(_)) => {
                match self.pending.compression(pool) == compression {
                    true => Ok(Answer::Durable),
                    false => Err(StoreError::OtherCompression),
                }
            }
            _ => {
                if let Admit::Wait { checkpoint } = self.admit_plain(EntryKind::Family) {
                    self.wait_for_room(checkpoint);
                    return Some(Request::Family { pool, compression });
                }
                self.accept_family(id, pool, compression);
                return None;
            }
        };
        effects.push(Effect::Done { id, result });
        None
    }

    /// Journals the creation or removal of a family. One that was left from a removed pool is removed first.
    fn accept_family(&mut self, id: RequestId, pool: PoolId, compression: Option<Compression>) {
        self.written_at = self.now;
        self.value_cache.forget(pool);
        let asker = Some(id);
        match compression {
            None => {
                let place = self.append_family(pool, None);
                self.pending.push_removal(pool, place, asker);
            }
            Some(compression) => {
                if self.pending.stage(pool).is_some() {
                    let place = self.append_family(pool, None);
                    self.pending.push_removal(pool, place, None);
                }
                self.parts_mut().blocks.leave_uncounted(pool);
                let place = self.append_family(pool, Some(compression));
                self.pending.push_creation(pool, Some(place), compression, asker);
            }
        }
        self.parts_mut().journal.want_all();
    }

    fn append_family(&mut self, pool: PoolId, compression: Option<Compression>) -> EntryPlace {
        let journal = &mut self.parts_mut().journal;
        if journal.tail() == Lsn::ZERO {
            // A family without batches has lsn 0, so no entry of a family may have it.
            journal.append_idle();
        }
        let mut header = EntryHeader {
            pg: Some(PgId { pool, number: 0 }),
            offset: compression.map_or(0, |compression| u32::from(compression.number())),
            ..plain_header(EntryKind::Family)
        };
        let lsn = self.journal_entry(&mut header, None, None);
        let end = self.parts().journal.tail();
        EntryPlace { lsn, end, previous: header.previous }
    }

    /// Gives the engine the batches that have become durable.
    pub(super) fn enter_engine(&mut self, effects: &mut Vec<Effect>) {
        let mut writes = Vec::new();
        let durable = self.parts().journal.durable();
        self.pending.enter(durable, self.now, &mut writes);
        if self.is_open() {
            let span = match std::mem::take(&mut self.wants_engine_flush) {
                true => 0,
                false => self.journal_size_max() / FLUSH_SHARE,
            };
            self.pending.flush((self.parts().journal.tail(), span), self.now, &mut writes);
        }
        effects.extend(writes.into_iter().map(Effect::Engine));
    }

    pub(super) fn on_engine(&mut self, event: EngineEvent, effects: &mut Vec<Effect>) {
        let ended = match event {
            EngineEvent::Done { op, result } => {
                let reads = self.record_reads.numbers();
                let ended = self.pending.on_done(op, result, self.now, reads);
                ended.map(|id| {
                    let done = |id| Effect::Done { id, result: Ok(Answer::Durable) };
                    effects.extend(id.map(done));
                })
            }
            EngineEvent::Read { op, contains, result } => {
                return self.on_records_read(op, contains, result, effects);
            }
            EngineEvent::Poisoned { text } => Err(text),
            EngineEvent::Flushed { family, lsn } => {
                self.pending.on_flushed(family, lsn);
                Ok(())
            }
            EngineEvent::Space { is_low } => {
                self.lag.is_low = is_low;
                Ok(())
            }
            EngineEvent::Statistics { .. } => unreachable!("the store asks for none"),
        };
        if let Err(text) = ended {
            let reason = format!(
                "the engine failed ({text}): what it has is unknown. Check the kernel log and the \
                 disk's health, then start the OSD again: it recovers from its journal"
            );
            self.stop(reason, effects);
        }
    }
}

/// Returns the page as a batch without an order.
pub(super) fn batch_of(page: Page) -> Batch {
    let Page { pg, block_size, version, records, blocks } = page;
    Batch { pg, block_size, after: Version::ZERO, version, records, blocks, note: None }
}

fn page_of(batch: Batch) -> Page {
    let Batch { pg, block_size, version, records, blocks, .. } = batch;
    Page { pg, block_size, version, records, blocks }
}

/// Returns how many places the lines need.
fn place_count(body: &Body) -> u64 {
    body.blocks.iter().filter(|line| line.location != LOCATION_NONE).count() as u64
}

/// Returns the data of all units in the journal as one buffer; `None`: there is none.
fn joined(mut parts: Vec<Buffer>, pool: &BufferPool) -> Option<Buffer> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let mut all = pool.take(parts.iter().map(|part| part.len()).sum());
    let mut at = 0;
    for part in parts {
        all[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    Some(all.freeze())
}
