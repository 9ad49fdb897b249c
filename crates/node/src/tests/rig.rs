//! A node over a disk in memory; the test acts as its monitor and its clients.

use std::collections::{BTreeMap, VecDeque};

use base::checksum::checksum_units;
use base::{
    BlockSize, Buffer, BufferPool, Checksum, ClusterId, ConnectionId, Duration, Epoch, ImageId,
    Incarnation, MapRevision, MonitorId, OsdId, PgId, PoolId, Scheme, SessionId, StripeIndex, Time,
    TraceEvent, UNIT_SIZE, Version,
};
use blockstore::{
    CommitMode, CreateOptions, EngineFound, NoteKey, RequestId, STORE_SIZE_MIN, Store, StoreId,
};
use cluster::map::{FailureDomain, MapDelta, Pool, PoolDelta, PoolKind};
use cluster::message::{FromMonitor, ToMonitor};
use engine::Twin;
use format::disk::{SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock};
use format::door::{CloseReason, DiskEffect, DiskEvent, NetEffect, NetEvent, Peer, Role};
use format::engine::{EngineEffect, EngineEvent};
use format::wire::{
    Member, Message, Op, Outcome, PROTOCOL_VERSIONS, PeerMessage, PgEntry, Place, Refusal, Reply,
    Request,
};

use crate::{Effect, Engine, Event, Identity, Node, Settings, StopReason};

pub const UNIT: u32 = UNIT_SIZE as u32;
pub const CLUSTER: ClusterId = ClusterId::new(77);
pub const OSD: OsdId = OsdId::FIRST;
pub const POOL: PoolId = PoolId::FIRST;
pub const PG: PgId = PgId { pool: POOL, number: 0 };
/// The connection of the client.
pub const CLIENT: ConnectionId = ConnectionId::new(1);
pub const SESSION: SessionId = SessionId::new(40);
const STORE: StoreId = StoreId::new(5);
/// The engine that belongs to the store.
pub const ENGINE: engine::Identity = engine::Identity { engine: 14, store: 5 };
const PAGE: u64 = 4096;

/// A disk that executes requests at once, or holds them back.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    /// Size of a formatted disk, in bytes.
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    /// Pages that were written but not flushed, with their content at the last flush.
    flushed: BTreeMap<u64, Option<Vec<u8>>>,
    pub flush_count: usize,
}

impl MemoryDisk {
    /// Creates a disk with an empty store.
    pub fn formatted() -> MemoryDisk {
        MemoryDisk::formatted_as(OSD, STORE)
    }

    /// Creates a disk that is large enough for more concurrent writes than its journal accepts.
    pub fn formatted_large() -> MemoryDisk {
        MemoryDisk::formatted_of_size(512 << 20, OSD, STORE)
    }

    /// Creates a disk with the empty store of another OSD.
    pub fn formatted_as(osd: OsdId, store: StoreId) -> MemoryDisk {
        MemoryDisk::formatted_of_size(STORE_SIZE_MIN, osd, store)
    }

    /// The same with a journal of at most this size, in bytes.
    pub fn formatted_with_journal(osd: OsdId, store: StoreId, journal_size: u64) -> MemoryDisk {
        let mut disk = MemoryDisk::formatted_as(osd, store);
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        for offset in SUPERBLOCK_OFFSETS {
            disk.read(offset, &mut bytes);
            if let Ok(mut superblock) = Superblock::decode(&bytes) {
                superblock.journal.size = superblock.journal.size.min(journal_size);
                disk.write(offset, &superblock.encode());
            }
        }
        disk.flushed.clear();
        disk
    }

    fn formatted_of_size(size: u64, osd: OsdId, store: StoreId) -> MemoryDisk {
        let options = CreateOptions {
            cluster: CLUSTER,
            osd,
            store,
            size,
            sector_size: 4096,
            commit: CommitMode::Fsync,
            engine: None,
        };
        let created = blockstore::create(&options).unwrap();
        let mut disk = MemoryDisk { size, ..MemoryDisk::default() };
        for (offset, bytes) in created.images {
            disk.write(offset, &bytes);
        }
        disk.flushed.clear();
        disk
    }

    /// Discards everything that was not flushed.
    pub fn lose_power(&mut self) {
        for (page, bytes) in std::mem::take(&mut self.flushed) {
            match bytes {
                Some(bytes) => drop(self.pages.insert(page, bytes)),
                None => drop(self.pages.remove(&page)),
            }
        }
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = (offset % PAGE) as usize;
            let length = bytes.len().min(PAGE as usize - start);
            let (part, rest) = bytes.split_at(length);
            let old = self.pages.get(&(offset / PAGE));
            self.flushed.entry(offset / PAGE).or_insert_with(|| old.cloned());
            let page = self.pages.entry(offset / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[start..start + length].copy_from_slice(part);
            offset += length as u64;
            bytes = rest;
        }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read(&self, mut offset: u64, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let start = (offset % PAGE) as usize;
            let length = bytes.len().min(PAGE as usize - start);
            let (part, rest) = bytes.split_at_mut(length);
            match self.pages.get(&(offset / PAGE)) {
                Some(page) => part.copy_from_slice(&page[start..start + length]),
                None => part.fill(0),
            }
            offset += length as u64;
            bytes = rest;
        }
    }

    /// Corrupts a page, if it was ever written.
    pub fn rot(&mut self, page: u64) {
        if let Some(page) = self.pages.get_mut(&page) {
            page[20] ^= 1;
            page[100] ^= 1;
        }
    }

    /// Stores a note under this key, through a store of its own, while no node runs.
    pub fn put_note(&mut self, key: NoteKey, bytes: &[u8]) {
        let mut effects = Vec::new();
        let (settings, pool) = (blockstore::Settings::default(), BufferPool::default());
        let mut store = Store::open(settings, pool, self.size, &mut effects);
        let mut request = Some(blockstore::Request::Note { key, bytes: bytes.to_vec() });
        let mut is_done = false;
        while !effects.is_empty() {
            for effect in std::mem::take(&mut effects) {
                let event = match effect {
                    blockstore::Effect::Disk(effect) => {
                        blockstore::Event::Disk(self.carry_out(effect))
                    }
                    blockstore::Effect::Opened => {
                        let request = request.take().expect("it opens once");
                        blockstore::Event::Request { id: RequestId(1), request }
                    }
                    blockstore::Effect::Done { result, .. } => {
                        is_done = result.is_ok();
                        continue;
                    }
                    blockstore::Effect::Engine(effect) => panic!("{effect:?}"),
                    blockstore::Effect::Stopped { reason } => panic!("it stopped: {reason:?}"),
                };
                store.apply(Time::ZERO, event, &mut effects);
                store.submit(&mut effects);
            }
        }
        assert!(is_done && store.note(key) == Some(bytes));
    }

    pub fn carry_out(&mut self, effect: DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Read { op, offset, mut buffer } => {
                self.read(offset, &mut buffer);
                DiskEvent::Read { op, buffer, result: Ok(()) }
            }
            DiskEffect::Write { op, mut offset, buffers, .. } => {
                for buffer in buffers {
                    self.write(offset, &buffer);
                    offset += buffer.len() as u64;
                }
                DiskEvent::Done { op, result: Ok(()) }
            }
            DiskEffect::Flush { op } => {
                self.flushed.clear();
                self.flush_count += 1;
                DiskEvent::Done { op, result: Ok(()) }
            }
            DiskEffect::Reserve { op, .. } | DiskEffect::Discard { op, .. } => {
                DiskEvent::Done { op, result: Ok(()) }
            }
        }
    }
}

/// A node and the effects that it has requested.
pub struct Rig {
    pub node: Node,
    pub disk: MemoryDisk,
    pub now: Time,
    /// Whether the disk holds back all requests.
    pub holds_disk: bool,
    held: VecDeque<DiskEffect>,
    /// The engine, if there is one.
    pub engine: Option<Twin>,
    /// Whether the engine's events are held back.
    pub holds_engine: bool,
    /// What the engine was asked for, as text.
    pub engine_asked: Vec<String>,
    pub connects: Vec<(ConnectionId, String)>,
    pub closed: Vec<ConnectionId>,
    pub told: Vec<ToMonitor>,
    /// Whether the monitor is silent: it does not even answer pings.
    pub is_silent: bool,
    is_pinged: bool,
    pub replies: Vec<(ConnectionId, Reply)>,
    /// Messages to other OSDs.
    pub to_osds: Vec<PeerMessage>,
    pub joined: Vec<Incarnation>,
    pub stopped: Option<StopReason>,
    /// Lines for the log.
    pub lines: Vec<TraceEvent>,
    sequence: u64,
}

pub fn identity() -> Identity {
    Identity {
        cluster: CLUSTER,
        osd: OSD,
        store: STORE.to_string(),
        monitors: vec!["tcp:a:1".into(), "tcp:b:1".into()],
        addresses: vec!["tcp:c:1".into()],
        peer_addresses: Vec::new(),
        pid: 9,
        path: "/osd".into(),
        host: "here".into(),
        supervised: false,
    }
}

pub fn client() -> Peer {
    Peer { cluster: CLUSTER, role: Role::Client }
}

pub fn monitor() -> Peer {
    Peer { cluster: CLUSTER, role: Role::Monitor(MonitorId::FIRST) }
}

/// Returns an entry of [`PG`] that this OSD serves alone in the run `incarnation`.
pub fn entry(epoch: u32, incarnation: u64) -> PgEntry {
    let member = Member { osd: OSD, incarnation: Incarnation::new(incarnation) };
    let (epoch, revision) = (Epoch::new(epoch), MapRevision::new(1));
    PgEntry { epoch, revision, ..PgEntry::new(PG, [member]) }
}

pub fn pool_delta(since: u64, revision: u64, pgs: Vec<PgEntry>, fences: &[u64]) -> PoolDelta {
    let pool = Pool {
        id: POOL,
        name: "default".into(),
        scheme: Scheme::Copies { count: 1 },
        min_size: 1,
        pg_count: 1,
        failure_domain: FailureDomain::Osd,
        block_size: BlockSize::MIN,
        kind: PoolKind::Block,
    };
    let fences: Vec<SessionId> = fences.iter().map(|session| SessionId::new(*session)).collect();
    let (since, revision) = (MapRevision::new(since), MapRevision::new(revision));
    PoolDelta { since, revision, pool, pgs, fences, fence_ranges: Vec::new() }
}

pub fn map(since: u64, revision: u64, pgs: Vec<PgEntry>, fences: &[u64]) -> FromMonitor {
    let pools = vec![pool_delta(since, revision, pgs, fences)];
    FromMonitor::Map(MapDelta { pools, ..MapDelta::default() })
}

pub fn place(image: u32, stripe: u32) -> Place {
    Place {
        image: ImageId::new(image).unwrap(),
        seed: ImageId::FIRST,
        stripe: StripeIndex::new(stripe),
    }
}

pub fn fill(units: u32, byte: u8) -> (Vec<Checksum>, Buffer) {
    let data = BufferPool::default().copy_of(&vec![byte; (units * UNIT) as usize]);
    let mut checksums = Vec::new();
    checksum_units(&data, &mut checksums);
    (checksums, data)
}

pub fn write_in(place: Place, first: u32, units: u32, byte: u8) -> Op {
    let (checksums, data) = fill(units, byte);
    Op::Write { place, offset: first * UNIT, checksums, data, expected: None, lazy: false }
}

pub fn write(first: u32, units: u32, byte: u8) -> Op {
    write_in(place(1, 0), first, units, byte)
}

pub fn read(first: u32, units: u32) -> Op {
    let (offset, length) = (first * UNIT, units * UNIT);
    Op::Read { place: place(1, 0), offset, length, parents: Vec::new() }
}

pub fn version(epoch: u32, counter: u64) -> Version {
    Version { epoch: Epoch::new(epoch), counter }
}

pub fn is_written(outcome: &Result<Outcome, Refusal>) -> bool {
    matches!(outcome, Ok(Outcome::Written { .. }))
}

pub fn written(epoch: u32, counter: u64) -> Result<Outcome, Refusal> {
    Ok(Outcome::Written { version: version(epoch, counter), durable: true })
}

impl Rig {
    /// Creates a node that has opened its store and requested a connection to a monitor.
    pub fn over(disk: MemoryDisk) -> Rig {
        Rig::with(disk, identity(), Settings::default())
    }

    pub fn with(disk: MemoryDisk, identity: Identity, settings: Settings) -> Rig {
        Rig::start(disk, None, identity, settings)
    }

    /// Creates a node with an engine, which has just been created or whose process has ended.
    pub fn with_engine(disk: MemoryDisk, mut engine: Twin) -> Rig {
        engine.crash(&mut |_| 0);
        let families = engine.open(ENGINE).expect("it is its own");
        let found = EngineFound { identity: ENGINE, families };
        let settings = Settings { engine: Engine::Open(found), ..Settings::default() };
        Rig::start(disk, Some(engine), identity(), settings)
    }

    fn start(
        disk: MemoryDisk,
        engine: Option<Twin>,
        identity: Identity,
        settings: Settings,
    ) -> Rig {
        let mut effects = Vec::new();
        let now = Time::from_nanos(1_000_000_000);
        let pool = BufferPool::default();
        let size = disk.size.max(STORE_SIZE_MIN);
        let node = Node::new(identity, settings, pool, size, now, &mut effects);
        let mut rig = Rig {
            node,
            disk,
            now,
            holds_disk: false,
            held: VecDeque::new(),
            engine,
            holds_engine: false,
            engine_asked: Vec::new(),
            connects: Vec::new(),
            closed: Vec::new(),
            told: Vec::new(),
            is_silent: false,
            is_pinged: false,
            replies: Vec::new(),
            to_osds: Vec::new(),
            joined: Vec::new(),
            stopped: None,
            lines: Vec::new(),
            sequence: 0,
        };
        rig.run(effects);
        rig
    }

    /// Creates a node that has joined in its first run and serves epoch 1 to one client.
    pub fn serving() -> Rig {
        Rig::serving_over(MemoryDisk::formatted(), 1, 1)
    }

    /// Creates a serving node over a disk that was used before.
    pub fn serving_over(disk: MemoryDisk, epoch: u32, incarnation: u64) -> Rig {
        Rig::over(disk).start_serving(epoch, incarnation)
    }

    /// Creates a serving node with other settings.
    pub fn serving_with(disk: MemoryDisk, settings: Settings) -> Rig {
        Rig::with(disk, identity(), settings).start_serving(1, 1)
    }

    fn start_serving(mut self, epoch: u32, incarnation: u64) -> Rig {
        self.join(incarnation);
        let revision = 10 * u64::from(epoch);
        self.monitor_says(map(0, revision, vec![entry(epoch, incarnation)], &[]));
        self.accept(CLIENT);
        self
    }

    pub fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.node.apply(self.now, event, &mut effects);
        self.run(effects);
    }

    /// Applies several events in one turn of the loop.
    pub fn turn(&mut self, events: Vec<Event>) {
        let mut effects = Vec::new();
        for event in events {
            self.node.apply(self.now, event, &mut effects);
        }
        self.run(effects);
    }

    fn run(&mut self, mut effects: Vec<Effect>) {
        loop {
            let mut events = Vec::new();
            for effect in effects.drain(..) {
                assert!(self.stopped.is_none(), "nothing follows a stop");
                match effect {
                    Effect::Disk(effect) if self.holds_disk => self.held.push_back(effect),
                    Effect::Disk(effect) => events.push(self.disk.carry_out(effect)),
                    Effect::Engine(effect) => self.submit_to_engine(effect),
                    Effect::Net(effect) => self.net(effect),
                    Effect::Joined { incarnation } => self.joined.push(incarnation),
                    Effect::LogLevel(_) => {}
                    Effect::Trace(event) => self.lines.push(event),
                    Effect::Stop(reason) => self.stopped = Some(reason),
                }
            }
            for event in events {
                self.node.apply(self.now, Event::Disk(event), &mut effects);
            }
            for event in self.engine_events() {
                self.node.apply(self.now, Event::Engine(event), &mut effects);
            }
            self.node.finish_turn(self.now, &mut effects);
            if std::mem::take(&mut self.is_pinged) && !self.is_silent {
                let text = serde_json::to_string(&FromMonitor::Pong).unwrap();
                let (connection, message) = (self.link(), Message::Control(text));
                let event = Event::Net(NetEvent::Received { connection, message });
                self.node.apply(self.now, event, &mut effects);
            }
            if effects.is_empty() {
                return;
            }
        }
    }

    fn net(&mut self, effect: NetEffect) {
        match effect {
            NetEffect::Connect { connection, address } => self.connects.push((connection, address)),
            NetEffect::Close { connection } => self.closed.push(connection),
            NetEffect::Send { connection, message: Message::Reply(reply) } => {
                self.replies.push((connection, reply));
            }
            NetEffect::Send { connection, message: Message::Control(text) } => {
                assert_eq!(connection, self.link());
                match serde_json::from_str(&text).unwrap() {
                    ToMonitor::Ping => self.is_pinged = true,
                    told => self.told.push(told),
                }
            }
            NetEffect::Send { message: Message::Peer(message), .. } => self.to_osds.push(*message),
            NetEffect::Send { message, .. } => panic!("an OSD does not send {message:?}"),
        }
    }

    /// Holds the disk back with three open requests: a write that has started, a write that waits for the
    /// first because it expects the version of the first, and a read that waits for both. Returns their
    /// sequences.
    pub fn fill_queue(&mut self) -> [u64; 3] {
        self.holds_disk = true;
        let started = self.send(CLIENT, 1, write(0, 1, 7));
        let (checksums, data) = fill(1, 8);
        let (place, expected) = (place(1, 0), Some(version(1, 1)));
        let after = Op::Write { place, offset: 0, checksums, data, expected, lazy: false };
        let queued = self.send(CLIENT, 1, after);
        [started, queued, self.send(CLIENT, 1, read(0, 1))]
    }

    /// Lets the disk execute what it held back.
    pub fn release_disk(&mut self) {
        self.holds_disk = false;
        let held = self.held.drain(..).map(Effect::Disk).collect();
        self.run(held);
    }

    fn submit_to_engine(&mut self, effect: EngineEffect) {
        let engine = self.engine.as_mut().expect("only a node that has an engine asks it");
        self.engine_asked.push(format!("{effect:?}"));
        engine.submit(effect, &mut |_| 0);
    }

    /// Lets the engine carry out what it was asked for. Returns its events.
    fn engine_events(&mut self) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        if let Some(engine) = self.engine.as_mut().filter(|_| !self.holds_engine) {
            while engine.step(&mut |_| 0) {}
            engine.take_events(&mut events);
        }
        events
    }

    /// Lets the engine carry out what it held back.
    pub fn release_engine(&mut self) {
        self.holds_engine = false;
        self.run(Vec::new());
    }

    /// Lets time pass, with a tick at each deadline.
    pub fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(deadline) = self.node.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.apply(Event::Tick);
        }
        self.now = end;
    }

    /// Returns the newest connection to a monitor.
    pub fn link(&self) -> ConnectionId {
        self.connects.last().unwrap().0
    }

    pub fn connect(&mut self) {
        let connection = self.link();
        let version = *PROTOCOL_VERSIONS.end();
        self.apply(Event::Net(NetEvent::Connected { connection, peer: monitor(), version }));
    }

    pub fn join(&mut self, incarnation: u64) {
        self.connect();
        self.monitor_says(FromMonitor::OsdBooted { incarnation: Incarnation::new(incarnation) });
    }

    pub fn monitor_says(&mut self, message: FromMonitor) {
        let message = Message::Control(serde_json::to_string(&message).unwrap());
        self.receive(self.link(), message);
    }

    pub fn receive(&mut self, connection: ConnectionId, message: Message) {
        self.apply(Event::Net(NetEvent::Received { connection, message }));
    }

    pub fn accept(&mut self, connection: ConnectionId) {
        self.apply(Event::Net(NetEvent::Accepted { connection, peer: client() }));
    }

    pub fn close(&mut self, connection: ConnectionId) {
        let reason = CloseReason::Reset;
        self.apply(Event::Net(NetEvent::Closed { connection, reason }));
    }

    /// Returns a request of the usual session, with the next sequence.
    pub fn request(&mut self, epoch: u32, op: Op) -> Request {
        self.sequence += 1;
        Request {
            session: SESSION,
            sequence: self.sequence,
            pg: PG,
            epoch: Epoch::new(epoch),
            revision: MapRevision::new(1),
            op,
        }
    }

    /// Sends a request and returns its sequence.
    pub fn send(&mut self, connection: ConnectionId, epoch: u32, op: Op) -> u64 {
        let request = self.request(epoch, op);
        self.receive(connection, Message::Request(request));
        self.sequence
    }

    /// Sends a request and returns its reply.
    pub fn ask(&mut self, epoch: u32, op: Op) -> Result<Outcome, Refusal> {
        let sequence = self.send(CLIENT, epoch, op);
        self.reply_to(sequence).expect("answered at once")
    }

    /// Removes and returns the reply to a request, if it has arrived.
    pub fn reply_to(&mut self, sequence: u64) -> Option<Result<Outcome, Refusal>> {
        let index = self.replies.iter().position(|(_, reply)| reply.sequence == sequence)?;
        Some(self.replies.remove(index).1.outcome)
    }

    /// Returns the bytes that fill each unit of a read.
    pub fn read_bytes(&mut self, epoch: u32, op: Op) -> Vec<u8> {
        bytes_of(self.ask(epoch, op))
    }
}

/// Returns the byte that fills each unit; empty if the whole range is zeros.
pub fn bytes_of(outcome: Result<Outcome, Refusal>) -> Vec<u8> {
    match outcome {
        Ok(Outcome::Read { data, checksums, .. }) => {
            assert_eq!(base::checksum::first_mismatch(&data, &checksums), None);
            data.chunks(UNIT as usize).map(|unit| unit[0]).collect()
        }
        other => panic!("{other:?}"),
    }
}
