//! `sim cluster`: real OSDs, real monitors on one simulated state store, and real client cores on a
//! simulated network; every unit of every volume is checked for linearizability.
//!
//! ```text
//!   users ─▶ ClientCore ─┐            ┌─ Node ─ SimDisk
//!   users ─▶ ClientCore ─┼─── Net ────┼─ Node ─ SimDisk
//!   operator ────────────┘    │       └─ ...
//!                          Stations ─ StateDoor
//! ```

mod arrivals;
mod astray;
mod backup;
mod blackout;
mod chaos;
mod clock;
mod darkness;
mod disks;
mod drill;
mod fault_budget;
mod foreign;
mod grants;
mod hung;
mod lazy;
mod leavers;
mod loss;
mod manual_edits;
mod members;
mod monitors;
mod net;
mod operator;
mod plan;
mod rules;
mod spans;
mod state;
mod syncs;
mod takeover;
mod users;
mod volume_model;
mod watch;
mod world;

use crate::outcome::{Outcome, Run};
use crate::tally::Tally;

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

/// What users and the operator do.
pub const OPERATIONS: [&str; 20] = [
    "read",
    "write",
    "unaligned write",
    "discard",
    "flush",
    "extents",
    "attach",
    "detach",
    "volume create",
    "volume remove",
    "volume grow",
    "volume shrink",
    "volume unlock",
    "config set",
    "OSD out",
    "OSD in",
    "OSD removed",
    "pool remove",
    "state recover",
    "state undo",
];

/// What happens to them.
pub const FAULTS: [&str; 84] = [
    "OSD killed",
    "OSD power cut",
    "several OSDs killed at once",
    "all OSDs killed at once",
    "OSD stopped by its operator",
    "OSD gone in a drill",
    "OSD lost for long",
    "OSD missed for long",
    "lock taken while members are missed",
    "OSDs go out by themselves",
    "everything killed at once",
    "all monitors away for a minute",
    "state store away for a minute",
    "process stood still",
    "disk lost",
    "rot in the journal's tail",
    "monitor killed",
    "leading monitor killed",
    "leading monitor stood still",
    "leading monitor stopped by its operator",
    "leading monitor cut off the others",
    "leading monitor cut off the state store",
    "leading monitor gone in a drill",
    "following monitor gone in a drill",
    "monitor's lease asked for late",
    "client killed",
    "connection broken",
    "connection broken within a frame",
    "connection's bytes arrived late",
    "request lost",
    "reply lost",
    "control message lost",
    "peer message lost",
    "lease message lost",
    "request arrived twice",
    "request arrived late, after its repetition",
    "requests arrived in another order",
    "partition",
    "partition one way",
    "OSD cut off all but clients",
    "OSD cut off the monitors only",
    "client cut off its monitor",
    "message delayed",
    "payload corrupted",
    "frame corrupted",
    "unflushed write lost",
    "unflushed write torn",
    "unflushed writes reordered",
    "slow disk operation",
    "disk took seconds",
    "disk hung",
    "all disks hung",
    "OSD began anew after its disk hung",
    "disk write error",
    "disk read error",
    "unreadable sector",
    "rot in the data area",
    "rot in the journal",
    "rot in the checkpoint area",
    "rot in a superblock",
    "suspect PG given up",
    "members lost below the minimum given up",
    "pool full",
    "damaged range met",
    "session ended",
    "operation given up by its client",
    "state store unavailable",
    "transaction that took long",
    "unknown transaction that happened",
    "unknown transaction that did not happen",
    "unknown transaction that happened late",
    "write retried across a failure",
    "removal with a stale session",
    "operator's command interrupted",
    "state edited by hand",
    "host of an OSD named by hand",
    "foreign OSD started",
    "backup of the state put back",
    "leases made shorter, and a primary cut off",
    "long leases out, and their giver starts anew",
    "volume detached with writes on their way",
    "requests arrived after their session was forgotten",
    "all OSDs lost power around a flush",
    "member came back with writes that nobody adopted",
];

/// Runs one seed.
pub fn run(run: Run) -> Outcome {
    let mut world = world::World::new(run);
    let result = world.run();
    let (hash, tally) = world.into_parts();
    Outcome { hash, tally, result }
}

/// Zero of everything.
pub fn tally() -> Tally {
    Tally::new(&OPERATIONS, &FAULTS, &watch::SEQUELS)
}
