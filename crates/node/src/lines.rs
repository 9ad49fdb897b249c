//! Lines for the log of this OSD: one for each state change, none for a request.
//!
//! A line is created where the change is decided. This file keeps the further state that lines need: how
//! long a PG has been waiting, and which states have been logged already.

use std::collections::{BTreeMap, BTreeSet};

use base::{Choice, Duration, Epoch, OsdId, PgId, RECORDS_IMAGE, Time, TraceEvent};
use blockstore::{BlockKey, MetadataFault, MetadataFinding, MetadataPart, MetadataRepair};
use cluster::map::MapDelta;
use cluster::message::{Need, PgNeed};
use format::wire::{Member, PgEntry};
use pg::{Fault, FaultKind, Finding, FixOutcome, Fixed, Pg, ScrubEvent, Serving};

use crate::Effect;
use crate::cluster_view::ClusterView;
use crate::leases::Leases;
use crate::local_store::LocalStore;
use crate::metadata_check::Ended;
use crate::pg_table::PgTable;
use crate::report::{Explainer, why_idle};
use crate::sessions::Sessions;

/// A PG that has not been served for this long is logged. Peering takes less if all members are up.
const WAIT_NAMED_AFTER: Duration = Duration::from_secs(2);

/// States that have already been logged, so that they are not logged again.
#[derive(Default)]
pub(crate) struct Lines {
    /// PGs that this OSD must lead and does not serve.
    waits: BTreeMap<PgId, Wait>,
    /// PGs that this OSD must lead, and whose writes its store may have lost.
    suspect: BTreeSet<PgId>,
    is_full: bool,
    /// Whether the store has damaged units.
    has_damage: bool,
}

struct Wait {
    epoch: Epoch,
    since: Time,
    is_told: bool,
}

/// Returns the OSDs of the members.
fn osds<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = OsdId> {
    members.map(|member| member.osd)
}

/// Adds a PG and its epoch to an event.
fn of_pg(event: TraceEvent, pg: PgId, epoch: Epoch) -> TraceEvent {
    event.with("pg", pg).number("epoch", epoch.get())
}

impl Lines {
    /// Logs states that have lasted long enough. Called once per report interval.
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
                true => TraceEvent::warn("the store is full: it accepts no writes"),
                false => TraceEvent::info("the store has space again"),
            }));
        }
        let damaged = store.damaged_units_left();
        if std::mem::replace(&mut self.has_damage, damaged > 0) != (damaged > 0) {
            effects.push(Effect::Trace(match damaged {
                0 => TraceEvent::info("stored data is no longer damaged"),
                _ => TraceEvent::warn("stored data is damaged").number("units", damaged),
            }));
        }
    }

    /// Tracks how long a PG that this OSD must lead has not been served, and logs the PG once it has waited
    /// too long.
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

    /// Logs that a PG is active in its epoch.
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

    /// Logs that this OSD must lead a PG but cannot, because its store may have lost writes of it.
    pub(crate) fn trace_suspect(&mut self, pg: PgId, why: &str, effects: &mut Vec<Effect>) {
        if self.suspect.insert(pg) {
            let event = TraceEvent::warn("PG is suspect: it is not served");
            effects.push(Effect::Trace(event.with("pg", pg).with("why", why)));
        }
    }
}

/// Logs an event of a PG's scrub.
pub(crate) fn trace_scrub(pg: PgId, event: &ScrubEvent, effects: &mut Vec<Effect>) {
    let block = |event: TraceEvent, key: &BlockKey| {
        event.with("image", key.image).number("stripe", key.stripe.get())
    };
    let wrong = |event: TraceEvent, faults: &[(OsdId, Fault)]| {
        event.list("wrong", faults.iter().map(|(osd, fault)| fault_text(*osd, *fault)))
    };
    let records = |event: TraceEvent, object: &String, faults: &[(OsdId, Fault)]| {
        let text = |(osd, fault): &(OsdId, Fault)| format!("{osd}: {}", fault.units);
        event.with("object", object).list("wrong", faults.iter().map(text))
    };
    let event = match event {
        ScrubEvent::Began { deep } => {
            TraceEvent::info("scrub begins").with("depth", depth_name(*deep))
        }
        ScrubEvent::Repaired { key, faults } => {
            wrong(block(TraceEvent::warn("scrub repaired a block"), key), faults)
        }
        ScrubEvent::Found { key, faults }
            if faults.iter().all(|(_, fault)| fault.kind == FaultKind::NotCompared) =>
        {
            wrong(block(TraceEvent::warn("scrub could not compare a block"), key), faults)
        }
        ScrubEvent::Found { key, faults } => {
            wrong(block(TraceEvent::warn("scrub found damage that is not repaired"), key), faults)
        }
        ScrubEvent::RecordsRepaired { object, faults } => {
            records(TraceEvent::warn("scrub repaired records"), object, faults)
        }
        ScrubEvent::RecordsFound { object, faults }
            if faults.iter().all(|(_, fault)| fault.kind == FaultKind::NotCompared) =>
        {
            let event = TraceEvent::warn("scrub could not compare the records of a shard");
            records(event, object, faults)
        }
        ScrubEvent::RecordsFound { object, faults } => {
            records(TraceEvent::warn("scrub found records that differ"), object, faults)
        }
        ScrubEvent::Fixed(Fixed { request, outcome }) => {
            let (text, why) = match outcome {
                FixOutcome::Done => ("a damaged block is as an operator decided", None),
                FixOutcome::DoneInPart => {
                    ("a block is as an operator decided, and still damaged", None)
                }
                FixOutcome::Refused(why) => {
                    ("an operator's decision about a damaged block is refused", Some(why))
                }
            };
            let event = TraceEvent::warn(text).with("image", request.image);
            let event = event.number("stripe", request.stripe.get());
            let event = event.with("choice", choice_text(request.choice));
            why.map_or(event.clone(), |why| event.with("why", why))
        }
        ScrubEvent::NoteUnread { osd, why } => {
            let event = TraceEvent::warn("a scrub note cannot be read and is ignored");
            event.with("from", osd).with("why", why)
        }
        ScrubEvent::Ended { deep, keys } => {
            let event = TraceEvent::info("scrub ended").with("depth", depth_name(*deep));
            event.number("blocks", *keys)
        }
    };
    effects.push(Effect::Trace(event.with("pg", pg)));
}

/// Logs a damaged piece of this OSD's metadata.
pub(crate) fn trace_metadata(finding: &MetadataFinding, effects: &mut Vec<Effect>) {
    let (is_whole_again, done) = match finding.repair {
        MetadataRepair::Rewritten => (true, "it was written again".to_owned()),
        MetadataRepair::Checkpoint => {
            (true, "the checkpoint that begins now writes it to another place".to_owned())
        }
        MetadataRepair::DataLost { blocks } => {
            let what = format!("data of {blocks} blocks is lost here; other copies repair it");
            (false, what)
        }
        MetadataRepair::Nothing => {
            (false, "nothing: restart the OSD, and check its disk and memory".to_owned())
        }
    };
    let event = match is_whole_again {
        true => TraceEvent::warn("metadata of the store was damaged and is repaired"),
        false => TraceEvent::error("metadata of the store is damaged"),
    };
    let part = match finding.part {
        MetadataPart::Superblock => "superblock",
        MetadataPart::Root => "root",
        MetadataPart::Stream => "directory",
        MetadataPart::Leaf => "leaf",
    };
    let fault = match finding.fault {
        MetadataFault::Unreadable => "cannot be read",
        MetadataFault::Damaged => "is not as it was written",
        MetadataFault::Differs => "differs from memory",
    };
    let event = event.with("part", part).number("offset", finding.offset);
    effects.push(Effect::Trace(event.with("wrong", fault).with("done", done)));
}

/// Logs that all of this OSD's metadata was checked.
pub(crate) fn trace_checked(ended: Ended, effects: &mut Vec<Effect>) {
    let event = TraceEvent::info("metadata of the store was checked");
    effects
        .push(Effect::Trace(event.number("bytes", ended.bytes).number("damaged", ended.damaged)));
}

/// Returns the name of a scrub's depth, for the log.
pub(crate) fn depth_name(deep: bool) -> &'static str {
    if deep { "deep" } else { "light" }
}

/// Describes in words what an operator decided.
fn choice_text(choice: Choice) -> String {
    match choice {
        Choice::Keep(osd) => format!("keep {osd}"),
        Choice::Rebuild(osd) => format!("rebuild {osd}"),
        Choice::RebuildParity => "rebuild parity".into(),
        Choice::AcceptLoss => "accept the loss".into(),
    }
}

/// Describes in words what is wrong with a key.
pub(crate) fn faults_text(finding: &Finding) -> String {
    let is_of_records = finding.key.image == RECORDS_IMAGE;
    let wrong = finding.faults.iter().map(|(osd, fault)| match is_of_records {
        true => format!("{osd}: {} records {}", fault.units, fault.kind.name()),
        false => fault_text(*osd, *fault),
    });
    let wrong = wrong.collect::<Vec<String>>().join(", ");
    match is_of_records {
        true => format!("objects of hash {:08x}: {wrong}", finding.key.hash),
        false => wrong,
    }
}

/// Describes in words what is wrong with a member's copy.
pub(crate) fn fault_text(osd: OsdId, fault: Fault) -> String {
    match fault.units {
        0 => format!("{osd}: {}", fault.kind.name()),
        units => format!("{osd}: {units} units {}", fault.kind.name()),
    }
}

/// Logs that this OSD enters an epoch of a PG.
pub(crate) fn trace_enters(cluster: &ClusterView, entry: &PgEntry, effects: &mut Vec<Effect>) {
    let event = match cluster.leads(entry) {
        true => TraceEvent::debug("leading an epoch: querying its members"),
        false => TraceEvent::debug("following in an epoch"),
    };
    effects.push(Effect::Trace(of_pg(event, entry.pg, entry.epoch)));
}

/// Logs why this OSD takes no part in a PG, if the reason is new.
pub(crate) fn trace_halt(pg: &Pg, why: &str, effects: &mut Vec<Effect>) {
    if !matches!(pg.serving(), Serving::Idle { why: before } if before == why) {
        let event = TraceEvent::debug("not taking part in a PG").with("pg", pg.id());
        effects.push(Effect::Trace(event.with("why", why)));
    }
}

/// Logs the needs of PGs that are about to be sent to the monitor.
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
                let event = TraceEvent::warn("member cannot continue");
                event.with("member", member.osd).with("why", why)
            }
            Need::Return(member, position) => {
                let event = TraceEvent::info("learner gets its former position back");
                event.with("member", member.osd).with("position", position.get())
            }
            Need::CallBack(osd) => {
                let event = TraceEvent::info("an OSD that was left out may have what members lack");
                event.with("osd", osd)
            }
        };
        effects.push(Effect::Trace(of_pg(event, *pg, *epoch)));
    }
}

/// Logs leases that have expired since the last call, and leases that are valid again.
pub(crate) fn trace_leases(now: Time, leases: &mut Leases, effects: &mut Vec<Effect>) {
    for (giver, was_out) in leases.take_changes(now) {
        let event = match was_out {
            None => {
                TraceEvent::warn("lease expired: PGs shared with the OSD that granted it must wait")
            }
            Some(span) => {
                TraceEvent::info("lease is valid again").number("after_ms", span.as_millis())
            }
        };
        effects.push(Effect::Trace(event.with("giver", giver)));
    }
}

/// Logs sessions that were served here and that a change to the map fences.
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
