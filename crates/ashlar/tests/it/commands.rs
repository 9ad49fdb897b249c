//! Tests that the operator's commands print what they promise.

use std::process::Command;

use serde_json::Value;

use crate::harness::{ASHLAR, Cluster, qemu_io, refused, run, succeed, text_of};

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(|k| &**k).collect();
    keys.sort_unstable();
    keys
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

#[test]
fn a_list_whose_reader_stops_early_is_not_a_failure() {
    let cluster = Cluster::up("pipe", &["--osds", "1", "--osd-size", "128MiB"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(ASHLAR);
    command.args(["pg", "ls", "--cluster"]).arg(cluster.path()).stdout(writer);
    let output = command.output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(13));
}

#[test]
fn output_that_cannot_be_written_fails_the_command_without_a_panic() {
    let cluster = Cluster::up("full-output", &["--osds", "1", "--osd-size", "256MiB"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--failure-domain", "osd"];
    cluster.run(&create);
    cluster.run(&["kv", "put", "key", "value"]);
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a device");
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["status", "--watch"],
        &["check"],
        &["pool", "ls"],
        &["osd", "tree"],
        &["osd", "ls", "--json"],
        &["pg", "describe", "1.0"],
        &["config", "ls"],
        &["state", "ls"],
        &["kv", "get", "key"],
        &["kv", "scan"],
        &["kv", "scan", "--json"],
        &["object", "ls"],
        &["object", "get", "key"],
        &["kv", "put", "other", "value"],
    ] {
        let output = cluster.command(arguments).stdout(full()).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains("No space left on device"), "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    }
    let help = Command::new(ASHLAR).arg("--help").stdout(full()).output().expect("it starts");
    assert_eq!(help.status.code(), Some(1));
    // Errors that cannot be written change nothing.
    let mut refused = cluster.command(&["volume", "info", "none"]);
    let output = refused.stderr(full()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn commands_for_objects_say_that_no_monitor_answers() {
    let cluster = Cluster::up("no-monitor", &["--osds", "1", "--osd-size", "256MiB"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--failure-domain", "osd"];
    cluster.run(&create);
    cluster.down();
    let bench = ["bench", "kv", "--op", "fill", "--records", "10", "--pool", "kv"];
    let commands: [&[&str]; 6] = [
        &["pool", "ls"],
        &["kv", "get", "key", "--pool", "kv"],
        &["kv", "scan"],
        &["object", "ls", "--pool", "kv"],
        &["object", "stat", "name"],
        &bench,
    ];
    // Each waits for some seconds.
    std::thread::scope(|scope| {
        for arguments in commands {
            scope.spawn(|| cluster.refused(arguments, "unreachable"));
        }
    });
}

#[test]
fn placement_groups_are_listed_and_described() {
    let cluster = Cluster::up("pgs", &["--osds", "2", "--osd-size", "256MiB"]);
    let create = ["pool", "create", "few", "--pgs", "8", "--replicas", "1"];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.wait_active();
    let all = cluster.json(&["pg", "ls"]);
    let few = cluster.json(&["pg", "ls", "--pool", "few"]);
    assert_eq!(rows(&few).len(), 8);
    assert_eq!(cluster.json(&["status"])["pgs"]["total"], rows(&all).len());
    let mut primaries = [0; 2];
    for row in rows(&few) {
        assert_eq!(row["pool"], 2, "{row}");
        assert_eq!(row["state"], "active", "{row}");
        assert_eq!(row["why"], Value::Null, "{row}");
        assert!(row["epoch"].as_u64() >= Some(1), "{row}");
        assert_eq!(row["acting"], serde_json::json!([row["primary"]]), "{row}");
        primaries[row["primary"].as_u64().expect("an OSD") as usize - 1] += 1;
    }
    assert_eq!(primaries, [4, 4], "they are spread");
    let table = cluster.run(&["pg", "ls", "--pool", "few"]);
    assert_eq!(table.lines().count(), 9, "{table}");

    let name = few[5]["pg"].as_str().expect("a name");
    assert_eq!(name, "2.5");
    let described = cluster.json(&["pg", "describe", name]);
    for key in keys(&few[5]) {
        assert_eq!(described[key], few[5][key], "{key}");
    }
    assert!(cluster.run(&["pg", "describe", name]).contains("active"));
    // The PG's OSD goes down: the output reports this, with the reason.
    let osd = few[5]["primary"].to_string();
    cluster.run(&["osd", "stop", &osd]);
    cluster.wait_osd(few[5]["primary"].as_u64().expect("an OSD"), false);
    let described = cluster.json(&["pg", "describe", name]);
    assert_eq!(described["state"], "down", "{described}");
    assert!(described["why"].as_str().is_some_and(|why| why.contains("osd")), "{described}");
    // Nothing is lost, so there is nothing to give up.
    cluster.refused(&["pg", "give-up", name], "unavailable");
    cluster.run(&["osd", "start", &osd]);
    cluster.wait_active();
    cluster.refused(&["pg", "give-up", name], "invalid");
}

#[test]
fn settings_and_state_are_shown() {
    let cluster = Cluster::up("state", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "1GiB"]);
    let settings = cluster.json(&["config", "ls"]);
    let timeout = rows(&settings).iter().find(|row| row["name"] == "session_timeout_ms");
    let timeout = timeout.expect("it is a setting");
    assert_eq!(timeout["value"], 10_000);
    assert!(timeout["help"].as_str().is_some_and(|help| help.len() > 10), "{timeout}");
    for row in rows(&settings) {
        let name = row["name"].as_str().expect("a name");
        assert_eq!(cluster.json(&["config", "get", name]), *row);
        assert!(cluster.run(&["config", "get", name]).contains(name));
    }
    assert_eq!(cluster.run(&["config", "ls"]).lines().count(), rows(&settings).len() + 1);

    let listed = cluster.json(&["state", "ls"]);
    let names = rows(&listed).iter().map(|row| row["key"].as_str().expect("a key"));
    let names: Vec<&str> = names.collect();
    for wanted in ["cluster", "leader", "osd/1", "pool/1", "pg/1/0", "image/1", "index/image/v"] {
        assert!(names.contains(&wanted), "{wanted}: {names:?}");
    }
    assert!(names.is_sorted());
    for row in rows(&listed) {
        assert!(row["revision"].as_u64() > Some(0), "{row}");
        assert!(row["value"].is_object(), "{row}");
    }
    let images = cluster.json(&["state", "ls", "image/"]);
    assert_eq!(rows(&images).len(), 1);
    assert_eq!(cluster.json(&["state", "get", "image/1"]), images[0]);
    assert_eq!(cluster.run(&["state", "ls", "image/"]), "image/1\n");
    assert_eq!(cluster.json(&["state", "get", "image/1"])["value"]["name"], "v");
}

#[test]
fn osd_inspect_and_the_log_report_what_recovery_found() {
    let cluster = Cluster::up("inspect", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 3 0 32M", "write -P 4 100k 4k", "flush"]);
    cluster.kill_everything();
    let osd = cluster.osd_paths()[0].display().to_string();
    let found = succeed(Command::new(ASHLAR).args(["osd", "inspect", &osd, "--json"]));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(found["osd"], 1);
    assert_eq!(found["size_bytes"], 256 << 20);
    assert_eq!(found["blocks"], 256, "{found:#}");
    assert_eq!(found["used_bytes"], 32 << 20, "{found:#}");
    assert_eq!(found["suspect"], false, "{found:#}");
    for area in ["journal", "checkpoints", "data"] {
        assert!(found[area]["bytes"].as_u64() > Some(0), "{area}: {found:#}");
    }
    let replayed = rows(&found["recovery_rows"]).iter().find(|row| row["row"] == "A");
    assert!(replayed.is_some_and(|row| row["count"].as_u64() >= Some(256)), "{found:#}");
    let text = succeed(Command::new(ASHLAR).args(["osd", "inspect", &osd]));
    assert!(text.contains("used bytes") && text.contains("commit"), "{text}");

    cluster.start(&[]);
    let log = std::fs::read_to_string(cluster.path().join("log/osd.1.log")).expect("a log");
    let line =
        log.lines().rfind(|line| line.contains("the store is recovered")).expect("it is said");
    assert!(line.contains(" blocks=256 ") && line.contains("@A:"), "{line}");
    qemu_io(&cluster, "v", &["read -P 4 100k 4k", "read -P 3 104k 32664k"]);
}

fn assert_measured(value: &Value) {
    for key in ["ops_per_second", "bytes_per_second", "osd_cpu_us_per_op"] {
        assert!(value[key].as_f64() > Some(0.0), "{key}: {value:#}");
    }
    let latency = |key: &str| value["latency_us"][key].as_f64().expect("a number");
    assert!(latency("p50") > 0.0);
    assert!(latency("p50") <= latency("p99"));
    assert!(latency("p99") <= latency("max"));
    assert_eq!(keys(&value["latency_us"]), ["max", "p50", "p99"]);
}

#[test]
fn benchmarks_report_all_their_numbers() {
    let cluster = Cluster::up("bench", &["--osds", "1", "--osd-size", "512MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "128MiB"]);
    for (op, block_size) in
        [("randwrite", 4096), ("write", 1 << 20), ("randread", 4096), ("read", 8192)]
    {
        let size = block_size.to_string() + "B";
        let bench = ["bench", "volume", "v", "--op", op, "--block-size", &size, "--depth", "4"];
        let mut command = cluster.command(&bench);
        let text = succeed(command.args(["--seconds", "1", "--json"]));
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_measured(&value);
        let bytes = value["ops_per_second"].as_f64().expect("a number") * f64::from(block_size);
        let told = value["bytes_per_second"].as_f64().expect("a number");
        assert!((bytes - told).abs() <= bytes * 1e-9, "{op}: {value:#}");
    }
    let line = cluster.run(&["bench", "volume", "v", "--seconds", "1"]);
    assert!(line.contains("ops/s") && line.contains("p99"), "{line}");
    cluster.refused(&["bench", "volume", "v", "--block-size", "1000B"], "invalid");
    cluster.refused(&["bench", "volume", "v", "--block-size", "64MiB"], "invalid");
    cluster.run(&["volume", "create", "small", "--size", "4KiB"]);
    cluster.refused(&["bench", "volume", "small", "--block-size", "8KiB"], "invalid");

    let scratch = cluster.path().join("scratch");
    std::fs::create_dir(&scratch).expect("writable");
    let disk = |arguments: &[&str]| {
        let mut command = Command::new(ASHLAR);
        command.args(["bench", "disk"]).arg(&scratch).args(["--size", "128MiB", "--json"]);
        run(command.args(arguments))
    };
    for (op, block_size, depth) in [
        ("randwrite", "4KiB", "1"),
        ("randread", "4KiB", "32"),
        ("write", "4MiB", "4"),
        ("read", "4MiB", "4"),
    ] {
        let output =
            disk(&["--op", op, "--block-size", block_size, "--depth", depth, "--seconds", "1"]);
        assert!(output.status.success(), "{}", text_of(&output));
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_measured(&value);
        assert_measured(&value["raw"]);
        assert_measured(&value["echo"]);
        let bytes = |of: &str| value["echo"][of].as_f64().expect("a number");
        let block = if block_size == "4KiB" { 4096.0 } else { f64::from(4 << 20) };
        let told = bytes("bytes_per_second") / bytes("ops_per_second");
        assert!((told - block).abs() < 1.0, "{value:#}");
    }
    let mut disk = Command::new(ASHLAR);
    disk.args(["bench", "disk"]).arg(&scratch).args(["--size", "64MiB", "--json"]);
    refused(&mut disk, "invalid");
    let left = std::fs::read_dir(&scratch).expect("readable").flatten().count();
    assert_eq!(left, 0, "the scratch file is removed");
    cluster.check_osds();
}
