//! The engine: a sorted, compressed store for the records of object pools. Its door as plain requests and events,
//! RocksDB behind it (feature `rocksdb`), and a twin in memory.
//!
//! ```text
//!   logic ──EngineEffect──▶ Rocks: threads of its own ──EngineEvent──▶ logic
//!                      or   Twin: one value, in the simulator
//! ```
//!
//! The rules that both keep are in `docs/internals/engine.md`. Logic crates and the simulator use this crate
//! without its default feature: then it has no threads, files or clocks.

pub mod door;
mod inflight;
mod records;
#[cfg(feature = "rocksdb")]
mod rocks;
mod twin;

pub use door::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FamilyFound,
    FamilyStatistics, Identity, OpenError, Query, Stall, Statistics,
};
pub use inflight::{FLUSH_COUNT_MAX, READ_COUNT_MAX, WRITE_COUNT_MAX};
pub use records::Records;
#[cfg(feature = "rocksdb")]
pub use rocks::{Rocks, Settings};
pub use twin::Twin;
