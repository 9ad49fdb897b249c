//! The processes of a simulated cluster: how they are named, and where they listen.

use base::MonitorId;

/// One process of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Process {
    /// A monitor, by its index.
    Monitor(usize),
    /// An OSD, by its index.
    Osd(usize),
    /// A client, by its index.
    Client(usize),
    /// Who gives commands.
    Operator,
}

/// Where an OSD listens.
pub fn osd_address(index: usize) -> String {
    format!("tcp:osd{index}:1")
}

/// Where a monitor listens.
pub fn monitor_address(index: usize) -> String {
    format!("tcp:mon{index}:1")
}

/// Where all of them do.
pub fn monitor_addresses(count: usize) -> Vec<String> {
    (0..count).map(monitor_address).collect()
}

/// Its id.
pub fn monitor_id(index: usize) -> MonitorId {
    MonitorId::new(index as u32 + 1).expect("counted from 1")
}
