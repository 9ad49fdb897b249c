//! Statistics: what OSDs count and report, and what the leading monitor adds up.
//!
//! ```text
//!   OSD: counts ──closes a period──▶ Period 7 ──OsdStats──▶ monitor: added once, at once
//!        keeps it until ◀──────────── StatsSaved 7 ──────── ... its sums are in the state store
//! ```
//!
//! Invariants
//!   1. A period is what one run of an OSD counted since the previous period; it never changes, and its
//!      number is never reused in that run. So a period can be sent again and is still counted only once.
//!   2. All numbers only grow; numbers from a peer are added with saturation.

use std::collections::BTreeMap;

use base::{Duration, ImageId, Incarnation, OsdId, PoolId};
use serde::{Deserialize, Serialize};

use crate::numbers::NUMBER_MAX;

/// Number of latency steps per power of two, as a number of bits.
const STEP_BITS: u32 = 2;
/// Smallest latency step in nanoseconds, as a number of bits: 4.1 us.
const UNIT_BITS: u32 = 12;
/// Number of latency buckets; the last one holds everything above two minutes.
const BUCKET_COUNT: usize = 96;
/// Maximum number of rows in a period; operations on further images are counted by pool.
pub const ROW_COUNT_MAX: usize = 8_192;
/// Maximum number of bytes of text of all periods in one message, so that they fit in a control message
/// together with the space of images.
pub const PERIODS_SIZE_MAX: usize = 3 << 20;
/// Maximum number of images whose space an OSD reports in one message.
pub const SPACE_COUNT_MAX: usize = 16_384;

const _: () =
    assert!(PERIODS_SIZE_MAX + SPACE_COUNT_MAX * 56 < format::wire::CONTROL_SIZE_MAX as usize);

/// Counts of latencies by size, with four steps per power of two: the error of a value is at most a quarter.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Latencies {
    /// Pairs (bucket, count), sorted by bucket; no count is zero.
    counts: Vec<(u8, u64)>,
}

impl Latencies {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.add_to(bucket_of(latency.as_nanos()), 1);
    }

    fn add_to(&mut self, bucket: u8, count: u64) {
        match self.counts.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(count),
            Err(at) => self.counts.insert(at, (bucket, count)),
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Latencies) {
        for (bucket, count) in &other.counts {
            self.add_to(*bucket, *count);
        }
    }

    /// Returns the latency that `percent` of all operations do not exceed; `None` if no operation was
    /// counted.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let count: u128 = self.counts.iter().map(|(_, count)| u128::from(*count)).sum();
        let wanted = (count * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= wanted
        });
        found.map(|(bucket, _)| Duration::from_nanos(bucket_end(*bucket)))
    }

    /// Returns the largest latency of each step that has counts, and its count, in order.
    pub fn steps(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let step =
            |(bucket, count): &(u8, u64)| (Duration::from_nanos(bucket_end(*bucket)), *count);
        self.counts.iter().map(step)
    }

    /// Returns the number of all that was counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Whether these counts are valid: a correct peer could have sent them.
    pub(crate) fn is_sound(&self) -> bool {
        let is_bucket = |(bucket, _): &(u8, u64)| usize::from(*bucket) < BUCKET_COUNT;
        self.counts.is_sorted_by(|a, b| a.0 < b.0) && self.counts.iter().all(is_bucket)
    }
}

fn bucket_of(nanos: u64) -> u8 {
    let value = nanos >> UNIT_BITS;
    let steps = 1 << STEP_BITS;
    if value < steps {
        return value as u8;
    }
    let exponent = 63 - value.leading_zeros();
    let step = (value >> (exponent - STEP_BITS)) & (steps - 1);
    let bucket = u64::from(exponent - STEP_BITS + 1) * steps + step;
    bucket.min(BUCKET_COUNT as u64 - 1) as u8
}

/// Returns the largest number of nanoseconds that falls into `bucket`.
fn bucket_end(bucket: u8) -> u64 {
    let steps = 1 << STEP_BITS;
    let value = if bucket < steps {
        u64::from(bucket) + 1
    } else {
        let exponent = u32::from(bucket / steps) + STEP_BITS - 1;
        let width = 1 << (exponent - STEP_BITS);
        (1 << exponent) + u64::from(bucket % steps + 1) * width
    };
    (value << UNIT_BITS) - 1
}

/// Operations of one kind.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Io {
    /// Number of operations.
    #[serde(skip_serializing_if = "is_zero")]
    pub ops: u64,
    /// Number of bytes that the operations read, wrote or freed.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Total duration of all operations, each from its arrival to its reply, in nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub nanos: u64,
    /// Latencies of the operations; empty if they were not measured, and in stored sums.
    #[serde(skip_serializing_if = "Latencies::is_empty")]
    pub latencies: Latencies,
}

impl Io {
    /// Counts an operation whose latency is not measured.
    pub fn count(&mut self, bytes: u64) {
        self.ops += 1;
        self.bytes += bytes;
    }

    /// Counts an operation.
    pub fn record(&mut self, bytes: u64, latency: Duration) {
        self.count(bytes);
        self.nanos += latency.as_nanos();
        self.latencies.record(latency);
    }

    fn add(&mut self, other: &Io) {
        self.ops = self.ops.saturating_add(other.ops);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.nanos = self.nanos.saturating_add(other.nanos);
        self.latencies.add(&other.latencies);
    }

    fn is_zero(&self) -> bool {
        *self == Io::default()
    }
}

/// The counters of a volume, a pool or an OSD.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Reads answered to clients, counted at the primary.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub read: Io,
    /// Writes acknowledged to clients, counted at the primary: each once, however many copies there are.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub write: Io,
    /// Discards and write-zeroes, counted at the primary.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub trim: Io,
    /// Syncs, counted at the primary: for the pool, not for a volume.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub flush: Io,
    /// Writes passed to an OSD's store: a write counts once for every copy.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub stored: Io,
    /// Blocks copied to an OSD's store by backfill or repair.
    #[serde(skip_serializing_if = "Io::is_zero")]
    pub recovered: Io,
    /// Operations answered with an I/O error: no copy could be read.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Operations refused because there was no free space.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_full: u64,
    /// Reads that failed at the disk of an OSD.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_errors: u64,
    /// Units (4 KiB) that an OSD found damaged.
    #[serde(skip_serializing_if = "is_zero")]
    pub damaged_units: u64,
    /// Damaged units that were rewritten with data from another copy.
    #[serde(skip_serializing_if = "is_zero")]
    pub repaired_units: u64,
}

impl Counters {
    /// Adds `other`.
    pub fn add(&mut self, other: &Counters) {
        let sum = |mine: &mut u64, other: u64| *mine = mine.saturating_add(other);
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.trim.add(&other.trim);
        self.flush.add(&other.flush);
        self.stored.add(&other.stored);
        self.recovered.add(&other.recovered);
        sum(&mut self.failed, other.failed);
        sum(&mut self.refused_full, other.refused_full);
        sum(&mut self.read_errors, other.read_errors);
        sum(&mut self.damaged_units, other.damaged_units);
        sum(&mut self.repaired_units, other.repaired_units);
    }

    fn ios(&self) -> [&Io; 6] {
        [&self.read, &self.write, &self.trim, &self.flush, &self.stored, &self.recovered]
    }

    /// Returns the sums to store, without latencies: only the current latencies are of interest.
    #[must_use]
    pub fn without_latencies(mut self) -> Counters {
        for io in [
            &mut self.read,
            &mut self.write,
            &mut self.trim,
            &mut self.flush,
            &mut self.stored,
            &mut self.recovered,
        ] {
            io.latencies = Latencies::default();
        }
        self
    }

    /// Whether nothing was counted.
    pub fn is_zero(&self) -> bool {
        *self == Counters::default()
    }
}

/// An OSD's counters for one image, or for operations of a pool that belong to no image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageCounters {
    /// The pool.
    pub pool: PoolId,
    /// The image; `None`: operations that belong to no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
    /// The counters.
    pub counters: Counters,
}

/// An OSD's counters for one period of time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Period {
    /// The period's number, counted from 1 in each run.
    pub sequence: u64,
    /// The rows by image, with each image listed once.
    pub rows: Vec<ImageCounters>,
    /// The counters of the OSD itself.
    #[serde(default, skip_serializing_if = "Counters::is_zero")]
    pub own: Counters,
}

/// Space of an image on one OSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageSpace {
    /// The image.
    pub image: ImageId,
    /// Bytes of the image's blocks in the PGs whose primary is this OSD, in whole blocks.
    pub bytes: u64,
}

/// The statistics that an OSD reports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OsdStats {
    /// Periods that were not sent over this connection yet, in order. The first message on a connection
    /// contains all periods that are not saved.
    #[serde(default)]
    pub periods: Vec<Period>,
    /// Space of images that has changed since it was last sent over this connection.
    #[serde(default)]
    pub space: Vec<ImageSpace>,
    /// Whether the space of all images was sent over this connection: other images use no space.
    #[serde(default)]
    pub space_is_whole: bool,
}

impl OsdStats {
    /// Whether the message is valid: a correct peer could have sent it.
    pub fn is_sound(&self) -> bool {
        let rows = || self.periods.iter().flat_map(|period| &period.rows);
        let all = rows().map(|row| &row.counters).chain(self.periods.iter().map(|p| &p.own));
        let mut ios = all.flat_map(Counters::ios);
        let is_counted = |period: &Period| (1..=NUMBER_MAX).contains(&period.sequence);
        self.periods.is_sorted_by(|a, b| a.sequence < b.sequence)
            && self.periods.iter().all(is_counted)
            && self.periods.iter().all(|period| period.rows.len() <= ROW_COUNT_MAX)
            && self.space.len() <= SPACE_COUNT_MAX
            && ios.all(|io| io.latencies.is_sound())
    }
}

/// The objects for which statistics are kept. The order is that of the keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// OSDs, by id.
    Osd,
    /// Pools, by id.
    Pool,
    /// Volumes, by the id of their image.
    Volume,
}

impl Table {
    /// Every table.
    pub const ALL: [Table; 3] = [Table::Osd, Table::Pool, Table::Volume];

    /// Returns the table's name in keys.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Osd => "osd",
            Table::Pool => "pool",
            Table::Volume => "volume",
        }
    }
}

/// Identifies a period in a run of an OSD; later periods compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct PeriodId {
    /// The run.
    pub incarnation: Incarnation,
    /// The period.
    pub sequence: u64,
}

/// Sums of one row, as stored in the state store.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sums {
    /// The name of the row's object, for display.
    #[serde(default)]
    pub name: String,
    /// Bytes of blocks in use, counted once and not per copy; 0 for an OSD, which reports its own
    /// usage.
    #[serde(default)]
    pub used_bytes: u64,
    /// Sums since the object was created.
    #[serde(flatten)]
    pub counters: Counters,
}

/// Rows by id.
pub type Rows = BTreeMap<u32, Sums>;

/// For each OSD, the newest period that is included in the rows stored together with this value.
pub type NewestPeriods = BTreeMap<OsdId, PeriodId>;

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_in_its_bucket() {
        for nanos in [0, 4095, 4096, 16_383, 16_384, 20_480, 1_000_000, 123_456_789, 60_000_000_000]
        {
            let bucket = bucket_of(nanos);
            assert!(nanos <= bucket_end(bucket), "{nanos}");
            assert!(bucket == 0 || nanos > bucket_end(bucket - 1), "{nanos}");
        }
        assert_eq!(usize::from(bucket_of(u64::MAX)), BUCKET_COUNT - 1);
    }

    #[test]
    fn percentiles_are_within_a_quarter() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(99), None);
        let mut other = Latencies::default();
        for micros in 1..=1000 {
            let half = if micros % 2 == 0 { &mut latencies } else { &mut other };
            half.record(Duration::from_micros(micros));
        }
        latencies.add(&other);
        let within = |percent: u8, exact: u64| {
            let found = latencies.percentile(percent).unwrap().as_nanos() / 1000;
            assert!((exact..=exact * 5 / 4).contains(&found), "{percent}: {found}");
        };
        within(50, 500);
        within(99, 990);
        assert!(latencies.is_sound());
    }

    #[test]
    fn what_no_osd_of_ours_says_is_not_sound() {
        let mut stats = OsdStats::default();
        assert!(stats.is_sound());
        let period = |sequence| Period { sequence, ..Period::default() };
        stats.periods = vec![period(2), period(2)];
        assert!(!stats.is_sound());
        stats.periods = vec![period(2), period(4)];
        assert!(stats.is_sound());
        stats.periods[1].own.read.latencies.counts = vec![(96, 1)];
        assert!(!stats.is_sound());
        stats.periods[1].own.read.latencies.counts = vec![(3, 1), (3, 1)];
        assert!(!stats.is_sound());
        stats.periods.clear();
        let row = ImageCounters { pool: PoolId::FIRST, image: None, counters: Counters::default() };
        let rows = vec![row; ROW_COUNT_MAX + 1];
        stats.periods = vec![Period { sequence: 1, rows, own: Counters::default() }];
        assert!(!stats.is_sound());
    }

    #[test]
    fn sums_of_hostile_numbers_stay_at_the_largest() {
        let mut counters = Counters::default();
        counters.write.ops = u64::MAX;
        let mut more = Counters::default();
        more.write.record(u64::MAX, Duration::from_micros(5));
        more.write.latencies.counts[0].1 = u64::MAX;
        counters.add(&more);
        counters.add(&more);
        assert_eq!((counters.write.ops, counters.write.bytes), (u64::MAX, u64::MAX));
        assert!(counters.write.latencies.percentile(99).is_some());
    }
}
