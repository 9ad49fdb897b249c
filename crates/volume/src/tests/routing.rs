//! Tests of the map, sessions and connections.

use base::{Duration, Epoch, Incarnation, MapRevision, SessionId};
use cluster::map::MapDelta;
use cluster::message::{Failure, FromMonitor, ToMonitor};
use format::door::{CloseReason, NetEvent};
use format::wire::Refusal;

use super::world::{
    BLOCK, REIGN, SESSION, UNIT, VOLUME, World, entry, image, osd, osd_info, pg, pool_delta,
};
use crate::{Answer, Event, Operation, VolumeError};

const CLOSED: ToMonitor = ToMonitor::CloseSession { session: SESSION, unanswered: false };

fn map(pools: Vec<cluster::map::PoolDelta>) -> FromMonitor {
    FromMonitor::Map(MapDelta { pools, ..MapDelta::default() })
}

#[test]
fn a_session_is_opened_at_whichever_monitor_answers() {
    let mut world = World::new(None);
    world.open(false);
    assert_eq!(world.refuse_connection(CloseReason::Refused), "tcp:mon1:1");
    assert_eq!(world.wait(), Duration::from_millis(10));
    assert_eq!(world.connecting[0].1, "tcp:mon2:1");
    world.connect();
    assert!(matches!(world.told[0], ToMonitor::Subscribe { .. }));
    world.accept_session();
    let (_, result) = &world.opened[0];
    assert_eq!(result.as_ref().map(|attached| attached.session), Ok(SESSION));
}

#[test]
fn a_client_may_be_known_before_it_attaches() {
    let mut world = World::new(None);
    world.apply(Event::Connect);
    world.apply(Event::Connect);
    assert_eq!(world.connecting.len(), 1);
    world.connect();
    let is_introduction = |told: &ToMonitor| matches!(told, ToMonitor::Introduce { pid: 7, .. });
    assert!(world.told.iter().any(is_introduction));
    world.open(false);
    world.accept_session();
    assert_eq!(world.opened.len(), 1);
}

#[test]
fn a_monitor_is_told_that_the_client_answers_it_and_gets_an_answer() {
    let mut world = World::new(None);
    world.open(false);
    world.connect();
    let answers =
        |told: &ToMonitor| matches!(told, ToMonitor::Introduce { answers_probes: true, .. });
    assert!(world.told.iter().any(answers));
    world.accept_session();
    world.say(FromMonitor::Probe { nonce: 77 });
    assert_eq!(world.told.back(), Some(&ToMonitor::Alive { nonce: 77 }));
}

#[test]
fn delays_between_monitors_double_up_to_a_second() {
    let mut world = World::new(None);
    world.open(false);
    let mut delays = Vec::new();
    for _ in 0..9 {
        world.refuse_connection(CloseReason::Refused);
        delays.push(world.wait().as_millis());
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
}

#[test]
fn requests_wait_for_the_map() {
    let mut world = World::new(None);
    world.open(false);
    world.connect();
    world.accept_session();
    let id = world.write(0, &vec![1; UNIT]);
    assert!(world.connecting.is_empty());
    world.give_map();
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_gap_in_the_map_is_filled_by_asking_again() {
    let mut world = World::attached();
    world.told.clear();
    world.say(map(vec![pool_delta(5, 6, vec![entry(0, 9, 2)])]));
    let Some(ToMonitor::Subscribe { have }) = world.told.pop_front() else { panic!("asked") };
    assert!(have.is_empty());
    world.say(map(vec![pool_delta(6, 7, vec![entry(0, 10, 2)])]));
    assert!(world.told.is_empty(), "asked once");
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    assert_eq!(world.asked[0].1.revision, MapRevision::new(1));
    world.finish(id).expect("written");
}

#[test]
fn a_refused_session_is_the_answer_to_the_attach() {
    let mut world = World::new(None);
    world.open(false);
    world.connect();
    let error = Failure {
        code: "not_found".to_string(),
        message: "no volume disk".to_string(),
        hint: String::new(),
    };
    world.say(FromMonitor::SessionRefused { request: 1, error: error.clone() });
    assert_eq!(world.opened, [(VOLUME, Err(error))]);
}

#[test]
fn without_trust_an_attach_ends_once_every_monitor_refused() {
    let mut world = World::new(None);
    world.open(false);
    world.refuse_connection(CloseReason::Untrusted("another key".to_string()));
    assert!(world.opened.is_empty());
    world.wait();
    world.refuse_connection(CloseReason::Untrusted("another key".to_string()));
    let (_, result) = &world.opened[0];
    assert_eq!(result.as_ref().expect_err("refused").code, "untrusted");
}

#[test]
fn an_attach_times_out() {
    let mut world = World::new(Some(Duration::from_secs(5)));
    world.open(false);
    while world.opened.is_empty() {
        if !world.connecting.is_empty() {
            world.refuse_connection(CloseReason::Refused);
        }
        world.wait();
    }
    assert_eq!(world.now.as_nanos(), 5_000_000_000);
    let (_, result) = &world.opened[0];
    assert_eq!(result.as_ref().expect_err("late").code, "timed_out");
}

#[test]
fn sessions_are_resumed_on_a_new_connection_to_a_monitor() {
    let mut world = World::attached();
    world.told.clear();
    world.break_monitor();
    world.wait();
    world.connect();
    let turn = world.monitor.expect("connected").get();
    let resumed = ToMonitor::ResumeSession { session: SESSION, reign: REIGN, turn };
    assert!(world.told.contains(&resumed));
}

#[test]
fn io_goes_on_without_a_monitor() {
    let mut world = World::attached();
    world.break_monitor();
    world.connecting.clear();
    let id = world.write(0, &vec![1; UNIT]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_session_closed_without_a_monitor_is_closed_at_the_next() {
    let mut world = World::attached();
    world.break_monitor();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME]);
    world.told.clear();
    world.wait();
    world.connect();
    assert!(world.told.contains(&CLOSED));
}

#[test]
fn a_detach_is_complete_when_a_monitor_has_recorded_it() {
    for answer in [
        FromMonitor::SessionClosed { session: SESSION },
        FromMonitor::SessionEnded { session: SESSION },
    ] {
        let mut world = World::attached();
        assert!(world.core.is_parted());
        world.apply(Event::Close { volume: VOLUME, patient: false });
        assert_eq!(world.detached, [VOLUME]);
        assert!(!world.core.is_parted());
        world.say(FromMonitor::SessionClosed { session: SessionId::new(99) });
        assert!(!world.core.is_parted(), "that was another session");
        world.say(answer);
        assert!(world.core.is_parted());
    }
}

#[test]
fn a_session_that_opens_after_its_volume_was_closed_is_given_back() {
    let mut world = World::new(None);
    world.open(false);
    world.connect();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert!(matches!(world.opened[..], [(VOLUME, Err(_))]));
    assert_eq!(world.detached, [VOLUME]);
    world.accept_session();
    assert_eq!(world.told.back(), Some(&CLOSED));
}

#[test]
fn when_a_session_ends_all_its_requests_do() {
    let mut world = World::attached();
    let sent = world.write(0, &vec![1; UNIT]);
    let held = world.write(0, &vec![2; UNIT]);
    let delayed = world.read(0, 1);
    world.connect();
    world.asked.rotate_right(1);
    world.refuse(Refusal::Busy);
    let late = world.next();
    world.say(FromMonitor::SessionEnded { session: SESSION });
    for id in [sent, held, delayed] {
        assert_eq!(world.result(id), Err(VolumeError::Ended));
    }
    let outcome = world.execute(&late.1.op);
    world.reply(&late, outcome);
    let id = world.read(0, 1);
    assert_eq!(world.result(id), Err(VolumeError::Ended));
    assert_eq!(world.deadline(), None);
    world.told.clear();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME]);
    assert!(world.told.is_empty(), "there is no session to close");
}

#[test]
fn a_fence_in_the_map_ends_the_session() {
    let mut world = World::attached();
    let mut delta = pool_delta(1, 2, Vec::new());
    delta.fences = vec![SessionId::new(99)];
    world.say(map(vec![delta.clone()]));
    let id = world.write(0, &vec![1; UNIT]);
    world.finish(id).expect("another session was fenced");
    delta.since = MapRevision::new(2);
    delta.revision = MapRevision::new(3);
    delta.fences = vec![SESSION];
    world.say(map(vec![delta]));
    let id = world.read(0, 1);
    assert_eq!(world.result(id), Err(VolumeError::Ended));
}

#[test]
fn a_refusers_entry_is_taken_only_if_its_epoch_is_higher() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let number = world.asked[0].1.pg.number;
    let other = 3 - world.asked_osd().get();
    world.refuse(Refusal::Stale(Some(entry(number, 1, other))));
    assert!(world.asked.is_empty(), "not newer: it waits");
    world.wait();
    world.refuse(Refusal::Stale(Some(entry(number, 2, other))));
    world.connect();
    assert_eq!(world.asked_osd(), osd(other));
    let request = &world.asked[0].1;
    assert_eq!(request.epoch, Epoch::new(2));
    assert_eq!(request.revision, MapRevision::new(1), "it raises no revision");
    world.finish(id).expect("written");
}

#[test]
fn an_entry_of_another_pg_is_ignored() {
    let mut world = World::attached();
    world.write(0, &vec![1; UNIT]);
    world.connect();
    let number = (world.asked[0].1.pg.number + 1) % 4;
    world.refuse(Refusal::Stale(Some(entry(number, 9, 1))));
    assert_eq!(world.core.routes.epoch(pg(number)), Some(Epoch::new(1)));
}

#[test]
fn a_stale_part_goes_out_at_once_when_the_map_moves_on() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let number = world.asked[0].1.pg.number;
    world.refuse(Refusal::Stale(None));
    assert!(world.asked.is_empty());
    let primary = entry(number, 1, 1).primary_osd().map_or(0, |osd| osd.get());
    world.say(map(vec![pool_delta(1, 2, vec![entry(number, 2, primary)])]));
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_part_leaves_an_osd_that_its_pg_has_left() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let old = world.asked.pop_front().expect("sent");
    let number = old.1.pg.number;
    let other = 3 - world.osds[&old.0].get();
    world.say(map(vec![pool_delta(1, 2, vec![entry(number, 2, other)])]));
    let outcome = world.execute(&old.1.op);
    world.reply(&old, outcome);
    assert!(!world.done.contains_key(&id), "the reply comes too late to count");
    world.connect();
    assert_eq!(world.asked_osd(), osd(other));
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_pg_without_primary_waits_for_the_map() {
    let mut world = World::attached();
    let pgs = (0..4).map(|number| entry(number, 2, 0)).collect();
    world.say(map(vec![pool_delta(1, 2, pgs)]));
    let id = world.write(0, &vec![1; UNIT]);
    assert!(world.connecting.is_empty() && world.asked.is_empty());
    let pgs = (0..4).map(|number| entry(number, 3, 2)).collect();
    world.say(map(vec![pool_delta(2, 3, pgs)]));
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn an_osd_that_moved_is_reached_at_once() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    for _ in 0..8 {
        world.refuse_connection(CloseReason::Refused);
        world.wait();
    }
    let address = world.refuse_connection(CloseReason::Refused);
    let number = if address.starts_with("tcp:osd1") { 1 } else { 2 };
    world
        .say(FromMonitor::Map(MapDelta { osds: vec![osd_info(number, 2)], ..MapDelta::default() }));
    assert_eq!(world.connecting[0].1, format!("tcp:osd{number}:2"));
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn osds_in_two_networks_are_reached_over_both() {
    let mut world = World::attached();
    let two = |number: u32| {
        let mut info = osd_info(number, 2);
        info.addresses = vec![format!("tcp:osd{number}:2"), format!("tcp:osd{number}:2:second")];
        info
    };
    let osds = vec![two(1), two(2)];
    world.say(FromMonitor::Map(MapDelta { osds, ..MapDelta::default() }));
    let ids: Vec<_> = (0..16).map(|stripe| world.write(stripe * BLOCK, &vec![1; UNIT])).collect();
    let mut tried: Vec<String> = world.connecting.iter().map(|(_, at)| at.clone()).collect();
    tried.sort();
    assert_eq!(tried, ["tcp:osd1:2:second", "tcp:osd2:2"]);
    for id in ids {
        assert_eq!(world.finish(id), Ok(Answer::Done));
    }
}

#[test]
fn a_run_of_an_osd_that_is_over_is_left() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let (connection, _) = world.asked[0];
    let number = world.osds[&connection].get();
    let info = osd_info(number, 2);
    assert!(info.incarnation > Incarnation::new(1));
    world.say(FromMonitor::Map(MapDelta { osds: vec![info], ..MapDelta::default() }));
    assert_eq!(world.closed, [connection]);
    world.wait();
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_connection_to_the_wrong_osd_is_closed() {
    let mut world = World::attached();
    world.write(0, &vec![1; UNIT]);
    let (connection, address) = world.connecting.pop_front().expect("asked");
    let wrong = if address.starts_with("tcp:osd1") { 2 } else { 1 };
    let role = format::door::Role::Osd(osd(wrong), Incarnation::new(1));
    let peer = format::door::Peer { cluster: base::ClusterId::new(1), role };
    world.net(NetEvent::Connected { connection, peer, version: 2 });
    assert_eq!(world.closed, [connection]);
    assert!(world.asked.is_empty());
}

#[test]
fn incoming_connections_are_closed() {
    let mut world = World::attached();
    let connection = base::ConnectionId::new(1);
    let role = format::door::Role::Client;
    let peer = format::door::Peer { cluster: base::ClusterId::new(1), role };
    world.net(NetEvent::Accepted { connection, peer });
    assert_eq!(world.closed, [connection]);
}

#[test]
fn a_monitor_that_breaks_the_protocol_is_left() {
    let mut world = World::attached();
    let connection = world.monitor.expect("connected");
    let message = format::wire::Message::Control("{}".to_string());
    world.net(NetEvent::Received { connection, message });
    assert_eq!(world.closed, [connection]);
    world.wait();
    assert_eq!(world.connecting.len(), 1);
    assert_eq!(image().name, "disk");
    let id = world.ask(Operation::Read { offset: 0, length: 1 });
    world.connecting.retain(|(_, address)| !address.starts_with("tcp:mon"));
    assert!(world.finish(id).is_ok());
}

#[test]
fn a_monitor_that_falls_silent_is_left_for_another() {
    let mut world = World::attached();
    let first = world.monitor.expect("connected");
    // A monitor that answers pings is kept, even if it sends nothing else.
    for _ in 0..20 {
        world.now = world.now + Duration::from_millis(500);
        world.apply(Event::Tick);
    }
    assert!(world.connecting.is_empty());
    world.is_silent = true;
    assert_eq!(world.wait(), Duration::from_millis(1_500));
    assert_eq!(world.closed, [first]);
    assert_eq!(world.wait(), Duration::from_millis(10));
    let (_, address) = world.connecting.pop_front().expect("the next is tried");
    assert_eq!(address, "tcp:mon2:1");
    // A connection that is never established is abandoned after a second.
    assert_eq!(world.wait(), Duration::from_secs(1));
    assert_eq!(world.closed.len(), 2);
    world.wait();
    world.is_silent = false;
    world.told.clear();
    world.connect();
    let resumed = |told: &ToMonitor| matches!(told, ToMonitor::ResumeSession { .. });
    assert!(world.told.iter().any(resumed), "{:?}", world.told);
}
