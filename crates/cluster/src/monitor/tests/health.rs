//! What `status` reports about PGs, and its hints.

use std::collections::BTreeSet;

use base::Duration;
use serde_json::json;

use super::rig::{Rig, osd_id};
use crate::message::{Command, FillingProgress, MediaErrors, OlderCopy, OsdReport};

#[test]
fn how_pgs_stand_is_told_with_the_remedy() {
    let mut rig = Rig::with_copies(4, 2, 1, 64);
    let report_all = |rig: &mut Rig, edit: fn(&mut OsdReport)| {
        for number in 1..=4 {
            if rig.osds[&osd_id(number)].connection.is_some() {
                rig.report(number, edit);
            }
        }
    };
    let states = |rig: &mut Rig| {
        let rows = rig.command(Command::PgList { pool: None }).unwrap();
        let states = rows.as_array().unwrap().iter().map(|row| row["state"].to_string());
        states.collect::<BTreeSet<String>>()
    };
    let has = |rig: &mut Rig, code: &str| rig.checks().contains(&code.to_string());
    report_all(&mut rig, |_| {});
    assert_eq!(rig.status()["health"], "ok");
    assert_eq!(states(&mut rig), ["\"active\"".to_string()].into());

    rig.kill_osd(4);
    assert_eq!(rig.check("pg_peering").0, "warn", "new epochs are not served yet");
    assert_eq!(rig.status()["health"], "warn");
    // Meanwhile, the primaries report that their PGs are peering.
    report_all(&mut rig, |report| {
        report.peering = report.active.drain(..).map(|pg| (pg, "asks".into())).collect();
    });
    assert_eq!(rig.status()["health"], "warn");
    assert!(!rig.status().to_string().contains("give-up"));
    for _ in 0..11 {
        rig.advance(Duration::from_secs(1));
        report_all(&mut rig, |report| {
            report.peering = report.active.drain(..).map(|pg| (pg, "asks".into())).collect();
        });
    }
    assert_eq!(rig.check("pg_peering").0, "error", "it does not pass by itself");
    report_all(&mut rig, |_| {});
    let status = rig.status();
    assert_eq!(status["health"], "warn");
    assert_eq!((&status["pgs"]["active"], &status["pgs"]["degraded"]), (&json!(64), &json!(32)));
    assert!(has(&mut rig, "pg_degraded") && has(&mut rig, "osd_down"));
    assert!(has(&mut rig, "pg_last_copy"), "two copies, and one of them is away");
    assert_eq!(status["recovery"]["waits_for"], json!([4]));
    let conditions = status["pools"][0]["conditions"].as_array().unwrap().clone();
    assert_eq!(
        (&conditions[0]["code"], &conditions[0]["count"]),
        (&json!("pg_degraded"), &json!(32))
    );
    assert!(conditions[0]["message"].as_str().unwrap().contains("1 of 2 copies"));
    assert!(conditions[0]["hint"].as_str().unwrap().contains("osd.4 is down"));
    assert_eq!(conditions.len(), 1);
    rig.report(1, |report| (report.full, report.suspect) = (true, true));
    let status = rig.status();
    let conditions = status["pools"][0]["conditions"].as_array().unwrap();
    let codes: Vec<&str> = conditions.iter().map(|it| it["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["pg_suspect", "pg_full", "pg_degraded"], "the worst first");
    rig.report(1, |_| {});

    rig.boot(4);
    let filling = rig.entries().into_iter().find(|entry| !entry.learners.is_empty()).unwrap();
    let (pg, primary) = (filling.pg, filling.primary_osd().unwrap().get());
    let progress = |done, left| FillingProgress {
        pg,
        osd: filling.learners[0].member.osd,
        done_bytes: done,
        left_bytes: left,
    };
    report_all(&mut rig, |_| {});
    rig.report(primary, |report| report.filling = vec![progress(0, Some(100 << 20))]);
    rig.advance(Duration::from_secs(1));
    rig.report(primary, |report| report.filling = vec![progress(20 << 20, Some(80 << 20))]);
    let recovery = rig.status()["recovery"].clone();
    assert_eq!((&recovery["bytes_left"], &recovery["eta_seconds"]), (&json!(80 << 20), &json!(4)));
    assert_eq!(recovery["waits_for"], json!([]));
    // For a backfill that waits for its turn, the time left is unknown.
    let row = rig.command(Command::PgDescribe { pg }).unwrap();
    let waiting = progress(0, None);
    rig.report(primary, |report| report.filling = vec![progress(20 << 20, Some(1)), waiting]);
    assert!(rig.status()["recovery"]["eta_seconds"].is_null());
    assert_eq!(
        (&row["state"], &row["learning"][0]["left_bytes"]),
        (&json!("degraded"), &json!(80 << 20))
    );
    assert_eq!(row["planned"].as_array().unwrap().len(), 2);

    // Both members of a PG go down, one after the other: the PG waits for the one that went down last.
    let waiting = rig.entries().into_iter().find(|entry| entry.learners.is_empty()).unwrap();
    let first = waiting.acting().next().unwrap().osd.get();
    let second = waiting.acting().nth(1).unwrap().osd.get();
    rig.kill_osd(first);
    rig.kill_osd(second);
    rig.boot(first);
    report_all(&mut rig, |_| {});
    let row = rig.command(Command::PgDescribe { pg: waiting.pg }).unwrap();
    assert_eq!(row["state"], "down");
    assert_eq!(row["why"], format!("waiting for osd.{second}, which is down"));
    assert_eq!(rig.status()["recovery"]["waits_for"], json!([second]));
    assert_eq!(rig.status()["health"], "error");
    let (severity, hint) = rig.check("pg_down");
    assert_eq!(severity, "error");
    // The hint contains the path of the last member; giving up data would not help.
    assert!(hint.contains(&format!("`ashlar osd run /osd{second}`")), "{hint}");
    assert!(!hint.contains("give-up"), "{hint}");
    rig.command(Command::OsdOut { osd: osd_id(second) }).unwrap();
    // Giving up the last member helps only if another OSD has a copy that is complete.
    let (_, hint) = rig.check("pg_down");
    assert!(!hint.contains("give-up") && hint.contains("from a backup"), "{hint}");
    let (pg, epoch, unfit) = (waiting.pg, waiting.epoch, None);
    let copy = OlderCopy { pg, epoch, complete: (epoch, 1), unfit };
    rig.report(first, |report| report.older_copies = Some(vec![copy]));
    let (_, hint) = rig.check("pg_down");
    let give_up = format!("`ashlar pg give-up {pg} --they-are-off --older-copy`");
    assert!(hint.contains(&give_up), "{hint}");
    rig.command(Command::OsdIn { osd: osd_id(second) }).unwrap();
    rig.boot(second);
    rig.command(Command::OsdOut { osd: osd_id(1) }).unwrap();
    assert_eq!(rig.check("osd_out").0, "info", "its PGs move");
}

#[test]
fn a_disk_that_fails_again_and_again_is_named_before_data_is_lost() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    let fails = |rig: &mut Rig, read_errors, units| {
        rig.report(2, |report| report.media = MediaErrors { read_errors, units });
        rig.checks().contains(&"osd_media_errors".to_string())
    };
    assert!(!fails(&mut rig, 5, 4));
    assert!(fails(&mut rig, 5, 5));
    assert_eq!(rig.check("osd_media_errors").0, "warn");
    assert!(fails(&mut rig, u64::MAX, u64::MAX), "a sum beyond the largest number");
    rig.kill_osd(2);
    rig.boot(2);
    assert!(!fails(&mut rig, 0, 0), "it counts anew");
}
