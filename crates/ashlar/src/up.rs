//! `ashlar up`: a whole cluster on this machine, with each daemon as a child process.
//!
//! ```text
//!   up ──spawns──▶ [etcd], mon.1, osd.1 .. osd.N, nbd, gateway  logs in DIR/log/
//!    ▲
//!    └── DIR/up.sock: one JSON line per request: wait, down, add OSDs, stop/start an OSD
//! ```
//!
//! Invariants
//!   1. Only one `up` runs per directory: it holds an exclusive lock on DIR/up.lock until it exits.
//!   2. Only the main thread spawns children: the kernel sends a child SIGTERM when the thread that spawned
//!      it exits (parent-death signal).
//!   3. A child that exits is restarted after `--restart-after`, unless it was stopped by hand.

mod control;
mod directory;
mod event;
mod protocol;
mod setup;
mod show;
mod supervise;

use std::fs;
use std::path::Path;

use cluster::message::Failure;

use crate::cli::{DownArgs, UpArgs};
use crate::output::{Format, failure};

pub use control::{ended_children, gateways, start_osd, stop_osd};

/// Runs `ashlar up`.
pub fn up(args: UpArgs, format: Format) -> Result<(), Failure> {
    setup::refuse_several_hosts(&args.dir)?;
    fs::create_dir_all(args.dir.join("log")).map_err(|error| cannot_make(&args.dir, &error))?;
    let dir = fs::canonicalize(&args.dir).map_err(|error| cannot_make(&args.dir, &error))?;
    if args.detach && !crate::background::is_background_up() {
        return control::detach(&dir, &args, format);
    }
    let Some(lock) = control::take_lock(&dir)? else {
        return control::join_running(&dir, &args, format);
    };
    supervise::run(&dir, &args, format, lock)
}

/// Runs `ashlar down`: returns once every process of the cluster has exited.
pub fn down(args: DownArgs, format: Format) -> Result<(), Failure> {
    control::down(&args.dir, format)
}

fn cannot_make(dir: &Path, error: &std::io::Error) -> Failure {
    failure(
        "io",
        format!("cannot create the directory {}: {error}", dir.display()),
        "choose another directory with --dir",
    )
}
