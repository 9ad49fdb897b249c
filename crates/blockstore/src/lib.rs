//! One disk: journal, index, allocator, checkpoints, recovery. The heart of Ashlar.
//!
//! A [`Store`] is a value: events go in, effects come out; it opens no file and reads no clock.
//! `docs/internals/disk.md` tells the bytes and the order of writes.

use base::{BlockSize, Buffer, Checksum, ImageId, PgId, PoolId, StripeIndex, Version};
use format::door::{DiskEffect, DiskEvent};

/// Names a block; ordered so that a PG is one range at any power-of-two PG count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The pool.
    pub pool: PoolId,
    /// `base::hash::stripe_hash` of (seed, stripe).
    pub hash: u32,
    /// The layer.
    pub image: ImageId,
    /// Which block of the image.
    pub stripe: StripeIndex,
}

/// Names a request to the store; chosen by the asker, not reused while it is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What a store is told.
#[derive(Debug)]
pub enum Event {
    /// A request. Requests take effect in the order they come.
    Request {
        /// Names the answer.
        id: RequestId,
        /// What.
        request: Request,
    },
    /// An operation on the disk ended.
    Disk(DiskEvent),
    /// The deadline of [`Store::deadline`] came.
    Tick,
}

/// What a store is asked. Offsets and lengths are bytes in the block, multiples of 4 KiB.
#[derive(Debug)]
pub enum Request {
    /// Write a range. Done when it, and all writes before it, are durable.
    Write {
        /// The PG whose version it is.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// Newer than the block's.
        version: Version,
        /// From, in bytes.
        offset: u32,
        /// One for each 4 KiB; already compared with the data.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
    },
    /// Make a range read as zeros. Done when durable.
    Zero {
        /// The PG whose version it is.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// Newer than the block's.
        version: Version,
        /// From, in bytes.
        offset: u32,
        /// How much, in bytes.
        length: u32,
    },
    /// Delete the block; leaves a tombstone with `version`. Done when durable.
    Delete {
        /// The PG whose version it is.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// Newer than the block's.
        version: Version,
    },
    /// Read a range, as the writes before this left it (durable or not).
    Read {
        /// The block.
        key: BlockKey,
        /// From, in bytes.
        offset: u32,
        /// How much, in bytes.
        length: u32,
    },
    /// Which units of the block are written, and which are damaged.
    Extents {
        /// The block.
        key: BlockKey,
    },
    /// Keep these bytes under (kind, id), replacing what was there; empty bytes remove it.
    /// Done when durable.
    Note {
        /// Under what.
        key: NoteKey,
        /// At most [`NOTE_SIZE_MAX`].
        bytes: Vec<u8>,
    },
    /// Tombstones of the PG up to this version may go.
    SetFloor {
        /// Which PG.
        pg: PgId,
        /// Up to which version, included.
        floor: Version,
    },
    /// Make everything before it durable.
    Sync,
    /// The operator accepts what the PG lost: it is no longer suspect here. Done when durable.
    Absolve {
        /// Which PG.
        pg: PgId,
    },
}

/// Longest note, in bytes.
pub const NOTE_SIZE_MAX: usize = 512 << 10;

/// Names a note: small durable facts of the layers above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoteKey {
    /// The newest entry of a PG and its activation record.
    Pg(PgId),
    /// A copy of the cluster's state.
    Cluster,
}

/// What a store answers and asks.
#[derive(Debug)]
pub enum Effect {
    /// Ask the disk.
    Disk(DiskEffect),
    /// Recovery is finished: requests are accepted from now on.
    Opened,
    /// A request ended.
    Done {
        /// As asked.
        id: RequestId,
        /// The answer.
        result: Result<Answer, StoreError>,
    },
    /// Nothing is known any more (a failed write or flush), or this is no store of ours: the OSD
    /// stops, and says why. No effect follows.
    Stopped {
        /// For people: what happened, where, what to do.
        reason: String,
    },
}

/// What a request found.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A write, zero, delete, note, sync or the like is durable.
    Durable,
    /// A read.
    Read {
        /// The block's version; `ZERO` where it was never written.
        version: Version,
        /// One for each 4 KiB; compared with the data. Empty where the whole range is zeros.
        checksums: Vec<Checksum>,
        /// The range; empty where the whole range is zeros.
        data: Buffer,
    },
    /// Written and damaged units: bit `i` of word `i / 64` is unit `i`.
    Extents {
        /// The block's version.
        version: Version,
        /// Units that hold data.
        written: Vec<u64>,
        /// Units that held data and lost it.
        damaged: Vec<u64>,
    },
}

/// Why a request was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No space for it; nothing changed.
    Full,
    /// These units of the block are damaged: rewrite or discard them, or fetch another copy.
    Damaged {
        /// Bit `i` of word `i / 64` is unit `i`.
        units: Vec<u64>,
    },
}
