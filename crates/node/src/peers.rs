//! What waits between members of PGs, and what the monitor must be told of them.
//!
//! Invariants
//!   1. Of each PG at most one query waits: that of the highest epoch.
//!   2. What a PG needs is told until its epoch is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{ConnectionId, Duration, Epoch, OsdId, PgId, Time};
use cluster::message::{Need, PgNeed};
use format::wire::{Member, PeerBody};

use crate::cluster_view::ClusterView;

/// How long a query waits for the map of its epoch.
const MAP_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a connected member may take to answer a query before the monitor is told. Longer than the
/// member's wait for the map, and with time for all operations of its store to end: a slow disk is no
/// reason to take it out. The time for leases that the member must wait out is added.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// Most queries that wait: one for each PG of the largest pool.
const HELD_COUNT_MAX: usize = 1 << 16;

/// What waits between members, and what the monitor must be told of them.
#[derive(Default)]
pub(crate) struct Peers {
    /// Queries that wait for the map, or until grants have run out.
    held: BTreeMap<PgId, Query>,
    /// Of queries that came before the map, oldest first: until when they wait.
    held_until: VecDeque<(Time, PgId, Epoch)>,
    /// The epoch and the connection of the last query of each PG. All other messages of the epoch must come
    /// over the same connection: only there they stay in order.
    heard_over: BTreeMap<PgId, (Epoch, ConnectionId)>,
    /// Unanswered queries of this OSD, and their epochs.
    unanswered: BTreeMap<(PgId, OsdId), Epoch>,
    /// Of those, oldest first: until when an answer is awaited.
    unanswered_until: VecDeque<(Time, PgId, OsdId, Epoch)>,
    /// PGs that this OSD is to lead, once its grants to earlier primaries have run out.
    waiting: BTreeSet<PgId>,
    /// When the next grant that something waits for runs out.
    release_at: Option<Time>,
    /// What PGs need, which the monitor must know until their epochs are over.
    needs: BTreeMap<PgId, Vec<PgNeed>>,
    /// Those of them that the monitor was not told yet.
    needs_new: Vec<PgNeed>,
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
    /// When something is to be done if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let held = self.held_until.front().map(|(until, ..)| *until);
        let unanswered = self.unanswered_until.front().map(|(until, ..)| *until);
        [held, unanswered, self.release_at].into_iter().flatten().min()
    }

    // ---- what waits for grants or the map

    /// A PG is to be led once this OSD's grants to its earlier primaries have run out.
    pub(crate) fn wait_for_grants(&mut self, pg: PgId, until: Time) {
        self.wait_until(until);
        self.waiting.insert(pg);
    }

    /// A PG no longer waits for grants to run out.
    pub(crate) fn stop_waiting(&mut self, pg: PgId) {
        self.waiting.remove(&pg);
    }

    /// Whether the PG waits until grants have run out.
    pub(crate) fn is_waiting_for_grants(&self, pg: PgId) -> bool {
        self.waiting.contains(&pg)
    }

    fn wait_until(&mut self, until: Time) {
        self.release_at = Some(self.release_at.map_or(until, |at| at.min(until)));
    }

    /// A query waits until grants have run out.
    pub(crate) fn hold_for_grants(
        &mut self,
        until: Time,
        pg: PgId,
        query: Query,
    ) -> Result<(), String> {
        self.wait_until(until);
        self.hold(pg, query).map(|_| ())
    }

    /// A query waits for the map.
    pub(crate) fn hold_for_map(&mut self, now: Time, pg: PgId, query: Query) -> Result<(), String> {
        let epoch = query.epoch;
        if self.hold(pg, query)? {
            self.held_until.push_back((now + MAP_WAIT_MAX, pg, epoch));
        }
        Ok(())
    }

    /// Keeps a query for later; true if there was none of its epoch.
    fn hold(&mut self, pg: PgId, query: Query) -> Result<bool, String> {
        let held = &mut self.held;
        if held.len() >= HELD_COUNT_MAX && !held.contains_key(&pg) {
            return Err("more queries wait than there can be PGs".into());
        }
        if held.get(&pg).is_some_and(|before| before.epoch > query.epoch) {
            return Ok(false);
        }
        let epoch = query.epoch;
        Ok(held.insert(pg, query).is_none_or(|before| before.epoch != epoch))
    }

    /// Whether grants have run out for which something waits.
    pub(crate) fn is_release_due(&self, now: Time) -> bool {
        self.release_at.is_some_and(|at| at <= now)
    }

    /// PGs that wait for grants to run out, to be looked at again.
    pub(crate) fn take_waiting(&mut self) -> BTreeSet<PgId> {
        self.release_at = None;
        std::mem::take(&mut self.waiting)
    }

    /// Queries whose epoch the map has. Those of a later epoch stay.
    pub(crate) fn take_held(&mut self, cluster: &ClusterView) -> BTreeMap<PgId, Query> {
        let (behind, released) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(pg, query)| cluster.is_behind(*pg, query.epoch));
        self.held = behind;
        released
    }

    /// The connection of the next query that has waited too long for the map.
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

    /// Whether the last query of this epoch was heard over this connection.
    pub(crate) fn is_heard_over(&self, pg: PgId, epoch: Epoch, connection: ConnectionId) -> bool {
        self.heard_over.get(&pg) == Some(&(epoch, connection))
    }

    /// A query was heard.
    pub(crate) fn hear(&mut self, pg: PgId, epoch: Epoch, connection: ConnectionId) {
        self.heard_over.insert(pg, (epoch, connection));
    }

    /// A primary's connection is gone, and what waited of it.
    pub(crate) fn on_primary_gone(&mut self, connection: ConnectionId) {
        self.held.retain(|_, query| query.connection != connection);
    }

    // ---- queries of this OSD

    /// A PG asks a member to state itself; `patience`: how long that may take. Asked again over
    /// another connection it has no more time.
    pub(crate) fn on_query_sent(&mut self, now: Time, query: Overdue, patience: Duration) {
        let Overdue { pg, osd, epoch } = query;
        if self.unanswered.insert((pg, osd), epoch) != Some(epoch) {
            let until = now + ANSWER_WAIT_MAX + patience;
            self.unanswered_until.push_back((until, pg, osd, epoch));
        }
    }

    /// A member stated itself.
    pub(crate) fn on_state(&mut self, pg: PgId, osd: OsdId) {
        self.unanswered.remove(&(pg, osd));
    }

    /// The next query without an answer whose time is over. Goes on with [`Peers::wait_longer`] or
    /// [`Peers::on_state`].
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

    /// The member is away, which others judge: its answer is awaited for longer.
    pub(crate) fn wait_longer(&mut self, now: Time, query: Overdue) {
        let Overdue { pg, osd, epoch } = query;
        self.unanswered_until.push_back((now + ANSWER_WAIT_MAX, pg, osd, epoch));
    }

    // ---- what PGs need

    /// A PG needs another entry.
    pub(crate) fn need(&mut self, pg: PgId, epoch: Epoch, what: Need) {
        let need = PgNeed { pg, epoch, what };
        let known = self.needs.entry(pg).or_default();
        known.retain(|before| before.epoch == epoch);
        if !known.contains(&need) {
            known.push(need.clone());
            self.needs_new.push(need);
        }
    }

    /// What PGs need that the monitor was not told.
    pub(crate) fn take_new_needs(&mut self) -> Vec<PgNeed> {
        std::mem::take(&mut self.needs_new)
    }

    /// All that PGs need in epochs that are not over.
    pub(crate) fn needs(&mut self, cluster: &ClusterView) -> Vec<PgNeed> {
        self.needs.retain(|pg, needs| {
            let epoch = cluster.pg(*pg).map(|entry| entry.epoch);
            needs.retain(|need| epoch == Some(need.epoch));
            !needs.is_empty()
        });
        self.needs.values().flatten().cloned().collect()
    }
}

/// Whether the body is one that a primary says to members; `Stale` may come from both.
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
        | PeerBody::Stale(_) => true,
        PeerBody::State(_)
        | PeerBody::Listed { .. }
        | PeerBody::Fetched { .. }
        | PeerBody::Repaired { .. }
        | PeerBody::Activated
        | PeerBody::Written { .. }
        | PeerBody::Synced { .. }
        | PeerBody::Noted { .. }
        | PeerBody::Failed { .. } => false,
    }
}

/// Whether the body asks a member to state itself.
pub(crate) fn is_query(body: &PeerBody) -> bool {
    matches!(body, PeerBody::Query { .. })
}
