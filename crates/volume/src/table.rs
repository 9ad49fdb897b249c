//! Tables whose keys have separate types, so that the key of a request cannot be used for a part.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// Index of a request in its table; reused after the request is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RequestKey(usize);

/// Index of a part in its table; reused after the part is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartKey(usize);

/// A key of a [`Table`].
pub(crate) trait Key: Copy {
    /// Creates the key for this index.
    fn new(place: usize) -> Self;
    /// Returns the index.
    fn place(self) -> usize;
}

impl Key for RequestKey {
    fn new(place: usize) -> RequestKey {
        RequestKey(place)
    }

    fn place(self) -> usize {
        self.0
    }
}

impl Key for PartKey {
    fn new(place: usize) -> PartKey {
        PartKey(place)
    }

    fn place(self) -> usize {
        self.0
    }
}

/// A table of entries by key.
pub(crate) struct Table<K, T> {
    entries: Slab<T>,
    key: PhantomData<K>,
}

impl<K: Key, T> Table<K, T> {
    /// Creates an empty table.
    pub(crate) fn new() -> Table<K, T> {
        Table { entries: Slab::new(), key: PhantomData }
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, entry: T) -> K {
        K::new(self.entries.insert(entry))
    }

    /// Removes an entry. Requires: the entry exists.
    pub(crate) fn remove(&mut self, key: K) -> T {
        self.entries.remove(key.place())
    }

    /// Returns all entries, in ascending order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.entries.iter().map(|(place, entry)| (K::new(place), entry))
    }

    /// Whether the table is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K: Key, T> Index<K> for Table<K, T> {
    type Output = T;

    fn index(&self, key: K) -> &T {
        &self.entries[key.place()]
    }
}

impl<K: Key, T> IndexMut<K> for Table<K, T> {
    fn index_mut(&mut self, key: K) -> &mut T {
        &mut self.entries[key.place()]
    }
}
