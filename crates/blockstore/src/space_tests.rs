//! Tests of how full a store can get, with blocks of several sizes.

use base::{BlockSize, Checksum, GIB, MIB, UNIT_SIZE};

use crate::harness::{Bench, PG, created, key, options, settings};
use crate::{CommitMode, CreateOptions, Request, RequestId};

fn bench_of(size: u64) -> Bench {
    let options = CreateOptions { size, ..options(CommitMode::Fsync, 512) };
    Bench::on(created(&options), settings(), 1)
}

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
    bench.store.expect_blocks(std::iter::once(block_size));
    let mut count = 0;
    while !bench.store.space().full {
        let id = write_zeros(bench, first + count, block_size);
        if count % 16 == 15 {
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
        let mut bench = bench_of(size);
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
