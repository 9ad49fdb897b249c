//! Pools, volumes, sessions, tasks and the map, without failures.

use base::{Duration, Epoch, GIB, MapRevision, Scheme, SessionId, StripeIndex, TIB};
use format::door::{NetEvent, Role};
use format::wire::{Message, Op, PgEntry, Refusal};
use serde_json::{Value, json};

use super::rig::{Rig, osd_id, store_of};
use crate::map::{ClusterMap, FailureDomain};
use crate::message::{Command, Failure, FromMonitor, OsdReport, ToMonitor};
use crate::monitor::Event;
use crate::settings::Setting;
use crate::stats::Table;

fn code<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    result.unwrap_err().code
}

fn pool_create(pool: &str) -> Command {
    Command::PoolCreate {
        pool: pool.into(),
        scheme: None,
        min_size: None,
        pg_count: None,
        failure_domain: None,
        block_size: None,
        objects: None,
    }
}

#[test]
fn an_osd_boots_and_the_map_reaches_everyone() {
    let mut rig = Rig::with_pool(3, 8);
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    assert_eq!(map.osds.len(), 3);
    assert!(map.osds.values().all(|osd| osd.up && osd.incarnation.get() == 1));
    let pool = map.pools.values().next().unwrap();
    assert_eq!(pool.pgs.len(), 8);
    for osd in 1..=3 {
        let led = pool.pgs.iter().filter(|entry| entry.primary_osd() == Some(osd_id(osd))).count();
        assert!((2..=3).contains(&led));
        assert_eq!(rig.osds[&osd_id(osd)].map, map);
    }
}

#[test]
fn a_new_run_ends_the_epoch_of_its_pgs_and_only_those_are_sent() {
    let mut rig = Rig::with_pool(3, 1024);
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    let before = map.clone();
    rig.kill_osd(2);
    rig.read_map(client, &mut map).unwrap();
    assert!(!map.osds[&osd_id(2)].up);
    assert_eq!(map.pools, before.pools, "the entry stays: one copy waits for its holder");
    rig.boot(2);
    rig.read_map(client, &mut map).unwrap();
    assert!(map.osds[&osd_id(2)].up);
    let pool = *map.pools.keys().next().unwrap();
    for (old, new) in before.pools[&pool].pgs.iter().zip(&map.pools[&pool].pgs) {
        if old.primary_osd() == Some(osd_id(2)) {
            assert_eq!(new.epoch, old.epoch.next());
            assert_eq!(new.positions[0].unwrap().incarnation.get(), 2);
            assert_eq!(new.primary_osd(), old.primary_osd());
        } else {
            assert_eq!(new, old);
        }
    }
    let mut fresh = ClusterMap::default();
    let other = rig.client();
    rig.subscribe(other, &mut fresh).unwrap();
    assert_eq!(fresh, map, "deltas lead to what a snapshot says");
    assert_eq!(rig.subscribe(other, &mut fresh), Ok(1), "asked is answered");
    assert_eq!(rig.osds[&osd_id(2)].map, map);
}

#[test]
fn a_lost_connection_is_no_new_run() {
    let mut rig = Rig::with_pool(2, 8);
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    rig.break_connection(connection);
    rig.advance(Duration::from_millis(299));
    assert!(!rig.checks().contains(&"osd_down".to_string()), "it may come back");
    rig.advance(Duration::from_millis(2));
    assert!(rig.checks().contains(&"osd_down".to_string()));
    let pools = rig.osds[&osd_id(2)].map.pools.clone();
    rig.boot(1);
    assert_eq!(rig.osds[&osd_id(1)].incarnation.unwrap().get(), 1);
    let map = &rig.osds[&osd_id(2)].map;
    assert!(map.osds[&osd_id(1)].up);
    assert_eq!(map.pools, pools);
}

#[test]
fn addresses_that_nobody_may_announce_end_the_connection() {
    let mut rig = Rig::with_pool(1, 8);
    let plain = "tcp:[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535".to_string();
    let long = format!("unix:{}", "p".repeat(124));
    let lists = [vec![plain.clone(); 9], vec![long], vec!["unix:\u{1}".into()], vec!["\"".into()]];
    for list in lists {
        for is_for_peers in [false, true] {
            let connection = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
            let mut boot = rig.boot_message(osd_id(1));
            let ToMonitor::OsdBoot { addresses, peer_addresses, .. } = &mut boot else {
                unreachable!()
            };
            *(if is_for_peers { peer_addresses } else { addresses }) = list.clone();
            rig.say(connection, &boot);
            assert!(!rig.open.contains(&connection), "{list:?}");
        }
    }
    rig.kill_osd(1);
    let connection = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    let mut boot = rig.boot_message(osd_id(1));
    if let ToMonitor::OsdBoot { addresses, peer_addresses, incarnation, .. } = &mut boot {
        *addresses = vec![plain.clone(); 8];
        *peer_addresses = vec![plain; 8];
        *incarnation = None;
    }
    rig.say(connection, &boot);
    assert!(rig.open.contains(&connection), "as many and as long as may be");
}

#[test]
fn wrong_osds_are_refused() {
    let mut rig = Rig::with_pool(1, 8);
    let connection = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    let mut copy = rig.boot_message(osd_id(1));
    let ToMonitor::OsdBoot { path, store, incarnation, .. } = &mut copy else { unreachable!() };
    (*path, *incarnation) = ("/copy".into(), None);
    let mut foreign = ToMonitor::clone(&rig.boot_message(osd_id(1)));
    if let ToMonitor::OsdBoot { store, .. } = &mut foreign {
        *store = store_of(9);
    }
    assert_eq!(*store, store_of(1));
    let mut refusals = Vec::new();
    for message in [copy, foreign] {
        rig.say(connection, &message);
        let Some(FromMonitor::OsdRefused { error }) =
            rig.inbox.get_mut(&connection).unwrap().pop_back()
        else {
            panic!("not refused");
        };
        refusals.push(error.code);
    }
    assert_eq!(refusals, ["running", "other_store"]);
    // An old run returns after a new one has joined.
    rig.kill_osd(1);
    rig.boot(1);
    let mut old = rig.boot_message(osd_id(1));
    if let ToMonitor::OsdBoot { incarnation, .. } = &mut old {
        *incarnation = Some(base::Incarnation::new(1));
    }
    rig.say(connection, &old);
    assert!(!rig.open.contains(&connection), "it was connected before the newer run");
    let connection = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    rig.say(connection, &old);
    let last = rig.inbox.get_mut(&connection).unwrap().pop_back();
    assert!(matches!(last, Some(FromMonitor::OsdRefused { error }) if error.code == "stale_run"));
    assert_eq!(rig.osds[&osd_id(1)].refused, None);
}

#[test]
fn a_boot_that_comes_late_does_not_end_the_run_that_joined_since() {
    let mut rig = Rig::with_pool(1, 8);
    let late = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    let mut echo = rig.boot_message(osd_id(1));
    if let ToMonitor::OsdBoot { incarnation, .. } = &mut echo {
        *incarnation = None;
    }
    rig.kill_osd(1);
    rig.boot(1);
    let run = rig.osds[&osd_id(1)].incarnation;
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    rig.break_connection(connection);
    rig.say(late, &echo);
    assert!(!rig.open.contains(&late), "it was connected before the newer run");
    rig.boot(1);
    assert_eq!(rig.osds[&osd_id(1)].refused, None);
    assert_eq!(rig.osds[&osd_id(1)].incarnation, run);
}

#[test]
fn a_boot_ends_no_run_unless_its_sender_is_there() {
    let mut rig = Rig::with_pool(1, 8);
    let mut echo = rig.boot_message(osd_id(1));
    if let ToMonitor::OsdBoot { incarnation, .. } = &mut echo {
        *incarnation = None;
    }
    let (run, epochs) = (rig.osds[&osd_id(1)].incarnation, rig.entries());
    // Another monitor delayed the boot message, and forwards it now.
    let late = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    rig.say(late, &echo);
    let last = rig.inbox.get_mut(&late).unwrap().pop_back();
    let Some(FromMonitor::Probe { nonce }) = last else { panic!("{last:?}") };
    assert_eq!(rig.entries(), epochs);
    // A confirmation over another connection does not count.
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    rig.say(connection, &ToMonitor::Alive { nonce });
    assert_eq!(rig.entries(), epochs);
    rig.break_connection(connection);
    rig.boot(1);
    assert_eq!(rig.osds[&osd_id(1)].refused, None);
    assert_eq!(rig.osds[&osd_id(1)].incarnation, run);
    // A sender that is still connected confirms its boot.
    let again = rig.accept(Role::Osd(osd_id(1), base::Incarnation::ZERO));
    rig.say(again, &echo);
    let last = rig.inbox.get_mut(&again).unwrap().pop_back();
    let Some(FromMonitor::Probe { nonce }) = last else { panic!("{last:?}") };
    rig.say(again, &ToMonitor::Alive { nonce });
    assert_ne!(rig.entries(), epochs);
}

#[test]
fn an_osd_has_one_id_for_its_store() {
    let mut rig = Rig::new();
    let make = |rig: &mut Rig, store: &str| {
        rig.command(Command::OsdCreate { store: store.into() }).map(|row| row["id"].clone())
    };
    assert_eq!(make(&mut rig, &store_of(1)).unwrap(), 1);
    assert_eq!(make(&mut rig, &store_of(2)).unwrap(), 2);
    assert_eq!(make(&mut rig, &store_of(1)).unwrap(), 1);
    assert_eq!(code(make(&mut rig, "abc")), "invalid");
}

#[test]
fn pools_that_cannot_be_are_refused_with_the_remedy() {
    let mut rig = Rig::new();
    assert_eq!(code(rig.command(pool_create("p"))), "cannot_place");
    for number in 1..=3 {
        rig.add_osd(number);
    }
    let with = |count: Option<u8>, failure_domain, pg_count, min_size| Command::PoolCreate {
        pool: "p".into(),
        scheme: count.map(|count| Scheme::Copies { count }),
        min_size,
        pg_count,
        failure_domain,
        block_size: None,
        objects: None,
    };
    let error = rig.command(with(Some(2), None, None, None)).unwrap_err();
    assert_eq!(error.code, "cannot_place");
    assert!(error.hint.contains("--failure-domain osd"), "{}", error.hint);
    let error = rig.command(with(Some(4), Some(FailureDomain::Osd), None, None)).unwrap_err();
    assert_eq!(error.code, "cannot_place");
    for (replicas, pg_count, min_size) in [
        (None, Some(3), None),
        (None, Some(1 << 20), None),
        (Some(1), None, Some(2)),
        (Some(1), None, Some(0)),
    ] {
        assert_eq!(code(rig.command(with(replicas, None, pg_count, min_size))), "invalid");
    }
    for name in ["", "a/b", "a@b", ".x", "-x", &"x".repeat(64), "ä"] {
        assert_eq!(code(rig.command(pool_create(name))), "invalid", "{name}");
    }
    let error = rig.command(with(None, None, None, None)).unwrap_err();
    assert_eq!(error.code, "cannot_place", "two copies are what it takes, and there is one host");
    let large = rig.make_pool("large", 8192).unwrap();
    let pool = rig.command(with(None, Some(FailureDomain::Osd), None, None)).unwrap();
    assert_eq!(pool["pg_count"], 64);
    assert_eq!((&pool["replicas"], &pool["min_size"]), (&json!(2), &json!(1)));
    assert_eq!(code(rig.command(pool_create("p"))), "exists");
    let pools = rig.command(Command::PoolList).unwrap();
    assert_eq!(pools, json!([large, pool]));
}

#[test]
fn volumes_are_made_listed_and_grown() {
    let mut rig = Rig::with_pool(1, 8);
    let row = rig.make_volume("v", GIB).unwrap();
    let wanted = json!({
        "name": "v", "id": 1, "pool": "p", "size_bytes": GIB, "optimal_io_size": 4096,
        "gateway": false, "attached": 0, "sessions": [],
        "lock": null,
    });
    assert_eq!(row, wanted);
    assert_eq!(code(rig.make_volume("v", GIB)), "exists");
    for size in [0, 1, 4097, 2048 * TIB, u64::MAX] {
        assert_eq!(code(rig.make_volume("w", size)), "invalid", "{size}");
    }
    assert_eq!(code(rig.make_volume("a/b", GIB)), "invalid");
    let resize = |size, shrink| Command::VolumeResize { volume: "v".into(), size, shrink };
    assert_eq!(rig.command(resize(2 * GIB, false)).unwrap()["size_bytes"], 2 * GIB);
    assert_eq!(code(rig.command(resize(GIB, false))), "invalid");
    assert_eq!(rig.command(Command::VolumeList).unwrap()[0]["size_bytes"], 2 * GIB);
    let info = Command::VolumeInfo { volume: "v".into() };
    assert_eq!(rig.command(info).unwrap()["tasks"], json!([]));
    let info = Command::VolumeInfo { volume: "w".into() };
    assert_eq!(code(rig.command(info)), "not_found");
    rig.make_pool("q", 8).unwrap();
    assert_eq!(code(rig.make_volume("w", GIB)), "invalid");
    let create = |pool: &str| Command::VolumeCreate {
        gateway: false,
        volume: "w".into(),
        size: GIB,
        pool: Some(pool.into()),
    };
    assert_eq!(code(rig.command(create("x"))), "not_found");
    assert_eq!(rig.command(create("q")).unwrap()["id"], 2);
}

#[test]
fn a_gateways_volume_is_shown_and_removed_for_gateways_only() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let create = Command::VolumeCreate { gateway: true, volume: "c".into(), size: GIB, pool: None };
    assert_eq!(rig.command(create).unwrap()["gateway"], true);
    let rows = rig.command(Command::VolumeList).unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["name"]), (1, &json!("v")));
    assert_eq!(rig.rows(Table::Volume)[1]["gateway"], true);
    let shrink = Command::VolumeResize { volume: "c".into(), size: 4096, shrink: true };
    assert_eq!(code(rig.command(shrink)), "invalid");
    assert_eq!(code(rig.remove_volume("c")), "invalid");
    let remove = Command::VolumeRemove { gateway: true, volume: "c".into() };
    assert!(rig.command(remove).is_ok());
}

#[test]
fn a_session_is_over_when_the_monitor_has_it_no_more() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    let state = Command::SessionState { session };
    assert_eq!(rig.command(state.clone()).unwrap(), json!({ "over": false }));
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: false });
    assert_eq!(rig.command(state).unwrap(), json!({ "over": true }));
}

#[test]
fn an_attached_volume_is_not_removed() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, image) = rig.open_session(client, "v").unwrap().unwrap();
    assert_eq!(session, SessionId::new(1));
    assert_eq!((image.size, image.seed), (GIB, image.id));
    let error = rig.open_session(client, "w").unwrap().unwrap_err();
    assert_eq!(error.code, "not_found");
    assert_eq!(code(rig.remove_volume("v")), "busy");
    let shrink = Command::VolumeResize { volume: "v".into(), size: 4096, shrink: true };
    assert_eq!(code(rig.command(shrink)), "busy");
    let rows = rig.command(Command::VolumeList).unwrap();
    assert_eq!(rows[0]["sessions"], json!([{ "id": 1, "client": "test", "read_only": false }]));
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: false });
    assert!(rig.remove_volume("v").is_ok());
    assert_eq!(code(rig.remove_volume("v")), "not_found");
    assert_eq!(rig.tasks(), [] as [Value; 0]);
}

#[test]
fn a_session_closed_cleanly_is_not_fenced() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: false });
    let before = rig.osds[&osd_id(1)].map.clone();
    rig.remove_volume("v").unwrap();
    assert_eq!(rig.osds[&osd_id(1)].map, before);
    assert_eq!(rig.osds[&osd_id(1)].deleted.len(), 8);
}

#[test]
fn a_session_closed_with_a_change_on_its_way_is_fenced() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: true });
    rig.remove_volume("v").expect("nobody has it attached");
    let map = &rig.osds[&osd_id(1)].map;
    assert!(map.pools.values().any(|pool| pool.is_fenced(session)));
    assert_eq!(rig.osds[&osd_id(1)].deleted.len(), 8);
}

#[test]
fn an_attach_fences_the_ended_sessions_of_its_image_before_it_is_answered() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.make_volume("w", GIB).unwrap();
    let client = rig.client();
    rig.subscribe(client, &mut ClusterMap::default()).expect("a map");
    let (late, _) = rig.open_session(client, "v").unwrap().unwrap();
    let (shared, _) = rig.open_session(client, "v").unwrap().unwrap();
    let (other, _) = rig.open_session(client, "w").unwrap().unwrap();
    rig.say(client, &ToMonitor::CloseSession { session: late, unanswered: true });
    rig.say(client, &ToMonitor::CloseSession { session: other, unanswered: true });
    rig.inbox.remove(&client);
    rig.open_session(client, "v").unwrap().unwrap();
    let told: Vec<_> = rig.inbox[&client].iter().collect();
    let [FromMonitor::Map(delta), FromMonitor::SessionOpened { .. }] = told[..] else {
        panic!("the fence comes first: {told:?}")
    };
    assert_eq!(delta.pools[0].fences, [late], "not {shared}, which goes on, nor {other}");
}

#[test]
fn osds_that_left_a_monitor_that_stood_still_have_time_to_come_back() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    let before = rig.entries();
    rig.now = rig.now + Duration::from_secs(3);
    rig.crash_osd(2);
    rig.advance(Duration::from_millis(4_900));
    assert_eq!(rig.entries(), before);
    rig.advance(Duration::from_millis(200));
    assert_ne!(rig.entries(), before);
}

#[test]
fn a_connection_that_a_client_has_left_takes_no_session_with_it() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let first = rig.client();
    let (session, _) = rig.open_session(first, "v").unwrap().unwrap();
    rig.break_connection(first);
    let resume = |turn| ToMonitor::ResumeSession { session, reign: 0, turn };
    let present = rig.client();
    rig.say(present, &resume(3));
    // A monitor that was suspended forwards an old message of a client that has already left it.
    let left = rig.client();
    rig.say(left, &resume(2));
    rig.break_connection(left);
    rig.advance(Duration::from_secs(60));
    assert_eq!(code(rig.remove_volume("v")), "busy");
    // A resume request with a later turn takes over the session.
    let next = rig.client();
    rig.say(next, &resume(4));
    rig.break_connection(present);
    rig.advance(Duration::from_secs(60));
    assert_eq!(code(rig.remove_volume("v")), "busy");
    rig.break_connection(next);
    rig.advance(Duration::from_secs(11));
    assert!(rig.remove_volume("v").is_ok());
}

#[test]
fn a_session_blocks_nobody_ten_seconds_after_its_connection_ended() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.break_connection(client);
    rig.advance(Duration::from_millis(9_900));
    let again = rig.client();
    rig.say(again, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    rig.advance(Duration::from_secs(60));
    assert_eq!(code(rig.remove_volume("v")), "busy");
    rig.break_connection(again);
    rig.advance(Duration::from_millis(10_100));
    assert!(rig.remove_volume("v").is_ok());
    let late = rig.client();
    rig.say(late, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    let told = rig.inbox.get_mut(&late).unwrap().pop_back();
    assert_eq!(told, Some(FromMonitor::SessionEnded { session }));
}

#[test]
fn a_client_that_was_silent_for_long_goes_on_unless_another_had_its_image() {
    for is_other_there in [false, true] {
        let mut rig = Rig::with_pool(1, 8);
        rig.make_volume("v", GIB).unwrap();
        let client = rig.client();
        let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
        rig.break_connection(client);
        rig.advance(Duration::from_secs(3_600));
        let row = rig.command(Command::VolumeInfo { volume: "v".into() }).unwrap();
        assert_eq!(row["sessions"], json!([]), "{row}");
        if is_other_there {
            let other = rig.client();
            let (second, _) = rig.open_session(other, "v").unwrap().unwrap();
            rig.say(other, &ToMonitor::CloseSession { session: second, unanswered: false });
        }
        let back = rig.client();
        rig.say(back, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
        let told = rig.inbox.remove(&back).unwrap_or_default();
        if is_other_there {
            assert_eq!(told, [FromMonitor::SessionEnded { session }]);
            assert!(rig.remove_volume("v").is_ok());
        } else {
            assert_eq!(told, []);
            assert_eq!(code(rig.remove_volume("v")), "busy");
            rig.break_connection(back);
            rig.advance(Duration::from_secs(11));
            assert!(rig.remove_volume("v").is_ok(), "its time begins anew");
        }
    }
}

#[test]
fn a_client_that_is_back_while_its_session_ends_goes_on() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let (client, back) = (rig.client(), rig.client());
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.break_connection(client);
    let before = rig.transactions;
    let resume = ToMonitor::ResumeSession { session, reign: 0, turn: 0 };
    rig.say_behind_tick(Duration::from_secs(10), back, &resume);
    assert_eq!(rig.transactions, before + 2, "ended, and resumed");
    assert_eq!(rig.inbox.remove(&back).unwrap_or_default(), []);
    assert_eq!(code(rig.remove_volume("v")), "busy");
}

#[test]
fn removal_fences_and_waits_until_the_fence_was_seen() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, image) = rig.open_session(client, "v").unwrap().unwrap();
    rig.break_connection(client);
    rig.advance(Duration::from_secs(11));
    rig.osds.get_mut(&osd_id(2)).unwrap().is_slow_to_see = true;
    let removed = rig.remove_volume("v").unwrap();
    assert_eq!(removed, json!({ "id": 1, "name": "v", "task": 1 }));
    let map = &rig.osds[&osd_id(1)].map;
    let pool = map.pools.values().next().unwrap();
    assert!(pool.is_fenced(session));
    assert_eq!(pool.revision, MapRevision::new(2));
    let tasks = rig.tasks();
    assert_eq!(tasks[0]["state"], "fencing");
    assert!(tasks[0]["waits_for"].as_str().unwrap().contains("osd.2"));
    assert!(rig.osds.values().all(|osd| osd.deleted.is_empty()));
    rig.make_volume("v", GIB).expect("the name is free at once");
    rig.say_saw(2);
    assert_eq!(rig.tasks(), [] as [Value; 0]);
    let done: usize = rig.osds.values().map(|osd| osd.deleted.len()).sum();
    assert_eq!(done, 8);
    let from = StripeIndex::new(0);
    for (_, op, revision) in rig.osds.values().flat_map(|osd| &osd.deleted) {
        assert_eq!(*op, Op::DeleteRange { image: image.id, from });
        assert!(*revision >= MapRevision::new(2), "the request brings the fence along");
    }
}

#[test]
fn a_fence_does_not_wait_for_an_osd_that_is_down() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    rig.open_session(client, "v").unwrap().unwrap();
    rig.break_connection(client);
    rig.advance(Duration::from_secs(11));
    rig.kill_osd(2);
    rig.remove_volume("v").unwrap();
    let tasks = rig.tasks();
    assert_eq!(tasks[0]["state"], "deleting");
    assert_eq!(tasks[0]["waits_for"], "osd.2, which is down");
    assert_eq!(tasks[0]["pgs_done"], 4);
    assert_eq!(rig.status()["health"], "error");
    rig.boot(2);
    rig.advance(Duration::from_secs(2));
    assert_eq!(rig.tasks(), [] as [Value; 0]);
    assert_eq!(rig.osds[&osd_id(2)].deleted.len(), 4);
}

#[test]
fn a_deletion_goes_on_in_portions_past_refusals_and_lost_connections() {
    let mut rig = Rig::with_pool(1, 32);
    rig.make_volume("v", GIB).unwrap();
    let pool = *rig.osds[&osd_id(1)].map.pools.keys().next().unwrap();
    let osd = rig.osds.get_mut(&osd_id(1)).unwrap();
    osd.portions = (0..32).map(|number| (base::PgId { pool, number }, number % 3)).collect();
    osd.refusal = Some(Refusal::Busy);
    rig.remove_volume("v").unwrap();
    assert_eq!(rig.tasks()[0]["pgs_done"], 0);
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    rig.break_connection(connection);
    rig.osds.get_mut(&osd_id(1)).unwrap().refusal = None;
    rig.boot(1);
    rig.advance(Duration::from_secs(3));
    assert_eq!(rig.tasks(), [] as [Value; 0]);
    let asked: u32 = (0..32).map(|number| number % 3 + 1).sum();
    assert_eq!(rig.osds[&osd_id(1)].deleted.len(), asked as usize);
}

#[test]
fn shrinking_zeroes_the_cut_stripe_and_deletes_the_rest() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.osds.get_mut(&osd_id(1)).unwrap().refusal = Some(Refusal::Busy);
    let size = 3 * (128 << 10) + 8192;
    let resize = |size| Command::VolumeResize { volume: "v".into(), size, shrink: true };
    let row = rig.command(resize(size)).unwrap();
    assert_eq!((row["size_bytes"].clone(), row["task"].clone()), (json!(size), json!(1)));
    assert_eq!(code(rig.command(resize(GIB))), "busy", "it may not grow over what is deleted");
    rig.osds.get_mut(&osd_id(1)).unwrap().refusal = None;
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.tasks(), [] as [Value; 0]);
    assert!(rig.command(resize(GIB)).is_ok());
    let deleted = &rig.osds[&osd_id(1)].deleted;
    assert_eq!(deleted.len(), 9);
    for (_, op, _) in deleted {
        match op {
            Op::Zero { place, offset, length, .. } => {
                assert_eq!(place.stripe, StripeIndex::new(3));
                assert_eq!((*offset, *length), (8192, (128 << 10) - 8192));
            }
            Op::DeleteRange { from, .. } => assert_eq!(*from, StripeIndex::new(4)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn status_tells_health_with_reasons() {
    let mut rig = Rig::with_pool(2, 8);
    for number in 1..=2 {
        rig.report(number, |_| {});
    }
    let status = rig.status();
    assert_eq!(status["health"], "ok");
    assert_eq!(rig.checks(), ["single_copy"]);
    let pgs = json!({
        "total": 8, "active": 8, "clean": 8, "degraded": 0, "filling": 0, "peering": 0,
        "incomplete": 0, "down": 0,
    });
    assert_eq!(status["pgs"], pgs);
    assert_eq!(status["osds"][1]["path"], "/osd2");
    assert_eq!(status["osds"][1]["size_bytes"], 10u64 << 30);
    assert_eq!(status["processes"][1]["address"], "unix:osd1");
    let pg = base::PgId { pool: base::PoolId::FIRST, number: 0 };
    type Edit = fn(&mut OsdReport);
    let edits: [(&str, &str, Edit); 9] = [
        ("ok", "osd_buffered", |report| report.buffered = true),
        ("warn", "osd_nearly_full", |report| report.used_bytes = 9 << 30),
        ("warn", "disk_slow", |report| report.oldest_operation_ms = 1_001),
        ("error", "osd_stalled", |report| {
            (report.oldest_operation_ms, report.stalled) = (5_001, true);
        }),
        ("warn", "osd_stalled", |report| report.stalled = true),
        ("error", "osd_full", |report| report.full = true),
        ("error", "osd_suspect", |report| report.suspect = true),
        ("error", "damaged_units", |report| report.damaged_units = 1),
        ("warn", "pg_peering", |report| report.active.clear()),
    ];
    for (health, check, edit) in edits {
        rig.report(1, edit);
        assert_eq!(rig.status()["health"], health, "{check}");
        assert!(rig.checks().contains(&check.to_string()), "{check}");
    }
    let osd = rig.osds[&osd_id(1)].map.pg(pg).unwrap().primary_osd().unwrap();
    let number = osd.get();
    rig.report(3 - number, |_| {});
    let give_up = Command::PgGiveUp { pg, accepted: true, they_are_off: false, older_copy: false };
    assert_eq!(code(rig.command(give_up.clone())), "invalid");
    rig.report(number, |report| {
        report.active.retain(|active| *active != pg);
        report.incomplete = vec![(pg, "entry lost".into())];
    });
    assert_eq!(rig.checks()[0], "pg_incomplete");
    assert_eq!(code(rig.command(give_up.clone())), "invalid", "it lost nothing");
    rig.report(number, |report| {
        report.active.retain(|active| *active != pg);
        report.incomplete = vec![(pg, "entry lost".into())];
        report.suspect_pgs = vec![pg];
    });
    let row = rig.command(Command::PgDescribe { pg }).unwrap();
    assert_eq!((&row["state"], &row["why"]), (&json!("incomplete"), &json!("entry lost")));
    // Without confirmation, the command only reports what would be lost.
    let asked = rig
        .command(Command::PgGiveUp { pg, accepted: false, they_are_off: false, older_copy: false })
        .unwrap_err();
    assert_eq!(asked.code, "not_accepted");
    assert!(asked.message.contains("entry lost") && asked.hint.contains("--yes"), "{asked:?}");
    let before = rig.osds[&osd].map.pg(pg).unwrap().clone();
    assert_eq!(before.given_up, Epoch::ZERO);
    // The answer arrives once the OSD serves the PG, or after a timeout.
    let client = rig.client();
    assert_eq!(rig.command_over(client, give_up.clone()), None);
    let entry = rig.osds[&osd].map.pg(pg).unwrap().clone();
    let (epoch, revision) = (before.epoch.next(), entry.revision);
    assert_eq!(entry, PgEntry { epoch, revision, given_up: epoch, ..before });
    let answer = |rig: &Rig| match rig.inbox.get(&client).and_then(|inbox| inbox.back()) {
        Some(FromMonitor::Answer { result, .. }) => Some(result.clone()),
        _ => None,
    };
    rig.report(number, |report| {
        report.active.retain(|active| *active != pg);
        report.incomplete = vec![(pg, "entry lost".into())];
        report.suspect_pgs = vec![pg];
    });
    assert_eq!(answer(&rig), None);
    rig.advance(Duration::from_secs(9));
    assert_eq!(answer(&rig), None);
    rig.advance(Duration::from_secs(2));
    assert_eq!(answer(&rig).unwrap().unwrap_err().code, "unconfirmed");
    assert_eq!(rig.command_over(client, give_up), None);
    let given_up = rig.osds[&osd].map.pg(pg).unwrap().given_up;
    assert_eq!(given_up, epoch.next());
    rig.report(3 - number, |_| {});
    rig.report(number, |_| {});
    assert_eq!(answer(&rig).unwrap().unwrap()["pg"], pg.to_string());
    assert_eq!(rig.status()["health"], "ok");
    rig.advance(Duration::from_secs(6));
    assert!(rig.checks().contains(&"osd_silent".to_string()));
    rig.kill_osd(1);
    assert_eq!(rig.status()["health"], "error");
    let entry = rig.osds[&osd_id(2)].map.pg(pg).unwrap();
    assert_eq!(entry.given_up, given_up, "later entries keep it");
    let rows = rig.command(Command::PgList { pool: Some("p".into()) }).unwrap();
    let down = rows.as_array().unwrap().iter().filter(|row| row["state"] == "down").count();
    assert_eq!(down, 4);
}

#[test]
fn a_volume_that_waits_for_room_is_named_with_its_bytes() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    let waits = |session, waiting_bytes| ToMonitor::SessionWaits { session, waiting_bytes };
    let check = |rig: &mut Rig| {
        let status = rig.status();
        let mut checks = status["checks"].as_array().unwrap().iter();
        let found = checks.find(|check| check["code"] == "volume_waits_for_room");
        found.map(|check| check["message"].as_str().unwrap().to_string())
    };
    rig.say(client, &waits(session, 12 << 10));
    let message = check(&mut rig).unwrap();
    assert!(message.starts_with("12 KiB of volume v "), "{message}");
    let stranger = rig.client();
    rig.say(stranger, &waits(session, 0));
    assert!(check(&mut rig).is_some(), "it is not the other's session");
    rig.say(client, &waits(session, 0));
    assert_eq!(check(&mut rig), None);
}

#[test]
fn processes_that_introduce_themselves_are_listed() {
    let mut rig = Rig::new();
    let client = rig.client();
    let address = Some("unix:nbd.sock".to_string());
    let (role, host) = ("nbd".to_string(), "h".to_string());
    rig.say(client, &ToMonitor::Introduce { role, pid: 7, host, address, answers_probes: true });
    let wanted =
        json!({ "role": "nbd", "id": 1, "pid": 7, "address": "unix:nbd.sock", "host": "h" });
    assert_eq!(rig.status()["processes"][1], wanted);
    rig.break_connection(client);
    assert_eq!(rig.status()["processes"].as_array().unwrap().len(), 1);
}

#[test]
fn state_and_settings_can_be_read() {
    let mut rig = Rig::with_pool(1, 8);
    let rows = rig.command(Command::StateList { prefix: "".into() }).unwrap();
    let keys: Vec<&str> =
        rows.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    let counters = ["counter/monitor", "counter/osd", "counter/pool"];
    let others = ["leader", "monitor/1", "osd/1", "pg/1/0", "pool/1"];
    assert_eq!(keys, [&["change", "cluster"][..], &counters, &others].concat());
    let row = rig.command(Command::StateGet { key: "pool/1".into() }).unwrap();
    assert_eq!(row["value"]["name"], "p");
    assert_eq!(code(rig.command(Command::StateGet { key: "pool".into() })), "not_found");
    let get = |setting: &str| Command::ConfigGet { setting: setting.into() };
    assert_eq!(rig.command(get("session_timeout_ms")).unwrap()["value"], 10_000);
    assert_eq!(code(rig.command(get("colour"))), "not_found");
    assert_eq!(
        rig.command(Command::ConfigList).unwrap().as_array().unwrap().len(),
        Setting::ALL.len()
    );
}

#[test]
fn rubbish_closes_the_connection_and_is_counted() {
    let mut rig = Rig::with_pool(1, 8);
    let deep = "[".repeat(100_000);
    for text in ["", "rubbish", r#"{"type":"nonsense"}"#, r#"{"type":"osd_saw"}"#, &deep] {
        let client = rig.client();
        let message = Message::Control(text.into());
        rig.event(Event::Net(NetEvent::Received { connection: client, message }));
        assert!(!rig.open.contains(&client), "{text:.20}");
    }
    let client = rig.client();
    let report = ToMonitor::OsdReport(Default::default());
    rig.say(client, &report);
    assert!(!rig.open.contains(&client), "a client does not speak for OSDs");
    let client = rig.client();
    let boot = rig.boot_message(osd_id(1));
    rig.say(client, &boot);
    assert!(!rig.open.contains(&client));
    assert!(rig.checks().contains(&"protocol_errors".to_string()));
}

#[test]
fn damaged_messages_never_harm_the_monitor() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let revisions = [(base::PoolId::FIRST, MapRevision::new(1))].into_iter().collect();
    let resize = Command::VolumeResize { volume: "v".into(), size: 4096, shrink: true };
    let messages = [
        rig.boot_message(osd_id(1)),
        ToMonitor::Subscribe { have: revisions },
        ToMonitor::ResumeSession { session: SessionId::new(1), reign: 0, turn: 0 },
        ToMonitor::Command { request: 1, command: resize },
        ToMonitor::Command { request: 2, command: pool_create("q") },
    ];
    let texts = messages.map(|message| serde_json::to_string(&message).unwrap());
    let mut random = 88172645463325252u64;
    let mut next = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit as u64) as usize
    };
    for _ in 0..3000 {
        let mut bytes = texts[next(texts.len())].clone().into_bytes();
        for _ in 0..=next(3) {
            let place = next(bytes.len());
            match next(3) {
                0 => bytes[place] = b"0123456789\"{}[],:-ex "[next(21)],
                1 => bytes.truncate(place.max(1)),
                _ => bytes.insert(place, bytes[next(bytes.len())]),
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let role = Role::Osd(osd_id(1), base::Incarnation::ZERO);
        let connection = rig.accept(if next(2) == 0 { Role::Client } else { role });
        let message = Message::Control(text);
        rig.event(Event::Net(NetEvent::Received { connection, message }));
        rig.break_connection(connection);
        assert_eq!(rig.stopped, None);
    }
    assert!(rig.checks().contains(&"protocol_errors".to_string()));
}
