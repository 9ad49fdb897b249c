//! Reads of data and allocation, over one layer or a chain of them.

use std::ops::Range;

use base::{Buffer, Checksum, ImageId, UNIT_SIZE, Version};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Outcome, Refusal};

use super::chain::{BlockSeen, Chain};
use crate::operation::{Follower, Wants};
use crate::slots::{ReadSlot, WriteSlot};
use crate::store_calls::Call;
use crate::units::units_of;
use crate::{Action, Pg, Ticket, refusal_of};

/// One read.
pub struct Read {
    pub ticket: Ticket,
    /// The newest layer's block.
    key: BlockKey,
    /// Older layers, newest first.
    parents: Vec<ImageId>,
    wants: Wants,
    /// The read's place in the order of all writes of the PG: it waits for the older writes to its units.
    order: u64,
    /// How many more times the read may have units that this OSD lost restored from other members.
    mends_left: usize,
    pub(super) stage: ReadStage,
}

impl Read {
    pub(super) fn key(&self) -> BlockKey {
        self.key
    }

    pub(super) fn wants(&self) -> Wants {
        self.wants
    }
}

/// How far a read has got. Top to bottom is the order in time.
pub(super) enum ReadStage {
    /// Waits for the end of a write to its units in one of its layers.
    Waiting,
    /// Waits for the allocation of every layer.
    Examine(Box<Chain>),
    /// Waits for data of several parts.
    FetchParts(Box<Chain>),
    /// Waits for data of the only layer.
    Fetch,
    /// Waits for data of the only layer from another member, because this OSD's disk is slow.
    FetchElsewhere {
        /// The member's index.
        index: usize,
        /// The number of the request to it.
        call: u32,
    },
    /// The answer contains the effect of later writes. The read waits until all members hold those writes.
    Overtaken(Outcome, Vec<BlockSeen>),
}

impl Pg {
    pub(crate) fn read(
        &mut self,
        ticket: Ticket,
        key: BlockKey,
        parents: Vec<ImageId>,
        wants: Wants,
        actions: &mut Vec<Action>,
    ) {
        let order = self.queue.order_next();
        let stage = ReadStage::Waiting;
        let mends_left = 1 + parents.len();
        let read = Read { ticket, key, parents, wants, order, mends_left, stage };
        let slot = self.reads.insert(read);
        self.start_read(slot, actions);
    }

    /// Starts a read, or makes it wait for an earlier write to end.
    pub(crate) fn start_read(&mut self, slot: ReadSlot, actions: &mut Vec<Action>) {
        let read = &mut self.reads[slot];
        if matches!(read.stage, ReadStage::Overtaken(..)) {
            let ReadStage::Overtaken(outcome, seen) =
                std::mem::replace(&mut read.stage, ReadStage::Waiting)
            else {
                unreachable!("the stage was checked above")
            };
            return self.answer_read(slot, outcome, seen, actions);
        }
        let read = &self.reads[slot];
        assert!(matches!(read.stage, ReadStage::Waiting));
        if let Some(write) = self.write_before_read(read) {
            self.queue[write].followers.push(Follower::Read(slot));
            return;
        }
        match (read.wants, read.parents.is_empty()) {
            (Wants::Data { .. }, true) => match self.quicker_member() {
                Some(index) => self.fetch_elsewhere(slot, index, actions),
                None => self.fetch_here(slot, actions),
            },
            _ => self.examine_layers(slot, actions),
        }
    }

    /// Reads the only layer from this OSD's store.
    pub(super) fn fetch_here(&mut self, slot: ReadSlot, actions: &mut Vec<Action>) {
        let Read { key, wants: Wants::Data { offset, length }, .. } = self.reads[slot] else {
            unreachable!("the read wants data");
        };
        self.reads[slot].stage = ReadStage::Fetch;
        let request = StoreRequest::Read { key, offset, length, as_of: AsOf::View };
        self.call(Call::Fetch(slot), request, actions);
    }

    fn write_before_read(&self, read: &Read) -> Option<WriteSlot> {
        let units = self.units_read(read);
        let layers = std::iter::once(&read.key.image).chain(&read.parents);
        layers.into_iter().find_map(|image| {
            let key = BlockKey { image: *image, ..read.key };
            self.queue.before(key, &units, read.order)
        })
    }

    pub(super) fn units_read(&self, read: &Read) -> Range<u32> {
        match read.wants {
            Wants::Data { offset, length } => {
                let (first, end) = units_of(offset, length);
                first..end
            }
            Wants::Allocation => 0..self.shape.block_size.unit_count(),
        }
    }

    fn examine_layers(&mut self, slot: ReadSlot, actions: &mut Vec<Action>) {
        let read = &mut self.reads[slot];
        let newest = read.key;
        let mut layers = vec![newest.image];
        layers.extend(&read.parents);
        let chain = Chain::new(layers.clone());
        read.stage = ReadStage::Examine(Box::new(chain));
        for (layer, image) in layers.into_iter().enumerate() {
            let request =
                StoreRequest::Extents { key: BlockKey { image, ..newest }, as_of: AsOf::View };
            self.call(Call::Layer { read: slot, layer }, request, actions);
        }
    }

    /// Handles the store's answer with the allocation of one layer.
    pub(crate) fn on_layer(
        &mut self,
        slot: ReadSlot,
        layer: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let ReadStage::Examine(chain) = &mut self.reads[slot].stage else {
            unreachable!("the chain is being examined");
        };
        let all_known = match result {
            Ok(Answer::Extents { version, written, damaged }) => {
                chain.know(layer, version, written, &damaged)
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => chain.fail(refusal_of(error)),
        };
        if all_known {
            self.fetch_parts(slot, actions);
        }
    }

    /// Requests the data of each part, or answers the read. Requires: the allocation of all layers is known.
    fn fetch_parts(&mut self, slot: ReadSlot, actions: &mut Vec<Action>) {
        let units = self.units_read(&self.reads[slot]);
        let unit_count = self.shape.block_size.unit_count();
        let read = &mut self.reads[slot];
        let ReadStage::Examine(mut chain) = std::mem::replace(&mut read.stage, ReadStage::Fetch)
        else {
            unreachable!("the chain is being examined");
        };
        if let Some(refusal) = chain.take_refusal() {
            return self.end_read(slot, Err(refusal), actions);
        }
        if read.wants == Wants::Allocation {
            let bitmap = chain.allocation(unit_count);
            let seen = chain.seen();
            return self.answer_read(slot, Outcome::Extents { bitmap }, seen, actions);
        }
        chain.plan(units);
        if chain.part_count() == 0 {
            let outcome = read_outcome(chain.version(), Vec::new(), self.buffers.take(0).freeze());
            let seen = chain.seen();
            return self.answer_read(slot, outcome, seen, actions);
        }
        let newest = read.key;
        for part in 0..chain.part_count() {
            let (image, units) = chain.part(part);
            let request = StoreRequest::Read {
                key: BlockKey { image, ..newest },
                offset: units.start * UNIT_SIZE as u32,
                length: (units.end - units.start) * UNIT_SIZE as u32,
                as_of: AsOf::View,
            };
            self.call(Call::Part { read: slot, part }, request, actions);
        }
        self.reads[slot].stage = ReadStage::FetchParts(chain);
    }

    /// Handles the store's answer with one part of a chain.
    pub(crate) fn on_part(
        &mut self,
        slot: ReadSlot,
        part: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let unit_count = self.shape.block_size.unit_count();
        let ReadStage::FetchParts(chain) = &mut self.reads[slot].stage else {
            unreachable!("the parts are being fetched");
        };
        let all_fetched = match result {
            Ok(Answer::Read { version, checksums, data }) => {
                chain.fetched(part, version, checksums, data)
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(StoreError::Damaged { units }) => chain.damaged(part, &units, unit_count),
            Err(error) => chain.fail(refusal_of(error)),
        };
        if !all_fetched {
            return;
        }
        let damaged = chain.damaged_layer();
        let outcome = match chain.take_refusal() {
            Some(refusal) => {
                if let Some(image) = damaged
                    && self.read_again(slot, image, actions)
                {
                    return;
                }
                return self.end_read(slot, Err(refusal), actions);
            }
            None => {
                let (checksums, data) = chain.assemble(&self.buffers);
                read_outcome(chain.version(), checksums, data)
            }
        };
        let seen = chain.seen();
        self.answer_read(slot, outcome, seen, actions);
    }

    /// Handles the store's answer to the read of a single layer.
    pub(crate) fn on_fetched(
        &mut self,
        slot: ReadSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        match result {
            Ok(Answer::Read { version, checksums, data }) => {
                if let Wants::Data { length, .. } = self.reads[slot].wants {
                    assert!(data.is_empty() || data.len() == length as usize);
                }
                let outcome = read_outcome(version, checksums, data);
                let image = self.reads[slot].key.image;
                if self.overtaker(&self.reads[slot], BlockSeen { image, version }).is_none() {
                    return self.end_read(slot, Ok(outcome), actions);
                }
                self.answer_read(slot, outcome, vec![BlockSeen { image, version }], actions);
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => {
                let image = self.reads[slot].key.image;
                let is_damage = matches!(error, StoreError::Damaged { .. });
                if !is_damage || !self.read_again(slot, image, actions) {
                    self.end_read(slot, Err(refusal_of(error)), actions);
                }
            }
        }
    }

    /// Returns an unfinished later write whose change the read saw; some members may not hold that write yet.
    fn overtaker(&self, read: &Read, seen: BlockSeen) -> Option<WriteSlot> {
        let key = BlockKey { image: seen.image, ..read.key };
        let units = self.units_read(read);
        self.queue.seen(key, &units, read.order, seen.version)
    }

    /// Answers a read once all members hold the writes that it saw.
    pub(super) fn answer_read(
        &mut self,
        slot: ReadSlot,
        outcome: Outcome,
        seen: Vec<BlockSeen>,
        actions: &mut Vec<Action>,
    ) {
        let read = &self.reads[slot];
        match seen.iter().find_map(|block| self.overtaker(read, *block)) {
            None => self.end_read(slot, Ok(outcome), actions),
            Some(write) => {
                self.reads[slot].stage = ReadStage::Overtaken(outcome, seen);
                self.queue[write].followers.push(Follower::Read(slot));
            }
        }
    }

    /// Restarts a read once the units that this OSD lost have been restored from another member. Returns
    /// false if that cannot help.
    fn read_again(&mut self, slot: ReadSlot, image: ImageId, actions: &mut Vec<Action>) -> bool {
        let read = &mut self.reads[slot];
        if read.mends_left == 0 {
            return false;
        }
        let stage = std::mem::replace(&mut read.stage, ReadStage::Waiting);
        read.mends_left -= 1;
        let key = BlockKey { image, ..read.key };
        let is_mended = self.mend(key, slot, actions);
        if !is_mended {
            self.reads[slot].stage = stage;
        }
        is_mended
    }

    fn end_read(
        &mut self,
        slot: ReadSlot,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let ticket = self.reads.remove(slot).ticket;
        actions.push(Action::Reply { ticket, outcome });
    }

    pub(crate) fn refuse_waiting_reads(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let mut refused = Vec::new();
        for (slot, read) in self.reads.iter() {
            if matches!(read.stage, ReadStage::Waiting)
                && let Some(refusal) = judge(read.ticket)
            {
                refused.push((slot, refusal));
            }
        }
        for (slot, refusal) in refused {
            self.queue.forget_follower(Follower::Read(slot));
            self.end_read(slot, Err(refusal), actions);
        }
    }
}

/// Returns the client's answer to a read: data with one checksum for each unit.
pub(super) fn read_outcome(version: Version, checksums: Vec<Checksum>, data: Buffer) -> Outcome {
    assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
    Outcome::Read { version, checksums, data }
}
