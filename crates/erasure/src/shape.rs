//! The number of parts of a stripe.

use std::error::Error;
use std::fmt;

/// Maximum number of data parts of a stripe.
pub const DATA_COUNT_MAX: usize = 16;
/// Maximum number of parity parts of a stripe.
pub const PARITY_COUNT_MAX: usize = 4;
/// Maximum number of parts of a stripe, of both kinds together.
pub const PART_COUNT_MAX: usize = DATA_COUNT_MAX + PARITY_COUNT_MAX;

/// The number of parts of each kind in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    data_count: usize,
    parity_count: usize,
}

/// Why a shape is not supported; displayed as a human-readable message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShapeError {
    /// This number of data parts is out of range.
    Data(usize),
    /// This number of parity parts is out of range.
    Parity(usize),
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Data(count) => {
                write!(f, "a stripe has 2 to {DATA_COUNT_MAX} data parts, not {count}")
            }
            ShapeError::Parity(count) => {
                write!(f, "a stripe has 1 to {PARITY_COUNT_MAX} parity parts, not {count}")
            }
        }
    }
}

impl Error for ShapeError {}

impl Shape {
    /// Creates a shape. Requires at least two data parts: with one, all parity would be a copy of it.
    pub fn new(data_count: usize, parity_count: usize) -> Result<Shape, ShapeError> {
        if !(2..=DATA_COUNT_MAX).contains(&data_count) {
            return Err(ShapeError::Data(data_count));
        }
        if !(1..=PARITY_COUNT_MAX).contains(&parity_count) {
            return Err(ShapeError::Parity(parity_count));
        }
        Ok(Shape { data_count, parity_count })
    }

    /// Returns the number of data parts, `k`.
    pub fn data_count(self) -> usize {
        self.data_count
    }

    /// Returns the number of parity parts, `m`.
    pub fn parity_count(self) -> usize {
        self.parity_count
    }

    /// Returns the number of all parts, `k + m`.
    pub fn part_count(self) -> usize {
        self.data_count + self.parity_count
    }
}
