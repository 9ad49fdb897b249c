//! `pg give-up --they-are-off`: the command waits until each acting member is known to be up or down; and what
//! follows if none of them is left.

use base::{Duration, Epoch, PgId, Scheme};
use serde_json::{Value, json};

use super::rig::{Rig, osd_id};
use crate::map::FailureDomain;
use crate::message::{Command, Failure, FromMonitor, OlderCopy};

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
    Command::PgGiveUp { pg, accepted: true, they_are_off: true, older_copy: false }
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
    let command =
        |accepted| Command::PgGiveUp { pg, accepted, they_are_off: false, older_copy: false };
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

/// Returns a cluster whose PG was served by osd.1 alone, which is lost: the others were members before, and
/// have returned.
fn with_older_copies(copies: u32) -> (Rig, PgId) {
    let mut rig = Rig::with_copies(copies, copies, 1, 8);
    rig.make_volume("v", base::GIB).unwrap();
    for number in (2..=copies).rev() {
        rig.kill_osd(number);
    }
    assert_eq!(acting(&rig), [1]);
    rig.kill_osd(1);
    for number in 2..=copies {
        rig.boot(number);
    }
    assert_eq!(acting(&rig), [1], "what only osd.1 has counts");
    let pg = rig.entry(0).pg;
    (rig, pg)
}

/// The OSD reports what it has of the PG.
fn tell(rig: &mut Rig, osd: u32, pg: PgId, epoch: u32, counter: u64, unfit: Option<&str>) {
    let unfit = unfit.map(str::to_owned);
    // Nothing was written in its last epoch.
    let (epoch, complete) = (Epoch::new(epoch), (Epoch::new(1), counter));
    let copy = OlderCopy { pg, epoch, complete, unfit };
    rig.report(osd, |report| report.older_copies = Some(vec![copy]));
}

fn go_on(pg: PgId, accepted: bool) -> Command {
    Command::PgGiveUp { pg, accepted, they_are_off: true, older_copy: true }
}

/// Sends the command, lets the OSDs report, and returns the answer.
fn answer_after(
    rig: &mut Rig,
    command: Command,
    reports: impl FnOnce(&mut Rig),
) -> Result<Value, Failure> {
    let connection = rig.client();
    assert_eq!(rig.command_over(connection, command), None, "older reports do not count");
    rig.advance(Duration::from_millis(1));
    reports(rig);
    let inbox = rig.inbox.entry(connection).or_default();
    let answer = inbox.drain(..).find_map(|message| match message {
        FromMonitor::Answer { result, .. } => Some(result),
        _ => None,
    });
    answer.expect("all have reported")
}

#[test]
fn a_pg_without_acting_members_continues_with_an_older_copy_only_if_the_operator_says_so() {
    let (mut rig, pg) = with_older_copies(2);
    let before = rig.entry(0);
    tell(&mut rig, 2, pg, 1, 7, None);
    rig.command(Command::OsdOut { osd: osd_id(1) }).unwrap();
    let (_, hint) = rig.check("pg_down");
    assert!(hint.contains("--they-are-off --older-copy` shows"), "{hint}");
    let refused = rig.command(give_up(pg)).unwrap_err();
    assert_eq!(refused.code, "unavailable", "the operator did not name the loss");
    assert!(refused.hint.contains("--older-copy"), "{refused:?}");
    assert!(rig.entry(0).has_same_members(&before));
    let asked =
        answer_after(&mut rig, go_on(pg, false), |rig| tell(rig, 2, pg, 1, 7, None)).unwrap_err();
    assert_eq!(asked.code, "not_accepted");
    for part in ["osd.1", "copy of osd.2", "(v)", "cannot be undone", "since is lost"] {
        assert!(asked.message.contains(part), "{part}: {}", asked.message);
    }
    assert!(rig.entry(0).has_same_members(&before));
    let epoch = rig.entry(0).epoch;
    let answer = answer_after(&mut rig, go_on(pg, true), |rig| tell(rig, 2, pg, 1, 7, None));
    let given_up = json!({ "pg": pg.to_string(), "osd": 2, "given_up": [1], "older_copy": true });
    assert_eq!(answer, Ok(given_up));
    let entry = rig.entry(0);
    assert_eq!((acting(&rig), entry.primary_osd()), (vec![2], Some(osd_id(2))));
    assert_eq!(entry.given_up, epoch.next(), "who comes back is compared in full");
    // It returns with more, is not believed, and is filled.
    rig.command(Command::OsdIn { osd: osd_id(1) }).unwrap();
    rig.boot(1);
    let entry = rig.entry(0);
    assert_eq!((acting(&rig), entry.learner(osd_id(1)).is_some()), (vec![2], true));
    rig.fill();
    assert_eq!(acting(&rig), [1, 2]);
    assert_eq!(rig.entry(0).given_up, epoch.next());
}

#[test]
fn of_older_copies_that_of_the_latest_epoch_and_version_is_taken() {
    // osd.2 has the record of a later epoch, although osd.3 has a higher version: nobody was told of that.
    for (second, third, chosen) in [((3, 5), (2, 9), 2), ((2, 5), (2, 9), 3)] {
        let (mut rig, pg) = with_older_copies(3);
        let answer = answer_after(&mut rig, go_on(pg, true), |rig| {
            tell(rig, 3, pg, third.0, third.1, None);
            assert_eq!(acting(rig), [1], "osd.2 has not reported yet");
            tell(rig, 2, pg, second.0, second.1, None);
        });
        assert_eq!(answer.unwrap()["osd"], chosen);
        assert_eq!(acting(&rig), [chosen]);
    }
    let (mut rig, pg) = with_older_copies(3);
    let answer = answer_after(&mut rig, go_on(pg, true), |rig| {
        tell(rig, 2, pg, 3, 5, Some("it was being filled"));
        tell(rig, 3, pg, 2, 5, None);
    });
    assert_eq!(answer.unwrap()["osd"], 3, "blocks of different times are no copy");
}

#[test]
fn an_older_copy_that_is_not_complete_is_refused_and_not_recommended() {
    let (mut rig, pg) = with_older_copies(3);
    rig.kill_osd(3);
    rig.command(Command::OsdOut { osd: osd_id(1) }).unwrap();
    let unfit = |rig: &mut Rig| tell(rig, 2, pg, 2, 5, Some("it was being filled"));
    unfit(&mut rig);
    let (_, hint) = rig.check("pg_down");
    assert!(!hint.contains("give-up") && hint.contains("osd.3"), "{hint}");
    let refused = answer_after(&mut rig, go_on(pg, true), unfit).unwrap_err();
    assert_eq!(refused.code, "unavailable");
    assert!(refused.message.contains("osd.2 has an older copy, but it was being"), "{refused:?}");
    assert!(refused.hint.contains("osd.3"), "{refused:?}");
    assert_eq!(acting(&rig), [1]);
}

#[test]
fn of_parts_of_different_times_nothing_is_made() {
    let mut rig = Rig::new();
    (1..=3).for_each(|number| rig.add_osd(number));
    let create = Command::PoolCreate {
        pool: "p".into(),
        scheme: Some(Scheme::Xor { data: 2 }),
        min_size: None,
        pg_count: Some(8),
        failure_domain: Some(FailureDomain::Osd),
        block_size: None,
        objects: None,
    };
    rig.command(create).unwrap();
    let pg = rig.entry(0).pg;
    (1..=3).for_each(|number| rig.kill_osd(number));
    let last = acting(&rig);
    let early = (1..=3).find(|number| !last.contains(number)).expect("one went first");
    rig.boot(early);
    tell(&mut rig, early, pg, 2, 5, None);
    last.iter().for_each(|osd| drop(rig.command(Command::OsdOut { osd: osd_id(*osd) }).unwrap()));
    let (_, hint) = rig.check("pg_down");
    assert!(!hint.contains("give-up") && hint.contains("from a backup"), "{hint}");
    let refused = rig.command(go_on(pg, true)).unwrap_err();
    assert_eq!(refused.code, "unavailable");
    assert_eq!(acting(&rig), last);
}

#[test]
fn an_osd_that_does_not_tell_what_it_has_is_waited_for() {
    let (mut rig, pg) = with_older_copies(3);
    let connection = rig.client();
    assert_eq!(rig.command_over(connection, go_on(pg, true)), None);
    rig.advance(Duration::from_secs(1));
    tell(&mut rig, 2, pg, 3, 5, None);
    // An OSD of an older version does not say anything.
    rig.report(3, |_| {});
    let answer = answer_within(&mut rig, Command::PgList { pool: None }, Duration::ZERO);
    assert!(answer.is_some() && acting(&rig) == [1]);
    rig.advance(Duration::from_secs(10));
    let refused = rig.inbox[&connection].iter().find_map(|message| match message {
        FromMonitor::Answer { result, .. } => result.clone().err(),
        _ => None,
    });
    let refused = refused.expect("it has waited long enough");
    assert_eq!(refused.code, "busy");
    assert!(refused.message.contains("osd.3"), "{refused:?}");
    assert_eq!(acting(&rig), [1]);
}
