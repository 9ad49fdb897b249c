//! Start of a store: superblock, checkpoint, journal; ends with `Opened` or `Stopped`.
//!
//! ```text
//!   Superblock ─▶ Root ─▶ Stream ─▶ Leaves ─▶ Survey ─▶ Replay ⇄ Data ─▶ Rewrite ─▶ Steps ─▶ Journal ─▶ open
//!    two copies   two     three               the whole  from the root's  what no      suspect,  decisions
//!                 slots   chains              ring once  lsn, by table    one confirmed  flush
//! ```
//!
//! Invariants
//!   1. Nothing is stated or served before the decisions are durable, and before what was found
//!      beyond the last recorded durable lsn is written again and flushed.
//!   2. The table in `decide.rs` decides, and nothing else; what was decided once holds for ever.
//!   3. Killed at any point, the next recovery decides the same or finds the decisions.

mod replay;
mod survey;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use base::{BlockSize, Buffer, Checksum, Lsn, PgId};
use format::disk::{
    Decision, EntryHeader, EntryKind, LOCATION_NONE, LeafPage, PAGE_NONE, PAGE_SIZE, PageRef, Root,
    STREAM_PAGE_CAPACITY, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, StreamPage, StreamRef, Superblock,
    SuperblockError, decode_directory, decode_notes, decode_pgs, decode_ranges, encode_decisions,
};

use crate::allocate::{Allocator, SEGMENT_SIZE, segment_of};
use crate::dirty::{Overlay, UnitState};
use crate::disk::Purpose;
use crate::index::{BlockInfo, Index, KEY_FIRST};
use crate::journal::{IDLE_RESERVE, Journal, plain_header};
use crate::moves::Moves;
use crate::pages::{Pages, ROOT_PAGES};
use crate::recover::replay::Replay;
use crate::recover::survey::{ROOT_LOST, Survey};
use crate::space::{Freed, Reserving};
use crate::store::{Parts, Phase, Store};
use crate::{BlockKey, Effect, Settings};

/// Leaves read at once.
const LEAF_READS_MAX: usize = 64;
/// The journal is read in pieces of this size; the longest entry is shorter.
const CHUNK_SIZE: u64 = 2 << 20;
/// More damage than this is not settled by itself.
const DECISIONS_MAX: usize = 16_000;
/// Where leaves of more PGs are damaged, the whole store is suspect.
const SUSPECTS_MAX: usize = 64;

/// A store being opened.
#[derive(Default)]
pub struct Opening {
    stage: Stage,
    /// Something could not be read.
    has_lost: bool,
    superblocks: Vec<Result<Superblock, SuperblockError>>,
    /// Copies of the superblock that must be rewritten.
    superblocks_damaged: Vec<usize>,
    /// Roots not tried yet, the newest last.
    roots: Vec<Root>,
    streams: Vec<Vec<u8>>,
    leaves: Vec<(BlockKey, PageRef)>,
    /// Keys of leaves that are damaged: from, and to before the next leaf's.
    leaves_lost: Vec<(BlockKey, Option<BlockKey>)>,
    /// Segments in which space was to be given back when the root was written.
    discards: Vec<Range<u32>>,
    /// PGs that get an entry which says that they are suspect.
    suspects: BTreeSet<PgId>,
    survey: Survey,
    replay: Replay,
    /// Rows of the table that applied.
    rows: BTreeMap<char, u64>,
    /// Made by this recovery.
    decisions: Vec<Decision>,
    /// Writes in flight.
    writes: usize,
    steps: VecDeque<Step>,
    /// A newer root could not be used: a checkpoint must replace it.
    root_was_lost: bool,
}

/// In the order of time; each says what it waits for.
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
    /// Waits for journal that no one confirmed, to write it again.
    Rewrite(Lsn),
    /// Waits for writes and flushes, one step after another.
    Steps,
    /// Waits for the entry with the decisions.
    Journal,
}

/// What is done, one after another, before the store opens.
enum Step {
    Flush,
    Write(u64, Vec<u8>),
}

impl Store {
    pub(crate) fn recover_begin(&mut self, effects: &mut Vec<Effect>) {
        self.fetch(SUPERBLOCK_OFFSETS[0], SUPERBLOCK_SIZE, effects);
    }

    fn opening_ref(&self) -> &Opening {
        match &self.phase {
            Phase::Opening(opening) => opening,
            _ => unreachable!("recovery's operations end before the store opens"),
        }
    }

    fn opening(&mut self) -> &mut Opening {
        match &mut self.phase {
            Phase::Opening(opening) => opening,
            _ => unreachable!("recovery's operations end before the store opens"),
        }
    }

    fn fetch(&mut self, offset: u64, size: usize, effects: &mut Vec<Effect>) {
        self.disk.read(&self.pool, Purpose::RecoveryRead, offset, size, effects);
    }

    /// A read ended. What could not be read counts as zeros, which no checksum fits; where that
    /// must not pass for something never written, `lost` tells.
    pub(crate) fn recover_read(
        &mut self,
        buffer: Buffer,
        lost: &[Range<usize>],
        effects: &mut Vec<Effect>,
    ) {
        self.opening().has_lost |= !lost.is_empty();
        match self.opening().stage {
            Stage::Superblock => self.superblock_read(&buffer, effects),
            Stage::Root(slot) => self.root_read(slot, &buffer, !lost.is_empty(), effects),
            Stage::Stream(at) => self.stream_read(at, &buffer, effects),
            Stage::Survey => self.survey_read(&buffer, effects),
            Stage::Replay => self.replay_read(buffer, lost, effects),
            Stage::Data => self.data_read(buffer, lost, effects),
            Stage::Rewrite(at) => self.rewrite_read(at, &buffer, lost, effects),
            Stage::Leaves { .. } | Stage::Steps | Stage::Journal => {
                unreachable!("the stage fetches nothing")
            }
        }
    }

    fn superblock_read(&mut self, bytes: &[u8], effects: &mut Vec<Effect>) {
        let superblock = Superblock::decode(bytes);
        let opening = self.opening();
        opening.superblocks.push(superblock);
        if opening.superblocks.len() < SUPERBLOCK_OFFSETS.len() {
            let offset = SUPERBLOCK_OFFSETS[opening.superblocks.len()];
            return self.fetch(offset, SUPERBLOCK_SIZE, effects);
        }
        let copies = std::mem::take(&mut opening.superblocks);
        for (index, copy) in copies.iter().enumerate() {
            if copy.is_err() {
                opening.superblocks_damaged.push(index);
            }
        }
        // A sound copy says more than one that cannot be read.
        let says_nothing =
            |copy| matches!(copy, &Err(SuperblockError::NotOurs | SuperblockError::Damaged));
        let none_can_be_had = self.opening().has_lost && copies.iter().all(says_nothing);
        match choose_superblock(copies, self.device_size) {
            Ok(superblock) => {
                if !self.opening().superblocks_damaged.is_empty() {
                    self.count_row('Q');
                }
                self.parts = Some(Box::new(Parts::new(superblock, &self.settings)));
                self.opening().stage = Stage::Root(0);
                let offset = self.parts().page_place(ROOT_PAGES[0]);
                self.fetch(offset, PAGE_SIZE, effects);
            }
            Err(_) if none_can_be_had => {
                let reason = "the superblock cannot be read: look at the kernel's log and the \
                              disk's health, then start this OSD again";
                self.stop(reason.to_owned(), effects);
            }
            Err(reason) => self.stop(reason, effects),
        }
    }

    fn root_read(&mut self, slot: usize, bytes: &[u8], is_lost: bool, effects: &mut Vec<Effect>) {
        let tag = self.parts().superblock.store.tag();
        if let Ok(root) = Root::decode(bytes, tag) {
            self.opening().roots.push(root);
        } else if is_lost {
            // It may be the newest one. The journal tells: see `Survey::is_ahead`.
            self.count_row('Y');
            self.opening().root_was_lost = true;
        }
        if slot == 0 {
            self.opening().stage = Stage::Root(1);
            let offset = self.parts().page_place(ROOT_PAGES[1]);
            return self.fetch(offset, PAGE_SIZE, effects);
        }
        self.opening().roots.sort_by_key(|root| root.sequence);
        self.try_root(effects);
    }

    /// Begins with the newest root not tried yet.
    fn try_root(&mut self, effects: &mut Vec<Effect>) {
        let Some(root) = self.opening().roots.pop() else {
            let reason = match self.opening().has_lost {
                true => {
                    "the roots, or the directories they name, cannot be read: look at the \
                     kernel's log and the disk's health, then start this OSD again"
                }
                false => {
                    "both roots, or the directories they name, are damaged: the store's index \
                     is lost. This version cannot repair that: put a copy of the disk in its \
                     place, or restore its volumes from a backup into a new pool"
                }
            };
            return self.stop(reason.to_owned(), effects);
        };
        let superblock = self.parts().superblock.clone();
        let mut parts = Parts::new(superblock, &self.settings);
        parts.root = root.clone();
        self.parts = Some(Box::new(parts));
        self.opening().streams = vec![Vec::new()];
        self.next_stream_page(root.directory, effects);
    }

    /// Reads the next page of the streams, or goes on to the leaves.
    fn next_stream_page(&mut self, at: StreamRef, effects: &mut Vec<Effect>) {
        if at.size > 0 {
            let parts = self.parts_mut();
            let is_possible = at.page_count() * (STREAM_PAGE_CAPACITY as u64)
                <= parts.superblock.checkpoints.size;
            if !is_possible || !parts.pages.take(at.page) {
                return self.root_failed(effects);
            }
            parts.stream_pages.push(at.page);
            let offset = parts.page_place(at.page);
            self.opening().stage = Stage::Stream(at);
            return self.fetch(offset, PAGE_SIZE, effects);
        }
        let root = self.parts().root.clone();
        let opening = self.opening();
        opening.streams.push(Vec::new());
        match opening.streams.len() {
            2 => self.next_stream_page(root.pgs, effects),
            3 => self.next_stream_page(root.notes, effects),
            4 => self.next_stream_page(root.discards, effects),
            _ => self.streams_read(effects),
        }
    }

    fn stream_read(&mut self, at: StreamRef, bytes: &[u8], effects: &mut Vec<Effect>) {
        let tag = self.parts().superblock.store.tag();
        let stream = self.opening().streams.last_mut().expect("one is being read");
        match StreamPage::decode(bytes, tag, at, stream) {
            Ok(rest) => {
                assert!(rest.size > 0 || rest.page == PAGE_NONE);
                self.next_stream_page(rest, effects);
            }
            Err(_) => self.root_failed(effects),
        }
    }

    fn root_failed(&mut self, effects: &mut Vec<Effect>) {
        if !self.opening().roots.is_empty() {
            self.count_row('R');
            self.opening().root_was_lost = true;
        }
        self.try_root(effects);
    }

    fn streams_read(&mut self, effects: &mut Vec<Effect>) {
        let streams = std::mem::take(&mut self.opening().streams);
        let decoded = (
            decode_directory(&streams[0]),
            decode_pgs(&streams[1]),
            decode_notes(&streams[2]),
            decode_ranges(&streams[3]),
        );
        let (Ok(directory), Ok(pgs), Ok(notes), Ok(discards)) = decoded else {
            return self.root_failed(effects);
        };
        let segments = self.parts().superblock.data.size / SEGMENT_SIZE;
        if discards.last().is_some_and(|range| u64::from(range.end) > segments) {
            return self.root_failed(effects);
        }
        let parts = self.parts_mut();
        parts.pgs = pgs.into_iter().collect();
        parts.notes_bytes = notes.iter().map(|(_, note)| note.len() as u64).sum();
        parts.notes = notes.into_iter().map(|(key, note)| (key, note.into())).collect();
        if !directory.iter().all(|(_, page)| parts.pages.take(page.page)) {
            return self.root_failed(effects);
        }
        let opening = self.opening();
        opening.leaves = directory;
        opening.discards = discards;
        opening.stage = Stage::Leaves { asked: 0, arrived: 0 };
        self.ask_leaves(effects);
    }

    /// Reads leaves, a bounded number at once; when all are here, goes on to the journal.
    fn ask_leaves(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Opening(opening) = &mut self.phase else { unreachable!("it is opening") };
        let Stage::Leaves { asked, arrived } = &mut opening.stage else {
            unreachable!("leaves are read in their stage")
        };
        let parts = self.parts.as_ref().expect("the superblock is known");
        while *asked < opening.leaves.len() && *asked - *arrived < LEAF_READS_MAX {
            let offset = parts.page_place(opening.leaves[*asked].1.page);
            let purpose = Purpose::RecoveryLeaf { index: *asked };
            self.disk.read(&self.pool, purpose, offset, PAGE_SIZE, effects);
            *asked += 1;
        }
        if *arrived == opening.leaves.len() {
            self.begin_survey(effects);
        }
    }

    /// A leaf was read.
    pub(crate) fn recover_leaf(&mut self, index: usize, bytes: &[u8], effects: &mut Vec<Effect>) {
        let opening = self.opening();
        let (first, page) = opening.leaves[index];
        let next = opening.leaves.get(index + 1).map(|(next, _)| *next);
        if let Stage::Leaves { arrived, .. } = &mut opening.stage {
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
                if let Err(reason) = parts.load_leaf(first, page, leaf) {
                    return self.stop(reason, effects);
                }
            }
            None => {
                // The next checkpoint no longer names it; then the page is free.
                parts.stream_pages.push(page.page);
                parts.wants_checkpoint = true;
                parts.holds_places = true;
                self.opening().leaves_lost.push((first, next));
                self.count_row('S');
            }
        }
        self.ask_leaves(effects);
    }

    fn count_row(&mut self, row: char) {
        *self.opening().rows.entry(row).or_default() += 1;
    }

    /// Makes the journal ready to go on at `tail`, and queues what must be durable before the
    /// store opens.
    fn replayed(&mut self, end: Lsn, tail: Lsn, previous: Checksum, effects: &mut Vec<Effect>) {
        let cache = self.settings.memory_bytes / 4;
        let parts = self.parts.as_mut().expect("the superblock is known");
        let head = parts.root.replay;
        let Phase::Opening(opening) = &mut self.phase else {
            unreachable!("the journal is replayed before the store opens")
        };
        let acked = opening.survey.acked;
        // An idle entry at the end needs no other one that records it.
        let is_recorded = opening.replay.idle_end == Some(tail);
        let recorded = if is_recorded { tail } else { acked.min(tail) };
        let lsns = (head, recorded, tail);
        parts.journal = Journal::new(&parts.superblock, lsns, previous, cache);
        if !parts.journal.has_room(EntryKind::Idle, 0, 0) {
            // No store fills its ring so far: the older root was used, and all of a lap lies behind it.
            return self.stop(ROOT_LOST.to_owned(), effects);
        }
        parts.wants_checkpoint |= opening.root_was_lost;
        parts.holds_places |= opening.root_was_lost;
        if tail > end {
            opening.decisions.push(Decision::Cut { from: end, to: tail });
        }
        if opening.decisions.len() > DECISIONS_MAX {
            let reason = "more of the journal is damaged than can be settled by itself, and this \
                          version cannot repair it: put a copy of the disk in its place, or \
                          restore its volumes from a backup into a new pool";
            return self.stop(reason.to_owned(), effects);
        }
        self.rewrite(acked.max(head), end, effects);
    }

    /// Writes journal again that no entry records as durable, chunk by chunk: the same bytes at
    /// the same place.
    fn rewrite(&mut self, at: Lsn, end: Lsn, effects: &mut Vec<Effect>) {
        if at >= end {
            return self.plan_steps(effects);
        }
        let journal = &self.parts().journal;
        let rest = journal.size() - at.get() % journal.size();
        let size = CHUNK_SIZE.min(rest).min(end.since(at));
        let place = journal.place(at);
        let opening = self.opening();
        opening.replay.end = end;
        opening.stage = Stage::Rewrite(at);
        self.fetch(place, size as usize, effects);
    }

    fn rewrite_read(
        &mut self,
        at: Lsn,
        buffer: &Buffer,
        lost: &[Range<usize>],
        effects: &mut Vec<Effect>,
    ) {
        let is_new = |lost: &Range<usize>| !self.opening_ref().replay.is_lost(at, lost);
        if lost.iter().any(is_new) {
            let reason = "the journal could be read a moment ago and cannot be read now: look at \
                          the disk, then start this OSD again";
            return self.stop(reason.to_owned(), effects);
        }
        let place = self.parts().journal.place(at);
        let next = at.advance(buffer.len() as u64);
        self.write_read_again(place, buffer, lost, effects);
        let end = self.opening().replay.end;
        self.rewrite(next, end, effects);
    }

    /// Writes what was read again, but for what could not be read.
    fn write_read_again(
        &mut self,
        place: u64,
        buffer: &Buffer,
        lost: &[Range<usize>],
        effects: &mut Vec<Effect>,
    ) {
        let mut from = 0;
        for gap in lost.iter().cloned().chain(std::iter::once(buffer.len()..buffer.len())) {
            if from < gap.start {
                self.write_again(place + from as u64, buffer.slice(from..gap.start), effects);
            }
            from = gap.end;
        }
    }

    fn write_again(&mut self, place: u64, buffer: Buffer, effects: &mut Vec<Effect>) {
        self.opening().writes += 1;
        self.disk.write(Purpose::RecoveryWrite, place, vec![buffer], false, effects);
    }

    fn plan_steps(&mut self, effects: &mut Vec<Effect>) {
        let suspects = self.suspects();
        let is_suspicious = suspects.len() > SUSPECTS_MAX
            || self.opening().rows.keys().any(|row| crate::decide::is_suspicious(*row));
        if !is_suspicious {
            self.opening().suspects = suspects;
        }
        let parts = self.parts.as_mut().expect("the superblock is known");
        let mut steps = VecDeque::from([Step::Flush]);
        let mut write = |superblock: &mut Superblock, copy: usize| {
            superblock.sequence += 1;
            steps.push_back(Step::Write(SUPERBLOCK_OFFSETS[copy], superblock.encode()));
            steps.push_back(Step::Flush);
        };
        if is_suspicious {
            parts.superblock.suspect = Some(parts.journal.tail());
            write(&mut parts.superblock, 1);
            write(&mut parts.superblock, 0);
        } else if let Phase::Opening(opening) = &self.phase {
            for copy in &opening.superblocks_damaged {
                write(&mut parts.superblock, *copy);
            }
        }
        let opening = self.opening();
        opening.steps = steps;
        opening.stage = Stage::Steps;
        self.next_step(effects);
    }

    fn next_step(&mut self, effects: &mut Vec<Effect>) {
        if self.opening().writes > 0 {
            return;
        }
        match self.opening().steps.pop_front() {
            Some(Step::Flush) => {
                self.opening().writes += 1;
                self.disk.flush(Purpose::RecoveryFlush, effects);
            }
            Some(Step::Write(offset, bytes)) => {
                let bytes = self.pool.copy_of(&bytes);
                self.write_again(offset, bytes, effects);
            }
            None => self.journal_decisions(effects),
        }
    }

    /// A write or flush of recovery ended.
    pub(crate) fn recover_done(&mut self, effects: &mut Vec<Effect>) {
        let opening = self.opening();
        opening.writes -= 1;
        if matches!(opening.stage, Stage::Steps) {
            self.next_step(effects);
        }
    }

    fn journal_decisions(&mut self, effects: &mut Vec<Effect>) {
        self.opening().stage = Stage::Journal;
        let suspects = std::mem::take(&mut self.opening().suspects);
        if self.opening().decisions.is_empty() && suspects.is_empty() {
            return;
        }
        if !self.append_decisions() || !suspects.iter().all(|pg| self.append_suspect(*pg)) {
            let reason = "the journal has no room for recovery's decisions, and this version cannot \
                          repair that: restore its volumes from a backup into a new pool";
            return self.stop(reason.to_owned(), effects);
        }
        let parts = self.parts.as_mut().expect("the superblock is known");
        parts.journal.want_all();
        parts.journal.submit(&self.pool, &mut self.disk, effects);
    }

    /// PGs that may have had blocks in a leaf that is lost.
    fn suspects(&mut self) -> BTreeSet<PgId> {
        let lost = std::mem::take(&mut self.opening().leaves_lost);
        let parts = self.parts();
        let pgs = lost.into_iter().flat_map(|(first, next)| parts.pgs_between(first, next));
        // Of some an earlier start may have noted it, and been killed before its checkpoint.
        pgs.filter(|pg| !self.is_suspect(*pg)).collect()
    }

    /// Appends the entry with the decisions. False: the journal has no room for it.
    fn append_decisions(&mut self) -> bool {
        let opening = self.opening();
        if opening.decisions.is_empty() {
            return true;
        }
        let bytes = encode_decisions(&opening.decisions);
        let acked = opening.survey.acked;
        let (data, checksums) = self.padded(&bytes);
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

    /// Appends the entry that makes a PG suspect. False: the journal has no room for it.
    fn append_suspect(&mut self, pg: PgId) -> bool {
        let acked = self.opening().survey.acked;
        let parts = self.parts.as_mut().expect("the superblock is known");
        if !parts.journal.has_room(EntryKind::Suspect, 0, IDLE_RESERVE) {
            return false;
        }
        let mut header = EntryHeader { pg: Some(pg), ..plain_header(EntryKind::Suspect) };
        parts.journal.limit_recorded(Some(acked));
        let (lsn, _) = parts.journal.append(&mut header, None);
        parts.journal.limit_recorded(None);
        parts.change_pg(&header, pg, lsn);
        true
    }

    /// Opens the store when the decisions are durable.
    pub(crate) fn recover_settle(&mut self, effects: &mut Vec<Effect>) {
        if !matches!(self.opening().stage, Stage::Journal) {
            return;
        }
        self.settle_journal(effects);
        let parts = self.parts.as_ref().expect("the superblock is known");
        if parts.journal.durable() < parts.journal.tail() {
            return;
        }
        let blocks = parts.index.count();
        let opening = self.opening();
        let rows = std::mem::take(&mut opening.rows);
        let journal_bytes = opening.survey.bytes;
        let discards = std::mem::take(&mut opening.discards);
        self.parts_mut().discards_again = discards.into();
        self.report.rows = rows.into_iter().collect();
        self.report.journal_bytes = journal_bytes;
        self.report.blocks = blocks;
        self.phase = Phase::Open;
        self.written_at = self.now;
        effects.push(Effect::Opened);
    }
}

fn choose_superblock(
    copies: Vec<Result<Superblock, SuperblockError>>,
    device_size: u64,
) -> Result<Superblock, String> {
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
                    "this store has format {version}, written by a newer program; this one knows \
                     {}. Use the newer program",
                    format::disk::FORMAT_VERSION
                ));
            }
            Err(SuperblockError::Older(version)) => {
                return Err(format!(
                    "this store has format {version}, from before the first release; this program \
                     knows {} only. Make the OSD anew",
                    format::disk::FORMAT_VERSION
                ));
            }
            Err(SuperblockError::Unsupported(what)) => {
                return Err(format!("this store cannot be opened by this program: {what}"));
            }
            Err(SuperblockError::Damaged) => {
                errors.insert(
                    "its superblock is damaged in both copies, and this version cannot \
                               repair it: put a copy of the disk in its place, or restore its \
                               volumes from a backup into a new pool",
                );
            }
            Err(SuperblockError::NotOurs) => {
                errors.insert("there is no OSD here: `ashlar osd create` makes one");
            }
        }
    }
    let superblock =
        newest.ok_or_else(|| errors.first().map_or(String::new(), |error| error.to_string()))?;
    if device_size < superblock.size {
        return Err(format!(
            "the store has {} bytes, but the device or file only {device_size}: it was truncated",
            superblock.size
        ));
    }
    Ok(superblock)
}

impl Parts {
    /// An empty store.
    fn new(superblock: Superblock, settings: &Settings) -> Parts {
        let root = Root {
            sequence: 0,
            replay: Lsn::ZERO,
            previous: crate::create::CHAIN_START,
            directory: StreamRef::EMPTY,
            pgs: StreamRef::EMPTY,
            notes: StreamRef::EMPTY,
            discards: StreamRef::EMPTY,
        };
        let journal =
            Journal::new(&superblock, (Lsn::ZERO, Lsn::ZERO, Lsn::ZERO), root.previous, 0);
        Parts {
            index: Index::new(),
            live: BTreeMap::new(),
            live_bytes: 0,
            frozen: BTreeMap::new(),
            frozen_bytes: 0,
            reserving: Reserving::new(superblock.data.size),
            allocator: Allocator::new(superblock.data.size, settings.is_sparse),
            freed: Vec::new(),
            freed_bytes: Default::default(),
            returning_bytes: Default::default(),
            moves: Moves::default(),
            expected: 0,
            discards: VecDeque::new(),
            discards_in_flight: 0,
            discarding: BTreeMap::new(),
            discards_again: VecDeque::new(),
            journal,
            pages: Pages::new(superblock.checkpoints.size, settings.memory_bytes / 4),
            stream_pages: Vec::new(),
            root,
            pgs: BTreeMap::new(),
            notes: BTreeMap::new(),
            notes_bytes: 0,
            checkpoint: None,
            wants_checkpoint: false,
            holds_places: false,
            gives_back: false,
            rotten: BTreeMap::new(),
            damaged_units: 0,
            superblock,
        }
    }

    /// Puts a leaf's blocks into the index. The error is for people.
    fn load_leaf(&mut self, first: BlockKey, page: PageRef, leaf: LeafPage) -> Result<(), String> {
        for record in leaf.records() {
            let info = BlockInfo {
                version: record.version(),
                pg: record.pg(),
                block_size: record.block_size(),
                location: record.location(),
                tombstone: record.tombstone(),
            };
            self.index.set(record.key(), Some(info));
            self.occupy(info.location, info)?;
        }
        self.pages.set_leaf(first, Some(page));
        self.pages.keep(page, leaf.into());
        Ok(())
    }

    /// PGs that may have blocks from `first` on and before `next`, of those that are known: PGs are in
    /// the order of keys, so the blocks around tell.
    fn pgs_between(&self, first: BlockKey, next: Option<BlockKey>) -> Vec<PgId> {
        let pg_of = |(key, info): (BlockKey, BlockInfo)| PgId {
            pool: key.pool,
            number: u32::from(info.pg),
        };
        let before = self.index.last_before(first).map(pg_of).filter(|pg| pg.pool == first.pool);
        let lowest = before.unwrap_or(PgId { pool: first.pool, number: 0 });
        let behind = next.and_then(|next| self.index.iter_from(next).next()).map(pg_of);
        let may_have = |pg: &PgId| *pg >= lowest && behind.is_none_or(|behind| *pg <= behind);
        self.pgs_known().filter(may_have).collect()
    }

    /// PGs of which it has a record or a note; some twice.
    pub(crate) fn pgs_known(&self) -> impl Iterator<Item = PgId> + '_ {
        let noted = self.notes.keys().filter_map(|key| key.pg());
        self.pgs.keys().copied().chain(noted)
    }

    /// Marks a block's place as allocated. The error is for people.
    fn occupy(&mut self, location: u32, info: BlockInfo) -> Result<(), String> {
        if location == LOCATION_NONE || self.allocator.take(location, info.block_size) {
            return Ok(());
        }
        // A root that is not the newest names places that later checkpoints freed; a segment may
        // have gone to another block size since.
        let size = info.block_size;
        let is_in_the_way = |at: u32, of: BlockSize| match of == size {
            true => at == location,
            false => segment_of(at) == segment_of(location),
        };
        let freed: Vec<Freed> = self
            .freed
            .extract_if(.., |freed| is_in_the_way(freed.location, freed.block_size))
            .collect();
        for freed in freed {
            self.count_returned(freed.block_size, freed.discard);
            self.allocator.release(freed.location, freed.block_size, true);
        }
        if self.allocator.take(location, size) {
            return Ok(());
        }
        let blocks = self.index.iter_from(KEY_FIRST);
        let blocks: Vec<(BlockKey, BlockInfo)> = blocks
            .filter(|(_, other)| other.location != LOCATION_NONE)
            .filter(|(_, other)| is_in_the_way(other.location, other.block_size))
            .collect();
        if blocks.iter().all(|(key, info)| self.is_emptied(key, *info)) {
            for (key, info) in blocks {
                self.allocator.release(info.location, info.block_size, true);
                self.overlay(key, Overlay::reset);
                let empty = BlockInfo { location: LOCATION_NONE, ..info };
                self.set_info(key, Some(info), Some(empty));
            }
            if self.allocator.take(location, size) {
                return Ok(());
            }
        }
        Err(format!(
            "the index names the place {location} for two blocks, or outside of the data area, \
             and this version cannot repair that: put a copy of the disk in its place, or restore \
             its volumes from a backup into a new pool"
        ))
    }
    /// Whether all units of a block have become zeros since the root: a checkpoint takes its place
    /// away then, and no entry says so.
    fn is_emptied(&mut self, key: &BlockKey, info: BlockInfo) -> bool {
        let Some(overlay) = self.live.get(key) else { return false };
        if overlay.iter().any(|(_, state)| state != UnitState::Zero) {
            return false;
        }
        let is_zero = |unit| overlay.get(unit) == Some(UnitState::Zero);
        let not_zero: Vec<u32> =
            (0..info.block_size.unit_count()).filter(|unit| !is_zero(*unit)).collect();
        if not_zero.is_empty() {
            return true;
        }
        let leaf = self.pages.leaf_of(key).and_then(|(_, page)| self.pages.cached(page));
        let record = leaf.as_ref().and_then(|leaf| leaf.find(key));
        record.is_some_and(|record| not_zero.iter().all(|unit| record.unit(*unit).is_none()))
    }
}
