//! Scrubs: what follows from each kind of damage, and events in the middle of a scrub.

use base::{Duration, OsdId, UNIT_SIZE};
use blockstore::BlockKey;
use format::wire::{Outcome, PeerBody};

use super::UNITS;
use super::world::{World, osd_id};
use crate::face::{Fault, FaultKind};
use crate::{ScrubEvent, ScrubNote};

/// Bytes of the data of a block.
const BLOCK: u64 = UNITS as u64 * UNIT_SIZE;

fn whole(osds: usize, copies: usize) -> World {
    let mut world = World::new(7, osds, copies);
    world.settle();
    assert!(world.is_whole());
    world
}

fn write(world: &mut World, stripe: u32, first: u32, units: u32) -> u32 {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, first, units);
    world.settle();
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { .. }))), "{outcome:?}");
    world.history.last_value() + 1 - units
}

/// Returns a world of three OSDs with eight blocks, and the key of a block in the middle.
pub fn with_blocks(copies: usize) -> (World, BlockKey) {
    let mut world = whole(copies.max(3), copies);
    for stripe in 0..8 {
        write(&mut world, stripe, 0, UNITS);
    }
    let keys: Vec<BlockKey> = world.blocks(0).into_keys().collect();
    (world, keys[4])
}

/// Returns the events that the scrubs reported so far, without their beginnings and ends.
pub fn told(world: &World) -> Vec<String> {
    let brief = |faults: &[(OsdId, Fault)]| {
        let fault = |(osd, fault): &(OsdId, Fault)| format!("{osd} {}", fault.kind.name());
        faults.iter().map(fault).collect::<Vec<String>>().join(", ")
    };
    let event = |(_, event): &(usize, ScrubEvent)| match event {
        ScrubEvent::Repaired { faults, .. } => Some(format!("repaired: {}", brief(faults))),
        ScrubEvent::Fixed(fixed) => Some(format!("{:?}", fixed.outcome)),
        ScrubEvent::Found { faults, .. } => Some(format!("found: {}", brief(faults))),
        _ => None,
    };
    world.scrub_events.iter().filter_map(event).collect()
}

/// Changes a value of a block, but not its version.
pub fn corrupt(world: &mut World, at: usize, key: BlockKey, value: u32) {
    world.osds[at].store.alter(key, |state, key| {
        state.blocks.get_mut(&key).unwrap().units.insert(1, value);
    });
}

pub fn remove(world: &mut World, at: usize, key: BlockKey) {
    world.osds[at].store.alter(key, |state, key| {
        state.blocks.remove(&key);
    });
}

/// Damages a block at all members, so that no copy can repair it.
fn damage_everywhere(world: &mut World, key: BlockKey) {
    for osd in &mut world.osds {
        osd.store.damage(key, 1);
    }
}

/// A whole PG with damage that no copy can repair. The last member was away when a scrub found it.
fn with_a_member_that_was_not_told() -> World {
    let (mut world, key) = with_blocks(3);
    damage_everywhere(&mut world, key);
    world.kill(2);
    world.settle();
    world.scrub_all(true, true);
    world.start(2);
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.scrub_note(2), ScrubNote::default(), "nobody told it yet");
    world
}

/// Lets the primary ask for the notes of all members. Returns the primary.
fn recall(world: &mut World) -> usize {
    let at = world.server().unwrap();
    world.scrub_on(at, None, 0, true);
    world.settle();
    at
}

fn no_damage(world: &World) {
    for osd in &world.osds {
        assert!(osd.store.now.blocks.values().all(|block| block.damaged == 0));
    }
    world.check_equal();
}

#[test]
fn equal_members_are_left_alone_and_all_of_them_know_when() {
    let (mut world, _) = with_blocks(3);
    let before = world.blocks(1);
    world.scrub_all(false, true);
    world.scrub_all(true, true);
    assert_eq!(told(&world), Vec::<String>::new());
    assert_eq!(world.blocks(1), before);
    let notes: Vec<ScrubNote> = (0..3).map(|index| world.scrub_note(index)).collect();
    assert!(notes[0].light_at > 0 && notes[0].deep_at >= notes[0].light_at);
    assert!(notes[0].running.is_none());
    assert!(notes.iter().all(|note| *note == notes[0]));
    let ends = world.scrub_events.iter();
    let ends = ends.filter(|(_, event)| matches!(event, ScrubEvent::Ended { keys: 8, .. }));
    assert_eq!(ends.count(), 2);
    let mends = world.sent.iter().filter(|(.., body)| matches!(body, PeerBody::Mend { .. }));
    assert_eq!(mends.count(), 0);
}

#[test]
fn a_deep_scrub_finds_and_repairs_units_that_rot_at_any_member() {
    for at in 0..3 {
        let (mut world, key) = with_blocks(3);
        world.osds[at].store.damage(key, 1);
        world.scrub_all(false, true);
        assert_eq!(told(&world), Vec::<String>::new(), "a light one reads no data");
        world.scrub_all(true, true);
        assert_eq!(told(&world), [format!("repaired: {} damaged", osd_id(at))]);
        no_damage(&world);
        let note = world.scrub_note(0);
        assert_eq!((note.repaired, note.damaged_count()), (1, 0));
        let mended = world.osds[at].pg.as_ref().unwrap().mended_units();
        assert_eq!(mended, 1);
    }
}

#[test]
fn a_light_scrub_finds_missing_and_stale_copies() {
    for at in 0..3 {
        let (mut world, key) = with_blocks(3);
        remove(&mut world, at, key);
        world.scrub_all(false, true);
        assert_eq!(told(&world), [format!("repaired: {} missing", osd_id(at))]);
        no_damage(&world);
        let (mut world, key) = with_blocks(3);
        let before = world.osds[at].store.now.blocks[&key].clone();
        write(&mut world, key.stripe.get(), 0, UNITS);
        world.osds[at].store.alter(key, |state, key| {
            state.blocks.insert(key, before.clone());
        });
        world.scrub_all(false, true);
        assert_eq!(told(&world), [format!("repaired: {} stale", osd_id(at))]);
        no_damage(&world);
    }
}

#[test]
fn of_three_the_one_that_differs_is_repaired_and_of_two_both_are_listed() {
    let (mut world, key) = with_blocks(3);
    corrupt(&mut world, 0, key, 77);
    world.scrub_all(false, true);
    assert_eq!(told(&world), ["repaired: osd.1 differs"], "its checksum differs, too");
    no_damage(&world);
    let (mut world, key) = with_blocks(2);
    corrupt(&mut world, 0, key, 77);
    let before = [world.blocks(0), world.blocks(1)];
    world.scrub_all(true, true);
    world.scrub_all(true, true);
    let found = "found: osd.1 differs, osd.2 differs".to_owned();
    assert_eq!(told(&world), [found.clone(), found]);
    assert_eq!([world.blocks(0), world.blocks(1)], before);
    let note = world.scrub_note(1);
    let fault = Fault { kind: FaultKind::Differs, units: 1 };
    assert_eq!(note.findings.len(), 1);
    assert_eq!(note.findings[0].faults, [(osd_id(0), fault), (osd_id(1), fault)]);
}

#[test]
fn with_repairs_off_damage_is_only_listed() {
    let (mut world, key) = with_blocks(3);
    world.osds[1].store.damage(key, 1);
    world.scrub_all(true, false);
    assert_eq!(told(&world), ["found: osd.2 damaged"]);
    assert!(world.osds[1].store.now.blocks[&key].damaged != 0);
    assert_eq!(world.scrub_note(2).damaged_count(), 1);
    // A light scrub reads the data of the keys that are listed.
    world.scrub_all(false, true);
    assert_eq!(told(&world).len(), 2);
    assert_eq!(world.scrub_note(2).damaged_count(), 0);
    no_damage(&world);
}

#[test]
fn listed_damage_outlives_every_process_and_a_change_of_the_primary() {
    let (mut world, key) = with_blocks(2);
    for at in 0..2 {
        world.osds[at].store.damage(key, 1);
    }
    world.scrub_all(true, true);
    assert_eq!(told(&world), ["found: osd.1 lost, osd.2 lost"]);
    for at in 0..2 {
        world.kill(at);
        world.settle();
        world.start(at);
        world.settle();
    }
    for at in 0..2 {
        assert_eq!(world.scrub_note(at).damaged_count(), 1);
    }
    // After it is overwritten, the block is whole, and the next scrub finds that.
    write(&mut world, key.stripe.get(), 0, UNITS);
    world.scrub_all(true, true);
    let at = world.server().unwrap();
    assert_eq!(world.scrub_note(at).damaged_count(), 0);
}

#[test]
fn listed_damage_of_a_block_that_was_deleted_is_struck() {
    let (mut world, key) = with_blocks(3);
    damage_everywhere(&mut world, key);
    world.scrub_all(true, true);
    assert_eq!(world.scrub_note(1).damaged_count(), 1);
    let at = world.server().unwrap();
    world.zero(at, key.stripe.get(), 0, UNITS);
    world.settle();
    // The tombstone is dropped, too.
    for index in 0..3 {
        world.keep_house(index);
    }
    world.settle();
    world.scrub_all(true, true);
    assert_eq!(world.scrub_note(1).damaged_count(), 0);
}

/// Returns how often members were asked for a digest of a key.
pub fn looks(world: &World, key: BlockKey) -> usize {
    let sent = world.sent.iter();
    sent.filter(|(.., body)| matches!(body, PeerBody::Scrub { key: it, .. } if *it == key)).count()
}

fn writes(world: &World) -> usize {
    let sent = world.sent.iter();
    sent.filter(|(.., body)| matches!(body, PeerBody::Write { .. })).count()
}

/// Scrubs at a primary until it has asked the other members about a key once more.
fn until_looking(world: &mut World, at: usize, key: BlockKey) {
    let before = looks(world, key);
    for _ in 0..400 {
        world.scrub_on(at, Some(true), 1 << 20, true);
        if looks(world, key) > before {
            return;
        }
        match world.mail().first() {
            Some((primary, member, is_to_member)) => {
                world.deliver(*primary, *member, *is_to_member);
            }
            None => world.stores_go_on(),
        }
        if looks(world, key) == before {
            world.stores_go_on();
        }
    }
    panic!("nobody is asked about the key");
}

#[test]
fn a_write_waits_for_the_turn_of_its_key_and_reads_do_not() {
    let (mut world, key) = with_blocks(3);
    let stripe = key.stripe.get();
    until_looking(&mut world, 0, key);
    let before = writes(&world);
    let read = world.read(0, stripe, 0, 1);
    let write = world.write(0, stripe, 0, 1);
    assert_eq!(writes(&world), before, "it waits");
    world.store_goes_on(0);
    assert!(world.history.outcome(read).is_some());
    world.settle();
    assert!(matches!(world.history.outcome(write), Some(Ok(Outcome::Written { .. }))));
    world.scrub_all(true, true);
    assert_eq!(told(&world), Vec::<String>::new());
}

#[test]
fn a_look_that_takes_long_is_given_up_and_its_late_answers_count_for_nothing() {
    let (mut world, key) = with_blocks(3);
    until_looking(&mut world, 0, key);
    world.store_goes_on(0);
    world.limit_look(0, Duration::ZERO);
    world.limit_look(0, Duration::from_secs(29));
    assert_eq!(told(&world), Vec::<String>::new(), "nobody waits");
    let before = writes(&world);
    let write = world.write(0, key.stripe.get(), 0, 1);
    assert_eq!(writes(&world), before, "it waits");
    world.limit_look(0, Duration::ZERO);
    assert_eq!(told(&world), ["found: osd.2 not compared, osd.3 not compared"]);
    assert_eq!(writes(&world), before + 2);
    let note = world.scrub_note(0);
    assert_eq!(note.running.unwrap().cursor, Some(key));
    assert!(note.findings[0].faults.iter().all(|it| it.1.kind == FaultKind::NotCompared));
    // Now the members answer, while the next key is being compared.
    world.settle();
    assert!(matches!(world.history.outcome(write), Some(Ok(Outcome::Written { .. }))));
    world.scrub_all(true, true);
    world.scrub_all(true, true);
    assert_eq!(told(&world).len(), 1);
    assert_eq!(world.scrub_note(0).damaged_count(), 0);
    no_damage(&world);
}

#[test]
fn a_look_that_nobody_waits_for_has_a_limit_too() {
    let (mut world, key) = with_blocks(3);
    until_looking(&mut world, 0, key);
    world.limit_look(0, Duration::ZERO);
    world.limit_look(0, Duration::from_millis(29_900));
    assert_eq!(told(&world).len(), 0);
    world.limit_look(0, Duration::from_millis(100));
    let found = "found: osd.1 not compared, osd.2 not compared, osd.3 not compared";
    assert_eq!(told(&world), [found]);
}

#[test]
fn what_is_known_of_a_key_stays_listed_when_it_is_not_compared() {
    let (mut world, key) = with_blocks(3);
    world.osds[1].store.damage(key, 1);
    world.scrub_all(true, false);
    until_looking(&mut world, 0, key);
    world.store_goes_on(0);
    world.limit_look(0, Duration::ZERO);
    world.limit_look(0, Duration::from_secs(30));
    let found = "found: osd.2 damaged, osd.2 not compared, osd.3 not compared";
    assert_eq!(told(&world)[1], found);
    let kinds =
        world.scrub_note(0).findings[0].faults.iter().map(|it| it.1.kind).collect::<Vec<_>>();
    assert_eq!(kinds, [FaultKind::Damaged, FaultKind::NotCompared, FaultKind::NotCompared]);
}

#[test]
fn few_looks_await_late_answers() {
    let (mut world, _) = with_blocks(3);
    let keys: Vec<BlockKey> = world.blocks(0).into_keys().collect();
    until_looking(&mut world, 0, keys[0]);
    // The store of one member does not answer.
    for _ in 0..100 {
        world.scrub_on(0, None, 1 << 20, true);
        world.deliver_all();
        world.store_goes_on(0);
        world.store_goes_on(1);
        world.limit_look(0, Duration::ZERO);
        world.limit_look(0, Duration::from_secs(30));
    }
    let asked = |world: &World| keys.iter().filter(|key| looks(world, **key) > 0).count();
    assert_eq!(asked(&world), 4);
    world.settle();
    world.scrub_on(0, None, 1 << 20, true);
    world.settle();
    assert_eq!(asked(&world), keys.len());
}

#[test]
fn a_key_whose_look_ends_epochs_is_passed() {
    let (mut world, key) = with_blocks(3);
    for round in 0..3 {
        let at = world.server().expect("somebody serves");
        until_looking(&mut world, at, key);
        // The notes that contain the key are durable before members are asked.
        let trial = |index: usize| world.scrub_note(index).running.and_then(|it| it.trial);
        let epochs = (0..3).filter_map(trial).map(|trial| trial.epochs).max();
        assert_eq!(epochs, (round > 0).then_some(round));
        world.kill(at);
        world.settle();
        world.start(at);
        world.settle();
        assert!(world.is_whole());
    }
    let before = looks(&world, key);
    world.scrub_all(true, true);
    assert_eq!(looks(&world, key), before);
    let found = &told(&world)[..];
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].matches("not compared").count(), 3, "{found:?}");
    let last = world.scrub_events.last().map(|(_, event)| event.clone());
    assert_eq!(last, Some(ScrubEvent::Ended { deep: true, keys: 8 }));
    // The next scrub tries the key again.
    world.scrub_all(true, true);
    let at = world.server().unwrap();
    assert_eq!(world.scrub_note(at).damaged_count(), 0);
}

#[test]
fn a_scrub_goes_on_at_its_cursor_with_the_next_primary() {
    let (mut world, _) = with_blocks(3);
    let done = |world: &World, index: usize| {
        world.scrub_note(index).running.map_or(0, |running| running.keys)
    };
    for _ in 0..12 {
        if done(&world, 0) >= 3 {
            break;
        }
        world.scrub_on(0, Some(true), BLOCK, true);
        world.settle();
    }
    assert_eq!(done(&world, 0), 3, "one key each time");
    // A scrub that finds damage saves its cursor along with it.
    let keys: Vec<BlockKey> = world.blocks(0).into_keys().collect();
    world.osds[2].store.damage(keys[3], 0);
    world.scrub_on(0, None, BLOCK, true);
    world.settle();
    world.kill(0);
    world.settle();
    let at = world.server().expect("another one leads");
    assert_ne!(at, 0);
    assert_eq!(done(&world, at), 4);
    world.scrub_all(true, true);
    let last = world.scrub_events.last().map(|(_, event)| event.clone());
    assert_eq!(last, Some(ScrubEvent::Ended { deep: true, keys: 8 }));
    assert_eq!(looks(&world, keys[0]), 2, "each of two members was asked once");
}

#[test]
fn a_member_without_room_for_a_repair_stays_and_the_damage_is_listed() {
    let (mut world, key) = with_blocks(3);
    remove(&mut world, 1, key);
    world.osds[1].store.refuses_repairs = true;
    let epoch = world.entry.epoch;
    world.scrub_all(true, true);
    assert_eq!(told(&world), ["found: osd.2 missing"]);
    assert_eq!(world.entry.epoch, epoch);
    world.osds[1].store.refuses_repairs = false;
    world.scrub_all(false, true);
    assert_eq!(world.scrub_note(0).damaged_count(), 0);
    no_damage(&world);
}

#[test]
fn a_repair_takes_no_space_that_was_promised_to_writes() {
    for at in 0..3 {
        let (mut world, key) = with_blocks(3);
        remove(&mut world, at, key);
        world.osds[at].lacks_room = true;
        let epoch = world.entry.epoch;
        world.scrub_all(true, true);
        assert_eq!(told(&world), [format!("found: {} missing", osd_id(at))]);
        assert!(!world.blocks(at).contains_key(&key));
        assert_eq!(world.entry.epoch, epoch);
        world.osds[at].lacks_room = false;
        world.scrub_all(true, true);
        no_damage(&world);
    }
}

#[test]
fn a_read_copies_nothing_of_a_key_whose_members_differ() {
    for is_listed in [true, false] {
        let (mut world, key) = with_blocks(2);
        let at = world.server().unwrap();
        if is_listed {
            corrupt(&mut world, at, key, 77);
            world.scrub_all(true, true);
            assert_eq!(world.scrub_note(at).damaged_count(), 1);
        }
        world.osds[at].store.damage(key, 1);
        let read = world.read(at, key.stripe.get(), 1, 1);
        world.settle();
        let is_damaged = world.osds[at].store.now.blocks[&key].damaged != 0;
        assert_eq!(is_damaged, is_listed);
        assert_eq!(world.history.outcome(read).is_some_and(|it| it.is_err()), is_listed);
    }
}

#[test]
fn members_that_joined_get_the_note_from_the_next_primary() {
    let mut world = with_a_member_that_was_not_told();
    let at = recall(&mut world);
    assert_eq!(world.scrub_note(2), world.scrub_note(at));
    assert_eq!(world.scrub_note(2).damaged_count(), 1);
    let kept = |world: &World| {
        world.sent.iter().filter(|(.., body)| matches!(body, PeerBody::Keep { .. })).count()
    };
    // If all members have the same note, nothing is written.
    let before = kept(&world);
    world.kill(1);
    world.settle();
    recall(&mut world);
    assert_eq!(kept(&world), before);
}

#[test]
fn a_note_that_cannot_be_read_counts_as_none() {
    let (mut world, _) = with_blocks(3);
    world.scrub_all(true, true);
    let epoch = world.entry.epoch;
    for body in [&b"{"[..], b"\xff", br#"{"epoch":99,"number":1}"#] {
        world.kill(0);
        world.settle();
        world.start(0);
        world.settle();
        let at = world.server().unwrap();
        world.scrub_on(at, None, 0, true);
        for _ in 0..8 {
            world.stores_go_on();
            for (primary, member, is_to_member) in world.mail() {
                world.spoil_note(primary, member, body);
                world.deliver(primary, member, is_to_member);
            }
        }
        let entry = world.entry.clone();
        world.settle();
        assert_eq!(world.entry, entry, "the epoch goes on");
        assert!(world.scrub_note(at).deep_at > 0);
    }
    assert!(world.entry.epoch > epoch);
    let unread = world.scrub_events.iter();
    let unread = unread.filter(|(_, event)| matches!(event, ScrubEvent::NoteUnread { .. }));
    assert_eq!(unread.count(), 6);
}

#[test]
fn the_counts_of_a_note_do_not_overflow() {
    let (mut world, key) = with_blocks(3);
    damage_everywhere(&mut world, key);
    world.scrub_all(true, true);
    let mut note = world.scrub_note(0);
    (note.number, note.repaired, note.more) = (u64::MAX, u64::MAX, u64::MAX);
    for at in 0..3 {
        world.kill(at);
        world.osds[at].store.alter(key, |state, _| state.scrub_note = Some(note.encode()));
    }
    for at in 0..3 {
        world.start(at);
    }
    world.settle();
    let at = world.server().unwrap();
    let first = world.blocks(at).into_keys().next().unwrap();
    world.osds[at].store.damage(first, 1);
    world.scrub_all(true, true);
    let note = world.scrub_note(at);
    assert!(note.finding(&key).is_some());
    assert_eq!((note.number, note.repaired), (u64::MAX, u64::MAX));
}

#[test]
fn a_lost_tombstone_is_put_back() {
    let (mut world, key) = with_blocks(2);
    let version = world.osds[0].store.now.blocks[&key].version;
    let at = world.server().unwrap();
    world.zero(at, key.stripe.get(), 0, UNITS);
    // Wait until member 1 has the tombstone, but no floor has passed it.
    while world.osds[1].store.now.blocks.get(&key).is_none_or(|block| !block.is_tombstone) {
        world.exchange();
    }
    for _ in 0..4 {
        world.exchange();
    }
    world.osds[1].store.alter(key, |state, key| {
        let block = state.blocks.entry(key).or_default();
        (block.version, block.is_tombstone) = (version, false);
    });
    for _ in 0..200 {
        world.scrub_on(at, Some(false), 1 << 20, true);
        world.exchange();
    }
    assert_eq!(told(&world)[0], "repaired: osd.2 stale");
    assert!(world.osds[1].store.now.blocks[&key].is_tombstone);
}

#[test]
fn an_older_note_never_replaces_a_newer_one() {
    let mut world = with_a_member_that_was_not_told();
    for at in [0, 1] {
        world.kill(at);
        world.settle();
        if at == 0 {
            world.start(at);
            world.settle();
        }
    }
    world.start(1);
    world.settle();
    let at = recall(&mut world);
    assert_eq!(world.scrub_note(at).damaged_count(), 1);
}
