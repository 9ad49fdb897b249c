//! The processes of a simulated cluster: their ids and addresses.

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
    /// The operator, who issues commands.
    Operator,
}

/// Returns the address on which an OSD listens.
pub fn osd_address(index: usize) -> String {
    format!("tcp:osd{index}:1")
}

/// Returns the address on which a monitor listens.
pub fn monitor_address(index: usize) -> String {
    format!("tcp:mon{index}:1")
}

/// Returns the addresses of all monitors.
pub fn monitor_addresses(count: usize) -> Vec<String> {
    (0..count).map(monitor_address).collect()
}

/// Returns the id of a monitor.
pub fn monitor_id(index: usize) -> MonitorId {
    MonitorId::new(index as u32 + 1).expect("counted from 1")
}
