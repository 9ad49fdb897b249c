//! The face of a pool of copies: what a key holds, and what of it lies at which position.
//!
//! The rest of this crate is the core: epochs, members, versions, the window, leases, peering and
//! backfill. It orders changes of keys, and where a step depends on what a key holds it asks here. A
//! pool whose positions hold different things, as pieces of a stripe, answers the same questions
//! otherwise.
//!
//! | the core asks | copies answer |
//! |---|---|
//! | which part of its key a change touches ([`footprint`]) | the units that it names |
//! | what a position does for a change ([`change_at`]) | the same everywhere |
//! | what becomes of a key that acting members state in different versions ([`adopt`]) | the newest wins, unless a member proves that it was deleted |
//! | whom to read a key from ([`sources`]) | anybody who holds everything: one, and others for what that one lost |
//! | what of it is missing still, and what an answer adds ([`Gathering`]) | units that no source has given |
//!
//! Invariants
//!   1. Answers are values: nothing here changes the PG.
//!   2. What one source gave is never replaced by what another one has.

use std::ops::Range;

use base::{BlockSize, BufferPool, Position, Version};
use format::wire::Change;

use super::units::{Copied, Held, Units};
use super::write::WriteKind;
use super::{MemberSet, units_of};

/// The units of its block that a write touches: those that overlap take turns.
pub fn footprint(kind: &WriteKind, block_size: BlockSize) -> Range<u32> {
    let (first, end) = match kind {
        WriteKind::Write { offset, data, .. } => units_of(*offset, data.len() as u32),
        WriteKind::Zero { offset, length, .. } => units_of(*offset, *length),
        WriteKind::Delete | WriteKind::HandedOver => (0, block_size.unit_count()),
        // No read waits for it.
        WriteKind::Hold => (0, 0),
    };
    first..end
}

/// What the member at a position, or a learner for it, does for a change.
pub fn change_at(change: &Change, _position: Position) -> Change {
    change.clone()
}

/// What an acting member states of a key at the beginning of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The version that it has; `ZERO`: none.
    pub version: Version,
    /// Where it has none: a key of a version up to this one was deleted, and the tombstone is gone.
    pub deleted_up_to: Version,
}

/// What becomes of a key, of which acting members state this; members by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// They hold the same.
    Same,
    /// It was deleted.
    Remove {
        /// Who has it still.
        from: MemberSet,
    },
    /// It is copied.
    Copy {
        /// The version that wins.
        newest: Version,
        /// Whom to read it from, in this order: what the newest copy lost comes from older ones.
        sources: Vec<usize>,
        /// Who lacks it.
        to: MemberSet,
    },
}

/// Judges what all acting members state of a key that one of them has.
pub fn adopt(stated: &[Statement]) -> Adoption {
    let newest = stated.iter().map(|statement| statement.version).max().unwrap_or_default();
    let lacks = |statement: &&Statement| statement.version == Version::ZERO;
    let is_deleted = stated.iter().filter(lacks).any(|it| newest <= it.deleted_up_to);
    let mut others = MemberSet::default();
    for (index, statement) in stated.iter().enumerate() {
        let stays = if is_deleted { Version::ZERO } else { newest };
        if statement.version != stays {
            others.add(index);
        }
    }
    if is_deleted {
        return Adoption::Remove { from: others };
    }
    if others.is_empty() {
        return Adoption::Same;
    }
    let mut sources: Vec<usize> = (0..stated.len()).collect();
    sources.sort_by_key(|index| std::cmp::Reverse(stated[*index].version));
    Adoption::Copy { newest, sources, to: others }
}

/// Whom to read a key from, of these members, who hold everything: each has all of it.
pub fn sources(whole: impl Iterator<Item = usize>) -> Vec<usize> {
    whole.collect()
}

/// What is wanted of a key, and what has come of it.
pub struct Gathering {
    /// `None`: the whole block.
    wants: Option<Units>,
    held: Option<Held>,
    /// Some units came from another source than the first.
    pub is_mixed: bool,
    /// Some units came from a copy of an older version.
    pub is_older: bool,
}

impl Gathering {
    /// Nothing has come yet. `None`: the whole block is wanted.
    pub fn of(wants: Option<Units>) -> Gathering {
        Gathering { wants, held: None, is_mixed: false, is_older: false }
    }

    /// It is known that nothing is there.
    pub fn of_nothing() -> Gathering {
        Gathering { held: Some(Held::Gone), ..Gathering::of(None) }
    }

    /// Of a block whose version is known, some units.
    pub fn of_lost(version: Version, lost: Units) -> Gathering {
        let held = Held::Copy(Copied::zeros(version, Units::default()));
        Gathering { held: Some(held), ..Gathering::of(Some(lost)) }
    }

    /// Whether everything is wanted, whatever it is.
    pub fn wants_whole(&self) -> bool {
        self.held.is_none() && self.wants.is_none()
    }

    /// Units that are wanted and did not come yet.
    pub fn missing(&self, block_size: BlockSize) -> Units {
        let wants = self.wants.unwrap_or(Units::from_range(0..block_size.unit_count()));
        match &self.held {
            None => wants,
            Some(Held::Gone | Held::Tombstone(_)) => Units::default(),
            Some(Held::Copy(copied)) => wants.without(&copied.units),
        }
    }

    /// Whether nothing more is to be asked for.
    pub fn is_done(&self, block_size: BlockSize) -> bool {
        self.held.is_some() && self.missing(block_size).is_empty()
    }

    /// A source answered. `takes_older`: what the first one lost may come from an older version; else all
    /// hold the same one.
    pub fn take(
        &mut self,
        answer: Held,
        takes_older: bool,
        block_size: BlockSize,
        buffers: &BufferPool,
    ) {
        let missing = self.missing(block_size);
        let known = match &mut self.held {
            None => {
                self.held = Some(answer);
                return;
            }
            Some(Held::Copy(known)) => known,
            Some(Held::Gone | Held::Tombstone(_)) => unreachable!("nothing is missing of it"),
        };
        let is_same = answer.version() == known.version;
        let more = match answer {
            Held::Copy(copied) if is_same || takes_older => copied,
            Held::Gone | Held::Tombstone(_) if takes_older => Copied::zeros(known.version, missing),
            _ => return,
        };
        self.is_mixed |= !more.units.is_empty();
        self.is_older |= !more.units.is_empty() && !is_same;
        let before = known.units;
        known.complete_with(&more, buffers);
        assert!(before.without(&known.units).is_empty());
    }

    /// What has come. Requires: the first source answered.
    pub fn into_held(self) -> Held {
        self.held.expect("the first source answered")
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;

    use super::*;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(3), counter }
    }

    fn stated(versions: &[u64]) -> Vec<Statement> {
        let number = |number: &u64| if *number == 0 { Version::ZERO } else { version(*number) };
        let statement = |at: &u64| Statement { version: number(at), deleted_up_to: Version::ZERO };
        versions.iter().map(statement).collect()
    }

    fn members(indices: &[usize]) -> MemberSet {
        let mut set = MemberSet::default();
        indices.iter().for_each(|index| set.add(*index));
        set
    }

    #[test]
    fn the_newest_version_goes_to_all_others_and_is_read_first() {
        assert_eq!(adopt(&stated(&[4, 4, 4])), Adoption::Same);
        let copy = |newest, sources: &[usize], to: &[usize]| Adoption::Copy {
            newest: version(newest),
            sources: sources.to_vec(),
            to: members(to),
        };
        assert_eq!(adopt(&stated(&[4, 7, 4])), copy(7, &[1, 0, 2], &[0, 2]));
        assert_eq!(adopt(&stated(&[0, 7, 7])), copy(7, &[1, 2, 0], &[0]));
    }

    #[test]
    fn a_key_is_removed_where_a_member_without_it_proves_its_deletion() {
        let mut all = stated(&[4, 0, 5]);
        all[1].deleted_up_to = version(4);
        let is_copied = |all: &[Statement]| matches!(adopt(all), Adoption::Copy { .. });
        assert!(is_copied(&all), "that was an older one");
        all[1].deleted_up_to = version(5);
        assert_eq!(adopt(&all), Adoption::Remove { from: members(&[0, 2]) });
        // Who has it proves nothing.
        let mut all = stated(&[4, 5, 5]);
        all[0].deleted_up_to = version(9);
        assert!(is_copied(&all));
    }

    #[test]
    fn what_is_lost_comes_from_the_same_version_or_where_that_may_be_from_an_older_one() {
        let size = BlockSize::MIN;
        let buffers = BufferPool::default();
        let copy = |counter, units| Held::Copy(Copied::zeros(version(counter), units));
        let some = |units: Range<u32>| Units::from_range(units);
        let mut one = Gathering::of(None);
        assert!(one.wants_whole() && !one.is_done(size));
        one.take(copy(7, some(0..3)), false, size, &buffers);
        assert_eq!((one.missing(size), one.is_mixed), (some(3..4), false));
        one.take(copy(6, some(0..4)), false, size, &buffers);
        assert_eq!((one.missing(size), one.is_mixed), (some(3..4), false));
        one.take(copy(6, some(0..4)), true, size, &buffers);
        assert!(one.is_done(size) && one.is_mixed && one.is_older);
        assert_eq!(one.into_held().version(), version(7));
        let mut other = Gathering::of_lost(version(7), some(1..2));
        assert_eq!(other.missing(size), some(1..2));
        other.take(copy(7, some(1..2)), false, size, &buffers);
        assert!(other.is_done(size) && other.is_mixed && !other.is_older);
        assert!(Gathering::of_nothing().is_done(size));
    }
}
