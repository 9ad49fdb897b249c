//! Tests of how full a store can get, with blocks of several sizes.

use base::{BlockSize, Checksum, Duration, GIB, MIB, UNIT_SIZE};

use crate::harness::{Bench, Op, PG, created, key, options, settings};
use crate::{CommitMode, CreateOptions, Event, Request, RequestId, Settings};

fn bench_of(size: u64, is_sparse: bool) -> Bench {
    let options = CreateOptions { size, ..options(CommitMode::Fsync, 512) };
    Bench::on(created(&options), Settings { is_sparse, ..settings() }, 1)
}

/// One block in this many has its own content.
const SAMPLE: u32 = 16;

/// Writes a whole block of zeros, which takes a place in the store but no memory in the test disk.
fn write_zeros(bench: &mut Bench, number: u32, block_size: BlockSize) -> RequestId {
    let version = bench.next_version();
    let data = bench.pool.take_zeroed(block_size.bytes() as usize).freeze();
    let count = block_size.bytes() / UNIT_SIZE;
    let checksums = vec![Checksum::ZERO_UNIT; count as usize];
    let (pg, key, lazy) = (PG, key(number), false);
    bench.ask(Request::Write { pg, key, block_size, version, offset: 0, checksums, data, lazy })
}

/// Writes new blocks, beginning with number `first`, until the store reports that it is full. Returns the
/// number of blocks written.
fn fill(bench: &mut Bench, first: u32, block_size: BlockSize) -> u32 {
    let mut count = 0;
    while !bench.store.space().full {
        // Most blocks are zeros, which take no memory; some have identifiable content.
        let id = match count % SAMPLE {
            0 => {
                let units = block_size.unit_count();
                let number = first + count;
                let request = bench.write_of(number, block_size, 0, units, number.into());
                bench.ask(request)
            }
            _ => write_zeros(bench, first + count, block_size),
        };
        // Used space does not yet include waiting requests.
        if count % 16 == 15 || bench.store.is_congested() {
            bench.run();
        }
        count += 1;
        assert!(!bench.answers.get(&id).is_some_and(Result::is_err), "block {count} is refused");
    }
    bench.run();
    assert!(bench.answers.values().all(Result::is_ok), "refused before the store says full");
    count
}

#[test]
fn a_store_of_the_smallest_blocks_is_full_when_no_space_is_available() {
    for size in [GIB / 8, GIB / 2] {
        let mut bench = bench_of(size, false);
        bench.store.expect_blocks(std::iter::once(BlockSize::MIN));
        let told = bench.store.space();
        let count = fill(&mut bench, 0, BlockSize::MIN);
        let written = u64::from(count) * BlockSize::MIN.bytes();
        assert!(written + MIB >= told.free_bytes, "{written} of {} bytes", told.free_bytes);
        assert!(bench.store.space().free_bytes <= MIB);
        assert!(told.free_bytes * 50 >= told.size_bytes * 49 - 100 * MIB, "the reserve is small");
        // All blocks still exist after a checkpoint and a start.
        bench.checkpoint();
        let bench = Bench::on(bench.off(), settings(), 2);
        assert!(bench.opened, "{:?}", bench.stopped);
        assert_eq!(bench.store.space().used_bytes, written);
    }
}

/// Returns a pseudo-random number that depends only on the block's number.
fn chance(number: u32) -> u32 {
    base::crc32c(&number.to_le_bytes()).get() % 100
}

/// Fills a store with blocks of one size, deletes some of them at random, then fills the store with blocks
/// of another size.
fn fill_thin_fill([first, second]: [BlockSize; 2], kept_percent: u32, is_sparse: bool) {
    let mut bench = bench_of(GIB / 8, is_sparse);
    bench.store.expect_blocks([first, second].into_iter());
    let count = fill(&mut bench, 0, first);
    let is_kept = |number: &u32| chance(*number) < kept_percent;
    for number in (0..count).filter(|number| !is_kept(number)) {
        bench.delete(number);
        if number % 16 == 0 {
            bench.run();
        }
    }
    bench.run();
    let told = bench.store.space();
    let others = fill(&mut bench, count, second);
    let written = u64::from(others) * second.bytes();
    let mean = told.size_bytes / 100 * u64::from(100 - kept_percent);
    assert!(told.free_bytes + 8 * MIB > mean, "{told:?}");
    assert!(written + 2 * MIB + second.bytes() > told.free_bytes, "{written} bytes of {told:?}");
    assert!(bench.store.moved_bytes() > 0);
    for _ in 0..2 {
        let samples = (0..count + others).filter(|number| match *number < count {
            true => number.is_multiple_of(SAMPLE) && is_kept(number),
            false => (number - count).is_multiple_of(SAMPLE),
        });
        for number in samples {
            bench.assert_unit(number, 3, Some(number.into()));
        }
        bench = bench.crash();
    }
}

#[test]
fn available_space_can_be_written_although_it_lies_between_blocks_of_other_sizes() {
    let sizes = [14, 17, 20].map(|shift| BlockSize::from_shift(shift).expect("it is one"));
    let [small, middle, large] = sizes;
    fill_thin_fill([small, middle], 50, false);
    fill_thin_fill([middle, small], 30, true);
    fill_thin_fill([small, large], 70, false);
    fill_thin_fill([middle, large], 50, true);
}

/// Requests a checkpoint, and runs until only discards are outstanding.
fn checkpoint_but_discards(bench: &mut Bench) {
    bench.store.parts_mut().wants_checkpoint = true;
    bench.apply(Event::Tick);
    loop {
        bench.submit();
        let mut ops = bench.disk.ops.values();
        let Some(index) = ops.position(|op| !matches!(op, Op::Discard(..))) else { return };
        let event = bench.disk.end(index);
        bench.apply(Event::Disk(event));
    }
}

#[test]
fn discards_that_a_crash_prevented_are_repeated_by_the_next_start() {
    for is_sparse in [false, true] {
        let settings = Settings { is_sparse, ..settings() };
        let mut bench = Bench::on(created(&options(CommitMode::Fsync, 512)), settings, 1);
        for number in 0..48 {
            bench.write(number, 0, 32, u64::from(number));
            bench.run();
        }
        let is_deleted = |number: &u32| number.is_multiple_of(3) || (16..32).contains(number);
        let parts = bench.store.parts();
        let place_of = |number| {
            let info = parts.blocks.get(&key(number)).expect("it was written");
            parts.place(info.location)
        };
        let places: Vec<u64> = (0..48).filter(is_deleted).map(place_of).collect();
        for number in (0..48).filter(is_deleted) {
            bench.delete(number);
        }
        // The checkpoint that frees the places is durable, but none of the discards is done.
        checkpoint_but_discards(&mut bench);
        assert!(!bench.disk.ops.is_empty() && bench.disk.discarded.is_empty());
        // The same again, with another checkpoint after the crash.
        bench = bench.crash();
        checkpoint_but_discards(&mut bench);
        bench = bench.crash();
        bench.write(100, 0, 32, 100);
        bench.run();
        let taken = {
            let parts = bench.store.parts();
            parts.place(parts.blocks.get(&key(100)).expect("it was written").location)
        };
        bench.pass(Duration::from_secs(2));
        let is_given_back = |place: &u64| {
            let mut discarded = bench.disk.discarded.iter();
            discarded.any(|(from, length)| (*from..from + length).contains(place))
        };
        let (done, left): (Vec<u64>, Vec<u64>) =
            places.iter().filter(|place| **place != taken).partition(|place| is_given_back(place));
        // In a sparse file, space reserved for the next blocks is kept.
        let parts = bench.store.parts();
        let is_idle = |place: &u64| {
            let index = ((place - parts.place(0)) / MIB) as u32;
            let mut idle = parts.blocks.area.allocator.idle_slots(index).into_iter();
            idle.any(|slot| {
                let start = parts.place(slot.location);
                (start..start + slot.block_size.bytes()).contains(place)
            })
        };
        assert!(!done.is_empty() && (is_sparse || left.is_empty()), "{left:?} of {places:?}");
        assert!(!left.iter().any(is_idle), "{left:?} of {places:?}");
        for number in (0..48).filter(|number| !is_deleted(number)).chain([100]) {
            bench.assert_unit(number, 5, Some(u64::from(number)));
        }
        assert_eq!(bench.store.space().used_bytes, (48 - places.len() as u64 + 1) << 17);
        // The discards are done: later starts do not repeat them.
        bench.checkpoint();
        bench = bench.crash();
        bench.disk.discarded.clear();
        bench.pass(Duration::from_secs(2));
        assert_eq!(bench.disk.discarded, []);
    }
}
