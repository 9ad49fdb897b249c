//! Serves volumes to NBD clients: the kernel's, QEMU, nbdfuse and others.

mod hub;
mod input;
mod protocol;
mod reply;
mod server;
mod session;

pub use server::{Server, ServerSettings};
