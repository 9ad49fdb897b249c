//! Recovery of a state store that is older than the OSDs' records (a backup of it was restored), or
//! damaged: the monitor refuses to use it, and `state recover` builds a new state from the OSDs'
//! records.
//!
//! ```text
//!   OsdBoot (seen) ──▶ the store lacks changes ──▶ older: nothing is changed, no OSD joins
//!                                                    │ TellAll ──▶ OsdTells: each OSD's records
//!   `state recover` ──▶ Draft: the new contents of the store ──▶ transactions ──▶ this monitor starts over
//! ```
//!
//! The draft uses all records as of one transaction: the newest one for which a complete copy exists. For
//! each PG it uses the entry with the highest epoch that any OSD or the store has. Epochs, revisions, runs
//! and ids are raised above every value that was seen.
//!
//! Invariants
//!   1. The draft is made only once every OSD that has ever run has sent all its records, or is
//!      declared lost. So no newer entry of a PG exists: it would be in the record of the members
//!      that activated it.
//!   2. If one transaction is not enough, the key `recovery` exists in the store from the first transaction
//!      to the last. While it exists, every monitor treats the store as older.
//!   3. Running OSDs keep serving their PGs meanwhile; no OSD joins, and no session begins.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{
    ConnectionId, Epoch, Incarnation, MapRevision, OsdId, PgId, PoolId, SessionId, SessionRange,
    Time, TraceEvent,
};
use format::door::{NetEffect, Role};
use format::wire::{Member, PgEntry};
use placement::Candidate;
use serde_json::{Value, json};

use super::committed_state::{Batch, CommittedState, Write};
use super::forks::{self, Teller};
use super::job::{Boot, Done, Job, Plan, Written};
use super::planning::domain_of;
use super::refusal::first_names;
use super::volume::{FENCE_RANGE_COUNT_MAX, ranges_beside};
use super::{Effect, Monitor, failure};
use crate::copy::{KnownState, StateCopy, is_copied};
use crate::map::{Pool, is_in_ranges};
use crate::message::{Command, Failure, FromMonitor};
use crate::numbers::NUMBER_MAX;
use crate::records::{
    ChangeRecord, CounterName, CounterRecord, FenceRecord, ImageNameRecord, ImageRecord, Key,
    OsdRecord, PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record, RecoveryRecord, Rest,
    SessionRecord, Used,
};
use crate::state::StateEffect;

/// Margins: records of the last epochs, runs and transactions may be lost, so this many values are skipped.
const EPOCH_MARGIN: u32 = 1000;
const RUN_MARGIN: u64 = 1000;
const CHANGE_MARGIN: u64 = 1000;
/// Margins for ids and revisions, for the same reason.
const ID_MARGIN: u64 = 10_000;
const POOL_MARGIN: u64 = 100;
const REVISION_MARGIN: u64 = 1_000_000;
/// Maximum number of parts that one OSD may send; more is a protocol violation.
const PART_COUNT_MAX: u32 = 10_000;

/// The advice for a store that is older.
const OLDER_HINT: &str = "start all OSDs, then run `ashlar state recover`; or stop the monitor and \
                          restore a newer copy of its state";
/// The advice for a store that is damaged.
const DAMAGED_HINT: &str =
    "start all OSDs, then run `ashlar state recover`, which restores the state from their records";

/// This monitor's evidence that the store is older, and the OSDs' records of the state that the store lacks.
#[derive(Default)]
pub(super) struct Restore {
    /// Why the store counts as older, as text for the operator; empty if it does not.
    why: String,
    known: BTreeMap<OsdId, KnownBy>,
    /// The newest copy that an OSD sent; copies of a state that the store lacks are preferred.
    copy: Option<StateCopy>,
    /// Whether everything must be read again because a manual edit may have repaired a store that
    /// was damaged when this monitor first read it.
    is_mended_by_hand: bool,
    /// Whether everything must be read again because the store has been restored, or its last good
    /// values have been written back.
    is_done: bool,
    /// The connection of the operator who requested the recovery.
    asker: Option<ConnectionId>,
    /// The number of records still to be written, and the number of all records in the draft.
    left: Cell<Option<(usize, usize)>>,
}

/// An OSD that waits for the restore.
struct KnownBy {
    boot: Boot,
    state: KnownState,
    part_count: u32,
    is_whole: bool,
    /// Whether the OSD is still connected.
    is_here: bool,
}

impl Monitor {
    /// Whether the store was set back to an older state or is damaged, and has not been completely
    /// restored since.
    pub(super) fn is_older(&self) -> bool {
        !self.restore.why.is_empty()
            || self.committed.is_being_recovered()
            || self.committed.is_damaged()
    }

    pub(super) fn state_older(&self) -> Failure {
        let (code, hint) = self.older_code();
        failure(code, self.older_text(), hint)
    }

    /// Returns the code of the health check and of refusals, and the hint for operators.
    pub(super) fn older_code(&self) -> (&'static str, &'static str) {
        match self.committed.is_damaged() {
            true if self.committed.is_edited() => ("state_damaged", super::edit::EDITED_HINT),
            true => ("state_damaged", DAMAGED_HINT),
            false => ("state_older", OLDER_HINT),
        }
    }

    /// Describes the older or damaged store for `status`.
    pub(super) fn older_text(&self) -> String {
        if let Some((left, all)) = self.restore.left.get() {
            return format!(
                "the state is being recovered: {} of {all} records are written",
                all - left
            );
        }
        let told = self.restore.known.values().filter(|known| known.is_whole).count();
        let what = match (self.committed.damage(), &self.restore.why[..]) {
            (Some(damage), _) => format!("the state store cannot be used: {damage}"),
            (None, "") => "the recovery of the state store was interrupted".to_string(),
            (None, why) => format!(
                "the state store is older than the OSDs' records ({why}): a backup of it was restored"
            ),
        };
        format!(
            "{what}. Until the state is recovered, nothing can be changed and no OSD can join; \
             {told} OSDs have sent their records"
        )
    }

    /// Returns the result of a job that may not run while the store is older; `None`: it may run. A job that
    /// did not run is found to be due again when the monitor starts over.
    pub(super) fn left_undone(&self, job: &Job) -> Option<Done> {
        match job {
            Job::Restore(_) | Job::Boot(_) | Job::MarkEdited => None,
            Job::Edit { .. } if self.committed.is_edited() => None,
            Job::Command { command: Command::StateUndo { .. }, .. } => None,
            Job::OpenSession { .. } => Some(Done::SessionRefused(self.state_older())),
            Job::Command { .. } | Job::GiveUpMembers(_) => {
                Some(Done::Answer(Err(self.state_older())))
            }
            _ => Some(Done::Silent),
        }
    }

    /// Describes something that the OSD has seen and that this store lacks, if there is anything.
    pub(super) fn why_older_than(&self, boot: &Boot) -> Option<String> {
        let (osd, seen, committed) = (boot.osd, &boot.seen, &self.committed);
        let Some(record) = committed.osd(osd) else {
            // Ids are never reused: an id that was issued belongs to a removed OSD.
            let is_given = committed.may_be_given(CounterName::Osd, u64::from(osd.get()));
            return (!is_given).then(|| format!("{osd} was created after the backup"));
        };
        let run = boot.run.unwrap_or(Incarnation::ZERO).max(seen.incarnation);
        if run > record.info.incarnation {
            return Some(format!("{osd} has started after the backup"));
        }
        if !committed.change().has(seen.change, seen.reign) {
            return Some(format!("{osd} has seen change {}, which the store lacks", seen.change));
        }
        let mut pools = seen.pools.iter();
        let pool = pools.find(|(pool, revision)| committed.lacks_map(**pool, **revision))?.0;
        Some(format!("{osd} has a newer map of pool {pool}"))
    }

    /// Handles proof that the store is older. OSDs that have joined must also send their records, so they
    /// must reconnect.
    pub(super) fn on_proven_older(&mut self, why: String, effects: &mut Vec<Effect>) {
        if !self.restore.why.is_empty() {
            return;
        }
        let event = TraceEvent::error("the state store is older than the OSDs' records");
        effects.push(Effect::Trace(event.with("why", &why)));
        self.restore.why = why;
        self.jobs.extend(self.settling.end());
        for connection in self.connections.with_osds().collect::<Vec<_>>() {
            self.close(self.now, connection, effects);
        }
    }

    /// Requests all records from an OSD that cannot join.
    pub(super) fn ask_all(&mut self, boot: Boot, effects: &mut Vec<Effect>) {
        if let Some(why) = self.why_older_than(&boot) {
            self.on_proven_older(why, effects);
        }
        if !self.connections.is_here(boot.connection) {
            return;
        }
        let (connection, osd) = (boot.connection, boot.osd);
        let state = KnownState::default();
        let known = KnownBy { boot, state, part_count: 0, is_whole: false, is_here: true };
        self.restore.known.insert(osd, known);
        self.connections.send(connection, &FromMonitor::TellAll, effects);
    }

    /// Handles the disconnection of an OSD that has sent its records. The records still count, unless the OSD
    /// is declared lost.
    pub(super) fn on_teller_gone(&mut self, gone: ConnectionId) {
        let mut known = self.restore.known.values_mut();
        if let Some(known) = known.find(|known| known.boot.connection == gone) {
            known.is_here = false;
        }
    }

    /// Handles one part of an OSD's records.
    pub(super) fn on_tells(
        &mut self,
        now: Time,
        connection: ConnectionId,
        part: KnownState,
        more: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Role::Osd(osd, _) = self.connections.role(connection) else { return };
        let Some(known) = self.restore.known.get_mut(&osd) else { return };
        if known.boot.connection != connection || known.is_whole {
            return;
        }
        known.part_count += 1;
        if known.part_count > PART_COUNT_MAX {
            return self.close_for_protocol(now, connection, effects);
        }
        known.state.add(part);
        known.is_whole = !more;
        if known.is_whole {
            let copy = std::mem::take(&mut known.state.copy);
            let rank = |copy: &StateCopy| {
                (!self.committed.change().has(copy.change, copy.reign), copy.change)
            };
            let is_newer = self.restore.copy.as_ref().is_none_or(|kept| rank(kept) < rank(&copy));
            if copy.change > 0 && is_newer {
                self.restore.copy = Some(copy);
            }
        }
    }

    /// Handles `state recover`: begins the recovery, or refuses it with the reason.
    pub(super) fn restore(
        &mut self,
        connection: ConnectionId,
        request: u64,
        they_are_lost: &[OsdId],
        accepted: bool,
    ) -> Result<(), Failure> {
        if !self.is_older() {
            let hint = "there is nothing to do";
            return Err(failure("invalid", "no OSD has newer records than the state store", hint));
        }
        if self.committed.is_edited() {
            let message = "this monitor has the last good values of the edited keys";
            return Err(failure("invalid", message, super::edit::EDITED_HINT));
        }
        if self.restore.left.get().is_some() {
            return Err(failure("busy", self.older_text(), "wait until the recovery is done"));
        }
        let lost = they_are_lost.iter().copied().collect();
        let draft = Draft::of(&self.committed, &self.restore, lost)?;
        if !accepted {
            return Err(failure(
                "not_accepted",
                format!(
                    "this would restore the state store from the OSDs' records: {}",
                    draft.text()
                ),
                "to confirm: `ashlar state recover --yes`",
            ));
        }
        let answer = draft.answer();
        let records = draft.records;
        self.restore.left.set(Some((records.len(), records.len())));
        self.jobs.push_urgent(Job::Restore(Written { connection, request, records, answer }));
        Ok(())
    }

    /// Plans the next transaction of a recovery; the last one completes it.
    pub(super) fn plan_restore(&self, written: &Written) -> Plan {
        let committed = &self.committed;
        let Some(Record::Change(change)) = written.records.get(&Key::Change) else {
            unreachable!("each draft has it")
        };
        let writes = writes_to(committed, &written.records);
        self.restore.left.set(Some((writes.len(), written.records.len().max(writes.len()))));
        let has_begun = committed.is_being_recovered();
        let end = has_begun.then_some(Write::Delete(Key::Recovery));
        // Only the last transaction raises the store's number to that of the copy: until then the copy counts
        // as newer.
        let mut batch = Batch::replacing_change(committed, change.clone());
        let mut all = writes.iter().cloned().chain(end);
        if all.all(|write| batch.try_add(committed, vec![write])) {
            let answer = written.answer.clone();
            return Plan::Write { batch, done: Some(Done::Restored(answer)) };
        }
        let mut batch = Batch::new(committed);
        if has_begun {
            let _ = writes.into_iter().all(|write| batch.try_add(committed, vec![write]));
        } else {
            batch.put(committed, Record::Recovery(RecoveryRecord::of(self.identity.monitor)));
        }
        Plan::Write { batch, done: None }
    }

    /// Handles the end of the restore: answers the operator, and makes this monitor start over.
    pub(super) fn on_restored(
        &mut self,
        connection: ConnectionId,
        request: u64,
        answer: Value,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Trace(TraceEvent::info("the state was recovered by an operator")));
        self.connections.answer(connection, request, Ok(answer), effects);
        self.restore.asker = Some(connection);
        self.restore.is_done = true;
    }

    pub(super) fn finish_restore(
        &mut self,
        written: &Written,
        answer: Value,
        effects: &mut Vec<Effect>,
    ) {
        self.on_restored(written.connection, written.request, answer, effects);
    }

    /// Notes that a manual edit may have repaired the store.
    pub(super) fn on_mended_by_hand(&mut self) {
        self.restore.is_mended_by_hand = true;
    }

    /// Records that a manual edit has restored the previous values of edited keys.
    pub(super) fn put_back(&mut self) {
        self.restore.is_done = true;
    }

    /// Discards all of this monitor's state, after a recovery or when a manual edit may have
    /// repaired the store: it reads the store again, and OSDs and clients reconnect.
    pub(super) fn begin_anew(&mut self, effects: &mut Vec<Effect>) {
        let asker = self.restore.asker.take();
        if !self.restore.is_done && !self.restore.is_mended_by_hand {
            return;
        }
        let leadership = self.leadership.begin_anew(self.restore.is_done);
        let mut anew = Monitor::under(self.identity.clone(), leadership, self.store.clone());
        anew.committed.reign = self.committed.reign.wrapping_add(1 << 32);
        (anew.now, anew.event_last) = (self.now, self.event_last);
        anew.watching.undone = std::mem::take(&mut self.watching.undone);
        if let Some(watch) = self.watching.watch {
            effects.push(Effect::State(StateEffect::Unwatch { watch }));
        }
        let (connections, others) = self.connections.begin_anew(asker);
        anew.connections = connections;
        let close = |connection| Effect::Net(NetEffect::Close { connection });
        effects.extend(others.into_iter().map(close));
        *self = anew;
    }
}

/// Returns the writes that bring the store to the wanted state, without the transaction number.
fn writes_to(committed: &CommittedState, wanted: &BTreeMap<Key, Record>) -> Vec<Write> {
    let is_own =
        |key: &Key| matches!(key, Key::Leader | Key::Change | Key::Recovery | Key::Stats(..));
    let changed = wanted.iter().filter(|(key, record)| committed.record(key) != Some(record));
    let puts = changed.filter(|(key, _)| !is_own(key)).map(|(_, r)| Write::Put(r.clone()));
    let gone = committed.all().filter(|(key, _)| !is_own(key) && !wanted.contains_key(key));
    // Damaged keys are deleted last: while a lock cannot be read, no session of its image may continue.
    let damaged = committed.damaged_keys().filter(|key| !wanted.contains_key(key));
    let gone = gone.map(|(key, _)| key).chain(damaged);
    puts.chain(gone.map(|key| Write::Delete(key.clone()))).collect()
}

/// The state to be written to the store.
struct Draft<'a> {
    committed: &'a CommittedState,
    restore: &'a Restore,
    lost: BTreeSet<OsdId>,
    records: BTreeMap<Key, Record>,
    /// Number of sessions that end: there are too many, or their ids were issued twice.
    ended_count: usize,
    /// Number of PGs for which an OSD has a newer entry than the store.
    newer_count: usize,
    pg_count: usize,
}

impl<'a> Draft<'a> {
    fn of(
        committed: &'a CommittedState,
        restore: &'a Restore,
        lost: BTreeSet<OsdId>,
    ) -> Result<Draft<'a>, Failure> {
        let (ended_count, newer_count, pg_count) = (0, 0, 0);
        let records = BTreeMap::new();
        let mut draft =
            Draft { committed, restore, lost, records, ended_count, newer_count, pg_count };
        draft.take_base()?;
        draft.add_pools();
        draft.name_images();
        let newest = draft.newest_entries()?;
        draft.add_osds(&newest)?;
        draft.check_all_told()?;
        forks::check(&draft.tellers_by_way(), &newest)?;
        draft.raise_runs()?;
        draft.raise_counters()?;
        draft.end_sessions();
        let revisions = draft.raise_revisions()?;
        draft.add_entries(newest, &revisions)?;
        draft.number();
        draft.check_rules()?;
        Ok(draft)
    }

    fn put(&mut self, record: Record) {
        self.records.insert(record.key(), record);
    }

    fn told(&self) -> impl Iterator<Item = &'a KnownState> + use<'a> {
        self.tellers().map(|(_, state)| state)
    }

    /// Returns the records of OSDs that have sent all their records and are not declared lost.
    fn tellers(&self) -> impl Iterator<Item = (OsdId, &'a KnownState)> + use<'a> {
        let lost = self.lost.clone();
        let whole = self.restore.known.iter().filter(|(_, known)| known.is_whole);
        let whole = whole.filter(move |(osd, _)| !lost.contains(osd));
        whole.map(|(osd, known)| (*osd, &known.state))
    }

    fn boots(&self) -> impl Iterator<Item = &'a Boot> + use<'a> {
        self.restore.known.values().map(|known| &known.boot)
    }

    /// Returns the OSDs' records, each with whether the state that the OSD has seen belongs to the
    /// history that is kept.
    fn tellers_by_way(&self) -> BTreeMap<OsdId, Teller<'a>> {
        let change = self.change_kept();
        let teller = |(osd, known)| {
            let seen = &self.restore.known[&osd].boot.seen;
            (osd, Teller { is_kept: change.has(seen.change, seen.reign), known })
        };
        self.tellers().map(teller).collect()
    }

    /// Returns the copy from which the store is restored; `None`: it is restored from its own contents.
    fn copy(&self) -> Option<&'a StateCopy> {
        let (committed, copy) = (self.committed, self.restore.copy.as_ref());
        let is_usable = !committed.is_damaged() && !committed.is_being_recovered();
        copy.filter(|copy| !is_usable || !committed.change().has(copy.change, copy.reign))
    }

    /// Returns the transaction record from which the store continues.
    fn change_kept(&self) -> ChangeRecord {
        match (self.copy(), self.records.get(&Key::Change)) {
            // The record was sent with the whole copy, possibly before the first transaction of the current
            // leader.
            (Some(copy), Some(Record::Change(record))) if copy.change > record.last => {
                let next = record.with(record.last + 1, copy.reign);
                ChangeRecord { last: copy.change, ..next }
            }
            (Some(_), Some(Record::Change(record))) => record.clone(),
            _ => self.committed.change(),
        }
    }

    /// Takes all records as of one transaction: from the newest copy, or from the store.
    fn take_base(&mut self) -> Result<(), Failure> {
        let (committed, copy) = (self.committed, self.copy());
        if copy.is_none() && committed.is_damaged() {
            let message = "no OSD has sent a copy of the state";
            return Err(failure("unavailable", message, DAMAGED_HINT));
        }
        for (text, value) in copy.map(|copy| &copy.records).into_iter().flatten() {
            let Some(key) = Key::parse(text) else { continue };
            let record = Record::parse(&key, &value.to_string()).map_err(|why| {
                let message = format!("an OSD's copy of the state has a damaged {text}: {why}");
                failure("invalid", message, "restore a newer copy of the state")
            })?;
            self.put(record);
        }
        for (key, record) in committed.all() {
            let is_here = match key {
                // Tasks in the store are dropped: blocks that an older task has not deleted yet may be in use
                // again.
                Key::Task(_) => false,
                Key::Cluster => true,
                // A monitor's record in the store is at least as good as that in any copy.
                Key::Monitor(_) => !committed.is_damaged(),
                key => copy.is_none() && is_copied(key),
            };
            if is_here {
                self.put(record.clone());
            }
        }
        Ok(())
    }

    /// Removes sessions that the store or an OSD already refuses, or whose id was issued twice,
    /// together with their locks: after the restore every session id without a record is fenced.
    fn end_sessions(&mut self) {
        let mut fences: BTreeSet<(PoolId, SessionId)> = BTreeSet::new();
        let mut ranges: BTreeSet<(PoolId, Vec<SessionRange>)> = BTreeSet::new();
        for record in self.committed.pools().filter_map(|r| self.committed.fences(r.pool.id)) {
            fences.extend(record.fences.iter().map(|fence| (record.pool, fence.session)));
            ranges.insert((record.pool, record.ranges.clone()));
        }
        for seen in self.told().flat_map(|told| &told.pools) {
            fences.extend(seen.fences.iter().map(|session| (seen.pool.id, *session)));
            ranges.insert((seen.pool.id, seen.fence_ranges.clone()));
        }
        let is_fenced = |pool: PoolId, session: SessionId| {
            let mut of_pool = ranges.iter().filter(|(of, _)| *of == pool);
            fences.contains(&(pool, session))
                || of_pool.any(|(_, ranges)| is_in_ranges(ranges, session))
        };
        // OSDs cannot distinguish the two clients, so neither of them may continue.
        let is_given_twice = |record: &SessionRecord| {
            let here = self.committed.session(record.id);
            here.is_some_and(|here| here.used != record.used || !here.is_of(record.reign))
        };
        // Sessions marked as ended come first, so they are removed first; within each group the order is by
        // id.
        let mut stay: BTreeMap<PoolId, BTreeSet<(bool, SessionId)>> = BTreeMap::new();
        let mut over: BTreeSet<SessionId> = BTreeSet::new();
        let mut ended_count = 0;
        for (record, pool) in self.sessions() {
            match pool.filter(|pool| !is_fenced(*pool, record.id)) {
                Some(pool) if !is_given_twice(record) => {
                    stay.entry(pool).or_default().insert((!record.ended, record.id));
                }
                live => {
                    ended_count += usize::from(live.is_some());
                    over.insert(record.id);
                }
            }
        }
        for sessions in stay.values() {
            // Each session that remains separates two ranges.
            let surplus = sessions.len().saturating_sub(FENCE_RANGE_COUNT_MAX - 1);
            let gone = sessions.iter().take(surplus);
            over.extend(gone.clone().map(|(_, session)| *session));
            ended_count += gone.filter(|(is_live, _)| *is_live).count();
        }
        self.ended_count = ended_count;
        self.records.retain(|_, record| match record {
            Record::Session(record) => !over.contains(&record.id),
            Record::Lock(lock) => !over.contains(&lock.session),
            _ => true,
        });
    }

    /// Returns the sessions in the order of their ids, each with its pool.
    fn sessions(&self) -> impl Iterator<Item = (&SessionRecord, Option<PoolId>)> {
        let sessions = self.records.values().filter_map(|record| match record {
            Record::Session(record) => Some(record),
            _ => None,
        });
        sessions.map(|record| match record.used {
            Used::Image(image) => match self.records.get(&Key::Image(image)) {
                Some(Record::Image(image)) => (record, Some(image.info.pool)),
                _ => (record, None),
            },
            Used::Pool(pool) => {
                let is_there = self.records.contains_key(&Key::Pool(pool));
                (record, is_there.then_some(pool))
            }
        })
    }

    /// Returns the ranges of all ids up to the last one that may have been issued, except the
    /// sessions of this pool.
    fn fence_ranges(&self, pool: PoolId) -> Vec<SessionRange> {
        let last = SessionId::new(self.counter(CounterName::Session));
        let sessions = self.sessions().filter(|(_, of)| *of == Some(pool));
        ranges_beside(sessions.map(|(record, _)| record.id), last)
    }

    fn name_images(&mut self) {
        let names = self.images().map(|record| ImageNameRecord {
            name: record.info.name.clone(),
            image: record.info.id,
            rest: Rest::new(),
        });
        for record in names.collect::<Vec<_>>() {
            self.put(Record::ImageName(record));
        }
    }

    fn images(&self) -> impl Iterator<Item = &ImageRecord> {
        self.records.values().filter_map(|record| match record {
            Record::Image(record) => Some(record),
            _ => None,
        })
    }

    /// Checks the records for consistency: a monitor refuses a store that violates a rule, so such a draft is
    /// not written.
    fn check_rules(&self) -> Result<(), Failure> {
        let number = self.records.iter().find_map(|(key, record)| {
            let why = record.check_numbers().err()?;
            Some(format!("{key}: {why}"))
        });
        let wanted = || CommittedState::of_records(self.records.values().cloned());
        let Some(what) = number.or_else(|| wanted().broken_rule()) else { return Ok(()) };
        Err(failure(
            "invalid",
            format!("the state assembled from the OSDs' records is not consistent: {what}"),
            "restore a newer copy of the state",
        ))
    }

    /// Adds the pools that OSDs have in their maps and that were created after the copy.
    fn add_pools(&mut self) {
        let last = self.counter(CounterName::Pool);
        for seen in self.told().flat_map(|told| &told.pools) {
            let (pool, revision) = (seen.pool.clone(), seen.revision);
            let is_new = u64::from(pool.id.get()) > last;
            if is_new && !self.records.contains_key(&Key::Pool(pool.id)) {
                let (planned_for, rest) = (0, Rest::new());
                self.put(Record::Pool(PoolRecord { pool, revision, planned_for, rest }));
            }
        }
    }

    /// Returns the highest value of a counter in the copy or the store.
    fn counter(&self, name: CounterName) -> u64 {
        let copied = match self.records.get(&Key::Counter(name)) {
            Some(Record::Counter(record)) => record.last,
            _ => 0,
        };
        copied.max(self.committed.counter(name))
    }

    fn pools(&self) -> Vec<PoolRecord> {
        let pools = self.records.values().filter_map(|record| match record {
            Record::Pool(record) => Some(record.clone()),
            _ => None,
        });
        pools.collect()
    }

    fn osds(&self) -> impl Iterator<Item = &OsdRecord> {
        self.records.values().filter_map(|record| match record {
            Record::Osd(record) => Some(record),
            _ => None,
        })
    }

    /// Returns, for each PG, the entry with the highest known epoch.
    fn newest_entries(&mut self) -> Result<BTreeMap<PgId, PgEntry>, Failure> {
        let mut newest: BTreeMap<PgId, PgEntry> = BTreeMap::new();
        let counts: BTreeMap<PoolId, u32> =
            self.pools().iter().map(|record| (record.pool.id, record.pool.pg_count)).collect();
        let is_kept = |pg: PgId| counts.get(&pg.pool).is_some_and(|count| pg.number < *count);
        for entry in counts.keys().flat_map(|pool| self.committed.pgs(*pool)) {
            if is_kept(entry.pg) {
                newest.insert(entry.pg, entry.clone());
            }
        }
        let told = self.told().flat_map(|told| &told.entries).filter(|entry| is_kept(entry.pg));
        for entry in told.filter(|_| !planted::on(Bug::NewestEntryNotTaken)) {
            let known = newest.get(&entry.pg);
            let given_up = known.map_or(entry.given_up, |known| known.given_up.max(entry.given_up));
            match known {
                Some(known) if known.epoch == entry.epoch => {
                    if !known.has_same_members(entry) {
                        return Err(forks::two_ways(known, entry));
                    }
                }
                Some(known) if known.epoch > entry.epoch => {}
                _ => {
                    newest.insert(entry.pg, entry.clone());
                }
            }
            // What was given up stays so, also where the state store has gone another way since.
            newest.get_mut(&entry.pg).expect("one is there").given_up = given_up;
        }
        let is_newer = |entry: &PgEntry| {
            self.committed.pg(entry.pg).is_none_or(|known| known.epoch < entry.epoch)
        };
        self.newer_count = newest.values().filter(|entry| is_newer(entry)).count();
        Ok(newest)
    }

    /// Adds the OSDs that reported and the OSDs in PG entries, each with the newest run that was seen.
    fn add_osds(&mut self, newest: &BTreeMap<PgId, PgEntry>) -> Result<(), Failure> {
        let mut runs: BTreeMap<OsdId, Incarnation> = BTreeMap::new();
        let entries = self
            .told()
            .flat_map(|told| &told.entries)
            .filter(|e| self.records.contains_key(&Key::Pool(e.pg.pool)));
        for member in newest.values().chain(entries).flat_map(PgEntry::members) {
            let run = runs.entry(member.osd).or_default();
            *run = (*run).max(member.incarnation);
        }
        for boot in self.boots() {
            let run = runs.entry(boot.osd).or_default();
            *run = (*run).max(boot.seen.incarnation).max(boot.run.unwrap_or_default());
        }
        for (osd, run) in runs {
            let (mut record, is_new) = match self.records.remove(&Key::Osd(osd)) {
                Some(Record::Osd(record)) => (record, false),
                _ => (OsdRecord::new(osd, String::new(), 0), true),
            };
            record.info.incarnation = record.info.incarnation.max(run);
            if let Some(KnownBy { boot, .. }) = self.restore.known.get(&osd) {
                record.suspect |= is_new && boot.suspect;
                if !record.store.is_empty() && record.store != boot.store {
                    return Err(failure(
                        "other_store",
                        format!(
                            "{osd} is registered with store {}, but this disk has store {}",
                            record.store, boot.store
                        ),
                        "stop this OSD: its disk belongs to another OSD, or was formatted again",
                    ));
                }
                record.store.clone_from(&boot.store);
                record.info.addresses.clone_from(&boot.addresses);
                record.info.peer_addresses.clone_from(&boot.peer_addresses);
                record.host.clone_from(&boot.host);
                record.path.clone_from(&boot.path);
                record.pid = boot.pid;
            }
            self.put(Record::Osd(record));
        }
        Ok(())
    }

    fn has_told(&self, osd: OsdId) -> bool {
        let known = self.restore.known.get(&osd).filter(|_| !self.lost.contains(&osd));
        known.is_some_and(|known| known.is_whole)
    }

    /// Checks that every OSD has sent its records, or is declared lost.
    fn check_all_told(&self) -> Result<(), Failure> {
        let is_here = |o: &&OsdId| self.restore.known.get(o).is_some_and(|it| it.is_here);
        if let Some(osd) = self.lost.iter().find(is_here) {
            let hint = "remove it from --they-are-lost";
            return Err(failure("invalid", format!("{osd} is not lost: it is connected"), hint));
        }
        if let Some(osd) = self.lost.iter().find(|o| !self.records.contains_key(&Key::Osd(**o))) {
            let hint = "remove it from --they-are-lost";
            return Err(failure("not_found", format!("this cluster has no {osd}"), hint));
        }
        let has_run = |record: &&OsdRecord| record.info.incarnation > Incarnation::ZERO;
        let osds = self.osds().filter(has_run).map(|record| record.info.id);
        let is_missing = |osd: &OsdId| !self.has_told(*osd) && !self.lost.contains(osd);
        let missing: Vec<String> = osds.filter(is_missing).map(|osd| osd.to_string()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let word = if missing.len() == 1 { "has" } else { "have" };
        Err(failure(
            "unavailable",
            format!(
                "{} {word} not reported yet, and may have the newest state",
                first_names(&missing)
            ),
            "start them, on their disks or on copies. If some are lost for good, list them: \
             --they-are-lost ID",
        ))
    }

    /// Marks all OSDs down, and raises the runs of OSDs that sent no records: they may have had newer runs.
    fn raise_runs(&mut self) -> Result<(), Failure> {
        let told = self.told().map(|told| told.osd_revision).max().unwrap_or(0);
        let known = self.osds().map(|record| record.info.revision).max().unwrap_or(0);
        let before = self.committed.osd_revision_max().max(self.counter(CounterName::OsdRevision));
        let mut revision = above(told.max(known).max(before), ID_MARGIN)?;
        let osds: Vec<OsdRecord> = self.osds().cloned().collect();
        for mut record in osds {
            revision += 1;
            record.info.revision = revision;
            record.info.up = false;
            let run = record.info.incarnation;
            if run > Incarnation::ZERO && !self.has_told(record.info.id) {
                record.info.incarnation = Incarnation::new(above(run.get(), RUN_MARGIN)?);
            }
            self.put(Record::Osd(record));
        }
        Ok(())
    }

    /// Raises the revision of each pool's map above every revision that was seen; the fences are published
    /// again with that revision. Requires: the counters are raised.
    fn raise_revisions(&mut self) -> Result<BTreeMap<PoolId, MapRevision>, Failure> {
        let mut revisions = BTreeMap::new();
        for mut record in self.pools() {
            let id = record.pool.id;
            let seen = self.boots().filter_map(|boot| boot.seen.pools.get(&id).copied()).max();
            let pools = self.told().flat_map(|told| &told.pools).filter(|p| p.pool.id == id);
            let told = pools.map(|pool| pool.revision).max();
            let here = self.committed.pool(id).map(|record| record.revision);
            let highest = [seen, told, here].into_iter().flatten().fold(record.revision, Ord::max);
            let revision = MapRevision::new(above(highest.get(), REVISION_MARGIN)?);
            (record.revision, record.planned_for) = (revision, 0);
            self.put(Record::Pool(record));
            // Sessions that were fenced earlier have no record, so the ranges include them.
            self.put(Record::Fence(FenceRecord {
                pool: id,
                fences: Vec::new(),
                ranges: self.fence_ranges(id),
                ranges_revision: revision,
                rest: Rest::new(),
            }));
            revisions.insert(id, revision);
        }
        Ok(revisions)
    }

    /// Adds an entry for each PG: the members of its newest entry, in a later epoch.
    fn add_entries(
        &mut self,
        mut newest: BTreeMap<PgId, PgEntry>,
        revisions: &BTreeMap<PoolId, MapRevision>,
    ) -> Result<(), Failure> {
        for PoolRecord { pool, .. } in self.pools() {
            let ids = (0..pool.pg_count).map(|number| PgId { pool: pool.id, number });
            let ids: Vec<PgId> = ids.collect();
            if ids.iter().any(|id| !newest.contains_key(id)) {
                // These PGs were never served: they get new entries.
                newest.extend(self.new_entries(&pool, &ids, &newest)?);
            }
            let revision = revisions[&pool.id];
            let raised = |id: &PgId| {
                let entry = newest[id].clone();
                let epoch = Epoch::new(entry.epoch.get().saturating_add(EPOCH_MARGIN));
                PgEntry { epoch, revision, ..entry }
            };
            let entries: Vec<PgEntry> = ids.iter().map(raised).collect();
            self.pg_count += entries.len();
            for (shard, pgs) in (0..).zip(entries.chunks(PG_SHARD_SIZE as usize)) {
                let (pool, targets, rest) = (pool.id, Vec::new(), Rest::new());
                let pgs = pgs.to_vec();
                self.put(Record::PgShard(PgShardRecord { pool, shard, pgs, targets, rest }));
            }
        }
        Ok(())
    }

    fn new_entries(
        &self,
        pool: &Pool,
        ids: &[PgId],
        newest: &BTreeMap<PgId, PgEntry>,
    ) -> Result<Vec<(PgId, PgEntry)>, Failure> {
        // An OSD of an older version, which does not say, may have had PGs of the pool.
        let may_keep = |record: &OsdRecord| record.may_keep(pool.has_objects(), true);
        let is_told = |r: &&OsdRecord| r.info.in_cluster && self.has_told(r.info.id);
        let usable = self.osds().filter(|record| is_told(record) && may_keep(record));
        let candidate = |record: &OsdRecord| Candidate {
            osd: record.info.id,
            domain: domain_of(record, pool.failure_domain),
            weight: record.size_bytes.max(1),
            pgs_elsewhere: 0,
        };
        let candidates: Vec<Candidate> = usable.map(candidate).collect();
        let acting = |id: &PgId| {
            let members = newest.get(id).into_iter().flat_map(|entry| entry.acting());
            members.map(|member| member.osd).collect()
        };
        let current: Vec<Vec<OsdId>> = ids.iter().map(acting).collect();
        let mut targets = placement::plan(&candidates, pool.scheme.position_count(), &current)
            .map_err(|error| {
                super::pool::cannot_place(
                    &error,
                    pool.scheme,
                    pool.failure_domain,
                    candidates.len(),
                )
            })?;
        if !pool.scheme.is_whole_everywhere() {
            placement::arrange(&mut targets, pool.scheme.data_count() as usize);
        }
        let member = |osd: &OsdId| {
            let record = self.osds().find(|record| record.info.id == *osd);
            let incarnation = record.map_or(Incarnation::ZERO, |record| record.info.incarnation);
            Member { osd: *osd, incarnation }
        };
        let new = ids.iter().zip(&targets).filter(|(id, _)| !newest.contains_key(*id));
        let entry =
            |(id, osds): (&PgId, &Vec<OsdId>)| (*id, PgEntry::new(*id, osds.iter().map(member)));
        Ok(new.map(entry).collect())
    }

    /// Raises the counters so that no id is issued twice, even if no record of its first use is left.
    fn raise_counters(&mut self) -> Result<(), Failure> {
        let mut last: BTreeMap<CounterName, u64> = BTreeMap::new();
        for key in self.records.keys().chain(self.committed.all().map(|(key, _)| key)) {
            let (name, id) = match key {
                Key::Image(id) => (CounterName::Image, u64::from(id.get())),
                Key::Session(id) => (CounterName::Session, id.get()),
                Key::Task(id) => (CounterName::Task, id.0),
                Key::Pool(id) | Key::RemovedPool(id) => (CounterName::Pool, u64::from(id.get())),
                Key::Osd(id) => (CounterName::Osd, u64::from(id.get())),
                Key::Monitor(id) => (CounterName::Monitor, u64::from(id.get())),
                _ => continue,
            };
            let known = last.entry(name).or_default();
            *known = (*known).max(id);
        }
        let session_last = last.entry(CounterName::Session).or_default();
        for pool in self.told().flat_map(|told| &told.pools) {
            let ranges = pool.fence_ranges.iter().map(|(_, last)| last);
            for session in pool.fences.iter().chain(ranges) {
                *session_last = session.get().max(*session_last);
            }
        }
        let margins = [
            (CounterName::Image, ID_MARGIN),
            (CounterName::Session, ID_MARGIN),
            (CounterName::Task, ID_MARGIN),
            (CounterName::Pool, POOL_MARGIN),
            (CounterName::Osd, 0),
            (CounterName::Monitor, 0),
            (CounterName::OsdRevision, 2 * ID_MARGIN),
        ];
        for (name, margin) in margins {
            let seen = last.get(&name).copied().unwrap_or(0).max(self.counter(name));
            let last = match planted::on(Bug::RestoredCounterNotRaised) {
                true => self.committed.counter(name),
                false => above(seen, margin)?,
            };
            self.put(Record::Counter(CounterRecord { name, last, rest: Rest::new() }));
        }
        Ok(())
    }

    /// Sets the transaction number above every number that was seen: the recovery has taken all changes up to
    /// it into account.
    fn number(&mut self) {
        let seen = self.boots().map(|boot| boot.seen.change).max().unwrap_or(0);
        let known = self.committed.change().last.max(self.change_kept().last);
        let last = known.max(seen) + CHANGE_MARGIN;
        let (reigns, rest) = (Vec::new(), Rest::new());
        self.put(Record::Change(ChangeRecord { last, reigns, recovered: last, rest }));
    }

    /// Returns the names of volumes that are restored, and of those that are removed.
    fn volumes(&self) -> (Vec<String>, Vec<String>) {
        let wanted: BTreeSet<&String> = self.images().map(|record| &record.info.name).collect();
        let here: BTreeSet<&String> =
            self.committed.images().map(|record| &record.info.name).collect();
        let names = |names: &mut dyn Iterator<Item = &&String>| {
            names.map(|name| name.to_string()).collect::<Vec<_>>()
        };
        (names(&mut wanted.difference(&here)), names(&mut here.difference(&wanted)))
    }

    fn answer(&self) -> Value {
        let (back, gone) = self.volumes();
        json!({
            "pgs": self.pg_count,
            "pgs_newer": self.newer_count,
            "osds_told": self.tellers().count(),
            "osds_lost": self.lost,
            "has_copy": self.copy().is_some(),
            "volumes_back": back.iter().take(1000).collect::<Vec<_>>(),
            "volumes_gone": gone.iter().take(1000).collect::<Vec<_>>(),
        })
    }

    /// Describes the restore for the operator.
    fn text(&self) -> String {
        let (back, gone) = self.volumes();
        let mut text = format!("{} of {} PG entries", self.newer_count, self.pg_count);
        match self.copy() {
            Some(copy) => {
                text.push_str(&format!(", and everything else as of change {}", copy.change))
            }
            None => text.push_str(
                "; no OSD has a newer copy of anything else: volumes and settings are those of the \
                 backup",
            ),
        }
        if !back.is_empty() {
            text.push_str(&format!("; volumes that will be restored: {}", first_names(&back)));
        }
        if !gone.is_empty() {
            text.push_str(&format!(
                "; volumes that were removed after the backup: {}",
                first_names(&gone)
            ));
        }
        if self.ended_count > 0 {
            text.push_str(&format!("; {} attached clients will be detached", self.ended_count));
        }
        if !self.lost.is_empty() {
            let lost: Vec<String> = self.lost.iter().map(OsdId::to_string).collect();
            text.push_str(&format!(
                "; anything that only {} had recorded is lost, including acknowledged writes",
                first_names(&lost)
            ));
        }
        text
    }
}

/// Returns a number above `number`, which an OSD or the store reported; an error if it is out of range.
fn above(number: u64, margin: u64) -> Result<u64, Failure> {
    if number <= NUMBER_MAX {
        return Ok(number + margin);
    }
    let message = format!("a number in an OSD's copy of the state is out of range: {number}");
    Err(failure("invalid", message, "restore a newer copy of the state"))
}
