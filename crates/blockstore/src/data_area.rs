//! The data area: which places are in use, which are being freed, and how much space writes can rely on.
//!
//! A store reports that it is full while it still has a reserve, of blocks in the data area and of records in
//! the checkpoint area. PGs then assign no more versions to writes. Writes that already have a version,
//! deletions and repairs use the reserve; a request is refused, before anything changes, only when the
//! reserve is used up too.
//!
//! In a sparse file, space in the file system is reserved in the background, ahead of use: a write gets a
//! place that has space, so it is never refused once it has a version.
//!
//! ```text
//!   bare ──reserve──▶ ready ──a write──▶ in use ──replaced, checkpoint──▶ ready
//!    ▲                                     └─deleted, checkpoint, punched─▶ bare
//!    └── no space: the store is full; retried when something was punched, and from time to time
//! ```
//!
//! Invariants
//!   1. A place that the index or the newest durable checkpoint refers to is allocated.
//!   2. `freed_bytes` counts the freed blocks that are still allocated: those in `freed`, those that the
//!      running checkpoint took over, and those being discarded.

use std::ops::Range;

use base::planted::{self, Bug};
use base::{BlockSize, GIB, MIB, Time};
use format::disk::{Area, LOCATION_NONE, LOCATION_STEP};

use crate::Space;
use crate::allocator::{Allocator, BySize, Place, SEGMENT_SIZE, SizeSet, segment_of};
use crate::discards::{Discard, Discards};
use crate::disk::{Io, NO_SPACE_RETRY, Purpose};
use crate::record_room::RecordRoom;

/// Space is reserved in pieces of an eighth of the data area, within these limits, whenever less than two
/// pieces are ready: this is more than the layers above promise to writes in advance.
const RESERVE_SHARE: u64 = 8;
const RESERVE_SIZE_MIN: u64 = 4 * MIB;
const RESERVE_SIZE_MAX: u64 = 64 * MIB;

/// Reservation of space in the file system, ahead of its use.
struct Reserving {
    /// Size of a piece, in bytes.
    size: u64,
    /// Size of the next piece, in bytes; smaller than `size` after there was no space for a larger one.
    next_size: u64,
    /// Whether a reservation is in flight.
    is_asked: bool,
    /// Block sizes for which places are needed.
    wanted: SizeSet,
    /// Whether there was no space for the smallest piece.
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

    /// Pauses reservations, because nothing more can be reserved now. `has_refused`: because the file
    /// system has no space.
    fn pause(&mut self, has_refused: bool, now: Time) {
        self.is_refused = has_refused;
        if has_refused {
            self.next_size = SEGMENT_SIZE;
            self.retry_at = Some(now + NO_SPACE_RETRY);
        }
    }
}

/// Maximum number of segments whose discards are repeated in one event after a start.
const SEGMENTS_AGAIN_MAX: usize = 64;

/// A freed place: only the newest durable checkpoint may still refer to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Freed {
    /// Where the place is.
    pub location: u32,
    /// The size of the place.
    pub block_size: BlockSize,
    /// Whether the space is given back to the device, because the block was deleted and not replaced.
    pub discard: bool,
}

/// The data area of a store.
pub struct DataArea {
    /// Where the data area begins on the device, in bytes.
    offset: u64,
    /// Public, because it guards its own invariants. A place that a checkpoint may refer to is released
    /// only through [`DataArea::free`].
    pub allocator: Allocator,
    reserving: Reserving,
    /// Places freed since the last checkpoint began.
    freed: Vec<Freed>,
    freed_bytes: BySize<u64>,
    /// The part of `freed_bytes` that can be reused right after a checkpoint. Index 0 counts places that are
    /// returned without space and must be reserved again.
    returning_bytes: BySize<u64>,
    /// Bytes of all blocks freed since the start.
    freed_bytes_ever: u64,
    discards: Discards,
    /// Block sizes of the pools that use this store.
    expected: SizeSet,
    /// Block sizes for which there was no place at some time since the last pass of moves.
    unplaced: SizeSet,
    /// Set if a page that the newest durable root refers to could not be read at the start. The next start
    /// may be able to read it. The places recorded in this page look free, so no place is allocated or
    /// given back until a checkpoint of this run is durable.
    holds_places: bool,
    /// How many bytes must be ready before what waits can go on; until the next checkpoint begins.
    wanted_bytes: u64,
}

impl DataArea {
    /// Creates an area without blocks. `is_sparse`: places must be reserved before they are used.
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
            wanted_bytes: 0,
        }
    }

    /// Returns the position of a place on the device, in bytes.
    pub fn place(&self, location: u32) -> u64 {
        self.offset + location as u64 * LOCATION_STEP
    }

    /// Stops the allocation of places until the next checkpoint, because an unreadable page may refer to
    /// places that look free.
    pub fn hold_places(&mut self) {
        self.holds_places = true;
    }

    /// Whether places that look free must not be used yet.
    pub fn holds_places(&self) -> bool {
        self.holds_places
    }

    /// Sets the block sizes that will be written from now on.
    pub fn expect(&mut self, sizes: SizeSet) {
        self.expected = sizes;
        // In a sparse file, some places of each size are reserved in advance.
        self.reserving.wanted = self.reserving.wanted.union(sizes);
    }

    /// Records that blocks of this size need places, so that space is reserved for them. Returns whether
    /// there is a place now.
    pub fn want_place(&mut self, size: BlockSize) -> bool {
        self.reserving.wanted.insert(size);
        let has_place = self.allocator.can_allocate(size);
        if !has_place {
            self.unplaced.insert(size);
        }
        has_place
    }

    /// Clears the list of block sizes that found no place. Called after a pass of moves.
    pub fn forget_unplaced(&mut self) {
        self.unplaced = SizeSet::default();
    }

    /// Returns the bytes of all blocks freed since the start.
    pub fn freed_bytes_ever(&self) -> u64 {
        self.freed_bytes_ever
    }

    /// Whether freed blocks of this size exist that cannot be allocated yet.
    pub fn has_freed_of(&self, size: BlockSize) -> bool {
        self.freed_bytes[size.shift() as usize] > 0
    }

    /// Returns when the next attempt to reserve space is due; `None`: no attempt is scheduled.
    pub fn deadline(&self) -> Option<Time> {
        self.reserving.retry_at.filter(|_| !self.reserving.is_asked)
    }

    /// Whether a reservation is in flight.
    pub fn is_reserving(&self) -> bool {
        self.reserving.is_asked
    }

    /// Returns the bytes that are kept free for writes that already have a version.
    fn reserve_bytes(&self) -> u64 {
        (self.allocator.size_bytes() / 64).clamp(2 * MIB, GIB)
    }

    /// Returns the bytes that writes can certainly use, whichever of the expected block sizes they have.
    fn sure_bytes(&self, room: RecordRoom) -> u64 {
        let kept = self.kept_bytes();
        let of_size = |size: BlockSize| {
            let returning = self.returning_bytes[size.shift() as usize];
            let places = self.allocator.ready_bytes_of(size) + returning;
            places.saturating_sub(kept).min(room.free_count(size) * size.bytes())
        };
        self.expected.iter().map(of_size).min().unwrap_or(u64::MAX)
    }

    /// Returns how many of the ready bytes are kept for writes that already have a version.
    fn kept_bytes(&self) -> u64 {
        match self.allocator.is_sparse() {
            true => self.last_bytes(),
            false => self.reserve_bytes(),
        }
    }

    /// Returns the bytes of blocks of this size in the index.
    fn used_bytes_of(&self, shift: u8) -> u64 {
        self.allocator.used_bytes_of(shift) - self.freed_bytes[shift as usize]
    }

    /// Returns the bytes of free places for blocks of this size, in segments of this size and in segments
    /// not in use. Freed places count as free.
    fn place_bytes(&self, size: BlockSize) -> u64 {
        if self.reserving.is_refused {
            let returning = self.returning_bytes[size.shift() as usize];
            return (self.allocator.ready_bytes_of(size) + returning)
                .saturating_sub(self.last_bytes());
        }
        let segments = self.allocator.empty_count() + self.allocator.segment_count_of(size.shift());
        segments * SEGMENT_SIZE - self.used_bytes_of(size.shift())
    }

    /// Returns how many segments of this block size would become empty if the blocks were packed.
    pub fn spare_segments_of(&self, shift: u8) -> u64 {
        let needed = self.allocator.used_bytes_of(shift).div_ceil(SEGMENT_SIZE);
        self.allocator.segment_count_of(shift) - needed
    }

    /// Returns the bytes that blocks of this size would gain if all other blocks were packed. Freed places
    /// count as free.
    fn movable_bytes(&self, size: BlockSize) -> u64 {
        let spare_of = |other: BlockSize| {
            let needed = self.used_bytes_of(other.shift()).div_ceil(SEGMENT_SIZE);
            self.allocator.segment_count_of(other.shift()) - needed
        };
        let others = SizeSet::ALL.iter().filter(|other| *other != size);
        others.map(spare_of).sum::<u64>() * SEGMENT_SIZE
    }

    /// Returns the block sizes that have few places, and would get more if other blocks were moved.
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

    /// Whether a reservation is in flight, or soon will be.
    fn may_reserve(&self) -> bool {
        let is_open = |size| self.allocator.to_reserve(size, SEGMENT_SIZE).is_some();
        let is_lacking = !self.reserving.is_refused && self.lacking().any(is_open);
        self.reserving.is_asked || is_lacking
    }

    /// Records that writes wait until this many bytes are ready.
    pub fn want_bytes(&mut self, bytes: u64) {
        self.wanted_bytes = self.wanted_bytes.max(bytes);
    }

    /// Whether a checkpoint is needed to make freed places usable, because few places are left, or fewer than
    /// are waited for.
    pub fn lacks_places(&self, room: RecordRoom) -> bool {
        let sure_bytes = self.sure_bytes(room);
        // What returns right after a checkpoint counts as ready already.
        let brings_more = self.freed_bytes() > self.returning_bytes.iter().sum();
        self.has_freed()
            && (sure_bytes < 2 * BlockSize::MAX.bytes()
                || brings_more && sure_bytes < self.wanted_bytes)
    }

    /// Returns the space for data. `has_no_space`: a write waits for space in the file system. `can_move`:
    /// moving blocks may create places. `is_moving`: blocks are being moved, or soon will be.
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
        // Until the expected sizes are known, assume the sizes wanted so far.
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

    /// Frees a place that the index no longer refers to. It can be allocated again after the next
    /// checkpoint.
    pub fn free(&mut self, location: u32, block_size: BlockSize, discard: bool) {
        assert!(location != LOCATION_NONE);
        if planted::on(Bug::FreedBlockReusedEarly) {
            return self.allocator.release(location, block_size, false);
        }
        self.count_freed(block_size, discard);
        self.freed.push(Freed { location, block_size, discard });
    }

    /// Returns the bytes of freed blocks that cannot be allocated again yet.
    pub fn freed_bytes(&self) -> u64 {
        self.freed_bytes.iter().sum()
    }

    /// Counts a freed block.
    pub fn count_freed(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] += block_size.bytes();
        *self.returning(block_size, discard) += block_size.bytes();
        self.freed_bytes_ever += block_size.bytes();
    }

    /// Counts a freed block as no longer freed: it can be allocated, or is in use again.
    fn count_returned(&mut self, block_size: BlockSize, discard: bool) {
        self.freed_bytes[block_size.shift() as usize] -= block_size.bytes();
        *self.returning(block_size, discard) -= block_size.bytes();
    }

    /// Whether a checkpoint would free places, at once or after a discard.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Hands the places freed so far to a checkpoint that begins. They become free when it is durable.
    pub fn take_freed(&mut self) -> Vec<Freed> {
        self.wanted_bytes = 0;
        std::mem::take(&mut self.freed)
    }

    /// Releases freed places at once if recovery found that they are in use again.
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

    /// A planted bug: releases the last freed place without a checkpoint.
    pub fn return_last_freed(&mut self) {
        let freed = self.freed.pop().expect("it had a place");
        self.count_returned(freed.block_size, freed.discard);
        self.allocator.release(freed.location, freed.block_size, false);
    }

    /// Frees blocks that the now durable checkpoint no longer refers to.
    pub fn on_checkpoint(&mut self, freed: Vec<Freed>) {
        self.holds_places = false;
        self.release_freed(freed);
    }

    /// Frees the places of blocks that no durable state refers to, some after a discard.
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

    /// Returns the segments in which space is still to be given back once the checkpoint that frees these
    /// blocks is durable. A start repeats these discards.
    pub fn segments_to_discard(&self, freed: &[Freed]) -> Vec<Range<u32>> {
        let freed = freed.iter().filter(|block| block.discard);
        self.discards.segments(freed.map(|block| segment_of(block.location)))
    }

    /// Sets the segments whose space may not have been given back before the start.
    pub fn repeat_discards(&mut self, segments: Vec<Range<u32>>) {
        self.discards.repeat(segments);
    }

    /// Discards free places in the next segments whose discards a crash may have prevented. Waits while
    /// space is being reserved: these places are about to be used.
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

    /// Starts discards, up to the limit of discards in flight.
    pub fn discard(&mut self, io: &mut Io<'_>) {
        if self.discards.is_idle() {
            self.discard_again();
        }
        while let Some(Discard { offset, length, places }) = self.discards.begin_next() {
            io.discard(Purpose::Discard(places), offset, length);
        }
    }

    /// Handles a finished discard: its places become free. In a sparse file they must be reserved again
    /// before use.
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

    /// Reserves space ahead of its use, one piece at a time, in the background. `leaves_space`: what is left
    /// in the file system is another's.
    pub fn reserve(&mut self, now: Time, leaves_space: bool, io: &mut Io<'_>) {
        let is_waiting = self.reserving.retry_at.is_some_and(|at| now < at);
        if self.reserving.is_asked || is_waiting {
            return;
        }
        self.reserving.retry_at = None;
        let next_size = self.reserving.next_size;
        let next = |size| self.allocator.to_reserve(size, next_size);
        let found = self.lacking().find_map(next);
        let Some(locations) = found.filter(|_| !leaves_space) else {
            let larger = |size| self.allocator.to_reserve(size, SEGMENT_SIZE);
            // Only pieces larger than `next_size` remain, and there was no space for larger pieces; or
            // what is left is not to be taken.
            let has_refused = self.lacking().any(|size| larger(size).is_some());
            return self.reserving.pause(has_refused, now);
        };
        self.reserving.is_asked = true;
        let offset = self.place(locations.start);
        let length = locations.len() as u64 * LOCATION_STEP;
        io.reserve(Purpose::Reserve(locations), offset, length);
    }

    /// Handles a reservation for which there was no space: a smaller piece is tried next.
    pub fn on_refused(&mut self, locations: &Range<u32>) {
        let reserving = &mut self.reserving;
        reserving.is_asked = false;
        let asked = locations.len() as u64 * LOCATION_STEP;
        reserving.next_size = asked.min(reserving.next_size) / 2;
    }

    /// Handles a successful reservation.
    pub fn on_reserved(&mut self, locations: Range<u32>) {
        self.allocator.reserved(locations);
        let reserving = &mut self.reserving;
        reserving.is_asked = false;
        reserving.is_refused = false;
        reserving.next_size = (reserving.next_size * 2).min(reserving.size);
    }

    /// Requests gaps for moves of blocks of this size. Returns whether gaps are being reserved, or will be.
    pub fn wait_for_gap(&mut self, size: BlockSize) -> bool {
        self.reserving.wanted.insert(size);
        let may_reserve = !self.reserving.is_refused && self.lacking().any(|other| other == size);
        self.reserving.is_asked || (may_reserve && self.allocator.has_bare_gap(size))
    }

    /// Returns the block sizes that have too little space ready.
    fn lacking(&self) -> impl Iterator<Item = BlockSize> {
        let wanted = self.reserving.wanted.iter();
        wanted.filter(|size| self.allocator.ready_bytes_of(*size) < 2 * self.reserving.size)
    }

    /// Returns the counter for a freed block. Punched blocks are returned without space.
    fn returning(&mut self, block_size: BlockSize, is_punched: bool) -> &mut u64 {
        let comes_bare = is_punched && self.allocator.is_sparse();
        let slot = if comes_bare { 0 } else { block_size.shift() as usize };
        &mut self.returning_bytes[slot]
    }
}
