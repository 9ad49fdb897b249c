//! Objects: data, attributes and records under a name. This crate knows no PG and no store.
//!
//! `docs/internals/objects.md` has the rules; rule 24 is the one of [`keys`].

pub mod keys;

pub use keys::{Key, Kind, LogKey, Name, Shard};
