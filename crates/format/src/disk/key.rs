//! Names of blocks and notes, and where a block lies.

use base::{ImageId, PgId, PoolId, StripeIndex};

/// Location of a block that has no place in the data area.
pub const LOCATION_NONE: u32 = u32::MAX;
/// Locations count in steps of the smallest block, in bytes.
pub const LOCATION_STEP: u64 = 16 << 10;

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

/// Names a note: small durable facts of the layers above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoteKey {
    /// The newest entry of a PG and its activation record.
    Pg(PgId),
    /// What an OSD keeps of the map.
    Cluster,
    /// A difference in its copy of the cluster's state, by number: from 1 on.
    State(u32),
}

impl NoteKey {
    /// As it stands in a journal entry and in a checkpoint: a PG, and a number where there is none.
    pub fn parts(self) -> (Option<PgId>, u32) {
        match self {
            NoteKey::Pg(pg) => (Some(pg), 0),
            NoteKey::Cluster => (None, 0),
            NoteKey::State(number) => (None, number),
        }
    }

    /// The key with these [`NoteKey::parts`].
    pub fn of_parts(pg: Option<PgId>, number: u32) -> NoteKey {
        match (pg, number) {
            (Some(pg), _) => NoteKey::Pg(pg),
            (None, 0) => NoteKey::Cluster,
            (None, number) => NoteKey::State(number),
        }
    }

    /// The PG that the note belongs to.
    pub fn pg(self) -> Option<PgId> {
        self.parts().0
    }
}
