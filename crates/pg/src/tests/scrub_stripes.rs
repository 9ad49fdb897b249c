//! Scrubs of pools with parity: what follows from each kind of damage.

use std::collections::BTreeMap;

use base::Scheme;
use blockstore::BlockKey;
use format::wire::{Outcome, PeerBody};

use super::model::Block;
use super::scrub::{remove, told};
use super::world::{World, osd_id};
use super::{BLOCK_SIZE, UNITS};
use crate::stripes::table::Table;
use crate::units::Units;

const XOR: Scheme = Scheme::Xor { data: 2 };
const TWO_ONE: Scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
const THREE_TWO: Scheme = Scheme::ReedSolomon { data: 3, parity: 2 };
const FOUR_THREE: Scheme = Scheme::ReedSolomon { data: 4, parity: 3 };
const SCHEMES: [Scheme; 4] = [XOR, TWO_ONE, THREE_TWO, FOUR_THREE];

/// The number of the stripe that the tests damage.
const STRIPE: u32 = 3;

fn positions(scheme: Scheme) -> usize {
    scheme.position_count() as usize
}

pub fn write(world: &mut World, stripe: u32, first: u32, units: u32) {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, first, units);
    world.settle();
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { .. }))), "{outcome:?}");
}

/// Returns a whole pool of six full stripes, and the key of one of them. The member at position `i` is `i`.
pub fn with_stripes(scheme: Scheme) -> (World, BlockKey) {
    let mut world = World::of_scheme(1, positions(scheme), scheme);
    world.large_percent = 0;
    world.settle();
    let count = world.units();
    for stripe in 0..6 {
        write(&mut world, stripe, 0, count);
    }
    assert!(world.is_whole());
    let keys = world.osds[0].store.now.blocks.keys();
    let key = *keys.into_iter().find(|key| key.stripe.get() == STRIPE).unwrap();
    (world, key)
}

fn block(world: &World, at: usize, key: BlockKey) -> Block {
    world.osds[at].store.now.blocks[&key].clone()
}

pub fn blocks(world: &World) -> Vec<BTreeMap<BlockKey, Block>> {
    world.osds.iter().map(|osd| osd.store.now.blocks.clone()).collect()
}

fn replace(world: &mut World, at: usize, key: BlockKey, block: &Block) {
    world.osds[at].store.alter(key, |state, key| {
        state.blocks.insert(key, block.clone());
    });
}

/// Changes a unit of a part, but neither its version nor that it matches its checksum.
pub fn corrupt(world: &mut World, at: usize, key: BlockKey, unit: u32) {
    world.osds[at].store.alter(key, |state, key| {
        *state.blocks.get_mut(&key).unwrap().units.get_mut(&unit).unwrap() ^= 0x5a5a;
    });
}

/// Checks that all parts are undamaged and form code words.
pub fn is_sound(world: &World) {
    for osd in &world.osds {
        assert!(osd.store.now.blocks.values().all(|block| block.damaged == 0));
    }
    world.check_equal();
}

fn mends(world: &World) -> usize {
    let sent = world.sent.iter();
    sent.filter(|(.., body)| matches!(body, PeerBody::Mend { .. })).count()
}

#[test]
fn stripes_that_belong_together_are_left_alone() {
    for scheme in SCHEMES {
        let (mut world, _) = with_stripes(scheme);
        // Stripes of which only some parts were written, or of which all or some were deleted.
        write(&mut world, 7, 1, 1);
        write(&mut world, 8, UNITS, UNITS);
        let (at, count) = (world.server().unwrap(), world.units());
        for (stripe, first, units) in [(0, 0, count), (1, 1, 2), (2, 0, UNITS), (4, 0, count)] {
            world.zero(at, stripe, first, units);
            world.settle();
        }
        write(&mut world, 4, 0, 1);
        let before = blocks(&world);
        world.scrub_all(false, true);
        world.scrub_all(true, true);
        assert_eq!(told(&world), Vec::<String>::new(), "{scheme}");
        assert_eq!((blocks(&world), mends(&world)), (before, 0));
        let notes: Vec<_> = (0..positions(scheme)).map(|index| world.scrub_note(index)).collect();
        assert!(notes[0].deep_at > 0 && notes.iter().all(|note| *note == notes[0]));
    }
}

#[test]
fn a_deep_scrub_makes_units_that_rot_of_others() {
    for scheme in SCHEMES {
        for at in 0..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            let before = block(&world, at, key);
            world.osds[at].store.damage(key, 1);
            world.scrub_all(false, true);
            assert_eq!(told(&world), Vec::<String>::new(), "a light one reads no data");
            world.scrub_all(true, true);
            assert_eq!(told(&world), [format!("repaired: {} damaged", osd_id(at))], "{scheme}");
            is_sound(&world);
            assert_eq!(block(&world, at, key), before);
            assert_eq!(world.osds[at].pg.as_ref().unwrap().mended_units(), 1);
            assert_eq!(world.scrub_note(0).damaged_count(), 0);
        }
    }
}

#[test]
fn a_light_scrub_finds_missing_and_stale_parts() {
    for scheme in SCHEMES {
        let data_count = scheme.data_count() as usize;
        for at in 0..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            let before = block(&world, at, key);
            remove(&mut world, at, key);
            world.scrub_all(false, true);
            assert_eq!(told(&world), [format!("repaired: {} missing", osd_id(at))], "{scheme}");
            is_sound(&world);
            assert_eq!(block(&world, at, key), before);
            // The member loses a write of all parts, or of its part alone.
            for first in [0, at.min(data_count - 1) as u32 * UNITS] {
                let (mut world, key) = with_stripes(scheme);
                let before = block(&world, at, key);
                let units = if first == 0 { world.units() } else { 2 };
                write(&mut world, STRIPE, first, units);
                let newest = block(&world, at, key);
                assert!(before.version < newest.version);
                replace(&mut world, at, key, &before);
                world.scrub_all(false, true);
                let repaired = format!("repaired: {} stale", osd_id(at));
                assert_eq!(told(&world), [repaired], "{scheme}");
                is_sound(&world);
                assert_eq!(block(&world, at, key), newest);
            }
        }
    }
}

#[test]
fn parity_that_is_silently_wrong_is_made_anew_and_data_never_is() {
    for scheme in SCHEMES {
        let data_count = scheme.data_count() as usize;
        for at in 0..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            let before = blocks(&world);
            corrupt(&mut world, at, key, 2);
            let wrong = blocks(&world);
            world.scrub_all(false, true);
            assert_eq!(told(&world), Vec::<String>::new(), "versions and units are right");
            world.scrub_all(true, true);
            if positions(scheme) == data_count + 1 {
                assert_eq!(told(&world), ["found: osd.1 differs, osd.2 differs, osd.3 differs"]);
            } else if at < data_count {
                // The data that is found, and all parity: the latter may have got a wrong difference.
                let suspects = std::iter::once(at).chain(data_count..positions(scheme));
                let suspects: Vec<String> =
                    suspects.map(|it| format!("{} differs", osd_id(it))).collect();
                assert_eq!(told(&world), [format!("found: {}", suspects.join(", "))]);
            } else {
                let repaired = format!("repaired: {} differs", osd_id(at));
                assert_eq!(told(&world), [repaired], "{scheme}");
                assert_eq!(blocks(&world), before);
                continue;
            }
            assert_eq!(blocks(&world), wrong, "nothing is changed");
            assert_eq!(world.scrub_note(2).damaged_count(), 1);
        }
    }
}

#[test]
fn different_units_may_have_different_wrong_parts() {
    let (mut world, key) = with_stripes(THREE_TWO);
    let before = blocks(&world);
    corrupt(&mut world, 3, key, 1);
    corrupt(&mut world, 4, key, 2);
    world.osds[1].store.damage(key, 0);
    world.scrub_all(true, true);
    assert_eq!(told(&world), ["repaired: osd.2 damaged, osd.4 differs, osd.5 differs"]);
    assert_eq!(blocks(&world), before);
}

#[test]
fn what_is_not_decided_is_listed_and_nothing_of_its_stripe_is_repaired() {
    let (mut world, key) = with_stripes(THREE_TWO);
    // One unit of the row is lost: one of the other four is wrong, and any of them may be.
    corrupt(&mut world, 0, key, 1);
    world.osds[1].store.damage(key, 1);
    world.osds[2].store.damage(key, 3);
    let wrong = blocks(&world);
    world.scrub_all(true, true);
    let found = "found: osd.2 damaged, osd.3 damaged, \
                 osd.1 differs, osd.3 differs, osd.4 differs, osd.5 differs";
    assert_eq!(told(&world), [found]);
    assert_eq!(blocks(&world), wrong);
    // With a third parity part it is found.
    let (mut world, key) = with_stripes(FOUR_THREE);
    let before = blocks(&world);
    corrupt(&mut world, 4, key, 1);
    world.osds[1].store.damage(key, 1);
    world.scrub_all(true, true);
    assert_eq!(told(&world), ["repaired: osd.2 damaged, osd.5 differs"]);
    assert_eq!(blocks(&world), before);
}

#[test]
fn as_many_parts_as_there_is_parity_are_made_anew_and_no_more() {
    for hit in [[0, 1], [0, 3], [3, 4]] {
        let (mut world, key) = with_stripes(THREE_TWO);
        let before = blocks(&world);
        for at in hit {
            world.osds[at].store.damage(key, 1);
        }
        world.scrub_all(true, true);
        assert_eq!(told(&world).len(), 1);
        assert_eq!(blocks(&world), before);
        let (mut world, key) = with_stripes(THREE_TWO);
        for at in hit {
            remove(&mut world, at, key);
        }
        world.scrub_all(false, true);
        assert_eq!(told(&world).len(), 1);
        assert_eq!(blocks(&world), before);
    }
    let (mut world, key) = with_stripes(THREE_TWO);
    for at in [0, 1, 4] {
        world.osds[at].store.damage(key, 1);
    }
    world.osds[2].store.damage(key, 3);
    world.scrub_all(true, true);
    world.scrub_all(true, true);
    let lost = "found: osd.1 lost, osd.2 lost, osd.5 lost";
    assert_eq!(told(&world), [lost, lost], "the unit of another row was repaired");
    assert_eq!(block(&world, 2, key).damaged, 0);
    // Once all of its row is written, the stripe is whole, and the next scrub finds that.
    let count = world.units();
    write(&mut world, STRIPE, 0, count);
    world.scrub_all(true, true);
    assert_eq!(world.scrub_note(1).damaged_count(), 0);
    is_sound(&world);
}

#[test]
fn a_stripe_with_a_member_away_is_compared_with_those_who_are_there() {
    for away in [0, 4] {
        let (mut world, key) = with_stripes(THREE_TWO);
        world.kill(away);
        world.settle();
        world.scrub_all(true, true);
        assert_eq!(told(&world), Vec::<String>::new());
        let before = blocks(&world);
        world.osds[1].store.damage(key, 1);
        remove(&mut world, 3, key);
        world.scrub_all(true, true);
        // Of two faults and a member away, one is too much: nothing tells what the units of the row were.
        let text = told(&world).join("; ");
        assert_eq!(text, "found: osd.2 lost, osd.4 lost", "{away} is away");
        assert_eq!(block(&world, 3, key).damaged, 1 << 1, "the rest was repaired");
        let mut last = before.clone();
        last[1].get_mut(&key).unwrap().damaged = 1 << 1;
        assert_eq!(blocks(&world)[1], last[1]);
    }
}

/// Replaces the table of a parity part by one that names another version of part 1.
pub fn spoil_table(world: &mut World, at: usize, key: BlockKey, data_count: usize) {
    world.osds[at].store.alter(key, |state, key| {
        let block = state.blocks.get_mut(&key).unwrap();
        let mut table = Table::decode(&block.table, data_count, BLOCK_SIZE).unwrap();
        table.parts[1].version.counter -= 1;
        block.table = table.encode(BLOCK_SIZE);
    });
}

#[test]
fn part_tables_are_repaired_by_majority() {
    for scheme in SCHEMES {
        let data_count = scheme.data_count() as usize;
        for at in data_count..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            let before = blocks(&world);
            spoil_table(&mut world, at, key, data_count);
            world.scrub_all(false, true);
            if scheme.position_count() as usize - data_count > 1 {
                assert_eq!(told(&world), [format!("repaired: {} differs", osd_id(at))]);
                assert_eq!(blocks(&world), before);
            } else {
                assert_eq!(told(&world), ["found: osd.2 differs, osd.3 differs"]);
            }
        }
    }
    // Both tables contradict the data part.
    let (mut world, key) = with_stripes(THREE_TWO);
    (3..5).for_each(|at| spoil_table(&mut world, at, key, 3));
    world.scrub_all(true, true);
    assert_eq!(told(&world), ["found: osd.2 differs"]);
}

#[test]
fn a_parity_part_that_lost_its_table_is_made_anew() {
    for scheme in SCHEMES {
        let (mut world, key) = with_stripes(scheme);
        let (before, at) = (blocks(&world), positions(scheme) - 1);
        world.osds[at].store.alter(key, |state, key| {
            state.blocks.get_mut(&key).unwrap().table.clear();
        });
        world.scrub_all(false, true);
        assert_eq!(told(&world), [format!("repaired: {} damaged", osd_id(at))], "{scheme}");
        assert_eq!(blocks(&world), before);
    }
}

#[test]
fn units_that_hold_data_at_one_member_too_many_or_too_few_are_decided_by_majority() {
    for (scheme, is_decided) in [(THREE_TWO, true), (TWO_ONE, false)] {
        let (mut world, key) = with_stripes(scheme);
        let before = blocks(&world);
        world.osds[0].store.alter(key, |state, key| {
            state.blocks.get_mut(&key).unwrap().units.remove(&1);
        });
        world.scrub_all(false, true);
        match is_decided {
            true => assert_eq!(blocks(&world), before),
            false => assert_eq!(told(&world), ["found: osd.1 differs, osd.3 differs"]),
        }
    }
}

#[test]
fn a_deletion_that_a_member_lost_is_put_back() {
    for at in 0..5 {
        let (mut world, key) = with_stripes(THREE_TWO);
        let before = block(&world, at, key);
        let (server, count) = (world.server().unwrap(), world.units());
        world.zero(server, STRIPE, 0, count);
        // The next write tells the mark: the tombstones become stable. The floor stays below them.
        for _ in 0..8 {
            world.exchange();
        }
        world.write(server, 1, 0, 1);
        for _ in 0..8 {
            world.exchange();
        }
        replace(&mut world, at, key, &before);
        for _ in 0..200 {
            world.scrub_on(server, Some(false), 1 << 20, true);
            world.exchange();
        }
        let told = told(&world);
        assert_eq!(told.first(), Some(&format!("repaired: {} stale", osd_id(at))), "{told:?}");
        world.check_equal();
    }
}

#[test]
fn a_repair_waits_until_the_mark_has_passed_the_versions_of_its_stripe() {
    let (mut world, key) = with_stripes(THREE_TWO);
    world.osds[1].store.damage(key, 1);
    world.lazy_percent = 100;
    let at = world.server().unwrap();
    // The stripe's newest version is lazy: its members have only prepared it.
    let number = world.write(at, STRIPE, 0, 1);
    for _ in 0..12 {
        world.exchange();
    }
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { durable: false, .. }))), "{outcome:?}");
    for _ in 0..200 {
        world.scrub_on(at, Some(true), 1 << 20, true);
        world.exchange();
    }
    assert_eq!(told(&world), ["repaired: osd.2 damaged"]);
    world.settle();
    is_sound(&world);
}

#[test]
fn a_version_that_nobody_gave_is_listed() {
    let (mut world, key) = with_stripes(THREE_TWO);
    world.osds[0].store.alter(key, |state, key| {
        state.blocks.get_mut(&key).unwrap().version.counter += 100;
    });
    let before = blocks(&world);
    world.scrub_all(true, true);
    assert_eq!(told(&world).len(), 1);
    assert!(told(&world)[0].starts_with("found: "), "{:?}", told(&world));
    assert_eq!(blocks(&world), before);
}

#[test]
fn with_repairs_off_damage_is_only_listed() {
    let (mut world, key) = with_stripes(THREE_TWO);
    world.osds[1].store.damage(key, 1);
    world.scrub_all(true, false);
    assert_eq!(told(&world), ["found: osd.2 damaged"]);
    assert_eq!(world.scrub_note(2).damaged_count(), 1);
    world.scrub_all(false, true);
    assert_eq!(world.scrub_note(2).damaged_count(), 0);
    is_sound(&world);
}

/// Lets the primary know the notes of all members.
fn recall(world: &mut World) {
    let at = world.server().unwrap();
    world.scrub_on(at, None, 0, true);
    world.settle();
}

#[test]
fn units_that_a_read_makes_of_others_are_written_back() {
    for scheme in SCHEMES {
        for damaged in 0..scheme.data_count() as usize {
            let (mut world, key) = with_stripes(scheme);
            recall(&mut world);
            let before = blocks(&world);
            world.osds[damaged].store.damage(key, 1);
            let at = world.server().unwrap();
            let first = damaged as u32 * UNITS;
            // Other operations on the stripe wait meanwhile.
            let numbers = [world.read(at, STRIPE, first, 2), world.read(at, STRIPE, first, 2)];
            world.settle();
            for number in numbers {
                assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Read { .. }))));
            }
            assert_eq!(blocks(&world), before, "{scheme}");
            assert_eq!(told(&world), [format!("repaired: {} damaged", osd_id(damaged))]);
            let note = world.scrub_note(at);
            assert!(note.running.is_none() && note.deep_at == 0, "no scrub has begun");
        }
    }
}

#[test]
fn damage_that_nobody_can_repair_is_listed_by_the_first_read_and_not_looked_at_again() {
    let (mut world, key) = with_stripes(TWO_ONE);
    recall(&mut world);
    world.osds[0].store.damage(key, 1);
    world.osds[2].store.damage(key, 1);
    for _ in 0..3 {
        let at = world.server().unwrap();
        let number = world.read(at, STRIPE, 1, 1);
        world.settle();
        assert!(matches!(world.history.outcome(number), Some(Err(_))));
    }
    assert_eq!(told(&world), ["found: osd.1 lost, osd.3 lost"]);
    assert_eq!(world.scrub_note(1).damaged_count(), 1);
}

#[test]
fn damage_is_written_back_while_a_scrub_is_under_way_and_its_cursor_stays() {
    let (mut world, key) = with_stripes(THREE_TWO);
    let at = world.server().unwrap();
    recall(&mut world);
    // The scrub has begun, and may read nothing more.
    world.scrub_on(at, Some(true), 0, false);
    world.settle();
    let cursor = |world: &World| world.scrub_note(at).running.map(|running| running.cursor);
    let before = (cursor(&world), blocks(&world));
    world.osds[1].store.damage(key, 1);
    world.read(at, STRIPE, UNITS + 1, 1);
    world.settle();
    assert_eq!((cursor(&world), blocks(&world)), before);
    assert_eq!(told(&world), ["repaired: osd.2 damaged"]);
}

#[test]
fn a_stale_part_that_lost_a_unit_is_made_anew() {
    for scheme in [THREE_TWO, TWO_ONE] {
        for at in 0..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            let before = block(&world, at, key);
            let count = world.units();
            write(&mut world, STRIPE, 0, count);
            let newest = blocks(&world);
            replace(&mut world, at, key, &before);
            world.osds[at].store.damage(key, 1);
            world.scrub_all(true, true);
            assert_eq!(told(&world), [format!("repaired: {} stale", osd_id(at))], "{scheme}");
            assert_eq!(blocks(&world), newest);
        }
    }
}

/// Changes the tables of all parity parts.
fn alter_tables(world: &mut World, scheme: Scheme, key: BlockKey, change: fn(&mut Table)) {
    let data_count = scheme.data_count() as usize;
    for at in data_count..positions(scheme) {
        world.osds[at].store.alter(key, |state, key| {
            let block = state.blocks.get_mut(&key).unwrap();
            let mut table = Table::decode(&block.table, data_count, BLOCK_SIZE).unwrap();
            change(&mut table);
            block.table = table.encode(BLOCK_SIZE);
        });
    }
}

#[test]
fn data_that_no_table_names_is_not_removed_while_parity_says_that_it_is_there() {
    for scheme in [THREE_TWO, FOUR_THREE] {
        let (mut world, key) = with_stripes(scheme);
        alter_tables(&mut world, scheme, key, |table| {
            let unit = Units::from_range(1..2);
            table.parts[0].written = table.parts[0].written.without(&unit);
        });
        let before = blocks(&world);
        world.scrub_all(true, true);
        assert!(told(&world)[0].starts_with("found: osd.1 differs"), "{:?}", told(&world));
        assert!(blocks(&world) == before, "{scheme}");
    }
}

#[test]
fn a_part_that_its_member_has_no_more_when_it_is_read_counts_as_missing() {
    let (mut world, key) = with_stripes(THREE_TWO);
    // With a member away and a lost unit, the others of its row are just enough.
    world.kill(4);
    world.settle();
    let before = blocks(&world);
    let at = world.server().unwrap();
    recall(&mut world);
    world.osds[2].store.damage(key, 1);
    let is_fetch = |(_, to, body): &(usize, usize, PeerBody)| {
        *to == 1 && matches!(body, PeerBody::Fetch { key: of, .. } if *of == key)
    };
    while !world.sent.iter().any(is_fetch) {
        world.scrub_on(at, Some(true), 1 << 20, true);
        world.deliver_all();
        if !world.sent.iter().any(is_fetch) {
            world.stores_go_on();
        }
    }
    remove(&mut world, 1, key);
    world.settle();
    world.scrub_all(true, true);
    assert_eq!(told(&world)[0], "found: osd.2 lost, osd.3 lost");
    for index in [0, 3] {
        assert!(world.osds[index].store.now.blocks == before[index]);
    }
    assert_eq!(block(&world, 2, key).damaged, 1 << 1, "nothing was made of a part that is gone");
}

#[test]
fn data_is_kept_if_all_parity_parts_missed_the_same_difference() {
    for scheme in [THREE_TWO, FOUR_THREE] {
        let (mut world, key) = with_stripes(scheme);
        let older = blocks(&world);
        write(&mut world, STRIPE, 1, 1);
        for (at, older) in older.iter().enumerate().skip(scheme.data_count() as usize) {
            let old = older[&key].units[&1];
            world.osds[at].store.alter(key, |state, key| {
                state.blocks.get_mut(&key).unwrap().units.insert(1, old);
            });
        }
        let before = blocks(&world);
        world.scrub_all(true, true);
        assert!(told(&world)[0].starts_with("found: osd.1 differs"), "{:?}", told(&world));
        assert!(blocks(&world) == before, "what was acknowledged is there");
    }
}

#[test]
fn a_part_table_that_a_read_misses_is_written_back() {
    let (mut world, key) = with_stripes(THREE_TWO);
    world.kill(0);
    world.settle();
    recall(&mut world);
    let before = blocks(&world);
    world.osds[3].store.alter(key, |state, key| {
        state.blocks.get_mut(&key).unwrap().table.clear();
    });
    let at = world.server().unwrap();
    let number = world.read(at, STRIPE, 1, 1);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Read { .. }))));
    assert_eq!(told(&world), ["repaired: osd.4 damaged"]);
    assert!(blocks(&world) == before);
}

/// A write of one data part meets old parity that its member cannot read.
#[test]
fn parity_that_a_write_left_lost_is_made_good_at_once() {
    for scheme in SCHEMES {
        let data_count = scheme.data_count() as usize;
        for lost in data_count..positions(scheme) {
            let (mut world, key) = with_stripes(scheme);
            recall(&mut world);
            world.osds[lost].store.damage(key, 1);
            write(&mut world, STRIPE, 1, 1);
            assert_eq!(told(&world), [format!("repaired: {} damaged", osd_id(lost))], "{scheme}");
            is_sound(&world);
        }
    }
}

#[test]
fn what_contradicts_itself_stays_listed_while_members_are_missing() {
    for scheme in [TWO_ONE, THREE_TWO] {
        let (mut world, key) = with_stripes(scheme);
        let last = positions(scheme) - 1;
        corrupt(&mut world, 0, key, 2);
        if scheme == THREE_TWO {
            corrupt(&mut world, 3, key, 2);
        }
        world.scrub_all(true, true);
        assert_eq!(world.scrub_note(0).damaged_count(), 1);
        world.kill(last);
        world.settle();
        world.scrub_all(true, true);
        assert_eq!(world.scrub_note(0).damaged_count(), 1, "{scheme}");
        world.start(last);
        world.settle();
        let count = world.units();
        write(&mut world, STRIPE, 0, count);
        world.scrub_all(true, true);
        assert_eq!(world.scrub_note(0).damaged_count(), 0);
        is_sound(&world);
    }
}
