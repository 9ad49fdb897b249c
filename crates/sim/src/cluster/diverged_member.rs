//! A member returns with writes that no other member has, and crashes repeatedly while it is backfilled.
//!
//! ```text
//!   primary reaches clients only ─▶ client writes, primary dies ─▶ other members continue
//!     ─▶ old primary returns as a learner ─▶ it dies during backfill, again and again
//! ```

use base::Duration;

use super::agenda::Item;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// The number of times that a primary diverges.
const ROUND_COUNT: usize = 2;

/// The maximum number of times that the backfill of one such member is interrupted.
const DEATH_COUNT_MAX: u64 = 4;

/// The longest time that a backfill runs before the learner dies, in microseconds.
const FILLED_FOR_MAX: u64 = 400_000;

/// Within this time, a primary has journaled the writes that it received.
const ASTRAY_FOR: Duration = Duration::from_millis(60);

/// The total time for which the primary is cut off: long enough for others to take over its PGs.
const CUT_OFF_FOR: Duration = Duration::from_secs(2);

impl World {
    /// Runs the scenario, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn return_diverged_member(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "astray");
        let is_tried = self.plan.position_count() > 1 && random.chance(Chance::percent(40));
        if !is_tried || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let must_be_whole = std::mem::replace(&mut self.faults.must_be_whole, false);
        for _ in 0..ROUND_COUNT {
            self.wait("a client does not start", |world| world.clients[0].core.is_some())?;
            let Some(writer) = self.attach_one(None)? else { break };
            let Some((primary, _)) = self.draw_pair(&mut random) else { break };
            self.fault("member came back with writes that nobody adopted");
            let blocks = self.first_blocks(writer);
            self.write_all(writer, &blocks)?;
            self.cut_off_servers(primary);
            self.overwrite(writer, &blocks)?;
            self.pass(ASTRAY_FOR)?;
            self.kill(Process::Client(writer.client))?;
            self.pass(CUT_OFF_FOR)?;
            let wakes = self.net.heal_all(self.now);
            self.wake(wakes);
            for _ in 0..random.range(1..DEATH_COUNT_MAX + 1) {
                let learner = self.tally.consequences.get("learner to be filled by versions")
                    + self.tally.consequences.get("learner to be compared by listing");
                let end = self.now + CUT_OFF_FOR;
                self.wait("time stands still", |world| {
                    let consequences = &world.tally.consequences;
                    let filled = consequences.get("learner to be filled by versions")
                        + consequences.get("learner to be compared by listing");
                    filled > learner || world.now > end
                })?;
                self.pass(Duration::from_nanos(random.scale(1..FILLED_FOR_MAX) * 1000))?;
                if self.is_running(Process::Osd(primary)) {
                    self.kill(Process::Osd(primary))?;
                    self.schedule(Duration::from_millis(10), Item::Start(Process::Osd(primary)));
                }
            }
            self.wait_until_whole()?;
        }
        self.wait("a client does not start", |world| world.clients[0].core.is_some())?;
        self.detach_all()?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole = must_be_whole;
        Ok(())
    }
}
