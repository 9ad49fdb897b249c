//! The input and the outcome of one run.

use crate::tally::Tally;

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Determines everything that happens.
    pub seed: u64,
    /// Print every event and effect.
    pub verbose: bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The hash of the trace: the same for the same seed.
    pub hash: u64,
    /// Operations, faults and consequences of the run.
    pub tally: Tally,
    /// `Err`: a description of the violation that was found.
    pub result: Result<(), String>,
}
