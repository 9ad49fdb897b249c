//! `ashlar osd`: create, run, inspect and check OSDs and their disks.

mod create;
mod engine;
mod inspect;
mod run;
mod store_file;
mod turns;

pub use create::{CreateRequest, Place, create, create_osd, unfinished_osd};
pub use engine::renew as new_engine;
pub use inspect::{check, compare, inspect};
pub use run::{Memory, RunPlace, log_of, run};
pub use store_file::{blocks_of, superblock_of};
