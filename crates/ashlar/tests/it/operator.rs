//! Tests that operators can change settings, pools and keys of the state store while the cluster runs.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Cluster, finish, misused, qemu_io, succeed, text_of, wait_for};

fn rows(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

#[test]
fn an_operator_changes_settings_pools_and_keys_of_a_running_cluster() {
    let cluster = Cluster::up("operator", &["--osds", "2", "--osd-size", "256MiB"]);
    let mut watch = Watch::new(&cluster, "");
    settings(&cluster, &mut watch);
    pools(&cluster, &mut watch);
    keys(&cluster);
    tree_and_status(&cluster);
    daemon_in_the_background(&cluster);
    cluster.check_osds();
}

/// Starts an OSD in addition to those of `up`; returns once the OSD serves.
fn daemon_in_the_background(cluster: &Cluster) {
    let path = cluster.path().join("background");
    let path = path.to_str().expect("as we named it");
    std::fs::create_dir(path).expect("ours");
    let error = cluster.refused(&["osd", "run", path, "--detach"], "died");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("cannot open")), "{error}");
    cluster.run(&["osd", "create", path, "--size", "128MiB"]);
    let ready = cluster.json(&["osd", "run", path, "--detach"]);
    let up = || rows(&cluster.json(&["osd", "ls"]))[2]["up"].clone();
    assert_eq!(up(), true);
    let pid = ready["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("its process");
    let log = std::fs::read_to_string(ready["log"].as_str().expect("a path")).expect("its log");
    assert!(log.contains("joined the cluster"), "{log}");
    cluster.run(&["osd", "out", "3"]);
    let is_empty = || {
        let tree = cluster.json(&["osd", "tree"]);
        rows(&tree).iter().any(|row| row["name"] == "osd.3" && row["pgs"] == 0)
    };
    wait_for("an empty OSD", is_empty);
    kill_process(pid, Signal::TERM).expect("it runs");
    wait_for("an OSD that is down", || up() == false);
    cluster.run(&["osd", "rm", "3"]);
}

/// The output of `state watch --json`, line by line.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    errors: BufReader<ChildStderr>,
}

/// Starts `state watch --json`. Returns the process, its output and its errors.
pub fn begin_watch(
    cluster: &Cluster,
    prefix: &str,
) -> (Child, Lines<BufReader<ChildStdout>>, BufReader<ChildStderr>) {
    let mut command = cluster.command(&["state", "watch", prefix, "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    // The command prints a line once the watch has begun.
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    errors.read_line(&mut line).expect("readable");
    assert!(line.contains("watching"), "{line}");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (child, lines, errors)
}

impl Watch {
    fn new(cluster: &Cluster, prefix: &str) -> Watch {
        let (child, lines, errors) = begin_watch(cluster, prefix);
        Watch { child, lines, errors }
    }

    /// Returns the next change to a key with this prefix.
    fn next(&mut self, prefix: &str) -> Value {
        loop {
            let line = self.lines.next().expect("it goes on").expect("readable");
            let change: Value = serde_json::from_str(&line).expect("JSON");
            if change["key"].as_str().is_some_and(|key| key.starts_with(prefix)) {
                return change;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(cluster: &Cluster, watch: &mut Watch) {
    let row = cluster.json(&["config", "set", "osd_report_ms", "200ms"]);
    assert_eq!((&row["value"], &row["default"]), (&json!(200), &json!(1000)));
    let change = watch.next("config/");
    assert_eq!(change["value"], json!({ "name": "osd_report_ms", "value": 200 }), "{change}");
    assert!(change["revision"].as_u64() > Some(0), "{change}");
    cluster.refused(&["config", "set", "osd_report_ms", "5"], "invalid");
    cluster.refused(&["config", "set", "colour", "5"], "not_found");
    let limit = ["config", "set", "nearly_full_percent"];
    assert!(cluster.run(&[&limit[..], &["70%"]].concat()).contains("70"));
    // The change survives a restart of the monitor.
    cluster.kill("mon", 1);
    assert_eq!(cluster.json(&["config", "get", "nearly_full_percent"])["value"], 70);
    // The watch exits when its monitor exits, after it has printed all changes up to then, and gives the
    // reason.
    assert_eq!(watch.next("config/")["value"]["value"], 70);
    while watch.lines.next().is_some() {}
    assert_eq!(watch.child.wait().expect("it ends").code(), Some(1));
    let mut line = String::new();
    watch.errors.read_line(&mut line).expect("readable");
    let error: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(error["error"]["code"], "interrupted", "{line}");
    *watch = Watch::new(cluster, "");
    assert_eq!(cluster.json(&[&limit[..], &["default"]].concat())["value"], 85);
    assert_eq!(watch.next("config/")["value"], Value::Null);
}

fn pools(cluster: &Cluster, watch: &mut Watch) {
    let set = ["pool", "set", "default"];
    misused(cluster.command(&set).arg("--json"));
    cluster.refused(&[&set[..], &["--min-size", "3"]].concat(), "invalid");
    let row = cluster.json(&[&set[..], &["--min-size", "2", "--rename", "main"]].concat());
    assert_eq!((&row["name"], &row["min_size"]), (&json!("main"), &json!(2)));
    cluster.json(&["pool", "set", "main", "--min-size", "1"]);

    cluster.run(&["pool", "create", "extra", "--pgs", "8", "--failure-domain", "osd"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "extra"]);
    cluster.wait_active();
    qemu_io(cluster, "v", &["write -P 7 0 16M"]);
    let error = cluster.refused(&["pool", "rm", "extra"], "busy");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("1 volumes: v")), "{error}");
    // An OSD that was down while the volume and the pool were removed frees their space, too.
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_osd(2, false);
    wait_for("the volume to be detached", || {
        cluster.json(&["volume", "info", "v"])["attached"] == 0
    });
    removal_is_a_task(cluster);
    cluster.run(&["pool", "rm", "extra"]);
    let gone = watch.next("removed_pool/");
    assert_eq!(gone["value"]["name"], "extra", "{gone}");
    assert_eq!(rows(&cluster.json(&["pool", "ls"])).len(), 1);
    // With one OSD up, only one copy is possible.
    let row = cluster.json(&["pool", "create", "extra", "--pgs", "8"]);
    assert_eq!(row["replicas"], 1);
    assert_eq!(row["id"], 3, "an id is never given again");
    cluster.run(&["osd", "start", "2"]);
    wait_for("every OSD to hold nothing", || {
        let osds = cluster.json(&["osd", "ls"]);
        let is_left = !rows(&cluster.json(&["state", "ls", "removed_pool/"])).is_empty();
        !is_left && rows(&osds).iter().all(|osd| osd["up"] == true && osd["used_bytes"] == 0)
    });
    cluster.wait_active();
}

/// Removes volume `v`. The removal is listed as a task while the last OSD is paused, and finishes after that.
fn removal_is_a_task(cluster: &Cluster) {
    let pid = Pid::from_raw(cluster.pid("osd", 1) as i32).expect("it runs");
    kill_process(pid, Signal::STOP).expect("it runs");
    cluster.run(&["volume", "rm", "v"]);
    let removal = || {
        let tasks = cluster.json(&["task", "ls"]);
        rows(&tasks).iter().find(|task| task["kind"] == "remove" && task["name"] == "v").cloned()
    };
    let task = removal().expect("nobody has done it");
    assert!(task["pgs_done"].as_u64() < task["pgs_total"].as_u64(), "{task}");
    let status = cluster.run(&["status"]);
    assert!(
        status.contains("task        remove v: ") && status.contains("time left: "),
        "{status}"
    );
    assert!(cluster.run(&["task", "ls"]).contains(" %"));
    kill_process(pid, Signal::CONT).expect("it runs");
    wait_for("the end of the removal", || removal().is_none());
    for process in rows(&cluster.json(&["status"])["processes"]) {
        assert!(process["host"].as_str().is_some_and(|host| !host.is_empty()), "{process}");
    }
}

fn keys(cluster: &Cluster) {
    let mut osd = cluster.json(&["state", "get", "osd/2"])["value"].clone();
    osd["in"] = json!(false);
    let put = |key: &str, value: &Value| cluster.json(&["state", "put", key, &value.to_string()]);
    put("osd/2", &osd);
    assert_eq!(cluster.json(&["osd", "ls"])[1]["in"], false);
    put("config/session_timeout_ms", &json!({ "name": "session_timeout_ms", "value": 20_000 }));
    assert_eq!(cluster.json(&["config", "get", "session_timeout_ms"])["value"], 20_000);
    for key in ["pg/1/0", "fence/1", "leader", "session/1", "task/1", "counter/osd"] {
        cluster.refused(&["state", "put", key, "{}"], "protected");
    }
    cluster.refused(&["state", "put", "pool/1", "{}"], "invalid");
    cluster.refused(&["state", "put", "other", "{}"], "not_found");
}

fn tree_and_status(cluster: &Cluster) {
    let tree = cluster.json(&["osd", "tree"]);
    let kinds: Vec<&str> = rows(&tree).iter().filter_map(|row| row["type"].as_str()).collect();
    assert_eq!(kinds, ["root", "host", "osd", "osd"]);
    let [root, host, first, second] = rows(&tree) else { panic!("{tree}") };
    assert_eq!((&root["osds"], &root["osds_in"]), (&json!(2), &json!(1)));
    assert_eq!(host["weight_bytes"], first["weight_bytes"]);
    assert_eq!((&second["weight_bytes"], &second["up"]), (&json!(0), &json!(true)));
    let text = cluster.run(&["osd", "tree"]);
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("- osd.1") && text.contains("2/2"), "{text}");
    let text = cluster.run(&["osd", "ls"]);
    assert!(text.contains("FULL") && text.contains(" % full"), "{text}");
    for row in rows(&cluster.json(&["osd", "ls"])) {
        assert!(row["path"].as_str().is_some_and(|path| path.starts_with('/')), "{row}");
    }
    // Other background tasks may be listed, too: osd.2 was marked out a moment ago.
    assert!(cluster.json(&["task", "ls"]).is_array());
    wait_for("an idle cluster", || cluster.run(&["task", "ls"]).starts_with("no background tasks"));
    // `status --watch` prints a new status when something has changed.
    let mut command: Command = cluster.command(&["status", "--watch", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || -> Value {
        serde_json::from_str(&lines.next().expect("it goes on").expect("readable")).expect("JSON")
    };
    assert_eq!(next()["osds"][1]["in"], false);
    let mut osd = cluster.json(&["state", "get", "osd/2"])["value"].clone();
    osd["in"] = json!(true);
    succeed(cluster.command(&["state", "put", "osd/2"]).arg(osd.to_string()));
    while next()["osds"][1]["in"] == false {}
    // A signal ends the command silently. (The signal is not SIGINT: a shell that runs tests in the
    // background makes them ignore SIGINT.)
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let output = finish(child, Duration::from_secs(20));
    assert_eq!(output.status.signal(), Some(15), "{}", text_of(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
