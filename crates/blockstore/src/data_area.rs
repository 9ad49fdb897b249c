//! The data area: which places are in use, which come back, and what may be promised to writes.
//!
//! A store says that it is full while there is a reserve left, of blocks in the data area and of
//! records in the checkpoint area: its users give no more versions to writes then. What has a
//! version already, deletions and repairs use the reserve; a request is refused, before anything
//! changes, only where that is gone too.
//!
//! Under a sparse file, space of the file system is reserved in the background, ahead of use: a
//! write takes a place that has space, so it is never refused once it has a version.
//!
//! ```text
//!   bare ──reserve──▶ ready ──a write──▶ in use ──replaced, checkpoint──▶ ready
//!    ▲                                     └─deleted, checkpoint, punched─▶ bare
//!    └── no space: the store is full; asked again when something was punched, and from time to time
//! ```
//!
//! Invariants
//!   1. A place that the index or the newest durable checkpoint names is allocated.
//!   2. `freed_bytes` counts the freed blocks that are still allocated: those in `freed`, those that
//!      the running checkpoint has taken, and those being discarded.

use std::ops::Range;

use base::planted::{self, Bug};
use base::{BlockSize, GIB, MIB, Time};
use format::disk::{Area, LOCATION_NONE, LOCATION_STEP};

use crate::Space;
use crate::allocator::{Allocator, BySize, Place, SEGMENT_SIZE, SizeSet, segment_of};
use crate::discards::{Discard, Discards};
use crate::disk::{Io, NO_SPACE_RETRY, Purpose};
use crate::record_room::RecordRoom;

/// Space is reserved in pieces of an eighth of the data area, within these limits, whenever less than
/// two pieces are ready: more than the layers above promise ahead of writes.
const RESERVE_SHARE: u64 = 8;
const RESERVE_SIZE_MIN: u64 = 4 * MIB;
const RESERVE_SIZE_MAX: u64 = 64 * MIB;

/// Space of the file system that is reserved ahead of its use.
struct Reserving {
    /// One piece, in bytes.
    size: u64,
    /// The next piece, in bytes; smaller where there was no space for a larger one.
    next_size: u64,
    /// A reservation is under way.
    is_asked: bool,
    /// Block sizes for which places are needed.
    wanted: SizeSet,
    /// There was no space for the smallest piece.
    is_refused: bool,
    /// When the next attempt is due.
    retry_at: Option<Time>,
}

impl Reserving {
    fn new(data_size: u64) -> Reserving {
        let size = (data_size / RESERVE_SHARE).next_multiple_of(SEGMENT_SIZE);
        let size = size.clamp(RESERVE_SIZE_MIN, RESERVE_SIZE_MAX);
        Reserving {
            size,
            next_size: size,
            is_asked: false,
            wanted: SizeSet::from_iter([BlockSize::DEFAULT]),
            is_refused: false,
            retry_at: None,
        }
    }

    /// There is nothing to reserve now; `has_refused`: because the file system has no space.
    fn pause(&mut self, has_refused: bool, now: Time) {
        self.is_refused = has_refused;
        if has_refused {
            self.next_size = SEGMENT_SIZE;
            self.retry_at = Some(now + NO_SPACE_RETRY);
        }
    }
}

/// Segments whose discards are repeated in one event after a start.
const SEGMENTS_AGAIN_MAX: usize = 64;

/// A freed place: only the newest durable checkpoint may still name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Freed {
    /// Where it lies.
    pub location: u32,
    /// Its size.
    pub block_size: BlockSize,
    /// Whether its space is given back to the device: it was deleted, not replaced.
    pub discard: bool,
}

/// The data area of a store.
pub struct DataArea {
    /// Where it begins on the device, in bytes.
    offset: u64,
    /// Public, for it guards its own invariants. A place that a checkpoint may name is released only
    /// through [`DataArea::free`].
    pub allocator: Allocator,
    reserving: Reserving,
    /// Freed since the last checkpoint began.
    freed: Vec<Freed>,
    freed_bytes: BySize<u64>,
    /// The part of them that can be used again after a checkpoint alone; index 0 counts what comes
    /// back without space.
    returning_bytes: BySize<u64>,
    /// Bytes of all blocks freed since the start.
    freed_bytes_ever: u64,
    discards: Discards,
    /// Sizes of the blocks of pools that have a part here.
    expected: SizeSet,
    /// Sizes that found no place since the last pass of moves.
    unplaced: SizeSet,
    /// A page that the newest durable root names could not be read at the start, and may be readable at
    /// the next one. The places it names look free. Until a checkpoint of this run is durable, no place
    /// is allocated or given back.
    holds_places: bool,
}

impl DataArea {
    /// An area without blocks. `is_sparse`: its places get space before they are used.
    pub fn new(area: Area, is_sparse: bool) -> DataArea {
        DataArea {
            offset: area.offset,
            allocator: Allocator::new(area.size, is_sparse),
            reserving: Reserving::new(area.size),
            freed: Vec::new(),
            freed_bytes: BySize::default(),
            returning_bytes: BySize::default(),
            freed_bytes_ever: 0,
            discards: Discards::default(),
            expected: SizeSet::default(),
            unplaced: SizeSet::default(),
            holds_places: false,
        }
    }

    /// Position of a place on the device, in bytes.
    pub fn place(&self, location: u32) -> u64 {
        self.offset + location as u64 * LOCATION_STEP
    }

    /// An unreadable page may name places that look free: none is allocated for now.
    pub fn hold_places(&mut self) {
        self.holds_places = true;
    }

    /// Whether places that look free must not be used yet.
    pub fn holds_places(&self) -> bool {
        self.holds_places
    }

    /// From now on, blocks of exactly these sizes will be written.
    pub fn expect(&mut self, sizes: SizeSet) {
        self.expected = sizes;
        // A sparse file makes some of them ready ahead.
        self.reserving.wanted = self.reserving.wanted.union(sizes);
    }

    /// A block of this size may want a place: reserves space for more of them. False: there is no place
    /// now.
    pub fn want_place(&mut self, size: BlockSize) -> bool {
        self.reserving.wanted.insert(size);
        let has_place = self.allocator.can_allocate(size);
        if !has_place {
            self.unplaced.insert(size);
        }
        has_place
    }

    /// A pass of moves ended: only sizes that find no place from now on count.
    pub fn forget_unplaced(&mut self) {
        self.unplaced = SizeSet::default();
    }

    /// Bytes of all blocks freed since the start.
    pub fn freed_bytes_ever(&self) -> u64 {
        self.freed_bytes_ever
    }

    /// Whether blocks of this size have been freed but are not to be allocated yet.
    pub fn has_freed_of(&self, size: BlockSize) -> bool {
        self.freed_bytes[size.shift() as usize] > 0
    }

    /// When the next attempt to reserve space is due.
    pub fn deadline(&self) -> Option<Time> {
        self.reserving.retry_at.filter(|_| !self.reserving.is_asked)
    }

    /// Whether a reservation is under way.
    pub fn is_reserving(&self) -> bool {
        self.reserving.is_asked
    }

    /// Kept free of data.
    fn reserve_bytes(&self) -> u64 {
        (self.allocator.size_bytes() / 64).clamp(2 * MIB, GIB)
    }

    /// Bytes that writes can certainly use, whichever of the expected block sizes they have.
    fn sure_bytes(&self, room: RecordRoom) -> u64 {
        let kept = self.kept_bytes();
        let of_size = |size: BlockSize| {
            let returning = self.returning_bytes[size.shift() as usize];
            let places = self.allocator.ready_bytes_of(size) + returning;
            places.saturating_sub(kept).min(room.free_count(size) * size.bytes())
        };
        self.expected.iter().map(of_size).min().unwrap_or(u64::MAX)
    }

    /// Bytes of what is ready that are kept for writes that have a version already.
    fn kept_bytes(&self) -> u64 {
        match self.allocator.is_sparse() {
            true => self.last_bytes(),
            false => self.reserve_bytes(),
        }
    }

    /// Bytes of blocks of this size that the index names.
    fn used_bytes_of(&self, shift: u8) -> u64 {
        self.allocator.used_bytes_of(shift) - self.freed_bytes[shift as usize]
    }

    /// Bytes of places for blocks of this size: in their segments, and in segments that are not in use.
    /// Freed places count.
    fn place_bytes(&self, size: BlockSize) -> u64 {
        if self.reserving.is_refused {
            let returning = self.returning_bytes[size.shift() as usize];
            return (self.allocator.ready_bytes_of(size) + returning)
                .saturating_sub(self.last_bytes());
        }
        let segments = self.allocator.empty_count() + self.allocator.segment_count_of(size.shift());
        segments * SEGMENT_SIZE - self.used_bytes_of(size.shift())
    }

    /// How many segments of blocks of this size would become empty if the blocks were packed.
    pub fn spare_segments_of(&self, shift: u8) -> u64 {
        let needed = self.allocator.used_bytes_of(shift).div_ceil(SEGMENT_SIZE);
        self.allocator.segment_count_of(shift) - needed
    }

    /// Bytes that blocks of this size would get if all other blocks were packed. Freed places count as
    /// free.
    fn movable_bytes(&self, size: BlockSize) -> u64 {
        let spare_of = |other: BlockSize| {
            let needed = self.used_bytes_of(other.shift()).div_ceil(SEGMENT_SIZE);
            self.allocator.segment_count_of(other.shift()) - needed
        };
        let others = SizeSet::ALL.iter().filter(|other| *other != size);
        others.map(spare_of).sum::<u64>() * SEGMENT_SIZE
    }

    /// Sizes of blocks that have few places, and would get more if others were moved.
    pub fn short_sizes(&self) -> SizeSet {
        let few = (self.allocator.size_bytes() / 8).clamp(8 * MIB, GIB) + self.reserve_bytes();
        if self.allocator.empty_count() * SEGMENT_SIZE >= few && !self.reserving.is_refused {
            return SizeSet::default();
        }
        let is_short = |size: &BlockSize| {
            let mut others = SizeSet::ALL.iter().filter(|other| other != size);
            self.place_bytes(*size) < few
                && others.any(|other| self.spare_segments_of(other.shift()) > 0)
        };
        self.expected.union(self.unplaced).iter().filter(is_short).collect()
    }

    fn last_bytes(&self) -> u64 {
        (self.reserving.size / 4).max(SEGMENT_SIZE)
    }

    /// Whether a reservation is under way, or soon will be.
    fn may_reserve(&self) -> bool {
        let is_open = |size| self.allocator.to_reserve(size, SEGMENT_SIZE).is_some();
        let is_lacking = !self.reserving.is_refused && self.lacking().any(is_open);
        self.reserving.is_asked || is_lacking
    }

    /// Whether a checkpoint is needed to bring places back: there are few, and some are freed.
    pub fn lacks_places(&self, room: RecordRoom) -> bool {
        !self.freed.is_empty() && self.sure_bytes(room) < 2 * BlockSize::MAX.bytes()
    }

    /// Space for data. `has_no_space`: a write waits for space of the file system; `can_move`: moving
    /// blocks may make places; `is_moving`: blocks are being moved, or soon will be.
    pub fn space(
        &self,
        room: RecordRoom,
        has_no_space: bool,
        (can_move, is_moving): (bool, bool),
    ) -> Space {
        let size_bytes = self.allocator.size_bytes();
        let used_bytes = self.allocator.used_bytes() - self.freed_bytes();
        let reserve_bytes = self.reserve_bytes();
        let free_bytes = size_bytes.saturating_sub(used_bytes + reserve_bytes);
        let free_of = |size: BlockSize| {
            let movable = if can_move { self.movable_bytes(size) } else { 0 };
            let places = match self.reserving.is_refused {
                true => self.place_bytes(size),
                false => (self.place_bytes(size) + movable)
                    .saturating_sub(reserve_bytes.max(self.kept_bytes())),
            };
            places.min(room.free_count(size) * size.bytes())
        };
        // Until sizes are expected, assume those wanted so far.
        let sizes = if self.expected.is_empty() { self.reserving.wanted } else { self.expected };
        let free_bytes = sizes.iter().map(free_of).fold(free_bytes, u64::min);
        let sure_bytes = if has_no_space { 0 } else { free_bytes.min(self.sure_bytes(room)) };
        let is_growing = self.freed_bytes() > 0 || self.may_reserve() || is_moving;
        let full = has_no_space
            || free_bytes < BlockSize::MAX.bytes()
            || (sure_bytes < BlockSize::MAX.bytes() && !is_growing)
            || room.is_full();
        Space { size_bytes, used_bytes, free_bytes, sure_bytes, is_growing, reserve_bytes, full }
    }

    /// The index no longer names the place: it can be allocated again after the next checkpoint.
    pub fn free(&mut self, location: u32, block_size: BlockSize, discard: bool) {
        assert!(location != LOCATION_NONE);
        if planted::on(Bug::FreedBlockReusedEarly) {
            return self.allocator.release(location, block_size, false);
        }
        self.count_freed(block_size, discard);
        self.freed.push(Freed { location, block_size, discard });
    }

    /// Bytes of freed blocks that cannot be allocated yet.
    pub fn freed_bytes(&self) -> u64 {
        self.freed_bytes.iter().sum()
    }

    /// A block was freed.
    pub fn count_freed(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] += block_size.bytes();
        *self.returning(block_size, discard) += block_size.bytes();
        self.freed_bytes_ever += block_size.bytes();
    }

    /// A freed block can be allocated, or is in use again.
    fn count_returned(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] -= block_size.bytes();
        *self.returning(block_size, discard) -= block_size.bytes();
    }

    /// A checkpoint begins: takes what was freed so far. It comes back when the checkpoint is durable.
    pub fn take_freed(&mut self) -> Vec<Freed> {
        std::mem::take(&mut self.freed)
    }

    /// Recovery found that these places are in use again: freed blocks there are returned at once.
    pub fn return_freed_if(&mut self, is_in_the_way: impl Fn(u32, BlockSize) -> bool) {
        let freed: Vec<Freed> = self
            .freed
            .extract_if(.., |freed| is_in_the_way(freed.location, freed.block_size))
            .collect();
        for freed in freed {
            self.count_returned(freed.block_size, freed.discard);
            self.allocator.release(freed.location, freed.block_size, true);
        }
    }

    /// A planted bug: returns the last freed block before a checkpoint.
    pub fn return_last_freed(&mut self) {
        let freed = self.freed.pop().expect("it had a place");
        self.count_returned(freed.block_size, freed.discard);
        self.allocator.release(freed.location, freed.block_size, false);
    }

    /// A durable checkpoint no longer names these blocks.
    pub fn on_checkpoint(&mut self, freed: Vec<Freed>) {
        self.holds_places = false;
        self.release_freed(freed);
    }

    /// Nothing durable names these blocks: returns them, or discards them first.
    fn release_freed(&mut self, mut freed: Vec<Freed>) {
        freed.sort_unstable();
        for Freed { location, block_size, discard } in freed {
            if discard {
                self.discards.push(self.place(location), Place { location, block_size });
            } else {
                self.count_returned(block_size, false);
                self.allocator.release(location, block_size, false);
            }
        }
    }

    /// Segments in which space is to be given back once a checkpoint is durable that frees these
    /// blocks: a start does it again.
    pub fn segments_to_discard(&self, freed: &[Freed]) -> Vec<Range<u32>> {
        let freed = freed.iter().filter(|block| block.discard);
        self.discards.segments(freed.map(|block| segment_of(block.location)))
    }

    /// A start found that the space of these segments may not have been given back.
    pub fn repeat_discards(&mut self, segments: Vec<Range<u32>>) {
        self.discards.repeat(segments);
    }

    /// Discards free places in the next segments whose discards a crash may have prevented. Waits while
    /// space is being reserved: those places are about to be used.
    fn discard_again(&mut self) {
        if self.holds_places || self.allocator.is_sparse() && self.may_reserve() {
            return;
        }
        let mut freed = Vec::new();
        for _ in 0..SEGMENTS_AGAIN_MAX {
            let Some(index) = self.discards.next_repeated() else { break };
            for Place { location, block_size } in self.allocator.idle_slots(index) {
                assert!(self.allocator.take(location, block_size));
                freed.push(Freed { location, block_size, discard: true });
            }
        }
        freed.iter().for_each(|block| self.count_freed(block.block_size, true));
        self.release_freed(freed);
    }

    /// Starts discards, up to the limit in flight.
    pub fn discard(&mut self, io: &mut Io<'_>) {
        if self.discards.is_idle() {
            self.discard_again();
        }
        while let Some(Discard { offset, length, places }) = self.discards.begin_next() {
            io.discard(Purpose::Discard(places), offset, length);
        }
    }

    /// A discard ended: its places are free; under a sparse file they need space first.
    pub fn on_discarded(&mut self, places: Vec<Place>) {
        self.discards.end(&places);
        for Place { location, block_size } in places {
            self.count_returned(block_size, true);
            self.allocator.release(location, block_size, true);
        }
        // The file system may have space now.
        if self.reserving.is_refused {
            self.reserving.retry_at = Some(Time::ZERO);
        }
    }

    /// Reserves space ahead of its use: one piece at a time, in the background.
    pub fn reserve(&mut self, now: Time, io: &mut Io<'_>) {
        let is_waiting = self.reserving.retry_at.is_some_and(|at| now < at);
        if self.reserving.is_asked || is_waiting {
            return;
        }
        self.reserving.retry_at = None;
        let next_size = self.reserving.next_size;
        let next = |size| self.allocator.to_reserve(size, next_size);
        let Some(locations) = self.lacking().find_map(next) else {
            let larger = |size| self.allocator.to_reserve(size, SEGMENT_SIZE);
            // Only larger pieces remain, and there was no space for those.
            let has_refused = self.lacking().any(|size| larger(size).is_some());
            return self.reserving.pause(has_refused, now);
        };
        self.reserving.is_asked = true;
        let offset = self.place(locations.start);
        let length = locations.len() as u64 * LOCATION_STEP;
        io.reserve(Purpose::Reserve(locations), offset, length);
    }

    /// There was no space for these locations: a smaller piece may fit.
    pub fn on_refused(&mut self, locations: &Range<u32>) {
        let reserving = &mut self.reserving;
        reserving.is_asked = false;
        let asked = locations.len() as u64 * LOCATION_STEP;
        reserving.next_size = asked.min(reserving.next_size) / 2;
    }

    /// Space was reserved.
    pub fn on_reserved(&mut self, locations: Range<u32>) {
        self.allocator.reserved(locations);
        let reserving = &mut self.reserving;
        reserving.is_asked = false;
        reserving.is_refused = false;
        reserving.next_size = (reserving.next_size * 2).min(reserving.size);
    }

    /// A move found no gap between blocks of this size. True: gaps are being reserved, or will be.
    pub fn wait_for_gap(&mut self, size: BlockSize) -> bool {
        self.reserving.wanted.insert(size);
        let may_reserve = !self.reserving.is_refused && self.lacking().any(|other| other == size);
        self.reserving.is_asked || (may_reserve && self.allocator.has_bare_gap(size))
    }

    /// Sizes of blocks that have too little space ready.
    fn lacking(&self) -> impl Iterator<Item = BlockSize> {
        let wanted = self.reserving.wanted.iter();
        wanted.filter(|size| self.allocator.ready_bytes_of(*size) < 2 * self.reserving.size)
    }

    /// The count to which a freed block belongs: punched blocks come back without space.
    fn returning(&mut self, block_size: BlockSize, is_punched: bool) -> &mut u64 {
        let comes_bare = is_punched && self.allocator.is_sparse();
        let slot = if comes_bare { 0 } else { block_size.shift() as usize };
        &mut self.returning_bytes[slot]
    }
}
