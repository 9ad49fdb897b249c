//! Checkpoints: the state that all entries before an lsn left, written so that the journal before
//! it may go.
//!
//! ```text
//!   begin: live overlays become frozen; new changes go to new overlays
//!     ▼
//!   Durable ─▶ Recorded ─▶ WriteBack ─▶ FlushData ─▶ Leaves ─▶ Streams ─▶ FlushPages ─▶ Root ─▶ FlushRoot ─▶ trim
//! ```
//!
//! Invariants
//!   1. Before everything up to its lsn is durable, and recorded as such, a checkpoint writes
//!      nothing.
//!   2. Data in places is flushed before a page names it; pages before the root names them; the
//!      root before the journal is trimmed and anything is used again.
//!   3. In a place only units are overwritten whose data is still in the journal that would be
//!      replayed after a crash now.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use base::planted::{self, Bug};
use base::{Buffer, Checksum, Lsn, PgId, UNIT_SIZE};
use format::disk::{
    LEAF_CAPACITY, LOCATION_NONE, LeafPage, LeafRecord, LeafWriter, PAGE_SIZE, PageRef, PgRecord,
    Root, STREAM_PAGE_CAPACITY, StoredRecord, StreamPage, StreamRef, UnitSet, encode_notes,
    encode_pgs, encode_ranges,
};

use crate::dirty::{Overlay, UnitState};
use crate::disk::Purpose;
use crate::index::BlockInfo;
use crate::pages::LeafWaiter;
use crate::space::Freed;
use crate::store::{Parts, Store};
use crate::{BlockKey, Effect, NoteKey};

const UNIT: usize = UNIT_SIZE as usize;
/// Blocks written back at once.
const WRITE_BACKS_MAX: usize = 64;
/// Groups of leaves made at once.
const GROUPS_MAX: usize = 16;
/// Page writes in flight at once.
const PAGE_WRITES_MAX: usize = 64;
/// Leaves that are packed together when all are written anew.
const GROUP_LEAVES_WHEN_SPARSE: usize = 8;

/// A checkpoint being made.
pub struct Checkpoint {
    /// Everything before this lsn is in it.
    until: Lsn,
    /// Checksum of the entry before that.
    previous: Checksum,
    sequence: u64,
    pgs: BTreeMap<PgId, PgRecord>,
    notes: BTreeMap<NoteKey, Rc<[u8]>>,
    /// Blocks that it no longer names.
    freed: Vec<Freed>,
    /// Pages that it no longer names.
    pages_freed: Vec<u32>,
    /// Pages of its streams.
    stream_pages: Vec<u32>,
    stage: Stage,
    /// Pages to be written: purpose, number, bytes.
    page_queue: VecDeque<(Purpose, u32, Buffer)>,
    page_writes: usize,
}

/// In the order of time; each says what it waits for.
enum Stage {
    /// Waits until everything before `until` is durable.
    Durable,
    /// Waits until an entry that records this is durable itself. Write-back changes the places of
    /// large writes; recovery must not compare them with what those writes wrote.
    Recorded(Lsn),
    /// Waits for write-back of journal data into the blocks' places.
    WriteBack(WriteBack),
    /// Waits for the flush of the data area.
    FlushData,
    /// Waits for leaves to be read and written.
    Leaves(Leaves),
    /// Waits for the pages of the streams.
    Streams(Streams),
    /// Waits for the flush of all pages.
    FlushPages(Root),
    /// Waits for the write of the root.
    Root(Root),
    /// Waits for the flush of the root.
    FlushRoot(Root),
}

#[derive(Default)]
struct WriteBack {
    /// Blocks to do, sorted by place.
    todo: VecDeque<(u32, BlockKey)>,
    /// Blocks whose journal data is being read.
    reading: BTreeMap<BlockKey, BlockData>,
    writes: usize,
}

/// Journal data of a block, and how many reads it waits for. Units are in no order.
#[derive(Default)]
struct BlockData {
    /// From memory: compared when it came, not again.
    kept: Vec<(u32, Buffer)>,
    /// From the disk: to be compared.
    read: Vec<(u32, Buffer)>,
    missing: usize,
}

#[derive(Default)]
struct Leaves {
    plan: LeafPlan,
    active: BTreeMap<u64, Group>,
    id_last: u64,
}

/// Which leaves are written anew. There may be many, so groups of them are planned one by one.
#[derive(Default)]
struct LeafPlan {
    /// Leaves of keys before it are planned, if any are.
    from: Option<BlockKey>,
    /// All leaves: they are sparse. Else those with frozen blocks.
    is_all: bool,
    /// All are planned.
    is_done: bool,
}

/// The streams being written. The directory may be long: it is written from its end, since each page
/// names the next, a bounded number of pages at once.
struct Streams {
    /// Names what is written of the directory so far.
    root: Root,
    /// Bytes of the directory in front of that.
    rest: u64,
    /// The last leaf in them.
    until: Bound<BlockKey>,
}

/// Neighbouring leaves that are written anew together.
struct Group {
    /// Keys from here (`None`: from the first) ...
    lower: Option<BlockKey>,
    /// ... to before here (`None`: to the last).
    upper: Option<BlockKey>,
    old: Vec<(BlockKey, PageRef)>,
    /// Content of the old leaves; `None` inside: damaged.
    content: BTreeMap<u32, Option<Rc<LeafPage>>>,
    new: Vec<(BlockKey, PageRef, Rc<LeafPage>)>,
    writes: usize,
}

impl Store {
    /// Begins a checkpoint if it is time, and moves the one being made.
    pub(crate) fn checkpoint_settle(&mut self, effects: &mut Vec<Effect>) {
        if self.checkpoint_due() {
            self.parts_mut().begin_checkpoint();
        }
        while let Some(mut checkpoint) = self.parts_mut().checkpoint.take() {
            let has_moved = self.step(&mut checkpoint, effects);
            self.write_pages(&mut checkpoint, effects);
            self.parts_mut().checkpoint = Some(checkpoint);
            if !has_moved {
                break;
            }
        }
        let Store { parts, disk, .. } = self;
        parts.as_mut().expect("it is open").discard(disk, effects);
    }

    fn checkpoint_due(&self) -> bool {
        let parts = self.parts();
        if parts.checkpoint.is_some() {
            return false;
        }
        let journal_max = self.settings.checkpoint_after_bytes.min(parts.journal.size() / 2);
        parts.wants_checkpoint
            || parts.lacks_places()
            || self.gives_back_at().is_some_and(|at| at <= self.now)
            || parts.journal.used() > journal_max
            || parts.live_bytes > self.settings.memory_bytes / 4
    }

    /// Moves on if what the stage waits for is done; true if it did and may move on again.
    fn step(&mut self, checkpoint: &mut Checkpoint, effects: &mut Vec<Effect>) -> bool {
        match &mut checkpoint.stage {
            Stage::Durable => {
                if self.parts().journal.durable() < checkpoint.until {
                    return false;
                }
                let journal = &mut self.parts_mut().journal;
                journal.append_idle();
                checkpoint.stage = Stage::Recorded(journal.tail());
                false
            }
            Stage::Recorded(recorded) => {
                if self.parts().journal.durable() < *recorded {
                    return false;
                }
                if planted::on(Bug::TrimBeforeCheckpoint) {
                    self.parts_mut().journal.trim(checkpoint.until);
                }
                checkpoint.stage = Stage::WriteBack(self.parts().plan_write_back());
                true
            }
            Stage::WriteBack(work) => {
                self.write_back(work, effects);
                if work.todo.is_empty() && work.reading.is_empty() && work.writes == 0 {
                    self.disk.flush(Purpose::FlushData, effects);
                    checkpoint.stage = Stage::FlushData;
                }
                false
            }
            Stage::Leaves(_) => self.step_leaves(checkpoint, effects),
            Stage::Streams(_) => self.step_streams(checkpoint, effects),
            // These move when their one operation ends.
            Stage::FlushData | Stage::FlushPages(_) | Stage::Root(_) | Stage::FlushRoot(_) => false,
        }
    }

    /// An operation of the checkpoint ended well.
    pub(crate) fn checkpoint_done(&mut self, purpose: Purpose, effects: &mut Vec<Effect>) {
        let mut checkpoint = self.parts_mut().checkpoint.take().expect("its operation ended");
        match (&mut checkpoint.stage, purpose) {
            (Stage::WriteBack(work), Purpose::WriteBack) => work.writes -= 1,
            (Stage::FlushData, Purpose::FlushData) => {
                let is_all = self.parts().pages.is_sparse();
                let plan = LeafPlan { is_all, ..LeafPlan::default() };
                checkpoint.stage = Stage::Leaves(Leaves { plan, ..Leaves::default() });
            }
            (Stage::Leaves(leaves), Purpose::LeafWrite(id)) => {
                checkpoint.page_writes -= 1;
                let group = leaves.active.get_mut(&id).expect("its page was written");
                group.writes -= 1;
                if group.writes == 0 {
                    let group = leaves.active.remove(&id).expect("it was just seen");
                    self.parts_mut().replace_leaves(&mut checkpoint.pages_freed, group);
                }
            }
            (Stage::Streams(_), Purpose::StreamWrite) => checkpoint.page_writes -= 1,
            (Stage::FlushPages(root), Purpose::FlushPages) => {
                let root = root.clone();
                let parts = self.parts.as_ref().expect("it is open");
                let bytes = self.pool.copy_of(&root.encode(parts.superblock.store.tag()));
                let place = parts.root_place(root.sequence);
                self.disk.write(Purpose::RootWrite, place, vec![bytes], true, effects);
                checkpoint.stage = Stage::Root(root);
            }
            (Stage::Root(root), Purpose::RootWrite) => {
                self.disk.flush(Purpose::FlushRoot, effects);
                checkpoint.stage = Stage::FlushRoot(root.clone());
            }
            (Stage::FlushRoot(root), Purpose::FlushRoot) => {
                let root = root.clone();
                return self.parts_mut().finish_checkpoint(checkpoint, root);
            }
            (_, purpose) => unreachable!("{purpose:?} does not belong to this stage"),
        }
        self.parts_mut().checkpoint = Some(checkpoint);
    }

    /// Writes journal data back, a bounded number of blocks at once.
    fn write_back(&mut self, work: &mut WriteBack, effects: &mut Vec<Effect>) {
        while work.writes + work.reading.len() < WRITE_BACKS_MAX {
            let Some((_, key)) = work.todo.pop_front() else { return };
            let data = self.collect(key, effects);
            match data.missing {
                0 => work.writes += self.write_block(key, data, effects),
                _ => {
                    work.reading.insert(key, data);
                }
            }
        }
    }

    /// Journal data of a frozen block: from memory, else read in runs.
    fn collect(&mut self, key: BlockKey, effects: &mut Vec<Effect>) -> BlockData {
        let parts = self.parts.as_ref().expect("it is open");
        let mut data = BlockData::default();
        let mut run: Option<(u32, Lsn, usize)> = None;
        for (unit, state) in parts.frozen[&key].iter() {
            let UnitState::Journal(_, lsn) = state else { continue };
            if let Some(bytes) = parts.journal.data(lsn, UNIT) {
                data.kept.push((unit, bytes));
                continue;
            }
            match &mut run {
                Some((first, from, count))
                    if *first + *count as u32 == unit
                        && from.advance((*count * UNIT) as u64) == lsn =>
                {
                    *count += 1;
                }
                _ => {
                    let before = run.replace((unit, lsn, 1));
                    data.missing += before.is_some() as usize;
                    self.disk.read_run(&self.pool, &parts.journal, key, before, effects);
                }
            }
        }
        data.missing += run.is_some() as usize;
        self.disk.read_run(&self.pool, &parts.journal, key, run, effects);
        data
    }

    /// Journal data of a block to be written back was read.
    pub(crate) fn write_back_read(
        &mut self,
        key: BlockKey,
        unit: u32,
        buffer: &Buffer,
        effects: &mut Vec<Effect>,
    ) {
        let mut checkpoint = self.parts_mut().checkpoint.take().expect("it asked for the data");
        let Stage::WriteBack(work) = &mut checkpoint.stage else {
            unreachable!("the stage waits for its reads")
        };
        let data = work.reading.get_mut(&key).expect("its data was being read");
        data.missing -= 1;
        for index in 0..buffer.len() / UNIT {
            let bytes = buffer.slice(index * UNIT..(index + 1) * UNIT);
            data.read.push((unit + index as u32, bytes));
        }
        if data.missing == 0 {
            let data = work.reading.remove(&key).expect("it was just seen");
            work.writes += self.write_block(key, data, effects);
        }
        self.parts_mut().checkpoint = Some(checkpoint);
    }

    /// Writes journal data of a block to its place, in runs of units. A unit whose data is lost
    /// becomes damaged.
    fn write_block(&mut self, key: BlockKey, data: BlockData, effects: &mut Vec<Effect>) -> usize {
        let parts = self.parts.as_mut().expect("it is open");
        let location = parts.frozen_info(&key).expect("it has a place").location;
        let place = parts.place(location);
        let units = parts.whole_units(key, data);
        let mut count = 0;
        for run in units.chunk_by(|before, next| before.0 + 1 == next.0) {
            let offset = place + run[0].0 as u64 * UNIT_SIZE;
            let buffers = run.iter().map(|(_, bytes)| bytes.clone()).collect();
            self.disk.write(Purpose::WriteBack, offset, buffers, false, effects);
            count += 1;
        }
        count
    }

    /// Loads, builds and writes groups of leaves; when all are done, begins the streams.
    fn step_leaves(&mut self, checkpoint: &mut Checkpoint, effects: &mut Vec<Effect>) -> bool {
        let Stage::Leaves(leaves) = &mut checkpoint.stage else { unreachable!("asked for leaves") };
        while leaves.active.len() < GROUPS_MAX {
            let Some(group) = self.parts().next_group(&mut leaves.plan) else { break };
            leaves.id_last += 1;
            let id = leaves.id_last;
            leaves.active.insert(id, group);
            self.load_group(id, leaves.active.get_mut(&id).expect("just put in"), effects);
        }
        let loaded: Vec<u64> = leaves
            .active
            .iter()
            .filter(|(_, group)| group.is_loaded() && group.writes == 0)
            .map(|(id, _)| *id)
            .collect();
        for id in loaded {
            let parts = self.parts.as_mut().expect("it is open");
            let group = leaves.active.get_mut(&id).expect("it is active");
            let pages = parts.build_group(group, checkpoint.sequence, &mut checkpoint.freed);
            let Some(pages) = pages else {
                self.stop_full(effects);
                return false;
            };
            group.writes = pages.len();
            if pages.is_empty() {
                let group = leaves.active.remove(&id).expect("it is active");
                parts.replace_leaves(&mut checkpoint.pages_freed, group);
            }
            for (page, leaf) in pages {
                let bytes = self.pool.copy_of(leaf.bytes());
                checkpoint.page_queue.push_back((Purpose::LeafWrite(id), page, bytes));
            }
        }
        if !leaves.plan.is_done {
            return leaves.active.len() < GROUPS_MAX;
        }
        if !leaves.active.is_empty() {
            return false;
        }
        self.begin_streams(checkpoint, effects)
    }

    fn load_group(&mut self, id: u64, group: &mut Group, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_mut().expect("it is open");
        for (_, page) in &group.old {
            if let Some(leaf) = parts.pages.cached(*page) {
                group.content.insert(page.page, Some(leaf));
            } else if parts.pages.wait(*page, LeafWaiter::Group(id)) {
                let purpose = Purpose::Leaf { page: page.page, checksum: page.checksum };
                let offset = parts.page_place(page.page);
                self.disk.read(&self.pool, purpose, offset, PAGE_SIZE, effects);
            }
        }
    }

    /// A leaf that a group waits for was read; `None`: it is damaged.
    pub(crate) fn leaf_loaded(
        &mut self,
        id: u64,
        page: u32,
        leaf: Option<Rc<LeafPage>>,
        _effects: &mut Vec<Effect>,
    ) {
        let checkpoint = self.parts_mut().checkpoint.as_mut().expect("it waits for the leaf");
        let Stage::Leaves(leaves) = &mut checkpoint.stage else {
            unreachable!("the stage waits for its reads")
        };
        let group = leaves.active.get_mut(&id).expect("it waits for the leaf");
        group.content.insert(page, leaf);
    }

    fn begin_streams(&mut self, checkpoint: &mut Checkpoint, effects: &mut Vec<Effect>) -> bool {
        let parts = self.parts.as_mut().expect("it is open");
        let notes = checkpoint.notes.iter().map(|(key, note)| (key, &note[..]));
        let discards = encode_ranges(&parts.segments_to_discard(&checkpoint.freed));
        let streams = [encode_pgs(checkpoint.pgs.iter()), encode_notes(notes), discards];
        let mut refs = [StreamRef::EMPTY; 3];
        for (stream, named) in streams.iter().zip(&mut refs) {
            let count = stream.len().div_ceil(STREAM_PAGE_CAPACITY);
            let numbers: Option<Vec<u32>> = (0..count).map(|_| parts.pages.allocate()).collect();
            let Some(numbers) = numbers else {
                self.stop_full(effects);
                return false;
            };
            let tag = parts.superblock.store.tag();
            let (pages, at) = StreamPage::encode_all(stream, &numbers, tag, checkpoint.sequence);
            *named = at;
            for (bytes, page) in pages.iter().zip(&numbers) {
                let bytes = self.pool.copy_of(bytes);
                checkpoint.page_queue.push_back((Purpose::StreamWrite, *page, bytes));
            }
            checkpoint.stream_pages.extend(numbers);
        }
        let [pgs, notes, discards] = refs;
        let root = Root {
            sequence: checkpoint.sequence,
            replay: checkpoint.until,
            previous: checkpoint.previous,
            directory: StreamRef::EMPTY,
            pgs,
            notes,
            discards,
        };
        let rest = parts.pages.directory_size();
        checkpoint.stage = Stage::Streams(Streams { root, rest, until: Bound::Unbounded });
        true
    }

    /// Makes pages of the directory while few wait to be written; when all are written, flushes.
    fn step_streams(&mut self, checkpoint: &mut Checkpoint, effects: &mut Vec<Effect>) -> bool {
        let Checkpoint { stage: Stage::Streams(streams), page_queue, .. } = checkpoint else {
            unreachable!("asked for streams")
        };
        let parts = self.parts.as_mut().expect("it is open");
        let tag = parts.superblock.store.tag();
        while streams.rest > 0 && checkpoint.page_writes + page_queue.len() < PAGE_WRITES_MAX {
            let Some(page) = parts.pages.allocate() else {
                self.stop_full(effects);
                return false;
            };
            let chunk = parts.pages.directory_page(streams.rest, &mut streams.until);
            let next = streams.root.directory;
            let (bytes, at) = StreamPage::encode(&chunk, page, next, tag, checkpoint.sequence);
            streams.root.directory = at;
            streams.rest -= chunk.len() as u64;
            checkpoint.stream_pages.push(page);
            page_queue.push_back((Purpose::StreamWrite, page, self.pool.copy_of(&bytes)));
        }
        if checkpoint.page_writes == 0 && page_queue.is_empty() {
            self.disk.flush(Purpose::FlushPages, effects);
            checkpoint.stage = Stage::FlushPages(streams.root.clone());
        }
        false
    }

    fn stop_full(&mut self, effects: &mut Vec<Effect>) {
        let reason = "the checkpoint area is full, which its accounting should have prevented: this \
                      is a bug; the data is safe in the journal, a newer program can open it";
        self.stop(reason.to_owned(), effects);
    }

    /// Writes waiting pages, while few are in flight.
    fn write_pages(&mut self, checkpoint: &mut Checkpoint, effects: &mut Vec<Effect>) {
        while checkpoint.page_writes < PAGE_WRITES_MAX {
            let Some((purpose, page, bytes)) = checkpoint.page_queue.pop_front() else { return };
            checkpoint.page_writes += 1;
            let place = self.parts().page_place(page);
            self.disk.write(purpose, place, vec![bytes], false, effects);
        }
    }
}

impl crate::disk::Disk {
    /// Reads a run of journal data of a block: (first unit, lsn, count).
    fn read_run(
        &mut self,
        pool: &base::BufferPool,
        journal: &crate::journal::Journal,
        key: BlockKey,
        run: Option<(u32, Lsn, usize)>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some((unit, lsn, count)) = run {
            let purpose = Purpose::WriteBackRead { key, unit };
            self.read(pool, purpose, journal.place(lsn), count * UNIT, effects);
        }
    }
}

impl Group {
    fn is_loaded(&self) -> bool {
        self.content.len() == self.old.len()
    }

    fn range(&self) -> (Bound<BlockKey>, Bound<BlockKey>) {
        (
            self.lower.map_or(Bound::Unbounded, Bound::Included),
            self.upper.map_or(Bound::Unbounded, Bound::Excluded),
        )
    }
}

impl Parts {
    /// Freezes what changed so far.
    pub(crate) fn begin_checkpoint(&mut self) {
        assert!(self.frozen.is_empty());
        self.wants_checkpoint = false;
        self.gives_back = false;
        self.frozen = std::mem::take(&mut self.live);
        self.frozen_bytes = std::mem::take(&mut self.live_bytes);
        self.drop_tombstones();
        self.journal.want_all();
        self.checkpoint = Some(Box::new(Checkpoint {
            until: self.journal.tail(),
            previous: self.journal.previous(),
            sequence: self.root.sequence + 1,
            pgs: self.pgs.clone(),
            notes: self.notes.clone(),
            freed: std::mem::take(&mut self.freed),
            pages_freed: Vec::new(),
            stream_pages: Vec::new(),
            stage: Stage::Durable,
            page_queue: VecDeque::new(),
            page_writes: 0,
        }));
    }

    /// Tombstones up to the floor of their PG leave the index, and the checkpoint.
    fn drop_tombstones(&mut self) {
        let floors: Vec<(PgId, base::Version)> =
            self.pgs.iter().map(|(pg, record)| (*pg, record.floor)).collect();
        for (pg, floor) in floors {
            let keys: Vec<BlockKey> = self.index.tombstones_up_to(pg, floor).collect();
            for key in keys {
                let frozen = self.frozen.entry(key).or_default();
                frozen.reset();
                frozen.info = Some(None);
                self.index.set(key, None);
            }
        }
    }

    /// What the index said of a frozen block when the checkpoint began.
    fn frozen_info(&self, key: &BlockKey) -> Option<BlockInfo> {
        match self.frozen.get(key).and_then(|overlay| overlay.info) {
            Some(info) => info,
            None => self.index.get(key),
        }
    }

    fn plan_write_back(&self) -> WriteBack {
        let mut todo: Vec<(u32, BlockKey)> = self
            .frozen
            .iter()
            .filter(|(_, overlay)| overlay.has_journal_data())
            .filter_map(|(key, _)| Some((self.frozen_info(key)?.location, *key)))
            .collect();
        todo.sort_unstable();
        assert!(todo.iter().all(|(location, _)| *location != LOCATION_NONE));
        WriteBack { todo: todo.into(), ..WriteBack::default() }
    }

    /// Journal data of a frozen block in the order of units; what was read is compared. Units whose
    /// data is lost become damaged.
    fn whole_units(&mut self, key: BlockKey, data: BlockData) -> Vec<(u32, Buffer)> {
        let BlockData { kept: mut units, read, missing } = data;
        assert!(missing == 0);
        let overlay = self.frozen.get_mut(&key).expect("it is frozen");
        let expected = overlay.journal_units_count();
        if units.len() == expected {
            return units;
        }
        units.extend(read.into_iter().filter(|(unit, bytes)| match overlay.get(*unit) {
            Some(UnitState::Journal(checksum, _)) => Parts::matches(bytes, checksum),
            _ => unreachable!("only journal data is read"),
        }));
        units.sort_unstable_by_key(|(unit, _)| *unit);
        if units.len() < expected {
            let is_lost = |(unit, state): (u32, UnitState)| {
                let is_whole = units.binary_search_by_key(&unit, |(unit, _)| *unit).is_ok();
                (matches!(state, UnitState::Journal(..)) && !is_whole).then_some(unit)
            };
            let mut lost = UnitSet::EMPTY;
            overlay.iter().filter_map(is_lost).for_each(|unit| lost.insert(unit));
            lost.iter().for_each(|unit| overlay.set(unit, UnitState::Damaged));
            self.found_damaged(key, lost);
        }
        units
    }

    /// The next leaves to be written anew. Those before them may have been replaced meanwhile, and
    /// none behind.
    fn next_group(&self, plan: &mut LeafPlan) -> Option<Group> {
        let directory = self.pages.directory();
        let range = (plan.from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        // A key before all leaves belongs to the first.
        let mut first = directory.range(range).next().map(|(first, _)| *first);
        if !plan.is_all {
            let frozen = self.frozen.range(range).next().map(|(key, _)| *key);
            plan.is_done = plan.is_done || frozen.is_none();
            let leaf = frozen.and_then(|key| self.pages.leaf_of(&key));
            first = leaf.map(|(first, _)| first).or(first);
        }
        if plan.is_done {
            return None;
        }
        let count = if plan.is_all { GROUP_LEAVES_WHEN_SPARSE } else { 1 };
        let mut leaves = first.into_iter().flat_map(|first| directory.range(first..));
        let old = leaves.by_ref().take(count).map(|(first, page)| (*first, *page)).collect();
        let lower = plan.from;
        plan.from = leaves.next().map(|(next, _)| *next);
        plan.is_done = plan.from.is_none();
        Some(Group {
            lower,
            upper: plan.from,
            old,
            content: BTreeMap::new(),
            new: Vec::new(),
            writes: 0,
        })
    }

    /// The new pages of a group: number and content. `None`: the area is full.
    fn build_group(
        &mut self,
        group: &mut Group,
        sequence: u64,
        freed: &mut Vec<Freed>,
    ) -> Option<Vec<(u32, Rc<LeafPage>)>> {
        let mut lost = BTreeMap::new();
        for (index, (first, page)) in group.old.iter().enumerate() {
            if group.content[&page.page].is_none() {
                let next = group.old.get(index + 1).map(|(next, _)| *next).or(group.upper);
                lost.insert(page.page, self.records_of_lost_leaf(*first, next));
            }
        }
        let lost_keys: BTreeSet<BlockKey> =
            lost.values().flatten().map(|record| record.key).collect();
        let mut frozen: VecDeque<BlockKey> =
            self.frozen.range(group.range()).map(|(key, _)| *key).collect();
        let mut records: Vec<NewRecord> = Vec::new();
        let old = group.old.iter().flat_map(|(_, page)| {
            let kept = group.content[&page.page].iter();
            let kept = kept.flat_map(|leaf| leaf.records().map(NewRecord::Kept));
            kept.chain(lost.remove(&page.page).unwrap_or_default().into_iter().map(NewRecord::Made))
        });
        for record in old {
            let key = record.key();
            while let Some(new) = frozen.pop_front_if(|frozen| *frozen < key) {
                records.extend(self.merge(new, None, freed).map(NewRecord::Made));
            }
            match frozen.pop_front_if(|frozen| *frozen == key) {
                Some(_) => {
                    let merged = self.merge(key, record.kept(), freed);
                    records.extend(merged.map(NewRecord::Made));
                }
                None => records.push(record),
            }
        }
        for new in frozen {
            records.extend(self.merge(new, None, freed).map(NewRecord::Made));
        }
        for record in &records {
            if let NewRecord::Made(record) = record
                && lost_keys.contains(&record.key)
            {
                self.found_lost(record);
            }
        }
        let tag = self.superblock.store.tag();
        let mut pages = Vec::new();
        for records in pack(&records) {
            let page = self.pages.allocate()?;
            let mut writer = LeafWriter::new(tag, sequence, page);
            for record in records {
                match record {
                    NewRecord::Kept(record) => writer.keep(*record),
                    NewRecord::Made(record) => writer.put(record),
                }
            }
            let (leaf, named) = writer.finish();
            let leaf = Rc::new(leaf);
            pages.push((page, leaf.clone()));
            group.new.push((records[0].key(), named, leaf));
        }
        Some(pages)
    }

    /// What can be said of the blocks of a leaf that is damaged: their data is lost.
    fn records_of_lost_leaf(&self, first: BlockKey, next: Option<BlockKey>) -> Vec<LeafRecord> {
        self.index
            .iter_from(first)
            .take_while(|(key, _)| next.is_none_or(|next| *key < next))
            .filter(|(key, _)| !self.live.get(key).is_some_and(|overlay| overlay.is_fresh))
            .map(|(key, info)| self.record(key, info, UnitState::Damaged))
            .collect()
    }

    /// The record of a block says what its lost leaf cost; what was written since is not lost.
    fn found_lost(&mut self, record: &LeafRecord) {
        let mut lost = record.damaged;
        if let Some(live) = self.live.get(&record.key) {
            record.damaged.iter().filter(|unit| live.get(*unit).is_some()).for_each(|unit| {
                lost.remove(unit);
            });
        }
        if !lost.is_empty() {
            self.found_damaged(record.key, lost);
        }
    }

    /// The record of a frozen block: what its leaf said, changed by its overlay.
    fn merge(
        &mut self,
        key: BlockKey,
        base: Option<StoredRecord<'_>>,
        freed: &mut Vec<Freed>,
    ) -> Option<LeafRecord> {
        let info = self.frozen_info(&key)?;
        let overlay: &Overlay = &self.frozen[&key];
        let mut record = match base {
            Some(base) if !overlay.is_fresh && info.location != LOCATION_NONE => LeafRecord {
                pg: info.pg,
                version: info.version,
                tombstone: info.tombstone,
                location: info.location,
                ..LeafRecord::from(base)
            },
            // A new block's overlay is fresh: this one's leaf is lost.
            None if !overlay.is_fresh => self.record(key, info, UnitState::Damaged),
            _ => self.record(key, info, UnitState::Zero),
        };
        if info.location != LOCATION_NONE {
            overlay.iter().for_each(|(unit, state)| set_unit(&mut record, unit, state));
        }
        let is_empty = record.location != LOCATION_NONE && record.written.is_empty();
        if !is_empty || self.live.contains_key(&key) {
            return Some(record);
        }
        // All of it was zeroed piece by piece: its place goes with this checkpoint.
        freed.push(Freed { location: info.location, block_size: info.block_size, discard: true });
        self.count_freed(info.block_size, true);
        let info = BlockInfo { location: LOCATION_NONE, ..info };
        self.set_info(key, self.index.get(&key), Some(info));
        self.rotten.remove(&key);
        Some(self.record(key, info, UnitState::Zero))
    }

    /// The record of a block whose units are all in one state.
    fn record(&self, key: BlockKey, info: BlockInfo, state: UnitState) -> LeafRecord {
        let mut record = LeafRecord {
            key,
            pg: info.pg,
            version: info.version,
            block_size: info.block_size,
            tombstone: info.tombstone,
            location: info.location,
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            checksums: Vec::new(),
        };
        if info.location != LOCATION_NONE {
            let units = info.block_size.unit_count();
            record.checksums = vec![Checksum::new(0); units as usize];
            (0..units).for_each(|unit| set_unit(&mut record, unit, state));
        }
        record
    }

    /// A group's new leaves are on the disk: the directory names them.
    fn replace_leaves(&mut self, pages_freed: &mut Vec<u32>, group: Group) {
        for (first, page) in &group.old {
            self.pages.set_leaf(*first, None);
            // What could not be read is not used again while the store runs.
            if group.content[&page.page].is_some() {
                pages_freed.push(page.page);
            }
        }
        for (first, page, leaf) in group.new {
            self.pages.set_leaf(first, Some(page));
            self.pages.keep(page, leaf);
        }
    }

    /// The root is durable: everything that only older roots named is free.
    fn finish_checkpoint(&mut self, checkpoint: Box<Checkpoint>, root: Root) {
        self.holds_places = false;
        self.journal.trim(checkpoint.until);
        self.root = root;
        self.frozen.clear();
        self.frozen_bytes = 0;
        let old_streams = std::mem::replace(&mut self.stream_pages, checkpoint.stream_pages);
        for page in checkpoint.pages_freed.into_iter().chain(old_streams) {
            self.pages.release(page);
        }
        self.release_freed(checkpoint.freed);
    }
}

/// A record of a new leaf.
enum NewRecord<'a> {
    /// As an old leaf says.
    Kept(StoredRecord<'a>),
    /// Changed or new.
    Made(LeafRecord),
}

impl<'a> NewRecord<'a> {
    fn key(&self) -> BlockKey {
        match self {
            NewRecord::Kept(record) => record.key(),
            NewRecord::Made(record) => record.key,
        }
    }

    fn size(&self) -> usize {
        match self {
            NewRecord::Kept(record) => record.size(),
            NewRecord::Made(record) => record.size(),
        }
    }

    fn kept(self) -> Option<StoredRecord<'a>> {
        match self {
            NewRecord::Kept(record) => Some(record),
            NewRecord::Made(_) => None,
        }
    }
}

/// Changes what a record says of a unit. Requires: the record has a location.
fn set_unit(record: &mut LeafRecord, unit: u32, state: UnitState) {
    record.written.insert(unit);
    record.damaged.remove(unit);
    match state {
        UnitState::Zero => record.written.remove(unit),
        UnitState::Place(checksum) | UnitState::Journal(checksum, _) => {
            record.checksums[unit as usize] = checksum;
        }
        UnitState::Damaged => record.damaged.insert(unit),
    }
}

/// Cuts records into leaves of about equal fill.
fn pack<'a, 'b>(records: &'b [NewRecord<'a>]) -> Vec<&'b [NewRecord<'a>]> {
    let total: usize = records.iter().map(NewRecord::size).sum();
    let count = total.div_ceil(LEAF_CAPACITY).max(1);
    let wanted = total.div_ceil(count);
    let mut leaves = Vec::new();
    let (mut start, mut filled) = (0, 0);
    for (index, record) in records.iter().enumerate() {
        if index > start && (filled + record.size() > LEAF_CAPACITY || filled >= wanted) {
            leaves.push(&records[start..index]);
            (start, filled) = (index, 0);
        }
        filled += record.size();
    }
    if start < records.len() {
        leaves.push(&records[start..]);
    }
    leaves
}
