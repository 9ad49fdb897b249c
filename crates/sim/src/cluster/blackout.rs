//! The blackout: everything but the clients dies at once while one writes, and starts a minute later. Leases,
//! sessions and grace times have run out by then. Clients only wait: each operation is answered, and what was
//! answered before is there.

use base::Duration;

use super::Process;
use super::drill::WHOLE_FOR;
use super::world::World;
use crate::random::{Chance, Random};

/// How long everything is away.
const AWAY_FOR: Duration = Duration::from_secs(60);

/// Operations of the client, and the time between two of them.
const OPERATION_COUNT: usize = 40;
const ASK_EVERY: Duration = Duration::from_millis(2);

impl World {
    /// Holds the blackout, if there is to be one. Requires: the cluster is whole, and no fault happens.
    pub(super) fn black_out(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "blackout");
        if random.chance(Chance::percent(80)) || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        // Who comes back first may serve alone, and have what is rotten.
        let must_be_whole = std::mem::replace(&mut self.must_be_whole, false);
        let dies_at = random.index(OPERATION_COUNT);
        for operation in 0..OPERATION_COUNT {
            self.ask_for_drill(attached)?;
            if operation == dies_at {
                self.fault("everything killed at once");
                self.dark_until = self.now + AWAY_FOR;
                let osds = (0..self.osds.len()).map(Process::Osd);
                for process in osds.chain(self.monitor_processes()) {
                    if self.is_running(process) {
                        self.kill(process)?;
                    }
                }
            }
            self.pass(ASK_EVERY)?;
        }
        self.wait("an operation is never answered after everything was away", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.detach_all()?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.must_be_whole = must_be_whole;
        self.read_everything()
    }
}
