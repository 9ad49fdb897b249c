//! Everything that changes a block: writes, zeroes and deletions.

use std::ops::Range;

use base::{Buffer, Checksum, UNIT_SIZE, Version};
use blockstore::{Answer, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Outcome, Refusal};

use super::{Action, Call, MemberSet, Pg, Ticket, has_unit, refusal_of, units_of};

/// One write at its primary.
pub struct Write {
    pub issuer: WriteFor,
    pub key: BlockKey,
    /// Its place in the order of all writes of the PG.
    pub order: u64,
    /// The units it changes.
    pub units: Range<u32>,
    kind: WriteKind,
    stage: WriteStage,
    /// What waits for its end.
    pub followers: Vec<Follower>,
}

/// Who is told that a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFor {
    /// A client.
    Client(Ticket),
    /// A deletion by range.
    Deletion(usize),
}

/// What is to be done to the block.
pub enum WriteKind {
    /// Put data; with `expected`, only if the block has that version.
    Write { offset: u32, checksums: Vec<Checksum>, data: Buffer, expected: Option<Version> },
    /// Make a range read as zeros.
    Zero { offset: u32, length: u32 },
    /// Delete the block.
    Delete,
    /// Its data is with the members.
    HandedOver,
}

/// How far a write has come. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteStage {
    /// Waits for earlier writes of its block.
    Queued,
    /// Waits for the block's version and allocation. Compare-and-set, zero and delete only.
    Examine,
    /// Waits until every member of the acting set has made `version` durable.
    Replicate { missing: MemberSet, version: Version },
    /// Durable everywhere, or found needless: the block has `version`.
    Done { version: Version },
}

/// What waits for the end of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follower {
    /// A read of the same units.
    Read(usize),
    /// A deletion of the same image.
    Deletion(usize),
}

/// This OSD's index in an acting set of one.
const SELF_INDEX: usize = 0;

impl WriteKind {
    /// Whether the block must be known before the write can start.
    fn needs_examination(&self) -> bool {
        match self {
            WriteKind::Write { expected, .. } => expected.is_some(),
            WriteKind::Zero { .. } | WriteKind::Delete => true,
            WriteKind::HandedOver => false,
        }
    }
}

impl Pg {
    pub(crate) fn write(
        &mut self,
        issuer: WriteFor,
        key: BlockKey,
        kind: WriteKind,
        actions: &mut Vec<Action>,
    ) {
        let (first, end) = match &kind {
            WriteKind::Write { offset, data, .. } => units_of(*offset, data.len() as u32),
            WriteKind::Zero { offset, length } => units_of(*offset, *length),
            WriteKind::Delete | WriteKind::HandedOver => (0, self.shape.block_size.unit_count()),
        };
        assert!(first < end);
        let order = self.queued_next;
        self.queued_next += 1;
        let slot = self.writes.insert(Write {
            issuer,
            key,
            order,
            units: first..end,
            kind,
            stage: WriteStage::Queued,
            followers: Vec::new(),
        });
        self.queue.insert((key, order), slot);
        self.start_writes(key, actions);
    }

    /// Starts the writes of a block that need wait no longer.
    fn start_writes(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        while let Some(slot) = self.startable(key) {
            self.advance_write(slot, actions);
        }
    }

    /// The oldest queued write of a block, if nothing stands before it.
    fn startable(&self, key: BlockKey) -> Option<usize> {
        let mut is_first = true;
        for (_, slot) in self.queue.range((key, 0)..=(key, u64::MAX)) {
            let write = &self.writes[*slot];
            match write.stage {
                WriteStage::Queued if is_first || !write.kind.needs_examination() => {
                    return Some(*slot);
                }
                WriteStage::Queued | WriteStage::Examine => return None,
                WriteStage::Replicate { .. } | WriteStage::Done { .. } => is_first = false,
            }
        }
        None
    }

    /// Moves a write to its next stage. The caller has seen that what the stage waits for came.
    fn advance_write(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let write = &mut self.writes[slot];
        match write.stage {
            WriteStage::Queued if write.kind.needs_examination() => {
                write.stage = WriteStage::Examine;
                let request = StoreRequest::Extents { key: write.key };
                self.call(Call::Examine(slot), request, actions);
            }
            WriteStage::Queued | WriteStage::Examine => self.replicate(slot, actions),
            WriteStage::Replicate { missing, version } => {
                assert!(missing.is_empty());
                self.window.end(version);
                write.stage = WriteStage::Done { version };
                self.advance_write(slot, actions);
            }
            WriteStage::Done { version } => {
                self.end_write(slot, Ok(Outcome::Written { version, durable: true }), actions);
            }
        }
    }

    /// Gives the write its version and hands it to every member.
    fn replicate(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let epoch = self.epoch_served();
        let version = self.newest.next_in(epoch);
        assert!(version > self.newest);
        let write = &mut self.writes[slot];
        let kind = std::mem::replace(&mut write.kind, WriteKind::HandedOver);
        write.stage = WriteStage::Replicate { missing: MemberSet::all(self.member_count), version };
        let (pg, key, block_size) = (self.shape.pg, write.key, self.shape.block_size);
        let request = match kind {
            WriteKind::Write { offset, checksums, data, .. } => {
                assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
                StoreRequest::Write { pg, key, block_size, version, offset, checksums, data }
            }
            WriteKind::Zero { offset, length } => {
                StoreRequest::Zero { pg, key, block_size, version, offset, length }
            }
            WriteKind::Delete => {
                self.has_tombstones = true;
                StoreRequest::Delete { pg, key, version }
            }
            WriteKind::HandedOver => unreachable!("a write is handed over once"),
        };
        self.newest = version;
        self.window.begin(version);
        self.call(Call::Write(slot), request, actions);
    }

    /// The block of a compare-and-set, zero or delete is known; no other write of it is under way.
    pub(crate) fn examined(
        &mut self,
        slot: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let (version, held) = match result {
            Ok(Answer::Extents { version, mut written, damaged }) => {
                merge_bitmaps(&mut written, &damaged);
                (version, written)
            }
            Ok(_) => unreachable!("the store answers extents with extents"),
            Err(error) => return self.end_write(slot, Err(refusal_of(error)), actions),
        };
        let write = &mut self.writes[slot];
        assert!(write.stage == WriteStage::Examine);
        if let WriteKind::Write { expected: Some(expected), .. } = write.kind
            && expected != version
        {
            return self.end_write(slot, Err(Refusal::CompareFailed { version }), actions);
        }
        let is_removal = !matches!(write.kind, WriteKind::Write { .. });
        if is_removal && !write.units.clone().any(|unit| has_unit(&held, unit)) {
            write.stage = WriteStage::Done { version };
        } else if is_removal && !holds_outside(&held, &write.units) {
            write.kind = WriteKind::Delete;
        }
        self.advance_write(slot, actions);
    }

    /// The local member ended its part.
    pub(crate) fn written(
        &mut self,
        slot: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let write = &mut self.writes[slot];
        let WriteStage::Replicate { missing, version } = &mut write.stage else {
            unreachable!("only a replicated write is at the store");
        };
        if let Err(error) = result {
            // The store changed nothing and no other member has it: the version is void.
            let version = *version;
            self.window.end(version);
            return self.end_write(slot, Err(refusal_of(error)), actions);
        }
        missing.remove(SELF_INDEX);
        if missing.is_empty() {
            self.advance_write(slot, actions);
        }
    }

    fn end_write(
        &mut self,
        slot: usize,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let key = self.remove_write(slot, outcome, actions);
        self.start_writes(key, actions);
        self.journal_when_drained(actions);
    }

    /// Answers a write and lets its followers go on; later writes of its block are not started.
    fn remove_write(
        &mut self,
        slot: usize,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) -> BlockKey {
        let write = self.writes.remove(slot);
        let removed = self.queue.remove(&(write.key, write.order));
        assert!(removed == Some(slot));
        match write.issuer {
            WriteFor::Client(ticket) => actions.push(Action::Reply { ticket, outcome }),
            WriteFor::Deletion(deletion) => self.block_deleted(deletion, outcome, actions),
        }
        for follower in write.followers {
            match follower {
                Follower::Read(read) => self.start_read(read, actions),
                Follower::Deletion(deletion) => self.start_deletion(deletion, actions),
            }
        }
        write.key
    }

    /// The newest unfinished write of a block, older than `order`, that changes one of `units`.
    pub(crate) fn write_before(
        &self,
        key: BlockKey,
        units: &Range<u32>,
        order: u64,
    ) -> Option<usize> {
        let older = self.queue.range((key, 0)..(key, order));
        older.rev().map(|(_, slot)| *slot).find(|slot| {
            let write = &self.writes[*slot].units;
            write.start < units.end && units.start < write.end
        })
    }

    pub(crate) fn refuse_queued_writes(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let mut refused = Vec::new();
        for (slot, write) in &self.writes {
            if let WriteFor::Client(ticket) = write.issuer
                && write.stage == WriteStage::Queued
                && let Some(refusal) = judge(ticket)
            {
                refused.push((slot, refusal));
            }
        }
        // All go before any other starts: what one made way for may be refused as well.
        let mut keys = Vec::new();
        for (slot, refusal) in refused {
            keys.push(self.remove_write(slot, Err(refusal), actions));
        }
        for key in keys {
            self.start_writes(key, actions);
        }
        self.journal_when_drained(actions);
    }
}

/// Adds the bits of `other` to `bitmap`.
pub fn merge_bitmaps(bitmap: &mut Vec<u64>, other: &[u64]) {
    if bitmap.len() < other.len() {
        bitmap.resize(other.len(), 0);
    }
    for (word, more) in bitmap.iter_mut().zip(other) {
        *word |= more;
    }
}

/// Whether a unit outside of `units` holds something.
fn holds_outside(held: &[u64], units: &Range<u32>) -> bool {
    let unit_count = held.len() as u32 * 64;
    (0..units.start).chain(units.end..unit_count).any(|unit| has_unit(held, unit))
}
