//! The doors: the effects by which the logic uses disks and the network, and the events that it receives
//! from them.
//!
//! `io` implements the doors on Linux; `sim` implements them in one thread, from one seed. Both give the
//! guarantees that are documented here.

use base::{Buffer, BufferMut, ClusterId, ConnectionId, Incarnation, MonitorId, OsdId};

use crate::wire::Message;

/// Identifies a disk operation. The issuer chooses the id, and never reuses it while the process
/// lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskOp(pub u64);

/// An operation that a store requests from its device. Offsets and lengths are multiples of the sector
/// size.
#[derive(Debug)]
pub enum DiskEffect {
    /// Read `buffer.len()` bytes at `offset` into the buffer.
    Read {
        /// Identifies the operation in its [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// The buffer to read into; returned with the event.
        buffer: BufferMut,
    },
    /// Write the buffers one after another at `offset`. Writes in flight at the same time may be executed
    /// in any order, and after a crash any subset of their sectors may be written.
    Write {
        /// Identifies the operation in its [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// The data; every piece is a whole number of sectors and aligned in memory.
        buffers: Vec<Buffer>,
        /// Whether the write is durable once it is done (RWF_DSYNC), even if the device has a volatile
        /// cache.
        durable: bool,
    },
    /// Make all writes durable that had completed when this was requested.
    Flush {
        /// Identifies the operation in its [`DiskEvent`].
        op: DiskOp,
    },
    /// Reserve space in the file system for the range: until the range is discarded, no write to it fails
    /// with [`DiskError::NoSpace`]. Its content does not change. The reservation becomes durable with the
    /// next durable write or flush. If it fails, parts of the range may have been reserved. Has no effect
    /// on a block device, or if the file system cannot reserve space.
    Reserve {
        /// Identifies the operation in its [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Return the range's space to the file system or device. The content of the range is unspecified
    /// until it is written again.
    Discard {
        /// Identifies the operation in its [`DiskEvent`].
        op: DiskOp,
        /// Position on the device in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

/// Why a disk operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The disk or the kernel reported an error, with this text.
    Io(String),
    /// The file system under a file store is full (ENOSPC, EDQUOT).
    NoSpace,
}

/// A disk operation finished, successfully or not.
#[derive(Debug)]
pub enum DiskEvent {
    /// A read finished. The content of the buffer is valid only on success.
    Read {
        /// The id from the effect.
        op: DiskOp,
        /// The buffer from the effect.
        buffer: BufferMut,
        /// Whether the whole range was read.
        result: Result<(), DiskError>,
    },
    /// A write, flush, reservation or discard finished.
    Done {
        /// The id from the effect.
        op: DiskOp,
        /// Whether the whole operation was done. After an error the state of the range is unknown.
        result: Result<(), DiskError>,
    },
}

/// The other end of a connection. The handshake has proven that the peer holds the cluster's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The cluster that the peer belongs to. The handshake refuses peers of other clusters.
    pub cluster: ClusterId,
    /// The role of the peer.
    pub role: Role,
}

/// The role of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A client of volumes, or an operator's command.
    Client,
    /// An OSD in one incarnation. `Incarnation::ZERO` until the monitor has assigned one.
    Osd(OsdId, Incarnation),
    /// A monitor.
    Monitor(MonitorId),
}

/// An operation that the logic requests from the network.
///
/// A connection delivers messages in order, each at most once, until it breaks. Messages in flight when it
/// breaks may or may not have arrived.
#[derive(Debug)]
pub enum NetEffect {
    /// Connect to `address` (`tcp:HOST:PORT` or `unix:PATH`) and do the handshake. Ends with `Connected` or
    /// `Closed`. The caller chooses the id: even, and never used before.
    Connect {
        /// Identifies the connection from now on.
        connection: ConnectionId,
        /// The address to connect to.
        address: String,
    },
    /// Send a message. The message is silently dropped if the connection is gone (its `Closed` event will
    /// follow).
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Close a connection. No further event of this connection is delivered, not even `Closed`.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
}

/// An event from the network.
#[derive(Debug)]
pub enum NetEvent {
    /// A peer connected to us and passed the handshake. The id is odd, chosen by the shell.
    Accepted {
        /// Identifies the connection from now on.
        connection: ConnectionId,
        /// The peer.
        peer: Peer,
    },
    /// Our connection passed the handshake.
    Connected {
        /// The id from the effect.
        connection: ConnectionId,
        /// The peer.
        peer: Peer,
        /// The protocol version that both ends speak.
        version: u16,
    },
    /// A message arrived.
    Received {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// The connection is gone, or could not be established. This is the last event with its id.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// What happened, for the operator.
        reason: CloseReason,
    },
}

/// Why a connection is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Nothing listens at the address: the peer's process is not running.
    Refused,
    /// The peer closed the connection, or its process ended.
    Reset,
    /// No answer in time.
    TimedOut,
    /// The handshake failed because of another key or another cluster. Retrying will not help.
    Untrusted(String),
    /// The peer violated the protocol (wrong checksum, impossible length).
    Protocol(String),
}
