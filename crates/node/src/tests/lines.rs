//! Tests of log lines: each state change writes one line, and nothing else does.

use base::TraceEvent;
use cluster::message::Failure;

use super::cluster_rig::{Cluster, osd};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the lines that begin with this text, formatted with their levels.
fn lines(all: &[TraceEvent], what: &str) -> Vec<String> {
    let those = all.iter().filter(|event| event.what.starts_with(what));
    those.map(|event| format!("{} {event}", event.level)).collect()
}

#[test]
fn a_new_epoch_leaves_a_line_and_requests_leave_none() {
    let mut rig = Rig::serving();
    assert_eq!(lines(&rig.lines, "joined"), ["info joined the cluster  run=1"]);
    let active = format!("info PG is active  pg={PG} epoch=1 members={OSD}");
    assert_eq!(lines(&rig.lines, "PG is active"), [active]);
    let count = rig.lines.len();
    for byte in 0..100 {
        assert!(is_written(&rig.ask(1, write(0, 1, byte))));
        rig.read_bytes(1, read(0, 1));
        rig.advance(Duration::from_millis(100));
    }
    assert_eq!(rig.lines.len(), count, "{:?}", rig.lines);
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[]));
    assert_eq!(lines(&rig.lines[count..], "PG is active").len(), 1);
}

#[test]
fn a_pg_that_is_not_served_is_named_once_and_says_for_how_long_it_was_not() {
    let mut cluster = Cluster::serving(2);
    cluster.is_helpful = false;
    cluster.kill(1);
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(20_000);
    let told = lines(&cluster.hosts[0].lines, "PG is not served");
    let [line] = &told[..] else { panic!("{told:?}") };
    assert!(line.starts_with(&format!("warn PG is not served  pg={} epoch=2", cluster.entry.pg)));
    assert!(line.contains(&format!("{} is down", osd(1))), "{line}");
    cluster.start(1);
    cluster.set_entry(&[0, 1], &[]);
    cluster.advance(2_000);
    let told = lines(&cluster.hosts[0].lines, "PG is active");
    assert!(!told.is_empty(), "{:?}", cluster.hosts[0].lines);
}

#[test]
fn a_lost_lease_leaves_a_line_and_so_does_its_return() {
    let mut cluster = Cluster::serving(3);
    cluster.advance(3_000);
    assert!(lines(&cluster.hosts[0].lines, "lease").is_empty());
    cluster.part(0, 2);
    cluster.advance(800);
    let out = format!(
        "warn lease expired: PGs shared with the OSD that granted it must wait  giver={}",
        osd(2)
    );
    assert_eq!(lines(&cluster.hosts[0].lines, "lease"), [out]);
    cluster.mend();
    cluster.advance(800);
    let all = lines(&cluster.hosts[0].lines, "lease");
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[1].starts_with("info lease is valid again  after_ms="), "{all:?}");
}

#[test]
fn a_connection_that_breaks_names_what_the_pg_needs() {
    let mut cluster = Cluster::serving(2);
    cluster.break_wires(0, 1);
    cluster.advance(500);
    let told = lines(&cluster.hosts[0].lines, "PG needs a new epoch");
    let why = format!("why=\"lost contact with {}\"", osd(1));
    assert!(told.len() == 1 && told[0].contains(&why), "{told:?}");
}

#[test]
fn a_fenced_session_leaves_a_line_where_it_was_served() {
    let mut rig = Rig::serving();
    assert!(is_written(&rig.ask(1, write(0, 1, 7))));
    rig.monitor_says(map(10, 11, vec![], &[SESSION.get(), SESSION.get() + 1]));
    rig.monitor_says(map(11, 12, vec![], &[SESSION.get()]));
    assert_eq!(rig.ask(1, write(0, 1, 8)), Err(Refusal::Fenced));
    let fenced = format!("info session is fenced  session={SESSION} pool={}", PG.pool);
    assert_eq!(lines(&rig.lines, "session is fenced"), [fenced]);
}

#[test]
fn a_refused_boot_leaves_a_line_with_the_reason() {
    let mut rig = Rig::over(MemoryDisk::formatted());
    rig.connect();
    let error = Failure {
        code: "other_store".into(),
        message: "osd.1 has another store".into(),
        hint: "none".into(),
    };
    rig.monitor_says(FromMonitor::OsdRefused { error });
    let refused = "error the monitor refuses this OSD  code=other_store \
                   why=\"osd.1 has another store\"";
    assert_eq!(lines(&rig.lines, "the monitor refuses"), [refused]);
}

#[test]
fn a_suspect_store_and_its_suspect_pgs_leave_a_line_each() {
    let (mut rig, _) = read_after_rot(4);
    rig.advance(Duration::from_secs(20));
    assert_eq!(lines(&rig.lines, "the store is suspect").len(), 1);
    let suspect = lines(&rig.lines, "PG is suspect");
    assert!(suspect.len() == 1 && suspect[0].contains("found damage"), "{suspect:?}");
    assert!(lines(&rig.lines, "PG is not served").is_empty(), "it was said");
    give_up(&mut rig);
    rig.advance(SECOND);
    assert_eq!(lines(&rig.lines, "PG is active").len(), 1);
}

#[test]
fn a_slow_disk_leaves_a_line_and_a_hanging_one_another() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    rig.send(CLIENT, 1, write(0, 1, 7));
    rig.advance(Duration::from_millis(2_000));
    let slow = lines(&rig.lines, "the disk");
    assert!(slow.len() == 1 && slow[0].starts_with("warn the disk is slow  oldest_ms="));
    rig.advance(Duration::from_secs(10));
    let hangs = lines(&rig.lines, "the disk hangs");
    assert!(hangs.len() == 1 && hangs[0].starts_with("error "), "{hangs:?}");
    rig.release_disk();
    rig.advance(SECOND);
    assert_eq!(lines(&rig.lines, "the disk answers again").len(), 1);
    assert_eq!(lines(&rig.lines, "the disk is no longer slow").len(), 1);
    assert_eq!(lines(&rig.lines, "the disk").len(), 4, "{:?}", rig.lines);
}
