//! Tests of whole programs: real processes on loopback, driven by the tools that users have.
//!
//! Every test runs its own cluster in its own directory and stops it at the end.

#![allow(clippy::disallowed_methods)] // Tests of programs start processes and read the clock.

mod bad_input;
mod commands;
mod damage;
mod disks;
mod documents;
mod etcd;
mod faults;
mod fio;
mod gateway;
mod harness;
mod holders;
mod hosts;
mod hung_disk;
mod life;
mod logs;
mod minute;
mod monitors;
mod namespaces;
mod nbd;
mod objects;
mod objects_use;
mod operator;
mod parity;
mod processes;
mod raw_nbd;
mod recovery;
mod replication;
mod round_trip;
mod scrub;
mod servers;
mod statistics;
