//! Tests with the usual NBD tools.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Cluster, pattern_file, qemu_io, run, same_bytes, succeed, text_of, wait_for};
use crate::servers::{Detour, NbdServer};

#[test]
fn exports_are_listed_with_their_sizes() {
    let cluster = Cluster::up("list", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "a", "--size", "64MiB"]);
    cluster.run(&["volume", "create", "b.2", "--size", "1TiB"]);
    let socket = cluster.path().join("nbd.sock");
    let list_uri = format!("nbd+unix:///?socket={}", socket.display());
    let list = succeed(Command::new("nbdinfo").args(["--list", "--json", &list_uri]));
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let exports = list["exports"].as_array().expect("a list");
    let size_of = |name: &str| {
        let found = exports.iter().find(|export| export["export-name"] == name);
        found.and_then(|export| export["export-size"].as_u64())
    };
    assert_eq!(size_of("a"), Some(64 << 20));
    assert_eq!(size_of("b.2"), Some(1 << 40));

    let info = succeed(Command::new("nbdinfo").args(["--json", &cluster.uri("a")]));
    let info: Value = serde_json::from_str(&info).expect("JSON");
    let export = &info["exports"][0];
    assert_eq!(export["is_read_only"], false);
    for ability in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[ability], true, "{ability}: {export:#}");
    }
    assert_eq!(export["block_size_minimum"], 1, "{export:#}");
    assert_eq!(export["block_size_preferred"], 4096);

    let unknown = run(Command::new("nbdinfo").arg(cluster.uri("nobody")));
    assert!(!unknown.status.success());
}

#[test]
fn copied_volumes_are_equal_and_holes_stay_holes() {
    let cluster = Cluster::up("copy", &["--osds", "2", "--osd-size", "512MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "128MiB"]);
    let scratch = cluster.path().join("scratch");
    fs::create_dir_all(&scratch).expect("writable");
    let (source, back) = (scratch.join("source"), scratch.join("back"));
    pattern_file(&source, 20 << 20, 7);
    let file = fs::OpenOptions::new().write(true).open(&source).expect("made above");
    file.set_len(128 << 20).expect("writable");
    succeed(Command::new("nbdcopy").arg(&source).arg(cluster.uri("v")));
    succeed(Command::new("nbdcopy").arg(cluster.uri("v")).arg(&back));
    assert!(same_bytes(&source, &back, 128 << 20));

    let map = succeed(Command::new("nbdinfo").args(["--map", "--json", &cluster.uri("v")]));
    let map: Value = serde_json::from_str(&map).expect("JSON");
    let allocated: u64 = map
        .as_array()
        .expect("a list")
        .iter()
        .filter(|extent| extent["type"].as_u64().is_some_and(|kind| kind & 1 == 0))
        .filter_map(|extent| extent["length"].as_u64())
        .sum();
    assert_eq!(allocated, 20 << 20, "{map:#}");
}

#[test]
fn unaligned_writes_leave_neighbouring_bytes_alone() {
    let cluster = Cluster::up("unaligned", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 4095 2",
        "read -P 0x11 0 4095",
        "read -P 0x22 4095 2",
        "read -P 0x11 4097 1000",
        // This write crosses the edge of a block.
        "write -P 0x33 131000 5000",
        "read -P 0x11 130000 1000",
        "read -P 0x33 131000 5000",
        "read -P 0x11 136000 1000",
        // The last bytes of the volume.
        "write -P 0x44 16777211 5",
        "read -P 0x44 16777211 5",
        "read -P 0 16777000 211",
    ];
    qemu_io(&cluster, "v", &commands);
    cluster.check_osds();
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeros_and_free_space() {
    let cluster = Cluster::up("discard", &["--osds", "1", "--osd-size", "512MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x5a 0 64M", "flush"]);
    let used = |cluster: &Cluster| {
        cluster.json(&["osd", "ls"])[0]["used_bytes"].as_u64().expect("a number")
    };
    wait_for("the writes to be counted", || used(&cluster) >= 64 << 20);
    let commands = [
        "discard 1M 30M",
        "read -P 0x5a 0 1M",
        "read -P 0 1M 30M",
        "read -P 0x5a 31M 1M",
        "write -z 40M 4096",
        "write -z -u 41M 1000",
        "read -P 0x5a 40959k 1k",
        "read -P 0 40M 4096",
        "read -P 0 41M 1000",
        "read -P 0x5a 42992616 1000",
    ];
    qemu_io(&cluster, "v", &commands);
    wait_for("the discarded space to be free", || used(&cluster) <= 36 << 20);
    qemu_io(&cluster, "v", &["discard 0 64M", "read -P 0 0 64M"]);
    wait_for("all space to be free", || used(&cluster) == 0);
    cluster.check_osds();
}

#[test]
fn read_only_exports_refuse_writes_over_tcp() {
    let cluster = Cluster::up("readonly", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x77 0 64k"]);
    let (mut server, mut uri) = (None::<Child>, String::new());
    wait_for("the server to listen", || {
        // Another program may take the port before the server does. Then the server exits, and the test tries
        // another port.
        let has_ended = |child: &mut Child| child.try_wait().expect("a child").is_some();
        if server.as_mut().is_none_or(has_ended) {
            let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = port.local_addr().expect("bound");
            drop(port);
            let listen = format!("tcp:{address}");
            let mut command = cluster.command(&["nbd", "v", "--read-only", "--listen", &listen]);
            server = Some(command.stdout(Stdio::null()).spawn().expect("starts"));
            uri = format!("nbd://{address}/v");
        }
        Command::new("nbdinfo").arg(&uri).output().is_ok_and(|output| output.status.success())
    });
    let mut server = server.expect("it listens");
    let mut read = Command::new("qemu-io");
    succeed(read.args(["-r", "-f", "raw", &uri, "-c", "read -P 0x77 0 64k"]));
    let write = run(Command::new("qemu-io").args(["-f", "raw", &uri, "-c", "write 0 4k"]));
    assert!(!write.status.success(), "{}", text_of(&write));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn a_client_whose_session_expired_attaches_again_and_goes_on() {
    let cluster = Cluster::up("silent", &["--osds", "3", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    cluster.run(&["config", "set", "session_timeout_ms", "1000"]);
    let server = NbdServer::start(cluster.path(), "second.sock");
    let mut client = server.open_patiently("v");
    client.ask("write -P 1 0 4M");
    server.signal(Signal::STOP);
    let monitor = cluster.pid("mon", 1);
    cluster.kill("mon", 1);
    wait_for("a new monitor", || cluster.pid("mon", 1) != monitor);
    // If a session does not reconnect to the new monitor, it expires and loses the volume.
    wait_for("the session to end", || {
        cluster.json(&["volume", "info", "v"])["sessions"].as_array().is_some_and(Vec::is_empty)
    });
    server.signal(Signal::CONT);
    client.ask("write -P 2 1M 1M");
    client.ask("read -P 1 0 1M");
    client.close();
    qemu_io(&cluster, "v", &["read -P 1 0 1M", "read -P 2 1M 1M", "read -P 1 2M 2M"]);
    server.end();
    cluster.check_copies();
}

/// The monitor cannot inform the server that it lost its lock, so OSDs must refuse the server's writes.
#[test]
fn a_server_that_lost_its_lock_can_no_longer_write() {
    let up = ["--osds", "3", "--osd-size", "256MiB", "--commit", "fsync"];
    let cluster = Cluster::up("unlock", &up);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let detour = Detour::to(cluster.monitor_address());
    let files = cluster.copy_of_files("unlock-files", &detour.address.to_string());
    let server = NbdServer::start(files.path(), "second.sock");
    let mut hanging = server.open_patiently("v");
    hanging.ask("write -P 1 0 4M");
    assert_eq!(cluster.json(&["volume", "info", "v"])["lock"]["lazy"], true);
    // No other client can attach the volume, not even read-only.
    for read_only in [&[][..], &["-r"]] {
        let mut other = Command::new("qemu-io");
        other.args(read_only).args(["-f", "raw", &cluster.uri("v"), "-c", "read 0 4k"]);
        let refused = run(&mut other);
        let text = text_of(&refused);
        assert!(!refused.status.success() && text.contains("is locked by session"), "{text}");
    }
    let asked = cluster.refused(&["volume", "unlock", "v"], "not_confirmed");
    assert!(asked["message"].as_str().is_some_and(|text| text.contains("v")), "{asked}");

    server.signal(Signal::STOP);
    hanging.begin("write -P 2 0 1M");
    detour.cut();
    cluster.run(&["volume", "unlock", "v", "--yes"]);
    qemu_io(&cluster, "v", &["write -P 3 0 1M", "flush"]);
    // The server has learned the monitor's own address by now, so that address must not answer either.
    let monitor = Pid::from_raw(cluster.pid("mon", 1) as i32).expect("a pid is not 0");
    kill_process(monitor, Signal::STOP).expect("it runs");
    server.signal(Signal::CONT);
    // The server's write reaches the OSDs within this time. The write fails either now, or once the server
    // has learned that it lost its lock.
    let early = hanging.ended_within(Duration::from_secs(3));
    kill_process(monitor, Signal::CONT).expect("it is stopped");
    let line = early.unwrap_or_else(|| hanging.end());
    assert!(line.contains("failed"), "{line}");
    for command in ["write -P 4 0 1M", "read 0 1M"] {
        hanging.begin(command);
        let line = hanging.end();
        assert!(line.contains("failed"), "{command}: {line}");
    }
    qemu_io(&cluster, "v", &["read -P 3 0 1M", "read -P 1 1M 3M"]);
    server.end();
    cluster.check_copies();
}

/// The next client that attaches the volumes need not wait for a dead session to expire.
#[test]
fn a_server_that_is_told_to_stop_detaches_its_volumes_whether_osds_answer_or_not() {
    let up = ["--osds", "2", "--osd-size", "256MiB", "--commit", "fsync"];
    let cluster = Cluster::up("nbd-ends", &up);
    // Within the test only a detach can end a session: all other ways take far longer.
    cluster.run(&["config", "set", "session_timeout_ms", "10min"]);
    let info = |volume: &str| cluster.json(&["volume", "info", volume]);
    let nobody_has = |volume: &str| {
        let info = info(volume);
        info["lock"].is_null() && info["sessions"].as_array().is_some_and(Vec::is_empty)
    };
    for volume in ["idle", "busy"] {
        cluster.run(&["volume", "create", volume, "--size", "16MiB"]);
    }
    let server = NbdServer::start(cluster.path(), "idle.sock");
    let mut idle = server.open("idle");
    idle.ask("write -P 1 0 4M");
    let (lock, session) = (info("idle")["lock"].clone(), info("idle")["sessions"][0].clone());
    assert_eq!((&lock["session"], &lock["lazy"]), (&session["id"], &Value::from(true)));
    assert_eq!(session["pid"], server.pid());
    let text = cluster.run(&["volume", "info", "idle"]);
    let host = session["host"].as_str().expect("it is told");
    let told = format!("{} of nbd process {} on {host} at unix:", session["id"], server.pid());
    assert!(text.contains(&told) && text.contains("no other client can attach"), "{text}");
    server.end();
    wait_for("the idle volume to be given back", || nobody_has("idle"));
    assert!(cluster.run(&["volume", "info", "idle"]).contains("not locked"));
    idle.leave();
    qemu_io(&cluster, "idle", &["read -P 1 0 4M"]);

    let server = NbdServer::start(cluster.path(), "busy.sock");
    let mut busy = server.open("busy");
    busy.ask("write -f -P 1 0 4M");
    let osds = [1, 2].map(|osd| Pid::from_raw(cluster.pid("osd", osd) as i32).expect("not 0"));
    osds.iter().for_each(|osd| kill_process(*osd, Signal::STOP).expect("it runs"));
    busy.begin("write -P 2 0 1M");
    assert_eq!(busy.ended_within(Duration::from_secs(1)), None, "nobody answers");
    server.end();
    wait_for("the busy volume to be given back", || {
        info("busy")["sessions"].as_array().is_some_and(Vec::is_empty)
    });
    busy.leave();
    osds.iter().for_each(|osd| kill_process(*osd, Signal::CONT).expect("it is stopped"));
    // Requests that are still in transit take effect before those of the next client, or never.
    qemu_io(&cluster, "busy", &["read -P 1 1M 3M", "write -P 3 0 1M", "read -P 3 0 1M"]);
    cluster.check_copies();
}

#[test]
fn an_ext4_file_system_works_on_a_volume() {
    let cluster = Cluster::up("fuse", &["--osds", "2", "--osd-size", "512MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "256MiB"]);
    let disk = cluster.path().join("disk");
    fs::write(&disk, b"").expect("writable");
    let mut fuse =
        Command::new("nbdfuse").arg(&disk).arg(cluster.uri("v")).spawn().expect("starts");
    wait_for("the volume to appear", || {
        fs::metadata(&disk).is_ok_and(|metadata| metadata.len() == 256 << 20)
    });
    succeed(Command::new("/usr/sbin/mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(&disk));
    // If no loop device can be mounted, debugfs writes the files and reads them back.
    let source = cluster.path().join("source");
    pattern_file(&source, 8 << 20, 3);
    for number in 0..8 {
        let request = format!("write {} file{number}", source.display());
        let mut debugfs = Command::new("/usr/sbin/debugfs");
        succeed(debugfs.args(["-w", "-R", &request]).arg(&disk));
    }
    let back = cluster.path().join("back");
    let request = format!("dump file5 {}", back.display());
    succeed(Command::new("/usr/sbin/debugfs").args(["-R", &request]).arg(&disk));
    assert!(same_bytes(&source, &back, 8 << 20));
    let mut fsck = Command::new("/usr/sbin/fsck.ext4");
    succeed(fsck.args(["-f", "-n"]).arg(&disk));
    succeed(Command::new("fusermount3").arg("-u").arg(&disk));
    assert!(fuse.wait().expect("it ends").success());
    // Compare again after everything has been restarted.
    cluster.check_osds();
    cluster.start(&[]);
    let image = cluster.path().join("image");
    succeed(Command::new("nbdcopy").arg(cluster.uri("v")).arg(&image));
    succeed(Command::new("/usr/sbin/fsck.ext4").args(["-f", "-n"]).arg(&image));
}
