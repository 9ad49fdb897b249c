//! Tests that copies keep what was written when OSDs die, are lost, lag, or return wrong data.
//!
//! A new cluster has a pool `default` with 2 copies on 3 OSDs.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fio::Fio;
use crate::harness::{
    ASHLAR, Cluster, QemuIo, assert_qemu_io, finish, is_running, kill_9, patient_image, qemu_io,
    report, run, text_of, wait_for,
};
use crate::servers::NbdServer;

/// Starts a cluster with three OSDs of this size.
pub fn three(name: &str, size: &str, more: &[&str]) -> Cluster {
    Cluster::up(name, &[&["--osds", "3", "--osd-size", size], more].concat())
}

/// Starts a cluster with three OSDs and a second pool of 3 copies, `safe`, in addition to the default one.
pub fn three_copies(name: &str, size: &str, more: &[&str]) -> Cluster {
    let cluster = three(name, size, more);
    let create = ["pool", "create", "safe", "--replicas", "3", "--failure-domain", "osd"];
    let pool = cluster.json(&[&create[..], &["--pgs", "16"]].concat());
    assert_eq!((&pool["replicas"], &pool["min_size"]), (&Value::from(3), &Value::from(2)));
    cluster.wait_clean();
    cluster
}

/// Kills an OSD and waits until `up` has started it again.
pub fn kill_osd(cluster: &Cluster, osd: u64) {
    let pid = cluster.pid("osd", osd);
    kill_9(pid);
    wait_for("another process in its place", || cluster.pid("osd", osd) != pid);
    cluster.wait_osd(osd, true);
}

/// Destroys an OSD's disk and kills the OSD.
pub fn destroy_osd(cluster: &Cluster, osd: u64) {
    let pid = cluster.pid("osd", osd);
    fs::remove_dir_all(directory_of(cluster, osd)).expect("ours");
    kill_9(pid);
}

/// Writes this many MiB at this offset; returns the error, if any.
pub fn refused_write(qemu: &mut QemuIo, from: u64, count: u64) -> Option<String> {
    qemu.begin(&format!("write -P 4 {from}M {count}M"));
    let line = qemu.end();
    line.contains("failed").then_some(line)
}

/// Stops an OSD and waits until the others continue without it.
pub fn stop_osd(cluster: &Cluster, osd: u64) {
    cluster.run(&["osd", "stop", &osd.to_string()]);
    cluster.wait_osd(osd, false);
}

pub fn start_osd(cluster: &Cluster, osd: u64) {
    cluster.run(&["osd", "start", &osd.to_string()]);
    cluster.wait_osd(osd, true);
}

pub fn used_bytes(cluster: &Cluster, osd: u64) -> u64 {
    let rows = cluster.json(&["osd", "ls"]);
    let row = rows.as_array().expect("a list").iter().find(|row| row["id"] == osd);
    row.expect("it is there")["used_bytes"].as_u64().expect("a number")
}

pub fn has_check(cluster: &Cluster, code: &str) -> bool {
    let status = cluster.json(&["status"]);
    status["checks"].as_array().expect("a list").iter().any(|check| check["code"] == code)
}

/// Returns commands `write -P` or `read -P` for this many ranges of 1 MiB, each with its own pattern.
pub fn pieces(verb: &str, seed: u64, count: u64) -> Vec<String> {
    (0..count).map(|at| format!("{verb} -P {} {at}M 1M", 1 + (at * 7 + seed) % 250)).collect()
}

pub fn ask(cluster: &Cluster, volume: &str, commands: &[String]) {
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    qemu_io(cluster, volume, &commands);
}

/// Attaches volume `v` a second time, without a lock, while another server holds its lock. Then all writes of
/// both clients are durable when they are acknowledged. fio does not use the last 16 MiB.
fn beside_a_holder_that_is_not_lazy(cluster: &Cluster) {
    let server = NbdServer::start(cluster.path(), "second.sock");
    let mut second = server.open("v");
    second.ask("write -P 1 128M 4M");
    second.ask("read -P 1 128M 4M");
    let info = cluster.json(&["volume", "info", "v"]);
    assert_eq!(info["lock"]["lazy"], false, "{info:#}");
    assert_eq!(info["sessions"].as_array().map(Vec::len), Some(2), "{info:#}");
    second.close();
    server.end();
}

fn fio_survives_kills(name: &str, commit: &str) {
    let cluster = three(name, "1GiB", &["--commit", commit]);
    cluster.run(&["volume", "create", "v", "--size", "144MiB"]);
    let (begin, mut verified, mut longest) = (Instant::now(), 0, 0.0f64);
    let mut seed = 21;
    // The first fio is slow, so that it is still attached while the second client is.
    let mut fio = Fio::start_at_rate(&cluster.uri("v"), 128 << 20, seed, 4 << 20);
    fio.wait_written(4 << 20);
    let lock = cluster.json(&["volume", "info", "v"])["lock"].clone();
    assert_eq!(lock["lazy"], commit == "fsync", "{lock}");
    if commit == "immediate" {
        beside_a_holder_that_is_not_lazy(&cluster);
    }
    let mut led = BTreeSet::new();
    for osd in [1, 2, 3, 2, 3, 1, 3, 1, 2] {
        // Each OSD dies while fio writes; when one run of fio ends, the next begins.
        while !fio.writes_on() {
            verified += fio.verified_bytes();
            longest = longest.max(fio.longest_wait());
            seed += 1;
            fio = Fio::start(&cluster, "v", 128 << 20, seed);
            fio.wait_written(1 << 20);
        }
        let pgs = cluster.json(&["pg", "ls"]);
        if pgs.as_array().expect("a list").iter().any(|pg| pg["primary"] == osd) {
            led.insert(osd);
        }
        kill_osd(&cluster, osd);
        // With two copies, the next OSD may die only when both copies are complete again.
        cluster.wait_clean();
    }
    assert_eq!(led.len(), 3, "each dies as a primary");
    verified += fio.verified_bytes();
    longest = longest.max(fio.longest_wait());
    report(&format!(
        "fio on 2 copies, {commit}: {verified} bytes written and verified in {} s, each of 3 OSDs killed 3 \
         times; the longest wait was {longest:.2} s",
        begin.elapsed().as_secs()
    ));
    assert!(verified >= 60 << 20, "{verified}");
    assert!(cluster.check_copies() > 0);
}

#[test]
#[ignore = "for make proof"]
fn fio_verifies_while_every_osd_is_killed_in_fsync_mode() {
    fio_survives_kills("copies-fsync", "fsync");
}

#[test]
fn fio_verifies_while_every_osd_is_killed_in_immediate_mode() {
    fio_survives_kills("copies-now", "immediate");
}

#[test]
fn nothing_is_lost_when_everything_is_killed_at_once_and_started_later() {
    let cluster = three("copies-all", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "128MiB"]);
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    for round in 0..3 {
        for (step, command) in pieces("write", round, 64).iter().enumerate() {
            qemu.begin(command);
            if step == 40 {
                cluster.kill_everything();
                cluster.check_stopped_osds();
                let found = cluster.compare_stopped_osds();
                assert_eq!(found["different"], 0, "what was acknowledged is on both: {found:#}");
                cluster.start(&[]);
            }
            let line = qemu.end();
            assert!(line.contains("wrote 1048576/1048576"), "{command}: {line}");
        }
        for command in pieces("read", round, 64) {
            qemu.ask(&command);
        }
    }
    qemu.begin("flush");
    qemu.close();
    assert!(cluster.check_copies() > 0);
    cluster.start(&[]);
    ask(&cluster, "v", &pieces("read", 2, 64));
}

#[test]
fn nothing_is_lost_when_the_monitor_and_an_osd_are_killed_together() {
    let cluster = three("copies-mon", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    let (mon, osd) = (Cell::new(0), Cell::new(0));
    for (step, command) in pieces("write", 5, 64).iter().enumerate() {
        qemu.begin(command);
        if step == 30 {
            mon.set(cluster.pid("mon", 1));
            osd.set(cluster.pid("osd", 2));
            kill_9(mon.get());
            kill_9(osd.get());
        }
        let line = qemu.end();
        assert!(line.contains("wrote 1048576/1048576"), "{command}: {line}");
    }
    wait_for("both to run again", || {
        cluster.pid("mon", 1) != mon.get() && cluster.pid("osd", 2) != osd.get()
    });
    for command in pieces("read", 5, 64) {
        qemu.ask(&command);
    }
    qemu.begin("flush");
    qemu.close();
    assert!(cluster.check_copies() >= 512);
}

/// Returns the directory of an OSD.
fn directory_of(cluster: &Cluster, osd: u64) -> PathBuf {
    cluster.path().join(format!("osd.{osd}"))
}

#[test]
fn an_osd_whose_disk_is_lost_is_replaced() {
    let cluster = three("copies-lost", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "96MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 96));
    stop_osd(&cluster, 2);
    let blocks = directory_of(&cluster, 2).join("blocks");
    let lost = directory_of(&cluster, 2).join("lost");
    fs::rename(&blocks, &lost).expect("ours");
    let refused = cluster.refused(&["osd", "start", "2"], "not_found").to_string();
    assert!(refused.contains("ashlar up --osds 3"), "{refused}");
    // Some blocks have only one copy left; clients do not notice.
    ask(&cluster, "v", &pieces("read", 1, 96));
    ask(&cluster, "v", &pieces("write", 2, 48));
    cluster.refused(&["osd", "rm", "2"], "busy");
    cluster.run(&["osd", "out", "2"]);
    cluster.wait_clean();
    cluster.run(&["osd", "rm", "2"]);
    cluster.refused(&["osd", "rm", "2"], "not_found");
    // A removed OSD cannot join again, and `up` does not try to start it over and over.
    fs::rename(&lost, &blocks).expect("ours");
    let refused = cluster.refused(&["osd", "start", "2"], "died").to_string();
    assert!(refused.contains("this cluster has no osd.2"), "{refused}");
    wait_for("`up` to say that it starts it no more", || {
        let log = fs::read_to_string(cluster.path().join("log/up.log")).expect("it is there");
        log.contains("was removed from the cluster: not restarting it  child=osd.2")
    });
    fs::remove_file(&blocks).expect("ours");
    cluster.down();
    // A new OSD replaces the lost one and gets its share of the data.
    cluster.start(&["--osds", "3", "--osd-size", "512MiB"]);
    cluster.wait_osd(4, true);
    cluster.wait_clean();
    wait_for("the new OSD to hold its share", || used_bytes(&cluster, 4) > 16 << 20);
    ask(&cluster, "v", &pieces("read", 2, 48));
    let rest: Vec<String> = pieces("read", 1, 96).split_off(48);
    ask(&cluster, "v", &rest);
    assert!(cluster.check_copies() >= 768);
}

#[test]
fn an_osd_whose_disk_is_destroyed_is_replaced_under_load() {
    let cluster = three("copies-destroyed", "1GiB", &[]);
    for (volume, size) in [("v", "208MiB"), ("old", "64MiB")] {
        cluster.run(&["volume", "create", volume, "--size", size]);
    }
    ask(&cluster, "old", &pieces("write", 1, 64));
    cluster.wait_clean();
    let nbd = cluster.pid("nbd", 1);
    // Reads and writes for more than a minute and a half, several times as long as the steps that follow.
    let mut fio = Fio::start_at_rate(&cluster.uri("v"), 192 << 20, 31, 2 << 20);
    fio.wait_written(8 << 20);
    destroy_osd(&cluster, 2);
    cluster.wait_osd(2, false);
    assert!((0..60).any(|_| fio.writes_on()), "one copy is enough to go on");
    // These are the steps of docs/commands.md.
    cluster.run(&["osd", "out", "2"]);
    cluster.start(&["--osds", "3", "--osd-size", "1GiB"]);
    cluster.wait_osd(4, true);
    cluster.wait_clean();
    cluster.run(&["osd", "rm", "2"]);
    // The share is a third of two copies of at least 64 MiB.
    wait_for("the new OSD to hold its share", || used_bytes(&cluster, 4) > 16 << 20);
    let holds = used_bytes(&cluster, 4);
    assert!((0..60).any(|_| fio.writes_on()), "all this was done under its load");
    let (verified, longest) = (fio.verified_bytes(), fio.longest_wait());
    report(&format!(
        "a destroyed disk replaced under load: {verified} bytes written and verified, the longest wait was \
         {longest:.2} s; the new OSD held {} MiB when all copies were there",
        holds >> 20
    ));
    assert_eq!(cluster.pid("nbd", 1), nbd, "clients had the same server all the time");
    ask(&cluster, "old", &pieces("read", 1, 64));
    cluster.wait_healthy();
    assert!(cluster.check_copies() >= 64 * 8);
    assert_eq!(cluster.osd_paths().len(), 3);
}

#[test]
fn an_osd_that_stays_down_goes_out_automatically_and_in_again_when_it_returns() {
    let cluster = three("copies-away", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 64));
    cluster.run(&["config", "set", "osd_out_after_ms", "2000"]);
    let is_in = |osd: u64| {
        let rows = cluster.json(&["osd", "ls"]);
        let row = rows.as_array().expect("a list").iter().find(|row| row["id"] == osd).cloned();
        row.expect("it is there")["in"].as_bool().expect("yes or no")
    };
    stop_osd(&cluster, 2);
    // The next monitor that leads starts its timers again.
    let monitor = cluster.pid("mon", 1);
    kill_9(monitor);
    wait_for("another monitor in its place", || cluster.pid("mon", 1) != monitor);
    ask(&cluster, "v", &pieces("write", 2, 32));
    wait_for("it to be out", || !is_in(2));
    cluster.wait_clean();
    wait_for("the others to hold two copies", || {
        used_bytes(&cluster, 1) + used_bytes(&cluster, 3) >= 2 * (64 << 20)
    });
    start_osd(&cluster, 2);
    wait_for("it to be in", || is_in(2));
    cluster.wait_clean();
    wait_for("it to hold its share", || used_bytes(&cluster, 2) > 16 << 20);
    ask(&cluster, "v", &pieces("read", 2, 32));
    ask(&cluster, "v", &pieces("read", 1, 64).split_off(32));
    assert!(cluster.check_copies() >= 512);
}

#[test]
fn an_osd_that_is_out_is_emptied_while_it_serves_and_can_be_put_in_again() {
    let cluster = three("copies-out", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 64));
    let pgs = |osd: u64| {
        let tree = cluster.json(&["osd", "tree"]);
        let rows = tree.as_array().expect("a list").clone();
        let row = rows.into_iter().find(|row| row["name"] == format!("osd.{osd}"));
        row.expect("it is there")["pgs"].as_u64().expect("a number")
    };
    wait_for("it to have PGs", || pgs(1) > 0);
    cluster.run(&["osd", "out", "1"]);
    ask(&cluster, "v", &pieces("write", 2, 64));
    wait_for("it to have no PGs", || pgs(1) == 0);
    cluster.wait_clean();
    wait_for("it to hold nothing", || used_bytes(&cluster, 1) == 0);
    ask(&cluster, "v", &pieces("read", 2, 64));
    cluster.run(&["osd", "in", "1"]);
    wait_for("it to have its PGs again", || pgs(1) > 0);
    cluster.wait_clean();
    wait_for("it to hold its share", || used_bytes(&cluster, 1) > 8 << 20);
    ask(&cluster, "v", &pieces("read", 2, 64));
    assert!(cluster.check_copies() >= 512);
}

#[test]
fn an_osd_that_was_down_catches_up_on_writes_trims_and_removals() {
    let cluster = three("copies-missed", "512MiB", &[]);
    for volume in ["changed", "removed", "cut"] {
        cluster.run(&["volume", "create", volume, "--size", "64MiB"]);
        ask(&cluster, volume, &pieces("write", 1, 64));
    }
    cluster.wait_clean();
    for osd in 1..=3 {
        stop_osd(&cluster, osd);
        let added = format!("added{osd}");
        cluster.run(&["volume", "create", &added, "--size", "32MiB"]);
        ask(&cluster, &added, &pieces("write", osd, 32));
        // Parts of blocks are written, too, one of them twice.
        ask(&cluster, "changed", &pieces("write", 10 + osd, 16));
        qemu_io(&cluster, "changed", &["discard 16M 16M", "write -P 9 33M 4k", "write -z 34M 64k"]);
        if osd == 2 {
            wait_for("the volumes to be detached", || {
                let rows = cluster.json(&["volume", "ls"]);
                rows.as_array().expect("a list").iter().all(|row| row["attached"] == 0)
            });
            cluster.run(&["volume", "rm", "removed"]);
            cluster.run(&["volume", "resize", "cut", "16MiB", "--shrink"]);
            wait_for("the cut to be done, and the volume to be large again", || {
                let resize = ["volume", "resize", "cut", "64MiB"];
                run(&mut cluster.command(&resize)).status.success()
            });
        }
        start_osd(&cluster, osd);
        cluster.wait_clean();
        ask(&cluster, "changed", &pieces("read", 10 + osd, 16));
        qemu_io(
            &cluster,
            "changed",
            &["read -P 0 16M 16M", "read -P 9 33M 4k", "read -P 0 34M 64k"],
        );
        ask(&cluster, &added, &pieces("read", osd, 32));
    }
    ask(&cluster, "cut", &pieces("read", 1, 16));
    qemu_io(&cluster, "cut", &["read -P 0 16M 48M"]);
    // `changed` has 48 MiB, `added` 96 MiB and `cut` 16 MiB, each in two copies: nothing that was trimmed,
    // removed or cut off is left.
    let used = || (1..=3).map(|osd| used_bytes(&cluster, osd)).sum::<u64>();
    wait_for("the space of what is gone to be free", || used() <= ((48 + 96 + 16 + 1) * 2) << 20);
    assert!(cluster.check_copies() >= 160 * 8);
    cluster.start(&[]);
    let rest: Vec<String> = pieces("read", 1, 64).split_off(36);
    ask(&cluster, "changed", &rest);
}

#[test]
fn a_second_osd_dies_during_the_backfill_of_the_first() {
    let cluster = three_copies("copies-second", "1GiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "192MiB", "--pool", "safe"]);
    ask(&cluster, "v", &pieces("write", 1, 192));
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    let second = cluster.pid("osd", 2);
    // A backfill may finish before the test sees it; then the first OSD is stopped again.
    let is_being_filled = || {
        stop_osd(&cluster, 1);
        ask(&cluster, "v", &pieces("write", 2, 192));
        cluster.run(&["osd", "start", "1"]);
        let is_filled = Cell::new(false);
        wait_for("the first to be filled", || {
            let rows = cluster.json(&["pg", "ls", "--pool", "safe"]);
            let rows = rows.as_array().expect("a list");
            let count = |row: &Value, of: &str| row[of].as_array().map_or(0, Vec::len);
            is_filled.set(rows.iter().all(|row| count(row, "acting") == 3));
            is_filled.get() || rows.iter().any(|row| count(row, "learners") > 0)
        });
        !is_filled.get()
    };
    assert!((0..10).any(|_| is_being_filled()), "no filling is ever seen");
    kill_9(second);
    for command in pieces("write", 3, 64) {
        qemu.ask(&command);
    }
    for command in pieces("read", 3, 64) {
        qemu.ask(&command);
    }
    for command in pieces("read", 2, 192).split_off(64) {
        qemu.ask(&command);
    }
    qemu.begin("flush");
    qemu.close();
    wait_for("another process in its place", || cluster.pid("osd", 2) != second);
    assert!(cluster.check_copies() >= 192 * 8);
}

#[test]
fn with_one_of_three_copies_left_pgs_wait_for_the_backfill_of_a_second() {
    let cluster = three_copies("copies-min", "512MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "32MiB", "--pool", "safe"]);
    ask(&cluster, "v", &pieces("write", 1, 32));
    stop_osd(&cluster, 1);
    // Two of three members are enough.
    ask(&cluster, "v", &pieces("write", 2, 32));
    stop_osd(&cluster, 2);
    wait_for("the status to say so", || has_check(&cluster, "pg_incomplete"));
    assert_eq!(cluster.json(&["status"])["health"], "error");
    let rows = cluster.json(&["pg", "ls", "--pool", "safe"]).to_string();
    assert!(rows.contains("fewer than 2 members are up"), "{rows}");
    let begin = |arguments: &[&str]| {
        let mut qemu = Command::new("qemu-io");
        qemu.args(arguments).arg(cluster.uri("v"));
        qemu.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("qemu-io is installed")
    };
    let mut qemu = begin(&["-f", "raw", "-c", "write -P 77 0 4M", "-c", "read -P 77 0 4M"]);
    let mut reader = begin(&["-r", "-f", "raw", "-c", &pieces("read", 2, 32)[8]]);
    // There is no event that shows that no write is acknowledged, so the test can only wait.
    std::thread::sleep(Duration::from_secs(3));
    for child in [&mut qemu, &mut reader] {
        assert!(child.try_wait().expect("a child").is_none(), "one disk alone answers nothing");
    }
    // The OSD that was stopped first lacks the last writes and gets them from the remaining one.
    start_osd(&cluster, 1);
    assert_qemu_io(&finish(qemu, Duration::from_secs(100)), 2);
    assert_qemu_io(&finish(reader, Duration::from_secs(100)), 1);
    let goes_on_with_it = |row: &Value| {
        let acting = row["acting"].as_array().expect("a list");
        acting.contains(&Value::from(1)) && !acting.contains(&Value::from(2))
    };
    wait_for("every PG to go on with it", || {
        let rows = cluster.json(&["pg", "ls", "--pool", "safe"]);
        rows.as_array().expect("a list").iter().all(goes_on_with_it)
    });
    ask(&cluster, "v", &pieces("read", 2, 32).split_off(4));
    ask(&cluster, "v", &pieces("write", 3, 16).split_off(4));
    // The other OSD has nothing that the members lack.
    start_osd(&cluster, 2);
    cluster.wait_clean();
    ask(&cluster, "v", &pieces("read", 3, 16).split_off(4));
    ask(&cluster, "v", &pieces("read", 2, 32).split_off(16));
    cluster.wait_healthy();
    assert!(cluster.check_copies() >= 256);
}

#[test]
fn a_pg_is_served_by_its_last_member_once_the_others_are_given_up() {
    let cluster = three_copies("copies-given", "512MiB", &["--restart-after", "never"]);
    cluster.run(&["volume", "create", "v", "--size", "32MiB", "--pool", "safe"]);
    ask(&cluster, "v", &pieces("write", 1, 32));
    cluster.wait_clean();
    // Kill two OSDs at once.
    let pids = [cluster.pid("osd", 1), cluster.pid("osd", 2)];
    pids.iter().for_each(|pid| kill_9(*pid));
    wait_for("them to be gone", || !pids.iter().any(|pid| is_running(*pid)));
    for osd in [1, 2] {
        cluster.wait_osd(osd, false);
    }
    wait_for("the status to say so", || has_check(&cluster, "pg_incomplete"));
    // PGs of the other pool have two copies: some of them wait only until the monitor has noticed the
    // failure.
    let mut waiting: Vec<String> = Vec::new();
    wait_for("each PG of three copies to wait", || {
        let rows = cluster.json(&["pg", "ls", "--pool", "safe"]);
        let rows = rows.as_array().expect("a list").iter();
        let incomplete = rows.filter(|row| row["state"] == "incomplete");
        waiting = incomplete.map(|row| row["pg"].as_str().expect("a name").to_owned()).collect();
        waiting.len() >= 16
    });
    let asked = cluster.refused(&["pg", "give-up", &waiting[0], "--they-are-off"], "not_accepted");
    let message = asked["message"].as_str().expect("a text");
    // Both, unless the PG had gone on without one of them before the monitor noticed the end of the other.
    assert!(message.contains("osd.1") || message.contains("osd.2"), "{message}");
    for pg in &waiting {
        cluster.run(&["pg", "give-up", pg, "--they-are-off", "--yes"]);
    }
    // The third OSD has every acknowledged write, so it can continue alone.
    ask(&cluster, "v", &pieces("read", 1, 32));
    ask(&cluster, "v", &pieces("write", 2, 16));
    qemu_io(&cluster, "v", &["discard 16M 8M"]);
    // The two OSDs return after all: their data is old, and they are brought up to date.
    start_osd(&cluster, 1);
    start_osd(&cluster, 2);
    cluster.wait_clean();
    stop_osd(&cluster, 3);
    ask(&cluster, "v", &pieces("read", 2, 16));
    qemu_io(&cluster, "v", &["read -P 0 16M 8M"]);
    ask(&cluster, "v", &pieces("read", 1, 32).split_off(24));
    start_osd(&cluster, 3);
    assert!(cluster.check_copies() >= 24 * 8);
}

#[test]
fn a_pg_continues_with_an_older_copy_once_the_one_that_went_on_alone_is_given_up() {
    let arguments = ["--osds", "2", "--osd-size", "512MiB", "--restart-after", "never"];
    let cluster = Cluster::up("older-copy", &arguments);
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 32));
    cluster.wait_clean();
    // osd.2 is away for a while; osd.1 goes on alone, and is then lost.
    stop_osd(&cluster, 2);
    ask(&cluster, "v", &pieces("write", 2, 16));
    qemu_io(&cluster, "v", &["discard 24M 8M"]);
    stop_osd(&cluster, 1);
    start_osd(&cluster, 2);
    cluster.run(&["osd", "out", "1"]);
    let hint = || {
        let status = cluster.json(&["status"]);
        let checks = status["checks"].as_array().expect("a list").clone();
        let check = checks.into_iter().find(|check| check["code"] == "pg_down");
        check.map(|check| check["hint"].to_string()).unwrap_or_default()
    };
    wait_for("the status to say what to do", || hint().contains("--older-copy"));
    let rows = cluster.json(&["pg", "ls"]);
    let rows = rows.as_array().expect("a list").iter();
    let pgs: Vec<&str> = rows.map(|row| row["pg"].as_str().expect("a name")).collect();
    cluster.refused(&["pg", "give-up", pgs[0], "--they-are-off", "--yes"], "unavailable");
    let older = [&["pg", "give-up"], &pgs[..], &["--they-are-off", "--older-copy"]].concat();
    let asked = cluster.refused(&older, "not_accepted");
    let message = asked["message"].as_str().expect("a text");
    assert!(message.contains("copy of osd.2") && message.contains("is lost"), "{message}");
    cluster.run(&[&older[..], &["--yes"]].concat());
    // What was acknowledged before osd.2 went is there.
    ask(&cluster, "v", &pieces("read", 1, 32));
    ask(&cluster, "v", &pieces("write", 3, 8));
    // osd.1 returns after all: what only it has is not believed.
    start_osd(&cluster, 1);
    cluster.run(&["osd", "in", "1"]);
    cluster.wait_clean();
    stop_osd(&cluster, 2);
    ask(&cluster, "v", &pieces("read", 3, 8));
    ask(&cluster, "v", &pieces("read", 1, 32).split_off(8));
    start_osd(&cluster, 2);
    cluster.wait_clean();
    assert!(cluster.check_copies() >= 32 * 8);
}

/// Sends a signal to an OSD.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid is not 0"), signal).expect("it runs");
}

#[test]
fn a_paused_primary_is_replaced_and_rejoins_when_it_resumes() {
    let cluster = three("copies-stop", "512MiB", &[]);
    // Only its silence (`osd_silent_ms`, 2 s) can end the wait: all other timeouts are far longer.
    for setting in ["session_timeout_ms", "osd_return_ms", "osd_out_after_ms"] {
        cluster.run(&["config", "set", setting, "600s"]);
    }
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    for command in pieces("write", 1, 64) {
        qemu.ask(&command);
    }
    let mut waits = Vec::new();
    for osd in 1..=3 {
        let mut longest = Duration::ZERO;
        let pid = cluster.pid("osd", osd);
        for (step, command) in pieces("write", 1 + osd, 64).iter().enumerate() {
            let begin = Instant::now();
            qemu.begin(command);
            if step == 8 {
                signal(pid, Signal::STOP);
            }
            let line = qemu.end();
            assert!(line.contains("wrote 1048576/1048576"), "{command}: {line}");
            longest = longest.max(begin.elapsed());
        }
        waits.push(longest);
        signal(pid, Signal::CONT);
        // The data that the OSD held before the pause is stale now.
        for command in pieces("read", 1 + osd, 64) {
            qemu.ask(&command);
        }
        cluster.wait_clean();
    }
    report(&format!("an OSD stood still: writes took at most {waits:.2?} each time"));
    // All other timeouts are ten minutes.
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(60)), "{waits:?}");
    for command in pieces("read", 4, 64) {
        qemu.ask(&command);
    }
    qemu.begin("flush");
    qemu.close();
    assert!(cluster.check_copies() >= 512);
}

/// Writes to all PGs in turn, 1 MiB at a time, from before `event` until after it. Returns the duration of
/// the longest write.
fn longest_write_while(qemu: &mut QemuIo, event: impl FnOnce() + Send) -> Duration {
    let mut longest = Duration::ZERO;
    let mut places = (0..64).cycle();
    let mut write = |qemu: &mut QemuIo| {
        let begin = Instant::now();
        qemu.ask(&format!("write -P 9 {}M 1M", places.next().expect("it has no end")));
        longest = longest.max(begin.elapsed());
    };
    std::thread::scope(|scope| {
        write(qemu);
        let event = scope.spawn(event);
        while !event.is_finished() {
            write(qemu);
        }
        // Write to every PG once more.
        (0..64).for_each(|_| write(qemu));
    });
    longest
}

/// Returns how often an OSD has reported to the monitor that it is stopping. An OSD returns its leases at the
/// same time.
fn count_of_stops(cluster: &Cluster, osd: u64) -> usize {
    let log = fs::read_to_string(cluster.path().join("log/mon.1.log")).expect("it is there");
    let named = format!("osd=osd.{osd}");
    let is_stop = |line: &&str| line.contains("OSD is shutting down") && line.contains(&named);
    log.lines().filter(is_stop).count()
}

/// Shorter than the remaining time of any lease: a lease lasts 0.9 s and is renewed every 0.3 s.
const SHORT: Duration = Duration::from_millis(500);

/// An OSD that is stopped in an orderly way hands over its PGs, so nobody should have to detect the stop by a
/// timeout. In this test all timeouts that would detect it are a minute, and a lease that is not returned
/// must be waited out for at least 0.6 s of its 0.9 s. A busy machine is slow at times, so each OSD gets
/// several tries, and a slow try counts as a failure only if writes without a fault are fast right after it.
#[test]
fn a_stopped_osd_hands_its_leases_back_and_nobody_waits_for_a_timeout() {
    let cluster = three("copies-planned", "512MiB", &[]);
    for (setting, value) in
        [("osd_silent_ms", "60s"), ("osd_grace_ms", "60s"), ("lease_ms", "900ms")]
    {
        cluster.run(&["config", "set", setting, value]);
    }
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 64));
    cluster.wait_clean();
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    let mut waits = Vec::new();
    for osd in 1..=3 {
        let mut long_count = 0;
        for _ in 0..16 {
            let before = count_of_stops(&cluster, osd);
            let longest = longest_write_while(&mut qemu, || stop_osd(&cluster, osd));
            wait_for("its word that it stops", || count_of_stops(&cluster, osd) > before);
            start_osd(&cluster, osd);
            cluster.wait_clean();
            waits.push(longest);
            assert!(longest < Duration::from_secs(45), "{waits:?}");
            if longest < SHORT {
                break;
            }
            let undisturbed = longest_write_while(&mut qemu, || ());
            long_count += u32::from(undisturbed < SHORT);
            assert!(long_count < 8, "osd.{osd}: {waits:?}");
        }
    }
    report(&format!("an OSD was stopped: writes took at most {waits:.2?} each time"));
    qemu.close();
    assert!(cluster.check_copies() >= 512);
}

const PATTERN: u8 = 0xa7;

/// Flips a byte in every second unit of `PATTERN` in the data of a stopped OSD. Returns the number of changed
/// units.
fn damage(osd: &Path) -> u32 {
    let found = run(Command::new(ASHLAR).args(["osd", "inspect", "--json"]).arg(osd));
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let data = found["data"]["offset"].as_u64().expect("a number");
    let file = OpenOptions::new().read(true).write(true).open(osd.join("blocks")).expect("ours");
    let size = file.metadata().expect("open").len();
    let mut unit = vec![0; 4096];
    let (mut seen, mut hit) = (0, 0);
    for offset in (data..size - 4095).step_by(4096) {
        file.read_exact_at(&mut unit, offset).expect("inside");
        if unit.iter().any(|byte| *byte != PATTERN) {
            continue;
        }
        seen += 1;
        if seen % 2 == 1 {
            file.write_all_at(&[PATTERN ^ 1], offset + 1000).expect("writable");
            hit += 1;
        }
    }
    file.sync_all().expect("writable");
    hit
}

#[test]
fn damaged_bytes_are_detected_served_from_the_other_copy_and_repaired() {
    let cluster = three("copies-rot", "256MiB", &[]);
    // The pool has one PG, so its primary serves every read.
    let create = ["pool", "create", "one", "--replicas", "2", "--pgs", "1"];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.run(&["volume", "create", "v", "--size", "32MiB", "--pool", "one"]);
    cluster.wait_clean();
    qemu_io(&cluster, "v", &[&format!("write -P {PATTERN} 0 16M")]);
    cluster.check_copies();
    cluster.start(&[]);
    cluster.wait_clean();
    let rows = cluster.json(&["pg", "ls", "--pool", "one"]);
    let primary = rows[0]["primary"].as_u64().expect("a number");
    cluster.down();
    let hit = damage(&directory_of(&cluster, primary));
    assert!(hit >= 100, "{hit} units");
    let found = cluster.compare_stopped_osds();
    assert!(found["different"].as_u64() > Some(0), "{found:#}");
    let text = found["findings"][0]["message"].as_str().expect("a text");
    assert!(text.contains("damaged") && text.contains(&format!("osd.{primary}")), "{text}");

    cluster.start(&[]);
    cluster.wait_clean();
    // Reads never fail, whichever OSD is the primary, and in the end both copies have been read.
    let leader = || cluster.json(&["pg", "ls", "--pool", "one"])[0]["primary"].clone();
    let mut is_counted = false;
    for (turn, osd) in [1u64, 2, 3, 1, 2, 3].into_iter().enumerate() {
        // The OSD with the damaged copy may have become primary only at the end of the first three
        // reads.
        if turn >= 3 && is_counted {
            break;
        }
        let led_by = leader();
        qemu_io(&cluster, "v", &[&format!("read -P {PATTERN} 0 16M")]);
        if led_by == primary && leader() == primary && !is_counted {
            wait_for("what was found and repaired to be counted", || {
                let rows = cluster.json(&["osd", "ls"]);
                let io = &rows[usize::try_from(primary).expect("small") - 1]["io"];
                ["damaged_units", "repaired_units"].iter().all(|what| io[what].as_u64() > Some(0))
            });
            is_counted = true;
        }
        if leader() == osd {
            kill_osd(&cluster, osd);
            cluster.wait_clean();
        }
    }
    qemu_io(&cluster, "v", &[&format!("read -P {PATTERN} 0 16M")]);
    assert!(is_counted, "the damaged copy was read");
    cluster.wait_healthy();
    assert!(cluster.check_copies() >= 128);
}

#[test]
fn full_osds_refuse_writes_and_recover_by_deletion() {
    let cluster = three("copies-full", "256MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "1GiB"]);
    qemu_io(&cluster, "v", &["write -P 3 0 64M", "flush"]);
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    let found = (2..31).find_map(|at| Some((at * 32, refused_write(&mut qemu, at * 32, 32)?)));
    let (end, error) = found.expect("768 MiB held 1 GiB twice");
    assert!(error.contains("No space left"), "{error}");
    wait_for("the status to name it", || has_check(&cluster, "osd_full"));
    wait_for("it to be counted", || {
        cluster.json(&["volume", "info", "v"])["io"]["refused_full"].as_u64() > Some(0)
    });

    // Twice, an OSD dies and returns while a client has unflushed writes. The OSDs have space for
    // every write that they accepted: every PG gets its copies again, and nothing is deleted.
    for osd in [1, 2] {
        kill_osd(&cluster, osd);
        qemu.ask("read -P 3 0 64M");
        qemu.ask(&format!("read -P 4 64M {}M", end - 64));
        cluster.wait_clean();
    }
    wait_for("writes to be refused still", || {
        let error = refused_write(&mut qemu, 900, 64);
        error.is_some_and(|error| error.contains("No space left"))
    });
    qemu.ask("discard 64M 960M");
    wait_for("writes to be accepted again", || refused_write(&mut qemu, 64, 32).is_none());
    for command in
        ["read -P 4 64M 32M", "read -P 3 0 64M", "read -P 0 96M 64M", "read -P 0 900M 64M"]
    {
        qemu.ask(command);
    }
    qemu.leave();
    assert!(cluster.check_copies() > 0);
}

#[test]
fn a_foreign_osd_in_the_place_of_another_is_refused_and_the_cluster_goes_on_without_it() {
    let cluster = three("copies-mine", "256MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 32));
    cluster.wait_clean();
    cluster.down();
    let other = three("copies-other", "256MiB", &[]);
    other.down();
    let (mine, theirs) = (directory_of(&cluster, 2), directory_of(&other, 2));
    let aside = cluster.path().join("aside");
    fs::rename(mine.join("blocks"), &aside).expect("ours");
    fs::copy(theirs.join("blocks"), mine.join("blocks")).expect("ours");
    let mut up = Command::new(ASHLAR);
    let output = run(up.args(["up", "--no-gateway", "--detach", "--dir"]).arg(cluster.path()));
    assert!(output.status.success(), "{}", text_of(&output));
    cluster.wait_osd(2, false);
    wait_for("it to say why", || {
        let log = fs::read_to_string(cluster.path().join("log/osd.2.log")).expect("it is there");
        log.contains("belongs to cluster")
    });
    ask(&cluster, "v", &pieces("read", 1, 32));
    ask(&cluster, "v", &pieces("write", 2, 32));
    cluster.down();
    let compared = run(Command::new(ASHLAR).args(["check", "--json"]).args(cluster.osd_paths()));
    assert_eq!(compared.status.code(), Some(1), "{}", text_of(&compared));
    assert!(text_of(&compared).contains("another cluster"), "{}", text_of(&compared));
    // The right disk is put back, and the OSD receives the writes that it missed.
    fs::rename(&aside, mine.join("blocks")).expect("ours");
    cluster.start(&[]);
    ask(&cluster, "v", &pieces("read", 2, 32));
    assert!(cluster.check_copies() >= 256);
}

/// An OSD whose disk was restored from an old copy reports the data that it has, which is incomplete. The
/// other OSDs bring it up to date, and no stale data is read.
#[test]
fn an_osd_restored_from_an_old_copy_is_brought_up_to_date() {
    let cluster = three("copies-old", "256MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 32));
    cluster.wait_clean();
    cluster.down();
    let blocks = directory_of(&cluster, 1).join("blocks");
    let copy = cluster.path().join("copy");
    fs::copy(&blocks, &copy).expect("ours");
    cluster.start(&[]);
    ask(&cluster, "v", &pieces("write", 2, 16));
    qemu_io(&cluster, "v", &["discard 16M 8M"]);
    cluster.wait_clean();
    cluster.down();
    fs::rename(&copy, &blocks).expect("ours");
    cluster.start(&[]);
    ask(&cluster, "v", &pieces("read", 2, 16));
    qemu_io(&cluster, "v", &["read -P 0 16M 8M"]);
    ask(&cluster, "v", &pieces("read", 1, 32).split_off(24));
    assert!(cluster.check_copies() > 0);
}
