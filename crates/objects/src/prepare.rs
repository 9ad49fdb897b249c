//! Prepares operations: computes what they change, and what they answer, from what the store has.
//!
//! Operations on the same objects are prepared in order, each on the effects of those before it, and leave as
//! one batch: a [`Run`]. `docs/internals/objects.md`, rules 27 to 35.
//!
//! ```text
//!   operation ──apply──▶ wants: heads, fields, units ──read──▶ supply ─┐
//!       ▲──────────────────────────────────────────────────────────────┘
//!       └─▶ results; or refused, and nothing changed ── ... ──finish(version)──▶ records, blocks
//! ```
//!
//! Invariants
//!   1. An operation that is refused, or waits for reads, or does not fit the run, changes nothing.
//!   2. What leaves is absolute ("this key has this value"), never a computation.
//!   3. Each operation that changes something has one version of the run, in order. One that changes nothing
//!      has none.
//!   4. A run with one operation at least is within the limits of an entry, and removes at most 16 ranges of
//!      records of an object.
//!   5. Preparing an operation costs what it changes, not what the run has changed: it is made on an empty layer
//!      over each object, which the run takes in if the operation is admitted.
//!   6. What is read may be for several operations, before they are prepared: what earlier ones of the run change
//!      counts above it. Whether an operation names too much is judged by what it names itself, as it would find
//!      it alone.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{BlockSize, PoolId, UNIT_SIZE, Version};
use format::disk::{BODY_SIZE_MAX, BlockChange, UNITS_SIZE_MAX};
use format::engine::Change;

use crate::data::{Data, DataSize, KnownUnits, Source, WantedUnits};
use crate::entry_size::{delete_size, head_size, put_size, range_size, repeat_size};
use crate::head::{DataId, Head, HeadContent};
use crate::keys::{Key, Kind, Name, Sharding, part_prefix_size};
use crate::operation::{
    Assertion, FIELD_VALUE_MAX, Field, INLINE_SIZE_MAX, OBJECT_SIZE_MAX, OPERATION_DATA_MAX,
    OPERATION_RECORDS_MAX, OPERATION_VALUES_MAX, ObjectChange, ObjectSteps, Operation, RANGES_MAX,
    StepResult,
};
use crate::removed::RemovedFields;

/// The most operations of one run.
pub const RUN_OPERATIONS_MAX: u32 = 1024;

/// The most keys and values, in bytes, that were read and are kept for operations behind the next one.
const READ_KEPT_MAX: usize = 1 << 20;

/// The version of an object while operations on it are prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// A version that the store has.
    Stored(Version),
    /// The version of this operation of the run, which has none yet.
    Run(u32),
}

/// What has to be read before an operation can be prepared.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Wants {
    /// Heads of objects.
    pub heads: BTreeSet<Name>,
    /// Attributes and records.
    pub fields: BTreeSet<(Name, Field)>,
    /// Units of data in blocks, of the only object of the operation.
    pub units: WantedUnits,
}

/// Why an operation was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationRefusal {
    /// An assertion is not true, or a number cannot be added to.
    Asserted {
        /// Which of the operation's objects.
        object: usize,
        /// Which of its steps: first its assertions are counted, then its changes.
        step: usize,
        /// The version of the object. `None`: it does not exist.
        version: Option<Stamp>,
    },
    /// What it changes fits no entry, or an object would become too large.
    TooLarge {
        /// What is too large, for people.
        why: String,
    },
}

/// Why an operation was not prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// This must be read first.
    Wants(Wants),
    /// It is refused.
    Refused(OperationRefusal),
    /// It fits an entry, but not beside the operations that the run has already.
    RunIsFull,
}

/// An operation that was prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The results of its changes that have one, in order.
    pub results: Vec<StepResult>,
    /// Its place among the versions of the run. `None`: it changes nothing.
    pub index: Option<u32>,
}

/// What a run changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared {
    /// The version of the last operation.
    pub version: Version,
    /// Changes of records, in order: heads, attributes and records.
    pub records: Vec<Change>,
    /// Changes of blocks, each with the data of its units.
    pub blocks: Vec<(BlockChange, Vec<u8>)>,
}

/// What is fixed for a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolShape {
    /// The pool.
    pub pool: PoolId,
    /// In which shards its objects lie.
    pub sharding: Sharding,
    /// The size of its blocks.
    pub block_size: BlockSize,
}

/// Operations that are prepared on each other's effects, and leave as one batch.
#[derive(Clone, Debug)]
pub struct Run {
    shape: PoolShape,
    /// Whether blind puts need to know heads, too.
    reads_heads: bool,
    objects: BTreeMap<Name, Object>,
    read: ReadRecords,
    units: KnownUnits,
    /// The number of operations with a version.
    count: u32,
    size: RunSize,
}

/// What the store has, as far as it was read.
#[derive(Clone, Default, Debug)]
pub struct ReadRecords {
    heads: BTreeMap<Name, Option<Head>>,
    fields: BTreeMap<Name, BTreeMap<Field, Option<Vec<u8>>>>,
    /// The keys and values of `fields`, in bytes.
    size: usize,
}

/// What changes take in an entry, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RunSize {
    /// Changes of records, with repeats, and the log records.
    records: usize,
    /// Units of data.
    data: u64,
    /// Those of them that may have to lie in the journal.
    here: u64,
    /// Changes of blocks beside data.
    lines: usize,
}

/// The most that changes of blocks take beside data, in bytes: what an entry has beside records and a note.
const LINES_SIZE_MAX: usize = BODY_SIZE_MAX - OPERATION_RECORDS_MAX - NOTE_SIZE;
/// What is left for a note and the sections, in bytes.
const NOTE_SIZE: usize = 16 << 10;

/// An object, with what operations of the run have changed; or a layer over that, with what one operation
/// changes.
#[derive(Clone, Debug)]
struct Object {
    /// The version of its last change. `None`: it does not exist.
    stamp: Option<Stamp>,
    modified: u64,
    is_partial: bool,
    /// A layer shares the data until it changes them.
    data: Arc<Data>,
    /// What is removed, before `fields`.
    removed: RemovedFields,
    /// Fields that are set, or gone.
    fields: BTreeMap<Field, Option<Vec<u8>>>,
    /// What `fields` take in an entry, in bytes.
    fields_size: usize,
    /// What all its changes take.
    size: RunSize,
    /// The operation that changed it last; `None`: none of this run.
    changed_by: Option<u32>,
}

impl Wants {
    /// Whether nothing has to be read.
    pub fn is_empty(&self) -> bool {
        *self == Wants::default()
    }
}

impl std::ops::AddAssign for RunSize {
    fn add_assign(&mut self, other: RunSize) {
        self.records += other.records;
        self.data += other.data;
        self.here += other.here;
        self.lines += other.lines;
    }
}

impl std::ops::SubAssign for RunSize {
    fn sub_assign(&mut self, other: RunSize) {
        self.records -= other.records;
        self.data -= other.data;
        self.here -= other.here;
        self.lines -= other.lines;
    }
}

impl RunSize {
    /// Returns what these changes of records take, with what the log says of them.
    pub fn of_records(changes: &[Change]) -> RunSize {
        let size = |change: &Change| match change {
            Change::Put { key, value } => put_size(key.len(), value.len()),
            Change::Delete { key } => delete_size(key.len()),
            Change::DeleteRange { start, end } => range_size(start.len(), end.len()),
        };
        RunSize { records: changes.iter().map(size).sum(), ..RunSize::default() }
    }

    /// Checks that all of it fits one entry. The error says what is too large, for people.
    pub fn check(self) -> Result<(), String> {
        let RunSize { records, data, here, lines } = self;
        if records > OPERATION_RECORDS_MAX {
            return Err(format!(
                "keys (twice), values and short data take {records} bytes, more than \
                 {OPERATION_RECORDS_MAX} for one operation"
            ));
        }
        if data > OPERATION_DATA_MAX {
            return Err(format!(
                "{data} bytes of data, in whole units of {UNIT_SIZE}, are more than {OPERATION_DATA_MAX}"
            ));
        }
        if here > UNITS_SIZE_MAX as u64 {
            return Err(format!("{here} bytes in parts of blocks are more than {UNITS_SIZE_MAX}"));
        }
        match lines <= LINES_SIZE_MAX {
            true => Ok(()),
            false => Err("it changes too many blocks for one operation".into()),
        }
    }
}

impl Object {
    /// Whether the object with this head does not exist.
    fn is_absent(head: Option<&Head>) -> bool {
        head.is_none_or(|head| head.content == HeadContent::Tombstone)
    }

    fn of(head: Option<&Head>) -> Object {
        let there = head.filter(|_| !Object::is_absent(head));
        Object {
            stamp: there.map(|head| Stamp::Stored(head.version)),
            modified: there.map_or(0, |head| head.modified),
            is_partial: there.is_some_and(|head| head.is_partial),
            data: Arc::new(there.map_or_else(Data::empty, |head| Data::of(&head.content))),
            removed: RemovedFields::default(),
            fields: BTreeMap::new(),
            fields_size: 0,
            size: RunSize::default(),
            changed_by: None,
        }
    }

    /// Returns a layer over the object.
    fn layer(&self) -> Object {
        let (removed, fields) = (RemovedFields::default(), BTreeMap::new());
        Object { data: Arc::clone(&self.data), removed, fields, ..*self }
    }

    /// Makes the changes of a layer over the object. Requires: its sizes were computed.
    fn take_in(&mut self, layer: Object) {
        layer.removed.take_from(&mut self.fields);
        self.removed.extend(layer.removed);
        self.fields.extend(layer.fields);
        let removed = std::mem::take(&mut self.removed);
        let fields = std::mem::take(&mut self.fields);
        *self = Object { removed, fields, ..layer };
    }

    /// Returns what is removed with this layer over the object; `None`: below the layer is nothing.
    fn removed_over(&self, below: Option<&Object>) -> Cow<'_, RemovedFields> {
        match below {
            Some(below) if !below.removed.is_empty() => {
                let mut removed = below.removed.clone();
                removed.extend(self.removed.clone());
                Cow::Owned(removed)
            }
            _ => Cow::Borrowed(&self.removed),
        }
    }

    /// Computes the sizes that the object has with this layer over it; `None`: below the layer is nothing.
    fn compute_size(&mut self, below: Option<&Object>, shape: PoolShape, name: &Name) {
        let prefix_size = part_prefix_size(name);
        let field_size = |(field, value): (&Field, &Option<Vec<u8>>)| {
            let key_size = prefix_size + field.key().len();
            value.as_ref().map_or(delete_size(key_size), |value| put_size(key_size, value.len()))
        };
        let mut size = self.fields.iter().map(field_size).sum::<usize>();
        if let Some(below) = below {
            size += below.fields_size;
            let replaced = self.fields.keys().filter_map(|field| below.fields.get_key_value(field));
            let replaced = replaced.filter(|(field, _)| !self.removed.has(field));
            size -= replaced.map(field_size).sum::<usize>();
            size -= self.removed.found_in(&below.fields).map(field_size).sum::<usize>();
        }
        let removed_size = self.removed_over(below).size(prefix_size);
        self.fields_size = size;
        let data_size = match self.stamp {
            Some(_) => self.data.size_in_head(),
            None => 0,
        };
        self.size.records = head_size(name, data_size) + removed_size + size;
        if below.is_none_or(|below| !Arc::ptr_eq(&below.data, &self.data)) {
            let DataSize { written, here, lines } = self.data.size_in_entry(shape.block_size);
            self.size = RunSize { data: written, here, lines, ..self.size };
        }
    }

    /// Returns the value of a field as these changes leave it. The outer `None`: they do not change it.
    fn field(&self, field: &Field) -> Option<Option<&Vec<u8>>> {
        if let Some(value) = self.fields.get(field) {
            return Some(value.as_ref());
        }
        self.removed.has(field).then_some(None)
    }

    fn data_mut(&mut self) -> &mut Data {
        Arc::make_mut(&mut self.data)
    }

    /// Removes fields. What was set before of them is gone, too.
    fn remove(&mut self, removed: RemovedFields) {
        removed.take_from(&mut self.fields);
        self.removed.extend(removed);
    }

    /// Returns the object's changes of records, heads first. Requires: it was changed.
    fn record_changes(&self, shape: PoolShape, name: &Name, version: Version) -> Vec<Change> {
        let shard = shape.sharding.shard(name);
        let content = match self.stamp {
            Some(_) => self.data.content(),
            None => HeadContent::Tombstone,
        };
        let head = Head { version, modified: self.modified, is_partial: self.is_partial, content };
        let key = Key { shard, kind: Kind::Head { name: name.clone() } }.encode();
        let mut changes = vec![Change::Put { key, value: head.encode() }];
        changes.extend(self.removed.changes(shard, name));
        changes.extend(self.fields.iter().map(|(field, value)| {
            let key = Key { shard, kind: field.kind_of(name) }.encode();
            match value {
                Some(value) => Change::Put { key, value: value.clone() },
                None => Change::Delete { key },
            }
        }));
        changes
    }
}

impl Run {
    /// Creates a run without operations.
    pub fn new(shape: PoolShape) -> Run {
        Run {
            shape,
            reads_heads: false,
            objects: BTreeMap::new(),
            read: ReadRecords::default(),
            units: BTreeMap::new(),
            count: 0,
            size: RunSize::default(),
        }
    }

    /// Returns a run without operations, of which blind puts want heads, too: the PG may have blocks under
    /// the hashes of their objects.
    pub fn that_reads_heads(shape: PoolShape) -> Run {
        Run { reads_heads: true, ..Run::new(shape) }
    }

    /// Returns a run without operations that takes this for what the store has.
    pub fn on(shape: PoolShape, read: ReadRecords) -> Run {
        Run { read, ..Run::that_reads_heads(shape) }
    }

    /// Returns what was read.
    pub fn read(&self) -> &ReadRecords {
        &self.read
    }

    /// Returns the objects that the run knows: all that it changes, and perhaps others.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.objects.keys()
    }

    /// Returns the number of operations that have a version.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns what the run takes in an entry.
    pub fn size(&self) -> RunSize {
        self.size
    }

    /// Hands over a head that was wanted. `None`: there is none.
    pub fn supply_head(&mut self, name: Name, head: Option<Head>) {
        self.read.heads.insert(name, head);
    }

    /// Hands over the value of an attribute or record that was wanted. `None`: there is none.
    pub fn supply_field(&mut self, name: Name, field: Field, value: Option<Vec<u8>>) {
        self.read.size += field.key().len() + value.as_ref().map_or(0, Vec::len);
        let before = self.read.fields.entry(name).or_default().insert(field, value);
        assert!(before.is_none(), "nothing is read twice");
    }

    /// Hands over a unit that was wanted. `None`: zeros.
    pub fn supply_unit(&mut self, id: DataId, unit: u32, content: Option<Vec<u8>>) {
        assert!(content.as_ref().is_none_or(|content| content.len() as u64 == UNIT_SIZE));
        self.units.insert((id, unit), content);
    }

    /// Prepares an operation on the effects of those before it. `now`: the time in milliseconds since 1970;
    /// `draw` returns an id under which the PG has no block. Requires: [`Operation::check`] and
    /// [`Operation::check_ranges`] accept it; what the store has of these objects does not change until the
    /// run leaves. A blind put asks for nothing: if the PG has blocks under the hash of an object, the run
    /// must be one that reads heads.
    pub fn apply(
        &mut self,
        operation: &Operation,
        now: u64,
        draw: &mut dyn FnMut() -> DataId,
    ) -> Result<Applied, Stop> {
        debug_assert_eq!(operation.check(), Ok(()));
        debug_assert_eq!(operation.check_ranges(), Ok(()));
        self.check_values(operation).map_err(Stop::Refused)?;
        let mut wants = self.wants(operation);
        if !wants.is_empty() {
            return Err(Stop::Wants(wants));
        }
        let mut objects = self.begin(operation).map_err(Stop::Refused)?;
        for (at, (steps, object)) in operation.objects.iter().zip(&objects).enumerate() {
            self.judge(at, steps, object).map_err(Stop::Refused)?;
        }
        let index = self.count;
        let mut results = Vec::new();
        for (at, (steps, object)) in operation.objects.iter().zip(&mut objects).enumerate() {
            let mut source = Source { known: &self.units, wanted: &mut wants.units, draw };
            let mut change = Changing { run: self, source: &mut source, now, index };
            change.all(at, steps, object, &mut results).map_err(Stop::Refused)?;
        }
        if !wants.is_empty() {
            return Err(Stop::Wants(wants));
        }
        self.admit(operation, objects, results)
    }

    /// Returns what must be read before the operation is prepared: heads of its objects, and all that it
    /// asserts or adds to. If more than it may read is known already, it is refused, and needs nothing
    /// more.
    pub fn wants(&self, operation: &Operation) -> Wants {
        let mut wants = Wants::default();
        if operation.is_blind_put() && !self.reads_heads {
            return wants;
        }
        for steps in &operation.objects {
            let name = &steps.name;
            let is_absent = match (self.objects.get(name), self.read.heads.get(name)) {
                (Some(object), _) => object.stamp.is_none(),
                (None, Some(head)) => Object::is_absent(head.as_ref()),
                (None, None) => !wants.heads.insert(name.clone()),
            };
            if !is_absent {
                let unknown = steps.fields().filter(|field| self.known(name, field).is_none());
                wants.fields.extend(unknown.map(|field| (name.clone(), field.clone())));
            }
        }
        wants
    }

    /// Forgets what was read for other operations than this one, if that is much: it is read again. What is
    /// read then has room beside it.
    pub fn forget_for_others(&mut self, operation: &Operation) {
        if self.read.size <= READ_KEPT_MAX {
            return;
        }
        let mut read = std::mem::take(&mut self.read.fields);
        self.read.size = 0;
        for steps in &operation.objects {
            let Some(fields) = read.get_mut(&steps.name) else { continue };
            for field in steps.fields() {
                if let Some((field, value)) = fields.remove_entry(field) {
                    self.supply_field(steps.name.clone(), field, value);
                }
            }
        }
    }

    /// Returns the objects of an operation: layers over what the run has of them.
    fn begin(&self, operation: &Operation) -> Result<Vec<Object>, OperationRefusal> {
        let object = |name: &Name| match (self.objects.get(name), self.read.heads.get(name)) {
            (Some(_), Some(head)) if planted::on(Bug::QueuedOnStaleHead) => {
                Object::of(head.as_ref())
            }
            (Some(object), _) => object.layer(),
            (None, Some(head)) => Object::of(head.as_ref()),
            // Whatever it replaces, a blind put leaves nothing of it in the head.
            (None, None) => Object::of(None),
        };
        let names = operation.objects.iter().map(|steps| &steps.name);
        let named: Vec<(&Name, Object)> = names.map(|name| (name, object(name))).collect();
        check_together(&named)?;
        Ok(named.into_iter().map(|(_, object)| object).collect())
    }

    /// Judges the assertions on one object. The first one that is not true is named.
    fn judge(
        &self,
        at: usize,
        steps: &ObjectSteps,
        object: &Object,
    ) -> Result<(), OperationRefusal> {
        let version = object.stamp;
        let value = |field: &Field| {
            let known = || self.known(&steps.name, field).expect("it was wanted");
            version.and_then(|_| known())
        };
        for (step, assertion) in steps.assertions.iter().enumerate() {
            let is_true = match assertion {
                Assertion::Exists => version.is_some(),
                Assertion::Absent => version.is_none(),
                Assertion::Version(wanted) => version == Some(Stamp::Stored(*wanted)),
                Assertion::Equals(field, wanted) => value(field) == Some(wanted),
                Assertion::Differs(field, other) => value(field) != Some(other),
                Assertion::Has(field) => value(field).is_some(),
                Assertion::Lacks(field) => value(field).is_none(),
            };
            if !is_true {
                return Err(OperationRefusal::Asserted { object: at, step, version });
            }
        }
        Ok(())
    }

    /// Checks that the operation reads no more than it may: what it names, as those before it leave that.
    fn check_values(&self, operation: &Operation) -> Result<(), OperationRefusal> {
        if self.read.size + self.size.records <= OPERATION_VALUES_MAX {
            return Ok(());
        }
        let of_object = |steps: &ObjectSteps| -> usize {
            let fields: BTreeSet<&Field> = steps.fields().collect();
            let values = fields.into_iter().filter_map(|field| self.known(&steps.name, field)?);
            values.map(Vec::len).sum()
        };
        match operation.objects.iter().map(of_object).sum::<usize>() <= OPERATION_VALUES_MAX {
            true => Ok(()),
            false => Err(OperationRefusal::TooLarge {
                why: format!(
                    "the attributes and records that it asserts or adds to have more than \
                     {OPERATION_VALUES_MAX} bytes"
                ),
            }),
        }
    }

    /// Returns the value of a field as the run has left it, or as it was read. The outer `None`: it is not
    /// known.
    fn known(&self, name: &Name, field: &Field) -> Option<Option<&Vec<u8>>> {
        let changed = self.objects.get(name).and_then(|object| object.field(field));
        let read = || self.read.fields.get(name)?.get(field).map(Option::as_ref);
        changed.or_else(read)
    }

    /// Takes the changed objects into the run, if they fit.
    fn admit(
        &mut self,
        operation: &Operation,
        objects: Vec<Object>,
        results: Vec<StepResult>,
    ) -> Result<Applied, Stop> {
        let index = self.count;
        let is_changed = |object: &Object| object.changed_by == Some(index);
        let mut changed: Vec<(&Name, Object)> = (operation.objects.iter().zip(objects))
            .map(|(steps, object)| (&steps.name, object))
            .filter(|(_, object)| is_changed(object))
            .collect();
        if changed.is_empty() {
            return Ok(Applied { results, index: None });
        }
        let mut size = self.size;
        size.records += repeat_size(&results);
        for (name, object) in &mut changed {
            let below = self.objects.get(*name);
            object.compute_size(below, self.shape, name);
            size -= below.map_or(RunSize::default(), |below| below.size);
            size += object.size;
        }
        check_together(&changed).map_err(Stop::Refused)?;
        let has_many_ranges = |(name, object): &(&Name, Object)| {
            object.removed_over(self.objects.get(*name)).count() > RANGES_MAX
        };
        match size.check() {
            Err(why) if self.count == 0 => {
                return Err(Stop::Refused(OperationRefusal::TooLarge { why }));
            }
            Err(_) => return Err(Stop::RunIsFull),
            Ok(()) if self.count == RUN_OPERATIONS_MAX => return Err(Stop::RunIsFull),
            Ok(()) if changed.iter().any(has_many_ranges) => return Err(Stop::RunIsFull),
            Ok(()) => {}
        }
        self.size = size;
        self.count += 1;
        for (name, object) in changed {
            match self.objects.entry(name.clone()) {
                Entry::Vacant(entry) => drop(entry.insert(object)),
                Entry::Occupied(mut entry) => entry.get_mut().take_in(object),
            }
        }
        Ok(Applied { results, index: Some(index) })
    }

    /// Checks that what its changes are thought to take is what they take.
    #[cfg(test)]
    pub(crate) fn verify_size(&self) {
        if self.count == 0 {
            return assert_eq!(self.size, RunSize::default());
        }
        let (block_size, version) =
            (self.shape.block_size, Version { counter: 1, ..Version::ZERO });
        let prepared = self.clone().finish(version);
        let touched = crate::Touched::of(&prepared, self.shape);
        let log: usize = touched.values().map(|it| it.encode(block_size).len()).sum();
        let (records, blocks) = (prepared.records, prepared.blocks);
        let (blocks, data): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        let body = format::disk::Body { records, blocks, note: None };
        let sections = 5 * (1 + usize::from(!body.blocks.is_empty()));
        let logs = self.objects.len() * crate::entry_size::LOG_RECORD_SIZE;
        let size = body.size(block_size) - sections + log + logs;
        // The repeats are not there yet; each result takes 9 bytes of them.
        let repeats = self.size.records + self.size.lines - size;
        let results = repeats - self.count as usize * repeat_size(&[]);
        assert!(results.is_multiple_of(9) && results / 9 < 5000, "{results} bytes");
        assert_eq!(self.size.data, data.iter().map(|it| it.len() as u64).sum::<u64>());
    }

    /// Returns what the run changes. `first`: the version of its first operation; the others follow without
    /// a gap. Requires: it has operations with versions.
    pub fn finish(self, first: Version) -> Prepared {
        assert!(self.count > 0, "nothing changes");
        let version_of =
            |index: u32| Version { counter: first.counter + u64::from(index), ..first };
        let (mut records, mut blocks) = (Vec::new(), Vec::new());
        for (name, object) in &self.objects {
            let index = object.changed_by.expect("the run has only objects that it changes");
            let version = version_of(index);
            records.extend(object.record_changes(self.shape, name, version));
            let of = (self.shape.pool, self.shape.sharding.hash(name), version);
            blocks.extend(object.data.block_changes(of, self.shape.block_size));
        }
        Prepared { version: version_of(self.count - 1), records, blocks }
    }
}

/// Checks that objects which change together have their data in their heads.
fn check_together(objects: &[(&Name, Object)]) -> Result<(), OperationRefusal> {
    let mut large = objects.iter().filter(|(_, object)| object.data.size() > INLINE_SIZE_MAX);
    match large.next() {
        Some((name, _)) if objects.len() > 1 => Err(OperationRefusal::TooLarge {
            why: format!(
                "{name:?} has more than {INLINE_SIZE_MAX} bytes of data: it can only be changed alone"
            ),
        }),
        _ => Ok(()),
    }
}

/// Makes the changes of one operation.
struct Changing<'a, 'b> {
    run: &'a Run,
    source: &'a mut Source<'b>,
    now: u64,
    /// The operation's place in the run.
    index: u32,
}

impl Changing<'_, '_> {
    /// Makes all changes of one object.
    fn all(
        &mut self,
        at: usize,
        steps: &ObjectSteps,
        object: &mut Object,
        results: &mut Vec<StepResult>,
    ) -> Result<(), OperationRefusal> {
        // A refused operation has no version that the object could have by its earlier changes.
        let version = object.stamp;
        for (step, change) in steps.changes.iter().enumerate() {
            let step = steps.assertions.len() + step;
            let refused = || OperationRefusal::Asserted { object: at, step, version };
            if let ObjectChange::Add(field, amount) = change {
                let sum = self.sum(&steps.name, object, field, *amount).ok_or_else(refused)?;
                object.fields.insert(field.clone(), Some(sum.to_le_bytes().to_vec()));
                self.touch(object);
                results.push(StepResult::Sum(sum));
                continue;
            }
            if let ObjectChange::Append(bytes) = change
                && object.data.size() + bytes.len() as u64 > OBJECT_SIZE_MAX
            {
                let why = format!("the object would have more than {OBJECT_SIZE_MAX} bytes");
                return Err(OperationRefusal::TooLarge { why });
            }
            results.extend(self.one(change, object));
        }
        Ok(())
    }

    /// Makes a change that cannot be refused.
    fn one(&mut self, change: &ObjectChange, object: &mut Object) -> Option<StepResult> {
        let is_there = object.stamp.is_some();
        let mut result = None;
        match change {
            ObjectChange::Put(bytes) => {
                object.data_mut().put(bytes, self.source);
                object.is_partial = false;
            }
            ObjectChange::Write { offset, bytes } => {
                object.data_mut().write(*offset, bytes, self.source);
            }
            ObjectChange::Append(bytes) => {
                let from = object.data.size();
                object.data_mut().write(from, bytes, self.source);
                result = Some(StepResult::Appended(from));
            }
            ObjectChange::Truncate(0) if !is_there => return None,
            ObjectChange::Truncate(size) => object.data_mut().truncate(*size, self.source),
            ObjectChange::Zero { offset, length } => {
                if !object.data_mut().zero(*offset, *length, self.source) {
                    return None;
                }
            }
            ObjectChange::Remove => {
                if is_there {
                    object.data_mut().clear();
                    object.remove(RemovedFields::all());
                    self.touch(object);
                    (object.stamp, object.is_partial) = (None, false);
                }
                return Some(StepResult::Removed(is_there));
            }
            ObjectChange::Set(field, value) => {
                debug_assert!(value.len() <= FIELD_VALUE_MAX);
                object.fields.insert(field.clone(), Some(value.clone()));
            }
            ObjectChange::Unset(_)
            | ObjectChange::RemoveRecords { .. }
            | ObjectChange::Partial(_)
                if !is_there =>
            {
                return None;
            }
            ObjectChange::Partial(is_partial) => object.is_partial = *is_partial,
            ObjectChange::Unset(field) => {
                object.fields.insert(field.clone(), None);
            }
            ObjectChange::RemoveRecords { from, before } => {
                object.remove(RemovedFields::records(from.clone(), before.clone()));
            }
            ObjectChange::Add(..) => unreachable!("it is made by the caller"),
        }
        self.touch(object);
        result
    }

    /// Notes that the operation has changed the object, and that it exists.
    fn touch(&self, object: &mut Object) {
        object.stamp = Some(Stamp::Run(self.index));
        object.changed_by = Some(self.index);
        object.modified = self.now;
    }

    /// Returns the sum of a field's value and an amount. `None`: the value is no number, or the sum is none.
    fn sum(&self, name: &Name, object: &Object, field: &Field, amount: i64) -> Option<i64> {
        // Of an object that the store does not have, no field was read.
        let below = || self.run.known(name, field).flatten();
        let number = match object.field(field).unwrap_or_else(below) {
            Some(value) => i64::from_le_bytes(value.as_slice().try_into().ok()?),
            None => 0,
        };
        number.checked_add(amount)
    }
}
