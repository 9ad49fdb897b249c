//! What `ashlar bench` measures while a load runs.

use base::Duration;
use base::histogram::Histogram;
use client::bench::Load;
use serde_json::{Value, json};

/// What was measured while a load ran.
pub struct Measured {
    /// Latencies.
    pub histogram: Histogram,
    /// Duration of the load.
    pub elapsed: Duration,
    /// Processor time of the OSDs; of this process if the load runs on the store alone.
    pub cpu: Option<Duration>,
    /// Bytes of one operation.
    pub block_size: u64,
}

impl Measured {
    /// Returns the result as JSON.
    pub fn value(&self) -> Value {
        let seconds = self.elapsed.as_secs_f64();
        let count = self.histogram.count();
        let micros = |duration: Duration| duration.as_nanos() as f64 / 1e3;
        json!({
            "ops_per_second": count as f64 / seconds,
            "bytes_per_second": (count * self.block_size) as f64 / seconds,
            "latency_us": {
                "p50": micros(self.histogram.quantile(0.5)),
                "p99": micros(self.histogram.quantile(0.99)),
                "max": micros(self.histogram.max()),
            },
            "osd_cpu_us_per_op": self.cpu.map(|cpu| micros(cpu) / count.max(1) as f64),
        })
    }
}

/// Returns the requested duration of a load.
pub fn span_of(load: &Load) -> Duration {
    Duration::from_nanos(u64::try_from(load.time.as_nanos()).expect("at most a day"))
}
