//! What is asked of a store: requests without an answer, and what comes after a restart.

use std::ops::Range;

use base::PgId;
use blockstore::{BlockKey, NoteKey};
use format::disk::UnitSet;

/// An open request, and what its answer is compared with.
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
    /// A repair that says what is there.
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

/// What a restart wants asked.
#[derive(Debug)]
pub(super) enum Todo {
    Read(BlockKey, Range<u32>),
    Absolve(PgId),
}
