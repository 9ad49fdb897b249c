//! Repairs: content sent by another member replaces the block, whatever its version was.
//!
//! ```text
//!   all of the block, much data:  [entry] and, in parallel, data ──▶ newly allocated place
//!   else:                         [entry | data of the written units], others stay as they are
//! ```
//!
//! A repair of a parity part contains its new part table, or keeps the existing table.
//!
//! Invariants
//!   1. One repair is one entry: after a crash the block is as it was before the repair, or after it.
//!   2. A repair does not change the PG's last version: it says nothing about other blocks.

use base::planted::{self, Bug};
use base::{BlockSize, Buffer, BufferPool, PgId, UNIT_SIZE, checksum};
use format::disk::{BlockKey, EntryHeader, EntryKind, LOCATION_NONE, UnitSet};
use format::wire::Content;

use crate::blocks::replaces_all;
use crate::index::{BlockInfo, location_of};
use crate::journal::Asker;
use crate::store::Store;
use crate::store::write::{Admit, EntryKinds, Plan, block_header};
use crate::{Effect, Request, RequestId, StoreError};

const UNIT: usize = UNIT_SIZE as usize;

impl Store {
    /// Tries to accept a repair. Returns the request if it must wait.
    pub(super) fn try_repair(
        &mut self,
        id: RequestId,
        pg: PgId,
        key: BlockKey,
        content: Content,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        // It is compared once, however long it waits.
        if self.compared.take() != Some(id) && !is_whole(&content) {
            effects.push(Effect::Done { id, result: Err(StoreError::Corrupted) });
            return None;
        }
        if let Content::Block { block_size, .. } = &content
            && needs_place(&content)
        {
            self.want_place(*block_size, effects);
        }
        if !self.parts().blocks.prepared.of_key(&key).is_empty() {
            effects.push(Effect::Done { id, result: Err(StoreError::Unordered) });
            return None;
        }
        let old = self.parts().blocks.get(&key);
        match self.admit_repair(old, &content) {
            Admit::Now(plan) => {
                self.accept_repair(id, (pg, key), content, (plan, old), effects);
                None
            }
            Admit::Wait { checkpoint } => {
                self.wait_for_room(checkpoint);
                self.compared = Some(id);
                Some(Request::Repair { pg, key, content })
            }
            Admit::Refuse(error) => {
                effects.push(Effect::Done { id, result: Err(error) });
                None
            }
        }
    }

    fn admit_repair(&self, old: Option<BlockInfo>, content: &Content) -> Admit {
        match content {
            Content::Gone => self.admit_plain(EntryKind::RepairGone),
            Content::Tombstone { .. } => {
                match self.parts().has_record_room(old, BlockSize::MIN, (false, 0)) {
                    true => self.admit_plain(EntryKind::RepairTombstone),
                    false => Admit::Refuse(StoreError::Full),
                }
            }
            Content::Block { block_size, units, data, table, .. } => {
                let is_all = replaces_all(old, *block_size, &UnitSet::from_slice(units));
                let kinds = EntryKinds {
                    inline: EntryKind::Repair,
                    large: EntryKind::RepairLarge,
                    table_size: table.len(),
                };
                if needs_place(content) {
                    let length = data.as_ref().map_or(0, |data| data.len() as u64);
                    return self.admit_data(old, *block_size, (is_all, length), kinds);
                }
                let table_size = kinds.table_size_over(old);
                match self.parts().has_record_room(old, *block_size, (!is_all, table_size)) {
                    true => {
                        let size = kinds.size_of(kinds.inline, 0, self.sector_size());
                        self.admit_size(kinds.inline, size)
                    }
                    false => Admit::Refuse(StoreError::Full),
                }
            }
        }
    }

    fn accept_repair(
        &mut self,
        id: RequestId,
        (pg, key): (PgId, BlockKey),
        content: Content,
        (plan, old): (Plan, Option<BlockInfo>),
        effects: &mut Vec<Effect>,
    ) {
        self.written_at = self.now;
        let needs_place = needs_place(&content);
        let (mut header, data) = repair_header((pg, key), content);
        let Some(block_size) = header.block_size else {
            return self.accept_entry(Asker::plain(id), header, None, old);
        };
        let place = location_of(old);
        let old_size = old.filter(|_| place != LOCATION_NONE).map(|old| old.block_size);
        assert!(old_size.is_none_or(|old| old == block_size), "a pool has one block size");
        let old = match planted::on(Bug::RepairInTwoSteps) {
            true => self.repair_version_alone(&header, old),
            false => old,
        };
        let is_all = replaces_all(old, block_size, &header.units);
        let data = data.unwrap_or_else(|| self.pool.take(0).freeze());
        if !needs_place {
            header.location = if is_all { LOCATION_NONE } else { place };
            return self.accept_entry(Asker::plain(id), header, Some(data), old);
        }
        let allocator = &mut self.parts_mut().blocks.area.allocator;
        header.location = match plan == Plan::Large || place == LOCATION_NONE {
            true => allocator.allocate(block_size).expect("admitted only with space"),
            false => place,
        };
        if plan != Plan::Large {
            return self.accept_entry(Asker::plain(id), header, Some(data), old);
        }
        self.accept_repair_large(Asker::plain(id), (header, key), data, old, effects);
    }

    /// Journals an unchanged block with its data at a new place.
    pub(super) fn accept_move(
        &mut self,
        asker: Asker,
        (pg, key): (PgId, BlockKey),
        content: Content,
        (location, old): (u32, Option<BlockInfo>),
        effects: &mut Vec<Effect>,
    ) {
        self.written_at = self.now;
        let (mut header, data) = repair_header((pg, key), content);
        header.location = location;
        let data = data.expect("a block without data is not moved");
        self.accept_repair_large(asker, (header, key), data, old, effects);
        if planted::on(Bug::MovedPlaceReusedEarly) {
            self.parts_mut().blocks.area.return_last_freed();
        }
    }

    pub(super) fn accept_repair_large(
        &mut self,
        asker: Asker,
        (mut header, key): (EntryHeader, BlockKey),
        data: Buffer,
        old: Option<BlockInfo>,
        effects: &mut Vec<Effect>,
    ) {
        header.kind = match header.kind {
            EntryKind::Prepare => EntryKind::PrepareLarge,
            _ => EntryKind::RepairLarge,
        };
        (header.offset, header.length) = header.written.span();
        let data = spread(data, &header.written, &self.pool);
        self.accept_large(asker, (header, key), data, old, effects);
    }
}

/// Builds the entry of a repair and its data. The entry is inline and has no location yet.
pub(super) fn repair_header(
    (pg, key): (PgId, BlockKey),
    content: Content,
) -> (EntryHeader, Option<Buffer>) {
    let header = |kind, version| block_header(kind, pg, key, version);
    match content {
        Content::Gone => (header(EntryKind::RepairGone, base::Version::ZERO), None),
        Content::Tombstone { version } => (header(EntryKind::RepairTombstone, version), None),
        Content::Block { version, block_size, units, written, damaged, checksums, data, table } => {
            let [units, written, damaged] =
                [units, written, damaged].map(|set| UnitSet::from_slice(&set));
            let of_block = EntryHeader {
                block_size: Some(block_size),
                units,
                written,
                damaged,
                checksums,
                table,
                ..header(EntryKind::Repair, version)
            };
            (of_block, data)
        }
    }
}

impl Store {
    /// A planted bug: journals the version in one entry and the units in the next one.
    fn repair_version_alone(
        &mut self,
        header: &EntryHeader,
        old: Option<BlockInfo>,
    ) -> Option<BlockInfo> {
        let none = UnitSet::EMPTY;
        let (location, checksums) = (location_of(old), Vec::new());
        let header = header.clone();
        let mut alone = EntryHeader {
            units: none,
            written: none,
            damaged: none,
            location,
            checksums,
            ..header
        };
        let nothing = self.pool.take(0).freeze();
        self.journal_entry(&mut alone, Some(nothing), old);
        self.parts().blocks.get(&alone.key.expect("of a block"))
    }
}

/// Whether the block has units that need a place after the repair: written or damaged ones.
pub(super) fn needs_place(content: &Content) -> bool {
    match content {
        Content::Block { written, damaged, .. } => {
            written.iter().chain(damaged).any(|word| *word != 0)
        }
        Content::Gone | Content::Tombstone { .. } => false,
    }
}

/// Returns the content's part table; empty if it has none.
pub(super) fn table_of(content: &Content) -> &[u8] {
    match content {
        Content::Block { table, .. } => table,
        Content::Gone | Content::Tombstone { .. } => &[],
    }
}

/// Whether the content is consistent and its data matches its checksums.
pub(super) fn is_whole(content: &Content) -> bool {
    let Content::Block { checksums, data, .. } = content else { return true };
    content.check().is_ok()
        && data.as_ref().is_none_or(|data| checksum::first_mismatch(data, checksums).is_none())
}

/// Lays out the data of these units as it is stored in the block's place, with zeros in the gaps between
/// units.
pub(super) fn spread(data: Buffer, units: &UnitSet, pool: &BufferPool) -> Buffer {
    let (offset, length) = units.span();
    if data.len() == length as usize {
        return data;
    }
    let mut place = pool.take_zeroed(length as usize);
    for (bytes, unit) in data.chunks_exact(UNIT).zip(units.iter()) {
        let start = unit as usize * UNIT - offset as usize;
        place[start..start + UNIT].copy_from_slice(bytes);
    }
    place.freeze()
}
