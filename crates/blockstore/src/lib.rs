//! One disk: journal, index, allocator, checkpoints, recovery.
//!
//! A [`Store`] is a value: events go in and effects come out. It opens no file and reads no clock.
//! `docs/internals/disk.md` describes the bytes and the order of writes.
//!
//! ```text
//!   store                      the interface: requests, moves, and the steps at the end of each event
//!   recover  checkpoint  read  state machines: each step uses the parts and starts disk operations
//!   parts                      what an open store consists of
//!   blocks                     index + overlays + data area + damage: how one entry changes a block
//!   journal  pages  data_area  each owns state with its own invariants, like the smaller files
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
mod disk_figures;
mod index;
mod journal;
mod journal_cache;
mod metadata;
mod moves;
mod newest_changes;
mod notes;
mod overlay;
mod pages;
mod parts;
mod pending;
mod pg_records;
mod prepared;
mod read;
mod record_room;
mod recover;
mod stopped;
mod stopped_engine;
mod store;
mod value_cache;

#[cfg(test)]
mod batch_block_tests;
#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod facts_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod lazy_tests;
#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod part_table_tests;
#[cfg(test)]
mod prepared_loss_tests;
#[cfg(test)]
mod prepared_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod repair_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod tests;

use base::{BlockSize, Buffer, Checksum, ClusterId, Duration, OsdId, PgId, PoolId, Version};
use format::disk::BlockChange;
use format::door::{DiskEffect, DiskEvent};
use format::engine::{Change, Compression, EngineEffect, EngineEvent, FamilyFound, Query};
use format::wire::{Content, Digest};

pub use check::{
    CheckOptions, CheckReport, Finding, Inspection, Severity, check, check_stopped, inspect,
};
pub use create::{CreateError, CreateOptions, Created, STORE_SIZE_MIN, create};
pub use disk_figures::{DiskFigures, OperationFigures};
pub use format::disk::{BlockKey, CommitMode, NoteKey, StoreId};
pub use metadata::{
    MetadataFault, MetadataFinding, MetadataPart, MetadataPosition, MetadataRepair, MetadataReport,
};
pub use prepared::PreparedRoom;
pub use stopped::{ReadDevice, StoppedStore};
pub use stopped_engine::ReadEngine;
pub use store::Store;
pub use value_cache::ValueCacheFigures;

/// Settings of the process. Settings that are fixed when the store is created are in its superblock.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of memory for caches (checkpoint pages, recent journal data) and for changes since the last
    /// checkpoint. The index needs additional memory.
    pub memory_bytes: u64,
    /// Bytes of memory for values that point lookups of the engine found; 0: none are kept.
    pub value_cache_bytes: u64,
    /// The journal counts as idle after this time without a write.
    pub idle_after: Duration,
    /// A checkpoint begins when the journal holds this many bytes, or is half full. A smaller value makes
    /// starts faster, but causes more writes.
    pub checkpoint_after_bytes: u64,
    /// Batches and pages of object pools wait while entries of so many bytes of records wait for the
    /// engine. The store says that it lags from half of this on.
    pub engine_backlog_bytes_max: u64,
    /// Whether the store is a sparse file. The file system may have no space for a place of such a file,
    /// so space is reserved before the place is given to a block. False for a block device.
    pub is_sparse: bool,
    /// Whether the store is a file in the file system of its engine. Then it takes no more of it while the
    /// engine has little space left.
    pub shares_space_with_engine: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            memory_bytes: 256 << 20,
            value_cache_bytes: 64 << 20,
            idle_after: Duration::from_millis(100),
            checkpoint_after_bytes: u64::MAX,
            engine_backlog_bytes_max: 64 << 20,
            is_sparse: false,
            shares_space_with_engine: false,
        }
    }
}

/// The identity of a store, from its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The id of the store.
    pub store: StoreId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The OSD it belongs to.
    pub osd: OsdId,
}

/// The engine of a store, as it was found when it was opened. See `docs/internals/engine.md`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineFound {
    /// Who it is, and whose.
    pub identity: format::engine::Identity,
    /// Its families.
    pub families: Vec<FamilyFound>,
}

/// What a store records about a PG in addition to its blocks. See `docs/internals/pg.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PgFacts {
    /// The highest version of an accepted write, zero or delete, or of a prepared or skipped version. Repairs
    /// and versions prepared by peering do not count.
    pub last: Version,
    /// All prepared versions up to this one have become stable. Zero in a replicated pool.
    pub committed: Version,
    /// The highest version of any block that the PG ever had in this store, repairs included.
    pub held: Version,
    /// The lowest version that a recovery dropped, if the PG's last write is in the same epoch.
    pub hole: Option<Version>,
    /// Tombstones up to this version have been dropped.
    pub floor: Version,
    /// Whether damage may have destroyed acknowledged writes.
    pub is_suspect: bool,
}

/// Space for data, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Space {
    /// Size of the data area.
    pub size_bytes: u64,
    /// Bytes allocated to blocks. Replaced and deleted blocks count as free at once.
    pub used_bytes: u64,
    /// Bytes that further writes of the block sizes in use can take: the free space without the reserve,
    /// limited by the room for the records of that many blocks.
    pub free_bytes: u64,
    /// The part of `free_bytes` that can be written even if the file system has no more space. The rest
    /// must be reserved first, or lies in segments of other block sizes.
    pub sure_bytes: u64,
    /// Whether `sure_bytes` is about to grow: space is being reserved in the file system, or freed places
    /// are being made available.
    pub is_growing: bool,
    /// Bytes kept for writes that already have a version.
    pub reserve_bytes: u64,
    /// Whether writes that need space are refused.
    pub full: bool,
}

/// What recovery found, for the log and for the operator.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    /// Rows of the recovery table that applied, and how often: `('A', 120)`.
    pub rows: Vec<(char, u64)>,
    /// Bytes of the journal that were read.
    pub journal_bytes: u64,
    /// Number of blocks in the index, including tombstones.
    pub blocks: u64,
}

/// Identifies a request to the store. The caller chooses an id below 2^63, and does not reuse it while the
/// request is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// An input of the store.
#[derive(Debug)]
pub enum Event {
    /// A request. Requests take effect in the order in which they arrive; but those that concern no object
    /// pool pass those that wait for the engine. See `docs/internals/disk.md`.
    Request {
        /// Copied into the answer, to match it to this request.
        id: RequestId,
        /// The request.
        request: Request,
    },
    /// A disk operation finished.
    Disk(DiskEvent),
    /// An event of the engine.
    Engine(EngineEvent),
    /// The deadline of [`Store::deadline`] has passed.
    Tick,
}

/// Selects which versions of a block a read sees. The choice matters only in pools that keep parity, where
/// versions are prepared.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum AsOf {
    /// The stable version with all prepared versions on top.
    #[default]
    View,
    /// Only the stable version.
    Stable,
    /// The newest version at or below this one. If the stable version is already newer, the read sees the
    /// stable version; the answer contains the version that was read.
    Version(Version),
}

/// A request to the store. Offsets and lengths are in bytes within the block, and multiples of 4 KiB.
#[derive(Debug)]
pub enum Request {
    /// Write a range. Done when this write and all earlier writes are durable. In commit mode `fsync`, a lazy
    /// write is done as soon as they are written ([`Answer::Written`]).
    Write {
        /// The PG that `version` belongs to.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// The new version of the block. Must be newer than its current one.
        version: Version,
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// The checksum of each 4 KiB. The caller has verified the data against these checksums.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
        /// Whether the write may be answered before it is durable; a later [`Request::Sync`] makes it
        /// durable.
        lazy: bool,
    },
    /// Make a range read as zeros. Done at the same point as a write.
    Zero {
        /// The PG that `version` belongs to.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// The new version of the block. Must be newer than its current one.
        version: Version,
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// Whether the request may be answered before it is durable, as for a write.
        lazy: bool,
    },
    /// Delete the block, leaving a tombstone with `version`. Done when durable.
    Delete {
        /// The PG that `version` belongs to.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The new version of the block. Must be newer than its current one.
        version: Version,
    },
    /// Read a range in the state after all earlier writes, durable or not. If a later change overtakes the
    /// read, the answer may show the state after that change; the version in the answer shows which state.
    Read {
        /// The block.
        key: BlockKey,
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
        /// Which versions the read sees.
        as_of: AsOf,
    },
    /// Report which units of the block are written, and which are damaged.
    Extents {
        /// The block.
        key: BlockKey,
        /// Which versions the request sees.
        as_of: AsOf,
    },
    /// Read the block for another member. Answered by [`Answer::Copy`], which lists damaged units and
    /// contains the part table of a parity part (empty if the table is lost). In all other respects like a
    /// read.
    Copy {
        /// The block.
        key: BlockKey,
        /// The units to copy: bit `i` of word `i / 64` (at most 4 words; bits beyond the block are ignored).
        /// Empty: all units.
        units: Vec<u64>,
        /// Which versions the request sees.
        as_of: AsOf,
    },
    /// Report what the block holds, without its data. Answered by [`Answer::Digest`]. In all other respects
    /// like a copy of the whole block.
    Digest {
        /// The block.
        key: BlockKey,
        /// Whether the data is read and compared with its checksums. If not, the answer is based on the
        /// store's metadata, and lists only damaged units that are already known.
        deep: bool,
    },
    /// Journal a version of a block that may still be rolled back: a later [`Request::Commit`] makes it
    /// stable, and a later [`Request::Settle`] makes it stable or removes it. The PG's versions must arrive
    /// in order, without a gap within an epoch ([`StoreError::Unordered`]). The data is first verified
    /// against its checksums ([`StoreError::Corrupted`]). Done at the same point as a write.
    Prepare {
        /// The PG that `version` belongs to.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The new version of the block; `content` contains the same version.
        version: Version,
        /// What changes: units of a block, or its deletion.
        content: Content,
        /// Set only in peering: when this version is journaled, all prepared versions of the key above
        /// `replaces` are removed. A version with `replaces` is outside the order of the PG's versions and
        /// does not raise the PG's last version.
        replaces: Option<Version>,
        /// Whether the request may be answered before it is durable, as for a write.
        lazy: bool,
    },
    /// Journal that the PG has this version, which changes no block in this store. Done at the same point as
    /// a write.
    Skip {
        /// The PG that `version` belongs to.
        pg: PgId,
        /// The version, which must be the PG's next one.
        version: Version,
        /// Whether the request may be answered before it is durable, as for a write.
        lazy: bool,
    },
    /// Make the PG's prepared versions up to `upto` stable, in order. Nothing is written: later entries of
    /// the PG record the commit. Never waits; answered at once by [`Answer::Committed`]. Requires: the
    /// versions are durable.
    Commit {
        /// The PG.
        pg: PgId,
        /// The last version that becomes stable. If it is above the PG's last version in this store, only
        /// versions up to the latter become stable.
        upto: Version,
    },
    /// In one entry: store the PG's note, make its prepared versions up to `upto` stable, and remove all
    /// prepared versions above. `upto` becomes the PG's last version. Requests of the PG that are waiting for
    /// room, and that prepare or skip versions or store its note, fail with [`StoreError::Unordered`]. A
    /// settle never waits behind other requests, but may wait for a checkpoint; reads do not wait for it.
    /// Done when everything so far is durable.
    Settle {
        /// The PG.
        pg: PgId,
        /// The PG's note with its key, if a note is to be stored.
        note: Option<(NoteKey, Vec<u8>)>,
        /// The PG's last version after the settle. If a version above `upto` is already stable, the request
        /// fails with [`StoreError::AboveSettled`].
        upto: Version,
    },
    /// Replace units of the block, whatever its version was. Fails if the block has prepared versions
    /// ([`StoreError::Unordered`]). Atomic even across a crash. The PG's last version does not change:
    /// repairs are outside the order of versions, see `docs/internals/pg.md`. The data is first verified
    /// against its checksums ([`StoreError::Corrupted`]). Done when durable. Requires: the block size is that
    /// of the pool.
    Repair {
        /// The PG.
        pg: PgId,
        /// The block.
        key: BlockKey,
        /// The new content of the block.
        content: Content,
    },
    /// Store these bytes as a note, in place of any older note with this key; empty bytes remove the note.
    /// Done when durable.
    Note {
        /// The key of the note.
        key: NoteKey,
        /// The note's content, at most [`NOTE_SIZE_MAX`] bytes.
        bytes: Vec<u8>,
    },
    /// Tombstones of the PG up to this version are no longer needed.
    SetFloor {
        /// The PG.
        pg: PgId,
        /// The last version whose tombstone may be dropped.
        floor: Version,
    },
    /// Read a portion of the store's own metadata (superblocks, root, directory, leaves) from the disk,
    /// compare it with its checksums and with memory, and arrange the repair of what is damaged. Answered by
    /// [`Answer::Metadata`]. Requires: no other such request is open.
    CheckMetadata {
        /// Where the portion begins, from the last answer; `None`: at the beginning.
        after: Option<MetadataPosition>,
        /// Maximum number of pages of 4 KiB to read: at least one, at most 256 (1 MiB).
        page_count: u32,
    },
    /// Change records and blocks of an object pool: all of them or none, whatever crashes. The batches of a
    /// PG come in order: within an epoch, `after` is the PG's last version ([`StoreError::Unordered`]).
    /// Reads see the batch at once. Done when it, all earlier entries, and the data of all earlier entries of
    /// its PG are durable; the engine is not waited for.
    Batch(Batch),
    /// Make ranges of records, and blocks, of an object pool what is in the page, whatever was there: all of
    /// it or nothing, whatever crashes. It is outside the order of versions, but not of entries: what
    /// recovery drops takes pages behind it, too. Seen, and done, like a batch.
    Page(Page),
    /// Create the engine's family of an object pool, or remove it with all its records (`None`). Harmless
    /// when repeated. Done when the engine has done it, durably; fails with [`StoreError::Unordered`] while
    /// another request for the pool's family is open.
    Family {
        /// The pool.
        pool: PoolId,
        /// How the family is to be compressed; `None`: it is removed.
        compression: Option<Compression>,
    },
    /// Read records of an object pool: the state after all batches that are journaled when the answer leaves,
    /// of one moment for all queries. A scan may stop before its limits; it has at least one record if there
    /// is one.
    Records {
        /// The PG whose last version the answer names. The queries may go beyond it, in its pool.
        pg: PgId,
        /// The queries, within the limits of the engine.
        queries: Vec<Query>,
        /// Whether only memory is looked at ([`StoreError::WouldBlock`]).
        from_memory: bool,
        /// Whether values that the engine is asked for stay in the cache of values, and count there. That is
        /// for clients' reads; others are answered by it, too.
        caches: bool,
    },
    /// Make all earlier requests durable, except those of object pools that still wait for the engine: they
    /// were not accepted, and are not lazy.
    Sync,
    /// Record in the journal that everything so far is durable, so that the next start does not mistake any
    /// of it for a torn tail. The store does the same by itself when the journal is idle. Done when the
    /// record is durable. Send this as the last request before an orderly shutdown.
    Record,
    /// The operator accepts that the PG may have lost writes: it is no longer suspect here. Done when
    /// durable.
    Absolve {
        /// The PG.
        pg: PgId,
    },
}

/// A batch of changes of an object pool, or a forward: a batch by which peering brings the PG to the adopted
/// version. That one has a note, and no order that the store knows of.
#[derive(Debug)]
pub struct Batch {
    /// The PG that the versions belong to.
    pub pg: PgId,
    /// The pool's block size.
    pub block_size: BlockSize,
    /// The version before the first of the batch.
    pub after: Version,
    /// The last version of the batch.
    pub version: Version,
    /// The changes of records, in order.
    pub records: Vec<Change>,
    /// The changes of blocks, each with the data of its units: units, zeros, or the block is gone. All of a
    /// block lie side by side. They name no places: the store chooses what gets one. Their versions are
    /// those of the batch; in a forward they are those at its source, and units may be damaged there. The
    /// data is verified against its checksums ([`StoreError::Corrupted`]).
    pub blocks: Vec<(BlockChange, Buffer)>,
    /// In a forward: the PG's note, with its key. It is stored with the changes or not at all.
    pub note: Option<(NoteKey, Vec<u8>)>,
}

/// A page of an object pool.
#[derive(Debug)]
pub struct Page {
    /// The PG.
    pub pg: PgId,
    /// The pool's block size.
    pub block_size: BlockSize,
    /// The content shows nothing above this version; `ZERO`: the PG goes from here. It does not count for the
    /// PG's last version.
    pub version: Version,
    /// The changes of records, in order: a range that becomes something is deleted, then its records are put.
    pub records: Vec<Change>,
    /// The changes of blocks, as in a forward.
    pub blocks: Vec<(BlockChange, Buffer)>,
}

/// Maximum size of a note, in bytes.
pub const NOTE_SIZE_MAX: usize = 512 << 10;

/// An output of the store.
#[derive(Debug)]
pub enum Effect {
    /// An operation for the disk.
    Disk(DiskEffect),
    /// A request for the engine.
    Engine(EngineEffect),
    /// Recovery is finished: requests are accepted from now on.
    Opened,
    /// A request finished.
    Done {
        /// The id from the request.
        id: RequestId,
        /// The answer.
        result: Result<Answer, StoreError>,
    },
    /// The store stopped, either because the state of the disk is unknown after a failed write or flush, or
    /// because no store can be opened on the device. No further effect follows.
    Stopped {
        /// A text for the operator: what happened, where, and what to do.
        reason: String,
    },
}

/// The result of a request that succeeded.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The change or note is durable; for a sync, everything before it.
    Durable,
    /// A lazy write or zero is written, and so are all entries before it and earlier data of its block. They
    /// survive a crash of the process, but not yet a power loss.
    Written,
    /// The versions are stable.
    Committed,
    /// The data that was read.
    Read {
        /// The block's version; `ZERO` where it was never written.
        version: Version,
        /// The checksum of each 4 KiB. The data has been verified against them. Empty if the whole range is
        /// zeros.
        checksums: Vec<Checksum>,
        /// The data; empty if the whole range is zeros.
        data: Buffer,
    },
    /// A block for another member.
    Copy {
        /// What the block holds. Units that lost their data are listed as damaged.
        content: Content,
    },
    /// What a block holds, without its data.
    Digest(Digest),
    /// What a portion of a check of the metadata found.
    Metadata(MetadataReport),
    /// Records of an object pool.
    Records {
        /// The PG's last version: the state is that after this version.
        version: Version,
        /// One answer for each query.
        answers: Vec<format::engine::Answer>,
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

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No space is left, not even in the reserve; nothing changed. After a refused write, zero, delete or
    /// prepare, later versions of the same PG and epoch are refused too, so that the stored versions of an
    /// epoch have no gap.
    Full,
    /// The content of a repair or of a prepared version is inconsistent or does not match its checksums;
    /// nothing changed.
    Corrupted,
    /// The version does not follow the versions of the PG or the block, a settle overtook the request, or the
    /// block of a repair has prepared versions; nothing changed.
    Unordered,
    /// A version above the `upto` of a settle is already stable; nothing changed.
    AboveSettled,
    /// The engine has no records of this pool.
    NoFamily,
    /// The pool's family is there, with another compression.
    OtherCompression,
    /// The records are not in memory.
    WouldBlock,
    /// Records of this range cannot be read. Fetch them from another member.
    RecordsDamaged {
        /// The first key that may be concerned.
        start: Vec<u8>,
        /// The first key behind; `None`: to the end of the pool.
        end: Option<Vec<u8>>,
    },
    /// These units of the block are damaged. Rewrite or discard them, or fetch another copy.
    Damaged {
        /// Bit `i` of word `i / 64` stands for unit `i`.
        units: Vec<u64>,
    },
}
