//! A cluster for tests: several nodes with disks in memory, connected to each other; the test acts as their
//! monitor and client.
//!
//! Messages arrive in the order in which they were sent. Messages to a paused host, or between two hosts that
//! are cut off from each other, are kept until the fault is over; a second network, if there is one, is not
//! cut. There is one pool with one PG.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{
    BlockSize, BufferPool, ConnectionId, Duration, Epoch, Incarnation, MapRevision, OsdId, Scheme,
    SessionId, Time, TraceEvent, Version,
};
use blockstore::{BlockKey, STORE_SIZE_MIN, StoreId};
use cluster::map::{FailureDomain, MapDelta, OsdInfo, Pool, PoolDelta, PoolKind};
use cluster::message::{FromMonitor, Need, OsdReport, ToMonitor, Unreachable};
use format::door::{CloseReason, DiskEvent, NetEffect, NetEvent, Peer, Role};
use format::wire::{Member, Message, Op, Outcome, PROTOCOL_VERSIONS, PgEntry, Refusal, Request};

use super::rig::*;
use crate::{Effect, Event, Identity, Node, Settings, StopReason};

/// The number of the monitor as the other end of a host's link.
const MONITOR: usize = usize::MAX;

/// One process and its disk; only the disk while no process runs.
pub struct Host {
    pub node: Option<Node>,
    pub disk: MemoryDisk,
    /// The incarnation in the handshakes of its connections.
    pub incarnation: Incarnation,
    /// Whether the host is paused: nothing arrives, and no time passes for it.
    pub is_still: bool,
    /// Whether the monitor's changes to the map are withheld from the host.
    pub is_deaf: bool,
    /// Whether the disk completes nothing until [`Cluster::release_disk`].
    pub holds_disk: bool,
    held: Vec<DiskEvent>,
    pub stopped: Option<StopReason>,
    link: Option<ConnectionId>,
    /// Events that arrived while the host could not receive them.
    kept: VecDeque<Event>,
    runs: u64,
    pub told: Vec<ToMonitor>,
    /// Lines for the log.
    pub lines: Vec<TraceEvent>,
}

/// All hosts, and the connections between them.
pub struct Cluster {
    pub hosts: Vec<Host>,
    pub now: Time,
    /// Ends of connections: (host, connection id there) to (host, connection id there).
    wires: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    /// Events in transit: from, to, and the event.
    moving: VecDeque<(usize, usize, Event)>,
    cut: BTreeSet<(usize, usize)>,
    /// Whether every host has an address in a second network.
    pub has_second_network: bool,
    /// Ends of connections in the second network.
    second: BTreeSet<(usize, ConnectionId)>,
    accepted_next: u64,
    pub entry: PgEntry,
    pub revision: u64,
    /// The revision of the map that the client names.
    pub client_revision: u64,
    pub scheme: Scheme,
    pub block_size: BlockSize,
    /// Whether the test creates new epochs as a monitor would: for broken connections, and for complete
    /// learners.
    pub is_helpful: bool,
    sequence: u64,
    /// Number of messages that PGs on different OSDs have sent each other.
    pub peer_message_count: u64,
    pub replies: BTreeMap<u64, Result<Outcome, Refusal>>,
    /// Number of lease messages that were sent.
    pub lease_count: usize,
    /// The client's session.
    pub session: SessionId,
    /// The sessions that the map fences.
    pub fences: Vec<SessionId>,
    /// The protocol version that all connections choose.
    pub version: u16,
    /// Hosts that the map lists as down although their processes run.
    pub down: BTreeSet<usize>,
}

pub fn osd(index: usize) -> OsdId {
    OsdId::new(index as u32 + 1).unwrap()
}

fn index_of(osd: OsdId) -> usize {
    osd.get() as usize - 1
}

fn client_at(host: usize) -> ConnectionId {
    ConnectionId::new(1_000_001 + 2 * host as u64)
}

impl Host {
    fn new(index: usize) -> Host {
        Host {
            node: None,
            disk: MemoryDisk::formatted_as(osd(index), StoreId::new(100 + index as u128)),
            incarnation: Incarnation::ZERO,
            is_still: false,
            is_deaf: false,
            holds_disk: false,
            held: Vec::new(),
            stopped: None,
            link: None,
            kept: VecDeque::new(),
            runs: 0,
            told: Vec::new(),
            lines: Vec::new(),
        }
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("its process runs")
    }
}

impl Cluster {
    /// Creates this many hosts that have joined; none has a part in the PG.
    pub fn new(count: usize, replicas: u32) -> Cluster {
        Cluster::with_hosts((0..count).map(Host::new).collect(), replicas)
    }

    /// The same; each journal has this many bytes.
    pub fn with_journals(count: usize, journal_size: u64) -> Cluster {
        let host = |index: usize| {
            let store = StoreId::new(100 + index as u128);
            let disk = MemoryDisk::formatted_with_journal(osd(index), store, journal_size);
            Host { disk, ..Host::new(index) }
        };
        Cluster::with_hosts((0..count).map(host).collect(), 1)
    }

    fn with_hosts(hosts: Vec<Host>, replicas: u32) -> Cluster {
        let (count, entry) = (hosts.len(), PgEntry::new(PG, []));
        let mut cluster = Cluster {
            hosts,
            now: Time::from_nanos(1_000_000_000),
            wires: BTreeMap::new(),
            moving: VecDeque::new(),
            cut: BTreeSet::new(),
            has_second_network: false,
            second: BTreeSet::new(),
            accepted_next: 1,
            entry,
            revision: 0,
            client_revision: 1,
            scheme: Scheme::Copies { count: replicas as u8 },
            block_size: BlockSize::MIN,
            is_helpful: true,
            sequence: 0,
            peer_message_count: 0,
            replies: BTreeMap::new(),
            lease_count: 0,
            session: SESSION,
            fences: Vec::new(),
            version: *PROTOCOL_VERSIONS.end(),
            down: BTreeSet::new(),
        };
        for host in 0..count {
            cluster.start(host);
        }
        // Leases of earlier runs expire.
        cluster.advance(1_000);
        cluster
    }

    /// Creates a cluster in which the first `copies` hosts serve and host 0 leads.
    pub fn serving(copies: usize) -> Cluster {
        let mut cluster = Cluster::new(3, copies as u32);
        cluster.set_entry(&(0..copies).collect::<Vec<_>>(), &[]);
        cluster.advance(200);
        assert!(cluster.is_served(0), "{:?}", cluster.report(0));
        cluster
    }

    /// Creates a cluster with a pool of two data parts and parity: host `i` of the first three has part `i`,
    /// and host 0 leads. There is a fourth host.
    pub fn serving_parity() -> Cluster {
        let mut cluster = Cluster::new(4, 1);
        cluster.scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
        cluster.set_entry(&[0, 1, 2], &[]);
        cluster.advance(200);
        assert!(cluster.is_served(0), "{:?}", cluster.report(0));
        cluster
    }

    /// Starts a process.
    pub fn start(&mut self, host: usize) {
        let identity = Identity {
            cluster: CLUSTER,
            osd: osd(host),
            store: StoreId::new(100 + host as u128).to_string(),
            monitors: vec!["tcp:monitor:1".into()],
            addresses: vec![format!("tcp:{}:1", host)],
            peer_addresses: Vec::new(),
            pid: 9,
            path: "/osd".into(),
            host: "here".into(),
            supervised: false,
        };
        let mut effects = Vec::new();
        let (settings, pool) = (Settings::default(), BufferPool::default());
        let node = Node::new(identity, settings, pool, STORE_SIZE_MIN, self.now, &mut effects);
        let known = &mut self.hosts[host];
        assert!(known.node.is_none());
        (known.node, known.stopped) = (Some(node), None);
        self.run(host, effects);
        self.accept_client(host);
        self.pump();
    }

    fn accept_client(&mut self, host: usize) {
        let connection = client_at(host);
        let event = NetEvent::Accepted { connection, peer: client() };
        self.moving.push_back((MONITOR, host, Event::Net(event)));
    }

    /// Kills a process: its connections are reset.
    pub fn kill(&mut self, host: usize) {
        let known = &mut self.hosts[host];
        known.node = None;
        (known.incarnation, known.is_still) = (Incarnation::ZERO, false);
        known.kept.clear();
        known.held.clear();
        self.moving.retain(|(_, to, _)| *to != host);
        let ends: Vec<_> = self.wires.keys().copied().filter(|(at, _)| *at == host).collect();
        for (_, connection) in ends {
            self.close(host, connection);
        }
        self.pump();
    }

    /// Resets every connection between two hosts.
    pub fn break_wires(&mut self, one: usize, other: usize) {
        let between = self.wires.iter().filter(|(from, to)| from.0 == one && to.0 == other);
        let ends: Vec<_> = between.map(|(from, to)| (*from, *to)).collect();
        for ((_, at_one), (_, at_other)) in ends {
            self.wires.remove(&(one, at_one));
            self.wires.remove(&(other, at_other));
            for (host, connection) in [(one, at_one), (other, at_other)] {
                let event = NetEvent::Closed { connection, reason: CloseReason::Reset };
                self.moving.push_back((host, host, Event::Net(event)));
            }
        }
        self.pump();
    }

    /// Resets the client's connection to a host.
    pub fn break_client(&mut self, host: usize) {
        let closed = NetEvent::Closed { connection: client_at(host), reason: CloseReason::Reset };
        self.give(host, Event::Net(closed));
        self.pump();
    }

    /// Breaks the connection to the monitor, so that the host looks for another one.
    pub fn break_link(&mut self, host: usize) {
        let connection = self.hosts[host].link.take().expect("it has joined");
        self.wires.remove(&(host, connection));
        let event = NetEvent::Closed { connection, reason: CloseReason::Reset };
        self.give(host, Event::Net(event));
        self.pump();
    }

    /// Cuts two hosts off from each other until [`Cluster::mend`].
    pub fn part(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub fn mend(&mut self) {
        self.cut.clear();
        self.pump();
    }

    /// Resumes a paused process and delivers, at the current time, the events that arrived meanwhile.
    pub fn go_on(&mut self, host: usize) {
        self.hosts[host].is_still = false;
        for event in std::mem::take(&mut self.hosts[host].kept) {
            self.moving.push_back((host, host, event));
        }
        self.pump();
    }

    /// Makes the disk of a host complete what it held, and everything later.
    pub fn release_disk(&mut self, host: usize) {
        self.hosts[host].holds_disk = false;
        for event in std::mem::take(&mut self.hosts[host].held) {
            self.give(host, Event::Disk(event));
        }
        self.pump();
    }

    fn run(&mut self, host: usize, mut effects: Vec<Effect>) {
        loop {
            let mut events = Vec::new();
            for effect in effects.drain(..) {
                match effect {
                    Effect::Disk(effect) => {
                        let known = &mut self.hosts[host];
                        let event = known.disk.carry_out(effect);
                        let ends = if known.holds_disk { &mut known.held } else { &mut events };
                        ends.push(event);
                    }
                    Effect::Engine(effect) => unreachable!("{effect:?} without an engine"),
                    Effect::Net(effect) => self.net(host, effect),
                    Effect::Joined { incarnation } => self.hosts[host].incarnation = incarnation,
                    Effect::LogLevel(_) => {}
                    Effect::Trace(event) => self.hosts[host].lines.push(event),
                    Effect::Stop(reason) => self.hosts[host].stopped = Some(reason),
                }
            }
            let now = self.now;
            let Some(node) = self.hosts[host].node.as_mut() else { return };
            for event in events {
                node.apply(now, Event::Disk(event), &mut effects);
            }
            node.finish_turn(now, &mut effects);
            if effects.is_empty() {
                break;
            }
        }
        if self.hosts[host].stopped.is_some() && self.hosts[host].node.is_some() {
            self.kill(host);
        }
    }

    fn net(&mut self, host: usize, effect: NetEffect) {
        match effect {
            NetEffect::Connect { connection, address } => self.connect(host, connection, &address),
            NetEffect::Close { connection } => self.close(host, connection),
            NetEffect::Send { connection, message } if connection == client_at(host) => {
                let Message::Reply(reply) = message else { panic!("{message:?} to a client") };
                self.replies.insert(reply.sequence, reply.outcome);
            }
            NetEffect::Send { connection, message } => {
                let Some(&(to, connection)) = self.wires.get(&(host, connection)) else { return };
                if to == MONITOR {
                    match message {
                        Message::Control(text) => {
                            self.monitor_hears(host, serde_json::from_str(&text).unwrap());
                        }
                        Message::Reply(reply) => {
                            self.replies.insert(reply.sequence, reply.outcome);
                        }
                        message => panic!("{message:?} to a monitor"),
                    }
                    return;
                }
                self.peer_message_count += u64::from(matches!(message, Message::Peer(_)));
                self.lease_count += usize::from(matches!(message, Message::Lease(_)));
                let event = NetEvent::Received { connection, message };
                self.moving.push_back((host, to, Event::Net(event)));
            }
        }
    }

    fn connect(&mut self, host: usize, connection: ConnectionId, address: &str) {
        let place = address.split(':').nth(1).unwrap();
        if place == "monitor" {
            self.hosts[host].link = Some(connection);
            self.wires.insert((host, connection), (MONITOR, connection));
            let event = NetEvent::Connected { connection, peer: monitor(), version: self.version };
            return self.moving.push_back((MONITOR, host, Event::Net(event)));
        }
        let to: usize = place.parse().unwrap();
        if self.hosts[to].node.is_none() {
            let event = NetEvent::Closed { connection, reason: CloseReason::Refused };
            return self.moving.push_back((to, host, Event::Net(event)));
        }
        let is_second = address.ends_with(":2");
        if self.hosts[to].is_still || (self.cut.contains(&(host, to)) && !is_second) {
            return;
        }
        let peer = |index: usize| Peer {
            cluster: CLUSTER,
            role: Role::Osd(osd(index), self.hosts[index].incarnation),
        };
        let there = ConnectionId::new(self.accepted_next);
        let accepted = NetEvent::Accepted { connection: there, peer: peer(host) };
        let connected = NetEvent::Connected { connection, peer: peer(to), version: self.version };
        self.accepted_next += 2;
        self.wires.insert((host, connection), (to, there));
        self.wires.insert((to, there), (host, connection));
        if is_second {
            self.second.extend([(host, connection), (to, there)]);
        }
        self.moving.push_back((host, to, Event::Net(accepted)));
        self.moving.push_back((to, host, Event::Net(connected)));
    }

    fn close(&mut self, host: usize, connection: ConnectionId) {
        let Some((to, there)) = self.wires.remove(&(host, connection)) else { return };
        if to == MONITOR {
            self.hosts[host].link = None;
            return;
        }
        self.wires.remove(&(to, there));
        // Events in transit to the side that closed the connection are dropped.
        let is_of = |event: &Event| match event {
            Event::Net(
                NetEvent::Received { connection: of, .. }
                | NetEvent::Connected { connection: of, .. }
                | NetEvent::Accepted { connection: of, .. },
            ) => *of == connection,
            _ => false,
        };
        self.moving.retain(|(_, at, event)| *at != host || !is_of(event));
        self.hosts[host].kept.retain(|event| !is_of(event));
        let event = NetEvent::Closed { connection: there, reason: CloseReason::Reset };
        self.moving.push_back((host, to, Event::Net(event)));
    }

    /// Delivers all events that can be delivered.
    pub fn pump(&mut self) {
        let mut steps = 0;
        let mut parted = VecDeque::new();
        while let Some((from, to, event)) = self.moving.pop_front() {
            steps += 1;
            assert!(steps < 1_000_000, "they never come to rest");
            if self.cut.contains(&(from, to)) && !self.is_in_second(to, &event) {
                parted.push_back((from, to, event));
                continue;
            }
            if self.hosts[to].is_still {
                self.hosts[to].kept.push_back(event);
                continue;
            }
            self.give(to, event);
        }
        self.moving = parted;
    }

    fn is_in_second(&self, host: usize, event: &Event) -> bool {
        let Event::Net(event) = event else { return false };
        let (NetEvent::Accepted { connection, .. }
        | NetEvent::Connected { connection, .. }
        | NetEvent::Received { connection, .. }
        | NetEvent::Closed { connection, .. }) = event;
        self.second.contains(&(host, *connection))
    }

    /// Passes an event to a node.
    pub fn give(&mut self, host: usize, event: Event) {
        let mut effects = Vec::new();
        let now = self.now;
        let Some(node) = self.hosts[host].node.as_mut() else { return };
        node.apply(now, event, &mut effects);
        self.run(host, effects);
    }

    /// Lets time pass, with a tick at each deadline.
    pub fn advance(&mut self, milliseconds: u64) {
        let end = self.now + Duration::from_millis(milliseconds);
        let mut late_count = 0;
        loop {
            self.pump();
            let running = self.hosts.iter().enumerate().filter(|(_, host)| !host.is_still);
            let deadlines =
                running.filter_map(|(index, host)| Some((host.node.as_ref()?.deadline()?, index)));
            let Some((at, host)) = deadlines.min().filter(|(at, _)| *at <= end) else { break };
            late_count = if at <= self.now { late_count + 1 } else { 0 };
            assert!(late_count < 10_000, "host {host} asks for a tick again and again");
            self.now = self.now.max(at);
            self.give(host, Event::Tick);
        }
        self.now = end;
    }

    fn monitor_hears(&mut self, host: usize, message: ToMonitor) {
        self.hosts[host].told.push(message.clone());
        match message {
            ToMonitor::OsdBoot { incarnation: Some(incarnation), .. } => {
                self.monitor_says(host, &FromMonitor::OsdBooted { incarnation });
            }
            ToMonitor::OsdBoot { .. } => {
                let known = &mut self.hosts[host];
                known.runs += 1;
                let incarnation = Incarnation::new(known.runs);
                self.monitor_says(host, &FromMonitor::OsdBooted { incarnation });
            }
            ToMonitor::Ping => self.monitor_says(host, &FromMonitor::Pong),
            ToMonitor::Subscribe { .. } if !self.hosts[host].is_deaf => self.send_map(host),
            ToMonitor::PgNeeds { needs } if self.is_helpful => {
                for need in needs {
                    if need.epoch == self.entry.epoch {
                        self.help(need.what);
                    }
                }
            }
            _ => {}
        }
    }

    fn help(&mut self, need: Need) {
        let entry = &self.entry;
        let mut acting: Vec<usize> = entry.acting().map(|m| index_of(m.osd)).collect();
        let mut learners: Vec<usize> = entry.learning().map(|m| index_of(m.osd)).collect();
        match need {
            Need::NewEpoch => {}
            Need::Complete(member) => {
                learners.retain(|index| *index != index_of(member.osd));
                acting.push(index_of(member.osd));
            }
            Need::Failed(..) | Need::Return(..) | Need::CallBack(_) => return,
        }
        self.set_entry(&acting, &learners);
    }

    pub fn monitor_says(&mut self, host: usize, message: &FromMonitor) {
        let Some(connection) = self.hosts[host].link else { return };
        let message = Message::Control(serde_json::to_string(message).unwrap());
        let event = NetEvent::Received { connection, message };
        self.moving.push_back((MONITOR, host, Event::Net(event)));
    }

    /// Creates the next entry, with the newest runs of these OSDs; the first one leads.
    pub fn set_entry(&mut self, acting: &[usize], learners: &[usize]) {
        let member = |index: &usize| Member {
            osd: osd(*index),
            incarnation: Incarnation::new(self.hosts[*index].runs),
        };
        self.revision += 1;
        let (epoch, revision) = (self.entry.epoch.next(), MapRevision::new(self.revision));
        let entry = PgEntry::new(PG, acting.iter().map(member));
        let entry = entry.with_learners(learners.iter().map(member));
        self.entry = PgEntry { epoch, revision, ..entry };
        self.publish();
    }

    /// Sends the map to all hosts that can receive it.
    pub fn publish(&mut self) {
        for host in 0..self.hosts.len() {
            if !self.hosts[host].is_deaf {
                self.send_map(host);
            }
        }
    }

    fn send_map(&mut self, host: usize) {
        if self.revision == 0 {
            return;
        }
        let info = |index: usize| OsdInfo {
            id: osd(index),
            revision: self.revision,
            addresses: vec![format!("tcp:{index}:{}", 1 + u8::from(self.has_second_network))],
            peer_addresses: match self.has_second_network {
                true => vec![format!("tcp:{index}:1")],
                false => Vec::new(),
            },
            incarnation: Incarnation::new(self.hosts[index].runs),
            up: self.hosts[index].node.is_some() && !self.down.contains(&index),
            in_cluster: true,
        };
        let pool = Pool {
            id: POOL,
            name: "default".into(),
            scheme: self.scheme,
            min_size: 1,
            pg_count: 1,
            failure_domain: FailureDomain::Osd,
            block_size: self.block_size,
            kind: PoolKind::Block,
        };
        let delta = PoolDelta {
            since: MapRevision::ZERO,
            revision: MapRevision::new(self.revision),
            pool,
            pgs: vec![self.entry.clone()],
            fences: self.fences.clone(),
            fence_ranges: Vec::new(),
        };
        let osds = (0..self.hosts.len()).map(info).collect();
        let delta = MapDelta { osds, pools: vec![delta], ..MapDelta::default() };
        self.monitor_says(host, &FromMonitor::Map(delta));
    }

    /// Sends a client request to this host, in the map's epoch; returns its sequence.
    pub fn send(&mut self, host: usize, op: Op) -> u64 {
        self.send_in(host, self.entry.epoch, op)
    }

    /// Sends a client request in the given epoch; returns its sequence.
    pub fn send_in(&mut self, host: usize, epoch: Epoch, op: Op) -> u64 {
        self.send_over(host, client_at(host), (self.session, epoch), op)
    }

    /// Sends a request of the monitor's tasks to this host; returns its sequence.
    pub fn send_task(&mut self, host: usize, op: Op) -> u64 {
        let link = self.hosts[host].link.expect("it has joined");
        self.send_over(host, link, (SessionId::ZERO, self.entry.epoch), op)
    }

    /// Sends a request over this connection; returns its sequence.
    pub fn send_over(
        &mut self,
        host: usize,
        connection: ConnectionId,
        (session, epoch): (SessionId, Epoch),
        op: Op,
    ) -> u64 {
        self.sequence += 1;
        let request = Request {
            session,
            sequence: self.sequence,
            pg: PG,
            epoch,
            revision: MapRevision::new(self.client_revision),
            op,
        };
        let message = Message::Request(request);
        let event = NetEvent::Received { connection, message };
        self.moving.push_back((MONITOR, host, Event::Net(event)));
        self.pump();
        self.sequence
    }

    /// Sends a request and returns its reply, which must arrive at once.
    pub fn ask(&mut self, host: usize, op: Op) -> Result<Outcome, Refusal> {
        let sequence = self.send(host, op);
        self.replies.remove(&sequence).expect("answered at once")
    }

    /// Returns the bytes that fill each unit of a read.
    pub fn read_bytes(&mut self, host: usize, op: Op) -> Vec<u8> {
        bytes_of(self.ask(host, op))
    }

    /// Returns the blocks that an OSD holds of the PG: key, version, and whether it is a tombstone.
    pub fn blocks(&self, host: usize) -> Vec<(BlockKey, Version, bool)> {
        self.hosts[host].node().store.blocks(POOL, 0, u32::MAX, None).collect()
    }

    pub fn report(&self, host: usize) -> OsdReport {
        let told = self.hosts[host].told.iter().rev();
        let mut reports = told.filter_map(|told| match told {
            ToMonitor::OsdReport(report) => Some(report.clone()),
            _ => None,
        });
        reports.next().expect("a report was sent")
    }

    /// Returns whether the host serves the PG in the newest epoch.
    pub fn is_served(&self, host: usize) -> bool {
        let node = self.hosts[host].node();
        let Some(pg) = node.pgs.get(PG) else { return false };
        let is_newest = pg.entry().is_some_and(|entry| entry.epoch == self.entry.epoch);
        is_newest && matches!(pg.serving(), pg::Serving::Active)
    }

    /// Returns the reports of this host about peers that do not respond, with the number of each peer.
    pub fn unreachable(&self, host: usize) -> Vec<(usize, Unreachable)> {
        let told = self.hosts[host].told.iter();
        let of = told.filter_map(|told| match told {
            ToMonitor::OsdUnreachable { osd, how, .. } => Some((index_of(*osd), *how)),
            _ => None,
        });
        of.collect()
    }

    /// Returns the needs of PGs that the host reported.
    pub fn needs(&self, host: usize) -> Vec<Need> {
        let told = self.hosts[host].told.iter();
        let of = told.filter_map(|told| match told {
            ToMonitor::PgNeeds { needs } => Some(needs.iter().map(|need| need.what.clone())),
            _ => None,
        });
        of.flatten().collect()
    }

    /// Returns the hosts that booted as suspect, in order of their boots.
    pub fn suspect_boots(&self) -> Vec<usize> {
        let told = self.hosts.iter().enumerate();
        let boots = told.flat_map(|(host, known)| known.told.iter().map(move |told| (host, told)));
        let is_suspect =
            |told: &ToMonitor| matches!(told, ToMonitor::OsdBoot { suspect: true, .. });
        boots.filter(|(_, told)| is_suspect(told)).map(|(host, _)| host).collect()
    }

    /// Returns the needs that all hosts reported for the current epoch.
    pub fn needs_of_epoch(&self) -> Vec<Need> {
        let told = self.hosts.iter().flat_map(|host| &host.told);
        let of = told.filter_map(|told| match told {
            ToMonitor::PgNeeds { needs } => Some(needs.iter()),
            _ => None,
        });
        let of = of.flatten().filter(|need| need.epoch == self.entry.epoch);
        of.map(|need| need.what.clone()).collect()
    }

    /// Returns how often the host's process has been started; this is also the number of its run.
    pub fn runs(&self, host: usize) -> u64 {
        self.hosts[host].runs
    }

    /// Returns the connections of a host with other hosts.
    pub fn wires_at(&self, host: usize) -> Vec<ConnectionId> {
        let between = self.wires.iter().filter(|(from, to)| from.0 == host && to.0 != MONITOR);
        between.map(|((_, connection), _)| *connection).collect()
    }

    /// Returns the connection at `host` that `from` opened and that carries data.
    pub fn primary_connection(&self, host: usize, from: usize) -> ConnectionId {
        let incarnation = self.hosts[from].incarnation;
        let primary = Member { osd: osd(from), incarnation };
        self.hosts[host].node().peer_connections.to_primary(primary).expect("it leads")
    }
}
