//! Erasure codes of a stripe: `k` data parts of equal size, and `m` parity parts made of them. Any `k`
//! of the `k + m` parts make the others.
//!
//! ```text
//!   part       0     1    ...  k-1  |  k        ...  k+m-1
//!              data                    parity i = sum of coefficient(i, j) * data j
//! ```
//!
//! Sums are XOR. With one parity part of [`Code::xor`] all coefficients are 1. [`Code::reed_solomon`] takes
//! them from a Cauchy matrix over GF(2^8) with the polynomial 0x11d: coefficient(i, j) = 1 / ((k + i) XOR j),
//! as Intel's ISA-L generates it (`gf_gen_cauchy1_matrix`). Every square part of it can be inverted.
//!
//! Invariants
//!   1. The bytes of parity are frozen: what one version wrote every later one reads. Tests compare them
//!      with ISA-L and with recorded checksums.
//!   2. Nothing here allocates by the size of a part, except where it says so.

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

/// A code with its tables; made once for a pool.
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
        /// A table for each coefficient, in the kernels' own format; row by row.
        tables: Vec<Vec<u8>>,
    },
}

/// What [`Code::find_wrong`] found out about a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Parity is that of the data.
    Consistent,
    /// It would be if this part were different.
    Wrong {
        /// Its number, data parts first.
        part: usize,
    },
    /// It is not, and no single part explains it, or any would.
    Undecided,
}

impl Code {
    /// One parity part, the XOR of `data_count` parts.
    pub fn xor(data_count: usize) -> Result<Code, ShapeError> {
        Ok(Code { shape: Shape::new(data_count, 1)?, kind: Kind::Xor })
    }

    /// Reed-Solomon.
    pub fn reed_solomon(data_count: usize, parity_count: usize) -> Result<Code, ShapeError> {
        let shape = Shape::new(data_count, parity_count)?;
        let kernels = rusty_erasure::best_kernels();
        Ok(Code { shape, kind: Kind::reed_solomon(shape, kernels) })
    }

    /// How many parts of each kind there are.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The factor of a data part in a parity part. Requires: both exist; parity parts count from 0.
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

    /// Makes all parity parts of all data parts. Requires: as many of each as the shape has, all of one
    /// length.
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

    /// Brings one parity part up to date with a data part that changed by `change` (its old bytes XOR its
    /// new ones, [`delta`]). The order of changes makes no difference; one that comes twice undoes itself.
    /// Requires: the parts exist, parity parts count from 0; both lengths are equal.
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

    /// Prepares to make the parts `wanted` of those that are there. A part may be both.
    pub fn decoder(&self, present: &[usize], wanted: &[usize]) -> Result<Decoder, TooFewParts> {
        Decoder::new(self, present, wanted)
    }

    /// Whether all parts fit together and, with two parity parts and more, which one alone is wrong, if one
    /// is. Parts of a block may be wrong at different places: ask unit by unit. Allocates as much as parity.
    /// Requires: all parts of the shape, of one length.
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
            // With one parity part any part may be the wrong one.
            _ if parity.len() == 1 => Verdict::Undecided,
            // No coefficient is zero: a wrong data part shows in all of them.
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

    /// Whether an error in this data part alone makes these syndromes: they are its coefficients times
    /// the error.
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
