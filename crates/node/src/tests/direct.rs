//! Tests of direct reads: leases of members, and maps. Hosts 0 and 1 have the data parts, host 2 has parity.

use base::{Epoch, Incarnation, MapRevision, Position, SessionId};
use format::wire::{Learner, Member, Op, Outcome, PgEntry, Refusal};

use super::cluster_rig::*;
use super::rig::*;
use crate::Event;

/// The host that answers direct reads.
const MEMBER: usize = 1;
const BLOCK_UNITS: u32 = base::BlockSize::MIN.unit_count();

/// A direct read of the first unit of the second part.
fn read_part() -> Op {
    let Op::Read { place, length, .. } = read(0, 1) else { unreachable!("it is a read") };
    Op::ReadPart { place, offset: BLOCK_UNITS * UNIT, length, parents: Vec::new() }
}

/// A pool with parity; the unit that [`read_part`] reads has this byte.
fn serving(byte: u8) -> Cluster {
    let mut cluster = Cluster::serving_parity();
    assert!(is_written(&cluster.ask(0, write(BLOCK_UNITS, 1, byte))));
    cluster.advance(250);
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), [byte]);
    cluster
}

/// Makes the next entry: who is named stays at its position, the others leave.
fn set_members(cluster: &mut Cluster, members: &[usize], primary: usize, learner: Option<usize>) {
    let member =
        |host: usize| Member { osd: osd(host), incarnation: Incarnation::new(cluster.runs(host)) };
    let place = |host: usize| members.contains(&host).then(|| member(host));
    let position = Position::new(2).expect("there are three");
    let learners = learner.map(|host| Learner { member: member(host), position });
    let revision = MapRevision::new(cluster.revision + 1);
    cluster.entry = PgEntry {
        epoch: cluster.entry.epoch.next(),
        revision,
        positions: (0..3).map(place).collect(),
        learners: learners.into_iter().collect(),
        ..cluster.entry.clone()
    }
    .led_by(osd(primary));
    cluster.revision += 1;
    cluster.publish();
}

/// Whether the member answers a direct read of the first epoch.
fn is_read(cluster: &mut Cluster) -> bool {
    let sequence = cluster.send_in(MEMBER, Epoch::new(1), read_part());
    matches!(cluster.replies.remove(&sequence), Some(Ok(Outcome::Read { .. })))
}

/// Waits until a host serves without the member, and checks that the member has stopped before.
fn check_next_epoch_waits(cluster: &mut Cluster, primary: usize) {
    let parted_at = cluster.now;
    assert!(is_read(cluster), "it has leases");
    let mut read_until = parted_at;
    while !cluster.is_served(primary) {
        cluster.advance(10);
        assert!(cluster.now.since(parted_at).as_millis() < 2_000, "{:?}", cluster.report(primary));
        if is_read(cluster) {
            read_until = cluster.now;
        }
    }
    assert!(is_written(&cluster.ask(primary, write(BLOCK_UNITS, 1, 9))));
    assert!(!is_read(cluster));
    let span = cluster.now.since(read_until).as_millis();
    assert!((10..400).contains(&span), "it answered until {span} ms before");
}

#[test]
fn a_dropped_member_answers_nothing_when_the_next_epoch_serves() {
    let mut cluster = serving(7);
    cluster.hosts[MEMBER].is_deaf = true;
    cluster.part(0, MEMBER);
    cluster.part(2, MEMBER);
    set_members(&mut cluster, &[0, 2], 0, None);
    check_next_epoch_waits(&mut cluster, 0);
}

#[test]
fn leases_of_a_member_outlive_the_run_of_the_primary() {
    let mut cluster = serving(7);
    cluster.hosts[MEMBER].is_deaf = true;
    cluster.part(2, MEMBER);
    cluster.part(0, MEMBER);
    cluster.kill(0);
    cluster.start(0);
    set_members(&mut cluster, &[0, 2], 0, None);
    check_next_epoch_waits(&mut cluster, 0);
}

#[test]
fn a_member_that_hears_of_the_next_entry_lets_it_begin_at_once() {
    let mut cluster = serving(7);
    set_members(&mut cluster, &[0, 2], 2, None);
    cluster.advance(20);
    assert!(cluster.is_served(2), "nobody waits for a lease that is not used");
    let outcome = cluster.ask(MEMBER, read_part());
    assert_eq!(outcome, Err(Refusal::AskPrimary), "it is not a member");
}

#[test]
fn a_member_that_is_stopped_hands_its_leases_back() {
    let mut cluster = serving(7);
    cluster.hosts[MEMBER].is_deaf = true;
    cluster.give(MEMBER, Event::Shutdown);
    cluster.pump();
    assert!(cluster.hosts[MEMBER].node.is_none(), "it has ended");
    set_members(&mut cluster, &[0, 2], 0, None);
    cluster.pump();
    assert!(cluster.is_served(0), "at once");
}

#[test]
fn every_other_member_must_grant_learners_too() {
    for cut in [0, 2, 3] {
        let mut cluster = serving(7);
        set_members(&mut cluster, &[0, 1, 2], 0, Some(3));
        cluster.is_helpful = false;
        cluster.advance(500);
        assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7]);
        cluster.part(cut, MEMBER);
        cluster.advance(350);
        let outcome = cluster.ask(MEMBER, read_part());
        assert_eq!(outcome, Err(Refusal::AskPrimary), "host {cut} grants nothing");
        cluster.mend();
        cluster.advance(150);
        if cut == 3 {
            assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7]);
        }
    }
}

#[test]
fn a_direct_read_is_answered_in_exactly_its_epoch() {
    let mut cluster = serving(7);
    let (old, new) = (Epoch::new(1), Epoch::new(2));
    let sequence = cluster.send_in(MEMBER, new, read_part());
    assert_eq!(cluster.replies[&sequence], Err(Refusal::AskPrimary), "its map is older");
    set_members(&mut cluster, &[0, 1, 2], 0, None);
    cluster.advance(300);
    let sequence = cluster.send_in(MEMBER, old, read_part());
    let stale = Err(Refusal::Stale(Some(cluster.entry.clone())));
    assert_eq!(cluster.replies[&sequence], stale, "the client's map is older");
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7]);
    let outcome = cluster.ask(0, read_part());
    assert_eq!(outcome, Err(Refusal::AskPrimary), "the primary answers other reads");
}

#[test]
fn a_member_without_the_map_of_a_version_refuses() {
    let mut cluster = serving(7);
    cluster.hosts[MEMBER].is_deaf = true;
    // A new map without a new epoch, as when a session is fenced.
    cluster.revision += 1;
    cluster.publish();
    cluster.pump();
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7], "nothing has come of it");
    assert!(is_written(&cluster.ask(0, write(BLOCK_UNITS + 1, 1, 8))));
    cluster.advance(250);
    assert_eq!(cluster.ask(MEMBER, read_part()), Err(Refusal::AskPrimary));
    cluster.hosts[MEMBER].is_deaf = false;
    cluster.publish();
    cluster.pump();
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7]);
}

#[test]
fn a_reader_with_a_newer_map_than_the_primary_asks_the_primary() {
    let mut cluster = serving(7);
    cluster.hosts[0].is_deaf = true;
    // As when a session is fenced: what the primary began for it may be on its way here.
    cluster.revision += 1;
    cluster.client_revision = cluster.revision;
    cluster.publish();
    cluster.advance(250);
    assert_eq!(cluster.ask(MEMBER, read_part()), Err(Refusal::AskPrimary));
    cluster.hosts[0].is_deaf = false;
    cluster.publish();
    cluster.pump();
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), [7], "the primary has told it");
}

/// Fences the client's session everywhere, and goes on as the next session.
fn fence(cluster: &mut Cluster) {
    cluster.fences.push(cluster.session);
    cluster.session = SessionId::new(cluster.session.get() + 1);
    cluster.revision += 1;
    cluster.client_revision = cluster.revision;
    cluster.publish();
    cluster.pump();
}

#[test]
fn a_change_of_a_fenced_session_without_a_version_holds_direct_reads_back() {
    let mut cluster = serving(7);
    // It waits for the version of the part, which the member with parity knows.
    cluster.part(0, 2);
    let Op::Write { place, offset, checksums, data, lazy, .. } = write(BLOCK_UNITS, 1, 8) else {
        unreachable!("it is a write")
    };
    let expected = Some(version(1, 1));
    let swap = cluster.send(0, Op::Write { place, offset, checksums, data, expected, lazy });
    assert!(!cluster.replies.contains_key(&swap));
    fence(&mut cluster);
    let direct = cluster.send(MEMBER, read_part());
    assert_eq!(cluster.replies.remove(&direct), Some(Err(Refusal::AskPrimary)));
    cluster.mend();
    assert!(cluster.replies.contains_key(&swap), "it has ended");
    let byte = cluster.read_bytes(0, read(BLOCK_UNITS, 1));
    assert_eq!(byte, [8], "it was there before the fence");
    cluster.advance(250);
    assert_eq!(cluster.read_bytes(MEMBER, read_part()), byte, "the primary has told the fence");
}

#[test]
fn a_session_fenced_while_its_direct_read_is_at_the_store_gets_no_answer() {
    let mut cluster = serving(7);
    // A whole block is not kept in memory.
    assert!(is_written(&cluster.ask(0, write(BLOCK_UNITS, BLOCK_UNITS, 8))));
    cluster.advance(250);
    cluster.hosts[MEMBER].holds_disk = true;
    let direct = cluster.send(MEMBER, read_part());
    assert!(!cluster.replies.contains_key(&direct), "it is at the store");
    fence(&mut cluster);
    cluster.release_disk(MEMBER);
    assert_eq!(cluster.replies.remove(&direct), Some(Err(Refusal::Fenced)));
}

#[test]
fn leases_for_reads_alone_promise_no_space_and_cost_two_messages() {
    let mut cluster = serving(7);
    let before = cluster.lease_count;
    cluster.advance(1_000);
    // Host 0 leads with two others, host 1 reads with two others: 10 renewals each, and their answers.
    let count = cluster.lease_count - before;
    assert!((72..=88).contains(&count), "{count}");
    for host in [0, 2] {
        let promised = cluster.hosts[host].node().space_credits.is_promised_to(osd(MEMBER));
        assert!(!promised, "host {host}");
    }
}

#[cfg(debug_assertions)]
#[test]
#[ignore = "for make proof"]
fn planted_bugs_are_found_in_direct_reads_beside_fences() {
    use base::planted::{Bug, fails};
    for scenario in [
        a_reader_with_a_newer_map_than_the_primary_asks_the_primary,
        a_change_of_a_fenced_session_without_a_version_holds_direct_reads_back,
    ] {
        assert!(fails(Bug::DirectReadBesideFenced, scenario));
    }
}
