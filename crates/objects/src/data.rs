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

use base::{BlockSize, PoolId, UNIT_SIZE, Version, crc32c};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, UnitSet};

use crate::entry_size;
use crate::head::{DataId, HeadContent};
use crate::operation::INLINE_SIZE_MAX;

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

/// What changes of blocks take in an entry, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DataSize {
    /// Units that are written.
    pub written: u64,
    /// Those of them that may have to lie in the journal: of blocks that are not written whole.
    pub here: u64,
    /// What the body says of all.
    pub lines: usize,
}

/// What changes of a block. Nothing is written and nothing becomes zeros: it is gone.
struct BlockLines {
    block: u32,
    written: UnitSet,
    zeros: UnitSet,
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

    /// Returns what the changes of blocks take in an entry.
    pub fn size_in_entry(&self, block_size: BlockSize) -> DataSize {
        let per_block = block_size.unit_count();
        let gone = self.gone.iter().map(|(_, units)| units.div_ceil(per_block) as usize);
        let lines = gone.sum::<usize>() * entry_size::block_size(block_size, 0, false);
        let mut size = DataSize { lines, ..DataSize::default() };
        let Place::Blocks(blocks) = &self.place else { return size };
        for BlockLines { written, zeros, .. } in blocks.lines(per_block) {
            let bytes = u64::from(written.count()) * UNIT_SIZE;
            size.written += bytes;
            size.here += if written.count() < per_block { bytes } else { 0 };
            let count = written.count() as usize;
            size.lines += entry_size::block_size(block_size, count, !zeros.is_empty());
        }
        size
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
    /// that of the object's last change; `hash`: the object's.
    pub fn block_changes(
        &self,
        (pool, hash, version): (PoolId, u32, Version),
        block_size: BlockSize,
    ) -> Vec<(BlockChange, Vec<u8>)> {
        let per_block = block_size.unit_count();
        let mut changes = Vec::new();
        let mut add = |id: DataId, block: u32, action, units, data: Vec<u8>| {
            let key = id.block_key(pool, hash, block);
            let checksums = data.chunks(UNIT_SIZE as usize).map(crc32c).collect();
            let location = LOCATION_NONE;
            changes.push((BlockChange { action, key, version, location, units, checksums }, data));
        };
        for (id, units) in &self.gone {
            for block in 0..units.div_ceil(per_block) {
                add(*id, block, BlockAction::Gone, UnitSet::EMPTY, Vec::new());
            }
        }
        if let Place::Blocks(blocks) = &self.place {
            for BlockLines { block, written, zeros } in blocks.lines(per_block) {
                if written.is_empty() && zeros.is_empty() {
                    add(blocks.id, block, BlockAction::Gone, UnitSet::EMPTY, Vec::new());
                }
                if !written.is_empty() {
                    let mut data =
                        Vec::with_capacity(written.count() as usize * UNIT_SIZE as usize);
                    for unit in written.iter().map(|unit| block * per_block + unit) {
                        data.extend_from_slice(
                            blocks.touched[&unit].as_ref().expect("it has data"),
                        );
                    }
                    add(blocks.id, block, BlockAction::Units, written, data);
                }
                if !zeros.is_empty() {
                    add(blocks.id, block, BlockAction::Zeros, zeros, Vec::new());
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

    /// Returns what changes of blocks, in order.
    fn lines(&self, per_block: u32) -> impl Iterator<Item = BlockLines> {
        let touched = self.touched.keys().map(move |unit| unit / per_block);
        let cut = match self.kept < self.stored {
            true => self.kept / per_block..self.stored.div_ceil(per_block),
            false => 0..0,
        };
        let blocks: BTreeSet<u32> = touched.chain(cut).collect();
        blocks.into_iter().map(move |block| self.lines_of(block, per_block))
    }

    fn lines_of(&self, block: u32, per_block: u32) -> BlockLines {
        let (first, behind) = (block * per_block, (block + 1) * per_block);
        let (mut written, mut zeros) = (UnitSet::EMPTY, UnitSet::EMPTY);
        let cut = first.max(self.kept)..behind.min(self.stored);
        cut.for_each(|unit| zeros.insert(unit - first));
        for (unit, content) in self.touched.range(first..behind) {
            zeros.remove(unit - first);
            match content {
                Some(_) => written.insert(unit - first),
                None => zeros.insert(unit - first),
            }
        }
        let is_all_cut = first >= self.kept && first < self.stored;
        if written.is_empty() && is_all_cut {
            zeros = UnitSet::EMPTY;
        }
        BlockLines { block, written, zeros }
    }
}
