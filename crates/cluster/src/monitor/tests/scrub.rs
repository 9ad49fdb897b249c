//! Scrubs: which primaries receive requests, and what is shown of their reports.

use base::{Choice, Duration, ImageId, OsdId, PgId};
use serde_json::json;

use super::rig::Rig;
use crate::message::{Command, FixedRow, FromMonitor, ScrubRow};

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
        fixed: None,
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

#[test]
fn a_decision_about_damage_goes_to_the_primary_that_listed_it_once_it_is_accepted() {
    let mut rig = Rig::with_copies(3, 2, 2, 8);
    let entry = rig.entry(3);
    let (pg, primary) = (entry.pg, entry.primary_osd().unwrap());
    let keep = |osd: OsdId, stripe: u32, accepted: bool| {
        let (image, choice) = (ImageId::FIRST, Choice::Keep(osd));
        Command::PgFix { pg, image, stripe, choice, number: 5, accepted }
    };
    assert_eq!(rig.command(keep(primary, 7, true)).unwrap_err().code, "not_found");
    rig.report(primary.get(), |report| report.scrubs = vec![row(pg, 1)]);
    assert_eq!(rig.command(keep(primary, 8, true)).unwrap_err().code, "not_found");
    let outsider = (1..=3).map(|it| OsdId::new(it).unwrap());
    let outsider = outsider.into_iter().find(|osd| entry.position_of(*osd).is_none()).unwrap();
    assert_eq!(rig.command(keep(outsider, 7, true)).unwrap_err().code, "invalid");
    for choice in [Choice::Rebuild(primary), Choice::RebuildParity] {
        let (image, stripe) = (ImageId::FIRST, 7);
        let command = Command::PgFix { pg, image, stripe, choice, number: 5, accepted: true };
        assert_eq!(rig.command(command).unwrap_err().code, "invalid");
    }
    let told = rig.command(keep(primary, 7, false)).unwrap_err();
    assert_eq!(told.code, "not_accepted");
    assert!(told.message.contains("osd.1: 2 units lost"), "{}", told.message);
    assert!(rig.osds[&primary].fixes.is_empty());
    rig.command(keep(primary, 7, true)).unwrap();
    let [FromMonitor::Fix { epoch, stripe: 7, wrong, .. }] = &rig.osds[&primary].fixes[..] else {
        panic!("{:?}", rig.osds[&primary].fixes)
    };
    assert_eq!((*epoch, wrong.as_str()), (entry.epoch, "osd.1: 2 units lost"));
    let (image, outcome) = (ImageId::FIRST, "done".to_owned());
    let fixed = FixedRow { number: 5, image, stripe: 7, outcome, why: None };
    rig.report(primary.get(), |report| {
        report.scrubs = vec![ScrubRow { fixed: Some(fixed), ..row(pg, 0) }];
    });
    let described = rig.command(Command::PgDescribe { pg }).unwrap();
    assert_eq!(described["scrub"]["fixed"]["outcome"], "done");
}

#[test]
fn a_decision_waits_until_a_pg_has_all_its_members() {
    let mut rig = Rig::with_copies(2, 2, 1, 8);
    let entry = rig.entry(3);
    let (pg, primary) = (entry.pg, entry.primary_osd().unwrap());
    let other = (1..=2).find(|osd| *osd != primary.get()).unwrap();
    rig.kill_osd(other);
    rig.advance(Duration::from_secs(60));
    assert_eq!(rig.entry(3).acting_count(), 1);
    rig.report(primary.get(), |report| report.scrubs = vec![row(pg, 1)]);
    let (image, stripe, choice) = (ImageId::FIRST, 7, Choice::AcceptLoss);
    let command = Command::PgFix { pg, image, stripe, choice, number: 5, accepted: true };
    assert_eq!(rig.command(command).unwrap_err().code, "busy");
}
