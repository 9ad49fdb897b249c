//! Tests of the check of a store's metadata: damage is found while memory still has what was lost, it is
//! repaired, and nothing else counts as damage.

use base::MIB;
use format::disk::SUPERBLOCK_OFFSETS;
use format::door::DiskOp;

use crate::harness::{Bench, Op, PG, key, settings};
use crate::{
    Answer, CommitMode, Event, MetadataFault, MetadataFinding, MetadataPart, MetadataPosition,
    MetadataRepair, MetadataReport, Request,
};

/// Returns a store with 800 blocks in several leaves, which a checkpoint has written.
fn store() -> Bench {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..800 {
        bench.write(number, 0, 1, 100);
        if number % 64 == 0 {
            bench.run();
        }
    }
    bench.checkpoint();
    let bench = bench.crash();
    assert!(bench.store.parts().pages.directory().len() > 10);
    bench
}

fn portion(bench: &mut Bench, after: Option<MetadataPosition>, page_count: u32) -> MetadataReport {
    match bench.done(Request::CheckMetadata { after, page_count }) {
        Ok(Answer::Metadata(report)) => report,
        other => panic!("{other:?} is no report"),
    }
}

/// Checks everything in portions of so many pages. Returns what was found, and how many bytes were read.
fn check(bench: &mut Bench, page_count: u32) -> (Vec<MetadataFinding>, u64) {
    let (mut findings, mut bytes, mut after) = (Vec::new(), 0, None);
    loop {
        let report = portion(bench, after, page_count);
        assert!(report.bytes <= u64::from(page_count) * 4096);
        bytes += report.bytes;
        findings.extend(report.findings);
        after = report.next;
        if after.is_none() {
            return (findings, bytes);
        }
    }
}

fn leaf_place(bench: &Bench, number: u32) -> (u32, u64) {
    let parts = bench.store.parts();
    let (_, leaf) = parts.pages.leaf_of(&key(number)).expect("it is there");
    (leaf.page, parts.page_place(leaf.page))
}

fn stream_place(bench: &Bench, index: usize) -> u64 {
    let parts = bench.store.parts();
    parts.page_place(parts.stream_pages[index].page)
}

fn assert_whole(bench: &mut Bench) {
    for number in 0..800 {
        bench.assert_unit(number, 0, Some(100));
    }
}

/// Damages a whole store's metadata, expects one finding, and a store that is whole after a restart.
fn repaired(damage: impl Fn(&mut Bench) -> u64, part: MetadataPart, repair: MetadataRepair) {
    for page_count in [1, 256] {
        let mut bench = store();
        let offset = damage(&mut bench);
        let before = bench.store.damaged_units_count();
        let finding = MetadataFinding { part, offset, fault: MetadataFault::Damaged, repair };
        assert_eq!(check(&mut bench, page_count).0, [finding]);
        assert_eq!(bench.store.damaged_units_count(), before + 1);
        bench.run();
        assert!(!bench.store.has_checkpoint());
        assert_eq!(check(&mut bench, page_count).0, [], "it is repaired");
        assert_whole(&mut bench);
        let mut bench = bench.crash();
        assert!(!bench.rows().contains(['Q', 'R', 'S', 'Y']), "{}", bench.rows());
        assert!(!bench.store.is_suspect(PG));
        assert_whole(&mut bench);
    }
}

#[test]
fn a_whole_store_has_no_findings() {
    let mut bench = store();
    let parts = bench.store.parts();
    let page_count = 3 + parts.stream_pages.len() + parts.pages.directory().len();
    for portion in [1, 7, 256] {
        assert_eq!(check(&mut bench, portion), (vec![], page_count as u64 * 4096));
    }
    // Changes since the checkpoint make no difference.
    for number in 0..900 {
        match number % 3 {
            0 => bench.write(number, 1, 1, 100),
            1 => bench.delete(number),
            _ => bench.zero(number, 0, 32),
        };
    }
    bench.run();
    assert_eq!(check(&mut bench, 256).0, []);
    bench.checkpoint();
    assert_eq!(check(&mut bench, 256).0, []);
    // A new store without a checkpoint.
    assert_eq!(check(&mut Bench::new(CommitMode::Immediate), 256).0, []);
}

#[test]
fn a_damaged_superblock_is_written_again() {
    for offset in SUPERBLOCK_OFFSETS {
        let damage = |bench: &mut Bench| {
            bench.disk.flip(offset + 100);
            offset
        };
        repaired(damage, MetadataPart::Superblock, MetadataRepair::Rewritten);
    }
}

#[test]
fn two_damaged_superblocks_are_written_one_after_the_other() {
    let mut bench = store();
    SUPERBLOCK_OFFSETS.iter().for_each(|offset| bench.disk.flip(offset + 100));
    let sequence = bench.store.parts().superblock.sequence;
    bench.ask(Request::CheckMetadata { after: None, page_count: 2 });
    while bench.disk.find_write(|offset| SUPERBLOCK_OFFSETS.contains(&offset)).is_none() {
        assert!(bench.step());
    }
    let [first, second] = SUPERBLOCK_OFFSETS;
    assert!(bench.disk.find_write(|offset| offset == first).is_some());
    assert!(bench.disk.find_write(|offset| offset == second).is_none());
    bench.run();
    assert_eq!(bench.store.parts().superblock.sequence, sequence + 2);
    let mut bench = bench.crash();
    assert!(!bench.rows().contains('Q'));
    assert_whole(&mut bench);
}

#[test]
fn a_damaged_root_is_replaced_by_a_checkpoint() {
    let damage = |bench: &mut Bench| {
        let parts = bench.store.parts();
        let place = parts.root_place(parts.root.sequence);
        bench.disk.flip(place + 40);
        place
    };
    repaired(damage, MetadataPart::Root, MetadataRepair::Checkpoint);
}

#[test]
fn damaged_pages_of_streams_are_replaced_by_a_checkpoint() {
    for index in 0..store().store.parts().stream_pages.len() {
        let damage = |bench: &mut Bench| {
            let place = stream_place(bench, index);
            bench.disk.flip(place + 3000);
            place
        };
        repaired(damage, MetadataPart::Stream, MetadataRepair::Checkpoint);
    }
}

#[test]
fn a_damaged_leaf_in_memory_is_written_to_another_page() {
    for number in [0, 7, 300] {
        let damage = |bench: &mut Bench| {
            let (_, place) = leaf_place(bench, number);
            bench.disk.flip(place + 200);
            place
        };
        repaired(damage, MetadataPart::Leaf, MetadataRepair::Checkpoint);
    }
}

#[test]
fn a_damaged_leaf_stays_in_memory_until_its_checkpoint_and_its_page_is_not_used_again() {
    let mut bench = store();
    let (page, place) = leaf_place(&bench, 7);
    bench.disk.unreadable = Some((place, place + 512));
    // The checkpoint can begin only after the cache has lost the leaf.
    bench.ask(Request::CheckMetadata { after: None, page_count: 256 });
    while bench.store.parts().metadata_damage_count == 0 {
        assert!(bench.step());
    }
    bench.store.parts_mut().pages.forget(page);
    bench.run();
    assert_ne!(leaf_place(&bench, 7).0, page);
    assert!(!bench.store.parts_mut().pages.take(page), "it is not used again");
    assert_eq!(bench.store.damaged_units_left(), 0);
    let mut bench = bench.crash();
    assert_eq!(bench.rows().matches('S').count(), 0);
    assert_whole(&mut bench);
}

#[test]
fn a_damaged_leaf_that_is_not_in_memory_costs_data_but_no_versions() {
    let mut bench = store();
    let (page, place) = leaf_place(&bench, 7);
    bench.store.parts_mut().pages.forget(page);
    bench.disk.unreadable = Some((place, place + 512));
    let (findings, _) = check(&mut bench, 256);
    let [MetadataFinding { part: MetadataPart::Leaf, offset, fault, repair }] = findings[..] else {
        panic!("{findings:?}")
    };
    assert_eq!((offset, fault), (place, MetadataFault::Unreadable));
    let MetadataRepair::DataLost { blocks } = repair else { panic!("{repair:?}") };
    bench.run();
    assert_eq!(check(&mut bench, 256).0, [], "the next checkpoint wrote what is known");
    assert_eq!(bench.store.damaged_units_left(), 32 * blocks);
    let mut bench = bench.crash();
    assert!(!bench.rows().contains('S'));
    assert!(!bench.store.is_suspect(PG), "no version is lost");
    assert_eq!(bench.store.blocks(PG.pool, 0, u32::MAX, None).count(), 800);
    let lost = (0..800).filter(|number| bench.read(*number, 0, 1).is_err()).count();
    assert_eq!(lost as u64, blocks);
}

#[test]
fn memory_that_differs_from_a_whole_leaf_is_named_and_nothing_is_written() {
    let mut bench = store();
    let (_, place) = leaf_place(&bench, 7);
    let blocks = &mut bench.store.parts_mut().blocks;
    let info = blocks.get(&key(7)).expect("it is written");
    blocks.corrupt(key(7), crate::index::BlockInfo { pg: info.pg + 1, ..info });
    let finding = MetadataFinding {
        part: MetadataPart::Leaf,
        offset: place,
        fault: MetadataFault::Differs,
        repair: MetadataRepair::Nothing,
    };
    let writes = bench.disk.write_count;
    assert_eq!(check(&mut bench, 256).0, [finding]);
    assert_eq!(bench.disk.write_count, writes);
}

/// Completes operations other than these until no checkpoint is running.
fn end_checkpoint_without(bench: &mut Bench, held: &[DiskOp]) {
    while bench.store.has_checkpoint() || bench.store.parts().wants_checkpoint {
        bench.submit();
        let index = bench.disk.ops.keys().position(|op| !held.contains(op));
        let event = bench.disk.end(index.expect("the checkpoint goes on"));
        bench.apply(Event::Disk(event));
    }
}

#[test]
fn pages_that_a_checkpoint_replaced_during_their_read_are_no_damage() {
    let mut bench = store();
    let mut after = portion(&mut bench, None, 3).next;
    while after.is_some() {
        let id = bench.ask(Request::CheckMetadata { after, page_count: 8 });
        let held: Vec<DiskOp> = bench.disk.ops.keys().copied().collect();
        let pages = bench.disk.ops.values().filter_map(|op| match op {
            Op::Read(offset, _) => Some(*offset),
            _ => None,
        });
        let pages: Vec<u64> = pages.collect();
        assert!((1..=8).contains(&pages.len()) && pages.len() == held.len());
        for number in 0..800 {
            bench.write(number, 0, 1, 100);
        }
        bench.store.parts_mut().wants_checkpoint = true;
        bench.apply(Event::Tick);
        end_checkpoint_without(&mut bench, &held);
        // The pages are free now. Something else is written there before the reads end.
        pages.iter().for_each(|page| bench.disk.overwrite(*page, &[7; 4096]));
        bench.run();
        let Some(Ok(Answer::Metadata(report))) = bench.answers.remove(&id) else {
            panic!("it is answered")
        };
        assert_eq!((report.bytes, report.findings), (4096 * pages.len() as u64, vec![]));
        after = report.next;
    }
    assert_eq!(check(&mut bench, 256).0, []);
    assert_whole(&mut bench.crash());
}

#[test]
fn a_checkpoint_in_the_middle_of_a_check_is_no_damage() {
    for seed in 0..4 {
        let small = crate::Settings { memory_bytes: MIB, ..settings() };
        let mut bench = Bench::on(store().off(), small, seed);
        let mut after = None;
        for round in 0..60 {
            let id = bench.ask(Request::CheckMetadata { after, page_count: 5 });
            for number in 0..40 {
                bench.write((number * 17 + round * 7) % 800, 0, 1, 100);
            }
            bench.store.parts_mut().wants_checkpoint = true;
            // The reads may end before, during or after the checkpoint, which frees and reuses pages.
            while !bench.answers.contains_key(&id) {
                bench.submit();
                assert!(bench.step());
            }
            let Some(Ok(Answer::Metadata(report))) = bench.answers.remove(&id) else {
                panic!("it is answered")
            };
            assert_eq!(report.findings, [], "seed {seed}");
            after = report.next;
        }
        bench.run();
        assert_eq!(check(&mut bench, 256).0, []);
        assert_whole(&mut bench.crash());
    }
}

#[test]
fn power_lost_in_the_middle_of_a_repair_loses_nothing() {
    for steps in (0..60).step_by(5) {
        for copy in SUPERBLOCK_OFFSETS {
            let mut bench = store();
            bench.disk.flip(copy + 100);
            bench.ask(Request::CheckMetadata { after: None, page_count: 256 });
            for _ in 0..steps {
                bench.step();
            }
            let mut bench = bench.crash();
            assert!(bench.stopped.is_none());
            assert_whole(&mut bench);
        }
    }
}
