//! `ashlar osd run`, the loop of an OSD: passes the completions of one turn of the reactor to the node, and
//! the node's requests back to the reactor. All decisions are made in the node.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use ::engine::Rocks;
use base::{Incarnation, Time, TraceEvent};
use blockstore::RecoveryReport;
use client::{Config, Keeper};
use cluster::map::ClusterFile;
use cluster::message::Failure;
use format::door::{CloseReason, NetEvent, Peer, Role};
use io::{Disk, Event as IoEvent, Reactor, Trust};
use node::{Effect, Event, Identity, Node, Stalls, StopReason};

use super::engine;
use super::store_file::{blocks_of, commit_name, device_at, open_blocks, superblock_of};
use super::turns::{ANSWERS_TIME_MAX, Turns, doing, handle_for};
use crate::background;
use crate::cli::LogArgs;
use crate::daemon::{listen_at, listen_places, no_reactor};
use crate::output::failure;

/// If no monitor answers, this is logged after `ABSENCE_QUIET`, and then again every `ABSENCE_SPAN`.
const ABSENCE_QUIET: base::Duration = base::Duration::from_secs(5);
const ABSENCE_SPAN: base::Duration = base::Duration::from_secs(60);

/// Returns the path of the log of an OSD that runs in the background.
pub fn log_of(config: &Config, path: &Path) -> PathBuf {
    match device_at(path).and_then(Path::file_name) {
        Some(name) => config.dir.join(format!("osd-{}.log", name.to_string_lossy())),
        None => path.join("osd.log"),
    }
}

/// The OSD to run, and optionally its address.
#[derive(Clone, Copy)]
pub struct RunPlace<'a> {
    /// The directory or device of the OSD.
    pub path: &'a Path,
    /// The only address to listen on; if `None`, all addresses in the cluster's networks.
    pub listen: Option<&'a str>,
    /// The directory of the engine; if `None`, the usual one.
    pub objects: Option<&'a Path>,
}

/// Why a run has ended, and what the next one needs.
enum Ended {
    /// The OSD exits.
    ForGood,
    /// The disk hung; now it responds.
    Stalled(Stalls),
}

/// Bytes of memory that an OSD may use.
#[derive(Clone, Copy)]
pub struct Memory {
    /// For caches of the store and of the engine.
    pub caches: u64,
    /// For values of objects that were read.
    pub values: u64,
}

/// Runs `ashlar osd run`.
pub fn run(
    config: &Config,
    RunPlace { path, listen, objects }: RunPlace<'_>,
    memory: Memory,
    log: LogArgs,
    supervised: bool,
) -> Result<(), Failure> {
    let mut settings = node::Settings::default();
    settings.store.memory_bytes = memory.caches;
    settings.store.value_cache_bytes = memory.values;
    // `osd ls` shows this path, so it must not depend on the current directory.
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // `Disk::open` below takes the lock permanently; this check only gives a better message if another OSD
    // holds it.
    drop(open_blocks(&blocks_of(path), true)?);
    log.start(superblock_of(&blocks_of(path))?.osd.to_string());
    let objects = engine::directory_of(path, objects);
    let place = RunPlace { path, listen, objects: objects.as_deref() };
    loop {
        match run_once(config, place, supervised, &settings)? {
            Ended::ForGood => return Ok(()),
            Ended::Stalled(stalls) => {
                io::log::write(&TraceEvent::info("restarting after the disk hung"));
                settings.stalls = stalls;
            }
        }
    }
}

/// Runs the OSD once.
fn run_once(
    config: &Config,
    RunPlace { path, listen, objects }: RunPlace<'_>,
    supervised: bool,
    settings: &node::Settings,
) -> Result<Ended, Failure> {
    let blocks = blocks_of(path);
    let disk = Disk::open(&blocks)
        .map_err(|error| failure("io", error.to_string(), open_hint(&blocks)))?;
    let device_size = disk.size();
    let superblock = superblock_of(&blocks)?;
    let commit = superblock.commit;
    if disk.buffered() {
        let what = "O_DIRECT is not supported: I/O is buffered, with RWF_DSYNC";
        io::log::write(&TraceEvent::warn(what).with("path", blocks.display()));
    }
    let (buffered, is_sparse) = (disk.buffered(), !disk.is_device());
    let mut reactor = Reactor::new(io::Options::default()).map_err(no_reactor)?;
    reactor.watch_signals().map_err(no_reactor)?;
    reactor.attach_disk(disk);
    let trust = |incarnation| Trust {
        key: config.key.clone(),
        peer: Peer { cluster: config.file.cluster, role: Role::Osd(superblock.osd, incarnation) },
    };
    reactor.set_trust(trust(Incarnation::ZERO));
    let (addresses, peer_addresses) = listen_in_networks(&mut reactor, &config.file, listen)?;
    let all = [&peer_addresses[..], &addresses].concat();
    let event = TraceEvent::info("listening").list("addresses", all);
    io::log::write(&event.with("commit", commit_name(commit)));
    let identity = Identity {
        cluster: config.file.cluster,
        osd: superblock.osd,
        store: superblock.store.to_string(),
        monitors: config.file.monitors.clone(),
        addresses,
        peer_addresses,
        pid: std::process::id(),
        path: path.display().to_string(),
        host: config.host(),
        supervised,
    };
    let mut settings = settings.clone();
    let waker = reactor.waker();
    let memory = settings.store.memory_bytes;
    let (rocks, engine) = engine::open(path, objects, &superblock, memory, move || waker.wake())?;
    settings.engine = engine;
    settings.store.is_sparse = is_sparse;
    settings.store.shares_space_with_engine = engine::shares_space(path, objects);
    settings.buffered = buffered;
    let keeper = Keeper::new(config, io::log::write);
    serve((reactor, rocks), identity, settings, device_size, &trust, &keeper)
}

/// Explains what to do if an OSD's file or device, which can be read, cannot be opened for writing.
fn open_hint(blocks: &Path) -> &'static str {
    use std::io::ErrorKind;
    match std::fs::OpenOptions::new().read(true).write(true).open(blocks).map_err(|it| it.kind()) {
        Err(ErrorKind::ReadOnlyFilesystem) => {
            "its file system is mounted read-only: `dmesg` says whether it had errors; once they are \
             repaired, mount it read-write, and start the OSD again"
        }
        Err(ErrorKind::PermissionDenied) => {
            "the OSD must be able to write it: check its owner and permissions"
        }
        _ => "stop what uses it; if nothing does, see `dmesg`",
    }
}

/// Listens, and returns two lists: the addresses for all peers, and the addresses in the networks that are
/// only for OSDs. If `listen` is given, it is the only address.
fn listen_in_networks(
    reactor: &mut Reactor,
    file: &ClusterFile,
    listen: Option<&str>,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let places = |networks: &[String]| match networks.is_empty() {
        true => Ok(Vec::new()),
        false => listen_places(networks, 0),
    };
    let here = "tcp:127.0.0.1:0".to_owned();
    let (all, peers) = match listen {
        Some(listen) => (vec![listen.to_owned()], Vec::new()),
        None if file.networks.is_empty() => (vec![here], places(&file.osd_networks)?),
        None => (places(&file.networks)?, places(&file.osd_networks)?),
    };
    let addresses = listen_at(reactor, &all)?;
    let peer_addresses = match peers.is_empty() {
        true => Vec::new(),
        false => listen_at(reactor, &peers)?,
    };
    Ok((addresses, peer_addresses))
}

/// The loop of an OSD.
fn serve(
    (mut reactor, mut engine): (Reactor, Option<Rocks>),
    identity: Identity,
    settings: node::Settings,
    device_size: u64,
    trust: &dyn Fn(Incarnation) -> Trust,
    keeper: &Keeper,
) -> Result<Ended, Failure> {
    let mut absence = Absence::default();
    let mut effects = Vec::new();
    let mut events = Vec::new();
    let mut engine_events = Vec::new();
    // Answers of the engine that are left for the next turn: no more than the store has asked for.
    let mut engine_answers = VecDeque::new();
    let now = reactor.now();
    let pool = reactor.pool().clone();
    // Before it has joined, the OSD exits if every monitor refuses its key: retrying would not help.
    let mut refusals_left = identity.monitors.len();
    let mut node = Node::new(identity, settings, pool, device_size, now, &mut effects);
    let mut turns = Turns::new(now);
    loop {
        for effect in effects.drain(..) {
            match effect {
                Effect::Disk(effect) => reactor.disk(effect),
                Effect::Net(effect) => reactor.net(effect),
                Effect::Engine(effect) => {
                    engine.as_mut().expect("asked only if it is open").submit(effect);
                }
                Effect::Joined { incarnation } => {
                    refusals_left = usize::MAX;
                    io::log::write(&recovery_line(&node.recovery_report()));
                    background::report_ready();
                    reactor.set_trust(trust(incarnation));
                }
                Effect::Trace(event) => io::log::write(&event),
                Effect::LogLevel(level) => io::log::set_level(level),
                Effect::Stop(reason) => return stopped(reason, &node),
            }
        }
        turns.did("requests to disk, engine and network", reactor.now());
        let deadline = node.deadline();
        let until = if engine_answers.is_empty() { deadline } else { Some(reactor.now()) };
        reactor.turn(until, &mut events).map_err(no_reactor)?;
        let now = reactor.now();
        turns.waited(reactor.take_waited());
        turns.did("sending and receiving", now);
        node.set_time_of_day(now, io::wall_clock_ms());
        for event in events.drain(..) {
            if let Some(why) = distrust(&event) {
                let event = TraceEvent::warn("a monitor refused the connection");
                io::log::write(&event.with("why", why));
                refusals_left = refusals_left.saturating_sub(1);
                if refusals_left == 0 {
                    let hint = "check that the file `key` belongs to the monitor's cluster";
                    let message = format!("the monitor refused the connection: {why}");
                    return Err(failure("untrusted", message, hint));
                }
            }
            let what = doing(&event);
            tell(&mut node, now, event, &mut effects);
            turns.did(what, reactor.now());
        }
        if let Some(engine) = &mut engine {
            engine.take_events(&mut engine_events);
            engine_answers.extend(engine_events.drain(..));
        }
        handle_for(ANSWERS_TIME_MAX, reactor.now(), &mut engine_answers, |event| {
            node.apply(now, Event::Engine(event), &mut effects);
            let done = reactor.now();
            turns.did("answers of the engine", done);
            done
        });
        // If the events have just set a deadline that has already passed, the next turn returns at once.
        if deadline.is_some_and(|deadline| deadline <= now) {
            node.apply(now, Event::Tick, &mut effects);
            turns.did("timers", reactor.now());
        }
        node.finish_turn(now, &mut effects);
        turns.did("the journal", reactor.now());
        let (time, line) = turns.end();
        node.note_turn(time);
        line.iter().for_each(io::log::write);
        if let Some(addresses) = node.take_monitors() {
            keeper.update(addresses);
        }
        absence.update(now, node.seeks_monitor());
    }
}

/// Logs periodically while no monitor answers. A running OSD continues to serve I/O meanwhile, but an OSD
/// that has just started serves nothing without a monitor.
#[derive(Default)]
struct Absence {
    since: Option<Time>,
    /// When the absence was last logged.
    logged: Option<Time>,
}

impl Absence {
    /// Logs the absence of monitors when that is due. `sought`: the addresses at which the OSD looks for a
    /// monitor; `None` if a monitor answers.
    fn update(&mut self, now: Time, sought: Option<&[String]>) {
        let Some(addresses) = sought else {
            if let (Some(since), Some(_)) = (self.since, self.logged) {
                let away = now.since(since).as_millis();
                let event = TraceEvent::info("a monitor answers again");
                io::log::write(&event.number("away_ms", away));
            }
            *self = Absence::default();
            return;
        };
        let since = *self.since.get_or_insert(now);
        let quiet = self.logged.map_or(ABSENCE_QUIET, |_| ABSENCE_SPAN);
        if now >= self.logged.unwrap_or(since) + quiet {
            self.logged = Some(now);
            let event = TraceEvent::warn("no monitor answers: retrying");
            let event = event.number("away_ms", now.since(since).as_millis());
            io::log::write(&event.list("monitors", addresses));
        }
    }
}

/// Returns why a monitor does not trust this OSD, if the event reports that. Before it has joined, an OSD
/// connects only to monitors.
fn distrust(event: &IoEvent) -> Option<&str> {
    match event {
        IoEvent::Net(NetEvent::Closed { reason: CloseReason::Untrusted(why), .. }) => Some(why),
        _ => None,
    }
}

/// Returns a log line that says what recovery found.
fn recovery_line(report: &RecoveryReport) -> TraceEvent {
    let event = TraceEvent::info("the store is recovered").number("blocks", report.blocks);
    let event = event.number("journal_bytes", report.journal_bytes);
    event.list("decisions", report.rows.iter().map(|(row, count)| format!("@{row}:{count}")))
}

fn tell(node: &mut Node, now: Time, event: IoEvent, effects: &mut Vec<Effect>) {
    match event {
        IoEvent::Disk(event) => node.apply(now, Event::Disk(event), effects),
        IoEvent::Net(event) => node.apply(now, Event::Net(event), effects),
        IoEvent::Terminate => node.apply(now, Event::Shutdown, effects),
        // The engine has events: they are taken after these.
        IoEvent::Woken => {}
        // Other events do not occur in an OSD: it opens no raw streams.
        _ => {}
    }
}

fn stopped(reason: StopReason, node: &Node) -> Result<Ended, Failure> {
    match reason {
        StopReason::Shutdown => Ok(Ended::ForGood),
        StopReason::Stalled => Ok(Ended::Stalled(node.stalls())),
        StopReason::Store(text) => {
            Err(failure("store", text, "check the disk: ashlar osd check PATH"))
        }
        StopReason::Removed(text) => {
            let hint =
                "wipe its directory or disk; then `ashlar osd create` can create a new OSD there";
            Err(failure("removed", text, hint))
        }
        StopReason::Refused(text) => Err(failure("refused", text, "see `ashlar osd ls`")),
    }
}
