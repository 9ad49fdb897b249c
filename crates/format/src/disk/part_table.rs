//! Part tables: stored with a parity part. A row holds the version of one data part and which of its units
//! hold data.
//!
//! ```text
//!   row:  epoch u32 | counter u64 | a bit for each unit of the block, in words of u64
//! ```
//!
//! Messages, journal entries and leaves contain a table in this same form. Only the PG interprets the rows;
//! this module only checks their number, size and unused bits.
//!
//! Invariant: a table has whole rows, at most [`TABLE_ROWS_MAX`] of them, and no bit set beyond the block's
//! last unit.

use base::BlockSize;

/// Maximum number of rows: one for each data part of a stripe.
pub const TABLE_ROWS_MAX: usize = 16;
/// Size of the version at the front of a row, in bytes.
const ROW_VERSION_SIZE: usize = 12;

const fn row_size(block_size: BlockSize) -> usize {
    ROW_VERSION_SIZE + 8 * (block_size.unit_count() as usize).div_ceil(64)
}

/// Returns the size of a table with this many rows, in bytes.
pub const fn table_size(block_size: BlockSize, rows: u8) -> usize {
    rows as usize * row_size(block_size)
}

/// Returns the number of rows of a table; 0 means that there is no table. `None`: the bytes are not a valid
/// table for this block size.
pub fn table_rows(table: &[u8], block_size: BlockSize) -> Option<u8> {
    let size = row_size(block_size);
    let count = table.len() / size;
    let units = block_size.unit_count();
    let is_within = |row: &[u8]| {
        let last = row.last_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        units.is_multiple_of(64) || last >> (units % 64) == 0
    };
    let is_whole = table.len().is_multiple_of(size) && count <= TABLE_ROWS_MAX;
    (is_whole && table.chunks_exact(size).all(is_within)).then_some(count as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_rows_within_the_block_are_a_table() {
        for shift in 14..=20 {
            let size = BlockSize::from_shift(shift).expect("in range");
            let row = table_size(size, 1);
            for rows in 0..=TABLE_ROWS_MAX {
                assert_eq!(table_rows(&vec![0; rows * row], size), Some(rows as u8));
            }
            assert_eq!(table_rows(&vec![0; 17 * row], size), None, "too many rows");
            assert_eq!(table_rows(&vec![0; row - 1], size), None);
            assert_eq!(table_rows(&vec![0; 2 * row + 1], size), None);
            let units = size.unit_count() as usize;
            let mut table = vec![0; 2 * row];
            table[row + 12 + (units - 1) / 8] = 1 << ((units - 1) % 8);
            assert_eq!(table_rows(&table, size), Some(2));
            if units < 64 {
                table[12 + units / 8] = 1 << (units % 8);
                assert_eq!(table_rows(&table, size), None, "a unit beyond the block");
            }
        }
    }
}
