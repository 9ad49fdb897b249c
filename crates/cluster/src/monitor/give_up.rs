//! `pg give-up`: the operator accepts what an incomplete PG lost, and hears when it is served.
//!
//! Nothing of it is recorded here: the OSD records it in its store. An operator who was not
//! answered in time looks and, if it is still needed, asks again.

use base::{ConnectionId, Duration, OsdId, PgId, Time};
use serde_json::json;

use super::osd::OsdLive;
use super::{Effect, Monitor, busy, failure};
use crate::message::{Failure, FromMonitor};

/// How long the OSD may take to serve the PG before the operator is told that it is not known.
pub(super) const GIVE_UP_SPAN: Duration = Duration::from_secs(10);
/// Operators that wait.
const GIVE_UP_COUNT_MAX: usize = 1_000;
/// Volumes named as concerned.
const NAMED_COUNT_MAX: usize = 5;

/// An operator that waits.
pub(super) struct GiveUp {
    pub(super) pg: PgId,
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) ends: Time,
}

impl Monitor {
    /// Tells the primary of an incomplete PG that the operator accepts its loss; the answer follows
    /// its report. Not `accepted`: the error says what would be lost.
    pub(super) fn give_up(
        &mut self,
        asked: GiveUp,
        accepted: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Failure> {
        let pg = asked.pg;
        let Some(entry) = self.contents.pg(pg) else {
            let hint = "`ashlar pg ls` lists the PGs there are";
            return Err(failure("not_found", format!("there is no PG {pg}"), hint));
        };
        let osd = entry.primary.filter(|osd| {
            let live = self.osds.get(osd);
            live.is_some_and(|live| live.connection.is_some())
        });
        let Some(osd) = osd else {
            return Err(failure(
                "unavailable",
                format!("no OSD that has PG {pg} is up: there is nobody who could give it up"),
                "start its OSD, on its disk or on a copy of it. If there is neither, this version \
                 cannot serve the PG again: restore its volumes from a backup into a new pool",
            ));
        };
        let report = self.osds.get(&osd).and_then(OsdLive::current_report);
        let why = report.and_then(|r| r.incomplete.iter().find(|(id, _)| *id == pg));
        let Some((_, why)) = why else {
            return Err(failure(
                "invalid",
                format!("PG {pg} is not incomplete"),
                "there is nothing to give up",
            ));
        };
        if !accepted {
            return Err(self.what_would_be_lost(pg, osd, why));
        }
        if self.give_ups.len() >= GIVE_UP_COUNT_MAX {
            return Err(busy());
        }
        let record = self.contents.osd(osd).expect("members have a record");
        let (epoch, incarnation) = (entry.epoch, record.info.incarnation);
        let connection = self.osds[&osd].connection.expect("just seen");
        self.send(connection, &FromMonitor::GiveUp { pg, epoch, incarnation }, effects);
        self.give_ups.push(asked);
        Ok(())
    }

    /// The refusal of an operator who has not said yes yet.
    fn what_would_be_lost(&self, pg: PgId, osd: OsdId, why: &str) -> Failure {
        let report = self.osds.get(&osd).and_then(OsdLive::current_report);
        let damaged = report.map_or(0, |report| report.damaged_units);
        let pool = self.contents.pool(pg.pool).expect("a PG has a pool");
        let images: Vec<_> =
            self.contents.images().filter(|image| image.info.pool == pg.pool).collect();
        let mut names: Vec<&str> = images.iter().map(|image| image.info.name.as_str()).collect();
        names.truncate(NAMED_COUNT_MAX);
        let more = match images.len() - names.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let message = format!(
            "giving PG {pg} up cannot be undone. {why}. Which blocks are concerned is not known: \
             any acknowledged write in this PG, one part in {} of each volume of pool {} ({}{more}), \
             may read as older data or as zeros. {osd} knows of {damaged} damaged pieces of 4 KiB, \
             whose reads go on to fail",
            pool.pool.pg_count,
            pool.pool.name,
            names.join(", "),
        );
        let hint = format!("accept that: ashlar pg give-up {pg} --yes");
        failure("not_accepted", message, hint)
    }

    /// The OSD has reported: operators hear of PGs that it serves now.
    pub(super) fn confirm_give_ups(&mut self, osd: OsdId, effects: &mut Vec<Effect>) {
        if self.give_ups.is_empty() {
            return;
        }
        for waits in std::mem::take(&mut self.give_ups) {
            let entry = self.contents.pg(waits.pg).filter(|entry| entry.primary == Some(osd));
            if !entry.is_some_and(|entry| self.pg_state(entry).serves()) {
                self.give_ups.push(waits);
                continue;
            }
            let value = json!({ "pg": waits.pg.to_string(), "osd": osd });
            self.answer(waits.connection, waits.request, Ok(value), effects);
        }
    }

    /// Operators who waited for too long hear that it is not known.
    pub(super) fn end_give_ups(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.give_ups.first().is_some_and(|waits| waits.ends <= now) {
            let GiveUp { pg, connection, request, .. } = self.give_ups.remove(0);
            let error = failure(
                "unconfirmed",
                format!(
                    "PG {pg} was asked to be given up, and is not served {:.0} seconds later",
                    GIVE_UP_SPAN.as_secs_f64()
                ),
                format!("`ashlar pg describe {pg}` says how it is; if nothing changes, ask again"),
            );
            self.answer(connection, request, Err(error), effects);
        }
    }
}
