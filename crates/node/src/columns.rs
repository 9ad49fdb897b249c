//! Which columns of a stripe a change touches: a column is the unit at the same place in each of the stripe's
//! blocks. A change that needs more room than there can be is carried out column by column, some at a time.
//!
//! Invariants
//!   1. The pieces of a change, one after the other, have all of its columns, each once, whatever their widths.

use std::ops::Range;

/// The columns of a range of units.
pub(crate) struct Columns {
    /// The first unit of the range, in its stripe.
    pub(crate) first: u32,
    /// Number of units in the range.
    pub(crate) count: u32,
    /// Number of columns of the stripe: of units of a block.
    pub(crate) column_count: u32,
}

impl Columns {
    /// Returns the next columns, from `from` on, at most `width`: they begin and end with one that the range
    /// touches. Returns `None` if there are none left.
    pub(crate) fn next(&self, from: u32, width: u32) -> Option<Range<u32>> {
        let start = (from..self.column_count).find(|column| self.touches(*column))?;
        let end = start.saturating_add(width.max(1)).min(self.column_count);
        let last = (start..end).rev().find(|column| self.touches(*column))?;
        Some(start..last + 1)
    }

    fn touches(&self, column: u32) -> bool {
        let first = self.first % self.column_count;
        let after = (column + self.column_count - first) % self.column_count;
        after < self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(first: u32, count: u32, width: u32) -> Vec<Range<u32>> {
        let columns = Columns { first, count, column_count: 8 };
        let mut pieces: Vec<Range<u32>> = Vec::new();
        while let Some(piece) = columns.next(pieces.last().map_or(0, |last| last.end), width) {
            pieces.push(piece);
        }
        pieces
    }

    #[test]
    fn a_whole_stripe_is_cut_into_pieces_of_all_columns() {
        assert_eq!(pieces(0, 32, 3), [0..3, 3..6, 6..8]);
        assert_eq!(pieces(0, 32, 7), [0..7, 7..8]);
    }

    #[test]
    fn what_ends_in_the_next_block_has_columns_at_both_ends() {
        let pieces_of_seven = pieces(6, 4, 7);
        assert_eq!(
            pieces_of_seven,
            [0..7, 7..8],
            "a piece may have columns that it does not touch"
        );
        assert_eq!(pieces(6, 4, 2), [0..2, 6..8]);
    }

    #[test]
    fn every_touched_column_is_in_exactly_one_piece_and_pieces_end_with_touched_ones() {
        for (first, count, width) in (0..32)
            .flat_map(|first| (1..=32 - first).map(move |count| (first, count)))
            .flat_map(|(first, count)| (1..=8).map(move |width| (first, count, width)))
        {
            let mut times = [0; 8];
            for piece in pieces(first, count, width) {
                assert!(piece.end - piece.start <= width);
                piece.for_each(|column| times[column as usize] += 1);
            }
            let touched = |column: u32| (first..first + count).any(|unit| unit % 8 == column);
            for column in 0..8 {
                assert!(times[column as usize] <= 1);
                assert!(!touched(column) || times[column as usize] == 1);
            }
        }
    }
}
