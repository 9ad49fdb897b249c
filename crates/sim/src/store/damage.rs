//! The damage that a run has done so far, and the errors of the store that this damage explains.

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
    /// Whether the journal or checkpoints were damaged: the store may have lost track of its content.
    pub deep: bool,
    /// Whether a write or flush failed, so that the store must stop.
    pub must_stop: bool,
    /// An upper bound of the units that damage to the data area has hit.
    pub(super) units_hit: u64,
    /// Units that the store has reported as damaged.
    units_met: BTreeSet<(BlockKey, u32)>,
    /// The number of failed reads at each offset in this run of the store. It stays below the number at
    /// which the store gives up.
    pub read_errors: BTreeMap<u64, u32>,
    /// Flipped bits: (offset, mask).
    pub(super) flips: Vec<(u64, u8)>,
    /// Whether some sectors were unreadable when the store opened, so that the store counted their
    /// content as lost.
    pub(super) has_lost_sectors: bool,
    /// Whether the newest root may have been damaged since the store opened: the store may next open
    /// with an older root.
    pub may_lack_root: bool,
    /// All writes up to this completion count of the disk are recorded as durable in the journal.
    pub(super) settled: u64,
    /// The value that `settled` gets when the next change is answered.
    settling: u64,
    /// The block and units that each change wrote, by order of the change.
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

    /// Returns whether a change ever wrote this value into the unit.
    pub fn was_written(&self, key: BlockKey, unit: u32, value: u64) -> bool {
        let by = self.written.get(&value);
        value == 0 || by.is_some_and(|(written, units)| *written == key && units.contains(&unit))
    }

    /// Records that a change was answered. `quiet`: no other request is pending.
    pub fn answered(&mut self, quiet: bool, written_count: u64) {
        self.settled = self.settling;
        if quiet {
            self.settling = written_count;
        }
    }

    /// Records that the store has opened: its content is now durable, and losses from damage are final.
    pub fn opened(&mut self, written_count: u64, unreadable_count: usize) {
        self.flips.clear();
        self.may_lack_root = false;
        self.has_lost_sectors = unreadable_count > 0;
        self.settling = written_count;
    }

    /// Records units that the store reports as damaged. Fails if there are more of them than damage can
    /// have hit.
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
