//! Unfinished writes at their primary: for each block the order in which they arrived, and how far each has
//! got.
//!
//! ```text
//!   Write  ──────────▶ Queued ───────────────▶ Replicate ──all members──▶ Done
//!   Zero, CAS, Delete ▶ Queued ──▶ Examine ──▶ Replicate ...
//! ```
//!
//! Invariants
//!   1. A write is in `order` from [`WriteQueue::push`] to [`WriteQueue::take`], under its block and its
//!      place among all operations of the PG.
//!   2. Places only grow. An operation that is not a write shares the place of the next write: it follows all
//!      writes that arrived before it.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut, Range};

use base::Version;
use base::planted::{self, Bug};
use blockstore::BlockKey;
use format::wire::Change;

use super::operation::{Follower, WriteFor, WriteKind};
use super::slots::{Slots, WriteSlot};
use super::stripes::patch::Patch;
use super::stripes::read::StripeRead;
use super::{MemberSet, Ticket};

/// One write at its primary.
pub struct Write {
    pub issuer: WriteFor,
    pub key: BlockKey,
    /// The write's place in the order of all operations of the PG.
    pub order: u64,
    /// The units that the write changes.
    pub units: Range<u32>,
    /// How many units it and those that were merged into it were charged for, of any one block; 0 for what
    /// deletes.
    pub changed_units: u32,
    /// Whether it was charged for space.
    pub brings: bool,
    pub kind: WriteKind,
    pub stage: WriteStage,
    /// In pools with parity: the write's change, once the write has begun.
    pub patch: Option<Box<Patch>>,
    /// In pools with parity: the state of a read that waits for older layers.
    pub read: Option<Box<StripeRead>>,
    /// Writes that were merged into this one and end with it.
    pub merged: Vec<WriteFor>,
    /// Operations that wait for the write to end.
    pub followers: Vec<Follower>,
}

/// How far a write has got. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteStage {
    /// Waits for earlier writes to its block.
    Queued,
    /// Waits for the block's version and allocation, or for the end of a hold.
    Examine,
    /// Waits until every member that must acknowledge has made `version` durable or, if `lazy`, has it.
    /// `durable`: all copies acknowledged so far are durable.
    Replicate { missing: MemberSet, version: Version, lazy: bool, durable: bool },
    /// Ended, because it was acknowledged or had nothing to change. The block has `version`.
    Done { version: Version, durable: bool },
}

impl Write {
    /// Returns the write's version, while it is replicated.
    pub fn version(&self) -> Option<Version> {
        match self.stage {
            WriteStage::Replicate { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Returns whether the write is being replicated and may be answered before it is durable.
    pub fn is_lazy(&self) -> bool {
        matches!(self.stage, WriteStage::Replicate { lazy: true, .. })
    }

    /// Returns whether the write has its version and this member has not answered it.
    pub fn is_missing(&self, index: usize) -> bool {
        match self.stage {
            WriteStage::Replicate { missing, .. } => missing.has(index),
            _ => false,
        }
    }

    fn overlaps(&self, units: &Range<u32>) -> bool {
        self.units.start < units.end && units.start < self.units.end
    }
}

/// All unfinished writes.
pub struct WriteQueue {
    writes: Slots<WriteSlot, Write>,
    /// The writes by block, then by place.
    order: BTreeMap<(BlockKey, u64), WriteSlot>,
    /// The place of the next write.
    order_next: u64,
}

impl WriteQueue {
    pub fn new() -> WriteQueue {
        WriteQueue { writes: Slots::new(), order: BTreeMap::new(), order_next: 0 }
    }

    /// Adds a write after all others of its block.
    pub fn push(
        &mut self,
        issuer: WriteFor,
        key: BlockKey,
        kind: WriteKind,
        units: Range<u32>,
        follower: Option<Follower>,
    ) -> WriteSlot {
        let order = self.order_next;
        self.order_next += 1;
        let (stage, followers) = (WriteStage::Queued, follower.into_iter().collect());
        let (patch, read, merged) = (None, None, Vec::new());
        let (changed_units, brings) = kind.charged(&units);
        let write = Write {
            issuer,
            key,
            order,
            units,
            changed_units,
            brings,
            kind,
            stage,
            patch,
            read,
            merged,
            followers,
        };
        let slot = self.writes.insert(write);
        self.order.insert((key, order), slot);
        slot
    }

    /// Removes and returns a write that has ended.
    pub fn take(&mut self, slot: WriteSlot) -> Write {
        let write = self.writes.remove(slot);
        let removed = self.order.remove(&(write.key, write.order));
        assert!(removed == Some(slot));
        write
    }

    /// Removes all writes: the epoch is over. Places keep growing.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.order.clear();
    }

    /// Returns the place of an operation that arrives now and follows all earlier writes.
    pub fn order_next(&self) -> u64 {
        self.order_next
    }

    pub fn get(&self, slot: WriteSlot) -> Option<&Write> {
        self.writes.get(slot)
    }

    pub fn iter(&self) -> impl Iterator<Item = (WriteSlot, &Write)> {
        self.writes.iter()
    }

    /// Returns the oldest queued write of a block, if it may start. `needs_nothing`: returns whether a write
    /// may start while earlier writes to its block are being replicated.
    pub fn startable(
        &self,
        key: BlockKey,
        needs_nothing: impl Fn(&Write) -> bool,
    ) -> Option<WriteSlot> {
        let mut is_first = true;
        for (_, slot) in self.order.range((key, 0)..=(key, u64::MAX)) {
            let write = &self.writes[*slot];
            match write.stage {
                WriteStage::Queued if is_first || needs_nothing(write) => return Some(*slot),
                WriteStage::Queued | WriteStage::Examine => return None,
                WriteStage::Replicate { .. } | WriteStage::Done { .. } => is_first = false,
            }
        }
        None
    }

    /// Returns the operation that directly follows this write on its block, if it is a client's unconditional
    /// write that is still queued.
    pub fn mergeable(&self, slot: WriteSlot) -> Option<WriteSlot> {
        let Write { key, order, .. } = self.writes[slot];
        let (_, next) = self.order.range((key, order + 1)..=(key, u64::MAX)).next()?;
        let write = &self.writes[*next];
        let is_plain = matches!(
            write.kind,
            WriteKind::Change { change: Change::Write { .. }, expected: None, .. }
        );
        let is_waiting = write.stage == WriteStage::Queued && write.issuer.ticket().is_some();
        (is_plain && is_waiting).then_some(*next)
    }

    /// Returns the number of operations that are unfinished, merged ones included.
    pub fn open_count(&self) -> usize {
        self.writes.iter().map(|(_, write)| 1 + write.merged.len()).sum()
    }

    /// Returns whether this write is the oldest unfinished one of its block.
    pub fn is_first(&self, slot: WriteSlot) -> bool {
        let Write { key, order, .. } = self.writes[slot];
        self.order.range((key, 0)..(key, order)).next().is_none()
    }

    /// Returns whether another operation on the block waits for this write.
    pub fn is_awaited(&self, slot: WriteSlot) -> bool {
        let Write { key, order, .. } = self.writes[slot];
        self.order.range((key, order + 1)..=(key, u64::MAX)).next().is_some()
    }

    /// Returns the newest unfinished write to a block that is older than `order` and changes one of `units`.
    pub fn before(&self, key: BlockKey, units: &Range<u32>, order: u64) -> Option<WriteSlot> {
        if planted::on(Bug::ReadOfUnfinishedWrite) {
            return None;
        }
        let older = self.order.range((key, 0)..(key, order));
        older.rev().map(|(_, slot)| *slot).find(|slot| self.writes[*slot].overlaps(units))
    }

    /// Returns an unfinished write to a block that is not older than `order`, changes one of `units`, and is
    /// included in version `seen` of the block.
    pub fn seen(
        &self,
        key: BlockKey,
        units: &Range<u32>,
        order: u64,
        seen: Version,
    ) -> Option<WriteSlot> {
        let newer = self.order.range((key, order)..=(key, u64::MAX));
        newer.map(|(_, slot)| *slot).find(|slot| {
            let write = &self.writes[*slot];
            write.version().is_some_and(|version| version <= seen) && write.overlaps(units)
        })
    }

    /// Returns an unfinished write that a deletion must wait for: one to a block for which `is_concerned`
    /// returns true, and that is either older than `order` or being replicated.
    pub fn before_deletion(
        &self,
        order: u64,
        is_concerned: impl Fn(BlockKey) -> bool,
    ) -> Option<WriteSlot> {
        let found = self.order.iter().find(|((key, place), slot)| {
            let write = &self.writes[**slot];
            let counts = *place < order || write.version().is_some();
            is_concerned(*key) && counts && !write.units.is_empty()
        });
        found.map(|(_, slot)| *slot)
    }

    /// Returns whether a write that is older than `order`, and changes something, is unfinished.
    pub fn has_change_before(&self, order: u64) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|(_, write)| write.order < order && !write.kind.changes_nothing())
    }

    /// Returns the clients' writes that have not started.
    pub fn queued_of_clients(&self) -> impl Iterator<Item = (WriteSlot, Ticket)> + '_ {
        let queued = self.writes.iter().filter(|(_, write)| write.stage == WriteStage::Queued);
        queued.filter_map(|(slot, write)| write.issuer.ticket().map(|ticket| (slot, ticket)))
    }

    /// Returns the tickets of the clients that wait for writes.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let issuers = self.writes.iter();
        let issuers = issuers.flat_map(|(_, write)| write.merged.iter().chain([&write.issuer]));
        issuers.filter_map(|issuer| issuer.ticket())
    }

    /// Removes a follower that no longer waits from all writes.
    pub fn forget_follower(&mut self, gone: Follower) {
        for write in self.writes.values_mut() {
            write.followers.retain(|follower| *follower != gone);
        }
    }
}

impl Index<WriteSlot> for WriteQueue {
    type Output = Write;

    fn index(&self, slot: WriteSlot) -> &Write {
        &self.writes[slot]
    }
}

impl IndexMut<WriteSlot> for WriteQueue {
    fn index_mut(&mut self, slot: WriteSlot) -> &mut Write {
        &mut self.writes[slot]
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    use super::*;

    fn key(stripe: u32) -> BlockKey {
        let (image, stripe) = (ImageId::FIRST, StripeIndex::new(stripe));
        BlockKey { pool: PoolId::FIRST, hash: 1, image, stripe }
    }

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn push(queue: &mut WriteQueue, stripe: u32, units: Range<u32>) -> WriteSlot {
        let ticket = Ticket(queue.order_next() as u32);
        queue.push(WriteFor::Client(ticket), key(stripe), WriteKind::DELETE, units, None)
    }

    fn replicate(queue: &mut WriteQueue, slot: WriteSlot, counter: u64) {
        let (missing, version) = (MemberSet::all(2), version(counter));
        queue[slot].stage = WriteStage::Replicate { missing, version, lazy: false, durable: true };
    }

    #[test]
    fn a_write_that_must_know_its_block_starts_when_earlier_ones_have_ended() {
        let mut queue = WriteQueue::new();
        let (first, second) = (push(&mut queue, 1, 0..1), push(&mut queue, 1, 0..1));
        assert_eq!(queue.startable(key(1), |_| false), Some(first));
        replicate(&mut queue, first, 1);
        assert_eq!(queue.startable(key(1), |_| false), None);
        assert_eq!(queue.startable(key(1), |_| true), Some(second), "it need not know its block");
        assert!(!queue.is_first(second));
        queue.take(first);
        assert_eq!(queue.startable(key(1), |_| false), Some(second));
        assert_eq!(queue.startable(key(2), |_| true), None);
    }

    #[test]
    fn a_read_finds_the_newest_write_before_it_and_the_writes_that_overtook_it() {
        let mut queue = WriteQueue::new();
        let (first, second) = (push(&mut queue, 1, 0..2), push(&mut queue, 1, 1..2));
        let place = queue.order_next();
        let later = push(&mut queue, 1, 0..1);
        assert_eq!(queue.before(key(1), &(0..1), place), Some(first));
        assert_eq!(queue.before(key(1), &(1..2), place), Some(second));
        assert_eq!(queue.before(key(1), &(2..3), place), None);
        assert_eq!(queue.seen(key(1), &(0..1), place, version(3)), None, "it has no version yet");
        replicate(&mut queue, later, 3);
        assert_eq!(queue.seen(key(1), &(0..1), place, version(2)), None);
        assert_eq!(queue.seen(key(1), &(0..1), place, version(3)), Some(later));
    }
}
