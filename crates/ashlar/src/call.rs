//! Sends a command to a monitor and waits for the answer.

use std::time::Duration;

use client::Config;
use cluster::message::{Command, Failure};
use cluster::stats::Table;
use serde_json::Value;

use crate::output::Format;

/// Time limit for a command, long enough for a monitor to start.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);

/// Sends a command to a monitor. With text output, prints a line as soon as the command has to wait for the
/// state store.
pub fn call(config: &Config, format: Format, command: Command) -> Result<Value, Failure> {
    client::call_reporting(config, command, COMMAND_TIME_MAX, |failure| {
        if format == Format::Text && failure.code == "state_unavailable" {
            let seconds = COMMAND_TIME_MAX.as_secs();
            note!("ashlar: retrying for up to {seconds} s: {}", failure.message);
        }
    })
}

/// Returns all rows of a table with their statistics; sends as many requests as needed.
pub fn table(config: &Config, format: Format, table: Table) -> Result<Value, Failure> {
    let mut rows: Vec<Value> = Vec::new();
    loop {
        let last = rows.last().and_then(|row| row["id"].as_u64()).unwrap_or(0);
        let after = u32::try_from(last).unwrap_or(u32::MAX);
        let mut answer = call(config, format, Command::Table { table, after })?;
        let Value::Array(more) = answer["rows"].take() else { break };
        let is_last = answer["more"] != true || more.is_empty();
        rows.extend(more);
        if is_last {
            break;
        }
    }
    Ok(Value::Array(rows))
}
