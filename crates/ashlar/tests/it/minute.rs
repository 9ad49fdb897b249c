//! Tests that clients only wait, and do not fail, while the daemons that their cluster depends on are down
//! for 20 seconds; for a whole minute where all cases run.
//!
//! Leases, sessions, grace times and timeouts expire meanwhile. `hosts` does the same on several hosts, with
//! three monitors and three etcd members.

use std::time::{Duration, Instant};

use base::seeds::all_cases;

use crate::etcd::etcd_pid;
use crate::fio::Fio;
use crate::harness::{Cluster, is_running, kill_9, report, wait_for};

fn outage() -> Duration {
    Duration::from_secs(if all_cases() { 60 } else { 20 })
}

/// The processes that die; `up` starts them again after the outage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    /// All processes that hold the cluster's state.
    MonitorAndEtcd,
    /// The same, and all OSDs: everything except `up`, the NBD server and its client.
    Everything,
}

fn clients_only_wait(commit: &str, away: Away) {
    let with_osds = away == Away::Everything;
    let name = format!("minute-{commit}-{}", if with_osds { "all" } else { "state" });
    let restart_after = format!("--restart-after={}s", outage().as_secs());
    let up = ["--state=etcd", "--osds=3", "--osd-size=256MiB", &restart_after];
    let cluster = Cluster::up(&name, &[&up[..], &["--commit", commit]].concat());
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.wait_clean();
    // If fio does not have to wait, its rate makes it run longer than the outage plus the time before and
    // after it. If fio has to wait, it is still running when the processes die.
    let seconds = outage().as_secs() + 50;
    let rate = if with_osds { 2 << 20 } else { (56 << 20) / seconds };
    let count = cluster.processes().len();
    assert_eq!(count, 6, "up, monitor, three OSDs, NBD server");
    let etcd = etcd_pid(&cluster).expect("`up` runs it");
    let mut dead = vec![cluster.pid("mon", 1), etcd];
    if with_osds {
        dead.extend((1..=3).map(|osd| cluster.pid("osd", osd)));
    }
    let mut fio = Fio::start_at_rate(&cluster.uri("v"), 56 << 20, 41, rate);
    fio.wait_written(1 << 20);
    let lock = cluster.json(&["volume", "info", "v"])["lock"].clone();
    assert_eq!(lock["lazy"], commit == "fsync", "{lock}");

    let began = Instant::now();
    dead.iter().for_each(|pid| kill_9(*pid));
    wait_for("them to be gone", || !dead.iter().any(|pid| is_running(*pid)));
    wait_for("all to be there again", || {
        cluster.processes().len() == count && etcd_pid(&cluster).is_some()
    });
    assert!(began.elapsed() >= outage(), "{:?}", began.elapsed());
    assert!((0..60).any(|_| fio.writes_on()), "it has not ended meanwhile");
    let verified = fio.verified_bytes();
    let longest = fio.longest_wait();
    report(&format!(
        "{away:?} away, {commit}: {verified} bytes written and verified, the longest wait \
         was {longest:.1} s"
    ));
    let outage = outage().as_secs_f64();
    match away {
        // A client that depended on these processes would have waited for the outage.
        Away::MonitorAndEtcd => {
            assert!(longest < outage * 0.75, "nobody waits for them: {longest:.1} s");
        }
        Away::Everything => {
            let expected = outage - 10.0..outage + 120.0;
            assert!(expected.contains(&longest), "nobody was there meanwhile: {longest:.1} s");
        }
    }
    cluster.wait_clean();
    cluster.wait_healthy();
    assert!(cluster.check_copies() > 0);
}

/// The cases run at the same time.
#[test]
fn clients_only_wait_while_the_cluster_is_down() {
    std::thread::scope(|scope| {
        let mut cases = vec![("fsync", Away::Everything), ("immediate", Away::MonitorAndEtcd)];
        if all_cases() {
            cases.extend([("fsync", Away::MonitorAndEtcd), ("immediate", Away::Everything)]);
        }
        let threads: Vec<_> = cases
            .into_iter()
            .map(|(commit, away)| {
                (commit, away, scope.spawn(move || clients_only_wait(commit, away)))
            })
            .collect();
        for (commit, away, thread) in threads {
            assert!(thread.join().is_ok(), "{commit}, {away:?}: its words are above");
        }
    });
}
