//! Lag of engines: mutations of objects get no versions while a store that must take them lags, or its engine
//! is full; they wait, then are answered *busy*. What comes while an engine is full is refused as full, and so
//! is what adds something while one has little space left.

use base::Time;
use format::wire::EngineState;
use pg::Ticket;

use super::{Node, Phase};
use crate::Effect;
use crate::pg_table::PgSlot;

impl Node {
    /// Returns what the engines of this OSD and of the givers of a PG say to mutations.
    pub(super) fn engine_state(&self, slot: PgSlot) -> EngineState {
        self.engine_lag.of(self.pgs[slot].lease_givers().iter())
    }

    /// Lets each PG of objects give versions, or not, as the engines say.
    pub(super) fn settle_engine_lag(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.engine_lag.on_own(EngineState {
            is_lagging: self.store.is_lagging(),
            is_full: self.store.waits_for_engine_space(),
            is_low: self.store.is_engine_low(),
        });
        let has_changed = self.engine_lag.take_change();
        if self.engine_lag.is_calm() && !has_changed {
            return;
        }
        // A PG that has come or got other givers since is looked at, too.
        for slot in self.pgs.slots() {
            let EngineState { is_lagging, is_full, .. } = self.engine_state(slot);
            let holds = is_lagging || is_full;
            let is_low = self.engine_lag.own().is_low;
            if self.pgs[slot].holds_fillings() != is_low {
                self.drive(now, slot, effects, |pg, actions| pg.hold_fillings(is_low, actions));
            }
            if self.pgs[slot].holds_versions() != holds {
                self.drive(now, slot, effects, |pg, actions| pg.hold_versions(holds, actions));
            }
        }
        if has_changed {
            self.requests.review();
        }
    }

    /// Answers mutations that have waited for their versions too long.
    pub(super) fn refuse_held(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Running || self.engine_lag.is_calm() {
            return;
        }
        let started = self.requests.started().filter(|(_, started)| {
            let is_mutation = started.scope.is_of_objects && started.scope.changes;
            is_mutation && started.since + self.settings.wait_max <= now
        });
        let overdue: Vec<Ticket> = started.map(|(ticket, _)| ticket).collect();
        if overdue.is_empty() {
            return;
        }
        for slot in self.pgs.slots() {
            if self.pgs[slot].holds_versions() {
                let is_overdue = |ticket: Ticket| overdue.binary_search(&ticket).is_ok();
                self.drive(now, slot, effects, |pg, actions| pg.refuse_held(is_overdue, actions));
            }
        }
    }
}
