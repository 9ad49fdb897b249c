//! The monitor's log lines: one for each change of state.
//!
//! Most changes of a cluster are transactions, so most lines are derived from a transaction's writes:
//! the old record under a key is compared with the new one.

use base::{OsdId, PoolId, TraceEvent};
use format::wire::{Member, PgEntry};

use super::Effect;
use super::committed_state::{CommittedState, Write};
use crate::records::{Key, OsdRecord, OutBy, PgShardRecord, Record, Used};
use crate::settings::Setting;
use crate::state::{EndpointDown, EndpointRoom, Endpoints};

fn osds<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = OsdId> {
    members.map(|member| member.osd)
}

/// Returns the members with their runs: a learner that returns in another run counts as a new learner.
fn runs<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = String> {
    members.map(|member| format!("{}.{}", member.osd, member.incarnation))
}

/// Logs the changes of a transaction that is about to be applied.
pub(super) fn trace_writes(
    committed: &CommittedState,
    writes: &[Write],
    effects: &mut Vec<Effect>,
) {
    let fences = writes.iter().any(|write| matches!(write, Write::Put(Record::Fence(_))));
    for write in writes {
        match write {
            Write::Put(Record::Osd(record)) => trace_osd(committed, record, effects),
            Write::Put(Record::PgShard(record)) => trace_shard(committed, record, effects),
            Write::Put(Record::Pool(record)) if committed.pool(record.pool.id).is_none() => {
                let event = TraceEvent::info("pool is created").with("pool", record.pool.id);
                let count = record.pool.pg_count;
                let event = event.with("name", &record.pool.name).number("pgs", count);
                effects.push(Effect::Trace(event));
            }
            Write::Put(Record::Setting(record)) => {
                let value = match Setting::named(&record.name) {
                    Some(setting) => setting.text_of(record.value),
                    None => record.value.to_string(),
                };
                let event = TraceEvent::info("setting is changed").with("setting", &record.name);
                effects.push(Effect::Trace(event.with("value", value)));
            }
            Write::Delete(key) => trace_delete(committed, key, fences, effects),
            Write::Put(_) => {}
        }
    }
}

fn trace_delete(committed: &CommittedState, key: &Key, fences: bool, effects: &mut Vec<Effect>) {
    let event = match key {
        Key::Osd(osd) => TraceEvent::info("OSD is removed").with("osd", osd),
        Key::Pool(pool) => TraceEvent::info("pool is removed").with("pool", pool),
        Key::Setting(name) => {
            TraceEvent::info("setting is reset to its default").with("setting", name)
        }
        // The transaction that fences a session also deletes the session's record.
        Key::Session(session) if fences => {
            let event = TraceEvent::warn("client is fenced").with("session", session);
            let Some(record) = committed.session(*session) else { return };
            let event = event.with("client", &record.client);
            match record.used {
                Used::Image(image) => {
                    let image = committed.image(image);
                    let volume = image.map_or_else(String::new, |image| image.info.name.clone());
                    event.with("volume", volume)
                }
                Used::Pool(pool) => event.with("pool", pool),
            }
        }
        _ => return,
    };
    effects.push(Effect::Trace(event));
}

fn trace_osd(committed: &CommittedState, after: &OsdRecord, effects: &mut Vec<Effect>) {
    let mut say = |event: TraceEvent| {
        effects.push(Effect::Trace(event.with("osd", after.info.id)));
    };
    let Some(before) = committed.osd(after.info.id) else {
        return say(TraceEvent::info("OSD is new"));
    };
    if before.info.incarnation < after.info.incarnation {
        let run = after.info.incarnation.get();
        say(TraceEvent::info("OSD has started a new run")
            .number("run", run)
            .with("host", &after.host));
        if after.suspect {
            let what = "OSD is suspect: recovery found damage that may have lost writes";
            say(TraceEvent::warn(what));
        }
    }
    match (before.info.up, after.info.up) {
        (true, false) => say(TraceEvent::warn("OSD is down")),
        (false, true) => say(TraceEvent::info("OSD is up")),
        _ => {}
    }
    match (before.info.in_cluster, after.info.in_cluster) {
        (true, false) => say(match after.out_by {
            Some(OutBy::Monitor) => TraceEvent::warn("OSD is out: it was down for too long"),
            _ => TraceEvent::info("OSD is out"),
        }),
        (false, true) => say(TraceEvent::info("OSD is in")),
        _ => {}
    }
}

fn trace_shard(committed: &CommittedState, after: &PgShardRecord, effects: &mut Vec<Effect>) {
    let key = Key::PgShard(after.pool, after.shard);
    let Some(Record::PgShard(before)) = committed.record(&key) else { return };
    for (before, after) in before.pgs.iter().zip(&after.pgs) {
        if before.epoch < after.epoch {
            trace_entry(before, after, effects);
        }
    }
}

/// Logs an OSD's report that its disk hangs, or no longer hangs.
pub(super) fn trace_damage(osd: OsdId, pool: PoolId, is_damaged: bool, effects: &mut Vec<Effect>) {
    let event = match is_damaged {
        true => TraceEvent::warn("records of a pool are damaged on an OSD: its PGs leave it"),
        false => TraceEvent::info("an OSD has no damaged records of a pool any more"),
    };
    effects.push(Effect::Trace(event.with("osd", osd).with("pool", pool)));
}

pub(super) fn trace_stall(osd: OsdId, stalled: bool, effects: &mut Vec<Effect>) {
    let event = match stalled {
        true => TraceEvent::warn("OSD is stalled: its disk hangs"),
        false => TraceEvent::info("OSD is no longer stalled: its disk answers"),
    };
    effects.push(Effect::Trace(event.with("osd", osd)));
}

/// Logs a new entry of a PG.
fn trace_entry(before: &PgEntry, after: &PgEntry, effects: &mut Vec<Effect>) {
    let of_pg = |event: TraceEvent| event.with("pg", after.pg);
    let event = match after.primary {
        Some(_) => TraceEvent::info("PG has a new epoch"),
        None => TraceEvent::warn("PG has a new epoch and no primary"),
    };
    let event =
        of_pg(event).number("epoch", after.epoch.get()).list("primary", after.primary_osd());
    let event =
        event.list("members", osds(after.acting())).list("learners", osds(after.learning()));
    effects.push(Effect::Trace(event));
    let was_learner: Vec<String> = runs(before.learning()).collect();
    for (member, run) in after.learning().zip(runs(after.learning())) {
        if !was_learner.contains(&run) {
            let event = of_pg(TraceEvent::info("backfill begins")).with("learner", member.osd);
            effects.push(Effect::Trace(event));
        }
    }
    for (member, run) in after.acting().zip(runs(after.acting())) {
        if was_learner.contains(&run) {
            let event = of_pg(TraceEvent::info("backfill is done")).with("learner", member.osd);
            effects.push(Effect::Trace(event));
        }
    }
}

/// Logs changes in the state store's report about its endpoints.
pub(super) fn trace_endpoints(before: &Endpoints, after: &Endpoints, effects: &mut Vec<Effect>) {
    let mut say = |event: TraceEvent, endpoint: &str| {
        effects.push(Effect::Trace(event.with("endpoint", endpoint)));
    };
    let was_down = |endpoint: &str| before.down.iter().any(|one| one.endpoint == endpoint);
    let is_down = |endpoint: &str| after.down.iter().any(|one| one.endpoint == endpoint);
    for EndpointDown { endpoint, why } in &after.down {
        if !was_down(endpoint) {
            say(TraceEvent::warn("the state store does not answer").with("why", why), endpoint);
        }
    }
    for EndpointDown { endpoint, .. } in &before.down {
        if !is_down(endpoint) {
            say(TraceEvent::info("the state store answers again"), endpoint);
        }
    }
    let was_full = |endpoint: &str| before.nearly_full.iter().any(|one| one.endpoint == endpoint);
    for EndpointRoom { endpoint, used_percent, .. } in &after.nearly_full {
        if !was_full(endpoint) {
            let event = TraceEvent::warn("the state store is nearly full");
            say(event.number("used_percent", *used_percent), endpoint);
        }
    }
}
