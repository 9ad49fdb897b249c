//! The names of all kinds of operations and faults that a store run counts. The simulator fails if a kind
//! never happens over many seeds.

use crate::tally::Tally;

/// The operations; the last five are of object pools.
pub const OPERATIONS: [&str; 15] = [
    "write",
    "zero",
    "delete",
    "read",
    "extents",
    "note",
    "sync",
    "floor",
    "copy",
    "repair",
    "batch",
    "forward",
    "page",
    "records read",
    "object block read",
];

/// The faults.
pub const FAULTS: [&str; 34] = [
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
    "engine full",
    "engine failed",
    "batches lost by the engine",
    "old engine",
    "foreign engine",
    "entry lost that the engine has",
    "engine behind",
];

/// Consequences of operations and faults, and operations on pools that keep parity.
pub const CONSEQUENCES: [&str; 14] = [
    "KiB of blocks moved",
    "version prepared",
    "version skipped",
    "commit",
    "settle of a PG",
    "version taken back",
    "gap refused",
    "floor where parity is kept",
    "damage read where parity is kept",
    "metadata portion checked",
    "damaged metadata found",
    "records not in memory",
    "family removed",
    "batch refused",
];

/// Returns a tally with all counts at zero.
pub fn tally() -> Tally {
    Tally::new(&OPERATIONS, &FAULTS, &CONSEQUENCES)
}
