//! Connections between OSDs. The primary of a PG opens two to each other member: one for data and one for
//! leases, so that a large message does not delay a lease. In pools with parity, a member with a data part
//! opens one to each member with parity, for differences.
//!
//! Invariants
//!   1. A connection counts only if its peer is exactly the run that the map's entries list: the handshake
//!      proves the run.
//!   2. There is at most one connection of each kind with each OSD in each direction; a newer one replaces
//!      the older one.
//!   3. A message for which there is no connection is dropped. PGs are informed when a connection is made or
//!      lost.

use std::collections::BTreeMap;

use base::{ConnectionId, Duration, Incarnation, OsdId, Time};
use cluster::message::{ToMonitor, Unreachable};
use format::door::NetEffect;
use format::wire::{Member, Message, PeerBody, PeerMessage};

use crate::Effect;
use crate::cluster_view::ClusterView;
use crate::connection_ids::ConnectionIds;
use crate::lane::Lane;

/// A peer that has sent nothing for this long is silent. Also the interval at which this is reported to
/// the monitor.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long connections to an OSD stay open after this OSD stops leading PGs with it. Over these connections
/// the other OSD learns that its lease is no longer used.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of connections that one OSD may have open to this one; another one closes the oldest.
const INCOMING_PER_OSD_MAX: usize = 6;

/// All connections with other OSDs.
#[derive(Default)]
pub struct PeerConnections {
    /// Members of PGs that this OSD leads.
    followers: BTreeMap<OsdId, Follower>,
    /// Members with parity to which this OSD sends differences.
    delta_receivers: BTreeMap<OsdId, DeltaReceiver>,
    outgoing: BTreeMap<ConnectionId, (OsdId, Purpose)>,
    incoming: BTreeMap<ConnectionId, Incoming>,
    /// The incoming connections that carry data, indexed by the primary that opened them.
    from_primaries: BTreeMap<OsdId, ConnectionId>,
    /// Primaries of PGs of which this OSD is a member, if they are up.
    primaries: BTreeMap<OsdId, Primary>,
    /// When leases are renewed next; `None` while there are no followers.
    renew_at: Option<Time>,
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Messages between members of PGs.
    Data,
    /// Leases.
    Lease,
    /// Differences, from a member with a data part to a member with parity.
    Delta,
}

/// A member with parity to which this OSD sends differences.
struct DeltaReceiver {
    member: Member,
    /// Whether the map lists the member's process as up.
    is_up: bool,
    address_count: usize,
    lane: Lane,
}

/// A member of a PG that this OSD leads.
struct Follower {
    member: Member,
    /// Whether the map lists the follower's process as up.
    is_up: bool,
    address_count: usize,
    data: Lane,
    lease: Lane,
    /// When the follower last granted a lease, or since when a grant is expected.
    heard_at: Time,
    /// When the connections of a former member are closed; `None` for a current member.
    ends_at: Option<Time>,
    /// What was last reported to the monitor about this follower, and when.
    told: Option<(Time, Unreachable)>,
}

/// A primary of PGs of which this OSD is a member.
struct Primary {
    member: Member,
    /// When the primary last requested a lease, or since when a request is expected, or when its silence was
    /// last reported.
    since: Time,
}

/// A connection that another OSD opened.
struct Incoming {
    peer: Member,
    /// Decided by the first message; `None` until then.
    purpose: Option<Purpose>,
}

impl PeerConnections {
    /// Returns whether a lease holder has a connection open over which it may send renewals.
    pub fn has_holder(&self, osd: OsdId) -> bool {
        let asks = |it: &Incoming| it.peer.osd == osd && it.purpose == Some(Purpose::Lease);
        self.incoming.values().any(asks)
    }

    /// Returns when the connections need attention if no event comes first.
    pub fn deadline(&self) -> Option<Time> {
        let up = self.followers.values().filter(|follower| follower.is_wanted());
        let lanes = up.flat_map(|follower| [follower.data.deadline(), follower.lease.deadline()]);
        let ends = self.followers.values().filter_map(|follower| follower.ends_at);
        let missed = self.primaries.values().map(|primary| primary.since + SILENT_AFTER);
        let receivers = self.delta_receivers.values().filter(|receiver| receiver.is_up);
        let deltas = receivers.filter_map(|receiver| receiver.lane.deadline());
        lanes.flatten().chain(self.renew_at).chain(ends).chain(missed).chain(deltas).min()
    }

    /// Returns the connection for sending data to this member.
    pub fn to_follower(&self, member: Member) -> Option<ConnectionId> {
        self.followers.get(&member.osd).filter(|known| known.member == member)?.data.up()
    }

    /// Returns the connection for sending differences to this member.
    pub fn to_delta_receiver(&self, member: Member) -> Option<ConnectionId> {
        let known = self.delta_receivers.get(&member.osd);
        known.filter(|known| known.member == member)?.lane.up()
    }

    /// Returns the connection for replying to this primary.
    pub fn to_primary(&self, primary: Member) -> Option<ConnectionId> {
        let connection = *self.from_primaries.get(&primary.osd)?;
        (self.incoming[&connection].peer == primary).then_some(connection)
    }

    /// Returns whether the connection is with another OSD.
    pub fn has(&self, connection: ConnectionId) -> bool {
        self.outgoing.contains_key(&connection) || self.incoming.contains_key(&connection)
    }

    /// Returns the member and the purpose of a connection that this OSD opened.
    pub fn outgoing(&self, connection: ConnectionId) -> Option<(Member, Purpose)> {
        let (osd, purpose) = self.outgoing.get(&connection)?;
        let member = match purpose {
            Purpose::Data | Purpose::Lease => self.followers[osd].member,
            Purpose::Delta => self.delta_receivers[osd].member,
        };
        Some((member, *purpose))
    }

    /// Returns the connection to a follower, if it is up or being made.
    pub fn to(&self, osd: OsdId, purpose: Purpose) -> Option<ConnectionId> {
        self.followers.get(&osd)?.lane(purpose).connection()
    }

    /// Returns the connection over which this follower's lease is renewed, if it is up.
    pub fn for_leases(&self, osd: OsdId) -> Option<ConnectionId> {
        self.followers.get(&osd)?.lease.up()
    }

    /// Returns the members of PGs that this OSD leads, and former members whose connections are still open.
    pub fn followers(&self) -> Vec<OsdId> {
        self.followers.keys().copied().collect()
    }

    // ---- connections opened and lost

    /// Handles a connection that another OSD opened. Returns an older connection from it, which must be
    /// closed.
    pub fn on_accepted(&mut self, connection: ConnectionId, peer: Member) -> Option<ConnectionId> {
        let of_peer = self.incoming.iter().filter(|(_, known)| known.peer.osd == peer.osd);
        let mut of_peer = of_peer.map(|(connection, _)| *connection);
        let oldest = of_peer.next();
        let is_one_too_many = of_peer.count() + 1 >= INCOMING_PER_OSD_MAX;
        self.incoming.insert(connection, Incoming { peer, purpose: None });
        oldest.filter(|_| is_one_too_many)
    }

    /// Handles a completed handshake on a connection that this OSD opened.
    pub fn on_connected(&mut self, now: Time, osd: OsdId, purpose: Purpose) {
        if purpose == Purpose::Delta {
            let receiver = self.delta_receivers.get_mut(&osd).expect("it has a connection");
            return receiver.lane.on_connected(now);
        }
        let follower = self.followers.get_mut(&osd).expect("it has a connection");
        follower.lane_mut(purpose).on_connected(now);
        if purpose == Purpose::Lease {
            follower.heard_at = now;
        }
    }

    /// Handles the loss of a connection. `refused`: nothing listened at its address.
    pub fn on_closed(&mut self, now: Time, connection: ConnectionId, refused: bool) -> Gone {
        if let Some(incoming) = self.incoming.remove(&connection) {
            let osd = incoming.peer.osd;
            if self.from_primaries.get(&osd) == Some(&connection) {
                self.from_primaries.remove(&osd);
            }
            return Gone::Incoming;
        }
        let Some((osd, purpose)) = self.outgoing.remove(&connection) else { return Gone::Unknown };
        if purpose == Purpose::Delta {
            let receiver = self.delta_receivers.get_mut(&osd).expect("it had a connection");
            receiver.lane.on_lost(now, refused, receiver.address_count);
            return Gone::Delta;
        }
        let follower = self.followers.get_mut(&osd).expect("it had a connection");
        let (member, address_count) = (follower.member, follower.address_count);
        let lane = follower.lane_mut(purpose);
        let carried_data = lane.up().is_some() && purpose == Purpose::Data;
        lane.on_lost(now, refused, address_count);
        Gone::Outgoing { member, carried_data, is_refused: lane.is_refused(address_count) }
    }

    /// Returns whether an incoming connection is for differences, if this message arrives over it. A primary
    /// sends differences over its connection for data, after a query.
    pub fn carries_deltas(&self, connection: ConnectionId, body: &PeerBody) -> bool {
        match self.incoming.get(&connection).and_then(|incoming| incoming.purpose) {
            Some(purpose) => purpose == Purpose::Delta,
            None => matches!(body, PeerBody::ParityDelta { .. }),
        }
    }

    /// Sets the purpose of an incoming connection, which its first message decides. Returns its peer, and
    /// an older connection that it replaces. Fails if the connection already had another purpose.
    pub fn decide(
        &mut self,
        connection: ConnectionId,
        purpose: Purpose,
    ) -> Result<(Member, Option<ConnectionId>), String> {
        let error = || "the connection was opened for another purpose".to_string();
        let incoming = self.incoming.get_mut(&connection).ok_or_else(error)?;
        let peer = incoming.peer;
        match incoming.purpose {
            Some(decided) if decided == purpose => return Ok((peer, None)),
            Some(_) => return Err(error()),
            None => incoming.purpose = Some(purpose),
        }
        let same = |other: &Incoming| other.peer.osd == peer.osd && other.purpose == Some(purpose);
        let mut others = self.incoming.iter().filter(|(id, _)| **id != connection);
        let before = others.find(|(_, other)| same(other)).map(|(id, _)| *id);
        if purpose == Purpose::Data {
            self.from_primaries.insert(peer.osd, connection);
        }
        Ok((peer, before))
    }

    /// Connects to all followers and delta receivers for which an attempt is due.
    pub fn connect_due(
        &mut self,
        now: Time,
        cluster: &ClusterView,
        ids: &mut ConnectionIds,
        effects: &mut Vec<Effect>,
    ) {
        let followers = self.followers.iter_mut().filter(|(_, follower)| follower.is_wanted());
        let followers = followers.flat_map(|(osd, Follower { data, lease, .. })| {
            [(*osd, Purpose::Data, data), (*osd, Purpose::Lease, lease)]
        });
        let receivers = self.delta_receivers.iter_mut().filter(|(_, receiver)| receiver.is_up);
        let receivers = receivers.map(|(osd, receiver)| (*osd, Purpose::Delta, &mut receiver.lane));
        for (osd, purpose, lane) in followers.chain(receivers) {
            let info = cluster.osd(osd).filter(|_| lane.is_due(now));
            let Some(info) = info else { continue };
            let connection = ids.next();
            let addresses = info.addresses_for_peers();
            let index = lane.connect(now, connection, addresses.len());
            self.outgoing.insert(connection, (osd, purpose));
            let address = addresses[index].clone();
            effects.push(Effect::Net(NetEffect::Connect { connection, address }));
        }
    }

    /// Returns connections whose attempt has timed out.
    pub fn late(&self, now: Time) -> Vec<ConnectionId> {
        let lanes = self.followers.values().flat_map(|follower| [&follower.data, &follower.lease]);
        let lanes = lanes.chain(self.delta_receivers.values().map(|receiver| &receiver.lane));
        lanes.filter(|lane| lane.is_late(now)).filter_map(Lane::connection).collect()
    }

    // ---- the map

    /// Handles a change in the members of PGs that this OSD leads. Returns the members whose connections lead
    /// to another run: the caller closes those connections before [`PeerConnections::follow`].
    pub fn on_members(&mut self, now: Time, wanted: &BTreeMap<OsdId, Incarnation>) -> Vec<OsdId> {
        let mut other_runs = Vec::new();
        for (osd, follower) in &mut self.followers {
            match wanted.get(osd) {
                Some(incarnation) if *incarnation == follower.member.incarnation => {}
                Some(_) => other_runs.push(*osd),
                None => {
                    follower.ends_at.get_or_insert(now + LINGER);
                }
            }
        }
        other_runs
    }

    /// Keeps connections to these members from now on, with their addresses from the map.
    pub fn follow(
        &mut self,
        now: Time,
        wanted: BTreeMap<OsdId, Incarnation>,
        cluster: &ClusterView,
        me: OsdId,
    ) {
        for (osd, incarnation) in wanted {
            let info = cluster.osd(osd).filter(|info| info.incarnation == incarnation);
            let is_up = info.is_some_and(|info| info.up && !info.addresses.is_empty());
            let address_count = info.map_or(0, |info| info.addresses_for_peers().len());
            let first = info.map_or(0, |info| info.first_address_from(me));
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
            let follower = self.followers.entry(osd).or_insert_with(new);
            assert!(follower.member.incarnation == incarnation);
            if is_up && !follower.is_up {
                follower.heard_at = now;
            }
            (follower.is_up, follower.address_count) = (is_up, address_count);
            follower.ends_at = None;
        }
        if !self.followers.is_empty() {
            self.renew_at.get_or_insert(now);
        }
    }

    /// Leaves the members to which this OSD sends no more differences, or only to another run. Returns their
    /// connections: the caller closes them before [`PeerConnections::follow_delta_receivers`].
    pub fn leave_delta_receivers(
        &mut self,
        wanted: &BTreeMap<OsdId, Incarnation>,
    ) -> Vec<ConnectionId> {
        let mut left = Vec::new();
        for (osd, receiver) in &mut self.delta_receivers {
            if wanted.get(osd) != Some(&receiver.member.incarnation) {
                receiver.is_up = false;
                left.extend(receiver.lane.connection());
            }
        }
        left
    }

    /// Keeps connections to these members from now on, with their addresses from the map.
    pub fn follow_delta_receivers(
        &mut self,
        now: Time,
        wanted: BTreeMap<OsdId, Incarnation>,
        cluster: &ClusterView,
        me: OsdId,
    ) {
        self.delta_receivers
            .retain(|osd, receiver| wanted.get(osd) == Some(&receiver.member.incarnation));
        for (osd, incarnation) in wanted {
            let info = cluster.osd(osd).filter(|info| info.incarnation == incarnation);
            let first = info.map_or(0, |info| info.first_address_from(me));
            let new = || DeltaReceiver {
                member: Member { osd, incarnation },
                is_up: false,
                address_count: 0,
                lane: Lane::new(now, first),
            };
            let receiver = self.delta_receivers.entry(osd).or_insert_with(new);
            receiver.is_up = info.is_some_and(|info| info.up && !info.addresses.is_empty());
            receiver.address_count = info.map_or(0, |info| info.addresses_for_peers().len());
        }
    }

    /// Returns incoming connections from runs that the map has replaced by newer ones.
    pub fn of_earlier_runs(&self, cluster: &ClusterView) -> Vec<ConnectionId> {
        let is_over = |incoming: &Incoming| {
            let known = cluster.osd(incoming.peer.osd);
            known.is_some_and(|known| incoming.peer.incarnation < known.incarnation)
        };
        let over = self.incoming.iter().filter(|(_, incoming)| is_over(incoming));
        over.map(|(connection, _)| *connection).collect()
    }

    /// Expects renewals from the primaries of all PGs of which this OSD is a member.
    pub fn expect_primaries(&mut self, now: Time, cluster: &ClusterView) {
        let Some(wanted) = cluster.primaries_followed() else { return };
        self.primaries.retain(|_, primary| wanted.contains(&primary.member));
        for member in wanted {
            let new = Primary { member, since: now };
            self.primaries.entry(member.osd).or_insert(new);
        }
    }

    /// Returns former followers whose connections may be closed now.
    pub fn over(&self, now: Time) -> Vec<OsdId> {
        let is_over = |follower: &Follower| follower.ends_at.is_some_and(|at| at <= now);
        let over = self.followers.iter().filter(|(_, follower)| is_over(follower));
        over.map(|(osd, _)| *osd).collect()
    }

    /// Stops new connections to this follower. Close its connections before [`PeerConnections::remove`].
    pub fn stop_connecting(&mut self, osd: OsdId) {
        self.followers.get_mut(&osd).expect("the caller found it").is_up = false;
    }

    /// Forgets a follower. Requires: its connections are closed.
    pub fn remove(&mut self, osd: OsdId) {
        let gone = self.followers.remove(&osd).expect("the caller found it");
        assert!(gone.data.connection().is_none());
        assert!(gone.lease.connection().is_none());
    }

    // ---- leases, and silent OSDs

    /// Returns whether leases must be renewed now, and sets the next time to `every` later.
    pub fn is_renewal_due(&mut self, now: Time, every: Duration) -> bool {
        if self.followers.is_empty() {
            self.renew_at = None;
        }
        let is_due = self.renew_at.is_some_and(|at| at <= now);
        if is_due {
            self.renew_at = Some(now + every);
        }
        is_due
    }

    /// Stops renewing leases.
    pub fn stop_renewing(&mut self) {
        self.renew_at = None;
    }

    /// Records that a follower has granted a lease.
    pub fn on_granted(&mut self, now: Time, giver: OsdId) {
        self.followers.get_mut(&giver).expect("it has a connection").heard_at = now;
    }

    /// Records that a primary has requested a lease.
    pub fn on_lease_asked(&mut self, now: Time, holder: Member) {
        let primary = self.primaries.get_mut(&holder.osd);
        if let Some(primary) = primary.filter(|known| known.member == holder) {
            primary.since = now;
        }
    }

    /// Returns followers that have been silent for too long, and the connections that must be closed and
    /// opened again. A connection that lost packets may take long to recover. If the follower has several
    /// addresses and both connections use the same one, the data connection must be closed, too: that
    /// network may have failed.
    pub fn silent(&self, now: Time) -> Vec<(OsdId, [Option<ConnectionId>; 2])> {
        let is_silent = |follower: &&Follower| {
            follower.is_wanted() && !follower.is_refused() && follower.is_silent(now)
        };
        let silent = self.followers.values().filter(is_silent).map(|follower| {
            let Follower { member, data, lease, address_count, .. } = follower;
            let beside = lease.up().filter(|_| data.is_beside(lease, *address_count));
            (member.osd, [lease.up(), beside.and(data.up())])
        });
        silent.collect()
    }

    /// Returns data connections to followers that are silent and that the map lists as down: a suspended
    /// process keeps its connections, and nothing should wait for it.
    pub fn silent_and_down(&self, now: Time) -> Vec<ConnectionId> {
        let is_gone = |follower: &&Follower| !follower.is_up && follower.is_silent(now);
        self.followers.values().filter(is_gone).filter_map(|follower| follower.data.up()).collect()
    }

    /// Returns the report to the monitor about a follower that does not respond; at most about once a
    /// second.
    pub fn unreachable(&mut self, now: Time, osd: OsdId, how: Unreachable) -> Option<ToMonitor> {
        let follower = self.followers.get_mut(&osd).expect("the caller found it");
        let is_told = |(at, told): (Time, Unreachable)| told == how && now.since(at) < SILENT_AFTER;
        if !follower.is_wanted() || follower.told.is_some_and(is_told) {
            return None;
        }
        follower.told = Some((now, how));
        let incarnation = follower.member.incarnation;
        Some(ToMonitor::OsdUnreachable { osd, incarnation, how })
    }

    /// Forgets what was reported, because another monitor may lead now. Returns the followers whose
    /// addresses refuse connections; silent ones are reported with the next renewal.
    pub fn on_new_monitor(&mut self, now: Time) -> Vec<OsdId> {
        // PGs may have new primaries that this OSD does not know yet.
        self.primaries.values_mut().for_each(|primary| primary.since = now);
        self.followers.values_mut().for_each(|follower| follower.told = None);
        let refused = self.followers.iter().filter(|(_, follower)| follower.is_refused());
        refused.map(|(osd, _)| *osd).collect()
    }

    /// Returns primaries that have stopped requesting leases. A primary that leads all PGs it shares with
    /// other OSDs gives no lease to any of them, so only the missing requests show that it is down.
    pub fn take_missed(&mut self, now: Time) -> Vec<Member> {
        let mut missed = Vec::new();
        for primary in self.primaries.values_mut() {
            if now.since(primary.since) >= SILENT_AFTER {
                primary.since = now;
                missed.push(primary.member);
            }
        }
        missed
    }
}

/// What kind of connection was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// The connection was not with an OSD.
    Unknown,
    /// A peer had opened the connection.
    Incoming,
    /// The connection led to a member with parity, and carried differences.
    Delta,
    /// The connection led to a follower.
    Outgoing {
        member: Member,
        /// Whether the connection was up, and its purpose was data.
        carried_data: bool,
        /// Whether nothing listens at any address of the follower.
        is_refused: bool,
    },
}

impl Follower {
    /// Returns whether this OSD keeps connections to the follower, and makes those that are missing.
    fn is_wanted(&self) -> bool {
        self.is_up && self.ends_at.is_none()
    }

    fn lane(&self, purpose: Purpose) -> &Lane {
        match purpose {
            Purpose::Data => &self.data,
            Purpose::Lease => &self.lease,
            Purpose::Delta => unreachable!("it is a connection to a delta receiver"),
        }
    }

    fn lane_mut(&mut self, purpose: Purpose) -> &mut Lane {
        match purpose {
            Purpose::Data => &mut self.data,
            Purpose::Lease => &mut self.lease,
            Purpose::Delta => unreachable!("it is a connection to a delta receiver"),
        }
    }

    fn is_refused(&self) -> bool {
        let lanes = [&self.data, &self.lease];
        lanes.iter().any(|lane| lane.is_refused(self.address_count))
    }

    fn is_silent(&self, now: Time) -> bool {
        now.since(self.heard_at) >= SILENT_AFTER
    }
}

/// Sends a message between members of PGs.
pub fn send_peer(connection: ConnectionId, message: PeerMessage, effects: &mut Vec<Effect>) {
    let message = Message::Peer(Box::new(message));
    effects.push(Effect::Net(NetEffect::Send { connection, message }));
}
