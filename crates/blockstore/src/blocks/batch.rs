//! Blocks of a batch: what its lines do to the index and the overlays.
//!
//! Invariants
//!   1. All lines of a block take effect together.
//!   2. A block with data has a place: the one that it had, or the one that a line names, which this entry allocated.

use base::{BlockSize, Lsn, PgId, UNIT_SIZE};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, UnitSet};

use super::Blocks;
use crate::index::{BlockInfo, location_of};
use crate::overlay::{Overlay, UnitState};

/// All lines of one block in a batch.
pub struct BlockLines<'a> {
    pub pg: PgId,
    pub block_size: BlockSize,
    pub lines: &'a [BlockChange],
    /// Where the data of the first unit in the journal begins.
    pub data_lsn: Lsn,
    /// Units whose data is lost.
    pub bad: UnitSet,
}

impl BlockLines<'_> {
    /// Returns all units that the lines name.
    fn units(&self) -> UnitSet {
        let mut units = UnitSet::EMPTY;
        self.lines.iter().flat_map(|line| line.units.iter()).for_each(|unit| units.insert(unit));
        units
    }

    /// Returns the place that the entry allocated; `LOCATION_NONE`: none.
    fn named(&self) -> u32 {
        let mut named = self.lines.iter().map(|line| line.location);
        named.find(|location| *location != LOCATION_NONE).unwrap_or(LOCATION_NONE)
    }

    fn lay(&self, overlay: &mut Overlay, is_all: bool) {
        if is_all {
            overlay.reset();
        }
        let mut lsn = self.data_lsn;
        for line in self.lines {
            let mut checksums = line.checksums.iter();
            for unit in line.units.iter() {
                let checksum = line.action.has_data().then(|| checksums.next()).flatten();
                let state = match (line.action, checksum) {
                    (_, Some(_)) if self.bad.contains(unit) => UnitState::Damaged,
                    (BlockAction::Units, Some(checksum)) => UnitState::Journal(*checksum, lsn),
                    (_, Some(checksum)) => UnitState::Place(*checksum),
                    (BlockAction::Damaged, None) => UnitState::Damaged,
                    _ => UnitState::Zero,
                };
                if line.action == BlockAction::Units {
                    lsn = lsn.advance(UNIT_SIZE);
                }
                if !(is_all && state == UnitState::Zero) {
                    overlay.set(unit, state);
                }
            }
        }
    }
}

impl Blocks {
    /// Applies the lines of a block, in the same way for a request and for recovery. Returns false, and
    /// changes nothing, if the block has no place for its data: an earlier entry that gave it one is lost.
    pub fn apply_lines(&mut self, of: &BlockLines<'_>) -> bool {
        let first = &of.lines[0];
        let old = self.get(&first.key);
        if first.action == BlockAction::Gone {
            self.remove(old, first.key);
            return true;
        }
        let (units, named, old_location) = (of.units(), of.named(), location_of(old));
        // A place that the entry allocated holds nothing else.
        let is_all = named != LOCATION_NONE
            || old_location == LOCATION_NONE
            || units.count() == of.block_size.unit_count();
        let needs_place = of.lines.iter().any(|line| line.action != BlockAction::Zeros);
        let location = match (named, is_all && !needs_place) {
            (LOCATION_NONE, true) => LOCATION_NONE,
            (LOCATION_NONE, false) => old_location,
            (named, _) => named,
        };
        if needs_place && location == LOCATION_NONE {
            return false;
        }
        self.overlays.change(first.key, |overlay| {
            overlay.repair_count += 1;
            of.lay(overlay, is_all);
        });
        let has_zeros = of.lines.iter().any(|line| line.action == BlockAction::Zeros);
        let is_gone = location == LOCATION_NONE;
        if old_location != LOCATION_NONE {
            self.gives_back |= has_zeros;
            if old_location != location {
                let size = old.expect("it has a place").block_size;
                self.area.free(old_location, size, is_gone);
            }
        }
        let info = BlockInfo {
            version: first.version,
            pg: of.pg.number as u16,
            block_size: of.block_size,
            location,
            tombstone: false,
            table_rows: 0,
        };
        self.set_info(first.key, old, Some(info));
        match is_all {
            true => self.damage.forget(&first.key),
            false => self.damage.forget_units(&first.key, units.iter()),
        }
        true
    }
}
