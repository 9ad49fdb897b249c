//! Learners of a pool of objects: random runs in which members die, come back and are filled, while objects change.

#[cfg(feature = "planted")]
use base::planted::{self, Bug};

use super::world::{Kind, World};
use super::{any_look, any_operation, check};

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
            5 if world.random.below(12) == 0 => world.change_members(),
            6 if world.random.below(8) == 0 => world.wait(),
            7 if world.serves() => world.send_again(),
            _ => drop(world.happen()),
        }
    }
    world.fill_all();
    world
}

fn check_filled(world: &World) {
    check(world);
    for osd in &world.osds[1..] {
        osd.store.assert_equals(&world.osds[0].store);
    }
}

fn run_many(seeds: std::ops::Range<u64>) {
    let (mut whole, mut parts, mut died) = (0, 0, 0);
    let count = (seeds.end - seeds.start) as usize;
    for seed in seeds {
        let run = || {
            let world = run(seed, 1500);
            check_filled(&world);
            (world.page_counts, world.died_incomplete_count)
        };
        match std::panic::catch_unwind(run) {
            Ok((pages, in_parts)) => {
                whole += pages.0 - pages.1;
                parts += pages.1;
                died += in_parts;
            }
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{whole} {parts} {died} in {count}");
    assert!(whole > 10 * count && parts > 10 * count && died > 0, "{whole}, {parts}, {died}");
}

#[test]
fn learners_that_die_and_change_their_primary_become_equal() {
    run_many(0..40);
}

#[test]
#[ignore = "takes minutes"]
fn learners_become_equal_in_many_runs() {
    run_many(1000..4000);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_of_fills_are_found() {
    for bug in [Bug::HalfCopiedObjectServed, Bug::PageOvertakesMutation] {
        assert!(planted::fails(bug, || run_many(0..40)), "{bug:?} was not found");
    }
}
