//! A PG over a store in memory, which carries out requests at once and answers when the test tells it to.

mod direct;
mod elsewhere;
mod fix;
mod history;
mod lazy;
mod model;
mod objects;
mod parity;
mod random;
mod scenarios;
mod script;
mod scrub;
mod scrub_stripes;
mod stripe_crashes;
mod stripe_more;
mod stripe_peering;
mod stripe_short;
mod stripes;
mod world;
mod wrong;

use std::collections::{BTreeMap, VecDeque};

use base::checksum::{self, checksum_units};
use base::hash::stripe_hash;
use base::{Buffer, Checksum, Epoch, Incarnation, MapRevision, OsdId, PoolId, UNIT_SIZE};
use format::wire::{Activation, CHAIN_LENGTH_MAX, Member, PgEntry, Place};

use super::units::units_of;
use super::*;

pub const UNIT: u32 = UNIT_SIZE as u32;
const BLOCK_SIZE: BlockSize = BlockSize::MIN;
pub const ONE_COPY: Scheme = Scheme::Copies { count: 1 };
pub const UNITS: u32 = BLOCK_SIZE.unit_count();

/// A block of the store in memory: a byte that fills each unit.
#[derive(Clone, Default)]
pub struct Block {
    pub version: Version,
    units: BTreeMap<u32, u8>,
    damaged: u64,
}

pub struct Bench {
    pub pg: Pg,
    pub blocks: BTreeMap<BlockKey, Block>,
    /// Answers that the store has not delivered yet.
    pub answers: VecDeque<(CallId, Result<Answer, StoreError>)>,
    /// Kinds of requests the store received, in order.
    pub asked: Vec<&'static str>,
    pub notes: Vec<Record>,
    pub floors: Vec<Version>,
    pub replies: Vec<(u32, Result<Outcome, Refusal>)>,
    pub versions: Vec<Version>,
    pub activated: u32,
    pub needs: Vec<Need>,
}

fn shape() -> Shape {
    Shape {
        pg: PgId { pool: PoolId::FIRST, number: 0 },
        pg_count: 1,
        block_size: BLOCK_SIZE,
        limits: Limits::SMALL,
        face: &Copies,
        objects: None,
    }
}

fn facts(last: Version) -> PgFacts {
    PgFacts {
        last,
        committed: Version::ZERO,
        held: last,
        hole: None,
        floor: Version::ZERO,
        is_suspect: false,
    }
}

fn record(epoch: u32, adopted: Version) -> Record {
    let history = vec![Activation { epoch: Epoch::new(epoch), adopted }];
    Record { entry: entry(epoch), adopted, history, filling: None, dropped: None }
}

pub fn entry(epoch: u32) -> PgEntry {
    let member = Member { osd: OsdId::FIRST, incarnation: Incarnation::new(1) };
    let entry = PgEntry::new(shape().pg, [member]);
    PgEntry { epoch: Epoch::new(epoch), revision: MapRevision::new(1), ..entry }
}

/// Returns what a member states that has nothing.
pub fn state() -> MemberState {
    MemberState {
        record_epoch: Epoch::ZERO,
        complete: Version::ZERO,
        had: Version::ZERO,
        committed: Version::ZERO,
        held: Version::ZERO,
        floor: Version::ZERO,
        is_suspect: false,
        history: Vec::new(),
        filling: None,
        elsewhere: None,
        acting: Vec::new(),
    }
}

fn version(epoch: u32, counter: u64) -> Version {
    Version { epoch: Epoch::new(epoch), counter }
}

fn layer(number: u32) -> ImageId {
    ImageId::new(number).unwrap()
}

pub fn place_in(image: u32, stripe: u32) -> Place {
    Place { image: layer(image), seed: layer(1), stripe: StripeIndex::new(stripe) }
}

fn place() -> Place {
    place_in(1, 0)
}

pub fn fill(units: u32, byte: u8) -> (Vec<Checksum>, Buffer) {
    let data = BufferPool::default().copy_of(&vec![byte; (units * UNIT) as usize]);
    let mut checksums = Vec::new();
    checksum_units(&data, &mut checksums);
    (checksums, data)
}

pub fn write_in(place: Place, first: u32, units: u32, byte: u8) -> Op {
    let (checksums, data) = fill(units, byte);
    Op::Write { place, offset: first * UNIT, checksums, data, expected: None, lazy: false }
}

fn write(first: u32, units: u32, byte: u8) -> Op {
    write_in(place(), first, units, byte)
}

fn compare_and_set(byte: u8, expected: Version) -> Op {
    let (checksums, data) = fill(1, byte);
    let expected = Some(expected);
    Op::Write { place: place(), offset: 0, checksums, data, expected, lazy: false }
}

pub fn read_in(place: Place, first: u32, units: u32, parents: &[u32]) -> Op {
    let parents = parents.iter().map(|parent| layer(*parent)).collect();
    Op::Read { place, offset: first * UNIT, length: units * UNIT, parents }
}

fn read(first: u32, units: u32) -> Op {
    read_in(place(), first, units, &[])
}

fn zero(first: u32, units: u32) -> Op {
    Op::Zero { place: place(), offset: first * UNIT, length: units * UNIT, lazy: false }
}

impl Bench {
    pub fn new() -> Bench {
        let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
        bench.activate(1);
        bench
    }

    fn over(blocks: BTreeMap<BlockKey, Block>, record: Option<Record>, newest: Version) -> Bench {
        Bench {
            pg: Pg::new(shape(), OsdId::FIRST, facts(newest), record, BufferPool::default()),
            blocks,
            answers: VecDeque::new(),
            asked: Vec::new(),
            notes: Vec::new(),
            floors: Vec::new(),
            replies: Vec::new(),
            versions: Vec::new(),
            activated: 0,
            needs: Vec::new(),
        }
    }

    fn activate(&mut self, epoch: u32) {
        let mut actions = Vec::new();
        self.pg.enter(entry(epoch), ONE_COPY, None, &mut actions);
        self.carry_out(actions);
        self.answer_all();
    }

    pub fn start(&mut self, ticket: u32, op: Op) {
        let mut actions = Vec::new();
        self.pg.execute(Ticket(ticket), SessionId::ZERO, op, &mut actions);
        self.carry_out(actions);
    }

    pub fn carry_out(&mut self, actions: Vec<Action>) {
        let mut next = Vec::new();
        for action in actions {
            match action {
                Action::Store { call, request } => {
                    let result = self.ask(request);
                    self.answers.push_back((call, result));
                }
                Action::List { call, listing } => {
                    let keys = self.blocks.iter().filter(|(key, block)| {
                        key.image == listing.image
                            && key.stripe >= listing.from
                            && listing.after.is_none_or(|after| **key > after)
                            && !block.units.is_empty()
                    });
                    let keys = keys.map(|(key, _)| *key).take(listing.count_max).collect();
                    self.pg.listed(call, keys, &mut next);
                }
                Action::Reply { ticket, outcome } => self.replies.push((ticket.0, outcome)),
                Action::Activated => self.activated += 1,
                Action::Absolved => {}
                Action::Need(need) => self.needs.push(need),
                other => panic!("{other:?}"),
            }
        }
        if !next.is_empty() {
            self.carry_out(next);
        }
    }

    /// Carries out a request to the store.
    fn ask(&mut self, request: StoreRequest) -> Result<Answer, StoreError> {
        let new_version = match &request {
            StoreRequest::Write { key, version, .. }
            | StoreRequest::Zero { key, version, .. }
            | StoreRequest::Delete { key, version, .. } => Some((*key, *version)),
            _ => None,
        };
        let is_lazy = matches!(
            request,
            StoreRequest::Write { lazy: true, .. } | StoreRequest::Zero { lazy: true, .. }
        );
        if let Some((key, version)) = new_version {
            let block = self.blocks.entry(key).or_default();
            assert!(block.version < version);
            block.version = version;
            self.versions.push(version);
        }
        match request {
            StoreRequest::Write { key, offset, data, checksums, .. } => {
                assert_eq!(checksum::first_mismatch(&data, &checksums), None);
                self.asked.push("write");
                let block = self.blocks.get_mut(&key).unwrap();
                for (index, unit) in data.chunks(UNIT as usize).enumerate() {
                    let unit_index = offset / UNIT + index as u32;
                    block.units.insert(unit_index, unit[0]);
                    block.damaged &= !(1 << unit_index);
                }
            }
            StoreRequest::Zero { key, offset, length, .. } => {
                self.asked.push("zero");
                let block = self.blocks.get_mut(&key).unwrap();
                let (first, end) = units_of(offset, length);
                block.units.retain(|unit, _| !(first..end).contains(unit));
            }
            StoreRequest::Delete { key, .. } => {
                self.asked.push("delete");
                let block = self.blocks.get_mut(&key).unwrap();
                block.units.clear();
                block.damaged = 0;
            }
            StoreRequest::Read { key, offset, length, .. } => {
                self.asked.push("read");
                return self.read(key, offset, length);
            }
            StoreRequest::Extents { key, .. } => {
                self.asked.push("extents");
                let block = self.blocks.get(&key).cloned().unwrap_or_default();
                let written = block.units.keys().fold(0u64, |bits, unit| bits | 1 << unit);
                return Ok(Answer::Extents {
                    version: block.version,
                    written: vec![written & !block.damaged],
                    damaged: vec![block.damaged],
                });
            }
            StoreRequest::Note { bytes, .. } => {
                self.asked.push("note");
                self.notes.push(Record::decode(&bytes).unwrap());
            }
            StoreRequest::SetFloor { floor, .. } => self.floors.push(floor),
            StoreRequest::Copy { .. }
            | StoreRequest::Digest { .. }
            | StoreRequest::Repair { .. } => panic!("one copy"),
            StoreRequest::CheckMetadata { .. } => panic!("the node asks for it"),
            StoreRequest::Prepare { .. }
            | StoreRequest::Skip { .. }
            | StoreRequest::Commit { .. }
            | StoreRequest::Settle { .. } => panic!("no parity"),
            StoreRequest::Sync | StoreRequest::Record | StoreRequest::Absolve { .. } => {}
            StoreRequest::Batch(_)
            | StoreRequest::Page(_)
            | StoreRequest::Family { .. }
            | StoreRequest::Records { .. } => unreachable!("no PG asks for records yet"),
        }
        Ok(if is_lazy { Answer::Written } else { Answer::Durable })
    }

    fn read(&self, key: BlockKey, offset: u32, length: u32) -> Result<Answer, StoreError> {
        let block = self.blocks.get(&key).cloned().unwrap_or_default();
        let (first, end) = units_of(offset, length);
        if (first..end).any(|unit| block.damaged & (1 << unit) != 0) {
            return Err(StoreError::Damaged { units: vec![block.damaged] });
        }
        let mut bytes = Vec::new();
        for unit in first..end {
            let byte = block.units.get(&unit).copied().unwrap_or(0);
            bytes.resize(bytes.len() + UNIT as usize, byte);
        }
        if bytes.iter().all(|byte| *byte == 0) {
            bytes.clear();
        }
        let mut checksums = Vec::new();
        checksum_units(&bytes, &mut checksums);
        let data = BufferPool::default().copy_of(&bytes);
        Ok(Answer::Read { version: block.version, checksums, data })
    }

    /// Delivers the store's oldest answer.
    fn answer_one(&mut self) {
        let (call, result) = self.answers.pop_front().unwrap();
        self.give(call, result);
    }

    /// Delivers the store's newest answer.
    fn answer_last(&mut self) {
        let (call, result) = self.answers.pop_back().unwrap();
        self.give(call, result);
    }

    pub fn give(&mut self, call: CallId, result: Result<Answer, StoreError>) {
        let mut actions = Vec::new();
        self.pg.store_done(call, result, &mut actions);
        self.carry_out(actions);
    }

    pub fn answer_all(&mut self) {
        while !self.answers.is_empty() {
            self.answer_one();
        }
    }

    pub fn run(&mut self, op: Op) -> Result<Outcome, Refusal> {
        self.start(999, op);
        self.answer_all();
        let (ticket, outcome) = self.replies.pop().unwrap();
        assert_eq!(ticket, 999);
        outcome
    }

    /// Runs a read, and returns the byte that fills each unit.
    fn read_bytes(&mut self, op: Op, units: u32) -> Vec<u8> {
        match self.run(op).unwrap() {
            Outcome::Read { data, checksums, .. } if data.is_empty() => {
                assert!(checksums.is_empty());
                vec![0; units as usize]
            }
            Outcome::Read { data, checksums, .. } => {
                assert_eq!(checksum::first_mismatch(&data, &checksums), None);
                assert_eq!(data.len() as u32, units * UNIT);
                data.chunks(UNIT as usize).map(|unit| unit[0]).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn tickets(&self) -> Vec<u32> {
        self.replies.iter().map(|(ticket, _)| *ticket).collect()
    }
}

fn written(version: Version) -> Result<Outcome, Refusal> {
    Ok(Outcome::Written { version, durable: true })
}

#[test]
fn what_is_written_is_read() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(write(1, 2, 7)), written(version(1, 1)));
    assert_eq!(bench.read_bytes(read(0, UNITS), UNITS), [0, 7, 7, 0]);
    assert_eq!(bench.pg.open_count(), 0);
}

#[test]
fn nothing_is_served_before_the_record_is_durable() {
    let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
    let mut actions = Vec::new();
    bench.pg.enter(entry(3), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    assert_eq!(bench.activated, 0);
    assert_eq!(bench.pg.serving(), &Serving::Journaling);
    bench.answer_all();
    assert_eq!(bench.activated, 1);
    assert_eq!(bench.pg.serving(), &Serving::Active);
    assert_eq!(bench.notes, [record(3, Version::ZERO)]);
}

#[test]
fn the_counter_goes_on_after_a_restart() {
    let mut bench = Bench::new();
    bench.run(write(0, 1, 7)).unwrap();
    bench.run(write(0, 1, 8)).unwrap();
    let record = bench.notes.pop();
    let mut restarted = Bench::over(bench.blocks, record, version(1, 2));
    restarted.activate(2);
    assert_eq!(restarted.notes[0].adopted, version(1, 2));
    assert_eq!(restarted.run(write(0, 1, 9)), written(version(2, 3)));
}

#[test]
fn adopted_versions_are_never_given_again() {
    let record = record(4, version(4, 9));
    let mut bench = Bench::over(BTreeMap::new(), Some(record), version(3, 7));
    bench.activate(5);
    assert_eq!(bench.run(write(0, 1, 1)), written(version(5, 10)));
}

#[test]
fn writes_of_a_block_are_pipelined_in_version_order() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, write(0, 1, 2));
    bench.start(3, write(1, 1, 3));
    assert_eq!(bench.answers.len(), 3);
    bench.answer_all();
    assert_eq!(bench.replies[0], (1, written(version(1, 1))));
    assert_eq!(bench.replies[1], (2, written(version(1, 2))));
    assert_eq!(bench.replies[2], (3, written(version(1, 3))));
}

#[test]
fn a_read_waits_behind_writes_of_its_units() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, write(1, 1, 2));
    bench.start(3, read(1, 2));
    bench.start(4, read(2, 2));
    assert_eq!(bench.asked, ["note", "write", "write", "read"], "the read beside goes on");
    bench.answer_one();
    assert_eq!(bench.tickets(), [1]);
    assert_eq!(bench.asked.len(), 4, "its own write has not ended");
    bench.answer_one();
    assert_eq!(bench.asked.len(), 5);
    bench.answer_all();
    assert_eq!(bench.tickets(), [1, 2, 4, 3]);
}

#[test]
fn a_read_does_not_wait_for_later_writes() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, read(0, 1));
    bench.start(3, write(0, 1, 3));
    bench.answer_one();
    assert_eq!(bench.asked, ["note", "write", "write", "read"]);
}

#[test]
fn the_mark_waits_for_the_oldest_write() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, write_in(place_in(1, 1), 0, 1, 2));
    bench.answer_last();
    assert_eq!(bench.tickets(), [2]);
    assert_eq!(bench.pg.mark(), Version::ZERO);
    bench.answer_all();
    assert_eq!(bench.pg.mark(), version(1, 2));
}

#[test]
fn compare_and_set_is_judged_behind_earlier_writes() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, compare_and_set(2, Version::ZERO));
    bench.start(3, compare_and_set(3, version(1, 1)));
    bench.start(4, write(0, 1, 4));
    assert_eq!(bench.asked, ["note", "write"], "the block must be known first");
    bench.answer_all();
    let failed = Err(Refusal::CompareFailed { version: version(1, 1) });
    assert_eq!(bench.replies[1], (2, failed));
    assert_eq!(bench.replies[2], (3, written(version(1, 2))));
    assert_eq!(bench.replies[3], (4, written(version(1, 3))));
    assert_eq!(bench.read_bytes(read(0, 1), 1), [4]);
}

#[test]
fn only_a_block_that_was_never_written_has_version_zero() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(compare_and_set(1, Version::ZERO)), written(version(1, 1)));
    let failed = Err(Refusal::CompareFailed { version: version(1, 1) });
    assert_eq!(bench.run(compare_and_set(2, Version::ZERO)), failed);
}

#[test]
fn zeroing_empty_units_writes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(zero(0, UNITS)), written(Version::ZERO));
    bench.run(write(0, 1, 1)).unwrap();
    assert_eq!(bench.run(zero(1, 3)), written(version(1, 1)));
    assert_eq!(bench.asked, ["note", "extents", "write", "extents"]);
}

#[test]
fn zeroing_is_ordered_behind_writes_in_flight() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, zero(0, UNITS));
    bench.answer_all();
    assert_eq!(bench.replies[1], (2, written(version(1, 2))));
    assert_eq!(bench.read_bytes(read(0, 1), 1), [0]);
}

#[test]
fn zeroing_all_that_a_block_holds_deletes_it() {
    let mut bench = Bench::new();
    bench.run(write(1, 2, 1)).unwrap();
    bench.run(zero(2, 2)).unwrap();
    bench.run(zero(0, 2)).unwrap();
    assert_eq!(
        bench.asked,
        ["note", "write", "extents", "zero", "extents", "delete"],
        "the first leaves a unit, the second does not"
    );
}

#[test]
fn a_damaged_unit_can_be_discarded() {
    let mut bench = Bench::new();
    bench.run(write(0, 1, 1)).unwrap();
    bench.blocks.values_mut().next().unwrap().damaged = 1;
    assert_eq!(bench.run(read(0, 1)), Err(Refusal::Damaged { units: vec![1] }));
    assert_eq!(bench.run(zero(0, 1)), written(version(1, 2)));
    assert_eq!(bench.read_bytes(read(0, 1), 1), [0]);
}

#[test]
fn a_write_that_the_store_refuses_ends_the_epoch() {
    let mut bench = Bench::new();
    bench.run(write(0, 1, 1)).unwrap();
    bench.start(1, write(0, 1, 1));
    bench.start(2, write_in(place_in(1, 1), 0, 1, 1));
    for answer in &mut bench.answers {
        answer.1 = Err(StoreError::Full);
    }
    bench.answer_all();
    assert_eq!(bench.replies, [(1, Err(Refusal::Full)), (2, Err(Refusal::Full))]);
    assert_eq!(bench.needs, [Need::NewEpoch]);
    assert!(matches!(bench.pg.serving(), Serving::Ended { .. }));
    assert_eq!(bench.pg.mark(), version(1, 1));
    bench.blocks.clear();
    bench.activate(2);
    assert_eq!(bench.notes[1].adopted, version(1, 1));
    assert_eq!(bench.run(write(0, 1, 1)), written(version(2, 2)));
}

#[test]
fn corrupted_data_is_refused() {
    let mut bench = Bench::new();
    let Op::Write { place, offset, mut checksums, data, expected, lazy } = write(0, 2, 5) else {
        unreachable!("it is a write")
    };
    checksums[1] = Checksum::new(checksums[1].get() ^ 1);
    let op = Op::Write { place, offset, checksums, data, expected, lazy };
    assert_eq!(bench.run(op), Err(Refusal::Corrupted));
    assert_eq!(bench.asked, ["note"]);
}

#[test]
fn malformed_requests_are_refused() {
    let mut bench = Bench::new();
    let (checksums, data) = fill(1, 1);
    let odd = BufferPool::default().copy_of(&[1; 100]);
    let none = BufferPool::default().copy_of(&[]);
    let write = |offset, checksums, data| Op::Write {
        place: place(),
        offset,
        checksums,
        data,
        expected: None,
        lazy: false,
    };
    let read = |offset, length| Op::Read { place: place(), offset, length, parents: Vec::new() };
    let zero = |offset, length| Op::Zero { place: place(), offset, length, lazy: false };
    let chain = vec![layer(2); CHAIN_LENGTH_MAX];
    let bad = [
        write(100, checksums.clone(), data.clone()),
        write(BLOCK_SIZE.bytes() as u32, checksums.clone(), data.clone()),
        write(u32::MAX - UNIT + 1, checksums.clone(), data.clone()),
        write(0, Vec::new(), data),
        write(0, checksums, odd),
        write(0, Vec::new(), none),
        read(0, 0),
        read(0, 100),
        read(0, u32::MAX),
        read(0, BLOCK_SIZE.bytes() as u32 + UNIT),
        read(u32::MAX - UNIT + 1, UNIT),
        zero(UNIT, 0),
        zero(1, UNIT),
        zero(UNIT, BLOCK_SIZE.bytes() as u32),
        read_in(place(), 0, 1, &[2; CHAIN_LENGTH_MAX]),
        Op::Extents { place: place(), parents: chain },
    ];
    for op in bad {
        let outcome = bench.run(op.clone());
        assert!(matches!(outcome, Err(Refusal::Invalid { .. })), "{op:?}: {outcome:?}");
    }
    assert_eq!(bench.asked, ["note"]);
}

#[test]
fn a_stripe_of_another_pg_is_invalid() {
    let mut shape = shape();
    shape.pg_count = 2;
    let mut bench = Bench::new();
    bench.pg.shape = shape;
    let mut outcomes = Vec::new();
    for stripe in 0..8 {
        let place = place_in(1, stripe);
        let is_ours = stripe_hash(place.seed, place.stripe) < 1 << 31;
        let outcome = bench.run(read_in(place, 0, 1, &[]));
        assert_eq!(outcome.is_ok(), is_ours);
        outcomes.push(is_ours);
    }
    assert!(outcomes.contains(&true) && outcomes.contains(&false));
}

#[test]
fn the_newest_layer_that_has_a_unit_wins() {
    let mut bench = Bench::new();
    bench.run(write_in(place_in(1, 0), 0, 4, 1)).unwrap();
    bench.run(write_in(place_in(2, 0), 1, 1, 2)).unwrap();
    bench.run(write_in(place_in(2, 0), 3, 1, 2)).unwrap();
    bench.run(write_in(place_in(3, 0), 3, 1, 3)).unwrap();
    let op = read_in(place_in(3, 0), 0, 4, &[2, 1]);
    assert_eq!(bench.read_bytes(op, 4), [1, 2, 1, 3]);
    let op = read_in(place_in(3, 0), 1, 1, &[2, 1]);
    assert_eq!(bench.read_bytes(op, 1), [2], "one part is handed on as it is");
    let op = read_in(place_in(4, 0), 1, 2, &[3]);
    assert_eq!(bench.read_bytes(op, 2), [0, 0], "nobody has them");
    let op = read_in(place_in(4, 0), 2, 2, &[3]);
    assert_eq!(bench.read_bytes(op, 2), [0, 3]);
}

#[test]
fn allocation_of_a_chain_is_that_of_all_layers() {
    let mut bench = Bench::new();
    bench.run(write_in(place_in(1, 0), 0, 1, 1)).unwrap();
    bench.run(write_in(place_in(2, 0), 2, 1, 2)).unwrap();
    let extents = |parents| Op::Extents { place: place_in(2, 0), parents };
    assert_eq!(bench.run(extents(vec![])), Ok(Outcome::Extents { bitmap: vec![0b100] }));
    assert_eq!(bench.run(extents(vec![layer(1)])), Ok(Outcome::Extents { bitmap: vec![0b101] }));
}

#[test]
fn a_damaged_unit_is_not_answered_from_an_older_layer() {
    let mut bench = Bench::new();
    bench.run(write_in(place_in(1, 0), 0, 4, 1)).unwrap();
    bench.run(write_in(place_in(2, 0), 1, 1, 2)).unwrap();
    for (key, block) in &mut bench.blocks {
        block.damaged = if key.image == layer(2) { 0b10 } else { 0 };
    }
    let op = read_in(place_in(2, 0), 0, 4, &[1]);
    assert_eq!(bench.run(op), Err(Refusal::Damaged { units: vec![0b10] }));
    let op = read_in(place_in(2, 0), 2, 2, &[1]);
    assert_eq!(bench.read_bytes(op, 2), [1, 1], "the rest can be read");
}

#[test]
fn a_chain_waits_behind_writes_of_its_older_layers() {
    let mut bench = Bench::new();
    bench.start(1, write_in(place_in(1, 0), 0, 1, 9));
    bench.start(2, read_in(place_in(2, 0), 0, 1, &[1]));
    assert_eq!(bench.asked, ["note", "write"]);
    bench.answer_all();
    let (ticket, outcome) = bench.replies.pop().unwrap();
    assert_eq!(ticket, 2);
    assert!(matches!(outcome, Ok(Outcome::Read { data, .. }) if data[0] == 9));
}

#[test]
fn a_deletion_takes_an_images_blocks_in_portions() {
    let mut bench = Bench::new();
    let count = DELETE_PORTION_MAX as u32 + 10;
    for stripe in 0..count {
        bench.run(write_in(place_in(1, stripe), 0, 1, 1)).unwrap();
    }
    bench.run(write_in(place_in(2, 0), 0, 1, 1)).unwrap();
    let delete = || Op::DeleteRange { image: layer(1), from: StripeIndex::new(5) };
    let mut portions = Vec::new();
    loop {
        match bench.run(delete()) {
            Ok(Outcome::Deleted { count, complete }) => {
                portions.push(count);
                if complete {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(portions, [256, 5, 0], "the last one saw the whole PG and found nothing");
    let left = bench.blocks.iter().filter(|(_, block)| !block.units.is_empty());
    let left: Vec<(u32, u32)> = left.map(|(key, _)| (key.image.get(), key.stripe.get())).collect();
    assert_eq!(left.len(), 6);
    assert!(left.iter().all(|(image, stripe)| *image == 2 || *stripe < 5));
}

#[test]
fn a_deletion_takes_no_more_blocks_than_there_is_room_for() {
    let mut bench = Bench::new();
    for stripe in 0..7 {
        bench.run(write_in(place_in(1, stripe), 0, 1, 1)).unwrap();
    }
    let delete = || Op::DeleteRange { image: layer(1), from: StripeIndex::new(0) };
    let mut portions = Vec::new();
    for count_max in [3, 1, 200, 200] {
        bench.pg.limit_deletion(count_max);
        match bench.run(delete()) {
            Ok(Outcome::Deleted { count, complete }) => portions.push((count, complete)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(portions, [(3, false), (1, false), (3, false), (0, true)]);
}

#[test]
fn a_deletion_is_answered_when_its_deletes_are_durable() {
    let mut bench = Bench::new();
    bench.run(write(0, 1, 1)).unwrap();
    bench.start(1, Op::DeleteRange { image: layer(1), from: StripeIndex::new(0) });
    bench.answer_one();
    assert_eq!(*bench.asked.last().unwrap(), "delete");
    assert!(bench.replies.is_empty());
    bench.answer_one();
    assert_eq!(bench.replies, [(1, Ok(Outcome::Deleted { count: 1, complete: true }))]);
}

#[test]
fn a_deletion_waits_for_older_writes_of_its_image() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, Op::DeleteRange { image: layer(1), from: StripeIndex::new(0) });
    bench.answer_all();
    assert_eq!(bench.replies[1], (2, Ok(Outcome::Deleted { count: 1, complete: true })));
    assert_eq!(bench.read_bytes(read(0, 1), 1), [0]);
}

#[test]
fn open_operations_are_answered_stale_when_the_epoch_changes() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, compare_and_set(2, version(1, 1)));
    bench.start(3, read(0, 1));
    bench.start(4, compare_and_set(4, version(1, 1)));
    bench.start(5, Op::DeleteRange { image: layer(1), from: StripeIndex::new(0) });
    let mut actions = Vec::new();
    bench.pg.enter(entry(2), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    let mut refused = bench.tickets();
    refused.sort_unstable();
    assert_eq!(refused, [1, 2, 3, 4, 5]);
    assert!(bench.replies.iter().all(|(_, outcome)| *outcome == Err(Refusal::Stale(None))));
    assert_eq!(bench.pg.serving(), &Serving::Draining, "the first is still at the store");
    bench.answer_all();
    assert_eq!(bench.replies.len(), 5);
    assert_eq!(bench.notes[1].adopted, version(1, 1));
    assert_eq!(bench.pg.serving(), &Serving::Active);
    assert_eq!(bench.run(write(0, 1, 2)), written(version(2, 2)));
}

#[test]
fn a_refused_write_lets_the_next_one_start() {
    let mut bench = Bench::new();
    bench.start(1, write(0, 1, 1));
    bench.start(2, compare_and_set(2, version(9, 9)));
    bench.start(3, write(0, 1, 3));
    let mut actions = Vec::new();
    let judge = |ticket| (ticket == Ticket(2)).then_some(Refusal::Fenced);
    bench.pg.refuse_waiting(judge, &mut actions);
    bench.carry_out(actions);
    bench.answer_all();
    assert_eq!(bench.replies[0], (2, Err(Refusal::Fenced)));
    assert_eq!(bench.replies[2], (3, written(version(1, 2))));
}

#[test]
fn a_newer_entry_is_journaled_after_the_one_on_its_way() {
    let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
    let mut actions = Vec::new();
    bench.pg.enter(entry(1), ONE_COPY, None, &mut actions);
    bench.pg.enter(entry(2), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    assert_eq!(bench.notes.len(), 1);
    bench.answer_all();
    assert_eq!(bench.notes.len(), 2);
    assert_eq!(bench.activated, 1);
    assert_eq!(bench.pg.record().unwrap().entry.epoch, Epoch::new(2));
}

#[test]
fn a_newer_entry_is_journaled_after_one_that_was_refused() {
    let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
    let mut actions = Vec::new();
    bench.pg.enter(entry(1), ONE_COPY, None, &mut actions);
    bench.pg.enter(entry(2), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    let (call, _) = bench.answers.pop_front().unwrap();
    bench.give(call, Err(StoreError::Full));
    assert_eq!(bench.pg.serving(), &Serving::Journaling);
    bench.answer_all();
    assert_eq!(bench.activated, 1);
    assert_eq!(bench.pg.record().unwrap().entry.epoch, Epoch::new(2));
}

#[test]
fn an_activation_that_cannot_be_journaled_is_retried() {
    let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
    let mut actions = Vec::new();
    bench.pg.enter(entry(1), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    let (call, _) = bench.answers.pop_front().unwrap();
    bench.give(call, Err(StoreError::Full));
    assert!(matches!(bench.pg.serving(), Serving::Idle { .. }));
    assert_eq!(bench.pg.epoch_floor(), Epoch::ZERO, "the entry may be tried again");
    bench.activate(1);
    assert_eq!(bench.pg.serving(), &Serving::Active);
}

#[test]
fn a_halt_during_an_activation_lasts() {
    let mut bench = Bench::over(BTreeMap::new(), None, Version::ZERO);
    let mut actions = Vec::new();
    bench.pg.enter(entry(1), ONE_COPY, None, &mut actions);
    bench.carry_out(actions);
    bench.pg.halt("another OSD leads it".into(), &mut Vec::new());
    bench.answer_all();
    assert_eq!(bench.activated, 0);
    assert_eq!(bench.pg.epoch_floor(), Epoch::new(1), "its record is durable all the same");
}

#[test]
fn the_floor_follows_the_mark_after_deletes() {
    let mut bench = Bench::new();
    bench.run(write(0, 1, 1)).unwrap();
    let mut actions = Vec::new();
    bench.pg.raise_floor(&mut actions);
    bench.carry_out(std::mem::take(&mut actions));
    assert_eq!(bench.floors, [version(1, 1)], "tombstones of an earlier run may be there");
    bench.run(write(0, 1, 2)).unwrap();
    bench.pg.raise_floor(&mut actions);
    assert!(actions.is_empty(), "no tombstone was made");
    bench.run(zero(0, 1)).unwrap();
    bench.pg.raise_floor(&mut actions);
    bench.carry_out(actions);
    assert_eq!(bench.floors, [version(1, 1), version(1, 3)]);
}

#[test]
fn records_are_read_back_as_written() {
    let record = record(4, version(3, 1 << 60));
    assert_eq!(Record::decode(&record.encode()), Ok(record));
    assert!(Record::decode(b"{}").is_err());
}

#[test]
fn the_bytes_of_a_record_are_frozen() {
    let golden = include_bytes!("../testdata/record.json");
    let record = record(4, version(3, 17));
    assert_eq!(String::from_utf8_lossy(&record.encode()), String::from_utf8_lossy(golden));
    assert_eq!(Record::decode(golden), Ok(record));
}
