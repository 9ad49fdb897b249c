//! Client requests to OSDs, and the replies.

use std::fmt;

use base::{Buffer, Checksum, Epoch, ImageId, MapRevision, PgId, SessionId, StripeIndex, Version};

use super::payload::Payload;
use super::pg_entry::PgEntry;

/// Maximum number of layers in a read.
pub const CHAIN_LENGTH_MAX: usize = 32;
/// Maximum number of PGs whose objects one request lists.
pub const LIST_PGS_MAX: usize = 256;
/// Longest encoding of the results of an operation on objects, in bytes.
pub const RESULTS_SIZE_MAX: usize = 8 << 10;

/// A client's request to the primary of a PG. It concerns one stripe or one PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The sender's session. `SessionId::ZERO` only for operations that need none (the monitor's tasks).
    pub session: SessionId,
    /// Copied into the reply, to match it to this request. Increases with each request that a session
    /// sends, over all its connections, even when a request is sent again. An OSD ignores a request whose
    /// sequence is not above the highest seen: it arrived late, over a connection that the sender no longer
    /// uses. Without a session, the sequence increases per connection.
    pub sequence: u64,
    /// The PG that the request is for.
    pub pg: PgId,
    /// The epoch of the PG's entry that the sender has.
    pub epoch: Epoch,
    /// The revision of the pool's map that the sender has.
    pub revision: MapRevision,
    /// The operation.
    pub op: Op,
}

/// The place of a request: one stripe in one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The layer written, or the newest layer read.
    pub image: ImageId,
    /// Seed of the stripe's hash: the id of the image with which the chain of layers began.
    pub seed: ImageId,
    /// The index of the stripe in the image.
    pub stripe: StripeIndex,
}

/// Operations. [`Op::Mutate`], [`Op::Look`] and [`Op::List`] are those of object pools, all others those of
/// block pools:
/// their offsets and lengths are bytes within the stripe, multiples of 4 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read a range.
    Read {
        /// The stripe.
        place: Place,
        /// Where the range begins in the stripe, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// Older layers to read where newer ones hold nothing, newest first.
        parents: Vec<ImageId>,
    },
    /// Read a range of one data part, from the acting member that holds the part, without the primary. Only
    /// in pools with parity. Refused with [`Refusal::AskPrimary`] unless the member is sure of the answer.
    ReadPart {
        /// The stripe.
        place: Place,
        /// Where the range begins in the stripe, in bytes. The range lies within the part.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// Older layers, newest first. A range with holes above older layers is refused.
        parents: Vec<ImageId>,
    },
    /// Write a range.
    Write {
        /// The stripe.
        place: Place,
        /// Where the range begins in the stripe, in bytes.
        offset: u32,
        /// The checksum of each 4 KiB of data.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
        /// Write only if the block has this version (compare-and-set); `ZERO`: only if the block was never
        /// written.
        expected: Option<Version>,
        /// Whether the write may be answered before it is durable. The sender must hold the image's lock,
        /// keep the data until a `Sync` covers it, and replay it if needed.
        lazy: bool,
    },
    /// Make a range read as zeros and free its space (discard and write-zeroes).
    Zero {
        /// The stripe.
        place: Place,
        /// Where the range begins in the stripe, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// Whether the request may be answered before it is durable, as for a write.
        lazy: bool,
    },
    /// Report which 4 KiB units of the stripe are written.
    Extents {
        /// The stripe.
        place: Place,
        /// Older layers, newest first.
        parents: Vec<ImageId>,
    },
    /// Make everything durable that was acknowledged in the PG.
    Sync,
    /// Delete an image's blocks in the PG from stripe `from` on; answered in portions.
    DeleteRange {
        /// The layer.
        image: ImageId,
        /// The first stripe to delete.
        from: StripeIndex,
    },
    /// Change objects; see `docs/internals/objects.md`.
    Mutate {
        /// Names the operation within its session, the same however often it is sent.
        number: u64,
        /// The lowest number that the session has unanswered in this PG.
        lowest: u64,
        /// Whether the operation may have been sent before.
        again: bool,
        /// The operation.
        operation: Payload,
    },
    /// Read objects.
    Look {
        /// What to read.
        reads: Payload,
    },
    /// List the objects of several PGs that the OSD leads: the request's own, and those beside it.
    List {
        /// The other PGs of the pool, each with its epoch: at most [`LIST_PGS_MAX`] with the request's own.
        beside: Vec<(u32, Epoch)>,
        /// Which objects of each PG.
        names: Payload,
    },
}

impl Op {
    /// Whether the operation is one of object pools.
    pub fn is_of_objects(&self) -> bool {
        matches!(self, Op::Mutate { .. } | Op::Look { .. } | Op::List { .. })
    }
}

/// An OSD's reply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Copied from the request.
    pub session: SessionId,
    /// Copied from the request.
    pub sequence: u64,
    /// The result, or why the request was refused.
    pub outcome: Result<Outcome, Refusal>,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The result of a read.
    Read {
        /// Version of the newest layer's block; `ZERO` if it was never written.
        version: Version,
        /// The checksum of each 4 KiB of data. Empty: the whole range reads as zeros, and no data is sent.
        checksums: Vec<Checksum>,
        /// The bytes of the range; empty if the whole range is zeros.
        data: Buffer,
    },
    /// The result of a write or zero.
    Written {
        /// The version of the write. If there was nothing to zero, the block's current version.
        version: Version,
        /// Whether the write is durable on all members. False only for a lazy write, which a later `Sync`
        /// makes durable.
        durable: bool,
    },
    /// The stripe's allocation: bit `i` of word `i / 64` is set if unit `i` is written.
    Extents {
        /// One bit for each unit of the block.
        bitmap: Vec<u64>,
    },
    /// A sync is done.
    Synced,
    /// The result of one portion of a deletion.
    Deleted {
        /// Blocks deleted by this portion.
        count: u32,
        /// Whether the image has no blocks left in the PG from stripe `from` of the request on.
        complete: bool,
    },
    /// An operation on objects was executed.
    Mutated {
        /// The operation's version; `ZERO`: it changed nothing.
        version: Version,
        /// The results of its steps, at most [`RESULTS_SIZE_MAX`] bytes.
        results: Vec<u8>,
    },
    /// The result of reads of objects.
    Looked {
        /// The answers.
        answers: Payload,
    },
    /// The objects of several PGs.
    Listed {
        /// PGs that this OSD cannot answer for now.
        refused: Vec<u32>,
        /// The pages of all others.
        pages: Payload,
    },
}

/// Why a request was refused. The request had no effect, unless a variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The sender uses another epoch, or this OSD is not the primary. Contains this OSD's entry, if it has
    /// one; the sender adopts the entry only if its epoch is higher.
    Stale(Option<PgEntry>),
    /// The session is fenced: it never becomes valid again.
    Fenced,
    /// The block has another version.
    CompareFailed {
        /// The block's version.
        version: Version,
    },
    /// No space is left.
    Full,
    /// Stored bytes are damaged and no other copy is left: these units of the stripe (bit `i` of
    /// word `i / 64`) cannot be read until they are rewritten or discarded.
    Damaged {
        /// One bit for each unit of the block. Of objects: empty.
        units: Vec<u64>,
    },
    /// The PG waits for members, or for the operator.
    Incomplete {
        /// What the PG waits for, for the operator.
        why: String,
    },
    /// A queue is full, or the request waited too long for the map, its PG or free space; retry later. A zero
    /// or a deletion may have been executed, if the PG's lease ran out before the answer.
    Busy,
    /// The request breaks a rule, which is a bug in its sender.
    Invalid {
        /// The rule that was broken.
        why: String,
    },
    /// The data does not match its checksums: it was damaged in transit.
    Corrupted,
    /// This member cannot answer a direct read now: the sender must send the read to the primary.
    AskPrimary,
    /// An assertion of an operation on objects is not true, or a number cannot be added to.
    Asserted {
        /// Which of the operation's objects.
        object: u16,
        /// Which of the object's steps: first its assertions are counted, then its changes.
        step: u16,
        /// The object's version; `ZERO`: it does not exist.
        version: Version,
    },
    /// An operation on objects changes more than one batch can hold, or an object would become too large.
    TooLarge {
        /// What is too large.
        why: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Refusal::Stale(_) => "another OSD leads the PG now",
            Refusal::Fenced => "the session is fenced",
            Refusal::CompareFailed { .. } => "the block has another version",
            Refusal::Full => "no space is left",
            Refusal::Damaged { .. } => "stored data is damaged and no good copy is left",
            Refusal::Incomplete { why } | Refusal::Invalid { why } | Refusal::TooLarge { why } => {
                why
            }
            Refusal::Busy => "a queue is full",
            Refusal::Corrupted => "the data was damaged in transit",
            Refusal::AskPrimary => "only the primary can answer the read now",
            Refusal::Asserted { .. } => "an assertion is not true",
        })
    }
}
