//! Tests of repairs and copies: they work regardless of a block's version, and are atomic even across
//! crashes.

use base::{MIB, Version};
use format::wire::Content;

use crate::harness::{Bench, PG, key, settings};
use crate::{Answer, AsOf, CommitMode, NoteKey, Request, StoreError};

const MODES: [CommitMode; 2] = [CommitMode::Fsync, CommitMode::Immediate];

fn version(epoch: u32, counter: u64) -> Version {
    Version { epoch: base::Epoch::new(epoch), counter }
}

fn all() -> Vec<u32> {
    (0..32).collect()
}

/// Returns a store with block 1 written as a whole, units 3 and 4 of block 2 written, and block 3 deleted;
/// with or without a checkpoint after these writes.
fn three_blocks(mode: CommitMode, has_checkpoint: bool) -> Bench {
    let mut bench = Bench::new(mode);
    bench.write(1, 0, 32, 100);
    bench.write(2, 3, 2, 200);
    bench.write(3, 0, 1, 300);
    bench.delete(3);
    bench.run();
    if has_checkpoint {
        bench.checkpoint();
    }
    bench
}

/// Sends a repair, and checks the block right away, when the repair is durable, after a checkpoint, and after
/// a crash at each of these moments.
fn repaired(number: u32, content: impl Fn(&Bench) -> Content, look: impl Fn(&mut Bench)) {
    for mode in MODES {
        for has_checkpoint in [false, true] {
            let mut bench = three_blocks(mode, has_checkpoint);
            let last = bench.store.last_version(PG);
            let content = content(&bench);
            let id = bench.repair(number, content);
            look(&mut bench);
            bench.run();
            assert!(bench.is_durable(id));
            look(&mut bench);
            let mut bench = bench.crash();
            look(&mut bench);
            bench.checkpoint();
            look(&mut bench);
            let mut bench = bench.crash();
            look(&mut bench);
            assert_eq!(bench.store.last_version(PG), last, "a repair says nothing of others");
            for other in [1, 2].into_iter().filter(|other| *other != number) {
                bench.assert_unit(other, 3, Some(other as u64 * 100));
            }
        }
    }
}

#[test]
fn a_repair_of_all_units_replaces_the_block_even_by_an_older_version() {
    for target in [version(0, 1), version(9, 1)] {
        repaired(
            1,
            |bench| bench.content(target, &all(), &all(), 500),
            |bench| {
                assert_eq!(bench.store.version_of(&key(1)), target);
                assert!((0..32).all(|unit| bench.read(1, unit, 1).is_ok()));
                bench.assert_unit(1, 0, Some(500));
                bench.assert_unit(1, 31, Some(500));
                assert_eq!(bench.store.space().used_bytes, 2 * (128 << 10));
            },
        );
    }
}

#[test]
fn a_repair_of_some_units_leaves_the_others() {
    repaired(
        1,
        |bench| bench.content(version(0, 7), &[2, 3, 9, 31], &[3, 31], 500),
        |bench| {
            assert_eq!(bench.store.version_of(&key(1)), version(0, 7));
            for unit in 0..32 {
                let expected = match unit {
                    2 | 9 => None,
                    3 | 31 => Some(500),
                    _ => Some(100),
                };
                bench.assert_unit(1, unit, expected);
            }
        },
    );
}

#[test]
fn a_large_repair_with_gaps_reads_as_zeros_between() {
    let written: Vec<u32> = (4..24).filter(|unit| unit % 7 != 0).collect();
    for number in [1, 2, 7] {
        let written = &written;
        repaired(
            number,
            |bench| bench.content(version(2, 7), &all(), written, 500),
            |bench| {
                for unit in 0..32 {
                    let expected = written.contains(&unit).then_some(500);
                    bench.assert_unit(number, unit, expected);
                }
                let content = bench.copy(number, &[]);
                assert_eq!(content, bench.content(version(2, 7), &all(), written, 500));
            },
        );
    }
}

#[test]
fn a_repair_makes_a_block_that_was_not_there() {
    repaired(
        9,
        |bench| bench.content(version(1, 1), &[5, 6], &[5], 900),
        |bench| {
            assert_eq!(bench.store.version_of(&key(9)), version(1, 1));
            bench.assert_unit(9, 5, Some(900));
            bench.assert_unit(9, 6, None);
            bench.assert_unit(9, 0, None);
        },
    );
}

#[test]
fn a_repair_brings_a_deleted_block_back() {
    repaired(
        3,
        |bench| bench.content(version(0, 2), &all(), &[30], 900),
        |bench| {
            assert!(!bench.store.is_tombstone(&key(3)));
            bench.assert_unit(3, 30, Some(900));
            bench.assert_unit(3, 0, None);
        },
    );
}

#[test]
fn a_repair_to_zeros_gives_the_place_back() {
    repaired(
        1,
        |bench| bench.content(version(0, 2), &all(), &[], 0),
        |bench| {
            assert_eq!(bench.store.version_of(&key(1)), version(0, 2));
            assert_eq!(bench.read(1, 0, 32), Ok(None));
            assert_eq!(bench.store.space().used_bytes, 128 << 10);
        },
    );
}

#[test]
fn a_repair_that_only_zeroes_some_units_keeps_the_rest() {
    repaired(
        2,
        |bench| bench.content(version(0, 2), &[3], &[], 0),
        |bench| {
            bench.assert_unit(2, 3, None);
            bench.assert_unit(2, 4, Some(200));
        },
    );
}

#[test]
fn a_repair_deletes_a_block_whatever_its_version() {
    for number in [1, 3, 9] {
        repaired(
            number,
            |_| Content::Tombstone { version: version(0, 3) },
            |bench| {
                assert!(bench.store.is_tombstone(&key(number)));
                assert_eq!(bench.store.version_of(&key(number)), version(0, 3));
                assert_eq!(bench.read(number, 0, 32), Ok(None));
                let copied = bench.copy(number, &[]);
                assert_eq!(copied, Content::Tombstone { version: version(0, 3) });
            },
        );
    }
}

#[test]
fn a_repair_takes_a_block_or_a_tombstone_out() {
    for number in [1, 3, 9] {
        repaired(
            number,
            |_| Content::Gone,
            |bench| {
                let mut blocks = bench.store.blocks(PG.pool, 0, u32::MAX, None);
                assert!(blocks.all(|(listed, ..)| listed != key(number)));
                drop(blocks);
                assert_eq!(bench.store.version_of(&key(number)), Version::ZERO);
                assert_eq!(bench.read(number, 0, 32), Ok(None));
                assert_eq!(bench.copy(number, &[]), Content::Gone);
                let used = if number == 1 { 128 << 10 } else { 256 << 10 };
                assert_eq!(bench.store.space().used_bytes, used);
            },
        );
    }
}

#[test]
fn writes_go_on_from_the_version_of_a_repair() {
    for mode in MODES {
        let mut bench = three_blocks(mode, false);
        bench.repair(1, Content::Gone);
        bench.write(1, 5, 1, 700);
        let older = bench.content(version(0, 1), &[0], &[0], 800);
        bench.repair(1, older);
        bench.write(1, 7, 1, 900);
        bench.run();
        let mut bench = bench.crash();
        for (unit, tag) in [(0, Some(800)), (5, Some(700)), (7, Some(900)), (3, None)] {
            bench.assert_unit(1, unit, tag);
        }
        assert_eq!(bench.store.version_of(&key(1)).epoch.get(), 1);
    }
}

#[test]
fn repairs_raise_held_but_not_last() {
    let mut bench = three_blocks(CommitMode::Fsync, false);
    let before = bench.store.facts(PG);
    assert_eq!((before.last, before.held), (version(1, 4), version(1, 4)));
    let newer = bench.content(version(3, 9), &[0], &[0], 5);
    bench.repair(2, newer);
    let deleted = version(4, 1);
    bench.repair(1, Content::Tombstone { version: deleted });
    bench.repair(3, Content::Gone);
    for _ in 0..2 {
        let facts = bench.store.facts(PG);
        assert_eq!((facts.last, facts.held), (version(1, 4), deleted));
        bench.checkpoint();
        bench = bench.crash();
    }
}

#[test]
fn a_content_that_does_not_match_its_checksums_changes_nothing() {
    let mut bench = three_blocks(CommitMode::Fsync, false);
    let good = bench.content(version(9, 9), &[0, 1], &[0, 1], 500);
    let mut bytes: Vec<u8> =
        [0, 1].iter().flat_map(|index| crate::harness::unit(500 + index)).collect();
    bytes[5000] ^= 1;
    let (mut flipped, mut short) = (good.clone(), good);
    if let Content::Block { data, .. } = &mut flipped {
        *data = Some(bench.pool.copy_of(&bytes));
    }
    if let Content::Block { written, .. } = &mut short {
        *written = vec![1];
    }
    for content in [flipped, short] {
        let done = bench.done(Request::Repair { pg: PG, key: key(1), content });
        assert_eq!(done, Err(StoreError::Corrupted));
    }
    bench.assert_unit(1, 0, Some(100));
    assert_eq!(bench.store.facts(PG).held.epoch.get(), 1);
}

/// Returns a store in which unit 6 of block 1 is damaged on the disk.
fn with_rot(mode: CommitMode) -> Bench {
    let mut bench = three_blocks(mode, true);
    let parts = bench.store.parts();
    let location = parts.blocks.get(&key(1)).expect("it is written").location;
    let place = parts.place(location) + 6 * 4096 + 77;
    bench.disk.flip(place);
    bench
}

/// Returns the content with these units marked as damaged too.
fn damaged(mut content: Content, units: u64) -> Content {
    if let Content::Block { units: all, damaged, .. } = &mut content {
        all[0] |= units;
        damaged[0] |= units;
    }
    content
}

fn damaged_units(content: Content) -> u64 {
    let Content::Block { damaged, .. } = content else { panic!("a block") };
    damaged[0]
}

#[test]
fn a_copy_names_damaged_units() {
    for mode in MODES {
        let mut bench = with_rot(mode);
        let version = bench.store.version_of(&key(1));
        let without: Vec<u32> = (0..32).filter(|unit| *unit != 6).collect();
        let expected = damaged(bench.content(version, &without, &without, 100), 1 << 6);
        assert_eq!(bench.copy(1, &[]), expected);
        let expected = damaged(bench.content(version, &[5, 7], &[5, 7], 100), 1 << 6);
        assert_eq!(bench.copy(1, &[0b1110_0000, 0, 0, 1]), expected);
        let expected = damaged(bench.content(version, &[], &[], 100), 1 << 6);
        assert_eq!(bench.copy(1, &[1 << 6]), expected);
        assert_eq!(bench.store.damaged_units_count(), 1);
        let version = bench.store.version_of(&key(2));
        let expected = bench.content(version, &[3, 4], &[3, 4], 200);
        assert_eq!(bench.copy(2, &[0b11000]), expected);
    }
}

#[test]
fn a_repair_can_bring_damaged_units_and_a_later_one_mends_them() {
    for number in [1, 9] {
        for written in [vec![], vec![1], (1..20).collect::<Vec<u32>>()] {
            let content = |bench: &Bench| {
                let whole = bench.content(version(2, 7), &all(), &written, 500);
                damaged(
                    whole,
                    1 << 21 | 1 << 3 & !written.iter().fold(0, |set, unit| set | 1 << unit),
                )
            };
            repaired(number, content, |bench| {
                let expected = content(bench);
                assert_eq!(bench.copy(number, &[]), expected);
                assert!(matches!(bench.read(number, 21, 1), Err(StoreError::Damaged { .. })));
                bench.assert_unit(number, 30, None);
                let used = bench.store.space().used_bytes;
                assert_eq!(used, if number == 1 { 256 << 10 } else { 384 << 10 });
            });
        }
    }
    let mut bench = three_blocks(CommitMode::Fsync, true);
    let lost = damaged(bench.content(version(2, 7), &[], &[], 0), 1 << 21);
    bench.repair(1, lost);
    bench.assert_unit(1, 20, Some(100));
    assert_eq!(damaged_units(bench.copy(1, &[])), 1 << 21);
    let mended = bench.content(version(2, 7), &[21], &[21], 100);
    bench.repair(1, mended);
    bench.run();
    bench.checkpoint();
    let mut bench = bench.crash();
    assert_eq!(bench.copy(1, &[]), bench.content(version(2, 7), &all(), &all(), 100));
}

#[test]
fn a_copy_tells_units_in_the_journal_from_those_in_the_place_and_zeros() {
    for mode in MODES {
        let mut bench = three_blocks(mode, true);
        bench.write(1, 4, 2, 700);
        bench.zero(1, 9, 1);
        bench.run();
        let version = bench.store.version_of(&key(1));
        let content = bench.copy(1, &[0b11_1111_1000]);
        let Content::Block { version: found, units, written, checksums, data, .. } = content else {
            panic!("a block")
        };
        assert_eq!((found, units), (version, vec![0b11_1111_1000]));
        assert_eq!((written, checksums.len()), (vec![0b01_1111_1000], 6));
        let data = data.expect("six units");
        assert_eq!(data[..4096], crate::harness::unit(103));
        assert_eq!(data[4096..8192], crate::harness::unit(704));
        assert_eq!(data[3 * 4096..4 * 4096], crate::harness::unit(106));
    }
}

#[test]
fn a_repair_with_the_same_version_mends_damaged_units() {
    for mode in MODES {
        let mut bench = with_rot(mode);
        let version = bench.store.version_of(&key(1));
        assert!(matches!(bench.read(1, 0, 32), Err(StoreError::Damaged { .. })));
        let content = bench.content(version, &[6], &[6], 100);
        bench.repair(1, content);
        for _ in 0..2 {
            assert_eq!(bench.store.version_of(&key(1)), version);
            assert!((0..32).all(|unit| bench.read(1, unit, 1).is_ok()));
            bench.assert_unit(1, 6, Some(100));
            assert_eq!(damaged_units(bench.copy(1, &[])), 0);
            bench.checkpoint();
            bench = bench.crash();
        }
    }
}

#[test]
fn a_read_overtaken_by_a_repair_of_the_same_version_reports_no_damage() {
    for mode in MODES {
        let mut bench = three_blocks(mode, true);
        let version = bench.store.version_of(&key(1));
        let copied = bench.ask(Request::Copy { key: key(1), units: vec![], as_of: AsOf::View });
        let read =
            bench.ask(Request::Read { key: key(1), offset: 0, length: 4096, as_of: AsOf::View });
        // The disk operations of both requests wait while the block is repaired and written back.
        let mut waiting = std::mem::take(&mut bench.disk.ops);
        let content = bench.content(version, &[0, 1], &[0, 1], 600);
        bench.repair(1, content);
        bench.store.parts_mut().wants_checkpoint = true;
        let is_written_back = |bench: &Bench| {
            let parts = bench.store.parts();
            let location = parts.blocks.get(&key(1)).expect("it is written").location;
            let mut found = vec![0; 4096];
            bench.disk.visible.read(parts.place(location), &mut found);
            found == crate::harness::unit(600)
        };
        while !is_written_back(&bench) {
            bench.submit();
            assert!(bench.step(), "it is written back some time");
        }
        bench.disk.ops.append(&mut waiting);
        bench.run();
        assert!(matches!(&bench.answers[&read], Ok(Answer::Read { data, .. })
            if data[..] == crate::harness::unit(600)));
        let Some(Ok(Answer::Copy { content })) = bench.answers.remove(&copied) else {
            panic!("a copy")
        };
        assert_eq!(damaged_units(content), 0);
        assert_eq!(bench.store.damaged_units_count(), 0);
    }
}

#[test]
fn a_torn_repair_leaves_the_block_as_it_was() {
    // First case: all of the repair is in the journal. Second case: its data is in a place of its own.
    for written in [vec![3], all()] {
        let mut bench = three_blocks(CommitMode::Fsync, true);
        let before = bench.store.version_of(&key(1));
        bench.idle();
        let lsn = bench.tail();
        let content = bench.content(version(7, 7), &all(), &written, 500);
        bench.repair(1, content);
        bench.write(2, 0, 1, 250);
        bench.run();
        let parts = bench.store.parts();
        let location = parts.blocks.get(&key(1)).expect("it is written").location;
        let (place, body) = (parts.place(location), bench.place(lsn) + 512);
        let is_inline = written.len() == 1;
        let mut disk = bench.off();
        disk.flip(if is_inline { body } else { place } + 9);
        let mut bench = Bench::on(disk, settings(), 3);
        let row = if is_inline { 'B' } else { 'H' };
        assert!(bench.rows().contains(row), "{}", bench.rows());
        assert_eq!(bench.store.version_of(&key(1)), before);
        assert!((0..32).all(|unit| bench.read(1, unit, 1).is_ok()));
        bench.assert_unit(1, 3, Some(100));
        bench.assert_unit(1, 31, Some(100));
        bench.assert_unit(2, 0, (!is_inline).then_some(250));
        assert_eq!(bench.store.facts(PG).hole, None, "nobody counts on a repair without answer");
    }
}

#[test]
fn damage_in_an_acknowledged_repair_costs_its_own_units() {
    let mut bench = three_blocks(CommitMode::Fsync, true);
    let lsn = bench.tail();
    let content = bench.content(version(7, 7), &[2, 8, 20], &[8, 20], 500);
    bench.repair(1, content);
    bench.idle();
    let place = bench.place(lsn) + 512 + 4096;
    let mut disk = bench.off();
    disk.flip(place);
    let mut bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "ACF");
    assert_eq!(damaged_units(bench.copy(1, &[])), 1 << 20);
    bench.assert_unit(1, 8, Some(500));
    bench.assert_unit(1, 2, None);
    assert!(!bench.store.is_suspect(PG));
}

#[test]
fn an_unreadable_unit_of_a_large_repair_with_gaps_is_the_one_that_is_lost() {
    let mut bench = three_blocks(CommitMode::Fsync, true);
    bench.idle();
    let written: Vec<u32> = (2..30).filter(|unit| unit % 2 == 0 || *unit > 20).collect();
    let content = bench.content(version(7, 7), &all(), &written, 500);
    bench.repair(1, content);
    bench.run();
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    let mut disk = bench.off();
    disk.unreadable = Some((place + 14 * 4096, place + 14 * 4096 + 512));
    let mut bench = Bench::on(disk, settings(), 3);
    assert!(bench.rows().contains('X'), "{}", bench.rows());
    assert_eq!(damaged_units(bench.copy(1, &[])), 1 << 14);
    bench.assert_unit(1, 12, Some(500));
    bench.assert_unit(1, 13, None);
    bench.assert_unit(1, 29, Some(500));
}

#[test]
fn repairs_wait_for_the_journal_in_the_order_of_requests() {
    let mut bench = three_blocks(CommitMode::Fsync, false);
    let mut last = Version::ZERO;
    for round in 0..300u64 {
        for number in 20..30 {
            last = version(2, round * 10 + u64::from(number));
            let units: Vec<u32> = (0..15).collect();
            let content = bench.content(last, &units, &units, round);
            bench.repair(number, content);
            let copy = Request::Copy { key: key(number), units: vec![1], as_of: AsOf::View };
            bench.ask(copy);
        }
    }
    bench.run();
    assert!(bench.answers.values().all(Result::is_ok));
    assert_eq!(bench.store.version_of(&key(29)), last);
    assert!(bench.tail().get() > 10 * MIB);
    let note = Request::Note { key: NoteKey::Pg(PG), bytes: b"filled".to_vec() };
    assert_eq!(bench.done(note), Ok(Answer::Durable));
    let mut bench = bench.crash();
    bench.assert_unit(29, 14, Some(299));
}
