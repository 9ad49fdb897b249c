//! A journal entry: header, one checksum for each unit of data, padding to a sector, inline data.
//!
//! ```text
//!   0   magic   4  checksum of [8, header_size)   8  store tag   16 lsn   24 checksum of the entry before
//!   28  kind    29 block size shift  30 flags  31 rows of the part table  32 durable lsn   40 size   44 checksum count
//!   48  key     64 PG                72 version   84 offset   88 length  92 location   96 checksums...
//!   in pools that keep parity:  96 committed version   108 versions above this one are replaced   120 ...
//!   bitmaps follow, then checksums:  covered units, 32 bytes   written, 32 bytes   damaged, 32 bytes
//!   for a parity part, its part table follows the checksums
//!   in object pools:  96 version before the batch   108 checksum of the body   112 body (`batch.rs`), then units of
//! data ```
//!
//! Invariants
//!   1. `size` is whole sectors, and data starts at a sector.
//!   2. The header is verified by its own checksum, which does not cover a body; data is verified by the checksums of
//!      its units, a body by its own checksum.

use base::{BlockSize, Checksum, Lsn, PgId, UNIT_SIZE, Version, crc32c};

use super::batch::{BODY_SIZE_MAX, OBJECT_BLOCK_SIZE_MAX, UNITS_SIZE_MAX};
use super::bytes::{Reader, Writer};
use super::key::{BlockKey, LOCATION_NONE};
use super::part_table::{TABLE_ROWS_MAX, table_rows, table_size};
use super::unit_set::UnitSet;
use crate::engine::Compression;

const MAGIC: u32 = 0x3145_4a41;
const FIXED_SIZE: usize = 96;
/// Size of the committed version and the version of [`EntryHeader::replaces`], in entries of pools that keep
/// parity.
const COMMITTED_SIZE: usize = 2 * 12;
/// Size of the three bitmaps of a repair or of a prepared version.
const BITMAPS_SIZE: usize = 3 * 32;
/// Size of the version before a batch and of the checksum of the body, in entries with a body.
const BODY_FIELDS_SIZE: usize = 12 + 4;
/// Maximum number of checksums in an entry: one for each unit of the largest block.
const CHECKSUM_COUNT_MAX: usize = 256;
/// Maximum size of a header with its checksums and a part table, before padding, in bytes.
pub const ENTRY_HEADER_SIZE_MAX: usize = FIXED_SIZE
    + COMMITTED_SIZE
    + BITMAPS_SIZE
    + 4 * CHECKSUM_COUNT_MAX
    + table_size(BlockSize::MAX, TABLE_ROWS_MAX as u8);

/// What an entry does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EntryKind {
    /// Writes a range of a block; the data is inline.
    Write = 1,
    /// Writes a range of a block, and replaces the whole block; the data is at `location`.
    WriteLarge = 2,
    /// Makes a range of a block read as zeros.
    Zero = 3,
    /// Deletes the block.
    Delete = 4,
    /// Stores a note. Its bytes are inline, padded with zeros to whole units; `length` is its true size.
    Note = 5,
    /// Allows tombstones of the PG up to `version` to be dropped.
    Floor = 6,
    /// Records that the PG is no longer suspect.
    Absolve = 7,
    /// Changes nothing; records the durable lsn.
    Idle = 8,
    /// Changes nothing; fills the ring to its end. Only its first sector is written.
    Pad = 9,
    /// Records a recovery's decisions; inline, like a note.
    Recovery = 10,
    /// Replaces units of a block, whatever its version was; the data of the written units is inline.
    Repair = 11,
    /// Replaces a whole block, whatever its version was; the data is at `location`, each unit at its own
    /// offset.
    RepairLarge = 12,
    /// Deletes the block, whatever its version was.
    RepairTombstone = 13,
    /// Removes the block, without a tombstone.
    RepairGone = 14,
    /// Records that damage may have destroyed acknowledged writes of the PG.
    Suspect = 15,
    /// Prepares a version that changes units of a block; the data of the written units is inline.
    Prepare = 16,
    /// Prepares a version that replaces a whole block; the data is at `location`, each unit at its own
    /// offset.
    PrepareLarge = 17,
    /// Prepares a version that deletes the block.
    PrepareDelete = 18,
    /// Records that the PG has this version, which changes no block here.
    Skip = 19,
    /// Makes prepared versions of the PG up to `version` stable, and removes all above. May contain the PG's
    /// note, inline; `length` is the true size of the note.
    Settle = 20,
    /// Records up to which version each of several PGs is committed; inline, like a note.
    Marks = 21,
    /// Changes records and blocks of an object pool, with a run of versions of the PG; the changes are in the
    /// body. May contain the PG's note: then peering brings a member to the adopted version.
    Batch = 22,
    /// Replaces ranges of records, and blocks, of an object pool, whatever their versions were; they are in
    /// the body.
    Page = 23,
    /// Creates or removes the engine's family of a pool.
    Family = 24,
}

impl EntryKind {
    fn new(number: u8) -> Option<EntryKind> {
        use EntryKind::*;
        let plain = [Write, WriteLarge, Zero, Delete, Note, Floor, Absolve, Idle, Pad, Recovery];
        let repairs = [Repair, RepairLarge, RepairTombstone, RepairGone];
        let prepared = [Prepare, PrepareLarge, PrepareDelete, Skip, Settle, Marks];
        let of_objects = [Batch, Page, Family];
        let others = repairs.into_iter().chain([Suspect]).chain(prepared).chain(of_objects);
        plain.into_iter().chain(others).find(|kind| *kind as u8 == number)
    }

    /// Whether the data follows the header in the journal.
    pub const fn is_inline(self) -> bool {
        use EntryKind::*;
        matches!(self, Write | Note | Recovery | Repair | Prepare | Settle | Marks)
    }

    /// Whether the data is at `location`.
    pub const fn is_large(self) -> bool {
        use EntryKind::*;
        matches!(self, WriteLarge | RepairLarge | PrepareLarge)
    }

    /// Whether the entry prepares a version of a block, which may still be rolled back.
    pub const fn is_prepared(self) -> bool {
        matches!(self, EntryKind::Prepare | EntryKind::PrepareLarge | EntryKind::PrepareDelete)
    }

    /// Whether the header contains the version up to which the store had committed the PG.
    pub const fn carries_committed(self) -> bool {
        self.is_prepared() || matches!(self, EntryKind::Skip | EntryKind::Settle)
    }

    /// Whether the inline data belongs to a block.
    pub const fn has_block_data(self) -> bool {
        matches!(self, EntryKind::Write | EntryKind::Repair | EntryKind::Prepare)
    }

    /// Whether a body follows the fields of the header.
    pub const fn has_body(self) -> bool {
        matches!(self, EntryKind::Batch | EntryKind::Page)
    }

    /// Whether the entry changes a block and has its own version in the order of the PG.
    pub const fn is_versioned(self) -> bool {
        use EntryKind::*;
        matches!(self, Write | WriteLarge | Zero | Delete)
    }

    /// Whether the header contains the three bitmaps.
    const fn has_bitmaps(self) -> bool {
        use EntryKind::*;
        matches!(self, Repair | RepairLarge | Prepare | PrepareLarge)
    }

    /// Returns the size of the fields in front of the checksums, in bytes.
    const fn fixed_size(self) -> usize {
        let committed = if self.carries_committed() { COMMITTED_SIZE } else { 0 };
        let bitmaps = if self.has_bitmaps() { BITMAPS_SIZE } else { 0 };
        let body = if self.has_body() { BODY_FIELDS_SIZE } else { 0 };
        FIXED_SIZE + committed + bitmaps + body
    }
}

/// Flags of an entry of a pool that keeps parity, or of a batch, one bit each. Zero in all other entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct EntryFlags {
    /// The entry is a copy: a checkpoint journaled this prepared version again, so that the journal before
    /// the copy can be freed.
    pub is_copy: bool,
    /// After this version, the block holds only the units of this version.
    pub is_whole: bool,
    /// The settle or batch contains the PG's note.
    pub has_note: bool,
    /// The entry is a copy, and some of the units that it lists as damaged had data when the version arrived.
    pub has_lost: bool,
}

const FLAG_COPY: u8 = 1;
const FLAG_REPLACES: u8 = 2;
const FLAG_WHOLE: u8 = 4;
const FLAG_NOTE: u8 = 8;
const FLAG_LOST: u8 = 16;

/// The header of an entry. Fields that a kind does not use are zero or `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHeader {
    /// What the entry does.
    pub kind: EntryKind,
    /// Position of the entry in the journal; its place in the ring is this modulo the ring's size.
    pub lsn: Lsn,
    /// Checksum of the preceding entry.
    pub previous: Checksum,
    /// Entries before this lsn, and their data, were durable when this entry was written.
    pub durable: Lsn,
    /// Bytes of the journal that the entry takes, header and padding included.
    pub size: u32,
    /// The key of the block.
    pub key: Option<BlockKey>,
    /// The size of the block.
    pub block_size: Option<BlockSize>,
    /// The PG; `None` for a note without one.
    pub pg: Option<PgId>,
    /// The version of the change.
    pub version: Version,
    /// Where the range begins in the block, in bytes; for a note, the number of its key; for an entry with a
    /// body, the size of the data behind the body; for a family, the number of its compression, 0: it is
    /// gone.
    pub offset: u32,
    /// Length of the range, in bytes; for a note, its size; for an entry with a body, the size of the body.
    pub length: u32,
    /// Where the block is in the data area.
    pub location: u32,
    /// In a repair or a prepared version: the units that the entry covers.
    pub units: UnitSet,
    /// In a repair or a prepared version: the units in `units` that hold data. The other units become zeros,
    /// unless they are damaged.
    pub written: UnitSet,
    /// In a repair or a prepared version: the units in `units` whose data is lost.
    pub damaged: UnitSet,
    /// In prepared versions, skips and settles: the version up to which the store had made the PG's versions
    /// stable.
    pub committed: Version,
    /// In a version prepared by peering: all prepared versions of the key above this one are removed. A copy
    /// keeps the field, but removes nothing, because the original entry has already done so.
    pub replaces: Option<Version>,
    /// Flags of entries of pools that keep parity.
    pub flags: EntryFlags,
    /// One checksum for each unit of data.
    pub checksums: Vec<Checksum>,
    /// In a repair or a prepared version of a parity part: its part table, which replaces an older table.
    /// Empty: an older table stays.
    pub table: Vec<u8>,
    /// In a batch: the version before the first of its run.
    pub after: Version,
    /// In an entry with a body: the checksum of the body.
    pub body_checksum: Checksum,
}

/// Why bytes are not a valid entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryDecodeError {
    /// There is no header here.
    NotEntry,
    /// The header is longer than the given bytes. Contains the size of the header.
    NeedMore(usize),
    /// There is a header, but its checksum or fields are wrong, or it belongs to another store.
    Damaged,
}

impl EntryHeader {
    /// Whether a header may begin here, even a damaged one.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    /// Returns the size of the header with its checksums and a table of `table_size` bytes, padded to
    /// sectors, in bytes.
    fn padded_size(
        kind: EntryKind,
        (checksum_count, table_size): (usize, usize),
        sector_size: u32,
    ) -> u32 {
        assert!(checksum_count <= CHECKSUM_COUNT_MAX);
        let size = kind.fixed_size() + 4 * checksum_count + table_size;
        assert!(size <= ENTRY_HEADER_SIZE_MAX);
        (size as u32).next_multiple_of(sector_size)
    }

    /// Returns the size of this header, with its body and padded to sectors, in bytes. Requires: a body has
    /// at most [`BODY_SIZE_MAX`] bytes.
    pub fn header_size(&self, sector_size: u32) -> u32 {
        if self.kind.has_body() {
            let size = self.kind.fixed_size() as u32 + self.length;
            return size.next_multiple_of(sector_size);
        }
        let counts = (self.checksums.len(), self.table.len());
        EntryHeader::padded_size(self.kind, counts, sector_size)
    }

    /// Whether the block is at `location` after this entry.
    pub fn names_place(&self) -> bool {
        use EntryKind::*;
        matches!(self.kind, Write | WriteLarge | Repair | RepairLarge | Prepare | PrepareLarge)
            && self.location != LOCATION_NONE
    }

    /// Returns the units of the block to which the entry's data belongs, in order.
    pub fn data_units(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.offset / UNIT_SIZE as u32;
        let range = match self.kind.has_bitmaps() {
            true => 0..CHECKSUM_COUNT_MAX as u32,
            false => first..first + self.checksums.len() as u32,
        };
        range.filter(|unit| !self.kind.has_bitmaps() || self.written.contains(*unit))
    }

    /// Returns the position of each unit within the data, in units from its start. Inline data has no gaps;
    /// data in the block's place may have gaps.
    pub fn data_positions(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.offset / UNIT_SIZE as u32;
        let is_in_place = self.kind.is_large();
        let position = move |(index, unit)| if is_in_place { unit - first } else { index };
        (0..).zip(self.data_units()).map(position)
    }

    /// Returns the body of the entry with this header, which begins at `bytes`. Requires: the entry has a
    /// body, and `bytes` contain it.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        assert!(self.kind.has_body());
        &bytes[self.kind.fixed_size()..][..self.length as usize]
    }

    /// Returns the compression of the family that the entry creates; `None`: it removes the family. Requires:
    /// the entry is of that kind.
    pub fn compression(&self) -> Option<Compression> {
        assert!(self.kind == EntryKind::Family);
        Compression::from_number(u8::try_from(self.offset).ok()?)
    }

    /// Returns the bytes of inline data, without a body.
    pub fn data_size(&self) -> u32 {
        if self.kind.has_body() {
            return self.offset;
        }
        if self.kind.is_inline() { (self.checksums.len() as u64 * UNIT_SIZE) as u32 } else { 0 }
    }

    /// Returns the bytes of the journal that an entry without a part table takes: header, padding, data.
    pub fn size_of(kind: EntryKind, checksum_count: usize, sector_size: u32) -> u32 {
        EntryHeader::size_with_table(kind, (checksum_count, 0), sector_size)
    }

    /// Returns the bytes of the journal that an entry with a part table of `table_size` bytes takes.
    pub fn size_with_table(
        kind: EntryKind,
        (checksum_count, table_size): (usize, usize),
        sector_size: u32,
    ) -> u32 {
        let data = if kind.is_inline() { checksum_count as u32 * UNIT_SIZE as u32 } else { 0 };
        EntryHeader::padded_size(kind, (checksum_count, table_size), sector_size) + data
    }

    /// Returns the bytes of the journal that this entry takes.
    pub fn entry_size(&self, sector_size: u32) -> u32 {
        if self.kind.has_body() {
            return self.header_size(sector_size) + self.data_size();
        }
        let counts = (self.checksums.len(), self.table.len());
        EntryHeader::size_with_table(self.kind, counts, sector_size)
    }

    /// Returns the number of rows of the part table; `None`: an entry of this kind cannot have this table.
    fn table_rows(&self) -> Option<u8> {
        let Some(block_size) = self.block_size.filter(|_| self.kind.has_bitmaps()) else {
            return self.table.is_empty().then_some(0);
        };
        table_rows(&self.table, block_size)
    }

    fn flag_bits(&self) -> u8 {
        let EntryFlags { is_copy, is_whole, has_note, has_lost } = self.flags;
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(is_copy, FLAG_COPY)
            | bit(self.replaces.is_some(), FLAG_REPLACES)
            | bit(is_whole, FLAG_WHOLE)
            | bit(has_note, FLAG_NOTE)
            | bit(has_lost, FLAG_LOST)
    }

    /// Appends the header and its body to `bytes`, followed by zeros up to `padded_size`, and returns the
    /// header's checksum. Requires: the header describes the body, and both fit.
    pub fn encode_with_body(
        &self,
        body: &[u8],
        (store_tag, padded_size): (u64, usize),
        bytes: &mut Vec<u8>,
    ) -> Checksum {
        assert!(self.kind.has_body() && body.len() == self.length as usize);
        let start = bytes.len() + self.kind.fixed_size();
        let checksum = self.encode(store_tag, padded_size, bytes);
        bytes[start..start + body.len()].copy_from_slice(body);
        checksum
    }

    /// Appends the header to `bytes`, followed by zeros up to `padded_size`, and returns its checksum.
    /// Requires: the header fits.
    pub fn encode(&self, store_tag: u64, padded_size: usize, bytes: &mut Vec<u8>) -> Checksum {
        assert!(self.checksums.len() <= CHECKSUM_COUNT_MAX);
        let size = self.kind.fixed_size() + 4 * self.checksums.len() + self.table.len();
        assert!(size <= padded_size);
        let rows = self.table_rows().expect("callers check tables before they journal them");
        let start = bytes.len();
        let mut to = Writer { bytes: std::mem::take(bytes) };
        to.bytes.reserve(padded_size);
        to.u32(MAGIC);
        to.u32(0);
        to.u64(store_tag);
        to.u64(self.lsn.get());
        to.u32(self.previous.get());
        to.u8(self.kind as u8);
        to.u8(self.block_size.map_or(0, BlockSize::shift));
        to.u8(self.flag_bits());
        to.u8(rows);
        to.u64(self.durable.get());
        to.u32(self.size);
        to.u32(self.checksums.len() as u32);
        to.key(self.key);
        to.pg(self.pg);
        to.version(self.version);
        to.u32(self.offset);
        to.u32(self.length);
        to.u32(self.location);
        if self.kind.carries_committed() {
            to.version(self.committed);
            to.version(self.replaces.unwrap_or(Version::ZERO));
        }
        if self.kind.has_bitmaps() {
            for set in [&self.units, &self.written, &self.damaged] {
                set.all_words().iter().for_each(|word| to.u64(*word));
            }
        }
        if self.kind.has_body() {
            to.version(self.after);
            to.u32(self.body_checksum.get());
        }
        assert!(to.bytes.len() == start + self.kind.fixed_size());
        for checksum in &self.checksums {
            to.u32(checksum.get());
        }
        to.bytes.extend_from_slice(&self.table);
        let checksum = crc32c(&to.bytes[start + 8..]);
        to.bytes[start + 4..start + 8].copy_from_slice(&checksum.get().to_le_bytes());
        to.bytes.resize(start + padded_size, 0);
        *bytes = to.bytes;
        checksum
    }

    /// Decodes the header at the front of `bytes`. Returns the header and its checksum.
    pub fn decode(
        bytes: &[u8],
        store_tag: u64,
        sector_size: u32,
    ) -> Result<(EntryHeader, Checksum), EntryDecodeError> {
        let mut from = Reader::new(bytes);
        if from.u32() != Some(MAGIC) || bytes.len() < FIXED_SIZE {
            return Err(EntryDecodeError::NotEntry);
        }
        let mut count = Reader::new(&bytes[44..48]);
        let count = count.u32().ok_or(EntryDecodeError::Damaged)? as usize;
        if count > CHECKSUM_COUNT_MAX {
            return Err(EntryDecodeError::Damaged);
        }
        let Some(kind) = EntryKind::new(bytes[28]) else { return Err(EntryDecodeError::Damaged) };
        let table = stored_table_size(bytes).ok_or(EntryDecodeError::Damaged)?;
        let end = kind.fixed_size() + 4 * count + table;
        if bytes.len() < end {
            return Err(EntryDecodeError::NeedMore(end));
        }
        let stored = from.u32().ok_or(EntryDecodeError::Damaged)?;
        let checksum = crc32c(&bytes[8..end]);
        if stored != checksum.get() || from.u64() != Some(store_tag) {
            return Err(EntryDecodeError::Damaged);
        }
        let header = decode_fields(&mut from, count, table).ok_or(EntryDecodeError::Damaged)?;
        if !header.is_sound(sector_size) {
            return Err(EntryDecodeError::Damaged);
        }
        Ok((header, checksum))
    }

    /// Whether the fields are consistent. Callers need not check them again.
    fn is_sound(&self, sector_size: u32) -> bool {
        if self.kind.has_body() && !self.body_fits() {
            return false;
        }
        let count = self.checksums.len();
        let size_fits = match self.kind {
            EntryKind::Pad => {
                self.size >= sector_size && self.size.is_multiple_of(sector_size) && count == 0
            }
            _ => self.size == self.entry_size(sector_size),
        };
        let table_fits = self.table_rows().is_some();
        table_fits && size_fits && self.durable <= self.lsn && self.fields_fit_kind()
    }

    fn fields_fit_kind(&self) -> bool {
        let units = self.checksums.len() as u64 * UNIT_SIZE;
        let in_block = match self.block_size {
            Some(size) => self.offset as u64 + self.length as u64 <= size.bytes(),
            None => false,
        };
        let whole_units = (self.offset as u64).is_multiple_of(UNIT_SIZE)
            && (self.length as u64).is_multiple_of(UNIT_SIZE)
            && self.length > 0;
        let of_block = self.key.is_some() && self.pg.is_some();
        match self.kind {
            EntryKind::Write | EntryKind::WriteLarge => {
                let has_place = self.location != LOCATION_NONE;
                of_block && in_block && whole_units && has_place && self.length as u64 == units
            }
            EntryKind::Zero => of_block && in_block && whole_units && units == 0,
            EntryKind::Delete => of_block && units == 0,
            EntryKind::Note | EntryKind::Recovery | EntryKind::Marks => self.length as u64 <= units,
            EntryKind::Floor | EntryKind::Absolve | EntryKind::Suspect => {
                self.pg.is_some() && units == 0
            }
            EntryKind::Idle | EntryKind::Pad => units == 0,
            EntryKind::Repair | EntryKind::RepairLarge => {
                of_block && in_block && self.bitmaps_fit()
            }
            EntryKind::RepairTombstone | EntryKind::RepairGone => of_block && units == 0,
            EntryKind::Prepare | EntryKind::PrepareLarge => {
                of_block && in_block && self.bitmaps_fit()
            }
            EntryKind::PrepareDelete => of_block && units == 0,
            EntryKind::Skip => self.pg.is_some() && units == 0,
            EntryKind::Settle => {
                let fits = self.length as u64 <= units;
                self.pg.is_some() && fits && (self.flags.has_note || units == 0)
            }
            EntryKind::Batch => units == 0 && self.after < self.version,
            EntryKind::Page => units == 0 && self.after == Version::ZERO,
            EntryKind::Family => {
                let is_number = self.offset == 0 || self.compression().is_some();
                let is_bare = self.key.is_none() && self.block_size.is_none() && units == 0;
                is_bare && is_number && self.length == 0 && self.pg.is_some_and(|pg| pg.number == 0)
            }
        }
    }

    /// Whether the fields of an entry with a body are consistent, and within the limits of such an entry.
    fn body_fits(&self) -> bool {
        self.length as usize <= BODY_SIZE_MAX
            && self.offset as usize <= UNITS_SIZE_MAX
            && u64::from(self.offset).is_multiple_of(UNIT_SIZE)
            && self.block_size.is_some_and(|block_size| block_size <= OBJECT_BLOCK_SIZE_MAX)
            && self.pg.is_some()
            && self.key.is_none()
            && self.location == LOCATION_NONE
    }

    fn bitmaps_fit(&self) -> bool {
        let Some(block_size) = self.block_size else { return false };
        let block = UnitSet::first(block_size.unit_count());
        let fit = self.units.is_within(&block)
            && self.written.is_within(&self.units)
            && self.damaged.is_within(&self.units)
            && self.written.within(&self.damaged).is_empty();
        let has_place = self.location != LOCATION_NONE;
        let count = self.checksums.len();
        let is_span = match self.kind.is_large() {
            true => has_place && count > 0 && (self.offset, self.length) == self.written.span(),
            // The data may be for the place that the block will have when the version is committed.
            false if self.kind == EntryKind::Prepare => (self.offset, self.length) == (0, 0),
            false => {
                let needs_place = count > 0 || !self.damaged.is_empty();
                (self.offset, self.length) == (0, 0) && (has_place || !needs_place)
            }
        };
        fit && self.written.count() as usize == count && is_span
    }
}

/// Returns the size of the part table according to the header at the front of `bytes`; `None`: these fields
/// are invalid. Requires: at least [`FIXED_SIZE`] bytes.
fn stored_table_size(bytes: &[u8]) -> Option<usize> {
    match (bytes[31], BlockSize::from_shift(bytes[29])) {
        (0, _) => Some(0),
        (rows, Some(block_size)) if usize::from(rows) <= TABLE_ROWS_MAX => {
            Some(table_size(block_size, rows))
        }
        _ => None,
    }
}

fn decode_fields(from: &mut Reader, count: usize, table_size: usize) -> Option<EntryHeader> {
    let lsn = Lsn::new(from.u64()?);
    let previous = Checksum::new(from.u32()?);
    let kind = EntryKind::new(from.u8()?)?;
    let block_size = match from.u8()? {
        0 => None,
        shift => Some(BlockSize::from_shift(shift)?),
    };
    let bits = from.u8()?;
    from.u8()?;
    let durable = Lsn::new(from.u64()?);
    let size = from.u32()?;
    from.u32()?;
    let key = from.key()?;
    let pg = from.pg()?;
    let version = from.version()?;
    let (offset, length, location) = (from.u32()?, from.u32()?, from.u32()?);
    let (mut committed, mut replaces) = (Version::ZERO, None);
    if kind.carries_committed() {
        committed = from.version()?;
        let above = from.version()?;
        replaces = (bits & FLAG_REPLACES != 0).then_some(above);
    }
    let flags = EntryFlags {
        is_copy: bits & FLAG_COPY != 0,
        is_whole: bits & FLAG_WHOLE != 0,
        has_note: bits & FLAG_NOTE != 0,
        has_lost: bits & FLAG_LOST != 0,
    };
    if bits & !flags_of(kind) != 0 {
        return None;
    }
    let [mut units, mut written, mut damaged] = [UnitSet::EMPTY; 3];
    if kind.has_bitmaps() {
        let mut set =
            || Some(UnitSet::from_words([from.u64()?, from.u64()?, from.u64()?, from.u64()?]));
        (units, written, damaged) = (set()?, set()?, set()?);
    }
    let (mut after, mut body_checksum) = (Version::ZERO, Checksum::new(0));
    if kind.has_body() {
        after = from.version()?;
        body_checksum = Checksum::new(from.u32()?);
    }
    let mut checksums = Vec::with_capacity(count);
    for _ in 0..count {
        checksums.push(Checksum::new(from.u32()?));
    }
    let table = from.take(table_size)?.to_vec();
    Some(EntryHeader {
        kind,
        lsn,
        previous,
        durable,
        size,
        key,
        block_size,
        pg,
        version,
        offset,
        length,
        location,
        units,
        written,
        damaged,
        committed,
        replaces,
        flags,
        checksums,
        table,
        after,
        body_checksum,
    })
}

/// Returns the flags that entries of this kind may have.
const fn flags_of(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Prepare | EntryKind::PrepareLarge => {
            FLAG_COPY | FLAG_REPLACES | FLAG_WHOLE | FLAG_LOST
        }
        EntryKind::PrepareDelete => FLAG_COPY | FLAG_REPLACES | FLAG_WHOLE,
        EntryKind::Settle | EntryKind::Batch => FLAG_NOTE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    use super::*;

    fn sample() -> EntryHeader {
        let pool = PoolId::new(2).expect("2 is in range");
        EntryHeader {
            kind: EntryKind::Write,
            lsn: Lsn::new(0x1_0000),
            previous: Checksum::new(0xdead_beef),
            durable: Lsn::new(0x8000),
            size: 512 + 8192,
            key: Some(BlockKey {
                pool,
                hash: 0x1234_5678,
                image: ImageId::FIRST,
                stripe: StripeIndex::new(9),
            }),
            block_size: Some(BlockSize::DEFAULT),
            pg: Some(PgId { pool, number: 0x1f }),
            version: Version { epoch: Epoch::new(3), counter: 77 },
            offset: 4096,
            length: 8192,
            location: 8,
            units: UnitSet::EMPTY,
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            committed: Version::ZERO,
            replaces: None,
            flags: EntryFlags::default(),
            checksums: vec![Checksum::new(1), Checksum::new(2)],
            table: Vec::new(),
            after: Version::ZERO,
            body_checksum: Checksum::new(0),
        }
    }

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(3), counter }
    }

    fn prepared() -> EntryHeader {
        EntryHeader {
            kind: EntryKind::Prepare,
            location: LOCATION_NONE,
            committed: version(70),
            replaces: Some(version(75)),
            flags: EntryFlags { is_copy: true, has_lost: true, ..EntryFlags::default() },
            ..repair()
        }
    }

    fn large_prepared() -> EntryHeader {
        EntryHeader {
            kind: EntryKind::PrepareLarge,
            committed: version(70),
            flags: EntryFlags { is_whole: true, ..EntryFlags::default() },
            ..large_repair()
        }
    }

    /// Returns a part table with this many rows.
    fn table(rows: u8) -> Vec<u8> {
        let mut table = vec![0; table_size(BlockSize::DEFAULT, rows)];
        for (number, row) in (1u8..).zip(table.chunks_exact_mut(20)) {
            (row[0], row[4], row[12]) = (3, 40 + number, number);
        }
        table
    }

    fn prepared_parity() -> EntryHeader {
        EntryHeader { table: table(4), ..prepared() }
    }

    /// Returns an entry of this kind without data.
    fn bare(kind: EntryKind) -> EntryHeader {
        let committed = if kind.carries_committed() { version(70) } else { Version::ZERO };
        EntryHeader { kind, size: 512, committed, checksums: Vec::new(), ..sample() }
    }

    fn set(units: &[u32]) -> UnitSet {
        let mut set = UnitSet::EMPTY;
        units.iter().for_each(|unit| set.insert(*unit));
        set
    }

    fn repair() -> EntryHeader {
        EntryHeader {
            kind: EntryKind::Repair,
            offset: 0,
            length: 0,
            units: set(&[1, 4, 9, 20]),
            written: set(&[4, 9]),
            damaged: set(&[20]),
            ..sample()
        }
    }

    fn large_repair() -> EntryHeader {
        EntryHeader {
            kind: EntryKind::RepairLarge,
            size: 512,
            offset: 4 << 12,
            length: 6 << 12,
            ..repair()
        }
    }

    fn encoded(entry: &EntryHeader) -> Vec<u8> {
        let mut bytes = Vec::new();
        entry.encode(42, 512, &mut bytes);
        bytes
    }

    #[test]
    fn bytes_are_frozen() {
        super::super::golden("entry.1", &encoded(&sample()));
        super::super::golden("entry-repair.2", &encoded(&large_repair()));
        super::super::golden("entry-prepare.4", &encoded(&prepared()));
        super::super::golden("entry-prepare-table.4", &encoded(&prepared_parity()));
    }

    fn family() -> EntryHeader {
        let pg = Some(PgId { pool: PoolId::FIRST, number: 0 });
        let offset = u32::from(Compression::Zstd.number());
        let bare = bare(EntryKind::Family);
        EntryHeader { pg, key: None, block_size: None, offset, length: 0, ..bare }
    }

    #[test]
    fn entries_of_families_name_a_compression_or_none() {
        super::super::golden("entry-family.5", &encoded(&family()));
        let gone = EntryHeader { offset: 0, ..family() };
        for (entry, compression) in [(family(), Some(Compression::Zstd)), (gone, None)] {
            let (decoded, _) = EntryHeader::decode(&encoded(&entry), 42, 512).expect("it is whole");
            assert_eq!(decoded, entry);
            assert_eq!(decoded.compression(), compression);
        }
        let wrong: [fn(&mut EntryHeader); 5] = [
            |entry| entry.offset = 9,
            |entry| entry.offset = 256 + 1,
            |entry| entry.pg = None,
            |entry| entry.pg = sample().pg,
            |entry| entry.length = 1,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let mut entry = family();
            change(&mut entry);
            let decoded = EntryHeader::decode(&encoded(&entry), 42, 512);
            assert_eq!(decoded, Err(EntryDecodeError::Damaged), "change {index}");
        }
    }

    #[test]
    fn units_of_data_are_known_by_their_places() {
        let units = |entry: &EntryHeader| entry.data_units().collect::<Vec<u32>>();
        let positions = |entry: &EntryHeader| entry.data_positions().collect::<Vec<u32>>();
        assert_eq!((units(&sample()), positions(&sample())), (vec![1, 2], vec![0, 1]));
        assert_eq!((units(&repair()), positions(&repair())), (vec![4, 9], vec![0, 1]));
        assert_eq!((units(&large_repair()), positions(&large_repair())), (vec![4, 9], vec![0, 5]));
    }

    #[test]
    fn encoding_and_decoding_are_inverse() {
        let gone = EntryHeader {
            kind: EntryKind::RepairGone,
            size: 512,
            checksums: Vec::new(),
            ..sample()
        };
        let settle = EntryHeader {
            flags: EntryFlags { has_note: true, ..EntryFlags::default() },
            length: 0,
            ..bare(EntryKind::Settle)
        };
        let marks = EntryHeader { length: 0, ..bare(EntryKind::Marks) };
        let others = [bare(EntryKind::PrepareDelete), bare(EntryKind::Skip), settle, marks];
        let with_data = [sample(), repair(), large_repair(), gone, prepared(), large_prepared()];
        let of_parity = [repair(), large_repair(), prepared(), large_prepared()];
        let of_parity = of_parity.map(|entry| EntryHeader { table: table(4), ..entry });
        let with_data = with_data.into_iter().chain(of_parity);
        for entry in with_data.chain(others) {
            let (decoded, _) = EntryHeader::decode(&encoded(&entry), 42, 512).expect("it is whole");
            assert_eq!(decoded, entry);
        }
    }

    #[test]
    fn a_part_table_counts_in_the_size_of_its_entry() {
        let kind = EntryKind::Prepare;
        for (rows, units, header_size) in [(0, 32, 512), (4, 32, 512), (4, 54, 512), (16, 32, 1024)]
        {
            let counts = (units, table(rows).len());
            let size = EntryHeader::size_with_table(kind, counts, 512);
            assert_eq!(size as usize, header_size + units * 4096, "{rows} rows");
        }
        let longest = (256, table_size(BlockSize::MAX, 16));
        assert_eq!(EntryHeader::size_with_table(EntryKind::PrepareLarge, longest, 512), 2048);
        assert_eq!(EntryHeader::size_with_table(EntryKind::PrepareLarge, longest, 4096), 4096);
    }

    #[test]
    fn impossible_part_tables_are_refused() {
        // Corrupt the number of rows, the block size, or the bit of a unit beyond the block in the first row.
        let unit = FIXED_SIZE + COMMITTED_SIZE + BITMAPS_SIZE + 2 * 4 + 12 + 4;
        for (at, byte) in [(31, 0), (31, 3), (31, 5), (31, 17), (31, 255), (29, 0), (unit, 1)] {
            let mut bytes = encoded(&prepared_parity());
            bytes[at] = byte;
            let rows = if at == 31 { usize::from(byte).min(16) } else { 4 };
            let rows = if at == 29 { 0 } else { rows };
            let end = FIXED_SIZE + COMMITTED_SIZE + BITMAPS_SIZE + 2 * 4 + 20 * rows;
            bytes.resize(4096, 0);
            let checksum = crc32c(&bytes[8..end]);
            bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
            let decoded = EntryHeader::decode(&bytes, 42, 512);
            // With another number of rows that still fits the sector, the entry is different but valid.
            let is_whole = at == 31 && byte < 6;
            assert_eq!(decoded.is_ok(), is_whole, "byte {at}: {byte}");
        }
        for kind in [EntryKind::Write, EntryKind::Delete, EntryKind::Skip, EntryKind::Idle] {
            let entry = if kind == EntryKind::Write { sample() } else { bare(kind) };
            let mut bytes = encoded(&entry);
            bytes[31] = 1;
            let end = kind.fixed_size() + 4 * entry.checksums.len() + 20;
            let checksum = crc32c(&bytes[8..end]);
            bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
            let decoded = EntryHeader::decode(&bytes, 42, 512);
            assert_eq!(decoded, Err(EntryDecodeError::Damaged), "{kind:?}");
        }
    }

    #[test]
    fn another_stores_entry_does_not_fit() {
        let bytes = encoded(&sample());
        assert_eq!(EntryHeader::decode(&bytes, 43, 512), Err(EntryDecodeError::Damaged));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let bytes = encoded(&sample());
        for at in 0..104 {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(EntryHeader::decode(&changed, 42, 512).is_err(), "byte {at}");
        }
        assert_eq!(
            EntryHeader::decode(&bytes[..100], 42, 512),
            Err(EntryDecodeError::NeedMore(104))
        );
    }

    #[test]
    fn impossible_fields_are_refused() {
        let wrong: [fn(&mut EntryHeader); 6] = [
            |entry| entry.location = LOCATION_NONE,
            |entry| entry.durable = entry.lsn.advance(1),
            |entry| entry.size += 512,
            |entry| entry.offset = 124 << 10,
            |entry| entry.key = None,
            |entry| entry.length = 4096,
        ];
        for change in wrong {
            let mut entry = sample();
            change(&mut entry);
            let bytes = encoded(&entry);
            assert_eq!(EntryHeader::decode(&bytes, 42, 512), Err(EntryDecodeError::Damaged));
        }
        let wrong: [fn(&mut EntryHeader); 4] = [
            |entry| entry.flags.is_copy = true,
            |entry| entry.flags.has_lost = true,
            |entry| entry.flags.has_note = true,
            |entry| entry.replaces = Some(Version::ZERO),
        ];
        for change in wrong {
            let mut entry = sample();
            change(&mut entry);
            let decoded = EntryHeader::decode(&encoded(&entry), 42, 512);
            assert_eq!(decoded, Err(EntryDecodeError::Damaged));
        }
        let wrong: [fn(&mut EntryHeader); 8] = [
            |entry| entry.units.insert(32),
            |entry| entry.written.insert(5),
            |entry| entry.written.remove(9),
            |entry| entry.damaged.insert(9),
            |entry| entry.damaged.insert(2),
            |entry| entry.location = LOCATION_NONE,
            |entry| entry.length += 4096,
            |entry| entry.offset = 4096,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            for mut entry in [repair(), large_repair(), prepared(), large_prepared()] {
                let had_place = entry.location != LOCATION_NONE;
                change(&mut entry);
                if !had_place && entry == prepared() {
                    continue;
                }
                let bytes = encoded(&entry);
                let decoded = EntryHeader::decode(&bytes, 42, 512);
                assert_eq!(decoded, Err(EntryDecodeError::Damaged), "change {index}");
            }
        }
    }
}
