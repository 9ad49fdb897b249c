//! Tests of the hub with NBD clients and a cluster in memory: one monitor, one OSD.

use std::collections::VecDeque;

use base::{ClusterId, Incarnation, MonitorId, OsdId, SessionId, UNIT_SIZE};
use cluster::message::FromMonitor;
use format::door::{Peer, Role};
use format::wire::{Message, Refusal, Reply};

use super::nbd_client::CLIENT_BYTES_MAX;
use super::requests::BYTES_MAX;
use super::*;

#[path = "../../../tests/memory/mod.rs"]
mod memory;
use memory::{MemoryMonitor, MemoryOsd};

const UNIT: usize = UNIT_SIZE as usize;
const SIZE: u64 = 8 << 20;

struct World {
    now: Time,
    hub: Hub,
    pool: BufferPool,
    /// The bytes that each client has received.
    received: BTreeMap<ConnectionId, Vec<u8>>,
    /// The memory that receives a client's next bytes.
    lent: BTreeMap<ConnectionId, (BufferMut, usize)>,
    paused: BTreeSet<ConnectionId>,
    closed: BTreeSet<ConnectionId>,
    /// Lines for the log.
    lines: Vec<TraceEvent>,
    /// The number of bytes with which `AskQueued` is answered.
    queued: usize,
    monitors: BTreeSet<ConnectionId>,
    cluster: MemoryMonitor,
    osd: MemoryOsd,
    /// While this is `Some`, requests are kept here instead of answered.
    held: Option<Vec<(ConnectionId, format::wire::Request)>>,
    refusal: Option<Refusal>,
    last_client: u64,
}

impl World {
    fn new() -> World {
        World::serving(&[], false)
    }

    fn serving(names: &[&str], read_only: bool) -> World {
        let pool = BufferPool::default();
        let settings = Settings {
            monitors: vec!["tcp:mon:1".to_string()],
            client: "nbd".to_string(),
            pid: 7,
            host: "h".to_string(),
            address: None,
            retry_for: None,
            unsynced_size_max: volume::UNSYNCED_SIZE_DEFAULT,
        };
        let names = names.iter().map(|name| name.to_string()).collect();
        World {
            now: Time::ZERO,
            hub: Hub::new(Exports { names, read_only, shared: false }, settings, pool.clone()),
            pool,
            received: BTreeMap::new(),
            lent: BTreeMap::new(),
            paused: BTreeSet::new(),
            closed: BTreeSet::new(),
            lines: Vec::new(),
            queued: 0,
            monitors: BTreeSet::new(),
            cluster: MemoryMonitor::new(SIZE, "tcp:osd:1"),
            osd: MemoryOsd::default(),
            held: None,
            refusal: None,
            last_client: 1,
        }
    }

    /// Lets time pass, with a tick at each deadline.
    fn advance_to(&mut self, end: Time) {
        while let Some(deadline) = self.hub.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.apply(Event::Tick);
        }
        self.now = end;
    }

    /// Applies an event, and all answers of the cluster to it.
    fn apply(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        while let Some(event) = events.pop_front() {
            self.hub.apply(self.now, event, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Net(effect) => self.net(effect, &mut events),
                    Effect::Trace(event) => self.lines.push(event),
                    Effect::Send(client, buffers) => {
                        assert!(!self.closed.contains(&client));
                        let received = self.received.entry(client).or_default();
                        buffers.iter().for_each(|buffer| received.extend_from_slice(buffer));
                    }
                    Effect::ExpectInto(client, memory, filled) => {
                        assert!(self.lent.insert(client, (memory, filled)).is_none());
                    }
                    Effect::Pause(client) => assert!(self.paused.insert(client)),
                    Effect::Resume(client) => assert!(self.paused.remove(&client)),
                    Effect::Close(client) => assert!(self.closed.insert(client)),
                    Effect::AskQueued(client) => {
                        events.push_back(Event::Queued(client, self.queued));
                    }
                }
            }
        }
    }

    fn net(&mut self, effect: NetEffect, events: &mut VecDeque<Event>) {
        match effect {
            NetEffect::Connect { connection, address } => {
                let role = if address == "tcp:mon:1" {
                    self.monitors.insert(connection);
                    Role::Monitor(MonitorId::FIRST)
                } else {
                    Role::Osd(OsdId::FIRST, Incarnation::new(1))
                };
                let peer = Peer { cluster: ClusterId::new(1), role };
                let version = *format::wire::PROTOCOL_VERSIONS.end();
                events.push_back(Event::Net(NetEvent::Connected { connection, peer, version }));
            }
            NetEffect::Send { connection, message: Message::Control(text) } => {
                let message = serde_json::from_str(&text).expect("it is ours");
                if let Some(answer) = self.cluster.answer(message) {
                    let text = serde_json::to_string(&answer).expect("JSON");
                    let message = Message::Control(text);
                    events.push_back(Event::Net(NetEvent::Received { connection, message }));
                }
            }
            NetEffect::Send { connection, message: Message::Request(request) } => {
                match &mut self.held {
                    Some(held) => held.push((connection, request)),
                    None => events.push_back(self.answer_request(connection, request)),
                }
            }
            NetEffect::Send { .. } | NetEffect::Close { .. } => panic!("not expected"),
        }
    }

    fn answer_request(
        &mut self,
        connection: ConnectionId,
        request: format::wire::Request,
    ) -> Event {
        let outcome = match self.refusal.clone() {
            Some(refusal) => Err(refusal),
            None => self.osd.execute(&request.op, &self.pool),
        };
        let (session, sequence) = (request.session, request.sequence);
        let message = Message::Reply(Reply { session, sequence, outcome });
        Event::Net(NetEvent::Received { connection, message })
    }

    /// Answers the held requests.
    fn release(&mut self) {
        for (connection, request) in self.held.take().expect("requests are held") {
            let event = self.answer_request(connection, request);
            self.apply(event);
        }
    }

    // ---- clients

    fn connect(&mut self) -> ConnectionId {
        self.last_client += 2;
        let client = ConnectionId::new(self.last_client);
        self.apply(Event::Accepted(client));
        self.send(client, &3u32.to_be_bytes());
        self.take(client);
        client
    }

    fn send(&mut self, client: ConnectionId, bytes: &[u8]) {
        assert!(!self.paused.contains(&client), "it is not read");
        let mut bytes = bytes;
        if let Some((mut memory, filled)) = self.lent.remove(&client) {
            let (now, later) = bytes.split_at(memory.len() - filled);
            memory[filled..].copy_from_slice(now);
            self.apply(Event::Received(client, memory.freeze()));
            bytes = later;
        }
        if !bytes.is_empty() {
            let bytes = self.pool.copy_of(bytes);
            self.apply(Event::Received(client, bytes));
        }
    }

    /// Returns what the client has received since the last call.
    fn take(&mut self, client: ConnectionId) -> Vec<u8> {
        self.received.remove(&client).unwrap_or_default()
    }

    fn answer_to(&mut self, client: ConnectionId, option: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.send(client, &bytes);
        self.take(client)
    }

    fn option(&mut self, client: ConnectionId, option: u32, data: &[u8]) -> Vec<u32> {
        kinds_of(&self.answer_to(client, option, data))
    }

    /// Sends an option, and returns the text of the answer.
    fn told(&mut self, client: ConnectionId, option: u32, data: &[u8]) -> String {
        let answer = self.answer_to(client, option, data);
        String::from_utf8(answer[20..].to_vec()).expect("it is text")
    }

    fn go(&mut self, client: ConnectionId, name: &str) -> Vec<u32> {
        self.option(client, 7, &information(name))
    }

    /// Connects a client and attaches the volume.
    fn user(&mut self) -> ConnectionId {
        let client = self.connect();
        assert_eq!(self.go(client, "disk"), [3, 3, 1]);
        client
    }

    fn request(&mut self, client: ConnectionId, command: u16, flags: u16, range: (u64, u32)) {
        self.send(client, &request_bytes(command, flags, range));
    }

    fn write(&mut self, client: ConnectionId, offset: u64, data: &[u8]) {
        let mut bytes = request_bytes(1, 0, (offset, data.len() as u32));
        bytes.extend_from_slice(data);
        self.send(client, &bytes);
    }
}

fn information(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&[0, 0]);
    data
}

fn request_bytes(command: u16, flags: u16, (offset, length): (u64, u32)) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&7u64.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// Returns the kinds of answers to options.
fn kinds_of(mut bytes: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        kinds.push(word(12));
        bytes = &bytes[20 + word(16) as usize..];
    }
    kinds
}

fn simple(error: u32) -> Vec<u8> {
    let mut bytes = 0x6744_6698u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&error.to_be_bytes());
    bytes.extend_from_slice(&7u64.to_be_bytes());
    bytes
}

#[test]
fn a_volume_is_attached_while_a_client_uses_it() {
    let mut world = World::new();
    let looking = world.connect();
    assert_eq!(world.option(looking, 6, &information("disk")), [3, 3, 1]);
    assert!(world.cluster.sessions.is_empty(), "looking is not using");
    let first = world.user();
    let second = world.user();
    assert_eq!(world.cluster.opened_count, 1, "they share it");
    world.apply(Event::Gone(first));
    assert_eq!(world.cluster.sessions.len(), 1);
    world.apply(Event::Gone(second));
    assert!(world.cluster.sessions.is_empty());
    assert!(world.hub.volumes.is_empty());
}

#[test]
fn what_one_client_writes_another_reads() {
    let mut world = World::new();
    let (first, second) = (world.user(), world.user());
    world.write(first, 100, b"stone");
    assert_eq!(world.take(first), simple(0));
    world.request(second, 0, 0, (99, 7));
    assert_eq!(world.take(second), [&simple(0)[..], b"\0stone\0"].concat());
}

#[test]
fn a_long_write_arrives_whole() {
    let mut world = World::new();
    let client = world.user();
    let data: Vec<u8> = (0..300_000u32).map(|byte| (byte % 253) as u8).collect();
    let mut bytes = request_bytes(1, 1, (4096, data.len() as u32));
    bytes.extend_from_slice(&data[..1000]);
    world.send(client, &bytes);
    assert!(world.lent.contains_key(&client));
    world.send(client, &data[1000..]);
    assert_eq!(world.take(client), simple(0));
    world.request(client, 0, 0, (4096, data.len() as u32));
    assert_eq!(world.take(client)[16..], data);
}

#[test]
fn exports_are_listed_anew_each_time_and_limited_to_the_chosen() {
    let mut world = World::new();
    let client = world.connect();
    assert_eq!(world.option(client, 3, &[]), [2, 1]);
    world.cluster.volumes.insert("other".to_string(), SIZE);
    assert_eq!(world.option(client, 3, &[]), [2, 2, 1]);
    let mut world = World::serving(&["disk"], false);
    world.cluster.volumes.insert("other".to_string(), SIZE);
    let client = world.connect();
    assert_eq!(world.option(client, 3, &[]), [2, 1]);
    assert_eq!(world.go(client, "other"), [(1 << 31) + 6]);
    assert_eq!(world.go(client, ""), [3, 3, 1], "the only one is the default");
}

#[test]
fn the_default_export_is_the_only_volume() {
    let mut world = World::new();
    let client = world.connect();
    assert_eq!(world.option(client, 6, &information("")), [3, 3, 1]);
    world.cluster.volumes.insert("other".to_string(), SIZE);
    assert_eq!(world.go(client, ""), [(1 << 31) + 6]);
    assert_eq!(world.go(client, "disk"), [3, 3, 1], "the client may try again");
}

#[test]
fn a_missing_volume_is_an_unknown_export() {
    let mut world = World::new();
    let client = world.connect();
    assert_eq!(world.go(client, "none"), [(1 << 31) + 6]);
    assert_eq!(world.option(client, 6, &information("none")), [(1 << 31) + 6]);
    assert!(world.hub.volumes.is_empty());
    assert!(world.hub.volumes.offered("none").is_none());
}

#[test]
fn a_resized_volume_is_seen_on_reconnect() {
    let mut world = World::new();
    let client = world.user();
    world.cluster.volumes.insert("disk".to_string(), 2 * SIZE);
    world.request(client, 0, 0, (SIZE, 1));
    assert_eq!(world.take(client), simple(22));
    world.apply(Event::Gone(client));
    let client = world.user();
    world.request(client, 0, 0, (SIZE, 1));
    assert_eq!(world.take(client), [&simple(0)[..], b"\0"].concat());
}

#[test]
fn a_disconnecting_client_gets_its_answers_first() {
    let mut world = World::new();
    let client = world.user();
    world.held = Some(Vec::new());
    world.write(client, 0, &[1; UNIT]);
    world.request(client, 2, 0, (0, 0));
    assert!(!world.closed.contains(&client));
    world.release();
    assert_eq!(world.take(client), simple(0));
    assert!(world.closed.contains(&client));
    assert!(world.cluster.sessions.is_empty());
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let mut world = World::new();
    let client = world.user();
    world.held = Some(Vec::new());
    world.write(client, 0, &[1; UNIT]);
    world.apply(Event::Gone(client));
    assert_eq!(world.cluster.sessions.len(), 1, "the write is finished first");
    world.release();
    assert!(world.cluster.sessions.is_empty());
    assert!(world.hub.requests.is_empty());
}

#[test]
fn a_client_never_sees_late_writes_of_one_that_left() {
    let mut world = World::new();
    let first = world.user();
    world.held = Some(Vec::new());
    world.write(first, 0, &[b'A'; 512]);
    world.apply(Event::Gone(first));
    let held = world.held.take().expect("the read before the write");
    let (gone, second) = (world.connect(), world.connect());
    assert!(world.go(gone, "disk").is_empty(), "the one before is still attached");
    assert!(world.go(second, "disk").is_empty());
    world.apply(Event::Gone(gone));
    for (connection, request) in held {
        let event = world.answer_request(connection, request);
        world.apply(event);
    }
    assert_eq!(kinds_of(&world.take(second)), [3, 3, 1]);
    world.write(second, 0, &[b'B'; UNIT]);
    assert_eq!(world.take(second), simple(0));
    world.request(second, 0, 0, (0, UNIT as u32));
    assert_eq!(world.take(second)[16..], [b'B'; UNIT]);
    assert_eq!(world.cluster.opened_count, 2);
    assert!(world.cluster.unanswered.is_empty());
}

#[test]
fn a_client_of_a_locked_volume_is_told_who_has_it_and_what_to_do() {
    let mut world = World::new();
    world.cluster.is_locked = true;
    let client = world.connect();
    let why = world.told(client, 7, &information("disk"));
    assert_eq!(why, "volume disk is locked by session 9 of nbd; detach it there");
    world.cluster.is_locked = false;
    assert_eq!(world.go(client, "disk"), [3, 3, 1], "it may ask again");
}

#[test]
fn a_silent_osd_delays_the_next_client_for_a_bounded_time() {
    let mut world = World::new();
    let first = world.user();
    world.held = Some(Vec::new());
    world.write(first, 0, &[b'A'; UNIT]);
    world.apply(Event::Gone(first));
    let second = world.connect();
    assert!(world.go(second, "disk").is_empty());
    world.advance_to(world.now + Duration::from_secs(5));
    assert_eq!(world.cluster.unanswered, [SessionId::new(1)], "to be fenced");
    assert_eq!(kinds_of(&world.take(second)), [3, 3, 1]);
}

#[test]
fn a_volume_that_no_client_waits_for_is_not_attached() {
    let mut world = World::new();
    let first = world.user();
    world.held = Some(Vec::new());
    world.write(first, 0, &[1; UNIT]);
    world.apply(Event::Gone(first));
    let second = world.connect();
    assert!(world.go(second, "disk").is_empty());
    world.apply(Event::Gone(second));
    world.release();
    assert_eq!(world.cluster.opened_count, 1);
    assert!(world.hub.volumes.is_empty());
}

#[test]
fn errors_have_their_nbd_numbers() {
    let mut world = World::new();
    let client = world.user();
    for (refusal, number) in [(Refusal::Full, 28), (Refusal::Damaged { units: vec![1] }, 5)] {
        world.refusal = Some(refusal);
        world.write(client, 0, &[1; UNIT]);
        assert_eq!(world.take(client), simple(number));
    }
}

#[test]
fn a_trim_that_finds_no_space_is_answered_as_done_and_zeros_are_not() {
    let mut world = World::new();
    let client = world.user();
    for (refusal, command, number) in
        [(Refusal::Full, 4, 0), (Refusal::Full, 6, 28), (Refusal::Damaged { units: vec![1] }, 4, 5)]
    {
        world.refusal = Some(refusal);
        world.request(client, command, 0, (0, UNIT as u32));
        assert_eq!(world.take(client), simple(number), "command {command}");
    }
}

#[test]
fn clients_of_a_session_that_is_over_get_errors_and_the_next_client_a_new_session() {
    let mut world = World::new();
    let (first, second) = (world.user(), world.user());
    world.refusal = Some(Refusal::Fenced);
    world.write(first, 0, &[1; UNIT]);
    assert_eq!(world.take(first), simple(108), "sent again it would overwrite what came since");
    assert!(world.closed.is_empty());
    assert!(world.lines.iter().any(|event| event.what.starts_with("the session is over")));
    world.refusal = None;
    let third = world.user();
    assert_eq!(world.cluster.opened_count, 2);
    world.write(third, 0, &[3; UNIT]);
    assert_eq!(world.take(third), simple(0));
    for client in [first, second] {
        world.write(client, 0, &[1; UNIT]);
        assert_eq!(world.take(client), simple(108));
        world.request(client, 3, 0, (0, 0));
        assert_eq!(world.take(client), simple(108), "a flush would promise too much");
    }
    world.request(third, 0, 0, (0, UNIT as u32));
    assert_eq!(world.take(third)[16..], [3; UNIT]);
    for client in [first, second, third] {
        world.apply(Event::Gone(client));
    }
    assert!(world.hub.volumes.is_empty());
}

#[test]
fn no_client_joins_a_session_that_is_over() {
    let mut world = World::new();
    let first = world.user();
    let ended = FromMonitor::SessionEnded { session: SessionId::new(1) };
    let connection = *world.monitors.last().expect("the hub is connected");
    let message = Message::Control(serde_json::to_string(&ended).expect("JSON"));
    world.apply(Event::Net(NetEvent::Received { connection, message }));
    let second = world.user();
    assert_eq!(world.cluster.opened_count, 2);
    world.write(second, 0, &[2; UNIT]);
    assert_eq!(world.take(second), simple(0));
    world.write(first, 0, &[1; UNIT]);
    assert_eq!(world.take(first), simple(108));
}

#[test]
fn a_flush_of_a_returning_client_covers_its_earlier_writes() {
    for is_ending in [false, true] {
        let mut world = World::new();
        world.cluster.is_lazy = true;
        let first = world.user();
        world.write(first, 0, &[1; UNIT]);
        assert_eq!(world.take(first), simple(0));
        world.held = Some(Vec::new());
        world.apply(Event::Gone(first));
        if is_ending {
            world.apply(Event::Shutdown);
        }
        let second = world.connect();
        if !is_ending {
            assert!(world.go(second, "disk").is_empty());
        }
        let began = world.now;
        while !world.hub.volumes.is_empty() && world.now.since(began) < Duration::from_secs(60) {
            world.now = world.hub.deadline().expect("it goes on trying");
            world.apply(Event::Tick);
        }
        assert_eq!(world.hub.volumes.is_empty(), is_ending, "the end of the server does not wait");
        if !is_ending {
            world.release();
            assert_eq!(kinds_of(&world.take(second)), [3, 3, 1]);
            assert!(world.cluster.unanswered.is_empty());
        }
    }
}

#[test]
fn a_fua_write_to_a_lazy_volume_is_durable() {
    let mut world = World::new();
    world.cluster.is_lazy = true;
    let client = world.user();
    world.held = Some(Vec::new());
    for flags in [0, 1] {
        let mut bytes = request_bytes(1, flags, (0, UNIT as u32));
        bytes.extend_from_slice(&[1; UNIT]);
        world.send(client, &bytes);
        let asked = world.held.as_ref().and_then(|held| held.first()).map(|(_, it)| it.op.clone());
        let Some(format::wire::Op::Write { lazy, .. }) = asked else { panic!("{asked:?}") };
        assert_eq!(lazy, flags == 0);
        world.release();
        assert_eq!(world.take(client), simple(0));
        world.held = Some(Vec::new());
    }
    assert_eq!(world.osd.counter, 2, "no sync is asked for it");
}

#[test]
fn a_client_with_too_much_in_flight_is_paused_until_replies_are_sent() {
    let mut world = World::new();
    let client = world.user();
    world.held = Some(Vec::new());
    world.queued = CLIENT_BYTES_MAX;
    let requests = request_bytes(0, 0, (0, 1 << 20)).repeat(200);
    world.send(client, &requests);
    assert!(world.paused.contains(&client));
    let bytes = world.hub.clients[&client].byte_count;
    assert!((CLIENT_BYTES_MAX..CLIENT_BYTES_MAX + (1 << 20) + 1).contains(&bytes));
    for _ in 0..8 {
        world.release();
        world.held = Some(Vec::new());
    }
    assert!(world.paused.contains(&client), "it does not take its replies");
    let sent = world.take(client).len();
    assert!(sent < 2 * CLIENT_BYTES_MAX, "{sent}");
    world.queued = 0;
    world.held = None;
    let mut received = sent;
    while let Some(at) = world.hub.slow_clients.deadline() {
        world.now = at;
        world.apply(Event::Tick);
        received += world.take(client).len();
    }
    assert_eq!(received, 200 * (16 + (1 << 20)));
    assert!(!world.paused.contains(&client));
}

#[test]
fn all_clients_together_are_bounded_and_each_makes_progress() {
    let mut world = World::new();
    world.held = Some(Vec::new());
    let count = BYTES_MAX / CLIENT_BYTES_MAX + 4;
    let clients: Vec<_> = (0..count).map(|_| world.user()).collect();
    let requests = request_bytes(0, 0, (0, 1 << 20)).repeat(CLIENT_BYTES_MAX >> 20);
    for client in &clients {
        world.send(*client, &requests);
    }
    assert_eq!(world.hub.requests.byte_count(), BYTES_MAX);
    assert_eq!(world.paused.len(), count);
    let gone = clients[count - 1];
    world.apply(Event::Gone(gone));
    world.queued = 0;
    let mut received: BTreeMap<ConnectionId, usize> = BTreeMap::new();
    while world.hub.requests.byte_count() > 0 {
        world.release();
        world.held = Some(Vec::new());
        while let Some(at) = world.hub.slow_clients.deadline() {
            world.now = at;
            world.apply(Event::Tick);
        }
        assert!(world.hub.requests.byte_count() <= BYTES_MAX);
        for client in &clients {
            *received.entry(*client).or_default() += world.take(*client).len();
        }
    }
    let each = (CLIENT_BYTES_MAX >> 20) * (16 + (1 << 20));
    for client in &clients {
        assert_eq!(received[client], if *client == gone { 0 } else { each });
    }
    assert!(!world.hub.requests.has_waiting());
}

#[test]
fn a_client_that_chooses_no_export_is_disconnected() {
    let mut world = World::new();
    let (silent, listing, refused) = (world.connect(), world.connect(), world.connect());
    let user = world.user();
    world.advance_to(Time::ZERO + Duration::from_secs(20));
    assert_eq!(world.option(listing, 3, &[]), [2, 1]);
    assert_eq!(world.go(refused, "none"), [(1 << 31) + 6]);
    assert!(world.closed.is_empty());
    world.advance_to(Time::ZERO + CHOICE_TIME_MAX);
    assert_eq!(world.closed, BTreeSet::from([silent, listing]));
    // The refusal restarted this client's time.
    world.advance_to(Time::ZERO + Duration::from_millis(49_999));
    assert!(!world.closed.contains(&refused));
    world.advance_to(Time::ZERO + Duration::from_secs(50));
    assert!(world.closed.contains(&refused));
    world.advance_to(Time::ZERO + Duration::from_secs(200));
    assert!(!world.closed.contains(&user));
}

#[test]
fn questions_of_clients_that_left_are_forgotten() {
    let mut world = World::new();
    world.cluster.is_silent = true;
    for _ in 0..3 {
        let client = world.connect();
        assert!(world.option(client, 3, &[]).is_empty());
        assert_eq!(world.hub.asking.len(), 1);
        world.apply(Event::Gone(client));
        assert!(world.hub.asking.is_empty());
    }
}

#[test]
fn a_read_only_server_serves_only_reads() {
    let mut world = World::serving(&[], true);
    let client = world.user();
    world.write(client, 0, &[1; UNIT]);
    assert_eq!(world.take(client), simple(1));
    world.request(client, 0, 0, (0, 1));
    assert_eq!(world.take(client), [&simple(0)[..], b"\0"].concat());
}

#[test]
fn a_shutdown_finishes_requests_in_flight() {
    let mut world = World::new();
    let (busy, idle) = (world.user(), world.user());
    world.held = Some(Vec::new());
    world.write(busy, 0, &[1; UNIT]);
    world.apply(Event::Shutdown);
    assert!(world.closed.contains(&idle));
    assert!(!world.hub.is_finished());
    world.release();
    assert_eq!(world.take(busy), simple(0));
    assert!(world.hub.is_finished());
    assert!(world.cluster.sessions.is_empty());
    let late = ConnectionId::new(99);
    world.apply(Event::Accepted(late));
    assert!(world.closed.contains(&late));
}

#[test]
fn a_shutdown_without_osds_gives_no_answers_and_detaches_the_volumes() {
    for is_lazy in [false, true] {
        let mut world = World::new();
        world.cluster.is_lazy = is_lazy;
        let busy = world.user();
        world.write(busy, 0, &[1; UNIT]);
        assert_eq!(world.take(busy), simple(0));
        world.held = Some(Vec::new());
        world.write(busy, 0, &[2; UNIT]);
        world.apply(Event::Shutdown);
        assert!(!world.closed.contains(&busy), "its answer may come");
        world.apply(Event::Abandon);
        assert!(world.closed.contains(&busy));
        let began = world.now;
        while !world.hub.is_finished() {
            world.now = world.hub.deadline().expect("it does not wait for ever");
            world.apply(Event::Tick);
        }
        assert!(world.now.since(began) <= Duration::from_secs(4));
        assert!(world.take(busy).is_empty(), "no error either: another server may do it");
        assert!(world.cluster.sessions.is_empty());
        assert_eq!(world.cluster.unanswered.len(), 1, "the next session fences this one");
        assert!(world.hub.is_parted());
    }
}

#[test]
fn extents_cover_a_bounded_range() {
    let mut world = World::new();
    world.cluster.volumes.insert("disk".to_string(), 1 << 30);
    let client = world.connect();
    world.option(client, 8, &[]);
    let mut context = information("disk");
    context.truncate(8);
    context.extend_from_slice(&1u32.to_be_bytes());
    context.extend_from_slice(&15u32.to_be_bytes());
    context.extend_from_slice(b"base:allocation");
    assert_eq!(world.option(client, 10, &context), [4, 1]);
    assert_eq!(world.go(client, "disk"), [3, 3, 1]);
    world.write(client, UNIT as u64, &[1; UNIT]);
    world.take(client);
    world.request(client, 7, 0, (0, 1 << 30));
    let reply = world.take(client);
    let words: Vec<u32> = reply[20..]
        .chunks(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes")))
        .collect();
    let rest = EXTENTS_RANGE_MAX - 2 * UNIT as u32;
    assert_eq!(words, [1, UNIT as u32, 3, UNIT as u32, 0, rest, 3]);
}
