//! One thread with one io_uring: turns sockets, the disk, signals and wake-ups from other threads into
//! events.
//!
//! ```text
//!   turn:  deliver to raw readers, send queued data, start receives
//!          ──▶ one system call: submit, wait for a completion or the deadline
//!          ──▶ completions become events
//! ```
//!
//! Invariants
//!   1. Every connection id is used only once. The program chooses even ids, the reactor odd ones.
//!   2. No event of a connection is delivered after its `Closed` event or `Close` effect.
//!   3. A closed connection is removed from the table at once; its operations keep their memory and socket
//!      until the kernel no longer uses them.

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

/// Timeout for incoming handshakes.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Timeout for outgoing connects and handshakes. Short, because another address may work.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// The same timeout if a host name must be resolved first.
const NAMED_CONNECT_TIME_MAX: Duration = Duration::from_secs(7);
/// Time limit for a closed connection to send the rest of its queue.
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of incoming connections that have not finished their handshake; one more closes the oldest
/// of them.
const UNPROVEN_COUNT_MAX: usize = 256;
/// Maximum size of a send queue, in bytes; beyond this limit the connection is closed, because its peer does
/// not read.
const SEND_QUEUE_SIZE_MAX: usize = 256 << 20;
/// Pause before accepting again after an accept has failed, for example for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of messages about refused connections that are kept until [`Reactor::take_rejected`] is
/// called.
const REJECTED_COUNT_MAX: usize = 64;
/// Receive size during a handshake; its messages are smaller, but frames may follow at once.
pub(super) const HANDSHAKE_BUFFER_SIZE: usize = 4096;

/// Options of a reactor.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the submission queue: the number of operations that one turn can start without an extra
    /// system call.
    pub entries: u32,
    /// Kernel features that may be used.
    pub mask: FeatureMask,
}

impl Default for Options {
    fn default() -> Options {
        Options { entries: 256, mask: FeatureMask::NONE }
    }
}

/// Identifies a listener for byte streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(usize);

/// An event.
#[derive(Debug)]
pub enum Event {
    /// An event of a framed connection.
    Net(NetEvent),
    /// An event of the disk.
    Disk(DiskEvent),
    /// A raw connection (a byte stream without frames) was accepted.
    RawAccepted {
        /// The listener that accepted it.
        listener: ListenerId,
        /// The id of the new connection; odd.
        connection: ConnectionId,
    },
    /// Received bytes: the number that `raw_expect` requested, or as many as arrived.
    RawReceived {
        /// The connection.
        connection: ConnectionId,
        /// The bytes; never empty.
        data: Buffer,
    },
    /// A byte stream was closed; this is the last event with its id.
    RawClosed {
        /// The connection.
        connection: ConnectionId,
    },
    /// A [`Waker`] was used since the last `Woken` event.
    Woken,
    /// The process received SIGTERM or SIGINT.
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

/// The part of a reactor that other threads use.
#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    woken: AtomicBool,
    /// Results of host name lookups, for pending connects.
    resolved: Mutex<Vec<(ConnectionId, Result<Address, CloseReason>)>>,
}

impl Shared {
    fn ring_bell(&self) {
        // An eventfd has the byte order of the machine.
        #[allow(clippy::host_endian_bytes)]
        let one = 1u64.to_ne_bytes();
        // This can fail only if the counter overflows, and then the reactor wakes anyway.
        let _ = rustix::io::write(&self.bell, &one);
    }
}

struct Listener {
    socket: OwnedFd,
    raw: bool,
    tcp: bool,
    /// When to accept again after an error.
    retry_at: Option<Time>,
}

/// The reactor: see the module documentation.
pub struct Reactor {
    // First field, so dropped first: its drop waits until the kernel no longer uses anything in the fields
    // below.
    ring: Ring,
    pool: BufferPool,
    trust: Option<Trust>,
    streams: Slab<Stream>,
    indexes: BTreeMap<ConnectionId, usize>,
    /// Deadlines of streams.
    deadlines: BTreeSet<(Time, ConnectionId)>,
    /// Indexes of streams that have something to send, deliver or receive.
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
    /// How long turns have waited for events, since that was last taken.
    waited: Duration,
}

impl Reactor {
    /// Creates a reactor for the calling thread.
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
            waited: Duration::ZERO,
        })
    }

    /// Returns the buffer pool for the payloads of this thread.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Returns the current time of CLOCK_BOOTTIME.
    pub fn now(&self) -> Time {
        clock::now()
    }

    /// Returns how long turns have waited for events since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Returns the io_uring features in use, for the log.
    pub fn features(&self) -> &'static str {
        self.ring.features
    }

    /// Sets the key and identity of this process for handshakes. Call it before `listen` and before
    /// connects.
    pub fn set_trust(&mut self, trust: Trust) {
        self.trust = Some(trust);
    }

    /// Returns the messages about connections refused since the last call, for the log.
    pub fn take_rejected(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rejected)
    }

    /// Accepts peers at `address` (`tcp:HOST:PORT`, port 0 for any; `unix:PATH`). Returns the bound
    /// address.
    pub fn listen(&mut self, address: &str) -> Result<String, Error> {
        assert!(self.trust.is_some(), "set_trust comes first");
        Ok(self.open_listener(address, false)?.1)
    }

    /// Limits the number of simultaneous byte streams: further ones are closed at once, with a message for
    /// [`Reactor::take_rejected`]. A closed stream still counts until its queue is sent.
    pub fn set_raw_max(&mut self, count: usize) {
        self.raw_max = count;
    }

    /// Accepts byte streams at `address`. Returns the listener and the bound address.
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

    /// Carries out an effect on the network.
    pub fn net(&mut self, effect: NetEffect) {
        match effect {
            NetEffect::Connect { connection, address } => self.connect(connection, address),
            NetEffect::Send { connection, message } => self.send(connection, &message),
            NetEffect::Close { connection } => self.close(connection),
        }
    }

    /// Gives the reactor its disk. Requires: it has none yet.
    pub fn attach_disk(&mut self, disk: Disk) {
        assert!(self.disk.is_none(), "one disk for each reactor");
        self.disk = Some(disk);
    }

    /// Returns the attached disk.
    pub fn attached_disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Carries out an effect on the disk. Requires: a disk is attached.
    pub fn disk(&mut self, effect: DiskEffect) {
        let disk = self.disk.as_ref().expect("attach_disk comes first");
        self.ring.disk(disk.job(effect));
    }

    /// Turns SIGTERM and SIGINT into [`Event::Terminate`]. Call this before other threads start, so that
    /// they inherit the blocked signals.
    pub fn watch_signals(&mut self) -> io::Result<()> {
        assert!(self.signals.is_none());
        let signals = crate::signals::open()?;
        self.ring.readable(signals.as_raw_fd(), Op::Signal);
        self.signals = Some(signals);
        Ok(())
    }

    /// Returns a handle that wakes this reactor from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    // ---- byte streams -----------------------------------------------------------------------

    /// Queues the buffers to be sent in order. Drops them if the connection is closed.
    pub fn raw_send(&mut self, connection: ConnectionId, buffers: Vec<Buffer>) {
        let Some(index) = self.raw_index(connection) else { return };
        for buffer in buffers {
            self.streams[index].queue.push_payload(buffer);
        }
        self.mark_dirty(index);
    }

    /// Delivers the next `length` bytes as one aligned buffer; later bytes are delivered as they arrive.
    pub fn raw_expect(&mut self, connection: ConnectionId, length: usize) {
        let buffer = self.pool.take(length);
        self.raw_expect_into(connection, buffer, 0);
    }

    /// Receives the next bytes into `buffer[filled..]`, and delivers the buffer once it is full.
    pub fn raw_expect_into(&mut self, connection: ConnectionId, buffer: BufferMut, filled: usize) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.expect(buffer, filled);
        }
        self.mark_dirty(index);
    }

    /// Stops receiving until `raw_resume`.
    pub fn raw_pause(&mut self, connection: ConnectionId) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.paused = true;
        }
    }

    /// Resumes receiving after `raw_pause`.
    pub fn raw_resume(&mut self, connection: ConnectionId) {
        let Some(index) = self.raw_index(connection) else { return };
        if let Stage::Raw(inbox) = &mut self.streams[index].stage {
            inbox.paused = false;
        }
        self.mark_dirty(index);
    }

    /// Closes the connection once its queue is sent. No further event of the connection is delivered.
    pub fn raw_close(&mut self, connection: ConnectionId) {
        self.close(connection);
    }

    /// Returns the number of bytes that wait to be sent; 0 if the connection is closed.
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
        // A name lookup blocks while it waits for other machines, so it runs on its own thread.
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
    /// Sends as much queued data as the sockets accept without blocking: a program may exit right after its
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
