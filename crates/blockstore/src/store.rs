//! The store as a value: its interface, and the steps at the end of each event.
//!
//! ```text
//!   request ──▶ admit (space, journal room) ──▶ journal entry + index + overlay ──▶ durable ──▶ answer
//!                 │ not yet: queue                    (store/write.rs)          (journal.rs)
//!                 ▼
//!              checkpoint: write-back, flush, pages, flush, root, flush, trim    (checkpoint.rs)
//! ```
//!
//! Invariants
//!   1. The index shows the state after all accepted entries; overlays say where the content is.
//!   2. A place stays allocated as long as the index or the newest durable checkpoint refers to it.
//!   3. After a failed write or flush the store starts no more disk operations.

mod batch;
mod lag;
mod moves;
mod prepare;
mod queue;
mod records;
mod repair;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{
    BlockSize, Buffer, BufferPool, Checksum, Duration, Epoch, ImageId, Lsn, PgId, PoolId,
    StripeIndex, Time, UNIT_SIZE, Version,
};
use format::disk::{BlockKey, CommitMode, EntryKind, LOCATION_NONE, NoteKey, PgRecord};
use format::door::{DiskError, DiskEvent};

use crate::checkpoint::{Checkpoint, Gather};
use crate::disk::{Disk, Io, Purpose, ReadDone};
use crate::disk_figures::DiskFigures;
use crate::index::{BlockInfo, location_of};
use crate::journal::{Answers, IDLE_RESERVE};
use crate::metadata::MetadataCheck;
use crate::moves::Moves;
use crate::pages::LeafWaiter;
use crate::parts::Parts;
use crate::pending::{FamilyStage, Pending};
use crate::read::Reads;
use crate::recover::{EngineReplay, Recovered, Recovery, start_room};
use crate::store::lag::Lag;
use crate::store::queue::Queue;
use crate::store::records::RecordReads;
use crate::value_cache::{ValueCache, ValueCacheFigures};
use crate::{
    Answer, AsOf, Effect, EngineFound, Event, Identity, PgFacts, PreparedRoom, RecoveryReport,
    RequestId, Settings, Space,
};

/// A checkpoint gives back the space of deleted and zeroed blocks after this many times
/// [`Settings::idle_after`] without a write.
const GIVE_BACK_AFTER: u64 = 10;

/// The phases of a store, in chronological order.
enum Phase {
    /// Waits for recovery.
    Recovering(Box<Recovery>),
    /// Waits until recovery's decisions are durable in the journal.
    Confirming(Box<EngineReplay>),
    /// Waits until the engine has what it lost.
    Replaying(Box<EngineReplay>),
    /// Accepts requests.
    Open,
    /// The state of the disk is unknown; no more operations are started.
    Stopped,
}

/// One store.
pub struct Store {
    settings: Settings,
    pool: BufferPool,
    now: Time,
    disk: Disk,
    phase: Phase,
    /// The parts of the store. Set by recovery.
    parts: Option<Box<Parts>>,
    /// Data that is being read before the next checkpoint begins.
    gather: Option<Box<Gather>>,
    /// The checkpoint being made, if any.
    checkpoint: Option<Box<Checkpoint>>,
    reads: Reads,
    metadata: MetadataCheck,
    moves: Moves,
    /// Records that the engine may not have yet.
    pending: Pending,
    /// Whether a request waits for room that only flushes of the engine can make.
    wants_engine_flush: bool,
    record_reads: RecordReads,
    lag: Lag,
    value_cache: ValueCache,
    /// Requests that wait for room, or for the engine.
    queue: Queue,
    /// PGs with a refused version, and the epoch of that version. Later versions of that epoch are refused
    /// too, so that the versions of an epoch in the journal have no gap.
    refused: BTreeMap<PgId, Epoch>,
    /// The request that lacks room, if its data was compared with its checksums already.
    compared: Option<RequestId>,
    /// How often data of a batch was compared.
    #[cfg(test)]
    pub(crate) comparisons: u64,
    report: RecoveryReport,
    /// When the last entry was journaled.
    written_at: Time,
}

impl Store {
    /// Begins to open the store on a device of `device_size` bytes. This ends with [`Effect::Opened`] or
    /// [`Effect::Stopped`]; until then no request is accepted.
    pub fn open(
        settings: Settings,
        pool: BufferPool,
        device_size: u64,
        effects: &mut Vec<Effect>,
    ) -> Store {
        Store::open_with(settings, pool, (device_size, None), effects)
    }

    /// Begins to open a store that has an engine, which is open, or one that has none. A store opens with no
    /// other engine than its own, and without that only if it holds nothing; then no family may be asked for.
    pub fn open_with(
        settings: Settings,
        pool: BufferPool,
        (device_size, engine): (u64, Option<EngineFound>),
        effects: &mut Vec<Effect>,
    ) -> Store {
        let mut disk = Disk::new();
        let io = &mut Io { disk: &mut disk, pool: &pool, effects };
        let value_cache = ValueCache::new(settings.value_cache_bytes);
        let recovery = Recovery::begin(settings.clone(), (device_size, engine), io);
        Store {
            settings,
            pool,
            now: Time::ZERO,
            disk,
            phase: Phase::Recovering(Box::new(recovery)),
            parts: None,
            gather: None,
            checkpoint: None,
            reads: Reads::default(),
            metadata: MetadataCheck::default(),
            moves: Moves::default(),
            pending: Pending::default(),
            wants_engine_flush: false,
            record_reads: RecordReads::default(),
            lag: Lag::default(),
            value_cache,
            queue: Queue::default(),
            refused: BTreeMap::new(),
            compared: None,
            #[cfg(test)]
            comparisons: 0,
            report: RecoveryReport::default(),
            written_at: Time::ZERO,
        }
    }

    /// Handles one event.
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
                self.on_request(id, request, effects);
            }
            Event::Disk(event) => self.on_disk(event, effects),
            Event::Engine(event) => self.on_engine(event, effects),
            Event::Tick => {}
        }
        while !matches!(self.phase, Phase::Stopped) {
            self.settle(effects);
            if !self.take_own_answers(from, effects) {
                break;
            }
        }
        self.settle_lag(from, effects);
        if matches!(self.phase, Phase::Stopped) {
            let stopped =
                effects.iter().position(|effect| matches!(effect, Effect::Stopped { .. }));
            effects.truncate(stopped.expect("it stopped in this event") + 1);
        }
    }

    /// Whether the store accepts requests.
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Tells the store that the owner's loop is running. The owner calls it on each turn, several times a
    /// second, so that the age of operations counts only while the loop runs.
    pub fn runs(&mut self, now: Time) {
        self.disk.runs(now);
    }

    /// Returns how long the oldest read, write or flush has been in flight. Only time in which the owner's
    /// loop ran counts: at most 250 ms of the gap between two turns of the loop.
    pub fn oldest_operation(&self) -> Duration {
        self.disk.oldest()
    }

    /// Returns how long the owner's loop has run, counted as for [`Store::oldest_operation`].
    pub fn ran(&self) -> Time {
        self.disk.ran()
    }

    /// Returns the counters of disk operations since the store was opened.
    pub fn disk_figures(&self) -> DiskFigures {
        self.disk.figures()
    }

    /// Whether no disk operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.disk.is_idle()
    }

    /// Writes the entries collected since the last call as one device write. The owner calls it at the
    /// end of each turn of its loop.
    pub fn submit(&mut self, effects: &mut Vec<Effect>) {
        if let (Phase::Open, Some(parts)) = (&self.phase, &mut self.parts) {
            let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
            parts.journal.submit(io);
        }
    }

    /// Returns when the store needs an [`Event::Tick`]. This may change with every event.
    pub fn deadline(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Stopped) {
            return None;
        }
        let (Phase::Open, Some(parts)) = (&self.phase, &self.parts) else {
            return [self.disk.deadline(), self.pending.deadline()].into_iter().flatten().min();
        };
        let is_recorded = !parts.journal.is_idle_unrecorded() && !parts.journal.has_unwanted();
        let idle = (!is_recorded).then(|| self.written_at + self.settings.idle_after);
        let reserve = parts.blocks.area.deadline();
        let moves = self.moves.can_advance().then_some(self.now);
        let engine = self.pending.deadline();
        let times = [idle, self.gives_back_at(), reserve, moves, self.disk.deadline(), engine];
        times.into_iter().flatten().min()
    }

    /// Returns when a checkpoint is due that gives back the space of deleted and zeroed blocks.
    fn gives_back_at(&self) -> Option<Time> {
        let (Phase::Open, Some(parts)) = (&self.phase, &self.parts) else { return None };
        let span = Duration::from_nanos(GIVE_BACK_AFTER * self.settings.idle_after.as_nanos());
        let is_making = self.checkpoint.is_some() || self.gather.is_some();
        let is_possible = !is_making && self.has_room_for_checkpoint();
        (parts.blocks.gives_back() && is_possible).then(|| self.written_at + span)
    }

    /// Restores the invariants that hold between events: always the same steps in the same order.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        self.disk.retry(self.now, effects);
        if !matches!(self.phase, Phase::Open) {
            return self.settle_opening(effects);
        }
        self.settle_journal(effects);
        self.reserve(effects);
        self.run_queue(effects);
        self.reserve(effects);
        while self.settle_moves(effects) {
            // The queue may wait for the pass that has just ended, and no later event might wake it.
            self.run_queue(effects);
            self.reserve(effects);
        }
        self.settle_checkpoint(effects);
        self.record_idle();
        if let Some(parts) = &mut self.parts {
            let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
            // One of these steps may need lazy entries to be durable, and no later event would start the
            // flush.
            parts.journal.flush(io);
            parts.journal.write_groups(io);
        }
        self.enter_engine(effects);
    }

    /// Takes over the state that recovery found, and opens the store once recovery's decisions are durable.
    fn settle_opening(&mut self, effects: &mut Vec<Effect>) {
        if let Phase::Recovering(recovery) = &mut self.phase {
            let Some(Recovered { parts, report, pending, replay }) = recovery.finish() else {
                return;
            };
            self.parts = Some(parts);
            self.report = report;
            self.pending = pending;
            self.phase = Phase::Confirming(replay);
        }
        self.settle_journal(effects);
        let journal = &self.parts().journal;
        let is_confirmed = journal.durable() == journal.tail();
        let is_confirmed = is_confirmed || planted::on(Bug::SuspectAfterReplay);
        if let (Phase::Confirming(replay), true) = (&mut self.phase, is_confirmed) {
            self.phase = Phase::Replaying(std::mem::take(replay));
        }
        if !matches!(self.phase, Phase::Replaying(_)) {
            return;
        }
        if let Err(reason) = self.replay_to_engine(effects) {
            return self.stop(reason, effects);
        }
        let is_replayed = matches!(&self.phase, Phase::Replaying(replay) if replay.is_done());
        if is_replayed && self.pending.has_ended() {
            self.phase = Phase::Open;
            self.written_at = self.now;
            // A family that was behind is told from other copies only when its newest lsn is flushed.
            self.wants_engine_flush = self.report.rows.iter().any(|(row, _)| *row == 'h');
            effects.push(Effect::Opened);
        }
    }

    /// Reads what the engine lost, and gives it to the engine.
    fn replay_to_engine(&mut self, effects: &mut Vec<Effect>) -> Result<(), String> {
        let Store { phase, parts, pending, disk, pool, .. } = self;
        if let (Phase::Replaying(replay), Some(parts)) = (phase, parts) {
            replay.advance(parts, pending, &mut Io { disk, pool, effects })?;
        }
        self.enter_engine(effects);
        Ok(())
    }

    /// Whether the store waits for space in the engine's file system. While it opens, nothing else helps.
    pub fn waits_for_engine_space(&self) -> bool {
        self.pending.waits_for_space()
    }

    /// Returns how many bytes of the journal are kept for the engine, which does not have them durably.
    pub fn engine_behind(&self) -> u64 {
        let (low, parts) = (self.pending.low(), self.parts.as_ref());
        low.zip(parts).map_or(0, |((low, _), parts)| parts.journal.tail().since(low))
    }

    /// Returns how often the cache of values had what was asked for.
    pub fn value_cache(&self) -> ValueCacheFigures {
        self.value_cache.figures()
    }

    /// Returns from where to where the journal is kept. `None`: it is not known yet.
    pub fn journal_kept(&self) -> Option<(Lsn, Lsn)> {
        let parts = self.parts.as_ref()?;
        Some((parts.root.replay, parts.journal.tail()))
    }

    /// Whether the engine has a family for the records of this pool, which can be used.
    pub fn has_family(&self, pool: PoolId) -> bool {
        self.pending.has_family(pool)
    }

    /// Returns the pools in whose records a read or a compaction met damage.
    pub fn damaged_families(&self) -> impl Iterator<Item = PoolId> {
        self.odd_families().filter(|(_, is_stray)| !is_stray).map(|(pool, _)| pool)
    }

    /// Returns the families that a removed pool left, and the damaged ones. The flag tells which are left
    /// from a removed pool.
    pub fn odd_families(&self) -> impl Iterator<Item = (PoolId, bool)> {
        let odd = self.pending.odd_families();
        odd.map(|(pool, stage)| (pool, stage == FamilyStage::Stray))
    }

    /// Answers requests whose entries are durable, and starts the next flush.
    fn settle_journal(&mut self, effects: &mut Vec<Effect>) {
        let Some(parts) = &mut self.parts else { return };
        let mut answers = Answers::default();
        parts.journal.answer(&mut answers);
        parts.journal.flush(&mut Io { disk: &mut self.disk, pool: &self.pool, effects });
        push_answers(answers, effects);
        self.reads.on_durable(parts.journal.durable(), effects);
    }

    /// Reserves file system space before it is needed.
    fn reserve(&mut self, effects: &mut Vec<Effect>) {
        let leaves_space = self.leaves_space();
        let parts = self.parts.as_mut().expect("it is open");
        let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
        parts.blocks.area.reserve(self.now, leaves_space, io);
    }

    /// Begins a checkpoint if one is due, and advances the one being made.
    fn settle_checkpoint(&mut self, effects: &mut Vec<Effect>) {
        let mut is_due = self.is_checkpoint_due();
        if is_due && !self.has_room_for_checkpoint() {
            // Only the engine can free the head.
            self.wants_engine_flush = true;
            is_due = false;
        }
        let parts = self.parts.as_mut().expect("it is open");
        let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
        if is_due {
            self.gather = Some(Box::new(Gather::begin(parts, io)));
        }
        if let Some(gather) = self.gather.take_if(|gather| gather.is_done()) {
            self.checkpoint = Some(Box::new(Checkpoint::begin(*gather, parts, io.pool)));
        }
        if let Some(checkpoint) = &mut self.checkpoint
            && let Err(reason) = checkpoint.advance(parts, &self.pending, io)
        {
            return self.stop(reason, effects);
        }
        parts.blocks.area.discard(io);
    }

    fn is_checkpoint_due(&self) -> bool {
        if self.checkpoint.is_some() || self.gather.is_some() {
            return false;
        }
        let parts = self.parts();
        let journal_max = self.journal_size_max();
        // A flush of the engine has ended since the last root was written.
        let oldest = parts.blocks.prepared.oldest().map(|version| version.header.lsn);
        let is_held = oldest.is_none_or(|oldest| parts.root.replay < oldest);
        let frees_much = self.pending.has_families()
            && is_held
            && parts.root.replay < parts.root.until
            && parts.journal.used() > journal_max
            && self.engine_would_free() >= parts.journal.size() / 8;
        frees_much
            || parts.wants_checkpoint
            || parts.blocks.area.lacks_places(parts.record_room())
            || self.gives_back_at().is_some_and(|at| at <= self.now)
            || parts.journal.tail().since(parts.root.until) > journal_max
            || parts.blocks.overlays().live_bytes() > self.settings.memory_bytes / 4
    }

    /// Whether a checkpoint may begin. Each takes an idle entry, and while the engine holds the head it may
    /// free nothing: then it must not take the room that starts need. The room kept for copies of prepared
    /// versions is there for the checkpoint.
    fn has_room_for_checkpoint(&self) -> bool {
        let journal = &self.parts().journal;
        let reserve = match self.engine_would_free() >= IDLE_RESERVE {
            true => 0,
            false => start_room(self.sector_size()),
        };
        self.pending.low().is_none() || journal.has_room(EntryKind::Idle, 0, reserve)
    }

    /// Returns how much of the journal may be in use before a checkpoint begins, in bytes.
    fn journal_size_max(&self) -> u64 {
        self.settings.checkpoint_after_bytes.min(self.parts().journal.size() / 2)
    }

    /// Returns how many bytes of the journal a checkpoint could free now if only the engine held the head.
    fn engine_would_free(&self) -> u64 {
        let parts = self.parts();
        let low = self.pending.low().map_or(parts.journal.tail(), |(lsn, _)| lsn);
        low.since(parts.root.replay)
    }

    /// When the journal becomes idle, flushes lazy entries, and writes one entry that records that
    /// everything before it is durable.
    fn record_idle(&mut self) {
        if self.now >= self.written_at + self.settings.idle_after {
            if let Some(parts) = &mut self.parts {
                parts.journal.want_all();
            }
            self.record_durable();
        }
    }

    /// Writes an entry that records that everything is durable, unless an entry records it already.
    fn record_durable(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        if parts.journal.is_idle_unrecorded()
            && parts.has_room(EntryKind::Idle, 0, IDLE_RESERVE / 2)
        {
            parts.journal.append_idle();
        }
    }

    fn on_disk(&mut self, event: DiskEvent, effects: &mut Vec<Effect>) {
        match event {
            DiskEvent::Read { op, buffer, result } => {
                // Damage is tracked in units, but recovery looks at single sectors.
                let piece_size = match &self.phase {
                    Phase::Recovering(recovery) => recovery.piece_size(),
                    Phase::Replaying(_) => self.parts().superblock.sector_size as usize,
                    _ => UNIT_SIZE as usize,
                };
                let ended = (op, buffer, result.is_ok());
                let done = self.disk.on_read(ended, piece_size, &self.pool, effects);
                if let Some(done) = done {
                    self.on_read(done, effects);
                }
            }
            DiskEvent::Done { op, result } => match result {
                Err(DiskError::NoSpace) if self.disk.refuse(op, self.now) => {}
                Ok(()) => {
                    let purpose = self.disk.end(op);
                    self.on_done(purpose, effects);
                }
                Err(error) => match self.disk.end(op) {
                    Purpose::Reserve(locations) if error == DiskError::NoSpace => {
                        self.parts_mut().blocks.area.on_refused(&locations);
                    }
                    // A failed discard does no harm: only its space is not given back.
                    purpose @ Purpose::Discard(_) => self.on_done(purpose, effects),
                    purpose => self.poison(&purpose, &error, effects),
                },
            },
        }
    }

    fn on_read(&mut self, done: ReadDone, effects: &mut Vec<Effect>) {
        let ReadDone { purpose, bytes, lost } = done;
        let Store { disk, pool, reads, gather, checkpoint, metadata, parts, phase, .. } = self;
        let io = &mut Io { disk, pool, effects };
        let ended = match (phase, parts, purpose) {
            (Phase::Recovering(recovery), _, Purpose::RecoveryRead) => {
                recovery.on_read(bytes, &lost, io)
            }
            (Phase::Recovering(recovery), _, Purpose::RecoveryLeaf { index }) => {
                recovery.on_leaf_read(index, &bytes, io)
            }
            (Phase::Replaying(replay), Some(parts), Purpose::RecoveryRead) => {
                replay.on_read(bytes, parts, &mut self.pending)
            }
            (_, Some(parts), Purpose::Read(id, part)) => {
                reads.on_part_read(id, part, bytes, parts, io);
                Ok(())
            }
            (_, _, Purpose::Leaf { page, checksum }) => {
                self.on_leaf_read(page, checksum, &bytes, effects);
                Ok(())
            }
            (_, _, Purpose::GatherRead(data_lsn)) => {
                gather.as_mut().expect("it asked for the data").on_read(data_lsn, bytes);
                Ok(())
            }
            (_, Some(parts), Purpose::Metadata(target)) => {
                metadata.on_read(target, &bytes, &lost, parts, io);
                Ok(())
            }
            (_, Some(parts), Purpose::WriteBackRead { key, unit }) => {
                let checkpoint = checkpoint.as_mut().expect("it asked for the data");
                checkpoint.on_write_back_read(key, unit, &bytes, parts, io);
                Ok(())
            }
            (_, _, other) => unreachable!("{other:?} is no read, or not of this phase"),
        };
        if let Err(reason) = ended {
            self.stop(reason, effects);
        }
    }

    /// Passes a leaf that was read to everything that waits for it.
    fn on_leaf_read(
        &mut self,
        page: u32,
        checksum: Checksum,
        bytes: &Buffer,
        effects: &mut Vec<Effect>,
    ) {
        let (leaf, waiters) = self.parts_mut().on_leaf_read(page, checksum, bytes);
        for waiter in waiters {
            match waiter {
                LeafWaiter::Read(id) => {
                    let (parts, reads, mut io) = self.for_reads(effects);
                    reads.on_leaf_read(id, leaf.clone(), parts, &mut io);
                }
                LeafWaiter::Group(group) => {
                    let checkpoint = self.checkpoint.as_mut().expect("it waits for the leaf");
                    checkpoint.on_leaf_read(group, page, leaf.clone());
                }
            }
        }
    }

    /// Handles the successful end of an operation other than a read.
    fn on_done(&mut self, purpose: Purpose, effects: &mut Vec<Effect>) {
        if let Phase::Recovering(recovery) = &mut self.phase {
            let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
            if let Err(reason) = recovery.on_done(purpose, io) {
                self.stop(reason, effects);
            }
            return;
        }
        let parts = self.parts.as_mut().expect("made by recovery");
        let mut answers = Answers::default();
        match purpose {
            Purpose::Group(start) => parts.journal.on_group_written(start),
            Purpose::Large { lsn, index } => {
                parts.journal.on_large_written(lsn, index, &mut answers);
            }
            Purpose::Flush => parts.journal.on_flushed(&mut answers),
            Purpose::Reserve(locations) => parts.blocks.area.on_reserved(locations),
            Purpose::Discard(places) => parts.blocks.area.on_discarded(places),
            Purpose::SuperblockWrite | Purpose::SuperblockFlush => {
                let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
                match purpose {
                    Purpose::SuperblockWrite => self.metadata.on_superblock_written(io),
                    _ => self.metadata.on_superblock_flushed(parts, io),
                }
            }
            purpose => self.on_checkpoint_done(purpose, effects),
        }
        push_answers(answers, effects);
    }

    fn on_checkpoint_done(&mut self, purpose: Purpose, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_mut().expect("it is open");
        let io = &mut Io { disk: &mut self.disk, pool: &self.pool, effects };
        let checkpoint = self.checkpoint.as_mut().expect("its operation ended");
        checkpoint.on_done(purpose, parts, io);
        if let Some(finished) = self.checkpoint.take_if(|checkpoint| checkpoint.is_finished()) {
            finished.finish(parts);
        }
    }

    fn poison(&mut self, purpose: &Purpose, error: &DiskError, effects: &mut Vec<Effect>) {
        let what = match purpose {
            Purpose::Flush
            | Purpose::FlushData
            | Purpose::FlushPages
            | Purpose::FlushRoot
            | Purpose::SuperblockFlush
            | Purpose::RecoveryFlush => "a flush",
            Purpose::Group(_) => "a write to the journal",
            Purpose::LeafWrite(_) | Purpose::StreamWrite | Purpose::RootWrite => {
                "a checkpoint write"
            }
            Purpose::Reserve(_) => "a reservation of space",
            _ => "a write",
        };
        let why = match error {
            DiskError::Io(words) => words.clone(),
            DiskError::NoSpace => "no space in the file system".to_owned(),
        };
        let reason = format!(
            "{what} failed ({why}): the contents of the disk are unknown. Check the kernel log and \
             the disk's health, then start the OSD again: it recovers from its journal"
        );
        self.stop(reason, effects);
    }

    /// Stops the store for good.
    fn stop(&mut self, reason: String, effects: &mut Vec<Effect>) {
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

    /// Refuses the versions of an epoch, as if one had found no room.
    #[cfg(test)]
    pub(crate) fn refuse(&mut self, pg: PgId, epoch: Epoch) {
        self.refused.insert(pg, epoch);
    }

    /// Whether a checkpoint is being made.
    #[cfg(test)]
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Returns the version of the block or its tombstone, prepared or stable; `ZERO` if it was never
    /// written.
    pub fn version_of(&self, key: &BlockKey) -> Version {
        self.version_as_of(key, AsOf::View)
    }

    /// Returns the version of the block or its tombstone in the state selected by `as_of`; `ZERO` if the
    /// block does not exist.
    pub fn version_as_of(&self, key: &BlockKey, as_of: AsOf) -> Version {
        self.info(key, as_of).map_or(Version::ZERO, |info| info.version)
    }

    fn info(&self, key: &BlockKey, as_of: AsOf) -> Option<BlockInfo> {
        self.parts.as_ref().and_then(|parts| parts.blocks.as_of(key, as_of))
    }

    /// Whether the block has a place in the data area. A block that is all zeros or deleted has none.
    pub fn has_place(&self, key: &BlockKey) -> bool {
        location_of(self.info(key, AsOf::View)) != LOCATION_NONE
    }

    /// Whether the block is deleted and its tombstone still exists.
    pub fn is_tombstone(&self, key: &BlockKey) -> bool {
        self.info(key, AsOf::View).is_some_and(|info| info.tombstone)
    }

    /// Returns the blocks of the pool with `hash_first <= hash <= hash_last` that come after `after`, in key
    /// order: key, version, and whether the block is a tombstone. If a block has prepared versions, its
    /// newest one is returned.
    pub fn blocks(
        &self,
        pool: PoolId,
        hash_first: u32,
        hash_last: u32,
        after: Option<BlockKey>,
    ) -> impl Iterator<Item = (BlockKey, Version, bool)> + '_ {
        let mut stable = self.stable_blocks(pool, hash_first, hash_last, after).peekable();
        let from = after.unwrap_or(first_key(pool, hash_first)).max(first_key(pool, hash_first));
        let prepared = self.parts.iter();
        let mut prepared = prepared
            .flat_map(move |parts| parts.blocks.prepared.keys_from(from))
            .skip_while(move |key| after == Some(*key))
            .take_while(move |key| key.pool == pool && key.hash <= hash_last)
            .peekable();
        std::iter::from_fn(move || {
            let Some(key) = prepared.peek().copied() else { return stable.next() };
            if let Some(before) = stable.next_if(|(of, ..)| *of < key) {
                return Some(before);
            }
            stable.next_if(|(of, ..)| *of == key);
            prepared.next();
            self.info(&key, AsOf::View).map(|info| (key, info.version, info.tombstone))
        })
    }

    /// Returns the same blocks as [`Store::blocks`], but only with their stable versions.
    pub fn stable_blocks(
        &self,
        pool: PoolId,
        hash_first: u32,
        hash_last: u32,
        after: Option<BlockKey>,
    ) -> impl Iterator<Item = (BlockKey, Version, bool)> + '_ {
        let first = first_key(pool, hash_first);
        let from = after.map_or(first, |after| after.max(first));
        self.parts
            .iter()
            .flat_map(move |parts| parts.blocks.index().iter_from(from))
            .skip_while(move |(key, _)| after == Some(*key))
            .take_while(move |(key, _)| key.pool == pool && key.hash <= hash_last)
            .map(|(key, info)| (key, info.version, info.tombstone))
    }

    /// Returns the PG's last version: see [`PgFacts::last`].
    pub fn last_version(&self, pg: PgId) -> Version {
        self.facts(pg).last
    }

    /// Returns what is known about the PG in addition to its blocks. Empty during recovery; valid from
    /// [`Effect::Opened`] on.
    pub fn facts(&self, pg: PgId) -> PgFacts {
        let record = self.parts.as_ref().map(|parts| parts.pgs.get(pg));
        let PgRecord { last, committed, held, hole, floor, .. } = record.unwrap_or_default();
        PgFacts { last, committed, held, hole, floor, is_suspect: self.is_suspect(pg) }
    }

    /// Returns a note, even if it is not durable yet.
    pub fn note(&self, key: NoteKey) -> Option<&[u8]> {
        self.parts.as_ref().and_then(|parts| parts.notes.get(&key))
    }

    /// Returns all notes in order.
    pub fn notes(&self) -> impl Iterator<Item = (NoteKey, &[u8])> + '_ {
        self.parts.iter().flat_map(|parts| parts.notes.iter())
    }

    /// Sets the block sizes that will be written; [`Space::sure_bytes`] is computed for them. Requires:
    /// opened.
    pub fn expect_blocks(&mut self, sizes: impl Iterator<Item = BlockSize>) {
        self.parts_mut().blocks.area.expect(sizes.collect());
    }

    /// Returns the space for data.
    pub fn space(&self) -> Space {
        let Some(parts) = &self.parts else { return Space::default() };
        let area = &parts.blocks.area;
        let moves = (!self.moves.are_fruitless(area), self.moves.is_moving(area));
        area.space(parts.record_room(), self.disk.has_no_space(), moves)
    }

    /// Informs the store that writes wait until this many bytes are ready. Returns whether a checkpoint is
    /// needed for that, because places were freed that can be used after the next one: then it begins with
    /// the next event.
    pub fn want_bytes(&mut self, bytes: u64) -> bool {
        let Some(parts) = self.parts.as_mut() else { return false };
        let room = parts.record_room();
        let lacked = parts.blocks.area.lacks_places(room);
        parts.blocks.area.want_bytes(bytes);
        !lacked && parts.blocks.area.lacks_places(room)
    }

    /// Returns the room for prepared versions. A primary assigns a version only within the room that every
    /// member has promised it, and all promises of this store together fit into its free room. Empty during
    /// recovery.
    pub fn prepared_room(&self) -> PreparedRoom {
        let room = |parts: &Parts| parts.blocks.prepared.room(parts.journal.size());
        self.parts.as_deref().map(room).unwrap_or_default()
    }

    /// Returns how much of that room the PG's prepared versions take, in bytes.
    pub fn prepared_room_used_by(&self, pg: PgId) -> u64 {
        self.parts.as_deref().map_or(0, |parts| parts.blocks.prepared.room_used_by(pg))
    }

    /// Returns the PGs that have prepared versions, ascending.
    pub fn prepared_pgs(&self) -> impl Iterator<Item = PgId> + '_ {
        self.parts.iter().flat_map(|parts| parts.blocks.prepared.pgs_with_versions())
    }

    /// Returns the PG's oldest prepared version whose original data is lost, as far as recovery or a
    /// checkpoint has noticed. The member reports itself complete only up to the version before. Versions
    /// prepared by peering do not count.
    pub fn first_lost(&self, pg: PgId) -> Option<Version> {
        self.parts.as_ref()?.blocks.prepared.first_lost(pg)
    }

    /// Returns the PGs in which an image has blocks that take space, and how many bytes they take. Cheap:
    /// the numbers are kept up to date.
    pub fn space_of(&self, image: ImageId) -> impl Iterator<Item = (PgId, u64)> + '_ {
        self.parts.iter().flat_map(move |parts| parts.blocks.index().used_by(image))
    }

    /// Returns the images with blocks that take space.
    pub fn images(&self) -> BTreeSet<ImageId> {
        self.parts.iter().flat_map(|parts| parts.blocks.index().images()).collect()
    }

    /// Returns the images whose space has changed since the last call.
    pub fn take_images_changed(&mut self) -> BTreeSet<ImageId> {
        self.parts.as_mut().map_or_else(BTreeSet::new, |parts| parts.blocks.take_images_changed())
    }

    /// Whether recovery found damage that may have destroyed acknowledged writes of this PG.
    pub fn is_suspect(&self, pg: PgId) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.is_suspect(pg))
    }

    /// Whether recovery found damage that the operator has not yet accepted for every known PG. If the store
    /// has no record of any PG, the damage counts as not accepted: the PG records themselves may have been
    /// lost.
    pub fn has_unsettled_damage(&self) -> bool {
        let Some(parts) = &self.parts else { return false };
        let mut known = parts.pgs_known().peekable();
        let knows_none = known.peek().is_none();
        match parts.superblock.suspect {
            Some(_) if knows_none => true,
            _ => known.any(|pg| self.is_suspect(pg)),
        }
    }

    /// Returns how writes become durable. Requires: opened.
    pub fn commit_mode(&self) -> CommitMode {
        self.parts().superblock.commit
    }

    /// Returns the identity of the store. Requires: opened.
    pub fn identity(&self) -> Identity {
        let superblock = &self.parts().superblock;
        Identity { store: superblock.store, cluster: superblock.cluster, osd: superblock.osd }
    }

    /// Returns what recovery found.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.report.clone()
    }

    /// Returns the number of units found damaged since the start, and not rewritten or discarded since.
    pub fn damaged_units_left(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.blocks.damage.left_count())
    }

    /// Returns the number of damaged units found since the start, including pages of the store's metadata.
    pub fn damaged_units_count(&self) -> u64 {
        let count = |parts: &Parts| parts.blocks.damage.found_count() + parts.metadata_damage_count;
        self.parts.as_deref().map_or(0, count)
    }

    /// Whether requests wait for the journal or for space. Accept no more requests from clients while this
    /// is true. What waits for the engine alone does not count: see [`Store::is_lagging`].
    pub fn is_congested(&self) -> bool {
        self.queue.lacks_room(self.engine_takes())
    }
}

/// Returns the lowest possible key of a block in the pool with at least this hash.
fn first_key(pool: PoolId, hash: u32) -> BlockKey {
    BlockKey { pool, hash, image: ImageId::FIRST, stripe: StripeIndex::ZERO }
}

fn push_answers(answers: Answers, effects: &mut Vec<Effect>) {
    let durable = answers.durable.into_iter().map(|id| (id, Answer::Durable));
    let written = answers.written.into_iter().map(|id| (id, Answer::Written));
    effects
        .extend(durable.chain(written).map(|(id, answer)| Effect::Done { id, result: Ok(answer) }));
}
