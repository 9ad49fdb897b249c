//! What changes take in the body of a batch's entry: themselves, and what the log record says of them.
//! The bytes are those of `format::disk::batch` and `touched.rs`; a test compares them with what is encoded.

use base::BlockSize;

use crate::head::HEAD_SIZE;
use crate::keys::{HEADER_SIZE, Name};
use crate::operation::StepResult;

/// What a record of a log takes beside its value: a change with a key of shard, kind and version.
pub const LOG_RECORD_SIZE: usize = 7 + HEADER_SIZE + 12;

/// Returns the size of a record that is put, of which key and value have these sizes.
pub const fn put_size(key: usize, value: usize) -> usize {
    (7 + key + value) + (3 + key)
}

/// Returns the size of a record that is deleted.
pub const fn delete_size(key: usize) -> usize {
    2 * (3 + key)
}

/// Returns the size of a range that is deleted, of which the ends have these sizes.
pub const fn range_size(start: usize, end: usize) -> usize {
    2 * (5 + start + end)
}

/// Returns the size of a head with so much data in it, and of a log record: each object may be in a shard of
/// its own.
pub fn head_size(name: &Name, data: usize) -> usize {
    put_size(HEADER_SIZE + name.bytes().len(), HEAD_SIZE + data) + LOG_RECORD_SIZE
}

/// Returns the size of the repeat of an operation with these results.
pub fn repeat_size(results: &[StepResult]) -> usize {
    put_size(HEADER_SIZE + 8 + 8, 12 + 9 * results.len())
}

/// Returns the size of the lines of a block, of which so many units are written, and whether units become
/// zeros. Neither: the block is gone.
pub fn block_size(block_size: BlockSize, written_count: usize, has_zeros: bool) -> usize {
    let units_size = 8 * (block_size.unit_count() as usize).div_ceil(64);
    let line_size = 1 + 12 + 12 + 4 + units_size;
    let log_size = 1 + 12;
    match usize::from(written_count > 0) + usize::from(has_zeros) {
        0 => line_size + log_size,
        lines => lines * line_size + 4 * written_count + log_size + units_size,
    }
}
