//! Tests of a client that holds a lazy lock: what it keeps, replays and syncs.

use base::{StripeIndex, UNIT_SIZE};
use cluster::message::ToMonitor;
use format::wire::{Op, Outcome, Refusal, Request};

use super::world::{BLOCK, SESSION, UNIT, VOLUME, World, entry, pg_number};
use crate::{Answer, Event, Operation, Piece, RequestId, VolumeError};

fn stripe(number: u32) -> StripeIndex {
    StripeIndex::new(number)
}

/// Returns the PG of the volume's first block.
fn pg() -> u32 {
    pg_number(stripe(0))
}

impl World {
    fn write_durably(&mut self, offset: u64, bytes: &[u8]) -> RequestId {
        let data = self.pool.copy_of(bytes);
        self.ask(Operation::Write { offset, data, durable: true })
    }

    /// Writes a unit of the first block, which must succeed.
    fn write_unit(&mut self, unit: u64, byte: u8) {
        let id = self.write(unit * UNIT_SIZE, &[byte; UNIT]);
        assert_eq!(self.finish(id), Ok(Answer::Done));
    }

    /// Executes the volume's first flush, which is sent to every PG.
    fn flush(&mut self) {
        let id = self.ask(Operation::Flush);
        assert_eq!(self.finish(id), Ok(Answer::Done));
    }

    /// Returns the requests that wait for an answer, as (epoch, first unit and byte of a write, or the kind).
    fn waiting(&self) -> Vec<(u32, String)> {
        let shown = |request: &Request| match &request.op {
            Op::Write { offset, data, expected: None, lazy: true, .. } => {
                format!("write {}: {}", offset / UNIT as u32, data[0])
            }
            Op::Zero { offset, lazy: true, .. } => format!("zero {}", offset / UNIT as u32),
            Op::Read { .. } => "read".to_string(),
            Op::Sync => "sync".to_string(),
            other => format!("{other:?}"),
        };
        self.asked.iter().map(|(_, request)| (request.epoch.get(), shown(request))).collect()
    }

    fn kept(&self) -> u64 {
        self.core.volumes[&VOLUME].unsynced_bytes
    }
}

fn rows(expected: &[(u32, &str)]) -> Vec<(u32, String)> {
    expected.iter().map(|(epoch, what)| (*epoch, what.to_string())).collect()
}

#[test]
fn the_lock_is_asked_for_and_makes_writes_lazy_but_not_durable_ones() {
    let mut world = World::lazy(None);
    let asks = |told: &ToMonitor| matches!(told, ToMonitor::OpenSession { lock: true, .. });
    assert!(world.told.iter().any(asks));
    let attached = world.opened[0].1.clone().expect("attached");
    assert!(attached.locked && attached.lazy);
    world.write(0, &[1; UNIT]);
    world.write_durably(UNIT_SIZE, &[1; UNIT]);
    world.ask(Operation::Zero { offset: 2 * UNIT_SIZE, length: UNIT_SIZE, durable: false });
    world.ask(Operation::Zero { offset: 3 * UNIT_SIZE, length: UNIT_SIZE, durable: true });
    world.connect();
    let lazy = |(_, request): &(_, Request)| match request.op {
        Op::Write { lazy, .. } | Op::Zero { lazy, .. } => lazy,
        _ => panic!("changes alone were asked for"),
    };
    assert_eq!(world.asked.iter().map(lazy).collect::<Vec<_>>(), [true, false, true, false]);
}

#[test]
fn without_the_lock_no_write_is_lazy() {
    let mut world = World::attached();
    world.write(0, &[1; UNIT]);
    let asked = world.next();
    assert!(matches!(asked.1.op, Op::Write { lazy: false, .. }));
}

#[test]
fn a_new_epoch_replays_what_is_not_synced_before_anything_else() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.flush();
    world.write_unit(1, 2);
    world.write_unit(2, 3);
    world.write_unit(1, 4);
    let zero = Operation::Zero { offset: 3 * UNIT_SIZE, length: UNIT_SIZE, durable: false };
    let id = world.ask(zero);
    world.finish(id).expect("zeroed");
    world.next_epoch(pg());
    let read = world.read(0, UNIT_SIZE);
    let write = world.write(2 * UNIT_SIZE, &[9; UNIT]);
    let replay = rows(&[(2, "write 1: 4"), (2, "write 2: 3"), (2, "zero 3")]);
    assert_eq!(world.waiting(), replay);
    world.serve_one();
    world.serve_one();
    assert_eq!(world.waiting(), replay[2..]);
    world.serve_one();
    assert_eq!(world.waiting(), rows(&[(2, "read"), (2, "write 2: 9")]));
    assert!(world.finish(read).is_ok());
    assert_eq!(world.result(write), Ok(Answer::Done));
}

#[test]
fn a_replay_begins_without_a_request() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.lose_power(pg(), |_| 0);
    assert_eq!(world.held(stripe(0), 0), None);
    world.next_epoch(pg());
    world.serve();
    assert_eq!(world.held(stripe(0), 0), Some(&vec![1; UNIT]));
}

#[test]
fn a_replay_begins_anew_with_the_next_epoch() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.write_unit(1, 2);
    world.next_epoch(pg());
    let read = world.read(0, UNIT_SIZE);
    world.serve_one();
    world.next_epoch(pg());
    assert_eq!(world.waiting().last(), Some(&(3, "write 1: 2".to_string())));
    let again = world.waiting().iter().filter(|(epoch, _)| *epoch == 3).count();
    assert_eq!(again, 2, "both, also the one that was done in epoch 2");
    assert!(world.finish(read).is_ok());
}

#[test]
fn an_epoch_that_a_refusal_tells_is_replayed_too() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.break_monitor();
    world.next_epoch(pg());
    world.lose_power(pg(), |_| 0);
    let read = world.read(0, UNIT_SIZE);
    world.refuse(Refusal::Stale(Some(entry(pg(), 2, 1 + pg() % 2))));
    assert_eq!(world.waiting(), rows(&[(2, "write 0: 1")]));
    assert!(matches!(world.finish(read), Ok(Answer::Data(_))));
    assert_eq!(world.bytes(0, 1), [1]);
}

#[test]
fn a_read_waits_for_a_change_that_is_stale_although_its_epoch_goes_on() {
    // A piece of it may have been carried out.
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    let id = world.write(0, &[2; UNIT]);
    world.refuse(Refusal::Stale(Some(entry(pg(), 1, 1 + pg() % 2))));
    let read = world.read(0, UNIT_SIZE);
    let is_read = |(_, what): &(u32, String)| what.starts_with("read");
    assert!(!world.waiting().iter().any(is_read), "{:?}", world.waiting());
    world.wait();
    world.serve();
    assert_eq!(world.result(id), Ok(Answer::Done));
    assert!(matches!(world.result(read), Ok(Answer::Data(_))));
}

#[test]
fn an_answer_of_an_epoch_that_is_over_counts_for_nothing() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    let id = world.write(0, &[2; UNIT]);
    let late = world.next();
    let outcome = world.execute(&late.1.op);
    world.next_epoch(pg());
    world.reply(&late, outcome);
    assert!(!world.done.contains_key(&id), "the replay writes over it");
    assert_eq!(world.waiting(), rows(&[(2, "write 0: 1")]));
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.held(stripe(0), 0), Some(&vec![2; UNIT]));
}

#[test]
fn a_durable_write_ends_the_keeping_of_what_it_replaces() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.write_unit(1, 1);
    let id = world.write_durably(0, &[2; UNIT]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    world.next_epoch(pg());
    assert_eq!(world.waiting(), rows(&[(2, "write 1: 1")]));
}

#[test]
fn a_durable_write_that_is_answered_as_lazy_is_an_error() {
    let mut world = World::lazy(None);
    let id = world.write_durably(0, &[2; UNIT]);
    let asked = world.next();
    let version = base::Version::ZERO;
    world.reply(&asked, Ok(Outcome::Written { version, durable: false }));
    assert!(matches!(world.result(id), Err(VolumeError::Invalid { .. })));
}

#[test]
fn a_narrow_write_is_replayed_as_the_whole_unit_it_made() {
    let mut world = World::lazy(None);
    world.write_unit(0, 7);
    world.flush();
    let id = world.write(10, &[9]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    world.lose_power(pg(), |_| 0);
    world.next_epoch(pg());
    assert_eq!(world.waiting(), rows(&[(2, "write 0: 7")]), "no comparison");
    world.serve();
    assert_eq!(world.bytes(9, 3), [7, 9, 7]);
}

#[test]
fn a_narrow_write_under_way_compares_anew_after_the_replay() {
    let mut world = World::lazy(None);
    world.write_unit(0, 7);
    let id = world.write(10, &[9]);
    world.serve_one();
    world.lose_power(pg(), |_| 0);
    world.next_epoch(pg());
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(9, 3), [7, 9, 7]);
}

#[test]
fn what_a_sync_covered_is_not_kept() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.write_unit(1, 2);
    assert_eq!(world.kept(), 2 * UNIT_SIZE);
    world.flush();
    assert_eq!(world.kept(), 0);
    assert!(world.core.volumes[&VOLUME].unsynced.is_empty());
    world.next_epoch(pg());
    assert!(world.asked.is_empty());
}

#[test]
fn a_sync_waits_for_the_replay_and_covers_it() {
    let mut world = World::lazy(None);
    world.flush();
    world.write_unit(0, 1);
    world.next_epoch(pg());
    let flush = world.ask(Operation::Flush);
    assert_eq!(world.waiting(), rows(&[(2, "write 0: 1")]));
    world.serve_one();
    assert_eq!(world.waiting(), rows(&[(2, "sync")]));
    assert_eq!(world.finish(flush), Ok(Answer::Done));
    assert_eq!(world.kept(), 0);
}

#[test]
fn a_full_buffer_is_synced_before_more_is_sent() {
    let mut world = World::lazy(None);
    world.flush();
    world.core.settings.unsynced_size_max = 4 * UNIT_SIZE;
    world.write_unit(0, 1);
    assert_eq!(world.kept(), UNIT_SIZE);
    world.write(UNIT_SIZE, &[2; UNIT]);
    world.serve_one();
    assert_eq!(world.kept(), 2 * UNIT_SIZE);
    assert_eq!(world.waiting(), rows(&[(1, "sync")]), "half full");
    world.serve();
    assert_eq!(world.kept(), 0);
    let ids: Vec<_> = (0..6).map(|unit| world.write(unit * UNIT_SIZE, &[3; UNIT])).collect();
    let is_lazy = |(_, request): &&(base::ConnectionId, Request)| {
        matches!(request.op, Op::Write { lazy: true, .. })
    };
    assert_eq!(world.asked.iter().filter(is_lazy).count(), 4, "so much can be kept");
    assert_eq!(world.asked.len(), 6, "those of another PG are sent as durable");
    for _ in 0..200 {
        if world.asked.is_empty() {
            break;
        }
        world.serve_one();
        assert!(world.kept() <= 4 * UNIT_SIZE);
    }
    assert!(ids.iter().all(|id| world.done.contains_key(id)));
}

#[test]
fn a_write_larger_than_the_buffer_goes_alone() {
    let mut world = World::lazy(None);
    world.core.settings.unsynced_size_max = UNIT_SIZE;
    let id = world.write(0, &vec![5; 3 * BLOCK as usize]);
    world.serve();
    assert_eq!(world.result(id), Ok(Answer::Done));
    assert_eq!(world.kept(), 0, "each is synced before the next");
}

#[test]
fn closing_makes_durable_what_was_done() {
    let mut world = World::lazy(None);
    world.flush();
    world.write_unit(0, 1);
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert!(world.detached.is_empty());
    assert_eq!(world.waiting(), rows(&[(1, "sync")]));
    world.serve();
    assert_eq!(world.detached, [VOLUME]);
    assert!(world.unstable.is_empty());
    let told = world.told.pop_back().expect("told");
    assert_eq!(told, ToMonitor::CloseSession { session: SESSION, unanswered: false });
    assert_eq!(world.deadline(), None);
}

#[test]
fn closing_gives_up_on_a_cluster_that_does_not_answer() {
    for in_replay in [false, true] {
        let mut world = World::lazy(None);
        world.write_unit(0, 1);
        if in_replay {
            world.next_epoch(pg());
        }
        world.write(0, &[2; UNIT]);
        world.apply(Event::Close { volume: VOLUME, patient: false });
        while world.detached.is_empty() {
            world.wait();
        }
        let told = world.told.pop_back().expect("told");
        assert_eq!(told, ToMonitor::CloseSession { session: SESSION, unanswered: true });
        assert!(world.core.parts.is_empty() && world.core.requests.is_empty());
        assert_eq!(world.deadline(), None);
    }
}

#[test]
fn closing_patiently_awaits_what_is_not_durable_while_the_session_lasts() {
    for ends in [false, true] {
        let mut world = World::lazy(None);
        world.write_unit(0, 1);
        world.apply(Event::Close { volume: VOLUME, patient: true });
        let began = world.now;
        while world.now.since(began) < base::Duration::from_secs(60) {
            world.wait();
        }
        assert!(world.detached.is_empty());
        if ends {
            world.say(cluster::message::FromMonitor::SessionEnded { session: SESSION });
        } else {
            world.serve();
            let told = world.told.pop_back().expect("told");
            assert_eq!(told, ToMonitor::CloseSession { session: SESSION, unanswered: false });
        }
        assert_eq!(world.detached, [VOLUME]);
        assert_eq!(world.deadline(), None);
    }
}

#[test]
fn a_patient_close_gives_up_when_it_is_closed_again_without_patience() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.apply(Event::Close { volume: VOLUME, patient: true });
    world.apply(Event::Close { volume: VOLUME, patient: false });
    while world.detached.is_empty() {
        world.wait();
    }
    let told = world.told.pop_back().expect("told");
    assert_eq!(told, ToMonitor::CloseSession { session: SESSION, unanswered: true });
}

#[test]
fn a_replay_is_not_given_up_whatever_is_answered() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.next_epoch(pg());
    let read = world.read(0, 1);
    for refusal in [Refusal::Busy, Refusal::Invalid { why: "so".to_string() }] {
        world.refuse(refusal);
        assert!(world.asked.is_empty());
        world.wait();
    }
    assert_eq!(world.waiting(), rows(&[(2, "write 0: 1")]));
    assert!(world.finish(read).is_ok());
}

/// Returns a world after the first pass of a replay: the PG is full, and has lost two units that it had
/// acknowledged.
fn full() -> World {
    let mut world = World::lazy(None);
    world.write_unit(2, 7);
    world.flush();
    world.write_unit(0, 1);
    world.write_unit(1, 2);
    world.lose_power(pg(), |_| 0);
    world.is_full = true;
    world.next_epoch(pg());
    world.serve();
    world
}

fn waits(waiting_bytes: u64) -> ToMonitor {
    ToMonitor::SessionWaits { session: SESSION, waiting_bytes }
}

impl World {
    /// Waits for the next pass of a replay, and answers its requests.
    fn next_pass(&mut self) {
        while self.asked.is_empty() {
            self.wait();
        }
        self.serve();
    }
}

#[test]
fn a_replay_waits_for_room_and_what_is_behind_it_too_but_for_writes() {
    let mut world = full();
    let read = world.read(0, 2 * UNIT_SIZE);
    let flush = world.ask(Operation::Flush);
    let narrow = world.ask(patch(&world));
    let write = world.write(3 * UNIT_SIZE, &[9; UNIT]);
    for _ in 0..12 {
        world.next_pass();
    }
    for id in [write, narrow] {
        assert_eq!(world.result(id), Err(VolumeError::Full));
    }
    assert!(!world.done.contains_key(&read) && !world.done.contains_key(&flush));
    assert_eq!(world.wait(), base::Duration::from_secs(1));
    world.is_full = false;
    world.serve();
    let Ok(Answer::Data(pieces)) = world.result(read) else { panic!("it is read") };
    assert!(
        matches!(&pieces[..], [Piece::Data(data)] if data[..UNIT] == [1; UNIT] && data[UNIT] == 2)
    );
    assert_eq!(world.result(flush), Ok(Answer::Done));
    assert_eq!(world.kept(), 0);
}

fn patch(world: &World) -> Operation {
    Operation::Write { offset: 5, data: world.pool.copy_of(&[1]), durable: false }
}

#[test]
fn the_monitor_is_told_what_waits_for_room() {
    let mut world = full();
    assert_eq!(world.told.pop_back(), Some(waits(2 * UNIT_SIZE)));
    let discard = Operation::Zero { offset: 0, length: UNIT_SIZE, durable: true };
    let discard = world.ask(discard);
    world.told.clear();
    world.next_pass();
    assert_eq!(world.result(discard), Ok(Answer::Done));
    world.next_pass();
    assert_eq!(world.told.pop_back(), Some(waits(UNIT_SIZE)));
    world.next_pass();
    assert!(world.told.is_empty(), "nothing is new");
    world.break_monitor();
    while world.monitor.is_none() {
        world.wait();
        world.connect();
    }
    assert_eq!(world.told.pop_back(), Some(waits(UNIT_SIZE)));
    world.is_full = false;
    world.next_pass();
    assert_eq!(world.told.pop_back(), Some(waits(0)));
}

#[test]
fn a_replay_without_room_still_sends_zeros_in_the_same_pass() {
    let mut world = World::lazy(None);
    let own = (0..64).filter(|it| pg_number(stripe(*it)) == pg());
    let offsets: Vec<u64> = own
        .flat_map(|it| (0..4).map(move |unit| (it, unit)))
        .map(|(it, unit)| u64::from(it) * BLOCK + unit * UNIT_SIZE)
        .take(37)
        .collect();
    let write_all = |world: &mut World, byte: u8, offsets: &[u64]| {
        for offset in offsets {
            let id = world.write(*offset, &[byte; UNIT]);
            world.finish(id).expect("written");
        }
    };
    write_all(&mut world, 1, &offsets);
    world.flush();
    let (last, rest) = offsets.split_last().expect("37");
    write_all(&mut world, 2, rest);
    let zero = world.ask(Operation::Zero { offset: *last, length: UNIT_SIZE, durable: false });
    world.finish(zero).expect("zeroed");
    world.lose_power(pg(), |_| 0);
    world.is_full = true;
    world.next_epoch(pg());
    world.serve();
    assert_eq!(world.held(stripe((last / BLOCK) as u32), 0), None, "it makes room");
    assert_eq!(world.held(stripe(0), 0), Some(&vec![1; UNIT]));
}

#[test]
fn discards_pass_a_replay_without_room_and_what_they_take_is_not_replayed() {
    for durable in [false, true] {
        let mut world = full();
        let discard = Operation::Zero { offset: UNIT_SIZE, length: 2 * UNIT_SIZE, durable };
        let discard = world.ask(discard);
        world.next_pass();
        assert_eq!(world.result(discard), Ok(Answer::Done));
        assert_eq!(world.held(stripe(0), 2), None, "it makes room");
        world.is_full = false;
        world.next_pass();
        assert_eq!(world.held(stripe(0), 0), Some(&vec![1; UNIT]));
        assert_eq!(world.held(stripe(0), 1), None);
        world.flush();
        assert!(world.core.volumes[&VOLUME].unsynced.is_empty());
    }
}

#[test]
fn a_discard_of_all_that_a_pg_lost_ends_its_replay() {
    let mut world = full();
    let discard = Operation::Zero { offset: 0, length: BLOCK, durable: false };
    let discard = world.ask(discard);
    world.next_pass();
    assert_eq!(world.result(discard), Ok(Answer::Done));
    world.wait();
    assert!(world.core.requests.is_empty());
    world.flush();
    assert_eq!(world.kept(), 0);
}

#[test]
fn a_discard_and_a_write_of_a_replay_are_never_under_way_together() {
    let mut world = full();
    let discard = world.ask(Operation::Zero { offset: 0, length: UNIT_SIZE, durable: false });
    world.wait();
    let replay = rows(&[(2, "write 0: 1"), (2, "write 1: 2")]);
    assert_eq!(world.waiting(), replay);
    world.serve_one();
    assert_eq!(world.waiting(), replay[1..]);
    world.serve_one();
    assert_eq!(world.waiting(), rows(&[(2, "zero 0")]));
    world.is_full = false;
    for _ in 0..5 {
        world.wait();
        assert_eq!(world.waiting(), rows(&[(2, "zero 0")]), "the next pass waits for it");
    }
    world.serve();
    assert_eq!(world.result(discard), Ok(Answer::Done));
    world.next_pass();
    assert_eq!(world.held(stripe(0), 0), None);
    assert_eq!(world.held(stripe(0), 1), Some(&vec![2; UNIT]));
}

#[test]
fn a_discard_that_waits_for_its_answer_goes_again_in_the_next_epoch() {
    let mut world = full();
    let discard = world.ask(Operation::Zero { offset: 0, length: UNIT_SIZE, durable: false });
    world.wait();
    world.serve_one();
    world.serve_one();
    assert_eq!(world.waiting(), rows(&[(2, "zero 0")]));
    world.next_epoch(pg());
    world.is_full = false;
    world.serve();
    assert_eq!(world.result(discard), Ok(Answer::Done));
    assert_eq!(world.held(stripe(0), 0), None);
    assert_eq!(world.held(stripe(0), 1), Some(&vec![2; UNIT]));
    world.flush();
    assert_eq!(world.kept(), 0);
}

#[test]
fn a_full_buffer_behind_a_replay_without_room_refuses_writes_and_does_discards() {
    let mut world = full();
    world.core.settings.unsynced_size_max = 2 * UNIT_SIZE;
    let elsewhere = (1..64).find(|it| pg_number(stripe(*it)) != pg()).expect("four PGs");
    let offset = u64::from(elsewhere) * BLOCK;
    let write = world.write(offset, &[9; UNIT]);
    let zero = world.ask(Operation::Zero { offset, length: UNIT_SIZE, durable: false });
    world.next_pass();
    assert_eq!(world.result(write), Err(VolumeError::Full));
    assert_eq!(world.result(zero), Ok(Answer::Done));
}

#[test]
fn a_discard_that_finds_the_buffer_full_does_not_take_the_turn_of_the_sync() {
    let mut world = full();
    world.core.settings.unsynced_size_max = 2 * UNIT_SIZE;
    let elsewhere = (1..64).find(|it| pg_number(stripe(*it)) != pg()).expect("four PGs");
    let offset = u64::from(elsewhere) * BLOCK;
    let zero = world.ask(Operation::Zero { offset, length: UNIT_SIZE, durable: false });
    assert_eq!(world.finish(zero), Ok(Answer::Done));
    world.is_full = false;
    world.next_pass();
    assert_eq!(world.kept(), 0, "the sync was done");
    assert!(world.core.requests.is_empty());
}

#[test]
fn what_ended_without_an_answer_is_settled_by_a_sync_before_it_can_be_seen() {
    for keeps_something in [true, false] {
        let mut world = World::lazy(Some(base::Duration::from_millis(5)));
        if keeps_something {
            let first = world.write(0, &[1; UNIT]);
            world.finish(first).expect("written");
        }
        let id = world.write(0, &[2; UNIT]);
        let lost = world.next();
        world.execute(&lost.1.op).expect("written");
        world.break_osd(world.osds[&lost.0]);
        world.wait();
        assert_eq!(world.result(id), Err(VolumeError::Unknown));
        world.patience = None;
        let read = world.read(0, 1);
        while world.asked.is_empty() {
            world.wait();
            world.connect();
        }
        let why = "a replay, or a loss of power, could undo what it sees";
        assert_eq!(world.waiting(), rows(&[(1, "sync")]), "{why}");
        assert!(world.finish(read).is_ok());
        assert_eq!(world.bytes(0, 1), [2]);
        world.next_epoch(pg());
        assert!(world.asked.is_empty());
        assert_eq!(world.bytes(0, 1), [2]);
        assert!(world.core.volumes[&VOLUME].unsynced.is_empty());
    }
}

#[test]
fn a_change_without_an_answer_is_not_read_before_it_is_kept() {
    let mut world = World::lazy(None);
    let write = world.write(0, &[5; UNIT]);
    let lost = world.next();
    world.execute(&lost.1.op).expect("written");
    world.break_osd(world.osds[&lost.0]);
    let over_it = world.read(UNIT_SIZE - 1, 2);
    let beside = world.read(UNIT_SIZE, 1);
    world.wait();
    world.connect();
    let why = "if it is seen, and power takes it, nobody writes it again before it is read again";
    assert_eq!(world.waiting(), rows(&[(1, "write 0: 5"), (1, "read")]), "{why}");
    world.serve();
    assert_eq!(world.result(write), Ok(Answer::Done));
    for id in [over_it, beside] {
        assert!(world.result(id).is_ok());
    }
}

#[test]
fn a_session_that_ends_forgets_what_it_kept() {
    let mut world = World::lazy(None);
    world.write_unit(0, 1);
    world.next_epoch(pg());
    let read = world.read(0, 1);
    world.refuse(Refusal::Fenced);
    assert_eq!(world.result(read), Err(VolumeError::Ended));
    assert!(world.core.parts.is_empty() && world.core.requests.is_empty());
    assert!(world.core.volumes[&VOLUME].unsynced.is_empty());
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME]);
}

#[test]
fn a_pg_is_synced_when_an_unknown_change_has_ended_and_not_before() {
    let test = || {
        let mut world = World::lazy(Some(base::Duration::from_millis(5)));
        let first = world.write(0, &[1; UNIT]);
        world.finish(first).expect("written");
        let id = world.write(0, &[2; UNIT]);
        let slow = world.next();
        world.wait();
        assert_eq!(world.result(id), Err(VolumeError::Unknown));
        world.patience = None;
        let over_it = world.write(0, &[3; UNIT]);
        let read = world.read(0, 1);
        world.connect();
        let why =
            "the OSD answers the change before the read, and a sync would overtake the change";
        assert_eq!(world.waiting(), rows(&[(1, "read")]), "{why}");
        world.break_osd(world.osds[&slow.0]);
        while world.asked.is_empty() {
            world.wait();
            world.connect();
        }
        assert_eq!(world.waiting(), rows(&[(1, "sync")]));
        assert!(world.finish(read).is_ok());
        assert_eq!(world.result(over_it), Ok(Answer::Done));
        assert_eq!(world.bytes(0, 1), [3]);
    };
    test();
    #[cfg(debug_assertions)]
    assert!(base::planted::fails(base::planted::Bug::SyncBeforeUnknownEnded, test));
}

#[test]
fn an_unknown_change_that_is_answered_late_is_kept() {
    let mut world = World::lazy(Some(base::Duration::from_millis(5)));
    let id = world.write(0, &[2; UNIT]);
    let slow = world.next();
    world.wait();
    assert_eq!(world.result(id), Err(VolumeError::Unknown));
    let told = world.do_as_asked(&slow.1);
    world.reply(&slow, told);
    assert_eq!(world.kept(), UNIT_SIZE);
    world.patience = None;
    assert_eq!(world.bytes(0, 1), [2]);
    world.lose_power(pg(), |_| 0);
    world.next_epoch(pg());
    assert_eq!(world.bytes(0, 1), [2], "a reader saw it");
}

#[test]
fn what_is_kept_of_a_silent_pg_stops_no_other_one() {
    let mut world = World::lazy(None);
    world.flush();
    world.core.settings.unsynced_size_max = 4 * UNIT_SIZE;
    let silent = pg();
    let elsewhere = (1..64).find(|it| pg_number(stripe(*it)) != silent).expect("four PGs");
    for unit in 0..2 {
        world.write_unit(unit, 1);
    }
    let stuck: Vec<_> = (0..4).map(|unit| world.write(unit * UNIT_SIZE, &[2; UNIT])).collect();
    for turn in 0..100 {
        let id = world.write(u64::from(elsewhere) * BLOCK, &[turn; UNIT]);
        while !world.done.contains_key(&id) {
            world.connect();
            let is_other = |(_, it): &(base::ConnectionId, Request)| it.pg.number != silent;
            let at = world.asked.iter().position(is_other).expect("it goes on");
            let asked = world.asked.remove(at).expect("found");
            let told = world.do_as_asked(&asked.1);
            world.reply(&asked, told);
        }
        assert!(world.kept() <= 4 * UNIT_SIZE);
    }
    assert!(stuck.iter().all(|id| !world.done.contains_key(id)));
    world.serve();
    assert!(stuck.iter().all(|id| world.done.contains_key(id)));
}
