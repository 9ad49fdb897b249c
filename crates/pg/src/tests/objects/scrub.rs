//! Scrubs of a PG of objects: what is the same is left alone, what differs is made good or listed.

use ::objects::{Field, Key, Kind as KeyKind, ObjectChange};
#[cfg(debug_assertions)]
use base::planted::{self, Bug};
use base::{Duration, Time};

use super::world::{Kind, World};
use super::{any_look, any_operation, check, one};
use crate::ScrubEvent;
use crate::face::FaultKind;

/// Operations come, epochs end, and members are scrubbed, in random order.
fn run(seed: u64) -> World {
    let mut world = World::new(seed, 1 + seed as usize % 3);
    world.waits_percent = 20;
    for _ in 0..900 {
        match world.random.below(24) {
            0..3 if world.serves() => {
                let known = world.some_version();
                let operation = any_operation(&mut world.random, known);
                world.begin(Kind::Mutate(operation));
            }
            3 if world.serves() => {
                let look = any_look(&mut world.random);
                world.begin(Kind::Look(look));
            }
            4 if world.random.below(if world.serves() { 20 } else { 3 }) == 0 => world.next_epoch(),
            5 | 6 if world.serves() => {
                let deep = world.random.below(3) > 0;
                world.scrub(deep);
            }
            _ if world.needs_epoch => world.next_epoch(),
            7 => world.tick(),
            8 if world.serves() => world.send_again(),
            9 if world.random.below(8) == 0 => world.change_session(),
            _ => drop(world.happen()),
        }
    }
    world.end_all();
    world
}

fn run_many(seeds: std::ops::Range<u64>) {
    let mut scrub_count = 0;
    for seed in seeds {
        let run = || {
            let mut world = run(seed);
            world.scrub_all(true);
            // What was being read when two epochs ended is passed over. (No time passes here.)
            let is_passed = |event: &ScrubEvent| match event {
                ScrubEvent::Found { faults, .. } => {
                    faults.iter().all(|(_, fault)| fault.kind == FaultKind::NotCompared)
                }
                _ => false,
            };
            world.scrub_events.retain(|event| !is_passed(event));
            assert_eq!(world.scrub_events, [], "nothing is wrong");
            check(&world);
            world.scrub_count
        };
        match std::panic::catch_unwind(run) {
            Ok(count) => scrub_count += count,
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{scrub_count} scrubs");
    assert!(scrub_count > 60, "{scrub_count}");
}

#[test]
fn a_scrub_beside_operations_finds_nothing_where_nothing_is_wrong() {
    run_many(0..40);
}

#[test]
#[ignore = "takes minutes"]
fn a_scrub_beside_operations_finds_nothing_in_many_runs() {
    run_many(1000..3000);
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_of_scrubs_of_objects_are_found() {
    assert!(planted::fails(Bug::ScrubWithoutTurn, || run_many(0..40)));
}

fn record(key: u8, value: u8) -> ObjectChange {
    ObjectChange::Set(Field::Record(vec![key]), vec![value; 40])
}

/// Returns members that have a few objects: one has blocks, one was removed.
fn with_objects(members: usize) -> World {
    let mut world = World::active(members);
    for number in 0..12 {
        let name = [b'o', number];
        world.begin(Kind::Mutate(one(&name, vec![], vec![record(1, number), record(2, number)])));
    }
    let data = (0..70 << 10).map(|at| (at >> 8) as u8).collect();
    world.begin(Kind::Mutate(one(b"long", vec![], vec![ObjectChange::Put(data)])));
    world.end_all();
    world.begin(Kind::Mutate(one(&[b'o', 11], vec![], vec![ObjectChange::Remove])));
    world.end_all();
    world
}

/// A member has another value, lacks a record and a head, has a tombstone too many and other data.
/// Returns the number of blocks.
fn damage(world: &mut World, member: usize) -> usize {
    world.osds[member].store.alter(|records| {
        let kind = |key: &Vec<u8>| Key::decode(key).unwrap().kind;
        let fields: Vec<Vec<u8>> = records
            .keys()
            .filter(|it| matches!(kind(it), KeyKind::Record { .. }))
            .cloned()
            .collect();
        let heads: Vec<Vec<u8>> =
            records.keys().filter(|it| matches!(kind(it), KeyKind::Head { .. })).cloned().collect();
        records.get_mut(&fields[0]).unwrap()[0] ^= 1;
        records.remove(&fields[3]);
        let tombstone = heads.iter().find(|key| ::objects::Head::is_tombstone(&records[*key]));
        let (tombstone, first) = (records[tombstone.unwrap()].clone(), &heads[0]);
        let name = match kind(first) {
            KeyKind::Head { name } => [name.bytes(), b"!"].concat(),
            _ => unreachable!(),
        };
        let mut more = first.clone();
        more.truncate(3);
        more.extend(name);
        records.insert(more, tombstone);
        records.remove(&heads[2]);
    });
    world.osds[member].store.alter_blocks()
}

fn assert_equal(world: &World) {
    for osd in &world.osds {
        osd.store.assert_equals(&world.osds[0].store);
    }
}

#[test]
fn what_one_of_three_has_otherwise_is_made_good_wherever_the_primary_is() {
    for member in 0..3 {
        let mut world = with_objects(3);
        let block_count = damage(&mut world, member);
        assert!(block_count > 2);
        world.scrub_all(true);
        assert_equal(&world);
        let count = |is_it: fn(&ScrubEvent) -> bool| {
            world.scrub_events.iter().filter(|event| is_it(event)).count()
        };
        let records = count(|event| matches!(event, ScrubEvent::RecordsRepaired { .. }));
        let blocks = count(|event| matches!(event, ScrubEvent::Repaired { .. }));
        assert_eq!((blocks, records), (block_count, 4));
        let told = world.scrub_events.len();
        let note = world.osds[world.primary()].pg.scrub_note();
        assert_eq!((told, note.repaired as usize, note.findings.len()), (blocks + 4, told, 0));
        world.scrub_all(true);
        assert_eq!(world.scrub_events.len(), told, "nothing is left");
    }
}

#[test]
fn a_light_scrub_compares_heads_alone_and_all_of_a_shard_whose_heads_differ() {
    let mut world = with_objects(3);
    let is_kind = |key: &Vec<u8>, is_head: bool| match Key::decode(key).unwrap().kind {
        KeyKind::Head { .. } => is_head,
        KeyKind::Record { .. } => !is_head,
        _ => false,
    };
    let remove_first = |world: &mut World, is_head: bool| {
        world.osds[1].store.alter(|records| {
            let key = records.keys().find(|key| is_kind(key, is_head)).cloned().unwrap();
            records.remove(&key);
        });
    };
    remove_first(&mut world, false);
    world.scrub_all(false);
    assert_eq!(world.scrub_events, []);
    // That object has no records, so its shard has two objects that differ.
    remove_first(&mut world, true);
    world.scrub_all(false);
    assert_equal(&world);
    let [ScrubEvent::RecordsRepaired { .. }, ScrubEvent::RecordsRepaired { object, .. }] =
        &world.scrub_events[..]
    else {
        panic!("{:?}", world.scrub_events)
    };
    assert_eq!(object, "long");
}

#[test]
fn what_two_have_differently_is_listed_until_it_is_the_same() {
    let mut world = with_objects(2);
    world.osds[1].store.alter(|records| {
        let is_record =
            |key: &&Vec<u8>| matches!(Key::decode(key).unwrap().kind, KeyKind::Record { .. });
        let key = records.keys().find(is_record).cloned().unwrap();
        records.remove(&key);
    });
    world.scrub_all(true);
    let [ScrubEvent::RecordsFound { object, faults }] = &world.scrub_events[..] else {
        panic!("{:?}", world.scrub_events)
    };
    assert!(object.starts_with('o'), "{object}");
    assert_eq!((faults.len(), faults[0].1.kind), (1, FaultKind::Differs));
    let number = world.osds[0].pg.scrub_note().findings.len();
    assert_eq!(number, 1);
    // Another primary knows it, and a client writes both records anew.
    world.next_epoch();
    world.end_all();
    for number in 0..12 {
        let name = [b'o', number];
        world.begin(Kind::Mutate(one(&name, vec![], vec![record(1, number), record(2, number)])));
    }
    world.end_all();
    world.scrub(false);
    while world.happen() {}
    assert_eq!(world.osds[world.primary()].pg.scrub_note().findings.len(), 1);
    world.scrub_all(false);
    world.scrub_all(true);
    assert_eq!(world.osds[world.primary()].pg.scrub_note().findings.len(), 0);
    assert_equal(&world);
}

#[test]
fn a_member_that_does_not_answer_holds_nothing_up_for_long() {
    let mut world = with_objects(3);
    let primary = world.primary();
    world.scrub(true);
    world.end_all();
    // The primary's own store answers; what it asks others is lost.
    world.scrub_all(true);
    world.scrub(true);
    while world.happen_at(primary) {}
    world.lose_messages();
    let waits = world.begin(Kind::Mutate(one(b"later", vec![], vec![record(1, 1)])));
    while world.happen_at_primary() {}
    assert!(world.ops[waits].answered.is_none());
    assert!(world.osds[primary].pg.is_looking());
    for at in [0, 3] {
        let now = Time::ZERO + Duration::from_secs(at);
        world.with(primary, |pg, actions| pg.limit_look(now, actions));
    }
    while world.happen() {}
    assert!(world.ops[waits].answered.is_some(), "it went on");
    let listed = &world.osds[primary].pg.scrub_note().findings;
    assert_eq!(listed[0].faults[0].1.kind, FaultKind::NotCompared);
}
