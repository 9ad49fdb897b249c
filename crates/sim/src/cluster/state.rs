//! The state store of a run: the cluster's own store in memory, behind a door that delays,
//! refuses, and sometimes cannot say what became of a transaction.
//!
//! Invariant it judges: while a session holds an image's lock and need not write durably, no other
//! session that has not ended has the image.

use base::{Duration, Time};
use cluster::records::{Key, LockRecord, Record, SessionRecord};
use cluster::state::{
    KeyValue, MemoryState, StateEffect, StateEvent, StateStore, TransactionOutcome, Unavailable,
};

use crate::random::{Chance, Random};
use crate::tally::Tally;

/// The store, which outlives monitors, and its faults.
pub struct StateDoor {
    store: MemoryState,
    random: Random,
}

/// What follows from an effect.
pub struct Step {
    /// How long after it.
    pub after: Duration,
    /// What.
    pub what: StateStep,
}

/// A step of the store.
pub enum StateStep {
    /// The monitor is told.
    Tell(StateEvent),
    /// A transaction happens of which nobody will be told.
    Happen(StateEffect),
}

impl StateDoor {
    /// An empty one.
    pub fn new(random: Random) -> StateDoor {
        StateDoor { store: MemoryState::default(), random }
    }

    /// Does an effect now; its answer comes later.
    pub fn apply(
        &mut self,
        now: Time,
        effect: StateEffect,
        faults: Chance,
        tally: &mut Tally,
    ) -> Vec<Step> {
        let after = Duration::from_nanos(self.random.scale(10_000..5_000_000));
        let fails = self.random.chance(faults);
        match effect {
            StateEffect::Range { request, .. } if fails => {
                tally.faults.add("state store unavailable", 1);
                let event = StateEvent::Range { request, result: Err(Unavailable) };
                vec![Step { after, what: StateStep::Tell(event) }]
            }
            StateEffect::Transact { request, transaction } if fails => {
                let outcome = TransactionOutcome::Unknown;
                let told = StateStep::Tell(StateEvent::Transacted { request, outcome });
                let mut steps = vec![Step { after, what: told }];
                let effect = StateEffect::Transact { request, transaction };
                match self.random.below(3) {
                    0 => {
                        tally.faults.add("unknown transaction that happened", 1);
                        self.happen(now, effect);
                    }
                    1 => tally.faults.add("unknown transaction that did not happen", 1),
                    _ => {
                        tally.faults.add("unknown transaction that happened late", 1);
                        let after = Duration::from_nanos(self.random.scale(10_000..500_000_000));
                        steps.push(Step { after, what: StateStep::Happen(effect) });
                    }
                }
                steps
            }
            effect => {
                let mut events = Vec::new();
                self.store.apply(now, effect, &mut events);
                let tell = |event| Step { after, what: StateStep::Tell(event) };
                events.into_iter().map(tell).collect()
            }
        }
    }

    /// Does an effect of which nobody is told.
    pub fn happen(&mut self, now: Time, effect: StateEffect) {
        self.store.apply(now, effect, &mut Vec::new());
    }

    /// Who has an image beside the lazy holder of its lock; `None`: nobody.
    pub fn broken_lock(&self) -> Option<String> {
        broken_lock(self.store.entries())
    }
}

fn broken_lock<'a>(entries: impl Iterator<Item = &'a KeyValue>) -> Option<String> {
    let mut locks: Vec<LockRecord> = Vec::new();
    // In the order of their keys locks come before sessions.
    for entry in entries.filter(|entry| is_judged(&entry.key)) {
        let key = Key::parse(&entry.key).expect("the monitor wrote it");
        match Record::parse(&key, &entry.value).expect("the monitor wrote it") {
            Record::Lock(lock) if lock.lazy => locks.push(lock),
            Record::Session(SessionRecord { id, image, ended: false, .. }) => {
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
    use base::{ImageId, SessionId};
    use cluster::records::Rest;
    use cluster::state::StateRevision;

    use super::*;

    fn lock(lazy: bool) -> Record {
        let (image, session) = (ImageId::FIRST, SessionId::new(3));
        Record::Lock(LockRecord { image, session, lazy, rest: Rest::new() })
    }

    fn session(number: u64, ended: bool) -> Record {
        let (id, image) = (SessionId::new(number), ImageId::FIRST);
        let (client, rest) = ("test".into(), Rest::new());
        Record::Session(SessionRecord { id, image, client, read_only: true, ended, rest })
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
