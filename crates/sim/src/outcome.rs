//! The input and the outcome of one run.

use crate::tally::Tally;

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed, which determines everything that happens.
    pub seed: u64,
    /// Whether to print every event and effect.
    pub verbose: bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The hash of the trace: equal for equal seeds.
    pub hash: u64,
    /// Counts of operations, faults and consequences.
    pub tally: Tally,
    /// `Err`: a description of the violation.
    pub result: Result<(), String>,
}
