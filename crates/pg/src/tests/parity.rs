//! A second face on the same core: a block is stored as two halves, called pieces, and their XOR. Each has a
//! position of its own.
//!
//! ```text
//!   block      a b c d          a unit is one number
//!   position 0 a b | what was there before the last write
//!   position 1 c d | ...
//!   position 2 a^c b^d | ...
//! ```
//!
//! Every write changes all three. Each position keeps its previous piece in addition to the new one: if fewer
//! than two have the new one, the write is taken back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::{BlockSize, BufferPool, Position, Version};
use format::wire::{Change, Content, Outcome, PeerBody, Refusal};

use super::model::{data_of, values_of};
use super::world::{World, osd_id};
use super::{BLOCK_SIZE, UNIT, UNITS};
use crate::MemberSet;
use crate::face::{
    Adoption, Changed, Face, Gathering, Needs, Prepared, Seen, Statement, Verdict, Wanted,
    WantedFor,
};
use crate::operation::{Wants, WriteKind};
use crate::units::{Held, Units};

/// Units of a piece.
const PIECE: usize = UNITS as usize / 2;
/// Number of positions from which the others can be computed.
const ENOUGH: usize = 2;

type Piece = [u32; PIECE];

/// Two pieces and their XOR.
#[derive(Clone, Copy, Debug)]
pub struct Parity;

/// What a position holds of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pieces {
    pub version: Version,
    pub now: Piece,
    before: Piece,
}

impl Pieces {
    pub fn of(version: Version, units: &BTreeMap<u32, u32>) -> Pieces {
        let unit = |at: usize| units.get(&(at as u32)).copied().unwrap_or(0);
        let now = std::array::from_fn(unit);
        Pieces { version, now, before: std::array::from_fn(|at| unit(PIECE + at)) }
    }

    fn of_held(held: Held) -> Pieces {
        match held.into_content(BLOCK_SIZE, &Units::default()) {
            Content::Gone => Pieces::default(),
            Content::Tombstone { .. } => panic!("nothing is deleted"),
            Content::Block { version, written, data, damaged, .. } => {
                assert_eq!(damaged, [0]);
                let data = data.as_ref().map(|data| &data[..]).unwrap_or_default();
                let values = values_of(data, written[0].count_ones());
                let units = (0..UNITS).filter(|unit| written[0] & (1 << unit) != 0);
                Pieces::of(version, &units.zip(values).collect())
            }
        }
    }
}

pub fn xor(one: &Piece, other: &Piece) -> Piece {
    std::array::from_fn(|at| one[at] ^ other[at])
}

impl Face for Parity {
    fn is_whole_everywhere(&self) -> bool {
        false
    }

    fn footprint(&self, _kind: &WriteKind, block_size: BlockSize) -> Range<u32> {
        0..block_size.unit_count()
    }

    fn needs(&self, _kind: &WriteKind) -> Needs {
        Needs::Pieces
    }

    fn adopt(&self, stated: &[Statement]) -> Adoption {
        let newest = stated.iter().map(|it| it.version).max().unwrap_or_default();
        let (mut from, mut to) = (MemberSet::default(), MemberSet::default());
        for (index, statement) in stated.iter().enumerate() {
            if statement.version == newest { from.add(index) } else { to.add(index) }
        }
        match to.iter().next() {
            None => Adoption::Same,
            Some(_) if from.count() >= ENOUGH => {
                Adoption::Forward { newest, sources: from.iter().collect(), to }
            }
            Some(like) => Adoption::Back { newest, from, like },
        }
    }

    fn units_to_fill(&self, _changed: Units) -> Option<Units> {
        None
    }

    fn agree(&self, _: &[Position], _seen: &[Seen], _block_size: BlockSize) -> Verdict {
        // Scrubs of stripes are tested with the faces that ship.
        Verdict::default()
    }

    fn gather(&self, wanted: Wanted) -> Box<dyn Gathering> {
        let Wanted { purpose, sources, .. } = wanted;
        let count = if purpose == WantedFor::Return { sources.len() } else { ENOUGH };
        assert!(sources.len() >= count, "too few are there to serve");
        let asks = sources[..count].iter().map(|source| (source.index, source.position)).collect();
        Box::new(Stripe { purpose, asks, asked: None, held: BTreeMap::new(), versions: Vec::new() })
    }
}

struct Stripe {
    purpose: WantedFor,
    asks: VecDeque<(usize, Position)>,
    asked: Option<(usize, Position)>,
    held: BTreeMap<usize, Pieces>,
    /// The versions of the members that answered, in the order of their answers.
    versions: Vec<Version>,
}

impl Stripe {
    fn piece(&self, position: usize) -> Piece {
        let known = |position: usize| self.held.get(&position).map(|pieces| pieces.now);
        known(position).unwrap_or_else(|| {
            let others = [(position + 1) % 3, (position + 2) % 3];
            let [one, other] = others.map(|it| known(it).expect("two of three are there"));
            xor(&one, &other)
        })
    }

    fn values(&self) -> Vec<u32> {
        [self.piece(0), self.piece(1)].concat()
    }

    /// Returns a write of the whole block. Each position keeps its previous piece in addition.
    fn change(&self, values: &[u32]) -> Prepared {
        let (one, other) = values.split_at(PIECE);
        let [one, other]: [Piece; 2] = [one, other].map(|piece| piece.try_into().unwrap());
        let change = |(position, now): (usize, Piece)| {
            let (checksums, data) = data_of(&[now, self.piece(position)].concat());
            Change::Write { offset: 0, checksums, data }
        };
        let now = [one, other, xor(&one, &other)];
        let changes = now.into_iter().enumerate().map(change);
        Prepared::Change(Changed::ByPosition(changes.collect()))
    }
}

impl Gathering for Stripe {
    fn next(&mut self) -> Option<(usize, Vec<u64>)> {
        self.asked = self.asks.pop_front();
        self.asked.map(|(index, _)| (index, Vec::new()))
    }

    fn take(&mut self, source: usize, answer: Held, _buffers: &BufferPool) {
        let (index, position) = self.asked.take().expect("it was asked");
        assert_eq!(index, source);
        let pieces = Pieces::of_held(answer);
        self.versions.push(pieces.version);
        self.held.insert(position.index(), pieces);
    }

    fn is_mixed(&self) -> bool {
        false
    }

    fn is_older(&self) -> bool {
        false
    }

    fn version(&self) -> Version {
        let mut versions = self.versions.iter().copied();
        let first = versions.next().expect("somebody was asked");
        if self.purpose == WantedFor::Return {
            return first;
        }
        let is_same = versions.all(|version| version == first);
        // In an adoption a member's piece may differ from its listing.
        assert!(is_same || self.purpose == WantedFor::Adoption, "pieces of two versions");
        if is_same { first } else { Version::ZERO }
    }

    fn content_at(&self, position: Position, version: Version) -> Content {
        let now = match self.purpose {
            WantedFor::Return => self.held[&position.index()].before,
            _ => self.piece(position.index()),
        };
        if version == Version::ZERO {
            return Content::Gone;
        }
        let (checksums, data) = data_of(&[now, now].concat());
        let all = vec![(1 << UNITS) - 1];
        let (units, written, damaged, data) = (all.clone(), all, vec![0], Some(data));
        let table = Vec::new();
        let block_size = BLOCK_SIZE;
        Content::Block { version, block_size, units, written, damaged, checksums, data, table }
    }

    fn prepare(&self, kind: WriteKind, _buffers: &BufferPool) -> Prepared {
        let (mut values, version) = (self.values(), self.version());
        let place = |offset: u32, count: usize| {
            let first = (offset / UNIT) as usize;
            first..first + count
        };
        match kind {
            WriteKind::Change { expected: Some(expected), .. } if expected != version => {
                Prepared::Answer(Err(Refusal::CompareFailed { version }))
            }
            WriteKind::Change { change: Change::Write { offset, data, .. }, .. } => {
                let new = values_of(&data, data.len() as u32 / UNIT);
                values[place(offset, new.len())].copy_from_slice(&new);
                self.change(&values)
            }
            WriteKind::Change { change: Change::Zero { offset, length }, .. } => {
                values[place(offset, (length / UNIT) as usize)].fill(0);
                self.change(&values)
            }
            WriteKind::Change { change: Change::Delete, .. } => self.change(&[0; UNITS as usize]),
            WriteKind::Read { wants: Wants::Data { offset, length }, .. } => {
                let values = &values[place(offset, (length / UNIT) as usize)];
                let (checksums, data) = data_of(values);
                Prepared::Answer(Ok(Outcome::Read { version, checksums, data }))
            }
            WriteKind::Read { wants: Wants::Allocation, .. } => {
                let units = (0..UNITS).filter(|unit| values[*unit as usize] != 0);
                let bitmap = vec![units.fold(0, |bits, unit| bits | 1 << unit)];
                Prepared::Answer(Ok(Outcome::Extents { bitmap }))
            }
            WriteKind::Hold | WriteKind::HandedOver => unreachable!("it is no operation"),
        }
    }
}

/// Returns the number that each unit of a stripe holds, as a client reads it.
fn read_all(world: &mut World, stripe: u32) -> Vec<u32> {
    (0..UNITS).map(|unit| world.value(stripe, unit)).collect()
}

fn written(world: &mut World, stripe: u32, first: u32, units: u32) -> Vec<u32> {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, first, units);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    let last = world.history.last_value();
    (last + 1 - units..=last).collect()
}

fn three() -> World {
    let mut world = World::of_pieces(1, 3);
    world.large_percent = 0;
    world.settle();
    world
}

#[test]
fn two_of_three_pieces_are_enough_to_read_and_to_write_a_part() {
    for away in 0..3 {
        let mut world = three();
        let mut values = written(&mut world, 1, 0, UNITS);
        world.kill(away);
        world.settle();
        assert_eq!(world.acting().len(), 2);
        assert_eq!(read_all(&mut world, 1), values);
        values.splice(1..3, written(&mut world, 1, 1, 2));
        assert_eq!(read_all(&mut world, 1), values);
        world.start(away);
        world.settle();
        assert!(world.is_whole());
        world.check_equal();
        assert_eq!(read_all(&mut world, 1), values);
    }
}

#[test]
fn a_write_that_one_member_has_is_taken_back_and_stays_so() {
    let mut world = three();
    let values = written(&mut world, 1, 0, UNITS);
    let at = world.server().expect("somebody serves");
    let lost = world.write(at, 1, 0, 1);
    // The primary gathers the stripe, and keeps its own piece; no other member receives the write.
    while world.osds[at].store.now.last.counter < 2 {
        world.stores_go_on();
        let fetches = world.mail();
        let (primary, member, is_to_member) = fetches[0];
        world.deliver(primary, member, is_to_member);
    }
    world.store_goes_on(at);
    let away = (at + 2) % 3;
    world.kill(at);
    world.kill(away);
    // The third member leads.
    world.monitor();
    world.start(at);
    world.settle();
    assert_eq!(world.acting().len(), 2, "the other two are enough");
    let is_drop = |(_, to, body): &(usize, usize, PeerBody)| {
        *to == at && matches!(body, PeerBody::Drop { .. })
    };
    assert!(world.sent.iter().any(is_drop), "it is told to state no such write");
    assert_eq!(world.history.outcome(lost), None);
    assert_eq!(read_all(&mut world, 1), values);
    world.start(away);
    world.settle();
    world.check_equal();
    assert_eq!(read_all(&mut world, 1), values);
    world.history.check();
}

#[test]
fn a_member_with_another_position_has_nothing_of_it() {
    let mut world = World::of_pieces(1, 4);
    world.large_percent = 0;
    world.settle();
    let values = written(&mut world, 1, 0, UNITS);
    // Positions are reassigned: the first member returns for another piece.
    world.plan = vec![1, 2, 3];
    world.settle();
    let first = world.entry.position_of(osd_id(3)).expect("it acts");
    world.plan = vec![0, 2, 3];
    world.settle();
    let second = world.entry.position_of(osd_id(0)).expect("it acts");
    assert_ne!(first, second);
    world.check_equal();
    assert_eq!(read_all(&mut world, 1), values);
}
