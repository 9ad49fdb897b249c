//! Connections between OSDs. Who leads a PG opens two to each of its members: one for data, one
//! for leases, so that no large message delays a lease.
//!
//! Invariants
//!   1. A connection counts only with the very run of the OSD that the map's entries name: the
//!      handshake proves the run.
//!   2. At most one connection of each kind with each OSD in each direction; a newer one ends the
//!      one before.
//!   3. What is to be sent where no connection is, is dropped: its PG learns of each connection
//!      that comes or goes.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Incarnation, OsdId, Time, TraceEvent};
use cluster::message::{ToMonitor, Unreachable};
use format::door::{NetEffect, Peer, Role};
use format::wire::{
    LeaseMessage, Member, Message, PeerBody, PeerMessage, PgEntry, REVISION_COUNT_MAX,
};

use crate::Effect;
use crate::lane::Lane;
use crate::leases::{Grant, giver_span, renew_every};
use crate::node::Node;
use crate::space_credits::{Claim, Offer};

/// A peer that has not said anything for so long is silent, and is said to be so as often.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// So long the connections to an OSD outlive its last part in a PG that this one leads: it learns
/// over them that its lease is not used any more.
const LINGER: Duration = Duration::from_secs(1);
/// Most connections that one OSD has to us; the oldest goes when another comes.
const INCOMING_PER_OSD_MAX: usize = 4;

/// All connections with other OSDs.
#[derive(Default)]
pub struct PeerConnections {
    /// Members of PGs that this OSD leads.
    followers: BTreeMap<OsdId, Follower>,
    outgoing: BTreeMap<ConnectionId, (OsdId, Purpose)>,
    incoming: BTreeMap<ConnectionId, Incoming>,
    /// Of them those that carry data, by the primary that opened them.
    from_primaries: BTreeMap<OsdId, ConnectionId>,
    /// Who leads PGs of which this OSD is a member, and counts as up.
    primaries: BTreeMap<OsdId, Primary>,
    /// When leases are renewed next, while there are followers.
    renew_at: Option<Time>,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Messages between members of PGs.
    Data,
    /// Leases.
    Lease,
}

/// A member of a PG that this OSD leads.
struct Follower {
    member: Member,
    /// The map says that its process is there.
    is_up: bool,
    address_count: usize,
    data: Lane,
    lease: Lane,
    /// When it last granted a lease, or was first to be heard.
    heard_at: Time,
    /// It is no member any more, and its connections end then.
    ends_at: Option<Time>,
    /// What the monitor was told last, and when.
    told: Option<(Time, Unreachable)>,
}

/// Who leads PGs of which this OSD is a member.
struct Primary {
    member: Member,
    /// When it last asked for a lease, or was first to ask, or the monitor was told that it does not.
    since: Time,
}

/// A connection that another OSD opened.
struct Incoming {
    peer: Member,
    /// The first message tells.
    purpose: Option<Purpose>,
}

impl PeerConnections {
    /// Whether a holder of leases may ask over a connection that is there.
    pub fn has_holder(&self, osd: OsdId) -> bool {
        let asks = |it: &Incoming| it.peer.osd == osd && it.purpose == Some(Purpose::Lease);
        self.incoming.values().any(asks)
    }

    /// When something is to be done if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        let up = self.followers.values().filter(|follower| follower.is_wanted());
        let lanes = up.flat_map(|follower| [follower.data.deadline(), follower.lease.deadline()]);
        let ends = self.followers.values().filter_map(|follower| follower.ends_at);
        let missed = self.primaries.values().map(|primary| primary.since + SILENT_AFTER);
        lanes.flatten().chain(self.renew_at).chain(ends).chain(missed).min()
    }

    /// The connection over which data goes to this member.
    pub fn to_follower(&self, member: Member) -> Option<ConnectionId> {
        self.followers.get(&member.osd).filter(|known| known.member == member)?.data.up()
    }

    /// The connection over which this primary is answered.
    pub fn to_primary(&self, primary: Member) -> Option<ConnectionId> {
        let connection = *self.from_primaries.get(&primary.osd)?;
        (self.incoming[&connection].peer == primary).then_some(connection)
    }

    /// Whether the connection is one with an OSD.
    pub fn has(&self, connection: ConnectionId) -> bool {
        self.outgoing.contains_key(&connection) || self.incoming.contains_key(&connection)
    }

    fn outgoing(&self, connection: ConnectionId) -> Option<(Member, Purpose)> {
        let (osd, purpose) = self.outgoing.get(&connection)?;
        Some((self.followers[osd].member, *purpose))
    }
}

impl Follower {
    /// Whether a connection that it lacks is to be made.
    fn is_wanted(&self) -> bool {
        self.is_up && self.ends_at.is_none()
    }

    fn lane(&mut self, purpose: Purpose) -> &mut Lane {
        match purpose {
            Purpose::Data => &mut self.data,
            Purpose::Lease => &mut self.lease,
        }
    }
}

impl Node {
    /// An OSD connected to us.
    pub(crate) fn osd_accepted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Member,
        effects: &mut Vec<Effect>,
    ) {
        let is_known_older =
            self.map.osds.get(&peer.osd).is_some_and(|osd| peer.incarnation < osd.incarnation);
        let has_joined = self.incarnation.is_some() && peer.incarnation > Incarnation::ZERO;
        if !has_joined || peer.osd == self.identity.osd || is_known_older {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            return;
        }
        let of_peer: Vec<ConnectionId> = self
            .peer_connections
            .incoming
            .iter()
            .filter(|(_, incoming)| incoming.peer.osd == peer.osd)
            .map(|(connection, _)| *connection)
            .collect();
        if of_peer.len() >= INCOMING_PER_OSD_MAX {
            self.hang_up(now, of_peer[0], effects);
        }
        self.peer_connections.incoming.insert(connection, Incoming { peer, purpose: None });
    }

    /// One of our connections passed its handshake. Requires: it is one to an OSD.
    pub(crate) fn osd_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        let Some((member, purpose)) = self.peer_connections.outgoing(connection) else { return };
        let wanted = Role::Osd(member.osd, member.incarnation);
        if peer.cluster != self.identity.cluster || peer.role != wanted {
            // Another run: the map that names it is on its way, or has been overtaken.
            return self.hang_up(now, connection, effects);
        }
        let follower =
            self.peer_connections.followers.get_mut(&member.osd).expect("it has a connection");
        follower.lane(purpose).opened(now);
        match purpose {
            Purpose::Data => self.follower_ready(now, member, effects),
            Purpose::Lease => {
                follower.heard_at = now;
                self.leases.opened(member);
                self.space_credits.opened(member);
                self.renew(now, member.osd, true, effects);
            }
        }
    }

    /// A connection with an OSD is gone.
    pub(crate) fn osd_closed(
        &mut self,
        now: Time,
        connection: ConnectionId,
        refused: bool,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(incoming) = self.peer_connections.incoming.remove(&connection) {
            let osd = incoming.peer.osd;
            if self.peer_connections.from_primaries.get(&osd) == Some(&connection) {
                self.peer_connections.from_primaries.remove(&osd);
            }
            self.peers.primary_left(connection);
            return;
        }
        let Some((osd, purpose)) = self.peer_connections.outgoing.remove(&connection) else {
            return;
        };
        let follower = self.peer_connections.followers.get_mut(&osd).expect("it had a connection");
        let member = follower.member;
        let address_count = follower.address_count;
        let lane = follower.lane(purpose);
        let was_up = lane.up().is_some();
        lane.lost(now, refused, address_count);
        if lane.is_refused(address_count) {
            self.tell_unreachable(now, osd, Unreachable::Refused, effects);
        }
        if was_up && purpose == Purpose::Data {
            self.follower_lost(now, member, effects);
        }
        self.connect_due(now, effects);
    }

    /// A message of an OSD came, or one over a connection with an OSD.
    pub(crate) fn osd_said(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let result: Result<(), String> = match (self.peer_connections.outgoing(connection), message)
        {
            (Some((member, Purpose::Data)), Message::Peer(message)) => {
                self.follower_said(now, member, *message, effects)
            }
            (Some((member, Purpose::Lease)), Message::Lease(message)) => {
                self.giver_said(now, member, *message, effects)
            }
            (None, Message::Peer(message)) => {
                match self.decide(now, connection, Purpose::Data, effects) {
                    Some(primary) => self.primary_said(now, connection, primary, *message, effects),
                    None => Err("it said something else before".into()),
                }
            }
            (None, Message::Lease(message)) => {
                match self.decide(now, connection, Purpose::Lease, effects) {
                    Some(holder) => self.holder_said(now, connection, holder, *message, effects),
                    None => Err("it said something else before".into()),
                }
            }
            _ => Err("no OSD says this there".into()),
        };
        // What is wrong ends the connection; a peer of ours never comes here.
        if let Err(why) = result {
            let event = TraceEvent::warn("an OSD breaks the protocol: its connection is closed");
            effects.push(Effect::Trace(event.with("why", why)));
            self.hang_up(now, connection, effects);
        }
    }

    /// The first message of a connection tells what it is for; `None`: it told something else.
    fn decide(
        &mut self,
        now: Time,
        connection: ConnectionId,
        purpose: Purpose,
        effects: &mut Vec<Effect>,
    ) -> Option<Member> {
        let incoming = self.peer_connections.incoming.get_mut(&connection)?;
        let peer = incoming.peer;
        match incoming.purpose {
            Some(decided) => return (decided == purpose).then_some(peer),
            None => incoming.purpose = Some(purpose),
        }
        let same = |other: &Incoming| other.peer.osd == peer.osd && other.purpose == Some(purpose);
        let before = self
            .peer_connections
            .incoming
            .iter()
            .find(|(id, other)| **id != connection && same(other));
        if let Some(before) = before.map(|(id, _)| *id) {
            self.hang_up(now, before, effects);
        }
        if purpose == Purpose::Data {
            self.peer_connections.from_primaries.insert(peer.osd, connection);
        }
        Some(peer)
    }

    /// Brings the connections in line with the map.
    pub(crate) fn update_mesh(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let wanted = self.members_led();
        let mut gone = Vec::new();
        for (osd, follower) in &mut self.peer_connections.followers {
            match wanted.get(osd) {
                Some(incarnation) if *incarnation == follower.member.incarnation => {}
                Some(_) => gone.push(*osd),
                None => {
                    follower.ends_at.get_or_insert(now + LINGER);
                }
            }
        }
        for osd in gone {
            self.let_go(now, osd, effects);
        }
        for (osd, incarnation) in wanted {
            let info = self.map.osds.get(&osd).filter(|info| info.incarnation == incarnation);
            let is_up = info.is_some_and(|info| info.up && !info.addresses.is_empty());
            let address_count = info.map_or(0, |info| info.addresses_for_peers().len());
            let first = info.map_or(0, |info| info.first_address_from(self.identity.osd));
            let new = || Follower {
                member: Member { osd, incarnation },
                is_up: false,
                address_count,
                data: Lane::new(now, first),
                lease: Lane::new(now, first),
                heard_at: now,
                ends_at: None,
                told: None,
            };
            let follower = self.peer_connections.followers.entry(osd).or_insert_with(new);
            if is_up && !follower.is_up {
                follower.heard_at = now;
            }
            (follower.is_up, follower.address_count) = (is_up, address_count);
            follower.ends_at = None;
        }
        let osds = &self.map.osds;
        let is_over = |incoming: &Incoming| {
            let known = osds.get(&incoming.peer.osd);
            known.is_some_and(|known| incoming.peer.incarnation < known.incarnation)
        };
        let over = self.peer_connections.incoming.iter().filter(|(_, incoming)| is_over(incoming));
        for connection in over.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.hang_up(now, connection, effects);
        }
        if !self.peer_connections.followers.is_empty() {
            self.peer_connections.renew_at.get_or_insert(now);
        }
        self.update_primaries(now);
        self.connect_due(now, effects);
    }

    /// Brings those who are to ask this OSD for leases in line with the map.
    fn update_primaries(&mut self, now: Time) {
        let Some(incarnation) = self.incarnation else { return };
        let me = Member { osd: self.identity.osd, incarnation };
        let entries = self.map.pools.values().flat_map(|known| &known.pgs);
        let ours = entries.filter(|entry| entry.members().any(|m| *m == me));
        let is_up = |member: &Member| {
            let info = self.map.osds.get(&member.osd);
            info.is_some_and(|info| info.up && info.incarnation == member.incarnation)
        };
        let primaries = ours.filter_map(PgEntry::primary_member);
        let wanted: BTreeSet<Member> = primaries.filter(|it| *it != me && is_up(it)).collect();
        self.peer_connections.primaries.retain(|_, primary| wanted.contains(&primary.member));
        for member in wanted {
            let new = Primary { member, since: now };
            self.peer_connections.primaries.entry(member.osd).or_insert(new);
        }
    }

    /// Tells of primaries that ask for no lease: those who lead all PGs that they share with others
    /// are missed by nobody else.
    fn find_missed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut missed = Vec::new();
        for primary in self.peer_connections.primaries.values_mut() {
            if now.since(primary.since) >= SILENT_AFTER {
                primary.since = now;
                missed.push(primary.member);
            }
        }
        for Member { osd, incarnation } in missed {
            let how = Unreachable::Missed;
            self.tell_monitor(&ToMonitor::OsdUnreachable { osd, incarnation, how }, effects);
        }
    }

    /// All other members of PGs that this OSD leads in its present run.
    fn members_led(&self) -> BTreeMap<OsdId, Incarnation> {
        let mut members = BTreeMap::new();
        let me = self.identity.osd;
        let entries = self.map.pools.values().flat_map(|known| &known.pgs);
        for entry in entries.filter(|entry| self.leads(entry)) {
            let others = entry.members();
            for member in others.filter(|member| member.osd != me) {
                let newest = members.entry(member.osd).or_insert(member.incarnation);
                *newest = member.incarnation.max(*newest);
            }
        }
        members
    }

    /// Whether this OSD is the primary of the entry in its present run.
    pub(crate) fn leads(&self, entry: &PgEntry) -> bool {
        let Some(incarnation) = self.incarnation else { return false };
        entry.primary_member() == Some(Member { osd: self.identity.osd, incarnation })
    }

    /// Ends what there is with an OSD that is no follower any more, or another run of one.
    fn let_go(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        for purpose in [Purpose::Data, Purpose::Lease] {
            let follower =
                self.peer_connections.followers.get_mut(&osd).expect("the caller found it");
            follower.is_up = false;
            if let Some(connection) = follower.lane(purpose).connection() {
                self.hang_up(now, connection, effects);
            }
        }
        self.peer_connections.followers.remove(&osd);
        self.leases.drop_held(osd);
    }

    /// What the deadline of these connections asked for.
    pub(crate) fn tick_mesh(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let late = self.peer_connections.followers.values().flat_map(|follower| {
            let lanes = [&follower.data, &follower.lease].into_iter();
            lanes.filter(|lane| lane.is_late(now)).filter_map(Lane::connection)
        });
        for connection in late.collect::<Vec<_>>() {
            self.hang_up(now, connection, effects);
        }
        let is_over = |follower: &Follower| follower.ends_at.is_some_and(|at| at <= now);
        let over = self.peer_connections.followers.iter().filter(|(_, follower)| is_over(follower));
        for osd in over.map(|(osd, _)| *osd).collect::<Vec<_>>() {
            self.let_go(now, osd, effects);
        }
        if self.peer_connections.followers.is_empty() {
            self.peer_connections.renew_at = None;
        }
        if self.peer_connections.renew_at.is_some_and(|at| at <= now) {
            self.peer_connections.renew_at = Some(now + renew_every(self.lease_span()));
            self.trace_leases(now, effects);
            self.find_silent(now, effects);
            self.renew_all(now, effects);
        }
        self.find_missed(now, effects);
        self.connect_due(now, effects);
    }

    fn connect_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (osd, follower) in &mut self.peer_connections.followers {
            let info = self.map.osds.get(osd).filter(|_| follower.is_wanted());
            let Some(info) = info else { continue };
            for purpose in [Purpose::Data, Purpose::Lease] {
                let lane = follower.lane(purpose);
                if !lane.is_due(now) {
                    continue;
                }
                let connection = self.connections.next();
                let addresses = info.addresses_for_peers();
                let index = lane.connect(now, connection, addresses.len());
                self.peer_connections.outgoing.insert(connection, (*osd, purpose));
                let address = addresses[index].clone();
                effects.push(Effect::Net(NetEffect::Connect { connection, address }));
            }
        }
    }

    /// Says of followers that have been silent for too long that they are, and tries to reach them
    /// over another connection: one that lost packets may take long to come back. Where there is
    /// another address to try, the connection for data goes, too: the network may be gone. So it does
    /// where the map says that they are down: what stands still keeps its connections, and nobody is to wait
    /// for it.
    fn find_silent(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let is_silent = |follower: &&Follower| {
            let lanes = [&follower.data, &follower.lease];
            let is_refused = lanes.iter().any(|lane| lane.is_refused(follower.address_count));
            follower.is_wanted() && !is_refused && now.since(follower.heard_at) >= SILENT_AFTER
        };
        let silent = self.peer_connections.followers.values().filter(is_silent).map(|follower| {
            let Follower { member, data, lease, address_count, .. } = follower;
            let beside = lease.up().filter(|_| data.is_beside(lease, *address_count));
            (member.osd, [lease.up(), beside.and(data.up())])
        });
        let silent: Vec<_> = silent.collect();
        let is_gone =
            |follower: &&Follower| !follower.is_up && now.since(follower.heard_at) >= SILENT_AFTER;
        let gone = self.peer_connections.followers.values().filter(is_gone);
        for connection in gone.filter_map(|follower| follower.data.up()).collect::<Vec<_>>() {
            self.hang_up(now, connection, effects);
        }
        for (osd, connections) in silent {
            self.tell_unreachable(now, osd, Unreachable::Silent, effects);
            for connection in connections.into_iter().flatten() {
                self.hang_up(now, connection, effects);
            }
        }
    }

    /// Tells the monitor that a follower does not answer; about once a second.
    fn tell_unreachable(
        &mut self,
        now: Time,
        osd: OsdId,
        how: Unreachable,
        effects: &mut Vec<Effect>,
    ) {
        let follower = self.peer_connections.followers.get_mut(&osd).expect("the caller found it");
        let is_told = |(at, told): (Time, Unreachable)| told == how && now.since(at) < SILENT_AFTER;
        if !follower.is_wanted() || follower.told.is_some_and(is_told) {
            return;
        }
        follower.told = Some((now, how));
        let incarnation = follower.member.incarnation;
        self.tell_monitor(&ToMonitor::OsdUnreachable { osd, incarnation, how }, effects);
    }

    /// Another monitor may lead, who has heard of no follower that cannot be reached: it is told.
    pub(crate) fn tell_unreachable_again(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // Who leads may have changed while this OSD was not told.
        self.peer_connections.primaries.values_mut().for_each(|primary| primary.since = now);
        let mut refused = Vec::new();
        for (osd, follower) in &mut self.peer_connections.followers {
            // Of silent ones the next renewal tells.
            follower.told = None;
            let lanes = [&follower.data, &follower.lease];
            if lanes.iter().any(|lane| lane.is_refused(follower.address_count)) {
                refused.push(*osd);
            }
        }
        for osd in refused {
            self.tell_unreachable(now, osd, Unreachable::Refused, effects);
        }
    }

    /// Renews all leases.
    pub(crate) fn renew_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let osds: Vec<OsdId> = self.peer_connections.followers.keys().copied().collect();
        for osd in osds {
            self.renew(now, osd, true, effects);
        }
    }

    /// Renews leases of members that may have more space for data.
    pub(crate) fn renew_for_space(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.space_credits.take_wanting() {
            if self.peer_connections.followers.contains_key(&osd) {
                self.renew(now, osd, false, effects);
            }
        }
    }

    fn renew(&mut self, now: Time, osd: OsdId, is_timely: bool, effects: &mut Vec<Effect>) {
        let Some(connection) = self.peer_connections.followers[&osd].lease.up() else { return };
        let stamp = self.leases.renew(now, osd);
        let revisions = self.map.pools.iter().map(|(pool, known)| (*pool, known.revision));
        let revisions = revisions.take(REVISION_COUNT_MAX).collect();
        let owed = self.pgs.iter().map(|pg| pg.owed_by(osd)).sum();
        let Claim { begun_bytes, owed_bytes } = self.space_credits.claim(osd, owed, is_timely);
        let renew = LeaseMessage::Renew { stamp, revisions, begun_bytes, owed_bytes };
        send_lease(connection, renew, effects);
    }

    /// This OSD leads nothing any more, and will not: nobody needs to wait for its leases.
    pub(crate) fn surrender_all(&mut self, effects: &mut Vec<Effect>) {
        for follower in self.peer_connections.followers.values() {
            let Some(connection) = follower.lease.up() else { continue };
            send_lease(connection, LeaseMessage::Surrender, effects);
        }
        self.peer_connections.renew_at = None;
    }

    /// A giver of leases answered.
    fn giver_said(
        &mut self,
        now: Time,
        giver: Member,
        message: LeaseMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let LeaseMessage::Granted { stamp, valid_ms, lost, is_full, limit_bytes, share_bytes } =
            message
        else {
            return Err("only grants are answers".into());
        };
        let follower =
            self.peer_connections.followers.get_mut(&giver.osd).expect("it has a connection");
        follower.heard_at = now;
        let grant = Grant { stamp, valid_ms, lost };
        self.recheck |= self.leases.granted(now, giver.osd, grant)?;
        let offer = Offer { limit_bytes, share_bytes, is_full };
        if self.space_credits.offered(giver.osd, offer) {
            self.space_came();
        }
        let map = &self.map;
        if self.leases.knows_newer(giver.osd, |pg| map.pg(pg).map(|entry| entry.epoch)) {
            self.map_is_behind(effects);
        }
        Ok(())
    }

    /// A holder of leases said something.
    fn holder_said(
        &mut self,
        now: Time,
        connection: ConnectionId,
        holder: Member,
        message: LeaseMessage,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        match message {
            LeaseMessage::Renew { stamp, revisions, begun_bytes, owed_bytes } => {
                let primary = self.peer_connections.primaries.get_mut(&holder.osd);
                if let Some(primary) = primary.filter(|known| known.member == holder) {
                    primary.since = now;
                }
                let span = self.lease_span();
                let grant = self.leases.give(now, holder, stamp, &revisions, span);
                self.release(now, effects);
                let Some(Grant { stamp, valid_ms, lost }) = grant else { return Ok(()) };
                self.review_demand(now);
                let claim = Claim { begun_bytes, owed_bytes };
                let (space, until) = (self.space(), now + giver_span(span));
                let offer = self.space_credits.offer(now, holder, claim, until, space);
                let Offer { limit_bytes, share_bytes, is_full } = offer;
                let grant = LeaseMessage::Granted {
                    stamp,
                    valid_ms,
                    lost,
                    is_full,
                    limit_bytes,
                    share_bytes,
                };
                send_lease(connection, grant, effects);
                self.space_came();
                Ok(())
            }
            LeaseMessage::Surrender => {
                self.leases.surrendered(holder);
                self.space_credits.surrendered(holder);
                self.release(now, effects);
                Ok(())
            }
            LeaseMessage::Granted { .. } => Err("nobody asked for it".into()),
        }
    }

    /// Sends what a PG says to another of its members, if there is a connection.
    pub(crate) fn send_to_member(
        &mut self,
        entry: &PgEntry,
        to: OsdId,
        body: PeerBody,
        effects: &mut Vec<Effect>,
    ) {
        let mut members = entry.members();
        let Some(member) = members.find(|member| member.osd == to) else { return };
        let connection = match entry.primary_osd() == Some(self.identity.osd) {
            true => self.peer_connections.to_follower(*member),
            false => self.peer_connections.to_primary(*member),
        };
        let Some(connection) = connection else { return };
        let message = PeerMessage { pg: entry.pg, epoch: entry.epoch, body };
        send_peer(connection, message, effects);
    }
}

pub fn send_peer(connection: ConnectionId, message: PeerMessage, effects: &mut Vec<Effect>) {
    let message = Message::Peer(Box::new(message));
    effects.push(Effect::Net(NetEffect::Send { connection, message }));
}

fn send_lease(connection: ConnectionId, message: LeaseMessage, effects: &mut Vec<Effect>) {
    let message = Message::Lease(Box::new(message));
    effects.push(Effect::Net(NetEffect::Send { connection, message }));
}
