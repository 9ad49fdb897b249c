//! The result of a load, and processor time.

use base::histogram::Histogram;
use base::{Duration, Time};
use rustix::time::{ClockId, clock_gettime};

/// The result of a load.
#[derive(Clone)]
pub struct Measured {
    /// Latencies: one entry for each operation.
    pub histogram: Histogram,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Processor time of this process during the load.
    pub cpu: Duration,
}

impl Measured {
    /// Returns the operations per second.
    pub fn ops_per_second(&self) -> f64 {
        self.histogram.count() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Returns the processor time of this process, including its io_uring worker threads.
pub fn cpu_time() -> Time {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
