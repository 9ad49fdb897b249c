//! The store as a value: its parts, the one door into it, and what it does at the end of each event.
//!
//! ```text
//!   request ──▶ admit (space, journal room) ──▶ journal entry + index + overlay ──▶ durable ──▶ answer
//!                 │ not yet: queue                    (write.rs)                (journal.rs)
//!                 ▼
//!              checkpoint: write-back, flush, pages, flush, root, flush, trim    (checkpoint.rs)
//! ```
//!
//! Invariants
//!   1. The index is what all accepted entries left; overlays say where the content is.
//!   2. A place is allocated while the index, or the newest durable checkpoint, names it.
//!   3. After a failed write or flush the store asks nothing more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use base::{
    BufferPool, Duration, Epoch, ImageId, Lsn, PgId, PoolId, StripeIndex, Time, UNIT_SIZE, Version,
};
use format::disk::{LOCATION_NONE, LOCATION_STEP, PgRecord, Root, Superblock, UnitSet};
use format::door::{DiskError, DiskEvent};

use crate::allocate::{Allocator, BySize};
use crate::checkpoint::Checkpoint;
use crate::dirty::Overlay;
use crate::disk::{Disk, Purpose, ReadDone};
use crate::index::Index;
use crate::journal::{Answers, IDLE_RESERVE, Journal};
use crate::moves::Moves;
use crate::pages::Pages;
use crate::read::Read;
use crate::recover::Opening;
use crate::space::{Discard, Freed, Reserving};
use crate::write::place_of;
use crate::{
    Answer, BlockKey, CommitMode, Effect, Event, Identity, NoteKey, PgFacts, RecoveryReport,
    Request, RequestId, Settings, Space,
};

/// Space of what was deleted or zeroed is given back when the journal was idle for so many times
/// the span after which it counts as idle.
const GIVE_BACK_AFTER: u64 = 10;

/// The life of a store, in the order of time.
pub(crate) enum Phase {
    /// Waits for recovery.
    Opening(Box<Opening>),
    /// Takes requests.
    Open,
    /// Nothing is known any more; nothing is asked.
    Stopped,
}

/// Everything that needs the superblock; made once it is known.
pub(crate) struct Parts {
    pub superblock: Superblock,
    pub index: Index,
    /// Changes since the last checkpoint began.
    pub live: BTreeMap<BlockKey, Overlay>,
    pub live_bytes: u64,
    /// Changes that the checkpoint being made writes.
    pub frozen: BTreeMap<BlockKey, Overlay>,
    pub frozen_bytes: u64,
    pub allocator: Allocator,
    /// Space of the file system that is reserved ahead of its use.
    pub reserving: Reserving,
    /// Freed since the last checkpoint began.
    pub freed: Vec<Freed>,
    /// Bytes of blocks that are freed but not to be allocated yet.
    pub freed_bytes: BySize<u64>,
    /// Of those what needs only a checkpoint; the first number is of what comes back without space.
    pub returning_bytes: BySize<u64>,
    /// Blocks that are moved to make places for others.
    pub moves: Moves,
    /// Sizes of the blocks of pools that have a part here, by shift.
    pub expected: u32,
    /// Ranges to give back to the device before their blocks are allocated again.
    pub discards: VecDeque<Discard>,
    pub discards_in_flight: usize,
    /// Blocks whose space is being given back, by segment.
    pub discarding: BTreeMap<u32, u32>,
    /// Segments in which a crash may have come before space was given back.
    pub discards_again: VecDeque<Range<u32>>,
    pub journal: Journal,
    pub pages: Pages,
    /// Pages of the streams of the newest durable root.
    pub stream_pages: Vec<u32>,
    pub root: Root,
    pub pgs: BTreeMap<PgId, PgRecord>,
    pub notes: BTreeMap<NoteKey, Rc<[u8]>>,
    pub notes_bytes: u64,
    pub checkpoint: Option<Box<Checkpoint>>,
    pub wants_checkpoint: bool,
    /// Something that the newest durable root names could not be read at the start, and may be readable at
    /// the next one. Its places look free: until a checkpoint of this run is durable none is used or given
    /// back.
    pub holds_places: bool,
    /// Something was deleted or zeroed since the last checkpoint began: the next one gives space
    /// back.
    pub gives_back: bool,
    /// Units that reads found damaged, until they are written again.
    pub rotten: BTreeMap<BlockKey, UnitSet>,
    pub damaged_units: u64,
}

/// One store.
pub struct Store {
    pub(crate) settings: Settings,
    pub(crate) pool: BufferPool,
    pub(crate) device_size: u64,
    pub(crate) now: Time,
    pub(crate) disk: Disk,
    pub(crate) phase: Phase,
    pub(crate) parts: Option<Box<Parts>>,
    /// Requests that wait for the journal or for space, in order.
    pub(crate) queue: VecDeque<(RequestId, Request)>,
    pub(crate) reads: BTreeMap<RequestId, Read>,
    /// Answers of overtaken reads. They hold what later requests wrote, so they wait until
    /// everything before the lsn is durable: a power cut must not take back what was read.
    pub(crate) held: Vec<(Lsn, Effect)>,
    /// PGs of which a version was refused, and its epoch: no later version of it is taken, so that
    /// what the journal keeps of an epoch has no gap.
    pub(crate) refused: BTreeMap<PgId, Epoch>,
    pub(crate) report: RecoveryReport,
    /// When the last entry was made.
    pub(crate) written_at: Time,
}

impl Store {
    /// Begins to open the store on a device of `device_size` bytes: emits the first reads. Ends
    /// with [`Effect::Opened`] or [`Effect::Stopped`]; until then no request is accepted.
    pub fn open(
        settings: Settings,
        pool: BufferPool,
        device_size: u64,
        effects: &mut Vec<Effect>,
    ) -> Store {
        let mut store = Store {
            settings,
            pool,
            device_size,
            now: Time::ZERO,
            disk: Disk::new(),
            phase: Phase::Opening(Box::default()),
            parts: None,
            queue: VecDeque::new(),
            reads: BTreeMap::new(),
            held: Vec::new(),
            refused: BTreeMap::new(),
            report: RecoveryReport::default(),
            written_at: Time::ZERO,
        };
        store.recover_begin(effects);
        store
    }

    /// Takes one event.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.now = now;
        self.disk.runs(now);
        let from = effects.len();
        match event {
            Event::Request { id, request } => {
                assert!(matches!(self.phase, Phase::Open), "requests come after Opened");
                self.request(id, request, effects);
            }
            Event::Disk(event) => self.disk_event(event, effects),
            Event::Tick => {}
        }
        while !matches!(self.phase, Phase::Stopped) {
            self.settle(effects);
            if !self.take_own_answers(from, effects) {
                break;
            }
        }
        if matches!(self.phase, Phase::Stopped) {
            let stopped =
                effects.iter().position(|effect| matches!(effect, Effect::Stopped { .. }));
            effects.truncate(stopped.expect("it stopped in this event") + 1);
        }
    }

    /// The owner's loop runs, and has nothing to tell. Called with each turn, several times a second.
    pub fn runs(&mut self, now: Time) {
        self.disk.runs(now);
    }

    /// For how long the oldest read, write or flush of the disk has been under way, as long as the
    /// owner's loop ran: of a gap between two of its turns 250 ms count at most.
    pub fn oldest_operation(&self) -> Duration {
        self.disk.oldest()
    }

    /// For how long the owner's loop ran, counted likewise.
    pub fn ran(&self) -> Time {
        self.disk.ran()
    }

    /// Whether every operation that was asked of the disk has ended.
    pub fn is_idle(&self) -> bool {
        self.disk.is_idle()
    }

    /// Writes the entries collected since the last call, as one device write. The owner calls it
    /// at the end of each turn of its loop.
    pub fn submit(&mut self, effects: &mut Vec<Effect>) {
        if let (Phase::Open, Some(parts)) = (&self.phase, &mut self.parts) {
            parts.journal.submit(&self.pool, &mut self.disk, effects);
        }
    }

    /// When the store wants a [`Event::Tick`]; may change with every event.
    pub fn deadline(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Stopped) {
            return None;
        }
        let idle = match (&self.phase, &self.parts) {
            (Phase::Open, Some(parts))
                if parts.journal.is_idle_unrecorded() || parts.journal.has_unwanted() =>
            {
                Some(self.written_at + self.settings.idle_after)
            }
            _ => None,
        };
        let reserve = match (&self.phase, &self.parts) {
            (Phase::Open, Some(parts)) => parts.reserving.deadline(),
            _ => None,
        };
        let moves = match (&self.phase, &self.parts) {
            (Phase::Open, Some(parts)) => parts.has_move_to_make().then_some(self.now),
            _ => None,
        };
        let times = [idle, self.gives_back_at(), reserve, moves, self.disk.deadline()];
        times.into_iter().flatten().min()
    }

    /// When a checkpoint is made to give back the space of what was deleted or zeroed.
    pub(crate) fn gives_back_at(&self) -> Option<Time> {
        let (Phase::Open, Some(parts)) = (&self.phase, &self.parts) else { return None };
        let span = Duration::from_nanos(GIVE_BACK_AFTER * self.settings.idle_after.as_nanos());
        (parts.gives_back && parts.checkpoint.is_none()).then(|| self.written_at + span)
    }

    /// Restores what holds between events; always the same steps in the same order.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        self.disk.retry(self.now, effects);
        if matches!(self.phase, Phase::Opening(_)) {
            return self.recover_settle(effects);
        }
        self.settle_journal(effects);
        self.reserve(effects);
        self.run_queue(effects);
        self.reserve(effects);
        self.settle_moves(effects);
        self.checkpoint_settle(effects);
        self.record_idle();
        if let Some(parts) = &mut self.parts {
            // Somebody may want now what was written lazily long ago: no event would follow.
            parts.journal.flush(&mut self.disk, effects);
            parts.journal.write_groups(&self.pool, &mut self.disk, effects);
        }
    }

    /// Answers what is durable and asks for the next flush.
    pub(crate) fn settle_journal(&mut self, effects: &mut Vec<Effect>) {
        let Some(parts) = &mut self.parts else { return };
        let mut answers = Answers::default();
        parts.journal.answer(&mut answers);
        parts.journal.flush(&mut self.disk, effects);
        push_answers(answers, effects);
        let durable = parts.journal.durable();
        effects.extend(self.held.extract_if(.., |(lsn, _)| *lsn <= durable).map(|(_, held)| held));
    }

    /// When the journal has fallen idle, what was written lazily is flushed, and one entry says that
    /// all before it is durable.
    fn record_idle(&mut self) {
        if self.now >= self.written_at + self.settings.idle_after {
            if let Some(parts) = &mut self.parts {
                parts.journal.want_all();
            }
            self.record_durable();
        }
    }

    /// Writes an entry that says so where everything is durable and none says it yet.
    pub(crate) fn record_durable(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        if parts.journal.is_idle_unrecorded()
            && parts.journal.has_room(format::disk::EntryKind::Idle, 0, IDLE_RESERVE / 2)
        {
            parts.journal.append_idle();
        }
    }

    fn disk_event(&mut self, event: DiskEvent, effects: &mut Vec<Effect>) {
        match event {
            DiskEvent::Read { op, buffer, result } => {
                // Content is told by units; recovery looks at single sectors.
                let piece_size = match (&self.phase, &self.parts) {
                    (Phase::Opening(_), Some(parts)) => parts.superblock.sector_size as usize,
                    _ => UNIT_SIZE as usize,
                };
                let ended = (op, buffer, result.is_ok());
                let done = self.disk.read_ended(ended, piece_size, &self.pool, effects);
                if let Some(done) = done {
                    self.read_done(done, effects);
                }
            }
            DiskEvent::Done { op, result } => match result {
                Err(DiskError::NoSpace) if self.disk.refuse(op, self.now) => {}
                Ok(()) => {
                    let purpose = self.disk.end(op);
                    self.disk_done(purpose, effects);
                }
                Err(error) => match self.disk.end(op) {
                    Purpose::Reserve(locations) if error == DiskError::NoSpace => {
                        self.parts_mut().reserving.refused(&locations);
                    }
                    // It only gives space back: what was not given back is only not free.
                    purpose @ Purpose::Discard(_) => self.disk_done(purpose, effects),
                    purpose => self.poison(&purpose, &error, effects),
                },
            },
        }
    }

    fn read_done(&mut self, done: ReadDone, effects: &mut Vec<Effect>) {
        let ReadDone { purpose, bytes, lost } = done;
        match purpose {
            Purpose::Read(id, part) => self.read_part(id, part, bytes, effects),
            Purpose::Leaf { page, checksum } => self.leaf_read(page, checksum, &bytes, effects),
            Purpose::WriteBackRead { key, unit } => {
                self.write_back_read(key, unit, &bytes, effects);
            }
            Purpose::RecoveryRead => self.recover_read(bytes, &lost, effects),
            Purpose::RecoveryLeaf { index } => self.recover_leaf(index, &bytes, effects),
            other => unreachable!("{other:?} is no read"),
        }
    }

    fn disk_done(&mut self, purpose: Purpose, effects: &mut Vec<Effect>) {
        let mut answers = Answers::default();
        match purpose {
            Purpose::Group(start) => self.parts_mut().journal.group_written(start),
            Purpose::Large(lsn) => self.parts_mut().journal.large_written(lsn, &mut answers),
            Purpose::Flush => self.parts_mut().journal.flush_done(&mut answers),
            Purpose::Reserve(locations) => self.parts_mut().reserved(locations),
            Purpose::Discard(blocks) => self.parts_mut().discarded(blocks),
            Purpose::RecoveryWrite | Purpose::RecoveryFlush => self.recover_done(effects),
            purpose => self.checkpoint_done(purpose, effects),
        }
        push_answers(answers, effects);
    }

    fn poison(&mut self, purpose: &Purpose, error: &DiskError, effects: &mut Vec<Effect>) {
        let what = match purpose {
            Purpose::Flush
            | Purpose::FlushData
            | Purpose::FlushPages
            | Purpose::FlushRoot
            | Purpose::RecoveryFlush => "a flush",
            Purpose::Group(_) => "a write to the journal",
            Purpose::LeafWrite(_) | Purpose::StreamWrite | Purpose::RootWrite => {
                "a write of a checkpoint"
            }
            Purpose::Reserve(_) => "a reservation of space",
            _ => "a write",
        };
        let why = match error {
            DiskError::Io(words) => words.clone(),
            DiskError::NoSpace => "no space in the file system".to_owned(),
        };
        let reason = format!(
            "{what} failed ({why}): what is on the disk is not known any more. Look at the \
             kernel's log and the disk's health, then start the OSD again: it recovers from its \
             journal"
        );
        self.stop(reason, effects);
    }

    /// Stops for good.
    pub(crate) fn stop(&mut self, reason: String, effects: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Stopped) {
            self.phase = Phase::Stopped;
            effects.push(Effect::Stopped { reason });
        }
    }

    pub(crate) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("made before anything asks for them")
    }

    pub(crate) fn parts_mut(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("made before anything asks for them")
    }

    /// The block's version, a tombstone's too; `ZERO` where it was never written.
    pub fn version_of(&self, key: &BlockKey) -> Version {
        self.parts
            .as_ref()
            .and_then(|parts| parts.index.get(key))
            .map_or(Version::ZERO, |info| info.version)
    }

    /// Whether the block has a place in the data area: one that was only zeroed or deleted has none.
    pub fn has_place(&self, key: &BlockKey) -> bool {
        let info = self.parts.as_ref().and_then(|parts| parts.index.get(key));
        place_of(info) != LOCATION_NONE
    }

    /// Whether the block is deleted and its tombstone is still here.
    pub fn is_tombstone(&self, key: &BlockKey) -> bool {
        let info = self.parts.as_ref().and_then(|parts| parts.index.get(key));
        info.is_some_and(|info| info.tombstone)
    }

    /// Blocks of the pool with `hash_first <= hash <= hash_last`, in order, from behind `after`:
    /// (key, version, whether it is a tombstone).
    pub fn blocks(
        &self,
        pool: PoolId,
        hash_first: u32,
        hash_last: u32,
        after: Option<BlockKey>,
    ) -> impl Iterator<Item = (BlockKey, Version, bool)> + '_ {
        let first = BlockKey {
            pool,
            hash: hash_first,
            image: base::ImageId::FIRST,
            stripe: StripeIndex::ZERO,
        };
        let from = after.map_or(first, |after| after.max(first));
        self.parts
            .iter()
            .flat_map(move |parts| parts.index.iter_from(from))
            .skip_while(move |(key, _)| after == Some(*key))
            .take_while(move |(key, _)| key.pool == pool && key.hash <= hash_last)
            .map(|(key, info)| (key, info.version, info.tombstone))
    }

    /// The highest version of a write, zero or delete ever accepted for the PG.
    pub fn last_version(&self, pg: PgId) -> Version {
        self.facts(pg).last
    }

    /// What is known of the PG besides its blocks. Meaningful once opened.
    pub fn facts(&self, pg: PgId) -> PgFacts {
        let record = self.parts.as_ref().and_then(|parts| parts.pgs.get(&pg)).copied();
        let PgRecord { last, held, hole, floor, .. } = record.unwrap_or_default();
        PgFacts { last, held, hole, floor, is_suspect: self.is_suspect(pg) }
    }

    /// A note, durable or on its way.
    pub fn note(&self, key: NoteKey) -> Option<&[u8]> {
        self.parts.as_ref().and_then(|parts| parts.notes.get(&key)).map(|note| &note[..])
    }

    /// All notes in order.
    pub fn notes(&self) -> impl Iterator<Item = (NoteKey, &[u8])> + '_ {
        self.parts.iter().flat_map(|parts| parts.notes.iter().map(|(key, note)| (*key, &note[..])))
    }

    /// Space for data.
    pub fn space(&self) -> Space {
        match &self.parts {
            Some(parts) => parts.space(self.disk.has_no_space()),
            None => Space::default(),
        }
    }

    /// PGs in which an image has blocks that take space, and how many bytes: whole blocks. Cheap: it
    /// is counted as it changes.
    pub fn space_of(&self, image: ImageId) -> impl Iterator<Item = (PgId, u64)> + '_ {
        self.parts.iter().flat_map(move |parts| parts.index.used_by(image))
    }

    /// Images that have blocks that take space.
    pub fn images(&self) -> BTreeSet<ImageId> {
        self.parts.iter().flat_map(|parts| parts.index.images()).collect()
    }

    /// Images whose space has changed since this was last asked.
    pub fn take_images_changed(&mut self) -> BTreeSet<ImageId> {
        self.parts.as_mut().map_or_else(BTreeSet::new, |parts| parts.index.take_used_changed())
    }

    /// Whether recovery found damage that may have cost this PG acknowledged writes.
    pub fn is_suspect(&self, pg: PgId) -> bool {
        let Some(parts) = &self.parts else { return false };
        let record = parts.pgs.get(&pg).copied().unwrap_or_default();
        let suspect = parts.superblock.suspect.max(record.suspect);
        suspect.is_some_and(|at| record.absolved.is_none_or(|absolved| absolved < at))
    }

    /// Whether recovery found damage that is not settled for every PG the store knows of. A PG it
    /// knows nothing of stays suspect here: what was known may be what is lost.
    pub fn has_unsettled_damage(&self) -> bool {
        let Some(parts) = &self.parts else { return false };
        let mut known = parts.pgs_known().peekable();
        let knows_none = known.peek().is_none();
        match parts.superblock.suspect {
            Some(_) if knows_none => true,
            _ => known.any(|pg| self.is_suspect(pg)),
        }
    }

    /// When a write is durable. Requires: opened.
    pub fn commit_mode(&self) -> CommitMode {
        self.parts().superblock.commit
    }

    /// Who it is. Requires: opened.
    pub fn identity(&self) -> Identity {
        let superblock = &self.parts().superblock;
        Identity { store: superblock.store, cluster: superblock.cluster, osd: superblock.osd }
    }

    /// What recovery found.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.report.clone()
    }

    /// Damaged units met since the start.
    pub fn damaged_units_count(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.damaged_units)
    }

    /// Whether writes wait for the journal or for space: take no more from clients until it ends.
    pub fn is_congested(&self) -> bool {
        !self.queue.is_empty()
    }
}

impl Parts {
    /// Place of a block on the device.
    pub fn place(&self, location: u32) -> u64 {
        self.superblock.data.offset + location as u64 * LOCATION_STEP
    }

    /// Place of a checkpoint page on the device.
    pub fn page_place(&self, page: u32) -> u64 {
        self.superblock.checkpoints.offset + page as u64 * format::disk::PAGE_SIZE as u64
    }

    /// Place of the checkpoint's root.
    pub fn root_place(&self, sequence: u64) -> u64 {
        self.page_place(crate::pages::ROOT_PAGES[(sequence % 2) as usize])
    }
}

fn push_answers(answers: Answers, effects: &mut Vec<Effect>) {
    let durable = answers.durable.into_iter().map(|id| (id, Answer::Durable));
    let written = answers.written.into_iter().map(|id| (id, Answer::Written));
    effects
        .extend(durable.chain(written).map(|(id, answer)| Effect::Done { id, result: Ok(answer) }));
}
