//! The same seed gives exactly the same run.

use sim::outcome::{Outcome, Run};

fn assert_repeats(run: impl Fn(Run) -> Outcome, seed: u64) {
    let once = run(Run { seed, verbose: false });
    let again = run(Run { seed, verbose: false });
    assert_eq!(once.hash, again.hash, "seed {seed}");
    assert_eq!(once.tally, again.tally, "seed {seed}");
    assert_eq!(once.result, again.result, "seed {seed}");
    assert!(once.tally.operations.sum() >= 1000, "seed {seed}");
    assert!(once.tally.faults.sum() >= 5, "seed {seed}");
}

#[test]
fn a_store_seed_repeats_exactly() {
    (1..=4).for_each(|seed| assert_repeats(sim::store::run, seed));
}

#[test]
fn a_cluster_seed_repeats_exactly() {
    let last = if base::seeds::all_cases() { 3 } else { 1 };
    (1..=last).for_each(|seed| assert_repeats(sim::cluster::run, seed));
}

#[test]
fn another_seed_is_another_run() {
    let run = |seed| sim::cluster::run(Run { seed, verbose: false }).hash;
    assert_ne!(run(1), run(2));
}
