//! Cuts a range of a volume into pieces, each of which one OSD can handle with one operation. Pure functions.

use std::ops::Range;

use base::scheme::STRIPE_BYTES_MAX;
use base::{StripeIndex, UNIT_SIZE};
use cluster::map::Pool;

/// Size of the stripes of a pool: with copies one block, with parity one block for each data part. A multiple
/// of a unit, at most [`STRIPE_BYTES_MAX`], and not always a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StripeSize(u32);

impl StripeSize {
    /// Returns the size for a pool; `None`: the pool's record violates the rules of its scheme.
    pub(crate) fn of(pool: &Pool) -> Option<StripeSize> {
        pool.scheme.check_block_size(pool.block_size).ok()?;
        StripeSize::new(pool.scheme.stripe_bytes(pool.block_size))
    }

    fn new(bytes: u64) -> Option<StripeSize> {
        let is_valid = (UNIT_SIZE..=STRIPE_BYTES_MAX).contains(&bytes);
        let bytes = u32::try_from(bytes).ok().filter(|_| is_valid)?;
        u64::from(bytes).is_multiple_of(UNIT_SIZE).then_some(StripeSize(bytes))
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0)
    }
}

/// Where a range is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// At the edges of stripes.
    Stripes,
    /// At the edges of the data parts of a stripe, each of this many bytes.
    Parts(u64),
    /// At the edges of stripes; in addition, a unit that is only partly covered becomes a separate piece.
    Units,
}

/// A piece of a range within one stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) stripe: StripeIndex,
    /// The range in bytes within the stripe; not empty.
    pub(crate) range: Range<u32>,
    /// Whether the range consists of whole units.
    pub(crate) whole: bool,
}

/// Returns the first piece of `range`. Requires: the range is not empty, and its end lies within
/// [`volume_size_max`].
pub(crate) fn first_piece(cut: Cut, range: Range<u64>, stripe_size: StripeSize) -> Piece {
    assert!(range.start < range.end);
    assert!(range.end <= volume_size_max(stripe_size));
    let Range { start, end } = range;
    let stripe = start / stripe_size.bytes();
    let stripe_start = stripe * stripe_size.bytes();
    let mut piece_end = end.min(stripe_start + stripe_size.bytes());
    match cut {
        Cut::Stripes => {}
        Cut::Parts(bytes) => {
            let part = (start - stripe_start) / bytes;
            piece_end = piece_end.min(stripe_start + (part + 1) * bytes);
        }
        Cut::Units => {
            let unit_end = unit_floor(start) + UNIT_SIZE;
            let partial = !start.is_multiple_of(UNIT_SIZE) || piece_end < unit_end;
            piece_end = if partial { piece_end.min(unit_end) } else { unit_floor(piece_end) };
        }
    }
    let within = (start - stripe_start) as u32..(piece_end - stripe_start) as u32;
    assert!(!within.is_empty());
    let whole = start.is_multiple_of(UNIT_SIZE) && piece_end.is_multiple_of(UNIT_SIZE);
    Piece { stripe: StripeIndex::new(stripe as u32), range: within, whole }
}

/// Returns the maximum size in bytes of a volume with stripes of this size: a stripe's number has 32 bits.
pub(crate) fn volume_size_max(stripe_size: StripeSize) -> u64 {
    (u64::from(u32::MAX) + 1) * stripe_size.bytes()
}

/// Returns the range of whole units that a range within a stripe touches.
pub(crate) fn units_around(range: &Range<u32>) -> Range<u32> {
    let unit = UNIT_SIZE as u32;
    range.start / unit * unit..range.end.next_multiple_of(unit)
}

fn unit_floor(offset: u64) -> u64 {
    offset / UNIT_SIZE * UNIT_SIZE
}

#[cfg(test)]
mod tests {
    use base::{BlockSize, KIB, MIB, Scheme};
    use cluster::map::PoolKind;

    use super::*;

    fn cut_all(cut: Cut, range: Range<u64>) -> Vec<(u32, Range<u32>, bool)> {
        cut_by(16 * KIB, cut, range)
    }

    fn cut_by(stripe_size: u64, cut: Cut, range: Range<u64>) -> Vec<(u32, Range<u32>, bool)> {
        let stripe_size = StripeSize::new(stripe_size).expect("in range");
        let mut pieces = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let piece = first_piece(cut, start..range.end, stripe_size);
            start += u64::from(piece.range.end - piece.range.start);
            pieces.push((piece.stripe.get(), piece.range, piece.whole));
        }
        assert_eq!(start, range.end);
        pieces
    }

    #[test]
    fn reads_are_cut_at_stripe_edges_alone() {
        assert_eq!(
            cut_all(Cut::Stripes, 100..40_000),
            [(0, 100..16_384, false), (1, 0..16_384, true), (2, 0..7_232, false)]
        );
    }

    #[test]
    fn reads_of_parts_are_cut_at_the_edges_of_parts_too() {
        assert_eq!(
            cut_by(48 * KIB, Cut::Parts(16 * KIB), 16_000..70_000),
            [
                (0, 16_000..16_384, false),
                (0, 16_384..32_768, true),
                (0, 32_768..49_152, true),
                (1, 0..16_384, true),
                (1, 16_384..20_848, false),
            ]
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
    fn stripes_need_not_be_powers_of_two() {
        let stripe = 3 * 64 * KIB;
        assert_eq!(
            cut_by(stripe, Cut::Units, stripe - 4_097..2 * stripe + 5),
            [
                (0, 192_511..192_512, false),
                (0, 192_512..196_608, true),
                (1, 0..196_608, true),
                (2, 0..5, false),
            ]
        );
        // A range that ends with the last byte of the largest volume.
        let end = (1 << 32) * stripe;
        assert_eq!(volume_size_max(StripeSize::new(stripe).expect("in range")), end);
        let last = [(u32::MAX, stripe as u32 - 1..stripe as u32, false)];
        assert_eq!(cut_by(stripe, Cut::Stripes, end - 1..end), last);
        assert_eq!(cut_by(4 * MIB, Cut::Stripes, 0..4 * MIB), [(0, 0..4 << 20, true)]);
        for wrong in [0, 100, 4 * MIB + 4096, 1 << 40] {
            assert_eq!(StripeSize::new(wrong), None);
        }
    }

    #[test]
    fn a_pool_has_stripes_of_its_data_parts() {
        let pool = |scheme, block_size| Pool {
            id: base::PoolId::FIRST,
            name: "p".into(),
            scheme,
            min_size: 1,
            pg_count: 1,
            failure_domain: cluster::map::FailureDomain::Osd,
            block_size,
            kind: PoolKind::Block,
        };
        let size = |scheme, block| StripeSize::of(&pool(scheme, block)).map(StripeSize::bytes);
        let copies = Scheme::Copies { count: 3 };
        assert_eq!(size(copies, BlockSize::DEFAULT), Some(BlockSize::DEFAULT.bytes()));
        let code = |data| Scheme::ReedSolomon { data, parity: 2 };
        assert_eq!(size(code(3), BlockSize::DEFAULT), Some(384 * KIB));
        assert_eq!(size(code(4), BlockSize::MAX), Some(4 * MIB));
        assert_eq!(size(code(5), BlockSize::MAX), None, "it would not fit a message");
        assert_eq!(size(code(2), BlockSize::MIN), None);
    }

    #[test]
    fn units_around_covers_the_range() {
        assert_eq!(units_around(&(1..2)), 0..4_096);
        assert_eq!(units_around(&(4_095..4_097)), 0..8_192);
        assert_eq!(units_around(&(4_096..8_192)), 4_096..8_192);
    }
}
