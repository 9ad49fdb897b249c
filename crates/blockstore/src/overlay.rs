//! Overlays: what changed in each block since the last checkpoint, unit by unit, on top of its leaf.
//!
//! ```text
//!   a unit is looked up in    prepared versions, newest first ──▶ live ──▶ frozen (while a checkpoint runs) ──▶ the leaf
//! ```
//!
//! Invariants
//!   1. Patches are ordered by unit, with at most one per unit.
//!   2. While no checkpoint is running, nothing is frozen.
//!   3. The byte counts are the sums over the overlays made by requests and replay; overlays for tombstones
//!      that a checkpoint drops are not counted.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use base::{Checksum, Lsn};
use format::disk::{BlockKey, UnitSet};

use crate::index::BlockInfo;
use crate::prepared::PreparedVersion;

/// Where the content of a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitState {
    /// The unit reads as zeros.
    Zero,
    /// The content is in the block's place.
    Place(Checksum),
    /// The content is in the journal, at this lsn.
    Journal(Checksum, Lsn),
    /// The content is lost.
    Damaged,
}

/// The changed state of one unit. Kept small, because there are many.
#[derive(Clone, Copy, Debug)]
struct Patch {
    /// Used for `Journal` only.
    lsn: u64,
    checksum: u32,
    unit: u16,
    kind: u8,
}

const _: () = assert!(size_of::<Patch>() == 16);

impl Patch {
    fn new(unit: u32, state: UnitState) -> Patch {
        let (kind, checksum, lsn) = match state {
            UnitState::Zero => (0, 0, 0),
            UnitState::Place(checksum) => (1, checksum.get(), 0),
            UnitState::Journal(checksum, lsn) => (2, checksum.get(), lsn.get()),
            UnitState::Damaged => (3, 0, 0),
        };
        Patch { lsn, checksum, unit: unit as u16, kind }
    }

    fn state(&self) -> UnitState {
        let checksum = Checksum::new(self.checksum);
        match self.kind {
            0 => UnitState::Zero,
            1 => UnitState::Place(checksum),
            2 => UnitState::Journal(checksum, Lsn::new(self.lsn)),
            _ => UnitState::Damaged,
        }
    }
}

/// Changes of one block.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Whether this overlay hides the layers below: units without a patch are zeros.
    pub is_fresh: bool,
    /// While frozen: the block's entry in the index when the checkpoint began, if it has changed since.
    pub info: Option<Option<BlockInfo>>,
    /// Number of repairs in this overlay. A repair can change a block without changing its version.
    pub repair_count: u32,
    /// The new part table of a parity part, if the table has changed. Like the version, it belongs to the
    /// whole block, so a fresh overlay without a table does not hide the table below. Whether the block has a
    /// table at all is recorded in its [`BlockInfo`].
    pub table: Option<Box<[u8]>>,
    patches: Vec<Patch>,
}

/// Approximate memory of an overlay without patches, in bytes.
const OVERLAY_SIZE: u64 = 128;

impl Overlay {
    /// Returns the unit's state in this overlay; `None`: the layers below determine it.
    pub fn get(&self, unit: u32) -> Option<UnitState> {
        match self.patches.binary_search_by_key(&unit, |patch| patch.unit as u32) {
            Ok(at) => Some(self.patches[at].state()),
            Err(_) if self.is_fresh => Some(UnitState::Zero),
            Err(_) => None,
        }
    }

    /// Sets the state of a unit.
    pub fn set(&mut self, unit: u32, state: UnitState) {
        let patch = Patch::new(unit, state);
        match self.patches.binary_search_by_key(&unit, |patch| patch.unit as u32) {
            Ok(at) => self.patches[at] = patch,
            Err(at) => self.patches.insert(at, patch),
        }
    }

    /// Sets all units to zeros.
    pub fn reset(&mut self) {
        self.is_fresh = true;
        self.patches = Vec::new();
    }

    /// Returns the changed units in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, UnitState)> + '_ {
        self.patches.iter().map(|patch| (patch.unit as u32, patch.state()))
    }

    /// Returns the number of units whose data is in the journal and not yet written back.
    pub fn journal_units_count(&self) -> usize {
        self.iter().filter(|(_, state)| matches!(state, UnitState::Journal(..))).count()
    }

    /// Whether any unit has data that is not yet written back.
    pub fn has_journal_data(&self) -> bool {
        self.journal_units_count() > 0
    }

    /// Returns the approximate memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let table = self.table.as_ref().map_or(0, |table| table.len());
        OVERLAY_SIZE + (self.patches.capacity() * size_of::<Patch>() + table) as u64
    }
}

/// The overlays of all blocks.
#[derive(Default)]
pub struct Overlays {
    /// Changes since the last checkpoint began.
    live: BTreeMap<BlockKey, Overlay>,
    live_bytes: u64,
    /// Changes that the running checkpoint writes.
    frozen: BTreeMap<BlockKey, Overlay>,
    frozen_bytes: u64,
}

impl Overlays {
    /// Returns the approximate memory of all overlays, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.live_bytes + self.frozen_bytes
    }

    /// Returns the approximate memory of the live overlays, in bytes.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the changes of one block since the last checkpoint began.
    pub fn live(&self, key: &BlockKey) -> Option<&Overlay> {
        self.live.get(key)
    }

    /// Returns the changes of one block that the running checkpoint writes.
    pub fn frozen(&self, key: &BlockKey) -> Option<&Overlay> {
        self.frozen.get(key)
    }

    /// Returns all changes that the running checkpoint writes, in order of keys.
    pub fn frozen_in(
        &self,
        range: impl RangeBounds<BlockKey>,
    ) -> impl Iterator<Item = (&BlockKey, &Overlay)> {
        self.frozen.range(range)
    }

    /// Returns both overlays of one block.
    pub fn layers(&self, key: &BlockKey) -> Layers<'_> {
        Layers { prepared: &[], live: self.live.get(key), frozen: self.frozen.get(key) }
    }

    /// Changes a block's live overlay.
    pub fn change(&mut self, key: BlockKey, change: impl FnOnce(&mut Overlay)) {
        let overlay = self.live.entry(key).or_insert_with(|| {
            self.live_bytes += OVERLAY_SIZE;
            Overlay::default()
        });
        let before = overlay.memory_bytes();
        change(overlay);
        self.live_bytes = self.live_bytes + overlay.memory_bytes() - before;
    }

    /// Freezes all changes so far, for a checkpoint that begins. Requires: no checkpoint is running.
    pub fn freeze(&mut self) {
        assert!(self.frozen.is_empty());
        assert!(self.frozen_bytes == 0);
        self.frozen = std::mem::take(&mut self.live);
        self.frozen_bytes = std::mem::take(&mut self.live_bytes);
    }

    /// Drops the frozen overlays. Requires: the checkpoint is durable, so its leaves contain them.
    pub fn drop_frozen(&mut self) {
        self.frozen.clear();
        self.frozen_bytes = 0;
    }

    /// Keeps the index entry of a frozen block as it was when the checkpoint began. Must be called before the
    /// index changes.
    pub fn keep_info(&mut self, key: &BlockKey, old: Option<BlockInfo>) {
        if let Some(frozen) = self.frozen.get_mut(key)
            && frozen.info.is_none()
        {
            frozen.info = Some(old);
        }
    }

    /// Makes the running checkpoint write the block as absent.
    pub fn freeze_as_gone(&mut self, key: BlockKey) {
        let frozen = self.frozen.entry(key).or_default();
        frozen.reset();
        frozen.info = Some(None);
    }

    /// Marks these units of a frozen block as damaged. Requires: the block is frozen.
    pub fn lose_frozen(&mut self, key: &BlockKey, lost: &UnitSet) {
        let frozen = self.frozen.get_mut(key).expect("it is frozen");
        lost.iter().for_each(|unit| frozen.set(unit, UnitState::Damaged));
    }
}

/// The overlays of one block, looked up once for all of its units.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    /// Prepared versions, oldest first.
    pub prepared: &'a [PreparedVersion],
    pub live: Option<&'a Overlay>,
    pub frozen: Option<&'a Overlay>,
}

impl Layers<'_> {
    /// Returns where the unit's content is; `None`: the leaf determines it.
    pub fn get(&self, unit: u32) -> Option<UnitState> {
        let state = |overlay: Option<&Overlay>| overlay.and_then(|overlay| overlay.get(unit));
        let mut prepared = self.prepared.iter().rev();
        let prepared = prepared.find_map(|version| version.overlay.get(unit));
        prepared.or_else(|| state(self.live)).or_else(|| state(self.frozen))
    }

    /// Returns the part table of a block that has one; `None`: the newest table is in the leaf.
    pub fn table(&self) -> Option<&[u8]> {
        let prepared = self.prepared.iter().rev().map(|version| &version.overlay);
        let mut layers = prepared.chain(self.live).chain(self.frozen);
        layers.find_map(|overlay| overlay.table.as_deref())
    }

    /// Returns the number of repairs in both overlays.
    pub fn repair_count(&self) -> u32 {
        [self.live, self.frozen].into_iter().flatten().map(|overlay| overlay.repair_count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_block_is_zeros_where_nothing_was_written() {
        let mut overlay = Overlay::default();
        let states = [
            UnitState::Journal(Checksum::new(1), Lsn::new(512)),
            UnitState::Place(Checksum::new(2)),
            UnitState::Damaged,
            UnitState::Zero,
        ];
        for (unit, state) in states.into_iter().enumerate() {
            overlay.set(10 - unit as u32, state);
            assert_eq!(overlay.get(10 - unit as u32), Some(state));
        }
        assert!(overlay.has_journal_data());
        assert_eq!(overlay.get(3), None);
        overlay.reset();
        assert_eq!(overlay.get(3), Some(UnitState::Zero));
        assert_eq!(overlay.get(10), Some(UnitState::Zero));
        assert!(!overlay.has_journal_data());
    }

    #[test]
    fn a_live_overlay_hides_a_frozen_one() {
        let [mut live, mut frozen] = [Overlay::default(), Overlay::default()];
        frozen.set(1, UnitState::Damaged);
        frozen.set(2, UnitState::Damaged);
        live.set(2, UnitState::Zero);
        (live.repair_count, frozen.repair_count) = (1, 2);
        let layers = Layers { prepared: &[], live: Some(&live), frozen: Some(&frozen) };
        let states = [0, 1, 2].map(|unit| layers.get(unit));
        assert_eq!(states, [None, Some(UnitState::Damaged), Some(UnitState::Zero)]);
        assert_eq!(layers.repair_count(), 3);
        let below = Layers { prepared: &[], live: None, frozen: Some(&frozen) };
        assert_eq!(below.get(2), Some(UnitState::Damaged));
        assert_eq!(layers.table(), None);
        frozen.table = Some([1].into());
        live.reset();
        let layers = Layers { prepared: &[], live: Some(&live), frozen: Some(&frozen) };
        assert_eq!(layers.table(), Some(&[1][..]), "it is no unit");
        live.table = Some([2].into());
        let layers = Layers { prepared: &[], live: Some(&live), frozen: Some(&frozen) };
        assert_eq!(layers.table(), Some(&[2][..]));
        assert_eq!(Layers { prepared: &[], live: None, frozen: None }.get(2), None);
    }
}
