//! Volumes for NBD clients: any NBD client, QEMU, nbdfuse.

mod hub;
mod input;
mod protocol;
mod reply;
mod server;
mod session;

pub use server::{Server, ServerSettings};
