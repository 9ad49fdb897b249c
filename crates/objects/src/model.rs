//! Objects as users know them, and what operations and reads do with them: the plain model that tests compare with.
//! Nothing that serves uses it.

use std::collections::{BTreeMap, BTreeSet};

use base::Version;
use bytes::Bytes;

use crate::head::Stat;
use crate::keys::Name;
use crate::listing::{Listing, Page, PageEntry};
use crate::look::{Listed, Read, ReadAnswer};
use crate::operation::{Assertion, Field, INLINE_SIZE_MAX, ObjectChange, Operation, StepResult};

/// The time of each change, in tests.
pub const MODIFIED: u64 = 7;

/// An object as users know it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    /// All of its data.
    pub data: Vec<u8>,
    /// Whether a put of several operations is not done.
    pub is_partial: bool,
    /// Its attributes.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its records.
    pub records: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a model says of an operation: its results, and whether it changes anything; or object and step.
pub type Outcome = Result<(Vec<StepResult>, bool), (usize, usize)>;

impl Model {
    /// Returns the attributes or the records.
    pub fn fields(&mut self, field: &Field) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        match field {
            Field::Attribute(_) => &mut self.attributes,
            Field::Record(_) => &mut self.records,
        }
    }

    /// Returns the value of a field; `None`: there is none.
    pub fn field(&self, field: &Field) -> Option<&Vec<u8>> {
        match field {
            Field::Attribute(key) => self.attributes.get(key),
            Field::Record(key) => self.records.get(key),
        }
    }
}

/// Objects with the version of their last change.
pub type Models = BTreeMap<Name, (Version, Model)>;

/// Judges and makes an operation on the model, as this version. The error names object and step. Nothing is
/// too large here.
pub fn model(objects: &mut Models, operation: &Operation, version: Version) -> Outcome {
    let before = objects.clone();
    for (at, steps) in operation.objects.iter().enumerate() {
        let found = before.get(&steps.name);
        let field = |field: &Field| found.and_then(|(_, object)| object.field(field));
        for (step, assertion) in steps.assertions.iter().enumerate() {
            let is_true = match assertion {
                Assertion::Exists => found.is_some(),
                Assertion::Absent => found.is_none(),
                Assertion::Version(version) => found.is_some_and(|(it, _)| it == version),
                Assertion::Equals(key, value) => field(key) == Some(value),
                Assertion::Differs(key, value) => field(key) != Some(value),
                Assertion::Has(key) => field(key).is_some(),
                Assertion::Lacks(key) => field(key).is_none(),
            };
            if !is_true {
                return Err((at, step));
            }
        }
    }
    let (mut results, mut is_change) = (Vec::new(), false);
    for (at, steps) in operation.objects.iter().enumerate() {
        for (step, change) in steps.changes.iter().enumerate() {
            let step = steps.assertions.len() + step;
            match model_change(objects, &steps.name, change, version) {
                Ok(None) => {}
                Ok(Some((result, changes))) => {
                    results.extend(result);
                    is_change |= changes;
                }
                Err(()) => {
                    *objects = before;
                    return Err((at, step));
                }
            }
        }
    }
    Ok((results, is_change))
}

/// Makes a change; the result comes with whether the object changed. The error: it cannot be added to.
fn model_change(
    objects: &mut Models,
    name: &Name,
    change: &ObjectChange,
    version: Version,
) -> Result<Option<(Option<StepResult>, bool)>, ()> {
    let is_there = objects.contains_key(name);
    let size = objects.get(name).map_or(0, |(_, object)| object.data.len());
    let creates = match change {
        ObjectChange::Truncate(size) => *size > 0,
        ObjectChange::Zero { offset, length } if is_there => {
            if *length == 0 || *offset >= size as u64 {
                return Ok(None);
            }
            true
        }
        ObjectChange::Zero { .. } | ObjectChange::Unset(_) | ObjectChange::Partial(_) => false,
        ObjectChange::RemoveRecords { .. } => false,
        ObjectChange::Remove => {
            objects.remove(name);
            return Ok(Some((Some(StepResult::Removed(is_there)), is_there)));
        }
        _ => true,
    };
    if !is_there && !creates {
        return Ok(None);
    }
    let mut entry = objects.get(name).cloned().unwrap_or((version, Model::default()));
    entry.0 = version;
    let object = &mut entry.1;
    let mut result = None;
    let write = |object: &mut Model, offset: usize, bytes: &[u8]| {
        let end = offset + bytes.len();
        object.data.resize(object.data.len().max(end), 0);
        object.data[offset..end].copy_from_slice(bytes);
    };
    match change {
        ObjectChange::Put(bytes) => (object.data, object.is_partial) = (bytes.clone(), false),
        ObjectChange::Partial(is_partial) => object.is_partial = *is_partial,
        ObjectChange::Write { offset, bytes } => write(object, *offset as usize, bytes),
        ObjectChange::Append(bytes) => {
            write(object, size, bytes);
            result = Some(StepResult::Appended(size as u64));
        }
        ObjectChange::Truncate(size) => object.data.resize(*size as usize, 0),
        ObjectChange::Zero { offset, length } => {
            let end = (offset + length).min(size as u64);
            object.data[*offset as usize..end as usize].fill(0);
        }
        ObjectChange::Set(field, value) => {
            object.fields(field).insert(field.key().to_vec(), value.clone());
        }
        ObjectChange::Unset(field) => {
            object.fields(field).remove(field.key());
        }
        ObjectChange::RemoveRecords { from, before } => {
            let is_left = |key: &Vec<u8>| key < from || before.as_ref().is_some_and(|it| key >= it);
            object.records.retain(|key, _| is_left(key));
        }
        ObjectChange::Add(field, amount) => {
            let value = object.field(field).cloned().unwrap_or_else(|| vec![0; 8]);
            let number = i64::from_le_bytes(value.try_into().map_err(|_| ())?);
            let sum = number.checked_add(*amount).ok_or(())?;
            object.fields(field).insert(field.key().to_vec(), sum.to_le_bytes().to_vec());
            result = Some(StepResult::Sum(sum));
        }
        ObjectChange::Remove => unreachable!("handled above"),
    }
    objects.insert(name.clone(), entry);
    Ok(Some((result, true)))
}

/// What all pages of a listing together have.
pub fn all<V: Clone>(keys: &BTreeMap<Vec<u8>, V>, listing: &Listing) -> Vec<PageEntry<V>> {
    let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
    for (key, value) in keys {
        let is_in = key.starts_with(&listing.prefix)
            && *key >= listing.from
            && listing.before.as_ref().is_none_or(|before| key < before);
        if !is_in {
            continue;
        }
        let (delimiter, rest) = (&listing.delimiter, &key[listing.prefix.len()..]);
        let at =
            (0..rest.len()).find(|at| !delimiter.is_empty() && rest[*at..].starts_with(delimiter));
        match at {
            Some(at) => {
                let common = key[..listing.prefix.len() + at + delimiter.len()].to_vec();
                if seen.insert(common.clone()) {
                    entries.push(PageEntry::CommonPrefix(common.into()));
                }
            }
            None => entries.push(PageEntry::Key(key.clone().into(), value.clone())),
        }
    }
    entries
}

/// Whether a page has what there is, up to where it ended.
fn is_page<V: Clone + PartialEq>(
    page: &Page<V>,
    keys: &BTreeMap<Vec<u8>, V>,
    listing: &Listing,
) -> bool {
    let mut rest = Vec::new();
    if let Some(next) = &page.next {
        rest = all(keys, &Listing { from: next.clone(), ..listing.clone() });
    }
    let whole = [page.entries.clone(), rest].concat();
    page.entries.len() <= listing.count_max && whole == all(keys, listing)
}

/// Returns the values as pages have them.
fn shared(values: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Bytes> {
    let shared = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone().into());
    values.iter().map(shared).collect()
}

fn stat_of((version, object): &(Version, Model)) -> Stat {
    let (version, size) = (*version, object.data.len() as u64);
    Stat { version, size, modified: MODIFIED, is_partial: object.is_partial }
}

/// Objects as a listing tells of them that skips those whose first byte has one of these bits.
pub fn listed(models: &Models, with_data: bool, skip: u8) -> BTreeMap<Vec<u8>, Listed> {
    let is_skipped = |data: &[u8]| {
        data.len() as u64 <= INLINE_SIZE_MAX && data.first().is_some_and(|first| first & skip != 0)
    };
    let shown = models.iter().filter(|(_, found)| !is_skipped(&found.1.data));
    let of = |(name, found): (&Name, &(Version, Model))| {
        let data = &found.1.data;
        let is_told = with_data && data.len() as u64 <= INLINE_SIZE_MAX;
        let data = is_told.then(|| data.clone().into());
        (name.bytes().to_vec(), Listed { stat: stat_of(found), data })
    };
    shown.map(of).collect()
}

/// Whether a read has this answer where the objects are these.
pub fn is_answer(read: &Read, answer: &ReadAnswer, models: &Models) -> bool {
    let found = read.name().and_then(|name| models.get(name));
    let none = Model::default();
    let object = found.map_or(&none, |(_, object)| object);
    match (read, answer) {
        (Read::Stat { .. }, ReadAnswer::Stat(stat)) => *stat == found.map(stat_of),
        (Read::Data { offset, length, .. }, ReadAnswer::Data(data)) => {
            let range = |(_, object): &(Version, Model)| {
                let rest = object.data.iter().skip(*offset as usize);
                rest.take(*length as usize).copied().collect::<Vec<u8>>()
            };
            *data == found.map(|found| (stat_of(found), range(found)))
        }
        (Read::Values { fields, .. }, ReadAnswer::Values(values)) => {
            let expected = fields.iter().take(values.len());
            values.iter().map(Option::as_ref).eq(expected.map(|field| object.field(field)))
        }
        (Read::Attributes { listing, .. }, ReadAnswer::Fields(page)) => {
            is_page(page, &shared(&object.attributes), listing)
        }
        (Read::Records { listing, .. }, ReadAnswer::Fields(page)) => {
            is_page(page, &shared(&object.records), listing)
        }
        (Read::List { listing, with_data, skip, .. }, ReadAnswer::List(page)) => {
            is_page(page, &listed(models, *with_data, *skip), listing)
        }
        _ => false,
    }
}
