//! Deletion of an image's blocks, in portions: one answer each, when all of its deletes are
//! durable.

use base::{ImageId, StripeIndex};
use blockstore::BlockKey;
use format::wire::{Outcome, Refusal};

use crate::operation::{Follower, WriteFor, WriteKind};
use crate::{Action, Call, CallId, Listing, Pg, Ticket};

/// Most blocks that one portion deletes.
pub const DELETE_PORTION_MAX: usize = 256;

/// One portion.
pub struct Deletion {
    pub ticket: Ticket,
    image: ImageId,
    from: StripeIndex,
    /// Its place in the order of all writes of the PG: it follows the older ones of its image.
    order: u64,
    stage: DeletionStage,
}

/// How far a portion has come. Top to bottom is the order in time.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DeletionStage {
    /// Waits for older writes of its image, which may make blocks, and for deletes under way.
    Waiting,
    /// Waits for the list of blocks.
    List { from_start: bool },
    /// Waits until so many deletes are durable.
    Delete { missing: u32, count: u32, complete: bool, refusal: Option<Refusal> },
}

impl Pg {
    pub(crate) fn delete(
        &mut self,
        ticket: Ticket,
        image: ImageId,
        from: StripeIndex,
        actions: &mut Vec<Action>,
    ) {
        let order = self.queued_next;
        let stage = DeletionStage::Waiting;
        let slot = self.deletions.insert(Deletion { ticket, image, from, order, stage });
        self.start_deletion(slot, actions);
    }

    pub(crate) fn start_deletion(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let deletion = &self.deletions[slot];
        assert!(deletion.stage == DeletionStage::Waiting);
        // A delete under way is in no list any more, but it may still be lost: the answer says that
        // the block is gone.
        let before = self.queue.iter().find(|((key, order), write)| {
            let write = &self.writes[**write];
            let is_there = key.image == deletion.image && key.stripe >= deletion.from;
            let counts = *order < deletion.order || write.version().is_some();
            is_there && counts && !write.units.is_empty()
        });
        if let Some((_, write)) = before {
            self.writes[*write].followers.push(Follower::Deletion(slot));
            return;
        }
        // Blocks before the cursor are gone: the portions of a deletion walk over the PG once, and
        // once more to see that nothing came behind them.
        let after = self.deletion_cursor.and_then(|(image, from, last)| {
            (image == deletion.image && from == deletion.from).then_some(last)
        });
        let listing = Listing {
            hashes: self.hashes(),
            image: deletion.image,
            from: deletion.from,
            after,
            count_max: DELETE_PORTION_MAX + 1,
        };
        self.deletions[slot].stage = DeletionStage::List { from_start: after.is_none() };
        let call = CallId(self.calls.insert(Call::List(slot)) as u32);
        actions.push(Action::List { call, listing });
    }

    /// The node answers [`Action::List`]: blocks that exist (no tombstones), at most `count_max`;
    /// fewer only if there are no more.
    pub fn listed(&mut self, call: CallId, mut keys: Vec<BlockKey>, actions: &mut Vec<Action>) {
        let slot = match self.calls.remove(call.0 as usize) {
            Call::List(slot) => slot,
            Call::Dropped => return,
            _ => unreachable!("only a listing is answered by `listed`"),
        };
        let is_last = keys.len() <= DELETE_PORTION_MAX;
        keys.truncate(DELETE_PORTION_MAX);
        let deletion = &mut self.deletions[slot];
        let DeletionStage::List { from_start } = deletion.stage else {
            unreachable!("it waits for its list");
        };
        let complete = is_last && from_start;
        let last = keys.last().filter(|_| !is_last);
        self.deletion_cursor = last.map(|last| (deletion.image, deletion.from, *last));
        // One more than there are blocks, so that the portion cannot end while they are handed on.
        let missing = keys.len() as u32 + 1;
        deletion.stage = DeletionStage::Delete { missing, count: 0, complete, refusal: None };
        for key in keys {
            self.write(WriteFor::Deletion(slot), key, WriteKind::Delete, None, actions);
        }
        self.end_of_deletion_part(slot, actions);
    }

    pub(crate) fn on_block_deleted(
        &mut self,
        slot: usize,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let DeletionStage::Delete { count, refusal, .. } = &mut self.deletions[slot].stage else {
            unreachable!("its deletes are under way");
        };
        match outcome {
            Ok(_) => *count += 1,
            Err(error) => *refusal = Some(error),
        }
        self.end_of_deletion_part(slot, actions);
    }

    fn end_of_deletion_part(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let DeletionStage::Delete { missing, count, complete, refusal } =
            &mut self.deletions[slot].stage
        else {
            unreachable!("its deletes are under way");
        };
        *missing -= 1;
        if *missing > 0 {
            return;
        }
        let outcome = match refusal.take() {
            Some(refusal) => Err(refusal),
            None => Ok(Outcome::Deleted { count: *count, complete: *complete }),
        };
        let deletion = self.deletions.remove(slot);
        actions.push(Action::Reply { ticket: deletion.ticket, outcome });
    }

    pub(crate) fn refuse_waiting_deletions(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let mut refused = Vec::new();
        for (slot, deletion) in &self.deletions {
            if deletion.stage == DeletionStage::Waiting
                && let Some(refusal) = judge(deletion.ticket)
            {
                refused.push((slot, refusal));
            }
        }
        for (slot, refusal) in refused {
            self.forget_follower(Follower::Deletion(slot));
            let ticket = self.deletions.remove(slot).ticket;
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
        }
    }

    pub(crate) fn forget_follower(&mut self, gone: Follower) {
        for (_, write) in &mut self.writes {
            write.followers.retain(|follower| *follower != gone);
        }
    }
}
