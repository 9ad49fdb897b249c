//! Requests that change the store: admitted in order, journaled, applied to the index at once, and answered
//! when durable.
//!
//! ```text
//!   small:  [entry | data] ──one device write──▶ answer ... written back by the next checkpoint
//!   large:  [entry] and, in parallel, data ──▶ newly allocated place; both durable ──▶ answer
//! ```
//!
//! Live requests and recovery change the store through the same [`Parts::apply`].

use base::{BlockSize, Buffer, Lsn, PgId, PoolId, UNIT_SIZE, Version};
use format::disk::{BlockKey, EntryHeader, EntryKind, LOCATION_NONE, NoteKey, UnitSet, table_size};

use crate::blocks::Change;
use crate::disk::{Io, Purpose};
use crate::index::{BlockInfo, location_of};
use crate::journal::{
    Asker, Awaited, IDLE_RESERVE, LARGE_IN_FLIGHT_MAX, LargePlace, padded, plain_header,
};
use crate::moves::is_own;
use crate::parts::Parts;
use crate::read::{BlockRange, Reads};
use crate::store::Store;
use crate::store::batch::batch_of;
use crate::store::queue::{Line, Waiting, pool_of};
use crate::{Answer, Batch, Effect, NOTE_SIZE_MAX, Page, Request, RequestId, StoreError};

/// Data of at least this size, in bytes, is written directly to its place if it replaces all data of the
/// block.
pub(super) const LARGE_SIZE_MIN: u64 = 64 << 10;
/// Writes leave this fraction (1/n) of the journal free for other requests.
pub(super) const WRITE_RESERVE_SHARE: u64 = 8;
/// Journal kept free for the store itself (idle entries, recovery's decisions), in bytes.
const REQUEST_RESERVE: u64 = 512 << 10;

/// Whether a request is accepted now.
pub(super) enum Admit<P = Plan> {
    /// The request takes effect.
    Now(P),
    /// The request waits for a checkpoint or for operations in flight.
    Wait {
        /// True: only a checkpoint makes room.
        checkpoint: bool,
    },
    /// The request is answered with an error; nothing changes.
    Refuse(StoreError),
}

/// The kinds of entries that a request with data may become.
#[derive(Clone, Copy)]
pub(super) struct EntryKinds {
    /// The kind of the entry if its data is inline.
    pub inline: EntryKind,
    /// The kind of the entry if its data is written to a place.
    pub large: EntryKind,
    /// Size of the part table in the entry, in bytes; 0: the entry has no table.
    pub table_size: usize,
}

impl EntryKinds {
    /// Returns the bytes of the journal that an entry of this kind takes.
    pub fn size_of(&self, kind: EntryKind, unit_count: usize, sector_size: u32) -> u32 {
        EntryHeader::size_with_table(kind, (unit_count, self.table_size), sector_size)
    }

    /// Returns the size of the block's part table after the entry, in bytes.
    pub fn table_size_over(&self, old: Option<BlockInfo>) -> usize {
        let of_old = old.map_or(0, |old| table_size(old.block_size, old.table_rows));
        if self.table_size > 0 { self.table_size } else { of_old }
    }
}

/// How a request is journaled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// No data.
    Plain,
    /// Data in the entry; the block gets a place if it has none.
    Inline,
    /// Data at a newly allocated place.
    Large,
}

impl Store {
    /// Accepts a request, or queues it: it is tried at the end of the event. A read waits only for what
    /// concerns it.
    pub(super) fn on_request(
        &mut self,
        id: RequestId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        assert!(!is_own(id), "these ids are the store's own");
        self.moves.pause(matches!(request, Request::Record));
        let request = match request {
            Request::Commit { pg, upto } => {
                self.parts_mut().commit(pg, upto);
                return effects.push(Effect::Done { id, result: Ok(Answer::Committed) });
            }
            Request::Settle { pg, note, upto } => {
                return self.on_settle(id, (pg, upto), note, effects);
            }
            Request::CheckMetadata { after, page_count } => {
                let parts = self.parts.as_mut().expect("requests come after Opened");
                let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
                return self.metadata.begin(id, after, page_count, parts, io);
            }
            request => request,
        };
        match self.line_of(&request) {
            Some(line) => self.queue.push(line, id, request),
            None => {
                let waits = self.try_request(id, request, effects);
                assert!(waits.is_none(), "a read waits only for changes");
            }
        }
    }

    /// Returns the line in which a request waits. `None`: a read that nothing here concerns.
    fn line_of(&self, request: &Request) -> Option<Line> {
        match request {
            Request::Read { key, .. }
            | Request::Extents { key, .. }
            | Request::Copy { key, .. }
            | Request::Digest { key, .. } => {
                self.queue.line_behind(|queued| changes_block(queued, key))
            }
            Request::Records { pg, .. } => {
                self.queue.line_behind(|queued| is_batch_of(queued, pg.pool))
            }
            // It is behind everything, so it waits where all leave after what came before.
            Request::Record | Request::Batch(_) | Request::Page(_) | Request::Family { .. } => {
                Some(Line::Objects)
            }
            _ => Some(match pool_of(request) {
                Some(pool) if self.is_of_objects(pool) => Line::Objects,
                _ => Line::Others,
            }),
        }
    }

    /// Whether a pool is one of objects: it has a family, or will have one when what waits was accepted.
    fn is_of_objects(&self, pool: PoolId) -> bool {
        self.pending.stage(pool).is_some() || self.queue.has_objects_of(pool)
    }

    /// Accepts requests that wait, as long as there is room.
    pub(super) fn run_queue(&mut self, effects: &mut Vec<Effect>) {
        while let Some(mut waiting) = self.queue.pop(self.engine_takes()) {
            let Waiting { id, request, .. } = waiting;
            if let Some(request) = self.try_request(id, request, effects) {
                waiting.request = request;
                return self.queue.put_back(waiting);
            }
        }
    }

    /// Tries to accept a request. Returns the request if it must wait.
    fn try_request(
        &mut self,
        id: RequestId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        match request {
            Request::Read { key, offset, length, as_of } => {
                let range = BlockRange { key, offset, length, as_of };
                let (parts, reads, mut io) = self.for_reads(effects);
                reads.begin(id, range, parts, &mut io);
                return None;
            }
            Request::Extents { key, as_of } => {
                let (parts, reads, mut io) = self.for_reads(effects);
                reads.begin_extents(id, (key, as_of), parts, &mut io);
                return None;
            }
            Request::Copy { key, units, as_of } => {
                let (parts, reads, mut io) = self.for_reads(effects);
                reads.begin_copy(id, (key, as_of), &units, parts, &mut io);
                return None;
            }
            Request::Digest { key, deep } => {
                let (parts, reads, mut io) = self.for_reads(effects);
                reads.begin_digest(id, key, deep, parts, &mut io);
                return None;
            }
            Request::Repair { pg, key, content } => {
                return self.try_repair(id, pg, key, content, effects);
            }
            Request::Prepare { .. } => return self.try_prepare(id, request, effects),
            Request::Skip { pg, version, lazy } => {
                return self.try_skip(Asker { id, is_lazy: lazy }, pg, version, effects);
            }
            Request::Settle { pg, note, upto } => {
                return self.try_settle(id, (pg, upto), note, effects);
            }
            Request::Batch(batch) => return self.try_batch(id, batch, EntryKind::Batch, effects),
            Request::Page(page) => {
                return self.try_batch(id, batch_of(page), EntryKind::Page, effects);
            }
            Request::Family { pool, compression } => {
                return self.try_family(id, pool, compression, effects);
            }
            Request::Records { pg, queries, from_memory, caches } => {
                self.begin_records(id, pg, queries, (from_memory, caches), effects);
                return None;
            }
            Request::Sync => {
                self.wait_all(id, effects);
                return None;
            }
            Request::Record => {
                let journal = &mut self.parts_mut().journal;
                if journal.durable() < journal.tail() {
                    // The record must also cover entries that are not durable yet: wait for them first.
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
        if self.is_refused(version) {
            effects.push(Effect::Done { id, result: Err(StoreError::Full) });
            return None;
        }
        if version.is_some() && self.has_prepared(&request) {
            effects.push(Effect::Done { id, result: Err(StoreError::Unordered) });
            return None;
        }
        if let Request::Write { block_size, .. } = &request {
            self.want_place(*block_size, effects);
        }
        let old = key_of(&request).and_then(|key| self.parts().blocks.get(&key));
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

    /// Whether a version of this epoch was refused before.
    pub(super) fn is_refused(&self, version: Option<(PgId, Version)>) -> bool {
        version.is_some_and(|(pg, version)| self.refused.get(&pg) == Some(&version.epoch))
    }

    /// Answers a request when everything so far is durable; at once if it already is. A request from the
    /// queue may be accepted after the journal has returned its answers, and no later event might answer it.
    pub(super) fn wait_all(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let journal = &mut self.parts_mut().journal;
        match journal.durable() < journal.tail() {
            true => journal.wait_all(id),
            false => effects.push(Effect::Done { id, result: Ok(Answer::Durable) }),
        }
    }

    /// Makes a request wait for a checkpoint or for operations in flight. Requests a flush of lazy entries,
    /// which both may need.
    pub(super) fn wait_for_room(&mut self, checkpoint: bool) {
        // While the engine holds the head, checkpoints that free nothing would follow each other until the
        // ring has no room for their idle entries.
        let frees = !self.has_memory()
            || self.frees_places()
            || self.parts().blocks.area.holds_places()
            || self.engine_would_free() >= IDLE_RESERVE;
        self.wants_engine_flush |= checkpoint && !frees;
        match checkpoint && frees {
            true => self.want_checkpoint(),
            false => self.parts_mut().journal.want_all(),
        }
    }

    /// Whether places that a request waits for may come by a checkpoint. While the engine holds the head,
    /// places do not count that only wait for their discards: a checkpoint does nothing for them, and takes
    /// room in the ring.
    pub(super) fn frees_places(&self) -> bool {
        self.pending.low().is_none() || self.parts().blocks.area.has_freed()
    }

    /// Requests a checkpoint, and the flush of lazy entries that it needs.
    pub(super) fn want_checkpoint(&mut self) {
        let parts = self.parts_mut();
        parts.wants_checkpoint = true;
        parts.journal.want_all();
    }

    /// Decides whether a request other than a read is accepted now. `old`: the block's entry in the index.
    fn admit(&self, request: &Request, old: Option<BlockInfo>) -> Admit {
        let parts = self.parts();
        let (kind, units) = match request {
            Request::Write { block_size, data, .. } => {
                let length = data.len() as u64;
                let is_all = length == block_size.bytes() || location_of(old) == LOCATION_NONE;
                let kinds = EntryKinds {
                    inline: EntryKind::Write,
                    large: EntryKind::WriteLarge,
                    table_size: 0,
                };
                return self.admit_data(old, *block_size, (is_all, length), kinds);
            }
            Request::Zero { block_size, .. } => {
                if !parts.has_record_room(old, *block_size, (false, 0)) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Zero, 0)
            }
            Request::Delete { .. } => {
                if !parts.has_record_room(old, BlockSize::MIN, (false, 0)) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Delete, 0)
            }
            Request::Note { key, bytes } => {
                let old = parts.notes.get(key).map_or(0, |note| note.len());
                if !parts.record_room().can_change(old as u64, bytes.len() as u64) {
                    return Admit::Refuse(StoreError::Full);
                }
                (EntryKind::Note, bytes.len().div_ceil(UNIT_SIZE as usize))
            }
            _ => (EntryKind::Floor, 0),
        };
        match parts.has_room(kind, units, REQUEST_RESERVE) {
            true => Admit::Now(if units > 0 { Plan::Inline } else { Plan::Plain }),
            false => Admit::Wait { checkpoint: true },
        }
    }

    /// Whether the journal has room for an entry without data.
    pub(super) fn admit_plain(&self, kind: EntryKind) -> Admit {
        self.admit_size(kind, EntryHeader::size_of(kind, 0, self.sector_size()))
    }

    /// Whether the journal has room for an entry of this size, without data.
    pub(super) fn admit_size(&self, kind: EntryKind, entry_size: u32) -> Admit {
        match self.parts().has_room_for((kind, entry_size), REQUEST_RESERVE) {
            true => Admit::Now(Plan::Plain),
            false => Admit::Wait { checkpoint: true },
        }
    }

    /// Decides whether data of `length` bytes is accepted now. `is_all`: the block holds nothing else
    /// afterwards, so the data may go to a new place.
    pub(super) fn admit_data(
        &self,
        old: Option<BlockInfo>,
        size: BlockSize,
        (is_all, length): (bool, u64),
        kinds: EntryKinds,
    ) -> Admit {
        let parts = self.parts();
        let has_place = location_of(old) != LOCATION_NONE;
        // If the file system has no space even for reserved places, the store cannot rely on any space.
        let record = (true, kinds.table_size_over(old));
        if self.disk.has_no_space() || !parts.has_record_room(old, size, record) {
            return Admit::Refuse(StoreError::Full);
        }
        let is_large = length == size.bytes() || length >= LARGE_SIZE_MIN;
        let mut plan = if is_all && is_large { Plan::Large } else { Plan::Inline };
        let needs_place = plan == Plan::Large || !has_place;
        if needs_place && parts.blocks.area.holds_places() {
            return Admit::Wait { checkpoint: true };
        }
        let area = &parts.blocks.area;
        if needs_place && !area.allocator.can_allocate(size) {
            if area.is_reserving() {
                return Admit::Wait { checkpoint: false };
            }
            match (area.freed_bytes() > 0, has_place) {
                (true, _) => return Admit::Wait { checkpoint: true },
                // All space is in segments of other block sizes, or the file system is full: the
                // block keeps its place.
                (false, true) => plan = Plan::Inline,
                (false, false) if self.moves.is_moving(area) => {
                    return Admit::Wait { checkpoint: false };
                }
                (false, false) => return Admit::Refuse(StoreError::Full),
            }
        }
        if plan == Plan::Large && parts.journal.large_count() >= LARGE_IN_FLIGHT_MAX {
            return Admit::Wait { checkpoint: false };
        }
        let kind = if plan == Plan::Large { kinds.large } else { kinds.inline };
        let reserve = parts.journal.size() / WRITE_RESERVE_SHARE;
        let has_memory = self.has_memory();
        let entry_size = kinds.size_of(kind, (length / UNIT_SIZE) as usize, self.sector_size());
        match has_memory && parts.has_room_for((kind, entry_size), reserve) {
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
            | Request::Digest { .. }
            | Request::Repair { .. }
            | Request::Prepare { .. }
            | Request::Skip { .. }
            | Request::Commit { .. }
            | Request::Settle { .. }
            | Request::CheckMetadata { .. }
            | Request::Batch(_)
            | Request::Page(_)
            | Request::Family { .. }
            | Request::Records { .. }
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
        let place = location_of(old);
        let allocator = &mut parts.blocks.area.allocator;
        header.location = match plan == Plan::Large || place == LOCATION_NONE {
            true => allocator.allocate(block_size).expect("admitted only with space"),
            false => place,
        };
        if plan != Plan::Large {
            return self.accept_entry(asker, header, Some(data), old);
        }
        header.kind = EntryKind::WriteLarge;
        self.accept_large(asker, (header, key), data, old, effects);
    }

    /// Journals an entry and, in parallel, writes its data to its newly allocated place.
    pub(super) fn accept_large(
        &mut self,
        asker: Asker,
        (mut header, key): (EntryHeader, BlockKey),
        data: Buffer,
        old: Option<BlockInfo>,
        effects: &mut Vec<Effect>,
    ) {
        assert!(header.location != LOCATION_NONE);
        assert!(header.length as usize == data.len());
        let offset = self.parts().place(header.location) + header.offset as u64;
        assert!(offset + data.len() as u64 <= self.parts().superblock.data.end());
        let lsn = self.journal_entry(&mut header, None, old);
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let data = match data.is_aligned_to(parts.superblock.sector_size as usize) {
            true => data,
            false => self.pool.copy_of(&data),
        };
        let place = LargePlace::new((key, header.location), header.offset, data.clone());
        parts.journal.begin_large(lsn, header.pg.expect("of a block"), vec![place]);
        let awaited = self.awaited(&header);
        let parts = self.parts.as_mut().expect("requests come after Opened");
        parts.journal.wait(asker, lsn, awaited);
        let durable = parts.journal.is_immediate();
        let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
        io.write(Purpose::Large { lsn, index: 0 }, offset, vec![data], durable);
    }

    fn accept_note(&mut self, id: RequestId, key: NoteKey, bytes: &[u8]) {
        let lsn = self.journal_note(key, bytes);
        self.parts_mut().journal.wait(Asker::plain(id), lsn, Awaited::Nothing);
    }

    pub(super) fn journal_note(&mut self, key: NoteKey, bytes: &[u8]) -> Lsn {
        assert!(bytes.len() <= NOTE_SIZE_MAX);
        let (pg, number) = key.parts();
        let (data, checksums) = padded(bytes, &self.pool);
        let length = bytes.len() as u32;
        let mut header =
            EntryHeader { pg, offset: number, length, checksums, ..plain_header(EntryKind::Note) };
        self.journal_entry(&mut header, Some(data), None)
    }

    pub(super) fn accept_entry(
        &mut self,
        asker: Asker,
        mut header: EntryHeader,
        data: Option<Buffer>,
        old: Option<BlockInfo>,
    ) {
        let lsn = self.journal_entry(&mut header, data, old);
        let awaited = self.awaited(&header);
        self.parts_mut().journal.wait(asker, lsn, awaited);
    }

    /// Returns the data that the request of an entry waits for: in an object pool, where all behind a dropped
    /// entry of a PG goes, that of the PG.
    fn awaited(&self, header: &EntryHeader) -> Awaited {
        match header.key.zip(header.pg) {
            Some((_, pg)) if self.pending.stage(pg.pool).is_some() => Awaited::OfPg(pg),
            Some((key, _)) => Awaited::OfBlock(key),
            None => Awaited::Nothing,
        }
    }

    /// Journals a change and applies it. `old`: the block's entry in the index.
    pub(super) fn journal_entry(
        &mut self,
        header: &mut EntryHeader,
        data: Option<Buffer>,
        old: Option<BlockInfo>,
    ) -> Lsn {
        if header.kind.is_versioned() {
            let version = old.map_or(Version::ZERO, |old| old.version);
            assert!(version < header.version, "versions of a block only grow");
        }
        if let Some(pg) = header.pg {
            if header.kind.carries_committed() {
                header.committed = self.parts().pgs.get(pg).committed;
            } else if self.parts().blocks.prepared.is_unsaid(pg) {
                self.say_committed(pg);
            }
        }
        let parts = self.parts_mut();
        let has_note = matches!(header.kind, EntryKind::Note | EntryKind::Settle);
        let note = data.clone().filter(|_| has_note);
        let (lsn, data_lsn) = parts.journal.append(header, data);
        let change = Change { header, old, lsn, data_lsn, bad: UnitSet::EMPTY };
        parts.apply(&change, note.as_deref().unwrap_or(&[]));
        lsn
    }

    pub(super) fn sector_size(&self) -> u32 {
        self.parts().superblock.sector_size
    }

    /// Whether the overlays leave memory for another entry.
    pub(super) fn has_memory(&self) -> bool {
        self.parts().blocks.overlays().memory_bytes() < self.settings.memory_bytes / 2
    }

    /// Splits the store into the parts, the reads, and the I/O context they need.
    pub(super) fn for_reads<'a>(
        &'a mut self,
        effects: &'a mut Vec<Effect>,
    ) -> (&'a mut Parts, &'a mut Reads, Io<'a>) {
        let parts = self.parts.as_mut().expect("requests come after Opened");
        (parts, &mut self.reads, Io { disk: &mut self.disk, pool: &self.pool, effects })
    }

    /// Records that a block of this size may need a place, and reserves space if no place is ready.
    pub(super) fn want_place(&mut self, block_size: BlockSize, effects: &mut Vec<Effect>) {
        if !self.parts_mut().blocks.area.want_place(block_size) {
            self.reserve(effects);
        }
    }
}

pub(super) fn key_of(request: &Request) -> Option<BlockKey> {
    match request {
        Request::Write { key, .. }
        | Request::Zero { key, .. }
        | Request::Delete { key, .. }
        | Request::Prepare { key, .. }
        | Request::Repair { key, .. } => Some(*key),
        _ => None,
    }
}

/// Whether a request changes the block.
fn changes_block(request: &Request, key: &BlockKey) -> bool {
    match request {
        Request::Batch(Batch { blocks, .. }) | Request::Page(Page { blocks, .. }) => {
            blocks.iter().any(|(line, _)| line.key == *key)
        }
        request => key_of(request) == Some(*key),
    }
}

/// Whether a request changes records of the pool.
fn is_batch_of(request: &Request, pool: PoolId) -> bool {
    match request {
        Request::Batch(Batch { pg, .. }) | Request::Page(Page { pg, .. }) => pg.pool == pool,
        Request::Family { pool: of, .. } => *of == pool,
        _ => false,
    }
}

/// Returns the version that a request gives its block, and the PG of that version.
fn version_of(request: &Request) -> Option<(PgId, Version)> {
    match request {
        Request::Write { pg, version, .. }
        | Request::Zero { pg, version, .. }
        | Request::Delete { pg, version, .. } => Some((*pg, *version)),
        _ => None,
    }
}

pub(super) fn block_header(
    kind: EntryKind,
    pg: PgId,
    key: BlockKey,
    version: Version,
) -> EntryHeader {
    EntryHeader { key: Some(key), pg: Some(pg), version, ..plain_header(kind) }
}
