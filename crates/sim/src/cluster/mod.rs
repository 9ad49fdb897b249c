//! `sim cluster`: real OSDs, real monitors on one simulated state store, and real client cores on a simulated
//! network. Every unit of every volume is checked for linearizability.
//!
//! ```text
//!   users ─▶ ClientCore ─┐            ┌─ Node ─ SimDisk, Twin
//!   users ─▶ ClientCore ─┼─── Net ────┼─ Node ─ SimDisk
//!   operator ────────────┘    │       └─ ...
//!                          Elections ─ StateDoor
//! ```

mod agenda;
mod arrivals;
mod backup;
mod blackout;
mod catalog;
mod client;
mod clock;
mod commands;
mod counters;
mod disk_hang;
mod diverged_member;
mod drill;
mod engines;
mod failover_drill;
mod fault_budget;
mod fault_state;
mod faults;
mod foreign_osd;
mod grants;
mod hung_disks;
mod late_requests;
mod lazy_writes;
mod lease_spans;
mod lock_takeover;
mod manual_edits;
mod members;
mod monitor;
mod monitors;
mod net;
mod object_history;
mod object_judge;
mod object_plan;
mod object_users;
mod operator;
mod osd;
mod osd_loss;
mod plan;
mod power_loss;
mod process;
mod request_watch;
mod rules;
mod runs;
mod scrubs;
mod slow_disks;
mod state;
mod syncs;
mod truce;
mod users;
mod volume_model;
mod watch;
mod whole_stripes;
mod world;

pub use catalog::{FAULTS, OPERATIONS, tally};
pub use object_users::removal::run as run_removal;
pub use whole_stripes::run as run_whole_stripes;

use crate::outcome::{Outcome, Run};

/// Runs one seed with a replicated pool.
pub fn run(run: Run) -> Outcome {
    run_with(run, plan::Pools::Copies)
}

/// Runs one seed with a pool that keeps parity.
pub fn run_parity(run: Run) -> Outcome {
    run_with(run, plan::Pools::Parity)
}

fn run_with(run: Run, pools: plan::Pools) -> Outcome {
    let mut world = world::World::new(run, pools);
    let result = world.run();
    let (hash, tally) = world.into_parts();
    Outcome { hash, tally, result }
}
