//! A disk that takes many times as long as the disks of its peers: which OSDs are informed, and which OSD is
//! primary meanwhile.

use base::{Duration, Epoch};

use super::rig::{Rig, osd_id};
use crate::message::DiskOperations;

/// A pool with three copies on three OSDs.
struct Disks {
    rig: Rig,
    sums: [DiskOperations; 3],
}

impl Disks {
    fn new() -> Disks {
        Disks { rig: Rig::with_copies(3, 3, 2, 16), sums: [DiskOperations::default(); 3] }
    }

    /// Advances the clock. Each second, each disk does two flushes of the given length.
    fn pass(&mut self, seconds: u64, each_ms: [u64; 3]) {
        for _ in 0..seconds {
            self.rig.advance(Duration::from_secs(1));
            for (number, each) in (1..=3).zip(each_ms) {
                let sums = &mut self.sums[number as usize - 1];
                sums.count += 2;
                sums.nanos += 2 * each * 1_000_000;
                let (flushes, slow) = (*sums, self.told(number).contains(&osd_id(number)));
                self.rig.report(number, |report| {
                    report.disk.flushes = flushes;
                    report.slow = slow;
                });
            }
        }
    }

    fn told(&self, number: u32) -> &[base::OsdId] {
        &self.rig.osds[&osd_id(number)].slow_disks
    }

    /// Returns the severity and the message about slow disks in `status`; `None`: there is none.
    fn warning(&mut self) -> Option<(String, String)> {
        let status = self.rig.status();
        let checks = status["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["code"] == "osd_slow")?;
        let text = |key: &str| check[key].as_str().unwrap().to_string();
        Some((text("severity"), text("message")))
    }

    fn epochs(&self) -> Vec<Epoch> {
        self.rig.entries().iter().map(|entry| entry.epoch).collect()
    }

    fn led_by(&self, number: u32) -> usize {
        let entries = self.rig.entries();
        entries.iter().filter(|entry| entry.primary_osd() == Some(osd_id(number))).count()
    }
}

#[test]
fn a_slow_disk_is_named_with_figures_and_leads_nothing_until_it_is_well() {
    let mut disks = Disks::new();
    let led = disks.led_by(2);
    assert!(led > 0);
    disks.pass(50, [2, 60, 3]);
    assert_eq!(disks.warning(), None, "not for a minute yet");
    disks.pass(30, [2, 60, 3]);
    let (severity, message) = disks.warning().unwrap();
    assert_eq!(severity, "warn");
    assert!(message.contains("osd.2"), "{message}");
    assert!(
        message.contains("flushes take 60 ms, compared with 3.00 ms on its peers"),
        "{message}"
    );
    assert_eq!(disks.led_by(2), 0, "others lead, and it stays a member");
    assert!(disks.rig.entries().iter().all(|entry| entry.acting_count() == 3));
    for number in 1..=3 {
        assert_eq!(disks.told(number), [osd_id(2)]);
    }
    disks.pass(90, [2, 4, 3]);
    assert_eq!(disks.warning(), None);
    assert_eq!(disks.led_by(2), led);
    assert!(disks.told(1).is_empty());
}

#[test]
fn where_all_disks_are_slow_nothing_changes() {
    let mut disks = Disks::new();
    let led = disks.led_by(2);
    disks.pass(90, [60, 60, 60]);
    assert_eq!(disks.warning(), None);
    assert_eq!(disks.led_by(2), led);
}

#[test]
fn the_next_leader_goes_on_with_what_osds_were_told() {
    let mut disks = Disks::new();
    disks.pass(80, [2, 60, 3]);
    assert_eq!(disks.told(2), [osd_id(2)]);
    let epochs = disks.epochs();
    disks.rig.restart();
    disks.pass(20, [2, 60, 3]);
    let (_, message) = disks.warning().unwrap();
    assert!(message.contains("osd.2"), "{message}");
    assert_eq!(disks.led_by(2), 0);
    assert_eq!(disks.epochs(), epochs, "no PG was handed back and away again");
    // An OSD that joins meanwhile is informed, too.
    disks.rig.kill_osd(3);
    disks.rig.osds.get_mut(&osd_id(3)).unwrap().slow_disks.clear();
    disks.rig.boot(3);
    assert_eq!(disks.told(3), [osd_id(2)]);
}
