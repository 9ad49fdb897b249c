//! Peering in pools with parity, step by step: which versions an epoch adopts, and what the members that lack
//! some of them receive.

use base::{Scheme, Version};
use format::wire::{Outcome, Refusal};

use super::UNITS;
use super::world::World;

const TWO_ONE: Scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
const THREE_TWO: Scheme = Scheme::ReedSolomon { data: 3, parity: 2 };

/// Returns a pool whose epochs begin with all members. The first member leads.
fn world(scheme: Scheme) -> World {
    let positions = scheme.position_count() as usize;
    let mut world = World::of_scheme(1, positions, scheme);
    world.large_percent = 0;
    world.minimum = positions + 1;
    world.settle();
    assert_eq!(world.server(), Some(0));
    world
}

fn write(world: &mut World, stripe: u32, first: u32, units: u32) -> Vec<u32> {
    let number = world.write(0, stripe, first, units);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    last_values(world, units)
}

fn last_values(world: &World, units: u32) -> Vec<u32> {
    let last = world.history.last_value();
    (last + 1 - units..=last).collect()
}

/// Delivers the answers that a member's store can give without writing anything.
fn answer(world: &mut World, member: usize) {
    while world.osds[member].store.ready() > 0 {
        let (call, result) = world.osds[member].store.take(0);
        world.with(member, |pg, actions| pg.store_done(call, result, actions));
    }
}

/// Lets everything happen, except that the stores of the `weak` members make nothing durable, and the `deaf`
/// members get no messages.
fn go_on(world: &mut World, weak: &[usize], deaf: &[usize]) {
    for _ in 0..8 {
        for index in 0..world.osds.len() {
            match weak.contains(&index) {
                true => answer(world, index),
                false => world.store_goes_on(index),
            }
        }
        for (primary, member, is_to_member) in world.mail() {
            if !deaf.contains(&member) {
                world.deliver(primary, member, is_to_member);
            }
        }
    }
}

/// Cuts the power of members, which come back at once.
fn lose_power(world: &mut World, members: &[usize]) {
    for member in members {
        world.crash(*member, 0);
        world.start(*member);
    }
    world.settle();
}

/// Writes a lazy version at all members. Only member 1 makes it durable.
fn write_lazily(world: &mut World, stripe: u32, first: u32) {
    world.osds[1].store.is_immediate = true;
    world.lazy_percent = 100;
    let number = world.write(0, stripe, first, 1);
    world.lazy_percent = 0;
    for _ in 0..8 {
        world.exchange();
    }
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { durable: false, .. }))), "{outcome:?}");
}

#[test]
fn a_part_that_was_written_and_deleted_since_the_lowest_complete_goes_forward() {
    let mut world = world(THREE_TWO);
    write(&mut world, 1, 0, 1);
    // Part 1 holds data only between the two versions up to which members 1 and 2 are complete.
    write_lazily(&mut world, 1, UNITS);
    world.zero(0, 1, 0, 3 * UNITS);
    go_on(&mut world, &[], &[1, 2]);
    lose_power(&mut world, &[1, 2]);
    world.check_equal();
    assert_eq!([0, UNITS].map(|unit| world.value(1, unit)), [0, 0]);
    world.history.check();
}

#[test]
fn a_unit_that_is_again_what_it_was_at_the_lowest_complete_goes_forward() {
    let mut world = world(THREE_TWO);
    let values = write(&mut world, 1, UNITS, 2);
    write_lazily(&mut world, 1, UNITS + 2);
    world.zero(0, 1, UNITS + 2, 1);
    go_on(&mut world, &[1], &[2]);
    lose_power(&mut world, &[1, 2]);
    world.check_equal();
    let is = [UNITS, UNITS + 1, UNITS + 2].map(|unit| world.value(1, unit));
    assert_eq!(is, [values[0], values[1], 0]);
    world.history.check();
}

#[test]
fn what_a_holder_had_lost_before_is_made_of_those_who_go_forward() {
    let mut world = world(TWO_ONE);
    let mut values = write(&mut world, 1, 0, 2 * UNITS);
    let key = *world.osds[0].store.now.view().keys().next().unwrap();
    world.osds[0].store.damage(key, 2);
    world.write(0, 1, UNITS + 2, 1);
    go_on(&mut world, &[1], &[]);
    values[UNITS as usize + 2] = last_values(&world, 1)[0];
    lose_power(&mut world, &[1]);
    assert_eq!(world.osds[1].store.now.view()[&key].damaged, 0);
    let is: Vec<u32> = (0..2 * UNITS).map(|unit| world.value(1, unit)).collect();
    assert_eq!(is, values);
    world.history.check();
}

#[test]
fn a_parity_unit_that_was_lost_before_says_nothing_of_a_version_that_changed_its_row() {
    let mut world = world(THREE_TWO);
    let mut values = write(&mut world, 1, 0, 3 * UNITS);
    let key = *world.osds[3].store.now.view().keys().next().unwrap();
    world.osds[3].store.damage(key, 2);
    // Parts 0 and 1 change, in different rows. Member 1 must get the change of its part.
    world.write(0, 1, 2, UNITS);
    go_on(&mut world, &[1, 2], &[]);
    values.splice(2..2 + UNITS as usize, last_values(&world, UNITS));
    lose_power(&mut world, &[1, 2]);
    let is: Vec<u32> = (0..3 * UNITS).map(|unit| world.value(1, unit)).collect();
    assert_eq!(is, values);
    world.history.check();
}

/// Ends all processes. Each of these members loses the data of its newest prepared version of a stripe. Then
/// all members start again.
fn lose_prepared(world: &mut World, losses: &[(usize, u32)]) {
    for index in 0..world.osds.len() {
        world.kill(index);
    }
    for (member, stripe) in losses {
        let store = &mut world.osds[*member].store;
        let versions = store.prepared_data();
        let newest: Option<Version> = (versions.iter().rev())
            .find(|(_, key)| key.stripe.get() == *stripe)
            .map(|(version, _)| *version);
        store.damage_prepared(newest.expect("a version of the stripe is prepared"));
    }
    for index in 0..world.osds.len() {
        world.start(index);
    }
    world.settle();
}

#[test]
fn versions_that_lost_data_at_different_members_are_kept_and_readable() {
    let mut world = world(TWO_ONE);
    for stripe in [1, 2] {
        write(&mut world, stripe, 0, 2 * UNITS);
    }
    let numbers = [1, 2].map(|stripe| world.write(0, stripe, 0, 2 * UNITS));
    let first = world.history.last_value() + 1 - 4 * UNITS;
    go_on(&mut world, &[], &[]);
    for number in numbers {
        assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    }
    // Only parity has both versions undamaged.
    lose_prepared(&mut world, &[(0, 1), (1, 2)]);
    for unit in 0..2 * UNITS {
        assert_eq!(world.value(1, unit), first + unit);
        assert_eq!(world.value(2, unit), first + 2 * UNITS + unit);
    }
    world.history.check();
}

#[test]
fn only_units_that_too_many_members_lost_cannot_be_read() {
    let mut world = world(TWO_ONE);
    let mut values = write(&mut world, 1, 0, 2 * UNITS);
    let number = world.write(0, 1, 0, 1);
    go_on(&mut world, &[], &[]);
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    lose_prepared(&mut world, &[(0, 1), (2, 1)]);
    let read = world.read(0, 1, 0, 1);
    world.settle();
    let outcome = world.history.outcome(read);
    assert!(matches!(outcome, Some(Err(Refusal::Damaged { .. }))), "{outcome:?}");
    let is: Vec<u32> = (1..2 * UNITS).map(|unit| world.value(1, unit)).collect();
    assert_eq!(is, values.split_off(1));
    // The unit can be written again.
    let value = write(&mut world, 1, 0, 1);
    assert_eq!(world.value(1, 0), value[0]);
    world.history.check();
}

#[test]
fn a_damaged_version_that_one_member_never_had_goes_back() {
    let mut world = world(TWO_ONE);
    let values = write(&mut world, 1, 0, 2 * UNITS);
    world.write(0, 1, 0, 1);
    go_on(&mut world, &[1], &[1]);
    lose_prepared(&mut world, &[(0, 1)]);
    let is: Vec<u32> = (0..2 * UNITS).map(|unit| world.value(1, unit)).collect();
    assert_eq!(is, values);
    world.history.check();
}
