//! Pools with parity, step by step.

use base::Scheme;
use format::wire::{Outcome, PeerBody};

use super::UNITS;
use super::world::World;

const XOR: Scheme = Scheme::Xor { data: 2 };
const TWO_ONE: Scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
const THREE_TWO: Scheme = Scheme::ReedSolomon { data: 3, parity: 2 };
const FOUR_THREE: Scheme = Scheme::ReedSolomon { data: 4, parity: 3 };
const SCHEMES: [Scheme; 4] = [XOR, TWO_ONE, THREE_TWO, FOUR_THREE];

fn world(scheme: Scheme) -> World {
    let mut world = World::of_scheme(1, scheme.position_count() as usize, scheme);
    world.large_percent = 0;
    world.settle();
    assert!(world.is_whole());
    world
}

/// Writes units and returns their values.
fn written(world: &mut World, stripe: u32, first: u32, units: u32) -> Vec<u32> {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, first, units);
    world.settle();
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { .. }))), "{outcome:?}");
    let last = world.history.last_value();
    (last + 1 - units..=last).collect()
}

fn read_all(world: &mut World, stripe: u32) -> Vec<u32> {
    (0..world.units()).map(|unit| world.value(stripe, unit)).collect()
}

#[test]
fn a_stripe_is_written_in_parts_and_as_a_whole() {
    for scheme in SCHEMES {
        let mut world = world(scheme);
        let count = world.units();
        let mut values = vec![0; count as usize];
        for (first, units) in [(0, 1), (UNITS - 1, 2), (1, count - 1), (0, count), (count - 1, 1)] {
            let new = written(&mut world, 1, first, units);
            values.splice(first as usize..(first + units) as usize, new);
            assert_eq!(read_all(&mut world, 1), values, "{scheme}");
            world.check_equal();
        }
        world.history.check();
    }
}

#[test]
fn rows_are_encoded_without_reading() {
    let mut world = world(THREE_TWO);
    let count = world.units();
    world.sent.clear();
    written(&mut world, 1, 0, count);
    let asks = |body: &PeerBody| matches!(body, PeerBody::Delta { .. } | PeerBody::Fetch { .. });
    assert!(!world.sent.iter().any(|(_, _, body)| asks(body)));
    world.check_equal();
}

#[test]
fn k_members_are_enough_to_read_and_to_write() {
    for scheme in SCHEMES {
        let lost = scheme.position_count() as usize - world(scheme).minimum;
        for first in 0..scheme.position_count() as usize {
            let mut world = world(scheme);
            let count = world.units();
            let mut values = written(&mut world, 1, 0, count);
            for away in 0..lost {
                world.kill((first + away) % scheme.position_count() as usize);
            }
            world.settle();
            assert_eq!(read_all(&mut world, 1), values, "{scheme}, {first} is away");
            for unit in [0, 2, count - 1] {
                values[unit as usize] = written(&mut world, 1, unit, 1)[0];
                assert_eq!(read_all(&mut world, 1), values, "{scheme}, {first} is away");
                world.check_equal();
            }
            world.history.check();
        }
    }
}

#[test]
fn zeros_and_deletes_free_what_they_empty() {
    for scheme in SCHEMES {
        let mut world = world(scheme);
        let (count, at) = (world.units(), world.server().unwrap());
        let mut values = written(&mut world, 1, 0, count);
        world.zero(at, 1, 1, UNITS);
        world.settle();
        values[1..=UNITS as usize].fill(0);
        assert_eq!(read_all(&mut world, 1), values, "{scheme}");
        world.check_equal();
        world.zero(at, 1, 0, count);
        world.settle();
        assert_eq!(read_all(&mut world, 1), vec![0; count as usize]);
        world.check_equal();
        for osd in &world.osds {
            assert!(osd.store.now.view().values().all(|block| block.is_tombstone), "{scheme}");
        }
        let values = written(&mut world, 1, UNITS, 1);
        assert_eq!(world.value(1, UNITS), values[0]);
        world.check_equal();
        world.history.check();
    }
}

#[test]
fn writes_that_wait_for_a_stripe_merge_into_its_next_version() {
    let mut world = world(TWO_ONE);
    let at = world.server().unwrap();
    let numbers: Vec<usize> = (0..5).map(|unit| world.write(at, 1, unit, 1)).collect();
    world.settle();
    for number in numbers {
        assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    }
    assert_eq!(world.osds[at].store.now.last.counter, 2, "the first one, and all others");
    world.check_equal();
    world.history.check();
}

#[test]
fn members_that_a_version_does_not_touch_get_a_skip() {
    let mut world = world(THREE_TWO);
    world.sent.clear();
    written(&mut world, 1, UNITS, 1);
    let count = |is_meant: fn(&PeerBody) -> bool| {
        world.sent.iter().filter(|(_, _, body)| is_meant(body)).count()
    };
    assert_eq!(count(|body| matches!(body, PeerBody::Parity { .. })), 2);
    let own = world.server().unwrap();
    let skips = if own == 1 { 2 } else { 1 };
    assert_eq!(count(|body| matches!(body, PeerBody::Skip { .. })), skips);
    for osd in &world.osds {
        assert_eq!(osd.store.now.last.counter, 1, "all have the version");
    }
}
