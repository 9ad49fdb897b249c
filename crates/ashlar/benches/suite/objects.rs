//! The tables of pools of objects: small values of 300 to 900 bytes of text under random keys. Beside them the engine
//! alone, with the same records and compression, measured in the same run: what stands between the two is the rest of
//! an OSD, the network, the client, and the copies.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{ASHLAR, Cluster, SECONDS, done, json, median, number, p50};

const COMPRESSIONS: [&str; 8] =
    ["none", "snappy", "lz4", "lz4hc", "zstd", "zlib", "zlib-best", "bzip2"];
const COMMON_COMPRESSIONS: [&str; 2] = ["lz4", "zstd"];
/// The compression of a pool for which none was chosen.
pub const DEFAULT_COMPRESSION: &str = "lz4";
/// The pool by which the OSDs get their engines. They restart for that, and a pool that is created meanwhile
/// lacks copies.
const FIRST_POOL: &str = "first";

/// One kind of load: its name, its options, and the load of the engine beside it.
type ObjectLoad = (&'static str, &'static [&'static str], &'static str);

const LOADS: &[ObjectLoad] = &[
    ("write, batches of 100, depth 1", &["--op", "fill", "--batch", "100", "--depth", "1"], "fill"),
    ("write, batches of 100, depth 4", &["--op", "fill", "--batch", "100", "--depth", "4"], "fill"),
    ("random read, depth 1", &["--op", "get", "--depth", "1", "--seconds", SECONDS], "get"),
    ("random read, depth 32", &["--op", "get", "--depth", "32", "--seconds", SECONDS], "get"),
    ("scan, depth 1", &["--op", "scan", "--depth", "1"], "scan"),
    ("scan, depth 4", &["--op", "scan", "--depth", "4"], "scan"),
];

impl Cluster {
    /// Lets the OSDs get their engines.
    pub fn add_engines(&self) {
        self.create_objects(FIRST_POOL, "1", DEFAULT_COMPRESSION);
        // They have begun their next runs when all of them have answered for the engine.
        done(&mut self.command(&["pool", "rm", FIRST_POOL, "--yes"]));
        self.wait_until_healthy();
    }

    pub fn create_objects(&self, name: &str, copies: &str, compression: &str) {
        let create = ["pool", "create", name, "--kind", "object", "--failure-domain", "osd"];
        let mut create = self.command(&create);
        done(create.args(["--replicas", copies, "--compression", compression]));
        self.wait_until_healthy();
    }

    fn kv(&self, pool: &str, records: &str, options: &[&str]) -> Value {
        let kv = ["bench", "kv", "--json", "--pool", pool, "--records", records];
        json(self.command(&kv).args(options))
    }
}

fn engine(dir: &Path, records: &str, compression: &str) -> Value {
    let mut engine = Command::new(ASHLAR);
    engine.args(["bench", "engine", "--json", "--records", records]).arg(dir);
    json(engine.args(["--compression", compression, "--seconds", SECONDS]))
}

/// Prints the table of a pool with so many copies, beside the engine alone.
pub fn objects_table(cluster: &Cluster, title: &str, copies: &str, records: &str, rounds: usize) {
    cluster.create_objects("copies", copies, DEFAULT_COMPRESSION);
    let dir = cluster.dir.parent().expect("ours");
    let runs: Vec<(Value, Vec<Value>)> = (0..rounds)
        .map(|_| {
            let loads = LOADS.iter().map(|(_, options, _)| cluster.kv("copies", records, options));
            let loads = loads.collect();
            (engine(dir, records, DEFAULT_COMPRESSION), loads)
        })
        .collect();
    println!(
        "| {title} | records/s | MB/s | p50 us | p99 us | OSD CPU us/record | engine alone, \
         records/s | engine's part |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let rate = |run: &Value| number(&run["records_per_second"]);
    for (index, (name, _, beside)) in LOADS.iter().enumerate() {
        let of = |pick: &dyn Fn(&Value) -> f64| {
            median(runs.iter().map(|(_, loads)| pick(&loads[index])).collect())
        };
        let alone = |(engine, _): &(Value, Vec<Value>)| rate(&engine[beside]);
        let ratio = |run: &(Value, Vec<Value>)| rate(&run.1[index]) / alone(run);
        println!(
            "| {name} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2} | {:.0} | {:.2} |",
            of(&rate),
            of(&|run| number(&run["bytes_per_second"]) / 1e6),
            of(&p50),
            of(&|run| number(&run["latency_us"]["p99"])),
            of(&|run| number(&run["osd_cpu_us_per_record"])),
            median(runs.iter().map(alone).collect()),
            median(runs.iter().map(ratio).collect()),
        );
    }
    let put = ["--op", "put", "--depth", "1", "--seconds", SECONDS];
    let write = ["--op", "randwrite", "--depth", "1", "--seconds", SECONDS];
    let pairs: Vec<(f64, f64)> = (0..rounds)
        .map(|_| (p50(&cluster.kv("copies", records, &put)), p50(&cluster.bench("bench", &write))))
        .collect();
    println!(
        "\none small put, depth 1: p50 {:.1} us; a 4 KiB block write beside it {:.1} us; ratio {:.2}\n",
        median(pairs.iter().map(|(put, _)| *put).collect()),
        median(pairs.iter().map(|(_, write)| *write).collect()),
        median(pairs.iter().map(|(put, write)| put / write).collect()),
    );
}

/// Prints the table of compressions: of a pool with one copy, and the size that the engine alone takes on
/// disk. `records_of_common`: the number of records of those that are chosen most.
pub fn compressions_table(cluster: &Cluster, records: &str, records_of_common: &str) {
    let dir = cluster.dir.parent().expect("ours");
    println!(
        "| compression | records | writes/s | random reads/s | scan MB/s | engine alone: writes/s | \
         reads/s | scan MB/s | on disk, part of the data |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for compression in COMPRESSIONS {
        let is_common = COMMON_COMPRESSIONS.contains(&compression);
        let records = if is_common { records_of_common } else { records };
        cluster.create_objects(compression, "1", compression);
        let kv = |options: &[&str]| cluster.kv(compression, records, options);
        let fill = kv(&["--op", "fill", "--batch", "100", "--depth", "4"]);
        let get = kv(&["--op", "get", "--depth", "32", "--seconds", SECONDS]);
        let scan = kv(&["--op", "scan", "--depth", "1"]);
        let engine = engine(dir, records, compression);
        let rate = |run: &Value| number(&run["records_per_second"]);
        let speed = |run: &Value| number(&run["bytes_per_second"]) / 1e6;
        println!(
            "| {compression} | {records} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.1} | {:.3} |",
            rate(&fill),
            rate(&get),
            speed(&scan),
            rate(&engine["fill"]),
            rate(&engine["get"]),
            speed(&engine["scan"]),
            number(&engine["disk_bytes"]) / number(&engine["fill"]["bytes"]),
        );
        done(&mut cluster.command(&["pool", "rm", compression, "--yes"]));
    }
    println!();
}
