//! The conformance suite of the engine's door, run against RocksDB and against the twin; and what only a real
//! directory can show: kill -9, a full file system, files of another engine.

#![allow(clippy::disallowed_methods)]

mod conformance;
mod crash;
mod directory;
mod full;
mod model;
mod subject;
mod twin;
