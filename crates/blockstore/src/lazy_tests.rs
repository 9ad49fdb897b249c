//! Tests of lazy writes: answered when they are written, made durable on request. Until then, nothing
//! irreversible depends on them.

use base::{Duration, MIB};
use format::door::DiskEvent;

use crate::harness::{Bench, MemoryDisk, PG, key, settings};
use crate::{Answer, CommitMode, Event, Request, RequestId, Settings};

/// Returns the number of flushes so far, including those in flight.
fn flushes(bench: &Bench) -> u64 {
    bench.disk.flush_count
}

#[test]
fn a_lazy_write_is_answered_without_a_flush_and_made_durable_by_a_sync() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let before = flushes(&bench);
    let small = bench.write_lazily(1, 0, 1, 100);
    let large = bench.write_lazily(2, 0, 32, 200);
    bench.run();
    assert!(bench.is_written(small) && bench.is_written(large));
    assert_eq!(flushes(&bench), before, "nobody waits for one");
    assert_eq!(bench.done(Request::Sync), Ok(Answer::Durable));
    assert_eq!(flushes(&bench), before + 1);
    let mut disk = bench.disk;
    disk.lose_all();
    let mut bench = Bench::on(disk, settings(), 3);
    bench.assert_unit(1, 0, Some(100));
    bench.assert_unit(2, 31, Some(200));
}

#[test]
fn a_power_cut_may_lose_lazy_writes_without_a_sync_and_a_killed_process_does_not() {
    for is_power in [true, false] {
        let mut bench = Bench::new(CommitMode::Fsync);
        bench.write(1, 0, 1, 100);
        bench.run();
        let lazy = bench.write_lazily(1, 1, 1, 200);
        bench.run();
        assert!(bench.is_written(lazy));
        bench.assert_unit(1, 1, Some(200));
        let mut disk: MemoryDisk = bench.disk;
        match is_power {
            true => disk.lose_all(),
            false => disk.ops.clear(),
        }
        let mut bench = Bench::on(disk, settings(), 3);
        bench.assert_unit(1, 0, Some(100));
        bench.assert_unit(1, 1, (!is_power).then_some(200));
    }
}

#[test]
fn in_immediate_mode_lazy_makes_no_difference() {
    let mut bench = Bench::new(CommitMode::Immediate);
    let id = bench.write_lazily(1, 0, 1, 100);
    bench.run();
    assert!(bench.is_durable(id));
}

#[test]
fn a_durable_write_makes_earlier_lazy_writes_durable() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write_lazily(1, 0, 32, 100);
    bench.write_lazily(2, 0, 1, 200);
    let plain = bench.write(3, 0, 1, 300);
    bench.run();
    assert!(bench.is_durable(plain));
    let mut disk = bench.disk;
    disk.lose_all();
    let mut bench = Bench::on(disk, settings(), 3);
    for number in 1..=3 {
        bench.assert_unit(number, 0, Some(number as u64 * 100));
    }
}

/// Completes all writes to this place, or with `is_that` false all writes to other places.
fn end_writes(bench: &mut Bench, place: u64, is_that: bool) {
    while let Some(index) = bench.disk.find_write(|offset| (offset == place) == is_that) {
        let event: DiskEvent = bench.disk.end(index);
        bench.apply(Event::Disk(event));
        bench.submit();
    }
}

#[test]
fn a_lazy_write_waits_for_earlier_data_of_its_own_block_only() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let large = bench.write_lazily(1, 0, 32, 100);
    let same: RequestId = bench.write_lazily(1, 3, 1, 500);
    let other = bench.write_lazily(2, 3, 1, 600);
    bench.submit();
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    end_writes(&mut bench, place, false);
    assert!(bench.is_written(other));
    assert!(!bench.answers.contains_key(&large) && !bench.answers.contains_key(&same));
    end_writes(&mut bench, place, true);
    assert!(bench.is_written(large) && bench.is_written(same));
}

#[test]
fn an_orderly_end_records_lazy_writes_too() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let entry = bench.tail();
    bench.write_lazily(1, 0, 1, 100);
    assert_eq!(bench.done(Request::Record), Ok(Answer::Durable));
    let place = bench.place(entry) + 512;
    let mut disk = bench.off();
    disk.flip(place);
    let bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "ACF", "damage, not a torn tail");
}

#[test]
fn an_orderly_end_while_the_idle_entry_is_being_written_is_answered() {
    for commit in [CommitMode::Fsync, CommitMode::Immediate] {
        let mut bench = Bench::new(commit);
        bench.write(1, 0, 1, 100);
        bench.run();
        let before = bench.tail();
        bench.now = bench.now + Duration::from_millis(150);
        bench.apply(Event::Tick);
        assert!(bench.tail() > before, "the idle entry is under way");
        let end = bench.ask(Request::Record);
        let sync = bench.ask(Request::Sync);
        bench.run();
        assert!(bench.is_durable(end) && bench.is_durable(sync), "no event follows the last one");
    }
}

#[test]
fn an_idle_store_makes_lazy_writes_durable_and_records_that() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write_lazily(1, 0, 32, 100);
    bench.run();
    assert!(bench.store.deadline().is_some());
    bench.pass(Duration::from_millis(101));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.store.deadline(), None);
    let mut disk = bench.disk;
    disk.lose_all();
    let mut bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "AF");
    bench.assert_unit(1, 31, Some(100));
}

#[test]
fn a_write_that_waits_for_a_checkpoint_has_lazy_writes_flushed() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let size = bench.store.space().size_bytes;
    let count = (size / (128 << 10)) as u32;
    for number in 0..count {
        bench.write(number, 0, 32, 100);
        bench.run();
    }
    // The only places left are those freed by lazy writes and deletes.
    bench.delete(0);
    bench.run();
    let lazy = bench.write_lazily(1, 3, 1, 500);
    bench.run();
    assert!(bench.is_written(lazy));
    let next = bench.write(count, 0, 32, 900);
    bench.run();
    assert!(bench.is_durable(next));
}

#[test]
fn a_sync_behind_a_waiting_request_is_answered() {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..64 {
        bench.write_lazily(number, 0, 32, 100);
    }
    // The limit of large writes in flight is reached.
    let waiting = bench.write_lazily(64, 0, 32, 100);
    let sync = bench.ask(Request::Sync);
    bench.run();
    assert!(bench.is_written(waiting) && bench.is_durable(sync));
}

#[test]
fn before_its_flush_a_lazy_write_is_not_written_back_and_frees_no_place() {
    let memory = Settings { checkpoint_after_bytes: MIB, ..settings() };
    let mut bench = Bench::on(
        crate::harness::created(&crate::harness::options(CommitMode::Fsync, 512)),
        memory,
        1,
    );
    bench.write(1, 0, 32, 100);
    bench.run();
    bench.checkpoint();
    let parts = bench.store.parts();
    let old = parts.blocks.get(&key(1)).expect("it is written").location;
    let (sequence, freed) = (parts.root.sequence, parts.blocks.area.freed_bytes());
    // The block is replaced as a whole, then small writes follow until a checkpoint is due. No flush
    // completes.
    bench.write_lazily(1, 0, 32, 200);
    for round in 0..400 {
        bench.write_lazily(2, 0, 1, 1000 + round);
        bench.submit();
        while let Some(index) = bench.disk.find_write(|_| true) {
            let event = bench.disk.end(index);
            bench.apply(Event::Disk(event));
            bench.submit();
        }
    }
    let parts = bench.store.parts();
    assert!(bench.store.has_checkpoint(), "one is wanted, and waits for its flush");
    assert_eq!(parts.root.sequence, sequence);
    assert_eq!(parts.blocks.area.freed_bytes(), freed + (128 << 10));
    let is_free = bench.store.parts_mut().blocks.area.allocator.take(old, base::BlockSize::DEFAULT);
    assert!(!is_free);
    let mut disk = bench.disk;
    disk.lose_all();
    let mut bench = Bench::on(disk, settings(), 3);
    bench.assert_unit(1, 0, Some(100));
    bench.assert_unit(1, 31, Some(100));
    assert!(!bench.store.is_suspect(PG));
}
