//! Operations on objects in a PG of several members: many at once, on few objects, with messages and answers of
//! stores in any order that connections allow, and new epochs. All answers must be those of one order of
//! operations, which is that of their versions, and show nothing that not all acting members have.

mod fill;
mod members;
mod scrub;
mod store;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use ::objects::model::{Models, is_answer, model};
use ::objects::{
    Assertion, Bytes, Field, Key, Kind as KeyKind, Listing, Look, Name, ObjectChange, ObjectSteps,
    Operation, Read, Shard, StepResult, decode_answers, decode_results,
};
#[cfg(debug_assertions)]
use base::planted::{self, Bug};
use base::{BufferPool, Epoch, Version};
use format::wire::{BatchContent, Op, Outcome, Payload, PeerBody, Refusal};

use super::UNIT;
use super::world::Random;
use world::{Kind, World};

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

fn one(object: &[u8], assertions: Vec<Assertion>, changes: Vec<ObjectChange>) -> Operation {
    Operation { objects: vec![ObjectSteps { name: name(object), assertions, changes }] }
}

// ---- random operations ----------------------------------------------------------------------

const NAMES: [&[u8]; 4] = [b"a", b"b", b"c\0", b"dddd"];

fn any_name(random: &mut Random) -> Name {
    // Most of what happens concerns one object.
    name(NAMES[random.below(NAMES.len() * 2).saturating_sub(NAMES.len())])
}

fn any_field(random: &mut Random) -> Field {
    let key = vec![b'k', random.below(3) as u8];
    if random.below(2) == 0 { Field::Attribute(key) } else { Field::Record(key) }
}

fn any_value(random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => Vec::new(),
        1 => vec![random.below(256) as u8; 3],
        _ => (random.below(100) as i64).to_le_bytes().to_vec(),
    }
}

fn any_bytes(random: &mut Random) -> Vec<u8> {
    let sizes = [0, 5, 300, 5000, 33 << 10, 70 << 10];
    let size = sizes[random.below(sizes.len())] + random.below(3);
    let byte = random.below(256) as u8;
    (0..size).map(|at| byte.wrapping_add((at >> 8) as u8)).collect()
}

fn any_change(random: &mut Random) -> ObjectChange {
    let offset = random.below(90 << 10) as u64;
    match random.below(12) {
        0 | 1 => ObjectChange::Put(any_bytes(random)),
        2 => ObjectChange::Write { offset, bytes: any_bytes(random) },
        3 => ObjectChange::Append(any_bytes(random)),
        4 => ObjectChange::Truncate(offset),
        5 => ObjectChange::Zero { offset, length: random.below(30 << 10) as u64 },
        6 => ObjectChange::Unset(any_field(random)),
        7 => ObjectChange::RemoveRecords { from: vec![b'k', 1], before: None },
        8 | 9 => ObjectChange::Set(any_field(random), any_value(random)),
        _ => ObjectChange::Add(any_field(random), random.below(5) as i64),
    }
}

fn any_assertion(random: &mut Random, known: Version) -> Assertion {
    match random.below(7) {
        0 => Assertion::Exists,
        1 => Assertion::Absent,
        2 => Assertion::Version(known),
        3 => Assertion::Has(any_field(random)),
        4 => Assertion::Lacks(any_field(random)),
        5 => Assertion::Equals(any_field(random), any_value(random)),
        _ => Assertion::Differs(any_field(random), any_value(random)),
    }
}

/// Returns an operation. `known`: a version that some object has, or had.
fn any_operation(random: &mut Random, known: Version) -> Operation {
    loop {
        let mut names = BTreeSet::from([any_name(random)]);
        if random.below(5) == 0 {
            names.insert(any_name(random));
        }
        let is_blind = random.below(8) == 0;
        let steps = |name| {
            if is_blind || random.below(5) == 0 {
                // A short put with nothing else: perhaps a blind one.
                let changes = vec![ObjectChange::Put(vec![random.below(256) as u8; 9])];
                return ObjectSteps { name, assertions: Vec::new(), changes };
            }
            let count = random.below(4).saturating_sub(2);
            let assertions = (0..count).map(|_| any_assertion(random, known)).collect();
            let count = random.below(3);
            let mut changes: Vec<_> = (0..count).map(|_| any_change(random)).collect();
            if random.below(10) == 0 {
                changes.push(ObjectChange::Remove);
            }
            ObjectSteps { name, assertions, changes }
        };
        let operation = Operation { objects: names.into_iter().map(steps).collect() };
        if operation.check().is_ok() {
            return operation;
        }
    }
}

fn any_look(random: &mut Random) -> Look {
    let listing = || Listing { count_max: 10, size_max: 100 << 10, ..Listing::default() };
    let read = |random: &mut Random| match random.below(6) {
        0 => Read::Stat { name: any_name(random) },
        1 | 2 => Read::Data { name: any_name(random), offset: 3, length: 90 << 10 },
        3 => {
            let fields = vec![any_field(random), any_field(random)];
            Read::Values { name: any_name(random), fields, size_max: 1000 }
        }
        4 => Read::Records { name: any_name(random), listing: listing() },
        _ => Read::Attributes { name: any_name(random), listing: listing() },
    };
    let count = 1 + random.below(3);
    Look { reads: (0..count).map(|_| read(random)).collect() }
}

// ---- what answers must be -------------------------------------------------------------------

/// Checks all answers against the operations in the order of their versions.
fn check(world: &World) {
    // The objects after each version.
    let mut states: Vec<(Version, Models)> = vec![(Version::ZERO, Models::new())];
    // What each version has as results, by the operation.
    let mut executed: BTreeMap<usize, (Version, Vec<StepResult>)> = BTreeMap::new();
    let operations = world.versions.iter().map(|(version, number)| (version, Some(number)));
    let cleanings = world.cleanings.iter().map(|version| (version, None));
    for (version, number) in operations.chain(cleanings).collect::<BTreeMap<_, _>>() {
        let Some(number) = number else {
            // Housekeeping changes nothing that anybody sees.
            let (last, objects) = states.last().unwrap().clone();
            assert!(last.counter + 1 == version.counter, "{last} is before {version}");
            states.push((*version, objects));
            continue;
        };
        let op = &world.ops[*number];
        let Kind::Mutate(operation) = &op.kind else { panic!("a read has a version") };
        let (last, mut objects) = states.last().unwrap().clone();
        assert!(last.counter + 1 == version.counter, "{last} is before {version}");
        let outcome = model(&mut objects, operation, *version);
        let (results, is_change) = outcome.unwrap_or_else(|at| {
            panic!("{version} was given to {operation:?}, which is refused at {at:?}")
        });
        assert!(is_change, "{version} changes nothing");
        let before = executed.insert(op.original, (*version, results.clone()));
        assert_eq!(before, None, "{operation:?} was executed again as {version}");
        if let Some(answered) = &op.answered {
            let Ok(Outcome::Mutated { version: told, results: bytes }) = &answered.outcome else {
                let is_stale = matches!(answered.outcome, Err(Refusal::Stale(_)));
                assert!(is_stale, "{version} was answered {:?}", answered.outcome);
                states.push((*version, objects));
                continue;
            };
            assert_eq!((told, decode_results(bytes)), (version, Some(results)), "{operation:?}");
            assert!(op.begun.lowest < *version, "it came before what had ended: {operation:?}");
            assert!(*version <= answered.at_all, "{version} is not at all acting members");
        }
        states.push((*version, objects));
    }
    for op in &world.ops {
        let Some(answered) = &op.answered else { continue };
        let may_be = |is_it: &dyn Fn(&Models) -> bool| {
            let window = op.begun.lowest..=answered.at_all;
            let mut states = states.iter().filter(|(version, _)| window.contains(version));
            assert!(states.any(|(_, objects)| is_it(objects)), "{window:?}: {op:?}");
        };
        match (&op.kind, &answered.outcome) {
            (_, Err(Refusal::Stale(_))) => {}
            (Kind::Mutate(_), Err(Refusal::Fenced)) => assert!(op.session < world.session),
            // The store of a primary that was alone had no room: it never happened.
            (Kind::Mutate(_), Err(Refusal::Full)) => {
                assert!(!executed.contains_key(&op.original), "{op:?}");
            }
            (Kind::Mutate(_), Ok(Outcome::Mutated { version, .. })) if *version > Version::ZERO => {
                let Ok(Outcome::Mutated { results, .. }) = &answered.outcome else {
                    unreachable!()
                };
                let told = (*version, decode_results(results).unwrap());
                assert_eq!(executed.get(&op.original), Some(&told), "{op:?}");
                assert!(*version <= answered.at_all, "{version} is not at all acting members");
            }
            (Kind::Mutate(operation), Ok(Outcome::Mutated { results, .. })) => {
                let results = decode_results(results).unwrap();
                may_be(&|it| {
                    model(&mut it.clone(), operation, Version::ZERO) == Ok((results.clone(), false))
                });
            }
            (Kind::Mutate(operation), Err(Refusal::Asserted { object, step, version })) => {
                let at = (usize::from(*object), usize::from(*step));
                let object = &operation.objects[at.0].name;
                may_be(&|it| {
                    let known = it.get(object).map_or(Version::ZERO, |(version, _)| *version);
                    model(&mut it.clone(), operation, Version::ZERO) == Err(at)
                        && (known == *version || at.1 >= operation.objects[at.0].assertions.len())
                });
            }
            (Kind::Mutate(operation), Err(Refusal::TooLarge { .. })) => {
                assert!(operation.objects.len() > 1);
            }
            (Kind::Look(look), Ok(Outcome::Looked { answers })) => {
                let answers =
                    decode_answers(&Bytes::copy_from_slice(answers.bytes().unwrap())).unwrap();
                assert_eq!(answers.len(), look.reads.len());
                may_be(&|it| {
                    let mut pairs = look.reads.iter().zip(&answers);
                    pairs.all(|(read, answer)| is_answer(read, answer, it))
                });
            }
            (_, outcome) => panic!("{op:?}: {outcome:?}"),
        }
    }
    // All members hold what the model has.
    let (last, objects) = states.last().unwrap();
    let members = world.acting();
    for index in &members {
        let store = &world.osds[*index].store;
        assert!(store.is_fragile || store.last.counter == last.counter);
        assert_eq!(store.objects(), *objects);
        store.assert_equals(&world.osds[members[0]].store);
    }
}

/// Lets operations come and all else happen in random order, then all end.
fn run(seed: u64, members: usize, events: usize) -> World {
    let mut world = World::new(seed, members);
    world.waits_percent = 20;
    for _ in 0..events {
        match world.random.below(24) {
            0..4 if world.serves() => {
                let known = world.some_version();
                let operation = any_operation(&mut world.random, known);
                world.begin(Kind::Mutate(operation));
            }
            4..6 if world.serves() => {
                let look = any_look(&mut world.random);
                world.begin(Kind::Look(look));
            }
            // A primary may die while members are brought together, too.
            6 if world.random.below(if world.serves() { 8 } else { 3 }) == 0 => {
                let member = world.random.below(members);
                if world.random.below(6) > 0 || !world.lose_member(member) {
                    world.next_epoch();
                }
            }
            9 if world.random.below(30) == 0 => {
                let member = world.random.below(members);
                world.osds[member].store.is_full = true;
            }
            _ if world.needs_epoch => world.next_epoch(),
            10 | 11 => world.tick(),
            7 | 8 if world.serves() => world.send_again(),
            12 if world.random.below(8) == 0 => world.change_session(),
            _ => drop(world.happen()),
        }
    }
    world.end_all();
    world.delete_over();
    world
}

fn run_many(seeds: std::ops::Range<u64>) {
    let (mut forward_count, mut cleaning_count) = (0, 0);
    for seed in seeds {
        let run = || {
            let world = run(seed, 1 + seed as usize % 3, 700);
            check(&world);
            let forwards = world.osds.iter().map(|osd| osd.store.forward_count);
            (forwards.sum::<usize>(), world.cleanings.len())
        };
        match std::panic::catch_unwind(run) {
            Ok((forwards, cleanings)) => {
                forward_count += forwards;
                cleaning_count += cleanings;
            }
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{forward_count} forwards, {cleaning_count} batches of housekeeping");
    assert!(forward_count > 20 && cleaning_count > 20);
}

#[test]
fn answers_are_those_of_one_order_and_show_what_all_members_have() {
    run_many(0..60);
}

#[test]
#[ignore = "takes minutes"]
fn answers_are_those_of_one_order_in_many_runs() {
    run_many(1000..6000);
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_of_objects_are_found() {
    let bugs = [
        Bug::ReadShowsUnacknowledged,
        Bug::QueuedOnStaleHead,
        Bug::WantsReadWhileQueued,
        Bug::RepeatExecuted,
        Bug::RepeatClosedEarly,
        Bug::LogRecordMissing,
        Bug::ForwardByKeys,
    ];
    for bug in bugs {
        assert!(planted::fails(bug, || run_many(0..240)), "{bug:?} was not found");
    }
    let over = repeats_of_a_session_go_when_it_is_over_and_nothing_of_it_is_open;
    let bug = Bug::RepeatOfOpenDeleted;
    assert!(planted::fails(bug, over), "{bug:?} was not found");
    let bug = Bug::LogCutWithoutReach;
    assert!(planted::fails(bug, a_log_that_was_cut_brings_nobody_forward), "{bug:?} was not found");
}

// ---- one thing at a time --------------------------------------------------------------------

fn add(object: &[u8]) -> Operation {
    one(object, vec![], vec![ObjectChange::Add(Field::Record(b"n".to_vec()), 1)])
}

fn sum_of(outcome: &Result<Outcome, Refusal>) -> (Version, i64) {
    let Ok(Outcome::Mutated { version, results }) = outcome else { panic!("{outcome:?}") };
    let Some([StepResult::Sum(sum)]) = decode_results(results).as_deref().map(|it| [it[0]]) else {
        panic!("no sum")
    };
    (*version, sum)
}

#[test]
fn queued_additions_leave_as_one_batch_with_a_version_for_each() {
    let mut world = World::active(3);
    let first = world.begin(Kind::Mutate(add(b"n")));
    let queued: Vec<usize> = (0..5).map(|_| world.begin(Kind::Mutate(add(b"n")))).collect();
    world.end_all();
    let epoch = Epoch::new(1);
    assert_eq!(sum_of(world.outcome(first)), (Version { epoch, counter: 1 }, 1));
    for (at, op) in queued.into_iter().enumerate() {
        let version = Version { epoch, counter: at as u64 + 2 };
        assert_eq!(sum_of(world.outcome(op)), (version, at as i64 + 2));
    }
    assert_eq!(world.batch_count, 2, "the first one, and what queued meanwhile");
    check(&world);
}

fn put(object: &[u8], size: usize) -> Operation {
    let bytes = (0..size).map(|at| (at >> 8) as u8 | 1).collect();
    one(object, vec![], vec![ObjectChange::Put(bytes)])
}

fn version_of(outcome: &Result<Outcome, Refusal>) -> Version {
    let Ok(Outcome::Mutated { version, .. }) = outcome else { panic!("{outcome:?}") };
    *version
}

#[test]
fn what_would_not_fit_one_entry_with_the_rest_in_flight_waits_at_the_gate() {
    let mut world = World::active(2);
    let ops = [b"a", b"b", b"c"].map(|it| world.begin(Kind::Mutate(put(it, 1 << 20))));
    while world.happen_at_primary() {}
    let large = world.begin(Kind::Mutate(put(b"d", 2 << 20)));
    while world.happen_at_primary() {}
    let small = world.begin(Kind::Mutate(add(b"e")));
    // All are prepared, and no other member has answered.
    while world.happen_at_primary() {}
    assert_eq!(world.batch_count, 3, "3 MiB are in flight");
    world.end_all();
    assert_eq!(world.batch_count, 5);
    let versions = ops.map(|op| version_of(world.outcome(op)));
    let large = version_of(world.outcome(large));
    assert!(versions.iter().all(|version| *version < large));
    assert!(large < version_of(world.outcome(small)), "it was prepared later");
    check(&world);
}

#[test]
fn what_the_operations_of_a_turn_want_is_read_together() {
    let mut world = World::active(1);
    let field = |at: u16| Field::Record(at.to_le_bytes().to_vec());
    let sets = (0..300).map(|at| ObjectChange::Set(field(at), vec![1]));
    world.begin(Kind::Mutate(one(b"a", vec![], sets.collect())));
    world.end_all();
    world.begin(Kind::Mutate(add(b"a")));
    // Each is true only if the one before it was executed; and one is false.
    let asked = world.osds[0].store.keys_asked.len();
    let swap = |at: u16| {
        let is = Assertion::Equals(field(at), vec![if at == 9 { 7 } else { 1 }]);
        let next = [ObjectChange::Add(Field::Record(b"n".to_vec()), 1)];
        let was = Assertion::Equals(
            Field::Record(b"n".to_vec()),
            (at as i64 + 1 - (at > 9) as i64).to_le_bytes().into(),
        );
        one(b"a", vec![is, was], next.into())
    };
    let ops: Vec<usize> = (0..250).map(|at| world.begin(Kind::Mutate(swap(at)))).collect();
    assert_eq!(world.osds[0].store.keys_asked.len(), asked, "nothing is read while they queue");
    world.end_all();
    for (at, op) in ops.into_iter().enumerate() {
        match world.outcome(op) {
            Ok(_) => assert!(at != 9),
            outcome => {
                assert!(at == 9 && matches!(outcome, Err(Refusal::Asserted { step: 0, .. })))
            }
        }
    }
    // The head, and 251 records, in requests of 64; each may have to be repeated, since it is not in memory.
    let requests = &world.osds[0].store.keys_asked[asked..];
    assert!((4..=8).contains(&requests.len()), "{requests:?}");
    assert!(requests.iter().all(|count| *count <= 64));
    assert_eq!(world.batch_count, 3);
    check(&world);
}

#[test]
fn an_event_looks_at_a_limited_number_of_steps() {
    let mut world = World::active(1);
    world.begin(Kind::Mutate(add(b"a")));
    world.end_all();
    world.begin(Kind::Mutate(add(b"a")));
    // Nothing of them is read but the head: all differ from what the record cannot be.
    let differs =
        |at: u32| Assertion::Differs(Field::Record(b"n".to_vec()), at.to_le_bytes().into());
    let assertions: Vec<_> = (0..4096).map(differs).collect();
    let ops: Vec<usize> = (0..100)
        .map(|_| world.begin(Kind::Mutate(one(b"a", assertions.clone(), vec![]))))
        .collect();
    let asked = world.osds[0].store.keys_asked.len();
    world.end_all();
    assert!(ops.into_iter().all(|op| world.outcome(op).is_ok()));
    let requests = &world.osds[0].store.keys_asked[asked..];
    // Three operations in each event: a fourth one has a step too many, with its object.
    assert!((33..=2 * 36).contains(&requests.len()), "{requests:?}");
}

#[test]
fn a_turn_reads_on_where_a_portion_ends() {
    let mut world = World::active(1);
    let field = |at: u16| Field::Record(at.to_le_bytes().to_vec());
    for at in 0..130 {
        let set = ObjectChange::Set(field(at), vec![at as u8; 64 << 10]);
        world.begin(Kind::Mutate(one(b"a", vec![], vec![set])));
        world.end_all();
    }
    world.begin(Kind::Mutate(add(b"a")));
    let has = |at: std::ops::Range<u16>| at.map(|at| Assertion::Has(field(at))).collect();
    let unset = |of| one(b"a", has(of), vec![ObjectChange::Unset(field(0))]);
    let first = world.begin(Kind::Mutate(unset(0..64)));
    let second = world.begin(Kind::Mutate(unset(64..128)));
    let too_large = world.begin(Kind::Mutate(unset(60..125)));
    let gone = world.begin(Kind::Mutate(unset(0..1)));
    let last = world.begin(Kind::Mutate(unset(129..130)));
    world.end_all();
    for op in [first, second, last] {
        assert!(world.outcome(op).is_ok(), "{:?}", world.outcome(op));
    }
    assert!(matches!(world.outcome(too_large), Err(Refusal::TooLarge { .. })));
    assert!(matches!(world.outcome(gone), Err(Refusal::Asserted { step: 0, .. })));
}

#[test]
fn who_wants_what_cannot_be_read_is_refused_alone() {
    let mut world = World::active(1);
    let first = world.begin(Kind::Mutate(add(b"a")));
    world.end_all();
    world.lose_answer(first);
    world.osds[0].store.alter(|records| {
        let is_repeat = |key: &[u8]| {
            matches!(Key::decode(key).map(|key| key.kind), Some(KeyKind::Repeat { .. }))
        };
        records.iter_mut().filter(|(key, _)| is_repeat(key)).for_each(|(_, value)| value.clear());
    });
    world.begin(Kind::Mutate(add(b"a")));
    let before = world.begin(Kind::Mutate(add(b"a")));
    world.send_again();
    let again = world.ops.len() - 1;
    let behind = world.begin(Kind::Mutate(add(b"a")));
    world.end_all();
    assert_eq!(sum_of(world.outcome(before)).1, 3);
    assert!(matches!(world.outcome(again), Err(Refusal::Damaged { .. })));
    assert_eq!(sum_of(world.outcome(behind)).1, 4);
}

#[test]
fn what_was_executed_is_known_where_its_turn_ends_before_it() {
    let mut world = World::active(2);
    let first = world.begin(Kind::Mutate(add(b"a")));
    world.end_all();
    let answer = sum_of(world.outcome(first));
    world.lose_answer(first);
    world.begin(Kind::Mutate(add(b"a")));
    // The second one has no room beside the first one, so it ends the run.
    for _ in 0..2 {
        let append = ObjectChange::Append(vec![1; 2 << 20]);
        world.begin(Kind::Mutate(one(b"a", vec![], vec![append])));
    }
    world.send_again();
    let again = world.ops.len() - 1;
    world.end_all();
    assert_eq!(sum_of(world.outcome(again)), answer);
    assert_eq!(world.batch_count, 4);
    check(&world);
}

#[test]
fn what_must_be_read_may_take_several_requests() {
    let field = |at: u16| Field::Record(at.to_le_bytes().to_vec());
    let value = |at: u16| at.to_le_bytes().to_vec();
    let (fields, mut world) = (0..1100, World::active(1));
    let sets = fields.clone().map(|at| ObjectChange::Set(field(at), value(at))).collect();
    world.begin(Kind::Mutate(one(b"a", vec![], sets)));
    let equal = fields.map(|at| Assertion::Equals(field(at), value(at))).collect();
    world.begin(Kind::Mutate(one(b"a", equal, vec![ObjectChange::Remove])));
    world.end_all();
    check(&world);
    assert!(world.osds[0].store.objects().is_empty());
}

#[test]
fn an_object_whose_head_is_no_head_is_absent_for_no_operation_of_a_turn() {
    let mut world = World::active(2);
    world.begin(Kind::Mutate(put(b"a", 50 << 10)));
    world.end_all();
    world.osds[0].store.alter(|records| {
        let heads = records.iter_mut().filter(|(key, _)| {
            matches!(Key::decode(key).map(|key| key.kind), Some(KeyKind::Head { .. }))
        });
        heads.for_each(|(_, value)| *value = vec![0xff; 5]);
    });
    let first = world.begin(Kind::Mutate(add(b"b")));
    let absent = || one(b"a", vec![Assertion::Absent], vec![ObjectChange::Put(vec![1])]);
    let queued = [put(b"a", 9), add(b"a"), absent(), put(b"a", 9)];
    let queued = queued.map(|operation| world.begin(Kind::Mutate(operation)));
    world.end_all();
    assert_eq!(sum_of(world.outcome(first)).1, 1);
    for op in queued {
        assert!(
            matches!(world.outcome(op), Err(Refusal::Damaged { .. })),
            "{:?}",
            world.outcome(op)
        );
    }
}

#[test]
fn blind_puts_follow_each_other_and_read_a_head_only_where_blocks_lie() {
    let mut world = World::active(2);
    let puts: Vec<usize> = (0..3).map(|at| world.begin(Kind::Mutate(put(b"a", 9 + at)))).collect();
    assert_eq!(world.batch_count, 3, "all are in flight");
    world.end_all();
    assert!(puts.is_sorted_by_key(|op| version_of(world.outcome(*op))));
    world.begin(Kind::Mutate(put(b"a", 50 << 10)));
    world.end_all();
    // The head names the blocks, which go.
    world.begin(Kind::Mutate(put(b"a", 9)));
    assert_eq!(world.batch_count, 4, "it reads the head");
    world.end_all();
    check(&world);
}

#[test]
fn blind_puts_of_several_objects_follow_each_other_and_read_heads_where_blocks_lie() {
    let puts = |objects: [&[u8]; 2], size| {
        let steps = objects.map(|object| put(object, size).objects);
        Kind::Mutate(Operation { objects: steps.concat() })
    };
    let mut world = World::active(2);
    for size in [9, 8, 7] {
        world.begin(puts([b"a", b"b"], size));
    }
    assert_eq!(world.batch_count, 3, "all are in flight");
    world.end_all();
    // A change stands between.
    world.begin(Kind::Mutate(add(b"b")));
    world.begin(puts([b"a", b"b"], 6));
    while world.happen_at_primary() {}
    assert_eq!(world.batch_count, 4, "it waits");
    world.end_all();
    // Blocks lie under the second one, or under the first.
    world.begin(Kind::Mutate(put(b"b", 50 << 10)));
    world.end_all();
    let count = world.batch_count;
    for objects in [[b"a", b"b"], [b"b", b"c"]] {
        let refused = world.begin(puts(objects.map(|object| &object[..]), 5));
        assert_eq!(world.batch_count, count, "it reads heads");
        world.end_all();
        assert!(matches!(world.outcome(refused), Err(Refusal::TooLarge { .. })));
    }
    world.begin(puts([b"a", b"c"], 4));
    assert_eq!(world.batch_count, count + 1);
    world.end_all();
    check(&world);
}

#[test]
fn a_read_waits_for_what_it_shows_and_for_nothing_else() {
    let mut world = World::active(3);
    world.begin(Kind::Mutate(put(b"a", 9)));
    let stat = |object: &[u8]| Kind::Look(Look { reads: vec![Read::Stat { name: name(object) }] });
    let [shown, other] = [b"a", b"b"].map(|object| world.begin(stat(object)));
    while world.happen_at_primary() {}
    assert!(world.ops[other].answered.is_some());
    assert!(world.ops[shown].answered.is_none(), "members lack what it shows");
    world.end_all();
    check(&world);
}

#[test]
fn a_read_that_is_overtaken_again_and_again_takes_its_turn() {
    let mut world = World::active(2);
    world.begin(Kind::Mutate(put(b"a", 400 << 10)));
    world.end_all();
    let data = Read::Data { name: name(b"a"), offset: 0, length: 400 << 10 };
    let look = || Kind::Look(Look { reads: vec![data.clone()] });
    let write = ObjectChange::Write { offset: 5, bytes: vec![1; 9] };
    let write = || Kind::Mutate(one(b"a", vec![], vec![write.clone()]));
    for _ in 0..3 {
        world.begin(look());
    }
    while !world.had_read_in_turn {
        world.begin(write());
        assert!(world.happen() && world.happen() && world.ops.len() < 2_000);
    }
    world.end_all();
    check(&world);
}

#[test]
fn operations_of_the_other_kind_of_pool_and_of_other_pgs_are_refused() {
    let mut world = World::active(1);
    let is_invalid = |outcome: Result<Outcome, Refusal>| {
        assert!(matches!(outcome, Err(Refusal::Invalid { .. })), "{outcome:?}");
    };
    is_invalid(world.ask(Op::Sync));
    let payload = |bytes: &[u8]| Payload::new(bytes, &BufferPool::default());
    is_invalid(world.ask(Op::Look { reads: payload(b"none") }));
    let mutate = |operation| Op::Mutate { number: 0, lowest: 0, again: false, operation };
    is_invalid(world.ask(mutate(payload(b"none"))));
    let shard = Shard::new(9);
    let listing = Listing { count_max: 1, size_max: 1, ..Listing::default() };
    let list = Read::List { shards: vec![shard], listing, with_data: false, skip: 0 };
    is_invalid(world.ask(Op::Look { reads: payload(&Look { reads: vec![list] }.encode()) }));
    let mut world = World::of_half(1);
    // Of two names, one belongs to the other half of the pool.
    let refused = [b"a", b"b", b"c", b"d", b"e"].map(|object| {
        let outcome = world.ask(mutate(payload(&add(object).encode())));
        matches!(outcome, Err(Refusal::Invalid { .. }))
    });
    assert!(refused.contains(&true) && refused.contains(&false), "{refused:?}");
}

#[test]
fn what_is_sent_again_is_answered_and_not_executed() {
    let mut world = World::active(2);
    let first = world.begin(Kind::Mutate(add(b"n")));
    while world.happen() {}
    let (version, sum) = sum_of(world.outcome(first));
    // Its answer was lost, and another primary leads.
    world.next_epoch();
    while world.happen() {}
    world.lose_answer(first);
    world.send_again();
    while world.happen() {}
    assert_eq!(sum_of(world.outcome(first + 1)), (version, sum));
    let next = world.begin(Kind::Mutate(add(b"n")));
    while world.happen() {}
    assert_eq!(sum_of(world.outcome(next)).1, sum + 1);
}

#[test]
fn too_many_ranges_are_invalid_unless_an_older_version_has_executed_them() {
    let range = |at| ObjectChange::RemoveRecords { from: vec![at], before: Some(vec![at, 0]) };
    let of = |count| one(b"a", vec![], (0..count).map(range).collect());
    let mut world = World::active(2);
    world.begin(Kind::Mutate(add(b"a")));
    let first = world.begin(Kind::Mutate(of(16)));
    let many = world.begin(Kind::Mutate(of(17)));
    world.end_all();
    let Err(Refusal::Invalid { why }) = world.outcome(many) else { panic!("it is invalid") };
    assert!(why.contains("16 ranges"), "{why}");
    let version = version_of(world.outcome(first));
    // As if it had had one range more when it was executed.
    world.ops[first].kind = Kind::Mutate(of(17));
    world.lose_answer(first);
    world.send_again();
    world.end_all();
    assert_eq!(version_of(world.outcome(world.ops.len() - 1)), version);
    world.lose_answer(many);
    world.send_again();
    world.end_all();
    let outcome = world.outcome(world.ops.len() - 1);
    assert!(matches!(outcome, Err(Refusal::Invalid { .. })), "{outcome:?}");
}

#[test]
fn repeats_are_deleted_when_their_answers_have_come() {
    let mut world = World::active(2);
    for _ in 0..200 {
        world.begin(Kind::Mutate(add(b"n")));
        while world.happen() {}
    }
    for osd in &world.osds {
        let count = osd.store.repeat_count();
        assert!((1..=70).contains(&count), "{count} repeats are left");
    }
}

#[test]
fn repeats_of_a_session_go_when_it_is_over_and_nothing_of_it_is_open() {
    let mut world = World::active(2);
    let first = world.begin(Kind::Mutate(add(b"n")));
    while world.happen() {}
    let before = sum_of(world.outcome(first));
    world.lose_answer(first);
    // It comes again, behind another operation on the object, and the fence of its session comes then.
    world.begin(Kind::Mutate(add(b"n")));
    while world.happen_at(0) {}
    world.send_again();
    world.change_session();
    world.tick();
    while world.happen_at(0) {}
    assert_eq!(world.count_over(0), 2, "it will be looked for");
    while world.happen() {}
    assert_eq!(sum_of(world.outcome(first + 2)), before);
    world.delete_over();
    // It comes once more, and to the next primary.
    for _ in 0..2 {
        world.lose_answer(first);
        world.send_again();
        while world.happen() {}
        assert_eq!(
            world.ops.last().unwrap().answered.as_ref().unwrap().outcome,
            Err(Refusal::Fenced)
        );
        world.next_epoch_led_by(1);
        world.end_all();
    }
    // The sessions that follow have theirs.
    let repeat_count = |world: &World| world.osds[0].store.repeat_count();
    assert_eq!(repeat_count(&world), 0);
    for _ in 0..300 {
        world.begin(Kind::Mutate(add(b"n")));
        while world.happen() {}
        world.change_session();
    }
    assert_eq!(repeat_count(&world), 300);
    world.delete_over();
    assert_eq!(repeat_count(&world), 0);
    check(&world);
}

#[test]
fn what_is_not_prepared_yet_can_be_refused() {
    let mut world = World::active(2);
    let ops: Vec<usize> = (0..3).map(|_| world.begin(Kind::Mutate(add(b"n")))).collect();
    world.refuse_waiting(ops[1]);
    while world.happen() {}
    assert_eq!(world.outcome(ops[1]), &Err(Refusal::Fenced));
    assert_eq!(sum_of(world.outcome(ops[2])).1, 2, "the second one did not happen");
}

#[test]
fn a_store_without_room_ends_the_epoch_and_the_next_one_goes_on() {
    let mut world = World::active(1);
    world.osds[0].store.is_full = true;
    let op = world.begin(Kind::Mutate(put(b"a", 9)));
    while world.happen() {}
    assert_eq!(world.outcome(op), &Err(Refusal::Full));
    assert!(!world.serves());
    world.osds[0].store.is_full = false;
    world.next_epoch();
    world.end_all();
    let op = world.begin(Kind::Mutate(put(b"a", 9)));
    world.end_all();
    assert_eq!(version_of(world.outcome(op)), Version { epoch: Epoch::new(2), counter: 1 });
}

#[test]
fn what_only_some_members_have_comes_to_all_or_to_none() {
    for is_alone in [false, true] {
        let mut world = World::active(3);
        let op = world.begin(Kind::Mutate(put(b"a", 70 << 10)));
        while world.happen_at_primary() {}
        if !is_alone {
            let batch = world.batch_on_its_way();
            world.say_to_member(batch).expect("it is the next one");
        }
        // The primary dies.
        assert!(world.lose_member(0));
        world.end_all();
        assert!(matches!(world.outcome(op), Err(Refusal::Stale(_))));
        let count = |index: usize| world.osds[index].store.objects().len();
        assert_eq!((count(1), count(2)), if is_alone { (0, 0) } else { (1, 1) });
        let forward_count = world.osds[2].store.forward_count;
        assert_eq!(forward_count, usize::from(!is_alone), "one entry");
        check(&world);
    }
}

/// The first member lacks a batch that the other two have. The logs of some of these do not tell what it was.
fn brought_forward_beside(without_log: &[usize], has_reach: bool) -> World {
    let mut world = World::active(3);
    world.set_members(&[1, 0, 2], &[]);
    world.next_epoch_led_by(1);
    while world.happen() {}
    world.begin(Kind::Mutate(put(b"a", 9)));
    while world.happen_at_primary() {}
    world.deliver_to(2);
    while world.happen_at(2) {}
    world.lose_messages();
    for index in without_log {
        match has_reach {
            true => (0..4).for_each(|shard| world.osds[*index].store.cut_log(Shard::new(shard))),
            false => world.osds[*index].store.forget_reaches(),
        }
    }
    world.next_epoch_led_by(1);
    while world.happen() {}
    world
}

#[test]
fn who_has_a_log_brings_others_forward_and_who_has_none_does_not() {
    for has_reach in [false, true] {
        for without_log in [&[][..], &[1], &[2]] {
            let mut world = brought_forward_beside(without_log, has_reach);
            assert!(world.failed.is_empty(), "{without_log:?}");
            assert_eq!(world.osds[0].store.forward_count, 1);
            world.end_all();
            check(&world);
        }
        let world = brought_forward_beside(&[1, 2], has_reach);
        assert_eq!(world.failed.iter().collect::<Vec<_>>(), [&0], "it is filled");
        assert_eq!(world.osds[0].store.objects().len(), 0);
    }
}

#[test]
fn an_idle_pg_cuts_its_logs_and_forgets_tombstones() {
    let mut world = World::active(3);
    for at in 0..40u8 {
        world.begin(Kind::Mutate(put(&[b'a', at], 9)));
        let remove = one(&[b'a', at / 2], vec![], vec![ObjectChange::Remove]);
        world.begin(Kind::Mutate(remove));
        while world.happen() {}
    }
    assert!(world.osds[2].store.log_count() > 40 && world.osds[2].store.tombstone_count() == 20);
    let batch_count = world.batch_count;
    for _ in 0..20 {
        world.tick();
        while world.happen() {}
    }
    for osd in &world.osds {
        // What deleted the tombstones is in the log: less than an idle PG cuts.
        assert!(osd.store.log_count() < 16, "{}", osd.store.log_count());
        assert_eq!(osd.store.tombstone_count(), 0);
    }
    let cleaned_count = world.batch_count;
    assert!(cleaned_count > batch_count);
    for _ in 0..20 {
        world.tick();
        while world.happen() {}
    }
    assert_eq!(world.batch_count, cleaned_count, "an idle PG is cleaned once");
}

/// A member loses what it had acknowledged, and the log does not say any more what that was.
#[test]
fn a_log_that_was_cut_brings_nobody_forward() {
    let mut world = World::active(2);
    let old = world.osds[1].store.copy_of_all();
    for at in 0..20u8 {
        world.begin(Kind::Mutate(put(&[b'a', at], 9)));
        while world.happen() {}
    }
    for _ in 0..10 {
        world.tick();
        while world.happen() {}
    }
    assert!(world.osds[0].store.log_count() < 16);
    world.restart_with(1, old);
    while world.happen() {}
    assert_eq!(world.failed.first(), Some(&1), "it is filled");
}

#[test]
fn a_member_that_refused_a_batch_gets_it_in_the_next_epoch() {
    let mut world = World::active(3);
    world.osds[1].store.is_full = true;
    for object in [b"a", b"b"] {
        world.begin(Kind::Mutate(put(object, 9)));
    }
    while world.happen() {}
    assert!(world.needs_epoch);
    world.end_all();
    assert_eq!(world.osds[1].store.forward_count, 1);
    assert_eq!(world.osds[1].store.objects().len(), 2);
    check(&world);
}

#[test]
fn members_that_all_refused_a_batch_are_alike() {
    let mut world = World::active(2);
    for osd in &mut world.osds {
        osd.store.is_full = true;
    }
    world.begin(Kind::Mutate(put(b"a", 9)));
    world.end_all();
    assert!(world.osds.iter().all(|osd| osd.store.forward_count == 0));
    world.begin(Kind::Mutate(put(b"a", 9)));
    world.end_all();
    check(&world);
}

#[test]
fn a_member_takes_the_next_batch_of_its_pg_and_nothing_else() {
    let mut world = World::active(2);
    world.begin(Kind::Mutate(put(b"a", 50 << 10)));
    while world.happen_at_primary() {}
    let right = world.batch_on_its_way();
    let refused =
        |world: &mut World, change: &dyn Fn(&mut Version, &mut Version, &mut BatchContent)| {
            let PeerBody::Batch { mut after, mut version, mark, mut content } = right.clone()
            else {
                panic!("a batch")
            };
            change(&mut after, &mut version, &mut content);
            world.say_to_member(PeerBody::Batch { after, version, mark, content }).unwrap_err()
        };
    refused(&mut world, &|after, _, _| after.counter += 1);
    refused(&mut world, &|_, version, _| version.counter -= 1);
    refused(&mut world, &|_, version, _| version.epoch = Epoch::new(9));
    let reseal = |content: &mut BatchContent, bytes: &[u8]| {
        content.body_length = bytes.len() as u32;
        content.body_checksum = base::crc32c(bytes);
        let mut data = bytes.to_vec();
        data.resize(data.len().next_multiple_of(UNIT as usize), 0);
        data.extend_from_slice(&content.data[content.data.len() - 13 * UNIT as usize..]);
        content.data = BufferPool::default().copy_of(&data);
    };
    let body = |content: &BatchContent| content.data[..content.body_length as usize].to_vec();
    refused(&mut world, &|_, _, content| content.body_checksum = base::crc32c(b"other"));
    refused(&mut world, &|_, _, content| {
        let whole = content.data.len();
        content.data = content.data.slice(0..whole - UNIT as usize);
    });
    refused(&mut world, &|_, _, content| {
        let mut data = content.data.to_vec();
        *data.last_mut().unwrap() ^= 1;
        content.data = BufferPool::default().copy_of(&data);
    });
    // The shard of the first record: the PG has four.
    refused(&mut world, &|_, _, content| {
        let mut bytes = body(content);
        assert_eq!(&bytes[5..8], &[1, 4, 0], "a put of a key of four bytes");
        bytes[9] = 4;
        reseal(content, &bytes);
    });
    refused(&mut world, &|_, _, content| {
        let mut bytes = body(content);
        bytes[10] = 0x50;
        reseal(content, &bytes);
    });
    let same = world.say_to_member(right.clone());
    assert_eq!(same, Ok(()));
    world.say_to_member(right).unwrap_err();
}

#[test]
fn what_is_held_gets_no_version_until_it_is_busy_or_goes_on() {
    let mut world = World::active(2);
    let first = world.begin(Kind::Mutate(add(b"n")));
    world.end_all();
    world.hold(true);
    let held = [b"n", b"m"].map(|object| world.begin(Kind::Mutate(add(object))));
    let queued = world.begin(Kind::Mutate(add(b"n")));
    while world.happen() {}
    assert_eq!(world.batch_count, 1);
    // One of two that are prepared is overdue, and what waits behind it is prepared then.
    world.refuse_held(held[0]);
    while world.happen() {}
    assert_eq!(world.outcome(held[0]), &Err(Refusal::Busy));
    assert!(world.ops[held[1]].answered.is_none() && world.batch_count == 1);
    world.hold(false);
    world.end_all();
    let epoch = Epoch::new(1);
    assert_eq!(sum_of(world.outcome(first)), (Version { epoch, counter: 1 }, 1));
    assert_eq!(sum_of(world.outcome(held[1])), (Version { epoch, counter: 2 }, 1));
    assert_eq!(sum_of(world.outcome(queued)), (Version { epoch, counter: 3 }, 2));
}
