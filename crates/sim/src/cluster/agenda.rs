//! The agenda of a run: future events in the order of time.
//!
//! Invariants
//!   1. Items of the same time come in the order in which they were added.
//!   2. An item belongs to one run of its process: if that run is over, the item is dropped.

use std::collections::BTreeMap;

use base::{Duration, Time};
use format::door::DiskOp;

use super::net::EndId;
use super::osd::DiskWork;
use super::process::Process;
use super::state::StateStep;

/// Everything that is still to come.
#[derive(Default)]
pub struct Agenda {
    /// By time, then in order; each with the run of its process that it belongs to.
    items: BTreeMap<(Time, u64), (u64, Item)>,
    number_last: u64,
    /// Items by which the state may change.
    transaction_count: u64,
}

impl Agenda {
    /// Puts an item down, for a run of its process.
    pub fn push(&mut self, at: Time, life: u64, item: Item) {
        self.number_last += 1;
        self.transaction_count += u64::from(item.is_of_transaction());
        self.items.insert((at, self.number_last), (life, item));
    }

    /// Whether a transaction of the state store is under way.
    pub fn has_transactions(&self) -> bool {
        self.transaction_count > 0
    }

    /// When the first item comes.
    pub fn next_at(&self) -> Option<Time> {
        self.items.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first item: its time, the run that it belongs to, and the item.
    pub fn pop(&mut self) -> Option<(Time, u64, Item)> {
        let ((at, _), (life, item)) = self.items.pop_first()?;
        self.transaction_count -= u64::from(item.is_of_transaction());
        Some((at, life, item))
    }
}

/// An event that comes at its time.
pub enum Item {
    /// An end of a connection has an event.
    Net(EndId),
    /// A connect reaches its target.
    Arrive(EndId),
    /// An operation of an OSD's disk ends.
    Disk(usize, DiskOp, DiskWork),
    /// It ended while the process stood still.
    DiskEnded(usize, DiskOp, DiskWork),
    /// The state store goes on.
    State(StateStep),
    /// The end of a turn of an OSD's loop.
    OsdTurn(usize),
    /// A client's users ask something.
    ClientTurn(usize),
    /// The operator looks what is to be done.
    OperatorTurn,
    /// A process starts.
    Start(Process),
    /// Two processes reach each other again.
    Heal(Process, Process),
    /// An OSD's process ends.
    Crash(usize),
    /// A monitor that was asked to stop ends.
    MonitorEnds(usize),
    /// A truce begins, and ends with the loss of data.
    Strike,
    /// The drill goes on.
    Drill,
    /// A client is cut off its monitor.
    CutOffClient,
    /// It may reach its monitor again.
    ReconnectClient,
    /// The state store is copied.
    Backup,
    /// The disk of an OSD ends nothing for so long.
    Hang(usize, Duration),
}

impl Item {
    /// Whether the state store may change by it.
    fn is_of_transaction(&self) -> bool {
        matches!(self, Item::State(step) if step.is_of_transaction())
    }

    /// The process that takes it: if that run of it ends before, so does the item.
    pub fn owner(&self) -> Option<Process> {
        match self {
            Item::Disk(index, ..) | Item::DiskEnded(index, ..) | Item::OsdTurn(index) => {
                Some(Process::Osd(*index))
            }
            Item::State(StateStep::Tell((index, _), _)) | Item::MonitorEnds(index) => {
                Some(Process::Monitor(*index))
            }
            Item::ClientTurn(index) => Some(Process::Client(*index)),
            Item::Net(_)
            | Item::Arrive(_)
            | Item::State(StateStep::Reach { .. } | StateStep::EndLeases)
            | Item::OperatorTurn
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
