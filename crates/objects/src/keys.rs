//! Keys of the engine: where the parts of an object lie among the sorted records of its pool.
//!
//! ```text
//!   shard (2, big-endian) | kind (1) | ...
//!     0x10 head        name
//!     0x20 attribute   name* , attribute
//!     0x30 record      name* , record key
//!     0x40 repeat      session (8, big-endian), number (8, big-endian)
//!     0x50 incomplete  name
//!     0x51 lost        first key of a range
//!     0x60 log         epoch (4, big-endian), counter (8, big-endian); of a page: incarnation (8), number (8)
//!   name*: each byte 00 is 00 FF, and 00 01 is the end
//! ```
//!
//! Invariants
//!   1. Keys sort as [`Key`] does: by shard, kind, name, and what follows. An end (00 01) sorts below a continued
//!      zero (00 FF) and below any other byte.
//!   2. A key has one encoding: whatever decodes, encodes to the same bytes.

use std::fmt;

use base::hash::NameHash;
use base::{Epoch, Incarnation, SessionId, Version};
use format::engine::KEY_SIZE_MAX;

use crate::listing::behind;

/// The longest name of an object, in bytes.
pub const NAME_SIZE_MAX: usize = 1088;
/// The longest name of an attribute, in bytes.
pub const ATTRIBUTE_SIZE_MAX: usize = 255;
/// The longest key of a record, in bytes.
pub const RECORD_KEY_SIZE_MAX: usize = 2048;

/// The longest first key of a range that is lost, in bytes.
pub const LOST_SIZE_MAX: usize = KEY_SIZE_MAX - HEADER_SIZE;

/// Size of shard and kind.
pub(crate) const HEADER_SIZE: usize = 3;
const END: [u8; 2] = [0x00, 0x01];
const ZERO: [u8; 2] = [0x00, 0xff];

const _: () = {
    let longest = HEADER_SIZE + 2 * NAME_SIZE_MAX + END.len() + RECORD_KEY_SIZE_MAX;
    assert!(longest <= KEY_SIZE_MAX);
};

const HEAD: u8 = 0x10;
const ATTRIBUTE: u8 = 0x20;
const RECORD: u8 = 0x30;
const REPEAT: u8 = 0x40;
const INCOMPLETE: u8 = 0x50;
const LOST: u8 = 0x51;
const LOG: u8 = 0x60;

/// The name of an object: 1 to [`NAME_SIZE_MAX`] bytes of any value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Creates a name. `None`: it is empty or too long.
    pub fn new(bytes: &[u8]) -> Option<Name> {
        (1..=NAME_SIZE_MAX).contains(&bytes.len()).then(|| Name(bytes.into()))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the hash by which shards, PGs and keys of blocks are chosen, in a pool with such names.
    pub fn hash(&self, names: NameHash) -> u32 {
        names.of(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The number of a shard: a part of a pool's objects, by the top bits of their hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard(u16);

impl Shard {
    /// Creates a number. Every number is valid.
    pub const fn new(number: u16) -> Shard {
        Shard(number)
    }

    /// Returns the shard of an object with this hash. Requires: `shard_count` is a power of two, at most
    /// 65,536.
    pub const fn of_hash(hash: u32, shard_count: u32) -> Shard {
        Shard(base::hash::pg_of_hash(hash, shard_count) as u16)
    }

    /// Returns the shard of a key of the engine. Requires: it is one.
    pub fn of_key(key: &[u8]) -> Shard {
        let mut rest = key;
        Shard(take_number::<2>(&mut rest).expect("a key begins with its shard") as u16)
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// In which shards a pool's objects lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharding {
    /// The number of its shards: a power of two, at most 65,536.
    pub shard_count: u32,
    /// How its names become hashes.
    pub names: NameHash,
}

impl Sharding {
    /// Returns the hash of an object.
    pub fn hash(self, name: &Name) -> u32 {
        name.hash(self.names)
    }

    /// Returns the shard of an object.
    pub fn shard(self, name: &Name) -> Shard {
        Shard::of_hash(self.hash(name), self.shard_count)
    }
}

/// A key of the engine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The shard of the object, or of the log.
    pub shard: Shard,
    /// What the record is.
    pub kind: Kind,
}

/// What a record of the engine is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Version, size and short data of an object, or its tombstone.
    Head {
        /// The object.
        name: Name,
    },
    /// An attribute of an object.
    Attribute {
        /// The object.
        name: Name,
        /// Its name: 1 to [`ATTRIBUTE_SIZE_MAX`] bytes.
        attribute: Vec<u8>,
    },
    /// A record of an object.
    Record {
        /// The object.
        name: Name,
        /// Its key: 1 to [`RECORD_KEY_SIZE_MAX`] bytes.
        key: Vec<u8>,
    },
    /// The result of an operation that may be repeated.
    Repeat {
        /// The session of the client.
        session: SessionId,
        /// The number of the operation in the session.
        number: u64,
    },
    /// The object is copied whole, and not done.
    Incomplete {
        /// The object.
        name: Name,
    },
    /// A range of keys that no member can read.
    Lost {
        /// The first key of the range, as it is in the engine: at most [`LOST_SIZE_MAX`] bytes.
        first: Vec<u8>,
    },
    /// Above this version the log names all that happened. The highest one of a shard counts.
    Reach(Version),
    /// What a version touched.
    Log(LogKey),
}

/// The key of a log record, behind shard and kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogKey {
    /// The last version of the batch, or the version of the page.
    pub version: Version,
    /// Of a page: the incarnation of the member that wrote it, and a number that no other of its pages has.
    pub page: Option<(Incarnation, u64)>,
}

impl Kind {
    const fn number(&self) -> u8 {
        match self {
            Kind::Head { .. } => HEAD,
            Kind::Attribute { .. } => ATTRIBUTE,
            Kind::Record { .. } => RECORD,
            Kind::Repeat { .. } => REPEAT,
            Kind::Incomplete { .. } => INCOMPLETE,
            Kind::Lost { .. } => LOST,
            Kind::Log(_) | Kind::Reach(_) => LOG,
        }
    }

    /// Whether all components are within their limits.
    fn is_sound(&self) -> bool {
        match self {
            Kind::Attribute { attribute, .. } => {
                (1..=ATTRIBUTE_SIZE_MAX).contains(&attribute.len())
            }
            Kind::Record { key, .. } => (1..=RECORD_KEY_SIZE_MAX).contains(&key.len()),
            Kind::Lost { first } => (1..=LOST_SIZE_MAX).contains(&first.len()),
            // Epoch 0 stands for a reach.
            Kind::Log(key) => key.version.epoch > Epoch::ZERO,
            Kind::Head { .. } | Kind::Repeat { .. } | Kind::Incomplete { .. } | Kind::Reach(_) => {
                true
            }
        }
    }
}

impl Key {
    /// Encodes the key. Requires: its components are within their limits.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.kind.is_sound());
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&number_bytes::<2>(u64::from(self.shard.0)));
        bytes.push(self.kind.number());
        match &self.kind {
            Kind::Head { name } | Kind::Incomplete { name } => bytes.extend_from_slice(&name.0),
            Kind::Attribute { name, attribute } => {
                push_name(&mut bytes, name);
                bytes.extend_from_slice(attribute);
            }
            Kind::Record { name, key } => {
                push_name(&mut bytes, name);
                bytes.extend_from_slice(key);
            }
            Kind::Lost { first } => bytes.extend_from_slice(first),
            Kind::Repeat { session, number } => {
                bytes.extend_from_slice(&number_bytes::<8>(session.get()));
                bytes.extend_from_slice(&number_bytes::<8>(*number));
            }
            Kind::Reach(version) => {
                bytes.extend_from_slice(&number_bytes::<4>(0));
                bytes.extend_from_slice(&number_bytes::<4>(u64::from(version.epoch.get())));
                bytes.extend_from_slice(&number_bytes::<8>(version.counter));
            }
            Kind::Log(LogKey { version, page }) => {
                bytes.extend_from_slice(&number_bytes::<4>(u64::from(version.epoch.get())));
                bytes.extend_from_slice(&number_bytes::<8>(version.counter));
                if let Some((incarnation, number)) = page {
                    bytes.extend_from_slice(&number_bytes::<8>(incarnation.get()));
                    bytes.extend_from_slice(&number_bytes::<8>(*number));
                }
            }
        }
        bytes
    }

    /// Decodes a key. `None`: the bytes are no key.
    pub fn decode(bytes: &[u8]) -> Option<Key> {
        let mut rest = bytes;
        let shard = Shard(take_number::<2>(&mut rest)? as u16);
        let number = take_number::<1>(&mut rest)? as u8;
        let kind = match number {
            HEAD => Kind::Head { name: Name::new(rest)? },
            INCOMPLETE => Kind::Incomplete { name: Name::new(rest)? },
            LOST => Kind::Lost { first: rest.to_vec() },
            ATTRIBUTE => Kind::Attribute { name: take_name(&mut rest)?, attribute: rest.to_vec() },
            RECORD => Kind::Record { name: take_name(&mut rest)?, key: rest.to_vec() },
            REPEAT => {
                let session = SessionId::new(take_number::<8>(&mut rest)?);
                let number = take_number::<8>(&mut rest)?;
                rest.is_empty().then_some(Kind::Repeat { session, number })?
            }
            LOG => {
                let kind = match Epoch::new(take_number::<4>(&mut rest)? as u32) {
                    Epoch::ZERO => {
                        let epoch = Epoch::new(take_number::<4>(&mut rest)? as u32);
                        Kind::Reach(Version { epoch, counter: take_number::<8>(&mut rest)? })
                    }
                    epoch => {
                        let version = Version { epoch, counter: take_number::<8>(&mut rest)? };
                        let mut page = None;
                        if !rest.is_empty() {
                            let incarnation = Incarnation::new(take_number::<8>(&mut rest)?);
                            page = Some((incarnation, take_number::<8>(&mut rest)?));
                        }
                        Kind::Log(LogKey { version, page })
                    }
                };
                rest.is_empty().then_some(kind)?
            }
            _ => return None,
        };
        kind.is_sound().then_some(Key { shard, kind })
    }
}

/// Returns the range of the keys of an object's attributes: the first key, and the first one behind them.
pub fn attributes_range(shard: Shard, name: &Name) -> (Vec<u8>, Vec<u8>) {
    let prefix = prefix(shard, ATTRIBUTE, name);
    let end = behind_all(&prefix);
    (prefix, end)
}

/// Returns the range of the keys of an object's records from `from` on, up to `before`, which is not in it.
/// An empty `from` and `None` stand for all. Requires: they are keys of records, and the range is not empty.
pub fn records_range(
    shard: Shard,
    name: &Name,
    from: &[u8],
    before: Option<&[u8]>,
) -> (Vec<u8>, Vec<u8>) {
    let prefix = prefix(shard, RECORD, name);
    let end = before.map_or_else(|| behind_all(&prefix), |before| [&prefix, before].concat());
    ([&prefix, from].concat(), end)
}

/// Returns the range of the keys of all heads of a shard: the first key, and the first one behind them.
pub fn heads_range(shard: Shard) -> (Vec<u8>, Vec<u8>) {
    kinds_range(shard, HEAD, HEAD)
}

/// Returns the range of the keys of all repeats of a shard.
pub fn repeats_range(shard: Shard) -> (Vec<u8>, Vec<u8>) {
    kinds_range(shard, REPEAT, REPEAT)
}

/// Returns the range of the keys by which a member says which objects of a shard are incomplete.
pub fn incomplete_range(shard: Shard) -> (Vec<u8>, Vec<u8>) {
    kinds_range(shard, INCOMPLETE, INCOMPLETE)
}

/// Returns the range of all keys of a shard that are not a member's own.
pub fn shared_range(shard: Shard) -> (Vec<u8>, Vec<u8>) {
    kinds_range(shard, HEAD, REPEAT)
}

/// Returns the range of all keys of these shards, whatever they are. Requires: `first <= last`.
pub fn shards_range(first: Shard, last: Shard) -> (Vec<u8>, Vec<u8>) {
    assert!(first <= last);
    let end = match last.0.checked_add(1) {
        Some(next) => number_bytes::<2>(u64::from(next)).to_vec(),
        // No kind has this number.
        None => vec![u8::MAX; HEADER_SIZE],
    };
    (number_bytes::<2>(u64::from(first.0)).to_vec(), end)
}

fn kinds_range(shard: Shard, first: u8, last: u8) -> (Vec<u8>, Vec<u8>) {
    let of = |kind: u8| {
        let mut bytes = number_bytes::<2>(u64::from(shard.0)).to_vec();
        bytes.push(kind);
        bytes
    };
    (of(first), of(last + 1))
}

/// Returns what the keys of all heads of a shard begin with; the name of the object is the rest.
pub fn heads_prefix(shard: Shard) -> Vec<u8> {
    let mut bytes = number_bytes::<2>(u64::from(shard.0)).to_vec();
    bytes.push(HEAD);
    bytes
}

/// Returns what the keys of all attributes of an object begin with; the attribute's name is the rest.
pub fn attributes_prefix(shard: Shard, name: &Name) -> Vec<u8> {
    prefix(shard, ATTRIBUTE, name)
}

/// Returns what the keys of all records of an object begin with; the record's key is the rest.
pub fn records_prefix(shard: Shard, name: &Name) -> Vec<u8> {
    prefix(shard, RECORD, name)
}

/// Returns the range of the reaches of a shard below a version, or of all of them: the first key, and the
/// first one behind.
pub fn reach_range(shard: Shard, below: Option<Version>) -> (Vec<u8>, Vec<u8>) {
    let start = [&number_bytes::<2>(u64::from(shard.0))[..], &[LOG], &[0; 4]].concat();
    let end = match below {
        Some(version) => Key { shard, kind: Kind::Reach(version) }.encode(),
        None => log_range(shard, Version::ZERO).0,
    };
    (start, end)
}

/// Returns the range of the log records of a shard above a version: the first key, and the first one behind.
pub fn log_range(shard: Shard, after: Version) -> (Vec<u8>, Vec<u8>) {
    let prefix = [&number_bytes::<2>(u64::from(shard.0))[..], &[LOG]].concat();
    // No version has epoch 0: that is where the reach lies.
    let first = match after {
        Version::ZERO => Version { epoch: Epoch::new(1), counter: 0 },
        Version { epoch, counter } => Version { epoch, counter: counter + 1 },
    };
    let kind = Kind::Log(LogKey { version: first, page: None });
    (Key { shard, kind }.encode(), behind_all(&prefix))
}

/// Returns the object to which a key of the engine belongs, or with whose keys a range begins. `None`: it
/// is no object's.
pub fn object_of(key: &[u8]) -> Option<Name> {
    let (header, mut rest) = key.split_at_checked(HEADER_SIZE)?;
    match header[HEADER_SIZE - 1] {
        HEAD => Name::new(rest),
        ATTRIBUTE | RECORD => take_name(&mut rest),
        _ => None,
    }
}

/// Whether a key of the engine is one that each member has for itself.
pub fn is_own(key: &[u8]) -> bool {
    key.get(HEADER_SIZE - 1).is_some_and(|kind| (0x50..0x70).contains(kind))
}

/// Whether a key of the engine is one of the log.
pub fn is_log(key: &[u8]) -> bool {
    key.get(HEADER_SIZE - 1) == Some(&LOG)
}

/// Whether a key of the engine is that of a head.
pub(crate) fn is_head(key: &[u8]) -> bool {
    key.get(HEADER_SIZE - 1) == Some(&HEAD)
}

/// Returns the size of what the keys of an object's attributes begin with, and those of its records.
pub(crate) fn part_prefix_size(name: &Name) -> usize {
    let zeros = name.0.iter().filter(|byte| **byte == 0).count();
    HEADER_SIZE + name.0.len() + zeros + END.len()
}

/// Returns what all keys of an object's parts begin with.
fn prefix(shard: Shard, kind: u8, name: &Name) -> Vec<u8> {
    let mut bytes = number_bytes::<2>(u64::from(shard.0)).to_vec();
    bytes.push(kind);
    push_name(&mut bytes, name);
    bytes
}

/// Returns the first key behind all that begin with these bytes. Requires: they end with a kind or with
/// [`END`].
pub(crate) fn behind_all(prefix: &[u8]) -> Vec<u8> {
    behind(prefix).expect("kinds and ends have a byte below the highest")
}

/// Returns the last `N` bytes of the number, big-endian, so that keys sort as numbers do.
fn number_bytes<const N: usize>(number: u64) -> [u8; N] {
    std::array::from_fn(|at| (number >> (8 * (N - 1 - at))) as u8)
}

fn take_number<const N: usize>(bytes: &mut &[u8]) -> Option<u64> {
    let (taken, rest) = bytes.split_at_checked(N)?;
    *bytes = rest;
    Some(taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn push_name(bytes: &mut Vec<u8>, name: &Name) {
    for byte in &name.0 {
        match byte {
            0 => bytes.extend_from_slice(&ZERO),
            _ => bytes.push(*byte),
        }
    }
    bytes.extend_from_slice(&END);
}

/// Removes a name and its end from the front of the bytes.
fn take_name(bytes: &mut &[u8]) -> Option<Name> {
    let mut name = Vec::new();
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if *byte != 0 {
            name.push(*byte);
            continue;
        }
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        match [0, *byte] {
            ZERO => name.push(0),
            END => return Name::new(&name),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).expect("the length is in range")
    }

    fn key(kind: Kind) -> Key {
        Key { shard: Shard::new(0x0102), kind }
    }

    fn hex(key: &Key) -> String {
        key.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn ranges_have_the_keys_of_their_kinds_and_of_no_other() {
        for shard in [0, 0x0102, u16::MAX].map(Shard::new) {
            let name = name(&[0xff; 3]);
            let kinds = [
                Kind::Head { name: name.clone() },
                Kind::Attribute { name: name.clone(), attribute: vec![0xff] },
                Kind::Record { name: name.clone(), key: vec![0xff] },
                Kind::Repeat { session: SessionId::new(u64::MAX), number: u64::MAX },
                Kind::Incomplete { name },
                Kind::Reach(Version { epoch: Epoch::new(u32::MAX), counter: u64::MAX }),
            ];
            let ranges = [
                (heads_range(shard), 0..1),
                (shared_range(shard), 0..4),
                (repeats_range(shard), 3..4),
                (incomplete_range(shard), 4..5),
                (shards_range(shard, shard), 0..6),
            ];
            for ((start, end), has) in ranges {
                for (index, kind) in kinds.iter().enumerate() {
                    let key = Key { shard, kind: kind.clone() }.encode();
                    assert_eq!((&start..&end).contains(&&key), has.contains(&index), "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn keys_are_frozen() {
        let of = name(b"a\0");
        let version = Version { epoch: Epoch::new(3), counter: 0x100 };
        let page = Some((Incarnation::new(5), 6));
        let frozen = [
            (Kind::Head { name: of.clone() }, "0102106100"),
            (Kind::Attribute { name: of.clone(), attribute: b"b".to_vec() }, "0102206100ff000162"),
            (Kind::Record { name: of.clone(), key: b"\0".to_vec() }, "0102306100ff000100"),
            (
                Kind::Repeat { session: SessionId::new(7), number: 8 },
                "01024000000000000000070000000000000008",
            ),
            (Kind::Incomplete { name: of }, "0102506100"),
            (Kind::Lost { first: vec![0, 1, 0x10, 0] }, "01025100011000"),
            (Kind::Reach(version), "01026000000000000000030000000000000100"),
            (Kind::Log(LogKey { version, page: None }), "010260000000030000000000000100"),
            (
                Kind::Log(LogKey { version, page }),
                "01026000000003000000000000010000000000000000050000000000000006",
            ),
        ];
        for (kind, bytes) in frozen {
            let key = key(kind);
            assert_eq!(hex(&key), bytes);
            assert_eq!(Key::decode(&key.encode()), Some(key));
        }
    }

    #[test]
    fn limits_are_kept() {
        assert_eq!(Name::new(b""), None);
        assert_eq!(Name::new(&[1; NAME_SIZE_MAX + 1]), None);
        let zeros = name(&[0; NAME_SIZE_MAX]);
        let longest = key(Kind::Record { name: zeros, key: vec![0; RECORD_KEY_SIZE_MAX] });
        let bytes = longest.encode();
        assert_eq!(bytes.len(), 4229);
        assert_eq!(Key::decode(&bytes), Some(longest));
        assert_eq!(Key::decode(&[&bytes[..], &[0]].concat()), None);
        for wrong in [
            "",
            "00",
            "0102",
            "010210",
            "010211aa",
            "01022061",
            "0102206100",
            "010220610001",
            "01022061000262",
            "010220000162",
            "01026000000000000000000000",
            "0102600000000000000000000001",
        ] {
            let bytes =
                (0..wrong.len() / 2).map(|at| u8::from_str_radix(&wrong[2 * at..][..2], 16));
            let bytes: Vec<u8> = bytes.map(|byte| byte.expect("hexadecimal")).collect();
            assert_eq!(Key::decode(&bytes), None, "{wrong}");
        }
    }

    #[test]
    fn shards_are_top_bits() {
        assert_eq!(Shard::of_hash(u32::MAX, 1 << 16), Shard::new(u16::MAX));
        assert_eq!(Shard::of_hash(0x8000_0000, 2), Shard::new(1));
        assert_eq!(Shard::of_hash(u32::MAX, 1), Shard::new(0));
    }

    #[test]
    fn the_log_above_a_version_has_neither_its_records_nor_the_reach() {
        let version = |epoch, counter| Version { epoch: Epoch::new(epoch), counter };
        let log = |version, page| key(Kind::Log(LogKey { version, page })).encode();
        let page = Some((Incarnation::new(1), 1));
        let (first, behind) = log_range(Shard::new(0x0102), version(2, 5));
        let has = |key: Vec<u8>| first <= key && key < behind;
        assert!(!has(log(version(2, 5), None)) && !has(log(version(2, 5), page)));
        assert!(has(log(version(2, 6), None)) && has(log(version(3, 1), page)));
        let (first, _) = log_range(Shard::new(0x0102), Version::ZERO);
        assert!(key(Kind::Reach(version(9, 9))).encode() < first);
        let (start, end) = reach_range(Shard::new(0x0102), Some(version(2, 5)));
        let is_below = |it: Version| {
            let key = key(Kind::Reach(it)).encode();
            start <= key && key < end
        };
        assert!(is_below(Version::ZERO) && is_below(version(2, 4)) && !is_below(version(2, 5)));
        assert_eq!(reach_range(Shard::new(0x0102), None).1, first);
        assert!(first <= log(version(1, 1), None));
    }

    /// Bytes in which those that matter for the order are frequent.
    fn any_bytes(size_max: usize) -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0u8), Just(1u8), Just(0xffu8), any::<u8>()];
        prop::collection::vec(byte, 1..=size_max)
    }

    fn any_key() -> impl Strategy<Value = Key> {
        let name = || any_bytes(4).prop_map(|bytes| name(&bytes));
        let number = || prop_oneof![0..3u64, any::<u64>()];
        let log = (1..3u32, number(), prop::option::of((number(), number())));
        let kind = prop_oneof![
            name().prop_map(|name| Kind::Head { name }),
            (name(), any_bytes(3))
                .prop_map(|(name, attribute)| Kind::Attribute { name, attribute }),
            (name(), any_bytes(3)).prop_map(|(name, key)| Kind::Record { name, key }),
            (number(), number()).prop_map(|(session, number)| {
                Kind::Repeat { session: SessionId::new(session), number }
            }),
            any_bytes(4).prop_map(|first| Kind::Lost { first }),
            name().prop_map(|name| Kind::Incomplete { name }),
            (0..3u32, number()).prop_map(|(epoch, counter)| {
                Kind::Reach(Version { epoch: Epoch::new(epoch), counter })
            }),
            log.prop_map(|(epoch, counter, page)| {
                let version = Version { epoch: Epoch::new(epoch), counter };
                let page =
                    page.map(|(incarnation, number)| (Incarnation::new(incarnation), number));
                Kind::Log(LogKey { version, page })
            }),
        ];
        let shard = prop_oneof![0..3u16, any::<u16>()];
        (shard, kind).prop_map(|(shard, kind)| Key { shard: Shard::new(shard), kind })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn keys_sort_as_their_parts_do(one in any_key(), other in any_key()) {
            prop_assert_eq!(one.encode().cmp(&other.encode()), one.cmp(&other));
        }

        #[test]
        fn kinds_of_one_shard_sort_as_keys(one in any_key(), other in any_key()) {
            let other = Key { shard: one.shard, kind: other.kind };
            prop_assert_eq!(one.encode().cmp(&other.encode()), one.kind.cmp(&other.kind));
        }

        #[test]
        fn keys_come_back(key in any_key()) {
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(
            kind in prop_oneof![0x10..0x70u8, any::<u8>()],
            rest in any_bytes(40),
        ) {
            let bytes = [&[0, 9, kind], &rest[..]].concat();
            if let Some(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }

        #[test]
        fn changed_keys_decode_or_are_refused(
            key in any_key(),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![Just(0u8), Just(1u8), Just(0xffu8), any::<u8>()],
        ) {
            let mut bytes = key.encode();
            let size = bytes.len();
            bytes[at.index(size)] = byte;
            if let Some(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }
    }
}
