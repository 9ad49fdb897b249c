//! Operations, prepared over a store that holds records and blocks, and the same operations on a plain model:
//! both must have the same results, and the same objects afterwards.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockSize, Epoch, PgId, PoolId, UNIT_SIZE, Version, crc32c};
use format::disk::{BlockAction, BlockKey, Body, EntryKind};
use format::engine::Change;
use proptest::prelude::*;

use crate::model::{MODIFIED, Model, Models, model};
use crate::operation::{FIELD_VALUE_MAX, INLINE_SIZE_MAX, OBJECT_SIZE_MAX, OPERATION_DATA_MAX};
use crate::*;

pub(crate) mod reads;

const SHARDING: Sharding = Sharding { shard_count: 16, names: NameHash::Plain };
const SHAPE: PoolShape =
    PoolShape { pool: PoolId::FIRST, sharding: SHARDING, block_size: BlockSize::MIN };

/// What a member has: records, and units of blocks that are not zeros.
#[derive(Default)]
struct Store {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    blocks: BTreeMap<BlockKey, BTreeMap<u32, Vec<u8>>>,
    drawn: u64,
}

impl Store {
    /// Makes the changes of a batch, after a check that an entry can have them.
    fn apply(&mut self, prepared: Prepared) {
        let pg = PgId { pool: SHAPE.pool, number: 0 };
        let mut blocks: Vec<_> = prepared.blocks.iter().map(|(change, _)| change.clone()).collect();
        for block in &mut blocks {
            if block.units.count() == SHAPE.block_size.unit_count()
                && block.action == BlockAction::Units
            {
                // The store gives whole blocks a place.
                (block.action, block.location) = (BlockAction::UnitsAtPlace, 0);
            }
        }
        let mut records = prepared.records.clone();
        for (shard, touched) in Touched::of(&prepared, SHAPE) {
            let kind = Kind::Log(LogKey { version: prepared.version, page: None });
            let value = touched.encode(SHAPE.block_size);
            records.push(Change::Put { key: Key { shard, kind }.encode(), value });
        }
        let body = Body { records, blocks, note: None };
        assert!(body.is_sound(EntryKind::Batch, pg, SHAPE.block_size), "no entry can have it");
        for change in prepared.records {
            match change {
                Change::Put { key, value } => {
                    self.records.insert(key, value);
                }
                Change::Delete { key } => {
                    self.records.remove(&key);
                }
                Change::DeleteRange { start, end } => {
                    self.records.retain(|key, _| *key < start || *key >= end);
                }
            }
        }
        for (change, data) in prepared.blocks {
            if change.action == BlockAction::Gone {
                self.blocks.remove(&change.key);
                continue;
            }
            let block = self.blocks.entry(change.key).or_default();
            let mut pieces = data.chunks(UNIT_SIZE as usize);
            for (at, unit) in change.units.iter().enumerate() {
                match change.action {
                    BlockAction::Units => {
                        let piece = pieces.next().expect("each unit has data").to_vec();
                        assert_eq!(crc32c(&piece), change.checksums[at]);
                        block.insert(unit, piece);
                    }
                    _ => {
                        block.remove(&unit);
                    }
                }
            }
        }
    }

    fn head(&self, name: &Name) -> Option<Head> {
        let key = key_of(name, Kind::Head { name: name.clone() });
        self.records.get(&key).map(|value| Head::decode(value).expect("a head"))
    }

    fn unit(&self, name: &Name, id: DataId, unit: u32) -> Option<Vec<u8>> {
        let per_block = SHAPE.block_size.unit_count();
        let block =
            self.blocks.get(&id.block_key(SHAPE.pool, SHARDING.hash(name), unit / per_block))?;
        block.get(&(unit % per_block)).cloned()
    }

    /// Prepares an operation: reads what it wants, and tries again.
    fn prepare(&mut self, run: &mut Run, operation: &Operation) -> Result<Applied, Stop> {
        for ObjectSteps { name, .. } in &operation.objects {
            let has_blocks = self.blocks.keys().any(|key| key.hash == SHARDING.hash(name));
            if operation.is_blind_put() && has_blocks {
                run.supply_head(name.clone(), self.head(name));
            }
        }
        for _ in 0..4 {
            let Store { drawn, .. } = self;
            let mut draw = || {
                *drawn += 1;
                DataId::new((1 << 20) + *drawn).expect("few are drawn")
            };
            let wants = match run.apply(operation, MODIFIED, &mut draw) {
                Err(Stop::Wants(wants)) => wants,
                result => {
                    run.verify_size();
                    return result;
                }
            };
            assert!(!wants.is_empty());
            for name in wants.heads {
                let head = self.head(&name);
                run.supply_head(name, head);
            }
            for (name, field) in wants.fields {
                let value = self.records.get(&key_of(&name, field.kind_of(&name))).cloned();
                run.supply_field(name, field, value);
            }
            for (id, unit) in wants.units {
                let [steps] = &operation.objects[..] else { panic!("its data lies in heads") };
                run.supply_unit(id, unit, self.unit(&steps.name, id, unit));
            }
        }
        panic!("it asks for ever");
    }

    /// Returns all objects, as users know them, and checks that nothing else is there.
    fn objects(&self) -> Models {
        let mut objects = Models::new();
        let mut named = BTreeSet::new();
        for (bytes, value) in &self.records {
            let key = Key::decode(bytes).expect("a key");
            let Kind::Head { name } = key.kind else { continue };
            assert_eq!(key.shard, SHARDING.shard(&name));
            let head = Head::decode(value).expect("a head");
            let data = match head.content {
                HeadContent::Tombstone => continue,
                HeadContent::Inline(data) => data,
                HeadContent::Blocks { id, size } => {
                    let mut data = Vec::new();
                    for unit in 0..size.div_ceil(UNIT_SIZE) as u32 {
                        let bytes = self.unit(&name, id, unit);
                        let bytes = bytes.unwrap_or_else(|| vec![0; UNIT_SIZE as usize]);
                        data.extend_from_slice(&bytes);
                    }
                    assert!(data[size as usize..].iter().all(|byte| *byte == 0), "behind the size");
                    data.truncate(size as usize);
                    let bytes = SHAPE.block_size.bytes();
                    let blocks = 0..size.div_ceil(bytes) as u32;
                    named.extend(
                        blocks.map(|block| id.block_key(SHAPE.pool, SHARDING.hash(&name), block)),
                    );
                    data
                }
            };
            let model = Model { data, is_partial: head.is_partial, ..Model::default() };
            objects.insert(name, (head.version, model));
        }
        for key in self.blocks.keys() {
            assert!(named.contains(key), "{key:?} belongs to no object");
        }
        for (bytes, value) in &self.records {
            let (name, field) = match Key::decode(bytes).expect("a key").kind {
                Kind::Attribute { name, attribute } => (name, Field::Attribute(attribute)),
                Kind::Record { name, key } => (name, Field::Record(key)),
                _ => continue,
            };
            let (_, object) = objects.get_mut(&name).expect("it has an object");
            object.fields(&field).insert(field.key().to_vec(), value.clone());
        }
        objects
    }
}

fn key_of(name: &Name, kind: Kind) -> Vec<u8> {
    Key { shard: SHARDING.shard(name), kind }.encode()
}

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("the length is in range")
}

fn one(name_of: &[u8], assertions: Vec<Assertion>, changes: Vec<ObjectChange>) -> Operation {
    Operation { objects: vec![ObjectSteps { name: name(name_of), assertions, changes }] }
}

fn version(counter: u64) -> Version {
    Version { epoch: Epoch::new(2), counter }
}

fn any_name() -> impl Strategy<Value = Name> {
    // Names of which one begins with another, with the bytes that matter for the order of keys.
    let names: [&[u8]; 5] = [b"a", b"a\0", b"a\0\x01", b"\xff", b"\0"];
    prop::sample::select(names.to_vec()).prop_map(name)
}

fn any_field() -> impl Strategy<Value = Field> {
    let key = || prop_oneof![Just(vec![0]), Just(vec![0, 1]), Just(vec![1]), Just(vec![0xff, 0])];
    prop_oneof![key().prop_map(Field::Attribute), key().prop_map(Field::Record)]
}

fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0..3i64).prop_map(|number| number.to_le_bytes().to_vec()),
        Just(i64::MAX.to_le_bytes().to_vec()),
        Just(Vec::new()),
        Just(vec![5; 3]),
    ]
}

fn any_size(max: u64) -> impl Strategy<Value = u64> {
    let edges = [0, 1, UNIT_SIZE, INLINE_SIZE_MAX, BlockSize::MIN.bytes() * 3, max];
    let near = (prop::sample::select(edges.to_vec()), -2..3i64)
        .prop_map(move |(edge, by)| edge.saturating_add_signed(by).min(max));
    prop_oneof![near, 0..=max]
}

fn any_bytes(max: u64) -> impl Strategy<Value = Vec<u8>> {
    (any_size(max), prop_oneof![Just(0u8), any::<u8>()]).prop_map(|(size, byte)| {
        (0..size).map(|at| byte.wrapping_mul((at / 5) as u8 | 1)).collect()
    })
}

const SIZE_MAX: u64 = 100 << 10;

fn any_change() -> impl Strategy<Value = ObjectChange> {
    let end = || prop::option::of(prop_oneof![Just(vec![0, 2]), Just(vec![0xff, 0, 0])]);
    let from = prop_oneof![Just(vec![]), Just(vec![0]), Just(vec![0, 1])];
    prop_oneof![
        any_bytes(SIZE_MAX).prop_map(ObjectChange::Put),
        (any_size(SIZE_MAX), any_bytes(SIZE_MAX))
            .prop_map(|(offset, bytes)| ObjectChange::Write { offset, bytes }),
        any_bytes(SIZE_MAX).prop_map(ObjectChange::Append),
        any_size(2 * SIZE_MAX).prop_map(ObjectChange::Truncate),
        (any_size(SIZE_MAX), any_size(SIZE_MAX))
            .prop_map(|(offset, length)| ObjectChange::Zero { offset, length }),
        (any_field(), any_value()).prop_map(|(field, value)| ObjectChange::Set(field, value)),
        any_field().prop_map(ObjectChange::Unset),
        any::<bool>().prop_map(ObjectChange::Partial),
        (from, end()).prop_map(|(from, before)| ObjectChange::RemoveRecords { from, before }),
        (any_field(), prop_oneof![-2..3i64, Just(i64::MAX)])
            .prop_map(|(field, amount)| ObjectChange::Add(field, amount)),
    ]
}

fn any_assertion() -> impl Strategy<Value = Assertion> {
    prop_oneof![
        Just(Assertion::Exists),
        Just(Assertion::Absent),
        (1..40u64).prop_map(|counter| Assertion::Version(version(counter))),
        (any_field(), any_value()).prop_map(|(field, value)| Assertion::Equals(field, value)),
        (any_field(), any_value()).prop_map(|(field, value)| Assertion::Differs(field, value)),
        any_field().prop_map(Assertion::Has),
        any_field().prop_map(Assertion::Lacks),
    ]
}

pub(crate) fn any_steps() -> impl Strategy<Value = ObjectSteps> {
    let assertions =
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any_assertion(), 1..3)];
    let changes = prop::collection::vec(any_change(), 0..4);
    (any_name(), assertions, changes, prop::bool::weighted(0.15)).prop_map(
        |(name, assertions, mut changes, removes)| {
            if removes {
                changes.push(ObjectChange::Remove);
            }
            ObjectSteps { name, assertions, changes }
        },
    )
}

pub(crate) fn any_operation() -> impl Strategy<Value = Operation> {
    let several = prop::collection::vec(any_steps(), 2..4);
    let any = prop_oneof![4 => any_steps().prop_map(|steps| vec![steps]), 1 => several];
    any.prop_map(|objects| Operation { objects })
        .prop_filter("an operation that is well formed", |operation| operation.check().is_ok())
}

/// Prepares operations in runs, beside the model. `ends`: behind which of them a run leaves.
fn play(operations: &[(Operation, bool)]) {
    let (mut store, mut models, mut next) = (Store::default(), Models::new(), 1);
    let mut run = Run::new(SHAPE);
    let leave = |store: &mut Store, models: &Models, run: &mut Run, next: &mut u64| {
        let run = std::mem::replace(run, Run::new(SHAPE));
        if run.count() > 0 {
            let count = u64::from(run.count());
            let prepared = run.finish(version(*next));
            *next += count;
            assert_eq!(prepared.version, version(*next - 1));
            store.apply(prepared);
        }
        assert_eq!(store.objects(), *models);
    };
    for (operation, ends) in operations {
        let mut result = store.prepare(&mut run, operation);
        if result == Err(Stop::RunIsFull) {
            leave(&mut store, &models, &mut run, &mut next);
            result = store.prepare(&mut run, operation);
        }
        let expected_version = version(next + u64::from(run.count().saturating_sub(1)));
        let mut after = models.clone();
        // A version that the run has not given yet equals none that a client can name.
        let unnamed = |it: &mut Models| {
            for (version_of, _) in it.values_mut().filter(|(it, _)| it.counter >= next) {
                version_of.counter += 1 << 40;
            }
        };
        unnamed(&mut after);
        let outcome = model(&mut after, operation, expected_version);
        for (version_of, _) in after.values_mut().filter(|(it, _)| it.counter >= 1 << 40) {
            version_of.counter -= 1 << 40;
        }
        match result {
            Ok(Applied { results, index }) => {
                assert_eq!(outcome, Ok((results, index.is_some())), "{operation:?}");
                models = after;
            }
            Err(Stop::Refused(OperationRefusal::Asserted { object, step, .. })) => {
                assert_eq!(outcome, Err((object, step)), "{operation:?}");
            }
            Err(Stop::Refused(OperationRefusal::TooLarge { why })) => {
                assert!(operation.objects.len() > 1, "{why}");
            }
            Err(stop) => panic!("{stop:?}"),
        }
        if *ends {
            leave(&mut store, &models, &mut run, &mut next);
        }
    }
    leave(&mut store, &models, &mut run, &mut next);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn prepared_operations_do_what_the_model_does(
        operations in prop::collection::vec((any_operation(), any::<bool>()), 1..24),
    ) {
        play(&operations);
    }
}

#[test]
fn a_run_has_one_batch_with_a_version_for_each_operation_that_changes_something() {
    let mut store = Store::default();
    let mut run = Run::new(SHAPE);
    let counter = Field::Record(b"n".to_vec());
    for sum in 1..=3 {
        let add = one(b"a", vec![], vec![ObjectChange::Add(counter.clone(), 1)]);
        let applied = store.prepare(&mut run, &add).unwrap();
        let index = Some(sum as u32 - 1);
        assert_eq!(applied, Applied { results: vec![StepResult::Sum(sum)], index });
    }
    let nothing = one(b"b", vec![], vec![ObjectChange::Remove]);
    let applied = store.prepare(&mut run, &nothing).unwrap();
    assert_eq!(applied, Applied { results: vec![StepResult::Removed(false)], index: None });
    let asserts = one(b"a", vec![Assertion::Version(version(3))], vec![]);
    let refused = OperationRefusal::Asserted { object: 0, step: 0, version: Some(Stamp::Run(2)) };
    assert_eq!(store.prepare(&mut run, &asserts), Err(Stop::Refused(refused)));
    let prepared = run.finish(version(5));
    assert_eq!((prepared.version, prepared.records.len()), (version(7), 2));
    store.apply(prepared);
    let (at, object) = &store.objects()[&name(b"a")];
    assert_eq!((*at, &object.records[&b"n"[..]]), (version(7), &3i64.to_le_bytes().to_vec()));
}

#[test]
fn a_blind_put_reads_nothing_and_keeps_attributes() {
    let mut store = Store::default();
    let mut run = Run::new(SHAPE);
    let set = ObjectChange::Set(Field::Attribute(b"x".to_vec()), b"1".to_vec());
    store.prepare(&mut run, &one(b"a", vec![], vec![set])).unwrap();
    store.apply(run.finish(version(1)));
    let put = one(b"a", vec![], vec![ObjectChange::Put(b"data".to_vec())]);
    assert!(put.is_blind_put());
    let mut run = Run::new(SHAPE);
    let mut draw = || panic!("it needs no blocks");
    assert_eq!(run.apply(&put, MODIFIED, &mut draw).unwrap().index, Some(0));
    store.apply(run.finish(version(2)));
    let (_, object) = &store.objects()[&name(b"a")];
    assert_eq!((&object.data[..], object.attributes.len()), (&b"data"[..], 1));
}

#[test]
fn a_run_that_is_full_leaves_first_and_one_operation_that_fits_no_entry_is_refused() {
    let mut store = Store::default();
    let mut run = Run::new(SHAPE);
    let bytes = vec![1; OPERATION_DATA_MAX as usize];
    let put = |of: &[u8]| one(of, vec![], vec![ObjectChange::Put(bytes.clone())]);
    assert_eq!(store.prepare(&mut run, &put(b"a")).unwrap().index, Some(0));
    assert_eq!(store.prepare(&mut run, &put(b"b")), Err(Stop::RunIsFull));
    store.apply(run.finish(version(1)));
    // One byte more, and one in another unit.
    let offset = OPERATION_DATA_MAX - 1;
    let write = ObjectChange::Write { offset: 1, bytes: bytes.clone() };
    let mut run = Run::new(SHAPE);
    let refused = store.prepare(&mut run, &one(b"a", vec![], vec![write]));
    assert!(matches!(refused, Err(Stop::Refused(OperationRefusal::TooLarge { .. }))));
    let write = ObjectChange::Write { offset, bytes: vec![2; 2] };
    assert_eq!(store.prepare(&mut run, &one(b"a", vec![], vec![write])).unwrap().index, Some(0));
    let largest = one(b"a", vec![], vec![ObjectChange::Truncate(OBJECT_SIZE_MAX)]);
    assert!(store.prepare(&mut run, &largest).is_ok());
    let append = one(b"a", vec![], vec![ObjectChange::Append(vec![1])]);
    let refused = store.prepare(&mut run, &append);
    assert!(matches!(refused, Err(Stop::Refused(OperationRefusal::TooLarge { .. }))));
    let removed = one(b"a", vec![], vec![ObjectChange::Remove]);
    assert!(store.prepare(&mut run, &removed).is_ok());
    store.apply(run.finish(version(2)));
    assert!(store.objects().is_empty());
}

/// Adds operations to a run until it is full, and checks that an entry can have it.
fn fill_run(store: &mut Store, next: impl Fn(u32) -> Operation) {
    let mut run = Run::new(SHAPE);
    let mut number = 0;
    while store.prepare(&mut run, &next(number)) != Err(Stop::RunIsFull) {
        number += 1;
    }
    store.apply(run.finish(version(1)));
}

#[test]
fn a_full_run_of_tiny_changes_fits_an_entry() {
    let key = |number: u32| Field::Record(number.to_le_bytes()[..3].to_vec());
    let sets = |number: u32| {
        let keys = number * 4000..(number + 1) * 4000;
        let changes = keys.map(|number| ObjectChange::Set(key(number), vec![])).collect();
        one(b"a", vec![], changes)
    };
    fill_run(&mut Store::default(), sets);
    let unsets = |number: u32| {
        let keys = number * 4000..(number + 1) * 4000;
        let unsets = keys.map(|number| ObjectChange::Unset(key(number)));
        one(b"a", vec![], std::iter::once(ObjectChange::Append(vec![])).chain(unsets).collect())
    };
    fill_run(&mut Store::default(), unsets);
    let objects = |number: u32| {
        let names = number * 1000..(number + 1) * 1000;
        let put = |number: u32| ObjectSteps {
            name: name(&number.to_le_bytes()[..3]),
            assertions: vec![],
            changes: vec![ObjectChange::Put(vec![])],
        };
        Operation { objects: names.map(put).collect() }
    };
    fill_run(&mut Store::default(), objects);
}

#[test]
fn a_run_that_would_remove_too_many_ranges_of_an_object_ends() {
    let (mut store, mut run) = (Store::default(), Run::new(SHAPE));
    let set = |key: u8| ObjectChange::Set(Field::Record(vec![key]), vec![1]);
    let remove = |from: &[u8], before: &[u8]| {
        let (from, before) = (from.to_vec(), Some(before.to_vec()));
        one(b"a", vec![], vec![ObjectChange::RemoveRecords { from, before }])
    };
    let sets = (0..40).map(set).collect();
    assert_eq!(store.prepare(&mut run, &one(b"a", vec![], sets)).unwrap().index, Some(0));
    for at in 0..16 {
        let range = remove(&[2 * at], &[2 * at + 1]);
        assert!(store.prepare(&mut run, &range).is_ok(), "{at}");
    }
    assert_eq!(store.prepare(&mut run, &remove(&[32], &[33])), Err(Stop::RunIsFull));
    // One inside another one, and one that begins where another one ends, are no further ones.
    assert!(store.prepare(&mut run, &remove(&[2, 0], &[2, 1])).is_ok());
    assert!(store.prepare(&mut run, &remove(&[31], &[31, 9])).is_ok());
    let other = one(b"b", vec![], vec![set(1), ObjectChange::Remove]);
    assert!(store.prepare(&mut run, &other).is_ok(), "of another object");
    let prepared = run.clone().finish(version(1));
    let is_range = |change: &&Change| matches!(change, Change::DeleteRange { .. });
    assert_eq!(prepared.records.iter().filter(is_range).count(), 16 + 2);
    // A range that has others takes their place.
    assert!(store.prepare(&mut run, &remove(&[3], &[33])).is_ok());
    assert!(store.prepare(&mut run, &remove(&[34], &[35])).is_ok());
    store.apply(run.finish(version(1)));
    let left: Vec<u8> = store.objects()[&name(b"a")].1.records.keys().map(|key| key[0]).collect();
    assert_eq!(left, [&[1, 33][..], &[35, 36, 37, 38, 39]].concat());
}

#[test]
fn the_largest_object_can_be_changed_in_all_of_its_blocks() {
    let mut store = Store::default();
    let mut at = 0;
    let mut change = |store: &mut Store, changes: Vec<ObjectChange>| {
        let mut run = Run::new(SHAPE);
        at += 1;
        store.prepare(&mut run, &one(b"a", vec![], changes)).expect("an entry can have it");
        store.apply(run.finish(version(at)));
    };
    change(&mut store, vec![ObjectChange::Truncate(OBJECT_SIZE_MAX)]);
    let bytes = vec![1; OPERATION_DATA_MAX as usize];
    let write = |offset| ObjectChange::Write { offset, bytes: bytes.clone() };
    for offset in (0..OBJECT_SIZE_MAX - OPERATION_DATA_MAX).step_by(OPERATION_DATA_MAX as usize) {
        change(&mut store, vec![write(offset)]);
    }
    let all = ObjectChange::Zero { offset: 0, length: OBJECT_SIZE_MAX };
    change(&mut store, vec![all, write(5 * UNIT_SIZE)]);
    change(&mut store, vec![write(0), ObjectChange::Truncate(INLINE_SIZE_MAX + 1)]);
    change(&mut store, vec![ObjectChange::Truncate(OBJECT_SIZE_MAX)]);
    change(&mut store, vec![ObjectChange::Put(bytes.clone())]);
    change(&mut store, vec![ObjectChange::Remove]);
    assert!(store.objects().is_empty());
}

#[test]
fn operations_of_a_wrong_form_are_refused_with_a_reason() {
    let field = || Field::Record(b"k".to_vec());
    let long = |size| Field::Attribute(vec![1; size]);
    let large = || vec![0; OPERATION_DATA_MAX as usize / 2 + 1];
    let several = |count: u32| Operation {
        objects: (0..count)
            .map(|number| ObjectSteps {
                name: name(&number.to_le_bytes()),
                assertions: vec![],
                changes: vec![],
            })
            .collect(),
    };
    let twice = Operation { objects: [several(1).objects, several(1).objects].concat() };
    let is_refused = [
        (several(0), "1 to 1000 objects"),
        (several(1001), "1 to 1000 objects"),
        (twice, "comes twice"),
        (one(b"a", vec![Assertion::Absent, Assertion::Exists], vec![]), "absent and to have"),
        (one(b"a", vec![Assertion::Has(field()), Assertion::Absent], vec![]), "absent and to have"),
        (
            one(b"a", vec![Assertion::Has(field()), Assertion::Lacks(field())], vec![]),
            "to be absent",
        ),
        (
            one(b"a", vec![Assertion::Version(version(1)), Assertion::Version(version(2))], vec![]),
            "two versions",
        ),
        (
            one(b"a", vec![Assertion::Absent, Assertion::Equals(field(), vec![1])], vec![]),
            "absent and to have",
        ),
        (
            one(b"a", vec![Assertion::Absent, Assertion::Version(version(1))], vec![]),
            "absent and to have",
        ),
        (
            one(b"a", [1, 2].map(|value| Assertion::Equals(field(), vec![value])).into(), vec![]),
            "two values",
        ),
        (
            one(
                b"a",
                vec![Assertion::Differs(field(), vec![1]), Assertion::Equals(field(), vec![1])],
                vec![],
            ),
            "not to have it",
        ),
        (one(b"a", vec![Assertion::Exists; 4097], vec![]), "4097 steps"),
        (
            one(b"a", vec![], vec![ObjectChange::Unset(Field::Record(vec![1; 2049]))]),
            "2049 bytes; 1 to 2048",
        ),
        (one(b"a", vec![], vec![ObjectChange::Add(field(), 1); 513]), "4104 bytes of results"),
        (one(b"a", vec![], vec![ObjectChange::Unset(long(0))]), "0 bytes; 1 to 255"),
        (one(b"a", vec![], vec![ObjectChange::Unset(long(256))]), "256 bytes; 1 to 255"),
        (one(b"a", vec![], vec![ObjectChange::Set(field(), vec![0; 65537])]), "0 to 65536"),
        (
            one(b"a", vec![], vec![ObjectChange::Remove, ObjectChange::Truncate(1)]),
            "removed and then changed",
        ),
        (one(b"a", vec![], vec![ObjectChange::Truncate(1); 3]), "2 times, not 3"),
        (one(b"a", vec![], vec![ObjectChange::Truncate(OBJECT_SIZE_MAX + 1)]), "largest object"),
        (
            one(b"a", vec![], vec![ObjectChange::Zero { offset: u64::MAX, length: 2 }]),
            "largest object",
        ),
        (
            one(
                b"a",
                vec![],
                vec![ObjectChange::Write { offset: OBJECT_SIZE_MAX, bytes: vec![1] }],
            ),
            "largest object",
        ),
        (
            one(
                b"a",
                vec![],
                vec![ObjectChange::RemoveRecords { from: vec![1], before: Some(vec![1]) }],
            ),
            "ends before it begins",
        ),
        (
            one(b"a", vec![], vec![ObjectChange::Append(large()), ObjectChange::Append(large())]),
            "several",
        ),
    ];
    for (operation, part) in is_refused {
        let why = operation.check().expect_err(part);
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(one(b"a", vec![], vec![]).check(), Ok(()));
}

#[test]
fn an_operation_reads_no_more_values_than_it_may_whatever_was_read_for_others() {
    let field = |number: u32| Field::Record(number.to_le_bytes().to_vec());
    let value = || vec![7; FIELD_VALUE_MAX];
    let mut store = Store::default();
    // Each operation has room for 15 such values.
    for number in 0..65 {
        let set = one(b"a", vec![], vec![ObjectChange::Set(field(number), value())]);
        let mut run = Run::new(SHAPE);
        store.prepare(&mut run, &set).expect("it fits");
        store.apply(run.finish(version(u64::from(number) + 1)));
    }
    let has =
        |count: u32| one(b"a", (0..count).map(|it| Assertion::Has(field(it))).collect(), vec![]);
    let mut run = Run::new(SHAPE);
    // What was read for others is not counted.
    for number in 0..65 {
        let record = store.records.get(&key_of(&name(b"a"), field(number).kind_of(&name(b"a"))));
        run.supply_field(name(b"a"), field(number), record.cloned());
    }
    for count in [64, 3, 64] {
        assert!(store.prepare(&mut run, &has(count)).is_ok(), "{count}");
    }
    let refused = store.prepare(&mut run, &has(65));
    let Err(Stop::Refused(OperationRefusal::TooLarge { why })) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("4194304 bytes"), "{why}");
    assert!(store.prepare(&mut run, &has(1)).is_ok(), "the run goes on");
    // An earlier operation of the run has made one short.
    let set = one(b"a", vec![], vec![ObjectChange::Set(field(9), vec![])]);
    store.prepare(&mut run, &set).expect("it fits");
    assert!(store.prepare(&mut run, &has(65)).is_ok());
    run.forget_for_others(&has(3));
    assert_eq!(run.wants(&has(65)).fields.len(), 61, "3 were kept, and one was changed");
    // It does not depend on which of the values are known, nor on whether an assertion is true.
    let mut fresh = Run::new(SHAPE);
    let version_and_all = [Assertion::Version(version(1))].into_iter();
    let version_and_all = version_and_all.chain(has(65).objects[0].assertions.clone()).collect();
    let both = one(b"a", version_and_all, vec![]);
    assert!(matches!(
        store.prepare(&mut fresh, &both),
        Err(Stop::Refused(OperationRefusal::TooLarge { .. }))
    ));
    // The first one that is false is named.
    let lacks = (1000..5000).map(|it| Assertion::Lacks(field(it)));
    let all = one(b"a", lacks.chain([Assertion::Lacks(field(3))]).collect(), vec![]);
    let Err(Stop::Refused(OperationRefusal::Asserted { step, .. })) = store.prepare(&mut run, &all)
    else {
        panic!("a record is there")
    };
    assert_eq!(step, 4000);
}
