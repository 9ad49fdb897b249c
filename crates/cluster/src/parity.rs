//! Whether pools with parity may be used. OSDs do not yet keep every guarantee for such pools, so monitors
//! neither create them nor accept them from a record, except in tests.

use std::sync::atomic::{AtomicBool, Ordering};

/// True in the tests of this crate, because they run no real OSDs.
static IS_SERVED: AtomicBool = AtomicBool::new(cfg!(test));

/// Allows pools with parity in this process, for the simulator.
pub fn serve() {
    IS_SERVED.store(true, Ordering::Relaxed);
}

/// Returns whether pools with parity may be used.
pub fn is_served() -> bool {
    IS_SERVED.load(Ordering::Relaxed)
}
