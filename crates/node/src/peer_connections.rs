//! Connections between OSDs. The primary of a PG opens two to each other member: one for data and one for
//! leases, so that a large message does not delay a lease. In pools with parity, a member with a data part
//! opens one to each member with parity, for differences, and one to each member for leases. Between two
//! OSDs all leases of a holder share one connection.
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
use format::wire::{Member, Message, PeerBody, PeerMessage, ROOM_VERSION_MIN};

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
    /// Members of PGs that this OSD leads, and of PGs in which it answers direct reads.
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

/// A member of a PG that this OSD leads, or in which it answers direct reads.
struct Follower {
    member: Member,
    /// Whether this OSD leads a PG with the follower, or did so until recently. If not, it has only the
    /// connection for leases.
    is_led: bool,
    /// Whether this OSD needs the follower's leases for direct reads.
    gives_reads: bool,
    /// Whether the map lists the follower's process as up.
    is_up: bool,
    address_count: usize,
    data: Lane,
    lease: Lane,
    /// Whether the connection for leases carries a credit for room beside the one for space.
    splits_credit: bool,
    /// When the follower last granted a lease, or since when a grant is expected.
    heard_at: Time,
    /// When the connections of a former member are closed, except one that direct reads need; `None` for a
    /// current member.
    ends_at: Option<Time>,
    /// What was last reported to the monitor about this follower, and when.
    told: Option<(Time, Unreachable)>,
}

/// Why this OSD needs a connection to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The other OSD's run.
    pub incarnation: Incarnation,
    /// Whether this OSD leads a PG of which the other one is a member.
    pub is_led: bool,
    /// Whether this OSD answers direct reads in a PG of which the other one is a member.
    pub gives_reads: bool,
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
        let lanes = up.flat_map(|follower| {
            [follower.data.deadline().filter(|_| follower.is_led), follower.lease.deadline()]
        });
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

    /// Returns whether the connection for leases with this follower carries a credit for room beside the one
    /// for space. False: the follower is of an older version, and one credit is for both.
    pub fn splits_credit(&self, osd: OsdId) -> bool {
        self.followers.get(&osd).is_some_and(|follower| follower.splits_credit)
    }

    /// Returns whether this OSD leads a PG with the follower, or did so until recently.
    pub fn is_led(&self, osd: OsdId) -> bool {
        self.followers.get(&osd).is_some_and(|follower| follower.is_led)
    }

    /// Returns the members of PGs that this OSD leads or in which it answers direct reads, and former members
    /// whose connections are still open.
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

    /// Handles a completed handshake, which chose this version, on a connection that this OSD opened.
    pub fn on_connected(&mut self, now: Time, osd: OsdId, purpose: Purpose, version: u16) {
        if purpose == Purpose::Delta {
            let receiver = self.delta_receivers.get_mut(&osd).expect("it has a connection");
            return receiver.lane.on_connected(now);
        }
        let follower = self.followers.get_mut(&osd).expect("it has a connection");
        follower.lane_mut(purpose).on_connected(now);
        if purpose == Purpose::Lease {
            follower.splits_credit = version >= ROOM_VERSION_MIN;
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
        let followers = followers.flat_map(|(osd, Follower { data, lease, is_led, .. })| {
            let data = Some((*osd, Purpose::Data, data)).filter(|_| *is_led);
            data.into_iter().chain([(*osd, Purpose::Lease, lease)])
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

    /// Handles a change in the members whose leases this OSD needs. Returns the members whose connections
    /// lead to another run: the caller closes those connections before [`PeerConnections::follow`].
    pub fn on_members(&mut self, now: Time, wanted: &BTreeMap<OsdId, Wanted>) -> Vec<OsdId> {
        let mut other_runs = Vec::new();
        for (osd, follower) in &mut self.followers {
            let wanted = wanted.get(osd);
            follower.gives_reads = wanted.is_some_and(|wanted| wanted.gives_reads);
            match wanted {
                Some(wanted) if wanted.incarnation != follower.member.incarnation => {
                    other_runs.push(*osd);
                }
                Some(wanted) if wanted.is_led || !follower.is_led => {}
                Some(_) | None => {
                    follower.ends_at.get_or_insert(now + LINGER);
                }
            }
        }
        other_runs
    }

    /// Keeps connections to these members from now on, with their addresses from the map. Returns the members
    /// to which there was a connection for direct reads, and with which this OSD leads PGs from now on.
    pub fn follow(
        &mut self,
        now: Time,
        wanted: BTreeMap<OsdId, Wanted>,
        cluster: &ClusterView,
        me: OsdId,
    ) -> Vec<Member> {
        let mut newly_led = Vec::new();
        for (osd, wanted) in wanted {
            let Wanted { incarnation, is_led, gives_reads } = wanted;
            let info = cluster.osd(osd).filter(|info| info.incarnation == incarnation);
            let is_up = info.is_some_and(|info| info.up && !info.addresses.is_empty());
            let address_count = info.map_or(0, |info| info.addresses_for_peers().len());
            let first = info.map_or(0, |info| info.first_address_from(me));
            let new = || Follower {
                member: Member { osd, incarnation },
                is_led,
                gives_reads,
                is_up: false,
                address_count,
                data: Lane::new(now, first),
                lease: Lane::new(now, first),
                splits_credit: false,
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
            if is_led && !follower.is_led {
                follower.is_led = true;
                follower.data = Lane::new(now, first);
                newly_led.extend(follower.lease.up().map(|_| follower.member));
            }
            if is_led || !follower.is_led {
                follower.ends_at = None;
            }
        }
        if !self.followers.is_empty() {
            self.renew_at.get_or_insert(now);
        }
        newly_led
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

    /// Ends the time for which this OSD counted as the primary of PGs with a follower. Returns the connection
    /// for data, which must be closed; `None`: direct reads do not need the follower's leases either.
    pub fn end_leading(&mut self, osd: OsdId) -> Option<Option<ConnectionId>> {
        let follower = self.followers.get_mut(&osd).expect("the caller found it");
        if !follower.gives_reads {
            return None;
        }
        follower.is_led = false;
        follower.ends_at = None;
        Some(follower.data.connection())
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
        if !follower.is_wanted() || !follower.is_led || follower.told.is_some_and(is_told) {
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
        self.is_up && (self.ends_at.is_none() || self.gives_reads)
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
        let data = Some(&self.data).filter(|_| self.is_led);
        let mut lanes = data.into_iter().chain([&self.lease]);
        lanes.by_ref().any(|lane| lane.is_refused(self.address_count))
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
