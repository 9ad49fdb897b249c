//! Computes missing parts from other parts.
//!
//! Invariants
//!   1. Exactly `k` sources are read, data parts before parity: a wanted data part that is present needs no
//!      arithmetic.
//!   2. The result does not depend on which `k` parts of a stripe are the sources.

use std::error::Error;
use std::fmt;

use rusty_erasure::DecodePlan;

use crate::{Code, Kind, PART_COUNT_MAX, xor};

/// Computes wanted parts from `k` others. Create one decoder for each set of lost parts, and reuse it.
#[derive(Clone, Debug)]
pub struct Decoder {
    sources: Vec<usize>,
    wanted: Vec<usize>,
    part_count: usize,
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    /// The missing part is the sum of all others.
    Xor,
    ReedSolomon {
        code: Box<rusty_erasure::Coder>,
        plan: DecodePlan,
    },
}

/// Fewer than `k` parts are present, so no other part can be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFewParts {
    /// Number of parts that are present.
    pub present: usize,
    /// Number of parts that are required: `k`.
    pub required: usize,
}

impl fmt::Display for TooFewParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooFewParts { present, required } = self;
        write!(f, "{present} parts of the stripe are present, {required} are needed")
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
        let required = code.shape.data_count();
        let all = (0..part_count).filter(|part| is_present[*part]);
        let sources: Vec<usize> = all.take(required).collect();
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

    /// Returns the parts to read, in the order in which [`Decoder::decode`] expects them: `k` of the
    /// present parts.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Computes the wanted parts, in the order of `wanted` at the creation of the decoder. Requires: the
    /// bytes of each source, and one buffer for each wanted part, all of the same length.
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
                made.expect("counts and lengths were checked");
            }
        }
    }
}
