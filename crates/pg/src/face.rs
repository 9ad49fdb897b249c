//! The face of a pool: what the core of this crate asks about the contents of keys.
//!
//! The core is the rest of this crate: epochs, members, versions, the window, leases, peering and
//! backfill. It orders changes of keys. Where a step depends on what a key holds, and on which part of it
//! lies at which position, the core asks a [`Face`]. [`Copies`] is the face of replicated blocks. A pool
//! whose positions hold different things, such as pieces of a stripe, answers the same questions differently.
//!
//! | the core asks | copies answer | pieces of a stripe answer |
//! |---|---|---|
//! | does every position hold all of a key ([`Face::is_whole_everywhere`]) | yes: one reads, fills and proves alone | no: a role is recorded, and a member that changes it has nothing |
//! | which units a change touches ([`Face::footprint`]) | those that it names | those, and their parity |
//! | what must be known before it starts ([`Face::needs`]) | nothing, or the block's extents | other pieces: the core gathers them |
//! | what each position does for it ([`Gathering::prepare`]) | the same | its own piece |
//! | which version of a key stays ([`Face::adopt`]) | the newest, unless it was deleted | the newest, if enough have it to make the rest; else the one before |
//! | what a position is to hold ([`Gathering::content_at`]) | what the first source has, completed by others | what enough others make of it |
//!
//! Invariants
//!   1. Answers are values: nothing here changes the PG.
//!   2. What one source gave is never replaced by what another one has.
//!   3. An operation that needs to know its key starts when all earlier ones of that key have ended:
//!      nothing that it read is ever taken back.

use std::fmt::Debug;
use std::ops::Range;

use base::{BlockSize, BufferPool, Position, Version};
use format::wire::{Change, Content, Outcome, Refusal};

use super::MemberSet;
use super::operation::WriteKind;
use super::units::{Held, Units};

/// What a kind of pool knows of its keys. A face lives as long as the process.
pub trait Face: Debug + Sync {
    /// Whether every position holds all of a key, so that any acting member alone has everything that
    /// was acknowledged.
    fn is_whole_everywhere(&self) -> bool;

    /// The units of its key that an operation touches: those that overlap take turns.
    fn footprint(&self, kind: &WriteKind, block_size: BlockSize) -> Range<u32>;

    /// What must be known of the key before an operation starts.
    fn needs(&self, kind: &WriteKind) -> Needs;

    /// Judges what all acting members state of a key that one of them has. In the order of positions.
    fn adopt(&self, stated: &[Statement]) -> Adoption;

    /// What of a key is copied to a learner that lacks changes of these units; `None`: all of it.
    fn units_to_fill(&self, changed: Units) -> Option<Units>;

    /// Begins to gather what is wanted of a key.
    fn gather(&self, wanted: Wanted) -> Box<dyn Gathering>;
}

/// What must be known of a key before an operation on it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: it may follow an operation that has not ended.
    Nothing,
    /// All earlier operations of the key have ended.
    Turn,
    /// What this OSD's store says of the block.
    Extents,
    /// What members hold: the answer is [`Gathering::prepare`]'s.
    Pieces,
}

/// What is wanted of a key.
pub struct Wanted {
    /// What for.
    pub purpose: WantedFor,
    /// Members that it can come from: they hold what was acknowledged, or the version that stays.
    pub sources: Vec<Source>,
    /// Of its pool.
    pub block_size: BlockSize,
}

/// A member that can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// Its index.
    pub index: usize,
    /// What it holds.
    pub position: Position,
}

/// What something is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedFor {
    /// An operation that must know its key.
    Operation,
    /// Acting members lack the version that stays. Units that the first source lost may come from an older
    /// version.
    Adoption,
    /// Acting members that go back to the version that the first source has.
    Return,
    /// A learner; `None`: all of it.
    Learner(Option<Units>),
    /// This OSD, which has this version and lost these units of it.
    Mending(Version, Units),
}

/// What is wanted of a key, and what has come of it.
pub trait Gathering {
    /// The member to ask next, and for which units (a bitmap; empty: all). `None`: no more members.
    fn next(&mut self) -> Option<(usize, Vec<u64>)>;

    /// A source answered.
    fn take(&mut self, source: usize, answer: Held, buffers: &BufferPool);

    /// Whether parts came from several sources that hold the same: all are to have them.
    fn is_mixed(&self) -> bool;

    /// Whether something came from an older version: then the content is that of no version that was
    /// written.
    fn is_older(&self) -> bool;

    /// The version that came; `ZERO`: there is nothing.
    fn version(&self) -> Version;

    /// What a position is to hold, under this version. Units that nobody could read are named as damaged, so
    /// that the position keeps no older data there.
    fn content_at(&self, position: Position, version: Version) -> Content;

    /// What an operation does, now that its key is known.
    fn prepare(&self, kind: WriteKind, buffers: &BufferPool) -> Prepared;
}

/// What an operation does.
pub enum Prepared {
    /// It changes its key.
    Change(Changed),
    /// It ends without a change.
    Answer(Result<Outcome, Refusal>),
}

/// A change of a key, for each position.
#[derive(Debug)]
pub enum Changed {
    /// The same everywhere.
    Everywhere(Change),
    /// To each its own, by position.
    ByPosition(Vec<Change>),
}

impl Changed {
    /// What the member at a position, or a learner for it, does.
    pub fn at(&self, position: Position) -> Change {
        match self {
            Changed::Everywhere(change) => change.clone(),
            Changed::ByPosition(changes) => changes[position.index()].clone(),
        }
    }

    /// The same for the last position that is asked for, without a copy.
    pub fn into_change_at(self, position: Position) -> Change {
        match self {
            Changed::Everywhere(change) => change,
            Changed::ByPosition(mut changes) => changes.swap_remove(position.index()),
        }
    }
}

/// What an acting member states of a key at the beginning of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The version that it has; `ZERO`: none.
    pub version: Version,
    /// If it has none: a version up to this one was deleted, and the tombstone may be gone.
    pub deleted_up_to: Version,
}

/// What becomes of a key, of which acting members state this; members by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// They hold the same version.
    Same,
    /// It was deleted.
    Remove {
        /// Members that still have it.
        from: MemberSet,
    },
    /// The newest version stays.
    Forward {
        /// Which one.
        newest: Version,
        /// Whom to read it from, in this order.
        sources: Vec<usize>,
        /// Who lacks it.
        to: MemberSet,
    },
    /// Too few members have the newest version to restore it: it was never acknowledged, so it is
    /// dropped.
    Back {
        /// Which one goes.
        newest: Version,
        /// Who has it.
        from: MemberSet,
        /// One that has the version before, which they get again.
        like: usize,
    },
}
