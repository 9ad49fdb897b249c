//! The loss scenario: OSDs fail for a long time, so many that PGs are left with fewer members than they need,
//! and spare OSDs replace them. While the PGs wait, data that every member is known to have can still be
//! read. Every PG must be served again by the remaining OSDs, with all acknowledged data, before the lost
//! OSDs return. In a variant, the OSDs are only unreachable, and can be reached again as soon as backfill to
//! spare OSDs has begun.

use base::Duration;
use cluster::settings::Setting;

use super::agenda::Item;
use super::operator::Job;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::Chance;

/// How long an OSD is down before it is marked out automatically, if the operator does not do so.
const OUT_AFTER_MS: u64 = 3_000;

/// Within this time, the connections of unreachable OSDs break.
pub(super) const TIME_OUT: Duration = Duration::from_secs(4);

/// The longest time for which OSDs are unreachable.
const MISSED_FOR: Duration = Duration::from_secs(20);

/// The maximum number of draws in search of OSDs whose loss leaves enough failure domains.
const DRAW_COUNT: usize = 8;

impl World {
    /// Runs the scenario, if the plan has it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn lose_osds(&mut self) -> Result<(), String> {
        if !self.plan.loses_osds || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let Some(lost) = self.draw_lost() else { return Ok(()) };
        if self.chaos.chance(Chance::percent(50)) {
            self.take_over_from(&lost)?;
            if self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
                return Ok(());
            }
        }
        if self.chaos.chance(Chance::percent(50)) {
            return self.miss(&lost);
        }
        self.attach_all_to_read()?;
        // Members must first receive the list of sessions that were fenced for the attaches.
        if self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return self.detach_all();
        }
        for index in &lost {
            self.fault("OSD lost for long");
            self.osds[*index].stays_down = true;
            self.kill(Process::Osd(*index))?;
        }
        if self.chaos.chance(Chance::percent(50)) {
            self.fault("OSDs go out by themselves");
            self.operator.jobs.push_back(Job::Set(Setting::OsdOutAfter, OUT_AFTER_MS));
        } else {
            self.operator.jobs.extend(lost.iter().map(|index| Job::SetOut(*index, true)));
        }
        self.wait("lost members keep a PG from being served", |world| {
            world.operator.jobs.is_empty()
                && world.what_is_not_served().is_none()
                && lost.iter().all(|index| !world.is_acting(*index))
        })
        .map_err(|what| format!("{what}: {:?}", self.what_is_not_served()))?;
        self.read_everything()?;
        for index in &lost {
            self.osds[*index].stays_down = false;
            self.schedule(Duration::ZERO, Item::Start(Process::Osd(*index)));
        }
        let default = Setting::OsdOutAfter.definition().default;
        self.operator.jobs.push_back(Job::Set(Setting::OsdOutAfter, default));
        self.operator.jobs.extend(lost.iter().map(|index| Job::SetOut(*index, false)));
        self.wait("OSDs do not come in again", |world| world.operator.jobs.is_empty())?;
        self.wait_until_whole().map(drop)
    }

    /// Makes these OSDs unreachable until the backfill of a PG that waits for one of them has begun.
    fn miss(&mut self, lost: &[usize]) -> Result<(), String> {
        const FILLED: &str = "learner to be filled while members are lost";
        for index in lost {
            self.fault("OSD missed for long");
            self.silence(Process::Osd(*index));
            let wakes = self.net.time_out(self.now, Process::Osd(*index), TIME_OUT);
            self.wake(wakes);
        }
        let (filled, end) = (self.tally.consequences.get(FILLED), self.now + MISSED_FOR);
        self.operator.jobs.extend(lost.iter().map(|index| Job::SetOut(*index, true)));
        self.wait("time stands still", |world| {
            world.tally.consequences.get(FILLED) > filled || world.now > end
        })?;
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.operator.jobs.extend(lost.iter().map(|index| Job::SetOut(*index, false)));
        self.wait("OSDs do not come in again", |world| world.operator.jobs.is_empty())?;
        self.wait_until_whole()?;
        self.read_everything()
    }

    /// Draws the OSDs to lose: one more than a PG can spare, but not so many that a PG loses data, and such
    /// that the remaining OSDs can hold all copies or parts.
    fn draw_lost(&mut self) -> Option<Vec<usize>> {
        let count = (self.plan.position_count() - self.plan.min_size + 1) as usize;
        if count > self.plan.loss_count_max() as usize {
            return None;
        }
        (0..DRAW_COUNT).find_map(|_| {
            let mut lost: Vec<usize> =
                (0..self.osds.len()).filter(|index| !self.osds[*index].is_gone).collect();
            self.chaos.shuffle(&mut lost);
            lost.truncate(count);
            let left = self.domain_count_without(&lost);
            (left >= self.plan.position_count() as usize).then_some(lost)
        })
    }

    fn is_acting(&self, index: usize) -> bool {
        let id = self.osds[index].id;
        let is_it = |member: &format::wire::Member| Some(member.osd) == id;
        self.watch.all_entries().any(|entry| entry.acting().any(is_it))
    }

    fn what_is_not_served(&self) -> Option<String> {
        self.watch.what_is_not_served(|osd| self.index_of(osd))
    }
}
