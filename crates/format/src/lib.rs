//! Bytes on disk and on the wire: layouts, versions, golden files. Also the events and effects (the
//! *doors*) through which the logic uses disks, connections and engines.
//!
//! `docs/internals/disk.md` and `docs/internals/wire.md` describe the layouts; a commit that changes
//! a golden file starts with `format:`.

pub mod disk;
pub mod door;
pub mod engine;
pub mod wire;
