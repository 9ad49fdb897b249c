//! Tables whose entries are named by keys of their own type, so that no request is taken for a part.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// Place of a request in its table; used again after the request is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RequestKey(usize);

/// Place of a part in its table; used again after the part is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartKey(usize);

/// A key of a [`Table`].
pub(crate) trait Key: Copy {
    /// The key of this place.
    fn new(place: usize) -> Self;
    /// Its place.
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

/// Entries by key.
pub(crate) struct Table<K, T> {
    entries: Slab<T>,
    key: PhantomData<K>,
}

impl<K: Key, T> Table<K, T> {
    /// An empty table.
    pub(crate) fn new() -> Table<K, T> {
        Table { entries: Slab::new(), key: PhantomData }
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, entry: T) -> K {
        K::new(self.entries.insert(entry))
    }

    /// Removes an entry. Requires: it is there.
    pub(crate) fn remove(&mut self, key: K) -> T {
        self.entries.remove(key.place())
    }

    /// All entries, by ascending keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.entries.iter().map(|(place, entry)| (K::new(place), entry))
    }

    /// Whether there is no entry.
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
