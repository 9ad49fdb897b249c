//! Tests of requests that wait: for room, in the order in which they came, and for the engine, which only objects do.
//! The tests play the engine.

use base::{BlockSize, MIB, PgId, PoolId};
use format::disk::NoteKey;
use format::engine::{Compression, EngineEffect};
use format::wire::Content;

use crate::batch_tests::*;
use crate::harness::{Bench, key, settings, unit};
use crate::{
    Answer, AsOf, Batch, BlockKey, CommitMode, Page, Request, RequestId, Settings, StoreError,
};

/// A pool of blocks beside the one of objects, and one that has no family yet.
const BLOCKS: PgId = pg_of(2);
const NEXT: PgId = pg_of(3);
const BACKLOG_MAX: u64 = 4_000;

const fn pg_of(pool: u32) -> PgId {
    match PoolId::new(pool) {
        Some(pool) => PgId { pool, number: 0 },
        None => unreachable!(),
    }
}

/// Opens a store with a family, whose engine may be this far behind.
fn open_with_backlog(engine_backlog_bytes_max: u64) -> Bench {
    let settings = Settings { engine_backlog_bytes_max, ..settings() };
    let disk = disk(CommitMode::Fsync, 5);
    let mut bench = Bench::begin_with(disk, settings, 1, (u64::MAX, Some(found(&[]))));
    bench.run();
    create(&mut bench);
    bench
}

/// Opens a store whose engine is so far behind that batches wait.
fn open_behind() -> Bench {
    let mut bench = open_with_backlog(BACKLOG_MAX);
    let first = batch(0, 1, vec![put(b"a", &[1; BACKLOG_MAX as usize])]);
    assert_eq!(bench.done(first), Ok(Answer::Durable));
    bench
}

/// Lets the engine take all that comes.
fn catch_up(bench: &mut Bench) {
    let is_write = |effect: &EngineEffect| matches!(effect, EngineEffect::Write { .. });
    while let Some(at) = bench.engine_effects.iter().position(is_write) {
        if let EngineEffect::Write { op, .. } = bench.engine_effects.remove(at) {
            end(bench, op);
        }
        bench.run();
    }
}

fn block_key(number: u32) -> BlockKey {
    BlockKey { pool: BLOCKS.pool, ..key(number) }
}

/// Asks for a write of the pool of blocks: of a unit, or of a whole block.
fn write(bench: &mut Bench, number: u32, unit_count: u32) -> RequestId {
    let request = bench.write_of(number, BlockSize::DEFAULT, 0, unit_count, 7);
    let Request::Write { block_size, version, offset, checksums, data, lazy, .. } = request else {
        unreachable!()
    };
    let (pg, key) = (BLOCKS, block_key(number));
    bench.ask(Request::Write { pg, key, block_size, version, offset, checksums, data, lazy })
}

fn note(pg: PgId, text: &str) -> Request {
    Request::Note { key: NoteKey::Pg(pg), bytes: text.into() }
}

fn is_answered(bench: &Bench, id: RequestId) -> bool {
    bench.answers.contains_key(&id)
}

#[test]
fn requests_of_block_pools_pass_a_batch_that_waits_for_the_engine() {
    let mut bench = open_behind();
    let waits = bench.ask(batch(1, 2, vec![put(b"b", b"2")]));
    assert!(bench.store.is_lagging() && !bench.store.is_congested());
    let passing = [
        write(&mut bench, 1, 1),
        write(&mut bench, 2, 32),
        bench.ask(note(BLOCKS, "record")),
        bench.ask(Request::Note { key: NoteKey::State(1), bytes: b"state".to_vec() }),
        bench.ask(Request::Sync),
    ];
    bench.run();
    passing.into_iter().for_each(|id| assert!(bench.is_durable(id), "{id:?}"));
    let read = Request::Read { key: block_key(1), offset: 0, length: 4096, as_of: AsOf::View };
    let Ok(Answer::Read { data, .. }) = bench.done(read) else { panic!("it waits") };
    assert!(data[..] == unit(7));
    assert!(!is_answered(&bench, waits) && !bench.store.is_congested());
    catch_up(&mut bench);
    assert!(bench.is_durable(waits) && !bench.store.is_lagging());
}

#[test]
fn what_is_in_the_order_of_an_object_pg_or_family_waits_behind_its_batch() {
    let mut bench = open_behind();
    let Request::Batch(forward) = batch(2, 3, vec![put(b"c", b"3")]) else { unreachable!() };
    let Request::Batch(of_next) = batch(0, 1, vec![put(b"d", b"4")]) else { unreachable!() };
    let page = Page {
        pg: PG,
        block_size: BlockSize::DEFAULT,
        version: version(2),
        records: vec![put(b"p", b"1")],
        blocks: Vec::new(),
    };
    let compression = Some(Compression::None);
    let requests = vec![
        batch(1, 2, vec![put(b"b", b"2")]),
        note(PG, "cursor"),
        Request::Page(page),
        Request::Batch(Batch { note: Some((NoteKey::Pg(PG), b"adopted".to_vec())), ..forward }),
        Request::Repair { pg: PG, key: key(1), content: Content::Gone },
        Request::SetFloor { pg: PG, floor: version(1) },
        Request::Read { key: key(1), offset: 0, length: 4096, as_of: AsOf::View },
        Request::Family { pool: PG.pool, compression: None },
        // Nothing here knows yet that this is a pool of objects.
        Request::Family { pool: NEXT.pool, compression },
        note(NEXT, "record"),
        Request::Batch(Batch { pg: NEXT, ..of_next }),
    ];
    let count = requests.len();
    let ids: Vec<RequestId> = requests.into_iter().map(|request| bench.ask(request)).collect();
    // A read of what one of them changes waits for it; one of another block does not.
    let other = Request::Extents { key: key(2), as_of: AsOf::View };
    assert!(bench.done(other).is_ok());
    let block = write(&mut bench, 1, 1);
    bench.run();
    assert!(bench.is_durable(block));
    assert_eq!(ids.iter().filter(|id| is_answered(&bench, **id)).count(), 0);
    assert_eq!(bench.store.last_version(PG), version(1));
    assert_eq!(
        (bench.store.note(NoteKey::Pg(PG)), bench.store.note(NoteKey::Pg(NEXT))),
        (None, None)
    );
    // The engine takes the first batch, and then one after the other.
    catch_up(&mut bench);
    assert!(ids[..7].iter().all(|id| is_answered(&bench, *id)));
    assert!(ids[7..9].iter().all(|id| !is_answered(&bench, *id)));
    assert_eq!(bench.store.note(NoteKey::Pg(PG)), Some(&b"adopted"[..]));
    assert_eq!(bench.store.note(NoteKey::Pg(NEXT)), Some(&b"record"[..]));
    while !bench.engine_effects.is_empty() {
        match bench.engine_effects.remove(0) {
            EngineEffect::Write { op, .. }
            | EngineEffect::Create { op, .. }
            | EngineEffect::Remove { op, .. } => end(&mut bench, op),
            other => panic!("{other:?}"),
        }
        bench.run();
    }
    assert!(ids[..count - 1].iter().all(|id| is_answered(&bench, *id)));
    // It came before the family was there.
    assert_eq!(bench.answers.remove(&ids[count - 1]), Some(Err(StoreError::NoFamily)));
}

#[test]
fn room_goes_to_who_came_first_in_both_lines() {
    // The engine is not behind: whoever lacks room is waited for.
    let mut bench = open_with_backlog(64 * MIB);
    let size = bench.store.parts().journal.size();
    let last = fill(&mut bench, size * 13 / 16);
    let big = |after: u64| batch(after, after + 1, vec![put(b"b", &[1; 60_000]); 20]);
    let first = bench.ask(big(last));
    let second = write(&mut bench, 1, 1);
    bench.run();
    assert!(bench.store.is_congested());
    assert!(!is_answered(&bench, first) && !is_answered(&bench, second), "a small write would fit");
    flushed(&mut bench, base::Lsn::new(size / 2));
    bench.run();
    assert!(bench.is_durable(first) && bench.is_durable(second));
    // The other way round.
    let mut bench = open_with_backlog(64 * MIB);
    let last = fill(&mut bench, size * 13 / 16);
    let mut counter = last;
    while !bench.store.is_congested() {
        write(&mut bench, counter as u32, 15);
        counter += 1;
        bench.run();
    }
    let first = bench.ask(batch(last, last + 1, vec![put(b"b", b"1")]));
    bench.run();
    assert!(!is_answered(&bench, first), "a small batch would fit");
    flushed(&mut bench, base::Lsn::new(size / 2));
    bench.run();
    assert!(bench.is_durable(first));
}

#[test]
fn a_batch_that_the_engine_lets_go_on_is_first_for_room() {
    let mut bench = open_with_backlog(BACKLOG_MAX);
    let size = bench.store.parts().journal.size();
    let last = fill(&mut bench, size * 13 / 16);
    let behind = batch(last, last + 1, vec![put(b"b", &[1; BACKLOG_MAX as usize])]);
    assert_eq!(bench.done(behind), Ok(Answer::Durable));
    let waits = bench.ask(batch(last + 1, last + 2, vec![put(b"b", &[1; 60_000]); 20]));
    let passes = write(&mut bench, 1, 1);
    bench.run();
    assert!(bench.is_durable(passes) && !is_answered(&bench, waits));
    catch_up(&mut bench);
    assert!(bench.store.is_congested() && !is_answered(&bench, waits), "it lacks room");
    let later = write(&mut bench, 2, 1);
    bench.run();
    assert!(!is_answered(&bench, later));
    flushed(&mut bench, base::Lsn::new(size / 2));
    bench.run();
    assert!(bench.is_durable(waits) && bench.is_durable(later));
}

#[test]
fn a_batch_that_is_refused_when_its_turn_comes_holds_nothing_up() {
    let mut bench = open_behind();
    let waits = bench.ask(batch(3, 4, vec![put(b"b", b"2")]));
    let next = bench.ask(batch(1, 2, vec![put(b"b", b"2")]));
    bench.run();
    assert!(!is_answered(&bench, waits) && !is_answered(&bench, next));
    catch_up(&mut bench);
    assert_eq!(bench.answers.remove(&waits), Some(Err(StoreError::Unordered)));
    assert!(bench.is_durable(next));
}

#[test]
fn the_last_record_of_a_run_waits_for_both_lines() {
    let mut bench = open_behind();
    let waits = bench.ask(batch(1, 2, vec![put(b"b", b"2")]));
    let (sync, record) = (bench.ask(Request::Sync), bench.ask(Request::Record));
    bench.run();
    assert!(bench.is_durable(sync) && !is_answered(&bench, record));
    catch_up(&mut bench);
    assert!(bench.is_durable(waits) && bench.is_durable(record));
}

#[test]
fn a_settle_is_ahead_of_a_batch_that_waits() {
    let mut bench = open_behind();
    let waits = bench.ask(batch(1, 2, vec![put(b"b", b"2")]));
    let settle = Request::Settle { pg: BLOCKS, note: None, upto: base::Version::ZERO };
    assert_eq!(bench.done(settle), Ok(Answer::Durable));
    assert!(!is_answered(&bench, waits));
}

#[test]
fn a_crash_keeps_what_passed_and_a_prefix_of_the_object_pg() {
    let mut bench = open_behind();
    bench.ask(batch(1, 2, vec![put(b"b", b"2")]));
    bench.ask(note(PG, "cursor"));
    let passes = write(&mut bench, 1, 1);
    bench.run();
    assert!(bench.is_durable(passes));
    let mut bench = Bench::with_engine(bench.off(), found(&[family(base::Lsn::ZERO)]));
    end_writes(&mut bench);
    assert!(bench.opened, "{:?}", bench.stopped);
    assert_eq!(bench.store.last_version(PG), version(1));
    assert_eq!(bench.store.note(NoteKey::Pg(PG)), None);
    assert_eq!(bench.store.version_of(&block_key(1)).counter, 1);
}

#[test]
fn lag_is_told_at_half_of_what_may_be_pending() {
    let mut bench = open_with_backlog(16_000);
    let more = |bench: &mut Bench, size: usize| {
        let last = bench.store.last_version(PG).counter;
        let next = batch(last, last + 1, vec![put(b"k", &vec![1; size])]);
        assert_eq!(bench.done(next), Ok(Answer::Durable));
    };
    more(&mut bench, 7_900);
    assert!(!bench.store.is_lagging());
    more(&mut bench, 100);
    assert!(bench.store.is_lagging());
    // It takes batches until the whole is reached.
    more(&mut bench, 7_000);
    let EngineEffect::Write { op, .. } = bench.engine_effects.remove(0) else { panic!() };
    end(&mut bench, op);
    assert!(bench.store.is_lagging(), "7,100 bytes are pending");
    end_writes(&mut bench);
    assert!(!bench.store.is_lagging());
}
