//! One monitor's process.

use base::{ClusterId, Time};
use cluster::monitor::{Election, Identity};

use super::process::{monitor_address, monitor_id};

/// One monitor.
#[derive(Default)]
pub struct MonitorProcess {
    /// The monitor's logic, while its process runs.
    pub election: Option<Election>,
    /// The operator has requested that it stops.
    pub(super) is_stopping: bool,
}

impl MonitorProcess {
    /// Starts the monitor `index` of `count`. A single monitor (`is_embedded`) leads without a lease.
    pub fn start(
        index: usize,
        count: usize,
        cluster: ClusterId,
        now: Time,
        is_embedded: bool,
    ) -> MonitorProcess {
        let identity = Identity {
            cluster,
            monitor: monitor_id(index),
            pid: 1 + index as u32,
            host: format!("mon{index}"),
            addresses: vec![monitor_address(index)],
            // Unique for each start, and for each reign: each reign adds one.
            nonce: (now.as_nanos() * count as u64 + index as u64) << 16,
        };
        let election = match is_embedded {
            true => Election::only(identity),
            false => Election::new(identity, true),
        };
        MonitorProcess { election: Some(election), is_stopping: false }
    }

    /// Returns whether this monitor runs and believes that the monitor `index` leads.
    pub fn follows(&self, index: usize) -> bool {
        let election = self.election.as_ref();
        election.is_some_and(|election| election.leader() == Some(monitor_id(index)))
    }

    /// Returns whether this monitor was stopped by its operator and has released its lease.
    pub fn has_retired(&self) -> bool {
        self.is_stopping && self.election.as_ref().is_some_and(Election::is_retired)
    }
}
