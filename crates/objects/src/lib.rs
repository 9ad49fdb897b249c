//! Objects: data, attributes and records under a name, and what operations change of them. This crate knows no
//! PG and no store: it computes, and asks for what it must know.
//!
//! | file | what |
//! |---|---|
//! | `bulk.rs` | many operations and reads in few requests |
//! | `codec.rs` | how operations travel |
//! | `keys.rs` | keys of the engine |
//! | `head.rs` | the head of an object, and the names of its blocks |
//! | `listing.rs` | pages of sorted keys with prefix and delimiter |
//! | `long_data.rs` | puts and gets of data that takes several requests |
//! | `look.rs`, `look_codec.rs` | what a client may read, and how that travels |
//! | `model.rs` | what all of this does, as tests know it |
//! | `operation.rs` | what a client may ask for, and the limits |
//! | `entry_size.rs` | what changes take in an entry |
//! | `data.rs` | the data of an object while operations are prepared |
//! | `prepare.rs` | operations become changes of records and blocks |
//! | `reading.rs`, `paging.rs` | reads: what they need, what they show, and the answers |
//! | `queue.rs` | which operations are prepared together, and which wait |
//! | `removed.rs` | attributes and records that are removed together |
//! | `repeat.rs` | results that are kept for operations that are sent again |
//! | `touched.rs` | what changes touch: the content of log records |
//!
//! `docs/internals/objects.md` has the rules; 24 to 40 and 44 are those of this crate.

pub mod bulk;
mod codec;
mod data;
mod entry_size;
pub mod head;
pub mod keys;
pub mod listing;
pub mod long_data;
pub mod look;
mod look_codec;
pub mod model;
pub mod operation;
mod paging;
pub mod prepare;
pub mod queue;
pub mod reading;
mod removed;
pub mod repeat;
#[cfg(test)]
mod tests;
pub mod touched;

/// How names become hashes.
pub use base::hash::NameHash;
pub use bulk::{Grouped, group_operations, group_reads};
/// Bytes that share the memory of what was read or received.
pub use bytes::Bytes;
pub use head::{DataId, Head, HeadContent, Stat};
pub use keys::{Key, Kind, LogKey, Name, Shard, Sharding};
pub use listing::{Lister, Listing, Page, PageEntry, merge_pages};
pub use long_data::{LongGet, LongPut};
pub use look::{Listed, Look, NameQuery, Read, ReadAnswer};
pub use look_codec::{decode_answers, decode_pages, encode_answers, page_prefix};
pub use operation::{Assertion, Field, ObjectChange, ObjectSteps, Operation, StepResult};
pub use paging::BadRecord;
pub use prepare::{
    Applied, OperationRefusal, PoolShape, Prepared, ReadRecords, Run, RunSize, Stamp, Stop, Wants,
};
pub use queue::{Footprint, Queue, Turn};
pub use reading::{BlockRange, Need, Reading};
pub use repeat::{Repeat, decode_results, encode_results};
pub use touched::Touched;
