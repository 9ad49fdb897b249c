//! Log-linear histogram of durations: 128 steps per power of two, so the error of a value is below 1 %. The
//! size is fixed, histograms can be merged, and nothing is allocated after creation.

use crate::time::Duration;

const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;
const BUCKETS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// Counts of durations by size.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let value = duration.as_nanos();
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// Returns the number of durations counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the longest duration, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// Returns the duration that `fraction` (0 to 1) of all durations do not exceed; zero if none was
    /// counted.
    pub fn quantile(&self, fraction: f64) -> Duration {
        let wanted = ((self.count as f64 * fraction).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(bucket_end(bucket).min(self.max));
            }
        }
        if crate::never!(self.count > 0) {
            return self.max();
        }
        Duration::ZERO
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }
}

fn bucket_of(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let step = (value >> (exponent - STEP_BITS)) as usize & (STEPS - 1);
    (exponent - STEP_BITS + 1) as usize * STEPS + step
}

/// Returns the largest value that falls into `bucket`.
fn bucket_end(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let exponent = (bucket / STEPS) as u32 + STEP_BITS - 1;
    let step = (bucket % STEPS) as u64;
    let width = 1u64 << (exponent - STEP_BITS);
    (1u64 << exponent).wrapping_add((step + 1).wrapping_mul(width)).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let median = histogram.quantile(0.5).as_nanos() as f64;
        assert!((500_000.0..=505_000.0).contains(&median), "{median}");
        assert_eq!(histogram.quantile(1.0), Duration::from_millis(1));
        assert_eq!(histogram.count(), 1000);
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in [0, 1, 127, 128, 129, 255, 256, 1000, u64::MAX / 3, u64::MAX] {
            let bucket = bucket_of(value);
            assert!(value <= bucket_end(bucket));
            assert!(bucket == 0 || value > bucket_end(bucket - 1));
        }
    }

    #[test]
    fn empty_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }
}
