//! I/O on Linux: the io_uring reactor with its sockets, disk, handshake and signals; the cluster key, the
//! clock, the log, and the state stores.
//!
//! ```text
//!   program loop:  reactor.turn(deadline, &mut events)
//!                  for each event: logic.apply(now, event, &mut effects)
//!                  for each effect: reactor.net(..) | reactor.disk(..)
//! ```
//!
//! Logic crates do not depend on this crate; they use only the interfaces in `format::door`.

// This crate may use files, clocks and threads, and it lends memory to the kernel; each `unsafe` block says
// why it is sound.
#![allow(clippy::disallowed_methods, unsafe_code)]

mod address;
pub mod bench;
mod clock;
mod descriptors;
mod disk;
mod edit;
pub mod embedded;
pub mod etcd;
mod handshake;
mod inbox;
pub mod key;
pub mod log;
mod network;
mod prepare;
mod reactor;
mod ring;
mod send_queue;
mod signals;
mod socket;
mod stream;

use std::fmt;

pub use clock::{now, wall_clock_ms};
pub use descriptors::{host_name, raise_descriptor_limit};
pub use disk::Disk;
pub use edit::edit_file;
pub use handshake::{Established, Handshake, HandshakeStep, Trust};
pub use key::{ClusterKey, random_bytes};
pub use network::{Network, local_addresses};
pub use prepare::{NewStore, Probe, prepare, probe, replace_file};
pub use reactor::{Event, ListenerId, Options, Reactor, Waker};
pub use ring::FeatureMask;
pub use signals::end_on_closed_pipe;

/// An error from the system or a peer: a human-readable sentence that says what failed and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(pub String);

impl Error {
    /// Builds the message `what: why`: what failed, and the cause.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error(format!("{what}: {why}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
