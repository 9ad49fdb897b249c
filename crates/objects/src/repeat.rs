//! Results that are kept so that an operation that is sent again is answered and not executed.
//! `docs/internals/objects.md`, rules 40 to 43.
//!
//! ```text
//!   version (12) | for each result:  what (1: 1 appended, 2 removed, 3 sum) | value (8; of removed: 1)
//! ```
//!
//! Invariants
//!   1. A repeat has one encoding: whatever decodes, encodes to the same bytes.

use base::{Epoch, Version};

use crate::operation::StepResult;

const APPENDED: u8 = 1;
const REMOVED: u8 = 2;
const SUM: u8 = 3;
const VERSION_SIZE: usize = 12;

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
        let mut bytes = Vec::with_capacity(VERSION_SIZE + 9 * self.results.len());
        bytes.extend_from_slice(&self.version.epoch.get().to_le_bytes());
        bytes.extend_from_slice(&self.version.counter.to_le_bytes());
        for result in &self.results {
            match result {
                StepResult::Appended(offset) => {
                    bytes.push(APPENDED);
                    bytes.extend_from_slice(&offset.to_le_bytes());
                }
                StepResult::Removed(was_there) => bytes.extend([REMOVED, u8::from(*was_there)]),
                StepResult::Sum(sum) => {
                    bytes.push(SUM);
                    bytes.extend_from_slice(&sum.to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Decodes the value of a repeat's record. `None`: the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Repeat> {
        let (version, mut rest) = bytes.split_at_checked(VERSION_SIZE)?;
        let (epoch, counter) = version.split_at(4);
        let version = Version {
            epoch: Epoch::new(u32::from_le_bytes(epoch.try_into().expect("4 bytes"))),
            counter: u64::from_le_bytes(counter.try_into().expect("8 bytes")),
        };
        let mut results = Vec::new();
        while let Some((what, after)) = rest.split_first() {
            let size = if *what == REMOVED { 1 } else { 8 };
            let (value, after) = after.split_at_checked(size)?;
            let number = || value.try_into().expect("8 bytes");
            results.push(match (*what, value) {
                (APPENDED, _) => StepResult::Appended(u64::from_le_bytes(number())),
                (REMOVED, [0]) => StepResult::Removed(false),
                (REMOVED, [1]) => StepResult::Removed(true),
                (SUM, _) => StepResult::Sum(i64::from_le_bytes(number())),
                _ => return None,
            });
            rest = after;
        }
        Some(Repeat { version, results })
    }
}

#[cfg(test)]
mod tests {
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
