//! The families of the engine, as the journal knows them: which there are, which entries the engine does not have yet
//! (*pending*), and which it may still lose (*unflushed*). See rules 5 to 11 of `docs/internals/objects.md`.
//!
//! ```text
//!   journaled ──durable──▶ Waiting ──▶ Entering(op) ──write ended──▶ Ended ──reads before have ended──▶ forgotten
//!                             ▲             │
//!                             └────Full─────┘
//! ```
//!
//! Invariants
//!   1. Entries of a family lie in the order of their lsns, and enter the engine in that order.
//!   2. No entry enters before everything up to its end is durable.
//!   3. What an open read may lack is here: an entry is forgotten only when all reads have ended that were requested
//!      before its write ended.
//!   4. The journal is kept from the lowest *low* on: the oldest entry of a family that no `Flushed` has covered.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{Checksum, Duration, Lsn, PoolId, Time};
use format::disk::FamilyRecord;
use format::engine::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineOp, Query, Records, Scan,
};

use crate::RequestId;
use crate::newest_changes::{Bounds, NewestChanges, Place};

/// Maximum number of writes of the engine under way: half of what it takes.
const WRITES_IN_FLIGHT_MAX: usize = format::engine::WRITE_COUNT_MAX / 2;
/// Maximum number of flushes of the engine under way.
const FLUSHES_IN_FLIGHT_MAX: usize = format::engine::FLUSH_COUNT_MAX / 4;
/// How long to wait before something is repeated that the engine had no space for.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Of the unflushed entries in a part of the journal of this size, in bytes, only the first one is known.
const LOW_SPAN: u64 = 64 << 10;

/// The number of a read: one more with each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ReadNumber(pub u64);

/// An entry of the journal, and how replay can begin at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryPlace {
    pub lsn: Lsn,
    pub end: Lsn,
    /// Checksum of the entry before it.
    pub previous: Checksum,
}

/// The families of the engine.
#[derive(Default)]
pub struct Pending {
    families: BTreeMap<PoolId, Family>,
    /// Writes, creations and removals under way: their families and lsns.
    writes: BTreeMap<EngineOp, (PoolId, Lsn)>,
    /// Flushes under way.
    flushes: BTreeMap<EngineOp, PoolId>,
    op_last: u64,
    size: usize,
    /// The end of the newest entry of a creation or removal.
    families_end: Lsn,
}

/// A family, as recovery found it or will make it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyStart {
    pub pool: PoolId,
    pub compression: Compression,
    /// What the engine has of it: all up to this lsn, durably.
    pub lsn: Lsn,
    /// Whether the journal knows of it. If not, it is left from a pool that was removed.
    pub is_named: bool,
    /// Whether a compaction met damage in it.
    pub is_damaged: bool,
}

struct Family {
    compression: Compression,
    /// Tells a family from an earlier one of the same pool.
    number: u64,
    stage: FamilyStage,
    entries: VecDeque<Entry>,
    /// How many entries are gone: the number of the first one that is there.
    gone_count: u64,
    /// Where the newest change of each key lies in the entries.
    newest: NewestChanges,
    /// The engine had no space: when to repeat.
    retry_at: Option<Time>,
    /// Whether the engine had no space for the last write that ended.
    is_full: bool,
    entering_count: usize,
    /// The engine has everything up to this lsn, perhaps not durably.
    ended: Lsn,
    /// The engine told, or was found with, this lsn.
    flushed: Lsn,
    /// What the engine may lose, or does not have.
    unflushed: VecDeque<Unflushed>,
    flush: Flush,
    is_damaged: bool,
}

/// Whether a family can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FamilyStage {
    /// Batches and reads are accepted.
    There,
    /// The journal does not know of it: a removed pool left it.
    Stray,
    /// Waits until the engine has created it; then the request is answered, if there is one.
    Creating(Option<RequestId>),
    /// Waits until the engine has removed it.
    Removing(Option<RequestId>),
}

/// Entries of a family that lie close together in the journal.
struct Unflushed {
    first: Lsn,
    previous: Checksum,
    last: Lsn,
}

enum Flush {
    Idle,
    UnderWay,
    /// The engine had no space.
    RetryAt(Time),
}

struct Entry {
    lsn: Lsn,
    end: Lsn,
    work: Work,
    stage: Stage,
}

impl Entry {
    fn new((lsn, end): (Lsn, Lsn), work: Work) -> Entry {
        Entry { lsn, end, work, stage: Stage::Waiting }
    }
}

enum Work {
    Write(Arc<[Change]>),
    /// When the family is there, this becomes an empty write, so that its lsn tells this family from earlier
    /// ones; unless the journal has no entry for it.
    Create {
        compression: Compression,
        is_recorded: bool,
    },
    Remove,
}

impl Work {
    fn changes(&self) -> &[Change] {
        if let Work::Write(changes) = self { changes } else { &[] }
    }

    fn is_write(&self) -> bool {
        matches!(self, Work::Write(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits until it is durable, or until the engine has room.
    Waiting,
    /// Waits for the engine.
    Entering,
    /// The engine has it. Reads up to this one may still lack it.
    Ended(ReadNumber),
}

impl Family {
    fn new(compression: Compression, number: u64, stage: FamilyStage) -> Family {
        Family {
            compression,
            number,
            stage,
            entries: VecDeque::new(),
            gone_count: 0,
            newest: NewestChanges::default(),
            retry_at: None,
            is_full: false,
            entering_count: 0,
            ended: Lsn::ZERO,
            flushed: Lsn::ZERO,
            unflushed: VecDeque::new(),
            flush: Flush::Idle,
            is_damaged: false,
        }
    }

    /// Returns index and lsn of the next entry that the engine may have.
    fn next(&mut self, durable: Lsn, now: Time) -> Option<(usize, Lsn)> {
        match self.retry_at {
            Some(at) if self.entering_count > 0 || now < at => return None,
            _ => self.retry_at = None,
        }
        let begun = self.entries.partition_point(|entry| entry.stage != Stage::Waiting);
        let entry = self.entries.get(begun).filter(|entry| entry.end <= durable)?;
        // A creation or removal has the family to itself.
        let before = begun.checked_sub(1).map(|before| &self.entries[before]);
        let is_alone = entry.work.is_write() && before.is_none_or(|before| before.work.is_write());
        (is_alone || self.entering_count == 0).then_some((begun, entry.lsn))
    }

    fn push(&mut self, EntryPlace { lsn, end, previous }: EntryPlace, work: Work) {
        assert!(lsn > Lsn::ZERO, "a family without batches has this lsn");
        self.push_entry(Entry::new((lsn, end), work));
        match self.unflushed.back_mut() {
            Some(last) if lsn.since(last.first) < LOW_SPAN => last.last = lsn,
            _ => self.unflushed.push_back(Unflushed { first: lsn, previous, last: lsn }),
        }
    }

    fn push_entry(&mut self, entry: Entry) {
        assert!(self.entries.back().is_none_or(|last| last.lsn <= entry.lsn));
        self.newest.add(self.gone_count + self.entries.len() as u64, entry.work.changes());
        self.entries.push_back(entry);
    }

    /// Removes the oldest entry. Returns the bytes of its keys and values.
    fn pop_entry(&mut self) -> usize {
        let entry = self.entries.pop_front().expect("there is one");
        self.newest.remove(self.gone_count, entry.work.changes());
        self.gone_count += 1;
        size_of(entry.work.changes())
    }

    fn on_flushed(&mut self, lsn: Lsn) {
        self.flushed = self.flushed.max(lsn);
        while self.unflushed.front().is_some_and(|unflushed| unflushed.last <= self.flushed) {
            self.unflushed.pop_front();
        }
    }
}

impl Pending {
    /// Takes over the families that recovery found.
    pub fn open(families: impl Iterator<Item = FamilyStart>) -> Pending {
        let mut pending = Pending::default();
        for start in families {
            let stage = if start.is_named { FamilyStage::There } else { FamilyStage::Stray };
            let mut family = Family::new(start.compression, pending.next_op().0, stage);
            (family.ended, family.flushed) = (start.lsn, start.lsn);
            family.is_damaged = start.is_damaged;
            pending.families.insert(start.pool, family);
        }
        pending
    }

    /// Whether batches and reads of this family are accepted.
    pub fn has_family(&self, family: PoolId) -> bool {
        self.stage(family) == Some(FamilyStage::There)
    }

    /// Returns the stage of a family; `None`: there is none.
    pub fn stage(&self, family: PoolId) -> Option<FamilyStage> {
        self.families.get(&family).map(|family| family.stage)
    }

    /// Returns how a family is compressed.
    pub fn compression(&self, family: PoolId) -> Option<Compression> {
        self.families.get(&family).map(|family| family.compression)
    }

    /// Returns the number of a family that is there. A later one of the same pool has another number.
    pub fn number(&self, family: PoolId) -> Option<u64> {
        self.families.get(&family).map(|family| family.number)
    }

    /// Returns the families that the journal does not know of, and those in which a compaction or a read
    /// met damage.
    pub fn odd_families(&self) -> impl Iterator<Item = (PoolId, FamilyStage)> {
        let is_odd = |family: &Family| family.is_damaged || family.stage == FamilyStage::Stray;
        let odd = self.families.iter().filter(move |(_, family)| is_odd(family));
        odd.map(|(pool, family)| (*pool, family.stage))
    }

    /// Notes that a read met damage in a family.
    pub fn note_damage(&mut self, pool: PoolId) {
        if let Some(family) = self.families.get_mut(&pool) {
            family.is_damaged = true;
        }
    }

    /// Returns the bytes of keys and values of all entries.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the engine has all entries.
    pub fn has_ended(&self) -> bool {
        let is_ended = |entry: &Entry| matches!(entry.stage, Stage::Ended(_));
        self.families.values().all(|family| family.entries.iter().all(is_ended))
    }

    /// Whether something waits for space in the engine's file system.
    pub fn waits_for_space(&self) -> bool {
        self.families.values().any(|family| family.is_full)
    }

    /// Returns an id for a request to the engine.
    pub fn next_op(&mut self) -> EngineOp {
        self.op_last += 1;
        EngineOp(self.op_last)
    }

    /// Adds the changes of an entry that was just journaled. Requires: its family is known.
    pub fn push(&mut self, family: PoolId, place: EntryPlace, changes: Vec<Change>) {
        self.size += size_of(&changes);
        let family = self.families.get_mut(&family).expect("it was admitted");
        family.push(place, Work::Write(changes.into()));
    }

    /// Adds the creation of a family. `place`: its entry; `None`: recovery found that the family is lost, and
    /// the journal has no entry for it. Requires: there is none, or it is being removed.
    pub fn push_creation(
        &mut self,
        pool: PoolId,
        place: Option<EntryPlace>,
        compression: Compression,
        asker: Option<RequestId>,
    ) {
        let number = self.next_op().0;
        let stage = FamilyStage::Creating(asker);
        let new = || Family::new(compression, number, stage);
        let family = self.families.entry(pool).or_insert_with(new);
        assert!(!matches!(family.stage, FamilyStage::There | FamilyStage::Stray));
        (family.stage, family.compression, family.number) = (stage, compression, number);
        let work = Work::Create { compression, is_recorded: place.is_some() };
        match place {
            Some(place) => {
                family.push(place, work);
                self.families_end = self.families_end.max(place.end);
            }
            None => {
                family.push_entry(Entry::new((Lsn::ZERO, Lsn::ZERO), work));
            }
        }
    }

    /// Adds the removal of a family, whose entry was just journaled. Requires: the family is known.
    pub fn push_removal(&mut self, pool: PoolId, place: EntryPlace, asker: Option<RequestId>) {
        let family = self.families.get_mut(&pool).expect("it was admitted");
        family.stage = FamilyStage::Removing(asker);
        family.push(place, Work::Remove);
        self.families_end = self.families_end.max(place.end);
    }

    /// Adds the removal of a family that recovery found, whose entry is durable or not needed. Requires: the
    /// family is known.
    pub fn push_removal_found(&mut self, pool: PoolId) {
        let family = self.families.get_mut(&pool).expect("it was found");
        family.stage = FamilyStage::Removing(None);
        family.push_entry(Entry::new((Lsn::ZERO, Lsn::ZERO), Work::Remove));
    }

    /// Gives the engine what it may have, oldest entries first. Everything before `durable` is durable.
    pub fn enter(&mut self, durable: Lsn, now: Time, effects: &mut Vec<EngineEffect>) {
        let durable = match planted::on(Bug::BatchEnteredBeforeFlush) {
            true => Lsn::new(u64::MAX),
            false => durable,
        };
        while self.writes.len() < WRITES_IN_FLIGHT_MAX {
            let first = self.families.iter_mut().filter_map(|(pool, family)| {
                family.next(durable, now).map(|(at, lsn)| (lsn, at, *pool, family))
            });
            let Some((lsn, at, pool, family)) = first.min_by_key(|(lsn, ..)| *lsn) else { return };
            self.op_last += 1;
            let op = EngineOp(self.op_last);
            let entry = &mut family.entries[at];
            entry.stage = Stage::Entering;
            family.entering_count += 1;
            self.writes.insert(op, (pool, lsn));
            effects.push(match &entry.work {
                Work::Write(changes) => {
                    let changes = Arc::clone(changes);
                    EngineEffect::Write { op, family: pool, lsn, changes }
                }
                Work::Create { compression, .. } => {
                    EngineEffect::Create { op, family: pool, compression: *compression }
                }
                Work::Remove => EngineEffect::Remove { op, family: pool },
            });
        }
    }

    /// Flushes families whose low lies more than `span` bytes behind the tail.
    pub fn flush(&mut self, (tail, span): (Lsn, u64), now: Time, effects: &mut Vec<EngineEffect>) {
        for (pool, family) in &mut self.families {
            if matches!(family.flush, Flush::RetryAt(at) if at <= now) {
                family.flush = Flush::Idle;
            }
            let is_far = family.unflushed.front().is_some_and(|low| tail.since(low.first) > span);
            // A flush of what has not ended achieves nothing.
            let achieves = is_far && family.ended > family.flushed;
            let may_flush = self.flushes.len() < FLUSHES_IN_FLIGHT_MAX;
            if !achieves || !may_flush || !matches!(family.flush, Flush::Idle) {
                continue;
            }
            self.op_last += 1;
            let op = EngineOp(self.op_last);
            family.flush = Flush::UnderWay;
            self.flushes.insert(op, *pool);
            effects.push(EngineEffect::Flush { op, family: *pool });
        }
    }

    /// Handles what the engine says it has durably.
    pub fn on_flushed(&mut self, pool: PoolId, lsn: Lsn) {
        if let Some(family) = self.families.get_mut(&pool) {
            family.on_flushed(lsn);
        }
    }

    /// Returns the oldest entry that a family may lack after a crash, rounded down, and the checksum of the
    /// entry before it.
    pub fn low(&self) -> Option<(Lsn, Checksum)> {
        if planted::on(Bug::TrimBeforeEngineFlush) {
            return None;
        }
        let lows = self.families.values().filter_map(|family| family.unflushed.front());
        lows.map(|low| (low.first, low.previous)).min_by_key(|(lsn, _)| *lsn)
    }

    /// Returns the lsn before which all must be durable when a root names the families as they are now. Else
    /// a crash could take back the entry of a creation or removal, and the root would still follow it.
    pub fn families_end(&self) -> Lsn {
        self.families_end
    }

    /// Returns what a root says of the families.
    pub fn family_records(&self) -> impl Iterator<Item = FamilyRecord> {
        let is_named =
            |family: &Family| matches!(family.stage, FamilyStage::There | FamilyStage::Creating(_));
        let named = self.families.iter().filter(move |(_, family)| is_named(family));
        named.map(|(pool, family)| FamilyRecord {
            family: *pool,
            compression: family.compression,
            flushed: family.flushed,
        })
    }

    /// Whether there are families.
    pub fn has_families(&self) -> bool {
        !self.families.is_empty()
    }

    /// Returns when something is to be repeated.
    pub fn deadline(&self) -> Option<Time> {
        let may_enter = self.writes.len() < WRITES_IN_FLIGHT_MAX;
        let waiting = self.families.values();
        let waiting = waiting.filter(|family| family.entering_count == 0 && may_enter);
        let writes = waiting.filter_map(|family| family.retry_at);
        let flushes = self.families.values().filter_map(|family| match family.flush {
            Flush::RetryAt(at) => Some(at),
            _ => None,
        });
        writes.chain(flushes).min()
    }

    /// Handles the end of a flush, write, creation or removal. `newest`: the newest read; `oldest`: the
    /// oldest one that is open. Returns the request that has ended with it. The error says why the store
    /// cannot go on.
    pub fn on_done(
        &mut self,
        op: EngineOp,
        result: Result<(), EngineError>,
        now: Time,
        (newest, oldest): (ReadNumber, Option<ReadNumber>),
    ) -> Result<Option<RequestId>, String> {
        if let Some(pool) = self.flushes.remove(&op) {
            return self.on_flush_done(pool, result, now).map(|()| None);
        }
        let (pool, lsn) = self.writes.remove(&op).expect("a write ends once");
        let family = self.families.get_mut(&pool).expect("it has a write under way");
        family.entering_count -= 1;
        family.is_full &= result.is_err();
        let at = family.entries.partition_point(|entry| entry.lsn < lsn);
        let is_it = |entry: &&mut Entry| entry.lsn == lsn && entry.stage == Stage::Entering;
        let entry = family.entries.range_mut(at..).find(is_it).expect("it is entering");
        match (result, &entry.work) {
            (Ok(()), Work::Write(_)) => {
                entry.stage = Stage::Ended(newest);
                family.ended = family.ended.max(lsn);
            }
            (Ok(()), Work::Create { is_recorded: false, .. }) => {
                entry.work = Work::Write(Arc::default());
                entry.stage = Stage::Ended(newest);
            }
            (Ok(()), Work::Create { .. }) => {
                entry.work = Work::Write(Arc::default());
                entry.stage = Stage::Waiting;
            }
            (Ok(()), Work::Remove) => return Ok(self.on_removed(pool)),
            // All later writes of the family fail, too, until this one is repeated.
            (Err(EngineError::Full), _) => {
                entry.stage = Stage::Waiting;
                family.retry_at = Some(now + RETRY_AFTER);
                family.is_full = true;
            }
            (Err(error), _) => return Err(error.to_string()),
        }
        let mut ended = None;
        if let FamilyStage::Creating(asker) = family.stage
            && family.entries.iter().all(|entry| matches!(entry.stage, Stage::Ended(_)))
        {
            family.stage = FamilyStage::There;
            ended = asker;
        }
        self.forget(oldest);
        Ok(ended)
    }

    /// Forgets a family that the engine has removed, unless it is to be created again.
    fn on_removed(&mut self, pool: PoolId) -> Option<RequestId> {
        let family = self.families.get_mut(&pool).expect("it was being removed");
        let is_first_left = |entry: &Entry| entry.stage == Stage::Waiting;
        let left = family.entries.iter().position(is_first_left);
        for _ in 0..left.unwrap_or(family.entries.len()) {
            self.size -= family.pop_entry();
        }
        (family.ended, family.flushed, family.is_damaged) = (Lsn::ZERO, Lsn::ZERO, false);
        let low = family.entries.front().map_or(Lsn::ZERO, |entry| entry.lsn);
        family.unflushed.retain(|unflushed| unflushed.last >= low);
        if let FamilyStage::Removing(asker) = family.stage {
            self.families.remove(&pool);
            return asker;
        }
        None
    }

    fn on_flush_done(
        &mut self,
        pool: PoolId,
        result: Result<(), EngineError>,
        now: Time,
    ) -> Result<(), String> {
        let Some(family) = self.families.get_mut(&pool) else { return Ok(()) };
        family.flush = Flush::Idle;
        match result {
            Ok(()) | Err(EngineError::NoFamily) => Ok(()),
            Err(EngineError::Full) => {
                family.flush = Flush::RetryAt(now + RETRY_AFTER);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Forgets what no read may lack. `oldest`: the oldest read that is open.
    pub fn forget(&mut self, oldest: Option<ReadNumber>) {
        let is_early = planted::on(Bug::PendingForgottenEarly);
        for family in self.families.values_mut() {
            while let Some(Entry { stage: Stage::Ended(before), .. }) = family.entries.front() {
                if oldest.is_some_and(|oldest| oldest <= *before) && !is_early {
                    break;
                }
                self.size -= family.pop_entry();
            }
        }
    }

    /// Returns the newest lsn of a family's entries. Requires: it is known.
    pub fn newest(&self, family: PoolId) -> Lsn {
        let family = &self.families[&family];
        family.entries.back().map_or(family.ended, |entry| entry.lsn.max(family.ended))
    }

    /// Returns the value of a key: what the engine answered, and what is pending above `contains`.
    /// Requires: the family is known.
    pub fn value(
        &self,
        family: PoolId,
        contains: Lsn,
        key: &[u8],
        answered: Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let newest = self.above(family, contains).of_key(key);
        newest.map_or(answered, |value| value.map(<[u8]>::to_vec))
    }

    fn above(&self, family: PoolId, contains: Lsn) -> Above<'_> {
        Above { family: &self.families[&family], contains }
    }
}

/// What is pending of a family above a lsn. Only the newest change of a key counts: if that is not above,
/// none is.
struct Above<'a> {
    family: &'a Family,
    contains: Lsn,
}

impl<'a> Above<'a> {
    fn is_empty(&self) -> bool {
        self.family.entries.back().is_none_or(|newest| newest.lsn <= self.contains)
    }

    /// Returns what the change at this place makes of its keys, if it is above: a value, or nothing.
    fn change(&self, place: Place) -> Option<Option<&'a [u8]>> {
        #[cfg(test)]
        tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
        let entry = &self.family.entries[(place.entry - self.family.gone_count) as usize];
        (entry.lsn > self.contains).then(|| match &entry.work.changes()[place.index] {
            Change::Put { value, .. } => Some(&value[..]),
            Change::Delete { .. } | Change::DeleteRange { .. } => None,
        })
    }

    fn of_key(&self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        self.family.newest.of_key(key).and_then(|place| self.change(place))
    }

    fn is_deleted(&self, key: &[u8]) -> bool {
        self.family.newest.deletion_of(key).is_some_and(|place| self.change(place).is_some())
    }

    /// Returns the records within these bounds: what the engine answered, and what is pending.
    fn records(
        &self,
        answered: &'a Records,
        bounds: Bounds<'a>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut answered = answered.iter().peekable();
        let pending = self.family.newest.within(bounds);
        let mut pending = pending
            .filter_map(|(key, place)| self.change(place).map(|value| (key, value)))
            .peekable();
        std::iter::from_fn(move || {
            loop {
                let is_pending = match (answered.peek(), pending.peek()) {
                    (Some((key, _)), Some((changed, _))) => changed <= key,
                    (None, None) => return None,
                    (_, changed) => changed.is_some(),
                };
                let record = if is_pending {
                    let (changed, value) = pending.next()?;
                    answered.next_if(|(key, _)| *key == changed);
                    value.map(|value| (changed, value))
                } else {
                    answered.next().filter(|(key, _)| !self.is_deleted(key))
                };
                if record.is_some() {
                    return record;
                }
            }
        })
    }
}

fn size_of(changes: &[Change]) -> usize {
    changes.iter().map(Change::size).sum()
}

/// One scan or list of a read: the parts of its range that the engine has answered so far.
pub struct ScanProgress {
    query: Query,
    /// Where the part begins that the engine is asked for.
    start: Vec<u8>,
    parts: Vec<ScanPart>,
}

struct ScanPart {
    start: Vec<u8>,
    contains: Lsn,
    records: Records,
    more: bool,
}

impl ScanPart {
    /// Returns which keys the part tells of: if the engine has more, only those up to the last key of its
    /// answer. `end`: the end of the query's range.
    fn bounds<'a>(&'a self, end: Option<&'a [u8]>) -> Bounds<'a> {
        let last = self.records.last_key().filter(|_| self.more).map(Bound::Included);
        (
            Bound::Included(&self.start),
            last.or(end.map(Bound::Excluded)).unwrap_or(Bound::Unbounded),
        )
    }

    /// Ends the part at the first record that stood for others in the engine, and does not with what is
    /// pending: the engine has passed these others. Requires: no later part was asked for.
    fn end_at_lost(&mut self, family: PoolId, scan: &Scan<'_>, pending: &Pending) {
        let Some(folding) = scan.folding.filter(|folding| !folding.delimiter.is_empty()) else {
            return;
        };
        let above = pending.above(family, self.contains);
        let is_lost = |(key, value): (&[u8], &[u8])| {
            let stands_for_others = folding.common_prefix(key, value).is_some();
            let counts =
                |changed: Option<&[u8]>| changed.is_some_and(|value| folding.counts(value));
            stands_for_others && above.of_key(key).is_some_and(|changed| !counts(changed))
        };
        let lost = self.records.iter().position(is_lost);
        if let Some(index) = lost.filter(|_| !planted::on(Bug::ListPassesPending)) {
            self.records.truncate(index + 1);
            self.more = true;
        }
    }
}

impl ScanProgress {
    /// Begins a scan or list. Requires: the query is one.
    pub fn new(query: Query) -> ScanProgress {
        let start = query.scan().expect("a scan or list").start.to_vec();
        ScanProgress { query, start, parts: Vec::new() }
    }

    /// Takes an answer of the engine.
    pub fn answered(&mut self, contains: Lsn, answer: Answer) {
        let Answer::Records { records, more } = answer else {
            unreachable!("scans have records as answers")
        };
        self.parts.push(ScanPart { start: self.start.clone(), contains, records, more });
    }

    /// Returns the records so far with what is pending, cut to the limits, or the query for the rest of the
    /// range if there is none yet: a caller that gets no record could not tell where to go on. Requires:
    /// the family is known.
    pub fn finish(&mut self, family: PoolId, pending: &Pending) -> Result<Answer, Query> {
        let scan = self.query.scan().expect("a scan or list");
        let last = self.parts.last_mut().expect("the engine has answered");
        last.end_at_lost(family, &scan, pending);
        let next = last.records.last_key().filter(|_| last.more).map(|key| [key, &[0]].concat());
        let mut found = Records::default();
        for part in &self.parts {
            let above = pending.above(family, part.contains);
            if above.is_empty() && self.parts.len() == 1 && !part.records.is_empty() {
                // The engine has kept to the limits.
                let (records, more) = (part.records.clone(), next.is_some());
                return Ok(Answer::Records { records, more });
            }
            for (key, value) in above.records(&part.records, part.bounds(scan.end)) {
                if scan.is_full(&found) && !found.is_empty() {
                    return Ok(Answer::Records { records: found, more: true });
                }
                found.push(key, value);
            }
        }
        let has_rest = |next: &Vec<u8>| scan.end.is_none_or(|end| &next[..] < end);
        match next.filter(has_rest) {
            Some(next) if found.is_empty() => {
                self.start.clone_from(&next);
                Err(self.query.from(next))
            }
            rest => Ok(Answer::Records { records: found, more: rest.is_some() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::PoolId;
    use format::engine::{Flags, Folding};

    use super::*;

    const POOL: PoolId = PoolId::FIRST;
    const KEY_COUNT: u64 = 12;

    thread_local! {
        /// How many pending changes were looked at.
        pub static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    type Content = BTreeMap<Vec<u8>, Vec<u8>>;

    /// Numbers from a seed (an LCG is enough here).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }

        /// Returns a key of some shard: several begin with the same 8 bytes, or are shorter.
        fn key(&mut self) -> Vec<u8> {
            let (shard, rest) = (self.below(3) as u8, self.below(KEY_COUNT) as usize);
            let all = [&[0, shard, 0x10], &b"object\0\0"[..]].concat();
            match rest {
                0..4 => all[..3 + rest * 2].to_vec(),
                _ => [&all[..], &[rest as u8]].concat(),
            }
        }
    }

    fn family() -> Pending {
        let compression = Compression::None;
        let (is_named, is_damaged) = (true, false);
        let lsn = Lsn::ZERO;
        Pending::open(
            [FamilyStart { pool: POOL, compression, lsn, is_named, is_damaged }].into_iter(),
        )
    }

    fn place(lsn: u64, end: u64) -> EntryPlace {
        EntryPlace { lsn: Lsn::new(lsn), end: Lsn::new(end), previous: Checksum::new(lsn as u32) }
    }

    fn change(numbers: &mut Numbers, value: u64) -> Change {
        let key = numbers.key();
        match numbers.below(5) {
            0 => Change::Delete { key },
            1 => {
                let other = numbers.key();
                let (start, end) = if key < other { (key, other) } else { (other, key) };
                Change::DeleteRange { start, end }
            }
            _ => Change::Put { key, value: value.to_le_bytes().to_vec() },
        }
    }

    fn apply(content: &mut Content, change: &Change) {
        match change {
            Change::Put { key, value } => drop(content.insert(key.clone(), value.clone())),
            Change::Delete { key } => drop(content.remove(key)),
            Change::DeleteRange { start, end } => {
                content.retain(|key, _| key < start || key >= end);
            }
        }
    }

    /// Answers like an engine that has this content.
    fn scan(content: &Content, query: &Query) -> (Records, bool) {
        let scan = query.scan().expect("a scan or list");
        let (mut records, mut from) = (Records::default(), scan.start.to_vec());
        loop {
            let mut rest =
                content.range(from..).filter(|(key, _)| scan.end.is_none_or(|end| &key[..] < end));
            let Some((key, value)) = rest.next() else { return (records, false) };
            if scan.is_full(&records) && !records.is_empty() {
                return (records, true);
            }
            records.push(key, value);
            from = match scan.common_prefix(key, value).map(format::engine::behind) {
                None => [&key[..], &[0]].concat(),
                Some(Some(behind)) => behind,
                Some(None) => return (records, false),
            };
        }
    }

    /// Makes some entries pending. Returns the state after each of them, from that before the first on.
    fn push_entries(pending: &mut Pending, numbers: &mut Numbers) -> Vec<Content> {
        let mut states = vec![Content::new()];
        for entry in 1..2 + numbers.below(6) {
            let changes: Vec<Change> = (0..1 + numbers.below(3))
                .map(|index| change(numbers, 10 * entry + index))
                .collect();
            let mut state = states.last().expect("not empty").clone();
            changes.iter().for_each(|change| apply(&mut state, change));
            states.push(state);
            pending.push(POOL, place(512 * entry, 512 * entry + 512), changes);
        }
        states
    }

    /// Returns what the next page of a list shows: keys that count, or what they have in common.
    fn told(records: &[(Vec<u8>, Vec<u8>)], folding: &Folding, told: &mut Vec<Vec<u8>>) {
        for (key, value) in records.iter().filter(|(_, value)| folding.counts(value)) {
            let entry = folding.common_prefix(key, value).unwrap_or(key);
            if told.last().is_none_or(|last| last < &entry.to_vec()) {
                told.push(entry.to_vec());
            }
        }
    }

    #[test]
    fn a_list_passes_nothing_that_no_record_stands_for() {
        let mut asked_again = 0;
        for seed in 1..4_000 {
            let mut numbers = Numbers(seed);
            let mut pending = family();
            let states = push_entries(&mut pending, &mut numbers);
            let count = states.len() as u64 - 1;
            let newest = states.last().expect("not empty");
            // The first byte of a value is not the same in all changes of an entry.
            let passed = vec![Flags { at: 0, mask: numbers.below(4) as u8 }];
            let delimiter = if numbers.below(4) == 0 { b"e" } else { &b"\x10"[..] }.to_vec();
            let folding = Folding { prefix_size: numbers.below(2) as usize, delimiter, passed };
            let (mut start, mut found) = (Vec::new(), Vec::new());
            loop {
                let count_max = 1 + numbers.below(3) as usize;
                let (size_max, end) = (usize::MAX, None);
                let folding = folding.clone();
                let mut asked =
                    Query::List { start, end, count_max, size_max, folding: folding.clone() };
                let mut progress = ScanProgress::new(asked.clone());
                let (records, more) = loop {
                    let contains = numbers.below(count + 1);
                    let shown = contains + numbers.below(count + 1 - contains);
                    let (records, more) = scan(&states[shown as usize], &asked);
                    progress.answered(Lsn::new(512 * contains), Answer::Records { records, more });
                    match progress.finish(POOL, &pending) {
                        Ok(Answer::Records { records, more }) => break (records, more),
                        Ok(Answer::Value(_)) => unreachable!("it is a list"),
                        Err(rest) => (asked, asked_again) = (rest, asked_again + 1),
                    }
                };
                let pairs: Vec<_> =
                    records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                told(&pairs, &folding, &mut found);
                if !more {
                    break;
                }
                // A page goes on behind what its last record stands for.
                let (key, value) = pairs.last().expect("a record, or the end");
                let behind = folding.common_prefix(key, value).and_then(format::engine::behind);
                start = behind.unwrap_or_else(|| [&key[..], &[0]].concat());
            }
            let (mut expected, newest): (Vec<_>, Vec<_>) =
                (Vec::new(), newest.clone().into_iter().collect());
            told(&newest, &folding, &mut expected);
            assert_eq!(found, expected, "seed {seed}");
        }
        assert!(asked_again > 100, "{asked_again}");
    }

    #[test]
    fn what_is_pending_is_seen_over_any_answer() {
        for seed in 1..2_000 {
            let mut numbers = Numbers(seed);
            let mut pending = family();
            let states = push_entries(&mut pending, &mut numbers);
            let count = states.len() as u64 - 1;
            let newest = states.last().expect("not empty");
            let query = draw_scan(&mut numbers);
            let mut progress = ScanProgress::new(query.clone());
            let mut asked = query.clone();
            let answer = loop {
                // The engine surely has the entries up to `contains`, and shows a state at or behind it.
                let contains = numbers.below(count + 1);
                let shown = contains + numbers.below(count + 1 - contains);
                let (records, more) = scan(&states[shown as usize], &asked);
                let answer = Answer::Records { records, more };
                progress.answered(Lsn::new(512 * contains), answer);
                match progress.finish(POOL, &pending) {
                    Ok(answer) => break answer,
                    Err(rest) => asked = rest,
                }
            };
            let Answer::Records { records, more } = answer else { unreachable!() };
            let (expected, expected_more) = scan(newest, &query);
            let pairs = |records: &Records| -> Vec<(Vec<u8>, Vec<u8>)> {
                records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
            };
            let (found, expected) = (pairs(&records), pairs(&expected));
            // It may stop early, where the engine did, but with a record, and saying so.
            assert!(expected.starts_with(&found), "seed {seed}: {found:?}, not {expected:?}");
            assert!(found == expected && more >= expected_more || more, "seed {seed}");
            assert!(!found.is_empty() || expected.is_empty(), "seed {seed}");
            let key = numbers.key();
            let contains = numbers.below(count + 1);
            let base = states[contains as usize].get(&key).cloned();
            let value = pending.value(POOL, Lsn::new(512 * contains), &key, base);
            assert_eq!(value.as_ref(), newest.get(&key), "seed {seed}");
        }
    }

    #[test]
    #[should_panic(expected = "a family without batches")]
    fn no_batch_has_lsn_zero() {
        put(&mut family(), 0);
    }

    fn put(pending: &mut Pending, at: u64) {
        let change = Change::Delete { key: vec![1] };
        pending.push(POOL, place(at, at + 512), vec![change]);
    }

    fn entered(pending: &mut Pending, durable: u64, now: Time) -> Vec<(EngineOp, u64)> {
        let mut effects = Vec::new();
        pending.enter(Lsn::new(durable), now, &mut effects);
        let writes = effects.into_iter().map(|effect| match effect {
            EngineEffect::Write { op, lsn, .. } => (op, lsn.get()),
            other => panic!("{other:?}"),
        });
        writes.collect()
    }

    #[test]
    fn entries_enter_in_order_when_they_are_durable() {
        let mut pending = family();
        put(&mut pending, 512);
        put(&mut pending, 1024);
        assert_eq!(entered(&mut pending, 1023, Time::ZERO), []);
        let [(_, 512)] = entered(&mut pending, 1024, Time::ZERO)[..] else { panic!("one") };
        let [(_, 1024)] = entered(&mut pending, 4096, Time::ZERO)[..] else { panic!("one") };
        assert_eq!(entered(&mut pending, 4096, Time::ZERO), []);
    }

    #[test]
    fn families_take_turns_by_age() {
        let other = PoolId::new(2).expect("2 is in range");
        let mut pending = family();
        pending.families.insert(other, Family::new(Compression::None, 0, FamilyStage::There));
        for at in 1..=WRITES_IN_FLIGHT_MAX as u64 {
            put(&mut pending, 1024 * at);
        }
        let change = Change::Delete { key: vec![1] };
        pending.push(other, place(1536, 2048), vec![change]);
        let entered = entered(&mut pending, u64::MAX, Time::ZERO);
        assert_eq!(entered.len(), WRITES_IN_FLIGHT_MAX);
        assert_eq!(entered[1].1, 1536);
    }

    #[test]
    fn a_full_engine_gets_them_again_from_the_failed_one_on() {
        let mut pending = family();
        put(&mut pending, 512);
        put(&mut pending, 1024);
        let writes = entered(&mut pending, 4096, Time::ZERO);
        let none = (ReadNumber(0), None);
        let end = |pending: &mut Pending, op, result| {
            pending.on_done(op, result, Time::ZERO, none).expect("it goes on");
        };
        end(&mut pending, writes[0].0, Err(EngineError::Full));
        assert!(pending.waits_for_space());
        let later = Time::ZERO + RETRY_AFTER;
        // The second one is still under way.
        assert_eq!((pending.deadline(), entered(&mut pending, 4096, later)), (None, vec![]));
        end(&mut pending, writes[1].0, Err(EngineError::Full));
        assert_eq!(pending.deadline(), Some(later));
        assert_eq!(entered(&mut pending, 4096, Time::ZERO), []);
        let again = entered(&mut pending, 4096, later);
        assert_eq!(again.iter().map(|(_, lsn)| *lsn).collect::<Vec<_>>(), [512, 1024]);
        assert!(pending.waits_for_space(), "until one has ended");
        again.iter().for_each(|(op, _)| end(&mut pending, *op, Ok(())));
        assert_eq!((pending.size(), pending.deadline()), (0, None));
        assert!(!pending.waits_for_space());
        let poisoned = Err(EngineError::Poisoned { text: "why".into() });
        put(&mut pending, 2048);
        let [(op, _)] = entered(&mut pending, 4096, later)[..] else { panic!("one") };
        assert!(pending.on_done(op, poisoned, later, none).is_err());
    }

    #[test]
    fn an_entry_stays_while_a_read_may_lack_it() {
        let mut pending = family();
        put(&mut pending, 512);
        let [(op, _)] = entered(&mut pending, 4096, Time::ZERO)[..] else { panic!("one") };
        let reads = (ReadNumber(7), Some(ReadNumber(5)));
        pending.on_done(op, Ok(()), Time::ZERO, reads).expect("it goes on");
        assert_eq!(pending.size(), 1);
        pending.forget(Some(ReadNumber(7)));
        assert_eq!(pending.size(), 1);
        pending.forget(Some(ReadNumber(8)));
        assert_eq!(pending.size(), 0);
    }

    /// What is pending, looked through change by change.
    #[derive(Default)]
    struct Linear {
        entries: VecDeque<(Lsn, Vec<Change>, Option<ReadNumber>)>,
    }

    impl Linear {
        fn forget(&mut self, oldest: Option<ReadNumber>) {
            let may_go = |before: ReadNumber| oldest.is_none_or(|oldest| oldest > before);
            while self.entries.front().is_some_and(|(.., ended)| ended.is_some_and(may_go)) {
                self.entries.pop_front();
            }
        }

        fn over(&self, contains: Lsn, base: &Content) -> Content {
            let mut content = base.clone();
            let above = self.entries.iter().filter(|(lsn, ..)| *lsn > contains);
            above.flat_map(|(_, changes, _)| changes).for_each(|each| apply(&mut content, each));
            content
        }

        /// Returns the answer to a scan that the engine answered with this part of its content.
        fn finish(
            &self,
            contains: Lsn,
            query: &Query,
            answered: (&Records, bool),
        ) -> Option<Answer> {
            let (records, more) = answered;
            let base = records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let mut content = self.over(contains, &base);
            if let Some(last) = records.last_key().filter(|_| more) {
                content.retain(|key, _| &key[..] <= last);
            }
            let (found, is_cut) = scan(&content, query);
            let ends = matches!(query, Query::Scan { start, end: Some(end), .. } if {
                let next = records.last_key().map_or(start.clone(), |last| [last, &[0]].concat());
                next >= *end
            });
            let goes_on = found.is_empty() && more && !ends;
            let more = is_cut || more && !(found.is_empty() && ends);
            (!goes_on).then_some(Answer::Records { records: found, more })
        }
    }

    fn draw_scan(numbers: &mut Numbers) -> Query {
        Query::Scan {
            start: if numbers.below(2) == 0 { Vec::new() } else { numbers.key() },
            end: (numbers.below(2) == 0).then(|| numbers.key()),
            count_max: 1 + numbers.below(5) as usize,
            size_max: numbers.below(40) as usize,
        }
    }

    /// Compares a value and a scan with those of the model, over what an engine at state `shown` answers.
    fn compare(
        numbers: &mut Numbers,
        (pending, model): (&Pending, &Linear),
        (contains, shown): (Lsn, &Content),
    ) {
        let key = numbers.key();
        let value = pending.value(POOL, contains, &key, shown.get(&key).cloned());
        assert_eq!(value.as_ref(), model.over(contains, shown).get(&key));
        let query = draw_scan(numbers);
        let (records, more) = scan(shown, &query);
        let expected = model.finish(contains, &query, (&records, more));
        let mut progress = ScanProgress::new(query);
        progress.answered(contains, Answer::Records { records, more });
        assert_eq!(progress.finish(POOL, pending).ok(), expected);
    }

    #[test]
    fn what_is_pending_is_what_a_walk_through_all_of_it_finds() {
        for seed in 1..400 {
            let numbers = &mut Numbers(seed);
            let (mut pending, mut model) = (family(), Linear::default());
            let mut states = vec![Content::new()];
            let mut under_way = VecDeque::new();
            // Of each open read its number, and how many entries had ended when it was requested.
            let mut reads: VecDeque<(ReadNumber, usize)> = VecDeque::new();
            let (mut newest, mut ended) = (ReadNumber(0), 0);
            for _ in 0..60 {
                let oldest = |reads: &VecDeque<(ReadNumber, usize)>| {
                    reads.iter().map(|(number, _)| *number).min()
                };
                match numbers.below(5) {
                    0 | 1 => {
                        let lsn = 512 * states.len() as u64;
                        let changes: Vec<Change> = (0..numbers.below(5))
                            .map(|index| change(numbers, 8 * lsn + index))
                            .collect();
                        let mut state = states.last().expect("not empty").clone();
                        changes.iter().for_each(|change| apply(&mut state, change));
                        states.push(state);
                        pending.push(POOL, place(lsn, lsn + 512), changes.clone());
                        model.entries.push_back((Lsn::new(lsn), changes, None));
                    }
                    2 => {
                        let durable = 512 * (1 + numbers.below(states.len() as u64));
                        under_way.extend(entered(&mut pending, durable, Time::ZERO));
                        if let Some((op, lsn)) = under_way.pop_front() {
                            let numbers = (newest, oldest(&reads));
                            pending.on_done(op, Ok(()), Time::ZERO, numbers).expect("it goes on");
                            let is_it = |entry: &&mut (Lsn, _, _)| entry.0 == Lsn::new(lsn);
                            model.entries.iter_mut().find(is_it).expect("it is pending").2 =
                                Some(newest);
                            model.forget(oldest(&reads));
                            ended = (lsn / 512) as usize;
                        }
                    }
                    3 => {
                        newest = ReadNumber(newest.0 + 1);
                        reads.push_back((newest, ended));
                    }
                    _ if !reads.is_empty() => {
                        let at = numbers.below(reads.len() as u64) as usize;
                        let (_, least) = reads.remove(at).expect("it is open");
                        let contains = least + numbers.below((ended - least) as u64 + 1) as usize;
                        let shown =
                            contains + numbers.below((states.len() - contains) as u64) as usize;
                        let contains = Lsn::new(512 * contains as u64);
                        compare(numbers, (&pending, &model), (contains, &states[shown]));
                        // It shows the newest state, whatever the engine had forgotten or not.
                        assert_eq!(
                            &model.over(contains, &states[shown]),
                            states.last().expect("not empty")
                        );
                        pending.forget(oldest(&reads));
                        model.forget(oldest(&reads));
                    }
                    _ => {}
                }
                // What is kept, and nothing else, counts also for a read that nobody would begin.
                let contains = Lsn::new(512 * numbers.below(states.len() as u64));
                let shown = Content::from([
                    (numbers.key(), b"old".to_vec()),
                    (numbers.key(), b"too".to_vec()),
                ]);
                compare(numbers, (&pending, &model), (contains, &shown));
            }
            let sizes = model.entries.iter().map(|(_, changes, _)| size_of(changes));
            assert_eq!(pending.size(), sizes.sum::<usize>(), "seed {seed}");
        }
    }

    #[test]
    fn a_lookup_does_not_look_at_all_that_is_pending() {
        const COUNT: u64 = 250_000;
        let mut pending = family();
        let name = |number: u64| format!("{number:08}").into_bytes();
        for entry in 0..COUNT / 4 {
            let (lsn, first) = (512 * (entry + 1), 4 * entry);
            let changes = vec![
                Change::DeleteRange { start: name(first), end: name(first + 2) },
                Change::Put { key: name(first), value: name(entry) },
                Change::Put { key: name(first + 2), value: name(entry) },
                Change::Delete { key: name(first + 3) },
            ];
            pending.push(POOL, place(lsn, lsn + 512), changes);
        }
        LOOKED_AT.set(0);
        for number in (0..COUNT).step_by(250) {
            let value = |number: u64| {
                let answered = Some(b"old".to_vec());
                pending.value(POOL, Lsn::ZERO, &name(number), answered)
            };
            let newest = Some(name(number / 4));
            let found = [0, 1, 2, 3].map(|at| value(number / 4 * 4 + at));
            assert_eq!(found, [newest.clone(), None, newest, None]);
        }
        assert_eq!(LOOKED_AT.take(), 4 * 1_000);
        // Nor does a scan look further than to its limit.
        let (end, count_max, size_max) = (None, 1_000, usize::MAX);
        let mut progress =
            ScanProgress::new(Query::Scan { start: name(COUNT / 2), end, count_max, size_max });
        progress.answered(Lsn::ZERO, Answer::Records { records: Records::default(), more: false });
        let Ok(Answer::Records { records, more: true }) = progress.finish(POOL, &pending) else {
            panic!()
        };
        assert_eq!(records.count(), 1_000);
        assert!(LOOKED_AT.take() < 2_000);
    }
}
