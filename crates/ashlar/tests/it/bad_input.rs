//! Tests that every bad input ends in a clear error and that nothing is lost.

#![allow(clippy::big_endian_bytes)] // NBD is big-endian.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use crate::harness::{ASHLAR, Cluster, misused, refused, run, text_of};

#[test]
fn bad_names_and_sizes_are_refused() {
    let cluster = Cluster::up("names", &["--osds", "1", "--osd-size", "256MiB"]);
    let long = "x".repeat(64);
    for name in ["a/b", "a@b", "", ".hidden", "a b", "ü", "a\n", long.as_str()] {
        cluster.refused(&["volume", "create", name, "--size", "1GiB"], "invalid");
        cluster.refused(&["pool", "create", name, "--failure-domain", "osd"], "invalid");
    }
    for size in ["0", "1000", "4097", "16777215TiB"] {
        cluster.refused(&["volume", "create", "v", "--size", size], "invalid");
    }
    let error = cluster.refused(&["volume", "create", "v", "--size", "10"], "invalid");
    assert_eq!(error["message"], "10 bytes is too small; did you mean 10GiB?");
    // A misspelt device name must not create a directory in `/dev`, which is in memory.
    for wrong in ["/dev/ashlar-typo", "/dev/../dev/ashlar-typo", "/dev/null"] {
        cluster.refused(&["osd", "create", wrong, "--size", "1GiB"], "invalid");
    }
    assert!(!std::path::Path::new("/dev/ashlar-typo").exists());
    for usage in [
        &["volume", "create", "v", "--size", "many"][..],
        &["volume", "create", "v", "--size", "99999999TiB"],
        &["volume", "create", "v"],
        &["volume", "create", "v", "--size", "1GiB", "--colour", "red"],
        &["pool", "create", "p", "--block-size", "5KiB"],
        &["pg", "describe", "one"],
        &["osd", "stop", "osd.0"],
        &["osd", "create", "/nowhere", "--size", "-1"],
        &["up", "--restart-after", "soon"],
        &["up", "--osds", "0"],
        &["nbd", "--listen", "10809"],
        &["osd", "run", "/nowhere", "--listen", "udp:127.0.0.1:1"],
        &["frobnicate"],
        &[],
    ] {
        misused(cluster.command(usage).arg("--json"));
    }
    for unknown in [
        &["volume", "rm", "nobody"][..],
        &["volume", "info", "nobody"],
        &["volume", "resize", "nobody", "1GiB"],
        &["volume", "create", "v", "--size", "1GiB", "--pool", "nobody"],
        &["pg", "describe", "77.1"],
        &["pg", "give-up", "77.1"],
        &["pg", "ls", "--pool", "nobody"],
        &["osd", "stop", "77"],
        &["osd", "start", "77"],
        &["state", "get", "nothing"],
        &["config", "get", "nothing"],
        &["bench", "volume", "nobody"],
        &["nbd", "nobody", "--listen", "unix:/nonexistent/socket"],
    ] {
        cluster.refused(unknown, "not_found");
    }
    // The longest name that is allowed.
    let longest = "x".repeat(63);
    cluster.run(&["volume", "create", &longest, "--size", "1GiB"]);
    assert_eq!(cluster.json(&["volume", "ls"])[0]["name"], longest);
    assert_eq!(cluster.json(&["volume", "ls"]).as_array().map(Vec::len), Some(1));
    assert_eq!(cluster.json(&["pool", "ls"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_pool_that_cannot_be_placed_is_refused_with_a_remedy() {
    let cluster = Cluster::up("place", &["--osds", "2", "--osd-size", "256MiB"]);
    let pool = |replicas: &str, domain: &str, found: &str, remedy: &str| {
        let create = ["pool", "create", "p", "--replicas", replicas, "--failure-domain", domain];
        let error = cluster.refused(&create, "cannot_place");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(found)), "{error}");
        assert!(error["hint"].as_str().is_some_and(|text| text.contains(remedy)), "{error}");
    };
    // If there are enough OSDs, the hint suggests that copies may share a host.
    pool("2", "host", "2 hosts that are up, but there are 1", "--failure-domain osd");
    pool("3", "host", "3 hosts that are up, but there are 1", "start more OSDs");
    pool("3", "osd", "3 OSDs that are up, but there are 2", "start more OSDs");
    let three = ["pool", "create", "p", "--pgs", "3", "--failure-domain", "osd"];
    cluster.refused(&three, "invalid");
    let parity = ["pool", "create", "p", "--xor", "2+1", "--failure-domain", "osd"];
    let error = cluster.refused(&parity, "cannot_place");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("3 OSDs")), "{error}");
    cluster.run(&["osd", "stop", "1"]);
    cluster.wait_osd(1, false);
    pool("2", "osd", "2 OSDs that are up, but there are 1", "ashlar osd ls");
    assert_eq!(cluster.json(&["pool", "ls"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_wrong_key_is_refused_by_everyone() {
    let up = ["--osds", "2", "--osd-size", "256MiB"];
    let cluster = Cluster::up("key", &up);
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_osd(2, false);
    let other = cluster.copy_of_files("key-other", &cluster.monitor_address());
    let key = other.path().join("key");
    fs::write(&key, format!("{}\n", "5a".repeat(32))).expect("writable");
    let osd = cluster.path().join("osd.2").display().to_string();
    let socket = format!("unix:{}", other.path().join("nbd.sock").display());
    for command in [
        &["status"][..],
        &["volume", "ls"],
        &["osd", "create", &format!("{}/osd.9", other.path().display()), "--size", "256MiB"],
        &["osd", "run", &osd],
        &["nbd", "--listen", &socket],
        &["bench", "volume", "v"],
    ] {
        let mut command_line = Command::new(ASHLAR);
        command_line.args(command).args(["--json", "--cluster"]).arg(other.path());
        refused(&mut command_line, "untrusted");
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&key, mode).expect("ours");
    let mut status = Command::new(ASHLAR);
    refused(status.args(["status", "--json", "--cluster"]).arg(other.path()), "key");
    fs::write(&key, "no key").expect("writable");
    let mut status = Command::new(ASHLAR);
    refused(status.args(["status", "--json", "--cluster"]).arg(other.path()), "key");
    // The cluster is not disturbed, and the OSD that was run with the wrong key is unchanged.
    cluster.run(&["osd", "start", "2"]);
    cluster.wait_clean();
    cluster.wait_healthy();
    assert_eq!(cluster.json(&["osd", "ls"]).as_array().map(Vec::len), Some(2));
    cluster.check_osds();
}

#[test]
fn malformed_nbd_requests_disturb_nobody() {
    use std::os::unix::net::UnixStream;
    let cluster = Cluster::up("liar", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let socket = cluster.path().join("nbd.sock");
    let pid = cluster.pid("nbd", 1);
    let connect = || {
        let stream = UnixStream::connect(&socket).expect("it listens");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a socket");
        stream
    };
    // Garbage instead of a handshake.
    let mut stream = connect();
    let _ = stream.write_all(&[0xff; 4096]);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    // An option with an absurd length.
    let mut stream = connect();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    stream.write_all(&3u32.to_be_bytes()).expect("open");
    stream.write_all(b"IHAVEOPT").expect("open");
    stream.write_all(&7u32.to_be_bytes()).expect("open");
    stream.write_all(&u32::MAX.to_be_bytes()).expect("open");
    let _ = stream.write_all(&[0; 1 << 16]);
    let _ = stream.read_to_end(&mut rest);
    // Requests beyond the end of the volume, with absurd lengths, and of unknown types.
    let mut stream = connect();
    stream.read_exact(&mut greeting).expect("a greeting");
    stream.write_all(&3u32.to_be_bytes()).expect("open");
    stream.write_all(b"IHAVEOPT").expect("open");
    stream.write_all(&1u32.to_be_bytes()).expect("open");
    stream.write_all(&1u32.to_be_bytes()).expect("open");
    stream.write_all(b"v").expect("open");
    let mut export = [0; 10];
    stream.read_exact(&mut export).expect("the export's size and flags");
    assert_eq!(u64::from_be_bytes(export[..8].try_into().expect("8 bytes")), 16 << 20);
    let mut ask = |kind: u16, offset: u64, length: u32| {
        let mut request = Vec::new();
        request.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        request.extend_from_slice(&0u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&7u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        stream.write_all(&request).expect("open");
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).expect("a simple reply");
        u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes"))
    };
    assert_ne!(ask(0, 16 << 20, 4096), 0);
    assert_ne!(ask(0, u64::MAX - 100, 4096), 0);
    assert_ne!(ask(0, 0, u32::MAX), 0);
    assert_ne!(ask(4, (16 << 20) - 4096, 8192), 0);
    assert_ne!(ask(99, 0, 4096), 0);
    drop(stream);
    // The same process still serves.
    assert_eq!(cluster.pid("nbd", 1), pid);
    let io =
        run(Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 1M"]).arg(cluster.uri("v")));
    assert!(io.status.success(), "{}", text_of(&io));
}

#[test]
fn garbage_on_cluster_ports_disturbs_nobody() {
    let cluster = Cluster::up("rubbish", &["--osds", "1", "--osd-size", "256MiB"]);
    let status = cluster.json(&["status"]);
    let processes = status["processes"].as_array().expect("a list").clone();
    let mut tried = 0;
    for process in &processes {
        let Some(address) = process["address"].as_str().and_then(|a| a.strip_prefix("tcp:")) else {
            continue;
        };
        for rubbish in [&[0u8; 64][..], &[0xff; 8192], b"GET / HTTP/1.1\r\n\r\n"] {
            let mut stream = std::net::TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a socket");
            let _ = stream.write_all(rubbish);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            tried += 1;
        }
    }
    assert!(tried >= 6, "{processes:?}");
    cluster.wait_healthy();
    let pids = |status: &serde_json::Value| {
        let rows = status["processes"].as_array().expect("a list").clone();
        rows.iter().map(|row| row["pid"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(pids(&cluster.json(&["status"])), pids(&status));
}
