//! Tests of requests when nothing fails.

use std::collections::BTreeSet;

use base::{ConnectionId, PgId, StripeIndex};
use cluster::message::ToMonitor;
use format::wire::{Op, Outcome, Refusal, Request};

use super::world::{BLOCK, SESSION, SIZE, UNIT, VOLUME, World, pg_number};
use crate::windows::PARTS_IN_FLIGHT_MAX;
use crate::{Answer, Event, Extent, Operation, Piece, VolumeError};

#[test]
fn what_was_written_is_read_across_blocks() {
    let mut world = World::attached();
    let bytes: Vec<u8> = (0..3 * BLOCK).map(|byte| (byte % 251) as u8).collect();
    let id = world.write(BLOCK / 2 / 4096 * 4096, &bytes);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(BLOCK / 2, 3 * BLOCK), bytes);
    assert_eq!(world.bytes(BLOCK / 2 + 5, 100), bytes[5..105]);
}

#[test]
fn a_write_is_answered_when_all_its_parts_are() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; 2 * BLOCK as usize]);
    world.serve_one();
    assert!(!world.done.contains_key(&id));
    world.serve_one();
    assert_eq!(world.result(id), Ok(Answer::Done));
}

#[test]
fn unwritten_ranges_are_one_piece_of_zeros() {
    let mut world = World::attached();
    let id = world.read(100, 5 * BLOCK);
    assert_eq!(world.finish(id), Ok(Answer::Data(vec![Piece::Hole(5 * BLOCK)])));
}

#[test]
fn parts_answered_in_any_order_make_the_same_answer() {
    let mut world = World::attached();
    let bytes: Vec<u8> = (0..3 * BLOCK).map(|byte| (byte / BLOCK) as u8 + 1).collect();
    let id = world.write(0, &bytes);
    world.finish(id).expect("written");
    let id = world.read(0, 3 * BLOCK);
    world.asked.make_contiguous().reverse();
    let Ok(Answer::Data(pieces)) = world.finish(id) else { panic!("no data") };
    let firsts = pieces.iter().map(|piece| match piece {
        Piece::Data(data) => data[0],
        Piece::Hole(_) => 0,
    });
    assert_eq!(firsts.collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_narrow_write_keeps_its_neighbours() {
    let mut world = World::attached();
    let id = world.write(0, &vec![7; 2 * UNIT]);
    world.finish(id).expect("written");
    let id = world.write(UNIT as u64 - 3, &[1, 2, 3, 4, 5]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(UNIT as u64 - 5, 9), [7, 7, 1, 2, 3, 4, 5, 7, 7]);
}

#[test]
fn a_narrow_write_to_nothing_is_surrounded_by_zeros() {
    let mut world = World::attached();
    let id = world.write(10, &[9]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(9, 3), [0, 9, 0]);
}

#[test]
fn a_narrow_write_does_not_undo_what_another_client_wrote_meanwhile() {
    let mut world = World::attached();
    let id = world.write(10, &[9]);
    world.serve_one();
    world.write_from_elsewhere(0, 0, 5);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    assert_eq!(world.bytes(9, 3), [5, 9, 5]);
}

#[test]
fn own_writes_to_the_stripe_wait_while_a_narrow_write_compares() {
    let mut world = World::attached();
    let narrow = world.write(10, &[9]);
    let whole = world.write(2 * UNIT as u64, &vec![3; UNIT]);
    let elsewhere = world.write(BLOCK, &vec![4; UNIT]);
    world.connect();
    assert_eq!(world.asked.len(), 2);
    world.serve_one();
    world.serve_one();
    assert!(world.done.contains_key(&elsewhere));
    assert!(!world.done.contains_key(&whole));
    world.serve_one();
    assert!(world.done.contains_key(&narrow));
    assert_eq!(world.finish(whole), Ok(Answer::Done));
}

#[test]
fn overlapping_own_writes_go_one_after_the_other() {
    let mut world = World::attached();
    let first = world.write(0, &vec![1; 2 * UNIT]);
    let second = world.write(UNIT as u64, &vec![2; 2 * UNIT]);
    let beside = world.write(3 * UNIT as u64, &vec![3; UNIT]);
    world.connect();
    assert_eq!(world.asked.len(), 2, "the first and the one beside");
    world.break_osd(world.asked_osd());
    world.wait();
    world.serve();
    for id in [first, second, beside] {
        assert_eq!(world.result(id), Ok(Answer::Done));
    }
    assert_eq!(world.bytes(UNIT as u64 - 1, 2), [1, 2]);
}

#[test]
fn zeroing_frees_whole_units_and_clears_ragged_edges() {
    let mut world = World::attached();
    let id = world.write(0, &vec![7; 4 * UNIT]);
    world.finish(id).expect("written");
    let zero = Operation::Zero { offset: 100, length: 3 * UNIT as u64, durable: false };
    let id = world.ask(zero);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    let bytes = world.bytes(0, 4 * UNIT as u64);
    let zeros = bytes.iter().filter(|byte| **byte == 0).count();
    assert_eq!((bytes[99], bytes[100], zeros), (7, 0, 3 * UNIT));
    let id = world.ask(Operation::Extents { offset: 0, length: BLOCK });
    let extents = vec![
        Extent { length: UNIT as u64, allocated: true },
        Extent { length: 2 * UNIT as u64, allocated: false },
        Extent { length: UNIT as u64, allocated: true },
    ];
    assert_eq!(world.finish(id), Ok(Answer::Extents(extents)));
}

#[test]
fn extents_of_the_whole_volume_are_merged_and_clipped() {
    let mut world = World::attached();
    let id = world.write(BLOCK, &vec![7; 2 * BLOCK as usize]);
    world.finish(id).expect("written");
    let id = world.ask(Operation::Extents { offset: 10, length: SIZE - 10 });
    let extents = vec![
        Extent { length: BLOCK - 10, allocated: false },
        Extent { length: 2 * BLOCK, allocated: true },
        Extent { length: SIZE - 3 * BLOCK, allocated: false },
    ];
    assert_eq!(world.finish(id), Ok(Answer::Extents(extents)));
}

#[test]
fn the_first_flush_goes_to_every_pg_and_the_next_to_none() {
    let mut world = World::attached();
    let id = world.ask(Operation::Flush);
    world.connect();
    let mut pgs: Vec<PgId> = world.asked.iter().map(|(_, request)| request.pg).collect();
    pgs.sort();
    assert_eq!(pgs.iter().map(|pg| pg.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(world.finish(id), Ok(Answer::Done));
    let id = world.write(0, &vec![1; UNIT]);
    world.finish(id).expect("written");
    let id = world.ask(Operation::Flush);
    assert_eq!(world.result(id), Ok(Answer::Done));
}

#[test]
fn a_flush_syncs_the_pgs_with_undurable_writes_alone() {
    let mut world = World::attached();
    let id = world.ask(Operation::Flush);
    world.finish(id).expect("flushed");
    world.durable = false;
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let written = world.asked[0].1.pg;
    world.finish(id).expect("written");
    let id = world.ask(Operation::Flush);
    assert_eq!(world.asked.len(), 1);
    assert_eq!((&world.asked[0].1.op, world.asked[0].1.pg), (&Op::Sync, written));
    assert_eq!(world.finish(id), Ok(Answer::Done));
    let id = world.ask(Operation::Flush);
    assert_eq!(world.result(id), Ok(Answer::Done));
}

#[test]
fn a_sync_does_not_cover_a_write_acknowledged_after_it_was_sent() {
    let mut world = World::attached();
    let id = world.ask(Operation::Flush);
    world.finish(id).expect("flushed");
    world.durable = false;
    let id = world.write(0, &vec![1; UNIT]);
    world.finish(id).expect("written");
    let flush = world.ask(Operation::Flush);
    let write = world.write(0, &vec![2; UNIT]);
    let sync = world.next();
    world.finish(write).expect("written");
    world.reply(&sync, Ok(Outcome::Synced));
    assert_eq!(world.result(flush), Ok(Answer::Done));
    world.ask(Operation::Flush);
    assert_eq!(world.asked.len(), 1, "the later write is not covered");
}

#[test]
fn ranges_outside_the_volume_are_refused_at_once() {
    let mut world = World::attached();
    let wrong = [(SIZE, 1), (SIZE - 1, 2), (0, 0), (u64::MAX, 2), (1, u64::MAX)];
    for (offset, length) in wrong {
        for operation in [
            Operation::Read { offset, length },
            Operation::Zero { offset, length, durable: false },
            Operation::Extents { offset, length },
        ] {
            let id = world.ask(operation);
            assert_eq!(world.result(id), Err(VolumeError::OutOfRange));
        }
    }
    let id = world.write(0, &[]);
    assert_eq!(world.result(id), Err(VolumeError::OutOfRange));
    assert!(world.asked.is_empty());
}

#[test]
fn a_read_only_volume_refuses_changes_and_serves_reads() {
    let mut world = World::attached_with(None, true);
    let id = world.write(0, &[1]);
    assert_eq!(world.result(id), Err(VolumeError::ReadOnly));
    let id = world.ask(Operation::Zero { offset: 0, length: 1, durable: false });
    assert_eq!(world.result(id), Err(VolumeError::ReadOnly));
    let id = world.ask(Operation::Flush);
    assert_eq!(world.result(id), Ok(Answer::Done));
    assert_eq!(world.bytes(0, 2), [0, 0]);
}

#[test]
fn what_is_in_flight_is_bounded_and_the_rest_follows_in_order() {
    let mut world = World::attached();
    // Each PG may have a quarter.
    for of_pg in [PARTS_IN_FLIGHT_MAX / 4, PARTS_IN_FLIGHT_MAX] {
        let mut ids = Vec::new();
        for turn in 0..PARTS_IN_FLIGHT_MAX as u64 + 40 {
            let block = if of_pg == PARTS_IN_FLIGHT_MAX { block_of_pg(turn % 4) } else { 0 };
            ids.push(world.read(block * BLOCK, 1));
        }
        world.connect();
        assert_eq!(world.asked.len(), of_pg);
        world.serve_one();
        assert_eq!(world.asked.len(), of_pg);
        world.serve();
        assert!(ids.iter().all(|id| world.done.contains_key(id)));
        assert!(world.core.volumes[&VOLUME].windows.is_empty());
    }
}

/// Returns the first block of a PG.
fn block_of_pg(pg: u64) -> u64 {
    let is_of = |block: &u64| u64::from(pg_number(StripeIndex::new(*block as u32))) == pg;
    (0..64).find(is_of).expect("four PGs")
}

#[test]
fn a_pg_that_does_not_answer_stops_no_other_one() {
    let mut world = World::attached();
    let (silent, other) = (block_of_pg(0), block_of_pg(1));
    let stuck: Vec<_> = (0..1000).map(|_| world.write(silent * BLOCK, &[1])).collect();
    world.connect();
    let flush = world.ask(Operation::Flush);
    for turn in 0..1000 {
        let id = match turn % 2 {
            0 => world.write(other * BLOCK, &vec![2; UNIT]),
            _ => world.read(other * BLOCK, UNIT as u64),
        };
        while !world.done.contains_key(&id) {
            world.connect();
            let is_of_other = |(_, request): &(base::ConnectionId, Request)| request.pg.number != 0;
            let at = world.asked.iter().position(is_of_other).expect("it goes on");
            let asked = world.asked.remove(at).expect("found");
            let outcome = world.do_as_asked(&asked.1);
            world.reply(&asked, outcome);
        }
    }
    assert!(stuck.iter().all(|id| !world.done.contains_key(id)));
    assert_eq!(world.finish(flush), Ok(Answer::Done));
    assert!(stuck.iter().all(|id| world.done.contains_key(id)));
}

#[test]
fn a_flush_goes_on_with_any_pg_that_has_room_again() {
    for first in [0, 1] {
        let mut world = World::attached();
        for pg in [0, 1] {
            for _ in 0..PARTS_IN_FLIGHT_MAX / 4 {
                world.read(block_of_pg(pg) * BLOCK, 1);
            }
        }
        world.connect();
        let flush = world.ask(Operation::Flush);
        let synced = |world: &World| -> BTreeSet<u32> {
            let syncs = world.asked.iter().filter(|(_, request)| matches!(request.op, Op::Sync));
            syncs.map(|(_, request)| request.pg.number).collect()
        };
        assert_eq!(synced(&world), BTreeSet::from([2, 3]));
        let is_of_first = |(_, request): &(ConnectionId, Request)| request.pg.number == first;
        let at = world.asked.iter().position(is_of_first).expect("all were sent");
        let asked = world.asked.remove(at).expect("found");
        let outcome = world.do_as_asked(&asked.1);
        world.reply(&asked, outcome);
        assert_eq!(synced(&world), BTreeSet::from([first, 2, 3]));
        assert_eq!(world.finish(flush), Ok(Answer::Done));
    }
}

/// With a cost that grows with what waits, this takes hours.
#[test]
fn what_waits_is_judged_and_given_up_at_a_cost_of_its_own() {
    let mut world = World::attached();
    let silent = pg_number(StripeIndex::ZERO);
    let is_other = |block: &u64| pg_number(StripeIndex::new(*block as u32)) != silent;
    let other = (1..64).find(is_other).expect("four PGs") * BLOCK;
    for _ in 0..PARTS_IN_FLIGHT_MAX / 4 {
        world.read(0, 1);
    }
    world.connect();
    let sent_count = world.asked.len();
    let large = world.write(0, &vec![1; (other + BLOCK) as usize]);
    let behind: Vec<_> = (0..10_000)
        .map(|turn| world.write(other + turn % 4 * UNIT as u64, &vec![turn as u8; UNIT]))
        .collect();
    let of_silent: Vec<_> = (0..10_000).map(|_| world.read(0, 1)).collect();
    assert_eq!(world.asked.len(), sent_count);
    // From both ends of those that wait for each other; the last four writes stay.
    for turn in 0..4_998 {
        for id in [behind[turn], behind[9_995 - turn], of_silent[turn], of_silent[9_999 - turn]] {
            world.apply(Event::Cancel { id });
            assert!(matches!(world.result(id), Err(VolumeError::Unavailable { .. })));
        }
    }
    assert_eq!(world.asked.len(), sent_count);
    assert_eq!(world.finish(large), Ok(Answer::Done));
    let last: Vec<u8> = (0..4).map(|unit| world.bytes(other + unit * UNIT as u64, 1)[0]).collect();
    assert_eq!(last, [12, 13, 14, 15], "9996 to 9999");
    assert!(world.core.requests.is_empty() && world.core.volumes[&VOLUME].queue.is_empty());
}

#[test]
fn a_change_waits_behind_an_older_one_that_waits_for_room() {
    let mut world = World::attached();
    let (silent, other) = (block_of_pg(0), block_of_pg(1));
    for _ in 0..PARTS_IN_FLIGHT_MAX {
        world.read(silent * BLOCK, 1);
    }
    world.connect();
    // The write begins where there is no room, and ends in another PG.
    let (first, end) = (silent.min(other), silent.max(other) + 1);
    let both = first * BLOCK..end * BLOCK;
    let older = world.write(both.start, &vec![1; (both.end - both.start) as usize]);
    let newer = world.write(other * BLOCK, &vec![2; UNIT]);
    assert_eq!(world.finish(newer), Ok(Answer::Done));
    assert_eq!(world.result(older), Ok(Answer::Done));
    assert_eq!(world.bytes(other * BLOCK, 1), [2]);
}

#[test]
fn a_volume_is_detached_after_its_requests_ended() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; UNIT]);
    world.connect();
    let held = world.write(0, &vec![2; UNIT]);
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.result(held), Err(VolumeError::Ended), "it was not sent");
    assert!(world.detached.is_empty());
    let late = world.write(0, &vec![1; UNIT]);
    assert_eq!(world.result(late), Err(VolumeError::Ended));
    assert_eq!(world.finish(id), Err(VolumeError::Ended));
    assert_eq!(world.detached, [VOLUME]);
    let last = world.told.pop_back().expect("told");
    assert_eq!(last, ToMonitor::CloseSession { session: SESSION, unanswered: false });
    assert_eq!(world.deadline(), None);
    world.apply(Event::Close { volume: VOLUME, patient: false });
    assert_eq!(world.detached, [VOLUME, VOLUME]);
}

#[test]
fn an_error_is_answered_after_what_was_sent_has_ended() {
    let mut world = World::attached();
    let id = world.write(0, &vec![1; 2 * BLOCK as usize]);
    world.refuse(Refusal::Full);
    assert!(!world.done.contains_key(&id));
    world.serve_one();
    assert_eq!(world.result(id), Err(VolumeError::Full));
}
