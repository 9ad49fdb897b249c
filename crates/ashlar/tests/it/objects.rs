//! Tests of pools of objects: OSDs have engines, keep them, and start with no other.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::fio::Fio;
use crate::harness::{ASHLAR, Cluster, LoopDevice, qemu_io, terminate, wait_for};

/// Starts a cluster with a pool of blocks, and a pool of objects with 8 PGs.
fn with_objects(name: &str, osds: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", osds, "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x21 0 4M"]);
    create_pool(&cluster);
    cluster
}

/// Creates a pool of objects, and waits until it is served.
fn create_pool(cluster: &Cluster) -> Value {
    let mut create = vec!["pool", "create", "kv", "--kind", "object", "--pgs", "8"];
    create.extend(["--failure-domain", "osd", "--compression", "zstd"]);
    let pool = cluster.json(&create);
    cluster.wait_active();
    pool
}

fn engine_of(cluster: &Cluster, osd: &str) -> PathBuf {
    cluster.path().join(osd).join("objects")
}

/// Returns the pools and compressions of the families in the engine of each OSD.
fn families(cluster: &Cluster) -> Vec<Value> {
    let rows = cluster.json(&["osd", "ls"]);
    let families = |row: &Value| {
        let families = row["engine"]["families"].as_array().cloned().unwrap_or_default();
        families.iter().map(|it| json!([it["pool"], it["compression"]])).collect()
    };
    rows.as_array().expect("a list").iter().map(families).collect()
}

fn wait_families(cluster: &Cluster, wanted: &Value) {
    wait_for("the families to be as wanted", || {
        let found = families(cluster);
        !found.is_empty() && found.iter().all(|found| found == wanted)
    });
}

fn message(error: &Value) -> &str {
    error["message"].as_str().expect("a text")
}

#[test]
fn a_pool_of_objects_gives_its_osds_engines_and_takes_its_records_with_it() {
    let cluster = with_objects("objects", "2");
    let pools = cluster.json(&["pool", "ls"]);
    assert_eq!((&pools[0]["kind"], &pools[1]["kind"]), (&json!("block"), &json!("object")));
    assert_eq!((&pools[1]["shards"], &pools[1]["compression"]), (&json!(32), &json!("zstd")));
    let id = &pools[1]["id"];
    wait_families(&cluster, &json!([[id, "zstd"]]));
    let identities = || {
        ["osd.1", "osd.2"].map(|osd| {
            fs::read_to_string(engine_of(&cluster, osd).join("engine")).expect("an engine")
        })
    };
    let before = identities();
    qemu_io(&cluster, "v", &["read -P 0x21 0 4M"]);
    cluster.refused(&["volume", "create", "w", "--size", "16MiB", "--pool", "kv"], "invalid");
    assert_eq!(cluster.json(&["pool", "scrub", "kv"])["asked"], 8);
    let mut parity = vec!["pool", "create", "x", "--kind", "object", "--ec", "2+1"];
    parity.extend(["--failure-domain", "osd"]);
    let error = cluster.refused(&parity, "invalid");
    assert!(message(&error).contains("only for volumes"), "{error}");
    cluster.refused(&["pool", "create", "x", "--shards", "8"], "invalid");
    // All processes die, and start again with the engines that they had.
    cluster.kill_everything();
    cluster.start(&[]);
    cluster.wait_active();
    wait_families(&cluster, &json!([[id, "zstd"]]));
    qemu_io(&cluster, "v", &["read -P 0x21 0 4M"]);
    assert_eq!(identities(), before);
    cluster.run(&["pool", "rm", "kv", "--yes"]);
    cluster.wait_status("the pool to be cleared", |status| status["tasks"] == json!([]));
    wait_families(&cluster, &json!([]));
}

#[test]
fn an_osd_starts_only_with_its_own_engine() {
    let cluster = with_objects("engines", "2");
    cluster.run(&["osd", "stop", "1"]);
    cluster.run(&["osd", "stop", "2"]);
    let [first, second] = ["osd.1", "osd.2"].map(|osd| engine_of(&cluster, osd));
    let away = cluster.path().join("away");
    let path = cluster.path().join("osd.1").display().to_string();
    let check = |objects: &[&str]| {
        let found = cluster.json(&[&["osd", "check", &path], objects].concat());
        assert_eq!((&found["clean"], &found["findings"]), (&json!(true), &json!([])));
    };
    check(&[]);
    fs::rename(&first, &away).expect("writable");
    check(&["--objects", &away.display().to_string()]);
    cluster.refused(&["osd", "check", &path], "engine");
    let error = cluster.refused(&["osd", "run", &path], "engine");
    assert!(message(&error).contains("objects has no engine"), "{error}");
    fs::rename(&second, &first).expect("writable");
    let error = cluster.refused(&["osd", "run", &path], "engine");
    assert!(message(&error).contains("this store has engine"), "{error}");
    let error = cluster.refused(
        &["osd", "run", &path, "--objects", &cluster.path().display().to_string()],
        "engine",
    );
    assert!(message(&error).contains("has no engine"), "{error}");
    fs::rename(&first, &second).expect("writable");
    // Its own one may lie anywhere.
    let mut daemon = run_osd(&cluster, &path, Some(&away));
    cluster.wait_osd(1, true);
    cluster.run(&["osd", "start", "2"]);
    cluster.wait_active();
    qemu_io(&cluster, "v", &["read -P 0x21 0 4M"]);
    stop(&mut daemon);
    fs::rename(&away, &first).expect("writable");
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_active();
}

#[test]
fn the_first_pool_of_objects_restarts_no_osd() {
    let cluster = Cluster::up("first-objects", &["--osds", "3", "--osd-size", "512MiB"]);
    for osd in ["osd.1", "osd.2", "osd.3"] {
        assert!(
            engine_of(&cluster, osd).join("engine").exists(),
            "{osd} has one from the beginning"
        );
    }
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    // The processes and runs of all OSDs.
    let runs = || {
        [1, 2, 3].map(|osd| {
            let record = cluster.json(&["state", "get", &format!("osd/{osd}")]);
            (cluster.pid("osd", osd), record["incarnation"].clone())
        })
    };
    let before = runs();
    let mut fio = Fio::start_at_rate(&cluster.uri("v"), 16 << 20, 47, 4 << 20);
    fio.wait_written(1 << 20);
    let create = |name: &str| {
        let mut create = vec!["pool", "create", name, "--kind", "object", "--pgs", "8"];
        create.extend(["--failure-domain", "osd", "--replicas", "3"]);
        cluster.json(&create)
    };
    assert_eq!(create("first")["warning"], Value::Null);
    create("second");
    cluster.run(&["kv", "put", "key", "value", "--pool", "first"]);
    cluster.run(&["kv", "put", "key", "value", "--pool", "second"]);
    cluster.wait_active();
    assert!(fio.verified_bytes() > 0);
    assert_eq!(runs(), before);
}

#[test]
fn where_no_engine_can_be_made_other_pools_go_on() {
    let cluster = Cluster::up("no-engine", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x21 0 4M"]);
    let place = engine_of(&cluster, "osd.1");
    cluster.run(&["osd", "stop", "1"]);
    fs::remove_dir_all(&place).expect("it is there");
    fs::write(&place, "a file that is in the way").expect("writable");
    let path = cluster.path().join("osd.1").display().to_string();
    assert_eq!(cluster.json(&["osd", "check", &path])["clean"], true, "the engine holds nothing");
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_active();
    qemu_io(&cluster, "v", &["read -P 0x21 0 4M"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--failure-domain", "osd"];
    let error = cluster.refused(&create, "cannot_place");
    assert!(message(&error).contains("osd.1 has no engine"), "{error}");
    cluster.run(&["osd", "stop", "1"]);
    fs::remove_file(&place).expect("it is there");
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_active();
    cluster.run(&create);
    cluster.run(&["kv", "put", "key", "value"]);
}

#[test]
fn an_engine_that_holds_nothing_is_made_anew_when_it_is_damaged() {
    let cluster = Cluster::up("damaged-engine", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x21 0 4M"]);
    cluster.run(&["osd", "stop", "1"]);
    let place = engine_of(&cluster, "osd.1");
    fs::remove_file(place.join("rocksdb/CURRENT")).expect("it is there");
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_active();
    qemu_io(&cluster, "v", &["read -P 0x21 0 4M"]);
    cluster.run(&["pool", "create", "kv", "--kind", "object", "--failure-domain", "osd"]);
    cluster.run(&["kv", "put", "key", "value"]);
    // Now it holds something.
    cluster.run(&["osd", "stop", "1"]);
    fs::remove_file(place.join("rocksdb/CURRENT")).expect("it is there");
    let path = cluster.path().join("osd.1").display().to_string();
    let error = cluster.refused(&["osd", "run", &path], "engine");
    assert!(error["hint"].to_string().contains("osd new-engine"), "{error}");
    cluster.run(&["osd", "new-engine", &path, "--yes"]);
    cluster.run(&["osd", "start", "1"]);
}

#[test]
fn an_osd_on_a_device_gets_an_engine_where_the_operator_says() {
    let cluster = Cluster::up("device-engine", &["--osds", "1", "--osd-size", "256MiB"]);
    let device = LoopDevice::new(cluster.path(), "backing", 256 << 20);
    let id = cluster.json(&["osd", "create", &device.path])["id"].as_u64().expect("a number");
    let mut daemon = run_osd(&cluster, &device.path, None);
    cluster.wait_osd(id, true);
    let mut create = vec!["pool", "create", "kv", "--kind", "object", "--replicas", "2"];
    create.extend(["--failure-domain", "osd"]);
    let error = cluster.refused(&create, "cannot_place");
    assert!(message(&error).contains(&format!("osd.{id} has no engine")), "{error}");
    assert!(error["hint"].to_string().contains("--objects DIR"), "{error}");
    let one = ["pool", "create", "one", "--kind", "object", "--replicas", "1"];
    let made = cluster.json(&[&one[..], &["--failure-domain", "osd"]].concat());
    let warning = made["warning"].as_str().expect("a warning");
    assert!(warning.contains(&format!("osd.{id} has no engine")), "{warning}");
    cluster.wait_active();
    cluster.run(&["pool", "rm", "one", "--yes"]);
    stop(&mut daemon);
    cluster.wait_osd(id, false);
    let place = cluster.path().join("records");
    let mut daemon = run_osd(&cluster, &device.path, Some(&place));
    cluster.wait_osd(id, true);
    cluster.run(&create);
    cluster.wait_active();
    assert!(place.join("engine").exists());
    cluster.run(&["kv", "put", "key", "value"]);
    stop(&mut daemon);
    // A check finds the records where they were named, whichever OSD they are of.
    let named = place.to_str().expect("UTF-8");
    fn check<'a>(device: &'a LoopDevice, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["check", device.path.as_str()], arguments].concat()
    }
    let report = cluster.json(&check(&device, &["--objects", named]));
    // A head, and what its client may ask for again; the other copy is not listed.
    assert_eq!(report["records"].as_u64(), Some(2), "{report}");
    let error = cluster.refused(&check(&device, &[]), "engine");
    assert!(error["hint"].to_string().contains("--objects DIR"), "{error}");
    cluster.refused(&check(&device, &["--objects", "/tmp"]), "engine");
    cluster.refused(&check(&device, &["--objects", named, "--objects", named]), "invalid");
    let others = cluster.path().join("osd.1/objects");
    let error = cluster.refused(
        &check(&device, &["--objects", named, "--objects", others.to_str().expect("UTF-8")]),
        "invalid",
    );
    assert!(message(&error).contains("not listed"), "{error}");
    let error = cluster.refused(&["osd", "run", &device.path], "engine");
    assert!(message(&error).contains("needs its engine"), "{error}");
}

/// Where the engine of an OSD lies: a small file system that only this OSD sees.
struct SmallFileSystem {
    daemon: Child,
    place: PathBuf,
}

impl SmallFileSystem {
    /// Runs an OSD on this device, with its engine in a file system of this size.
    fn run_osd(cluster: &Cluster, device: &str, size: &str) -> SmallFileSystem {
        let place = cluster.path().join("small");
        fs::create_dir(&place).expect("writable");
        let script = "mount -t tmpfs -o size=\"$1\" none \"$2\" && shift 2 && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", size]).arg(&place);
        command.args([ASHLAR, "osd", "run", device, "--cluster"]).arg(cluster.path());
        command.arg("--objects").arg(place.join("records")).stderr(Stdio::null());
        SmallFileSystem { daemon: command.spawn().expect("it starts"), place }
    }

    /// Something else takes so many bytes, or all that are left.
    fn take(&self, size: usize) {
        // Other processes see it below the directory of the daemon.
        let seen = format!("/proc/{}/root{}/ballast", self.daemon.id(), self.place.display());
        let mut file = fs::File::create(seen).expect("the OSD runs");
        let part = vec![1; 1 << 20];
        let parts = (0..size.div_ceil(1 << 20)).map(|_| file.write_all(&part));
        assert!(parts.take_while(Result::is_ok).count() > 0 || size == 0);
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn objects_can_be_removed_while_an_engine_has_little_space_and_read_while_it_has_none() {
    let cluster = Cluster::up("full-engine", &["--osds", "1", "--osd-size", "256MiB"]);
    let device = LoopDevice::new(cluster.path(), "backing", 256 << 20);
    let id = cluster.json(&["osd", "create", &device.path])["id"].as_u64().expect("a number");
    // Little is below a quarter of it.
    let small = SmallFileSystem::run_osd(&cluster, &device.path, "200M");
    cluster.wait_osd(id, true);
    let create = ["pool", "create", "kv", "--kind", "object", "--pgs", "8", "--replicas", "2"];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.wait_clean();
    let value = "x".repeat(30_000);
    let keys: Vec<String> = (0..40).map(|number| format!("key {number}")).collect();
    keys.iter().for_each(|key| _ = cluster.run(&["kv", "put", key, &value]));
    let has = |code: &str| {
        let checks = cluster.json(&["status"])["checks"].as_array().expect("a list").clone();
        checks.iter().any(|check| check["code"] == code)
    };
    let takes = |key: &str, value: &str| {
        cluster.command(&["kv", "put", key, value]).output().expect("it runs").status.success()
    };
    // Some PGs are led by this OSD, some by the other one, which hears of it when its leases are renewed:
    // later, or earlier, than the monitor.
    small.take(160 << 20);
    wait_for("little space", || has("engine_low"));
    for key in &keys[..20] {
        wait_for("a refusal", || !takes(key, &value));
        let error = cluster.refused(&["kv", "put", key, "1"], "full");
        assert!(message(&error).contains("space"), "{error}");
        assert_eq!(cluster.run(&["kv", "get", key]), value);
        cluster.run(&["kv", "del", key]);
    }
    let long = cluster.path().join("long");
    fs::write(&long, vec![1; 5 << 20]).expect("writable");
    cluster.refused(&["object", "put", "long", long.to_str().expect("UTF-8")], "full");
    small.take(0);
    wait_for("space", || !has("engine_low"));
    keys[..20].iter().for_each(|key| wait_for("a write", || takes(key, "back")));
    // Nothing at all is left: what was answered is still read, and volumes do not stand still.
    small.take(1 << 30);
    wait_for("no space", || has("engine_low") || has("engine_full"));
    wait_for("a refusal", || !takes("more", "1"));
    cluster.refused(&["kv", "put", "more", "1"], "full");
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x21 0 4M"]);
    for (at, key) in keys.iter().enumerate() {
        let kept = if at < 20 { "back" } else { value.as_str() };
        assert_eq!(cluster.run(&["kv", "get", key]), *kept);
    }
    small.take(0);
    wait_for("space", || !has("engine_low") && !has("engine_full"));
    wait_for("a write", || takes("more", "1"));
    cluster.wait_clean();
}

/// Runs an OSD that `up` does not run.
fn run_osd(cluster: &Cluster, path: &str, objects: Option<&Path>) -> Child {
    let mut command = Command::new(ASHLAR);
    command.args(["osd", "run", path, "--cluster"]).arg(cluster.path());
    command.args(objects.iter().flat_map(|dir| ["--objects".as_ref(), dir.as_os_str()]));
    command.stderr(Stdio::null()).spawn().expect("it starts")
}

/// Stops such an OSD.
fn stop(daemon: &mut Child) {
    terminate(daemon.id());
    assert!(daemon.wait().expect("it runs").success());
}
