//! `ashlar mon run`: passes events and effects between the reactor, the state store and the monitor's
//! logic.

use std::path::{Path, PathBuf};

use base::{Duration, MonitorId, Time, TraceEvent};
use client::{Config, Keeper};
use cluster::message::Failure;
use cluster::monitor::{Effect, Election, Event, Identity, StopReason};
use cluster::state::{StateEvent, StateStore};
use format::door::{Peer, Role};
use io::embedded::EmbeddedState;
use io::etcd::{EtcdPlace, EtcdState};
use io::{Event as IoEvent, Reactor, Trust, Waker};
use serde::{Deserialize, Serialize};

use crate::background;
use crate::cli::{LogArgs, StatePlace, parse_state};
use crate::daemon::{listen_at, no_reactor};
use crate::output::failure;

/// File of the embedded state store in a monitor's directory.
const STATE_FILE: &str = "state.redb";

/// How long a monitor that is shutting down tries to revoke its lease.
const RETIRE_TIME_MAX: Duration = Duration::from_secs(1);

/// How often a monitor requests the addresses of all monitors, and the time limit for the answer.
const LIST_SPAN: std::time::Duration = std::time::Duration::from_secs(10);
const LIST_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(12);

/// Creates the directory and the empty state store of a new cluster's monitor, unless they exist.
pub fn create(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|error| {
        failure("io", format!("cannot create {}: {error}", path.display()), "check its permissions")
    })?;
    let file = path.join(STATE_FILE);
    if file.exists() {
        return Ok(());
    }
    EmbeddedState::create(&file)
        .map_err(|error| failure("state", error.to_string(), "check permissions and free space"))
}

/// `monitor.toml` in a monitor's directory: its id and its addresses.
#[derive(Serialize, Deserialize)]
pub struct MonitorFile {
    /// The id of the monitor; ids are never reused.
    pub id: MonitorId,
    /// The addresses to listen on, as `tcp:HOST:PORT`.
    pub listen: Vec<String>,
}

impl MonitorFile {
    /// Returns the path of the file in a monitor's directory.
    pub fn path(directory: &Path) -> PathBuf {
        directory.join("monitor.toml")
    }

    /// Writes the file. Requires: the directory exists.
    pub fn save(&self, directory: &Path) -> Result<(), Failure> {
        let path = MonitorFile::path(directory);
        let text = toml::to_string(self).expect("plain data serializes to TOML");
        io::replace_file(&path, text.as_bytes(), 0o644).map_err(|error| {
            let message = format!("cannot write {}: {error}", path.display());
            failure("io", message, "check its permissions and free space")
        })
    }

    /// Reads the file. The single monitor of `up` has no such file: it listens at the addresses in
    /// cluster.toml.
    fn load(directory: &Path, config: &Config) -> Result<MonitorFile, Failure> {
        let path = MonitorFile::path(directory);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if client::is_of_several_hosts(&config.file) {
                    let message = format!("{} holds no monitor", directory.display());
                    return Err(failure(
                        "not_found",
                        message,
                        "create one: ashlar mon create PATH",
                    ));
                }
                let listen = config.file.monitors.iter().take(1).cloned().collect();
                return Ok(MonitorFile { id: MonitorId::FIRST, listen });
            }
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                return Err(failure("io", message, "check its permissions"));
            }
        };
        toml::from_str(&text).map_err(|error| {
            let message = format!("{} is damaged: {error}", path.display());
            failure(
                "invalid",
                message,
                "correct the file: it must have `id`, a number, and `listen`, a list of addresses",
            )
        })
    }
}

/// Runs a monitor until it receives a signal to stop. `state` overrides `state` in cluster.toml. An empty
/// state store is accepted only with `may_create`, for a new cluster.
pub fn run(
    config: &Config,
    path: &Path,
    state: Option<StatePlace>,
    may_create: bool,
    log: LogArgs,
) -> Result<(), Failure> {
    let file = MonitorFile::load(path, config)?;
    let monitor = file.id;
    log.start(monitor.to_string());
    let place = match state {
        Some(place) => place,
        None => place_of(config)?,
    };
    let mut reactor = Reactor::new(io::Options::default()).map_err(no_reactor)?;
    reactor.watch_signals().map_err(no_reactor)?;
    let state = open(&place, config, path, reactor.waker())
        .map_err(|error| failure("state", error.to_string(), "see docs/internals/state.md"))?;
    let peer = Peer { cluster: config.file.cluster, role: Role::Monitor(monitor) };
    reactor.set_trust(Trust { key: config.key.clone(), peer });
    let addresses = listen_at(&mut reactor, &file.listen)?;
    io::log::write(&TraceEvent::info("listening").list("addresses", &addresses));
    if matches!(place, StatePlace::Etcd(_)) {
        follow_others(config.clone(), addresses.clone());
    }
    let identity = Identity {
        cluster: config.file.cluster,
        monitor,
        pid: std::process::id(),
        host: config.host(),
        addresses,
        nonce: u64::from_le_bytes(io::random_bytes()),
    };
    let election = match place {
        StatePlace::Embedded => Election::only(identity),
        StatePlace::Etcd(_) => Election::new(identity, may_create),
    };
    let (effects, answers) = (Vec::new(), Vec::new());
    let shell = Shell { monitor, reactor, state, election, effects, answers };
    shell.serve()
}

/// Keeps the list of monitors in this host's cluster.toml up to date, because there may be no OSD on this
/// host that does so. `own`: the addresses of this monitor. Runs on a thread until the process exits.
fn follow_others(config: Config, own: Vec<String>) {
    std::thread::spawn(move || {
        let keeper = Keeper::new(&config, io::log::write);
        let mut last = Vec::new();
        loop {
            std::thread::sleep(LIST_SPAN);
            // Read the file each time, because it changes. It may not list this monitor yet.
            let Ok(mut config) = Config::load(&config.path) else { continue };
            config.file.monitors.extend(own.iter().cloned());
            let Ok(addresses) = client::monitors(&config, LIST_TIME_MAX) else { continue };
            if addresses != last {
                last.clone_from(&addresses);
                keeper.update(addresses);
            }
        }
    });
}

/// Returns where the state is kept, according to cluster.toml.
pub fn place_of(config: &Config) -> Result<StatePlace, Failure> {
    let Some(text) = &config.file.state else { return Ok(StatePlace::Embedded) };
    parse_state(text).map_err(|error| failure("invalid", error, "correct `state` in cluster.toml"))
}

fn open(
    place: &StatePlace,
    config: &Config,
    path: &Path,
    waker: Waker,
) -> Result<Box<dyn StateStore>, io::Error> {
    match place {
        StatePlace::Embedded => {
            Ok(Box::new(EmbeddedState::open(&path.join(STATE_FILE), move || waker.wake())?))
        }
        StatePlace::Etcd(urls) => {
            let place = EtcdPlace::parse(urls, &format!("ashlar/{}", config.file.cluster))?;
            let event =
                TraceEvent::info("keeping the state in etcd").list("endpoints", place.endpoints());
            io::log::write(&event.with("prefix", format!("{}/", place.prefix())));
            Ok(Box::new(EtcdState::connect(place, move || waker.wake())?))
        }
    }
}

struct Shell {
    monitor: MonitorId,
    reactor: Reactor,
    state: Box<dyn StateStore>,
    election: Election,
    effects: Vec<Effect>,
    answers: Vec<StateEvent>,
}

impl Shell {
    fn serve(mut self) -> Result<(), Failure> {
        let mut events = Vec::new();
        // The latest time to exit, set by a shutdown request. Before the exit the lease is revoked, so that
        // no other monitor has to wait for it to expire.
        let mut ends: Option<Time> = None;
        loop {
            let deadline = earlier(self.election.deadline(), self.state.deadline());
            let deadline = earlier(deadline, ends);
            self.reactor.turn(deadline, &mut events).map_err(no_reactor)?;
            let now = self.reactor.now();
            for event in events.drain(..) {
                match event {
                    IoEvent::Net(event) => self.tell(now, Event::Net(event))?,
                    IoEvent::Terminate => {
                        self.election.retire(&mut self.effects);
                        ends = Some(now + RETIRE_TIME_MAX);
                    }
                    _ => {}
                }
            }
            self.state.poll(now, &mut self.answers);
            self.carry_out(now)?;
            if self.election.deadline().is_some_and(|deadline| deadline <= now) {
                self.tell(now, Event::Tick)?;
            }
            if ends.is_some_and(|ends| self.election.is_retired() || ends <= now) {
                return Ok(());
            }
            if self.election.leader().is_some_and(|leader| leader != self.monitor) {
                background::report_ready();
            }
        }
    }

    fn tell(&mut self, now: Time, event: Event) -> Result<(), Failure> {
        self.election.apply(now, event, &mut self.effects);
        self.carry_out(now)
    }

    /// Carries out effects and passes on the store's answers, until none are left.
    fn carry_out(&mut self, now: Time) -> Result<(), Failure> {
        loop {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Net(effect) => self.reactor.net(effect),
                    Effect::State(effect) => self.state.apply(now, effect, &mut self.answers),
                    Effect::Trace(event) => io::log::write(&event),
                    Effect::LogLevel(level) => io::log::set_level(level),
                    Effect::Ready => background::report_ready(),
                    Effect::Stop(reason) => return Err(stopped(reason)),
                }
            }
            if self.answers.is_empty() {
                return Ok(());
            }
            for answer in std::mem::take(&mut self.answers) {
                self.election.apply(now, Event::State(answer), &mut self.effects);
            }
        }
    }
}

fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn stopped(reason: StopReason) -> Failure {
    match reason {
        StopReason::State(text) => failure("state", text, "see docs/internals/state.md"),
        StopReason::OtherCluster(text) => failure(
            "other_cluster",
            text,
            "specify the directory of the right cluster with --cluster",
        ),
        StopReason::Removed(text) => failure("removed", text, "see `ashlar mon ls`"),
        StopReason::LostLeadership(text) => failure("not_leader", text, "start this monitor again"),
    }
}
