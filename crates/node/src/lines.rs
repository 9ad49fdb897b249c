//! Lines for the log of this OSD: one for each change of a state, none for a request.
//!
//! A line is made where the change is decided. This file keeps what lines need beside that: how long a
//! PG has been waiting, and what the log says already.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Epoch, OsdId, PgId, Time, TraceEvent};
use cluster::map::MapDelta;
use cluster::message::{Need, PgNeed};
use format::wire::{Member, PgEntry};
use pg::{Pg, Serving};

use crate::Effect;
use crate::cluster_view::ClusterView;
use crate::leases::Leases;
use crate::local_store::LocalStore;
use crate::pg_table::PgTable;
use crate::report::{Explainer, why_idle};
use crate::sessions::Sessions;

/// A PG that is not served for so long is named. Agreeing takes less where all members are there.
const WAIT_NAMED_AFTER: Duration = Duration::from_secs(2);

/// States that are already logged and must not be logged again.
#[derive(Default)]
pub(crate) struct Lines {
    /// PGs that this OSD is to lead and does not serve.
    waits: BTreeMap<PgId, Wait>,
    /// PGs of which the store may have lost something, while this OSD is to lead them.
    suspect: BTreeSet<PgId>,
    is_full: bool,
    /// Stored units are damaged.
    has_damage: bool,
}

struct Wait {
    epoch: Epoch,
    since: Time,
    is_told: bool,
}

/// Ids of OSDs.
fn osds<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = OsdId> {
    members.map(|member| member.osd)
}

/// Of one PG.
fn of_pg(event: TraceEvent, pg: PgId, epoch: Epoch) -> TraceEvent {
    event.with("pg", pg).number("epoch", epoch.get())
}

impl Lines {
    /// Called now and then: logs states that have lasted long enough.
    pub(crate) fn trace_states(
        &mut self,
        now: Time,
        store: &LocalStore,
        pgs: &PgTable,
        explainer: Explainer<'_>,
        effects: &mut Vec<Effect>,
    ) {
        for (_, pg) in pgs.iter() {
            self.trace_wait(now, pg, explainer, effects);
        }
        let is_full = store.space().full;
        if std::mem::replace(&mut self.is_full, is_full) != is_full {
            effects.push(Effect::Trace(match is_full {
                true => TraceEvent::warn("the store is full: it takes no writes"),
                false => TraceEvent::info("the store has space again"),
            }));
        }
        let damaged = store.damaged_units_count();
        if std::mem::replace(&mut self.has_damage, damaged > 0) != (damaged > 0) {
            effects.push(Effect::Trace(match damaged {
                0 => TraceEvent::info("no stored data is damaged any more"),
                _ => TraceEvent::warn("stored data is damaged").number("units", damaged),
            }));
        }
    }

    /// A PG that this OSD is to lead: since when it is not served.
    fn trace_wait(
        &mut self,
        now: Time,
        pg: &Pg,
        explainer: Explainer<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let id = pg.id();
        let cluster = explainer.cluster;
        let led = cluster.pg(id).filter(|entry| cluster.is_primary(entry));
        let (Some(entry), Some(why)) = (led, explainer.waits_for(pg)) else {
            self.waits.remove(&id);
            return;
        };
        let epoch = entry.epoch;
        let new = || Wait { epoch, since: now, is_told: false };
        let wait = self.waits.entry(id).or_insert_with(new);
        if wait.epoch != epoch {
            *wait = new();
        }
        wait.is_told |= self.suspect.contains(&id);
        let waited = now.since(wait.since);
        if waited >= WAIT_NAMED_AFTER && !std::mem::replace(&mut wait.is_told, true) {
            let event = of_pg(TraceEvent::warn("PG is not served"), id, epoch);
            let event = event.number("waited_ms", waited.as_millis()).with("why", why);
            effects.push(Effect::Trace(event));
        }
    }

    /// A PG serves its epoch.
    pub(crate) fn trace_active(&mut self, now: Time, pg: &Pg, effects: &mut Vec<Effect>) {
        let Some(entry) = pg.entry() else { return };
        let event = of_pg(TraceEvent::info("PG is active"), entry.pg, entry.epoch)
            .list("members", osds(entry.acting()))
            .list("learners", osds(entry.learning()));
        self.suspect.remove(&entry.pg);
        let waited = self.waits.remove(&entry.pg).filter(|wait| wait.is_told);
        let event = match waited {
            Some(wait) => event.number("waited_ms", now.since(wait.since).as_millis()),
            None => event,
        };
        effects.push(Effect::Trace(event));
    }

    /// This OSD is to lead a PG of which its store may have lost writes, and cannot.
    pub(crate) fn trace_suspect(&mut self, pg: PgId, why: &str, effects: &mut Vec<Effect>) {
        if self.suspect.insert(pg) {
            let event = TraceEvent::warn("PG is suspect: it is not served");
            effects.push(Effect::Trace(event.with("pg", pg).with("why", why)));
        }
    }
}

/// This OSD takes its part in an epoch.
pub(crate) fn trace_enters(cluster: &ClusterView, entry: &PgEntry, effects: &mut Vec<Effect>) {
    let event = match cluster.leads(entry) {
        true => TraceEvent::debug("leads an epoch: asks its members"),
        false => TraceEvent::debug("follows in an epoch"),
    };
    effects.push(Effect::Trace(of_pg(event, entry.pg, entry.epoch)));
}

/// A PG is to take part in nothing, for a reason that is new.
pub(crate) fn trace_halt(pg: &Pg, why: &str, effects: &mut Vec<Effect>) {
    if !matches!(pg.serving(), Serving::Idle { why: before } if before == why) {
        let event = TraceEvent::debug("takes no part in a PG").with("pg", pg.id());
        effects.push(Effect::Trace(event.with("why", why)));
    }
}

/// What PGs need that the monitor is about to be told.
pub(crate) fn trace_needs(pgs: &PgTable, needs: &[PgNeed], effects: &mut Vec<Effect>) {
    for PgNeed { pg, epoch, what } in needs {
        let event = match what {
            Need::NewEpoch => {
                let why = pgs.get(*pg).map(why_idle).unwrap_or_default();
                TraceEvent::info("PG needs a new epoch").with("why", why)
            }
            Need::Complete(member) => {
                TraceEvent::info("learner is complete").with("member", member.osd)
            }
            Need::Failed(member, why) => {
                let event = TraceEvent::warn("member cannot go on");
                event.with("member", member.osd).with("why", why)
            }
        };
        effects.push(Effect::Trace(of_pg(event, *pg, *epoch)));
    }
}

/// Leases that have run out since the last look, and those that are back.
pub(crate) fn trace_leases(now: Time, leases: &mut Leases, effects: &mut Vec<Effect>) {
    for (giver, was_out) in leases.take_changes(now) {
        let event = match was_out {
            None => TraceEvent::warn("lease ran out: PGs shared with its giver wait"),
            Some(span) => TraceEvent::info("lease is back").number("after_ms", span.as_millis()),
        };
        effects.push(Effect::Trace(event.with("giver", giver)));
    }
}

/// Sessions that a change of the map fences, of those that were served here.
pub(crate) fn trace_fences(
    cluster: &ClusterView,
    sessions: &Sessions,
    delta: &MapDelta,
    effects: &mut Vec<Effect>,
) {
    for change in &delta.pools {
        let known = cluster.pool(change.pool.id);
        let served = change.fences.iter().filter(|session| {
            let is_known = known.is_some_and(|pool| pool.is_fenced(**session));
            !is_known && sessions.names(**session).is_some()
        });
        for session in served {
            let event = TraceEvent::info("session is fenced").with("session", session);
            effects.push(Effect::Trace(event.with("pool", change.pool.id)));
        }
    }
}
