//! Tests of a disk that hangs: what the OSD reports, and what it does when the disk responds again.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a map whose entry does not list this OSD.
fn without_us() -> FromMonitor {
    let other = Member { osd: OsdId::new(2).unwrap(), incarnation: Incarnation::new(1) };
    let entry = PgEntry { positions: vec![Some(other)], ..entry(2, 1) };
    map(10, 11, vec![entry], &[])
}

/// Returns whether the last report says that the disk hangs.
fn says_it_is_stalled(rig: &Rig) -> bool {
    last_report(rig).stalled
}

/// Returns a node with a write that the disk does not complete, and the write's sequence.
fn hanging() -> (Rig, u64) {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    let write = rig.send(CLIENT, 1, write(0, 1, 7));
    (rig, write)
}

#[test]
fn a_disk_that_is_slow_or_hangs_is_reported_at_once() {
    let (mut rig, write) = hanging();
    rig.monitor_says(FromMonitor::Settings { changed: [("osd_report_ms".into(), 60_000)].into() });
    rig.advance(Duration::from_millis(900));
    assert!(last_report(&rig).oldest_operation_ms < 1_000);
    rig.advance(Duration::from_millis(400));
    assert!(last_report(&rig).oldest_operation_ms > 1_000);
    rig.advance(Duration::from_millis(3_600));
    assert!(!says_it_is_stalled(&rig));
    rig.advance(Duration::from_millis(400));
    assert!(says_it_is_stalled(&rig));
    // No PG continued without this OSD, so it continues to serve normally.
    rig.release_disk();
    assert_eq!(rig.reply_to(write), Some(written(1, 1)));
    rig.advance(Duration::from_millis(300));
    assert!(!says_it_is_stalled(&rig));
    rig.advance(SECOND);
    assert_eq!(rig.stopped, None);
    assert_eq!(rig.read_bytes(1, read(0, 1)), [7]);
}

#[test]
fn a_flush_of_three_seconds_and_a_paused_host_are_no_hung_disk() {
    let (mut rig, write) = hanging();
    rig.advance(Duration::from_secs(3));
    assert!(!says_it_is_stalled(&rig));
    // The host was paused for 20 s.
    rig.now = rig.now + Duration::from_secs(20);
    rig.apply(Event::Tick);
    rig.advance(SECOND);
    assert!(!says_it_is_stalled(&rig));
    rig.release_disk();
    assert_eq!(rig.reply_to(write), Some(written(1, 1)));
}

#[test]
fn an_osd_that_its_pgs_have_left_restarts_when_every_operation_has_ended() {
    let (mut rig, write) = hanging();
    rig.advance(Duration::from_secs(6));
    assert!(says_it_is_stalled(&rig));
    rig.monitor_says(without_us());
    assert!(!matches!(rig.reply_to(write), Some(Ok(_))), "it is not answered as done");
    rig.advance(Duration::from_secs(30));
    assert_eq!(rig.stopped, None, "an operation is under way");
    rig.release_disk();
    rig.advance(SECOND);
    assert_eq!(rig.stopped, Some(StopReason::Stalled));
    assert!(rig.told.iter().any(|told| matches!(told, ToMonitor::OsdLeaves)));
    assert!(rig.node.stalls().pause() == Duration::from_secs(10));

    // In the next run the disk must respond for ten seconds.
    let settings = Settings { stalls: rig.node.stalls(), ..Settings::default() };
    let mut rig = Rig::with(rig.disk, identity(), settings);
    rig.connect();
    assert!(matches!(rig.told[0], ToMonitor::OsdBoot { stalled: true, incarnation: None, .. }));
    rig.monitor_says(FromMonitor::OsdBooted { incarnation: Incarnation::new(2) });
    rig.advance(Duration::from_secs(5));
    // After a slow probe the ten seconds start again.
    rig.holds_disk = true;
    rig.advance(Duration::from_secs(2));
    rig.release_disk();
    rig.advance(Duration::from_secs(9));
    assert!(says_it_is_stalled(&rig));
    let flushes = rig.disk.flush_count;
    rig.advance(Duration::from_secs(2));
    assert!(!says_it_is_stalled(&rig));
    assert!(flushes > 20, "{flushes}");
}

#[test]
fn a_stall_soon_after_another_one_doubles_the_pause() {
    let mut stalls = Stalls::default();
    let mut now = base::Time::ZERO;
    for pause in [10, 20, 40, 80, 160, 320, 600, 600] {
        stalls.began(now);
        assert_eq!(stalls.pause(), Duration::from_secs(pause));
        now = now + Duration::from_secs(3599);
    }
    stalls.began(now + Duration::from_secs(2));
    assert_eq!(stalls.pause(), Duration::from_secs(10));
}

#[test]
fn an_entry_that_arrives_after_the_disk_answers_again_still_counts() {
    let (mut rig, _) = hanging();
    rig.advance(Duration::from_secs(6));
    rig.release_disk();
    rig.advance(SECOND);
    assert!(!says_it_is_stalled(&rig));
    rig.monitor_says(without_us());
    rig.advance(SECOND);
    assert_eq!(rig.stopped, Some(StopReason::Stalled));
}

#[test]
fn a_shutdown_while_the_store_is_reopened_ends_the_process() {
    let (mut rig, _) = hanging();
    rig.advance(Duration::from_secs(6));
    rig.monitor_says(without_us());
    rig.apply(Event::Shutdown);
    rig.release_disk();
    rig.advance(SECOND);
    assert_eq!(rig.stopped, Some(StopReason::Shutdown));
}
