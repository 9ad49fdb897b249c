//! Records of a key: its versions, what was put with each of them, and their data. Frozen.
//!
//! ```text
//!   key of a record   V x   head of a version: `head.rs`
//!                     M x   what was put with it;   m: of the null version
//!                     D x   its data;               d: of the null version
//!   x: NOT(stamp) (8), NOT(random) (8), big-endian: newest first
//!
//!   M   format (1): 1 | field ... ; field: number (1) | size (2) | bytes
//!         1 header       size of the name (2) | name | value
//!         2 user         size of the name (2) | name | value
//!         3 tag          size of the name (2) | name | value
//!         4 ACL          0: private; 1: public-read
//!         5 encryption   as step (later) has it
//!       Fields are in the order of their numbers, those of one number in the order of their names. A number from
//!       128 on may be passed by who does not know it, and stays; another unknown one is an error.
//!
//!   D   format (1): 1 | kind (1)
//!         0 inline       the bytes
//!         1 places       count (1): 1 to 8 | count x { container (16) | offset (8) | length (8) }
//!                        | CRC-32C (4) of each MiB of the data
//!         2 manifest     upload (16) | number of parts (4) | size of each part (8), 0: they differ
//! ```
//!
//! Numbers are little-endian. A place's length is that of the data in it; it takes whole units.
//!
//! Invariants
//!   1. A record has one encoding: whatever decodes, encodes to the same bytes.
//!   2. Records are in the order: `D`, `M`, `V`, `d`, `m`; of each the newest first.

use std::collections::BTreeMap;

use base::MIB;
use bytes::Bytes;
use format::disk::bytes::{Reader, Writer};

use crate::api::{CannedAcl, Metadata};
use crate::door::UNIT;
use crate::head::BadBytes;
use crate::names::{VersionStamp, number, ordered};

/// The most places of an object that was put at once.
pub const PLACES_MAX: usize = 8;
/// No place ends behind this, in bytes: containers are smaller.
pub const PLACE_END_MAX: u64 = 1 << 50;
/// The most parts of an upload.
pub const PARTS_MAX: u32 = 10_000;

const FORMAT: u8 = 1;
const HEADER: u8 = 1;
const USER: u8 = 2;
const TAG: u8 = 3;
const ACL: u8 = 4;
const ENCRYPTION: u8 = 5;
/// From this number on a field that is not known may be passed.
const OPTIONAL: u8 = 128;

const INLINE: u8 = 0;
const PLACES: u8 = 1;
const MANIFEST: u8 = 2;

/// The key of a record of `k`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKey {
    /// The head of a version.
    Version(VersionStamp),
    /// What was put with a version.
    Meta(VersionStamp),
    /// The data of a version.
    Data(VersionStamp),
    /// What was put with the null version.
    NullMeta,
    /// The data of the null version.
    NullData,
}

impl RecordKey {
    /// Returns the bytes.
    pub fn encode(self) -> Vec<u8> {
        let of = |kind: u8, version: VersionStamp| {
            [&[kind][..], &ordered(!version.stamp), &ordered(!version.random)].concat()
        };
        match self {
            RecordKey::Version(version) => of(b'V', version),
            RecordKey::Meta(version) => of(b'M', version),
            RecordKey::Data(version) => of(b'D', version),
            RecordKey::NullMeta => vec![b'm'],
            RecordKey::NullData => vec![b'd'],
        }
    }

    /// Reads a key. `None`: it is none.
    pub fn decode(bytes: &[u8]) -> Option<RecordKey> {
        let (&kind, rest) = bytes.split_first()?;
        match (kind, rest.len()) {
            (b'm', 0) => return Some(RecordKey::NullMeta),
            (b'd', 0) => return Some(RecordKey::NullData),
            (_, 16) => {}
            _ => return None,
        }
        let (stamp, random) = rest.split_at(8);
        let version = VersionStamp { stamp: !number(stamp)?, random: !number(random)? };
        match kind {
            b'V' => Some(RecordKey::Version(version)),
            b'M' => Some(RecordKey::Meta(version)),
            b'D' => Some(RecordKey::Data(version)),
            _ => None,
        }
    }
}

/// What was put with a version.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Meta {
    /// Headers and user metadata.
    pub metadata: Metadata,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Who may read the object. `None`: the bucket's list alone counts.
    pub acl: Option<CannedAcl>,
    /// How the data is encrypted.
    pub encryption: Option<Vec<u8>>,
    /// Fields of newer versions of this program, which may be passed: number and bytes.
    pub others: Vec<(u8, Vec<u8>)>,
}

/// Where the data of a version is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Here.
    Inline(Bytes),
    /// In containers.
    Places {
        /// Where, 1 to [`PLACES_MAX`].
        places: Vec<Place>,
        /// The CRC-32C of each MiB.
        checksums: Vec<u32>,
    },
    /// In the parts of an upload.
    Manifest {
        /// The upload: the object `p`.
        upload: u128,
        /// The number of parts.
        count: u32,
        /// The size of each part but the last. 0: they differ, and `p` says how.
        part_size: u64,
    },
}

/// A place in a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The container.
    pub container: u128,
    /// Where the place begins, in bytes.
    pub offset: u64,
    /// The bytes of data in it.
    pub length: u64,
}

/// Writes places with their count. Requires: there are no more than [`PLACES_MAX`].
pub(crate) fn write_places(out: &mut Writer, places: &[Place]) {
    assert!(places.len() <= PLACES_MAX);
    out.u8(places.len() as u8);
    places.iter().for_each(|place| place.write(out));
}

/// Reads what [`write_places`] wrote. `None`: there are too many, or one of them cannot be.
pub(crate) fn read_places(from: &mut Reader<'_>) -> Option<Vec<Place>> {
    let count = usize::from(from.u8()?);
    if count > PLACES_MAX {
        return None;
    }
    (0..count).map(|_| Place::read(from)).collect()
}

impl Place {
    fn write(&self, out: &mut Writer) {
        out.u128(self.container);
        out.u64(self.offset);
        out.u64(self.length);
    }

    /// Reads what `write` wrote. `None`: there can be no such place.
    fn read(from: &mut Reader<'_>) -> Option<Place> {
        let place = Place { container: from.u128()?, offset: from.u64()?, length: from.u64()? };
        let end = place.offset.checked_add(place.length)?;
        let is_valid =
            place.length > 0 && place.offset.is_multiple_of(UNIT) && end <= PLACE_END_MAX;
        is_valid.then_some(place)
    }
}

impl Meta {
    /// Returns the value of the record. `None`: a name or a value is longer than 64 KiB.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        let Metadata { headers, user } = &self.metadata;
        for (number, pairs) in [(HEADER, headers), (USER, user), (TAG, &self.tags)] {
            for (name, value) in pairs {
                let size = u16::try_from(name.len()).ok()?;
                let bytes = [&size.to_le_bytes()[..], name.as_bytes(), value.as_bytes()].concat();
                field(&mut out, number, &bytes)?;
            }
        }
        if let Some(acl) = self.acl {
            field(&mut out, ACL, &[acl_number(acl)])?;
        }
        if let Some(encryption) = &self.encryption {
            field(&mut out, ENCRYPTION, encryption)?;
        }
        for (number, bytes) in &self.others {
            field(&mut out, *number, bytes)?;
        }
        Some(out.bytes)
    }

    /// Reads the value of the record.
    pub fn decode(bytes: &[u8]) -> Result<Meta, BadBytes> {
        let what = "what was put with an object";
        if bytes.first().is_some_and(|format| *format != FORMAT) {
            return Err(BadBytes { what, why: "its format is not known" });
        }
        decode_meta(bytes).ok_or(BadBytes { what, why: "a field is malformed, or not known" })
    }
}

/// Returns the number of an ACL in records.
pub(crate) fn acl_number(acl: CannedAcl) -> u8 {
    match acl {
        CannedAcl::Private => 0,
        CannedAcl::PublicRead => 1,
    }
}

/// Reads what [`acl_number`] wrote.
pub(crate) fn acl_of(number: u8) -> Option<CannedAcl> {
    match number {
        0 => Some(CannedAcl::Private),
        1 => Some(CannedAcl::PublicRead),
        _ => None,
    }
}

/// Appends a field. `None`: it is too long.
pub(crate) fn field(out: &mut Writer, number: u8, bytes: &[u8]) -> Option<()> {
    out.u8(number);
    out.u16(bytes.len().try_into().ok()?);
    out.bytes.extend_from_slice(bytes);
    Some(())
}

/// Reads what [`field`] wrote.
pub(crate) fn read_field<'a>(from: &mut Reader<'a>) -> Option<(u8, &'a [u8])> {
    let (number, size) = (from.u8()?, from.u16()?);
    Some((number, from.take(size.into())?))
}

fn decode_meta(bytes: &[u8]) -> Option<Meta> {
    let mut from = Reader::new(bytes);
    from.u8()?;
    let mut meta = Meta::default();
    let mut last = 0;
    while !from.is_at_end() {
        let (number, bytes) = read_field(&mut from)?;
        if number < last {
            return None;
        }
        last = number;
        match number {
            HEADER => add_pair(&mut meta.metadata.headers, bytes)?,
            USER => add_pair(&mut meta.metadata.user, bytes)?,
            TAG => add_pair(&mut meta.tags, bytes)?,
            ACL if meta.acl.is_none() && bytes.len() == 1 => meta.acl = Some(acl_of(bytes[0])?),
            ENCRYPTION if meta.encryption.is_none() => meta.encryption = Some(bytes.to_vec()),
            OPTIONAL.. => meta.others.push((number, bytes.to_vec())),
            _ => return None,
        }
    }
    Some(meta)
}

/// Adds a name with its value, which must be behind those that are there.
fn add_pair(pairs: &mut BTreeMap<String, String>, bytes: &[u8]) -> Option<()> {
    let mut from = Reader::new(bytes);
    let size = from.u16()?;
    let name = std::str::from_utf8(from.take(size.into())?).ok()?;
    let value = std::str::from_utf8(&bytes[2 + usize::from(size)..]).ok()?;
    if pairs.last_key_value().is_some_and(|(last, _)| last.as_str() >= name) {
        return None;
    }
    pairs.insert(name.into(), value.into());
    Some(())
}

impl Content {
    /// Returns the value of the record. Requires: places and checksums are as many as the format says.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        match self {
            Content::Inline(bytes) => {
                out.u8(INLINE);
                out.bytes.extend_from_slice(bytes);
            }
            Content::Places { places, checksums } => {
                assert!((1..=PLACES_MAX).contains(&places.len()));
                assert!(Some(checksums.len() as u64) == checksums_count(places));
                out.u8(PLACES);
                write_places(&mut out, places);
                checksums.iter().for_each(|checksum| out.u32(*checksum));
            }
            Content::Manifest { upload, count, part_size } => {
                out.u8(MANIFEST);
                out.u128(*upload);
                out.u32(*count);
                out.u64(*part_size);
            }
        }
        out.bytes
    }

    /// Reads the value of the record.
    pub fn decode(bytes: &[u8]) -> Result<Content, BadBytes> {
        let what = "the data of an object";
        if bytes.first().is_some_and(|format| *format != FORMAT) {
            return Err(BadBytes { what, why: "its format is not known" });
        }
        decode_content(bytes).ok_or(BadBytes { what, why: "a value is out of range" })
    }
}

/// Returns how many MiB the data has. `None`: more than there can be.
fn checksums_count(places: &[Place]) -> Option<u64> {
    let size = places.iter().try_fold(0u64, |sum, place| sum.checked_add(place.length))?;
    Some(size.div_ceil(MIB))
}

fn decode_content(bytes: &[u8]) -> Option<Content> {
    let mut from = Reader::new(bytes);
    from.u8()?;
    let content = match from.u8()? {
        INLINE => return Some(Content::Inline(Bytes::copy_from_slice(&bytes[2..]))),
        PLACES => {
            let places = read_places(&mut from).filter(|places| !places.is_empty())?;
            let mut checksums = Vec::new();
            while !from.is_at_end() {
                checksums.push(from.u32()?);
            }
            if checksums_count(&places) != Some(checksums.len() as u64) {
                return None;
            }
            Content::Places { places, checksums }
        }
        MANIFEST => {
            let (upload, count, part_size) = (from.u128()?, from.u32()?, from.u64()?);
            if !(1..=PARTS_MAX).contains(&count) {
                return None;
            }
            Content::Manifest { upload, count, part_size }
        }
        _ => return None,
    };
    from.is_at_end().then_some(content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn meta() -> Meta {
        let headers = pairs(&[("cache-control", "no-cache"), ("content-type", "text/plain")]);
        Meta {
            metadata: Metadata { headers, user: pairs(&[("empty", ""), ("who", "ann")]) },
            tags: pairs(&[("class", "cold")]),
            acl: Some(CannedAcl::PublicRead),
            encryption: Some(vec![1, 2, 3]),
            others: vec![(128, vec![9]), (200, vec![])],
        }
    }

    fn contents() -> [Content; 3] {
        let place = |offset, length| Place { container: 0xc0c1_c2c3, offset, length };
        [
            Content::Inline(Bytes::from_static(b"hello")),
            Content::Places {
                places: vec![place(4096, 1 << 20), place(1 << 30, 5)],
                checksums: vec![0x0102_0304, 0x0506_0708],
            },
            Content::Manifest { upload: 0xabcd, count: 10_000, part_size: 8 << 20 },
        ]
    }

    #[test]
    fn records_are_frozen() {
        let version = VersionStamp { stamp: 0x0006_0102_0304_0506, random: 0xa0a1_a2a3_a4a5_a6a7 };
        let keys = [
            RecordKey::Version(version),
            RecordKey::Meta(version),
            RecordKey::Data(version),
            RecordKey::NullMeta,
            RecordKey::NullData,
        ];
        let mut text = String::new();
        for key in keys {
            text += &(hex(&key.encode()) + "\n");
            assert_eq!(RecordKey::decode(&key.encode()), Some(key));
        }
        text += &(hex(&meta().encode().expect("short")) + "\n");
        for content in contents() {
            text += &(hex(&content.encode()) + "\n");
        }
        assert_eq!(text, include_str!("golden/records.txt"));
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for meta in [meta(), Meta::default()] {
            assert_eq!(Meta::decode(&meta.encode().expect("short")), Ok(meta));
        }
        for content in contents() {
            assert_eq!(Content::decode(&content.encode()), Ok(content));
        }
        assert!(Meta::decode(&[]).is_err());
        assert!(Content::decode(&[]).is_err());
        assert!(Meta::decode(&[2]).is_err());
        // A field that must be known.
        assert!(Meta::decode(&[1, 6, 0, 0]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn newer_versions_come_first(one in any::<(u64, u64)>(), other in any::<(u64, u64)>()) {
            let key = |(stamp, random)| {
                RecordKey::Version(VersionStamp { stamp, random }).encode()
            };
            prop_assert_eq!(key(one).cmp(&key(other)), other.cmp(&one));
        }

        #[test]
        fn whatever_decodes_encodes_to_the_same(
            which in 0..4usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 0..4),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut bytes = match contents().get(which) {
                Some(content) => content.encode(),
                None => meta().encode().expect("short"),
            };
            for (at, bit) in changes {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                let cut = cut.index(bytes.len());
                bytes.truncate(cut);
            }
            match which {
                3 => if let Ok(meta) = Meta::decode(&bytes) {
                    prop_assert_eq!(meta.encode(), Some(bytes));
                },
                _ => if let Ok(content) = Content::decode(&bytes) {
                    prop_assert_eq!(content.encode(), bytes);
                },
            }
        }

        #[test]
        fn noise_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            for format in [None, Some(1)] {
                let bytes: Vec<u8> = format.into_iter().chain(bytes.iter().copied()).collect();
                let _ = (Meta::decode(&bytes), Content::decode(&bytes), RecordKey::decode(&bytes));
            }
        }
    }
}
