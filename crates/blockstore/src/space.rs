//! Space rules: what is refused, what waits, and when freed blocks may be used again.
//!
//! A store says that it is full while there is a reserve left, of blocks in the data area and of
//! records in the checkpoint area: its users give no more versions to writes then. What has a
//! version already, deletions and repairs use the reserve; a request is refused, before anything
//! changes, only where that is gone too.
//!
//! Under a sparse file space of the file system is reserved in the background, ahead of use: a
//! write takes a place that has space, so it is never refused once it has a version.
//!
//! ```text
//!   bare ──reserve──▶ ready ──a write──▶ in use ──replaced, checkpoint──▶ ready
//!    ▲                                     └─deleted, checkpoint, punched─▶ bare
//!    └── no space: the store is full; asked again when something was punched, and from time to time
//! ```

use std::collections::btree_map::Entry;
use std::ops::Range;

use base::planted::{self, Bug};
use base::{BlockSize, GIB, MIB, Time};
use format::disk::{LOCATION_NONE, LOCATION_STEP, PAGE_SIZE};

use crate::allocate::{SEGMENT_SIZE, segment_of};
use crate::disk::{Disk, NO_SPACE_RETRY, Purpose};
use crate::index::BlockInfo;
use crate::pages::PAGES_RESERVED;
use crate::store::{Parts, Store};
use crate::{Effect, Space};

/// Space is reserved in pieces of an eighth of the data area, within these limits, and as soon as less
/// than two of them are ready: more than users promise each other ahead of writes.
const RESERVE_SHARE: u64 = 8;
const RESERVE_SIZE_MIN: u64 = 4 * MIB;
const RESERVE_SIZE_MAX: u64 = 64 * MIB;

/// Space of the file system that is reserved ahead of its use.
pub struct Reserving {
    /// One piece, in bytes.
    size: u64,
    /// The next piece; smaller where there was no space for a larger one.
    next_size: u64,
    /// A reservation is on its way.
    is_asked: bool,
    /// Sizes of blocks that want places, by shift.
    wanted: u32,
    /// There was no space for the smallest piece.
    pub is_refused: bool,
    /// When it is asked again.
    retry_at: Option<Time>,
}

impl Reserving {
    pub fn new(data_size: u64) -> Reserving {
        let size = (data_size / RESERVE_SHARE).next_multiple_of(SEGMENT_SIZE);
        let size = size.clamp(RESERVE_SIZE_MIN, RESERVE_SIZE_MAX);
        Reserving {
            size,
            next_size: size,
            is_asked: false,
            wanted: 1 << BlockSize::DEFAULT.shift(),
            is_refused: false,
            retry_at: None,
        }
    }

    /// When space is asked for again.
    pub fn deadline(&self) -> Option<Time> {
        self.retry_at.filter(|_| !self.is_asked)
    }

    /// Whether it will soon be known if there is space.
    pub fn is_pending(&self) -> bool {
        self.is_asked
    }

    /// There was no space for these locations: a smaller piece may fit.
    pub fn refused(&mut self, locations: &Range<u32>) {
        self.is_asked = false;
        let asked = locations.len() as u64 * LOCATION_STEP;
        self.next_size = asked.min(self.next_size) / 2;
    }

    /// There is nothing to ask for now.
    fn ended(&mut self, has_refused: bool, now: Time) {
        self.is_refused = has_refused;
        if has_refused {
            self.next_size = SEGMENT_SIZE;
            self.retry_at = Some(now + NO_SPACE_RETRY);
        }
    }
}

/// Discards in flight at once.
const DISCARDS_IN_FLIGHT_MAX: usize = 16;
/// Segments looked at in one event for what a start is to give back again.
const SEGMENTS_AGAIN_MAX: usize = 64;
/// Ranges of segments that a checkpoint names at most.
const DISCARD_RANGES_MAX: usize = 4096;

/// A block that nothing names any more, but the newest durable checkpoint may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Freed {
    /// Where it lies.
    pub location: u32,
    /// Its size.
    pub block_size: BlockSize,
    /// Whether its space is given back to the device: it was deleted, not replaced.
    pub discard: bool,
}

/// Neighbouring freed blocks whose space is given back together.
#[derive(Debug)]
pub struct Discard {
    /// Position on the device in bytes.
    offset: u64,
    /// In bytes.
    length: u64,
    blocks: Vec<(u32, BlockSize)>,
}

impl Parts {
    /// Kept free of data.
    fn reserve_bytes(&self) -> u64 {
        (self.allocator.size_bytes() / 64).clamp(2 * MIB, GIB)
    }

    fn record_bytes_max(&self) -> u64 {
        record_bytes_max(self.superblock.checkpoints.size)
    }

    fn record_bytes(&self) -> u64 {
        self.index.record_bytes() + self.notes_bytes
    }

    /// What writes are sure of, whatever block size of those expected they have.
    fn sure_bytes(&self) -> u64 {
        let kept = self.kept_bytes();
        let of_size = |size: BlockSize| {
            let returning = self.returning_bytes[size.shift() as usize];
            let places = self.allocator.ready_bytes_of(size) + returning;
            places.saturating_sub(kept).min(self.free_records(size) * size.bytes())
        };
        sizes_in(self.expected).map(of_size).min().unwrap_or(u64::MAX)
    }

    /// Of what is ready the last is for writes that have a version already.
    fn kept_bytes(&self) -> u64 {
        match self.allocator.is_sparse() {
            true => self.last_bytes(),
            false => self.reserve_bytes(),
        }
    }

    /// How many blocks of this size may get a record, without the reserve.
    fn free_records(&self, size: BlockSize) -> u64 {
        let sure = record_bytes_sure(self.superblock.checkpoints.size);
        let free = sure.saturating_sub(self.record_bytes());
        free / format::disk::record_size(size, true) as u64
    }

    /// Bytes of blocks of this size that the index names.
    fn used_bytes_of(&self, shift: u8) -> u64 {
        self.allocator.used_bytes_of(shift) - self.freed_bytes[shift as usize]
    }

    /// Places for blocks of this size: where they are, or where nothing is, or both soon.
    fn place_bytes(&self, size: BlockSize) -> u64 {
        if self.reserving.is_refused {
            let returning = self.returning_bytes[size.shift() as usize];
            return (self.allocator.ready_bytes_of(size) + returning)
                .saturating_sub(self.last_bytes());
        }
        let segments = self.allocator.empty_count() + self.allocator.segment_count_of(size.shift());
        segments * SEGMENT_SIZE - self.used_bytes_of(size.shift())
    }

    /// How many segments of blocks of this size would be empty if those lay side by side.
    pub fn spare_segments_of(&self, shift: u8) -> u64 {
        let needed = self.allocator.used_bytes_of(shift).div_ceil(SEGMENT_SIZE);
        self.allocator.segment_count_of(shift) - needed
    }

    /// What blocks of this size would get if all others lay side by side, and what was freed were
    /// free.
    fn movable_bytes(&self, size: BlockSize) -> u64 {
        let spare_of = |other: BlockSize| {
            let needed = self.used_bytes_of(other.shift()).div_ceil(SEGMENT_SIZE);
            self.allocator.segment_count_of(other.shift()) - needed
        };
        let others = sizes_in(u32::MAX).filter(|other| *other != size);
        others.map(spare_of).sum::<u64>() * SEGMENT_SIZE
    }

    /// Sizes of blocks that have few places and would get more by moving others, by shift.
    pub fn short_sizes(&self) -> u32 {
        let few = (self.allocator.size_bytes() / 8).clamp(8 * MIB, GIB) + self.reserve_bytes();
        if self.allocator.empty_count() * SEGMENT_SIZE >= few && !self.reserving.is_refused {
            return 0;
        }
        let is_short = |size: &BlockSize| {
            let mut others = sizes_in(u32::MAX).filter(|other| other != size);
            self.place_bytes(*size) < few
                && others.any(|other| self.spare_segments_of(other.shift()) > 0)
        };
        let short = sizes_in(self.expected | self.moves.needed).filter(is_short);
        short.fold(0, |shifts, size| shifts | 1 << size.shift())
    }

    fn last_bytes(&self) -> u64 {
        (self.reserving.size / 4).max(SEGMENT_SIZE)
    }

    /// Whether space of the file system is on its way, or will be asked for.
    fn may_reserve(&self) -> bool {
        let is_open = |size| self.allocator.to_reserve(size, SEGMENT_SIZE).is_some();
        let is_lacking = !self.reserving.is_refused && self.lacking().any(is_open);
        self.reserving.is_asked || is_lacking
    }

    /// Whether a checkpoint is to bring back places: there are few, and some wait for one.
    pub fn lacks_places(&self) -> bool {
        !self.freed.is_empty() && self.sure_bytes() < 2 * BlockSize::MAX.bytes()
    }

    /// Space for data.
    pub fn space(&self, has_no_space: bool) -> Space {
        let size_bytes = self.allocator.size_bytes();
        let used_bytes = self.allocator.used_bytes() - self.freed_bytes();
        let reserve_bytes = self.reserve_bytes();
        let free_bytes = size_bytes.saturating_sub(used_bytes + reserve_bytes);
        let can_move = !self.moves.are_fruitless();
        let free_of = |size: BlockSize| {
            let movable = if can_move { self.movable_bytes(size) } else { 0 };
            let places = match self.reserving.is_refused {
                true => self.place_bytes(size),
                false => (self.place_bytes(size) + movable)
                    .saturating_sub(reserve_bytes.max(self.kept_bytes())),
            };
            places.min(self.free_records(size) * size.bytes())
        };
        // Before a size is expected, what is wanted is the default one.
        let sizes = if self.expected == 0 { self.reserving.wanted } else { self.expected };
        let free_bytes = sizes_in(sizes).map(free_of).fold(free_bytes, u64::min);
        let sure_bytes = if has_no_space { 0 } else { free_bytes.min(self.sure_bytes()) };
        let is_growing = self.freed_bytes() > 0 || self.may_reserve() || self.is_moving();
        let full = has_no_space
            || free_bytes < BlockSize::MAX.bytes()
            || (sure_bytes < BlockSize::MAX.bytes() && !is_growing)
            || self.record_bytes() + format::disk::record_size(BlockSize::MAX, true) as u64
                > record_bytes_sure(self.superblock.checkpoints.size);
        Space { size_bytes, used_bytes, free_bytes, sure_bytes, is_growing, reserve_bytes, full }
    }

    /// Whether the block's record may become one with a place (`has_place`) or one without. It may
    /// use the reserve.
    pub fn has_record_space(
        &self,
        old: Option<BlockInfo>,
        block_size: BlockSize,
        has_place: bool,
    ) -> bool {
        let old_bytes = old.map_or(0, |old| old.record_size());
        let new_bytes = format::disk::record_size(block_size, has_place) as u64;
        let max = self.record_bytes_max();
        new_bytes <= old_bytes || self.record_bytes() - old_bytes + new_bytes <= max
    }

    /// Whether a note may grow by so many bytes.
    pub fn has_note_space(&self, growth: u64) -> bool {
        growth == 0 || self.record_bytes() + growth <= self.record_bytes_max()
    }

    /// The index no longer names the block: it is allocated again after the next checkpoint.
    pub fn free(&mut self, location: u32, block_size: BlockSize, discard: bool) {
        assert!(location != LOCATION_NONE);
        if planted::on(Bug::FreedBlockReusedEarly) {
            return self.allocator.release(location, block_size, false);
        }
        self.count_freed(block_size, discard);
        self.freed.push(Freed { location, block_size, discard });
    }

    /// Bytes of all blocks that are freed but not to be allocated yet.
    pub fn freed_bytes(&self) -> u64 {
        self.freed_bytes.iter().sum()
    }

    /// A block was freed.
    pub fn count_freed(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] += block_size.bytes();
        *self.returning(block_size, discard) += block_size.bytes();
        self.moves.freed_bytes += block_size.bytes();
    }

    /// A freed block can be allocated, or is in use again.
    pub fn count_returned(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] -= block_size.bytes();
        *self.returning(block_size, discard) -= block_size.bytes();
    }

    /// A durable checkpoint no longer names these blocks.
    pub fn release_freed(&mut self, mut freed: Vec<Freed>) {
        freed.sort_unstable();
        for block in freed {
            let (offset, size) = (self.place(block.location), block.block_size.bytes());
            if !block.discard {
                self.count_returned(block.block_size, false);
                self.allocator.release(block.location, block.block_size, false);
                continue;
            }
            let named = (block.location, block.block_size);
            *self.discarding.entry(segment_of(block.location)).or_default() += 1;
            match self.discards.back_mut() {
                Some(discard) if discard.offset + discard.length == offset => {
                    discard.length += size;
                    discard.blocks.push(named);
                }
                _ => {
                    let blocks = vec![named];
                    self.discards.push_back(Discard { offset, length: size, blocks });
                }
            }
        }
    }

    /// Segments in which space is to be given back once a checkpoint is durable that frees these
    /// blocks: a start does it again. Segments between may be named, too, where there are many.
    pub fn segments_to_discard(&self, freed: &[Freed]) -> Vec<Range<u32>> {
        let freed = freed.iter().filter(|block| block.discard);
        let freed = freed.map(|block| segment_of(block.location));
        let single = self.discarding.keys().copied().chain(freed).map(|index| index..index + 1);
        let mut segments: Vec<Range<u32>> =
            single.chain(self.discards_again.iter().cloned()).collect();
        segments.sort_unstable_by_key(|range| range.start);
        let mut gap = 0;
        loop {
            let ranges = join_ranges(&segments, gap);
            if ranges.len() <= DISCARD_RANGES_MAX {
                return ranges;
            }
            gap = 2 * gap + 1;
        }
    }

    /// Gives space back in which nobody has a block, of the next segments of which a start found that
    /// this may not have been done. What is reserved is about to be used.
    fn discard_again(&mut self) {
        if self.holds_places || self.allocator.is_sparse() && self.may_reserve() {
            return;
        }
        let mut freed = Vec::new();
        for _ in 0..SEGMENTS_AGAIN_MAX {
            let Some(range) = self.discards_again.front_mut() else { break };
            let index = range.start;
            range.start += 1;
            if range.start == range.end {
                self.discards_again.pop_front();
            }
            for (location, block_size) in self.allocator.idle_slots(index) {
                assert!(self.allocator.take(location, block_size));
                freed.push(Freed { location, block_size, discard: true });
            }
        }
        freed.iter().for_each(|block| self.count_freed(block.block_size, true));
        self.release_freed(freed);
    }

    /// Asks for discards, while few are in flight.
    pub fn discard(&mut self, disk: &mut Disk, effects: &mut Vec<Effect>) {
        if self.discards.is_empty() && self.discards_in_flight == 0 {
            self.discard_again();
        }
        while self.discards_in_flight < DISCARDS_IN_FLIGHT_MAX {
            let Some(discard) = self.discards.pop_front() else { return };
            let Discard { offset, length, blocks } = discard;
            self.discards_in_flight += 1;
            disk.discard(Purpose::Discard(blocks), offset, length, effects);
        }
    }

    /// A discard ended: its blocks may be allocated, once they have space again.
    pub fn discarded(&mut self, blocks: Vec<(u32, BlockSize)>) {
        self.discards_in_flight -= 1;
        for (location, block_size) in blocks {
            let mut left = match self.discarding.entry(segment_of(location)) {
                Entry::Occupied(left) => left,
                Entry::Vacant(_) => unreachable!("it was asked for"),
            };
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
            self.count_returned(block_size, true);
            self.allocator.release(location, block_size, true);
        }
        // What was punched may be what was missing.
        if self.reserving.is_refused {
            self.reserving.retry_at = Some(Time::ZERO);
        }
    }

    /// Space was reserved.
    pub fn reserved(&mut self, locations: Range<u32>) {
        self.allocator.reserved(locations);
        let reserving = &mut self.reserving;
        reserving.is_asked = false;
        reserving.is_refused = false;
        reserving.next_size = (reserving.next_size * 2).min(reserving.size);
    }

    /// Whether gaps between blocks of this size are to be reserved, for others that move.
    pub fn wait_for_gap(&mut self, size: BlockSize) -> bool {
        self.reserving.wanted |= 1 << size.shift();
        let may_reserve = !self.reserving.is_refused && self.lacking().any(|other| other == size);
        self.reserving.is_asked || (may_reserve && self.allocator.has_bare_gap(size))
    }

    /// Sizes of blocks that have too little space ready.
    fn lacking(&self) -> impl Iterator<Item = BlockSize> {
        sizes_in(self.reserving.wanted)
            .filter(|size| self.allocator.ready_bytes_of(*size) < 2 * self.reserving.size)
    }

    /// What comes back with the next checkpoint; what is punched comes back without space.
    fn returning(&mut self, block_size: BlockSize, is_punched: bool) -> &mut u64 {
        let comes_bare = is_punched && self.allocator.is_sparse();
        let slot = if comes_bare { 0 } else { block_size.shift() as usize };
        &mut self.returning_bytes[slot]
    }
}

/// Joins ranges that overlap or are up to `gap` apart. Requires: by their starts in order.
fn join_ranges(ranges: &[Range<u32>], gap: u32) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    joined
}

/// Bytes of records and notes that a checkpoint area of this size takes at most. Leaves are filled
/// to 40 % at least, and old and new ones lie side by side while a checkpoint is made: 5 times the
/// records; the rest is for the directory and the PGs.
fn record_bytes_max(area_size: u64) -> u64 {
    let pages = area_size / PAGE_SIZE as u64 - PAGES_RESERVED as u64;
    pages * PAGE_SIZE as u64 * 2 / 11
}

/// How much of that is for writes that have no version yet.
pub fn record_bytes_sure(area_size: u64) -> u64 {
    record_bytes_max(area_size) / 8 * 7
}

/// Block sizes, given by the bits of their shifts.
pub fn sizes_in(shifts: u32) -> impl Iterator<Item = BlockSize> {
    (BlockSize::MIN.shift()..=BlockSize::MAX.shift())
        .filter(move |shift| shifts & 1 << shift != 0)
        .filter_map(BlockSize::from_shift)
}

impl Store {
    /// Blocks of these sizes, and no others, are to be written: [`Space::sure_bytes`] is for them.
    /// Requires: opened.
    pub fn expect_blocks(&mut self, sizes: impl Iterator<Item = BlockSize>) {
        let parts = self.parts_mut();
        parts.expected = sizes.fold(0, |shifts, size| shifts | 1 << size.shift());
        // A sparse file makes some of them ready ahead.
        parts.reserving.wanted |= parts.expected;
    }

    /// A block of this size may want a place: space is reserved for more of them.
    pub(crate) fn want_place(&mut self, block_size: BlockSize, effects: &mut Vec<Effect>) {
        let parts = self.parts_mut();
        parts.reserving.wanted |= 1 << block_size.shift();
        if !parts.allocator.can_allocate(block_size) {
            parts.moves.needed |= 1 << block_size.shift();
            self.reserve(effects);
        }
    }

    /// Reserves space ahead of its use: one piece at a time, in the background.
    pub(crate) fn reserve(&mut self, effects: &mut Vec<Effect>) {
        let Store { parts, disk, now, .. } = self;
        let parts = parts.as_mut().expect("it is open");
        let is_waiting = parts.reserving.retry_at.is_some_and(|at| *now < at);
        if parts.reserving.is_asked || is_waiting {
            return;
        }
        parts.reserving.retry_at = None;
        let next_size = parts.reserving.next_size;
        let next = |size| parts.allocator.to_reserve(size, next_size);
        let Some(locations) = parts.lacking().find_map(next) else {
            let larger = |size| parts.allocator.to_reserve(size, SEGMENT_SIZE);
            // There was no space for that, and there is nothing smaller to ask for.
            let has_refused = parts.lacking().any(|size| larger(size).is_some());
            return parts.reserving.ended(has_refused, *now);
        };
        parts.reserving.is_asked = true;
        let offset = parts.place(locations.start);
        let length = locations.len() as u64 * LOCATION_STEP;
        disk.reserve(Purpose::Reserve(locations), offset, length, effects);
    }
}
