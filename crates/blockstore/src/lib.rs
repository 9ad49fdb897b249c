//! One disk: journal, index, allocator, checkpoints, recovery.
//!
//! A [`Store`] is a value: events go in, effects come out; it opens no file and reads no clock.
//! `docs/internals/disk.md` describes the bytes and the order of writes.
//!
//! ```text
//!   store                      the one door: requests, moves, what happens at the end of each event
//!   recover  checkpoint  read  machines: a step takes the parts and asks the disk
//!   parts                      what an open store consists of
//!   blocks                     index + overlays + data area + damage: how one entry changes a block
//!   journal  pages  data_area  state with invariants of its own, and smaller files of the same kind
//! ```

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
mod journal_cache;
mod moves;
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

/// Settings of the process. Those that are frozen with the disk are in its superblock.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of memory for caches (checkpoint pages, recent journal data) and for changes since the last
    /// checkpoint. The index comes on top.
    pub memory_bytes: u64,
    /// The journal counts as idle after this time without a write.
    pub idle_after: Duration,
    /// A checkpoint begins when the journal holds so many bytes, or is half full. A smaller value makes
    /// starts faster and writes more.
    pub checkpoint_after_bytes: u64,
    /// The store is a sparse file: the file system may have no space behind a place, so space is
    /// reserved before a block gets the place. False for a block device.
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

/// The identity of a store, from its superblock.
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
    /// The highest version of any block the PG ever had here, repairs included.
    pub held: Version,
    /// The lowest version that recoveries dropped, as long as the last write is of the same epoch.
    pub hole: Option<Version>,
    /// Tombstones up to this version are gone.
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
    /// Bytes that writes of the block sizes in use may still take: the rest without the reserve, limited
    /// by the room for records of so many blocks.
    pub free_bytes: u64,
    /// The part of `free_bytes` that is ready, whatever the file system says later. The rest must be made
    /// ready first, or lies in segments of other block sizes.
    pub sure_bytes: u64,
    /// More is being made ready: space of the file system, or freed places.
    pub is_growing: bool,
    /// Kept for writes that have a version already.
    pub reserve_bytes: u64,
    /// Writes that need space are refused.
    pub full: bool,
}

/// What recovery found, for the log and for people.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    /// Rows of the recovery table that applied, and how often: `('A', 120)`.
    pub rows: Vec<(char, u64)>,
    /// Journal read, in bytes.
    pub journal_bytes: u64,
    /// Blocks in the index, tombstones included.
    pub blocks: u64,
}

/// Names a request to the store. The caller chooses it, below 2^63, and does not reuse it while the
/// request is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What a store is told.
#[derive(Debug)]
pub enum Event {
    /// A request. Requests take effect in the order in which they come.
    Request {
        /// Names the answer.
        id: RequestId,
        /// What is asked.
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
    /// Write a range. Done when it, and all writes before it, are durable. In commit mode `fsync` a lazy
    /// one is done when they are written ([`Answer::Written`]).
    Write {
        /// The PG whose version it is.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// Newer than the block's.
        version: Version,
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// One for each 4 KiB. The caller has compared them with the data.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
        /// It may be answered before it is durable; a later [`Request::Sync`] makes it durable.
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
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// As in a write.
        lazy: bool,
    },
    /// Delete the block, leaving a tombstone with `version`. Done when durable.
    Delete {
        /// The PG whose version it is.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// Newer than the block's.
        version: Version,
    },
    /// Read a range as the writes before this request left it, durable or not. If a later change overtakes
    /// the read, the answer may show the state after that change; its version says so.
    Read {
        /// The block.
        key: BlockKey,
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
    },
    /// Ask which units of the block are written, and which are damaged.
    Extents {
        /// The block.
        key: BlockKey,
    },
    /// Read the block for another member; answered by [`Answer::Copy`], which names damaged units.
    /// Otherwise like a read.
    Copy {
        /// The block.
        key: BlockKey,
        /// Only these units, bit `i` of word `i / 64` (at most 4 words; bits beyond the block are ignored).
        /// Empty: all units.
        units: Vec<u64>,
    },
    /// Replace units of the block, whatever its version was. Atomic, also over a crash. The PG's last
    /// version does not change: repairs are not in the order of versions, see `docs/internals/pg.md`.
    /// The data is compared with its checksums first ([`StoreError::Corrupted`]). Done when durable.
    /// Requires: the block size is the pool's.
    Repair {
        /// The PG.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// What the block is to hold.
        content: Content,
    },
    /// Keep these bytes as a note, replacing the one of this key; empty bytes remove it. Done when
    /// durable.
    Note {
        /// The key of the note.
        key: NoteKey,
        /// At most [`NOTE_SIZE_MAX`].
        bytes: Vec<u8>,
    },
    /// Tombstones of the PG up to this version are not needed any more.
    SetFloor {
        /// Which PG.
        pg: PgId,
        /// The last version whose tombstone may go.
        floor: Version,
    },
    /// Make durable what was asked before.
    Sync,
    /// Record in the journal that everything so far is durable, as an idle journal does by itself. Then
    /// the next start does not mistake any of it for a torn tail. Done when the record is durable. The
    /// last request before an orderly end.
    Record,
    /// The operator accepts that the PG may have lost writes: it is no longer suspect here. Done when
    /// durable.
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
    /// The store stopped: after a failed write or flush nothing is known any more, or there is no store
    /// that can be opened. No effect follows.
    Stopped {
        /// For people: what happened, where, and what to do.
        reason: String,
    },
}

/// What a request found.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A change, a note or a sync is durable.
    Durable,
    /// A lazy write or zero, all entries before it, and earlier data of its block are written. They
    /// survive the end of the process, but not yet a power cut.
    Written,
    /// A read.
    Read {
        /// The block's version; `ZERO` where it was never written.
        version: Version,
        /// One for each 4 KiB, compared with the data. Empty if the whole range is zeros.
        checksums: Vec<Checksum>,
        /// The data; empty if the whole range is zeros.
        data: Buffer,
    },
    /// A block for another member.
    Copy {
        /// What the block holds. Units that lost their data are among the damaged ones.
        content: Content,
    },
    /// Written and damaged units: bit `i` of word `i / 64` stands for unit `i`.
    Extents {
        /// The block's version.
        version: Version,
        /// Units that hold data.
        written: Vec<u64>,
        /// Units that lost their data.
        damaged: Vec<u64>,
    },
}

/// Why a request was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No space is left, not even in the reserve; nothing changed. After a refused write, zero or delete,
    /// later ones of the same PG and epoch are refused too: what is kept of an epoch has no gap.
    Full,
    /// The content of a repair contradicts itself or its checksums; nothing changed.
    Corrupted,
    /// These units of the block are damaged. Rewrite or discard them, or fetch another copy.
    Damaged {
        /// Bit `i` of word `i / 64` stands for unit `i`.
        units: Vec<u64>,
    },
}
