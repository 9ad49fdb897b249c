//! Tests of what an OSD reports to a monitor whose state store may have lost changes.

use base::{Duration, Incarnation, MapRevision};
use cluster::copy::{CopyPart, KnownState, Seen};
use cluster::message::{FromMonitor, ToMonitor};
use format::wire::PgEntry;
use serde_json::json;

use super::rig::*;

fn image_told(change: u64) -> FromMonitor {
    let put = [("image/1".to_string(), json!({ "id": 1 }))].into();
    let change = Some((change, 7));
    FromMonitor::StateCopy(CopyPart { begins: true, change, put, gone: Vec::new() })
}

fn seen_at_boot(rig: &Rig) -> Seen {
    let mut told = rig.told.iter();
    let boot = told.find_map(|told| match told {
        ToMonitor::OsdBoot { seen, .. } => Some(seen.clone()),
        _ => None,
    });
    boot.expect("it boots first")
}

fn known_state(rig: &Rig) -> Vec<(&KnownState, bool)> {
    let told = rig.told.iter().filter_map(|told| match told {
        ToMonitor::OsdTells { part, more } => Some((part, *more)),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_boot_names_what_earlier_runs_have_seen() {
    let mut rig = Rig::serving();
    rig.monitor_says(image_told(40));
    rig.advance(Duration::from_secs(2));
    // The epoch is activated, but the run ends before the map is noted.
    let newer = PgEntry { revision: MapRevision::new(12), ..entry(2, 1) };
    rig.monitor_says(map(10, 12, vec![newer], &[]));
    let mut rig = Rig::over(rig.disk);
    rig.connect();
    let seen = seen_at_boot(&rig);
    assert_eq!((seen.change, seen.reign), (40, 7));
    assert_eq!(seen.incarnation, Incarnation::new(1));
    assert_eq!(seen.pools[&POOL], MapRevision::new(12), "its record is newer than its note");
}

#[test]
fn an_osd_that_is_stopped_notes_what_it_was_told_last() {
    let mut rig = Rig::serving();
    rig.monitor_says(image_told(40));
    rig.apply(crate::Event::Shutdown);
    let mut rig = Rig::over(rig.disk);
    rig.connect();
    assert_eq!(seen_at_boot(&rig).change, 40);
}

#[test]
fn an_osd_that_waits_for_a_recovery_tells_all_it_knows_and_goes_on() {
    let mut rig = Rig::serving();
    rig.monitor_says(image_told(40));
    rig.advance(Duration::from_secs(2));
    rig.monitor_says(map(10, 11, vec![entry(2, 1)], &[5]));
    rig.monitor_says(FromMonitor::TellAll);
    assert!(known_state(&rig).is_empty(), "one that has joined is not asked");
    let mut rig = Rig::over(rig.disk);
    rig.connect();
    rig.monitor_says(FromMonitor::TellAll);
    let told = known_state(&rig);
    let (last, rest) = told.split_last().expect("something is told");
    assert!(!last.1 && rest.iter().all(|(_, more)| *more));
    let parts = || told.iter().map(|(part, _)| part);
    let entries: Vec<&PgEntry> = parts().flat_map(|part| &part.entries).collect();
    assert_eq!(entries, [&entry(2, 1)]);
    let activated: Vec<_> = parts().flat_map(|part| &part.activated).collect();
    assert_eq!((activated.len(), activated[0].pg), (1, entry(2, 1).pg));
    assert_eq!(activated[0].epochs.last(), Some(&entry(2, 1).epoch));
    assert!(parts().all(|part| part.copy.change == 40));
    let records = parts().flat_map(|part| part.copy.records.keys());
    assert_eq!(records.collect::<Vec<_>>(), ["image/1"]);
    let pools: Vec<_> = parts().flat_map(|part| &part.pools).collect();
    assert_eq!((pools.len(), pools[0].pool.id), (1, POOL));
    // The OSD waits, and keeps its connection.
    rig.told.clear();
    rig.advance(Duration::from_secs(30));
    assert!(rig.told.is_empty(), "{:?}", rig.told);
    rig.advance(Duration::from_secs(60));
    let tried = rig.connects.len();
    while rig.connects.len() == tried {
        rig.advance(Duration::from_millis(100));
    }
    rig.connect();
    assert!(rig.told.iter().any(|told| matches!(told, ToMonitor::OsdBoot { .. })), "and anew");
}
