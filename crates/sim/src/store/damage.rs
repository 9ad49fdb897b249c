//! The damage that a run has done so far, and the answers of the store that it explains.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::UNIT_SIZE;
use blockstore::BlockKey;
use format::disk::{Area, Superblock};

/// The damage of a run.
pub(super) struct Damage {
    pub(super) superblock: Range<u64>,
    pub(super) journal: Range<u64>,
    pub(super) checkpoints: Range<u64>,
    pub(super) data: Range<u64>,
    /// Whether stored bytes were damaged.
    pub happened: bool,
    /// Whether the journal or checkpoints were damaged: the store may not know what it held.
    pub deep: bool,
    /// Whether a write or flush failed, so that the store must stop.
    pub must_stop: bool,
    /// An upper bound of the units that damage to the data area has hit.
    pub(super) units_hit: u64,
    /// Units that were answered as damaged.
    units_met: BTreeSet<(BlockKey, u32)>,
    /// How often reads at an offset have failed in this run of the store: never so often that the
    /// store gives up on the place.
    pub read_errors: BTreeMap<u64, u32>,
    /// Flipped bits: (offset, mask).
    pub(super) flips: Vec<(u64, u8)>,
    /// Whether sectors were unreadable when the store opened, which counted their content as lost.
    pub(super) has_lost_sectors: bool,
    /// Whether a root may have been damaged since the store opened: next time it may open with an
    /// older root.
    pub may_lack_root: bool,
    /// The journal records writes up to this count of completed writes as durable.
    pub(super) settled: u64,
    /// The value of `settled` once another change is answered.
    settling: u64,
    /// The block and units that each change wrote, by the change's order.
    pub written: BTreeMap<u64, (BlockKey, Range<u32>)>,
}

impl Damage {
    pub fn new(layout: &Superblock) -> Damage {
        let area = |area: Area| area.offset..area.end();
        Damage {
            superblock: 0..UNIT_SIZE,
            journal: area(layout.journal),
            checkpoints: area(layout.checkpoints),
            data: area(layout.data),
            happened: false,
            deep: false,
            must_stop: false,
            units_hit: 0,
            units_met: BTreeSet::new(),
            read_errors: BTreeMap::new(),
            flips: Vec::new(),
            has_lost_sectors: false,
            may_lack_root: false,
            settled: 0,
            settling: 0,
            written: BTreeMap::new(),
        }
    }

    /// Whether a change ever put this value into the unit.
    pub fn was_written(&self, key: BlockKey, unit: u32, value: u64) -> bool {
        let by = self.written.get(&value);
        value == 0 || by.is_some_and(|(written, units)| *written == key && units.contains(&unit))
    }

    /// Records that a change was answered; `quiet`: no other request is open.
    pub fn answered(&mut self, quiet: bool, written_count: u64) {
        self.settled = self.settling;
        if quiet {
            self.settling = written_count;
        }
    }

    /// Records that the store has opened: what it found is durable now, and the losses from damage
    /// are final.
    pub fn opened(&mut self, written_count: u64, unreadable_count: usize) {
        self.flips.clear();
        self.may_lack_root = false;
        self.has_lost_sectors = unreadable_count > 0;
        self.settling = written_count;
    }

    /// Records units that the store reports as damaged. Fails if these are more than damage can have
    /// hit.
    pub fn met(&mut self, key: BlockKey, units: &[u64]) -> Result<(), String> {
        let bits = (0..units.len() as u32 * 64)
            .filter(|unit| units[*unit as usize / 64] & (1 << (unit % 64)) != 0);
        self.units_met.extend(bits.map(|unit| (key, unit)));
        let count = self.units_met.len() as u64;
        if self.deep || count <= self.units_hit {
            return Ok(());
        }
        Err(format!("{count} units are answered as damaged, {} were hit: {key:?}", self.units_hit))
    }
}
