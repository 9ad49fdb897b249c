//! Ids: every id is its own type with a private field, and its constructor checks the range.
//!
//! Text forms (`osd.7`, `2.1f`, `3.128`) are what people type and read; `Display` and `FromStr`
//! are inverse to each other.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A text that cannot be parsed. The message shows the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseIdError(pub String);

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseIdError {}

impl From<ParseIntError> for ParseIdError {
    fn from(error: ParseIntError) -> ParseIdError {
        ParseIdError(error.to_string())
    }
}

/// Ids counted from 1; 0 is never an id, so a zeroed field on disk or wire is invalid.
macro_rules! counted_id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The smallest id.
            pub const FIRST: $name = $name(1);
            /// The largest id.
            pub const LAST: $name = $name(u32::MAX);

            /// Creates an id; returns `None` for 0, which is not a valid id.
            pub const fn new(number: u32) -> Option<$name> {
                if number == 0 { None } else { Some($name(number)) }
            }

            /// Returns the number; never 0.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u32(self.0)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let number = u32::deserialize(from)?;
                $name::new(number).ok_or_else(|| {
                    serde::de::Error::custom(concat!(stringify!($name), " 0 is not a valid id"))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<$name, ParseIdError> {
                let digits = text.strip_prefix($prefix).unwrap_or(text);
                digits.parse().ok().and_then($name::new).ok_or_else(|| {
                    ParseIdError(format!(
                        "{text:?} is not a valid {}: write a number from 1, as in {}3",
                        stringify!($name),
                        $prefix
                    ))
                })
            }
        }
    };
}

counted_id!(
    /// A storage daemon and the disk or slice it owns; printed `osd.7`.
    OsdId, "osd."
);
counted_id!(
    /// A pool: redundancy and placement rules for a set of images.
    PoolId, ""
);
counted_id!(
    /// An image, or one layer of it. Never reused in the life of a cluster.
    ImageId, ""
);
counted_id!(
    /// A monitor; printed `mon.1`.
    MonitorId, "mon."
);

/// A counter type: values are ordered, and 0 means that none was issued yet.
macro_rules! counter {
    ($(#[$meta:meta])* $name:ident, $inner:ty) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        pub struct $name($inner);

        impl $name {
            /// The value before the first one is issued.
            pub const ZERO: $name = $name(0);

            /// Creates a value; any number is valid.
            pub const fn new(number: $inner) -> $name {
                $name(number)
            }

            /// Returns the number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// Returns the number after this one. Panics at the end of the range, which no cluster ever
            /// reaches.
            pub const fn next(self) -> $name {
                $name(self.0.checked_add(1).expect("the counter outlives every cluster"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

counter!(
    /// Epoch of a PG: increases by one with each activation.
    Epoch, u32
);
counter!(
    /// Revision of one pool's map: increases by one with each change to that map.
    MapRevision, u64
);
counter!(
    /// One run of an OSD process; assigned by the monitor at start, never reused for that OSD.
    Incarnation, u64
);
counter!(
    /// One attachment of one image by one client; assigned by the monitor, never reused. 0: no
    /// session.
    SessionId, u64
);

/// A range of sessions: the first and the last one.
pub type SessionRange = (SessionId, SessionId);

/// Returns the range in which a session lies. `ranges`: in order, none meets another.
pub fn range_of_session(ranges: &[SessionRange], session: SessionId) -> Option<SessionRange> {
    let next = ranges.partition_point(|(first, _)| *first <= session);
    ranges[..next].last().copied().filter(|(_, last)| session <= *last)
}

counter!(
    /// One connection, within one process. Never reused while the process lives.
    ConnectionId, u64
);
counter!(
    /// Position of a stripe in its image, counted in blocks from 0.
    StripeIndex, u32
);

/// Position in a store's journal in bytes; never decreases.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The position where the journal of a new store begins.
    pub const ZERO: Lsn = Lsn(0);

    /// Creates a position; any number is valid.
    pub const fn new(bytes: u64) -> Lsn {
        Lsn(bytes)
    }

    /// Returns the position in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the position `bytes` further on.
    pub const fn advance(self, bytes: u64) -> Lsn {
        Lsn(self.0.checked_add(bytes).expect("2^64 bytes outlive every disk"))
    }

    /// Returns the number of bytes from `earlier` to this position. Requires: `earlier <= self`.
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.checked_sub(earlier.0).expect("lsn never goes back")
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({})", self.0)
    }
}

/// In pools of objects, damaged records are listed under the hash of their object, and this image. No block
/// is of it: the upper half of a data id is never its highest value.
pub const RECORDS_IMAGE: ImageId = ImageId::LAST;

/// A slot of a PG's acting set: counted from 0, stable while other slots change.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u8);

impl Position {
    /// The first position.
    pub const FIRST: Position = Position(0);
    /// Maximum number of positions in a PG: 16 data parts and 4 parity parts.
    pub const COUNT_MAX: u8 = 20;

    /// Creates a position; returns `None` unless `number` is below [`Position::COUNT_MAX`].
    pub const fn new(number: u8) -> Option<Position> {
        if number < Position::COUNT_MAX { Some(Position(number)) } else { None }
    }

    /// Returns the number, below [`Position::COUNT_MAX`].
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the number, as an index into lists with one element for each position.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns all possible positions, in order.
    pub fn all() -> impl Iterator<Item = Position> + Clone {
        (0..Position::COUNT_MAX).map(Position)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(self.0)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Position, D::Error> {
        let number = <u8 as serde::Deserialize>::deserialize(from)?;
        let count_max = Position::COUNT_MAX;
        let wrong = || {
            format!(
                "position {number} is out of range: there are at most {count_max}, \
                                counted from 0"
            )
        };
        Position::new(number).ok_or_else(|| serde::de::Error::custom(wrong()))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.0)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Position({})", self.0)
    }
}

/// One placement group: a shard of a pool; printed `2.1f` (pool decimal, number hexadecimal).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PgId {
    /// The pool that the PG belongs to.
    pub pool: PoolId,
    /// The number of the PG: 0 to the pool's PG count - 1.
    pub number: u32,
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool, self.number)
    }
}

impl FromStr for PgId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<PgId, ParseIdError> {
        let wrong = || ParseIdError(format!("{text:?} is not a PG: write POOL.HEX, as in 2.1f"));
        let (pool, number) = text.split_once('.').ok_or_else(wrong)?;
        Ok(PgId {
            pool: pool.parse().map_err(|_| wrong())?,
            number: u32::from_str_radix(number, 16).map_err(|_| wrong())?,
        })
    }
}

/// Orders all writes of one PG: each write of the PG increases the counter by one, without gaps.
/// Printed `epoch.counter`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The PG's epoch in which its primary assigned the version.
    pub epoch: Epoch,
    /// The write's number in its PG.
    pub counter: u64,
}

impl Version {
    /// The version before the first write.
    pub const ZERO: Version = Version { epoch: Epoch::ZERO, counter: 0 };

    /// Returns the version of the next write of the PG, in `epoch`. Requires: `epoch >= self.epoch`.
    pub fn next_in(self, epoch: Epoch) -> Version {
        assert!(epoch >= self.epoch);
        Version { epoch, counter: self.counter + 1 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({}.{})", self.epoch, self.counter)
    }
}

/// A cluster's id, drawn at random when the cluster is created; printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(u128);

impl ClusterId {
    /// Creates an id; any number is valid.
    pub const fn new(number: u128) -> ClusterId {
        ClusterId(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for ClusterId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ClusterId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<ClusterId, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

impl FromStr for ClusterId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<ClusterId, ParseIdError> {
        match u128::from_str_radix(text, 16) {
            Ok(number) if text.len() == 32 => Ok(ClusterId(number)),
            _ => Err(ParseIdError(format!(
                "{text:?} is not a cluster id: write 32 hexadecimal digits"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_inverse() {
        let osd = OsdId::new(7).expect("7 is in range");
        assert_eq!(osd.to_string(), "osd.7");
        assert_eq!("osd.7".parse::<OsdId>(), Ok(osd));
        assert_eq!("7".parse::<OsdId>(), Ok(osd));
        let pg = PgId { pool: PoolId::new(2).expect("2 is in range"), number: 0x1f };
        assert_eq!(pg.to_string(), "2.1f");
        assert_eq!("2.1f".parse::<PgId>(), Ok(pg));
        let cluster = ClusterId::new(0xabc);
        assert_eq!(cluster.to_string().parse::<ClusterId>(), Ok(cluster));
    }

    #[test]
    fn zero_and_rubbish_are_no_ids() {
        assert!("0".parse::<OsdId>().is_err());
        assert!("osd.".parse::<OsdId>().is_err());
        assert!("-1".parse::<PoolId>().is_err());
        assert!("2".parse::<PgId>().is_err());
        assert!("0.1".parse::<PgId>().is_err());
        assert!("abc".parse::<ClusterId>().is_err());
    }

    #[test]
    fn versions_order_by_epoch_then_counter() {
        let old = Version { epoch: Epoch::new(1), counter: 9 };
        let new = old.next_in(Epoch::new(2));
        assert!(old < new);
        assert_eq!(new.to_string(), "2.10");
    }
}
