//! One disk: journal, index, allocator, checkpoints, recovery. The heart of Ashlar.
//!
//! A [`Store`] is a value: events go in, effects come out; it opens no file and reads no clock.
//! `docs/internals/disk.md` tells the bytes and the order of writes.

mod allocator;
mod blocks;
mod check;
mod checkpoint;
mod create;
mod damage;
mod data_area;
mod decide;
mod discards;
mod disk;
mod index;
mod journal;
mod notes;
mod overlay;
mod pages;
mod parts;
mod pg_records;
mod read;
mod record_room;
mod recover;
mod stopped;
mod store;

#[cfg(test)]
mod facts_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod lazy_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod repair_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod tests;

use base::{BlockSize, Buffer, Checksum, ClusterId, Duration, OsdId, PgId, Version};
use format::door::{DiskEffect, DiskEvent};
use format::wire::Content;

pub use check::{CheckOptions, CheckReport, Finding, Inspection, Severity, check, inspect};
pub use create::{CreateError, CreateOptions, Created, STORE_SIZE_MIN, create};
pub use format::disk::{BlockKey, CommitMode, NoteKey, StoreId};
pub use stopped::{ReadDevice, StoppedStore};
pub use store::Store;

/// Settings of the process; those frozen with the disk are in its superblock.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of memory for caches (checkpoint pages, recent journal data) and for what is changed
    /// since the last checkpoint. The resident index comes on top.
    pub memory_bytes: u64,
    /// The journal is idle when nothing was written for so long.
    pub idle_after: Duration,
    /// A checkpoint begins when the journal holds so many bytes, or is half full. Smaller: faster
    /// starts, more writing.
    pub checkpoint_after_bytes: u64,
    /// The store is a file of a file system that may have no space for it: places get space before
    /// a block gets them. Not for a block device.
    pub is_sparse: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            memory_bytes: 256 << 20,
            idle_after: Duration::from_millis(100),
            checkpoint_after_bytes: u64::MAX,
            is_sparse: false,
        }
    }
}

/// Who a store is; written in its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The store itself.
    pub store: StoreId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// The OSD it belongs to.
    pub osd: OsdId,
}

/// What a store knows of a PG besides its blocks. See `docs/internals/pg.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PgFacts {
    /// The highest version of a write, zero or delete that was accepted. Repairs do not count.
    pub last: Version,
    /// The highest version of any block it ever held, repairs included.
    pub held: Version,
    /// The lowest version that recoveries dropped, if a write of its epoch is still the last one.
    pub hole: Option<Version>,
    /// Tombstones up to it are gone.
    pub floor: Version,
    /// Damage may have cost acknowledged writes.
    pub is_suspect: bool,
}

/// Space for data, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Space {
    /// The data area.
    pub size_bytes: u64,
    /// Blocks in use. Replaced and deleted blocks count as free at once.
    pub used_bytes: u64,
    /// What writes of the block sizes in use may still use: the rest without the reserve, as far as
    /// there is room for the records of so many blocks.
    pub free_bytes: u64,
    /// Of it what writes of the block sizes in use are sure of, whatever the file system says later:
    /// the rest is to be made ready, or lies in segments of other block sizes.
    pub sure_bytes: u64,
    /// More of it is being made ready: space of the file system, or places that were freed.
    pub is_growing: bool,
    /// Kept free of writes that have no version yet.
    pub reserve_bytes: u64,
    /// Writes that need space are refused.
    pub full: bool,
}

/// What recovery found. For the log and for people.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    /// Rows of the recovery table that applied, with how often: `('A', 120)`.
    pub rows: Vec<(char, u64)>,
    /// Journal read, in bytes.
    pub journal_bytes: u64,
    /// Blocks in the index, tombstones included.
    pub blocks: u64,
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
    /// Write a range. Done when it, and all writes before it, are durable; a lazy one in a store of
    /// the commit mode `fsync` when they are written ([`Answer::Written`]).
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
        /// It may be answered before it is durable; a later [`Request::Sync`] makes it so.
        lazy: bool,
    },
    /// Make a range read as zeros. Done like a write.
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
        /// As of a write.
        lazy: bool,
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
    /// Read a range, as the writes before this left it (durable or not). Where a later change
    /// overtakes it, the answer may be the state after that one, and says so by its version.
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
    /// The block as it is, for another member; answered by [`Answer::Copy`], like a read in all
    /// else. Damaged units are named.
    Copy {
        /// The block.
        key: BlockKey,
        /// Only these units (at most 4 words; bits beyond the block name none); empty: all.
        units: Vec<u64>,
    },
    /// Make the block so, whatever its version was: whole or not at all, also over a crash. The
    /// PG's last version stays as it is. Done when durable. The data is compared with its
    /// checksums first ([`StoreError::Corrupted`]). (Not in the order of versions: see
    /// `docs/internals/pg.md`.) Requires: the block size is the pool's.
    Repair {
        /// The PG.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// What is to be there.
        content: Content,
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
    /// Record in the journal that everything durable is durable, as an idle journal does by
    /// itself: a later start takes none of it for a torn tail. Done when the record is durable.
    /// The last request before an orderly end.
    Record,
    /// The operator accepts what the PG lost: it is no longer suspect here. Done when durable.
    Absolve {
        /// Which PG.
        pg: PgId,
    },
}

/// Longest note, in bytes.
pub const NOTE_SIZE_MAX: usize = 512 << 10;

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
    /// A lazy write or zero, all entries before it, and earlier data of its block are written: the
    /// end of the process does not take them, only that of the power.
    Written,
    /// A read.
    Read {
        /// The block's version; `ZERO` where it was never written.
        version: Version,
        /// One for each 4 KiB; compared with the data. Empty where the whole range is zeros.
        checksums: Vec<Checksum>,
        /// The range; empty where the whole range is zeros.
        data: Buffer,
    },
    /// A block for another member.
    Copy {
        /// What is there; units that held data and lost it are among the damaged ones.
        content: Content,
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
    /// No space for it, nor in the reserve; nothing changed. Of a write, zero or delete: later ones
    /// of its PG and epoch are refused as well, so that what is kept of an epoch has no gap.
    Full,
    /// A repair's content contradicts itself or its checksums; nothing changed.
    Corrupted,
    /// These units of the block are damaged: rewrite or discard them, or fetch another copy.
    Damaged {
        /// Bit `i` of word `i / 64` is unit `i`.
        units: Vec<u64>,
    },
}
