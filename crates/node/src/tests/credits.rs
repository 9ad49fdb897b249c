//! Tests of credits for space and room, with several OSDs.

use base::planted::{self, Bug};
use base::{Incarnation, Scheme};
use format::wire::{Member, Op, Refusal};
use pg::Charge;

use super::cluster_rig::*;
use super::rig::*;

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
