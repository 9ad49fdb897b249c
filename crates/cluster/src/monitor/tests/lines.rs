//! Log lines: one for each change of the cluster, and no others.

use base::trace::Level;
use base::{Duration, OsdId, TraceEvent};
use format::wire::PgEntry;
use serde_json::json;

use super::rig::{Rig, osd_id};
use crate::message::{Command, FromMonitor, ToMonitor};

const GIB: u64 = 1 << 30;

/// Returns the lines with this message, each as text with its level.
fn lines(all: &[TraceEvent], what: &str) -> Vec<String> {
    let those = all.iter().filter(|event| event.what == what);
    those.map(|event| format!("{} {event}", event.level)).collect()
}

fn osds(entry: &PgEntry) -> Vec<OsdId> {
    entry.acting().map(|member| member.osd).collect()
}

#[test]
fn a_member_that_dies_and_comes_back_leaves_a_line_for_each_change() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    rig.advance(Duration::from_secs(60));
    rig.lines.clear();
    for number in [1, 2, 3] {
        rig.report(number, |_| {});
    }
    assert!(rig.lines.is_empty(), "{:?}", rig.lines);
    let epochs = |rig: &Rig| rig.entries().iter().map(|entry| entry.epoch.get()).sum::<u32>();
    let before = epochs(&rig);
    rig.crash_osd(2);
    rig.advance(Duration::from_secs(2));
    assert_eq!(lines(&rig.lines, "OSD is down"), ["warn OSD is down  osd=osd.2"]);
    rig.boot(2);
    rig.fill();
    let begins = lines(&rig.lines, "OSD has started a new run");
    assert!(begins.len() == 1 && begins[0].contains("run=2"), "{begins:?}");
    assert_eq!(lines(&rig.lines, "OSD is up").len(), 1);
    // There is one line for each epoch, and each backfill that begins also ends.
    let epochs = (epochs(&rig) - before) as usize;
    assert_eq!(lines(&rig.lines, "PG has a new epoch").len(), epochs);
    let [begun, done] =
        ["backfill begins", "backfill is done"].map(|it| lines(&rig.lines, it).len());
    assert!(begun > 0 && begun == done, "{begun} {done}");
    let entries = rig.entries();
    let entry = entries.iter().find(|entry| osds(entry).contains(&osd_id(2))).unwrap();
    let of_pg = format!("pg={} ", entry.pg);
    let newest = lines(&rig.lines, "PG has a new epoch");
    let newest = newest.iter().rfind(|line| line.contains(&of_pg)).unwrap();
    let expected = format!(
        "info PG has a new epoch  pg={} epoch={} primary={} members={},{}",
        entry.pg,
        entry.epoch,
        entry.primary_osd().unwrap(),
        entry.acting().next().unwrap().osd,
        entry.acting().nth(1).unwrap().osd
    );
    assert_eq!(*newest, expected);
    rig.command(Command::OsdOut { osd: osd_id(3) }).unwrap();
    assert_eq!(lines(&rig.lines, "OSD is out"), ["info OSD is out  osd=osd.3"]);
}

#[test]
fn a_refused_boot_leaves_a_line_with_the_reason() {
    let mut rig = Rig::with_pool(1, 8);
    let role = format::door::Role::Osd(osd_id(1), base::Incarnation::ZERO);
    let connection = rig.accept(role);
    let mut boot = rig.boot_message(osd_id(1));
    if let ToMonitor::OsdBoot { store, incarnation, .. } = &mut boot {
        *store = "f".repeat(32);
        *incarnation = None;
    }
    rig.say(connection, &boot);
    let refused = lines(&rig.lines, "OSD is refused");
    let expected =
        "warn OSD is refused  osd=osd.1 code=other_store why=\"osd.1 is registered with store ";
    assert!(refused.len() == 1 && refused[0].starts_with(expected), "{refused:?}");
}

#[test]
fn a_fenced_client_leaves_a_line_that_names_its_volume() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: true });
    rig.break_connection(client);
    let client = rig.client();
    rig.open_session(client, "v").unwrap().unwrap();
    let fenced = lines(&rig.lines, "client is fenced");
    let [line] = &fenced[..] else { panic!("{fenced:?}") };
    assert!(line.starts_with(&format!("warn client is fenced  session={session} ")), "{line}");
    assert!(line.ends_with("volume=v"), "{line}");
    // A session that is closed cleanly is not fenced.
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.say(client, &ToMonitor::CloseSession { session, unanswered: false });
    assert_eq!(lines(&rig.lines, "client is fenced").len(), 1);
}

#[test]
fn a_suspect_store_and_a_disk_that_hangs_leave_lines() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    rig.report(1, |report| report.stalled = true);
    rig.report(1, |report| report.stalled = true);
    rig.report(1, |report| report.stalled = false);
    assert_eq!(lines(&rig.lines, "OSD is stalled: its disk hangs").len(), 1);
    assert_eq!(lines(&rig.lines, "OSD is no longer stalled: its disk answers").len(), 1);
    rig.crash_osd(2);
    rig.osds.get_mut(&osd_id(2)).unwrap().suspect = true;
    rig.boot(2);
    let what = "OSD is suspect: recovery found damage that may have lost writes";
    assert_eq!(lines(&rig.lines, what), [format!("warn {what}  osd=osd.2")]);
}

#[test]
fn each_manual_edit_leaves_a_line_in_the_log() {
    let mut rig = Rig::with_pool(1, 8);
    rig.hand_writes("config/lease_ms", Some("{\"name\":\"lease_ms\",\"value\":100}"));
    assert_eq!(
        lines(&rig.lines, "a manual edit has taken effect"),
        ["info a manual edit has taken effect  key=config/lease_ms"]
    );
    rig.hand_writes("config/lease_ms", Some("{\"name\":\"lease_ms\",\"value\":7}"));
    assert_eq!(lines(&rig.lines, "a manual edit was undone").len(), 1);
    rig.hand_writes("counter/osd", None);
    let what = "a key that only monitors write was edited by hand";
    assert_eq!(lines(&rig.lines, what), [format!("error {what}  key=counter/osd")]);
    rig.command(Command::StateUndo { accepted: true }).unwrap();
    assert_eq!(lines(&rig.lines, "the state was recovered by an operator").len(), 1);
}

#[test]
fn the_level_of_the_log_is_a_setting_that_reaches_everybody() {
    let mut rig = Rig::with_pool(1, 8);
    let monitor = rig.accept(format::door::Role::Monitor(base::MonitorId::new(2).unwrap()));
    let set = |value: Option<&str>| Command::ConfigSet {
        setting: "log_level".into(),
        value: value.map(str::to_string),
    };
    let row = rig.command(set(Some("debug"))).unwrap();
    assert_eq!((&row["value"], &row["default"]), (&json!("debug"), &json!("info")));
    assert_eq!(rig.level, Some(Level::Debug));
    assert_eq!(
        lines(&rig.lines, "setting is changed"),
        ["info setting is changed  setting=log_level value=debug"]
    );
    let told = crate::settings::Changed::from([("log_level".to_string(), 3)]);
    assert_eq!(rig.osds[&osd_id(1)].settings, told);
    // A monitor that does not lead receives the log level when it connects, and when the level changes.
    let here = ToMonitor::MonitorHere {
        monitor: base::MonitorId::new(2).unwrap(),
        addresses: vec!["tcp:10.0.0.2:1".into()],
        pid: 7,
        host: "h".into(),
    };
    rig.say(monitor, &here);
    let told = |rig: &Rig| {
        let inbox = rig.inbox.get(&monitor).into_iter().flatten();
        let settings = inbox.filter_map(|message| match message {
            FromMonitor::Settings { changed } => Some(changed.len()),
            _ => None,
        });
        settings.collect::<Vec<_>>()
    };
    assert_eq!(told(&rig), [1]);
    rig.command(set(None)).unwrap();
    assert_eq!((told(&rig), rig.level), (vec![1, 0], None));
    // A new leader applies the log level at once.
    rig.command(set(Some("error"))).unwrap();
    rig.restart();
    rig.tick();
    assert_eq!(rig.level, Some(Level::Error));
}
