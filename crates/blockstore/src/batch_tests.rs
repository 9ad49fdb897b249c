//! Tests of batches and reads of records; the tests play the engine.

use base::{BlockSize, Epoch, Lsn, PgId, PoolId, Version};
use format::disk::EngineId;
use format::engine::{
    Answer as Found, Change, Compression, EngineEffect, EngineEvent, EngineOp, FamilyFound,
    Identity, Query, Records,
};

use crate::harness::{Bench, MemoryDisk, created, options};
use crate::{
    Answer, CommitMode, CreateOptions, EngineFound, Event, Request, RequestId, StoreError,
};

const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };
const IDENTITY: Identity = Identity { engine: 5, store: 77 };

fn disk(commit: CommitMode, engine: u128) -> MemoryDisk {
    created(&CreateOptions { engine: EngineId::new(engine), ..options(commit, 512) })
}

fn found(identity: Identity) -> EngineFound {
    let compression = Compression::None;
    let family = FamilyFound { family: PG.pool, compression, lsn: Lsn::ZERO, is_damaged: false };
    EngineFound { identity, families: vec![family] }
}

fn open() -> Bench {
    let bench = Bench::with_engine(disk(CommitMode::Fsync, 5), found(IDENTITY));
    assert!(bench.opened, "{:?}", bench.stopped);
    bench
}

fn version(counter: u64) -> Version {
    Version { epoch: Epoch::new(1), counter }
}

fn put(key: &[u8], value: &[u8]) -> Change {
    Change::Put { key: key.to_vec(), value: value.to_vec() }
}

fn batch(after: u64, upto: u64, records: Vec<Change>) -> Request {
    let after = if after == 0 { Version::ZERO } else { version(after) };
    let block_size = BlockSize::DEFAULT;
    Request::Batch { pg: PG, block_size, after, version: version(upto), records }
}

fn all() -> Query {
    Query::Scan { start: Vec::new(), end: None, count_max: 100, size_max: 1000 }
}

fn read(bench: &mut Bench, query: Query) -> (RequestId, EngineOp) {
    let request = Request::Records { pg: PG, queries: vec![query], from_memory: false };
    let id = bench.ask(request);
    match bench.engine_effects.pop() {
        Some(EngineEffect::Read { op, .. }) => (id, op),
        other => panic!("{other:?}"),
    }
}

/// Answers as an engine that has these records.
fn answer(bench: &mut Bench, op: EngineOp, contains: Lsn, has: &[(&[u8], &[u8])], more: bool) {
    let mut records = Records::default();
    has.iter().for_each(|(key, value)| records.push(key, value));
    let result = Ok(vec![Found::Records { records, more }]);
    bench.apply(Event::Engine(EngineEvent::Read { op, contains, result }));
}

fn shown(bench: &mut Bench, id: RequestId) -> (u64, String) {
    let Some(Ok(Answer::Records { version, answers })) = bench.answers.remove(&id) else {
        panic!("it is not answered")
    };
    let [Found::Records { records, .. }] = &answers[..] else { panic!("{answers:?}") };
    let pairs = records
        .iter()
        .map(|(key, value)| format!("{}={}", key.escape_ascii(), value.escape_ascii()));
    (version.counter, pairs.collect::<Vec<String>>().join(" "))
}

#[test]
fn a_store_opens_with_its_own_engine_only() {
    let reason = |engine, found: Option<EngineFound>| {
        let disk = disk(CommitMode::Fsync, engine);
        let bench = match found {
            Some(found) => Bench::with_engine(disk, found),
            None => Bench::on(disk, crate::harness::settings(), 1),
        };
        assert_eq!(bench.opened, bench.stopped.is_none());
        bench.stopped.unwrap_or_default()
    };
    let of_other_store = Identity { store: 78, ..IDENTITY };
    let other = Identity { engine: 6, ..IDENTITY };
    assert_eq!(reason(0, None), "");
    assert_eq!(reason(5, Some(found(IDENTITY))), "");
    assert!(reason(5, None).contains("needs the engine"));
    assert!(reason(0, Some(found(IDENTITY))).contains("has no engine"));
    assert!(reason(5, Some(found(other))).contains("another store"));
    assert!(reason(5, Some(found(of_other_store))).contains("another store"));
}

#[test]
fn a_batch_enters_the_engine_after_its_flush_and_is_read_at_once() {
    let mut bench = open();
    let batch = bench.ask(batch(0, 2, vec![put(b"b", b"2"), put(b"c", b"3")]));
    bench.submit();
    // Written, but not flushed.
    bench.step();
    assert!(bench.engine_effects.is_empty() && !bench.answers.contains_key(&batch));
    let (id, op) = read(&mut bench, all());
    answer(&mut bench, op, Lsn::ZERO, &[(b"a", b"1"), (b"c", b"0")], false);
    assert_eq!(shown(&mut bench, id), (2, "a=1 b=2 c=3".to_owned()));
    bench.run();
    assert_eq!(bench.answers.remove(&batch), Some(Ok(Answer::Durable)));
    let [EngineEffect::Write { op, lsn, changes, .. }] = &bench.engine_effects[..] else {
        panic!("{:?}", bench.engine_effects)
    };
    assert_eq!((changes.len(), *lsn > Lsn::ZERO), (2, true));
    let done = EngineEvent::Done { op: *op, result: Ok(()) };
    bench.engine_effects.clear();
    // This read began before the write ended, and its answer lacks it.
    let (id, op) = read(&mut bench, all());
    bench.apply(Event::Engine(done));
    answer(&mut bench, op, Lsn::ZERO, &[], false);
    assert_eq!(shown(&mut bench, id), (2, "b=2 c=3".to_owned()));
}

#[test]
fn a_small_batch_takes_one_sector() {
    let mut bench = open();
    let before = bench.tail();
    bench.ask(batch(0, 1, vec![put(&[7; 20], &[8; 300])]));
    // The first entry of a store is an idle one, so that no batch has lsn 0.
    assert_eq!((before, bench.tail()), (Lsn::ZERO, Lsn::new(1024)));
    bench.ask(batch(1, 2, vec![put(&[7; 20], &[8; 300])]));
    assert_eq!(bench.tail(), Lsn::new(1536));
}

#[test]
fn a_scan_of_which_nothing_is_left_goes_on() {
    let mut bench = open();
    bench.ask(batch(0, 1, vec![Change::Delete { key: b"a".to_vec() }]));
    let (id, op) = read(&mut bench, all());
    answer(&mut bench, op, Lsn::ZERO, &[(b"a", b"1")], true);
    let Some(EngineEffect::Read { op, queries, .. }) = bench.engine_effects.pop() else {
        panic!("it is answered: {:?}", bench.answers)
    };
    assert!(matches!(&queries[..], [Query::Scan { start, .. }] if *start == b"a\0"));
    // Meanwhile the key is back.
    bench.ask(batch(1, 2, vec![put(b"a", b"2")]));
    answer(&mut bench, op, Lsn::ZERO, &[(b"b", b"1")], false);
    assert_eq!(shown(&mut bench, id), (2, "a=2 b=1".to_owned()));
}

#[test]
fn batches_come_in_the_order_of_their_pg() {
    let mut bench = open();
    let change = || vec![put(b"a", b"1")];
    assert_eq!(bench.done(batch(0, 3, change())), Ok(Answer::Durable));
    for (after, upto) in [(2, 4), (4, 5), (3, 3), (3, 2), (0, 4)] {
        let refused = bench.done(batch(after, upto, change()));
        assert_eq!(refused, Err(StoreError::Unordered), "{after} {upto}");
    }
    assert_eq!(bench.done(batch(3, 4, Vec::new())), Ok(Answer::Durable));
    assert_eq!(bench.store.last_version(PG), version(4));
    // Only the first one has records.
    assert_eq!(bench.engine_effects.len(), 1);
    let wrong = vec![Change::Delete { key: Vec::new() }];
    assert_eq!(bench.done(batch(4, 5, wrong)), Err(StoreError::Corrupted));
    let other = PgId { pool: PoolId::new(2).expect("in range"), number: 0 };
    let queries = vec![all()];
    let request = Request::Records { pg: other, queries, from_memory: false };
    assert_eq!(bench.done(request), Err(StoreError::NoFamily));
}

#[test]
fn a_torn_batch_is_cut_and_an_answered_one_is_there() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", &[1; 600])])), Ok(Answer::Durable));
    let second = bench.tail();
    bench.ask(batch(1, 2, vec![put(b"b", &[2; 600])]));
    bench.run();
    let place = bench.place(second);
    let mut disk = bench.off();
    // In the second sector of the body.
    disk.flip(place + 600);
    let bench = Bench::with_engine(disk, found(IDENTITY));
    assert_eq!((bench.store.last_version(PG), bench.rows()), (version(1), "AB".to_owned()));
    assert!(!bench.store.is_suspect(PG));
}

#[test]
fn a_failed_engine_stops_the_store() {
    let mut bench = open();
    let text = "the disk is gone".to_owned();
    bench.apply(Event::Engine(EngineEvent::Poisoned { text }));
    assert!(bench.stopped.expect("it stopped").contains("the disk is gone"));
}
