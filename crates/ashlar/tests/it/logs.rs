//! Tests of daemon logs: time, level, daemon and event, as text and as JSON, filtered by a level that can
//! change while the daemons run.

use std::fs;

use serde_json::Value;

use crate::harness::{Cluster, wait_for};

/// Returns the lines that a daemon has logged so far.
fn lines(cluster: &Cluster, name: &str) -> Vec<String> {
    let path = cluster.path().join(format!("log/{name}.log"));
    let text = fs::read_to_string(path).expect("it has a log");
    text.lines().map(str::to_owned).collect()
}

/// Returns the lines that a daemon has logged so far, parsed as JSON.
fn events(cluster: &Cluster, name: &str) -> Vec<Value> {
    let parse = |line: String| {
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"))
    };
    lines(cluster, name).into_iter().map(parse).collect()
}

fn count(cluster: &Cluster, name: &str, what: &str) -> usize {
    events(cluster, name).iter().filter(|event| event["what"] == what).count()
}

/// Asserts that the text is a time like `2026-11-23T18:12:00.123Z`.
fn assert_time(text: &str) {
    let shape = text.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    assert_eq!(String::from_utf8(shape.collect()).expect("a text"), "0000-00-00T00:00:00.000Z");
    assert!(*text > *"2026", "{text}");
}

#[test]
fn log_lines_have_time_and_level_and_the_level_changes_at_run_time() {
    const CHANGED: &str = "the log level is changed";
    let sizes = ["--osds", "2", "--osd-size", "256MiB"];
    let cluster = Cluster::up("logs", &[&sizes[..], &["--log-format", "json"]].concat());
    cluster.wait_active();
    for (name, who) in [("osd.1", "osd.1"), ("osd.2", "osd.2"), ("mon.1", "mon.1"), ("nbd", "nbd")]
    {
        for event in events(&cluster, name) {
            assert_time(event["time"].as_str().expect("a text"));
            assert_eq!(event["who"], who, "{event}");
            let levels = ["error", "warn", "info"];
            assert!(levels.iter().any(|level| event["level"] == *level), "{event}");
        }
        assert_eq!(count(&cluster, name, "listening"), 1, "{:?}", lines(&cluster, name));
    }
    let led = events(&cluster, "osd.1").into_iter().find(|event| event["what"] == "PG is active");
    let led = led.expect("it leads some");
    assert!(
        led["epoch"].is_u64() && led["members"].as_str().expect("ids").contains("osd.1"),
        "{led}"
    );
    assert_eq!(count(&cluster, "mon.1", "this monitor leads"), 1);

    // Only errors are logged now, until the setting is removed.
    cluster.run(&["config", "set", "log_level", "error"]);
    for name in ["osd.1", "mon.1"] {
        wait_for("the level to be in force", || count(&cluster, name, CHANGED) == 1);
    }
    let before = count(&cluster, "mon.1", "OSD is down");
    cluster.kill("osd", 2);
    cluster.wait_osd(2, false);
    cluster.wait_osd(2, true);
    assert_eq!(count(&cluster, "mon.1", "OSD is down"), before);
    assert!(lines(&cluster, "up").iter().any(|line| line.contains("a child process exited")));
    let shown = cluster.json(&["config", "get", "log_level"]);
    assert_eq!((&shown["value"], &shown["default"]), (&"error".into(), &"info".into()), "{shown}");
    cluster.refused(&["config", "set", "log_level", "7"], "invalid");
    cluster.run(&["config", "set", "log_level", "debug"]);
    for name in ["osd.1", "mon.1"] {
        wait_for("the level to be in force", || count(&cluster, name, CHANGED) == 2);
    }
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let command =
        |event: &Value| event["level"] == "debug" && event["what"] == "an operator's command";
    assert!(events(&cluster, "mon.1").iter().any(command));
    cluster.run(&["config", "set", "log_level", "default"]);
    wait_for("the level to be in force", || count(&cluster, "osd.1", CHANGED) == 3);
    cluster.down();

    // The text format.
    let written = lines(&cluster, "osd.1").len();
    cluster.start(&[]);
    let new = lines(&cluster, "osd.1").split_off(written);
    assert!(!new.is_empty());
    for line in new {
        let (time, rest) = line.split_once(' ').expect("words");
        assert_time(time);
        let (level, rest) = rest.split_at(6);
        assert!(["ERROR ", "WARN  ", "INFO  "].contains(&level), "{line}");
        assert!(rest.starts_with("osd.1  "), "{line}");
    }
}
