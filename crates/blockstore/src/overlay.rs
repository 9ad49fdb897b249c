//! Overlays: what changed in each block since the last checkpoint, unit by unit, on top of its leaf.
//!
//! ```text
//!   a unit is looked up in    live ──▶ frozen (while a checkpoint runs) ──▶ the leaf
//! ```
//!
//! Invariants
//!   1. Patches are ordered by unit, at most one a unit.
//!   2. While no checkpoint runs nothing is frozen.
//!   3. The byte counts are the sums over the overlays that requests and replay made; tombstones that a checkpoint
//!      drops are not counted.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use base::{Checksum, Lsn};
use format::disk::{BlockKey, UnitSet};

use crate::index::BlockInfo;

/// Where the content of a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitState {
    /// It reads as zeros.
    Zero,
    /// In the block's place.
    Place(Checksum),
    /// In the journal, at this lsn.
    Journal(Checksum, Lsn),
    /// It is lost.
    Damaged,
}

/// The changed state of one unit. It is kept small: there are many.
#[derive(Clone, Copy, Debug)]
struct Patch {
    /// Meaningful for `Journal` only.
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
    /// Hides the layers below: units without a patch are zeros.
    pub is_fresh: bool,
    /// While frozen: what the index said when the checkpoint began, if it says otherwise now.
    pub info: Option<Option<BlockInfo>>,
    /// Number of repairs in it. A repair can change a block without changing its version.
    pub repair_count: u32,
    patches: Vec<Patch>,
}

/// Approximate memory of an overlay without patches, in bytes.
const OVERLAY_SIZE: u64 = 128;

impl Overlay {
    /// The unit's state here; `None`: look below.
    pub fn get(&self, unit: u32) -> Option<UnitState> {
        match self.patches.binary_search_by_key(&unit, |patch| patch.unit as u32) {
            Ok(at) => Some(self.patches[at].state()),
            Err(_) if self.is_fresh => Some(UnitState::Zero),
            Err(_) => None,
        }
    }

    /// Changes a unit.
    pub fn set(&mut self, unit: u32, state: UnitState) {
        let patch = Patch::new(unit, state);
        match self.patches.binary_search_by_key(&unit, |patch| patch.unit as u32) {
            Ok(at) => self.patches[at] = patch,
            Err(at) => self.patches.insert(at, patch),
        }
    }

    /// All units are zeros from now on.
    pub fn reset(&mut self) {
        self.is_fresh = true;
        self.patches = Vec::new();
    }

    /// Changed units in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, UnitState)> + '_ {
        self.patches.iter().map(|patch| (patch.unit as u32, patch.state()))
    }

    /// Number of units whose data is in the journal and not yet written back.
    pub fn journal_units_count(&self) -> usize {
        self.iter().filter(|(_, state)| matches!(state, UnitState::Journal(..))).count()
    }

    /// Whether any unit has data that is not yet written back.
    pub fn has_journal_data(&self) -> bool {
        self.journal_units_count() > 0
    }

    /// Approximate memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        OVERLAY_SIZE + (self.patches.capacity() * size_of::<Patch>()) as u64
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
    /// Approximate memory of all overlays, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.live_bytes + self.frozen_bytes
    }

    /// Approximate memory of the live overlays, in bytes.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Changes of one block since the last checkpoint began.
    pub fn live(&self, key: &BlockKey) -> Option<&Overlay> {
        self.live.get(key)
    }

    /// Changes of one block that the running checkpoint writes.
    pub fn frozen(&self, key: &BlockKey) -> Option<&Overlay> {
        self.frozen.get(key)
    }

    /// All that the running checkpoint writes, in order.
    pub fn frozen_in(
        &self,
        range: impl RangeBounds<BlockKey>,
    ) -> impl Iterator<Item = (&BlockKey, &Overlay)> {
        self.frozen.range(range)
    }

    /// Both overlays of one block.
    pub fn layers(&self, key: &BlockKey) -> Layers<'_> {
        Layers { live: self.live.get(key), frozen: self.frozen.get(key) }
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

    /// A checkpoint begins: it writes what changed so far. Requires: none runs.
    pub fn freeze(&mut self) {
        assert!(self.frozen.is_empty());
        assert!(self.frozen_bytes == 0);
        self.frozen = std::mem::take(&mut self.live);
        self.frozen_bytes = std::mem::take(&mut self.live_bytes);
    }

    /// The checkpoint is durable: its leaves say all that was frozen.
    pub fn drop_frozen(&mut self) {
        self.frozen.clear();
        self.frozen_bytes = 0;
    }

    /// The index is about to change: keeps what it said of a frozen block when the checkpoint began.
    pub fn keep_info(&mut self, key: &BlockKey, old: Option<BlockInfo>) {
        if let Some(frozen) = self.frozen.get_mut(key)
            && frozen.info.is_none()
        {
            frozen.info = Some(old);
        }
    }

    /// The running checkpoint writes the block as one that is not there.
    pub fn freeze_as_gone(&mut self, key: BlockKey) {
        let frozen = self.frozen.entry(key).or_default();
        frozen.reset();
        frozen.info = Some(None);
    }

    /// Data of these units of a frozen block is lost. Requires: it is frozen.
    pub fn lose_frozen(&mut self, key: &BlockKey, lost: &UnitSet) {
        let frozen = self.frozen.get_mut(key).expect("it is frozen");
        lost.iter().for_each(|unit| frozen.set(unit, UnitState::Damaged));
    }
}

/// Both overlays of one block, looked up once for all of its units.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    pub live: Option<&'a Overlay>,
    pub frozen: Option<&'a Overlay>,
}

impl Layers<'_> {
    /// Where the unit's content is; `None`: the leaf knows.
    pub fn get(&self, unit: u32) -> Option<UnitState> {
        let state = |overlay: Option<&Overlay>| overlay.and_then(|overlay| overlay.get(unit));
        state(self.live).or_else(|| state(self.frozen))
    }

    /// Number of repairs in them.
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
        let layers = Layers { live: Some(&live), frozen: Some(&frozen) };
        let states = [0, 1, 2].map(|unit| layers.get(unit));
        assert_eq!(states, [None, Some(UnitState::Damaged), Some(UnitState::Zero)]);
        assert_eq!(layers.repair_count(), 3);
        let below = Layers { live: None, frozen: Some(&frozen) };
        assert_eq!(below.get(2), Some(UnitState::Damaged));
        assert_eq!(Layers { live: None, frozen: None }.get(2), None);
    }
}
