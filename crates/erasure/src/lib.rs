//! Erasure codes of a stripe: `k` data parts of equal size, and `m` parity parts computed from them. Any
//! `k` of the `k + m` parts suffice to compute the others.
//!
//! ```text
//!   part       0     1    ...  k-1  |  k        ...  k+m-1
//!              data                    parity i = sum of coefficient(i, j) * data j
//! ```
//!
//! Sums are XOR. With one parity part of [`Code::xor`] all coefficients are 1. [`Code::reed_solomon`] takes
//! them from a Cauchy matrix over GF(2^8) with the polynomial 0x11d: coefficient(i, j) = 1 / ((k + i) XOR
//! j), as Intel's ISA-L generates it (`gf_gen_cauchy1_matrix`). Every square submatrix of it is invertible.
//!
//! Invariants
//!   1. The bytes of parity never change between versions: every later version reads the parity that an
//!      earlier one wrote. Tests compare parity with ISA-L and with recorded checksums.
//!   2. No function allocates memory in proportion to the size of a part, unless its documentation says so.

#![forbid(unsafe_code)]

mod decoder;
mod shape;
mod xor;

use rusty_erasure::gf;
use rusty_erasure::kernel::Kernels;
use rusty_erasure::{Coder, Matrix};

pub use decoder::{Decoder, TooFewParts};
pub use shape::{DATA_COUNT_MAX, PARITY_COUNT_MAX, PART_COUNT_MAX, Shape, ShapeError};
pub use xor::{delta, xor_into};

/// A code with its tables. Create one for each pool, and reuse it.
#[derive(Clone, Debug)]
pub struct Code {
    shape: Shape,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// One parity part: the sum of all data parts.
    Xor,
    /// Parity from the Cauchy matrix.
    ReedSolomon {
        coder: Coder,
        /// One table for each coefficient, row by row, in the format of `rusty_erasure`'s kernels.
        tables: Vec<Vec<u8>>,
    },
}

/// The result of [`Code::find_wrong`] for a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Parity matches the data.
    Consistent,
    /// Parity does not match the data, and an error in exactly one part explains the mismatch.
    Wrong {
        /// Number of the wrong part, data parts first.
        part: usize,
    },
    /// Parity does not match the data, and no single part explains the mismatch, or any part could (with one
    /// parity part).
    Undecided,
}

impl Code {
    /// Creates a code with one parity part: the XOR of `data_count` data parts.
    pub fn xor(data_count: usize) -> Result<Code, ShapeError> {
        Ok(Code { shape: Shape::new(data_count, 1)?, kind: Kind::Xor })
    }

    /// Creates a Reed-Solomon code.
    pub fn reed_solomon(data_count: usize, parity_count: usize) -> Result<Code, ShapeError> {
        let shape = Shape::new(data_count, parity_count)?;
        let kernels = rusty_erasure::best_kernels();
        Ok(Code { shape, kind: Kind::reed_solomon(shape, kernels) })
    }

    /// Returns the number of parts of each kind.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the coefficient of a data part in a parity part. Requires: both parts exist; parity parts are
    /// numbered from 0.
    pub fn coefficient(&self, parity: usize, part: usize) -> u8 {
        assert!(parity < self.shape.parity_count());
        assert!(part < self.shape.data_count());
        match &self.kind {
            Kind::Xor => 1,
            Kind::ReedSolomon { coder, .. } => {
                let row = self.shape.data_count() + parity;
                coder.matrix().get(row, part).expect("inside of the matrix")
            }
        }
    }

    /// Computes all parity parts from all data parts. Requires: the number of parts of each kind that the
    /// shape has, all of the same length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert!(parity.len() == self.shape.parity_count());
        self.check_data(data, parity[0].len());
        match &self.kind {
            Kind::Xor => xor::sum(data, parity[0]),
            Kind::ReedSolomon { coder, .. } => {
                coder.encode(data, parity).expect("counts and lengths were checked");
            }
        }
    }

    /// Updates one parity part, `bytes`, after a data part changed by `change` (its old bytes XOR its new
    /// bytes, see [`delta`]). Changes may be applied in any order; a change applied twice cancels itself.
    /// Requires: the parts exist, parity parts are numbered from 0; both lengths are equal.
    pub fn update(&self, parity: usize, part: usize, change: &[u8], bytes: &mut [u8]) {
        assert!(parity < self.shape.parity_count());
        assert!(part < self.shape.data_count());
        assert!(change.len() == bytes.len());
        match &self.kind {
            Kind::Xor => xor_into(change, bytes),
            Kind::ReedSolomon { coder, tables } => {
                let table = &tables[parity * self.shape.data_count() + part];
                (coder.kernels().mad)(table, change, bytes);
            }
        }
    }

    /// Prepares to compute the parts `wanted` from the parts `present`. A part may be in both lists.
    pub fn decoder(&self, present: &[usize], wanted: &[usize]) -> Result<Decoder, TooFewParts> {
        Decoder::new(self, present, wanted)
    }

    /// Checks whether parity matches the data and, with two or more parity parts, finds the wrong part if
    /// exactly one is wrong. Different units of a block may have different wrong parts, so call this unit by
    /// unit. Allocates as much memory as all parity parts. Requires: all parts of the shape, of the same
    /// length.
    pub fn find_wrong(&self, parts: &[&[u8]]) -> Verdict {
        assert!(parts.len() == self.shape.part_count());
        let (data, parity) = parts.split_at(self.shape.data_count());
        let length = parity[0].len();
        let mut syndromes = vec![vec![0; length]; parity.len()];
        let mut rows: Vec<&mut [u8]> = syndromes.iter_mut().map(Vec::as_mut_slice).collect();
        self.encode(data, &mut rows);
        for (syndrome, bytes) in syndromes.iter_mut().zip(parity) {
            xor_into(bytes, syndrome);
        }
        let is_zero = |bytes: &Vec<u8>| bytes.iter().all(|byte| *byte == 0);
        let wrong: Vec<usize> =
            (0..parity.len()).filter(|row| !is_zero(&syndromes[*row])).collect();
        match wrong[..] {
            [] => Verdict::Consistent,
            // With a single parity part, any part may be the wrong one.
            _ if parity.len() == 1 => Verdict::Undecided,
            // No coefficient is zero, so a wrong data part would change all syndromes: the parity part itself
            // is wrong.
            [row] => Verdict::Wrong { part: self.shape.data_count() + row },
            _ if wrong.len() < parity.len() => Verdict::Undecided,
            _ => {
                let explains = |part: &usize| self.explains(*part, &syndromes);
                match (0..data.len()).find(explains) {
                    Some(part) => Verdict::Wrong { part },
                    None => Verdict::Undecided,
                }
            }
        }
    }

    /// Whether an error in this data part alone explains these syndromes, that is, whether each syndrome is
    /// the part's coefficient times the same error.
    fn explains(&self, part: usize, syndromes: &[Vec<u8>]) -> bool {
        let first = gf::inv(self.coefficient(0, part));
        let (reference, others) = syndromes.split_first().expect("there is parity");
        others.iter().enumerate().all(|(row, syndrome)| {
            let ratio = gf::mul(self.coefficient(row + 1, part), first);
            reference.iter().zip(syndrome).all(|(error, byte)| gf::mul(ratio, *error) == *byte)
        })
    }

    fn check_data(&self, data: &[&[u8]], length: usize) {
        assert!(data.len() == self.shape.data_count());
        assert!(data.iter().all(|part| part.len() == length));
    }
}

impl Kind {
    fn reed_solomon(shape: Shape, kernels: Kernels) -> Kind {
        let matrix = Matrix::cauchy(shape.data_count(), shape.parity_count());
        let matrix = matrix.expect("a shape has data, parity and at most 20 parts");
        let tables = matrix.parity_bytes().iter().map(|factor| (kernels.init)(&[*factor]));
        let tables = tables.collect();
        let coder = Coder::with_kernels(matrix, kernels).expect("it has parity");
        Kind::ReedSolomon { coder, tables }
    }
}

#[cfg(test)]
mod tests;
