//! Two clocks: a monotonic one that includes time in suspend, and the wall clock.

use base::Time;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time of CLOCK_BOOTTIME.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns milliseconds since 1970, UTC. For display only: this clock may jump.
pub fn wall_clock_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.max(0) as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}
