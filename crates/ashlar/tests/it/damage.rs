//! Tests that bytes that changed on a disk are detected and never returned as data.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{ASHLAR, Cluster, qemu_io_text, run, succeed, text_of, wait_for};

const PATTERN: u8 = 0xa7;

fn qemu_io(cluster: &Cluster, command: &str) -> String {
    qemu_io_text(cluster, "v", command)
}

/// Returns a stopped cluster with one OSD that holds 16 MiB of `PATTERN`.
fn cluster_with_data(name: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let text = qemu_io(&cluster, &format!("write -P {PATTERN} 0 16M"));
    assert!(text.contains("wrote 16777216/16777216"), "{text}");
    cluster.down();
    cluster
}

#[test]
fn a_flipped_data_byte_is_returned_as_an_error_never_as_data() {
    let cluster = cluster_with_data("flip");
    let path = cluster.osd_paths()[0].join("blocks");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("ours");
    // Writes of whole blocks bypass the journal, so search for one unit of the pattern backward from the end
    // of the file.
    let size = file.metadata().expect("open").len();
    let mut unit = [0; 4096];
    let mut offset = size - 4096;
    while unit != [PATTERN; 4096] {
        offset -= 4096;
        file.read_exact_at(&mut unit, offset).expect("inside");
    }
    file.write_all_at(&[PATTERN ^ 1], offset + 1000).expect("writable");
    file.sync_all().expect("writable");
    drop(file);
    let check = run(Command::new(ASHLAR).args(["osd", "check"]).arg(&cluster.osd_paths()[0]));
    assert_eq!(check.status.code(), Some(1), "{}", text_of(&check));

    cluster.start(&[]);
    let text = qemu_io(&cluster, &format!("read -P {PATTERN} 0 16M"));
    assert!(text.contains("Input/output error"), "{text}");
    assert!(!text.contains("Pattern verification failed"), "{text}");
    wait_for("the status to name it", || {
        let status = cluster.json(&["status"]);
        let checks = status["checks"].as_array().expect("a list").clone();
        checks.iter().any(|check| check["code"].as_str().is_some_and(|c| c.contains("damage")))
    });
    // Exactly one of 16 reads reports the damage, and writing its range again repairs it.
    let mut lost = Vec::new();
    for megabyte in 0..16u32 {
        let text = qemu_io(&cluster, &format!("read -P {PATTERN} {megabyte}M 1M"));
        assert!(!text.contains("Pattern verification failed"), "{text}");
        if text.contains("error") {
            lost.push(megabyte);
        }
    }
    assert_eq!(lost.len(), 1, "{lost:?}");
    let text = qemu_io(&cluster, &format!("write -P {PATTERN} {}M 1M", lost[0]));
    assert!(text.contains("wrote 1048576/1048576"), "{text}");
    let text = qemu_io(&cluster, &format!("read -P {PATTERN} 0 16M"));
    assert!(text.contains("read 16777216/16777216") && !text.contains("failed"), "{text}");
    cluster.check_osds();
}

/// Flips a bit in every 3 MiB of an OSD's file, starting at `offset`.
fn scatter(path: &Path, mut offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("ours");
    let size = file.metadata().expect("open").len();
    while offset < size {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + 77).expect("inside");
        file.write_all_at(&[byte[0] ^ 0x40], offset + 77).expect("writable");
        offset += 3 << 20;
    }
    file.sync_all().expect("writable");
}

/// Reads everything that was written, in 64 reads. Returns how many reads found the right data, and how many
/// failed.
fn read_pieces(cluster: &Cluster) -> (u32, u32) {
    let (mut right, mut errors) = (0, 0);
    for piece in 0..64 {
        let text = qemu_io(cluster, &format!("read -P {PATTERN} {}k 256k", piece * 256));
        assert!(!text.contains("Pattern verification failed"), "{text}");
        let is_error = text.contains("Input/output error");
        assert!(is_error || text.contains("read 262144/262144"), "{text}");
        right += u32::from(!is_error);
        errors += u32::from(is_error);
    }
    (right, errors)
}

#[test]
fn damage_anywhere_in_an_osd_file_is_never_returned_as_data() {
    let cluster = cluster_with_data("scatter");
    let osd = cluster.osd_paths()[0].clone();
    let found = succeed(Command::new(ASHLAR).args(["osd", "inspect", "--json"]).arg(&osd));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let data = found["data"]["offset"].as_u64().expect("a number");
    let is_damaged = || {
        let check = run(Command::new(ASHLAR).args(["osd", "check"]).arg(&osd));
        assert_eq!(check.status.code(), Some(1), "{}", text_of(&check));
    };
    // Only data is damaged: reads of the damaged ranges fail, all other reads succeed.
    scatter(&osd.join("blocks"), data);
    is_damaged();
    cluster.start(&[]);
    let (right, errors) = read_pieces(&cluster);
    assert!(right > 0 && errors > 0, "{right} pieces are right, {errors} errors");
    cluster.down();
    // Journal and checkpoints are damaged too: the damage covers everything after the superblocks.
    scatter(&osd.join("blocks"), 1 << 20);
    is_damaged();
    cluster.start(&[]);
    let (_, errors) = read_pieces(&cluster);
    assert!(errors > 0, "the damage hit nothing");
}

/// A lost part of the journal may have held acknowledged writes of any PG, so each PG refuses
/// requests until the operator accepts the loss.
#[test]
fn pgs_that_may_have_lost_writes_wait_for_a_give_up() {
    let cluster = Cluster::up("give-up", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let text = qemu_io(&cluster, &format!("write -P {PATTERN} 0 16M"));
    assert!(text.contains("wrote 16777216/16777216"), "{text}");
    cluster.kill_everything();
    let osd = cluster.osd_paths()[0].clone();
    let inspect = run(Command::new(ASHLAR).args(["osd", "inspect", "--json"]).arg(&osd));
    let found: Value = serde_json::from_slice(&inspect.stdout).expect("JSON");
    let number = |value: &Value| value.as_u64().expect("a number");
    let (head, tail) = (number(&found["journal_head"]), number(&found["journal_tail"]));
    assert!(tail - head > 64 << 10, "{found:#}");
    let middle = number(&found["journal"]["offset"]) + (head + (tail - head) / 2) / 4096 * 4096;
    let file = OpenOptions::new().write(true).open(osd.join("blocks")).expect("ours");
    file.write_all_at(&[0; 16 << 10], middle).and_then(|()| file.sync_all()).expect("writable");
    let check = run(Command::new(ASHLAR).args(["osd", "check", "--json"]).arg(&osd));
    assert_eq!(check.status.code(), Some(1), "{}", text_of(&check));
    assert!(text_of(&check).contains("row @G"), "{}", text_of(&check));

    cluster.start(&[]);
    let incomplete_in = |status: &Value| {
        let mut checks = status["checks"].as_array().expect("a list").iter();
        checks.find(|check| check["code"] == "pg_incomplete").cloned()
    };
    cluster.wait_status("its PGs to be incomplete", |status| incomplete_in(status).is_some());
    let status = cluster.json(&["status"]);
    assert_eq!(status["health"], "error", "{status:#}");
    assert_eq!(status["pgs"]["active"], 0, "{status:#}");
    let incomplete = incomplete_in(&status).expect("just seen");
    assert!(incomplete["hint"].as_str().expect("a text").contains("give-up"), "{incomplete}");
    let text = qemu_io(&cluster, "read 0 16M");
    assert!(text.contains("Input/output error"), "{text}");

    let pgs = cluster.json(&["pg", "ls"]);
    let pgs: Vec<&str> =
        pgs.as_array().expect("a list").iter().filter_map(|row| row["pg"].as_str()).collect();
    let state = |pg: &str| cluster.json(&["pg", "describe", pg]);
    let waits = state(pgs[0]);
    assert_eq!(waits["state"], "incomplete", "{waits}");
    assert!(waits["why"].as_str().is_some_and(|why| why.contains("no other copy")), "{waits}");
    let asked = cluster.refused(&["pg", "give-up", pgs[0]], "not_accepted");
    let message = asked["message"].as_str().expect("a text");
    assert!(message.contains("cannot be undone") && message.contains("(v)"), "{message}");
    assert!(asked["hint"].as_str().is_some_and(|hint| hint.contains("--yes")), "{asked}");
    assert_eq!(state(pgs[0])["state"], "incomplete", "asking changes nothing");
    cluster.run(&["pg", "give-up", pgs[0], "--yes"]);
    assert_eq!(state(pgs[0])["state"], "active", "answered when it is done");
    assert_eq!(state(pgs[1])["state"], "incomplete", "the others are not given up");
    for pg in &pgs[1..] {
        cluster.run(&["pg", "give-up", pg, "--yes"]);
    }
    cluster.wait_active();
    cluster.refused(&["pg", "give-up", pgs[0]], "invalid");
    cluster.wait_healthy();
    // Each block holds either the last write or its previous data.
    for _ in 0..2 {
        let copy = cluster.path().join("copy");
        succeed(Command::new("nbdcopy").arg(cluster.uri("v")).arg(&copy));
        let bytes = std::fs::read(&copy).expect("just written");
        let blocks: Vec<&[u8]> = bytes[..16 << 20].chunks(128 << 10).collect();
        let all = |block: &[u8], byte| block.iter().all(|b| *b == byte);
        assert!(blocks.iter().all(|block| all(block, PATTERN) || all(block, 0)));
        let kept = blocks.iter().filter(|block| all(block, PATTERN)).count();
        assert!(kept > 100, "{kept} of 128 blocks are left");
        // This stays true after a restart; accepted losses no longer count as damage.
        cluster.check_osds();
        cluster.start(&[]);
    }
}
