//! `make bench`: compares the store and the whole path with the limits of this machine, measured in the same
//! run. Prints medians over several rounds, and ratios: noise on the machine affects both sides of a ratio
//! equally.
//!
//! Everything runs on one core: on two cores the cost of wake-ups would hide the cost of the program itself.
//! Volumes with copies are measured on two cores as well.

#![allow(clippy::disallowed_methods)] // A program that starts processes and reads the clock.

mod objects;
mod removal;
mod writes;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ASHLAR: &str = env!("CARGO_BIN_EXE_ashlar");

/// Duration of one measurement in seconds.
const SECONDS: &str = "2";

/// One kind of load: its name and options.
type Load = (&'static str, &'static [&'static str]);

const LOADS: &[Load] = &[
    ("4 KiB random write, depth 1", &["--op", "randwrite", "--depth", "1"]),
    ("4 KiB random read, depth 1", &["--op", "randread", "--depth", "1"]),
    ("4 KiB random write, depth 32", &["--op", "randwrite", "--depth", "32"]),
    ("4 KiB random read, depth 32", &["--op", "randread", "--depth", "32"]),
    ("4 MiB linear write, depth 4", &["--op", "write", "--depth", "4", "--block-size", "4MiB"]),
    ("4 MiB linear read, depth 4", &["--op", "read", "--depth", "4", "--block-size", "4MiB"]),
];

/// Loads in the table of replicated volumes, instead of the linear loads above.
const REPLICATED_LOADS: &[Load] = &[
    ("4 KiB random write, depth 128", &["--op", "randwrite", "--depth", "128"]),
    ("4 KiB random read, depth 128", &["--op", "randread", "--depth", "128"]),
    ("4 MiB linear write, depth 16", &["--op", "write", "--depth", "16", "--block-size", "4MiB"]),
    ("4 MiB linear read, depth 16", &["--op", "read", "--depth", "16", "--block-size", "4MiB"]),
];

fn main() {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(3);
    pin_to_cores(1);
    let base =
        if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let dir = base.join(format!("ashlar-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the directory is writable");
    let cleanup = Cleanup(dir.clone());
    println!("one core, files in {}, medians of {rounds} rounds\n", base.display());
    match std::env::var("TABLES").as_deref() {
        Ok("objects") => return objects_tables(&dir, rounds),
        Ok("compressions") => return compressions_of_many(&dir),
        Ok("writes") => return writes_tables(&dir, rounds),
        Ok("removal") => return removal_table(&dir, rounds),
        _ => {}
    }
    store_table(&dir, rounds);
    println!("{RATIO}\n");
    path_table(&Cluster::up(&dir, "1"), "one copy, one OSD", 1, LOADS, rounds);
    let loads: Vec<Load> = LOADS[..4].iter().chain(REPLICATED_LOADS).copied().collect();
    for cores in [1, 2] {
        pin_to_cores(cores);
        let cluster = Cluster::up(&dir, "3");
        let title = format!("two copies, three OSDs, cores: {cores}");
        path_table(&cluster, &title, 2, &loads, rounds);
        parity_table(&cluster, cores, &loads, rounds);
        stalls(&cluster);
    }
    writes_tables(&dir, rounds);
    removal_table(&dir, rounds);
    objects_tables(&dir, rounds);
    drop(cleanup);
}

/// Prints the tables of small writes, on two cores: at two depths, with parity, and beside an empty pool.
fn writes_tables(dir: &Path, rounds: usize) {
    pin_to_cores(2);
    println!("random writes of 4 KiB, three OSDs, two cores\n");
    for size in ["1GiB", "2560MiB", "32GiB"] {
        let cluster = Cluster::start(dir, "3", size);
        cluster.create_volume("bench", "default", "256MiB");
        writes::beside_empty_pool(&cluster, size, rounds);
    }
    let cluster = Cluster::up(dir, "3");
    writes::parity_beside_copies(&cluster, rounds);
}

/// Prints the table of writes beside the removal of objects, on two cores.
fn removal_table(dir: &Path, rounds: usize) {
    let objects = std::env::var("REMOVALS").unwrap_or_else(|_| "100000".to_string());
    pin_to_cores(2);
    println!("writes of 4 KiB at depth 1 beside removals, three OSDs, two cores\n");
    let cluster = Cluster::up(dir, "3");
    cluster.add_engines();
    removal::table(&cluster, &objects, rounds);
}

/// Prints the tables of pools of objects, on two cores: engine and OSD have threads of their own.
fn objects_tables(dir: &Path, rounds: usize) {
    let records = std::env::var("RECORDS").unwrap_or_else(|_| "100000".to_string());
    pin_to_cores(2);
    println!("pools of objects: {records} records of 300 to 900 bytes of text, two cores\n");
    let one = Cluster::up(dir, "1");
    one.add_engines();
    objects::objects_table(&one, "one copy, one OSD", "1", &records, rounds);
    objects::compressions_table(&one, &records, &records);
    drop(one);
    let three = Cluster::up(dir, "3");
    three.add_engines();
    objects::objects_table(&three, "two copies, three OSDs", "2", &records, rounds);
}

/// Prints the table of compressions with so many records that most are not in memory.
fn compressions_of_many(dir: &Path) {
    let number = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_string());
    pin_to_cores(2);
    let one = Cluster::up(dir, "1");
    one.add_engines();
    let (records, of_common) =
        (number("RECORDS", "1000000"), number("RECORDS_OF_COMMON", "10000000"));
    objects::compressions_table(&one, &records, &of_common);
}

/// Removes the files when dropped, also after a panic.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pins this process, and those that it starts from now on, to the first `count` cores.
fn pin_to_cores(count: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    (0..count).for_each(|cpu| cpus.set(cpu));
    if rustix::thread::sched_setaffinity(None, &cpus).is_err() {
        println!("(not pinned: the system refuses)");
    }
}

/// Prints the table of the store and raw io_uring on the same file.
fn store_table(dir: &Path, rounds: usize) {
    println!(
        "| store | ops/s | CPU us/op | raw CPU us/op | ratio | raw with a journal, CPU us/op | ratio \
         | device bytes per byte |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut recoveries = Vec::new();
    for (name, options) in LOADS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let mut command = Command::new(ASHLAR);
            command.args(["bench", "disk"]).arg(dir).args(*options);
            // Each write of a whole block goes to a new location. In a small store, such
            // writes soon reuse locations that were written before.
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

/// A running cluster with a volume that was written once, so that reads find data. Its pool `default` has two
/// copies if there are three OSDs.
struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    fn up(base: &Path, osds: &str) -> Cluster {
        let cluster = Cluster::start(base, osds, "2GiB");
        cluster.create_volume("bench", "default", "512MiB");
        cluster
    }

    /// Starts a cluster without a volume.
    fn start(base: &Path, osds: &str, osd_size: &str) -> Cluster {
        let cluster = Cluster { dir: base.join("cluster") };
        let mut up = Command::new(ASHLAR);
        up.args(["up", "--no-gateway", "--detach", "--osds", osds, "--osd-size", osd_size]);
        done(up.args(["--commit", "immediate", "--dir"]).arg(&cluster.dir));
        cluster
    }

    fn create_parity_pool(&self) {
        let create = ["pool", "create", "parity", "--ec", "2+1", "--failure-domain", "osd"];
        done(&mut self.command(&create));
        self.wait_until_healthy();
    }

    /// Creates a volume and writes it once.
    fn create_volume(&self, name: &str, pool: &str, size: &str) {
        done(&mut self.command(&["volume", "create", name, "--size", size, "--pool", pool]));
        let fill = ["--op", "write", "--block-size", "1MiB", "--depth", "4", "--seconds", SECONDS];
        self.bench(name, &fill);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(ASHLAR);
        command.args(arguments).arg("--cluster").arg(&self.dir);
        command
    }

    fn bench(&self, volume: &str, options: &[&str]) -> Value {
        let mut command = self.command(&["bench", "volume", volume, "--json"]);
        json(command.args(options))
    }

    fn wait_until_healthy(&self) {
        while json(&mut self.command(&["status", "--json"]))["health"] != "ok" {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Returns the process ids of the OSDs, in order of the OSDs' numbers.
    fn osd_pids(&self) -> Vec<i32> {
        let rows = json(&mut self.command(&["osd", "ls", "--json"]));
        let rows = rows.as_array().expect("a list").iter();
        rows.filter_map(|row| row["pid"].as_i64()).map(|pid| pid as i32).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = Command::new(ASHLAR);
        let _ = down.arg("down").arg("--dir").arg(&self.dir).output();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Text printed before the tables of volumes.
const RATIO: &str = "\
Echo over loopback and raw io_uring use the block size and depth of their row. The echo sends a block in
the direction of the load, and at most 4 KiB in the other direction.
ratio, depth 1: p50 / (hops x echo's p50 + raw's p50)
ratio, deeper:  time / (hops x echo's time + copies x raw's time), each 1 / (operations per second)
A write to two copies takes two hops and two raw writes; any other operation takes one of each. So the ratio
compares an operation with its parts, done one after the other on one core. At depth 1 a raw write counts
once, as in the aims of docs/performance.md, because the copies are written at the same time.";

/// How a load compares with its limits: see `RATIO`.
fn ratio(load: &Value, limits: &Value, hops: f64, copies: f64, is_alone: bool) -> f64 {
    let (echo, raw) = (&limits["echo"], &limits["raw"]);
    if is_alone {
        return p50(load) / (hops * p50(echo) + p50(raw));
    }
    let time = |measured: &Value| 1.0 / number(&measured["ops_per_second"]);
    time(load) / (hops * time(echo) + copies * time(raw))
}

fn p50(measured: &Value) -> f64 {
    number(&measured["latency_us"]["p50"])
}

/// Prints the table of the whole path and the limits.
fn path_table(cluster: &Cluster, title: &str, copies: u32, loads: &[Load], rounds: usize) {
    println!(
        "| {title} | ops/s | MB/s | p50 us | p99 us | OSD CPU us/op | echo us | echo per second \
         | raw us | raw per second | ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, options) in loads {
        // The primary sends each write to the other copies, one more hop for each.
        let copies = if name.contains("write") { f64::from(copies) } else { 1.0 };
        let hops = copies;
        let is_alone = options.contains(&"1");
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let mut limits = Command::new(ASHLAR);
            limits.args(["bench", "disk"]).arg(cluster.dir.parent().expect("ours")).args(*options);
            limits.args(["--size", "512MiB", "--commit", "immediate", "--seconds", "1", "--json"]);
            let limits = json(&mut limits);
            let options = [*options, &["--seconds", SECONDS]].concat();
            runs.push((cluster.bench("bench", &options), limits));
        }
        let median =
            |pick: &dyn Fn(&(Value, Value)) -> f64| median(runs.iter().map(pick).collect());
        let rate = |limit: &str| {
            if name.contains("MiB") {
                let bytes = median(&|run| number(&run.1[limit]["bytes_per_second"]));
                return format!("{:.0} MB", bytes / 1e6);
            }
            format!("{:.0}", median(&|run| number(&run.1[limit]["ops_per_second"])))
        };
        println!(
            "| {name} | {:.0} | {:.0} | {:.1} | {:.1} | {:.2} | {:.1} | {} | {:.1} | {} | {:.2} |",
            median(&|run| number(&run.0["ops_per_second"])),
            median(&|run| number(&run.0["bytes_per_second"]) / 1e6),
            median(&|run| p50(&run.0)),
            median(&|run| number(&run.0["latency_us"]["p99"])),
            median(&|run| number(&run.0["osd_cpu_us_per_op"])),
            median(&|run| p50(&run.1["echo"])),
            rate("echo"),
            median(&|run| p50(&run.1["raw"])),
            rate("raw"),
            median(&|run| ratio(&run.0, &run.1, hops, copies, is_alone)),
        );
    }
    println!();
}

/// Prints the table of a pool with two data parts and one parity part, compared with the pool of two
/// copies of the same cluster: the two are measured in turn. The last two columns are ratios to it: of the
/// mean time of an operation, and of the OSDs' processor time.
fn parity_table(cluster: &Cluster, cores: usize, loads: &[Load], rounds: usize) {
    cluster.create_parity_pool();
    cluster.create_volume("parity", "parity", "512MiB");
    println!(
        "| 2+1 beside two copies, cores: {cores} | ops/s | MB/s | p50 us | p99 us | OSD CPU us/op \
         | time, ratio | CPU, ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, options) in loads {
        let options = [*options, &["--seconds", SECONDS]].concat();
        let pair = |_| (cluster.bench("bench", &options), cluster.bench("parity", &options));
        let runs: Vec<(Value, Value)> = (0..rounds).map(pair).collect();
        let median =
            |pick: &dyn Fn(&(Value, Value)) -> f64| median(runs.iter().map(pick).collect());
        let of = |pick: &dyn Fn(&Value) -> f64| median(&|run| pick(&run.1));
        let cpu = |run: &Value| number(&run["osd_cpu_us_per_op"]);
        let rate = |run: &Value| number(&run["ops_per_second"]);
        println!(
            "| {name} | {:.0} | {:.0} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} |",
            of(&rate),
            of(&|run| number(&run["bytes_per_second"]) / 1e6),
            of(&p50),
            of(&|run| number(&run["latency_us"]["p99"])),
            of(&cpu),
            median(&|(copies, parity)| rate(copies) / rate(parity)),
            median(&|(copies, parity)| cpu(parity) / cpu(copies)),
        );
    }
    println!();
    done(&mut cluster.command(&["volume", "rm", "parity"]));
    done(&mut cluster.command(&["pool", "rm", "parity"]));
}

/// Measures how long writes stall when an OSD is killed: the longest write of a load on all PGs, while each
/// OSD is killed once. `up` restarts the OSD, which is complete again before the next one is killed.
fn stalls(cluster: &Cluster) {
    let mut longest = Vec::new();
    for index in 0..cluster.osd_pids().len() {
        let pid = cluster.osd_pids()[index];
        let mut load = cluster.command(&["bench", "volume", "bench", "--json"]);
        load.args(["--op", "randwrite", "--depth", "16", "--seconds", "4"]);
        load.stdout(std::process::Stdio::piped());
        let load = load.spawn().expect("starts");
        // Kill it in the middle of the load. The exact moment does not matter.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("ours");
        let output = load.wait_with_output().expect("ends");
        assert!(output.status.success(), "the load failed over the kill");
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        longest.push(number(&value["latency_us"]["max"]) / 1e6);
        cluster.wait_until_healthy();
    }
    let each: Vec<String> = longest.iter().map(|seconds| format!("{seconds:.2} s")).collect();
    println!("longest write while an OSD is killed (-9), each OSD once: {}\n", each.join(", "));
}

/// Returns the output of a command, which must succeed.
fn done(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output.stdout
}

fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&done(command)).expect("JSON")
}

/// Returns a number as text; empty if the number was not measured.
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
