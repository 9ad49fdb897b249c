//! Start of a store: superblock, checkpoint, journal. Recovery is a value: finished reads and writes go in,
//! [`Recovered`] or a reason to stop comes out.
//!
//! ```text
//!   Superblock ─▶ Root ─▶ Stream ─▶ Leaves ─▶ Survey ─▶ Replay ⇄ Data ─▶ Rewrite ─▶ Steps ─▶ Finished
//!    two copies   two     three               the whole  from the root's  what may    suspect,  decisions
//!                 slots   chains              ring once  lsn, by table    be lost     flush
//! ```
//!
//! Invariants
//!   1. The store does not open before recovery's decisions are durable, and before everything found beyond
//!      the last recorded durable lsn is written again and flushed.
//!   2. The table in `decide.rs` makes all decisions, and a decision is final once it is made.
//!   3. If recovery is killed at any point, the next one makes the same decisions or finds them in the
//!      journal.
//!   4. The engine gets nothing before all decisions are durable, and PGs whose records it lost are suspect.
//!   5. A decision stays valid as long as what it is about: if recovery cuts off an entry with decisions that
//!      it followed, its own entry repeats them.

mod batches;
mod engine;
mod replay;
mod survey;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use base::planted::{self, Bug};
use base::{Buffer, Checksum, Lsn, PgId, PoolId, UNIT_SIZE, Version};
use format::disk::{
    Decision, EngineId, EntryHeader, EntryKind, FamilyRecord, LeafPage, PAGE_NONE, PAGE_SIZE,
    PageRef, Root, STREAM_PAGE_CAPACITY, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, StreamPage,
    StreamRef, Superblock, SuperblockError, decode_directory, decode_families, decode_notes,
    decode_pgs, decode_ranges, encode_decisions,
};

use crate::allocator::SEGMENT_SIZE;
use crate::disk::{Io, Purpose};
use crate::index::BlockInfo;
use crate::journal::{IDLE_RESERVE, Journal, padded, plain_header};
use crate::notes::Notes;
use crate::overlay::{Overlay, UnitState};
use crate::pages::{Pages, ROOT_PAGES};
use crate::parts::Parts;
use crate::pending::Pending;
use crate::pg_records::PgRecords;
pub(crate) use crate::recover::engine::ENGINE_NEEDED;
pub use crate::recover::engine::EngineReplay;
use crate::recover::engine::FamilyPlan;
use crate::recover::replay::Replay;
use crate::recover::survey::Survey;
use crate::{BlockKey, EngineFound, RecoveryReport, Settings};

/// Maximum number of leaf reads in flight.
const LEAF_READS_MAX: usize = 64;
/// Size of the pieces in which the journal is read, in bytes. The longest entry is shorter.
const CHUNK_SIZE: u64 = 2 << 20;
/// Maximum number of decisions in one recovery. With more damage than that, the store does not open.
const DECISIONS_MAX: usize = 16_000;
/// Journal space that recovery leaves free when it marks families whose PGs are suspect already, in bytes.
const MARKS_RESERVE: u64 = 4 * IDLE_RESERVE;
/// If a start finds more PGs suspect than this, the whole store is, unless the journal has room for more.
pub const SUSPECTS_MAX: usize = 64;

/// Returns the journal space that checkpoints leave free while they may free nothing, in bytes: for entries
/// of PGs that a start makes suspect; for idle entries and decisions of starts that are killed again and
/// again; and for the checkpoint that frees the head at last.
pub fn start_room(sector_size: u32) -> u64 {
    let suspect = EntryHeader::size_of(EntryKind::Suspect, 0, sector_size);
    4 * IDLE_RESERVE + SUSPECTS_MAX as u64 * u64::from(suspect)
}

/// Why a store cannot be opened with an older root if part of the journal after that root is gone. For the
/// operator.
const ROOT_LOST: &str = "\
    the newest checkpoint root is lost, and the journal no longer reaches back to the older root: \
    the state of the store cannot be rebuilt. Check the kernel log and the disk's health, and \
    start this OSD again; if the disk cannot be read any more, start the OSD from a copy of it, or \
    restore its volumes from a backup into a new pool";

/// The result of a step of recovery. The error tells the operator why the store cannot be opened.
pub type Progress = Result<(), String>;

/// A recovered store. It opens once everything in its journal is durable.
pub struct Recovered {
    pub parts: Box<Parts>,
    pub report: RecoveryReport,
    pub pending: Pending,
    pub replay: Box<EngineReplay>,
}

/// A store being recovered.
#[derive(Default)]
pub struct Recovery {
    settings: Settings,
    device_size: u64,
    /// The engine that is there.
    engine: Option<EngineFound>,
    /// Whether the superblock does not name the engine yet.
    takes_engine: bool,
    /// The families that the root names.
    families_named: Vec<FamilyRecord>,
    /// What becomes of each family.
    families: Vec<FamilyPlan>,
    /// Set once the superblock is known, and replaced for each root that is tried.
    parts: Option<Box<Parts>>,
    stage: Stage,
    /// Whether some read failed permanently.
    has_lost: bool,
    superblocks: Vec<Result<Superblock, SuperblockError>>,
    /// Copies of the superblock that must be rewritten: damaged ones, and those that say something else than
    /// the newest one.
    superblocks_damaged: Vec<usize>,
    /// Roots not tried yet, the newest last.
    roots: Vec<Root>,
    streams: Vec<Vec<u8>>,
    leaves: Vec<(BlockKey, PageRef)>,
    /// Key ranges of damaged leaves: the leaf's first key, and the first key of the next leaf.
    leaves_lost: Vec<(BlockKey, Option<BlockKey>)>,
    /// Segments in which space was still to be given back when the root was written.
    discards: Vec<Range<u32>>,
    /// PGs for which an entry is appended that makes them suspect.
    suspects: BTreeSet<PgId>,
    survey: Survey,
    replay: Replay,
    /// Rows of the table that applied.
    rows: BTreeMap<char, u64>,
    /// Decisions of this recovery.
    decisions: Vec<Decision>,
    /// Writes in flight.
    writes: usize,
    steps: VecDeque<Step>,
    /// Whether a root that may be newer could not be used, so that a checkpoint must replace it.
    root_was_lost: bool,
}

/// The stages of recovery, in order, each with what it waits for.
#[derive(Default)]
enum Stage {
    /// Waits for a copy of the superblock.
    #[default]
    Superblock,
    /// Waits for a slot of the root.
    Root(usize),
    /// Waits for a page of a stream.
    Stream(StreamRef),
    /// Waits for leaves.
    Leaves { asked: usize, arrived: usize },
    /// Waits for a chunk of the ring.
    Survey,
    /// Waits for a chunk of the journal to replay.
    Replay,
    /// Waits for out-of-line data of the entry to replay.
    Data,
    /// Waits for a chunk of the journal that is not recorded as durable, to write it again.
    Rewrite(Lsn),
    /// Waits for writes and flushes, one step after another.
    Steps,
    /// Waits for nothing. The decisions may still have to become durable in the journal.
    Finished,
}

/// A step before the store opens. The steps are done one after another.
enum Step {
    Flush,
    Write(u64, Vec<u8>),
}

impl Recovery {
    /// Begins to open the store on a device of `device_size` bytes: starts the first read.
    /// `engine`: the one that is there.
    pub fn begin(
        settings: Settings,
        (device_size, engine): (u64, Option<EngineFound>),
        io: &mut Io<'_>,
    ) -> Recovery {
        let mut recovery = Recovery { settings, device_size, engine, ..Recovery::default() };
        recovery.fetch(SUPERBLOCK_OFFSETS[0], SUPERBLOCK_SIZE, io);
        recovery
    }

    /// Returns the size of the smallest piece in which a failed read is repeated: a sector, once its size
    /// is known.
    pub fn piece_size(&self) -> usize {
        self.parts
            .as_ref()
            .map_or(UNIT_SIZE as usize, |parts| parts.superblock.sector_size as usize)
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("the superblock is known")
    }

    fn parts_mut(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("the superblock is known")
    }

    fn fetch(&mut self, offset: u64, size: usize, io: &mut Io<'_>) {
        io.read(Purpose::RecoveryRead, offset, size);
    }

    /// Handles the end of a read. Unreadable ranges are listed in `lost` and are zeros in `buffer`: no
    /// checksum matches them, and `lost` distinguishes them from ranges that were never written.
    pub fn on_read(&mut self, buffer: Buffer, lost: &[Range<usize>], io: &mut Io<'_>) -> Progress {
        self.has_lost |= !lost.is_empty();
        match self.stage {
            Stage::Superblock => self.on_superblock_read(&buffer, io),
            Stage::Root(slot) => self.on_root_read(slot, &buffer, !lost.is_empty(), io),
            Stage::Stream(at) => self.on_stream_read(at, &buffer, io),
            Stage::Survey => self.on_survey_read(&buffer, io),
            Stage::Replay => self.on_replay_read(buffer, lost, io),
            Stage::Data => self.on_data_read(buffer, lost, io),
            Stage::Rewrite(at) => self.on_rewrite_read(at, &buffer, lost, io),
            Stage::Leaves { .. } | Stage::Steps | Stage::Finished => {
                unreachable!("the stage fetches nothing")
            }
        }
    }

    fn on_superblock_read(&mut self, bytes: &[u8], io: &mut Io<'_>) -> Progress {
        self.superblocks.push(Superblock::decode(bytes));
        if self.superblocks.len() < SUPERBLOCK_OFFSETS.len() {
            let offset = SUPERBLOCK_OFFSETS[self.superblocks.len()];
            self.fetch(offset, SUPERBLOCK_SIZE, io);
            return Ok(());
        }
        let copies = std::mem::take(&mut self.superblocks);
        for (index, copy) in copies.iter().enumerate() {
            if copy.is_err() {
                self.superblocks_damaged.push(index);
            }
        }
        let outdated = outdated_copies(&copies);
        // If a copy cannot be read, the device may still hold a superblock.
        let says_nothing =
            |copy| matches!(copy, &Err(SuperblockError::NotOurs | SuperblockError::Damaged));
        let none_can_be_had = self.has_lost && copies.iter().all(says_nothing);
        match choose_superblock(copies, (self.device_size, self.engine.as_ref())) {
            Ok((superblock, takes_engine)) => {
                self.takes_engine = takes_engine;
                if !self.superblocks_damaged.is_empty() {
                    self.count_row('Q');
                }
                self.superblocks_damaged.extend(outdated);
                self.parts = Some(Box::new(Parts::new(superblock, &self.settings)));
                self.stage = Stage::Root(0);
                let offset = self.parts().page_place(ROOT_PAGES[0]);
                self.fetch(offset, PAGE_SIZE, io);
                Ok(())
            }
            Err(_) if none_can_be_had => {
                let reason = "the superblock cannot be read: check the kernel log and the disk's \
                              health, then start this OSD again";
                Err(reason.to_owned())
            }
            Err(reason) => Err(reason),
        }
    }

    fn on_root_read(
        &mut self,
        slot: usize,
        bytes: &[u8],
        is_lost: bool,
        io: &mut Io<'_>,
    ) -> Progress {
        let tag = self.parts().superblock.store.tag();
        if let Ok(root) = Root::decode(bytes, tag) {
            self.roots.push(root);
        } else if is_lost {
            // This may be the newest root. The journal shows whether it is: see `Survey::is_ahead`.
            self.count_row('Y');
            self.root_was_lost = true;
        }
        if slot == 0 {
            self.stage = Stage::Root(1);
            let offset = self.parts().page_place(ROOT_PAGES[1]);
            self.fetch(offset, PAGE_SIZE, io);
            return Ok(());
        }
        self.roots.sort_by_key(|root| root.sequence);
        self.try_root(io)
    }

    /// Tries the newest root that was not tried yet.
    fn try_root(&mut self, io: &mut Io<'_>) -> Progress {
        let Some(root) = self.roots.pop() else {
            let reason = match self.has_lost {
                true => {
                    "the roots, or the directories they point to, cannot be read: check the kernel \
                     log and the disk's health, then start this OSD again"
                }
                false => {
                    "both roots, or the directories they point to, are damaged: the store's index \
                     is lost. This version cannot repair that: start the OSD from a copy of the \
                     disk, or restore its volumes from a backup into a new pool"
                }
            };
            return Err(reason.to_owned());
        };
        let superblock = self.parts().superblock.clone();
        let mut parts = Parts::new(superblock, &self.settings);
        parts.root = root.clone();
        self.parts = Some(Box::new(parts));
        self.streams = vec![Vec::new()];
        self.next_stream_page(root.directory, io)
    }

    /// Reads the next page of the streams. After the last page, continues with the leaves.
    fn next_stream_page(&mut self, at: StreamRef, io: &mut Io<'_>) -> Progress {
        if at.size > 0 {
            let parts = self.parts_mut();
            let is_possible = at.page_count() * (STREAM_PAGE_CAPACITY as u64)
                <= parts.superblock.checkpoints.size;
            if !is_possible || !parts.pages.take(at.page) {
                return self.root_failed(io);
            }
            parts.stream_pages.push(at);
            let offset = parts.page_place(at.page);
            self.stage = Stage::Stream(at);
            self.fetch(offset, PAGE_SIZE, io);
            return Ok(());
        }
        let root = self.parts().root.clone();
        self.streams.push(Vec::new());
        match self.streams.len() {
            2 => self.next_stream_page(root.pgs, io),
            3 => self.next_stream_page(root.notes, io),
            4 => self.next_stream_page(root.discards, io),
            5 => self.next_stream_page(root.families, io),
            _ => self.decode_streams(io),
        }
    }

    fn on_stream_read(&mut self, at: StreamRef, bytes: &[u8], io: &mut Io<'_>) -> Progress {
        let tag = self.parts().superblock.store.tag();
        let stream = self.streams.last_mut().expect("one is being read");
        match StreamPage::decode(bytes, tag, at, stream) {
            Ok(rest) => {
                assert!(rest.size > 0 || rest.page == PAGE_NONE);
                self.next_stream_page(rest, io)
            }
            Err(_) => self.root_failed(io),
        }
    }

    fn root_failed(&mut self, io: &mut Io<'_>) -> Progress {
        if !self.roots.is_empty() {
            self.count_row('R');
            self.root_was_lost = true;
        }
        self.try_root(io)
    }

    fn decode_streams(&mut self, io: &mut Io<'_>) -> Progress {
        let streams = std::mem::take(&mut self.streams);
        let decoded = (
            decode_directory(&streams[0]),
            decode_pgs(&streams[1]),
            decode_notes(&streams[2]),
            decode_ranges(&streams[3]),
            decode_families(&streams[4]),
        );
        let (Ok(directory), Ok(pgs), Ok(notes), Ok(discards), Ok(families)) = decoded else {
            return self.root_failed(io);
        };
        self.families_named = families;
        let segments = self.parts().superblock.data.size / SEGMENT_SIZE;
        if discards.last().is_some_and(|range| u64::from(range.end) > segments) {
            return self.root_failed(io);
        }
        let pools: Vec<PoolId> = self.families_named.iter().map(|named| named.family).collect();
        let parts = self.parts_mut();
        pools.into_iter().for_each(|pool| parts.blocks.leave_uncounted(pool));
        let of_parity = pgs.iter().filter(|(_, record)| record.committed > Version::ZERO);
        of_parity.for_each(|(pg, _)| parts.blocks.prepared.note_said(*pg));
        parts.pgs = PgRecords::load(pgs);
        parts.notes = Notes::load(notes);
        if !directory.iter().all(|(_, page)| parts.pages.take(page.page)) {
            return self.root_failed(io);
        }
        self.leaves = directory;
        self.discards = discards;
        self.stage = Stage::Leaves { asked: 0, arrived: 0 };
        self.ask_leaves(io)
    }

    /// Reads leaves, a bounded number at once. When all have arrived, continues with the journal.
    fn ask_leaves(&mut self, io: &mut Io<'_>) -> Progress {
        let Stage::Leaves { asked, arrived } = &mut self.stage else {
            unreachable!("leaves are read in their stage")
        };
        let parts = self.parts.as_ref().expect("the superblock is known");
        while *asked < self.leaves.len() && *asked - *arrived < LEAF_READS_MAX {
            let offset = parts.page_place(self.leaves[*asked].1.page);
            io.read(Purpose::RecoveryLeaf { index: *asked }, offset, PAGE_SIZE);
            *asked += 1;
        }
        if *arrived == self.leaves.len() {
            self.stage = Stage::Survey;
            self.survey_next(io);
        }
        Ok(())
    }

    /// Handles a leaf that was read.
    pub fn on_leaf_read(&mut self, index: usize, bytes: &[u8], io: &mut Io<'_>) -> Progress {
        let (first, page) = self.leaves[index];
        let next = self.leaves.get(index + 1).map(|(next, _)| *next);
        if let Stage::Leaves { arrived, .. } = &mut self.stage {
            *arrived += 1;
        }
        let tag = self.parts().superblock.store.tag();
        let leaf = LeafPage::decode(bytes, tag, page)
            .ok()
            .filter(|leaf| leaf.records().next().is_some_and(|record| record.key() == first))
            .filter(|leaf| {
                let last = leaf.records().next_back();
                last.is_some_and(|last| next.is_none_or(|next| last.key() < next))
            });
        let parts = self.parts_mut();
        match leaf {
            Some(leaf) => {
                parts.blocks.load(&leaf)?;
                parts.pages.set_leaf(first, Some(page));
                parts.pages.keep(page, leaf.into());
            }
            None => {
                parts.lost_leaf_pages.push(page.page);
                parts.wants_checkpoint = true;
                parts.blocks.area.hold_places();
                self.leaves_lost.push((first, next));
                self.count_row('S');
            }
        }
        self.ask_leaves(io)
    }

    /// Reads the next chunk of the ring.
    fn survey_next(&mut self, io: &mut Io<'_>) {
        let journal = self.parts().superblock.journal;
        let position = self.survey.position();
        let size = CHUNK_SIZE.min(journal.size - position) as usize;
        self.fetch(journal.offset + position, size, io);
    }

    fn on_survey_read(&mut self, bytes: &[u8], io: &mut Io<'_>) -> Progress {
        let parts = self.parts.as_ref().expect("the superblock is known");
        self.survey.look(bytes, &parts.superblock, parts.root.replay);
        if self.survey.position() < parts.superblock.journal.size {
            self.survey_next(io);
            return Ok(());
        }
        self.survey.settle();
        // The root is durable, so everything that it contains was durable and recorded before.
        self.survey.acked = self.survey.acked.max(self.parts().root.until);
        if self.survey.is_ahead {
            return Err(ROOT_LOST.to_owned());
        }
        self.count_engine_as_durable()?;
        self.begin_replay(io)
    }

    fn count_row(&mut self, row: char) {
        *self.rows.entry(row).or_default() += 1;
    }

    /// Prepares the journal to continue at `tail`, and begins to write again what must be durable before the
    /// store opens.
    fn on_replayed(
        &mut self,
        end: Lsn,
        tail: Lsn,
        previous: Checksum,
        io: &mut Io<'_>,
    ) -> Progress {
        let cache = self.settings.memory_bytes / 4;
        let parts = self.parts.as_mut().expect("the superblock is known");
        let head = parts.root.replay;
        let acked = self.survey.acked;
        // If the journal ends with an idle entry, another one is not needed.
        let is_recorded = self.replay.idle_end == Some(tail);
        let recorded = if is_recorded { tail } else { acked.min(tail) };
        let lsns = (head, recorded, tail);
        parts.journal = Journal::new(&parts.superblock, lsns, previous, cache);
        if !parts.journal.has_room(EntryKind::Idle, 0, 0) {
            // A running store never fills its ring this far. So this root is an old one, and part of the
            // journal after it has been overwritten.
            return Err(ROOT_LOST.to_owned());
        }
        parts.wants_checkpoint |= self.root_was_lost;
        if self.root_was_lost {
            parts.blocks.area.hold_places();
        }
        if tail > end {
            self.decisions.extend(self.survey.decisions_lost_by_cut(end));
            self.decisions.push(Decision::Cut { from: end, to: tail });
        }
        if self.decisions.len() > DECISIONS_MAX {
            let reason = "more of the journal is damaged than recovery can handle, and this \
                          version cannot repair it: start the OSD from a copy of the disk, or \
                          restore its volumes from a backup into a new pool";
            return Err(reason.to_owned());
        }
        self.rewrite(acked.max(head), end, io)
    }

    /// Writes again, chunk by chunk, the part of the journal that no entry records as durable: the same bytes
    /// at the same place.
    fn rewrite(&mut self, at: Lsn, end: Lsn, io: &mut Io<'_>) -> Progress {
        if at >= end {
            return self.plan_steps(io);
        }
        let journal = &self.parts().journal;
        let rest = journal.size() - at.get() % journal.size();
        let size = CHUNK_SIZE.min(rest).min(end.since(at));
        let place = journal.place(at);
        self.replay.end = end;
        self.stage = Stage::Rewrite(at);
        self.fetch(place, size as usize, io);
        Ok(())
    }

    fn on_rewrite_read(
        &mut self,
        at: Lsn,
        buffer: &Buffer,
        lost: &[Range<usize>],
        io: &mut Io<'_>,
    ) -> Progress {
        let is_new = |lost: &Range<usize>| {
            !self.replay.is_lost(at, lost) && !self.replay.is_skipped(at, lost)
        };
        if lost.iter().any(is_new) {
            let reason = "the journal could be read a moment ago and cannot be read now: check the \
                          disk, then start this OSD again";
            return Err(reason.to_owned());
        }
        let place = self.parts().journal.place(at);
        let next = at.advance(buffer.len() as u64);
        self.write_read_again(place, buffer, lost, io);
        self.rewrite(next, self.replay.end, io)
    }

    /// Writes the bytes of a read again, except ranges that could not be read.
    fn write_read_again(
        &mut self,
        place: u64,
        buffer: &Buffer,
        lost: &[Range<usize>],
        io: &mut Io<'_>,
    ) {
        let mut from = 0;
        for gap in lost.iter().cloned().chain(std::iter::once(buffer.len()..buffer.len())) {
            if from < gap.start {
                self.write_again(place + from as u64, buffer.slice(from..gap.start), io);
            }
            from = gap.end;
        }
    }

    fn write_again(&mut self, place: u64, buffer: Buffer, io: &mut Io<'_>) {
        self.writes += 1;
        io.write(Purpose::RecoveryWrite, place, vec![buffer], false);
    }

    fn plan_steps(&mut self, io: &mut Io<'_>) -> Progress {
        let suspects = self.suspects();
        // One lost engine concerns all PGs of objects. Those of volumes are not suspect for that.
        let sector_size = self.parts().superblock.sector_size;
        let journal = &self.parts().journal;
        let size = EntryHeader::size_of(EntryKind::Suspect, 0, sector_size);
        let entries = suspects.len() as u64 * u64::from(size);
        let has_room = journal.used() + entries <= journal.size() / 2;
        let is_suspicious = suspects.len() > SUSPECTS_MAX && !has_room
            || self.rows.keys().any(|row| crate::decide::is_suspicious(*row));
        if !is_suspicious {
            self.suspects = suspects;
        }
        let parts = self.parts.as_mut().expect("the superblock is known");
        let mut steps = VecDeque::from([Step::Flush]);
        let mut write = |superblock: &mut Superblock, copy: usize| {
            superblock.sequence += 1;
            steps.push_back(Step::Write(SUPERBLOCK_OFFSETS[copy], superblock.encode()));
            steps.push_back(Step::Flush);
        };
        if is_suspicious || self.takes_engine {
            if is_suspicious {
                parts.superblock.suspect = Some(parts.journal.tail());
            }
            write(&mut parts.superblock, 1);
            write(&mut parts.superblock, 0);
        } else {
            for copy in &self.superblocks_damaged {
                write(&mut parts.superblock, *copy);
            }
        }
        self.steps = steps;
        self.stage = Stage::Steps;
        self.next_step(io)
    }

    fn next_step(&mut self, io: &mut Io<'_>) -> Progress {
        if self.writes > 0 {
            return Ok(());
        }
        match self.steps.pop_front() {
            Some(Step::Flush) => {
                self.writes += 1;
                io.flush(Purpose::RecoveryFlush);
            }
            Some(Step::Write(offset, bytes)) => {
                let bytes = io.pool.copy_of(&bytes);
                self.write_again(offset, bytes, io);
            }
            None => return self.journal_decisions(io),
        }
        Ok(())
    }

    /// Handles a finished write or flush of recovery.
    pub fn on_done(&mut self, purpose: Purpose, io: &mut Io<'_>) -> Progress {
        assert!(matches!(purpose, Purpose::RecoveryWrite | Purpose::RecoveryFlush));
        assert!(self.writes > 0);
        self.writes -= 1;
        match self.stage {
            Stage::Steps => self.next_step(io),
            _ => Ok(()),
        }
    }

    fn journal_decisions(&mut self, io: &mut Io<'_>) -> Progress {
        self.stage = Stage::Finished;
        let marks = self.marks();
        let suspects = std::mem::take(&mut self.suspects);
        if self.decisions.is_empty() && suspects.is_empty() && marks.is_empty() {
            return Ok(());
        }
        let is_appended = self.append_decisions(io);
        if !is_appended || !suspects.iter().all(|pg| self.append_suspect(*pg)) {
            let reason = "the journal has no room to record recovery's decisions, and this version \
                          cannot repair that: restore the OSD's volumes from a backup into a new \
                          pool";
            return Err(reason.to_owned());
        }
        // Starts that are killed again and again must not use up the room for this.
        let journal = &self.parts().journal;
        if journal.has_room(EntryKind::Suspect, 0, MARKS_RESERVE) {
            marks.iter().all(|pg| self.append_suspect(*pg));
        }
        let journal = &mut self.parts_mut().journal;
        journal.want_all();
        if !planted::on(Bug::SuspectAfterReplay) {
            journal.submit(io);
        }
        Ok(())
    }

    /// Returns the store once recovery is finished. The store opens when its journal, which contains the
    /// decisions, is durable.
    pub fn finish(&mut self) -> Option<Recovered> {
        if !matches!(self.stage, Stage::Finished) {
            return None;
        }
        assert!(self.writes == 0);
        let mut parts = self.parts.take()?;
        parts.blocks.area.repeat_discards(std::mem::take(&mut self.discards));
        let report = RecoveryReport {
            rows: std::mem::take(&mut self.rows).into_iter().collect(),
            journal_bytes: self.survey.bytes,
            blocks: parts.blocks.index().count(),
        };
        let (pending, replay) = self.engine_replay(&parts);
        Some(Recovered { parts, report, pending, replay })
    }

    /// Returns the PGs that may have had blocks in a lost leaf, records that the engine lost, or a batch that
    /// the journal lost.
    fn suspects(&mut self) -> BTreeSet<PgId> {
        let lost = std::mem::take(&mut self.leaves_lost);
        let parts = self.parts();
        let pgs = lost.into_iter().flat_map(|(first, next)| pgs_between(parts, first, next));
        let of_families = self.families.iter().filter(|family| family.is_behind);
        let of_families =
            of_families.flat_map(|family| parts.pgs_known().filter(|pg| pg.pool == family.pool));
        let pgs = pgs.chain(of_families).chain(self.pgs_with_lost_batches());
        // An earlier start may have recorded some of these PGs, and been killed before its checkpoint.
        pgs.filter(|pg| !parts.is_suspect(*pg)).collect()
    }

    /// Appends the entry with the decisions. Returns false if the journal has no room for it.
    fn append_decisions(&mut self, io: &mut Io<'_>) -> bool {
        if self.decisions.is_empty() {
            return true;
        }
        let bytes = encode_decisions(&self.decisions);
        let acked = self.survey.acked;
        let (data, checksums) = padded(&bytes, io.pool);
        let parts = self.parts.as_mut().expect("the superblock is known");
        let kind = EntryKind::Recovery;
        if !parts.journal.has_room(kind, checksums.len(), IDLE_RESERVE) {
            return false;
        }
        let length = bytes.len() as u32;
        let mut header = EntryHeader { length, checksums, ..plain_header(kind) };
        parts.journal.limit_recorded(Some(acked));
        parts.journal.append(&mut header, Some(data));
        parts.journal.limit_recorded(None);
        true
    }

    /// Appends the entry that makes a PG suspect. Returns false if the journal has no room for it.
    fn append_suspect(&mut self, pg: PgId) -> bool {
        let acked = self.survey.acked;
        let parts = self.parts.as_mut().expect("the superblock is known");
        if !parts.journal.has_room(EntryKind::Suspect, 0, IDLE_RESERVE) {
            return false;
        }
        let mut header = EntryHeader { pg: Some(pg), ..plain_header(EntryKind::Suspect) };
        parts.journal.limit_recorded(Some(acked));
        let (lsn, _) = parts.journal.append(&mut header, None);
        parts.journal.limit_recorded(None);
        parts.pgs.apply(&header, pg, lsn);
        if !planted::on(Bug::SuspectAfterReplay) {
            self.note_for_engine(&header);
        }
        true
    }
}

/// Returns the copies that are whole, but do not say what the newest one says: a crash came between the
/// writes of the two. Were they left, the store would go back to what they say once the newest one is lost.
fn outdated_copies(copies: &[Result<Superblock, SuperblockError>]) -> Vec<usize> {
    let whole =
        || copies.iter().enumerate().filter_map(|(at, copy)| Some((at, copy.as_ref().ok()?)));
    let Some((_, newest)) = whole().max_by_key(|(_, copy)| copy.sequence) else {
        return Vec::new();
    };
    let says_else =
        |copy: &Superblock| Superblock { sequence: newest.sequence, ..copy.clone() } != *newest;
    whole().filter(|(_, copy)| says_else(copy)).map(|(at, _)| at).collect()
}

fn choose_superblock(
    copies: Vec<Result<Superblock, SuperblockError>>,
    (device_size, engine): (u64, Option<&EngineFound>),
) -> Result<(Superblock, bool), String> {
    let mut errors = BTreeSet::new();
    let mut newest: Option<Superblock> = None;
    for copy in copies {
        match copy {
            Ok(superblock) => {
                if newest.as_ref().is_none_or(|newest| newest.sequence < superblock.sequence) {
                    newest = Some(superblock);
                }
            }
            Err(SuperblockError::Newer(version)) => {
                return Err(format!(
                    "this store has format {version}, written by a newer version; this version \
                     supports {}. Use the newer version",
                    format::disk::FORMAT_VERSION
                ));
            }
            Err(SuperblockError::Older(version)) => {
                return Err(format!(
                    "this store has format {version}, which is older than the first release; this \
                     version supports only {}. Create the OSD again",
                    format::disk::FORMAT_VERSION
                ));
            }
            Err(SuperblockError::Unsupported(what)) => {
                return Err(format!("this version cannot open this store: {what}"));
            }
            Err(SuperblockError::Damaged) => {
                errors.insert(
                    "both copies of the superblock are damaged, and this version cannot repair \
                     them: start the OSD from a copy of the disk, or restore its volumes from a \
                     backup into a new pool",
                );
            }
            Err(SuperblockError::NotOurs) => {
                errors.insert("no OSD found: `ashlar osd create` creates one");
            }
        }
    }
    let mut superblock =
        newest.ok_or_else(|| errors.first().map_or(String::new(), |error| error.to_string()))?;
    if device_size < superblock.size {
        return Err(format!(
            "the store has {} bytes, but the device or file has only {device_size}: it was truncated",
            superblock.size
        ));
    }
    let named = superblock.engine.map(EngineId::get);
    let found = engine.map(|engine| engine.identity.engine);
    let is_its_own = engine.is_none_or(|engine| engine.identity.store == superblock.store.get());
    match (named, found) {
        _ if named == found && is_its_own => Ok((superblock, false)),
        // It was just made, or adding it was interrupted.
        (None, Some(id))
            if is_its_own && engine.is_some_and(|engine| engine.families.is_empty()) =>
        {
            superblock.engine = EngineId::new(id);
            Ok((superblock, true))
        }
        // Whether the store can do without is known when the journal was read.
        (Some(_), None) => Ok((superblock, false)),
        (None, Some(_)) => Err("this store has no engine".to_owned()),
        _ => Err("the engine is of another store".to_owned()),
    }
}

/// Returns the known PGs that may have blocks from `first` on and before `next`. Keys are in the order of
/// their PGs, so the PGs of the blocks before and after the range bound the result.
fn pgs_between(parts: &Parts, first: BlockKey, next: Option<BlockKey>) -> Vec<PgId> {
    let pg_of =
        |(key, info): (BlockKey, BlockInfo)| PgId { pool: key.pool, number: u32::from(info.pg) };
    let index = parts.blocks.index();
    let before = index.last_before(first).map(pg_of).filter(|pg| pg.pool == first.pool);
    let lowest = before.unwrap_or(PgId { pool: first.pool, number: 0 });
    let behind = next.and_then(|next| index.iter_from(next).next()).map(pg_of);
    let may_have = |pg: &PgId| *pg >= lowest && behind.is_none_or(|behind| *pg <= behind);
    parts.pgs_known().filter(may_have).collect()
}

/// Whether all units of a block have become zeros since the root. A checkpoint then takes its place away,
/// and no entry records this.
fn is_emptied(pages: &mut Pages, overlay: &Overlay, key: &BlockKey, info: BlockInfo) -> bool {
    if overlay.iter().any(|(_, state)| state != UnitState::Zero) {
        return false;
    }
    let is_zero = |unit| overlay.get(unit) == Some(UnitState::Zero);
    let not_zero: Vec<u32> =
        (0..info.block_size.unit_count()).filter(|unit| !is_zero(*unit)).collect();
    if not_zero.is_empty() {
        return true;
    }
    let leaf = pages.leaf_of(key).and_then(|(_, page)| pages.cached(page));
    let record = leaf.as_ref().and_then(|leaf| leaf.find(key));
    record.is_some_and(|record| not_zero.iter().all(|unit| record.unit(*unit).is_none()))
}
