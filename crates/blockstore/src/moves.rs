//! Moves: blocks go from scattered segments to gaps between other blocks of their size, so that whole
//! segments become free for blocks of other sizes. This file decides which blocks to move; `store/moves.rs`
//! moves them.
//!
//! ```text
//!   Idle ──▶ Choosing ──▶ Scanning ──▶ Returning ──▶ Idle
//!    few     segments     their blocks   checkpoint
//!    places  leave        are moved      frees them
//! ```
//!
//! A move is a repair of a block with its own content, at another place, and uses the same kind of entry:
//! after a crash the block is at the old place or at the new one. Nothing waits for a move to be durable.
//!
//! Invariants
//!   1. A block is moved only if it is unchanged since it was read: if its version, its place or its count
//!      of repairs has changed, or a checkpoint has ended, it is read again.
//!   2. A block is moved only to a gap, never into a segment that is not in use or is leaving. The gap is
//!      allocated before the block is read.
//!   3. The bytes in flight, and the blocks examined per event, are bounded.

use std::collections::{BTreeMap, VecDeque};

use base::{BlockSize, GIB, MIB};
use format::disk::{BlockKey, LOCATION_NONE};

use crate::RequestId;
use crate::allocator::{BySize, SEGMENT_SIZE, SizeSet};
use crate::data_area::DataArea;
use crate::index::{BlockInfo, KEY_FIRST};
use crate::parts::Parts;
use crate::read::Stamp;

/// Maximum number of bytes of blocks in flight at once.
const MOVING_BYTES_MAX: u64 = MIB;
/// Maximum number of blocks of the index, or segments, examined per event.
const STEP_COUNT: usize = 256;
/// One pass tries to empty this fraction (1/n) of all segments, within these limits in bytes.
const PASS_SHARE: u64 = 32;
const PASS_SIZE_MIN: u64 = 8 * MIB;
const PASS_SIZE_MAX: u64 = 8 * GIB;
/// A block stays where it is after this many attempts that failed because the block had changed.
const ATTEMPT_COUNT_MAX: u32 = 4;
/// First id of the store's own requests; those of the layers above are lower.
const OWN_ID_FIRST: u64 = 1 << 63;

/// The state of the moves.
#[derive(Default)]
pub struct Moves {
    stage: Stage,
    /// Segments being emptied.
    leaving: Vec<u32>,
    in_flight: BTreeMap<RequestId, Move>,
    moving_bytes: u64,
    id_last: u64,
    /// Blocks to retry.
    again: VecDeque<Candidate>,
    /// Whether the next step must wait for an event.
    is_blocked: bool,
    /// Whether the store is about to shut down: no move begins.
    is_paused: bool,
    /// Blocks moved in this pass.
    moved_count: u64,
    /// Bytes of blocks moved since the start.
    moved_bytes: u64,
    /// Set if the last pass achieved nothing: the next pass waits until the total of bytes freed since the
    /// start reaches this value.
    fruitless_until: Option<u64>,
}

/// The stages of a pass, in order.
#[derive(Default)]
enum Stage {
    /// There are enough places, or moving blocks would not create any.
    #[default]
    Idle,
    /// Chooses segments to empty, from index `next` on: `wanted` more of each size.
    Choosing { next: u32, wanted: BySize<u64> },
    /// Looks for the blocks of these segments in key order, after the key `after`.
    Scanning { after: Option<BlockKey>, is_done: bool },
    /// Waits for the checkpoint with this sequence number, which no longer refers to the old places.
    Returning { sequence: u64 },
}

/// A block to be moved, and how many moves of it were attempted before.
#[derive(Clone, Copy)]
pub struct Candidate {
    pub key: BlockKey,
    attempt: u32,
}

/// A move in progress.
pub struct Move {
    pub key: BlockKey,
    /// The state of the block when it was read.
    pub stamp: Stamp,
    /// The gap that the block is moved to.
    pub location: u32,
    attempt: u32,
    /// Whether the block is journaled and waits to be written.
    is_journaled: bool,
}

/// What the store must do after a step.
pub enum NextStep {
    /// Nothing.
    Nothing,
    /// Begin to move more blocks: see [`Moves::next_blocks`].
    Begin,
    /// A pass has ended: decide again about what waited for it.
    Ended,
}

/// Whether the store itself made the request.
pub fn is_own(id: RequestId) -> bool {
    id.0 >= OWN_ID_FIRST
}

impl Moves {
    /// Pauses or resumes moves. Paused while the store shuts down: no move begins then.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether a block is being moved.
    pub fn has_moves(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns the bytes of blocks moved since the start.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Advances by one bounded step.
    pub fn advance(&mut self, parts: &mut Parts) -> NextStep {
        self.is_blocked = false;
        let area = &mut parts.blocks.area;
        match self.stage {
            _ if self.is_paused => {}
            Stage::Idle => {
                if !self.are_fruitless(area) {
                    self.begin_pass(area);
                }
            }
            Stage::Choosing { .. } => self.choose(area),
            Stage::Scanning { .. } => return NextStep::Begin,
            Stage::Returning { sequence } => {
                if parts.root.sequence >= sequence {
                    self.end_pass(area);
                    return NextStep::Ended;
                }
            }
        }
        NextStep::Nothing
    }

    /// Whether the last pass achieved nothing, and little has changed since.
    pub fn are_fruitless(&self, area: &DataArea) -> bool {
        self.fruitless_until.is_some_and(|until| area.freed_bytes_ever() < until)
    }

    /// Whether blocks are being moved, or soon will be.
    pub fn is_moving(&self, area: &DataArea) -> bool {
        let is_idle = matches!(self.stage, Stage::Idle);
        !is_idle || (!self.are_fruitless(area) && !area.short_sizes().is_empty())
    }

    /// Whether another step is possible without waiting for an event.
    pub fn can_advance(&self) -> bool {
        let is_busy = match self.stage {
            Stage::Choosing { .. } => true,
            Stage::Scanning { is_done, .. } => !is_done || !self.again.is_empty(),
            Stage::Idle | Stage::Returning { .. } => false,
        };
        let can_begin = !self.is_blocked && !self.is_paused;
        is_busy && can_begin && self.moving_bytes < MOVING_BYTES_MAX
    }

    /// Begins a pass if some block size is short of places.
    fn begin_pass(&mut self, area: &DataArea) {
        let short = area.short_sizes();
        if !short.is_empty() {
            self.stage = Stage::Choosing { next: 0, wanted: plan_pass(area, short) };
        }
    }

    /// Ends a pass. Segments that still hold blocks are no longer leaving.
    fn end_pass(&mut self, area: &mut DataArea) {
        let leaving = std::mem::take(&mut self.leaving);
        let (stayed, gone): (Vec<u32>, Vec<u32>) =
            leaving.into_iter().partition(|index| area.allocator.is_segment_leaving(*index));
        let has_fruit = self.moved_count > 0 || !gone.is_empty();
        self.fruitless_until = (!has_fruit).then_some(area.freed_bytes_ever() + SEGMENT_SIZE);
        self.moved_count = 0;
        self.stage = Stage::Idle;
        area.forget_unplaced();
        stayed.into_iter().for_each(|index| area.allocator.stay(index));
    }

    /// Chooses the segments to empty, one range of segments per step.
    fn choose(&mut self, area: &mut DataArea) {
        let Stage::Choosing { next, wanted } = &mut self.stage else { return };
        let range = *next..next.saturating_add(STEP_COUNT as u32);
        *next = range.end;
        let chosen = area.allocator.choose_leaving(range, wanted);
        let is_done =
            *next >= area.allocator.segment_count() || wanted.iter().all(|count| *count == 0);
        self.leaving.extend(chosen);
        if is_done {
            self.stage = Stage::Scanning { after: None, is_done: false };
        }
    }

    /// Returns the blocks to move next, as many as fit in flight. Retries come first.
    pub fn next_blocks(&mut self, parts: &Parts) -> Vec<Candidate> {
        let mut room = MOVING_BYTES_MAX.saturating_sub(self.moving_bytes);
        let mut found = Vec::new();
        while room > 0
            && let Some(block) = self.again.pop_front()
        {
            let size = parts.blocks.get(&block.key).map_or(0, |info| info.block_size.bytes());
            room = room.saturating_sub(size);
            found.push(block);
        }
        let Stage::Scanning { after, is_done } = &mut self.stage else { return found };
        if room == 0 || *is_done {
            return found;
        }
        let behind = *after;
        let blocks = parts.blocks.index().iter_from(behind.unwrap_or(KEY_FIRST));
        let mut blocks = blocks.skip_while(|(key, _)| Some(*key) == behind);
        for _ in 0..STEP_COUNT {
            let Some((key, info)) = blocks.next() else {
                *is_done = true;
                break;
            };
            *after = Some(key);
            if is_leaving(&parts.blocks.area, info) {
                found.push(Candidate { key, attempt: 0 });
                room = room.saturating_sub(info.block_size.bytes());
            }
            if room == 0 {
                break;
            }
        }
        found
    }

    /// Puts off a block until the next event.
    pub fn postpone(&mut self, block: Candidate) {
        self.again.push_back(block);
        self.is_blocked = true;
    }

    /// Records that the block with this stamp is being read and will move to the gap at `location`. Returns
    /// the request id that identifies the move.
    pub fn begin(&mut self, block: Candidate, stamp: Stamp, location: u32) -> RequestId {
        assert!(self.moving_bytes < MOVING_BYTES_MAX);
        self.moving_bytes += stamp.info.block_size.bytes();
        self.id_last += 1;
        let id = RequestId(OWN_ID_FIRST + self.id_last);
        let Candidate { key, attempt } = block;
        let moved = Move { key, stamp, location, attempt, is_journaled: false };
        self.in_flight.insert(id, moved);
        id
    }

    /// Whether all blocks of the pass were examined and none is being moved.
    pub fn is_scanned(&self) -> bool {
        let is_done = matches!(self.stage, Stage::Scanning { is_done: true, .. });
        is_done && self.again.is_empty() && self.in_flight.is_empty()
    }

    /// Ends the scan: everything movable was moved. The checkpoint `sequence` no longer refers to the old
    /// places.
    pub fn return_places(&mut self, sequence: u64) {
        self.again.clear();
        self.stage = Stage::Returning { sequence };
    }

    /// Removes and returns the move whose block was read.
    pub fn on_read(&mut self, id: RequestId) -> Move {
        let moved = self.in_flight.remove(&id).expect("it was being read");
        assert!(!moved.is_journaled);
        moved
    }

    /// Gives up a move: the block stays where it is, and its gap is freed.
    pub fn drop_move(&mut self, moved: &Move, area: &mut DataArea) {
        let size = moved.stamp.info.block_size;
        self.moving_bytes -= size.bytes();
        area.allocator.release(moved.location, size, false);
    }

    /// Gives up this attempt of a move, because the block has changed since it was read or there is no
    /// room. The block is read again later, unless there were too many attempts.
    pub fn drop_and_retry(&mut self, moved: &Move, area: &mut DataArea) {
        self.drop_move(moved, area);
        let attempt = moved.attempt + 1;
        if attempt < ATTEMPT_COUNT_MAX {
            self.again.push_back(Candidate { key: moved.key, attempt });
        }
    }

    /// Records that the block is journaled and being written to its gap.
    pub fn on_journaled(&mut self, id: RequestId, moved: Move) {
        self.moved_count += 1;
        self.moved_bytes += moved.stamp.info.block_size.bytes();
        self.in_flight.insert(id, Move { is_journaled: true, ..moved });
    }

    /// Ends a move whose block was written.
    pub fn on_written(&mut self, id: RequestId) {
        let moved = self.in_flight.remove(&id).expect("it was being written");
        assert!(moved.is_journaled, "a copy has no error");
        self.moving_bytes -= moved.stamp.info.block_size.bytes();
    }
}

/// Returns how many segments of each size to empty, so that the sizes in `short` get places.
fn plan_pass(area: &DataArea, short: SizeSet) -> BySize<u64> {
    let size_max = area.allocator.size_bytes() / PASS_SHARE;
    let mut left = size_max.clamp(PASS_SIZE_MIN, PASS_SIZE_MAX) / SEGMENT_SIZE;
    let mut wanted = BySize::default();
    let serves_others = |size: &BlockSize| short.iter().any(|other| other != *size);
    for size in SizeSet::ALL.iter().filter(serves_others) {
        let count = area.spare_segments_of(size.shift()).min(left);
        wanted[size.shift() as usize] = count;
        left -= count;
    }
    wanted
}

/// Whether the block is in a leaving segment.
pub fn is_leaving(area: &DataArea, info: BlockInfo) -> bool {
    info.location != LOCATION_NONE && area.allocator.is_leaving(info.location)
}
