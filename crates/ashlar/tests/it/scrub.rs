//! Tests that scrubs find bytes that changed on a disk, repair them from other copies or parts, and remember
//! what they cannot repair.
//!
//! A new cluster has a pool `default` with 2 copies on 3 OSDs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Cluster, qemu_io, qemu_io_text, wait_for};
use crate::replication::three;

const SOUND: u8 = 0xa7;
const DOOMED: u8 = 0x5b;

/// Changes a byte in up to `count` units of this pattern in an OSD's file. Returns how many it changed.
fn corrupt(osd: &Path, pattern: u8, count: usize) -> usize {
    let file = OpenOptions::new().read(true).write(true).open(osd.join("blocks")).expect("ours");
    let size = file.metadata().expect("open").len() as usize;
    let mut chunk = vec![0; 1 << 20];
    let mut changed = 0;
    for start in (0..size).step_by(chunk.len()).rev() {
        let length = chunk.len().min(size - start);
        file.read_exact_at(&mut chunk[..length], start as u64).expect("inside");
        for (index, unit) in chunk[..length].chunks_exact(4096).enumerate() {
            if changed < count && unit.iter().all(|byte| *byte == pattern) {
                let at = start + index * 4096 + 1000;
                file.write_all_at(&[pattern ^ 1], at as u64).expect("writable");
                changed += 1;
            }
        }
    }
    file.sync_all().expect("writable");
    changed
}

fn check_of(status: &Value, code: &str) -> Option<Value> {
    let checks = status["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["code"] == code).cloned()
}

/// Runs a deep scrub of the pool to its end: waits until every PG has finished a scrub that began after this
/// call.
pub fn scrub(cluster: &Cluster, pool: &str) {
    let pgs = cluster.json(&["pg", "ls", "--pool", pool]);
    let names: Vec<String> = (pgs.as_array().expect("a list").iter())
        .map(|pg| pg["pg"].as_str().expect("an id").into())
        .collect();
    let deep_at = |pg: &String| {
        let row = cluster.json(&["pg", "describe", pg]);
        match row["scrub"]["running"].is_null() {
            true => row["scrub"]["deep_at"].as_u64(),
            false => None,
        }
    };
    // Scrub times have a resolution of one second.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let before: Vec<Option<u64>> = names.iter().map(&deep_at).collect();
    let answer = cluster.json(&["pool", "scrub", pool, "--deep"]);
    assert_eq!(answer["asked"], names.len(), "{answer}");
    wait_for("every PG to be scrubbed", || {
        names
            .iter()
            .zip(&before)
            .all(|(pg, before)| deep_at(pg).is_some_and(|now| Some(now) > *before))
    });
}

#[test]
fn a_scrub_repairs_what_one_disk_lost_and_remembers_what_all_of_them_lost() {
    let cluster = three("scrub", "256MiB", &[]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &[&format!("write -P {SOUND} 0 16M"), "flush"]);
    qemu_io(&cluster, "v", &[&format!("write -P {DOOMED} 32M 128k"), "flush"]);
    // A restart writes back the data that is only in journals.
    cluster.down();
    cluster.start(&[]);
    cluster.wait_clean();

    let changed = corrupt(&cluster.osd_paths()[0], SOUND, 40);
    assert_eq!(changed, 40);
    scrub(&cluster, "default");
    let status = cluster.json(&["status"]);
    assert!(status["scrub"]["repaired_blocks"].as_u64().expect("a number") > 0, "{status}");
    assert_eq!(check_of(&status, "pg_damaged"), None);
    let text = qemu_io_text(&cluster, "v", &format!("read -P {SOUND} 0 16M"));
    assert!(text.contains("read 16777216/16777216") && !text.contains("failed"), "{text}");
    assert_eq!(corrupt(&cluster.osd_paths()[0], SOUND ^ 1, 1), 0);
    cluster.check_osds();
    cluster.start(&[]);
    cluster.wait_clean();

    // All copies of the same block are damaged.
    let paths = cluster.osd_paths();
    let lost: usize = paths.iter().map(|osd| corrupt(osd, DOOMED, 32)).sum();
    assert_eq!(lost, 64, "two copies of 128 KiB");
    cluster.run(&["pg", "scrub", "1.0"]);
    scrub(&cluster, "default");
    let is_told = || check_of(&cluster.json(&["status"]), "pg_damaged");
    let told = is_told().expect("the damage");
    assert_eq!(told["severity"], "error", "{told}");
    assert!(told["message"].as_str().expect("a text").contains("1 blocks in 1 PGs"), "{told}");
    cluster.down();
    cluster.start(&[]);
    wait_for("the damage to be told again", || is_told().is_some());
    let pgs = cluster.json(&["pg", "ls"]);
    let listed = pgs.as_array().expect("a list").iter().find_map(|pg| {
        let pg = pg["pg"].as_str().expect("an id");
        let block = cluster.json(&["pg", "describe", pg])["scrub"]["blocks"][0].clone();
        (block["volume"] == "v").then(|| (pg.to_owned(), block["key"].as_str().unwrap().to_owned()))
    });
    let (pg, block) = listed.expect("it is listed");
    cluster.wait_clean();
    let fix = ["pg", "fix", &pg, &block];
    let with = |more: &[&'static str]| [&fix[..], more].concat();
    cluster.refused(&with(&["--accept-loss"]), "not_accepted");
    cluster.refused(&with(&["--rebuild-parity", "--yes"]), "invalid");
    cluster.refused(&["pg", "fix", &pg, "1/9999", "--accept-loss"], "not_found");
    cluster.refused(&["pg", "fix", "9.0", &block, "--accept-loss"], "not_found");
    assert_eq!(cluster.json(&with(&["--accept-loss", "--yes"]))["outcome"], "done");
    let text = qemu_io_text(&cluster, "v", "read -P 0 32M 128k");
    assert!(text.contains("read 131072/131072") && !text.contains("failed"), "{text}");
    cluster.refused(&with(&["--accept-loss", "--yes"]), "not_found");
    wait_for("no damage to be left", || is_told().is_none());
    cluster.check_osds();
}

#[test]
fn a_scrub_makes_damaged_parts_of_the_others_and_a_read_does_it_before() {
    let up = ["--osds", "5", "--osd-size", "256MiB", "--commit", "immediate"];
    let cluster = Cluster::up("scrub-parts", &up);
    let create = ["pool", "create", "p", "--ec", "3+2", "--failure-domain", "osd", "--pgs", "8"];
    cluster.run(&create);
    cluster.run(&["volume", "create", "v", "--size", "96MiB", "--pool", "p"]);
    qemu_io(&cluster, "v", &[&format!("write -P {SOUND} 0 24M"), "flush"]);
    qemu_io(&cluster, "v", &[&format!("write -P {DOOMED} 48M 384k"), "flush"]);
    cluster.down();
    cluster.start(&[]);
    cluster.wait_clean();
    let paths = cluster.osd_paths();

    // Any two of the five parts of a stripe may be damaged.
    for osd in &paths[..2] {
        assert!(corrupt(osd, SOUND, 40) > 0, "an OSD has data parts");
    }
    scrub(&cluster, "p");
    let repaired = |cluster: &Cluster| {
        let status = cluster.json(&["status"]);
        assert_eq!(check_of(&status, "pg_damaged"), None);
        status["scrub"]["repaired_blocks"].as_u64().expect("a number")
    };
    let by_scrub = repaired(&cluster);
    assert!(by_scrub > 0);
    assert!(paths[..2].iter().all(|osd| corrupt(osd, SOUND ^ 1, 1) == 0));
    let all = format!("read -P {SOUND} 0 24M");

    // A read returns the data at once, and what is damaged is repaired without another scrub.
    assert!(corrupt(&paths[2], SOUND, 40) > 0);
    let text = qemu_io_text(&cluster, "v", &all);
    assert!(text.contains("read 25165824/25165824") && !text.contains("failed"), "{text}");
    wait_for("the damage to be repaired", || repaired(&cluster) > by_scrub);
    cluster.check_osds();
    cluster.start(&[]);
    cluster.wait_clean();

    // All data parts of one stripe are damaged, more than parity makes good.
    let lost: usize = paths.iter().map(|osd| corrupt(osd, DOOMED, 32)).sum();
    assert!(lost >= 96, "three data parts of 128 KiB, {lost} units");
    scrub(&cluster, "p");
    let is_told = || check_of(&cluster.json(&["status"]), "pg_damaged");
    assert_eq!(is_told().expect("the damage")["severity"], "error");
    qemu_io(&cluster, "v", &[&all, &format!("write -P {SOUND} 48M 384k"), "flush"]);
    scrub(&cluster, "p");
    wait_for("no damage to be left", || is_told().is_none());
    cluster.check_osds();
}

#[test]
fn scrubs_can_be_paused_and_asked_for() {
    let cluster = three("scrub-pause", "256MiB", &[]);
    cluster.refused(&["pg", "scrub", "9.0"], "not_found");
    cluster.refused(&["osd", "scrub", "9"], "not_found");
    cluster.refused(&["pool", "scrub", "none"], "not_found");
    cluster.run(&["config", "set", "scrub_paused", "on"]);
    cluster.refused(&["osd", "scrub", "1", "--deep"], "paused");
    cluster.run(&["config", "set", "scrub_paused", "off"]);
    let answer = cluster.json(&["osd", "scrub", "1", "--deep"]);
    let asked = answer["asked"].as_u64().expect("a number");
    assert!(asked > 0, "{answer}");
}
