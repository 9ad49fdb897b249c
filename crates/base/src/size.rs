//! Sizes in bytes: constants, the block size type, and the text form people type (`10GiB`).

use std::fmt;
use std::str::FromStr;

use crate::ids::ParseIdError;

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;
/// 2^40 bytes.
pub const TIB: u64 = 1 << 40;

/// The unit of allocation maps, checksums and atomic writes: 4 KiB.
/// (A *sector* is the device's logical block, 512 or 4096 bytes.)
pub const UNIT_SIZE: u64 = 4 * KIB;

/// Size of a block: a power of two from 16 KiB to 1 MiB, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// Smallest block.
    pub const MIN: BlockSize = BlockSize { shift: 14 };
    /// Largest block.
    pub const MAX: BlockSize = BlockSize { shift: 20 };
    /// The default size: 128 KiB.
    pub const DEFAULT: BlockSize = BlockSize { shift: 17 };

    /// Creates a block size; returns `None` unless `bytes` is a power of two from 16 KiB to 1 MiB.
    pub const fn new(bytes: u64) -> Option<BlockSize> {
        if !bytes.is_power_of_two() {
            return None;
        }
        BlockSize::from_shift(bytes.trailing_zeros() as u8)
    }

    /// Creates a block size; returns `None` unless `shift` is 14 to 20.
    pub const fn from_shift(shift: u8) -> Option<BlockSize> {
        if shift < BlockSize::MIN.shift || shift > BlockSize::MAX.shift {
            return None;
        }
        Some(BlockSize { shift })
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// Returns log2 of the size in bytes.
    pub const fn shift(self) -> u8 {
        self.shift
    }

    /// Returns the number of 4 KiB units in a block: 4 to 256.
    pub const fn unit_count(self) -> u32 {
        1 << (self.shift - 12)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for BlockSize {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.bytes())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for BlockSize {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<BlockSize, D::Error> {
        let bytes = <u64 as serde::Deserialize>::deserialize(from)?;
        BlockSize::new(bytes).ok_or_else(|| {
            serde::de::Error::custom("the block size must be a power of two from 16 KiB to 1 MiB")
        })
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Size(self.bytes()))
    }
}

impl fmt::Debug for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSize({self})")
    }
}

/// A size in bytes. Displayed rounded: `14.5 GiB`. Parsed as people type it: `10GiB`, or digits alone
/// for bytes. Decimal units are accepted, too, and rounded up to whole units of 4 KiB: `10GB` is
/// 10,000,003,072 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl Size {
    /// Returns the size as text that hides nothing: rounded as always if that is exact, otherwise in the
    /// largest unit in which it is a whole number: `1028 KiB`.
    pub fn exact(self) -> String {
        let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        let text = self.to_string();
        let is_exact = units.iter().find(|(unit, _)| self.0 >= *unit).is_none_or(|(unit, _)| {
            let tenths = u128::from(self.0) * 10 / u128::from(*unit);
            let is_shown = tenths < 1_000 || tenths.is_multiple_of(10);
            is_shown && (u128::from(self.0) * 10).is_multiple_of(u128::from(*unit))
        });
        match units.iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            _ if is_exact => text,
            Some((unit, name)) => format!("{} {name}", self.0 / unit),
            None => format!("{} B", self.0),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        let Some((unit, name)) = units.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        match tenths {
            _ if tenths >= 1_000 || tenths.is_multiple_of(10) => {
                write!(f, "{} {name}", (tenths + 5) / 10)
            }
            _ => write!(f, "{}.{} {name}", tenths / 10, tenths % 10),
        }
    }
}

impl FromStr for Size {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Size, ParseIdError> {
        let wrong = || {
            ParseIdError(format!(
                "{text:?} is not a size: write a number and a unit, as in 10GiB or 10GB"
            ))
        };
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let (unit, whole) = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => (1, 1),
            "k" | "kib" => (KIB, 1),
            "m" | "mib" => (MIB, 1),
            "g" | "gib" => (GIB, 1),
            "t" | "tib" => (TIB, 1),
            "kb" => (1_000, UNIT_SIZE),
            "mb" => (1_000_000, UNIT_SIZE),
            "gb" => (1_000_000_000, UNIT_SIZE),
            "tb" => (1_000_000_000_000, UNIT_SIZE),
            _ => return Err(wrong()),
        };
        let size = number.checked_mul(unit).and_then(|size| size.checked_next_multiple_of(whole));
        size.map(Size).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        assert_eq!("10GiB".parse(), Ok(Size(10 * GIB)));
        assert_eq!("4k".parse(), Ok(Size(4096)));
        assert_eq!("512".parse(), Ok(Size(512)));
        assert_eq!("10GB".parse(), Ok(Size(10_000_003_072)));
        assert_eq!("2TB".parse::<Size>().map(|size| size.0 % UNIT_SIZE), Ok(0));
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (10 * GIB, "10 GiB"),
            (15_235_584 * KIB, "14.5 GiB"),
            (731 * MIB + 300 * KIB, "731 MiB"),
            (99 * MIB + 999 * KIB, "100 MiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1_028 * KIB, "1028 KiB"),
            (MIB + 1, "1048577 B"),
            (1_536 * KIB, "1.5 MiB"),
            (10 * GIB, "10 GiB"),
            (10 * GIB + MIB, "10241 MiB"),
            (101 * GIB + 512 * MIB, "103936 MiB"),
            (10_000_003_072, "9765628 KiB"),
        ] {
            assert_eq!(Size(bytes).exact(), text);
        }
        assert_eq!("14 GiB".parse(), Ok(Size(14 * GIB)));
        assert!("GiB".parse::<Size>().is_err());
        assert!("10 parsecs".parse::<Size>().is_err());
        assert!("99999999999999999999".parse::<Size>().is_err());
        assert!("99999999999TiB".parse::<Size>().is_err());
    }

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        assert_eq!(BlockSize::new(128 * KIB), Some(BlockSize::DEFAULT));
        assert_eq!(BlockSize::DEFAULT.unit_count(), 32);
        for wrong in [0, 1, 8 * KIB, 24 * KIB, 2 * MIB, u64::MAX] {
            assert_eq!(BlockSize::new(wrong), None);
        }
    }
}
