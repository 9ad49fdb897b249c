//! Learners of a pool of objects: random runs in which members die, come back and are filled, while objects change.

#[cfg(debug_assertions)]
use base::planted::{self, Bug};

use ::objects::{Field, Key, Kind as KeyKind, Name, ObjectChange, Operation};
use base::{BufferPool, Epoch, Version};
use format::engine::Change;
use format::wire::{PagePart, PeerBody};

use super::super::BLOCK_SIZE;
use super::world::{Kind, World};
use super::{any_look, any_operation, check, one};
use crate::objects::batch::content_of;

/// Lets operations come, members change and all else happen in random order; then all end as acting members.
fn run(seed: u64, events: usize) -> World {
    let mut world = World::with_others(seed, 4, 1 + seed as usize % 3);
    world.waits_percent = 10;
    for _ in 0..events {
        match world.random.below(24) {
            0..4 if world.serves() => {
                let known = world.some_version();
                let operation = any_operation(&mut world.random, known);
                world.begin(Kind::Mutate(operation));
            }
            4 if world.serves() => {
                let look = any_look(&mut world.random);
                world.begin(Kind::Look(look));
            }
            5 if world.random.below(6) == 0 => world.change_members(),
            6 if world.random.below(8) == 0 => world.wait(),
            7 if world.serves() => world.send_again(),
            8 => world.tick(),
            9 if world.random.below(12) == 0 => world.change_session(),
            _ => drop(world.happen()),
        }
    }
    world.fill_all();
    world.delete_over();
    world
}

fn check_filled(world: &World) {
    check(world);
    for osd in &world.osds[1..] {
        osd.store.assert_equals(&world.osds[0].store);
    }
}

/// What happened in some runs.
#[derive(Default, Debug)]
struct Seen {
    whole_pages: usize,
    parts: usize,
    /// Epochs that ended while an object was incomplete at a learner.
    ended_incomplete: usize,
    /// Acting members that were brought forward.
    forwards: usize,
    cleanings: usize,
    by_log: usize,
}

fn run_many(seeds: std::ops::Range<u64>) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let run = || {
            let world = run(seed, 2500);
            check_filled(&world);
            assert_eq!(world.failed_count, 0, "a member is not brought forward");
            let forwards = world.osds.iter().map(|osd| osd.store.forward_count).sum::<usize>();
            let by_log = world.by_log_counts.0;
            (world.page_counts, world.incomplete_count, forwards, world.cleanings.len(), by_log)
        };
        let ((pages, parts), ended, forwards, cleanings, by_log) = std::panic::catch_unwind(run)
            .unwrap_or_else(|panic| {
                println!("seed {seed}");
                std::panic::resume_unwind(panic)
            });
        seen.whole_pages += pages - parts;
        seen.parts += parts;
        seen.ended_incomplete += ended;
        seen.forwards += forwards;
        seen.cleanings += cleanings;
        seen.by_log += by_log;
    }
    seen
}

#[test]
fn learners_that_die_and_change_their_primary_become_equal() {
    let seen = run_many(0..40);
    let Seen { whole_pages, parts, ended_incomplete, forwards, cleanings, by_log } = seen;
    assert!(whole_pages > 1000 && parts > 500 && ended_incomplete > 20, "{seen:?}");
    assert!(forwards > 5 && cleanings > 50 && by_log > 20, "{seen:?}");
}

#[test]
#[ignore = "takes minutes"]
fn learners_become_equal_in_many_runs() {
    run_many(1000..2000);
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_of_fills_are_found() {
    let half = || half_copied(0);
    assert!(planted::fails(Bug::HalfCopiedObjectServed, half), "a half is not found");
    let filled = a_member_that_was_filled_brings_others_what_happened_since;
    assert!(planted::fails(Bug::ListedLogBelieved, filled), "a log that is believed is not found");
    let lost = what_only_a_lost_member_has_counts_after_a_filling_without_it;
    assert!(planted::fails(Bug::FilledCountedAsHolder, lost), "a version that counts no more");
    let run = || _ = run_many(0..400);
    assert!(planted::fails(Bug::UndoForgotten, run), "what was never adopted is not found");
    assert!(planted::fails(Bug::PageOvertakesMutation, run), "overtaking is not found");
}

// ---- one thing at a time --------------------------------------------------------------------

fn record(at: u8) -> Field {
    Field::Record(vec![at])
}

/// Returns a put of an object that takes many pages, with this value in all its records.
fn long_object(object: &[u8], value: u8) -> Operation {
    let sets = (0..30).map(|at| ObjectChange::Set(record(at), vec![value; 9]));
    one(object, vec![], sets.collect())
}

/// The first member loses all that it has, and is filled by the second one as a learner.
fn lose_all_of_a_learner(world: &mut World) {
    world.set_members(&[1], &[0]);
    world.osds[0].store = Default::default();
    world.osds[0].store.is_fragile = true;
    world.restart(0);
    world.enter();
}

fn change(world: &mut World, operation: Operation) {
    world.begin(Kind::Mutate(operation));
    while world.happen() {}
}

fn until(world: &mut World, is_it: impl Fn(&World) -> bool) {
    while !is_it(world) {
        assert!(world.happen(), "it does not come");
    }
}

/// Two members have a long object, and the first one has a change of it that was never adopted. It is filled
/// as a learner; this returns when it has a part of the object.
fn half_filled(seed: u64) -> World {
    let mut world = World::with_others(3 * seed, 2, 2);
    while world.happen() {}
    change(&mut world, long_object(b"a", 1));
    world.begin(Kind::Mutate(long_object(b"a", 2)));
    while world.happen_at_primary() {}
    world.lose_messages();
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    until(&mut world, |world| world.page_counts.1 > 5);
    world
}

/// The primary changes in the middle of an object.
fn half_copied(seed: u64) {
    let mut world = half_filled(seed);
    world.set_members(&[1], &[0]);
    world.enter();
    world.fill_all();
    check_filled(&world);
}

#[test]
fn an_object_of_which_a_learner_has_a_part_is_copied_in_the_next_epoch() {
    assert!(half_filled(0).osds[0].store.incomplete_count() == 1);
    (0..20).for_each(half_copied);
}

#[test]
fn a_learner_that_dies_in_the_middle_of_an_object_gets_it_whole() {
    for seed in 0..20 {
        let mut world = half_filled(seed);
        world.restart(0);
        world.set_members(&[1], &[0]);
        world.enter();
        world.fill_all();
        check_filled(&world);
    }
}

/// A learner that has nothing is cut off after some events of its filling. Attributes and records of all
/// objects go, then the filling goes on. Returns whether the learner had passed shards.
fn cut_off(events: usize) -> bool {
    let mut world = World::with_others(events as u64, 2, 2);
    while world.happen() {}
    let names: Vec<[u8; 2]> = (0..8).map(|at| [b'o', at]).collect();
    let attribute = Field::Attribute(b"colour".to_vec());
    for name in &names {
        let fields = [record(1), record(2), attribute.clone()];
        let sets = fields.map(|field| ObjectChange::Set(field, vec![1]));
        change(&mut world, one(name, vec![], sets.to_vec()));
    }
    lose_all_of_a_learner(&mut world);
    (0..events).for_each(|_| _ = world.happen());
    world.restart(0);
    let filling = world.osds[0].pg.record().and_then(|record| record.filling.as_ref());
    let has_passed = filling.is_some_and(|filling| filling.cursor.is_some());
    world.lose_messages();
    world.set_members(&[1], &[]);
    world.enter();
    while world.happen() {}
    for name in &names {
        let unsets = [record(1), attribute.clone()].map(ObjectChange::Unset);
        change(&mut world, one(name, vec![], unsets.to_vec()));
    }
    world.set_members(&[1], &[0]);
    world.enter();
    world.fill_all();
    check_filled(&world);
    has_passed
}

/// Where nothing is believed, a page empties the shard first.
#[test]
fn objects_of_an_emptied_shard_come_without_deletions_of_ranges() {
    for seed in 0..3 {
        let mut world = World::with_others(seed, 2, 2);
        while world.happen() {}
        for at in 0..8 {
            change(&mut world, long_object(&[b'o', at], at));
        }
        lose_all_of_a_learner(&mut world);
        until(&mut world, World::serves);
        let unset = one(&[b'o', 1], vec![], vec![ObjectChange::Unset(record(3))]);
        world.begin(Kind::Mutate(unset));
        until(&mut world, |world| !world.complete.is_empty());
        assert_eq!(world.osds[0].store.page_range_count, 0);
        world.fill_all();
        check_filled(&world);
    }
}

/// Pages of a shard that was emptied bring no deletions of ranges, but only until the learner misses batches.
#[test]
fn a_learner_that_is_cut_off_keeps_nothing_of_what_went_meanwhile() {
    let passed = (0..200).map(cut_off).filter(|passed| *passed).count();
    assert!(passed > 50, "{passed}");
}

#[cfg(debug_assertions)]
#[test]
fn pages_without_ranges_after_a_break_are_found() {
    let runs = || (0..200).for_each(|events| _ = cut_off(events));
    assert!(planted::fails(Bug::PageWithoutRangesAfterBreak, runs));
}

/// A learner whose engine has little space answers no page, and holds up neither operations nor the next
/// epoch.
#[test]
fn a_filling_waits_for_space_and_nothing_else_does() {
    for seed in 0..20 {
        let mut world = half_filled(seed);
        world.with(0, |pg, actions| pg.hold_fillings(true, actions));
        change(&mut world, long_object(b"later", 3));
        world.end_all();
        assert!(world.complete.is_empty());
        if seed % 2 == 0 {
            world.set_members(&[1], &[0]);
            world.enter();
            world.end_all();
            assert!(world.complete.is_empty());
        }
        world.with(0, |pg, actions| pg.hold_fillings(false, actions));
        world.fill_all();
        check_filled(&world);
    }
}

#[test]
fn an_object_changes_and_goes_while_it_is_copied() {
    for seed in 0..20 {
        let mut world = half_filled(seed);
        let steps = match seed % 4 {
            0 => vec![ObjectChange::Remove],
            1 => vec![ObjectChange::Set(record(0), vec![7]), ObjectChange::Unset(record(29))],
            2 => vec![ObjectChange::RemoveRecords { from: vec![3], before: Some(vec![20]) }],
            _ => vec![ObjectChange::Put(vec![5; 70 << 10])],
        };
        world.begin(Kind::Mutate(one(b"a", vec![], steps)));
        if seed % 3 == 0 {
            for _ in 0..seed {
                world.happen();
            }
            world.begin(Kind::Mutate(long_object(b"a", 3)));
        }
        world.fill_all();
        check_filled(&world);
    }
}

#[test]
fn what_the_primary_cannot_read_ends_the_filling_and_is_said() {
    let mut stages = std::collections::BTreeSet::new();
    for events in 0..60 {
        let mut world = World::with_others(0, 2, 2);
        while world.happen() {}
        change(&mut world, one(b"a", vec![], vec![ObjectChange::Put(vec![1; 200 << 10])]));
        lose_all_of_a_learner(&mut world);
        (0..events).for_each(|_| _ = world.happen());
        world.osds[1].store.is_damaged = true;
        while world.happen() {}
        assert!(world.serves());
        if world.complete.is_empty() {
            stages.insert(world.page_counts.0);
            assert!(world.hindrance().is_some_and(|why| why.contains("cannot read")), "{events}");
        }
        world.osds[1].store.is_damaged = false;
        world.set_members(&[1], &[0]);
        world.enter();
        world.fill_all();
        check_filled(&world);
    }
    assert!(stages.len() > 3, "{stages:?}");
}

/// Two members had the same, one lost some of it, and the operator gave that up. Who comes back has the
/// version that the PG continues from, and more than it.
#[test]
fn who_comes_back_where_lost_data_was_given_up_is_copied_anew() {
    let mut world = World::with_others(0, 2, 2);
    while world.happen() {}
    for name in [b"a", b"b", b"c"] {
        change(&mut world, one(name, vec![], vec![ObjectChange::Put(vec![1; 300])]));
    }
    change(&mut world, one(b"d", vec![], vec![ObjectChange::Put(vec![1; 100 << 10])]));
    world.restart(1);
    let name = Name::new(b"a").expect("it is short");
    let lost = move |key: &Vec<u8>| match Key::decode(key).expect("it is a key").kind {
        KeyKind::Head { name: head } => head == name,
        _ => false,
    };
    world.osds[1].store.alter(|records| records.retain(|key, _| !lost(key)));
    let changed = world.osds[1].store.alter_blocks();
    assert!(changed > 0, "the version of the object does not tell that its data are others");
    world.with(1, |pg, actions| pg.absolve(actions));
    while world.happen_at(1) {}
    world.set_members(&[1], &[]);
    world.entry.given_up = world.entry.epoch.next();
    world.enter();
    while world.happen() {}
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    let before = world.page_counts.0;
    until(&mut world, |world| world.page_counts.0 > before + 1);
    // It is cut off, and goes on where it was.
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    while world.happen() {}
    assert!(world.complete.contains(&0), "it is filled");
    assert_eq!(world.osds[0].store.objects().len(), 3);
    world.osds[0].store.assert_equals(&world.osds[1].store);
}

#[test]
fn objects_that_only_a_learner_has_go_with_their_blocks_and_repeats() {
    let mut world = World::with_others(0, 2, 2);
    while world.happen() {}
    change(&mut world, long_object(b"a", 1));
    let put = one(b"b", vec![], vec![ObjectChange::Put(vec![1; 100 << 10])]);
    world.begin(Kind::Mutate(put));
    while world.happen_at_primary() {}
    assert_eq!(world.osds[0].store.objects().len(), 2);
    world.lose_messages();
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    until(&mut world, |world| !world.complete.is_empty());
    assert_eq!(world.osds[0].store.objects().len(), 1);
    assert_eq!(world.osds[0].store.repeat_count(), 1);
    world.fill_all();
    check_filled(&world);
}

#[test]
fn what_is_equal_is_not_copied_again() {
    let mut world = World::with_others(2, 2, 2);
    while world.happen() {}
    for at in 0..40u8 {
        change(&mut world, one(&[b'o', at], vec![], vec![ObjectChange::Put(vec![at; 300])]));
    }
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    while world.happen() {}
    assert_eq!((world.page_counts.0, world.complete.len()), (0, 1));
    world.fill_all();
    check_filled(&world);
}

#[test]
fn a_page_is_for_learners_and_of_the_pg() {
    let mut world = half_filled(0);
    let page = |part, records: Vec<Change>| {
        let content = content_of(records, Vec::new(), BLOCK_SIZE, &BufferPool::default());
        PeerBody::Page { call: 0, version: Version::ZERO, part, content }
    };
    let whole = |records| page(PagePart::Whole, records);
    let key = |shard: u8, kind: u8| vec![0, shard, kind, b'x'];
    let delete = |shard, kind| Change::Delete { key: key(shard, kind) };
    let range =
        |start: &[u8], end: &[u8]| Change::DeleteRange { start: start.to_vec(), end: end.to_vec() };
    let epoch = Epoch::new(9);
    let PeerBody::Page { call, part, content, .. } = whole(vec![delete(0, 0x10)]) else {
        unreachable!()
    };
    let late = PeerBody::Page { call, part, content, version: Version { epoch, counter: 1 } };
    let last = PagePart::Last { name: vec![b'n'; 2000] };
    let wrong = [
        late,
        whole(vec![delete(4, 0x10)]),
        whole(vec![delete(0, 0x50)]),
        whole(vec![range(&[0, 0, 0x10], &[0, 0, 0x51])]),
        whole(vec![range(&[0, 0], &[0, 0, 0x10])]),
        whole(vec![range(&[0, 3, 0x10], &[0, 4, 0x10])]),
        page(last, vec![delete(0, 0x10)]),
    ];
    for body in wrong {
        world.say(1, 0, body.clone()).unwrap_err();
    }
    world.say(1, 0, whole(vec![range(&[0, 3, 0x10], &[0, 3, 0x41])])).unwrap();
    let of = |from: &[u8], before: &[u8]| PeerBody::ListHeads {
        call: 0,
        from: from.to_vec(),
        before: before.to_vec(),
        with: format::wire::KeysWith::Version,
    };
    world.say(1, 0, of(&[0, 4, 0x10], &[0, 4, 0x11])).unwrap_err();
    world.say(1, 0, of(&[0], &[0, 0, 0x11])).unwrap_err();
    world.say(1, 0, of(&[0, 3, 0x10], &[0, 4])).unwrap();
    let mut acting = World::with_others(0, 2, 2);
    while acting.happen() {}
    acting.say(0, 1, whole(vec![delete(0, 0x10)])).unwrap_err();
}

/// A learner has a change that was never adopted, is filled, and is the only one that can bring another
/// member forward: its log must not name that change.
#[test]
fn a_member_that_was_filled_brings_others_what_happened_since() {
    let mut world = World::with_others(2, 3, 2);
    while world.happen() {}
    change(&mut world, one(b"a", vec![], vec![ObjectChange::Set(record(1), vec![1])]));
    world.set_members(&[0, 1], &[2]);
    world.enter();
    until(&mut world, |world| !world.complete.is_empty());
    let anew = vec![ObjectChange::Remove];
    world.begin(Kind::Mutate(one(b"a", vec![], anew)));
    while world.happen_at_primary() {}
    while world.links.get(&(0, 2)).is_some_and(|queue| !queue.is_empty()) {
        world.deliver(0, 2);
    }
    world.lose_messages();
    world.restart(0);
    world.set_members(&[1], &[2]);
    world.enter();
    until(&mut world, |world| !world.complete.is_empty());
    world.set_members(&[2, 1], &[]);
    world.enter();
    while world.happen() {}
    world.begin(Kind::Mutate(one(b"b", vec![], vec![ObjectChange::Put(vec![1; 9])])));
    while world.happen_at_primary() {}
    world.lose_messages();
    world.set_members(&[2, 1], &[]);
    world.enter();
    world.end_all();
    assert_eq!(world.osds[1].store.forward_count, 1);
    world.osds[1].store.assert_equals(&world.osds[2].store);
    assert_eq!(world.osds[1].store.objects().len(), 2);
}

/// While a member is away, the log keeps what it needs, up to a limit. Then it is listed.
#[test]
fn a_log_with_too_many_versions_loses_the_older_half() {
    let mut world = World::with_others(0, 2, 2);
    while world.happen() {}
    let put = |at: u8| one(&[b'o', at], vec![], vec![ObjectChange::Put(vec![at; 9])]);
    change(&mut world, put(0));
    world.set_members(&[1], &[]);
    world.enter();
    while world.happen() {}
    let versions_max = world.shape.limits.log_versions_max as u8;
    let mut most = 0;
    for at in 1..=3 * versions_max {
        change(&mut world, put(at));
        if at == versions_max - 2 {
            assert_eq!(world.osds[1].store.log_count(), usize::from(at) + 1, "all of it is there");
        }
        world.tick();
        while world.happen() {}
        most = most.max(world.osds[1].store.log_count());
    }
    assert!(most <= usize::from(versions_max) + 2, "{most}");
    world.restart(0);
    world.set_members(&[1], &[0]);
    world.enter();
    while world.happen() {}
    assert!(world.by_log_counts.1 > 0, "the log does not go back so far");
    assert_eq!(world.complete.len(), 1);
    world.fill_all();
    check_filled(&world);
}

/// What only a lost member has counts when it comes back, also where another one was filled meanwhile.
#[test]
fn what_only_a_lost_member_has_counts_after_a_filling_without_it() {
    let mut world = World::with_others(3, 3, 2);
    while world.happen() {}
    change(&mut world, one(b"a", vec![], vec![ObjectChange::Put(vec![1; 9])]));
    world.begin(Kind::Mutate(one(b"b", vec![], vec![ObjectChange::Put(vec![1; 9])])));
    while world.happen_at_primary() {}
    world.lose_messages();
    world.restart(0);
    world.set_members(&[1, 0], &[2]);
    world.absent = Some(0);
    world.enter();
    while world.happen() {}
    world.wait();
    until(&mut world, |world| world.complete.contains(&2));
    world.absent = None;
    world.set_members(&[2, 0], &[]);
    world.enter();
    world.end_all();
    assert_eq!(world.osds[2].store.forward_count, 1);
    assert_eq!(world.osds[2].store.objects().len(), 2);
    world.osds[2].store.assert_equals(&world.osds[0].store);
}

/// Two members have forty objects; the first one is away while some of them change in all ways.
fn changed_while_away(seed: u64, change_count: usize) -> World {
    let mut world = World::with_others(seed, 2, 2);
    while world.happen() {}
    for at in 0..40u8 {
        let put = ObjectChange::Put(vec![at; if at % 9 == 0 { 70 << 10 } else { 300 }]);
        change(
            &mut world,
            one(&[b'o', at], vec![], vec![put, ObjectChange::Set(record(at), vec![1])]),
        );
    }
    world.restart(0);
    world.set_members(&[1], &[]);
    world.enter();
    while world.happen() {}
    let all = ObjectChange::RemoveRecords { from: Vec::new(), before: None };
    let steps = [
        vec![ObjectChange::Remove],
        vec![ObjectChange::Put(vec![9; 90 << 10])],
        vec![all, ObjectChange::Set(record(3), vec![3])],
        vec![ObjectChange::Unset(record(3)), ObjectChange::Add(record(4), 1)],
    ];
    for at in 0..change_count {
        let steps = steps[at % steps.len()].clone();
        change(&mut world, one(&[b'o', (at % 12) as u8], vec![], steps));
    }
    change(&mut world, long_object(b"o\x01", 1));
    world
}

#[test]
fn who_was_away_gets_what_the_log_names_and_nothing_is_compared() {
    for seed in 0..3 {
        let mut world = changed_while_away(seed, 40);
        let record_count = world.osds[1].store.log_count();
        world.set_members(&[1], &[0]);
        world.enter();
        until(&mut world, |world| !world.complete.is_empty());
        assert_eq!(world.by_log_counts, (1, 0));
        assert!(world.page_counts.0 > 0 && record_count > 40);
        world.osds[0].store.assert_equals(&world.osds[1].store);
        world.fill_all();
        check_filled(&world);
    }
}

#[test]
fn who_was_away_until_the_log_was_cut_is_compared() {
    let mut world = changed_while_away(2, 12);
    (0..4).for_each(|shard| world.osds[1].store.cut_log(::objects::Shard::new(shard)));
    world.set_members(&[1], &[0]);
    world.enter();
    until(&mut world, |world| !world.complete.is_empty());
    assert!(world.by_log_counts.0 == 1 && world.by_log_counts.1 > 0);
    world.osds[0].store.assert_equals(&world.osds[1].store);
    world.fill_all();
    check_filled(&world);
}

/// The primary changes while a learner gets what the log names, and objects change.
#[test]
fn a_learner_gets_what_a_log_names_from_several_primaries() {
    for events in 0..150 {
        let mut world = changed_while_away(0, 25);
        world.set_members(&[1], &[0]);
        world.enter();
        (0..events).for_each(|_| _ = world.happen());
        if world.serves() {
            world.begin(Kind::Mutate(one(b"o\x02", vec![], vec![ObjectChange::Remove])));
        }
        for _ in 0..events % 7 {
            world.happen_at_primary();
        }
        match events % 3 {
            0 => world.restart(0),
            1 => world.restart(1),
            _ => {}
        }
        world.set_members(&[1], &[0]);
        world.enter();
        world.fill_all();
        check_filled(&world);
    }
}

/// A learner that gets records of an object by a range of the log dies; until it returns the object is
/// removed, and its tombstone is forgotten.
#[test]
fn records_that_a_learner_got_go_with_their_object() {
    let mut had_records = 0;
    for events in 0..60 {
        let mut world = World::with_others(0, 3, 2);
        while world.happen() {}
        change(&mut world, one(b"b", vec![], vec![ObjectChange::Put(vec![1; 9])]));
        world.restart(0);
        world.set_members(&[1], &[]);
        world.enter();
        while world.happen() {}
        let all = ObjectChange::RemoveRecords { from: Vec::new(), before: None };
        change(&mut world, long_object(b"a", 1));
        change(&mut world, one(b"a", vec![], vec![all, ObjectChange::Set(record(1), vec![2])]));
        world.set_members(&[1], &[0]);
        world.enter();
        (0..events).for_each(|_| _ = world.happen());
        had_records += usize::from(world.osds[0].store.record_count() > 0);
        world.restart(0);
        // Another one takes its place.
        world.set_members(&[1], &[2]);
        world.enter();
        until(&mut world, |world| !world.complete.is_empty());
        world.set_members(&[1, 2], &[]);
        world.enter();
        while world.happen() {}
        change(&mut world, one(b"a", vec![], vec![ObjectChange::Remove]));
        for _ in 0..10 {
            world.tick();
            while world.happen() {}
        }
        assert_eq!(world.osds[1].store.tombstone_count(), 0);
        world.set_members(&[1, 2], &[0]);
        world.enter();
        until(&mut world, |world| !world.complete.is_empty());
        world.osds[0].store.assert_equals(&world.osds[1].store);
        world.fill_all();
        check_filled(&world);
    }
    assert!(had_records > 5, "{had_records}");
}
