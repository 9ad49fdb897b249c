//! Reads while acting members are lost, and those left are too few to write.

use base::Version;
use format::wire::{Op, Outcome, PeerBody, Refusal};

use super::world::World;
use super::{UNIT, place_in, read_in, write_in};
use crate::{Absence, Serving};

/// Three copies, and nobody who could take a lost one's place.
fn whole() -> World {
    let mut world = World::new(7, 3, 3);
    world.settle();
    assert!(world.is_whole());
    world
}

fn write(world: &mut World, stripe: u32) -> u32 {
    let at = world.server().expect("somebody serves");
    let number = world.write(at, stripe, 0, 1);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    world.history.last_value()
}

fn read_of(stripe: u32) -> Op {
    Op::Read { place: place_in(1, stripe), offset: 0, length: UNIT, parents: Vec::new() }
}

/// All but this one die, and it is known.
fn leave_alone(world: &mut World, at: usize) {
    for index in (0..3).filter(|index| *index != at) {
        world.kill(index);
    }
    for _ in 0..20 {
        world.round();
    }
}

fn reads_up_to(world: &World, at: usize) -> Option<Version> {
    world.osds[at].pg.as_ref().expect("it is up").reads_up_to()
}

fn last(world: &World, at: usize) -> Version {
    world.osds[at].store.now.last
}

#[test]
fn the_primary_that_is_left_lets_all_be_read_that_it_has_acknowledged() {
    let mut world = whole();
    let values: Vec<u32> = (0..4).map(|stripe| write(&mut world, stripe)).collect();
    let at = world.server().unwrap();
    leave_alone(&mut world, at);
    assert_eq!(world.serving(at), &Serving::Filling, "also where there is nobody to fill");
    assert_eq!(reads_up_to(&world, at), Some(last(&world, at)));
    for (stripe, value) in (0..).zip(&values) {
        assert_eq!(world.reader(&read_of(stripe)), Some(at));
        let number = world.read(at, stripe, 0, 1);
        world.stores_go_on();
        let outcome = world.history.outcome(number);
        let Some(Ok(Outcome::Read { data, .. })) = outcome else { panic!("{outcome:?}") };
        assert_eq!(super::model::values_of(data, 1), [*value]);
    }
    // Nothing but reads.
    let pg = world.osds[at].pg.as_ref().unwrap();
    for op in [write_in(place_in(1, 0), 0, 1, 9), Op::Sync] {
        assert!(!pg.may_read(&op, |_| Version::ZERO));
    }
    // The others come back: the epoch ends, and all goes on.
    for index in (0..3).filter(|index| *index != at) {
        world.start(index);
    }
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.value(3, 0), values[3]);
    world.history.check();
}

#[test]
fn what_others_may_lack_is_not_read_before_they_come() {
    let mut world = whole();
    let kept = write(&mut world, 1);
    write(&mut world, 2);
    let at = world.server().unwrap();
    let certain = last(&world, at);
    // It reaches nobody else before they are lost.
    for other in (0..3).filter(|other| *other != at) {
        world.disconnect(at, other);
    }
    let pg = world.osds[at].pg.as_ref().unwrap();
    assert!(matches!(pg.serving(), Serving::Ended { .. }), "a lost member ends the epoch");
    world.settle();
    let number = world.write(at, 2, 0, 1);
    world.stores_go_on();
    assert_eq!(world.history.outcome(number), None);
    let divergent = last(&world, at);
    assert!(divergent > certain);
    leave_alone(&mut world, at);
    assert!(reads_up_to(&world, at).is_some_and(|newest| newest < divergent));
    assert_eq!(world.reader(&read_of(1)), Some(at));
    assert_eq!(world.reader(&read_of(2)), None, "one that comes back may not have it");
    assert_eq!(world.reader(&read_of(3)), Some(at), "nobody wrote it");
    let pg = world.osds[at].pg.as_ref().unwrap();
    let versions = &world.osds[at].store.now.blocks;
    let version_of =
        |key: &blockstore::BlockKey| versions.get(key).map_or(Version::ZERO, |block| block.version);
    let chain = |stripe| read_in(place_in(2, stripe), 0, 1, &[1]);
    assert!(pg.may_read(&chain(1), version_of));
    assert!(!pg.may_read(&chain(2), version_of), "an older layer's block counts, too");
    let extents = |stripe| Op::Extents { place: place_in(1, stripe), parents: Vec::new() };
    assert!(pg.may_read(&extents(1), version_of) && !pg.may_read(&extents(2), version_of));
    world.start((at + 1) % 3);
    world.start((at + 2) % 3);
    world.settle();
    assert_eq!(world.value(1, 0), kept);
}

#[test]
fn a_member_that_followed_knows_what_all_have_by_the_marks_it_was_told() {
    let mut world = whole();
    for stripe in 0..3 {
        write(&mut world, stripe);
    }
    let primary = world.server().unwrap();
    let at = (primary + 1) % 3;
    // Acknowledged, and nothing was said since.
    let number = world.write(primary, 2, 0, 1);
    for _ in 0..10 {
        world.stores_go_on();
        for (primary, member, is_to_member) in world.mail() {
            world.deliver(primary, member, is_to_member);
        }
    }
    assert!(matches!(world.history.outcome(number), Some(Ok(Outcome::Written { .. }))));
    leave_alone(&mut world, at);
    assert_eq!(world.serving(at), &Serving::Filling);
    assert_eq!(world.reader(&read_of(0)), Some(at));
    assert_eq!(world.reader(&read_of(1)), Some(at), "now and then the mark is told by itself");
    assert_eq!(world.reader(&read_of(2)), None, "nobody told that all have the last one");
    // After a start it knows what its record says: what was adopted then.
    world.osds[at].store.is_immediate = true;
    world.kill(at);
    world.start(at);
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.serving(at), &Serving::Filling);
    let adopted = world.osds[at].pg.as_ref().unwrap().record().unwrap().adopted;
    assert_eq!(reads_up_to(&world, at), Some(adopted));
    assert_eq!(world.reader(&read_of(1)), None);
}

#[test]
fn who_may_have_lost_what_was_not_durable_lets_nothing_be_read() {
    let mut world = whole();
    write(&mut world, 1);
    let at = world.server().unwrap();
    for index in (0..3).filter(|index| *index != at) {
        world.kill(index);
    }
    world.kill(at);
    world.start(at);
    world.lazy_percent = 100;
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.serving(at), &Serving::Asking);
    world.with(at, |pg, actions| pg.fill_meanwhile(|_| Absence::Gone, false, actions));
    assert_eq!(
        world.serving(at),
        &Serving::Filling,
        "what is out of the cluster is not waited for"
    );
    assert_eq!(reads_up_to(&world, at), None, "but it may come back");
}

#[test]
fn a_learner_that_was_filled_without_the_lost_knows_of_nothing_that_all_have() {
    let mut world = World::new(7, 4, 3);
    world.settle();
    for stripe in 0..4 {
        write(&mut world, stripe);
    }
    let at = world.server().unwrap();
    for index in (0..3).filter(|index| *index != at) {
        world.kill(index);
    }
    world.plan = vec![at, (at + 1) % 3, 3];
    // It is complete, and who filled it dies before the two are active together.
    while !world.entry.acting.iter().any(|member| *member == world.member(3)) {
        world.round();
    }
    assert_eq!(world.server(), None);
    world.kill(at);
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.entry.primary, Some(super::world::osd_id(3)));
    assert_eq!(world.serving(3), &Serving::Filling);
    assert_eq!(reads_up_to(&world, 3), None);
    assert_eq!([0, 9].map(|stripe| world.reader(&read_of(stripe))), [None, None]);
}

#[test]
fn filling_a_learner_makes_nothing_certain_that_the_lost_may_lack() {
    let mut world = World::new(7, 4, 3);
    world.settle();
    let kept = write(&mut world, 1);
    write(&mut world, 2);
    let at = world.server().unwrap();
    let others: Vec<usize> = (0..3).filter(|other| *other != at).collect();
    others.iter().for_each(|other| world.disconnect(at, *other));
    world.settle();
    world.write(at, 2, 0, 1);
    world.stores_go_on();
    let divergent = last(&world, at);
    leave_alone(&mut world, at);
    let certain = reads_up_to(&world, at).unwrap();
    assert!(certain < divergent);
    // One more has it, and is a member; the epochs of both are waits for the lost ones.
    world.minimum = 3;
    world.plan = vec![at, others[0], 3];
    while !world.entry.acting.iter().any(|member| *member == world.member(3)) {
        world.round();
    }
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.serving(at), &Serving::Filling);
    assert_eq!(reads_up_to(&world, at), Some(certain));
    assert_eq!(world.reader(&read_of(1)), Some(at));
    assert_eq!(world.reader(&read_of(2)), None, "a lost one that comes back may not have it");
    others.iter().for_each(|other| world.start(*other));
    world.settle();
    assert_eq!(world.value(1, 0), kept);
    world.history.check();
}

#[test]
fn units_that_the_one_that_is_left_lost_come_from_others_that_are_there() {
    let mut world = whole();
    world.minimum = 3;
    let value = write(&mut world, 1);
    write(&mut world, 2);
    let at = world.server().unwrap();
    let key = *world.osds[at].store.now.blocks.keys().find(|key| key.stripe.get() == 1).unwrap();
    world.osds[at].store.damage(key, 0);
    world.kill((at + 1) % 3);
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.serving(at), &Serving::Filling);
    for _ in 0..2 {
        let number = world.read(at, 1, 0, 1);
        for _ in 0..5 {
            world.round();
        }
        let outcome = world.history.outcome(number);
        let Some(Ok(Outcome::Read { data, .. })) = outcome else { panic!("{outcome:?}") };
        assert_eq!(super::model::values_of(data, 1), [value]);
        let fetched =
            |(_, _, body): &&(usize, usize, PeerBody)| matches!(body, PeerBody::Fetch { .. });
        assert_eq!(world.sent.iter().filter(fetched).count(), 1, "it is mended here, too");
    }
    // What nobody there can read waits: a lost one may have it.
    let other = (at + 2) % 3;
    for index in [at, other] {
        world.osds[index].store.damage(key, 0);
    }
    let number = world.read(at, 1, 0, 1);
    for _ in 0..5 {
        world.round();
    }
    assert_eq!(world.history.outcome(number), Some(&Err(Refusal::Busy)), "as its node answers");
    world.start((at + 1) % 3);
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.value(1, 0), value);
}

#[test]
fn a_learner_of_one_that_lost_lazy_writes_reads_nothing_while_others_may_have_them() {
    let mut world = World::new(7, 4, 3);
    world.settle();
    world.minimum = 3;
    let at = world.server().unwrap();
    let others: Vec<usize> = (0..3).filter(|other| *other != at).collect();
    world.lazy_percent = 100;
    let number = world.write(at, 1, 0, 1);
    for _ in 0..10 {
        world.stores_go_on();
        for (primary, member, is_to_member) in world.mail() {
            world.deliver(primary, member, is_to_member);
        }
    }
    let outcome = world.history.outcome(number);
    assert!(matches!(outcome, Some(Ok(Outcome::Written { durable: false, .. }))), "{outcome:?}");
    let value = world.history.last_value();
    world.lazy_percent = 0;
    // Two processes die and keep what is written; the third loses power, and comes back.
    others.iter().for_each(|other| world.kill(*other));
    world.crash(at, 0);
    world.start(at);
    world.plan = vec![at, others[0], others[1], 3];
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.entry.acting.len(), 4, "{:?}", world.entry);
    assert_eq!(world.serving(at), &Serving::Filling);
    assert_eq!(reads_up_to(&world, at), None, "it may lack what the lost ones have");
    world.kill(at);
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(world.serving(3), &Serving::Filling);
    let reader = world.reader(&read_of(1));
    others.iter().for_each(|other| world.start(*other));
    world.settle();
    assert_eq!(world.value(1, 0), value, "nobody lost power but one");
    assert_eq!(reader, None, "it was read as zeros before");
}
