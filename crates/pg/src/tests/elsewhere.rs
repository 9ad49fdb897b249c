//! Reads of a primary whose disk is slow: which member is asked, and what its answer waits for.

use std::collections::BTreeSet;

use blockstore::BlockKey;
use format::wire::{Outcome, PeerBody};

use super::model::values_of;
use super::world::{World, osd_id};
use crate::SlowDisks;

/// Returns a world in which all members are up, and its primary. The disks of the primary and of `others` are
/// slow.
fn slow_primary(copies: usize, others: &[usize]) -> (World, usize) {
    let mut world = World::new(7, copies, copies);
    world.settle();
    let at = world.server().expect("somebody serves");
    let slow = others.iter().map(|other| (at + other) % copies).chain([at]).map(osd_id).collect();
    world.hears_of_disks(at, &SlowDisks { slow, ..SlowDisks::default() });
    (world, at)
}

/// Returns the members from which blocks were requested, in order.
fn asked(world: &World) -> Vec<usize> {
    let is_fetch = |body: &PeerBody| matches!(body, PeerBody::Fetch { .. });
    world.sent.iter().filter(|(.., body)| is_fetch(body)).map(|(_, to, _)| *to).collect()
}

fn write(world: &mut World, at: usize, first: u32, units: u32) -> u32 {
    world.write(at, 1, first, units);
    world.settle();
    world.history.last_value() + 1 - units
}

/// Reads units 0 to 3 of the block; returns their values.
fn read(world: &mut World, at: usize) -> Vec<u32> {
    let number = world.read(at, 1, 0, 4);
    world.settle();
    values_read(world, number).expect("it was read")
}

fn values_read(world: &World, number: usize) -> Option<Vec<u32>> {
    match world.history.outcome(number)? {
        Ok(Outcome::Read { data, .. }) => Some(values_of(data, 4)),
        other => panic!("{other:?}"),
    }
}

fn only_key(world: &World, at: usize) -> BlockKey {
    *world.osds[at].store.now.blocks.keys().next().expect("it was written")
}

#[test]
fn a_primary_with_a_slow_disk_reads_from_the_others_in_turn() {
    let (mut world, at) = slow_primary(3, &[]);
    let value = write(&mut world, at, 1, 2);
    // Unwritten units are zeros, whichever member reads them.
    assert_eq!(read(&mut world, at), [0, value, value + 1, 0]);
    write(&mut world, at, 0, 1);
    let value = write(&mut world, at, 0, 4);
    for _ in 0..3 {
        assert_eq!(read(&mut world, at), [value, value + 1, value + 2, value + 3]);
    }
    let asked: BTreeSet<usize> = asked(&world).into_iter().collect();
    assert_eq!(asked, (0..3).filter(|index| *index != at).collect());
}

#[test]
fn a_member_with_a_slow_disk_is_not_asked() {
    let (mut world, at) = slow_primary(3, &[1]);
    let value = write(&mut world, at, 0, 4);
    for _ in 0..4 {
        assert_eq!(read(&mut world, at)[0], value);
    }
    assert_eq!(asked(&world), [(at + 2) % 3; 4]);
    let (mut world, at) = slow_primary(2, &[1]);
    let value = write(&mut world, at, 0, 4);
    assert_eq!(read(&mut world, at)[0], value);
    assert!(asked(&world).is_empty(), "all are slow: its own disk is as good");
}

#[test]
fn a_primary_whose_disk_is_well_again_reads_by_itself() {
    let (mut world, at) = slow_primary(2, &[]);
    let value = write(&mut world, at, 0, 4);
    world.hears_of_disks(at, &SlowDisks::default());
    assert_eq!(read(&mut world, at)[0], value);
    assert!(asked(&world).is_empty());
}

#[test]
fn what_the_other_member_lost_is_read_here() {
    let (mut world, at) = slow_primary(2, &[]);
    let value = write(&mut world, at, 0, 4);
    let (other, key) = (1 - at, only_key(&world, at));
    world.osds[other].store.damage(key, 2);
    assert_eq!(read(&mut world, at), [value, value + 1, value + 2, value + 3]);
    assert_eq!(asked(&world), [other]);
}

#[test]
fn a_block_that_does_not_exist_reads_as_zeros() {
    let (mut world, at) = slow_primary(2, &[]);
    let number = world.read(at, 1, 0, 4);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Read { .. }))));
}

#[test]
fn a_read_comes_back_from_a_member_whose_disk_does_not_answer() {
    let (mut world, at) = slow_primary(2, &[]);
    let value = write(&mut world, at, 0, 1);
    let other = 1 - at;
    let number = world.read(at, 1, 0, 4);
    let mut disks = SlowDisks { slow: [osd_id(at)].into(), ..SlowDisks::default() };
    world.hears_of_disks(at, &disks);
    assert_eq!(values_read(&world, number), None, "the other member has not answered");
    disks.stalled.insert(osd_id(other));
    world.hears_of_disks(at, &disks);
    world.stores_go_on();
    assert_eq!(values_read(&world, number).expect("it was read here")[0], value);
    assert_eq!(read(&mut world, at)[0], value);
    assert_eq!(asked(&world), [other], "nothing more was asked");
    // The answer to the first request has arrived by now, and was dropped.
    assert_eq!(world.server(), Some(at), "in the same epoch");
}

/// Reads from another member while a write is in flight that this member has and a third one does not.
/// Returns the values that were read before the third one got the write, if the read was answered by then;
/// the values that were read in the end; and the value of the write.
fn read_beside_a_write() -> (Option<Vec<u32>>, Vec<u32>, u32) {
    let (mut world, at) = slow_primary(3, &[]);
    world.write(at, 1, 0, 1);
    let number = world.read(at, 1, 0, 4);
    world.write(at, 1, 0, 1);
    let newest = world.history.last_value();
    let others: Vec<usize> = (0..3).filter(|index| *index != at).collect();
    // The first write ends, and the read begins.
    for other in &others {
        world.deliver(at, *other, true);
    }
    world.stores_go_on();
    for other in &others {
        world.deliver(at, *other, false);
    }
    let [reader] = asked(&world)[..] else { panic!("the read asks one member") };
    // The second write reaches the reading member before the read does.
    world.deliver(at, reader, true);
    world.deliver(at, reader, true);
    world.stores_go_on();
    while world.mail().contains(&(at, reader, false)) {
        world.deliver(at, reader, false);
    }
    let early = values_read(&world, number);
    world.settle();
    (early, values_read(&world, number).expect("it was read"), newest)
}

#[test]
fn a_read_that_saw_a_write_under_way_waits_for_it() {
    let (early, values, newest) = read_beside_a_write();
    assert_eq!(early, None, "the third member may lose the write");
    assert_eq!(values[0], newest);
}

#[cfg(debug_assertions)]
#[test]
fn a_read_that_ignores_a_write_under_way_is_found() {
    use base::planted::{Bug, plant};
    plant(Some(Bug::ReadElsewhereIgnoresWrites));
    let (early, _, newest) = read_beside_a_write();
    plant(None);
    assert_eq!(early.expect("it was answered")[0], newest);
}
