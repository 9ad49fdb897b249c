//! A child of `up` ends when `up` does, however that ends.

use cluster::message::Failure;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::output::failure;

/// Asks the kernel for SIGTERM when the process `parent` ends. Without a parent, nothing.
pub fn follow(parent: Option<u32>) -> Result<(), Failure> {
    let Some(parent) = parent else { return Ok(()) };
    let gone = || {
        let hint = "start the cluster again: ashlar up --detach";
        failure("died", "the parent process has ended", hint)
    };
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|_| gone())?;
    // It may have ended before the line above.
    let now = getppid().map(Pid::as_raw_nonzero).map(i32::from);
    if now == i32::try_from(parent).ok() { Ok(()) } else { Err(gone()) }
}
