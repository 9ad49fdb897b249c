//! Space rules: what is refused, what waits, and when freed blocks may be used again.
//!
//! A write is refused before anything changes, by what would be in use afterwards: blocks in the
//! data area, records in the checkpoint area. Reserves are kept for what must always work:
//! overwriting, deleting, zeroing, checkpoints.

use base::planted::{self, Bug};
use base::{BlockSize, GIB, MIB};
use format::disk::{LOCATION_NONE, PAGE_SIZE};

use crate::Space;
use crate::disk::{Disk, Purpose};
use crate::index::BlockInfo;
use crate::pages::PAGES_RESERVED;
use crate::store::Parts;

/// Discards in flight at once.
const DISCARDS_IN_FLIGHT_MAX: usize = 16;

/// A block that nothing names any more, but the newest durable checkpoint may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Freed {
    /// Where it lies.
    pub location: u32,
    /// Its size.
    pub block_size: BlockSize,
    /// Whether its space is given back to the device: it was deleted, not replaced.
    pub discard: bool,
}

/// Neighbouring freed blocks whose space is given back together.
#[derive(Debug)]
pub struct Discard {
    /// Position on the device in bytes.
    offset: u64,
    /// In bytes.
    length: u64,
    blocks: Vec<(u32, BlockSize)>,
}

impl Parts {
    /// Kept free of data.
    fn reserve_bytes(&self) -> u64 {
        (self.allocator.size_bytes() / 64).clamp(2 * MIB, GIB)
    }

    /// Bytes of records and notes that the checkpoint area takes at most. Leaves are filled to
    /// 40 % at least, and old and new ones lie side by side while a checkpoint is made: 5 times
    /// the records; the rest is for the directory and the PGs.
    fn record_bytes_max(&self) -> u64 {
        let pages = self.superblock.checkpoints.size / PAGE_SIZE as u64 - PAGES_RESERVED as u64;
        pages * PAGE_SIZE as u64 / 6
    }

    fn record_bytes(&self) -> u64 {
        self.index.record_bytes() + self.notes_bytes
    }

    /// Space for data.
    pub fn space(&self, has_no_space: bool) -> Space {
        let size_bytes = self.allocator.size_bytes();
        let used_bytes = self.allocator.used_bytes() - self.freed_bytes;
        let free_bytes = size_bytes.saturating_sub(used_bytes + self.reserve_bytes());
        let full = has_no_space
            || free_bytes < BlockSize::MAX.bytes()
            || !self.has_record_space(None, BlockSize::MAX, true);
        Space { size_bytes, used_bytes, free_bytes, full }
    }

    /// Whether one more block may be used by a write.
    pub fn has_space_for_block(&self, block_size: BlockSize) -> bool {
        let used = self.allocator.used_bytes() - self.freed_bytes;
        used + block_size.bytes() + self.reserve_bytes() <= self.allocator.size_bytes()
    }

    /// Whether the block's record may grow to hold data (`is_write`), or a new one without data
    /// may be made, which may use the reserve.
    pub fn has_record_space(
        &self,
        old: Option<BlockInfo>,
        block_size: BlockSize,
        is_write: bool,
    ) -> bool {
        let old_bytes = old.map_or(0, |old| old.record_size());
        let new_bytes = format::disk::record_size(block_size, is_write) as u64;
        let max = self.record_bytes_max();
        let max = if is_write { max - max / 8 } else { max };
        new_bytes <= old_bytes || self.record_bytes() - old_bytes + new_bytes <= max
    }

    /// Whether a note may grow by so many bytes.
    pub fn has_note_space(&self, growth: u64) -> bool {
        growth == 0 || self.record_bytes() + growth <= self.record_bytes_max()
    }

    /// The index no longer names the block: it is allocated again after the next checkpoint.
    pub fn free(&mut self, location: u32, block_size: BlockSize, discard: bool) {
        assert!(location != LOCATION_NONE);
        if planted::on(Bug::FreedBlockReusedEarly) {
            return self.allocator.release(location, block_size);
        }
        self.freed_bytes += block_size.bytes();
        self.freed.push(Freed { location, block_size, discard });
    }

    /// A durable checkpoint no longer names these blocks.
    pub fn release_freed(&mut self, mut freed: Vec<Freed>) {
        freed.sort_unstable();
        for block in freed {
            let (offset, size) = (self.place(block.location), block.block_size.bytes());
            if !block.discard {
                self.freed_bytes -= size;
                self.allocator.release(block.location, block.block_size);
                continue;
            }
            let named = (block.location, block.block_size);
            match self.discards.back_mut() {
                Some(discard) if discard.offset + discard.length == offset => {
                    discard.length += size;
                    discard.blocks.push(named);
                }
                _ => {
                    let blocks = vec![named];
                    self.discards.push_back(Discard { offset, length: size, blocks });
                }
            }
        }
    }

    /// Asks for discards, while few are in flight.
    pub fn discard(&mut self, disk: &mut Disk, effects: &mut Vec<crate::Effect>) {
        while self.discards_in_flight < DISCARDS_IN_FLIGHT_MAX {
            let Some(discard) = self.discards.pop_front() else { return };
            let Discard { offset, length, blocks } = discard;
            self.discards_in_flight += 1;
            disk.discard(Purpose::Discard(blocks), offset, length, effects);
        }
    }

    /// A discard ended: its blocks may be allocated.
    pub fn discarded(&mut self, blocks: Vec<(u32, BlockSize)>) {
        self.discards_in_flight -= 1;
        for (location, block_size) in blocks {
            self.freed_bytes -= block_size.bytes();
            self.allocator.release(location, block_size);
        }
    }
}
