//! Tests that pools with parity keep what was written when OSDs die, are lost or replaced, and that they give
//! space back.

use serde_json::{Value, json};

use crate::fio::Fio;
use crate::harness::{Cluster, QemuIo, patient_image, report, wait_for};
use crate::replication::{
    ask, destroy_osd, has_check, kill_osd, pieces, refused_write, start_osd, stop_osd, used_bytes,
};

/// The pools of these tests: the option that makes each, and its value.
const POOLS: [(&str, &str, &str); 3] =
    [("xor", "--xor", "2+1"), ("single", "--ec", "2+1"), ("double", "--ec", "3+2")];

/// Starts a cluster that has no pool.
fn without_pools(name: &str, osds: &str, size: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", osds, "--osd-size", size]);
    cluster.run(&["pool", "rm", "default"]);
    cluster
}

/// Creates a pool with parity whose parts may share a host.
fn create_pool(cluster: &Cluster, name: &str, option: &str, scheme: &str) -> Value {
    let create = ["pool", "create", name, option, scheme, "--failure-domain", "osd"];
    cluster.json(&[&create[..], &["--pgs", "8"]].concat())
}

fn create_volume(cluster: &Cluster, pool: &str, size: &str) {
    cluster.run(&["volume", "create", pool, "--size", size, "--pool", pool]);
}

/// Waits until every fio has written since its previous report.
fn wait_until_all_write(fios: &mut [Fio]) {
    for fio in fios {
        assert!((0..60).any(|_| fio.writes_on()), "fio goes on");
    }
}

#[test]
fn fio_verifies_on_parity_while_osds_are_killed_lost_and_replaced() {
    let cluster = without_pools("parity", "5", "1GiB");
    for (name, option, scheme) in POOLS {
        let pool = create_pool(&cluster, name, option, scheme);
        assert_eq!(
            pool["scheme"].as_str().map(|text| text.ends_with(scheme)),
            Some(true),
            "{pool}"
        );
        create_volume(&cluster, name, "96MiB");
    }
    cluster.wait_clean();
    // At this rate fio writes and reads for about a minute and a half, longer than what follows.
    let start = |(seed, (name, ..)): (usize, &(&str, &str, &str))| {
        Fio::start_at_rate(&cluster.uri(name), 96 << 20, 41 + seed as u32, 1 << 20)
    };
    let mut fios: Vec<Fio> = POOLS.iter().enumerate().map(start).collect();
    fios.iter_mut().for_each(|fio| fio.wait_written(1 << 20));
    for osd in 1..=5 {
        kill_osd(&cluster, osd);
        cluster.wait_clean();
    }
    wait_until_all_write(&mut fios);

    // The disk of one OSD is destroyed, and a new one replaces it.
    destroy_osd(&cluster, 2);
    cluster.wait_osd(2, false);
    wait_until_all_write(&mut fios);
    cluster.run(&["osd", "out", "2"]);
    cluster.start(&["--osds", "5", "--osd-size", "1GiB"]);
    cluster.wait_osd(6, true);
    cluster.wait_clean();
    cluster.run(&["osd", "rm", "2"]);

    // Two members of 3+2 are away: I/O waits, and continues once one of them is back.
    stop_osd(&cluster, 3);
    wait_until_all_write(&mut fios[2..]);
    stop_osd(&cluster, 4);
    cluster.wait_status("PGs that are not served", |status| {
        status["pgs"]["active"].as_u64() < status["pgs"]["total"].as_u64()
    });
    start_osd(&cluster, 4);
    cluster.wait_active();
    wait_until_all_write(&mut fios[2..]);
    start_osd(&cluster, 3);
    for ((name, ..), mut fio) in POOLS.iter().zip(fios) {
        let (verified, longest) = (fio.verified_bytes(), fio.longest_wait());
        report(&format!(
            "fio on {name}: {verified} bytes written and verified; the longest wait was {longest:.2} s"
        ));
        assert!(verified >= 48 << 20, "{verified}");
    }
    cluster.wait_healthy();
    assert!(cluster.check_copies() > 0);
}

#[test]
fn two_disks_of_3_plus_2_are_lost_at_once_and_replaced() {
    let cluster = without_pools("parity-two", "7", "256MiB");
    create_pool(&cluster, "p", "--ec", "3+2");
    create_volume(&cluster, "p", "128MiB");
    ask(&cluster, "p", &pieces("write", 1, 96));
    let mut fio = Fio::start_at_rate(&cluster.uri("p"), 24 << 20, 61, 1 << 20);
    fio.wait_written(1 << 20);
    for osd in [2, 5] {
        destroy_osd(&cluster, osd);
    }
    for osd in [2, 5] {
        cluster.wait_osd(osd, false);
        cluster.run(&["osd", "out", &osd.to_string()]);
    }
    // Groups that lost two members have fewer than they need: others are filled before these go on.
    cluster.wait_clean();
    assert!(fio.verified_bytes() > 8 << 20);
    ask(&cluster, "p", &pieces("read", 1, 96).split_off(24));
    for osd in ["2", "5"] {
        cluster.run(&["osd", "rm", osd]);
    }
    cluster.wait_healthy();
    assert!(cluster.check_copies() > 0);
}

#[test]
fn a_pool_gets_more_parity_parts_while_it_is_used() {
    let cluster = without_pools("parity-more", "5", "512MiB");
    create_pool(&cluster, "p", "--ec", "3+1");
    create_volume(&cluster, "p", "160MiB");
    ask(&cluster, "p", &pieces("write", 1, 64));
    let mut fio = Fio::start_at_rate(&cluster.uri("p"), 48 << 20, 51, 2 << 20);
    fio.wait_written(1 << 20);
    cluster.refused(&["pool", "set", "p", "--ec", "4+2"], "invalid");
    let pool = cluster.json(&["pool", "set", "p", "--ec", "3+2"]);
    assert_eq!(pool["parity_parts"], 2, "{pool:#}");
    cluster.wait_clean();
    assert!((0..60).any(|_| fio.writes_on()), "this was done under its load");
    fio.verified_bytes();
    // What was written before has the second parity part, too, so any three members suffice to read it.
    for pair in [[1, 2], [3, 4], [5, 1]] {
        pair.iter().for_each(|osd| stop_osd(&cluster, *osd));
        cluster.wait_active();
        ask(&cluster, "p", &pieces("read", 1, 64).split_off(48));
        pair.iter().for_each(|osd| start_osd(&cluster, *osd));
        cluster.wait_clean();
    }
    assert!(cluster.check_copies() > 0);
}

#[test]
fn parity_gives_space_back_by_discards_and_removal_even_if_it_is_full() {
    let cluster = without_pools("parity-full", "4", "256MiB");
    create_pool(&cluster, "p", "--ec", "2+1");
    create_volume(&cluster, "p", "1GiB");
    let image = patient_image(&cluster, "p");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    let found = (0..31).find_map(|at| Some((at * 32, refused_write(&mut qemu, at * 32, 32)?)));
    let (end, error) = found.expect("1 GiB does not hold 1.5 GiB");
    assert!(error.contains("No space left"), "{error}");
    assert!(end >= 256, "{end} MiB fit");
    wait_for("the status to name it", || has_check(&cluster, "osd_full"));
    qemu.ask("discard 32M 960M");
    wait_for("writes to be accepted again", || refused_write(&mut qemu, 128, 32).is_none());
    for command in ["read -P 4 0 32M", "read -P 0 32M 96M", "read -P 4 128M 32M"] {
        qemu.ask(command);
    }
    qemu.leave();

    // A member is away while the volume is removed.
    stop_osd(&cluster, 2);
    wait_for("the volume to be free", || {
        cluster.json(&["volume", "info", "p"])["sessions"] == json!([])
    });
    cluster.run(&["volume", "rm", "p"]);
    wait_for("the other members to be empty", || {
        [1, 3, 4].iter().all(|osd| used_bytes(&cluster, *osd) == 0)
    });
    start_osd(&cluster, 2);
    wait_for("the last one to be empty", || used_bytes(&cluster, 2) == 0);
    cluster.check_copies();
}
