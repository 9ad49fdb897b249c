//! How many parts a stripe has.

use std::error::Error;
use std::fmt;

/// Most data parts of a stripe.
pub const DATA_COUNT_MAX: usize = 16;
/// Most parity parts.
pub const PARITY_COUNT_MAX: usize = 4;
/// Most parts of both kinds.
pub const PART_COUNT_MAX: usize = DATA_COUNT_MAX + PARITY_COUNT_MAX;

/// How many parts of each kind a stripe has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    data_count: usize,
    parity_count: usize,
}

/// Why there is no such shape; for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShapeError {
    /// Of this many data parts.
    Data(usize),
    /// Of this many parity parts.
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
    /// Two data parts at least: of one all parity is a copy.
    pub fn new(data_count: usize, parity_count: usize) -> Result<Shape, ShapeError> {
        if !(2..=DATA_COUNT_MAX).contains(&data_count) {
            return Err(ShapeError::Data(data_count));
        }
        if !(1..=PARITY_COUNT_MAX).contains(&parity_count) {
            return Err(ShapeError::Parity(parity_count));
        }
        Ok(Shape { data_count, parity_count })
    }

    /// Data parts, `k`.
    pub fn data_count(self) -> usize {
        self.data_count
    }

    /// Parity parts, `m`.
    pub fn parity_count(self) -> usize {
        self.parity_count
    }

    /// All parts.
    pub fn part_count(self) -> usize {
        self.data_count + self.parity_count
    }
}
