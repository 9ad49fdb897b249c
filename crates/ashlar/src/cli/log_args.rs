//! The logging options that every daemon has.

use base::trace::Level;
use clap::{Args, ValueEnum};

const LOG_FORMAT_VARIABLE: &str = "ASHLAR_LOG_FORMAT";
const LOG_LEVEL_VARIABLE: &str = "ASHLAR_LOG_LEVEL";

/// What a daemon logs to its standard error. `up` passes these options on to its children.
#[derive(Args, Clone, Copy)]
pub struct LogArgs {
    /// Format of log lines
    #[arg(long, value_enum, default_value = "human", env = LOG_FORMAT_VARIABLE)]
    pub log_format: LogFormat,
    /// Lowest level that is logged: error, warn, info or debug. In OSDs and monitors the
    /// setting log_level overrides it
    #[arg(long, default_value = "info", env = LOG_LEVEL_VARIABLE, value_name = "LEVEL")]
    pub log_level: Level,
}

impl LogArgs {
    /// Starts the log with the daemon name `who`.
    pub fn start(self, who: impl Into<String>) {
        let format = match self.log_format {
            LogFormat::Human => io::log::Format::Human,
            LogFormat::Json => io::log::Format::Json,
        };
        io::log::start(who, format, self.log_level);
    }

    /// Returns the environment variables that give a child process the same options.
    pub fn variables(self) -> [(&'static str, &'static str); 2] {
        let format = match self.log_format {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        };
        [(LOG_FORMAT_VARIABLE, format), (LOG_LEVEL_VARIABLE, self.log_level.name())]
    }
}

/// Format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// Time, level, daemon, message, then name=value pairs
    Human,
    /// One JSON object per line
    Json,
}
