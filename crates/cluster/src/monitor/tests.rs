//! Tests of the monitor. The name of each test is the claim that it checks.

mod damage;
mod elections;
mod faults;
mod fences;
mod give_up;
mod health;
mod life;
mod lines;
mod lock;
mod members;
mod objects;
mod operator;
mod parity;
mod restore;
mod rig;
mod scrub;
mod silent_clients;
mod slow_disks;
mod stats;
