//! The simulated state store: the cluster's in-memory store behind an interface that delays and refuses
//! operations, and sometimes cannot report the outcome of a transaction. All monitors share it.
//!
//! Invariants checked
//!   1. The state is changed only by the monitor run that wrote the leader's key, and only while that key
//!      exists.
//!   2. No monitor writes the leader's key while the key exists under another monitor's lease.
//!   3. Epochs of a PG never decrease, and all entries of one epoch have the same members.
//!   4. While a session holds an image's lock and may write lazily, no other session has the image attached,
//!      unless it has ended.
//!
//! Replies and watches arrive in any order; the events of one watch arrive in the order in which the store
//! made them.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, PgId, PoolId, SessionId, Time};
use cluster::records::{FenceRecord, Key, LockRecord, Record, SessionRecord, Used};
use cluster::state::memory::MemoryState;
use cluster::state::{
    KeyValue, LeaseId, Operation, StateEffect, StateEvent, StateRequest, StateRevision, StateStore,
    Transaction, TransactionOutcome, Unavailable, WatchId,
};
use format::wire::PgEntry;

use crate::random::{Chance, Random};
use crate::tally::Tally;

/// A run of a monitor's process: the monitor's index, and the number of the run.
pub type MonitorRun = (usize, u64);

/// The key that identifies the leader.
const LEADER_KEY: &str = "leader";

/// Latency of a reply, in nanoseconds.
const LATENCY: std::ops::Range<u64> = 10_000..5_000_000;

/// The delay after which a lost transaction may still take effect, in nanoseconds: even after another
/// monitor has become the leader and has read everything.
const LATE: std::ops::Range<u64> = 10_000..6_000_000_000;

/// The delay of a slow effect that is answered in the end, in nanoseconds.
const SLOW: std::ops::Range<u64> = 1_000_000..1_400_000_000;

/// The store, which outlives monitors, and its simulated faults.
pub struct StateDoor {
    store: MemoryState,
    backup: Option<MemoryState>,
    random: Random,
    /// Watches by their ids in the store; each monitor uses ids of its own.
    watches: BTreeMap<WatchId, Watch>,
    watch_last: u64,
    leases: BTreeMap<LeaseId, MonitorRun>,
    /// The run that last wrote the leader's key.
    leader: Option<MonitorRun>,
    /// Monitors that cannot reach the store, each with the end of its cut.
    cuts: BTreeMap<usize, Time>,
    entries: BTreeMap<PgId, PgEntry>,
    /// Sessions that are marked as ended.
    ended: BTreeSet<SessionId>,
    /// Sessions that monitors have opened.
    opened: BTreeSet<SessionId>,
    /// Sessions that clients closed after all their requests were answered.
    closed: BTreeSet<SessionId>,
    /// The fences of the pool of the volumes that existed when each session was opened.
    fences: BTreeMap<SessionId, FenceRecord>,
    /// The last value that monitors wrote, by key; recorded once manual edits may happen.
    written: Option<BTreeMap<String, String>>,
    /// Transactions that write statistics only.
    of_stats: BTreeSet<(MonitorRun, StateRequest)>,
}

struct Watch {
    run: MonitorRun,
    /// The id that the owner of the watch uses.
    name: WatchId,
    told_until: Time,
}

/// A step that follows from an effect, and the time of the step.
pub struct Step {
    /// The time at which it happens.
    pub at: Time,
    /// What happens.
    pub what: StateStep,
}

/// A step of the store.
#[derive(Clone)]
pub enum StateStep {
    /// A monitor receives an event.
    Tell(MonitorRun, StateEvent),
    /// An effect reaches the store late. `is_told`: the monitor receives the answer.
    Reach { run: MonitorRun, effect: StateEffect, is_told: bool },
    /// Expired leases are removed.
    EndLeases,
}

impl StateStep {
    /// Returns whether this step belongs to a transaction, which may change the state.
    pub fn is_of_transaction(&self) -> bool {
        match self {
            StateStep::Tell(_, event) => matches!(event, StateEvent::Transacted { .. }),
            StateStep::Reach { effect, .. } => matches!(effect, StateEffect::Transact { .. }),
            StateStep::EndLeases => false,
        }
    }
}

impl StateDoor {
    /// Returns an empty store.
    pub fn new(random: Random) -> StateDoor {
        StateDoor {
            store: MemoryState::default(),
            backup: None,
            random,
            watches: BTreeMap::new(),
            watch_last: 0,
            leases: BTreeMap::new(),
            leader: None,
            cuts: BTreeMap::new(),
            entries: BTreeMap::new(),
            ended: BTreeSet::new(),
            opened: BTreeSet::new(),
            closed: BTreeSet::new(),
            fences: BTreeMap::new(),
            written: None,
            of_stats: BTreeSet::new(),
        }
    }

    /// Returns whether a step belongs to a transaction that writes more than statistics.
    pub fn may_change_map(&self, step: &StateStep) -> bool {
        let transaction = match step {
            StateStep::Tell(run, StateEvent::Transacted { request, .. })
            | StateStep::Reach { run, effect: StateEffect::Transact { request, .. }, .. } => {
                (*run, *request)
            }
            _ => return false,
        };
        !self.of_stats.contains(&transaction)
    }

    fn note_if_of_stats(&mut self, run: MonitorRun, effect: &StateEffect) {
        let StateEffect::Transact { request, transaction } = effect else { return };
        let is_of_stats = |operation: &Operation| {
            matches!(Key::parse(operation.key()), Some(Key::Stats(..) | Key::Change))
        };
        if transaction.operations().iter().all(is_of_stats) {
            self.of_stats.insert((run, *request));
        }
    }

    /// Takes a backup.
    pub fn back_up(&mut self) {
        self.backup = Some(self.store.clone());
    }

    /// Returns whether a backup was taken.
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Restores the backup. Requires: no monitor runs.
    pub fn restore(&mut self) {
        self.store = self.backup.take().expect("it was taken");
        // Ids of leases will be used again.
        self.leases.clear();
        self.leader = None;
        self.written = None;
        // Ids of sessions that no OSD has recorded will be used again, too.
        self.fences.clear();
    }

    /// Returns whether, of two sessions of an image, the older one had been fenced when the newer one
    /// was opened.
    pub fn is_fenced_for(&self, newer: SessionId, older: SessionId) -> bool {
        self.fences.get(&newer).is_some_and(|record| {
            let is_within =
                |(first, last): &(SessionId, SessionId)| (*first..=*last).contains(&older);
            record.fences.iter().any(|fence| fence.session == older)
                || record.ranges.iter().any(is_within)
        })
    }

    /// Returns whether a session exists in the store. A session that does not exist was fenced, or its
    /// client has reported that none of its requests is in transit.
    pub fn has_session(&self, session: SessionId) -> bool {
        let key = Key::Session(session).to_string();
        self.store.entries().any(|entry| entry.key == key)
    }

    /// Handles the write of a session. If the session is new, records the fences that exist at that
    /// time.
    fn note_fences(&mut self, session: SessionId) {
        if self.fences.contains_key(&session) {
            return;
        }
        // Fences are of a pool: ranges of the pool of objects contain ids of sessions of volumes that go on.
        let key = Key::Fence(PoolId::FIRST).to_string();
        let entry = self.store.entries().find(|entry| entry.key == key);
        let parsed =
            entry.and_then(|entry| Record::parse(&Key::parse(&entry.key)?, &entry.value).ok());
        if let Some(Record::Fence(record)) = parsed {
            self.fences.insert(session, record);
        }
    }

    /// Returns whether each PG has the members that its plan names. If not, PGs may still move: an OSD that
    /// started too often rests for up to a minute before it is admitted.
    pub fn is_as_planned(&self) -> bool {
        let shards = self.store.entries().filter_map(|entry| {
            match Record::parse(&Key::parse(&entry.key)?, &entry.value).ok()? {
                Record::PgShard(shard) => Some(shard),
                _ => None,
            }
        });
        let mut pgs = shards.flat_map(|shard| shard.pgs.into_iter().zip(shard.targets));
        pgs.all(|(entry, plan)| {
            plan.iter().all(|osd| entry.acting().any(|member| member.osd == *osd))
        })
    }

    /// Starts to record what monitors write. From now on, manual edits may happen.
    pub fn expect_edits(&mut self) {
        let entries = self.store.entries();
        self.written = Some(entries.map(|it| (it.key.clone(), it.value.clone())).collect());
    }

    /// Returns every key and its value.
    pub fn entries(&self) -> impl Iterator<Item = &KeyValue> {
        self.store.entries()
    }

    /// Makes a manual edit. Returns the events that monitors receive because of it.
    pub fn edit(&mut self, now: Time, operation: Operation) -> Vec<Step> {
        let key = operation.key();
        let revision = self.store.entries().find(|entry| entry.key == key);
        let revision = revision.map_or(StateRevision::ZERO, |entry| entry.revision);
        let mut transaction = Transaction::new();
        transaction.write(operation, revision);
        let effect = StateEffect::Transact { request: StateRequest(0), transaction };
        let mut events = Vec::new();
        self.store.apply(now, effect, &mut events);
        events.into_iter().filter_map(|event| self.tell_watch(now, event)).collect()
    }

    /// Returns the last value that monitors wrote under a key, if it was recorded.
    pub fn written(&self, key: &str) -> Option<&str> {
        self.written.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns a key whose value differs from what monitors last wrote, if any. The leader's key does
    /// not count: when a lease ends, the store itself removes that key.
    pub fn edited(&self) -> Option<&str> {
        let written = self.written.as_ref()?;
        let present: BTreeMap<&str, &str> =
            self.store.entries().map(|it| (it.key.as_str(), it.value.as_str())).collect();
        let is_other = |key: &&str| {
            *key != LEADER_KEY && present.get(key).copied() != written.get(*key).map(String::as_str)
        };
        present.keys().copied().chain(written.keys().map(String::as_str)).find(is_other)
    }

    fn note_written(&mut self, transaction: &Transaction) {
        let Some(written) = &mut self.written else { return };
        for operation in transaction.operations() {
            match operation.clone() {
                Operation::Put { key, value, .. } => drop(written.insert(key, value)),
                Operation::Delete { key } => drop(written.remove(&key)),
            }
        }
    }

    /// Cuts a monitor off from the store until the given time.
    pub fn cut_off(&mut self, monitor: usize, until: Time) {
        let cut = self.cuts.entry(monitor).or_insert(until);
        *cut = until.max(*cut);
    }

    /// Returns whether all monitors can reach the store.
    pub fn is_reached(&self, now: Time) -> bool {
        self.cuts.values().all(|until| *until <= now)
    }

    /// Lets all monitors reach the store again.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Handles the end of a monitor's run: removes its watches.
    pub fn run_ended(&mut self, now: Time, run: MonitorRun) {
        let own = self.watches.iter().filter(|(_, watch)| watch.run == run);
        for watch in own.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.watches.remove(&watch);
            self.store.apply(now, StateEffect::Unwatch { watch }, &mut Vec::new());
        }
    }

    /// Applies a monitor's effect to the store. An error describes the invariant that is violated.
    pub fn apply(
        &mut self,
        now: Time,
        run: MonitorRun,
        effect: StateEffect,
        faults: Chance,
        tally: &mut Tally,
    ) -> Result<Vec<Step>, String> {
        self.note_if_of_stats(run, &effect);
        let fails = self.random.chance(faults);
        let cut = self.cuts.get(&run.0).copied().filter(|until| *until > now);
        if !fails && cut.is_none() {
            return self.reach(now, run, effect, true, tally);
        }
        match effect {
            StateEffect::Range { request, .. } => {
                tally.faults.add("state store unavailable", 1);
                let event = StateEvent::Range { request, result: Err(Unavailable) };
                Ok(vec![self.soon(now, StateStep::Tell(run, event))])
            }
            StateEffect::Transact { .. }
                if cut.is_none() && self.random.chance(Chance::percent(25)) =>
            {
                tally.faults.add("transaction that took long", 1);
                let at = now + Duration::from_nanos(self.random.scale(SLOW));
                Ok(vec![Step { at, what: StateStep::Reach { run, effect, is_told: true } }])
            }
            StateEffect::Transact { .. } => self.lose(now, run, effect, tally),
            StateEffect::LeaseGrant { .. }
            | StateEffect::LeaseRenew { .. }
            | StateEffect::LeaseRevoke { .. }
            | StateEffect::Compact { .. } => {
                tally.faults.add("monitor's lease asked for late", 1);
                let slow = now + Duration::from_nanos(self.random.scale(SLOW));
                let at = cut.unwrap_or(slow);
                Ok(vec![Step { at, what: StateStep::Reach { run, effect, is_told: true } }])
            }
            StateEffect::Watch { .. } | StateEffect::Unwatch { .. } => {
                self.reach(now, run, effect, true, tally)
            }
        }
    }

    /// Handles a transaction whose outcome is never reported to the monitor.
    fn lose(
        &mut self,
        now: Time,
        run: MonitorRun,
        effect: StateEffect,
        tally: &mut Tally,
    ) -> Result<Vec<Step>, String> {
        let StateEffect::Transact { request, .. } = effect else {
            unreachable!("the caller has seen it");
        };
        let event = StateEvent::Transacted { request, outcome: TransactionOutcome::Unknown };
        let mut steps = vec![self.soon(now, StateStep::Tell(run, event))];
        match self.random.below(3) {
            0 => {
                tally.faults.add("unknown transaction that happened", 1);
                steps.extend(self.reach(now, run, effect, false, tally)?);
            }
            1 => tally.faults.add("unknown transaction that did not happen", 1),
            _ => {
                tally.faults.add("unknown transaction that happened late", 1);
                let at = now + Duration::from_nanos(self.random.scale(LATE));
                steps.push(Step { at, what: StateStep::Reach { run, effect, is_told: false } });
            }
        }
        Ok(steps)
    }

    fn soon(&mut self, now: Time, what: StateStep) -> Step {
        Step { at: now + Duration::from_nanos(self.random.scale(LATENCY)), what }
    }

    /// Removes expired leases.
    pub fn end_leases(&mut self, now: Time) -> Vec<Step> {
        let mut events = Vec::new();
        self.store.poll(now, &mut events);
        events.into_iter().filter_map(|event| self.tell_watch(now, event)).collect()
    }

    /// Applies an effect that reaches the store.
    pub fn reach(
        &mut self,
        now: Time,
        run: MonitorRun,
        mut effect: StateEffect,
        is_told: bool,
        tally: &mut Tally,
    ) -> Result<Vec<Step>, String> {
        let mut steps = self.end_leases(now);
        match &mut effect {
            StateEffect::Watch { watch, .. } => {
                self.watch_last += 1;
                let id = WatchId(self.watch_last);
                let name = std::mem::replace(watch, id);
                self.watches.insert(id, Watch { run, name, told_until: now });
            }
            StateEffect::Unwatch { watch } => {
                let mut all = self.watches.iter();
                let Some(id) = all.find(|(_, known)| (known.run, known.name) == (run, *watch))
                else {
                    return Ok(steps);
                };
                *watch = *id.0;
                self.watches.remove(watch);
            }
            _ => {}
        }
        let before = self.store.entries().find(|entry| entry.key == LEADER_KEY).cloned();
        let (transaction, span) = match &effect {
            StateEffect::Transact { transaction, .. } => (Some(transaction.clone()), None),
            StateEffect::LeaseGrant { time_to_live, .. } => (None, Some(*time_to_live)),
            // The lease may be longer or shorter than this; an additional check does no harm.
            StateEffect::LeaseRenew { .. } => (None, Some(Duration::from_secs(2))),
            _ => (None, None),
        };
        let mut events = Vec::new();
        self.store.apply(now, effect, &mut events);
        for event in events {
            match &event {
                StateEvent::Watched { .. } | StateEvent::WatchLost { .. } => {
                    steps.extend(self.tell_watch(now, event));
                    continue;
                }
                StateEvent::Transacted { outcome, .. } => {
                    let transaction = transaction.as_ref().expect("it is its answer");
                    self.judge(run, transaction, *outcome, before.as_ref(), tally)?;
                }
                StateEvent::Lease { lease: Some(lease), .. } => {
                    self.leases.entry(*lease).or_insert(run);
                    let ends = span.map(|span| now + span);
                    steps.extend(ends.map(|at| Step { at, what: StateStep::EndLeases }));
                }
                _ => {}
            }
            if is_told {
                let step = self.soon(now, StateStep::Tell(run, event));
                steps.push(self.not_before_heal(run, step));
            }
        }
        Ok(steps)
    }

    /// Schedules an event of a watch after all earlier events of the same watch.
    fn tell_watch(&mut self, now: Time, event: StateEvent) -> Option<Step> {
        let (StateEvent::Watched { watch: id, .. } | StateEvent::WatchLost { watch: id, .. }) =
            &event
        else {
            return None;
        };
        let id = *id;
        let (run, name) = self.watches.get(&id).map(|watch| (watch.run, watch.name))?;
        let event = match event {
            StateEvent::Watched { revision, changes, .. } => {
                StateEvent::Watched { watch: name, revision, changes }
            }
            StateEvent::WatchLost { compacted, .. } => {
                self.watches.remove(&id);
                StateEvent::WatchLost { watch: name, compacted }
            }
            _ => unreachable!("just matched"),
        };
        let step = self.soon(now, StateStep::Tell(run, event));
        let mut step = self.not_before_heal(run, step);
        if let Some(watch) = self.watches.get_mut(&id) {
            step.at = step.at.max(watch.told_until);
            watch.told_until = step.at;
        }
        Some(step)
    }

    fn not_before_heal(&self, run: MonitorRun, step: Step) -> Step {
        let cut = self.cuts.get(&run.0).copied().unwrap_or(step.at);
        Step { at: step.at.max(cut), ..step }
    }

    /// Checks a transaction that reached the store. `before`: the entry of the leader's key before the
    /// transaction.
    fn judge(
        &mut self,
        run: MonitorRun,
        transaction: &Transaction,
        outcome: TransactionOutcome,
        before: Option<&KeyValue>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let is_leaders = self.leader == Some(run) && before.is_some();
        let takes = transaction.operations().iter().any(|it| it.key() == LEADER_KEY);
        if !matches!(outcome, TransactionOutcome::Committed { .. }) {
            let is_former = !is_leaders && !takes;
            tally.consequences.add("transaction of a former leader refused", u64::from(is_former));
            return Ok(());
        }
        if takes {
            let lease = before.and_then(|entry| entry.lease);
            let owner = lease.and_then(|lease| self.leases.get(&lease));
            if owner.is_some_and(|owner| *owner != run) {
                return Err(format!(
                    "monitor {run:?} takes leadership under the lease of {owner:?}"
                ));
            }
            let is_new = self.leader.replace(run) != Some(run);
            tally.consequences.add("monitor took leadership", u64::from(is_new));
        } else if !is_leaders {
            return Err(format!(
                "monitor {run:?} changes the state, but {:?} leads: {:?}",
                self.leader,
                transaction.operations()
            ));
        }
        self.note_written(transaction);
        let fences = transaction.operations().iter().any(|it| it.key().starts_with("fence/"));
        for operation in transaction.operations() {
            self.judge_write(operation)?;
            if !fences {
                self.judge_removal(operation)?;
            }
            let resumed = self.session_goes_on(operation);
            tally.consequences.add("session went on after its time", resumed.into());
        }
        // A manually edited key does not count: the rule is for monitors only.
        let edited = self.edited().map(str::to_string);
        let own = self.store.entries().filter(|entry| Some(&entry.key) != edited.as_ref());
        broken_lock(own).map_or(Ok(()), Err)
    }

    /// Records a client's report that a session is closed and has no unanswered request.
    pub fn session_closed(&mut self, session: SessionId) {
        self.closed.insert(session);
    }

    /// Checks that a session is removed without a fence only when none of its requests can be in
    /// flight: its client closed the session, or the session was marked as ended first.
    fn judge_removal(&self, operation: &Operation) -> Result<(), String> {
        let Operation::Delete { key } = operation else { return Ok(()) };
        let Some(Key::Session(id)) = Key::parse(key) else { return Ok(()) };
        // A session that was created by a manual edit may be removed: undoing the edit does so.
        let is_over = self.ended.contains(&id) || self.closed.contains(&id);
        match is_over || !self.opened.contains(&id) {
            true => Ok(()),
            false => Err(format!("session {id} is removed, but its requests may be in flight")),
        }
    }

    /// Records whether a write marks a session as ended. Returns whether it removes such a mark.
    fn session_goes_on(&mut self, operation: &Operation) -> bool {
        let Operation::Put { key, value, .. } = operation else { return false };
        let parsed = Key::parse(key).map(|key| Record::parse(&key, value));
        let Some(Ok(Record::Session(record))) = parsed else { return false };
        self.note_fences(record.id);
        self.opened.insert(record.id);
        if record.ended {
            self.ended.insert(record.id);
        }
        !record.ended && self.ended.remove(&record.id)
    }

    fn judge_write(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::Put { key, value, .. } = operation else { return Ok(()) };
        if !key.starts_with("pg/") {
            return Ok(());
        }
        let parsed = Key::parse(key).map(|key| Record::parse(&key, value));
        let Some(Ok(Record::PgShard(shard))) = parsed else {
            return Err(format!("{key} holds what cannot be read: {value}"));
        };
        for entry in shard.pgs {
            let before = self.entries.get(&entry.pg);
            let goes_back = before.is_some_and(|before| before.epoch > entry.epoch);
            let is_other = before.is_some_and(|before| {
                before.epoch == entry.epoch && !before.has_same_members(&entry)
            });
            if goes_back || is_other {
                return Err(format!("{entry:?} follows {before:?}"));
            }
            self.entries.insert(entry.pg, entry);
        }
        Ok(())
    }
}

fn broken_lock<'a>(entries: impl Iterator<Item = &'a KeyValue>) -> Option<String> {
    let mut locks: Vec<LockRecord> = Vec::new();
    // Entries are sorted by key, so locks come before sessions.
    for entry in entries.filter(|entry| is_judged(&entry.key)) {
        let key = Key::parse(&entry.key).expect("the monitor wrote it");
        match Record::parse(&key, &entry.value).expect("the monitor wrote it") {
            Record::Lock(lock) if lock.lazy => locks.push(lock),
            Record::Session(SessionRecord {
                id, used: Used::Image(image), ended: false, ..
            }) => {
                let beside = locks.iter().find(|lock| lock.image == image && lock.session != id);
                if let Some(lock) = beside {
                    return Some(format!("session {id} has the image of {lock:?}"));
                }
            }
            _ => {}
        }
    }
    None
}

fn is_judged(key: &str) -> bool {
    key.starts_with("lock/") || key.starts_with("session/")
}

#[cfg(test)]
mod tests {
    use base::{ImageId, MonitorId, SessionId};
    use cluster::records::{LeaderRecord, Rest};

    use super::*;

    const ONE: MonitorRun = (0, 0);
    const OTHER: MonitorRun = (1, 0);

    struct Bench {
        door: StateDoor,
        tally: Tally,
        now: Time,
        request_last: u64,
    }

    impl Bench {
        fn new() -> Bench {
            let door = StateDoor::new(Random::new(1, "state"));
            Bench { door, tally: super::super::catalog::tally(), now: Time::ZERO, request_last: 0 }
        }

        fn ask(&mut self, run: MonitorRun, effect: StateEffect) -> Result<Vec<Step>, String> {
            self.door.apply(self.now, run, effect, Chance::NEVER, &mut self.tally)
        }

        fn request(&mut self) -> StateRequest {
            self.request_last += 1;
            StateRequest(self.request_last)
        }

        fn lease(&mut self, run: MonitorRun) -> LeaseId {
            let request = self.request();
            let time_to_live = Duration::from_secs(2);
            let steps = self.ask(run, StateEffect::LeaseGrant { request, time_to_live }).unwrap();
            let lease = steps.into_iter().find_map(|step| match step.what {
                StateStep::Tell(_, StateEvent::Lease { lease, .. }) => lease,
                _ => None,
            });
            lease.unwrap()
        }

        /// Writes a key whose current revision is `before`, with no condition on the leader's key.
        fn write(
            &mut self,
            run: MonitorRun,
            key: &str,
            value: &str,
            lease: Option<LeaseId>,
            before: u64,
        ) -> Result<Vec<Step>, String> {
            let mut transaction = Transaction::new();
            let (key, value) = (key.to_string(), value.to_string());
            let operation = Operation::Put { key, value, lease };
            transaction.write(operation, StateRevision::new(before));
            let request = self.request();
            self.ask(run, StateEffect::Transact { request, transaction })
        }

        fn lead(
            &mut self,
            run: MonitorRun,
            lease: LeaseId,
            before: u64,
        ) -> Result<Vec<Step>, String> {
            let record = LeaderRecord {
                monitor: MonitorId::FIRST,
                run: 1,
                pid: 1,
                addresses: Vec::new(),
                rest: Rest::new(),
            };
            let value = Record::Leader(record).to_json().to_string();
            self.write(run, "leader", &value, Some(lease), before)
        }
    }

    #[test]
    fn a_change_by_another_than_the_leader_is_found() {
        let mut bench = Bench::new();
        assert!(bench.write(ONE, "a", "1", None, 0).is_err(), "nobody leads");
        let mut bench = Bench::new();
        let lease = bench.lease(ONE);
        assert!(bench.lead(ONE, lease, 0).is_ok());
        assert!(bench.write(ONE, "a", "1", None, 0).is_ok());
        assert!(bench.write(OTHER, "b", "1", None, 0).is_err());
        // A refused transaction changes nothing.
        assert!(bench.write(OTHER, "a", "1", None, 0).is_ok());
        assert_eq!(bench.tally.consequences.get("transaction of a former leader refused"), 1);
        bench.now = bench.now + Duration::from_secs(3);
        assert!(bench.write(ONE, "a", "2", None, 2).is_err(), "its lease is over");
    }

    #[test]
    fn leadership_under_anothers_lease_is_found() {
        let mut bench = Bench::new();
        let (lease, other) = (bench.lease(ONE), bench.lease(OTHER));
        assert!(bench.lead(ONE, lease, 0).is_ok());
        assert!(bench.lead(ONE, lease, 1).is_ok(), "it writes its own key again");
        assert!(bench.lead(OTHER, other, 2).is_err());
        let mut bench = Bench::new();
        let lease = bench.lease(ONE);
        assert!(bench.lead(ONE, lease, 0).is_ok());
        bench.now = bench.now + Duration::from_secs(3);
        let other = bench.lease(OTHER);
        assert!(bench.lead(OTHER, other, 0).is_ok());
    }

    #[test]
    fn an_epoch_that_goes_back_or_names_two_entries_is_found() {
        let mut bench = Bench::new();
        let shard = |epoch: u32, primary: u32| {
            let pg = serde_json::json!({
                "pg": { "pool": 1, "number": 0 },
                "epoch": epoch,
                "revision": 9,
                "primary": 0,
                "positions": [{ "osd": primary, "incarnation": 1 }],
                "learners": [],
            });
            serde_json::json!({ "pool": 1, "shard": 0, "pgs": [pg] }).to_string()
        };
        let put = |value: String| {
            let key = "pg/1/0".to_string();
            Operation::Put { key, value, lease: None }
        };
        let mut says = |epoch, primary| bench.door.judge_write(&put(shard(epoch, primary)));
        assert_eq!(says(3, 1), Ok(()));
        assert_eq!(says(3, 1), Ok(()));
        assert!(says(3, 2).is_err());
        assert_eq!(says(4, 2), Ok(()));
        assert!(says(3, 1).is_err());
    }

    #[test]
    fn a_watch_tells_in_order_and_under_its_owners_name() {
        let mut bench = Bench::new();
        let lease = bench.lease(ONE);
        for run in [ONE, OTHER] {
            let (watch, prefix, from) = (WatchId(7), String::new(), StateRevision::new(1));
            bench.ask(run, StateEffect::Watch { watch, prefix, from }).unwrap();
        }
        let mut told: BTreeMap<MonitorRun, Vec<(Time, u64)>> = BTreeMap::new();
        for number in 0..50 {
            let steps = bench.lead(ONE, lease, number).unwrap();
            for step in steps {
                if let StateStep::Tell(run, StateEvent::Watched { watch, revision, .. }) = step.what
                {
                    assert_eq!(watch, WatchId(7));
                    told.entry(run).or_default().push((step.at, revision.get()));
                }
            }
        }
        for told in told.values() {
            assert_eq!(told.len(), 50);
            assert!(told.is_sorted());
        }
        assert_eq!(told.len(), 2);
        bench.door.run_ended(bench.now, OTHER);
        let steps = bench.lead(ONE, lease, 50).unwrap();
        let is_other = |step: &Step| matches!(step.what, StateStep::Tell(OTHER, _));
        assert!(!steps.iter().any(is_other));
    }

    #[test]
    fn what_another_hand_wrote_is_seen_until_it_is_put_back() {
        let mut bench = Bench::new();
        let lease = bench.lease(ONE);
        bench.lead(ONE, lease, 0).unwrap();
        bench.write(ONE, "a", "1", None, 0).unwrap();
        bench.door.expect_edits();
        assert_eq!(bench.door.edited(), None);
        let (key, value) = ("a".to_string(), "2".to_string());
        bench.door.edit(bench.now, Operation::Put { key: key.clone(), value, lease: None });
        assert_eq!(bench.door.edited(), Some("a"));
        bench.write(ONE, "a", "1", None, 3).unwrap();
        assert_eq!(bench.door.edited(), None);
        bench.door.edit(bench.now, Operation::Delete { key });
        assert_eq!(bench.door.edited(), Some("a"));
    }

    fn lock(lazy: bool) -> Record {
        let (image, session) = (ImageId::FIRST, SessionId::new(3));
        Record::Lock(LockRecord { image, session, lazy, rest: Rest::new() })
    }

    fn session(number: u64, ended: bool) -> Record {
        let (id, used) = (SessionId::new(number), Used::Image(ImageId::FIRST));
        let (client, rest) = ("test".into(), Rest::new());
        Record::Session(SessionRecord { id, used, client, read_only: true, ended, reign: 0, rest })
    }

    fn is_broken(records: &[Record]) -> bool {
        let entry = |record: &Record| KeyValue {
            key: record.key().to_string(),
            value: record.to_json().to_string(),
            revision: StateRevision::ZERO,
            lease: None,
        };
        let entries: Vec<KeyValue> = records.iter().map(entry).collect();
        broken_lock(entries.iter()).is_some()
    }

    #[test]
    fn a_session_beside_a_lazy_holder_is_found() {
        assert!(is_broken(&[lock(true), session(3, false), session(4, false)]));
        assert!(!is_broken(&[lock(true), session(3, false), session(4, true)]));
        assert!(!is_broken(&[lock(false), session(3, false), session(4, false)]));
    }
}
