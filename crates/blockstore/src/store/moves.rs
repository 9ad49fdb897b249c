//! Carries out the moves that `moves.rs` decides on: allocates a gap, reads the block, and journals it at its
//! new place.

use base::planted::{self, Bug};
use base::{BlockSize, PgId, UNIT_SIZE};
use format::disk::EntryKind;
use format::wire::Content;

use crate::index::BlockInfo;
use crate::journal::{Asker, LARGE_IN_FLIGHT_MAX};
use crate::moves::{Candidate, Move, NextStep, is_leaving, is_own};
use crate::read::Stamp;
use crate::store::Store;
use crate::{Answer, AsOf, Effect, RequestId};

/// Moves leave this fraction (1/n) of the journal free for other requests.
const JOURNAL_SHARE: u64 = 4;

impl Store {
    /// Returns the bytes of blocks moved since the start, to make places for blocks of other sizes.
    pub fn moved_bytes(&self) -> u64 {
        self.moves.moved_bytes()
    }

    /// Advances the moves by one bounded step. Returns whether a pass has ended.
    pub(super) fn settle_moves(&mut self, effects: &mut Vec<Effect>) -> bool {
        let parts = self.parts.as_mut().expect("it is open");
        match self.moves.advance(parts) {
            NextStep::Nothing => {}
            NextStep::Begin => self.begin_moves(effects),
            NextStep::Ended => return true,
        }
        false
    }

    /// Begins to move blocks out of leaving segments.
    fn begin_moves(&mut self, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_ref().expect("it is open");
        for block in self.moves.next_blocks(parts) {
            match self.begin_move(block, effects) {
                Begun::Yes => {}
                Begun::Later => self.moves.postpone(block),
                Begun::Never => return self.return_places(),
            }
        }
        if self.moves.is_scanned() {
            self.return_places();
        }
    }

    /// Allocates a gap for the block, and starts to read the block.
    fn begin_move(&mut self, block: Candidate, effects: &mut Vec<Effect>) -> Begun {
        let Some(stamp) = Stamp::of_block(self.parts(), &block.key, AsOf::Stable) else {
            return Begun::Yes;
        };
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
        let id = self.moves.begin(block, stamp, location);
        let (parts, reads, mut io) = self.for_reads(effects);
        // A block moves with its stable content. Prepared versions go to the place that it has when they are
        // committed.
        let as_of = match planted::on(Bug::MoveCopiesView) {
            true => AsOf::View,
            false => AsOf::Stable,
        };
        reads.begin_copy(id, (block.key, as_of), &[], parts, &mut io);
        Begun::Yes
    }

    /// Whether the journal, memory and the disk have room for one more move.
    fn has_room_for_move(&mut self, size: BlockSize) -> bool {
        let parts = self.parts();
        if parts.journal.large_count() >= LARGE_IN_FLIGHT_MAX / 2 {
            self.wait_for_room(false);
            return false;
        }
        let reserve = parts.journal.size() / JOURNAL_SHARE;
        let units = (size.bytes() / UNIT_SIZE) as usize;
        let has_room = parts.has_room(EntryKind::RepairLarge, units, reserve);
        let may_go_on = self.has_memory() && has_room && !parts.blocks.area.holds_places();
        if !may_go_on {
            self.wait_for_room(true);
        }
        may_go_on && !self.disk.has_no_space()
    }

    /// Handles a missing gap: waits if a checkpoint or a reservation may provide one.
    fn wait_for_gap(&mut self, size: BlockSize) -> Begun {
        let frees_places = self.frees_places();
        let area = &mut self.parts_mut().blocks.area;
        if area.has_freed_of(size) {
            if frees_places {
                self.want_checkpoint();
            }
            return Begun::Later;
        }
        match area.wait_for_gap(size) {
            true => Begun::Later,
            false => Begun::Never,
        }
    }

    /// Ends the scan of a pass: everything movable was moved, and the next checkpoint frees the old places.
    fn return_places(&mut self) {
        // A checkpoint that is being made now still refers to the old places.
        let next = self.parts().root.sequence + 1;
        let sequence = next + u64::from(self.checkpoint.is_some());
        self.moves.return_places(sequence);
        self.want_checkpoint();
    }

    /// Removes the answers to the store's own requests from the effects, and handles them. Returns whether
    /// there were any.
    pub(super) fn take_own_answers(&mut self, from: usize, effects: &mut Vec<Effect>) -> bool {
        if !self.is_open() || !self.moves.has_moves() {
            return false;
        }
        let ends_own =
            |effect: &mut Effect| matches!(effect, Effect::Done { id, .. } if is_own(*id));
        let own: Vec<Effect> = effects.extract_if(from.., ends_own).collect();
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

    /// Handles the end of a move's read: journals the block at its gap, unless the block has changed since.
    fn on_move_read(&mut self, id: RequestId, content: Content, effects: &mut Vec<Effect>) {
        let moved = self.moves.on_read(id);
        let parts = self.parts();
        let is_same = Stamp::of_block(parts, &moved.key, AsOf::Stable) == Some(moved.stamp)
            || planted::on(Bug::MoveOverwritesNewer);
        let is_leaving = is_leaving(&parts.blocks.area, moved.stamp.info);
        // A damaged block waits for a repair; the place of an empty block is freed by the next checkpoint.
        if !is_leaving || self.moves.is_paused() || !is_movable(&content) {
            return self.drop_move(&moved);
        }
        if !is_same || !self.has_room_for_move(moved.stamp.info.block_size) {
            let parts = self.parts.as_mut().expect("it is open");
            return self.moves.drop_and_retry(&moved, &mut parts.blocks.area);
        }
        let BlockInfo { pg, .. } = moved.stamp.info;
        let pg = PgId { pool: moved.key.pool, number: u32::from(pg) };
        let old = self.parts().blocks.get(&moved.key);
        let asker = Asker { id, is_lazy: true };
        self.accept_move(asker, (pg, moved.key), content, (moved.location, old), effects);
        self.moves.on_journaled(id, moved);
    }

    fn drop_move(&mut self, moved: &Move) {
        let parts = self.parts.as_mut().expect("it is open");
        self.moves.drop_move(moved, &mut parts.blocks.area);
    }
}

/// The result of an attempt to begin a move.
enum Begun {
    /// The move has begun, or there is nothing to move.
    Yes,
    /// The move must wait for room or a gap.
    Later,
    /// No gap will become free.
    Never,
}

/// Whether the block has data and no damaged unit.
fn is_movable(content: &Content) -> bool {
    let Content::Block { damaged, data, .. } = content else { return false };
    data.is_some() && damaged.iter().all(|word| *word == 0)
}
