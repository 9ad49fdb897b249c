//! Disks that work, but take many times as long as before, for minutes. At the end of some runs, while
//! nothing else happens, one disk becomes slow: the monitor must report this disk as slow, and no other, and
//! must withdraw the report once the disk is fast again.

use std::collections::BTreeSet;

use base::{Duration, OsdId, Time};
use cluster::message::FromMonitor;
use cluster::settings::Setting;

use super::operator::Job;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// The setting `disk_slower_ms` in the scenario at the end of a run, and the interval of the OSDs'
/// reports then.
const SLOWER_MS: u64 = 6_000;
const REPORT_MS: u64 = 300;
/// The shortest mean latency of a slow disk in the scenario, in nanoseconds: a faster disk never counts
/// as slow.
const MEAN_MIN: u64 = 6_000_000;
/// Within this time, the monitor must have noticed that a disk became slow, or fast again: twice
/// `SLOWER_MS`, and the report intervals at both ends.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// PGs of objects that are idle have been cleaned after this time.
const HOUSEKEEPING_ENDS: Duration = Duration::from_secs(5);
/// The longest time for which the disk is slow in the scenario.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// The longest rest of an OSD that started too often, and the time to fill it.
const MOVES_END: Duration = Duration::from_secs(90);
/// The pause between two operations of the scenario.
const THINK: Duration = Duration::from_millis(15);

/// Draws which disks become slow in a run, and records which disks the monitor reported as slow.
pub(super) struct SlowDisks {
    random: Random,
    /// The chance, per event, that a disk becomes slow.
    chance: Chance,
    /// The setting `disk_slower_ms` while users work.
    slower_ms: u64,
    /// The disks in the monitor's last list of slow disks.
    named: BTreeSet<OsdId>,
}

/// The slowness of a disk.
#[derive(Clone, Copy, Default)]
pub(super) struct Slowness {
    /// The factor by which operations take longer.
    factor: u64,
    until: Time,
}

impl Slowness {
    /// Returns the factor by which an operation that begins now takes longer.
    pub(super) fn factor(&self, now: Time) -> Option<u64> {
        (now < self.until).then_some(self.factor)
    }
}

impl SlowDisks {
    pub(super) fn draw(seed: u64) -> SlowDisks {
        let mut random = Random::new(seed, "slow disks");
        let happens = random.chance(Chance::percent(40));
        let chance = if happens { Chance(random.scale(50..1_000) as u32) } else { Chance::NEVER };
        let slower_ms = random.scale(1_000..4_000);
        SlowDisks { random, chance, slower_ms, named: BTreeSet::new() }
    }

    /// Returns the job that makes monitors detect slow disks during the run. `None`: no disk becomes
    /// slow in the run.
    pub(super) fn job(&self) -> Option<Job> {
        (self.chance != Chance::NEVER).then_some(Job::Set(Setting::DiskSlower, self.slower_ms))
    }

    /// Records a message from a monitor to an OSD. Returns whether it lists a disk that the last list
    /// did not contain.
    fn monitor_says(&mut self, text: &str) -> bool {
        if !text.contains("\"slow_disks\"") {
            return false;
        }
        let Ok(FromMonitor::SlowDisks { osds, .. }) = serde_json::from_str(text) else {
            return false;
        };
        let before = std::mem::replace(&mut self.named, osds.into_iter().collect());
        !self.named.is_subset(&before)
    }
}

impl World {
    /// Counts a message from a monitor to an OSD that reports another disk as slow.
    pub(super) fn note_slow_disks(&mut self, text: &str) {
        if self.slow_disks.monitor_says(text) {
            self.fault("disk named as slow");
        }
    }

    /// Makes a disk slow at random, for up to three minutes. Called after each event while users work.
    pub(super) fn slow_some(&mut self) {
        let slow = &mut self.slow_disks;
        if !slow.random.chance(slow.chance) {
            return;
        }
        let index = slow.random.index(self.osds.len());
        let factor = slow.random.range(10..51);
        let span = Duration::from_millis(slow.random.scale(1_000..180_000));
        self.slow_down(index, factor, span);
    }

    fn slow_down(&mut self, index: usize, factor: u64, span: Duration) {
        let now = self.now;
        self.osds[index].slowness = Slowness { factor, until: now + span };
        self.trace.line(format_args!(
            "{now:?} the disk of osd {index} takes {factor} times as long for {span:?}"
        ));
        self.fault("disk became slow");
    }

    /// Makes all disks as fast as before. Requires: no other fault happens from now on.
    pub(super) fn end_slowness(&mut self) -> Result<(), String> {
        for osd in &mut self.osds {
            osd.slowness = Slowness::default();
        }
        self.wait("a disk is named as slow for ever", |world| world.slow_disks.named.is_empty())
    }

    /// Makes one disk slow. The monitor must report this disk and no other, until the disk is fast
    /// again. Requires: the cluster is whole, and no fault happens.
    pub(super) fn slow_one_disk(&mut self) -> Result<(), String> {
        // Full disks have little work.
        if self.plan.position_count() == 1
            || self.plan.may_fill()
            || self.slow_disks.random.chance(Chance::percent(70))
            || self.wait_until_whole_for(WHOLE_FOR)?.is_some()
        {
            return Ok(());
        }
        // An OSD that leaves its PGs has no work by which its disk could be judged.
        if !self.state.is_as_planned() {
            let end = self.now + MOVES_END;
            while !self.state.is_as_planned() && self.now < end {
                self.pass(Duration::from_millis(100))?;
            }
            if !self.state.is_as_planned() || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
                return Ok(());
            }
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        self.net.calm_down(50_000);
        let setting = |setting, milliseconds| Job::Set(setting, milliseconds);
        self.operator.jobs.push_back(setting(Setting::DiskSlower, SLOWER_MS));
        self.operator.jobs.push_back(setting(Setting::OsdReport, REPORT_MS));
        self.wait("a setting cannot be set", |world| world.operator.jobs.is_empty())?;
        if self.objects.is_some() {
            // The logs of objects are cut meanwhile: that is no work that goes on.
            self.work_for(attached, HOUSEKEEPING_ENDS, |_| false)?;
        }
        // Pick the disk with the most work: the monitor has latencies of this disk and of its peers.
        let before: Vec<u64> = self.osds.iter().map(|osd| osd.operation_count).collect();
        self.work_for(attached, Duration::from_secs(2), |_| false)?;
        let did = |index: &usize| self.osds[*index].operation_count - before[*index];
        let victim = (0..self.osds.len()).filter(|index| self.is_running(Process::Osd(*index)));
        let Some(victim) = victim.max_by_key(did).filter(|index| did(index) > 20) else {
            return self.detach_all();
        };
        let id = self.osds[victim].id.ok_or("an OSD that works has an id")?;
        let factor = self.slow_disks.random.range(20..51);
        let factor = factor.max(MEAN_MIN / self.plan.disk_latency);
        self.slow_down(victim, factor, SLOW_FOR);
        let names = move |world: &World| world.slow_disks.named.contains(&id);
        self.work_for(attached, NOTICED_WITHIN, names)?;
        if !names(self) {
            return Err(format!("the disk of osd {victim} is slow, and no monitor says so"));
        }
        // The disk is reported as slow. Continue for a while, so that reads are served by other
        // members.
        self.work_for(attached, Duration::from_secs(2), |_| false)?;
        if self.slow_disks.named.len() > 1 {
            return Err(format!("only the disk of {id} is slow: {:?}", self.slow_disks.named));
        }
        self.osds[victim].slowness = Slowness::default();
        self.work_for(attached, NOTICED_WITHIN, move |world| !names(world))?;
        if names(self) {
            return Err(format!("the disk of osd {victim} is well, and a monitor says it is slow"));
        }
        self.wait("an operation is never answered after a disk was slow", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.detach_all()
    }

    /// Makes a client work until `is_enough` returns true, for at most this span.
    fn work_for(
        &mut self,
        attached: super::client::Handle,
        span: Duration,
        is_enough: impl Fn(&World) -> bool,
    ) -> Result<(), String> {
        let end = self.now + span;
        while self.now < end && !is_enough(self) {
            if self.clients[0].open.len() < self.plan.depth_max {
                self.ask_for_drill(attached)?;
            }
            self.pass(THINK)?;
        }
        Ok(())
    }
}
