//! Changes by operators: settings, pools, and keys of the state store.

use base::{Duration, GIB, PoolId};
use serde_json::json;

use super::rig::{Mishap, Rig, osd_id, store_of};
use crate::map::{ClusterMap, FailureDomain};
use crate::message::{Command, Failure, FromMonitor, ToMonitor};
use crate::monitor::Event;
use crate::state::{StateEvent, WatchId};

fn code<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    result.unwrap_err().code
}

fn set(setting: &str, value: Option<&str>) -> Command {
    Command::ConfigSet { setting: setting.into(), value: value.map(str::to_string) }
}

#[test]
fn a_setting_is_checked_kept_and_put_back_to_its_default() {
    let mut rig = Rig::new();
    let row = rig.command(set("nearly_full_percent", Some("70%"))).unwrap();
    assert_eq!((&row["value"], &row["default"]), (&json!(70), &json!(85)));
    assert_eq!((&row["min"], &row["max"]), (&json!(1), &json!(99)));
    let error = rig.command(set("nearly_full_percent", Some("100"))).unwrap_err();
    assert_eq!(error.code, "invalid");
    assert!(error.message.contains("from 1 to 99 percent"), "{}", error.message);
    assert_eq!(code(rig.command(set("colour", Some("1")))), "not_found");
    rig.restart();
    rig.tick();
    let get = Command::ConfigGet { setting: "nearly_full_percent".into() };
    assert_eq!(rig.command(get.clone()).unwrap(), row);
    let key = Command::StateGet { key: "config/nearly_full_percent".into() };
    assert_eq!(rig.command(key.clone()).unwrap()["value"]["value"], 70);
    assert_eq!(rig.command(set("nearly_full_percent", None)).unwrap()["value"], 85);
    assert_eq!(rig.command(get).unwrap()["value"], 85);
    assert_eq!(code(rig.command(key)), "not_found");
    assert_eq!(rig.command(set("nearly_full_percent", None)).unwrap()["value"], 85);
}

#[test]
fn a_setting_is_in_force_at_once() {
    let mut rig = Rig::with_pool(1, 8);
    rig.report(1, |report| report.used_bytes = report.size_bytes / 2);
    assert!(!rig.checks().contains(&"osd_nearly_full".to_string()));
    rig.command(set("nearly_full_percent", Some("40"))).unwrap();
    assert!(rig.checks().contains(&"osd_nearly_full".to_string()));
    // OSDs, including those that join later, receive only the settings that they use.
    rig.command(set("osd_report_ms", Some("250ms"))).unwrap();
    let told = crate::settings::Changed::from([("osd_report_ms".to_string(), 250)]);
    assert_eq!(rig.osds[&osd_id(1)].settings, told);
    rig.add_osd(2);
    assert_eq!(rig.osds[&osd_id(2)].settings, told);
    rig.command(set("osd_report_ms", None)).unwrap();
    assert!(rig.osds.values().all(|osd| osd.settings.is_empty()));
    // The new timeout also applies to a session that is already disconnected.
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    rig.open_session(client, "v").unwrap().unwrap();
    rig.break_connection(client);
    rig.command(set("session_timeout_ms", Some("60s"))).unwrap();
    rig.advance(Duration::from_secs(30));
    assert_eq!(code(rig.remove_volume("v")), "busy");
    rig.command(set("session_timeout_ms", Some("20s"))).unwrap();
    rig.remove_volume("v").unwrap();
}

#[test]
fn the_tree_shows_hosts_and_their_osds() {
    let mut rig = Rig::with_pool(3, 8);
    rig.command(Command::OsdCreate { store: store_of(9) }).unwrap();
    rig.kill_osd(2);
    let tree = rig.command(Command::OsdTree).unwrap();
    let rows = tree.as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "(unknown)", "osd.4", "h", "osd.1", "osd.2", "osd.3"]);
    assert_eq!((&rows[3]["osds"], &rows[3]["osds_up"]), (&json!(3), &json!(2)));
    let size: u64 = 10 << 30;
    assert_eq!(
        (&rows[3]["weight_bytes"], &rows[4]["weight_bytes"]),
        (&json!(3 * size), &json!(size))
    );
    assert_eq!(rows[0]["pgs"], 8);
    assert_eq!((&rows[5]["up"], &rows[5]["in"]), (&json!(false), &json!(true)));
    assert_eq!(rows[4]["used_bytes"], 1 << 20);
}

fn put(key: &str, value: &serde_json::Value) -> Command {
    Command::StatePut { key: key.into(), value: value.to_string(), force: false }
}

fn put_by_force(key: &str, value: &serde_json::Value) -> Command {
    Command::StatePut { key: key.into(), value: value.to_string(), force: true }
}

fn value(rig: &mut Rig, key: &str) -> serde_json::Value {
    rig.command(Command::StateGet { key: key.into() }).unwrap()["value"].clone()
}

/// Returns the messages of the checks with this code in `status`.
fn messages(rig: &mut Rig, code: &str) -> Vec<String> {
    let status = rig.status();
    let checks = status["checks"].as_array().unwrap().clone();
    let checks = checks.iter().filter(|check| check["code"] == code);
    checks.map(|check| check["message"].as_str().unwrap().to_string()).collect()
}

#[test]
fn pools_osds_and_settings_may_be_put_and_are_in_force_at_once() {
    let mut rig = Rig::with_pool(2, 8);
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    let setting = json!({ "name": "nearly_full_percent", "value": 60 });
    rig.command(put("config/nearly_full_percent", &setting)).unwrap();
    let get = Command::ConfigGet { setting: "nearly_full_percent".into() };
    assert_eq!(rig.command(get).unwrap()["value"], 60);
    let mut pool = value(&mut rig, "pool/1");
    let revision = pool["revision"].as_u64().unwrap();
    (pool["name"], pool["failure_domain"]) = (json!("q"), json!("osd"));
    pool["colour"] = json!("red");
    rig.command(put_by_force("pool/1", &pool)).unwrap();
    rig.read_map(client, &mut map).unwrap();
    let known = map.pools.values().next().unwrap();
    assert_eq!((&known.pool.name[..], known.pool.failure_domain), ("q", FailureDomain::Osd));
    assert_eq!(known.revision.get(), revision + 1);
    assert_eq!(value(&mut rig, "pool/1")["colour"], "red");
    let mut osd = value(&mut rig, "osd/2");
    osd["in"] = json!(false);
    rig.command(put("osd/2", &osd)).unwrap();
    rig.read_map(client, &mut map).unwrap();
    assert!(!map.osds[&osd_id(2)].in_cluster);
    rig.make_pool("new", 8).unwrap();
    rig.read_map(client, &mut map).unwrap();
    let new = map.pools.values().nth(1).unwrap();
    assert!(new.pgs.iter().all(|entry| entry.primary_osd() == Some(osd_id(1))), "osd.2 is not in");
}

#[test]
fn a_field_that_nothing_reads_is_refused_by_put_unless_it_is_there_or_forced() {
    let mut rig = Rig::with_pool(2, 8);
    for (key, typo) in [("pool/1", "min_sise"), ("osd/2", "inn")] {
        let mut value = value(&mut rig, key);
        value[typo] = json!(1);
        let refused = rig.command(put(key, &value)).unwrap_err();
        assert_eq!(refused.code, "unknown_field");
        assert!(refused.message.contains(typo), "{refused:?}");
        rig.command(put_by_force(key, &value)).unwrap();
        // It is there now, as if a newer version had written it: a copy of the value can be edited.
        value = self::value(&mut rig, key);
        assert_eq!(value[typo], 1);
        rig.command(put(key, &value)).unwrap();
    }
    let setting = json!({ "name": "nearly_full_percent", "value": 60, "unit": "percent" });
    let refused = rig.command(put("config/nearly_full_percent", &setting)).unwrap_err();
    assert!(refused.message.contains("unit"), "{refused:?}");
}

#[test]
fn what_people_must_not_write_is_refused_by_put() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    rig.open_session(client, "v").unwrap().unwrap();
    let keys = [
        "cluster",
        "leader",
        "pg/1/0",
        "fence/1",
        "image/1",
        "index/image/v",
        "session/1",
        "task/1",
        "counter/image",
    ];
    for key in keys {
        assert_eq!(code(rig.command(put(key, &json!({})))), "protected", "{key}");
    }
    assert_eq!(code(rig.command(put("other/1", &json!({})))), "not_found");
    let pool = value(&mut rig, "pool/1");
    let osd = value(&mut rig, "osd/1");
    let changed = |record: &serde_json::Value, field: &str, value: serde_json::Value| {
        let mut record = record.clone();
        record[field] = value;
        record
    };
    let wrong = [
        ("config/nearly_full_percent", json!({ "name": "nearly_full_percent", "value": 0 })),
        ("config/nearly_full_percent", json!({ "name": "osd_report_ms", "value": 1000 })),
        ("config/colour", json!({ "name": "colour", "value": 1 })),
        ("config/nearly_full_percent", json!(60)),
        ("config/nearly_full_percent", json!({ "name": "nearly_full_percent", "value": "much" })),
        ("config/nearly_full_percent", json!({ "name": "nearly_full_percent", "value": -1 })),
        ("config/nearly_full_percent", json!({ "name": "nearly_full_percent" })),
        ("osd/1", changed(&osd, "in", json!("yes"))),
        ("osd/1", changed(&osd, "id", json!([]))),
        ("pool/1", changed(&pool, "min_size", json!(1.5))),
        ("pool/1", changed(&pool, "failure_domain", json!("planet"))),
        ("pool/1", changed(&pool, "pg_count", json!(16))),
        ("pool/1", changed(&pool, "scheme", json!("2 copies"))),
        ("pool/1", changed(&pool, "scheme", json!("ec 4"))),
        ("pool/1", changed(&pool, "scheme", json!(true))),
        ("pool/1", changed(&pool, "replicas", json!(2))),
        ("pool/1", changed(&pool, "block_size", json!(65536))),
        ("pool/1", changed(&pool, "min_size", json!(2))),
        ("pool/1", changed(&pool, "name", json!("a/b"))),
        ("pool/1", changed(&pool, "id", json!(2))),
        ("pool/1", changed(&pool, "revision", json!(u64::MAX))),
        ("pool/2", changed(&pool, "id", json!(2))),
        ("osd/1", changed(&osd, "up", json!(false))),
        ("osd/1", changed(&osd, "incarnation", json!(7))),
        ("osd/1", changed(&osd, "store", json!(store_of(2)))),
        ("osd/1", changed(&osd, "revision", json!(u64::MAX))),
        ("osd/1", changed(&osd, "size_bytes", json!(7))),
    ];
    let before = rig.command(Command::StateList { prefix: String::new() }).unwrap();
    for (key, value) in wrong {
        let refused = rig.command(put(key, &value)).unwrap_err();
        assert_eq!(refused.code, "invalid", "{key} {value}");
        // Errors must not contain names of Rust types.
        let types = ["::", "struct", "enum", "variant", "u32", "u64", "Id(", "bool "];
        assert!(!types.iter().any(|name| refused.message.contains(name)), "{}", refused.message);
    }
    assert_eq!(rig.command(Command::StateList { prefix: String::new() }).unwrap(), before);
}

#[test]
fn revisions_that_people_write_are_not_believed() {
    for is_put in [true, false] {
        let mut rig = Rig::with_pool(1, 8);
        let revision = rig.monitor.committed.pool(PoolId::FIRST).unwrap().revision;
        let osd_revision = rig.monitor.committed.osd_revision_max();
        for (key, field, text) in [("pool/1", "name", json!("q")), ("osd/1", "in", json!(false))] {
            let mut record = value(&mut rig, key);
            (record["revision"], record[field]) = (json!(1u64 << 40), text.clone());
            match is_put {
                true => drop(rig.command(put(key, &record)).unwrap()),
                false => rig.hand_writes(key, Some(&record.to_string())),
            }
            assert_eq!(value(&mut rig, key)[field], text, "{key}");
        }
        let now = rig.monitor.committed.pool(PoolId::FIRST).unwrap().revision;
        assert_eq!(now, revision.next());
        assert_eq!(value(&mut rig, "osd/1")["revision"], osd_revision + 1);
    }
}

#[test]
fn a_good_manual_edit_is_in_force_at_once() {
    let mut rig = Rig::with_pool(1, 8);
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    let key = "config/osd_report_ms";
    rig.hand_writes(key, Some(r#"{"name":"osd_report_ms","value":300}"#));
    assert_eq!(rig.osds[&osd_id(1)].settings["osd_report_ms"], 300);
    rig.hand_writes(key, None);
    assert!(rig.osds[&osd_id(1)].settings.is_empty());
    let mut pool = value(&mut rig, "pool/1");
    pool["name"] = json!("renamed");
    rig.hand_writes("pool/1", Some(&pool.to_string()));
    rig.read_map(client, &mut map).unwrap();
    assert_eq!(map.pools.values().next().unwrap().pool.name, "renamed");
    let stored = rig.stored("pool/1").unwrap().value;
    assert_eq!(stored, value(&mut rig, "pool/1").to_string(), "with its new revision");
    rig.hand_writes("notes/mine", Some("anything"));
    assert_eq!(value(&mut rig, "notes/mine"), "anything");
    rig.hand_writes("notes/mine", None);
    assert_eq!(rig.stored("notes/mine"), None);
    assert_eq!(messages(&mut rig, "state_edit_undone"), [""; 0]);
    rig.make_volume("v", GIB).unwrap();
}

#[test]
fn a_bad_manual_edit_is_undone_and_named() {
    let mut rig = Rig::with_pool(1, 8);
    rig.command(set("nearly_full_percent", Some("70"))).unwrap();
    let key = "config/nearly_full_percent";
    let good = rig.stored(key).unwrap().value;
    for bad in ["rubbish", r#"{"name":"nearly_full_percent","value":700}"#] {
        rig.hand_writes(key, Some(bad));
        let get = Command::ConfigGet { setting: "nearly_full_percent".into() };
        assert_eq!(rig.command(get).unwrap()["value"], 70);
        assert_eq!(rig.stored(key).unwrap().value, good);
    }
    let named = messages(&mut rig, "state_edit_undone");
    assert_eq!(named.len(), 1);
    assert!(named[0].contains(key) && named[0].contains("from 1 to 99 percent"), "{named:?}");
    rig.restart();
    rig.tick();
    assert_eq!(rig.stored(key).unwrap().value, good, "a restart changes nothing");
    rig.hand_writes("pool/1", Some("{}"));
    assert_eq!(messages(&mut rig, "state_edit_undone").len(), 1);
    // A valid value ends the warning, whoever writes it.
    let pool = value(&mut rig, "pool/1");
    rig.command(put("pool/1", &pool)).unwrap();
    assert_eq!(messages(&mut rig, "state_edit_undone"), [""; 0]);
    rig.hand_writes("pool/1", None);
    assert_eq!(value(&mut rig, "pool/1")["name"], "p");
    assert_eq!(messages(&mut rig, "state_edit_undone").len(), 1);
    rig.advance(Duration::from_secs(25 * 3600));
    assert_eq!(messages(&mut rig, "state_edit_undone"), [""; 0]);
}

#[test]
fn a_bad_setting_written_while_no_monitor_ran_is_replaced_by_the_default() {
    let mut rig = Rig::with_pool(1, 8);
    rig.hand_writes_unseen("config/nearly_full_percent", Some("rubbish"));
    rig.hand_writes_unseen("config/of_tomorrow", Some(r#"{"name":"of_tomorrow","value":1}"#));
    rig.restart();
    rig.tick();
    let get = Command::ConfigGet { setting: "nearly_full_percent".into() };
    assert_eq!(rig.command(get).unwrap()["value"], 85);
    assert_eq!(rig.stored("config/nearly_full_percent"), None);
    assert_eq!(messages(&mut rig, "state_edit_undone").len(), 1);
    assert_eq!(messages(&mut rig, "setting_unknown").len(), 1);
    assert!(rig.stored("config/of_tomorrow").is_some(), "it may be of a newer program");
}

#[test]
fn the_host_that_people_name_counts_in_place_of_the_one_an_osd_says() {
    let mut rig = Rig::with_copies(4, 2, 1, 16);
    let to_hosts = Command::PoolSet {
        pool: "p".into(),
        rename: None,
        scheme: None,
        min_size: None,
        failure_domain: Some(FailureDomain::Host),
    };
    let refused = rig.command(to_hosts.clone()).unwrap_err();
    assert_eq!(refused.code, "cannot_place", "all say to be on one host");
    let mut placed = Vec::new();
    for number in 3..=4 {
        let key = format!("osd/{number}");
        let mut osd = value(&mut rig, &key);
        osd["tree"] = json!({ "host": "other", "rack": "r1" });
        // One OSD is edited by a command, the other by hand.
        match number {
            3 => drop(rig.command(put(&key, &osd)).unwrap()),
            _ => rig.hand_writes(&key, Some(&osd.to_string())),
        }
        placed.push(value(&mut rig, &key)["tree"].clone());
    }
    assert_eq!(messages(&mut rig, "state_edit_undone"), [""; 0]);
    rig.command(to_hosts).unwrap();
    rig.fill();
    let is_apart =
        |targets: &Vec<base::OsdId>| targets.iter().filter(|osd| osd.get() > 2).count() == 1;
    assert!(rig.targets().iter().all(is_apart), "{:?}", rig.targets());
    let hosts = |rig: &mut Rig| {
        let rows = rig.command(Command::OsdTree).unwrap();
        let rows = rows.as_array().unwrap().clone();
        let hosts = rows.into_iter().filter(|row| row["type"] == "host");
        hosts.map(|row| (row["name"].as_str().unwrap().to_string(), row["osds"].clone())).collect()
    };
    let before: Vec<_> = hosts(&mut rig);
    assert_eq!(before.len(), 2);
    assert!(before.contains(&("other".to_string(), json!(2))), "{before:?}");
    // The OSD keeps its location when it restarts, and when an invalid location is written.
    rig.kill_osd(4);
    rig.boot(4);
    for bad in [json!({ "host": "" }), json!({ "host": 5 }), json!({}), json!("other")] {
        let mut osd = value(&mut rig, "osd/4");
        osd["tree"] = bad;
        assert_eq!(rig.command(put("osd/4", &osd)).unwrap_err().code, "invalid");
        rig.hand_writes("osd/4", Some(&osd.to_string()));
        assert_eq!(messages(&mut rig, "state_edit_undone").len(), 1, "{}", osd["tree"]);
        assert_eq!(value(&mut rig, "osd/4")["tree"], placed[1]);
    }
    assert_eq!(hosts(&mut rig), before);
    // Without an edited location, the host reported by the OSD counts again.
    for number in 3..=4 {
        let key = format!("osd/{number}");
        let mut osd = value(&mut rig, &key);
        osd.as_object_mut().unwrap().remove("tree");
        rig.hand_writes(&key, Some(&osd.to_string()));
    }
    assert_eq!(messages(&mut rig, "state_edit_undone"), [""; 0], "it was written well");
    assert_eq!(hosts(&mut rig).len(), 1);
    assert_eq!(messages(&mut rig, "pool_unplaced").len(), 1);
}

/// Runs `state undo`; returns the keys that it writes back.
fn undo(rig: &mut Rig) -> Vec<String> {
    let refused = rig.command(Command::StateUndo { accepted: false }).unwrap_err();
    assert_eq!(refused.code, "not_accepted", "{refused:?}");
    let answer = rig.command(Command::StateUndo { accepted: true }).unwrap();
    rig.tick();
    let keys = answer["written"].as_array().unwrap().iter();
    keys.map(|key| key.as_str().unwrap().to_string()).collect()
}

/// Makes all OSDs reconnect, as after each restart of a monitor.
fn come_again(rig: &mut Rig) {
    for number in rig.osds.keys().map(|osd| osd.get()).collect::<Vec<_>>() {
        rig.boot(number);
        rig.report(number, |_| {});
    }
}

const GUARDED: [&str; 7] =
    ["cluster", "pg/1/0", "image/1", "index/image/v", "lock/1", "session/1", "counter/image"];

fn with_lock() -> Rig {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    rig.ask_lock(client, "v", false);
    rig
}

#[test]
fn a_manual_edit_of_a_guarded_key_stops_changes_until_it_is_undone() {
    for key in GUARDED.into_iter().chain(["image/4000"]) {
        for bad in [Some(r#"{"name":"image","last":0}"#), Some("rubbish"), None] {
            let mut rig = with_lock();
            let good = rig.stored(key).map(|entry| entry.value);
            if good.is_none() && bad.is_none() {
                continue;
            }
            rig.hand_writes(key, bad);
            assert_eq!(rig.stored(key).map(|entry| entry.value).as_deref(), bad, "{key}");
            let named = messages(&mut rig, "state_damaged");
            assert!(named[0].contains(&format!("{key} (edited by hand")), "{named:?}");
            assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_damaged");
            let recover = Command::StateRecover { they_are_lost: Vec::new(), accepted: true };
            assert_eq!(rig.command(recover).unwrap_err().code, "invalid");
            // I/O continues; no entry changes, and no session ends.
            let before = rig.entries();
            rig.kill_osd(2);
            rig.advance(Duration::from_secs(30));
            assert_eq!(rig.entries(), before, "{key}");
            assert_eq!(rig.monitor.committed.sessions().count(), 1);
            let map = || rig.osds[&super::rig::osd_id(1)].map.pools.values();
            assert!(map().all(|pool| pool.fences.is_empty()));
            assert_eq!(undo(&mut rig), [key]);
            assert_eq!(rig.stored(key).map(|entry| entry.value), good, "{key} {bad:?}");
            assert_eq!(rig.stored("recovery"), None);
            come_again(&mut rig);
            assert_eq!(messages(&mut rig, "state_damaged"), [""; 0]);
            assert_eq!(rig.make_volume("w", GIB).unwrap()["id"], 2, "{key}");
        }
    }
    let mut rig = with_lock();
    let refused = rig.command(Command::StateUndo { accepted: true }).unwrap_err();
    assert_eq!(refused.code, "invalid", "nothing was changed");
}

#[test]
fn a_guarded_key_that_its_editor_puts_back_is_as_if_nothing_had_been() {
    for key in GUARDED {
        let mut rig = with_lock();
        let good = rig.stored(key).unwrap().value;
        rig.hand_writes(key, Some(&good));
        assert_eq!(messages(&mut rig, "state_damaged"), [""; 0], "{key}: the same value");
        rig.hand_writes("counter/session", None);
        rig.hand_writes(key, None);
        // A valid setting still takes effect at once, and an invalid setting is undone.
        rig.hand_writes("config/osd_grace_ms", Some(r#"{"name":"osd_grace_ms","value":500}"#));
        rig.hand_writes("config/lease_ms", Some("rubbish"));
        assert_eq!(rig.stored("config/lease_ms"), None);
        rig.hand_writes(key, Some(&good));
        assert_eq!(messages(&mut rig, "state_damaged").len(), 1, "{key}: the other one");
        rig.hand_writes("counter/session", Some(r#"{"name":"session","last":1}"#));
        rig.tick();
        come_again(&mut rig);
        assert_eq!(messages(&mut rig, "state_damaged"), [""; 0], "{key}");
        assert_eq!(rig.stored("recovery"), None);
        assert_eq!(rig.make_volume("w", GIB).unwrap()["id"], 2, "{key}");
        let get = Command::ConfigGet { setting: "osd_grace_ms".into() };
        assert_eq!(rig.command(get).unwrap()["value"], 500);
    }
}

#[test]
fn the_next_monitor_does_not_believe_a_manual_edit() {
    for key in GUARDED.into_iter().filter(|key| *key != "cluster") {
        // The leader's process keeps running, or ends before or after the leader has recorded the edit.
        for mishap in [Mishap::None, Mishap::KillBefore(1), Mishap::KillAfter(1)] {
            let mut rig = with_lock();
            let older = rig.stored(key).unwrap().value;
            if key != "cluster" {
                rig.make_volume("w", GIB).unwrap();
            }
            (rig.transactions, rig.mishap) = (0, mishap);
            rig.hand_writes(key, Some(&older.replace('1', "2")));
            rig.mishap = Mishap::None;
            rig.restart();
            rig.tick();
            let named = messages(&mut rig, "state_damaged");
            assert!(named[0].contains(&format!("{key} (")), "{key} {mishap:?}: {named:?}");
            let refused = rig.command(Command::StateUndo { accepted: true }).unwrap_err();
            assert_eq!(refused.code, "invalid", "it does not know what was there");
            come_again(&mut rig);
            let recover = Command::StateRecover { they_are_lost: Vec::new(), accepted: true };
            rig.command(recover).unwrap();
            come_again(&mut rig);
            assert_eq!(rig.stored("recovery"), None);
            assert_eq!(messages(&mut rig, "state_damaged"), [""; 0], "{key} {mishap:?}");
            assert_eq!(rig.monitor.committed.sessions().count(), 1, "{key} {mishap:?}");
        }
    }
}

#[test]
fn a_manual_edit_of_the_mark_of_a_restore_changes_nothing() {
    // A `recovery` record without a cause is removed; an edited one that lists guarded keys is restored.
    let mut rig = with_lock();
    rig.hand_writes("recovery", Some(r#"{"monitor":1}"#));
    assert_eq!(rig.stored("recovery"), None);
    assert_eq!(messages(&mut rig, "state_damaged"), [""; 0]);
    rig.hand_writes("image/1", None);
    for bad in [None, Some("rubbish"), Some(r#"{"monitor":1}"#)] {
        rig.hand_writes("recovery", bad);
        assert!(rig.stored("recovery").unwrap().value.contains("image/1"), "{bad:?}");
        assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_damaged");
    }
    assert_eq!(undo(&mut rig), ["image/1"]);
    assert_eq!(rig.stored("recovery"), None);
    // The `recovery` record of an interrupted restore remains, even if edits are undone.
    let text = r#"{"monitor":1}"#;
    rig.hand_writes_unseen("recovery", Some(text));
    rig.restart();
    rig.tick();
    for key in ["image/1", "recovery"] {
        rig.hand_writes(key, None);
        assert_eq!(rig.stored("recovery").unwrap().value, text);
    }
    assert_eq!(undo(&mut rig), ["image/1"]);
    assert_eq!(rig.stored("recovery").unwrap().value, text);
    assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_older");
}

#[test]
fn an_undo_is_whole_wherever_the_monitor_ends() {
    for mishap in (1..=3).flat_map(Mishap::all_of) {
        let mut rig = with_lock();
        let good = rig.stored("pg/1/0").unwrap().value;
        rig.hand_writes("pg/1/0", None);
        (rig.transactions, rig.mishap) = (0, mishap);
        let client = rig.client();
        rig.command_over(client, Command::StateUndo { accepted: true });
        rig.mishap = Mishap::None;
        rig.tick();
        rig.advance(Duration::from_secs(1));
        come_again(&mut rig);
        if !messages(&mut rig, "state_damaged").is_empty() {
            let undo = rig.command(Command::StateUndo { accepted: true });
            if undo.is_err() {
                let recover = Command::StateRecover { they_are_lost: Vec::new(), accepted: true };
                rig.command(recover).unwrap();
            }
            rig.tick();
            come_again(&mut rig);
        }
        assert_eq!(messages(&mut rig, "state_damaged"), [""; 0], "{mishap:?}");
        assert_eq!(rig.stored("recovery"), None);
        assert!(rig.stored("pg/1/0").unwrap().value.len() > good.len() / 2);
        rig.make_volume("w", GIB).unwrap();
    }
}

#[test]
fn a_manual_edit_of_the_number_of_transactions_is_undone_and_named() {
    for bad in [Some("{}"), Some(r#"{"last":1,"reigns":[]}"#), None] {
        // The same holds while a transaction is in flight, whatever its outcome.
        for mishap in [Mishap::None, Mishap::UnknownHappened(1), Mishap::UnknownLost(1)] {
            let mut rig = Rig::with_pool(2, 8);
            let before = value(&mut rig, "change")["last"].as_u64().unwrap();
            (rig.transactions, rig.mishap) = (0, mishap);
            rig.hand_writes_unseen("config/lease_ms", Some("{}"));
            rig.hand_writes("change", bad);
            assert_eq!(rig.stopped, None);
            rig.make_volume("v", GIB).unwrap();
            let stored = rig.stored("change").unwrap().value;
            assert_eq!(stored, value(&mut rig, "change").to_string(), "{bad:?} {mishap:?}");
            let after = value(&mut rig, "change")["last"].as_u64().unwrap();
            assert!(after >= before + 2, "counted on from {before}: {after}");
            let named = messages(&mut rig, "state_edit_undone");
            assert_eq!(named.len(), 2, "{named:?}");
            assert!(named.iter().any(|text| text.contains("edit of change was")), "{named:?}");
            rig.hand_writes("change", bad);
            assert_eq!(rig.stored("config/lease_ms"), None);
            rig.restart();
            rig.tick();
            assert_eq!(rig.stopped, None);
            let checks = rig.checks();
            assert!(!checks.contains(&"state_older".to_string()), "{checks:?}");
        }
    }
}

#[test]
fn a_number_of_transactions_damaged_while_no_monitor_ran_is_as_one_that_is_gone() {
    for bad in [Some("{}"), None] {
        let mut rig = Rig::with_pool(2, 8);
        rig.make_volume("v", GIB).unwrap();
        rig.hand_writes_unseen("change", bad);
        rig.restart();
        rig.tick();
        for number in [1, 2] {
            rig.boot(number);
        }
        assert_eq!(rig.stopped, None);
        assert!(rig.checks().contains(&"state_older".to_string()), "{:?}", rig.checks());
        assert_eq!(messages(&mut rig, "state_edit_undone").len(), usize::from(bad.is_some()));
    }
}

#[test]
fn what_was_put_and_removed_is_no_edit_when_it_is_told_late() {
    for mishap in [Mishap::None].into_iter().chain((1..6).map(Mishap::UnknownHappened)) {
        let mut rig = Rig::with_pool(1, 8);
        (rig.transactions, rig.mishap) = (0, mishap);
        rig.tell_slowly();
        let key = "config/nearly_full_percent";
        rig.command(set("nearly_full_percent", Some("70"))).unwrap();
        rig.command(set("nearly_full_percent", None)).unwrap();
        rig.make_volume("v", GIB).unwrap();
        rig.remove_volume("v").unwrap();
        rig.hand_writes("config/lease_ms", Some("rubbish"));
        rig.tell_all();
        assert_eq!(rig.stored(key), None, "it stays removed: {mishap:?}");
        let named = messages(&mut rig, "state_edit_undone");
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(named[0].contains("config/lease_ms"), "{named:?}");
    }
}

#[test]
fn a_manual_edit_of_the_leaders_key_only_makes_the_monitor_read_anew() {
    let mut rig = Rig::with_pool(1, 8);
    for bad in [Some("rubbish"), None] {
        rig.hand_writes("leader", bad);
        assert_eq!(rig.stopped, None);
        assert_eq!(value(&mut rig, "leader")["pid"], 100);
        let named = messages(&mut rig, "state_edit_undone");
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(named[0].contains("edit of leader was"), "{named:?}");
        rig.command(set("nearly_full_percent", Some("50"))).unwrap();
    }
    let mut other = value(&mut rig, "leader");
    other["monitor"] = json!(2);
    rig.hand_writes("leader", Some(&other.to_string()));
    assert!(rig.stopped.is_some(), "another monitor leads");
}

#[test]
fn an_edit_under_a_transaction_on_its_way_is_judged_all_the_same() {
    let mishaps = [Mishap::UnknownHappened(1), Mishap::UnknownLost(1), Mishap::None];
    for mishap in mishaps {
        for (bad, wanted) in
            [(Some("rubbish"), 85), (Some(r#"{"name":"nearly_full_percent","value":50}"#), 50)]
        {
            let mut rig = Rig::with_pool(1, 8);
            (rig.transactions, rig.mishap) = (0, mishap);
            // The manual edit is made before the command, but the monitor has not seen it yet.
            rig.hand_writes_unseen("config/nearly_full_percent", bad);
            rig.hand_writes_unseen("counter/image", Some("7"));
            assert_eq!(rig.make_volume("v", GIB).unwrap_err().code, "state_damaged");
            assert_eq!(undo(&mut rig), ["counter/image"]);
            come_again(&mut rig);
            rig.make_volume("v", GIB).unwrap();
            let get = Command::ConfigGet { setting: "nearly_full_percent".into() };
            assert_eq!(rig.command(get).unwrap()["value"], wanted, "{mishap:?} {bad:?}");
            assert_eq!(value(&mut rig, "counter/image")["last"], 1);
            let stored = rig.stored("counter/image").unwrap().value;
            assert_eq!(stored, value(&mut rig, "counter/image").to_string());
            assert_eq!(rig.command(Command::VolumeList).unwrap().as_array().unwrap().len(), 1);
        }
    }
}

#[test]
fn an_edit_in_a_compacted_past_is_found_by_reading_anew() {
    let mut rig = Rig::with_pool(1, 8);
    // The store compacts a change before the watch has reported it.
    rig.hand_writes_unseen("pg/1/0", Some("rubbish"));
    let lost = StateEvent::WatchLost {
        watch: WatchId(1),
        compacted: rig.stored("pg/1/0").unwrap().revision,
    };
    rig.forget_told();
    rig.event(Event::State(lost));
    assert_eq!(undo(&mut rig), ["pg/1/0"]);
    rig.hand_writes("pg/1/0", Some("again"));
    assert_eq!(undo(&mut rig), ["pg/1/0"], "it watches anew");
}

#[test]
fn watchers_are_told_each_change() {
    let mut rig = Rig::with_pool(1, 8);
    let client = rig.client();
    rig.say(client, &ToMonitor::WatchState { prefix: "config/".into() });
    rig.command(set("nearly_full_percent", Some("50"))).unwrap();
    rig.make_volume("v", GIB).unwrap();
    rig.hand_writes("config/nearly_full_percent", None);
    let told: Vec<FromMonitor> = rig.inbox.remove(&client).unwrap().into();
    let revision = match &told[1] {
        FromMonitor::StateChanged { revision, .. } => *revision,
        other => panic!("{other:?}"),
    };
    let changed = |revision, value| {
        let key = "config/nearly_full_percent".to_string();
        FromMonitor::StateChanged { revision, key, value }
    };
    let value = json!({ "name": "nearly_full_percent", "value": 50 });
    let expected =
        [FromMonitor::StateWatched, changed(revision, Some(value)), changed(revision + 2, None)];
    assert_eq!(told, expected);
}

fn remove_pool(pool: &str) -> Command {
    Command::PoolRemove { pool: pool.into(), accepted: false }
}

#[test]
fn pool_set_changes_only_what_may_change() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_pool("other", 8).unwrap();
    let set = |rename: Option<&str>, min_size, failure_domain| Command::PoolSet {
        pool: "p".into(),
        rename: rename.map(str::to_string),
        scheme: None,
        min_size,
        failure_domain,
    };
    let row = rig.command(set(None, Some(1), Some(FailureDomain::Osd))).unwrap();
    assert_eq!(row["failure_domain"], "osd");
    for wrong in [
        set(None, Some(2), None),
        set(None, Some(0), None),
        set(Some("other"), None, None),
        set(Some("a/b"), None, None),
    ] {
        assert_eq!(code(rig.command(wrong)), "invalid");
    }
    assert_eq!(rig.command(set(Some("q"), None, None)).unwrap()["name"], "q");
    assert_eq!(code(rig.command(set(Some("q"), None, None))), "not_found");
    assert_eq!(rig.osds[&osd_id(1)].map.pools.values().next().unwrap().pool.name, "q");
}

#[test]
fn a_pool_goes_when_it_has_no_volumes_and_its_name_is_free_at_once() {
    let mut rig = Rig::with_pool(2, 512);
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    for name in ["a", "b", "c", "d"] {
        rig.make_volume(name, GIB).unwrap();
    }
    let error = rig.command(remove_pool("p")).unwrap_err();
    assert_eq!(error.code, "busy");
    assert_eq!(error.message, "pool p has 4 volumes: a, b, c, ...");
    assert_eq!(code(rig.command(remove_pool("x"))), "not_found");
    // One OSD is down, and the deletion of a volume's blocks waits for it.
    rig.kill_osd(2);
    for name in ["a", "b", "c", "d"] {
        rig.remove_volume(name).unwrap();
    }
    assert_eq!(rig.command(remove_pool("p")).unwrap()["id"], 1);
    rig.read_map(client, &mut map).unwrap();
    assert!(map.pools.is_empty());
    assert_eq!(rig.osds[&osd_id(1)].cleared.len(), 1);
    let waits = rig.tasks();
    let row = waits.iter().find(|row| row["kind"] == "remove_pool").unwrap();
    assert_eq!(row["osds_left"], json!([2]));
    assert_eq!(messages(&mut rig, "task_waits").len(), 1);
    let status = rig.command(Command::Status).unwrap();
    let checks = status["checks"].as_array().unwrap();
    let waits = checks.iter().find(|check| check["code"] == "task_waits").unwrap();
    let hint = waits["hint"].as_str().unwrap();
    assert!(
        hint.starts_with("deletion continues automatically when osd.2 is up: start it"),
        "{hint}"
    );
    assert!(hint.ends_with("`ashlar osd out 2`, then `ashlar osd rm 2`"), "{hint}");
    let made = rig.make_pool("p", 8).unwrap();
    assert_eq!(made["id"], 2, "an id is never given again");
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
    assert_eq!(rig.osds[&osd_id(1)].cleared.len(), 1, "it has said so before");
    rig.boot(2);
    assert_eq!(rig.osds[&osd_id(2)].cleared.len(), 1);
    assert_eq!(rig.tasks(), [json!(null); 0]);
    for prefix in ["removed_pool/", "task/", "pool/1", "pg/1/", "fence/1"] {
        let left = rig.command(Command::StateList { prefix: prefix.into() }).unwrap();
        assert_eq!(left, json!([]), "{prefix}");
    }
    assert!(!rig.checks().contains(&"state_older".to_string()));
}

#[test]
fn an_osd_that_says_again_that_a_pool_is_cleared_makes_no_more_work() {
    let mut rig = Rig::with_pool(2, 8);
    rig.osds.get_mut(&osd_id(1)).unwrap().is_silent = true;
    rig.command(remove_pool("p")).unwrap();
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    let cleared = ToMonitor::PoolCleared { pool: base::PoolId::FIRST };
    let before = rig.transactions;
    for _ in 0..20 {
        rig.say(connection, &cleared);
    }
    assert_eq!(rig.transactions, before + 1);
    assert_eq!(rig.tasks(), [json!(null); 0]);
}

#[test]
fn a_pool_has_no_more_pgs_than_the_stores_have_room_for() {
    let mut rig = Rig::new();
    for number in 1..=2 {
        rig.add_osd(number);
        rig.report(number, |report| report.size_bytes = 256 << 20);
    }
    let error = rig.make_replicated("p", 2, Some(1), 4096).unwrap_err();
    assert_eq!(error.code, "invalid");
    let parts = ["osd.1", "4096 PGs", "256 MiB", "3495"];
    assert!(parts.iter().all(|part| error.message.contains(part)), "{}", error.message);
    rig.make_replicated("p", 2, Some(1), 2048).unwrap();
    // PGs of other pools count as well.
    assert!(rig.make_replicated("q", 2, Some(1), 2048).unwrap_err().message.contains("4096 PGs"));
    rig.make_replicated("q", 2, Some(1), 1024).unwrap();
}

#[test]
fn an_osd_that_missed_a_removal_is_told_and_the_store_is_not_taken_for_old() {
    let mut rig = Rig::with_pool(2, 8);
    let connection = rig.osds[&osd_id(2)].connection.unwrap();
    rig.break_connection(connection);
    rig.command(remove_pool("p")).unwrap();
    assert_eq!(rig.osds[&osd_id(2)].map.pools.len(), 1, "it does not know yet");
    rig.boot(2);
    assert!(rig.osds[&osd_id(2)].map.pools.is_empty());
    assert!(!rig.checks().contains(&"state_older".to_string()));
    assert_eq!(rig.tasks(), [json!(null); 0]);
    // The same holds for a client that has the pool in its map, and for a client with a pool id that has not
    // been issued.
    let client = rig.client();
    let have = [(base::PoolId::FIRST, base::MapRevision::new(1))].into();
    rig.say(client, &ToMonitor::Subscribe { have });
    let told = rig.inbox[&client].iter().any(|message| {
        matches!(message, FromMonitor::Map(delta) if delta.removed_pools == [base::PoolId::FIRST])
    });
    assert!(told);
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    let have = [(base::PoolId::new(9).unwrap(), base::MapRevision::new(1))].into();
    rig.say(connection, &ToMonitor::Subscribe { have });
    assert!(rig.checks().contains(&"state_older".to_string()));
}

#[test]
fn a_removal_of_a_pool_goes_on_wherever_the_monitor_ends() {
    for count in 1..=8 {
        for mishap in Mishap::all_of(count) {
            let mut rig = Rig::with_pool(2, 512);
            rig.make_volume("v", GIB).unwrap();
            rig.kill_osd(2);
            rig.remove_volume("v").unwrap();
            (rig.transactions, rig.mishap) = (0, mishap);
            let removed = rig.command(remove_pool("p"));
            assert!(removed.is_ok() || removed.unwrap_err().code == "not_found", "{mishap:?}");
            rig.boot(2);
            rig.advance(Duration::from_secs(10));
            assert_eq!(rig.stopped, None, "{mishap:?}");
            assert_eq!(rig.tasks(), [json!(null); 0], "{mishap:?}");
            assert!(rig.osds.values().all(|osd| !osd.cleared.is_empty()), "{mishap:?}");
            assert!(rig.osds.values().all(|osd| osd.map.pools.is_empty()), "{mishap:?}");
            let keys: Vec<String> = rig.store.entries().map(|entry| entry.key.clone()).collect();
            let left = ["pool/", "pg/", "task/", "removed_pool/"];
            assert!(!keys.iter().any(|key| left.iter().any(|prefix| key.starts_with(prefix))));
        }
    }
}

#[test]
fn a_record_that_is_too_long_is_refused_undone_or_named_at_the_start() {
    let mut rig = Rig::with_pool(1, 8);
    let setting = json!({ "name": "osd_report_ms", "value": 300 });
    for key in ["pool/1", "osd/1", "config/osd_report_ms"] {
        let mut long =
            if key.starts_with("config") { setting.clone() } else { value(&mut rig, key) };
        let good = rig.stored(key).map(|entry| entry.value);
        long["notes"] = json!("n".repeat(1_400_000));
        let error = rig.command(put(key, &long)).unwrap_err();
        assert_eq!(error.code, "invalid");
        assert!(error.message.contains("65536"), "{}", error.message);
        rig.hand_writes(key, Some(&long.to_string()));
        assert_eq!(rig.stored(key).map(|entry| entry.value), good, "{key}");
        let mut later = Rig::over(rig.store.clone());
        later.hand_writes_unseen(key, Some(&long.to_string()));
        let mut restarted = Rig::over(later.store.clone());
        assert_eq!(restarted.stopped, None);
        match &messages(&mut restarted, "state_damaged")[..] {
            [why] => assert!(why.contains(key) && !key.starts_with("config"), "{why}"),
            _ => assert_eq!(restarted.stored(key), None, "a setting is undone"),
        }
    }
    assert_eq!(messages(&mut rig, "state_edit_undone").len(), 3);
    // Values up to the maximum size are accepted.
    let mut osd = value(&mut rig, "osd/1");
    osd["notes"] = json!("n".repeat(60_000));
    rig.command(put_by_force("osd/1", &osd)).unwrap();
    rig.kill_osd(1);
    rig.boot(1);
}
