//! Tests of processes and their supervision, and of sessions of clients that disappear.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::harness::{
    ASHLAR, Cluster, Directory, QemuIo, finish, is_running, kill_9, qemu_io, run, text_of, wait_for,
};
use crate::servers::{Detour, NbdServer};

#[test]
fn children_exit_when_up_is_killed() {
    let cluster = Cluster::up("orphans", &["--osds", "2", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x51 0 16M"]);
    let children = cluster.processes();
    assert_eq!(children.len(), 5, "up, monitor, two OSDs, NBD server");
    kill_9(cluster.up_pid());
    wait_for("the children to end", || !children.iter().any(|pid| is_running(*pid)));
    cluster.check_stopped_osds();
    cluster.start(&[]);
    qemu_io(&cluster, "v", &["read -P 0x51 0 16M"]);
    cluster.check_osds();
}

/// A terminal sends the signal to all processes of its foreground group at once.
#[test]
fn ctrl_c_stops_clients_before_what_they_need() {
    let cluster = Cluster { directory: Directory::new("ctrl-c") };
    let mut up = Command::new(ASHLAR);
    up.args([
        "up",
        "--no-gateway",
        "--osds",
        "2",
        "--osd-size",
        "256MiB",
        "--commit",
        "fsync",
        "--dir",
    ]);
    let up = up.arg(cluster.path()).process_group(0).stdin(Stdio::null());
    let mut up = up.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(up.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("is up")), "{:?}", up.try_wait());
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let mut client = QemuIo::open(&[&cluster.uri("v")]);
    client.ask("write -P 1 0 4M");
    let terminal = Pid::from_child(&up);
    rustix::process::kill_process_group(terminal, Signal::INT).expect("it runs");
    let output = finish(up, Duration::from_secs(60));
    assert!(output.status.success(), "{}", text_of(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("exited"), "no child exited before its turn: {said}");
    client.leave();
    cluster.start(&[]);
    let info = cluster.json(&["volume", "info", "v"]);
    assert_eq!(info["lock"], serde_json::Value::Null, "{info:#}");
    qemu_io(&cluster, "v", &["read -P 1 0 4M"]);
    cluster.check_copies();
}

#[test]
fn a_killed_child_is_restarted() {
    let cluster = Cluster::up("again", &["--osds", "1", "--osd-size", "256MiB"]);
    for role in ["osd", "mon", "nbd"] {
        let pid = cluster.pid(role, 1);
        kill_9(pid);
        wait_for("another process in its place", || cluster.pid(role, 1) != pid);
    }
    cluster.wait_active();
    cluster.wait_healthy();
    cluster.check_osds();
}

#[test]
fn a_killed_child_stays_dead_with_restart_after_never() {
    let up = ["--osds", "2", "--osd-size", "256MiB", "--restart-after", "never"];
    let cluster = Cluster::up("never", &up);
    cluster.kill_osd_for_good(1);
    // Twice as long as a restart usually takes: there is no event to wait for if a process is not restarted.
    std::thread::sleep(Duration::from_secs(2));
    cluster.wait_status("a warning: the other has all", |status| status["health"] == "warn");
    let status = cluster.json(&["status"]);
    let osds = status["osds"].as_array().expect("a list");
    assert_eq!(osds.iter().map(|row| row["up"] == true).collect::<Vec<_>>(), [false, true]);
    let checks = status["checks"].as_array().expect("a list");
    let about = checks.iter().find(|check| check["code"] == "osd_down").expect("it is said");
    assert!(about["hint"].as_str().expect("a text").contains("osd start"), "{about}");
    // `status` omits this line if `up` does not answer within a second.
    wait_for("`status` to say that it stays dead", || {
        let text = cluster.run(&["status"]);
        text.contains("1 of 2 up") && text.contains("), will not be restarted; see /")
    });
    // `osd start` starts the OSD again.
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_clean();
    cluster.wait_healthy();
    cluster.check_osds();
}

#[test]
fn a_stopped_osd_stays_stopped_when_up_restarts() {
    let cluster = Cluster::up("stopped", &["--osds", "2", "--osd-size", "256MiB"]);
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_osd(2, false);
    let ups = || {
        let rows = cluster.json(&["osd", "ls"]);
        rows.as_array().expect("a list").iter().map(|row| row["up"] == true).collect::<Vec<_>>()
    };
    kill_9(cluster.up_pid());
    wait_for("the children to end", || cluster.processes().is_empty());
    let mut up = Command::new(ASHLAR);
    let output = run(up.args(["up", "--no-gateway", "--detach", "--dir"]).arg(cluster.path()));
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(text_of(&output).contains("osd.2 was stopped"), "{}", text_of(&output));
    wait_for("the other one alone to be up", || ups() == [true, false]);
    cluster.run(&["osd", "start", "osd.2"]);
    cluster.wait_active();
    cluster.down();
    cluster.start(&[]);
    wait_for("both to be up", || ups() == [true, true]);
    cluster.check_osds();
}

#[test]
fn io_goes_on_without_a_monitor() {
    let up = ["--osds", "2", "--osd-size", "256MiB", "--restart-after", "never"];
    let cluster = Cluster::up("no-mon", &up);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let mut qemu = QemuIo::open(&["-f", "raw", &cluster.uri("v")]);
    qemu.ask("write -P 1 0 16M");
    let pid = cluster.pid("mon", 1);
    kill_9(pid);
    wait_for("the monitor to be gone", || !is_running(pid));
    cluster.refused(&["status"], "unreachable");
    for step in 0..32 {
        qemu.ask(&format!("write -P {} {}M 1M", 2 + step, 16 + step));
        qemu.ask(&format!("read -P {} {}M 1M", 2 + step, 16 + step));
    }
    qemu.ask("read -P 1 0 16M");
    qemu.ask("discard 0 8M");
    qemu.ask("read -P 0 0 8M");
    qemu.begin("flush");
    qemu.close();
    cluster.check_osds();
    cluster.start(&[]);
    let reads: Vec<String> =
        (0..32).map(|step| format!("read -P {} {}M 1M", 2 + step, 16 + step)).collect();
    let mut reads: Vec<&str> = reads.iter().map(String::as_str).collect();
    reads.extend(["read -P 0 0 8M", "read -P 1 8M 8M"]);
    qemu_io(&cluster, "v", &reads);
}

/// A session ends some time after its connection to the monitor broke, whether or not its client has died.
/// Only then can its volume be removed or made smaller, and a client that is still alive is fenced first.
#[test]
fn a_lost_client_is_fenced_before_its_volume_is_deleted_or_shrunk() {
    let cluster = Cluster::up("fence", &["--osds", "1", "--osd-size", "512MiB"]);
    // The timeout is long enough for three commands to be refused meanwhile, even if they are slow.
    cluster.run(&["config", "set", "session_timeout_ms", "30s"]);
    for volume in ["dead", "removed", "cut"] {
        cluster.run(&["volume", "create", volume, "--size", "32MiB"]);
    }
    let detour = Detour::to(cluster.monitor_address());
    let files = cluster.copy_of_files("fence-files", &detour.address.to_string());
    let dying = NbdServer::start(files.path(), "dying");
    let mut dead = dying.open("dead");
    dead.ask("write -P 1 0 32M");
    let living = NbdServer::start(files.path(), "living");
    let (mut removed, mut cut) = (living.open("removed"), living.open("cut"));
    removed.ask("write -P 2 0 32M");
    cut.ask("write -P 3 0 32M");
    let refused = || {
        cluster.refused(&["volume", "rm", "dead"], "busy");
        cluster.refused(&["volume", "rm", "removed"], "busy");
        cluster.refused(&["volume", "resize", "cut", "16MiB", "--shrink"], "busy");
    };
    refused();

    cut.ask("write -P 5 0 1M");
    let lost = Instant::now();
    drop(dying);
    // The server has learned the monitor's own address by now: pause the server, so that it cannot reconnect
    // there.
    living.signal(Signal::STOP);
    detour.cut();
    refused();
    let done = |arguments: &[&str]| run(&mut cluster.command(arguments)).status.success();
    let commands: [&[&str]; 3] = [
        &["volume", "rm", "dead"],
        &["volume", "rm", "removed"],
        &["volume", "resize", "cut", "16MiB", "--shrink"],
    ];
    for command in commands {
        wait_for("the session to be over", || done(command));
        let waited = lost.elapsed();
        assert!(waited >= Duration::from_secs(29), "{command:?} was done after {waited:?}");
    }
    let fences = cluster.json(&["state", "get", "fence/1"]).to_string();
    assert_eq!(fences.matches("\"session\"").count(), 3, "{fences}");

    // The server has not noticed that its sessions ended: every request is refused.
    living.signal(Signal::CONT);
    for (client, ask) in [(&mut removed, "write -P 6 0 1M"), (&mut cut, "write -P 7 15M 2M")] {
        client.begin(ask);
        let line = client.end();
        assert!(line.contains("failed"), "{ask}: {line}");
    }
    // With a new session the client can use the rest of the volume.
    let mut again = living.open("cut");
    again.ask("read -P 5 0 1M");
    again.ask("read -P 3 1M 15M");
    again.close();
    assert_eq!(cluster.json(&["volume", "info", "cut"])["size_bytes"], 16 << 20);
    wait_for("the space of what is gone to be free", || {
        cluster.json(&["osd", "ls"])[0]["used_bytes"].as_u64() <= Some(16 << 20)
    });
    drop((dead, removed, cut, living));
    cluster.check_osds();
}

/// The kernel of a stopped client keeps its connections open and answers for it.
#[test]
fn a_stopped_holder_of_a_lock_loses_it_to_who_wants_it_and_can_no_longer_write() {
    let options = ["--osds", "1", "--osd-size", "512MiB", "--commit", "fsync"];
    let cluster = Cluster::up("stopped-holder", &options);
    cluster.run(&["config", "set", "session_timeout_ms", "2s"]);
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    let holder = || cluster.json(&["volume", "info", "v"])["lock"]["session"].clone();
    let (first, second) =
        (NbdServer::start(cluster.path(), "first"), NbdServer::start(cluster.path(), "second"));
    let mut before = first.open("v");
    before.ask("write -f -P 1 0 16M");
    let session = holder();
    first.signal(Signal::STOP);
    // Nobody wants the lock, so nothing happens: the test can only wait.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(holder(), session);

    let mut after = second.open("v");
    after.ask("read -P 1 0 16M");
    after.ask("write -P 2 0 16M");
    assert_ne!(holder(), session);
    first.signal(Signal::CONT);
    before.begin("write -P 3 0 16M");
    let line = before.end();
    assert!(line.contains("failed"), "{line}");
    after.ask("read -P 2 0 16M");
    // The first server serves the volume again once the second one has given the lock back.
    after.close();
    wait_for("the lock to be free", || holder().is_null());
    let mut again = first.open("v");
    again.ask("read -P 2 0 16M");
    again.close();
    drop((before, first, second));
    cluster.check_osds();
}
