//! Client core: cuts requests at stripe edges, sends each part to the primary of its PG, and retries until
//! it is done. A value: events in, effects out.
//!
//! ```text
//!   Request ──cut──▶ parts ──order──▶ route ──▶ link of an OSD ──Op──▶
//!      ▲                     (own writes         │
//!      └── answer ◀── all parts done ◀── Reply ──┴── refusal, lost connection: route again
//! ```
//!
//! Invariants
//!   1. A request is answered once; a write only after every part of it was acknowledged.
//!   2. Own writes that overlap reach the OSD one after the other, in the order they were asked.
//!   3. A part is answered by a reply of the connection it was last sent on, or not at all.
//!   4. The requests in flight for a volume are bounded; the rest wait in the order they were asked.
//!   5. Writes of a lazy volume that are acknowledged and not durable are kept until a sync covers them,
//!      and are written again in each new epoch of their PG before anything else goes there.

mod core;
mod cut;
mod link;
mod monitor_contact;
mod part;
mod replay;
mod request;
mod routes;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod unsynced;
mod volume;

pub use crate::core::ClientCore;

use base::{Buffer, Duration, SessionId, TraceEvent};
use cluster::map::ImageInfo;
use cluster::message::Failure;
use format::door::{NetEffect, NetEvent};

/// Names an open volume within one [`ClientCore`]; chosen by the user, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeHandle(pub u64);

/// Names a request of the user; never reused while it is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// An input of the client core.
#[derive(Debug)]
pub enum Event {
    /// From the network.
    Net(NetEvent),
    /// Connect to a monitor before anything is attached, so that `status` shows the process.
    Connect,
    /// Attach a volume.
    Open {
        /// Its handle from now on.
        volume: VolumeHandle,
        /// The volume's name.
        name: String,
        /// Whether it will only be read.
        read_only: bool,
        /// Whether its lock is wanted; it is given if no other client has the volume attached. On disks
        /// that need a flush, writes under the lock are done when all copies have them and durable
        /// after the next flush, and no other client may attach the volume. Ignored for a reader.
        lock: bool,
    },
    /// Detach a volume. Its open requests end with [`VolumeError::Ended`], done or not: requests that
    /// are not sent are dropped, and answers to sent ones are awaited for at most 2 s. Lazy writes are
    /// made durable first, which may take 2 s more. After [`Effect::Closed`] nothing more is sent for
    /// the volume, and a later attach through this core is ordered after all of it. May be repeated,
    /// to change `patient`.
    Close {
        /// Which.
        volume: VolumeHandle,
        /// Wait for lazy writes to become durable for as long as the session lasts: the user may come back.
        patient: bool,
    },
    /// Read, write, zero, flush or list extents.
    Request {
        /// Names the answer.
        id: RequestId,
        /// Of which volume.
        volume: VolumeHandle,
        /// What.
        operation: Operation,
    },
    /// The deadline of [`ClientCore::deadline`] came.
    Tick,
}

/// What a user asks of a volume. Any byte offset and length within the volume.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Read a range.
    Read {
        /// In bytes.
        offset: u64,
        /// In bytes; at least 1.
        length: u64,
    },
    /// Write; pieces narrower than 4 KiB are completed atomically.
    Write {
        /// In bytes.
        offset: u64,
        /// At least 1 byte.
        data: Buffer,
        /// It is durable when it is done (FUA), even on a lazy volume.
        durable: bool,
    },
    /// Make a range read as zeros and give its space back (discard, write-zeroes).
    Zero {
        /// In bytes.
        offset: u64,
        /// In bytes; at least 1.
        length: u64,
        /// As of a write.
        durable: bool,
    },
    /// Everything acknowledged before is durable when this is done.
    Flush,
    /// Which parts of a range hold data.
    Extents {
        /// In bytes.
        offset: u64,
        /// In bytes; at least 1.
        length: u64,
    },
}

/// An output of the client core.
#[derive(Debug)]
pub enum Effect {
    /// Ask the network.
    Net(NetEffect),
    /// A volume is attached.
    Opened {
        /// As asked.
        volume: VolumeHandle,
        /// Its session and image, or why not.
        result: Result<Attached, Failure>,
    },
    /// A volume is detached.
    Closed {
        /// As asked.
        volume: VolumeHandle,
    },
    /// A request ended.
    Done {
        /// As asked.
        id: RequestId,
        /// The answer.
        result: Result<Answer, VolumeError>,
    },
    /// Something happened that is worth a line of the log.
    Trace(TraceEvent),
}

/// An attached volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Its session.
    pub session: SessionId,
    /// The reign of the monitors that gave the session; named when the session is resumed.
    pub reign: u64,
    /// What it is.
    pub image: ImageInfo,
    /// It has the volume's lock.
    pub locked: bool,
    /// Its writes are durable only after the next flush. Only with the lock.
    pub lazy: bool,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The range in order.
    Data(Vec<Piece>),
    /// A write, zero or flush.
    Done,
    /// The range in order, neighbours differ.
    Extents(Vec<Extent>),
}

/// A piece of the bytes that were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes.
    Data(Buffer),
    /// So many zeros.
    Zeros(u64),
}

/// A part of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// In bytes.
    pub length: u64,
    /// Whether it holds data; if not, it reads as zeros and takes no space.
    pub allocated: bool,
}

/// Why a request was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeError {
    /// No space left in the pool (ENOSPC).
    Full,
    /// The range holds damaged bytes, and no other copy is left (EIO).
    Damaged,
    /// The volume was attached read-only (EPERM).
    ReadOnly,
    /// Outside the volume, or no bytes at all (EINVAL).
    OutOfRange,
    /// The session is over: the volume was removed, shrunk or taken over (ESHUTDOWN). Unanswered
    /// changes may have happened or not; changes that were not durable may be lost.
    Ended,
    /// Not done within the time the user set (ETIMEDOUT); it may still happen.
    TimedOut,
    /// An OSD says that the request breaks a rule, which is a bug (EIO). In the words of the OSD.
    Invalid {
        /// Which rule.
        why: String,
    },
}

impl std::fmt::Display for VolumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VolumeError::Full => f.write_str("no space left in the pool"),
            VolumeError::Damaged => f.write_str("stored bytes are damaged and no copy is left"),
            VolumeError::ReadOnly => f.write_str("the volume is attached read-only"),
            VolumeError::OutOfRange => f.write_str("the range is empty or outside the volume"),
            VolumeError::Ended => f.write_str("the session is over: attach the volume again"),
            VolumeError::TimedOut => f.write_str("timed out; a change may still happen"),
            VolumeError::Invalid { why } => write!(f, "the OSD refused the request: {why}"),
        }
    }
}

impl std::error::Error for VolumeError {}

/// Settings of a client core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// What kind of client it is, for `status`: `nbd`, `bench`.
    pub client: String,
    /// Its process id, for `status`.
    pub pid: u32,
    /// Name of its host, for `status`.
    pub host: String,
    /// Where it listens for its own clients, if it does, for `status`.
    pub address: Option<String>,
    /// How long a request is retried over network and PG faults; `None`: for ever.
    pub retry_for: Option<Duration>,
    /// Most bytes of each lazy volume that are written and not durable; the volume is synced before
    /// there are more. At least [`UNSYNCED_SIZE_MIN`].
    pub unsynced_size_max: u64,
}

/// The default of [`Settings::unsynced_size_max`].
pub const UNSYNCED_SIZE_DEFAULT: u64 = 64 << 20;
/// The least [`Settings::unsynced_size_max`].
pub const UNSYNCED_SIZE_MIN: u64 = 1 << 20;
