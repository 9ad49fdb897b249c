//! Tests of how full a store can get, with blocks of several sizes.

use base::{BlockSize, Checksum, GIB, MIB, UNIT_SIZE};

use crate::harness::{Bench, PG, created, key, options, settings};
use crate::{CommitMode, CreateOptions, Request, RequestId, Settings};

fn bench_of(size: u64, is_sparse: bool) -> Bench {
    let options = CreateOptions { size, ..options(CommitMode::Fsync, 512) };
    Bench::on(created(&options), Settings { is_sparse, ..settings() }, 1)
}

/// One of so many blocks has a content of its own.
const SAMPLE: u32 = 16;

/// Writes a whole block of zeros: they take no memory below, and a place here.
fn write_zeros(bench: &mut Bench, number: u32, block_size: BlockSize) -> RequestId {
    let version = bench.next_version();
    let data = bench.pool.take_zeroed(block_size.bytes() as usize).freeze();
    let count = block_size.bytes() / UNIT_SIZE;
    let checksums = vec![Checksum::ZERO_UNIT; count as usize];
    let (pg, key, lazy) = (PG, key(number), false);
    bench.ask(Request::Write { pg, key, block_size, version, offset: 0, checksums, data, lazy })
}

/// Writes new blocks from `first` on until the store says that it is full; returns how many.
fn fill(bench: &mut Bench, first: u32, block_size: BlockSize) -> u32 {
    let mut count = 0;
    while !bench.store.space().full {
        // Most are zeros, which take no memory here; some tell what they are.
        let id = match count % SAMPLE {
            0 => {
                let units = block_size.unit_count();
                let number = first + count;
                let request = bench.write_of(number, block_size, 0, units, number.into());
                bench.ask(request)
            }
            _ => write_zeros(bench, first + count, block_size),
        };
        // What waits is not counted as used yet.
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
fn a_store_of_the_smallest_blocks_is_full_when_nothing_is_available() {
    for size in [GIB / 8, GIB / 2] {
        let mut bench = bench_of(size, false);
        bench.store.expect_blocks(std::iter::once(BlockSize::MIN));
        let told = bench.store.space();
        let count = fill(&mut bench, 0, BlockSize::MIN);
        let written = u64::from(count) * BlockSize::MIN.bytes();
        assert!(written + MIB >= told.free_bytes, "{written} of {} bytes", told.free_bytes);
        assert!(bench.store.space().free_bytes <= MIB);
        assert!(told.free_bytes * 50 >= told.size_bytes * 49 - 100 * MIB, "the reserve is small");
        // All of it is there after a checkpoint and a start.
        bench.checkpoint();
        let bench = Bench::on(bench.off(), settings(), 2);
        assert!(bench.opened, "{:?}", bench.stopped);
        assert_eq!(bench.store.space().used_bytes, written);
    }
}

/// A number that seems drawn by chance, and is the same for the same block.
fn chance(number: u32) -> u32 {
    base::crc32c(&number.to_le_bytes()).get() % 100
}

/// Fills a store with blocks of one size, deletes some of them here and there, then fills it with
/// blocks of another size.
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
fn what_is_available_beside_scattered_blocks_of_other_sizes_can_be_written() {
    let sizes = [14, 17, 20].map(|shift| BlockSize::from_shift(shift).expect("it is one"));
    let [small, middle, large] = sizes;
    fill_thin_fill([small, middle], 50, false);
    fill_thin_fill([middle, small], 30, true);
    fill_thin_fill([small, large], 70, false);
    fill_thin_fill([middle, large], 50, true);
}
