//! Tests that `ashlar` counts exactly what clients did, and shows where the data is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::process::{Child, ChildStderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, kill_9, qemu_io, report, wait_for};
use crate::operator::begin_watch;
use crate::raw_nbd::{Client, WRITE, socket_of};

/// The statistics interval that these tests set.
const INTERVAL: Duration = Duration::from_millis(500);

fn up(name: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", "3", "--osd-size", "512MiB"]);
    cluster.run(&["config", "set", "stats_interval_ms", "500"]);
    cluster
}

fn rows(value: Value) -> Vec<Value> {
    value.as_array().expect("a list").clone()
}

/// Returns the sum of a counter, such as `io.write.bytes`, over all rows.
fn sum(rows: &[Value], kind: &str, what: &str) -> u64 {
    rows.iter().map(|row| row["io"][kind][what].as_u64().expect("a number")).sum()
}

/// Waits until this many MiB of the volume are written and in use. Asserts that its pool has the same
/// numbers, and that the OSDs have twice as much, for both copies.
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
fn every_acknowledged_byte_is_counted_once_across_restarts() {
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
    // After the monitor is killed, the OSDs report the counters again that the state store does not have yet.
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
    // Without load the rates fall to zero, and the stored sums equal the sums that are shown.
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

/// All changes to keys in the state store, as `state watch` prints them.
struct Changes {
    child: Child,
    _errors: BufReader<ChildStderr>,
    /// The key and the revision of each change.
    seen: Arc<Mutex<Vec<(String, u64)>>>,
}

/// What was written to the state store during a period.
#[derive(Debug)]
struct Written {
    intervals: f64,
    transactions: usize,
    /// How often each key changed.
    keys: BTreeMap<String, usize>,
}

impl Written {
    fn transactions_per_interval(&self) -> f64 {
        self.transactions as f64 / self.intervals
    }

    fn keys_per_transaction(&self) -> f64 {
        self.keys.values().sum::<usize>() as f64 / self.transactions as f64
    }
}

impl Changes {
    fn begin(cluster: &Cluster) -> Changes {
        // The standard error of the command is not read, but stays open while the command runs.
        let (child, lines, errors) = begin_watch(cluster, "");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = seen.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let change: Value = serde_json::from_str(&line).expect("JSON");
                let key = change["key"].as_str().expect("a name").to_owned();
                let revision = change["revision"].as_u64().expect("a number");
                all.lock().expect("nobody panics with it").push((key, revision));
            }
        });
        Changes { child, _errors: errors, seen }
    }

    fn seen(&self) -> MutexGuard<'_, Vec<(String, u64)>> {
        self.seen.lock().expect("nobody panics with it")
    }

    /// Makes a change and waits until the watch shows it; by then the watch has shown all earlier changes.
    /// Returns the index and the revision of the change.
    fn mark(&self, cluster: &Cluster, percent: u64) -> (usize, u64) {
        let from = self.seen().len();
        cluster.run(&["config", "set", "nearly_full_percent", &percent.to_string()]);
        let find = || {
            let seen = self.seen();
            let mut later = seen.iter().enumerate().skip(from);
            let found = later.find(|(_, (key, _))| key == "config/nearly_full_percent");
            found.map(|(place, (_, revision))| (place, *revision))
        };
        wait_for("the change to be told", || find().is_some());
        find().expect("just seen")
    }

    /// Returns what is written to the state store during the next twenty intervals.
    fn measure(&self, cluster: &Cluster) -> Written {
        let (first, first_revision) = self.mark(cluster, 71);
        let begin = Instant::now();
        // The elapsed time is what is measured: the test counts the writes in it.
        std::thread::sleep(INTERVAL * 20);
        let (last, last_revision) = self.mark(cluster, 72);
        // On a busy machine it also takes time to mark the end.
        let intervals = begin.elapsed().as_secs_f64() / INTERVAL.as_secs_f64();
        let seen = self.seen();
        let between = seen[first..last].iter();
        let changes: Vec<&(String, u64)> =
            between.filter(|(_, at)| ![first_revision, last_revision].contains(at)).collect();
        let mut keys = BTreeMap::new();
        changes.iter().for_each(|(key, _)| *keys.entry(key.clone()).or_default() += 1);
        let revisions: BTreeSet<u64> = changes.iter().map(|(_, revision)| *revision).collect();
        Written { intervals, transactions: revisions.len(), keys }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets a client for each volume write continuously while `work` runs. Returns the result of `work`, and how
/// often each client wrote.
fn while_busy<T>(clients: &mut [Client], work: impl FnOnce() -> T) -> (T, u64) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                for client in &mut *clients {
                    client.ask(WRITE, 0, 4096);
                    client.send(&[7; 4096]);
                }
                for client in &mut *clients {
                    assert_eq!(client.reply(), 0);
                }
                rounds += 1;
            }
            rounds
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        let rounds = writer.join().expect("all writes are done");
        (found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), rounds)
    })
}

const FEW: usize = 2;
/// Number of volumes; more than one record of sums can hold.
const MANY: usize = 300;

/// Asserts that rates and space of each volume, pool and OSD are shown while all volumes are busy.
fn assert_all_is_shown(cluster: &Cluster) {
    let is_busy = |row: &Value, kind: &str| {
        row["io"][kind]["ops_per_second"].as_f64() > Some(0.0)
            && row["io"][kind]["bytes_per_second"].as_f64() > Some(0.0)
            && row["used_bytes"].as_u64() > Some(0)
    };
    for (list, kind, count) in
        [("volume", "write", MANY), ("pool", "write", 1), ("osd", "stored", 3)]
    {
        let mut seen = Value::Null;
        wait_for("each row to have rates and space", || {
            seen = cluster.json(&[list, "ls"]);
            let rows = seen.as_array().expect("a list");
            rows.len() == count && rows.iter().all(|row| is_busy(row, kind))
        });
    }
    let info = cluster.json(&["volume", "info", &name(MANY)]);
    assert!(is_busy(&info, "write"), "{info:#}");
    assert!(info["io"]["write"]["latency_mean_us"].as_f64() > Some(0.0), "{info:#}");
    // The text output also shows them.
    for (list, titles, count) in [
        ("volume", ["USED", "WRITE"], MANY),
        ("osd", ["STORED", "RECOVERY"], 3),
        ("pool", ["AVAILABLE", "WRITE"], 1),
    ] {
        let text = cluster.run(&[list, "ls"]);
        assert!(titles.iter().all(|title| text.contains(title)), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("/s")).count(), count, "{text}");
    }
    let status = cluster.run(&["status"]);
    assert!(status.contains("writes") && status.contains("pool        default:"), "{status}");
}

/// Returns the name of a volume, given its number counted from 1.
fn name(number: usize) -> String {
    format!("v{number}")
}

#[test]
fn statistics_write_the_state_store_as_often_for_three_hundred_volumes_as_for_two() {
    let cluster = up("statistics-many");
    for number in 1..=MANY {
        cluster.run(&["volume", "create", &name(number), "--size", "1MiB"]);
    }
    cluster.wait_clean();
    let changes = Changes::begin(&cluster);
    let attach = |number| Client::user(&socket_of(&cluster), &name(number));
    let mut clients: Vec<Client> = (1..=FEW).map(attach).collect();
    let (few, _) = while_busy(&mut clients, || changes.measure(&cluster));
    clients.extend((FEW + 1..=MANY).map(attach));
    let (many, rounds) = while_busy(&mut clients, || {
        // The output also shows the space that the first writes allocate.
        assert_all_is_shown(&cluster);
        changes.measure(&cluster)
    });
    let per_interval = |written: &Written| {
        format!(
            "{:.2} transactions of {:.2} keys",
            written.transactions_per_interval(),
            written.keys_per_transaction()
        )
    };
    report(&format!(
        "written to the state store each interval: {} with {FEW} busy volumes, {} with {MANY}, each of which \
         wrote {rounds} times",
        per_interval(&few),
        per_interval(&many)
    ));
    assert!(rounds as f64 >= many.intervals, "each is busy in each interval: {rounds}");
    for written in [&few, &many] {
        let count = written.transactions_per_interval();
        assert!((0.5..1.3).contains(&count), "one each interval: {written:#?}");
    }
    // The sums of many volumes are in two records instead of one, and the size of one write is bounded.
    assert!(many.keys_per_transaction() < few.keys_per_transaction() + 1.5, "{few:#?} {many:#?}");
}
