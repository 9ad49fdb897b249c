//! Two clocks: one that never goes back and counts time in suspend, and the wall clock.

use base::Time;
use rustix::time::{ClockId, clock_gettime};

/// The time now on CLOCK_BOOTTIME.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Milliseconds since 1970, UTC. Only for people: it may jump.
pub fn wall_clock_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.max(0) as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}
