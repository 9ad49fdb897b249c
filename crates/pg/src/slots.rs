//! Typed slots: the slot of a write cannot be mistaken for the slot of a read.
//!
//! Invariants
//!   1. A slot identifies one value from [`Slots::insert`] to [`Slots::remove`]. Afterwards it may be reused.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// The number of a slot, with a type.
pub trait Slot: Copy {
    fn from_index(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! slot_types {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(usize);

        impl Slot for $name {
            fn from_index(index: usize) -> $name {
                $name(index)
            }

            fn index(self) -> usize {
                self.0
            }
        }
    )*};
}

slot_types! {
    /// An unfinished write of [`super::write_queue::WriteQueue`].
    WriteSlot;
    /// An unfinished read.
    ReadSlot;
    /// A portion of a deletion by range.
    DeletionSlot;
    /// A copy of a block between members.
    JobSlot;
    /// Units of a stripe that are being gathered.
    GatherSlot;
    /// A key that is being brought to the adopted version at members that lack it.
    ForwardSlot;
}

/// Values by slot.
pub struct Slots<S, T> {
    slab: Slab<T>,
    slot: PhantomData<S>,
}

impl<S: Slot, T> Slots<S, T> {
    pub fn new() -> Slots<S, T> {
        Slots { slab: Slab::new(), slot: PhantomData }
    }

    pub fn insert(&mut self, value: T) -> S {
        S::from_index(self.slab.insert(value))
    }

    /// Removes and returns a value. Requires: the slot is in use.
    pub fn remove(&mut self, slot: S) -> T {
        self.slab.remove(slot.index())
    }

    pub fn get(&self, slot: S) -> Option<&T> {
        self.slab.get(slot.index())
    }

    pub fn get_mut(&mut self, slot: S) -> Option<&mut T> {
        self.slab.get_mut(slot.index())
    }

    pub fn iter(&self) -> impl Iterator<Item = (S, &T)> {
        self.slab.iter().map(|(index, value)| (S::from_index(index), value))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slab.iter_mut().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn clear(&mut self) {
        self.slab.clear();
    }
}

impl<S: Slot, T> Index<S> for Slots<S, T> {
    type Output = T;

    fn index(&self, slot: S) -> &T {
        &self.slab[slot.index()]
    }
}

impl<S: Slot, T> IndexMut<S> for Slots<S, T> {
    fn index_mut(&mut self, slot: S) -> &mut T {
        &mut self.slab[slot.index()]
    }
}
