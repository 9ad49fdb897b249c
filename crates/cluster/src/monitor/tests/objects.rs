//! Pools of objects: what they are made with, what cannot change, and what only pools of blocks have.

use base::hash::NameHash;
use base::{BlockSize, ConnectionId, Duration, GIB, ImageId, KIB, PgId, PoolId, Scheme, SessionId};
use format::engine::Compression;
use serde_json::{Value, json};

use super::rig::{Rig, osd_id};
use crate::map::{ClusterMap, FailureDomain, PoolKind};
use crate::message::{Command, Failure, FromMonitor, ObjectOptions, ToMonitor};
use crate::records::{Key, Record, Used};
use crate::stats::Table;

const COPIES: Scheme = Scheme::Copies { count: 2 };

fn create(
    rig: &mut Rig,
    (scheme, pg_count): (Scheme, Option<u32>),
    block_size: Option<u64>,
    objects: ObjectOptions,
) -> Result<Value, Failure> {
    rig.command(Command::PoolCreate {
        pool: "kv".into(),
        scheme: Some(scheme),
        min_size: None,
        pg_count,
        failure_domain: Some(FailureDomain::Osd),
        block_size: block_size.map(|size| BlockSize::new(size).expect("valid")),
        objects: Some(objects),
    })
}

/// Returns a cluster of 3 OSDs without a pool.
fn cluster() -> Rig {
    let mut rig = Rig::new();
    for number in 1..=3 {
        rig.add_osd(number);
    }
    rig
}

/// Returns a cluster of 3 OSDs with a pool of objects with 8 PGs and defaults otherwise.
fn with_objects() -> Rig {
    let mut rig = cluster();
    create(&mut rig, (COPIES, Some(8)), None, ObjectOptions::default()).unwrap();
    rig
}

fn put(value: &Value) -> Command {
    Command::StatePut { key: "pool/1".into(), value: value.to_string(), force: false }
}

#[test]
fn a_pool_of_objects_has_shards_a_compression_and_smaller_blocks() {
    let mut rig = with_objects();
    let row = rig.rows(Table::Pool)[0].clone();
    assert_eq!((&row["kind"], &row["scheme"]), (&json!("object"), &json!("2 copies")));
    assert_eq!((&row["shards"], &row["compression"]), (&json!(32), &json!("lz4")));
    assert_eq!((&row["block_size"], &row["used_bytes"]), (&json!(64 * KIB), &Value::Null));
    assert_eq!(rig.status()["pools"][0]["kind"], "object");
    rig.make_pool("v", 8).unwrap();
    assert_eq!(rig.rows(Table::Pool)[1]["kind"], "block");
    assert_eq!(rig.rows(Table::Pool)[1]["used_bytes"], 0);
}

#[test]
fn its_record_survives_a_restart() {
    let mut rig = cluster();
    let objects =
        ObjectOptions { shards: Some(8), compression: Some(Compression::Bzip2), grouped: true };
    create(&mut rig, (COPIES, Some(8)), Some(16 * KIB), objects).unwrap();
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
    let Some(Record::Pool(record)) = rig.monitor.committed.record(&Key::parse("pool/1").unwrap())
    else {
        panic!("the pool is gone")
    };
    let kind =
        PoolKind::Object { shards: 8, names: NameHash::Grouped, compression: Compression::Bzip2 };
    assert_eq!((record.pool.kind, record.pool.block_size.bytes()), (kind, 16 * KIB));
    assert_eq!(record.rest, crate::records::Rest::new());
}

#[test]
fn pools_of_objects_that_cannot_work_are_refused() {
    let shards = |count| ObjectOptions { shards: Some(count), ..ObjectOptions::default() };
    let none = ObjectOptions::default();
    let code = Scheme::ReedSolomon { data: 2, parity: 1 };
    let mut rig = cluster();
    for (rules, block_size, objects, why) in [
        ((code, Some(8)), None, none, "a pool of objects keeps copies; ec 2+1 is only for volumes"),
        ((COPIES, Some(8)), Some(256 * KIB), none, "can have at most 128 KiB, not 256 KiB"),
        ((COPIES, Some(8)), None, shards(4), "cannot have 4 shards"),
        ((COPIES, Some(8)), None, shards(24), "cannot have 24 shards"),
        ((COPIES, Some(8)), None, shards(131_072), "only a power of two from 8 to 2048"),
        ((COPIES, Some(8)), None, shards(0), "cannot have 0 shards"),
    ] {
        let refused = create(&mut rig, rules, block_size, objects).unwrap_err();
        assert_eq!(refused.code, "invalid", "{refused:?}");
        assert!(refused.message.contains(why), "{refused:?}");
    }
    create(&mut rig, (COPIES, Some(8)), Some(128 * KIB), shards(2048)).unwrap();
}

#[test]
fn what_a_pool_of_objects_was_made_with_cannot_change() {
    let mut rig = with_objects();
    let record = rig.monitor.committed.record(&Key::parse("pool/1").unwrap()).unwrap().to_json();
    for (field, value) in [
        ("shards", json!(64)),
        ("compression", json!("zstd")),
        ("compression", json!("gzip")),
        ("kind", json!("file")),
        ("redundancy", json!("ec 2+1")),
        ("redundancy", json!("3 copies")),
    ] {
        let mut changed = record.clone();
        changed[field] = value;
        let refused = rig.command(put(&changed)).unwrap_err();
        assert_eq!(refused.code, "invalid", "{field}: {refused:?}");
    }
    let mut blocks = record.clone();
    blocks["scheme"] = blocks["redundancy"].clone();
    blocks["kind"] = json!("block");
    assert!(rig.command(put(&blocks)).unwrap_err().message.contains("the kind of a pool"));
    let set = |rename: Option<&str>, scheme| Command::PoolSet {
        pool: "kv".into(),
        rename: rename.map(str::to_owned),
        scheme,
        min_size: Some(2),
        failure_domain: None,
    };
    let code = Scheme::ReedSolomon { data: 2, parity: 1 };
    assert_eq!(rig.command(set(None, Some(code))).unwrap_err().code, "invalid");
    let row = rig.command(set(Some("records"), None)).unwrap();
    assert_eq!((&row["name"], &row["min_size"]), (&json!("records"), &json!(2)));
    assert_eq!((&row["kind"], &row["shards"]), (&json!("object"), &json!(32)));
}

#[test]
fn volumes_are_made_in_pools_of_blocks_only() {
    let mut rig = with_objects();
    let volume = |pool: Option<&str>| Command::VolumeCreate {
        gateway: false,
        volume: "v".into(),
        size: GIB,
        pool: pool.map(str::to_owned),
    };
    let refused = rig.command(volume(Some("kv"))).unwrap_err();
    assert_eq!(refused.message, "pool kv keeps objects, and no volumes");
    assert_eq!(rig.command(volume(None)).unwrap_err().code, "not_found");
    rig.make_pool("blocks", 8).unwrap();
    // Of the pools that can have it there is only one.
    assert_eq!(rig.command(volume(None)).unwrap()["pool"], "blocks");
}

#[test]
fn scrubs_of_objects_are_passed_on() {
    let mut rig = with_objects();
    let pg: PgId = "1.0".parse().unwrap();
    for (command, count) in [
        (Command::PoolScrub { pool: "kv".into(), deep: false }, 8),
        (Command::PgScrub { pg, deep: false }, 1),
    ] {
        assert_eq!(rig.command(command).unwrap()["asked"], json!(count));
    }
}

/// Opens the pool, and returns the messages that come, without other maps.
fn open_pool(rig: &mut Rig, client: ConnectionId, pool: &str) -> Vec<FromMonitor> {
    rig.inbox.remove(&client);
    let (pool, name) = (pool.to_owned(), "test".to_owned());
    rig.say(client, &ToMonitor::OpenPool { request: 5, pool, client: name });
    rig.inbox.remove(&client).unwrap_or_default().into()
}

fn opened(told: &[FromMonitor]) -> (SessionId, PoolId) {
    let Some(FromMonitor::PoolOpened { request: 5, session, pool, .. }) = told.last() else {
        panic!("the pool is open: {told:?}")
    };
    (*session, pool.id)
}

#[test]
fn who_opens_a_pool_fences_its_ended_sessions() {
    let mut rig = with_objects();
    let client = rig.client();
    rig.subscribe(client, &mut ClusterMap::default()).expect("a map");
    let (late, pool) = opened(&open_pool(&mut rig, client, "kv"));
    assert_eq!(pool, PoolId::FIRST);
    let (other, _) = opened(&open_pool(&mut rig, client, "kv"));
    rig.say(client, &ToMonitor::CloseSession { session: late, unanswered: true });
    let told = open_pool(&mut rig, client, "kv");
    let [FromMonitor::Map(delta), FromMonitor::PoolOpened { .. }] = &told[..] else {
        panic!("the fence comes first: {told:?}")
    };
    assert_eq!(delta.pools[0].fences, [late], "not {other}, which goes on");
    let record = |rig: &Rig, session| rig.monitor.committed.session(session).cloned();
    assert_eq!(record(&rig, late), None);
    assert_eq!(record(&rig, other).unwrap().used, Used::Pool(pool));
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
    assert_eq!(record(&rig, other).unwrap().used, Used::Pool(pool));
}

#[test]
fn sessions_that_were_closed_are_over_for_osds_soon() {
    let mut rig = with_objects();
    rig.make_pool("blocks", 8).unwrap();
    rig.make_volume("v", 1 << 30).unwrap();
    let (stays, client) = (rig.client(), rig.client());
    let (open, pool) = opened(&open_pool(&mut rig, stays, "kv"));
    let is_fenced = |rig: &Rig, session| rig.osds[&osd_id(1)].map.pools[&pool].is_fenced(session);
    let revision = |rig: &Rig| rig.osds[&osd_id(1)].map.pools[&pool].revision;
    let close = |rig: &mut Rig, session| {
        rig.inbox.remove(&client);
        rig.say(client, &ToMonitor::CloseSession { session, unanswered: false });
        let told = rig.inbox.remove(&client).unwrap_or_default();
        assert!(told.contains(&FromMonitor::SessionClosed { session }), "{told:?}");
    };
    let (mut closed, before) = (Vec::new(), revision(&rig));
    for round in 1..=3 {
        for _ in 0..64 {
            let (session, _) = opened(&open_pool(&mut rig, client, "kv"));
            close(&mut rig, session);
            closed.push(session);
        }
        let fenced = closed.iter().filter(|session| is_fenced(&rig, **session)).count();
        assert!(fenced + 64 >= closed.len(), "{fenced}");
        let revisions = revision(&rig).get() - before.get();
        assert_eq!(revisions, round, "each takes the map along");
        assert!(!is_fenced(&rig, open));
    }
    // Of a volume, OSDs keep nothing.
    let before: Vec<_> =
        rig.osds[&osd_id(1)].map.pools.values().map(|pool| pool.revision).collect();
    for _ in 0..70 {
        let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
        close(&mut rig, session);
    }
    let after: Vec<_> = rig.osds[&osd_id(1)].map.pools.values().map(|pool| pool.revision).collect();
    assert_eq!(before, after);
    rig.say(stays, &ToMonitor::CloseSession { session: open, unanswered: false });
    assert!(!is_fenced(&rig, open));
    let (session, _) = opened(&open_pool(&mut rig, client, "kv"));
    close(&mut rig, session);
    assert!(is_fenced(&rig, open), "the next fence is for all before it");
    let Some(Record::Fence(record)) = rig.monitor.committed.record(&Key::Fence(pool)) else {
        panic!("there are fences")
    };
    assert_eq!((record.count(), record.ranges.len()), (1, 1));
    // Those between two open ones, too, although none of them has a fence of its own.
    let last = |rig: &mut Rig| opened(&open_pool(rig, client, "kv")).0;
    let (low, between, high) = (last(&mut rig), last(&mut rig), last(&mut rig));
    close(&mut rig, between);
    for _ in 0..64 {
        let session = last(&mut rig);
        close(&mut rig, session);
    }
    let fenced = [low, between, high].map(|session| is_fenced(&rig, session));
    assert_eq!(fenced, [false, true, false]);
}

#[test]
fn a_record_of_a_session_names_an_image_or_a_pool() {
    let key = Key::parse("session/7").unwrap();
    for (used, text) in [
        (
            Used::Image(ImageId::FIRST),
            r#"{"id":7,"image":1,"client":"nbd","read_only":true,"ended":false}"#,
        ),
        (
            Used::Pool(PoolId::FIRST),
            r#"{"id":7,"pool":1,"client":"kv","read_only":false,"ended":true,"x":5}"#,
        ),
    ] {
        let record = Record::parse(&key, text).unwrap();
        let Record::Session(session) = &record else { panic!("{record:?}") };
        assert_eq!(session.used, used);
        assert_eq!(record.to_json(), serde_json::from_str::<Value>(text).unwrap());
    }
    for text in [
        r#"{"id":7,"client":"nbd","read_only":true,"ended":false}"#,
        r#"{"id":7,"pool":0,"client":"nbd","read_only":true,"ended":false}"#,
    ] {
        assert!(Record::parse(&key, text).is_err(), "{text}");
    }
}

#[test]
fn only_pools_of_objects_are_opened() {
    let mut rig = with_objects();
    rig.make_pool("blocks", 8).unwrap();
    let client = rig.client();
    for (pool, code) in [("blocks", "invalid"), ("none", "not_found")] {
        let told = open_pool(&mut rig, client, pool);
        let Some(FromMonitor::SessionRefused { request: 5, error }) = told.last() else {
            panic!("refused: {told:?}")
        };
        assert_eq!(error.code, code);
    }
}

#[test]
fn a_pool_that_is_open_is_not_removed() {
    let mut rig = with_objects();
    let client = rig.client();
    let (session, _) = opened(&open_pool(&mut rig, client, "kv"));
    let remove = |accepted| Command::PoolRemove { pool: "kv".into(), accepted };
    assert_eq!(rig.command(remove(true)).unwrap_err().code, "busy");
    rig.break_connection(client);
    rig.advance(Duration::from_secs(11));
    assert_eq!(rig.command(remove(false)).unwrap_err().code, "not_confirmed");
    rig.command(remove(true)).expect("its client is gone");
    assert_eq!(rig.monitor.committed.session(session), None);
    assert_eq!(rig.stopped, None);
}

// ---- engines ----------------------------------------------------------------------------------

/// Returns a cluster of OSDs that say this of their engines when they join.
fn saying(engines: &[Option<bool>]) -> Rig {
    let mut rig = Rig::new();
    for (number, engine) in (1..).zip(engines) {
        rig.add_osd(number);
        says(&mut rig, number, *engine);
    }
    rig
}

/// Starts an OSD's next run, which says this of its engine.
fn says(rig: &mut Rig, number: u32, engine: Option<bool>) {
    rig.kill_osd(number);
    rig.osds.get_mut(&osd_id(number)).expect("it is there").engine = engine;
    rig.boot(number);
    rig.report(number, |_| {});
    rig.advance(Duration::from_secs(1));
}

/// Returns the OSDs on which PGs of the first pool are planned.
fn planned(rig: &Rig) -> Vec<u32> {
    let osds: std::collections::BTreeSet<u32> =
        rig.targets().into_iter().flatten().map(|osd| osd.get()).collect();
    osds.into_iter().collect()
}

#[test]
fn pgs_of_objects_are_planned_only_onto_osds_that_say_they_have_an_engine() {
    let mut rig = saying(&[Some(true), Some(true), Some(false), None]);
    let made = create(&mut rig, (COPIES, None), None, ObjectOptions::default()).unwrap();
    let warning = made["warning"].as_str().expect("a warning");
    assert!(warning.starts_with("osd.3, osd.4 have no engine for records of objects"), "{warning}");
    assert_eq!((&made["pg_count"], planned(&rig)), (&json!(32), vec![1, 2]), "as for two OSDs");
    assert_eq!(rig.check("engine_missing").0, "info");
    assert!(!rig.checks().contains(&"pool_unplaced".to_owned()));
    rig.restart();
    rig.tick();
    assert_eq!(planned(&rig), [1, 2]);
    // Those that get one get PGs.
    says(&mut rig, 3, Some(true));
    assert_eq!(planned(&rig), [1, 2, 3]);
    says(&mut rig, 4, Some(true));
    assert_eq!(planned(&rig), [1, 2, 3, 4]);
    assert!(!rig.checks().contains(&"engine_missing".to_owned()));
    assert_eq!(rig.stopped, None);
}

#[test]
fn a_pool_of_objects_is_refused_where_too_few_osds_have_an_engine() {
    let mut rig = saying(&[Some(true), Some(false), None]);
    let refused = create(&mut rig, (COPIES, Some(8)), None, ObjectOptions::default()).unwrap_err();
    assert_eq!(refused.code, "cannot_place");
    assert!(refused.message.contains("there are 1; osd.2, osd.3 have no engine"), "{refused:?}");
    assert!(refused.hint.contains("--objects DIR"), "{refused:?}");
    let any = Command::PoolCreate {
        pool: "kv".into(),
        scheme: None,
        min_size: None,
        pg_count: None,
        failure_domain: Some(FailureDomain::Osd),
        block_size: None,
        objects: Some(ObjectOptions::default()),
    };
    let refused = rig.command(any).unwrap_err();
    assert!(refused.message.contains("2 copies need 2"), "not a single copy: {refused:?}");
    // A pool of volumes needs none.
    let made = rig.make_replicated("v", 3, None, 8).unwrap();
    assert_eq!((&made["warning"], planned(&rig)), (&Value::Null, vec![1, 2, 3]));
    assert!(!rig.checks().contains(&"engine_missing".to_owned()), "nobody wants one");
}

#[test]
fn an_osd_of_an_older_version_keeps_the_pgs_of_objects_that_it_has() {
    let mut rig = with_objects();
    rig.fill();
    let before = rig.targets();
    says(&mut rig, 2, None);
    assert_eq!(rig.targets(), before);
    says(&mut rig, 3, None);
    rig.restart();
    rig.tick();
    assert_eq!(rig.targets(), before);
    // One that says it has none keeps nothing.
    says(&mut rig, 3, Some(false));
    assert_eq!(planned(&rig), [1, 2]);
    // Two are left for two copies, so an OSD is not taken out, though a third one is there.
    let stays = rig.monitor.why_it_stays_in(osd_id(2));
    assert!(stays.is_some_and(|why| why.contains("pool kv could not be placed")));
}

#[test]
fn a_boot_message_of_an_older_version_says_nothing_of_an_engine() {
    let rig = with_objects();
    let boot = rig.boot_message(osd_id(1));
    let mut text = serde_json::to_value(&boot).expect("plain");
    let said = text.as_object_mut().expect("its fields").remove("engine");
    assert_eq!(said, Some(json!(true)));
    let ToMonitor::OsdBoot { engine, .. } = serde_json::from_value(text).expect("it is read")
    else {
        panic!("it is another message")
    };
    assert_eq!(engine, None);
}
