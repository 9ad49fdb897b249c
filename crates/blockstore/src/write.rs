//! Requests that change something: admitted in order, journaled, applied to the index at once,
//! answered when durable.
//!
//! ```text
//!   small:  [entry | data] ──one device write──▶ answer ... written back by the next checkpoint
//!   large:  [entry] and, in parallel, data ──▶ newly allocated place; both durable ──▶ answer
//! ```
//!
//! Live requests and recovery change the store through the same [`Parts::change`].

use base::planted::{self, Bug};
use base::{BlockSize, Buffer, Checksum, Lsn, PgId, UNIT_SIZE, Version};
use format::disk::{EntryHeader, EntryKind, LOCATION_NONE, UnitSet};

use crate::dirty::{Layers, UnitState};
use crate::disk::Purpose;
use crate::index::BlockInfo;
use crate::journal::{Asker, LARGE_IN_FLIGHT_MAX, plain_header};
use crate::store::{Parts, Store};
use crate::{Answer, BlockKey, Effect, NOTE_SIZE_MAX, NoteKey, Request, RequestId, StoreError};

/// Data from this size on goes to its place at once when the block is new.
const LARGE_SIZE_MIN: u64 = 64 << 10;
/// Journal kept free for what is no write.
const WRITE_RESERVE_SHARE: u64 = 8;
/// Journal kept free for the store itself: idle entries, recovery's decisions.
const REQUEST_RESERVE: u64 = 512 << 10;

/// What is done with a request now.
pub(crate) enum Admit {
    /// It takes effect.
    Now(Plan),
    /// It waits for a checkpoint or for operations in flight.
    Wait {
        /// Only a checkpoint makes room.
        checkpoint: bool,
    },
    /// It is answered with an error; nothing changes.
    Refuse(StoreError),
}

/// How a request is journaled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// No data.
    Plain,
    /// Data in the entry; the block gets a place if it has none.
    Inline,
    /// Data at a newly allocated place.
    Large,
}

impl Store {
    /// Takes a request, or lets it wait.
    pub(crate) fn request(&mut self, id: RequestId, request: Request, effects: &mut Vec<Effect>) {
        self.parts_mut().moves.is_paused = matches!(request, Request::Record);
        let waits = match &request {
            Request::Read { key, .. } | Request::Extents { key } | Request::Copy { key, .. } => {
                self.queue.iter().any(|(_, queued)| key_of(queued) == Some(*key))
            }
            _ => !self.queue.is_empty(),
        };
        if waits {
            return self.queue.push_back((id, request));
        }
        if let Some(request) = self.try_request(id, request, effects) {
            self.queue.push_back((id, request));
        }
    }

    /// Takes waiting requests in order, as far as there is room.
    pub(crate) fn run_queue(&mut self, effects: &mut Vec<Effect>) {
        while let Some((id, request)) = self.queue.pop_front() {
            if let Some(request) = self.try_request(id, request, effects) {
                return self.queue.push_front((id, request));
            }
        }
    }

    /// Takes a request; hands it back if it must wait.
    fn try_request(
        &mut self,
        id: RequestId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        match request {
            Request::Read { key, offset, length } => {
                self.read_begin(id, key, offset, length, effects);
                return None;
            }
            Request::Extents { key } => {
                self.extents_begin(id, key, effects);
                return None;
            }
            Request::Copy { key, units } => {
                self.copy_begin(id, key, &units, effects);
                return None;
            }
            Request::Repair { pg, key, content } => {
                return self.try_repair(id, pg, key, content, effects);
            }
            Request::Sync => {
                self.wait_all(id, effects);
                return None;
            }
            Request::Record => {
                let journal = &mut self.parts_mut().journal;
                if journal.durable() < journal.tail() {
                    // What is not durable yet is to be in the record too.
                    journal.want_all();
                    return Some(request);
                }
                self.record_durable();
                self.wait_all(id, effects);
                return None;
            }
            _ => {}
        }
        let version = version_of(&request);
        if version.is_some_and(|(pg, version)| self.refused.get(&pg) == Some(&version.epoch)) {
            effects.push(Effect::Done { id, result: Err(StoreError::Full) });
            return None;
        }
        if let Request::Write { block_size, .. } = &request {
            self.want_place(*block_size, effects);
        }
        let old = key_of(&request).and_then(|key| self.parts().index.get(&key));
        match self.admit(&request, old) {
            Admit::Now(plan) => {
                self.accept(id, request, plan, old, effects);
                None
            }
            Admit::Wait { checkpoint } => {
                self.wait_for_room(checkpoint);
                Some(request)
            }
            Admit::Refuse(error) => {
                self.refused.extend(version.map(|(pg, version)| (pg, version.epoch)));
                effects.push(Effect::Done { id, result: Err(error) });
                None
            }
        }
    }

    /// Answers a request when everything so far is durable: at once where it is, for no event may
    /// follow. The request may come out of the queue, after the journal's answers of this event.
    fn wait_all(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let journal = &mut self.parts_mut().journal;
        match journal.durable() < journal.tail() {
            true => journal.wait_all(id),
            false => effects.push(Effect::Done { id, result: Ok(Answer::Durable) }),
        }
    }

    /// A request waits for a checkpoint, or for operations that end: what was written lazily is
    /// flushed for it.
    pub(crate) fn wait_for_room(&mut self, checkpoint: bool) {
        let parts = self.parts_mut();
        parts.wants_checkpoint |= checkpoint;
        parts.journal.want_all();
    }

    /// `old`: what the index says of the block of the request.
    fn admit(&self, request: &Request, old: Option<BlockInfo>) -> Admit {
        let parts = self.parts();
        let (kind, units) = match request {
            Request::Write { block_size, data, .. } => {
                let length = data.len() as u64;
                let is_all = length == block_size.bytes() || place_of(old) == LOCATION_NONE;
                let kinds = (EntryKind::Write, EntryKind::WriteLarge);
                return self.admit_data(old, *block_size, (is_all, length), kinds);
            }
            Request::Zero { block_size, .. } => {
                if !parts.has_record_space(old, *block_size, false) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Zero, 0)
            }
            Request::Delete { .. } => {
                if !parts.has_record_space(old, BlockSize::MIN, false) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Delete, 0)
            }
            Request::Note { key, bytes } => {
                let old = parts.notes.get(key).map_or(0, |note| note.len());
                if !parts.has_note_space(bytes.len().saturating_sub(old) as u64) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Note, bytes.len().div_ceil(UNIT_SIZE as usize))
            }
            _ => (EntryKind::Floor, 0),
        };
        match parts.journal.has_room(kind, units, REQUEST_RESERVE) {
            true => Admit::Now(if units > 0 { Plan::Inline } else { Plan::Plain }),
            false => Admit::Wait { checkpoint: true },
        }
    }

    /// Whether the journal has room for an entry without data.
    pub(crate) fn admit_plain(&self, kind: EntryKind) -> Admit {
        match self.parts().journal.has_room(kind, 0, REQUEST_RESERVE) {
            true => Admit::Now(Plan::Plain),
            false => Admit::Wait { checkpoint: true },
        }
    }

    /// Whether data of `length` bytes can be taken. `is_all`: the block has nothing else afterwards,
    /// so the data may go to a place of its own. `kinds`: of entries, inline and large.
    pub(crate) fn admit_data(
        &self,
        old: Option<BlockInfo>,
        size: BlockSize,
        (is_all, length): (bool, u64),
        kinds: (EntryKind, EntryKind),
    ) -> Admit {
        let parts = self.parts();
        let has_place = place_of(old) != LOCATION_NONE;
        // Where the file system refuses even what was reserved, the reserve is gone.
        if self.disk.has_no_space() || !parts.has_record_space(old, size, true) {
            return Admit::Refuse(StoreError::Full);
        }
        let is_large = length == size.bytes() || length >= LARGE_SIZE_MIN;
        let mut plan = if is_all && is_large { Plan::Large } else { Plan::Inline };
        let needs_place = plan == Plan::Large || !has_place;
        if needs_place && parts.holds_places {
            return Admit::Wait { checkpoint: true };
        }
        if needs_place && !parts.allocator.can_allocate(size) {
            if parts.reserving.is_pending() {
                return Admit::Wait { checkpoint: false };
            }
            match (parts.freed_bytes() > 0, has_place) {
                (true, _) => return Admit::Wait { checkpoint: true },
                // All space is in segments of other block sizes, or the file system is full; the
                // block's own place stays.
                (false, true) => plan = Plan::Inline,
                (false, false) if parts.is_moving() => return Admit::Wait { checkpoint: false },
                (false, false) => return Admit::Refuse(StoreError::Full),
            }
        }
        if plan == Plan::Large && parts.journal.large_count() >= LARGE_IN_FLIGHT_MAX {
            return Admit::Wait { checkpoint: false };
        }
        let kind = if plan == Plan::Large { kinds.1 } else { kinds.0 };
        let reserve = parts.journal.size() / WRITE_RESERVE_SHARE;
        let has_memory = parts.live_bytes + parts.frozen_bytes < self.settings.memory_bytes / 2;
        let units = (length / UNIT_SIZE) as usize;
        match has_memory && parts.journal.has_room(kind, units, reserve) {
            true => Admit::Now(plan),
            false => Admit::Wait { checkpoint: true },
        }
    }

    fn accept(
        &mut self,
        id: RequestId,
        request: Request,
        plan: Plan,
        old: Option<BlockInfo>,
        effects: &mut Vec<Effect>,
    ) {
        self.written_at = self.now;
        match request {
            Request::Write { pg, key, block_size, version, offset, checksums, data, lazy } => {
                let header = EntryHeader {
                    key: Some(key),
                    block_size: Some(block_size),
                    pg: Some(pg),
                    version,
                    offset,
                    length: data.len() as u32,
                    checksums,
                    ..plain_header(EntryKind::Write)
                };
                let asker = Asker { id, is_lazy: lazy };
                self.accept_write(asker, header, data, (plan, old), effects);
            }
            Request::Zero { pg, key, block_size, version, offset, length, lazy } => {
                let header = EntryHeader {
                    block_size: Some(block_size),
                    offset,
                    length,
                    ..block_header(EntryKind::Zero, pg, key, version)
                };
                self.accept_entry(Asker { id, is_lazy: lazy }, header, None, old);
            }
            Request::Delete { pg, key, version } => {
                let header = block_header(EntryKind::Delete, pg, key, version);
                self.accept_entry(Asker::plain(id), header, None, old);
            }
            Request::Note { key, bytes } => self.accept_note(id, key, &bytes),
            Request::SetFloor { pg, floor } => {
                let header =
                    EntryHeader { pg: Some(pg), version: floor, ..plain_header(EntryKind::Floor) };
                self.accept_entry(Asker::plain(id), header, None, old);
            }
            Request::Absolve { pg } => {
                let header = EntryHeader { pg: Some(pg), ..plain_header(EntryKind::Absolve) };
                self.accept_entry(Asker::plain(id), header, None, old);
            }
            Request::Read { .. }
            | Request::Extents { .. }
            | Request::Copy { .. }
            | Request::Repair { .. }
            | Request::Sync
            | Request::Record => {
                unreachable!("taken before")
            }
        }
    }

    fn accept_write(
        &mut self,
        asker: Asker,
        mut header: EntryHeader,
        data: Buffer,
        (plan, old): (Plan, Option<BlockInfo>),
        effects: &mut Vec<Effect>,
    ) {
        let (key, block_size) = (header.key.expect("set"), header.block_size.expect("set"));
        assert!(header.checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let place = place_of(old);
        header.location = match plan == Plan::Large || place == LOCATION_NONE {
            true => parts.allocator.allocate(block_size).expect("admitted only with space"),
            false => place,
        };
        if plan != Plan::Large {
            return self.accept_entry(asker, header, Some(data), old);
        }
        header.kind = EntryKind::WriteLarge;
        self.accept_large(asker, (header, key), data, old, effects);
    }

    /// Journals an entry whose data goes to its newly allocated place, in parallel.
    pub(crate) fn accept_large(
        &mut self,
        asker: Asker,
        (mut header, key): (EntryHeader, BlockKey),
        data: Buffer,
        old: Option<BlockInfo>,
        effects: &mut Vec<Effect>,
    ) {
        let offset = self.parts().place(header.location) + header.offset as u64;
        let lsn = self.journal_entry(&mut header, None, old);
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let data = match data.is_aligned_to(parts.superblock.sector_size as usize) {
            true => data,
            false => self.pool.copy_of(&data),
        };
        parts.journal.begin_large(lsn, key, header.location, header.offset, data.clone());
        parts.journal.wait(asker, lsn, Some(key));
        let durable = parts.journal.is_immediate();
        self.disk.write(Purpose::Large(lsn), offset, vec![data], durable, effects);
    }

    fn accept_note(&mut self, id: RequestId, key: NoteKey, bytes: &[u8]) {
        assert!(bytes.len() <= NOTE_SIZE_MAX);
        let (pg, number) = key.parts();
        let (data, checksums) = self.padded(bytes);
        let length = bytes.len() as u32;
        let header =
            EntryHeader { pg, offset: number, length, checksums, ..plain_header(EntryKind::Note) };
        self.accept_entry(Asker::plain(id), header, Some(data), None);
    }

    /// The bytes padded with zeros to whole units, and the units' checksums.
    pub(crate) fn padded(&self, bytes: &[u8]) -> (Buffer, Vec<Checksum>) {
        let mut data = self.pool.take(bytes.len().next_multiple_of(UNIT_SIZE as usize));
        data[..bytes.len()].copy_from_slice(bytes);
        data[bytes.len()..].fill(0);
        let mut checksums = Vec::new();
        base::checksum::checksum_units(&data, &mut checksums);
        (data.freeze(), checksums)
    }

    pub(crate) fn accept_entry(
        &mut self,
        asker: Asker,
        mut header: EntryHeader,
        data: Option<Buffer>,
        old: Option<BlockInfo>,
    ) {
        let key = header.key;
        let lsn = self.journal_entry(&mut header, data, old);
        self.parts_mut().journal.wait(asker, lsn, key);
    }

    /// Journals a change and applies it. `old`: what the index says of its block.
    pub(crate) fn journal_entry(
        &mut self,
        header: &mut EntryHeader,
        data: Option<Buffer>,
        old: Option<BlockInfo>,
    ) -> Lsn {
        if header.kind.is_versioned() {
            let version = old.map_or(Version::ZERO, |old| old.version);
            assert!(version < header.version, "versions of a block only grow");
        }
        let parts = self.parts_mut();
        let note = data.clone().filter(|_| header.kind == EntryKind::Note);
        let (lsn, data_lsn) = parts.journal.append(header, data);
        let change = Change { header, old, lsn, data_lsn, bad: UnitSet::EMPTY };
        parts.change(&change, note.as_deref().unwrap_or(&[]));
        lsn
    }
}

fn key_of(request: &Request) -> Option<BlockKey> {
    match request {
        Request::Write { key, .. }
        | Request::Zero { key, .. }
        | Request::Delete { key, .. }
        | Request::Repair { key, .. } => Some(*key),
        _ => None,
    }
}

/// The version that a request gives to a block in the order of its PG.
fn version_of(request: &Request) -> Option<(PgId, Version)> {
    match request {
        Request::Write { pg, version, .. }
        | Request::Zero { pg, version, .. }
        | Request::Delete { pg, version, .. } => Some((*pg, *version)),
        _ => None,
    }
}

pub(crate) fn block_header(
    kind: EntryKind,
    pg: PgId,
    key: BlockKey,
    version: Version,
) -> EntryHeader {
    EntryHeader { key: Some(key), pg: Some(pg), version, ..plain_header(kind) }
}

/// Where the block lies.
pub(crate) fn place_of(info: Option<BlockInfo>) -> u32 {
    info.map_or(LOCATION_NONE, |info| info.location)
}

/// An entry that changes the store.
pub(crate) struct Change<'a> {
    pub header: &'a EntryHeader,
    /// What the index says of its block.
    pub old: Option<BlockInfo>,
    pub lsn: Lsn,
    pub data_lsn: Lsn,
    /// Units of the entry whose data is lost.
    pub bad: UnitSet,
}

impl Parts {
    /// Applies an entry: the same for a request and for recovery. `note` is the inline data of a
    /// note.
    pub(crate) fn change(&mut self, change: &Change, note: &[u8]) {
        let header = change.header;
        debug_assert!(header.key.is_none_or(|key| self.index.get(&key) == change.old));
        if let Some(pg) = header.pg {
            self.change_pg(header, pg, change.lsn);
        }
        match (header.kind, header.key) {
            (EntryKind::Note, _) => self.change_note(header, note),
            (EntryKind::Write, Some(key)) => self.change_inline(change, key),
            (EntryKind::WriteLarge, Some(key)) => self.change_large(change, key),
            (EntryKind::Zero, Some(key)) => self.change_zero(change, key),
            (EntryKind::Delete | EntryKind::RepairTombstone, Some(key)) => {
                self.change_delete(change, key);
            }
            (EntryKind::Repair | EntryKind::RepairLarge, Some(key)) => {
                self.change_repair(change, key);
            }
            (EntryKind::RepairGone, Some(key)) => self.change_gone(change, key),
            _ => {}
        }
    }

    pub(crate) fn change_pg(&mut self, header: &EntryHeader, pg: PgId, lsn: Lsn) {
        let record = self.pgs.entry(pg).or_default();
        match header.kind {
            EntryKind::Floor => {
                record.floor = record.floor.max(header.version);
                // A full store takes no write that would start the checkpoint which drops them.
                self.gives_back |= self.index.tombstones_up_to(pg, record.floor).next().is_some();
            }
            EntryKind::Absolve => record.absolved = Some(lsn),
            EntryKind::Suspect => record.suspect = Some(lsn),
            kind => {
                record.held = record.held.max(header.version);
                if kind.is_versioned() {
                    record.last = record.last.max(header.version);
                    // The PG made sure of all before it went on to a new epoch.
                    record.hole = record.hole.filter(|hole| hole.epoch >= record.last.epoch);
                }
            }
        }
    }

    fn change_note(&mut self, header: &EntryHeader, bytes: &[u8]) {
        let key = NoteKey::of_parts(header.pg, header.offset);
        let bytes = &bytes[..header.length as usize];
        let old = match bytes.is_empty() {
            true => self.notes.remove(&key),
            false => self.notes.insert(key, bytes.into()),
        };
        self.notes_bytes += bytes.len() as u64;
        self.notes_bytes -= old.map_or(0, |old| old.len() as u64);
    }

    fn change_inline(&mut self, change: &Change, key: BlockKey) {
        let header = change.header;
        assert!(header.checksums.len() as u64 * UNIT_SIZE == u64::from(header.length));
        let is_new = place_of(change.old) == LOCATION_NONE;
        self.overlay(key, |overlay| {
            if is_new {
                overlay.reset();
            }
            for (index, checksum) in header.checksums.iter().enumerate() {
                let unit = header.offset / UNIT_SIZE as u32 + index as u32;
                let lsn = change.data_lsn.advance(index as u64 * UNIT_SIZE);
                let state = match change.bad.contains(index as u32) {
                    true => UnitState::Damaged,
                    false => UnitState::Journal(*checksum, lsn),
                };
                overlay.set(unit, state);
            }
        });
        self.moved(change, key, header.location, false);
    }

    fn change_large(&mut self, change: &Change, key: BlockKey) {
        let header = change.header;
        assert!(header.checksums.len() as u64 * UNIT_SIZE == u64::from(header.length));
        assert!(header.location != LOCATION_NONE, "its data has a place of its own");
        self.overlay(key, |overlay| {
            overlay.reset();
            for (index, checksum) in header.checksums.iter().enumerate() {
                let unit = header.offset / UNIT_SIZE as u32 + index as u32;
                let state = match change.bad.contains(index as u32) {
                    true => UnitState::Damaged,
                    false => UnitState::Place(*checksum),
                };
                overlay.set(unit, state);
            }
        });
        self.moved(change, key, header.location, false);
    }

    fn change_zero(&mut self, change: &Change, key: BlockKey) {
        let header = change.header;
        let block_size = header.block_size.expect("the format demands it");
        let is_whole = header.length as u64 == block_size.bytes();
        let location = if is_whole { LOCATION_NONE } else { place_of(change.old) };
        self.overlay(key, |overlay| {
            if location == LOCATION_NONE {
                return overlay.reset();
            }
            let first = header.offset / UNIT_SIZE as u32;
            for unit in first..first + header.length / UNIT_SIZE as u32 {
                overlay.set(unit, UnitState::Zero);
            }
        });
        self.moved(change, key, location, true);
    }

    fn change_delete(&mut self, change: &Change, key: BlockKey) {
        let is_repair = change.header.kind == EntryKind::RepairTombstone;
        self.overlay(key, |overlay| {
            overlay.reset();
            overlay.repair_count += u32::from(is_repair);
        });
        self.moved(change, key, LOCATION_NONE, true);
    }

    /// Writes what the entry says of its block, which lies at `location` now, into the index and
    /// frees the old place; `discard`: the change takes data away.
    pub(crate) fn moved(&mut self, change: &Change, key: BlockKey, location: u32, discard: bool) {
        let Change { header, old, .. } = *change;
        let (old_place, old_size) = (place_of(old), old.map(|info| info.block_size));
        let info = BlockInfo {
            version: header.version,
            pg: header.pg.expect("the format demands it").number as u16,
            block_size: header.block_size.or(old_size).unwrap_or(BlockSize::MIN),
            location,
            tombstone: matches!(header.kind, EntryKind::Delete | EntryKind::RepairTombstone),
        };
        self.gives_back |= discard && old_place != LOCATION_NONE;
        if old_place != LOCATION_NONE && old_place != location {
            self.free(old_place, old_size.expect("it has a place"), discard);
        }
        self.set_info(key, old, Some(info));
        self.forget_rotten(header, location, key);
    }

    fn forget_rotten(&mut self, header: &EntryHeader, location: u32, key: BlockKey) {
        let Some(rotten) = self.rotten.get_mut(&key) else { return };
        let first = header.offset / UNIT_SIZE as u32;
        match header.kind {
            _ if location == LOCATION_NONE => *rotten = UnitSet::EMPTY,
            EntryKind::WriteLarge | EntryKind::RepairLarge => *rotten = UnitSet::EMPTY,
            EntryKind::Repair => header.units.iter().for_each(|unit| rotten.remove(unit)),
            _ => (first..first + header.length / UNIT_SIZE as u32)
                .for_each(|unit| rotten.remove(unit)),
        }
        if rotten.is_empty() {
            self.rotten.remove(&key);
        }
    }

    /// Changes the index, and keeps what it said for the checkpoint being made.
    pub(crate) fn set_info(
        &mut self,
        key: BlockKey,
        old: Option<BlockInfo>,
        info: Option<BlockInfo>,
    ) {
        if let Some(frozen) = self.frozen.get_mut(&key)
            && frozen.info.is_none()
        {
            frozen.info = Some(old);
        }
        self.index.set(key, info);
    }

    /// Changes the block's overlay.
    pub(crate) fn overlay(
        &mut self,
        key: BlockKey,
        change: impl FnOnce(&mut crate::dirty::Overlay),
    ) {
        let overlay = self.live.entry(key).or_insert_with(|| {
            self.live_bytes += crate::dirty::Overlay::default().memory_bytes();
            crate::dirty::Overlay::default()
        });
        let before = overlay.memory_bytes();
        change(overlay);
        self.live_bytes = self.live_bytes + overlay.memory_bytes() - before;
    }

    /// The overlays of one block.
    pub(crate) fn layers(&self, key: &BlockKey) -> Layers<'_> {
        Layers { live: self.live.get(key), frozen: self.frozen.get(key) }
    }

    /// Whether data read from the disk is what was written.
    pub(crate) fn matches(data: &[u8], checksum: Checksum) -> bool {
        planted::on(Bug::ChecksumNotCompared) || base::crc32c(data) == checksum
    }
}
