//! Pools with parity, step by step.

use base::Scheme;
use format::wire::{Op, Outcome, PeerBody, Refusal};

use super::history::Kind;
use super::model::{data_of, values_of};
use super::world::World;
use super::{UNIT, UNITS, layer, place_in};
use crate::Limits;
use crate::stripes::replicate::DETOURS;

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

/// Returns a pool of three data and two parity parts, led by the member with part 0, in which a stripe is
/// being written that was written before: parts 1 and 2 change in one unit each, in different rows.
fn two_parts_change() -> World {
    let mut world = world(THREE_TWO);
    let count = world.units();
    written(&mut world, 1, 0, count);
    assert_eq!(world.server(), Some(0));
    world.sent.clear();
    world.write(0, 1, 2 * UNITS - 1, 2);
    world
}

/// Returns who sent differences to whom: the number of such messages from each member.
fn deltas(world: &World, is_meant: fn(&PeerBody) -> bool) -> Vec<(usize, usize)> {
    let sent = world.sent.iter().filter(|(_, _, body)| is_meant(body));
    let mut ways: Vec<(usize, usize)> = sent.map(|(from, to, _)| (*from, *to)).collect();
    ways.sort_unstable();
    ways
}

fn is_straight(body: &PeerBody) -> bool {
    matches!(body, PeerBody::ParityDelta { .. })
}

fn is_through_primary(body: &PeerBody) -> bool {
    matches!(body, PeerBody::Delta { .. })
}

fn is_wanted(body: &PeerBody) -> bool {
    matches!(body, PeerBody::DeltaWanted { .. })
}

fn check_settled(mut world: World) {
    world.settle();
    world.check_equal();
    let count = world.units();
    let last = world.history.last_value();
    let values = read_all(&mut world, 1);
    assert_eq!(values[2 * UNITS as usize - 1..=2 * UNITS as usize], [last - 1, last]);
    assert_eq!(values.len(), count as usize);
    assert_eq!(world.entry.epoch.get(), 1, "no member failed");
    world.history.check();
}

#[test]
fn differences_go_straight_to_the_members_with_parity() {
    let mut world = two_parts_change();
    world.settle();
    assert_eq!(deltas(&world, is_straight), [(1, 3), (1, 4), (2, 3), (2, 4)]);
    assert_eq!(deltas(&world, is_through_primary), []);
    assert_eq!(deltas(&world, is_wanted), []);
    check_settled(world);
}

#[test]
fn a_difference_may_overtake_its_version() {
    for early_count in 0..=2 {
        let mut world = two_parts_change();
        for part in [1, 2] {
            world.deliver(0, part, true);
            world.store_goes_on(part);
        }
        for parity in [3, 4] {
            for part in 1..=early_count {
                world.deliver(part, parity, true);
            }
            world.deliver(0, parity, true);
            for part in early_count + 1..=2 {
                world.deliver(part, parity, true);
            }
        }
        assert!(deltas(&world, is_wanted).is_empty());
        check_settled(world);
    }
}

#[test]
fn a_difference_that_is_lost_is_asked_for_and_made_by_the_primary() {
    for damaged in [false, true] {
        let mut world = two_parts_change();
        for part in [1, 2] {
            world.deliver(0, part, true);
            world.store_goes_on(part);
        }
        if damaged {
            let key = *world.osds[1].store.now.view().keys().next().unwrap();
            world.osds[1].store.damage(key, UNITS - 1);
        }
        // What member 1 sent to one of them is lost with the connection.
        world.disconnect(1, 3);
        world.exchange();
        for _ in 0..2 {
            world.keep_house(3);
        }
        world.keep_house(3);
        assert_eq!(deltas(&world, is_wanted), [(3, 0)], "it is asked for once");
        world.settle();
        let by_primary = [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)];
        assert_eq!(deltas(&world, is_straight), by_primary);
        check_settled(world);
    }
}

#[test]
fn after_a_difference_was_lost_those_of_the_next_versions_go_through_the_primary() {
    let mut world = two_parts_change();
    for part in [1, 2] {
        world.deliver(0, part, true);
        world.store_goes_on(part);
    }
    world.disconnect(1, 3);
    world.settle();
    assert_eq!(deltas(&world, is_wanted), [(3, 0)]);
    for count in 0..DETOURS + 2 {
        world.sent.clear();
        written(&mut world, 1, UNITS, 1);
        let is_direct = deltas(&world, is_straight).contains(&(1, 3));
        assert_eq!(is_direct, count >= DETOURS, "{count}");
        assert_eq!(deltas(&world, is_through_primary).is_empty(), is_direct);
    }
    world.check_equal();
    world.history.check();
}

#[test]
fn a_difference_that_arrives_after_it_was_made_by_the_primary_is_dropped() {
    let mut world = two_parts_change();
    for to in [1, 2, 3, 4] {
        world.deliver(0, to, true);
        world.store_goes_on(to);
    }
    world.deliver(2, 3, true);
    for _ in 0..2 {
        world.keep_house(3);
    }
    assert_eq!(deltas(&world, is_wanted), [(3, 0)]);
    world.deliver(0, 3, false);
    // The primary reads the old unit at member 1, and passes the difference on.
    world.deliver(0, 1, true);
    world.store_goes_on(1);
    while !deltas(&world, is_straight).contains(&(0, 3)) {
        world.deliver(0, 1, false);
    }
    world.deliver(0, 3, true);
    world.store_goes_on(3);
    // Now the one that member 1 sent at the beginning.
    world.deliver(1, 3, true);
    check_settled(world);
}

#[test]
fn differences_for_a_learner_go_through_the_primary() {
    let mut world = world(TWO_ONE);
    for stripe in 0..2 {
        let count = world.units();
        written(&mut world, stripe, 0, count);
    }
    world.kill(2);
    world.settle();
    world.start(2);
    while world.entry.learners.is_empty() || world.server().is_none() {
        world.round();
    }
    world.sent.clear();
    let mut rounds = 0;
    while !world.is_whole() {
        if let Some(at) = world.server().filter(|_| rounds < 40) {
            world.write(at, rounds % 2, UNITS * (1 - at as u32), 1);
        }
        rounds += 1;
        world.round();
        if !world.entry.learners.is_empty() {
            assert!(!deltas(&world, is_straight).contains(&(1, 2)));
        }
    }
    world.settle();
    world.check_equal();
    world.history.check();
}

#[test]
fn the_mark_waits_for_a_learner_that_was_reported_complete() {
    let mut world = world(TWO_ONE);
    written(&mut world, 1, 0, 2);
    world.kill(2);
    world.settle();
    world.start(2);
    let is_bound = |world: &World| {
        let is_last = |body: &PeerBody| matches!(body, PeerBody::Progress { filling: None, .. });
        world.sent.iter().any(|(_, to, body)| *to == 2 && is_last(body))
    };
    while !is_bound(&world) {
        world.round();
    }
    let at = world.server().expect("it fills the learner");
    let mark = world.osds[at].pg.as_ref().expect("it is up").mark();
    let number = world.write(at, 1, 0, 1);
    for _ in 0..20 {
        (0..2).for_each(|index| world.store_goes_on(index));
        let mail = world.mail().into_iter().filter(|(from, to, _)| *from != 2 && *to != 2);
        mail.for_each(|(primary, member, forth)| world.deliver(primary, member, forth));
    }
    assert_eq!(world.history.outcome(number), None, "the learner does not have it");
    assert_eq!(world.osds[at].pg.as_ref().expect("it is up").mark(), mark);
    // The learner joins, and the write is done or ended with the epoch.
    world.settle();
    assert!(world.history.outcome(number).is_some());
    assert!(world.is_whole());
    world.check_equal();
    world.history.check();
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_are_found_where_a_learner_is_bound() {
    use base::planted::{Bug, fails};
    let test = the_mark_waits_for_a_learner_that_was_reported_complete;
    assert!(fails(Bug::MarkWithoutBoundLearner, test));
}

/// Writes units of a stripe of an image.
fn write_in(world: &mut World, image: u32, stripe: u32, first: u32, values: &[u32]) {
    let at = world.server().expect("somebody serves");
    let (place, (checksums, data)) = (place_in(image, stripe), data_of(values));
    let offset = first * UNIT;
    let op = Op::Write { place, offset, checksums, data, expected: None, lazy: false };
    let kind = Kind::Write { stripe: stripe + 100 * image, first, values: values.to_vec() };
    let number = world.begin(at, op, kind);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
}

/// Reads a stripe of an image with these layers, newest first. Returns its values and its allocation bitmap.
fn read_in(world: &mut World, layers: &[u32], stripe: u32) -> (Vec<u32>, Vec<u64>) {
    let (at, units) = (world.server().expect("somebody serves"), world.units());
    let parents: Vec<_> = layers[1..].iter().map(|image| layer(*image)).collect();
    let (place, kind) = (place_in(layers[0], stripe), Kind::Sync);
    let op = Op::Read { place, offset: 0, length: units * UNIT, parents: parents.clone() };
    let read = world.begin(at, op, kind.clone());
    let extents = world.begin(at, Op::Extents { place, parents }, kind);
    world.settle();
    let Some(Ok(Outcome::Read { data, .. })) = world.history.outcome(read) else { panic!("data") };
    let values = values_of(data, units);
    match world.history.outcome(extents) {
        Some(Ok(Outcome::Extents { bitmap })) => (values, bitmap.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn units_that_no_data_was_written_to_are_read_of_older_layers() {
    for scheme in SCHEMES {
        for away in [None, Some(1)] {
            let mut world = world(scheme);
            let count = world.units();
            let old: Vec<u32> = (1..=count - 1).collect();
            write_in(&mut world, 1, 7, 0, &old);
            write_in(&mut world, 2, 7, UNITS - 1, &[901, 902]);
            write_in(&mut world, 3, 7, 2, &[903]);
            if let Some(away) = away {
                world.kill(away);
                world.settle();
            }
            let mut expected = [old, vec![0]].concat();
            expected[UNITS as usize - 1..=UNITS as usize].copy_from_slice(&[901, 902]);
            expected[2] = 903;
            let (values, bitmap) = read_in(&mut world, &[3, 2, 1], 7);
            assert_eq!(values, expected, "{scheme}");
            assert_eq!(bitmap, [(1 << (count - 1)) - 1], "{scheme}");
            let (values, bitmap) = read_in(&mut world, &[3], 7);
            assert_eq!((values[2], values[3], bitmap), (903, 0, vec![1 << 2]), "{scheme}");
        }
    }
}

#[test]
fn stripes_of_which_the_primary_has_nothing_are_deleted_by_range() {
    for scheme in SCHEMES {
        for away in [None, Some(scheme.data_count() as usize)] {
            let mut world = world(scheme);
            let count = world.units();
            for (stripe, unit) in [(0, 0), (1, UNITS), (2, count - 1)] {
                write_in(&mut world, 4, stripe, unit, &[77]);
            }
            write_in(&mut world, 5, 1, UNITS, &[78]);
            if let Some(away) = away {
                world.kill(away);
                world.settle();
            }
            let at = world.server().unwrap();
            let from = base::StripeIndex::new(1);
            let op = Op::DeleteRange { image: layer(4), from };
            let number = world.begin(at, op, Kind::Sync);
            world.settle();
            let deleted = Outcome::Deleted { count: 2, complete: true };
            assert_eq!(world.history.outcome(number), Some(&Ok(deleted)), "{scheme}");
            let held = |world: &mut World, image, stripe| {
                let (values, _) = read_in(world, &[image], stripe);
                values.iter().filter(|value| **value != 0).count()
            };
            assert_eq!([0, 1, 2].map(|stripe| held(&mut world, 4, stripe)), [1, 0, 0]);
            assert_eq!(held(&mut world, 5, 1), 1);
            world.check_equal();
        }
    }
}

/// Fills the learner at each position while clients write.
fn fill_while_clients_write(scheme: Scheme, away: usize, seed: u64) {
    let positions = scheme.position_count() as usize;
    let mut world = World::of_scheme(seed, positions, scheme);
    world.lazy_percent = [0, 50][seed as usize % 2];
    world.settle();
    for stripe in 0..12 {
        written(&mut world, stripe, 0, UNITS + 2);
    }
    world.kill(away);
    world.settle();
    for stripe in [1, 5, 6, 20] {
        written(&mut world, stripe, 1, 2 * UNITS - 2);
    }
    let at = world.server().unwrap();
    world.zero(at, 7, 0, world.units());
    world.settle();
    world.start(away);
    for round in 0..60 {
        if let Some(at) = world.server() {
            let (stripe, unit) = (round % 24, round % (2 * UNITS));
            match round % 7 {
                0 => world.zero(at, stripe, 0, world.units()),
                1 => world.zero(at, stripe, unit, 1),
                _ => world.write(at, stripe, unit, 1),
            };
        }
        world.round();
    }
    world.settle();
    assert!(world.is_whole(), "{scheme}, {away} learns");
    world.check_equal();
    let fills = world
        .sent
        .iter()
        .filter(|(_, to, body)| *to == away && matches!(body, PeerBody::Repair { .. }));
    assert!(fills.count() > 4, "{scheme}, {away} learns");
    world.history.check();
}

#[test]
fn learners_are_filled_while_clients_write() {
    for scheme in SCHEMES {
        for away in 0..scheme.position_count() as usize {
            for seed in 1..=4 {
                fill_while_clients_write(scheme, away, seed);
            }
        }
    }
}

#[test]
fn a_member_that_takes_another_position_begins_with_nothing() {
    for scheme in SCHEMES {
        let positions = scheme.position_count() as usize;
        let mut world = World::of_scheme(1, positions + 1, scheme);
        world.settle();
        for stripe in 0..4 {
            let count = world.units();
            written(&mut world, stripe, 0, count);
        }
        for away in [0, positions - 1, 1, 0] {
            // The OSD that was away before takes the position of the one that is away now.
            world.plan = (0..=positions).filter(|index| *index != away).collect();
            world.settle();
            assert!(world.is_whole(), "{scheme}");
            written(&mut world, 1, 1, 2);
            world.check_equal();
        }
        world.history.check();
    }
}

#[test]
fn a_deletion_outlives_the_replacement_of_all_who_saw_it() {
    let scheme = Scheme::ReedSolomon { data: 2, parity: 3 };
    // Only changed blocks are copied to the member that was away, not all blocks.
    let limits = Limits { history_count_max: 32, ..Limits::SMALL };
    let mut world = World::of_limits(1, 5, scheme, limits);
    world.settle();
    let count = world.units();
    written(&mut world, 1, 0, count);
    written(&mut world, 2, 0, 1);
    world.kill(4);
    world.settle();
    let at = world.server().unwrap();
    world.zero(at, 1, 0, count);
    world.settle();
    world.minimum = 2;
    for members in [[0, 1], [2, 3]] {
        for member in members {
            world.crash(member, 0);
            world.osds[member].store.replace_disk();
            world.start(member);
        }
        world.settle();
        assert_eq!(world.acting().len(), 4, "they were filled");
    }
    world.start(4);
    world.settle();
    assert!(world.is_whole());
    world.check_equal();
    assert_eq!(read_all(&mut world, 1), vec![0; count as usize]);
    written(&mut world, 1, 1, 1);
    world.check_equal();
}

#[test]
fn lost_units_are_made_of_others() {
    for scheme in SCHEMES {
        let positions = scheme.position_count() as usize;
        for damaged in 0..positions {
            let mut world = world(scheme);
            let count = world.units();
            let mut values = written(&mut world, 1, 0, count);
            let key = *world.osds[damaged].store.now.view().keys().next().unwrap();
            world.osds[damaged].store.damage(key, 2);
            assert_eq!(read_all(&mut world, 1), values, "{scheme}");
            // The damaged unit's neighbour in the row changes, then the damaged unit itself.
            let neighbour = (damaged as u32 + 1) % scheme.data_count();
            let own = (damaged as u32).min(scheme.data_count() - 1);
            for part in [neighbour, own] {
                let unit = part * UNITS + 2;
                values[unit as usize] = written(&mut world, 1, unit, 1)[0];
                assert_eq!(read_all(&mut world, 1), values, "{scheme}");
            }
            let is_data = damaged < scheme.data_count() as usize;
            for (position, osd) in world.osds.iter().enumerate().filter(|_| is_data) {
                let lost = osd.store.now.at(key, blockstore::AsOf::View).unwrap().damaged;
                assert_eq!(lost, 0, "{scheme}, {damaged} lost a unit, and so did {position}");
            }
            world.history.check();
        }
    }
}

#[test]
fn a_stripe_that_contradicts_itself_is_not_changed_where_a_part_must_be_made_of_others() {
    let mut world = world(TWO_ONE);
    for stripe in [1, 2] {
        let count = world.units();
        written(&mut world, stripe, 0, count);
    }
    world.kill(1);
    world.settle();
    let keys: Vec<_> = world.osds[0].store.now.view().into_keys().collect();
    let key = keys.into_iter().find(|key| key.stripe.get() == 1).unwrap();
    world.osds[0].store.alter(key, |state, key| {
        state.blocks.get_mut(&key).unwrap().version.counter += 100;
    });
    let (at, epoch) = (world.server().unwrap(), world.entry.epoch);
    let [bad, good] = [1, 2].map(|stripe| world.write(at, stripe, UNITS, 1));
    world.settle();
    assert_eq!(world.history.outcome(bad), Some(&Err(Refusal::Corrupted)));
    assert!(matches!(world.history.outcome(good), Some(Ok(Outcome::Written { .. }))));
    assert_eq!(world.entry.epoch, epoch, "nobody fails for it");
}

#[test]
fn a_read_of_a_layer_that_is_its_own_parent_holds_up_nobody() {
    let mut world = world(TWO_ONE);
    let count = world.units();
    let values = written(&mut world, 1, 0, count - 1);
    let at = world.server().unwrap();
    for layers in [[1, 1], [2, 2], [2, 1]] {
        let parents = layers.map(layer).to_vec();
        let (offset, length) = (0, count * UNIT);
        let op = Op::Read { place: place_in(1, 1), offset, length, parents };
        let read = world.begin(at, op, Kind::Sync);
        world.settle();
        assert!(matches!(world.history.outcome(read), Some(Err(Refusal::Invalid { .. }))));
    }
    assert_eq!(read_all(&mut world, 1), [values, vec![0]].concat());
}

#[test]
fn a_write_that_meets_a_part_that_its_member_lost_loses_nothing() {
    for scheme in [TWO_ONE, THREE_TWO] {
        for (lost, is_stale) in
            (0..scheme.data_count() as usize).flat_map(|it| [(it, false), (it, true)])
        {
            let mut world = world(scheme);
            let count = world.units();
            written(&mut world, 1, 0, count);
            let (key, before) = world.osds[lost].store.now.view().pop_first().unwrap();
            let mut values = written(&mut world, 1, 0, count);
            world.osds[lost].store.alter(key, |state, key| {
                state.blocks.remove(&key);
                state.blocks.extend(is_stale.then(|| (key, before.clone())));
            });
            world.may_contradict = true;
            let (at, first) = (world.server().unwrap(), lost as u32 * UNITS);
            world.write(at, 1, first, 1);
            world.settle();
            // The client sends it again.
            values[first as usize] = written(&mut world, 1, first, 1)[0];
            assert!(world.is_whole());
            assert_eq!(read_all(&mut world, 1), values, "{scheme}, {lost} lost its part");
            world.check_equal();
            world.history.check();
        }
    }
}

#[test]
fn a_part_that_its_member_lost_is_not_lost_to_parity_where_no_member_may_leave() {
    for scheme in [TWO_ONE, THREE_TWO] {
        for lost in 0..scheme.data_count() as usize {
            let mut world = world(scheme);
            // No member may leave.
            world.minimum = world.copies;
            let count = world.units();
            written(&mut world, 1, 0, count);
            let (key, before) = world.osds[lost].store.now.view().pop_first().unwrap();
            let mut values = written(&mut world, 1, 0, count);
            world.osds[lost].store.alter(key, |state, key| {
                state.blocks.insert(key, before.clone());
            });
            world.may_contradict = true;
            let (at, first) = (world.server().unwrap(), lost as u32 * UNITS);
            world.write(at, 1, first, 1);
            world.settle();
            world.scrub_all(true, true);
            // The client sends it again.
            values[first as usize] = written(&mut world, 1, first, 1)[0];
            assert!(world.is_whole());
            assert_eq!(read_all(&mut world, 1), values, "{scheme}, {lost} lost its part");
            world.check_equal();
            world.history.check();
        }
    }
}
