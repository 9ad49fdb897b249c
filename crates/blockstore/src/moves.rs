//! Moves: blocks go from scattered segments to gaps between other blocks of their size, so that whole
//! segments become free for blocks of other sizes. This file decides; `store/moves.rs` does it.
//!
//! ```text
//!   Idle ──▶ Choosing ──▶ Scanning ──▶ Returning ──▶ Idle
//!    few     segments     their blocks   checkpoint
//!    places  leave        are moved      frees them
//! ```
//!
//! A move is a repair of a block with its own content, at another place. It is the same kind of entry:
//! after a crash the block is at the old place or at the new one. Nobody waits for it to be durable.
//!
//! Invariants
//!   1. A block is moved only as it was read: if its version, its place or its count of repairs has
//!      changed since, or a checkpoint has ended, it is read again.
//!   2. A block goes only to a gap: never into a segment that is not in use, or one that is leaving. The
//!      gap is allocated before the block is read.
//!   3. The bytes in flight, and the blocks that one event looks at, are bounded.

use std::collections::{BTreeMap, VecDeque};

use base::{BlockSize, GIB, MIB};
use format::disk::{BlockKey, LOCATION_NONE};

use crate::RequestId;
use crate::allocator::{BySize, SEGMENT_SIZE, SizeSet};
use crate::data_area::DataArea;
use crate::index::{BlockInfo, KEY_FIRST};
use crate::parts::Parts;
use crate::read::Stamp;

/// Blocks in flight at once, in bytes.
const MOVING_BYTES_MAX: u64 = MIB;
/// Blocks of the index, or segments, that one event looks at.
const STEP_COUNT: usize = 256;
/// One pass empties this share of all segments, within these limits in bytes.
const PASS_SHARE: u64 = 32;
const PASS_SIZE_MIN: u64 = 8 * MIB;
const PASS_SIZE_MAX: u64 = 8 * GIB;
/// A block that changed so often while it was read stays where it is.
const ATTEMPT_COUNT_MAX: u32 = 4;
/// First id of the store's own requests; those of the layers above are lower.
const OWN_ID_FIRST: u64 = 1 << 63;

/// Blocks that are moved.
#[derive(Default)]
pub struct Moves {
    stage: Stage,
    /// Segments that leave.
    leaving: Vec<u32>,
    in_flight: BTreeMap<RequestId, Move>,
    moving_bytes: u64,
    id_last: u64,
    /// Blocks to be retried.
    again: VecDeque<Candidate>,
    /// The next step must wait for an event.
    is_blocked: bool,
    /// The store is about to end: no move begins.
    is_paused: bool,
    /// Blocks moved in this pass.
    moved_count: u64,
    /// Bytes of blocks moved since the start.
    moved_bytes: u64,
    /// The last pass achieved nothing: the next one waits until so many bytes were freed since the
    /// start.
    fruitless_until: Option<u64>,
}

/// In the order of time.
#[derive(Default)]
enum Stage {
    /// There are enough places, or moving would make none.
    #[default]
    Idle,
    /// Chooses segments, from `next` on: `wanted` of each size.
    Choosing { next: u32, wanted: BySize<u64> },
    /// Looks for their blocks in the order of keys, behind `after`.
    Scanning { after: Option<BlockKey>, is_done: bool },
    /// Waits for the checkpoint with this sequence, which no longer names the old places.
    Returning { sequence: u64 },
}

/// A block to be moved, and how often it was begun before.
#[derive(Clone, Copy)]
pub struct Candidate {
    pub key: BlockKey,
    attempt: u32,
}

/// A block on its way.
pub struct Move {
    pub key: BlockKey,
    /// As it was when it was read.
    pub stamp: Stamp,
    /// The gap it goes to.
    pub location: u32,
    attempt: u32,
    /// It is journaled, and waits to be written.
    is_journaled: bool,
}

/// What a step leaves to the store.
pub enum NextStep {
    /// Nothing now.
    Nothing,
    /// To begin with more blocks: see [`Moves::next_blocks`].
    Begin,
}

/// Whether the request is one of the store's own.
pub fn is_own(id: RequestId) -> bool {
    id.0 >= OWN_ID_FIRST
}

impl Moves {
    /// No move begins while the store comes to an end.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether a block is on its way.
    pub fn has_moves(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Bytes of blocks moved since the start.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Goes on, one bounded step.
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

    /// Whether a step can be done without an event.
    pub fn can_advance(&self) -> bool {
        let is_busy = match self.stage {
            Stage::Choosing { .. } => true,
            Stage::Scanning { is_done, .. } => !is_done || !self.again.is_empty(),
            Stage::Idle | Stage::Returning { .. } => false,
        };
        let can_begin = !self.is_blocked && !self.is_paused;
        is_busy && can_begin && self.moving_bytes < MOVING_BYTES_MAX
    }

    /// Begins a pass, if some size lacks places that moving would make.
    fn begin_pass(&mut self, area: &DataArea) {
        let short = area.short_sizes();
        if !short.is_empty() {
            self.stage = Stage::Choosing { next: 0, wanted: plan_pass(area, short) };
        }
    }

    /// Ends a pass: segments that still hold blocks stay.
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

    /// Chooses some of the segments that leave.
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

    /// Blocks to be moved next, as many as fit in flight. Retries come first.
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

    /// The block cannot be read before an event.
    pub fn postpone(&mut self, block: Candidate) {
        self.again.push_back(block);
        self.is_blocked = true;
    }

    /// The block, as this stamp says, is read and goes to the gap at `location`. Returns the request
    /// that names the move.
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

    /// Whether all blocks of the pass were looked at, and none is on its way.
    pub fn is_scanned(&self) -> bool {
        let is_done = matches!(self.stage, Stage::Scanning { is_done: true, .. });
        is_done && self.again.is_empty() && self.in_flight.is_empty()
    }

    /// All is moved that can be: this checkpoint no longer names the old places.
    pub fn return_places(&mut self, sequence: u64) {
        self.again.clear();
        self.stage = Stage::Returning { sequence };
    }

    /// The block of a move was read.
    pub fn on_read(&mut self, id: RequestId) -> Move {
        let moved = self.in_flight.remove(&id).expect("it was being read");
        assert!(!moved.is_journaled);
        moved
    }

    /// The block stays where it is; its gap is free again.
    pub fn drop_move(&mut self, moved: &Move, area: &mut DataArea) {
        let size = moved.stamp.info.block_size;
        self.moving_bytes -= size.bytes();
        area.allocator.release(moved.location, size, false);
    }

    /// The block has changed since it was read, or there is no room: it is read again later.
    pub fn drop_and_retry(&mut self, moved: &Move, area: &mut DataArea) {
        self.drop_move(moved, area);
        let attempt = moved.attempt + 1;
        if attempt < ATTEMPT_COUNT_MAX {
            self.again.push_back(Candidate { key: moved.key, attempt });
        }
    }

    /// The block is in the journal, and on its way to its gap.
    pub fn on_journaled(&mut self, id: RequestId, moved: Move) {
        self.moved_count += 1;
        self.moved_bytes += moved.stamp.info.block_size.bytes();
        self.in_flight.insert(id, Move { is_journaled: true, ..moved });
    }

    /// A moved block is written.
    pub fn on_written(&mut self, id: RequestId) {
        let moved = self.in_flight.remove(&id).expect("it was being written");
        assert!(moved.is_journaled, "a copy has no error");
        self.moving_bytes -= moved.stamp.info.block_size.bytes();
    }
}

/// How many segments of each size are to leave, so that the sizes in `short` get places.
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

/// Whether the block lies in a segment that leaves.
pub fn is_leaving(area: &DataArea, info: BlockInfo) -> bool {
    info.location != LOCATION_NONE && area.allocator.is_leaving(info.location)
}
