//! The newest pending change of each key of a family: a lookup or a scan does not go through all that is pending.
//!
//! ```text
//!   changes, oldest first    1: put c    2: delete a..m    3: put e    4: delete k..p
//!   keys                     c: 1   e: 3            the newest put or delete of the key
//!   ranges                   a..k: 2   k..p: 4      the newest deletion of these keys
//!   newest of                c: 2   e: 3   k: 4   q: none
//! ```
//!
//! Invariants
//!   1. Ranges do not overlap, and none is empty.
//!   2. Each place is that of a change that was added and not removed. Changes that others replaced are not here.
//!   3. A question takes a search in each map. To add and to remove a change takes a few searches, on average.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

use format::engine::Change;

/// The bounds of some keys.
pub type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Where a change lies: the number of its entry, and its index there. The newer change has the higher place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub entry: u64,
    pub index: usize,
}

/// The newest changes of a family.
#[derive(Default)]
pub struct NewestChanges {
    keys: BTreeMap<Vec<u8>, Place>,
    /// By their starts.
    ranges: BTreeMap<Vec<u8>, DeletedRange>,
    /// Of each entry, where the rest of a range of it began after a later one deleted what lies before. It
    /// may have gone since.
    rests: BTreeMap<u64, Vec<Vec<u8>>>,
}

struct DeletedRange {
    end: Vec<u8>,
    place: Place,
}

impl NewestChanges {
    /// Adds the changes of an entry. Requires: it has a higher number than those before.
    pub fn add(&mut self, entry: u64, changes: &[Change]) {
        for (index, change) in changes.iter().enumerate() {
            let place = Place { entry, index };
            match change {
                Change::Put { key, .. } | Change::Delete { key } => match self.keys.get_mut(key) {
                    Some(newest) => *newest = place,
                    None => _ = self.keys.insert(key.clone(), place),
                },
                Change::DeleteRange { start, end } if start < end => {
                    self.add_range(start, end, place);
                }
                Change::DeleteRange { .. } => {}
            }
        }
    }

    fn add_range(&mut self, start: &[u8], end: &[u8], place: Place) {
        if let Some((_, before)) =
            self.ranges.range_mut::<[u8], _>((Unbounded, Excluded(start))).next_back()
            && &before.end[..] > start
        {
            let behind = std::mem::replace(&mut before.end, start.to_vec());
            let rest = DeletedRange { end: behind, place: before.place };
            self.keep_rest(end, rest);
        }
        let within: Bounds = (Included(start), Excluded(end));
        while let Some((from, _)) = self.ranges.range::<[u8], _>(within).next() {
            let from = from.clone();
            let rest = self.ranges.remove(&from).expect("just seen");
            self.keep_rest(end, rest);
        }
        self.ranges.insert(start.to_vec(), DeletedRange { end: end.to_vec(), place });
    }

    /// Keeps what is left of a range behind a later one that ends at `start`.
    fn keep_rest(&mut self, start: &[u8], rest: DeletedRange) {
        if start < &rest.end[..] {
            self.rests.entry(rest.place.entry).or_default().push(start.to_vec());
            self.ranges.insert(start.to_vec(), rest);
        }
    }

    /// Removes the changes of an entry. Requires: they were added, and those of all entries before it are
    /// removed.
    pub fn remove(&mut self, entry: u64, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put { key, .. } | Change::Delete { key } => {
                    if self.keys.get(key).is_some_and(|newest| newest.entry == entry) {
                        self.keys.remove(key);
                    }
                }
                Change::DeleteRange { start, .. } => self.remove_range(entry, start),
            }
        }
        for start in self.rests.remove(&entry).into_iter().flatten() {
            self.remove_range(entry, &start);
        }
    }

    fn remove_range(&mut self, entry: u64, start: &[u8]) {
        if self.ranges.get(start).is_some_and(|range| range.place.entry == entry) {
            self.ranges.remove(start);
        }
    }

    /// Returns the newest change that concerns a key.
    pub fn of_key(&self, key: &[u8]) -> Option<Place> {
        self.keys.get(key).copied().max(self.deletion_of(key))
    }

    /// Returns the newest deletion of a range that has this key.
    pub fn deletion_of(&self, key: &[u8]) -> Option<Place> {
        let (_, range) = self.ranges.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        (key < &range.end[..]).then_some(range.place)
    }

    /// Returns the keys within these bounds that were put or deleted by themselves, ascending, each with
    /// the newest change that concerns it.
    pub fn within<'a>(&'a self, bounds: Bounds<'a>) -> impl Iterator<Item = (&'a [u8], Place)> {
        let keys = is_sound(bounds).then(|| self.keys.range::<[u8], _>(bounds));
        keys.into_iter()
            .flatten()
            .map(|(key, place)| (&key[..], (*place).max(self.deletion_of(key).unwrap_or(*place))))
    }
}

/// Whether a map may be asked for keys within these bounds.
fn is_sound(bounds: Bounds) -> bool {
    match bounds {
        (Included(start), Included(last)) => start <= last,
        (Included(start), Excluded(end)) => start < end,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(newest: &NewestChanges) -> String {
        let range = |(start, range): (&Vec<u8>, &DeletedRange)| {
            let [start, end] = [start, &range.end].map(|key| String::from_utf8_lossy(key));
            format!("{start}..{end}: {}", range.place.entry)
        };
        newest.ranges.iter().map(range).collect::<Vec<_>>().join("   ")
    }

    fn deletion(start: &str, end: &str) -> Vec<Change> {
        vec![Change::DeleteRange { start: start.into(), end: end.into() }]
    }

    #[test]
    fn a_range_is_of_the_newest_deletion_and_goes_with_it() {
        let mut newest = NewestChanges::default();
        let entries =
            [deletion("b", "y"), deletion("d", "f"), deletion("a", "c"), deletion("e", "k")];
        for (entry, changes) in entries.iter().enumerate() {
            newest.add(entry as u64, changes);
        }
        assert_eq!(ranges(&newest), "a..c: 2   c..d: 0   d..e: 1   e..k: 3   k..y: 0");
        newest.remove(0, &entries[0]);
        assert_eq!(ranges(&newest), "a..c: 2   d..e: 1   e..k: 3");
        newest.add(4, &deletion("a", "z"));
        assert_eq!(ranges(&newest), "a..z: 4");
        (1..4).for_each(|entry| newest.remove(entry, &entries[entry as usize]));
        assert_eq!(ranges(&newest), "a..z: 4");
        newest.remove(4, &deletion("a", "z"));
        assert!(newest.ranges.is_empty() && newest.rests.is_empty());
    }

    #[test]
    fn a_range_without_keys_deletes_nothing() {
        let mut newest = NewestChanges::default();
        let changes = [deletion("b", "b"), deletion("c", "a")].concat();
        newest.add(0, &changes);
        assert_eq!((newest.deletion_of(b"b"), ranges(&newest)), (None, String::new()));
        newest.remove(0, &changes);
    }
}
