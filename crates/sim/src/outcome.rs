//! One seed's run: what it is told, and what comes out.

use crate::tally::Tally;

/// Which run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Everything follows from it.
    pub seed: u64,
    /// Print every event and effect.
    pub verbose: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// Of the trace: the same for the same seed.
    pub hash: u64,
    /// What was done.
    pub tally: Tally,
    /// `Err`: what was found, for people.
    pub result: Result<(), String>,
}
