//! Benchmark: runs a load on a volume, on the caller's thread. Client core and reactor share one loop, as in
//! the NBD server.

mod objects;

use std::time::Duration as StdDuration;

use base::histogram::Histogram;
use base::{Buffer, Duration, Time};
use cluster::message::Failure;
use volume::{Attached, Effect, Event, Operation, RequestId, VolumeHandle};

use crate::config::{Config, failure};
use crate::shell::Shell;

pub use objects::{ObjectLoad, ObjectOp, ObjectsMeasured, Records, run_objects};

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// Writes at random offsets.
    RandomWrite,
    /// Reads at random offsets.
    RandomRead,
    /// Sequential writes.
    Write,
    /// Sequential reads.
    Read,
}

impl OpKind {
    /// Whether the operations only read.
    pub fn is_read(self) -> bool {
        matches!(self, OpKind::RandomRead | OpKind::Read)
    }

    /// Whether the operations are sequential.
    pub fn is_linear(self) -> bool {
        matches!(self, OpKind::Write | OpKind::Read)
    }
}

/// A load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Kind of operation.
    pub kind: OpKind,
    /// Bytes of one operation; its offset is a multiple of this. At least 1.
    pub block_size: u64,
    /// Operations in flight; at least 1.
    pub depth: usize,
    /// How long to run.
    pub time: StdDuration,
}

/// Result of a measurement.
#[derive(Clone, PartialEq, Eq)]
pub struct Measured {
    /// Latency of each operation.
    pub latencies: Histogram,
    /// Time from the first request to the last answer.
    pub elapsed: Duration,
    /// Bytes read or written.
    pub bytes: u64,
}

const VOLUME: VolumeHandle = VolumeHandle(1);

/// Attaches the volume, runs the load and detaches the volume. A write load overwrites the data of the
/// volume.
///
/// Errors: the monitor's; `invalid` (the load does not fit the volume), `failed` (an operation).
pub fn run(config: &Config, name: &str, load: &Load) -> Result<Measured, Failure> {
    assert!(load.depth > 0);
    assert!(load.block_size > 0);
    let mut shell = Shell::new(config, "bench")?;
    let attached = attach(&mut shell, name, load.kind.is_read())?;
    if load.block_size > attached.image().size {
        detach(&mut shell)?;
        let message = format!("volume {name} is smaller than one operation");
        return Err(failure("invalid", message, "use a smaller --block-size"));
    }
    let data = pattern(&shell, load.block_size as usize);
    let now = shell.reactor.now();
    let time = Duration::from_nanos(u64::try_from(load.time.as_nanos()).unwrap_or(u64::MAX));
    let mut run = Run {
        shell,
        load: *load,
        data,
        places: Places::new(attached.image().size, load.block_size),
        started: vec![Time::ZERO; load.depth],
        start: now,
        end: now + time,
        latencies: Histogram::default(),
    };
    let measured = run.measure();
    detach(&mut run.shell)?;
    measured
}

fn attach(shell: &mut Shell, name: &str, read_only: bool) -> Result<Attached, Failure> {
    let mut answers = Vec::new();
    let open = Event::Open { volume: VOLUME, name: name.to_string(), read_only, lock: true };
    shell.tell(open, &mut answers);
    loop {
        for answer in answers.drain(..) {
            if let Effect::Opened { result, .. } = answer {
                return result;
            }
        }
        shell.turn(None, &mut answers)?;
    }
}

/// Detaches the volume. Afterwards all writes are durable and other clients can attach it.
fn detach(shell: &mut Shell) -> Result<(), Failure> {
    let mut answers = Vec::new();
    shell.tell(Event::Close { volume: VOLUME, patient: false }, &mut answers);
    while !answers.iter().any(|answer| matches!(answer, Effect::Closed { .. })) {
        shell.turn(None, &mut answers)?;
    }
    shell.part()
}

/// Returns data that no layer below can compress.
fn pattern(shell: &Shell, size: usize) -> Buffer {
    let mut data = shell.reactor.pool().take(size);
    let mut random = Random::new();
    for bytes in data.chunks_mut(8) {
        bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]);
    }
    data.freeze()
}

struct Run {
    shell: Shell,
    load: Load,
    data: Buffer,
    places: Places,
    /// Start time of each operation in flight.
    started: Vec<Time>,
    start: Time,
    end: Time,
    latencies: Histogram,
}

impl Run {
    fn measure(&mut self) -> Result<Measured, Failure> {
        let mut answers = Vec::new();
        for slot in 0..self.load.depth {
            self.request(slot, &mut answers);
        }
        let mut open = self.load.depth;
        let mut now = self.start;
        while open > 0 {
            let mut done = std::mem::take(&mut answers);
            for answer in done.drain(..) {
                let Effect::Done { id, result } = answer else { continue };
                result
                    .map_err(|error| failure("failed", error.to_string(), "see `ashlar status`"))?;
                let slot = id.0 as usize;
                now = self.shell.reactor.now();
                self.latencies.record(now - self.started[slot]);
                if now < self.end {
                    self.request(slot, &mut answers);
                } else {
                    open -= 1;
                }
            }
            if answers.is_empty() && open > 0 {
                self.shell.turn(None, &mut answers)?;
            }
        }
        let bytes = self.latencies.count() * self.load.block_size;
        let latencies = std::mem::take(&mut self.latencies);
        Ok(Measured { latencies, elapsed: now - self.start, bytes })
    }

    fn request(&mut self, slot: usize, answers: &mut Vec<Effect>) {
        let offset = self.places.next(self.load.kind.is_linear());
        let operation = if self.load.kind.is_read() {
            Operation::Read { offset, length: self.load.block_size }
        } else {
            Operation::Write { offset, data: self.data.clone(), durable: false }
        };
        self.started[slot] = self.shell.reactor.now();
        let id = RequestId(slot as u64);
        let event = Event::Request { id, volume: VOLUME, operation, deadline: None };
        self.shell.tell(event, answers);
    }
}

/// Generates the offsets of the operations, in bytes.
pub struct Places {
    block_size: u64,
    count: u64,
    next: u64,
    random: Random,
}

impl Places {
    /// Divides `size` bytes into adjacent places of `block_size` bytes.
    ///
    /// Requires: at least one place fits.
    pub fn new(size: u64, block_size: u64) -> Places {
        assert!(block_size > 0);
        let count = size / block_size;
        assert!(count > 0);
        Places { block_size, count, next: 0, random: Random::new() }
    }

    /// Returns the number of bytes that all places cover.
    pub fn size(&self) -> u64 {
        self.count * self.block_size
    }

    /// Returns the next offset: the one that follows the last, or a random one. Random offsets are the same
    /// in each run.
    pub fn next(&mut self, is_linear: bool) -> u64 {
        let place = if is_linear {
            let place = self.next;
            self.next = (self.next + 1) % self.count;
            place
        } else {
            ((u128::from(self.random.next()) * u128::from(self.count)) >> 64) as u64
        };
        place * self.block_size
    }
}

/// SplitMix64 with a fixed seed: the same numbers in each run.
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_in_range_and_reach_everything() {
        let mut places = Places::new(7 * 512 + 511, 512);
        assert_eq!(places.size(), 7 * 512);
        let linear: Vec<u64> = (0..9).map(|_| places.next(true) / 512).collect();
        assert_eq!(linear, [0, 1, 2, 3, 4, 5, 6, 0, 1]);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| places.next(false)).collect();
        assert_eq!(seen, (0..7).map(|place| place * 512).collect());
    }
}
