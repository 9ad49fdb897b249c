//! Tests of one node by scripts: events of a monitor, clients and the disk, and the node's replies.

pub(crate) mod check;
pub mod cluster_rig;
mod credits;
mod cuts;
mod direct;
mod hung_disk;
mod lazy;
mod lines;
mod members;
mod metadata;
mod objects;
mod older_copies;
mod reclaim;
pub mod rig;
mod session_takeover;
mod state_rollback;
mod stats;

mod work;

use base::{
    ClusterId, ConnectionId, Duration, ImageId, Incarnation, MapRevision, OsdId, PgId, SessionId,
    StripeIndex, Version,
};
use cluster::map::{ClusterMap, MapDelta, OsdInfo};
use cluster::message::{Failure, FromMonitor, OsdReport, ToMonitor};
use format::door::{NetEvent, Peer, Role};
use format::wire::{Member, Message, Op, Outcome, PgEntry, Refusal, Reply, Request};

use crate::leases::LEASE_DEFAULT;
use crate::notes::ClusterNote;
use crate::{Event, Settings, Stalls, StopReason};
use rig::*;

const OTHER: ConnectionId = ConnectionId::new(3);
const THIRD: ConnectionId = ConnectionId::new(5);

fn last_report(rig: &Rig) -> OsdReport {
    let reports = rig.told.iter().rev();
    reports
        .filter_map(|told| match told {
            ToMonitor::OsdReport(report) => Some(report.clone()),
            _ => None,
        })
        .next()
        .expect("a report was sent")
}

fn saw(rig: &Rig) -> Vec<u64> {
    let told = rig.told.iter();
    let seen = told.filter_map(|told| match told {
        ToMonitor::OsdSaw { revisions } => Some(revisions.get(&POOL).map_or(0, |seen| seen.get())),
        _ => None,
    });
    seen.collect()
}

#[test]
fn an_osd_boots_subscribes_and_serves() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    assert_eq!(rig.connects.len(), 1);
    rig.connect();
    let ToMonitor::OsdBoot { osd, store, incarnation, .. } = &rig.told[0] else {
        panic!("{:?}", rig.told)
    };
    assert_eq!((*osd, store, *incarnation), (OSD, &identity().store, None));
    assert!(rig.joined.is_empty());
    rig.monitor_says(FromMonitor::OsdBooted { incarnation: Incarnation::new(1) });
    assert_eq!(rig.joined, [Incarnation::new(1)]);
    assert!(matches!(&rig.told[1], ToMonitor::Subscribe { have } if have.is_empty()));
    rig.monitor_says(map(0, 10, vec![entry(1, 1)], &[]));
    assert_eq!(*saw(&rig).last().unwrap(), 10);
    rig.accept(CLIENT);
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    assert_eq!(rig.read_bytes(1, read(0, 2)), [7, 0]);
}

#[test]
fn writes_of_one_turn_are_all_answered() {
    let mut rig = Rig::serving();
    let requests: Vec<Request> =
        (0..4).map(|unit| rig.request(1, write(unit, 1, unit as u8 + 1))).collect();
    let events = requests.into_iter().map(|request| {
        let message = Message::Request(request);
        Event::Net(NetEvent::Received { connection: CLIENT, message })
    });
    rig.turn(events.collect());
    assert_eq!(rig.replies.len(), 4);
    assert_eq!(rig.read_bytes(1, read(0, 4)), [1, 2, 3, 4]);
}

#[test]
fn a_restart_keeps_data_and_counter() {
    let mut rig = Rig::serving();
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    assert_eq!(rig.ask(1, write(1, 1, 8)), written(1, 2));
    let mut rig = Rig::serving_over(rig.disk, 2, 2);
    assert_eq!(rig.read_bytes(2, read(0, 2)), [7, 8]);
    assert_eq!(rig.ask(2, write(0, 1, 9)), written(2, 3));
}

#[test]
fn an_older_epoch_is_refused_with_the_entry() {
    let mut rig = Rig::serving_over(MemoryDisk::formatted(), 3, 1);
    let stale = Err(Refusal::Stale(Some(entry(3, 1))));
    assert_eq!(rig.ask(2, write(0, 1, 7)), stale);
    assert_eq!(rig.ask(3, write(0, 1, 7)), written(3, 1));
}

#[test]
fn a_newer_epoch_waits_for_the_map() {
    let mut rig = Rig::serving();
    let sequence = rig.send(CLIENT, 2, write(0, 1, 7));
    assert_eq!(rig.reply_to(sequence), None);
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[]));
    assert_eq!(rig.reply_to(sequence), Some(written(2, 1)));
}

#[test]
fn a_pg_of_another_osd_is_refused_with_the_entry() {
    let mut rig = Rig::serving();
    let mut elsewhere = entry(2, 1);
    let (osd, incarnation) = (OsdId::new(9).unwrap(), Incarnation::new(1));
    elsewhere.positions = vec![Some(Member { osd, incarnation })];
    rig.monitor_says(map(10, 11, vec![elsewhere.clone()], &[]));
    assert_eq!(rig.ask(2, read(0, 1)), Err(Refusal::Stale(Some(elsewhere))));
}

#[test]
fn a_fenced_session_is_refused() {
    let mut rig = Rig::serving();
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get()]));
    assert_eq!(rig.ask(1, write(0, 1, 8)), Err(Refusal::Fenced));
    assert_eq!(rig.ask(1, read(0, 1)), Err(Refusal::Fenced));
}

#[test]
fn a_queued_request_of_a_fenced_session_is_not_executed() {
    let mut rig = Rig::serving();
    let [started, queued, reading] = rig.fill_queue();
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get()]));
    assert_eq!(rig.reply_to(queued), Some(Err(Refusal::Fenced)));
    assert_eq!(rig.reply_to(reading), Some(Err(Refusal::Fenced)));
    rig.release_disk();
    assert_eq!(rig.reply_to(started), Some(written(1, 1)));
}

#[test]
fn a_revision_is_reported_when_nothing_of_a_fenced_session_is_under_way() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    rig.send(CLIENT, 1, write(0, 1, 7));
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get()]));
    assert_eq!(*saw(&rig).last().unwrap(), 10);
    rig.release_disk();
    assert_eq!(*saw(&rig).last().unwrap(), 11);
}

#[test]
fn a_higher_revision_waits_for_the_map() {
    let mut rig = Rig::serving();
    let mut request = rig.request(2, write(0, 1, 7));
    request.revision = MapRevision::new(11);
    let sequence = request.sequence;
    rig.receive(CLIENT, Message::Request(request));
    assert_eq!(rig.reply_to(sequence), None);
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[]));
    assert_eq!(rig.reply_to(sequence), Some(written(2, 1)));
}

#[test]
fn a_request_waits_for_the_map_for_a_bounded_time() {
    let mut rig = Rig::serving();
    let mut request = rig.request(1, write(0, 1, 7));
    request.revision = MapRevision::new(99);
    let sequence = request.sequence;
    rig.receive(CLIENT, Message::Request(request));
    rig.advance(Duration::from_millis(4_900));
    assert_eq!(rig.reply_to(sequence), None);
    rig.advance(Duration::from_millis(200));
    assert_eq!(rig.reply_to(sequence), Some(Err(Refusal::Busy)));
}

#[test]
fn a_lower_revision_is_served_in_the_same_epoch() {
    let mut rig = Rig::serving();
    rig.monitor_says(map(10, 12, vec![], &[]));
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
}

#[test]
fn nothing_is_accepted_before_the_map_is_read() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.join(1);
    rig.accept(CLIENT);
    let sequence = rig.send(CLIENT, 1, write(0, 1, 7));
    assert_eq!(rig.reply_to(sequence), None);
    rig.monitor_says(map(0, 10, vec![entry(1, 1)], &[]));
    assert_eq!(rig.reply_to(sequence), Some(written(1, 1)));
}

#[test]
fn a_request_that_came_twice_is_executed_once() {
    let mut rig = Rig::serving();
    let request = rig.request(1, write(0, 1, 7));
    rig.receive(CLIENT, Message::Request(request.clone()));
    assert_eq!(rig.replies.len(), 1);
    rig.receive(CLIENT, Message::Request(request));
    assert_eq!(rig.replies.len(), 1);
    assert_eq!(rig.ask(1, write(0, 1, 8)), written(1, 2), "no version was given to it");
}

#[test]
fn a_delayed_connection_cannot_undo_what_came_after_it() {
    let mut rig = Rig::serving();
    // The client abandoned its first connection, sent the write again over another one, and continued.
    let delayed = rig.request(1, write(0, 1, 7));
    rig.accept(OTHER);
    rig.send(OTHER, 1, write(0, 1, 7));
    rig.send(OTHER, 1, write(0, 1, 8));
    rig.receive(CLIENT, Message::Request(delayed.clone()));
    rig.accept(THIRD);
    rig.receive(THIRD, Message::Request(delayed));
    rig.send(OTHER, 1, read(0, 1));
    let (connection, last) = rig.replies.pop().unwrap();
    assert_eq!(connection, OTHER);
    assert_eq!(bytes_of(last.outcome), [8]);
    assert_eq!(rig.replies.len(), 2);
}

#[test]
fn a_new_connection_is_served_after_the_old_ones_started_requests() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    let old = rig.send(CLIENT, 1, write(0, 1, 7));
    rig.accept(OTHER);
    let new = rig.send(OTHER, 1, write_in(place(1, 1), 0, 1, 8));
    rig.release_disk();
    let order: Vec<u64> = rig.replies.iter().map(|(_, reply)| reply.sequence).collect();
    assert_eq!(order, [old, new]);
    assert_eq!(rig.reply_to(old), Some(written(1, 1)));
    assert_eq!(rig.reply_to(new), Some(written(1, 2)));
}

#[test]
fn a_new_connection_waits_while_the_old_ones_requests_are_at_the_disk() {
    let mut rig = Rig::serving();
    assert_eq!(rig.ask(1, write_in(place(1, 1), 0, 1, 3)), written(1, 1));
    rig.holds_disk = true;
    rig.send(CLIENT, 1, write(0, 1, 7));
    rig.accept(OTHER);
    let new = rig.send(OTHER, 1, Op::Extents { place: place(1, 1), parents: Vec::new() });
    assert_eq!(rig.reply_to(new), None);
    rig.close(CLIENT);
    assert_eq!(rig.reply_to(new), None, "what was started has not ended");
    rig.release_disk();
    assert!(rig.reply_to(new).is_some());
    assert!(rig.replies.is_empty(), "the old connection is gone");
}

#[test]
fn a_session_that_hops_between_connections_harms_nobody() {
    let mut rig = Rig::serving();
    rig.accept(OTHER);
    rig.holds_disk = true;
    for unit in 0..4 {
        let connection = if unit % 2 == 0 { CLIENT } else { OTHER };
        rig.send(connection, 1, write(unit, 1, 7));
        rig.turn(Vec::new());
    }
    rig.release_disk();
    assert!(rig.replies.iter().any(|(_, reply)| reply.outcome == written(1, 1)));
    assert_eq!(rig.read_bytes(1, read(3, 1)), [7]);
}

#[test]
fn what_waits_on_an_old_connection_is_dropped_when_its_session_moves() {
    let mut rig = Rig::serving();
    let mut request = rig.request(2, write(0, 1, 7));
    request.revision = MapRevision::new(11);
    rig.receive(CLIENT, Message::Request(request));
    rig.accept(OTHER);
    let read = rig.send(OTHER, 1, read(0, 1));
    assert!(rig.reply_to(read).is_some());
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[]));
    assert!(rig.replies.is_empty());
    let sequence = rig.send(OTHER, 2, write(0, 1, 8));
    assert_eq!(rig.reply_to(sequence), Some(written(2, 1)), "it was never executed");
}

#[test]
fn what_waits_on_a_connection_is_dropped_with_it() {
    let mut rig = Rig::serving();
    let mut request = rig.request(1, write(0, 1, 7));
    request.revision = MapRevision::new(11);
    rig.receive(CLIENT, Message::Request(request));
    rig.close(CLIENT);
    rig.monitor_says(map(10, 11, vec![], &[]));
    rig.accept(OTHER);
    let sequence = rig.send(OTHER, 1, write(0, 1, 8));
    assert_eq!(rig.reply_to(sequence), Some(written(1, 1)));
    assert!(rig.replies.is_empty());
}

#[test]
fn a_read_waits_behind_a_write_in_flight() {
    let mut rig = Rig::serving();
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    rig.holds_disk = true;
    let writing = rig.send(CLIENT, 1, write(0, 1, 8));
    let reading = rig.send(CLIENT, 1, read(0, 1));
    assert_eq!(rig.reply_to(reading), None);
    rig.release_disk();
    assert_eq!(rig.reply_to(writing), Some(written(1, 2)));
    let outcome = rig.reply_to(reading).unwrap();
    assert_eq!(bytes_of(outcome), [8]);
}

#[test]
fn compare_and_set_compares_the_version() {
    let mut rig = Rig::serving();
    let set = |byte, expected: Version| {
        let (checksums, data) = fill(1, byte);
        let (place, expected) = (place(1, 0), Some(expected));
        Op::Write { place, offset: 0, checksums, data, expected, lazy: false }
    };
    assert_eq!(rig.ask(1, set(1, Version::ZERO)), written(1, 1));
    let failed = Err(Refusal::CompareFailed { version: version(1, 1) });
    assert_eq!(rig.ask(1, set(2, Version::ZERO)), failed);
    assert_eq!(rig.ask(1, set(3, version(1, 1))), written(1, 2));
    assert_eq!(rig.read_bytes(1, read(0, 1)), [3]);
}

#[test]
fn zeroed_units_read_as_zeros() {
    let mut rig = Rig::serving();
    let zero = |first, units| {
        let (offset, length) = (first * UNIT, units * UNIT);
        Op::Zero { place: place(1, 0), offset, length, lazy: false }
    };
    assert_eq!(rig.ask(1, write(0, 4, 7)), written(1, 1));
    assert_eq!(rig.ask(1, zero(1, 2)), written(1, 2));
    assert_eq!(rig.read_bytes(1, read(0, 4)), [7, 0, 0, 7]);
    assert_eq!(rig.ask(1, zero(0, 4)), written(1, 3));
    assert!(rig.read_bytes(1, read(0, 4)).is_empty(), "all of it is zeros");
    assert_eq!(rig.ask(1, zero(0, 4)), written(1, 3), "nothing is left to zero");
    let extents = Op::Extents { place: place(1, 0), parents: Vec::new() };
    assert_eq!(rig.ask(1, extents), Ok(Outcome::Extents { bitmap: vec![0] }));
}

#[test]
fn a_chain_is_read_in_one_request() {
    let mut rig = Rig::serving();
    rig.ask(1, write_in(place(1, 0), 0, 4, 1)).unwrap();
    rig.ask(1, write_in(place(2, 0), 1, 1, 2)).unwrap();
    let op =
        Op::Read { place: place(2, 0), offset: 0, length: 3 * UNIT, parents: vec![ImageId::FIRST] };
    assert_eq!(rig.read_bytes(1, op), [1, 2, 1]);
}

#[test]
fn sync_is_answered() {
    let mut rig = Rig::serving();
    rig.ask(1, write(0, 1, 7)).unwrap();
    assert_eq!(rig.ask(1, Op::Sync), Ok(Outcome::Synced));
}

fn task(rig: &mut Rig, connection: ConnectionId, op: Op) -> Result<Outcome, Refusal> {
    let mut request = rig.request(1, op);
    request.session = SessionId::ZERO;
    let sequence = request.sequence;
    rig.receive(connection, Message::Request(request));
    rig.reply_to(sequence).expect("answered at once")
}

#[test]
fn a_monitor_deletes_an_image_in_portions() {
    let mut rig = Rig::serving();
    for stripe in 0..300 {
        rig.ask(1, write_in(place(1, stripe), 0, 1, 1)).unwrap();
    }
    rig.ask(1, write_in(place(2, 0), 0, 1, 2)).unwrap();
    let link = rig.link();
    let mut total = 0;
    loop {
        let op = Op::DeleteRange { image: ImageId::FIRST, from: StripeIndex::new(0) };
        match task(&mut rig, link, op) {
            Ok(Outcome::Deleted { count, complete }) => {
                total += count;
                if complete {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(total, 300);
    assert!(rig.read_bytes(1, read(0, 1)).is_empty());
    let op = Op::Read { place: place(2, 0), offset: 0, length: UNIT, parents: Vec::new() };
    assert_eq!(rig.read_bytes(1, op), [2]);
}

#[test]
fn only_monitors_run_tasks_and_only_clients_have_sessions() {
    let mut rig = Rig::serving();
    let delete = || Op::DeleteRange { image: ImageId::FIRST, from: StripeIndex::new(0) };
    let link = rig.link();
    let is_invalid = |outcome| matches!(outcome, Err(Refusal::Invalid { .. }));
    assert!(is_invalid(task(&mut rig, CLIENT, delete())));
    assert!(is_invalid(task(&mut rig, CLIENT, read(0, 1))));
    assert!(is_invalid(task(&mut rig, link, read(0, 1))));
    assert!(is_invalid(rig.ask(1, delete())));
    let sequence = rig.send(link, 1, read(0, 1));
    assert!(is_invalid(rig.reply_to(sequence).unwrap()));
}

#[test]
fn corrupted_data_is_refused() {
    let mut rig = Rig::serving();
    let (checksums, _) = fill(1, 1);
    let (_, data) = fill(1, 2);
    let op =
        Op::Write { place: place(1, 0), offset: 0, checksums, data, expected: None, lazy: false };
    assert_eq!(rig.ask(1, op), Err(Refusal::Corrupted));
}

#[test]
fn bad_requests_are_invalid_and_nothing_crashes() {
    let mut rig = Rig::serving();
    let mut bad = Vec::new();
    for offset in [1, UNIT, u32::MAX, u32::MAX - UNIT + 1] {
        for length in [0, 1, UNIT * 4, UNIT * 5, u32::MAX, u32::MAX - UNIT + 1] {
            bad.push(Op::Zero { place: place(1, 0), offset, length, lazy: false });
            bad.push(Op::Read { place: place(1, 0), offset, length, parents: Vec::new() });
        }
    }
    for op in bad {
        let outcome = rig.ask(1, op.clone());
        assert!(matches!(outcome, Err(Refusal::Invalid { .. })), "{op:?}: {outcome:?}");
    }
    let mut request = rig.request(1, read(0, 1));
    request.pg = PgId { pool: POOL, number: u32::MAX };
    let sequence = request.sequence;
    rig.receive(CLIENT, Message::Request(request));
    assert!(matches!(rig.reply_to(sequence), Some(Err(Refusal::Invalid { .. }))));
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
}

#[test]
fn a_message_that_no_peer_sends_closes_the_connection() {
    let mut rig = Rig::serving();
    rig.receive(CLIENT, Message::Control("{}".into()));
    assert_eq!(rig.closed, [CLIENT]);
    rig.accept(OTHER);
    let reply = Reply { session: SESSION, sequence: 1, outcome: Ok(Outcome::Synced) };
    rig.receive(OTHER, Message::Reply(reply));
    assert_eq!(rig.closed, [CLIENT, OTHER]);
}

#[test]
fn connections_of_another_cluster_and_of_this_osd_itself_are_closed() {
    let mut rig = Rig::serving();
    let strangers = [
        Peer { cluster: ClusterId::new(1), role: Role::Client },
        Peer { cluster: CLUSTER, role: Role::Osd(OSD, Incarnation::new(3)) },
    ];
    for (connection, peer) in [OTHER, THIRD].into_iter().zip(strangers) {
        rig.apply(Event::Net(NetEvent::Accepted { connection, peer }));
    }
    assert_eq!(rig.closed, [OTHER, THIRD]);
}

#[test]
fn more_requests_than_a_connection_may_have_are_busy() {
    let settings = Settings { connection_requests_max: 2, ..Settings::default() };
    let mut rig = Rig::serving_with(MemoryDisk::formatted(), settings);
    rig.holds_disk = true;
    for unit in 0..3 {
        rig.send(CLIENT, 1, write(unit, 1, 7));
    }
    assert_eq!(rig.replies.len(), 1);
    assert_eq!(rig.reply_to(3), Some(Err(Refusal::Busy)));
    rig.release_disk();
    assert_eq!(rig.replies.len(), 2);
    rig.replies.clear();
    assert_eq!(rig.ask(1, write(0, 1, 8)), written(1, 3));
}

#[test]
fn more_bytes_than_may_be_open_are_busy() {
    let settings = Settings { request_bytes_max: u64::from(2 * UNIT), ..Settings::default() };
    let mut rig = Rig::serving_with(MemoryDisk::formatted(), settings);
    rig.holds_disk = true;
    rig.send(CLIENT, 1, write(0, 2, 7));
    let refused = rig.send(CLIENT, 1, write(2, 1, 7));
    assert_eq!(rig.reply_to(refused), Some(Err(Refusal::Busy)));
    rig.release_disk();
    assert_eq!(rig.ask(1, write(0, 2, 8)), written(1, 2));
}

#[test]
fn io_goes_on_without_a_monitor_and_the_same_run_comes_back() {
    let mut rig = Rig::serving();
    rig.close(rig.link());
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    let first = rig.connects.last().unwrap().1.clone();
    rig.advance(Duration::from_millis(100));
    let second = rig.connects.last().unwrap().1.clone();
    assert_ne!(first, second, "another address is tried");
    rig.told.clear();
    rig.connect();
    let ToMonitor::OsdBoot { incarnation, .. } = &rig.told[0] else { panic!("{:?}", rig.told) };
    assert_eq!(*incarnation, Some(Incarnation::new(1)), "the same run goes on");
    rig.monitor_says(FromMonitor::OsdBooted { incarnation: Incarnation::new(1) });
    let ToMonitor::Subscribe { have } = &rig.told[1] else { panic!("{:?}", rig.told) };
    assert_eq!(have.get(&POOL), Some(&MapRevision::new(10)));
    assert_eq!(saw(&rig), [10], "told again");
    assert_eq!(rig.joined.len(), 1);
    assert_eq!(rig.ask(1, write(0, 1, 8)), written(1, 2), "the epoch has not ended");
}

#[test]
fn a_monitor_that_does_not_answer_is_given_up() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.connect();
    let silent = rig.link();
    rig.advance(Duration::from_secs(6));
    assert_eq!(rig.closed[0], silent);
    assert_ne!(rig.link(), silent);
}

#[test]
fn the_next_monitor_is_tried_a_second_after_the_first_was_silent() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    let (silent, address) = rig.connects.last().unwrap().clone();
    rig.advance(Duration::from_millis(1_100));
    assert_eq!(rig.closed, [silent]);
    assert_ne!(rig.connects.last().unwrap().1, address);
}

#[test]
fn a_monitor_that_falls_silent_is_left_for_another_and_the_run_goes_on() {
    let mut rig = Rig::serving();
    let (served_by, address) = rig.connects.last().unwrap().clone();
    rig.advance(Duration::from_secs(10));
    assert_eq!(rig.link(), served_by, "who is there stays, however little it has to say");
    rig.is_silent = true;
    rig.advance(Duration::from_millis(2_100));
    assert!(rig.closed.contains(&served_by));
    assert_ne!(rig.connects.last().unwrap().1, address);
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
}

#[test]
fn a_refused_osd_stops() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.connect();
    let error = Failure { code: "x".into(), message: "not you".into(), hint: "go".into() };
    rig.monitor_says(FromMonitor::OsdRefused { error });
    assert_eq!(rig.stopped, Some(StopReason::Refused("not you; go".into())));
    assert_eq!(rig.node.deadline(), None);
    // An OSD that the cluster has no record of was removed: it stops for that reason.
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.connect();
    let (message, hint) = ("this cluster has no osd.1".to_string(), String::new());
    let error = Failure { code: "not_found".into(), message: message.clone(), hint };
    rig.monitor_says(FromMonitor::OsdRefused { error });
    assert_eq!(rig.stopped, Some(StopReason::Removed(message)));
}

#[test]
fn another_osds_store_is_refused() {
    for wrong in 0..3 {
        let mut identity = identity();
        match wrong {
            0 => identity.cluster = ClusterId::new(1),
            1 => identity.osd = OsdId::new(2).unwrap(),
            _ => identity.store = "0".repeat(32),
        }
        let rig = Rig::with(MemoryDisk::formatted(), identity, Settings::default());
        assert!(matches!(rig.stopped, Some(StopReason::Store(_))), "{:?}", rig.stopped);
        assert!(rig.connects.is_empty());
    }
}

#[test]
fn a_disk_that_is_no_store_stops_the_osd() {
    let rig = Rig::over(MemoryDisk::default());
    assert!(matches!(rig.stopped, Some(StopReason::Store(_))), "{:?}", rig.stopped);
}

#[test]
fn a_map_gap_is_answered_with_a_subscription_for_the_whole() {
    let mut rig = Rig::serving();
    rig.told.clear();
    rig.monitor_says(map(12, 13, vec![], &[]));
    let ToMonitor::Subscribe { have } = &rig.told[0] else { panic!("{:?}", rig.told) };
    assert!(have.is_empty());
    rig.monitor_says(map(12, 14, vec![], &[]));
    let subscribes = |rig: &Rig| {
        let told = rig.told.iter();
        told.filter(|told| matches!(told, ToMonitor::Subscribe { .. })).count()
    };
    assert_eq!(subscribes(&rig), 1, "it was just asked");
    rig.advance(Duration::from_secs(2));
    assert_eq!(subscribes(&rig), 2);
}

#[test]
fn an_entry_of_another_run_is_not_served() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.join(2);
    rig.monitor_says(map(0, 10, vec![entry(1, 1)], &[]));
    rig.accept(CLIENT);
    assert!(matches!(rig.ask(1, read(0, 1)), Err(Refusal::Incomplete { .. })));
    rig.monitor_says(map(10, 11, vec![entry(2, 2)], &[]));
    assert_eq!(rig.ask(2, write(0, 1, 7)), written(2, 1));
}

#[test]
fn a_map_older_than_the_osds_notes_is_refused() {
    let mut rig = Rig::serving_over(MemoryDisk::formatted(), 5, 1);
    rig.ask(5, write(0, 1, 7)).unwrap();
    let mut rig = Rig::serving_over(rig.disk, 3, 2);
    let Err(Refusal::Incomplete { why }) = rig.ask(3, read(0, 1)) else {
        panic!("an older epoch is never served")
    };
    assert!(why.contains("epoch 3") && why.contains("epoch 5"), "{why}");
    assert!(why.contains("newest copy of its state file"), "{why}");
    rig.advance(Duration::from_secs(2));
    let report = last_report(&rig);
    assert_eq!(report.incomplete, [(PG, why)]);
    assert!(report.active.is_empty());
}

#[test]
fn a_revision_older_than_the_osds_note_is_refused_until_it_is_reached() {
    let mut rig = Rig::serving();
    rig.advance(Duration::from_secs(2));
    let mut rig = Rig::over(rig.disk);
    rig.join(2);
    rig.monitor_says(map(0, 9, vec![entry(2, 2)], &[]));
    rig.accept(CLIENT);
    let Err(Refusal::Incomplete { why }) = rig.ask(2, read(0, 1)) else {
        panic!("an older map is never served")
    };
    assert!(why.contains("revision 9") && why.contains("10"), "{why}");
    rig.monitor_says(map(9, 10, vec![], &[]));
    assert_eq!(rig.ask(2, write(0, 1, 7)), written(2, 1));
}

#[test]
fn an_older_map_does_not_erase_the_note_that_proves_it_older() {
    let mut rig = Rig::serving();
    rig.advance(Duration::from_secs(2));
    for run in 2..5 {
        rig = Rig::over(rig.disk);
        rig.join(run);
        rig.monitor_says(map(0, 9, vec![entry(run as u32, run)], &[]));
        rig.advance(Duration::from_secs(2));
        let report = last_report(&rig);
        let [(_, why)] = &report.incomplete[..] else { panic!("run {run}: {report:?}") };
        assert!(why.contains("revision 9") && why.contains("10"), "{why}");
    }
    rig.monitor_says(map(9, 12, vec![], &[]));
    rig.advance(Duration::from_secs(2));
    let note = rig.node.store.note(blockstore::NoteKey::Cluster).unwrap();
    let note = ClusterNote::decode(note).unwrap();
    assert_eq!(note.pools_by_id()[&POOL].revision, MapRevision::new(12));
}

#[test]
fn an_osd_reports_what_it_serves() {
    let mut rig = Rig::serving();
    rig.ask(1, write(0, 4, 7)).unwrap();
    rig.told.clear();
    rig.advance(Duration::from_millis(2_500));
    let report = last_report(&rig);
    assert_eq!(report.active, [PG]);
    assert_eq!(report.commit, "fsync");
    assert!(report.size_bytes > 0);
    let count = rig.told.iter().filter(|told| matches!(told, ToMonitor::OsdReport(_))).count();
    assert!((2..=3).contains(&count), "about once a second: {count}");
}

#[test]
fn a_shutdown_finishes_what_was_started() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    let started = rig.send(CLIENT, 1, write(0, 1, 7));
    let behind_it = rig.send(CLIENT, 1, read(0, 1));
    let mut waiting = rig.request(1, write(0, 1, 8));
    waiting.revision = MapRevision::new(99);
    let waits = waiting.sequence;
    rig.receive(CLIENT, Message::Request(waiting));
    rig.apply(Event::Shutdown);
    assert_eq!(rig.reply_to(waits), Some(Err(Refusal::Busy)));
    let late = rig.send(CLIENT, 1, read(0, 1));
    assert_eq!(rig.reply_to(late), Some(Err(Refusal::Busy)));
    assert_eq!(rig.stopped, None);
    rig.release_disk();
    assert_eq!(rig.reply_to(started), Some(written(1, 1)));
    assert_eq!(bytes_of(rig.reply_to(behind_it).expect("it was started")), [7]);
    assert_eq!(rig.stopped, Some(StopReason::Shutdown));
    let mut rig = Rig::serving_over(rig.disk, 2, 2);
    assert_eq!(rig.read_bytes(2, read(0, 1)), [7]);
}

#[test]
fn an_epoch_that_changes_under_way_refuses_what_is_open() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    let started = rig.send(CLIENT, 1, write(0, 1, 7));
    let waits = rig.send(CLIENT, 1, read(0, 1));
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[]));
    assert_eq!(rig.reply_to(waits), Some(Err(Refusal::Stale(Some(entry(2, 1))))));
    let next = rig.send(CLIENT, 2, write(0, 1, 8));
    assert_eq!(rig.reply_to(next), None, "the new epoch is not journaled yet");
    let stale = Some(Err(Refusal::Stale(Some(entry(2, 1)))));
    assert_eq!(rig.reply_to(started), stale, "it may have happened: its client sends it again");
    rig.release_disk();
    assert_eq!(rig.reply_to(next), Some(written(2, 2)));
    assert_eq!(rig.read_bytes(2, read(0, 1)), [8]);
}

#[test]
fn a_session_is_remembered_for_a_while_after_its_last_request() {
    let mut rig = Rig::serving();
    let old = rig.request(1, write(0, 1, 7));
    rig.ask(1, write(0, 1, 8)).unwrap();
    rig.close(CLIENT);
    rig.advance(Duration::from_secs(30));
    rig.accept(OTHER);
    rig.receive(OTHER, Message::Request(old));
    assert!(rig.replies.is_empty());
    rig.close(OTHER);
    rig.advance(Duration::from_secs(90));
    rig.accept(THIRD);
    let sequence = rig.send(THIRD, 1, read(0, 1));
    assert_eq!(bytes_of(rig.reply_to(sequence).unwrap()), [8]);
}

#[test]
fn a_connection_from_before_a_session_was_forgotten_cannot_undo_what_came_after_it() {
    let mut rig = Rig::serving();
    let delayed = rig.request(1, write(0, 1, 7));
    rig.accept(OTHER);
    rig.send(OTHER, 1, write(0, 1, 8));
    rig.close(OTHER);
    rig.advance(Duration::from_secs(120));
    rig.receive(CLIENT, Message::Request(delayed));
    assert_eq!(rig.closed, [CLIENT], "its client connects again if it is there");
    rig.accept(THIRD);
    let sequence = rig.send(THIRD, 1, read(0, 1));
    assert_eq!(bytes_of(rig.reply_to(sequence).unwrap()), [8]);
}

#[test]
fn a_session_is_remembered_while_its_connection_is_open_and_new_ones_are_taken_over_old_ones() {
    let mut rig = Rig::serving();
    rig.accept(OTHER);
    rig.ask(1, write(0, 1, 7)).unwrap();
    rig.send(OTHER, 1, write_in(place(1, 1), 0, 1, 8));
    let mut gone = rig.request(1, write(1, 1, 9));
    gone.session = SessionId::new(SESSION.get() - 1);
    rig.accept(THIRD);
    rig.receive(THIRD, Message::Request(gone));
    rig.close(THIRD);
    rig.advance(Duration::from_secs(120));
    let sequence = rig.send(OTHER, 1, read(0, 1));
    assert_eq!(bytes_of(rig.reply_to(sequence).unwrap()), [7], "idle for long, but connected");
    let mut new = rig.request(1, read(0, 1));
    new.session = SessionId::new(SESSION.get() + 1);
    let sequence = new.sequence;
    rig.receive(OTHER, Message::Request(new));
    assert_eq!(bytes_of(rig.reply_to(sequence).unwrap()), [7], "it was never known");
    assert!(rig.closed.is_empty());
}

#[test]
fn sessions_left_behind_on_an_open_connection_do_not_fill_the_table() {
    let settings = Settings { sessions_max: 8, ..Settings::default() };
    let mut rig = Rig::serving_with(MemoryDisk::formatted(), settings);
    let ask = |rig: &mut Rig, session: u64, op: Op| {
        let mut request = rig.request(1, op);
        request.session = SessionId::new(SESSION.get() + session);
        let sequence = request.sequence;
        rig.receive(CLIENT, Message::Request(request.clone()));
        (request, rig.reply_to(sequence))
    };
    let (late, reply) = ask(&mut rig, 0, write(0, 1, 7));
    reply.unwrap().unwrap();
    for session in 1..8 {
        ask(&mut rig, session, write(0, 1, 8)).1.unwrap().unwrap();
    }
    assert_eq!(ask(&mut rig, 8, read(0, 1)).1, Some(Err(Refusal::Busy)), "the table is full");
    rig.advance(Duration::from_secs(120));
    assert_eq!(bytes_of(ask(&mut rig, 8, read(0, 1)).1.unwrap()), [8]);
    rig.receive(CLIENT, Message::Request(late));
    assert_eq!(rig.closed, [CLIENT], "what was forgotten does nothing over an old connection");
    rig.accept(OTHER);
    let sequence = rig.send(OTHER, 1, read(0, 1));
    assert_eq!(bytes_of(rig.reply_to(sequence).unwrap()), [8]);
}

/// Writes four units, corrupts one page of the journal, and restarts the node. Returns the result of reading
/// the four units.
fn read_after_rot(page: u64) -> (Rig, Result<Outcome, Refusal>) {
    let mut rig = Rig::serving();
    for unit in 0..4 {
        rig.ask(1, write(unit, 1, 7)).unwrap();
    }
    // The store becomes idle: everything is recorded as durable.
    rig.advance(Duration::from_secs(3));
    rig.disk.rot(JOURNAL_OFFSET / 4096 + page);
    let mut rig = Rig::serving_over(rig.disk, 2, 2);
    assert_eq!(rig.stopped, None);
    let outcome = rig.ask(2, read(0, 4));
    (rig, outcome)
}

/// Offset of the journal in a store, in bytes.
const JOURNAL_OFFSET: u64 = base::MIB;

/// The operator gives up what the PG lost: the next entry says so.
fn give_up(rig: &mut Rig) {
    let entry = rig.node.cluster.pg(PG).expect("it has the map");
    let epoch = entry.epoch.next();
    let entry = PgEntry { epoch, given_up: epoch, ..entry.clone() };
    next_entry(rig, entry);
}

fn next_entry(rig: &mut Rig, entry: PgEntry) {
    let known = rig.node.cluster.pool(POOL).expect("it has the map").revision;
    let entry = PgEntry { revision: known.next(), ..entry };
    rig.monitor_says(map(known.get(), known.next().get(), vec![entry], &[]));
}

#[test]
fn a_late_give_up_accepts_no_later_loss() {
    let (mut rig, outcome) = read_after_rot(4);
    assert!(matches!(outcome, Err(Refusal::Damaged { .. })));
    rig.advance(Duration::from_secs(1));
    assert!(last_report(&rig).suspect);
    let entry = rig.node.cluster.pg(PG).expect("it has the map").clone();
    // The loss of an epoch before, and that of a run before.
    next_entry(&mut rig, PgEntry { epoch: entry.epoch.next(), given_up: entry.epoch, ..entry });
    rig.advance(Duration::from_secs(2));
    assert!(last_report(&rig).suspect && last_report(&rig).active.is_empty());
    let entry = rig.node.cluster.pg(PG).expect("it has the map").clone();
    let run = rig.node.cluster.incarnation().expect("it has joined");
    let before = Member { osd: OSD, incarnation: Incarnation::new(run.get() - 1) };
    let (epoch, positions) = (entry.epoch.next(), vec![Some(before)]);
    next_entry(&mut rig, PgEntry { epoch, positions, given_up: epoch, ..entry.clone() });
    rig.advance(Duration::from_secs(2));
    assert!(last_report(&rig).suspect && last_report(&rig).active.is_empty());
    next_entry(&mut rig, PgEntry { epoch: epoch.next(), ..entry });
    rig.advance(Duration::from_secs(2));
    assert!(last_report(&rig).suspect && last_report(&rig).active.is_empty());
    give_up(&mut rig);
    rig.advance(Duration::from_millis(1));
    assert_eq!(last_report(&rig).active, [PG], "reported at once");
}

#[test]
fn bit_rot_ends_in_an_error_or_a_suspect_pg_and_never_in_wrong_data() {
    let (mut damaged, mut incomplete) = (0, 0);
    for page in 0..14 {
        match read_after_rot(page) {
            (_, Ok(read)) => assert_eq!(bytes_of(Ok(read)), [7; 4]),
            (mut rig, Err(Refusal::Damaged { units })) => {
                rig.advance(Duration::from_secs(1));
                if last_report(&rig).suspect {
                    incomplete += 1;
                    assert_eq!(units, [0b1111], "all of the block");
                    let (pg, why) = last_report(&rig).incomplete[0].clone();
                    assert!(pg == PG && why.contains("give-up 1.0"), "{why}");
                    give_up(&mut rig);
                    let left = rig.read_bytes(3, read(0, 4));
                    assert!(left.iter().all(|byte| [0, 7].contains(byte)), "what is left");
                    rig.advance(Duration::from_secs(1));
                    assert!(!last_report(&rig).suspect);
                    assert_eq!(last_report(&rig).active, [PG]);
                    continue;
                }
                damaged += 1;
                let unit = units[0].trailing_zeros();
                assert_eq!(units, [1 << unit]);
                let found = last_report(&rig).damaged_units;
                assert!(found > 0);
                assert_eq!(last_report(&rig).media.units, found);
                assert!(rig.lines.iter().any(|event| event.what == "stored data is damaged"));
                rig.ask(2, write(unit, 1, 7)).unwrap();
                assert_eq!(rig.read_bytes(2, read(0, 4)), [7; 4], "rewritten");
                rig.advance(Duration::from_secs(1));
                let report = last_report(&rig);
                assert_eq!((report.damaged_units, report.media.units), (0, found));
            }
            (_, other) => panic!("page {page}: {other:?}"),
        }
    }
    assert!(damaged > 0 && incomplete > 0);
}

#[test]
fn what_was_given_up_is_so_in_the_next_entries_too() {
    let (mut rig, _) = read_after_rot(4);
    let entry = rig.node.cluster.pg(PG).expect("it has the map").clone();
    let given_up = entry.epoch.next();
    next_entry(&mut rig, PgEntry { epoch: given_up.next(), given_up, ..entry });
    rig.advance(Duration::from_millis(1));
    assert_eq!(last_report(&rig).active, [PG]);
}

#[test]
fn what_was_given_up_stays_given_up() {
    let (mut rig, outcome) = read_after_rot(4);
    assert!(matches!(outcome, Err(Refusal::Damaged { .. })));
    give_up(&mut rig);
    let left = rig.read_bytes(3, read(0, 4));
    let mut rig = Rig::serving_over(rig.disk, 4, 4);
    assert_eq!(rig.read_bytes(4, read(0, 4)), left);
}

#[test]
fn the_last_copy_whose_note_cannot_be_read_is_served_once_it_is_given_up() {
    let mut rig = Rig::serving();
    rig.ask(1, write(0, 4, 7)).unwrap();
    let mut disk = rig.disk;
    disk.put_note(blockstore::NoteKey::Pg(PG), b"{");
    let mut rig = Rig::serving_over(disk, 2, 2);
    assert!(matches!(rig.ask(2, read(0, 4)), Err(Refusal::Damaged { .. })));
    rig.advance(Duration::from_secs(1));
    let (_, why) = last_report(&rig).incomplete[0].clone();
    assert!(why.contains("note of 1.0") && why.contains("give-up 1.0"), "{why}");
    give_up(&mut rig);
    assert_eq!(rig.read_bytes(3, read(0, 4)), [7; 4]);
    rig.advance(Duration::from_secs(1));
    assert!(!last_report(&rig).suspect);
    let mut rig = Rig::serving_over(rig.disk, 4, 4);
    assert_eq!(rig.read_bytes(4, read(0, 4)), [7; 4]);
}

#[test]
fn writes_wait_while_the_journal_is_full() {
    let settings = Settings { connection_requests_max: 4096, ..Settings::default() };
    let mut rig = Rig::serving_with(MemoryDisk::formatted_large(), settings);
    rig.holds_disk = true;
    let count = 2_000;
    for stripe in 0..count {
        rig.send(CLIENT, 1, write_in(place(1, stripe), 0, 3, 7));
    }
    assert!(rig.node.store.is_congested());
    rig.release_disk();
    assert_eq!(rig.replies.len(), count as usize);
    assert!(rig.replies.iter().all(|(_, reply)| reply.outcome.is_ok()));
}

#[test]
fn zeroes_and_deletions_wait_while_the_journal_is_full() {
    let settings = Settings { connection_requests_max: 4096, ..Settings::default() };
    let mut rig = Rig::serving_with(MemoryDisk::formatted_large(), settings);
    for stripe in 0..2 {
        rig.ask(1, write_in(place(1, stripe), 0, 1, 7)).unwrap();
    }
    rig.replies.clear();
    rig.holds_disk = true;
    let mut stripe = 2;
    while !rig.node.store.is_congested() {
        rig.send(CLIENT, 1, write_in(place(1, stripe), 0, 3, 7));
        stripe += 1;
        assert!(stripe < 2_000, "the journal has its end");
    }
    let waits = |rig: &Rig| rig.node.requests.deadline(Duration::ZERO).is_some();
    assert!(!waits(&rig), "nothing has come since");
    let zero =
        rig.send(CLIENT, 1, Op::Zero { place: place(1, 0), offset: 0, length: UNIT, lazy: false });
    assert!(waits(&rig));
    let link = rig.link();
    let op = Op::DeleteRange { image: ImageId::FIRST, from: StripeIndex::new(1) };
    let request = Request { session: SessionId::ZERO, ..rig.request(1, op) };
    let deletion = request.sequence;
    rig.receive(link, Message::Request(request));
    rig.release_disk();
    assert!(!waits(&rig));
    assert!(rig.reply_to(zero).unwrap().is_ok());
    assert!(matches!(rig.reply_to(deletion), Some(Ok(Outcome::Deleted { .. }))));
}

#[test]
fn records_of_deleted_blocks_make_room_again_in_a_full_osd() {
    let mut rig = Rig::serving();
    let mut stripe = 0;
    // The loop takes less than a second, so no floor is raised, and every deleted block leaves a tombstone.
    while rig.ask(1, write_in(place(1, stripe), 0, 1, 7)).is_ok() {
        let zero = Op::Zero { place: place(1, stripe), offset: 0, length: UNIT, lazy: false };
        assert!(rig.ask(1, zero).is_ok(), "deletes always work");
        stripe += 1;
        assert!(stripe < 100_000, "the area for records has its end");
    }
    assert_eq!(rig.ask(1, write_in(place(1, stripe), 0, 1, 7)), Err(Refusal::Full));
    for _ in 0..3 {
        rig.advance(Duration::from_secs(1));
    }
    assert!(rig.ask(1, write_in(place(1, stripe), 0, 1, 7)).is_ok());
}

#[test]
fn a_full_osd_refuses_writes_and_takes_them_again_after_a_deletion() {
    let mut rig = Rig::serving();
    let mut stripe = 0;
    while rig.ask(1, write_in(place(1, stripe), 0, 4, 7)).is_ok() {
        stripe += 1;
        assert!(stripe < 10_000, "the store has 128 MiB");
    }
    assert_eq!(rig.ask(1, write_in(place(1, stripe), 0, 4, 7)), Err(Refusal::Full));
    rig.advance(Duration::from_secs(1));
    assert!(last_report(&rig).full);
    assert!(rig.lines.iter().any(|event| event.what.starts_with("the store is full")));
    let read = Op::Read { place: place(1, 3), offset: 0, length: UNIT, parents: Vec::new() };
    assert_eq!(rig.read_bytes(1, read), [7]);
    let zero =
        |stripe| Op::Zero { place: place(1, stripe), offset: 0, length: 4 * UNIT, lazy: false };
    for stripe in 0..200 {
        assert!(rig.ask(1, zero(stripe)).is_ok(), "deletes always work");
    }
    rig.advance(Duration::from_secs(1));
    assert!(!last_report(&rig).full);
    assert!(rig.lines.iter().any(|event| event.what == "the store has space again"));
    assert!(rig.ask(1, write_in(place(1, stripe), 0, 4, 8)).is_ok());
}

#[test]
fn the_bytes_of_the_cluster_note_are_frozen() {
    let golden = include_bytes!("../testdata/cluster_note.json");
    let mut map = ClusterMap::default();
    let delta = pool_delta(0, 9, vec![entry(2, 3)], &[4, 5]);
    let delta = MapDelta { pools: vec![delta], ..MapDelta::default() };
    map.apply(delta).unwrap();
    let note = ClusterNote::of(CLUSTER, &map, LEASE_DEFAULT);
    let bytes = note.encode();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(golden));
    // Before pools had schemes, the note contained their number of copies.
    let earlier = include_bytes!("../testdata/cluster_note_replicas.json");
    assert_eq!(ClusterNote::decode(earlier), Ok(note.clone()));
    assert_eq!(ClusterNote::decode(golden), Ok(note));
}

#[test]
fn an_osd_reports_as_often_as_the_cluster_wants() {
    let mut rig = Rig::serving();
    let reports =
        |rig: &Rig| rig.told.iter().filter(|told| matches!(told, ToMonitor::OsdReport(_))).count();
    let before = reports(&rig);
    rig.advance(Duration::from_secs(10));
    assert!((reports(&rig) - before).abs_diff(10) <= 1);
    let changed = [("osd_report_ms".to_string(), 100)].into();
    rig.monitor_says(FromMonitor::Settings { changed });
    let before = reports(&rig);
    rig.advance(Duration::from_secs(10));
    assert!((reports(&rig) - before).abs_diff(100) <= 1);
}
