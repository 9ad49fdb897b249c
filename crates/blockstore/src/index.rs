//! The resident index: for each block its version, its place and its size, ordered by key.
//!
//! Records are packed in sorted runs of at most [`RUN_COUNT_MAX`]; a map finds the run. This takes about 40
//! bytes per block (checked by a test); a map of single records would take 60.
//!
//! Invariants
//!   1. Runs are sorted and do not overlap. Only the first may be empty.
//!   2. A run's bound is at or below its first key, and above all keys of the preceding run.
//!   3. `tombstones` holds exactly the tombstones among the records, and `used` counts exactly the places
//!      in the records, except those of pools of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use base::{BlockSize, Epoch, ImageId, PgId, PoolId, StripeIndex, Version};
use format::disk::{BlockKey, LOCATION_NONE, pack_flags, record_size, table_size, unpack_flags};

/// Maximum number of records in a run.
const RUN_COUNT_MAX: usize = 128;
/// The capacity of a run grows by this many records at a time; a shrinking run keeps at most this many
/// unused.
const RUN_GROWTH: usize = 8;
/// A shorter run is joined with a neighbour if both together fill at most half a run, so that the next
/// change does not split the joined run again.
const RUN_COUNT_MIN: usize = 32;

/// What is known about a block without reading the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// The version of the block.
    pub version: Version,
    /// Number of the PG that wrote the version.
    pub pg: u16,
    /// The size of the block.
    pub block_size: BlockSize,
    /// Where the block's data is; `LOCATION_NONE`: the block is all zeros.
    pub location: u32,
    /// Whether the block is deleted.
    pub tombstone: bool,
    /// Number of rows of the part table, if the block is a parity part. 0: the block has no part table.
    pub table_rows: u8,
}

impl BlockInfo {
    /// Returns the size of the block's record in a checkpoint, in bytes.
    pub fn record_size(&self) -> u64 {
        let table = table_size(self.block_size, self.table_rows);
        (record_size(self.block_size, self.location != LOCATION_NONE) + table) as u64
    }

    /// Returns the number of the block's PG and the bytes of its place; `None` if it has no place.
    fn used(self) -> Option<(u16, u64)> {
        (self.location != LOCATION_NONE).then(|| (self.pg, self.block_size.bytes()))
    }
}

/// Returns the location of the block; `LOCATION_NONE` if it has no place.
pub fn location_of(info: Option<BlockInfo>) -> u32 {
    info.map_or(LOCATION_NONE, |info| info.location)
}

/// A block's record, without padding: 32-bit words keep the alignment at 4.
#[derive(Clone, Copy)]
struct Record {
    pool: u32,
    hash: u32,
    image: u32,
    stripe: u32,
    epoch: u32,
    counter_low: u32,
    counter_high: u32,
    location: u32,
    pg: u16,
    shift: u8,
    /// Tombstone and rows of the part table, as in a leaf.
    flags: u8,
}

const _: () = assert!(size_of::<Record>() == 36);

impl Record {
    fn new(key: BlockKey, info: BlockInfo) -> Record {
        Record {
            pool: key.pool.get(),
            hash: key.hash,
            image: key.image.get(),
            stripe: key.stripe.get(),
            epoch: info.version.epoch.get(),
            counter_low: info.version.counter as u32,
            counter_high: (info.version.counter >> 32) as u32,
            location: info.location,
            pg: info.pg,
            shift: info.block_size.shift(),
            flags: pack_flags(info.tombstone, info.table_rows),
        }
    }

    fn key(&self) -> BlockKey {
        BlockKey {
            pool: PoolId::new(self.pool).expect("it came from a key"),
            hash: self.hash,
            image: ImageId::new(self.image).expect("it came from a key"),
            stripe: StripeIndex::new(self.stripe),
        }
    }

    /// Compares keys as two 64-bit numbers, which is fast: a lookup does many comparisons.
    fn order(&self, key: &BlockKey) -> std::cmp::Ordering {
        let packed = |pool: u32, hash: u32, image: u32, stripe: u32| {
            (u64::from(pool) << 32 | u64::from(hash), u64::from(image) << 32 | u64::from(stripe))
        };
        packed(self.pool, self.hash, self.image, self.stripe).cmp(&packed(
            key.pool.get(),
            key.hash,
            key.image.get(),
            key.stripe.get(),
        ))
    }

    fn info(&self) -> BlockInfo {
        let counter = (self.counter_high as u64) << 32 | self.counter_low as u64;
        let flags = unpack_flags(self.flags);
        let (tombstone, table_rows) = flags.expect("they came from a block's facts");
        BlockInfo {
            version: Version { epoch: Epoch::new(self.epoch), counter },
            pg: self.pg,
            block_size: BlockSize::from_shift(self.shift).expect("it came from a block size"),
            location: self.location,
            tombstone,
            table_rows,
        }
    }
}

/// The index.
pub struct Index {
    runs: BTreeMap<BlockKey, Vec<Record>>,
    tombstones: BTreeSet<(PgId, Version, BlockKey)>,
    count: u64,
    record_bytes: u64,
    /// Bytes of the places that an image's blocks have in a PG. No value is zero.
    used: BTreeMap<(ImageId, PgId), u64>,
    /// Images whose values in `used` have changed since the last [`Index::take_used_changed`].
    used_changed: BTreeSet<ImageId>,
    /// Pools of objects: their images are ids of data, of which there are many, and nobody asks for their
    /// space.
    uncounted: BTreeSet<PoolId>,
}

/// The lowest possible key.
pub const KEY_FIRST: BlockKey =
    BlockKey { pool: PoolId::FIRST, hash: 0, image: ImageId::FIRST, stripe: StripeIndex::ZERO };

impl Index {
    pub fn new() -> Index {
        Index {
            runs: BTreeMap::from([(KEY_FIRST, Vec::new())]),
            tombstones: BTreeSet::new(),
            count: 0,
            record_bytes: 0,
            used: BTreeMap::new(),
            used_changed: BTreeSet::new(),
            uncounted: BTreeSet::new(),
        }
    }

    /// Counts no space by image in this pool from now on: it is a pool of objects.
    pub fn leave_uncounted(&mut self, pool: PoolId) {
        if self.uncounted.insert(pool) {
            self.used.retain(|(_, pg), _| pg.pool != pool);
        }
    }

    fn run(&self, key: &BlockKey) -> &Vec<Record> {
        self.runs.range(..=*key).next_back().expect("the first run is at or below every key").1
    }

    /// Returns what is known about the block.
    pub fn get(&self, key: &BlockKey) -> Option<BlockInfo> {
        let run = self.run(key);
        let at = run.binary_search_by(|record| record.order(key)).ok()?;
        Some(run[at].info())
    }

    /// Adds, changes or (`None`) removes a block.
    pub fn set(&mut self, key: BlockKey, info: Option<BlockInfo>) {
        let (bound, run) = self
            .runs
            .range_mut(..=key)
            .next_back()
            .expect("the first run is at or below every key");
        let bound = *bound;
        let at = run.binary_search_by(|record| record.order(&key));
        let old = at.ok().map(|at| run[at].info());
        match (at, info) {
            (Ok(at), Some(info)) => run[at] = Record::new(key, info),
            (Ok(at), None) => {
                run.remove(at);
                if run.capacity() - run.len() > RUN_GROWTH {
                    run.shrink_to_fit();
                }
            }
            (Err(at), Some(info)) => {
                if run.len() == run.capacity() {
                    run.reserve_exact(RUN_GROWTH);
                }
                run.insert(at, Record::new(key, info));
            }
            (Err(_), None) => {}
        }
        let count = run.len();
        self.account(key, old, info);
        if count == 0 && bound != KEY_FIRST {
            self.runs.remove(&bound);
        } else if count > RUN_COUNT_MAX {
            self.split(bound);
        } else if info.is_none() && count < RUN_COUNT_MIN {
            self.join(bound);
        }
    }

    fn account(&mut self, key: BlockKey, old: Option<BlockInfo>, new: Option<BlockInfo>) {
        let tombstone =
            |info: BlockInfo| (PgId { pool: key.pool, number: info.pg as u32 }, info.version, key);
        if let Some(old) = old {
            self.count -= 1;
            self.record_bytes -= old.record_size();
            if old.tombstone {
                self.tombstones.remove(&tombstone(old));
            }
        }
        if let Some(new) = new {
            self.count += 1;
            self.record_bytes += new.record_size();
            if new.tombstone {
                self.tombstones.insert(tombstone(new));
            }
        }
        let (old, new) = (old.and_then(BlockInfo::used), new.and_then(BlockInfo::used));
        if old != new && !self.uncounted.contains(&key.pool) {
            self.account_used(key, old, new);
        }
    }

    /// Accounts for a change of the block's place: (number of the PG, bytes) before and after.
    fn account_used(&mut self, key: BlockKey, old: Option<(u16, u64)>, new: Option<(u16, u64)>) {
        let place = |pg: u16| (key.image, PgId { pool: key.pool, number: u32::from(pg) });
        if let Some((pg, bytes)) = old {
            let used = self.used.get_mut(&place(pg)).expect("invariant 3");
            *used -= bytes;
            if *used == 0 {
                self.used.remove(&place(pg));
            }
        }
        if let Some((pg, bytes)) = new {
            *self.used.entry(place(pg)).or_default() += bytes;
        }
        self.used_changed.insert(key.image);
    }

    /// Returns the PGs in which the image has blocks with a place, and the bytes of these places.
    pub fn used_by(&self, image: ImageId) -> impl Iterator<Item = (PgId, u64)> + '_ {
        let first = PgId { pool: PoolId::FIRST, number: 0 };
        let of_image = self.used.range((image, first)..);
        of_image.take_while(move |((of, _), _)| *of == image).map(|((_, pg), used)| (*pg, *used))
    }

    /// Returns the images that have blocks with a place, in order. An image may appear several times.
    pub fn images(&self) -> impl Iterator<Item = ImageId> + '_ {
        self.used.keys().map(|(image, _)| *image)
    }

    /// Returns the images whose [`Index::used_by`] may have changed since the last call.
    pub fn take_used_changed(&mut self) -> BTreeSet<ImageId> {
        std::mem::take(&mut self.used_changed)
    }

    fn split(&mut self, bound: BlockKey) {
        let run = self.runs.get_mut(&bound).expect("it was just changed");
        // Keys often arrive in ascending order: then the new run receives the next keys.
        let upper = run[run.len() / 2..].to_vec();
        run.truncate(run.len() / 2);
        run.shrink_to_fit();
        self.runs.insert(upper[0].key(), upper);
    }

    /// Joins a short run with the run before or after it.
    fn join(&mut self, bound: BlockKey) {
        let before = self.runs.range(..bound).next_back().map(|(before, _)| (*before, bound));
        let behind = (Bound::Excluded(bound), Bound::Unbounded);
        let behind = self.runs.range(behind).next().map(|(behind, _)| (bound, *behind));
        let fits = |(lower, upper): &(BlockKey, BlockKey)| {
            self.runs[lower].len() + self.runs[upper].len() <= RUN_COUNT_MAX / 2
        };
        let Some((lower, upper)) = [before, behind].into_iter().flatten().find(fits) else {
            return;
        };
        let upper = self.runs.remove(&upper).expect("it was just seen");
        let lower = self.runs.get_mut(&lower).expect("it was just seen");
        lower.reserve_exact(upper.len());
        lower.extend(upper);
    }

    /// Returns the blocks from `first` on, in order.
    pub fn iter_from(&self, first: BlockKey) -> impl Iterator<Item = (BlockKey, BlockInfo)> + '_ {
        let bound = self.runs.range(..=first).next_back().map_or(KEY_FIRST, |(bound, _)| *bound);
        self.runs
            .range(bound..)
            .flat_map(|(_, run)| run.iter())
            .map(|record| (record.key(), record.info()))
            .skip_while(move |(key, _)| *key < first)
    }

    /// Returns the last block before `key`.
    pub fn last_before(&self, key: BlockKey) -> Option<(BlockKey, BlockInfo)> {
        self.runs.range(..key).rev().find_map(|(_, run)| {
            let behind = run.partition_point(|record| record.key() < key);
            run[..behind].last().map(|record| (record.key(), record.info()))
        })
    }

    /// Returns the tombstones of the PG up to `floor`, in version order.
    pub fn tombstones_up_to(
        &self,
        pg: PgId,
        floor: Version,
    ) -> impl Iterator<Item = BlockKey> + '_ {
        self.tombstones
            .range((pg, Version::ZERO, KEY_FIRST)..)
            .take_while(move |(of, version, _)| *of == pg && *version <= floor)
            .map(|(_, _, key)| *key)
    }

    /// Returns the number of blocks, tombstones included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of tombstones.
    pub fn tombstone_count(&self) -> u64 {
        self.tombstones.len() as u64
    }

    /// Returns the bytes that all records take in a checkpoint.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(hash: u32) -> BlockKey {
        BlockKey {
            pool: PoolId::FIRST,
            hash: hash.wrapping_mul(0x9e37_79b9),
            image: ImageId::FIRST,
            stripe: StripeIndex::new(hash),
        }
    }

    fn info(counter: u64) -> BlockInfo {
        BlockInfo {
            version: Version { epoch: Epoch::new(1), counter },
            pg: 3,
            block_size: BlockSize::DEFAULT,
            location: counter as u32,
            tombstone: counter.is_multiple_of(7),
            table_rows: if counter.is_multiple_of(7) { 0 } else { (counter % 17) as u8 },
        }
    }

    #[test]
    fn the_index_agrees_with_a_plain_map() {
        let mut index = Index::new();
        let mut model = BTreeMap::new();
        for step in 0u64..20_000 {
            let key = key(
                (base::hash::stripe_hash(ImageId::FIRST, StripeIndex::new(step as u32))) % 3000
            );
            if step % 5 == 4 {
                index.set(key, None);
                model.remove(&key);
            } else {
                index.set(key, Some(info(step)));
                model.insert(key, info(step));
            }
        }
        assert!(index.iter_from(KEY_FIRST).eq(model.iter().map(|(key, info)| (*key, *info))));
        let middle = *model.keys().nth(1000).expect("there are more");
        let behind = model.range(middle..).map(|(key, info)| (*key, *info));
        assert!(index.iter_from(middle).eq(behind));
        assert_eq!(index.count(), model.len() as u64);
        let tombstones = model.values().filter(|info| info.tombstone).count();
        assert_eq!(index.tombstone_count(), tombstones as u64);
        let bytes: u64 = model.values().map(BlockInfo::record_size).sum();
        assert_eq!(index.record_bytes(), bytes);
        let placed = model.values().filter(|info| info.location != LOCATION_NONE);
        let used: u64 = placed.map(|info| info.block_size.bytes()).sum();
        assert!(used > 0);
        assert_eq!(index.used_by(ImageId::FIRST).map(|(_, bytes)| bytes).sum::<u64>(), used);
        assert_eq!(index.take_used_changed().into_iter().collect::<Vec<_>>(), [ImageId::FIRST]);
        assert!(index.take_used_changed().is_empty());
        let pg = PgId { pool: PoolId::FIRST, number: 3 };
        let up_to = index.tombstones_up_to(pg, info(10_000).version).count();
        let expected =
            model.values().filter(|info| info.tombstone && info.version.counter <= 10_000).count();
        assert_eq!(up_to, expected);
        for key in model.keys() {
            index.set(*key, None);
        }
        assert_eq!((index.count(), index.record_bytes(), index.runs.len()), (0, 0, 1));
        assert_eq!((index.images().count(), index.used_by(ImageId::FIRST).count()), (0, 0));
    }

    #[test]
    fn a_block_takes_at_most_48_bytes() {
        let mut index = Index::new();
        let count = 200_000u64;
        for stripe in 0..count as u32 {
            let hash = base::hash::stripe_hash(ImageId::FIRST, StripeIndex::new(stripe));
            let key = BlockKey { hash, stripe: StripeIndex::new(stripe), ..KEY_FIRST };
            index.set(key, Some(BlockInfo { tombstone: false, ..info(1) }));
        }
        let records: usize =
            index.runs.values().map(|run| run.capacity() * size_of::<Record>()).sum();
        // Each node of the map is at least half full, and has space for 11 entries and 12 links.
        let entry = size_of::<(BlockKey, Vec<Record>)>();
        let map = index.runs.len() * 2 * (entry + 12);
        // The directory of checkpoint pages: a page holds 23 such blocks and is at least half full.
        let directory = count as usize / 12 * 2 * (16 + 12 + 2);
        let per_block = (records + map + directory) as f64 / count as f64;
        assert!(per_block <= 48.0, "{per_block}");
        // Keep one block in twenty. The runs must shrink accordingly.
        for stripe in (0..count as u32).filter(|stripe| stripe % 20 != 0) {
            let hash = base::hash::stripe_hash(ImageId::FIRST, StripeIndex::new(stripe));
            index.set(BlockKey { hash, stripe: StripeIndex::new(stripe), ..KEY_FIRST }, None);
        }
        let records: usize =
            index.runs.values().map(|run| run.capacity() * size_of::<Record>()).sum();
        let map = index.runs.len() * 2 * (entry + 12);
        let per_block = (records + map) as f64 / (count / 20) as f64;
        assert!(per_block <= 60.0, "{per_block}");
    }
}
