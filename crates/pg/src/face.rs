//! The face of a pool: the questions of this crate's core about the contents of keys.
//!
//! The core is the rest of this crate: epochs, members, versions, the window, leases, peering and backfill.
//! It orders changes to keys. If a step depends on what a key holds, and on which part of it lies at which
//! position, the core asks a [`Face`]. [`Copies`] is the face of replicated blocks. A pool whose positions
//! hold different data, such as parts of a stripe, has another face, which answers the same questions
//! differently.
//!
//! | the core asks | answer for copies | answer for parts of a stripe |
//! |---|---|---|
//! | does every position hold all of a key ([`Face::is_whole_everywhere`]) | yes: one member alone can read, fill and prove | no: a member's role is recorded, and in another role it has nothing |
//! | which units a change touches ([`Face::footprint`]) | those in its range | those, and their parity |
//! | what must be known before an operation starts ([`Face::needs`]) | nothing, or the block's extents | other parts: the core gathers them |
//! | what each position does for an operation ([`Gathering::prepare`]) | the same | a change to its own part |
//! | which version of a key stays ([`Face::adopt`]) | the newest, unless it was deleted | the newest, if enough members have it to reconstruct the rest; else the previous one |
//! | what is wrong with a key, given what members hold ([`Face::agree`]) | all must hold the same | parts must have the versions that part tables name; their bytes are compared by the core |
//! | what a position must hold ([`Gathering::content_at`]) | what the first source has, completed by others | what is reconstructed from enough others |
//!
//! Invariants
//!   1. Answers are values: a face never changes the PG.
//!   2. Data from one source is never replaced by data from another.
//!   3. An operation that needs its key's content starts when all earlier operations on that key have ended:
//!      nothing that it read is taken back later.

use std::fmt::Debug;
use std::ops::Range;

use base::{BlockSize, BufferPool, Checksum, Position, UNIT_SIZE, Version};
use format::wire::{Change, Content, Digest, Outcome, Refusal};

use super::MemberSet;
use super::operation::WriteKind;
use super::stripes::Stripes;
use super::units::{Held, Units};

/// What the core must know about the keys of one kind of pool. A face lives as long as the process.
pub trait Face: Debug + Sync {
    /// Returns whether every position holds all of a key, so that any acting member alone has everything that
    /// was acknowledged.
    fn is_whole_everywhere(&self) -> bool;

    /// Returns the face of stripes, if positions hold their parts.
    fn stripes(&self) -> Option<&Stripes> {
        None
    }

    /// Returns the number of blocks of data that an operation can reach under one key.
    fn data_count(&self) -> u32 {
        1
    }

    /// Returns the units of its key that an operation touches. Operations whose units overlap take turns.
    fn footprint(&self, kind: &WriteKind, block_size: BlockSize) -> Range<u32>;

    /// Returns what must be known about the key before an operation starts.
    fn needs(&self, kind: &WriteKind) -> Needs;

    /// Decides which version of a key is adopted, from the reports of all acting members, in the order of
    /// positions. At least one of them has the key.
    fn adopt(&self, stated: &[Statement]) -> Adoption;

    /// Returns the units of a key that are copied to a learner that lacks changes to the units in
    /// `changed`; `None`: all of its units.
    fn units_to_fill(&self, changed: Units) -> Option<Units>;

    /// Compares what the acting members hold of a key. `positions`: the position of each, in order. Requires:
    /// no change of the key is in flight.
    fn agree(&self, positions: &[Position], seen: &[Seen], block_size: BlockSize) -> Verdict;

    /// Begins to gather the wanted content of a key.
    fn gather(&self, wanted: Wanted) -> Box<dyn Gathering>;
}

/// What must be known about a key before an operation on it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: the operation may start while earlier ones are in flight.
    Nothing,
    /// Nothing, but all earlier operations on the key must have ended.
    Turn,
    /// The block's version and allocation in this OSD's store.
    Extents,
    /// What members hold: [`Gathering::prepare`] then decides what the operation does.
    Pieces,
}

/// A request to gather the content of a key.
pub struct Wanted {
    /// Why the content is wanted.
    pub purpose: WantedFor,
    /// Members that can supply the content: they hold all acknowledged writes, or the adopted version.
    pub sources: Vec<Source>,
    /// The pool's block size.
    pub block_size: BlockSize,
}

/// A member that can be asked for its part of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The member's index.
    pub index: usize,
    /// The position whose data it holds.
    pub position: Position,
}

/// Why the content of a key is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedFor {
    /// To run an operation that needs its key's content.
    Operation,
    /// To bring acting members to the adopted version. Units that the first source lost may come from an
    /// older version.
    Adoption,
    /// To bring acting members back to the version that the first source has.
    Return,
    /// To fill a learner, which needs these units; `None`: all units of the key.
    Learner(Option<Units>),
    /// To repair this OSD's copy, which has this version and lost these units.
    Mending(Version, Units),
}

/// A gathering of a key's content in progress: what is wanted, and what has arrived.
pub trait Gathering {
    /// Returns the member to ask next, and for which units (a bitmap; empty: all). `None`: nobody is left to
    /// ask, or nothing is missing.
    fn next(&mut self) -> Option<(usize, Vec<u64>)>;

    /// Adds a source's answer.
    fn take(&mut self, source: usize, answer: Held, buffers: &BufferPool);

    /// Returns whether parts came from several sources that should hold the same content: then all of them
    /// must get the result.
    fn is_mixed(&self) -> bool;

    /// Returns whether some data came from an older version: then no version was ever written with this
    /// content.
    fn is_older(&self) -> bool;

    /// Returns the version that was gathered; `ZERO`: the key does not exist.
    fn version(&self) -> Version;

    /// Returns the content that a position must hold, with this version. Units that no source could read are
    /// marked damaged, so that the position keeps no older data there.
    fn content_at(&self, position: Position, version: Version) -> Content;

    /// Returns what an operation does, now that the content of its key is known.
    fn prepare(&self, kind: WriteKind, buffers: &BufferPool) -> Prepared;
}

/// What an operation does.
pub enum Prepared {
    /// The operation changes its key.
    Change(Changed),
    /// The operation ends without a change.
    Answer(Result<Outcome, Refusal>),
}

/// A change to a key, for each position.
#[derive(Debug)]
pub enum Changed {
    /// The same change at every position.
    Everywhere(Change),
    /// A change for each position, by the position's index.
    ByPosition(Vec<Change>),
}

impl Changed {
    /// Returns the change for the member at a position, or for a learner that will take this position.
    pub fn at(&self, position: Position) -> Change {
        match self {
            Changed::Everywhere(change) => change.clone(),
            Changed::ByPosition(changes) => changes[position.index()].clone(),
        }
    }

    /// Returns the change for a position, like [`Changed::at`], but without copying it.
    pub fn into_change_at(self, position: Position) -> Change {
        match self {
            Changed::Everywhere(change) => change,
            Changed::ByPosition(mut changes) => changes.swap_remove(position.index()),
        }
    }
}

/// What an acting member reports about a key at the beginning of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The version that the member has; `ZERO`: none.
    pub version: Version,
    /// If the member does not have the key: any version of the key up to this one was deleted, and its
    /// tombstone may be gone.
    pub deleted_up_to: Version,
}

/// What happens to a key, given the reports of the acting members. Members are identified by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// Nothing changes: the members hold the same version.
    Same,
    /// The key was deleted.
    Remove {
        /// Members that still have the key.
        from: MemberSet,
    },
    /// The newest version is adopted.
    Forward {
        /// The newest version.
        newest: Version,
        /// Members to read it from, in this order.
        sources: Vec<usize>,
        /// Members that lack the newest version.
        to: MemberSet,
    },
    /// Too few members have the newest version to restore it: it was never acknowledged, so it is
    /// dropped.
    Back {
        /// The version that is dropped.
        newest: Version,
        /// Members that have the newest version.
        from: MemberSet,
        /// A member that has the previous version, to which the others go back.
        like: usize,
    },
}

/// What a member holds of a key, as a scrub saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The member's copy of the key.
    pub key: SeenKey,
    /// The member has dropped its tombstones up to this version.
    pub floor: Version,
}

/// What a member holds of a key, without the data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeenKey {
    /// Nothing, not even a tombstone.
    Gone,
    /// A tombstone.
    Tombstone(Version),
    /// A block.
    Block {
        /// The block's version.
        version: Version,
        /// The state of each unit of the block, in order.
        units: Vec<UnitSeen>,
        /// The part table of a parity part; empty if the block has none, or lost it.
        table: Vec<u8>,
    },
}

/// What a member holds of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitSeen {
    /// The unit reads as zeros.
    Zero,
    /// Data with this checksum.
    Data(Checksum),
    /// The unit's data is lost.
    Damaged,
}

impl Seen {
    /// Checks a digest and returns it; the error says what is wrong with it.
    pub fn of(digest: Digest, floor: Version, block_size: BlockSize) -> Result<Seen, String> {
        let key = match digest {
            Digest::Gone => SeenKey::Gone,
            Digest::Tombstone { version } if version > Version::ZERO => SeenKey::Tombstone(version),
            Digest::Block { version, written, damaged, checksums, table }
                if version > Version::ZERO =>
            {
                let bitmaps = [written, damaged].map(|it| Units::from_words(&it, block_size));
                let [Some(written), Some(damaged)] = bitmaps else {
                    return Err("a digest with units beyond the end of a block".into());
                };
                if written.count() != checksums.len() {
                    return Err("a digest without a checksum for each unit".into());
                }
                let mut checksums = checksums.into_iter();
                let unit = |unit| match written.has(unit) {
                    true => UnitSeen::Data(checksums.next().expect("they were counted")),
                    false if damaged.has(unit) => UnitSeen::Damaged,
                    false => UnitSeen::Zero,
                };
                let units = (0..block_size.unit_count()).map(unit).collect();
                SeenKey::Block { version, units, table }
            }
            _ => return Err("a digest of a block without a version".into()),
        };
        Ok(Seen { key, floor })
    }
}

impl SeenKey {
    /// Returns the version; `ZERO`: there is no block.
    pub fn version(&self) -> Version {
        match self {
            SeenKey::Gone => Version::ZERO,
            SeenKey::Tombstone(version) | SeenKey::Block { version, .. } => *version,
        }
    }

    /// Returns whether any unit holds data or has lost its data.
    pub fn has_units(&self) -> bool {
        match self {
            SeenKey::Gone | SeenKey::Tombstone(_) => false,
            SeenKey::Block { units, .. } => units.iter().any(|unit| *unit != UnitSeen::Zero),
        }
    }

    /// Returns the bytes of data that the member can read.
    pub fn data_bytes(&self) -> u64 {
        let SeenKey::Block { units, .. } = self else { return 0 };
        units.iter().filter(|unit| matches!(unit, UnitSeen::Data(_))).count() as u64 * UNIT_SIZE
    }
}

/// What is wrong with a key, and what repairs it. Members are identified by their index.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The faults, by member; empty: the members agree.
    pub faults: Vec<(usize, Fault)>,
    /// The repair. `None` with faults: it cannot be decided which content is right.
    pub remedy: Option<Remedy>,
}

/// What is wrong with a member's copy of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// Number of units that are affected; 0: the key as a whole.
    pub units: u32,
}

/// The kinds of faults that a copy can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// The copy cannot be read, or does not match its checksums; other members can read theirs.
    Damaged,
    /// The copy differs from other copies of the same version.
    Differs,
    /// No member can read the data.
    Lost,
    /// The member does not have the key.
    Missing,
    /// The key was not compared: the member did not answer in time, or epochs ended while members read the
    /// key.
    NotCompared,
    /// The member has an older version.
    Stale,
}

/// The repair of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// These members get a tombstone.
    Tombstone {
        /// The tombstone's version.
        version: Version,
        /// The members that get the tombstone.
        targets: MemberSet,
    },
    /// Units are copied between members.
    Block {
        /// The version of the block.
        version: Version,
        /// The members to read units from, with the units to read from each.
        fetch: Vec<(usize, Units)>,
        /// Members that get the whole block.
        whole: MemberSet,
        /// Members that get the units in `mend`.
        units: MemberSet,
        /// Units that are wrong at some of the members in `units`.
        mend: Units,
        /// Units that no member can read.
        lost: Units,
        /// Units that no member can read, and that become zeros because an operator accepts the loss.
        zeroed: Units,
    },
}
