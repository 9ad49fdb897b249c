//! The change that one version makes to a stripe: its merged writes, by data part and unit.
//!
//! Invariants
//!   1. If several writes change a unit, the last one counts.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{BlockSize, BufferPool, UNIT_SIZE, Version};
use format::wire::{Change, Content};

use super::Stripes;
use super::part::{UnitData, content};
use crate::units::{Units, units_of};

/// The change of one data part: what each changed unit holds afterwards; `None`: no data.
type PartPatch = BTreeMap<u32, Option<UnitData>>;

/// The change of a stripe; see the module.
#[derive(Clone, Default, Debug)]
pub struct Patch {
    parts: BTreeMap<usize, PartPatch>,
    /// Whether the whole stripe is deleted.
    is_delete: bool,
}

impl Patch {
    /// Returns the deletion of a stripe.
    pub fn delete() -> Patch {
        Patch { is_delete: true, ..Patch::default() }
    }

    pub fn is_delete(&self) -> bool {
        self.is_delete
    }

    /// Adds a change that follows all changes added before. With `columns` only these units of each block are
    /// changed.
    pub fn add(
        &mut self,
        change: Change,
        columns: Option<Range<u32>>,
        stripes: &Stripes,
        block_size: BlockSize,
    ) {
        let unit_size = UNIT_SIZE as usize;
        let columns = columns.unwrap_or(0..u32::MAX);
        match change {
            Change::Write { offset, checksums, data } => {
                let (first, end) = units_of(offset, data.len() as u32);
                let mut units = checksums.into_iter().enumerate().map(|(index, checksum)| {
                    let start = index * unit_size;
                    UnitData { checksum, data: data.slice(start..start + unit_size) }
                });
                for (part, range) in stripes.split(first..end, block_size) {
                    let data = range.clone().zip(units.by_ref());
                    let data = data.filter(|(unit, _)| columns.contains(unit));
                    self.change_part(part, data.map(|(unit, data)| (unit, Some(data))));
                }
            }
            Change::Zero { offset, length } => {
                let (first, end) = units_of(offset, length);
                for (part, range) in stripes.split(first..end, block_size) {
                    let range = range.filter(|unit| columns.contains(unit));
                    self.change_part(part, range.map(|unit| (unit, None)));
                }
            }
            Change::Delete => unreachable!("a deletion is no part of a patch"),
        }
    }

    fn change_part(&mut self, part: usize, units: impl Iterator<Item = (u32, Option<UnitData>)>) {
        let mut units = units.peekable();
        if units.peek().is_some() {
            self.parts.entry(part).or_default().extend(units);
        }
    }

    /// Returns the data parts that change, in order.
    pub fn parts(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.keys().copied()
    }

    /// Returns the units of a part that change.
    pub fn units(&self, part: usize) -> Units {
        self.select(part, |_| true)
    }

    /// Returns the units of a part that change and hold data afterwards.
    pub fn written(&self, part: usize) -> Units {
        self.select(part, |unit| unit.is_some())
    }

    fn select(&self, part: usize, is_meant: impl Fn(&Option<UnitData>) -> bool) -> Units {
        let mut units = Units::default();
        let patch = self.parts.get(&part).into_iter().flatten();
        patch.filter(|(_, data)| is_meant(data)).for_each(|(unit, _)| units.add(*unit));
        units
    }

    /// Returns the units that change in all data parts: their parity is computed without old data.
    pub fn rows(&self, data_count: usize) -> Units {
        if self.parts.len() < data_count {
            return Units::default();
        }
        let mut all = (0..data_count).map(|part| self.units(part));
        let first = all.next().expect("a stripe has data parts");
        all.fold(first, |rows, units| rows.within(&units))
    }

    /// Returns what a unit holds afterwards; `None`: no data. Requires: the unit changes.
    pub fn unit(&self, part: usize, unit: u32) -> Option<&UnitData> {
        self.parts[&part][&unit].as_ref()
    }

    /// Returns the new content of a data part, for its member.
    pub fn content(
        &self,
        part: usize,
        version: Version,
        block_size: BlockSize,
        buffers: &BufferPool,
    ) -> Content {
        if self.is_delete {
            return Content::Tombstone { version };
        }
        let patch = &self.parts[&part];
        let written = patch.iter().filter_map(|(unit, data)| Some((*unit, data.clone()?)));
        let (none, units) = (Units::default(), self.units(part));
        content(version, block_size, units, none, &written.collect(), Vec::new(), buffers)
    }
}
