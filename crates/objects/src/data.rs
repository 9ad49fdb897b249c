//! The data of one object while operations on it are prepared: what the store has, and what changed since.
//!
//! Data up to [`INLINE_SIZE_MAX`] lies in the head. Longer data lies in blocks, of which only the units that a
//! change covers in part have to be read.
//!
//! ```text
//!   units        0 ............ kept ............ stored
//!   in store     valid          cut off: zeros
//!   touched      over both: data, or zeros
//! ```
//!
//! Invariants
//!   1. The bytes behind the size, up to the end of their unit, are zeros.
//!   2. Blocks are named by one object at most: data that is put anew, or grows beyond the head, gets a new id,
//!      and all blocks of the old one go in the same batch.
//!   3. What is not known yet is asked for, never guessed: a change is tried again once it is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{BlockSize, Checksum, PoolId, UNIT_SIZE, Version, crc32c};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, UnitSet};

use crate::head::{DataId, HeadContent};
use crate::keys::Name;
use crate::operation::INLINE_SIZE_MAX;

/// Size of a block's line in the body of an entry, without its units and checksums, in bytes.
const LINE_SIZE: usize = 1 + 12 + 12 + 4;

/// The content of units in the store, by id and number of the unit. `None`: zeros.
pub type KnownUnits = BTreeMap<(DataId, u32), Option<Vec<u8>>>;

/// The units that have to be read.
pub type WantedUnits = BTreeSet<(DataId, u32)>;

/// What a change of data needs from outside.
pub struct Source<'a> {
    /// What was read.
    pub known: &'a KnownUnits,
    /// What has to be read: the change is not right before.
    pub wanted: &'a mut WantedUnits,
    /// Draws an id under which the PG has no block.
    pub draw: &'a mut dyn FnMut() -> DataId,
}

/// The data of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    place: Place,
    /// The blocks that the object had, and their numbers of units: they go.
    gone: Vec<(DataId, u32)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Inline(Vec<u8>),
    Blocks(Blocks),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Blocks {
    id: DataId,
    /// Size of the data in bytes.
    size: u64,
    /// Number of units that the store may have.
    stored: u32,
    /// Units below this number are in the store as they are there, unless they are touched.
    kept: u32,
    /// Units that changed. `None`: zeros. Copies of the data share them.
    touched: BTreeMap<u32, Option<Arc<Vec<u8>>>>,
}

/// Returns the number of units that so many bytes take.
fn units_of(size: u64) -> u32 {
    size.div_ceil(UNIT_SIZE) as u32
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl Data {
    /// Creates the data of an object that has none.
    pub fn empty() -> Data {
        Data { place: Place::Inline(Vec::new()), gone: Vec::new() }
    }

    /// Returns the data that a head in the store names. Of a tombstone: none.
    pub fn of(content: &HeadContent) -> Data {
        let place = match content {
            HeadContent::Tombstone => Place::Inline(Vec::new()),
            HeadContent::Inline(data) => Place::Inline(data.clone()),
            HeadContent::Blocks { id, size } => {
                let units = units_of(*size);
                let touched = BTreeMap::new();
                Place::Blocks(Blocks { id: *id, size: *size, stored: units, kept: units, touched })
            }
        };
        Data { place, gone: Vec::new() }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match &self.place {
            Place::Inline(data) => data.len() as u64,
            Place::Blocks(blocks) => blocks.size,
        }
    }

    /// Returns what the head says of the data.
    pub fn content(&self) -> HeadContent {
        match &self.place {
            Place::Inline(data) => HeadContent::Inline(data.clone()),
            Place::Blocks(Blocks { id, size, .. }) => HeadContent::Blocks { id: *id, size: *size },
        }
    }

    /// Returns the number of bytes that the head has of the data: the data, or its id.
    pub fn size_in_head(&self) -> usize {
        match &self.place {
            Place::Inline(data) => data.len(),
            Place::Blocks(_) => size_of::<u64>(),
        }
    }

    /// Returns the most bytes that the changes of blocks take in the body of an entry, without data.
    pub fn lines_bytes(&self, block_size: BlockSize) -> usize {
        let per_block = block_size.unit_count();
        let gone = self.gone.iter().map(|(_, units)| units.div_ceil(per_block) as usize);
        let (mut lines, mut checksums) = (gone.sum::<usize>(), 0);
        if let Place::Blocks(blocks) = &self.place {
            lines += 2 * blocks.changed_blocks(per_block).len();
            checksums = blocks.touched.values().flatten().count();
        }
        lines * (LINE_SIZE + 8 * (per_block as usize).div_ceil(64)) + 4 * checksums
    }

    /// Returns the number of bytes of units that are written, and how many of them may have to lie in the
    /// journal: those of blocks that are not written whole.
    pub fn written_bytes(&self, block_size: BlockSize) -> (u64, u64) {
        let Place::Blocks(blocks) = &self.place else { return (0, 0) };
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for (unit, content) in &blocks.touched {
            let count = counts.entry(unit / block_size.unit_count()).or_default();
            *count += u32::from(content.is_some());
        }
        let (mut all, mut here) = (0, 0);
        for count in counts.into_values() {
            let bytes = u64::from(count) * UNIT_SIZE;
            all += bytes;
            here += if count < block_size.unit_count() { bytes } else { 0 };
        }
        (all, here)
    }

    /// Drops all data.
    pub fn clear(&mut self) {
        let before = std::mem::replace(&mut self.place, Place::Inline(Vec::new()));
        if let Place::Blocks(Blocks { id, stored, .. }) = before
            && stored > 0
        {
            self.gone.push((id, stored));
        }
    }

    /// These bytes become all of the data.
    pub fn put(&mut self, bytes: &[u8], source: &mut Source<'_>) {
        self.clear();
        self.write(0, bytes, source);
    }

    /// The bytes lie at the offset; data between the end and the offset is zeros.
    pub fn write(&mut self, offset: u64, bytes: &[u8], source: &mut Source<'_>) {
        let end = offset + bytes.len() as u64;
        if end > self.size() {
            self.grow(end, source);
        }
        match &mut self.place {
            Place::Inline(data) => {
                data[offset as usize..end as usize].copy_from_slice(bytes);
            }
            Place::Blocks(blocks) => blocks.overlay(offset, bytes, source),
        }
    }

    /// The data has this size.
    pub fn truncate(&mut self, size: u64, source: &mut Source<'_>) {
        if size >= self.size() {
            return self.grow(size, source);
        }
        match &mut self.place {
            Place::Inline(data) => data.truncate(size as usize),
            Place::Blocks(blocks) if size > INLINE_SIZE_MAX => blocks.cut(size, source),
            Place::Blocks(blocks) => {
                let mut data = Vec::with_capacity(size as usize);
                for unit in 0..units_of(size) {
                    match blocks.unit(unit, source) {
                        Some(bytes) => data.extend_from_slice(&bytes),
                        None => data.resize(data.len() + UNIT_SIZE as usize, 0),
                    }
                }
                data.truncate(size as usize);
                self.clear();
                self.place = Place::Inline(data);
            }
        }
    }

    /// The bytes of the range that there are become zeros. Returns whether there are any.
    pub fn zero(&mut self, offset: u64, length: u64, source: &mut Source<'_>) -> bool {
        let end = (offset + length).min(self.size());
        if offset >= end {
            return false;
        }
        match &mut self.place {
            Place::Inline(data) => data[offset as usize..end as usize].fill(0),
            Place::Blocks(blocks) => blocks.zero(offset, end, source),
        }
        true
    }

    /// Adds zeros behind the data up to this size. Requires: it is not smaller.
    fn grow(&mut self, size: u64, source: &mut Source<'_>) {
        match &mut self.place {
            Place::Inline(data) if size <= INLINE_SIZE_MAX => data.resize(size as usize, 0),
            Place::Inline(data) => {
                let data = std::mem::take(data);
                let (id, touched) = ((source.draw)(), BTreeMap::new());
                let mut blocks = Blocks { id, size, stored: 0, kept: 0, touched };
                blocks.overlay(0, &data, source);
                self.place = Place::Blocks(blocks);
            }
            Place::Blocks(blocks) => blocks.size = size,
        }
    }

    /// Returns the changes of blocks, each with the data of its units, in the order of their keys. `version`:
    /// that of the object's last change.
    pub fn block_changes(
        &self,
        (pool, name, version): (PoolId, &Name, Version),
        block_size: BlockSize,
    ) -> Vec<(BlockChange, Vec<u8>)> {
        let per_block = block_size.unit_count();
        let change = |id: DataId, block: u32, action, units, checksums| BlockChange {
            action,
            key: id.block_key(pool, name, block),
            version,
            location: LOCATION_NONE,
            units,
            checksums,
        };
        let none = || UnitSet::first(0);
        let mut changes = Vec::new();
        for (id, units) in &self.gone {
            for block in 0..units.div_ceil(per_block) {
                let gone = change(*id, block, BlockAction::Gone, none(), Vec::new());
                changes.push((gone, Vec::new()));
            }
        }
        if let Place::Blocks(blocks) = &self.place {
            for block in blocks.changed_blocks(per_block) {
                let (mut written, mut zeros) = (none(), none());
                let (mut data, mut checksums): (Vec<u8>, Vec<Checksum>) = (Vec::new(), Vec::new());
                let first = block * per_block;
                for at in 0..per_block {
                    let is_cut = (blocks.kept..blocks.stored).contains(&(first + at));
                    match blocks.touched.get(&(first + at)) {
                        Some(Some(bytes)) => {
                            written.insert(at);
                            checksums.push(crc32c(bytes));
                            data.extend_from_slice(bytes);
                        }
                        Some(None) => zeros.insert(at),
                        None if is_cut => zeros.insert(at),
                        None => {}
                    }
                }
                let is_all_cut = first >= blocks.kept && first < blocks.stored;
                if written.is_empty() && is_all_cut {
                    let gone = change(blocks.id, block, BlockAction::Gone, none(), Vec::new());
                    changes.push((gone, Vec::new()));
                    continue;
                }
                if !written.is_empty() {
                    let written = change(blocks.id, block, BlockAction::Units, written, checksums);
                    changes.push((written, data));
                }
                if !zeros.is_empty() {
                    let zeros = change(blocks.id, block, BlockAction::Zeros, zeros, Vec::new());
                    changes.push((zeros, Vec::new()));
                }
            }
        }
        changes.sort_by_key(|(change, _)| change.key);
        changes
    }
}

impl Blocks {
    /// Returns the content of a unit; `None`: zeros. If it is not known, it is asked for, and zeros stand for
    /// it.
    fn unit(&self, unit: u32, source: &mut Source<'_>) -> Option<Vec<u8>> {
        if let Some(touched) = self.touched.get(&unit) {
            return touched.as_deref().cloned();
        }
        if unit >= self.kept {
            return None;
        }
        let known = source.known.get(&(self.id, unit));
        if known.is_none() {
            source.wanted.insert((self.id, unit));
        }
        known.cloned().flatten()
    }

    /// Notes what a unit has now.
    fn set(&mut self, unit: u32, content: Option<Vec<u8>>) {
        match content.filter(|content| !is_zero(content)) {
            None if unit >= self.stored => self.touched.remove(&unit),
            content => self.touched.insert(unit, content.map(Arc::new)),
        };
    }

    /// Requires: the bytes end within the size.
    fn overlay(&mut self, offset: u64, bytes: &[u8], source: &mut Source<'_>) {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (unit, from) = ((at / UNIT_SIZE) as u32, (at % UNIT_SIZE) as usize);
            let count = rest.len().min(UNIT_SIZE as usize - from);
            let (piece, after) = rest.split_at(count);
            // Behind the size there are zeros anyway.
            let is_whole =
                from == 0 && (count == UNIT_SIZE as usize || at + count as u64 == self.size);
            let mut content = match is_whole {
                true => None,
                false => self.unit(unit, source),
            };
            let content = content.get_or_insert_with(|| vec![0; UNIT_SIZE as usize]);
            content[from..from + count].copy_from_slice(piece);
            let content = std::mem::take(content);
            self.set(unit, Some(content));
            (rest, at) = (after, at + count as u64);
        }
    }

    /// Requires: the range is not empty, and ends within the size.
    fn zero(&mut self, offset: u64, end: u64, source: &mut Source<'_>) {
        for unit in (offset / UNIT_SIZE) as u32..units_of(end) {
            let first = u64::from(unit) * UNIT_SIZE;
            let from = offset.max(first) - first;
            let to = end.min(first + UNIT_SIZE) - first;
            let is_whole = from == 0 && (to == UNIT_SIZE || first + to == self.size);
            if is_whole {
                self.set(unit, None);
            } else if let Some(mut content) = self.unit(unit, source) {
                content[from as usize..to as usize].fill(0);
                self.set(unit, Some(content));
            }
        }
    }

    /// Requires: the size is smaller than before, and data of it lies in blocks.
    fn cut(&mut self, size: u64, source: &mut Source<'_>) {
        let units = units_of(size);
        let tail = size % UNIT_SIZE;
        if tail > 0
            && let Some(mut content) = self.unit(units - 1, source)
        {
            content[tail as usize..].fill(0);
            self.set(units - 1, Some(content));
        }
        let _ = self.touched.split_off(&units);
        self.kept = self.kept.min(units);
        self.size = size;
    }

    /// Returns the blocks that change, in order.
    fn changed_blocks(&self, per_block: u32) -> BTreeSet<u32> {
        let touched = self.touched.keys().map(|unit| unit / per_block);
        let cut = match self.kept < self.stored {
            true => self.kept / per_block..self.stored.div_ceil(per_block),
            false => 0..0,
        };
        touched.chain(cut).collect()
    }
}
