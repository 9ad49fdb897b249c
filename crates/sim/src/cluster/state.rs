//! The state store of a run: the cluster's own store in memory, behind a door that delays,
//! refuses, and sometimes cannot say what became of a transaction.

use base::{Duration, Time};
use cluster::state::{
    MemoryState, StateEffect, StateEvent, StateStore, TransactionOutcome, Unavailable,
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
}
