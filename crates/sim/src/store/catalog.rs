//! Every kind of operation and fault that a run of a store counts, by name. A kind that never happens over
//! many seeds fails the run of the simulator.

use crate::tally::Tally;

/// The operations.
pub const OPERATIONS: [&str; 10] =
    ["write", "zero", "delete", "read", "extents", "note", "sync", "floor", "copy", "repair"];

/// The faults.
pub const FAULTS: [&str; 27] = [
    "lazily answered",
    "power cut",
    "process killed",
    "crash while opening",
    "unflushed write lost",
    "unflushed write torn",
    "unflushed writes reordered",
    "slow disk operation",
    "write error",
    "flush error",
    "read error",
    "read error while opening",
    "unreadable sector in the journal",
    "unreadable sector in the checkpoint area",
    "unreadable sector in a superblock",
    "unreadable sector in the data area",
    "no space in the file system",
    "file system full",
    "file system used by others",
    "store full",
    "write lost by a lying disk",
    "write misdirected",
    "rot in the data area",
    "rot in the journal",
    "rot in the checkpoint area",
    "rot in a superblock",
    "suspect PG",
];

/// Consequences of operations and faults, and what is asked of pools that keep parity.
pub const CONSEQUENCES: [&str; 9] = [
    "KiB of blocks moved",
    "version prepared",
    "version skipped",
    "commit",
    "settle of a PG",
    "version taken back",
    "gap refused",
    "floor where parity is kept",
    "damage read where parity is kept",
];

/// A tally with all counts at zero.
pub fn tally() -> Tally {
    Tally::new(&OPERATIONS, &FAULTS, &CONSEQUENCES)
}
