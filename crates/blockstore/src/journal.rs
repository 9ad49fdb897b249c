//! Journal of one disk: a ring of sectors with the changes that are not yet in a checkpoint.
//!
//! ```text
//!          head                                 tail
//!   ────────┬───────────┬───────────┬────────────┬────────
//!    free   │  durable  │ in flight │ collecting │  free       counted in lsn; place = lsn % size
//!   ────────┴───────────┴───────────┴────────────┴────────
//! ```
//!
//! Invariants
//!   1. head <= flushed <= written <= tail <= head + size.
//!   2. A request is answered only after its entry, all earlier entries, and all earlier
//!      out-of-line data of its own block (a batch: of its own PG) are durable.
//!   3. An entry is contiguous: if it does not fit before the end of the ring, a pad fills the rest of the
//!      ring.
//!   4. A flush is started only if a request, or the store itself, waits for it. A lazy request is answered
//!      once its entry, all earlier entries, and earlier data of its block are written.
//!   5. The head moves forward only over entries that a durable checkpoint has made unnecessary.

use std::collections::{BTreeMap, VecDeque};

use base::planted::{self, Bug};
use base::{Buffer, BufferPool, Checksum, Lsn, PgId, UNIT_SIZE};
use format::disk::{Area, CommitMode, EntryFlags, EntryHeader, EntryKind, Superblock, UnitSet};

use crate::disk::{Io, Purpose};
use crate::journal_cache::{JournalCache, slice_at};
use crate::{BlockKey, RequestId};

/// Maximum number of journal writes in flight.
const GROUPS_IN_FLIGHT_MAX: usize = 8;
/// A group is closed when it reaches this size, in bytes.
const GROUP_SIZE_MAX: u64 = 1 << 20;
/// Data of at least this size, in bytes, is not copied into the group's buffer.
const COPY_SIZE_MAX: usize = 64 << 10;
/// Journal space that only idle entries may use, in bytes. A checkpoint needs an idle entry, and only a
/// checkpoint trims the journal.
pub const IDLE_RESERVE: u64 = 64 << 10;
/// Maximum number of entries whose out-of-line data is in flight.
pub const LARGE_IN_FLIGHT_MAX: usize = 64;

/// An entry that waits for its group to be written.
struct OpenEntry {
    data_lsn: Lsn,
    /// Size of the entry's header, in bytes. `open_headers` contains the headers in the order of the entries.
    header_size: usize,
    data: Option<Buffer>,
}

/// Entries that are written with one device write.
struct Group {
    start: Lsn,
    end: Lsn,
    stage: GroupStage,
}

enum GroupStage {
    /// Waits for an earlier group.
    Closed(Vec<Buffer>),
    /// Waits for the disk.
    Writing,
    /// Waits for earlier groups to be done.
    Done,
}

/// Out-of-line data of an entry that is not durable yet.
struct Large {
    pg: PgId,
    places: Vec<LargePlace>,
    stage: LargeStage,
    /// Requests that wait for this data to be durable.
    waiters: Vec<Waiter>,
    /// Requests that wait for this data to be written.
    lazy_waiters: Vec<Waiter>,
}

/// Out-of-line data of one block.
pub struct LargePlace {
    pub key: BlockKey,
    pub location: u32,
    /// Where the data begins in the block, in bytes.
    pub offset: u32,
    /// Reads take the data from here; `None`: it is written.
    data: Option<Buffer>,
}

impl LargePlace {
    pub fn new((key, location): (BlockKey, u32), offset: u32, data: Buffer) -> LargePlace {
        LargePlace { key, location, offset, data: Some(data) }
    }

    /// Returns the data while it is being written.
    pub fn data(&self) -> Option<&Buffer> {
        self.data.as_ref()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LargeStage {
    /// Waits for the disk.
    Writing,
    /// Waits for a flush to begin.
    Written,
    /// Waits for a flush to end.
    Flushing,
}

impl Large {
    fn is_of(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Nothing => false,
            Awaited::OfBlock(key) => self.places.iter().any(|place| place.key == key),
            Awaited::OfPg(pg) => self.pg == pg,
        }
    }
}

/// The request that waits for an entry.
#[derive(Clone, Copy)]
pub struct Asker {
    pub id: RequestId,
    /// Whether the request is answered once the entry is written, before the flush.
    pub is_lazy: bool,
}

impl Asker {
    /// Creates the asker of a request that waits until its entry is durable.
    pub fn plain(id: RequestId) -> Asker {
        Asker { id, is_lazy: false }
    }
}

/// The out-of-line data that a request waits for, besides its entry and all earlier ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    Nothing,
    /// That of its entry and of earlier entries of this block.
    OfBlock(BlockKey),
    /// That of its entry and of earlier entries of this PG.
    OfPg(PgId),
}

/// Requests that may be answered.
#[derive(Default)]
pub struct Answers {
    /// Requests whose entries are durable.
    pub durable: Vec<RequestId>,
    /// Lazy requests whose entries are written.
    pub written: Vec<RequestId>,
}

/// A request that waits for its entry to be durable, or written.
struct Waiter {
    id: RequestId,
    lsn: Lsn,
    end: Lsn,
    awaited: Awaited,
}

/// The journal.
pub struct Journal {
    /// The ring on the device.
    area: Area,
    sector_size: u32,
    store_tag: u64,
    commit: CommitMode,
    head: Lsn,
    tail: Lsn,
    /// Checksum of the last entry, for the chain.
    previous: Checksum,
    open: VecDeque<OpenEntry>,
    /// Headers of the open entries, one after another.
    open_headers: Vec<u8>,
    open_start: Lsn,
    groups: VecDeque<Group>,
    written: Lsn,
    flushed: Lsn,
    /// Everything before this will be durable when the flush in flight ends.
    flushing: Option<Lsn>,
    large: BTreeMap<Lsn, Large>,
    waiters: VecDeque<Waiter>,
    lazy_waiters: VecDeque<Waiter>,
    /// Everything before this lsn is to be made durable.
    wanted: Lsn,
    /// Requests, each waiting until everything before an lsn is durable.
    syncs: VecDeque<(Lsn, RequestId)>,
    cache: JournalCache,
    /// The tail right after the last idle entry.
    idle: Lsn,
    /// Until recovery's decisions are durable, entries record no higher durable lsn than this. So if the
    /// entry with the decisions is torn, the next recovery decides from the same facts.
    recorded_max: Option<Lsn>,
}

impl Journal {
    /// Creates a journal that continues at `tail`. Everything before `tail` is durable; the part before
    /// `recorded` is also recorded as durable by an entry.
    pub fn new(
        superblock: &Superblock,
        (head, recorded, tail): (Lsn, Lsn, Lsn),
        previous: Checksum,
        cache_bytes_max: u64,
    ) -> Journal {
        Journal {
            area: superblock.journal,
            sector_size: superblock.sector_size,
            store_tag: superblock.store.tag(),
            commit: superblock.commit,
            head,
            tail,
            previous,
            open: VecDeque::new(),
            open_headers: Vec::new(),
            open_start: tail,
            groups: VecDeque::new(),
            written: tail,
            flushed: tail,
            flushing: None,
            large: BTreeMap::new(),
            waiters: VecDeque::new(),
            lazy_waiters: VecDeque::new(),
            wanted: tail,
            syncs: VecDeque::new(),
            cache: JournalCache::new(cache_bytes_max),
            idle: recorded,
            recorded_max: None,
        }
    }

    /// Limits the durable lsn that entries record, until recovery's decisions are durable.
    pub fn limit_recorded(&mut self, recorded_max: Option<Lsn>) {
        self.recorded_max = recorded_max;
    }

    pub fn tail(&self) -> Lsn {
        self.tail
    }

    /// Returns the checksum of the last entry, for the chain.
    pub fn previous(&self) -> Checksum {
        self.previous
    }

    pub fn size(&self) -> u64 {
        self.area.size
    }

    pub fn used(&self) -> u64 {
        self.tail.since(self.head)
    }

    /// Returns the position of an lsn on the device, in bytes.
    pub fn place(&self, lsn: Lsn) -> u64 {
        self.area.offset + lsn.get() % self.area.size
    }

    /// Returns the bytes from the tail to the end of the ring.
    fn rest_of_ring(&self) -> u64 {
        self.area.size - self.tail.get() % self.area.size
    }

    /// Whether an entry of this kind, without a part table, fits and still leaves `reserve` bytes free.
    pub fn has_room(&self, kind: EntryKind, checksum_count: usize, reserve: u64) -> bool {
        self.has_room_for(EntryHeader::size_of(kind, checksum_count, self.sector_size), reserve)
    }

    /// Whether an entry of this size fits and still leaves `reserve` bytes free.
    pub fn has_room_for(&self, entry_size: u32, reserve: u64) -> bool {
        let size = u64::from(entry_size);
        let rest = self.rest_of_ring();
        let pad = if size > rest { rest } else { 0 };
        self.used() + pad + size + reserve <= self.area.size
    }

    /// Returns the lsn before which everything is durable: entries and their out-of-line data.
    pub fn durable(&self) -> Lsn {
        match self.large.first_key_value() {
            Some((lsn, _)) => (*lsn).min(self.durable_entries()),
            None => self.durable_entries(),
        }
    }

    fn durable_entries(&self) -> Lsn {
        match self.commit {
            CommitMode::Immediate => self.written,
            CommitMode::Fsync => self.flushed,
        }
    }

    pub fn is_immediate(&self) -> bool {
        self.commit == CommitMode::Immediate
    }

    pub fn large_count(&self) -> usize {
        self.large.len()
    }

    /// Appends an entry, and returns its lsn and the lsn where its data begins. Fills in the header's lsn,
    /// size and chain. Requires: there is room.
    pub fn append(&mut self, header: &mut EntryHeader, data: Option<Buffer>) -> (Lsn, Lsn) {
        assert!(header.kind.is_inline() == data.is_some());
        self.append_with(header, &[], data)
    }

    /// Appends an entry with a body, which the header describes; empty for kinds that have none.
    pub fn append_with(
        &mut self,
        header: &mut EntryHeader,
        body: &[u8],
        data: Option<Buffer>,
    ) -> (Lsn, Lsn) {
        let data_size = data.as_ref().map_or(0, |data| data.len());
        assert!(data_size == header.data_size() as usize);
        header.size = header.entry_size(self.sector_size);
        if header.size as u64 > self.rest_of_ring() {
            let size = self.rest_of_ring() as u32;
            let mut pad = EntryHeader { size, ..plain_header(EntryKind::Pad) };
            self.push(&mut pad, &[], None);
            self.close_group();
        }
        let placed = self.push(header, body, data);
        let ends_ring = self.tail.get().is_multiple_of(self.area.size);
        if ends_ring || self.tail.since(self.open_start) >= GROUP_SIZE_MAX {
            self.close_group();
        }
        placed
    }

    fn push(&mut self, header: &mut EntryHeader, body: &[u8], data: Option<Buffer>) -> (Lsn, Lsn) {
        let lsn = self.tail;
        header.lsn = lsn;
        header.previous = self.previous;
        header.durable = self.recorded_max.unwrap_or_else(|| self.durable());
        assert!(header.size as u64 <= self.rest_of_ring());
        assert!(self.used() + header.size as u64 <= self.area.size);
        let header_size = header.header_size(self.sector_size) as usize;
        let (tag, headers) = (self.store_tag, &mut self.open_headers);
        self.previous = match header.kind.has_body() {
            true => header.encode_with_body(body, (tag, header_size), headers),
            false => header.encode(tag, header_size, headers),
        };
        self.tail = lsn.advance(header.size as u64);
        let data_lsn = lsn.advance(header_size as u64);
        self.open.push_back(OpenEntry { data_lsn, header_size, data });
        (lsn, data_lsn)
    }

    /// Turns the collected entries into one group, ready to be written.
    fn close_group(&mut self) {
        if self.open_start == self.tail {
            return;
        }
        let group =
            Group { start: self.open_start, end: self.tail, stage: GroupStage::Closed(Vec::new()) };
        self.groups.push_back(group);
        self.open_start = self.tail;
    }

    /// Closes the group of this turn, and writes closed groups.
    pub fn submit(&mut self, io: &mut Io<'_>) {
        let writing =
            self.groups.iter().filter(|group| matches!(group.stage, GroupStage::Writing)).count();
        if writing < GROUPS_IN_FLIGHT_MAX {
            self.close_group();
        }
        self.write_groups(io);
    }

    /// Writes closed groups, up to the limit of groups in flight.
    pub fn write_groups(&mut self, io: &mut Io<'_>) {
        self.build_groups(io.pool);
        let mut writing = 0;
        for group in &mut self.groups {
            if writing == GROUPS_IN_FLIGHT_MAX {
                break;
            }
            if let GroupStage::Closed(pieces) = &mut group.stage {
                let pieces = std::mem::take(pieces);
                group.stage = GroupStage::Writing;
                let position = group.start.get() % self.area.size;
                assert!(position + group.end.since(group.start) <= self.area.size);
                let offset = self.area.offset + position;
                let durable = self.commit == CommitMode::Immediate;
                io.write(Purpose::Group(group.start), offset, pieces, durable);
            }
            writing += matches!(group.stage, GroupStage::Writing) as usize;
        }
    }

    /// Gathers the bytes of closed groups. Small data is copied here, and only here.
    fn build_groups(&mut self, pool: &BufferPool) {
        let first = self
            .groups
            .iter()
            .rposition(
                |group| !matches!(&group.stage, GroupStage::Closed(pieces) if pieces.is_empty()),
            )
            .map_or(0, |built| built + 1);
        for index in first..self.groups.len() {
            let (start, end) = (self.groups[index].start, self.groups[index].end);
            let count = self.open.partition_point(|entry| entry.data_lsn <= end);
            let pieces = self.gather(start, count, pool);
            self.groups[index].stage = GroupStage::Closed(pieces);
        }
    }

    /// Returns the bytes of the first `count` open entries, which begin at `start`, and removes them from
    /// the open entries.
    fn gather(&mut self, start: Lsn, count: usize, pool: &BufferPool) -> Vec<Buffer> {
        let mut pieces = Vec::new();
        let (mut at, mut next, mut header_at) = (start, 0, 0);
        while next < count {
            // A run of small entries. It ends after the header of an entry whose data becomes a separate
            // piece.
            let mut run: Vec<(&[u8], &[u8])> = Vec::with_capacity(count - next);
            let mut piece = None;
            for entry in self.open.range(next..count) {
                next += 1;
                let header = &self.open_headers[header_at..header_at + entry.header_size];
                header_at += entry.header_size;
                let by_itself = entry.data.as_ref().filter(|data| {
                    data.len() >= COPY_SIZE_MAX && data.is_aligned_to(self.sector_size as usize)
                });
                if let Some(data) = by_itself {
                    run.push((header, &[]));
                    piece = Some(data.clone());
                    break;
                }
                run.push((header, entry.data.as_deref().unwrap_or(&[])));
            }
            let copied = copy_run(&run, pool);
            for piece in [Some(copied), piece].into_iter().flatten() {
                self.cache.push(at, piece.clone());
                at = at.advance(piece.len() as u64);
                pieces.push(piece);
            }
        }
        self.open.drain(..count);
        self.open_headers.drain(..header_at);
        pieces
    }

    /// Returns data of an entry, if it is still in memory. Requires: the range is within one entry.
    pub fn data(&self, lsn: Lsn, size: usize) -> Option<Buffer> {
        let at = self.open.partition_point(|entry| entry.data_lsn <= lsn);
        match at.checked_sub(1).map(|at| &self.open[at]) {
            Some(entry) => slice_at(entry.data_lsn, entry.data.as_ref()?, lsn, size),
            None => self.cache.get(lsn, size),
        }
    }

    /// Records that the out-of-line data of an entry is being written to its places.
    pub fn begin_large(&mut self, lsn: Lsn, pg: PgId, places: Vec<LargePlace>) {
        assert!(self.large.len() < LARGE_IN_FLIGHT_MAX);
        assert!(!places.is_empty());
        let (waiters, lazy_waiters) = (Vec::new(), Vec::new());
        let large = Large { pg, places, stage: LargeStage::Writing, waiters, lazy_waiters };
        let before = self.large.insert(lsn, large);
        assert!(before.is_none(), "an entry has its data written once");
    }

    /// Returns data that is being written to this place, and its offset in the block in bytes.
    pub fn large_data(&self, key: &BlockKey, location: u32) -> Option<(u32, &Buffer)> {
        let writing = self.large.values().filter(|large| large.stage == LargeStage::Writing);
        let mut places = writing.flat_map(|large| &large.places);
        let place = places.find(|place| place.key == *key && place.location == location)?;
        place.data().map(|data| (place.offset, data))
    }

    /// Makes the request wait for its entry at `lsn`, which is the last entry: until it is durable or, if
    /// the request is lazy and flushes are needed, until it is written.
    pub fn wait(&mut self, asker: Asker, lsn: Lsn, awaited: Awaited) {
        let waiter = Waiter { id: asker.id, lsn, end: self.tail, awaited };
        if asker.is_lazy && self.commit == CommitMode::Fsync {
            return self.lazy_waiters.push_back(waiter);
        }
        self.waiters.push_back(waiter);
        self.want_all();
    }

    /// Makes the request wait until everything so far is durable.
    pub fn wait_all(&mut self, id: RequestId) {
        self.syncs.push_back((self.tail, id));
        self.want_all();
    }

    /// Requests that everything so far is made durable as soon as it is written.
    pub fn want_all(&mut self) {
        self.wanted = self.tail;
    }

    /// Whether there are entries for which no flush has been requested.
    pub fn has_unwanted(&self) -> bool {
        self.wanted < self.tail
    }

    /// Handles a finished write of a group.
    pub fn on_group_written(&mut self, start: Lsn) {
        let at = self.groups.partition_point(|group| group.start < start);
        let group = &mut self.groups[at];
        let is_on_its_way = matches!(group.stage, GroupStage::Writing);
        assert!(group.start == start && is_on_its_way, "a group is written once");
        group.stage = GroupStage::Done;
        while let Some(Group { end, stage: GroupStage::Done, .. }) = self.groups.front() {
            assert!(*end > self.written, "groups are written in order");
            self.written = *end;
            self.groups.pop_front();
        }
        assert!(self.written <= self.tail);
        self.cache.shrink(self.written);
    }

    /// Handles a finished write of an entry's out-of-line data to the place with this index.
    pub fn on_large_written(&mut self, lsn: Lsn, index: usize, answers: &mut Answers) {
        let large = self.large.get_mut(&lsn).expect("it was begun");
        let written = large.places[index].data.take();
        assert!(written.is_some(), "it is written once");
        if large.places.iter().any(|place| place.data.is_some()) {
            return;
        }
        match self.commit {
            CommitMode::Immediate => self.large_durable(lsn, answers),
            CommitMode::Fsync => {
                large.stage = LargeStage::Written;
                for waiter in std::mem::take(&mut large.lazy_waiters) {
                    self.answer_lazy_or_wait(waiter, answers);
                }
            }
        }
    }

    /// Answers a lazy request whose entry is written. If earlier data of its block is still being written,
    /// makes the request wait for that.
    fn answer_lazy_or_wait(&mut self, waiter: Waiter, answers: &mut Answers) {
        let mut earlier = self.large.range_mut(..=waiter.lsn).map(|(_, large)| large);
        let is_awaited =
            |large: &&mut Large| large.stage == LargeStage::Writing && large.is_of(waiter.awaited);
        match earlier.find(is_awaited) {
            Some(large) => large.lazy_waiters.push(waiter),
            None => answers.written.push(waiter.id),
        }
    }

    fn large_durable(&mut self, lsn: Lsn, answers: &mut Answers) {
        let large = self.large.remove(&lsn).expect("it was begun");
        for waiter in large.waiters {
            self.answer_or_wait(waiter, answers);
        }
    }

    /// Answers a request whose entry is durable. If data that it awaits is not durable, makes the request
    /// wait for that.
    fn answer_or_wait(&mut self, waiter: Waiter, answers: &mut Answers) {
        let mut earlier = self.large.range_mut(..=waiter.lsn).map(|(_, large)| large);
        let awaited = match planted::on(Bug::LargeDataNotAwaited) {
            true => None,
            false => earlier.find(|large| large.is_of(waiter.awaited)),
        };
        match awaited {
            Some(large) => large.waiters.push(waiter),
            None => answers.durable.push(waiter.id),
        }
    }

    /// Starts a flush, if one was requested and none is in flight.
    pub fn flush(&mut self, io: &mut Io<'_>) {
        let is_wanted = self.durable() < self.wanted;
        if self.commit == CommitMode::Immediate || self.flushing.is_some() || !is_wanted {
            return;
        }
        let mut large = false;
        for waiting in self.large.values_mut() {
            if waiting.stage == LargeStage::Written {
                waiting.stage = LargeStage::Flushing;
                large = true;
            }
        }
        if self.written > self.flushed || large {
            self.flushing = Some(self.written);
            io.flush(Purpose::Flush);
        }
    }

    /// Handles a finished flush.
    pub fn on_flushed(&mut self, answers: &mut Answers) {
        let flushed = self.flushing.take().expect("one flush at a time");
        assert!(flushed >= self.flushed);
        assert!(flushed <= self.written);
        self.flushed = flushed;
        let durable: Vec<Lsn> = self
            .large
            .iter()
            .filter(|(_, large)| large.stage == LargeStage::Flushing)
            .map(|(lsn, _)| *lsn)
            .collect();
        for lsn in durable {
            self.large_durable(lsn, answers);
        }
    }

    /// Collects the requests that may be answered now.
    pub fn answer(&mut self, answers: &mut Answers) {
        let durable = match planted::on(Bug::AckBeforeFlush) {
            true => self.tail,
            false => self.durable_entries(),
        };
        while self.waiters.front().is_some_and(|waiter| waiter.end <= durable) {
            let waiter = self.waiters.pop_front().expect("it was just seen");
            self.answer_or_wait(waiter, answers);
        }
        let durable = self.durable();
        while self.syncs.front().is_some_and(|(lsn, _)| *lsn <= durable) {
            answers.durable.extend(self.syncs.pop_front().map(|(_, id)| id));
        }
        let written = match planted::on(Bug::LazyAckBeforeWrite) {
            true => self.tail,
            false => self.written,
        };
        while self.lazy_waiters.front().is_some_and(|waiter| waiter.end <= written) {
            let waiter = self.lazy_waiters.pop_front().expect("it was just seen");
            self.answer_lazy_or_wait(waiter, answers);
        }
    }

    /// Whether everything is durable, but no entry records this yet.
    pub fn is_idle_unrecorded(&self) -> bool {
        self.durable() == self.tail && self.idle < self.tail
    }

    /// Appends an entry that records the durable lsn. Requires: there is room.
    pub fn append_idle(&mut self) {
        self.append(&mut plain_header(EntryKind::Idle), None);
        self.idle = self.tail;
        self.want_all();
    }

    /// Frees the part of the ring before `head`. Requires: a durable checkpoint holds everything before
    /// `head`.
    pub fn trim(&mut self, head: Lsn) {
        assert!(self.head <= head);
        assert!(head <= self.durable());
        self.head = head;
        self.cache.trim(head);
    }
}

/// Copies headers and data of entries into one buffer, laid out as in the journal.
fn copy_run(run: &[(&[u8], &[u8])], pool: &BufferPool) -> Buffer {
    let size = run.iter().map(|(header, data)| header.len() + data.len()).sum();
    let mut buffer = pool.take(size);
    let mut at = 0;
    for bytes in run.iter().flat_map(|(header, data)| [header, data]) {
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    buffer.freeze()
}

/// Returns the bytes, padded with zeros to whole units, and the checksums of the units.
pub fn padded(bytes: &[u8], pool: &BufferPool) -> (Buffer, Vec<Checksum>) {
    let mut data = pool.take(bytes.len().next_multiple_of(UNIT_SIZE as usize));
    data[..bytes.len()].copy_from_slice(bytes);
    data[bytes.len()..].fill(0);
    let mut checksums = Vec::new();
    base::checksum::checksum_units(&data, &mut checksums);
    (data.freeze(), checksums)
}

/// Returns a header that belongs to no block.
pub fn plain_header(kind: EntryKind) -> EntryHeader {
    EntryHeader {
        kind,
        lsn: Lsn::ZERO,
        previous: Checksum::new(0),
        durable: Lsn::ZERO,
        size: 0,
        key: None,
        block_size: None,
        pg: None,
        version: base::Version::ZERO,
        offset: 0,
        length: 0,
        location: format::disk::LOCATION_NONE,
        units: UnitSet::EMPTY,
        written: UnitSet::EMPTY,
        damaged: UnitSet::EMPTY,
        committed: base::Version::ZERO,
        replaces: None,
        flags: EntryFlags::default(),
        checksums: Vec::new(),
        table: Vec::new(),
        after: base::Version::ZERO,
        body_checksum: Checksum::new(0),
    }
}
