//! The face of replicated blocks: every position holds the whole block. So any acting member alone can answer
//! reads ([`read`]), also over older layers ([`chain`]), and delete images by range ([`delete`]). A primary
//! with a slow disk reads from another member (`read_elsewhere`).

pub mod agree;
pub mod chain;
pub mod delete;
pub mod read;
pub(crate) mod read_elsewhere;

use std::collections::VecDeque;
use std::ops::Range;

use base::{BlockSize, BufferPool, Position, Version};
use format::wire::{Change, Content};

use crate::face::{
    Adoption, Face, Gathering, Needs, Prepared, Seen, Statement, Verdict, Wanted, WantedFor,
};
use crate::member_set::MemberSet;
use crate::operation::{Wants, WriteKind};
use crate::units::{Copied, Held, Units, units_of};

/// The face of replicated blocks: every position holds the whole block.
#[derive(Clone, Copy, Debug)]
pub struct Copies;

impl Face for Copies {
    fn is_whole_everywhere(&self) -> bool {
        true
    }

    fn footprint(&self, kind: &WriteKind, block_size: BlockSize) -> Range<u32> {
        units_named(kind, block_size)
    }

    fn needs(&self, kind: &WriteKind) -> Needs {
        match kind {
            WriteKind::Change { change: Change::Write { .. }, expected: None, .. } => {
                Needs::Nothing
            }
            WriteKind::Change { .. } => Needs::Extents,
            WriteKind::Read { .. } => unreachable!("reads of copies are not queued"),
            WriteKind::Hold | WriteKind::HandedOver => unreachable!("it leaves its key unchanged"),
        }
    }

    fn adopt(&self, stated: &[Statement]) -> Adoption {
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
        // Units that the newest copy lost come from older copies.
        let mut sources: Vec<usize> = (0..stated.len()).collect();
        sources.sort_by_key(|index| std::cmp::Reverse(stated[*index].version));
        Adoption::Forward { newest, sources, to: others }
    }

    fn units_to_fill(&self, changed: Units) -> Option<Units> {
        Some(changed)
    }

    fn agree(&self, _positions: &[Position], seen: &[Seen], block_size: BlockSize) -> Verdict {
        agree::agree(seen, block_size)
    }

    fn gather(&self, wanted: Wanted) -> Box<dyn Gathering> {
        let Wanted { purpose, sources, block_size } = wanted;
        let (wants, held, names_lost) = match purpose {
            WantedFor::Adoption => (None, None, true),
            WantedFor::Learner(units) => (units, None, true),
            WantedFor::Mending(version, lost) => {
                let held = Held::Copy(Copied::zeros(version, Units::default()));
                (Some(lost), Some(held), false)
            }
            WantedFor::Operation => unreachable!("an operation needs only this OSD's copy"),
            WantedFor::Return => unreachable!("copies never go back to an older version"),
        };
        Box::new(CopyGathering {
            wants,
            held,
            sources: sources.into_iter().map(|source| source.index).collect(),
            takes_older: purpose == WantedFor::Adoption,
            names_lost,
            is_mixed: false,
            is_older: false,
            block_size,
        })
    }
}

/// Returns the units to which an operation refers.
fn units_named(kind: &WriteKind, block_size: BlockSize) -> Range<u32> {
    let (first, end) = match kind {
        WriteKind::Change { change: Change::Write { offset, data, .. }, .. } => {
            units_of(*offset, data.len() as u32)
        }
        WriteKind::Change { change: Change::Zero { offset, length }, .. }
        | WriteKind::Read { wants: Wants::Data { offset, length }, .. } => {
            units_of(*offset, *length)
        }
        WriteKind::Change { change: Change::Delete, .. }
        | WriteKind::Read { wants: Wants::Allocation, .. }
        | WriteKind::HandedOver => (0, block_size.unit_count()),
        // No read waits for a hold.
        WriteKind::Hold => (0, 0),
    };
    first..end
}

/// Gathers a block: the first source's copy, and from other sources the units that the first one lost.
struct CopyGathering {
    /// The wanted units; `None`: the whole block.
    wants: Option<Units>,
    held: Option<Held>,
    /// Members to ask, in order.
    sources: VecDeque<usize>,
    /// Units that the first source lost may come from an older version. If false, all sources hold the same
    /// version.
    takes_older: bool,
    /// Units that no source could read are marked damaged in the content. If false, they are left out.
    names_lost: bool,
    is_mixed: bool,
    is_older: bool,
    block_size: BlockSize,
}

impl CopyGathering {
    /// Returns the units that are wanted and have not arrived yet.
    fn missing(&self) -> Units {
        let wants = self.wants.unwrap_or(Units::from_range(0..self.block_size.unit_count()));
        match &self.held {
            None => wants,
            Some(Held::Gone | Held::Tombstone(_)) => Units::default(),
            Some(Held::Copy(copied)) => wants.without(&copied.units),
        }
    }
}

impl Gathering for CopyGathering {
    fn next(&mut self) -> Option<(usize, Vec<u64>)> {
        let missing = self.missing();
        let is_done = self.held.is_some() && missing.is_empty();
        let wants_whole = self.held.is_none() && self.wants.is_none();
        let source = self.sources.pop_front().filter(|_| !is_done)?;
        Some((source, if wants_whole { Vec::new() } else { missing.words(self.block_size) }))
    }

    fn take(&mut self, _source: usize, answer: Held, buffers: &BufferPool) {
        let missing = self.missing();
        let known = match &mut self.held {
            None => {
                self.held = Some(answer);
                return;
            }
            Some(Held::Copy(known)) => known,
            Some(Held::Gone | Held::Tombstone(_)) => unreachable!("no unit is missing"),
        };
        let is_same = answer.version() == known.version;
        let more = match answer {
            Held::Copy(copied) if is_same || self.takes_older => copied,
            Held::Gone | Held::Tombstone(_) if self.takes_older => {
                Copied::zeros(known.version, missing)
            }
            _ => return,
        };
        self.is_mixed |= !more.units.is_empty();
        self.is_older |= !more.units.is_empty() && !is_same;
        let before = known.units;
        known.complete_with(&more, buffers);
        assert!(before.without(&known.units).is_empty());
    }

    fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    fn is_older(&self) -> bool {
        self.is_older
    }

    fn version(&self) -> Version {
        self.held.as_ref().map_or(Version::ZERO, Held::version)
    }

    fn content_at(&self, _position: Position, version: Version) -> Content {
        let lost = if self.names_lost { self.missing() } else { Units::default() };
        let mut held = self.held.clone().expect("the first source answered");
        if let Held::Copy(copied) = &mut held {
            copied.version = version;
        }
        held.into_content(self.block_size, &lost)
    }

    fn prepare(&self, _kind: WriteKind, _buffers: &BufferPool) -> Prepared {
        unreachable!("an operation needs only this OSD's copy")
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;

    use crate::face::Source;

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
        assert_eq!(Copies.adopt(&stated(&[4, 4, 4])), Adoption::Same);
        let forward = |newest, sources: &[usize], to: &[usize]| Adoption::Forward {
            newest: version(newest),
            sources: sources.to_vec(),
            to: members(to),
        };
        assert_eq!(Copies.adopt(&stated(&[4, 7, 4])), forward(7, &[1, 0, 2], &[0, 2]));
        assert_eq!(Copies.adopt(&stated(&[0, 7, 7])), forward(7, &[1, 2, 0], &[0]));
    }

    #[test]
    fn a_key_is_removed_where_a_member_without_it_proves_its_deletion() {
        let mut all = stated(&[4, 0, 5]);
        all[1].deleted_up_to = version(4);
        let stays = |all: &[Statement]| matches!(Copies.adopt(all), Adoption::Forward { .. });
        assert!(stays(&all), "that was an older one");
        all[1].deleted_up_to = version(5);
        assert_eq!(Copies.adopt(&all), Adoption::Remove { from: members(&[0, 2]) });
        // A member that has the key proves no deletion.
        let mut all = stated(&[4, 5, 5]);
        all[0].deleted_up_to = version(9);
        assert!(stays(&all));
    }

    #[test]
    fn what_is_lost_comes_from_the_same_version_or_where_that_may_be_from_an_older_one() {
        let buffers = BufferPool::default();
        let copy = |counter, units| Held::Copy(Copied::zeros(version(counter), units));
        let some = |units: Range<u32>| Units::from_range(units);
        let sources = |count: usize| {
            let sources = (0..count).zip(Position::all());
            sources.map(|(index, position)| Source { index, position }).collect()
        };
        let gather = |purpose, count| {
            let block_size = BlockSize::MIN;
            Copies.gather(Wanted { purpose, sources: sources(count), block_size })
        };
        let words = |units: Units| units.words(BlockSize::MIN);
        let damaged = |gathering: &dyn Gathering| match gathering
            .content_at(Position::all().next().unwrap(), version(7))
        {
            Content::Block { damaged, .. } => damaged,
            other => panic!("{other:?}"),
        };
        for purpose in [WantedFor::Learner(None), WantedFor::Adoption] {
            let mut one = gather(purpose, 2);
            assert_eq!(one.next(), Some((0, Vec::new())), "the whole block");
            one.take(0, copy(7, some(0..3)), &buffers);
            assert_eq!(one.next(), Some((1, words(some(3..4)))));
            one.take(1, copy(6, some(0..4)), &buffers);
            let takes_older = purpose == WantedFor::Adoption;
            assert_eq!((one.is_mixed(), one.is_older()), (takes_older, takes_older));
            let lost = if takes_older { Units::default() } else { some(3..4) };
            assert_eq!(damaged(&*one), words(lost));
            assert_eq!((one.next(), one.version()), (None, version(7)));
        }
        let mut other = gather(WantedFor::Mending(version(7), some(1..2)), 3);
        assert_eq!(other.next(), Some((0, words(some(1..2)))));
        other.take(0, copy(7, some(1..2)), &buffers);
        assert_eq!(other.next(), None, "nothing is missing");
        assert!(other.is_mixed() && !other.is_older());
    }
}
