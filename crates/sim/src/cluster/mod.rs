//! `sim cluster`: real OSDs, real monitors on one simulated state store, and real client cores on a
//! simulated network; every unit of every volume is checked for linearizability.
//!
//! ```text
//!   users ─▶ ClientCore ─┐            ┌─ Node ─ SimDisk
//!   users ─▶ ClientCore ─┼─── Net ────┼─ Node ─ SimDisk
//!   operator ────────────┘    │       └─ ...
//!                          Stations ─ StateDoor
//! ```

mod agenda;
mod arrivals;
mod astray;
mod backup;
mod blackout;
mod catalog;
mod chaos;
mod client;
mod clock;
mod commands;
mod darkness;
mod disk_hang;
mod drill;
mod failover_drill;
mod fault_budget;
mod foreign;
mod grants;
mod hung;
mod lazy;
mod leavers;
mod loss;
mod manual_edits;
mod members;
mod monitor;
mod monitors;
mod net;
mod operator;
mod osd;
mod plan;
mod process;
mod rules;
mod spans;
mod state;
mod syncs;
mod takeover;
mod truce;
mod users;
mod volume_model;
mod watch;
mod world;

pub use catalog::{FAULTS, OPERATIONS, tally};

use crate::outcome::{Outcome, Run};

/// Runs one seed.
pub fn run(run: Run) -> Outcome {
    let mut world = world::World::new(run);
    let result = world.run();
    let (hash, tally) = world.into_parts();
    Outcome { hash, tally, result }
}
