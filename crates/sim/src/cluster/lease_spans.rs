//! The duration of leases changes while some leases are outstanding: the duration is shortened, or a member
//! that granted long leases restarts. A primary that is cut off from monitors and members may serve until the
//! long leases have expired.
//!
//! ```text
//!   long duration set ─▶ leases granted ─┬▶ short one set ─▶ primary cut off ─┬▶ next epoch of its PGs
//!                                        └▶ primary cut off ─▶ member dies ────┘
//! ```
//!
//! `grants.rs` checks when members take part in that epoch.

use base::{Duration, OsdId};
use cluster::settings::Setting;

use super::agenda::Item;
use super::operator::Job;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// The number of times that a primary is cut off.
const ROUND_COUNT: usize = 3;

/// How long the long duration is in effect first: by then, the store of each giver has recorded it.
const LONG_FOR: Duration = Duration::from_secs(1);

/// How long a primary is cut off: long enough for others to take over its PGs.
const CUT_OFF_FOR: Duration = Duration::from_secs(3);

/// The longest time between the change of the duration and the cut-off, in milliseconds.
const SHORT_FOR_MAX: u64 = 200;

/// Within this time, both ends notice that a connection broke.
const TOLD_WITHIN: Duration = Duration::from_millis(10);

impl World {
    /// Runs the scenario, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn change_leases(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "spans of leases");
        let is_tried = self.plan.position_count() > 1 && random.chance(Chance::percent(30));
        if !is_tried || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        // Data that rotted at other members has no good copy while the primary is cut off.
        let must_be_whole = std::mem::replace(&mut self.faults.must_be_whole, false);
        let lease = Setting::Lease.definition();
        for _ in 0..ROUND_COUNT {
            self.set_lease(lease.max)?;
            self.pass(LONG_FOR)?;
            let Some((primary, member)) = self.draw_pair(&mut random) else { break };
            if random.chance(Chance::percent(50)) {
                self.fault("leases made shorter, and a primary cut off");
                self.set_lease(lease.min)?;
                self.pass(Duration::from_millis(random.range(1..SHORT_FOR_MAX)))?;
                self.cut_off_servers(primary);
            } else {
                self.fault("long leases out, and their giver starts anew");
                self.cut_off_servers(primary);
                self.kill(Process::Osd(member))?;
                let after = Duration::from_millis(random.range(1..SHORT_FOR_MAX));
                self.schedule(after, Item::Start(Process::Osd(member)));
            }
            self.pass(CUT_OFF_FOR)?;
            let wakes = self.net.heal_all(self.now);
            self.wake(wakes);
            self.wait_until_whole()?;
        }
        self.set_lease(lease.default)?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole = must_be_whole;
        Ok(())
    }

    fn set_lease(&mut self, milliseconds: u64) -> Result<(), String> {
        self.operator.jobs.push_back(Job::Set(Setting::Lease, milliseconds));
        self.wait("the span of leases cannot be set", |world| world.operator.jobs.is_empty())
    }

    /// Draws a PG. Returns its primary and another of its members.
    pub(super) fn draw_pair(&mut self, random: &mut Random) -> Option<(usize, usize)> {
        let pairs = self.watch.entries().filter_map(|entry| {
            let primary = entry.primary_osd()?;
            let other = entry.acting().find(|member| member.osd != primary)?;
            Some((primary, other.osd))
        });
        let pairs: Vec<(OsdId, OsdId)> = pairs.collect();
        if pairs.is_empty() {
            return None;
        }
        let (primary, member) = *random.pick(&pairs);
        Some((self.index_of(primary)?, self.index_of(member)?))
    }

    /// Cuts an OSD off from all processes except clients. The monitors notice this at once, the other
    /// members do not.
    pub(super) fn cut_off_servers(&mut self, index: usize) {
        let osd = Process::Osd(index);
        for monitor in self.monitor_processes() {
            let wakes = self.net.time_out_between(self.now, osd, monitor, TOLD_WITHIN);
            self.wake(wakes);
        }
        self.silence_servers(osd);
    }
}
