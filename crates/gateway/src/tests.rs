//! Tests of whole requests, on an index pool in memory.

mod bodies;
mod buckets;
mod guards;
mod large;
mod objects;
mod rig;
mod server;
mod signer;
