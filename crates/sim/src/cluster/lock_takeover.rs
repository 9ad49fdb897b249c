//! A lock is taken over while its holder's last writes exist only on members that cannot be reached. Another
//! client reads the volume before these members can be reached again.
//!
//! ```text
//!   members reach clients only ─▶ holder writes ─▶ members unreachable
//!     ─▶ lock taken over ─▶ another client reads ─▶ members reachable again
//! ```
//!
//! The writes then belong to a fenced session: data that was read must not change when the members return.

use std::collections::BTreeSet;

use base::{Duration, OsdId, PoolId};
use format::disk::BlockKey;

use super::client::Handle;
use super::operator::Job;
use super::osd_loss::TIME_OUT;
use super::process::Process;
use super::world::{WHOLE_FOR, World};

/// The maximum number of blocks that are written and read.
const BLOCK_COUNT_MAX: usize = 16;

/// How long members can reach only clients: shorter than a lease.
const HALF_HEARD_FOR: Duration = Duration::from_millis(50);

/// How long to wait for the reads. A read that needs data of the unreachable members waits until they
/// return.
const READ_FOR: Duration = Duration::from_secs(4);

impl World {
    /// Runs the scenario; `members` become unreachable. Requires: the cluster is whole, and no fault
    /// happens.
    pub(super) fn take_over_from(&mut self, members: &[usize]) -> Result<(), String> {
        let Some(holder) = self.attach_one(Some(true))? else { return Ok(()) };
        // Members must first receive the list of sessions that were fenced for the attach.
        if self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return self.detach_all();
        }
        self.fault("lock taken while members are missed");
        let blocks = self.blocks_led_by(members, holder);
        for index in members {
            self.silence_servers(Process::Osd(*index));
        }
        self.overwrite(holder, &blocks)?;
        self.pass(HALF_HEARD_FOR)?;
        for index in members {
            self.silence(Process::Osd(*index));
            let wakes = self.net.time_out(self.now, Process::Osd(*index), TIME_OUT);
            self.wake(wakes);
        }
        self.operator.jobs.push_back(Job::Unlock(holder.volume));
        self.wait("a lock cannot be taken", |world| world.operator.jobs.is_empty())?;
        self.attach_volume(1, holder.volume, true, false)?;
        self.wait("an attach is never done", |world| world.clients[1].is_settled())?;
        // Once a PG has answered the new session, it executes nothing for the fenced one: from then on,
        // data that was read must not change.
        for _ in 0..2 {
            self.read_blocks(1, |_, _, key| blocks.contains(key))?;
            let end = self.now + READ_FOR;
            self.wait("time stands still", |world| {
                world.clients[1].open.is_empty() || world.now > end
            })?;
        }
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.wait("what was asked while members are missed is never answered", |world| {
            world.clients.iter().all(|client| client.open.is_empty())
        })?;
        self.detach_all()?;
        self.read_everything()
    }

    /// Returns blocks of the holder's volume in PGs whose primary is one of these members.
    fn blocks_led_by(&self, members: &[usize], holder: Handle) -> BTreeSet<BlockKey> {
        let ids: Vec<Option<OsdId>> = members.iter().map(|index| self.osds[*index].id).collect();
        let led = self.watch.entries().filter(|entry| ids.contains(&entry.primary_osd()));
        let led: BTreeSet<u32> = led.map(|entry| entry.pg.number).collect();
        let blocks = self.volumes[holder.volume].stripes(PoolId::FIRST);
        let blocks = blocks.filter(|(_, pg, _)| led.contains(pg)).map(|(_, _, key)| key);
        blocks.take(BLOCK_COUNT_MAX).collect()
    }
}
