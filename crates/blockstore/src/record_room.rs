//! Room in the checkpoint area for the records of blocks, and for notes.
//!
//! Leaves are at least 40 % full, and old and new leaves coexist while a checkpoint is made. So records need
//! 5 times their size. The rest of the area is for the directory and the PGs.

use base::BlockSize;
use format::disk::{PAGE_SIZE, record_size};

use crate::pages::PAGES_RESERVED;

/// The room for records and notes, and how much of it is used.
#[derive(Clone, Copy)]
pub struct RecordRoom {
    used_bytes: u64,
    bytes_max: u64,
}

impl RecordRoom {
    /// `used_bytes`: size of all records and notes. `area_size`: size of the checkpoint area, in bytes.
    pub fn new(used_bytes: u64, area_size: u64) -> RecordRoom {
        RecordRoom { used_bytes, bytes_max: record_bytes_max(area_size) }
    }

    /// Returns how many more blocks of this size can get a record, without the reserve.
    pub fn free_count(&self, size: BlockSize) -> u64 {
        let free = without_reserve(self.bytes_max).saturating_sub(self.used_bytes);
        free / record_size(size, true) as u64
    }

    /// Whether a record of the largest size no longer fits without the reserve.
    pub fn is_full(&self) -> bool {
        let largest = record_size(BlockSize::MAX, true) as u64;
        self.used_bytes + largest > without_reserve(self.bytes_max)
    }

    /// Whether there is room to replace a record or note of `old_bytes` with one of `new_bytes`. The
    /// reserve counts as room.
    pub fn can_change(&self, old_bytes: u64, new_bytes: u64) -> bool {
        new_bytes <= old_bytes || self.used_bytes - old_bytes + new_bytes <= self.bytes_max
    }
}

/// Returns the maximum size, in bytes, of the records and notes that a checkpoint area of this size can hold.
fn record_bytes_max(area_size: u64) -> u64 {
    let pages = area_size / PAGE_SIZE as u64 - PAGES_RESERVED as u64;
    pages * PAGE_SIZE as u64 * 2 / 11
}

/// Returns the part of these bytes that writes without a version may use.
fn without_reserve(bytes_max: u64) -> u64 {
    bytes_max / 8 * 7
}

/// Returns the bytes of records in a checkpoint area of this size that writes without a version may use.
#[cfg(test)]
pub fn record_bytes_sure(area_size: u64) -> u64 {
    without_reserve(record_bytes_max(area_size))
}
