//! What operators change: settings, pools, and keys of the state store.

use base::{Duration, GIB};
use serde_json::json;

use super::rig::{Rig, osd_id};
use crate::message::{Command, Failure};

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
    // OSDs are told of theirs, and of no others; also one that joins later.
    rig.command(set("osd_report_ms", Some("250ms"))).unwrap();
    let told = crate::settings::Changed::from([("osd_report_ms".to_string(), 250)]);
    assert_eq!(rig.osds[&osd_id(1)].settings, told);
    rig.add_osd(2);
    assert_eq!(rig.osds[&osd_id(2)].settings, told);
    rig.command(set("osd_report_ms", None)).unwrap();
    assert!(rig.osds.values().all(|osd| osd.settings.is_empty()));
    // A session that is gone already ends by the new span.
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
