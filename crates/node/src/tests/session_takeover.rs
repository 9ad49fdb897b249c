//! Tests of a takeover: an OSD that has seen the new holder of an image refuses the old one, even before it
//! has the map with the fence.

use base::{ConnectionId, Duration, MapRevision, SessionId};
use cluster::numbers::REVISION_MAX;
use format::wire::{Message, Op, Outcome, Refusal, Request};

use super::rig::*;

/// The connection of the client that takes over the image.
const NEXT: ConnectionId = ConnectionId::new(3);

/// A session that is newer than the usual one.
const NEXT_SESSION: SessionId = SessionId::new(SESSION.get() + 1);

/// Returns a node with revision 10 of the map and with two clients.
fn rig() -> Rig {
    let mut rig = Rig::serving();
    rig.accept(NEXT);
    rig
}

/// Sends a request of the newer session, which acts on this revision.
fn next_asks(rig: &mut Rig, revision: u64, op: Op) -> u64 {
    let request = rig.request(1, op);
    let sequence = request.sequence;
    let revision = MapRevision::new(revision);
    let request = Request { session: NEXT_SESSION, revision, ..request };
    rig.receive(NEXT, Message::Request(request));
    sequence
}

#[test]
fn an_older_session_waits_for_the_map_that_a_newer_one_acts_on_and_is_fenced_by_it() {
    let mut rig = rig();
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    let next = next_asks(&mut rig, 11, read(0, 1));
    let asked = [write(0, 1, 8), read(0, 1), Op::Sync].map(|op| rig.send(CLIENT, 1, op));
    assert_eq!(asked.map(|sequence| rig.reply_to(sequence)), [None, None, None]);
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get()]));
    let refused = Some(Err(Refusal::Fenced));
    assert_eq!(asked.map(|sequence| rig.reply_to(sequence)), [(); 3].map(|()| refused.clone()));
    assert_eq!(bytes_of(rig.reply_to(next).expect("answered")), [7]);
}

#[test]
fn an_older_session_that_is_not_fenced_goes_on_when_the_map_has_come() {
    let mut rig = rig();
    next_asks(&mut rig, 11, read(0, 1));
    let written_by_old = rig.send(CLIENT, 1, write(0, 1, 8));
    assert_eq!(rig.reply_to(written_by_old), None);
    rig.monitor_says(map(10, 11, vec![], &[]));
    assert_eq!(rig.reply_to(written_by_old), Some(written(1, 1)));
}

#[test]
fn an_older_session_is_answered_busy_when_the_map_does_not_arrive() {
    let mut rig = rig();
    next_asks(&mut rig, 11, read(0, 1));
    for _ in 0..2 {
        let asked = rig.send(CLIENT, 1, read(0, 1));
        rig.advance(Duration::from_millis(5_100));
        assert_eq!(rig.reply_to(asked), Some(Err(Refusal::Busy)), "long after the newer one asked");
    }
}

#[test]
fn queued_requests_of_an_older_session_are_refused_once_a_newer_one_is_seen() {
    let mut rig = rig();
    let [started, queued, reading] = rig.fill_queue();
    let next = next_asks(&mut rig, 11, read(0, 1));
    assert_eq!(rig.reply_to(queued), Some(Err(Refusal::Busy)));
    assert_eq!(rig.reply_to(reading), Some(Err(Refusal::Busy)));
    rig.release_disk();
    assert_eq!(rig.reply_to(started), Some(written(1, 1)), "it had its version");
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get()]));
    assert_eq!(bytes_of(rig.reply_to(next).expect("answered")), [7]);
}

#[test]
fn sessions_of_other_images_and_newer_ones_do_not_wait() {
    let mut rig = rig();
    let (checksums, data) = fill(1, 9);
    let other = place(2, 0);
    let op = Op::Write { place: other, offset: 0, checksums, data, expected: None, lazy: false };
    next_asks(&mut rig, 11, op);
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    let still = next_asks(&mut rig, 10, read(0, 1));
    assert_eq!(bytes_of(rig.reply_to(still).expect("its map is here")), [7]);
}

#[test]
fn a_known_session_that_names_a_newer_map_delays_no_other_session() {
    let mut rig = rig();
    let first = next_asks(&mut rig, 10, read(0, 1));
    assert!(rig.reply_to(first).is_some());
    // The map here contains every fence that was set before this session began.
    let next = next_asks(&mut rig, 11, read(0, 1));
    assert_eq!(rig.reply_to(next), None);
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
}

#[test]
fn a_sync_counts_for_the_image_that_its_session_has_named() {
    let mut rig = rig();
    let sync = next_asks(&mut rig, 11, Op::Sync);
    assert_eq!(rig.reply_to(sync), None);
    // The sync does not identify an image, and it has not been answered.
    assert_eq!(rig.ask(1, read(0, 1)).map(|_| ()), Ok(()));
    assert_eq!(rig.ask(1, Op::Sync), Ok(Outcome::Synced));
    next_asks(&mut rig, 11, read(0, 1));
    let asked = rig.send(CLIENT, 1, Op::Sync);
    assert_eq!(rig.reply_to(asked), None);
}

#[test]
fn a_newer_session_counts_even_after_its_connection_is_gone() {
    let mut rig = rig();
    next_asks(&mut rig, 11, read(0, 1));
    // Requests that wait on a connection are dropped when that connection closes.
    rig.close(NEXT);
    let asked = rig.send(CLIENT, 1, read(0, 1));
    assert_eq!(rig.reply_to(asked), None);
    rig.monitor_says(map(10, 11, vec![], &[]));
    assert!(rig.reply_to(asked).is_some());
}

#[test]
fn a_session_that_names_an_impossible_revision_is_disconnected_and_delays_no_other() {
    let mut rig = rig();
    assert_eq!(rig.ask(1, write(0, 1, 7)), written(1, 1));
    let asked = next_asks(&mut rig, REVISION_MAX.get() + 1, read(0, 1));
    assert_eq!(rig.reply_to(asked), None);
    assert_eq!(rig.closed.last(), Some(&NEXT));
    assert_eq!(bytes_of(rig.ask(1, read(0, 1))), [7]);
    assert_eq!(rig.ask(1, Op::Sync), Ok(Outcome::Synced));
}
