//! Messages between the members of a PG, and leases between OSDs. See
//! `docs/internals/pg.md`.
//!
//! Invariants
//!   1. Messages on one connection stay in order. The primary opens the connection, and answers use the same
//!      connection. A member with a data part opens a connection of its own to a member with parity.
//!   2. Every message contains its PG and epoch. A message of another epoch has no effect on the PG.
//!   3. Units are bits: bit `i` of word `i / 64` is unit `i` of the block.

use base::{
    BlockSize, Buffer, Checksum, Epoch, MapRevision, PgId, PoolId, Position, UNIT_SIZE, Version,
};

use super::payload::{Payload, padded};
use super::pg_entry::Member;
use super::pg_entry::PgEntry;
use crate::disk::{BODY_SIZE_MAX, BlockKey, TABLE_ROWS_MAX, UnitSet, table_rows, table_size};
use crate::engine::KEY_SIZE_MAX;

/// Longest key of a record in a peer message, in bytes: the longest that an engine takes.
pub const RECORD_KEY_SIZE_MAX: usize = KEY_SIZE_MAX;
/// Longest data of blocks in one batch of an object pool, in bytes.
pub const BATCH_UNITS_SIZE_MAX: usize = 3 << 20;
/// Maximum number of blocks in one [`PeerBody::Listed`].
pub const LIST_COUNT_MAX: usize = 1024;
/// Maximum number of activations in a history.
pub const HISTORY_COUNT_MAX: usize = 64;
/// Maximum number of keys in [`Filling::whole`].
pub const WHOLE_COUNT_MAX: usize = 1024;

/// Maximum size of a scrub note, in bytes.
pub const SCRUB_NOTE_SIZE_MAX: usize = 48 << 10;

/// Maximum size of the part table of a parity part, in bytes.
pub const TABLE_SIZE_MAX: usize = table_size(BlockSize::MAX, TABLE_ROWS_MAX as u8);
/// Maximum number of data parts that one version changes: all of the largest stripe.
pub const PART_CHANGE_COUNT_MAX: usize = 16;

/// Maximum number of pools in [`LeaseMessage::Renew`].
pub const REVISION_COUNT_MAX: usize = 256;
/// Maximum number of PGs in [`LeaseMessage::Granted`]: all PGs of the largest pool. A giver that would have
/// to list more grants no lease.
pub const LOST_COUNT_MAX: usize = 1 << 16;

/// One message between members of a PG. Its keys belong to the PG's pool, so they are encoded without a
/// pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerMessage {
    /// The PG.
    pub pg: PgId,
    /// The epoch that the message belongs to.
    pub epoch: Epoch,
    /// The content.
    pub body: PeerBody,
}

/// Contents of messages between members. The sender of a request chooses `call`, which is copied into the
/// answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerBody {
    /// Primary: report your state for this epoch. A map that contains the epoch has at least this revision.
    Query {
        /// Revision of the pool's map.
        revision: MapRevision,
    },
    /// Member: operations of an earlier epoch are still under way at its store; its state follows when they
    /// have ended, however long the disk takes.
    Draining,
    /// Member: reports its state.
    State(MemberState),
    /// Primary: list the blocks that you hold with versions above this one.
    List {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// Only blocks with newer versions than this. Zero: all blocks.
        newer_than: Version,
        /// Only blocks after this key.
        after: Option<BlockKey>,
    },
    /// Member: a page of blocks in key order, tombstones included.
    Listed {
        /// Copied from the request.
        call: u32,
        /// At most [`LIST_COUNT_MAX`] blocks.
        blocks: Vec<ListedBlock>,
        /// Whether these are the last blocks.
        is_last: bool,
    },
    /// Primary: send this block.
    Fetch {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The key of the block.
        key: BlockKey,
        /// The units to send, as at most 4 words; empty: all units.
        units: Vec<u64>,
        /// In pools of stripes: the version at which the block is read; `None`: the newest one.
        as_of: Option<Version>,
    },
    /// Member: sends the block.
    Fetched {
        /// Copied from the request.
        call: u32,
        /// What the block holds.
        content: Content,
    },
    /// Primary: replace the block's content. Durable when answered.
    Repair {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The key of the block.
        key: BlockKey,
        /// The new content of the block.
        content: Content,
    },
    /// Member: the repair is durable.
    Repaired {
        /// Copied from the request.
        call: u32,
    },
    /// Primary, in pools of pieces: too few members have some of the writes from this version on, so these
    /// writes are undone. Report no version from this one on. Durable when answered by [`PeerBody::Noted`].
    Drop {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The first version that is undone.
        version: Version,
    },
    /// Primary: activate in this epoch. Durable when answered.
    Activate {
        /// The version adopted.
        adopted: Version,
        /// Tombstones up to this version may be dropped.
        floor: Version,
        /// Activations since the floor, this one included; oldest first.
        history: Vec<Activation>,
        /// For a learner: where its backfill begins.
        filling: Option<Filling>,
    },
    /// Member: the activation is durable.
    Activated,
    /// Primary: a write, in version order.
    Write {
        /// Version of the write: one more than that of the preceding write.
        version: Version,
        /// All writes up to this version have completed on all acting members.
        mark: Version,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// Whether the write may be answered before it is durable. Never set for a deletion.
        lazy: bool,
        /// What the write does to the block.
        change: Change,
    },
    /// Primary, in pools of stripes: the next version changes this member's data part.
    Part {
        /// As in [`PeerBody::Write`].
        version: Version,
        /// As in [`PeerBody::Write`].
        mark: Version,
        /// Revision of the pool's map that the primary uses. While the member has an older one, it serves no
        /// direct reads: the version may belong to a session before which others were fenced.
        revision: MapRevision,
        /// The stripe.
        key: BlockKey,
        /// As in [`PeerBody::Write`].
        lazy: bool,
        /// The units that change, or a tombstone, with this version.
        content: Content,
        /// The units, as at most 4 words, for which the member sends the difference.
        differences: Vec<u64>,
        /// Whether the member sends the difference straight to all acting members with parity
        /// ([`PeerBody::ParityDelta`]), if it has connections with them. Otherwise it sends the difference to
        /// the primary ([`PeerBody::Delta`]).
        is_direct: bool,
    },
    /// Primary, in pools of stripes: the next version changes this member's parity part.
    Parity {
        /// As in [`PeerBody::Write`].
        version: Version,
        /// As in [`PeerBody::Write`].
        mark: Version,
        /// The stripe.
        key: BlockKey,
        /// As in [`PeerBody::Write`].
        lazy: bool,
        /// The parity of the units that the primary encoded, or a tombstone, with this version.
        content: Content,
        /// The data parts that change, in order.
        changes: Vec<PartChange>,
    },
    /// Primary, in pools of stripes: the next version changes nothing here.
    Skip {
        /// As in [`PeerBody::Write`].
        version: Version,
        /// As in [`PeerBody::Write`].
        mark: Version,
        /// As in [`PeerBody::Part`].
        revision: MapRevision,
        /// As in [`PeerBody::Write`].
        lazy: bool,
    },
    /// Member with a data part, to the primary, which forwards the message to the members with parity: the
    /// change that a version makes, as old bytes XOR new bytes.
    Delta {
        /// The version.
        version: Version,
        /// The stripe.
        key: BlockKey,
        /// The data part that changes.
        part: Position,
        /// The differences, with the version that the part had before (zero: the part held nothing). Units
        /// whose old bytes are lost are listed as damaged.
        content: Content,
    },
    /// Primary or acting member with a data part, to a member with parity: the change that a version makes in
    /// the data part, see [`PeerBody::Delta`]. It may arrive before the version, and it may arrive twice.
    ParityDelta {
        /// As in [`PeerBody::Delta`].
        version: Version,
        /// As in [`PeerBody::Delta`].
        key: BlockKey,
        /// As in [`PeerBody::Delta`].
        part: Position,
        /// As in [`PeerBody::Delta`].
        content: Content,
    },
    /// Acting member with parity: the difference of this data part has not arrived. The primary makes it
    /// again.
    DeltaWanted {
        /// The version.
        version: Version,
        /// The data part that changes.
        part: Position,
    },
    /// Acting member with parity: the member with this data part has lost a version of it, for the part
    /// table names a later one than the member's difference.
    PartBehind {
        /// The data part.
        part: Position,
    },
    /// Acting member with parity: units of its part were lost before a version changed them, so the version
    /// left them lost. The primary looks at the stripe, and makes them of the other parts.
    ParityLost {
        /// The stripe.
        key: BlockKey,
    },
    /// Primary, in pools of stripes: prepare this content of the key, in place of all prepared versions of
    /// the key above `replaces`. Answered by [`PeerBody::Repaired`] when durable.
    Forward {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The stripe.
        key: BlockKey,
        /// The units that change, or a tombstone.
        content: Content,
        /// Prepared versions of the key above this one are replaced.
        replaces: Version,
    },
    /// Primary, to an acting member: the mark or, in pools of stripes, the map's revision has risen, and no
    /// write follows that would contain it.
    Mark {
        /// As in [`PeerBody::Write`].
        mark: Version,
        /// The revision of the pool's map that the sender has, if no change of a session that it fences is
        /// open in the PG; otherwise zero.
        revision: MapRevision,
    },
    /// Member: this member has the write with this version; in pools of stripes, all versions up to this one.
    Written {
        /// Copied from the request. In pools of stripes: all versions up to this one are meant.
        version: Version,
        /// Whether the write is durable. False only for a lazy write.
        durable: bool,
    },
    /// Primary: make all earlier writes durable.
    Sync {
        /// Copied into the answer, to match it to this request.
        call: u32,
    },
    /// Member: all writes before the `Sync` are durable.
    Synced {
        /// Copied from the request.
        call: u32,
    },
    /// Primary, to a learner: all repairs before this message are done; record your progress.
    Progress {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The progress; `None`: nothing up to `complete` is missing.
        filling: Option<Filling>,
        /// The mark, which is recorded if there is no filling.
        complete: Version,
        /// Tombstones up to this version may be dropped.
        floor: Version,
    },
    /// Member: what the primary requested is durable.
    Noted {
        /// Copied from the request.
        call: u32,
    },
    /// Member: this member cannot continue in this epoch, because its store has no space or failed.
    Failed {
        /// The reason, for the operator.
        why: String,
    },
    /// Either side: this epoch is over. Contains the newer entry.
    Stale(PgEntry),
    /// Primary, to an acting member: report what you hold of this key.
    Scrub {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The key.
        key: BlockKey,
        /// Whether the data is read and compared with its checksums.
        deep: bool,
    },
    /// Member: reports what it holds.
    Scrubbed {
        /// Copied from the request.
        call: u32,
        /// Tombstones up to this version have been dropped here.
        floor: Version,
        /// What the member holds of the key.
        digest: Digest,
    },
    /// Primary, to an acting member: replace the block by this content, which a scrub found to be right.
    /// Answered by [`PeerBody::Tried`]; a member without room stays in the epoch.
    Mend {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The key of the block.
        key: BlockKey,
        /// The new content of the units that it covers.
        content: Content,
    },
    /// Primary: send your scrub note.
    Recall {
        /// Copied into the answer, to match it to this request.
        call: u32,
    },
    /// Member: sends its scrub note.
    Recalled {
        /// Copied from the request.
        call: u32,
        /// The note, at most [`SCRUB_NOTE_SIZE_MAX`] bytes; empty: the member has no note.
        note: Vec<u8>,
    },
    /// Primary: store this scrub note. Answered by [`PeerBody::Tried`].
    Keep {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The note, at most [`SCRUB_NOTE_SIZE_MAX`] bytes.
        note: Vec<u8>,
    },
    /// Member: the requested change is durable, or the store had no room for it.
    Tried {
        /// Copied from the request.
        call: u32,
        /// Whether the change is durable.
        is_done: bool,
    },
    /// Primary, in object pools: the next batch, in version order. Answered by [`PeerBody::Written`] with its
    /// version.
    Batch {
        /// The version before the first of the batch.
        after: Version,
        /// The last version of the batch.
        version: Version,
        /// As in [`PeerBody::Write`].
        mark: Version,
        /// What the batch changes.
        content: BatchContent,
    },
    /// Primary, in object pools: these ranges become this. Answered by [`PeerBody::Repaired`] when durable.
    Page {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The mark: the content shows nothing above it.
        version: Version,
        /// Whether the page is one of several that bring an object.
        part: PagePart,
        /// What the ranges become: each is deleted, then gets its records. Its blocks have the versions that
        /// they have at the primary.
        content: BatchContent,
    },
    /// Primary, in object pools: list what you hold in this range of keys of one shard.
    ListHeads {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The first key of the range: 1 to [`RECORD_KEY_SIZE_MAX`] bytes.
        from: Vec<u8>,
        /// The first key behind the range, which is not empty.
        before: Vec<u8>,
        /// What is said of each key.
        with: KeysWith,
    },
    /// Member: keys of the range in order, from its first one on, each with what was asked for.
    Headed {
        /// Copied from the request.
        call: u32,
        /// The keys, encoded.
        heads: Payload,
        /// Whether these are the last ones of the range.
        is_last: bool,
    },
    /// Primary, in object pools: all that this acting member lacks, before the epoch is active. Answered by
    /// [`PeerBody::Repaired`] when it is durable, with the member's record.
    ObjectForward {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The version up to which the member is complete.
        after: Version,
        /// The version up to which it is complete then.
        version: Version,
        /// What changes. `None`: nothing but the version.
        content: Option<BatchContent>,
    },
    /// Primary, in object pools: send what a member lacks. Answered by [`PeerBody::Gathered`].
    Gather {
        /// Copied into the answer, to match it to this request.
        call: u32,
        /// The version up to which the member that lacks something is complete.
        after: Version,
        /// The version up to which the acting members are brought: that up to which the asked one is
        /// complete.
        version: Version,
    },
    /// Member, in object pools: sends what a member lacks, or says why it does not.
    Gathered {
        /// Copied from the request.
        call: u32,
        /// What it lacks.
        result: Gathered,
    },
}

/// What a page is of an object that takes several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PagePart {
    /// It has all that it concerns.
    Whole,
    /// The first one: from now on the object is incomplete.
    First {
        /// The name of the object: 1 to [`RECORD_KEY_SIZE_MAX`] bytes.
        name: Vec<u8>,
        /// The version that the object had at the primary.
        version: Version,
    },
    /// One between the first one and the last one.
    Middle,
    /// The last one: the object is not incomplete any more.
    Last {
        /// As in `First`.
        name: Vec<u8>,
    },
}

/// What a member answers that was asked for what another one lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// What it lacks. `None`: nothing but the version.
    Forward(Option<BatchContent>),
    /// It fits no entry, or the log does not go back so far.
    TooLarge,
    /// Some of it cannot be read.
    Unreadable,
}

/// What a batch changes, as it travels. Whoever uses it compares the checksums: that of the body is here,
/// those of the units are in the body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchContent {
    /// Size of the encoded body in bytes, without its padding: 1 to [`BODY_SIZE_MAX`].
    pub body_length: u32,
    /// Checksum of the body, without its padding.
    pub body_checksum: Checksum,
    /// The body, padded with zeros to whole units; then the units of blocks that get data, in the order of
    /// the body, at most [`BATCH_UNITS_SIZE_MAX`] bytes.
    pub data: Buffer,
}

impl BatchContent {
    /// Returns the size of the units of blocks that get data, in bytes.
    pub fn units_size(&self) -> usize {
        self.data.len().saturating_sub(padded(self.body_length))
    }

    /// Checks the sizes. The error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let body_size = padded(self.body_length);
        if self.body_length == 0 || self.body_length as usize > BODY_SIZE_MAX {
            return Err("a batch whose body is empty or too long");
        }
        match self.data.len().checked_sub(body_size) {
            Some(..=BATCH_UNITS_SIZE_MAX) => Ok(()),
            _ => Err("a batch whose data is shorter than its body, or too long"),
        }
    }
}

/// What a member holds of a key, without the data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Digest {
    /// The block does not exist, not even as a tombstone.
    Gone,
    /// The block is deleted.
    Tombstone {
        /// The version of the deletion.
        version: Version,
    },
    /// The block exists.
    Block {
        /// The version of the block.
        version: Version,
        /// Units that hold data. The others read as zeros, unless they are damaged.
        written: Vec<u64>,
        /// Units whose data is lost. None of them is in `written`.
        damaged: Vec<u64>,
        /// The checksum of each written unit, in order.
        checksums: Vec<Checksum>,
        /// The part table of a parity part; empty if the block has none, or lost it.
        table: Vec<u8>,
    },
}

impl Digest {
    /// Returns the version; `ZERO`: the block does not exist.
    pub fn version(&self) -> Version {
        match self {
            Digest::Gone => Version::ZERO,
            Digest::Tombstone { version } | Digest::Block { version, .. } => *version,
        }
    }
}

/// The change that a version of a stripe makes in a data part, as far as the parity parts need it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartChange {
    /// The data part.
    pub part: Position,
    /// The units that change, as words.
    pub units: Vec<u64>,
    /// The changed units that hold data afterwards.
    pub written: Vec<u64>,
    /// The changed units whose difference follows in a [`PeerBody::Delta`]. The primary has already encoded
    /// the other units.
    pub differences: Vec<u64>,
}

/// The state of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberState {
    /// Epoch of the member's activation record; zero: it has no record.
    pub record_epoch: Epoch,
    /// The member has everything up to this version.
    pub complete: Version,
    /// The member had everything up to this version: like `complete`, but damaged prepared versions count.
    /// What recovery dropped does not count.
    pub had: Version,
    /// In pools with parity: what the member has up to this version is stable.
    pub committed: Version,
    /// The highest version of any block of the PG that the member ever held.
    pub held: Version,
    /// Tombstones up to this version have been dropped.
    pub floor: Version,
    /// Whether recovery found damage that may have destroyed acknowledged writes.
    pub is_suspect: bool,
    /// The history in the member's record.
    pub history: Vec<Activation>,
    /// The progress of a backfill that has not finished.
    pub filling: Option<Filling>,
    /// In pools with parity: what the member has, if that belongs to another position than the one that the
    /// entry gives it. All the rest then says that it has nothing.
    pub elsewhere: Option<Elsewhere>,
    /// In pools with parity: the acting members of the epoch of the member's record. At most
    /// [`Position::COUNT_MAX`].
    pub acting: Vec<Member>,
}

/// A position whose parts a member has, although the entry gives it another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The newest activation at which the member had everything.
    pub epoch: Epoch,
    /// The position of its parts.
    pub position: Position,
}

/// One activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activation {
    /// The epoch that began.
    pub epoch: Epoch,
    /// The version adopted. Newer versions held by members of earlier epochs were never adopted.
    pub adopted: Version,
}

/// The progress of a learner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filling {
    /// Blocks after `cursor` are complete up to this version.
    pub complete: Version,
    /// Blocks up to this key were copied and are complete up to `since`; `None`: no block was copied yet.
    pub cursor: Option<BlockKey>,
    /// See `cursor`.
    pub since: Version,
    /// Blocks to be copied as a whole, or removed, because they hold writes that were never adopted. At
    /// most [`WHOLE_COUNT_MAX`].
    pub whole: Vec<BlockKey>,
    /// Whether blocks are compared by a full listing, because versions alone do not show what is missing.
    pub listing: bool,
}

/// A block in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedBlock {
    /// The key of the block.
    pub key: BlockKey,
    /// The version of the block.
    pub version: Version,
    /// Whether the block is deleted.
    pub is_tombstone: bool,
}

/// The content of a block, or of some of its units: the current content or, in a repair, the new content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// The block does not exist, not even as a tombstone.
    Gone,
    /// The block is deleted.
    Tombstone {
        /// The version of the deletion.
        version: Version,
    },
    /// Units of a block. The rules are in [`Content::check`].
    Block {
        /// The block's version.
        version: Version,
        /// The size of the block.
        block_size: BlockSize,
        /// The units that this content covers. In a repair the other units stay as they are.
        units: Vec<u64>,
        /// The units in `units` that hold data. The others read as zeros, unless they are damaged.
        written: Vec<u64>,
        /// The units in `units` whose data is lost: the receiver must not keep older data there. They are
        /// never in `written`.
        damaged: Vec<u64>,
        /// The checksum of each written unit, in order.
        checksums: Vec<Checksum>,
        /// The written units, one after another; `None`: no unit is written.
        data: Option<Buffer>,
        /// The part table of a parity part: whole rows, see `disk::table_size`. In a repair or a version, it
        /// replaces an older table; empty: an older table stays. In a copy, empty means that the block has no
        /// table or that the table is lost.
        table: Vec<u8>,
    },
}

impl Content {
    /// Checks that the content is consistent: bitmaps have as many words as the block size needs and no bit
    /// beyond it, written and damaged units are in `units` and no unit is both, each written unit has one
    /// checksum and 4 KiB of data, and a part table has whole rows for this block size. The error says what
    /// is wrong. The codec calls this for content from a peer. The data is not verified against the
    /// checksums here.
    pub fn check(&self) -> Result<(), &'static str> {
        let Content::Block { block_size, units, written, damaged, checksums, data, table, .. } =
            self
        else {
            return Ok(());
        };
        if table_rows(table, *block_size).is_none() {
            return Err("the part table of a block's content does not fit blocks of this size");
        }
        let words = block_size.unit_count().div_ceil(64) as usize;
        if [units, written, damaged].iter().any(|bitmap| bitmap.len() != words) {
            return Err("the bitmaps of a block's content do not match its block size");
        }
        let [units, written, damaged] =
            [units, written, damaged].map(|set| UnitSet::from_slice(set));
        if !units.is_within(&UnitSet::first(block_size.unit_count())) {
            return Err("the content of a block covers units beyond its end");
        }
        if !written.is_within(&units) || !damaged.is_within(&units) {
            return Err(
                "the content of a block marks units as written or damaged that it does not cover",
            );
        }
        if !written.within(&damaged).is_empty() {
            return Err("the content of a block marks a unit as both written and damaged");
        }
        let data_length = data.as_ref().map_or(0, |data| data.len());
        let is_whole = data_length == written.count() as usize * UNIT_SIZE as usize
            && checksums.len() == written.count() as usize;
        match is_whole && (data.is_some() != written.is_empty()) {
            true => Ok(()),
            false => Err("the data of a block's content does not match its written units"),
        }
    }
}

/// What a write does to its block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Write data.
    Write {
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// The checksum of each 4 KiB.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
    },
    /// Make a range read as zeros.
    Zero {
        /// Where the range begins in the block, in bytes.
        offset: u32,
        /// Length of the range, in bytes.
        length: u32,
    },
    /// Delete the block.
    Delete,
}

/// What a list of keys says of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysWith {
    /// Its version, for the filling of a learner.
    Version,
    /// The checksum of its value, for a scrub.
    Checksum,
    /// Its value, for a repair by a scrub.
    Value,
}

/// What the engine of an OSD has to say to mutations of objects. While it lags or is full, none gets a
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EngineState {
    /// It takes less than comes: mutations wait.
    pub is_lagging: bool,
    /// It has no room: mutations are refused as full.
    pub is_full: bool,
    /// It has little room: mutations that add something are refused as full.
    pub is_low: bool,
}

/// The room for prepared versions that a holder counts, like the space in [`LeaseMessage::Renew`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoomClaim {
    /// Bytes of room that the holder began to use, or returns unused.
    pub begun_bytes: u64,
    /// The part of it that the giver may not have stored yet.
    pub owed_bytes: u64,
}

/// The room for prepared versions that a giver promises, like the space in [`LeaseMessage::Granted`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoomOffer {
    /// The giver keeps room up to this value of `begun_bytes`.
    pub limit_bytes: u64,
    /// The holder should return unused room beyond this many bytes.
    pub share_bytes: u64,
    /// The most room that one version can have at the giver.
    pub largest_bytes: u64,
}

/// Messages about leases between two OSDs, on a separate connection that the holder opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseMessage {
    /// The holder requests a new lease.
    Renew {
        /// Copied into the answer, to match it to this request; increases with each request.
        stamp: u64,
        /// Revisions of the pools' maps that the holder uses.
        revisions: Vec<(PoolId, MapRevision)>,
        /// Whether the holder is, or was until recently, primary of PGs that it shares with the giver. If
        /// not, it holds the lease only for direct reads, and is promised no space.
        leads: bool,
        /// Bytes of new data that the holder began to write, or returns unused. Counted since its first
        /// request in the current run of both OSDs; never more than the giver's limit.
        begun_bytes: u64,
        /// The part of `begun_bytes` that the giver may not have stored yet.
        owed_bytes: u64,
        /// The same for room for prepared versions. `None` if one of the two OSDs is of a version that knows
        /// one credit: it is then for both, in whole blocks.
        room: Option<RoomClaim>,
    },
    /// The giver grants the lease. For the holder, the lease runs from the time it sent `Renew`.
    Granted {
        /// Copied from the request.
        stamp: u64,
        /// How long the lease is valid, in milliseconds on the holder's clock. Set by the giver, because
        /// only the giver can say how long it will honour the lease; the holder may have seen other settings.
        valid_ms: u32,
        /// PGs for which the lease is not valid, because the giver has a newer epoch of them.
        lost: Vec<(PgId, Epoch)>,
        /// Whether the giver's store refuses new data.
        is_full: bool,
        /// What its engine has to say to mutations of objects.
        engine: EngineState,
        /// The giver keeps space free for new data up to this limit, counted like `begun_bytes` of
        /// `Renew`; the limit only grows.
        limit_bytes: u64,
        /// The holder should return unused space beyond this many bytes.
        share_bytes: u64,
        /// The largest write for which the giver can promise space, unless some is freed.
        largest_bytes: u64,
        /// The offer of room for prepared versions, if the renewal had a claim of it.
        room: Option<RoomOffer>,
    },
    /// The holder stops for good, and no longer uses its lease.
    Surrender,
}
