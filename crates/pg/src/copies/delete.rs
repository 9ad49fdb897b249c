//! Deletion of an image's blocks, in portions. Each portion gets one answer, when all of its deletes are
//! durable.
//!
//! Invariants
//!   1. A portion lists blocks when no older write to its image and no delete in its range is in flight: a
//!      block that is not in the list is durably gone.
//!   2. A portion is answered once, after all of its deletes.

use base::{ImageId, StripeIndex};
use blockstore::BlockKey;
use format::wire::{Outcome, Refusal};

use crate::operation::{Follower, WriteFor, WriteKind};
use crate::slots::{DeletionSlot, Slots};
use crate::store_calls::Call;
use crate::stripes::list::DeletionWalk;
use crate::{Action, CallId, Listing, Pg, Ticket};

/// Maximum number of blocks that one portion deletes.
pub const DELETE_PORTION_MAX: usize = 256;

/// One portion of a deletion.
struct Deletion {
    ticket: Ticket,
    image: ImageId,
    from: StripeIndex,
    /// The portion's place in the order of all writes of the PG: it waits for the older writes to its image.
    order: u64,
    /// The most blocks that it deletes.
    count_max: usize,
    stage: DeletionStage,
    /// In pools with parity: the walk that lists the portion's blocks.
    walk: Option<Box<DeletionWalk>>,
}

/// How far a portion has got. Top to bottom is the order in time.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DeletionStage {
    /// Waits for older writes to its image, which may create blocks, and for deletes in flight.
    Waiting,
    /// Waits for the list of blocks.
    List { from_start: bool },
    /// Waits until `missing` more deletes are durable. `count`: deletes that have succeeded. `complete`: no
    /// more blocks are left.
    Delete { missing: u32, count: u32, complete: bool, refusal: Option<Refusal> },
}

impl Deletion {
    fn concerns(&self, key: BlockKey) -> bool {
        key.image == self.image && key.stripe >= self.from
    }
}

/// All portions in progress.
pub struct Deletions {
    portions: Slots<DeletionSlot, Deletion>,
    /// Where the last portion ended, if more blocks may follow.
    cursor: Option<Cursor>,
    /// The most blocks that a portion deletes that begins now.
    count_max: usize,
}

/// How far the deletion of an image's blocks from stripe `from` on has got.
#[derive(Clone, Copy)]
struct Cursor {
    image: ImageId,
    from: StripeIndex,
    last: BlockKey,
}

impl Deletions {
    pub fn new() -> Deletions {
        Deletions { portions: Slots::new(), cursor: None, count_max: DELETE_PORTION_MAX }
    }

    pub fn len(&self) -> usize {
        self.portions.len()
    }

    /// Returns the tickets of all portions.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.portions.iter().map(|(_, portion)| portion.ticket)
    }

    /// Forgets all portions: the epoch is over. The cursor stays, because deleted blocks stay deleted.
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
        let (count_max, stage) = (self.count_max, DeletionStage::Waiting);
        let portion = Deletion { ticket, image, from, order, count_max, stage, walk: None };
        self.portions.insert(portion)
    }

    /// Begins a portion that no longer waits for anything; returns the listing that it needs. Blocks up to
    /// the cursor are gone. So the portions of one deletion walk over the PG once, and a second time to check
    /// that no block appeared in the range already passed.
    fn begin_list(&mut self, slot: DeletionSlot, hashes: (u32, u32)) -> Listing {
        let portion = &mut self.portions[slot];
        assert!(portion.stage == DeletionStage::Waiting);
        let (image, from) = (portion.image, portion.from);
        let cursor = self.cursor.filter(|cursor| (cursor.image, cursor.from) == (image, from));
        let after = cursor.map(|cursor| cursor.last);
        portion.stage = DeletionStage::List { from_start: after.is_none() };
        Listing { hashes, image, from, after, count_max: portion.count_max + 1 }
    }

    /// Accepts the list of blocks; returns those that this portion deletes.
    fn on_listed(&mut self, slot: DeletionSlot, mut keys: Vec<BlockKey>) -> Vec<BlockKey> {
        let portion = &mut self.portions[slot];
        let is_last = keys.len() <= portion.count_max;
        keys.truncate(portion.count_max);
        portion.walk = None;
        let DeletionStage::List { from_start } = portion.stage else {
            unreachable!("the portion waits for its list");
        };
        let (image, from, complete) = (portion.image, portion.from, is_last && from_start);
        let last = keys.last().filter(|_| !is_last);
        self.cursor = last.map(|last| Cursor { image, from, last: *last });
        // One more than the number of blocks, so that the portion cannot end while its deletes are being
        // issued.
        let missing = keys.len() as u32 + 1;
        portion.stage = DeletionStage::Delete { missing, count: 0, complete, refusal: None };
        keys
    }

    /// Sets the walk that lists a portion's blocks from several members.
    pub fn set_walk(&mut self, slot: DeletionSlot, walk: Box<DeletionWalk>) {
        self.portions[slot].walk = Some(walk);
    }

    /// Returns the walk that lists a portion's blocks, if there is one.
    pub fn walk(&mut self, slot: DeletionSlot) -> Option<&mut DeletionWalk> {
        self.portions.get_mut(slot)?.walk.as_deref_mut()
    }

    /// Notes how a delete ended.
    fn on_deleted(&mut self, slot: DeletionSlot, outcome: Result<Outcome, Refusal>) {
        let DeletionStage::Delete { count, refusal, .. } = &mut self.portions[slot].stage else {
            unreachable!("the portion's deletes are under way");
        };
        match outcome {
            Ok(_) => *count += 1,
            Err(error) => *refusal = Some(error),
        }
    }

    /// Counts one missing part as done. Returns the portion's answer if it was the last part.
    fn end_part(&mut self, slot: DeletionSlot) -> Option<(Ticket, Result<Outcome, Refusal>)> {
        let portion = &mut self.portions[slot];
        let DeletionStage::Delete { missing, count, complete, refusal } = &mut portion.stage else {
            unreachable!("the portion's deletes are under way");
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

    /// Removes and returns the portions that have not begun and for which `judge` returns a refusal.
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
    /// Sets the most blocks that a portion deletes that begins now: with parity each of these deletions is
    /// prepared, so the members must have room for all of them.
    pub fn limit_deletion(&mut self, count_max: usize) {
        assert!(count_max > 0);
        assert!(count_max <= DELETE_PORTION_MAX);
        self.deletions.count_max = count_max;
    }

    /// Returns whether no change is in progress, and all acting members have everything before durably: once
    /// they know the mark, none of the PG's versions is only prepared.
    pub fn has_committed_all(&self) -> bool {
        self.queue.open_count() == 0
            && self.deletions.len() == 0
            && self.versions.ended().counter == self.versions.begun()
    }

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
        // A block whose delete is in flight is no longer listed, but the delete may still be lost. The answer
        // must mean that the block is gone, so wait for the delete.
        let before = self.queue.before_deletion(portion.order, |key| portion.concerns(key));
        if let Some(write) = before {
            self.queue[write].followers.push(Follower::Deletion(slot));
            return;
        }
        if let Some(walk) = self.deletions.walk(slot)
            && let Some(keys) = walk.take_keys()
        {
            return self.on_deletion_listed(slot, keys, actions);
        }
        let listing = self.deletions.begin_list(slot, self.shape.hashes());
        if self.stripes().is_some() {
            return self.list_stripes(slot, listing, actions);
        }
        let call = self.calls.begin(Call::ListDeletion(slot));
        actions.push(Action::List { call, listing });
    }

    /// Handles the node's answer to [`Action::List`]: blocks that exist (no tombstones), at most `count_max`,
    /// and fewer only if there are no more.
    pub fn listed(&mut self, call: CallId, keys: Vec<BlockKey>, actions: &mut Vec<Action>) {
        let slot = match self.calls.end(call) {
            Call::ListDeletion(slot) => slot,
            Call::Dropped => return,
            _ => unreachable!("only a listing is answered by `listed`"),
        };
        self.on_deletion_listed(slot, keys, actions);
    }

    /// Handles the list of blocks that a portion deletes.
    pub(crate) fn on_deletion_listed(
        &mut self,
        slot: DeletionSlot,
        keys: Vec<BlockKey>,
        actions: &mut Vec<Action>,
    ) {
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
