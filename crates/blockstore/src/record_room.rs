//! Room in the checkpoint area for the records of blocks, and for notes.
//!
//! Leaves are filled to 40 % at least, and old and new ones lie side by side while a checkpoint is made:
//! 5 times the records. The rest is for the directory and the PGs.

use base::BlockSize;
use format::disk::{PAGE_SIZE, record_size};

use crate::pages::PAGES_RESERVED;

/// How much room there is, and how much of it is used.
#[derive(Clone, Copy)]
pub struct RecordRoom {
    used_bytes: u64,
    bytes_max: u64,
}

impl RecordRoom {
    /// `used_bytes`: of all records and notes; `area_size`: of the checkpoint area, in bytes.
    pub fn new(used_bytes: u64, area_size: u64) -> RecordRoom {
        RecordRoom { used_bytes, bytes_max: record_bytes_max(area_size) }
    }

    /// How many blocks of this size may get a record, without the reserve.
    pub fn free_count(&self, size: BlockSize) -> u64 {
        let free = without_reserve(self.bytes_max).saturating_sub(self.used_bytes);
        free / record_size(size, true) as u64
    }

    /// Whether no record of the largest size fits without the reserve.
    pub fn is_full(&self) -> bool {
        let largest = record_size(BlockSize::MAX, true) as u64;
        self.used_bytes + largest > without_reserve(self.bytes_max)
    }

    /// Whether a record or note of `old_bytes` may become one of `new_bytes`. It may use the reserve.
    pub fn can_change(&self, old_bytes: u64, new_bytes: u64) -> bool {
        new_bytes <= old_bytes || self.used_bytes - old_bytes + new_bytes <= self.bytes_max
    }
}

/// Bytes of records and notes that a checkpoint area of this size takes at most.
fn record_bytes_max(area_size: u64) -> u64 {
    let pages = area_size / PAGE_SIZE as u64 - PAGES_RESERVED as u64;
    pages * PAGE_SIZE as u64 * 2 / 11
}

/// How much of that is for writes that have no version yet.
fn without_reserve(bytes_max: u64) -> u64 {
    bytes_max / 8 * 7
}

/// Bytes of records that a checkpoint area of this size has for writes without a version.
#[cfg(test)]
pub fn record_bytes_sure(area_size: u64) -> u64 {
    without_reserve(record_bytes_max(area_size))
}
