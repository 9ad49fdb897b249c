//! Does `ashlar` tell what clients did, byte by byte, and where it lies?

use std::io::BufReader;
use std::process::{Child, ChildStderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, kill_9, qemu_io, report, wait_for};
use crate::operator::begin_watch;

/// As set in these tests.
const INTERVAL: Duration = Duration::from_millis(500);

fn up(name: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", "3", "--osd-size", "512MiB"]);
    cluster.run(&["config", "set", "stats_interval_ms", "500"]);
    cluster
}

fn rows(value: Value) -> Vec<Value> {
    value.as_array().expect("a list").clone()
}

/// The sum of a number over rows: `io.write.bytes`.
fn sum(rows: &[Value], kind: &str, what: &str) -> u64 {
    rows.iter().map(|row| row["io"][kind][what].as_u64().expect("a number")).sum()
}

/// Waits until the volume has so many bytes written and in use, and asserts that its pool and the OSDs
/// say the same, the latter with both copies.
fn assert_written(cluster: &Cluster, mib: u64) {
    let bytes = mib << 20;
    let mut seen = Value::Null;
    wait_for("all that was written to be told", || {
        let info = cluster.json(&["volume", "info", "v"]);
        let is_all = info["io"]["write"]["bytes"] == bytes && info["used_bytes"] == bytes;
        let osds = rows(cluster.json(&["osd", "ls"]));
        let is_stored = sum(&osds, "stored", "bytes") == 2 * bytes;
        seen = info;
        is_all && is_stored
    });
    let osds = rows(cluster.json(&["osd", "ls"]));
    assert_eq!(sum(&osds, "write", "bytes"), bytes, "{seen}");
    let pools = rows(cluster.json(&["pool", "ls"]));
    assert_eq!(sum(&pools, "write", "bytes"), bytes, "{seen}");
    assert_eq!(pools[0]["used_bytes"], bytes);
    let volumes = rows(cluster.json(&["volume", "ls"]));
    assert_eq!(
        (sum(&volumes, "write", "bytes"), &volumes[0]["used_bytes"]),
        (bytes, &bytes.into())
    );
    assert_eq!((&seen["io"]["failed"], &seen["io"]["refused_full"]), (&0.into(), &0.into()));
}

#[test]
fn every_acknowledged_byte_is_counted_once_over_restarts_of_osds_and_of_the_monitor() {
    let cluster = up("statistics");
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.wait_clean();
    qemu_io(&cluster, "v", &["write -P 1 0 16M", "read -P 1 0 4M"]);
    assert_written(&cluster, 16);
    assert!(
        cluster.json(&["volume", "info", "v"])["io"]["read"]["bytes"].as_u64() >= Some(4 << 20)
    );
    for osd in 1..=3 {
        let pid = cluster.pid("osd", osd);
        kill_9(pid);
        wait_for("another process in its place", || cluster.pid("osd", osd) != pid);
        cluster.wait_osd(osd, true);
        cluster.wait_clean();
    }
    assert_written(&cluster, 16);
    qemu_io(&cluster, "v", &["write -P 2 16M 8M"]);
    assert_written(&cluster, 24);
    // What is not in the store yet comes from the OSDs again.
    qemu_io(&cluster, "v", &["write -P 3 24M 8M"]);
    cluster.kill("mon", 1);
    assert_written(&cluster, 32);
    qemu_io(&cluster, "v", &["write -P 4 0 8M", "discard 24M 8M"]);
    wait_for("the space of what was discarded to return", || {
        cluster.json(&["volume", "info", "v"])["used_bytes"] == 24 << 20
    });
    let info = cluster.json(&["volume", "info", "v"]);
    assert_eq!(info["io"]["write"]["bytes"], 40 << 20);
    assert_eq!(info["io"]["trim"]["bytes"], 8 << 20);
    // Nothing happens any more: rates end, and what is kept is what is told.
    wait_for("the rates to end", || {
        let write = &cluster.json(&["status"])["io"]["write"];
        write["ops_per_second"] == 0 && write["latency_p99_us"].is_null()
    });
    let kept = cluster.json(&["state", "get", "stats/volume/0"]);
    let row = &kept["value"]["rows"][info["id"].to_string()];
    assert_eq!((&row["name"], &row["write"]["bytes"]), (&"v".into(), &(40u64 << 20).into()));
    cluster.refused(&["state", "put", "stats/volume/0", "{}"], "protected");
    cluster.check_copies();
}

/// Counts the writings of statistics to the state store, told by `state watch`.
struct Writings {
    child: Child,
    _errors: BufReader<ChildStderr>,
    count: Arc<AtomicU64>,
}

impl Writings {
    fn begin(cluster: &Cluster) -> Writings {
        // Nothing is read of its errors; they stay open while it runs.
        let (child, lines, errors) = begin_watch(cluster, "stats/osd/");
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        std::thread::spawn(move || {
            for _ in lines.map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Writings { child, _errors: errors, count }
    }

    /// How many there were while `load` was called again and again for ten intervals.
    fn while_busy(&self, mut load: impl FnMut()) -> (u64, u64) {
        let (begin, before) = (Instant::now(), self.count.load(Ordering::Relaxed));
        while begin.elapsed() < INTERVAL * 10 {
            load();
        }
        let intervals = begin.elapsed().as_millis() / INTERVAL.as_millis();
        (self.count.load(Ordering::Relaxed) - before, intervals as u64)
    }
}

impl Drop for Writings {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_store_is_written_as_often_for_two_hundred_busy_volumes_as_for_one() {
    let cluster = up("statistics-many");
    let name = |number: u64| format!("v{number}");
    for number in 1..=200 {
        cluster.run(&["volume", "create", &name(number), "--size", "1MiB"]);
    }
    cluster.wait_clean();
    let writings = Writings::begin(&cluster);
    let one = writings.while_busy(|| qemu_io(&cluster, "v1", &["write 0 64k"]));
    let mut next = 0;
    let many = writings.while_busy(|| {
        next = next % 200 + 1;
        qemu_io(&cluster, &name(next), &["write 0 64k"]);
    });
    report(&format!(
        "statistics: {} writings in {} intervals with one busy volume, {} in {} with 200 volumes",
        one.0, one.1, many.0, many.1
    ));
    for (count, intervals) in [one, many] {
        // One that ended meanwhile may be told late.
        assert!((1..=intervals + 2).contains(&count), "{count} in {intervals}");
    }
    // People see it, too.
    for (command, titles) in [
        (["volume", "ls"], ["USED", "WRITE"]),
        (["osd", "ls"], ["STORED", "RECOVERY"]),
        (["pool", "ls"], ["AVAILABLE", "WRITE"]),
    ] {
        let text = cluster.run(&command);
        assert!(titles.iter().all(|title| text.contains(title)), "{text}");
    }
    assert_eq!(rows(cluster.json(&["volume", "ls"])).len(), 200);
    let status = cluster.run(&["status"]);
    assert!(status.contains("writes") && status.contains("pool        default:"), "{status}");
}
