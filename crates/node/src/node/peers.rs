//! Messages between members of PGs: which of them are accepted, and when they are handled.
//!
//! Invariants
//!   1. A PG handles only messages of its current epoch, and only from its primary or its members, in exactly
//!      the runs that the entry lists.
//!   2. A query is answered only when no earlier primary may serve under a grant of this OSD.
//!   3. A message that violates the protocol closes its connection and has no other effect.

use base::planted::{self, Bug};
use base::{ConnectionId, Epoch, Time, TraceEvent};
use cluster::message::{Need, ToMonitor};
use format::wire::{Member, PeerBody, PeerMessage, PgEntry};

use super::Node;
use crate::peer_connections::send_peer;
use crate::peers::{Overdue, Query, is_from_primary, is_query};
use crate::pg_table::PgSlot;
use crate::report::why_idle;
use crate::{Effect, lines};

impl Node {
    /// Handles a message over a connection that its sender opened, so the sender is the primary of the
    /// PG. The error says how the message violates the protocol.
    pub(super) fn on_primary_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        primary: Member,
        message: PeerMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        if let PeerBody::Stale(newest) = body {
            self.on_newer_entry(&newest, effects);
            return Ok(());
        }
        if !is_from_primary(&body) {
            return Err("an unsolicited answer".into());
        }
        let is_query = is_query(&body);
        let Some(entry) = self.cluster.pg(pg) else {
            // The map with this PG has not arrived yet, or the pool has already been removed.
            let query = Query { connection, primary, epoch, body };
            return if is_query { self.peers.hold_for_map(now, pg, query) } else { Ok(()) };
        };
        if epoch < entry.epoch {
            let body = PeerBody::Stale(entry.clone());
            send_peer(connection, PeerMessage { pg, epoch, body }, effects);
            return Ok(());
        }
        if epoch > entry.epoch && is_query {
            let query = Query { connection, primary, epoch, body };
            return self.peers.hold_for_map(now, pg, query);
        }
        if epoch > entry.epoch {
            return Err("the sender uses an epoch that this OSD has not entered".into());
        }
        if entry.primary_member() != Some(primary) {
            return Err(format!("the sender is not the primary of {pg}"));
        }
        let Some(slot) = self.pgs.slot(pg) else {
            return Err(format!("this OSD is not a member of {pg}"));
        };
        if is_query && self.awaits_family(pg.pool) {
            // That takes a moment, and is no reason to go on without this OSD.
            let query = Query { connection, primary, epoch, body };
            return self.peers.hold_for_family(pg, query);
        }
        if self.pgs[slot].entry().is_none() {
            // This OSD cannot take part in the PG; send the reason to the primary.
            return if is_query { self.decline(slot, connection, epoch, effects) } else { Ok(()) };
        }
        assert!(self.pgs[slot].entry().is_some_and(|entered| entered.epoch == epoch));
        if !is_query && !self.peers.is_heard_over(pg, epoch, connection) {
            return Err("the message came over a different connection than the query".into());
        }
        let revoked_until = self.leases.is_revoked_until(now, entry);
        if let Some(until) = revoked_until.filter(|_| is_query)
            && !planted::on(Bug::QueryAnsweredBeforeGrantsEnd)
        {
            let query = Query { connection, primary, epoch, body };
            return self.peers.hold_for_grants(until, pg, query);
        }
        if is_query {
            self.peers.hear(pg, epoch, connection);
        }
        if let PeerBody::Part { revision, .. } | PeerBody::Skip { revision, .. } = &body {
            self.peers.show_revision(pg.pool, *revision);
        }
        if !self.may_take_copy(now, slot, &body) {
            self.drive(now, slot, effects, |pg, actions| pg.refuse_copy(actions));
            return Ok(());
        }
        self.drive(now, slot, effects, |pg, actions| pg.peer_said(primary.osd, body, actions))
    }

    /// Handles a message over a connection that an acting member with a data part opened: a difference. One
    /// of another epoch is dropped. The error says how the message violates the protocol.
    pub(super) fn on_data_member_message(
        &mut self,
        now: Time,
        sender: Member,
        message: PeerMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        let Some(slot) = self.pgs.slot(pg) else { return Ok(()) };
        let Some(entry) = self.pgs[slot].entry().filter(|entry| entry.epoch == epoch) else {
            return Ok(());
        };
        if self.cluster.is_primary(entry) || entry.acting_member(sender.osd) != Some(sender) {
            return Err(format!("the sender does not send differences of {pg} to this OSD"));
        }
        self.drive(now, slot, effects, |pg, actions| pg.peer_said(sender.osd, body, actions))
    }

    /// Handles a message from a member of a PG that this OSD leads.
    pub(super) fn on_follower_message(
        &mut self,
        now: Time,
        follower: Member,
        message: PeerMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        if let PeerBody::Stale(newest) = body {
            self.on_newer_entry(&newest, effects);
            return Ok(());
        }
        if is_from_primary(&body) && !matches!(body, PeerBody::ParityDelta { .. }) {
            return Err("only a primary may send this message".into());
        }
        // A reply of an old epoch, sent while the map was changing, is ignored.
        let Some(slot) = self.pgs.slot(pg) else { return Ok(()) };
        let Some(entry) = self.pgs[slot].entry().filter(|entry| entry.epoch == epoch) else {
            return Ok(());
        };
        if !self.cluster.leads(entry) || !entry.members().any(|member| *member == follower) {
            return Err(format!("the sender is not a member of {pg}"));
        }
        if matches!(body, PeerBody::State(_) | PeerBody::Draining) {
            self.peers.on_query_answered(pg, follower.osd);
        }
        self.drive(now, slot, effects, |pg, actions| pg.peer_said(follower.osd, body, actions))
    }

    /// Sends the primary the reason why this OSD cannot take part in the epoch.
    fn decline(
        &mut self,
        slot: PgSlot,
        connection: ConnectionId,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let pg = self.pgs[slot].id();
        let body = PeerBody::Failed { why: why_idle(&self.pgs[slot]) };
        send_peer(connection, PeerMessage { pg, epoch, body }, effects);
        Ok(())
    }

    /// Resumes PGs and queries that waited for the map, for grants to expire or for a family, if they need
    /// not wait any longer.
    pub(super) fn release(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for pg in self.peers.take_waiting() {
            self.review(now, pg, effects);
        }
        for (pg, query) in self.peers.take_held(&self.cluster) {
            let Query { connection, primary, epoch, body } = query;
            let message = PeerMessage { pg, epoch, body };
            if self.on_primary_message(now, connection, primary, message, effects).is_err() {
                self.hang_up(now, connection, effects);
            }
        }
    }

    /// Resumes PGs and queries that waited for grants that have now expired, and handles overdue queries.
    pub(super) fn tick_peers(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.peers.is_release_due(now) {
            self.release(now, effects);
        }
        while let Some(connection) = self.peers.pop_late_held(now, &self.cluster) {
            self.on_map_behind(effects);
            self.hang_up(now, connection, effects);
        }
        while let Some(query) = self.peers.pop_overdue(now) {
            let Overdue { pg, osd, epoch } = query;
            let entry = self.cluster.pg(pg).filter(|entry| entry.epoch == epoch);
            let member = entry.and_then(|entry| entry.members().find(|known| known.osd == osd));
            let Some(member) = member.copied() else {
                self.peers.on_query_answered(pg, osd);
                continue;
            };
            if self.peer_connections.to_follower(member).is_none() {
                self.peers.wait_longer(now, query);
                continue;
            }
            self.peers.on_query_answered(pg, osd);
            let why = "the OSD is connected but does not answer";
            self.peers.need(pg, epoch, Need::Failed(member, why.into()));
        }
    }

    /// Handles a new connection to a member: PGs that wait for it may query it.
    pub(super) fn on_follower_connected(
        &mut self,
        now: Time,
        member: Member,
        effects: &mut Vec<Effect>,
    ) {
        let event = TraceEvent::debug("connected to a member").with("member", member.osd);
        effects.push(Effect::Trace(event));
        for slot in self.slots_led_with(member) {
            self.drive(now, slot, effects, |pg, actions| pg.peer_ready(member.osd, actions));
        }
    }

    /// Handles the loss of the connection to a member.
    pub(super) fn on_follower_gone(
        &mut self,
        now: Time,
        member: Member,
        effects: &mut Vec<Effect>,
    ) {
        let event = TraceEvent::debug("the connection to a member is gone");
        effects.push(Effect::Trace(event.with("member", member.osd)));
        for slot in self.slots_led_with(member) {
            self.drive(now, slot, effects, |pg, actions| pg.peer_lost(member.osd, actions));
        }
    }

    /// Returns the PGs whose current epoch this OSD leads and in which this member takes part.
    fn slots_led_with(&self, member: Member) -> Vec<PgSlot> {
        let is_led_with = |entry: &PgEntry| {
            self.cluster.leads(entry) && entry.members().any(|known| *known == member)
        };
        let led = self.pgs.iter().filter(|(_, pg)| pg.entry().is_some_and(is_led_with));
        led.map(|(slot, _)| slot).collect()
    }

    /// Handles an entry that a peer sent. If it is newer than this OSD's map, requests the map.
    fn on_newer_entry(&mut self, newest: &PgEntry, effects: &mut Vec<Effect>) {
        if self.cluster.is_behind(newest.pg, newest.epoch) {
            self.on_map_behind(effects);
        }
    }

    /// Requests the map from the monitor, because a peer has a newer one; at most once between two
    /// reports.
    pub(super) fn on_map_behind(&mut self, effects: &mut Vec<Effect>) {
        if self.cluster.ask_once() {
            self.subscribe(effects);
        }
    }

    /// Sends the monitor the needs of PGs that have arisen since the last call.
    pub(super) fn tell_new_needs(&mut self, effects: &mut Vec<Effect>) {
        let needs = self.peers.take_new_needs();
        if !needs.is_empty() {
            lines::trace_needs(&self.pgs, &needs, effects);
            self.tell_monitor(&ToMonitor::PgNeeds { needs }, effects);
        }
    }

    /// Sends the monitor again all needs of PGs whose epochs are still current.
    pub(super) fn tell_needs_again(&mut self, effects: &mut Vec<Effect>) {
        let needs = self.peers.needs(&self.cluster);
        let new = self.peers.take_new_needs();
        lines::trace_needs(&self.pgs, &new, effects);
        if !needs.is_empty() {
            self.tell_monitor(&ToMonitor::PgNeeds { needs }, effects);
        }
    }
}
