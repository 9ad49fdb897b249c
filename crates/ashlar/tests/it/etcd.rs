//! Tests of clusters that keep their state in etcd.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{
    ASHLAR, Cluster, Directory, QemuIo, Waiting, is_running, kill_9, qemu_io, refused, report, run,
    wait_for,
};

/// Returns the process id of the etcd that `up` runs.
pub fn etcd_pid(cluster: &Cluster) -> Option<u32> {
    let data = cluster.path().join("etcd").display().to_string();
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| is_running(*pid))
        .find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words[0].ends_with(b"/etcd") && words.contains(&data.as_bytes())
        })
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("not 0");
    kill_process(pid, signal).expect("it runs");
}

fn has_check(status: &Value, code: &str) -> bool {
    status["checks"].as_array().expect("a list").iter().any(|check| check["code"] == code)
}

#[test]
fn a_cluster_survives_the_loss_of_its_etcd_and_finds_its_state_again() {
    let cluster = Cluster::up("etcd", &["--state=etcd", "--osds=2", "--osd-size=256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let mut session = QemuIo::open(&[&cluster.uri("v")]);
    session.ask("write -P 1 0 4M");
    let keys = cluster.json(&["state", "ls"]);
    assert!(keys.as_array().is_some_and(|keys| keys.len() > 3), "{keys}");

    // etcd stops responding: `status` reports this, and no read or write waits for etcd.
    let etcd = etcd_pid(&cluster).expect("`up` runs it");
    signal(etcd, Signal::STOP);
    wait_for("status to tell of it", || has_check(&cluster.json(&["status"]), "state_unavailable"));
    session.ask("write -P 2 4M 4M");
    session.ask("read -P 1 0 4M");
    // A command that would change something reports why it waits.
    let create = &mut cluster.command(&["volume", "create", "w", "--size", "16MiB"]);
    let create = Waiting::start(create);
    assert!(create.says.contains("etcd cannot be reached at http://"), "{}", create.says);
    // etcd dies: it is started again, and everything continues.
    kill_9(etcd);
    session.ask("write -P 3 8M 4M");
    cluster.wait_status("etcd to be back", |status| {
        status["health"] == "ok" && !has_check(status, "state_unavailable")
    });
    assert_ne!(etcd_pid(&cluster), Some(etcd));
    create.done();
    session.ask("read -P 2 4M 4M");
    session.close();

    cluster.down();
    assert_eq!(etcd_pid(&cluster), None, "`down` stops it");
    let up = |arguments: &[&str]| {
        let mut command = Command::new(ASHLAR);
        command.args(["up", "--no-gateway", "--json", "--dir"]).arg(cluster.path()).args(arguments);
        command
    };
    let error = refused(&mut up(&["--state=embedded"]), "exists");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("in etcd")), "{error}");
    cluster.start(&[]);
    let volumes = cluster.json(&["volume", "ls"]);
    assert_eq!(volumes.as_array().map(Vec::len), Some(2), "{volumes}");
    qemu_io(&cluster, "v", &["read -P 1 0 4M", "read -P 2 4M 4M", "read -P 3 8M 4M"]);
    cluster.check_osds();

    // If the state is lost, `up` never replaces it with an empty state.
    fs::rename(cluster.path().join("etcd/member"), cluster.path().join("away")).expect("renamed");
    let error = refused(&mut up(&[]), "state");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("lost")), "{error}");
}

#[test]
fn a_missing_etcd_is_reported_with_the_name_of_its_package() {
    let directory = Directory::new("noetcd");
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--json", "--state=etcd", "--dir"]).arg(directory.path());
    let error = refused(up.env("PATH", "/nonexistent"), "not_installed");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("etcd-server")), "{error}");
    assert!(!directory.path().join("cluster.toml").exists(), "no half a cluster is left");
}

#[test]
fn a_monitor_that_cannot_reach_etcd_says_so_and_keeps_trying() {
    let cluster = Cluster::up("deadetcd", &["--osds=1", "--osd-size=128MiB"]);
    cluster.down();
    let monitor = Command::new(ASHLAR)
        .args(["mon", "run", "--state=etcd:http://127.0.0.1:1,http://127.0.0.1:2"])
        .arg(cluster.path().join("mon.1"))
        .arg("--cluster")
        .arg(cluster.path())
        .stderr(Stdio::null())
        .spawn();
    let mut monitor = monitor.expect("it starts");
    let status = cluster.json(&["status"]);
    assert_eq!(status["health"], "error", "{status:#}");
    let check = &status["checks"][0];
    assert_eq!(check["code"], "state_unavailable");
    let message = check["message"].as_str().expect("a text");
    for part in ["http://127.0.0.1:1 (", "http://127.0.0.1:2 (", "cluster.toml"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(monitor.try_wait().expect("a child").is_none(), "it goes on");
    monitor.kill().expect("it runs");
    monitor.wait().expect("a child");
    let wrong =
        run(cluster.command(&["mon", "run", "x", "--state", "etcd:10.0.0.1"]).arg("--json"));
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn ten_thousand_pgs_start_with_their_state_in_etcd() {
    let cluster = Cluster::up("manypgs", &["--state=etcd", "--osds=3", "--osd-size=1GiB"]);
    let started = Instant::now();
    cluster.run(&["pool", "create", "big", "--pgs", "8192", "--failure-domain", "osd"]);
    cluster.run(&["pool", "create", "more", "--pgs", "2048", "--failure-domain", "osd"]);
    cluster.wait_active();
    let made = started.elapsed();
    let total = cluster.json(&["status"])["pgs"]["total"].clone();
    // The total includes the PGs of the default pool.
    assert!(total.as_u64() > Some(8192 + 2048), "{total}");
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "big"]);
    // Each write covers parts of two blocks of 128 KiB, and nearly every block is in a different PG.
    let places = |verb: &str| -> Vec<String> {
        (0..64).map(|at| format!("{verb} -P {} {at}M 132k", at + 1)).collect()
    };
    let io = |commands: Vec<String>| {
        qemu_io(&cluster, "v", &commands.iter().map(String::as_str).collect::<Vec<_>>());
    };
    io(places("write"));
    cluster.kill_everything();
    wait_for("etcd to be gone with `up`", || etcd_pid(&cluster).is_none());
    let started = Instant::now();
    // `up` returns once every PG is served.
    cluster.start(&[]);
    let restarted = started.elapsed();
    let pgs = cluster.json(&["status"])["pgs"].clone();
    assert_eq!((&pgs["total"], &pgs["active"]), (&total, &total), "{pgs:#}");
    io(places("read"));
    cluster.wait_clean();
    report(&format!(
        "10,240 PGs over etcd: made and served in {} ms; everything killed, started and served \
         again in {} ms",
        made.as_millis(),
        restarted.as_millis()
    ));
}

/// Returns the address of the etcd that `up` runs, and the prefix of the cluster's keys.
fn etcd_of(cluster: &Cluster) -> (String, String) {
    let text = fs::read_to_string(cluster.path().join("cluster.toml")).expect("it is there");
    let address = text.split("etcd:http://").nth(1).and_then(|rest| rest.split('"').next());
    let address = address.expect("an address").trim_end_matches('/').to_owned();
    let id = cluster.json(&["state", "get", "cluster"])["value"]["id"].clone();
    (address, format!("ashlar/{}/", id.as_str().expect("a text")))
}

/// Writes a key directly, not through the monitor, as `etcdctl put` would; uses etcd's own HTTP gateway.
fn hand_writes(cluster: &Cluster, key: &str, value: &str) {
    put(&etcd_of(cluster), key, value);
}

fn put((address, prefix): &(String, String), key: &str, value: &str) {
    let key = format!("{prefix}{key}");
    let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(&key), base64(value));
    let request = format!(
        "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).expect("etcd listens");
    stream.write_all(request.as_bytes()).expect("writable");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("readable");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let chunk = |bytes: &[u8]| {
        let byte = |index: usize| u32::from(bytes.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |index: usize| match index <= bytes.len() {
            true => char::from(DIGITS[(word >> (18 - 6 * index) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    text.as_bytes().chunks(3).map(chunk).collect()
}

#[test]
fn a_foreign_edit_of_etcd_takes_effect_or_is_reported_until_it_is_undone() {
    let cluster = Cluster::up("etcdhand", &["--state=etcd", "--osds=1", "--osd-size=128MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let report_ms = || cluster.json(&["config", "get", "osd_report_ms"])["value"].clone();
    let record = |value: u32| format!(r#"{{"name":"osd_report_ms","value":{value}}}"#);
    hand_writes(&cluster, "config/osd_report_ms", &record(200));
    wait_for("the setting to be in force", || report_ms() == 200);
    assert!(!has_check(&cluster.json(&["status"]), "state_edit_undone"));
    let is_undone = |key: &str, reason: &str| {
        let status = cluster.json(&["status"]);
        let mut checks = status["checks"].as_array().expect("a list").iter();
        checks.any(|check| {
            let message = check["message"].as_str().unwrap_or_default();
            check["code"] == "state_edit_undone"
                && message.contains(key)
                && message.contains(reason)
        })
    };
    hand_writes(&cluster, "config/osd_report_ms", &record(5));
    wait_for("the bad value to be named", || is_undone("config/osd_report_ms", "from 100 to"));
    assert_eq!(report_ms(), 200, "the last good value stays");
    // The same holds for pools.
    let pool = cluster.json(&["state", "get", "pool/1"])["value"].clone();
    let edited = |field: &str, value: Value| {
        let mut pool = pool.clone();
        pool[field] = value;
        hand_writes(&cluster, "pool/1", &pool.to_string());
    };
    let shown = |field: &str| cluster.json(&["pool", "ls"])[0][field].clone();
    edited("name", "main".into());
    wait_for("the name to be in force", || shown("name") == "main");
    let scheme = shown("scheme");
    edited("scheme", "3 copies".into());
    wait_for("the bad scheme to be named", || is_undone("pool/1", "cannot become 3 copies"));
    assert_eq!((shown("name"), shown("scheme")), ("main".into(), scheme));
    // The next transaction restores the transaction counter; the monitor becomes leader again.
    for (key, value) in [("change", "300"), ("leader", "400")] {
        hand_writes(&cluster, key, "{}");
        wait_for("the edit to be named", || is_undone(key, ""));
        cluster.run(&["config", "set", "osd_report_ms", value]);
        assert_eq!(report_ms().to_string(), value);
    }
    // After a manual edit of a key that protects data, all changes wait until the operator undoes the edit.
    // I/O continues.
    qemu_io(&cluster, "v", &["write -P 1 0 4M"]);
    for key in ["pg/1/0", "counter/osd", "session/77", "image/1"] {
        let value = || {
            let keys = cluster.json(&["state", "ls", key]);
            keys.as_array().expect("a list").first().map(|row| row["value"].clone())
        };
        let before = value();
        hand_writes(&cluster, key, "{}");
        wait_for("the edit to be named", || {
            let status = cluster.json(&["status"]);
            let mut checks = status["checks"].as_array().expect("a list").iter();
            checks.any(|check| {
                let message = check["message"].as_str().unwrap_or_default();
                check["code"] == "state_damaged" && message.contains(key)
            })
        });
        cluster.refused(&["volume", "create", "w", "--size", "16MiB"], "state_damaged");
        cluster.refused(&["state", "undo"], "not_accepted");
        let answer = cluster.json(&["state", "undo", "--yes"]);
        assert_eq!(answer["written"], serde_json::json!([key]));
        assert_eq!(value(), before, "{key}");
        wait_for("changes to go on", || !has_check(&cluster.json(&["status"]), "state_damaged"));
        cluster.run(&["config", "set", "osd_report_ms", "400"]);
    }
    qemu_io(&cluster, "v", &["write -P 1 0 4M", "read -P 1 0 4M"]);
}

#[test]
fn unreadable_keys_block_only_changes_and_are_restored_from_osds() {
    let cluster = Cluster::up("etcddamage", &["--state=etcd", "--osds=2", "--osd-size=256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let mut session = QemuIo::open(&[&cluster.uri("v")]);
    session.ask("write -P 1 0 4M");
    cluster.wait_clean();
    let etcd = etcd_of(&cluster);
    let is_damaged = || has_check(&cluster.json(&["status"]), "state_damaged");
    // No monitor leads during the edit, so none undoes it.
    let damage = |keys: &[&str]| {
        let up = cluster.up_pid();
        signal(up, Signal::STOP);
        kill_9(cluster.pid("mon", 1));
        keys.iter().for_each(|key| put(&etcd, key, "rubbish"));
        signal(up, Signal::CONT);
        wait_for("the next monitor to say so", is_damaged);
    };
    let good = cluster.json(&["state", "get", "pg/1/0"])["value"].to_string();
    damage(&["pg/1/0"]);
    session.ask("write -P 2 4M 4M");
    session.ask("read -P 1 0 4M");
    cluster.refused(&["volume", "create", "w", "--size", "16MiB"], "state_damaged");
    assert_eq!(cluster.json(&["state", "get", "pg/1/0"])["value"], "rubbish");
    // Once the entry is readable, it takes effect again.
    put(&etcd, "pg/1/0", &good);
    wait_for("it to be read", || !is_damaged());
    cluster.run(&["volume", "create", "w", "--size", "16MiB"]);
    cluster.wait_clean();
    damage(&["pg/1/0", "pool/1", "osd/1", "image/1", "counter/image"]);
    session.ask("write -P 3 8M 4M");
    wait_for("both OSDs to have told", || {
        let output = cluster.command(&["state", "recover", "--yes"]).output().expect("it runs");
        output.status.success()
    });
    wait_for("the monitor to lead anew", || !is_damaged());
    cluster.wait_clean();
    session.ask("read -P 2 4M 4M");
    session.ask("read -P 3 8M 4M");
    session.ask("write -P 4 12M 4M");
    session.close();
    cluster.run(&["volume", "create", "x", "--size", "16MiB"]);
    let volumes = cluster.json(&["volume", "ls"]);
    let ids: Vec<u64> = volumes.as_array().expect("a list").iter().map(id_of).collect();
    assert!(ids[..2] == [1, 2] && ids[2] > 2, "{volumes}");
    qemu_io(&cluster, "v", &["read -P 4 12M 4M"]);
    cluster.check_osds();
}

fn id_of(row: &Value) -> u64 {
    row["id"].as_u64().expect("a number")
}
