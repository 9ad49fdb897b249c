//! Cuts a range of a volume into pieces that one OSD can handle with one operation. Pure.

use std::ops::Range;

use base::{BlockSize, StripeIndex, UNIT_SIZE};

/// How a range is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// At block edges.
    Blocks,
    /// At block edges; a unit that is only partly covered becomes a piece of its own.
    Units,
}

/// A piece of a range within one stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) stripe: StripeIndex,
    /// In bytes within the stripe; not empty.
    pub(crate) range: Range<u32>,
    /// Whether the range consists of whole units.
    pub(crate) whole: bool,
}

/// Returns the first piece of `range`. Requires: the range is not empty, and its end lies within
/// [`volume_size_max`].
pub(crate) fn first_piece(cut: Cut, range: Range<u64>, block_size: BlockSize) -> Piece {
    assert!(range.start < range.end);
    assert!(range.end <= volume_size_max(block_size));
    let Range { start, end } = range;
    let stripe = start >> block_size.shift();
    let stripe_start = stripe << block_size.shift();
    let mut piece_end = end.min(stripe_start + block_size.bytes());
    if cut == Cut::Units {
        let unit_end = unit_floor(start) + UNIT_SIZE;
        let partial = !start.is_multiple_of(UNIT_SIZE) || piece_end < unit_end;
        piece_end = if partial { piece_end.min(unit_end) } else { unit_floor(piece_end) };
    }
    let within = (start - stripe_start) as u32..(piece_end - stripe_start) as u32;
    assert!(!within.is_empty());
    let whole = start.is_multiple_of(UNIT_SIZE) && piece_end.is_multiple_of(UNIT_SIZE);
    Piece { stripe: StripeIndex::new(stripe as u32), range: within, whole }
}

/// The largest size in bytes of a volume with this block size: a stripe's number has 32 bits.
pub(crate) fn volume_size_max(block_size: BlockSize) -> u64 {
    (u64::from(u32::MAX) + 1) << block_size.shift()
}

/// The whole units that a range within a stripe touches.
pub(crate) fn units_around(range: &Range<u32>) -> Range<u32> {
    let unit = UNIT_SIZE as u32;
    range.start / unit * unit..range.end.next_multiple_of(unit)
}

fn unit_floor(offset: u64) -> u64 {
    offset / UNIT_SIZE * UNIT_SIZE
}

#[cfg(test)]
mod tests {
    use base::KIB;

    use super::*;

    fn cut_all(cut: Cut, range: Range<u64>) -> Vec<(u32, Range<u32>, bool)> {
        let block_size = BlockSize::new(16 * KIB).expect("in range");
        let mut pieces = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let piece = first_piece(cut, start..range.end, block_size);
            start += u64::from(piece.range.end - piece.range.start);
            pieces.push((piece.stripe.get(), piece.range, piece.whole));
        }
        assert_eq!(start, range.end);
        pieces
    }

    #[test]
    fn reads_are_cut_at_block_edges_alone() {
        assert_eq!(
            cut_all(Cut::Blocks, 100..40_000),
            [(0, 100..16_384, false), (1, 0..16_384, true), (2, 0..7_232, false)]
        );
    }

    #[test]
    fn writes_part_with_their_ragged_edges() {
        assert_eq!(
            cut_all(Cut::Units, 100..40_000),
            [
                (0, 100..4_096, false),
                (0, 4_096..16_384, true),
                (1, 0..16_384, true),
                (2, 0..4_096, true),
                (2, 4_096..7_232, false),
            ]
        );
    }

    #[test]
    fn a_write_within_one_unit_is_one_piece() {
        assert_eq!(cut_all(Cut::Units, 4_097..4_098), [(0, 4_097..4_098, false)]);
        assert_eq!(cut_all(Cut::Units, 4_096..8_192), [(0, 4_096..8_192, true)]);
        assert_eq!(
            cut_all(Cut::Units, 8_191..8_193),
            [(0, 8_191..8_192, false), (0, 8_192..8_193, false)]
        );
    }

    #[test]
    fn units_around_covers_the_range() {
        assert_eq!(units_around(&(1..2)), 0..4_096);
        assert_eq!(units_around(&(4_095..4_097)), 0..8_192);
        assert_eq!(units_around(&(4_096..8_192)), 4_096..8_192);
    }
}
