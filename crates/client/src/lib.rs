//! Client library: reads a cluster's configuration, sends commands to its monitors, and accesses volumes.
//!
//! ```text
//!   Config ──▶ call          one command, blocking
//!          ──▶ watch_state   every change to the state store, blocking
//!          ──▶ Commands      the same as a value, for programs with their own reactor
//!          ──▶ Client        volumes and object pools for async programs: a thread with a reactor behind a
//!                            channel
//!          ──▶ Keeper        keeps the list of monitors in cluster.toml up to date
//!          ──▶ bench         a load on a volume, on the caller's thread
//! ```

// This crate may do I/O: it reads configuration files and runs threads.
#![allow(clippy::disallowed_methods)]

mod asynchronous;
pub mod bench;
mod block_on;
mod call;
mod commands;
mod config;
mod keeper;
pub mod objects;
mod shell;
mod watch;

pub use asynchronous::{Client, ReadPiece, Volume};
pub use block_on::{block_on, block_on_for};
pub use call::{call, call_reporting, monitors};
pub use commands::Commands;
pub use config::{Config, is_of_several_hosts};
pub use keeper::{Keeper, add_monitor};
pub use volume::{Extent, VolumeError};
pub use watch::{StateChange, watch_state};
