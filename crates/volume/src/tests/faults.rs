//! Tests of refusals, lost connections, damaged data, and how long requests are retried.

use base::{Checksum, Duration, Version};
use cluster::message::ToMonitor;
use format::wire::{Op, Outcome, Refusal};

use super::world::{BLOCK, SESSION, UNIT, VOLUME, World};
use crate::part::MISMATCH_COUNT_MAX;
use crate::{Answer, Event, Operation, VolumeError, VolumeHandle};

impl World {
    /// Returns the OSD to which the longest-waiting request was sent.
    pub(super) fn asked_osd(&self) -> base::OsdId {
        self.osds[&self.asked[0].0]
    }
}

#[test]
fn busy_and_incomplete_are_tried_again_after_growing_delays() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    let mut delays = Vec::new();
    for turn in 0..9 {
        let refusal = match turn % 3 {
            0 => Refusal::Busy,
            1 => Refusal::Incomplete { why: "osd.3 is away".to_string() },
            _ => Refusal::Corrupted,
        };
        world.refuse(refusal);
        assert!(world.asked.is_empty());
        delays.push(world.wait().as_millis());
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_repeated_part_has_a_new_sequence() {
    let mut world = World::attached();
    world.write(0, &vec![1; UNIT]);
    let first = world.refuse(Refusal::Busy);
    world.wait();
    let second = world.refuse(Refusal::Busy);
    assert!(first.sequence < second.sequence);
}

#[test]
fn full_and_invalid_and_damaged_end_the_request() {
    let mut world = World::attached();
    let why = "offset beyond the block".to_string();
    for (refusal, error) in [
        (Refusal::Full, VolumeError::Full),
        (Refusal::Damaged { units: vec![1] }, VolumeError::Damaged),
        (Refusal::Invalid { why: why.clone() }, VolumeError::Invalid { why }),
    ] {
        let id = world.write(0, &vec![1; UNIT]);
        world.refuse(refusal);
        assert_eq!(world.result(id), Err(error));
    }
}

#[test]
fn a_fenced_session_is_over() {
    let mut world = World::attached();
    let first = world.write(0, &vec![1; UNIT]);
    let second = world.write(BLOCK, &vec![1; UNIT]);
    world.refuse(Refusal::Fenced);
    assert_eq!(world.result(first), Err(VolumeError::Ended));
    assert_eq!(world.result(second), Err(VolumeError::Ended));
    let over = world.lines.iter().filter(|event| event.what.starts_with("the session is over"));
    let [line] = &over.collect::<Vec<_>>()[..] else { panic!("{:?}", world.lines) };
    assert_eq!(line.level, base::trace::Level::Warn);
    assert!(line.field("session").is_some() && line.field("volume").is_some(), "{line}");
}

#[test]
fn a_monitor_that_is_lost_and_another_that_answers_leave_a_line_each() {
    let mut world = World::attached();
    let said = |world: &World| world.lines.iter().map(|event| event.what).collect::<Vec<_>>();
    assert_eq!(said(&world), ["a monitor answers"]);
    world.break_monitor();
    world.wait();
    world.connect();
    assert_eq!(said(&world).len(), 2, "one that says nothing does not count: {:?}", world.lines);
    world.break_monitor();
    assert_eq!(said(&world).len(), 2, "nor does its loss");
    assert!(said(&world)[1].starts_with("the connection to the monitor is lost"));
}

#[test]
fn a_lost_connection_sends_its_parts_again() {
    let mut world = World::attached();
    let write = world.write(0, &vec![1; UNIT]);
    let read = world.read(UNIT as u64, 1);
    world.connect();
    assert_eq!(world.asked.len(), 2);
    world.break_osd(world.asked_osd());
    assert!(world.asked.is_empty());
    assert_eq!(world.wait(), Duration::from_millis(10));
    world.serve();
    assert_eq!(world.result(write), Ok(Answer::Done));
    assert!(world.result(read).is_ok());
}

#[test]
fn no_connection_is_made_without_need() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let osd = world.asked_osd();
    world.finish(id).expect("written");
    world.break_osd(osd);
    assert_eq!(world.deadline(), None);
    let id = world.write(0, &vec![1; UNIT]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_late_reply_of_an_old_connection_is_ignored() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    let old = world.next();
    world.break_osd(world.osds[&old.0]);
    let outcome = world.execute(&old.1.op);
    world.reply(&old, outcome);
    assert!(!world.done.contains_key(&id));
    world.wait();
    let new = world.next();
    let stale = (new.0, old.1);
    let outcome = world.execute(&stale.1.op);
    world.reply(&stale, outcome);
    assert!(!world.done.contains_key(&id), "an old sequence on the new connection");
    world.asked.push_front(new);
    assert_eq!(world.finish(id), Ok(Answer::Done));
}

#[test]
fn a_narrow_write_repeated_after_it_happened_reads_again() {
    let mut world = World::attached();
    let id = world.write(10, &[9]);
    world.serve_one();
    let compare = world.next();
    let outcome = world.execute(&compare.1.op);
    assert!(outcome.is_ok());
    world.break_osd(world.osds[&compare.0]);
    world.wait();
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(9, 3), [0, 9, 0]);
}

#[test]
fn a_narrow_write_next_to_damage_reports_it() {
    let mut world = World::attached();
    let id = world.write(10, &[9]);
    let request = world.refuse(Refusal::Damaged { units: vec![1] });
    assert!(matches!(request.op, Op::Read { .. }));
    assert_eq!(world.result(id), Err(VolumeError::Damaged));
}

fn damaged_answer(world: &World) -> Result<Outcome, Refusal> {
    Ok(Outcome::Read {
        version: base::Version::ZERO,
        checksums: vec![Checksum::ZERO_UNIT],
        data: world.pool.copy_of(&[1; UNIT]),
    })
}

#[test]
fn data_that_does_not_match_is_read_again_and_never_returned() {
    let mut world = World::attached();
    let id = world.read(0, UNIT as u64);
    for _ in 0..MISMATCH_COUNT_MAX - 1 {
        let asked = world.next();
        let answer = damaged_answer(&world);
        world.reply(&asked, answer);
        assert!(!world.done.contains_key(&id));
        world.wait();
    }
    let asked = world.next();
    let answer = damaged_answer(&world);
    world.reply(&asked, answer);
    assert_eq!(world.result(id), Err(VolumeError::Damaged));
}

#[test]
fn an_answer_of_the_wrong_length_is_damage() {
    let mut world = World::attached();
    let id = world.read(0, 2 * UNIT as u64);
    let asked = world.next();
    let data = world.pool.take_zeroed(UNIT).freeze();
    let checksums = vec![Checksum::ZERO_UNIT];
    let version = base::Version::ZERO;
    world.reply(&asked, Ok(Outcome::Read { version, checksums, data }));
    assert!(!world.done.contains_key(&id));
    world.wait();
    assert!(world.finish(id).is_ok());
}

#[test]
fn an_answer_to_another_operation_is_an_error() {
    let mut world = World::attached();
    let extents = world.ask(Operation::Extents { offset: 0, length: BLOCK });
    let asked = world.next();
    world.reply(&asked, Ok(Outcome::Extents { bitmap: Vec::new() }));
    assert!(matches!(world.result(extents), Err(VolumeError::Invalid { .. })));
    let read = world.read(0, 1);
    let asked = world.next();
    world.reply(&asked, Ok(Outcome::Synced));
    assert!(matches!(world.result(read), Err(VolumeError::Invalid { .. })));
}

#[test]
fn a_timed_out_request_keeps_its_place_until_its_parts_have_ended() {
    let mut world = World::attached_with(Some(Duration::from_secs(3)), false);
    let first = world.write(0, &vec![1; UNIT]);
    let sent = world.next();
    world.wait();
    assert_eq!(world.now.as_nanos(), 3_000_000_000);
    assert_eq!(world.result(first), Err(VolumeError::Unknown));
    let second = world.write(0, &vec![2; UNIT]);
    assert!(world.asked.is_empty(), "the first may still happen");
    let outcome = world.execute(&sent.1.op);
    world.reply(&sent, outcome);
    assert_eq!(world.finish(second), Ok(Answer::Done));
    assert_eq!(world.bytes(0, 1), [2]);
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME]);
    assert_eq!(world.deadline(), None);
}

#[test]
fn a_timed_out_write_is_not_sent_again() {
    let mut world = World::attached_with(Some(Duration::from_secs(3)), false);
    let first = world.write(0, &vec![1; 2 * BLOCK as usize]);
    world.connect();
    let osd = world.asked_osd();
    while world.deadline().is_some() {
        world.wait();
    }
    assert_eq!(world.result(first), Err(VolumeError::Unknown));
    world.asked.clear();
    world.break_osd(osd);
    assert_eq!(world.deadline(), None);
}

#[test]
fn a_change_that_may_be_on_its_way_is_told_when_its_session_is_closed() {
    for (is_write, sent_again, unanswered) in
        [(true, false, true), (true, true, false), (false, false, false)]
    {
        let mut world = World::attached_with(Some(Duration::from_secs(3)), false);
        let id = match is_write {
            true => world.write(0, &vec![1; UNIT]),
            false => world.read(0, 1),
        };
        world.connect();
        let osd = world.asked_osd();
        if sent_again {
            world.break_osd(osd);
            world.wait();
            world.finish(id).expect("written, and so what came before it is overtaken");
        } else {
            world.wait();
            let is_unknown = world.result(id) == Err(VolumeError::Unknown);
            assert_eq!(is_unknown, is_write, "a read changes nothing");
            world.break_osd(osd);
        }
        world.apply(Event::Close { volume: VOLUME, patient: false });
        let closed = ToMonitor::CloseSession { session: SESSION, unanswered };
        assert_eq!(world.told.back(), Some(&closed));
    }
}

#[test]
fn a_closed_volume_sends_nothing_again() {
    for refusal in
        [Refusal::CompareFailed { version: Version::ZERO }, Refusal::Busy, Refusal::Stale(None)]
    {
        let mut world = World::attached();
        world.write(10, &[1; 5]);
        world.serve_one();
        world.write_from_elsewhere(0, 0, 9);
        world.apply(Event::Close { volume: VOLUME, patient: false });
        world.refuse(refusal);
        assert!(world.asked.is_empty());
        assert_eq!(world.detached, [VOLUME]);
        assert_eq!(world.deadline(), None);
        assert_eq!(world.told.back(), Some(&closed(false)));
    }
}

#[test]
fn a_closed_volume_does_not_begin_the_write_of_a_narrow_write() {
    let mut world = World::attached();
    world.write(10, &[1; 5]);
    let read = world.next();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    let outcome = world.execute(&read.1.op);
    world.reply(&read, outcome);
    assert!(world.asked.is_empty());
    assert_eq!(world.detached, [VOLUME]);
}

#[test]
fn a_closed_volume_whose_write_is_lost_says_that_it_may_still_happen() {
    let mut world = World::attached();
    world.write(0, &vec![1; UNIT]);
    world.connect();
    let osd = world.asked_osd();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    world.break_osd(osd);
    assert_eq!(world.detached, [VOLUME]);
    assert_eq!(world.told.back(), Some(&closed(true)));
    assert_eq!(world.deadline(), None, "it is not sent again");
}

#[test]
fn a_closed_volume_awaits_a_silent_osd_for_two_seconds() {
    for (is_write, unanswered) in [(true, true), (false, false)] {
        let mut world = World::attached();
        let id = match is_write {
            true => world.write(0, &vec![1; UNIT]),
            false => world.read(0, 1),
        };
        let late = world.next();
        world.apply(Event::Close { volume: VOLUME, patient: false });
        assert!(world.detached.is_empty());
        assert_eq!(world.wait(), Duration::from_secs(2));
        assert_eq!(world.result(id), Err(VolumeError::Ended));
        assert_eq!(world.detached, [VOLUME]);
        assert_eq!(world.told.back(), Some(&closed(unanswered)));
        let outcome = world.execute(&late.1.op);
        world.reply(&late, outcome);
        assert_eq!(world.deadline(), None);
    }
}

#[test]
fn a_detach_is_told_again_until_a_monitor_is_known_to_have_heard_it() {
    let mut world = World::attached();
    world.apply(Event::Close { volume: VOLUME, patient: false });
    world.break_monitor();
    world.told.clear();
    world.wait();
    let again = VolumeHandle(2);
    let name = "disk".to_string();
    world.apply(Event::Open { volume: again, name, read_only: false, lock: false });
    world.connect();
    let place = |told: &ToMonitor| *told == closed(false);
    let close = world.told.iter().position(place).expect("told again");
    let is_open = |told: &ToMonitor| matches!(told, ToMonitor::OpenSession { .. });
    let open = world.told.iter().position(is_open).expect("asked");
    assert!(close < open, "the new session comes after the old one");
    world.accept_session();
    world.break_monitor();
    world.told.clear();
    world.wait();
    world.connect();
    assert!(!world.told.contains(&closed(false)), "the answer said that it was heard");
}

fn closed(unanswered: bool) -> ToMonitor {
    ToMonitor::CloseSession { session: SESSION, unanswered }
}

#[test]
fn a_failed_part_drops_those_that_were_not_sent() {
    let mut world = World::attached();
    // The write covers two units partly: the second patch waits for the first.
    let id = world.write(10, &vec![1; UNIT]);
    world.refuse(Refusal::Full);
    assert_eq!(world.result(id), Err(VolumeError::Full));
    assert!(world.asked.is_empty());
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME]);
}

/// Returns why a request was unavailable.
fn why(result: Result<Answer, VolumeError>) -> String {
    match result {
        Err(VolumeError::Unavailable { why }) => why,
        other => panic!("{other:?} is no reason"),
    }
}

fn impatient() -> World {
    World::attached_with(Some(Duration::from_secs(3)), false)
}

impl World {
    /// Waits until a request was answered at its deadline, and refuses what is sent meanwhile.
    fn wait_and_refuse(&mut self, id: crate::RequestId, refusal: &Refusal) {
        while !self.done.contains_key(&id) {
            self.wait();
            self.connect();
            while !self.asked.is_empty() && !self.done.contains_key(&id) {
                self.refuse(refusal.clone());
            }
        }
    }
}

#[test]
fn a_change_that_was_never_begun_is_unavailable_and_says_what_it_waited_for() {
    let mut world = impatient();
    let id = world.write(0, &[1; UNIT]);
    world.wait();
    assert_eq!(why(world.result(id)), "osd.1 is not connected, the primary of PG 1.2");
    let incomplete = Refusal::Incomplete { why: "osd.3 is away".to_string() };
    let id = world.write(0, &[1; UNIT]);
    world.refuse(incomplete.clone());
    world.wait_and_refuse(id, &incomplete);
    assert_eq!(why(world.result(id)), "PG 1.2 refused: osd.3 is away");
    let read = world.read(0, 1);
    let patch = world.write(10, &[1]);
    let sent = world.next();
    let behind = world.write(0, &[2; UNIT]);
    world.wait();
    for id in [read, patch] {
        assert_eq!(why(world.result(id)), "osd.1 has not answered for PG 1.2");
    }
    let expected = "an earlier change of the same range has not ended";
    assert_eq!(why(world.result(behind)), expected);
    let outcome = world.execute(&sent.1.op);
    world.reply(&sent, outcome);
    world.serve();
    assert_eq!(world.bytes(0, 11), [0; 11], "nothing happens later");
    assert!(world.core.parts.is_empty() && world.core.requests.is_empty());
}

#[test]
fn a_change_whose_epoch_ended_under_way_is_unknown() {
    let mut world = impatient();
    let id = world.write(0, &[1; UNIT]);
    world.refuse(Refusal::Stale(None));
    world.wait_and_refuse(id, &Refusal::Busy);
    assert_eq!(world.result(id), Err(VolumeError::Unknown));
}

#[test]
fn a_change_of_which_a_part_is_done_is_unknown() {
    let mut world = impatient();
    let id = world.write(0, &vec![1; 2 * BLOCK as usize]);
    world.serve_one();
    world.refuse(Refusal::Busy);
    world.wait_and_refuse(id, &Refusal::Busy);
    assert_eq!(world.result(id), Err(VolumeError::Unknown));
}

#[test]
fn a_request_that_nobody_waits_for_is_given_up_at_once() {
    let mut world = impatient();
    let sent = world.write(0, &[1; UNIT]);
    let asked = world.next();
    let held = world.write(0, &[2; UNIT]);
    for id in [sent, held, sent] {
        world.apply(Event::Cancel { id });
    }
    assert_eq!(world.result(sent), Err(VolumeError::Unknown));
    assert!(matches!(world.result(held), Err(VolumeError::Unavailable { .. })));
    let next = world.write(0, &[3; UNIT]);
    assert!(world.asked.is_empty(), "the first one may still happen");
    let outcome = world.execute(&asked.1.op);
    world.reply(&asked, outcome);
    assert_eq!(world.finish(next), Ok(Answer::Done));
    assert_eq!(world.bytes(0, 1), [3]);
    assert_eq!(world.deadline(), None);
}

#[test]
fn what_is_unknown_is_not_sent_again_after_its_connection_was_lost() {
    let test = || {
        let mut world = impatient();
        let id = world.write(0, &[1; UNIT]);
        let asked = world.next();
        world.wait();
        assert_eq!(world.result(id), Err(VolumeError::Unknown));
        world.break_osd(world.osds[&asked.0]);
        let next = world.write(0, &[2; UNIT]);
        world.connect();
        if world.asked.is_empty() {
            world.wait();
            world.connect();
        }
        let data = |(_, request): &(base::ConnectionId, format::wire::Request)| match &request.op {
            Op::Write { data, .. } => data[0],
            other => panic!("{other:?}"),
        };
        assert_eq!(world.asked.iter().map(data).collect::<Vec<_>>(), [2]);
        assert_eq!(world.finish(next), Ok(Answer::Done));
    };
    test();
    #[cfg(debug_assertions)]
    assert!(base::planted::fails(base::planted::Bug::UnknownSentAgain, test));
}
