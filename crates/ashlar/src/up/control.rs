//! Commands that send requests to a running `up`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::OsdId;
use client::Config;
use cluster::message::Failure;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::directory::{gateway_place, socket_path};
use super::protocol::{Answer, EndedChild, Request, WantedOsds};
use super::show::{Ready, WorkShow, print_ready};
use crate::background;
use crate::cli::{RestartAfter, UpArgs};
use crate::output::{Format, exit_reason, failure, print_json};

/// Time limit for the answer of `up` to an `Ended` request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Locks a directory; `None` if another `up` holds the lock.
pub fn take_lock(dir: &Path) -> Result<Option<File>, Failure> {
    let path = dir.join("up.lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(|error| {
        failure("io", format!("cannot open {}: {error}", path.display()), "check its permissions")
    })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failure(
            "io",
            format!("cannot lock {}: {error}", path.display()),
            "use a directory on a local file system",
        )),
    }
}

/// Starts `up` in the background and returns once the cluster is ready.
pub fn detach(dir: &Path, args: &UpArgs, format: Format) -> Result<(), Failure> {
    if take_lock(dir)?.is_none() {
        return join_running(dir, args, format);
    }
    let mut child = spawn_background(dir, args)?;
    let mut connection = loop {
        if let Ok(connection) = connect(dir) {
            break connection;
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(died_early(dir, &status.to_string()));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let next = ask_on(&mut connection, dir, Request::Wait, format)
        .map_err(|error| explain_death(error, &mut child, dir))?;
    print_ready(dir, format, "is up", &next)?;
    Ok(())
}

fn spawn_background(dir: &Path, args: &UpArgs) -> Result<Child, Failure> {
    let cannot = |error: std::io::Error| {
        let message = format!("cannot start `ashlar up` in the background: {error}");
        failure("io", message, "run it without --detach")
    };
    let log_path = dir.join("log/up.log");
    let log = OpenOptions::new().create(true).append(true).open(log_path).map_err(cannot)?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.arg("up").arg("--dir").arg(dir).arg("--detach");
    if let Some(osds) = args.osds {
        command.arg(format!("--osds={osds}"));
    }
    command.arg(format!("--osd-size={}B", args.osd_size.0));
    if let Some(commit) = args.commit {
        command.arg(format!("--commit={}", commit.name()));
    }
    if args.no_gateway {
        command.arg("--no-gateway");
    }
    if let Some(state) = args.state {
        command.arg(format!("--state={}", state.name()));
    }
    command.arg(match args.restart_after {
        RestartAfter::Never => "--restart-after=never".to_owned(),
        RestartAfter::Time(time) => format!("--restart-after={}ms", time.as_millis()),
    });
    command.env(background::UP_VARIABLE, "1").envs(args.log.variables());
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(cannot)?).stderr(log);
    command.spawn().map_err(cannot)
}

fn explain_death(error: Failure, child: &mut Child, dir: &Path) -> Failure {
    if error.code != "closed" {
        return error;
    }
    match child.wait() {
        Ok(status) => died_early(dir, &status.to_string()),
        Err(_) => error,
    }
}

fn died_early(dir: &Path, status: &str) -> Failure {
    let log = dir.join("log/up.log");
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    // It may have failed before it was asked: its log says why.
    let last = text.lines().rfind(|line| line.contains("  exiting  "));
    let field = |name: &str| {
        let (_, rest) = last?.split_once(&format!(" {name}=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_string())
    };
    let code = last.and_then(|line| line.split_once(" code=")?.1.split_whitespace().next());
    if let (Some(code), Some(why), Some(hint)) = (code, field("why"), field("hint")) {
        return failure(code, why, hint);
    }
    let why = exit_reason(&text);
    failure(
        "died",
        format!("the cluster stopped ({status}): {why}"),
        format!("see {}", log.display()),
    )
}

/// Waits until the running `up` of `dir` is ready, requests the creation of missing OSDs, and prints which
/// commands to try next.
pub fn join_running(dir: &Path, args: &UpArgs, format: Format) -> Result<(), Failure> {
    let mut next = ask(dir, Request::Wait, format)?;
    // Send this even if no OSD is missing: an OSD that a failed attempt created may not be running.
    if args.osds.is_some() {
        let added = ask(dir, Request::AddOsds(WantedOsds::of(args)), format);
        // A key that is told once may have been in the first answer.
        let is_told = next.steps.gateway.as_ref().is_some_and(|gateway| gateway.key.is_some());
        match added {
            Err(error) if is_told => {
                print_ready(dir, format, "is running", &next)?;
                return Err(error);
            }
            added => {
                let gateway = next.steps.gateway.filter(|_| is_told);
                next = added?;
                next.steps.gateway = gateway.or(next.steps.gateway);
            }
        }
    }
    print_ready(dir, format, "is running", &next)?;
    Ok(())
}

/// Stops the cluster of `dir`; succeeds if none is running.
pub fn down(dir: &Path, format: Format) -> Result<(), Failure> {
    let running = dir.is_dir() && take_lock(dir)?.is_none();
    if running {
        ask(dir, Request::Down, format)?;
        // `up` answers before it exits. Only its exit releases the lock, so wait for the lock.
        let path = dir.join("up.lock");
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            let message = format!("cannot {what} {}: {error}", path.display());
            failure(
                "io",
                message,
                "run `ashlar down` again to see whether the cluster is still running",
            )
        };
        let file = File::open(&path).map_err(|error| cannot("open", &error))?;
        let locked = flock(&file, FlockOperation::LockShared);
        locked.map_err(|error| cannot("lock", &error))?;
    }
    match (format, running) {
        (Format::Json, _) => print_json(&json!({ "dir": dir, "was_running": running }))?,
        (Format::Text, true) => print_line!("The cluster in {} is down.", dir.display())?,
        (Format::Text, false) => print_line!("No cluster is running in {}.", dir.display())?,
    }
    Ok(())
}

/// `ashlar osd stop`: stops an OSD of a cluster that `up` runs; it stays stopped until `osd start`.
pub fn stop_osd(config: &Config, osd: OsdId, format: Format) -> Result<(), Failure> {
    refuse_elsewhere(config, osd, "stop its process or service on its host")?;
    ask(&config.dir, Request::StopOsd { osd }, format)?;
    print_osd(osd, "stopped", format)?;
    Ok(())
}

/// `ashlar osd start`: starts a stopped OSD of a cluster that `up` runs.
pub fn start_osd(config: &Config, osd: OsdId, format: Format) -> Result<(), Failure> {
    refuse_elsewhere(config, osd, "run it on its host: ashlar osd run PATH")?;
    ask(&config.dir, Request::StartOsd { osd }, format)?;
    print_osd(osd, "started", format)?;
    Ok(())
}

/// Refuses clusters of several hosts: their daemons are started and stopped on their own hosts.
fn refuse_elsewhere(config: &Config, osd: OsdId, what: &str) -> Result<(), Failure> {
    if !client::is_of_several_hosts(&config.file) {
        return Ok(());
    }
    let message =
        format!("{osd} belongs to a cluster of several hosts, which `ashlar up` does not run");
    let hint = format!("{what}; `ashlar osd ls` shows its host and path");
    Err(failure("several_hosts", message, hint))
}

fn print_osd(osd: OsdId, state: &str, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(&json!({ "id": osd, "state": state })),
        Format::Text => print_line!("{osd} is {state}"),
    }
}

fn connect(dir: &Path) -> Result<UnixStream, Failure> {
    let (_open, path) = socket_path(dir)?;
    UnixStream::connect(path).map_err(|_| {
        failure(
            "not_running",
            format!("no `ashlar up` is running in {}", dir.display()),
            format!("start it: ashlar up --dir {} --detach", dir.display()),
        )
    })
}

/// Returns the children that exited although they should run, from the `up` of this directory. Empty if no
/// `up` runs there, or if it does not answer in time.
pub fn ended_children(dir: &Path) -> Vec<EndedChild> {
    let answer = || -> Option<Answer> {
        let mut connection = connect(dir).ok()?;
        connection.set_read_timeout(Some(ANSWER_TIME_MAX)).ok()?;
        let line = serde_json::to_string(&Request::Ended).expect("plain data serializes to JSON");
        writeln!(connection, "{line}").ok()?;
        let line = BufReader::new(connection).lines().next()?.ok()?;
        serde_json::from_str(&line).ok()
    };
    match answer() {
        Some(Answer::Ended { children }) => children,
        _ => Vec::new(),
    }
}

/// Returns the gateway that the `up` of this directory runs, with its address, and whether somebody
/// listens there.
pub fn gateways(dir: &Path) -> Vec<Value> {
    let Some(place) = gateway_place(dir) else { return Vec::new() };
    let address = place.parse::<std::net::SocketAddr>().ok();
    let connected = address.map(|address| TcpStream::connect_timeout(&address, ANSWER_TIME_MAX));
    let is_up = connected.is_some_and(|connected| connected.is_ok());
    vec![json!({ "url": format!("http://{place}"), "up": is_up })]
}

fn ask(dir: &Path, request: Request, format: Format) -> Result<Ready, Failure> {
    ask_on(&mut connect(dir)?, dir, request, format)
}

fn ask_on(
    connection: &mut UnixStream,
    dir: &Path,
    request: Request,
    format: Format,
) -> Result<Ready, Failure> {
    let closed = || {
        let hint = format!("see {}", dir.join("log/up.log").display());
        failure("closed", "`ashlar up` exited before it answered", hint)
    };
    let line = serde_json::to_string(&request).expect("plain data serializes to JSON");
    writeln!(connection, "{line}").map_err(|_| closed())?;
    let mut show = WorkShow::new(format);
    for line in BufReader::new(connection).lines() {
        match serde_json::from_str(&line.map_err(|_| closed())?) {
            Ok(Answer::Progress { line }) => show.line(&line),
            Ok(Answer::Work(work)) => show.work(&work),
            Ok(Answer::Done { steps, osds_failed }) => return Ok(Ready { steps, osds_failed }),
            Ok(Answer::Failed { error }) => return Err(error),
            Ok(Answer::Ended { .. }) | Err(_) => return Err(closed()),
        }
    }
    Err(closed())
}
