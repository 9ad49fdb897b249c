//! What uploads in parts have in the index pool. Frozen. `docs/internals/buckets.md`, rule 8.
//!
//! ```text
//!   m   format (1): 1 | checksum (1) | its shape (1) | zeros (5) | created (8), in ms | size of the owner's name (1)
//!       | owner | record M of the object
//!   p   format (1): 1 | zeros (7) | key
//!       attributes
//!         open   empty: the upload is open
//!         t      for each part of the object, in their order: its number and 16,384 x its size (6)
//!         done   stamp (8) | random (8) | digest of the completion (32) | head of the object
//!       records; number: big-endian
//!         i number (2) random (8)    places: a part on its way
//!         P number (2)               format (1): 1 | checksum (1) | zeros (6) | modified (8), in ms | size (8)
//!                                    | MD5 (16) | checksum (32), zeros behind it | places | CRC-32C (4) of each MiB
//!         g number (2) random (8)    places: those of a part that was replaced
//!       places: count (1): 0 to 8 | count x { container (16) | offset (8) | length (8) }
//! ```
//!
//! Numbers are little-endian but those in keys. `t` and `done` are there once the upload is complete.
//!
//! Invariants
//!   1. What decodes, encodes to the same bytes.

use format::disk::bytes::{Reader, Writer};
use objects::Field;

use crate::api::{Checksum, ChecksumKind, ChecksumShape, ETag, PartInfo};
use crate::head::{BadBytes, VersionHead};
use crate::large::Extent;
use crate::names::{VersionStamp, ordered};
use crate::records::{self, PARTS_MAX, Place};

/// The least bytes of a part that is not the last one: 5 MiB, as in S3.
pub const PART_SIZE_MIN: u64 = 5 << 20;
/// The most bytes of an object in parts: 48.8 TiB, as in S3.
pub const PARTS_SIZE_MAX: u64 = 5 * PARTS_MAX as u64 * (1 << 30);

const FORMAT: u8 = 1;
const CHECKSUM_SIZE_MAX: usize = 32;
/// Bytes of a part in `t`.
const ROW_SIZE: usize = 6;
const ROW_NUMBER_BITS: u32 = 14;
const _: () = assert!(PARTS_MAX < 1 << ROW_NUMBER_BITS);
const _: () = assert!(PARTS_MAX as usize * ROW_SIZE <= objects::operation::FIELD_VALUE_MAX);

/// What `m` has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpenRecord {
    pub(crate) checksum: ChecksumKind,
    pub(crate) checksum_shape: ChecksumShape,
    pub(crate) created_ms: u64,
    pub(crate) owner: String,
    /// The record `M` of the object.
    pub(crate) meta: Vec<u8>,
}

/// The key of a record of `p`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartKey {
    /// A part on its way.
    Writing(u16, u64),
    /// A part.
    Part(u16),
    /// A part that was replaced.
    Garbage(u16, u64),
}

/// A part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) size: u64,
    pub(crate) md5: [u8; 16],
    pub(crate) checksum: Checksum,
    pub(crate) modified_ms: u64,
    pub(crate) extent: Extent,
}

/// How an upload was completed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    pub(crate) version: VersionStamp,
    /// Of what was asked: a second completion that asks the same gets the same answer.
    pub(crate) digest: [u8; 32],
    pub(crate) head: VersionHead,
}

/// The attribute that an open upload has.
pub(crate) fn open() -> Field {
    Field::Attribute(b"open".to_vec())
}

/// The attribute with the parts of a complete upload.
pub(crate) fn table() -> Field {
    Field::Attribute(b"t".to_vec())
}

/// The attribute that a complete upload has.
pub(crate) fn done() -> Field {
    Field::Attribute(b"done".to_vec())
}

impl OpenRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u8(self.checksum.number());
        out.u8(self.checksum_shape.number());
        out.bytes.extend_from_slice(&[0; 5]);
        out.u64(self.created_ms);
        out.u8(self.owner.len() as u8);
        out.bytes.extend_from_slice(self.owner.as_bytes());
        out.bytes.extend_from_slice(&self.meta);
        out.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<OpenRecord, BadBytes> {
        decode_open(bytes).ok_or(BadBytes { what: "an upload", why: "a value is out of range" })
    }
}

fn decode_open(bytes: &[u8]) -> Option<OpenRecord> {
    let mut from = Reader::new(bytes);
    (from.u8()? == FORMAT).then_some(())?;
    let checksum = ChecksumKind::from_number(from.u8()?)?;
    let checksum_shape = ChecksumShape::from_number(from.u8()?)?;
    (from.take(5)? == [0; 5]).then_some(())?;
    let (created_ms, size) = (from.u64()?, from.u8()?);
    let owner = std::str::from_utf8(from.take(size.into())?).ok()?.to_owned();
    let meta = bytes.get(17 + usize::from(size)..)?.to_vec();
    Some(OpenRecord { checksum, checksum_shape, created_ms, owner, meta })
}

/// Returns the data of `p`.
pub(crate) fn of_key(key: &str) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(FORMAT.into());
    out.bytes.extend_from_slice(key.as_bytes());
    out.bytes
}

/// Reads what [`of_key`] wrote.
pub(crate) fn key_of(bytes: &[u8]) -> Option<&str> {
    let mut from = Reader::new(bytes);
    (from.u64()? == FORMAT.into()).then_some(())?;
    std::str::from_utf8(&bytes[8..]).ok()
}

impl PartKey {
    pub(crate) fn encode(self) -> Vec<u8> {
        let of = |kind: u8, number: u16| [&[kind][..], &number.swap_bytes().to_le_bytes()].concat();
        match self {
            PartKey::Writing(number, random) => {
                [of(b'i', number), ordered(random).to_vec()].concat()
            }
            PartKey::Part(number) => of(b'P', number),
            PartKey::Garbage(number, random) => {
                [of(b'g', number), ordered(random).to_vec()].concat()
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<PartKey> {
        let (kind, rest) = bytes.split_first()?;
        let (number, random) = rest.split_at_checked(2)?;
        let number = u16::from_le_bytes(number.try_into().ok()?).swap_bytes();
        match (kind, random.len()) {
            (b'P', 0) => Some(PartKey::Part(number)),
            (b'i', 8) => Some(PartKey::Writing(number, crate::names::number(random)?)),
            (b'g', 8) => Some(PartKey::Garbage(number, crate::names::number(random)?)),
            _ => None,
        }
    }

    pub(crate) fn field(self) -> Field {
        Field::Record(self.encode())
    }
}

/// Returns the value of a record `i` or `g`.
pub(crate) fn places(places: &[Place]) -> Vec<u8> {
    let mut out = Writer::default();
    records::write_places(&mut out, places);
    out.bytes
}

/// Returns the places that a record of `p` names.
pub(crate) fn read_places(key: PartKey, value: &[u8]) -> Result<Vec<Place>, BadBytes> {
    let bad = BadBytes { what: "places of a part", why: "a value is out of range" };
    match key {
        PartKey::Part(_) => Part::decode(value).map(|part| part.extent.places),
        PartKey::Writing(..) | PartKey::Garbage(..) => {
            let mut from = Reader::new(value);
            records::read_places(&mut from).filter(|_| from.is_at_end()).ok_or(bad)
        }
    }
}

impl Part {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u8(self.checksum.kind.number());
        out.bytes.extend_from_slice(&[0; 6]);
        out.u64(self.modified_ms);
        out.u64(self.size);
        out.bytes.extend_from_slice(&self.md5);
        let mut value = self.checksum.value.clone();
        value.resize(CHECKSUM_SIZE_MAX, 0);
        out.bytes.extend_from_slice(&value);
        records::write_places(&mut out, &self.extent.places);
        self.extent.checksums.iter().for_each(|checksum| out.u32(*checksum));
        out.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Part, BadBytes> {
        decode_part(bytes).ok_or(BadBytes { what: "a part", why: "a value is out of range" })
    }

    pub(crate) fn info(&self, number: u16) -> PartInfo {
        PartInfo {
            number,
            size: self.size,
            etag: ETag { md5: self.md5, parts: 0 },
            checksum: self.checksum.clone(),
            modified_ms: self.modified_ms,
        }
    }
}

fn decode_part(bytes: &[u8]) -> Option<Part> {
    let mut from = Reader::new(bytes);
    (from.u8()? == FORMAT).then_some(())?;
    let kind = ChecksumKind::from_number(from.u8()?)?;
    (from.take(6)? == [0; 6]).then_some(())?;
    let (modified_ms, size) = (from.u64()?, from.u64()?);
    let md5 = from.take(16)?.try_into().ok()?;
    let (value, zeros) = from.take(CHECKSUM_SIZE_MAX)?.split_at(kind.size());
    zeros.iter().all(|byte| *byte == 0).then_some(())?;
    let places = records::read_places(&mut from)?;
    let sum = places.iter().try_fold(0u64, |sum, place| sum.checked_add(place.length))?;
    (sum == size).then_some(())?;
    let mut checksums = Vec::new();
    while !from.is_at_end() {
        checksums.push(from.u32()?);
    }
    (checksums.len() as u64 == size.div_ceil(base::MIB)).then_some(())?;
    let checksum = Checksum { kind, value: value.to_vec() };
    Some(Part { size, md5, checksum, modified_ms, extent: Extent { places, checksums } })
}

/// Returns the attribute `t`: number and size of each part. Requires: no more than [`PARTS_MAX`].
pub(crate) fn write_table(parts: &[(u16, u64)]) -> Vec<u8> {
    assert!(parts.len() <= PARTS_MAX as usize);
    let row = |(number, size): &(u16, u64)| size << ROW_NUMBER_BITS | u64::from(*number);
    parts.iter().flat_map(|part| row(part).to_le_bytes().into_iter().take(ROW_SIZE)).collect()
}

/// Reads what [`write_table`] wrote.
pub(crate) fn read_table(bytes: &[u8]) -> Result<Vec<(u16, u64)>, BadBytes> {
    let bad = BadBytes { what: "the parts of an object", why: "a value is out of range" };
    if !bytes.len().is_multiple_of(ROW_SIZE) || bytes.len() > PARTS_MAX as usize * ROW_SIZE {
        return Err(bad);
    }
    let row = |row: &[u8]| {
        let row = row.iter().rev().fold(0u64, |row, byte| row << 8 | u64::from(*byte));
        ((row & ((1 << ROW_NUMBER_BITS) - 1)) as u16, row >> ROW_NUMBER_BITS)
    };
    let rows: Vec<_> = bytes.chunks_exact(ROW_SIZE).map(row).collect();
    match rows.is_sorted_by(|one, other| one.0 < other.0) {
        true => Ok(rows),
        false => Err(bad),
    }
}

impl Done {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.version.stamp);
        out.u64(self.version.random);
        out.bytes.extend_from_slice(&self.digest);
        out.bytes.extend_from_slice(&self.head.encode());
        out.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Done, BadBytes> {
        let bad = BadBytes { what: "a completion", why: "it is too short" };
        let mut from = Reader::new(bytes);
        let mut read = || {
            let version = VersionStamp { stamp: from.u64()?, random: from.u64()? };
            Some((version, from.take(32)?.try_into().ok()?))
        };
        let (version, digest) = read().ok_or(bad)?;
        let head = crate::head::Head::decode(&bytes[48..])?.current;
        Ok(Done { version, digest, head })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn records_of_uploads_are_frozen() {
        let open = OpenRecord {
            checksum: ChecksumKind::Crc64Nvme,
            checksum_shape: ChecksumShape::Whole,
            created_ms: 0x0102,
            owner: "ann".into(),
            meta: vec![1],
        };
        assert_eq!(hex(&open.encode()), "0105000000000000020100000000000003616e6e01");
        assert_eq!(OpenRecord::decode(&open.encode()), Ok(open));
        assert_eq!(hex(&of_key("a/b")), "0100000000000000612f62");
        assert_eq!(key_of(&of_key("a/b")), Some("a/b"));
        let keys = [
            (PartKey::Writing(0x0102, 3), "6901020000000000000003"),
            (PartKey::Part(0x0102), "500102"),
            (PartKey::Garbage(0x0102, 3), "6701020000000000000003"),
        ];
        for (key, golden) in keys {
            assert_eq!(hex(&key.encode()), golden);
            assert_eq!(PartKey::decode(&key.encode()), Some(key));
        }
        let place = Place { container: 0x0a, offset: 0x1000, length: 5 };
        let part = Part {
            size: 5,
            md5: [0x11; 16],
            checksum: Checksum { kind: ChecksumKind::Crc32, value: vec![0x22; 4] },
            modified_ms: 0x0304,
            extent: Extent { places: vec![place], checksums: vec![0x33] },
        };
        let of_place =
            "0a000000000000000000000000000000".to_owned() + "0010000000000000" + "0500000000000000";
        let golden = "0101000000000000".to_owned()
            + "0403000000000000"
            + "0500000000000000"
            + &"11".repeat(16)
            + &"22".repeat(4)
            + &"00".repeat(28)
            + "01"
            + &of_place
            + "33000000";
        assert_eq!(hex(&part.encode()), golden);
        assert_eq!(Part::decode(&part.encode()), Ok(part.clone()));
        assert_eq!(read_places(PartKey::Part(1), &part.encode()), Ok(vec![place]));
        assert_eq!(hex(&places(&[place])), "01".to_owned() + &of_place);
        assert_eq!(read_places(PartKey::Writing(1, 1), &places(&[place])), Ok(vec![place]));
        let table = [(1, 5 << 30), (3, 7)];
        assert_eq!(hex(&write_table(&table)), "01000000005003c0010000".to_owned() + "00");
        assert_eq!(read_table(&write_table(&table)), Ok(table.to_vec()));
        assert!(read_table(&write_table(&[(3, 7), (1, 5)])).is_err());
        assert!(read_table(&[0; 7]).is_err());
        let all: Vec<_> = (1..=PARTS_MAX as u16).map(|number| (number, 5 << 30)).collect();
        assert_eq!(read_table(&write_table(&all)), Ok(all));
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let part = Part {
            size: 0,
            md5: [0x11; 16],
            checksum: Checksum { kind: ChecksumKind::Sha256, value: vec![0x22; 32] },
            modified_ms: 0,
            extent: Extent { places: vec![], checksums: vec![] },
        };
        let bytes = part.encode();
        assert_eq!(Part::decode(&bytes), Ok(part));
        for size in 0..bytes.len() {
            assert!(Part::decode(&bytes[..size]).is_err());
        }
    }
}
