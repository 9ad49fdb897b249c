//! `pg give-up --they-are-off`: the command waits until each acting member is known to be up or down.

use base::{Duration, PgId};
use serde_json::{Value, json};

use super::rig::{Rig, osd_id};
use crate::message::{Command, Failure, FromMonitor};

/// Returns a cluster whose PGs lost osd.3 and continue with osd.1 and osd.2, the minimum.
fn with_two_left() -> (Rig, PgId) {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.kill_osd(3);
    assert_eq!(acting(&rig), [1, 2]);
    let pg = rig.entry(0).pg;
    (rig, pg)
}

fn acting(rig: &Rig) -> Vec<u32> {
    let mut acting: Vec<u32> = rig.entry(0).acting().map(|member| member.osd.get()).collect();
    acting.sort_unstable();
    acting
}

fn give_up(pg: PgId) -> Command {
    Command::PgGiveUp { pg, accepted: true, they_are_off: true }
}

/// Sends the command and advances the clock; returns the answer, if it has arrived by then.
fn answer_within(
    rig: &mut Rig,
    command: Command,
    span: Duration,
) -> Option<Result<Value, Failure>> {
    let connection = rig.client();
    if let Some(answer) = rig.command_over(connection, command) {
        return Some(answer);
    }
    rig.advance(span);
    rig.inbox.entry(connection).or_default().drain(..).find_map(|message| match message {
        FromMonitor::Answer { result, .. } => Some(result),
        _ => None,
    })
}

#[test]
fn a_pg_does_not_continue_with_a_member_that_died_unnoticed() {
    let (mut rig, pg) = with_two_left();
    rig.kill_osd(2);
    rig.osds.get_mut(&osd_id(1)).unwrap().is_silent = true;
    let error = answer_within(&mut rig, give_up(pg), Duration::from_secs(2)).unwrap().unwrap_err();
    assert_eq!(error.code, "unavailable");
    assert_eq!(acting(&rig), [1, 2], "nobody is given up");
    rig.boot(2);
    let given_up = rig.command(give_up(pg)).unwrap();
    assert_eq!(given_up, json!({ "pg": pg.to_string(), "osd": 2, "given_up": [1] }));
    assert_eq!(acting(&rig), [2]);
}

#[test]
fn a_member_that_restarts_is_awaited_and_not_given_up() {
    let (mut rig, pg) = with_two_left();
    rig.crash_osd(2);
    let connection = rig.client();
    assert_eq!(rig.command_over(connection, give_up(pg)), None);
    rig.boot(2);
    let inbox = &rig.inbox[&connection];
    let is_invalid = |message: &FromMonitor| match message {
        FromMonitor::Answer { result, .. } => result.as_ref().is_err_and(|it| it.code == "invalid"),
        _ => false,
    };
    assert!(inbox.iter().any(is_invalid), "{inbox:?}");
    assert_eq!(acting(&rig), [1, 2]);
}

#[test]
fn a_member_that_is_neither_up_nor_down_for_long_is_named() {
    let (mut rig, pg) = with_two_left();
    let value = Some("20000".to_string());
    rig.command(Command::ConfigSet { setting: "osd_grace_ms".into(), value }).unwrap();
    rig.crash_osd(2);
    assert_eq!(answer_within(&mut rig, give_up(pg), Duration::from_secs(9)), None);
    let error = answer_within(&mut rig, give_up(pg), Duration::from_secs(11)).unwrap().unwrap_err();
    assert_eq!(error.code, "busy");
    assert!(error.message.contains("osd.2"), "{}", error.message);
    assert_eq!(acting(&rig), [1, 2]);
}

#[test]
fn of_several_damaged_members_the_primary_goes_on_alone() {
    let mut rig = Rig::with_copies(2, 2, 2, 8);
    let before = rig.entry(0);
    let (pg, leads) = (before.pg, before.primary_osd().expect("it has a primary"));
    let command = |accepted| Command::PgGiveUp { pg, accepted, they_are_off: false };
    let waits = |report: &mut crate::message::OsdReport| {
        report.active.retain(|active| *active != pg);
        report.incomplete = vec![(pg, "it lost something".into())];
    };
    // Another PG of this OSD is suspect.
    rig.report(leads.get(), |report| {
        waits(report);
        report.suspect = true;
    });
    assert_eq!(rig.command(command(true)).unwrap_err().code, "invalid");
    assert_eq!(rig.entry(0), before);
    rig.report(leads.get(), |report| {
        waits(report);
        report.suspect_pgs = vec![pg];
    });
    let other = 3 - leads.get();
    let error = rig.command(command(false)).unwrap_err();
    assert!(error.message.contains(&format!("the copies of osd.{other}")), "{}", error.message);
    let client = rig.client();
    assert_eq!(rig.command_over(client, command(true)), None);
    let entry = rig.entry(0);
    assert_eq!((acting(&rig), entry.primary_osd()), (vec![leads.get()], Some(leads)));
    assert!(entry.given_up > before.epoch && entry.given_up <= entry.epoch);
    let learners: Vec<u32> = entry.learners.iter().map(|it| it.member.osd.get()).collect();
    assert_eq!(learners, [other], "it comes back as a learner");
}
