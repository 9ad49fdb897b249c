//! The head of a key: the data of its object `k`, and of each record `V`. Frozen: heads outlive every process.
//!
//! ```text
//!     0 flags (1)            1: the current version is a delete marker; 2: has records V; 4: it is the null
//!                            version; 8: large; 16: the key has tags or a Rift id
//!     1 format (1): 1
//!     2 kind of the tag (1)  0: MD5 of the body; 1: MD5 of the parts' MD5 sums; 2: random
//!     3 checksum (1)         0: none; 1: CRC32; 2: CRC32C; 3: SHA1; 4: SHA256; 5: CRC64NVME
//!     4 its shape (1)        0: of the whole object; 1: of the parts' checksums
//!     5 storage class (1)    0: standard
//!     6 lock mode (1)        0: none; 1: governance; 2: compliance
//!     7 legal hold (1)       0: off; 1: on
//!     8 stamp (8)           16 random (8)
//!    24 size (8)            32 last modified (8), in milliseconds since 1970
//!    40 locked until (8), in milliseconds since 1970
//!    48 stamp of the null version (8), 0: there is none
//!    56 highest stamp ever (8)
//!    64 tag (16)            80 number of parts (2), 0: put at once
//!    82 size of the owner's name (1)
//!    83 zeros (5)
//!    88 checksum (32), zeros behind it
//!   120 owner (1 to 64)
//! ```
//!
//! Numbers are little-endian. Flags 2 and 16 and the stamps at 48 and 56 are the key's: in records `V` they are
//! zero, and they stay when another version becomes current.
//!
//! Invariants
//!   1. A head has one encoding: whatever decodes, encodes to the same bytes.
//!   2. It takes at most [`HEAD_SIZE_MAX`] bytes.

use std::fmt;

use format::disk::bytes::{Reader, Writer};

use crate::api::{Checksum, ChecksumKind, ChecksumShape, ETag, ObjectInfo};
use crate::names::{VersionId, VersionStamp};

/// The most bytes of a head.
pub const HEAD_SIZE_MAX: usize = 256;
/// The bit of the first byte of heads whose current version is a delete marker: lists pass them.
pub const HIDDEN: u8 = 1;
/// The longest name of an owner, in bytes.
pub const OWNER_SIZE_MAX: usize = 64;

const HAS_VERSIONS: u8 = 2;
const IS_NULL: u8 = 4;
const LARGE: u8 = 8;
const INDEXED: u8 = 16;
const FLAGS: u8 = HIDDEN | HAS_VERSIONS | IS_NULL | LARGE | INDEXED;

const FORMAT: u8 = 1;
const CHECKSUM_SIZE_MAX: usize = 32;
const OWNER_AT: usize = 120;
const _: () = assert!(OWNER_AT + OWNER_SIZE_MAX <= HEAD_SIZE_MAX);

/// The current version of a key, and what is known of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The current version.
    pub current: VersionHead,
    /// What stays when another version becomes current.
    pub key: KeyState,
}

/// What is known of a key, whatever its current version is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyState {
    /// It has records `V`. Never taken back.
    pub has_versions: bool,
    /// It has tags or an id of Rift.
    pub is_indexed: bool,
    /// The stamp of the null version. 0: there is none.
    pub null_stamp: u64,
    /// The highest stamp that a version of it ever had.
    pub highest_stamp: u64,
}

/// A version of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionHead {
    /// A delete marker.
    pub is_hidden: bool,
    /// The null version.
    pub is_null: bool,
    /// Its data is not in its record, but in containers.
    pub is_large: bool,
    /// What orders it.
    pub id: VersionStamp,
    /// The size of its data in bytes.
    pub size: u64,
    /// When it was put, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Its tag.
    pub etag: ETag,
    /// What its tag is.
    pub etag_kind: ETagKind,
    /// Its checksum.
    pub checksum: Option<Checksum>,
    /// Of what the checksum is.
    pub checksum_shape: ChecksumShape,
    /// Its storage class. 0: standard.
    pub storage_class: u8,
    /// Whether it may be deleted.
    pub lock: Lock,
    /// Who put it: 1 to [`OWNER_SIZE_MAX`] bytes.
    pub owner: String,
}

/// What a tag is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ETagKind {
    /// The MD5 sum of the body.
    #[default]
    Body,
    /// The MD5 sum of the MD5 sums of the parts.
    Parts,
    /// Random bytes: the body was encrypted with a key of the client's.
    Random,
}

/// An object lock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lock {
    /// How strict it is.
    pub mode: LockMode,
    /// Until when, in milliseconds since 1970.
    pub until_ms: u64,
    /// Whether there is a legal hold beside it.
    pub is_held: bool,
}

/// How strict a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LockMode {
    /// There is none.
    #[default]
    None,
    /// Some users may pass it.
    Governance,
    /// Nobody may.
    Compliance,
}

/// Bytes that are no head or record of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBytes {
    /// What was read.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for BadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for BadBytes {}

impl ChecksumKind {
    /// Returns the size of such a checksum in bytes.
    pub const fn size(self) -> usize {
        match self {
            ChecksumKind::Crc32 | ChecksumKind::Crc32c => 4,
            ChecksumKind::Crc64Nvme => 8,
            ChecksumKind::Sha1 => 20,
            ChecksumKind::Sha256 => 32,
        }
    }

    pub(crate) const fn number(self) -> u8 {
        match self {
            ChecksumKind::Crc32 => 1,
            ChecksumKind::Crc32c => 2,
            ChecksumKind::Sha1 => 3,
            ChecksumKind::Sha256 => 4,
            ChecksumKind::Crc64Nvme => 5,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<ChecksumKind> {
        use ChecksumKind::*;
        [Crc32, Crc32c, Sha1, Sha256, Crc64Nvme].into_iter().find(|kind| kind.number() == number)
    }
}

impl ChecksumShape {
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<ChecksumShape> {
        let mut shapes = [ChecksumShape::Whole, ChecksumShape::Parts].into_iter();
        shapes.find(|shape| shape.number() == number)
    }
}

impl VersionHead {
    /// Returns the id as clients name it.
    pub fn version_id(&self) -> VersionId {
        if self.is_null { VersionId::Null } else { VersionId::Numbered(self.id) }
    }

    /// Returns what requests are told.
    pub fn info(&self) -> ObjectInfo {
        ObjectInfo {
            size: self.size,
            modified_ms: self.modified_ms,
            etag: self.etag,
            checksum: self.checksum.clone(),
            checksum_shape: self.checksum_shape,
            owner: self.owner.clone(),
            version: self.version_id(),
        }
    }

    /// Returns the value of the record `V`.
    pub fn encode(&self) -> Vec<u8> {
        Head { current: self.clone(), key: KeyState::default() }.encode()
    }

    /// Reads the value of a record `V`.
    pub fn decode(bytes: &[u8]) -> Result<VersionHead, BadBytes> {
        let head = Head::decode(bytes)?;
        match head.key == KeyState::default() {
            true => Ok(head.current),
            false => Err(bad("a version has what is the key's")),
        }
    }
}

impl Head {
    /// Returns the data of the object `k`. Requires: the owner's name has 1 to [`OWNER_SIZE_MAX`] bytes, and
    /// the checksum has the size of its kind.
    pub fn encode(&self) -> Vec<u8> {
        let Head { current, key } = self;
        assert!((1..=OWNER_SIZE_MAX).contains(&current.owner.len()));
        let mut out = Writer::default();
        let flags = [
            (current.is_hidden, HIDDEN),
            (key.has_versions, HAS_VERSIONS),
            (current.is_null, IS_NULL),
            (current.is_large, LARGE),
            (key.is_indexed, INDEXED),
        ];
        out.u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        out.u8(FORMAT);
        out.u8(current.etag_kind as u8);
        out.u8(current.checksum.as_ref().map_or(0, |it| it.kind.number()));
        out.u8(current.checksum_shape.number());
        out.u8(current.storage_class);
        out.u8(current.lock.mode as u8);
        out.u8(current.lock.is_held.into());
        for number in [
            current.id.stamp,
            current.id.random,
            current.size,
            current.modified_ms,
            current.lock.until_ms,
            key.null_stamp,
            key.highest_stamp,
        ] {
            out.u64(number);
        }
        out.bytes.extend_from_slice(&current.etag.md5);
        out.u16(current.etag.parts);
        out.u8(current.owner.len() as u8);
        out.bytes.extend_from_slice(&[0; 5]);
        if let Some(Checksum { kind, value }) = &current.checksum {
            assert!(value.len() == kind.size());
            out.bytes.extend_from_slice(value);
        }
        out.bytes.resize(OWNER_AT, 0);
        out.bytes.extend_from_slice(current.owner.as_bytes());
        out.bytes
    }

    /// Reads the data of an object `k`.
    pub fn decode(bytes: &[u8]) -> Result<Head, BadBytes> {
        match bytes.get(1) {
            Some(&FORMAT) => {}
            Some(_) => return Err(bad("its format is not known")),
            None => return Err(bad("it is too short")),
        }
        decode(bytes).ok_or(bad("a value is out of range"))
    }
}

fn bad(why: &'static str) -> BadBytes {
    BadBytes { what: "the head of a key", why }
}

fn decode(bytes: &[u8]) -> Option<Head> {
    let mut from = Reader::new(bytes);
    let flags = from.u8()?;
    from.u8()?;
    let etag_kind = match from.u8()? {
        0 => ETagKind::Body,
        1 => ETagKind::Parts,
        2 => ETagKind::Random,
        _ => return None,
    };
    let checksum_kind = match from.u8()? {
        0 => None,
        number => Some(ChecksumKind::from_number(number)?),
    };
    let checksum_shape = ChecksumShape::from_number(from.u8()?)?;
    let storage_class = from.u8()?;
    let mode = match from.u8()? {
        0 => LockMode::None,
        1 => LockMode::Governance,
        2 => LockMode::Compliance,
        _ => return None,
    };
    let is_held = from.u8()?;
    let id = VersionStamp { stamp: from.u64()?, random: from.u64()? };
    let (size, modified_ms, until_ms) = (from.u64()?, from.u64()?, from.u64()?);
    let (null_stamp, highest_stamp) = (from.u64()?, from.u64()?);
    let etag = ETag { md5: from.take(16)?.try_into().ok()?, parts: from.u16()? };
    let owner_size = from.u8()? as usize;
    let zeros = from.take(5)?;
    let checksum = from.take(CHECKSUM_SIZE_MAX)?;
    let (checksum, behind) = checksum.split_at(checksum_kind.map_or(0, ChecksumKind::size));
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let owner = std::str::from_utf8(from.take(owner_size)?).ok()?.to_owned();
    if flags & !FLAGS != 0
        || is_held > 1
        || !is_zero(zeros)
        || !is_zero(behind)
        || !(1..=OWNER_SIZE_MAX).contains(&owner.len())
        || !from.is_at_end()
    {
        return None;
    }
    let has = |flag: u8| flags & flag != 0;
    Some(Head {
        current: VersionHead {
            is_hidden: has(HIDDEN),
            is_null: has(IS_NULL),
            is_large: has(LARGE),
            id,
            size,
            modified_ms,
            etag,
            etag_kind,
            checksum: checksum_kind.map(|kind| Checksum { kind, value: checksum.to_vec() }),
            checksum_shape,
            storage_class,
            lock: Lock { mode, until_ms, is_held: is_held == 1 },
            owner,
        },
        key: KeyState {
            has_versions: has(HAS_VERSIONS),
            is_indexed: has(INDEXED),
            null_stamp,
            highest_stamp,
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn plain() -> Head {
        let id = VersionStamp { stamp: 0x0006_0102_0304_0506, random: 0xa0a1_a2a3_a4a5_a6a7 };
        Head {
            current: VersionHead {
                is_hidden: false,
                is_null: true,
                is_large: false,
                id,
                size: 0x1234,
                modified_ms: 0x0190_0000_0001,
                etag: ETag { md5: [0xe7; 16], parts: 0 },
                etag_kind: ETagKind::Body,
                checksum: Some(Checksum { kind: ChecksumKind::Crc64Nvme, value: vec![0xc6; 8] }),
                checksum_shape: ChecksumShape::Whole,
                storage_class: 0,
                lock: Lock::default(),
                owner: "ann".into(),
            },
            key: KeyState {
                has_versions: false,
                is_indexed: false,
                null_stamp: id.stamp,
                highest_stamp: id.stamp,
            },
        }
    }

    #[test]
    fn heads_are_frozen() {
        let plain = plain();
        let mut full = plain.clone();
        let lock = Lock { mode: LockMode::Compliance, until_ms: 0x0200_0000_0002, is_held: true };
        full.current = VersionHead {
            is_hidden: true,
            is_null: false,
            is_large: true,
            etag: ETag { md5: [0xd7; 16], parts: 10_000 },
            etag_kind: ETagKind::Parts,
            checksum: Some(Checksum { kind: ChecksumKind::Sha256, value: vec![0xc5; 32] }),
            checksum_shape: ChecksumShape::Parts,
            storage_class: 3,
            lock,
            ..full.current
        };
        full.key = KeyState {
            has_versions: true,
            is_indexed: true,
            null_stamp: 5,
            highest_stamp: 0x0006_ffff_ffff_ffff,
        };
        let version = full.current.encode();
        assert_eq!(VersionHead::decode(&version), Ok(full.current.clone()));
        let text: String =
            [plain.encode(), full.encode(), version].map(|bytes| hex(&bytes) + "\n").concat();
        assert_eq!(text, include_str!("golden/heads.txt"));
        for head in [plain, full] {
            assert_eq!(Head::decode(&head.encode()), Ok(head));
        }
    }

    #[test]
    fn a_version_has_nothing_that_is_the_keys() {
        assert!(VersionHead::decode(&plain().encode()).is_err());
        let mut longest = plain();
        longest.current.owner = "o".repeat(OWNER_SIZE_MAX);
        assert!(longest.encode().len() <= HEAD_SIZE_MAX);
    }

    #[test]
    fn an_unknown_format_is_told() {
        let mut bytes = plain().encode();
        bytes[1] = 2;
        assert_eq!(Head::decode(&bytes).map_err(|bad| bad.why), Err("its format is not known"));
        assert_eq!(Head::decode(&[]).map_err(|bad| bad.why), Err("it is too short"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn whatever_decodes_encodes_to_the_same(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 0..4),
            noise in prop::collection::vec(any::<u8>(), 0..3),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut bytes = plain().encode();
            for (at, bit) in changes {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if noise.len() == 2 {
                bytes.extend(noise);
            }
            if let Some(cut) = cut {
                let cut = cut.index(bytes.len());
                bytes.truncate(cut);
            }
            if let Ok(head) = Head::decode(&bytes) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }
}
