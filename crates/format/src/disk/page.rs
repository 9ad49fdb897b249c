//! Pages of a checkpoint: leaves with the records of blocks, streams (directory, PGs, notes, pending
//! discards), and the root that refers to all of them.
//!
//! ```text
//!   root ──▶ directory stream ──▶ leaf, leaf, leaf ...     leaves in key order, each a key range
//!        ──▶ PG stream     a stream is a chain of pages, each with the number and the checksum
//!        ──▶ note stream   of the next
//! ```
//!
//! Invariants
//!   1. Every reference to a page contains its checksum, so older content of the page never matches.
//!   2. Pages are never changed in place; the two root slots are written in turn.

use std::ops::Range;

use base::{Checksum, Lsn, PgId, PoolId, Version, crc32c};

use super::bytes::{Reader, Writer};
use super::key::{BlockKey, NoteKey};
use crate::engine::Compression;

/// Size of a page in bytes.
pub const PAGE_SIZE: usize = 4096;
/// The page number that stands for no page.
pub const PAGE_NONE: u32 = u32::MAX;

const STREAM_MAGIC: u32 = 0x5453_4a41;
const ROOT_MAGIC: u32 = 0x5452_4a41;
pub(super) const HEADER_SIZE: usize = 32;
/// Bytes of a stream that fit into a page.
pub const STREAM_PAGE_CAPACITY: usize = PAGE_SIZE - HEADER_SIZE - 4;

/// The bytes are not the expected page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageDecodeError;

/// A reference to a page: where it is, and how to verify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRef {
    /// Number of the page in the checkpoint area.
    pub page: u32,
    /// The checksum of the page.
    pub checksum: Checksum,
    /// Size of the page's records, in bytes.
    pub used: u16,
}

pub(super) fn header(magic: u32, store_tag: u64, sequence: u64, page: u32) -> Writer {
    let mut to = Writer::default();
    to.bytes.reserve(PAGE_SIZE);
    to.u32(magic);
    to.u32(0);
    to.u64(store_tag);
    to.u64(sequence);
    to.u32(page);
    to
}

/// Pads the page to its full size and sets its checksum.
pub(super) fn seal(mut to: Writer) -> (Vec<u8>, Checksum) {
    to.bytes.resize(PAGE_SIZE, 0);
    let checksum = crc32c(&to.bytes[8..]);
    to.bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
    (to.bytes, checksum)
}

/// Verifies the page. Returns its sequence number and a reader positioned after its header.
pub(super) fn open(
    bytes: &[u8],
    magic: u32,
    store_tag: u64,
    page: u32,
    checksum: Checksum,
) -> Option<(u64, Reader<'_>)> {
    if bytes.len() != PAGE_SIZE || crc32c(&bytes[8..]) != checksum {
        return None;
    }
    let mut from = Reader::new(bytes);
    let fits = from.u32()? == magic && from.u32()? == checksum.get() && from.u64()? == store_tag;
    let sequence = from.u64()?;
    (fits && from.u32()? == page).then_some((sequence, from))
}

/// Where a stream begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRef {
    /// First page of the stream; `PAGE_NONE` if the stream is empty.
    pub page: u32,
    /// Checksum of that page.
    pub checksum: Checksum,
    /// Size of the stream in bytes.
    pub size: u64,
}

impl StreamRef {
    /// A stream without bytes.
    pub const EMPTY: StreamRef = StreamRef { page: PAGE_NONE, checksum: Checksum::new(0), size: 0 };

    /// Returns the number of pages that the stream takes.
    pub const fn page_count(&self) -> u64 {
        self.size.div_ceil(STREAM_PAGE_CAPACITY as u64)
    }
}

/// A page of a stream. `next.size` is the number of bytes in the pages after it.
pub struct StreamPage;

impl StreamPage {
    /// Divides a stream into pages with these numbers. Returns the bytes of each page, and a reference to the
    /// rest of the stream that begins with it. Requires: one number for each page.
    pub fn encode_all(
        stream: &[u8],
        pages: &[u32],
        store_tag: u64,
        sequence: u64,
    ) -> Vec<(Vec<u8>, StreamRef)> {
        let capacity = STREAM_PAGE_CAPACITY;
        assert!(pages.len() == stream.len().div_ceil(capacity));
        let mut next = StreamRef::EMPTY;
        let mut images = Vec::with_capacity(pages.len());
        // From the end, because each page contains the checksum of the next.
        for (chunk, page) in stream.chunks(capacity).zip(pages).rev() {
            let (bytes, at) = StreamPage::encode(chunk, *page, next, store_tag, sequence);
            images.push((bytes, at));
            next = at;
        }
        images.reverse();
        images
    }

    /// Encodes one page, in front of `next`. Returns its bytes, and a reference to the stream that begins
    /// with this page. Requires: the page is full, or `next` is empty.
    pub fn encode(
        chunk: &[u8],
        page: u32,
        next: StreamRef,
        store_tag: u64,
        sequence: u64,
    ) -> (Vec<u8>, StreamRef) {
        assert!(chunk.len() == STREAM_PAGE_CAPACITY || next == StreamRef::EMPTY);
        let mut to = header(STREAM_MAGIC, store_tag, sequence, page);
        to.u32(next.page);
        to.u32(next.checksum.get());
        to.bytes.extend_from_slice(chunk);
        let (bytes, checksum) = seal(to);
        (bytes, StreamRef { page, checksum, size: next.size + chunk.len() as u64 })
    }

    /// Appends the content of the first page of `from` to `stream`, and returns where the rest of the
    /// stream begins.
    pub fn decode(
        bytes: &[u8],
        store_tag: u64,
        from: StreamRef,
        stream: &mut Vec<u8>,
    ) -> Result<StreamRef, PageDecodeError> {
        let (_, mut reader) = open(bytes, STREAM_MAGIC, store_tag, from.page, from.checksum)
            .ok_or(PageDecodeError)?;
        let page = reader.u32().ok_or(PageDecodeError)?;
        let checksum = Checksum::new(reader.u32().ok_or(PageDecodeError)?);
        let size = from.size.min(STREAM_PAGE_CAPACITY as u64);
        stream.extend_from_slice(reader.take(size as usize).ok_or(PageDecodeError)?);
        let rest = StreamRef { page, checksum, size: from.size - size };
        if (rest.size == 0) != (rest.page == PAGE_NONE) {
            return Err(PageDecodeError);
        }
        Ok(rest)
    }
}

/// The root of a checkpoint: the state after all entries before `until`, except prepared versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// Number of the checkpoint. Its parity selects the slot of the root.
    pub sequence: u64,
    /// The checkpoint contains every change before this lsn, except versions that are still prepared.
    pub until: Lsn,
    /// The lsn from which the journal is replayed: `until`, or the oldest prepared version before it.
    pub replay: Lsn,
    /// Checksum of the last entry before `replay`.
    pub previous: Checksum,
    /// First keys of the leaves, and references to them.
    pub directory: StreamRef,
    /// The records of the PGs.
    pub pgs: StreamRef,
    /// The notes.
    pub notes: StreamRef,
    /// Segments with pending discards.
    pub discards: StreamRef,
    /// Families of the engine. A root without them has zeros here, as in stores that know no engine.
    pub families: StreamRef,
}

impl Root {
    /// Encodes the root.
    pub fn encode(&self, store_tag: u64) -> Vec<u8> {
        let mut to = header(ROOT_MAGIC, store_tag, self.sequence, 0);
        to.u32(self.previous.get());
        to.u64(self.replay.get());
        to.u64(self.until.get());
        let families = Some(&self.families).filter(|families| **families != StreamRef::EMPTY);
        let streams = [&self.directory, &self.pgs, &self.notes, &self.discards];
        for stream in streams.into_iter().chain(families) {
            to.u32(stream.page);
            to.u32(stream.checksum.get());
            to.u64(stream.size);
        }
        seal(to).0
    }

    /// Decodes a root.
    pub fn decode(bytes: &[u8], store_tag: u64) -> Result<Root, PageDecodeError> {
        if bytes.len() != PAGE_SIZE {
            return Err(PageDecodeError);
        }
        let checksum = crc32c(&bytes[8..]);
        let (sequence, mut from) =
            open(bytes, ROOT_MAGIC, store_tag, 0, checksum).ok_or(PageDecodeError)?;
        let mut fields = || {
            let previous = Checksum::new(from.u32()?);
            let replay = Lsn::new(from.u64()?);
            let until = Lsn::new(from.u64()?);
            let mut stream = || {
                let page = from.u32()?;
                let checksum = Checksum::new(from.u32()?);
                Some(StreamRef { page, checksum, size: from.u64()? })
            };
            let (directory, pgs) = (stream()?, stream()?);
            let (notes, discards) = (stream()?, stream()?);
            // Page 0 is a slot of the root, and begins no stream.
            let families = Some(stream()?).filter(|families| families.page != 0);
            let families = families.unwrap_or(StreamRef::EMPTY);
            (replay <= until).then_some(())?;
            let root = Root {
                sequence,
                until,
                replay,
                previous,
                directory,
                pgs,
                notes,
                discards,
                families,
            };
            Some(root)
        };
        fields().ok_or(PageDecodeError)
    }
}

/// Size of a leaf's entry in the directory, in bytes.
pub const DIRECTORY_ENTRY_SIZE: usize = 28;

/// Encodes the directory as a stream, or a part of it with adjacent leaves.
pub fn encode_directory<'a>(leaves: impl Iterator<Item = (&'a BlockKey, &'a PageRef)>) -> Vec<u8> {
    let mut to = Writer::default();
    for (first, leaf) in leaves {
        to.key(Some(*first));
        to.u32(leaf.page);
        to.u32(leaf.checksum.get());
        to.u32(leaf.used as u32);
    }
    to.bytes
}

/// Decodes a directory: the first key of each leaf and a reference to it, in order.
pub fn decode_directory(stream: &[u8]) -> Result<Vec<(BlockKey, PageRef)>, PageDecodeError> {
    let mut from = Reader::new(stream);
    let mut leaves: Vec<(BlockKey, PageRef)> = Vec::new();
    while !from.is_at_end() {
        let mut leaf = || {
            let key = from.key()??;
            let (page, checksum) = (from.u32()?, Checksum::new(from.u32()?));
            Some((key, PageRef { page, checksum, used: u16::try_from(from.u32()?).ok()? }))
        };
        let leaf = leaf().ok_or(PageDecodeError)?;
        if leaves.last().is_some_and(|last| last.0 >= leaf.0) {
            return Err(PageDecodeError);
        }
        leaves.push(leaf);
    }
    Ok(leaves)
}

/// What a store records about one PG.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PgRecord {
    /// The highest version of an accepted write, zero or delete, or of a prepared or skipped version.
    pub last: Version,
    /// All prepared versions up to this one have become stable.
    pub committed: Version,
    /// The highest version of any block that the PG ever had in this store, repairs included.
    pub held: Version,
    /// The lowest version of the epoch of `last` that a recovery dropped.
    pub hole: Option<Version>,
    /// Tombstones up to this version have been dropped.
    pub floor: Version,
    /// The lsn at which the PG was absolved.
    pub absolved: Option<Lsn>,
    /// The lsn at which a start recorded that damage may have destroyed acknowledged writes of this PG.
    pub suspect: Option<Lsn>,
}

/// Encodes the PG table as a stream.
pub fn encode_pgs<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgRecord)>) -> Vec<u8> {
    let mut to = Writer::default();
    for (pg, record) in pgs {
        to.pg(Some(*pg));
        to.version(record.last);
        to.version(record.committed);
        to.version(record.held);
        to.version(record.hole.unwrap_or(Version::ZERO));
        to.version(record.floor);
        for at in [record.absolved, record.suspect] {
            to.u64(at.is_some() as u64);
            to.u64(at.map_or(0, Lsn::get));
        }
    }
    to.bytes
}

/// Decodes the PG table from a stream.
pub fn decode_pgs(stream: &[u8]) -> Result<Vec<(PgId, PgRecord)>, PageDecodeError> {
    let mut from = Reader::new(stream);
    let mut pgs = Vec::new();
    while !from.is_at_end() {
        let mut record = || {
            let pg = from.pg()??;
            let (last, committed) = (from.version()?, from.version()?);
            let held = from.version()?;
            // No write has the version zero.
            let hole = Some(from.version()?).filter(|hole| *hole != Version::ZERO);
            let floor = from.version()?;
            let mut lsn = || Some((from.u64()? != 0, Lsn::new(from.u64()?)));
            let (absolved, suspect) = (lsn()?, lsn()?);
            let [absolved, suspect] = [absolved, suspect].map(|(is, lsn)| is.then_some(lsn));
            Some((pg, PgRecord { last, committed, held, hole, floor, absolved, suspect }))
        };
        pgs.push(record().ok_or(PageDecodeError)?);
    }
    Ok(pgs)
}

/// Encodes the notes as a stream.
pub fn encode_notes<'a>(notes: impl Iterator<Item = (&'a NoteKey, &'a [u8])>) -> Vec<u8> {
    let mut to = Writer::default();
    for (key, note) in notes {
        let (pg, number) = key.parts();
        to.pg(pg);
        to.u32(number);
        to.u32(note.len() as u32);
        to.bytes.extend_from_slice(note);
    }
    to.bytes
}

/// Decodes the notes from a stream.
pub fn decode_notes(stream: &[u8]) -> Result<Vec<(NoteKey, Vec<u8>)>, PageDecodeError> {
    let mut from = Reader::new(stream);
    let mut notes = Vec::new();
    while !from.is_at_end() {
        let mut note = || {
            let key = NoteKey::of_parts(from.pg()?, from.u32()?);
            let size = from.u32()?;
            Some((key, from.take(size as usize)?.to_vec()))
        };
        notes.push(note().ok_or(PageDecodeError)?);
    }
    Ok(notes)
}

/// What a checkpoint knows of a family of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyRecord {
    /// The pool whose records the family holds.
    pub family: PoolId,
    /// How it is compressed.
    pub compression: Compression,
    /// All batches up to this lsn were durable in the engine. Zero: none was.
    pub flushed: Lsn,
}

/// Encodes the families as a stream.
pub fn encode_families(families: impl Iterator<Item = FamilyRecord>) -> Vec<u8> {
    let mut to = Writer::default();
    for record in families {
        to.u32(record.family.get());
        to.u32(u32::from(record.compression.number()));
        to.u64(record.flushed.get());
    }
    to.bytes
}

/// Decodes families from a stream. They must be in the order of their pools.
pub fn decode_families(stream: &[u8]) -> Result<Vec<FamilyRecord>, PageDecodeError> {
    let mut from = Reader::new(stream);
    let mut families: Vec<FamilyRecord> = Vec::new();
    while !from.is_at_end() {
        let mut record = || {
            let family = PoolId::new(from.u32()?)?;
            let compression = Compression::from_number(u8::try_from(from.u32()?).ok()?)?;
            Some(FamilyRecord { family, compression, flushed: Lsn::new(from.u64()?) })
        };
        let record = record().ok_or(PageDecodeError)?;
        if families.last().is_some_and(|last| last.family >= record.family) {
            return Err(PageDecodeError);
        }
        families.push(record);
    }
    Ok(families)
}

/// Encodes ranges of segments as a stream.
pub fn encode_ranges(ranges: &[Range<u32>]) -> Vec<u8> {
    let mut to = Writer::default();
    for range in ranges {
        to.u32(range.start);
        to.u32(range.end);
    }
    to.bytes
}

/// Decodes ranges from a stream. They must be in order, not empty, and with gaps between them.
pub fn decode_ranges(stream: &[u8]) -> Result<Vec<Range<u32>>, PageDecodeError> {
    let mut from = Reader::new(stream);
    let mut ranges: Vec<Range<u32>> = Vec::new();
    while !from.is_at_end() {
        let mut range = || Some(from.u32()?..from.u32()?);
        let range = range().ok_or(PageDecodeError)?;
        let is_behind = ranges.last().is_none_or(|last| last.end < range.start);
        if !is_behind || range.is_empty() {
            return Err(PageDecodeError);
        }
        ranges.push(range);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use base::{ImageId, PoolId, StripeIndex};

    use super::*;

    fn key(hash: u32) -> BlockKey {
        let pool = PoolId::new(1).expect("1 is in range");
        BlockKey { pool, hash, image: ImageId::FIRST, stripe: StripeIndex::new(hash + 1) }
    }

    #[test]
    fn root_bytes_are_frozen() {
        let stream = StreamRef { page: 3, checksum: Checksum::new(4), size: 5 };
        let root = Root {
            sequence: 2,
            until: Lsn::new(16384),
            replay: Lsn::new(8192),
            previous: Checksum::new(6),
            directory: stream,
            pgs: StreamRef::EMPTY,
            notes: stream,
            discards: StreamRef::EMPTY,
            families: StreamRef::EMPTY,
        };
        let bytes = root.encode(42);
        super::super::golden("root.4", &bytes);
        assert_eq!(Root::decode(&bytes, 42), Ok(root.clone()));
        let with_families = Root { families: stream, ..root.clone() };
        let bytes = with_families.encode(42);
        super::super::golden("root.5", &bytes);
        assert_eq!(Root::decode(&bytes, 42), Ok(with_families));
        assert_eq!(Root::decode(&bytes, 43), Err(PageDecodeError));
        let behind = Root { until: Lsn::new(4096), ..root.clone() };
        assert_eq!(Root::decode(&behind.encode(42), 42), Err(PageDecodeError));
        assert_eq!(Root::decode(&vec![0; PAGE_SIZE], 42), Err(PageDecodeError));
    }

    #[test]
    fn families_come_back() {
        let family = |number, compression, flushed| FamilyRecord {
            family: PoolId::new(number).expect("it is in range"),
            compression,
            flushed: Lsn::new(flushed),
        };
        let families = vec![family(1, Compression::None, 0), family(7, Compression::Bzip2, 4096)];
        let bytes = encode_families(families.iter().copied());
        super::super::golden("families.5", &bytes);
        assert_eq!(decode_families(&bytes), Ok(families.clone()));
        assert!(decode_families(&bytes[..20]).is_err());
        assert!(decode_families(&encode_families(families.into_iter().rev())).is_err());
        let mut unknown = bytes;
        unknown[4] = 9;
        assert!(decode_families(&unknown).is_err());
    }

    #[test]
    fn streams_come_back_and_notice_damage() {
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        let images = StreamPage::encode_all(&bytes, &[5, 9, 2], 42, 1);
        let mut at = images[0].1;
        assert_eq!(at.page_count(), 3);
        super::super::golden("stream.1", &images[2].0);
        let mut stream = Vec::new();
        for (image, named) in &images {
            assert_eq!(at, *named);
            let mut wrong = image.clone();
            wrong[PAGE_SIZE - 1] ^= 1;
            assert!(StreamPage::decode(&wrong, 42, at, &mut Vec::new()).is_err());
            at = StreamPage::decode(image, 42, at, &mut stream).expect("it is whole");
        }
        assert_eq!(at.page, PAGE_NONE);
        assert_eq!(stream, bytes);
    }

    #[test]
    fn directory_pgs_and_notes_come_back() {
        let leaf = PageRef { page: 3, checksum: Checksum::new(4), used: 500 };
        let directory = vec![(key(1), leaf), (key(2), leaf)];
        let bytes = encode_directory(directory.iter().map(|(key, leaf)| (key, leaf)));
        assert_eq!(bytes.len(), 2 * DIRECTORY_ENTRY_SIZE);
        assert_eq!(decode_directory(&bytes), Ok(directory));
        assert!(decode_directory(&bytes[..bytes.len() - 1]).is_err());

        let pg = PgId { pool: PoolId::FIRST, number: 3 };
        let version = |counter| Version { epoch: base::Epoch::new(7), counter };
        let record = PgRecord {
            last: version(5),
            committed: version(3),
            held: version(6),
            hole: Some(version(4)),
            floor: version(2),
            absolved: Some(Lsn::new(9)),
            suspect: Some(Lsn::new(8)),
        };
        let fresh = PgRecord::default();
        let other = PgId { number: 4, ..pg };
        let bytes = encode_pgs([(&pg, &record), (&other, &fresh)].into_iter());
        super::super::golden("pgs.4", &bytes);
        assert_eq!(decode_pgs(&bytes), Ok(vec![(pg, record), (other, fresh)]));

        let notes = vec![
            (NoteKey::Pg(pg), b"entry".to_vec()),
            (NoteKey::Cluster, b"map".to_vec()),
            (NoteKey::State(7), b"difference".to_vec()),
        ];
        let bytes = encode_notes(notes.iter().map(|(key, note)| (key, &note[..])));
        assert_eq!(decode_notes(&bytes), Ok(notes));
        assert!(decode_notes(&bytes[..5]).is_err());

        let ranges = vec![0..1, 3..9];
        let bytes = encode_ranges(&ranges);
        assert_eq!(decode_ranges(&bytes), Ok(ranges));
        assert!(decode_ranges(&bytes[..12]).is_err());
        for wrong in [vec![3..9, 0..1], vec![0..3, 3..9], vec![0..1, 4..4]] {
            assert!(decode_ranges(&encode_ranges(&wrong)).is_err(), "{wrong:?}");
        }
    }
}
