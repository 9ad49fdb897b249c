//! Daemons in the background: with `--detach`, `osd run` and `mon run` start the same command again,
//! detached from the terminal, and return once the new process is ready.
//!
//! The daemon writes one line to its standard output when it is ready; all other output goes to its log.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use cluster::message::Failure;
use serde_json::json;

use crate::output::{Format, failure, print_json};

/// Environment variable that is set for a daemon that must report when it is ready.
const VARIABLE: &str = "ASHLAR_SAY_WHEN_READY";
/// Environment variable that is set for the `up` process that `--detach` leaves in the background.
pub const UP_VARIABLE: &str = "ASHLAR_UP_BACKGROUND";
/// Number of lines at the end of the log that are shown when a daemon exits early.
const SHOWN_LINES: usize = 3;

/// Whether this process is the `up` process that `--detach` leaves in the background.
pub fn is_background_up() -> bool {
    std::env::var_os(UP_VARIABLE).is_some()
}

/// Starts this command again in the background, without `--detach`. `what`: kind of daemon, for messages,
/// such as "OSD".
pub fn detach(what: &str, log: &Path, format: Format) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| {
        let message = format!("cannot start the {what} in the background: {error}");
        failure("io", message, "run it without --detach")
    };
    let open = OpenOptions::new().create(true).append(true).open(log).map_err(|error| {
        let message = format!("cannot write {}: {error}", log.display());
        failure("io", message, "check the path and its permissions")
    })?;
    let arguments = std::env::args_os().skip(1).filter(|it| it != OsStr::new("--detach"));
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(arguments).env(VARIABLE, "1");
    // Use a separate process group, so that the terminal's signals do not reach the daemon.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open);
    let mut child = command.spawn().map_err(cannot)?;
    let stdout = child.stdout.take().expect("standard output is a pipe");
    if format == Format::Text {
        note!("starting the {what}; it logs to {}", log.display());
    }
    let mut line = String::new();
    let is_ready = BufReader::new(stdout).read_line(&mut line).is_ok_and(|length| length > 0);
    if !is_ready {
        let status = child.wait().map_err(cannot)?;
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("; ");
        let message = format!("the {what} exited ({status}): {last}");
        return Err(failure("died", message, format!("see {}", log.display())));
    }
    match format {
        Format::Json => print_json(&json!({ "pid": child.id(), "log": log, "ready": true }))?,
        Format::Text => print_line!("the {what} is running as process {}", child.id())?,
    }
    Ok(())
}

/// Reports to the `--detach` command that started this process that the daemon is ready. Further calls do
/// nothing.
pub fn report_ready() {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) && std::env::var_os(VARIABLE).is_some() {
        // The `--detach` command may have exited already; the daemon serves anyway.
        let _ = writeln!(std::io::stdout(), "ready");
    }
}
