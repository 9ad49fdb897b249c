//! Tests of changes that need more room than a member's largest share, and are carried out in pieces.

use base::planted::{self, Bug};
use base::{BlockSize, MIB, Scheme};
use format::wire::{Op, Outcome, Refusal};
use pg::Charge;

use super::cluster_rig::*;
use super::rig::*;

/// Units of a block; a stripe has two.
const UNITS: u32 = 32;

/// A pool of two data parts and parity, in whose members' journals no primary has room for a whole block.
fn serving() -> Cluster {
    let mut cluster = Cluster::with_journals(4, 2 * MIB);
    cluster.scheme = Scheme::ReedSolomon { data: 2, parity: 1 };
    cluster.block_size = BlockSize::from_shift(17).unwrap();
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(200);
    assert!(cluster.is_served(0));
    cluster
}

/// Lets a member promise no more room: it counts as if its own PGs had all.
fn withhold(cluster: &mut Cluster, host: usize) {
    cluster.hosts[host].node.as_mut().unwrap().space_credits.take(&[], all_room());
}

fn grant(cluster: &mut Cluster, host: usize) {
    cluster.hosts[host].node.as_mut().unwrap().space_credits.end(&[], all_room());
}

fn all_room() -> Charge {
    Charge { room_bytes: 1 << 40, ..Charge::default() }
}

/// A write of a whole stripe, of which one piece was carried out: a member promises no room for the next.
fn begun(cluster: &mut Cluster) -> u64 {
    withhold(cluster, 1);
    let sequence = cluster.send(0, write(0, 2 * UNITS, 7));
    cluster.advance(50);
    assert!(!cluster.replies.contains_key(&sequence), "pieces are left");
    sequence
}

/// How many units of the stripe have these bytes.
fn count_of(cluster: &mut Cluster, byte: u8) -> usize {
    let sequence = cluster.send(0, read(0, 2 * UNITS));
    cluster.advance(100);
    let found = bytes_of(cluster.replies.remove(&sequence).expect("reads wait for no room"));
    found.iter().filter(|found| **found == byte).count()
}

fn is_stale(cluster: &Cluster, sequence: u64) -> bool {
    matches!(&cluster.replies[&sequence], Err(Refusal::Stale(Some(entry))) if *entry == cluster.entry)
}

/// Nothing is taken any more, and nobody waits.
fn assert_nothing_is_held(cluster: &mut Cluster) {
    let next = cluster.send(0, write(0, 2 * UNITS, 9));
    cluster.advance(3_000);
    assert!(is_written(&cluster.replies[&next]), "{:?}", cluster.replies[&next]);
    let node = cluster.hosts[0].node();
    assert!(node.requests.is_empty() && !node.space_credits.is_awaited());
    assert!(node.space_credits.is_idle(), "all that was taken has come back");
}

#[test]
fn what_needs_more_room_than_there_ever_is_is_written_in_pieces() {
    let mut cluster = serving();
    for (byte, (first, count)) in (1..).zip([(0, 64), (3, 61), (20, 30), (0, 32), (40, 24)]) {
        let sequence = cluster.send(0, write(first, count, byte));
        cluster.advance(2_000);
        let Ok(Outcome::Written { version: last, durable: true }) = cluster.replies[&sequence]
        else {
            panic!("{:?}", cluster.replies[&sequence]);
        };
        assert!(last.counter > u64::from(byte), "several versions");
        assert_eq!(count_of(&mut cluster, byte), count as usize);
    }
    let zero = Op::Zero { place: place(1, 0), offset: 0, length: 62 * UNIT, lazy: false };
    let sequence = cluster.send(0, zero);
    cluster.advance(2_000);
    assert!(is_written(&cluster.replies[&sequence]));
    assert_eq!(count_of(&mut cluster, 0), 62);
    assert_nothing_is_held(&mut cluster);
}

#[test]
fn pieces_that_are_left_out_are_found() {
    let test = what_needs_more_room_than_there_ever_is_is_written_in_pieces;
    assert!(planted::fails(Bug::PiecesLeftOut, test));
}

#[test]
fn a_change_that_lacks_room_for_its_next_piece_goes_on_when_there_is_some() {
    let mut cluster = serving();
    let sequence = begun(&mut cluster);
    let early = cluster.send(0, read(0, 2 * UNITS));
    cluster.advance(50);
    assert!(!cluster.replies.contains_key(&early), "a reader sees all pieces or none");
    grant(&mut cluster, 1);
    cluster.advance(300);
    assert!(is_written(&cluster.replies[&sequence]));
    let found = bytes_of(cluster.replies.remove(&early).expect("the pieces have ended"));
    assert!(found.iter().all(|byte| *byte == 7));
    assert_nothing_is_held(&mut cluster);
}

#[test]
fn nothing_else_changes_a_stripe_between_two_pieces() {
    let mut cluster = serving();
    let first = begun(&mut cluster);
    // Zeros of a whole stripe need so little room that they would pass.
    let zero = Op::Zero { place: place(1, 0), offset: 0, length: 64 * UNIT, lazy: false };
    let second = cluster.send(0, zero);
    cluster.advance(50);
    assert!(!cluster.replies.contains_key(&second));
    grant(&mut cluster, 1);
    cluster.advance(300);
    assert!(is_written(&cluster.replies[&first]) && is_written(&cluster.replies[&second]));
    assert_eq!(count_of(&mut cluster, 7), 0, "the second change came behind the first");
    assert_nothing_is_held(&mut cluster);
}

#[test]
fn once_a_piece_was_carried_out_the_only_refusal_is_stale() {
    // It has waited for too long: others are told that the OSD is busy, which promises that nothing happened.
    let mut cluster = serving();
    let sequence = begun(&mut cluster);
    cluster.advance(60_000);
    assert!(is_stale(&cluster, sequence), "{:?}", cluster.replies[&sequence]);
    grant(&mut cluster, 1);
    assert_nothing_is_held(&mut cluster);

    // A new epoch.
    let sequence = begun(&mut cluster);
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(300);
    assert!(is_stale(&cluster, sequence), "{:?}", cluster.replies[&sequence]);
    grant(&mut cluster, 1);
    cluster.advance(300);
    assert_nothing_is_held(&mut cluster);

    // Its session is fenced.
    let sequence = begun(&mut cluster);
    cluster.fences = vec![cluster.session];
    cluster.revision += 1;
    cluster.publish();
    cluster.advance(300);
    assert!(is_stale(&cluster, sequence), "{:?}", cluster.replies[&sequence]);
}

#[test]
fn shares_that_grow_between_judgement_and_start_take_no_more_than_was_judged() {
    // The demand is reviewed while the change is judged: an inactive PG no longer keeps room.
    let mut cluster = serving();
    for round in 0..20 {
        cluster.set_entry(&[0, 1, 2], &[]);
        let sequence = cluster.send(0, write(0, 2 * UNITS, round));
        cluster.advance(2_000);
        let is_sound = is_written(&cluster.replies[&sequence]) || is_stale(&cluster, sequence);
        assert!(is_sound, "{:?}", cluster.replies[&sequence]);
    }
    assert_nothing_is_held(&mut cluster);
}

#[test]
fn pieces_that_are_left_go_with_their_connection() {
    let mut cluster = serving();
    begun(&mut cluster);
    cluster.break_client(0);
    grant(&mut cluster, 1);
    cluster.advance(3_000);
    let node = cluster.hosts[0].node();
    assert!(node.requests.is_empty() && !node.space_credits.is_awaited());
    assert!(node.space_credits.is_idle());
}
