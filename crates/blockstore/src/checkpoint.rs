//! Checkpoints: the state after all entries before an lsn, written so that the journal before that lsn can
//! be freed.
//!
//! ```text
//!   gather: reads data of old prepared versions
//!     ▼
//!   begin: journals copies of old prepared versions, and what PGs have committed; freezes the live overlays;
//!     │    new changes go to new overlays
//!     ▼
//!   Durable ─▶ Recorded ─▶ WriteBack ─▶ FlushData ─▶ Leaves ─▶ Streams ─▶ FlushPages ─▶ Root ─▶ FlushRoot ─▶ trim
//! ```
//!
//! Invariants
//!   1. A checkpoint writes nothing before everything up to its lsn is durable and recorded as durable.
//!   2. Data in places is flushed before a page that refers to it is written; pages are flushed before the
//!      root; the root is flushed before the journal is trimmed and freed space is reused.
//!   3. Write-back overwrites only units whose new data is still in the journal, so a crash at any moment is
//!      repaired by replay.

mod copies;
mod leaf_groups;
mod write_back;

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use base::planted::{self, Bug};
use base::{Buffer, BufferPool, Checksum, Lsn};
use format::disk::{
    BlockKey, LeafPage, Root, STREAM_PAGE_CAPACITY, StreamPage, StreamRef, encode_families,
    encode_notes, encode_pgs, encode_ranges,
};

pub use crate::checkpoint::copies::Gather;
use crate::checkpoint::leaf_groups::{LeafGroups, NoPage, Unnamed};
use crate::checkpoint::write_back::WriteBack;
use crate::disk::{Io, Purpose};
use crate::notes::NoteMap;
use crate::pages::LeafGroupId;
use crate::parts::Parts;
use crate::pending::Pending;
use crate::pg_records::PgRecordMap;

/// Maximum number of page writes in flight.
const PAGE_WRITES_MAX: usize = 64;

/// The result of a step. The error tells the operator why the store stops.
pub type Progress = Result<(), String>;

/// A checkpoint being made.
pub struct Checkpoint {
    /// The checkpoint contains every change before this lsn, except versions that are still prepared.
    until: Lsn,
    /// The journal is kept from this lsn on, unless the engine still needs older entries when the root is
    /// written: `until`, or the oldest prepared version if that is lower.
    replay: Lsn,
    /// Checksum of the last entry before `replay`.
    previous: Checksum,
    sequence: u64,
    pgs: PgRecordMap,
    notes: NoteMap,
    unnamed: Unnamed,
    /// Pages of the checkpoint's streams.
    stream_pages: Vec<StreamRef>,
    stage: Stage,
    page_queue: VecDeque<PageWrite>,
    page_writes: usize,
}

/// A page to be written.
struct PageWrite {
    purpose: Purpose,
    page: u32,
    bytes: Buffer,
}

/// The stages of a checkpoint, in order, each with what it waits for.
enum Stage {
    /// Waits until everything before `until` is durable.
    Durable,
    /// Waits until the entry is durable that records the durability of everything before `until`. Write-back
    /// then changes places that large writes wrote; recovery must no longer verify these places against those
    /// writes.
    Recorded(Lsn),
    /// Waits for write-back of journal data into the blocks' places.
    WriteBack(WriteBack),
    /// Waits for the flush of the data area.
    FlushData,
    /// Waits for leaves to be read and written, and for the entries of families.
    Leaves(LeafGroups),
    /// Waits for the pages of the streams.
    Streams(Streams),
    /// Waits for the flush of all pages.
    FlushPages(Root),
    /// Waits for the write of the root.
    Root(Root),
    /// Waits for the flush of the root.
    FlushRoot(Root),
    /// Waits for nothing: the root is durable.
    Finished(Root),
}

/// The streams being written. The directory may be long, so a bounded number of its pages is written at a
/// time. It is written from its end, because each page refers to the next.
struct Streams {
    /// Refers to the part of the directory that has been written so far.
    root: Root,
    /// Bytes at the front of the directory that are still to be written.
    rest: u64,
    /// The upper bound of the leaves in these bytes.
    until: Bound<BlockKey>,
}

impl Checkpoint {
    /// Begins a checkpoint, and freezes the changes so far. Requires: no other checkpoint is running.
    pub fn begin(gather: Gather, parts: &mut Parts, pool: &BufferPool) -> Checkpoint {
        parts.wants_checkpoint = false;
        gather.copy(parts, pool);
        let freed = parts.blocks.freeze(parts.pgs.floors());
        parts.journal.want_all();
        let until = (parts.journal.tail(), parts.journal.previous());
        let oldest = parts.blocks.prepared.oldest();
        let oldest = oldest.map(|version| (version.header.lsn, version.header.previous));
        let oldest = oldest.filter(|_| !planted::on(Bug::HeadPassesPrepared));
        let (replay, previous) = oldest.unwrap_or(until);
        Checkpoint {
            until: until.0,
            replay,
            previous,
            sequence: parts.root.sequence + 1,
            pgs: parts.pgs.snapshot(),
            notes: parts.notes.snapshot(),
            unnamed: Unnamed { blocks: freed, pages: Vec::new() },
            stream_pages: Vec::new(),
            stage: Stage::Durable,
            page_queue: VecDeque::new(),
            page_writes: 0,
        }
    }

    /// Advances the checkpoint as far as possible without waiting for an event.
    pub fn advance(&mut self, parts: &mut Parts, pending: &Pending, io: &mut Io<'_>) -> Progress {
        loop {
            let has_moved = self.step(parts, pending, io)?;
            self.write_pages(parts, io);
            if !has_moved {
                return Ok(());
            }
        }
    }

    /// Advances to the next stage if this one is complete. Returns whether another step may be possible at
    /// once.
    fn step(
        &mut self,
        parts: &mut Parts,
        pending: &Pending,
        io: &mut Io<'_>,
    ) -> Result<bool, String> {
        match &mut self.stage {
            Stage::Durable => {
                if parts.journal.durable() < self.until {
                    return Ok(false);
                }
                parts.journal.append_idle();
                self.stage = Stage::Recorded(parts.journal.tail());
                Ok(false)
            }
            Stage::Recorded(recorded) => {
                if parts.journal.durable() < *recorded {
                    return Ok(false);
                }
                if planted::on(Bug::TrimBeforeCheckpoint) {
                    parts.journal.trim(self.replay);
                }
                self.stage = Stage::WriteBack(WriteBack::plan(&parts.blocks));
                Ok(true)
            }
            Stage::WriteBack(work) => {
                work.advance(parts, io);
                if work.is_done() {
                    io.flush(Purpose::FlushData);
                    self.stage = Stage::FlushData;
                }
                Ok(false)
            }
            Stage::Leaves(_) => self.step_leaves(parts, pending, io),
            Stage::Streams(_) => self.step_streams(parts, io),
            // These stages end in `on_done`, when their only operation finishes.
            Stage::FlushData | Stage::FlushPages(_) | Stage::Root(_) | Stage::FlushRoot(_) => {
                Ok(false)
            }
            Stage::Finished(_) => unreachable!("it was finished when its root was durable"),
        }
    }

    /// Handles an operation of the checkpoint that succeeded.
    pub fn on_done(&mut self, purpose: Purpose, parts: &mut Parts, io: &mut Io<'_>) {
        match (&mut self.stage, purpose) {
            (Stage::WriteBack(work), Purpose::WriteBack) => work.on_written(),
            (Stage::FlushData, Purpose::FlushData) => {
                self.stage = Stage::Leaves(LeafGroups::new(parts.pages.is_sparse()));
            }
            (Stage::Leaves(groups), Purpose::LeafWrite(id)) => {
                self.page_writes -= 1;
                groups.on_written(id, &mut self.unnamed, &mut parts.pages);
            }
            (Stage::Streams(_), Purpose::StreamWrite) => self.page_writes -= 1,
            (Stage::FlushPages(root), Purpose::FlushPages) => {
                assert!(root.sequence == parts.root.sequence + 1);
                assert!(root.replay >= parts.root.replay && root.until >= parts.root.until);
                let root = root.clone();
                let bytes = io.pool.copy_of(&root.encode(parts.superblock.store.tag()));
                let place = parts.root_place(root.sequence);
                io.write(Purpose::RootWrite, place, vec![bytes], true);
                self.stage = Stage::Root(root);
            }
            (Stage::Root(root), Purpose::RootWrite) => {
                io.flush(Purpose::FlushRoot);
                self.stage = Stage::FlushRoot(root.clone());
            }
            (Stage::FlushRoot(root), Purpose::FlushRoot) => {
                self.stage = Stage::Finished(root.clone());
            }
            (_, purpose) => unreachable!("{purpose:?} does not belong to this stage"),
        }
    }

    /// Handles journal data that was read for the write-back of a block, starting at this unit.
    pub fn on_write_back_read(
        &mut self,
        key: BlockKey,
        unit: u32,
        buffer: &Buffer,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let Stage::WriteBack(work) = &mut self.stage else {
            unreachable!("the stage waits for its reads")
        };
        work.on_read(key, unit, buffer, parts, io);
    }

    /// Handles a leaf that was read for a group; `None`: the leaf is damaged.
    pub fn on_leaf_read(&mut self, group: LeafGroupId, page: u32, leaf: Option<Rc<LeafPage>>) {
        let Stage::Leaves(groups) = &mut self.stage else {
            unreachable!("the stage waits for its reads")
        };
        groups.on_leaf_read(group, page, leaf);
    }

    /// Loads, builds and writes groups of leaves. When all are done, and the entries of all families that the
    /// root will name are durable, begins the streams.
    fn step_leaves(
        &mut self,
        parts: &mut Parts,
        pending: &Pending,
        io: &mut Io<'_>,
    ) -> Result<bool, String> {
        let Stage::Leaves(groups) = &mut self.stage else { unreachable!("asked for leaves") };
        let pages = groups.advance(self.sequence, &mut self.unnamed, parts, io);
        for page in pages.map_err(area_full)? {
            let purpose = Purpose::LeafWrite(page.group);
            let bytes = io.pool.copy_of(page.leaf.bytes());
            self.page_queue.push_back(PageWrite { purpose, page: page.number, bytes });
        }
        if groups.is_done() {
            if parts.journal.durable() < pending.families_end() {
                return Ok(false);
            }
            self.begin_streams(parts, pending, io)?;
            return Ok(true);
        }
        Ok(groups.can_advance())
    }

    /// Begins the streams. What the root says of the families, and the low up to which it lets the journal be
    /// trimmed, are of this moment: a flush of the engine that ends later counts for the next checkpoint.
    fn begin_streams(&mut self, parts: &mut Parts, pending: &Pending, io: &mut Io<'_>) -> Progress {
        let notes = self.notes.iter().map(|(key, note)| (key, &note[..]));
        let discards = parts.blocks.area.segments_to_discard(&self.unnamed.blocks);
        let streams = [
            encode_pgs(self.pgs.iter()),
            encode_notes(notes),
            encode_ranges(&discards),
            encode_families(pending.family_records()),
        ];
        let mut refs = [StreamRef::EMPTY; 4];
        for (stream, named) in streams.iter().zip(&mut refs) {
            let count = stream.len().div_ceil(STREAM_PAGE_CAPACITY);
            let numbers: Option<Vec<u32>> = (0..count).map(|_| parts.pages.allocate()).collect();
            let numbers = numbers.ok_or_else(|| area_full(NoPage))?;
            let tag = parts.superblock.store.tag();
            let pages = StreamPage::encode_all(stream, &numbers, tag, self.sequence);
            *named = pages.first().map_or(StreamRef::EMPTY, |(_, at)| *at);
            for (bytes, at) in pages {
                let bytes = io.pool.copy_of(&bytes);
                let purpose = Purpose::StreamWrite;
                self.page_queue.push_back(PageWrite { purpose, page: at.page, bytes });
                self.stream_pages.push(at);
            }
        }
        let [pgs, notes, discards, families] = refs;
        if let Some((low, previous)) = pending.low().filter(|(low, _)| *low < self.replay) {
            (self.replay, self.previous) = (low, previous);
        }
        let root = Root {
            sequence: self.sequence,
            until: self.until,
            replay: self.replay,
            previous: self.previous,
            directory: StreamRef::EMPTY,
            pgs,
            notes,
            discards,
            families,
        };
        let rest = parts.pages.directory_size();
        self.stage = Stage::Streams(Streams { root, rest, until: Bound::Unbounded });
        Ok(())
    }

    /// Builds pages of the directory, a bounded number at a time. Starts the flush when all are written.
    fn step_streams(&mut self, parts: &mut Parts, io: &mut Io<'_>) -> Result<bool, String> {
        let Stage::Streams(streams) = &mut self.stage else { unreachable!("asked for streams") };
        let tag = parts.superblock.store.tag();
        while streams.rest > 0 && self.page_writes + self.page_queue.len() < PAGE_WRITES_MAX {
            let page = parts.pages.allocate().ok_or_else(|| area_full(NoPage))?;
            let chunk = parts.pages.directory_page(streams.rest, &mut streams.until);
            let next = streams.root.directory;
            let (bytes, at) = StreamPage::encode(&chunk, page, next, tag, self.sequence);
            streams.root.directory = at;
            streams.rest -= chunk.len() as u64;
            self.stream_pages.push(at);
            let bytes = io.pool.copy_of(&bytes);
            self.page_queue.push_back(PageWrite { purpose: Purpose::StreamWrite, page, bytes });
        }
        if self.page_writes == 0 && self.page_queue.is_empty() {
            io.flush(Purpose::FlushPages);
            self.stage = Stage::FlushPages(streams.root.clone());
        }
        Ok(false)
    }

    /// Writes queued pages, up to the limit of writes in flight.
    fn write_pages(&mut self, parts: &Parts, io: &mut Io<'_>) {
        while self.page_writes < PAGE_WRITES_MAX {
            let Some(PageWrite { purpose, page, bytes }) = self.page_queue.pop_front() else {
                return;
            };
            self.page_writes += 1;
            io.write(purpose, parts.page_place(page), vec![bytes], false);
        }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished(_))
    }

    /// Ends the checkpoint: frees everything that only older roots referred to. Requires: the root is
    /// durable ([`Checkpoint::is_finished`]).
    pub fn finish(self, parts: &mut Parts) {
        let Stage::Finished(root) = self.stage else { unreachable!("its root is durable") };
        parts.journal.trim(self.replay);
        parts.root = root;
        let old_streams = std::mem::replace(&mut parts.stream_pages, self.stream_pages);
        let old_streams = old_streams.into_iter().map(|at| at.page);
        let lost_leaves = std::mem::take(&mut parts.lost_leaf_pages);
        for page in self.unnamed.pages.into_iter().chain(old_streams).chain(lost_leaves) {
            parts.pages.release(page);
        }
        parts.blocks.on_checkpoint(self.unnamed.blocks);
    }
}

fn area_full(_: NoPage) -> String {
    "the checkpoint area is full, which its accounting should have prevented: this is a bug; the \
     data is safe in the journal, and a newer version can open the store"
        .to_owned()
}
