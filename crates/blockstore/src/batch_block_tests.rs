//! Tests of blocks in batches, and of the rows of recovery that object pools have; the tests play the engine.

use base::{BlockSize, Buffer, BufferPool, Lsn, PgId, UNIT_SIZE, Version};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, NoteKey, UnitSet};
use format::engine::{Change, EngineEffect};

use crate::batch_tests::*;
use crate::harness::{Bench, Random, key, unit};
use crate::{Answer, Batch, CommitMode, Page, Request, RequestId, StoreError};

const UNIT: u64 = UNIT_SIZE;

fn line(action: BlockAction, number: u32, units: &[u32]) -> BlockChange {
    let mut set = UnitSet::EMPTY;
    units.iter().for_each(|unit| set.insert(*unit));
    BlockChange {
        action,
        key: key(number),
        version: Version::ZERO,
        location: LOCATION_NONE,
        units: set,
        checksums: Vec::new(),
    }
}

/// Returns a line with data: unit `i` gets `unit(tag + i)`.
fn units(number: u32, units: &[u32], tag: u64) -> (BlockChange, Buffer) {
    let bytes: Vec<u8> = units.iter().flat_map(|index| unit(tag + u64::from(*index))).collect();
    let mut line = line(BlockAction::Units, number, units);
    base::checksum::checksum_units(&bytes, &mut line.checksums);
    (line, BufferPool::default().copy_of(&bytes))
}

fn all(number: u32, tag: u64) -> (BlockChange, Buffer) {
    units(number, &(0..32).collect::<Vec<u32>>(), tag)
}

fn plain(action: BlockAction, number: u32, units: &[u32]) -> (BlockChange, Buffer) {
    (line(action, number, units), BufferPool::default().take(0).freeze())
}

/// Returns a batch with one version, and a record that names it.
fn with(upto: u64, mut blocks: Vec<(BlockChange, Buffer)>) -> Request {
    blocks.iter_mut().for_each(|(line, _)| line.version = version(upto));
    let records = vec![put(b"last", &upto.to_le_bytes())];
    let Request::Batch(batch) = batch(upto - 1, upto, records) else { unreachable!() };
    Request::Batch(Batch { blocks, ..batch })
}

fn durable(bench: &mut Bench, request: Request) {
    assert_eq!(bench.done(request), Ok(Answer::Durable));
}

/// Starts the store again on the disk as it is, with an engine that has all up to `lsn`.
fn again(bench: Bench, lsn: Lsn) -> Bench {
    let mut bench = Bench::with_engine(bench.off(), found(&[family(lsn)]));
    end_writes(&mut bench);
    assert!(bench.opened, "{:?}", bench.stopped);
    bench
}

#[test]
fn blocks_of_a_batch_are_there_at_once_and_stay() {
    let mut bench = open();
    let first = vec![
        all(1, 100),
        units(2, &[3, 5], 200),
        units(3, &(4..24).collect::<Vec<u32>>(), 300),
        plain(BlockAction::Zeros, 4, &[0]),
    ];
    let first = bench.ask(with(1, first));
    let check = |bench: &mut Bench| {
        bench.assert_unit(1, 31, Some(100));
        bench.assert_unit(2, 5, Some(200));
        bench.assert_unit(2, 4, None);
        bench.assert_unit(3, 23, Some(300));
        bench.assert_unit(3, 24, None);
    };
    check(&mut bench);
    assert!(bench.is_durable(first));
    assert_eq!(bench.store.version_of(&key(4)), version(1));
    let used = bench.store.space().used_bytes;
    assert_eq!(used, 3 * (128 << 10));
    let mut bench = again(bench, Lsn::ZERO);
    check(&mut bench);
    // Over what is there: units, zeros, all of a block, and a block that goes.
    let second = vec![
        units(1, &[0, 2], 400),
        plain(BlockAction::Zeros, 1, &[1, 31]),
        plain(BlockAction::Gone, 2, &[]),
        all(3, 500),
    ];
    durable(&mut bench, with(2, second));
    let check = |bench: &mut Bench| {
        let units = [(0, Some(400)), (1, None), (2, Some(400)), (3, Some(100)), (31, None)];
        units.into_iter().for_each(|(unit, tag)| bench.assert_unit(1, unit, tag));
        bench.assert_unit(2, 5, None);
        bench.assert_unit(3, 0, Some(500));
        let versions = [1, 2, 3, 4].map(|number| bench.store.version_of(&key(number)).counter);
        assert_eq!(versions, [2, 0, 2, 1]);
        // Their images are ids of data.
        assert!(bench.store.images().is_empty());
        assert_eq!(bench.store.space().used_bytes, 2 * (128 << 10));
    };
    check(&mut bench);
    let mut bench = again(bench, Lsn::ZERO);
    check(&mut bench);
    bench.checkpoint();
    check(&mut bench);
    let mut bench = again(bench, Lsn::ZERO);
    check(&mut bench);
}

#[test]
fn a_place_is_for_whole_blocks_and_much_data() {
    let mut bench = open();
    let large = |bench: &Bench| bench.store.parts().journal.large_count();
    // 60 KiB in a block without a place, then 64.
    bench.ask(with(1, vec![units(1, &(0..15).collect::<Vec<u32>>(), 1)]));
    assert_eq!(large(&bench), 0);
    bench.ask(with(2, vec![units(2, &(0..16).collect::<Vec<u32>>(), 1)]));
    assert_eq!(large(&bench), 1);
    // The same in a block with a place.
    bench.ask(with(3, vec![units(1, &(0..31).collect::<Vec<u32>>(), 1)]));
    assert_eq!(large(&bench), 1);
    // An entry counts once.
    let before = bench.tail();
    let many = (10..34).map(|number| all(number, 9)).collect();
    bench.ask(with(4, many));
    assert_eq!(large(&bench), 2);
    assert!(bench.tail().since(before) < 8192);
    bench.run();
    (10..34).for_each(|number| bench.assert_unit(number, 7, Some(9)));
}

#[test]
fn a_batch_waits_for_the_data_of_earlier_ones_of_its_pg() {
    for commit in [CommitMode::Fsync, CommitMode::Immediate] {
        let mut bench = open_with(commit);
        let first = with(1, vec![all(1, 1), all(2, 2)]);
        let first = bench.ask(first);
        let second = bench.ask(with(2, vec![units(3, &[0], 3)]));
        let other = PgId { number: 1, ..PG };
        let Request::Batch(of_other) = batch(0, 1, vec![put(b"b", b"1")]) else { unreachable!() };
        let of_other = bench.ask(Request::Batch(Batch { pg: other, ..of_other }));
        bench.submit();
        let data = bench.store.parts().superblock.data;
        let is_data = |offset: u64| data.offset <= offset;
        // All but the data of the first one.
        while let Some(index) = bench.disk.find_write(|offset| !is_data(offset)) {
            let event = bench.disk.end(index);
            bench.apply(crate::Event::Disk(event));
            bench.submit();
        }
        if commit == CommitMode::Fsync {
            let flush = bench.disk.ops.values().position(|op| op.is_flush());
            let event = bench.disk.end(flush.expect("it was wanted"));
            bench.apply(crate::Event::Disk(event));
        }
        assert!(bench.is_durable(of_other) && !bench.is_durable(second));
        // One of the two places.
        let index = bench.disk.find_write(is_data).expect("it is being written");
        let event = bench.disk.end(index);
        bench.apply(crate::Event::Disk(event));
        assert!(!bench.is_durable(first) && !bench.is_durable(second));
        assert!(bench.engine_effects.is_empty(), "nothing enters before all is durable");
        bench.assert_unit(1, 0, Some(1));
        bench.run();
        assert!(bench.is_durable(first) && bench.is_durable(second));
        assert_eq!(bench.engine_effects.len(), 3);
    }
}

#[test]
fn impossible_blocks_are_refused() {
    let refused = |blocks: Vec<(BlockChange, Buffer)>, why: &str| {
        let mut bench = open();
        let result = bench.done(with(1, blocks));
        assert_eq!(result, Err(StoreError::Corrupted), "{why}");
    };
    let (mut changed, data) = units(1, &[0], 1);
    changed.checksums[0] = base::Checksum::new(7);
    refused(vec![(changed, data)], "a checksum that does not match");
    let (placed, data) = units(1, &[0], 1);
    refused(vec![(BlockChange { location: 8, ..placed }, data)], "a place");
    let (at_place, data) = units(1, &[0], 1);
    let action = BlockAction::UnitsAtPlace;
    refused(vec![(BlockChange { action, ..at_place }, data)], "data at a place");
    refused(vec![plain(BlockAction::Damaged, 1, &[0])], "damage");
    refused(vec![units(1, &[0], 1), units(1, &[0], 1)], "a unit twice");
    let (short, _) = units(1, &[0, 1], 1);
    refused(vec![(short, units(1, &[0], 1).1)], "missing data");
    let many = |count: u32| (1..=count).map(|number| units(number, &[0; 1], 1)).collect();
    refused(many(129), "more units than an entry can have");
    // A version beyond the batch.
    let mut bench = open();
    let Request::Batch(mut later) = with(1, vec![units(1, &[0], 1)]) else { panic!() };
    later.blocks[0].0.version = version(2);
    assert_eq!(bench.done(Request::Batch(later)), Err(StoreError::Corrupted));
}

/// Returns the batch as one of the next epoch.
fn of_next_epoch(request: Request) -> Request {
    let Request::Batch(batch) = request else { unreachable!() };
    let epoch = version(1).epoch.next();
    Request::Batch(Batch { version: Version { epoch, ..batch.version }, ..batch })
}

#[test]
fn behind_a_batch_that_was_refused_all_of_its_epoch_are() {
    let put = |after, upto| batch(after, upto, vec![put(b"a", b"1")]);
    let forward = |after, upto| {
        let Request::Batch(batch) = put(after, upto) else { unreachable!() };
        Request::Batch(Batch { note: Some((NoteKey::Pg(PG), b"n".to_vec())), ..batch })
    };
    let mut bench = open();
    let (mut changed, data) = units(1, &[0], 1);
    changed.checksums[0] = base::Checksum::new(7);
    assert_eq!(bench.done(with(1, vec![(changed, data)])), Err(StoreError::Corrupted));
    // It would be the first one of its epoch, which may follow any version.
    assert_eq!(bench.done(put(1, 2)), Err(StoreError::Full));
    durable(&mut bench, forward(0, 2));
    assert_eq!(bench.done(put(2, 3)), Err(StoreError::Full));
    durable(&mut bench, of_next_epoch(put(2, 4)));
    // A store without the family.
    let mut bench = open();
    bench.ask(Request::Family { pool: PG.pool, compression: None });
    assert_eq!(bench.done(put(0, 1)), Err(StoreError::NoFamily));
    let Some(EngineEffect::Remove { op, .. }) = bench.engine_effects.pop() else { panic!() };
    end(&mut bench, op);
    let compression = Some(format::engine::Compression::None);
    bench.ask(Request::Family { pool: PG.pool, compression });
    bench.run();
    let Some(EngineEffect::Create { op, .. }) = bench.engine_effects.pop() else { panic!() };
    end(&mut bench, op);
    end_writes(&mut bench);
    assert_eq!(bench.done(put(1, 2)), Err(StoreError::Full));
    durable(&mut bench, forward(0, 2));
}

#[test]
fn a_read_of_a_block_waits_for_a_queued_batch() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    let last = fill(&mut bench, size * 13 / 16);
    let big = vec![put(b"b", &[1; 60_000]); 16];
    let Request::Batch(big) = batch(last, last + 1, big) else { unreachable!() };
    let mut blocks = vec![units(1, &[0], 5)];
    blocks[0].0.version = version(last + 1);
    let waits = bench.ask(Request::Batch(Batch { blocks, ..big }));
    bench.run();
    assert!(!bench.answers.contains_key(&waits));
    // Its data is compared once, however many events come.
    let compared = bench.store.comparisons;
    (0..5).for_each(|_| bench.apply(crate::Event::Tick));
    assert_eq!(bench.store.comparisons, compared);
    let read = Request::Read { key: key(1), offset: 0, length: 4096, as_of: crate::AsOf::View };
    let read = bench.ask(read);
    bench.run();
    assert!(!bench.answers.contains_key(&read));
    flushed(&mut bench, Lsn::new(size / 2));
    bench.run();
    assert!(bench.is_durable(waits));
    let Some(Ok(Answer::Read { data, .. })) = bench.answers.remove(&read) else { panic!() };
    assert!(data[..] == unit(5));
    // The id may be used again, for data that was not compared.
    let (mut changed, data) = units(1, &[0], 1);
    changed.checksums[0] = base::Checksum::new(7);
    let request = with(last + 2, vec![(changed, data)]);
    bench.answers.clear();
    bench.apply(crate::Event::Request { id: waits, request });
    assert_eq!(bench.answers.remove(&waits), Some(Err(StoreError::Corrupted)));
}

#[test]
fn a_full_store_refuses_a_batch_as_a_whole_and_all_behind_it() {
    let mut bench = open();
    let mut counter = 0;
    let refused = loop {
        let blocks = (0..24).map(|block| all(1000 + counter as u32 * 24 + block, 1));
        let request = with(counter + 1, blocks.collect());
        match bench.done(request) {
            Ok(Answer::Durable) => counter += 1,
            other => break other,
        }
        assert!(counter < 100);
        end_writes(&mut bench);
    };
    assert_eq!(refused, Err(StoreError::Full));
    assert_eq!(bench.store.last_version(PG), version(counter));
    assert_eq!(bench.store.version_of(&key(1000 + counter as u32 * 24)), Version::ZERO);
    // Whole blocks over others take no places: their data goes to the journal.
    let over = vec![all(1000, 2)];
    assert_eq!(bench.done(with(counter + 1, over)), Err(StoreError::Full), "of this epoch");
    let mut bench = again(bench, Lsn::ZERO);
    assert_eq!(bench.store.last_version(PG), version(counter));
    while bench.done(with(counter + 1, vec![all(counter as u32, 1)])).is_ok() {
        counter += 1;
    }
    let mut bench = again(bench, Lsn::ZERO);
    durable(&mut bench, with(counter + 1, vec![all(1000, 2)]));
    bench.assert_unit(1000, 3, Some(2));
    let mut bench = again(bench, Lsn::ZERO);
    bench.assert_unit(1000, 3, Some(2));
}

/// What a start found: last version, whether the PG and another one are suspect, rows.
fn rows(bench: &Bench) -> (u64, bool, bool, String) {
    let other = PgId { number: 1, ..PG };
    let suspect = bench.store.is_suspect(other);
    (bench.store.last_version(PG).counter, bench.store.is_suspect(PG), suspect, bench.rows())
}

/// Journals three batches, of which the second one has two blocks with places, units and records; and one of
/// another PG. No entry records that they are durable. Returns their lsns.
fn three(bench: &mut Bench) -> [Lsn; 3] {
    let other = PgId { number: 1, ..PG };
    let Request::Batch(of_other) = batch(0, 1, vec![put(b"o", b"1")]) else { unreachable!() };
    let requests = [
        with(1, vec![units(1, &[0], 10), all(9, 90)]),
        with(2, vec![all(1, 20), units(2, &[7], 20), all(3, 20)]),
        Request::Batch(Batch { pg: other, ..of_other }),
        with(3, vec![units(2, &[8], 30), units(9, &[1], 30)]),
    ];
    let lsns = asked_at_once(bench, requests);
    [lsns[0], lsns[1], lsns[3]]
}

/// Sends requests before any of them is written, and runs. Returns the lsns of their entries.
fn asked_at_once<const N: usize>(bench: &mut Bench, requests: [Request; N]) -> [Lsn; N] {
    let asked = requests.map(|request| (bench.tail(), bench.ask(request)));
    bench.run();
    assert!(asked.iter().all(|(_, id)| bench.is_durable(*id)));
    asked.map(|(lsn, _)| lsn)
}

/// Returns the records that the engine gets: the last value of each key. Ends the writes.
fn records_given(bench: &mut Bench) -> Vec<(Vec<u8>, u64)> {
    let mut given = std::collections::BTreeMap::new();
    while let Some(EngineEffect::Write { op, changes, .. }) = bench.engine_effects.first() {
        for change in changes.iter() {
            if let Change::Put { key, value } = change {
                let mut number = [0; 8];
                number[..value.len().min(8)].copy_from_slice(&value[..value.len().min(8)]);
                given.insert(key.clone(), u64::from_le_bytes(number));
            }
        }
        let op = *op;
        bench.engine_effects.remove(0);
        end(bench, op);
    }
    given.into_iter().collect()
}

fn last(counter: u64) -> (Vec<u8>, u64) {
    (b"last".to_vec(), counter)
}

#[test]
fn object_row_a_a_lost_body_makes_its_pg_suspect_and_no_other() {
    let mut bench = open();
    let lsns = three(&mut bench);
    // An entry records that they were durable.
    bench.idle();
    let place = bench.place(lsns[1]);
    let mut disk = bench.off();
    disk.flip(place + 150);
    let start = |disk, lsn| Bench::with_engine(disk, found(&[family(lsn)]));
    let mut bench = start(disk, Lsn::ZERO);
    let given = records_given(&mut bench);
    assert!(bench.opened && given.contains(&last(3)), "{given:?}");
    assert_eq!(rows(&bench), (3, true, false, "AFa".to_owned()));
    // Later entries count; block 2 had got its place by the lost one.
    bench.assert_unit(9, 1, Some(30));
    bench.assert_unit(9, 2, Some(90));
    bench.assert_unit(1, 0, Some(10));
    let mut bench = start(bench.off(), Lsn::ZERO);
    end_writes(&mut bench);
    assert_eq!(rows(&bench), (3, true, false, "AFO".to_owned()));
    durable(&mut bench, Request::Absolve { pg: PG });
    let mut bench = start(bench.off(), Lsn::ZERO);
    end_writes(&mut bench);
    assert_eq!(rows(&bench), (3, false, false, "AFO".to_owned()));
    // A checkpoint has the rest, but the engine lacks the records.
    bench.checkpoint();
    let mut bench = start(bench.off(), Lsn::ZERO);
    end_writes(&mut bench);
    assert_eq!(rows(&bench), (3, false, false, "AFO".to_owned()));
}

#[test]
fn object_row_b_a_lost_body_that_nobody_needs_is_passed() {
    let mut bench = open();
    let lsns = three(&mut bench);
    end_writes(&mut bench);
    bench.checkpoint();
    let place = bench.place(lsns[1]);
    let replay = bench.store.parts().root.replay;
    assert!(replay < lsns[1]);
    let mut disk = bench.off();
    disk.flip(place + 150);
    // The engine has it, but nothing told that it is durable there.
    let mut bench = Bench::with_engine(disk, found(&[family(lsns[1])]));
    end_writes(&mut bench);
    assert!(bench.opened);
    assert_eq!(rows(&bench), (3, false, false, "AFb".to_owned()));
    bench.assert_unit(2, 7, Some(20));
    bench.assert_unit(3, 7, Some(20));
}

#[test]
fn object_row_c_lost_data_behind_a_whole_body_is_damage_of_its_units() {
    let mut bench = open();
    let second = bench.tail();
    let blocks = vec![units(1, &[0, 1], 10), units(2, &[5], 20)];
    durable(&mut bench, with(1, blocks));
    bench.idle();
    // Header and body take a sector; the second unit of block 1.
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.flip(place + 512 + UNIT + 7);
    let mut bench = again_on(disk);
    assert_eq!(rows(&bench), (1, false, false, "AFc".to_owned()));
    bench.assert_unit(1, 0, Some(10));
    bench.assert_unit(2, 5, Some(20));
    assert!(matches!(bench.read(1, 1, 1), Err(StoreError::Damaged { .. })));
    bench.checkpoint();
    let mut bench = again(bench, Lsn::ZERO);
    assert!(matches!(bench.read(1, 1, 1), Err(StoreError::Damaged { .. })));
}

fn again_on(disk: crate::harness::MemoryDisk) -> Bench {
    let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
    end_writes(&mut bench);
    assert!(bench.opened, "{:?}", bench.stopped);
    bench
}

/// Flips a byte of the data of block 3 at its place.
fn tear_block_3(bench: &Bench, disk: &mut crate::harness::MemoryDisk) {
    let parts = bench.store.parts();
    let location = parts.blocks.get(&key(3)).expect("it is there").location;
    disk.flip(parts.place(location) + 20 * UNIT + 5);
}

#[test]
fn object_row_d_a_batch_whose_data_does_not_match_is_dropped_whole() {
    let mut bench = open();
    three(&mut bench);
    let mut disk = bench.disk.copy();
    tear_block_3(&bench, &mut disk);
    let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
    let given = records_given(&mut bench);
    assert_eq!(given, [last(1), (b"o".to_vec(), u64::from(b'1'))]);
    assert_eq!(rows(&bench), (1, false, false, "AFde".to_owned()));
    let check = |bench: &mut Bench| {
        bench.assert_unit(1, 0, Some(10));
        bench.assert_unit(1, 1, None);
        bench.assert_unit(2, 7, None);
        bench.assert_unit(3, 7, None);
        bench.assert_unit(9, 1, Some(90));
        assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
    };
    check(&mut bench);
    // The decision stays, and what comes then counts.
    let mut bench = again(bench, Lsn::ZERO);
    assert_eq!(rows(&bench), (1, false, false, "AFO".to_owned()));
    check(&mut bench);
    durable(&mut bench, with(2, vec![units(3, &[0], 40)]));
    let mut bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    assert!(records_given(&mut bench).contains(&last(2)));
    assert_eq!(rows(&bench), (2, false, false, "AFO".to_owned()));
    bench.assert_unit(3, 0, Some(40));
    // Also when a checkpoint has passed it, and the journal is kept for the engine alone.
    bench.checkpoint();
    let mut bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    let given = records_given(&mut bench);
    assert_eq!(given, [last(2), (b"o".to_vec(), u64::from(b'1'))]);
    assert_eq!(rows(&bench), (2, false, false, "AFO".to_owned()));
}

#[test]
fn object_row_e_moves_and_repairs_behind_a_dropped_batch_are_dropped() {
    let mut bench = open();
    let whole: Vec<u32> = (0..32).collect();
    let content = bench.content(version(1), &whole, &whole, 95);
    let requests = [
        with(1, vec![units(1, &[0], 10), all(9, 90)]),
        with(2, vec![all(3, 20)]),
        Request::Repair { pg: PG, key: key(9), content },
    ];
    asked_at_once(&mut bench, requests);
    let mut disk = bench.disk.copy();
    tear_block_3(&bench, &mut disk);
    let mut bench = again_on(disk);
    assert_eq!(rows(&bench), (1, false, false, "AFde".to_owned()));
    bench.assert_unit(9, 4, Some(90));
    let mut bench = again(bench, Lsn::ZERO);
    bench.assert_unit(9, 4, Some(90));
    assert_eq!(rows(&bench), (1, false, false, "AFO".to_owned()));
}

#[test]
fn a_moved_block_whose_data_does_not_match_drops_the_batches_behind_it() {
    let mut bench = open();
    let whole: Vec<u32> = (0..32).collect();
    durable(&mut bench, with(1, vec![all(3, 10)]));
    let content = bench.content(version(1), &whole, &whole, 10);
    let moved = Request::Repair { pg: PG, key: key(3), content };
    asked_at_once(&mut bench, [moved, with(2, vec![units(1, &[0], 10)])]);
    let mut disk = bench.disk.copy();
    tear_block_3(&bench, &mut disk);
    let mut bench = again_on(disk);
    assert_eq!(rows(&bench), (1, false, false, "AFde".to_owned()));
    bench.assert_unit(3, 20, Some(10));
    bench.assert_unit(1, 0, None);
}

#[test]
fn a_repair_waits_for_the_data_of_earlier_batches_of_its_pg() {
    let some: Vec<u32> = (0..4).collect();
    for written in [some.clone(), (0..32).collect()] {
        let mut bench = open();
        let first = bench.ask(with(1, vec![all(1, 1), all(2, 2)]));
        let content = bench.content(version(1), &some, &some, 95);
        let content = match written.len() {
            4 => content,
            _ => bench.content(version(1), &written, &written, 95),
        };
        let repair = bench.ask(Request::Repair { pg: PG, key: key(9), content });
        let gone = Request::Repair { pg: PG, key: key(8), content: format::wire::Content::Gone };
        let gone = bench.ask(gone);
        bench.submit();
        // All but the data of the batch: its blocks have the first two places.
        let data = bench.store.parts().superblock.data;
        let place = bench.store.parts().blocks.get(&key(2)).expect("it is there").location;
        let end = bench.store.parts().place(place) + (128 << 10);
        let is_other = |offset: u64| offset < data.offset || offset >= end;
        while let Some(index) = bench.disk.find_write(is_other) {
            let event = bench.disk.end(index);
            bench.apply(crate::Event::Disk(event));
            bench.submit();
        }
        let flush = bench.disk.ops.values().position(|op| op.is_flush());
        let event = bench.disk.end(flush.expect("it was wanted"));
        bench.apply(crate::Event::Disk(event));
        bench.submit();
        let is_answered = |id| bench.answers.contains_key(&id);
        assert!(![first, repair, gone].into_iter().any(is_answered));
        bench.run();
        assert!(bench.is_durable(first) && bench.is_durable(repair) && bench.is_durable(gone));
    }
}

#[test]
fn lost_data_of_a_block_that_was_left_out_is_no_damage_of_it() {
    let mut bench = open();
    let lsns = asked_at_once(
        &mut bench,
        [with(1, vec![all(2, 20)]), with(2, vec![units(2, &[8], 30), units(1, &[0], 30)])],
    );
    bench.idle();
    let [first, second] = lsns.map(|lsn| bench.place(lsn));
    let mut disk = bench.off();
    // The body that gave block 2 its place, and the data of both units.
    disk.flip(first + 150);
    disk.flip(second + 512 + 7);
    disk.flip(second + 512 + UNIT + 7);
    let mut bench = again_on(disk);
    assert_eq!(rows(&bench), (2, true, false, "AFac".to_owned()));
    let damage = &bench.store.parts().blocks.damage;
    assert!(damage.of(&key(2)).is_empty());
    assert_eq!((damage.found_count(), damage.left_count()), (1, 1));
    bench.assert_unit(2, 8, None);
}

#[test]
fn forged_places_outside_the_data_area_cost_their_batch_and_no_stack() {
    let lines = (0..190).map(|number| {
        let mut set = UnitSet::EMPTY;
        set.insert(0);
        let (mut line, _) = units(number, &[0], 1);
        line.action = BlockAction::UnitsAtPlace;
        line.location = u32::MAX - 8;
        line.version = version(1);
        line
    });
    let body = format::disk::Body { blocks: lines.collect(), ..format::disk::Body::default() };
    let mut bench = open();
    for number in 0..6000 {
        let mut header = format::disk::EntryHeader {
            pg: Some(PgId { number, ..PG }),
            block_size: Some(BlockSize::DEFAULT),
            version: version(1),
            ..crate::journal::plain_header(format::disk::EntryKind::Batch)
        };
        let few = format::disk::Body { blocks: body.blocks[..2].to_vec(), ..Default::default() };
        let encoded = if number == 0 { &body } else { &few }.encode(&mut header);
        bench.store.parts_mut().journal.append_with(&mut header, &encoded, None);
    }
    bench.store.parts_mut().journal.want_all();
    bench.submit();
    while let Some(index) = bench.disk.find_write(|_| true) {
        let event = bench.disk.end(index);
        bench.apply(crate::Event::Disk(event));
        bench.submit();
    }
    // The stack of this thread would not hold a call for each of them.
    let bench = again_on(bench.off());
    assert_eq!(rows(&bench), (0, false, false, "AFd".to_owned()));
}

/// What a model knows of the blocks: the tag of each unit.
type Units = std::collections::BTreeMap<(u32, u32), u64>;

fn random_batch(
    random: &mut Random,
    counter: u64,
    model: &mut Units,
) -> Vec<(BlockChange, Buffer)> {
    let mut blocks = Vec::new();
    for number in 1..=5 {
        let tag = counter * 100;
        let some: Vec<u32> = (0..32).filter(|_| random.below(8) == 0).collect();
        let written: Vec<u32> = match random.below(8) {
            0 => (0..32).collect(),
            1 => (3..25).collect(),
            2 | 3 if !some.is_empty() => some.clone(),
            4 if !some.is_empty() => {
                some.iter().for_each(|unit| _ = model.remove(&(number, *unit)));
                blocks.push(plain(BlockAction::Zeros, number, &some));
                continue;
            }
            5 => {
                model.retain(|(of, _), _| *of != number);
                blocks.push(plain(BlockAction::Gone, number, &[]));
                continue;
            }
            _ => continue,
        };
        written.iter().for_each(|unit| _ = model.insert((number, *unit), tag));
        blocks.push(units(number, &written, tag));
        let zeros: Vec<u32> = some.into_iter().filter(|unit| !written.contains(unit)).collect();
        if !zeros.is_empty() {
            zeros.iter().for_each(|unit| _ = model.remove(&(number, *unit)));
            blocks.push(plain(BlockAction::Zeros, number, &zeros));
        }
    }
    blocks
}

#[test]
fn after_any_crash_records_and_blocks_are_of_one_version() {
    let mut dropped = 0;
    for seed in 1..40 {
        let commit = [CommitMode::Fsync, CommitMode::Immediate][seed as usize % 2];
        let mut random = Random::new(seed);
        let mut bench = open_with(commit);
        bench.random = Random::new(seed + 1000);
        let mut states = vec![Units::new()];
        let mut first = 0;
        for _ in 0..4 {
            let mut asked: Vec<(RequestId, u64)> = Vec::new();
            for counter in first + 1..=first + 6 {
                let mut model = states.last().expect("there is one").clone();
                let blocks = random_batch(&mut random, counter, &mut model);
                states.push(model);
                asked.push((bench.ask(with(counter, blocks)), counter));
                bench.submit();
                (0..random.below(6)).for_each(|_| _ = bench.step());
                bench.submit();
            }
            let answered = asked.iter().filter(|(id, _)| bench.is_durable(*id));
            let least = answered.map(|(_, counter)| *counter).max().unwrap_or(first);
            let Bench { mut disk, random: of_bench, .. } = bench;
            let mut of_disk = Random::new(seed * 7 + first);
            disk.crash(&mut of_disk);
            bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
            bench.random = of_bench;
            let given = records_given(&mut bench);
            assert!(bench.opened && !bench.store.is_suspect(PG), "seed {seed}");
            let counter = bench.store.last_version(PG).counter;
            assert!(counter >= least, "seed {seed}: {counter}, {least} was answered");
            assert_eq!(given.iter().any(|of| *of == last(counter)), counter > 0, "seed {seed}");
            dropped += u32::from(bench.rows().contains('d'));
            states.truncate(counter as usize + 1);
            let model = states.last().expect("there is one");
            for number in 1..=5 {
                for unit in 0..32 {
                    bench.assert_unit(number, unit, model.get(&(number, unit)).copied());
                }
            }
            if random.below(3) == 0 {
                bench.checkpoint();
            }
            first = counter;
        }
    }
    assert!(dropped > 5, "{dropped}");
}

fn page(version: Version, records: Vec<Change>, blocks: Vec<(BlockChange, Buffer)>) -> Request {
    Request::Page(Page { pg: PG, block_size: BlockSize::DEFAULT, version, records, blocks })
}

/// Returns the line with a version of its own, as at its source.
fn at_version(of: (BlockChange, Buffer), counter: u64) -> (BlockChange, Buffer) {
    (BlockChange { version: version(counter), ..of.0 }, of.1)
}

#[test]
fn a_page_replaces_whatever_there_is_and_has_no_order() {
    let mut bench = open();
    durable(&mut bench, with(5, vec![all(1, 10), units(2, &[3], 20)]));
    let blocks = || {
        vec![
            at_version(units(1, &[0, 1], 30), 2),
            at_version(plain(BlockAction::Damaged, 1, &[2]), 2),
            at_version(plain(BlockAction::Gone, 2, &[]), 2),
            at_version(plain(BlockAction::Damaged, 3, &[4]), 1),
            // 100 KiB that leave nothing else.
            at_version(units(9, &(0..25).collect::<Vec<u32>>(), 90), 3),
            at_version(plain(BlockAction::Zeros, 9, &(25..32).collect::<Vec<u32>>()), 3),
        ]
    };
    let range = Change::DeleteRange { start: b"a".to_vec(), end: b"z".to_vec() };
    durable(&mut bench, page(version(4), vec![range.clone(), put(b"b", b"1")], blocks()));
    let check = |bench: &mut Bench| {
        assert_eq!(bench.store.last_version(PG), version(5));
        let versions = [1, 2, 3, 9].map(|number| bench.store.version_of(&key(number)).counter);
        assert_eq!(versions, [2, 0, 1, 3]);
        bench.assert_unit(1, 1, Some(30));
        bench.assert_unit(1, 3, Some(10));
        bench.assert_unit(9, 24, Some(90));
        bench.assert_unit(9, 25, None);
        for (number, unit) in [(1, 2), (3, 4)] {
            assert!(matches!(bench.read(number, unit, 1), Err(StoreError::Damaged { .. })));
        }
    };
    check(&mut bench);
    // Over a block with a place, too, as it leaves nothing else.
    let used = bench.store.space().used_bytes;
    durable(&mut bench, page(version(4), Vec::new(), blocks()));
    assert_eq!(bench.store.space().used_bytes, used);
    check(&mut bench);
    let mut bench = again(bench, Lsn::ZERO);
    check(&mut bench);
    bench.checkpoint();
    let mut bench = again(bench, Lsn::ZERO);
    check(&mut bench);
    // The PG goes from here.
    let gone = [1, 3, 9].map(|number| plain(BlockAction::Gone, number, &[]));
    durable(&mut bench, page(Version::ZERO, vec![range], gone.to_vec()));
    assert_eq!(bench.store.blocks(PG.pool, 0, u32::MAX, None).count(), 0);
    assert_eq!(bench.store.space().used_bytes, 0);
    // A batch cannot say what is damaged.
    let damaged = with(6, vec![plain(BlockAction::Damaged, 1, &[0])]);
    assert_eq!(bench.done(damaged), Err(StoreError::Corrupted));
}

#[test]
fn pages_go_with_a_dropped_batch_and_batches_with_a_dropped_page() {
    let torn = |first: Request, second: Request| {
        let mut bench = open();
        durable(&mut bench, with(1, vec![units(1, &[0], 10)]));
        asked_at_once(&mut bench, [first, second]);
        let mut disk = bench.disk.copy();
        tear_block_3(&bench, &mut disk);
        let mut bench = again_on(disk);
        assert_eq!(rows(&bench), (1, false, false, "AFde".to_owned()));
        bench.assert_unit(1, 0, Some(10));
        bench.assert_unit(3, 0, None);
    };
    let small = || vec![at_version(units(1, &[0], 20), 2)];
    let large = || vec![at_version(all(3, 30), 2)];
    torn(with(2, large()), page(version(2), Vec::new(), small()));
    torn(page(version(1), Vec::new(), large()), with(2, small()));
}

#[test]
fn a_forward_brings_content_and_record_together() {
    let forward = |after: u64, upto: u64, note: &[u8]| {
        let mut blocks = vec![units(1, &[0], 100 * upto), all(3, 100 * upto)];
        blocks.iter_mut().for_each(|(line, _)| line.version = version(1));
        let records = vec![put(b"last", &upto.to_le_bytes())];
        let Request::Batch(batch) = batch(after, upto, records) else { unreachable!() };
        Request::Batch(Batch { blocks, note: Some((NoteKey::Pg(PG), note.to_vec())), ..batch })
    };
    let mut bench = open();
    durable(&mut bench, with(2, vec![units(1, &[0], 1)]));
    // It may repeat versions that the store has had: what was undone came back.
    durable(&mut bench, forward(1, 2, b"first"));
    asked_at_once(&mut bench, [forward(2, 4, b"second")]);
    assert_eq!(bench.store.version_of(&key(1)), version(1));
    let mut torn = bench.disk.copy();
    tear_block_3(&bench, &mut torn);
    for (disk, upto, note) in [(torn, 2, b"first" as &[u8]), (bench.off(), 4, b"second")] {
        let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
        assert_eq!(records_given(&mut bench), [last(upto)]);
        assert_eq!(bench.store.last_version(PG), version(upto));
        assert_eq!(bench.store.note(NoteKey::Pg(PG)), Some(note));
        bench.assert_unit(1, 0, Some(100 * upto));
    }
    let mut bench = open();
    let wrong = forward(2, 2, b"no");
    assert_eq!(bench.done(wrong), Err(StoreError::Unordered));
    // Its versions are of an epoch in which one was refused.
    bench.store.refuse(PG, version(1).epoch);
    assert_eq!(bench.done(with(1, Vec::new())), Err(StoreError::Full));
    durable(&mut bench, forward(0, 2, b"yes"));
}

#[test]
fn a_body_that_was_lost_stays_lost_when_it_can_be_read_again() {
    for checkpoints in [false, true] {
        let mut bench = open();
        let lsns = asked_at_once(
            &mut bench,
            [
                with(1, vec![units(1, &[0], 10)]),
                with(2, vec![all(2, 20)]),
                with(3, vec![units(1, &[1], 30)]),
            ],
        );
        bench.idle();
        let place = bench.place(lsns[1]);
        let mut disk = bench.off();
        disk.flip(place + 150);
        let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
        let given = records_given(&mut bench);
        assert!(bench.opened && !given.contains(&last(2)), "{given:?}");
        assert_eq!(rows(&bench), (3, true, false, "AFa".to_owned()));
        // The place of block 2 is another's.
        durable(&mut bench, with(4, vec![all(3, 40)]));
        if checkpoints {
            bench.checkpoint();
        }
        let mut disk = bench.off();
        disk.flip(place + 150);
        let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
        assert_eq!(bench.stopped, None);
        let is_lost = |effect: &EngineEffect| match effect {
            EngineEffect::Write { lsn, .. } => *lsn == lsns[1],
            _ => false,
        };
        assert!(!bench.engine_effects.iter().any(is_lost));
        end_writes(&mut bench);
        assert_eq!(rows(&bench), (4, true, false, "AFO".to_owned()));
        bench.assert_unit(1, 0, Some(10));
        bench.assert_unit(1, 1, Some(30));
        bench.assert_unit(2, 0, None);
        bench.assert_unit(3, 7, Some(40));
    }
}

#[test]
fn a_store_lags_until_its_journal_is_well_below_three_quarters() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    let last = fill(&mut bench, size * 11 / 16);
    assert!(!bench.store.is_lagging());
    fill(&mut bench, size * 3 / 4);
    assert!(bench.store.is_lagging());
    // A page is durable, and is answered late; batches are not.
    let page = bench.ask(page(version(last), vec![put(b"p", b"1")], Vec::new()));
    let counter = bench.store.last_version(PG).counter;
    durable(&mut bench, batch(counter, counter + 1, vec![put(b"b", b"1")]));
    bench.run();
    assert!(!bench.answers.contains_key(&page));
    // What the engine flushes frees a little: it still lags.
    let used = |bench: &Bench| bench.store.parts().journal.used();
    flushed(&mut bench, Lsn::new(size / 32));
    bench.checkpoint();
    assert!(used(&bench) < size * 3 / 4 && bench.store.is_lagging(), "{}", used(&bench));
    flushed(&mut bench, Lsn::new(size / 2));
    bench.checkpoint();
    assert!(used(&bench) < size * 11 / 16 && !bench.store.is_lagging());
    assert!(bench.is_durable(page));
}
