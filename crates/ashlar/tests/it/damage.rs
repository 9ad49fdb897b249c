//! Are bytes that changed on a disk found, and never returned as data?

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::harness::{ASHLAR, Cluster, qemu_io_text, run, text_of, wait_for};

const PATTERN: u8 = 0xa7;

fn qemu_io(cluster: &Cluster, command: &str) -> String {
    qemu_io_text(cluster, "v", command)
}

/// A stopped cluster of one OSD that holds 16 MiB of `PATTERN`.
fn cluster_with_data(name: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let text = qemu_io(&cluster, &format!("write -P {PATTERN} 0 16M"));
    assert!(text.contains("wrote 16777216/16777216"), "{text}");
    cluster.down();
    cluster
}

#[test]
fn a_flipped_data_byte_is_an_error_not_data() {
    let cluster = cluster_with_data("flip");
    let path = cluster.osd_paths()[0].join("blocks");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("ours");
    // Whole blocks were written past the journal: find one unit of the pattern near the end.
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
    // Exactly one unit is lost, and writing it again heals it.
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

#[test]
fn damage_all_over_an_osd_file_is_never_returned_as_data() {
    let cluster = cluster_with_data("scatter");
    let path = cluster.osd_paths()[0].join("blocks");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("ours");
    let size = file.metadata().expect("open").len();
    // One byte in every 3 MiB behind the superblocks: journal, checkpoints and data.
    let mut offset = 1 << 20;
    while offset < size {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + 77).expect("inside");
        file.write_all_at(&[byte[0] ^ 0x40], offset + 77).expect("writable");
        offset += 3 << 20;
    }
    file.sync_all().expect("writable");
    drop(file);
    let check = run(Command::new(ASHLAR).args(["osd", "check"]).arg(&cluster.osd_paths()[0]));
    assert_eq!(check.status.code(), Some(1), "{}", text_of(&check));
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--detach", "--dir"]).arg(cluster.path());
    // It comes up and answers errors for what is hit; never other data.
    let up = run(&mut up);
    assert!(up.status.success(), "{}", text_of(&up));
    let mut errors = 0;
    for megabyte in 0..16u32 {
        let text = qemu_io(&cluster, &format!("read -P {PATTERN} {megabyte}M 1M"));
        assert!(!text.contains("Pattern verification failed"), "{text}");
        errors += u32::from(text.contains("Input/output error"));
        assert!(text.contains("read 1048576/1048576") || text.contains("Input/output error"));
    }
    assert!(errors > 0, "the damage hit nothing");
}
