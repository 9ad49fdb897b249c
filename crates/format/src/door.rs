//! The doors of logic: what it asks of the world (effects) and what it is told (events).
//!
//! `io` opens them on Linux, `sim` opens them in one thread from one seed. Both keep the same
//! promises, written here.

use base::{Buffer, BufferMut, ClusterId, ConnectionId, Incarnation, MonitorId, OsdId};

use crate::wire::Message;

/// One operation on a disk, named by its issuer; never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskOp(pub u64);

/// What a store asks of its device. Offsets and lengths are multiples of the sector size.
#[derive(Debug)]
pub enum DiskEffect {
    /// Read `buffer.len()` bytes at `offset` into the buffer.
    Read {
        /// Names it in [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// Where to read to; comes back with the event.
        buffer: BufferMut,
    },
    /// Write the buffers one after another at `offset`. Writes in flight at the same time may
    /// happen in any order, and a crash may leave any subset of their sectors.
    Write {
        /// Names it in [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// The data; every piece is a whole number of sectors and aligned in memory.
        buffers: Vec<Buffer>,
        /// Durable once it is done (RWF_DSYNC), whatever the device's cache does.
        durable: bool,
    },
    /// Make every write durable that was done before this was asked.
    Flush {
        /// Names it in [`DiskEvent`].
        op: DiskOp,
    },
    /// Have space of the file system behind the range: until it is discarded, no write to it ends
    /// with [`DiskError::NoSpace`]. What it held stays. As durable as the next durable write or
    /// flush. Where it fails, parts of the range may have been reserved. Nothing is done on a
    /// device, or where the file system cannot reserve.
    Reserve {
        /// Names it in [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Give the range's space back to the file system or device; reads of it are unspecified
    /// until it is written again.
    Discard {
        /// Names it in [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
}

/// Why an operation on a disk failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The medium or the kernel reported an error; carries its text.
    Io(String),
    /// The file system under a file store is full (ENOSPC, EDQUOT).
    NoSpace,
}

/// An operation on a disk ended.
#[derive(Debug)]
pub enum DiskEvent {
    /// A read ended; the buffer comes back, its content is meaningful only on success.
    Read {
        /// As asked.
        op: DiskOp,
        /// As given.
        buffer: BufferMut,
        /// Whether all of it was read.
        result: Result<(), DiskError>,
    },
    /// A write, flush, reservation or discard ended.
    Done {
        /// As asked.
        op: DiskOp,
        /// Whether all of it was done. After an error nothing is known of the range.
        result: Result<(), DiskError>,
    },
}

/// The other end of a connection. The handshake has proven that it holds the cluster's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The cluster it belongs to; the handshake refuses another one.
    pub cluster: ClusterId,
    /// What it is.
    pub role: Role,
}

/// The role of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A client of volumes, or an operator's command.
    Client,
    /// A storage daemon and its run. `Incarnation::ZERO` until the monitor has given one.
    Osd(OsdId, Incarnation),
    /// A monitor.
    Monitor(MonitorId),
}

/// What logic asks of the network.
///
/// A connection carries messages in order, each at most once, until it breaks; what was sent
/// when it breaks may or may not have arrived.
#[derive(Debug)]
pub enum NetEffect {
    /// Connect to `address` (`tcp:HOST:PORT` or `unix:PATH`) and do the handshake. Ends with
    /// `Connected` or `Closed`. The id is the asker's choice: even, and new.
    Connect {
        /// Names it from now on.
        connection: ConnectionId,
        /// Where to.
        address: String,
    },
    /// Send a message. Silently dropped if the connection is gone (its `Closed` is on the way).
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        message: Message,
    },
    /// Close it. No further event of it is delivered, not even `Closed`.
    Close {
        /// Which.
        connection: ConnectionId,
    },
}

/// What the network tells logic.
#[derive(Debug)]
pub enum NetEvent {
    /// A peer connected to us and passed the handshake. The id is odd, chosen by the shell.
    Accepted {
        /// Names it from now on.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
    },
    /// Our connection passed the handshake.
    Connected {
        /// As asked.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
    },
    /// A message came.
    Received {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        message: Message,
    },
    /// It is gone, or never came to be; the last event of its id.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// What happened, for people.
        reason: CloseReason,
    },
}

/// Why a connection is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Nobody listens there: the peer's process is not running.
    Refused,
    /// The peer closed it or its process ended.
    Reset,
    /// No answer in time.
    TimedOut,
    /// The handshake failed: another key or another cluster; trying again will not help.
    Untrusted(String),
    /// The peer violated the protocol (wrong checksum, absurd length).
    Protocol(String),
}
