//! The life of clusters, pools and volumes.

use std::process::Command;

use crate::harness::{ASHLAR, Cluster, qemu_io, run, succeed, text_of, wait_for};

#[test]
fn everything_is_intact_after_a_restart() {
    let cluster = Cluster::up("restart", &["--osds", "3", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x31 0 33M"]);
    let volumes = cluster.json(&["volume", "ls"]);
    let pools = cluster.json(&["pool", "ls"]);
    let again = run(Command::new(ASHLAR).args(["up", "--detach", "--dir"]).arg(cluster.path()));
    assert!(again.status.success());
    assert!(text_of(&again).contains("is running"), "{}", text_of(&again));
    cluster.check_osds();
    cluster.start(&[]);
    assert_eq!(cluster.json(&["volume", "ls"]), volumes);
    assert_eq!(cluster.json(&["pool", "ls"]), pools);
    qemu_io(&cluster, "v", &["read -P 0x31 0 33M"]);
    cluster.down();
    cluster.down();
}

#[test]
fn status_answers_for_a_healthy_cluster() {
    let cluster = Cluster::up("status", &["--osds", "2", "--osd-size", "256MiB"]);
    let status = cluster.json(&["status"]);
    assert_eq!(status["health"], "ok", "{status:#}");
    let checks = status["checks"].as_array().expect("a list");
    assert!(checks.iter().all(|check| check["severity"] == "info"), "{status:#}");
    assert!(checks.iter().any(|check| check["message"].as_str().unwrap_or("").contains("copy")));
    assert_eq!(status["osds"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["pgs"]["total"], status["pgs"]["active"]);
    assert_eq!(status["recovery"]["bytes_left"], 0);
    assert_eq!(cluster.json(&["osd", "ls"]), status["osds"]);
    let screen = cluster.run(&["status"]);
    assert!(screen.contains("health") && screen.contains("2 of 2 up"), "{screen}");
    assert!(cluster.command(&["check"]).status().expect("runs").success());
    assert!(cluster.json(&["config", "ls"]).as_array().is_some_and(|rows| !rows.is_empty()));
    let keys = cluster.json(&["state", "ls"]);
    assert!(keys.as_array().is_some_and(|keys| keys.len() > 3), "{keys}");
}

#[test]
fn a_volume_is_made_resized_and_removed() {
    let cluster = Cluster::up("volume", &["--osds", "2", "--osd-size", "256MiB"]);
    let used = || {
        let rows = cluster.json(&["osd", "ls"]);
        rows.as_array().expect("a list").iter().map(|r| r["used_bytes"].as_u64().unwrap_or(1)).sum()
    };
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    assert_eq!(cluster.refused(&["volume", "create", "v", "--size", "1GiB"])["code"], "exists");
    qemu_io(&cluster, "v", &["write -P 9 0 32M"]);

    cluster.run(&["volume", "resize", "v", "64MiB"]);
    assert_eq!(cluster.json(&["volume", "info", "v"])["size_bytes"], 64 << 20);
    qemu_io(&cluster, "v", &["write -P 8 32M 32M"]);

    cluster.refused(&["volume", "resize", "v", "16MiB"]);
    wait_for("the session to end", || {
        run(&mut cluster.command(&["volume", "resize", "v", "16MiB", "--shrink"])).status.success()
    });
    wait_for("the cut part's space to be free", || {
        let used: u64 = used();
        used <= 17 << 20
    });
    // Grown again, the cut part is zeros, not what was there before.
    wait_for("the shrinking to be done", || {
        run(&mut cluster.command(&["volume", "resize", "v", "64MiB"])).status.success()
    });
    qemu_io(&cluster, "v", &["read -P 0 16M 48M"]);
    qemu_io(&cluster, "v", &["read -P 9 0 16M"]);

    wait_for("the session to end", || {
        run(&mut cluster.command(&["volume", "rm", "v"])).status.success()
    });
    assert_eq!(cluster.refused(&["volume", "info", "v"])["code"], "not_found");
    wait_for("all space to be free", || {
        let used: u64 = used();
        used == 0
    });
    // The name is free, and the new volume is empty.
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    qemu_io(&cluster, "v", &["read -P 0 0 32M"]);
    cluster.check_osds();
}

#[test]
fn an_attached_volume_is_not_removed() {
    let cluster = Cluster::up("attached", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).arg(cluster.uri("v"));
    qemu.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut qemu = qemu.spawn().expect("starts");
    wait_for("the volume to be attached", || {
        cluster.json(&["volume", "info", "v"])["attached"] == 1
    });
    assert_eq!(cluster.refused(&["volume", "rm", "v"])["code"], "busy");
    drop(qemu.stdin.take());
    qemu.wait().expect("it ends");
    wait_for("the removal to be allowed", || {
        run(&mut cluster.command(&["volume", "rm", "v"])).status.success()
    });
}

#[test]
fn pools_have_their_own_block_sizes() {
    let cluster = Cluster::up("pools", &["--osds", "2", "--osd-size", "512MiB"]);
    let create = ["pool", "create", "small", "--failure-domain", "osd", "--block-size", "16KiB"];
    cluster.run(&create);
    let create = ["pool", "create", "large", "--failure-domain", "osd", "--block-size", "1MiB"];
    cluster.run(&create);
    assert_eq!(cluster.json(&["pool", "ls"]).as_array().map(Vec::len), Some(3));
    assert!(cluster.refused(&["volume", "create", "v", "--size", "1GiB"])["hint"].is_string());
    for pool in ["small", "large"] {
        cluster.run(&["volume", "create", pool, "--size", "32MiB", "--pool", pool]);
    }
    cluster.wait_active();
    for pool in ["small", "large"] {
        qemu_io(&cluster, pool, &["write -P 0x42 3000 20M"]);
        qemu_io(&cluster, pool, &["read -P 0x42 3000 20M"]);
    }
    cluster.check_osds();
}

#[test]
fn a_raw_device_is_an_osd_too() {
    let cluster = Cluster::up("device", &["--osds", "1", "--osd-size", "256MiB"]);
    let backing = cluster.path().join("backing");
    std::fs::File::create(&backing).and_then(|file| file.set_len(512 << 20)).expect("writable");
    let losetup = run(Command::new("losetup").args(["--find", "--show"]).arg(&backing));
    assert!(losetup.status.success(), "loop devices are needed: {}", text_of(&losetup));
    let device = String::from_utf8_lossy(&losetup.stdout).trim().to_owned();
    let created = cluster.json(&["osd", "create", &device]);
    assert_eq!(created["size_bytes"].as_u64(), Some(512 << 20), "{created}");
    let mut daemon = cluster.command(&["osd", "run", &device]).spawn().expect("starts");
    let id = created["id"].as_u64().expect("a number");
    wait_for("the OSD to be up", || {
        let rows = cluster.json(&["osd", "ls"]);
        rows.as_array().expect("a list").iter().any(|row| row["id"] == id && row["up"] == true)
    });
    cluster.run(&["pool", "create", "wide", "--failure-domain", "osd", "--pgs", "16"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "wide"]);
    qemu_io(&cluster, "v", &["write -P 0x66 0 64M"]);
    qemu_io(&cluster, "v", &["read -P 0x66 0 64M"]);
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    daemon.wait().expect("it ends");
    succeed(Command::new(ASHLAR).args(["osd", "check", &device]));
    succeed(Command::new("losetup").args(["-d", &device]));
}
