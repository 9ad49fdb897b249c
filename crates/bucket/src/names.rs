//! Names of the objects of an index pool. Frozen: names outlive every process.
//!
//! ```text
//!   k  G       key   00               L      a key of a bucket
//!   u  G       key   00  uuid (22)    L      a stray: data whose fate is open
//!   m  G       key   00  uuid (22)    L      an open multipart upload
//!   p  G       uuid (22)              L      its parts
//!   r  G       id (86)  00            L      Rift: the key of an id
//!   t  G       tag (22) 00  key  00   L      Rift: what a key has under a tag
//!   b  hash    name  00               0      a bucket
//!   i  hash    id (11)  00            0      a bucket's id
//!   n  hash    id (11)  00            0      its counters
//!   o  hash    user  00               0      a user
//!   a  hash    access key  00         0      a user's key
//!   y  hash    owner  00  name  00    0      a bucket of a user
//!   c  hash c  id (22)  00            0      a container
//!   s  hash s  task  00               0      the lease of a background task
//! ```
//!
//! The first byte is the type, the next 8 are the group, the last 2 the locator: a pool of grouped names places
//! by group and locator alone. G is the bucket's id. `hash` is that of what follows, up to the first 00. Hashes
//! and ids are big-endian. Ids, and locators, are written six bits a byte, in bytes 80 to BF, the highest bits
//! first: no delimiter begins with such a byte, so none is ever found behind the 00.
//!
//! Invariants
//!   1. Names of keys of a bucket are in the order of the keys.
//!   2. A name has one encoding: whatever decodes, encodes to the same bytes.

use std::fmt;

use objects::{Name, NameHash};
use sha2::{Digest, Sha512};

use crate::failure::Failure;

/// The longest key, in bytes.
pub const KEY_SIZE_MAX: usize = 1024;
/// The most shards of a bucket.
pub const SPREAD_MAX: u16 = 4096;
/// The spread of a bucket that was created without one.
pub const SPREAD_DEFAULT: u16 = 16;
/// Bytes of a name in front of what its type says: type and group.
pub(crate) const FRONT_SIZE: usize = 9;

const LOCATOR_SIZE: usize = 2;
const ID_SIZE: usize = six_size(8);
const UUID_SIZE: usize = six_size(16);
const RIFT_ID_SIZE: usize = six_size(64);
const _: () = {
    assert!(ID_SIZE == 11);
    assert!(UUID_SIZE == 22);
    assert!(RIFT_ID_SIZE == 86);
};

/// The key of an object: 1 to [`KEY_SIZE_MAX`] bytes of UTF-8 without NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(String);

impl Key {
    /// Creates a key. The error says which rule it breaks.
    pub fn new(key: &str) -> Result<Key, Failure> {
        match key.len() {
            0 => Err(Failure::Invalid { why: "a key has one byte at least".into() }),
            size if size > KEY_SIZE_MAX => Err(Failure::KeyTooLong),
            _ if key.contains('\0') => Err(Failure::Invalid { why: "a key has no byte 0".into() }),
            _ => Ok(Key(key.into())),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a bucket: 64 random bits that no other bucket ever has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(u64);

impl BucketId {
    /// Creates an id. Every number is valid.
    pub const fn new(number: u64) -> BucketId {
        BucketId(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the group of the names of the bucket's keys.
    pub fn group(self) -> Group {
        Group(self.0)
    }
}

impl fmt::Display for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A version of an object, as clients name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VersionId {
    /// The version of an object without versions, or that was put while they were off.
    Null,
    /// A version of its own.
    Numbered(VersionStamp),
}

/// What orders the versions of a key, and tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VersionStamp {
    /// Microseconds since 1970, but always above those of the versions before.
    pub stamp: u64,
    /// Random bits: a commit that is judged anew has a new stamp, and keeps these.
    pub random: u64,
}

impl VersionStamp {
    /// Returns both halves as one id.
    pub(crate) fn uuid(self) -> u128 {
        u128::from(self.stamp) << 64 | u128::from(self.random)
    }
}

impl VersionId {
    /// Reads what `Display` writes. `None`: it is no version id.
    pub fn parse(text: &str) -> Option<VersionId> {
        if text == "null" {
            return Some(VersionId::Null);
        }
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return None;
        }
        let (stamp, random) = text.split_at(16);
        let stamp = u64::from_str_radix(stamp, 16).ok()?;
        let random = u64::from_str_radix(random, 16).ok()?;
        Some(VersionId::Numbered(VersionStamp { stamp, random }))
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionId::Null => f.write_str("null"),
            VersionId::Numbered(VersionStamp { stamp, random }) => {
                write!(f, "{stamp:016x}{random:016x}")
            }
        }
    }
}

/// The eight bytes of a name by which, with the locator, its shard is chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(u64);

impl Group {
    /// Creates a group. Every number is valid.
    pub const fn new(number: u64) -> Group {
        Group(number)
    }

    /// Returns the group of names that are found by this text.
    pub fn of(text: &[u8]) -> Group {
        Group(base::hash::object_hash(text))
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the bytes that stand in names.
    pub fn bytes(self) -> [u8; 8] {
        ordered(self.0)
    }
}

/// The last two bytes of a name: 12 bits, which say in which shard of its group it lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Locator(u16);

impl Locator {
    /// The locator of names whose group has one shard.
    pub const ZERO: Locator = Locator(0);

    /// Creates a locator. `None`: it has more than 12 bits.
    pub const fn new(number: u16) -> Option<Locator> {
        if number < SPREAD_MAX { Some(Locator(number)) } else { None }
    }

    /// Returns the locator of a key. Requires: the spread is a power of two, at most [`SPREAD_MAX`].
    pub fn of_key(bucket: &str, key: &Key, spread: u16) -> Locator {
        assert!(spread.is_power_of_two());
        assert!(spread <= SPREAD_MAX);
        let hash = Sha512::new()
            .chain_update(bucket.as_bytes())
            .chain_update([0])
            .chain_update(key.0.as_bytes())
            .finalize();
        let first = u16::from(hash[0]) << 4 | u16::from(hash[1]) >> 4;
        Locator(first % spread)
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0
    }

    fn bytes(self) -> [u8; LOCATOR_SIZE] {
        [0x80 | (self.0 >> 6) as u8, 0x80 | (self.0 & 63) as u8]
    }
}

/// Of which names a list asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shards {
    /// Those of one group with locators from 0 up to this count.
    Of {
        /// The group.
        group: Group,
        /// The number of locators: a power of two, at most [`SPREAD_MAX`].
        spread: u16,
    },
    /// All names of the pool. For commands of operators alone: it asks every PG.
    All,
}

impl Shards {
    /// Returns a name in each of the shards; two may lie in the same one. `None`: all shards.
    pub fn names(&self) -> Option<Vec<Name>> {
        let Shards::Of { group, spread } = self else { return None };
        let name = |locator: u16| {
            let mut name = front(b'k', *group);
            name.extend_from_slice(&Locator(locator).bytes());
            Name::new(&name).expect("it has eleven bytes")
        };
        Some((0..*spread).map(name).collect())
    }
}

/// A name of the index pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexName {
    /// A key of a bucket: its current version, and records for all versions.
    Key {
        /// The bucket.
        bucket: BucketId,
        /// The key.
        key: Key,
        /// The key's locator.
        locator: Locator,
    },
    /// Places of data whose fate is open.
    Stray {
        /// The bucket.
        bucket: BucketId,
        /// The key.
        key: Key,
        /// A stamp and random bits.
        uuid: u128,
        /// The key's locator.
        locator: Locator,
    },
    /// An open multipart upload.
    OpenUpload {
        /// The bucket.
        bucket: BucketId,
        /// The key.
        key: Key,
        /// The upload: it begins with its stamp, so uploads are in the order of their begin.
        uuid: u128,
        /// The key's locator.
        locator: Locator,
    },
    /// The parts of a multipart upload.
    Parts {
        /// The bucket.
        bucket: BucketId,
        /// The upload.
        uuid: u128,
        /// The key's locator.
        locator: Locator,
    },
    /// The key of a Rift id.
    RiftId {
        /// The bucket.
        bucket: BucketId,
        /// The id: SHA-512 of bucket, 0, key.
        id: [u8; 64],
        /// The key's locator.
        locator: Locator,
    },
    /// What a key has under a tag.
    Tagged {
        /// The bucket.
        bucket: BucketId,
        /// Hash of the tag.
        tag: u128,
        /// The key.
        key: Key,
        /// The key's locator.
        locator: Locator,
    },
    /// A bucket.
    Bucket(String),
    /// Whether a bucket's id is in use.
    Id(BucketId),
    /// Counters of a bucket.
    Counters(BucketId),
    /// A user.
    User(String),
    /// A user's access key.
    AccessKey(String),
    /// A bucket of a user.
    Owned {
        /// The user.
        owner: String,
        /// The bucket.
        bucket: String,
    },
    /// A container.
    Container(u128),
    /// The lease of a background task.
    Lease(String),
}

impl IndexName {
    /// Returns the name of an object. `None`: a text in it is empty, has a byte 0, or makes it too long.
    pub fn encode(&self) -> Option<Name> {
        let mut rest = Vec::with_capacity(64);
        let text = |rest: &mut Vec<u8>, text: &str| {
            rest.extend_from_slice(text.as_bytes());
            rest.push(0);
            !text.is_empty() && !text.contains('\0')
        };
        let mut is_valid = true;
        match self {
            IndexName::Key { key, .. } => is_valid = text(&mut rest, &key.0),
            IndexName::Stray { key, uuid, .. } | IndexName::OpenUpload { key, uuid, .. } => {
                is_valid = text(&mut rest, &key.0);
                write_six(&mut rest, &ordered_long(*uuid));
            }
            IndexName::Parts { uuid, .. } => write_six(&mut rest, &ordered_long(*uuid)),
            IndexName::RiftId { id, .. } => {
                write_six(&mut rest, id);
                rest.push(0);
            }
            IndexName::Tagged { tag, key, .. } => {
                write_six(&mut rest, &ordered_long(*tag));
                rest.push(0);
                is_valid = text(&mut rest, &key.0);
            }
            IndexName::Bucket(name) | IndexName::User(name) => is_valid = text(&mut rest, name),
            IndexName::AccessKey(name) | IndexName::Lease(name) => is_valid = text(&mut rest, name),
            IndexName::Id(id) | IndexName::Counters(id) => {
                write_six(&mut rest, &ordered(id.0));
                rest.push(0);
            }
            IndexName::Owned { owner, bucket } => {
                is_valid = text(&mut rest, owner);
                is_valid &= text(&mut rest, bucket);
            }
            IndexName::Container(id) => {
                write_six(&mut rest, &ordered_long(*id));
                rest.push(0);
            }
        }
        let (kind, group, locator) = (self.kind(), self.group(&rest), self.locator());
        let bytes = [&[kind][..], &group.bytes(), &rest, &locator.bytes()].concat();
        Name::new(&bytes).filter(|_| is_valid)
    }

    /// Reads a name. `None`: it is none of the index pool's.
    pub fn decode(name: &[u8]) -> Option<IndexName> {
        let (&kind, rest) = name.split_first()?;
        let (group, rest) = rest.split_at_checked(8)?;
        let (rest, locator) = rest.split_at_checked(rest.len().checked_sub(LOCATOR_SIZE)?)?;
        let bucket = BucketId(number(group)?);
        let locator = Locator(read_six::<2>(&[&[0x80], locator].concat())? as u16);
        let key = |key: &[u8]| Key::new(std::str::from_utf8(key).ok()?).ok();
        let key_and_uuid = || {
            let (name, uuid) = rest.split_at_checked(rest.len().checked_sub(UUID_SIZE)?)?;
            Some((key(name.strip_suffix(&[0])?)?, read_six::<16>(uuid)?))
        };
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok()?;
            (!text.is_empty() && !text.contains('\0')).then(|| text.to_owned())
        };
        let ended = || rest.strip_suffix(&[0]);
        let found = match kind {
            b'k' => IndexName::Key { bucket, key: key(ended()?)?, locator },
            b'u' => {
                let (key, uuid) = key_and_uuid()?;
                IndexName::Stray { bucket, key, uuid, locator }
            }
            b'm' => {
                let (key, uuid) = key_and_uuid()?;
                IndexName::OpenUpload { bucket, key, uuid, locator }
            }
            b'p' => IndexName::Parts { bucket, uuid: read_six::<16>(rest)?, locator },
            b'r' => IndexName::RiftId { bucket, id: read_six_bytes(ended()?)?, locator },
            b't' => {
                let (tag, rest) = rest.split_at_checked(UUID_SIZE)?;
                let tag = read_six::<16>(tag)?;
                let key = key(rest.strip_prefix(&[0])?.strip_suffix(&[0])?)?;
                IndexName::Tagged { bucket, tag, key, locator }
            }
            b'b' => IndexName::Bucket(text(ended()?)?),
            b'i' => IndexName::Id(BucketId(read_six::<8>(ended()?)? as u64)),
            b'n' => IndexName::Counters(BucketId(read_six::<8>(ended()?)? as u64)),
            b'o' => IndexName::User(text(ended()?)?),
            b'a' => IndexName::AccessKey(text(ended()?)?),
            b'y' => {
                let rest = ended()?;
                let at = rest.iter().position(|byte| *byte == 0)?;
                let (owner, bucket) = (text(&rest[..at])?, text(&rest[at + 1..])?);
                IndexName::Owned { owner, bucket }
            }
            b'c' => IndexName::Container(read_six::<16>(ended()?)?),
            b's' => IndexName::Lease(text(ended()?)?),
            _ => return None,
        };
        // Group and locator must be those of the name.
        let encoded = found.encode()?;
        (encoded.bytes() == name).then_some(found)
    }

    fn kind(&self) -> u8 {
        match self {
            IndexName::Key { .. } => b'k',
            IndexName::Stray { .. } => b'u',
            IndexName::OpenUpload { .. } => b'm',
            IndexName::Parts { .. } => b'p',
            IndexName::RiftId { .. } => b'r',
            IndexName::Tagged { .. } => b't',
            IndexName::Bucket(_) => b'b',
            IndexName::Id(_) => b'i',
            IndexName::Counters(_) => b'n',
            IndexName::User(_) => b'o',
            IndexName::AccessKey(_) => b'a',
            IndexName::Owned { .. } => b'y',
            IndexName::Container(_) => b'c',
            IndexName::Lease(_) => b's',
        }
    }

    /// Returns the group, of a name with this behind it.
    fn group(&self, rest: &[u8]) -> Group {
        match self {
            IndexName::Key { bucket, .. }
            | IndexName::Stray { bucket, .. }
            | IndexName::OpenUpload { bucket, .. }
            | IndexName::Parts { bucket, .. }
            | IndexName::RiftId { bucket, .. }
            | IndexName::Tagged { bucket, .. } => bucket.group(),
            IndexName::Container(_) | IndexName::Lease(_) => Group::of(&[self.kind()]),
            _ => Group::of(rest.split(|byte| *byte == 0).next().unwrap_or_default()),
        }
    }

    fn locator(&self) -> Locator {
        match self {
            IndexName::Key { locator, .. }
            | IndexName::Stray { locator, .. }
            | IndexName::OpenUpload { locator, .. }
            | IndexName::Parts { locator, .. }
            | IndexName::RiftId { locator, .. }
            | IndexName::Tagged { locator, .. } => *locator,
            _ => Locator::ZERO,
        }
    }
}

/// Returns what the names of a type and group begin with.
pub(crate) fn front(kind: u8, group: Group) -> Vec<u8> {
    [&[kind][..], &group.bytes()].concat()
}

/// Returns group and locator of a name of the index pool. `None`: it is too short to have them.
pub fn place_of(name: &[u8]) -> Option<(Group, Locator)> {
    // A shorter name has its plain hash.
    if name.len() < FRONT_SIZE + LOCATOR_SIZE {
        return None;
    }
    let (high, low) = (name[name.len() - 2] & 63, name[name.len() - 1] & 63);
    let group = Group(number(&name[1..FRONT_SIZE])?);
    Some((group, Locator(u16::from(high) << 6 | u16::from(low))))
}

/// Returns the top 16 bits of the hash of a name in a pool of grouped names: those of its group's hash, moved
/// by the locator's 12 bits in reverse order. So locators below a power of two divide the ring evenly.
pub fn ring_position(name: &[u8]) -> u16 {
    (NameHash::Grouped.of(name) >> 16) as u16
}

/// Returns the bytes of a number such that their order is that of numbers.
pub(crate) fn ordered(number: u64) -> [u8; 8] {
    number.swap_bytes().to_le_bytes()
}

/// Returns the bytes of a number such that their order is that of numbers.
fn ordered_long(number: u128) -> [u8; 16] {
    number.swap_bytes().to_le_bytes()
}

/// Reads what [`ordered`] wrote.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?).swap_bytes())
}

/// Returns how many bytes of six bits so many bytes take.
const fn six_size(size: usize) -> usize {
    (size * 8).div_ceil(6)
}

/// Returns which bucket, key and locator the name of a key or of a stray says. `None`: it is none.
fn place_in_bucket(name: &Name) -> Option<(BucketId, Key, Locator)> {
    match IndexName::decode(name.bytes())? {
        IndexName::Key { bucket, key, locator } | IndexName::Stray { bucket, key, locator, .. } => {
            Some((bucket, key, locator))
        }
        _ => None,
    }
}

fn no_key(name: &Name) -> Failure {
    Failure::Damaged { what: format!("the name of a key is malformed ({name:?})") }
}

/// Returns the name of a stray of a key, in the shard of the key.
pub(crate) fn stray_beside(key: &Name, uuid: u128) -> Result<Name, Failure> {
    let (bucket, key, locator) = place_in_bucket(key).ok_or_else(|| no_key(key))?;
    let name = IndexName::Stray { bucket, key, uuid, locator }.encode();
    name.ok_or(Failure::KeyTooLong)
}

/// Returns the name of the parts of an upload, in the shard of its key or of a stray of it.
pub(crate) fn parts_beside(key: &Name, uuid: u128) -> Result<Name, Failure> {
    let (bucket, _, locator) = place_in_bucket(key).ok_or_else(|| no_key(key))?;
    let name = IndexName::Parts { bucket, uuid, locator }.encode();
    name.ok_or_else(|| no_key(key))
}

/// Returns a 128-bit id as it stands in names.
pub(crate) fn six_of(id: u128) -> Vec<u8> {
    let mut out = Vec::with_capacity(UUID_SIZE);
    write_six(&mut out, &ordered_long(id));
    out
}

/// Writes bytes, six bits a byte. Zero bits in front fill up the first one.
fn write_six(out: &mut Vec<u8>, bytes: &[u8]) {
    let count = six_size(bytes.len());
    let filled = count * 6 - bytes.len() * 8;
    for at in 0..count {
        let mut six = 0;
        for bit in at * 6..at * 6 + 6 {
            let one = bit.checked_sub(filled).map_or(0, |bit| bytes[bit / 8] >> (7 - bit % 8) & 1);
            six = six << 1 | one;
        }
        out.push(0x80 | six);
    }
}

/// Reads what [`write_six`] wrote. `None`: it is none of its texts.
fn read_six_bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != six_size(N) || !text.iter().all(|byte| (0x80..=0xbf).contains(byte)) {
        return None;
    }
    let filled = text.len() * 6 - N * 8;
    let mut bytes = [0; N];
    for bit in 0..text.len() * 6 {
        let one = text[bit / 6] >> (5 - bit % 6) & 1;
        match bit.checked_sub(filled) {
            Some(bit) => bytes[bit / 8] |= one << (7 - bit % 8),
            None if one != 0 => return None,
            None => {}
        }
    }
    Some(bytes)
}

/// Reads a number that [`write_six`] wrote.
fn read_six<const N: usize>(text: &[u8]) -> Option<u128> {
    let bytes: [u8; N] = read_six_bytes(text)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(name: &IndexName) -> String {
        name.encode().expect("a name").bytes().escape_ascii().to_string()
    }

    #[test]
    fn names_are_frozen() {
        let bucket = BucketId::new(0x0102_0304_0506_07ff);
        let key = Key::new("a/b%").expect("a key");
        let locator = Locator::of_key("photos", &key, 16);
        assert_eq!(locator.get(), GOLDEN_LOCATOR);
        let uuid = 0x0006_0000_0000_0001_8000_0000_0000_0003;
        let names = [
            IndexName::Key { bucket, key: key.clone(), locator },
            IndexName::Stray { bucket, key: key.clone(), uuid, locator },
            IndexName::OpenUpload { bucket, key: key.clone(), uuid, locator },
            IndexName::Parts { bucket, uuid, locator },
            IndexName::RiftId { bucket, id: [0x5a; 64], locator },
            IndexName::Tagged { bucket, tag: 7, key, locator: Locator(0xfff) },
            IndexName::Bucket("photos".into()),
            IndexName::Id(bucket),
            IndexName::Counters(bucket),
            IndexName::User("ann".into()),
            IndexName::AccessKey("AK0123456789ABCDEFGH".into()),
            IndexName::Owned { owner: "ann".into(), bucket: "photos".into() },
            IndexName::Container(uuid),
            IndexName::Lease("collector".into()),
        ];
        let golden = include_str!("golden/names.txt");
        let text: String = names.iter().map(|name| shown(name) + "\n").collect();
        assert_eq!(text, golden);
        for name in names {
            let encoded = name.encode().expect("a name");
            assert_eq!(IndexName::decode(encoded.bytes()), Some(name));
        }
    }

    /// First 12 bits of `printf 'photos\0a/b%%' | sha512sum`, modulo 16.
    const GOLDEN_LOCATOR: u16 = 0x6dc % 16;

    #[test]
    fn keys_break_rules() {
        assert!(Key::new("").is_err());
        assert!(Key::new("a\0b").is_err());
        assert_eq!(Key::new(&"a".repeat(1025)), Err(Failure::KeyTooLong));
        for key in ["/", "..", "//a", " ", "%", "\u{1}"] {
            assert_eq!(Key::new(key).map(|key| key.to_string()), Ok(key.into()));
        }
    }

    #[test]
    fn locators_are_the_low_six_bits_of_two_bytes() {
        for number in 0..SPREAD_MAX {
            let locator = Locator::new(number).expect("12 bits");
            let bytes = locator.bytes();
            assert!(bytes.iter().all(|byte| (0x80..=0xbf).contains(byte)));
            assert_eq!(u16::from(bytes[0] & 63) << 6 | u16::from(bytes[1] & 63), number);
            let name = [&b"k01234567"[..], &bytes].concat();
            assert_eq!(place_of(&name), Some((Group(number_of("01234567")), locator)));
        }
        assert_eq!(Locator::new(SPREAD_MAX), None);
        assert_eq!(place_of(b"k01234567\x80"), None);
    }

    fn number_of(text: &str) -> u64 {
        number(text.as_bytes()).expect("eight bytes")
    }

    fn any_key() -> impl Strategy<Value = Key> {
        let characters = prop_oneof!["[a-c/]", "[\u{1}-\u{10ffff}]"];
        let text = prop::collection::vec(characters, 1..40).prop_map(|parts| parts.concat());
        text.prop_map(|text| Key::new(&text).expect("a key"))
    }

    fn any_locator() -> impl Strategy<Value = Locator> {
        (0..SPREAD_MAX).prop_map(Locator)
    }

    fn any_name() -> impl Strategy<Value = IndexName> {
        let text = || any_key().prop_map(|key| key.to_string());
        let bucket = || any::<u64>().prop_map(BucketId);
        prop_oneof![
            (bucket(), any_key(), any_locator())
                .prop_map(|(bucket, key, locator)| IndexName::Key { bucket, key, locator }),
            (bucket(), any_key(), any::<u128>(), any_locator()).prop_map(
                |(bucket, key, uuid, locator)| IndexName::Stray { bucket, key, uuid, locator }
            ),
            (bucket(), any_key(), any::<u128>(), any_locator()).prop_map(
                |(bucket, key, uuid, locator)| IndexName::OpenUpload { bucket, key, uuid, locator }
            ),
            (bucket(), any::<u128>(), any_locator())
                .prop_map(|(bucket, uuid, locator)| IndexName::Parts { bucket, uuid, locator }),
            (bucket(), prop::array::uniform32(any::<u8>()), any_locator()).prop_map(
                |(bucket, half, locator)| {
                    let mut id = [0; 64];
                    id[..32].copy_from_slice(&half);
                    id[32..].copy_from_slice(&half);
                    IndexName::RiftId { bucket, id, locator }
                }
            ),
            (bucket(), any::<u128>(), any_key(), any_locator()).prop_map(
                |(bucket, tag, key, locator)| IndexName::Tagged { bucket, tag, key, locator }
            ),
            text().prop_map(IndexName::Bucket),
            bucket().prop_map(IndexName::Id),
            bucket().prop_map(IndexName::Counters),
            text().prop_map(IndexName::User),
            text().prop_map(IndexName::AccessKey),
            (text(), text()).prop_map(|(owner, bucket)| IndexName::Owned { owner, bucket }),
            any::<u128>().prop_map(IndexName::Container),
            text().prop_map(IndexName::Lease),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn names_are_read_as_they_were_written(name in any_name()) {
            let encoded = name.encode().expect("a name");
            prop_assert_eq!(IndexName::decode(encoded.bytes()), Some(name));
        }

        #[test]
        fn whatever_decodes_encodes_to_the_same(
            name in any_name(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            is_cut in any::<bool>(),
        ) {
            let mut bytes = name.encode().expect("a name").bytes().to_vec();
            let at = at.index(bytes.len());
            match is_cut {
                true => bytes.truncate(at),
                false => bytes[at] = byte,
            }
            if let Some(name) = IndexName::decode(&bytes) {
                let encoded = name.encode().expect("a name");
                prop_assert_eq!(encoded.bytes(), &bytes[..]);
            }
        }

        #[test]
        fn names_are_in_the_order_of_keys(
            one in any_key(),
            other in any_key(),
            locators in (any_locator(), any_locator()),
            uuids in (any::<u128>(), any::<u128>()),
        ) {
            let bucket = BucketId(7);
            let name = |key: &Key, locator| {
                IndexName::Key { bucket, key: key.clone(), locator }.encode().expect("a name")
            };
            if one != other {
                let order = name(&one, locators.0).cmp(&name(&other, locators.1));
                prop_assert_eq!(order, one.cmp(&other));
            }
            // Uploads of one key are in the order of their ids.
            let upload = |uuid| {
                let (key, locator) = (one.clone(), locators.0);
                IndexName::OpenUpload { bucket, key, uuid, locator }.encode().expect("a name")
            };
            prop_assert_eq!(upload(uuids.0).cmp(&upload(uuids.1)), uuids.0.cmp(&uuids.1));
        }

        #[test]
        fn version_ids_are_read_as_they_are_shown(stamp in any::<u64>(), random in any::<u64>()) {
            for id in [VersionId::Null, VersionId::Numbered(VersionStamp { stamp, random })] {
                prop_assert_eq!(VersionId::parse(&id.to_string()), Some(id));
            }
        }
    }
}
