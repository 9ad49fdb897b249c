//! All OSDs lose power at once around a flush of a lazy client, whose writes are acknowledged before they are
//! durable. The client repeats the writes that it sent during the flush, and those that the next flush
//! covers, so none of them may be missing.

use base::Duration;

use super::client::Handle;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::disk::Crash;
use crate::random::{Chance, Random};

/// The number of times that all OSDs lose power.
const ROUND_COUNT: usize = 4;

/// How long the power stays off.
const POWER_OFF_FOR: Duration = Duration::from_millis(200);

impl World {
    /// Runs the scenario, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn lose_all_power(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "darkness");
        // Writes that a client repeats after a power loss wait for free space; on full disks, a flush
        // would wait, too.
        let is_tried = random.chance(Chance::percent(50)) && !self.plan.may_fill();
        if !is_tried || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let Some(holder) = self.attach_one(Some(true))? else { return Ok(()) };
        if !self.is_lazy(holder) {
            return self.detach_all();
        }
        let must_be_whole = std::mem::replace(&mut self.faults.must_be_whole, false);
        let blocks = self.first_blocks(holder);
        for _ in 0..ROUND_COUNT {
            self.write_all(holder, &blocks)?;
            self.ask_flush(holder)?;
            self.overwrite(holder, &blocks)?;
            // More writes are acknowledged during the flush; in some rounds a second flush covers them.
            let again = random.chance(Chance::percent(50));
            self.wait("a flush is never answered", |world| {
                let is_left = again && world.clients[holder.client].open.len() == 1;
                is_left || !world.is_flushing(holder)
            })?;
            if again {
                self.ask_flush(holder)?;
                self.all_answered(holder)?;
            }
            self.fault("all OSDs lost power around a flush");
            self.faults.power_off_until = self.now + POWER_OFF_FOR;
            for index in 0..self.osds.len() {
                if self.is_running(Process::Osd(index)) {
                    self.kill_by(Process::Osd(index), Some(Crash::Power))?;
                }
            }
            self.all_answered(holder)?;
        }
        self.read_all(holder.client)?;
        self.all_answered(holder)?;
        self.detach_all()?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole = must_be_whole;
        self.read_everything()
    }

    fn all_answered(&mut self, of: Handle) -> Result<(), String> {
        self.wait("an operation is never answered after power was lost", |world| {
            world.clients[of.client].open.is_empty()
        })
    }
}
