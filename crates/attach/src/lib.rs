//! Serves volumes as disks of other programs.
//!
//! ```text
//!   NBD client ──bytes──▶ nbd::Session ──commands──▶ nbd::Server ──requests──▶ volume::ClientCore
//!              ◀─────────── nbd::Replies ◀────────────────────────── answers ◀──┘
//! ```

// NBD is big-endian on the wire.
#![allow(clippy::big_endian_bytes)]

pub mod nbd;
