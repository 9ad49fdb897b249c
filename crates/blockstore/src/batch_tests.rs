//! Tests of batches and reads of records; the tests play the engine.

use base::{BlockSize, Epoch, Lsn, PgId, PoolId, Version};
use format::disk::{EngineId, EntryKind, NoteKey, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock};
use format::engine::{
    Answer as Found, Change, Compression, EngineEffect, EngineEvent, EngineOp, FamilyFound,
    Identity, Query, Records,
};

use crate::harness::{Bench, MemoryDisk, created, options};
use crate::journal::IDLE_RESERVE;
use crate::recover::{SUSPECTS_MAX, start_room};
use crate::{
    Answer, Batch, CommitMode, CreateOptions, EngineFound, Event, Request, RequestId, StoreError,
};

pub const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };
const IDENTITY: Identity = Identity { engine: 5, store: 77 };

pub fn disk(commit: CommitMode, engine: u128) -> MemoryDisk {
    created(&CreateOptions { engine: EngineId::new(engine), ..options(commit, 512) })
}

pub fn family(lsn: Lsn) -> FamilyFound {
    let compression = Compression::None;
    FamilyFound { family: PG.pool, compression, lsn, is_damaged: false }
}

pub fn found(families: &[FamilyFound]) -> EngineFound {
    EngineFound { identity: IDENTITY, families: families.to_vec() }
}

/// Opens a new store, and creates the family of the pool.
pub fn open() -> Bench {
    open_with(CommitMode::Fsync)
}

pub fn open_with(commit: CommitMode) -> Bench {
    let mut bench = Bench::with_engine(disk(commit, 5), found(&[]));
    assert!(bench.opened, "{:?}", bench.stopped);
    create(&mut bench);
    bench
}

pub fn create(bench: &mut Bench) -> Lsn {
    create_for(bench, PG.pool)
}

fn create_for(bench: &mut Bench, pool: PoolId) -> Lsn {
    let compression = Some(Compression::None);
    let id = bench.ask(Request::Family { pool, compression });
    bench.run();
    let Some(EngineEffect::Create { op, .. }) = bench.engine_effects.pop() else {
        panic!("{:?}", bench.engine_effects)
    };
    end(bench, op);
    let (op, lsn) = written(bench);
    assert!(!bench.answers.contains_key(&id));
    end(bench, op);
    assert_eq!(bench.answers.remove(&id), Some(Ok(Answer::Durable)));
    lsn
}

pub fn end(bench: &mut Bench, op: EngineOp) {
    bench.apply(Event::Engine(EngineEvent::Done { op, result: Ok(()) }));
}

/// Ends the writes that the engine gets until there is none. Returns the lsn of the last one.
pub fn end_writes(bench: &mut Bench) -> Option<Lsn> {
    let mut last = None;
    while matches!(bench.engine_effects.first(), Some(EngineEffect::Write { .. })) {
        let (op, lsn) = written(bench);
        end(bench, op);
        last = Some(lsn);
    }
    last
}

/// Takes the oldest request to the engine, which must be a write.
fn written(bench: &mut Bench) -> (EngineOp, Lsn) {
    match bench.engine_effects.remove(0) {
        EngineEffect::Write { op, lsn, .. } => (op, lsn),
        other => panic!("{other:?}"),
    }
}

pub fn flushed(bench: &mut Bench, lsn: Lsn) {
    bench.apply(Event::Engine(EngineEvent::Flushed { family: PG.pool, lsn }));
}

pub fn version(counter: u64) -> Version {
    Version { epoch: Epoch::new(1), counter }
}

pub fn put(key: &[u8], value: &[u8]) -> Change {
    Change::Put { key: key.to_vec(), value: value.to_vec() }
}

pub fn batch(after: u64, upto: u64, records: Vec<Change>) -> Request {
    let after = if after == 0 { Version::ZERO } else { version(after) };
    let block_size = BlockSize::DEFAULT;
    let version = version(upto);
    Request::Batch(Batch {
        pg: PG,
        block_size,
        after,
        version,
        records,
        blocks: Vec::new(),
        note: None,
    })
}

fn all() -> Query {
    Query::Scan { start: Vec::new(), end: None, count_max: 100, size_max: 1000 }
}

fn read(bench: &mut Bench, query: Query) -> (RequestId, EngineOp) {
    let request =
        Request::Records { pg: PG, queries: vec![query], from_memory: false, caches: true };
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
    let with = |identity| Some(EngineFound { identity, families: vec![family(Lsn::ZERO)] });
    assert_eq!(reason(0, None), "");
    assert_eq!(reason(5, with(IDENTITY)), "");
    assert_eq!(reason(5, None), "", "it holds nothing");
    assert!(reason(0, with(IDENTITY)).contains("has no engine"));
    assert!(reason(5, with(other)).contains("another store"));
    assert!(reason(5, with(of_other_store)).contains("another store"));
    // It was just made.
    assert_eq!(reason(0, Some(found(&[]))), "");
    let of_other_store = EngineFound { identity: of_other_store, families: Vec::new() };
    assert!(reason(0, Some(of_other_store)).contains("has no engine"));
}

#[test]
fn a_store_keeps_an_engine_that_it_took() {
    let bench = Bench::with_engine(disk(CommitMode::Fsync, 0), found(&[]));
    assert!(bench.opened);
    assert!(superblocks(&bench.off()).iter().all(|copy| copy.engine == EngineId::new(5)));
}

/// Returns both copies of the superblock.
fn superblocks(disk: &MemoryDisk) -> [Superblock; 2] {
    SUPERBLOCK_OFFSETS.map(|offset| {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        disk.visible.read(offset, &mut bytes);
        Superblock::decode(&bytes).expect("it is whole")
    })
}

#[test]
fn a_store_needs_its_engine_while_root_or_journal_names_a_family() {
    let without = |disk: MemoryDisk| {
        let bench = Bench::on(disk, crate::harness::settings(), 1);
        assert_eq!(bench.opened, bench.stopped.is_none());
        bench.stopped.unwrap_or_default()
    };
    let mut bench = Bench::with_engine(disk(CommitMode::Fsync, 5), found(&[]));
    assert_eq!(without(bench.disk.copy()), "");
    let lsn = create(&mut bench);
    assert!(without(bench.disk.copy()).contains("needs the engine"), "the journal names it");
    flushed(&mut bench, lsn);
    bench.checkpoint();
    assert!(without(bench.disk.copy()).contains("needs the engine"), "the root names it");
    bench.ask(Request::Family { pool: PG.pool, compression: None });
    bench.run();
    let Some(EngineEffect::Remove { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    assert_eq!(without(bench.disk.copy()), "", "it is removed");
    end(&mut bench, op);
    // Damage may have taken what named a family.
    let (mut disk, suspect) = (bench.disk.copy(), Some(bench.tail()));
    for (offset, copy) in SUPERBLOCK_OFFSETS.into_iter().zip(superblocks(&disk)) {
        disk.overwrite(offset, &Superblock { suspect, ..copy }.encode());
    }
    assert!(without(disk).contains("needs the engine"));
}

/// Returns the versions of a start: last version, whether the PG is suspect, rows.
fn seen(bench: &Bench) -> (u64, bool, String) {
    assert_eq!(bench.stopped, None);
    (bench.store.last_version(PG).counter, bench.store.is_suspect(PG), bench.rows())
}

#[test]
fn a_start_gives_the_engine_what_it_lost() {
    let mut bench = open();
    for counter in 1..=3 {
        let put = put(b"a", &[counter as u8]);
        assert_eq!(bench.done(batch(counter - 1, counter, vec![put])), Ok(Answer::Durable));
    }
    let lsns: Vec<Lsn> = (0..3).map(|_| written(&mut bench).1).collect();
    let mut bench = Bench::with_engine(bench.off(), found(&[family(lsns[0])]));
    assert!(!bench.opened);
    assert!(bench.disk.ops.is_empty());
    for lsn in &lsns[1..] {
        let (op, of) = written(&mut bench);
        assert_eq!(of, *lsn);
        assert!(!bench.opened);
        end(&mut bench, op);
    }
    assert!(bench.opened && bench.engine_effects.is_empty());
    assert_eq!(seen(&bench), (3, false, "AF".to_owned()));
}

#[test]
fn the_journal_is_kept_for_what_the_engine_may_lose() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let (op, first) = written(&mut bench);
    end(&mut bench, op);
    bench.write(1, 0, 32, 5);
    bench.run();
    bench.checkpoint();
    let replay = |bench: &Bench| bench.store.parts().root.replay;
    assert!(replay(&bench) < first);
    let mut bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    // The creation's own write, and the batch.
    for _ in 0..2 {
        let (op, _) = written(&mut bench);
        end(&mut bench, op);
    }
    assert_eq!(seen(&bench), (1, false, "AF".to_owned()));
    bench.assert_unit(1, 3, Some(5));
    flushed(&mut bench, first);
    bench.checkpoint();
    assert!(replay(&bench) > first);
    // The root names what was flushed, and so an older engine is seen.
    let old = found(&[family(Lsn::ZERO)]);
    let bench = Bench::with_engine(bench.off(), old.clone());
    assert_eq!(seen(&bench), (1, true, "AFh".to_owned()));
    let mut bench = Bench::with_engine(bench.off(), old);
    end_writes(&mut bench).expect("marks");
    // The checkpoint that followed names what there is.
    assert_eq!(bench.done(Request::Absolve { pg: PG }), Ok(Answer::Durable));
    bench.run();
    let bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    assert_eq!(seen(&bench), (1, false, "AF".to_owned()));
}

#[test]
fn a_lost_family_is_created_again_and_its_pgs_are_suspect() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let (op, lsn) = written(&mut bench);
    end(&mut bench, op);
    flushed(&mut bench, lsn);
    bench.checkpoint();
    let mut bench = Bench::with_engine(bench.off(), found(&[]));
    let Some(EngineEffect::Create { op, compression, .. }) = bench.engine_effects.pop() else {
        panic!("{:?}", bench.engine_effects)
    };
    assert_eq!((compression, bench.opened), (Compression::None, false));
    end(&mut bench, op);
    assert_eq!(seen(&bench), (1, true, "AFh".to_owned()));
}

#[test]
fn a_family_that_was_behind_is_told_from_other_copies() {
    let mut bench = open();
    let mut lsns = Vec::new();
    for counter in 1..=3 {
        assert_eq!(
            bench.done(batch(counter - 1, counter, vec![put(b"a", b"1")])),
            Ok(Answer::Durable)
        );
        let (op, lsn) = written(&mut bench);
        end(&mut bench, op);
        lsns.push(lsn);
    }
    flushed(&mut bench, lsns[2]);
    bench.checkpoint();
    let old = || found(&[family(lsns[0])]);
    // An old copy is put back, and the process dies before the engine has the mark.
    let bench = Bench::with_engine(bench.off(), old());
    assert_eq!(seen(&bench), (3, true, "AFh".to_owned()));
    // Its PG is suspect already, and this start has a mark of its own.
    let mut bench = Bench::with_engine(bench.off(), old());
    assert_eq!(seen(&bench), (3, true, "AFh".to_owned()));
    let mark = end_writes(&mut bench).expect("a mark");
    assert!(bench.opened && mark > lsns[2]);
    assert_eq!(bench.done(Request::Absolve { pg: PG }), Ok(Answer::Durable));
    // The engine loses the mark, and gets it again.
    let mut bench = Bench::with_engine(bench.off(), old());
    assert_eq!(seen(&bench), (3, false, "AF".to_owned()));
    assert_eq!(end_writes(&mut bench), Some(mark));
    flushed(&mut bench, mark);
    bench.checkpoint();
    // Another copy: newer than the one that was put back, but not what became of that.
    let bench = Bench::with_engine(bench.off(), found(&[family(lsns[1])]));
    assert_eq!(seen(&bench), (3, true, "AFh".to_owned()));
}

#[test]
fn a_family_that_was_behind_is_flushed_at_once() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let lsn = end_writes(&mut bench).expect("the batch");
    flushed(&mut bench, lsn);
    bench.checkpoint();
    let mut bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    end_writes(&mut bench).expect("the mark");
    assert!(bench.opened);
    bench.apply(Event::Tick);
    let effects = &bench.engine_effects;
    assert!(matches!(effects[..], [EngineEffect::Flush { .. }]), "{effects:?}");
}

#[test]
fn what_the_journal_has_since_the_creation_is_not_lost() {
    let mut bench = Bench::with_engine(disk(CommitMode::Fsync, 5), found(&[]));
    // Another family holds the head.
    let other = PoolId::new(2).expect("in range");
    create_for(&mut bench, other);
    create(&mut bench);
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let lsn = end_writes(&mut bench).expect("the batch");
    flushed(&mut bench, lsn);
    bench.checkpoint();
    let of_other = FamilyFound { family: other, ..family(Lsn::ZERO) };
    for families in [&[of_other][..], &[of_other, family(Lsn::ZERO)]] {
        let mut bench = Bench::with_engine(bench.disk.copy(), found(families));
        let mut created = 0;
        if let [EngineEffect::Write { .. }, EngineEffect::Create { op, .. }] =
            bench.engine_effects[..]
        {
            bench.engine_effects.pop();
            end(&mut bench, op);
            created = 1;
        }
        assert_eq!(created + families.len(), 2, "{:?}", bench.engine_effects);
        assert_eq!(end_writes(&mut bench), Some(lsn));
        assert!(bench.opened);
        assert_eq!(seen(&bench), (1, false, "AF".to_owned()));
    }
}

#[test]
fn copies_of_the_superblock_agree_after_an_interrupted_addition() {
    let copies = |disk: &MemoryDisk| superblocks(disk).map(|copy| (copy.sequence, copy.engine));
    let mut differed = 0;
    for steps in 0..60 {
        let options = crate::harness::settings();
        let with = (steps, Some(found(&[])));
        let bench = Bench::begin_with(disk(CommitMode::Fsync, 0), options, 1, with);
        let disk = bench.off();
        let [(_, first), (_, second)] = copies(&disk);
        differed += u32::from(first != second);
        let bench = Bench::with_engine(disk, found(&[]));
        assert!(bench.opened && !bench.rows().contains('Q'));
        let mut disk = bench.off();
        let [first, second] = copies(&disk);
        assert_eq!((first.1, second.1), (EngineId::new(5), EngineId::new(5)), "{steps}");
        // The newer one rots.
        disk.flip(SUPERBLOCK_OFFSETS[usize::from(second.0 > first.0)] + 100);
        let bench = Bench::on(disk, crate::harness::settings(), 1);
        assert!(bench.opened && bench.rows().contains('Q'));
        assert!(copies(&bench.off()).iter().all(|(_, engine)| *engine == EngineId::new(5)));
    }
    assert!(differed > 0);
}

#[test]
fn a_root_does_not_follow_a_removal_that_a_crash_takes_back() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let lsn = end_writes(&mut bench).expect("the batch");
    flushed(&mut bench, lsn);
    let sequence = bench.store.parts().root.sequence;
    bench.store.parts_mut().wants_checkpoint = true;
    bench.apply(Event::Tick);
    bench.submit();
    // Its own entry is durable.
    while bench.store.parts().journal.durable() < bench.tail() || bench.tail() <= lsn {
        bench.step();
        bench.submit();
    }
    assert_eq!(bench.store.parts().root.sequence, sequence);
    let removal = bench.ask(Request::Family { pool: PG.pool, compression: None });
    // The entry is not written yet.
    while bench.step() {}
    let again = Bench::with_engine(bench.disk.copy(), found(&[family(lsn)]));
    assert_eq!(seen(&again), (1, false, "AF".to_owned()));
    assert!(again.store.has_family(PG.pool));
    bench.run();
    assert_eq!(bench.store.parts().root.sequence, sequence + 1);
    let Some(EngineEffect::Remove { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    end(&mut bench, op);
    assert_eq!(bench.answers.remove(&removal), Some(Ok(Answer::Durable)));
}

/// Writes batches that the engine takes and does not flush, until this much of the journal is in use. Returns
/// the number of the last one.
pub fn fill(bench: &mut Bench, until: u64) -> u64 {
    let mut counter = bench.store.last_version(PG).counter;
    while bench.store.parts().journal.used() < until {
        let records = vec![put(b"a", &[1; 60_000]); 8];
        assert_eq!(bench.done(batch(counter, counter + 1, records)), Ok(Answer::Durable));
        counter += 1;
        let writes = bench
            .engine_effects
            .extract_if(.., |effect| matches!(effect, EngineEffect::Write { .. }));
        for effect in writes.collect::<Vec<_>>() {
            if let EngineEffect::Write { op, .. } = effect {
                end(bench, op);
            }
        }
    }
    counter
}

/// Writes notes until one has no room. Returns its request.
fn fill_with_notes(bench: &mut Bench) -> RequestId {
    loop {
        let id = bench.ask(Request::Note { key: NoteKey::Cluster, bytes: vec![1; 100_000] });
        bench.run();
        if !bench.answers.contains_key(&id) {
            return id;
        }
    }
}

#[test]
fn room_kept_for_copies_does_not_stop_the_checkpoint_that_frees_the_head() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    for number in 0..16 {
        bench.prepare_units(number, 0, 15, 100);
    }
    fill(&mut bench, size * 5 / 8);
    let waits = fill_with_notes(&mut bench);
    // It takes the room that is kept for copies, and frees nothing.
    bench.checkpoint();
    let parts = bench.store.parts();
    assert!(
        !parts.has_room(EntryKind::Idle, 0, 0)
            && parts.journal.has_room(EntryKind::Idle, 0, IDLE_RESERVE)
    );
    assert_eq!(parts.root.replay, Lsn::new(512));
    flushed(&mut bench, Lsn::new(size / 2));
    bench.run();
    assert!(bench.store.parts().root.replay >= Lsn::new(size / 2));
    assert_eq!(bench.answers.remove(&waits), Some(Ok(Answer::Durable)));
}

#[test]
fn places_that_wait_for_discards_are_no_reason_for_checkpoints() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    bench.write(1, 0, 32, 5);
    bench.run();
    let counter = fill(&mut bench, size * 13 / 16);
    bench.delete(1);
    bench.run();
    let sequence = bench.store.parts().root.sequence;
    let waits = bench.ask(batch(counter, counter + 1, vec![put(b"b", &[1; 60_000]); 16]));
    bench.run_but_discards();
    assert!(!bench.answers.contains_key(&waits));
    assert!(bench.store.parts().blocks.area.freed_bytes() > 0 && !bench.disk.ops.is_empty());
    // The one that frees the place, and one that was wanted while it was made.
    let made = bench.store.parts().root.sequence - sequence;
    assert!((1..=2).contains(&made), "{made} checkpoints");
}

#[test]
fn a_start_has_room_for_all_pgs_that_it_may_make_suspect() {
    let options = options(CommitMode::Fsync, 4096);
    let disk = created(&CreateOptions { engine: EngineId::new(5), ..options });
    let mut bench = Bench::with_engine(disk, found(&[]));
    create(&mut bench);
    let size = bench.store.parts().journal.size();
    for number in 0..SUSPECTS_MAX as u32 {
        let Request::Batch(first) = batch(0, 1, vec![put(b"a", b"1")]) else { unreachable!() };
        let first = Request::Batch(Batch { pg: PgId { number, ..PG }, ..first });
        assert_eq!(bench.done(first), Ok(Answer::Durable));
    }
    let lsn = end_writes(&mut bench).expect("the batches");
    flushed(&mut bench, lsn);
    bench.checkpoint();
    fill(&mut bench, size * 13 / 16);
    fill_with_notes(&mut bench);
    make_checkpoints(&mut bench);
    assert!(!bench.store.parts().journal.has_room(EntryKind::Idle, 0, start_room(4096)));
    // An old copy of the engine is put back.
    let mut bench = Bench::with_engine(bench.off(), found(&[family(Lsn::ZERO)]));
    assert_eq!(bench.stopped, None);
    while end_writes(&mut bench).is_some() {
        bench.run();
    }
    assert!(bench.opened && bench.rows().contains('h'), "{}", bench.rows());
    let suspect = |number: u32| bench.store.is_suspect(PgId { number, ..PG });
    assert!((0..SUSPECTS_MAX as u32).all(suspect));
    assert!(bench.store.parts().superblock.suspect.is_none());
}

#[test]
fn an_engine_that_is_lost_makes_no_pgs_of_other_pools_suspect() {
    const COUNT: u32 = 3 * SUSPECTS_MAX as u32;
    let options = options(CommitMode::Fsync, 4096);
    let disk = created(&CreateOptions { engine: EngineId::new(5), ..options });
    let mut bench = Bench::with_engine(disk, found(&[]));
    create(&mut bench);
    for number in 0..COUNT {
        let Request::Batch(first) = batch(0, 1, vec![put(b"a", b"1")]) else { unreachable!() };
        let first = Request::Batch(Batch { pg: PgId { number, ..PG }, ..first });
        assert_eq!(bench.done(first), Ok(Answer::Durable));
    }
    bench.write(1, 0, 32, 5);
    bench.run();
    let lsn = end_writes(&mut bench).expect("the batches");
    flushed(&mut bench, lsn);
    bench.checkpoint();
    bench.checkpoint();
    // It has no family any more. The process is killed once before the entries are there.
    for opens in [false, true] {
        bench = Bench::with_engine(bench.off(), found(&[]));
        if !opens {
            continue;
        }
        while let Some(effect) = bench.engine_effects.first() {
            let (EngineEffect::Create { op, .. } | EngineEffect::Write { op, .. }) = effect else {
                panic!("{effect:?}")
            };
            let op = *op;
            bench.engine_effects.remove(0);
            end(&mut bench, op);
            bench.run();
        }
    }
    assert!(bench.opened && bench.rows().contains('h'), "{}", bench.rows());
    assert!(bench.store.parts().superblock.suspect.is_none());
    assert!((0..COUNT).all(|number| bench.store.is_suspect(PgId { number, ..PG })));
    let other = PgId { pool: base::PoolId::new(77).expect("not 0"), number: 0 };
    assert!(!bench.store.is_suspect(other));
}

/// Makes checkpoints until none begins. Returns their number.
fn make_checkpoints(bench: &mut Bench) -> u64 {
    for made in 0..2000 {
        let sequence = bench.store.parts().root.sequence;
        bench.store.parts_mut().wants_checkpoint = true;
        bench.apply(Event::Tick);
        bench.run();
        if bench.store.parts().root.sequence == sequence {
            return made;
        }
    }
    panic!("they have no end")
}

#[test]
fn checkpoints_leave_room_for_a_start_while_the_engine_holds_the_head() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    fill(&mut bench, size * 13 / 16);
    fill_with_notes(&mut bench);
    let made = make_checkpoints(&mut bench);
    let journal = &bench.store.parts().journal;
    assert!(made > 100 && journal.has_room(EntryKind::Idle, 0, start_room(512) - 512), "{made}");
    assert!(!journal.has_room(EntryKind::Idle, 0, start_room(512)));
    // The engine is asked for what is missing.
    let flush = bench.engine_effects.iter().find_map(|effect| match effect {
        EngineEffect::Flush { op, .. } => Some(*op),
        _ => None,
    });
    bench.engine_effects.clear();
    end(&mut bench, flush.expect("it is wanted"));
    let effects = &bench.engine_effects;
    assert!(matches!(effects[..], [EngineEffect::Flush { .. }]), "{effects:?}");
    let again = Bench::with_engine(bench.disk.copy(), found(&[family(Lsn::ZERO)]));
    assert_eq!(again.stopped, None);
}

#[test]
fn an_interrupted_creation_goes_on_and_loses_nothing() {
    let mut bench = Bench::with_engine(disk(CommitMode::Fsync, 5), found(&[]));
    let compression = Some(Compression::None);
    bench.ask(Request::Family { pool: PG.pool, compression });
    bench.run();
    let mut bench = Bench::with_engine(bench.off(), found(&[]));
    let Some(EngineEffect::Create { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    end(&mut bench, op);
    let (op, _) = written(&mut bench);
    end(&mut bench, op);
    assert!(bench.opened && bench.store.has_family(PG.pool));
    assert!(!bench.rows().contains('h'));
}

#[test]
fn a_removed_family_is_not_there_again() {
    let mut bench = open();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let (op, lsn) = written(&mut bench);
    end(&mut bench, op);
    let removal = bench.ask(Request::Family { pool: PG.pool, compression: None });
    assert_eq!(bench.done(batch(1, 2, Vec::new())), Err(StoreError::NoFamily));
    let Some(EngineEffect::Remove { .. }) = bench.engine_effects.pop() else { panic!("none") };
    assert!(!bench.answers.contains_key(&removal));
    let mut bench = Bench::with_engine(bench.off(), found(&[family(lsn)]));
    let Some(EngineEffect::Remove { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    end(&mut bench, op);
    assert!(bench.opened && !bench.store.has_family(PG.pool));
    // An older copy of the engine has it once more.
    bench.checkpoint();
    let mut bench = Bench::with_engine(bench.off(), found(&[family(lsn)]));
    assert_eq!(seen(&bench), (1, false, "AFi".to_owned()));
    let odd: Vec<(PoolId, bool)> = bench.store.odd_families().collect();
    assert_eq!(odd, [(PG.pool, true)]);
    // Before the pool gets a new one, the old one goes.
    let id = bench.ask(Request::Family { pool: PG.pool, compression: Some(Compression::Zstd) });
    bench.run();
    let Some(EngineEffect::Remove { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    end(&mut bench, op);
    let Some(EngineEffect::Create { op, .. }) = bench.engine_effects.pop() else { panic!("none") };
    end(&mut bench, op);
    let (op, _) = written(&mut bench);
    end(&mut bench, op);
    assert_eq!(bench.answers.remove(&id), Some(Ok(Answer::Durable)));
    assert_eq!(bench.store.odd_families().count(), 0);
}

#[test]
fn what_the_engine_has_was_durable() {
    let mut bench = open();
    let before = bench.tail();
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"1")])), Ok(Answer::Durable));
    let (_, lsn) = written(&mut bench);
    let place = bench.place(lsn);
    let mut disk = bench.off();
    disk.flip(place + 40);
    // No entry records it, but the engine does: the disk lost it.
    let bench = Bench::with_engine(disk, found(&[family(lsn)]));
    assert!(bench.rows().contains('G') && bench.store.is_suspect(PG));
    assert!(before <= lsn && bench.tail() > lsn);
    // An engine of another time.
    let far = family(Lsn::new(1 << 40));
    let bench = Bench::with_engine(bench.off(), found(&[far]));
    assert!(bench.stopped.expect("it stopped").contains("another time"));
}

#[test]
fn an_engine_that_lags_is_flushed_and_then_the_journal_is_trimmed() {
    let mut bench = open();
    let size = bench.store.parts().journal.size();
    let mut counter = 0;
    let mut flush = None;
    while bench.tail() < Lsn::new(size * 3 / 4) {
        let put = put(b"a", &[1; 60_000]);
        let records = (0..16).map(|_| put.clone()).collect();
        assert_eq!(bench.done(batch(counter, counter + 1, records)), Ok(Answer::Durable));
        counter += 1;
        for effect in std::mem::take(&mut bench.engine_effects) {
            match effect {
                EngineEffect::Write { op, lsn, .. } => {
                    end(&mut bench, op);
                    if flush.is_none() || bench.tail() < Lsn::new(size / 4) {
                        flush = Some((lsn, None));
                    }
                }
                EngineEffect::Flush { op, .. } => {
                    flush = Some((flush.expect("a write").0, Some(op)))
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Checkpoints were made, but none freed anything.
    let (lsn, op) = flush.expect("it was requested");
    assert_eq!(bench.store.parts().root.replay, Lsn::new(512));
    let waits = bench.ask(batch(counter, counter + 1, vec![put(b"b", &[1; 60_000]); 16]));
    let more = bench.ask(batch(counter + 1, counter + 2, vec![put(b"b", &[1; 60_000]); 16]));
    let sequence = bench.store.parts().root.sequence;
    bench.run();
    bench.run();
    assert!(!bench.answers.contains_key(&more) && bench.store.is_congested());
    assert!(bench.store.parts().root.sequence <= sequence + 1, "checkpoints that free nothing");
    flushed(&mut bench, lsn);
    end(&mut bench, op.expect("it was requested"));
    bench.run();
    assert!(bench.answers.contains_key(&waits));
    assert!(bench.store.parts().root.replay >= Lsn::new(size / 8));
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
    // The first entry of a store is an idle one, so that no family's has lsn 0.
    assert_eq!(bench.tail(), Lsn::new(1024));
    bench.ask(batch(0, 1, vec![put(&[7; 20], &[8; 300])]));
    assert_eq!(bench.tail(), Lsn::new(1536));
    bench.ask(batch(1, 2, vec![put(&[7; 20], &[8; 300])]));
    assert_eq!(bench.tail(), Lsn::new(2048));
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
    let request = Request::Records { pg: other, queries, from_memory: false, caches: true };
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
    let mut bench = Bench::with_engine(disk, found(&[family(Lsn::ZERO)]));
    for _ in 0..2 {
        let (op, _) = written(&mut bench);
        end(&mut bench, op);
    }
    assert!(bench.opened && bench.engine_effects.is_empty());
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

/// Asks for the values of keys. Returns the engine's request, if there is one, and which keys it has.
fn get(bench: &mut Bench, keys: &[&[u8]]) -> (RequestId, Option<(EngineOp, usize)>) {
    get_for(bench, keys, true)
}

/// Asks for them for a client's read, or for a change.
fn get_for(
    bench: &mut Bench,
    keys: &[&[u8]],
    caches: bool,
) -> (RequestId, Option<(EngineOp, usize)>) {
    let queries = keys.iter().map(|key| Query::Get { key: key.to_vec() }).collect();
    let id = bench.ask(Request::Records { pg: PG, queries, from_memory: true, caches });
    match bench.engine_effects.pop() {
        Some(EngineEffect::Read { op, queries, .. }) => (id, Some((op, queries.len()))),
        other => {
            assert!(other.is_none(), "{other:?}");
            (id, None)
        }
    }
}

/// Answers as an engine that has these values.
fn answer_values(bench: &mut Bench, op: EngineOp, contains: Lsn, values: &[Option<&[u8]>]) {
    let answers = values.iter().map(|value| Found::Value(value.map(<[u8]>::to_vec)));
    let result = Ok(answers.collect());
    bench.apply(Event::Engine(EngineEvent::Read { op, contains, result }));
}

fn values(bench: &mut Bench, id: RequestId) -> Vec<Option<Vec<u8>>> {
    let Some(Ok(Answer::Records { answers, .. })) = bench.answers.remove(&id) else {
        panic!("it is not answered")
    };
    let value = |answer| match answer {
        Found::Value(value) => value,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(value).collect()
}

#[test]
fn what_changes_read_is_answered_by_the_cache_and_leaves_it_as_it_is() {
    let mut bench = open();
    let figures = |bench: &Bench| {
        let figures = bench.store.value_cache();
        (figures.hit_count, figures.miss_count, figures.used_bytes > 0)
    };
    let (id, asked) = get_for(&mut bench, &[b"a"], false);
    answer_values(&mut bench, asked.expect("nothing is known").0, Lsn::ZERO, &[Some(b"1")]);
    assert_eq!(values(&mut bench, id), [Some(b"1".to_vec())]);
    assert_eq!(figures(&bench), (0, 0, false));
    // A client's read asks the engine still, and what it found is known to a change.
    let (id, asked) = get(&mut bench, &[b"a"]);
    answer_values(&mut bench, asked.expect("it was not kept").0, Lsn::ZERO, &[Some(b"1")]);
    assert_eq!(values(&mut bench, id), [Some(b"1".to_vec())]);
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"2")])), Ok(Answer::Durable));
    let (write, _) = written(&mut bench);
    end(&mut bench, write);
    let (id, asked) = get_for(&mut bench, &[b"a"], false);
    assert_eq!((asked, values(&mut bench, id)), (None, vec![Some(b"2".to_vec())]));
    assert_eq!(figures(&bench), (0, 1, true));
}

#[test]
fn values_that_were_read_are_known_until_an_entry_changes_them() {
    let mut bench = open();
    let some = |value: &[u8]| Some(value.to_vec());
    let (id, asked) = get(&mut bench, &[b"a", b"b"]);
    let (op, 2) = asked.expect("nothing is known") else { panic!("both are asked for") };
    // A batch comes while the engine reads: its answer is older, and is not what is kept.
    assert_eq!(bench.done(batch(0, 1, vec![put(b"a", b"new")])), Ok(Answer::Durable));
    let (write, _) = written(&mut bench);
    answer_values(&mut bench, op, Lsn::ZERO, &[Some(b"old"), None]);
    assert_eq!(values(&mut bench, id), [some(b"new"), None]);
    // Absent keys are known, too. The answer is there in the event.
    let (id, asked) = get(&mut bench, &[b"b", b"a"]);
    assert_eq!((asked, values(&mut bench, id)), (None, vec![None, some(b"new")]));
    let figures = bench.store.value_cache();
    assert_eq!((figures.hit_count, figures.miss_count), (2, 2));
    end(&mut bench, write);
    // An entry changes what is known; one that removes a range, too.
    let range = Change::DeleteRange { start: b"a".to_vec(), end: b"b".to_vec() };
    assert_eq!(bench.done(batch(1, 2, vec![range, put(b"b", b"2")])), Ok(Answer::Durable));
    let (write, lsn) = written(&mut bench);
    let (id, asked) = get(&mut bench, &[b"a", b"b"]);
    let (op, 1) = asked.expect("a is not known") else { panic!("b is") };
    // While the engine is asked for one key, a batch changes the other: one moment for both.
    assert_eq!(bench.done(batch(2, 3, vec![put(b"b", b"3")])), Ok(Answer::Durable));
    end(&mut bench, write);
    answer_values(&mut bench, op, lsn, &[None]);
    assert_eq!(values(&mut bench, id), [None, some(b"3")]);
}
