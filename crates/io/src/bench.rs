//! Limits to compare with: plain io_uring on a file, and an echo over loopback TCP.
//!
//! Nothing of ours is in between: what these cost, any program on this machine pays.

mod echo;
mod journaled;

use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use base::histogram::Histogram;
use base::{BufferMut, BufferPool, Duration, Time};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::time::{ClockId, clock_gettime};

use crate::disk::Disk;
use crate::{Error, clock};

/// The part of the file that is used, in bytes; it is filled before anything is measured, so that
/// no write has to allocate space.
pub const RANGE_SIZE_MAX: u64 = 256 << 20;
const FILL_SIZE: u64 = 4 << 20;

/// A load on a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawLoad {
    /// The file; what it holds is lost.
    pub path: PathBuf,
    /// Its size in bytes, or the part of it to use.
    pub size: u64,
    /// Read instead of write.
    pub is_read: bool,
    /// One place after another instead of random ones.
    pub is_linear: bool,
    /// Bytes of one operation; a multiple of 4 KiB.
    pub block_size: u64,
    /// Operations in flight.
    pub depth: usize,
    /// How long.
    pub time: Duration,
    /// Write with RWF_DSYNC.
    pub durable: bool,
}

/// What a load came to.
#[derive(Clone)]
pub struct Measured {
    /// Latencies; their count is that of the operations.
    pub histogram: Histogram,
    /// How long it took.
    pub elapsed: Duration,
    /// Processor time of this process meanwhile.
    pub cpu: Duration,
}

impl Measured {
    /// Operations in a second.
    pub fn ops_per_second(&self) -> f64 {
        self.histogram.count() as f64 / self.elapsed.as_secs_f64()
    }
}

pub use echo::{EchoLoad, echo};
pub use journaled::journaled;

/// The part of the file that a load uses, in bytes.
fn range_of(load: &RawLoad) -> u64 {
    load.size.min(RANGE_SIZE_MAX) / load.block_size * load.block_size
}

/// Measures plain io_uring on a file, with O_DIRECT where the file system allows it.
pub fn raw(load: &RawLoad) -> Result<Measured, Error> {
    let failed = |error: std::io::Error| Error::new("io_uring", error);
    let range = range_of(load);
    if range == 0 || load.depth == 0 || !load.block_size.is_multiple_of(4096) {
        return Err(Error("the load does not fit the file".into()));
    }
    let disk = open_filled(&load.path, range)?;
    let mut uring = ring(load.depth).map_err(failed)?;
    let pool = BufferPool::default();
    let slots: Vec<Slot> = (0..load.depth)
        .map(|_| Slot { buffer: pool.take_zeroed(load.block_size as usize), began: Time::ZERO })
        .collect();
    let places = Places::new(range, load);
    let mut run = Run { load, fd: disk.file().as_raw_fd(), places, slots };
    run.measure(&mut uring).map_err(failed)
}

fn open_filled(path: &Path, range: u64) -> Result<Disk, Error> {
    let disk = Disk::open(path)?;
    let pool = BufferPool::default();
    let bytes = pool.take_zeroed(FILL_SIZE as usize);
    let mut offset = 0;
    while offset < range {
        let length = (range - offset).min(FILL_SIZE) as usize;
        std::os::unix::fs::FileExt::write_all_at(disk.file(), &bytes[..length], offset)
            .and_then(|()| if offset == 0 { disk.file().sync_all() } else { Ok(()) })
            .map_err(|error| Error::new(path.display(), error))?;
        offset += length as u64;
    }
    disk.file().sync_all().map_err(|error| Error::new(path.display(), error))?;
    Ok(disk)
}

fn ring(depth: usize) -> std::io::Result<IoUring> {
    let entries = depth.next_power_of_two() as u32;
    let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    uring.or_else(|_| IoUring::new(entries))
}

struct Slot {
    buffer: BufferMut,
    began: Time,
}

struct Run<'a> {
    load: &'a RawLoad,
    fd: RawFd,
    places: Places,
    slots: Vec<Slot>,
}

/// Where the operations of a load go, one after the other.
struct Places {
    block_size: u64,
    count: u64,
    is_linear: bool,
    next: u64,
    random: u64,
}

impl Run<'_> {
    fn measure(&mut self, uring: &mut IoUring) -> std::io::Result<Measured> {
        let mut histogram = Histogram::default();
        let (begin, cpu_begin) = (clock::now(), cpu_time());
        let mut in_flight = 0;
        for slot in 0..self.slots.len() {
            self.start(uring, slot, begin);
            in_flight += 1;
        }
        let mut now = begin;
        let mut result = Ok(());
        while in_flight > 0 {
            if let Err(error) = uring.submit_and_wait(1) {
                // The kernel may still use the buffers: they are given up.
                std::mem::forget(std::mem::take(&mut self.slots));
                return Err(error);
            }
            now = clock::now();
            loop {
                let Some(completion) = uring.completion().next() else { break };
                let slot = completion.user_data() as usize;
                in_flight -= 1;
                if completion.result() as i64 != self.load.block_size as i64 {
                    result = Err(std::io::Error::from_raw_os_error(-completion.result().min(-1)));
                    continue;
                }
                histogram.record(now.since(self.slots[slot].began));
                if now.since(begin) < self.load.time && result.is_ok() {
                    self.start(uring, slot, now);
                    in_flight += 1;
                }
            }
        }
        let (elapsed, cpu) = (now.since(begin), cpu_time().since(cpu_begin));
        result.map(|()| Measured { histogram, elapsed, cpu })
    }

    fn start(&mut self, uring: &mut IoUring, slot: usize, now: Time) {
        let offset = self.places.next();
        let entry = self.entry(slot, offset);
        self.slots[slot].began = now;
        // SAFETY: the buffer belongs to the slot, which is not used again before the completion
        // of this entry; `measure` leaves only when all completions have come, or when the ring
        // itself fails, and then the buffers are never freed.
        unsafe { uring.submission().push(&entry) }.expect("the ring holds `depth` entries");
    }

    fn entry(&mut self, slot: usize, offset: u64) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        let buffer = &mut self.slots[slot].buffer;
        let length = self.load.block_size as u32;
        let entry = if self.load.is_read {
            opcode::Read::new(fd, buffer.as_mut_ptr(), length).offset(offset).build()
        } else {
            let flags = if self.load.durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, buffer.as_ptr(), length).offset(offset).rw_flags(flags).build()
        };
        entry.user_data(slot as u64)
    }
}

impl Places {
    fn new(range: u64, load: &RawLoad) -> Places {
        let block_size = load.block_size;
        let count = range / block_size;
        Places { block_size, count, is_linear: load.is_linear, next: 0, random: 1 }
    }

    fn next(&mut self) -> u64 {
        let index = if self.is_linear {
            self.next += 1;
            self.next % self.count
        } else {
            // xorshift64: no two neighbours, the same places in each run.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % self.count
        };
        index * self.block_size
    }
}

/// Processor time of this process, its kernel workers included.
pub fn cpu_time() -> Time {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_measured() {
        let path = std::env::temp_dir().join(format!("ashlar-bench-{}", std::process::id()));
        std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("writable");
        let mut load = RawLoad {
            path: path.clone(),
            size: 8 << 20,
            is_read: false,
            is_linear: false,
            block_size: 4096,
            depth: 32,
            time: Duration::from_millis(20),
            durable: false,
        };
        for (is_read, is_linear, block_size, depth) in
            [(false, false, 4096, 1), (true, false, 4096, 32), (false, true, 1 << 20, 4)]
        {
            load = RawLoad { is_read, is_linear, block_size, depth, ..load };
            let measured = raw(&load).expect("the file takes it");
            assert!(measured.histogram.count() >= depth as u64);
            assert!(measured.elapsed >= load.time);
            assert!(measured.ops_per_second() > 0.0);
        }
        let small =
            RawLoad { is_linear: false, is_read: false, block_size: 4096, depth: 8, ..load };
        let measured = journaled(&small).expect("the file takes it");
        assert!(measured.histogram.count() >= small.depth as u64);
        assert!(journaled(&RawLoad { size: 100, ..small.clone() }).is_err());
        assert!(raw(&RawLoad { size: 100, ..small }).is_err());
        std::fs::remove_file(path).expect("ours");
    }
}
