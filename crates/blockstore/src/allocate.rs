//! Space of the data area: segments of 1 MiB, each dedicated to one block size while in use.
//!
//! Nothing of this is on the disk: the index says what is allocated, and start-up rebuilds it.
//!
//! Invariants
//!   1. A location is allocated at most once.
//!   2. `open` holds exactly the segments in use with a free slot, `empty` those not in use.

use std::collections::BTreeSet;

use base::{BlockSize, MIB};
use format::disk::LOCATION_STEP;

const SEGMENT_SIZE: u64 = MIB;
const STEPS_PER_SEGMENT: u32 = (SEGMENT_SIZE / LOCATION_STEP) as u32;

/// One segment: bit `i` is set while its block `i` is allocated.
#[derive(Clone, Copy, Default)]
struct Segment {
    used: u64,
    /// log2 of the block size; 0 while not in use.
    shift: u8,
}

/// Which places are taken.
pub struct Allocator {
    segments: Vec<Segment>,
    empty: BTreeSet<u32>,
    open: BTreeSet<(u8, u32)>,
    used_bytes: u64,
}

fn slots(block_size: BlockSize) -> u32 {
    (SEGMENT_SIZE / block_size.bytes()) as u32
}

fn all(block_size: BlockSize) -> u64 {
    u64::MAX >> (64 - slots(block_size))
}

impl Allocator {
    /// Requires: whole segments, at most 64 TiB.
    pub fn new(size: u64) -> Allocator {
        assert!(size.is_multiple_of(SEGMENT_SIZE));
        let count = (size / SEGMENT_SIZE) as usize;
        assert!(count as u64 * STEPS_PER_SEGMENT as u64 <= u32::MAX as u64);
        Allocator {
            segments: vec![Segment::default(); count],
            empty: (0..count as u32).collect(),
            open: BTreeSet::new(),
            used_bytes: 0,
        }
    }

    /// Whether a block of this size can be allocated now.
    pub fn can_allocate(&self, block_size: BlockSize) -> bool {
        !self.empty.is_empty() || self.open_segment(block_size).is_some()
    }

    fn open_segment(&self, block_size: BlockSize) -> Option<u32> {
        let shift = block_size.shift();
        self.open.range((shift, 0)..=(shift, u32::MAX)).next().map(|(_, segment)| *segment)
    }

    /// Allocates a block, at the lowest place there is.
    pub fn allocate(&mut self, block_size: BlockSize) -> Option<u32> {
        let segment = match self.open_segment(block_size) {
            Some(segment) => segment,
            None => *self.empty.first()?,
        };
        let slot = (!self.segments[segment as usize].used).trailing_zeros();
        let location = segment * STEPS_PER_SEGMENT + slot * (STEPS_PER_SEGMENT / slots(block_size));
        assert!(self.take(location, block_size));
        Some(location)
    }

    /// The segment and the slot of a block; `None` where no block of this size can lie.
    fn slot(&self, location: u32, block_size: BlockSize) -> Option<(u32, u32)> {
        let segment = location / STEPS_PER_SEGMENT;
        let steps = STEPS_PER_SEGMENT / slots(block_size);
        let step = location % STEPS_PER_SEGMENT;
        let fits = (segment as usize) < self.segments.len() && step.is_multiple_of(steps);
        fits.then_some((segment, step / steps))
    }

    /// Marks a block as allocated. False: it lies outside, is allocated already, or its segment
    /// belongs to another block size.
    pub fn take(&mut self, location: u32, block_size: BlockSize) -> bool {
        let Some((index, slot)) = self.slot(location, block_size) else { return false };
        let segment = &mut self.segments[index as usize];
        let shift = block_size.shift();
        if segment.used & (1 << slot) != 0 || (segment.used != 0 && segment.shift != shift) {
            return false;
        }
        segment.used |= 1 << slot;
        segment.shift = shift;
        let is_full = segment.used == all(block_size);
        self.empty.remove(&index);
        if is_full {
            self.open.remove(&(shift, index));
        } else {
            self.open.insert((shift, index));
        }
        self.used_bytes += block_size.bytes();
        true
    }

    /// Gives a block back. Requires: it is allocated.
    pub fn release(&mut self, location: u32, block_size: BlockSize) {
        let (index, slot) = self.slot(location, block_size).expect("it was allocated here");
        let segment = &mut self.segments[index as usize];
        assert!(segment.shift == block_size.shift());
        assert!(segment.used & (1 << slot) != 0);
        segment.used &= !(1 << slot);
        if segment.used == 0 {
            segment.shift = 0;
            self.open.remove(&(block_size.shift(), index));
            self.empty.insert(index);
        } else {
            self.open.insert((block_size.shift(), index));
        }
        self.used_bytes -= block_size.bytes();
    }

    /// Bytes of the data area.
    pub fn size_bytes(&self) -> u64 {
        self.segments.len() as u64 * SEGMENT_SIZE
    }

    /// Bytes of allocated blocks.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: BlockSize = BlockSize::MIN;
    const LARGE: BlockSize = BlockSize::MAX;

    #[test]
    fn sizes_share_the_area_and_all_of_it_is_used() {
        let mut allocator = Allocator::new(3 * MIB);
        let mut small: Vec<u32> =
            (0..65).map(|_| allocator.allocate(SMALL).expect("there is space")).collect();
        assert_eq!(small, (0..65).collect::<Vec<u32>>());
        assert_eq!(allocator.allocate(LARGE), Some(128));
        assert_eq!(allocator.allocate(LARGE), None);
        assert!(allocator.can_allocate(SMALL));
        assert_eq!(allocator.used_bytes(), 65 * (16 << 10) + MIB);
        allocator.release(small.pop().expect("65 were allocated"), SMALL);
        assert_eq!(allocator.allocate(LARGE), Some(64));
        allocator.release(5, SMALL);
        assert_eq!(allocator.allocate(SMALL), Some(5));
        assert!(!allocator.can_allocate(SMALL));
    }

    #[test]
    fn no_place_is_taken_twice() {
        let mut allocator = Allocator::new(2 * MIB);
        assert!(allocator.take(8, BlockSize::DEFAULT));
        assert!(!allocator.take(8, BlockSize::DEFAULT));
        assert!(!allocator.take(9, BlockSize::DEFAULT));
        assert!(!allocator.take(16, SMALL));
        assert!(!allocator.take(128, LARGE));
        assert_eq!(allocator.allocate(BlockSize::DEFAULT), Some(0));
    }
}
