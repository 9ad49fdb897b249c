//! Messages between the members of a PG, and leases between OSDs. See
//! `docs/internals/pg.md`.
//!
//! Invariants
//!   1. On one connection messages stay in order; the primary opens it, answers come back on it.
//!   2. Every message names its PG and epoch; one of another epoch has no effect on the PG.
//!   3. Units are bits: bit `i` of word `i / 64` is unit `i` of the block.

use base::{BlockSize, Buffer, Checksum, Epoch, MapRevision, PgId, PoolId, UNIT_SIZE, Version};

use super::pg_entry::PgEntry;
use crate::disk::{BlockKey, UnitSet};

/// Most blocks of one [`PeerBody::Listed`].
pub const LIST_COUNT_MAX: usize = 1024;
/// Most activations of a history.
pub const HISTORY_COUNT_MAX: usize = 64;
/// Most keys of [`Filling::whole`].
pub const WHOLE_COUNT_MAX: usize = 1024;

/// Most pools of [`LeaseMessage::Renew`].
pub const REVISION_COUNT_MAX: usize = 256;
/// Most PGs of [`LeaseMessage::Granted`]: all of the largest pool. A giver with more to tell grants nothing.
pub const LOST_COUNT_MAX: usize = 1 << 16;

/// One message between members of a PG. Keys in it are of the PG's pool: on the wire they have none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerMessage {
    /// The PG.
    pub pg: PgId,
    /// The epoch that the message belongs to.
    pub epoch: Epoch,
    /// The content.
    pub body: PeerBody,
}

/// Contents of messages between members. `call` names the answer; the sender chooses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerBody {
    /// Primary: report your state for this epoch. The map with the epoch has at least this revision.
    Query {
        /// Of the pool's map.
        revision: MapRevision,
    },
    /// Member: its state.
    State(MemberState),
    /// Primary: which blocks do you hold with versions above this?
    List {
        /// Names the answer.
        call: u32,
        /// Zero: all.
        newer_than: Version,
        /// Only blocks behind this one.
        after: Option<BlockKey>,
    },
    /// Member: a page of blocks in key order, tombstones included.
    Listed {
        /// As asked.
        call: u32,
        /// At most [`LIST_COUNT_MAX`].
        blocks: Vec<ListedBlock>,
        /// No block follows.
        is_last: bool,
    },
    /// Primary: give me this block.
    Fetch {
        /// Names the answer.
        call: u32,
        /// Which.
        key: BlockKey,
        /// Only these units, at most 4 words; empty: all.
        units: Vec<u64>,
    },
    /// Member: the block.
    Fetched {
        /// As asked.
        call: u32,
        /// What it holds.
        content: Content,
    },
    /// Primary: replace the block by this; durable when answered.
    Repair {
        /// Names the answer.
        call: u32,
        /// Which.
        key: BlockKey,
        /// The content it is to have.
        content: Content,
    },
    /// Member: the repair is durable.
    Repaired {
        /// As asked.
        call: u32,
    },
    /// Primary, in pools of pieces: too few members have some writes from this version on, and these
    /// are taken back. Report nothing from it on; durable when answered by [`PeerBody::Noted`].
    Drop {
        /// Names the answer.
        call: u32,
        /// The first version that is taken back.
        version: Version,
    },
    /// Primary: activate in this epoch; durable when answered.
    Activate {
        /// The version adopted.
        adopted: Version,
        /// Tombstones up to it may go.
        floor: Version,
        /// Activations since the floor, this one included; oldest first.
        history: Vec<Activation>,
        /// For a learner: where its backfill begins.
        filling: Option<Filling>,
    },
    /// Member: it is durable.
    Activated,
    /// Primary: a write, in version order.
    Write {
        /// Its version: one more than that of the write before.
        version: Version,
        /// All writes up to this version have ended on all acting members.
        mark: Version,
        /// The block.
        key: BlockKey,
        /// The pool's block size.
        block_size: BlockSize,
        /// It may be answered before it is durable; never a deletion.
        lazy: bool,
        /// What to do.
        change: Change,
    },
    /// Primary, to an acting member: the mark has risen, and no write follows that would carry it.
    Mark {
        /// As in [`PeerBody::Write`].
        mark: Version,
    },
    /// Member: it has the write with this version.
    Written {
        /// As asked.
        version: Version,
        /// Whether it is durable. Only a lazy one may be not.
        durable: bool,
    },
    /// Primary: make durable all writes that came before.
    Sync {
        /// Names the answer.
        call: u32,
    },
    /// Member: they are durable.
    Synced {
        /// As asked.
        call: u32,
    },
    /// Primary, to a learner: all repairs before this message are done; record your progress.
    Progress {
        /// Names the answer.
        call: u32,
        /// `None`: nothing is lacking any more, up to `complete`.
        filling: Option<Filling>,
        /// The mark, for a record without a filling.
        complete: Version,
        /// Tombstones up to it may go.
        floor: Version,
    },
    /// Member: it is durable.
    Noted {
        /// As asked.
        call: u32,
    },
    /// Member: it cannot continue in this epoch (its store has no room, or failed); for people.
    Failed {
        /// Why.
        why: String,
    },
    /// Either: this epoch is over; the newer entry.
    Stale(PgEntry),
}

/// The state of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberState {
    /// Epoch of its record; zero: it has none.
    pub record_epoch: Epoch,
    /// Up to this version it has everything.
    pub complete: Version,
    /// The highest version of any block it ever held of the PG.
    pub held: Version,
    /// Tombstones up to it are gone.
    pub floor: Version,
    /// Its recovery found damage that may have cost acknowledged writes.
    pub is_suspect: bool,
    /// Its record's history.
    pub history: Vec<Activation>,
    /// Of a filling that has not ended.
    pub filling: Option<Filling>,
}

/// One activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activation {
    /// The epoch that began.
    pub epoch: Epoch,
    /// The version adopted; what members of epochs before hold beyond it was never adopted.
    pub adopted: Version,
}

/// The progress of a learner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filling {
    /// Blocks behind `cursor` are complete up to here.
    pub complete: Version,
    /// Blocks up to this key were filled and are complete up to `since`; `None`: none yet.
    pub cursor: Option<BlockKey>,
    /// See `cursor`.
    pub since: Version,
    /// Blocks that are to be copied whole, or removed: they hold what was never adopted. At most
    /// [`WHOLE_COUNT_MAX`].
    pub whole: Vec<BlockKey>,
    /// Blocks are compared by a full listing: versions alone do not show what is missing.
    pub listing: bool,
}

/// A block in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedBlock {
    /// Which.
    pub key: BlockKey,
    /// Its version.
    pub version: Version,
    /// It is deleted.
    pub is_tombstone: bool,
}

/// The content of a block, or of some of its units: as it is, or as it is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// There is nothing, not even a tombstone.
    Gone,
    /// It is deleted.
    Tombstone {
        /// By this version.
        version: Version,
    },
    /// Units of a block, as [`Content::check`] demands.
    Block {
        /// The block's version.
        version: Version,
        /// Its size.
        block_size: BlockSize,
        /// The units that this covers; in a repair the others stay as they are.
        units: Vec<u64>,
        /// Those of them that hold data; the others read as zeros, if they are not damaged.
        written: Vec<u64>,
        /// Those of them whose data is lost: the receiver must not keep older data there. In
        /// neither case are they in `written`.
        damaged: Vec<u64>,
        /// One for each written unit, in order.
        checksums: Vec<Checksum>,
        /// The written units, one after another; `None`: none.
        data: Option<Buffer>,
    },
}

impl Content {
    /// Whether it is consistent: bitmaps have as many words as the block size needs and no bit beyond
    /// it, written and damaged units are among its units and none is both, and there is one checksum and
    /// 4 KiB of data for each written one. The error says what is wrong. The codec checks what comes from
    /// a peer. The data is not compared with the checksums here.
    pub fn check(&self) -> Result<(), &'static str> {
        let Content::Block { block_size, units, written, damaged, checksums, data, .. } = self
        else {
            return Ok(());
        };
        let words = block_size.unit_count().div_ceil(64) as usize;
        if [units, written, damaged].iter().any(|bitmap| bitmap.len() != words) {
            return Err("a content's bitmaps are not those of its block size");
        }
        let [units, written, damaged] =
            [units, written, damaged].map(|set| UnitSet::from_slice(set));
        if !units.is_within(&UnitSet::first(block_size.unit_count())) {
            return Err("a content names units beyond its block");
        }
        if !written.is_within(&units) || !damaged.is_within(&units) {
            return Err("a content has units that it does not speak of");
        }
        if !written.within(&damaged).is_empty() {
            return Err("a content has a unit with both data and damage");
        }
        let data_length = data.as_ref().map_or(0, |data| data.len());
        let is_whole = data_length == written.count() as usize * UNIT_SIZE as usize
            && checksums.len() == written.count() as usize;
        match is_whole && (data.is_some() != written.is_empty()) {
            true => Ok(()),
            false => Err("a content has other data than its written units need"),
        }
    }
}

/// What a write does to its block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Put data.
    Write {
        /// From, in bytes within the block.
        offset: u32,
        /// One for each 4 KiB.
        checksums: Vec<Checksum>,
        /// The data.
        data: Buffer,
    },
    /// Make a range read as zeros.
    Zero {
        /// From, in bytes within the block.
        offset: u32,
        /// In bytes.
        length: u32,
    },
    /// Delete the block.
    Delete,
}

/// Leases between two OSDs, on a connection of their own that the holder opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseMessage {
    /// The holder asks for a new lease.
    Renew {
        /// Names the answer; grows with each request.
        stamp: u64,
        /// Revisions of the map that the holder acts on.
        revisions: Vec<(PoolId, MapRevision)>,
        /// Bytes of new data that it began to write, or gives back unused: since it first asked, in
        /// this run of both, never more than the giver's limit.
        begun_bytes: u64,
        /// Of what it began: bytes that the giver may not have stored yet.
        owed_bytes: u64,
    },
    /// The giver grants the lease. For the holder it runs from the time it sent `Renew`.
    Granted {
        /// As asked.
        stamp: u64,
        /// For how long, in milliseconds on the holder's clock; the giver alone knows how long it
        /// will count, whatever settings the holder has seen.
        valid_ms: u32,
        /// PGs for which the lease does not hold: the giver knows a newer epoch of them.
        lost: Vec<(PgId, Epoch)>,
        /// The giver's store refuses new data.
        is_full: bool,
        /// The giver keeps space free for new data up to this limit, counted like `begun_bytes` of
        /// `Renew`; the limit only grows.
        limit_bytes: u64,
        /// What is unused beyond so many bytes the holder is to give back.
        share_bytes: u64,
    },
    /// The holder stops for good: it uses its lease no more.
    Surrender,
}
