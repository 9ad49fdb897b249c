//! Tests that a cluster of several hosts continues when any part of it is lost, and that every byte is right.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use base::seeds::all_cases;
use serde_json::Value;

use crate::fio::Fio;
use crate::harness::{ASHLAR, QemuIo, Waiting, refused, report, run, succeed, wait_for};
use crate::namespaces::{Hosts, Shape, V4, V6};

/// The host that runs only the client. No fault is injected there.
const CLIENT: usize = 4;

/// The minimum number of bytes that each round of the load writes and reads.
const LOAD_SIZE: u64 = 64 << 20;

/// A load that runs during a fault and after its repair; then everything is read and verified.
struct Load {
    uri: String,
    round: Cell<u32>,
}

impl Load {
    /// Runs the load during a fault. Returns the longest time that fio had to wait, in seconds.
    fn under(
        &self,
        hosts: &mut Hosts,
        fault: impl FnOnce(&mut Hosts),
        mend: impl FnOnce(&mut Hosts),
    ) -> f64 {
        self.round.set(self.round.get() + 1);
        let mut fio = Fio::start_at(&self.uri, LOAD_SIZE, self.round.get());
        fio.wait_written(4 << 20);
        fault(hosts);
        fio.wait_written(24 << 20);
        mend(hosts);
        assert!(fio.verified_bytes() > 30 << 20);
        hosts.await_whole(CLIENT);
        fio.longest_wait()
    }

    /// Runs the load while one host is cut off. Returns the longest time that fio had to wait, in seconds.
    fn under_silence(&self, hosts: &mut Hosts, host: usize) -> f64 {
        self.under(hosts, |hosts| hosts.set_links(host, false), |hosts| hosts.set_links(host, true))
    }
}

fn other_than(hosts: &[usize]) -> usize {
    (1..=3).find(|host| !hosts.contains(host)).expect("three hosts, of which two are named")
}

/// Prints how long fio waited, and asserts that this is within the limit.
fn judge(what: &str, waited: f64) {
    report(&format!("3 hosts: {what}: fio waited {waited:.1} s"));
    assert!(waited <= WAIT_MAX, "{what}: fio waited {waited:.1} s");
}

// The simulator checks how long clients wait by design, in simulated time and without any other load. Its
// failover drill (`sim::cluster::failover_drill`) allows 0.5 s after the death of an OSD, 3 s after an OSD
// fell silent, 6 s if the leading monitor fell silent with it, and 0.2 s after an OSD was stopped (in three
// of ten seeds, those in which a member can be spared). Here real processes share a machine with other tests:
// these tests show that clients continue without help, and that every byte is right.

/// Maximum wait of a client in seconds. By design it is two to three if the leader stays
/// (`docs/commands.md`), and up to ten if another monitor or etcd member must first be elected; the rest is a
/// margin for a busy machine.
const WAIT_MAX: f64 = 45.0;

/// How long processes stay down in the tests that take them down for longer than a restart takes.
fn outage() -> Duration {
    Duration::from_secs(if all_cases() { 60 } else { 20 })
}

fn begin_all(hosts: &mut Hosts, names: &[String]) {
    for name in names {
        hosts.begin(name);
    }
}

#[test]
fn clients_only_wait_whatever_dies_or_is_cut_off() {
    let mut hosts = Hosts::new(
        "hosts",
        Shape {
            hosts: CLIENT,
            etcds: 3,
            etcd_in: V4,
            monitors: 3,
            osds: 3,
            networks: &["--network", "10.77.1.0/24", "--network", "fd77::/64"],
            commit: "fsync",
        },
    );
    hosts.make_cluster();
    let tree = hosts.json(CLIENT, &["osd", "tree"]);
    let names: Vec<&str> =
        tree.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    for host in 1..=3 {
        assert!(names.contains(&&*format!("host{host}")), "it is in the tree by itself: {names:?}");
    }
    let pool = ["pool", "create", "p", "--replicas", "2", "--failure-domain", "host"];
    hosts.json(3, &[&pool[..], &["--pgs", "16"]].concat());
    hosts.json(2, &["volume", "create", "v", "--size", "64MiB"]);
    hosts.await_whole(CLIENT);
    let load = Load { uri: hosts.start_nbd(CLIENT, "v", &[]), round: Cell::new(0) };
    // A client for this check that keeps running: fio may already have exited.
    let mut session = QemuIo::open(&[&load.uri]);
    session.ask("write -P 1 0 4k");
    hosts.assert_commit(CLIENT, "v");
    session.close();

    let leader = hosts.leader(CLIENT);
    let wait = load.under(
        &mut hosts,
        |hosts| hosts.set_link(leader, V4, false),
        |hosts| hosts.set_link(leader, V4, true),
    );
    judge("one of two networks of the leading monitor's host is gone", wait);

    let leaders = [hosts.leader(CLIENT), hosts.etcd_leader()];
    let silent = other_than(&leaders);
    let wait = load.under_silence(&mut hosts, silent);
    judge("a host is silent", wait);

    let leader = hosts.leader(CLIENT);
    let wait = load.under_silence(&mut hosts, leader);
    judge("that of the leading monitor is silent", wait);

    let silent = hosts.etcd_leader();
    let wait = load.under_silence(&mut hosts, silent);
    judge("that of etcd's leader is silent", wait);

    let first = hosts.etcd_leader();
    let second = other_than(&[first]);
    let wait = load.under(
        &mut hosts,
        |hosts| {
            hosts.kill(&[format!("etcd.{first}")]);
            // A change succeeds without the lost member.
            let began = Instant::now();
            hosts.set(CLIENT, "nearly_full_percent", "83");
            let waited = began.elapsed().as_secs_f64();
            report(&format!("3 hosts: etcd's leader is killed: a change took {waited:.1} s"));
            hosts.begin(&format!("etcd.{first}"));
            hosts.etcd_leader();
        },
        |hosts| {
            hosts.kill(&[format!("etcd.{second}")]);
            hosts.set(CLIENT, "nearly_full_percent", "84");
            hosts.begin(&format!("etcd.{second}"));
        },
    );
    judge("two members of etcd are killed, one after the other", wait);
    without_most_of_etcd(&mut hosts, &load);

    let leader = hosts.leader(CLIENT);
    let wait = load.under(
        &mut hosts,
        |hosts| {
            hosts.kill(&[format!("mon.{leader}")]);
            let began = Instant::now();
            hosts.await_leader_but(CLIENT, leader);
            let waited = began.elapsed().as_secs_f64();
            report(&format!("3 hosts: another monitor led {waited:.1} s after kill -9"));
            assert!(waited <= WAIT_MAX, "{waited:.1} s");
        },
        |hosts| hosts.begin(&format!("mon.{leader}")),
    );
    judge("the leading monitor is killed", wait);

    let names = hosts.names_on(hosts.leader(CLIENT));
    assert_eq!(names.len(), 3, "etcd, monitor and OSD");
    let wait = load.under(&mut hosts, |hosts| hosts.kill(&names), |hosts| begin_all(hosts, &names));
    judge("everything on the leader's host is killed", wait);

    let names: Vec<String> = (1..=3).flat_map(|host| hosts.names_on(host)).collect();
    let wait = load.under(
        &mut hosts,
        |hosts| {
            hosts.kill(&names);
            // The elapsed time is what is tested: leases, sessions and timeouts expire meanwhile.
            std::thread::sleep(outage());
            begin_all(hosts, &names);
        },
        |_| {},
    );
    let wait = wait - outage().as_secs_f64();
    judge("everything is killed and started later, from then", wait);

    // A leader that is stopped in an orderly way revokes its lease.
    let leader = hosts.leader(CLIENT);
    hosts.stop(&format!("mon.{leader}"));
    hosts.await_leader_but(CLIENT, leader);
    // Each round wrote at least half of the volume.
    hosts.check_copies(CLIENT, LOAD_SIZE / (128 << 10) / 2);
}

/// No monitor can lead: volumes still work, and commands report that changes are impossible.
fn without_most_of_etcd(hosts: &mut Hosts, load: &Load) {
    let first = hosts.etcd_leader();
    let second = other_than(&[first]);
    let dead = [first, second].map(|host| format!("etcd.{host}"));
    let names = |status: &Value, host: usize| {
        let mut checks = status["checks"].as_array().expect("a list").iter();
        checks.any(|check| {
            let message = check["message"].as_str().expect("a text");
            check["code"] == "state_endpoint_down" && message.contains(&format!("10.77.1.{host}:"))
        })
    };
    let wait = load.under(
        hosts,
        |hosts| {
            hosts.kill(&dead);
            hosts.await_status(CLIENT, "status to tell how things were", |status| {
                status["seconds_old"].is_number()
                    && status["osds"].as_array().is_some_and(|osds| osds.len() == 3)
            });
        },
        |hosts| {
            // A command waits for up to half a minute; the member that it needs is started immediately.
            let set = ["config", "set", "nearly_full_percent", "85"];
            let waiting = Waiting::start(&mut hosts.ashlar(CLIENT, &set));
            hosts.begin(&dead[0]);
            assert!(waiting.says.contains("etcd cannot be reached at"), "{}", waiting.says);
            waiting.done();
            hosts.await_status(CLIENT, "the other member to be named", |status| {
                status["seconds_old"].is_null() && names(status, second)
            });
            hosts.begin(&dead[1]);
            hosts.await_status(CLIENT, "it to answer", |status| !names(status, second));
        },
    );
    judge("most members of etcd are killed", wait);
}

/// Two monitors are left, and one of them leads: OSDs and clients do not notice, not even when the third
/// monitor returns.
#[test]
fn nobody_waits_while_the_leading_monitor_is_down() {
    let mut hosts = Hosts::new(
        "lead",
        Shape {
            hosts: CLIENT,
            etcds: 1,
            etcd_in: V4,
            monitors: 3,
            osds: 3,
            networks: &["--network", "10.77.1.0/24"],
            commit: "immediate",
        },
    );
    hosts.make_cluster();
    let pool = ["pool", "create", "p", "--replicas", "2", "--failure-domain", "host"];
    hosts.json(3, &[&pool[..], &["--pgs", "16"]].concat());
    hosts.json(2, &["volume", "create", "v", "--size", "64MiB"]);
    hosts.await_whole(CLIENT);
    // The load takes a minute longer than the outage: the time before and after it.
    let uri = hosts.start_nbd(CLIENT, "v", &[]);
    let seconds = 60 + outage().as_secs();
    let mut fio = Fio::start_at_rate(&uri, 56 << 20, 43, (56 << 20) / seconds);
    fio.wait_written(1 << 20);
    hosts.assert_commit(CLIENT, "v");

    let leader = hosts.leader(CLIENT);
    let name = format!("mon.{leader}");
    hosts.kill(std::slice::from_ref(&name));
    hosts.await_leader_but(CLIENT, leader);
    // The elapsed time is what is tested, as in the test that takes everything down.
    std::thread::sleep(outage());
    hosts.begin(&name);
    hosts.await_monitors(CLIENT, 3);
    assert!((0..60).any(|_| fio.writes_on()), "it has not ended meanwhile");
    assert!(fio.verified_bytes() > 20 << 20);
    judge("the leading monitor is away", fio.longest_wait());
    hosts.await_whole(CLIENT);
    hosts.check_copies(CLIENT, LOAD_SIZE / (128 << 10) / 2);
}

#[test]
fn osds_prefer_the_cluster_network_while_it_works() {
    let mut hosts = Hosts::new(
        "osdnet",
        Shape {
            hosts: 3,
            etcds: 1,
            etcd_in: V6,
            monitors: 1,
            osds: 2,
            networks: &["--network", "fd77::/64", "--osd-network", "10.77.1.0/24"],
            commit: "immediate",
        },
    );
    hosts.make_cluster();
    // Create a second monitor on one host; it listens only on the IPv6 network.
    let second = hosts.home(1).join("mon.2");
    succeed(hosts.ashlar(1, &["mon", "create", "--port", "4131"]).arg(&second));
    let mut run_second = hosts.ashlar(1, &["mon", "run"]);
    hosts.start("mon.2", run_second.arg(&second));
    hosts.await_monitors(2, 2);
    refused(hosts.ashlar(2, &["mon", "rm", "2"]).arg("--json"), "running");
    hosts.kill(&["mon.2".to_owned()]);
    wait_for("the monitor to be forgotten", || {
        run(&mut hosts.ashlar(2, &["mon", "rm", "2"])).status.success()
    });

    let pool = ["pool", "create", "p", "--replicas", "2", "--failure-domain", "host"];
    hosts.json(2, &[&pool[..], &["--pgs", "8"]].concat());
    hosts.json(2, &["volume", "create", "v", "--size", "64MiB"]);
    hosts.await_whole(3);
    let mut session = QemuIo::open(&[&hosts.start_nbd(3, "v", &[])]);
    session.ask("write -P 1 0 8M");
    hosts.assert_commit(3, "v");
    let uses_its_own = |hosts: &Hosts| {
        hosts.connections_between_osds(V4) > 0 && hosts.connections_between_osds(V6) == 0
    };
    // An OSD tries the other network when a peer does not answer for a second. That may have happened only
    // because the machine was busy; then one OSD is restarted, so that it begins with its own network again.
    for _ in 0..5 {
        if uses_its_own(&hosts) {
            break;
        }
        hosts.kill(&["osd.2".to_owned()]);
        hosts.begin("osd.2");
        hosts.await_osds(3);
        session.ask("write -P 1 0 8M");
        hosts.await_whole(3);
    }
    assert!(uses_its_own(&hosts), "their own network is tried first");

    // Only the network between OSDs goes down: writes continue with two copies, over the other network.
    let began = Instant::now();
    hosts.set_link(2, V4, false);
    session.ask("write -P 2 0 8M");
    let waited = began.elapsed().as_secs_f64();
    report(&format!("2 hosts: the network between OSDs is gone: a write waited {waited:.1} s"));
    hosts.await_whole(3);
    assert!(hosts.connections_between_osds(V6) > 0);
    session.ask("write -P 3 8M 8M");
    hosts.set_link(2, V4, true);
    session.ask("read -P 2 0 8M");
    session.ask("read -P 3 8M 8M");
    session.close();
    hosts.await_whole(3);
    hosts.check_copies(3, 16 << 3);
}

/// While others write, the primary of a PG is cut off together with a client, and neither of them notices.
/// There is only one network: with two, the primary would try the other one and so learn that its epoch has
/// ended.
#[test]
fn a_primary_that_is_cut_off_never_serves_stale_data() {
    let mut hosts = Hosts::new(
        "cutoff",
        Shape {
            hosts: 3,
            etcds: 1,
            etcd_in: V4,
            monitors: 1,
            osds: 3,
            networks: &["--network", "10.77.1.0/24"],
            commit: "fsync",
        },
    );
    hosts.make_cluster();
    // The host of the monitor is never cut off, and holds no copy.
    hosts.json(1, &["osd", "out", "1"]);
    let pool = ["pool", "create", "one", "--replicas", "2", "--failure-domain", "host"];
    hosts.json(1, &[&pool[..], &["--pgs", "1"]].concat());
    hosts.json(1, &["volume", "create", "v", "--size", "16MiB"]);
    hosts.await_whole(1);
    // The client's session must survive the time in which the client is cut off, however long a write takes.
    hosts.set(1, "session_timeout_ms", "100s");
    let rows = hosts.json(1, &["pg", "ls", "--pool", "one"]);
    let primary = rows[0]["primary"].as_u64().expect("a number") as usize;
    let mut far = QemuIo::open(&[&hosts.start_nbd(1, "v", &["--shared"])]);
    let mut near = QemuIo::open(&[&hosts.start_nbd(primary, "v", &["--shared"])]);
    far.ask("write -P 1 0 1M");
    near.ask("read -P 1 0 1M");
    hosts.set_links(primary, false);
    far.ask("write -P 2 0 1M");
    near.begin("read -P 2 0 1M");
    let early = near.ended_within(Duration::from_secs(1));
    assert_eq!(early, None, "who is cut off answers nothing");
    hosts.set_links(primary, true);
    let line = near.end();
    assert!(!line.contains("failed"), "{line}");
    far.close();
    near.close();
    hosts.await_whole(1);
    hosts.check_copies(1, 8);
}

#[test]
fn commands_say_why_they_cannot_join_create_or_run() {
    let networks = &[];
    let (etcd_in, commit) = (V4, "fsync");
    let shape = Shape { hosts: 2, etcds: 1, etcd_in, monitors: 1, osds: 0, networks, commit };
    let mut hosts = Hosts::new("nohosts", shape);
    hosts.begin("etcd.1");
    // Wait for etcd here, because `init` waits only briefly.
    hosts.etcd_leader();
    let there = hosts.home(1);
    let init = |network: &str, code: &str| {
        let mut command = hosts.on(1, ASHLAR);
        command.args(["init", "--json", "--state", &hosts.etcd_urls(), "--network"]);
        command.arg(network).arg("--dir").arg(&there);
        match code {
            "" => drop(succeed(&mut command)),
            code => drop(refused(&mut command, code)),
        }
    };
    init("10.99.0.0/16", "no_address");
    assert!(!there.join("cluster.toml").exists(), "no half a cluster is left");
    init("10.77.0.0/16", "");
    init("10.77.0.0/16", "exists");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(there.join(name)).expect("it is there").permissions().mode() & 0o777
    };
    assert_eq!((mode("key"), mode("cluster.toml")), (0o600, 0o600));
    let mut join = hosts.on(2, ASHLAR);
    join.args(["join", "ashlar1-00", "--json", "--dir"]).arg(hosts.home(2));
    refused(&mut join, "invalid");
    let token = hosts.json(1, &["token"])["token"].as_str().expect("a text").to_owned();
    let mut join = hosts.on(1, ASHLAR);
    join.args(["join", &token, "--json", "--dir"]).arg(&there);
    refused(&mut join, "exists");
    // An etcd prefix without the cluster's state is never treated as a new cluster.
    let text = fs::read_to_string(there.join("cluster.toml")).expect("it is there");
    let elsewhere = text.replace(":2379", ":2379/elsewhere");
    assert_ne!(elsewhere, text);
    fs::write(there.join("cluster.toml"), elsewhere).expect("writable");
    let mut monitor = hosts.ashlar(1, &["mon", "run", "--json"]);
    let error = refused(monitor.arg(there.join("mon.1")), "state");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("holds no cluster"), "{message}");
}
