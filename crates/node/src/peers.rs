//! Waiting queries between members of PGs, and needs of PGs that must be reported to the monitor.
//!
//! Invariants
//!   1. At most one query of each PG waits: the one of the highest epoch.
//!   2. A need of a PG is reported until its epoch is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{ConnectionId, Duration, Epoch, MapRevision, OsdId, PgId, PoolId, Time};
use cluster::message::{Need, PgNeed};
use format::wire::{Member, PeerBody};

use crate::cluster_view::ClusterView;

/// How long a query waits for the map of its epoch.
const MAP_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a connected member may take to answer a query before this is reported to the monitor. This is
/// longer than the member's wait for the map. A member whose store has yet to finish something says so
/// ([`PeerBody::Draining`]): a slow disk is no reason to drop a member. The time for leases that the member
/// must wait out is added.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// Maximum number of queries that wait: one for each PG of the largest pool.
const HELD_COUNT_MAX: usize = 1 << 16;

/// Waiting queries between members, and needs that must be reported to the monitor.
#[derive(Default)]
pub(crate) struct Peers {
    /// Queries that wait for the map, for grants to expire, or for a family of the engine.
    held: BTreeMap<PgId, Query>,
    /// Deadlines of the queries that arrived before the map, oldest first.
    held_until: VecDeque<(Time, PgId, Epoch)>,
    /// The epoch and the connection of the last query of each PG. All other messages of the epoch must
    /// arrive over the same connection, because only there are they in order.
    heard_over: BTreeMap<PgId, (Epoch, ConnectionId)>,
    /// Unanswered queries of this OSD, and their epochs.
    unanswered: BTreeMap<(PgId, OsdId), Epoch>,
    /// Deadlines for the answers to these queries, oldest first.
    unanswered_until: VecDeque<(Time, PgId, OsdId, Epoch)>,
    /// PGs that this OSD will lead once its grants to earlier primaries have expired.
    waiting: BTreeSet<PgId>,
    /// When the next grant expires that a PG or a query waits for.
    release_at: Option<Time>,
    /// Needs of PGs, which are reported to the monitor until their epochs are over.
    needs: BTreeMap<PgId, Vec<PgNeed>>,
    /// Needs that have not been sent to the monitor yet.
    needs_new: Vec<PgNeed>,
    /// By pool, the highest revision of its map that a primary had when it sent a version here.
    revisions_shown: BTreeMap<PoolId, MapRevision>,
    /// PGs led here whose members were not told the map's revision, because a change of a session that it
    /// fences was open.
    untold: BTreeSet<PgId>,
}

/// A primary's query.
pub(crate) struct Query {
    pub(crate) connection: ConnectionId,
    pub(crate) primary: Member,
    pub(crate) epoch: Epoch,
    pub(crate) body: PeerBody,
}

/// A query of this OSD whose answer is overdue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overdue {
    pub(crate) pg: PgId,
    pub(crate) osd: OsdId,
    pub(crate) epoch: Epoch,
}

impl Peers {
    /// Returns when something is due if no event comes first.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let held = self.held_until.front().map(|(until, ..)| *until);
        let unanswered = self.unanswered_until.front().map(|(until, ..)| *until);
        [held, unanswered, self.release_at].into_iter().flatten().min()
    }

    // ---- PGs and queries that wait for grants, the map or a family

    /// Makes a PG wait until this OSD's grants to its earlier primaries have expired.
    pub(crate) fn wait_for_grants(&mut self, pg: PgId, until: Time) {
        self.wait_until(until);
        self.waiting.insert(pg);
    }

    /// Ends a PG's wait for grants to expire.
    pub(crate) fn stop_waiting(&mut self, pg: PgId) {
        self.waiting.remove(&pg);
    }

    /// Returns whether the PG waits for grants to expire.
    pub(crate) fn is_waiting_for_grants(&self, pg: PgId) -> bool {
        self.waiting.contains(&pg)
    }

    fn wait_until(&mut self, until: Time) {
        self.release_at = Some(self.release_at.map_or(until, |at| at.min(until)));
    }

    /// Makes a query wait until grants have expired.
    pub(crate) fn hold_for_grants(
        &mut self,
        until: Time,
        pg: PgId,
        query: Query,
    ) -> Result<(), String> {
        self.wait_until(until);
        self.hold(pg, query).map(|_| ())
    }

    /// Makes a query wait for a family of the engine. Whoever creates it calls for [`Peers::take_held`].
    pub(crate) fn hold_for_family(&mut self, pg: PgId, query: Query) -> Result<(), String> {
        self.hold(pg, query).map(|_| ())
    }

    /// Makes a query wait for the map.
    pub(crate) fn hold_for_map(&mut self, now: Time, pg: PgId, query: Query) -> Result<(), String> {
        let epoch = query.epoch;
        if self.hold(pg, query)? {
            self.held_until.push_back((now + MAP_WAIT_MAX, pg, epoch));
        }
        Ok(())
    }

    /// Keeps a query for later. Returns true if no query of its epoch was waiting.
    fn hold(&mut self, pg: PgId, query: Query) -> Result<bool, String> {
        let held = &mut self.held;
        if held.len() >= HELD_COUNT_MAX && !held.contains_key(&pg) {
            return Err("more queries are waiting than there can be PGs".into());
        }
        if held.get(&pg).is_some_and(|before| before.epoch > query.epoch) {
            return Ok(false);
        }
        let epoch = query.epoch;
        Ok(held.insert(pg, query).is_none_or(|before| before.epoch != epoch))
    }

    /// Returns whether a grant that something waits for has expired.
    pub(crate) fn is_release_due(&self, now: Time) -> bool {
        self.release_at.is_some_and(|at| at <= now)
    }

    /// Returns the PGs that wait for grants to expire, to be reviewed again.
    pub(crate) fn take_waiting(&mut self) -> BTreeSet<PgId> {
        self.release_at = None;
        std::mem::take(&mut self.waiting)
    }

    /// Returns the waiting queries whose epoch the map has. Queries of a later epoch stay.
    pub(crate) fn take_held(&mut self, cluster: &ClusterView) -> BTreeMap<PgId, Query> {
        let (behind, released) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(pg, query)| cluster.is_behind(*pg, query.epoch));
        self.held = behind;
        released
    }

    /// Returns the connection of the next query that has waited too long for the map.
    pub(crate) fn pop_late_held(
        &mut self,
        now: Time,
        cluster: &ClusterView,
    ) -> Option<ConnectionId> {
        while let Some((_, pg, epoch)) = self.held_until.pop_front_if(|(until, ..)| *until <= now) {
            let query = self.held.get(&pg).filter(|query| query.epoch == epoch);
            if let Some(query) = query.filter(|_| cluster.is_behind(pg, epoch)) {
                return Some(query.connection);
            }
        }
        None
    }

    // ---- connections

    /// Returns whether the last query of this epoch arrived over this connection.
    pub(crate) fn is_heard_over(&self, pg: PgId, epoch: Epoch, connection: ConnectionId) -> bool {
        self.heard_over.get(&pg) == Some(&(epoch, connection))
    }

    /// Records the connection over which a query arrived.
    pub(crate) fn hear(&mut self, pg: PgId, epoch: Epoch, connection: ConnectionId) {
        self.heard_over.insert(pg, (epoch, connection));
    }

    /// Drops the waiting queries of a primary's connection that is gone.
    pub(crate) fn on_primary_gone(&mut self, connection: ConnectionId) {
        self.held.retain(|_, query| query.connection != connection);
    }

    /// Records that the members of a PG that this OSD leads were not told the map's revision.
    pub(crate) fn leave_untold(&mut self, pg: PgId) {
        self.untold.insert(pg);
    }

    /// Returns whether the members of this PG must still be told the map's revision.
    pub(crate) fn is_untold(&self, pg: PgId) -> bool {
        self.untold.contains(&pg)
    }

    /// Records that the members of this PG are being told it.
    pub(crate) fn tell(&mut self, pg: PgId) {
        self.untold.remove(&pg);
    }

    /// Records the map revision of a primary that sent a version of this pool.
    pub(crate) fn show_revision(&mut self, pool: PoolId, revision: MapRevision) {
        let shown = self.revisions_shown.entry(pool).or_default();
        *shown = revision.max(*shown);
    }

    /// Returns the highest map revision with which a version of this pool came here.
    pub(crate) fn revision_shown(&self, pool: PoolId) -> MapRevision {
        self.revisions_shown.get(&pool).copied().unwrap_or(MapRevision::ZERO)
    }

    // ---- queries of this OSD

    /// Records a query to a member. `patience`: additional time that the answer may take. A query that is
    /// repeated over another connection is given no further time.
    pub(crate) fn on_query_sent(&mut self, now: Time, query: Overdue, patience: Duration) {
        let Overdue { pg, osd, epoch } = query;
        if self.unanswered.insert((pg, osd), epoch) != Some(epoch) {
            let until = now + ANSWER_WAIT_MAX + patience;
            self.unanswered_until.push_back((until, pg, osd, epoch));
        }
    }

    /// Records that a member has answered a query: with its state, or by saying that its store has yet to
    /// finish something. How long a disk may take is judged by the disk watch of that member.
    pub(crate) fn on_query_answered(&mut self, pg: PgId, osd: OsdId) {
        self.unanswered.remove(&(pg, osd));
    }

    /// Returns the next unanswered query whose deadline has passed. The caller continues with
    /// [`Peers::wait_longer`] or [`Peers::on_query_answered`].
    pub(crate) fn pop_overdue(&mut self, now: Time) -> Option<Overdue> {
        while let Some((_, pg, osd, epoch)) =
            self.unanswered_until.pop_front_if(|(until, ..)| *until <= now)
        {
            if self.unanswered.get(&(pg, osd)) == Some(&epoch) {
                return Some(Overdue { pg, osd, epoch });
            }
        }
        None
    }

    /// Extends the wait for a member that is not connected: whether that member is down is decided elsewhere.
    pub(crate) fn wait_longer(&mut self, now: Time, query: Overdue) {
        let Overdue { pg, osd, epoch } = query;
        self.unanswered_until.push_back((now + ANSWER_WAIT_MAX, pg, osd, epoch));
    }

    // ---- needs of PGs

    /// Records that a PG needs another entry.
    pub(crate) fn need(&mut self, pg: PgId, epoch: Epoch, what: Need) {
        let need = PgNeed { pg, epoch, what };
        let known = self.needs.entry(pg).or_default();
        known.retain(|before| before.epoch == epoch);
        if !known.contains(&need) {
            known.push(need.clone());
            self.needs_new.push(need);
        }
    }

    /// Returns the needs that have not been sent to the monitor.
    pub(crate) fn take_new_needs(&mut self) -> Vec<PgNeed> {
        std::mem::take(&mut self.needs_new)
    }

    /// Returns all needs of PGs whose epochs are still current.
    pub(crate) fn needs(&mut self, cluster: &ClusterView) -> Vec<PgNeed> {
        self.needs.retain(|pg, needs| {
            let epoch = cluster.pg(*pg).map(|entry| entry.epoch);
            needs.retain(|need| epoch == Some(need.epoch));
            !needs.is_empty()
        });
        self.needs.values().flatten().cloned().collect()
    }
}

/// Returns whether a primary sends this body to members. `Stale` and `ParityDelta` count too, although
/// members also send them.
pub(crate) fn is_from_primary(body: &PeerBody) -> bool {
    match body {
        PeerBody::Query { .. }
        | PeerBody::List { .. }
        | PeerBody::Fetch { .. }
        | PeerBody::Repair { .. }
        | PeerBody::Activate { .. }
        | PeerBody::Write { .. }
        | PeerBody::Sync { .. }
        | PeerBody::Mark { .. }
        | PeerBody::Drop { .. }
        | PeerBody::Progress { .. }
        | PeerBody::Scrub { .. }
        | PeerBody::Mend { .. }
        | PeerBody::Recall { .. }
        | PeerBody::Keep { .. }
        | PeerBody::Part { .. }
        | PeerBody::Parity { .. }
        | PeerBody::Skip { .. }
        | PeerBody::ParityDelta { .. }
        | PeerBody::Forward { .. }
        | PeerBody::Batch { .. }
        | PeerBody::Page { .. }
        | PeerBody::ListHeads { .. }
        | PeerBody::ObjectForward { .. }
        | PeerBody::Gather { .. }
        | PeerBody::Stale(_) => true,
        PeerBody::Draining
        | PeerBody::State(_)
        | PeerBody::Listed { .. }
        | PeerBody::Headed { .. }
        | PeerBody::Fetched { .. }
        | PeerBody::Repaired { .. }
        | PeerBody::Gathered { .. }
        | PeerBody::Activated
        | PeerBody::Written { .. }
        | PeerBody::Delta { .. }
        | PeerBody::DeltaWanted { .. }
        | PeerBody::PartBehind { .. }
        | PeerBody::ParityLost { .. }
        | PeerBody::Synced { .. }
        | PeerBody::Noted { .. }
        | PeerBody::Scrubbed { .. }
        | PeerBody::Recalled { .. }
        | PeerBody::Tried { .. }
        | PeerBody::Failed { .. } => false,
    }
}

/// Returns whether the body is a query, to which a member replies with its state.
pub(crate) fn is_query(body: &PeerBody) -> bool {
    matches!(body, PeerBody::Query { .. })
}
