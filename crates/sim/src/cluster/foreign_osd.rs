//! A foreign OSD: at the end of a run, an OSD with another store starts in place of an OSD, under its id and
//! address. The foreign OSD is refused before it takes part in anything, and nothing is missing once the
//! right OSD is back.

use base::{ClusterId, Duration};

use super::agenda::Item;
use super::osd::Osd;
use super::process::Process;
use super::world::World;
use crate::random::{Chance, Random};

/// How long the cluster must have been whole before the test, so that it can spare the OSD.
const WHOLE_FOR: Duration = Duration::from_secs(2);

impl World {
    /// Runs the scenario, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn start_foreign_osd(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "foreign");
        let index = random.index(self.osds.len());
        if random.chance(Chance::percent(75)) || self.osds[index].is_gone {
            return Ok(());
        }
        if self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        let id = self.osds[index].id.expect("it was made");
        self.osds[index].stays_down = true;
        self.kill(Process::Osd(index))?;
        self.fault("foreign OSD started");
        let host = self.osds[index].host;
        let mut foreign = Osd::new(self.seed, index, host);
        let mut cluster = self.cluster;
        if random.chance(Chance::percent(50)) {
            // The store is valid, but is not the store that the monitors have recorded for this id.
            foreign.store = Osd::new(self.seed, index + 128, host).store;
        } else {
            cluster = ClusterId::new(u128::MAX - u128::from(self.seed));
        }
        foreign.create(id, cluster, &self.plan);
        foreign.is_foreign = true;
        foreign.stays_down = true;
        let own = std::mem::replace(&mut self.osds[index], foreign);
        self.start(Process::Osd(index))?;
        self.wait("a foreign OSD is not refused", |world| world.osds[index].node.is_none())?;
        self.osds[index] = own;
        self.osds[index].stays_down = false;
        self.schedule(Duration::ZERO, Item::Start(Process::Osd(index)));
        self.get_whole(Duration::ZERO)
    }
}
