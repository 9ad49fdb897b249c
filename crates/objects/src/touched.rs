//! What changes touch: keys, ranges of keys, and units of blocks. A log record names it, by version, so that a
//! member that lacks the version gets what is there now. `docs/internals/objects.md`, rule 44.
//!
//! ```text
//!   for each:  what (1) ...                                       in this order
//!     1 key, 2 head that is a tombstone now   key length (2) | key
//!     3 range                                 key length (2) | first key | key length (2) | first key behind
//!     4 units of a block                      hash, image, stripe (12) | words of units (8 each)
//!     5 whole block                           hash, image, stripe (12)
//! ```
//!
//! Invariants
//!   1. What is touched has one encoding: whatever decodes, encodes to the same bytes.
//!   2. Whatever changes touch is named, exactly or by a range that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use base::{BlockSize, PoolId, Version};
use format::disk::bytes::{Reader, Writer};
use format::disk::{BlockAction, BlockChange, BlockKey, UnitSet};
use format::engine::{Change, KEY_SIZE_MAX};

use crate::head::Head;
use crate::keys::{Key, Kind, LogKey, Shard, is_head};
use crate::prepare::{PoolShape, Prepared};

const KEY: u8 = 1;
const TOMBSTONE: u8 = 2;
const RANGE: u8 = 3;
const UNITS: u8 = 4;
const BLOCK: u8 = 5;

/// What changes of one shard touch.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Touched {
    /// Keys of the engine; whether each is the head of an object that was removed.
    pub keys: BTreeMap<Vec<u8>, bool>,
    /// Ranges of keys: the first one, and the first one behind. They may overlap each other and the keys.
    pub ranges: BTreeSet<(Vec<u8>, Vec<u8>)>,
    /// Units of blocks. `None`: the whole block.
    pub blocks: BTreeMap<BlockKey, Option<UnitSet>>,
}

impl Touched {
    /// Returns what a run touches, by shard.
    pub fn of(prepared: &Prepared, shape: PoolShape) -> BTreeMap<Shard, Touched> {
        let blocks = prepared.blocks.iter().map(|(change, _)| change);
        Touched::of_changes(&prepared.records, blocks, shape)
    }

    /// Returns what changes of records and blocks touch, by shard.
    pub fn of_changes<'a>(
        records: &[Change],
        blocks: impl IntoIterator<Item = &'a BlockChange>,
        shape: PoolShape,
    ) -> BTreeMap<Shard, Touched> {
        let mut shards: BTreeMap<Shard, Touched> = BTreeMap::new();
        for change in records {
            let key = match change {
                Change::Put { key, .. } | Change::Delete { key } => key,
                Change::DeleteRange { start, .. } => start,
            };
            let touched = shards.entry(Shard::of_key(key)).or_default();
            match change {
                Change::Put { key, value } => touched.note_key(key, is_tombstone(key, value)),
                Change::Delete { key } => touched.note_key(key, false),
                Change::DeleteRange { start, end } => {
                    touched.ranges.insert((start.clone(), end.clone()));
                }
            }
        }
        for change in blocks {
            let shard = Shard::of_hash(change.key.hash, shape.sharding.shard_count);
            let units = (change.action != BlockAction::Gone).then_some(change.units);
            shards.entry(shard).or_default().note_block(change.key, units);
        }
        shards
    }

    /// Returns the log record of what a version touches in a shard. Requires: blocks have this size.
    pub fn log_record(&self, shard: Shard, version: Version, block_size: BlockSize) -> Change {
        let kind = Kind::Log(LogKey { version, page: None });
        Change::Put { key: Key { shard, kind }.encode(), value: self.encode(block_size) }
    }

    /// Whether nothing is touched.
    pub fn is_empty(&self) -> bool {
        *self == Touched::default()
    }

    /// Adds what other changes touch, which come later: what they say of a head's tombstone counts.
    pub fn add(&mut self, later: &Touched) {
        for (key, is_tombstone) in &later.keys {
            self.note_key(key, *is_tombstone);
        }
        self.ranges.extend(later.ranges.iter().cloned());
        for (key, units) in &later.blocks {
            self.note_block(*key, *units);
        }
    }

    /// Whether a key is touched.
    pub fn has_key(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
            || self.ranges.iter().any(|(start, end)| &start[..] <= key && key < &end[..])
    }

    /// Whether any key of a range is touched. Requires: `start < end`.
    pub fn meets(&self, start: &[u8], end: &[u8]) -> bool {
        assert!(start < end);
        let within = (Bound::Included(start), Bound::Excluded(end));
        self.keys.range::<[u8], _>(within).next().is_some()
            || self.ranges.iter().any(|(first, behind)| &first[..] < end && start < &behind[..])
    }

    fn note_key(&mut self, key: &[u8], is_tombstone: bool) {
        self.keys.insert(key.to_vec(), is_tombstone);
    }

    fn note_block(&mut self, key: BlockKey, units: Option<UnitSet>) {
        let known = self.blocks.entry(key).or_insert(Some(UnitSet::EMPTY));
        *known = match (*known, units) {
            (Some(mut all), Some(units)) => {
                units.iter().for_each(|unit| all.insert(unit));
                Some(all)
            }
            _ => None,
        };
    }

    /// Encodes what is touched. Requires: blocks have this size.
    pub fn encode(&self, block_size: BlockSize) -> Vec<u8> {
        let mut to = Writer::default();
        for (key, is_tombstone) in &self.keys {
            to.u8(if *is_tombstone { TOMBSTONE } else { KEY });
            put_key(&mut to, key);
        }
        for (start, end) in &self.ranges {
            to.u8(RANGE);
            put_key(&mut to, start);
            put_key(&mut to, end);
        }
        for (key, units) in &self.blocks {
            to.u8(if units.is_some() { UNITS } else { BLOCK });
            [key.hash, key.image.get(), key.stripe.get()].iter().for_each(|part| to.u32(*part));
            for word in units.iter().flat_map(|units| units.words(block_size.unit_count())) {
                to.u64(word);
            }
        }
        to.bytes
    }

    /// Decodes what is touched in a pool with blocks of this size. `None`: the bytes are no log record.
    pub fn decode(bytes: &[u8], pool: PoolId, block_size: BlockSize) -> Option<Touched> {
        let mut touched = Touched::default();
        let mut from = Reader::new(bytes);
        while !from.is_at_end() {
            match from.u8()? {
                what @ (KEY | TOMBSTONE) => {
                    touched.keys.insert(take_key(&mut from)?, what == TOMBSTONE);
                }
                RANGE => {
                    let (start, end) = (take_key(&mut from)?, take_key(&mut from)?);
                    (start < end).then_some(())?;
                    touched.ranges.insert((start, end));
                }
                UNITS => {
                    let (key, count) = (from.key_in(pool)?, block_size.unit_count());
                    let words: Option<Vec<u64>> =
                        (0..count.div_ceil(64)).map(|_| from.u64()).collect();
                    let units = UnitSet::from_slice(&words?);
                    let is_sound = !units.is_empty() && units.is_within(&UnitSet::first(count));
                    touched.blocks.insert(key, Some(is_sound.then_some(units)?));
                }
                BLOCK => {
                    touched.blocks.insert(from.key_in(pool)?, None);
                }
                _ => return None,
            }
        }
        // Anything in another order, or twice, encodes differently.
        (touched.encode(block_size) == bytes).then_some(touched)
    }
}

/// Whether a record is the head of an object that was removed.
fn is_tombstone(key: &[u8], value: &[u8]) -> bool {
    is_head(key) && Head::is_tombstone(value)
}

fn put_key(to: &mut Writer, key: &[u8]) {
    assert!((1..=KEY_SIZE_MAX).contains(&key.len()));
    to.u16(key.len() as u16);
    to.bytes.extend_from_slice(key);
}

fn take_key(from: &mut Reader<'_>) -> Option<Vec<u8>> {
    let size = usize::from(from.u16()?);
    let key = from.take(size)?;
    (1..=KEY_SIZE_MAX).contains(&size).then(|| key.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::Name;
    use base::{Epoch, ImageId, StripeIndex};

    const SIZE: BlockSize = BlockSize::MIN;

    fn block(stripe: u32) -> BlockKey {
        let (image, stripe) = (ImageId::new(7).unwrap(), StripeIndex::new(stripe));
        BlockKey { pool: PoolId::FIRST, hash: 0x8000_0000, image, stripe }
    }

    #[test]
    fn units_that_no_block_has_are_refused() {
        for word in [0, 1 << 4] {
            let mut touched = Touched::default();
            touched.blocks.insert(block(1), Some(UnitSet::from_slice(&[word])));
            assert_eq!(Touched::decode(&touched.encode(SIZE), PoolId::FIRST, SIZE), None, "{word}");
        }
    }

    #[test]
    fn log_records_are_frozen() {
        let mut touched = Touched::default();
        touched.note_key(b"a", false);
        touched.note_key(b"b", true);
        touched.ranges.insert((b"c".to_vec(), b"d".to_vec()));
        let mut units = UnitSet::EMPTY;
        units.insert(2);
        touched.note_block(block(1), Some(units));
        touched.note_block(block(2), None);
        let bytes = touched.encode(SIZE);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "01010061020100620301006301006404000000800700000001000000040000000000000005\
             000000800700000002000000"
        );
        assert_eq!(Touched::decode(&bytes, PoolId::FIRST, SIZE), Some(touched));
    }

    #[test]
    fn a_run_names_all_that_it_changes_in_the_shard_where_it_is() {
        use crate::{Field, NameHash, ObjectChange, ObjectSteps, Operation, Run, Sharding};
        const SHARDING: Sharding = Sharding { shard_count: 16, names: NameHash::Plain };
        let shape = PoolShape { pool: PoolId::FIRST, sharding: SHARDING, block_size: SIZE };
        let name = |text: &[u8]| Name::new(text).unwrap();
        let steps =
            |of: &[u8], changes| ObjectSteps { name: name(of), assertions: vec![], changes };
        let mut run = Run::new(shape);
        let mut draw = || crate::DataId::new(1 << 20).unwrap();
        let record = |key: &[u8]| Field::Record(key.to_vec());
        let operations = [
            steps(b"a", vec![ObjectChange::Put(vec![1; 40_000])]),
            steps(b"b", vec![ObjectChange::Set(record(b"k"), vec![1]), ObjectChange::Remove]),
        ];
        for steps in operations {
            run.supply_head(steps.name.clone(), None);
            run.apply(&Operation { objects: vec![steps] }, 0, &mut draw).unwrap();
        }
        let prepared = run.finish(Version { epoch: Epoch::new(2), counter: 1 });
        let shards = Touched::of(&prepared, shape);
        let of = |text: &[u8]| &shards[&SHARDING.shard(&name(text))];
        let head = |text: &[u8]| {
            let shard = SHARDING.shard(&name(text));
            Key { shard, kind: Kind::Head { name: name(text) } }.encode()
        };
        assert_ne!(of(b"a"), of(b"b"));
        assert_eq!((of(b"a").keys[&head(b"a")], of(b"b").keys[&head(b"b")]), (false, true));
        let units: u32 = of(b"a").blocks.values().flatten().map(UnitSet::count).sum();
        assert_eq!((units, of(b"b").blocks.len(), of(b"b").ranges.len()), (10, 0, 2));
        let shard = SHARDING.shard(&name(b"b"));
        let gone = Key { shard, kind: Kind::Record { name: name(b"b"), key: b"k".to_vec() } };
        assert!(of(b"b").has_key(&gone.encode()) && !of(b"b").has_key(&head(b"bb")));
        let (start, end) = crate::keys::records_range(shard, &name(b"b"), b"x", Some(b"y"));
        assert!(of(b"b").meets(&start, &end) && !of(b"a").meets(&start, &end));
    }

    fn any_touched() -> impl Strategy<Value = Touched> {
        let key = || prop::collection::vec(0..3u8, 1..4);
        let keys = prop::collection::btree_map(key(), any::<bool>(), 0..4);
        let ranges = prop::collection::btree_set((key(), key()), 0..3);
        let units = prop::option::of((1..16u64).prop_map(|word| UnitSet::from_slice(&[word])));
        let blocks = prop::collection::btree_map((0..4u32).prop_map(block), units, 0..4);
        (keys, ranges, blocks).prop_map(|(keys, ranges, blocks)| Touched {
            keys,
            ranges: ranges.into_iter().filter(|(start, end)| start < end).collect(),
            blocks,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn log_records_come_back(touched in any_touched()) {
            let bytes = touched.encode(SIZE);
            prop_assert_eq!(Touched::decode(&bytes, PoolId::FIRST, SIZE), Some(touched));
        }

        #[test]
        fn changed_log_records_decode_or_are_refused(
            touched in any_touched(),
            at in any::<prop::sample::Index>(),
            byte in 0..8u8,
        ) {
            let mut bytes = touched.encode(SIZE);
            prop_assume!(!bytes.is_empty());
            let size = bytes.len();
            bytes[at.index(size)] = byte;
            if let Some(touched) = Touched::decode(&bytes, PoolId::FIRST, SIZE) {
                prop_assert_eq!(touched.encode(SIZE), bytes);
            }
        }

        #[test]
        fn what_is_added_is_named(
            one in any_touched(),
            other in any_touched(),
            key in prop::collection::vec(0..3u8, 1..4),
        ) {
            let mut both = one.clone();
            both.add(&other);
            prop_assert_eq!(both.has_key(&key), one.has_key(&key) || other.has_key(&key));
            // The range of this key alone, and one with all keys that begin with it.
            let alone = [&key[..], &[0]].concat();
            let more = [&key[..], &[0xff]].concat();
            prop_assert!(both.meets(&key, &alone) || !both.has_key(&key));
            for end in [alone, more] {
                let met = one.meets(&key, &end) || other.meets(&key, &end);
                prop_assert_eq!(both.meets(&key, &end), met);
            }
        }
    }
}
