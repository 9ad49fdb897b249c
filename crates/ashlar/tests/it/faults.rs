//! Tests that no acknowledged write is lost when processes die during writes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::seeds::all_cases;

use crate::fio::Fio;
use crate::harness::{
    Cluster, QemuIo, assert_qemu_io, finish, patient_image, qemu_io, qemu_io_text, run, wait_for,
};

fn fio_survives_kills(name: &str, commit: &str) {
    let up = ["--osds", "1", "--osd-size", "1GiB", "--commit", commit, "--restart-after", "never"];
    let cluster = Cluster::up(name, &up);
    cluster.run(&["volume", "create", "v", "--size", "384MiB"]);
    let (mut kills, mut verified) = (0, 0);
    let begin = Instant::now();
    let seeds: &[u32] = if all_cases() { &[17, 18, 19] } else { &[17] };
    for &seed in seeds {
        let mut fio = Fio::start(&cluster, "v", 384 << 20, seed);
        for megabytes in [50, 100, 150] {
            fio.wait_written(megabytes << 20);
            cluster.kill_osd_for_good(1);
            kills += 1;
            cluster.check_stopped_osds();
            cluster.run(&["osd", "start", "1"]);
            cluster.wait_osd(1, true);
        }
        verified += fio.verified_bytes();
    }
    let seconds = begin.elapsed().as_secs();
    crate::harness::report(&format!(
        "fio, {commit}: {verified} bytes written and verified in {seconds} s, {kills} kills, \
         each followed by a clean osd check"
    ));
    assert!(verified >= seeds.len() as u64 * (192 << 20), "{verified}");
    cluster.check_osds();
}

#[test]
fn fio_verifies_across_kills_of_the_only_osd_in_fsync_mode() {
    fio_survives_kills("fio-fsync", "fsync");
}

#[test]
#[ignore = "for make proof"]
fn fio_verifies_across_kills_of_the_only_osd_in_immediate_mode() {
    fio_survives_kills("fio-now", "immediate");
}

/// Number of commands: each writes another pattern, and the writes are spread over the volume.
const STEPS: u32 = 400;

fn pattern_of(step: u32) -> u32 {
    1 + step % 250
}

fn place_of(step: u32) -> String {
    // Each write covers 512 KiB, scattered over 256 MiB.
    format!("{}k 512k", (step * 37 % 512) * 512)
}

/// Spreads writes over a volume. Calls `interrupt` twice while a write is in flight; then everything is read
/// back.
fn writes_survive(cluster: &Cluster, mut interrupt: impl FnMut()) {
    cluster.run(&["volume", "create", "v", "--size", "256MiB"]);
    let image = patient_image(cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    for step in 0..STEPS {
        let command = format!("write -P {} {}", pattern_of(step), place_of(step));
        qemu.begin(&command);
        if step == 100 || step == 250 {
            // Many writes are acknowledged by now, and this one is in flight.
            interrupt();
        }
        let line = qemu.end();
        assert!(line.contains("wrote 524288/524288"), "{command}: {line}");
    }
    qemu.begin("flush");
    qemu.close();

    let mut newest = std::collections::BTreeMap::new();
    newest.extend((0..STEPS).map(|step| (place_of(step), pattern_of(step))));
    let mut read = Command::new("qemu-io");
    read.args(["--image-opts", &image]);
    for (place, pattern) in &newest {
        read.args(["-c", &format!("read -P {pattern} {place}")]);
    }
    assert_qemu_io(&run(&mut read), newest.len());
}

#[test]
fn writes_go_on_when_the_monitor_is_killed() {
    let cluster = Cluster::up("kill-mon", &["--osds", "2", "--osd-size", "512MiB"]);
    let pid = std::cell::Cell::new(0);
    writes_survive(&cluster, || {
        pid.set(cluster.pid("mon", 1));
        cluster.kill("mon", 1);
    });
    wait_for("a new monitor", || cluster.pid("mon", 1) != pid.get());
    cluster.check_copies();
}

#[test]
fn writes_go_on_when_an_osd_is_killed_and_restarted() {
    let cluster = Cluster::up("kill-osd", &["--osds", "2", "--osd-size", "512MiB"]);
    let mut osd = 0;
    writes_survive(&cluster, || {
        osd += 1;
        let pid = cluster.pid("osd", osd);
        crate::harness::kill_9(pid);
        wait_for("another process in its place", || cluster.pid("osd", osd) != pid);
    });
    assert_eq!(osd, 2, "each was killed once");
    cluster.check_copies();
}

#[test]
fn writes_go_on_when_the_nbd_server_is_killed() {
    let cluster = Cluster::up("kill-nbd", &["--osds", "2", "--osd-size", "512MiB"]);
    writes_survive(&cluster, || {
        let pid = cluster.pid("nbd", 1);
        crate::harness::kill_9(pid);
        wait_for("a new server", || {
            std::os::unix::net::UnixStream::connect(cluster.path().join("nbd.sock")).is_ok()
                && cluster.pid("nbd", 1) != pid
        });
    });
    cluster.check_osds();
}

#[test]
fn writes_go_on_when_everything_is_killed_at_once() {
    let cluster = Cluster::up("kill-all", &["--osds", "2", "--osd-size", "512MiB"]);
    writes_survive(&cluster, || {
        cluster.kill_everything();
        cluster.check_stopped_osds();
        cluster.start(&[]);
    });
    cluster.check_osds();
}

#[test]
fn a_stopped_osd_stays_stopped_and_its_io_waits() {
    let cluster = Cluster::up("stop", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.run(&["osd", "stop", "1"]);
    wait_for("the status to say so", || {
        let status = cluster.json(&["status"]);
        status["osds"][0]["up"] == false && status["health"] == "error"
    });
    assert_eq!(cluster.command(&["check"]).status().expect("runs").code(), Some(1));
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-c", "write -P 5 0 1M", "-c", "read -P 5 0 1M"]);
    qemu.arg(cluster.uri("v")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut qemu = qemu.spawn().expect("qemu-io is installed");
    // This is longer than `--restart-after`: only a command starts the OSD again.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cluster.json(&["osd", "ls"])[0]["up"], false);
    assert!(qemu.try_wait().expect("a child").is_none(), "its I/O waits");
    cluster.run(&["osd", "start", "osd.1"]);
    assert_qemu_io(&finish(qemu, Duration::from_secs(100)), 2);
    cluster.check_osds();
}

#[test]
fn a_full_disk_refuses_writes_and_recovers_by_deletion() {
    let cluster = Cluster::up("full", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "1GiB"]);
    qemu_io(&cluster, "v", &["write -P 3 0 64M"]);
    let mut full = false;
    for step in 1..8 {
        let text = qemu_io_text(&cluster, "v", &format!("write -P 4 {}M 64M", step * 64));
        if text.contains("No space left") {
            full = true;
            break;
        }
        assert!(text.contains("wrote 67108864/67108864"), "{text}");
    }
    assert!(full, "256 MiB held 512 MiB");
    wait_for("the status to name it", || {
        let status = cluster.json(&["status"]);
        let checks = status["checks"].as_array().expect("a list").clone();
        checks.iter().any(|check| check["code"].as_str().is_some_and(|c| c.contains("full")))
    });
    qemu_io(&cluster, "v", &["read -P 3 0 64M", "discard 64M 960M"]);
    wait_for("writes to be accepted again", || {
        qemu_io_text(&cluster, "v", "write -P 6 64M 32M").contains("wrote 33554432/33554432")
    });
    qemu_io(&cluster, "v", &["read -P 6 64M 32M", "read -P 3 0 64M"]);
    cluster.check_osds();
}
