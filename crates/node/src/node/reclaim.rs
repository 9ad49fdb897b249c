//! Carries out the decisions of `reclaim.rs`: the removal of data that is no longer needed.

use base::{PgId, PoolId, Time};
use blockstore::{Answer, StoreError};
use cluster::map::MapDelta;
use cluster::message::ToMonitor;

use super::Node;
use crate::Effect;
use crate::local_store::StoreCall;
use crate::reclaim::{Answered, Holdings, Next, Target};

impl Node {
    /// Handles the monitor's request to clear a pool.
    pub(super) fn on_clear_pool(&mut self, now: Time, pool: PoolId, effects: &mut Vec<Effect>) {
        let delta = MapDelta { removed_pools: vec![pool], ..MapDelta::default() };
        self.on_map(now, delta, effects);
        self.reclaim.ask(pool);
        self.reclaim_next(now, effects);
    }

    fn holdings(&self) -> Holdings<'_> {
        let Node { store, cluster, notes, pgs, engine, .. } = self;
        Holdings { store, cluster, notes, pgs, engine }
    }

    /// Begins the next removal, if nothing prevents it. Called once per report interval, and when a
    /// removal ends.
    pub(super) fn reclaim_next(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.reclaim.is_under_way() || self.store.is_congested() {
            return;
        }
        let has_joined = self.link.serving().is_some();
        let Node { store, cluster, notes, pgs, engine, reclaim, .. } = self;
        let holdings = Holdings { store, cluster, notes, pgs, engine };
        if reclaim.begin(now, holdings, has_joined) {
            self.reclaim_more(now, effects);
        }
    }

    /// Sends the store the requests for the next part, or ends the removal.
    fn reclaim_more(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let target = self.reclaim.target();
        if !self.holdings().may_remove(target) {
            return self.give_up_reclaim(now, effects);
        }
        match target {
            Target::Pg(pg) => self.forget_record(pg),
            Target::DamagedPool(pool) => {
                let pgs: Vec<PgId> = self.pgs.iter().map(|(_, pg)| pg.id()).collect();
                pgs.into_iter().filter(|pg| pg.pool == pool).for_each(|pg| self.forget_record(pg));
            }
            Target::Pool(_) => {}
        }
        let Node { store, cluster, notes, pgs, engine, reclaim, .. } = self;
        let next = reclaim.next_part(Holdings { store, cluster, notes, pgs, engine });
        match next {
            Next::Ask(requests) => {
                for request in requests {
                    self.store.ask(now, StoreCall::Reclaim, request);
                }
            }
            Next::Done(target) => {
                if let Target::Pool(pool) = target {
                    self.tell_monitor(&ToMonitor::PoolCleared { pool }, effects);
                }
                self.reclaim_next(now, effects);
            }
        }
    }

    /// Resets the PG to one that this OSD has no record of. Requires: the PG is quiet.
    fn forget_record(&mut self, id: PgId) {
        self.notes.forget_damage(id);
        let Some(slot) = self.pgs.slot(id) else { return };
        let rules = &self.cluster.map().pools[&id.pool].pool;
        self.pgs.begin_anew(slot, rules, self.store.facts(id));
    }

    fn give_up_reclaim(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if let Target::Pg(pg) = self.reclaim.give_up() {
            // The PG's record may already be removed; then this OSD takes part as a member without data.
            self.review(now, pg, effects);
        }
    }

    /// Handles the store's result for one of the requests.
    pub(crate) fn on_reclaim_answer(
        &mut self,
        now: Time,
        result: Result<Answer, StoreError>,
        effects: &mut Vec<Effect>,
    ) {
        match self.reclaim.on_removed(&result) {
            Answered::Wait => {}
            Answered::GoOn => self.reclaim_more(now, effects),
            Answered::GiveUp => self.give_up_reclaim(now, effects),
        }
    }
}
