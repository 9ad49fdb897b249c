//! Requests to a store: those without an answer, and those that follow a restart.

use std::ops::Range;

use base::PgId;
use blockstore::{BlockKey, NoteKey};
use format::disk::UnitSet;

/// A request without an answer, with what its answer is compared with.
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
    /// A repair that writes what the block already holds.
    Mend,
    Note {
        key: NoteKey,
        order: u64,
    },
    Sync {
        order: u64,
    },
    Floor,
    Absolve {
        pg: PgId,
    },
}

/// A request that follows a restart.
#[derive(Debug)]
pub(super) enum Todo {
    Read(BlockKey, Range<u32>),
    Absolve(PgId),
}
