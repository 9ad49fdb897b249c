//! Is anything lost when processes die during writes?

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Cluster, assert_qemu_io, finish, qemu_io, qemu_io_text, run, text_of, wait_for,
};

/// fio, writing at random places for `seconds` and reading back and verifying what it wrote in
/// between.
fn fio(cluster: &Cluster, volume: &str, seconds: u32) -> Child {
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bs=4k,4k", "--iodepth=16"]);
    fio.arg(format!("--uri={}", cluster.uri(volume)));
    fio.args(["--size=256m", "--verify=crc32c", "--verify_backlog=2048", "--verify_fatal=1"]);
    fio.args(["--time_based", "--bssplit=4k/60:16k/20:128k/15:512k/5", "--randseed=17"]);
    fio.arg(format!("--runtime={seconds}"));
    fio.args(["--output-format=json", "--verify_state_save=0"]);
    fio.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    fio.spawn().expect("fio is installed")
}

/// Bytes that a finished fio has written, and read back and verified.
fn fio_result(child: Child) -> (u64, u64) {
    let output = finish(child, Duration::from_secs(400));
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    let json = text.find('{').map(|start| &text[start..]).unwrap_or_default();
    let value = serde_json::Deserializer::from_str(json).into_iter::<Value>().next();
    let value = value.and_then(Result::ok).unwrap_or_else(|| panic!("no JSON in {text}"));
    let job = &value["jobs"][0];
    assert_eq!(job["error"], 0, "{text}");
    let bytes = |direction: &str| job[direction]["io_bytes"].as_u64().expect("a number");
    (bytes("write"), bytes("read"))
}

fn fio_survives_kills(name: &str, commit: &str) {
    let cluster = Cluster::up(name, &["--osds", "1", "--osd-size", "1GiB", "--commit", commit]);
    cluster.run(&["volume", "create", "v", "--size", "256MiB"]);
    let mut fio = fio(&cluster, "v", 60);
    let mut kills = 0;
    while kills < 4 {
        // Kills fall between seconds of load; how many writes that means is the machine's affair.
        std::thread::sleep(Duration::from_secs(11));
        assert!(fio.try_wait().expect("a child").is_none(), "fio ended before the kills");
        let pid = cluster.pid("osd", 1);
        crate::harness::kill_9(pid);
        kills += 1;
        wait_for("the OSD to be back", || {
            let row = &cluster.json(&["osd", "ls"])[0];
            row["up"] == true && row["pid"].as_u64() != Some(u64::from(pid))
        });
    }
    let (written, verified) = fio_result(fio);
    crate::harness::report(&format!(
        "fio, {commit}: {written} bytes written, {verified} bytes verified, {kills} kills"
    ));
    assert!(written >= 256 << 20, "{written}");
    assert!(verified >= 256 << 20, "{verified}");
    cluster.check_osds();
}

#[test]
fn fio_verifies_over_killed_osds_in_fsync_mode() {
    fio_survives_kills("fio-fsync", "fsync");
}

#[test]
fn fio_verifies_over_killed_osds_in_immediate_mode() {
    fio_survives_kills("fio-now", "immediate");
}

/// qemu-io that waits for a lost server and goes on.
fn patient_qemu_io(cluster: &Cluster, volume: &str) -> Command {
    let socket = cluster.path().join("nbd.sock");
    let image = format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},file.export={volume},\
         file.reconnect-delay=60,file.open-timeout=60",
        socket.display()
    );
    // A line at a time, so that what is done is known at once.
    let mut qemu = Command::new("stdbuf");
    qemu.args(["-oL", "qemu-io", "--image-opts", &image]);
    qemu
}

/// One command a line: `STEPS` writes of different patterns, all over a volume.
const STEPS: u32 = 400;

fn pattern_of(step: u32) -> u32 {
    1 + step % 250
}

fn place_of(step: u32) -> String {
    // 512 KiB each, scattered over 256 MiB.
    format!("{}k 512k", (step * 37 % 512) * 512)
}

/// Writes all over a volume; after some writes, twice, `interrupt` does its worst among them.
/// Then everything is read back.
fn writes_survive(cluster: &Cluster, mut interrupt: impl FnMut()) {
    use std::io::{BufRead, BufReader, Write};
    cluster.run(&["volume", "create", "v", "--size", "256MiB"]);
    let mut qemu = patient_qemu_io(cluster, "v");
    qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = qemu.spawn().expect("qemu-io is installed");
    let mut input = child.stdin.take().expect("piped");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    for step in 0..STEPS {
        // qemu-io reads one line at a time: it looks for the next when this one is done.
        writeln!(input, "write -P {} {}", pattern_of(step), place_of(step)).expect("it runs");
        if step == 100 || step == 250 {
            // Behind a hundred acknowledged writes, with this one under way.
            interrupt();
        }
        line.clear();
        while !line.contains("wrote 524288/524288") {
            line.clear();
            assert!(output.read_line(&mut line).expect("readable") > 0, "ended at {step}");
            assert!(!line.to_lowercase().contains("failed"), "{line}");
        }
    }
    writeln!(input, "flush").expect("it runs");
    drop(input);
    let output = finish(child, Duration::from_secs(200));
    assert!(output.status.success(), "{}", text_of(&output));

    let mut newest = std::collections::BTreeMap::new();
    newest.extend((0..STEPS).map(|step| (place_of(step), pattern_of(step))));
    let mut read = patient_qemu_io(cluster, "v");
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
    cluster.wait_active();
    cluster.check_osds();
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
    // Longer than `--restart-after`: only a hand brings it back.
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
