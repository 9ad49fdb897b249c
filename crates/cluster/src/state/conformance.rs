//! Checks of the behavior that every state store must have, written against the trait. The tests of each
//! store run these checks.
//!
//! A check panics if the store breaks a guarantee. Stores that answer later are polled until they answer, on
//! a clock that advances with each poll.

use base::{Duration, Time};

use super::{
    KEY_SIZE_MAX, KeyValue, LeaseId, OPERATION_COUNT_MAX, Operation, RangeAnswer, StateEffect,
    StateEvent, StateRequest, StateRevision, StateStore, Transaction, TransactionOutcome, WatchId,
};

/// Runs every check, each on an empty store.
pub fn run(mut make: impl FnMut() -> Box<dyn StateStore>) {
    let checks = [
        transactions_compare_and_write_whole,
        a_key_has_the_revision_of_its_last_change,
        ranges_are_ordered_paged_and_by_prefix,
        limits_are_refused,
        watches_tell_changes_in_order_from_a_revision,
        a_compacted_watch_is_lost,
        a_lease_takes_its_keys_with_it,
        a_renewed_lease_stays,
    ];
    for check in checks {
        check(&mut Driver::new(make()));
    }
}

/// Maximum number of polls before a check gives up on an answer.
const POLL_COUNT_MAX: u32 = 10_000;

struct Driver {
    store: Box<dyn StateStore>,
    now: Time,
    request: u64,
    events: Vec<StateEvent>,
}

impl Driver {
    fn new(store: Box<dyn StateStore>) -> Driver {
        Driver { store, now: Time::from_nanos(1), request: 0, events: Vec::new() }
    }

    fn next_request(&mut self) -> StateRequest {
        self.request += 1;
        StateRequest(self.request)
    }

    fn start(&mut self, effect: StateEffect) {
        self.store.apply(self.now, effect, &mut self.events);
    }

    /// Waits for the first event that `wanted` accepts.
    fn wait<T>(&mut self, wanted: impl Fn(&StateEvent) -> Option<T>) -> T {
        for _ in 0..POLL_COUNT_MAX {
            let place = self.events.iter().position(|event| wanted(event).is_some());
            if let Some(place) = place {
                return wanted(&self.events.remove(place)).expect("just seen");
            }
            self.now = self.now + Duration::from_millis(1);
            self.store.poll(self.now, &mut self.events);
        }
        panic!("no answer; unread events: {:?}", self.events);
    }

    fn advance(&mut self, span: Duration) {
        self.now = self.now + span;
        self.store.poll(self.now, &mut self.events);
    }

    fn transact(&mut self, transaction: Transaction) -> TransactionOutcome {
        let request = self.next_request();
        self.start(StateEffect::Transact { request, transaction });
        self.wait(|event| match event {
            StateEvent::Transacted { request: answered, outcome } if *answered == request => {
                Some(*outcome)
            }
            _ => None,
        })
    }

    fn commit(&mut self, transaction: Transaction) -> StateRevision {
        match self.transact(transaction) {
            TransactionOutcome::Committed { revision } => revision,
            other => panic!("not committed: {other:?}"),
        }
    }

    fn put(&mut self, key: &str, value: &str, revision: StateRevision) -> StateRevision {
        self.commit(writes(&[(put(key, value), revision)]))
    }

    fn range(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> RangeAnswer {
        let request = self.next_request();
        let prefix = prefix.to_string();
        let after = after.map(str::to_string);
        self.start(StateEffect::Range { request, prefix, after, limit });
        self.wait(|event| match event {
            StateEvent::Range { request: answered, result } if *answered == request => {
                Some(result.clone().expect("the store can be asked"))
            }
            _ => None,
        })
    }

    fn get(&mut self, key: &str) -> Option<KeyValue> {
        let found = self.range(key, None, 1).entries;
        found.into_iter().find(|entry| entry.key == key)
    }

    fn lease(&mut self, make: impl Fn(StateRequest) -> StateEffect) -> Option<LeaseId> {
        let request = self.next_request();
        self.start(make(request));
        self.wait(|event| match event {
            StateEvent::Lease { request: answered, lease } if *answered == request => Some(*lease),
            _ => None,
        })
    }

    fn watched(&mut self, watch: WatchId) -> (StateRevision, Vec<(String, Option<String>)>) {
        self.wait(|event| match event {
            StateEvent::Watched { watch: told, revision, changes } if *told == watch => {
                let value = |entry: &Option<KeyValue>| entry.as_ref().map(|kv| kv.value.clone());
                let changes =
                    changes.iter().map(|(key, entry)| (key.clone(), value(entry))).collect();
                Some((*revision, changes))
            }
            _ => None,
        })
    }
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: value.into(), lease: None }
}

fn writes(operations: &[(Operation, StateRevision)]) -> Transaction {
    let mut transaction = Transaction::new();
    for (operation, revision) in operations {
        transaction.write(operation.clone(), *revision);
    }
    transaction
}

fn transactions_compare_and_write_whole(driver: &mut Driver) {
    let absent = StateRevision::ZERO;
    let first = driver.put("a", "1", absent);
    let wrong = writes(&[(put("b", "1"), absent), (put("a", "2"), absent)]);
    assert_eq!(driver.transact(wrong), TransactionOutcome::Conflict);
    assert_eq!(driver.get("b"), None);
    let mut other_key_changed = writes(&[(put("b", "1"), absent)]);
    other_key_changed.compare("a", first.next());
    assert_eq!(driver.transact(other_key_changed), TransactionOutcome::Conflict);
    let delete = Operation::Delete { key: "a".into() };
    let both = writes(&[(put("b", "1"), absent), (delete, first)]);
    let second = driver.commit(both);
    assert!(second > first);
    assert_eq!(driver.get("a"), None);
    assert_eq!(driver.get("b").map(|kv| kv.value), Some("1".into()));
}

fn a_key_has_the_revision_of_its_last_change(driver: &mut Driver) {
    let first = driver.put("a", "1", StateRevision::ZERO);
    let second = driver.put("b", "1", StateRevision::ZERO);
    assert_eq!(second, first.next());
    assert_eq!(driver.get("a").map(|kv| kv.revision), Some(first));
    let third = driver.put("a", "1", first);
    assert_eq!(driver.get("a").map(|kv| kv.revision), Some(third));
    assert_eq!(driver.range("", None, 10).revision, third);
}

fn ranges_are_ordered_paged_and_by_prefix(driver: &mut Driver) {
    for key in ["p/3", "p/1", "q", "p/2", "p", "o"] {
        driver.put(key, key, StateRevision::ZERO);
    }
    let keys = |answer: &RangeAnswer| -> Vec<String> {
        answer.entries.iter().map(|entry| entry.key.clone()).collect()
    };
    let page = driver.range("p/", None, 2);
    assert_eq!(keys(&page), ["p/1", "p/2"]);
    assert!(page.more);
    let page = driver.range("p/", Some("p/2"), 2);
    assert_eq!(keys(&page), ["p/3"]);
    assert!(!page.more);
    assert_eq!(keys(&driver.range("", None, 100)), ["o", "p", "p/1", "p/2", "p/3", "q"]);
    assert_eq!(keys(&driver.range("x", None, 100)), [""; 0]);
}

fn limits_are_refused(driver: &mut Driver) {
    let absent = StateRevision::ZERO;
    let many = |count: usize| {
        let operations: Vec<_> =
            (0..count).map(|number| (put(&format!("k{number}"), "1"), absent)).collect();
        writes(&operations)
    };
    let refused = |outcome| matches!(outcome, TransactionOutcome::Invalid { .. });
    assert!(refused(driver.transact(many(OPERATION_COUNT_MAX + 1))));
    let twice = writes(&[(put("a", "1"), absent), (put("a", "2"), absent)]);
    assert!(refused(driver.transact(twice)));
    let long = "x".repeat(2 << 20);
    assert!(refused(driver.transact(writes(&[(put("a", &long), absent)]))));
    let key = "k".repeat(KEY_SIZE_MAX + 1);
    assert!(refused(driver.transact(writes(&[(put(&key, "1"), absent)]))));
    assert_eq!(driver.range("", None, 10).entries, []);
    driver.commit(many(OPERATION_COUNT_MAX));
}

fn watches_tell_changes_in_order_from_a_revision(driver: &mut Driver) {
    let first = driver.put("w/a", "1", StateRevision::ZERO);
    let second = driver.put("w/a", "2", first);
    let watch = WatchId(1);
    driver.start(StateEffect::Watch { watch, prefix: "w/".into(), from: second });
    assert_eq!(driver.watched(watch), (second, vec![("w/a".into(), Some("2".into()))]));
    driver.put("other", "1", StateRevision::ZERO);
    let delete = writes(&[(Operation::Delete { key: "w/a".into() }, second)]);
    let third = driver.commit(delete);
    assert_eq!(driver.watched(watch), (third, vec![("w/a".into(), None)]));
    driver.start(StateEffect::Unwatch { watch });
    driver.put("w/a", "3", StateRevision::ZERO);
    driver.advance(Duration::from_millis(1));
    assert!(!driver.events.iter().any(|event| matches!(event, StateEvent::Watched { .. })));
}

fn a_compacted_watch_is_lost(driver: &mut Driver) {
    let first = driver.put("a", "1", StateRevision::ZERO);
    let second = driver.put("a", "2", first);
    let third = driver.put("a", "3", second);
    let request = driver.next_request();
    driver.start(StateEffect::Compact { request, revision: second });
    driver.wait(|event| (*event == StateEvent::Compacted { request }).then_some(()));
    for (watch, from) in [(WatchId(1), first), (WatchId(2), second)] {
        driver.start(StateEffect::Watch { watch, prefix: String::new(), from });
        driver.wait(|event| match event {
            StateEvent::WatchLost { watch: told, compacted } if *told == watch => {
                assert_eq!(*compacted, second);
                Some(())
            }
            _ => None,
        });
    }
    let watch = WatchId(3);
    driver.start(StateEffect::Watch { watch, prefix: String::new(), from: third });
    assert_eq!(driver.watched(watch).0, third);
}

fn a_lease_takes_its_keys_with_it(driver: &mut Driver) {
    let time_to_live = Duration::from_secs(2);
    let grant = |request| StateEffect::LeaseGrant { request, time_to_live };
    let lease = driver.lease(grant).expect("a grant gives a lease");
    let leased = Operation::Put { key: "l/a".into(), value: "1".into(), lease: Some(lease) };
    let kept = Operation::Put { key: "l/b".into(), value: "1".into(), lease: Some(lease) };
    let absent = StateRevision::ZERO;
    let revision = driver.commit(writes(&[(leased.clone(), absent), (kept, absent)]));
    assert_eq!(driver.get("l/a").and_then(|kv| kv.lease), Some(lease));
    // A later value written without the lease outlives the lease.
    driver.put("l/b", "2", revision);
    driver.advance(Duration::from_secs(5));
    let watch = WatchId(1);
    driver.start(StateEffect::Watch { watch, prefix: "l/a".into(), from: revision.next() });
    assert_eq!(driver.watched(watch).1, [("l/a".into(), None)]);
    assert_eq!(driver.get("l/a"), None);
    assert_eq!(driver.get("l/b").map(|kv| kv.value), Some("2".into()));
    assert_eq!(driver.lease(|request| StateEffect::LeaseRenew { request, lease }), None);
    assert_eq!(driver.transact(writes(&[(leased, absent)])), TransactionOutcome::Conflict);
    let next = driver.lease(grant).expect("a grant gives a lease");
    assert_ne!(next, lease);
    assert_eq!(
        driver.lease(|request| StateEffect::LeaseRevoke { request, lease: next }),
        Some(next)
    );
    assert_eq!(driver.lease(|request| StateEffect::LeaseRevoke { request, lease: next }), None);
}

fn a_renewed_lease_stays(driver: &mut Driver) {
    let time_to_live = Duration::from_secs(3);
    let lease = driver
        .lease(|request| StateEffect::LeaseGrant { request, time_to_live })
        .expect("a grant gives a lease");
    let leased = Operation::Put { key: "l".into(), value: "1".into(), lease: Some(lease) };
    driver.commit(writes(&[(leased, StateRevision::ZERO)]));
    for _ in 0..4 {
        driver.advance(Duration::from_secs(2));
        let renew = |request| StateEffect::LeaseRenew { request, lease };
        assert_eq!(driver.lease(renew), Some(lease));
    }
    assert!(driver.get("l").is_some());
}
