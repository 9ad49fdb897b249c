//! Tests of the guarantees of a store, on a disk that loses and tears writes.

use base::{BlockSize, Duration, GIB, MIB, UNIT_SIZE, Version};
use format::wire::{Content, Digest};

use crate::harness::{Bench, Host, PG, created, key, options, settings};
use crate::{Answer, AsOf, CommitMode, Event, NoteKey, Request, Settings, StoreError};

const MODES: [CommitMode; 2] = [CommitMode::Fsync, CommitMode::Immediate];

#[test]
fn a_small_write_is_one_device_write_and_survives_a_crash() {
    for mode in MODES {
        let mut bench = Bench::new(mode);
        assert!(bench.opened, "{:?}", bench.stopped);
        let writes = bench.disk.write_count;
        let id = bench.write(1, 3, 1, 100);
        bench.run();
        assert!(bench.is_durable(id));
        assert_eq!(bench.disk.write_count, writes + 1);
        assert_eq!(bench.disk.write_bytes, 512 + 4096);
        bench.assert_unit(1, 3, Some(100));
        bench.assert_unit(1, 4, None);
        let mut bench = bench.crash();
        bench.assert_unit(1, 3, Some(100));
        bench.assert_unit(1, 4, None);
        assert_eq!(bench.rows(), "AF");
    }
}

#[test]
fn writes_of_one_turn_share_a_device_write() {
    let mut bench = Bench::new(CommitMode::Immediate);
    let writes = bench.disk.write_count;
    let ids: Vec<_> = (0..10).map(|number| bench.write(number, 0, 1, 7)).collect();
    bench.run();
    assert!(ids.iter().all(|id| bench.is_durable(*id)));
    assert_eq!(bench.disk.write_count, writes + 1);
}

#[test]
fn a_read_sees_writes_that_are_not_durable_yet() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 2, 5);
    let read = bench.ask(Request::Read { key: key(1), offset: 0, length: 8192, as_of: AsOf::View });
    assert!(matches!(&bench.answers[&read], Ok(Answer::Read { data, .. }) if data.len() == 8192));
}

#[test]
fn a_read_sees_a_large_write_that_is_still_on_its_way() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 4, 20, 5);
    let read = bench.ask(Request::Read {
        key: key(1),
        offset: 3 * 4096,
        length: 4 * 4096,
        as_of: AsOf::View,
    });
    let Ok(Answer::Read { data, .. }) = &bench.answers[&read] else { panic!("it is not answered") };
    assert!(data[..4096].iter().all(|byte| *byte == 0));
    assert!(data[4096..8192] == crate::harness::unit(9));
}

#[test]
fn a_large_write_goes_to_its_place_once() {
    for mode in MODES {
        let mut bench = Bench::new(mode);
        bench.write(1, 0, 32, 1000);
        bench.run();
        assert_eq!(bench.disk.write_bytes, 512 + 128 * 1024);
        bench.assert_unit(1, 31, Some(1000));
        let old = bench.store.parts().blocks.get(&key(1)).expect("it is written").location;
        bench.write(1, 0, 32, 2000);
        bench.write(1, 5, 1, 3000);
        bench.run();
        let new = bench.store.parts().blocks.get(&key(1)).expect("it is written").location;
        assert_ne!(old, new);
        let mut bench = bench.crash();
        bench.assert_unit(1, 5, Some(3000));
        bench.assert_unit(1, 6, Some(2000));
        bench.checkpoint();
        bench.assert_unit(1, 5, Some(3000));
        bench.assert_unit(1, 6, Some(2000));
        assert_eq!(bench.store.space().used_bytes, 128 * 1024);
        let mut bench = bench.crash();
        bench.assert_unit(1, 5, Some(3000));
        bench.assert_unit(1, 6, Some(2000));
    }
}

#[test]
fn zeroes_and_deletes_free_space_and_tombstones_leave_with_the_floor() {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..4 {
        bench.write(number, 0, 32, 10);
    }
    bench.run();
    assert_eq!(bench.store.space().used_bytes, 4 * 128 * 1024);
    bench.zero(0, 0, 32);
    bench.zero(1, 0, 31);
    bench.zero(1, 31, 1);
    bench.zero(2, 4, 4);
    bench.delete(3);
    bench.run();
    for _ in 0..2 {
        for (number, index) in [(0, 0), (1, 0), (1, 31), (2, 4), (3, 9)] {
            bench.assert_unit(number, index, None);
        }
        bench.assert_unit(2, 3, Some(10));
        bench.assert_unit(2, 8, Some(10));
        assert!(bench.store.is_tombstone(&key(3)));
        bench.checkpoint();
        assert_eq!(bench.store.space().used_bytes, 128 * 1024);
        let have_places = [0, 1, 2, 3].map(|number| bench.store.has_place(&key(number)));
        assert_eq!(have_places, [false, false, true, false]);
        bench = bench.crash();
    }
    assert_eq!(bench.store.last_version(PG).counter, bench.counter);
    let floor = bench.store.version_of(&key(3));
    assert!(bench.done(Request::SetFloor { pg: PG, floor }).is_ok());
    assert!(bench.store.is_tombstone(&key(3)));
    bench.checkpoint();
    assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
    let bench = bench.crash();
    assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
    let keys: Vec<_> = bench.store.blocks(PG.pool, 0, u32::MAX, None).collect();
    assert_eq!(keys.len(), 3);
    let behind = bench.store.blocks(PG.pool, 0, u32::MAX, Some(keys[0].0)).count();
    assert_eq!(behind, 2);
}

#[test]
fn space_of_zeroed_blocks_is_given_back_when_the_store_is_idle() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 32, 10);
    bench.run();
    bench.checkpoint();
    bench.zero(1, 0, 20);
    bench.zero(1, 20, 12);
    bench.idle();
    assert_eq!(bench.store.space().used_bytes, 128 * 1024);
    bench.pass(Duration::from_millis(900));
    assert_eq!(bench.store.space().used_bytes, 0);
    assert_eq!(bench.store.deadline(), None);
}

#[test]
fn records_of_deleted_blocks_are_given_back_after_their_floor() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 32, 10);
    bench.run();
    bench.delete(1);
    bench.run();
    bench.checkpoint();
    bench.idle();
    bench.pass(Duration::from_millis(900));
    let floor = bench.store.version_of(&key(1));
    assert!(bench.done(Request::SetFloor { pg: PG, floor }).is_ok());
    bench.idle();
    bench.pass(Duration::from_millis(900));
    assert_eq!(bench.store.version_of(&key(1)), Version::ZERO, "no other write came");
    assert!(bench.done(Request::SetFloor { pg: PG, floor }).is_ok());
    bench.idle();
    assert_eq!(bench.store.deadline(), None, "a floor without tombstones starts nothing");
}

#[test]
fn notes_survive() {
    let mut bench = Bench::new(CommitMode::Immediate);
    let entry = NoteKey::Pg(PG);
    let long = vec![7; 300_000];
    assert!(bench.done(Request::Note { key: entry, bytes: b"one".to_vec() }).is_ok());
    assert!(bench.done(Request::Note { key: NoteKey::Cluster, bytes: long.clone() }).is_ok());
    for round in 0..3 {
        assert_eq!(bench.store.note(entry), Some(&b"one"[..]));
        assert_eq!(bench.store.note(NoteKey::Cluster), Some(&long[..]));
        if round == 1 {
            bench.checkpoint();
        }
        bench = bench.crash();
    }
    assert!(bench.done(Request::Note { key: entry, bytes: Vec::new() }).is_ok());
    let bench = bench.crash();
    assert_eq!(bench.store.note(entry), None);
    assert_eq!(bench.store.notes().count(), 1);
}

#[test]
fn extents_tell_what_is_written() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 2, 3, 5);
    bench.checkpoint();
    bench.zero(1, 3, 1);
    bench.write(1, 31, 1, 5);
    let answer = bench.done(Request::Extents { key: key(1), as_of: AsOf::View });
    let Ok(Answer::Extents { written, damaged, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!((written, damaged), (vec![1 << 2 | 1 << 4 | 1 << 31], vec![0]));
    let answer = bench.done(Request::Extents { key: key(9), as_of: AsOf::View });
    assert!(matches!(answer, Ok(Answer::Extents { version: Version::ZERO, .. })));
}

#[test]
fn damaged_data_reads_as_an_error_until_it_is_rewritten() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 32, 5);
    bench.run();
    bench.checkpoint();
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    bench.disk.flip(place + 7 * UNIT_SIZE + 100);
    assert_eq!(bench.read(1, 0, 32), Err(StoreError::Damaged { units: vec![1 << 7] }));
    bench.assert_unit(1, 6, Some(5));
    assert_eq!(bench.store.damaged_units_count(), 1);
    bench.write(1, 7, 1, 6);
    bench.assert_unit(1, 7, Some(6));
    bench.checkpoint();
    bench.assert_unit(1, 7, Some(6));
    let answer = bench.done(Request::Extents { key: key(1), as_of: AsOf::View });
    assert!(matches!(answer, Ok(Answer::Extents { damaged, .. }) if damaged == vec![0]));
}

#[test]
fn a_deep_digest_finds_damage_and_a_light_one_tells_what_is_known() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 3, 5);
    bench.write(2, 0, 1, 5);
    bench.checkpoint();
    bench.zero(1, 1, 1);
    bench.write(1, 31, 1, 6);
    bench.delete(2);
    let digest = |bench: &mut Bench, number, deep| match bench
        .done(Request::Digest { key: key(number), deep })
    {
        Ok(Answer::Digest(digest)) => digest,
        other => panic!("{other:?}"),
    };
    let copied = |bench: &mut Bench| match bench.copy(1, &[]) {
        Content::Block { version, written, damaged, checksums, table, .. } => {
            Digest::Block { version, written, damaged, checksums, table }
        }
        other => panic!("{other:?}"),
    };
    let whole = copied(&mut bench);
    assert_eq!(
        [digest(&mut bench, 1, false), digest(&mut bench, 1, true)],
        [&whole, &whole].map(Clone::clone)
    );
    let version = bench.store.version_of(&key(2));
    assert_eq!(digest(&mut bench, 2, true), Digest::Tombstone { version });
    assert_eq!(digest(&mut bench, 3, false), Digest::Gone);
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    bench.disk.flip(place + 100);
    assert_eq!(digest(&mut bench, 1, false), whole, "no data is read");
    let damaged = digest(&mut bench, 1, true);
    let Digest::Block { written, damaged: lost, checksums, .. } = &damaged else {
        panic!("{damaged:?}")
    };
    assert_eq!((written[0], lost[0], checksums.len()), (1 << 2 | 1 << 31, 1, 2));
    assert_eq!(digest(&mut bench, 1, false), damaged, "what was found is known");
    assert_eq!(copied(&mut bench), damaged);
    assert_eq!(bench.store.damaged_units_count(), 1);
}

#[test]
fn an_unreadable_place_costs_its_units_only() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 32, 5);
    bench.write(2, 0, 32, 6);
    bench.checkpoint();
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    bench.disk.unreadable = Some((place, place + 4096));
    assert!(matches!(bench.read(1, 0, 4), Err(StoreError::Damaged { .. })));
    bench.assert_unit(1, 4, Some(5));
    bench.assert_unit(2, 0, Some(6));
}

/// Returns a store whose next checkpoint must read leaves and journal data: leaves hold 200 blocks with one
/// written unit each, and 50 of these blocks have three units in the journal. Also returns the position on
/// the device of the second of the last block's three units.
fn unread_store() -> (Bench, u64) {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..200 {
        bench.write(number, 9, 1, 100);
    }
    bench.checkpoint();
    let mut last = bench.tail();
    for number in 0..50 {
        last = bench.tail();
        bench.write(number, 0, 3, 200);
    }
    bench.idle();
    let place = bench.place(last) + 512 + UNIT_SIZE;
    let mut bench = bench.crash();
    let pages = &mut bench.store.parts_mut().pages;
    let leaves: Vec<u32> = pages.directory().values().map(|leaf| leaf.page).collect();
    leaves.into_iter().for_each(|page| pages.forget(page));
    (bench, place)
}

fn assert_unread_store(bench: &mut Bench, lost: &[u32]) {
    for number in 0..200 {
        bench.assert_unit(number, 9, Some(100));
        for unit in (0..3).filter(|unit| number < 50 && !(number == 49 && lost.contains(unit))) {
            bench.assert_unit(number, unit, Some(200));
        }
    }
}

#[test]
fn a_read_error_that_passes_costs_a_checkpoint_nothing() {
    let (mut bench, _) = unread_store();
    let before = bench.disk.read_count;
    bench.checkpoint();
    let reads = bench.disk.read_count - before;
    assert!(reads > 50);
    for skipped in (0..reads).step_by(7) {
        let (mut bench, _) = unread_store();
        bench.store.parts_mut().wants_checkpoint = true;
        let last = bench.disk.read_count + skipped;
        bench.apply(Event::Tick);
        while bench.disk.read_count < last {
            bench.submit();
            assert!(bench.step());
        }
        bench.disk.read_errors = 3;
        bench.run();
        assert_eq!(bench.disk.read_errors, 0);
        assert!(!bench.store.has_checkpoint());
        assert_eq!(bench.store.damaged_units_count(), 0);
        let mut bench = bench.crash();
        assert_unread_store(&mut bench, &[]);
    }
}

#[test]
fn journal_data_that_stays_unreadable_costs_a_checkpoint_its_own_units() {
    let (mut bench, place) = unread_store();
    bench.disk.unreadable = Some((place, place + 512));
    bench.checkpoint();
    assert_eq!(bench.store.damaged_units_count(), 1);
    for _ in 0..2 {
        assert_unread_store(&mut bench, &[1]);
        assert_eq!(bench.read(49, 0, 3), Err(StoreError::Damaged { units: vec![1 << 1] }));
        bench = bench.crash();
    }
}

#[test]
fn a_leaf_that_stays_unreadable_is_counted_and_its_page_not_used_again() {
    let (mut bench, _) = unread_store();
    let parts = bench.store.parts();
    let (_, leaf) = parts.pages.leaf_of(&key(0)).expect("it is there");
    let place = parts.page_place(leaf.page);
    let range = (place, place + 4096);
    bench.disk.unreadable = Some(range);
    for _ in 0..3 {
        bench.write(0, 0, 1, 300);
        bench.checkpoint();
        assert_eq!(bench.disk.unreadable, Some(range), "nothing is written over it");
    }
    assert!(bench.store.damaged_units_count() > 0);
    bench.assert_unit(0, 0, Some(300));
    assert!(bench.read(0, 9, 1).is_err());
    let good = (0..200).filter(|number| bench.read(*number, 9, 1).is_ok()).count();
    assert!((100..200).contains(&good), "{good}");
    assert!(!bench.store.parts_mut().pages.take(leaf.page));
}

#[test]
fn a_read_error_costs_the_units_that_cannot_be_read() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 32, 5);
    bench.run();
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(1)).expect("it is written").location);
    assert_eq!(bench.store.disk_figures().read_errors, 0);
    bench.disk.read_errors = 3;
    assert!(bench.read(1, 0, 32).is_ok());
    let figures = bench.store.disk_figures();
    assert_eq!(bench.disk.read_errors, 0, "the read and two of its pieces failed");
    assert_eq!((figures.read_errors, bench.store.damaged_units_count()), (1, 0), "nothing is lost");
    assert!(figures.reads.count > 0 && figures.writes.count > 0 && figures.flushes.count > 0);
    bench.disk.unreadable = Some((place + 5 * UNIT_SIZE, place + 5 * UNIT_SIZE + 512));
    assert_eq!(bench.read(1, 0, 32), Err(StoreError::Damaged { units: vec![1 << 5] }));
    assert_eq!(bench.store.disk_figures().read_errors, 2);
    assert_eq!((bench.store.damaged_units_count(), bench.store.damaged_units_left()), (1, 1));
    assert_eq!(bench.store.damaged_units_count(), 1);
}

#[test]
fn a_group_that_ends_with_the_ring_is_not_continued_behind_it() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let size = bench.store.parts().journal.size();
    let rest = |bench: &Bench| size - bench.tail().get() % size;
    let entry = 512 + UNIT_SIZE;
    while rest(&bench) > 64 * entry {
        bench.write(1, 0, 16, 7);
        bench.run();
    }
    while rest(&bench) > 2 * entry {
        bench.write(1, 0, 1, 7);
        bench.run();
    }
    while rest(&bench) > entry {
        bench.delete(2);
        bench.run();
    }
    assert_eq!(rest(&bench), entry);
    // In one turn, the first entry ends exactly at the end of the ring, and the second entry starts at its
    // beginning.
    let ids = [bench.write(3, 0, 1, 300), bench.write(4, 0, 1, 400)];
    assert_eq!(bench.tail().get() % size, entry);
    bench.run();
    assert!(ids.iter().all(|id| bench.is_durable(*id)));
    let mut bench = bench.crash();
    bench.assert_unit(3, 0, Some(300));
    bench.assert_unit(4, 0, Some(400));
}

#[test]
fn a_failed_write_or_flush_stops_the_store() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.disk.fails = true;
    let id = bench.write(1, 0, 1, 5);
    bench.run();
    assert!(bench.stopped.as_ref().is_some_and(|reason| reason.contains("journal")));
    assert!(!bench.answers.contains_key(&id));
    bench.apply(Event::Tick);
    assert_eq!(bench.store.deadline(), None);
}

#[test]
fn a_full_file_system_makes_the_store_full_not_poisoned() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.disk.no_space = 1;
    let waits = bench.write(1, 0, 32, 5);
    bench.run();
    assert!(!bench.is_durable(waits));
    assert!(bench.store.space().full);
    let refused = bench.write(2, 0, 1, 5);
    assert_eq!(bench.answers[&refused], Err(StoreError::Full));
    let gap = bench.delete(8);
    assert_eq!(bench.answers[&gap], Err(StoreError::Full), "nothing of the epoch comes behind it");
    bench.next_epoch();
    let delete = bench.delete(7);
    bench.run();
    assert!(!bench.is_durable(refused));
    bench.pass(Duration::from_secs(1));
    assert!(bench.is_durable(waits));
    assert!(bench.is_durable(delete));
    assert!(!bench.store.space().full);
    bench.assert_unit(1, 0, Some(5));
}

/// Returns a store in a file, on a file system with this many free bytes.
fn on_a_file(mode: CommitMode, free_bytes: u64) -> Bench {
    let mut disk = created(&options(mode, 512));
    disk.host = Some(Host::new(23 * MIB, free_bytes));
    let bench = Bench::on(disk, Settings { is_sparse: true, ..settings() }, 1);
    assert_eq!(bench.store.parts().superblock.data.offset, 23 * MIB);
    bench
}

#[test]
fn a_store_takes_no_more_of_the_space_that_its_engine_needs() {
    use format::engine::EngineEvent;
    for shares_space_with_engine in [false, true] {
        let mut disk = created(&options(CommitMode::Fsync, 512));
        disk.host = Some(Host::new(23 * MIB, 200 * MIB));
        let settings = Settings { is_sparse: true, shares_space_with_engine, ..settings() };
        let mut bench = Bench::on(disk, settings, 1);
        bench.apply(Event::Engine(EngineEvent::Space { is_low: true }));
        bench.run();
        let free = |bench: &Bench| bench.disk.host.as_ref().expect("on a file").free_bytes;
        let before = free(&bench);
        let full = (0..400).find(|number| {
            let id = bench.write(*number, 0, 32, u64::from(*number));
            bench.run();
            bench.answers[&id] == Err(StoreError::Full)
        });
        assert_eq!(full.is_some(), shares_space_with_engine, "{full:?}");
        assert_eq!(free(&bench) == before, shares_space_with_engine);
        bench.apply(Event::Engine(EngineEvent::Space { is_low: false }));
        bench.pass(Duration::from_secs(2));
        bench.next_epoch();
        let id = bench.write(1000, 0, 32, 1);
        bench.run();
        assert!(bench.is_durable(id));
    }
}

#[test]
fn a_full_file_system_refuses_new_blocks_and_deletes_make_room_again() {
    for mode in MODES {
        let mut bench = on_a_file(mode, 20 * MIB);
        for round in 0..3u64 {
            // Half of the blocks are written as a whole. The others get only one unit, and write-back needs a
            // place for them too.
            let count = (0..).find(|number| {
                let units = if number % 2 == 0 { 32 } else { 1 };
                let id = bench.write(*number, 0, units, round * 1000);
                bench.run();
                bench.answers[&id] == Err(StoreError::Full)
            });
            let count = count.expect("it becomes full");
            assert!((130..=160).contains(&count), "{count} blocks in 20 MiB");
            bench.next_epoch();
            assert!(bench.store.space().full);
            bench.checkpoint();
            // All existing blocks can be read, overwritten and deleted.
            for number in 0..count {
                let units = if number % 3 == 0 { 32 } else { 2 };
                let id = bench.write(number, 0, units, round * 1000 + 7);
                bench.run();
                assert!(bench.is_durable(id), "block {number} of {count}");
            }
            assert_eq!(bench.done(Request::Sync), Ok(Answer::Durable));
            bench.checkpoint();
            for number in 0..count {
                bench.assert_unit(number, 0, Some(round * 1000 + 7));
                let id = bench.delete(number);
                bench.run();
                assert!(bench.is_durable(id));
            }
            bench.pass(Duration::from_secs(2));
            assert_eq!(bench.store.space().used_bytes, 0);
            assert!(!bench.store.space().full);
            bench = bench.crash();
        }
    }
}

#[test]
fn reserved_space_is_used_up_to_its_last_part_before_the_store_is_full() {
    let mut bench = on_a_file(CommitMode::Fsync, 20 * MIB);
    let mut number = 0;
    while !bench.store.space().full {
        let id = bench.write(number, 0, 32, 5);
        bench.run();
        assert!(bench.is_durable(id), "block {number} is refused before the store says full");
        number += 1;
    }
    let used = bench.store.space().used_bytes;
    assert!((15 * MIB..20 * MIB).contains(&used), "{used}");
}

#[test]
fn the_store_notices_that_the_file_system_has_space_again() {
    let mut bench = on_a_file(CommitMode::Fsync, 0);
    let refused = bench.write(1, 0, 32, 5);
    bench.run();
    assert_eq!(bench.answers[&refused], Err(StoreError::Full));
    assert!(bench.store.space().full);
    bench.disk.host.as_mut().expect("it is a file").free_bytes = 256 << 10;
    bench.pass(Duration::from_secs(1));
    assert!(bench.store.space().full, "there is too little for what is reserved ahead");
    bench.disk.host.as_mut().expect("it is a file").free_bytes = 40 * MIB;
    bench.pass(Duration::from_secs(1));
    assert!(!bench.store.space().full);
    bench.next_epoch();
    let written = bench.write(1, 0, 32, 5);
    bench.run();
    assert!(bench.is_durable(written));
    bench.idle();
    assert_eq!(bench.store.deadline(), None);
}

#[test]
fn a_full_store_takes_writes_until_its_reserve_is_gone_and_then_overwrites_and_deletes() {
    for mode in MODES {
        let mut bench = Bench::new(mode);
        let (mut count, mut full_at) = (0, None);
        loop {
            if full_at.is_none() && bench.store.space().full {
                full_at = Some(count);
            }
            let id = bench.write(count, 0, 32, count as u64);
            bench.run();
            if !bench.is_durable(id) {
                assert_eq!(bench.answers[&id], Err(StoreError::Full));
                break;
            }
            count += 1;
        }
        let space = bench.store.space();
        assert_eq!((space.size_bytes, space.free_bytes), (space.used_bytes, 0));
        let in_reserve = count - full_at.expect("it says so before it refuses");
        assert!((16..=24).contains(&in_reserve), "{in_reserve} blocks in 2 MiB and the last one");
        // Small writes and repairs that need a new place fail too.
        bench.next_epoch();
        let small = bench.write(count, 3, 1, 5);
        let version = bench.next_version();
        let repair = bench.content(version, &[0], &[0], 5);
        let repair = bench.repair(count + 1, repair);
        bench.run();
        for id in [small, repair] {
            assert_eq!(bench.answers.remove(&id), Some(Err(StoreError::Full)));
        }
        bench.next_epoch();
        let all: Vec<u32> = (0..32).collect();
        let version = bench.next_version();
        let repair = bench.content(version, &all, &all, 1_000_000);
        let repair = bench.repair(0, repair);
        bench.run();
        assert!(bench.is_durable(repair), "what has a place can be repaired");
        bench.assert_unit(0, 31, Some(1_000_000));
        for round in 1..3u64 {
            for number in 0..count {
                bench.write(number, 0, 32, round * 1000);
                if number % 16 == 0 {
                    bench.run();
                }
            }
            bench.run();
        }
        assert!(bench.answers.values().filter(|answer| answer.is_err()).count() == 1);
        bench.assert_unit(count - 1, 31, Some(2000));
        for number in 0..count {
            bench.delete(number);
        }
        bench.run();
        assert_eq!(bench.store.space().used_bytes, 0);
        let id = bench.write(5000, 0, 32, 9);
        bench.run();
        assert!(bench.is_durable(id));
        let mut bench = bench.crash();
        bench.assert_unit(5000, 31, Some(9));
        assert_eq!(bench.store.space().used_bytes, 128 * 1024);
    }
}

#[test]
fn the_journal_wraps_many_times() {
    for (mode, sector_size) in [(CommitMode::Fsync, 512), (CommitMode::Immediate, 4096)] {
        let disk = created(&options(mode, sector_size));
        let mut bench = Bench::on(disk, settings(), 5);
        for round in 0..12_000u64 {
            let number = bench.random.below(200) as u32;
            bench.write(number, (round % 32) as u32, 1, round);
            if round % 8 == 0 {
                bench.run();
            }
        }
        bench.run();
        let lsn = bench.store.parts().journal.tail();
        assert!(lsn.get() > 3 * 16 * MIB);
        assert!(bench.store.parts().root.sequence > 3);
        let versions: Vec<_> = bench.store.blocks(PG.pool, 0, u32::MAX, None).collect();
        let bench = bench.crash();
        assert!(bench.store.blocks(PG.pool, 0, u32::MAX, None).eq(versions));
    }
}

#[test]
fn an_idle_journal_records_what_is_durable_once() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 1, 5);
    bench.run();
    assert!(bench.store.deadline().is_some());
    bench.pass(Duration::from_millis(101));
    let tail = bench.store.parts().journal.tail();
    assert_eq!(bench.store.deadline(), None);
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.store.parts().journal.tail(), tail);
    let bench = bench.crash();
    assert_eq!(bench.rows(), "AF");
}

#[test]
fn after_a_recorded_end_wrong_data_is_damage_not_a_torn_tail() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(2, 0, 32, 900);
    bench.run();
    assert_eq!(bench.done(Request::Record), Ok(Answer::Durable));
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(2)).expect("it is written").location);
    let mut disk = bench.off();
    disk.flip(place + 5);
    let mut bench = Bench::on(disk, settings(), 1);
    bench.run();
    assert_eq!(bench.rows(), "AF");
    let read = bench.read(2, 0, 32);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
}

#[test]
fn entries_that_a_start_found_are_recorded_and_no_torn_tail_later() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let entry = bench.tail();
    bench.write(2, 0, 1, 900);
    bench.run();
    let place = bench.place(entry) + 512;
    let mut bench = Bench::on(bench.off(), settings(), 1);
    assert_eq!(bench.done(Request::Record), Ok(Answer::Durable));
    let tail = bench.tail();
    let mut bench = Bench::on(bench.off(), settings(), 1);
    assert_eq!(bench.done(Request::Record), Ok(Answer::Durable));
    assert_eq!(bench.tail(), tail, "it is recorded once");
    assert_eq!(bench.store.deadline(), None);
    let mut disk = bench.off();
    disk.flip(place);
    let mut bench = Bench::on(disk, settings(), 1);
    assert_eq!(bench.rows(), "ACF");
    assert!(matches!(bench.read(2, 0, 1), Err(StoreError::Damaged { .. })));
}

#[test]
fn block_sizes_share_a_store() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let sizes: Vec<BlockSize> = (14..=20).filter_map(BlockSize::from_shift).collect();
    for (number, size) in sizes.iter().enumerate() {
        let request = bench.write_of(number as u32, *size, 0, size.unit_count(), 50);
        assert_eq!(bench.done(request), Ok(Answer::Durable));
        let request = bench.write_of(number as u32, *size, 1, 1, 60);
        assert_eq!(bench.done(request), Ok(Answer::Durable));
    }
    bench.checkpoint();
    let mut bench = bench.crash();
    for (number, size) in sizes.iter().enumerate() {
        bench.assert_unit(number as u32, size.unit_count() - 1, Some(50));
        bench.assert_unit(number as u32, 1, Some(60));
    }
}

#[test]
fn opening_something_that_is_no_store_says_why() {
    let empty = crate::harness::MemoryDisk::default();
    let bench = Bench::on(empty, settings(), 1);
    assert!(bench.stopped.is_some_and(|reason| reason.contains("no OSD found")));
    let mut disk = created(&options(CommitMode::Fsync, 512));
    disk.flip(100);
    disk.flip((64 << 10) + 100);
    let bench = Bench::on(disk, settings(), 1);
    assert!(bench.stopped.is_some_and(|reason| reason.contains("both copies")));
    let large = crate::CreateOptions { size: GIB, ..options(CommitMode::Fsync, 512) };
    let mut truncated = created(&large);
    truncated.size = GIB / 2;
    let bench = Bench::on(truncated, settings(), 1);
    assert!(bench.stopped.is_some_and(|reason| reason.contains("truncated")));
}

#[test]
fn the_oldest_operation_has_an_age_while_the_loop_runs() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.run();
    assert_eq!(bench.store.oldest_operation(), Duration::ZERO);
    assert!(bench.store.is_idle());
    bench.write(1, 0, 1, 7);
    bench.submit();
    assert!(!bench.disk.ops.is_empty());
    let runs = |bench: &mut Bench, span| {
        bench.now = bench.now + span;
        bench.store.runs(bench.now);
        bench.store.oldest_operation().as_millis()
    };
    for turn in 1..=50 {
        assert_eq!(runs(&mut bench, Duration::from_millis(200)), turn * 200);
    }
    // The whole host was paused, so only a small part of that time counts.
    assert_eq!(runs(&mut bench, Duration::from_secs(20)), 10_250);
    bench.run();
    assert_eq!(bench.store.oldest_operation(), Duration::ZERO);
    assert!(bench.store.is_idle());
}
