//! Tests of pools of objects: the families in an OSD's engine, and what its PGs do with them.

use std::collections::BTreeSet;

use ::objects::{Field, Name, ObjectChange, ObjectSteps, Operation};
use base::{BufferPool, Epoch, PoolId};
use cluster::map::PoolKind;
use engine::Twin;
use format::engine::Compression;
use format::wire::{Op, Outcome, Payload, PeerBody, PeerMessage, Refusal};

use super::reclaim::elsewhere;
use super::*;
use crate::Engine;
use crate::report::why_idle;

const COMPRESSION: Compression = Compression::Zstd;

/// Returns a map in which the pool keeps objects, in this epoch, for the run with the same number.
fn objects(epoch: u32) -> FromMonitor {
    of_objects(map(0, 10 * u64::from(epoch), vec![entry(epoch, u64::from(epoch))], &[]))
}

fn of_objects(map: FromMonitor) -> FromMonitor {
    let FromMonitor::Map(mut delta) = map else { unreachable!() };
    delta.pools[0].pool.kind = PoolKind::Object {
        shards: 4,
        names: base::hash::NameHash::Plain,
        compression: COMPRESSION,
    };
    FromMonitor::Map(delta)
}

/// Returns a node that has joined in its first run, over a new disk.
fn joined(engine: Engine) -> Rig {
    let settings = Settings { engine, ..Settings::default() };
    let mut rig = Rig::with(MemoryDisk::formatted(), identity(), settings);
    rig.join(1);
    rig
}

/// Returns a node that serves a pool of objects in epoch 1.
fn serving() -> Rig {
    let mut rig = Rig::with_engine(MemoryDisk::formatted(), Twin::create(ENGINE));
    rig.join(1);
    rig.monitor_says(objects(1));
    rig
}

/// Starts the next run of a node, with the same disk and engine.
fn again(mut rig: Rig) -> Rig {
    let engine = rig.engine.take().expect("it has one");
    Rig::with_engine(rig.disk.clone(), engine)
}

fn families(rig: &mut Rig) -> Vec<(PoolId, Compression)> {
    let engine = rig.engine.as_mut().expect("it has one");
    let found = engine.open(ENGINE).expect("it is its own");
    found.into_iter().map(|found| (found.family, found.compression)).collect()
}

fn is_active(rig: &mut Rig) -> bool {
    rig.advance(Duration::from_secs(2));
    last_report(rig).active == [PG]
}

fn idle_because(rig: &Rig) -> String {
    why_idle(rig.node.pgs.get(PG).expect("it has a part"))
}

fn cleared(rig: &Rig) -> usize {
    let told = rig.told.iter();
    told.filter(|told| **told == ToMonitor::PoolCleared { pool: POOL }).count()
}

/// What a node said of its engine when it joined.
fn said_engine(rig: &Rig) -> Option<bool> {
    let said = rig.told.iter().find_map(|told| match told {
        ToMonitor::OsdBoot { engine, .. } => Some(*engine),
        _ => None,
    });
    said.expect("it joined")
}

#[test]
fn the_first_pool_of_objects_is_served_in_the_run_that_meets_it() {
    let mut rig = Rig::with_engine(MemoryDisk::formatted(), Twin::create(ENGINE));
    rig.join(1);
    assert_eq!(said_engine(&rig), Some(true));
    rig.monitor_says(map(0, 5, vec![entry(1, 1)], &[]));
    assert!(is_active(&mut rig), "a pool of blocks needs none");
    // The engine holds nothing yet, and the next run can do without it.
    let mut rig = Rig::over(rig.disk.clone());
    rig.join(2);
    assert_eq!((&rig.stopped, said_engine(&rig)), (&None, Some(false)));
    let mut rig = Rig::with_engine(rig.disk.clone(), Twin::create(ENGINE));
    rig.join(3);
    rig.monitor_says(objects(3));
    assert!(is_active(&mut rig));
    assert_eq!((families(&mut rig), rig.stopped.take()), (vec![(POOL, COMPRESSION)], None));
    // Now it holds something.
    let rig = Rig::over(rig.disk.clone());
    let Some(StopReason::Store(why)) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(why.contains("needs the engine with their records"), "{why}");
}

#[test]
fn without_an_engine_pools_of_objects_wait_and_others_are_served() {
    let mut rig = joined(Engine::None("there is no room for one".into()));
    rig.monitor_says(objects(1));
    assert!(!is_active(&mut rig));
    assert_eq!(last_report(&rig).incomplete, [(PG, "there is no room for one".into())]);
    rig.monitor_says(map(0, 20, vec![entry(2, 1)], &[]));
    assert!(is_active(&mut rig));
}

#[test]
fn no_pg_takes_part_before_the_family_of_its_pool_is_there() {
    let mut rig = Rig::with_engine(MemoryDisk::formatted(), Twin::create(ENGINE));
    rig.join(1);
    rig.holds_engine = true;
    rig.monitor_says(objects(1));
    assert!(!is_active(&mut rig));
    let pg = rig.node.pgs.get(PG).expect("it has a part");
    assert_eq!((pg.entry(), pg.epoch_floor()), (None, Epoch::ZERO), "it states nothing");
    assert!(idle_because(&rig).contains("a place for the pool's records"));
    let creation = |asked: &&String| asked.starts_with("Create");
    assert_eq!(rig.engine_asked.iter().filter(creation).count(), 1);
    rig.release_engine();
    assert!(is_active(&mut rig));
    assert_eq!(rig.engine_asked.iter().filter(creation).count(), 1, "it is asked for once");
    assert_eq!(last_report(&rig).incomplete, []);
}

#[test]
fn a_primary_that_asks_before_the_family_is_there_gets_its_answer_when_it_is() {
    let mut rig = Rig::with_engine(MemoryDisk::formatted(), Twin::create(ENGINE));
    rig.join(1);
    rig.holds_engine = true;
    let primary = Member { osd: OsdId::new(2).unwrap(), incarnation: Incarnation::new(1) };
    let member = Member { osd: OSD, incarnation: Incarnation::new(1) };
    let (epoch, revision) = (Epoch::new(1), MapRevision::new(1));
    let entry = PgEntry { epoch, revision, ..PgEntry::new(PG, [primary, member]) };
    rig.monitor_says(of_objects(map(0, 10, vec![entry], &[])));
    let peer = Peer { cluster: CLUSTER, role: Role::Osd(primary.osd, primary.incarnation) };
    rig.apply(Event::Net(NetEvent::Accepted { connection: OTHER, peer }));
    let body = PeerBody::Query { revision: MapRevision::new(1) };
    let query = PeerMessage { pg: PG, epoch: Epoch::new(1), body };
    rig.receive(OTHER, Message::Peer(Box::new(query)));
    assert_eq!(rig.to_osds, [], "it neither answers nor declines");
    rig.release_engine();
    let [PeerMessage { body: PeerBody::State(_), .. }] = &rig.to_osds[..] else {
        panic!("{:?}", rig.to_osds)
    };
}

#[test]
fn a_family_outlives_the_process() {
    let mut rig = again(serving());
    rig.join(2);
    rig.monitor_says(objects(2));
    assert!(is_active(&mut rig));
    assert_eq!(families(&mut rig), [(POOL, COMPRESSION)]);
    assert!(!rig.engine_asked.iter().any(|asked| asked.starts_with("Create")));
}

#[test]
fn the_family_of_a_removed_pool_goes_after_records_and_blocks() {
    let mut rig = serving();
    assert!(is_active(&mut rig));
    rig.holds_engine = true;
    rig.monitor_says(FromMonitor::ClearPool { pool: POOL, pg_count: 1 });
    rig.advance(Duration::from_secs(2));
    assert!(rig.engine_asked.iter().any(|asked| asked.starts_with("Remove")));
    let notes: Vec<_> = rig.node.store.notes().map(|(key, _)| key).collect();
    assert_eq!(notes, [blockstore::NoteKey::Cluster], "the PG's record is gone");
    assert_eq!(cleared(&rig), 0, "the records are still there");
    rig.release_engine();
    assert_eq!((cleared(&rig), families(&mut rig)), (1, vec![]));
    let mut rig = again(rig);
    rig.join(2);
    assert_eq!(families(&mut rig), []);
}

#[test]
fn a_removal_that_dies_with_the_process_is_finished_by_the_next_run() {
    let mut rig = serving();
    rig.holds_engine = true;
    rig.monitor_says(FromMonitor::ClearPool { pool: POOL, pg_count: 1 });
    let mut rig = again(rig);
    rig.join(2);
    rig.monitor_says(FromMonitor::ClearPool { pool: POOL, pg_count: 1 });
    assert_eq!((cleared(&rig), families(&mut rig)), (1, vec![]));
}

#[test]
fn a_pool_that_is_removed_while_its_family_is_created_leaves_none() {
    let mut rig = Rig::with_engine(MemoryDisk::formatted(), Twin::create(ENGINE));
    rig.join(1);
    rig.holds_engine = true;
    rig.monitor_says(objects(1));
    rig.monitor_says(FromMonitor::ClearPool { pool: POOL, pg_count: 1 });
    rig.advance(Duration::from_secs(2));
    assert_eq!(cleared(&rig), 0);
    rig.release_engine();
    rig.advance(Duration::from_secs(2));
    assert_eq!((cleared(&rig), families(&mut rig)), (1, vec![]));
}

#[test]
fn a_family_that_a_removed_pool_left_goes_when_the_pool_is_cleared() {
    let mut rig = serving();
    let left = PoolId::new(7).unwrap();
    let engine = rig.engine.as_mut().unwrap();
    let op = engine::EngineOp(u64::MAX);
    let create = engine::EngineEffect::Create { op, family: left, compression: COMPRESSION };
    engine.submit(create, &mut |_| 0);
    while engine.step(&mut |_| 0) {}
    let mut rig = again(rig);
    rig.join(2);
    rig.monitor_says(objects(2));
    assert_eq!(families(&mut rig), [(POOL, COMPRESSION), (left, COMPRESSION)]);
    rig.monitor_says(FromMonitor::ClearPool { pool: left, pg_count: 1 });
    assert!(rig.told.contains(&ToMonitor::PoolCleared { pool: left }));
    assert_eq!(families(&mut rig), [(POOL, COMPRESSION)]);
}

#[test]
fn reports_have_the_figures_of_the_engine() {
    let mut rig = serving();
    rig.advance(Duration::from_secs(3));
    let report = last_report(&rig).engine.expect("it has an engine");
    let families: Vec<_> = report.families.iter().map(|it| (it.pool, it.compression)).collect();
    assert_eq!((families, report.stall.as_str()), (vec![(POOL, COMPRESSION)], "none"));
    assert!(!report.waits_for_space);
    let mut rig = Rig::serving();
    rig.advance(Duration::from_secs(3));
    assert_eq!(last_report(&rig).engine, None);
}

#[test]
fn an_engine_that_fails_stops_the_osd() {
    let mut rig = serving();
    let text = "a disk is gone".to_owned();
    rig.apply(Event::Engine(format::engine::EngineEvent::Poisoned { text }));
    let Some(StopReason::Store(why)) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(why.contains("a disk is gone"), "{why}");
}

/// Returns a node that is active, with a client.
pub fn serving_clients() -> Rig {
    let mut rig = serving();
    assert!(is_active(&mut rig));
    rig.accept(CLIENT);
    rig
}

fn put(number: u64) -> Op {
    put_of(number, 30 << 10)
}

/// Returns the put of an object of this size, with the number of its operation.
pub fn put_of(number: u64, size: usize) -> Op {
    use ::objects::{ObjectChange, ObjectSteps, Operation};
    let name = ::objects::Name::new(format!("{number}").as_bytes()).unwrap();
    let changes = vec![ObjectChange::Put(vec![7; size])];
    let steps = ObjectSteps { name, assertions: Vec::new(), changes };
    let bytes = Operation { objects: vec![steps] }.encode();
    let operation = format::wire::Payload::new(&bytes, &base::BufferPool::default());
    Op::Mutate { number, lowest: number, again: false, operation }
}

fn is_done(outcome: &Result<Outcome, Refusal>) -> bool {
    matches!(outcome, Ok(Outcome::Mutated { .. }))
}

#[test]
fn mutations_wait_while_the_store_lags_and_are_then_answered_busy() {
    let mut rig = serving_clients();
    rig.holds_engine = true;
    let mut number = 1;
    while !rig.node.store.is_lagging() {
        let outcome = rig.ask(1, put(number));
        assert!(is_done(&outcome) && number < 1000, "{outcome:?}");
        number += 1;
    }
    let last = rig.node.store.last_version(PG);
    let waits = rig.send(CLIENT, 1, put(number));
    assert_eq!(rig.reply_to(waits), None);
    rig.advance(Settings::default().wait_max);
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.reply_to(waits), Some(Err(Refusal::Busy)));
    let waits = rig.send(CLIENT, 1, put(number + 1));
    assert_eq!((rig.reply_to(waits), rig.node.store.last_version(PG)), (None, last));
    rig.release_engine();
    rig.advance(Duration::from_secs(2));
    assert!(!rig.node.store.is_lagging());
    assert!(is_done(&rig.reply_to(waits).expect("it went on")));
}

#[test]
fn what_is_prepared_when_the_store_begins_to_lag_gets_no_version() {
    let mut rig = serving_clients();
    rig.holds_engine = true;
    let mut number = 1;
    // The second of two operations on an object waits for the first one in the PG.
    let again = |number: u64| match put(1) {
        Op::Mutate { lowest, again, operation, .. } => {
            Op::Mutate { number, lowest, again, operation }
        }
        other => other,
    };
    let mut sent = Vec::new();
    while !rig.node.store.is_lagging() {
        rig.holds_disk = true;
        sent = (0..4).map(|at| rig.send(CLIENT, 1, again(number + at))).collect();
        rig.release_disk();
        number += 4;
        assert!(number < 2000);
    }
    let given = rig.node.store.last_version(PG);
    let is_open = |rig: &mut Rig, sent: &[u64]| -> Vec<Option<bool>> {
        sent.iter().map(|it| rig.reply_to(*it).map(|outcome| is_done(&outcome))).collect()
    };
    is_open(&mut rig, &sent);
    rig.advance(Settings::default().wait_max);
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.node.store.last_version(PG), given);
    assert!(rig.node.is_idle(), "all that had no version is answered");
}

#[test]
fn repeats_of_fenced_sessions_are_deleted() {
    let mut rig = serving_clients();
    let put_in = |rig: &mut Rig, session: u64, number: u64| {
        let request =
            Request { session: SessionId::new(session), ..rig.request(1, put_of(number, 9)) };
        let sequence = request.sequence;
        rig.receive(CLIENT, Message::Request(request));
        rig.reply_to(sequence).expect("answered at once")
    };
    for session in [1, 2, 3] {
        let outcome = put_in(&mut rig, session, session);
        assert!(is_done(&outcome), "{outcome:?}");
    }
    let sessions = |rig: &mut Rig| {
        rig.advance(Duration::from_secs(5));
        let engine = rig.engine.as_ref().expect("it has one");
        let kinds = engine.records(POOL).filter_map(|(key, _)| ::objects::Key::decode(key));
        let sessions = kinds.filter_map(|key| match key.kind {
            ::objects::Kind::Repeat { session, .. } => Some(session.get()),
            _ => None,
        });
        sessions.collect::<BTreeSet<u64>>()
    };
    assert_eq!(sessions(&mut rig), [1, 2, 3].into());
    rig.monitor_says(of_objects(map(10, 11, Vec::new(), &[2])));
    assert_eq!(sessions(&mut rig), [1, 3].into());
    assert_eq!(put_in(&mut rig, 2, 4), Err(Refusal::Fenced));
    // The next run hears of all of them at once.
    let mut rig = again(rig);
    rig.join(2);
    rig.monitor_says(of_objects(map(0, 20, vec![entry(2, 2)], &[2, 3])));
    assert!(is_active(&mut rig));
    assert_eq!(sessions(&mut rig), [1].into());
}

#[test]
fn mutations_are_full_while_the_engine_is() {
    let mut rig = serving_clients();
    rig.engine.as_mut().unwrap().set_full(true);
    // Nobody knows yet.
    assert!(is_done(&rig.ask(1, put(1))));
    let last = rig.node.store.last_version(PG);
    assert_eq!(rig.ask(1, put(2)), Err(Refusal::Full));
    rig.advance(Duration::from_secs(3));
    assert_eq!(rig.ask(1, put(3)), Err(Refusal::Full));
    assert_eq!(rig.node.store.last_version(PG), last);
    rig.engine.as_mut().unwrap().set_full(false);
    rig.advance(Duration::from_secs(1));
    assert!(is_done(&rig.ask(1, put(4))));
}

/// Returns the operation, sent with this number, perhaps again.
fn operation(number: u64, again: bool, changes: Vec<::objects::ObjectChange>) -> Op {
    let name = ::objects::Name::new(b"1").unwrap();
    let steps = ::objects::ObjectSteps { name, assertions: Vec::new(), changes };
    let bytes = ::objects::Operation { objects: vec![steps] }.encode();
    let operation = Payload::new(&bytes, &BufferPool::default());
    Op::Mutate { number, lowest: 1, again, operation }
}

#[test]
fn only_what_adds_nothing_is_executed_while_little_space_is_left() {
    use ::objects::{Field, ObjectChange};
    let mut rig = serving_clients();
    let value = |number| vec![ObjectChange::Set(Field::Record(vec![1]), vec![number])];
    assert!(is_done(&rig.ask(1, operation(1, false, value(1)))));
    rig.engine.as_mut().unwrap().set_low(true);
    rig.advance(Duration::from_secs(1));
    let last = rig.node.store.last_version(PG);
    assert_eq!(rig.ask(1, operation(2, false, value(2))), Err(Refusal::Full));
    assert_eq!(rig.ask(1, put(3)), Err(Refusal::Full));
    // What was executed before is answered; what was not is refused.
    let version = last;
    let executed = Ok(Outcome::Mutated { version, results: Vec::new() });
    assert_eq!(rig.ask(1, operation(1, true, value(1))), executed);
    assert_eq!(rig.ask(1, operation(4, true, value(4))), Err(Refusal::Full));
    assert_eq!(rig.node.store.last_version(PG), last);
    let record = vec![ObjectChange::Unset(Field::Record(vec![1]))];
    let range = vec![ObjectChange::RemoveRecords { from: vec![1], before: None }];
    for (number, changes) in [(5, record), (6, range), (7, vec![ObjectChange::Remove])] {
        assert!(is_done(&rig.ask(1, operation(number, false, changes))), "{number}");
    }
    assert!(rig.node.store.last_version(PG) > last);
    rig.engine.as_mut().unwrap().set_low(false);
    rig.advance(Duration::from_secs(1));
    assert!(is_done(&rig.ask(1, operation(8, false, value(8)))));
}

/// Returns a request for the names of the PG, and of those beside it.
pub fn list(beside: &[(u32, u32)]) -> Op {
    let listing = ::objects::Listing { count_max: 10, size_max: 100, ..Default::default() };
    let query = ::objects::NameQuery { listing, with_data: false };
    Op::List {
        beside: beside.iter().map(|(pg, epoch)| (*pg, Epoch::new(*epoch))).collect(),
        names: Payload::new(&query.encode(), &BufferPool::default()),
    }
}

fn pages_of(outcome: Result<Outcome, Refusal>) -> (usize, Vec<u32>) {
    let Ok(Outcome::Listed { refused, pages }) = outcome else { panic!("{outcome:?}") };
    let pages = ::objects::Bytes::copy_from_slice(pages.bytes().expect("intact"));
    let pages = ::objects::decode_pages(&pages).expect("pages");
    (pages.len(), refused)
}

#[test]
fn a_list_has_one_reply_with_the_pages_of_its_pgs_and_names_those_that_refuse() {
    let mut rig = serving();
    rig.accept(CLIENT);
    assert_eq!(pages_of(rig.ask(1, list(&[]))), (1, vec![]));
    assert_eq!(pages_of(rig.ask(1, list(&[(0, 1), (0, 1)]))), (3, vec![]));
    // Of an older epoch. The other pages come.
    assert_eq!(pages_of(rig.ask(1, list(&[(0, 0), (0, 1)]))), (2, vec![0]));
    assert_eq!(pages_of(rig.ask(0, list(&[(0, 0)]))), (0, vec![0, 0]));
    // What no other primary mends refuses all of it.
    let refused = rig.ask(1, list(&[(9, 1)]));
    assert!(matches!(refused, Err(Refusal::Invalid { .. })), "{refused:?}");
    let refused = rig.ask(1, list(&[(0, 1); 255]));
    assert!(matches!(&refused, Err(Refusal::Invalid { why }) if why.contains("so many PGs")));
    assert!(rig.replies.is_empty() && rig.node.requests.is_empty());
}

#[test]
fn a_list_waits_for_its_slowest_pg_and_is_forgotten_with_its_connection() {
    let mut rig = serving();
    rig.accept(CLIENT);
    rig.holds_engine = true;
    // The epoch that the sender knows of has not come here yet.
    let sequence = rig.send(CLIENT, 1, list(&[(0, 2)]));
    rig.release_engine();
    assert_eq!(rig.reply_to(sequence), None);
    rig.monitor_says(objects_since(10, 2));
    rig.advance(Duration::from_secs(2));
    // The first one was of the epoch before, or had been answered in it.
    let (pages, refused) = pages_of(rig.reply_to(sequence).expect("both have answered"));
    assert_eq!(pages + refused.len(), 2);
    assert!(pages >= 1);
    let sequence = rig.send(CLIENT, 2, list(&[(0, 3)]));
    rig.close(CLIENT);
    rig.monitor_says(objects_since(20, 3));
    rig.advance(Duration::from_secs(2));
    assert_eq!(rig.reply_to(sequence), None);
    assert!(rig.node.requests.is_empty());
}

/// Returns the change of the map to this epoch, since this revision.
fn objects_since(since: u64, epoch: u32) -> FromMonitor {
    of_objects(map(since, 10 * u64::from(epoch), vec![entry(epoch, 1)], &[]))
}

// ---- what a PG leaves behind ----------------------------------------------------------------

/// Returns an operation that puts an object with a record, and data of this size.
fn put_object(size: usize) -> Op {
    let name = Name::new(b"a").unwrap();
    let put = ObjectChange::Put(vec![7; size]);
    let set = ObjectChange::Set(Field::Record(b"key".to_vec()), b"value".to_vec());
    let steps = ObjectSteps { name, assertions: vec![], changes: vec![put, set] };
    let operation = Operation { objects: vec![steps] };
    let operation = Payload::new(&operation.encode(), &BufferPool::default());
    Op::Mutate { number: 1, lowest: 1, again: false, operation }
}

fn record_count(rig: &Rig) -> usize {
    rig.engine.as_ref().expect("it has one").records(POOL).count()
}

/// Returns a node that had the PG with an object of this size. The PG is complete elsewhere now.
fn leaving(size: usize) -> Rig {
    let mut rig = serving();
    assert!(is_active(&mut rig));
    rig.accept(CLIENT);
    assert!(rig.ask(1, put_object(size)).is_ok());
    rig.advance(Duration::from_secs(2));
    assert!(record_count(&rig) > 2);
    rig.monitor_says(of_objects(elsewhere(10, 11, 2)));
    rig
}

#[test]
fn what_a_pg_of_objects_has_goes_when_the_pg_leaves() {
    let mut rig = leaving(100 << 10);
    assert!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count() > 0);
    rig.advance(Duration::from_secs(4));
    assert!(record_count(&rig) > 2, "not at once");
    rig.advance(Duration::from_secs(4));
    rig.advance(Duration::from_secs(4));
    assert_eq!(record_count(&rig), 0);
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0);
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_none());
    let asked = rig.engine_asked.len();
    (0..5).for_each(|_| rig.advance(Duration::from_secs(4)));
    let reads = rig.engine_asked[asked..].iter().filter(|asked| asked.starts_with("Read"));
    assert_eq!(reads.count(), 0, "it looks once in a run");
}

/// Returns a map with an entry of three copies, of which these OSDs have some.
fn without_this_one(since: u64, revision: u64, epoch: u32, osds: &[u32]) -> FromMonitor {
    let FromMonitor::Map(mut delta) = of_objects(elsewhere(since, revision, epoch)) else {
        unreachable!()
    };
    let id = |number: &u32| base::OsdId::new(*number).unwrap();
    delta.osds = osds
        .iter()
        .map(|it| cluster::map::OsdInfo { id: id(it), ..delta.osds[0].clone() })
        .collect();
    let pool = &mut delta.pools[0];
    pool.pool.scheme = base::Scheme::Copies { count: 3 };
    let member = |number: &u32| format::wire::Member {
        osd: id(number),
        incarnation: base::Incarnation::new(1),
    };
    let mut entry = format::wire::PgEntry::new(PG, osds.iter().map(member));
    entry.positions.resize(3, None);
    (entry.epoch, entry.revision) = (pool.pgs[0].epoch, pool.pgs[0].revision);
    pool.pgs = vec![entry];
    FromMonitor::Map(delta)
}

#[test]
fn a_pool_with_damaged_records_is_given_up_when_others_have_it() {
    let mut rig = serving();
    assert!(is_active(&mut rig));
    rig.accept(CLIENT);
    assert!(rig.ask(1, put_object(100 << 10)).is_ok());
    rig.advance(Duration::from_secs(2));
    let engine = rig.engine.as_mut().expect("it has one");
    while engine.flush_some(&mut |_| 0) {}
    assert!(engine.corrupt(POOL, &[], &[0xff]) > 2, "all is damaged");
    assert!(last_report(&rig).damaged_pools.is_empty());
    let name = Name::new(b"a").unwrap();
    let listing = ::objects::Listing { count_max: 10, size_max: 100, ..Default::default() };
    let look = ::objects::Look { reads: vec![::objects::Read::Records { name, listing }] };
    let op = Op::Look { reads: Payload::new(&look.encode(), &BufferPool::default()) };
    assert!(matches!(rig.ask(1, op), Err(Refusal::Damaged { .. })));
    rig.advance(Duration::from_secs(1));
    assert_eq!(last_report(&rig).damaged_pools, [POOL].into(), "it is told at once");
    // It keeps what it has while it has a part.
    (0..5).for_each(|_| rig.advance(Duration::from_secs(4)));
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_some());
    // A single copy elsewhere may have damage that nobody met.
    rig.monitor_says(without_this_one(10, 11, 2, &[2]));
    (0..4).for_each(|_| rig.advance(Duration::from_secs(4)));
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_some());
    rig.monitor_says(without_this_one(11, 12, 3, &[2, 3]));
    (0..4).for_each(|_| rig.advance(Duration::from_secs(4)));
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_none());
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0);
    assert!(!rig.node.store.has_family(POOL) && last_report(&rig).damaged_pools.is_empty());
    // It is a member again, with a new family, as one that has nothing.
    rig.monitor_says(objects_since(12, 4));
    rig.advance(Duration::from_secs(4));
    assert!(rig.node.store.has_family(POOL));
    let records = rig.engine.as_ref().expect("it has one").records(POOL);
    assert_eq!(records.filter(|(key, _)| !::objects::keys::is_own(key)).count(), 0);
}

#[test]
fn records_without_a_record_of_their_pg_are_found_by_the_next_run() {
    let mut rig = leaving(9);
    rig.holds_engine = true;
    (0..3).for_each(|_| rig.advance(Duration::from_secs(4)));
    assert!(rig.node.reclaim.is_removing(PG));
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_none());
    let mut rig = again(rig);
    rig.join(2);
    assert!(record_count(&rig) > 2, "nothing else tells of them");
    rig.monitor_says(of_objects(elsewhere(0, 12, 2)));
    (0..3).for_each(|_| rig.advance(Duration::from_secs(4)));
    assert_eq!(record_count(&rig), 0);
}
