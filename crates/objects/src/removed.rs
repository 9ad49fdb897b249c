//! Fields of an object that are removed together: all attributes, and ranges of records.
//!
//! Invariants
//!   1. No two ranges overlap or touch, so a range inside another one, or beside it, counts once.
//!   2. To ask for a field, or for those of a map that are removed, costs no walk through all ranges or all
//!      fields: operations with thousands of fields and ranges are prepared in the loop of an OSD.

use std::collections::BTreeMap;
use std::ops::Bound;

use format::engine::Change;

use crate::entry_size::range_size;
use crate::keys::{Name, Shard, attributes_range, records_range};
use crate::operation::Field;

/// What is removed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RemovedFields {
    /// Whether all attributes are.
    attributes: bool,
    /// Ranges of records. By the first key: the first key that stays; `None`: to the last record.
    records: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl RemovedFields {
    /// All attributes and records.
    pub fn all() -> RemovedFields {
        RemovedFields { attributes: true, records: BTreeMap::from([(Vec::new(), None)]) }
    }

    /// Records from this key on; `before`: the first key that stays, or to the last record.
    pub fn records(from: Vec<u8>, before: Option<Vec<u8>>) -> RemovedFields {
        RemovedFields { attributes: false, records: BTreeMap::from([(from, before)]) }
    }

    pub fn is_empty(&self) -> bool {
        *self == RemovedFields::default()
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        usize::from(self.attributes) + self.records.len()
    }

    /// Whether this field is removed.
    pub fn has(&self, field: &Field) -> bool {
        match field {
            Field::Attribute(_) => self.attributes,
            Field::Record(key) => {
                let up_to = (Bound::Unbounded, Bound::Included(&key[..]));
                let last = self.records.range::<[u8], _>(up_to).next_back();
                last.is_some_and(|(_, before)| before.as_ref().is_none_or(|before| key < before))
            }
        }
    }

    /// Adds what else is removed.
    pub fn extend(&mut self, other: RemovedFields) {
        self.attributes |= other.attributes;
        other.records.into_iter().for_each(|(from, before)| self.add(from, before));
    }

    fn add(&mut self, mut from: Vec<u8>, mut before: Option<Vec<u8>>) {
        let up_to = (Bound::Unbounded, Bound::Included(&from[..]));
        let reaches = |end: &Option<Vec<u8>>| end.as_ref().is_none_or(|end| from <= *end);
        let last = self.records.range::<[u8], _>(up_to).next_back();
        if let Some((first, _)) = last.filter(|(_, end)| reaches(end)) {
            from = first.clone();
        }
        // What begins inside the range, or where it ends, becomes a part of it.
        let from_on = (Bound::Included(&from[..]), Bound::Unbounded);
        let begins_inside =
            |first: &[u8]| before.as_ref().is_none_or(|before| first <= &before[..]);
        let inside = self.records.range::<[u8], _>(from_on).take_while(|(it, _)| begins_inside(it));
        let inside: Vec<Vec<u8>> = inside.map(|(first, _)| first.clone()).collect();
        for first in inside {
            let end = self.records.remove(&first).expect("it was just found");
            before = before.zip(end).map(|(before, end)| before.max(end));
        }
        self.records.insert(from, before);
    }

    /// Returns those fields of a map that are removed.
    pub fn found_in<'a, T>(
        &'a self,
        fields: &'a BTreeMap<Field, T>,
    ) -> impl Iterator<Item = (&'a Field, &'a T)> {
        let records_begin = Field::Record(Vec::new());
        let attributes = (Bound::Unbounded, Bound::Excluded(records_begin));
        let attributes = self.attributes.then_some(attributes);
        let records = self.records.iter().map(|(from, before)| {
            let end =
                before.clone().map_or(Bound::Unbounded, |it| Bound::Excluded(Field::Record(it)));
            (Bound::Included(Field::Record(from.clone())), end)
        });
        attributes.into_iter().chain(records).flat_map(|range| fields.range(range))
    }

    /// Takes those fields out of a map that are removed.
    pub fn take_from<T>(&self, fields: &mut BTreeMap<Field, T>) {
        let gone: Vec<Field> = self.found_in(fields).map(|(field, _)| field.clone()).collect();
        for field in gone {
            fields.remove(&field);
        }
    }

    /// Returns what all ranges take in an entry, in bytes. `prefix_size`: what the keys of all fields have in
    /// common.
    pub fn size(&self, prefix_size: usize) -> usize {
        let attributes = usize::from(self.attributes) * range_size(prefix_size, prefix_size);
        let of_range = |(from, before): (&Vec<u8>, &Option<Vec<u8>>)| {
            let before_size = before.as_ref().map_or(0, Vec::len);
            range_size(prefix_size + from.len(), prefix_size + before_size)
        };
        attributes + self.records.iter().map(of_range).sum::<usize>()
    }

    /// Returns the removals as changes of records.
    pub fn changes<'a>(
        &'a self,
        shard: Shard,
        name: &'a Name,
    ) -> impl Iterator<Item = Change> + 'a {
        let attributes = self.attributes.then(|| attributes_range(shard, name));
        let records = self.records.iter();
        let records =
            records.map(move |(from, end)| records_range(shard, name, from, end.as_deref()));
        let ranges = attributes.into_iter().chain(records);
        ranges.map(|(start, end)| Change::DeleteRange { start, end })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn ranges_have_what_each_of_them_has(
            ranges in prop::collection::vec((0..20u8, prop::option::of(1..20u8)), 0..12),
            removes_all in prop::bool::weighted(0.1),
        ) {
            let mut removed = RemovedFields::default();
            let mut plain = Vec::new();
            for (from, length) in ranges {
                let end = length.map(|length| from + length);
                removed.extend(RemovedFields::records(vec![from], end.map(|end| vec![end])));
                plain.push((from, end));
            }
            if removes_all {
                removed.extend(RemovedFields::all());
            }
            let fields = (0..45u8).flat_map(|at| [Field::Record(vec![at]), Field::Attribute(vec![at])]);
            let fields: BTreeMap<Field, u8> = fields.map(|it| { let at = it.key()[0]; (it, at) }).collect();
            let is_gone = |field: &Field, at: u8| {
                let is_in = |(from, end): &(u8, Option<u8>)| *from <= at && end.is_none_or(|end| at < end);
                removes_all || matches!(field, Field::Record(_)) && plain.iter().any(is_in)
            };
            let expected: Vec<_> = fields.iter().filter(|(field, at)| is_gone(field, **at)).collect();
            prop_assert_eq!(removed.found_in(&fields).collect::<Vec<_>>(), expected.clone());
            prop_assert!(fields.iter().all(|(field, at)| removed.has(field) == is_gone(field, *at)));
            let mut left = fields.clone();
            removed.take_from(&mut left);
            prop_assert_eq!(left.len() + expected.len(), fields.len());
            // No two of them could be one.
            let mut pairs = removed.records.iter().zip(removed.records.keys().skip(1));
            prop_assert!(pairs.all(|((_, end), next)| end.as_ref().is_some_and(|end| end < next)));
        }
    }
}
