//! The log of a daemon: one line on standard error for each event, with time, level and daemon name; as
//! plain text or as JSON.
//!
//! ```text
//! 2026-11-23T18:12:00.123Z INFO  osd.3  PG is active  pg=1.4 epoch=12 members=osd.3,osd.1
//! {"time":"2026-11-23T18:12:00.123Z","level":"info","who":"osd.3","what":"PG is active","pg":"1.4",...}
//! ```
//!
//! A process has one log. Each line is written with one system call, so that lines of several threads, or
//! of processes that share a file, do not interleave.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use base::TraceEvent;
use base::trace::{Field, Level};

use crate::clock::wall_clock_ms;

/// Format of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Plain text.
    Human,
    /// One JSON object per line.
    Json,
}

/// The settings that the process was started with.
struct Log {
    who: String,
    format: Format,
    level: Level,
}

static LOG: OnceLock<Log> = OnceLock::new();
/// Lines up to this level are written.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Info.index());

/// Starts the log of the daemon `who`. Call it once, before the first log line; without this call, the name
/// in log lines is `ashlar`. After this call a panic is written as a log line too.
pub fn start(who: impl Into<String>, format: Format, level: Level) {
    let is_first = LOG.set(Log { who: who.into(), format, level }).is_ok();
    assert!(is_first, "a process has one name");
    LEVEL.store(level.index(), Ordering::Relaxed);
    std::panic::set_hook(Box::new(|info| put(&event_of(info))));
}

/// Builds the log event of a panic (always a bug); with a backtrace if RUST_BACKTRACE is set.
fn event_of(info: &PanicHookInfo<'_>) -> TraceEvent {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let event =
        TraceEvent::error("bug: the program panicked").with("why", text.unwrap_or_default());
    let event = match info.location() {
        Some(place) => event.with("at", place),
        None => event,
    };
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => event.with("backtrace", backtrace),
        _ => event,
    }
}

/// Whether this process is a daemon with a log.
pub fn is_started() -> bool {
    LOG.get().is_some()
}

/// Changes the log level; `None` restores the level that the process started with.
pub fn set_level(level: Option<Level>) {
    let started = LOG.get().map_or(Level::Info, |log| log.level);
    let level = level.unwrap_or(started).index();
    let before = LEVEL.swap(level, Ordering::Relaxed);
    if before != level {
        let name = Level::ALL[usize::from(level)];
        put(&TraceEvent::info("the log level is changed").with("log_level", name));
    }
}

/// Writes an event, if its level is enabled.
pub fn write(event: &TraceEvent) {
    if event.level.index() <= LEVEL.load(Ordering::Relaxed) {
        put(event);
    }
}

fn put(event: &TraceEvent) {
    let (who, format) =
        LOG.get().map_or(("ashlar", Format::Human), |log| (&log.who[..], log.format));
    let line = line_of(&time_text(wall_clock_ms()), who, format, event);
    // A daemon keeps serving even if nothing reads its log.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn line_of(time: &str, who: &str, format: Format, event: &TraceEvent) -> String {
    let TraceEvent { level, what, fields } = event;
    match format {
        Format::Human => {
            let level = level.name().to_ascii_uppercase();
            format!("{time} {level:<5} {who}  {event}\n")
        }
        Format::Json => {
            // Formatted by hand, to keep the important fields first.
            let quoted = |text: &str| serde_json::Value::from(text).to_string();
            let head = [("time", time), ("level", level.name()), ("who", who), ("what", what)];
            let head = head.map(|(name, text)| format!("{}:{}", quoted(name), quoted(text)));
            let fields = fields.iter().map(|(name, field)| match field {
                Field::Text(text) => format!("{}:{}", quoted(name), quoted(text)),
                Field::Number(number) => format!("{}:{number}", quoted(name)),
            });
            let all: Vec<String> = head.into_iter().chain(fields).collect();
            format!("{{{}}}\n", all.join(","))
        }
    }
}

/// Formats milliseconds since 1970 per RFC 3339, in UTC.
pub fn time_text(milliseconds: u64) -> String {
    let (seconds, millisecond) = (milliseconds / 1_000, milliseconds % 1_000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_of(day);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

/// Returns year, month and day of day number `day` since 1970-01-01. Internally a year starts in March, so
/// that the leap day is its last day.
fn date_of(day: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = day + DAYS_TO_1970;
    let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_date_prints() {
        for (milliseconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
            (1_767_225_599_001, "2025-12-31T23:59:59.001Z"),
            (1_795_457_520_123, "2026-11-23T18:12:00.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time_text(milliseconds), expected);
        }
    }

    #[test]
    fn a_line_has_time_level_who_and_what_for_people_and_programs() {
        let event = TraceEvent::warn("OSD is refused")
            .with("osd", "osd.3")
            .number("run", 4u32)
            .with("why", "a \"copy\"\nof it");
        let time = time_text(1_795_457_520_123);
        assert_eq!(
            line_of(&time, "mon.1", Format::Human, &event),
            "2026-11-23T18:12:00.123Z WARN  mon.1  OSD is refused  osd=osd.3 run=4 \
             why=\"a \\\"copy\\\"\\nof it\"\n"
        );
        let line = line_of(&time, "mon.1", Format::Json, &event);
        assert_eq!(line.lines().count(), 1);
        assert!(line.starts_with(&format!("{{\"time\":\"{time}\",\"level\":\"warn\",")), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "time": time, "level": "warn", "who": "mon.1", "what": "OSD is refused",
            "osd": "osd.3", "run": 4, "why": "a \"copy\"\nof it",
        });
        assert_eq!(value, expected);
    }
}
