//! Hints for `status` on what operators can do, with the ids and paths of this cluster.

use base::{OsdId, PgId};
use format::wire::{Member, PgEntry};

use super::committed_state::CommittedState;
use crate::records::OsdRecord;

/// Explains how to start an OSD that is down.
pub(super) fn start_hint(record: &OsdRecord) -> String {
    let osd = record.info.id;
    match record.supervised {
        true => {
            let dir = record.path.rsplit_once('/').map_or("", |(dir, _)| dir);
            format!(
                "start it: `ashlar osd start {}`; if it does not start, see {dir}/log/{osd}.log",
                osd.get()
            )
        }
        false => format!(
            "start it on host {}: `ashlar osd run {}`; if it does not start, see its log",
            record.host, record.path
        ),
    }
}

/// Explains how to replace an OSD whose disk is lost while other OSDs have its data.
pub(super) fn replace_hint(committed: &CommittedState, record: &OsdRecord) -> String {
    let osd = record.info.id.get();
    if record.supervised {
        let count = committed.osds().filter(|record| record.info.in_cluster).count();
        let count = count + usize::from(!record.info.in_cluster);
        return format!(
            "If its disk is lost: remove {}, then `ashlar up --osds {count}`, `ashlar osd out {osd}` \
             and, when nothing is left to move, `ashlar osd rm {osd}`",
            record.path
        );
    }
    format!(
        "If its disk is lost: `ashlar osd out {osd}`, create and run a new one \
         (`ashlar osd create`) and, when nothing is left to move, `ashlar osd rm {osd}`"
    )
}

/// Explains how to restore missing copies of PGs.
pub(super) fn bring_back(committed: &CommittedState) -> String {
    let mut down = committed.osds().filter(|record| !record.info.up);
    match down.next() {
        Some(record) => {
            format!("{} is down: {}. {}", record.info.id, start_hint(record), wait_hint(record))
        }
        None => "backfill is running: `ashlar status` shows how much is left".to_owned(),
    }
}

/// Explains what to do when a deletion waits for OSDs: each OSD that may hold part of the data must report
/// that it has deleted that part.
pub(super) fn deletion_hint(committed: &CommittedState) -> String {
    let mut down = committed.osds().filter(|record| !record.info.up);
    match down.next() {
        Some(record) => {
            let osd = record.info.id;
            let id = osd.get();
            format!(
                "deletion continues automatically when {osd} is up: {}. If its disk is lost for \
                 good: `ashlar osd out {id}`, then `ashlar osd rm {id}`",
                start_hint(record)
            )
        }
        None => "deletion continues automatically when the PGs are served: see `ashlar pg ls`"
            .to_owned(),
    }
}

fn wait_hint(record: &OsdRecord) -> String {
    match record.info.in_cluster {
        true => format!(
            "Its PGs are backfilled to other OSDs once it has been down for osd_out_after_ms; to \
             start that now: `ashlar osd out {}`",
            record.info.id.get()
        ),
        false => "Its PGs are being backfilled to other OSDs".to_owned(),
    }
}

/// Explains how to make a PG serve again. Giving up data is mentioned only if nothing else can help: the OSDs
/// that the PG waits for are out, removed, or have returned without their data.
/// `when_lost`: returns what to do then.
pub(super) fn what_helps(
    committed: &CommittedState,
    pg: PgId,
    when_lost: impl FnOnce(&PgEntry) -> String,
) -> String {
    let Some(entry) = committed.pg(pg) else { return String::new() };
    let record = |member: &Member| committed.osd(member.osd);
    let can_return = |record: &&OsdRecord| !record.info.up && record.info.in_cluster;
    if let Some(record) = entry.acting().filter_map(record).find(can_return) {
        return format!(
            "{} is down: {}. If its disk is lost for good, run `ashlar osd out {}`: `ashlar \
             status` then shows what else to do",
            record.info.id,
            start_hint(record),
            record.info.id.get()
        );
    }
    let is_away = |osd: &OsdId| committed.osd(*osd).is_none_or(|record| !record.info.up);
    let absent: Vec<String> = entry
        .acting()
        .filter(|member| {
            let ran_anew =
                record(member).is_some_and(|record| record.info.incarnation != member.incarnation);
            is_away(&member.osd) || ran_anew
        })
        .map(|member| member.osd.to_string())
        .collect();
    if !absent.is_empty() {
        return format!(
            "start {} again, on the original disk or a copy of it. If a disk is lost for good, {}",
            absent.join(", "),
            when_lost(entry)
        );
    }
    if !entry.learners.is_empty() {
        return format!(
            "the PG continues when {} is filled: `ashlar pg describe {pg}` shows how much is left",
            entry.learners[0].member.osd
        );
    }
    format!(
        "`ashlar pg describe {pg}` shows what the PG waits for. If that is lost for good, `ashlar \
         pg give-up {pg}` shows what would be lost before it accepts the loss"
    )
}
