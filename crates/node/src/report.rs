//! The reports of this OSD to the monitor, and their schedule.

use base::{OsdId, Time};
use blockstore::OperationFigures;
use cluster::message::{
    DiskOperations, DiskWork, FillingProgress, MediaErrors, OlderCopy, OsdReport,
};
use format::wire::PgEntry;
use pg::{Pg, Serving};

use crate::cluster_view::ClusterView;
use crate::disk_watch::DiskWatch;
use crate::local_store::LocalStore;
use crate::peer_connections::PeerConnections;
use crate::pg_table::PgTable;
use crate::space_credits::parity_primaries_max;

/// When the next report is sent.
pub(crate) struct ReportSchedule {
    at: Time,
    /// Whether the next PG that becomes active is reported at once, because an operator waits for it.
    is_due_with_next_active: bool,
}

impl ReportSchedule {
    /// Creates a schedule whose first report is due now.
    pub(crate) fn new(now: Time) -> ReportSchedule {
        ReportSchedule { at: now, is_due_with_next_active: false }
    }

    /// Returns when the next report is sent.
    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// Sets the time of the next report.
    pub(crate) fn set(&mut self, at: Time) {
        self.at = at;
    }

    /// Makes the next report due at `at` at the latest.
    pub(crate) fn bring_forward(&mut self, at: Time) {
        self.at = self.at.min(at);
    }

    /// Makes a report due as soon as a PG becomes active.
    pub(crate) fn await_active(&mut self) {
        self.is_due_with_next_active = true;
    }

    /// Handles a PG that becomes active.
    pub(crate) fn on_active(&mut self, now: Time) {
        if std::mem::take(&mut self.is_due_with_next_active) {
            self.at = now;
        }
    }
}

/// Explains to operators what the PGs of this OSD wait for.
#[derive(Clone, Copy)]
pub(crate) struct Explainer<'a> {
    pub(crate) cluster: &'a ClusterView,
    pub(crate) connections: &'a PeerConnections,
}

impl Explainer<'_> {
    /// Returns what a PG that this OSD leads waits for; `None` if it serves.
    pub(crate) fn waits_for(&self, pg: &Pg) -> Option<String> {
        let what = match pg.serving() {
            Serving::Active => return None,
            Serving::Idle { why } | Serving::Ended { why } => why.clone(),
            Serving::Draining => "operations of the previous epoch are finishing".into(),
            Serving::Asking | Serving::Filling => {
                let names = pg.waits_for().into_iter().map(|osd| self.absence_of(pg, osd));
                let learners = pg.filling().map(|(osd, ..)| format!("{osd} is being filled"));
                let hindrance = pg.fill_hindrance().map(str::to_owned);
                names.chain(learners).chain(hindrance).collect::<Vec<String>>().join(", ")
            }
            Serving::Comparing => "members are being brought to the same state".into(),
            Serving::Journaling => "members are writing their records".into(),
            Serving::Following => "this OSD is joining the epoch".into(),
        };
        Some(what)
    }

    /// Returns why a member that a PG waits for has not answered.
    fn absence_of(&self, pg: &Pg, osd: OsdId) -> String {
        let members = pg.entry().into_iter().flat_map(|entry| entry.members());
        let mut of_osd = members.filter(|member| member.osd == osd);
        let is_connected =
            of_osd.next().is_some_and(|member| self.connections.to_follower(*member).is_some());
        match self.cluster.osd(osd) {
            _ if is_connected && pg.is_draining(osd) => {
                format!("{osd} is finishing operations of the previous epoch")
            }
            _ if is_connected => format!("{osd} has not answered yet"),
            Some(known) if known.up => format!("{osd} cannot be reached"),
            _ => format!("{osd} is down"),
        }
    }
}

/// Returns what prevents this OSD from taking part in a PG, as text for operators.
pub(crate) fn why_idle(pg: &Pg) -> String {
    match pg.serving() {
        Serving::Idle { why } | Serving::Ended { why } => why.clone(),
        _ => "this OSD is about to join the epoch".into(),
    }
}

/// Returns the report of this OSD's current state.
pub(crate) fn report(
    store: &LocalStore,
    pgs: &PgTable,
    explainer: Explainer<'_>,
    disk_watch: &DiskWatch,
    is_buffered: bool,
) -> OsdReport {
    let cluster = explainer.cluster;
    let space = store.space();
    let mut report = OsdReport {
        revisions: cluster.revisions(),
        size_bytes: space.size_bytes,
        used_bytes: space.used_bytes,
        free_bytes: space.free_bytes,
        full: space.full,
        commit: store.commit_mode().to_string(),
        buffered: is_buffered,
        damaged_units: store.damaged_units_left(),
        media: MediaErrors {
            read_errors: store.disk_figures().read_errors,
            units: store.damaged_units_count(),
        },
        disk: disk_work(store),
        slow: pgs.is_slow_here(),
        stalled: disk_watch.is_stalled(),
        parity_primaries_max: Some(parity_primaries_max(store)),
        damaged_pools: store.damaged_families().collect(),
        oldest_operation_ms: store.oldest_operation().as_millis(),
        ..OsdReport::default()
    };
    let mut older_copies = Vec::new();
    for (_, pg) in pgs.iter() {
        let id = pg.id();
        let Some(entry) = cluster.pg(id) else { continue };
        // Data left over from a removed pool is skipped: no image needs it.
        let is_suspect = pg.is_suspect() || store.is_suspect(id);
        report.suspect |= is_suspect;
        if !cluster.is_primary(entry) {
            older_copies.extend(older_copy(pg, entry, is_suspect, (store, cluster)));
            continue;
        }
        if is_suspect {
            report.suspect_pgs.push(id);
        }
        match explainer.waits_for(pg) {
            None if pg.entry().is_some_and(|entered| entered.epoch == entry.epoch) => {
                report.active.push(id);
            }
            None => report.peering.push((id, why_idle(pg))),
            Some(why) if is_stuck(pg.serving()) => report.incomplete.push((id, why)),
            Some(why) => report.peering.push((id, why)),
        }
        let filling = pg.filling().map(|(osd, done_bytes, left_bytes)| FillingProgress {
            pg: id,
            osd,
            done_bytes,
            left_bytes,
        });
        report.filling.extend(filling);
    }
    report.older_copies = Some(older_copies);
    report
}

/// Returns what this OSD has of a PG, if no acting member is up and it is none: an operator may continue with
/// it. A copy that is superfluous by the entry is none, since it may be removed at any time.
fn older_copy(
    pg: &Pg,
    entry: &PgEntry,
    is_suspect: bool,
    (store, cluster): (&LocalStore, &ClusterView),
) -> Option<OlderCopy> {
    let is_whole = cluster.pool(pg.id().pool)?.pool.scheme.is_whole_everywhere();
    let is_up = |osd: OsdId| cluster.osd(osd).is_some_and(|known| known.up);
    let has_place =
        entry.learner(cluster.osd_id()).is_some() || entry.acting_count() < entry.positions.len();
    if !is_whole || !has_place || entry.acting().any(|member| is_up(member.osd)) {
        return None;
    }
    let (epoch, complete, is_filled) = pg.recorded()?;
    let is_damaged = is_suspect || store.damaged_families().any(|pool| pool == pg.id().pool);
    let unfit = if is_damaged {
        Some("its store is damaged")
    } else {
        is_filled.then_some("it was being filled, so its blocks are of different times")
    };
    let complete = (complete.epoch, complete.counter);
    Some(OlderCopy { pg: pg.id(), epoch, complete, unfit: unfit.map(str::to_owned) })
}

/// Returns the disk's activity, which the monitor compares with that of other disks.
fn disk_work(store: &LocalStore) -> DiskWork {
    let figures = store.disk_figures();
    let of = |OperationFigures { count, nanos }| DiskOperations { count, nanos };
    DiskWork { reads: of(figures.reads), writes: of(figures.writes), flushes: of(figures.flushes) }
}

/// Returns whether a PG that is not served needs more than peering among its members.
fn is_stuck(serving: &Serving) -> bool {
    matches!(serving, Serving::Idle { .. } | Serving::Filling)
}
