//! `ashlar osd`: make, run, inspect and check storage daemons and their disks.

mod create;
mod inspect;
mod run;
mod store_file;

pub use create::{CreateRequest, Place, create, create_osd, unfinished_osd};
pub use inspect::{check, compare, inspect};
pub use run::{RunPlace, log_of, run};
