//! A monitor and OSDs in memory: the test decides when connections are established and which requests are
//! answered, refused or lost; the data is in a plain table.

use std::collections::{BTreeMap, VecDeque};

use base::checksum::first_mismatch;
use base::{
    BlockSize, Buffer, BufferPool, ClusterId, ConnectionId, Duration, Epoch, ImageId, Incarnation,
    KIB, MapRevision, MonitorId, OsdId, PgId, PoolId, Scheme, SessionId, StripeIndex, Time,
    UNIT_SIZE, Version,
};
use cluster::map::{FailureDomain, ImageInfo, MapDelta, OsdInfo, Pool, PoolDelta, PoolKind};
use cluster::message::{Failure, FromMonitor, ToMonitor};
use format::door::{CloseReason, NetEffect, NetEvent, Peer, Role};
use format::wire::{Message, Op, Outcome, PgEntry, Refusal, Reply, Request};

use crate::part::checksums_of;
use crate::{
    Answer, Attached, ClientCore, Effect, Event, Operation, Piece, RequestId, Settings,
    VolumeError, VolumeHandle,
};

pub(super) const BLOCK: u64 = 16 * KIB;
pub(super) const UNIT: usize = UNIT_SIZE as usize;
pub(super) const VOLUME: VolumeHandle = VolumeHandle(1);
pub(super) const SESSION: SessionId = SessionId::new(7);
pub(super) const REIGN: u64 = 77;
pub(super) const SIZE: u64 = 64 * BLOCK;

pub(super) type Reached = Result<Answer, VolumeError>;

#[derive(Default)]
struct Block {
    version: Version,
    units: BTreeMap<u32, Vec<u8>>,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) core: ClientCore,
    /// How long requests are retried.
    pub(super) patience: Option<Duration>,
    pub(super) pool: BufferPool,
    /// Requested connections that are neither established nor failed.
    pub(super) connecting: VecDeque<(ConnectionId, String)>,
    pub(super) monitor: Option<ConnectionId>,
    pub(super) osds: BTreeMap<ConnectionId, OsdId>,
    /// Connections that the core has closed.
    pub(super) closed: Vec<ConnectionId>,
    /// Messages to the monitor that the test has not examined yet.
    pub(super) told: VecDeque<ToMonitor>,
    /// Whether the monitor sends nothing, not even answers to pings.
    pub(super) is_silent: bool,
    /// Whether the monitor has received a ping that it has not answered.
    is_pinged: bool,
    /// Whether the last event had effects other than a ping to the monitor.
    has_moved: bool,
    /// Requests that wait for an answer.
    pub(super) asked: VecDeque<(ConnectionId, Request)>,
    pub(super) opened: Vec<(VolumeHandle, Result<Attached, Failure>)>,
    pub(super) detached: Vec<VolumeHandle>,
    /// Lines for the log.
    pub(super) lines: Vec<base::TraceEvent>,
    pub(super) done: BTreeMap<RequestId, Reached>,
    /// Whether writes are acknowledged as durable; in a lazy session: whether lazy writes are.
    pub(super) durable: bool,
    /// Whether sessions are granted with the lock, and lazy.
    pub(super) lazy: bool,
    /// Whether OSDs refuse all writes of data.
    pub(super) is_full: bool,
    /// The revision of the map that was last sent.
    revision: u64,
    /// Epochs that OSDs require, by PG; if a PG has no entry, any epoch is accepted.
    pub(super) epochs: BTreeMap<u32, u32>,
    /// Units written since they were last durable, each with its content before each change; the durable
    /// content is first.
    pub(super) unstable: BTreeMap<(StripeIndex, u32), Vec<Option<Vec<u8>>>>,
    blocks: BTreeMap<(ImageId, StripeIndex), Block>,
    counter: u64,
    last_request: u64,
}

pub(super) fn osd(number: u32) -> OsdId {
    OsdId::new(number).expect("not 0")
}

pub(super) fn pg(number: u32) -> PgId {
    PgId { pool: PoolId::FIRST, number }
}

pub(super) fn entry(number: u32, epoch: u32, primary: u32) -> PgEntry {
    let member = |osd| format::wire::Member { osd, incarnation: Incarnation::new(1) };
    let entry = PgEntry::new(pg(number), OsdId::new(primary).map(member));
    PgEntry { epoch: Epoch::new(epoch), revision: MapRevision::new(1), ..entry }
}

/// Returns the PG of a stripe of the volume.
pub(super) fn pg_number(stripe: StripeIndex) -> u32 {
    base::hash::pg_of_hash(base::hash::stripe_hash(ImageId::FIRST, stripe), 4)
}

pub(super) fn osd_info(number: u32, revision: u64) -> OsdInfo {
    OsdInfo {
        id: osd(number),
        revision,
        addresses: vec![format!("tcp:osd{number}:{revision}")],
        peer_addresses: Vec::new(),
        incarnation: Incarnation::new(revision),
        up: true,
        in_cluster: true,
    }
}

pub(super) fn pool_delta(since: u64, revision: u64, pgs: Vec<PgEntry>) -> PoolDelta {
    PoolDelta {
        since: MapRevision::new(since),
        revision: MapRevision::new(revision),
        pool: Pool {
            id: PoolId::FIRST,
            name: "default".to_string(),
            scheme: Scheme::Copies { count: 1 },
            min_size: 1,
            pg_count: 4,
            failure_domain: FailureDomain::Osd,
            block_size: BlockSize::new(BLOCK).expect("in range"),
            kind: PoolKind::Block,
        },
        pgs,
        fences: Vec::new(),
        fence_ranges: Vec::new(),
    }
}

pub(super) fn image() -> ImageInfo {
    ImageInfo {
        id: ImageId::FIRST,
        name: "disk".to_string(),
        pool: PoolId::FIRST,
        size: SIZE,
        seed: ImageId::FIRST,
        parents: Vec::new(),
        gateway: false,
    }
}

impl World {
    /// `patience`: how long attaches and requests are retried.
    pub(super) fn new(patience: Option<Duration>) -> World {
        let settings = Settings {
            monitors: vec!["tcp:mon1:1".to_string(), "tcp:mon2:1".to_string()],
            client: "test".to_string(),
            pid: 7,
            host: "here".to_string(),
            address: None,
            retry_for: patience,
            unsynced_size_max: crate::UNSYNCED_SIZE_DEFAULT,
        };
        let pool = BufferPool::default();
        World {
            now: Time::ZERO,
            core: ClientCore::new(settings, pool.clone()),
            patience,
            pool,
            connecting: VecDeque::new(),
            monitor: None,
            osds: BTreeMap::new(),
            closed: Vec::new(),
            told: VecDeque::new(),
            is_silent: false,
            is_pinged: false,
            has_moved: false,
            asked: VecDeque::new(),
            opened: Vec::new(),
            detached: Vec::new(),
            lines: Vec::new(),
            done: BTreeMap::new(),
            durable: true,
            lazy: false,
            is_full: false,
            revision: 1,
            epochs: BTreeMap::new(),
            unstable: BTreeMap::new(),
            blocks: BTreeMap::new(),
            counter: 0,
            last_request: 0,
        }
    }

    /// Returns a world with one volume attached, the map received, and both OSDs connected. PGs 0 and 2 are
    /// on osd.1, PGs 1 and 3 on osd.2.
    pub(super) fn attached() -> World {
        World::attached_with(None, false)
    }

    pub(super) fn attached_with(patience: Option<Duration>, read_only: bool) -> World {
        let mut world = World::new(patience);
        world.open(read_only);
        world.connect();
        world.give_map();
        world.accept_session();
        assert!(matches!(world.opened[..], [(VOLUME, Ok(_))]));
        world
    }

    /// Returns a world with one attached volume, which has the lock and is lazy.
    pub(super) fn lazy(patience: Option<Duration>) -> World {
        let mut world = World::new(patience);
        (world.lazy, world.durable) = (true, false);
        world.epochs = (0..4).map(|number| (number, 1)).collect();
        world.open(false);
        world.connect();
        world.give_map();
        world.accept_session();
        world
    }

    /// Begins the next epoch of a PG, with the same primary; the monitor sends the new entry to the client if
    /// the monitor is connected.
    pub(super) fn next_epoch(&mut self, number: u32) {
        let epoch = self.epochs[&number] + 1;
        self.epochs.insert(number, epoch);
        // The activation of an epoch makes the adopted writes durable.
        self.sync(number);
        if self.monitor.is_some() {
            let pgs = vec![entry(number, epoch, 1 + number % 2)];
            let pools = vec![pool_delta(self.revision, self.revision + 1, pgs)];
            self.revision += 1;
            self.say(FromMonitor::Map(MapDelta { pools, ..MapDelta::default() }));
        }
    }

    pub(super) fn open(&mut self, read_only: bool) {
        let name = "disk".to_string();
        self.apply(Event::Open { volume: VOLUME, name, read_only, lock: self.lazy });
    }

    pub(super) fn give_map(&mut self) {
        let pgs = (0..4).map(|number| entry(number, 1, 1 + number % 2)).collect();
        self.say(FromMonitor::Map(MapDelta {
            osds: vec![osd_info(1, 1), osd_info(2, 1)],
            pools: vec![pool_delta(0, 1, pgs)],
            ..MapDelta::default()
        }));
    }

    /// Answers the client's last request for a session.
    pub(super) fn accept_session(&mut self) {
        let ask = self.told.iter().rev().find_map(|message| match message {
            ToMonitor::OpenSession { request, .. } => Some(*request),
            _ => None,
        });
        let request = ask.expect("a session was asked for");
        let (session, image, lazy) = (SESSION, image(), self.lazy);
        let (locked, reign) = (lazy, REIGN);
        self.say(FromMonitor::SessionOpened { request, session, image, locked, lazy, reign });
    }

    pub(super) fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.core.apply(self.now, event, &mut effects);
        self.has_moved = false;
        for effect in effects {
            self.take(effect);
        }
        if std::mem::take(&mut self.is_pinged) && !self.is_silent {
            let has_moved = self.has_moved;
            self.say(FromMonitor::Pong);
            self.has_moved = has_moved;
        }
    }

    fn take(&mut self, effect: Effect) {
        let moved = std::mem::replace(&mut self.has_moved, true);
        match effect {
            Effect::Net(NetEffect::Connect { connection, address }) => {
                self.connecting.push_back((connection, address));
            }
            Effect::Net(NetEffect::Send { connection, message }) => match message {
                Message::Control(text) => {
                    assert_eq!(Some(connection), self.monitor);
                    match serde_json::from_str(&text).expect("we wrote it") {
                        ToMonitor::Ping => (self.is_pinged, self.has_moved) = (true, moved),
                        told => self.told.push_back(told),
                    }
                }
                Message::Request(request) => self.asked.push_back((connection, request)),
                Message::Reply(_) | Message::Peer(_) | Message::Lease(_) => {
                    panic!("clients only ask")
                }
            },
            Effect::Net(NetEffect::Close { connection }) => {
                self.asked.retain(|(on, _)| *on != connection);
                self.closed.push(connection);
            }
            Effect::Opened { volume, result } => self.opened.push((volume, result)),
            Effect::Closed { volume } => self.detached.push(volume),
            Effect::Trace(event) => self.lines.push(event),
            Effect::Done { id, result } => {
                let before = self.done.insert(id, result);
                assert!(before.is_none(), "answered twice");
            }
        }
    }

    pub(super) fn net(&mut self, event: NetEvent) {
        self.apply(Event::Net(event));
    }

    /// Establishes every requested connection.
    pub(super) fn connect(&mut self) {
        while let Some((connection, address)) = self.connecting.pop_front() {
            let role = if address.starts_with("tcp:mon") {
                self.monitor = Some(connection);
                Role::Monitor(MonitorId::FIRST)
            } else {
                let mut parts = address.strip_prefix("tcp:osd").expect("an OSD").split(':');
                let mut number = || parts.next().expect("osdN:R").parse::<u32>().expect("N");
                let (id, run) = (osd(number()), Incarnation::new(number().into()));
                self.osds.insert(connection, id);
                Role::Osd(id, run)
            };
            let peer = Peer { cluster: ClusterId::new(1), role };
            self.net(NetEvent::Connected { connection, peer, version: 2 });
        }
    }

    /// Fails the first requested connection.
    pub(super) fn refuse_connection(&mut self, reason: CloseReason) -> String {
        let (connection, address) = self.connecting.pop_front().expect("one is asked");
        self.net(NetEvent::Closed { connection, reason });
        address
    }

    /// Breaks the connection to an OSD; requests that were sent on it are lost.
    pub(super) fn break_osd(&mut self, id: OsdId) {
        let of_osd = self.osds.iter().filter(|(_, at)| **at == id);
        let connection = of_osd.map(|(connection, _)| *connection).next_back().expect("connected");
        self.asked.retain(|(on, _)| *on != connection);
        self.net(NetEvent::Closed { connection, reason: CloseReason::Reset });
    }

    pub(super) fn break_monitor(&mut self) {
        let connection = self.monitor.take().expect("connected");
        self.net(NetEvent::Closed { connection, reason: CloseReason::Reset });
    }

    pub(super) fn say(&mut self, message: FromMonitor) {
        let connection = self.monitor.expect("connected");
        let text = serde_json::to_string(&message).expect("JSON");
        self.net(NetEvent::Received { connection, message: Message::Control(text) });
    }

    /// Returns the next deadline; while a monitor is connected, the deadline of its connection is left out.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.monitor {
            Some(_) => self.core.timers.deadline_but_of_monitor(),
            None => self.core.deadline(),
        }
    }

    /// Advances time to the next deadline that causes more than a ping to the monitor. Returns how much time
    /// passed.
    pub(super) fn wait(&mut self) -> Duration {
        let began = self.now;
        loop {
            let deadline = self.core.deadline().expect("something is waited for");
            let is_of_others = self.core.timers.deadline_but_of_monitor() == Some(deadline);
            self.now = self.now.max(deadline);
            self.apply(Event::Tick);
            assert!(self.now - began < Duration::from_secs(60), "nothing more happens");
            if is_of_others || self.has_moved {
                return self.now - began;
            }
        }
    }

    pub(super) fn ask(&mut self, operation: Operation) -> RequestId {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let deadline = self.patience.map(|patience| self.now + patience);
        self.apply(Event::Request { id, volume: VOLUME, operation, deadline });
        id
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> RequestId {
        let data = self.pool.copy_of(bytes);
        self.ask(Operation::Write { offset, data, durable: false })
    }

    pub(super) fn read(&mut self, offset: u64, length: u64) -> RequestId {
        self.ask(Operation::Read { offset, length })
    }

    /// Removes and returns the longest-waiting request.
    pub(super) fn next(&mut self) -> (ConnectionId, Request) {
        self.connect();
        self.asked.pop_front().expect("something is asked")
    }

    pub(super) fn reply(
        &mut self,
        to: &(ConnectionId, Request),
        outcome: Result<Outcome, Refusal>,
    ) {
        let (connection, request) = to;
        let reply = Reply { session: request.session, sequence: request.sequence, outcome };
        self.net(NetEvent::Received { connection: *connection, message: Message::Reply(reply) });
    }

    /// Executes and answers the longest-waiting request.
    pub(super) fn serve_one(&mut self) {
        let asked = self.next();
        let outcome = self.do_as_asked(&asked.1);
        self.reply(&asked, outcome);
    }

    /// Executes a request, or returns a refusal.
    pub(super) fn do_as_asked(&mut self, request: &Request) -> Result<Outcome, Refusal> {
        let outcome = self.judge(request).and_then(|()| self.execute(&request.op));
        if outcome == Ok(Outcome::Synced) {
            self.sync(request.pg.number);
        }
        outcome
    }

    /// Executes and answers requests until none is left.
    pub(super) fn serve(&mut self) {
        self.connect();
        while !self.asked.is_empty() {
            self.serve_one();
            self.connect();
        }
    }

    /// Refuses the longest-waiting request.
    pub(super) fn refuse(&mut self, refusal: Refusal) -> Request {
        let asked = self.next();
        self.reply(&asked, Err(refusal));
        asked.1
    }

    /// Serves all requests, and returns the result of `id`.
    pub(super) fn finish(&mut self, id: RequestId) -> Reached {
        self.serve();
        self.result(id)
    }

    pub(super) fn result(&mut self, id: RequestId) -> Reached {
        self.done.remove(&id).expect("answered")
    }

    /// Returns the bytes of a range, read through the core.
    pub(super) fn bytes(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let id = self.read(offset, length);
        let Ok(Answer::Data(pieces)) = self.finish(id) else { panic!("no data") };
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Hole(length) => bytes.resize(bytes.len() + length as usize, 0),
            }
        }
        assert_eq!(bytes.len() as u64, length);
        bytes
    }

    pub(super) fn execute(&mut self, op: &Op) -> Result<Outcome, Refusal> {
        match op {
            Op::Read { place, offset, length, .. } | Op::ReadPart { place, offset, length, .. } => {
                Ok(self.execute_read(place.image, place.stripe, *offset, *length))
            }
            Op::Write { place, offset, checksums, data, expected, lazy } => {
                assert_eq!(first_mismatch(data, checksums), None);
                let block = self.blocks.entry((place.image, place.stripe)).or_default();
                if expected.is_some_and(|expected| expected != block.version) {
                    return Err(Refusal::CompareFailed { version: block.version });
                }
                for (index, bytes) in data.chunks_exact(UNIT).enumerate() {
                    let unit = offset / UNIT as u32 + index as u32;
                    let before = block.units.insert(unit, bytes.to_vec());
                    let changes = self.unstable.entry((place.stripe, unit)).or_default();
                    changes.push(before);
                }
                self.settle(place.stripe, *offset, data.len() as u32, *lazy);
                Ok(self.written_lazily(place.image, place.stripe, *lazy))
            }
            Op::Zero { place, offset, length, lazy } => {
                assert!(offset.is_multiple_of(UNIT as u32));
                assert!(length.is_multiple_of(UNIT as u32));
                let units = offset / UNIT as u32..(offset + length) / UNIT as u32;
                let block = self.blocks.entry((place.image, place.stripe)).or_default();
                for unit in units {
                    let before = block.units.remove(&unit);
                    self.unstable.entry((place.stripe, unit)).or_default().push(before);
                }
                self.settle(place.stripe, *offset, *length, *lazy);
                Ok(self.written_lazily(place.image, place.stripe, *lazy))
            }
            Op::Extents { place, .. } => {
                let block = self.blocks.entry((place.image, place.stripe)).or_default();
                let bits = block.units.keys().fold(0, |bits, unit| bits | 1 << unit);
                Ok(Outcome::Extents { bitmap: vec![bits] })
            }
            Op::Sync => Ok(Outcome::Synced),
            Op::DeleteRange { .. } | Op::Mutate { .. } | Op::Look { .. } | Op::List { .. } => {
                panic!("not of clients of volumes")
            }
        }
    }

    /// Refuses a request whose epoch is not that of its PG, and a write for which there is no space.
    fn judge(&self, request: &Request) -> Result<(), Refusal> {
        let number = request.pg.number;
        match self.epochs.get(&number) {
            Some(epoch) if Epoch::new(*epoch) != request.epoch => {
                Err(Refusal::Stale(Some(entry(number, *epoch, 1 + number % 2))))
            }
            _ if self.is_full && matches!(request.op, Op::Write { .. }) => Err(Refusal::Full),
            _ => Ok(()),
        }
    }

    /// Records a change as durable, unless it was only acknowledged lazily.
    fn settle(&mut self, stripe: StripeIndex, offset: u32, length: u32, lazy: bool) {
        if !lazy || self.durable {
            let units = offset / UNIT as u32..(offset + length) / UNIT as u32;
            units.for_each(|unit| drop(self.unstable.remove(&(stripe, unit))));
        }
    }

    fn written_lazily(&mut self, image: ImageId, stripe: StripeIndex, lazy: bool) -> Outcome {
        match self.written(image, stripe) {
            Outcome::Written { version, durable } if self.lazy => {
                Outcome::Written { version, durable: durable || !lazy }
            }
            told => told,
        }
    }

    /// Simulates a power loss of all members of the PG: each unit that was not durable may revert to older
    /// content, which `choose` selects by returning a number below its argument.
    pub(super) fn lose_power(&mut self, number: u32, mut choose: impl FnMut(usize) -> usize) {
        let of_pg = |stripe: StripeIndex| pg_number(stripe) == number;
        for ((stripe, unit), mut changes) in std::mem::take(&mut self.unstable) {
            if !of_pg(stripe) {
                self.unstable.insert((stripe, unit), changes);
                continue;
            }
            let chosen = choose(changes.len() + 1);
            if chosen < changes.len() {
                let block = self.blocks.entry((ImageId::FIRST, stripe)).or_default();
                match changes.swap_remove(chosen) {
                    Some(bytes) => drop(block.units.insert(unit, bytes)),
                    None => drop(block.units.remove(&unit)),
                }
            }
            self.written(ImageId::FIRST, stripe);
        }
    }

    /// Returns the content of a unit that its OSD stores.
    pub(super) fn held(&self, stripe: StripeIndex, unit: u32) -> Option<&Vec<u8>> {
        self.blocks.get(&(ImageId::FIRST, stripe))?.units.get(&unit)
    }

    /// Makes everything in a PG durable.
    pub(super) fn sync(&mut self, number: u32) {
        self.unstable.retain(|(stripe, _), _| pg_number(*stripe) != number);
    }

    /// Writes the unit as another client.
    pub(super) fn write_from_elsewhere(&mut self, stripe: u32, unit: u32, byte: u8) {
        let place = (ImageId::FIRST, StripeIndex::new(stripe));
        self.blocks.entry(place).or_default().units.insert(unit, vec![byte; UNIT]);
        self.written(place.0, place.1);
    }

    fn written(&mut self, image: ImageId, stripe: StripeIndex) -> Outcome {
        self.counter += 1;
        let version = Version { epoch: Epoch::new(1), counter: self.counter };
        self.blocks.entry((image, stripe)).or_default().version = version;
        Outcome::Written { version, durable: self.durable }
    }

    fn execute_read(
        &mut self,
        image: ImageId,
        stripe: StripeIndex,
        offset: u32,
        length: u32,
    ) -> Outcome {
        let block = self.blocks.entry((image, stripe)).or_default();
        let version = block.version;
        let units = offset / UNIT as u32..(offset + length) / UNIT as u32;
        if !units.clone().any(|unit| block.units.contains_key(&unit)) {
            return Outcome::Read { version, checksums: Vec::new(), data: self.empty() };
        }
        let mut bytes = Vec::new();
        for unit in units {
            match block.units.get(&unit) {
                Some(unit) => bytes.extend_from_slice(unit),
                None => bytes.resize(bytes.len() + UNIT, 0),
            }
        }
        let checksums = checksums_of(&bytes);
        Outcome::Read { version, checksums, data: self.pool.copy_of(&bytes) }
    }

    fn empty(&self) -> Buffer {
        self.pool.copy_of(&[])
    }
}
