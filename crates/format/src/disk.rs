//! Layouts of a store on its device. See `docs/internals/disk.md`.
//!
//! All integers are little-endian. Everything that is written carries a checksum, and what lies
//! in the journal or the checkpoint area carries the store's tag too, so that another store's
//! bytes never fit.

mod bytes;
mod decision;
mod entry;
mod leaf;
mod page;
mod superblock;

use std::fmt;

use base::{ImageId, PgId, PoolId, StripeIndex};

pub use decision::{DECISION_SIZE, Decision, decode_decisions, encode_decisions};
pub use entry::{ENTRY_HEADER_SIZE_MAX, EntryDecodeError, EntryHeader, EntryKind};
pub use leaf::{
    LEAF_CAPACITY, LeafPage, LeafRecord, LeafWriter, StoredRecord, StoredUnit, record_size,
};
pub use page::{
    DIRECTORY_ENTRY_SIZE, PAGE_NONE, PAGE_SIZE, PageDecodeError, PageRef, PgRecord, Root,
    STREAM_PAGE_CAPACITY, StreamPage, StreamRef, decode_directory, decode_notes, decode_pgs,
    decode_ranges, encode_directory, encode_notes, encode_pgs, encode_ranges,
};
pub use superblock::{
    Area, FORMAT_VERSION, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock, SuperblockError,
};

/// Location of a block that has no place in the data area.
pub const LOCATION_NONE: u32 = u32::MAX;
/// Locations count in steps of the smallest block, in bytes.
pub const LOCATION_STEP: u64 = 16 << 10;

/// Names a block; ordered so that a PG is one range at any power-of-two PG count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The pool.
    pub pool: PoolId,
    /// `base::hash::stripe_hash` of (seed, stripe).
    pub hash: u32,
    /// The layer.
    pub image: ImageId,
    /// Which block of the image.
    pub stripe: StripeIndex,
}

/// Names a note: small durable facts of the layers above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoteKey {
    /// The newest entry of a PG and its activation record.
    Pg(PgId),
    /// What an OSD keeps of the map.
    Cluster,
    /// A difference in its copy of the cluster's state, by number: from 1 on.
    State(u32),
}

impl NoteKey {
    /// As it stands in a journal entry and in a checkpoint: a PG, and a number where there is none.
    pub fn parts(self) -> (Option<PgId>, u32) {
        match self {
            NoteKey::Pg(pg) => (Some(pg), 0),
            NoteKey::Cluster => (None, 0),
            NoteKey::State(number) => (None, number),
        }
    }

    /// The key with these [`NoteKey::parts`].
    pub fn of_parts(pg: Option<PgId>, number: u32) -> NoteKey {
        match (pg, number) {
            (Some(pg), _) => NoteKey::Pg(pg),
            (None, 0) => NoteKey::Cluster,
            (None, number) => NoteKey::State(number),
        }
    }

    /// The PG that the note belongs to.
    pub fn pg(self) -> Option<PgId> {
        self.parts().0
    }
}

/// One store, drawn at random when it is made; printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(u128);

impl StoreId {
    /// Any number is a valid value.
    pub const fn new(number: u128) -> StoreId {
        StoreId(number)
    }

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl StoreId {
    /// The part of the identity that journal entries and checkpoint pages carry.
    pub const fn tag(self) -> u64 {
        (self.0 ^ (self.0 >> 64)) as u64
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

/// When a write is durable. Frozen when the store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitMode {
    /// Writes are made durable by a flush of the device's cache, which covers a group of them.
    Fsync,
    /// Each write is durable by itself (RWF_DSYNC).
    Immediate,
}

impl fmt::Display for CommitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommitMode::Fsync => "fsync",
            CommitMode::Immediate => "immediate",
        })
    }
}

/// A set of the 4 KiB units of one block: bit `i` of word `i / 64` is unit `i`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitSet([u64; 4]);

impl UnitSet {
    /// No unit.
    pub const EMPTY: UnitSet = UnitSet([0; 4]);

    /// The first `count` units. Requires: at most 256.
    pub fn first(count: u32) -> UnitSet {
        let mut set = UnitSet::EMPTY;
        for unit in 0..count {
            set.insert(unit);
        }
        set
    }

    /// The units whose bits are set.
    pub const fn from_words(words: [u64; 4]) -> UnitSet {
        UnitSet(words)
    }

    /// Whether the unit is in it.
    pub fn contains(&self, unit: u32) -> bool {
        self.0[unit as usize / 64] & (1 << (unit % 64)) != 0
    }

    /// Puts the unit in.
    pub fn insert(&mut self, unit: u32) {
        self.0[unit as usize / 64] |= 1 << (unit % 64);
    }

    /// Takes the unit out.
    pub fn remove(&mut self, unit: u32) {
        self.0[unit as usize / 64] &= !(1 << (unit % 64));
    }

    /// Whether it holds no unit.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// How many units it holds.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Its units in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..256).filter(|unit| self.contains(*unit))
    }

    /// All its words.
    pub const fn all_words(&self) -> &[u64; 4] {
        &self.0
    }

    /// The units in these words; those that are missing hold none. Requires: at most 4 words.
    pub fn from_slice(words: &[u64]) -> UnitSet {
        let mut all = [0; 4];
        all[..words.len()].copy_from_slice(words);
        UnitSet(all)
    }

    /// Whether all its units are in the other.
    pub fn is_within(&self, other: &UnitSet) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, other)| mine & !other == 0)
    }

    /// Those of its units that are in the other too.
    pub fn within(&self, other: &UnitSet) -> UnitSet {
        let mut both = self.0;
        both.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
        UnitSet(both)
    }

    /// Offset and length from its first to behind its last unit, in bytes; zeros if it is empty.
    pub fn span(&self) -> (u32, u32) {
        let Some(first) = self.iter().next() else { return (0, 0) };
        let last = (first..256).rev().find(|unit| self.contains(*unit)).unwrap_or(first);
        let unit = base::UNIT_SIZE as u32;
        (first * unit, (last + 1 - first) * unit)
    }

    /// As words for a block of `unit_count` units.
    pub fn words(&self, unit_count: u32) -> Vec<u64> {
        self.0[..(unit_count as usize).div_ceil(64)].to_vec()
    }
}

impl fmt::Debug for UnitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Compares bytes with the golden file of this name; `UPDATE=1` writes it.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "golden files are read and written by tests")]
fn golden(name: &str, bytes: &[u8]) {
    let path = format!("{}/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let mut end = bytes.len();
    while end > 0 && bytes[end - 1] == 0 {
        end -= 1;
    }
    let mut text = format!("# {} bytes, zeros at the end left out\n", bytes.len());
    for line in bytes[..end].chunks(32) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read(&path).expect("the golden file is there: UPDATE=1 writes it");
    assert_eq!(String::from_utf8_lossy(&golden), text, "{path}");
}
