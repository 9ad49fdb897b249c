//! One thread, one ring: sockets, the disk, signals and wake-ups of other threads as events.
//!
//! ```text
//!   turn:  give raw readers what they wait for, send what is queued, receive where wanted
//!          ──▶ one system call: submit, wait for a completion or the deadline
//!          ──▶ completions become events
//! ```
//!
//! Invariants
//!   1. Every connection id is used once: even ones are the program's, odd ones are ours.
//!   2. After its `Closed` (or after `Close`) no event of a connection is delivered.
//!   3. A connection that is gone leaves the table at once; its operations keep their memory and
//!      socket until the kernel has let go of them.

mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base::{Buffer, BufferMut, BufferPool, ConnectionId, Duration, Time};
use format::door::{CloseReason, DiskEffect, DiskEvent, NetEffect, NetEvent};
use format::wire::{Message, encode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;

use crate::address::Address;
use crate::disk::{Disk, Progress};
use crate::handshake::{Handshake, HandshakeStep, Trust};
use crate::inbox::Inbox;
use crate::ring::{Completion, FeatureMask, Op, Ring};
use crate::send_queue::SendQueue;
use crate::stream::{RawInbox, Stage, Stream};
use crate::{Error, clock, socket};

/// The handshake of who comes to us must have ended after so long.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// A connect and handshake of ours must have ended after so long: another address may do.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// The same with a name that is to be looked up first.
const NAMED_CONNECT_TIME_MAX: Duration = Duration::from_secs(7);
/// So long a closed connection may take to send what was queued.
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);
/// Connections that came to us and are in their handshake; one more, and the oldest goes.
const UNPROVEN_COUNT_MAX: usize = 256;
/// A connection with more bytes waiting to be sent is closed: its peer does not read.
const SEND_QUEUE_SIZE_MAX: usize = 256 << 20;
/// Listening goes on so long after the process ran out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Sentences on refused connections kept for the log.
const REJECTED_COUNT_MAX: usize = 64;
/// A handshake's messages are smaller; frames may follow in the same portion.
pub(super) const HANDSHAKE_BUFFER_SIZE: usize = 4096;

/// What a reactor is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the submission queue: operations started in one turn without an extra call.
    pub entries: u32,
    /// Newer kernel features to pretend absent.
    pub mask: FeatureMask,
}

impl Default for Options {
    fn default() -> Options {
        Options { entries: 256, mask: FeatureMask::NONE }
    }
}

/// Names a listener for byte streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(usize);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// On a framed connection.
    Net(NetEvent),
    /// On the disk.
    Disk(DiskEvent),
    /// A byte stream was accepted.
    RawAccepted {
        /// Where.
        listener: ListenerId,
        /// Names it from now on; odd.
        connection: ConnectionId,
    },
    /// Bytes came: what `raw_expect` asked for, or as they arrived.
    RawReceived {
        /// On which connection.
        connection: ConnectionId,
        /// The bytes; never none.
        data: Buffer,
    },
    /// A byte stream is gone; the last event of its id.
    RawClosed {
        /// Which.
        connection: ConnectionId,
    },
    /// A [`Waker`] was used since the last `Woken`.
    Woken,
    /// SIGTERM or SIGINT came.
    Terminate,
}

/// Wakes a reactor from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// Makes the reactor's `turn` return with [`Event::Woken`].
    pub fn wake(&self) {
        self.0.woken.store(true, Ordering::Release);
        self.0.ring_bell();
    }
}

/// What other threads reach.
#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    woken: AtomicBool,
    /// Names that were looked up for connects.
    resolved: Mutex<Vec<(ConnectionId, Result<Address, CloseReason>)>>,
}

impl Shared {
    fn ring_bell(&self) {
        // An eventfd counts in the machine's byte order.
        #[allow(clippy::host_endian_bytes)]
        let one = 1u64.to_ne_bytes();
        // It can fail only by overflow, and then the bell rings already.
        let _ = rustix::io::write(&self.bell, &one);
    }
}

struct Listener {
    socket: OwnedFd,
    raw: bool,
    tcp: bool,
    /// Listening goes on then.
    retry_at: Option<Time>,
}

/// The shell around logic: see the module's text.
pub struct Reactor {
    // Dropped first: waits until the kernel has let go of everything below.
    ring: Ring,
    pool: BufferPool,
    trust: Option<Trust>,
    streams: Slab<Stream>,
    indexes: BTreeMap<ConnectionId, usize>,
    /// Streams whose stage must end at some time.
    deadlines: BTreeSet<(Time, ConnectionId)>,
    /// Streams that have something to send, to deliver or to receive.
    dirty: Vec<usize>,
    accepted_count: u64,
    unproven_count: usize,
    raw_count: usize,
    raw_max: usize,
    listeners: Vec<Listener>,
    disk: Option<Disk>,
    signals: Option<OwnedFd>,
    shared: Arc<Shared>,
    rejected: Vec<String>,
}

impl Reactor {
    /// A reactor of the calling thread.
    pub fn new(options: Options) -> io::Result<Reactor> {
        let mut ring = Ring::new(options.entries, options.mask)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.readable(bell.as_raw_fd(), Op::Wake);
        Ok(Reactor {
            ring,
            pool: BufferPool::default(),
            trust: None,
            streams: Slab::new(),
            indexes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            dirty: Vec::new(),
            accepted_count: 0,
            unproven_count: 0,
            raw_count: 0,
            raw_max: usize::MAX,
            listeners: Vec::new(),
            disk: None,
            signals: None,
            shared: Arc::new(Shared {
                bell,
                woken: AtomicBool::new(false),
                resolved: Mutex::new(Vec::new()),
            }),
            rejected: Vec::new(),
        })
    }

    /// The pool of this thread's payloads.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// The time now: CLOCK_BOOTTIME.
    pub fn now(&self) -> Time {
        clock::now()
    }

    /// The way the ring was set up, for the log.
    pub fn features(&self) -> &'static str {
        self.ring.features
    }

    /// Who we are in handshakes from now on. Must be set before `listen` and connects.
    pub fn set_trust(&mut self, trust: Trust) {
        self.trust = Some(trust);
    }

    /// Sentences on connections refused since the last call, for the log.
    pub fn take_rejected(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rejected)
    }

    /// Accepts peers at `address` (`tcp:HOST:PORT`, port 0 for any; `unix:PATH`). Returns the
    /// address it got.
    pub fn listen(&mut self, address: &str) -> Result<String, Error> {
        assert!(self.trust.is_some(), "set_trust comes first");
        Ok(self.open_listener(address, false)?.1)
    }

    /// Byte streams accepted beyond `count` at a time are closed at once, with a sentence for
    /// [`Reactor::take_rejected`]. One that is closed counts until what was queued has left.
    pub fn set_raw_max(&mut self, count: usize) {
        self.raw_max = count;
    }

    /// Accepts byte streams at `address`. Returns its name, and the address it got.
    pub fn listen_raw(&mut self, address: &str) -> Result<(ListenerId, String), Error> {
        self.open_listener(address, true)
    }

    fn open_listener(&mut self, address: &str, raw: bool) -> Result<(ListenerId, String), Error> {
        let (socket, bound) = socket::listen(address)?;
        let index = self.listeners.len();
        self.ring.accept(index, socket.as_raw_fd());
        let tcp = bound.starts_with("tcp:");
        self.listeners.push(Listener { socket, raw, tcp, retry_at: None });
        Ok((ListenerId(index), bound))
    }

    /// Does what logic asks of the network.
    pub fn net(&mut self, effect: NetEffect) {
        match effect {
            NetEffect::Connect { connection, address } => self.connect(connection, address),
            NetEffect::Send { connection, message } => self.send(connection, &message),
            NetEffect::Close { connection } => self.close(connection),
        }
    }

    /// Gives the reactor its disk.
    pub fn attach_disk(&mut self, disk: Disk) {
        assert!(self.disk.is_none(), "one disk for each reactor");
        self.disk = Some(disk);
    }

    /// The disk it was given.
    pub fn attached_disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Does what logic asks of the disk. Requires: a disk is attached.
    pub fn disk(&mut self, effect: DiskEffect) {
        let disk = self.disk.as_ref().expect("attach_disk comes first");
        self.ring.disk(disk.job(effect));
    }

    /// SIGTERM and SIGINT come as [`Event::Terminate`] from now on. Call it before other threads
    /// are started, so that they leave these signals alone too.
    pub fn watch_signals(&mut self) -> io::Result<()> {
        assert!(self.signals.is_none());
        let signals = crate::signals::open()?;
        self.ring.readable(signals.as_raw_fd(), Op::Signal);
        self.signals = Some(signals);
        Ok(())
    }

    /// A handle that wakes this reactor from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    // ---- byte streams -----------------------------------------------------------------------

    /// Sends the buffers, one after another. Dropped if the connection is gone.
    pub fn raw_send(&mut self, connection: ConnectionId, buffers: Vec<Buffer>) {
        let Some(index) = self.raw_index(connection) else { return };
        for buffer in buffers {
            self.streams[index].queue.push_payload(buffer);
        }
        self.mark_dirty(index);
    }

    /// The next `length` bytes come as one aligned buffer of exactly that length; then bytes come
    /// as they arrive again.
    pub fn raw_expect(&mut self, connection: ConnectionId, length: usize) {
        let buffer = self.pool.take(length);
        self.raw_expect_into(connection, buffer, 0);
    }

    /// The next bytes go to `buffer[filled..]`; when it is full, all of it comes as one.
    pub fn raw_expect_into(&mut self, connection: ConnectionId, buffer: BufferMut, filled: usize) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.expect(buffer, filled);
        }
        self.mark_dirty(index);
    }

    /// Nothing of the connection is received until `raw_resume`.
    pub fn raw_pause(&mut self, connection: ConnectionId) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.paused = true;
        }
    }

    /// Receiving goes on.
    pub fn raw_resume(&mut self, connection: ConnectionId) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.paused = false;
        }
        self.mark_dirty(index);
    }

    /// Closes it when what is queued has left. No further event of it is delivered.
    pub fn raw_close(&mut self, connection: ConnectionId) {
        self.close(connection);
    }

    /// Bytes that wait to be sent; 0 if it is gone.
    pub fn raw_queued_bytes(&self, connection: ConnectionId) -> usize {
        self.raw_index(connection).map_or(0, |index| self.streams[index].queue.length())
    }

    fn raw_index(&self, connection: ConnectionId) -> Option<usize> {
        let index = *self.indexes.get(&connection)?;
        matches!(self.streams[index].stage, Stage::Raw(_)).then_some(index)
    }

    // ---- connections: begin and end ---------------------------------------------------------

    fn connect(&mut self, connection: ConnectionId, address: String) {
        assert!(connection.get().is_multiple_of(2), "odd ids are the reactor's");
        assert!(!self.indexes.contains_key(&connection), "a connection's id is used once");
        assert!(self.trust.is_some(), "set_trust comes first");
        let mut stream = Stream::new(connection, None, Stage::Resolve);
        stream.address = address;
        let index = self.insert(stream);
        let address = Address::parse(&self.streams[index].address)
            .map_err(|error| CloseReason::Untrusted(error.0));
        let time_max = match address {
            Ok(Address::Name(_)) => NAMED_CONNECT_TIME_MAX,
            _ => CONNECT_TIME_MAX,
        };
        self.set_deadline(index, Some(clock::now() + time_max));
        let Ok(name @ Address::Name(_)) = address else {
            self.resolved(connection, address);
            return;
        };
        // Looking a name up waits for other machines: not on this thread.
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            let found = name.resolve().map_err(|_| CloseReason::TimedOut);
            shared.resolved.lock().expect("no holder panics").push((connection, found));
            shared.ring_bell();
        });
    }

    fn resolved(&mut self, connection: ConnectionId, address: Result<Address, CloseReason>) {
        let Some(&index) = self.indexes.get(&connection) else { return };
        assert!(matches!(self.streams[index].stage, Stage::Resolve));
        self.streams[index].stage = Stage::Resolved { address };
        self.mark_dirty(index);
    }

    fn insert(&mut self, stream: Stream) -> usize {
        let id = stream.id;
        let index = self.streams.insert(stream);
        self.indexes.insert(id, index);
        index
    }

    fn set_deadline(&mut self, index: usize, deadline: Option<Time>) {
        let stream = &mut self.streams[index];
        if let Some(old) = std::mem::replace(&mut stream.deadline, deadline) {
            self.deadlines.remove(&(old, stream.id));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, stream.id));
        }
    }

    fn mark_dirty(&mut self, index: usize) {
        if !std::mem::replace(&mut self.streams[index].dirty, true) {
            self.dirty.push(index);
        }
    }

    fn send(&mut self, connection: ConnectionId, message: &Message) {
        let Some(&index) = self.indexes.get(&connection) else { return };
        let stream = &mut self.streams[index];
        if !matches!(stream.stage, Stage::Frames(_)) {
            assert!(matches!(stream.stage, Stage::Linger), "a connection is used once it is there");
            return;
        }
        if let Some(payload) = stream.queue.push_small(|bytes| encode(message, bytes)) {
            stream.queue.push_payload(payload);
        }
        self.mark_dirty(index);
    }

    fn close(&mut self, connection: ConnectionId) {
        let Some(&index) = self.indexes.get(&connection) else { return };
        if matches!(self.streams[index].stage, Stage::Linger) {
            return;
        }
        self.linger(index);
    }
}

impl Drop for Reactor {
    /// What is queued leaves as far as the sockets take it: a program may end right after its
    /// last message.
    fn drop(&mut self) {
        let mut unseen = Vec::new();
        let _ = self.ring.enter(None);
        while let Some(completion) = self.ring.next() {
            self.complete(completion, &mut unseen);
        }
        for (_, stream) in &mut self.streams {
            if let (Some(socket), Some(mut queue)) = (&stream.socket, stream.queue.lend()) {
                let _ = queue.send(socket.as_fd());
            }
        }
    }
}
