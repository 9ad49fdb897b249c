//! Part tables of parity parts: each new table encodes a unique value, so that an answer shows which table it
//! contains.

use std::ops::Range;

use base::BlockSize;
use blockstore::BlockKey;
use format::disk::{UnitSet, table_size};
use format::wire::Content;

use super::versions::Held;
use super::world::World;
use crate::random::Chance;

/// Returns the part table that encodes this value; empty for 0.
fn table_of(value: u64, rows: u8, size: BlockSize) -> Vec<u8> {
    if value == 0 {
        return Vec::new();
    }
    let units = size.unit_count();
    let mut table = vec![0; table_size(size, rows)];
    for (number, row) in (1u64..).zip(table.chunks_exact_mut(table_size(size, 1))) {
        row[..4].copy_from_slice(&(number as u32).to_le_bytes());
        row[4..12].copy_from_slice(&value.to_le_bytes());
        let written = |unit: &u32| value.wrapping_mul(2 * number + 1) >> (unit % 61) & 1 != 0;
        for unit in (0..units).filter(written) {
            row[12 + unit as usize / 8] |= 1 << (unit % 8);
        }
    }
    table
}

/// Returns the set of units in a range.
pub(super) fn set_of(units: Range<u32>) -> UnitSet {
    let mut set = UnitSet::EMPTY;
    units.for_each(|unit| set.insert(unit));
    set
}

impl World {
    /// Returns the number of rows in the part tables of this block's pool; 0: its blocks have no part
    /// tables.
    pub(super) fn table_rows(&self, key: BlockKey) -> u8 {
        self.plan.pools[key.pool.get() as usize - 1].table_rows
    }

    /// Draws the part table of a new version. Most versions have a new table; others keep the block's
    /// previous table.
    pub(super) fn draw_table(&mut self, key: BlockKey, held: &mut Held, value: u64) {
        if held.is_deleted || self.table_rows(key) == 0 {
            held.table = 0;
        } else if self.work.chance(Chance::percent(85)) {
            held.table = value;
        }
    }

    /// Adds the part table in `held` to a content, unless it is the block's existing table, with value
    /// `stays`.
    pub(super) fn add_table(&self, key: BlockKey, content: &mut Content, held: &Held, stays: u64) {
        if let Content::Block { table, block_size, .. } = content
            && held.table != stays
        {
            *table = table_of(held.table, self.table_rows(key), *block_size);
        }
    }

    /// Checks the part table in a copy of a block. A table may be missing only if the journal or a
    /// checkpoint was damaged.
    pub(super) fn check_table(
        &self,
        key: BlockKey,
        content: &Content,
        held: &Held,
    ) -> Result<(), String> {
        let Content::Block { table, block_size, version, .. } = content else { return Ok(()) };
        let wanted = table_of(held.table, self.table_rows(key), *block_size);
        if *table == wanted || (table.is_empty() && self.damage.deep) {
            return Ok(());
        }
        let counter = table.get(4..12).and_then(|bytes| bytes.try_into().ok());
        let found = counter.map_or(0, u64::from_le_bytes);
        Err(format!(
            "the part table of {key:?} (version {version}) is that of value {found} instead of {} \
             (0: none)",
            held.table
        ))
    }
}
