//! Tests of the check of an OSD's own metadata: when it runs, and what is reported.

use blockstore::NoteKey;

use super::*;
use crate::notes::ClusterNote;

const DAY: u64 = 1_800_000_000;
const DEEP_SPAN: u64 = 30 * 24 * 3600;
/// Page of the second copy of the superblock.
const SUPERBLOCK: u64 = 16;
const CHECKED: &str = "metadata of the store was checked";
const REPAIRED: &str = "metadata of the store was damaged and is repaired";

fn count(rig: &Rig, what: &str) -> usize {
    rig.lines.iter().filter(|event| event.what == what).count()
}

fn set_day(rig: &mut Rig, seconds: u64) {
    let now = rig.now;
    rig.node.set_time_of_day(now, seconds * 1000);
}

fn noted(rig: &Rig) -> Option<u64> {
    let note = rig.node.store.note(NoteKey::Cluster).expect("it is written");
    ClusterNote::decode(note).expect("it is whole").metadata_checked_at
}

/// Returns a node whose schedule of checks has begun at `DAY`.
fn scheduled() -> Rig {
    let mut rig = Rig::serving();
    set_day(&mut rig, DAY);
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 0, "a new store has nothing old");
    assert!(noted(&rig).is_some_and(|at| (DAY..DAY + 30).contains(&at)));
    rig
}

fn settings(changed: &[(&str, u64)]) -> FromMonitor {
    FromMonitor::Settings {
        changed: changed.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    }
}

#[test]
fn metadata_is_checked_an_interval_after_the_last_time_also_over_a_restart() {
    let mut rig = scheduled();
    rig.disk.rot(SUPERBLOCK);
    set_day(&mut rig, DAY + DEEP_SPAN / 2);
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 0);
    let mut rig = Rig::serving_over(rig.disk, 2, 2);
    set_day(&mut rig, DAY + DEEP_SPAN + 60);
    rig.advance(Duration::from_secs(60));
    assert_eq!(count(&rig, CHECKED), 1);
    assert!(noted(&rig).is_some_and(|at| at >= DAY + DEEP_SPAN + 60));
    let mut rig = Rig::serving_over(rig.disk, 3, 3);
    set_day(&mut rig, DAY + DEEP_SPAN + 600);
    rig.advance(Duration::from_secs(60));
    assert_eq!(count(&rig, CHECKED), 0, "it is not due again");
}

#[test]
fn damaged_metadata_is_repaired_logged_and_counted() {
    let mut rig = scheduled();
    rig.disk.rot(SUPERBLOCK);
    rig.monitor_says(FromMonitor::Scrub { pgs: vec![], deep: true, metadata: true });
    rig.advance(Duration::from_secs(10));
    assert_eq!((count(&rig, REPAIRED), count(&rig, CHECKED)), (1, 1));
    assert_eq!(last_report(&rig).media.units, 1);
    assert_eq!(last_report(&rig).damaged_units, 0, "nothing is lost");
    rig.monitor_says(FromMonitor::Scrub { pgs: vec![], deep: true, metadata: true });
    rig.advance(Duration::from_secs(10));
    assert_eq!((count(&rig, REPAIRED), count(&rig, CHECKED)), (1, 2), "it is whole");
    assert!(rig.ask(1, write(0, 1, 7)).is_ok());
}

#[test]
fn metadata_is_not_checked_while_scrubs_are_paused_or_outside_their_hours() {
    let mut rig = scheduled();
    rig.monitor_says(settings(&[("scrub_paused", 1)]));
    set_day(&mut rig, DAY + DEEP_SPAN);
    rig.monitor_says(FromMonitor::Scrub { pgs: vec![], deep: true, metadata: true });
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 0);
    rig.monitor_says(settings(&[]));
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 1, "the request was kept");
    let hour = (DAY + 3 * DEEP_SPAN) / 3600 % 24;
    let hours = [("scrub_from_hour", (hour + 2) % 24), ("scrub_to_hour", (hour + 4) % 24)];
    rig.monitor_says(settings(&hours));
    set_day(&mut rig, DAY + 3 * DEEP_SPAN);
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 1, "it waits for its hours");
    rig.monitor_says(settings(&[]));
    rig.advance(Duration::from_secs(30));
    assert_eq!(count(&rig, CHECKED), 2);
}
