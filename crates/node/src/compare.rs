//! Compares the copies on the disks of stopped OSDs, for operators and for tests.
//!
//! All information comes from the stores: each one keeps the entries of its PGs and the rules of the
//! pools, so no monitor is needed. Nothing is written.
//!
//! ```text
//!   notes of all stores ──▶ newest entry of each PG ──▶ its acting members
//!                                                         │ blocks of the PG's range, key by key
//!                                                         ▼
//!                     version, written units, checksums and bytes are those of the first member
//! ```
//!
//! In pools with parity the positions hold different parts of a stripe. Then the parts are read as of the
//! version that all members are complete up to, and must make one code word.
//!
//! Invariants
//!   1. A difference at or below the version that all members are complete up to is an error: that data
//!      was acknowledged or adopted.
//!   2. A difference above that version is a write that was under way: the next start resolves it.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::{hash_range_of_pg, object_hash};
use base::{BlockSize, OsdId, PgId, PoolId, Position, Version};
use blockstore::{
    Answer, AsOf, BlockKey, Finding, NoteKey, Severity, StoppedStore, Store, StoreError,
};
use cluster::map::{Pool, PoolKind};
use format::wire::{Content, PgEntry};
use objects::keys::is_own;
use objects::{Key, Shard};
use pg::{Record, ScrubNote};

use crate::notes::ClusterNote;

/// Maximum number of findings that a comparison lists.
const FINDINGS_MAX: usize = 1000;

/// What a comparison found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Comparison {
    /// Empty if all copies are present and identical, and no OSD holds anything else.
    pub findings: Vec<Finding>,
    /// PGs whose members were compared.
    pub pgs: u64,
    /// Blocks that all members hold in the same version, and stripes with parity, whose bytes were compared.
    pub blocks: u64,
    /// Bytes that were compared with those of another copy.
    pub bytes: u64,
    /// Records of objects that all members of their PGs hold alike.
    pub records: u64,
    /// Blocks that differ between members.
    pub different: u64,
    /// Blocks that differ between members because a write was under way when an OSD was killed.
    pub under_way: u64,
    /// Copies on OSDs that are not members of the block's PG.
    pub strays: u64,
}

/// Compares the copies of the same PGs in these stores, which belong to different OSDs. Calls `progress`
/// with the bytes done and the total bytes; each block counts with its full size.
pub fn compare(stores: &mut [StoppedStore<'_>], progress: &mut dyn FnMut(u64, u64)) -> Comparison {
    let mut found = Comparison::default();
    let known = Known::of(stores, &mut found);
    let size_of = |pool: PoolId| known.pools.get(&pool).map_or(0, |pool| pool.block_size.bytes());
    let sizes = stores.iter().flat_map(|store| store.keys().map(|key| size_of(key.pool)));
    let total = sizes.sum();
    let mut done = 0;
    for pool in known.pools.values() {
        for number in 0..pool.pg_count {
            let pg = PgId { pool: pool.id, number };
            done += compare_pg(stores, &known, pool, pg, &mut found) * pool.block_size.bytes();
            progress(done, total);
        }
    }
    strays_of_unknown_pools(stores, &known, &mut found);
    for pool in known.pools.values() {
        if let PoolKind::Object { shards, .. } = pool.kind {
            compare_records(stores, &known, pool, shards, &mut found);
        }
    }
    found
}

/// What a store has of a shard, in the order of keys: how many records, and a hash of all of them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct ShardDigest {
    records: u64,
    hash: u64,
}

impl ShardDigest {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let sums = [key, value].map(|bytes| u64::from(base::crc32c(bytes).get()));
        let numbers = [self.hash, sums[0], sums[1]].map(u64::to_le_bytes).concat();
        (self.records, self.hash) = (self.records + 1, object_hash(&numbers));
    }
}

/// Compares the records of a pool of objects, shard by shard: nothing is kept of a record.
fn compare_records(
    stores: &mut [StoppedStore<'_>],
    known: &Known,
    pool: &Pool,
    shard_count: u32,
    found: &mut Comparison,
) {
    let mut digests: Vec<Option<BTreeMap<Shard, ShardDigest>>> = Vec::new();
    for (store, osd) in stores.iter_mut().zip(&known.osds) {
        let mut of_store: BTreeMap<Shard, ShardDigest> = BTreeMap::new();
        let mut look = |key: &[u8], value: &[u8]| {
            if Key::decode(key).is_some() && !is_own(key) {
                of_store.entry(Shard::of_key(key)).or_default().add(key, value);
            }
        };
        let has_family = store.store().has_family(pool.id);
        let walked = if has_family { store.walk_records(pool.id, &mut look) } else { Ok(()) };
        if let Err(why) = &walked {
            let text = format!("records of pool {} on {osd} cannot be read: {why}", pool.id);
            found.find(Severity::Error, text);
        }
        digests.push(walked.ok().map(|()| of_store));
    }
    for number in 0..pool.pg_count {
        let pg = PgId { pool: pool.id, number };
        let Some(entry) = known.entries.get(&pg) else { continue };
        let members: Vec<usize> = entry.acting().filter_map(|it| known.index_of(it.osd)).collect();
        let last = |index: &usize| stores[*index].store().facts(pg).last;
        let complete = |index: &usize| known.complete_up_to(*index, stores[*index].store(), pg);
        let Some(first) = members.first() else { continue };
        // Who was filled has all, and no newer version of its own.
        let is_same = |it: &usize| complete(it) == complete(first) && last(it) <= complete(it);
        if !members.iter().all(is_same) {
            let text = format!(
                "PG {pg}: changes were under way, so its members have different versions: their records \
                 were not compared"
            );
            found.find(Severity::Warning, text);
            continue;
        }
        let (low, high) = hash_range_of_pg(number, pool.pg_count);
        let shards =
            Shard::of_hash(low, shard_count).get()..=Shard::of_hash(high, shard_count).get();
        for shard in shards.map(Shard::new) {
            let of = |index: &usize| {
                let of_store = digests[*index].as_ref()?;
                Some(of_store.get(&shard).copied().unwrap_or_default())
            };
            let mut held = members.iter().filter_map(|index| Some((*index, of(index)?)));
            let Some((one, reference)) = held.next() else { continue };
            match held.find(|(_, digest)| *digest != reference) {
                None => found.records += reference.records,
                Some((other, digest)) => {
                    let (left, right) = (known.osds[one], known.osds[other]);
                    let (records, others) = (reference.records, digest.records);
                    let text = format!(
                        "PG {pg}: {left} and {right} hold different records of shard {}: {records} and \
                         {others}",
                        shard.get()
                    );
                    found.find(Severity::Error, text);
                }
            }
        }
    }
}

/// The combined contents of the notes of all stores.
struct Known {
    /// Pools, each with its newest rules.
    pools: BTreeMap<PoolId, Pool>,
    /// The newest entry of each PG.
    entries: BTreeMap<PgId, PgEntry>,
    /// Indexed by store: the OSD, its PG records, and the pools in its notes.
    osds: Vec<OsdId>,
    records: Vec<BTreeMap<PgId, Record>>,
    pools_known: Vec<BTreeSet<PoolId>>,
}

impl Known {
    fn of(stores: &[StoppedStore<'_>], found: &mut Comparison) -> Known {
        let mut known = Known {
            pools: BTreeMap::new(),
            entries: BTreeMap::new(),
            osds: stores.iter().map(|store| store.store().identity().osd).collect(),
            records: Vec::new(),
            pools_known: Vec::new(),
        };
        let mut revisions = BTreeMap::new();
        for (store, osd) in stores.iter().zip(known.osds.clone()) {
            let (mut records, mut pools) = (BTreeMap::new(), BTreeSet::new());
            for (key, bytes) in store.store().notes() {
                let read = match key {
                    NoteKey::Pg(pg) => Record::decode(bytes).map(|record| {
                        records.insert(pg, record);
                    }),
                    NoteKey::State(_) => Ok(()),
                    NoteKey::Scrub(pg) => ScrubNote::decode(pg, bytes).map(|_| ()),
                    NoteKey::Cluster => ClusterNote::decode(bytes).map(|note| {
                        for pool in note.pools {
                            let id = pool.pool.id;
                            pools.insert(id);
                            if revisions.get(&id).is_none_or(|newest| *newest < pool.revision) {
                                revisions.insert(id, pool.revision);
                                known.pools.insert(id, pool.pool);
                            }
                        }
                    }),
                };
                if let Err(error) = read {
                    found.find(Severity::Error, format!("{osd}: a note cannot be read: {error}"));
                }
            }
            for (pg, record) in &records {
                let entry = known.entries.entry(*pg).or_insert_with(|| record.entry.clone());
                if entry.epoch < record.entry.epoch {
                    *entry = record.entry.clone();
                }
            }
            known.records.push(records);
            known.pools_known.push(pools);
        }
        known
    }

    /// Returns the index of an OSD's store, if it was given.
    fn index_of(&self, osd: OsdId) -> Option<usize> {
        self.osds.iter().position(|known| *known == osd)
    }

    /// Returns the version up to which this store has everything of a PG; zero before the PG's first
    /// activation.
    fn complete_up_to(&self, index: usize, store: &Store, pg: PgId) -> Version {
        let Some(record) = self.records[index].get(&pg) else { return Version::ZERO };
        let facts = store.facts(pg);
        match (&record.filling, facts.hole) {
            (Some(filling), _) => filling.complete,
            (None, _) if facts.last.epoch != record.entry.epoch => record.adopted,
            (None, Some(hole)) => Version { counter: hole.counter - 1, ..hole },
            (None, None) => facts.last,
        }
    }
}

/// The copies of a block: index of the store, version, whether it is a tombstone.
type Holders = Vec<(usize, Version, bool)>;

/// Compares one PG. Returns the number of blocks checked, counting each copy.
fn compare_pg(
    stores: &mut [StoppedStore<'_>],
    known: &Known,
    pool: &Pool,
    pg: PgId,
    found: &mut Comparison,
) -> u64 {
    let (first, last) = hash_range_of_pg(pg.number, pool.pg_count);
    let mut blocks: BTreeMap<BlockKey, Holders> = BTreeMap::new();
    for (index, store) in stores.iter().enumerate() {
        for (key, version, tombstone) in store.store().blocks(pg.pool, first, last, None) {
            blocks.entry(key).or_default().push((index, version, tombstone));
        }
    }
    let copies = blocks.values().map(|holders| holders.len() as u64).sum();
    let Some(entry) = known.entries.get(&pg) else {
        // The PG was never activated.
        found.find_strays(known, pg, blocks.values().flatten());
        return copies;
    };
    let mut members = Vec::new();
    for member in entry.acting() {
        match known.index_of(member.osd) {
            Some(index) => members.push(index),
            None => {
                let text = format!("PG {pg}: the copy on {} was not compared", member.osd);
                found.find(Severity::Warning, text);
            }
        }
    }
    // A member always has a note of each of its pools. If a member has no note of this pool, the pool has
    // been removed.
    if members.iter().any(|index| !known.pools_known[*index].contains(&pg.pool)) {
        found.find_strays(known, pg, blocks.values().flatten());
        return copies;
    }
    let learners: Vec<usize> =
        entry.learning().filter_map(|member| known.index_of(member.osd)).collect();
    let is_stray = |(index, _, _): &&(usize, Version, bool)| {
        !members.contains(index) && !learners.contains(index)
    };
    found.find_strays(known, pg, blocks.values().flatten().filter(is_stray));
    found.pgs += 1;

    let complete =
        members.iter().map(|index| known.complete_up_to(*index, stores[*index].store(), pg));
    let settled = complete.min().unwrap_or(Version::ZERO);
    if !pool.scheme.is_whole_everywhere() {
        let parts: Vec<(Position, usize)> = (entry.filled())
            .filter_map(|(position, member)| Some((position, known.index_of(member.osd)?)))
            .collect();
        for key in blocks.keys() {
            compare_stripe(stores, known, pool, (pg, *key, settled), &parts, found);
        }
        return copies;
    }
    let floors = members.iter().map(|index| stores[*index].store().facts(pg).floor);
    let floor = floors.max().unwrap_or(Version::ZERO);
    for (key, holders) in &blocks {
        let mut held = Vec::new();
        for member in &members {
            let holder = holders.iter().find(|(index, _, _)| index == member);
            // At or below the floor, a tombstone may or may not have been dropped.
            let state = holder.map(|(_, version, tombstone)| (*version, *tombstone));
            held.push(state.filter(|(version, tombstone)| !(*tombstone && *version <= floor)));
        }
        if held.iter().any(|state| *state != held[0]) {
            let newest = held.iter().flatten().map(|(version, _)| *version).max();
            let is_settled = newest.is_some_and(|newest| newest <= settled);
            found.find_versions(known, pg, *key, &members, &held, is_settled);
        } else if let Some(Some((_, false))) = held.first() {
            compare_block(stores, known, pool.block_size, pg, *key, &members, found);
        }
    }
    copies
}

/// The contents of a block.
struct Block {
    written: Vec<u64>,
    answer: Answer,
}

fn read_block(
    store: &mut StoppedStore<'_>,
    key: BlockKey,
    size: BlockSize,
) -> Result<Block, StoreError> {
    let Answer::Extents { written, .. } = store.extents(key)? else {
        unreachable!("extents are answered by extents")
    };
    Ok(Block { written, answer: store.read(key, size.bytes() as u32)? })
}

/// Compares the bytes of a block on members that hold the same version of it.
fn compare_block(
    stores: &mut [StoppedStore<'_>],
    known: &Known,
    size: BlockSize,
    pg: PgId,
    key: BlockKey,
    members: &[usize],
    found: &mut Comparison,
) {
    let mut first: Option<(usize, Block)> = None;
    let mut is_different = false;
    for index in members {
        let block = match read_block(&mut stores[*index], key, size) {
            Ok(block) => block,
            Err(error) => {
                let (osd, block) = (known.osds[*index], name_of(pg, key));
                let text = match error {
                    StoreError::Damaged { units } => {
                        let count: u32 = units.iter().map(|word| word.count_ones()).sum();
                        format!("{block}: {count} 4 KiB units are damaged on {osd}")
                    }
                    StoreError::Full
                    | StoreError::Corrupted
                    | StoreError::Unordered
                    | StoreError::AboveSettled => {
                        unreachable!("reads bring no data")
                    }
                    StoreError::NoFamily
                    | StoreError::OtherCompression
                    | StoreError::WouldBlock
                    | StoreError::RecordsDamaged { .. } => {
                        unreachable!("blocks are no records")
                    }
                };
                found.find(Severity::Error, text);
                is_different = true;
                continue;
            }
        };
        let Some((other, reference)) = &first else {
            first = Some((*index, block));
            continue;
        };
        found.bytes += size.bytes();
        if let Some(what) = difference(reference, &block) {
            let (left, right) = (known.osds[*other], known.osds[*index]);
            let text = format!("{}: {left} and {right} hold different {what}", name_of(pg, key));
            found.find(Severity::Error, text);
            is_different = true;
        }
    }
    found.blocks += 1;
    found.different += u64::from(is_different);
}

/// Compares the parts of a stripe as of the version that all members are complete up to.
fn compare_stripe(
    stores: &mut [StoppedStore<'_>],
    known: &Known,
    pool: &Pool,
    (pg, key, settled): (PgId, BlockKey, Version),
    parts: &[(Position, usize)],
    found: &mut Comparison,
) {
    let mut held = Vec::new();
    let mut is_different = false;
    for (position, index) in parts {
        let answer = stores[*index].copy_as_of(key, AsOf::Version(settled));
        let Ok(Answer::Copy { content }) = answer else {
            unreachable!("a copy of a whole block is answered by one");
        };
        if let Content::Block { damaged, .. } = &content {
            let count: u32 = damaged.iter().map(|word| word.count_ones()).sum();
            if count > 0 {
                let (osd, block) = (known.osds[*index], name_of(pg, key));
                let text = format!("{block}: {count} 4 KiB units are damaged on {osd}");
                found.find(Severity::Error, text);
                is_different = true;
            }
        }
        held.push((*position, content));
    }
    if let Some(what) = pg::check_stripe(pg::face_of(pool.scheme), pool.block_size, &held) {
        found.find(Severity::Error, format!("{}: {what}", name_of(pg, key)));
        is_different = true;
    }
    found.bytes += pool.block_size.bytes() * held.len() as u64;
    found.blocks += 1;
    found.different += u64::from(is_different);
}

/// Returns what differs between two copies of the same version.
fn difference(left: &Block, right: &Block) -> Option<&'static str> {
    if left.written != right.written {
        return Some("units");
    }
    match (&left.answer, &right.answer) {
        (
            Answer::Read { checksums, data, .. },
            Answer::Read { checksums: other_checksums, data: other_data, .. },
        ) => {
            // The read has already verified each copy against its own checksums; the bytes are compared
            // as well.
            let is_same = checksums == other_checksums && data[..] == other_data[..];
            (!is_same).then_some("bytes")
        }
        _ => unreachable!("a read is answered by a read"),
    }
}

/// Reports copies of pools that no store has a record of any more.
fn strays_of_unknown_pools(stores: &[StoppedStore<'_>], known: &Known, found: &mut Comparison) {
    for (store, osd) in stores.iter().zip(&known.osds) {
        let mut counts: BTreeMap<PoolId, u64> = BTreeMap::new();
        for key in store.keys().filter(|key| !known.pools.contains_key(&key.pool)) {
            *counts.entry(key.pool).or_default() += 1;
        }
        for (pool, count) in counts {
            found.strays += count;
            let text = format!("{osd} holds {count} blocks of pool {pool}, which was removed");
            found.find(Severity::Warning, text);
        }
    }
}

fn name_of(pg: PgId, key: BlockKey) -> String {
    format!("block {} of image {} (PG {pg})", key.stripe, key.image)
}

impl Comparison {
    fn find(&mut self, severity: Severity, text: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { severity, text });
        } else if self.findings.len() == FINDINGS_MAX {
            let text = "not all findings are listed".to_owned();
            self.findings.push(Finding { severity: Severity::Error, text });
        }
    }

    /// Reports that members hold different versions of a block.
    fn find_versions(
        &mut self,
        known: &Known,
        pg: PgId,
        key: BlockKey,
        members: &[usize],
        held: &[Option<(Version, bool)>],
        is_settled: bool,
    ) {
        let say = |(index, state): (&usize, &Option<(Version, bool)>)| {
            let osd = known.osds[*index];
            match state {
                None => format!("{osd} has no copy"),
                Some((version, true)) => format!("{osd} has deleted it in version {version}"),
                Some((version, false)) => format!("{osd} has {version}"),
            }
        };
        let states: Vec<String> = members.iter().zip(held).map(say).collect();
        let text = format!("{}: {}", name_of(pg, key), states.join(", "));
        if is_settled {
            self.different += 1;
            self.find(Severity::Error, text);
        } else {
            self.under_way += 1;
            let text = format!(
                "{text}; a write was in progress; the next start of the OSDs resolves this"
            );
            self.find(Severity::Warning, text);
        }
    }

    /// Reports, for each store, how many blocks of the PG it holds without being a member. Tombstones are not
    /// counted.
    fn find_strays<'a>(
        &mut self,
        known: &Known,
        pg: PgId,
        copies: impl Iterator<Item = &'a (usize, Version, bool)>,
    ) {
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        for (index, _, tombstone) in copies {
            *counts.entry(*index).or_default() += u64::from(!tombstone);
        }
        for (index, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.strays += count;
            let text = format!(
                "{} holds {count} blocks of PG {pg} but is not a member: it was down, or has not \
                 removed them yet",
                known.osds[index]
            );
            self.find(Severity::Warning, text);
        }
    }
}
