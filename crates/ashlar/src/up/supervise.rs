//! The main loop of `up`: starts children, restarts those that exited, answers requests.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use base::{OsdId, TraceEvent};
use cluster::message::Failure;
use rustix::process::{Pid, Signal, kill_process};

use super::directory::{
    existing_osds, first_user_mark, is_stopped, log_of, socket_path, stop_mark,
};
use super::event::{Event, FailedOsds, Role};
use super::protocol::{Answer, EndedChild, NextSteps, Request, WantedOsds, Work};
use super::setup;
use super::show::{Ready, WorkShow, print_ready};
use crate::REMOVED_CODE;
use crate::background;
use crate::cli::{LogArgs, RestartAfter, UpArgs};
use crate::output::{Format, exit_reason, failure};

/// Time limit for a child to exit after SIGTERM; then it is killed. A gateway finishes its requests first.
const STOP_TIME_MAX: Duration = Duration::from_secs(15);

/// A log larger than this, in bytes, is renamed to `.log.old` when its child starts.
const LOG_SIZE_MAX: u64 = 16 << 20;

/// Maximum number of failed starts before the setup gives up on a child. Without an OSD the setup continues;
/// without any other child it fails.
const STARTS_BEFORE_READY_MAX: u64 = 3;

/// A child that exits within this time (and was not killed by a signal) has failed to start.
const START_SPAN: Duration = Duration::from_secs(10);

/// Longest delay before a child that failed to start is restarted (unless `--restart-after` is longer).
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// One child.
struct Child {
    arguments: Vec<String>,
    state: State,
    run: u64,
    started: Instant,
    /// Consecutive failures to start.
    failures: u32,
    /// Exit status of the last run, as text; empty if the child was removed from the cluster.
    ended: String,
    /// Whether the setup waits for this child.
    is_awaited: bool,
    /// Connections of commands that wait until this child has exited.
    waiting: Vec<UnixStream>,
    /// Connections of commands that started this OSD and wait until it has joined.
    starting: Vec<UnixStream>,
}

/// State of a child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running(Pid),
    /// SIGTERM was sent; the child is killed at this time.
    Stopping(Pid, Instant),
    /// The child has exited; it is restarted at this time, or never if `None`.
    Dead(Option<Instant>),
    /// The child was stopped by hand.
    Stopped,
}

struct Supervisor<'a> {
    dir: &'a Path,
    restart_after: RestartAfter,
    log: LogArgs,
    program: PathBuf,
    children: BTreeMap<Role, Child>,
    events: Sender<Event>,
    /// What to tell the user, and until somebody was told the key of the first user; `None` until volumes
    /// can be written.
    ready: Option<NextSteps>,
    /// Connections of commands that wait for the setup, or later for OSDs that are being added.
    waiting: Vec<UnixStream>,
    failed_osds: FailedOsds,
    /// Messages that the setup has reported; they are repeated to commands that connect later.
    reports: Vec<String>,
    format: Format,
    is_background: bool,
    show: WorkShow,
}

/// Runs the cluster until a request or signal to stop arrives, or the setup fails.
pub fn run(dir: &Path, args: &UpArgs, format: Format, lock: File) -> Result<(), Failure> {
    let background = background::is_background_up();
    args.log.start("up");
    if background {
        // Start a new session, so that this process survives when the terminal closes.
        let _ = rustix::process::setsid();
    }
    let cannot = |error: std::io::Error| {
        let message = format!("cannot run the cluster in {}: {error}", dir.display());
        failure("io", message, "check its permissions")
    };
    let (events, inbox) = channel();
    listen(dir, events.clone()).map_err(cannot)?;
    watch_signals(events.clone()).map_err(cannot)?;
    let format = if background { Format::Json } else { format };
    let mut supervisor = Supervisor {
        dir,
        restart_after: args.restart_after,
        log: args.log,
        program: std::env::current_exe().map_err(cannot)?,
        children: BTreeMap::new(),
        events: events.clone(),
        ready: None,
        waiting: Vec::new(),
        failed_osds: FailedOsds::default(),
        reports: Vec::new(),
        format,
        is_background: background,
        show: WorkShow::new(format),
    };
    setup::start(dir, args, events, supervisor.failed_osds.clone());
    let result = supervisor.serve(&inbox);
    supervisor.stop_all(&inbox);
    let _ = fs::remove_file(dir.join("up.sock"));
    drop(lock);
    result
}

fn listen(dir: &Path, events: Sender<Event>) -> std::io::Result<()> {
    let _ = fs::remove_file(dir.join("up.sock"));
    let (open, path) = socket_path(dir).map_err(|error| std::io::Error::other(error.message))?;
    let listener = UnixListener::bind(path)?;
    drop(open);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let events = events.clone();
            std::thread::spawn(move || read_request(connection, &events));
        }
    });
    Ok(())
}

fn read_request(connection: UnixStream, events: &Sender<Event>) {
    let _ = connection.set_read_timeout(Some(Duration::from_secs(10)));
    let Ok(reader) = connection.try_clone() else { return };
    let mut line = String::new();
    let read = BufReader::new(std::io::Read::take(reader, 4096)).read_line(&mut line);
    match read.ok().and_then(|_| serde_json::from_str(&line).ok()) {
        Some(request) => drop(events.send(Event::Asked(request, connection))),
        None => {
            let hint = "use the same version of ashlar as the running `ashlar up`";
            answer(
                &connection,
                &failed("invalid", "`ashlar up` does not understand this request", hint),
            );
        }
    }
}

fn watch_signals(events: Sender<Event>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let _ = events.send(Event::Terminate);
        }
    });
    Ok(())
}

/// Answers a command. It may have exited, and nobody else needs the answer.
fn answer(connection: &UnixStream, answer: &Answer) {
    let _ = is_answered(connection, answer);
}

/// Answers a command, and returns whether the answer was written.
fn is_answered(mut connection: &UnixStream, answer: &Answer) -> bool {
    let line = serde_json::to_string(answer).expect("plain data serializes to JSON");
    writeln!(connection, "{line}").is_ok()
}

fn done() -> Answer {
    Answer::Done { steps: NextSteps::default(), osds_failed: Vec::new() }
}

fn going_down() -> Answer {
    let hint = "once it is down, start it again: ashlar up --detach";
    failed("busy", "the cluster is shutting down", hint)
}

fn failed(code: &str, message: &str, hint: &str) -> Answer {
    Answer::Failed { error: failure(code, message, hint) }
}

impl Supervisor<'_> {
    /// Handles events until a shutdown is requested or the setup fails.
    fn serve(&mut self, inbox: &Receiver<Event>) -> Result<(), Failure> {
        loop {
            match self.next_event(inbox) {
                None => self.on_time(),
                Some(Event::Spawn(role, arguments)) => self.add(role, arguments),
                Some(Event::Exited(role, run, status)) => self.on_exit(&role, run, status),
                Some(Event::Started(osd, run, up)) => self.on_started(osd, run, up),
                Some(Event::Asked(Request::Down, connection)) => {
                    self.end_waiting(&going_down());
                    self.waiting.push(connection);
                    return Ok(());
                }
                Some(Event::Asked(request, connection)) => self.on_request(request, connection),
                Some(Event::Progress(line)) => self.on_progress(line),
                Some(Event::Work(work)) => self.on_work(work),
                Some(Event::Ready(steps)) => self.on_ready(steps),
                Some(Event::Failed(error)) => {
                    self.end_waiting(&Answer::Failed { error: error.clone() });
                    if self.ready.is_none() {
                        return Err(error);
                    }
                }
                Some(Event::Terminate) => {
                    self.end_waiting(&going_down());
                    return Ok(());
                }
            }
        }
    }

    /// Returns the OSDs that should run but fail to start.
    fn osds_failed(&self) -> Vec<OsdId> {
        let failed = self.failed_osds.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = |osd: &OsdId| {
            let child = self.children.get(&Role::Osd(*osd));
            child.is_none_or(|child| matches!(child.state, State::Running(_)))
        };
        failed.iter().copied().filter(|osd| !runs(osd)).collect()
    }

    /// Answers all waiting commands. Returns whether somebody was told.
    fn end_waiting(&mut self, with: &Answer) -> bool {
        let answered = |told, connection: UnixStream| is_answered(&connection, with) || told;
        self.waiting.drain(..).fold(false, answered)
    }

    /// Waits for the next event. Returns `None` when it is time to restart or kill a child.
    fn next_event(&self, inbox: &Receiver<Event>) -> Option<Event> {
        let due = self.children.values().filter_map(|child| match child.state {
            State::Stopping(_, at) | State::Dead(Some(at)) => Some(at),
            State::Running(_) | State::Dead(None) | State::Stopped => None,
        });
        match due.min() {
            None => Some(inbox.recv().expect("this process keeps a sender open")),
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
        }
    }

    fn add(&mut self, role: Role, arguments: Vec<String>) {
        let stays = matches!(role, Role::Osd(osd) if is_stopped(self.dir, osd));
        let state = if stays { State::Stopped } else { State::Dead(None) };
        let child = Child {
            arguments,
            state,
            run: 0,
            started: Instant::now(),
            failures: 0,
            ended: String::new(),
            is_awaited: true,
            waiting: Vec::new(),
            starting: Vec::new(),
        };
        self.children.insert(role.clone(), child);
        if !stays {
            self.spawn(&role);
        }
    }

    fn spawn(&mut self, role: &Role) {
        let Some(child) = self.children.get_mut(role) else { return };
        child.run += 1;
        child.started = Instant::now();
        let run = child.run;
        match start_process(&self.program, self.dir, self.log, role, &child.arguments) {
            Ok(mut process) => {
                let pid = Pid::from_child(&process);
                child.state = State::Running(pid);
                let (events, role) = (self.events.clone(), role.clone());
                std::thread::spawn(move || {
                    let _ = events.send(Event::Exited(role, run, process.wait()));
                });
            }
            Err(error) => {
                let event = TraceEvent::error("cannot start a child process")
                    .with("child", role.log_name());
                child.ended = error.to_string();
                io::log::write(&event.with("why", error));
                child.failures += 1;
                let delay = restart_delay(self.restart_after, child.failures);
                child.state = State::Dead(delay.map(|delay| Instant::now() + delay));
            }
        }
    }

    fn on_exit(&mut self, role: &Role, run: u64, status: std::io::Result<ExitStatus>) {
        let restart_after = self.restart_after;
        let Some(child) = self.children.get_mut(role).filter(|child| child.run == run) else {
            return;
        };
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        // A child that was killed by a signal did not fail to start.
        let has_failed = code.is_some() && child.started.elapsed() < START_SPAN;
        child.failures = if has_failed { child.failures + 1 } else { 0 };
        child.ended.clone_from(&status);
        let name = role.log_name();
        child.state = match child.state {
            State::Stopping(..) => State::Stopped,
            _ if code == Some(i32::from(REMOVED_CODE)) => {
                let what = "a daemon was removed from the cluster: not restarting it";
                io::log::write(&TraceEvent::info(what).with("child", name));
                child.ended.clear();
                State::Dead(None)
            }
            _ => {
                let delay = restart_delay(restart_after, child.failures);
                let event = TraceEvent::warn("a child process exited").with("child", name);
                let event = event.with("status", &status);
                io::log::write(&match delay {
                    Some(delay) => event.number("restart_after_ms", delay.as_millis() as u64),
                    None => event.with("restart", "never"),
                });
                State::Dead(delay.map(|delay| Instant::now() + delay))
            }
        };
        let is_hopeless =
            run >= STARTS_BEFORE_READY_MAX || matches!(child.state, State::Dead(None));
        let has_died = matches!(child.state, State::Dead(_));
        for connection in child.waiting.drain(..) {
            answer(&connection, &done());
        }
        for connection in std::mem::take(&mut child.starting) {
            let error = never_started(self.dir, role, &status);
            answer(&connection, &Answer::Failed { error });
        }
        let is_awaited = self.children.get(role).is_some_and(|child| child.is_awaited);
        if is_awaited && has_died && is_hopeless {
            self.on_hopeless(role, &status);
        }
    }

    /// Answers the commands that started this OSD.
    fn on_started(&mut self, osd: OsdId, run: u64, has_joined: bool) {
        let log = self.dir.join("log").join(format!("{osd}.log"));
        let Some(child) = self.children.get_mut(&Role::Osd(osd)).filter(|child| child.run == run)
        else {
            return;
        };
        let late =
            format!("{osd} is running but has not joined the cluster yet, see {}", log.display());
        for connection in child.starting.drain(..) {
            if !has_joined {
                answer(&connection, &Answer::Progress { line: late.clone() });
            }
            answer(&connection, &done());
        }
    }

    /// Handles a child that repeatedly fails to start. The cluster can run without an OSD, but not without
    /// any other child.
    fn on_hopeless(&mut self, role: &Role, status: &str) {
        let error = never_started(self.dir, role, status);
        let Role::Osd(osd) = role else {
            let _ = self.events.send(Event::Failed(error));
            return;
        };
        let is_new = self.failed_osds.lock().unwrap_or_else(PoisonError::into_inner).insert(*osd);
        if is_new {
            self.on_progress(format!(
                "{}; continuing without it: I/O to data on this OSD may wait ({}; once it is repaired: \
                 ashlar osd start {osd})",
                error.message, error.hint
            ));
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        let mut due = Vec::new();
        for (role, child) in &self.children {
            match child.state {
                State::Stopping(pid, at) if at <= now => {
                    let _ = kill_process(pid, Signal::KILL);
                }
                State::Dead(Some(at)) if at <= now => due.push(role.clone()),
                _ => {}
            }
        }
        for role in due {
            self.spawn(&role);
        }
        for child in self.children.values_mut() {
            if let State::Stopping(pid, at) = child.state
                && at <= now
            {
                child.state = State::Stopping(pid, now + STOP_TIME_MAX);
            }
        }
    }

    fn on_request(&mut self, request: Request, connection: UnixStream) {
        match request {
            Request::Wait => match &self.ready {
                Some(steps) => {
                    let (steps, osds_failed) = (steps.clone(), self.osds_failed());
                    if is_answered(&connection, &Answer::Done { steps, osds_failed }) {
                        self.on_told();
                    }
                }
                None => {
                    for line in &self.reports {
                        answer(&connection, &Answer::Progress { line: line.clone() });
                    }
                    self.waiting.push(connection);
                }
            },
            Request::Ended => answer(&connection, &self.ended_children()),
            Request::AddOsds(wanted) => self.add_osds(wanted, connection),
            Request::StopOsd { osd } => self.stop_by_hand(osd, connection),
            Request::StartOsd { osd } => self.start_by_hand(osd, connection),
            Request::Down => unreachable!("`serve` handles `Down` itself"),
        }
    }

    fn ended_children(&self) -> Answer {
        let now = Instant::now();
        let children = self.children.iter().filter_map(|(role, child)| {
            let State::Dead(again) = child.state else { return None };
            if child.ended.is_empty() {
                return None;
            }
            let again_in = again.map(|at| at.saturating_duration_since(now).as_millis() as u64);
            Some(EndedChild {
                child: role.log_name(),
                status: child.ended.clone(),
                again_in_ms: again_in,
                log: log_of(self.dir, role),
            })
        });
        Answer::Ended { children: children.collect() }
    }

    /// Creates OSDs in a running cluster. Drops OSDs whose disk is gone, so that they are not restarted.
    fn add_osds(&mut self, wanted: WantedOsds, connection: UnixStream) {
        if self.ready.is_none() || !self.waiting.is_empty() {
            let hint = "try again once they are up";
            return answer(&connection, &failed("busy", "OSDs are already being added", hint));
        }
        self.waiting.push(connection);
        let there = existing_osds(self.dir);
        self.children.retain(|role, child| match role {
            Role::Osd(osd) => !matches!(child.state, State::Dead(_)) || there.contains(osd),
            Role::Etcd | Role::Monitor | Role::Nbd | Role::Gateway => true,
        });
        let osd_of = |role: &Role| if let Role::Osd(osd) = role { Some(*osd) } else { None };
        let running = self.children.keys().filter_map(osd_of).collect();
        let (events, failed_osds) = (self.events.clone(), self.failed_osds.clone());
        setup::add_osds(self.dir, wanted, running, events, failed_osds);
    }

    fn stop_by_hand(&mut self, osd: OsdId, connection: UnixStream) {
        let Some(child) = self.children.get_mut(&Role::Osd(osd)) else {
            return answer(&connection, &no_such_osd(osd));
        };
        if let Err(error) = File::create(stop_mark(self.dir, osd)) {
            return answer(&connection, &cannot_mark(osd, &error));
        }
        match child.state {
            State::Running(pid) => {
                let _ = kill_process(pid, Signal::TERM);
                child.state = State::Stopping(pid, Instant::now() + STOP_TIME_MAX);
                child.waiting.push(connection);
            }
            State::Stopping(..) => child.waiting.push(connection),
            State::Dead(_) | State::Stopped => {
                child.state = State::Stopped;
                answer(&connection, &done());
            }
        }
    }

    fn start_by_hand(&mut self, osd: OsdId, connection: UnixStream) {
        let role = Role::Osd(osd);
        let Some(child) = self.children.get(&role) else {
            return answer(&connection, &no_such_osd(osd));
        };
        let state = child.state;
        if matches!(state, State::Stopping(..)) {
            let busy = failed("busy", &format!("{osd} is still stopping"), "try again");
            return answer(&connection, &busy);
        }
        let blocks = self.dir.join(osd.to_string()).join("blocks");
        if !matches!(state, State::Running(_)) && !blocks.exists() {
            let message = format!("{osd} has no disk: {} is missing", blocks.display());
            let count = existing_osds(self.dir).len() + 1;
            let hint = format!(
                "restore it, or if it is lost: `ashlar up --osds {count}` creates a new OSD, `ashlar osd \
                 out {0}` restores the copies elsewhere, then `ashlar osd rm {0}`",
                osd.get()
            );
            return answer(&connection, &failed("not_found", &message, &hint));
        }
        if let Err(error) = fs::remove_file(stop_mark(self.dir, osd))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return answer(&connection, &cannot_mark(osd, &error));
        }
        if !matches!(state, State::Running(_)) {
            self.spawn(&role);
        }
        let Some(child) = self.children.get_mut(&role) else { return };
        let State::Running(pid) = child.state else {
            let log = self.dir.join("log/up.log");
            let message = format!("{osd} cannot be started");
            let hint = format!("see {}", log.display());
            return answer(&connection, &failed("died", &message, &hint));
        };
        child.starting.push(connection);
        let (dir, events, run) = (self.dir.to_owned(), self.events.clone(), child.run);
        std::thread::spawn(move || {
            let has_joined = setup::wait_joined(&dir, osd, pid, START_SPAN);
            let _ = events.send(Event::Started(osd, run, has_joined));
        });
    }

    fn on_work(&mut self, work: Work) {
        self.show.work(&work);
        let progress = Answer::Work(work);
        for connection in &self.waiting {
            answer(connection, &progress);
        }
    }

    fn on_progress(&mut self, line: String) {
        self.show.line(&line);
        self.reports.push(line.clone());
        let progress = Answer::Progress { line };
        for connection in &self.waiting {
            answer(connection, &progress);
        }
    }

    fn on_ready(&mut self, mut steps: NextSteps) {
        if steps.gateway.is_none() {
            steps.gateway = self.ready.as_ref().and_then(|ready| ready.gateway.clone());
        }
        let osds_failed = self.osds_failed();
        let done = Answer::Done { steps: steps.clone(), osds_failed: osds_failed.clone() };
        let mut is_told = self.end_waiting(&done);
        self.children.values_mut().for_each(|child| child.is_awaited = false);
        if !self.is_background && self.ready.is_none() {
            let ready = Ready { steps: steps.clone(), osds_failed };
            // The cluster is up, whether somebody reads it or not.
            is_told |=
                print_ready(self.dir, self.format, "is up (stop it with Ctrl-C)", &ready).is_ok();
        }
        self.ready = Some(steps);
        if is_told {
            self.on_told();
        }
    }

    /// Somebody was told what is ready: a secret is told once.
    fn on_told(&mut self) {
        let Some(steps) = &mut self.ready else { return };
        if steps.gateway.as_ref().is_some_and(|gateway| gateway.key.is_some()) {
            *steps = steps.again();
            let _ = fs::remove_file(first_user_mark(self.dir));
        }
    }

    /// Stops all children, then answers the commands that requested the shutdown. Order: first the gateway
    /// and the NBD server, so that no request is in flight; then the monitor, because otherwise it would
    /// remove each
    /// exiting OSD from its PGs and the next start would have to undo that; then the OSDs; last the state
    /// store.
    fn stop_all(&mut self, inbox: &Receiver<Event>) {
        let order: [fn(&Role) -> bool; 4] = [
            |role| matches!(role, Role::Nbd | Role::Gateway),
            |role| *role == Role::Monitor,
            |role| matches!(role, Role::Osd(_)),
            |role| *role == Role::Etcd,
        ];
        for belongs in order {
            self.stop_some(belongs, inbox);
        }
        self.end_waiting(&done());
    }

    fn stop_some(&mut self, belongs: fn(&Role) -> bool, inbox: &Receiver<Event>) {
        for (role, child) in self.children.iter_mut().filter(|(role, _)| belongs(role)) {
            match child.state {
                State::Running(pid) => {
                    let _ = kill_process(pid, Signal::TERM);
                    child.state = State::Stopping(pid, Instant::now() + stop_time(role));
                }
                State::Dead(_) => child.state = State::Stopped,
                State::Stopping(..) | State::Stopped => {}
            }
        }
        let stopping = |supervisor: &Self| {
            let mut children = supervisor.children.iter().filter(|(role, _)| belongs(role));
            children.any(|(_, child)| matches!(child.state, State::Stopping(..)))
        };
        while stopping(self) {
            match self.next_event(inbox) {
                None => self.on_time(),
                Some(Event::Exited(role, run, status)) => self.on_exit(&role, run, status),
                Some(Event::Asked(Request::Down, connection)) => self.waiting.push(connection),
                Some(Event::Asked(_, connection)) => answer(&connection, &going_down()),
                Some(_) => {}
            }
        }
    }
}

/// Returns how long a child may take to exit after SIGTERM.
fn stop_time(role: &Role) -> Duration {
    match role {
        Role::Gateway => gateway::Limits::default().stop_time + STOP_TIME_MAX,
        Role::Etcd | Role::Monitor | Role::Osd(_) | Role::Nbd => STOP_TIME_MAX,
    }
}

/// Returns the failure of a child that fails to start, with the reason from its log.
fn never_started(dir: &Path, role: &Role, status: &str) -> Failure {
    let log = log_of(dir, role);
    let text = fs::read_to_string(&log).unwrap_or_default();
    let why = exit_reason(&text);
    let message = format!("{} failed to start ({status}): {why}", role.log_name());
    failure("died", message, format!("see {}", log.display()))
}

fn cannot_mark(osd: OsdId, error: &std::io::Error) -> Answer {
    let message = format!("cannot record that {osd} was stopped or started: {error}");
    failed("io", &message, "check the permissions of its directory")
}

fn no_such_osd(osd: OsdId) -> Answer {
    failed("not_found", &format!("this `ashlar up` does not run {osd}"), "see `ashlar osd ls`")
}

/// Returns the delay before a child is restarted after this number of consecutive failed starts. The delay
/// doubles with each failure after the second. `None`: never restart.
fn restart_delay(restart_after: RestartAfter, failures: u32) -> Option<Duration> {
    let RestartAfter::Time(time) = restart_after else { return None };
    let doublings = failures.saturating_sub(2).min(16);
    Some(time.saturating_mul(1 << doublings).min(BACK_OFF_MAX.max(time)))
}

/// Starts a child whose standard output and standard error go to its log.
fn start_process(
    program: &Path,
    dir: &Path,
    log_args: LogArgs,
    role: &Role,
    arguments: &[String],
) -> std::io::Result<std::process::Child> {
    let path = log_of(dir, role);
    if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_SIZE_MAX) {
        fs::rename(&path, path.with_extension("log.old"))?;
    }
    let log = OpenOptions::new().create(true).append(true).open(&path)?;
    Command::new(program)
        .args(arguments)
        .arg(format!("--parent={}", std::process::id()))
        .arg("--cluster")
        .arg(dir)
        .env_remove(background::UP_VARIABLE)
        .envs(log_args.variables())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C on a terminal must reach only this process, which stops the children in order.
        .process_group(0)
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_restart_delay_grows_with_each_failure_to_start() {
        let after = |failures| restart_delay(RestartAfter::Time(Duration::from_secs(1)), failures);
        let delays: Vec<u64> = (0..6).filter_map(after).map(|delay| delay.as_secs()).collect();
        assert_eq!(delays, [1, 1, 1, 2, 4, 8]);
        assert_eq!(after(1_000), Some(BACK_OFF_MAX));
        assert_eq!(restart_delay(RestartAfter::Never, 1), None);
        let rare = RestartAfter::Time(Duration::from_secs(600));
        assert_eq!(restart_delay(rare, 9), Some(Duration::from_secs(600)));
    }
}
