//! What members of PGs say to each other: who may say it, and when it is heard.
//!
//! Invariants
//!   1. A PG hears only messages of the epoch that it is in, from its primary or its members, in
//!      the very runs that the entry names.
//!   2. A query is answered only when no earlier primary may serve by a grant of this OSD.
//!   3. A peer that says what no peer of ours says is hung up on; never more than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::planted::{self, Bug};
use base::{ConnectionId, Duration, Epoch, OsdId, PgId, Time, TraceEvent};
use cluster::message::{Need, PgNeed, ToMonitor};
use format::wire::{Member, PeerBody, PeerMessage, PgEntry};

use crate::Effect;
use crate::leases::giver_span;
use crate::node::Node;
use crate::peer_connections::send_peer;

/// How long a query waits for the map that its sender acts on.
const MAP_WAIT_MAX: Duration = Duration::from_secs(1);
/// A member that has a connection and does not answer a query for so long does not follow. It is
/// longer than its wait for the map, for it answers when all that its store was given has ended:
/// a slow disk is no reason to take it out. What it may have to wait out of leases comes on top.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// Most queries that wait: one for each PG of the largest pool.
const HELD_COUNT_MAX: usize = 1 << 16;

/// What waits between members, and what the monitor must be told of them.
#[derive(Default)]
pub struct Peers {
    /// Queries that wait for the map, or until grants have run out.
    held: BTreeMap<PgId, Query>,
    /// Of those that came before the map, oldest first: until when they wait.
    held_until: VecDeque<(Time, PgId, Epoch)>,
    /// The last query of each PG that was heard: its epoch, and its connection. What else belongs to
    /// the epoch comes over the same one, for only there messages stay in order.
    heard_over: BTreeMap<PgId, (Epoch, ConnectionId)>,
    /// Queries of ours without an answer, and the epochs they are of.
    unanswered: BTreeMap<(PgId, OsdId), Epoch>,
    /// Of those, oldest first: until when an answer is awaited.
    unanswered_until: VecDeque<(Time, PgId, OsdId, Epoch)>,
    /// PGs that this OSD is to lead, once its grants to earlier primaries have run out.
    pub waiting: BTreeSet<PgId>,
    /// When the next grant that something waits for runs out.
    release_at: Option<Time>,
    /// What the monitor must know until the epochs are over.
    needs: BTreeMap<PgId, Vec<PgNeed>>,
    /// Of them those that it was not told yet.
    needs_new: Vec<PgNeed>,
}

/// A primary's query.
struct Query {
    connection: ConnectionId,
    primary: Member,
    epoch: Epoch,
    body: PeerBody,
}

impl Peers {
    /// When something is to be done if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        let held = self.held_until.front().map(|(until, ..)| *until);
        let unanswered = self.unanswered_until.front().map(|(until, ..)| *until);
        [held, unanswered, self.release_at].into_iter().flatten().min()
    }

    /// A primary's connection is gone, and what waited of it.
    pub fn primary_left(&mut self, connection: ConnectionId) {
        self.held.retain(|_, query| query.connection != connection);
    }

    /// Something waits until this grant has run out.
    pub fn wait_until(&mut self, until: Time) {
        self.release_at = Some(self.release_at.map_or(until, |at| at.min(until)));
    }
}

/// Whether the body is one that a primary says to members; `Stale` may come from both.
fn is_from_primary(body: &PeerBody) -> bool {
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

impl Node {
    /// A message came over a connection that its sender opened: it leads the PG. The error tells
    /// what no peer of ours does.
    pub(crate) fn primary_said(
        &mut self,
        now: Time,
        connection: ConnectionId,
        primary: Member,
        message: PeerMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        if let PeerBody::Stale(newest) = body {
            self.heard_of(&newest, effects);
            return Ok(());
        }
        if !is_from_primary(&body) {
            return Err("an answer that nobody asked for".into());
        }
        let is_query = matches!(body, PeerBody::Query { .. });
        let Some(entry) = self.map.pg(pg) else {
            // The map with it is on its way, or the pool is gone already.
            let query = Query { connection, primary, epoch, body };
            return if is_query { self.hold_for_map(now, pg, query) } else { Ok(()) };
        };
        if epoch < entry.epoch {
            let body = PeerBody::Stale(entry.clone());
            send_peer(connection, PeerMessage { pg, epoch, body }, effects);
            return Ok(());
        }
        if epoch > entry.epoch && is_query {
            let query = Query { connection, primary, epoch, body };
            return self.hold_for_map(now, pg, query);
        }
        if epoch > entry.epoch {
            return Err("it goes on in an epoch that this OSD has not begun".into());
        }
        if entry.primary_member() != Some(primary) {
            return Err(format!("it does not lead {pg}"));
        }
        let Some(slot) = self.pg_slots.get(&pg).copied() else {
            return Err(format!("this OSD has no part in {pg}"));
        };
        if self.pgs[slot].entry().is_none() {
            // Something keeps this OSD from its part: the primary may know what.
            return if is_query { self.decline(slot, connection, epoch, effects) } else { Ok(()) };
        }
        let is_other = self.peers.heard_over.get(&pg) != Some(&(epoch, connection));
        if is_other && !is_query {
            return Err("it goes on over another connection than that of its query".into());
        }
        let revoked_until = self.leases.is_revoked_until(now, entry);
        if let Some(until) = revoked_until.filter(|_| is_query)
            && !planted::on(Bug::QueryAnsweredBeforeGrantsEnd)
        {
            self.peers.wait_until(until);
            self.hold(pg, Query { connection, primary, epoch, body })?;
            return Ok(());
        }
        if is_query {
            self.peers.heard_over.insert(pg, (epoch, connection));
        }
        if !self.may_take_copy(now, slot, &body) {
            self.pgs[slot].refuse_copy(&mut self.actions);
            self.carry_out(now, slot, effects);
            return Ok(());
        }
        let result = self.pgs[slot].peer_said(primary.osd, body, &mut self.actions);
        self.carry_out(now, slot, effects);
        result
    }

    /// A member of a PG that this OSD leads said something.
    pub(crate) fn follower_said(
        &mut self,
        now: Time,
        follower: Member,
        message: PeerMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        if let PeerBody::Stale(newest) = body {
            self.heard_of(&newest, effects);
            return Ok(());
        }
        if is_from_primary(&body) {
            return Err("only a primary says this".into());
        }
        // An answer of an epoch that is over: it is on its way while the map changes.
        let Some(slot) = self.pg_slots.get(&pg).copied() else { return Ok(()) };
        let Some(entry) = self.pgs[slot].entry().filter(|entry| entry.epoch == epoch) else {
            return Ok(());
        };
        if !self.leads(entry) || !entry.members().any(|member| *member == follower) {
            return Err(format!("it has no part in {pg}"));
        }
        if matches!(body, PeerBody::State(_)) {
            self.peers.unanswered.remove(&(pg, follower.osd));
        }
        let result = self.pgs[slot].peer_said(follower.osd, body, &mut self.actions);
        self.carry_out(now, slot, effects);
        result
    }

    /// Tells the primary why this OSD cannot take its part in the epoch.
    fn decline(
        &mut self,
        slot: usize,
        connection: ConnectionId,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let pg = self.pgs[slot].id();
        let body = PeerBody::Failed { why: self.why_idle(slot) };
        send_peer(connection, PeerMessage { pg, epoch, body }, effects);
        Ok(())
    }

    /// A query waits for the map.
    fn hold_for_map(&mut self, now: Time, pg: PgId, query: Query) -> Result<(), String> {
        let epoch = query.epoch;
        if self.hold(pg, query)? {
            self.peers.held_until.push_back((now + MAP_WAIT_MAX, pg, epoch));
        }
        Ok(())
    }

    /// Keeps a query for later; true if there was none of its epoch.
    fn hold(&mut self, pg: PgId, query: Query) -> Result<bool, String> {
        let held = &mut self.peers.held;
        if held.len() >= HELD_COUNT_MAX && !held.contains_key(&pg) {
            return Err("more queries wait than there can be PGs".into());
        }
        if held.get(&pg).is_some_and(|before| before.epoch > query.epoch) {
            return Ok(false);
        }
        let epoch = query.epoch;
        Ok(held.insert(pg, query).is_none_or(|before| before.epoch != epoch))
    }

    /// Goes on with what waited for the map, or for grants to run out, as far as it may.
    pub(crate) fn release(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.peers.release_at = None;
        for pg in std::mem::take(&mut self.peers.waiting) {
            self.review(now, pg, effects);
        }
        for (pg, query) in std::mem::take(&mut self.peers.held) {
            let Query { connection, primary, epoch, body } = query;
            let is_behind = self.map.pg(pg).is_none_or(|entry| entry.epoch < epoch);
            if is_behind {
                // Its wait goes on.
                self.peers.held.insert(pg, Query { connection, primary, epoch, body });
                continue;
            }
            let message = PeerMessage { pg, epoch, body };
            if self.primary_said(now, connection, primary, message, effects).is_err() {
                self.hang_up(now, connection, effects);
            }
        }
    }

    /// A PG asked a member to state itself.
    pub(crate) fn query_sent(&mut self, now: Time, entry: &PgEntry, to: OsdId) {
        let (pg, epoch) = (entry.pg, entry.epoch);
        if self.peers.unanswered.insert((pg, to), epoch) == Some(epoch) {
            // Asked again over another connection: it has no more time.
            return;
        }
        let until = now + ANSWER_WAIT_MAX + giver_span(self.lease_span());
        self.peers.unanswered_until.push_back((until, pg, to, epoch));
    }

    /// What the deadline of [`Peers`] asked for.
    pub(crate) fn tick_peers(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.peers.release_at.is_some_and(|at| at <= now) {
            self.release(now, effects);
        }
        let is_over = |until: &Time| *until <= now;
        while self.peers.held_until.front().is_some_and(|(until, ..)| is_over(until)) {
            let (_, pg, epoch) = self.peers.held_until.pop_front().expect("just seen");
            let is_behind = self.map.pg(pg).is_none_or(|entry| entry.epoch < epoch);
            let query = self.peers.held.get(&pg).filter(|query| is_behind && query.epoch == epoch);
            if let Some(connection) = query.map(|query| query.connection) {
                self.map_is_behind(effects);
                self.hang_up(now, connection, effects);
            }
        }
        while self.peers.unanswered_until.front().is_some_and(|(until, ..)| is_over(until)) {
            let (_, pg, osd, epoch) = self.peers.unanswered_until.pop_front().expect("just seen");
            if self.peers.unanswered.get(&(pg, osd)) != Some(&epoch) {
                continue;
            }
            let entry = self.map.pg(pg).filter(|entry| entry.epoch == epoch);
            let member = entry.and_then(|entry| entry.members().find(|known| known.osd == osd));
            let Some(member) = member.copied() else {
                self.peers.unanswered.remove(&(pg, osd));
                continue;
            };
            if self.peer_connections.to_follower(member).is_none() {
                // It is away, which others judge.
                let until = now + ANSWER_WAIT_MAX;
                self.peers.unanswered_until.push_back((until, pg, osd, epoch));
                continue;
            }
            self.peers.unanswered.remove(&(pg, osd));
            let why = "it does not follow: it has a connection, and does not answer";
            self.need(pg, epoch, Need::Failed(member, why.into()));
        }
    }

    /// There is a connection to a member now: the PGs that wait for it may ask it.
    pub(crate) fn follower_ready(&mut self, now: Time, member: Member, effects: &mut Vec<Effect>) {
        let event = TraceEvent::debug("connected to a member").with("member", member.osd);
        effects.push(Effect::Trace(event));
        for slot in self.slots_led_with(member) {
            self.pgs[slot].peer_ready(member.osd, &mut self.actions);
            self.carry_out(now, slot, effects);
        }
    }

    /// The connection to a member is gone.
    pub(crate) fn follower_lost(&mut self, now: Time, member: Member, effects: &mut Vec<Effect>) {
        let event = TraceEvent::debug("the connection to a member is gone");
        effects.push(Effect::Trace(event.with("member", member.osd)));
        for slot in self.slots_led_with(member) {
            self.pgs[slot].peer_lost(member.osd, &mut self.actions);
            self.carry_out(now, slot, effects);
        }
    }

    /// PGs in an epoch that this OSD leads, with this member.
    fn slots_led_with(&self, member: Member) -> Vec<usize> {
        let is_one =
            |entry: &PgEntry| self.leads(entry) && entry.members().any(|known| *known == member);
        let slots = self.pgs.iter().enumerate();
        slots.filter(|(_, pg)| pg.entry().is_some_and(is_one)).map(|(slot, _)| slot).collect()
    }

    /// A peer names an entry: if it is newer than the map, the map is behind.
    fn heard_of(&mut self, newest: &PgEntry, effects: &mut Vec<Effect>) {
        let known = self.map.pg(newest.pg);
        if known.is_none_or(|known| known.epoch < newest.epoch) {
            self.map_is_behind(effects);
        }
    }

    /// Somebody knows more of the map: asks for it, once between two reports.
    pub(crate) fn map_is_behind(&mut self, effects: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.gap_was_told, true) {
            self.subscribe(effects);
        }
    }

    /// A PG needs another entry.
    pub(crate) fn need(&mut self, pg: PgId, epoch: Epoch, what: Need) {
        let need = PgNeed { pg, epoch, what };
        let known = self.peers.needs.entry(pg).or_default();
        known.retain(|before| before.epoch == epoch);
        if !known.contains(&need) {
            known.push(need.clone());
            self.peers.needs_new.push(need);
        }
    }

    /// Tells the monitor what PGs need since it was told last.
    pub(crate) fn tell_new_needs(&mut self, effects: &mut Vec<Effect>) {
        if !self.peers.needs_new.is_empty() {
            let needs = std::mem::take(&mut self.peers.needs_new);
            self.trace_needs(&needs, effects);
            self.tell_monitor(&ToMonitor::PgNeeds { needs }, effects);
        }
    }

    /// Tells the monitor again what PGs need in epochs that are not over.
    pub(crate) fn tell_needs_again(&mut self, effects: &mut Vec<Effect>) {
        let map = &self.map;
        self.peers.needs.retain(|pg, needs| {
            needs.retain(|need| map.pg(*pg).is_some_and(|entry| entry.epoch == need.epoch));
            !needs.is_empty()
        });
        let needs: Vec<PgNeed> = self.peers.needs.values().flatten().cloned().collect();
        let new = std::mem::take(&mut self.peers.needs_new);
        self.trace_needs(&new, effects);
        if !needs.is_empty() {
            self.tell_monitor(&ToMonitor::PgNeeds { needs }, effects);
        }
    }
}
