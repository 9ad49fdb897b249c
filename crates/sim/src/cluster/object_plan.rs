//! The object pool of a run, if it has one, and what its users ask for. All of it is drawn from streams of
//! its own: a run without an object pool does not change.

use std::collections::BTreeSet;

use base::{BlockSize, Duration, Version};
use cluster::map::FailureDomain;
use cluster::message::{Command, ObjectOptions};
use objects::{
    Assertion, Field, Listing, Look, Name, NameQuery, ObjectChange, ObjectSteps, Operation, Read,
};

use super::object_history::{ObjectHistory, counter_field, is_counter};
use super::plan::{Plan, Pools};
use crate::random::{Chance, Random};

/// The name of the object pool.
pub const OBJECT_POOL: &str = "objects";

/// How many runs have an object pool.
const HAS_POOL: Chance = Chance::percent(25);

/// The names of objects, most used first. Those that begin with `n` are counters.
const NAMES: [&[u8]; 12] =
    [b"a", b"n1", b"b", b"c\0", b"dddd", b"n2", b"e/1", b"e/2", b"f\xff", b"g", b"n3", b"h"];

/// The sizes of data that users write, mostly small ones.
const SIZES: [usize; 10] = [0, 3, 5, 40, 300, 1000, 5000, 9000, 33 << 10, 70 << 10];

/// The plan of an object pool.
pub struct ObjectPlan {
    copies: u8,
    min_size: u32,
    failure_domain: FailureDomain,
    block_size: BlockSize,
    pub(super) pg_count: u32,
    pub(super) shard_count: u32,
    /// When the pool is created, from the begin of the users' work on. `None`: before that.
    pub(super) created_after: Option<Duration>,
    /// The most requests of a client that are under way.
    pub(super) depth_max: usize,
    /// The mean pause between two requests of a client, in nanoseconds.
    pub(super) think: u64,
    /// The most requests of all clients while they work.
    pub(super) request_count_max: u64,
    /// How often the file system of an engine is full for a while, for each of its steps.
    pub(super) engine_fills: Chance,
}

impl ObjectPlan {
    /// Draws whether a run has an object pool, and which. It keeps as many copies as the other pool.
    pub fn draw(seed: u64, pools: Pools, plan: &mut Plan) -> Option<ObjectPlan> {
        let mut random = Random::new(seed, "object plan");
        if pools != Pools::Copies || !random.chance(HAS_POOL) {
            return None;
        }
        // Each OSD has some, so that no other one gets a PG while it is down.
        let pg_count = (1 << random.range(0..4)).max(plan.osd_count.next_power_of_two() as u32);
        let shifts = [14, 15, 16, 17];
        let copies = plan.position_count() as u8;
        let drawn = ObjectPlan {
            copies,
            min_size: plan.min_size.min(copies.into()),
            failure_domain: plan.failure_domain,
            block_size: BlockSize::from_shift(*random.pick(&shifts)).expect("in range"),
            pg_count,
            shard_count: pg_count << random.range(0..3),
            created_after: random
                .chance(Chance::percent(40))
                .then(|| Duration::from_millis(random.scale(1..1_500))),
            depth_max: random.scale(1..24) as usize,
            think: plan.think.max(random.scale(1_000_000..20_000_000)),
            request_count_max: random.range(300..900),
            engine_fills: match random.chance(Chance::percent(25)) {
                true => Chance(random.scale(300..20_000) as u32),
                false => Chance::NEVER,
            },
        };
        // What the primary cannot read of an object is not fetched from another member, so reads would be
        // answered with damage.
        plan.faults.rot = Chance::NEVER;
        plan.faults.read_error = Chance::NEVER;
        Some(drawn)
    }

    /// Returns the command that creates the pool.
    pub fn create(&self) -> Command {
        Command::PoolCreate {
            pool: OBJECT_POOL.to_string(),
            scheme: Some(base::Scheme::Copies { count: self.copies }),
            min_size: Some(self.min_size),
            pg_count: Some(self.pg_count),
            failure_domain: Some(self.failure_domain),
            block_size: Some(self.block_size),
            objects: Some(ObjectOptions {
                shards: Some(self.shard_count),
                ..ObjectOptions::default()
            }),
        }
    }
}

/// Returns the names of all objects.
pub fn names() -> impl Iterator<Item = Name> {
    NAMES.iter().map(|bytes| Name::new(bytes).expect("neither empty nor long"))
}

fn any_name(random: &mut Random) -> Name {
    let end = random.range(1..NAMES.len() as u64 + 1);
    names().nth(random.below(end) as usize).expect("below their number")
}

fn any_field(random: &mut Random) -> Field {
    let key = vec![b'k', random.below(4) as u8];
    if random.chance(Chance::percent(40)) { Field::Attribute(key) } else { Field::Record(key) }
}

fn any_value(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => Vec::new(),
        1 => vec![random.below(4) as u8; 3],
        _ => random.below(100).to_le_bytes().to_vec(),
    }
}

fn any_bytes(random: &mut Random) -> Vec<u8> {
    let reach = random.range(1..SIZES.len() as u64 + 1);
    let size = SIZES[random.below(reach) as usize] + random.index(3);
    let byte = random.below(256) as u8;
    (0..size).map(|at| byte.wrapping_add((at >> 8) as u8)).collect()
}

fn any_change(random: &mut Random) -> ObjectChange {
    let offset = random.scale(1..90 << 10);
    match random.below(14) {
        0 | 1 => ObjectChange::Put(any_bytes(random)),
        2 => ObjectChange::Write { offset, bytes: any_bytes(random) },
        3 => ObjectChange::Append(any_bytes(random)),
        4 => ObjectChange::Truncate(offset - 1),
        5 => ObjectChange::Zero { offset, length: random.scale(1..30 << 10) },
        6 => ObjectChange::Unset(any_field(random)),
        7 => {
            let before = random.chance(Chance::percent(50)).then(|| vec![b'k', 3]);
            ObjectChange::RemoveRecords { from: vec![b'k', 1], before }
        }
        8..11 => ObjectChange::Set(any_field(random), any_value(random)),
        11 => ObjectChange::Partial(random.chance(Chance::percent(30))),
        _ => ObjectChange::Add(any_field(random), random.below(5) as i64),
    }
}

fn any_assertion(random: &mut Random, known: Version) -> Assertion {
    match random.below(9) {
        0 => Assertion::Exists,
        1 => Assertion::Absent,
        2..5 => Assertion::Version(known),
        5 => Assertion::Has(any_field(random)),
        6 => Assertion::Lacks(any_field(random)),
        7 => Assertion::Equals(any_field(random), any_value(random)),
        _ => Assertion::Differs(any_field(random), any_value(random)),
    }
}

/// Draws what an operation does with an object. `is_blind`: it only puts.
fn any_steps(
    random: &mut Random,
    name: Name,
    known: Version,
    tag: [u8; 8],
    is_blind: bool,
) -> ObjectSteps {
    if is_blind || random.chance(Chance::percent(5)) {
        let changes = vec![ObjectChange::Put(tag.to_vec())];
        return ObjectSteps { name, assertions: Vec::new(), changes };
    }
    let count = random.below(5).saturating_sub(2);
    let mut assertions: Vec<Assertion> = (0..count).map(|_| any_assertion(random, known)).collect();
    let mut changes: Vec<ObjectChange> = (0..random.below(4)).map(|_| any_change(random)).collect();
    if random.chance(Chance::percent(8)) {
        changes.push(ObjectChange::Remove);
    }
    // The tag is in something that has no effect.
    match changes.is_empty() {
        true => assertions.push(Assertion::Differs(Field::Record(b"tag".to_vec()), tag.to_vec())),
        false => changes.insert(0, ObjectChange::Unset(Field::Attribute(tag.to_vec()))),
    }
    ObjectSteps { name, assertions, changes }
}

/// Draws an operation.
pub fn any_operation(random: &mut Random, history: &ObjectHistory) -> Operation {
    loop {
        let first = any_name(random);
        if is_counter(&first) {
            let tag = ObjectChange::Unset(Field::Attribute(history.tag().to_vec()));
            let changes = vec![tag, ObjectChange::Add(counter_field(), 1)];
            let steps = ObjectSteps { name: first, assertions: Vec::new(), changes };
            return Operation { objects: vec![steps] };
        }
        let pg = history.pg_of(&first);
        let mut chosen = BTreeSet::from([first]);
        // Puts of several objects, and nothing else, follow each other without reading heads.
        let is_blind = random.chance(Chance::percent(12));
        if random.chance(Chance::percent(15)) || is_blind {
            let others = (0..if is_blind { 4 } else { 1 }).map(|_| any_name(random));
            let is_beside = |it: &Name| !is_counter(it) && history.pg_of(it) == pg;
            chosen.extend(others.filter(is_beside));
        }
        let steps = chosen.into_iter().map(|name| {
            let known = history.known_version(&name);
            any_steps(random, name, known, history.tag(), is_blind)
        });
        let operation = Operation { objects: steps.collect() };
        if operation.check().is_ok() {
            return operation;
        }
    }
}

/// Draws what to read, and of which PG.
pub fn any_look(random: &mut Random, history: &ObjectHistory) -> (u32, Look) {
    let first = any_name(random);
    let pg = history.pg_of(&first);
    if random.chance(Chance::percent(15)) {
        return (pg, any_query(random).look(history.shards_of(pg)));
    }
    let count = random.range(1..4);
    let mut reads = Vec::new();
    for _ in 0..count {
        let other = any_name(random);
        let name = if history.pg_of(&other) == pg { other } else { first.clone() };
        reads.push(any_read(random, name));
    }
    (pg, Look { reads })
}

/// Draws which objects to list.
pub fn any_query(random: &mut Random) -> NameQuery {
    let with_data = random.chance(Chance::percent(30));
    let from = if random.chance(Chance::percent(30)) { b"b".to_vec() } else { Vec::new() };
    let count_max = random.range(1..20) as usize;
    let listing = Listing { count_max, size_max: 200 << 10, from, ..Listing::default() };
    NameQuery { listing, with_data }
}

fn any_read(random: &mut Random, name: Name) -> Read {
    let count_max = random.range(1..8) as usize;
    let listing = Listing { count_max, size_max: 10 << 10, ..Listing::default() };
    match random.below(6) {
        0 => Read::Stat { name },
        1 | 2 => {
            let offset = if random.chance(Chance::percent(50)) { 0 } else { random.below(9000) };
            Read::Data { name, offset, length: random.scale(1..160 << 10) as u32 }
        }
        3 => {
            let fields = vec![any_field(random), any_field(random), counter_field()];
            Read::Values { name, fields, size_max: 1000 }
        }
        4 => Read::Records { name, listing },
        _ => Read::Attributes { name, listing },
    }
}

/// Returns reads that show all of an object, and what a counter is.
pub fn whole(name: &Name) -> Look {
    let listing = || Listing { count_max: 100, size_max: 100 << 10, ..Listing::default() };
    let reads = vec![
        Read::Values { name: name.clone(), fields: vec![counter_field()], size_max: 1000 },
        Read::Data { name: name.clone(), offset: 0, length: 3 << 20 },
        Read::Attributes { name: name.clone(), listing: listing() },
        Read::Records { name: name.clone(), listing: listing() },
    ];
    Look { reads }
}
