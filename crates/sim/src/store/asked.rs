//! Requests to a store: unanswered requests, and requests to send next after a restart or a settle.

use std::ops::Range;

use base::{PgId, Version};
use blockstore::{AsOf, BlockKey, NoteKey};
use format::disk::UnitSet;

use super::asks::Target;
use super::object_blocks::BlockAsked;
use super::objects::RecordsAsked;
use super::parity::ParityAsked;

/// An unanswered request, with the information needed to check its answer.
#[derive(Debug)]
pub(super) enum Asked {
    Change {
        key: BlockKey,
        order: u64,
    },
    Read {
        key: BlockKey,
        order: u64,
        units: Range<u32>,
    },
    Extents {
        key: BlockKey,
        order: u64,
    },
    Copy {
        key: BlockKey,
        order: u64,
        units: UnitSet,
    },
    /// A repair that rewrites the current content of a block.
    Mend,
    Note {
        key: NoteKey,
        order: u64,
    },
    Sync {
        order: u64,
        /// The newest version of each PG in pools that keep parity.
        lasts: Vec<(PgId, Version)>,
    },
    Floor,
    /// A portion of a check of the store's metadata.
    Metadata,
    Commit,
    Parity(ParityAsked),
    /// A batch, forward or page of the object pool.
    Batch {
        pg: PgId,
        number: u64,
    },
    /// A batch that does not follow the PG's last version.
    Unordered,
    Records(RecordsAsked),
    /// A read of a block of the object pool.
    ObjectBlock(BlockAsked),
    /// The creation or removal of the family of the object pool.
    Family {
        creates: bool,
    },
    Absolve {
        pg: PgId,
    },
}

/// A request that takes precedence over random requests, after a restart or around a settle or commit.
#[derive(Debug)]
pub(super) enum Todo {
    Read(BlockKey, Range<u32>),
    ParityRead(BlockKey, AsOf, Range<u32>),
    ParityWrite(Target),
    ParityMend(Target),
    ParityTakeBack { pg: PgId, tries: u32 },
    ParityCopy(BlockKey, AsOf, Range<u32>),
    Absolve(PgId),
}
