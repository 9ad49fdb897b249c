//! Client core: cuts requests at stripe edges, sends each part to the primary of its PG, and retries the
//! part until it succeeds. An operation on an object is one part. A pure value: events in, effects out.
//!
//! ```text
//!   Request ──cut──▶ parts ──order──▶ route ──▶ link of an OSD ──Op──▶
//!      ▲                     (own writes         │
//!      └── answer ◀── all parts done ◀── Reply ──┴── refusal, lost connection: route again
//! ```
//!
//! Invariants
//!   1. Each request is answered once, and a write only after all its parts were acknowledged.
//!   2. Overlapping writes of this client reach the OSD one after the other, in the order of their
//!      requests.
//!   3. A part is completed only by a reply on the connection over which the part was last sent.
//!   4. The requests in flight for a volume are bounded, also for each PG; the rest wait, those of each PG in
//!      the order they arrived. A PG that does not answer stops no other one.
//!   5. Writes of a lazy volume that are acknowledged but not durable are kept until a sync covers them. In
//!      each new epoch of their PG these writes are repeated before anything else is sent to the PG.
//!   6. A change whose outcome was told as unknown is never sent again, and no later change of the same bytes is
//!      sent before it has ended.
//!   7. A mutation of objects has the same number each time it is sent, and says whether it was sent before.

mod core;
mod cut;
mod link;
mod monitor_contact;
mod part;
mod queue;
mod replay;
mod request;
mod routes;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod unsynced;
mod volume;
mod waiting_ranges;
mod windows;

pub use crate::core::ClientCore;

use base::{Buffer, Duration, ImageId, PoolId, SessionId, Time, TraceEvent, Version};
use cluster::map::{ImageInfo, Pool};
use cluster::message::Failure;
use format::door::{NetEffect, NetEvent};

/// Identifies an open volume or object pool within one [`ClientCore`]; chosen by the user, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeHandle(pub u64);

/// Identifies a request of the user; not reused while the request is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// An input of the client core.
#[derive(Debug)]
pub enum Event {
    /// An event from the network.
    Net(NetEvent),
    /// Connect to a monitor before any volume is attached, so that `status` shows the process.
    Connect,
    /// Attach a volume.
    Open {
        /// The handle of the volume from now on; chosen by the user.
        volume: VolumeHandle,
        /// The volume's name.
        name: String,
        /// Whether to attach the volume read-only.
        read_only: bool,
        /// Whether to request the volume's lock, which is granted if no other client has the volume attached.
        /// On disks that need a flush, writes under the lock complete when all copies have them and become
        /// durable with the next flush; no other client may attach the volume meanwhile. Ignored with
        /// `read_only`.
        lock: bool,
    },
    /// Open an object pool. It is closed like a volume, with [`Event::Close`].
    OpenPool {
        /// The handle of the pool from now on; chosen by the user.
        pool: VolumeHandle,
        /// The pool's name.
        name: String,
    },
    /// Detach a volume. The open requests of the volume end with [`VolumeError::Ended`], whether or not they
    /// took effect: unsent requests are dropped, and replies to sent ones are awaited for at most 2 s. Lazy
    /// writes are made durable first, which may take 2 s more. After [`Effect::Closed`] nothing more is sent
    /// for the volume, and a later attach through this core takes effect after everything that was sent. May
    /// be repeated to change `patient`.
    Close {
        /// The volume to detach.
        volume: VolumeHandle,
        /// Whether to wait for lazy writes to become durable for as long as the session lasts, because the
        /// user may reconnect.
        patient: bool,
    },
    /// Read, write, zero, flush or list extents.
    Request {
        /// Copied into [`Effect::Done`], to match the answer to this request.
        id: RequestId,
        /// The volume to use.
        volume: VolumeHandle,
        /// The operation to carry out.
        operation: Operation,
        /// When to give it up: it is then answered with [`VolumeError::Unavailable`] or
        /// [`VolumeError::Unknown`]. `None`: it is retried for as long as the session lasts.
        deadline: Option<Time>,
    },
    /// Give up a request now, as at its deadline: nobody waits for its answer. Nothing happens if it was
    /// answered.
    Cancel {
        /// The id of the request.
        id: RequestId,
    },
    /// The time of [`ClientCore::deadline`] has come.
    Tick,
}

/// An operation on a volume. Byte offset and length may have any value within the volume.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Read a range.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes; at least 1.
        length: u64,
    },
    /// Write data. Pieces smaller than 4 KiB are written with an atomic read-modify-write of their unit.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The data, at least 1 byte.
        data: Buffer,
        /// Whether the data must be durable when the request completes (FUA), even on a lazy volume.
        durable: bool,
    },
    /// Make a range read as zeros and free its space (discard, write-zeroes).
    Zero {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes; at least 1.
        length: u64,
        /// Whether the zeros must be durable when the request completes (FUA), even on a lazy volume.
        durable: bool,
    },
    /// Make all writes durable that were acknowledged before.
    Flush,
    /// Report which parts of a range hold data.
    Extents {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes; at least 1.
        length: u64,
    },
    /// In an object pool: carry out an operation on objects of one PG. Operations that are in flight together
    /// may be carried out in any order.
    Mutate {
        /// The hash of the operation's first object, which names the PG.
        hash: u32,
        /// The encoded operation: at most [`format::wire::PAYLOAD_SIZE_MAX`] bytes.
        operation: Vec<u8>,
    },
    /// In an object pool: read.
    Look {
        /// The PG to ask.
        at: Place,
        /// The encoded reads: at most [`format::wire::PAYLOAD_SIZE_MAX`] bytes.
        reads: Vec<u8>,
        /// The most bytes that the answers may have: what this read counts among those in flight.
        answers_size_max: u64,
    },
    /// In an object pool: list the objects of all PGs. Each OSD is asked once for the PGs that it leads, or
    /// for as many of them as fit.
    List {
        /// Which objects of each PG, encoded: at most [`format::wire::PAYLOAD_SIZE_MAX`] bytes.
        names: Vec<u8>,
        /// The most bytes that the page of a PG may have.
        page_size_max: u64,
        /// Of how many PGs one request may ask, at least 1.
        pgs_max: usize,
    },
}

/// A place in an object pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The PG that has the objects with this hash.
    Hash(u32),
    /// The PG with this number.
    Pg(u32),
}

/// An output of the client core.
#[derive(Debug)]
pub enum Effect {
    /// A request to the network.
    Net(NetEffect),
    /// A volume is attached, or an object pool is open.
    Opened {
        /// The handle of the volume or pool.
        volume: VolumeHandle,
        /// The session and what it uses, or why the attach failed.
        result: Result<Attached, Failure>,
    },
    /// A volume is detached.
    Closed {
        /// The handle of the volume.
        volume: VolumeHandle,
    },
    /// A request finished.
    Done {
        /// The id of the request.
        id: RequestId,
        /// The answer.
        result: Result<Answer, VolumeError>,
    },
    /// A line for the log.
    Trace(TraceEvent),
}

/// An attached volume, or an open object pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The session.
    pub session: SessionId,
    /// The reign of the monitors that opened the session; sent when the session is resumed.
    pub reign: u64,
    /// What the session uses.
    pub used: Used,
    /// Whether the session has the volume's lock.
    pub locked: bool,
    /// Whether writes become durable only with the next flush. This is possible only with the lock.
    pub lazy: bool,
}

/// What a session uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Used {
    /// The image of a volume.
    Image(ImageInfo),
    /// An object pool, as it was when it was opened.
    Pool(Pool),
}

impl Attached {
    /// Returns the image. Requires: a volume is attached.
    pub fn image(&self) -> &ImageInfo {
        match &self.used {
            Used::Image(image) => image,
            Used::Pool(pool) => panic!("{} is a pool, not a volume", pool.name),
        }
    }

    /// Returns the seed of the image; `None`: a pool is open.
    pub(crate) fn seed(&self) -> Option<ImageId> {
        match &self.used {
            Used::Image(image) => Some(image.seed),
            Used::Pool(_) => None,
        }
    }

    /// Returns the pool that is used.
    pub fn pool(&self) -> PoolId {
        match &self.used {
            Used::Image(image) => image.pool,
            Used::Pool(pool) => pool.id,
        }
    }
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The answer to a read: the pieces of the range, in order.
    Data(Vec<Piece>),
    /// The answer to a write, zero or flush.
    Done,
    /// The extents of the range, in order; adjacent extents differ in `allocated`.
    Extents(Vec<Extent>),
    /// The answer to an operation on objects.
    Mutated {
        /// The operation's version; `ZERO`: it changed nothing.
        version: Version,
        /// The encoded results of its steps.
        results: Vec<u8>,
    },
    /// The encoded answers to reads of objects.
    Looked(Vec<u8>),
    /// The objects of all PGs.
    Listed {
        /// The encoded pages, as they came from the OSDs.
        pages: Vec<Vec<u8>>,
        /// PGs that could not be asked where others were: each is to be asked by itself.
        refused: Vec<u32>,
    },
}

/// A piece of the bytes that were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of which at least a unit is stored.
    Data(Buffer),
    /// So many bytes of which no unit is stored: never written, or trimmed. They read as zeros.
    Hole(u64),
}

/// A contiguous part of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length in bytes.
    pub length: u64,
    /// Whether the part holds data; if not, it reads as zeros and takes no space.
    pub allocated: bool,
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeError {
    /// No space left in the pool (ENOSPC).
    Full,
    /// The range contains damaged bytes, and no intact copy is left (EIO).
    Damaged,
    /// The volume was attached read-only (EPERM).
    ReadOnly,
    /// The range is outside the volume, or empty (EINVAL).
    OutOfRange,
    /// The session is over: the volume was removed, shrunk or taken over (ESHUTDOWN). Unanswered
    /// changes may or may not have taken effect; changes that were not durable may be lost.
    Ended,
    /// The request was given up at its deadline. It changed nothing, and will change nothing.
    Unavailable {
        /// What it waited for.
        why: String,
    },
    /// The request was given up at its deadline, and what it changes was sent: it may have taken effect, as a
    /// whole or in part, and may take effect until the request has ended, but not after a later change of
    /// the same bytes. It is not sent again.
    Unknown,
    /// An OSD reports that the request violates a rule, which is a bug (EIO).
    Invalid {
        /// The violated rule, as the OSD describes it.
        why: String,
    },
    /// An assertion of an operation on objects is not true, or a number cannot be added to. Nothing changed.
    Asserted {
        /// Which of the operation's objects.
        object: u16,
        /// Which of the object's steps: first its assertions are counted, then its changes.
        step: u16,
        /// The object's version; `ZERO`: it does not exist.
        version: Version,
    },
    /// An operation on objects changes more than fits at once, or an object would become too large. Nothing
    /// changed.
    TooLarge {
        /// What is too large.
        why: String,
    },
}

impl std::fmt::Display for VolumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VolumeError::Full => f.write_str("no space left in the pool"),
            VolumeError::Damaged => f.write_str("stored data is damaged and no good copy is left"),
            VolumeError::ReadOnly => f.write_str("the volume is attached read-only"),
            VolumeError::OutOfRange => f.write_str("the range is empty or outside the volume"),
            VolumeError::Ended => f.write_str("the session is over: attach the volume again"),
            VolumeError::Unavailable { why } => write!(f, "unavailable: {why}"),
            VolumeError::Unknown => f.write_str("outcome unknown: the change may take effect"),
            VolumeError::Invalid { why } => write!(f, "the request failed: {why}"),
            VolumeError::Asserted { .. } => {
                f.write_str("the object is not as the operation asserts")
            }
            VolumeError::TooLarge { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for VolumeError {}

/// Settings of a client core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// The kind of client, for `status`: `nbd`, `bench`.
    pub client: String,
    /// Process id of the client, for `status`.
    pub pid: u32,
    /// Name of the client's host, for `status`.
    pub host: String,
    /// Address on which the client listens for clients of its own, if any, for `status`.
    pub address: Option<String>,
    /// How long an attach is retried; `None`: without limit. Requests have deadlines of their own.
    pub retry_for: Option<Duration>,
    /// Maximum number of bytes of a lazy volume that may be written but not yet durable. The volume is synced
    /// before the limit would be exceeded; only a single larger change can exceed it. At least
    /// [`UNSYNCED_SIZE_MIN`].
    pub unsynced_size_max: u64,
}

/// The default of [`Settings::unsynced_size_max`].
pub const UNSYNCED_SIZE_DEFAULT: u64 = 64 << 20;
/// The smallest allowed [`Settings::unsynced_size_max`].
pub const UNSYNCED_SIZE_MIN: u64 = 1 << 20;
