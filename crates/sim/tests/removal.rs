//! Writes to a volume do not wait for the removal of objects.

use base::Duration;

/// The longest time that a write may take.
const WRITE_MAX: Duration = Duration::from_millis(100);

#[test]
fn a_writer_does_not_wait_while_many_objects_are_removed() {
    let runs = (1..).filter_map(|seed| Some((seed, sim::cluster::run_removal(seed)?)));
    for (seed, run) in runs.take(2) {
        let took = run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let longest = took.iter().max().expect("it writes");
        println!("seed {seed}: {} writes, the longest took {longest:?}", took.len());
        let span: u64 = took.iter().map(|one| one.as_nanos()).sum();
        assert!(span > 2 * WRITE_MAX.as_nanos(), "seed {seed}: all was over after {span} ns");
        assert!(*longest < WRITE_MAX, "seed {seed}: a write took {longest:?}");
    }
}
