//! A cluster on network namespaces that act as hosts.
//!
//! Each host is connected to an IPv4 and an IPv6 network and has its own host name. All hosts share the file
//! system: each has its own directory `hostN`.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{
    ASHLAR, Directory, is_running, kill_9, run, succeed, terminate, text_of, wait_for,
};

/// The names of the two networks, of their bridges, and of the hosts' ports on them.
pub const V4: &str = "v4";
pub const V6: &str = "v6";

/// The client port of etcd.
const ETCD_PORT: u16 = 2379;

fn ip(arguments: &str) {
    let output = run(Command::new("ip").args(arguments.split_whitespace()));
    let text = text_of(&output);
    assert!(
        output.status.success(),
        "network namespaces are needed (root, and the package iproute2): ip {arguments}: {text}"
    );
}

/// The number of hosts, and how many of them run each kind of program: always the first ones.
pub struct Shape {
    pub hosts: usize,
    /// Number of etcd members.
    pub etcds: usize,
    /// The network that etcd uses.
    pub etcd_in: &'static str,
    pub monitors: usize,
    pub osds: usize,
    /// Further options of `ashlar init`.
    pub networks: &'static [&'static str],
    /// The commit mode of OSDs.
    pub commit: &'static str,
}

/// The hosts and everything that runs on them; dropping it stops all of it.
pub struct Hosts {
    pub shape: Shape,
    directory: Directory,
    prefix: String,
    daemons: Vec<(String, Child)>,
}

impl Hosts {
    /// Creates hosts on which nothing runs yet.
    pub fn new(name: &str, shape: Shape) -> Hosts {
        let prefix = format!("a{}{name}", std::process::id());
        let hosts = Hosts { shape, directory: Directory::new(name), prefix, daemons: Vec::new() };
        let switch = hosts.namespace(0);
        ip(&format!("netns add {switch}"));
        for bridge in [V4, V6] {
            ip(&format!("-n {switch} link add {bridge} type bridge forward_delay 0"));
            ip(&format!("-n {switch} link set {bridge} up"));
        }
        for host in 1..=hosts.shape.hosts {
            let there = hosts.namespace(host);
            ip(&format!("netns add {there}"));
            ip(&format!("-n {there} link set lo up"));
            for bridge in [V4, V6] {
                let port = format!("{bridge}-{host}");
                ip(&format!(
                    "-n {switch} link add {port} type veth peer name {bridge} netns {there}"
                ));
                ip(&format!("-n {switch} link set {port} master {bridge} up"));
                ip(&format!("-n {there} link set {bridge} up"));
            }
            ip(&format!("-n {there} addr add 10.77.1.{host}/24 dev {V4}"));
            ip(&format!("-n {there} addr add fd77::{host}/64 dev {V6} nodad"));
        }
        hosts
    }

    /// Returns the namespace of a host; host 0 stands for the switches between the hosts.
    fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the directory with the host's settings of the cluster.
    pub fn home(&self, host: usize) -> PathBuf {
        self.path(&format!("host{host}"))
    }

    // ---- networks

    /// Cuts a host off from one of its networks, or connects it again. Packets that the host sends are lost;
    /// its own port stays up.
    pub fn set_link(&self, host: usize, network: &str, is_up: bool) {
        let state = match is_up {
            true => format!("master {network}"),
            false => "nomaster".to_owned(),
        };
        ip(&format!("-n {} link set {network}-{host} {state}", self.namespace(0)));
    }

    /// Cuts a host off from all others, or connects it again.
    pub fn set_links(&self, host: usize, is_up: bool) {
        for network in [V4, V6] {
            self.set_link(host, network, is_up);
        }
    }

    // ---- programs

    /// Returns a command that runs a program on a host.
    pub fn on(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), "unshare", "--uts", "sh", "-c"]);
        // The program is killed when the test ends, whether the test passes or fails.
        let line = format!("hostname host{host} && exec setpriv --pdeathsig KILL \"$0\" \"$@\"");
        command.arg(line).arg(program);
        command
    }

    /// Returns an `ashlar` command on a host that belongs to the cluster.
    pub fn ashlar(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = self.on(host, ASHLAR);
        command.args(arguments).arg("--cluster").arg(self.home(host));
        command
    }

    pub fn json(&self, host: usize, arguments: &[&str]) -> Value {
        let text = succeed(self.ashlar(host, arguments).arg("--json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs a command with `--json`; returns `None` if it fails, as some commands do for a while.
    fn try_json(&self, host: usize, arguments: &[&str]) -> Option<Value> {
        let output = run(self.ashlar(host, arguments).arg("--json"));
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// Sets a setting, and retries until a monitor confirms it.
    pub fn set(&self, host: usize, name: &str, value: &str) {
        wait_for("a setting to change", || {
            self.try_json(host, &["config", "set", name, value]).is_some()
        });
    }

    /// Starts a program in the background; its output goes to `NAME.log`.
    pub fn start(&mut self, name: &str, command: &mut Command) {
        let log = File::options().create(true).append(true).open(self.path(&format!("{name}.log")));
        let log = log.expect("the temporary directory is writable");
        let again = log.try_clone().expect("a file");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(again).spawn();
        self.daemons.push((name.to_owned(), child.expect("it starts")));
    }

    /// Returns the programs on a host except `ashlar nbd`, by the names that [`Hosts::kill`] and
    /// [`Hosts::begin`] accept.
    pub fn names_on(&self, host: usize) -> Vec<String> {
        let parts =
            [("etcd", self.shape.etcds), ("mon", self.shape.monitors), ("osd", self.shape.osds)];
        let here = parts.into_iter().filter(|(_, count)| host <= *count);
        here.map(|(part, _)| format!("{part}.{host}")).collect()
    }

    /// Starts `etcd.N`, `mon.N` or `osd.N` on host N.
    pub fn begin(&mut self, name: &str) {
        let (part, host) = name.split_once('.').expect("as names_on says");
        let host = host.parse().expect("a number");
        let mut command = match part {
            "etcd" => self.etcd(host),
            "mon" => {
                let mut command = self.ashlar(host, &["mon", "run"]);
                command.arg(self.home(host).join(name));
                command
            }
            _ => {
                let mut command = self.ashlar(host, &["osd", "run"]);
                command.arg(self.path(name));
                command
            }
        };
        self.start(name, &mut command);
    }

    /// Kills all of these programs at the same time.
    pub fn kill(&mut self, names: &[String]) {
        let dead = self.daemons.extract_if(.., |(name, _)| names.contains(name));
        let mut dead: Vec<(String, Child)> = dead.collect();
        assert_eq!(dead.len(), names.len(), "they were started: {names:?}");
        for (_, child) in &dead {
            kill_9(child.id());
        }
        for (name, child) in &mut dead {
            let status = child.wait().expect("a child");
            assert_eq!(status.code(), None, "{name} had ended by itself");
        }
    }

    /// Sends a program SIGTERM, and waits for its exit.
    pub fn stop(&mut self, name: &str) {
        let place = self.daemons.iter().position(|(known, _)| known == name);
        let (_, mut child) = self.daemons.remove(place.expect("it was started"));
        let pid = child.id();
        terminate(pid);
        wait_for("it to end", || child.try_wait().expect("a child").is_some());
        assert!(!is_running(pid));
    }

    // ---- etcd

    fn etcd_host(&self, host: usize) -> String {
        match self.shape.etcd_in {
            V4 => format!("10.77.1.{host}"),
            _ => format!("[fd77::{host}]"),
        }
    }

    fn etcd(&self, host: usize) -> Command {
        let url = |host: usize, port: u16| format!("http://{}:{port}", self.etcd_host(host));
        let members: Vec<String> =
            (1..=self.shape.etcds).map(|host| format!("e{host}={}", url(host, 2380))).collect();
        let (client, peer) = (url(host, ETCD_PORT), url(host, 2380));
        let mut command = self.on(host, "etcd");
        command
            .args(["--name", &format!("e{host}"), "--data-dir"])
            .arg(self.path(&format!("etcd{host}.data")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &members.join(",")])
            // Only processes die in these tests, not hosts, so etcd need not flush.
            .args(["--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn"]);
        command
    }

    /// Returns the value for `ashlar init --state`.
    pub fn etcd_urls(&self) -> String {
        let urls = (1..=self.shape.etcds)
            .map(|host| format!("http://{}:{ETCD_PORT}", self.etcd_host(host)));
        format!("etcd:{}", urls.collect::<Vec<_>>().join(","))
    }

    /// Returns the host whose etcd member reports that it leads.
    pub fn etcd_leader(&self) -> usize {
        let leads = |host: usize| {
            let mut ask = self.on(host, "bash");
            let address = self.etcd_host(host);
            let place = format!("/dev/tcp/{}/{ETCD_PORT}", address.trim_matches(['[', ']']));
            let line = format!(
                "exec 3<>{place} && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
            );
            text_of(&run(ask.args(["-c", &line]))).contains("etcd_server_is_leader 1\n")
        };
        let mut leader = None;
        wait_for("a member of etcd to lead", || {
            leader = (1..=self.shape.etcds).find(|host| leads(*host));
            leader.is_some()
        });
        leader.expect("just seen")
    }

    // ---- the cluster

    /// Creates a cluster on all hosts, and waits until all daemons have joined.
    pub fn make_cluster(&mut self) {
        for host in 1..=self.shape.etcds {
            self.begin(&format!("etcd.{host}"));
        }
        // Wait for etcd here: `init` waits for etcd, and commands wait for the first monitor, but only
        // briefly.
        self.etcd_leader();
        let mut init = self.on(1, ASHLAR);
        init.args(["init", "--state", &self.etcd_urls()]).args(self.shape.networks);
        succeed(init.arg("--dir").arg(self.home(1)));
        self.begin("mon.1");
        self.await_monitors(1, 1);
        for host in 2..=self.shape.hosts {
            let token = self.json(1, &["token"])["token"].as_str().expect("a text").to_owned();
            let mut join = self.on(host, ASHLAR);
            succeed(join.args(["join", &token, "--dir"]).arg(self.home(host)));
            if host <= self.shape.monitors {
                let mut create = self.ashlar(host, &["mon", "create"]);
                succeed(create.arg(self.home(host).join(format!("mon.{host}"))));
                self.begin(&format!("mon.{host}"));
                self.await_monitors(1, host);
            }
        }
        for host in 1..=self.shape.osds {
            let name = format!("osd.{host}");
            let mut create = self.ashlar(host, &["osd", "create", "--size", "256MiB"]);
            succeed(create.args(["--commit", self.shape.commit]).arg(self.path(&name)));
            self.begin(&name);
        }
        self.await_osds(1);
    }

    /// Returns the host whose monitor leads, according to the monitors that host `asked` reaches; the
    /// monitor's id equals the number of its host. `None` if no monitor leads.
    fn leader_now(&self, asked: usize) -> Option<usize> {
        let rows = self.try_json(asked, &["mon", "ls"])?;
        let leads = rows.as_array()?.iter().find(|row| row["leads"] == true)?;
        usize::try_from(leads["id"].as_u64()?).ok()
    }

    /// Waits until a monitor leads; returns its host.
    pub fn leader(&self, asked: usize) -> usize {
        let mut leader = None;
        wait_for("a monitor to lead", || {
            leader = self.leader_now(asked);
            leader.is_some()
        });
        leader.expect("just seen")
    }

    /// Waits until another host's monitor leads; returns that host.
    pub fn await_leader_but(&self, asked: usize, former: usize) -> usize {
        let mut leader = former;
        wait_for("another monitor to lead", || {
            leader = self.leader_now(asked).unwrap_or(former);
            leader != former
        });
        leader
    }

    /// Waits until this many monitors are up.
    pub fn await_monitors(&self, asked: usize, count: usize) {
        let is_up = |rows: &Value| {
            let rows = rows.as_array().expect("a list");
            rows.len() == count && rows.iter().all(|row| row["up"] == true)
        };
        wait_for("every monitor to be up", || {
            self.try_json(asked, &["mon", "ls"]).is_some_and(|rows| is_up(&rows))
        });
    }

    /// Waits until every OSD is up.
    pub fn await_osds(&self, asked: usize) {
        let is_up = |rows: &Value| {
            let rows = rows.as_array().expect("a list");
            rows.len() == self.shape.osds && rows.iter().all(|row| row["up"] == true)
        };
        wait_for("every OSD to be up", || {
            self.try_json(asked, &["osd", "ls"]).is_some_and(|rows| is_up(&rows))
        });
    }

    /// Waits until every monitor and every OSD is up, and every PG has all its copies.
    pub fn await_whole(&self, asked: usize) {
        self.await_monitors(asked, self.shape.monitors);
        self.await_osds(asked);
        self.await_clean(asked);
    }

    /// Waits until every PG has all its copies.
    fn await_clean(&self, asked: usize) {
        let is_whole = |status: &Value| {
            let pgs = &status["pgs"];
            pgs["total"] == pgs["clean"] && pgs["total"] == pgs["active"] && pgs["total"] != 0
        };
        wait_for("every PG to be clean", || {
            self.try_json(asked, &["status"]).is_some_and(|status| is_whole(&status))
        });
    }

    /// Waits until `status` on one host satisfies a condition.
    pub fn await_status(&self, asked: usize, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_for(what, || self.try_json(asked, &["status"]).is_some_and(|status| is_so(&status)));
    }

    /// Returns the number of connections between the OSDs of the first two hosts in a network that etcd does
    /// not use.
    pub fn connections_between_osds(&self, network: &str) -> usize {
        let first = if network == V4 { "10.77.1.1" } else { "[fd77::1]" };
        let ss = succeed(self.on(2, "ss").args(["-Htn", "state", "established"]));
        let has_first = |line: &&str| line.split_whitespace().any(|word| word.starts_with(first));
        // Leave out connections with monitors, by their exact ports.
        let is_monitor = |word: &str| word.ends_with(":4130") || word.ends_with(":4131");
        let lines = ss.lines().filter(has_first);
        lines.filter(|line| !line.split_whitespace().any(is_monitor)).count()
    }

    /// Starts an NBD server on a host, with these options. Returns the address of the volume for NBD clients
    /// on any host.
    pub fn start_nbd(&mut self, host: usize, volume: &str, options: &[&str]) -> String {
        let name = format!("nbd-{volume}-{host}");
        let socket = self.path(&format!("{name}.sock"));
        let listen = format!("--listen=unix:{}", socket.display());
        let mut command = self.ashlar(host, &["nbd", volume, &listen]);
        self.start(&name, command.args(options));
        wait_for("NBD to listen", || socket.exists());
        format!("nbd+unix:///{volume}?socket={}", socket.display())
    }

    /// Asserts that the lock of a volume's only client has the mode that the commit mode requires: writes are
    /// acknowledged before they are flushed (lazy), or only after.
    pub fn assert_commit(&self, asked: usize, volume: &str) {
        let info = self.json(asked, &["volume", "info", volume]);
        assert_eq!(info["lock"]["lazy"], self.shape.commit == "fsync", "{info:#}");
    }

    /// Waits until every PG has all its copies, and stops the OSDs. Then `osd check` must find nothing wrong,
    /// and at least this many blocks must have identical copies.
    pub fn check_copies(&mut self, asked: usize, least: u64) {
        self.await_clean(asked);
        // An OSD may have sent its report before the last entries of the map arrived. Reads are served only
        // under these entries, so after a read all members have recorded them.
        let volumes = self.json(asked, &["volume", "ls"]);
        for row in volumes.as_array().expect("a list") {
            let name = row["name"].as_str().expect("a text");
            // The last client may still be detaching; until then no other client can attach its volume.
            wait_for("the volume's clients to have left", || {
                let info = self.try_json(asked, &["volume", "info", name]);
                info.is_some_and(|info| info["sessions"].as_array().is_some_and(Vec::is_empty))
            });
            let read =
                ["bench", "volume", name, "--op", "randread", "--depth", "8", "--seconds", "1"];
            assert!(self.json(asked, &read)["ops_per_second"].as_f64() > Some(0.0), "{name}");
        }
        // Stop the monitors first: they would remove each stopped OSD from its PGs, and its copies would then
        // not be compared with others.
        let is_monitor = |name: &String| name.starts_with("mon.");
        let monitors = self.daemons.iter().map(|(name, _)| name.clone()).filter(is_monitor);
        for monitor in monitors.collect::<Vec<_>>() {
            self.stop(&monitor);
        }
        let mut compare = Command::new(ASHLAR);
        compare.args(["check", "--json"]);
        for host in 1..=self.shape.osds {
            let name = format!("osd.{host}");
            self.stop(&name);
            let path = self.path(&name);
            let text = succeed(Command::new(ASHLAR).args(["osd", "check", "--json"]).arg(&path));
            let report: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(report["clean"], true, "{name}: {report:#}");
            compare.arg(path);
        }
        let found = run(&mut compare);
        let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
        assert_eq!(found["different"], 0, "{found:#}");
        assert!(found["blocks"].as_u64() >= Some(least), "{least} blocks: {found:#}");
        // Each block is compared with another copy.
        let bytes = least * (128 << 10);
        assert!(found["bytes_compared"].as_u64() >= Some(bytes), "{bytes} bytes: {found:#}");
        // Anything else that is found is data that is being removed in the background.
        let errors = found["findings"].as_array().expect("a list").iter();
        let errors = errors.filter(|finding| finding["severity"] == "error");
        assert_eq!(errors.count(), 0, "{found:#}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
        for host in 0..=self.shape.hosts {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(host)]).output();
        }
    }
}
