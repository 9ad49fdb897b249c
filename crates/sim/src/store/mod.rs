//! `sim store`: the real block store on a simulated disk, checked against a model of every unit.
//!
//! ```text
//!   Plan ─▶ asks ─▶ Store ─▶ SimDisk          World::step takes the next event in time;
//!             │       │  ▲       │            a crash may follow any effect
//!             ▼       ▼  └───────┘
//!           Model ◀─ answers
//! ```

mod answers;
mod asked;
mod asks;
mod catalog;
mod damage;
mod faults;
mod model;
mod object_blocks;
mod object_model;
mod objects;
mod parity;
mod part_tables;
mod plan;
mod versions;
mod world;

pub use catalog::{CONSEQUENCES, FAULTS, OPERATIONS, tally};
pub use world::install_store;

use crate::outcome::{Outcome, Run};

/// Runs one seed.
pub fn run(run: Run) -> Outcome {
    let mut world = world::World::new(run);
    let result = world.run();
    let (hash, tally) = world.into_parts();
    Outcome { hash, tally, result }
}
