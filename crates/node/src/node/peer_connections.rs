//! Handles the events of connections with other OSDs, and the messages between givers and holders of leases.

use std::collections::BTreeMap;

use base::Incarnation;
use base::{ConnectionId, OsdId, Time, TraceEvent};
use cluster::message::{ToMonitor, Unreachable};
use format::door::{NetEffect, Peer, Role};
use format::wire::{
    LeaseMessage, Member, Message, PeerBody, PeerMessage, PgEntry, REVISION_COUNT_MAX, RoomClaim,
    RoomOffer,
};

use pg::{Charge, Delta};

use super::Node;
use crate::leases::{Grant, giver_span, renew_every};
use crate::peer_connections::{Gone, Purpose, Wanted, send_peer};
use crate::space_credits::{Claim, Claims, Offer, Offers};
use crate::{Effect, lines};

impl Node {
    /// Handles a connection that another OSD opened.
    pub(super) fn on_osd_accepted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Member,
        effects: &mut Vec<Effect>,
    ) {
        let is_known_older =
            self.cluster.osd(peer.osd).is_some_and(|osd| peer.incarnation < osd.incarnation);
        let has_joined = self.cluster.me().is_some() && peer.incarnation > Incarnation::ZERO;
        if !has_joined || peer.osd == self.identity.osd || is_known_older {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            return;
        }
        if let Some(oldest) = self.peer_connections.on_accepted(connection, peer) {
            self.hang_up(now, oldest, effects);
        }
    }

    /// Handles a completed handshake on a connection that this OSD opened to another OSD.
    pub(super) fn on_osd_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (peer, version): (Peer, u16),
        effects: &mut Vec<Effect>,
    ) {
        let Some((member, purpose)) = self.peer_connections.outgoing(connection) else { return };
        let wanted = Role::Osd(member.osd, member.incarnation);
        if peer.cluster != self.identity.cluster || peer.role != wanted {
            // This is another run of the OSD: either the map with this run has not arrived yet, or this run
            // is already out of date.
            return self.hang_up(now, connection, effects);
        }
        self.peer_connections.on_connected(now, member.osd, purpose, version);
        match purpose {
            Purpose::Data => self.on_follower_connected(now, member, effects),
            Purpose::Delta => {}
            Purpose::Lease => {
                self.leases.on_connected(member);
                let is_split = self.peer_connections.splits_credit(member.osd);
                self.space_credits.on_connected(member, is_split);
                self.renew(now, member.osd, true, effects);
            }
        }
    }

    /// Handles the loss of a connection with an OSD.
    pub(super) fn on_osd_closed(
        &mut self,
        now: Time,
        connection: ConnectionId,
        refused: bool,
        effects: &mut Vec<Effect>,
    ) {
        match self.peer_connections.on_closed(now, connection, refused) {
            Gone::Unknown => {}
            Gone::Incoming => self.peers.on_primary_gone(connection),
            Gone::Delta => self.connect_due(now, effects),
            Gone::Outgoing { member, carried_data, is_refused } => {
                if is_refused {
                    self.tell_unreachable(now, member.osd, Unreachable::Refused, effects);
                }
                if carried_data {
                    self.on_follower_gone(now, member, effects);
                }
                self.connect_due(now, effects);
            }
        }
    }

    /// Handles a message received over a connection with an OSD.
    pub(super) fn on_osd_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let result: Result<(), String> = match (self.peer_connections.outgoing(connection), message)
        {
            (Some((member, Purpose::Data)), Message::Peer(message)) => {
                self.on_follower_message(now, member, *message, effects)
            }
            (Some((member, Purpose::Lease)), Message::Lease(message)) => {
                self.on_giver_message(now, member, *message, effects)
            }
            (None, Message::Peer(message))
                if self.peer_connections.carries_deltas(connection, &message.body) =>
            {
                self.decide(now, connection, Purpose::Delta, effects)
                    .and_then(|member| self.on_data_member_message(now, member, *message, effects))
            }
            (None, Message::Peer(message)) => {
                self.decide(now, connection, Purpose::Data, effects).and_then(|primary| {
                    self.on_primary_message(now, connection, primary, *message, effects)
                })
            }
            (None, Message::Lease(message)) => {
                self.decide(now, connection, Purpose::Lease, effects).and_then(|holder| {
                    self.on_holder_message(now, connection, holder, *message, effects)
                })
            }
            _ => Err("this message is not allowed on this connection".into()),
        };
        // A protocol violation closes the connection.
        if let Err(why) = result {
            let event = TraceEvent::warn("an OSD violated the protocol: its connection is closed");
            effects.push(Effect::Trace(event.with("why", why)));
            self.hang_up(now, connection, effects);
        }
    }

    /// Records the purpose of an incoming connection, which its first message decides. Returns its peer,
    /// or an error if this message is for another purpose.
    fn decide(
        &mut self,
        now: Time,
        connection: ConnectionId,
        purpose: Purpose,
        effects: &mut Vec<Effect>,
    ) -> Result<Member, String> {
        let (peer, before) = self.peer_connections.decide(connection, purpose)?;
        if let Some(before) = before {
            self.hang_up(now, before, effects);
        }
        Ok(peer)
    }

    /// Updates the connections to match the map.
    pub(super) fn update_connections(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let wanted = self.wanted_followers();
        for osd in self.peer_connections.on_members(now, &wanted) {
            self.leave_follower(now, osd, effects);
        }
        let me = self.identity.osd;
        for member in self.peer_connections.follow(now, wanted, &self.cluster, me) {
            // What was promised when this OSD last led a PG with the member is over.
            let is_split = self.peer_connections.splits_credit(member.osd);
            self.space_credits.on_led(member, is_split);
            self.renew(now, member.osd, true, effects);
        }
        for connection in self.peer_connections.of_earlier_runs(&self.cluster) {
            self.hang_up(now, connection, effects);
        }
        self.peer_connections.expect_primaries(now, &self.cluster);
        let wanted = self.cluster.delta_receivers();
        for connection in self.peer_connections.leave_delta_receivers(&wanted) {
            self.hang_up(now, connection, effects);
        }
        self.peer_connections.follow_delta_receivers(now, wanted, &self.cluster, me);
        self.connect_due(now, effects);
    }

    /// Returns the OSDs whose leases this OSD needs: as primary, or for direct reads.
    fn wanted_followers(&self) -> BTreeMap<OsdId, Wanted> {
        let (led, reads) = (self.cluster.members_led(), self.cluster.read_lease_givers());
        let mut wanted = BTreeMap::new();
        for (osd, incarnation) in led.iter().chain(&reads) {
            let (is_led, gives_reads) = (led.contains_key(osd), reads.contains_key(osd));
            let new = Wanted { incarnation: *incarnation, is_led, gives_reads };
            let newest = wanted.entry(*osd).or_insert(new);
            newest.incarnation = newest.incarnation.max(*incarnation);
        }
        wanted
    }

    /// Closes the connections to an OSD that is no longer a follower or that has a newer run.
    fn leave_follower(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        self.peer_connections.stop_connecting(osd);
        for purpose in [Purpose::Data, Purpose::Lease] {
            if let Some(connection) = self.peer_connections.to(osd, purpose) {
                self.hang_up(now, connection, effects);
            }
        }
        self.peer_connections.remove(osd);
        self.leases.drop_held(osd);
    }

    /// Carries out all actions that are due on these connections.
    pub(super) fn tick_connections(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for connection in self.peer_connections.late(now) {
            self.hang_up(now, connection, effects);
        }
        for osd in self.peer_connections.over(now) {
            match self.peer_connections.end_leading(osd) {
                None => self.leave_follower(now, osd, effects),
                Some(data) => {
                    data.into_iter().for_each(|data| self.hang_up(now, data, effects));
                }
            }
        }
        let every = renew_every(self.lease_span());
        if self.peer_connections.is_renewal_due(now, every) {
            lines::trace_leases(now, &mut self.leases, effects);
            self.leave_silent(now, effects);
            self.renew_all(now, effects);
        }
        for Member { osd, incarnation } in self.peer_connections.take_missed(now) {
            let how = Unreachable::Missed;
            self.tell_monitor(&ToMonitor::OsdUnreachable { osd, incarnation, how }, effects);
        }
        self.connect_due(now, effects);
    }

    fn connect_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Node { peer_connections, cluster, connections, .. } = self;
        peer_connections.connect_due(now, cluster, connections, effects);
    }

    /// Reports followers that have been silent for too long, and reconnects to them.
    fn leave_silent(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let silent = self.peer_connections.silent(now);
        for connection in self.peer_connections.silent_and_down(now) {
            self.hang_up(now, connection, effects);
        }
        for (osd, connections) in silent {
            self.tell_unreachable(now, osd, Unreachable::Silent, effects);
            for connection in connections.into_iter().flatten() {
                self.hang_up(now, connection, effects);
            }
        }
    }

    /// Reports to the monitor that a follower cannot be reached; at most about once a second.
    fn tell_unreachable(
        &mut self,
        now: Time,
        osd: OsdId,
        how: Unreachable,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(message) = self.peer_connections.unreachable(now, osd, how) {
            self.tell_monitor(&message, effects);
        }
    }

    /// Reports again the followers that cannot be reached: another monitor may lead now.
    pub(super) fn tell_unreachable_again(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.peer_connections.on_new_monitor(now) {
            self.tell_unreachable(now, osd, Unreachable::Refused, effects);
        }
    }

    /// Renews all leases.
    pub(super) fn renew_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.peer_connections.followers() {
            self.renew(now, osd, true, effects);
        }
    }

    /// Renews leases early with members from which this OSD needs more space.
    pub(super) fn renew_for_space(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.space_credits.take_wanting() {
            self.renew(now, osd, false, effects);
        }
    }

    fn renew(&mut self, now: Time, osd: OsdId, is_timely: bool, effects: &mut Vec<Effect>) {
        let Some(connection) = self.peer_connections.for_leases(osd) else { return };
        let stamp = self.leases.renew(now, osd);
        let revisions = self.cluster.pools().map(|(pool, known)| (pool, known.revision));
        let revisions = revisions.take(REVISION_COUNT_MAX).collect();
        let mut lost = Charge::default();
        self.pgs.iter().for_each(|(_, pg)| lost += pg.owed_by(osd));
        let leads = self.peer_connections.is_led(osd);
        let Claims { space, room } = match leads {
            true => self.space_credits.claim(osd, lost, is_timely),
            false => self.space_credits.give_back(osd, stamp, lost),
        };
        let Claim { begun_bytes, owed_bytes } = space;
        let room =
            room.map(|Claim { begun_bytes, owed_bytes }| RoomClaim { begun_bytes, owed_bytes });
        let renew = LeaseMessage::Renew { stamp, revisions, leads, begun_bytes, owed_bytes, room };
        send_lease(connection, renew, effects);
    }

    /// Returns all leases: this OSD no longer leads any PG, so nobody needs to wait until its leases expire.
    pub(super) fn surrender_all(&mut self, effects: &mut Vec<Effect>) {
        for osd in self.peer_connections.followers() {
            if let Some(connection) = self.peer_connections.for_leases(osd) {
                send_lease(connection, LeaseMessage::Surrender, effects);
            }
        }
        self.peer_connections.stop_renewing();
    }

    /// Handles a message from a lease giver.
    fn on_giver_message(
        &mut self,
        now: Time,
        giver: Member,
        message: LeaseMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let LeaseMessage::Granted {
            stamp,
            valid_ms,
            lost,
            is_full,
            engine,
            limit_bytes,
            share_bytes,
            largest_bytes,
            room,
        } = message
        else {
            return Err("a lease giver may only send grants".into());
        };
        self.peer_connections.on_granted(now, giver.osd);
        let grant = Grant { stamp, valid_ms, lost };
        if self.leases.on_granted(now, giver.osd, grant)? {
            self.requests.review();
        }
        self.engine_lag.on_giver(giver.osd, engine);
        let space = Offer { limit_bytes, share_bytes, largest_bytes };
        let room = room.map(|RoomOffer { limit_bytes, share_bytes, largest_bytes }| Offer {
            limit_bytes,
            share_bytes,
            largest_bytes,
        });
        self.space_credits.on_offer(giver.osd, stamp, Offers { is_full, space, room });
        self.requests.on_credit();
        let cluster = &self.cluster;
        if self.leases.knows_newer(giver.osd, |pg| cluster.pg(pg).map(|entry| entry.epoch)) {
            self.on_map_behind(effects);
        }
        Ok(())
    }

    /// Handles a message from a lease holder: a renewal, or a surrender of its leases.
    fn on_holder_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        holder: Member,
        message: LeaseMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        match message {
            LeaseMessage::Renew { stamp, revisions, leads, begun_bytes, owed_bytes, room } => {
                self.peer_connections.on_lease_asked(now, holder);
                let span = self.lease_span();
                let grant = self.leases.give(now, holder, stamp, &revisions, span);
                self.release(now, effects);
                let Some(Grant { stamp, valid_ms, lost }) = grant else { return Ok(()) };
                self.review_demand(now);
                let room = room
                    .map(|RoomClaim { begun_bytes, owed_bytes }| Claim { begun_bytes, owed_bytes });
                let claims = Claims { space: Claim { begun_bytes, owed_bytes }, room };
                let (space, until) = (self.space(), now + giver_span(span));
                let Offers { is_full, space, room } = match leads {
                    true => self.space_credits.offer(now, holder, claims, until, space),
                    false => self.space_credits.offer_nothing(holder, claims),
                };
                self.want_bytes(now);
                let Offer { limit_bytes, share_bytes, largest_bytes } = space;
                let room = room.map(|Offer { limit_bytes, share_bytes, largest_bytes }| {
                    RoomOffer { limit_bytes, share_bytes, largest_bytes }
                });
                let grant = LeaseMessage::Granted {
                    stamp,
                    valid_ms,
                    lost,
                    is_full,
                    engine: self.engine_lag.own(),
                    limit_bytes,
                    share_bytes,
                    largest_bytes,
                    room,
                };
                send_lease(connection, grant, effects);
                self.requests.on_credit();
                Ok(())
            }
            LeaseMessage::Surrender => {
                self.leases.on_surrender(holder);
                self.space_credits.on_surrender(holder);
                self.release(now, effects);
                Ok(())
            }
            LeaseMessage::Granted { .. } => Err("an unsolicited lease grant".into()),
        }
    }

    /// Sends a difference to acting members with parity. If there is no connection with one of them, sends it
    /// to the primary, which passes it on to all.
    pub(super) fn send_delta(
        &mut self,
        entry: &PgEntry,
        to: &[OsdId],
        delta: Delta,
        effects: &mut Vec<Effect>,
    ) {
        let connection = |osd: &OsdId| {
            let member = entry.acting_member(*osd)?;
            match entry.primary_osd() == Some(*osd) {
                true => self.peer_connections.to_primary(member),
                false => self.peer_connections.to_delta_receiver(member),
            }
        };
        let connections: Option<Vec<ConnectionId>> = to.iter().map(connection).collect();
        let Some(connections) = connections else {
            let primary = entry.primary_osd().expect("an epoch that is active has a primary");
            return self.send_to_member(entry, primary, delta.to_primary(), effects);
        };
        for connection in connections {
            let body = delta.clone().to_member();
            send_peer(connection, PeerMessage { pg: entry.pg, epoch: entry.epoch, body }, effects);
        }
    }

    /// Sends a PG's message to another member, if there is a connection.
    pub(super) fn send_to_member(
        &mut self,
        entry: &PgEntry,
        to: OsdId,
        body: PeerBody,
        effects: &mut Vec<Effect>,
    ) {
        let mut members = entry.members();
        let Some(member) = members.find(|member| member.osd == to) else { return };
        let connection = match self.cluster.is_primary(entry) {
            true => self.peer_connections.to_follower(*member),
            false => self.peer_connections.to_primary(*member),
        };
        let Some(connection) = connection else { return };
        let message = PeerMessage { pg: entry.pg, epoch: entry.epoch, body };
        send_peer(connection, message, effects);
    }
}

fn send_lease(connection: ConnectionId, message: LeaseMessage, effects: &mut Vec<Effect>) {
    let message = Message::Lease(Box::new(message));
    effects.push(Effect::Net(NetEffect::Send { connection, message }));
}
