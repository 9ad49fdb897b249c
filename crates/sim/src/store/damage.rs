//! What a run has damaged so far, and which answers of the store this explains.

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
    /// Stored bytes were damaged.
    pub happened: bool,
    /// Journal or checkpoints were damaged: the store may not know what it had.
    pub deep: bool,
    /// A write or flush failed: the store must stop.
    pub must_stop: bool,
    /// The most units that damage to the data area can have hit.
    pub(super) units_hit: u64,
    /// Units that were answered as damaged.
    units_met: BTreeSet<(BlockKey, u32)>,
    /// How often reads at an offset have failed in this run of the store: never so often that the
    /// store gives the place up.
    pub read_errors: BTreeMap<u64, u32>,
    /// Flipped bits: (offset, mask).
    pub(super) flips: Vec<(u64, u8)>,
    /// Sectors were unreadable when the store opened, and it counted what they held as lost.
    pub(super) has_lost_sectors: bool,
    /// A root may have been damaged since the store opened: it may open with an older one.
    pub may_lack_root: bool,
    /// The disk's count of completed writes that the journal records as durable.
    pub(super) settled: u64,
    /// The count that it will record once another change is answered.
    settling: u64,
    /// Which units each change wrote.
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

    /// A change was answered; `quiet`: no other is open.
    pub fn answered(&mut self, quiet: bool, written_count: u64) {
        self.settled = self.settling;
        if quiet {
            self.settling = written_count;
        }
    }

    /// The store has opened: it has made durable what it found, and it is settled what damage cost.
    pub fn opened(&mut self, written_count: u64, unreadable_count: usize) {
        self.flips.clear();
        self.may_lack_root = false;
        self.has_lost_sectors = unreadable_count > 0;
        self.settling = written_count;
    }

    /// The store reports units as damaged: no more of them than were hit.
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
