//! Results that are kept so that an operation that is sent again is answered and not executed.
//! `docs/internals/objects.md`, rules 40 to 43.
//!
//! ```text
//!   version (12) | for each result:  what (1: 1 appended, 2 removed, 3 sum) | value (8; of removed: 1)
//! ```
//!
//! Invariants
//!   1. A repeat has one encoding: whatever decodes, encodes to the same bytes.

use base::Version;
use format::disk::bytes::{Reader, Writer};

use crate::operation::StepResult;

const APPENDED: u8 = 1;
const REMOVED: u8 = 2;
const SUM: u8 = 3;

/// What an operation was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repeat {
    /// The version of the operation.
    pub version: Version,
    /// Its results, in order.
    pub results: Vec<StepResult>,
}

impl Repeat {
    /// Encodes the value of the repeat's record.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.version(self.version);
        put_results(&mut to, &self.results);
        to.bytes
    }

    /// Decodes the value of a repeat's record. `None`: the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Repeat> {
        let mut from = Reader::new(bytes);
        Some(Repeat { version: from.version()?, results: take_results(&mut from)? })
    }
}

/// Encodes the results of an operation, as they are answered.
pub fn encode_results(results: &[StepResult]) -> Vec<u8> {
    let mut to = Writer::default();
    put_results(&mut to, results);
    to.bytes
}

/// Decodes the results of an operation. `None`: the bytes are none.
pub fn decode_results(bytes: &[u8]) -> Option<Vec<StepResult>> {
    take_results(&mut Reader::new(bytes))
}

fn put_results(to: &mut Writer, results: &[StepResult]) {
    for result in results {
        match result {
            StepResult::Appended(offset) => {
                to.u8(APPENDED);
                to.u64(*offset);
            }
            StepResult::Removed(was_there) => {
                to.u8(REMOVED);
                to.u8(u8::from(*was_there));
            }
            StepResult::Sum(sum) => {
                to.u8(SUM);
                to.u64(sum.cast_unsigned());
            }
        }
    }
}

/// Takes all results that are left.
fn take_results(from: &mut Reader<'_>) -> Option<Vec<StepResult>> {
    let mut results = Vec::new();
    while !from.is_at_end() {
        results.push(match from.u8()? {
            APPENDED => StepResult::Appended(from.u64()?),
            REMOVED => match from.u8()? {
                0 => StepResult::Removed(false),
                1 => StepResult::Removed(true),
                _ => return None,
            },
            SUM => StepResult::Sum(from.u64()?.cast_signed()),
            _ => return None,
        });
    }
    Some(results)
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repeats_are_frozen() {
        let version = Version { epoch: Epoch::new(3), counter: 0x100 };
        let results = vec![StepResult::Appended(5), StepResult::Removed(true), StepResult::Sum(-2)];
        let repeat = Repeat { version, results };
        let bytes = repeat.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "03000000000100000000000001050000000000000002010".to_owned() + "3feffffffffffffff"
        );
        assert_eq!(Repeat::decode(&bytes), Some(repeat));
        assert_eq!(Repeat::decode(&bytes[..20]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in prop::collection::vec(prop_oneof![0..5u8, any::<u8>()], 0..40),
        ) {
            if let Some(repeat) = Repeat::decode(&bytes) {
                prop_assert_eq!(repeat.encode(), bytes);
            }
        }
    }
}
