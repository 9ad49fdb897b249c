//! How commands print results and errors: as JSON, or as human-readable tables and lines.
//!
//! All commands write to standard output through [`print`]: what cannot be written, as to a full disk, fails the
//! command. A closed pipe ends a command quietly, see `io::end_on_closed_pipe`; servers print on regardless. Notes for
//! people go to standard error, and never fail.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};

use base::TraceEvent;
use cluster::message::Failure;
use comfy_table::{Table, presets};
use serde_json::{Value, json};

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Human-readable text.
    Text,
    /// JSON, for programs.
    Json,
}

/// Creates a failure: the code is for programs, the message and the hint are for people.
pub fn failure(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure { code: code.into(), message: message.into(), hint: hint.into() }
}

/// Writes text to standard output.
macro_rules! print_text {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Writes a line to standard output.
macro_rules! print_line {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes a line for people to standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::note(format_args!($($text)*)) };
}

/// Writes text to standard output; see [`print_text`].
pub fn print(text: Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).map_err(cannot_print)
}

/// Writes bytes to standard output.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(cannot_print)
}

fn cannot_print(error: io::Error) -> Failure {
    let hint = "make space where it is written to, or write somewhere else";
    failure("io", format!("cannot write to standard output: {error}"), hint)
}

/// Writes a line to standard error, if that can be written; see [`note`].
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a failure on stderr.
pub fn print_failure(format: Format, failure: &Failure) {
    match format {
        Format::Json => note!("{}", json!({ "error": failure })),
        Format::Text => {
            note!("ashlar: {}", failure.message);
            if !failure.hint.is_empty() {
                note!("  hint: {}", failure.hint);
            }
        }
    }
}

/// The message of the last log line of a daemon that fails.
const FAILURE_WORDS: &str = "exiting";

/// Returns the last log line of a daemon that fails.
pub fn failure_line(failure: &Failure) -> TraceEvent {
    let event = TraceEvent::error(FAILURE_WORDS).with("code", &failure.code);
    let event = event.with("why", &failure.message);
    if failure.hint.is_empty() { event } else { event.with("hint", &failure.hint) }
}

/// Extracts why a daemon exited from the last lines of its log.
pub fn exit_reason(log: &str) -> String {
    let lines: Vec<&str> = log.lines().rev().take(2).collect();
    let why = lines.first().and_then(|line| match serde_json::from_str::<Value>(line) {
        Ok(value) => Some(value["why"].as_str()?.to_owned()),
        Err(_) => {
            let (_, fields) = line.split_once(FAILURE_WORDS)?;
            let (_, why) = fields.split_once(" why=")?;
            // A value with spaces is quoted as in JSON; other values may follow.
            let quoted = serde_json::Deserializer::from_str(why).into_iter::<String>().next();
            quoted.and_then(Result::ok).or_else(|| why.split(' ').next().map(str::to_owned))
        }
    });
    let whole = || lines.iter().rev().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    why.unwrap_or_else(whole)
}

/// Prints a value as one JSON document.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print_line!("{value:#}")
}

/// A column of a table: its title, the key of the field in the row, and how to show the field.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// The key of the field in the row; a nested field is written `a.b`.
    pub key: &'static str,
    /// How the field is shown.
    pub show: Show,
}

/// How a field is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Unchanged.
    Plain,
    /// As a rounded size.
    Size,
    /// As a size of which nothing is rounded away.
    ExactSize,
    /// As `yes` or `no`.
    YesNo,
    /// Operations and bytes per second.
    Rate,
    /// Operations and bytes per second, and the latency of the operations.
    Work,
}

/// Returns a column shown unchanged.
pub const fn column(title: &'static str, key: &'static str) -> Column {
    Column { title, key, show: Show::Plain }
}

/// Returns a column of sizes.
pub const fn size_column(title: &'static str, key: &'static str) -> Column {
    Column { title, key, show: Show::Size }
}

/// Returns a column of sizes that somebody chose: a rounded one would look like another choice.
pub const fn exact_size_column(title: &'static str, key: &'static str) -> Column {
    Column { title, key, show: Show::ExactSize }
}

/// Returns a column of rates.
pub const fn rate_column(title: &'static str, key: &'static str) -> Column {
    Column { title, key, show: Show::Rate }
}

/// Returns a load as text: `120/s 480 KiB/s`.
pub fn rate_text(io: &Value) -> String {
    let number = |key: &str| io[key].as_u64().unwrap_or(0);
    match (number("ops_per_second"), number("bytes_per_second")) {
        (0, 0) => "-".into(),
        (ops, bytes) => format!("{ops}/s {}/s", size_text(bytes)),
    }
}

/// Returns a load with latencies as text: `120/s 480 KiB/s, 300 us, 99 % within 900 us`.
pub fn work_text(io: &Value) -> String {
    let mut text = rate_text(io);
    if let (Some(mean), Some(p99)) = (io["latency_mean_us"].as_u64(), io["latency_p99_us"].as_u64())
    {
        text.push_str(&format!(", {mean} us, 99 % within {p99} us"));
    }
    text
}

/// Prints rows as JSON or as a table. `empty` is printed instead of an empty table, and should say what to
/// do.
pub fn print_rows(
    format: Format,
    rows: &Value,
    columns: &[Column],
    empty: &str,
) -> Result<(), Failure> {
    if format == Format::Json {
        return print_json(rows);
    }
    match rows.as_array().filter(|rows| !rows.is_empty()) {
        Some(rows) => print_line!("{}", table_lines(rows, columns, terminal_width()).join("\n")),
        None => print_line!("{empty}"),
    }
}

/// Prints the rows of a list that may be long, page by page, so that it is never in memory as a whole. With
/// JSON it is one list; as a table each page has the widths that it needs.
pub struct RowPages<'a> {
    format: Format,
    columns: &'a [Column],
    count: usize,
}

impl<'a> RowPages<'a> {
    /// Begins a list.
    pub fn new(format: Format, columns: &'a [Column]) -> RowPages<'a> {
        RowPages { format, columns, count: 0 }
    }

    /// Prints the next rows.
    pub fn add(&mut self, rows: &[Value]) -> Result<(), Failure> {
        if rows.is_empty() {
            return Ok(());
        }
        match self.format {
            Format::Json => {
                let before = |at: usize| if self.count + at == 0 { "[\n" } else { ",\n" };
                let rows = rows.iter().enumerate();
                let lines: Vec<String> =
                    rows.map(|(at, row)| format!("{}  {row}", before(at))).collect();
                print_text!("{}", lines.concat())?;
            }
            Format::Text => {
                let lines = table_lines(rows, self.columns, terminal_width());
                let has_title = usize::from(self.count > 0);
                print_line!("{}", lines[has_title..].join("\n"))?;
            }
        }
        self.count += rows.len();
        Ok(())
    }

    /// Ends the list. `empty` is printed instead of an empty table.
    pub fn end(self, empty: &str) -> Result<(), Failure> {
        match (self.format, self.count) {
            (Format::Json, 0) => print_line!("[]"),
            (Format::Json, _) => print_line!("\n]"),
            (Format::Text, 0) => print_line!("{empty}"),
            (Format::Text, _) => Ok(()),
        }
    }
}

/// Returns the width of the terminal in characters; `None` if standard output is not a terminal.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Returns the lines of a table. Columns that do not fit the width follow below in another table, which
/// repeats the first column, so that no line wraps.
fn table_lines(rows: &[Value], columns: &[Column], width: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut rest = columns;
    while !rest.is_empty() {
        let first = if lines.is_empty() { &[][..] } else { &columns[..1] };
        let part = |count: usize| plain_table(rows, &[first, &rest[..count]].concat());
        let fits = |lines: &[String]| {
            width.is_none_or(|width| lines.iter().all(|line| line.chars().count() <= width))
        };
        let count = (1..=rest.len()).rev().find(|count| fits(&part(*count))).unwrap_or(1);
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(part(count));
        rest = &rest[count..];
    }
    lines
}

fn plain_table(rows: &[Value], columns: &[Column]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.title));
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(row, column)));
    }
    table.to_string().lines().map(|line| line.trim_end().to_string()).collect()
}

/// Prints one object as JSON or as lines `title: value`.
pub fn print_object(format: Format, object: &Value, columns: &[Column]) -> Result<(), Failure> {
    if format == Format::Json {
        return print_json(object);
    }
    let width = columns.iter().map(|column| column.title.len()).max().unwrap_or(0);
    for column in columns {
        print_line!("{:<width$}  {}", column.title, cell(object, column))?;
    }
    Ok(())
}

fn cell(row: &Value, column: &Column) -> String {
    let mut value = row;
    for part in column.key.split('.') {
        value = &value[part];
    }
    match (column.show, value) {
        (_, Value::Null) => "-".into(),
        (Show::Size, value) => value.as_u64().map_or_else(|| value.to_string(), size_text),
        (Show::ExactSize, value) => {
            let size = value.as_u64().map(|bytes| base::size::Size(bytes).exact());
            size.unwrap_or_else(|| value.to_string())
        }
        (Show::YesNo, value) => if value.as_bool() == Some(true) { "yes" } else { "no" }.into(),
        (Show::Rate, value) => rate_text(value),
        (Show::Work, value) => work_text(value),
        (Show::Plain, Value::String(text)) => text.clone(),
        (Show::Plain, Value::Array(items)) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
                .collect();
            items.join(", ")
        }
        (Show::Plain, value) => value.to_string(),
    }
}

/// Returns a size as human-readable text.
pub fn size_text(bytes: u64) -> String {
    base::size::Size(bytes).to_string()
}

/// Shows how many of something are done, on a terminal only.
pub struct Counter {
    bar: Option<indicatif::ProgressBar>,
}

impl Counter {
    /// Starts at 0. `total`: how many there are, if that is known. Prints nothing with JSON output.
    pub fn new(format: Format, title: &'static str, total: Option<u64>) -> Counter {
        let bar = (format == Format::Text && std::io::stderr().is_terminal()).then(|| {
            let template = match total {
                Some(_) => "{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}",
                None => "{msg} {pos} {per_sec} {elapsed}",
            };
            let style = indicatif::ProgressStyle::with_template(template);
            let bar = indicatif::ProgressBar::no_length().with_message(title);
            total.into_iter().for_each(|total| bar.set_length(total));
            bar.with_style(style.expect("the template is valid"))
        });
        Counter { bar }
    }

    /// So many are done.
    pub fn set(&mut self, done: u64) {
        self.bar.iter().for_each(|bar| bar.set_position(done));
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    }
}

/// Shows the progress of a long task: a bar on a terminal, otherwise one line for each 10 %.
pub struct Progress {
    bar: Option<indicatif::ProgressBar>,
    title: String,
    total: u64,
    next_tenth: u64,
}

impl Progress {
    /// Starts at 0; `total` is in bytes. Prints nothing with JSON output.
    pub fn new(format: Format, title: impl Into<String>, total: u64) -> Progress {
        let title = title.into();
        let bar = (format == Format::Text && std::io::stderr().is_terminal()).then(|| {
            let style = indicatif::ProgressStyle::with_template(
                "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}",
            );
            let bar = indicatif::ProgressBar::new(total).with_message(title.clone());
            bar.with_style(style.expect("the template is valid"))
        });
        let next_tenth = if format == Format::Text { 1 } else { u64::MAX };
        Progress { bar, title, total, next_tenth }
    }

    /// Updates the progress: `done` bytes of the total are done.
    pub fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            return bar.set_position(done);
        }
        let tenth = done.saturating_mul(10).checked_div(self.total).unwrap_or(10);
        if self.next_tenth <= tenth {
            self.next_tenth = tenth + 1;
            note!("{}: {}% of {}", self.title, tenth * 10, size_text(self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_failed_daemon_says_why_it_exited() {
        let why = "osd.1 is \"running\": it listens\nelsewhere";
        let line = failure_line(&failure("running", why, "stop it"));
        assert_eq!(line.field("why").as_deref(), Some(why));
        let human = format!("T INFO  osd.1  listens\nT ERROR osd.1  {line}\n");
        assert_eq!(exit_reason(&human), why);
        let plain = format!("T ERROR osd.1  {}\n", failure_line(&failure("io", "gone", "")));
        assert_eq!(exit_reason(&plain), "gone");
        let json = format!("{}\n", json!({ "what": "exiting", "why": why, "hint": "stop it" }));
        assert_eq!(exit_reason(&json), why);
        // Without such a line, the last lines are shown as they are.
        assert_eq!(exit_reason("one\n  two\nthree"), "two; three");
        assert_eq!(exit_reason(""), "");
    }

    #[test]
    fn a_wide_table_is_split_between_columns_at_80_characters() {
        const COLUMNS: &[Column] = &[
            column("ID", "id"),
            size_column("SIZE", "size"),
            column("HOST", "host"),
            column("PATH", "path"),
            column("NOTE", "note"),
        ];
        let path = "/var/lib/ashlar/a/rather/long/path/of/osd.1";
        let note = "waits for another OSD of the same host";
        let rows = [json!({
            "id": 1, "size": 1 << 30, "host": "host-with-a-long-name", "path": path, "note": note,
        })];
        let wide = table_lines(&rows, COLUMNS, None);
        assert_eq!(wide.len(), 2);
        assert!(wide[1].chars().count() > 80, "{wide:?}");
        let lines = table_lines(&rows, COLUMNS, Some(80));
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert!(lines[1].contains(path) && lines[4].contains(note), "{lines:#?}");
        assert!(lines[3].trim_start().starts_with("ID"), "{lines:#?}");
        // A value wider than the terminal gets its own table and is not cut.
        let narrow = table_lines(&rows, COLUMNS, Some(20));
        assert!(narrow.iter().any(|line| line.contains(path)), "{narrow:#?}");
    }

    #[test]
    fn rates_are_shown_with_their_latency() {
        let idle = json!({ "ops_per_second": 0, "bytes_per_second": 0, "latency_mean_us": null });
        assert_eq!((rate_text(&idle), work_text(&idle)), ("-".into(), "-".into()));
        let busy = json!({
            "ops_per_second": 120, "bytes_per_second": 480 << 10,
            "latency_mean_us": 300, "latency_p99_us": 900,
        });
        assert_eq!(rate_text(&busy), format!("120/s {}/s", size_text(480 << 10)));
        assert!(work_text(&busy).ends_with(", 300 us, 99 % within 900 us"), "{}", work_text(&busy));
    }
}
