//! OSDs as they are now: connected or not, what they report, which map they have seen.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, MapRevision, OsdId, PoolId, Time};
use format::door::NetEffect;

use super::contents::Batch;
use super::job::{Done, Job, Plan};
use super::{Effect, Monitor};
use crate::message::OsdReport;
use crate::records::Record;
use crate::settings::Setting;

/// What is known of an OSD besides its record; lost with this process.
#[derive(Default)]
pub(super) struct OsdLive {
    /// Where it is connected.
    pub(super) connection: Option<ConnectionId>,
    /// Which of all connections to this monitor was the newest one it joined over, gone or not.
    pub(super) joined_order: u64,
    /// Its last report, and when it came.
    pub(super) report: Option<(Time, OsdReport)>,
    /// When it was registered.
    pub(super) since: Time,
    /// Map revisions it has applied: it refuses requests that name older ones.
    saw: BTreeMap<PoolId, MapRevision>,
    /// Removed pools that it was asked to clear, over this connection.
    pub(super) clearing: BTreeSet<PoolId>,
    /// Whether a [`Job::SyncOsd`] waits for its turn.
    is_sync_queued: bool,
}

impl OsdLive {
    /// Its last report, while it is connected.
    pub(super) fn current_report(&self) -> Option<&OsdReport> {
        self.connection?;
        self.report.as_ref().map(|(_, report)| report)
    }
}

impl Monitor {
    /// The OSD has joined over this connection; an older one of it is closed.
    pub(super) fn register_osd(
        &mut self,
        now: Time,
        osd: OsdId,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        self.has_task_news = true;
        let live = self.osds.entry(osd).or_default();
        let old = live.connection.replace(connection);
        live.joined_order = self.connections.get(&connection).map_or(0, |state| state.order);
        live.since = now;
        live.report = None;
        live.saw.clear();
        live.clearing.clear();
        if let Some(old) = old.filter(|old| *old != connection) {
            effects.push(Effect::Net(NetEffect::Close { connection: old }));
            self.forget_connection(now, old);
        }
        let state = self.connections.get_mut(&connection).expect("the caller has it connected");
        state.osd = Some(osd);
    }

    pub(super) fn lose_osd_connection(&mut self, now: Time, osd: OsdId, connection: ConnectionId) {
        self.requeue_task_requests(now, connection);
        let Some(live) = self.osds.get_mut(&osd) else { return };
        if live.connection == Some(connection) {
            live.connection = None;
            self.push_sync_osd(osd);
        }
    }

    pub(super) fn push_sync_osd(&mut self, osd: OsdId) {
        let live = self.osds.entry(osd).or_default();
        if !live.is_sync_queued {
            live.is_sync_queued = true;
            self.jobs.push_back(Job::SyncOsd { osd });
        }
    }

    pub(super) fn osd_synced(&mut self, osd: OsdId) {
        self.osds.entry(osd).or_default().is_sync_queued = false;
    }

    pub(super) fn plan_sync_osd(&self, osd: OsdId) -> Plan {
        let (Some(record), Some(live)) = (self.contents.osd(osd), self.osds.get(&osd)) else {
            return Plan::Done(Done::Silent);
        };
        let mut changed = record.clone();
        changed.info.up = live.connection.is_some();
        if let Some(report) = live.current_report() {
            changed.size_bytes = report.size_bytes;
        }
        if changed == *record {
            return Plan::Done(Done::Silent);
        }
        if changed.info != record.info {
            changed.info.revision = self.contents.osd_revision_max() + 1;
        }
        let mut batch = Batch::new(&self.contents);
        batch.put(&self.contents, Record::Osd(changed));
        // Planned once more: it may have come or gone while the record was written.
        Plan::Write { batch, done: None }
    }

    /// When OSDs that were up when the last monitor ended no longer count as up.
    pub(super) fn return_ends(&self) -> Option<Time> {
        self.return_since.map(|since| since + self.span(Setting::OsdReturn))
    }

    /// OSDs that were up when the last monitor ended, and have not come back, are down.
    pub(super) fn end_return_time(&mut self, now: Time) {
        if self.return_ends().is_none_or(|ends| now < ends) {
            return;
        }
        self.return_since = None;
        let missing = self.contents.osds().filter(|record| record.info.up);
        let missing: Vec<OsdId> = missing.map(|record| record.info.id).collect();
        for osd in missing {
            self.push_sync_osd(osd);
        }
    }

    pub(super) fn on_report(
        &mut self,
        now: Time,
        connection: ConnectionId,
        report: OsdReport,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.connections[&connection].osd else { return };
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let size = report.size_bytes;
        live.report = Some((now, report));
        if self.contents.osd(osd).is_some_and(|record| record.size_bytes != size) {
            self.push_sync_osd(osd);
        }
        self.confirm_give_ups(osd, effects);
    }

    pub(super) fn on_saw(
        &mut self,
        connection: ConnectionId,
        revisions: &BTreeMap<PoolId, MapRevision>,
    ) {
        let Some(osd) = self.connections[&connection].osd else { return };
        let Some(live) = self.osds.get_mut(&osd) else { return };
        self.has_task_news = true;
        for (pool, revision) in revisions {
            if self.contents.pool(*pool).is_some() {
                let saw = live.saw.entry(*pool).or_default();
                *saw = (*saw).max(*revision);
            }
        }
    }

    /// An OSD of the pool that is up and has not said that it saw `revision`. One that is down
    /// reads the map before it accepts anything.
    pub(super) fn osd_that_has_not_seen(
        &self,
        pool: PoolId,
        revision: MapRevision,
    ) -> Option<OsdId> {
        let members = self.contents.pgs(pool).flat_map(|entry| &entry.acting);
        let mut osds: Vec<OsdId> = members.map(|member| member.osd).collect();
        osds.sort_unstable();
        osds.dedup();
        let saw = |osd: &OsdId| {
            let live = self.osds.get(osd);
            live.and_then(|live| live.saw.get(&pool)).copied().unwrap_or_default()
        };
        let is_up = |osd: &OsdId| self.contents.osd(*osd).is_some_and(|record| record.info.up);
        osds.into_iter().find(|osd| is_up(osd) && saw(osd) < revision)
    }
}
