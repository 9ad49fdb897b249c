//! Tests of a process's log, as read by another process.

#![allow(clippy::disallowed_methods)] // Tests of programs start processes.

use std::process::Command;

use base::TraceEvent;
use base::trace::Level;
use io::log::{self, Format};

/// Environment variable that is set in the process that logs.
const LOGS: &str = "ASHLAR_TEST_LOGS";

#[test]
fn a_process_that_logs() {
    if std::env::var_os(LOGS).is_none() {
        return;
    }
    log::start("osd.7", Format::Json, Level::Warn);
    log::write(&TraceEvent::info("not wanted"));
    log::set_level(Some(Level::Debug));
    log::set_level(Some(Level::Debug));
    log::write(&TraceEvent::debug("wanted now").number("run", 3u32));
    log::set_level(None);
    log::write(&TraceEvent::info("not wanted again"));
    panic!("it was\nbound to happen");
}

#[test]
fn lines_follow_the_level_and_a_panic_is_one_of_them() {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args(["--exact", "a_process_that_logs", "--nocapture"]).env(LOGS, "1");
    let output = command.env_remove("RUST_BACKTRACE").output().expect("it runs");
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).expect("text");
    let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect(line);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with('{')).map(parse).collect();
    let what: Vec<_> = lines.iter().map(|line| line["what"].as_str().expect("a text")).collect();
    let changed = "the log level is changed";
    assert_eq!(what, [changed, "wanted now", changed, "bug: the program panicked"], "{text}");
    assert!(lines.iter().all(|line| line["who"] == "osd.7" && line["time"].is_string()));
    let last = &lines[3];
    assert_eq!(
        (&last["level"], &last["why"]),
        (&"error".into(), &"it was\nbound to happen".into())
    );
    assert!(last["at"].as_str().expect("a place").contains("log.rs:"), "{last}");
    assert!(!text.contains("panicked at"), "said once: {text}");
}
