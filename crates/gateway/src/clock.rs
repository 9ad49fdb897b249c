//! The clocks of this machine.

use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

/// Returns microseconds on a clock that only runs forward, also while the machine sleeps.
pub fn running_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds * 1_000_000 + nanoseconds / 1_000
}

/// Returns the wall clock: microseconds since 1970.
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_running_clock_runs() {
        let before = super::running_us();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(super::running_us() >= before + 2_000);
        assert!(super::wall_us() > 1_700_000_000_000_000);
    }
}
