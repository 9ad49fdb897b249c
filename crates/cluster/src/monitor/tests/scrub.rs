//! Scrubs: which primaries receive requests, and what is shown of their reports.

use base::{ImageId, OsdId, PgId};
use serde_json::json;

use super::rig::Rig;
use crate::message::{Command, ScrubRow};

fn row(pg: PgId, damaged: u64) -> ScrubRow {
    let wrong = "osd.1: 2 units lost".to_owned();
    let blocks = if damaged > 0 { vec![(ImageId::FIRST, 7, wrong)] } else { Vec::new() };
    let osds = blocks.iter().map(|_| OsdId::new(1).unwrap()).collect();
    ScrubRow {
        pg,
        light_at: 5,
        deep_at: 4,
        running: None,
        percent: 0,
        damaged,
        repaired: 3,
        overdue: false,
        blocks,
        osds,
    }
}

#[test]
fn a_scrub_is_asked_of_the_primaries_of_what_is_meant() {
    let mut rig = Rig::with_copies(3, 2, 2, 8);
    let entries = rig.entries();
    let pg = entries[3].pg;
    let asked = |rig: &mut Rig, command| rig.command(command).map(|answer| answer["asked"].clone());
    assert_eq!(asked(&mut rig, Command::PgScrub { pg, deep: true }), Ok(json!(1)));
    let primary = entries[3].primary_osd().unwrap();
    assert_eq!(rig.osds[&primary].scrubs, [(pg, true)]);
    let osd = OsdId::new(1).unwrap();
    let there = entries.iter().filter(|entry| entry.position_of(osd).is_some()).count();
    assert_eq!(asked(&mut rig, Command::OsdScrub { osd, deep: false }), Ok(json!(there)));
    assert_eq!(rig.osds[&osd].metadata_checks, 0, "only with a deep scrub");
    let answer = rig.command(Command::OsdScrub { osd, deep: true }).unwrap();
    assert_eq!(answer["metadata"], true);
    let checks: Vec<u32> = rig.osds.values().map(|osd| osd.metadata_checks).collect();
    assert_eq!(checks, [1, 0, 0], "only that OSD");
    let none = PgId { number: 99, ..pg };
    let refused = rig.command(Command::PgScrub { pg: none, deep: true }).unwrap_err();
    assert_eq!(refused.code, "not_found");
    let pause = |value: &str| Command::ConfigSet {
        setting: "scrub_paused".into(),
        value: Some(value.into()),
    };
    rig.command(pause("on")).unwrap();
    let refused = rig.command(Command::PgScrub { pg, deep: true }).unwrap_err();
    assert_eq!(refused.code, "paused");
}

#[test]
fn damage_and_late_scrubs_are_told_as_long_as_their_primary_reports_them() {
    let mut rig = Rig::with_copies(3, 2, 2, 8);
    let entry = rig.entry(3);
    let (pg, primary) = (entry.pg, entry.primary_osd().unwrap().get());
    let other = (1..=3).find(|number| *number != primary).unwrap();
    rig.report(other, |report| report.scrubs = vec![row(pg, 9)]);
    assert!(!rig.checks().contains(&"pg_damaged".to_string()), "it does not lead the PG");
    rig.report(primary, |report| report.scrubs = vec![row(pg, 1)]);
    assert_eq!(rig.checks()[0], "pg_damaged");
    let conditions = rig.status()["pools"][0]["conditions"].clone();
    let is_told = |row: &serde_json::Value| row["code"] == "pg_damaged" && row["count"] == 1;
    assert!(conditions.as_array().unwrap().iter().any(is_told), "{conditions}");
    let scrub = rig.status()["scrub"].clone();
    assert_eq!((&scrub["damaged_blocks"], &scrub["repaired_blocks"]), (&json!(1), &json!(3)));
    assert_eq!(scrub["damaged_osds"], json!([{ "osd": 1, "pgs": 1 }]));
    let described = rig.command(Command::PgDescribe { pg }).unwrap();
    assert_eq!(described["scrub"]["blocks"][0]["wrong"], "osd.1: 2 units lost");
    // A report without rows changes nothing.
    rig.report(primary, |_| {});
    assert_eq!(rig.checks()[0], "pg_damaged");
    rig.report(primary, |report| {
        report.scrubs = vec![ScrubRow { overdue: true, ..row(pg, 0) }];
    });
    let checks = rig.checks();
    assert!(!checks.contains(&"pg_damaged".to_string()));
    assert!(checks.contains(&"scrub_overdue".to_string()));
}
