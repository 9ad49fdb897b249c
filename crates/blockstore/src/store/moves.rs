//! Moves: blocks go from scattered segments to gaps between others of their size, so that whole
//! segments get free for blocks of other sizes.
//!
//! ```text
//!   Idle ──▶ Choosing ──▶ Scanning ──▶ Returning ──▶ Idle
//!    few     segments     their blocks   checkpoint
//!    places  leave        are moved      frees them
//! ```
//!
//! A move is a repair of a block with what it has, at another place: the same entry, and after a
//! crash the block is at the old place or at the new one. Nobody waits for it to be durable.
//!
//! Invariants
//!   1. A block is moved only as it is: if anything of it has changed since it was read (its
//!      version, its place, repairs), or a checkpoint has ended, it is read again.
//!   2. A move takes a gap only: never a segment that is not in use, or one that is leaving. The gap
//!      is taken before the block is read.
//!   3. What a pass has in flight, and what it looks at in one event, is bounded.

use std::collections::{BTreeMap, VecDeque};

use base::planted::{self, Bug};
use base::{BlockSize, GIB, MIB, PgId, UNIT_SIZE};
use format::disk::{BlockKey, EntryKind, LOCATION_NONE};
use format::wire::Content;

use crate::allocator::{BySize, SEGMENT_SIZE, SizeSet};
use crate::data_area::DataArea;
use crate::index::{BlockInfo, KEY_FIRST};
use crate::journal::{Asker, LARGE_IN_FLIGHT_MAX};
use crate::parts::Parts;
use crate::read::Stamp;
use crate::store::{Phase, Store};
use crate::{Answer, Effect, RequestId};

/// Bytes of blocks in flight at once.
const MOVING_BYTES_MAX: u64 = MIB;
/// Blocks of the index, or segments, that one event looks at.
const STEP_COUNT: usize = 256;
/// Segments that leave in one pass: this share of all, within these limits in bytes.
const PASS_SHARE: u64 = 32;
const PASS_SIZE_MIN: u64 = 8 * MIB;
const PASS_SIZE_MAX: u64 = 8 * GIB;
/// A block that changes so often while it is read stays.
const ATTEMPT_COUNT_MAX: u32 = 4;
/// Of the journal so much is kept free for others.
const JOURNAL_SHARE: u64 = 4;
/// Ids of the store's own requests; those of others are lower.
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
    /// Blocks to be tried again.
    again: VecDeque<(BlockKey, u32)>,
    /// The next step waits for an event.
    is_blocked: bool,
    /// The store is to come to an end.
    is_paused: bool,
    /// Blocks moved in this pass.
    moved_count: u64,
    /// Bytes of blocks moved since the start.
    moved_bytes: u64,
    /// The last pass moved nothing: the next one waits until so many bytes were freed since the start.
    fruitless_until: Option<u64>,
}

/// In the order of time.
#[derive(Default)]
enum Stage {
    /// There are places, or moving would make none.
    #[default]
    Idle,
    /// Chooses segments, from this one on; so many of each size.
    Choosing { next: u32, wanted: BySize<u64> },
    /// Looks for their blocks, in the order of keys, from behind this one.
    Scanning { after: Option<BlockKey>, is_done: bool },
    /// Waits for the checkpoint that no longer names the old places.
    Returning { sequence: u64 },
}

/// A block on its way.
struct Move {
    key: BlockKey,
    /// As it was when it was read.
    stamp: Stamp,
    location: u32,
    attempt: u32,
    /// It is journaled, and waits to be written.
    is_written: bool,
}

impl Moves {
    /// No move begins while the store comes to an end.
    pub(super) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether moving has brought nothing, and nothing has changed much since.
    pub(super) fn are_fruitless(&self, area: &DataArea) -> bool {
        self.fruitless_until.is_some_and(|until| area.freed_bytes_ever() < until)
    }

    /// Whether places are being made by moving blocks, or soon will be.
    pub(super) fn is_moving(&self, area: &DataArea) -> bool {
        let is_idle = matches!(self.stage, Stage::Idle);
        !is_idle || (!self.are_fruitless(area) && !area.short_sizes().is_empty())
    }

    /// Whether a step can be done without an event.
    pub(super) fn can_advance(&self) -> bool {
        let is_busy = match self.stage {
            Stage::Choosing { .. } => true,
            Stage::Scanning { is_done, .. } => !is_done || !self.again.is_empty(),
            Stage::Idle | Stage::Returning { .. } => false,
        };
        let can_begin = !self.is_blocked && !self.is_paused;
        is_busy && can_begin && self.moving_bytes < MOVING_BYTES_MAX
    }

    /// Begins a pass if blocks of some size lack places that it would make.
    fn begin_pass(&mut self, area: &DataArea) {
        let short = area.short_sizes();
        if !short.is_empty() {
            self.stage = Stage::Choosing { next: 0, wanted: plan_pass(area, short) };
        }
    }

    /// Ends a pass: what could not be moved stays.
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

    /// Blocks to be moved next, as many as fit in flight. Those to be tried again come first.
    fn next_blocks(&mut self, parts: &Parts) -> Vec<(BlockKey, u32)> {
        let mut room = MOVING_BYTES_MAX.saturating_sub(self.moving_bytes);
        let mut found = Vec::new();
        while room > 0
            && let Some((key, attempt)) = self.again.pop_front()
        {
            let size = parts.blocks.get(&key).map_or(0, |info| info.block_size.bytes());
            room = room.saturating_sub(size);
            found.push((key, attempt));
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
                found.push((key, 0));
                room = room.saturating_sub(info.block_size.bytes());
            }
            if room == 0 {
                break;
            }
        }
        found
    }

    /// The block is not moved now; its gap is free again.
    fn drop_move(&mut self, moved: &Move, area: &mut DataArea) {
        let size = moved.stamp.info.block_size;
        self.moving_bytes -= size.bytes();
        area.allocator.release(moved.location, size, false);
    }

    /// A moved block is written.
    fn on_written(&mut self, id: RequestId) {
        let moved = self.in_flight.remove(&id).expect("it was being written");
        assert!(moved.is_written, "a copy has no error");
        self.moving_bytes -= moved.stamp.info.block_size.bytes();
    }
}

/// How many segments of each size are to leave now, for blocks of other sizes.
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
fn is_leaving(area: &DataArea, info: BlockInfo) -> bool {
    info.location != LOCATION_NONE && area.allocator.is_leaving(info.location)
}

impl Store {
    /// Bytes of blocks that were moved since the start, to make places for blocks of other sizes.
    pub fn moved_bytes(&self) -> u64 {
        self.moves.moved_bytes
    }

    /// Goes on with moving blocks, one bounded step.
    pub(super) fn settle_moves(&mut self, effects: &mut Vec<Effect>) {
        let Store { parts, moves, .. } = self;
        let parts = parts.as_mut().expect("it is open");
        moves.is_blocked = false;
        match moves.stage {
            _ if moves.is_paused => {}
            Stage::Idle => {
                if !moves.are_fruitless(&parts.blocks.area) {
                    moves.begin_pass(&parts.blocks.area);
                }
            }
            Stage::Choosing { .. } => moves.choose(&mut parts.blocks.area),
            Stage::Scanning { .. } => self.scan(effects),
            Stage::Returning { sequence } => {
                if parts.root.sequence >= sequence {
                    moves.end_pass(&mut parts.blocks.area);
                }
            }
        }
    }

    /// Looks at some blocks of the index, and begins to move those in segments that leave.
    fn scan(&mut self, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_ref().expect("it is open");
        for (key, attempt) in self.moves.next_blocks(parts) {
            match self.begin_move(key, attempt, effects) {
                Begun::Yes => {}
                Begun::Later => {
                    self.moves.again.push_back((key, attempt));
                    self.moves.is_blocked = true;
                }
                Begun::Never => return self.return_places(),
            }
        }
        let moves = &self.moves;
        let is_done = matches!(moves.stage, Stage::Scanning { is_done: true, .. });
        if is_done && moves.again.is_empty() && moves.in_flight.is_empty() {
            self.return_places();
        }
    }

    /// Takes a gap for the block, and reads it.
    fn begin_move(&mut self, key: BlockKey, attempt: u32, effects: &mut Vec<Effect>) -> Begun {
        let Some(stamp) = Stamp::of_block(self.parts(), &key) else { return Begun::Yes };
        let size = stamp.info.block_size;
        if !is_leaving(&self.parts().blocks.area, stamp.info) {
            return Begun::Yes;
        }
        if !self.has_room_for_move(size) {
            return Begun::Later;
        }
        let Some(location) = self.parts_mut().blocks.area.allocator.allocate_gap(size) else {
            return self.wait_for_gap(size);
        };
        let moves = &mut self.moves;
        moves.moving_bytes += size.bytes();
        moves.id_last += 1;
        let id = RequestId(OWN_ID_FIRST + moves.id_last);
        let moved = Move { key, stamp, location, attempt, is_written: false };
        moves.in_flight.insert(id, moved);
        let (parts, reads, mut io) = self.for_reads(effects);
        reads.begin_copy(id, key, &[], parts, &mut io);
        Begun::Yes
    }

    /// Whether the journal, memory and the disk have room for one more.
    fn has_room_for_move(&mut self, size: BlockSize) -> bool {
        let parts = self.parts();
        if parts.journal.large_count() >= LARGE_IN_FLIGHT_MAX / 2 {
            self.wait_for_room(false);
            return false;
        }
        let reserve = parts.journal.size() / JOURNAL_SHARE;
        let units = (size.bytes() / UNIT_SIZE) as usize;
        let has_room = parts.journal.has_room(EntryKind::RepairLarge, units, reserve);
        let may_go_on = self.has_memory() && has_room && !parts.blocks.area.holds_places();
        if !may_go_on {
            self.wait_for_room(true);
        }
        may_go_on && !self.disk.has_no_space()
    }

    /// There is no gap: a checkpoint may bring some, or space of the file system.
    fn wait_for_gap(&mut self, size: BlockSize) -> Begun {
        let area = &mut self.parts_mut().blocks.area;
        if area.has_freed_of(size) {
            self.wait_for_room(true);
            return Begun::Later;
        }
        match area.wait_for_gap(size) {
            true => Begun::Later,
            false => Begun::Never,
        }
    }

    /// All is moved that can be: a checkpoint frees the old places.
    fn return_places(&mut self) {
        // A checkpoint that is being made still names them.
        let next = self.parts().root.sequence + 1;
        let sequence = next + u64::from(self.checkpoint.is_some());
        self.moves.again.clear();
        self.moves.stage = Stage::Returning { sequence };
        self.wait_for_room(true);
    }

    /// Takes the answers to the store's own requests out of these effects. True: there were some.
    pub(super) fn take_own_answers(&mut self, from: usize, effects: &mut Vec<Effect>) -> bool {
        if !matches!(self.phase, Phase::Open) || self.moves.in_flight.is_empty() {
            return false;
        }
        let is_own =
            |effect: &mut Effect| matches!(effect, Effect::Done { id, .. } if id.0 >= OWN_ID_FIRST);
        let own: Vec<Effect> = effects.extract_if(from.., is_own).collect();
        let has_own = !own.is_empty();
        for effect in own {
            if let Effect::Done { id, result } = effect {
                match result {
                    Ok(Answer::Copy { content }) => self.on_move_read(id, content, effects),
                    _ => self.moves.on_written(id),
                }
            }
        }
        has_own
    }

    /// A block was read: it goes to its gap, if it is still what was read.
    fn on_move_read(&mut self, id: RequestId, content: Content, effects: &mut Vec<Effect>) {
        let moved = self.moves.in_flight.remove(&id).expect("it was being read");
        let parts = self.parts();
        let is_same = Stamp::of_block(parts, &moved.key) == Some(moved.stamp)
            || planted::on(Bug::MoveOverwritesNewer);
        let is_leaving = is_leaving(&parts.blocks.area, moved.stamp.info);
        // What is damaged, or holds nothing, stays: a repair, or the next checkpoint, ends that.
        if !is_leaving || self.moves.is_paused || !is_movable(&content) {
            return self.drop_move(&moved);
        }
        if !is_same || !self.has_room_for_move(moved.stamp.info.block_size) {
            self.drop_move(&moved);
            if moved.attempt + 1 < ATTEMPT_COUNT_MAX {
                self.moves.again.push_back((moved.key, moved.attempt + 1));
            }
            return;
        }
        let BlockInfo { pg, block_size, .. } = moved.stamp.info;
        let pg = PgId { pool: moved.key.pool, number: u32::from(pg) };
        let old = self.parts().blocks.get(&moved.key);
        let asker = Asker { id, is_lazy: true };
        self.accept_move(asker, (pg, moved.key), content, (moved.location, old), effects);
        let moves = &mut self.moves;
        moves.moved_count += 1;
        moves.moved_bytes += block_size.bytes();
        moves.in_flight.insert(id, Move { is_written: true, ..moved });
    }

    fn drop_move(&mut self, moved: &Move) {
        let Store { parts, moves, .. } = self;
        moves.drop_move(moved, &mut parts.as_mut().expect("it is open").blocks.area);
    }
}

/// What came of beginning a move.
enum Begun {
    /// It has begun, or there is nothing to move.
    Yes,
    /// It waits for something that comes.
    Later,
    /// There is no place for it.
    Never,
}

/// Whether the block is whole, and holds anything.
fn is_movable(content: &Content) -> bool {
    let Content::Block { damaged, data, .. } = content else { return false };
    data.is_some() && damaged.iter().all(|word| *word == 0)
}
