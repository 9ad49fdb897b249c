//! Tests with several nodes: copies, leases, members that die and return, peers that send invalid messages.

use base::{ConnectionId, Epoch, Incarnation, MapRevision, OsdId, PgId, Version};
use blockstore::NoteKey;
use cluster::message::{Need, Unreachable};
use format::door::{NetEvent, Peer, Role};
use format::wire::{Change, LeaseMessage, Message, Op, PeerBody, PeerMessage, Refusal};

use super::cluster_rig::*;
use super::rig::*;
use crate::Event;

#[test]
fn what_is_written_is_on_every_member() {
    for copies in [2, 3] {
        let mut cluster = Cluster::serving(copies);
        for stripe in 0..20 {
            let outcome = cluster.ask(0, write_in(place(1, stripe), 0, 2, stripe as u8 + 1));
            assert!(is_written(&outcome), "{outcome:?}");
        }
        assert_eq!(cluster.read_bytes(0, read(0, 2)), [1, 1]);
        let blocks = cluster.blocks(0);
        assert_eq!(blocks.len(), 20);
        for host in 1..3 {
            let expected = if host < copies { &blocks[..] } else { &[] };
            assert_eq!(cluster.blocks(host), expected, "copies {copies}, host {host}");
        }
    }
}

#[test]
fn writes_within_what_a_member_promised_cost_no_message_for_space() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    // The primary requests more credit when half of it is used.
    let promised = blockstore::STORE_SIZE_MIN / 8;
    let count = promised / 2 / base::BlockSize::MIN.bytes();
    let mut asked_count = 0;
    for stripe in 0..4 * count {
        let before = cluster.lease_count;
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe as u32), 0, 1, 7))));
        asked_count += usize::from(cluster.lease_count > before);
        assert!(cluster.lease_count - before <= 2, "one asks, one answers");
    }
    assert!((1..=5).contains(&asked_count), "{asked_count} of {} asked", 4 * count);
}

#[test]
fn a_member_that_dies_is_told_at_once_and_the_pg_waits_for_the_next_entry() {
    let mut cluster = Cluster::serving(3);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    cluster.advance(1_000);
    cluster.is_helpful = false;
    cluster.kill(2);
    assert_eq!(cluster.unreachable(0), [(2, Unreachable::Refused)], "no time has passed");
    let waiting = cluster.send(0, write(0, 1, 8));
    cluster.advance(1_000);
    assert!(!cluster.replies.contains_key(&waiting), "it is durable on two of three");
    let told = cluster.unreachable(0).len();
    cluster.advance(5_000);
    let count = cluster.unreachable(0).len() - told;
    assert!((4..8).contains(&count), "{count}: about once a second");
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(100);
    assert!(is_written(&cluster.ask(0, write(0, 1, 9))));
    assert_eq!(cluster.read_bytes(0, read(0, 1)), [9]);
    assert_eq!(cluster.blocks(0), cluster.blocks(1));
}

#[test]
fn a_member_that_comes_back_is_filled_and_counts_again() {
    let mut cluster = Cluster::serving(2);
    for stripe in 0..100 {
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
    }
    cluster.kill(1);
    cluster.set_entry(&[0], &[]);
    cluster.advance(100);
    for stripe in 50..150 {
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 2))));
    }
    let zero = Op::Zero { place: place(1, 3), offset: 0, length: 4 * UNIT, lazy: false };
    assert!(is_written(&cluster.ask(0, zero)));
    cluster.start(1);
    cluster.set_entry(&[0], &[1]);
    cluster.advance(50);
    // Clients continue to write meanwhile.
    assert!(is_written(&cluster.ask(0, write_in(place(1, 7), 1, 1, 3))));
    cluster.advance(10_000);
    assert_eq!(cluster.entry.acting_count(), 2, "{:?}", cluster.report(0));
    assert!(is_written(&cluster.ask(0, write_in(place(1, 8), 1, 1, 3))));
    assert_eq!(cluster.blocks(0), cluster.blocks(1));
    // The new member holds all the data, even without the others.
    cluster.kill(0);
    cluster.set_entry(&[1], &[]);
    cluster.advance(400);
    let op = |stripe| Op::Read {
        place: place(1, stripe),
        offset: 0,
        length: 2 * UNIT,
        parents: Vec::new(),
    };
    assert_eq!(cluster.read_bytes(1, op(7)), [1, 3]);
    assert_eq!(cluster.read_bytes(1, op(49)), [1, 0]);
    assert_eq!(cluster.read_bytes(1, op(149)), [2, 0]);
    assert!(cluster.read_bytes(1, op(3)).is_empty(), "what was zeroed stays so");
}

/// Returns a cluster in which host 0 has written five blocks together with two others, and a sixth that the
/// others did not receive; then the others died.
fn left_alone() -> Cluster {
    let mut cluster = Cluster::new(3, 3);
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(1_000);
    for stripe in 0..5 {
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1 + stripe as u8))));
    }
    cluster.is_helpful = false;
    cluster.part(0, 1);
    cluster.part(0, 2);
    let alone = cluster.send(0, write_in(place(1, 9), 0, 1, 9));
    assert!(!cluster.replies.contains_key(&alone));
    cluster.kill(1);
    cluster.kill(2);
    cluster.mend();
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(2_000);
    assert_eq!(cluster.blocks(0).len(), 6);
    cluster
}

fn read_of(stripe: u32) -> Op {
    Op::Read { place: place(1, stripe), offset: 0, length: UNIT, parents: Vec::new() }
}

#[test]
fn below_minimum_size_nothing_is_served_until_the_others_come_back() {
    let mut cluster = left_alone();
    let waiting = [
        cluster.send(0, read_of(3)),
        cluster.send(0, write_in(place(1, 0), 0, 1, 7)),
        cluster.send(0, Op::Sync),
    ];
    cluster.advance(1_000);
    assert!(waiting.iter().all(|sequence| !cluster.replies.contains_key(sequence)));
    cluster.advance(6_000);
    for sequence in waiting {
        assert_eq!(cluster.replies.remove(&sequence), Some(Err(Refusal::Busy)), "it comes again");
    }
    // The other hosts return: everything is served again.
    cluster.is_helpful = true;
    for host in [1, 2] {
        cluster.start(host);
    }
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(2_000);
    assert!(cluster.is_served(0));
    assert!(is_written(&cluster.ask(0, write_in(place(1, 0), 0, 1, 7))));
    assert_eq!(cluster.read_bytes(0, read_of(0)), [7]);
    assert_eq!(cluster.read_bytes(0, read_of(9)), [9], "the newest wins");
}

#[test]
fn a_primary_whose_other_members_are_down_fills_a_learner_and_serves_nothing() {
    let mut cluster = Cluster::new(4, 3);
    cluster.set_entry(&[0, 1, 2], &[]);
    cluster.advance(1_000);
    for stripe in 0..20 {
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
    }
    cluster.is_helpful = false;
    cluster.kill(1);
    cluster.kill(2);
    cluster.set_entry(&[0, 1, 2], &[3]);
    cluster.advance(100);
    let waiting = cluster.send(0, write(0, 1, 8));
    cluster.advance(3_000);
    let complete = Need::Complete(cluster.entry.learners[0].member);
    assert!(cluster.needs_of_epoch().contains(&complete), "{:?}", cluster.report(0));
    let report = cluster.report(0);
    assert_eq!(report.active, []);
    let why = "osd.2 is down, osd.3 is down, osd.4 is being filled";
    assert_eq!(report.incomplete, [(PG, why.to_owned())]);
    assert!(!cluster.replies.contains_key(&waiting), "nothing is written meanwhile");
    cluster.set_entry(&[0, 3], &[]);
    cluster.advance(1_000);
    assert!(is_written(&cluster.ask(0, write(0, 1, 9))));
    assert_eq!(cluster.blocks(0), cluster.blocks(3));
    assert_eq!(cluster.blocks(3).len(), 20);
}

#[test]
fn a_primary_that_stood_still_answers_nothing_old() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    let old_epoch = cluster.entry.epoch;
    cluster.hosts[0].is_still = true;
    let early = cluster.send(0, read(0, 1));
    cluster.set_entry(&[1], &[]);
    cluster.advance(2_000);
    assert!(is_written(&cluster.ask(1, write(0, 1, 8))));
    let late = cluster.send_in(0, old_epoch, read(0, 1));
    cluster.hosts[0].is_deaf = true;
    cluster.go_on(0);
    cluster.advance(10_000);
    for sequence in [early, late] {
        let outcome = cluster.replies.remove(&sequence);
        assert!(matches!(outcome, None | Some(Err(_))), "{outcome:?}");
    }
    assert_eq!(cluster.read_bytes(1, read(0, 1)), [8]);
}

#[test]
fn a_new_primary_waits_until_the_lease_of_the_old_one_has_run_out() {
    let mut cluster = Cluster::serving(2);
    // The old primary continues, and does not receive the next entry.
    cluster.hosts[0].is_deaf = true;
    cluster.part(0, 1);
    let parted_at = cluster.now;
    let reading = |cluster: &mut Cluster| {
        let sequence = cluster.send_in(0, Epoch::new(1), read(0, 1));
        cluster.replies.remove(&sequence)
    };
    assert!(matches!(reading(&mut cluster), Some(Ok(_))), "it has a lease");
    cluster.set_entry(&[1], &[]);
    let mut served_until = parted_at;
    for _ in 0..60 {
        cluster.advance(10);
        if matches!(reading(&mut cluster), Some(Ok(_))) {
            served_until = cluster.now;
        }
        if cluster.is_served(1) {
            break;
        }
    }
    assert!(cluster.is_served(1));
    let span = cluster.now.since(served_until).as_millis();
    assert!((10..200).contains(&span), "the old one served until {span} ms before");
    let waited = cluster.now.since(parted_at).as_millis();
    assert!((270..=380).contains(&waited), "{waited} ms");
}

#[test]
fn a_primary_that_hears_of_the_next_entry_lets_the_new_one_begin_at_once() {
    let mut cluster = Cluster::serving(2);
    cluster.set_entry(&[1, 0], &[]);
    cluster.advance(20);
    assert!(cluster.is_served(1), "nobody waits for a lease that is not used");
    assert!(is_written(&cluster.ask(1, write(0, 1, 7))));
}

#[test]
fn a_primary_that_is_stopped_hands_its_leases_back() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    cluster.give(0, Event::Shutdown);
    cluster.pump();
    assert!(cluster.hosts[0].node.is_none(), "it has ended");
    cluster.set_entry(&[1], &[]);
    cluster.pump();
    assert!(cluster.is_served(1), "at once");
    assert_eq!(cluster.read_bytes(1, read(0, 1)), [7]);
}

#[test]
fn a_primary_without_leases_lets_requests_wait() {
    let mut cluster = Cluster::serving(3);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    cluster.part(0, 2);
    cluster.advance(350);
    let waiting = cluster.send(0, read(0, 1));
    cluster.advance(200);
    assert!(!cluster.replies.contains_key(&waiting));
    cluster.mend();
    cluster.advance(150);
    assert_eq!(bytes_of(cluster.replies.remove(&waiting).unwrap()), [7]);
    assert!(cluster.unreachable(0).is_empty());
}

#[test]
fn a_member_that_is_silent_for_a_second_is_told_each_second() {
    let mut cluster = Cluster::serving(2);
    cluster.hosts[1].is_still = true;
    cluster.advance(900);
    assert_eq!(cluster.unreachable(0), []);
    cluster.advance(4_000);
    let told = cluster.unreachable(0);
    assert!(told.iter().all(|told| *told == (1, Unreachable::Silent)), "{told:?}");
    assert!((3..=5).contains(&told.len()), "{told:?}");
    cluster.go_on(1);
    cluster.advance(2_000);
    let told = cluster.unreachable(0).len();
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))), "it goes on by itself");
    cluster.advance(3_000);
    assert_eq!(cluster.unreachable(0).len(), told);
}

#[test]
fn a_primary_that_asks_for_no_lease_for_a_second_is_told_each_second() {
    let mut cluster = Cluster::serving(2);
    cluster.advance(3_000);
    assert_eq!(cluster.unreachable(1), [], "it asks all the time");
    cluster.hosts[0].is_still = true;
    cluster.advance(800);
    assert_eq!(cluster.unreachable(1), []);
    cluster.advance(4_000);
    let told = cluster.unreachable(1);
    assert!(told.iter().all(|told| *told == (0, Unreachable::Missed)), "{told:?}");
    assert!((3..=5).contains(&told.len()), "{told:?}");
    cluster.break_link(1);
    cluster.advance(900);
    assert_eq!(
        cluster.unreachable(1).len(),
        told.len(),
        "another one may lead as another monitor knows"
    );
    cluster.go_on(0);
    cluster.advance(2_000);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))), "it goes on by itself");
    let told = cluster.unreachable(1).len();
    cluster.advance(3_000);
    assert_eq!(cluster.unreachable(1).len(), told);
}

#[test]
fn another_monitor_is_told_at_once_who_cannot_be_reached() {
    for is_dead in [false, true] {
        let mut cluster = Cluster::serving(2);
        // The map still lists the other host as up.
        cluster.is_helpful = false;
        match is_dead {
            true => cluster.kill(1),
            false => cluster.hosts[1].is_still = true,
        }
        let told = (0..150).find(|_| {
            cluster.advance(10);
            !cluster.unreachable(0).is_empty()
        });
        assert!(told.is_some(), "dead: {is_dead}");
        cluster.break_link(0);
        cluster.advance(250);
        assert_eq!(cluster.unreachable(0).len(), 2, "dead: {is_dead}");
    }
}

#[test]
fn members_whose_own_network_is_gone_are_reached_over_the_other_one() {
    let mut cluster = Cluster::new(3, 2);
    cluster.has_second_network = true;
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(200);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    cluster.part(0, 1);
    let waiting = cluster.send(0, write(0, 1, 8));
    cluster.advance(900);
    assert!(!cluster.replies.contains_key(&waiting));
    cluster.advance(600);
    assert!(cluster.is_served(0), "{:?}", cluster.report(0));
    assert!(is_written(&cluster.ask(0, write(0, 1, 9))), "both members take it");
    assert_eq!(cluster.blocks(0), cluster.blocks(1));
    assert!(cluster.unreachable(0).len() <= 1, "it was silent for a second");
}

#[test]
fn a_broken_connection_costs_an_epoch_and_nothing_else() {
    let mut cluster = Cluster::serving(3);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    let epoch = cluster.entry.epoch;
    cluster.break_wires(0, 2);
    assert!(cluster.needs(0).contains(&Need::NewEpoch));
    cluster.advance(500);
    assert!(cluster.entry.epoch > epoch);
    assert_eq!(cluster.read_bytes(0, read(0, 1)), [7]);
    assert!(is_written(&cluster.ask(0, write(0, 1, 8))));
    assert_eq!(cluster.blocks(0), cluster.blocks(2));
}

#[test]
fn a_need_is_told_again_until_its_epoch_is_over() {
    let mut cluster = Cluster::serving(2);
    cluster.is_helpful = false;
    cluster.break_wires(0, 1);
    cluster.advance(5_000);
    let told = cluster.needs(0).len();
    assert!((5..=7).contains(&told), "{told}");
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(5_000);
    assert_eq!(cluster.needs(0).len(), told);
}

#[test]
fn a_query_waits_while_the_map_of_the_member_is_late() {
    let mut cluster = Cluster::serving(2);
    cluster.is_helpful = false;
    cluster.hosts[1].is_deaf = true;
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(800);
    assert!(!cluster.is_served(0));
    assert_eq!(cluster.needs(0), []);
    cluster.hosts[1].is_deaf = false;
    cluster.publish();
    cluster.advance(10);
    assert!(cluster.is_served(0));
}

#[test]
fn a_member_that_gets_no_map_is_reported() {
    let mut cluster = Cluster::serving(2);
    cluster.is_helpful = false;
    cluster.hosts[1].is_deaf = true;
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(5_000);
    let needs = cluster.needs(0);
    let is_told = |need: &Need| matches!(need, Need::Failed(member, _) if member.osd == osd(1));
    assert!(needs.iter().all(is_told) && !needs.is_empty(), "{needs:?}");
    let why = &cluster.report(0).peering[0].1;
    assert!(why.contains("osd.2"), "{why}");
}

#[test]
fn an_absent_member_is_not_reported_as_lagging() {
    let mut cluster = Cluster::serving(2);
    cluster.is_helpful = false;
    cluster.hosts[1].is_deaf = true;
    cluster.set_entry(&[0, 1], &[]);
    cluster.kill(1);
    cluster.advance(10_000);
    assert_eq!(cluster.needs(0), []);
    assert!(cluster.unreachable(0).len() >= 9);
    let why = &cluster.report(0).peering[0].1;
    assert!(why.contains("osd.2"), "{why}");
}

#[test]
fn a_restarted_member_waits_for_the_primary_it_may_have_given_a_lease() {
    let mut cluster = Cluster::serving(2);
    cluster.kill(1);
    // The old primary is paused: it neither sends nor receives.
    cluster.hosts[0].is_still = true;
    cluster.start(1);
    cluster.set_entry(&[1], &[]);
    cluster.advance(300);
    assert!(!cluster.is_served(1), "its earlier run may have given a lease");
    let waiting = cluster.send(1, write(0, 1, 7));
    cluster.advance(100);
    assert!(is_written(&cluster.replies.remove(&waiting).unwrap()), "waited for, not refused");
}

#[test]
fn an_osd_without_a_part_removes_what_it_has_once_others_are_whole() {
    let mut cluster = Cluster::serving(2);
    for stripe in 0..300 {
        assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
    }
    let has_note = |cluster: &Cluster, host: usize| {
        cluster.hosts[host].node().store.note(NoteKey::Pg(PG)).is_some()
    };
    // The PG is degraded, so the data of the removed member may still be needed.
    cluster.set_entry(&[0], &[]);
    cluster.advance(20_000);
    assert_eq!(cluster.blocks(1).len(), 300);
    cluster.set_entry(&[0], &[2]);
    for _ in 0..100 {
        assert!(has_note(&cluster, 1));
        cluster.advance(100);
        if cluster.entry.learners.is_empty() {
            break;
        }
    }
    assert_eq!(cluster.entry.acting_count(), 2, "{:?}", cluster.report(0));
    assert_eq!(cluster.blocks(2), cluster.blocks(0));
    cluster.advance(4_000);
    assert_eq!(cluster.blocks(1).len(), 300, "not at once");
    cluster.advance(10_000);
    assert_eq!(cluster.blocks(1), []);
    assert!(!has_note(&cluster, 1));
    // The OSD can take part again, as a learner.
    cluster.set_entry(&[0, 2], &[1]);
    cluster.advance(20_000);
    assert_eq!(cluster.entry.acting_count(), 3);
    assert_eq!(cluster.blocks(1), cluster.blocks(0));
}

#[test]
fn nothing_is_removed_for_a_map_that_is_older_than_what_the_osd_has_noted() {
    // The state store went back in time: its entry has an older epoch, or only an older revision.
    for (epoch, revision) in [(1, 100), (100, 1)] {
        let mut cluster = Cluster::serving(2);
        cluster.set_entry(&[0, 1], &[]);
        cluster.set_entry(&[0, 1], &[]);
        cluster.advance(100);
        for stripe in 0..10 {
            assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
        }
        cluster.advance(2_000);
        cluster.kill(1);
        (cluster.entry.epoch, cluster.revision) = (Epoch::new(epoch), revision);
        cluster.start(1);
        cluster.set_entry(&[0, 2], &[]);
        cluster.advance(20_000);
        assert_eq!(cluster.blocks(1).len(), 10, "epoch {epoch}, revision {revision}");
        assert!(cluster.hosts[1].node().store.note(NoteKey::Pg(PG)).is_some());
        // The newest copy of the state is back.
        (cluster.entry.epoch, cluster.revision) = (Epoch::new(200), 200);
        cluster.set_entry(&[0, 2], &[]);
        cluster.advance(20_000);
        assert_eq!(cluster.blocks(1), []);
    }
}

#[test]
fn a_write_is_refused_while_a_member_is_full_and_a_deletion_is_not() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    let giver = cluster.entry.acting().nth(1).unwrap().osd;
    let node = cluster.hosts[0].node.as_mut().unwrap();
    // The primary has no credit left, and the member offers no more.
    let known = format::wire::Member { osd: giver, incarnation: Incarnation::new(1) };
    node.space_credits.on_connected(known, true);
    node.space_credits.on_offer(
        giver,
        1,
        crate::space_credits::Offers { is_full: true, ..Default::default() },
    );
    assert_eq!(cluster.ask(0, write(0, 1, 8)), Err(Refusal::Full));
    let zero = Op::Zero { place: place(1, 0), offset: 0, length: UNIT, lazy: false };
    assert!(is_written(&cluster.ask(0, zero)));
    cluster.advance(200);
    assert!(is_written(&cluster.ask(0, write(0, 1, 8))), "there is space again");
}

#[test]
fn a_scrub_that_was_requested_during_peering_begins_once_the_pg_serves() {
    const DAY: u64 = 1_800_000_000;
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    for host in 0..2 {
        let now = cluster.now;
        cluster.hosts[host].node.as_mut().unwrap().set_time_of_day(now, DAY * 1000);
    }
    cluster.part(0, 1);
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(1_000);
    let is_active = |cluster: &Cluster| {
        let pg = cluster.hosts[0].node().pgs.get(PG).expect("it leads the PG");
        *pg.serving() == pg::Serving::Active
    };
    assert!(!is_active(&cluster), "the other member has not reported its state");
    let request =
        cluster::message::FromMonitor::Scrub { pgs: vec![PG], deep: true, metadata: false };
    cluster.monitor_says(0, &request);
    cluster.advance(3_000);
    cluster.mend();
    cluster.advance(30_000);
    assert!(is_active(&cluster));
    let node = cluster.hosts[0].node();
    let (_, note) = node.scrubs().find(|(pg, _)| *pg == PG).expect("it leads the PG");
    assert!(note.deep_at >= DAY, "{note:?}");
}

#[test]
fn a_repair_by_a_scrub_takes_no_space_that_was_promised_to_writes() {
    for has_room in [true, false] {
        let mut cluster = Cluster::serving(2);
        assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
        let blocks = cluster.blocks(1).len();
        if !has_room {
            cluster.hosts[1].node.as_mut().unwrap().space_credits.take(
                &[],
                pg::Charge { space_bytes: 1 << 50, room_bytes: 0, whole_bytes: 1 << 50 },
            );
        }
        let epoch = cluster.entry.epoch;
        let (checksums, data) = fill(1, 1);
        let key =
            blockstore::BlockKey { stripe: base::StripeIndex::new(7), ..cluster.blocks(1)[0].0 };
        let words = |bits: u64| vec![bits];
        let content = format::wire::Content::Block {
            version: Version { epoch, counter: 1 },
            block_size: base::BlockSize::MIN,
            units: words(u64::MAX >> (64 - base::BlockSize::MIN.unit_count())),
            written: words(1),
            damaged: words(0),
            checksums,
            data: Some(data),
            table: Vec::new(),
        };
        let body = PeerBody::Mend { call: 0, key, content };
        let connection = cluster.primary_connection(1, 0);
        let message = Message::Peer(Box::new(PeerMessage { pg: PG, epoch, body }));
        cluster.give(1, Event::Net(NetEvent::Received { connection, message }));
        cluster.pump();
        assert_eq!(cluster.blocks(1).len(), blocks + usize::from(has_room));
    }
}

/// Returns messages of the PG in its current epoch that no correct peer sends.
fn wrong_bodies() -> Vec<PeerBody> {
    let version = Version { epoch: Epoch::new(1), counter: 99 };
    let (_, data) = fill(1, 1);
    let key = blockstore::BlockKey {
        pool: POOL,
        hash: 0,
        image: base::ImageId::FIRST,
        stripe: base::StripeIndex::ZERO,
    };
    let change = Change::Write { offset: 0, checksums: Vec::new(), data };
    let block_size = base::BlockSize::MIN;
    vec![
        PeerBody::Write { version, mark: version, key, block_size, lazy: false, change },
        PeerBody::Written { version, durable: true },
        PeerBody::Synced { call: 4 },
        PeerBody::Activated,
        PeerBody::Noted { call: 3 },
        PeerBody::Listed { call: 9, blocks: Vec::new(), is_last: true },
        PeerBody::Failed { why: "x".into() },
    ]
}

#[test]
fn a_protocol_violation_closes_the_connection_and_does_nothing_else() {
    let stranger = |cluster: &mut Cluster, host: usize, number: u64, role: Role| {
        let connection = ConnectionId::new(2_000_001 + 2 * number);
        let peer = Peer { cluster: CLUSTER, role };
        cluster.give(host, Event::Net(NetEvent::Accepted { connection, peer }));
        connection
    };
    let say = |cluster: &mut Cluster, host: usize, connection: ConnectionId, message: Message| {
        cluster.give(host, Event::Net(NetEvent::Received { connection, message }));
        cluster.hosts[host].node().peer_connections.has(connection)
    };
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    let epoch = cluster.entry.epoch;
    let third = Role::Osd(osd(2), Incarnation::new(1));
    let mut number = 0;
    // The third OSD has no part in the PG, but claims, to the primary and to a member, to lead it.
    for host in [0, 1] {
        for body in wrong_bodies() {
            number += 1;
            let connection = stranger(&mut cluster, host, number, third);
            let message = Message::Peer(Box::new(PeerMessage { pg: PG, epoch, body }));
            assert!(!say(&mut cluster, host, connection, message.clone()), "{message:?}");
        }
        // Queries for PGs and epochs that do not exist.
        let query = PeerBody::Query { revision: MapRevision::new(1) };
        for (pg, epoch) in [
            (PgId { number: 7, ..PG }, Epoch::new(1)),
            (PG, Epoch::ZERO),
            (PG, Epoch::new(u32::MAX)),
            (PgId { pool: base::PoolId::new(u32::MAX).unwrap(), number: u32::MAX }, epoch),
        ] {
            number += 1;
            let connection = stranger(&mut cluster, host, number, third);
            let body = query.clone();
            let message = Message::Peer(Box::new(PeerMessage { pg, epoch, body }));
            say(&mut cluster, host, connection, message);
        }
        // Grants that nobody requested, and messages that belong on other connections.
        let granted = LeaseMessage::Granted {
            stamp: 1,
            valid_ms: u32::MAX,
            lost: Vec::new(),
            is_full: true,
            engine: format::wire::EngineState::default(),
            limit_bytes: 0,
            share_bytes: 0,
            largest_bytes: 0,
            room: None,
        };
        for message in [Message::Lease(Box::new(granted)), Message::Control("{}".into())] {
            number += 1;
            let connection = stranger(&mut cluster, host, number, third);
            assert!(!say(&mut cluster, host, connection, message));
        }
        // One peer claims to be this OSD itself, another one has no run.
        let before = Role::Osd(osd(2), Incarnation::ZERO);
        for role in [Role::Osd(osd(host), Incarnation::new(1)), before] {
            number += 1;
            let connection = stranger(&mut cluster, host, number, role);
            assert!(!cluster.hosts[host].node().peer_connections.has(connection));
        }
    }
    // The primary itself violates the protocol: only its connection is closed.
    let connection = cluster.primary_connection(1, 0);
    let body = PeerBody::Written { version: Version::ZERO, durable: true };
    let message = Message::Peer(Box::new(PeerMessage { pg: PG, epoch, body }));
    assert!(!say(&mut cluster, 1, connection, message));
    cluster.advance(3_000);
    assert!(is_written(&cluster.ask(0, write(0, 1, 8))));
    assert_eq!(cluster.blocks(0), cluster.blocks(1));
}

#[test]
fn a_member_hears_no_write_of_an_earlier_epoch_or_over_another_connection() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    let before = cluster.entry.epoch;
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(100);
    assert!(is_written(&cluster.ask(0, write(0, 1, 8))));
    let blocks = cluster.blocks(1);
    let body = || wrong_bodies().swap_remove(0);
    let connection = cluster.primary_connection(1, 0);
    let message = Message::Peer(Box::new(PeerMessage { pg: PG, epoch: before, body: body() }));
    cluster.give(1, Event::Net(NetEvent::Received { connection, message }));
    assert!(
        cluster.hosts[1].node().peer_connections.has(connection),
        "it may have been on its way"
    );
    assert_eq!(cluster.blocks(1), blocks);
    let connection = ConnectionId::new(2_000_001);
    let peer = Peer { cluster: CLUSTER, role: Role::Osd(OsdId::FIRST, Incarnation::new(1)) };
    cluster.give(1, Event::Net(NetEvent::Accepted { connection, peer }));
    let epoch = cluster.entry.epoch;
    let message = Message::Peer(Box::new(PeerMessage { pg: PG, epoch, body: body() }));
    cluster.give(1, Event::Net(NetEvent::Received { connection, message }));
    assert_eq!(cluster.blocks(1), blocks);
    assert!(!cluster.hosts[1].node().peer_connections.has(connection));
}

#[test]
fn a_monitor_that_asks_whether_an_osd_is_there_is_answered_at_once() {
    let mut cluster = Cluster::serving(2);
    cluster.monitor_says(1, &cluster::message::FromMonitor::Probe { nonce: 77 });
    cluster.pump();
    let alive = cluster::message::ToMonitor::Alive { nonce: 77 };
    assert!(cluster.hosts[1].told.contains(&alive));
}

#[test]
fn a_hung_member_does_not_stop_the_filling_of_a_learner() {
    for is_killed in [true, false] {
        let mut cluster = Cluster::new(4, 3);
        cluster.set_entry(&[0, 1], &[]);
        cluster.advance(1_000);
        for stripe in 0..20 {
            assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
        }
        cluster.advance(2_000);
        cluster.is_helpful = false;
        match is_killed {
            true => cluster.kill(1),
            // The kernel keeps the connections of the paused process.
            false => cluster.hosts[1].is_still = true,
        }
        cluster.down.insert(1);
        cluster.set_entry(&[0, 1], &[3]);
        cluster.advance(10_000);
        let complete = Need::Complete(cluster.entry.learners[0].member);
        assert!(cluster.needs_of_epoch().contains(&complete), "killed: {is_killed}");
    }
}

#[test]
fn a_member_whose_note_cannot_be_read_is_filled_by_the_others() {
    for host in [0, 1] {
        let mut cluster = Cluster::serving(2);
        for stripe in 0..20 {
            assert!(is_written(&cluster.ask(0, write_in(place(1, stripe), 0, 1, 1))));
        }
        cluster.advance(1_000);
        cluster.kill(host);
        cluster.hosts[host].disk.put_note(NoteKey::Pg(PG), b"{");
        let other = 1 - host;
        cluster.set_entry(&[other], &[]);
        cluster.advance(500);
        assert!(is_written(&cluster.ask(other, write_in(place(1, 3), 0, 1, 2))));
        cluster.start(host);
        assert_eq!(cluster.suspect_boots(), [host]);
        cluster.set_entry(&[other], &[host]);
        cluster.advance(10_000);
        assert_eq!(cluster.entry.acting_count(), 2, "{:?}", cluster.report(other));
        assert_eq!(cluster.blocks(host), cluster.blocks(other));
        assert!(!cluster.report(host).suspect);
        // From now on the OSD leads like any other, in this run and in later ones.
        cluster.kill(host);
        cluster.start(host);
        assert_eq!(cluster.suspect_boots(), [host], "not again");
        cluster.set_entry(&[host, other], &[]);
        cluster.advance(2_000);
        assert!(cluster.is_served(host), "{:?}", cluster.report(host));
        assert_eq!(cluster.read_bytes(host, read_of(3)), [2]);
    }
}

#[test]
fn a_member_whose_note_cannot_be_read_does_not_lead_before_it_is_filled() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write(0, 1, 7))));
    cluster.advance(1_000);
    cluster.kill(0);
    cluster.hosts[0].disk.put_note(NoteKey::Pg(PG), b"{");
    cluster.start(0);
    cluster.is_helpful = false;
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(2_000);
    let (_, why) = cluster.report(0).incomplete[0].clone();
    assert!(why.contains("the note of 1.0") && why.contains("no other member can lead"), "{why}");
    // Under another primary the OSD reports that it cannot take part: the OSD is removed, and returns as a
    // learner.
    cluster.set_entry(&[1, 0], &[]);
    cluster.advance(2_000);
    assert!(cluster.needs(1).iter().any(|need| matches!(need, Need::Failed(..))));
    assert!(!cluster.is_served(1));
}

#[test]
fn a_suspect_primary_reports_no_damage_while_another_member_may_answer() {
    let mut cluster = Cluster::serving(2);
    assert!(is_written(&cluster.ask(0, write_in(place(1, 3), 0, 1, 1))));
    cluster.advance(1_000);
    (0..2).for_each(|host| cluster.kill(host));
    cluster.hosts[0].disk.put_note(NoteKey::Pg(PG), b"{");
    cluster.start(0);
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(1_000);
    let refusal = cluster.ask(0, read_of(3));
    assert!(matches!(refusal, Err(Refusal::Incomplete { .. })), "{refusal:?}");
    cluster.start(1);
    cluster.set_entry(&[1], &[0]);
    cluster.advance(10_000);
    assert_eq!(cluster.read_bytes(1, read_of(3)), [1]);
}

#[test]
fn a_member_whose_disk_hangs_is_waited_for_and_a_silent_one_is_not() {
    let failed = |cluster: &Cluster| {
        let needs = cluster.needs_of_epoch();
        needs.iter().any(|need| matches!(need, Need::Failed(..)))
    };
    for hangs in [true, false] {
        let mut cluster = Cluster::serving(2);
        assert!(is_written(&cluster.ask(0, write(0, 1, 6))));
        cluster.hosts[1].holds_disk = hangs;
        cluster.hosts[1].is_still = !hangs;
        // The member has the change, and does not complete it; then another epoch begins.
        cluster.send(0, write(0, 1, 7));
        cluster.pump();
        cluster.set_entry(&[0, 1], &[]);
        cluster.advance(10_000);
        assert_eq!(failed(&cluster), !hangs);
        assert!(!cluster.is_served(0));
        if hangs {
            let why = "osd.2 is finishing operations of the previous epoch";
            assert_eq!(cluster.report(0).peering, [(PG, why.to_owned())]);
            cluster.release_disk(1);
            cluster.advance(500);
            assert!(cluster.is_served(0));
            assert_eq!(cluster.read_bytes(0, read(0, 1)), [7]);
            assert!(!failed(&cluster));
        }
    }
}
