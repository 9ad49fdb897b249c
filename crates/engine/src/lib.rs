//! The engine: a sorted, compressed store for the records of object pools. RocksDB (feature `rocksdb`), and a twin in
//! memory, behind one door: the plain requests and events of `format::engine`.
//!
//! ```text
//!   logic ──EngineEffect──▶ Rocks: threads of its own ──EngineEvent──▶ logic
//!                      or   Twin: one value, in the simulator
//! ```
//!
//! The rules that both keep are in `docs/internals/engine.md`. Logic crates and the simulator use this crate
//! without its default feature: then it has no threads, files or clocks.

mod inflight;
#[cfg(feature = "rocksdb")]
mod rocks;
mod twin;

pub use format::engine::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FLUSH_COUNT_MAX,
    FamilyFound, FamilyStatistics, Flags, Folding, Identity, OpenError, Query, READ_COUNT_MAX,
    Records, Stall, Statistics, WRITE_COUNT_MAX,
};
#[cfg(feature = "rocksdb")]
pub use rocks::{Rocks, RocksReadOnly, Settings};
pub use twin::Twin;
