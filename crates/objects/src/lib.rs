//! Objects: data, attributes and records under a name, and what operations change of them. This crate knows no
//! PG and no store: it computes, and asks for what it must know.
//!
//! | file | what |
//! |---|---|
//! | `codec.rs` | how operations travel |
//! | `keys.rs` | keys of the engine |
//! | `head.rs` | the head of an object, and the names of its blocks |
//! | `listing.rs` | pages of sorted keys with prefix and delimiter |
//! | `operation.rs` | what a client may ask for, and the limits |
//! | `data.rs` | the data of an object while operations are prepared |
//! | `prepare.rs` | operations become changes of records and blocks |
//! | `queue.rs` | which operations are prepared together, and which wait |
//! | `repeat.rs` | results that are kept for operations that are sent again |
//! | `touched.rs` | what changes touch: the content of log records |
//!
//! `docs/internals/objects.md` has the rules; 24 to 35, 40 and 44 are those of this crate.

mod codec;
mod data;
pub mod head;
pub mod keys;
pub mod listing;
pub mod operation;
pub mod prepare;
pub mod queue;
pub mod repeat;
#[cfg(test)]
mod tests;
pub mod touched;

pub use head::{DataId, Head, HeadContent};
pub use keys::{Key, Kind, LogKey, Name, Shard};
pub use listing::{Lister, Listing, Page, PageEntry};
pub use operation::{Assertion, Field, ObjectChange, ObjectSteps, Operation, StepResult};
pub use prepare::{
    Applied, OperationRefusal, PoolShape, Prepared, Run, RunSize, Stamp, Stop, Wants,
};
pub use queue::{Footprint, Queue, Turn};
pub use repeat::{Repeat, decode_results, encode_results};
pub use touched::Touched;
