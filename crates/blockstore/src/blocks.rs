//! The blocks of a store, in the state after all accepted entries. This module combines
//!
//! ```text
//!   index      what a block is: version, size, place            (always in memory)
//!   overlays   where its changed units are, over its leaf       (until a checkpoint has written them)
//!   area       which places are taken, freed, ready             (rebuilt from the index)
//!   damage     which units reads found damaged                  (until they are written again)
//! ```
//!
//! One entry of the journal is one [`Change`]; [`Blocks::apply`] is the only way in which requests and
//! recovery change a block. A new kind of entry needs a match arm there. Only batches have many blocks: each
//! is changed by [`Blocks::apply_lines`].
//!
//! Invariants
//!   1. The place that the index records for a block is allocated to this block, and to no other.
//!   2. An overlay is fresh if the block got its place after the leaf was written.
//!   3. The index entry that a frozen block had when the checkpoint began is kept until the checkpoint
//!      ends.

mod batch;

use std::collections::BTreeSet;

use base::planted::{self, Bug};
use base::{BlockSize, Checksum, ImageId, Lsn, PgId, PoolId, UNIT_SIZE, Version};
use format::disk::{
    BlockKey, EntryHeader, EntryKind, LOCATION_NONE, LeafPage, StoredRecord, Superblock, UnitSet,
    table_rows,
};

use crate::AsOf;
use crate::allocator::segment_of;
pub use crate::blocks::batch::BlockLines;
use crate::damage::Damage;
use crate::data_area::{DataArea, Freed};
use crate::index::{BlockInfo, Index, KEY_FIRST, location_of};
use crate::overlay::{Layers, Overlay, Overlays, UnitState};
use crate::prepared::Prepared;

/// An entry that changes a block.
pub struct Change<'a> {
    pub header: &'a EntryHeader,
    /// The block's current entry in the index.
    pub old: Option<BlockInfo>,
    pub lsn: Lsn,
    /// The lsn where the entry's inline data begins.
    pub data_lsn: Lsn,
    /// Units whose data is lost, counted from the first unit of the entry.
    pub bad: UnitSet,
}

/// The blocks of a store.
pub struct Blocks {
    index: Index,
    overlays: Overlays,
    /// Versions on top of the index and the overlays, which may still be rolled back.
    pub prepared: Prepared,
    pub area: DataArea,
    pub damage: Damage,
    /// Whether something was deleted or zeroed since the last checkpoint began, so that the next one gives
    /// space back.
    gives_back: bool,
}

impl Blocks {
    /// Creates an empty set of blocks. `is_sparse`: places must be reserved before they are used.
    pub fn new(superblock: &Superblock, is_sparse: bool) -> Blocks {
        Blocks {
            index: Index::new(),
            overlays: Overlays::default(),
            prepared: Prepared::default(),
            area: DataArea::new(superblock.data, is_sparse),
            damage: Damage::default(),
            gives_back: false,
        }
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    pub fn overlays(&self) -> &Overlays {
        &self.overlays
    }

    /// Returns what is known about the block without reading the disk.
    pub fn get(&self, key: &BlockKey) -> Option<BlockInfo> {
        self.index.get(key)
    }

    /// Returns the overlays that locate the block's units in the state selected by `as_of`; its leaf is not
    /// read.
    pub fn layers(&self, key: &BlockKey, as_of: AsOf) -> Layers<'_> {
        Layers { prepared: self.prepared.as_of(key, as_of), ..self.overlays.layers(key) }
    }

    /// Whether a checkpoint would give space back.
    pub fn gives_back(&self) -> bool {
        self.gives_back
    }

    /// Counts no space by image in this pool of objects.
    pub fn leave_uncounted(&mut self, pool: PoolId) {
        self.index.leave_uncounted(pool);
    }

    /// Returns the images whose space has changed since the last call.
    pub fn take_images_changed(&mut self) -> BTreeSet<ImageId> {
        self.index.take_used_changed()
    }

    /// Applies an entry of the block `key`, in the same way for a request and for recovery.
    pub fn apply(&mut self, change: &Change<'_>, key: BlockKey) {
        debug_assert!(self.index.get(&key) == change.old);
        match change.header.kind {
            EntryKind::Write => self.write_inline(change, key),
            EntryKind::WriteLarge => self.write_large(change, key),
            EntryKind::Zero => self.zero(change, key),
            EntryKind::Delete | EntryKind::RepairTombstone | EntryKind::PrepareDelete => {
                self.delete(change, key);
            }
            EntryKind::Repair | EntryKind::RepairLarge => self.repair(change, key),
            EntryKind::Prepare | EntryKind::PrepareLarge => self.repair(change, key),
            EntryKind::RepairGone => self.remove(change.old, key),
            _ => {}
        }
    }

    fn write_inline(&mut self, change: &Change<'_>, key: BlockKey) {
        let header = change.header;
        assert!(header.checksums.len() as u64 * UNIT_SIZE == u64::from(header.length));
        assert!(header.location != LOCATION_NONE, "write-back needs a place");
        let is_new = location_of(change.old) == LOCATION_NONE;
        self.overlays.change(key, |overlay| {
            if is_new {
                overlay.reset();
            }
            for (index, checksum) in (0u32..).zip(&header.checksums) {
                let unit = header.offset / UNIT_SIZE as u32 + index;
                let lsn = change.data_lsn.advance(u64::from(index) * UNIT_SIZE);
                let state = match change.bad.contains(index) {
                    true => UnitState::Damaged,
                    false => UnitState::Journal(*checksum, lsn),
                };
                overlay.set(unit, state);
            }
        });
        self.put(change, key, header.location, false);
    }

    fn write_large(&mut self, change: &Change<'_>, key: BlockKey) {
        let header = change.header;
        assert!(header.checksums.len() as u64 * UNIT_SIZE == u64::from(header.length));
        assert!(header.location != LOCATION_NONE, "its data has a place of its own");
        self.overlays.change(key, |overlay| {
            overlay.reset();
            for (index, checksum) in (0u32..).zip(&header.checksums) {
                let unit = header.offset / UNIT_SIZE as u32 + index;
                let state = match change.bad.contains(index) {
                    true => UnitState::Damaged,
                    false => UnitState::Place(*checksum),
                };
                overlay.set(unit, state);
            }
        });
        self.put(change, key, header.location, false);
    }

    fn zero(&mut self, change: &Change<'_>, key: BlockKey) {
        let header = change.header;
        let block_size = header.block_size.expect("the format demands it");
        let is_whole = header.length as u64 == block_size.bytes();
        let location = if is_whole { LOCATION_NONE } else { location_of(change.old) };
        self.overlays.change(key, |overlay| {
            if location == LOCATION_NONE {
                return overlay.reset();
            }
            let first = header.offset / UNIT_SIZE as u32;
            for unit in first..first + header.length / UNIT_SIZE as u32 {
                overlay.set(unit, UnitState::Zero);
            }
        });
        self.put(change, key, location, true);
    }

    fn delete(&mut self, change: &Change<'_>, key: BlockKey) {
        let is_repair = change.header.kind == EntryKind::RepairTombstone;
        self.overlays.change(key, |overlay| {
            overlay.reset();
            overlay.table = None;
            overlay.repair_count += u32::from(is_repair);
        });
        self.put(change, key, LOCATION_NONE, true);
    }

    /// Applies a repair or a committed version: it replaces the units that the entry covers; other units
    /// stay.
    fn repair(&mut self, change: &Change<'_>, key: BlockKey) {
        let header = change.header;
        let block_size = header.block_size.expect("the format demands it");
        let is_all = match header.kind.is_prepared() {
            true => header.flags.is_whole,
            false => replaces_all(change.old, block_size, &header.units),
        };
        self.overlays.change(key, |overlay| {
            overlay.repair_count += u32::from(!header.kind.is_prepared());
            lay(overlay, change, is_all);
        });
        // If units became zeros, the block may now be empty.
        let has_zeros = header.units.count() > header.written.count() + header.damaged.count();
        self.gives_back |= has_zeros && location_of(change.old) != LOCATION_NONE;
        self.put(change, key, header.location, header.location == LOCATION_NONE);
    }

    /// Removes the block from the index without a tombstone, and so from the next checkpoint.
    fn remove(&mut self, old: Option<BlockInfo>, key: BlockKey) {
        self.overlays.change(key, |overlay| {
            overlay.reset();
            overlay.table = None;
            overlay.repair_count += 1;
        });
        let location = location_of(old);
        if location != LOCATION_NONE {
            let size = old.expect("it has a place").block_size;
            self.gives_back = true;
            self.area.free(location, size, true);
        }
        self.set_info(key, old, None);
        self.damage.forget(&key);
    }

    /// Updates the index from the entry, with the block now at `location`, and frees the old place.
    /// `takes_away`: the change removes data, so its space is given back.
    fn put(&mut self, change: &Change<'_>, key: BlockKey, location: u32, takes_away: bool) {
        let Change { header, old, .. } = *change;
        let (old_location, old_size) = (location_of(old), old.map(|info| info.block_size));
        let info = BlockInfo {
            version: header.version,
            pg: header.pg.expect("the format demands it").number as u16,
            block_size: header.block_size.or(old_size).unwrap_or(BlockSize::MIN),
            location,
            tombstone: is_deletion(header.kind),
            table_rows: table_rows_over(header, old),
        };
        self.gives_back |= takes_away && old_location != LOCATION_NONE;
        if old_location != LOCATION_NONE && old_location != location {
            self.area.free(old_location, old_size.expect("it has a place"), takes_away);
        }
        self.set_info(key, old, Some(info));
        self.forget_damage(header, location, &key);
    }

    /// Removes the records of damage of units that the entry wrote.
    fn forget_damage(&mut self, header: &EntryHeader, location: u32, key: &BlockKey) {
        let first = header.offset / UNIT_SIZE as u32;
        match header.kind {
            _ if location == LOCATION_NONE => self.damage.forget(key),
            EntryKind::WriteLarge | EntryKind::RepairLarge => self.damage.forget(key),
            EntryKind::Prepare | EntryKind::PrepareLarge if header.flags.is_whole => {
                self.damage.forget(key);
            }
            EntryKind::Repair | EntryKind::Prepare => {
                self.damage.forget_units(key, header.units.iter());
            }
            _ => {
                let units = first..first + header.length / UNIT_SIZE as u32;
                self.damage.forget_units(key, units);
            }
        }
    }

    /// Changes the index, and keeps the old entry for the running checkpoint.
    fn set_info(&mut self, key: BlockKey, old: Option<BlockInfo>, info: Option<BlockInfo>) {
        self.overlays.keep_info(&key, old);
        self.index.set(key, info);
    }

    /// Sets the part table of a block. Used by a planted bug.
    pub fn set_table(&mut self, key: BlockKey, table: Box<[u8]>) {
        self.overlays.change(key, |overlay| overlay.table = Some(table));
    }

    /// Changes the index and nothing else, as memory that lies would.
    #[cfg(test)]
    pub fn corrupt(&mut self, key: BlockKey, info: BlockInfo) {
        self.index.set(key, Some(info));
    }

    /// Makes the next checkpoint write the block again.
    pub fn look_again(&mut self, key: BlockKey) {
        self.gives_back = true;
        self.overlays.change(key, |_| {});
    }

    /// Gives back a place that nothing in the index refers to. It becomes free with a checkpoint that begins
    /// later.
    pub fn gives_back_place(&mut self, location: u32, block_size: BlockSize) {
        self.gives_back = true;
        self.area.free(location, block_size, true);
    }

    /// Records that tombstones of the PG up to `floor` are no longer needed. Requests the checkpoint that
    /// drops them, because a full store accepts no writes that would start it.
    pub fn on_floor(&mut self, pg: PgId, floor: Version) {
        self.gives_back |= self.index.tombstones_up_to(pg, floor).next().is_some();
    }
}

/// Methods for a checkpoint.
impl Blocks {
    /// Freezes the changes so far, and drops the tombstones up to the floor of their PG. Returns the places
    /// that the checkpoint no longer refers to.
    pub fn freeze(&mut self, floors: impl Iterator<Item = (PgId, Version)>) -> Vec<Freed> {
        self.gives_back = false;
        self.overlays.freeze();
        for (pg, floor) in floors {
            let keys: Vec<BlockKey> = self.index.tombstones_up_to(pg, floor).collect();
            // A tombstone stays while a version is prepared over it.
            let is_needed = |key: &BlockKey| {
                !self.prepared.of_key(key).is_empty()
                    && !planted::on(Bug::TombstoneDroppedUnderPrepared)
            };
            let keys: Vec<BlockKey> = keys.into_iter().filter(|key| !is_needed(key)).collect();
            for key in keys {
                self.overlays.freeze_as_gone(key);
                self.index.set(key, None);
            }
        }
        self.area.take_freed()
    }

    /// Returns the index entry that a frozen block had when the checkpoint began.
    pub fn frozen_info(&self, key: &BlockKey) -> Option<BlockInfo> {
        match self.overlays.frozen(key).and_then(|overlay| overlay.info) {
            Some(info) => info,
            None => self.index.get(key),
        }
    }

    /// Marks units of a frozen block as damaged, because their data, which was to be written back, is lost.
    pub fn lose_frozen(&mut self, key: BlockKey, lost: UnitSet) {
        self.overlays.lose_frozen(&key, &lost);
        self.damage.found(key, lost);
    }

    /// Frees the place of a frozen block that has been zeroed completely in several steps, with this
    /// checkpoint. Requires: the block has a place, and has not changed since it was frozen.
    pub fn free_emptied(&mut self, key: BlockKey, info: BlockInfo) -> (BlockInfo, Freed) {
        assert!(info.location != LOCATION_NONE);
        self.area.count_freed(info.block_size, true);
        let freed = Freed { location: info.location, block_size: info.block_size, discard: true };
        let info = BlockInfo { location: LOCATION_NONE, ..info };
        self.set_info(key, self.index.get(&key), Some(info));
        self.damage.forget(&key);
        (info, freed)
    }

    /// Handles the end of a durable checkpoint: frees the places that the checkpoint no longer refers to.
    pub fn on_checkpoint(&mut self, freed: Vec<Freed>) {
        self.overlays.drop_frozen();
        self.area.on_checkpoint(freed);
    }
}

/// Methods for recovery.
impl Blocks {
    /// Adds a leaf's blocks to the index. The error is for the operator.
    pub fn load(&mut self, leaf: &LeafPage) -> Result<(), String> {
        for record in leaf.records() {
            let info = info_of(record);
            self.index.set(record.key(), Some(info));
            self.occupy(info.location, info.block_size, |_, _, _| false)?;
        }
        Ok(())
    }

    /// Marks a place as allocated. Other blocks at this place are removed if they were freed, or if a
    /// checkpoint took away their place because they were emptied (`is_emptied`). The error is for the
    /// operator.
    pub fn occupy(
        &mut self,
        location: u32,
        size: BlockSize,
        mut is_emptied: impl FnMut(&Overlay, BlockKey, BlockInfo) -> bool,
    ) -> Result<(), String> {
        if location == LOCATION_NONE || self.area.allocator.take(location, size) {
            return Ok(());
        }
        // A root that is not the newest refers to places that later checkpoints freed; a segment may since
        // be in use for another block size.
        let is_in_the_way = |at: u32, of: BlockSize| match of == size {
            true => at == location,
            false => segment_of(at) == segment_of(location),
        };
        self.area.return_freed_if(is_in_the_way);
        if self.area.allocator.take(location, size) {
            return Ok(());
        }
        let blocks = self.index.iter_from(KEY_FIRST);
        let blocks: Vec<(BlockKey, BlockInfo)> = blocks
            .filter(|(_, other)| other.location != LOCATION_NONE)
            .filter(|(_, other)| is_in_the_way(other.location, other.block_size))
            .collect();
        let is_gone = |(key, info): &(BlockKey, BlockInfo)| {
            let overlay = self.overlays.live(key);
            overlay.is_some_and(|overlay| is_emptied(overlay, *key, *info))
        };
        if blocks.iter().all(is_gone) {
            for (key, info) in blocks {
                self.area.allocator.release(info.location, info.block_size, true);
                self.overlays.change(key, Overlay::reset);
                let empty = BlockInfo { location: LOCATION_NONE, ..info };
                self.set_info(key, Some(info), Some(empty));
            }
            if self.area.allocator.take(location, size) {
                return Ok(());
            }
        }
        Err(format!(
            "the index is damaged: location {location} is used by two blocks, is outside the data \
             area, or is in a segment with another block size. This version cannot repair that: \
             start the OSD from a copy of the disk, or restore its volumes from a backup into a \
             new pool"
        ))
    }
}

/// Returns the entry of the index that a record describes.
pub fn info_of(record: StoredRecord<'_>) -> BlockInfo {
    BlockInfo {
        version: record.version(),
        pg: record.pg(),
        block_size: record.block_size(),
        location: record.location(),
        tombstone: record.tombstone(),
        table_rows: record.table_rows(),
    }
}

/// Lays the units of a repair or of a prepared version over the overlay. `is_all`: the block holds nothing
/// else afterwards.
pub fn lay(overlay: &mut Overlay, change: &Change<'_>, is_all: bool) {
    let header = change.header;
    match is_all || is_deletion(header.kind) {
        true => overlay.reset(),
        false => header.units.iter().for_each(|unit| overlay.set(unit, UnitState::Zero)),
    }
    if !header.table.is_empty() {
        overlay.table = Some(header.table.as_slice().into());
    }
    header.damaged.iter().for_each(|unit| overlay.set(unit, UnitState::Damaged));
    for ((index, unit), checksum) in (0u32..).zip(header.data_units()).zip(&header.checksums) {
        let lsn = change.data_lsn.advance(u64::from(index) * UNIT_SIZE);
        let state = match change.bad.contains(index) {
            true => UnitState::Damaged,
            false if header.kind.is_large() => UnitState::Place(*checksum),
            false => UnitState::Journal(*checksum, lsn),
        };
        overlay.set(unit, state);
    }
}

/// Returns the number of rows of the block's part table after an entry. `old`: the block before the entry. An
/// entry without a table keeps the old table, except a deletion.
pub fn table_rows_over(header: &EntryHeader, old: Option<BlockInfo>) -> u8 {
    match header.block_size {
        _ if is_deletion(header.kind) => 0,
        Some(block_size) if !header.table.is_empty() => {
            table_rows(&header.table, block_size).expect("the format demands it")
        }
        block_size => {
            let is_same = |old: &BlockInfo| block_size.is_none_or(|size| size == old.block_size);
            old.filter(is_same).map_or(0, |old| old.table_rows)
        }
    }
}

/// Whether the block is deleted after an entry of this kind.
fn is_deletion(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Delete | EntryKind::RepairTombstone | EntryKind::PrepareDelete)
}

/// Whether the block holds only these units after a repair that covers them.
pub fn replaces_all(old: Option<BlockInfo>, block_size: BlockSize, units: &UnitSet) -> bool {
    units.count() == block_size.unit_count() || location_of(old) == LOCATION_NONE
}

/// Whether data read from the disk matches its checksum.
pub fn matches(data: &[u8], checksum: Checksum) -> bool {
    planted::on(Bug::ChecksumNotCompared) || base::crc32c(data) == checksum
}
