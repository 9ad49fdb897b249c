//! Strays: names of places whose fate is open. `docs/internals/buckets.md`, rules 4 and 5.
//!
//! ```text
//!   u   format (1): 1 | state (1): 0 writing, 1 garbage | of what (1)
//!         0 places                       count (1): 1 to 8 | count x { container (16) | offset (8) | length (8) }
//!         1 all parts of an upload       upload (16)
//!         2 those that no key names      upload (16)
//! ```
//!
//! Each place is named by exactly one object: by a `u` while it is written to, then by `k`, then by a `u` until it
//! was trimmed. One operation moves it on.
//!
//! Invariants
//!   1. Of the commit of an upload and its collection exactly one happens: both assert the version of its `u`.
//!   2. What is garbage stays so.

use base::Version;
use format::disk::bytes::{Reader, Writer};
use objects::{Assertion, Name, ObjectChange, ObjectSteps};

use crate::head::BadBytes;
use crate::records::{Place, read_places, write_places};
use crate::views::steps;

const FORMAT: u8 = 1;
const WRITING: u8 = 0;
const GARBAGE: u8 = 1;
const PLACES: u8 = 0;
const ALL_PARTS: u8 = 1;
const OTHER_PARTS: u8 = 2;

/// What the object `u` has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stray {
    /// An upload writes there.
    Writing(Waste),
    /// No object names it: it is given back.
    Garbage(Waste),
}

/// Data that is given back one day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Waste {
    /// 1 to [`crate::records::PLACES_MAX`] places.
    Places(Vec<Place>),
    /// All parts of an upload.
    AllParts(u128),
    /// The parts of a complete upload that its object does not have.
    OtherParts(u128),
}

impl Stray {
    /// Returns the data of the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        let (state, waste) = match self {
            Stray::Writing(waste) => (WRITING, waste),
            Stray::Garbage(waste) => (GARBAGE, waste),
        };
        out.u8(state);
        match waste {
            Waste::Places(places) => {
                assert!(!places.is_empty());
                out.u8(PLACES);
                write_places(&mut out, places);
            }
            Waste::AllParts(upload) => {
                out.u8(ALL_PARTS);
                out.u128(*upload);
            }
            Waste::OtherParts(upload) => {
                out.u8(OTHER_PARTS);
                out.u128(*upload);
            }
        }
        out.bytes
    }

    /// Reads the data of the object.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Stray, BadBytes> {
        let what = "a stray";
        if bytes.first().is_some_and(|format| *format != FORMAT) {
            return Err(BadBytes { what, why: "its format is not known" });
        }
        decode(bytes).ok_or(BadBytes { what, why: "a value is out of range" })
    }
}

fn decode(bytes: &[u8]) -> Option<Stray> {
    let mut from = Reader::new(bytes);
    from.u8()?;
    let state = from.u8()?;
    let waste = match from.u8()? {
        PLACES => Waste::Places(read_places(&mut from).filter(|places| !places.is_empty())?),
        ALL_PARTS => Waste::AllParts(from.u128()?),
        OTHER_PARTS => Waste::OtherParts(from.u128()?),
        _ => return None,
    };
    match (state, from.is_at_end()) {
        (WRITING, true) => Some(Stray::Writing(waste)),
        (GARBAGE, true) => Some(Stray::Garbage(waste)),
        _ => None,
    }
}

/// Returns the part of an operation that creates a stray.
pub(crate) fn create(name: &Name, stray: &Stray) -> ObjectSteps {
    steps(name, [Assertion::Absent], [ObjectChange::Put(stray.encode())])
}

/// Returns the part of an operation that changes a stray, or removes it.
pub(crate) fn change(name: &Name, version: Version, stray: Option<&Stray>) -> ObjectSteps {
    let change = stray.map_or(ObjectChange::Remove, |stray| ObjectChange::Put(stray.encode()));
    steps(name, [Assertion::Version(version)], [change])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(stray: &Stray) -> String {
        stray.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn strays_are_frozen() {
        let place = Place { container: 0x0102, offset: 0x1000, length: 5 };
        let places = Waste::Places(vec![place; 2]);
        let one =
            "02010000000000000000000000000000001000000000000005000000000000 00".replace(' ', "");
        let all = [
            (Stray::Writing(places), format!("01000002{one}{one}")),
            (
                Stray::Garbage(Waste::AllParts(0x0304)),
                "01010104030000000000000000000000000000".into(),
            ),
            (Stray::Garbage(Waste::OtherParts(5)), "01010205000000000000000000000000000000".into()),
        ];
        for (stray, golden) in all {
            assert_eq!(hex(&stray), golden);
            assert_eq!(Stray::decode(&stray.encode()), Ok(stray));
        }
    }

    #[test]
    fn what_is_no_stray_is_refused() {
        let place = Place { container: 1, offset: 0, length: 5 };
        let bytes = Stray::Writing(Waste::Places(vec![place])).encode();
        for size in 0..bytes.len() {
            assert!(Stray::decode(&bytes[..size]).is_err());
        }
        assert!(Stray::decode(&[&bytes[..], &[0]].concat()).is_err());
        for (at, value) in [(0, 2), (1, 2), (2, 3), (3, 0), (3, 9)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert!(Stray::decode(&bytes).is_err(), "{at}");
        }
    }
}
