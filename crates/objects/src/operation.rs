//! Operations on objects: what a client may ask for at once, and within which limits.
//!
//! `docs/internals/objects.md`, rules 27 and 28. An operation happens as a whole or not at all. All of its
//! assertions are judged first, on the state before it; then its changes are made in order, each on what the
//! ones before it did.
//!
//! Invariants
//!   1. An operation that [`Operation::check`] accepts can be prepared without a check of its form: its names,
//!      keys and values are within their limits, and its assertions do not contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use base::{KIB, MIB, Version};

use crate::keys::{ATTRIBUTE_SIZE_MAX, Kind, Name, RECORD_KEY_SIZE_MAX};

/// The largest object, in bytes of its data.
pub const OBJECT_SIZE_MAX: u64 = 64 * MIB;
/// The largest data that lies in the head of an object, in bytes. Longer data lies in blocks.
pub const INLINE_SIZE_MAX: u64 = 32 * KIB;
/// The most data that the changes of one operation name, in bytes.
pub const OPERATION_DATA_MAX: u64 = 3 * MIB;
const _: () = assert!(OPERATION_DATA_MAX == format::wire::BATCH_UNITS_SIZE_MAX as u64);
/// The most that changes of records take in an entry, with its log records and repeats, in bytes: keys (which
/// count twice), values and data in heads.
pub const OPERATION_RECORDS_MAX: usize = MIB as usize;
/// The most objects of one operation.
pub const OPERATION_OBJECTS_MAX: usize = 1000;
/// The most assertions and changes of one operation.
pub const OPERATION_STEPS_MAX: usize = 4096;
/// The most removals of ranges of records that one operation has of an object, and the most ranges that a run
/// removes of it.
pub const RANGES_MAX: usize = 16;
/// The most changes of one object's data in one operation.
pub const DATA_CHANGES_MAX: usize = 2;
/// The most that the results of one operation take, in bytes.
pub const RESULTS_SIZE_MAX: usize = 4 << 10;
/// The most that an operation reads of attributes and records, in bytes of their values: for its assertions,
/// and for what it adds to.
pub const OPERATION_VALUES_MAX: usize = 4 << 20;
/// The largest value of an attribute or record, in bytes.
pub const FIELD_VALUE_MAX: usize = 64 << 10;

/// Assertions and changes of one object, or of several in the same PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The objects, each at most once.
    pub objects: Vec<ObjectSteps>,
}

/// What an operation asserts and changes of one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectSteps {
    /// The object.
    pub name: Name,
    /// What must be true before the operation.
    pub assertions: Vec<Assertion>,
    /// What changes, in order.
    pub changes: Vec<ObjectChange>,
}

/// An attribute or a record of an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Field {
    /// An attribute: 1 to [`ATTRIBUTE_SIZE_MAX`] bytes.
    Attribute(Vec<u8>),
    /// A record: 1 to [`RECORD_KEY_SIZE_MAX`] bytes.
    Record(Vec<u8>),
}

/// What must be true of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Assertion {
    /// The object exists.
    Exists,
    /// The object does not exist.
    Absent,
    /// The object exists, and this is the version of its last change.
    Version(Version),
    /// The field exists and has this value.
    Equals(Field, Vec<u8>),
    /// The field does not exist, or has another value.
    Differs(Field, Vec<u8>),
    /// The field exists.
    Has(Field),
    /// The field does not exist.
    Lacks(Field),
}

/// A change of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectChange {
    /// These bytes become all of the data. Creates the object.
    Put(Vec<u8>),
    /// These bytes lie at the offset; what was never written before them reads as zeros. Creates the object.
    Write {
        /// Where they begin, in bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// These bytes lie behind the data. Creates the object. The result says where they begin.
    Append(Vec<u8>),
    /// The data has this size: what is behind it is gone, what is new reads as zeros. Creates the object, if
    /// the size is not 0.
    Truncate(u64),
    /// The bytes of the range that the data has become zeros. Its size stays.
    Zero {
        /// Where the range begins, in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The object is gone, with all attributes and records. The result says whether there was one. Requires:
    /// it is the object's last change in the operation.
    Remove,
    /// The data is partial from now on, or whole. A put makes it whole.
    Partial(bool),
    /// The field has this value. Creates the object.
    Set(Field, Vec<u8>),
    /// The field is gone.
    Unset(Field),
    /// All records from this key on are gone, up to the second one, which stays.
    RemoveRecords {
        /// The first key; empty: from the first record.
        from: Vec<u8>,
        /// The first key that stays; `None`: to the last record.
        before: Option<Vec<u8>>,
    },
    /// The field's value, a number of 8 bytes (little-endian), grows by this amount; an absent field counts
    /// as 0. Creates the object. The result is the sum.
    Add(Field, i64),
}

/// The result of a change; most changes have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepResult {
    /// [`ObjectChange::Append`]: where the bytes begin.
    Appended(u64),
    /// [`ObjectChange::Remove`]: whether there was an object.
    Removed(bool),
    /// [`ObjectChange::Add`]: the sum.
    Sum(i64),
}

impl Assertion {
    /// Returns the attribute or record that it concerns.
    fn field(&self) -> Option<&Field> {
        match self {
            Assertion::Equals(field, _)
            | Assertion::Differs(field, _)
            | Assertion::Has(field)
            | Assertion::Lacks(field) => Some(field),
            Assertion::Exists | Assertion::Absent | Assertion::Version(_) => None,
        }
    }
}

impl Field {
    /// Returns the name of the attribute, or the key of the record.
    pub fn key(&self) -> &[u8] {
        match self {
            Field::Attribute(key) | Field::Record(key) => key,
        }
    }

    /// Returns what the field is as a record of the engine.
    pub fn kind_of(&self, name: &Name) -> Kind {
        let name = name.clone();
        match self {
            Field::Attribute(attribute) => Kind::Attribute { name, attribute: attribute.clone() },
            Field::Record(key) => Kind::Record { name, key: key.clone() },
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let (what, size_max) = match self {
            Field::Attribute(_) => ("the name of an attribute", ATTRIBUTE_SIZE_MAX),
            Field::Record(_) => ("the key of a record", RECORD_KEY_SIZE_MAX),
        };
        check_size(what, self.key().len(), 1..=size_max)
    }
}

impl ObjectChange {
    /// Whether the change concerns the object's data.
    pub fn is_of_data(&self) -> bool {
        use ObjectChange::*;
        matches!(self, Put(_) | Write { .. } | Append(_) | Truncate(_) | Zero { .. })
    }

    /// Returns the number of bytes of data that the change brings.
    pub(crate) fn data_size(&self) -> u64 {
        match self {
            ObjectChange::Put(bytes)
            | ObjectChange::Write { bytes, .. }
            | ObjectChange::Append(bytes) => bytes.len() as u64,
            _ => 0,
        }
    }

    /// Returns the size of the change's result, in bytes.
    pub(crate) fn result_size(&self) -> usize {
        match self {
            ObjectChange::Append(_) | ObjectChange::Add(..) => 8,
            ObjectChange::Remove => 1,
            _ => 0,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            ObjectChange::Write { offset, bytes } => {
                check_end("a write", offset.checked_add(bytes.len() as u64))
            }
            ObjectChange::Truncate(size) => check_end("the new size", Some(*size)),
            ObjectChange::Zero { offset, length } => {
                check_end("the range of zeros", offset.checked_add(*length))
            }
            ObjectChange::Set(field, value) => {
                field.check()?;
                check_size("a value", value.len(), 0..=FIELD_VALUE_MAX)
            }
            ObjectChange::Unset(field) | ObjectChange::Add(field, _) => field.check(),
            ObjectChange::RemoveRecords { from, before } => {
                check_size("the first key of a range", from.len(), 0..=RECORD_KEY_SIZE_MAX)?;
                let Some(before) = before else { return Ok(()) };
                check_size("the end of a range", before.len(), 1..=RECORD_KEY_SIZE_MAX)?;
                match from < before {
                    true => Ok(()),
                    false => Err("a range of records ends before it begins".into()),
                }
            }
            ObjectChange::Put(_)
            | ObjectChange::Append(_)
            | ObjectChange::Partial(_)
            | ObjectChange::Remove => Ok(()),
        }
    }
}

impl ObjectSteps {
    /// Returns the attributes and records that must be known: those that are asserted or added to.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &Field> {
        let asserted = self.assertions.iter().filter_map(Assertion::field);
        let added = self.changes.iter().filter_map(|change| match change {
            ObjectChange::Add(field, _) => Some(field),
            _ => None,
        });
        asserted.chain(added)
    }

    fn check(&self) -> Result<(), String> {
        for assertion in &self.assertions {
            match assertion {
                Assertion::Equals(field, value) | Assertion::Differs(field, value) => {
                    field.check()?;
                    check_size("a value", value.len(), 0..=FIELD_VALUE_MAX)?;
                }
                Assertion::Has(field) | Assertion::Lacks(field) => field.check()?,
                Assertion::Exists | Assertion::Absent | Assertion::Version(_) => {}
            }
        }
        self.check_contradictions()?;
        self.changes.iter().try_for_each(ObjectChange::check)?;
        let last = self.changes.len().saturating_sub(1);
        if self.changes.iter().take(last).any(|change| *change == ObjectChange::Remove) {
            return Err("an object is removed and then changed in one operation".into());
        }
        let count = self.changes.iter().filter(|change| change.is_of_data()).count();
        match count <= DATA_CHANGES_MAX {
            true => Ok(()),
            false => Err(format!(
                "one operation may change the data of an object {DATA_CHANGES_MAX} times, not {count}"
            )),
        }
    }

    /// Finds assertions that can never be true together.
    fn check_contradictions(&self) -> Result<(), String> {
        let is_absent = self.assertions.contains(&Assertion::Absent);
        let needs_object = |assertion: &&Assertion| {
            matches!(
                assertion,
                Assertion::Exists
                    | Assertion::Version(_)
                    | Assertion::Equals(..)
                    | Assertion::Has(_)
            )
        };
        if is_absent && self.assertions.iter().any(|it| needs_object(&it)) {
            return Err("the object is asserted to be absent and to have something".into());
        }
        let mut versions = self.assertions.iter().filter_map(|assertion| match assertion {
            Assertion::Version(version) => Some(*version),
            _ => None,
        });
        let first = versions.next();
        if versions.any(|version| Some(version) != first) {
            return Err("the object is asserted to have two versions".into());
        }
        let lacking = self.assertions.iter().filter_map(|assertion| match assertion {
            Assertion::Lacks(field) => Some(field),
            _ => None,
        });
        let lacking: BTreeSet<&Field> = lacking.collect();
        let mut there = self.assertions.iter().filter_map(|assertion| match assertion {
            Assertion::Equals(field, _) | Assertion::Has(field) => Some(field),
            _ => None,
        });
        if there.any(|field| lacking.contains(field)) {
            return Err("a field is asserted to be there and to be absent".into());
        }
        let mut values: BTreeMap<&Field, &[u8]> = BTreeMap::new();
        for assertion in &self.assertions {
            if let Assertion::Equals(field, value) = assertion
                && values.insert(field, value).is_some_and(|other| other != value)
            {
                return Err("a field is asserted to have two values".into());
            }
        }
        let is_denied = |assertion: &Assertion| match assertion {
            Assertion::Differs(field, value) => values.get(field) == Some(&&value[..]),
            _ => false,
        };
        match self.assertions.iter().any(is_denied) {
            true => Err("a field is asserted to have a value and not to have it".into()),
            false => Ok(()),
        }
    }
}

impl Operation {
    /// Returns the number of its steps.
    pub fn steps_count(&self) -> usize {
        let steps = |object: &ObjectSteps| object.assertions.len() + object.changes.len();
        self.objects.iter().map(steps).sum()
    }

    /// Checks the form of the operation; the error says what is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        check_size("an operation", self.objects.len(), 1..=OPERATION_OBJECTS_MAX)
            .map_err(|_| format!("an operation has 1 to {OPERATION_OBJECTS_MAX} objects"))?;
        let mut names: Vec<&Name> = self.objects.iter().map(|object| &object.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("{:?} comes twice in one operation", pair[0]));
        }
        check_steps(self.steps_count())?;
        self.objects.iter().try_for_each(ObjectSteps::check)?;
        let changes = || self.objects.iter().flat_map(|object| &object.changes);
        let size: usize = changes().map(ObjectChange::result_size).sum();
        if size > RESULTS_SIZE_MAX {
            return Err(format!("{size} bytes of results are more than {RESULTS_SIZE_MAX}"));
        }
        let size: u64 = changes().map(ObjectChange::data_size).sum();
        match size <= OPERATION_DATA_MAX {
            true => Ok(()),
            false => Err(format!(
                "{size} bytes of data are more than {OPERATION_DATA_MAX} for one operation: write them in \
                 several"
            )),
        }
    }

    /// Checks that the operation removes no more than [`RANGES_MAX`] ranges of records of an object; the
    /// error says what is wrong, for people. An older version has executed such operations, so this is
    /// checked only where a repeat was looked for.
    pub fn check_ranges(&self) -> Result<(), String> {
        let is_range =
            |change: &&ObjectChange| matches!(change, ObjectChange::RemoveRecords { .. });
        for ObjectSteps { name, changes, .. } in &self.objects {
            let count = changes.iter().filter(is_range).count();
            if count > RANGES_MAX {
                return Err(format!(
                    "one operation may remove {RANGES_MAX} ranges of records of {name:?}, not {count}"
                ));
            }
        }
        Ok(())
    }

    /// Returns how much the operation may write to blocks that have no place yet: so many bytes, and so many
    /// blocks of which it writes a part. Data in heads takes none.
    pub fn block_need(&self) -> (u64, u64) {
        let changes = self.objects.iter().flat_map(|object| &object.changes);
        let need = |change: &ObjectChange| match change {
            ObjectChange::Put(bytes) if bytes.len() as u64 <= INLINE_SIZE_MAX => (0, 0),
            ObjectChange::Put(bytes) => (bytes.len() as u64, 0),
            // The first and the last one; or data that was in the head goes to a block.
            ObjectChange::Write { bytes, .. } | ObjectChange::Append(bytes) => {
                (bytes.len() as u64, 2)
            }
            ObjectChange::Truncate(size) if *size <= INLINE_SIZE_MAX => (0, 0),
            ObjectChange::Truncate(_) | ObjectChange::Zero { .. } => (0, 2),
            _ => (0, 0),
        };
        changes.map(need).fold((0, 0), |sum, need| (sum.0 + need.0, sum.1 + need.1))
    }

    /// Whether the operation may add to what is kept, other than the results of what it removes.
    pub fn may_add(&self) -> bool {
        let mut changes = self.objects.iter().flat_map(|object| &object.changes);
        !changes.all(|change| {
            matches!(
                change,
                ObjectChange::Remove | ObjectChange::Unset(_) | ObjectChange::RemoveRecords { .. }
            )
        })
    }

    /// Whether all that the operation does with each of its objects is one put of data that needs no blocks,
    /// with no assertion.
    pub fn is_blind_put(&self) -> bool {
        let is_put = |changes: &[ObjectChange]| match changes {
            [ObjectChange::Put(bytes)] => bytes.len() as u64 <= INLINE_SIZE_MAX,
            _ => false,
        };
        self.objects.iter().all(|steps| steps.assertions.is_empty() && is_put(&steps.changes))
    }
}

/// Checks the number of steps of an operation.
pub(crate) fn check_steps(count: usize) -> Result<(), String> {
    match count <= OPERATION_STEPS_MAX {
        true => Ok(()),
        false => Err(format!("{count} steps are more than {OPERATION_STEPS_MAX}")),
    }
}

fn check_size(
    what: &str,
    size: usize,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<(), String> {
    match allowed.contains(&size) {
        true => Ok(()),
        false => Err(format!(
            "{what} has {size} bytes; {} to {} are allowed",
            allowed.start(),
            allowed.end()
        )),
    }
}

fn check_end(what: &str, end: Option<u64>) -> Result<(), String> {
    match end {
        Some(end) if end <= OBJECT_SIZE_MAX => Ok(()),
        _ => Err(format!("{what} ends beyond {OBJECT_SIZE_MAX} bytes, the largest object")),
    }
}
