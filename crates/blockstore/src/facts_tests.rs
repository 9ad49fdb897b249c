//! What a store reports about a PG after each row of the recovery table that may lose writes without making
//! the store suspect: either only a tail is lost, or the report shows the loss.

use base::{BlockSize, Epoch, Lsn, UNIT_SIZE, Version};

use crate::harness::{Bench, MemoryDisk, PG, key, settings};
use crate::{CommitMode, PgFacts, Request};

fn version(epoch: u32, counter: u64) -> Version {
    Version { epoch: Epoch::new(epoch), counter }
}

/// Writes with a version that the test chooses.
fn write(bench: &mut Bench, number: u32, units: u32, version: Version) {
    let mut request = bench.write_of(number, BlockSize::DEFAULT, 0, units, number as u64);
    if let Request::Write { version: of_request, .. } = &mut request {
        *of_request = version;
    }
    bench.ask(request);
}

fn place_of(bench: &Bench, number: u32) -> u64 {
    let parts = bench.store.parts();
    parts.place(parts.blocks.get(&key(number)).expect("it is written").location)
}

/// Writes versions (1, 1) to (1, 4): a small write that is recorded as durable, a whole block, and two small
/// writes. Also returns the place of the whole block's data and the LSN of the entry after it. The last three
/// writes are submitted in one turn of the loop: an entry of a later turn would record that they are durable.
fn four_writes_of_one_turn() -> (Bench, u64, Lsn) {
    let mut bench = Bench::new(CommitMode::Fsync);
    write(&mut bench, 1, 1, version(1, 1));
    bench.idle();
    write(&mut bench, 2, 32, version(1, 2));
    let behind = bench.tail();
    write(&mut bench, 3, 1, version(1, 3));
    write(&mut bench, 4, 1, version(1, 4));
    let place = place_of(&bench, 2);
    (bench, place, behind)
}

fn four_writes() -> (Bench, u64, Lsn) {
    let (mut bench, place, behind) = four_writes_of_one_turn();
    bench.run();
    (bench, place, behind)
}

fn open(disk: MemoryDisk) -> Bench {
    let bench = Bench::on(disk, settings(), 3);
    assert!(bench.opened, "{:?}", bench.stopped);
    bench
}

/// Checks that the store reports the same facts after further starts and checkpoints.
fn states(mut bench: Bench, last: Version, hole: Option<Version>) -> Bench {
    for _ in 0..2 {
        let facts = bench.store.facts(PG);
        let floor = Version::ZERO;
        assert_eq!(
            facts,
            PgFacts { last, committed: Version::ZERO, held: last, hole, floor, is_suspect: false }
        );
        bench = bench.crash();
        assert_eq!(bench.store.facts(PG), facts);
        bench.checkpoint();
    }
    bench
}

#[test]
fn an_unknown_pg_has_no_facts() {
    let bench = Bench::new(CommitMode::Fsync);
    let zero = Version::ZERO;
    let facts = PgFacts {
        last: zero,
        committed: zero,
        held: zero,
        hole: None,
        floor: zero,
        is_suspect: false,
    };
    assert_eq!(bench.store.facts(PG), facts);
}

#[test]
fn row_a_whole_entries_leave_no_hole() {
    let (bench, ..) = four_writes();
    let bench = open(bench.off());
    assert_eq!(bench.rows(), "AF");
    states(bench, version(1, 4), None);
}

#[test]
fn row_b_a_torn_tail_is_cut_not_stated() {
    let (bench, _, behind) = four_writes();
    let place = bench.place(behind) + 512;
    let mut disk = bench.off();
    disk.flip(place);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AB");
    // From the second start on, row N applies.
    states(bench, version(1, 2), None);
}

#[test]
fn rows_f_and_d_a_torn_header_ends_the_pg_not_only_the_block() {
    let (bench, _, behind) = four_writes();
    let place = bench.place(behind) + 20;
    let mut disk = bench.off();
    disk.flip(place);
    states(open(disk), version(1, 2), None);
}

#[test]
fn rows_c_and_v_lost_data_is_damage_of_units_and_no_hole() {
    for is_acked in [true, false] {
        let (mut bench, _, behind) = four_writes();
        if is_acked {
            bench.idle();
        }
        let place = bench.place(behind) + 512;
        let mut disk = bench.off();
        disk.unreadable = Some((place, place + 512));
        let mut bench = open(disk);
        assert!(bench.rows().contains(if is_acked { 'C' } else { 'V' }), "{}", bench.rows());
        assert!(bench.read(3, 0, 1).is_err(), "it is known what is lost");
        states(bench, version(1, 4), None);
    }
}

#[test]
fn row_x_lost_large_data_is_damage_of_units_and_no_hole() {
    let (bench, place, _) = four_writes();
    let mut disk = bench.off();
    disk.unreadable = Some((place, place + 512));
    let mut bench = open(disk);
    assert!(bench.rows().contains('X'));
    assert!(bench.read(2, 0, 1).is_err());
    states(bench, version(1, 4), None);
}

#[test]
fn row_h_a_dropped_entry_is_stated_until_a_write_of_a_higher_epoch() {
    let (bench, place, _) = four_writes();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert!(bench.rows().contains('H'), "{}", bench.rows());
    let mut bench = states(bench, version(1, 4), Some(version(1, 2)));
    // The hole stays after a write of the same epoch and after a repair.
    write(&mut bench, 9, 1, version(1, 5));
    let repair = bench.content(version(2, 6), &[0], &[0], 5);
    bench.repair(8, repair);
    bench.run();
    let mut bench = bench.crash();
    assert_eq!(bench.store.facts(PG).hole, Some(version(1, 2)));
    write(&mut bench, 9, 1, version(2, 7));
    bench.run();
    states(bench, version(2, 7), None);
}

#[test]
fn row_h_the_newest_write_may_be_the_one_that_is_dropped() {
    let mut bench = Bench::new(CommitMode::Fsync);
    write(&mut bench, 1, 1, version(1, 1));
    bench.idle();
    write(&mut bench, 2, 32, version(1, 2));
    bench.run();
    let place = place_of(&bench, 2);
    let mut disk = bench.off();
    disk.flip(place);
    states(open(disk), version(1, 1), Some(version(1, 2)));
}

#[test]
fn row_p_the_lowest_dropped_version_is_stated() {
    let mut bench = Bench::new(CommitMode::Fsync);
    write(&mut bench, 1, 1, version(1, 1));
    bench.idle();
    write(&mut bench, 2, 32, version(1, 2));
    write(&mut bench, 3, 1, version(1, 3));
    write(&mut bench, 2, 1, version(1, 4));
    bench.ask(Request::Delete { pg: PG, key: key(1), version: version(1, 5) });
    bench.run();
    let place = place_of(&bench, 2);
    let mut disk = bench.off();
    disk.flip(place + UNIT_SIZE);
    let bench = open(disk);
    assert!(bench.rows().contains('P'), "{}", bench.rows());
    let bench = states(bench, version(1, 5), Some(version(1, 2)));
    assert_eq!(bench.store.version_of(&key(2)), Version::ZERO);
}

#[test]
fn row_o_a_dropped_entry_is_stated_again_although_its_data_is_whole_again() {
    let (bench, place, _) = four_writes();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let mut disk = open(disk).off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert!(bench.rows().contains('O'), "{}", bench.rows());
    states(bench, version(1, 4), Some(version(1, 2)));
}

#[test]
fn a_drop_is_stated_only_for_the_epoch_of_the_last_write() {
    // A version of epoch 1 is dropped, but a write of epoch 2 follows.
    let (mut bench, place, _) = four_writes_of_one_turn();
    write(&mut bench, 5, 1, version(2, 5));
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert!(bench.rows().contains('H'), "{}", bench.rows());
    states(bench, version(2, 5), None);
    // A version of epoch 2 is dropped, and no other write of epoch 2 exists: all of epoch 1 is present.
    let mut bench = Bench::new(CommitMode::Fsync);
    write(&mut bench, 1, 1, version(1, 1));
    bench.idle();
    write(&mut bench, 2, 32, version(2, 2));
    bench.run();
    let place = place_of(&bench, 2);
    let mut disk = bench.off();
    disk.flip(place);
    states(open(disk), version(1, 1), None);
}

#[test]
fn drops_of_one_pg_say_nothing_of_another() {
    let (mut bench, place, _) = four_writes_of_one_turn();
    let other = base::PgId { number: PG.number + 1, ..PG };
    let request = bench.write_of(6, BlockSize::DEFAULT, 0, 1, 6);
    let Request::Write { key, block_size, offset, checksums, data, .. } = request else {
        panic!("a write")
    };
    let version = version(1, 9);
    let (pg, lazy) = (other, false);
    bench.ask(Request::Write { pg, key, block_size, version, offset, checksums, data, lazy });
    bench.run();
    let mut disk = bench.off();
    disk.flip(place);
    let bench = open(disk);
    assert_eq!(bench.store.facts(other).hole, None);
    assert_eq!(bench.store.facts(other).last, version);
    assert!(bench.store.facts(PG).hole.is_some());
}

#[test]
fn a_floor_may_be_above_a_hole() {
    let mut bench = Bench::new(CommitMode::Fsync);
    write(&mut bench, 1, 1, version(1, 1));
    bench.idle();
    // Write a whole block of another PG. The disk delays its data.
    let mut slow = bench.write_of(8, BlockSize::DEFAULT, 0, 32, 8);
    if let Request::Write { pg, .. } = &mut slow {
        pg.number += 1;
    }
    bench.ask(slow);
    let slow = place_of(&bench, 8);
    let mut request = bench.write_of(2, BlockSize::DEFAULT, 0, 32, 2);
    if let Request::Write { version: of, .. } = &mut request {
        *of = version(1, 2);
    }
    let id = bench.ask(request);
    let place = place_of(&bench, 2);
    let go = |bench: &mut Bench| loop {
        bench.submit();
        let is_slow = bench.disk.find_write(|offset| offset == slow);
        let count = bench.disk.ops.len();
        let Some(index) = (0..count).find(|index| Some(*index) != is_slow) else { break };
        let event = bench.disk.end(index);
        bench.apply(crate::Event::Disk(event));
    };
    go(&mut bench);
    assert!(bench.is_durable(id), "it was answered: the mark may pass it");
    let floor = bench.ask(Request::SetFloor { pg: PG, floor: version(1, 2) });
    go(&mut bench);
    assert!(bench.is_durable(floor));
    // The disk lost the block's data although it confirmed the flush. It lost nothing else.
    let mut disk = bench.off();
    disk.flip(place + 5);
    let bench = open(disk);
    // Therefore a primary must not treat versions below this floor as complete.
    let facts = bench.store.facts(PG);
    assert_eq!((facts.hole, facts.floor), (Some(version(1, 2)), version(1, 2)));
    assert!(!facts.is_suspect);
}
