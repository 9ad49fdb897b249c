//! With `--trace`, the simulator prints the log lines of its processes. Every kind of event that an operator
//! looks for must happen in simulated clusters and leave a log line.

use std::process::Command;

/// The maximum number of seeds to try; a few seeds together contain all the lines.
const SEED_COUNT_MAX: u64 = 40;

#[test]
fn what_happens_to_a_simulated_cluster_leaves_lines() {
    let mut missing = vec![
        "logs info: PG has a new epoch  pg=",
        "logs info: PG is active  pg=",
        "logs warn: PG is not served  pg=",
        "logs warn: lease expired",
        "logs warn: client is fenced  session=",
        "logs info: session is fenced  session=",
        "logs warn: the session is over",
        "logs warn: OSD is refused  osd=",
        "logs error: the monitor refuses this OSD  code=",
        "logs warn: PG is suspect",
        "logs warn: the disk is slow  oldest_ms=",
        "logs error: the disk hangs",
        "logs warn: OSD is down  osd=",
        "logs info: OSD is up  osd=",
        "logs info: OSD is out  osd=",
        "logs info: backfill is done  pg=",
        "logs error: a key that only monitors write was edited",
        "logs info: this monitor leads",
        "logs warn: this monitor no longer leads",
    ];
    for seed in 1..=SEED_COUNT_MAX {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
        let output = command.args(["cluster", "--trace", "--seed", &seed.to_string()]).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "seed {seed}");
        let text = String::from_utf8(output.stdout).expect("text");
        missing.retain(|line| !text.contains(line));
        if missing.is_empty() {
            return;
        }
    }
    panic!("in {SEED_COUNT_MAX} seeds nobody wrote {missing:?}");
}
