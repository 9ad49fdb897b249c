//! Direct reads, step by step. Leases are the node's: see its tests.

use base::Scheme;
use format::wire::{Op, Outcome, PeerBody, Refusal};

use super::history::Kind;
use super::model::values_of;
use super::world::{World, osd_id};
use super::{UNIT, UNITS, layer, place_in};

const TWO_ONE: Scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
/// The member with the second data part. The primary has the first one.
const MEMBER: usize = 1;

/// A pool in which the primary has the first part, and all members know that the epoch serves.
fn world(scheme: Scheme) -> World {
    let mut world = World::of_scheme(1, scheme.position_count() as usize, scheme);
    world.large_percent = 0;
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.server(), Some(0));
    world
}

/// Writes units of the second part, and lets everything come to rest. Returns their values.
fn written(world: &mut World, first: u32, units: u32) -> Vec<u32> {
    let number = world.write(0, 1, first, units);
    world.settle();
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { .. }))), "{outcome:?}");
    let last = world.history.last_value();
    (last + 1 - units..=last).collect()
}

/// What a member answers to a direct read, when its store has gone on and nothing else.
fn answer(
    world: &mut World,
    at: usize,
    (first, units): (u32, u32),
    parents: &[u32],
) -> Result<Vec<u32>, Refusal> {
    let parents = parents.iter().map(|parent| layer(*parent)).collect();
    let number = begin(world, at, (first, units), parents);
    world.store_goes_on(at);
    match world.history.outcome(number).expect("it waits for nothing else").clone() {
        Ok(Outcome::Read { data, .. }) => Ok(values_of(&data, units)),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal),
    }
}

fn begin(
    world: &mut World,
    at: usize,
    (first, units): (u32, u32),
    parents: Vec<base::ImageId>,
) -> usize {
    let (offset, length) = (first * UNIT, units * UNIT);
    let op = Op::ReadPart { place: place_in(1, 1), offset, length, parents };
    world.begin(at, op, Kind::Read { stripe: 1, first, units })
}

const REFUSED: Result<Vec<u32>, Refusal> = Err(Refusal::AskPrimary);

#[test]
fn a_member_reads_its_own_part_without_the_primary() {
    let mut world = world(TWO_ONE);
    let values = written(&mut world, UNITS - 1, 3);
    world.sent.clear();
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 2), &[]), Ok(values[1..].to_vec()));
    assert_eq!(answer(&mut world, MEMBER, (UNITS + 1, 2), &[]), Ok(vec![values[2], 0]));
    assert_eq!(answer(&mut world, MEMBER, (UNITS + 2, 2), &[]), Ok(vec![0, 0]), "never written");
    assert!(world.sent.is_empty());
    world.history.check();
}

#[test]
fn other_parts_are_refused() {
    let mut world = world(TWO_ONE);
    written(&mut world, 0, 2 * UNITS);
    assert_eq!(answer(&mut world, MEMBER, (UNITS - 1, 1), &[]), REFUSED, "another part");
    assert_eq!(answer(&mut world, MEMBER, (UNITS - 1, 2), &[]), REFUSED, "two parts");
    assert_eq!(answer(&mut world, 2, (UNITS, 1), &[]), REFUSED, "parity");
    assert_eq!(answer(&mut world, 0, (0, 1), &[]), REFUSED, "the primary answers other reads");
    let invalid = answer(&mut world, MEMBER, (2 * UNITS - 1, 2), &[]);
    assert!(matches!(invalid, Err(Refusal::Invalid { .. })), "{invalid:?}");
}

#[test]
fn a_version_above_the_mark_is_not_read() {
    let mut world = world(TWO_ONE);
    let values = written(&mut world, UNITS, 2);
    let number = world.write(0, 1, UNITS, 1);
    // The member prepares the version; the primary does not hear of it.
    world.deliver(0, MEMBER, true);
    world.store_goes_on(MEMBER);
    assert_eq!(world.history.outcome(number), None);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), REFUSED);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 2), &[]), REFUSED);
    let other = answer(&mut world, MEMBER, (UNITS + 1, 1), &[]);
    assert_eq!(other, Ok(vec![values[1]]), "it does not change this unit");
    world.settle();
    let last = world.history.last_value();
    world.with(0, |pg, actions| pg.tell_mark(actions));
    world.exchange();
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), Ok(vec![last]));
    world.history.check();
}

#[test]
fn a_lazy_version_is_not_read_before_it_is_durable() {
    let mut world = world(TWO_ONE);
    world.lazy_percent = 100;
    let number = world.write(0, 1, UNITS, 1);
    for _ in 0..20 {
        world.exchange();
    }
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { durable: false, .. }))), "{outcome:?}");
    world.with(0, |pg, actions| pg.tell_mark(actions));
    world.exchange();
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), REFUSED);
}

#[test]
fn a_version_that_comes_before_the_stores_answer_is_noticed() {
    let mut world = world(TWO_ONE);
    written(&mut world, UNITS, 1);
    let before = begin(&mut world, MEMBER, (UNITS, 1), Vec::new());
    world.write(0, 1, UNITS, 1);
    world.deliver(0, MEMBER, true);
    world.store_goes_on(MEMBER);
    assert_eq!(world.history.outcome(before), Some(&Err(Refusal::AskPrimary)));
}

#[test]
fn a_version_of_another_part_changes_no_unit_here() {
    let mut world = world(TWO_ONE);
    let values = written(&mut world, UNITS, 1);
    world.write(0, 1, 0, 1);
    world.deliver(0, MEMBER, true);
    world.store_goes_on(MEMBER);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), Ok(values));
}

#[test]
fn a_tombstone_changes_all_units() {
    let mut world = world(TWO_ONE);
    written(&mut world, UNITS, 1);
    let count = world.units();
    world.zero(0, 1, 0, count);
    while !world.mail().iter().any(|(_, member, _)| *member == MEMBER) {
        world.store_goes_on(0);
        world.store_goes_on(2);
        let others: Vec<_> = world.mail().into_iter().filter(|it| it.1 != MEMBER).collect();
        others.into_iter().for_each(|(from, to, forth)| world.deliver(from, to, forth));
    }
    world.deliver(0, MEMBER, true);
    world.store_goes_on(MEMBER);
    assert_eq!(answer(&mut world, MEMBER, (UNITS + 1, 1), &[]), REFUSED);
}

#[test]
fn holes_above_older_layers_and_lost_units_are_refused() {
    let mut world = world(TWO_ONE);
    let values = written(&mut world, UNITS, 2);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 2), &[2]), Ok(values.clone()));
    assert_eq!(answer(&mut world, MEMBER, (UNITS + 1, 2), &[2]), REFUSED);
    let key = *world.osds[MEMBER].store.now.view().keys().next().unwrap();
    world.osds[MEMBER].store.damage(key, 1);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), Ok(vec![values[0]]));
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 2), &[]), REFUSED);
}

#[test]
fn nothing_is_read_before_the_epoch_serves() {
    let mut world = world(TWO_ONE);
    written(&mut world, UNITS, 1);
    let settled = world.recorded(MEMBER);
    world.disconnect(0, 2);
    // The next epoch: the member settles, and the other one does not answer.
    for _ in 0..200 {
        world.monitor();
        world.leases_end();
        (0..3).for_each(|index| world.learn(index));
        world.connect();
        (0..3).for_each(|index| world.store_goes_on(index));
        let is_activation = |world: &World| {
            let last = world.sent.iter().rev().find(|(_, to, _)| *to == 2);
            matches!(last, Some((_, _, PeerBody::Activate { .. })))
        };
        for (from, to, forth) in world.mail() {
            if !(to == 2 && is_activation(&world)) {
                world.deliver(from, to, forth);
            }
        }
    }
    assert!(world.recorded(MEMBER) > settled, "it has settled");
    assert_eq!(world.server(), None);
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), REFUSED);
    world.settle();
    assert!(answer(&mut world, MEMBER, (UNITS, 1), &[]).is_ok(), "a mark has come");
}

#[test]
fn the_end_of_the_epoch_ends_its_reads() {
    let mut world = world(TWO_ONE);
    written(&mut world, UNITS, 1);
    let reading = begin(&mut world, MEMBER, (UNITS, 1), Vec::new());
    world.with(MEMBER, |pg, actions| pg.halt("no part".into(), actions));
    assert_eq!(world.history.outcome(reading), Some(&Err(Refusal::Stale(None))));
    world.store_goes_on(MEMBER);
}

#[test]
fn a_slow_disk_is_left_to_the_primary() {
    let mut world = world(TWO_ONE);
    written(&mut world, UNITS, 1);
    let reading = begin(&mut world, MEMBER, (UNITS, 1), Vec::new());
    let mut disks = crate::SlowDisks::default();
    disks.stalled.insert(osd_id(MEMBER));
    world.hears_of_disks(MEMBER, &disks);
    assert_eq!(world.history.outcome(reading), Some(&Err(Refusal::AskPrimary)), "it hangs");
    assert_eq!(answer(&mut world, MEMBER, (UNITS, 1), &[]), REFUSED);
    world.hears_of_disks(MEMBER, &crate::SlowDisks::default());
    assert!(answer(&mut world, MEMBER, (UNITS, 1), &[]).is_ok());
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_are_found_in_direct_reads() {
    use base::planted::{Bug, fails};
    assert!(fails(Bug::DirectReadAboveMark, a_version_above_the_mark_is_not_read));
}
