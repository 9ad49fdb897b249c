//! Tests of the reactor with the real kernel: one thread holds both ends of every connection.
//!
//! Every test runs with all features of the kernel, and again with newer features masked.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, unsafe_code)]

use std::io::Write;
use std::path::PathBuf;

use base::checksum::{checksum_units, first_mismatch};
use base::{
    Buffer, ClusterId, ConnectionId, Duration, Epoch, ImageId, Incarnation, MapRevision, OsdId,
    PgId, PoolId, SessionId, StripeIndex, Version,
};
use format::door::{CloseReason, DiskEffect, DiskEvent, DiskOp, NetEffect, NetEvent, Peer, Role};
use format::wire::{Message, Op, Outcome, Place, Reply, Request};
use io::{ClusterKey, Disk, Event, FeatureMask, Options, Reactor, Trust};

/// Timeout for each step of these tests; exceeding it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

fn reactor(mask: FeatureMask) -> Reactor {
    let mut reactor = Reactor::new(Options { entries: 64, mask }).unwrap();
    reactor.set_trust(trust(1, 9, Role::Client));
    reactor
}

fn trust(key: u8, cluster: u128, role: Role) -> Trust {
    let peer = Peer { cluster: ClusterId::new(cluster), role };
    Trust { key: ClusterKey::from_bytes([key; 32]), peer }
}

fn osd() -> Role {
    Role::Osd(OsdId::new(3).unwrap(), Incarnation::new(7))
}

fn masks() -> [FeatureMask; 3] {
    [FeatureMask::NONE, FeatureMask::NO_SQARRAY, FeatureMask::ALL]
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ashlar-io-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn unix(&self) -> String {
        format!("unix:{}", self.path("socket").display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns events one after another; panics if none arrives in time.
struct Feed {
    reactor: Reactor,
    waiting: std::collections::VecDeque<Event>,
}

impl Feed {
    fn new(reactor: Reactor) -> Feed {
        Feed { reactor, waiting: Default::default() }
    }

    fn next(&mut self) -> Event {
        while self.waiting.is_empty() {
            let deadline = self.reactor.now() + PATIENCE;
            let mut events = Vec::new();
            self.reactor.turn(Some(deadline), &mut events).unwrap();
            assert!(self.reactor.now() < deadline, "no event came");
            self.waiting.extend(events);
        }
        self.waiting.pop_front().unwrap()
    }

    fn net(&mut self) -> NetEvent {
        match self.next() {
            Event::Net(event) => event,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self, number: u64, address: &str) -> ConnectionId {
        let connection = ConnectionId::new(number);
        let address = address.to_string();
        self.reactor.net(NetEffect::Connect { connection, address });
        connection
    }

    /// Both ends of a connection to a listener of the same reactor.
    fn connected(&mut self, number: u64, address: &str) -> (ConnectionId, ConnectionId) {
        let ours = self.connect(number, address);
        let mut theirs = None;
        let mut connected = false;
        while theirs.is_none() || !connected {
            match self.net() {
                NetEvent::Accepted { connection, .. } => theirs = Some(connection),
                NetEvent::Connected { connection, .. } => {
                    assert_eq!(connection, ours);
                    connected = true;
                }
                other => panic!("{other:?}"),
            }
        }
        (ours, theirs.unwrap())
    }

    fn send(&mut self, connection: ConnectionId, message: Message) {
        self.reactor.net(NetEffect::Send { connection, message });
    }

    fn received(&mut self) -> (ConnectionId, Message) {
        match self.net() {
            NetEvent::Received { connection, message } => (connection, message),
            other => panic!("{other:?}"),
        }
    }

    fn closed(&mut self) -> (ConnectionId, CloseReason) {
        match self.net() {
            NetEvent::Closed { connection, reason } => (connection, reason),
            other => panic!("{other:?}"),
        }
    }

    fn disk(&mut self) -> DiskEvent {
        match self.next() {
            Event::Disk(event) => event,
            other => panic!("{other:?}"),
        }
    }

    /// Expects no event within `span`.
    fn silent_for(&mut self, span: Duration) {
        assert!(self.waiting.is_empty(), "{:?}", self.waiting);
        let deadline = self.reactor.now() + span;
        let mut events = Vec::new();
        self.reactor.turn(Some(deadline), &mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
        assert!(self.reactor.now() >= deadline);
    }
}

fn request(sequence: u64, op: Op) -> Message {
    let pg = PgId { pool: PoolId::FIRST, number: 3 };
    let (session, epoch) = (SessionId::new(5), Epoch::new(1));
    Message::Request(Request { session, sequence, pg, epoch, revision: MapRevision::ZERO, op })
}

fn write(sequence: u64, data: Buffer) -> Message {
    let mut checksums = Vec::new();
    checksum_units(&data, &mut checksums);
    let place = Place { image: ImageId::FIRST, seed: ImageId::FIRST, stripe: StripeIndex::ZERO };
    request(sequence, Op::Write { place, offset: 0, checksums, data, expected: None, lazy: false })
}

fn pattern(reactor: &Reactor, size: usize, salt: usize) -> Buffer {
    let mut buffer = reactor.pool().take(size);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index / 3 + salt) as u8;
    }
    buffer.freeze()
}

// ---- framed connections -----------------------------------------------------------------------

#[test]
fn messages_of_all_sizes_are_echoed_over_tcp_and_unix() {
    for mask in masks() {
        let folder = Folder::new("echo");
        for listen in ["tcp:127.0.0.1:0".to_string(), folder.unix()] {
            let mut feed = Feed::new(reactor(mask));
            let address = feed.reactor.listen(&listen).unwrap();
            let (client, server) = feed.connected(2, &address);
            for (sequence, size) in [4096, 8192, 61440, 65536, 1 << 20].into_iter().enumerate() {
                let data = pattern(&feed.reactor, size, sequence);
                let sent = write(sequence as u64, data.clone());
                feed.send(client, sent.clone());
                let (connection, message) = feed.received();
                assert_eq!((connection, &message), (server, &sent));
                let Message::Request(Request { sequence, op, .. }) = message else { panic!() };
                let Op::Write { checksums, data, .. } = op else { panic!() };
                assert_eq!(first_mismatch(&data, &checksums), None);
                let outcome = Ok(Outcome::Read { version: Version::ZERO, checksums, data });
                let reply = Reply { session: SessionId::new(5), sequence, outcome };
                feed.send(server, Message::Reply(reply.clone()));
                assert_eq!(feed.received(), (client, Message::Reply(reply)));
            }
        }
    }
}

#[test]
fn many_messages_at_once_arrive_in_order_and_whole() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
        let (client, server) = feed.connected(2, &address);
        let sizes = [4096, 1 << 20, 12288, 65536, 32768];
        for sequence in 0..200 {
            let data = pattern(&feed.reactor, sizes[sequence % sizes.len()], sequence);
            feed.send(client, write(sequence as u64, data));
            feed.send(client, Message::Control("x".repeat(sequence * 500)));
        }
        for sequence in 0..200 {
            let data = pattern(&feed.reactor, sizes[sequence % sizes.len()], sequence);
            assert_eq!(feed.received(), (server, write(sequence as u64, data)));
            let text = Message::Control("x".repeat(sequence * 500));
            assert_eq!(feed.received(), (server, text));
        }
    }
}

#[test]
fn each_end_learns_who_the_other_is() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
    feed.reactor.set_trust(trust(1, 9, osd()));
    feed.connect(2, &address);
    let mut peers = Vec::new();
    for _ in 0..2 {
        match feed.net() {
            NetEvent::Accepted { connection, peer } => {
                assert_eq!(connection.get() % 2, 1);
                peers.push(peer);
            }
            NetEvent::Connected { peer, .. } => peers.push(peer),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(peers, [trust(1, 9, osd()).peer; 2]);
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    for mask in masks() {
        let folder = Folder::new("refused");
        let mut feed = Feed::new(reactor(mask));
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", unused.local_addr().unwrap());
        drop(unused);
        let connection = feed.connect(2, &address);
        assert_eq!(feed.closed(), (connection, CloseReason::Refused));
        let connection = feed.connect(4, &folder.unix());
        assert_eq!(feed.closed(), (connection, CloseReason::Refused));
    }
}

#[test]
fn an_invalid_address_is_reported_as_such() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    feed.connect(2, "carrier pigeon");
    let (_, CloseReason::Untrusted(sentence)) = feed.closed() else { panic!() };
    assert!(sentence.contains("carrier pigeon"), "{sentence}");
    assert!(feed.reactor.listen("tcp:127.0.0.1").is_err());
    assert!(feed.reactor.listen("unix:/nowhere/at/all").is_err());
}

#[test]
fn names_are_looked_up_outside_the_loop() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
    let port = address.rsplit_once(':').unwrap().1;
    // The C library can resolve this name, but our parser cannot: it is looked up on a thread.
    feed.connected(2, &format!("tcp:LocalHost:{port}"));
    let nowhere = feed.connect(4, "tcp:no..host:1");
    assert_eq!(feed.closed(), (nowhere, CloseReason::TimedOut));
}

#[test]
fn the_end_of_the_peer_is_reset() {
    for mask in masks() {
        let mut server = Feed::new(reactor(mask));
        let address = server.reactor.listen("tcp:127.0.0.1:0").unwrap();
        let mut client = Feed::new(reactor(mask));
        let connection = client.connect(2, &address);
        // The two reactors take turns in one thread until both handshakes have finished.
        let mut proven = 0;
        while proven < 2 {
            for feed in [&mut server, &mut client] {
                let mut events = Vec::new();
                let deadline = feed.reactor.now() + Duration::from_millis(1);
                feed.reactor.turn(Some(deadline), &mut events).unwrap();
                proven += events.len();
            }
        }
        drop(server);
        assert_eq!(client.closed(), (connection, CloseReason::Reset));
        let again = client.connect(4, &address);
        assert_eq!(client.closed(), (again, CloseReason::Refused));
    }
}

#[test]
fn a_closed_connection_is_silent_and_its_peer_gets_all_that_was_sent() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
        let (client, server) = feed.connected(2, &address);
        for sequence in 0..20 {
            let data = pattern(&feed.reactor, 1 << 20, sequence);
            feed.send(client, write(sequence as u64, data));
        }
        feed.reactor.net(NetEffect::Close { connection: client });
        feed.send(client, request(99, Op::Sync));
        for _ in 0..20 {
            assert_eq!(feed.received().0, server);
        }
        assert_eq!(feed.closed(), (server, CloseReason::Reset));
        feed.send(server, request(99, Op::Sync));
        feed.silent_for(Duration::from_millis(20));
    }
}

#[test]
fn the_last_message_of_a_program_that_ends_arrives() {
    let mut server = Feed::new(reactor(FeatureMask::NONE));
    let address = server.reactor.listen("tcp:127.0.0.1:0").unwrap();
    let client = std::thread::spawn(move || {
        let mut client = Feed::new(reactor(FeatureMask::NONE));
        let connection = client.connect(2, &address);
        assert!(matches!(client.net(), NetEvent::Connected { .. }));
        client.send(connection, Message::Control("farewell".into()));
        client.reactor.net(NetEffect::Close { connection });
    });
    let NetEvent::Accepted { connection, .. } = server.net() else { panic!() };
    assert_eq!(server.received(), (connection, Message::Control("farewell".into())));
    assert_eq!(server.closed(), (connection, CloseReason::Reset));
    client.join().unwrap();
}

#[test]
fn another_key_or_cluster_is_untrusted_on_both_sides() {
    for mask in masks() {
        for (key, cluster, says) in [(2, 9, "cluster key"), (1, 8, "belongs to cluster")] {
            let mut feed = Feed::new(reactor(mask));
            let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
            // The listener uses the trust that is set at the time of the accept, so this needs two reactors.
            let mut client = Feed::new(reactor(mask));
            client.reactor.set_trust(trust(key, cluster, osd()));
            client.connect(2, &address);
            let mut ended = None;
            while ended.is_none() {
                let mut events = Vec::new();
                let deadline = feed.reactor.now() + Duration::from_millis(1);
                feed.reactor.turn(Some(deadline), &mut events).unwrap();
                assert!(events.is_empty(), "{events:?}");
                client.reactor.turn(Some(deadline), &mut events).unwrap();
                ended = events.pop();
            }
            let Some(Event::Net(NetEvent::Closed { reason, .. })) = ended else { panic!() };
            let CloseReason::Untrusted(sentence) = reason else { panic!("{reason:?}") };
            assert!(sentence.contains(says) && sentence.contains(&address), "{sentence}");
            let rejected = feed.reactor.take_rejected();
            assert!(matches!(rejected.as_slice(), [sentence] if sentence.contains(says)));
        }
    }
}

#[test]
fn strangers_cannot_get_past_the_handshake() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
    let mut stranger = std::net::TcpStream::connect(&address[4..]).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    while feed.reactor.take_rejected().is_empty() {
        feed.silent_for(Duration::from_millis(1));
    }
    // More unauthenticated connections than the limit; none of them sends anything.
    let strangers: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(&address[4..])).collect();
    let mut rejected_count = 0;
    while rejected_count < 300 - 256 {
        feed.silent_for(Duration::from_millis(1));
        rejected_count += feed.reactor.take_rejected().len();
    }
    feed.connected(2, &address);
    drop(strangers);
}

#[test]
fn streams_beyond_the_limit_are_closed_at_once() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    feed.reactor.set_raw_max(2);
    let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
    let connect = || std::net::TcpStream::connect(&address[4..]).unwrap();
    let accept = |feed: &mut Feed| {
        let mut events = Vec::new();
        while events.is_empty() {
            feed.reactor.turn(None, &mut events).unwrap();
        }
        let [Event::RawAccepted { connection, .. }] = events[..] else { panic!("{events:?}") };
        connection
    };
    let _first = connect();
    accept(&mut feed);
    let _second = connect();
    let second = accept(&mut feed);
    let mut refused = connect();
    let mut rejected = Vec::new();
    while rejected.is_empty() {
        feed.silent_for(Duration::from_millis(1));
        rejected = feed.reactor.take_rejected();
    }
    assert_eq!(rejected, ["a client was refused: there are already 2 clients"]);
    assert_eq!(std::io::Read::read(&mut refused, &mut [0]).unwrap(), 0, "it was closed");
    // A closed stream makes room for another.
    feed.reactor.raw_close(second);
    let _third = connect();
    accept(&mut feed);
}

#[test]
fn invalid_frames_end_the_connection() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
    // A peer that passes the handshake and then sends garbage.
    let mut peer = std::net::TcpStream::connect(&address[4..]).unwrap();
    let mut hello = Vec::new();
    let mut handshake = io::Handshake::initiate(&trust(1, 9, osd()), &mut hello);
    peer.write_all(&hello).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut answer = [0; 200];
    let length = loop {
        feed.silent_for(Duration::from_millis(1));
        match std::io::Read::read(&mut peer, &mut answer) {
            Ok(length) => break length,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    };
    let mut confirm = Vec::new();
    handshake.receive(&answer[..length], &mut confirm).unwrap();
    confirm.extend_from_slice(&[0x55; 100]);
    peer.write_all(&confirm).unwrap();
    let NetEvent::Accepted { connection, peer } = feed.net() else { panic!() };
    assert_eq!(peer.role, osd());
    let (closed, reason) = feed.closed();
    assert_eq!(closed, connection);
    assert!(matches!(reason, CloseReason::Protocol(_)), "{reason:?}");
}

// ---- time, wake-ups, signals ------------------------------------------------------------------

#[test]
fn deadlines_are_met() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        for millis in [0, 1, 5, 20] {
            feed.silent_for(Duration::from_millis(millis));
        }
        let mut events = Vec::new();
        let start = feed.reactor.now();
        feed.reactor.turn(Some(base::Time::ZERO), &mut events).unwrap();
        assert!(feed.reactor.now().since(start) < Duration::from_secs(1));
    }
}

#[test]
fn another_thread_wakes_the_loop_once() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        for _ in 0..3 {
            let waker = feed.reactor.waker();
            let thread = std::thread::spawn(move || {
                waker.wake();
                waker.clone().wake();
            });
            assert!(matches!(feed.next(), Event::Woken));
            thread.join().unwrap();
            // The second wake-up may have arrived after the first event, so at most one more event follows.
            let mut events = Vec::new();
            let deadline = feed.reactor.now() + Duration::from_millis(5);
            feed.reactor.turn(Some(deadline), &mut events).unwrap();
            assert!(events.len() <= 1);
        }
    }
}

#[test]
fn sigterm_is_an_event() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    feed.reactor.watch_signals().unwrap();
    // Signal this thread alone: the test program has others that do not block the signal.
    let id = rustix::thread::gettid();
    // SAFETY: no memory is passed; the signal is blocked by this thread and only read.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            std::process::id(),
            id.as_raw_nonzero().get(),
            libc::SIGTERM,
        )
    };
    assert_eq!(sent, 0);
    assert!(matches!(feed.next(), Event::Terminate));
}

// ---- byte streams -----------------------------------------------------------------------------

#[test]
fn byte_streams_deliver_what_was_expected_as_one() {
    for mask in masks() {
        let folder = Folder::new("raw");
        for listen in ["tcp:127.0.0.1:0".to_string(), folder.unix()] {
            let mut feed = Feed::new(reactor(mask));
            let (listener, address) = feed.reactor.listen_raw(&listen).unwrap();
            let mut peer = RawPeer::connect(&address);
            let Event::RawAccepted { listener: at, connection } = feed.next() else { panic!() };
            assert_eq!(at, listener);
            let big: Vec<u8> = (0..1_000_000).map(|i| (i / 5) as u8).collect();
            let bytes = big.clone();
            let sender = std::thread::spawn(move || {
                peer.write_all(b"head").unwrap();
                peer.write_all(&bytes).unwrap();
                peer.write_all(b"tail").unwrap();
                peer
            });
            feed.reactor.raw_expect(connection, 4);
            assert_eq!(feed.raw(), b"head");
            feed.reactor.raw_expect(connection, big.len());
            let Event::RawReceived { data, .. } = feed.next() else { panic!() };
            assert!(data[..] == big[..]);
            assert!(data.is_aligned_to(4096));
            let mut tail = Vec::new();
            while tail.len() < 4 {
                tail.extend(feed.raw());
            }
            assert_eq!(tail, b"tail");
            let mut peer = sender.join().unwrap();
            let data = pattern(&feed.reactor, 3_000_000, 1);
            feed.reactor.raw_send(connection, vec![data.clone(), data.slice(0..7)]);
            assert_eq!(feed.reactor.raw_queued_bytes(connection), 3_000_007);
            feed.reactor.raw_close(connection);
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                std::io::Read::read_to_end(&mut peer, &mut all).unwrap();
                all
            });
            while !reader.is_finished() {
                let mut events = Vec::new();
                let deadline = feed.reactor.now() + Duration::from_millis(5);
                feed.reactor.turn(Some(deadline), &mut events).unwrap();
                assert!(events.is_empty(), "{events:?}");
            }
            let all = reader.join().unwrap();
            assert_eq!(all.len(), 3_000_007);
            assert!(all[..3_000_000] == data[..] && all[3_000_000..] == data[..7]);
        }
    }
}

#[test]
fn a_paused_byte_stream_is_not_read() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
        let mut peer = RawPeer::connect(&address);
        let Event::RawAccepted { connection, .. } = feed.next() else { panic!() };
        feed.reactor.raw_pause(connection);
        peer.write_all(b"later").unwrap();
        feed.silent_for(Duration::from_millis(20));
        feed.reactor.raw_resume(connection);
        assert_eq!(feed.raw(), b"later");
        // Pause while a receive is already in flight.
        feed.silent_for(Duration::from_millis(1));
        feed.reactor.raw_pause(connection);
        peer.write_all(b"again").unwrap();
        feed.silent_for(Duration::from_millis(20));
        feed.reactor.raw_resume(connection);
        assert_eq!(feed.raw(), b"again");
        drop(peer);
        assert!(matches!(feed.next(), Event::RawClosed { connection: c } if c == connection));
        feed.reactor.raw_send(connection, vec![pattern(&feed.reactor, 10, 0)]);
        feed.reactor.raw_expect(connection, 10);
        assert_eq!(feed.reactor.raw_queued_bytes(connection), 0);
        feed.silent_for(Duration::from_millis(5));
    }
}

#[test]
fn a_peer_that_does_not_read_is_disconnected() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
    let peer = RawPeer::connect(&address);
    let Event::RawAccepted { connection, .. } = feed.next() else { panic!() };
    // One buffer, queued many times, so that all entries share its memory.
    let data = pattern(&feed.reactor, 4 << 20, 0);
    for _ in 0..60 {
        feed.reactor.raw_send(connection, vec![data.clone()]);
    }
    feed.silent_for(Duration::from_millis(1));
    assert!(feed.reactor.raw_queued_bytes(connection) > 200 << 20);
    for _ in 0..10 {
        feed.reactor.raw_send(connection, vec![data.clone()]);
    }
    assert!(matches!(feed.next(), Event::RawClosed { connection: c } if c == connection));
    drop(peer);
}

/// Nothing else wakes the loop, so the completion of the first send must trigger the rest of the queue.
#[test]
fn a_queue_of_many_pieces_is_sent_completely() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
    let mut peer = RawPeer::connect(&address);
    let Event::RawAccepted { connection, .. } = feed.next() else { panic!() };
    let data = pattern(&feed.reactor, 4096, 0);
    feed.reactor.raw_send(connection, vec![data.slice(0..100); 200]);
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut vec![0; 20_000]).unwrap();
        peer.write_all(b"all").unwrap();
    });
    let (begin, mut events) = (feed.reactor.now(), Vec::new());
    while events.is_empty() {
        feed.reactor.turn(Some(begin + Duration::from_secs(20)), &mut events).unwrap();
    }
    let waited = feed.reactor.now().since(begin);
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    reader.join().unwrap();
}

/// At its limit, a server accepts the next client as soon as the previous one has received its last message.
#[test]
fn a_connection_closes_after_its_last_message_is_sent() {
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    feed.reactor.set_raw_max(1);
    let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
    let mut peer = RawPeer::connect(&address);
    let Event::RawAccepted { connection, .. } = feed.next() else { panic!() };
    peer.write_all(b"ask").unwrap();
    assert_eq!(feed.raw(), *b"ask");
    let data = pattern(&feed.reactor, 4096, 0);
    feed.reactor.raw_send(connection, vec![data.slice(0..100)]);
    feed.reactor.raw_close(connection);
    let next = std::thread::spawn(move || {
        peer.read_to_end(&mut Vec::new()).unwrap();
        RawPeer::connect(&address)
    });
    let (begin, mut events) = (feed.reactor.now(), Vec::new());
    while events.is_empty() {
        feed.reactor.turn(Some(begin + Duration::from_secs(60)), &mut events).unwrap();
    }
    assert!(matches!(events[..], [Event::RawAccepted { .. }]));
    // A connection that lingers is closed after 5 s at the latest.
    let waited = feed.reactor.now().since(begin);
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    next.join().unwrap();
}

#[test]
fn full_sockets_do_not_delay_others() {
    for mask in masks() {
        let mut feed = Feed::new(reactor(mask));
        let (_, address) = feed.reactor.listen_raw("tcp:127.0.0.1:0").unwrap();
        // More connections than the submission queue has entries; some have more to send than their sockets
        // accept.
        let mut peers = Vec::new();
        let data = pattern(&feed.reactor, 4 << 20, 0);
        for _ in 0..70 {
            let peer = RawPeer::connect(&address);
            let Event::RawAccepted { connection, .. } = feed.next() else { panic!() };
            peers.push((peer, connection));
        }
        let (mut reader, last) = peers.pop().unwrap();
        for (number, (_, connection)) in peers.iter().enumerate() {
            // Two pieces: a vectored send.
            let length = if number < 4 { data.len() } else { 10 };
            feed.reactor.raw_send(*connection, vec![data.slice(0..length), data.slice(0..length)]);
        }
        let patient = feed.reactor.now() + PATIENCE;
        for round in 0..3 {
            feed.reactor.raw_send(last, vec![data.slice(0..100 + round)]);
            reader.write_all(&[round as u8; 3]).unwrap();
            assert_eq!(feed.raw(), [round as u8; 3], "while others are full");
        }
        assert!(feed.reactor.now() < patient);
        feed.silent_for(Duration::from_millis(5));
        let mut received = vec![0; 303];
        reader.read_exact(&mut received).unwrap();
        assert_eq!(received[..100], data[..100]);
        assert_eq!(received[201..], data[..102]);
        assert!(feed.reactor.raw_queued_bytes(peers[0].1) > 0);
        // Reading makes room, and all bytes arrive.
        for (peer, _) in &mut peers[4..] {
            let mut received = [0; 20];
            peer.read_exact(&mut received).unwrap();
            assert_eq!(received, [&data[..10], &data[..10]].concat()[..]);
        }
        let (mut peer, first) = peers.swap_remove(0);
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; 8 << 20];
            peer.read_exact(&mut received).unwrap();
            peer.write_all(b"done").unwrap();
            received
        });
        assert!(
            matches!(feed.next(), Event::RawReceived { connection, .. } if connection == first)
        );
        let received = reader.join().unwrap();
        assert!(received[..4 << 20] == data[..] && received[4 << 20..] == data[..]);
        assert_eq!(feed.reactor.raw_queued_bytes(first), 0);
    }
}

trait ReadWrite: std::io::Read + Write + Send {}
impl<T: std::io::Read + Write + Send> ReadWrite for T {}

struct RawPeer;

impl RawPeer {
    fn connect(address: &str) -> Box<dyn ReadWrite> {
        match address.split_once(':').unwrap() {
            ("tcp", place) => Box::new(std::net::TcpStream::connect(place).unwrap()),
            (_, path) => Box::new(std::os::unix::net::UnixStream::connect(path).unwrap()),
        }
    }
}

impl Feed {
    fn raw(&mut self) -> Vec<u8> {
        match self.next() {
            Event::RawReceived { data, .. } => data.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_the_socket_of_a_dead_process_is_taken_over() {
    let folder = Folder::new("stale");
    let mut first = reactor(FeatureMask::NONE);
    first.listen(&folder.unix()).unwrap();
    let mut second = reactor(FeatureMask::NONE);
    let error = second.listen(&folder.unix()).unwrap_err();
    assert!(error.0.contains("in use"), "{error}");
    drop(first);
    second.listen(&folder.unix()).unwrap();
}

// ---- the disk ---------------------------------------------------------------------------------

fn with_disk(mask: FeatureMask, folder: &Folder, size: u64) -> Feed {
    let path = folder.path("disk");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let mut feed = Feed::new(reactor(mask));
    feed.reactor.attach_disk(Disk::open(&path).unwrap());
    feed
}

fn done(event: DiskEvent) -> DiskOp {
    match event {
        DiskEvent::Done { op, result: Ok(()) } => op,
        other => panic!("{other:?}"),
    }
}

#[test]
fn written_data_is_read_back_and_discarded_data_is_gone() {
    for mask in masks() {
        let folder = Folder::new("disk");
        let mut feed = with_disk(mask, &folder, 8 << 20);
        for (number, durable) in [(0, false), (1, true)] {
            let buffers: Vec<Buffer> =
                (0..5).map(|i| pattern(&feed.reactor, 4096 << (i % 3), i + number)).collect();
            let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
            let expected: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
            let op = DiskOp(10 * number as u64);
            feed.reactor.disk(DiskEffect::Write { op, offset: 1 << 20, buffers, durable });
            assert_eq!(done(feed.disk()), op);
            feed.reactor.disk(DiskEffect::Flush { op: DiskOp(op.0 + 1) });
            assert_eq!(done(feed.disk()), DiskOp(op.0 + 1));
            let buffer = feed.reactor.pool().take(length);
            feed.reactor.disk(DiskEffect::Read { op: DiskOp(op.0 + 2), offset: 1 << 20, buffer });
            let DiskEvent::Read { buffer, result, .. } = feed.disk() else { panic!() };
            assert_eq!(result, Ok(()));
            assert!(buffer[..] == expected[..]);
        }
        feed.reactor.disk(DiskEffect::Discard { op: DiskOp(9), offset: 1 << 20, length: 1 << 20 });
        assert_eq!(done(feed.disk()), DiskOp(9));
        let buffer = feed.reactor.pool().take(4096);
        feed.reactor.disk(DiskEffect::Read { op: DiskOp(8), offset: 1 << 20, buffer });
        let DiskEvent::Read { buffer, .. } = feed.disk() else { panic!() };
        assert!(buffer.iter().all(|byte| *byte == 0), "a punched file reads as zeros");
    }
}

/// Shows how a program drives logic: events in, effects out. The logic here is a node with one stripe: a
/// write is answered once it is written and flushed, a read with the content of the disk.
#[derive(Default)]
struct SmallNode {
    asked: std::collections::BTreeMap<u64, (ConnectionId, Request)>,
    last_op: u64,
    version: u64,
}

enum NodeEffect {
    Net(NetEffect),
    Disk(DiskEffect),
}

impl SmallNode {
    fn apply(&mut self, pool: &base::BufferPool, event: Event, effects: &mut Vec<NodeEffect>) {
        match event {
            Event::Net(NetEvent::Received { connection, message: Message::Request(request) }) => {
                self.last_op += 1;
                let op = DiskOp(2 * self.last_op);
                effects.push(NodeEffect::Disk(match &request.op {
                    Op::Write { offset, data, .. } => {
                        let buffers = vec![pool.copy_of(data)];
                        DiskEffect::Write {
                            op,
                            offset: u64::from(*offset),
                            buffers,
                            durable: false,
                        }
                    }
                    Op::Read { offset, length, .. } => {
                        let buffer = pool.take(*length as usize);
                        DiskEffect::Read { op, offset: u64::from(*offset), buffer }
                    }
                    other => panic!("{other:?}"),
                }));
                self.asked.insert(self.last_op, (connection, request));
            }
            Event::Disk(DiskEvent::Done { op, result }) if op.0 % 2 == 0 => {
                result.unwrap();
                effects.push(NodeEffect::Disk(DiskEffect::Flush { op: DiskOp(op.0 + 1) }));
            }
            Event::Disk(DiskEvent::Done { op, result }) => {
                result.unwrap();
                self.version += 1;
                let version = Version { epoch: Epoch::new(1), counter: self.version };
                self.answer(op, Outcome::Written { version, durable: true }, effects);
            }
            Event::Disk(DiskEvent::Read { op, buffer, result }) => {
                result.unwrap();
                let data = buffer.freeze();
                let mut checksums = Vec::new();
                checksum_units(&data, &mut checksums);
                let outcome = Outcome::Read { version: Version::ZERO, checksums, data };
                self.answer(op, outcome, effects);
            }
            _ => {}
        }
    }

    fn answer(&mut self, op: DiskOp, outcome: Outcome, effects: &mut Vec<NodeEffect>) {
        let (connection, request) = self.asked.remove(&(op.0 / 2)).unwrap();
        let (session, sequence) = (request.session, request.sequence);
        let message = Message::Reply(Reply { session, sequence, outcome: Ok(outcome) });
        effects.push(NodeEffect::Net(NetEffect::Send { connection, message }));
    }
}

#[test]
fn a_small_node_serves_writes_and_reads_in_a_process_of_its_own_loop() {
    for mask in masks() {
        let folder = Folder::new("node");
        let path = folder.path("disk");
        std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let (ready, address) = std::sync::mpsc::channel();
        let node = std::thread::spawn(move || {
            let mut reactor = reactor(mask);
            reactor.attach_disk(Disk::open(&path).unwrap());
            let address = reactor.listen("tcp:127.0.0.1:0").unwrap();
            ready.send((address, reactor.waker())).unwrap();
            let mut node = SmallNode::default();
            let (mut events, mut effects) = (Vec::new(), Vec::new());
            loop {
                reactor.turn(None, &mut events).unwrap();
                for event in events.drain(..) {
                    if matches!(event, Event::Woken) {
                        return;
                    }
                    node.apply(&reactor.pool().clone(), event, &mut effects);
                }
                for effect in effects.drain(..) {
                    match effect {
                        NodeEffect::Net(effect) => reactor.net(effect),
                        NodeEffect::Disk(effect) => reactor.disk(effect),
                    }
                }
            }
        });
        let (address, stop) = address.recv().unwrap();
        let mut client = Feed::new(reactor(mask));
        let connection = client.connect(2, &address);
        assert!(matches!(client.net(), NetEvent::Connected { .. }));
        for (sequence, size) in [4096, 16384, 65536, 1 << 20].into_iter().enumerate() {
            let data = pattern(&client.reactor, size, sequence + 5);
            client.send(connection, write(sequence as u64, data.clone()));
            let (_, Message::Reply(reply)) = client.received() else { panic!() };
            assert!(matches!(reply.outcome, Ok(Outcome::Written { durable: true, .. })));
            let place =
                Place { image: ImageId::FIRST, seed: ImageId::FIRST, stripe: StripeIndex::ZERO };
            let (length, parents) = (size as u32, Vec::new());
            client.send(connection, request(99, Op::Read { place, offset: 0, length, parents }));
            let (_, Message::Reply(reply)) = client.received() else { panic!() };
            let Ok(Outcome::Read { data: read, checksums, .. }) = reply.outcome else { panic!() };
            assert!(read[..] == data[..]);
            assert_eq!(first_mismatch(&read, &checksums), None);
        }
        stop.wake();
        node.join().unwrap();
        assert_eq!(client.closed(), (connection, CloseReason::Reset));
    }
}

#[test]
fn more_operations_than_the_ring_has_entries_all_end() {
    for mask in masks() {
        let folder = Folder::new("many");
        let mut feed = with_disk(mask, &folder, 8 << 20);
        for op in 0..1000u64 {
            let buffers = vec![pattern(&feed.reactor, 4096, op as usize)];
            let offset = op * 4096;
            feed.reactor.disk(DiskEffect::Write {
                op: DiskOp(op),
                offset,
                buffers,
                durable: false,
            });
        }
        let mut ended: Vec<u64> = (0..1000).map(|_| done(feed.disk()).0).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..1000).collect::<Vec<_>>());
    }
}

#[test]
fn a_read_beyond_the_end_fails_and_gives_its_buffer_back() {
    let folder = Folder::new("beyond");
    let mut feed = with_disk(FeatureMask::NONE, &folder, 8192);
    let buffer = feed.reactor.pool().take(8192);
    feed.reactor.disk(DiskEffect::Read { op: DiskOp(1), offset: 4096, buffer });
    let DiskEvent::Read { buffer, result, .. } = feed.disk() else { panic!() };
    assert_eq!(buffer.len(), 8192);
    assert!(result.is_err());
}

#[test]
fn a_disk_belongs_to_one_process_at_a_time() {
    let folder = Folder::new("lock");
    let path = folder.path("disk");
    std::fs::write(&path, [0; 8192]).unwrap();
    let disk = Disk::open(&path).unwrap();
    assert_eq!(disk.size(), 8192);
    let error = Disk::open(&path).unwrap_err();
    assert!(error.0.contains("in use by another process"), "{error}");
    assert!(Disk::open_read_only(&path).is_ok());
    drop(disk);
    assert!(Disk::open(&path).is_ok());
    assert!(Disk::open(&folder.path("none")).is_err());
    assert!(Disk::open(&folder.0).unwrap_err().0.contains("neither a regular file"));
}

#[test]
fn a_file_system_without_direct_io_is_buffered_and_says_so() {
    // tmpfs refused O_DIRECT until Linux 6.6 and accepts it since: either way the disk works.
    let path = PathBuf::from(format!("/dev/shm/ashlar-io-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let mut feed = Feed::new(reactor(FeatureMask::NONE));
    let disk = Disk::open(&path).unwrap();
    let _ = disk.buffered();
    feed.reactor.attach_disk(disk);
    let buffers = vec![pattern(&feed.reactor, 65536, 3), pattern(&feed.reactor, 512, 4)];
    feed.reactor.disk(DiskEffect::Write { op: DiskOp(1), offset: 4096, buffers, durable: true });
    done(feed.disk());
    feed.reactor.disk(DiskEffect::Flush { op: DiskOp(2) });
    done(feed.disk());
    let buffer = feed.reactor.pool().take(65536);
    feed.reactor.disk(DiskEffect::Read { op: DiskOp(3), offset: 4096, buffer });
    let DiskEvent::Read { buffer, .. } = feed.disk() else { panic!() };
    assert!(buffer[..] == pattern(&feed.reactor, 65536, 3)[..]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_reactor_dropped_with_operations_in_flight_leaves_cleanly() {
    for mask in masks() {
        let folder = Folder::new("drop");
        let mut feed = with_disk(mask, &folder, 8 << 20);
        let address = feed.reactor.listen("tcp:127.0.0.1:0").unwrap();
        feed.connected(2, &address);
        for op in 0..100 {
            let buffers = vec![pattern(&feed.reactor, 65536, op)];
            let op = DiskOp(op as u64);
            feed.reactor.disk(DiskEffect::Write { op, offset: 0, buffers, durable: true });
        }
        drop(feed);
        Disk::open(&folder.path("disk")).unwrap();
    }
}
