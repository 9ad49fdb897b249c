//! Tests of the life cycle of clusters, pools and volumes.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    ASHLAR, Cluster, Directory, QemuIo, assert_qemu_io, kill_9, qemu_io, refused, run, succeed,
    text_of, wait_for,
};

/// Returns the rows of a list without the columns that change while clients work.
fn lasting(mut list: Value) -> Value {
    for row in list.as_array_mut().expect("a list") {
        let row = row.as_object_mut().expect("a row");
        row.retain(|name, _| {
            !["io", "used_bytes", "available_bytes", "engine"].contains(&&name[..])
        });
    }
    list
}

#[test]
fn everything_is_intact_after_a_restart() {
    let cluster = Cluster::up("restart", &["--osds", "3", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x31 0 33M"]);
    wait_for("the session to end", || cluster.json(&["volume", "info", "v"])["attached"] == 0);
    let volumes = lasting(cluster.json(&["volume", "ls"]));
    let pools = lasting(cluster.json(&["pool", "ls"]));
    let again = run(Command::new(ASHLAR)
        .args(["up", "--no-gateway", "--detach", "--dir"])
        .arg(cluster.path()));
    assert!(again.status.success());
    assert!(text_of(&again).contains("is running"), "{}", text_of(&again));
    // While the cluster runs, another `up` can add OSDs; it adds none if their size is invalid.
    let larger = |size: &str| {
        let mut larger = Command::new(ASHLAR);
        larger.args([
            "up",
            "--no-gateway",
            "--detach",
            "--json",
            "--osds",
            "4",
            "--osd-size",
            size,
            "--dir",
        ]);
        larger.arg(cluster.path());
        larger
    };
    refused(&mut larger("4KiB"), "invalid");
    let osds = || cluster.json(&["osd", "ls"]).as_array().map(Vec::len);
    assert_eq!(osds(), Some(3));
    succeed(&mut larger("256MiB"));
    assert_eq!(osds(), Some(4));
    cluster.wait_osd(4, true);
    cluster.wait_clean();
    cluster.check_osds();
    cluster.start(&[]);
    assert_eq!(lasting(cluster.json(&["volume", "ls"])), volumes);
    assert_eq!(lasting(cluster.json(&["pool", "ls"])), pools);
    qemu_io(&cluster, "v", &["read -P 0x31 0 33M"]);
    cluster.down();
    cluster.down();
}

#[test]
fn status_describes_a_healthy_cluster() {
    let cluster = Cluster::up("status", &["--osds", "2", "--osd-size", "256MiB"]);
    cluster.wait_healthy();
    let status = cluster.json(&["status"]);
    assert_eq!(status["health"], "ok", "{status:#}");
    let checks = status["checks"].as_array().expect("a list");
    assert!(checks.is_empty(), "{status:#}");
    assert_eq!(status["osds"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["pgs"]["total"], status["pgs"]["active"]);
    assert_eq!(status["recovery"]["bytes_left"], 0);
    assert_eq!(lasting(cluster.json(&["osd", "ls"])), lasting(status["osds"].clone()));
    let screen = cluster.run(&["status"]);
    assert!(screen.contains("health") && screen.contains("2 of 2 up"), "{screen}");
    assert!(cluster.command(&["check"]).status().expect("runs").success());
    assert!(cluster.json(&["config", "ls"]).as_array().is_some_and(|rows| !rows.is_empty()));
    let keys = cluster.json(&["state", "ls"]);
    assert!(keys.as_array().is_some_and(|keys| keys.len() > 3), "{keys}");
}

#[test]
fn a_volume_is_created_resized_and_removed() {
    let cluster = Cluster::up("volume", &["--osds", "2", "--osd-size", "256MiB"]);
    let used = || {
        let rows = cluster.json(&["osd", "ls"]);
        rows.as_array().expect("a list").iter().map(|r| r["used_bytes"].as_u64().unwrap_or(1)).sum()
    };
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    cluster.refused(&["volume", "create", "v", "--size", "1GiB"], "exists");
    qemu_io(&cluster, "v", &["write -P 9 0 32M"]);

    cluster.run(&["volume", "resize", "v", "64MiB"]);
    assert_eq!(cluster.json(&["volume", "info", "v"])["size_bytes"], 64 << 20);
    qemu_io(&cluster, "v", &["write -P 8 32M 32M"]);

    cluster.refused(&["volume", "resize", "v", "16MiB"], "invalid");
    wait_for("the session to end", || {
        run(&mut cluster.command(&["volume", "resize", "v", "16MiB", "--shrink"])).status.success()
    });
    wait_for("the cut part's space to be free", || {
        let used: u64 = used();
        used <= (2 * 17) << 20
    });
    // After the volume has grown again, the part that was cut off reads as zeros.
    wait_for("the shrinking to be done", || {
        run(&mut cluster.command(&["volume", "resize", "v", "64MiB"])).status.success()
    });
    qemu_io(&cluster, "v", &["read -P 0 16M 48M"]);
    qemu_io(&cluster, "v", &["read -P 9 0 16M"]);

    wait_for("the session to end", || {
        run(&mut cluster.command(&["volume", "rm", "v"])).status.success()
    });
    cluster.refused(&["volume", "info", "v"], "not_found");
    wait_for("all space to be free", || {
        let used: u64 = used();
        used == 0
    });
    // The name can be used again, and the new volume is empty.
    cluster.run(&["volume", "create", "v", "--size", "32MiB"]);
    qemu_io(&cluster, "v", &["read -P 0 0 32M"]);
    cluster.check_osds();
}

#[test]
fn an_attached_volume_cannot_be_removed() {
    let cluster = Cluster::up("attached", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let mut qemu = QemuIo::open(&["-f", "raw", &cluster.uri("v")]);
    qemu.ask("write -P 7 0 1M");
    assert_eq!(cluster.json(&["volume", "info", "v"])["attached"], 1);
    cluster.refused(&["volume", "rm", "v"], "busy");
    cluster.refused(&["volume", "resize", "v", "8MiB", "--shrink"], "busy");
    // Growing the volume is harmless.
    cluster.run(&["volume", "resize", "v", "32MiB"]);
    qemu.ask("read -P 7 0 1M");
    qemu.close();
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
    cluster.refused(&["volume", "create", "v", "--size", "1GiB"], "invalid");
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
fn up_reports_what_it_does_and_its_progress() {
    let cluster = Cluster { directory: Directory::new("progress") };
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--detach", "--osds", "2", "--osd-size", "256MiB", "--dir"]);
    let output = run(up.arg(cluster.path()));
    assert!(output.status.success(), "{}", text_of(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    let mut rest = &lines[..];
    for expected in [
        "starting the monitor",
        "creating OSD 1 of 2",
        "creating OSD 1 of 2: 100% of ",
        "osd.1: 256 MiB at ",
        "creating OSD 2 of 2: 100% of ",
        "osd.2: 256 MiB at ",
        "starting 2 OSDs",
    ] {
        let found = rest.iter().position(|line| line.starts_with(expected));
        let found = found.unwrap_or_else(|| panic!("{expected:?} is missing, or early: {said}"));
        rest = &rest[found + 1..];
    }
    assert!(!said.contains('\u{1b}'), "plain lines without a terminal: {said:?}");
    let next = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(next.contains("is up") && next.contains("volume create"), "{next}");
}

#[test]
fn up_keeps_existing_osds_and_adds_missing_ones() {
    let cluster = Cluster::up("keep", &["--osds", "2", "--osd-size", "256MiB"]);
    let ids = || {
        let rows = cluster.json(&["osd", "ls"]);
        let ids = rows.as_array().expect("a list").iter().map(|row| row["id"].clone());
        ids.collect::<Vec<Value>>()
    };
    let up = |arguments: &[&str], expected: &[u64]| {
        cluster.down();
        cluster.start(arguments);
        assert_eq!(ids(), expected, "{arguments:?}");
    };
    up(&[], &[1, 2]);
    up(&["--osds", "1"], &[1, 2]);
    up(&["--osds", "3", "--osd-size", "128MiB"], &[1, 2, 3]);
    up(&[], &[1, 2, 3]);
    let sizes = cluster
        .osd_paths()
        .into_iter()
        .map(|path| std::fs::metadata(path.join("blocks")).expect("an OSD").len() >> 20);
    assert_eq!(sizes.collect::<Vec<u64>>(), [256, 256, 128]);
}

#[test]
fn up_refuses_an_osd_under_the_name_of_another_at_once() {
    let cluster = Cluster::up("misplaced", &["--osds", "2", "--osd-size", "128MiB"]);
    cluster.down();
    let [first, second] = [1, 2].map(|osd| cluster.path().join(format!("osd.{osd}")));
    std::fs::remove_dir_all(&first).expect("a directory");
    std::fs::rename(&second, &first).expect("a directory");
    let began = std::time::Instant::now();
    let up = || {
        let mut up = Command::new(ASHLAR);
        up.args(["up", "--detach", "--json", "--dir"]).arg(cluster.path());
        refused(&mut up, "misplaced")
    };
    let error = up();
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let text = error.to_string();
    for part in ["osd.1 holds osd.2, not osd.1", &format!("rename it to {}", second.display())] {
        assert!(text.contains(part), "{part}: {text}");
    }
    std::fs::rename(&first, &second).expect("a directory");
    cluster.start(&[]);
    cluster.wait_osd(2, true);
}

#[test]
fn up_killed_while_it_creates_an_osd_resumes_where_it_was() {
    let cluster = Cluster { directory: Directory::new("cut-short") };
    // The size is large enough that `up` is killed long before it has finished.
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--osds", "1", "--osd-size", "16GiB", "--dir"])
        .arg(cluster.path());
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let half = cluster.path().join("osd.1/blocks.new");
    wait_for("the making to begin", || half.metadata().is_ok_and(|found| found.blocks() > 0));
    up.kill().and_then(|()| up.wait()).expect("ours");
    wait_for("its children to end", || cluster.processes().is_empty());
    assert!(half.exists() && !cluster.path().join("osd.1/blocks").exists());

    cluster.start(&["--osds", "2", "--osd-size", "256MiB"]);
    let rows = cluster.json(&["osd", "ls"]);
    let ids: Vec<&Value> = rows.as_array().expect("a list").iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [1, 2], "the id of the incomplete OSD is not lost: {rows:#}");
    assert!(!half.exists() && !cluster.path().join("unfinished-osd").exists());
    let size = std::fs::metadata(cluster.path().join("osd.1/blocks")).expect("made anew").len();
    assert_eq!(size, 256 << 20);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 5 0 64M", "flush", "read -P 5 0 64M"]);
    cluster.check_osds();
}

#[test]
fn an_osd_that_does_not_start_blocks_only_its_own_data() {
    let cluster = Cluster::up("dead-osd", &["--osds", "2", "--osd-size", "256MiB"]);
    let create = ["pool", "create", "single", "--replicas", "1", "--failure-domain", "osd"];
    cluster.run(&create);
    cluster.wait_active();
    cluster.run(&["volume", "create", "v", "--size", "16MiB", "--pool", "single"]);
    qemu_io(&cluster, "v", &["write -P 5 0 16M", "flush"]);
    cluster.down();
    let blocks = cluster.path().join("osd.1/blocks");
    let size = blocks.metadata().expect("an OSD").len();
    std::fs::File::create(&blocks).and_then(|file| file.set_len(size)).expect("ours");

    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--detach", "--restart-after", "50ms", "--dir"])
        .arg(cluster.path());
    let output = run(&mut up);
    assert!(output.status.success(), "{}", text_of(&output));
    let said = text_of(&output);
    for told in ["osd.1 failed to start", "no OSD found", "osd.1.log", "osd start osd.1"] {
        assert!(said.contains(told), "{told}: {said}");
    }
    cluster.refused(&["osd", "start", "1"], "died");
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--detach", "--json", "--dir"]).arg(cluster.path());
    let ready: Value = serde_json::from_str(&succeed(&mut up)).expect("JSON");
    assert_eq!(ready["osds_failed"], serde_json::json!([1]), "{ready}");
    cluster.wait_status("an OSD to be missed", |status| status["health"] == "error");
    let status = cluster.json(&["status"]);
    let checks = status["checks"].as_array().expect("a list");
    let down = checks.iter().find(|check| check["code"] == "osd_down").expect("it is named");
    assert!(down["message"].as_str().expect("a text").contains("osd.1 is down"), "{down}");
    assert!(down["hint"].as_str().expect("a text").contains("log"), "{down}");

    // `up` retries at growing intervals, and reports when it will retry.
    wait_for("an OSD that is tried again later", || {
        let status = cluster.json(&["status"]);
        let ended = status["ended"].as_array().expect("a list");
        let child = ended.iter().find(|child| child["child"] == "osd.1");
        child.is_some_and(|child| {
            child["status"] == "exit status: 1" && child["again_in_ms"].is_u64()
        })
    });

    // The data on the other OSD is still served.
    let is_as_it_should_be =
        |row: &Value| row["state"] == if row["primary"] == 1 { "down" } else { "active" };
    wait_for("each PG to be down or served", || {
        let rows = cluster.json(&["pg", "ls", "--pool", "single"]);
        rows.as_array().expect("a list").iter().all(is_as_it_should_be)
    });
    let mut blocks = 0..128;
    assert!(blocks.any(|block| is_read(&cluster, block)), "half of them lie on osd.2");
}

/// Returns whether a block of 128 KiB of volume `v`, which is filled with the pattern 5, can be read without
/// a long wait.
fn is_read(cluster: &Cluster, block: u64) -> bool {
    let mut qemu = Command::new("qemu-io");
    // Use read-only mode: otherwise qemu-io flushes at the end, which waits for every OSD.
    qemu.args(["-r", "-f", "raw", "-c", &format!("read -P 5 {}k 4k", block * 128)]);
    let child = qemu.arg(cluster.uri("v")).stdout(Stdio::piped()).spawn().expect("installed");
    let pid = child.id();
    let (sender, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = answer.recv_timeout(Duration::from_secs(5)) else {
        kill_9(pid);
        return false;
    };
    assert_qemu_io(&output.expect("readable"), 1);
    true
}

#[test]
fn the_cluster_is_found_by_option_by_variable_and_by_default() {
    let home = Directory::new("find");
    let cluster = Cluster { directory: home };
    // Does the same as `make up`: uses `.ashlar` in the current directory.
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--no-gateway", "--detach", "--osds", "1", "--osd-size", "256MiB"]);
    succeed(up.current_dir(cluster.path()));
    let directory = cluster.path().join(".ashlar");
    let below = cluster.path().join("a/b");
    std::fs::create_dir_all(&below).expect("writable");
    let volumes = |configure: &dyn Fn(&mut Command)| {
        let mut command = Command::new(ASHLAR);
        command.args(["volume", "ls", "--json"]).current_dir("/").env_remove("ASHLAR_CLUSTER");
        configure(&mut command);
        command
    };
    let mut create = Command::new(ASHLAR);
    create.args(["volume", "create", "here", "--size", "1GiB"]);
    succeed(create.current_dir(cluster.path()));
    let ways: [&dyn Fn(&mut Command); 5] = [
        &|command| _ = command.current_dir(&below),
        &|command| _ = command.arg("--cluster").arg(&directory),
        &|command| _ = command.arg("--cluster").arg(directory.join("cluster.toml")),
        &|command| _ = command.env("ASHLAR_CLUSTER", &directory),
        &|command| _ = command.env("ASHLAR_CLUSTER", directory.join("cluster.toml")),
    ];
    for way in ways {
        let text = succeed(&mut volumes(way));
        assert!(text.contains("\"here\""), "{text}");
    }
    // An explicit path takes precedence over a directory that would be found.
    refused(volumes(&|_| {}).current_dir("/"), "no_cluster");
    refused(volumes(&|_| {}).current_dir(&below).arg("--cluster").arg(&below), "no_cluster");
    refused(volumes(&|_| {}).current_dir(&below).env("ASHLAR_CLUSTER", &below), "no_cluster");
    let mut named = volumes(&|_| {});
    named.env("ASHLAR_CLUSTER", &below).arg("--cluster").arg(&directory);
    succeed(&mut named);
    let mut down = Command::new(ASHLAR);
    succeed(down.arg("down").current_dir(cluster.path()));
    refused(&mut volumes(&|command| _ = command.current_dir(&below)), "unreachable");
}
