//! Taking OSDs out of the cluster, putting them back in, and removing them.
//!
//! An OSD that is out keeps serving its PGs until the other OSDs of the plan have their data, so taking an
//! OSD out loses nothing. An OSD is removed only when no PG needs it; the clearing of removed pools then no
//! longer waits for it.

use base::{Incarnation, OsdId, PgId};
use serde_json::json;

use super::committed_state::{Batch, CommittedState};
use super::failure;
use super::job::{Done, Plan};
use super::removal::plan_pool_cleared;
use crate::message::Failure;
use crate::records::{CounterName, CounterRecord, Key, OsdRecord, OutBy, Record, Rest};

fn osd_to_change(committed: &CommittedState, osd: OsdId) -> Result<&OsdRecord, Failure> {
    committed.osd(osd).ok_or_else(|| {
        let hint = "`ashlar osd ls` lists the OSDs";
        failure("not_found", format!("this cluster has no {osd}"), hint)
    })
}

/// Plans `osd out` and `osd in`. If the OSD is already in that state, the operator's decision
/// replaces the monitor's.
pub(super) fn plan_osd_set_in(
    committed: &CommittedState,
    osd: OsdId,
    is_in: bool,
) -> Result<Plan, Failure> {
    let known = osd_to_change(committed, osd)?;
    let mut record = known.clone();
    record.info.in_cluster = is_in;
    record.out_by = (!is_in).then_some(OutBy::Operator);
    let answer = Done::Answer(Ok(json!({ "id": osd, "in": is_in })));
    if record == *known {
        return Ok(Plan::Done(answer));
    }
    record.info.revision = committed.osd_revision_max() + 1;
    let mut batch = Batch::new(committed);
    batch.put(committed, Record::Osd(record));
    Ok(Plan::Write { batch, done: Some(answer) })
}

/// Plans `osd rm`: deletes the OSD from the records of removed pools, one by one, then deletes its own
/// record.
pub(super) fn plan_osd_remove(committed: &CommittedState, osd: OsdId) -> Result<Plan, Failure> {
    let record = osd_to_change(committed, osd)?;
    if record.info.up {
        return Err(failure(
            "busy",
            format!("{osd} is up"),
            "stop its process first; to empty it before that, run `ashlar osd out ID` and wait \
             until `ashlar osd tree` shows that it has no PGs",
        ));
    }
    // An OSD that never ran holds no data.
    if record.info.in_cluster && record.info.incarnation != Incarnation::ZERO {
        return Err(failure(
            "busy",
            format!("{osd} is in: the cluster expects it to return with its copies"),
            "if it is gone for good, run `ashlar osd out ID`; once its PGs have their copies \
             elsewhere, run `ashlar osd rm ID`",
        ));
    }
    if let Some(pg) = pg_that_needs(committed, osd) {
        return Err(failure(
            "busy",
            format!("PG {pg} needs {osd}"),
            "run `ashlar osd out ID` and wait until `ashlar osd tree` shows that it has no PGs. If \
             its copy is lost and the PG waits for it: `ashlar pg give-up --they-are-off`",
        ));
    }
    let waiting = committed.removed_pools().find(|pool| pool.osds.contains(&osd));
    if let Some(pool) = waiting {
        return Ok(match plan_pool_cleared(committed, pool.pool, osd) {
            Plan::Write { batch, .. } => Plan::Write { batch, done: None },
            Plan::Done(_) => unreachable!("the pool waits for it"),
        });
    }
    let mut batch = Batch::new(committed);
    // Receivers of the map learn of the removal from a new revision, as they do of any other change.
    let last = committed.osd_revision_max() + 1;
    let name = CounterName::OsdRevision;
    batch.put(committed, Record::Counter(CounterRecord { name, last, rest: Rest::new() }));
    batch.delete(committed, Key::Osd(osd));
    let answer = Done::Answer(Ok(json!({ "id": osd })));
    Ok(Plan::Write { batch, done: Some(answer) })
}

/// Returns a PG that has the OSD as a member.
fn pg_that_needs(committed: &CommittedState, osd: OsdId) -> Option<PgId> {
    if committed.osd(osd).is_some_and(|r| r.info.incarnation == Incarnation::ZERO) {
        return None;
    }
    let pools = committed.pools();
    let mut entries = pools.flat_map(|pool| committed.pgs(pool.pool.id));
    entries.find(|entry| entry.members().any(|m| m.osd == osd)).map(|entry| entry.pg)
}
