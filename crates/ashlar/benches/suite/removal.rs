//! The table of writes to a volume, one at a time, beside the removal of many objects: how fast objects go, and how long
//! a write takes meanwhile.

use std::process::Stdio;

use serde_json::Value;

use super::objects::DEFAULT_COMPRESSION;
use super::{Cluster, SECONDS, json, median, number, p50};

const POOL: &str = "removed";
const SIZES: [&str; 4] = ["--min-size", "300B", "--max-size", "900B"];
const WRITE: [&str; 6] = ["--op", "randwrite", "--depth", "1", "--seconds", SECONDS];

/// How objects are removed.
const REMOVALS: [(&str, [&str; 4]); 2] = [
    ("one by one, 32 in flight", ["--batch", "1", "--depth", "32"]),
    ("100 together, 4 in flight", ["--batch", "100", "--depth", "4"]),
];

/// A removal, and the writes beside it.
type Round = (Value, Vec<Value>);

/// Prints the table. Each round puts all objects anew.
pub fn table(cluster: &Cluster, objects: &str, rounds: usize) {
    cluster.create_objects(POOL, "2", DEFAULT_COMPRESSION);
    let alone: Vec<Value> = (0..rounds).map(|_| cluster.bench("bench", &WRITE)).collect();
    println!(
        "| {objects} objects of 300 to 900 bytes, two copies | removed/s | write beside: p50 us \
         | p99 us | longest, ms |"
    );
    println!("|---|---|---|---|---|");
    println!(
        "| none | | {:.1} | {:.1} | {:.1} |",
        median(alone.iter().map(p50).collect()),
        median(alone.iter().map(p99).collect()),
        longest(&alone),
    );
    for (name, options) in REMOVALS {
        let runs: Vec<Round> = (0..rounds).map(|_| round(cluster, objects, &options)).collect();
        let rate = |(removal, _): &Round| number(&removal["records_per_second"]);
        let of_writes = |pick: fn(&Value) -> f64| {
            median(runs.iter().flat_map(|(_, writes)| writes).map(pick).collect())
        };
        let each: Vec<String> =
            runs.iter().map(|(_, writes)| format!("{:.1}", longest(writes))).collect();
        println!(
            "| {name} | {:.0} | {:.1} | {:.1} | {} |",
            median(runs.iter().map(rate).collect()),
            of_writes(p50),
            of_writes(p99),
            each.join(", "),
        );
    }
    println!();
}

/// Puts all objects, and removes them beside a load that writes as long as that takes.
fn round(cluster: &Cluster, objects: &str, options: &[&str]) -> Round {
    let bench = ["bench", "object", "--json", "--pool", POOL, "--records", objects];
    let fill = ["--op", "fill", "--batch", "100", "--depth", "4"];
    json(cluster.command(&bench).args(SIZES).args(fill));
    let mut removal = cluster.command(&bench);
    removal.args(SIZES).args(["--op", "remove", "--filled"]).args(options);
    let mut removal = removal.stdout(Stdio::piped()).spawn().expect("starts");
    let mut writes = Vec::new();
    while removal.try_wait().expect("ours").is_none() {
        writes.push(cluster.bench("bench", &WRITE));
    }
    let output = removal.wait_with_output().expect("it has ended");
    assert!(output.status.success(), "the removal failed");
    let removal: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(removal["absent"], 0, "{removal}");
    (removal, writes)
}

fn p99(write: &Value) -> f64 {
    number(&write["latency_us"]["p99"])
}

/// Returns the longest of all these writes in milliseconds.
fn longest(writes: &[Value]) -> f64 {
    writes.iter().map(|write| number(&write["latency_us"]["max"]) / 1e3).fold(0.0, f64::max)
}
