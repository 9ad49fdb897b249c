//! The current state of OSDs: whether they are connected, what they report, and which map they have seen.
//! `failure_detector.rs` decides which OSDs count as up.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Epoch, MapRevision, OsdId, PgId, PoolId, Time};
use format::door::NetEffect;

use super::committed_state::Batch;
use super::failure_detector::Liveness;
use super::job::{Boot, Done, Job, Plan};
use super::lines::{trace_damage, trace_stall};
use super::restarts::Starts;
use super::{Effect, Monitor};
use crate::message::{FillingProgress, FromMonitor, OsdReport, ScrubRow};
use crate::records::Record;

/// Reports of disks that hang or have recovered are evaluated together if they arrive within this span.
pub(super) const STALL_GATHER: Duration = Duration::from_millis(500);
/// A disk with an operation that takes longer than this may be about to hang together with another disk.
const LATE: Duration = Duration::from_secs(1);

/// What an OSD reports about its disk.
#[derive(Default)]
pub(super) struct Stall {
    /// Whether the disk hangs, or hung and has not completed an operation since.
    pub(super) stalled: bool,
    /// The time at which `stalled` last changed.
    pub(super) since: Option<Time>,
    /// The time at which the oldest pending operation began, if that operation is slow.
    pub(super) oldest: Option<Time>,
}

/// This monitor's volatile state of an OSD, in addition to its record; lost when this process ends.
#[derive(Default)]
pub(super) struct OsdLive {
    /// The connection over which the OSD joined, while the OSD is connected.
    pub(super) connection: Option<ConnectionId>,
    /// The order of the newest connection over which the OSD joined, whether or not that connection
    /// still exists.
    pub(super) joined_order: u64,
    /// The last report, and its time of arrival.
    pub(super) report: Option<(Time, OsdReport)>,
    /// Backfill rate in bytes per second, computed from its last two reports.
    pub(super) fill_rate: u64,
    /// The time at which the OSD last joined.
    pub(super) since: Time,
    /// Boots that the OSD has not confirmed yet, by connection, each with the nonce of the probe
    /// that asks for the confirmation.
    pub(super) boots: BTreeMap<ConnectionId, (u64, Boot)>,
    /// The OSD's recent starts, and whether it rests (see `restarts.rs`).
    pub(super) starts: Starts,
    /// What the OSD reports about its disk.
    pub(super) stall: Stall,
    /// Pools in whose records the OSD met damage, as it reports.
    pub(super) damaged_pools: BTreeSet<PoolId>,
    /// Whether an earlier leader told the OSD that its disk is slow, according to the OSD; `None`: the OSD
    /// has not joined this leader.
    pub(super) was_slow: Option<bool>,
    /// The failure detector's state of the OSD.
    pub(super) liveness: Liveness,
    /// Map revisions that the OSD has applied, by pool: it refuses requests with an older one.
    saw: BTreeMap<PoolId, MapRevision>,
    /// Removed pools that this OSD was asked over this connection to clear, each with whether it has reported
    /// that the pool is cleared.
    pub(super) clearing: BTreeMap<PoolId, bool>,
    /// Scrubs of PGs that the OSD leads, as it reported them over this connection.
    pub(super) scrubs: BTreeMap<PgId, ScrubRow>,
    /// Whether a [`Job::SyncOsd`] is in the job queue.
    is_sync_queued: bool,
}

impl OsdLive {
    /// Whether the OSD counts as up: it is connected, or may still return.
    pub(super) fn counts_as_up(&self) -> bool {
        self.connection.is_some() || self.liveness.is_awaited()
    }

    /// Returns the OSD's last report, while the OSD is connected.
    pub(super) fn current_report(&self) -> Option<&OsdReport> {
        self.connection?;
        self.report.as_ref().map(|(_, report)| report)
    }
}

impl Monitor {
    /// Registers an OSD that joined over this connection, and closes its older connection. `goes_on`: the OSD
    /// had already joined in the same run.
    pub(super) fn register_osd(
        &mut self,
        now: Time,
        osd: OsdId,
        connection: ConnectionId,
        goes_on: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.tasks.note_news();
        let live = self.osds.entry(osd).or_default();
        let old = live.connection.replace(connection);
        live.joined_order = self.connections.order(connection).unwrap_or(0);
        live.since = now;
        live.report = None;
        live.fill_rate = 0;
        live.scrubs.clear();
        live.saw.clear();
        live.clearing.clear();
        if let Some(old) = old.filter(|old| *old != connection) {
            effects.push(Effect::Net(NetEffect::Close { connection: old }));
            self.forget_connection(now, old);
        }
        self.connections.set_osd(connection, osd);
        self.begin_presence(now, osd, goes_on, effects);
    }

    pub(super) fn lose_osd_connection(&mut self, now: Time, osd: OsdId, connection: ConnectionId) {
        self.tasks.requeue_requests(now, connection);
        let Some(live) = self.osds.get_mut(&osd) else { return };
        if live.connection == Some(connection) {
            live.connection = None;
            self.begin_grace(now, osd);
        }
    }

    pub(super) fn push_sync_osd(&mut self, osd: OsdId) {
        let live = self.osds.entry(osd).or_default();
        if !live.is_sync_queued {
            live.is_sync_queued = true;
            self.jobs.push_urgent(Job::SyncOsd { osd });
        }
    }

    /// Handles a boot that did not complete: queues the update of the OSD's record that was left to the boot.
    pub(super) fn push_sync_known_osd(&mut self, osd: OsdId) {
        if self.committed.osd(osd).is_some() {
            self.push_sync_osd(osd);
        }
    }

    pub(super) fn on_osd_synced(&mut self, osd: OsdId) {
        self.osds.entry(osd).or_default().is_sync_queued = false;
    }

    pub(super) fn plan_sync_osd(&self, osd: OsdId) -> Plan {
        let (Some(record), Some(live)) = (self.committed.osd(osd), self.osds.get(&osd)) else {
            return Plan::Done(Done::Silent);
        };
        let mut changed = record.clone();
        changed.info.up = live.counts_as_up();
        if !changed.info.up && self.is_joining(osd) {
            return Plan::Done(Done::Silent);
        }
        if let Some(report) = live.current_report() {
            changed.size_bytes = report.size_bytes;
        }
        if changed == *record {
            return Plan::Done(Done::Silent);
        }
        if changed.info != record.info {
            changed.info.revision = self.committed.osd_revision_max() + 1;
        }
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Osd(changed));
        // The job is planned again: the OSD may have connected or disconnected while the record was written.
        Plan::Write { batch, done: None }
    }

    pub(super) fn on_report(
        &mut self,
        now: Time,
        connection: ConnectionId,
        mut report: OsdReport,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.connections.osd(connection) else { return };
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let scrubs = std::mem::take(&mut report.scrubs);
        let damaged = report.damaged_pools.clone();
        let size = report.size_bytes;
        let age = Duration::from_millis(report.oldest_operation_ms);
        let began = Time::from_nanos(now.as_nanos().saturating_sub(age.as_nanos()));
        let (stalled, oldest) = (report.stalled, (age > LATE).then_some(began));
        live.fill_rate = fill_rate(live.report.as_ref(), now, &report);
        live.was_slow = Some(report.slow);
        live.report = Some((now, report));
        self.note_scrubs(osd, scrubs);
        self.note_stall(now, osd, stalled, oldest, effects);
        self.note_damaged_pools(osd, damaged, effects);
        if self.committed.osd(osd).is_some_and(|record| record.size_bytes != size) {
            self.push_sync_osd(osd);
        }
        self.confirm_give_ups(osd, effects);
        self.end_call_backs(osd);
        self.confirm_leftovers(osd, connection, effects);
    }

    /// Tells an OSD which of the PGs that it has left are active: it may remove its data of these.
    fn confirm_leftovers(
        &mut self,
        osd: OsdId,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        let report = self.osds.get_mut(&osd).and_then(|live| live.report.as_mut());
        let leftovers = report.map(|(_, report)| std::mem::take(&mut report.leftovers));
        let is_active = |(pg, epoch): &(PgId, Epoch)| {
            let entry = self.committed.pg(*pg).filter(|entry| entry.epoch == *epoch);
            entry.is_some_and(|entry| self.pg_state(entry).serves())
        };
        let pgs: Vec<_> = leftovers.into_iter().flatten().filter(is_active).collect();
        if !pgs.is_empty() {
            self.connections.send(connection, &FromMonitor::Active { pgs }, effects);
        }
    }

    /// Records what an earlier leader told a joining OSD about its disk.
    pub(super) fn note_slowness(&mut self, osd: OsdId, slow: bool) {
        self.osds.entry(osd).or_default().was_slow = Some(slow);
    }

    /// Records an OSD's report on whether its disk hangs.
    pub(super) fn note_stall(
        &mut self,
        now: Time,
        osd: OsdId,
        stalled: bool,
        oldest: Option<Time>,
        effects: &mut Vec<Effect>,
    ) {
        let live = self.osds.entry(osd).or_default();
        let has_changed = live.stall.stalled != stalled;
        let is_other = std::mem::replace(&mut live.stall.oldest, oldest) != oldest;
        if has_changed {
            live.stall.stalled = stalled;
            live.stall.since = Some(now);
            trace_stall(osd, stalled, effects);
        }
        if has_changed && stalled {
            self.notice(osd);
        }
        if has_changed || is_other && self.osds.values().any(|live| live.stall.stalled) {
            self.entries.mark_all();
        }
    }

    /// Records in which pools' records an OSD met damage.
    pub(super) fn note_damaged_pools(
        &mut self,
        osd: OsdId,
        pools: BTreeSet<PoolId>,
        effects: &mut Vec<Effect>,
    ) {
        let live = self.osds.entry(osd).or_default();
        if live.damaged_pools == pools {
            return;
        }
        for pool in pools.symmetric_difference(&live.damaged_pools) {
            trace_damage(osd, *pool, pools.contains(pool), effects);
        }
        live.damaged_pools = pools;
        self.notice(osd);
        self.entries.mark_all();
    }

    /// Returns the time at which the latest reports about hanging disks may be evaluated together.
    pub(super) fn stalls_settle(&self, now: Time) -> Option<Time> {
        let settles = |live: &OsdLive| Some(live.stall.since? + STALL_GATHER);
        self.osds.values().filter_map(settles).filter(|at| *at > now).min()
    }

    pub(super) fn on_saw(
        &mut self,
        connection: ConnectionId,
        revisions: &BTreeMap<PoolId, MapRevision>,
    ) {
        let Some(osd) = self.connections.osd(connection) else { return };
        let Some(live) = self.osds.get_mut(&osd) else { return };
        self.tasks.note_news();
        for (pool, revision) in revisions {
            if self.committed.pool(*pool).is_some() {
                let saw = live.saw.entry(*pool).or_default();
                *saw = (*saw).max(*revision);
            }
        }
    }

    /// Returns an OSD of the pool that is up and has not reported that it has seen `revision` of the map. An
    /// OSD that is down reads the map before it accepts requests.
    pub(super) fn osd_that_has_not_seen(
        &self,
        pool: PoolId,
        revision: MapRevision,
    ) -> Option<OsdId> {
        let entries = self.committed.pgs(pool);
        let members = entries.flat_map(|entry| entry.members());
        let mut osds: Vec<OsdId> = members.map(|member| member.osd).collect();
        osds.sort_unstable();
        osds.dedup();
        let saw = |osd: &OsdId| {
            let live = self.osds.get(osd);
            live.and_then(|live| live.saw.get(&pool)).copied().unwrap_or_default()
        };
        let is_up = |osd: &OsdId| self.committed.osd(*osd).is_some_and(|record| record.info.up);
        osds.into_iter().find(|osd| is_up(osd) && saw(osd) < revision)
    }
}

/// Returns the backfill rate in bytes per second, from its last two reports. A backfill that is
/// new, or that started again from zero in a new epoch, counts with all its bytes so far.
fn fill_rate(before: Option<&(Time, OsdReport)>, now: Time, report: &OsdReport) -> u64 {
    let Some((then, before)) = before else { return 0 };
    let done: BTreeMap<_, u64> =
        before.filling.iter().map(|fill| ((fill.pg, fill.osd), fill.done_bytes)).collect();
    let more = |fill: &FillingProgress| {
        let done = done.get(&(fill.pg, fill.osd)).copied().unwrap_or(0);
        fill.done_bytes.checked_sub(done).unwrap_or(fill.done_bytes)
    };
    let bytes: u128 = report.filling.iter().map(|fill| u128::from(more(fill))).sum();
    let nanos = u128::from(now.since(*then).as_nanos().max(1));
    u64::try_from(bytes * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}
