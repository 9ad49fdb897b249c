//! Requests that arrive after their session has ended or was forgotten.
//!   1. A client detaches a volume while its writes are held up in the network, so it never learns their
//!      outcome. Another client attaches the volume and writes to it; then the delayed writes arrive.
//!   2. A client freezes for so long that OSDs forget its session. Then an old connection delivers requests
//!      that the client has since retransmitted over a new one.

use std::collections::BTreeSet;

use base::{Duration, PoolId};
use format::disk::BlockKey;

use super::client::Handle;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// The maximum number of blocks that are written.
const BLOCK_COUNT_MAX: usize = 16;

/// Longer than the time for which OSDs remember a session (a minute, checked with each report).
const FORGOTTEN_AFTER: Duration = Duration::from_secs(65);

/// Within this time, all delayed messages have arrived.
const ARRIVES_WITHIN: Duration = Duration::from_secs(1);

impl World {
    /// Runs one of the two scenarios, if the seed draws one. Requires: the cluster is whole, and no
    /// fault happens.
    pub(super) fn leave_requests_behind(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "leavers");
        let (closes, is_silent) =
            (random.chance(Chance::percent(35)), random.chance(Chance::percent(10)));
        if closes && self.wait_until_whole_for(WHOLE_FOR)?.is_none() {
            self.leave_uncleanly()?;
        }
        if is_silent && self.wait_until_whole_for(WHOLE_FOR)?.is_none() {
            self.be_forgotten()?;
        }
        Ok(())
    }

    fn leave_uncleanly(&mut self) -> Result<(), String> {
        let Some(leaver) = self.attach_one(None)? else { return Ok(()) };
        self.fault("volume detached with writes on their way");
        let blocks = self.first_blocks(leaver);
        self.write_all(leaver, &blocks)?;
        for index in 0..self.osds.len() {
            let client = Process::Client(leaver.client);
            self.net.hold_back(client, Process::Osd(index), false);
        }
        self.overwrite(leaver, &blocks)?;
        self.detach_all()?;
        // A monitor must have recorded the detach: otherwise the volume may still be locked.
        self.pass(ARRIVES_WITHIN)?;
        if let Some(next) = self.attach_for(1, leaver.volume, None)? {
            self.write_all(next, &blocks)?;
        }
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.pass(ARRIVES_WITHIN)?;
        self.detach_all()?;
        self.read_everything()
    }

    fn be_forgotten(&mut self) -> Result<(), String> {
        let Some(silent) = self.attach_one(Some(false))? else { return Ok(()) };
        self.fault("requests arrived after their session was forgotten");
        let blocks = self.first_blocks(silent);
        let client = Process::Client(silent.client);
        self.write_all(silent, &blocks)?;
        self.overwrite(silent, &blocks)?;
        // The client notices at once that its connections broke, and continues over new ones.
        let wakes = self.net.leave_behind(self.now, client, FORGOTTEN_AFTER);
        self.wake(wakes);
        self.write_all(silent, &blocks)?;
        let wakes = self.net.time_out(self.now, client, Duration::from_millis(1));
        self.wake(wakes);
        self.pass(FORGOTTEN_AFTER)?;
        self.pass(ARRIVES_WITHIN)?;
        self.detach_all()?;
        self.read_everything()
    }

    /// Writes these blocks, and waits until all writes are answered.
    pub(super) fn write_all(
        &mut self,
        to: Handle,
        blocks: &BTreeSet<BlockKey>,
    ) -> Result<(), String> {
        self.overwrite(to, blocks)?;
        self.wait("a write is never answered", |world| world.clients[to.client].open.is_empty())
    }

    /// Returns the first blocks of the attached volume.
    pub(super) fn first_blocks(&self, of: Handle) -> BTreeSet<BlockKey> {
        let blocks = self.volumes[of.volume].stripes(PoolId::FIRST);
        blocks.map(|(_, _, key)| key).take(BLOCK_COUNT_MAX).collect()
    }
}
