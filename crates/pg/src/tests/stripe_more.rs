//! Pools that get more parity while they are used: each PG gets learners for the new positions. Until these
//! are full members, the PG goes on with the parity that it has.

use base::Scheme;
use format::wire::Outcome;

use super::UNITS;
use super::world::World;

const fn scheme(data: u8, parity: u8) -> Scheme {
    Scheme::ReedSolomon { data, parity }
}

/// Returns a pool with OSDs for four parity parts. Some stripes are written whole, some in part.
fn world(seed: u64, scheme: Scheme) -> World {
    let mut world = World::of_scheme(seed, scheme.data_count() as usize + 4, scheme);
    world.large_percent = 0;
    world.settle();
    let units = world.units();
    for (stripe, first, units) in [(1, 0, units), (2, 1, 2), (3, UNITS - 1, 2), (4, 0, 1)] {
        write(&mut world, stripe, first, units);
    }
    world.zero(0, 4, 0, units);
    world.settle();
    world
}

fn write(world: &mut World, stripe: u32, first: u32, units: u32) {
    let number = world.write(0, stripe, first, units);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
}

fn check(world: &mut World) {
    world.check_equal();
    let (at, units) = (world.server().expect("somebody serves"), world.units());
    for stripe in 1..7 {
        world.read(at, stripe, 0, units);
    }
    world.settle();
    world.history.check();
}

#[test]
fn parity_is_added_while_members_serve() {
    for (from, to) in [((2, 1), (2, 2)), ((2, 1), (2, 4)), ((3, 2), (3, 3)), ((3, 1), (3, 2))] {
        let mut world = world(1, scheme(from.0, from.1));
        world.set_scheme(scheme(to.0, to.1));
        for round in 0..200 {
            world.round();
            let Some(at) = world.server() else { continue };
            let units = world.units();
            world.write(at, 1 + round % 6, round % units, 1);
        }
        world.settle();
        assert!(world.is_whole(), "{from:?} to {to:?}: {:?}", world.entry);
        check(&mut world);
        // The new parity counts: any members of the minimum size are enough.
        for index in 0..world.copies - world.minimum {
            world.kill(index);
        }
        world.settle();
        check(&mut world);
    }
}
