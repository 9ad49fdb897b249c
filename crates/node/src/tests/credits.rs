//! Tests of credits for space and room, with several OSDs.

use base::planted::{self, Bug};
use base::{ConnectionId, ImageId, Incarnation, Scheme, SessionId, StripeIndex, UNIT_SIZE};
use format::door::{CloseReason, NetEvent};
use format::wire::{Member, Op, Outcome, Refusal};
use pg::Charge;

use super::cluster_rig::*;
use super::rig::*;
use crate::Event;
use crate::space_credits::{Offer, Offers, SpaceCredits, space_of};

/// A pool of two data parts and parity, whose OSDs speak this protocol version.
fn serving_parity(version: u16) -> Cluster {
    let mut cluster = Cluster::new(4, 1);
    cluster.version = version;
    cluster.scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(200);
    assert!(cluster.is_served(0));
    cluster
}

fn write_to(stripe: u32, unit: u32) -> Op {
    write_in(place(1, stripe), unit, 1, 7)
}

#[test]
fn a_write_of_copies_needs_no_room() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
}

#[test]
fn room_that_is_counted_for_copies_is_found() {
    assert!(planted::fails(Bug::RoomCountedForCopies, a_write_of_copies_needs_no_room));
}

#[test]
fn osds_of_the_older_version_write_with_one_credit() {
    for version in [1, 2] {
        let mut cluster = serving_parity(version);
        for stripe in 0..40 {
            assert!(is_written(&cluster.ask(0, write_to(stripe, 0))), "{version}, {stripe}");
            cluster.advance(10);
        }
        // A mark has come, so nothing is prepared: all that was taken has come back.
        cluster.advance(2_000);
        assert!(is_written(&cluster.ask(0, write_to(1, 1))));
    }
}

#[test]
fn who_waits_for_room_is_served_when_there_is_some_or_is_gone() {
    let mut cluster = serving_parity(2);
    assert!(is_written(&cluster.ask(0, write_to(0, 0))));
    let giver = Member { osd: osd(1), incarnation: Incarnation::new(cluster.runs(1)) };
    // The primary has used what it was promised, and the member has promised all to others.
    let all = Charge { room_bytes: 1 << 40, ..Charge::default() };
    cluster.hosts[1].node.as_mut().unwrap().space_credits.take(&[], all);
    cluster.hosts[0].node.as_mut().unwrap().space_credits.on_connected(giver, true);
    let waiting: Vec<u64> = (1..4).map(|stripe| cluster.send(0, write_to(stripe, 0))).collect();
    cluster.advance(300);
    assert!(cluster.hosts[0].node().space_credits.is_awaited());
    assert!(waiting.iter().all(|it| !cluster.replies.contains_key(it)), "lack of room waits");
    cluster.hosts[1].node.as_mut().unwrap().space_credits.end(&[], all);
    cluster.advance(300);
    assert!(waiting.iter().all(|it| is_written(&cluster.replies[it])));
    assert!(!cluster.hosts[0].node().space_credits.is_awaited());
    // It is never full: who has waited for too long is told that the OSD is busy.
    cluster.hosts[1].node.as_mut().unwrap().space_credits.take(&[], all);
    cluster.hosts[0].node.as_mut().unwrap().space_credits.on_connected(giver, true);
    let late = cluster.send(0, write_to(4, 0));
    cluster.advance(60_000);
    assert_eq!(cluster.replies[&late], Err(Refusal::Busy));
    assert!(!cluster.hosts[0].node().space_credits.is_awaited(), "it is gone");
}

/// The deletion of all that tests write.
fn delete() -> Op {
    Op::DeleteRange { image: ImageId::FIRST, from: StripeIndex::new(0) }
}

fn credits_of(cluster: &mut Cluster, host: usize) -> &mut SpaceCredits {
    &mut cluster.hosts[host].node.as_mut().unwrap().space_credits
}

/// Takes what the primary has of a member's credit, and lets the member offer this instead.
fn offer(cluster: &mut Cluster, host: usize, room_bytes: u64, largest_bytes: u64) {
    let giver = Member { osd: osd(host), incarnation: Incarnation::new(cluster.runs(host)) };
    let credits = credits_of(cluster, 0);
    credits.on_connected(giver, true);
    let claims = credits.claim(giver.osd, Charge::default(), false);
    let of = |begun: u64, bytes: u64, largest_bytes: u64| Offer {
        limit_bytes: begun + bytes,
        share_bytes: bytes,
        largest_bytes,
    };
    let space = of(claims.space.begun_bytes, 1 << 20, u64::MAX);
    let room = Some(of(claims.room.unwrap().begun_bytes, room_bytes, largest_bytes));
    credits.on_offer(giver.osd, u64::MAX, Offers { is_full: false, space, room });
}

#[test]
fn a_deletion_in_a_pool_with_parity_waits_for_room_for_all_that_it_prepares() {
    let mut cluster = serving_parity(2);
    for stripe in 0..6 {
        assert!(is_written(&cluster.ask(0, write_to(stripe, 0))));
    }
    let all = Charge { room_bytes: 1 << 40, ..Charge::default() };
    credits_of(&mut cluster, 1).take(&[], all);
    // Room for three deletions, and a portion of four.
    offer(&mut cluster, 1, 3 * UNIT_SIZE, 16 * UNIT_SIZE);
    let deletion = cluster.send_task(0, delete());
    assert!(!cluster.replies.contains_key(&deletion), "three of four have room");
    offer(&mut cluster, 1, 4 * UNIT_SIZE, 16 * UNIT_SIZE);
    cluster.advance(5);
    assert_eq!(cluster.replies[&deletion], Ok(Outcome::Deleted { count: 4, complete: false }));
    let deletion = cluster.send_task(0, delete());
    cluster.advance(300);
    assert!(!cluster.replies.contains_key(&deletion), "their room is taken");
    credits_of(&mut cluster, 1).end(&[], all);
    cluster.advance(300);
    assert_eq!(cluster.replies[&deletion], Ok(Outcome::Deleted { count: 2, complete: false }));
    let deletion = cluster.send_task(0, delete());
    assert_eq!(cluster.replies[&deletion], Ok(Outcome::Deleted { count: 0, complete: true }));
}

#[test]
fn what_frees_space_does_not_wait_for_a_full_osd_of_the_older_version() {
    let mut cluster = serving_parity(1);
    for stripe in 0..3 {
        assert!(is_written(&cluster.ask(0, write_to(stripe, 0))));
    }
    cluster.advance(2_000);
    let giver = Member { osd: osd(1), incarnation: Incarnation::new(cluster.runs(1)) };
    let all = Charge { space_bytes: 1 << 40, ..Charge::default() };
    credits_of(&mut cluster, 1).take(&[], all);
    credits_of(&mut cluster, 0).on_connected(giver, false);
    cluster.advance(300);
    assert_eq!(cluster.ask(0, write_to(4, 0)), Err(Refusal::Full));
    let length = 2 * base::BlockSize::MIN.bytes() as u32;
    let zero = Op::Zero { place: place(1, 0), offset: 0, length, lazy: false };
    let zero = cluster.send(0, zero);
    cluster.advance(300);
    assert!(is_written(&cluster.replies[&zero]));
    let mut count_all = 0;
    for _ in 0..10 {
        let deletion = cluster.send_task(0, delete());
        cluster.advance(300);
        let Ok(Outcome::Deleted { count, complete }) = cluster.replies[&deletion] else {
            panic!("{:?}", cluster.replies[&deletion]);
        };
        count_all += count;
        if complete {
            break;
        }
    }
    assert_eq!(count_all, 2);
}

#[test]
fn who_stands_behind_a_request_that_is_gone_is_served_at_once() {
    let mut cluster = serving_parity(2);
    assert!(is_written(&cluster.ask(0, write_to(0, 0))));
    let all = Charge { room_bytes: 1 << 40, ..Charge::default() };
    credits_of(&mut cluster, 1).take(&[], all);
    offer(&mut cluster, 1, 2 * UNIT_SIZE, 1 << 20);
    let connection = ConnectionId::new(3_000_001);
    let accepted = NetEvent::Accepted { connection, peer: client() };
    cluster.give(0, Event::Net(accepted));
    let (of, op) = ((SessionId::new(77), cluster.entry.epoch), write_in(place(1, 1), 0, 2, 7));
    cluster.send_over(0, connection, of, op);
    let small = cluster.send(0, write_to(2, 0));
    assert!(!cluster.replies.contains_key(&small), "it stands behind the large one");
    let closed = NetEvent::Closed { connection, reason: CloseReason::Reset };
    cluster.give(0, Event::Net(closed));
    cluster.pump();
    assert!(is_written(&cluster.replies[&small]));
}

/// Leaves a learner this much room beyond what it has promised.
fn leave_room(cluster: &mut Cluster, host: usize, units: u64) {
    let space = space_of(&cluster.hosts[host].node().store);
    let credits = credits_of(cluster, host);
    let fits = |count: &u64| credits.may_take_copy(space, 0, (0, count * UNIT_SIZE));
    let most = (0..1 << 20).take_while(fits).last().expect("nothing fits");
    let room_bytes = (most - units) * UNIT_SIZE;
    credits.take(&[], Charge { room_bytes, ..Charge::default() });
}

#[test]
fn a_parity_learner_takes_a_version_only_with_room_for_its_differences_too() {
    for stripe in [0, 1] {
        for units in [1, 2] {
            let mut cluster = Cluster::new(4, 1);
            cluster.is_helpful = false;
            cluster.scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
            cluster.set_entry(&[0, 1], &[3]);
            cluster.advance(300);
            assert!(cluster.is_served(0));
            // Stripe 0 has a place at the learner already.
            assert!(is_written(&cluster.ask(0, write_to(0, 0))));
            cluster.advance(2_000);
            leave_room(&mut cluster, 3, units);
            let write = cluster.send(0, write_to(stripe, 1));
            let key = |cluster: &Cluster, host: usize| {
                let blocks = cluster.blocks(host);
                let of = blocks.iter().find(|(key, ..)| key.stripe.get() == stripe);
                of.map(|(_, version, _)| *version)
            };
            let is_taken = key(&cluster, 3) == key(&cluster, 0);
            assert_eq!(is_taken, units == 2, "stripe {stripe}, room for {units} units");
            assert!(!is_taken || is_written(&cluster.replies[&write]));
        }
    }
}
