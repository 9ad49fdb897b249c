//! A state store with unusable keys that were written while no monitor led.

use std::collections::BTreeSet;

use base::{Duration, Epoch, ImageId, PgId, SessionId};
use serde_json::{Value, json};

use super::rig::{Mishap, Rig, osd_id};
use crate::map::ClusterMap;
use crate::message::Command;
use crate::numbers::{EPOCH_MAX, NUMBER_MAX, REVISION_MAX, SESSION_MAX};

const GIB: u64 = 1 << 30;

/// One key of each kind that can be repaired after damage.
const KEYS: [&str; 15] = [
    "osd/1",
    "pool/1",
    "pg/1/0",
    "fence/1",
    "image/1",
    "index/image/v",
    "lock/1",
    "session/2",
    "task/1",
    "monitor/1",
    "counter/image",
    "counter/osd",
    "counter/session",
    "counter/pool",
    "counter/monitor",
];

/// Returns a cluster with a record under each of [`KEYS`]. Volume `v` is attached, with its lock, by session
/// 2. A volume was removed: its task waits, and session 1, which had it attached, is fenced.
fn cluster() -> Rig {
    let mut rig = Rig::with_copies(3, 2, 2, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.make_volume("gone", GIB).unwrap();
    let client = rig.client();
    let (first, _) = rig.open_session(client, "gone").unwrap().unwrap();
    rig.break_connection(client);
    rig.advance(Duration::from_secs(11));
    rig.osds.get_mut(&osd_id(2)).unwrap().is_slow_to_see = true;
    rig.remove_volume("gone").unwrap();
    let client = rig.client();
    let asked = rig.ask_lock(client, "v", false);
    let (session, is_locked, is_lazy) = rig.lock_answer(client, asked).unwrap().unwrap();
    assert_eq!((first, session), (SessionId::new(1), SessionId::new(2)));
    assert!(is_locked && is_lazy && rig.tasks().len() == 1);
    for key in KEYS {
        assert!(rig.stored(key).is_some(), "{key}");
    }
    rig
}

/// Edits a key by hand while no monitor leads.
fn damage(rig: &mut Rig, key: &str, value: Option<&str>) {
    rig.hand_writes_unseen(key, value);
    rig.restart();
    rig.tick();
}

/// Returns what `status` reports about the damage.
fn damage_told(rig: &mut Rig) -> Option<String> {
    let status = rig.status();
    let mut checks = status["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["code"] == "state_damaged")?;
    assert_eq!((&check["severity"], &status["health"]), (&json!("error"), &json!("error")));
    Some(check["message"].as_str().unwrap().to_string())
}

fn recover(rig: &mut Rig) -> Result<Value, String> {
    let answer = rig.command(Command::StateRecover { they_are_lost: Vec::new(), accepted: true });
    if answer.is_ok() {
        come_again(rig);
    }
    answer.map_err(|error| error.message)
}

fn come_again(rig: &mut Rig) {
    for number in 1..=3 {
        rig.boot(number);
        rig.report(number, |_| {});
    }
}

/// Returns the members of each PG.
fn members(rig: &Rig) -> Vec<(PgId, BTreeSet<base::OsdId>)> {
    let of = |entry: &format::wire::PgEntry| entry.acting().map(|m| m.osd).collect();
    rig.entries().iter().map(|entry| (entry.pg, of(entry))).collect()
}

/// Checks that the cluster is as before, and that no id is issued twice.
fn assert_mended(rig: &mut Rig, before: &[(PgId, BTreeSet<base::OsdId>)], key: &str) {
    assert_eq!(rig.stopped, None, "{key}");
    assert_eq!(damage_told(rig), None, "{key}");
    assert_eq!(members(rig), before, "{key}");
    assert!(rig.osds.values().all(|osd| osd.refused.is_none()), "{key}");
    let info = rig.command(Command::VolumeInfo { volume: "v".into() }).unwrap();
    assert_eq!((&info["id"], &info["size_bytes"]), (&json!(1), &json!(GIB)), "{key}");
    let maps = || rig.osds.values().flat_map(|osd| osd.map.pools.values());
    assert_eq!(maps().count(), 3, "{key}");
    assert!(maps().all(|pool| pool.is_fenced(SessionId::new(1))), "{key}");
    let made = rig.make_volume("next", GIB).unwrap();
    assert!(made["id"].as_u64() > Some(2), "{key}: {made}");
    let client = rig.client();
    let (session, _) = rig.open_session(client, "next").unwrap().unwrap();
    assert!(session > SessionId::new(2), "{key}");
    rig.add_osd(4);
}

#[test]
fn a_key_that_cannot_be_read_at_the_start_stops_changes_and_not_the_monitor() {
    for key in KEYS {
        for value in ["rubbish", "{}"] {
            let mut rig = cluster();
            let before = rig.entries();
            let good = rig.stored(key).unwrap().value;
            damage(&mut rig, key, Some(value));
            assert_eq!(rig.stopped, None, "{key}");
            let told = damage_told(&mut rig).unwrap_or_else(|| panic!("{key}"));
            assert!(told.contains(&format!("{key} (")), "{told}");
            // No receiver of the map is informed of a removal, and no id is issued.
            let client = rig.client();
            let mut map = ClusterMap::default();
            assert_eq!(rig.subscribe(client, &mut map), Ok(0), "{key}");
            assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_damaged", "{key}");
            let refused = rig.open_session(client, "v").unwrap().unwrap_err();
            assert_eq!(refused.code, "state_damaged", "{key}");
            let give_up = |they_are_off| Command::PgGiveUp {
                pg: before[0].pg,
                accepted: true,
                they_are_off,
                older_copy: false,
            };
            for they_are_off in [false, true] {
                let refused = rig.command(give_up(they_are_off)).unwrap_err();
                assert_eq!(refused.code, "state_damaged", "{key}");
            }
            rig.advance(Duration::from_secs(30));
            assert!(rig.osds.values().all(|osd| osd.refused.is_none()), "{key}");
            assert!(rig.osds.values().all(|osd| !osd.map.pools.is_empty()), "{key}");
            assert_eq!(rig.stored(key).unwrap().value, value, "it is left for people");
            let shown = rig.command(Command::StateGet { key: key.into() }).unwrap();
            assert!(shown.to_string().contains(value), "{shown}");
            // Once the good value is written, the store is usable again at once.
            rig.hand_writes(key, Some(&good));
            assert_eq!(damage_told(&mut rig), None, "{key}");
            come_again(&mut rig);
            assert_eq!(rig.entries().len(), before.len(), "{key}");
            assert!(
                rig.entries()
                    .iter()
                    .zip(&before)
                    .all(|(now, then)| now.positions == then.positions)
            );
            let session = rig.monitor.committed.session(SessionId::new(2));
            assert!(session.is_some(), "{key}: nobody's attachment ends");
            rig.make_volume("w", GIB).unwrap();
        }
    }
}

#[test]
fn a_recovery_takes_what_is_damaged_from_osds() {
    for key in KEYS {
        let mut rig = cluster();
        let before = members(&rig);
        let epochs: Vec<Epoch> = rig.entries().iter().map(|entry| entry.epoch).collect();
        damage(&mut rig, key, Some("rubbish"));
        recover(&mut rig).unwrap();
        assert!(
            rig.entries().iter().zip(epochs).all(|(entry, epoch)| entry.epoch > epoch),
            "{key}"
        );
        // All records are as of one transaction: sessions, locks and tasks continue.
        let session = SessionId::new(2);
        let is_fenced = rig.osds[&osd_id(1)].map.pools.values().all(|pool| pool.is_fenced(session));
        let committed = &rig.monitor.committed;
        assert!(!is_fenced && committed.session(session).is_some(), "{key}");
        assert!(committed.lock(ImageId::FIRST).is_some() && rig.tasks().len() == 1, "{key}");
        assert_mended(&mut rig, &before, key);
        // After a restart, the monitor finds no damage.
        rig.restart();
        rig.tick();
        assert_eq!(damage_told(&mut rig), None, "{key}");
    }
}

#[test]
fn a_manual_edit_while_no_monitor_led_is_not_believed() {
    for key in KEYS.into_iter().filter(|key| !["osd/1", "pool/1"].contains(key)) {
        let mut rig = cluster();
        let older = rig.stored(key).unwrap().value;
        rig.kill_osd(2);
        rig.advance(Duration::from_secs(5));
        rig.boot(2);
        rig.report(2, |_| {});
        rig.make_volume("later", GIB).unwrap();
        let before = members(&rig);
        // An invalid setting is undone only when no other key is damaged.
        rig.hand_writes_unseen("config/nothing", Some("{}"));
        damage(&mut rig, key, Some(&older));
        for _ in 0..2 {
            let told = damage_told(&mut rig).unwrap_or_else(|| panic!("{key}"));
            assert!(told.contains(&format!("{key} (edited by hand")), "{told}");
            assert!(rig.stored("config/nothing").is_some(), "{key}: nothing is written");
            rig.restart();
            rig.tick();
        }
        recover(&mut rig).unwrap();
        assert_mended(&mut rig, &before, key);
        assert!(rig.stored("config/nothing").is_none(), "{key}");
    }
}

#[test]
fn keys_that_people_may_write_are_believed_whoever_leads() {
    let mut rig = cluster();
    let mut pool: Value = serde_json::from_str(&rig.stored("pool/1").unwrap().value).unwrap();
    pool["name"] = json!("other");
    damage(&mut rig, "pool/1", Some(&pool.to_string()));
    assert_eq!(damage_told(&mut rig), None);
    assert_eq!(rig.command(Command::PoolList).unwrap()[0]["name"], "other");
}

#[test]
fn what_a_pool_never_changes_comes_back_from_osds() {
    let mut rig = cluster();
    let before = members(&rig);
    let mut pool: Value = serde_json::from_str(&rig.stored("pool/1").unwrap().value).unwrap();
    (pool["pg_count"], pool["block_size"]) = (json!(16), json!(65536));
    damage(&mut rig, "pool/1", Some(&pool.to_string()));
    assert!(damage_told(&mut rig).unwrap().contains("8 of 16 PG entries"));
    recover(&mut rig).unwrap();
    assert_mended(&mut rig, &before, "pool/1");
    let pool = &rig.monitor.committed.pools().next().unwrap().pool;
    assert_eq!((pool.pg_count, pool.block_size.bytes()), (8, 128 << 10));
}

#[test]
fn what_was_removed_though_others_need_it_comes_back_from_osds() {
    let counters = ["counter/session", "counter/image", "counter/osd"];
    for key in ["pool/1", "pg/1/0", "osd/1", "image/1"].into_iter().chain(counters) {
        let mut rig = cluster();
        let before = members(&rig);
        damage(&mut rig, key, None);
        assert_eq!(rig.stopped, None, "{key}");
        assert!(damage_told(&mut rig).is_some(), "{key}");
        assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_damaged", "{key}");
        recover(&mut rig).unwrap();
        assert_mended(&mut rig, &before, key);
    }
}

#[test]
fn a_damaged_store_is_not_restored_without_a_copy() {
    let mut rig = cluster();
    let good = rig.stored("image/1").unwrap().value;
    for osd in rig.osds.values_mut() {
        osd.copy = crate::copy::CopyKeeper::default();
    }
    damage(&mut rig, "image/1", Some("rubbish"));
    let error = recover(&mut rig).unwrap_err();
    assert!(error.contains("no OSD has sent a copy of the state"), "{error}");
    assert_eq!(rig.stored("image/1").unwrap().value, "rubbish", "nothing was written");
    rig.hand_writes("image/1", Some(&good));
    assert_eq!(damage_told(&mut rig), None);
}

#[test]
fn a_recovery_from_damage_is_begun_anew_wherever_the_monitor_ends() {
    for key in ["lock/1", "pool/1", "session/2"] {
        for mishap in (1..=5).flat_map(Mishap::all_of) {
            let mut rig = cluster();
            // More records than fit in one transaction.
            for number in 0..150 {
                rig.make_volume(&format!("v{number}"), GIB).unwrap();
            }
            for number in 0..150 {
                let client = rig.client();
                rig.open_session(client, &format!("v{number}")).unwrap().unwrap();
            }
            let before = members(&rig);
            damage(&mut rig, key, Some("rubbish"));
            rig.transactions = 0;
            rig.mishap = mishap;
            let client = rig.client();
            let they_are_lost = Vec::new();
            rig.command_over(client, Command::StateRecover { they_are_lost, accepted: true });
            rig.mishap = Mishap::None;
            rig.tick();
            rig.advance(Duration::from_secs(1));
            assert_eq!(rig.stopped, None, "{key} {mishap:?}");
            let checks = rig.checks();
            if checks.iter().any(|check| check.starts_with("state_")) {
                recover(&mut rig).unwrap();
            }
            come_again(&mut rig);
            assert_eq!(rig.stored("recovery"), None, "{key} {mishap:?}");
            assert_eq!(rig.monitor.committed.sessions().count(), 151, "{key} {mishap:?}");
            assert_mended(&mut rig, &before, key);
        }
    }
}

#[test]
fn a_recovery_that_cannot_be_read_is_one_that_is_not_whole() {
    let mut rig = cluster();
    damage(&mut rig, "recovery", Some("rubbish"));
    assert!(rig.checks().contains(&"state_older".to_string()));
    recover(&mut rig).unwrap();
    assert_eq!(rig.stored("recovery"), None);
    assert!(!rig.checks().contains(&"state_older".to_string()));
}

/// Edits one number of a record by hand while no monitor leads, without any other trace of the edit.
fn write_number(rig: &mut Rig, key: &str, path: &str, number: u64) {
    let mut value: Value = serde_json::from_str(&rig.stored(key).unwrap().value).unwrap();
    *value.pointer_mut(path).expect("it is there") = json!(number);
    rig.hand_writes_unseen(key, Some(&value.to_string()));
    if key != "change" {
        let change = rig.stored("change").unwrap().value;
        rig.hand_writes_unseen("change", Some(&change));
    }
    rig.restart();
    rig.tick();
}

#[test]
fn numbers_that_were_never_given_are_damage_and_stop_no_monitor() {
    let epochs = [u64::from(EPOCH_MAX.get()) + 1, u64::from(u32::MAX)];
    let above = |max: u64| [max + 1, u64::MAX];
    for (key, path, numbers) in [
        ("pool/1", "/revision", above(REVISION_MAX.get())),
        ("osd/1", "/incarnation", above(NUMBER_MAX)),
        ("osd/1", "/revision", above(NUMBER_MAX)),
        ("osd/1", "/size_bytes", above(NUMBER_MAX)),
        ("counter/session", "/last", above(SESSION_MAX.get())),
        ("counter/image", "/last", above(u64::from(u32::MAX / 2))),
        ("counter/osd", "/last", above(1 << 20)),
        ("pg/1/0", "/pgs/0/epoch", epochs),
        ("pg/1/0", "/pgs/0/revision", above(REVISION_MAX.get())),
        ("pg/1/0", "/pgs/0/positions/0/incarnation", above(NUMBER_MAX)),
        ("fence/1", "/fences/0/session", above(SESSION_MAX.get())),
        ("fence/1", "/fences/0/revision", above(REVISION_MAX.get())),
        ("lock/1", "/session", above(SESSION_MAX.get())),
        ("task/1", "/fence_revision", above(REVISION_MAX.get())),
    ] {
        for number in numbers {
            let mut rig = cluster();
            let before = members(&rig);
            write_number(&mut rig, key, path, number);
            come_again(&mut rig);
            rig.advance(Duration::from_secs(20));
            assert_eq!(rig.stopped, None, "{key}{path} {number}");
            let told = damage_told(&mut rig).unwrap_or_else(|| panic!("{key}{path} {number}"));
            let is_named = told.contains(&format!("{key} ("));
            assert!(is_named && told.contains(&format!("is out of range: {number})")), "{told}");
            assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_damaged", "{key}{path}");
            recover(&mut rig).unwrap();
            assert_mended(&mut rig, &before, key);
            rig.restart();
            rig.tick();
            assert_eq!(damage_told(&mut rig), None, "{key}{path}");
        }
    }
}

#[test]
fn fences_that_are_not_in_order_are_damage() {
    for ranges in [json!([[3, 2]]), json!([[1, 4], [4, 6]]), json!([[1, u64::MAX]])] {
        let mut rig = cluster();
        let before = members(&rig);
        let mut fences: Value =
            serde_json::from_str(&rig.stored("fence/1").unwrap().value).unwrap();
        fences["ranges"] = ranges;
        rig.hand_writes_unseen("fence/1", Some(&fences.to_string()));
        let change = rig.stored("change").unwrap().value;
        damage(&mut rig, "change", Some(&change));
        assert!(damage_told(&mut rig).unwrap().contains("fence/1 ("));
        recover(&mut rig).unwrap();
        assert_mended(&mut rig, &before, "fence/1");
    }
}

#[test]
fn a_number_of_transactions_that_were_never_made_counts_as_none() {
    for number in [NUMBER_MAX + 1, u64::MAX] {
        let mut rig = cluster();
        let before = members(&rig);
        let last = rig.monitor.committed.change().last;
        write_number(&mut rig, "change", "/last", number);
        assert_eq!(damage_told(&mut rig), None);
        assert_eq!(rig.stopped, None);
        come_again(&mut rig);
        assert!(rig.checks().contains(&"state_older".to_string()));
        assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_older");
        recover(&mut rig).unwrap();
        let now = rig.monitor.committed.change().last;
        assert!((last..NUMBER_MAX).contains(&now), "{now}");
        assert_mended(&mut rig, &before, "change");
    }
}

#[test]
fn a_counter_that_has_given_its_last_id_gives_no_more() {
    for (key, last) in [
        ("counter/image", u64::from(u32::MAX / 2)),
        ("counter/pool", u64::from(u32::MAX / 2)),
        ("counter/monitor", u64::from(u32::MAX / 2)),
        ("counter/session", SESSION_MAX.get()),
    ] {
        let mut rig = cluster();
        write_number(&mut rig, key, "/last", last);
        come_again(&mut rig);
        assert_eq!(damage_told(&mut rig), None, "{key}");
        // The client that has the volume attached does not return.
        rig.advance(Duration::from_secs(11));
        let client = rig.client();
        let refused = match key {
            "counter/image" => rig.make_volume("w", GIB).unwrap_err(),
            "counter/pool" => rig.make_pool("q", 8).unwrap_err(),
            "counter/monitor" => rig.command(Command::MonitorCreate).unwrap_err(),
            _ => rig.open_session(client, "v").unwrap().unwrap_err(),
        };
        assert_eq!(refused.message, format!("{key} has issued its last id"));
        assert_eq!(rig.stopped, None, "{key}");
    }
}
