//! Allocator of the data area: segments of 1 MiB, each holding blocks of one size while in use.
//!
//! None of this is on the disk: a start rebuilds it from the index. In a sparse file, the file system may
//! have no space allocated for a free place. Only a *reserved* place has space, and only reserved places
//! are given to blocks. `data_area.rs` reserves places ahead of use.
//!
//! Invariants
//!   1. A location is allocated at most once, and only where it is reserved.
//!   2. `ready` holds exactly the segments with a free reserved slot, `bare` those with a free slot that is
//!      not reserved, both ordered by class. A segment that is not in use counts as one slot, with shift 0.
//!   3. Blocks in a segment that is *leaving* are being moved elsewhere (`moves.rs`). Its slots are
//!      allocated last; once one is allocated, the segment is no longer leaving.

use std::collections::BTreeSet;
use std::ops::Range;

use base::{BlockSize, MIB};
use format::disk::LOCATION_STEP;

/// Size of a segment, in bytes.
pub const SEGMENT_SIZE: u64 = MIB;
const STEPS_PER_SEGMENT: u32 = (SEGMENT_SIZE / LOCATION_STEP) as u32;
/// While at least 1/n of all segments are not in use, whole segments are reserved: this takes fewer
/// operations.
const EMPTY_SHARE: usize = 8;

const _: () = assert!(STEPS_PER_SEGMENT == u64::BITS);
const _: () = assert!(BlockSize::MAX.bytes() == SEGMENT_SIZE);

/// One value for each block size, indexed by its shift; index 0 is for segments that are not in use.
pub type BySize<T> = [T; BlockSize::MAX.shift() as usize + 1];

/// A place in the data area: where a block of this size is stored, or could be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub location: u32,
    pub block_size: BlockSize,
}

/// A set of block sizes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SizeSet {
    /// One bit for each size, at the position of its shift.
    shifts: u32,
}

impl SizeSet {
    pub const ALL: SizeSet = SizeSet { shifts: u32::MAX };

    pub fn is_empty(self) -> bool {
        self.shifts == 0
    }

    pub fn contains(self, size: BlockSize) -> bool {
        self.shifts & 1 << size.shift() != 0
    }

    pub fn insert(&mut self, size: BlockSize) {
        self.shifts |= 1 << size.shift();
    }

    /// Returns the sizes that are in either set.
    pub fn union(self, other: SizeSet) -> SizeSet {
        SizeSet { shifts: self.shifts | other.shifts }
    }

    /// Returns the sizes in order.
    pub fn iter(self) -> impl Iterator<Item = BlockSize> {
        (BlockSize::MIN.shift()..=BlockSize::MAX.shift())
            .filter_map(BlockSize::from_shift)
            .filter(move |size| self.contains(*size))
    }
}

impl FromIterator<BlockSize> for SizeSet {
    fn from_iter<T: IntoIterator<Item = BlockSize>>(sizes: T) -> SizeSet {
        let mut set = SizeSet::default();
        sizes.into_iter().for_each(|size| set.insert(size));
        set
    }
}

/// Set in the class of a segment while the segment is leaving. The other bits are its shift.
const LEAVING: u8 = 0x80;

/// One segment: a bit for each step of 16 KiB.
#[derive(Clone, Copy, Default)]
struct Segment {
    used: u64,
    reserved: u64,
    /// log2 of the block size; 0 while the segment is not in use.
    shift: u8,
    /// Whether the blocks of the segment are being moved elsewhere.
    is_leaving: bool,
}

impl Segment {
    /// Returns the number of steps in one slot. A segment that is not in use is one slot.
    fn slot_steps(&self) -> u32 {
        match self.shift {
            0 => STEPS_PER_SEGMENT,
            shift => ((1 << shift) / LOCATION_STEP) as u32,
        }
    }

    fn class(&self) -> u8 {
        self.shift | if self.is_leaving { LEAVING } else { 0 }
    }

    fn used_bytes(&self) -> u64 {
        u64::from(self.used.count_ones()) * LOCATION_STEP
    }

    /// Returns the first step of each slot whose steps are all in `steps`.
    fn slots_within(&self, mut steps: u64) -> u64 {
        let count = self.slot_steps();
        let mut width = 1;
        while width < count {
            steps &= steps >> width;
            width *= 2;
        }
        // One bit every `count` bits, from the lowest on.
        steps & (u64::MAX / (u64::MAX >> (u64::BITS - count)))
    }

    fn ready_slots(&self) -> u64 {
        self.slots_within(!self.used & self.reserved)
    }

    fn bare_slots(&self) -> u64 {
        self.slots_within(!self.used) & !self.ready_slots()
    }

    fn ready_bytes(&self) -> u64 {
        self.ready_slots().count_ones() as u64 * self.slot_steps() as u64 * LOCATION_STEP
    }
}

/// Tracks which places are allocated, and which have space reserved.
pub struct Allocator {
    segments: Vec<Segment>,
    /// Whether free places may have no space allocated in the file system.
    is_sparse: bool,
    ready: BTreeSet<(u8, u32)>,
    bare: BTreeSet<(u8, u32)>,
    /// Segments in `bare` that are not in use.
    bare_empty_count: usize,
    /// Free bytes that are reserved, by shift.
    ready_bytes: BySize<u64>,
    segment_counts: BySize<u64>,
    /// Bytes of allocated blocks, by shift.
    used_bytes: BySize<u64>,
}

fn mask(block_size: BlockSize, first_step: u32) -> u64 {
    let count = (block_size.bytes() / LOCATION_STEP) as u32;
    (u64::MAX >> (u64::BITS - count)) << first_step
}

/// Returns the segment of a location.
pub fn segment_of(location: u32) -> u32 {
    location / STEPS_PER_SEGMENT
}

/// Returns the first segment of this class in a set.
fn first_of(set: &BTreeSet<(u8, u32)>, class: u8) -> Option<u32> {
    set.range((class, 0)..=(class, u32::MAX)).next().map(|(_, segment)| *segment)
}

impl Allocator {
    /// Creates an allocator with no place allocated. `is_sparse`: no place is reserved yet either.
    /// Requires: `size` is a multiple of the segment size, and at most 64 TiB.
    pub fn new(size: u64, is_sparse: bool) -> Allocator {
        assert!(size.is_multiple_of(SEGMENT_SIZE));
        let count = (size / SEGMENT_SIZE) as usize;
        assert!(count as u64 * STEPS_PER_SEGMENT as u64 <= u32::MAX as u64);
        let reserved = if is_sparse { 0 } else { u64::MAX };
        let empty: BTreeSet<(u8, u32)> = (0..count as u32).map(|index| (0, index)).collect();
        let (bare, ready) = match is_sparse {
            true => (empty, BTreeSet::new()),
            false => (BTreeSet::new(), empty),
        };
        let [mut ready_bytes, mut segment_counts, used_bytes] = [BySize::default(); 3];
        ready_bytes[0] = ready.len() as u64 * SEGMENT_SIZE;
        segment_counts[0] = count as u64;
        let segments = vec![Segment { reserved, ..Segment::default() }; count];
        let bare_empty_count = bare.len();
        Allocator {
            segments,
            is_sparse,
            ready,
            bare,
            bare_empty_count,
            ready_bytes,
            segment_counts,
            used_bytes,
        }
    }

    /// Whether a block of this size can be allocated now.
    pub fn can_allocate(&self, block_size: BlockSize) -> bool {
        self.ready_bytes_of(block_size) > 0
    }

    /// Returns the free reserved bytes that blocks of this size can use.
    pub fn ready_bytes_of(&self, block_size: BlockSize) -> u64 {
        self.ready_bytes[0] + self.ready_bytes[block_size.shift() as usize]
    }

    /// Allocates a place for a block: the lowest one, preferably in a segment of its size, in a leaving
    /// segment only as a last resort.
    pub fn allocate(&mut self, block_size: BlockSize) -> Option<u32> {
        let shift = block_size.shift();
        let classes = [shift, 0, shift | LEAVING];
        let index = classes.into_iter().find_map(|class| first_of(&self.ready, class))?;
        if self.segments[index as usize].is_leaving {
            self.stay(index);
        }
        Some(self.allocate_in(index, block_size))
    }

    /// Allocates a place between other blocks of this size, but not in a leaving segment.
    pub fn allocate_gap(&mut self, block_size: BlockSize) -> Option<u32> {
        let index = first_of(&self.ready, block_size.shift())?;
        Some(self.allocate_in(index, block_size))
    }

    /// Whether there is a gap for a block of this size that only lacks a reservation.
    pub fn has_bare_gap(&self, block_size: BlockSize) -> bool {
        first_of(&self.bare, block_size.shift()).is_some()
    }

    /// Allocates a place in this segment. Requires: the segment has a free reserved slot.
    fn allocate_in(&mut self, index: u32, block_size: BlockSize) -> u32 {
        let mut segment = self.segments[index as usize];
        segment.shift = block_size.shift();
        let location = index * STEPS_PER_SEGMENT + segment.ready_slots().trailing_zeros();
        assert!(self.take(location, block_size));
        location
    }

    /// Marks segments in a range as leaving, and returns them. Chooses segments of the sizes in `wanted`,
    /// if they are no fuller than the average for their size.
    pub fn choose_leaving(&mut self, range: Range<u32>, wanted: &mut BySize<u64>) -> Vec<u32> {
        let mut chosen = Vec::new();
        for index in range.start..range.end.min(self.segments.len() as u32) {
            let segment = self.segments[index as usize];
            let shift = segment.shift as usize;
            if shift == 0 || wanted[shift] == 0 || segment.is_leaving {
                continue;
            }
            if segment.used_bytes() * self.segment_counts[shift] <= self.used_bytes[shift] {
                wanted[shift] -= 1;
                self.change(index, |segment| segment.is_leaving = true);
                chosen.push(index);
            }
        }
        chosen
    }

    /// Marks a segment as no longer leaving: its blocks stay.
    pub fn stay(&mut self, index: u32) {
        self.change(index, |segment| segment.is_leaving = false);
    }

    /// Whether blocks in the segment are being moved.
    pub fn is_segment_leaving(&self, index: u32) -> bool {
        self.segments[index as usize].is_leaving
    }

    /// Whether the block at this location is to be moved. Requires: it is allocated.
    pub fn is_leaving(&self, location: u32) -> bool {
        self.is_segment_leaving(segment_of(location))
    }

    /// Returns the segment and the step of a block; `None` if no block of this size can be at this
    /// location.
    fn slot(&self, location: u32, block_size: BlockSize) -> Option<(u32, u32)> {
        let segment = location / STEPS_PER_SEGMENT;
        let steps = (block_size.bytes() / LOCATION_STEP) as u32;
        let step = location % STEPS_PER_SEGMENT;
        let fits = (segment as usize) < self.segments.len() && step.is_multiple_of(steps);
        fits.then_some((segment, step))
    }

    /// Changes a segment, and updates the sets and sums accordingly.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Segment)) {
        let old = self.segments[index as usize];
        let mut new = old;
        change(&mut new);
        self.segments[index as usize] = new;
        let (old_shift, new_shift) = (old.shift as usize, new.shift as usize);
        self.ready_bytes[old_shift] -= old.ready_bytes();
        self.ready_bytes[new_shift] += new.ready_bytes();
        self.used_bytes[old_shift] -= old.used_bytes();
        self.used_bytes[new_shift] += new.used_bytes();
        self.segment_counts[old_shift] -= 1;
        self.segment_counts[new_shift] += 1;
        let (old_class, new_class) = (old.class(), new.class());
        let refile = |set: &mut BTreeSet<(u8, u32)>, was: bool, is: bool| {
            if was && !(is && old_class == new_class) {
                set.remove(&(old_class, index));
            }
            if is && !(was && old_class == new_class) {
                set.insert((new_class, index));
            }
        };
        refile(&mut self.ready, old.ready_slots() != 0, new.ready_slots() != 0);
        let (was_bare, is_bare) = (old.bare_slots() != 0, new.bare_slots() != 0);
        refile(&mut self.bare, was_bare, is_bare);
        self.bare_empty_count -= usize::from(was_bare && old.shift == 0);
        self.bare_empty_count += usize::from(is_bare && new.shift == 0);
    }

    /// Marks a place as allocated and reserved; places that the index refers to always have space. Returns
    /// false if the place is outside the area or already allocated, or if its segment holds another block
    /// size.
    pub fn take(&mut self, location: u32, block_size: BlockSize) -> bool {
        let Some((index, step)) = self.slot(location, block_size) else { return false };
        let segment = self.segments[index as usize];
        let steps = mask(block_size, step);
        if segment.used & steps != 0 || (segment.used != 0 && segment.shift != block_size.shift()) {
            return false;
        }
        self.change(index, |segment| {
            segment.used |= steps;
            segment.reserved |= steps;
            segment.shift = block_size.shift();
        });
        true
    }

    /// Frees a place. `is_punched`: its space was given back to the file system. Requires: the place is
    /// allocated.
    pub fn release(&mut self, location: u32, block_size: BlockSize, is_punched: bool) {
        let (index, step) = self.slot(location, block_size).expect("it was allocated here");
        let segment = self.segments[index as usize];
        let steps = mask(block_size, step);
        assert!(segment.shift == block_size.shift());
        assert!(segment.used & steps == steps);
        let is_bare = is_punched && self.is_sparse;
        self.change(index, |segment| {
            segment.used &= !steps;
            segment.reserved &= if is_bare { !steps } else { u64::MAX };
            if segment.used == 0 {
                segment.shift = 0;
                segment.is_leaving = false;
            }
        });
    }

    /// Returns the free slots of a segment whose space can be given back. In a sparse file, only slots that
    /// are not reserved: the others will be used soon. A segment that is not in use is one slot.
    pub fn idle_slots(&self, index: u32) -> Vec<Place> {
        let Some(segment) = self.segments.get(index as usize) else { return Vec::new() };
        let slots = match self.is_sparse {
            true => segment.bare_slots(),
            false => segment.ready_slots(),
        };
        let block_size = BlockSize::from_shift(segment.shift).unwrap_or(BlockSize::MAX);
        let idle = (0..STEPS_PER_SEGMENT).filter(|step| slots & (1 << step) != 0);
        let place = |step| Place { location: index * STEPS_PER_SEGMENT + step, block_size };
        idle.map(place).collect()
    }

    /// Returns the locations to reserve next for blocks of this size, at most `bytes_max` bytes: segments
    /// that are not in use, or free slots between blocks.
    pub fn to_reserve(&self, block_size: BlockSize, bytes_max: u64) -> Option<Range<u32>> {
        let are_many = self.bare_empty_count * EMPTY_SHARE >= self.segments.len();
        let whole = (bytes_max >= SEGMENT_SIZE).then(|| self.empty_run(bytes_max)).flatten();
        match are_many {
            true => whole.or_else(|| self.slot_run(block_size, bytes_max)),
            false => self.slot_run(block_size, bytes_max).or(whole),
        }
    }

    fn empty_run(&self, bytes_max: u64) -> Option<Range<u32>> {
        let mut empty = self.bare.range((0, 0)..=(0, u32::MAX)).map(|(_, index)| *index);
        let first = empty.next()?;
        let count_max = (bytes_max / SEGMENT_SIZE) as u32;
        let follows = |(at, index): &(u32, u32)| *index == first + at;
        let more = (1..count_max).zip(empty).take_while(follows).count() as u32;
        Some(first * STEPS_PER_SEGMENT..(first + 1 + more) * STEPS_PER_SEGMENT)
    }

    /// Returns adjacent free slots of one segment that are not reserved.
    fn slot_run(&self, block_size: BlockSize, bytes_max: u64) -> Option<Range<u32>> {
        let index = first_of(&self.bare, block_size.shift())?;
        let slots = self.segments[index as usize].bare_slots();
        let first = slots.trailing_zeros();
        let steps = (block_size.bytes() / LOCATION_STEP) as u32;
        let is_bare = |slot: &u32| *slot < STEPS_PER_SEGMENT && slots & (1 << slot) != 0;
        let count_max = (bytes_max / block_size.bytes()) as u32;
        let count = (0..count_max).map(|at| first + at * steps).take_while(is_bare).count() as u32;
        if count == 0 {
            return None;
        }
        let start = index * STEPS_PER_SEGMENT + first;
        Some(start..start + count * steps)
    }

    /// Records that these locations now have space in the file system. Requires: no block is allocated
    /// there.
    pub fn reserved(&mut self, locations: Range<u32>) {
        let mut at = locations.start;
        while at < locations.end {
            let (index, step) = (at / STEPS_PER_SEGMENT, at % STEPS_PER_SEGMENT);
            let count = (locations.end - at).min(STEPS_PER_SEGMENT - step);
            let steps = (u64::MAX >> (u64::BITS - count)) << step;
            assert!(self.segments[index as usize].used & steps == 0);
            self.change(index, |segment| segment.reserved |= steps);
            at += count;
        }
    }

    /// Whether free places may have no space allocated in the file system.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// Returns the size of the data area, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.segments.len() as u64 * SEGMENT_SIZE
    }

    /// Returns the number of segments.
    pub fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Returns the number of segments in use for blocks of this size.
    pub fn segment_count_of(&self, shift: u8) -> u64 {
        self.segment_counts[shift as usize]
    }

    /// Returns the number of segments that are not in use.
    pub fn empty_count(&self) -> u64 {
        self.segment_counts[0]
    }

    /// Returns the bytes of allocated blocks.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.iter().sum()
    }

    /// Returns the bytes of allocated blocks of this size.
    pub fn used_bytes_of(&self, shift: u8) -> u64 {
        self.used_bytes[shift as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: BlockSize = BlockSize::MIN;
    const LARGE: BlockSize = BlockSize::MAX;

    #[test]
    fn sizes_share_the_area_and_all_of_it_is_used() {
        let mut allocator = Allocator::new(3 * MIB, false);
        let mut small: Vec<u32> =
            (0..65).map(|_| allocator.allocate(SMALL).expect("there is space")).collect();
        assert_eq!(small, (0..65).collect::<Vec<u32>>());
        assert_eq!(allocator.allocate(LARGE), Some(128));
        assert_eq!(allocator.allocate(LARGE), None);
        assert!(allocator.can_allocate(SMALL));
        assert_eq!(allocator.used_bytes(), 65 * (16 << 10) + MIB);
        allocator.release(small.pop().expect("65 were allocated"), SMALL, true);
        assert_eq!(allocator.allocate(LARGE), Some(64));
        allocator.release(5, SMALL, false);
        assert_eq!(allocator.allocate(SMALL), Some(5));
        assert!(!allocator.can_allocate(SMALL));
    }

    #[test]
    fn no_place_is_taken_twice() {
        let mut allocator = Allocator::new(2 * MIB, false);
        assert!(allocator.take(8, BlockSize::DEFAULT));
        assert!(!allocator.take(8, BlockSize::DEFAULT));
        assert!(!allocator.take(9, BlockSize::DEFAULT));
        assert!(!allocator.take(16, SMALL));
        assert!(!allocator.take(128, LARGE));
        assert_eq!(allocator.allocate(BlockSize::DEFAULT), Some(0));
    }

    #[test]
    fn under_a_sparse_file_only_reserved_places_are_given_out() {
        let mut allocator = Allocator::new(4 * MIB, true);
        assert!(!allocator.can_allocate(SMALL));
        assert_eq!(allocator.allocate(SMALL), None);
        // A place that the index refers to counts as reserved.
        assert!(allocator.take(64, SMALL));
        let next = |allocator: &Allocator, size| allocator.to_reserve(size, 2 * MIB);
        assert_eq!(next(&allocator, LARGE), Some(0..64), "the next one is in use");
        allocator.reserved(0..64);
        assert_eq!(allocator.ready_bytes_of(SMALL), MIB);
        assert_eq!(next(&allocator, LARGE), Some(128..256), "as many as are wanted");
        assert_eq!(allocator.allocate(SMALL), Some(0));
        assert_eq!(allocator.ready_bytes_of(SMALL), MIB - (16 << 10));
        assert_eq!(allocator.ready_bytes_of(LARGE), 0);
        // A replaced block keeps its space; a punched one does not.
        allocator.release(0, SMALL, false);
        assert!(allocator.can_allocate(LARGE));
        assert_eq!(allocator.allocate(LARGE), Some(0));
        allocator.release(0, LARGE, true);
        assert!(!allocator.can_allocate(LARGE));
        allocator.reserved(128..256);
        assert_eq!((allocator.allocate(LARGE), allocator.allocate(LARGE)), (Some(128), Some(192)));
        let sizes = [SMALL, BlockSize::DEFAULT, LARGE];
        assert!(sizes.into_iter().all(|size| allocator.ready_bytes_of(size) == 0));
    }

    #[test]
    fn gaps_between_blocks_are_reserved_where_few_segments_are_empty() {
        let mut allocator = Allocator::new(9 * MIB, true);
        (0..9).for_each(|index| assert!(allocator.take(index * 64 + 8, BlockSize::DEFAULT)));
        assert_eq!(allocator.to_reserve(LARGE, 2 * MIB), None);
        assert_eq!(allocator.to_reserve(BlockSize::DEFAULT, 127 << 10), None);
        assert_eq!(allocator.to_reserve(BlockSize::DEFAULT, 128 << 10), Some(0..8));
        allocator.reserved(0..8);
        assert_eq!(allocator.to_reserve(BlockSize::DEFAULT, MIB), Some(16..64));
        assert_eq!(allocator.allocate(BlockSize::DEFAULT), Some(0));
        assert!(!allocator.can_allocate(BlockSize::DEFAULT));
        allocator.release(8, BlockSize::DEFAULT, true);
        assert_eq!(allocator.to_reserve(BlockSize::DEFAULT, MIB / 4), Some(8..24));
    }
}
