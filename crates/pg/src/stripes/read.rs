//! Reads of stripes at their primary.
//!
//! ```text
//!   its turn ──▶ units of the newest layer ──▶ (units without data, from older layers) ──▶ reply
//! ```
//!
//! Invariants
//!   1. A read keeps its turn until it is answered. Its reads of older layers take turns in the queues of
//!      those layers.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{Buffer, BufferPool, Checksum, ImageId, UNIT_SIZE, Version};
use blockstore::BlockKey;
use format::wire::{Outcome, Refusal};

use super::gather::{Found, Gather, Inconsistent};
use super::part::UnitData;
use crate::operation::{Wants, WriteFor, WriteKind};
use crate::slots::WriteSlot;
use crate::units::units_of;
use crate::{Action, Pg};

/// A read whose newest layer has been read.
#[derive(Debug)]
pub struct StripeRead {
    /// The version of the newest layer.
    version: Version,
    /// The requested units; `written` has those that hold data.
    units: Range<u32>,
    written: BTreeMap<u32, UnitData>,
    /// For a read of the allocation: a bitmap of the units that hold data. `None`: the read wants data.
    allocation: Option<Vec<u64>>,
    /// Number of answers from older layers that have not arrived.
    missing: usize,
    refusal: Option<Refusal>,
}

impl StripeRead {
    /// Returns the runs of units that hold no data.
    fn gaps(&self) -> Vec<Range<u32>> {
        let mut gaps: Vec<Range<u32>> = Vec::new();
        for unit in self.units.clone().filter(|unit| !self.written.contains_key(unit)) {
            match gaps.last_mut().filter(|gap| gap.end == unit) {
                Some(gap) => gap.end += 1,
                None => gaps.push(unit..unit + 1),
            }
        }
        gaps
    }

    /// Adds the answer of an older layer about the units from `first` on.
    fn take(&mut self, first: u32, outcome: Result<Outcome, Refusal>) {
        match (outcome, &mut self.allocation) {
            (Ok(Outcome::Read { checksums, data, .. }), None) => {
                let units = first..first + checksums.len() as u32;
                let units = units.zip(units_of_data(checksums, &data));
                self.written.extend(units);
            }
            (Ok(Outcome::Extents { bitmap }), Some(allocation)) => {
                allocation.iter_mut().zip(bitmap).for_each(|(all, more)| *all |= more);
            }
            (Ok(_), _) => unreachable!("a layer is read like the one above it"),
            (Err(refusal), _) => self.refusal = Some(refusal),
        }
    }

    fn outcome(self, buffers: &BufferPool) -> Result<Outcome, Refusal> {
        let StripeRead { version, units, written, allocation, refusal, .. } = self;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        if let Some(bitmap) = allocation {
            return Ok(Outcome::Extents { bitmap });
        }
        Ok(outcome_of(version, units, &written, buffers))
    }
}

/// Returns the answer to a read of these units, of which those in `written` hold data.
pub fn outcome_of(
    version: Version,
    units: Range<u32>,
    written: &BTreeMap<u32, UnitData>,
    buffers: &BufferPool,
) -> Outcome {
    if written.is_empty() {
        let data = buffers.take(0).freeze();
        return Outcome::Read { version, checksums: Vec::new(), data };
    }
    let unit_size = UNIT_SIZE as usize;
    let mut bytes = buffers.take_zeroed(units.len() * unit_size);
    let mut checksums = Vec::with_capacity(units.len());
    for (unit, place) in units.zip(bytes.chunks_exact_mut(unit_size)) {
        match written.get(&unit) {
            Some(data) => {
                place.copy_from_slice(&data.data);
                checksums.push(data.checksum);
            }
            None => checksums.push(Checksum::ZERO_UNIT),
        }
    }
    Outcome::Read { version, checksums, data: bytes.freeze() }
}

fn units_of_data(checksums: Vec<Checksum>, data: &Buffer) -> impl Iterator<Item = UnitData> {
    let unit_size = UNIT_SIZE as usize;
    checksums.into_iter().enumerate().map(move |(index, checksum)| {
        let start = index * unit_size;
        UnitData { checksum, data: data.slice(start..start + unit_size) }
    })
}

impl Pg {
    /// Continues a read after its newest layer was read: reads older layers, or answers.
    pub(crate) fn on_stripe_read(
        &mut self,
        slot: WriteSlot,
        gather: &Gather,
        actions: &mut Vec<Action>,
    ) {
        let WriteKind::Read { wants, parents } = &self.queue[slot].kind else {
            unreachable!("it is a read");
        };
        let (wants, mut layers) = (*wants, parents.iter().copied());
        let (next, older) = (layers.next(), layers.collect());
        let read = match wants {
            Wants::Data { offset, length } => {
                let (first, end) = units_of(offset, length);
                self.units_read_of(first..end, gather)
            }
            Wants::Allocation => self.allocation_of(gather),
        };
        match (read, next) {
            (Ok(read), Some(image)) => self.read_layer(slot, read, image, older, actions),
            (Ok(read), None) => self.end_write(slot, read.outcome(&self.buffers), actions),
            (Err(refusal), _) => self.end_write(slot, Err(refusal), actions),
        }
    }

    /// Returns a read of these units, with the data that the gathering found.
    fn units_read_of(&self, units: Range<u32>, gather: &Gather) -> Result<StripeRead, Refusal> {
        let stripes = self.stripes().expect("the pool has parity");
        let (unit_count, block_size) = (self.shape.block_size.unit_count(), self.shape.block_size);
        let (mut written, mut lost) = (BTreeMap::new(), Vec::new());
        let mut version = Version::ZERO;
        for (part, range) in stripes.split(units.clone(), block_size) {
            let known = match gather.held(part) {
                Some(held) => held.version,
                None => {
                    let table = gather.table().map_err(corrupted)?;
                    table.map_or(Version::ZERO, |table| table.parts[part].version)
                }
            };
            version = version.max(known);
            for unit in range {
                let place = part as u32 * unit_count + unit;
                match gather.unit(part, unit, &self.buffers).map_err(corrupted)? {
                    Found::Nothing => {}
                    Found::Data(data) => drop(written.insert(place, data)),
                    Found::Lost => lost.push(place),
                }
            }
        }
        if !lost.is_empty() {
            let all = unit_count * stripes.data_count() as u32;
            let mut units = vec![0; all.div_ceil(64) as usize];
            lost.into_iter().for_each(|unit| set_bit(&mut units, unit));
            return Err(Refusal::Damaged { units });
        }
        let (allocation, refusal) = (None, None);
        Ok(StripeRead { version, units, written, allocation, missing: 0, refusal })
    }

    /// Returns a read of the stripe's allocation, with the units that hold data according to the gathering.
    fn allocation_of(&self, gather: &Gather) -> Result<StripeRead, Refusal> {
        let stripes = self.stripes().expect("the pool has parity");
        let unit_count = self.shape.block_size.unit_count();
        let table = gather.table().map_err(corrupted)?.ok_or(Refusal::Corrupted)?;
        let all = unit_count * stripes.data_count() as u32;
        let mut bitmap = vec![0; all.div_ceil(64) as usize];
        for (index, part) in table.parts.iter().enumerate() {
            for unit in part.written.iter() {
                set_bit(&mut bitmap, index as u32 * unit_count + unit);
            }
        }
        let (version, written, allocation) = (table.version(), BTreeMap::new(), Some(bitmap));
        Ok(StripeRead { version, units: 0..all, written, allocation, missing: 0, refusal: None })
    }

    /// Reads from an older layer the units in which the newer layers hold no data.
    fn read_layer(
        &mut self,
        slot: WriteSlot,
        mut read: StripeRead,
        image: ImageId,
        parents: Vec<ImageId>,
        actions: &mut Vec<Action>,
    ) {
        let unit_size = UNIT_SIZE as u32;
        let wanted: Vec<(u32, Wants)> = match read.allocation {
            Some(_) => vec![(0, Wants::Allocation)],
            None => {
                let gaps = read.gaps().into_iter();
                let wants = |gap: Range<u32>| Wants::Data {
                    offset: gap.start * unit_size,
                    length: (gap.end - gap.start) * unit_size,
                };
                gaps.map(|gap| (gap.start, wants(gap))).collect()
            }
        };
        if wanted.is_empty() {
            return self.end_write(slot, read.outcome(&self.buffers), actions);
        }
        read.missing = wanted.len();
        let write = &mut self.queue[slot];
        write.read = Some(Box::new(read));
        let key = BlockKey { image, ..write.key };
        for (first, wants) in wanted {
            let kind = WriteKind::Read { wants, parents: parents.clone() };
            let issuer = WriteFor::Layer { above: slot, first };
            self.write(issuer, key, kind, None, actions);
        }
    }

    /// Handles the answer of an older layer about the units from `first` on.
    pub(crate) fn on_layer_read(
        &mut self,
        above: WriteSlot,
        first: u32,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let read = self.queue[above].read.as_mut().expect("it waits for an older layer");
        read.take(first, outcome);
        read.missing -= 1;
        if let Some(read) = self.queue[above].read.take_if(|read| read.missing == 0) {
            self.end_write(above, read.outcome(&self.buffers), actions);
        }
    }
}

fn corrupted(_: Inconsistent) -> Refusal {
    Refusal::Corrupted
}

fn set_bit(bitmap: &mut [u64], bit: u32) {
    bitmap[bit as usize / 64] |= 1 << (bit % 64);
}
