//! Pages of the checkpoint area: which are in use, which leaf holds which keys, and a cache of
//! leaves.
//!
//! Invariants
//!   1. A page is free only if no durable root refers to it and no checkpoint being made uses it.
//!   2. Leaves are ordered by first key. A key belongs to the last leaf whose first key is at or below it.
//!   3. A page that a check found damaged is not used again while the store runs. If its leaf was in memory,
//!      the leaf stays there until a checkpoint no longer refers to the page.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use base::Checksum;
use format::disk::{
    DIRECTORY_ENTRY_SIZE, LeafPage, PAGE_SIZE, PageRef, STREAM_PAGE_CAPACITY, encode_directory,
};

use crate::{BlockKey, RequestId};

/// Pages at the front of the area that hold the two roots.
pub const PAGES_RESERVED: u32 = 32;
/// Pages of the two root slots.
pub const ROOT_PAGES: [u32; 2] = [0, 16];
/// Approximate memory of a cached leaf, in bytes: the page and the offsets of its records.
const LEAF_MEMORY_BYTES: u64 = PAGE_SIZE as u64 + 256;

/// Identifies a group of adjacent leaves that a checkpoint rewrites together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LeafGroupId(pub u64);

/// What waits for a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafWaiter {
    /// A read request.
    Read(RequestId),
    /// A group of leaves of the checkpoint being made.
    Group(LeafGroupId),
}

/// The pages of the checkpoint area.
pub struct Pages {
    directory: BTreeMap<BlockKey, PageRef>,
    /// Bytes of records in all leaves.
    leaf_bytes: u64,
    in_use: Vec<u64>,
    page_count: u32,
    free_count: u32,
    /// Where the search for a free page continues.
    next: u32,
    cache: BTreeMap<u32, Cached>,
    /// Cached pages, in the order in which they are considered for eviction (clock algorithm).
    clock: VecDeque<u32>,
    cache_count_max: usize,
    waiting: BTreeMap<(u32, u32), Vec<LeafWaiter>>,
    /// Pages that a check found damaged, with the leaves of those that are still named.
    damaged: BTreeMap<u32, Option<(Checksum, Rc<LeafPage>)>>,
}

struct Cached {
    checksum: Checksum,
    leaf: Rc<LeafPage>,
    /// Whether the leaf was used since the clock last passed it.
    used: bool,
}

impl Pages {
    pub fn new(area_size: u64, memory_bytes: u64) -> Pages {
        let page_count = (area_size / PAGE_SIZE as u64).min(u32::MAX as u64 - 1) as u32;
        let mut pages = Pages {
            directory: BTreeMap::new(),
            leaf_bytes: 0,
            in_use: vec![0; (page_count as usize).div_ceil(64)],
            page_count,
            free_count: page_count,
            next: 0,
            cache: BTreeMap::new(),
            clock: VecDeque::new(),
            cache_count_max: (memory_bytes / LEAF_MEMORY_BYTES).max(16) as usize,
            waiting: BTreeMap::new(),
            damaged: BTreeMap::new(),
        };
        for page in 0..PAGES_RESERVED {
            assert!(pages.take(page));
        }
        pages
    }

    /// Marks a page as used. Returns false if the page is outside the area or already used.
    pub fn take(&mut self, page: u32) -> bool {
        if page >= self.page_count || self.is_used(page) {
            return false;
        }
        self.in_use[page as usize / 64] |= 1 << (page % 64);
        self.free_count -= 1;
        true
    }

    fn is_used(&self, page: u32) -> bool {
        self.in_use[page as usize / 64] & (1 << (page % 64)) != 0
    }

    /// Allocates a free page.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        let words = self.in_use.len() as u32;
        let start = self.next / 64;
        let found = (0..=words).map(|step| (start + step) % words).find_map(|word| {
            let slot = (!self.in_use[word as usize]).trailing_zeros();
            let page = word * 64 + slot;
            (slot < 64 && page < self.page_count).then_some(page)
        })?;
        assert!(self.take(found));
        self.next = found;
        Some(found)
    }

    /// Frees a page, unless it is damaged. Requires: it is used.
    pub fn release(&mut self, page: u32) {
        assert!(self.is_used(page));
        self.cache.remove(&page);
        if let Some(leaf) = self.damaged.get_mut(&page) {
            *leaf = None;
            return;
        }
        self.in_use[page as usize / 64] &= !(1 << (page % 64));
        self.free_count += 1;
    }

    pub fn directory(&self) -> &BTreeMap<BlockKey, PageRef> {
        &self.directory
    }

    /// Whether the leaves are so empty that all should be packed and rewritten.
    pub fn is_sparse(&self) -> bool {
        let leaves = self.directory.len() as u64;
        leaves > 64 && self.leaf_bytes * 5 < leaves * PAGE_SIZE as u64 * 2
    }

    /// Adds, replaces or (`None`) removes a leaf of the directory.
    pub fn set_leaf(&mut self, first: BlockKey, leaf: Option<PageRef>) {
        let old = match leaf {
            Some(leaf) => {
                self.leaf_bytes += leaf.used as u64;
                self.directory.insert(first, leaf)
            }
            None => self.directory.remove(&first),
        };
        self.leaf_bytes -= old.map_or(0, |old| old.used as u64);
    }

    /// Returns the leaf that would hold the key, and its first key.
    pub fn leaf_of(&self, key: &BlockKey) -> Option<(BlockKey, PageRef)> {
        self.directory.range(..=*key).next_back().map(|(first, leaf)| (*first, *leaf))
    }

    /// Returns the size of the directory as a stream, in bytes.
    pub fn directory_size(&self) -> u64 {
        (self.directory.len() * DIRECTORY_ENTRY_SIZE) as u64
    }

    /// Returns the content of the last page of the directory's first `size` bytes. `until` is the upper
    /// bound of the leaves in these bytes, and is set to the bound of the leaves before the page. Requires:
    /// `size` is not 0.
    pub fn directory_page(&self, size: u64, until: &mut Bound<BlockKey>) -> Vec<u8> {
        let (capacity, entry) = (STREAM_PAGE_CAPACITY as u64, DIRECTORY_ENTRY_SIZE as u64);
        let from = (size - 1) / capacity * capacity;
        let first = from / entry;
        let count = (size.div_ceil(entry) - first) as usize;
        let behind = self.directory.range((Bound::Unbounded, *until)).rev();
        let mut leaves: Vec<_> = behind.take(count).collect();
        leaves.reverse();
        let key = *leaves[0].0;
        let is_cut = !from.is_multiple_of(entry);
        *until = if is_cut { Bound::Included(key) } else { Bound::Excluded(key) };
        let start = (from - first * entry) as usize;
        let mut bytes = encode_directory(leaves.into_iter());
        bytes.truncate((size - first * entry) as usize);
        bytes.split_off(start)
    }

    /// Records that a page is damaged. Returns whether that is new.
    pub fn set_damaged(&mut self, page: u32) -> bool {
        let leaf = self.cache.get(&page).map(|cached| (cached.checksum, cached.leaf.clone()));
        match self.damaged.contains_key(&page) {
            true => false,
            false => self.damaged.insert(page, leaf).is_none(),
        }
    }

    /// Returns the leaf, if it is in memory.
    pub fn cached(&mut self, page: PageRef) -> Option<Rc<LeafPage>> {
        if let Some(Some((checksum, leaf))) = self.damaged.get(&page.page)
            && *checksum == page.checksum
        {
            return Some(leaf.clone());
        }
        let cached = self.cache.get_mut(&page.page)?;
        if cached.checksum != page.checksum {
            return None;
        }
        cached.used = true;
        Some(cached.leaf.clone())
    }

    /// Caches a leaf.
    pub fn keep(&mut self, page: PageRef, leaf: Rc<LeafPage>) {
        let cached = Cached { checksum: page.checksum, leaf, used: false };
        if self.cache.insert(page.page, cached).is_none() {
            self.clock.push_back(page.page);
        }
        while self.cache.len() > self.cache_count_max {
            let oldest = self.clock.pop_front().expect("each cached page is on the clock");
            match self.cache.get_mut(&oldest) {
                Some(cached) if cached.used => {
                    cached.used = false;
                    self.clock.push_back(oldest);
                }
                _ => {
                    self.cache.remove(&oldest);
                }
            }
        }
        // Released pages stay on the clock, so they are removed from time to time.
        if self.clock.len() > 2 * self.cache_count_max {
            let cache = &self.cache;
            self.clock.retain(|page| cache.contains_key(page));
            self.clock.make_contiguous().sort_unstable();
            let mut last = None;
            self.clock.retain(|page| last.replace(*page) != Some(*page));
        }
    }

    /// Forgets a leaf, so that it must be read again.
    #[cfg(test)]
    pub fn forget(&mut self, page: u32) {
        self.cache.remove(&page);
    }

    /// Adds a waiter for a leaf. Returns whether it is the first one, so that the leaf must be read.
    pub fn wait(&mut self, page: PageRef, waiter: LeafWaiter) -> bool {
        let waiters = self.waiting.entry((page.page, page.checksum.get())).or_default();
        waiters.push(waiter);
        waiters.len() == 1
    }

    /// Ends the wait for a leaf, whether it was read or is unreadable. Returns its waiters.
    pub fn end_wait(&mut self, page: u32, checksum: Checksum) -> Vec<LeafWaiter> {
        self.waiting.remove(&(page, checksum.get())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use format::disk::{LeafRecord, LeafWriter, UnitSet};

    use super::*;

    #[test]
    fn pages_are_given_out_once_until_released() {
        let mut pages = Pages::new(100 * PAGE_SIZE as u64, 0);
        let mut given: Vec<u32> =
            (PAGES_RESERVED..100).map(|_| pages.allocate().expect("there are more")).collect();
        assert_eq!(pages.allocate(), None);
        given.sort_unstable();
        assert_eq!(given, (PAGES_RESERVED..100).collect::<Vec<u32>>());
        pages.release(40);
        assert_eq!(pages.allocate(), Some(40));
        assert!(!pages.take(40));
        assert!(!pages.take(100));
    }

    fn leaf() -> LeafPage {
        let key = crate::index::KEY_FIRST;
        let record = LeafRecord {
            key,
            pg: 0,
            version: base::Version::ZERO,
            block_size: base::BlockSize::MIN,
            tombstone: true,
            location: format::disk::LOCATION_NONE,
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            checksums: Vec::new(),
            table: Vec::new(),
        };
        let mut writer = LeafWriter::new(1, 1, 40);
        writer.put(&record);
        writer.finish().0
    }

    #[test]
    fn the_pages_of_the_directory_make_up_its_stream() {
        for count in (0..500).chain([2_899, 2_900, 2_901, 10_000]) {
            let mut pages = Pages::new(1 << 20, 0);
            for number in 0..count {
                let leaf = PageRef { page: number, checksum: Checksum::new(number), used: 7 };
                pages
                    .set_leaf(BlockKey { hash: 3 * number, ..crate::index::KEY_FIRST }, Some(leaf));
            }
            let stream = encode_directory(pages.directory().iter());
            let mut size = pages.directory_size();
            assert_eq!(size, stream.len() as u64);
            let mut until = Bound::Unbounded;
            while size > 0 {
                let page = pages.directory_page(size, &mut until);
                size -= page.len() as u64;
                assert!(size.is_multiple_of(STREAM_PAGE_CAPACITY as u64), "{count}");
                assert_eq!(page[..], stream[size as usize..][..page.len()], "{count}");
            }
        }
    }

    #[test]
    fn the_cache_stays_within_its_limit() {
        let mut pages = Pages::new(1 << 20, 20 * LEAF_MEMORY_BYTES);
        let leaf = Rc::new(leaf());
        let page = |page| PageRef { page, checksum: Checksum::new(page), used: 0 };
        for number in 40..200 {
            pages.keep(page(number), leaf.clone());
            assert!(pages.cached(page(40)).is_some() || number > 40 + 20);
        }
        assert_eq!(pages.cache.len(), 20);
        assert!(pages.clock.len() <= 40);
        assert!(pages.cached(page(199)).is_some());
        let other = PageRef { checksum: Checksum::new(0), ..page(199) };
        assert!(pages.cached(other).is_none());
    }
}
