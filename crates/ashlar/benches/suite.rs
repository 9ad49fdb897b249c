//! `make bench`: the store and the whole path beside the limits of this machine, measured in the
//! same run. Prints medians over several rounds and ratios; noisy machines move both alike.
//!
//! Everything runs on one core: across two cores wake-ups hide what the program does.

#![allow(clippy::disallowed_methods)] // A program that starts processes and reads the clock.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ASHLAR: &str = env!("CARGO_BIN_EXE_ashlar");

/// Seconds of one measurement.
const SECONDS: &str = "2";

/// One kind of load: its name and options.
const LOADS: &[(&str, &[&str])] = &[
    ("4 KiB random write, depth 1", &["--op", "randwrite", "--depth", "1"]),
    ("4 KiB random read, depth 1", &["--op", "randread", "--depth", "1"]),
    ("4 KiB random write, depth 32", &["--op", "randwrite", "--depth", "32"]),
    ("4 KiB random read, depth 32", &["--op", "randread", "--depth", "32"]),
    ("4 MiB linear write, depth 4", &["--op", "write", "--depth", "4", "--block-size", "4MiB"]),
    ("4 MiB linear read, depth 4", &["--op", "read", "--depth", "4", "--block-size", "4MiB"]),
];

fn main() {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(3);
    pin_to_one_core();
    let base =
        if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let dir = base.join(format!("ashlar-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the directory is writable");
    let cleanup = Cleanup(dir.clone());
    println!("one core, files in {}, medians of {rounds} rounds\n", base.display());
    store_table(&dir, rounds);
    path_table(&dir, rounds);
    drop(cleanup);
}

/// Takes the cluster down and its files away, also after a panic.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let mut down = Command::new(ASHLAR);
        let _ = down.arg("down").arg("--dir").arg(self.0.join("cluster")).output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pin_to_one_core() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    // Children inherit it.
    if rustix::thread::sched_setaffinity(None, &cpus).is_err() {
        println!("(not pinned: the system refuses)");
    }
}

/// The store beside raw io_uring on the same file.
fn store_table(dir: &Path, rounds: usize) {
    println!(
        "| store | ops/s | CPU us/op | raw CPU us/op | ratio | raw with a journal, CPU us/op | ratio \
         | device bytes a byte |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut recoveries = Vec::new();
    for (name, options) in LOADS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let mut command = Command::new(ASHLAR);
            command.args(["bench", "disk"]).arg(dir).args(*options);
            // Whole blocks move with each write: in a small store soon to places written before.
            let size = if name.contains("MiB") { "1GiB" } else { "4GiB" };
            command.args(["--size", size, "--commit", "immediate", "--seconds", SECONDS, "--json"]);
            runs.push(json(&mut command));
        }
        let median = |pick: &dyn Fn(&Value) -> f64| median(runs.iter().map(pick).collect());
        let cpu = |run: &Value| number(&run["osd_cpu_us_per_op"]);
        let raw = |run: &Value| number(&run["raw"]["cpu_us_per_op"]);
        let journaled = |run: &Value| number(&run["raw_journaled"]["cpu_us_per_op"]);
        println!(
            "| {name} | {:.0} | {:.2} | {:.2} | {:.2} | {} | {} | {:.2} |",
            median(&|run| number(&run["ops_per_second"])),
            median(&cpu),
            median(&raw),
            median(&|run| cpu(run) / raw(run)),
            or_none(median(&journaled)),
            or_none(median(&|run| cpu(run) / journaled(run))),
            median(&|run| number(&run["device_bytes_per_byte"])),
        );
        let recovery = |run: &Value| {
            let read = number(&run["recovery"]["journal_bytes"]) / (1 << 30) as f64;
            number(&run["recovery"]["seconds"]) / read
        };
        if name.contains("random write") {
            recoveries.push(median(&recovery));
        }
    }
    let each: Vec<String> = recoveries.iter().map(|seconds| format!("{seconds:.1} s")).collect();
    println!("\nopened again after a crash: {} for 1 GiB of journal", each.join(", "));
    println!();
}

/// The whole path through one OSD beside (echo + raw).
fn path_table(dir: &Path, rounds: usize) {
    let cluster = dir.join("cluster");
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--detach", "--osds", "1", "--osd-size", "2GiB", "--commit", "immediate"]);
    assert!(up.arg("--dir").arg(&cluster).output().expect("starts").status.success());
    let mut create = Command::new(ASHLAR);
    create.args(["volume", "create", "bench", "--size", "512MiB", "--cluster"]).arg(&cluster);
    assert!(create.output().expect("starts").status.success());
    // Written once, so that reads find data.
    let mut fill =
        bench_volume(&cluster, &["--op", "write", "--block-size", "1MiB", "--depth", "4"]);
    json(&mut fill);

    println!(
        "| volume through one OSD | ops/s | p50 us | p99 us | OSD CPU us/op | echo us | raw us \
         | p50 / (echo + raw) |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, options) in LOADS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let mut limits = Command::new(ASHLAR);
            limits.args(["bench", "disk"]).arg(dir).args(*options);
            limits.args(["--size", "512MiB", "--seconds", "1", "--json"]);
            let limits = json(&mut limits);
            runs.push((json(&mut bench_volume(&cluster, options)), limits));
        }
        let median =
            |pick: &dyn Fn(&(Value, Value)) -> f64| median(runs.iter().map(pick).collect());
        let p50 = |run: &(Value, Value)| number(&run.0["latency_us"]["p50"]);
        let echo = |run: &(Value, Value)| number(&run.1["echo_us"]);
        let raw = |run: &(Value, Value)| number(&run.1["raw"]["latency_us"]["p50"]);
        println!(
            "| {name} | {:.0} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.2} |",
            median(&|run| number(&run.0["ops_per_second"])),
            median(&p50),
            median(&|run| number(&run.0["latency_us"]["p99"])),
            median(&|run| number(&run.0["osd_cpu_us_per_op"])),
            median(&echo),
            median(&raw),
            median(&|run| p50(run) / (echo(run) + raw(run))),
        );
    }
}

fn bench_volume(cluster: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(ASHLAR);
    command.args(["bench", "volume", "bench", "--seconds", SECONDS, "--json"]).args(options);
    command.arg("--cluster").arg(cluster);
    command
}

fn json(command: &mut Command) -> Value {
    let output = command.output().expect("starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A figure, or nothing where it was not measured.
fn or_none(value: f64) -> String {
    if value.is_nan() { String::new() } else { format!("{value:.2}") }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
