//! Layouts of a store on its device. See `docs/internals/disk.md`.
//!
//! All integers are little-endian. Everything that is written carries a checksum, and what lies
//! in the journal or the checkpoint area carries the store's tag too, so that another store's
//! bytes never fit.

use std::fmt;

use base::{ImageId, PgId, PoolId, StripeIndex};

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
    /// A copy of the cluster's state.
    Cluster,
}

/// One store, drawn at random when it is made; printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(u128);

impl StoreId {
    /// Any number is a valid value.
    pub const fn new(number: u128) -> StoreId {
        StoreId(number)
    }

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

/// When a write is durable. Frozen when the store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitMode {
    /// Writes are made durable by a flush of the device's cache, which covers a group of them.
    Fsync,
    /// Each write is durable by itself (RWF_DSYNC).
    Immediate,
}

impl fmt::Display for CommitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommitMode::Fsync => "fsync",
            CommitMode::Immediate => "immediate",
        })
    }
}
