//! `ashlar status`: one screen that answers three questions: is my data safe, what is happening, and when
//! will that be finished.

use std::io::IsTerminal;
use std::time::Duration;

use client::Config;
use cluster::message::{Command, Failure};
use cluster::monitor::is_not_done_yet;
use serde_json::{Value, json};

use crate::call::COMMAND_TIME_MAX;
use crate::output::{
    Column, Format, column, failure, print_json, print_rows, rate_text, size_text, work_text,
};
use crate::up::{ended_children, gateways};

/// Runs `ashlar status`.
pub fn status(config: &Config, format: Format) -> Result<(), Failure> {
    let status = whole_status(config)?;
    match format {
        Format::Json => print_json(&status)?,
        Format::Text => print_text!("{}", render(&status))?,
    }
    Ok(())
}

/// Returns the status that the monitor reports, and, if `ashlar up` runs the cluster, the daemons that
/// exited.
fn whole_status(config: &Config) -> Result<Value, Failure> {
    let mut status = client::call(config, Command::Status, COMMAND_TIME_MAX)?;
    status["ended"] = json!(ended_children(&config.dir));
    status["gateways"] = json!(gateways(&config.dir));
    Ok(status)
}

/// Interval between two status requests of `status --watch`.
const WATCH_SPAN: Duration = Duration::from_secs(1);

/// `ashlar status --watch`: prints the status whenever it changes (with `--json` one line per second),
/// until the process is stopped or the output is closed. Prints an error when no monitor answers, and
/// retries.
pub fn watch(config: &Config, format: Format) -> Result<(), Failure> {
    let mut shown = String::new();
    loop {
        let text = match whole_status(config) {
            Ok(status) => match format {
                Format::Json => format!("{status}\n"),
                Format::Text => render(&status),
            },
            Err(failure) if !is_passing(&failure) => return Err(failure),
            Err(failure) => match format {
                Format::Json => format!("{}\n", serde_json::json!({ "error": failure })),
                Format::Text => format!("health      unknown: {}\n", failure.message),
            },
        };
        if text != shown || format == Format::Json {
            let is_screen = format == Format::Text && std::io::stdout().is_terminal();
            // On a terminal each status replaces the previous one.
            let clear = if is_screen { "\x1b[H\x1b[2J" } else { "" };
            let gap =
                if format == Format::Text && !is_screen && !shown.is_empty() { "\n" } else { "" };
            print_text!("{clear}{gap}{text}")?;
            shown = text;
        }
        std::thread::sleep(WATCH_SPAN);
    }
}

/// Whether the failure is temporary, so that a retry may help.
pub fn is_passing(failure: &Failure) -> bool {
    let code = failure.code.as_str();
    matches!(code, "unreachable" | "timed_out" | "busy") || is_not_done_yet(code)
}

/// `ashlar check`: prints the checks; fails if one of them is an error.
pub fn check(config: &Config, format: Format) -> Result<(), Failure> {
    let status = client::call(config, Command::Status, COMMAND_TIME_MAX)?;
    match format {
        Format::Json => print_json(&status["checks"])?,
        Format::Text => print_text!("{}", render_checks(&status))?,
    }
    if status["health"] == "error" {
        let hint = "follow the hint of each check above";
        return Err(failure("unhealthy", "the cluster's health is `error`", hint));
    }
    Ok(())
}

const TASK: &[Column] = &[
    column("TASK", "kind"),
    column("OF", "name"),
    column("STATE", "state"),
    column("DONE", "done"),
    column("TIME LEFT", "time_left"),
    column("WAITS FOR", "waits_for"),
];

/// Runs `ashlar task ls`.
pub fn task_list(config: &Config, format: Format) -> Result<(), Failure> {
    let status = client::call(config, Command::Status, COMMAND_TIME_MAX)?;
    let mut tasks = background_tasks(&status);
    if format == Format::Text {
        for task in &mut tasks {
            task["done"] = task_percent(task).map(|percent| format!("{percent} %")).into();
            task["time_left"] = eta_text(task).into();
        }
    }
    print_rows(format, &tasks.into(), TASK, "no background tasks")?;
    Ok(())
}

/// Returns the tasks of a status. Backfill is listed as a task too, even while it waits for an OSD.
fn background_tasks(status: &Value) -> Vec<Value> {
    let (recovery, pgs) = (&status["recovery"], &status["pgs"]);
    let mut tasks = status["tasks"].as_array().cloned().unwrap_or_default();
    let is_copying = recovery["bytes_left"].as_u64().is_some_and(|left| left > 0);
    let waits_for = awaited_text(recovery);
    if is_copying || waits_for.is_some() {
        tasks.push(json!({
            "kind": "backfill",
            "name": Value::Null,
            "state": if is_copying { "copying" } else { "waiting" },
            "pgs_done": pgs["clean"],
            "pgs_total": pgs["total"],
            "bytes_left": recovery["bytes_left"],
            "bytes_per_second": recovery["bytes_per_second"],
            "eta_seconds": if is_copying { recovery["eta_seconds"].clone() } else { Value::Null },
            "waits_for": waits_for,
        }));
    }
    tasks
}

/// Returns the text of `ashlar status`.
fn render(status: &Value) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("health      {}", health_sentence(status)));
    if let Some(age) = status["seconds_old"].as_f64() {
        line(format!("            no monitor leads; this status is {age:.0} s old"));
    }
    for check in render_checks(status).lines() {
        line(format!("            {check}"));
    }
    let osds = status["osds"].as_array().cloned().unwrap_or_default();
    let up = osds.iter().filter(|osd| osd["up"] == Value::Bool(true)).count();
    let size: u64 = osds.iter().filter_map(|osd| osd["size_bytes"].as_u64()).sum();
    let used: u64 = osds.iter().filter_map(|osd| osd["used_bytes"].as_u64()).sum();
    let fullness = fullness_text(&osds).map_or_else(String::new, |text| format!(", {text}"));
    line(format!("osds        {up} of {} up{fullness}", osds.len()));
    line(format!(
        "space       {} used of {}{}",
        size_text(used),
        size_text(size),
        percent_text(used, size)
    ));
    for (name, kind) in [("reads", "read"), ("writes", "write")] {
        line(format!("{name:<11} {}", work_text(&status["io"][kind])));
    }
    for pool in status["pools"].as_array().into_iter().flatten() {
        let bytes = |key: &str| pool[key].as_u64().unwrap_or(0);
        let rate = |kind: &str| rate_text(&pool["io"][kind]);
        let name = pool["name"].as_str().unwrap_or_default();
        let available = bytes("available_bytes");
        // Of objects it is not known.
        let used = pool["used_bytes"].as_u64().map_or_else(String::new, |used| {
            let percent = percent_text(used, used.saturating_add(available));
            format!("{} used{percent}, ", size_text(used))
        });
        line(format!(
            "pool        {name}: {used}{} available, reads {}, writes {}",
            size_text(available),
            rate("read"),
            rate("write")
        ));
        for condition in pool["conditions"].as_array().into_iter().flatten() {
            let word = |key: &str| condition[key].as_str().unwrap_or_default();
            let (count, code) = (&condition["count"], word("code"));
            line(format!("            {count} PGs {code}, for example {}", word("message")));
            line(format!("              -> {}", word("hint")));
        }
    }
    let pgs = &status["pgs"];
    let mut states =
        format!("{} of {} active, {} clean", pgs["active"], pgs["total"], pgs["clean"]);
    for state in ["degraded", "filling", "peering", "incomplete", "down"] {
        if let Some(count) = pgs[state].as_u64().filter(|count| *count > 0) {
            states.push_str(&format!(", {count} {state}"));
        }
    }
    line(format!("pgs         {states}"));
    line(format!("recovery    {}", recovery_sentence(status)));
    for task in status["tasks"].as_array().into_iter().flatten() {
        line(format!("task        {}", task_sentence(task)));
    }
    for process in status["processes"].as_array().into_iter().flatten() {
        let word = |key: &str| match &process[key] {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            value => value.to_string(),
        };
        let name = format!("{}.{}", word("role"), word("id"));
        let host = process["host"].as_str().filter(|host| !host.is_empty());
        let host = host.map_or_else(String::new, |host| format!(" on {host}"));
        line(format!("{name:<11} pid {:<8} {}{host}", word("pid"), word("address")));
    }
    for gateway in status["gateways"].as_array().into_iter().flatten() {
        let url = gateway["url"].as_str().unwrap_or_default();
        let state = if gateway["up"] == Value::Bool(true) { "" } else { " does not answer" };
        line(format!("gateway     {url}{state}"));
    }
    for child in status["ended"].as_array().into_iter().flatten() {
        let word = |key: &str| child[key].as_str().unwrap_or_default();
        let again = match child["again_in_ms"].as_u64() {
            // Round up to 10 s: otherwise a watched status would change every second.
            Some(time) => format!("restarts within {} s", time.div_ceil(10_000) * 10),
            None => "will not be restarted".to_owned(),
        };
        let (name, status) = (word("child"), word("status"));
        line(format!("{name:<11} exited ({status}), {again}; see {}", word("log")));
    }
    text
}

fn health_sentence(status: &Value) -> &'static str {
    let pgs = &status["pgs"];
    match status["health"].as_str() {
        Some("ok") => "ok: all data can be read and written",
        Some("warn") if pgs["active"] != pgs["total"] => {
            "warn: I/O to some data is blocked, see below"
        }
        Some("warn") => "warn: all data can be read and written, but something needs attention",
        Some("error") => "ERROR: some data is damaged or cannot be served",
        _ => "unknown",
    }
}

fn render_checks(status: &Value) -> String {
    let mut text = String::new();
    for check in status["checks"].as_array().into_iter().flatten() {
        let word = |key: &str| check[key].as_str().unwrap_or_default();
        text.push_str(&format!("{} {}: {}\n", word("severity"), word("code"), word("message")));
        if !word("hint").is_empty() {
            text.push_str(&format!("  -> {}\n", word("hint")));
        }
    }
    text
}

/// Returns how much of an OSD is used, in percent.
pub fn used_percent(osd: &Value) -> Option<u64> {
    let (used, size) = (osd["used_bytes"].as_u64()?, osd["size_bytes"].as_u64()?);
    used.saturating_mul(100).checked_div(size)
}

/// Describes how full the OSDs are on average, and lists the least and the most full OSD. Counts only OSDs
/// that are up and in.
pub fn fullness_text(osds: &[Value]) -> Option<String> {
    let counts = |osd: &&Value| osd["up"] == true && osd["in"] == true;
    let osds: Vec<&Value> = osds.iter().filter(counts).collect();
    let sum = |key: &str| osds.iter().filter_map(|osd| osd[key].as_u64()).sum::<u64>();
    let mean = sum("used_bytes").saturating_mul(100).checked_div(sum("size_bytes"))?;
    let percents = || osds.iter().filter_map(|osd| Some((used_percent(osd)?, &osd["id"])));
    let (least, emptiest) = percents().min_by_key(|(percent, _)| *percent)?;
    let (most, fullest) = percents().max_by_key(|(percent, _)| *percent)?;
    Some(match least == most {
        true => format!("each {mean} % full"),
        false => {
            format!("{mean} % full on average: osd.{emptiest} {least} % to osd.{fullest} {most} %")
        }
    })
}

/// Returns a part of a whole as ` (17 %)`; empty if the whole is 0.
fn percent_text(part: u64, whole: u64) -> String {
    match (u128::from(part) * 100).checked_div(u128::from(whole)) {
        Some(percent) => format!(" ({percent} %)"),
        None => String::new(),
    }
}

/// Returns a duration as human-readable text.
fn span_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// Describes a background task in one line: what it does, its progress, and what it waits for.
fn task_sentence(task: &Value) -> String {
    let word = |key: &str| task[key].as_str().unwrap_or_default();
    let mut text = format!("{} {}: {}", word("kind"), word("name"), word("state"));
    if let Some(percent) = task_percent(task) {
        text.push_str(&format!(", {percent} %"));
    }
    text.push_str(&format!(", time left: {}", eta_text(task)));
    if let Some(waits_for) = task["waits_for"].as_str() {
        text.push_str(&format!(", waits for {waits_for}"));
    }
    text
}

/// Returns the time left as text.
fn eta_text(work: &Value) -> String {
    work["eta_seconds"].as_u64().map_or_else(|| "unknown".into(), span_text)
}

/// Returns the progress of a task, in percent.
fn task_percent(task: &Value) -> Option<u64> {
    let (done, total) = (task["pgs_done"].as_u64()?, task["pgs_total"].as_u64()?);
    done.saturating_mul(100).checked_div(total)
}

/// Maximum number of OSDs that one sentence lists by name.
const NAMED_COUNT_MAX: usize = 5;

/// Lists the OSDs that recovery waits for.
fn awaited_text(recovery: &Value) -> Option<String> {
    let osds = recovery["waits_for"].as_array().map_or(&[][..], Vec::as_slice);
    let mut names: Vec<String> =
        osds.iter().take(NAMED_COUNT_MAX).map(|osd| format!("osd.{osd}")).collect();
    if osds.len() > names.len() {
        names.push(format!("{} more", osds.len() - names.len()));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

fn recovery_sentence(status: &Value) -> String {
    let (recovery, pgs) = (&status["recovery"], &status["pgs"]);
    let under_way = recovery["bytes_left"].as_u64().filter(|left| *left > 0).map(|left| {
        let rate = recovery["bytes_per_second"].as_u64().unwrap_or(0);
        let eta = eta_text(recovery);
        format!("{} left at {}/s, time left: {eta}", size_text(left), size_text(rate))
    });
    let waits = awaited_text(recovery).map(|names| format!("waiting for {names}"));
    match (under_way, waits) {
        (Some(under_way), Some(waits)) => format!("{under_way}; {waits}"),
        (Some(sentence), None) | (None, Some(sentence)) => sentence,
        (None, None) if pgs["clean"] == pgs["total"] => "nothing to do".into(),
        (None, None) => "no backfill is running yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_shows_every_problem_and_its_remedy() {
        let status = json!({
            "health": "error",
            "checks": [{"code": "osd_down", "severity": "error", "message": "osd.2 is down",
                        "hint": "ashlar osd start 2"}],
            "osds": [{"id": 2, "up": false, "size_bytes": 1 << 30, "used_bytes": 1 << 20}],
            "pgs": {"total": 8, "active": 6, "clean": 4, "degraded": 2, "down": 2},
            "io": {"read": {"ops_per_second": 7, "bytes_per_second": 0}, "write": {}},
            "pools": [{"name": "fast", "used_bytes": 0, "io": {}, "conditions": [
                {"code": "pg_degraded", "count": 2, "message": "1.3: 1 of 2 copies", "hint": "wait"},
            ]}],
            "recovery": {"bytes_left": 1 << 20, "bytes_per_second": 1 << 18, "eta_seconds": 4},
            "processes": [{"role": "mon", "id": 1, "pid": 7, "address": "tcp:a:1", "host": "h"}],
            "ended": [
                {"child": "osd.2", "status": "exit status: 1", "again_in_ms": 11_500, "log": "/l"},
                {"child": "nbd", "status": "signal: 9", "again_in_ms": null, "log": "/n"},
            ],
            "tasks": [
                {"kind": "remove", "name": "old", "state": "deleting", "pgs_done": 3, "pgs_total": 8},
            ],
        });
        let screen = render(&status);
        for wanted in [
            "ERROR",
            "osd_down",
            "-> ashlar osd start 2",
            "0 of 1 up",
            "time left: 4 s",
            "4 clean, 2 degraded, 2 down",
            "reads       7/s",
            "writes      -",
            "pool        fast: 0",
            "2 PGs pg_degraded, for example 1.3: 1 of 2 copies",
            "-> wait",
            "used of 1 GiB (0 %)",
            "tcp:a:1 on h",
            "osd.2       exited (exit status: 1), restarts within 20 s; see /l",
            "nbd         exited (signal: 9), will not be restarted; see /n",
            "task        remove old: deleting, 37 %, time left: unknown",
        ] {
            assert!(screen.contains(wanted), "{wanted} is missing in:\n{screen}");
        }
    }

    #[test]
    fn waiting_recovery_names_the_osds_it_waits_for() {
        let sentence = |left: u64, clean: u32, waits_for: &[u32]| {
            recovery_sentence(&json!({
                "pgs": {"total": 8, "clean": clean},
                "recovery": {
                    "bytes_left": left, "bytes_per_second": 1 << 20, "eta_seconds": left >> 20,
                    "waits_for": waits_for,
                },
            }))
        };
        assert_eq!(sentence(0, 8, &[]), "nothing to do");
        assert_eq!(sentence(0, 7, &[]), "no backfill is running yet");
        assert_eq!(sentence(0, 4, &[2]), "waiting for osd.2");
        assert!(sentence(4 << 20, 4, &[]).ends_with("/s, time left: 4 s"));
        assert!(
            sentence(4 << 20, 4, &[2, 3]).ends_with("time left: 4 s; waiting for osd.2, osd.3")
        );
        assert_eq!((span_text(119), span_text(121)), ("119 s".into(), "3 min".into()));
        assert_eq!(span_text(2 * 3_600 + 90), "2 h 1 min");
        let many = sentence(0, 4, &[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(many, "waiting for osd.1, osd.2, osd.3, osd.4, osd.5, 2 more");
    }

    #[test]
    fn copying_is_a_background_task_without_a_guessed_time_left() {
        let status = |recovery: Value| {
            json!({
                "pgs": {"total": 8, "clean": 6},
                "recovery": recovery,
                "tasks": [{
                    "kind": "remove", "name": "old", "state": "deleting", "pgs_done": 1,
                    "pgs_total": 8, "eta_seconds": 130, "waits_for": null,
                }],
            })
        };
        let idle = background_tasks(&status(json!({"bytes_left": 0, "waits_for": []})));
        assert_eq!(idle.len(), 1);
        assert_eq!(task_sentence(&idle[0]), "remove old: deleting, 12 %, time left: 3 min");
        let copying = json!({"bytes_left": 9, "bytes_per_second": 0, "eta_seconds": null});
        let tasks = background_tasks(&status(copying));
        assert_eq!(
            (&tasks[1]["kind"], &tasks[1]["state"]),
            (&json!("backfill"), &json!("copying"))
        );
        assert_eq!((task_percent(&tasks[1]), eta_text(&tasks[1])), (Some(75), "unknown".into()));
        let waiting = json!({"bytes_left": 0, "eta_seconds": 0, "waits_for": [2, 3]});
        let tasks = background_tasks(&status(waiting));
        assert_eq!(
            (&tasks[1]["waits_for"], &tasks[1]["state"]),
            (&json!("osd.2, osd.3"), &json!("waiting"))
        );
        assert_eq!(eta_text(&tasks[1]), "unknown");
    }

    #[test]
    fn fullness_names_the_least_and_the_most_full_osd() {
        let osd = |id: u32, used: u64, up: bool| {
            let size = 200;
            json!({"id": id, "up": up, "in": true, "used_bytes": used, "size_bytes": size})
        };
        let osds = [osd(1, 20, true), osd(2, 160, true), osd(3, 200, false)];
        let text = fullness_text(&osds).expect("two are up");
        assert_eq!(text, "45 % full on average: osd.1 10 % to osd.2 80 %");
        assert_eq!(fullness_text(&osds[..1]).as_deref(), Some("each 10 % full"));
        assert_eq!(fullness_text(&osds[2..]), None);
    }
}
