//! Disks that answer, but take many times as long as before, for minutes. At the end of some runs, while
//! nothing else happens, one disk becomes slow: the monitor must name it, and no other, and must no longer
//! name it once it is well again.

use std::collections::BTreeSet;

use base::{Duration, OsdId, Time};
use cluster::message::FromMonitor;
use cluster::settings::Setting;

use super::operator::Job;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// `disk_slower_ms` in the scenario at the end, and how often OSDs report then.
const SLOWER_MS: u64 = 6_000;
const REPORT_MS: u64 = 300;
/// In the scenario a slow disk takes at least this long on average: less is never slow.
const MEAN_MIN: u64 = 6_000_000;
/// Within this time the monitor must have noticed that a disk is slow, or well again: twice `SLOWER_MS`,
/// and the intervals in which that begins and ends.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// In the scenario a disk is slow for this long, if its end is not ordered before.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// The pause between two operations of the scenario.
const THINK: Duration = Duration::from_millis(15);

/// Which disks become slow in a run, and what monitors said about that.
pub(super) struct SlowDisks {
    random: Random,
    /// The chance, per event, that a disk becomes slow.
    chance: Chance,
    /// `disk_slower_ms` while users work.
    slower_ms: u64,
    /// The disks that a monitor named last.
    named: BTreeSet<OsdId>,
}

/// How slow a disk is.
#[derive(Clone, Copy, Default)]
pub(super) struct Slowness {
    /// How many times as long an operation takes.
    factor: u64,
    until: Time,
}

impl Slowness {
    /// Returns how many times as long an operation that begins now takes.
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

    /// Returns the job that lets monitors judge disks within a run; `None`: no disk becomes slow in it.
    pub(super) fn job(&self) -> Option<Job> {
        (self.chance != Chance::NEVER).then_some(Job::Set(Setting::DiskSlower, self.slower_ms))
    }

    /// Records what a monitor tells an OSD. Returns whether it names a disk that was not named before.
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
    /// Records what a monitor tells an OSD.
    pub(super) fn note_slow_disks(&mut self, text: &str) {
        if self.slow_disks.monitor_says(text) {
            self.fault("disk named as slow");
        }
    }

    /// Called after each event while users work: a disk may become slow for up to three minutes.
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

    /// All disks are as quick as before. Requires: no other fault happens from now on.
    pub(super) fn end_slowness(&mut self) -> Result<(), String> {
        for osd in &mut self.osds {
            osd.slowness = Slowness::default();
        }
        self.wait("a disk is named as slow for ever", |world| world.slow_disks.named.is_empty())
    }

    /// Makes one disk slow: it must be named, and no other, until it is well again. Requires: the cluster is
    /// whole, and no fault happens.
    pub(super) fn slow_one_disk(&mut self) -> Result<(), String> {
        // Disks that are full have little to do.
        if self.plan.position_count() == 1
            || self.plan.may_fill()
            || self.slow_disks.random.chance(Chance::percent(70))
            || self.wait_until_whole_for(WHOLE_FOR)?.is_some()
        {
            return Ok(());
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        self.net.calm_down(50_000);
        let setting = |setting, milliseconds| Job::Set(setting, milliseconds);
        self.operator.jobs.push_back(setting(Setting::DiskSlower, SLOWER_MS));
        self.operator.jobs.push_back(setting(Setting::OsdReport, REPORT_MS));
        self.wait("a setting cannot be set", |world| world.operator.jobs.is_empty())?;
        // The disk that has most to do: there are figures of it, and of its peers.
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
        // It is a finding: a while longer, so that reads go to others.
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

    /// A client works until it `is_enough`, for this span at most.
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
