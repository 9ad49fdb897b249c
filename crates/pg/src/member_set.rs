//! Sets of members of an entry.

use format::wire::MEMBERS_MAX;

/// A set of members, by their index among those of the entry: acting ones by position, then learners.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemberSet(u32);

impl MemberSet {
    /// Returns the set of the first `count` members. Requires: `count` is at most [`MEMBERS_MAX`].
    pub fn all(count: usize) -> MemberSet {
        assert!(count <= MEMBERS_MAX);
        MemberSet(((1u64 << count) - 1) as u32)
    }

    pub fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub fn add(&mut self, index: usize) {
        assert!(index < MEMBERS_MAX);
        self.0 |= 1 << index;
    }

    pub fn take(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    /// Returns the members that are in both sets.
    pub fn within(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MEMBERS_MAX).filter(move |index| self.has(*index))
    }
}
