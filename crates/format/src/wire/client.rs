//! Requests of clients to OSDs, and the replies.

use base::{Buffer, Checksum, Epoch, ImageId, MapRevision, PgId, SessionId, StripeIndex, Version};

use super::pg_entry::PgEntry;

/// Most layers a read names.
pub const CHAIN_LENGTH_MAX: usize = 32;

/// What a client asks of the primary of a PG. All of it concerns one stripe or one PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The sender's session. `SessionId::ZERO` only for operations that need none (the monitor's tasks).
    pub session: SessionId,
    /// Names the reply. It grows with each request that a session sends, over all its connections, also
    /// when a request is sent again. A request whose sequence is not above the highest seen is ignored:
    /// it came late, over a connection that the sender has left. Without a session the sequence grows on
    /// each connection.
    pub sequence: u64,
    /// The PG it is for.
    pub pg: PgId,
    /// The epoch of the PG that the sender knows.
    pub epoch: Epoch,
    /// The revision of the pool's map that the sender knows.
    pub revision: MapRevision,
    /// What to do.
    pub op: Op,
}

/// The place of a request: one stripe of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The layer written, or the newest layer read.
    pub image: ImageId,
    /// Seed of the stripe's hash: the id of the image the chain began with.
    pub seed: ImageId,
    /// Which block of the image.
    pub stripe: StripeIndex,
}

/// Operations of block pools. Offsets and lengths are bytes within the stripe, multiples of 4 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read a range.
    Read {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// How much, in bytes.
        length: u32,
        /// Older layers to look into where newer ones have nothing, newest first.
        parents: Vec<ImageId>,
    },
    /// Write a range.
    Write {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// One for each 4 KiB of data.
        checksums: Vec<Checksum>,
        /// The data; as many bytes as are written.
        data: Buffer,
        /// Only if the block's version is this (compare-and-set); `ZERO`: only if never written.
        expected: Option<Version>,
        /// It may be answered before it is durable. The sender holds the image's lock, keeps the data,
        /// and replays it until a `Sync` covers it.
        lazy: bool,
    },
    /// Make a range read as zeros and give its space back (discard and write-zeroes).
    Zero {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// How much, in bytes.
        length: u32,
        /// As in a write.
        lazy: bool,
    },
    /// Which 4 KiB units of the stripe are written.
    Extents {
        /// Where.
        place: Place,
        /// Older layers, newest first.
        parents: Vec<ImageId>,
    },
    /// Make durable everything that was acknowledged in the PG.
    Sync,
    /// Delete an image's blocks in the PG from stripe `from` on; answered in portions.
    DeleteRange {
        /// The layer.
        image: ImageId,
        /// The first stripe to delete.
        from: StripeIndex,
    },
}

/// An OSD's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// As asked.
    pub session: SessionId,
    /// As asked.
    pub sequence: u64,
    /// The answer.
    pub outcome: Result<Outcome, Refusal>,
}

/// What was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A read.
    Read {
        /// Version of the newest layer's block; `ZERO` if it was never written.
        version: Version,
        /// One for each 4 KiB of data. Empty: the whole range reads as zeros, and no data is sent.
        checksums: Vec<Checksum>,
        /// The range's bytes, or nothing where all of it is zeros.
        data: Buffer,
    },
    /// A write or zero.
    Written {
        /// The version it got; the block's, if there was nothing to zero.
        version: Version,
        /// Whether it is durable on all members. Only a lazy write may be not: a later `Sync` makes it
        /// durable.
        durable: bool,
    },
    /// The stripe's allocation: bit `i` of word `i / 64` is set where unit `i` is written.
    Extents {
        /// One bit for each unit of the block.
        bitmap: Vec<u64>,
    },
    /// A sync.
    Synced,
    /// A portion of a deletion.
    Deleted {
        /// Blocks deleted by this portion.
        count: u32,
        /// Whether the image has no further block from that stripe on in the PG.
        complete: bool,
    },
}

/// Why a request was refused. It had no effect, unless a variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The sender acts on another epoch, or this OSD is not the primary. The refuser's entry,
    /// if it has one; the sender takes it only if its epoch is higher.
    Stale(Option<PgEntry>),
    /// The session is fenced: it never becomes valid again.
    Fenced,
    /// The block has another version.
    CompareFailed {
        /// The block's version.
        version: Version,
    },
    /// No space left.
    Full,
    /// Stored bytes are damaged and no other copy is left: these units of the stripe (bit `i` of
    /// word `i / 64`) cannot be read until they are rewritten or discarded.
    Damaged {
        /// One bit for each unit of the block.
        units: Vec<u64>,
    },
    /// The PG waits for members, or for the operator.
    Incomplete {
        /// For whom or what, for people.
        why: String,
    },
    /// A queue is full, or the request waited too long for the map, its PG or room; retry later. A zero
    /// or a deletion may have happened, if the PG's lease ran out before the answer.
    Busy,
    /// The request breaks a rule: a bug of its sender.
    Invalid {
        /// Which rule.
        why: String,
    },
    /// The data does not match its checksums: it was damaged on the way.
    Corrupted,
}
