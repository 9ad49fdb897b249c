//! One OSD as one value: `Node::apply(now, event, &mut effects)` is the only door into it.
//! Joins the block store, the PGs and the sessions.

use base::{ClusterId, OsdId};
use format::door::{DiskEffect, DiskEvent, NetEffect, NetEvent};

/// What a node is told.
#[derive(Debug)]
pub enum Event {
    /// From its disk.
    Disk(DiskEvent),
    /// From the network.
    Net(NetEvent),
    /// The deadline of `Node::deadline` came.
    Tick,
    /// The process was asked to end: finish what was started, then `Stop`.
    Shutdown,
}

/// What a node asks.
#[derive(Debug)]
pub enum Effect {
    /// Ask the disk.
    Disk(DiskEffect),
    /// Ask the network.
    Net(NetEffect),
    /// The store is recovered and the monitor has given an incarnation.
    Joined,
    /// The process ends. No effect follows.
    Stop(StopReason),
}

/// Why a node ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// It was asked to.
    Shutdown,
    /// Its store is poisoned or not ours; for people: what happened, where, what to do.
    Store(String),
    /// The monitor refuses it for good.
    Refused(String),
}

/// What a node is made with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// Which OSD.
    pub osd: OsdId,
    /// Identity of its store, 32 hexadecimal digits.
    pub store: String,
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// Where this OSD listens.
    pub addresses: Vec<String>,
    /// Its process, for people.
    pub pid: u32,
    /// Its directory or device, for people.
    pub path: String,
    /// Name of its host.
    pub host: String,
}
