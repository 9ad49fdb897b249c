//! A load on a file: its parameters, the offsets of its operations, and the file and io_uring it runs on.

use std::path::{Path, PathBuf};

use base::{BufferPool, Duration};
use io_uring::IoUring;

use crate::Error;
use crate::disk::Disk;

/// Maximum number of bytes of the file that a load uses. They are filled before the measurement, so that no
/// measured write has to allocate space.
pub const RANGE_SIZE_MAX: u64 = 256 << 20;

const FILL_SIZE: u64 = 4 << 20;

/// A load on a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawLoad {
    /// The file, which is overwritten.
    pub path: PathBuf,
    /// Size of the file in bytes, or of the part to use.
    pub size: u64,
    /// Whether to read instead of write.
    pub is_read: bool,
    /// Sequential offsets instead of random ones.
    pub is_linear: bool,
    /// Bytes of one operation; a multiple of 4 KiB.
    pub block_size: u64,
    /// Operations in flight.
    pub depth: usize,
    /// How long to run.
    pub time: Duration,
    /// Whether to write with RWF_DSYNC.
    pub durable: bool,
}

/// Returns the number of bytes of the file that a load uses: a multiple of the block size.
pub(super) fn range_of(load: &RawLoad) -> u64 {
    load.size.min(RANGE_SIZE_MAX) / load.block_size * load.block_size
}

/// The offsets of the operations of a load.
pub(super) struct Places {
    block_size: u64,
    count: u64,
    is_linear: bool,
    next: u64,
    random: u64,
}

impl Places {
    pub(super) fn new(range: u64, load: &RawLoad) -> Places {
        let block_size = load.block_size;
        let count = range / block_size;
        Places { block_size, count, is_linear: load.is_linear, next: 0, random: 1 }
    }

    /// Returns the offset of the next operation, in bytes.
    pub(super) fn next(&mut self) -> u64 {
        let index = if self.is_linear {
            self.next += 1;
            self.next % self.count
        } else {
            // xorshift64: scattered offsets, the same in each run.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % self.count
        };
        index * self.block_size
    }
}

pub(super) fn open_filled(path: &Path, range: u64) -> Result<Disk, Error> {
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

pub(super) fn ring(depth: usize) -> std::io::Result<IoUring> {
    let entries = depth.next_power_of_two() as u32;
    let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    uring.or_else(|_| IoUring::new(entries))
}
