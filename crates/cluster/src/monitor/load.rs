//! How a monitor becomes the leader and reads the state: at its start, and again whenever the outcome of
//! a transaction is unknown. `leadership.rs` has the stages.
//!
//! Taking leadership writes the leader's key, and every transaction compares that key's revision. Once
//! leadership is taken, no earlier transaction can be committed any more, and nobody else writes while
//! pages are read.

use std::collections::BTreeMap;

use base::{Duration, Incarnation, Time, TraceEvent};

use super::committed_state::CommittedState;
use super::edit::is_never_edited;
use super::job::Job;
use super::leadership::Reading;
use super::monitors::removed_text;
use super::{Effect, Monitor, StopReason};
use crate::message::{Command, ToMonitor};
use crate::records::{Key, LeaderRecord, OsdRecord, Record, Rest, STATE_FORMAT};
use crate::state::{
    KeyValue, Operation, RANGE_COUNT_MAX, RangeAnswer, StateEffect, StateEvent, StateRequest,
    StateRevision, Transaction, TransactionOutcome, Unavailable,
};

/// Delay before an unreachable store is tried again.
const REST_SPAN: Duration = Duration::from_millis(100);

impl Monitor {
    /// Starts to read the leader's key when that is due.
    pub(super) fn advance_load(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.leadership.deadline().is_some_and(|due| due <= now) {
            self.read_leader(effects);
        }
    }

    pub(super) fn on_state(&mut self, now: Time, event: StateEvent, effects: &mut Vec<Effect>) {
        match event {
            StateEvent::Range { request, result } => self.on_range(now, request, result, effects),
            StateEvent::Transacted { request, outcome } => {
                self.on_transacted(now, request, outcome, effects);
            }
            StateEvent::Condition { trouble } => self.on_condition(now, trouble, effects),
            StateEvent::Endpoints(found) => self.store.on_endpoints(found),
            StateEvent::Failed { reason } => self.stop(StopReason::State(reason), effects),
            StateEvent::Watched { watch, revision, changes } => {
                self.on_watched(watch, revision, changes, effects);
            }
            StateEvent::WatchLost { watch, .. } if self.watching.watch == Some(watch) => {
                self.watching.watch = None;
                self.connections.lose_state_watches(effects);
                // Becoming the leader starts a new watch; reading everything finds the changes that
                // were missed.
                if self.leadership.has_begun_to_read() {
                    self.read_leader(effects);
                }
            }
            StateEvent::WatchLost { .. }
            | StateEvent::Lease { .. }
            | StateEvent::Compacted { .. } => {}
        }
    }

    /// Records whether the store can be reached. `status` commands that wait for the first reading are
    /// answered now: the answer shows why reading takes so long.
    fn on_condition(&mut self, now: Time, trouble: Option<String>, effects: &mut Vec<Effect>) {
        self.store.on_condition(trouble);
        if self.store.trouble().is_none() {
            return;
        }
        for (connection, message) in self.connections.take_early() {
            match message {
                ToMonitor::Command { request, command: Command::Status } => {
                    let status = self.status(now, self.store.trouble());
                    self.connections.answer(connection, request, Ok(status), effects);
                }
                message => {
                    let is_kept = self.connections.keep_early(connection, message);
                    assert!(is_kept, "they were kept before");
                }
            }
        }
    }

    /// Takes leadership (again) and then reads everything.
    pub(super) fn read_leader(&mut self, effects: &mut Vec<Effect>) {
        let request = self.store.next_request();
        self.leadership.read_leader(request);
        effects.push(Effect::State(StateEffect::Range {
            request,
            prefix: Key::Leader.to_string(),
            after: None,
            limit: 1,
        }));
    }

    fn on_range(
        &mut self,
        now: Time,
        answered: StateRequest,
        result: Result<RangeAnswer, Unavailable>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(reading) = self.leadership.take_reading(answered) else { return };
        let Ok(answer) = result else {
            self.leadership.rest(now + REST_SPAN);
            return;
        };
        match reading {
            Reading::Page { leader, loaded } => {
                self.load_page(now, leader, loaded, answer, effects);
            }
            Reading::LeaderKey => self.lead(answer.entries.into_iter().next(), effects),
        }
    }

    /// Writes the leader's key, replacing the value that was found.
    fn lead(&mut self, found: Option<KeyValue>, effects: &mut Vec<Effect>) {
        let found = found.filter(|entry| entry.key == Key::Leader.to_string());
        let parsed = found.as_ref().map(|entry| Record::parse(&Key::Leader, &entry.value));
        let before = match parsed.transpose() {
            Ok(Some(Record::Leader(record))) => Some(record),
            Ok(_) => None,
            // The key was edited by hand while this monitor led: this monitor writes it again.
            Err(_) if self.leadership.has_led() || self.leadership.lease().is_some() => None,
            Err(error) => {
                let reason = format!("the state store's key leader is damaged: {error}");
                self.stop(StopReason::State(reason), effects);
                return;
            }
        };
        let ours = (self.identity.monitor, self.identity.pid);
        if self.leadership.another_leads(ours, found.as_ref(), before.as_ref()) {
            let reason = "another monitor leads the cluster now".to_string();
            self.stop(StopReason::LostLeadership(reason), effects);
            return;
        }
        if self.leadership.has_led() && before.is_none() {
            // The key existed and belonged to this monitor, so it was removed or edited by hand.
            self.watching.undone.note_leader(self.now);
        }
        let record = Record::Leader(LeaderRecord {
            monitor: self.identity.monitor,
            run: before.as_ref().map_or(0, |record| record.run).saturating_add(1),
            pid: self.identity.pid,
            addresses: self.identity.addresses.clone(),
            rest: before.map_or_else(Rest::new, |record| record.rest),
        });
        let mut transaction = Transaction::new();
        let revision = found.map_or(StateRevision::ZERO, |entry| entry.revision);
        let value = record.to_json().to_string();
        let lease = self.leadership.lease();
        let operation = Operation::Put { key: Key::Leader.to_string(), value, lease };
        transaction.write(operation, revision);
        let request = self.store.next_request();
        self.leadership.take(request);
        effects.push(Effect::State(StateEffect::Transact { request, transaction }));
    }

    fn on_transacted(
        &mut self,
        now: Time,
        answered: StateRequest,
        outcome: TransactionOutcome,
        effects: &mut Vec<Effect>,
    ) {
        if let TransactionOutcome::Invalid { why } = outcome {
            panic!("the state store refused a transaction: {why}");
        }
        if self.leadership.is_taking(answered) {
            match outcome {
                TransactionOutcome::Committed { revision } => {
                    self.watch_store(revision, effects);
                    self.ask_page(revision, BTreeMap::new(), None, effects);
                }
                _ => self.leadership.rest(now + REST_SPAN),
            }
        } else if self.is_ready() && self.jobs.is_awaited(answered) {
            match outcome {
                TransactionOutcome::Committed { revision } => {
                    let in_flight = self.jobs.take_in_flight().expect("it is awaited");
                    self.commit(now, in_flight, revision, effects);
                }
                _ => self.read_leader(effects),
            }
        }
    }

    /// Begins to watch all keys, starting before the first one is read.
    fn watch_store(&mut self, leader: StateRevision, effects: &mut Vec<Effect>) {
        if self.watching.watch.is_some() {
            return;
        }
        let watch = self.store.next_watch();
        self.watching.watch = Some(watch);
        let (prefix, from) = (String::new(), leader.next());
        effects.push(Effect::State(StateEffect::Watch { watch, prefix, from }));
    }

    fn ask_page(
        &mut self,
        leader: StateRevision,
        loaded: BTreeMap<String, KeyValue>,
        after: Option<String>,
        effects: &mut Vec<Effect>,
    ) {
        let request = self.store.next_request();
        self.leadership.read_page(request, leader, loaded);
        let (prefix, limit) = (String::new(), RANGE_COUNT_MAX);
        effects.push(Effect::State(StateEffect::Range { request, prefix, after, limit }));
    }

    fn load_page(
        &mut self,
        now: Time,
        leader: StateRevision,
        mut loaded: BTreeMap<String, KeyValue>,
        answer: RangeAnswer,
        effects: &mut Vec<Effect>,
    ) {
        let last = answer.entries.last().map(|entry| entry.key.clone());
        loaded.extend(answer.entries.into_iter().map(|entry| (entry.key.clone(), entry)));
        let leader_key = loaded.get(&Key::Leader.to_string());
        let led = leader_key.map_or(StateRevision::ZERO, |entry| entry.revision);
        if answer.more {
            self.ask_page(leader, loaded, last, effects);
        } else if led != leader {
            // Another monitor took leadership meanwhile: the pages may reflect different states.
            self.read_leader(effects);
        } else {
            self.watching.read_at = leader;
            self.leadership.all_read(leader);
            self.take_loaded(now, loaded, effects);
        }
    }

    /// Adopts the loaded records as the state, once everything has been read.
    fn take_loaded(
        &mut self,
        now: Time,
        loaded: BTreeMap<String, KeyValue>,
        effects: &mut Vec<Effect>,
    ) {
        if self.leadership.has_led() {
            self.compare_loaded(now, &loaded, effects);
        } else if let Err(reason) = self.take_first(loaded) {
            self.stop(reason, effects);
            return;
        }
        let is_first = self.leadership.become_ready(now);
        self.track_sessions(now);
        self.track_tasks();
        self.publish(effects);
        self.on_settings_changed(effects);
        if is_first {
            self.begin(now, effects);
        }
    }

    /// Compares the store with this monitor's state. Apart from a transaction whose outcome was
    /// unknown, every difference is a manual edit.
    fn compare_loaded(
        &mut self,
        now: Time,
        loaded: &BTreeMap<String, KeyValue>,
        effects: &mut Vec<Effect>,
    ) {
        let leader = loaded[&Key::Leader.to_string()].clone();
        self.committed.load(leader).expect("this monitor has just written it");
        self.settle_in_flight(now, loaded, effects);
        for key in self.committed.differences(loaded) {
            let entry = loaded.get(&key);
            let revision = entry.map_or(StateRevision::ZERO, |entry| entry.revision);
            let text = entry.map(|entry| entry.value.clone());
            self.take_edit(key, revision, text, effects);
        }
    }

    /// Adopts the state as the last leader left it.
    fn take_first(&mut self, loaded: BTreeMap<String, KeyValue>) -> Result<(), StopReason> {
        let mut committed = CommittedState::of_reign(self.committed.reign);
        let revision = |key: Key| loaded.get(&key.to_string()).map(|entry| entry.revision);
        let (change, cluster) = (revision(Key::Change), revision(Key::Cluster));
        let leadership = &self.leadership;
        // Every transaction of a monitor writes its number under `change`, so a record that is newer than
        // `change` is a manual edit. (If all keys, including `change`, were restored one by one, this cannot
        // be detected here; then OSDs show whether the store is older.)
        let is_manual_edit = |entry: &KeyValue| {
            let is_past_monitors = change < Some(entry.revision);
            let is_unbelieved = is_past_monitors && !leadership.believes(entry.revision);
            cluster.is_some() && change >= cluster && is_unbelieved
        };
        for entry in loaded.into_values() {
            match Key::parse(&entry.key) {
                Some(key) if is_manual_edit(&entry) && is_never_edited(&key) => {
                    let why = "edited by hand while no monitor led".to_string();
                    committed.note_damage(key, entry, why);
                }
                _ => committed.load(entry).map_err(StopReason::State)?,
            }
        }
        if let Some(reason) = self.why_not_ours(&committed) {
            return Err(reason);
        }
        committed.judge_rules();
        self.committed = committed;
        let edited: Vec<Key> = self.committed.edited_keys().cloned().collect();
        edited.into_iter().for_each(|key| self.queue_edit(key));
        Ok(())
    }

    /// Begins to serve OSDs and clients: this monitor leads for the first time.
    fn begin(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.begin_detection(now);
        let has_run = |record: &OsdRecord| record.info.incarnation > Incarnation::ZERO;
        if self.committed.osds().any(has_run) {
            self.settling.begin(now);
        }
        self.begin_stats();
        self.entries.mark_all();
        self.planning.is_due = true;
        if self.committed.cluster().is_none() {
            self.jobs.push_first(Job::CreateCluster);
        }
        self.record_self();
        effects.push(Effect::Ready);
        if let Some(damage) = self.committed.damage() {
            let event = TraceEvent::error("the state store is damaged").with("why", damage);
            effects.push(Effect::Trace(event));
        }
        for (connection, message) in self.connections.take_early() {
            self.on_control(now, connection, message, effects);
        }
    }

    fn why_not_ours(&self, loaded: &CommittedState) -> Option<StopReason> {
        match loaded.cluster() {
            Some(record) if record.id != self.identity.cluster => {
                let reason = format!(
                    "the state store belongs to cluster {}, but this monitor belongs to cluster {}",
                    record.id, self.identity.cluster
                );
                Some(StopReason::OtherCluster(reason))
            }
            Some(record) if record.format > STATE_FORMAT => {
                let reason = format!(
                    "the state store has format {}, but this version supports only formats up to \
                     {STATE_FORMAT}: run a newer version",
                    record.format
                );
                Some(StopReason::State(reason))
            }
            Some(_) if loaded.has_removed_monitor(self.identity.monitor) => {
                Some(StopReason::Removed(removed_text(self.identity.monitor)))
            }
            Some(_) => None,
            None if loaded.is_new() && self.leadership.may_create() => None,
            None if loaded.is_new() => {
                let reason = "the state store holds no cluster: create one with `ashlar init`; if \
                              there was one, its state is lost: restore it from a backup";
                Some(StopReason::State(reason.to_string()))
            }
            None => {
                let reason = "the state store holds keys but no `cluster` key: it does not belong \
                              to Ashlar, or it is damaged";
                Some(StopReason::State(reason.to_string()))
            }
        }
    }
}
