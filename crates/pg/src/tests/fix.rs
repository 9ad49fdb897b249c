//! What operators decide about damage that nobody else decides.

use base::{Choice, Scheme};
use blockstore::BlockKey;
use format::wire::{Outcome, PeerBody};

use super::scrub::{self, told, with_blocks};
use super::scrub_stripes::{self, blocks, is_sound, spoil_table, with_stripes, write};
use super::world::{World, osd_id};
use super::{BLOCK_SIZE, UNITS};
use crate::stripes::table::Table;
use crate::{FixOutcome, FixRequest};

const TWO_ONE: Scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
const THREE_TWO: Scheme = Scheme::ReedSolomon { data: 3, parity: 2 };

/// Sends the primary a decision about a key.
fn ask(world: &mut World, key: BlockKey, choice: Choice, number: u64) {
    let at = world.server().expect("somebody serves");
    let request = FixRequest { image: key.image, stripe: key.stripe, choice, number };
    world.with(at, |pg, actions| pg.fix(request, |_| true, actions));
}

/// Decides about a key, waits for the end and returns the result.
fn fix(world: &mut World, key: BlockKey, choice: Choice) -> FixOutcome {
    let number = world.sent.len() as u64;
    ask(world, key, choice, number);
    world.settle();
    let at = world.server().expect("somebody serves");
    let fixed = world.osds[at].pg.as_ref().unwrap().fixed().expect("it has ended").clone();
    assert_eq!(fixed.request.number, number);
    fixed.outcome
}

fn refused(world: &mut World, key: BlockKey, choice: Choice, words: &str) {
    let before = blocks(world);
    let outcome = fix(world, key, choice);
    let FixOutcome::Refused(why) = &outcome else { panic!("{outcome:?}") };
    assert!(why.contains(words), "{why}");
    assert_eq!(blocks(world), before, "nothing was written");
}

fn mends(world: &World) -> usize {
    let sent = world.sent.iter();
    sent.filter(|(.., body)| matches!(body, PeerBody::Mend { .. })).count()
}

/// Returns a pool with copies, a block of which has two contents of one version, and is listed.
fn with_two_contents() -> (World, BlockKey) {
    let (mut world, key) = with_blocks(2);
    let at = world.entry.acting().map(|member| member.osd.get() as usize - 1).nth(1).unwrap();
    scrub::corrupt(&mut world, at, key, 9_999);
    world.scrub_all(true, true);
    assert_eq!(world.scrub_note(0).damaged_count(), 1);
    (world, key)
}

#[test]
fn the_copy_that_an_operator_keeps_becomes_the_content() {
    for kept in [0, 1] {
        let (mut world, key) = with_two_contents();
        let acting: Vec<_> = world.entry.acting().map(|member| member.osd).collect();
        let content = |world: &World, osd: usize| world.osds[osd].store.now.blocks[&key].clone();
        let want = content(&world, acting[kept].get() as usize - 1);
        assert_eq!(fix(&mut world, key, Choice::Keep(acting[kept])), FixOutcome::Done);
        for osd in acting {
            assert_eq!(content(&world, osd.get() as usize - 1), want);
        }
        assert_eq!(world.scrub_note(0).damaged_count(), 0);
        // The same request once more, late: nothing is listed any more.
        refused(&mut world, key, Choice::Keep(osd_id(0)), "not listed");
    }
}

#[test]
fn a_request_that_comes_twice_is_carried_out_once() {
    let (mut world, key) = with_two_contents();
    let osd = world.entry.acting().next().unwrap().osd;
    (0..3).for_each(|_| ask(&mut world, key, Choice::Keep(osd), 7));
    world.settle();
    ask(&mut world, key, Choice::Keep(osd), 7);
    world.settle();
    assert_eq!(mends(&world), 1);
    assert_eq!(told(&world).iter().filter(|line| *line == "Done").count(), 1);
}

#[test]
fn a_decision_about_something_else_is_refused() {
    let (mut world, key) = with_two_contents();
    let acting: Vec<_> = world.entry.acting().map(|member| member.osd).collect();
    let other = (0..3).map(osd_id).find(|osd| !acting.contains(osd)).unwrap();
    refused(&mut world, key, Choice::Keep(other), "no acting member");
    refused(&mut world, key, Choice::Rebuild(acting[0]), "has copies");
    refused(&mut world, key, Choice::RebuildParity, "has copies");
    refused(&mut world, key, Choice::AcceptLoss, "nothing of the block is lost");
    let at = world.server().unwrap();
    let request = FixRequest {
        image: key.image,
        stripe: key.stripe,
        choice: Choice::Keep(acting[0]),
        number: 1,
    };
    world.with(at, |pg, actions| pg.fix(request, |_| false, actions));
    world.settle();
    assert!(told(&world).last().unwrap().contains("not as it was"));
    // What is wrong has changed since it was listed; the list is right afterwards.
    world.osds[at].store.damage(key, 2);
    refused(&mut world, key, Choice::Keep(acting[0]), "other damage than what was listed");
    assert_eq!(fix(&mut world, key, Choice::Keep(acting[0])), FixOutcome::Done);
}

#[test]
fn an_osd_that_cannot_read_what_differs_decides_nothing() {
    let (mut world, key) = with_two_contents();
    let acting: Vec<_> = world.entry.acting().map(|member| member.osd).collect();
    world.osds[acting[0].get() as usize - 1].store.alter(key, |state, key| {
        state.blocks.get_mut(&key).unwrap().version.counter -= 1;
    });
    world.scrub_all(true, false);
    refused(&mut world, key, Choice::Keep(acting[0]), "does not have the newest version");
}

#[test]
fn a_write_that_waits_for_the_key_comes_after_the_decision() {
    let (mut world, key) = with_two_contents();
    let osd = world.entry.acting().next().unwrap().osd;
    let at = world.server().unwrap();
    ask(&mut world, key, Choice::Keep(osd), 3);
    let number = world.write(at, key.stripe.get(), 1, 1);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    assert_eq!(world.osds[at].pg.as_ref().unwrap().fixed().unwrap().outcome, FixOutcome::Done);
    world.check_equal();
}

#[test]
fn units_that_all_copies_lost_become_zeros_that_are_data() {
    let (mut world, key) = with_blocks(3);
    (0..3).for_each(|at| world.osds[at].store.damage(key, 1));
    world.osds[0].store.damage(key, 2);
    world.scrub_all(true, true);
    refused(&mut world, key, Choice::RebuildParity, "has copies");
    assert_eq!(fix(&mut world, key, Choice::AcceptLoss), FixOutcome::Done);
    for osd in &world.osds {
        let block = &osd.store.now.blocks[&key];
        assert_eq!((block.damaged, block.units.get(&1)), (0, Some(&0)));
        assert_eq!(block.units.len(), UNITS as usize);
    }
    assert_eq!(world.scrub_note(1).damaged_count(), 0);
}

#[test]
fn the_part_that_an_operator_names_is_made_of_the_others() {
    for scheme in [TWO_ONE, Scheme::Xor { data: 2 }] {
        for wrong in 0..3 {
            let (mut world, key) = with_stripes(scheme);
            let before = blocks(&world);
            scrub_stripes::corrupt(&mut world, wrong, key, 2);
            world.scrub_all(true, true);
            refused(&mut world, key, Choice::Keep(osd_id(0)), "pool has parity");
            refused(&mut world, key, Choice::AcceptLoss, "decide first");
            assert_eq!(fix(&mut world, key, Choice::Rebuild(osd_id(wrong))), FixOutcome::Done);
            assert_eq!(blocks(&world), before, "{scheme}");
            assert_eq!(world.scrub_note(2).damaged_count(), 0);
        }
    }
}

#[test]
fn parity_is_made_of_data_that_an_operator_calls_right() {
    for scheme in [TWO_ONE, THREE_TWO] {
        let (mut world, key) = with_stripes(scheme);
        let count = scheme.data_count() as usize;
        // One unit of a data part was lost with two parts that are wrong: nobody decides.
        for at in 0..scheme.position_count() as usize - count {
            scrub_stripes::corrupt(&mut world, count + at, key, 2);
            scrub_stripes::corrupt(&mut world, at, key, 2);
        }
        let data = blocks(&world);
        world.scrub_all(true, true);
        assert_eq!(world.scrub_note(2).damaged_count(), 1);
        assert_eq!(fix(&mut world, key, Choice::RebuildParity), FixOutcome::Done);
        assert_eq!(blocks(&world)[..count], data[..count], "{scheme}");
        is_sound(&world);
    }
}

#[test]
fn tables_that_nobody_decides_are_decided_by_an_operator() {
    let (mut world, key) = with_stripes(THREE_TWO);
    let before = blocks(&world);
    (3..5).for_each(|at| spoil_table(&mut world, at, key, 3));
    world.scrub_all(true, true);
    refused(&mut world, key, Choice::AcceptLoss, "decide first");
    assert_eq!(fix(&mut world, key, Choice::RebuildParity), FixOutcome::Done);
    assert_eq!(blocks(&world), before);
    let (mut world, key) = with_stripes(TWO_ONE);
    let before = blocks(&world);
    spoil_table(&mut world, 2, key, 2);
    world.scrub_all(true, true);
    assert_eq!(fix(&mut world, key, Choice::Rebuild(osd_id(2))), FixOutcome::Done);
    assert_eq!(blocks(&world), before);
}

#[test]
fn a_choice_that_would_lose_a_unit_is_refused() {
    // Parity can make a unit of part 0. Another row contradicts itself.
    let (mut world, key) = with_stripes(TWO_ONE);
    world.osds[0].store.damage(key, 1);
    scrub_stripes::corrupt(&mut world, 1, key, 2);
    world.scrub_all(true, true);
    refused(&mut world, key, Choice::RebuildParity, "would be lost");
    refused(&mut world, key, Choice::Rebuild(osd_id(1)), "would be lost");
    assert_eq!(fix(&mut world, key, Choice::Rebuild(osd_id(0))), FixOutcome::Done);
    is_sound(&world);
}

#[test]
fn units_that_no_k_others_make_become_zeros_and_parity_is_made_of_them() {
    // Parts with a lost unit, and whether parity that can be read must be replaced first.
    for (scheme, hit, has_two_steps) in [
        (TWO_ONE, &[0, 1][..], true),
        (TWO_ONE, &[0, 2], false),
        (THREE_TWO, &[0, 1, 4], true),
        (THREE_TWO, &[0, 1, 2], true),
        (THREE_TWO, &[2, 3, 4], false),
    ] {
        let (mut world, key) = with_stripes(scheme);
        let before = blocks(&world);
        hit.iter().for_each(|at| world.osds[*at].store.damage(key, 1));
        world.scrub_all(true, true);
        let sent = mends(&world);
        assert_eq!(fix(&mut world, key, Choice::AcceptLoss), FixOutcome::Done);
        let data_count = scheme.data_count() as usize;
        let parity = scheme.position_count() as usize - data_count;
        for (at, before) in before.iter().take(data_count).enumerate() {
            let mut want = before.clone();
            if hit.contains(&at) {
                want.get_mut(&key).unwrap().units.insert(1, 0);
            }
            assert_eq!(blocks(&world)[at], want, "{scheme} {hit:?}");
        }
        is_sound(&world);
        assert!(mends(&world) - sent <= hit.len() + parity);
        assert_eq!(has_two_steps, hit.iter().filter(|at| **at >= data_count).count() < parity);
        assert_eq!(world.scrub_note(1).damaged_count(), 0);
    }
}

/// The primary dies after each step of a choice. Other rows stay as they were, the key is listed,
/// and the same choice ends it.
#[test]
fn a_choice_whose_primary_dies_is_chosen_again() {
    for steps in 1..40 {
        let (mut world, key) = with_stripes(THREE_TWO);
        let before = blocks(&world);
        [0, 1, 2].iter().for_each(|at| world.osds[*at].store.damage(key, 1));
        world.scrub_all(true, true);
        let at = world.server().unwrap();
        ask(&mut world, key, Choice::AcceptLoss, 5);
        (0..steps).for_each(|_| world.exchange());
        world.kill(at);
        world.settle();
        world.start(at);
        world.settle();
        assert!(world.is_whole());
        world.scrub_all(true, true);
        let is_lost = |world: &World| world.scrub_note(0).damaged_count() == 1;
        if is_lost(&world) {
            assert_eq!(fix(&mut world, key, Choice::AcceptLoss), FixOutcome::Done, "{steps} steps");
        }
        for (at, before) in before.iter().take(3).enumerate() {
            let mut want = before.clone();
            want.get_mut(&key).unwrap().units.insert(1, 0);
            assert_eq!(blocks(&world)[at], want, "{steps} steps");
        }
        is_sound(&world);
    }
}

#[test]
fn parity_that_is_newer_than_all_data_stays_so() {
    let (mut world, key) = with_stripes(THREE_TWO);
    let at = world.server().unwrap();
    world.zero(at, key.stripe.get(), 0, UNITS);
    world.settle();
    write(&mut world, 1, 0, 1);
    let version = blocks(&world)[3][&key].version;
    assert!(version > blocks(&world)[1][&key].version);
    (3..5).for_each(|at| spoil_table(&mut world, at, key, 3));
    world.scrub_all(true, true);
    assert_eq!(world.scrub_note(0).damaged_count(), 1);
    let outcome = fix(&mut world, key, Choice::RebuildParity);
    assert_eq!(outcome, FixOutcome::Done);
    let block = &blocks(&world)[3][&key];
    assert_eq!(block.version, version);
    assert!(Table::decode(&block.table, 3, BLOCK_SIZE).is_ok());
}
