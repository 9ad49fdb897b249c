//! Tests of part tables: a table changes together with its block's version and units, and no crash,
//! checkpoint or move separates them.

use base::{BlockSize, MIB, Version};
use format::disk::{record_size, table_size};
use format::wire::{Content, Digest};

use crate::harness::{Bench, PG, created, key, options, settings};
use crate::prepared_tests::churn;
use crate::{Answer, AsOf, CommitMode, PreparedRoom, Request, Settings, StoreError};

/// Returns a table of four rows with this tag.
fn table(tag: u8) -> Vec<u8> {
    let mut table = vec![0; table_size(BlockSize::DEFAULT, 4)];
    for (number, row) in (1u8..).zip(table.chunks_exact_mut(20)) {
        (row[0], row[4], row[12]) = (number, tag, tag);
    }
    table
}

fn with_table(mut content: Content, tag: u8) -> Content {
    let Content::Block { table: of, .. } = &mut content else { panic!("a block") };
    *of = table(tag);
    content
}

/// Prepares the next version, in which `units` hold `tag`. With `has_table`, the part table holds `tag` too;
/// otherwise the table stays as it is.
fn prepare(bench: &mut Bench, units: std::ops::Range<u32>, tag: u8, has_table: bool) -> Version {
    let version = bench.next_version();
    let units: Vec<u32> = units.collect();
    let content = bench.content(version, &units, &units, u64::from(tag));
    let content = if has_table { with_table(content, tag) } else { content };
    let id = bench.prepare(1, version, content, None, false);
    bench.run();
    assert!(bench.is_durable(id), "{:?}", bench.answers.get(&id));
    version
}

/// Checks the version and the table of block 1 in the state selected by `as_of`. Tag 0: the block has no
/// table.
fn assert_table(bench: &mut Bench, as_of: AsOf, version: Version, tag: u8) {
    for units in [vec![], vec![1], vec![1 << 31]] {
        let answer = bench.done(Request::Copy { key: key(1), units, as_of });
        let Ok(Answer::Copy { content }) = answer else { panic!("{answer:?}") };
        content.check().expect("it agrees with itself");
        let Content::Block { version: of, table: found, .. } = content else {
            panic!("{content:?} is no block");
        };
        let wanted = if tag == 0 { Vec::new() } else { table(tag) };
        assert_eq!((of, found), (version, wanted), "{as_of:?}");
    }
}

/// Checks the table in digests of block 1.
fn assert_digest_table(bench: &mut Bench, tag: u8) {
    for deep in [false, true] {
        let answer = bench.done(Request::Digest { key: key(1), deep });
        let Ok(Answer::Digest(Digest::Block { table: found, .. })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(found, table(tag), "deep: {deep}");
    }
}

/// Makes the store read its leaves again.
fn forget_leaves(bench: &mut Bench) {
    let pages = &mut bench.store.parts_mut().pages;
    let leaves: Vec<u32> = pages.directory().values().map(|leaf| leaf.page).collect();
    leaves.into_iter().for_each(|page| pages.forget(page));
}

#[test]
fn a_table_goes_with_its_version_over_crashes_and_checkpoints() {
    for commit in [CommitMode::Fsync, CommitMode::Immediate] {
        for second in [0..1, 3..32, 0..32] {
            let mut bench = Bench::new(commit);
            let first = prepare(&mut bench, 0..2, 1, true);
            bench.commit(first);
            let second = prepare(&mut bench, second, 2, true);
            let third = prepare(&mut bench, 5..6, 3, false);
            for round in 0..4 {
                assert_table(&mut bench, AsOf::Stable, first, 1);
                assert_table(&mut bench, AsOf::Version(second), second, 2);
                assert_table(&mut bench, AsOf::View, third, 2);
                assert_digest_table(&mut bench, 2);
                match round {
                    1 => bench.checkpoint(),
                    _ => bench = bench.crash(),
                }
                forget_leaves(&mut bench);
            }
            bench.commit(second);
            bench.checkpoint();
            bench = bench.crash();
            assert_table(&mut bench, AsOf::Stable, second, 2);
            assert_table(&mut bench, AsOf::View, third, 2);
            bench.settle(second).expect("nothing above is stable");
            for _ in 0..2 {
                bench.checkpoint();
                bench = bench.crash();
                forget_leaves(&mut bench);
                assert_digest_table(&mut bench, 2);
                assert_table(&mut bench, AsOf::View, second, 2);
            }
        }
    }
}

#[test]
fn a_version_that_is_taken_back_leaves_the_table_below() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let first = prepare(&mut bench, 0..2, 1, true);
    bench.commit(first);
    bench.checkpoint();
    for units in [0..1, 0..32] {
        bench.next_epoch();
        prepare(&mut bench, units, 2, true);
        bench.settle(first).expect("nothing above is stable");
        bench = bench.crash();
        assert_table(&mut bench, AsOf::View, first, 1);
        bench.checkpoint();
        bench = bench.crash();
        assert_table(&mut bench, AsOf::View, first, 1);
    }
}

#[test]
fn a_deletion_drops_the_table_and_nothing_brings_it_back() {
    for is_repair in [false, true] {
        let mut bench = Bench::new(CommitMode::Fsync);
        let first = prepare(&mut bench, 0..2, 1, true);
        bench.commit(first);
        bench.checkpoint();
        let version = bench.next_version();
        let gone = Content::Tombstone { version };
        if is_repair {
            bench.repair(1, gone);
        } else {
            bench.prepare(1, version, gone, None, false);
            bench.run();
            bench.commit(version);
        }
        bench.run();
        let later = match is_repair {
            true => {
                let later = bench.next_version();
                let content = bench.content(later, &[0], &[0], 2);
                bench.repair(1, content);
                bench.run();
                later
            }
            false => prepare(&mut bench, 0..1, 2, false),
        };
        for _ in 0..3 {
            assert_table(&mut bench, AsOf::View, later, 0);
            bench.commit(later);
            bench.checkpoint();
            bench = bench.crash();
        }
    }
}

#[test]
fn a_repair_brings_a_table_or_leaves_it() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let all: Vec<u32> = (0..32).collect();
    let mut tag = 0;
    for (units, has_table) in
        [(&[0][..], true), (&[1], false), (&all, false), (&[2], true), (&all, true)]
    {
        let version = bench.next_version();
        let content = bench.content(version, units, units, 7);
        tag += u8::from(has_table);
        let content = if has_table { with_table(content, tag) } else { content };
        let id = bench.repair(1, content);
        bench.run();
        assert!(bench.is_durable(id));
        for _ in 0..2 {
            assert_table(&mut bench, AsOf::View, version, tag);
            bench = bench.crash();
            bench.checkpoint();
            forget_leaves(&mut bench);
        }
    }
}

#[test]
fn a_block_without_data_has_a_table() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let zeros = |bench: &mut Bench, tag: u8| {
        let version = bench.next_version();
        let all: Vec<u32> = (0..32).collect();
        let content = with_table(bench.content(version, &all, &[], 0), tag);
        bench.prepare(1, version, content, None, false);
        bench.run();
        version
    };
    // The block is all zeros: it never had data, or it became zeros in one step or unit by unit.
    let mut last = zeros(&mut bench, 1);
    for (round, tag) in (2..8).enumerate() {
        assert_digest_table(&mut bench, tag - 1);
        assert_table(&mut bench, AsOf::View, last, tag - 1);
        bench.commit(last);
        bench.checkpoint();
        bench = bench.crash();
        forget_leaves(&mut bench);
        assert!(!bench.store.has_place(&key(1)) || round % 2 == 1);
        assert_table(&mut bench, AsOf::Stable, last, tag - 1);
        last = match round % 2 {
            0 => prepare(&mut bench, 0..1, tag, true),
            _ => zeros(&mut bench, tag),
        };
    }
    assert_eq!(bench.store.version_as_of(&key(1), AsOf::View), last);
}

#[test]
fn an_emptied_block_keeps_its_table_when_it_gives_its_place_back() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let first = prepare(&mut bench, 0..2, 1, true);
    bench.commit(first);
    bench.checkpoint();
    let version = bench.next_version();
    let content = bench.content(version, &[0, 1], &[], 0);
    bench.prepare(1, version, content, None, false);
    bench.run();
    bench.commit(version);
    bench.checkpoint();
    assert!(!bench.store.has_place(&key(1)));
    for _ in 0..2 {
        assert_table(&mut bench, AsOf::View, version, 1);
        bench = bench.crash();
        forget_leaves(&mut bench);
    }
}

#[test]
fn tables_are_copied_with_old_versions() {
    let settings = Settings { memory_bytes: 4 * MIB, ..settings() };
    let mut bench = Bench::on(created(&options(CommitMode::Fsync, 512)), settings, 5);
    let first = prepare(&mut bench, 0..2, 1, true);
    bench.commit(first);
    let small = prepare(&mut bench, 0..1, 2, true);
    let large = prepare(&mut bench, 0..32, 3, true);
    for _ in 0..3 {
        churn(&mut bench, 9 * MIB);
        bench.checkpoint();
        bench = bench.crash();
        assert_table(&mut bench, AsOf::Stable, first, 1);
        assert_table(&mut bench, AsOf::Version(small), small, 2);
        assert_table(&mut bench, AsOf::View, large, 3);
    }
}

#[test]
fn a_table_is_lost_with_its_leaf_and_comes_back_with_a_version() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let first = prepare(&mut bench, 0..2, 1, true);
    bench.commit(first);
    bench.checkpoint();
    let mut bench = bench.crash();
    let parts = bench.store.parts_mut();
    let (_, leaf) = parts.pages.leaf_of(&key(1)).expect("it is there");
    let place = parts.page_place(leaf.page);
    parts.pages.forget(leaf.page);
    bench.disk.flip(place + 200);
    assert_table(&mut bench, AsOf::View, first, 0);
    // The next version contains no table, and covers all units.
    let second = prepare(&mut bench, 0..32, 2, false);
    bench.commit(second);
    bench.checkpoint();
    for _ in 0..2 {
        assert_table(&mut bench, AsOf::View, second, 0);
        bench = bench.crash();
    }
    let third = prepare(&mut bench, 0..1, 3, true);
    bench.commit(third);
    for _ in 0..3 {
        assert_table(&mut bench, AsOf::View, third, 3);
        bench.checkpoint();
        bench = bench.crash();
    }
}

#[test]
fn tables_that_do_not_fit_the_block_are_refused() {
    let mut bench = Bench::new(CommitMode::Fsync);
    for size in [1, 19, 21, 17 * 20] {
        let version = bench.next_version();
        let mut content = bench.content(version, &[0], &[0], 1);
        let Content::Block { table, .. } = &mut content else { panic!("a block") };
        *table = vec![0; size];
        let repair = Request::Repair { pg: PG, key: key(1), content: content.clone() };
        assert_eq!(bench.done(repair), Err(StoreError::Corrupted), "{size}");
        let id = bench.prepare(1, version, content, None, false);
        bench.run();
        assert_eq!(bench.answers.remove(&id), Some(Err(StoreError::Corrupted)), "{size}");
    }
    assert_eq!(bench.store.version_of(&key(1)), Version::ZERO);
}

#[test]
fn tables_count_in_the_room_for_records_and_for_versions() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let before = bench.store.parts().blocks.index().record_bytes();
    let free = bench.store.prepared_room().free_bytes();
    let first = prepare(&mut bench, 0..2, 1, true);
    let size = (record_size(BlockSize::DEFAULT, true) + 80) as u64;
    assert_eq!(bench.store.parts().blocks.prepared.growth(), size);
    let used = free - bench.store.prepared_room().free_bytes();
    assert!(used <= PreparedRoom::cost_of(2), "{used}");
    bench.commit(first);
    assert_eq!(bench.store.parts().blocks.prepared.growth(), 0);
    for _ in 0..2 {
        let parts = bench.store.parts();
        assert_eq!(parts.blocks.index().record_bytes(), before + size);
        bench.checkpoint();
        let (_, leaf) = bench.store.parts().pages.leaf_of(&key(1)).expect("it is there");
        assert_eq!(u64::from(leaf.used), size);
        bench = bench.crash();
    }
}
