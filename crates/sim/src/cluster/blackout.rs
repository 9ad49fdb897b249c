//! Outages of one minute while a client keeps running. Leases, sessions and grace times expire meanwhile.
//!   1. Blackout: all processes except the clients die at once. Clients wait: each of their operations is
//!      answered after the restart, and everything acknowledged before the blackout is still there.
//!   2. All monitors, or their state store, are down: OSDs continue to serve, and no client has to wait.

use base::Duration;

use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::{Chance, Random};

/// How long an outage lasts.
const AWAY_FOR: Duration = Duration::from_secs(60);

/// The number of operations that the client starts around the blackout, and the interval between them.
const OPERATION_COUNT: usize = 40;
const ASK_EVERY: Duration = Duration::from_millis(2);

/// The interval between operations while monitors or their store are down. Each operation must be
/// answered within this time.
const ASK_SLOWLY_EVERY: Duration = Duration::from_millis(500);

/// How long operations continue after the outage.
const BACK_FOR: Duration = Duration::from_secs(20);

impl World {
    /// Runs the blackout, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn black_out(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "blackout");
        if random.chance(Chance::percent(80)) || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        // The member that comes back first may serve alone, and some of its data may have rotted.
        let must_be_whole = std::mem::replace(&mut self.faults.must_be_whole, false);
        let dies_at = random.index(OPERATION_COUNT);
        for operation in 0..OPERATION_COUNT {
            self.ask_for_drill(attached)?;
            if operation == dies_at {
                self.fault("everything killed at once");
                self.faults.power_off_until = self.now + AWAY_FOR;
                let osds = (0..self.osds.len()).map(Process::Osd);
                self.kill_all(osds.chain(self.monitor_processes()))?;
            }
            self.pass(ASK_EVERY)?;
        }
        self.wait("an operation is never answered after everything was away", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.detach_all()?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole = must_be_whole;
        self.read_everything()
    }

    /// Takes the monitors or their store down for a minute, if the seed draws it. Requires: the
    /// cluster is whole, and no fault happens.
    pub(super) fn run_without_monitors(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "headless");
        if random.chance(Chance::percent(90)) || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        // Every OSD must have received a map with the session first: an OSD without it would wait for a
        // monitor.
        self.pass(WHOLE_FOR)?;
        let back_at = self.now + AWAY_FOR;
        if self.plan.is_embedded || random.chance(Chance::percent(50)) {
            self.fault("all monitors away for a minute");
            self.faults.power_off_until = back_at;
            self.kill_all(self.monitor_processes())?;
        } else {
            self.fault("state store away for a minute");
            for index in 0..self.monitors.len() {
                self.cut_off_state(index, AWAY_FOR);
            }
        }
        while self.now < back_at + BACK_FOR {
            let is_away = self.now + ASK_SLOWLY_EVERY < back_at;
            self.ask_for_drill(attached)?;
            self.pass(ASK_SLOWLY_EVERY)?;
            if is_away && !self.clients[0].open.is_empty() {
                return Err("an operation waits for monitors that are away".into());
            }
        }
        self.wait("an operation is never answered after monitors were away", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.detach_all()?;
        self.wait_until_whole_for(WHOLE_FOR)?;
        self.read_everything()
    }
}
