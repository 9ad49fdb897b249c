//! The state store in memory: the simulated store, and the core of the file-based store.
//!
//! Invariants
//!   1. `revision` is the number of transactions that wrote something, including the ends of leases.
//!   2. No key's revision is above `revision`; a key with a lease is listed in that lease and in no other.
//!   3. `history` holds the changes of every revision in `compacted + 1 ..= revision`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use base::{Duration, Time};

use super::{
    Compare, KeyValue, LeaseId, Operation, RANGE_COUNT_MAX, RangeAnswer, StateEffect, StateEvent,
    StateRevision, StateStore, Transaction, TransactionOutcome, WatchId,
};

/// Maximum number of changes kept for watches that begin in the past; older ones are compacted.
const HISTORY_COUNT_MAX: usize = 10_000;
/// Maximum number of bytes of keys and values kept for watches that begin in the past.
const HISTORY_SIZE_MAX: usize = 16 << 20;

/// A state store that lives as long as its process.
#[derive(Clone, Debug, Default)]
pub struct MemoryState {
    revision: StateRevision,
    compacted: StateRevision,
    keys: BTreeMap<String, KeyValue>,
    lease_last: u64,
    leases: BTreeMap<LeaseId, Lease>,
    history: VecDeque<RevisionChanges>,
    history_size: usize,
    watches: BTreeMap<WatchId, Watch>,
}

#[derive(Clone, Debug)]
struct Lease {
    time_to_live: Duration,
    ends: Time,
    keys: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Watch {
    prefix: String,
    next: StateRevision,
}

#[derive(Clone, Debug)]
struct RevisionChanges {
    revision: StateRevision,
    changes: Vec<(String, Option<KeyValue>)>,
}

impl RevisionChanges {
    fn size(&self) -> usize {
        let value = |change: &Option<KeyValue>| change.as_ref().map_or(0, |kv| kv.value.len());
        self.changes.iter().map(|(key, change)| key.len() + value(change)).sum()
    }
}

/// One change that a durable copy of the store must apply to stay up to date.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateChange {
    /// The store's new revision.
    Revision(StateRevision),
    /// A key was written.
    Put(KeyValue),
    /// A key was deleted.
    Delete(String),
    /// A lease was granted; later leases have larger ids.
    LeaseGranted(LeaseId, Duration),
    /// A lease has ended.
    LeaseEnded(LeaseId),
}

/// Everything that a durable copy of the store holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateImage {
    /// The store's revision.
    pub revision: StateRevision,
    /// All keys.
    pub entries: Vec<KeyValue>,
    /// All leases, with their time to live.
    pub leases: Vec<(LeaseId, Duration)>,
    /// The id of the last lease ever granted.
    pub lease_last: u64,
}

impl MemoryState {
    /// Returns the store that a durable copy describes. All leases start again with their full time to live,
    /// since their owners could not renew them while the store was not running. Earlier changes count as
    /// compacted.
    pub fn from_image(now: Time, image: StateImage) -> MemoryState {
        let mut state = MemoryState {
            revision: image.revision,
            compacted: image.revision,
            lease_last: image.lease_last,
            ..MemoryState::default()
        };
        for (id, time_to_live) in image.leases {
            let lease = Lease { time_to_live, ends: now + time_to_live, keys: BTreeSet::new() };
            state.leases.insert(id, lease);
        }
        for entry in image.entries {
            if let Some(lease) = entry.lease.and_then(|id| state.leases.get_mut(&id)) {
                lease.keys.insert(entry.key.clone());
            }
            state.keys.insert(entry.key.clone(), entry);
        }
        state
    }

    /// Returns the store's revision.
    pub fn revision(&self) -> StateRevision {
        self.revision
    }

    /// Returns all keys with their values, in order.
    pub fn entries(&self) -> impl Iterator<Item = &KeyValue> {
        self.keys.values()
    }

    /// Carries out an effect and appends its events. Appends to `changes` what a durable copy must apply
    /// before the events may be delivered.
    pub fn apply_recorded(
        &mut self,
        now: Time,
        effect: StateEffect,
        events: &mut Vec<StateEvent>,
        changes: &mut Vec<StateChange>,
    ) {
        self.end_leases(now, changes);
        match effect {
            StateEffect::Range { request, prefix, after, limit } => {
                let answer = self.range(&prefix, after, limit);
                events.push(StateEvent::Range { request, result: Ok(answer) });
            }
            StateEffect::Transact { request, transaction } => {
                let outcome = self.transact(&transaction, changes);
                events.push(StateEvent::Transacted { request, outcome });
            }
            StateEffect::Watch { watch, prefix, from } => {
                self.watches.insert(watch, Watch { prefix, next: from });
            }
            StateEffect::Unwatch { watch } => {
                self.watches.remove(&watch);
            }
            StateEffect::LeaseGrant { request, time_to_live } => {
                let lease = Some(self.grant(now, time_to_live, changes));
                events.push(StateEvent::Lease { request, lease });
            }
            StateEffect::LeaseRenew { request, lease: id } => {
                let lease = self.leases.get_mut(&id).map(|lease| {
                    lease.ends = now + lease.time_to_live;
                    id
                });
                events.push(StateEvent::Lease { request, lease });
            }
            StateEffect::LeaseRevoke { request, lease: id } => {
                let lease = self.end_lease(id, changes).then_some(id);
                events.push(StateEvent::Lease { request, lease });
            }
            StateEffect::Compact { request, revision } => {
                self.compact(revision.min(self.revision));
                events.push(StateEvent::Compacted { request });
            }
        }
        self.tell_watches(events);
    }

    /// Like [`StateStore::poll`]; records changes in the same way as `apply_recorded`.
    pub fn poll_recorded(
        &mut self,
        now: Time,
        events: &mut Vec<StateEvent>,
        changes: &mut Vec<StateChange>,
    ) {
        self.end_leases(now, changes);
        self.tell_watches(events);
    }

    fn range(&self, prefix: &str, after: Option<String>, limit: usize) -> RangeAnswer {
        let limit = limit.clamp(1, RANGE_COUNT_MAX);
        let start = match &after {
            Some(key) if key.as_str() >= prefix => Bound::Excluded(key.as_str()),
            _ => Bound::Included(prefix),
        };
        let mut found = self
            .keys
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(_, entry)| entry.clone());
        let entries: Vec<KeyValue> = found.by_ref().take(limit).collect();
        RangeAnswer { revision: self.revision, entries, more: found.next().is_some() }
    }

    fn transact(
        &mut self,
        transaction: &Transaction,
        changes: &mut Vec<StateChange>,
    ) -> TransactionOutcome {
        if let Some(why) = transaction.broken_rule() {
            return TransactionOutcome::Invalid { why };
        }
        let lease_missing = |operation: &Operation| match operation {
            Operation::Put { lease: Some(lease), .. } => !self.leases.contains_key(lease),
            _ => false,
        };
        if transaction.operations().iter().any(lease_missing) {
            return TransactionOutcome::Conflict;
        }
        if !transaction.compares().iter().all(|compare| self.holds(compare)) {
            return TransactionOutcome::Conflict;
        }
        if !transaction.operations().is_empty() {
            self.write(transaction.operations(), changes);
        }
        TransactionOutcome::Committed { revision: self.revision }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let revision = self.keys.get(&compare.key).map_or(StateRevision::ZERO, |kv| kv.revision);
        revision == compare.revision
    }

    /// Applies the operations as one new revision.
    fn write(&mut self, operations: &[Operation], changes: &mut Vec<StateChange>) {
        self.revision = self.revision.next();
        changes.push(StateChange::Revision(self.revision));
        let mut told = Vec::with_capacity(operations.len());
        for operation in operations {
            let key = operation.key();
            let before = self.keys.remove(key);
            let held = before.as_ref().and_then(|entry| entry.lease);
            if let Some(lease) = held.and_then(|id| self.leases.get_mut(&id)) {
                lease.keys.remove(key);
            }
            match operation {
                Operation::Put { key, value, lease } => {
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        revision: self.revision,
                        lease: *lease,
                    };
                    if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
                        lease.keys.insert(key.clone());
                    }
                    self.keys.insert(key.clone(), entry.clone());
                    changes.push(StateChange::Put(entry.clone()));
                    told.push((key.clone(), Some(entry)));
                }
                Operation::Delete { key } => {
                    if before.is_some() {
                        changes.push(StateChange::Delete(key.clone()));
                        told.push((key.clone(), None));
                    }
                }
            }
        }
        self.remember(RevisionChanges { revision: self.revision, changes: told });
    }

    fn remember(&mut self, changes: RevisionChanges) {
        self.history_size += changes.size();
        self.history.push_back(changes);
        while self.history.len() > HISTORY_COUNT_MAX || self.history_size > HISTORY_SIZE_MAX {
            let oldest = self.history.front().expect("more than none").revision;
            self.compact(oldest);
        }
    }

    fn compact(&mut self, revision: StateRevision) {
        while let Some(oldest) = self.history.front()
            && oldest.revision <= revision
        {
            self.history_size -= oldest.size();
            self.history.pop_front();
        }
        self.compacted = self.compacted.max(revision);
    }

    fn grant(
        &mut self,
        now: Time,
        time_to_live: Duration,
        changes: &mut Vec<StateChange>,
    ) -> LeaseId {
        self.lease_last += 1;
        let id = LeaseId(self.lease_last);
        let lease = Lease { time_to_live, ends: now + time_to_live, keys: BTreeSet::new() };
        self.leases.insert(id, lease);
        changes.push(StateChange::LeaseGranted(id, time_to_live));
        id
    }

    fn end_leases(&mut self, now: Time, changes: &mut Vec<StateChange>) {
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.end_lease(id, changes);
        }
    }

    fn end_lease(&mut self, id: LeaseId, changes: &mut Vec<StateChange>) -> bool {
        let Some(lease) = self.leases.remove(&id) else { return false };
        let operations: Vec<Operation> =
            lease.keys.into_iter().map(|key| Operation::Delete { key }).collect();
        if !operations.is_empty() {
            self.write(&operations, changes);
        }
        changes.push(StateChange::LeaseEnded(id));
        true
    }

    fn tell_watches(&mut self, events: &mut Vec<StateEvent>) {
        let mut lost = Vec::new();
        for (id, watch) in &mut self.watches {
            if watch.next > self.revision {
                continue;
            }
            if watch.next <= self.compacted {
                lost.push(*id);
                continue;
            }
            let skipped = watch.next.get() - self.compacted.get() - 1;
            for told in self.history.iter().skip(skipped as usize) {
                let changes: Vec<_> = told
                    .changes
                    .iter()
                    .filter(|(key, _)| key.starts_with(&watch.prefix))
                    .cloned()
                    .collect();
                if !changes.is_empty() {
                    let revision = told.revision;
                    events.push(StateEvent::Watched { watch: *id, revision, changes });
                }
            }
            watch.next = self.revision.next();
        }
        for watch in lost {
            self.watches.remove(&watch);
            events.push(StateEvent::WatchLost { watch, compacted: self.compacted });
        }
    }
}

impl StateStore for MemoryState {
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
        self.apply_recorded(now, effect, events, &mut Vec::new());
    }

    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>) {
        self.poll_recorded(now, events, &mut Vec::new());
    }

    fn deadline(&self) -> Option<Time> {
        self.leases.values().map(|lease| lease.ends).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{StateRequest, conformance};

    #[test]
    fn memory_state_keeps_the_promises_of_the_trait() {
        conformance::run(|| Box::new(MemoryState::default()));
    }

    #[test]
    fn history_is_bounded() {
        let mut state = MemoryState::default();
        let mut events = Vec::new();
        for number in 0..HISTORY_COUNT_MAX as u64 + 5 {
            let mut transaction = Transaction::new();
            let operation =
                Operation::Put { key: "k".into(), value: number.to_string(), lease: None };
            transaction.write(operation, StateRevision::new(number));
            let request = StateRequest(number);
            state.apply(Time::ZERO, StateEffect::Transact { request, transaction }, &mut events);
        }
        assert_eq!(state.history.len(), HISTORY_COUNT_MAX);
        assert_eq!(state.compacted, StateRevision::new(5));
    }

    #[test]
    fn leases_of_a_copy_begin_anew() {
        let lease = LeaseId(4);
        let entry = KeyValue {
            key: "k".into(),
            value: "1".into(),
            revision: StateRevision::new(2),
            lease: Some(lease),
        };
        let image = StateImage {
            revision: StateRevision::new(2),
            entries: vec![entry],
            leases: vec![(lease, Duration::from_secs(5))],
            lease_last: 9,
        };
        let start = Time::from_nanos(1_000);
        let mut state = MemoryState::from_image(start, image);
        assert_eq!(state.deadline(), Some(start + Duration::from_secs(5)));
        state.poll(start + Duration::from_secs(5), &mut Vec::new());
        assert_eq!(state.entries().count(), 0);
        assert_eq!(state.revision(), StateRevision::new(3));
    }
}
