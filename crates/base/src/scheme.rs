//! The redundancy scheme of a pool: copies, or data parts with parity.
//!
//! ```text
//!   position       0      1    ...   k-1  |   k   ...  k+m-1
//!   copies      every position holds the whole block
//!   parity      part 0  part 1 ... part k-1 | parity 0 ... parity m-1     each a block; a stripe is k blocks
//! ```
//!
//! Invariants
//!   1. A scheme that [`Scheme::check`] accepts has 1 to [`Position::COUNT_MAX`] positions.
//!   2. Text and numbers from outside become a scheme only through [`Scheme::check`].

use std::fmt;
use std::str::FromStr;

use crate::ids::{ParseIdError, Position};
use crate::size::{BlockSize, KIB, MIB, Size};

/// Maximum number of copies in a pool.
pub const COPIES_MAX: u8 = 8;
/// Minimum number of data parts of a stripe: with only one, all parity would be a copy of it.
pub const DATA_COUNT_MIN: u8 = 2;
/// Maximum number of data parts of a stripe.
pub const DATA_COUNT_MAX: u8 = 16;
/// Maximum number of parity parts of a stripe.
pub const PARITY_COUNT_MAX: u8 = 4;
/// Maximum number of bytes of data in a stripe, so that a stripe fits in one message.
pub const STRIPE_BYTES_MAX: u64 = 4 * MIB;
/// Minimum block size of a pool with parity. Each parity part is stored with a table of the versions and
/// written units of all data parts, which must stay small compared with the part.
pub const PARITY_BLOCK_BYTES_MIN: u64 = 64 * KIB;

const _: () = assert!(DATA_COUNT_MAX + PARITY_COUNT_MAX <= Position::COUNT_MAX);
const _: () = assert!(COPIES_MAX <= Position::COUNT_MAX);

/// How a pool survives the loss of members. Displayed as `2 copies`, `xor 2+1` or `ec 4+2`; parsed from the
/// same forms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scheme {
    /// Every member holds the whole block.
    Copies {
        /// Number of copies, one for each member.
        count: u8,
    },
    /// Data parts, and one parity part: the XOR of all data parts.
    Xor {
        /// Number of data parts.
        data: u8,
    },
    /// Data parts, and parity parts of a Reed-Solomon code.
    ReedSolomon {
        /// Number of data parts.
        data: u8,
        /// Number of parity parts.
        parity: u8,
    },
}

impl Scheme {
    /// Parses the value of `--xor`: `2+1`.
    pub fn parse_xor(text: &str) -> Result<Scheme, ParseIdError> {
        let (data, parity) = parts(text)?;
        if parity != 1 {
            let more =
                if parity > 1 { format!(": use --ec {text} for more") } else { String::new() };
            return Err(ParseIdError(format!(
                "xor has exactly one parity part, not {parity}{more}"
            )));
        }
        checked(Scheme::Xor { data })
    }

    /// Parses the value of `--ec`: `4+2`.
    pub fn parse_reed_solomon(text: &str) -> Result<Scheme, ParseIdError> {
        let (data, parity) = parts(text)?;
        checked(Scheme::ReedSolomon { data, parity })
    }

    /// Checks that the numbers of copies or parts are within the limits.
    pub fn check(self) -> Result<(), String> {
        let data = |data| match (DATA_COUNT_MIN..=DATA_COUNT_MAX).contains(&data) {
            true => Ok(()),
            false => Err(format!(
                "a stripe can have {DATA_COUNT_MIN} to {DATA_COUNT_MAX} data parts, not {data}"
            )),
        };
        match self {
            Scheme::Copies { count } if (1..=COPIES_MAX).contains(&count) => Ok(()),
            Scheme::Copies { count } => {
                Err(format!("a pool can have 1 to {COPIES_MAX} copies, not {count}"))
            }
            Scheme::Xor { data: count } => data(count),
            Scheme::ReedSolomon { data: count, parity } => {
                data(count)?;
                if (1..=PARITY_COUNT_MAX).contains(&parity) {
                    return Ok(());
                }
                Err(format!("a stripe can have 1 to {PARITY_COUNT_MAX} parity parts, not {parity}"))
            }
        }
    }

    /// Checks the scheme, and that its stripes may consist of blocks of this size.
    pub fn check_block_size(self, block_size: BlockSize) -> Result<(), String> {
        self.check()?;
        if self.is_whole_everywhere() {
            return Ok(());
        }
        if block_size.bytes() < PARITY_BLOCK_BYTES_MIN {
            let least = Size(PARITY_BLOCK_BYTES_MIN);
            return Err(format!("blocks with {self} must be at least {least}, not {block_size}"));
        }
        let size = self.stripe_bytes(block_size);
        if size > STRIPE_BYTES_MAX {
            return Err(format!(
                "a stripe can have at most {}, not {} blocks of {block_size}",
                Size(STRIPE_BYTES_MAX),
                self.data_count()
            ));
        }
        Ok(())
    }

    /// Checks whether a pool that has data may change to another scheme. Only parity parts of the same code
    /// can be added; the existing parity parts stay as they are.
    pub fn check_change(self, wanted: Scheme) -> Result<(), String> {
        wanted.check()?;
        match (self, wanted) {
            _ if self == wanted => Ok(()),
            (
                Scheme::ReedSolomon { data, parity },
                Scheme::ReedSolomon { data: other, parity: more },
            ) => {
                if data != other {
                    return Err(format!(
                        "{self} cannot become {wanted}: the number of data parts of a pool cannot change"
                    ));
                }
                if more < parity {
                    return Err(format!("{self} cannot become {wanted}: parity can only be added"));
                }
                Ok(())
            }
            (Scheme::Xor { .. }, Scheme::ReedSolomon { .. }) => {
                Err(format!("{self} cannot become {wanted}: their parity is computed differently"))
            }
            _ => Err(format!("{self} cannot become {wanted}: all data would have to be rewritten")),
        }
    }

    /// Returns the number of members that suffice to read all data, `k`; 1 with copies.
    pub const fn data_count(self) -> u32 {
        match self {
            Scheme::Copies { .. } => 1,
            Scheme::Xor { data } | Scheme::ReedSolomon { data, .. } => data as u32,
        }
    }

    /// Returns the number of members that may be lost, `m`; with copies, one less than their number.
    pub const fn parity_count(self) -> u32 {
        self.position_count() - self.data_count()
    }

    /// Returns the number of members of a PG: the number of copies, or `k + m`.
    pub const fn position_count(self) -> u32 {
        match self {
            Scheme::Copies { count } => count as u32,
            Scheme::Xor { data } => data as u32 + 1,
            Scheme::ReedSolomon { data, parity } => data as u32 + parity as u32,
        }
    }

    /// Whether every member holds the whole block: then a stripe is one block, and all positions are
    /// equivalent.
    pub const fn is_whole_everywhere(self) -> bool {
        matches!(self, Scheme::Copies { .. })
    }

    /// Whether the member at a position can serve reads from its own data. With copies every member can; with
    /// parity only the members that hold data parts.
    pub const fn has_data(self, position: Position) -> bool {
        match self {
            Scheme::Copies { .. } => true,
            _ => (position.get() as u32) < self.data_count(),
        }
    }

    /// Whether the pool keeps parity and the member at a position holds a data part: such members answer
    /// direct reads.
    pub const fn has_data_part(self, position: Position) -> bool {
        !self.is_whole_everywhere() && self.has_data(position)
    }

    /// Returns the default of the minimum number of members that may acknowledge a write: one more than
    /// needed to read the data, so that the loss of one more member loses no write. Pools with at most two
    /// copies or one parity part have no such reserve, so that they stay available while one member is lost.
    pub const fn min_size_default(self) -> u32 {
        match self {
            Scheme::Copies { count } if count <= 2 => 1,
            Scheme::Copies { .. } => 2,
            _ if self.parity_count() == 1 => self.data_count(),
            _ => self.data_count() + 1,
        }
    }

    /// Returns the smallest and the largest allowed minimum size.
    pub const fn min_size_limits(self) -> (u32, u32) {
        (self.data_count(), self.position_count())
    }

    /// Returns the number of bytes of data in a stripe.
    pub const fn stripe_bytes(self, block_size: BlockSize) -> u64 {
        block_size.bytes() * self.data_count() as u64
    }

    /// Returns the number of bytes of data that fit in `raw` bytes of disk space, rounded down.
    pub const fn usable_bytes(self, raw: u64) -> u64 {
        if self.position_count() == 0 {
            return 0;
        }
        let usable = raw as u128 * self.data_count() as u128 / self.position_count() as u128;
        usable as u64
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Copies { count: 1 } => f.write_str("1 copy"),
            Scheme::Copies { count } => write!(f, "{count} copies"),
            Scheme::Xor { data } => write!(f, "xor {data}+1"),
            Scheme::ReedSolomon { data, parity } => write!(f, "ec {data}+{parity}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Scheme, ParseIdError> {
        match text.split_once(' ') {
            Some(("xor", parts)) => Scheme::parse_xor(parts),
            Some(("ec", parts)) => Scheme::parse_reed_solomon(parts),
            Some((count, "copies" | "copy")) => {
                let count = count.parse().map_err(|_| unreadable(text))?;
                checked(Scheme::Copies { count })
            }
            _ => Err(unreadable(text)),
        }
    }
}

/// A scheme is serialized as its text form. A number is also accepted: that many copies.
#[cfg(feature = "serde")]
impl serde::Serialize for Scheme {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Scheme {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Scheme, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Scheme;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a scheme, such as \"2 copies\" or \"ec 4+2\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Scheme, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<Scheme, E> {
                let count = u8::try_from(count).unwrap_or(u8::MAX);
                checked(Scheme::Copies { count }).map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

fn checked(scheme: Scheme) -> Result<Scheme, ParseIdError> {
    scheme.check().map_err(ParseIdError)?;
    Ok(scheme)
}

/// Parses the two numbers of a form such as `4+2`.
fn parts(text: &str) -> Result<(u8, u8), ParseIdError> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers =
        text.split_once('+').filter(|(data, parity)| is_number(data) && is_number(parity));
    let Some((data, parity)) = numbers else {
        let message = format!("{text:?} is not a scheme: write data and parity parts, as in 4+2");
        return Err(ParseIdError(message));
    };
    match (data.parse(), parity.parse()) {
        (Ok(data), Ok(parity)) => Ok((data, parity)),
        _ => Err(ParseIdError(format!(
            "{text} has too many parts: a stripe can have at most {DATA_COUNT_MAX} data parts and \
             {PARITY_COUNT_MAX} parity parts"
        ))),
    }
}

fn unreadable(text: &str) -> ParseIdError {
    ParseIdError(format!(
        "{text:?} is not a scheme: write it as in \"2 copies\", \"xor 2+1\" or \"ec 4+2\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EC_4_2: Scheme = Scheme::ReedSolomon { data: 4, parity: 2 };

    fn all() -> impl Iterator<Item = Scheme> {
        let copies = (1..=COPIES_MAX).map(|count| Scheme::Copies { count });
        let data = DATA_COUNT_MIN..=DATA_COUNT_MAX;
        let xor = data.clone().map(|data| Scheme::Xor { data });
        let codes = data.flat_map(|data| {
            (1..=PARITY_COUNT_MAX).map(move |parity| Scheme::ReedSolomon { data, parity })
        });
        copies.chain(xor).chain(codes)
    }

    #[test]
    fn text_is_read_as_it_is_printed() {
        for scheme in all() {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        for (scheme, text) in [
            (Scheme::Copies { count: 1 }, "1 copy"),
            (Scheme::Copies { count: 3 }, "3 copies"),
            (Scheme::Xor { data: 2 }, "xor 2+1"),
            (EC_4_2, "ec 4+2"),
        ] {
            assert_eq!(scheme.to_string(), text);
        }
        assert_eq!(Scheme::parse_xor("2+1"), Ok(Scheme::Xor { data: 2 }));
        assert_eq!(Scheme::parse_reed_solomon("4+2"), Ok(EC_4_2));
    }

    #[test]
    fn what_is_no_scheme_is_refused() {
        for text in
            ["", "2", "copies", "0 copies", "9 copies", "-1 copies", "300 copies", "raid 4+2"]
        {
            assert!(text.parse::<Scheme>().is_err(), "{text}");
        }
        for text in
            ["", "4", "4+", "+2", "4+2+1", "1+2", "17+2", "4+0", "4+5", "4+ 2", "4++2", "999+2"]
        {
            assert!(Scheme::parse_reed_solomon(text).is_err(), "{text}");
            assert!(format!("ec {text}").parse::<Scheme>().is_err(), "{text}");
        }
        for (text, why) in [
            ("2+2", "xor has exactly one parity part, not 2: use --ec 2+2 for more"),
            ("2+0", "xor has exactly one parity part, not 0"),
            ("1+1", "a stripe can have 2 to 16 data parts, not 1"),
            ("17+1", "a stripe can have 2 to 16 data parts, not 17"),
            (
                "300+1",
                "300+1 has too many parts: a stripe can have at most 16 data parts and 4 parity parts",
            ),
        ] {
            assert_eq!(Scheme::parse_xor(text), Err(ParseIdError(why.to_string())));
        }
    }

    #[test]
    fn counts_are_those_of_the_scheme() {
        for scheme in all() {
            assert_eq!(scheme.check(), Ok(()));
            assert_eq!(scheme.data_count() + scheme.parity_count(), scheme.position_count());
            assert!((1..=u32::from(Position::COUNT_MAX)).contains(&scheme.position_count()));
            let (fewest, most) = scheme.min_size_limits();
            assert!((fewest..=most).contains(&scheme.min_size_default()));
        }
        assert_eq!((EC_4_2.data_count(), EC_4_2.parity_count()), (4, 2));
        let copies = Scheme::Copies { count: 3 };
        assert_eq!((copies.data_count(), copies.parity_count()), (1, 2));
        assert!(copies.is_whole_everywhere() && !EC_4_2.is_whole_everywhere());
        let with_data =
            |scheme: Scheme| Position::all().take(6).filter(|at| scheme.has_data(*at)).count();
        assert_eq!((with_data(EC_4_2), with_data(copies)), (4, 6));
    }

    #[test]
    fn the_minimum_leaves_one_member_to_lose_where_there_are_enough() {
        for (scheme, expected) in [
            (Scheme::Copies { count: 1 }, 1),
            (Scheme::Copies { count: 2 }, 1),
            (Scheme::Copies { count: 3 }, 2),
            (Scheme::Xor { data: 2 }, 2),
            (Scheme::ReedSolomon { data: 2, parity: 1 }, 2),
            (EC_4_2, 5),
        ] {
            assert_eq!(scheme.min_size_default(), expected, "{scheme}");
        }
        assert_eq!(EC_4_2.min_size_limits(), (4, 6));
    }

    #[test]
    fn only_parity_of_the_same_code_may_be_added() {
        let code = |data, parity| Scheme::ReedSolomon { data, parity };
        for scheme in all() {
            assert_eq!(scheme.check_change(scheme), Ok(()));
        }
        assert_eq!(EC_4_2.check_change(code(4, 3)), Ok(()));
        assert_eq!(code(4, 1).check_change(code(4, 4)), Ok(()));
        for (from, to) in [
            (EC_4_2, code(4, 1)),
            (EC_4_2, code(4, 5)),
            (EC_4_2, code(5, 2)),
            (EC_4_2, Scheme::Xor { data: 4 }),
            (Scheme::Xor { data: 4 }, EC_4_2),
            (Scheme::Xor { data: 4 }, Scheme::Xor { data: 5 }),
            (Scheme::Copies { count: 2 }, Scheme::Copies { count: 3 }),
            (Scheme::Copies { count: 2 }, EC_4_2),
        ] {
            assert!(from.check_change(to).is_err(), "{from} {to}");
        }
    }

    #[test]
    fn stripes_fit_a_message() {
        let size = |bytes| BlockSize::new(bytes).expect("a power of two");
        assert_eq!(EC_4_2.stripe_bytes(BlockSize::DEFAULT), 512 * KIB);
        assert_eq!(EC_4_2.check_block_size(BlockSize::MAX), Ok(()));
        assert_eq!(EC_4_2.check_block_size(size(64 * KIB)), Ok(()));
        assert!(EC_4_2.check_block_size(size(32 * KIB)).is_err());
        let five = Scheme::Xor { data: 5 };
        assert!(five.check_block_size(BlockSize::MAX).is_err());
        let copies = Scheme::Copies { count: 3 };
        assert_eq!(copies.check_block_size(BlockSize::MIN), Ok(()));
        assert_eq!(copies.stripe_bytes(BlockSize::MIN), 16 * KIB);
        assert!(Scheme::Copies { count: 0 }.check_block_size(BlockSize::MIN).is_err());
    }

    #[test]
    fn usable_bytes_are_the_share_of_data() {
        assert_eq!(EC_4_2.usable_bytes(600), 400);
        assert_eq!(Scheme::Copies { count: 3 }.usable_bytes(10), 3);
        assert_eq!(Scheme::Xor { data: 2 }.usable_bytes(u64::MAX), u64::MAX / 3 * 2);
        assert_eq!(Scheme::Copies { count: 0 }.usable_bytes(10), 0);
    }
}
