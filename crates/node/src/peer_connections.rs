//! Connections between OSDs. The primary of a PG opens two to each other member: one for data, one for
//! leases, so that no large message delays a lease.
//!
//! Invariants
//!   1. A connection counts only with the very run of the OSD that the map's entries name: the
//!      handshake proves the run.
//!   2. At most one connection of each kind with each OSD in each direction; a newer one ends the
//!      one before.
//!   3. Without a connection a message is dropped. PGs are told of each connection that comes or goes.

use std::collections::BTreeMap;

use base::{ConnectionId, Duration, Incarnation, OsdId, Time};
use cluster::message::{ToMonitor, Unreachable};
use format::door::NetEffect;
use format::wire::{Member, Message, PeerMessage};

use crate::Effect;
use crate::cluster_view::ClusterView;
use crate::connection_ids::ConnectionIds;
use crate::lane::Lane;

/// A peer that has not said anything for so long is silent; the monitor is told as often.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long connections to an OSD stay open after this one leads no PG with it: over them it learns that
/// its lease is not used any more.
const LINGER: Duration = Duration::from_secs(1);
/// Most connections that one OSD may have to this one; a further one closes the oldest.
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
    /// The map says that its process is up.
    is_up: bool,
    address_count: usize,
    data: Lane,
    lease: Lane,
    /// When it last granted a lease, or when that was first expected.
    heard_at: Time,
    /// It is no longer a member; its connections end at this time.
    ends_at: Option<Time>,
    /// What the monitor was told about it last, and when.
    told: Option<(Time, Unreachable)>,
}

/// Who leads PGs of which this OSD is a member.
struct Primary {
    member: Member,
    /// When it last asked for a lease, or that was first expected, or its silence was last reported.
    since: Time,
}

/// A connection that another OSD opened.
struct Incoming {
    peer: Member,
    /// Known from the first message on.
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

    /// The member that one of our connections leads to, and its purpose.
    pub fn outgoing(&self, connection: ConnectionId) -> Option<(Member, Purpose)> {
        let (osd, purpose) = self.outgoing.get(&connection)?;
        Some((self.followers[osd].member, *purpose))
    }

    /// The connection to a follower, if there is one or one is being made.
    pub fn to(&self, osd: OsdId, purpose: Purpose) -> Option<ConnectionId> {
        self.followers.get(&osd)?.lane(purpose).connection()
    }

    /// The connection over which leases of this follower are renewed, if it is up.
    pub fn for_leases(&self, osd: OsdId) -> Option<ConnectionId> {
        self.followers.get(&osd)?.lease.up()
    }

    /// Members of PGs that this OSD leads, and some that were that until just now.
    pub fn followers(&self) -> Vec<OsdId> {
        self.followers.keys().copied().collect()
    }

    // ---- connections that come and go

    /// An OSD has connected to us. Returns an older connection from it, which must be closed.
    pub fn on_accepted(&mut self, connection: ConnectionId, peer: Member) -> Option<ConnectionId> {
        let of_peer = self.incoming.iter().filter(|(_, known)| known.peer.osd == peer.osd);
        let mut of_peer = of_peer.map(|(connection, _)| *connection);
        let oldest = of_peer.next();
        let is_one_too_many = of_peer.count() + 1 >= INCOMING_PER_OSD_MAX;
        self.incoming.insert(connection, Incoming { peer, purpose: None });
        oldest.filter(|_| is_one_too_many)
    }

    /// The handshake of one of our connections has passed.
    pub fn on_connected(&mut self, now: Time, osd: OsdId, purpose: Purpose) {
        let follower = self.followers.get_mut(&osd).expect("it has a connection");
        follower.lane_mut(purpose).on_connected(now);
        if purpose == Purpose::Lease {
            follower.heard_at = now;
        }
    }

    /// A connection is gone. `refused`: nobody listened at its address.
    pub fn on_closed(&mut self, now: Time, connection: ConnectionId, refused: bool) -> Gone {
        if let Some(incoming) = self.incoming.remove(&connection) {
            let osd = incoming.peer.osd;
            if self.from_primaries.get(&osd) == Some(&connection) {
                self.from_primaries.remove(&osd);
            }
            return Gone::Incoming;
        }
        let Some((osd, purpose)) = self.outgoing.remove(&connection) else { return Gone::Unknown };
        let follower = self.followers.get_mut(&osd).expect("it had a connection");
        let (member, address_count) = (follower.member, follower.address_count);
        let lane = follower.lane_mut(purpose);
        let carried_data = lane.up().is_some() && purpose == Purpose::Data;
        lane.on_lost(now, refused, address_count);
        Gone::Outgoing { member, carried_data, is_refused: lane.is_refused(address_count) }
    }

    /// The first message of an incoming connection tells its purpose. Returns its peer, and an older
    /// connection that it replaces. Fails if the connection already had another purpose.
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

    /// Connects to all followers whose time has come.
    pub fn connect_due(
        &mut self,
        now: Time,
        cluster: &ClusterView,
        ids: &mut ConnectionIds,
        effects: &mut Vec<Effect>,
    ) {
        for (osd, follower) in &mut self.followers {
            let info = cluster.osd(*osd).filter(|_| follower.is_wanted());
            let Some(info) = info else { continue };
            for purpose in [Purpose::Data, Purpose::Lease] {
                let lane = follower.lane_mut(purpose);
                if !lane.is_due(now) {
                    continue;
                }
                let connection = ids.next();
                let addresses = info.addresses_for_peers();
                let index = lane.connect(now, connection, addresses.len());
                self.outgoing.insert(connection, (*osd, purpose));
                let address = addresses[index].clone();
                effects.push(Effect::Net(NetEffect::Connect { connection, address }));
            }
        }
    }

    /// Connections that take too long to come.
    pub fn late(&self, now: Time) -> Vec<ConnectionId> {
        let lanes = self.followers.values().flat_map(|follower| [&follower.data, &follower.lease]);
        lanes.filter(|lane| lane.is_late(now)).filter_map(Lane::connection).collect()
    }

    // ---- the map

    /// The PGs that this OSD leads now have these members. Returns those to which connections of another
    /// run exist: close them before [`PeerConnections::follow`].
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

    /// Follows these members from now on, as the map names them.
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

    /// Connections of runs that the map names no more.
    pub fn of_earlier_runs(&self, cluster: &ClusterView) -> Vec<ConnectionId> {
        let is_over = |incoming: &Incoming| {
            let known = cluster.osd(incoming.peer.osd);
            known.is_some_and(|known| incoming.peer.incarnation < known.incarnation)
        };
        let over = self.incoming.iter().filter(|(_, incoming)| is_over(incoming));
        over.map(|(connection, _)| *connection).collect()
    }

    /// Expects requests for leases from the primaries of all PGs of which this OSD is a member.
    pub fn expect_primaries(&mut self, now: Time, cluster: &ClusterView) {
        let Some(wanted) = cluster.primaries_followed() else { return };
        self.primaries.retain(|_, primary| wanted.contains(&primary.member));
        for member in wanted {
            let new = Primary { member, since: now };
            self.primaries.entry(member.osd).or_insert(new);
        }
    }

    /// Followers that are none any more, and have had their time to hear that.
    pub fn over(&self, now: Time) -> Vec<OsdId> {
        let is_over = |follower: &Follower| follower.ends_at.is_some_and(|at| at <= now);
        let over = self.followers.iter().filter(|(_, follower)| is_over(follower));
        over.map(|(osd, _)| *osd).collect()
    }

    /// Nothing is connected to this follower any more. Its connections are closed before
    /// [`PeerConnections::remove`].
    pub fn stop_connecting(&mut self, osd: OsdId) {
        self.followers.get_mut(&osd).expect("the caller found it").is_up = false;
    }

    /// Forgets a follower. Requires: its connections are closed.
    pub fn remove(&mut self, osd: OsdId) {
        let gone = self.followers.remove(&osd).expect("the caller found it");
        assert!(gone.data.connection().is_none());
        assert!(gone.lease.connection().is_none());
    }

    // ---- leases, and who is silent

    /// Whether leases are to be renewed now; the next time is `every` later.
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

    /// A follower has granted a lease.
    pub fn on_granted(&mut self, now: Time, giver: OsdId) {
        self.followers.get_mut(&giver).expect("it has a connection").heard_at = now;
    }

    /// A primary asks for a lease.
    pub fn on_lease_asked(&mut self, now: Time, holder: Member) {
        let primary = self.primaries.get_mut(&holder.osd);
        if let Some(primary) = primary.filter(|known| known.member == holder) {
            primary.since = now;
        }
    }

    /// Followers that have been silent for too long, and the connections over which they are to be
    /// reached anew. A connection that lost packets may take long to come back. Where there is another
    /// address to try, the connection for data goes, too: the network may be gone.
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

    /// Connections for data with followers that are silent and that the map calls down: a process that
    /// stands still keeps its connections, and nothing should wait for it.
    pub fn silent_and_down(&self, now: Time) -> Vec<ConnectionId> {
        let is_gone = |follower: &&Follower| !follower.is_up && follower.is_silent(now);
        self.followers.values().filter(is_gone).filter_map(|follower| follower.data.up()).collect()
    }

    /// What the monitor is told of a follower that does not answer; about once a second.
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

    /// Another monitor may lead, which was told nothing. Gives the followers whose addresses refuse
    /// connections; of silent ones the next renewal tells.
    pub fn on_new_monitor(&mut self, now: Time) -> Vec<OsdId> {
        // Who leads may have changed while this OSD was not told.
        self.primaries.values_mut().for_each(|primary| primary.since = now);
        self.followers.values_mut().for_each(|follower| follower.told = None);
        let refused = self.followers.iter().filter(|(_, follower)| follower.is_refused());
        refused.map(|(osd, _)| *osd).collect()
    }

    /// Primaries that have stopped asking for leases. If a primary leads all PGs that it shares with
    /// others, it gives leases to none of them: only its missing requests show that it is gone.
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

/// What is left of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It was none with an OSD.
    Unknown,
    /// A peer had opened it.
    Incoming,
    /// It was one to a follower.
    Outgoing {
        member: Member,
        /// It was up, and for data.
        carried_data: bool,
        /// Nobody listens at any address of the follower.
        is_refused: bool,
    },
}

impl Follower {
    /// Whether a connection that it lacks is to be made.
    fn is_wanted(&self) -> bool {
        self.is_up && self.ends_at.is_none()
    }

    fn lane(&self, purpose: Purpose) -> &Lane {
        match purpose {
            Purpose::Data => &self.data,
            Purpose::Lease => &self.lease,
        }
    }

    fn lane_mut(&mut self, purpose: Purpose) -> &mut Lane {
        match purpose {
            Purpose::Data => &mut self.data,
            Purpose::Lease => &mut self.lease,
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
