//! Tests that disks are examined before they are used and are never overwritten by mistake.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base::crc32c;
use format::disk::{FORMAT_VERSION, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE};
use serde_json::Value;

use crate::harness::{ASHLAR, Cluster, Directory, LoopDevice, qemu_io, run, succeed, text_of};

/// Asserts that `osd check`, `osd inspect` and `osd run` all refuse the file with this code.
fn refused_by_all(cluster: &Cluster, osd: &Path, code: &str) -> Value {
    let path = osd.display().to_string();
    cluster.refused(&["osd", "check", &path], code);
    cluster.refused(&["osd", "inspect", &path], code);
    cluster.refused(&["osd", "run", &path], code)
}

fn message(error: &Value) -> &str {
    error["message"].as_str().expect("a text")
}

fn open(osd: &Path) -> File {
    let blocks = osd.join("blocks");
    OpenOptions::new().read(true).write(true).open(blocks).expect("a file")
}

#[test]
fn files_that_are_not_an_osd_are_refused() {
    let cluster = Cluster::up("disks", &["--osds", "1", "--osd-size", "256MiB"]);
    let sound = cluster.osd_paths()[0].clone();
    cluster.run(&["osd", "stop", "1"]);
    let scratch = Directory::new("disks-foreign");
    let osd = scratch.path();
    refused_by_all(&cluster, Path::new("/nonexistent"), "io");
    refused_by_all(&cluster, osd, "io");
    let write = |bytes: &[u8]| fs::write(osd.join("blocks"), bytes).expect("writable");
    write(b"");
    refused_by_all(&cluster, osd, "not_a_store");
    write(&[0x55; 1 << 20]);
    refused_by_all(&cluster, osd, "not_a_store");
    // Write the beginning of an OSD's file, truncated within the superblock and after it.
    let mut start = vec![0; 1 << 19];
    open(&sound).read_exact_at(&mut start, 0).expect("long");
    for length in [11, 100, SUPERBLOCK_SIZE - 1] {
        write(&start[..length]);
        refused_by_all(&cluster, osd, "not_a_store");
    }
    for length in [SUPERBLOCK_SIZE, 1 << 19] {
        write(&start[..length]);
        let path = osd.display().to_string();
        cluster.refused(&["osd", "check", &path], "not_a_store");
        cluster.refused(&["osd", "inspect", &path], "not_a_store");
        let error = cluster.refused(&["osd", "run", &path], "store");
        assert!(message(&error).contains("blocks") || message(&error).contains("byte"), "{error}");
    }
    // The real OSD has not lost anything.
    cluster.run(&["osd", "start", "1"]);
    cluster.wait_active();
    cluster.check_osds();
}

#[test]
fn damaged_headers_are_refused_but_one_good_copy_is_enough() {
    let cluster = Cluster::up("headers", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x21 0 16M"]);
    cluster.run(&["osd", "stop", "1"]);
    let osd = cluster.osd_paths()[0].clone();
    let file = open(&osd);
    let mut copies = [[0; SUPERBLOCK_SIZE]; 2];
    for (copy, offset) in copies.iter_mut().zip(SUPERBLOCK_OFFSETS) {
        file.read_exact_at(copy, offset).expect("long");
    }
    let write = |copies: &[[u8; SUPERBLOCK_SIZE]; 2]| {
        for (copy, offset) in copies.iter().zip(SUPERBLOCK_OFFSETS) {
            file.write_all_at(copy, offset).expect("writable");
        }
    };
    // One bit is flipped in both copies.
    for byte in [0, 9, 13, 40, 100, SUPERBLOCK_SIZE - 1] {
        let mut damaged = copies;
        for copy in &mut damaged {
            copy[byte] ^= 0x10;
        }
        write(&damaged);
        let error = refused_by_all(&cluster, &osd, "not_a_store");
        assert!(message(&error).contains("blocks"), "{error}");
    }
    // The format is newer, but both copies are valid.
    let mut newer = copies;
    for copy in &mut newer {
        copy[12..16].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        let sum = crc32c(&copy[12..]).get();
        copy[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    write(&newer);
    let error = refused_by_all(&cluster, &osd, "newer_format");
    assert!(message(&error).contains("newer"), "{error}");
    // Either one of the two copies is enough; the damaged one is rewritten.
    for damaged in [0, 1] {
        let mut one = copies;
        one[damaged] = [0xee; SUPERBLOCK_SIZE];
        write(&one);
        cluster.run(&["osd", "start", "1"]);
        cluster.wait_active();
        qemu_io(&cluster, "v", &["read -P 0x21 0 16M"]);
        cluster.run(&["osd", "stop", "1"]);
        cluster.check_stopped_osds();
        for (copy, offset) in copies.iter_mut().zip(SUPERBLOCK_OFFSETS) {
            file.read_exact_at(copy, offset).expect("long");
        }
    }
}

#[test]
fn a_disk_of_another_cluster_is_refused() {
    let cluster = Cluster::up("ours", &["--osds", "1", "--osd-size", "256MiB"]);
    let other = Cluster::up("theirs", &["--osds", "1", "--osd-size", "256MiB"]);
    other.run(&["osd", "stop", "1"]);
    let osd = other.osd_paths()[0].display().to_string();
    let error = cluster.refused(&["osd", "run", &osd], "store");
    assert!(message(&error).contains("cluster"), "{error}");
    other.run(&["osd", "start", "1"]);
    other.wait_active();
    other.check_osds();
}

#[test]
fn a_second_daemon_on_the_same_disk_is_refused() {
    let cluster = Cluster::up("second", &["--osds", "1", "--osd-size", "256MiB"]);
    let device = LoopDevice::new(cluster.path(), "backing", 256 << 20);
    let created = cluster.json(&["osd", "create", &device.path]);
    let mut daemon = start_daemon(&cluster, &device);
    cluster.wait_osd(created["id"].as_u64().expect("a number"), true);
    let rows = || {
        let mut rows = cluster.json(&["osd", "ls"]);
        // Ignore the used space and the turns of the loop: they change with each report.
        for row in rows.as_array_mut().expect("a list") {
            (row["used_bytes"], row["turns"]) = (Value::Null, Value::Null);
        }
        rows
    };
    let before = rows();
    for path in [cluster.osd_paths()[0].display().to_string(), device.path.clone()] {
        let error = cluster.refused(&["osd", "run", &path], "busy");
        assert!(message(&error).contains("in use"), "{error}");
        cluster.refused(&["osd", "check", &path], "busy");
        cluster.refused(&["osd", "inspect", &path], "busy");
        cluster.refused(&["osd", "create", &path, "--size", "256MiB"], "exists");
    }
    assert_eq!(rows(), before);
    terminate(&mut daemon);
    succeed(Command::new(ASHLAR).args(["osd", "check", &device.path]));
    cluster.check_osds();
}

#[test]
fn devices_with_foreign_data_are_refused_and_left_alone() {
    let cluster = Cluster::up("foreign", &["--osds", "1", "--osd-size", "256MiB"]);
    let size = 256 << 20;
    let counter = cluster.json(&["state", "get", "counter/osd"]);
    let ext4 = |device: &str| {
        succeed(Command::new("/usr/sbin/mke2fs").args(["-q", "-t", "ext4", device]));
    };
    let write = |device: &str, offset: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(device).expect("a device");
        file.write_all_at(bytes, offset).and_then(|()| file.sync_all()).expect("writable");
    };
    // The backup GPT in the last sector; the primary GPT is wiped.
    let gpt = |device: &str| write(device, size - 512, b"EFI PART\0\0\x01\0");
    // The magic of btrfs, at the offset of its superblock.
    let btrfs = |device: &str| write(device, (64 << 10) + 64, b"_BHRfS_M");
    // An OSD that was created earlier.
    let osd = |device: &str| drop(cluster.json(&["osd", "create", device]));
    let makers: [&dyn Fn(&str); 4] = [&ext4, &gpt, &btrfs, &osd];
    for (name, make) in ["ext4", "gpt", "btrfs", "osd"].into_iter().zip(makers) {
        let device = LoopDevice::new(cluster.path(), name, size);
        make(&device.path);
        let bytes = || fs::read(&device.path).expect("readable");
        let (before, osds) = (bytes(), cluster.json(&["osd", "ls"]));
        assert!(before.iter().any(|byte| *byte != 0));
        cluster.refused(&["osd", "create", &device.path], "exists");
        assert!(bytes() == before, "{name}: bytes were changed");
        let after = cluster.json(&["osd", "ls"]);
        let count = |rows: &Value| rows.as_array().map(Vec::len);
        assert_eq!(count(&after), count(&osds), "{name}: no OSD was registered");
    }
    // Only the OSD that was created received an id.
    let last = |row: &Value| row["value"]["last"].as_u64();
    let after = cluster.json(&["state", "get", "counter/osd"]);
    assert_eq!(last(&after), last(&counter).map(|last| last + 1), "{after}");
}

#[test]
fn a_refused_create_leaves_nothing_behind() {
    let cluster = Cluster::up("phantom", &["--osds", "1", "--osd-size", "256MiB"]);
    let before = (cluster.json(&["osd", "ls"])[0]["id"].clone(), cluster.json(&["state", "ls"]));
    let fresh = cluster.path().join("fresh");
    let path = fresh.display().to_string();
    let file = cluster.path().join("cluster.toml").display().to_string();
    let osd = cluster.osd_paths()[0].display().to_string();
    for (arguments, code) in [
        (&["osd", "create", &path][..], "invalid"),
        (&["osd", "create", &path, "--size", "0"], "invalid"),
        (&["osd", "create", &path, "--size", "64MiB"], "invalid"),
        (&["osd", "create", &path, "--size", "16777215TiB"], "invalid"),
        (&["osd", "create", "/proc/nothing", "--size", "256MiB"], "io"),
        (&["osd", "create", &file, "--size", "256MiB"], "exists"),
        (&["osd", "create", &osd, "--size", "256MiB"], "exists"),
    ] {
        cluster.refused(arguments, code);
        let entries = fs::read_dir(&fresh).map(|entries| entries.flatten().count());
        assert_eq!(entries.unwrap_or(0), 0, "{arguments:?}");
    }
    let after = (cluster.json(&["osd", "ls"])[0]["id"].clone(), cluster.json(&["state", "ls"]));
    assert_eq!(after, before);
}

#[test]
fn an_osd_runs_on_a_raw_device() {
    let cluster = Cluster::up("device", &["--osds", "1", "--osd-size", "256MiB"]);
    let device = LoopDevice::new(cluster.path(), "backing", 512 << 20);
    let created = cluster.json(&["osd", "create", &device.path]);
    assert_eq!(created["size_bytes"].as_u64(), Some(512 << 20), "{created}");
    let mut daemon = start_daemon(&cluster, &device);
    cluster.wait_osd(created["id"].as_u64().expect("a number"), true);
    cluster.run(&["pool", "create", "wide", "--failure-domain", "osd", "--pgs", "16"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "wide"]);
    qemu_io(&cluster, "v", &["write -P 0x66 0 64M"]);
    qemu_io(&cluster, "v", &["read -P 0x66 0 64M"]);
    terminate(&mut daemon);
    let check = run(Command::new(ASHLAR).args(["osd", "check", &device.path, "--json"]));
    assert!(check.status.success(), "{}", text_of(&check));
    let report: Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!(report["clean"], true, "{report:#}");
    assert!(report["units_checked"].as_u64() > Some(0), "the device holds a part of the volume");
}

fn start_daemon(cluster: &Cluster, device: &LoopDevice) -> Child {
    let mut daemon = cluster.command(&["osd", "run", &device.path]);
    daemon.stderr(Stdio::null()).spawn().expect("starts")
}

fn terminate(daemon: &mut Child) {
    let pid = rustix::process::Pid::from_child(daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(daemon.wait().expect("it ends").success());
}
