//! Deletion of an image's blocks, in portions: one answer each, when all of its deletes are
//! durable.
//!
//! Invariants
//!   1. A portion lists blocks when no older write of its image and no delete of its range is under way:
//!      what is in no list is gone durably.
//!   2. It is answered once, after all of its deletes.

use base::{ImageId, StripeIndex};
use blockstore::BlockKey;
use format::wire::{Outcome, Refusal};

use crate::operation::{Follower, WriteFor, WriteKind};
use crate::slots::{DeletionSlot, Slots};
use crate::store_calls::Call;
use crate::{Action, CallId, Listing, Pg, Ticket};

/// Most blocks that one portion deletes.
pub const DELETE_PORTION_MAX: usize = 256;

/// One portion.
struct Deletion {
    ticket: Ticket,
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

impl Deletion {
    fn concerns(&self, key: BlockKey) -> bool {
        key.image == self.image && key.stripe >= self.from
    }
}

/// All portions under way.
pub struct Deletions {
    portions: Slots<DeletionSlot, Deletion>,
    /// Where the last portion ended, if blocks may follow.
    cursor: Option<Cursor>,
}

/// A deletion of an image's blocks from a stripe on, up to the last block that was deleted.
#[derive(Clone, Copy)]
struct Cursor {
    image: ImageId,
    from: StripeIndex,
    last: BlockKey,
}

impl Deletions {
    pub fn new() -> Deletions {
        Deletions { portions: Slots::new(), cursor: None }
    }

    pub fn len(&self) -> usize {
        self.portions.len()
    }

    /// Clients that wait for a portion.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.portions.iter().map(|(_, portion)| portion.ticket)
    }

    /// The epoch is over. Blocks that were deleted stay deleted: the cursor stays.
    pub fn clear(&mut self) {
        self.portions.clear();
    }

    fn begin(
        &mut self,
        ticket: Ticket,
        image: ImageId,
        from: StripeIndex,
        order: u64,
    ) -> DeletionSlot {
        let stage = DeletionStage::Waiting;
        self.portions.insert(Deletion { ticket, image, from, order, stage })
    }

    /// Nothing stands before a portion any more: where its list begins. Blocks before the cursor are
    /// gone: the portions of a deletion walk over the PG once, and once more to see that nothing came
    /// behind them.
    fn begin_list(&mut self, slot: DeletionSlot, hashes: (u32, u32)) -> Listing {
        let portion = &mut self.portions[slot];
        assert!(portion.stage == DeletionStage::Waiting);
        let (image, from) = (portion.image, portion.from);
        let cursor = self.cursor.filter(|cursor| (cursor.image, cursor.from) == (image, from));
        let after = cursor.map(|cursor| cursor.last);
        portion.stage = DeletionStage::List { from_start: after.is_none() };
        Listing { hashes, image, from, after, count_max: DELETE_PORTION_MAX + 1 }
    }

    /// The list came; returns what of it this portion deletes.
    fn on_listed(&mut self, slot: DeletionSlot, mut keys: Vec<BlockKey>) -> Vec<BlockKey> {
        let is_last = keys.len() <= DELETE_PORTION_MAX;
        keys.truncate(DELETE_PORTION_MAX);
        let portion = &mut self.portions[slot];
        let DeletionStage::List { from_start } = portion.stage else {
            unreachable!("it waits for its list");
        };
        let (image, from, complete) = (portion.image, portion.from, is_last && from_start);
        let last = keys.last().filter(|_| !is_last);
        self.cursor = last.map(|last| Cursor { image, from, last: *last });
        // One more than there are blocks, so that the portion cannot end while they are handed on.
        let missing = keys.len() as u32 + 1;
        portion.stage = DeletionStage::Delete { missing, count: 0, complete, refusal: None };
        keys
    }

    /// A delete ended.
    fn on_deleted(&mut self, slot: DeletionSlot, outcome: Result<Outcome, Refusal>) {
        let DeletionStage::Delete { count, refusal, .. } = &mut self.portions[slot].stage else {
            unreachable!("its deletes are under way");
        };
        match outcome {
            Ok(_) => *count += 1,
            Err(error) => *refusal = Some(error),
        }
    }

    /// One thing less is missing. The answer, if it was the last.
    fn end_part(&mut self, slot: DeletionSlot) -> Option<(Ticket, Result<Outcome, Refusal>)> {
        let portion = &mut self.portions[slot];
        let DeletionStage::Delete { missing, count, complete, refusal } = &mut portion.stage else {
            unreachable!("its deletes are under way");
        };
        assert!(*missing > 0);
        *missing -= 1;
        if *missing > 0 {
            return None;
        }
        let outcome = match refusal.take() {
            Some(refusal) => Err(refusal),
            None => Ok(Outcome::Deleted { count: *count, complete: *complete }),
        };
        Some((self.portions.remove(slot).ticket, outcome))
    }

    /// Portions that have not begun and that `judge` refuses; they are forgotten.
    fn take_refused(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
    ) -> Vec<(DeletionSlot, Ticket, Refusal)> {
        let waiting =
            self.portions.iter().filter(|(_, portion)| portion.stage == DeletionStage::Waiting);
        let refused: Vec<_> = waiting
            .filter_map(|(slot, portion)| Some((slot, portion.ticket, judge(portion.ticket)?)))
            .collect();
        for (slot, _, _) in &refused {
            self.portions.remove(*slot);
        }
        refused
    }
}

impl Pg {
    pub(crate) fn delete(
        &mut self,
        ticket: Ticket,
        image: ImageId,
        from: StripeIndex,
        actions: &mut Vec<Action>,
    ) {
        let slot = self.deletions.begin(ticket, image, from, self.queue.order_next());
        self.start_deletion(slot, actions);
    }

    pub(crate) fn start_deletion(&mut self, slot: DeletionSlot, actions: &mut Vec<Action>) {
        let portion = &self.deletions.portions[slot];
        // A delete under way is in no list any more, but it may still be lost: the answer says that
        // the block is gone.
        let before = self.queue.before_deletion(portion.order, |key| portion.concerns(key));
        if let Some(write) = before {
            self.queue[write].followers.push(Follower::Deletion(slot));
            return;
        }
        let listing = self.deletions.begin_list(slot, self.shape.hashes());
        let call = self.calls.begin(Call::ListDeletion(slot));
        actions.push(Action::List { call, listing });
    }

    /// The node answers [`Action::List`]: blocks that exist (no tombstones), at most `count_max`;
    /// fewer only if there are no more.
    pub fn listed(&mut self, call: CallId, keys: Vec<BlockKey>, actions: &mut Vec<Action>) {
        let slot = match self.calls.end(call) {
            Call::ListDeletion(slot) => slot,
            Call::Dropped => return,
            _ => unreachable!("only a listing is answered by `listed`"),
        };
        for key in self.deletions.on_listed(slot, keys) {
            self.write(WriteFor::Deletion(slot), key, WriteKind::DELETE, None, actions);
        }
        self.end_deletion_part(slot, actions);
    }

    pub(crate) fn on_block_deleted(
        &mut self,
        slot: DeletionSlot,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        self.deletions.on_deleted(slot, outcome);
        self.end_deletion_part(slot, actions);
    }

    fn end_deletion_part(&mut self, slot: DeletionSlot, actions: &mut Vec<Action>) {
        if let Some((ticket, outcome)) = self.deletions.end_part(slot) {
            actions.push(Action::Reply { ticket, outcome });
        }
    }

    pub(crate) fn refuse_waiting_deletions(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        for (slot, ticket, refusal) in self.deletions.take_refused(judge) {
            self.queue.forget_follower(Follower::Deletion(slot));
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
        }
    }
}
