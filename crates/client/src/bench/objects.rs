//! Benchmark of object pools: a load on many small values, or on objects, through the library for async programs.
//!
//! ```text
//!   number of a record ──mix──▶ key: keys come in a random order, the same in each run
//!                      ──mix──▶ size and content of the value
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration as StdDuration, Instant};

use base::Duration;
use base::histogram::Histogram;

use super::Random;
use crate::block_on::block_on;
use crate::objects::{Listing, Name, ObjectChange, ObjectError, ObjectPool, ObjectSteps, all};

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectOp {
    /// Puts each record once, so many together.
    Bulk,
    /// Removes each record once, so many together.
    Remove,
    /// Puts random records, one by one.
    Put,
    /// Gets random records.
    Get,
    /// Lists all records in order, with data of up to 32 KiB, page by page.
    Scan,
    /// Lists the names of all records in order, page by page.
    List,
}

/// Records, each with a random key and a value of a random size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Records {
    /// What their keys begin with.
    pub prefix: String,
    /// How many there are.
    pub count: u64,
    /// The smallest value, in bytes.
    pub size_min: u64,
    /// The largest value, in bytes.
    pub size_max: u64,
    /// Whether values are text, which can be compressed, or random bytes.
    pub is_text: bool,
}

/// A load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectLoad {
    /// Kind of operation.
    pub kind: ObjectOp,
    /// On which records.
    pub records: Records,
    /// Records of one bulk, or of one removal.
    pub batch: u64,
    /// Operations in flight; at least 1.
    pub depth: usize,
    /// How long to run; `None`: until all records were written or read once. A removal ends with the last
    /// record in any case.
    pub time: Option<StdDuration>,
}

/// Result of a measurement.
#[derive(Clone, Default)]
pub struct ObjectsMeasured {
    /// Latency of each operation: of a bulk, a put, a removal, a get or a page.
    pub latencies: Histogram,
    /// Time from the first request to the last answer.
    pub elapsed: Duration,
    /// Records that were written, removed, or read and there.
    pub records: u64,
    /// Bytes of their keys and values. Of a list of names and of a removal: of their keys.
    pub bytes: u64,
    /// Records that were asked for and not there. Removals of several records together do not tell.
    pub absent: u64,
}

/// What an operation did.
#[derive(Clone, Copy, Default)]
struct Done {
    records: u64,
    bytes: u64,
    absent: u64,
}

const WORD_COUNT: u64 = 512;

/// Returns a number that looks random: another one for each.
fn mix(number: u64) -> u64 {
    Random(number).next()
}

impl Records {
    /// Returns the key of a record. Keys are spread evenly, and no two are the same.
    pub fn key(&self, number: u64) -> String {
        format!("{}{:016x}", self.prefix, mix(number))
    }

    /// Returns the value of a record.
    pub fn value(&self, number: u64) -> Vec<u8> {
        let mut random = Random(mix(number) ^ self.count);
        let size = self.size_min + random.next() % (self.size_max - self.size_min + 1);
        let mut value = Vec::with_capacity(size as usize + 16);
        while (value.len() as u64) < size {
            let next = random.next();
            if !self.is_text {
                value.extend_from_slice(&next.to_le_bytes());
                continue;
            }
            // A word of 2 to 9 letters, of as many words as a small vocabulary has.
            let word = mix(next % WORD_COUNT);
            let letters = word.to_le_bytes().map(|byte| b'a' + byte % 26);
            value.extend_from_slice(&letters[..1 + (word >> 61) as usize]);
            value.push(b' ');
        }
        value.truncate(size as usize);
        value
    }

    fn name(&self, number: u64) -> Name {
        Name::new(self.key(number).as_bytes()).expect("the prefix is short")
    }
}

/// Runs a load. `progress` is told how many records are done.
///
/// Errors: those of the operations.
pub fn run_objects(
    pool: &ObjectPool,
    load: &ObjectLoad,
    progress: &mut dyn FnMut(u64),
) -> Result<ObjectsMeasured, ObjectError> {
    assert!(load.depth > 0 && load.batch > 0 && load.records.count > 0);
    let start = Instant::now();
    let end = load.time.map(|time| start + time);
    let mut measured = ObjectsMeasured::default();
    let mut works = Works { load, next: 0, random: Random::new(), ranges: ranges_of(load) };
    let mut running = Vec::new();
    for _ in 0..load.depth {
        running.extend(works.next().map(|work| Box::pin(timed(pool, load, work))));
    }
    while !running.is_empty() {
        let mut ended = Vec::new();
        block_on(std::future::poll_fn(|context| {
            let mut index = 0;
            while index < running.len() {
                match Pin::new(&mut running[index]).poll(context) {
                    Poll::Ready(result) => {
                        drop(running.swap_remove(index));
                        ended.push(result);
                    }
                    Poll::Pending => index += 1,
                }
            }
            if ended.is_empty() { Poll::Pending } else { Poll::Ready(()) }
        }));
        let now = Instant::now();
        for result in ended {
            let (done, latency, rest) = result?;
            measured.latencies.record(duration_of(latency));
            measured.records += done.records;
            measured.bytes += done.bytes;
            measured.absent += done.absent;
            if end.is_some_and(|end| now >= end) {
                continue;
            }
            let next = rest.or_else(|| works.next());
            running.extend(next.map(|work| Box::pin(timed(pool, load, work))));
        }
        progress(measured.records + measured.absent);
    }
    measured.elapsed = duration_of(start.elapsed());
    Ok(measured)
}

fn duration_of(span: StdDuration) -> Duration {
    Duration::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// One operation.
enum Work {
    /// Put these records together.
    Bulk(std::ops::Range<u64>),
    /// Remove these records together.
    Remove(std::ops::Range<u64>),
    Put(u64),
    Get(u64),
    /// A page.
    Page(Listing),
}

/// The operations of a load, in order.
struct Works<'a> {
    load: &'a ObjectLoad,
    /// The next record of those that are written or removed once.
    next: u64,
    random: Random,
    /// What is still to be listed: each range by itself.
    ranges: Vec<Listing>,
}

impl Works<'_> {
    fn next(&mut self) -> Option<Work> {
        let count = self.load.records.count;
        let is_repeated = self.load.time.is_some() && self.load.kind != ObjectOp::Remove;
        let is_over = !is_repeated && self.next >= count;
        match self.load.kind {
            ObjectOp::Scan | ObjectOp::List => {
                if self.ranges.is_empty() && self.load.time.is_some() {
                    self.ranges = ranges_of(self.load);
                }
                self.ranges.pop().map(Work::Page)
            }
            _ if is_over => None,
            ObjectOp::Bulk => Some(Work::Bulk(self.batch(count))),
            ObjectOp::Remove => Some(Work::Remove(self.batch(count))),
            ObjectOp::Put => Some(Work::Put(self.draw(count))),
            ObjectOp::Get => Some(Work::Get(self.draw(count))),
        }
    }

    /// Returns the next records that go together.
    fn batch(&mut self, count: u64) -> std::ops::Range<u64> {
        let first = self.next % count;
        let behind = (first + self.load.batch).min(count);
        self.next += behind - first;
        first..behind
    }

    fn draw(&mut self, count: u64) -> u64 {
        self.next += 1;
        self.random.next() % count
    }
}

/// Divides all keys into as many ranges as are listed at the same time.
fn ranges_of(load: &ObjectLoad) -> Vec<Listing> {
    let (prefix, depth) = (&load.records.prefix, load.depth as u64);
    let at = |index: u64| {
        let first = (u128::from(index) << 64) / u128::from(depth);
        format!("{prefix}{first:016x}").into_bytes()
    };
    let range = |index| Listing {
        prefix: prefix.clone().into_bytes(),
        from: at(index),
        before: (index + 1 < depth).then(|| at(index + 1)),
        ..all()
    };
    (0..depth).rev().map(range).collect()
}

/// Carries out an operation. Returns what it did, how long that took, and what must follow it.
async fn timed(
    pool: &ObjectPool,
    load: &ObjectLoad,
    work: Work,
) -> Result<(Done, StdDuration, Option<Work>), ObjectError> {
    let records = &load.records;
    let put = |number: u64| (records.name(number), records.value(number));
    // Records are made before the clock runs.
    Ok(match work {
        // Long data takes several operations.
        Work::Bulk(numbers) if numbers.end - numbers.start == 1 => {
            return Box::pin(timed(pool, load, Work::Put(numbers.start))).await;
        }
        Work::Bulk(numbers) => {
            let (mut steps, mut bytes) = (Vec::new(), 0);
            for (name, value) in numbers.map(put) {
                bytes += (name.bytes().len() + value.len()) as u64;
                let changes = vec![ObjectChange::Put(value)];
                steps.push(ObjectSteps { name, assertions: Vec::new(), changes });
            }
            let start = Instant::now();
            let (done, result) = pool.bulk(steps).await;
            result?;
            (Done { records: done as u64, bytes, absent: 0 }, start.elapsed(), None)
        }
        Work::Put(number) => {
            let (name, value) = put(number);
            let bytes = (name.bytes().len() + value.len()) as u64;
            let start = Instant::now();
            pool.put(&name, Vec::new(), value, |_| {}).await?;
            (Done { records: 1, bytes, absent: 0 }, start.elapsed(), None)
        }
        Work::Remove(numbers) if numbers.end - numbers.start == 1 => {
            let name = records.name(numbers.start);
            let start = Instant::now();
            let removed = u64::from(pool.remove(&name, Vec::new()).await?);
            let bytes = removed * name.bytes().len() as u64;
            (Done { records: removed, bytes, absent: 1 - removed }, start.elapsed(), None)
        }
        Work::Remove(numbers) => {
            let (mut steps, mut bytes) = (Vec::new(), 0);
            for name in numbers.map(|number| records.name(number)) {
                bytes += name.bytes().len() as u64;
                let changes = vec![ObjectChange::Remove];
                steps.push(ObjectSteps { name, assertions: Vec::new(), changes });
            }
            let start = Instant::now();
            let (done, result) = pool.bulk(steps).await;
            result?;
            (Done { records: done as u64, bytes, absent: 0 }, start.elapsed(), None)
        }
        Work::Get(number) => {
            let name = records.name(number);
            let start = Instant::now();
            let found = pool.get(&name).await?;
            let bytes = found.as_ref().map(|(_, value)| (name.bytes().len() + value.len()) as u64);
            let done = Done {
                records: u64::from(bytes.is_some()),
                bytes: bytes.unwrap_or(0),
                absent: u64::from(bytes.is_none()),
            };
            (done, start.elapsed(), None)
        }
        Work::Page(listing) => {
            let start = Instant::now();
            let page = pool.scan(&listing, load.kind == ObjectOp::Scan).await?;
            let elapsed = start.elapsed();
            let mut done = Done::default();
            for entry in &page.entries {
                let crate::objects::PageEntry::Key(key, listed) = entry else { continue };
                done.records += 1;
                done.bytes +=
                    (key.len() + listed.data.as_ref().map_or(0, |data| data.len())) as u64;
            }
            let rest = page.next.map(|from| Work::Page(Listing { from, ..listing }));
            (done, elapsed, rest)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn records() -> Records {
        let prefix = "r/".to_string();
        Records { prefix, count: 1000, size_min: 300, size_max: 900, is_text: true }
    }

    #[test]
    fn records_are_spread_and_of_all_sizes() {
        let records = records();
        let keys: BTreeSet<String> = (0..1000).map(|number| records.key(number)).collect();
        assert_eq!(keys.len(), 1000);
        let in_first_half = keys.iter().filter(|key| key.as_str() < "r/8").count();
        assert!((400..600).contains(&in_first_half), "{in_first_half}");
        let sizes: Vec<usize> = (0..1000).map(|number| records.value(number).len()).collect();
        assert!(sizes.iter().all(|size| (300..=900).contains(size)));
        assert!(sizes.iter().any(|size| *size < 320) && sizes.iter().any(|size| *size > 880));
        let words = records.value(7);
        assert!(words.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b' '));
        assert_eq!(records.value(7), words, "the same in each run");
    }

    #[test]
    fn ranges_cover_all_keys_once() {
        let kind = ObjectOp::Scan;
        let load = ObjectLoad { kind, records: records(), batch: 1, depth: 3, time: None };
        let ranges = ranges_of(&load);
        for number in 0..1000 {
            let key = load.records.key(number).into_bytes();
            let is_in = |range: &&Listing| {
                range.from <= key && range.before.as_ref().is_none_or(|before| key < *before)
            };
            assert_eq!(ranges.iter().filter(is_in).count(), 1);
        }
    }

    #[test]
    fn each_record_is_written_once_unless_a_time_is_set() {
        let kind = ObjectOp::Bulk;
        let mut load = ObjectLoad { kind, records: records(), batch: 300, depth: 1, time: None };
        let works = |load: &ObjectLoad| {
            let mut works = Works { load, next: 0, random: Random::new(), ranges: Vec::new() };
            (0..6)
                .map_while(|_| works.next())
                .map(|work| match work {
                    Work::Bulk(range) | Work::Remove(range) => range,
                    _ => panic!("batches"),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(works(&load), [0..300, 300..600, 600..900, 900..1000]);
        load.time = Some(StdDuration::from_secs(1));
        assert_eq!(works(&load)[4..], [0..300, 300..600]);
        load.kind = ObjectOp::Remove;
        assert_eq!(works(&load).len(), 4, "what is gone is not removed again");
    }
}
