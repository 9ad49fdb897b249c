//! Compares the members of each PG at the end of a run: all hold the same data, and no other OSD holds data
//! of the PG.
//!
//! All OSDs stop cleanly. Then each store is opened on its own, and its data of each PG is compared block by
//! block and unit by unit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::hash::pg_of_hash;
use base::{BufferPool, PgId, PoolId, Position, Time, Version};
use blockstore::{Answer, AsOf, BlockKey, Effect, Event, Request, RequestId, Store};
use format::wire::{Content, PgEntry};
use objects::keys::is_own;
use objects::{Key, Shard};

use super::engines::OsdEngine;
use super::osd::Osd;
use super::process::Process;
use super::world::World;
use crate::disk::{Crash, SimDisk};
use crate::random::Random;

/// A block as a store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    version: Version,
    /// Checksums of the written units, by unit number; `None`: the block is deleted.
    units: Option<BTreeMap<usize, u32>>,
    /// Units that cannot be read.
    damaged: BTreeSet<usize>,
    /// The whole content. Where copies are compared by their checksums, the data is dropped.
    content: Content,
}

impl Block {
    /// Returns whether another member's copy is the same, as far as both copies can be read.
    fn is_like(&self, other: &Block) -> bool {
        let damaged: BTreeSet<usize> = self.damaged.union(&other.damaged).copied().collect();
        let whole = |units: &BTreeMap<usize, u32>| -> Vec<(usize, u32)> {
            let units = units.iter().filter(|(unit, _)| !damaged.contains(unit));
            units.map(|(unit, checksum)| (*unit, *checksum)).collect()
        };
        let same_units = match (&self.units, &other.units) {
            (Some(mine), Some(theirs)) => whole(mine) == whole(theirs),
            (None, None) => true,
            _ => false,
        };
        self.version == other.version && same_units
    }
}

/// The data in the stores of all OSDs, by OSD and PG number.
type Holdings = BTreeMap<base::OsdId, BTreeMap<u32, Holding>>;

/// The data of one PG in one store.
#[derive(Default, Debug)]
struct Holding {
    floor: Version,
    blocks: BTreeMap<BlockKey, Block>,
}

impl World {
    /// Compares the data of all members, then starts all OSDs again. `listed`: blocks that a scrub
    /// listed as damaged. Damage of any other block must be the same at all members.
    pub(super) fn compare_members(&mut self, listed: &BTreeSet<BlockKey>) -> Result<(), String> {
        self.stop_all_osds()?;
        let mut holdings = BTreeMap::new();
        let mut objects = BTreeMap::new();
        for index in 0..self.osds.len() {
            if let Some(id) = self.osds[index].id.filter(|_| !self.osds[index].is_gone) {
                let (of_volumes, of_objects) = self.read_store(index)?;
                holdings.insert(id, of_volumes);
                objects.insert(id, of_objects);
            }
        }
        self.compare_objects(objects)?;
        for entry in self.watch.entries() {
            match self.plan.scheme.is_whole_everywhere() {
                true => compare(entry, listed, &mut holdings)?,
                false => self.compare_parts(entry, listed, &mut holdings)?,
            }
        }
        let strays = holdings.iter().flat_map(|(osd, pgs)| pgs.iter().map(move |pg| (osd, pg)));
        for (osd, (number, holding)) in strays {
            if let Some((key, block)) = holding.blocks.first_key_value() {
                let count = holding.blocks.len();
                return Err(format!(
                    "{osd} is no member of PG {number}, but holds {count} blocks of it: \
                     {key:?} {block:?}"
                ));
            }
        }
        for index in 0..self.osds.len() {
            if !self.osds[index].is_gone {
                self.start(Process::Osd(index))?;
            }
        }
        Ok(())
    }

    /// Checks that the members of each PG of the object pool hold the same, and nobody else anything.
    fn compare_objects(
        &self,
        mut holdings: BTreeMap<base::OsdId, BTreeMap<u32, ObjectHolding>>,
    ) -> Result<(), String> {
        for entry in self.watch.all_entries().filter(|entry| entry.pg.pool != PoolId::FIRST) {
            let mut first: Option<(base::OsdId, ObjectHolding)> = None;
            for member in entry.acting() {
                let holding = holdings.get_mut(&member.osd);
                let holding = holding.and_then(|pgs| pgs.remove(&entry.pg.number));
                let holding = holding.unwrap_or_default();
                match &first {
                    None => first = Some((member.osd, holding)),
                    Some((other, first)) if *first != holding => {
                        let what = first.difference(&holding);
                        return Err(format!(
                            "members of {} differ: {other} and {} in {what}",
                            entry.pg, member.osd
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        let mut strays = holdings.iter().flat_map(|(osd, pgs)| pgs.keys().map(move |pg| (osd, pg)));
        match strays.next() {
            Some((osd, pg)) => {
                Err(format!("{osd} is no member of PG {pg} of objects, but has some"))
            }
            None => Ok(()),
        }
    }

    /// Checks that the parts of each stripe at the members of a PG form a code word, and that scrubs left
    /// no damage but what is listed. Removes the parts from `holdings`.
    fn compare_parts(
        &self,
        entry: &PgEntry,
        listed: &BTreeSet<BlockKey>,
        holdings: &mut Holdings,
    ) -> Result<(), String> {
        let mut members: Vec<(Position, Holding)> = Vec::new();
        for (position, member) in entry.filled() {
            let holding = holdings.get_mut(&member.osd);
            let holding = holding.and_then(|pgs| pgs.remove(&entry.pg.number));
            members.push((position, holding.unwrap_or_default()));
        }
        let face = pg::face_of(self.plan.scheme);
        let keys: BTreeSet<BlockKey> =
            members.iter().flat_map(|(_, holding)| holding.blocks.keys().copied()).collect();
        for key in keys {
            let part = |(position, holding): &(Position, Holding)| {
                let content = holding.blocks.get(&key).map(|block| block.content.clone());
                (*position, content.unwrap_or(Content::Gone))
            };
            let parts: Vec<(Position, Content)> = members.iter().map(part).collect();
            if let Some(what) = pg::check_stripe(face, self.plan.block_size, &parts) {
                return Err(format!("members of {} differ in {key:?}: {what}", entry.pg));
            }
            let mut held = members.iter().filter_map(|(_, holding)| holding.blocks.get(&key));
            if let Some(block) = held.find(|block| !block.damaged.is_empty())
                && !listed.contains(&key)
            {
                let units = &block.damaged;
                return Err(format!("a scrub left damage of {key:?} in {}: {units:?}", entry.pg));
            }
        }
        Ok(())
    }

    fn stop_all_osds(&mut self) -> Result<(), String> {
        for index in 0..self.osds.len() {
            self.osds[index].stays_down = true;
            self.stop_osd(index)?;
        }
        self.wait("an OSD does not stop", |world| world.osds.iter().all(|osd| osd.node.is_none()))?;
        self.osds.iter_mut().for_each(|osd| osd.stays_down = false);
        Ok(())
    }

    /// Returns the data in an OSD's store, by PG number.
    fn read_store(&mut self, index: usize) -> Result<OfStore, String> {
        let object_pool = self.watch.all_entries().map(|entry| entry.pg.pool).max();
        let object_pool = object_pool.filter(|pool| *pool != PoolId::FIRST);
        let shape = self.objects.as_ref().map(|pool| pool.history.shape()).zip(object_pool);
        let pg_count = self.plan.pg_count;
        let settings = Osd::store_settings(&self.plan);
        let keeps_data = !self.plan.scheme.is_whole_everywhere();
        let osd = &mut self.osds[index];
        let disk = osd.disk.as_mut().expect("it was created");
        let mut reader = Reader::open((disk, &mut osd.engine), settings, &self.pool, self.now)
            .map_err(|reason| format!("osd {index} does not open again: {reason}"))?;
        let holding_of = |number| {
            let floor = reader.store.facts(PgId { pool: PoolId::FIRST, number }).floor;
            (number, Holding { floor, blocks: BTreeMap::new() })
        };
        let mut pgs: BTreeMap<u32, Holding> = (0..pg_count).map(holding_of).collect();
        let listed: Vec<(BlockKey, Version, bool)> =
            reader.store.blocks(PoolId::FIRST, 0, u32::MAX, None).collect();
        for (key, version, is_tombstone) in listed {
            let block = if is_tombstone {
                let content = Content::Tombstone { version };
                Block { version, units: None, damaged: BTreeSet::new(), content }
            } else {
                reader.block(key, keeps_data)?
            };
            let holding = pgs.get_mut(&pg_of_hash(key.hash, pg_count)).expect("one of the pool's");
            holding.blocks.insert(key, block);
        }
        let mut objects: BTreeMap<u32, ObjectHolding> = BTreeMap::new();
        if let Some(((pg_count, shard_count), pool)) = shape {
            for (key, value) in reader.engine.records(pool).filter(|(key, _)| !is_own(key)) {
                let pg = u32::from(Shard::of_key(key).get()) / (shard_count / pg_count);
                let holding = objects.entry(pg).or_default();
                holding.records.insert(key.to_vec(), value.to_vec());
            }
            let listed: Vec<BlockKey> =
                reader.store.blocks(pool, 0, u32::MAX, None).map(|(key, ..)| key).collect();
            for key in listed {
                let holding = objects.entry(pg_of_hash(key.hash, pg_count)).or_default();
                let block = reader.block(key, false)?;
                holding.blocks.insert(key, (block.version, block.units));
            }
        }
        disk.crash(Crash::Process, &mut self.medium);
        osd.engine.crash();
        Ok((pgs, objects))
    }
}

/// What a store has of volumes, and of objects, by PG number.
type OfStore = (BTreeMap<u32, Holding>, BTreeMap<u32, ObjectHolding>);

/// What one store has of a PG of objects, but for what is a member's own.
#[derive(Default, PartialEq, Eq)]
struct ObjectHolding {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The version of each block, and the checksums of its units.
    blocks: BTreeMap<BlockKey, (Version, Option<BTreeMap<usize, u32>>)>,
}

impl ObjectHolding {
    /// Returns where two of them differ first; for people.
    fn difference(&self, other: &ObjectHolding) -> String {
        let keys: BTreeSet<&Vec<u8>> = self.records.keys().chain(other.records.keys()).collect();
        let key = keys.into_iter().find(|key| self.records.get(*key) != other.records.get(*key));
        if let Some(key) = key {
            let values = (self.records.get(key), other.records.get(key));
            return format!("{:?}: {values:?}", Key::decode(key));
        }
        let keys: BTreeSet<&BlockKey> = self.blocks.keys().chain(other.blocks.keys()).collect();
        let key = keys.into_iter().find(|key| self.blocks.get(*key) != other.blocks.get(*key));
        let key = key.expect("they differ");
        format!("{key:?}: {:?}", (self.blocks.get(key), other.blocks.get(key)))
    }
}

/// Compares the data of the members of a PG, and removes it from the holdings.
fn compare(
    entry: &PgEntry,
    listed: &BTreeSet<BlockKey>,
    holdings: &mut Holdings,
) -> Result<(), String> {
    let mut members = Vec::new();
    for member in entry.acting() {
        let holding = holdings.get_mut(&member.osd).and_then(|pgs| pgs.remove(&entry.pg.number));
        members.push((member.osd, holding.unwrap_or_default()));
    }
    let floor = members.iter().map(|(_, holding)| holding.floor).max().unwrap_or_default();
    let keys: BTreeSet<BlockKey> =
        members.iter().flat_map(|(_, holding)| holding.blocks.keys().copied()).collect();
    for key in keys {
        let counts = |block: &&Block| block.units.is_some() || block.version > floor;
        let mut all = members.iter().map(|(osd, holding)| {
            let block = holding.blocks.get(&key).filter(counts);
            (osd, block)
        });
        let held: Vec<&Block> =
            members.iter().filter_map(|(_, holding)| holding.blocks.get(&key)).collect();
        let is_left = |block: &Block| {
            let readable = |unit: &usize| held.iter().any(|other| !other.damaged.contains(unit));
            block.damaged.iter().any(readable)
        };
        if !listed.contains(&key) && held.iter().any(|block| is_left(block)) {
            return Err(format!("a scrub left damage of {key:?} in {}: {held:?}", entry.pg));
        }
        let Some((first_osd, first)) = all.next() else { continue };
        for (osd, block) in all {
            let is_same = match (first, block) {
                (Some(first), Some(block)) => first.is_like(block),
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                return Err(format!(
                    "members of {} differ in {key:?} (floor {floor}): {first_osd} has {first:?}, \
                     {osd} has {block:?}",
                    entry.pg
                ));
            }
        }
    }
    Ok(())
}

/// A store that is read on its own, on an infinitely fast disk.
struct Reader<'a> {
    disk: &'a mut SimDisk,
    engine: &'a mut OsdEngine,
    store: Store,
    random: Random,
    now: Time,
    effects: VecDeque<Effect>,
    request_last: u64,
}

impl<'a> Reader<'a> {
    fn open(
        (disk, engine): (&'a mut SimDisk, &'a mut OsdEngine),
        settings: blockstore::Settings,
        pool: &BufferPool,
        now: Time,
    ) -> Result<Reader<'a>, String> {
        let mut effects = Vec::new();
        let found = match engine.open() {
            node::Engine::Open(found) => Some(found),
            _ => None,
        };
        let size = (disk.size(), found);
        let store = Store::open_with(settings, pool.clone(), size, &mut effects);
        let random = Random::new(0, "reader");
        let effects = effects.into();
        let mut reader = Reader { disk, engine, store, random, now, effects, request_last: 0 };
        match reader.next_effect()? {
            Effect::Opened => Ok(reader),
            Effect::Stopped { reason } => Err(reason),
            effect => Err(format!("while it opens: {effect:?}")),
        }
    }

    /// Returns the next effect that is not a disk operation.
    fn next_effect(&mut self) -> Result<Effect, String> {
        loop {
            match self.effects.pop_front() {
                Some(Effect::Disk(effect)) => {
                    let op = self.disk.submit(effect);
                    let event = self.disk.complete(op, None, &mut self.random);
                    self.apply(Event::Disk(event));
                }
                Some(Effect::Engine(effect)) => {
                    let events = self.engine.carry_out(effect);
                    events.into_iter().for_each(|event| self.apply(Event::Engine(event)));
                }
                Some(effect) => return Ok(effect),
                None => return Err("the store waits for nothing".to_string()),
            }
        }
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.store.apply(self.now, event, &mut effects);
        self.store.submit(&mut effects);
        self.effects.extend(effects);
    }

    fn block(&mut self, key: BlockKey, keeps_data: bool) -> Result<Block, String> {
        self.request_last += 1;
        let id = RequestId(self.request_last);
        self.apply(Event::Request {
            id,
            request: Request::Copy { key, units: Vec::new(), as_of: AsOf::View },
        });
        let content = match self.next_effect()? {
            Effect::Done { result: Ok(Answer::Copy { content }), .. } => content,
            effect => return Err(format!("a copy of {key:?} is answered {effect:?}")),
        };
        let Content::Block { version, written, damaged, checksums, .. } = &content else {
            return Err(format!("a copy of {key:?} is {content:?}"));
        };
        let version = *version;
        let checksums = checksums.iter().map(|checksum| checksum.get());
        let units = Some(bits(written).zip(checksums).collect());
        let damaged = bits(damaged).collect();
        let content = if keeps_data { content } else { Content::Gone };
        Ok(Block { version, units, damaged, content })
    }
}

/// Returns the numbers of the bits that are set.
fn bits(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    (0..words.len() * 64).filter(|bit| words[bit / 64] >> (bit % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, Incarnation, MapRevision, OsdId, StripeIndex};
    use format::wire::Member;

    use super::*;

    fn key(stripe: u32) -> BlockKey {
        let (pool, image) = (PoolId::FIRST, ImageId::FIRST);
        BlockKey { pool, hash: 1, image, stripe: StripeIndex::new(stripe) }
    }

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn block(counter: u64, units: Option<&[(usize, u32)]>) -> Block {
        let units = units.map(|units| units.iter().copied().collect());
        let (damaged, content) = (BTreeSet::new(), Content::Gone);
        Block { version: version(counter), units, damaged, content }
    }

    fn compared(one: &[(u32, Block)], other: &[(u32, Block)], floor: u64) -> bool {
        let osd = |number| OsdId::new(number).expect("not 0");
        let member = |number| Member { osd: osd(number), incarnation: Incarnation::new(1) };
        let pg = PgId { pool: PoolId::FIRST, number: 0 };
        let (epoch, revision) = (Epoch::new(1), MapRevision::new(1));
        let entry = PgEntry { epoch, revision, ..PgEntry::new(pg, [member(1), member(2)]) };
        let holding = |blocks: &[(u32, Block)]| Holding {
            floor: version(floor),
            blocks: blocks.iter().map(|(at, block)| (key(*at), block.clone())).collect(),
        };
        let mut holdings = BTreeMap::from([
            (osd(1), BTreeMap::from([(0, holding(one))])),
            (osd(2), BTreeMap::from([(0, holding(other))])),
        ]);
        compare(&entry, &BTreeSet::from([key(1)]), &mut holdings).is_ok()
    }

    #[test]
    fn members_differ_by_version_unit_checksum_or_tombstone() {
        let good = (0, block(5, Some(&[(0, 7), (3, 8)])));
        assert!(compared(std::slice::from_ref(&good), std::slice::from_ref(&good), 0));
        let others = [
            block(6, Some(&[(0, 7), (3, 8)])),
            block(5, Some(&[(0, 7)])),
            block(5, Some(&[(0, 7), (3, 9)])),
            block(5, None),
        ];
        for other in others {
            assert!(!compared(std::slice::from_ref(&good), &[(0, other)], 0));
        }
        assert!(!compared(std::slice::from_ref(&good), &[], 9));
        assert!(!compared(&[], std::slice::from_ref(&good), 9));
    }

    #[test]
    fn a_tombstone_may_be_gone_below_the_floor_and_a_damaged_unit_says_nothing() {
        let tombstone = [(0, block(5, None))];
        assert!(compared(&tombstone, &[], 5));
        assert!(!compared(&tombstone, &[], 4));
        let good = [(0, block(5, Some(&[(0, 7), (3, 8)])))];
        let mut damaged = block(5, Some(&[(0, 7)]));
        damaged.damaged.insert(3);
        assert!(!compared(&good, &[(0, damaged.clone())], 0), "a scrub must repair it");
        assert!(compared(&[(1, good[0].1.clone())], &[(1, damaged)], 0), "it is listed");
    }

    #[test]
    fn bits_are_numbered_over_all_words() {
        assert_eq!(bits(&[0b101, 1 << 63]).collect::<Vec<_>>(), [0, 2, 127]);
    }
}
