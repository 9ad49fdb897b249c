//! What a primary asks members, and how far the talk with each is.

use blockstore::BlockKey;

/// How far the talk with a member is. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contact {
    /// There is no connection.
    Away,
    /// It was asked how it stands.
    Asked,
    /// It answered.
    Known,
    /// It cannot go on in this epoch.
    Out,
}

/// A question to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub peer: usize,
    pub what: Asked,
}

/// See [`Ask`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Blocks, to compare those of acting members.
    Compare,
    /// Blocks that a learner holds and the PG did not adopt.
    Intake,
    /// Blocks of a learner, for a full comparison.
    Listing,
    /// A block for a job.
    Fetch { job: usize },
    /// A repair for the same blocks on all acting members.
    Adopt { job: usize },
    /// A fill.
    Fill { key: BlockKey, bytes: u64 },
    /// A learner's cursor.
    Progress,
    /// Everything so far, durably.
    Sync,
    /// A record by which it states nothing of a version that goes.
    Drop,
}
