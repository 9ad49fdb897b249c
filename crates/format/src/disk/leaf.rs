//! Leaves of a checkpoint: records of blocks in key order.
//!
//! ```text
//!   record:  key 16 | version 12 | location 4 | PG 2 | block size shift 1 | flags 1
//!            and, with a location:  written, 1 bit per unit | damaged, 1 bit per unit | checksum, 4 per unit
//!            and, of a parity part:  its part table
//!   flags:   bit 0: a tombstone   bits 3 to 7: rows of the part table, 0 to 16
//! ```
//!
//! A leaf is kept in memory as the bytes that are on the disk, and its records are read in place: a
//! checkpoint writes most records of a leaf again unchanged.
//!
//! Invariants
//!   1. A [`LeafPage`] holds only complete records with fields in range, in key order.
//!   2. Every reference to a leaf contains its checksum, so older content of the page never matches.

use base::{BlockSize, Checksum, Version};

use super::bytes::{Reader, Writer};
use super::key::{BlockKey, LOCATION_NONE};
use super::page::{HEADER_SIZE, PAGE_SIZE, PageDecodeError, PageRef, header, open, seal};
use super::part_table::{TABLE_ROWS_MAX, table_rows, table_size};
use super::unit_set::UnitSet;

const MAGIC: u32 = 0x464c_4a41;
/// Bytes of records that fit into a leaf.
pub const LEAF_CAPACITY: usize = PAGE_SIZE - HEADER_SIZE;
const RECORD_FIXED_SIZE: usize = 36;
/// Where the number of records is stored in the page.
const COUNT_OFFSET: usize = HEADER_SIZE - 4;

/// The record of one block, to be put into a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafRecord {
    /// The key of the block.
    pub key: BlockKey,
    /// Number of the PG that wrote the version.
    pub pg: u16,
    /// The version of the block.
    pub version: Version,
    /// The size of the block.
    pub block_size: BlockSize,
    /// Whether the block is deleted.
    pub tombstone: bool,
    /// Location of the block's data; `LOCATION_NONE`: the block is all zeros.
    pub location: u32,
    /// Units that hold data. Empty without a location.
    pub written: UnitSet,
    /// Written units that lost their data.
    pub damaged: UnitSet,
    /// The checksum of each unit of the block; empty without a location. Checksums of units without data have
    /// no meaning.
    pub checksums: Vec<Checksum>,
    /// The part table of a parity part. Empty: the block has no table, or the table is lost.
    pub table: Vec<u8>,
}

impl LeafRecord {
    /// Returns the bytes that the record takes in a leaf.
    pub fn size(&self) -> usize {
        record_size(self.block_size, self.location != LOCATION_NONE) + self.table.len()
    }
}

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_ROWS_SHIFT: u32 = 3;

/// Packs the flags of a record into a byte: whether the block is deleted, and how many rows its part table
/// has.
pub const fn pack_flags(tombstone: bool, table_rows: u8) -> u8 {
    (if tombstone { FLAG_TOMBSTONE } else { 0 }) | table_rows << FLAG_ROWS_SHIFT
}

/// Unpacks the flags of a record. `None`: the byte is invalid.
pub const fn unpack_flags(flags: u8) -> Option<(bool, u8)> {
    let (tombstone, rows) = (flags & FLAG_TOMBSTONE != 0, flags >> FLAG_ROWS_SHIFT);
    let is_known = flags == pack_flags(tombstone, rows);
    match is_known && rows as usize <= TABLE_ROWS_MAX && (rows == 0 || !tombstone) {
        true => Some((tombstone, rows)),
        false => None,
    }
}

/// Returns the bytes that a record without a part table takes in a leaf.
pub const fn record_size(block_size: BlockSize, has_location: bool) -> usize {
    if !has_location {
        return RECORD_FIXED_SIZE;
    }
    let units = block_size.unit_count() as usize;
    RECORD_FIXED_SIZE + 2 * bitmap_size(units) + 4 * units
}

const fn bitmap_size(units: usize) -> usize {
    units.div_ceil(8)
}

/// A leaf: records in key order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafPage {
    /// The page as it is on the disk.
    bytes: Box<[u8]>,
    /// Where each record begins, and where the last one ends.
    starts: Vec<u16>,
}

impl LeafPage {
    /// Decodes a leaf, and verifies it against the reference to it.
    pub fn decode(
        bytes: &[u8],
        store_tag: u64,
        page: PageRef,
    ) -> Result<LeafPage, PageDecodeError> {
        let (_, mut from) =
            open(bytes, MAGIC, store_tag, page.page, page.checksum).ok_or(PageDecodeError)?;
        let starts = find_records(&mut from).ok_or(PageDecodeError)?;
        let leaf = LeafPage { bytes: bytes.into(), starts };
        let keys = leaf.records().map(|record| record.key());
        match keys.is_sorted_by(|before, next| before < next) {
            true => Ok(leaf),
            false => Err(PageDecodeError),
        }
    }

    /// Returns the page as it is on the disk.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the records in key order.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = StoredRecord<'_>> {
        self.starts.windows(2).map(|ends| self.record(ends[0], ends[1]))
    }

    fn record(&self, start: u16, end: u16) -> StoredRecord<'_> {
        StoredRecord { bytes: &self.bytes[start as usize..end as usize] }
    }

    /// Returns the record of a block.
    pub fn find(&self, key: &BlockKey) -> Option<StoredRecord<'_>> {
        let behind = self.starts.len() - 1;
        let at = self.starts[..behind].partition_point(|start| {
            let start = *start as usize;
            StoredRecord { bytes: &self.bytes[start..start + RECORD_FIXED_SIZE] }.key() < *key
        });
        let record = (at < behind).then(|| self.record(self.starts[at], self.starts[at + 1]))?;
        (record.key() == *key).then_some(record)
    }
}

/// Returns where the records in `from` begin, and where the last one ends; `None` if one of them is
/// invalid.
fn find_records(from: &mut Reader) -> Option<Vec<u16>> {
    let count = from.u16()?;
    from.u16()?;
    let mut starts = Vec::with_capacity(count as usize + 1);
    let mut at = HEADER_SIZE;
    for _ in 0..count {
        starts.push(at as u16);
        let fixed = from.take(RECORD_FIXED_SIZE)?;
        let mut fields = Reader::new(fixed);
        fields.key()??;
        fields.version()?;
        let location = fields.u32()?;
        fields.u16()?;
        let block_size = BlockSize::from_shift(fields.u8()?)?;
        let (_, rows) = unpack_flags(fields.u8()?)?;
        let size = record_size(block_size, location != LOCATION_NONE);
        from.take(size - RECORD_FIXED_SIZE)?;
        let table = from.take(table_size(block_size, rows))?;
        table_rows(table, block_size)?;
        at += size + table.len();
    }
    starts.push(at as u16);
    Some(starts)
}

/// A record in a leaf.
#[derive(Clone, Copy)]
pub struct StoredRecord<'a> {
    bytes: &'a [u8],
}

impl<'a> StoredRecord<'a> {
    fn u32_at(&self, at: usize) -> u32 {
        let bytes = self.bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    }

    /// Returns the key of the block.
    pub fn key(&self) -> BlockKey {
        let key = Reader::new(self.bytes).key().flatten();
        key.expect("a leaf holds whole records")
    }

    /// Returns the version of the block.
    pub fn version(&self) -> Version {
        let version = Reader::new(&self.bytes[16..]).version();
        version.expect("a leaf holds whole records")
    }

    /// Returns the location of the block's data; `LOCATION_NONE`: the block is all zeros.
    pub fn location(&self) -> u32 {
        self.u32_at(28)
    }

    /// Returns the number of the PG that wrote the version.
    pub fn pg(&self) -> u16 {
        u16::from_le_bytes([self.bytes[32], self.bytes[33]])
    }

    /// Returns the block's size.
    pub fn block_size(&self) -> BlockSize {
        BlockSize::from_shift(self.bytes[34]).expect("a leaf holds whole records")
    }

    /// Whether the block is deleted.
    pub fn tombstone(&self) -> bool {
        self.flags().0
    }

    fn flags(&self) -> (bool, u8) {
        unpack_flags(self.bytes[35]).expect("a leaf holds whole records")
    }

    /// Returns the number of rows of the part table; 0: the block has no table.
    pub fn table_rows(&self) -> u8 {
        self.flags().1
    }

    /// Returns the part table; empty: the block has none, or it is lost.
    pub fn table(&self) -> &'a [u8] {
        let size = table_size(self.block_size(), self.table_rows());
        &self.bytes[self.bytes.len() - size..]
    }

    /// Returns the bytes that the record takes in a leaf.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the state of a unit; `None` if the unit holds no data. Requires: the unit is within the
    /// block.
    pub fn unit(&self, unit: u32) -> Option<StoredUnit> {
        assert!(unit < self.block_size().unit_count());
        let units = self.block_size().unit_count() as usize;
        let bit = |start: usize| self.bytes[start + unit as usize / 8] & (1 << (unit % 8)) != 0;
        let (written, damaged) = (RECORD_FIXED_SIZE, RECORD_FIXED_SIZE + bitmap_size(units));
        if self.location() == LOCATION_NONE || !bit(written) {
            return None;
        }
        if bit(damaged) {
            return Some(StoredUnit::Damaged);
        }
        let checksums = RECORD_FIXED_SIZE + 2 * bitmap_size(units);
        let checksum = self.u32_at(checksums + 4 * unit as usize);
        Some(StoredUnit::Whole(Checksum::new(checksum)))
    }
}

impl From<StoredRecord<'_>> for LeafRecord {
    fn from(stored: StoredRecord<'_>) -> LeafRecord {
        let mut record = LeafRecord {
            key: stored.key(),
            pg: stored.pg(),
            version: stored.version(),
            block_size: stored.block_size(),
            tombstone: stored.tombstone(),
            location: stored.location(),
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            checksums: Vec::new(),
            table: stored.table().to_vec(),
        };
        if record.location != LOCATION_NONE {
            let size = bitmap_size(record.block_size.unit_count() as usize);
            let units = &stored.bytes[RECORD_FIXED_SIZE..stored.bytes.len() - record.table.len()];
            let (bitmaps, checksums) = units.split_at(2 * size);
            record.written = unit_set(&bitmaps[..size]);
            record.damaged = unit_set(&bitmaps[size..]);
            let words = checksums.as_chunks().0.iter();
            record.checksums = words.map(|word| Checksum::new(u32::from_le_bytes(*word))).collect();
        }
        record
    }
}

fn unit_set(bitmap: &[u8]) -> UnitSet {
    let mut words = [0; 4];
    for (index, byte) in bitmap.iter().enumerate() {
        words[index / 8] |= (*byte as u64) << (index % 8 * 8);
    }
    UnitSet::from_words(words)
}

/// A unit that holds data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredUnit {
    /// The unit is intact. Contains the checksum of its data.
    Whole(Checksum),
    /// The data of the unit is lost.
    Damaged,
}

/// Builds a leaf. Requires: records are added in key order, and fit.
pub struct LeafWriter {
    page: u32,
    to: Writer,
    starts: Vec<u16>,
}

impl LeafWriter {
    /// Begins a leaf of the checkpoint `sequence`, without records.
    pub fn new(store_tag: u64, sequence: u64, page: u32) -> LeafWriter {
        let mut to = header(MAGIC, store_tag, sequence, page);
        to.u32(0);
        assert!(to.bytes.len() == HEADER_SIZE);
        LeafWriter { page, to, starts: Vec::new() }
    }

    /// Adds an unchanged record of another leaf.
    pub fn keep(&mut self, record: StoredRecord<'_>) {
        self.starts.push(self.to.bytes.len() as u16);
        self.to.bytes.extend_from_slice(record.bytes);
    }

    /// Adds a record.
    pub fn put(&mut self, record: &LeafRecord) {
        self.starts.push(self.to.bytes.len() as u16);
        encode_record(&mut self.to, record);
    }

    /// Finishes the leaf. Returns the leaf and a reference to it. Requires: the leaf has records, and they
    /// fit.
    pub fn finish(self) -> (LeafPage, PageRef) {
        let LeafWriter { page, mut to, mut starts } = self;
        assert!(!starts.is_empty());
        assert!(to.bytes.len() <= PAGE_SIZE);
        let count = starts.len() as u16;
        to.bytes[COUNT_OFFSET..COUNT_OFFSET + 2].copy_from_slice(&count.to_le_bytes());
        starts.push(to.bytes.len() as u16);
        let used = (to.bytes.len() - HEADER_SIZE) as u16;
        let (bytes, checksum) = seal(to);
        (LeafPage { bytes: bytes.into(), starts }, PageRef { page, checksum, used })
    }
}

fn encode_record(to: &mut Writer, record: &LeafRecord) {
    to.key(Some(record.key));
    to.version(record.version);
    to.u32(record.location);
    to.u16(record.pg);
    to.u8(record.block_size.shift());
    let rows = table_rows(&record.table, record.block_size);
    to.u8(pack_flags(
        record.tombstone,
        rows.expect("tables are checked before they are journaled"),
    ));
    match record.location {
        LOCATION_NONE => assert!(record.checksums.is_empty()),
        _ => encode_units(to, record),
    }
    to.bytes.extend_from_slice(&record.table);
}

fn encode_units(to: &mut Writer, record: &LeafRecord) {
    let units = record.block_size.unit_count() as usize;
    assert!(record.checksums.len() == units);
    for set in [&record.written, &record.damaged] {
        for word in set.words(units as u32) {
            let bytes = word.to_le_bytes();
            to.bytes.extend_from_slice(&bytes[..bitmap_size(units).min(8)]);
        }
    }
    for checksum in &record.checksums {
        to.u32(checksum.get());
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    use super::*;

    fn key(hash: u32) -> BlockKey {
        let pool = PoolId::new(1).expect("1 is in range");
        BlockKey { pool, hash, image: ImageId::FIRST, stripe: StripeIndex::new(hash + 1) }
    }

    fn samples() -> Vec<LeafRecord> {
        let version = Version { epoch: Epoch::new(2), counter: 40 };
        let mut written = UnitSet::first(9);
        written.remove(3);
        let mut damaged = UnitSet::EMPTY;
        damaged.insert(8);
        let data = LeafRecord {
            key: key(5),
            pg: 7,
            version,
            block_size: BlockSize::DEFAULT,
            tombstone: false,
            location: 24,
            written,
            damaged,
            checksums: (0..32).map(Checksum::new).collect(),
            table: Vec::new(),
        };
        let tombstone = LeafRecord {
            key: key(6),
            tombstone: true,
            location: LOCATION_NONE,
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            checksums: Vec::new(),
            ..data.clone()
        };
        vec![data, tombstone]
    }

    /// Returns records of two parity parts, one with data and one without a place, and of a data part between
    /// them.
    fn parity_samples() -> Vec<LeafRecord> {
        let [data, mut empty] = samples().try_into().expect("two");
        let mut table = vec![0; table_size(BlockSize::DEFAULT, 4)];
        for (number, row) in (1u8..).zip(table.chunks_exact_mut(20)) {
            (row[0], row[4], row[12]) = (2, 40 - number, number);
        }
        empty.tombstone = false;
        vec![
            LeafRecord { table: table.clone(), ..data.clone() },
            LeafRecord { key: key(6), ..data },
            LeafRecord { key: key(7), table, ..empty },
        ]
    }

    fn leaf(records: &[LeafRecord], sequence: u64) -> (LeafPage, PageRef) {
        let mut writer = LeafWriter::new(42, sequence, 9);
        records.iter().for_each(|record| writer.put(record));
        writer.finish()
    }

    /// Asserts that a record in a leaf is equal to the given one.
    fn assert_same(stored: StoredRecord, record: &LeafRecord) {
        assert_eq!(stored.key(), record.key);
        assert_eq!(stored.version(), record.version);
        assert_eq!(stored.location(), record.location);
        assert_eq!(stored.pg(), record.pg);
        assert_eq!(stored.block_size(), record.block_size);
        assert_eq!(stored.tombstone(), record.tombstone);
        assert_eq!(stored.size(), record.size());
        assert_eq!(stored.table(), record.table);
        assert_eq!(LeafRecord::from(stored), *record);
        for unit in 0..record.block_size.unit_count() {
            let expected = match record.damaged.contains(unit) {
                true => Some(StoredUnit::Damaged),
                false => record
                    .written
                    .contains(unit)
                    .then(|| StoredUnit::Whole(record.checksums[unit as usize])),
            };
            assert_eq!(stored.unit(unit), expected, "unit {unit}");
        }
    }

    #[test]
    fn leaf_bytes_are_frozen() {
        let (made, page) = leaf(&samples(), 11);
        super::super::golden("leaf.1", made.bytes());
        let read = LeafPage::decode(made.bytes(), 42, page).expect("it is whole");
        assert_eq!(read, made);
        for (stored, record) in read.records().zip(&samples()) {
            assert_same(stored, record);
        }
        assert_same(read.find(&key(6)).expect("it is there"), &samples()[1]);
        assert!([key(4), key(7)].iter().all(|key| read.find(key).is_none()));
    }

    #[test]
    fn leaf_bytes_with_part_tables_are_frozen() {
        let (made, page) = leaf(&parity_samples(), 11);
        super::super::golden("leaf-table.4", made.bytes());
        let read = LeafPage::decode(made.bytes(), 42, page).expect("it is whole");
        assert_eq!(read, made);
        for (stored, record) in read.records().zip(&parity_samples()) {
            assert_same(stored, record);
        }
        assert_same(read.find(&key(7)).expect("it is there"), &parity_samples()[2]);
        let sizes: Vec<usize> = read.records().map(|record| record.size()).collect();
        assert_eq!(sizes, [172 + 80, 172, 36 + 80]);
    }

    #[test]
    fn a_leaf_holds_two_of_the_largest_records() {
        let record = |hash| LeafRecord {
            key: key(hash),
            block_size: BlockSize::MAX,
            checksums: vec![Checksum::new(1); 256],
            table: vec![1; table_size(BlockSize::MAX, 16)],
            ..samples().remove(0)
        };
        let (made, page) = leaf(&[record(1), record(2)], 11);
        assert_eq!(usize::from(page.used), 2 * 1828);
        let read = LeafPage::decode(made.bytes(), 42, page).expect("it is whole");
        assert_same(read.records().next().expect("two"), &record(1));
    }

    #[test]
    fn flags_are_tombstones_or_up_to_sixteen_rows() {
        for flags in 0..=u8::MAX {
            let rows = flags >> 3;
            let is_valid = flags & 0b110 == 0 && rows <= 16 && (flags & 1 == 0 || rows == 0);
            assert_eq!(unpack_flags(flags), is_valid.then_some((flags & 1 == 1, rows)), "{flags}");
        }
    }

    #[test]
    fn impossible_part_tables_are_refused_though_the_checksum_fits() {
        let table = HEADER_SIZE + record_size(BlockSize::DEFAULT, true);
        let changes: [fn(&mut u8); 3] =
            [|flags| *flags = 17 << 3, |flags| *flags |= 1, |flags| *flags |= 2];
        for change in changes {
            let (made, page) = leaf(&parity_samples(), 11);
            let mut bytes = made.bytes().to_vec();
            change(&mut bytes[HEADER_SIZE + 35]);
            refused(bytes, page);
        }
        // Set the bit of a unit beyond the block in the first row.
        let (made, page) = leaf(&parity_samples(), 11);
        let mut bytes = made.bytes().to_vec();
        bytes[table + 12 + 4] = 1;
        refused(bytes, page);
    }

    fn refused(mut bytes: Vec<u8>, page: PageRef) {
        let checksum = base::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
        let page = PageRef { checksum, ..page };
        assert_eq!(LeafPage::decode(&bytes, 42, page), Err(PageDecodeError));
    }

    #[test]
    fn kept_records_are_the_same_bytes() {
        let (made, page) = leaf(&parity_samples(), 11);
        let mut writer = LeafWriter::new(42, 11, 9);
        made.records().for_each(|record| writer.keep(record));
        assert_eq!(writer.finish(), (made, page));
        let (made, page) = leaf(&samples(), 11);
        let mut writer = LeafWriter::new(42, 11, 9);
        made.records().for_each(|record| writer.keep(record));
        assert_eq!(writer.finish(), (made, page));
    }

    #[test]
    fn records_have_the_size_that_is_counted() {
        for shift in 14..=20 {
            let block_size = BlockSize::from_shift(shift).expect("in range");
            let units = block_size.unit_count();
            let mut record = samples().remove(0);
            record.block_size = block_size;
            record.checksums = vec![Checksum::new(1); units as usize];
            record.written = UnitSet::first(units);
            record.damaged = UnitSet::EMPTY;
            let (made, page) = leaf(std::slice::from_ref(&record), 11);
            assert_eq!(page.used as usize, record_size(block_size, true));
            let read = LeafPage::decode(made.bytes(), 42, page).expect("it is whole");
            assert_same(read.records().next().expect("one"), &record);
        }
    }

    #[test]
    fn another_content_of_the_place_does_not_fit() {
        let (_, page) = leaf(&samples(), 11);
        let (older, _) = leaf(&samples(), 10);
        assert_eq!(LeafPage::decode(older.bytes(), 42, page), Err(PageDecodeError));
    }

    #[test]
    fn impossible_records_are_refused_though_the_checksum_fits() {
        let changes: [fn(&mut [u8]); 4] = [
            // Set a record count that is too high, an invalid block size, invalid flags, and no pool.
            |bytes| bytes[COUNT_OFFSET] = 200,
            |bytes| bytes[HEADER_SIZE + 34] = 60,
            |bytes| bytes[HEADER_SIZE + 35] = 2,
            |bytes| bytes[HEADER_SIZE..HEADER_SIZE + 4].fill(0),
        ];
        for change in changes {
            let (made, page) = leaf(&samples(), 11);
            let mut bytes = made.bytes().to_vec();
            change(&mut bytes);
            let checksum = base::crc32c(&bytes[8..]);
            bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
            let page = PageRef { checksum, ..page };
            assert_eq!(LeafPage::decode(&bytes, 42, page), Err(PageDecodeError));
        }
        let mut backwards = samples();
        backwards.reverse();
        let (made, page) = leaf(&backwards, 11);
        assert_eq!(LeafPage::decode(made.bytes(), 42, page), Err(PageDecodeError));
    }
}
