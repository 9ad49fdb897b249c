//! Faults of the medium: errors, rot and lies, limited to those that a store with a single copy can detect.
//!
//! Limits: damage of bytes that no journal entry records as durable looks like a torn write. So rot hits only
//! bytes that were written before some moment without pending requests, after which another change was
//! answered. A disk lies only about small writes to the data area. These are write-backs, so a checksum
//! detects the lie.

use std::ops::Range;

use base::{BlockSize, UNIT_SIZE};
use format::door::DiskError;

use super::world::{Operation, Stage, World};
use crate::disk::WriteFault;
use crate::random::Chance;

/// The maximum number of sectors that are unreadable at once: recovery reads the sectors around each of
/// them one by one.
const UNREADABLE_MAX: usize = 4;

impl World {
    /// Draws an error for a disk operation that is about to complete.
    pub(super) fn draw_disk_error(&mut self, operation: Operation) -> Option<DiskError> {
        let is_read = matches!(operation, Operation::Read { .. });
        if self.stage != Stage::Open && !(is_read && self.stage == Stage::Opening) {
            return None;
        }
        let faults = &self.plan.faults;
        let io = |what: &str| Some(DiskError::Io(format!("simulated {what} error")));
        match operation {
            Operation::Write { .. } if self.chaos.chance(faults.write_error) => {
                self.tally.faults.add("write error", 1);
                io("write")
            }
            Operation::Write { offset, .. }
                if self.damage.data.contains(&offset) && self.chaos.chance(faults.no_space) =>
            {
                self.tally.faults.add("no space in the file system", 1);
                Some(DiskError::NoSpace)
            }
            Operation::Reserve if self.chaos.chance(faults.no_space) => {
                self.tally.faults.add("no space in the file system", 1);
                Some(DiskError::NoSpace)
            }
            Operation::Flush if self.chaos.chance(faults.write_error) => {
                self.tally.faults.add("flush error", 1);
                io("flush")
            }
            Operation::Read { offset, .. }
                if self.chaos.chance(faults.read_error)
                    && self.damage.read_errors.get(&offset).is_none_or(|count| *count < 2) =>
            {
                *self.damage.read_errors.entry(offset).or_default() += 1;
                let opening = self.stage == Stage::Opening;
                let kind = if opening { "read error while opening" } else { "read error" };
                self.tally.faults.add(kind, 1);
                io("read")
            }
            _ => None,
        }
    }

    /// Draws whether the disk lies about a small write to the data area.
    pub(super) fn draw_lie(&mut self, operation: Operation) -> Option<WriteFault> {
        let Operation::Write { offset, length } = operation else { return None };
        // Large writes are whole blocks, so none is smaller than the smallest block size.
        let small = length < BlockSize::MIN.bytes();
        if !small || !self.damage.data.contains(&offset) || self.stage != Stage::Open {
            return None;
        }
        if !self.chaos.chance(self.plan.faults.lying) {
            return None;
        }
        let unit_count = length.div_ceil(UNIT_SIZE);
        let aside = self.settled_page(self.damage.data.clone());
        let fault = match aside {
            Some(to) if self.is_settled(to, length) && self.chaos.chance(Chance::percent(50)) => {
                self.tally.faults.add("write misdirected", 1);
                self.damage.units_hit += 2 * unit_count;
                WriteFault::Misdirected { to }
            }
            _ => {
                self.tally.faults.add("write lost by a lying disk", 1);
                self.damage.units_hit += unit_count;
                WriteFault::Lost
            }
        };
        self.damage.happened = true;
        self.trace.line(format_args!("{:?} {fault:?} of {operation:?}", self.now));
        Some(fault)
    }

    fn is_settled(&self, offset: u64, length: u64) -> bool {
        let end = offset + length;
        end <= self.damage.data.end
            && (offset..end)
                .step_by(UNIT_SIZE as usize)
                .all(|page| self.disk.written_last(page) <= self.damage.settled)
    }

    /// Draws a page in the area that was written and that the journal records as durable.
    fn settled_page(&mut self, area: Range<u64>) -> Option<u64> {
        let settled = self.damage.settled;
        let pages: Vec<u64> = self
            .disk
            .written_pages()
            .filter(|page| area.contains(page) && self.disk.written_last(*page) <= settled)
            .collect();
        (!pages.is_empty()).then(|| *self.chaos.pick(&pages))
    }

    /// Flips bits or makes sectors unreadable, at random.
    pub(super) fn rot(&mut self) {
        if self.stage != Stage::Open {
            return;
        }
        let faults = &self.plan.faults;
        let (data, journal, checkpoint) =
            (faults.rot_data, faults.rot_journal, faults.rot_checkpoint);
        self.break_sectors(self.plan.faults.unreadable);
        if self.chaos.chance(data) {
            self.rot_in(self.damage.data.clone(), "rot in the data area");
        }
        if self.chaos.chance(journal) {
            self.rot_in(self.damage.journal.clone(), "rot in the journal");
        }
        if self.chaos.chance(checkpoint) {
            self.rot_in(self.damage.checkpoints.clone(), "rot in the checkpoint area");
            self.rot_in(self.damage.superblock.clone(), "rot in a superblock");
        }
    }

    /// At random, lets other users of the file system take all of its space, or free space.
    pub(super) fn change_host(&mut self) {
        let Some(most) = self.plan.host_bytes else { return };
        if self.stage == Stage::Quiet || !self.chaos.chance(self.plan.faults.host_use) {
            return;
        }
        let free_bytes = if self.chaos.chance(Chance::percent(50)) { 0 } else { most };
        self.trace.line(format_args!("{:?} {free_bytes} bytes free below", self.now));
        self.tally.faults.add("file system used by others", 1);
        self.disk.set_host(self.damage.data.start, free_bytes);
    }

    /// Makes a sector unreadable with this chance. Called for each event, and at crashes.
    pub(super) fn break_sectors(&mut self, chance: Chance) {
        if !self.chaos.chance(chance) || self.disk.unreadable_count() >= UNREADABLE_MAX {
            return;
        }
        let areas = [
            (self.damage.journal.clone(), "unreadable sector in the journal"),
            (self.damage.checkpoints.clone(), "unreadable sector in the checkpoint area"),
            (self.damage.superblock.clone(), "unreadable sector in a superblock"),
            (self.damage.data.clone(), "unreadable sector in the data area"),
        ];
        let (area, kind) = areas[self.chaos.weighted(&[4, 4, 3, 2])].clone();
        // In half of the draws, only recently written pages are candidates.
        let last = self.disk.completed_count();
        let recent =
            if self.chaos.chance(Chance::percent(50)) { last.saturating_sub(20) } else { 0 };
        let pages: Vec<u64> = self
            .disk
            .written_pages()
            .filter(|page| area.contains(page) && self.disk.written_last(*page) >= recent)
            .collect();
        if pages.is_empty() {
            return;
        }
        let offset = *self.chaos.pick(&pages) + self.chaos.below(UNIT_SIZE);
        self.trace.line(format_args!("{:?} {kind} at {offset}", self.now));
        self.tally.faults.add(kind, 1);
        self.disk.break_sector(offset);
        self.damage.happened = true;
        self.damage.may_lack_root |= area == self.damage.checkpoints;
        match area == self.damage.data {
            true => self.damage.units_hit += 1,
            false => self.damage.deep = true,
        }
    }

    fn rot_in(&mut self, area: Range<u64>, kind: &'static str) {
        let is_data = area == self.damage.data;
        let Some(page) = self.settled_page(area) else { return };
        if !self.disk.is_quiet(page) {
            return;
        }
        let offset = page + self.chaos.below(UNIT_SIZE);
        let mask = 1 << self.chaos.below(8);
        self.trace.line(format_args!("{:?} {kind} at {offset}", self.now));
        self.tally.faults.add(kind, 1);
        self.disk.rot(offset, mask);
        self.damage.happened = true;
        self.damage.may_lack_root |= self.damage.checkpoints.contains(&page);
        if is_data {
            self.damage.units_hit += 1;
        } else {
            self.damage.deep = true;
            self.damage.flips.push((offset, mask));
        }
    }

    /// Undoes damage where this is still possible. Returns whether any was undone.
    pub(super) fn heal(&mut self) -> bool {
        let flips = std::mem::take(&mut self.damage.flips);
        for (offset, mask) in &flips {
            self.trace.line(format_args!("{:?} heal {offset}", self.now));
            self.disk.heal(*offset, *mask);
        }
        let mended = self.disk.mend_sectors();
        if mended && self.damage.has_lost_sectors {
            // Data that the store counted as lost when it opened may reappear.
            let pgs: Vec<base::PgId> = self.model.pgs.keys().copied().collect();
            pgs.into_iter().for_each(|pg| self.model.forget(pg));
        }
        mended || !flips.is_empty()
    }
}
