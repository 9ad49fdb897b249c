//! Makes parts of others.
//!
//! Invariants
//!   1. Exactly `k` sources are read, data parts before parity: data that is there needs no arithmetic.
//!   2. What is made of any `k` parts of one stripe is the same.

use std::error::Error;
use std::fmt;

use rusty_erasure::{DecodePlan, RecoverError};

use crate::{Code, Kind, PART_COUNT_MAX, xor};

/// Makes some parts of `k` others; made once for a set of lost parts.
#[derive(Clone, Debug)]
pub struct Decoder {
    sources: Vec<usize>,
    wanted: Vec<usize>,
    part_count: usize,
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    /// The sum of all others.
    Xor,
    ReedSolomon {
        code: Box<rusty_erasure::Coder>,
        plan: DecodePlan,
    },
}

/// Fewer than `k` parts are there: nothing can be made of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFewParts {
    /// How many there are.
    pub present: usize,
    /// How many it takes.
    pub required: usize,
}

impl fmt::Display for TooFewParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooFewParts { present, required } = self;
        write!(f, "{present} parts of the stripe are there, {required} are needed")
    }
}

impl Error for TooFewParts {}

impl Decoder {
    pub(crate) fn new(
        code: &Code,
        present: &[usize],
        wanted: &[usize],
    ) -> Result<Decoder, TooFewParts> {
        let part_count = code.shape.part_count();
        assert!(wanted.iter().all(|part| *part < part_count));
        let mut is_present = [false; PART_COUNT_MAX];
        for part in present {
            assert!(*part < part_count);
            is_present[*part] = true;
        }
        let is_present = &is_present[..part_count];
        let all = (0..part_count).filter(|part| is_present[*part]);
        let required = code.shape.data_count();
        let sources: Vec<usize> = all.clone().take(required).collect();
        if sources.len() < required {
            return Err(TooFewParts { present: sources.len(), required });
        }
        let plan = match &code.kind {
            Kind::Xor => Plan::Xor,
            Kind::ReedSolomon { coder, .. } => {
                let plan = coder.decode_plan(is_present, wanted);
                let plan = plan.expect("enough parts are there, and a Cauchy matrix inverts");
                Plan::ReedSolomon { code: Box::new(coder.clone()), plan }
            }
        };
        Ok(Decoder { sources, wanted: wanted.to_vec(), part_count, plan })
    }

    /// The parts to read, in the order in which [`Decoder::decode`] takes them: `k` of those that were there.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Makes the wanted parts, in the order in which they were named. Requires: the bytes of each source, and
    /// as many buffers as parts are wanted, all of one length.
    pub fn decode(&self, sources: &[&[u8]], wanted: &mut [&mut [u8]]) {
        assert!(sources.len() == self.sources.len());
        assert!(wanted.len() == self.wanted.len());
        let length = sources[0].len();
        assert!(sources.iter().all(|bytes| bytes.len() == length));
        assert!(wanted.iter().all(|bytes| bytes.len() == length));
        match &self.plan {
            Plan::Xor => {
                for (part, bytes) in self.wanted.iter().zip(wanted) {
                    match self.sources.iter().position(|source| source == part) {
                        Some(index) => bytes.copy_from_slice(sources[index]),
                        None => xor::sum(sources, bytes),
                    }
                }
            }
            Plan::ReedSolomon { code, plan } => {
                let mut parts = [None; PART_COUNT_MAX];
                for (part, bytes) in self.sources.iter().zip(sources) {
                    parts[*part] = Some(*bytes);
                }
                let made = code.recover_with(plan, &parts[..self.part_count], wanted);
                let made: Result<(), RecoverError> = made;
                made.expect("counts and lengths were checked");
            }
        }
    }
}
