//! The setup of `up`: creates what is missing and starts the daemons in order, until volumes can be
//! written.
//!
//! The setup runs on its own thread, next to the main loop, and can be repeated: if it is killed at any
//! point, the next `up` continues from there.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::Duration;

use base::{ClusterId, OsdId};
use client::Config;
use cluster::map::{ClusterFile, FailureDomain};
use cluster::message::{Command, Failure, ObjectOptions};
use serde_json::Value;

use super::directory::{existing_osds, first_user_mark, gateway_file, gateway_place, is_stopped};
use super::event::{Event, FailedOsds, Role};
use super::protocol::{GatewayAccess, GatewayKey, NextSteps, WantedOsds, Work};
use crate::cli::{INDEX_POOL, REGION, StoreArg, UpArgs};
use crate::mon::MonitorFile;
use crate::osd::{CreateRequest, Place, blocks_of, create_osd, superblock_of};
use crate::output::failure;

/// Time limit for the monitor and the OSDs to start.
const START_TIME_MAX: Duration = Duration::from_secs(300);

/// A problem is reported only if it lasts this long: a new etcd must first elect a leader, and PGs wait for
/// leases.
const QUIET_TIME: Duration = Duration::from_secs(5);

/// Longest path of a socket, in bytes; the kernel's limit is a little higher.
const SOCKET_NAME_MAX: usize = 100;

/// Prefix of `state` in cluster.toml for the etcd that `up` runs; the address follows.
const OWN_ETCD: &str = "etcd:http://";
/// Prefix of the address of the etcd that `up` runs; the port follows.
const LOOPBACK: &str = "127.0.0.1:";
/// Name of the data directory of the etcd that `up` runs, in the cluster's directory.
const ETCD_DIRECTORY: &str = "etcd";

/// What to do about an OSD whose disk is lost.
const LOST_HINT: &str = "`ashlar status` then says what to do";

/// Name of the pool of volumes that the first start creates.
const POOL: &str = "default";

/// Number of OSDs of a new cluster.
const OSDS_DEFAULT: usize = 3;

/// Refuses the directory of a cluster of several hosts before anything in it is changed: `up` would give
/// the monitor a loopback address and publish that address to all hosts.
pub fn refuse_several_hosts(dir: &Path) -> Result<(), Failure> {
    // An unreadable file is reported later, with the reason.
    let text = fs::read_to_string(dir.join("cluster.toml")).unwrap_or_default();
    let file = toml::from_str::<ClusterFile>(&text);
    let has_monitor = MonitorFile::path(&dir.join("mon.1")).exists();
    if !has_monitor && !file.is_ok_and(|file| client::is_of_several_hosts(&file)) {
        return Ok(());
    }
    let message = format!(
        "{} belongs to a cluster of several hosts, but `up` runs a whole cluster on one machine",
        dir.display()
    );
    let hint = "run the daemons of this host: `ashlar mon run PATH`, `ashlar osd run PATH`, `ashlar \
                nbd`; or choose another directory with --dir";
    Err(failure("several_hosts", message, hint))
}

/// Starts the setup, which reports through `events`.
pub fn start(dir: &Path, args: &UpArgs, events: Sender<Event>, failed_osds: FailedOsds) {
    let (dir, wanted, state) = (dir.to_owned(), WantedOsds::of(args), args.state);
    let has_gateway = !args.no_gateway;
    let setup = Setup { dir, wanted, state, has_gateway, events, failed_osds };
    setup.begin(Setup::run);
}

/// Creates the OSDs that are missing in a running cluster, and starts the OSDs that are not in `running`.
/// Reports through `events`, as the setup does.
pub fn add_osds(
    dir: &Path,
    wanted: WantedOsds,
    running: BTreeSet<OsdId>,
    events: Sender<Event>,
    failed_osds: FailedOsds,
) {
    let (dir, state, has_gateway) = (dir.to_owned(), None, false);
    let setup = Setup { dir, wanted, state, has_gateway, events, failed_osds };
    setup.begin(move |setup| setup.add_osds(&running));
}

/// Ports below the kernel's default `ip_local_port_range`. The kernel does not assign these ports to
/// outgoing connections, so the chosen port stays free until the monitor or etcd listens on it.
const PORTS: std::ops::Range<u16> = 20_000..32_768;

/// Listens on a free loopback port, from `PORTS` if possible.
fn free_listener() -> std::io::Result<TcpListener> {
    let mut drawn = (0..64).map(|_| {
        let draw = u16::from_le_bytes(io::random_bytes());
        PORTS.start + draw % (PORTS.end - PORTS.start)
    });
    let free = drawn.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    free.map_or_else(|| TcpListener::bind("127.0.0.1:0"), Ok)
}

/// Waits until this process of an OSD has joined the cluster; returns `false` if `time` runs out first.
pub fn wait_joined(dir: &Path, osd: OsdId, pid: rustix::process::Pid, time: Duration) -> bool {
    let Ok(config) = Config::load(&dir.join("cluster.toml")) else { return false };
    let pid = i32::from(pid.as_raw_nonzero());
    let deadline = std::time::Instant::now() + time;
    while std::time::Instant::now() < deadline {
        let rows = client::call(&config, Command::OsdList, Duration::from_secs(2));
        let rows = rows.ok().and_then(|rows| rows.as_array().cloned()).unwrap_or_default();
        let is_it = |row: &Value| row["id"] == osd.get() && row["pid"] == pid && row["up"] == true;
        if rows.iter().any(is_it) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

struct Setup {
    dir: PathBuf,
    wanted: WantedOsds,
    state: Option<StoreArg>,
    /// Whether a gateway is started, too.
    has_gateway: bool,
    events: Sender<Event>,
    failed_osds: FailedOsds,
}

impl Setup {
    /// Runs `work` on a thread and reports the result as an event.
    fn begin(self, work: impl FnOnce(&Setup) -> Result<NextSteps, Failure> + Send + 'static) {
        std::thread::spawn(move || {
            let event = match work(&self) {
                Ok(steps) => Event::Ready(steps),
                Err(error) => Event::Failed(error),
            };
            let _ = self.events.send(event);
        });
    }

    fn run(&self) -> Result<NextSteps, Failure> {
        let config = self.cluster_files()?;
        self.refuse_misplaced_osds(&config)?;
        self.start_etcd(&config)?;
        self.start_monitor(&config)?;
        self.make_osds(&config)?;
        self.start_osds(&config, &self.existing_osds())?;
        self.make_pool(&config)?;
        let has_gateway = self.has_gateway && self.make_index_pool(&config)?;
        self.start_nbd()?;
        self.wait_active(&config)?;
        let gateway = if has_gateway { Some(self.start_gateway(&config)?) } else { None };
        Ok(NextSteps { next: self.next_steps(), gateway })
    }

    /// Creates missing OSDs and starts all that are not running, including OSDs that an earlier, failed
    /// attempt created.
    fn add_osds(&self, running: &BTreeSet<OsdId>) -> Result<NextSteps, Failure> {
        let config = Config::load(&self.dir)?;
        self.refuse_misplaced_osds(&config)?;
        self.make_osds(&config)?;
        let mut osds = self.existing_osds();
        osds.retain(|osd| !running.contains(osd));
        self.start_osds(&config, &osds)?;
        Ok(NextSteps { next: self.next_steps(), gateway: None })
    }

    /// Refuses a directory that holds another OSD than its name says: the OSD of that name would never come
    /// up, and the other one might run twice.
    fn refuse_misplaced_osds(&self, config: &Config) -> Result<(), Failure> {
        for osd in self.existing_osds() {
            let path = self.dir.join(osd.to_string());
            // A superblock that cannot be read is reported by the OSD.
            let Ok(found) = superblock_of(&blocks_of(&path)) else { continue };
            // One of another cluster is refused when it starts, and the cluster goes on without it.
            if found.cluster != config.file.cluster || found.osd == osd {
                continue;
            }
            let own = self.dir.join(found.osd.to_string());
            let what = match blocks_of(&own).exists() {
                true => format!(
                    "move it out of {}: {} is there, too",
                    self.dir.display(),
                    own.display()
                ),
                false => format!("rename it to {}", own.display()),
            };
            let message = format!("{} holds {}, not {osd}", path.display(), found.osd);
            let hint =
                format!("{what}. If the disk of {osd} is lost, start without it: {LOST_HINT}");
            return Err(failure("misplaced", message, hint));
        }
        Ok(())
    }

    fn say(&self, line: impl Into<String>) {
        let _ = self.events.send(Event::Progress(line.into()));
    }

    fn spawn(&self, role: Role, arguments: Vec<String>) {
        let _ = self.events.send(Event::Spawn(role, arguments));
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Loads the key and cluster.toml, which the first start creates. If another process has taken the port
    /// of the monitor or of etcd since the last start, a new port is chosen.
    fn cluster_files(&self) -> Result<Config, Failure> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            let message = format!("cannot write {} in {}: {error}", what, self.dir.display());
            failure("io", message, "check its permissions and free space")
        };
        if !self.dir.join("key").exists() {
            io::ClusterKey::create(&self.dir.join("key")).map_err(|e| cannot("the key", &e))?;
        }
        let path = self.dir.join("cluster.toml");
        let mut file = match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                let message = format!("cannot read {}: {error}", path.display());
                failure("invalid", message, "restore it from a backup")
            })?,
            Err(_) if !path.exists() => self.new_cluster_file()?,
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                return Err(failure("io", message, "check its permissions"));
            }
        };
        self.check_store(&file)?;
        let before = file.clone();
        let monitor = file.monitors.first().and_then(|address| address.strip_prefix("tcp:"));
        let etcd = file.state.as_deref().and_then(|state| state.strip_prefix(OWN_ETCD));
        let (monitor, etcd) = (monitor.map(str::to_owned), etcd.map(str::to_owned));
        // Keep both listeners open at the same time, so that the ports differ.
        let mut taken = Vec::new();
        let mut free_address = |old: Option<String>| -> std::io::Result<String> {
            let kept = old.and_then(|address| TcpListener::bind(address).ok());
            taken.push(match kept {
                Some(listener) => listener,
                None => free_listener()?,
            });
            Ok(taken.last().expect("just pushed").local_addr()?.to_string())
        };
        let no_port = |error: std::io::Error| {
            let message = format!("cannot find a free port: {error}");
            failure("io", message, "free a TCP port on the loopback address")
        };
        file.monitors = vec![format!("tcp:{}", free_address(monitor).map_err(no_port)?)];
        if self.owns_etcd(&file) {
            file.state = Some(format!("{OWN_ETCD}{}", free_address(etcd).map_err(no_port)?));
        }
        drop(taken);
        if file != before {
            let text = toml::to_string(&file).expect("plain data serializes to TOML");
            io::replace_file(&path, text.as_bytes(), 0o644)
                .map_err(|error| cannot("cluster.toml", &error))?;
        }
        Config::load(&self.dir)
    }

    /// Creates the state store and the contents of cluster.toml; called once, at the first start.
    fn new_cluster_file(&self) -> Result<ClusterFile, Failure> {
        let state = match self.state.unwrap_or(StoreArg::Embedded) {
            StoreArg::Embedded => {
                crate::mon::create(&self.dir.join("mon.1"))?;
                None
            }
            StoreArg::Etcd => {
                crate::etcd::find()?;
                crate::etcd::create(&self.dir.join(ETCD_DIRECTORY))?;
                Some(format!("{OWN_ETCD}{LOOPBACK}"))
            }
        };
        Ok(ClusterFile {
            cluster: Setup::new_cluster_id(),
            monitors: Vec::new(),
            state,
            networks: Vec::new(),
            osd_networks: Vec::new(),
            host: None,
        })
    }

    /// Whether the state is kept in the etcd that `up` runs.
    fn owns_etcd(&self, file: &ClusterFile) -> bool {
        let address = file.state.as_deref().and_then(|state| state.strip_prefix(OWN_ETCD));
        address.is_some_and(|address| address.starts_with(LOOPBACK) && !address.contains(','))
            && self.dir.join(ETCD_DIRECTORY).is_dir()
    }

    /// Refuses a `--state` that differs from where the state is kept.
    fn check_store(&self, file: &ClusterFile) -> Result<(), Failure> {
        let is_embedded = file.state.as_deref().is_none_or(|state| state == "embedded");
        let there = if is_embedded { StoreArg::Embedded } else { StoreArg::Etcd };
        if self.state.is_none_or(|wanted| wanted == there) {
            return Ok(());
        }
        let message = format!(
            "this cluster keeps its state {}",
            match there {
                StoreArg::Embedded => "in a file of its monitor",
                StoreArg::Etcd => "in etcd",
            }
        );
        let hint = format!("omit --state, or use --state {}", there.name());
        Err(failure("exists", message, hint))
    }

    /// Starts the etcd of this directory if the state is kept there; returns once etcd listens.
    fn start_etcd(&self, config: &Config) -> Result<(), Failure> {
        if !self.owns_etcd(&config.file) {
            return Ok(());
        }
        crate::etcd::find()?;
        let path = self.dir.join(ETCD_DIRECTORY);
        if !path.join("member").exists() && !self.existing_osds().is_empty() {
            let member = path.join("member");
            let message =
                format!("the state of this cluster is lost: {} is missing", member.display());
            return Err(failure("state", message, "restore it from a backup"));
        }
        self.say("starting etcd");
        let state = config.file.state.as_deref().unwrap_or_default();
        let address = state.strip_prefix(OWN_ETCD).unwrap_or_default().to_owned();
        let listen = format!("--listen={address}");
        self.spawn(Role::Etcd, vec!["etcd".into(), self.path(ETCD_DIRECTORY), listen]);
        let deadline = std::time::Instant::now() + START_TIME_MAX;
        while TcpStream::connect(&address).is_err() {
            if std::time::Instant::now() > deadline {
                let message = "etcd did not start within 5 minutes".to_owned();
                return Err(failure("timeout", message, format!("see {}", self.path("log"))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn new_cluster_id() -> ClusterId {
        ClusterId::new(u128::from_le_bytes(io::random_bytes()))
    }

    fn start_monitor(&self, config: &Config) -> Result<(), Failure> {
        self.say("starting the monitor");
        let mut arguments = vec!["mon".into(), "run".into(), self.path("mon.1")];
        if self.owns_etcd(&config.file) {
            // `start_etcd` refuses an etcd that lost its data, so an empty one is new.
            arguments.push("--new-cluster".into());
        }
        self.spawn(Role::Monitor, arguments);
        let started = std::time::Instant::now();
        let reported = std::cell::RefCell::new(String::new());
        self.wait(config, "state store", |status| {
            let checks = status["checks"].as_array().cloned().unwrap_or_default();
            let trouble = checks.iter().find(|check| check["code"] == "state_unavailable");
            let Some(message) = trouble.and_then(|check| check["message"].as_str()) else {
                return true;
            };
            let is_slow = started.elapsed() > QUIET_TIME;
            if is_slow && reported.replace(message.to_owned()) != message {
                self.say(message);
            }
            false
        })
    }

    fn make_osds(&self, config: &Config) -> Result<(), Failure> {
        let there = self.existing_osds().len();
        let is_cut_short = crate::osd::unfinished_osd(config, Place::Within(&self.dir))?.is_some();
        let wanted = match self.wanted.count {
            Some(count) => count as usize,
            // If there is no pool, the first start did not finish.
            None if self.pools(config)?.is_empty() => OSDS_DEFAULT,
            None => there,
        };
        // An OSD whose creation was interrupted already has an id, so it must be completed.
        let missing = wanted.saturating_sub(there).max(usize::from(is_cut_short));
        for number in 1..=missing {
            let title = format!("creating OSD {number} of {missing}");
            self.say(title.clone());
            let request = CreateRequest {
                place: Place::Within(&self.dir),
                size: Some(self.wanted.size),
                commit: self.wanted.commit,
            };
            let created = create_osd(config, &request, &mut |done_bytes, total_bytes| {
                let work = Work { title: title.clone(), done_bytes, total_bytes };
                let _ = self.events.send(Event::Work(work));
            })?;
            self.say(created.summary);
        }
        Ok(())
    }

    /// Starts OSDs; returns once each OSD is up, was stopped by hand, or has failed to start.
    fn start_osds(&self, config: &Config, osds: &[OsdId]) -> Result<(), Failure> {
        self.say(format!("starting {} OSDs", osds.len()));
        for osd in osds {
            if is_stopped(&self.dir, *osd) {
                self.say(format!(
                    "{osd} was stopped and remains stopped; start it with: ashlar osd start {osd}"
                ));
            }
            let arguments = vec!["osd".into(), "run".into(), self.path(&osd.to_string())];
            self.spawn(Role::Osd(*osd), arguments);
        }
        let missing = |status: &Value| -> Vec<OsdId> {
            let rows = status["osds"].as_array().cloned().unwrap_or_default();
            let up = |osd: &OsdId| {
                rows.iter().any(|row| row["id"] == osd.get() && row["up"] == Value::Bool(true))
            };
            osds.iter().copied().filter(|osd| !up(osd) && !self.goes_without(*osd)).collect()
        };
        match self.wait(config, "OSDs", |status| missing(status).is_empty()) {
            Err(error) if error.code == "timeout" => {
                let status = client::call(config, Command::Status, START_TIME_MAX)?;
                for osd in missing(&status) {
                    self.say(format!(
                        "{osd} did not start; continuing without it ({})",
                        error.hint
                    ));
                    self.failed_osds.lock().unwrap_or_else(PoisonError::into_inner).insert(osd);
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Whether the setup does not wait for this OSD, because it was stopped by hand or fails to start.
    fn goes_without(&self, osd: OsdId) -> bool {
        let failed = self.failed_osds.lock().unwrap_or_else(PoisonError::into_inner);
        failed.contains(&osd) || is_stopped(&self.dir, osd)
    }

    fn existing_osds(&self) -> Vec<OsdId> {
        existing_osds(&self.dir)
    }

    fn pools(&self, config: &Config) -> Result<Vec<Value>, Failure> {
        let pools = client::call(config, Command::PoolList, START_TIME_MAX)?;
        Ok(pools.as_array().cloned().unwrap_or_default())
    }

    fn make_pool(&self, config: &Config) -> Result<(), Failure> {
        if !self.pools(config)?.is_empty() {
            return Ok(());
        }
        let create = Command::PoolCreate {
            pool: POOL.into(),
            // The default: two copies, or one if there is only one OSD.
            scheme: None,
            min_size: None,
            pg_count: None,
            failure_domain: Some(FailureDomain::Osd),
            block_size: None,
            objects: None,
        };
        match client::call(config, create, START_TIME_MAX) {
            // The pool was created by an earlier attempt whose answer was lost.
            Err(error) if error.code == "exists" => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Creates the pool of the gateway's buckets, if it is not there, and marks that its first user is to be
    /// created. Returns `false` if the pool cannot be used.
    fn make_index_pool(&self, config: &Config) -> Result<bool, Failure> {
        let pools = self.pools(config)?;
        if let Some(pool) = pools.iter().find(|pool| pool["name"] == INDEX_POOL) {
            let is_usable = pool["kind"] == "object";
            if !is_usable {
                self.say(format!("no S3 gateway: the pool {INDEX_POOL} keeps volumes"));
            }
            return Ok(is_usable);
        }
        let mark = first_user_mark(&self.dir);
        fs::write(&mark, "").map_err(|error| {
            let message = format!("cannot write {}: {error}", mark.display());
            failure("io", message, "check its permissions and free space")
        })?;
        match client::call(config, index_pool(), START_TIME_MAX) {
            // The pool was created by an earlier attempt whose answer was lost.
            Err(error) if error.code == "exists" => Ok(true),
            result => result.map(|_| true),
        }
    }

    /// Starts the gateway; once it listens, creates the first user of a new one.
    fn start_gateway(&self, config: &Config) -> Result<GatewayAccess, Failure> {
        let place = self.gateway_place()?;
        self.say("starting the S3 gateway");
        let mut arguments = vec!["gateway".into(), format!("--listen=tcp:{place}")];
        match data_pool(&self.pools(config)?) {
            Some(pool) => arguments.push(format!("--data-pool={pool}")),
            None => {
                self.say("no pool keeps volumes: objects of the S3 gateway have at most 60 KiB")
            }
        }
        self.spawn(Role::Gateway, arguments);
        let deadline = std::time::Instant::now() + START_TIME_MAX;
        while TcpStream::connect(&place).is_err() {
            if std::time::Instant::now() > deadline {
                let message = "the gateway did not start within 5 minutes".to_owned();
                return Err(failure("timeout", message, format!("see {}", self.path("log"))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let key = if first_user_mark(&self.dir).exists() { self.first_key(config) } else { None };
        Ok(GatewayAccess { url: format!("http://{place}"), region: REGION.to_owned(), key })
    }

    /// Creates the first user and its key. The mark stays until the key was told.
    fn first_key(&self, config: &Config) -> Option<GatewayKey> {
        match crate::gateway::first_user(config, INDEX_POOL) {
            Ok((access_key, secret_key)) => Some(GatewayKey { access_key, secret_key }),
            // The cluster is up, and its volumes are there. The next `up` tries again.
            Err(error) => {
                self.say(format!("cannot create the first user: {}", error.message));
                None
            }
        }
    }

    /// Returns where the gateway listens: where it did before, if nobody else listens there now.
    fn gateway_place(&self) -> Result<String, Failure> {
        let before = gateway_place(&self.dir);
        if let Some(place) = before.filter(|place| TcpListener::bind(place).is_ok()) {
            return Ok(place);
        }
        let cannot = |error: std::io::Error| {
            let message = format!("cannot choose a port for the gateway: {error}");
            failure("io", message, "free a TCP port on the loopback address, or use --no-gateway")
        };
        let place = free_listener().and_then(|listener| listener.local_addr()).map_err(cannot)?;
        let place = place.to_string();
        io::replace_file(&gateway_file(&self.dir), place.as_bytes(), 0o644)
            .map_err(|error| cannot(std::io::Error::other(error.to_string())))?;
        Ok(place)
    }

    fn start_nbd(&self) -> Result<(), Failure> {
        let socket = self.dir.join("nbd.sock");
        if socket.as_os_str().len() > SOCKET_NAME_MAX {
            self.say(format!(
                "{} is too long for a socket path: start `ashlar nbd --listen` with a shorter one",
                socket.display()
            ));
            return Ok(());
        }
        let arguments = vec!["nbd".into(), format!("--listen=unix:{}", socket.display())];
        self.spawn(Role::Nbd, arguments);
        Ok(())
    }

    /// Waits until NBD clients can connect, and until every PG is served, needs the operator, or waits for
    /// an OSD that the setup does not wait for.
    fn wait_active(&self, config: &Config) -> Result<(), Failure> {
        let socket = self.dir.join("nbd.sock");
        let long = socket.as_os_str().len() > SOCKET_NAME_MAX;
        // A PG may look settled for a moment while its members are still connecting.
        let waits_since = std::cell::Cell::new(None);
        self.wait(config, "placement groups", |status| {
            let pgs = &status["pgs"];
            let is_served = pgs["total"] != 0 && pgs["total"] == pgs["active"];
            if !is_served && !self.pgs_settled(config, pgs) {
                waits_since.set(None);
                return false;
            }
            let since = waits_since.get().unwrap_or_else(std::time::Instant::now);
            waits_since.set(Some(since));
            (is_served || since.elapsed() > QUIET_TIME)
                && (long || std::os::unix::net::UnixStream::connect(&socket).is_ok())
        })?;
        let status = client::call(config, Command::Status, START_TIME_MAX)?;
        if status["pgs"]["total"] != status["pgs"]["active"] {
            self.say("some placement groups cannot serve I/O, see `ashlar status`");
        }
        Ok(())
    }

    /// Whether every PG is served (perhaps with fewer copies), needs the operator, or waits for an OSD
    /// that the setup does not wait for.
    fn pgs_settled(&self, config: &Config, pgs: &Value) -> bool {
        let active = pgs["active"].as_u64().unwrap_or(0);
        let settled = active + pgs["incomplete"].as_u64().unwrap_or(0);
        if pgs["total"] == 0 || pgs["total"] == settled {
            return pgs["total"] != 0;
        }
        let mut absent = self.existing_osds();
        absent.retain(|osd| self.goes_without(*osd));
        if absent.is_empty() {
            return false;
        }
        let rows = client::call(config, Command::PgList { pool: None }, START_TIME_MAX);
        let rows = rows.ok().and_then(|rows| rows.as_array().cloned()).unwrap_or_default();
        let waits = |row: &Value| {
            let members = row["acting"].as_array().into_iter().flatten();
            members
                .filter_map(Value::as_u64)
                .any(|osd| absent.iter().any(|absent| u64::from(absent.get()) == osd))
        };
        let stands = |row: &Value| {
            let state = row["state"].as_str();
            ["active", "degraded", "filling", "incomplete"].iter().any(|name| state == Some(name))
        };
        rows.iter().all(|row| stands(row) || waits(row))
    }

    /// Polls the status until `wanted` returns `true` for it. `what`: what did not start in time, for the
    /// message.
    fn wait(
        &self,
        config: &Config,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<(), Failure> {
        let deadline = std::time::Instant::now() + START_TIME_MAX;
        let mut is_reported = false;
        loop {
            let status = client::call(config, Command::Status, START_TIME_MAX)?;
            if wanted(&status) {
                return Ok(());
            }
            let mut checks = status["checks"].as_array().into_iter().flatten();
            let is_refused = |code: &str| matches!(code, "state_older" | "state_damaged");
            let refused = checks.find(|check| check["code"].as_str().is_some_and(is_refused));
            if let Some(check) = refused.filter(|_| !std::mem::replace(&mut is_reported, true)) {
                let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
                self.say(format!("{}: {}", text("message"), text("hint")));
            }
            if std::time::Instant::now() > deadline {
                let message = format!("the {what} did not come up within 5 minutes");
                return Err(failure("timeout", message, format!("see {}", self.path("log"))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn next_steps(&self) -> Vec<String> {
        let program = if Path::new("./ashlar").exists() { "./ashlar" } else { "ashlar" };
        let cluster = if self.dir.ends_with(".ashlar") {
            String::new()
        } else {
            format!(" --cluster {}", self.dir.display())
        };
        vec![
            format!("{program} status{cluster}"),
            format!("{program} volume create disk1 --size 10GiB{cluster}"),
            format!("nbdinfo 'nbd+unix:///disk1?socket={}'", self.path("nbd.sock")),
            format!("{program} down --dir {}", self.dir.display()),
        ]
    }
}

/// Returns the pool in which the gateway puts large data: that of the first start, or else the oldest one
/// with volumes.
fn data_pool(pools: &[Value]) -> Option<&str> {
    let mut names = pools.iter().filter(|pool| pool["kind"] == "block");
    let oldest = names.clone().min_by_key(|pool| pool["id"].as_u64());
    names.find(|pool| pool["name"] == POOL).or(oldest)?["name"].as_str()
}

/// Returns the command that creates the pool of the gateway's buckets.
fn index_pool() -> Command {
    /// PGs can never outnumber the shards, so there are enough for the largest cluster.
    const SHARDS: u32 = 4096;
    Command::PoolCreate {
        pool: INDEX_POOL.into(),
        // As the default pool: two copies, or one if there is only one OSD.
        scheme: None,
        min_size: None,
        pg_count: None,
        failure_domain: Some(FailureDomain::Osd),
        block_size: None,
        objects: Some(ObjectOptions { shards: Some(SHARDS), compression: None, grouped: true }),
    }
}
