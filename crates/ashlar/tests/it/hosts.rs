//! Clusters of several hosts: network namespaces, each with two networks, an etcd member and a
//! monitor.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::harness::{
    ASHLAR, Directory, QemuIo, is_running, refused, report, run, succeed, text_of, wait_for,
};

/// Hosts of a cluster.
const HOST_COUNT: usize = 3;

fn ip(arguments: &str) {
    let output = run(Command::new("ip").args(arguments.split_whitespace()));
    let text = text_of(&output);
    assert!(
        output.status.success(),
        "network namespaces are needed (root, and the package iproute2): ip {arguments}: {text}"
    );
}

/// Namespaces that stand for hosts, each connected to an IPv4 and to an IPv6 network. They go away
/// with their owner, and so does everything that runs in them.
struct Hosts {
    directory: Directory,
    prefix: String,
    daemons: Vec<(String, Child)>,
}

impl Hosts {
    fn new(name: &str) -> Hosts {
        let prefix = format!("a{}{name}", std::process::id());
        let hosts = Hosts { directory: Directory::new(name), prefix, daemons: Vec::new() };
        let switch = hosts.namespace(0);
        ip(&format!("netns add {switch}"));
        for bridge in ["v4", "v6"] {
            ip(&format!("-n {switch} link add {bridge} type bridge forward_delay 0"));
            ip(&format!("-n {switch} link set {bridge} up"));
        }
        for host in 1..=HOST_COUNT {
            let there = hosts.namespace(host);
            ip(&format!("netns add {there}"));
            ip(&format!("-n {there} link set lo up"));
            for bridge in ["v4", "v6"] {
                let port = format!("{bridge}-{host}");
                ip(&format!(
                    "-n {switch} link add {port} type veth peer name {bridge} netns {there}"
                ));
                ip(&format!("-n {switch} link set {port} master {bridge} up"));
                ip(&format!("-n {there} link set {bridge} up"));
            }
            ip(&format!("-n {there} addr add 10.77.1.{host}/24 dev v4"));
            ip(&format!("-n {there} addr add fd77::{host}/64 dev v6 nodad"));
        }
        hosts
    }

    /// The namespace of a host; 0: that of the switches between them.
    fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Cuts a host off from one of its networks, or connects it again.
    fn set_link(&self, host: usize, bridge: &str, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("-n {} link set {bridge}-{host} {state}", self.namespace(0)));
    }

    /// A program on a host, which has a name of its own.
    fn on(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), "unshare", "--uts", "sh", "-c"]);
        command.arg(format!("hostname host{host} && exec \"$0\" \"$@\"")).arg(program);
        command
    }

    /// A command of ashlar's on a host that belongs to the cluster.
    fn ashlar(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = self.on(host, ASHLAR);
        command.args(arguments).arg("--cluster").arg(self.path(&format!("host{host}")));
        command
    }

    fn json(&self, host: usize, arguments: &[&str]) -> Value {
        let text = succeed(self.ashlar(host, arguments).arg("--json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Starts a program that runs on, with its words in a file of its name.
    fn start(&mut self, name: &str, command: &mut Command) {
        let log = File::options().create(true).append(true).open(self.path(name));
        let log = log.expect("the temporary directory is writable");
        let again = log.try_clone().expect("a file");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(again).spawn();
        self.daemons.push((name.to_owned(), child.expect("it starts")));
    }

    fn kill(&mut self, name: &str) {
        let place = self.daemons.iter().position(|(known, _)| known == name);
        let (_, mut child) = self.daemons.remove(place.expect("it was started"));
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }

    fn start_etcd(&mut self, host: usize) {
        let members: Vec<String> =
            (1..=HOST_COUNT).map(|host| format!("e{host}=http://10.77.1.{host}:2380")).collect();
        let client = format!("http://10.77.1.{host}:2379");
        let peer = format!("http://10.77.1.{host}:2380");
        let mut command = self.on(host, "etcd");
        command
            .args(["--name", &format!("e{host}"), "--data-dir"])
            .arg(self.path(&format!("etcd{host}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &members.join(",")])
            // What is measured here is not this disk.
            .args(["--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn"]);
        self.start(&format!("etcd.{host}.log"), &mut command);
    }

    fn start_monitor(&mut self, host: usize) {
        let path = self.path(&format!("host{host}")).join(format!("mon.{host}"));
        let mut command = self.ashlar(host, &["mon", "run"]);
        self.start(&format!("mon.{host}.log"), command.arg(path));
    }

    fn start_osd(&mut self, host: usize) {
        let path = self.path(&format!("osd{host}"));
        let mut command = self.ashlar(host, &["osd", "run"]);
        self.start(&format!("osd.{host}.log"), command.arg(path));
    }

    /// The host whose monitor leads, as another one says; its id is the same.
    fn leader(&self, asked: usize) -> Option<usize> {
        let mut ls = self.ashlar(asked, &["mon", "ls", "--json"]);
        let output = run(&mut ls);
        let rows: Value = serde_json::from_slice(&output.stdout).ok()?;
        let leads = rows.as_array()?.iter().find(|row| row["leads"] == true)?;
        usize::try_from(leads["id"].as_u64()?).ok()
    }

    /// Waits until another host's monitor leads.
    fn await_leader_but(&self, asked: usize, former: usize) -> usize {
        let mut leader = former;
        wait_for("another monitor to lead", || {
            leader = self.leader(asked).unwrap_or(former);
            leader != former
        });
        leader
    }

    fn await_osds_up(&self, asked: usize) {
        wait_for("every OSD to be up", || {
            let rows = self.json(asked, &["osd", "ls"]);
            let rows = rows.as_array().expect("a list");
            rows.iter().all(|row| row["up"] == true)
        });
    }

    fn await_active(&self, asked: usize) {
        wait_for("every PG to be active", || {
            let status = self.json(asked, &["status"]);
            status["pgs"]["total"] == status["pgs"]["active"] && status["pgs"]["total"] != 0
        });
    }

    /// A cluster with a monitor and an OSD on each host.
    fn make_cluster(&mut self) {
        for host in 1..=HOST_COUNT {
            self.start_etcd(host);
        }
        let urls: Vec<String> =
            (1..=HOST_COUNT).map(|host| format!("http://10.77.1.{host}:2379")).collect();
        let mut init = self.on(1, ASHLAR);
        init.args(["init", "--state", &format!("etcd:{}", urls.join(","))]);
        init.args(["--network", "10.77.1.0/24", "--network", "fd77::/64", "--dir"]);
        succeed(init.arg(self.path("host1")));
        self.start_monitor(1);
        let token = self.json(1, &["token"])["token"].as_str().expect("a text").to_owned();
        for host in 2..=HOST_COUNT {
            let mut join = self.on(host, ASHLAR);
            join.args(["join", &token, "--dir"]);
            succeed(join.arg(self.path(&format!("host{host}"))));
            let path = self.path(&format!("host{host}")).join(format!("mon.{host}"));
            let mut create = self.ashlar(host, &["mon", "create"]);
            succeed(create.arg(path));
            self.start_monitor(host);
        }
        for host in 1..=HOST_COUNT {
            let mut create = self.ashlar(host, &["osd", "create", "--size", "256MiB"]);
            succeed(create.arg(self.path(&format!("osd{host}"))));
            self.start_osd(host);
        }
        self.await_osds_up(1);
        wait_for("every monitor to be up", || {
            let rows = self.json(3, &["mon", "ls"]);
            let rows = rows.as_array().expect("a list").clone();
            rows.len() == HOST_COUNT && rows.iter().all(|row| row["up"] == true)
        });
    }

    /// NBD clients on a host reach volumes by this socket.
    fn start_nbd(&mut self, host: usize) -> String {
        let socket = self.path("nbd.sock");
        let listen = format!("--listen=unix:{}", socket.display());
        let mut command = self.ashlar(host, &["nbd", &listen]);
        self.start("nbd.log", &mut command);
        wait_for("NBD to listen", || socket.exists());
        format!("nbd+unix:///v?socket={}", socket.display())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
        for host in 0..=HOST_COUNT {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(host)]).output();
        }
    }
}

fn other_than(host: usize) -> usize {
    host % HOST_COUNT + 1
}

#[test]
fn monitors_etcd_members_and_links_fail_one_at_a_time_and_the_cluster_goes_on() {
    let mut hosts = Hosts::new("hosts");
    hosts.make_cluster();
    let tree = hosts.json(2, &["osd", "tree"]);
    let names: Vec<&str> =
        tree.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    for host in 1..=HOST_COUNT {
        assert!(names.contains(&&*format!("host{host}")), "it is in the tree by itself: {names:?}");
    }
    hosts.json(3, &["pool", "create", "p", "--replicas", "1", "--pgs", "32"]);
    hosts.await_active(2);
    hosts.json(2, &["volume", "create", "v", "--size", "64MiB"]);
    let uri = hosts.start_nbd(3);
    let mut session = QemuIo::open(&[&uri]);
    session.ask("write -P 1 0 8M");

    // The leading monitor dies.
    let leader = hosts.leader(3).expect("one leads");
    let asked = other_than(leader);
    let started = Instant::now();
    hosts.kill(&format!("mon.{leader}.log"));
    session.ask("write -P 2 8M 8M");
    let next = hosts.await_leader_but(asked, leader);
    let mon_failover = started.elapsed();
    hosts.await_osds_up(asked);
    hosts.json(asked, &["volume", "create", "w", "--size", "16MiB"]);
    session.ask("read -P 1 0 8M");
    hosts.start_monitor(leader);

    // An etcd member dies, that of the leading monitor's host: it may lead etcd too.
    hosts.kill(&format!("etcd.{next}.log"));
    let started = Instant::now();
    hosts.json(asked, &["volume", "rm", "w"]);
    let etcd_failover = started.elapsed();
    hosts.start_etcd(next);
    wait_for("every monitor to be up", || {
        let rows = hosts.json(asked, &["mon", "ls"]);
        rows.as_array().expect("a list").iter().all(|row| row["up"] == true)
    });

    // The leading monitor's host loses the network that etcd is in; the other one is left.
    let leader = hosts.leader(asked).expect("one leads");
    let asked = other_than(leader);
    let started = Instant::now();
    hosts.set_link(leader, "v4", false);
    hosts.await_leader_but(asked, leader);
    let link_failover = started.elapsed();
    hosts.await_osds_up(asked);
    session.ask("write -P 3 16M 8M");
    session.ask("read -P 2 8M 8M");
    hosts.set_link(leader, "v4", true);
    wait_for("the monitor that was cut off to follow", || {
        hosts.leader(leader).is_some_and(|other| other != leader)
    });
    session.ask("read -P 3 16M 8M");
    session.close();
    report(&format!(
        "3 hosts: another monitor leads {} ms after kill -9, {} ms after its etcd's network went; \
         a change takes {} ms without one etcd member",
        mon_failover.as_millis(),
        link_failover.as_millis(),
        etcd_failover.as_millis()
    ));

    // Told to end, the leader gives its lease back.
    let leader = hosts.leader(asked).expect("one leads");
    let asked = other_than(leader);
    let name = format!("mon.{leader}.log");
    let place = hosts.daemons.iter().position(|(known, _)| *known == name).expect("it runs");
    let pid = hosts.daemons[place].1.id();
    crate::harness::terminate(pid);
    wait_for("the monitor to end", || !is_running(pid));
    hosts.await_leader_but(asked, leader);
}

#[test]
fn what_cannot_be_joined_made_or_run_is_said() {
    let mut hosts = Hosts::new("nohosts");
    hosts.start_etcd(1);
    hosts.start_etcd(2);
    let there = hosts.path("host1");
    let init = |network: &str, code: &str| {
        let mut command = hosts.on(1, ASHLAR);
        command.args(["init", "--json", "--state", "etcd:http://10.77.1.1:2379", "--network"]);
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
    join.args(["join", "ashlar1-00", "--json", "--dir"]).arg(hosts.path("host2"));
    refused(&mut join, "invalid");
    let token = hosts.json(1, &["token"])["token"].as_str().expect("a text").to_owned();
    let mut join = hosts.on(1, ASHLAR);
    join.args(["join", &token, "--json", "--dir"]).arg(&there);
    refused(&mut join, "exists");
    // A store that does not hold the cluster is never taken for a new one.
    let text = fs::read_to_string(there.join("cluster.toml")).expect("it is there");
    let elsewhere = text.replace(":2379", ":2379/elsewhere");
    assert_ne!(elsewhere, text);
    fs::write(there.join("cluster.toml"), elsewhere).expect("writable");
    let mut monitor = hosts.ashlar(1, &["mon", "run", "--json"]);
    let error = refused(monitor.arg(there.join("mon.1")), "state");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("holds no cluster"), "{message}");
}
