//! Tests that restore a backup of the state store: no stale data is served, and nothing is lost.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{
    ASHLAR, Cluster, QemuIo, finish, is_running, kill_9, qemu_io, succeed, text_of, wait_for,
};

fn is_older(cluster: &Cluster) -> bool {
    let status = cluster.json(&["status"]);
    status["checks"].as_array().expect("a list").iter().any(|check| check["code"] == "state_older")
}

fn volumes(cluster: &Cluster) -> Vec<String> {
    let rows = cluster.json(&["volume", "ls"]);
    let rows = rows.as_array().expect("a list");
    let mut names: Vec<String> =
        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

fn three(name: &str, more: &[&str]) -> Cluster {
    Cluster::up(name, &[&["--osds", "3", "--osd-size", "256MiB"], more].concat())
}

/// Starts the cluster, recovers its state, and waits for `up` to become ready; nothing is served before the
/// recovery.
fn start_and_recover(cluster: &Cluster, text: &str) {
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--detach", "--dir"]).arg(cluster.path());
    let up = up.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for("the monitor to notice", || is_older(cluster));
    let patience = std::time::Duration::from_secs(120);
    cluster.refused(&["volume", "create", "x", "--size", "16MiB"], "state_older");
    // `state recover` can describe the recovery only once all OSDs have reported.
    let mut error = Value::Null;
    wait_for("all OSDs to have told", || {
        let output = cluster.command(&["state", "recover", "--json"]).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        let line = told.lines().rfind(|line| line.starts_with('{')).unwrap_or("null");
        let answer: Value = serde_json::from_str(line).expect("one JSON document a line");
        error = answer["error"].clone();
        error["code"] == "not_accepted"
    });
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains(text), "{message}");
    let answer = cluster.json(&["state", "recover", "--yes"]);
    assert_eq!(answer["osds_told"], 3, "{answer}");
    let output = finish(up, patience);
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(!is_older(cluster));
    cluster.wait_clean();
}

/// Changes the cluster after the backup was taken. Before that, the first 8 MiB of `v` have the pattern 1.
fn live_on(cluster: &Cluster) {
    cluster.run(&["volume", "create", "w", "--size", "64MiB"]);
    cluster.run(&["volume", "rm", "gone"]);
    cluster.run(&["volume", "resize", "v", "128MiB"]);
    qemu_io(cluster, "w", &["write -P 7 0 8M"]);
    qemu_io(cluster, "v", &["write -P 2 4M 8M", "write -P 3 100M 4M"]);
    // Epochs rise, and a member is brought up to date.
    let pid = cluster.pid("osd", 2);
    kill_9(pid);
    wait_for("another process in its place", || cluster.pid("osd", 2) != pid);
    cluster.wait_clean();
    qemu_io(cluster, "w", &["write -P 8 8M 8M"]);
    cluster.run(&["config", "set", "osd_grace_ms", "400"]);
}

fn prepare(cluster: &Cluster) {
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.run(&["volume", "create", "gone", "--size", "64MiB"]);
    qemu_io(cluster, "v", &["write -P 1 0 8M"]);
    qemu_io(cluster, "gone", &["write -P 9 0 8M"]);
}

fn verify(cluster: &Cluster) {
    assert_eq!(volumes(cluster), ["v", "w"]);
    qemu_io(cluster, "v", &["read -P 1 0 4M", "read -P 2 4M 8M", "read -P 3 100M 4M"]);
    qemu_io(cluster, "w", &["read -P 7 0 8M", "read -P 8 8M 8M", "read -P 0 16M 8M"]);
    assert_eq!(cluster.json(&["config", "get", "osd_grace_ms"])["value"], 400);
    // The recovered cluster works normally.
    qemu_io(cluster, "w", &["write -P 5 0 4M", "read -P 5 0 4M"]);
    cluster.run(&["volume", "create", "next", "--size", "16MiB"]);
    qemu_io(cluster, "next", &["read -P 0 0 16M", "write -P 6 0 16M"]);
}

#[test]
fn an_older_state_file_is_refused_until_it_is_recovered_and_nothing_is_lost() {
    let cluster = three("recover", &[]);
    prepare(&cluster);
    cluster.down();
    let file = cluster.path().join("mon.1/state.redb");
    let backup = fs::read(&file).expect("the state");
    cluster.start(&[]);
    live_on(&cluster);
    cluster.down();
    fs::write(&file, backup).expect("written");
    start_and_recover(
        &cluster,
        "volumes that will be restored: w; volumes that were removed after the backup: gone",
    );
    verify(&cluster);
    // The state store no longer counts as outdated, not even after the next start.
    cluster.down();
    cluster.start(&[]);
    assert!(!is_older(&cluster));
    cluster.check_osds();
}

#[test]
fn io_goes_on_while_an_older_state_is_put_back_and_recovered() {
    let cluster = three("recover-on", &[]);
    prepare(&cluster);
    let file = cluster.path().join("mon.1/state.redb");
    let mut session = QemuIo::open(&[&cluster.uri("v")]);
    session.ask("write -P 11 16M 4M");
    // The monitor is stopped during the copy, so that the copy is consistent.
    let swap = |with: Option<Vec<u8>>| {
        let up = Pid::from_raw(i32::try_from(cluster.up_pid()).expect("a process id"));
        let up = up.expect("not 0");
        let monitor = cluster.pid("mon", 1);
        kill_process(up, Signal::STOP).expect("it runs");
        kill_9(monitor);
        wait_for("the monitor to be gone", || !is_running(monitor));
        let found = fs::read(&file).expect("the state");
        if let Some(bytes) = with {
            fs::write(&file, bytes).expect("written");
        }
        kill_process(up, Signal::CONT).expect("it is stopped");
        found
    };
    let backup = swap(None);
    cluster.wait_clean();
    cluster.run(&["volume", "create", "w", "--size", "64MiB"]);
    swap(Some(backup));
    wait_for("the monitor to notice", || is_older(&cluster));
    session.ask("read -P 11 16M 4M");
    session.ask("write -P 12 20M 4M");
    wait_for("the recovery", || {
        let output = cluster.command(&["state", "recover", "--yes"]).output().expect("it runs");
        output.status.success()
    });
    session.ask("write -P 13 24M 4M");
    cluster.wait_clean();
    session.ask("read -P 12 20M 4M");
    session.ask("read -P 1 0 8M");
    session.close();
    qemu_io(&cluster, "w", &["write -P 3 0 4M", "read -P 3 0 4M"]);
    assert_eq!(volumes(&cluster), ["gone", "v", "w"]);
    cluster.check_osds();
}

/// Makes one call to etcd's own HTTP interface.
fn etcd(cluster: &Cluster, method: &str, body: &Value) -> Value {
    let text = fs::read_to_string(cluster.path().join("cluster.toml")).expect("it is there");
    let address = text.split("etcd:").nth(1).and_then(|rest| rest.split('"').next());
    let address = address.expect("the address of etcd").split('/').take(3).collect::<Vec<_>>();
    let url = format!("{}/v3/kv/{method}", address.join("/"));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--data", &body.to_string(), &url]);
    serde_json::from_str(&succeed(&mut curl)).expect("JSON")
}

/// The range of all keys. The leader's key disappears when its lease expires.
const ALL: [(&str, &str); 2] = [("key", "AA=="), ("range_end", "AA==")];

#[test]
fn older_keys_in_etcd_are_refused_until_they_are_recovered() {
    let cluster = three("recover-etcd", &["--state=etcd"]);
    prepare(&cluster);
    let all: Value = ALL.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let backup = etcd(&cluster, "range", &all)["kvs"].as_array().expect("keys").clone();
    live_on(&cluster);
    // No monitor may lead now: it would watch the keys and undo the change.
    let up = Pid::from_raw(i32::try_from(cluster.up_pid()).expect("a process id"));
    let up = up.expect("not 0");
    let monitor = cluster.pid("mon", 1);
    kill_process(up, Signal::STOP).expect("it runs");
    kill_9(monitor);
    etcd(&cluster, "deleterange", &all);
    for pair in &backup {
        // Skip the leader's key, which has a lease.
        if pair.get("lease").is_none() {
            etcd(&cluster, "put", &json!({ "key": pair["key"], "value": pair["value"] }));
        }
    }
    kill_process(up, Signal::CONT).expect("it is stopped");
    wait_for("the monitor to notice", || is_older(&cluster));
    cluster.refused(&["volume", "create", "x", "--size", "16MiB"], "state_older");
    wait_for("the recovery", || {
        let output = cluster.command(&["state", "recover", "--yes"]).output().expect("it runs");
        output.status.success()
    });
    wait_for("the monitor to lead anew", || !is_older(&cluster));
    cluster.wait_clean();
    verify(&cluster);
    cluster.check_osds();
}
