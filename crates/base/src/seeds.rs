//! Seeds of randomised tests: fixed ones, or those of one environment variable for all tests.

use std::ops::RangeInclusive;

/// Returns the seeds that a test runs: those of the environment variable `SEEDS=A..B`, both ends included, or
/// `fixed` if the variable is not set. Panics if the variable is malformed: running `fixed` instead would
/// hide that the requested seeds did not run.
pub fn seeds(fixed: RangeInclusive<u64>) -> RangeInclusive<u64> {
    match std::env::var("SEEDS") {
        Ok(text) => parse(&text).unwrap_or_else(|why| panic!("SEEDS: {why}")),
        Err(_) => fixed,
    }
}

/// Returns whether tests that can choose run all their cases: `make proof` sets the environment variable
/// `TESTS=all`, `make test` runs a part of them.
pub fn all_cases() -> bool {
    std::env::var("TESTS").is_ok_and(|tests| tests == "all")
}

/// Parses `A..B`, both ends included.
pub fn parse(text: &str) -> Result<RangeInclusive<u64>, String> {
    let wrong = || format!("{text:?} is not a range of seeds: write A..B, as in 1..500");
    let (first, last) = text.split_once("..").ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    let last: u64 = last.parse().map_err(|_| wrong())?;
    if first > last { Err(wrong()) } else { Ok(first..=last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_both_ends_and_begins_before_it_ends() {
        assert_eq!(parse("3..7"), Ok(3..=7));
        for wrong in ["", "7", "7..", "..7", "8..7", "a..b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
