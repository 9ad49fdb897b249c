//! Statistics: all counts of OSDs are added exactly once, even if the leader changes, and the cost does not
//! depend on the number of volumes.

use base::{Duration, GIB, ImageId, MIB, PoolId};
use serde_json::Value;

use super::rig::{Mishap, Rig, osd_id};
use crate::message::{Command, ToMonitor};
use crate::stats::{Counters, ImageCounters, ImageSpace, OsdStats, Period, Table};

/// Returns a period with `count` writes of 4 KiB to each of these images.
fn period(sequence: u64, images: impl IntoIterator<Item = u32>, count: u64) -> Period {
    let row = |image: u32| {
        let mut counters = Counters::default();
        (0..count).for_each(|_| counters.write.record(4096, Duration::from_micros(100)));
        counters.stored.ops = count;
        counters.stored.bytes = count * 4096;
        ImageCounters { pool: PoolId::FIRST, image: ImageId::new(image), counters }
    };
    Period { sequence, rows: images.into_iter().map(row).collect(), own: Counters::default() }
}

impl Rig {
    fn stats(&mut self, number: u32, periods: &[Period]) {
        self.osd_stats(number, OsdStats { periods: periods.to_vec(), ..OsdStats::default() });
    }

    pub fn space(&mut self, number: u32, space: &[(u32, u64)], space_is_whole: bool) {
        let space = space.iter().map(|(image, bytes)| ImageSpace {
            image: ImageId::new(*image).unwrap(),
            bytes: *bytes,
        });
        let space = space.collect();
        self.osd_stats(number, OsdStats { space, space_is_whole, ..OsdStats::default() });
    }

    fn osd_stats(&mut self, number: u32, stats: OsdStats) {
        let connection = self.osds[&osd_id(number)].connection.unwrap();
        self.say(connection, &ToMonitor::OsdStats(stats));
    }

    /// Returns the newest period that the monitor has reported to the OSD as saved.
    fn saved(&self, number: u32) -> u64 {
        self.osds[&osd_id(number)].saved.last().copied().unwrap_or(0)
    }

    fn info(&mut self, volume: &str) -> Value {
        self.command(Command::VolumeInfo { volume: volume.into() }).unwrap()
    }

    fn written(&mut self, volume: &str) -> u64 {
        self.info(volume)["io"]["write"]["ops"].as_u64().unwrap()
    }

    pub fn rows(&mut self, table: Table) -> Vec<Value> {
        let answer = self.command(Command::Table { table, after: 0 }).unwrap();
        assert_eq!(answer["more"], false);
        answer["rows"].as_array().unwrap().clone()
    }

    /// Advances the clock by this many statistics intervals.
    pub fn intervals(&mut self, count: u64) {
        self.advance(Duration::from_millis(2001 * count));
    }

    fn writes_of_store(&mut self, intervals: u64) -> u32 {
        let before = self.transactions;
        self.intervals(intervals);
        self.transactions - before
    }
}

fn with_volumes(osd_count: u32, count: u32) -> Rig {
    let mut rig = Rig::with_pool(osd_count, 8);
    for number in 1..=count {
        rig.make_volume(&format!("v{number}"), GIB).unwrap();
    }
    rig
}

#[test]
fn what_osds_count_is_added_up_by_volume_pool_and_osd() {
    let mut rig = with_volumes(2, 2);
    rig.stats(1, &[period(1, [1, 2], 10)]);
    rig.stats(2, &[period(1, [1], 5), period(2, [1], 7)]);
    assert_eq!((rig.written("v1"), rig.written("v2")), (22, 10));
    let osds = rig.rows(Table::Osd);
    let ops = |row: &Value| row["io"]["write"]["ops"].as_u64().unwrap();
    assert_eq!(osds.iter().map(ops).collect::<Vec<_>>(), [20, 12]);
    assert_eq!(osds[0]["io"]["stored"]["bytes"], 20 * 4096);
    assert_eq!(rig.rows(Table::Pool).iter().map(ops).collect::<Vec<_>>(), [32]);
    let volumes = rig.rows(Table::Volume);
    assert_eq!(volumes.iter().map(ops).collect::<Vec<_>>(), [22, 10]);
    assert_eq!(volumes[0]["io"]["write"]["bytes"], 22 * 4096);
}

#[test]
fn rates_are_those_of_the_last_intervals_and_end() {
    let mut rig = with_volumes(1, 1);
    for sequence in 1..=4 {
        rig.stats(1, &[period(sequence, [1], 1000)]);
        rig.intervals(1);
    }
    let write = rig.info("v1")["io"]["write"].clone();
    let rate = write["ops_per_second"].as_u64().unwrap();
    assert!((450..=550).contains(&rate), "{write}");
    assert!((100..=125).contains(&write["latency_p99_us"].as_u64().unwrap()), "{write}");
    assert_eq!(write["latency_mean_us"], 100);
    assert_eq!(rig.status()["io"]["write"]["ops_per_second"], rate);
    assert_eq!(rig.status()["pools"][0]["io"]["write"]["ops_per_second"], rate);
    rig.intervals(4);
    let write = rig.info("v1")["io"]["write"].clone();
    assert_eq!(
        (&write["ops_per_second"], &write["latency_p99_us"]),
        (&Value::from(0), &Value::Null)
    );
    assert_eq!(write["ops"], 4000);
    let transactions = rig.transactions;
    rig.intervals(50);
    assert_eq!(rig.transactions, transactions, "nothing happens: nothing is written");
}

#[test]
fn a_period_counts_once_whoever_leads_and_is_kept_until_it_is_saved() {
    let mut rig = with_volumes(1, 2);
    rig.stats(1, &[period(1, [1], 10)]);
    assert_eq!(rig.saved(1), 0, "nothing is in the store yet");
    rig.stats(1, &[period(1, [1], 10)]);
    assert_eq!(rig.written("v1"), 10, "told twice");
    rig.intervals(1);
    assert_eq!(rig.saved(1), 1);
    rig.stats(1, &[period(2, [2], 3)]);
    // The period is not in the store yet: the next leader receives it from the OSD, together with earlier
    // ones.
    rig.restart();
    rig.tick();
    assert_eq!((rig.written("v1"), rig.written("v2")), (10, 0));
    rig.osds.get_mut(&osd_id(1)).unwrap().saved.clear();
    rig.stats(1, &[period(1, [1], 10), period(2, [2], 3)]);
    assert_eq!((rig.written("v1"), rig.written("v2")), (10, 3));
    assert_eq!(rig.saved(1), 1);
    rig.intervals(1);
    assert_eq!(rig.saved(1), 2);
    // A new run counts its periods from one again, while the last period of the previous run is still
    // unsaved.
    rig.stats(1, &[period(3, [1], 2)]);
    rig.crash_osd(1);
    rig.boot(1);
    rig.osds.get_mut(&osd_id(1)).unwrap().saved.clear();
    rig.stats(1, &[period(1, [1], 2)]);
    assert_eq!((rig.written("v1"), rig.saved(1)), (14, 0));
    rig.intervals(1);
    assert_eq!(rig.saved(1), 1);
    rig.restart();
    rig.tick();
    assert_eq!((rig.written("v1"), rig.written("v2")), (14, 3));
    rig.stats(1, &[period(1, [1], 2)]);
    assert_eq!(rig.written("v1"), 14);
    // The OSD missed the message that a period is saved: it sends the period again, and is notified again.
    assert_eq!(rig.saved(1), 1);
    let pool = rig.rows(Table::Pool);
    assert_eq!(pool[0]["io"]["write"]["ops"], 17);
    assert_eq!(rig.rows(Table::Osd)[0]["io"]["write"]["ops"], 17);
}

#[test]
fn sums_are_right_wherever_a_monitor_ends_while_it_writes_them() {
    for at in 1..40 {
        let mut rig = with_volumes(2, 300);
        rig.mishap = Mishap::KillAtEffect(rig.effects + at);
        let told = |rig: &mut Rig, from: u64, up_to: u64| {
            for osd in 1..=2 {
                let kept: Vec<Period> = (from..=up_to).map(|s| period(s, 1..=300, s)).collect();
                rig.stats(osd, &kept);
            }
        };
        for sequence in 1..=4 {
            let kills = rig.kills;
            told(&mut rig, sequence, sequence);
            rig.intervals(1);
            if rig.kills > kills {
                // The leader's OSDs have joined again, and send all periods that were not reported to them as
                // saved.
                let saved = [rig.saved(1), rig.saved(2)].into_iter().min().unwrap();
                told(&mut rig, saved + 1, sequence);
            }
        }
        rig.intervals(6);
        let sums: Vec<u64> = rig
            .rows(Table::Volume)
            .iter()
            .map(|r| r["io"]["write"]["ops"].as_u64().unwrap())
            .collect();
        assert_eq!(sums, vec![20; 300], "killed at effect {at}");
        assert_eq!((rig.saved(1), rig.saved(2)), (4, 4));
        rig.restart();
        rig.tick();
        let again: Vec<u64> = rig
            .rows(Table::Volume)
            .iter()
            .map(|r| r["io"]["write"]["ops"].as_u64().unwrap())
            .collect();
        assert_eq!(again, sums);
    }
}

#[test]
fn the_store_is_written_as_often_for_one_volume_as_for_thousands() {
    let mut counts = Vec::new();
    for count in [1, 200, 2000] {
        let mut rig = with_volumes(2, count);
        rig.intervals(3);
        let mut sequence = 0;
        let mut writes = 0;
        for _ in 0..10 {
            sequence += 1;
            for osd in 1..=2 {
                rig.stats(osd, &[period(sequence, 1..=count, 1)]);
            }
            writes += rig.writes_of_store(1);
        }
        counts.push(writes);
        let values = rig.command(Command::StateList { prefix: "stats/".into() }).unwrap();
        let longest = values.as_array().unwrap().iter().map(|row| row.to_string().len()).max();
        assert!(longest.unwrap() < 256 << 10, "{longest:?}");
        // Shards that had to wait are written later.
        rig.intervals(20);
        assert_eq!((rig.saved(1), rig.saved(2)), (10, 10));
        rig.restart();
        rig.tick();
        assert_eq!(rig.written(&format!("v{count}")), 20);
    }
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn space_is_what_the_leaders_of_pgs_have_and_does_not_vanish_with_a_monitor() {
    let mut rig = with_volumes(2, 2);
    rig.space(1, &[(1, MIB), (2, 3 * MIB)], true);
    rig.intervals(1);
    assert_eq!(rig.info("v1")["used_bytes"], 0, "the other one has not told");
    rig.space(2, &[(1, 2 * MIB)], true);
    rig.intervals(1);
    assert_eq!(rig.info("v1")["used_bytes"], 3 * MIB);
    assert_eq!(rig.rows(Table::Pool)[0]["used_bytes"], 6 * MIB);
    rig.space(2, &[(1, 5 * MIB)], false);
    rig.intervals(1);
    assert_eq!(rig.info("v1")["used_bytes"], 6 * MIB);
    // The next leader uses the stored value until all OSDs have reported.
    rig.restart();
    rig.tick();
    assert_eq!(rig.info("v1")["used_bytes"], 6 * MIB);
    rig.space(1, &[(1, MIB)], true);
    rig.intervals(1);
    assert_eq!(rig.info("v1")["used_bytes"], 6 * MIB);
    rig.space(2, &[(1, 4 * MIB)], true);
    rig.intervals(1);
    assert_eq!(rig.info("v1")["used_bytes"], 5 * MIB);
    assert_eq!(rig.info("v2")["used_bytes"], 0, "it was not told again");
    // The report of an OSD that has gone down counts until another OSD reports in its place.
    rig.kill_osd(2);
    assert_eq!(rig.info("v1")["used_bytes"], 5 * MIB);
    rig.space(1, &[(1, 5 * MIB)], false);
    rig.intervals(3);
    assert_eq!(rig.info("v1")["used_bytes"], 5 * MIB);
}

#[test]
fn what_is_gone_is_forgotten_and_a_manual_edit_is_undone() {
    let mut rig = with_volumes(1, 2);
    rig.stats(1, &[period(1, [1, 2], 10)]);
    rig.intervals(1);
    let key = "stats/volume/0";
    let text = rig.stored(key).unwrap().value;
    assert!(text.contains("\"name\":\"v1\""), "{text}");
    let put = Command::StatePut { key: key.into(), value: text.clone(), force: false };
    assert_eq!(rig.command(put).unwrap_err().code, "protected");
    rig.hand_writes(key, Some("{}"));
    assert_eq!(rig.stored(key).unwrap().value, text);
    assert!(rig.checks().contains(&"state_edit_undone".to_string()));
    // If a value was damaged while no monitor ran, its sums are lost, but nothing else.
    rig.hand_writes_unseen(key, Some("rubbish"));
    rig.forget_told();
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
    assert_eq!(rig.stored(key), None);
    assert_eq!(rig.written("v1"), 0);
    assert_eq!(rig.rows(Table::Pool)[0]["io"]["write"]["ops"], 20);
    rig.stats(1, &[period(2, [1, 2], 1)]);
    rig.intervals(1);
    assert!(rig.stored(key).unwrap().value.contains("\"v2\""));
    rig.remove_volume("v2").unwrap();
    rig.stats(1, &[period(3, [1, 2], 1)]);
    rig.intervals(2);
    assert!(!rig.stored(key).unwrap().value.contains("\"v2\""));
    rig.remove_volume("v1").unwrap();
    rig.stats(1, &[period(4, [1], 1)]);
    rig.intervals(2);
    assert_eq!(rig.stored(key), None);
    assert_eq!(rig.saved(1), 4);
}

#[test]
fn statistics_that_nobody_of_ours_sends_end_the_connection() {
    let mut rig = with_volumes(1, 1);
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    let periods = vec![period(2, [1], 1), period(1, [1], 1)];
    rig.say(connection, &ToMonitor::OsdStats(OsdStats { periods, ..OsdStats::default() }));
    assert!(!rig.open.contains(&connection));
    assert_eq!(rig.written("v1"), 0);
    let client = rig.client();
    rig.say(client, &ToMonitor::OsdStats(OsdStats::default()));
    assert!(!rig.open.contains(&client));
}

#[test]
fn a_period_that_no_osd_can_have_counted_ends_the_connection_and_nothing_else() {
    for sequence in [0, u64::MAX] {
        let mut rig = with_volumes(2, 1);
        let connection = rig.osds[&osd_id(1)].connection.unwrap();
        rig.stats(1, &[period(sequence, [1], 1)]);
        rig.intervals(2);
        assert!(!rig.open.contains(&connection), "{sequence}");
        assert_eq!(rig.written("v1"), 0);
    }
}
