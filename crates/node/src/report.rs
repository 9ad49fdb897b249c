//! What this OSD reports to the monitor, and when.

use base::{OsdId, Time};
use cluster::message::{FillingProgress, OsdReport};
use pg::{Pg, Serving};

use crate::cluster_view::ClusterView;
use crate::disk_watch::DiskWatch;
use crate::local_store::LocalStore;
use crate::peer_connections::PeerConnections;
use crate::pg_table::PgTable;

/// When the next report leaves.
pub(crate) struct ReportSchedule {
    at: Time,
    /// The next PG that is served is reported at once: an operator waits for it.
    is_due_with_next_active: bool,
}

impl ReportSchedule {
    /// The first report leaves now.
    pub(crate) fn new(now: Time) -> ReportSchedule {
        ReportSchedule { at: now, is_due_with_next_active: false }
    }

    /// When the next report leaves.
    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// A report leaves; sets the time of the one after it.
    pub(crate) fn set(&mut self, at: Time) {
        self.at = at;
    }

    /// It leaves then at the latest.
    pub(crate) fn bring_forward(&mut self, at: Time) {
        self.at = self.at.min(at);
    }

    /// The next PG that is served is reported at once.
    pub(crate) fn await_active(&mut self) {
        self.is_due_with_next_active = true;
    }

    /// A PG is served.
    pub(crate) fn on_active(&mut self, now: Time) {
        if std::mem::take(&mut self.is_due_with_next_active) {
            self.at = now;
        }
    }
}

/// Says for people what the PGs of this OSD wait for.
#[derive(Clone, Copy)]
pub(crate) struct Explainer<'a> {
    pub(crate) cluster: &'a ClusterView,
    pub(crate) connections: &'a PeerConnections,
}

impl Explainer<'_> {
    /// What a PG that this OSD leads waits for; `None`: it serves.
    pub(crate) fn waits_for(&self, pg: &Pg) -> Option<String> {
        let what = match pg.serving() {
            Serving::Active => return None,
            Serving::Idle { why } | Serving::Ended { why } => why.clone(),
            Serving::Draining => "operations of the earlier epoch are ending".into(),
            Serving::Asking | Serving::Filling => {
                let names = pg.waits_for().into_iter().map(|osd| self.absence_of(pg, osd));
                let learners = pg.filling().map(|(osd, ..)| format!("{osd} is filled meanwhile"));
                names.chain(learners).collect::<Vec<String>>().join(", ")
            }
            Serving::Comparing => "its members are being brought to the same state".into(),
            Serving::Journaling => "its members write their records".into(),
            Serving::Following => "it is joining the epoch".into(),
        };
        Some(what)
    }

    /// Why a member that a PG waits for has not answered.
    fn absence_of(&self, pg: &Pg, osd: OsdId) -> String {
        let members = pg.entry().into_iter().flat_map(|entry| entry.members());
        let mut of_osd = members.filter(|member| member.osd == osd);
        let is_connected =
            of_osd.next().is_some_and(|member| self.connections.to_follower(*member).is_some());
        match self.cluster.osd(osd) {
            _ if is_connected => format!("{osd} has not answered yet"),
            Some(known) if known.up => format!("{osd} cannot be reached"),
            _ => format!("{osd} is down"),
        }
    }
}

/// What keeps a PG from its part; for people.
pub(crate) fn why_idle(pg: &Pg) -> String {
    match pg.serving() {
        Serving::Idle { why } | Serving::Ended { why } => why.clone(),
        _ => "it is about to join the epoch".into(),
    }
}

/// The report of this OSD as it is now.
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
        damaged_units: store.damaged_units_count(),
        stalled: disk_watch.is_stalled(),
        oldest_operation_ms: store.oldest_operation().as_millis(),
        ..OsdReport::default()
    };
    for (_, pg) in pgs.iter() {
        let id = pg.id();
        let Some(entry) = cluster.pg(id) else { continue };
        // Remains of a removed pool are skipped: no volume needs them.
        report.suspect |= pg.is_suspect() || store.is_suspect(id);
        if !cluster.is_primary(entry) {
            continue;
        }
        match explainer.waits_for(pg) {
            None => report.active.push(id),
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
    report
}

/// Whether a PG that is not served needs something else than its members' agreeing.
fn is_stuck(serving: &Serving) -> bool {
    matches!(serving, Serving::Idle { .. } | Serving::Filling)
}
