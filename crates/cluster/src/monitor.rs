//! The monitor's logic as a value.

use base::{ClusterId, MonitorId, Time};
use format::door::{NetEffect, NetEvent};

use crate::state::{StateEffect, StateEvent};

/// What a monitor is told.
#[derive(Debug)]
pub enum Event {
    /// From the network.
    Net(NetEvent),
    /// From the state store.
    State(StateEvent),
    /// The deadline of [`Monitor::deadline`] came.
    Tick,
}

/// What a monitor asks.
#[derive(Debug)]
pub enum Effect {
    /// Ask the network.
    Net(NetEffect),
    /// Ask the state store.
    State(StateEffect),
    /// The state is loaded and this monitor leads: commands are answered from now on.
    Ready,
    /// The process ends. No effect follows.
    Stop(StopReason),
}

/// Why a monitor ends; for people: what happened, where, what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The state store failed, or holds what this program does not understand.
    State(String),
    /// The state store belongs to another cluster.
    OtherCluster(String),
    /// Another monitor leads.
    LostLeadership(String),
}

/// What a monitor is made with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// Which monitor.
    pub monitor: MonitorId,
    /// Its process, for people.
    pub pid: u32,
    /// Where it listens.
    pub addresses: Vec<String>,
}

/// The monitor of a cluster: plans placement, hands out the map, keeps sessions and tasks.
pub struct Monitor {
    identity: Identity,
}

impl Monitor {
    /// A monitor that has not read anything yet: its deadline is now.
    pub fn new(identity: Identity) -> Monitor {
        Monitor { identity }
    }

    /// The only door.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        let _ = (now, event, effects, &self.identity);
    }

    /// When `Tick` is due at the latest, if ever.
    pub fn deadline(&self) -> Option<Time> {
        Some(Time::ZERO)
    }
}
