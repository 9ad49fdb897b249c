//! Writes that are answered before they are durable: single scenarios.

use base::Version;
use format::wire::{Outcome, PeerBody, Refusal};

use super::world::World;
use crate::{Limits, Serving};

/// A world in which all copies are there and every write is lazy.
fn whole(copies: usize) -> World {
    let mut world = World::new(7, copies, copies);
    world.settle();
    assert!(world.is_whole());
    world.lazy_percent = 100;
    world
}

/// Lets messages and stores make progress until no message is in transit.
fn go_on(world: &mut World) {
    for _ in 0..20 {
        world.exchange();
    }
    assert!(world.mail().is_empty());
}

/// Writes a unit and waits for the answer. Returns whether the write is durable, and its value.
fn write(world: &mut World, stripe: u32, first: u32) -> (bool, u32) {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, first, 1);
    go_on(world);
    (is_durable(world, number), world.history.last_value())
}

fn is_durable(world: &World, number: usize) -> bool {
    match world.history.outcome(number) {
        Some(Ok(Outcome::Written { durable, .. })) => *durable,
        other => panic!("{other:?}"),
    }
}

fn sync(world: &mut World) {
    let at = world.server().expect("somebody serves");
    let number = world.sync(at);
    go_on(world);
    assert_eq!(world.history.outcome(number), Some(&Ok(Outcome::Synced)));
}

fn flushes(world: &World) -> Vec<usize> {
    world.osds.iter().map(|osd| osd.store.flush_count).collect()
}

/// Returns the members that were asked to sync.
fn told_to_sync(world: &World) -> Vec<usize> {
    let sent = world.sent.iter();
    let syncs = sent.filter(|(_, _, body)| matches!(body, PeerBody::Sync { .. }));
    syncs.map(|(_, to, _)| *to).collect()
}

/// Returns the version and mark of the newest write that a primary sent.
fn newest_write(world: &World) -> (Version, Version) {
    let writes = world.sent.iter().rev().find_map(|(_, _, body)| match body {
        PeerBody::Write { version, mark, .. } => Some((*version, *mark)),
        _ => None,
    });
    writes.expect("something was written")
}

#[test]
fn a_lazy_write_costs_no_flush_and_a_sync_one_for_each_member() {
    let mut world = whole(3);
    let (flushed, sent) = (flushes(&world), world.sent.len());
    for stripe in 0..3 {
        assert!(!write(&mut world, stripe, 0).0);
    }
    assert_eq!(flushes(&world), flushed);
    assert_eq!(world.sent.len() - sent, 12, "of each write, both ways, for two members");
    sync(&mut world);
    assert_eq!(flushes(&world), flushed.iter().map(|count| count + 1).collect::<Vec<_>>());
    assert_eq!(world.sent.len() - sent, 16, "one message each way for each member");
    sync(&mut world);
    assert_eq!(world.sent.len() - sent, 16, "there is nothing to sync");
    assert!(world.osds.iter().all(|osd| osd.store.undurable().next().is_none()));
}

#[test]
fn synced_writes_survive_when_all_members_lose_power() {
    let mut world = whole(3);
    let kept = write(&mut world, 1, 0).1;
    sync(&mut world);
    write(&mut world, 1, 0);
    write(&mut world, 2, 0);
    for index in 0..3 {
        world.crash(index, 0);
    }
    for index in 0..3 {
        world.start(index);
    }
    world.settle();
    world.check_equal();
    assert_eq!([world.value(1, 0), world.value(2, 0)], [kept, 0]);
    world.history.check_kept();
}

#[test]
fn a_process_that_dies_loses_no_answered_write() {
    let mut world = whole(2);
    let value = write(&mut world, 1, 0).1;
    for index in 0..2 {
        world.kill(index);
    }
    for index in 0..2 {
        world.start(index);
    }
    world.settle();
    assert_eq!(world.value(1, 0), value);
}

#[test]
fn a_lazy_write_that_one_member_kept_is_made_durable_by_the_activation() {
    for is_primary in [true, false] {
        let mut world = whole(2);
        let value = write(&mut world, 1, 0).1;
        let primary = world.server().unwrap();
        let lost = if is_primary { primary } else { 1 - primary };
        let epoch = world.entry.epoch;
        world.crash(lost, 0);
        world.start(lost);
        while !(world.entry.epoch > epoch && world.is_whole()) {
            world.round();
        }
        for index in 0..2 {
            world.crash(index, 0);
        }
        for index in 0..2 {
            world.start(index);
        }
        world.settle();
        world.check_equal();
        assert_eq!(world.value(1, 0), value);
        world.history.check();
    }
}

#[test]
fn the_mark_waits_for_a_sync() {
    let mut world = whole(2);
    write(&mut world, 1, 0);
    let lazy = newest_write(&world).0;
    write(&mut world, 1, 1);
    assert!(newest_write(&world).1 < lazy);
    // Later writes are durable, and the mark still stays below the lazy one.
    world.lazy_percent = 0;
    assert!(write(&mut world, 1, 2).0);
    let behind = newest_write(&world).0;
    let at = world.server().unwrap();
    assert!(world.osds[at].pg.as_ref().unwrap().mark() < lazy);
    sync(&mut world);
    assert_eq!(world.osds[at].pg.as_ref().unwrap().mark(), behind);
    write(&mut world, 1, 3);
    assert_eq!(newest_write(&world).1, behind, "the next write brings it to the members");
}

#[test]
fn lazy_writes_that_no_client_syncs_are_synced_in_the_end() {
    let mut world = whole(2);
    write(&mut world, 1, 0);
    let at = world.server().unwrap();
    world.with(at, |pg, actions| pg.raise_floor(actions));
    assert!(told_to_sync(&world).is_empty());
    world.with(at, |pg, actions| pg.raise_floor(actions));
    go_on(&mut world);
    assert_eq!(told_to_sync(&world), [1 - at]);
    assert!(world.osds.iter().all(|osd| osd.store.undurable().next().is_none()));
    for _ in 0..3 {
        world.with(at, |pg, actions| pg.raise_floor(actions));
    }
    assert_eq!(told_to_sync(&world).len(), 1, "once");
}

#[test]
fn many_lazy_writes_begin_a_sync_and_too_many_are_answered_durably() {
    let mut world = whole(2);
    let at = world.server().unwrap();
    let unsynced_count_max = Limits::SMALL.unsynced_count_max as u32;
    for stripe in 0..unsynced_count_max / 2 {
        assert!(told_to_sync(&world).is_empty());
        world.write(at, stripe, 0, 1);
        lag(&mut world, at);
    }
    assert_eq!(told_to_sync(&world), [1 - at]);
    for stripe in unsynced_count_max / 2..unsynced_count_max {
        let number = world.write(at, stripe, 0, 1);
        lag(&mut world, at);
        assert!(!is_durable(&world, number));
    }
    let number = world.write(at, 20, 0, 1);
    lag(&mut world, at);
    assert_eq!(world.history.outcome(number), None, "it waits until it is durable");
    go_on(&mut world);
    assert!(is_durable(&world, number));
}

/// Lets everything make progress, but the store of `at` makes nothing durable.
fn lag(world: &mut World, at: usize) {
    for _ in 0..20 {
        let other = 1 - at;
        for index in [at, other] {
            for entry in 0..64 {
                world.osds[index].store.write(64, entry);
                if index == other {
                    world.osds[index].store.advance(64, entry);
                }
            }
            while world.osds[index].store.ready() > 0 {
                let (call, result) = world.osds[index].store.take(0);
                world.with(index, |pg, actions| pg.store_done(call, result, actions));
            }
        }
        world.deliver_all();
    }
}

#[test]
fn a_zero_of_what_was_emptied_lazily_is_made_durable() {
    let mut world = whole(2);
    world.lazy_percent = 0;
    write(&mut world, 1, 0);
    write(&mut world, 1, 3);
    let at = world.server().unwrap();
    let mut zero = |lazy_percent: usize| {
        world.lazy_percent = lazy_percent;
        let number = world.zero(at, 1, 0, 1);
        go_on(&mut world);
        (is_durable(&world, number), newest_write(&world).0)
    };
    let (durable, emptied) = zero(100);
    assert!(!durable);
    assert_eq!(zero(100), (false, emptied), "it is needless, and not durable yet");
    let (durable, again) = zero(0);
    assert!(durable && again > emptied, "it is done, so that it is durable");
    assert_eq!(zero(0), (true, again), "now it is needless");
}

#[test]
fn a_sync_ends_with_its_epoch() {
    let mut world = whole(2);
    write(&mut world, 1, 0);
    let at = world.server().unwrap();
    let numbers = [world.sync(at), world.sync(at)];
    world.disconnect(at, 1 - at);
    assert!(matches!(world.serving(at), Serving::Ended { .. }));
    world.stores_go_on();
    assert!(numbers.iter().all(|number| world.history.outcome(*number).is_none()));
    world.settle();
    for number in numbers {
        assert_eq!(world.history.outcome(number), Some(&Err(Refusal::Stale(None))));
    }
    assert!(world.is_whole());
    world.check_equal();
}

#[test]
fn concurrent_syncs_share_their_cost() {
    let mut world = whole(2);
    write(&mut world, 1, 0);
    let at = world.server().unwrap();
    let mut numbers: Vec<usize> = (0..5).map(|_| world.sync(at)).collect();
    assert_eq!(told_to_sync(&world).len(), 1, "all that is lazy was given before it");
    world.write(at, 2, 0, 1);
    numbers.extend((0..5).map(|_| world.sync(at)));
    go_on(&mut world);
    assert_eq!(told_to_sync(&world).len(), 2, "one more covers the write that came later");
    for number in numbers {
        assert_eq!(world.history.outcome(number), Some(&Ok(Outcome::Synced)));
    }
}

#[test]
fn a_sync_waits_for_a_learner_that_is_bound() {
    let mut world = whole(2);
    write(&mut world, 1, 0);
    let at = world.server().unwrap();
    let away = 1 - at;
    world.kill(away);
    world.settle();
    assert_eq!(world.entry.acting_count(), 1);
    world.start(away);
    while world.lease_givers(at).is_empty() {
        world.round();
    }
    // The learner has received its last cursor; the monitor has not been informed yet.
    write(&mut world, 2, 0);
    let before = told_to_sync(&world).len();
    let number = world.sync(at);
    assert_eq!(told_to_sync(&world)[before..], [away]);
    world.stores_go_on();
    assert_eq!(world.history.outcome(number), None);
    go_on(&mut world);
    assert_eq!(world.history.outcome(number), Some(&Ok(Outcome::Synced)));
    assert!(world.osds[away].store.undurable().next().is_none());
}

#[test]
fn answers_about_lazy_writes_that_violate_the_protocol_are_refused() {
    let mut world = whole(2);
    let at = world.server().unwrap();
    let (primary, member) = (super::world::osd_id(at), super::world::osd_id(1 - at));
    world.lazy_percent = 0;
    world.write(at, 1, 0, 1);
    let (version, mark) = newest_write(&world);
    let mut said = |to: usize, from, body| {
        let mut verdict = Ok(());
        world.with(to, |pg, actions| verdict = pg.peer_said(from, body, actions));
        verdict
    };
    let written = PeerBody::Written { version, durable: false };
    assert!(said(at, member, written).is_err(), "it was to be durable");
    assert!(said(at, member, PeerBody::Synced { call: 0 }).is_err(), "nobody asked");
    assert!(said(1 - at, primary, PeerBody::Synced { call: 0 }).is_err(), "it is no member");
    let key = blockstore::BlockKey {
        pool: base::PoolId::FIRST,
        hash: 0,
        image: super::layer(1),
        stripe: base::StripeIndex::new(0),
    };
    let (block_size, change) = (super::BLOCK_SIZE, format::wire::Change::Delete);
    let delete = PeerBody::Write { version, mark, key, block_size, lazy: true, change };
    assert!(said(1 - at, primary, delete).is_err(), "a deletion is never lazy");
}
