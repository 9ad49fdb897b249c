//! Is every bad input a clear error that loses nothing?

#![allow(clippy::big_endian_bytes)] // NBD is big-endian.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use crate::harness::{ASHLAR, Cluster, Directory, refused, run, text_of, wait_for};

#[test]
fn bad_names_and_sizes_are_refused() {
    let cluster = Cluster::up("names", &["--osds", "1", "--osd-size", "256MiB"]);
    let long = "x".repeat(64);
    for name in ["a/b", "a@b", "", ".hidden", "a b", "ü", long.as_str()] {
        let error = cluster.refused(&["volume", "create", name, "--size", "1GiB"]);
        assert_eq!(error["code"], "invalid", "{name:?}: {error}");
    }
    for size in ["0", "1000", "4097", "16777215TiB"] {
        let error = cluster.refused(&["volume", "create", "v", "--size", size]);
        assert_eq!(error["code"], "invalid", "{size}: {error}");
    }
    for usage in [
        ["volume", "create", "v", "--size", "many"],
        ["volume", "create", "v", "--size", "99999999TiB"],
        ["pool", "create", "p", "--block-size", "5KiB"],
        ["osd", "create", "/nowhere", "--size", "-1"],
    ] {
        let output = run(&mut cluster.command(&usage));
        assert_eq!(output.status.code(), Some(2), "{usage:?}: {}", text_of(&output));
    }
    assert_eq!(cluster.refused(&["volume", "rm", "nobody"])["code"], "not_found");
    assert_eq!(cluster.refused(&["pg", "describe", "77.1"])["code"], "not_found");
    assert_eq!(cluster.refused(&["osd", "stop", "77"])["code"], "not_found");
    assert_eq!(cluster.refused(&["state", "get", "nothing"])["code"], "not_found");
    assert_eq!(cluster.refused(&["config", "get", "nothing"])["code"], "not_found");
    assert_eq!(cluster.json(&["volume", "ls"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn a_pool_that_cannot_be_placed_names_the_remedy() {
    let cluster = Cluster::up("place", &["--osds", "1", "--osd-size", "256MiB"]);
    let error = cluster.refused(&["pool", "create", "p", "--replicas", "2"]);
    assert!(!error["hint"].as_str().unwrap_or_default().is_empty(), "{error}");
    let create = ["pool", "create", "p", "--pgs", "3", "--failure-domain", "osd"];
    assert_eq!(cluster.refused(&create)["code"], "invalid");
    assert_eq!(cluster.json(&["pool", "ls"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_wrong_key_is_refused_by_everyone() {
    let cluster = Cluster::up("key", &["--osds", "1", "--osd-size", "256MiB"]);
    let other = Directory::new("key-other");
    fs::copy(cluster.path().join("cluster.toml"), other.path().join("cluster.toml"))
        .expect("readable");
    fs::write(other.path().join("key"), format!("{}\n", "5a".repeat(32))).expect("writable");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(other.path().join("key"), private).expect("ours");
    let mut status = Command::new(ASHLAR);
    let error = refused(status.args(["status", "--json", "--cluster"]).arg(other.path()));
    assert_eq!(error["code"], "untrusted", "{error}");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(other.path().join("key"), open).expect("ours");
    let mut status = Command::new(ASHLAR);
    let error = refused(status.args(["status", "--json", "--cluster"]).arg(other.path()));
    assert!(error["message"].as_str().unwrap_or_default().contains("key"), "{error}");
    assert_eq!(cluster.json(&["status"])["health"], "ok");
}

#[test]
fn foreign_and_damaged_disks_are_refused() {
    let cluster = Cluster::up("disks", &["--osds", "2", "--osd-size", "256MiB"]);
    // A second daemon on the same directory.
    let osd = cluster.osd_paths()[0].clone();
    let path = osd.display().to_string();
    let error = cluster.refused(&["osd", "run", &path]);
    assert!(error["message"].as_str().unwrap_or_default().contains("in use"), "{error}");
    // Made again over one that is there.
    let again = cluster.refused(&["osd", "create", &path, "--size", "256MiB"]);
    assert_eq!(again["code"], "exists", "{again}");
    // Too small, and nothing at all.
    let small = cluster.path().join("small").display().to_string();
    cluster.refused(&["osd", "create", &small, "--size", "64MiB"]);
    cluster.refused(&["osd", "run", "/nonexistent"]);
    cluster.refused(&["osd", "inspect", "/nonexistent"]);
    cluster.down();

    // Not ours.
    let foreign = Directory::new("disks-foreign");
    fs::write(foreign.path().join("blocks"), vec![0x55; 1 << 20]).expect("writable");
    let path = foreign.path().display().to_string();
    let mut check = Command::new(ASHLAR);
    let error = refused(check.args(["osd", "check", &path, "--json"]));
    assert_eq!(error["code"], "not_a_store", "{error}");
    // Cut off behind the superblocks.
    let mut start = vec![0; 1 << 19];
    fs::File::open(osd.join("blocks")).and_then(|mut f| f.read_exact(&mut start)).expect("long");
    fs::write(foreign.path().join("blocks"), &start).expect("writable");
    let mut check = Command::new(ASHLAR);
    refused(check.args(["osd", "check", &path, "--json"]));
    // One copy of the superblock is enough; none is a clear error.
    let blocks = osd.join("blocks");
    let mut file = fs::OpenOptions::new().write(true).open(&blocks).expect("ours");
    file.write_all(&[0xee; 4096]).expect("writable");
    cluster.start(&[]);
    cluster.down();
    use std::os::unix::fs::FileExt;
    for offset in [0, 64 << 10] {
        file.write_all_at(&[0xee; 4096], offset).expect("writable");
    }
    let path = osd.display().to_string();
    let mut check = Command::new(ASHLAR);
    refused(check.args(["osd", "check", &path, "--json"]));
}

#[test]
fn lying_nbd_clients_hurt_nobody() {
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
    // Rubbish instead of a handshake.
    let mut stream = connect();
    let _ = stream.write_all(&[0xff; 4096]);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    // An option whose length is absurd.
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
    // Requests beyond the end, with absurd lengths, and unknown ones.
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
fn rubbish_on_cluster_ports_hurts_nobody() {
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
    wait_for("the same processes to serve", || cluster.json(&["status"])["health"] == "ok");
    let pids = |status: &serde_json::Value| {
        let rows = status["processes"].as_array().expect("a list").clone();
        rows.iter().map(|row| row["pid"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(pids(&cluster.json(&["status"])), pids(&status));
}
