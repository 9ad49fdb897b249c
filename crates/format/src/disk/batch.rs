//! The body of an entry of an object pool: what a batch or page changes. See `docs/internals/objects.md`.
//!
//! ```text
//!   section   number (1) | length (4) | content        in this order, each at most once, none empty
//!   1 records   for each:  what (1) | key length (2) | key | put: value length (4) | value
//!                                                          range: length (2) | first key behind it
//!   2 blocks    for each:  what (1) | hash, image, stripe (12) | version (12) | location (4) | words of units (8 each)
//!                          | a checksum (4) for each unit with data
//!   3 note      number of its key (4) | bytes
//! ```
//!
//! Invariants
//!   1. A body has one encoding: whatever decodes, encodes to the same bytes.
//!   2. What decodes is within the limits of the engine, and names only units of blocks of the pool's size.
//!   3. Lines of one block lie one behind the other, and no unit is in two of them.

use std::collections::BTreeSet;

use base::{BlockSize, Checksum, PgId, UNIT_SIZE, Version, crc32c};

use super::bytes::{Reader, Writer};
use super::entry::{EntryHeader, EntryKind};
use super::key::{BlockKey, LOCATION_NONE, NoteKey};
use super::unit_set::UnitSet;
use crate::engine::Change;

/// The largest body, in bytes.
pub const BODY_SIZE_MAX: usize = 5 << 18;
/// The largest data of units in the journal, in bytes.
pub const UNITS_SIZE_MAX: usize = 1 << 19;
/// The largest block of an object pool.
pub const OBJECT_BLOCK_SIZE_MAX: BlockSize = BlockSize::DEFAULT;

const _: () = assert!(OBJECT_BLOCK_SIZE_MAX.bytes() == 128 << 10);

const SECTION_RECORDS: u8 = 1;
const SECTION_BLOCKS: u8 = 2;
const SECTION_NOTE: u8 = 3;
/// Size of a section's number and length, in bytes.
const SECTION_HEADER_SIZE: usize = 5;

/// What a batch or page changes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Body {
    /// Changes of records, in order.
    pub records: Vec<Change>,
    /// Changes of blocks, in order. The data of units in the journal is behind the body, in the same order.
    pub blocks: Vec<BlockChange>,
    /// A note of the PG, with its key: it is stored with the changes or not at all.
    pub note: Option<(NoteKey, Vec<u8>)>,
}

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BlockAction {
    /// The units have data, which is in the journal, behind the body.
    Units = 1,
    /// The units have data, which is at `location`, each unit at its own offset; the block holds nothing
    /// else.
    UnitsAtPlace = 2,
    /// The units are zeros.
    Zeros = 3,
    /// The block is gone, without a tombstone.
    Gone = 4,
    /// The data of the units is lost, at the source, too.
    Damaged = 5,
}

impl BlockAction {
    fn new(number: u8) -> Option<BlockAction> {
        use BlockAction::*;
        [Units, UnitsAtPlace, Zeros, Gone, Damaged]
            .into_iter()
            .find(|action| *action as u8 == number)
    }

    /// Whether the units have data.
    pub const fn has_data(self) -> bool {
        matches!(self, BlockAction::Units | BlockAction::UnitsAtPlace)
    }
}

/// A change of one block. A block may have several, for different units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockChange {
    /// What happens.
    pub action: BlockAction,
    /// The block.
    pub key: BlockKey,
    /// The version that the block has then: that of the operation; in a page or forward, that at its source.
    pub version: Version,
    /// The place that this entry allocated for the block; `LOCATION_NONE`: none.
    pub location: u32,
    /// The units that change.
    pub units: UnitSet,
    /// If the units have data, one checksum for each of them.
    pub checksums: Vec<Checksum>,
}

impl BlockChange {
    /// Returns the size of the data that is in the journal, behind the body, in bytes.
    pub fn size_here(&self) -> usize {
        let is_here = self.action == BlockAction::Units;
        if is_here { self.checksums.len() * UNIT_SIZE as usize } else { 0 }
    }

    fn is_sound(&self, block_size: BlockSize) -> bool {
        let checksum_count = if self.action.has_data() { self.units.count() as usize } else { 0 };
        let place_fits = match self.action {
            BlockAction::Units | BlockAction::Damaged => true,
            BlockAction::UnitsAtPlace => self.location != LOCATION_NONE,
            BlockAction::Zeros | BlockAction::Gone => self.location == LOCATION_NONE,
        };
        place_fits
            && self.units.is_within(&UnitSet::first(block_size.unit_count()))
            && self.units.is_empty() == (self.action == BlockAction::Gone)
            && self.checksums.len() == checksum_count
    }

    fn size(&self, block_size: BlockSize) -> usize {
        1 + 12 + 12 + 4 + 8 * word_count(block_size) + 4 * self.checksums.len()
    }
}

/// Returns how many words a set of units of such a block takes.
const fn word_count(block_size: BlockSize) -> usize {
    (block_size.unit_count() as usize).div_ceil(64)
}

fn record_size(change: &Change) -> usize {
    change.size()
        + match change {
            Change::Put { .. } => 1 + 2 + 4,
            Change::Delete { .. } => 1 + 2,
            Change::DeleteRange { .. } => 1 + 2 + 2,
        }
}

impl Body {
    /// Returns the size of the encoded body, in bytes.
    pub fn size(&self, block_size: BlockSize) -> usize {
        let records: usize = self.records.iter().map(record_size).sum();
        let blocks: usize = self.blocks.iter().map(|block| block.size(block_size)).sum();
        let note = self.note.as_ref().map_or(0, |(_, note)| 4 + note.len());
        let sections = [records, blocks, note].into_iter().filter(|size| *size > 0);
        sections.map(|size| SECTION_HEADER_SIZE + size).sum()
    }

    /// Returns the size of the data behind the body, in bytes.
    pub fn units_size(&self) -> usize {
        self.blocks.iter().map(BlockChange::size_here).sum()
    }

    /// Returns the lines of each block.
    pub fn by_block(&self) -> impl Iterator<Item = &[BlockChange]> {
        self.blocks.chunk_by(|one, next| one.key == next.key)
    }

    /// Whether an entry of this kind, PG and block size can have this body.
    pub fn is_sound(&self, kind: EntryKind, pg: PgId, block_size: BlockSize) -> bool {
        let note_fits = match &self.note {
            Some((key, _)) => kind == EntryKind::Batch && key.pg() == Some(pg),
            None => true,
        };
        kind.has_body()
            && note_fits
            && block_size <= OBJECT_BLOCK_SIZE_MAX
            && self.records.iter().all(Change::is_sound)
            && self.blocks.iter().all(|b| b.key.pool == pg.pool && b.is_sound(block_size))
            && self.lines_fit()
            && self.size(block_size) <= BODY_SIZE_MAX
            && self.units_size() <= UNITS_SIZE_MAX
    }

    /// Whether a batch or page of this PG and block size can travel with this body: its blocks have no places
    /// yet, and all their data is behind the body.
    pub fn is_sendable(&self, kind: EntryKind, pg: PgId, block_size: BlockSize) -> bool {
        let is_placeless = |block: &BlockChange| {
            let is_known = match block.action {
                BlockAction::Units | BlockAction::Zeros | BlockAction::Gone => true,
                BlockAction::Damaged => kind == EntryKind::Page,
                BlockAction::UnitsAtPlace => false,
            };
            is_known && block.location == LOCATION_NONE
        };
        self.note.is_none()
            && self.records.iter().all(Change::is_sound)
            && self.blocks.iter().all(|b| b.key.pool == pg.pool && b.is_sound(block_size))
            && self.blocks.iter().all(is_placeless)
            && self.lines_fit()
    }

    /// Whether the lines of each block lie side by side and fit each other.
    fn lines_fit(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.by_block().all(|lines| {
            let mut units = UnitSet::EMPTY;
            let mut is_new = |line: &BlockChange| {
                let is_new = line.units.within(&units).is_empty();
                line.units.iter().for_each(|unit| units.insert(unit));
                is_new
            };
            let place_count = lines.iter().filter(|line| line.location != LOCATION_NONE).count();
            let is_gone = lines.iter().any(|line| line.action == BlockAction::Gone);
            seen.insert(lines[0].key)
                && lines.iter().all(|line| is_new(line) && line.version == lines[0].version)
                && place_count <= 1
                && (!is_gone || lines.len() == 1)
        })
    }

    /// Encodes the body, and describes it in the header of its entry. Requires: it is sound for the header.
    pub fn encode(&self, header: &mut EntryHeader) -> Vec<u8> {
        let (pg, block_size) = header.pg.zip(header.block_size).expect("such entries have both");
        assert!(self.is_sound(header.kind, pg, block_size));
        let bytes = self.to_bytes(block_size);
        header.offset = self.units_size() as u32;
        header.length = bytes.len() as u32;
        header.flags.has_note = self.note.is_some();
        header.body_checksum = crc32c(&bytes);
        bytes
    }

    /// Encodes the body alone.
    pub fn to_bytes(&self, block_size: BlockSize) -> Vec<u8> {
        let mut to = Writer::default();
        to.bytes.reserve(self.size(block_size));
        encode_section(&mut to, SECTION_RECORDS, |to| {
            self.records.iter().for_each(|change| encode_record(to, change));
        });
        encode_section(&mut to, SECTION_BLOCKS, |to| {
            self.blocks.iter().for_each(|block| encode_block(to, block, block_size));
        });
        encode_section(&mut to, SECTION_NOTE, |to| {
            if let Some((key, bytes)) = &self.note {
                to.u32(key.parts().1);
                to.bytes.extend_from_slice(bytes);
            }
        });
        assert!(to.bytes.len() == self.size(block_size));
        to.bytes
    }

    /// Decodes the body of the entry with this header. `None`: the bytes are not the ones that the header
    /// describes, or nothing that an entry can have.
    pub fn decode(header: &EntryHeader, bytes: &[u8]) -> Option<Body> {
        let (pg, block_size) = header.pg.zip(header.block_size)?;
        if bytes.len() != header.length as usize || crc32c(bytes) != header.body_checksum {
            return None;
        }
        let body = Body::of_bytes(bytes, pg, block_size)?;
        let fits = body.is_sound(header.kind, pg, block_size)
            && body.note.is_some() == header.flags.has_note
            && body.units_size() == header.offset as usize;
        fits.then_some(body)
    }

    /// Decodes a body of this PG alone. `None`: the bytes are none. What it says may be unsound.
    pub fn of_bytes(bytes: &[u8], pg: PgId, block_size: BlockSize) -> Option<Body> {
        let mut body = Body::default();
        let mut from = Reader::new(bytes);
        let mut last = 0;
        while !from.is_at_end() {
            let (section, size) = (from.u8()?, from.u32()?);
            let content = from.take(size as usize)?;
            if section <= last || content.is_empty() {
                return None;
            }
            last = section;
            let mut from = Reader::new(content);
            match section {
                SECTION_RECORDS => {
                    while !from.is_at_end() {
                        body.records.push(decode_record(&mut from)?);
                    }
                }
                SECTION_BLOCKS => {
                    while !from.is_at_end() {
                        body.blocks.push(decode_block(&mut from, pg, block_size)?);
                    }
                }
                SECTION_NOTE => {
                    let number = from.u32()?;
                    let key = NoteKey::of_parts(Some(pg), number);
                    (key.parts().1 == number).then_some(())?;
                    body.note = Some((key, content[4..].to_vec()));
                }
                _ => return None,
            }
        }
        Some(body)
    }
}

/// Appends a section, unless its content is empty.
fn encode_section(to: &mut Writer, section: u8, content: impl FnOnce(&mut Writer)) {
    let start = to.bytes.len();
    to.u8(section);
    to.u32(0);
    content(to);
    let size = to.bytes.len() - start - SECTION_HEADER_SIZE;
    match size {
        0 => to.bytes.truncate(start),
        _ => to.bytes[start + 1..start + 5].copy_from_slice(&(size as u32).to_le_bytes()),
    }
}

fn encode_key(to: &mut Writer, key: &[u8]) {
    to.u16(key.len() as u16);
    to.bytes.extend_from_slice(key);
}

fn encode_record(to: &mut Writer, change: &Change) {
    match change {
        Change::Put { key, value } => {
            to.u8(1);
            encode_key(to, key);
            to.u32(value.len() as u32);
            to.bytes.extend_from_slice(value);
        }
        Change::Delete { key } => {
            to.u8(2);
            encode_key(to, key);
        }
        Change::DeleteRange { start, end } => {
            to.u8(3);
            encode_key(to, start);
            encode_key(to, end);
        }
    }
}

fn decode_record(from: &mut Reader) -> Option<Change> {
    let what = from.u8()?;
    let key_size = from.u16()?;
    let key = from.take(key_size as usize)?.to_vec();
    Some(match what {
        1 => {
            let value_size = from.u32()?;
            Change::Put { key, value: from.take(value_size as usize)?.to_vec() }
        }
        2 => Change::Delete { key },
        3 => {
            let end_size = from.u16()?;
            Change::DeleteRange { start: key, end: from.take(end_size as usize)?.to_vec() }
        }
        _ => return None,
    })
}

fn encode_block(to: &mut Writer, block: &BlockChange, block_size: BlockSize) {
    to.u8(block.action as u8);
    to.u32(block.key.hash);
    to.u32(block.key.image.get());
    to.u32(block.key.stripe.get());
    to.version(block.version);
    to.u32(block.location);
    block.units.all_words()[..word_count(block_size)].iter().for_each(|word| to.u64(*word));
    block.checksums.iter().for_each(|checksum| to.u32(checksum.get()));
}

fn decode_block(from: &mut Reader, pg: PgId, block_size: BlockSize) -> Option<BlockChange> {
    let action = BlockAction::new(from.u8()?)?;
    let key = from.key_in(pg.pool)?;
    let (version, location) = (from.version()?, from.u32()?);
    let mut words = [0; 4];
    for word in &mut words[..word_count(block_size)] {
        *word = from.u64()?;
    }
    let units = UnitSet::from_words(words);
    let checksum_count = if action.has_data() { units.count() } else { 0 };
    let mut checksums = Vec::with_capacity(checksum_count as usize);
    for _ in 0..checksum_count {
        checksums.push(Checksum::new(from.u32()?));
    }
    Some(BlockChange { action, key, version, location, units, checksums })
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, Lsn, PoolId, StripeIndex};
    use proptest::prelude::*;

    use super::*;
    use crate::disk::{EntryDecodeError, EntryFlags};
    use crate::engine::KEY_SIZE_MAX;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 3 };

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(2), counter }
    }

    fn header(kind: EntryKind) -> EntryHeader {
        let after = if kind == EntryKind::Batch { version(7) } else { Version::ZERO };
        EntryHeader {
            kind,
            lsn: Lsn::new(0x1_0000),
            previous: Checksum::new(0xdead_beef),
            durable: Lsn::new(0x8000),
            size: 0,
            key: None,
            block_size: Some(OBJECT_BLOCK_SIZE_MAX),
            pg: Some(PG),
            version: version(9),
            offset: 0,
            length: 0,
            location: LOCATION_NONE,
            units: UnitSet::EMPTY,
            written: UnitSet::EMPTY,
            damaged: UnitSet::EMPTY,
            committed: Version::ZERO,
            replaces: None,
            flags: EntryFlags::default(),
            checksums: Vec::new(),
            table: Vec::new(),
            after,
            body_checksum: Checksum::new(0),
        }
    }

    fn block(action: BlockAction, units: &[u32]) -> BlockChange {
        let mut set = UnitSet::EMPTY;
        units.iter().for_each(|unit| set.insert(*unit));
        let count = if action.has_data() { units.len() as u32 } else { 0 };
        BlockChange {
            action,
            key: BlockKey {
                pool: PG.pool,
                hash: 0x1234_5678,
                image: ImageId::FIRST,
                stripe: StripeIndex::new(0x2_1003),
            },
            version: version(8),
            location: if action == BlockAction::UnitsAtPlace { 8 } else { LOCATION_NONE },
            units: set,
            checksums: (0..count).map(Checksum::new).collect(),
        }
    }

    fn other_key(hash: u32) -> BlockKey {
        BlockKey { hash, ..block(BlockAction::Gone, &[]).key }
    }

    fn sample() -> Body {
        let put = |key: &[u8], value: &[u8]| Change::Put { key: key.into(), value: value.into() };
        Body {
            records: vec![
                put(b"key", b"value"),
                Change::Delete { key: b"old".into() },
                Change::DeleteRange { start: b"a".into(), end: b"b".into() },
                put(b"empty", b""),
            ],
            blocks: vec![
                block(BlockAction::Units, &[1, 4]),
                block(BlockAction::UnitsAtPlace, &[0, 31]),
                block(BlockAction::Zeros, &[2]),
                BlockChange { key: other_key(1), ..block(BlockAction::Gone, &[]) },
                BlockChange { key: other_key(2), ..block(BlockAction::Damaged, &[5]) },
            ],
            note: Some((NoteKey::Pg(PG), b"record".into())),
        }
    }

    /// Returns the entry with this body: header, body, padding.
    fn entry(mut header: EntryHeader, body: &Body, sector_size: u32) -> (EntryHeader, Vec<u8>) {
        let encoded = body.encode(&mut header);
        header.size = header.entry_size(sector_size);
        let mut bytes = Vec::new();
        let size = header.header_size(sector_size) as usize;
        header.encode_with_body(&encoded, (42, size), &mut bytes);
        (header, bytes)
    }

    #[test]
    fn bytes_are_frozen() {
        let golden = super::super::golden;
        golden("entry-batch.5", &entry(header(EntryKind::Batch), &sample(), 512).1);
        let page = Body { note: None, ..sample() };
        golden("entry-page.5", &entry(header(EntryKind::Page), &page, 512).1);
    }

    #[test]
    fn an_entry_comes_back_and_takes_whole_sectors() {
        for (kind, note) in [(EntryKind::Batch, sample().note), (EntryKind::Page, None)] {
            let body = Body { note, ..sample() };
            for sector_size in [512, 4096] {
                let (header, bytes) = entry(header(kind), &body, sector_size);
                assert_eq!(header.size as usize, bytes.len() + 2 * 4096);
                let (decoded, _) = EntryHeader::decode(&bytes, 42, sector_size).expect("whole");
                assert_eq!(decoded, header);
                assert_eq!(Body::decode(&decoded, decoded.body(&bytes)), Some(body.clone()));
            }
        }
        let (empty, _) = entry(header(EntryKind::Batch), &Body::default(), 512);
        assert_eq!((empty.length, empty.size), (0, 512));
        let value = vec![7; 300];
        let small = Body {
            records: vec![Change::Put { key: b"key of 20 bytes.....".to_vec(), value }],
            ..Body::default()
        };
        assert_eq!(entry(header(EntryKind::Batch), &small, 512).0.size, 512);
    }

    #[test]
    fn the_header_is_verified_without_the_body() {
        let (header, mut bytes) = entry(header(EntryKind::Batch), &sample(), 512);
        let last = 112 + header.length as usize - 1;
        bytes[last] ^= 1;
        let (decoded, _) = EntryHeader::decode(&bytes[..112], 42, 512).expect("it is whole");
        assert_eq!(decoded, header);
        assert_eq!(Body::decode(&decoded, decoded.body(&bytes)), None);
        for at in 0..112 {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(EntryHeader::decode(&changed, 42, 512).is_err(), "byte {at}");
        }
        let more = EntryHeader::decode(&bytes[..111], 42, 512);
        assert_eq!(more, Err(EntryDecodeError::NeedMore(112)));
    }

    #[test]
    fn impossible_headers_are_refused() {
        let wrong: [fn(&mut EntryHeader); 12] = [
            |entry| entry.pg = None,
            |entry| entry.block_size = None,
            |entry| entry.block_size = Some(BlockSize::MAX),
            |entry| entry.key = Some(block(BlockAction::Gone, &[]).key),
            |entry| entry.after = entry.version,
            |entry| entry.location = 3,
            |entry| entry.offset += 1,
            |entry| (entry.offset, entry.size) = (1 << 20, 1024 + (1 << 20)),
            |entry| entry.length = BODY_SIZE_MAX as u32 + 1,
            |entry| entry.length = u32::MAX,
            |entry| entry.size += 512,
            |entry| entry.flags.is_copy = true,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let (mut header, _) = entry(header(EntryKind::Batch), &sample(), 512);
            change(&mut header);
            let mut bytes = Vec::new();
            header.encode(42, 112, &mut bytes);
            let decoded = EntryHeader::decode(&bytes, 42, 512);
            assert_eq!(decoded, Err(EntryDecodeError::Damaged), "change {index}");
        }
        let wrong: [fn(&mut EntryHeader); 2] =
            [|entry| entry.flags.has_note = true, |entry| entry.after = version(1)];
        for change in wrong {
            let (mut header, _) = entry(header(EntryKind::Page), &Body::default(), 512);
            change(&mut header);
            let mut bytes = Vec::new();
            header.encode(42, 112, &mut bytes);
            let decoded = EntryHeader::decode(&bytes, 42, 512);
            assert_eq!(decoded, Err(EntryDecodeError::Damaged));
        }
    }

    #[test]
    fn impossible_bodies_are_refused() {
        let sound = |body: &Body, kind| body.is_sound(kind, PG, OBJECT_BLOCK_SIZE_MAX);
        assert!(sound(&sample(), EntryKind::Batch));
        assert!(!sound(&sample(), EntryKind::Page));
        assert!(!sound(&Body::default(), EntryKind::Write));
        let wrong: [fn(&mut Body); 15] = [
            |body| body.blocks[0].units.insert(32),
            |body| body.blocks[0].checksums.clear(),
            |body| body.blocks[1].location = LOCATION_NONE,
            |body| body.blocks[2].location = 4,
            |body| body.blocks[2].units = UnitSet::EMPTY,
            |body| body.blocks[3].units.insert(0),
            |body| body.blocks[4].units = UnitSet::EMPTY,
            |body| body.blocks[2].units.insert(1),
            |body| body.blocks[2].version = version(7),
            |body| body.blocks[0].location = 16,
            |body| body.blocks[3].key = body.blocks[2].key,
            |body| body.blocks.swap(2, 3),
            |body| body.records.push(Change::Delete { key: Vec::new() }),
            |body| body.records.push(Change::Delete { key: vec![0; KEY_SIZE_MAX + 1] }),
            |body| {
                body.records.push(Change::DeleteRange { start: b"b".into(), end: b"b".into() });
            },
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let mut body = sample();
            change(&mut body);
            assert!(!sound(&body, EntryKind::Batch), "change {index}");
        }
        let mut long = Body::default();
        long.records.push(Change::Put { key: vec![1], value: vec![0; BODY_SIZE_MAX - 13] });
        assert!(sound(&long, EntryKind::Batch));
        long.records.push(Change::Delete { key: vec![1] });
        assert!(!sound(&long, EntryKind::Batch));
        let all: Vec<u32> = (0..32).collect();
        let of_key = |hash, units: &[u32]| BlockChange {
            key: other_key(hash),
            ..block(BlockAction::Units, units)
        };
        let blocks = (0..4).map(|hash| of_key(hash, &all)).collect();
        let mut large = Body { blocks, ..Body::default() };
        assert!(sound(&large, EntryKind::Batch));
        large.blocks.push(of_key(4, &[0]));
        assert!(!sound(&large, EntryKind::Batch));
    }

    #[test]
    fn the_longest_entry_is_shorter_than_two_mebibytes() {
        let mut longest = header(EntryKind::Batch);
        (longest.length, longest.offset) = (BODY_SIZE_MAX as u32, UNITS_SIZE_MAX as u32);
        assert!(longest.entry_size(4096) < 2 << 20);
    }

    fn any_body() -> impl Strategy<Value = Body> {
        let bytes = |min, max| prop::collection::vec(any::<u8>(), min..max);
        let record = prop_oneof![
            (bytes(1, 9), bytes(0, 40)).prop_map(|(key, value)| Change::Put { key, value }),
            bytes(1, 9).prop_map(|key| Change::Delete { key }),
            (bytes(1, 9), bytes(1, 9)).prop_filter_map("a range", |(start, end)| {
                (start < end).then_some(Change::DeleteRange { start, end })
            }),
        ];
        let action = prop_oneof![
            Just(BlockAction::Units),
            Just(BlockAction::UnitsAtPlace),
            Just(BlockAction::Zeros),
            Just(BlockAction::Gone),
            Just(BlockAction::Damaged),
        ];
        let parts = (action, any::<u32>(), 1..u32::MAX, any::<u32>(), 1..u32::MAX, any::<u64>());
        let block = parts.prop_map(|(action, hash, image, stripe, units, counter)| {
            let units: Vec<u32> = (0..32).filter(|unit| units & (1 << unit) != 0).collect();
            let units = if action == BlockAction::Gone { &[] } else { &units[..] };
            let of = block(action, units);
            let (image, stripe) = (ImageId::new(image), StripeIndex::new(stripe));
            let key = BlockKey { hash, image: image.expect("not 0"), stripe, ..of.key };
            BlockChange { key, version: version(counter), ..of }
        });
        let note = prop::option::of((any::<bool>(), bytes(0, 40)));
        let lists = (prop::collection::vec(record, 0..6), prop::collection::vec(block, 0..5));
        (lists, note).prop_map(|((records, blocks), note)| {
            let mut keys = BTreeSet::new();
            let blocks: Vec<BlockChange> = blocks;
            let blocks = blocks.into_iter().filter(|block| keys.insert(block.key)).collect();
            let key = |is_scrub| if is_scrub { NoteKey::Scrub(PG) } else { NoteKey::Pg(PG) };
            Body { records, blocks, note: note.map(|(is_scrub, note)| (key(is_scrub), note)) }
        })
    }

    /// Decodes bytes as a body of an entry that describes them. If that succeeds, they must encode to the
    /// same.
    fn decode_any(bytes: &[u8], (units_size, has_note): (u32, bool)) -> bool {
        let mut header = header(EntryKind::Batch);
        header.length = bytes.len() as u32;
        header.offset = units_size;
        header.flags.has_note = has_note;
        header.body_checksum = crc32c(bytes);
        let Some(body) = Body::decode(&header, bytes) else { return false };
        let mut again = header.clone();
        assert_eq!(body.encode(&mut again), bytes);
        assert_eq!(again, header);
        true
    }

    proptest! {
        #[test]
        fn encoding_and_decoding_are_inverse(body in any_body()) {
            let mut header = header(EntryKind::Batch);
            let bytes = body.encode(&mut header);
            prop_assert_eq!(bytes.len(), body.size(OBJECT_BLOCK_SIZE_MAX));
            prop_assert_eq!(Body::decode(&header, &bytes), Some(body));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode_any(&bytes, (0, false));
        }

        #[test]
        fn changed_bytes_decode_or_are_refused(
            body in any_body(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut header = header(EntryKind::Batch);
            let mut bytes = body.encode(&mut header);
            let size = bytes.len();
            if size > 0 {
                changes.iter().for_each(|(at, byte)| bytes[at.index(size)] = *byte);
                cut.iter().for_each(|cut| bytes.truncate(cut.index(size)));
            }
            decode_any(&bytes, (header.offset, header.flags.has_note));
        }
    }
}
