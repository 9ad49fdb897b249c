//! Keys of blocks and notes, and locations of blocks.

use base::{ImageId, PgId, PoolId, StripeIndex};

/// Location of a block that has no place in the data area.
pub const LOCATION_NONE: u32 = u32::MAX;
/// Unit of a location, in bytes: the size of the smallest block. Locations count these steps.
pub const LOCATION_STEP: u64 = 16 << 10;

/// The key of a block. The order is such that a PG is one range of keys, at any power-of-two PG count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The pool.
    pub pool: PoolId,
    /// `base::hash::stripe_hash` of (seed, stripe).
    pub hash: u32,
    /// The layer.
    pub image: ImageId,
    /// The index of the block in the image.
    pub stripe: StripeIndex,
}

/// The key of a note. Notes are small durable facts of the layers above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoteKey {
    /// The newest entry of a PG and its activation record.
    Pg(PgId),
    /// The part of the map that an OSD stores.
    Cluster,
    /// A change in the OSD's copy of the cluster's state, by number, counted from 1.
    State(u32),
    /// Progress and findings of the scrubs of a PG.
    Scrub(PgId),
}

impl NoteKey {
    /// Returns the key as it is stored in a journal entry and in a checkpoint: the PG, if any, and a number.
    pub fn parts(self) -> (Option<PgId>, u32) {
        match self {
            NoteKey::Pg(pg) => (Some(pg), 0),
            NoteKey::Cluster => (None, 0),
            NoteKey::State(number) => (None, number),
            NoteKey::Scrub(pg) => (Some(pg), 1),
        }
    }

    /// Returns the key with these [`NoteKey::parts`].
    pub fn of_parts(pg: Option<PgId>, number: u32) -> NoteKey {
        match (pg, number) {
            (Some(pg), 1) => NoteKey::Scrub(pg),
            (Some(pg), _) => NoteKey::Pg(pg),
            (None, 0) => NoteKey::Cluster,
            (None, number) => NoteKey::State(number),
        }
    }

    /// Returns the PG that the note belongs to.
    pub fn pg(self) -> Option<PgId> {
        self.parts().0
    }
}
