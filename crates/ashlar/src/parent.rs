//! Makes a child of `up` exit when `up` exits, even if `up` is killed.

use cluster::message::Failure;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::output::failure;

/// Asks the kernel for SIGTERM when the process `parent` exits. Does nothing without a parent.
pub fn follow(parent: Option<u32>) -> Result<(), Failure> {
    let Some(parent) = parent else { return Ok(()) };
    let gone = || {
        let hint = "start the cluster again: ashlar up --detach";
        failure("died", "the parent process has exited", hint)
    };
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|_| gone())?;
    // The parent may have exited before the call above.
    let now = getppid().map(Pid::as_raw_nonzero).map(i32::from);
    if now == i32::try_from(parent).ok() { Ok(()) } else { Err(gone()) }
}
