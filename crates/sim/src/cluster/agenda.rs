//! The agenda of a run: future events in chronological order.
//!
//! Invariants
//!   1. Items due at the same time are handled in the order in which they were added.
//!   2. An item belongs to one run of its process: if that run has ended, the item is dropped.

use std::collections::BTreeMap;

use base::{Duration, Time};
use format::door::DiskOp;

use super::net::EndId;
use super::osd::DiskWork;
use super::process::Process;
use super::state::StateStep;

/// The future events of a simulated run.
#[derive(Default)]
pub struct Agenda {
    /// Sorted by time, then by order of addition. The value holds the number of the process run that
    /// the item belongs to.
    items: BTreeMap<(Time, u64), (u64, Item)>,
    number_last: u64,
    /// The number of items that may change the state store.
    transaction_count: u64,
}

impl Agenda {
    /// Adds an item that belongs to run `life` of its process.
    pub fn push(&mut self, at: Time, life: u64, item: Item) {
        self.number_last += 1;
        self.transaction_count += u64::from(item.is_of_transaction());
        self.items.insert((at, self.number_last), (life, item));
    }

    /// Returns the pending steps of state store transactions.
    pub fn transactions(&self) -> impl Iterator<Item = &StateStep> {
        let steps = self.items.values().filter_map(|(_, item)| match item {
            Item::State(step) if step.is_of_transaction() => Some(step),
            _ => None,
        });
        steps.take(self.transaction_count as usize)
    }

    /// Returns the time of the first item.
    pub fn next_at(&self) -> Option<Time> {
        self.items.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the first item, with its time and the run that it belongs to.
    pub fn pop(&mut self) -> Option<(Time, u64, Item)> {
        let ((at, _), (life, item)) = self.items.pop_first()?;
        self.transaction_count -= u64::from(item.is_of_transaction());
        Some((at, life, item))
    }
}

/// A future event.
pub enum Item {
    /// An event is due at one end of a connection.
    Net(EndId),
    /// A connection attempt reaches its target.
    Arrive(EndId),
    /// A disk operation of an OSD completes.
    Disk(usize, DiskOp, DiskWork),
    /// A disk operation of an OSD completed while the OSD's process was frozen.
    DiskEnded(usize, DiskOp, DiskWork),
    /// The engine of an OSD does something.
    Engine(usize),
    /// The file system of the engine of an OSD has space again.
    EngineRoom(usize),
    /// The state store executes its next step.
    State(StateStep),
    /// A turn of an OSD's loop ends.
    OsdTurn(usize),
    /// A client's users issue operations.
    ClientTurn(usize),
    /// A client's users of the object pool issue operations.
    ObjectTurn(usize),
    /// The object pool is created.
    CreateObjectPool,
    /// The operator decides on the next command.
    OperatorTurn,
    /// A process starts.
    Start(Process),
    /// A partition between two processes heals.
    Heal(Process, Process),
    /// An OSD's process crashes.
    Crash(usize),
    /// A monitor that is being stopped exits.
    MonitorEnds(usize),
    /// A truce begins; at its end, a strike damages members.
    Strike,
    /// The next turn of the drill is due.
    Drill,
    /// A client is cut off from its monitor.
    CutOffClient,
    /// The client can reach its monitor again.
    ReconnectClient,
    /// A backup of the state store is taken.
    Backup,
    /// The disk of an OSD hangs for this long: it completes no operation.
    Hang(usize, Duration),
}

impl Item {
    /// Returns whether this item may change the state store.
    fn is_of_transaction(&self) -> bool {
        matches!(self, Item::State(step) if step.is_of_transaction())
    }

    /// Returns the process that handles this item. The item is dropped if the current run of that
    /// process ends first.
    pub fn owner(&self) -> Option<Process> {
        match self {
            Item::Disk(index, ..)
            | Item::DiskEnded(index, ..)
            | Item::Engine(index)
            | Item::OsdTurn(index) => Some(Process::Osd(*index)),
            Item::State(StateStep::Tell((index, _), _)) | Item::MonitorEnds(index) => {
                Some(Process::Monitor(*index))
            }
            Item::ClientTurn(index) | Item::ObjectTurn(index) => Some(Process::Client(*index)),
            Item::Net(_)
            | Item::Arrive(_)
            | Item::State(StateStep::Reach { .. } | StateStep::EndLeases)
            | Item::OperatorTurn
            | Item::CreateObjectPool
            | Item::EngineRoom(_)
            | Item::Start(_)
            | Item::Heal(..)
            | Item::Crash(_)
            | Item::Strike
            | Item::Drill
            | Item::CutOffClient
            | Item::ReconnectClient
            | Item::Hang(..)
            | Item::Backup => None,
        }
    }
}
