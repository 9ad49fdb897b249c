//! The gateway: S3 over HTTP, on buckets. A plain client of the cluster; any number of them run side by side.
//!
//! ```text
//!   socket ─▶ server (limits, TLS) ─▶ front (ids, guards, log) ─▶ s3::wire (signatures) ─▶ bucket ─▶ door ─▶ client
//! ```
//!
//! | file | what it has |
//! |---|---|
//! | `server.rs`, `connection.rs`, `tls.rs` | connections: how many, how slow, encrypted |
//! | `service.rs`, `front.rs`, `exchange.rs` | requests: ids, what is refused, the access log |
//! | `body.rs`, `chunks.rs`, `drain.rs`, `stored.rs`, `memory.rs` | bodies on their way, and the memory they take |
//! | `s3.rs` and below | S3 |
//! | `door.rs`, `containers.rs` | what the logic of buckets asks of the cluster |
//! | `limits.rs`, `errors.rs`, `xml.rs`, `percent.rs`, `clock.rs` | small things |

// This crate is an edge: it has clocks, sockets and files.
#![allow(clippy::disallowed_methods)]

mod body;
mod chunks;
mod clock;
mod connection;
mod containers;
mod door;
mod drain;
mod errors;
mod exchange;
mod front;
mod limits;
mod memory;
mod percent;
mod run;
mod s3;
mod server;
mod service;
mod stored;
#[cfg(test)]
mod tests;
mod tls;
mod xml;

pub use door::ClusterDoor;
pub use errors::Refusal;
pub use limits::Limits;
pub use run::{Offline, Settings, run};
pub use tls::TlsFiles;
