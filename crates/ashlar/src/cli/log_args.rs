//! The options of every daemon that say what it logs.

use base::trace::Level;
use clap::{Args, ValueEnum};

const LOG_FORMAT_VARIABLE: &str = "ASHLAR_LOG_FORMAT";
const LOG_LEVEL_VARIABLE: &str = "ASHLAR_LOG_LEVEL";

/// What a daemon writes to its log, which is its standard error; of `up` its children, too.
#[derive(Args, Clone, Copy)]
pub struct LogArgs {
    /// Lines of the log for people, or as JSON
    #[arg(long, value_enum, default_value = "human", env = LOG_FORMAT_VARIABLE)]
    pub log_format: LogFormat,
    /// The least important lines of the log: error, warn, info or debug. In OSDs and monitors the
    /// setting log_level takes its place
    #[arg(long, default_value = "info", env = LOG_LEVEL_VARIABLE, value_name = "LEVEL")]
    pub log_level: Level,
}

impl LogArgs {
    /// This process is a daemon of that name from now on.
    pub fn start(self, who: impl Into<String>) {
        let format = match self.log_format {
            LogFormat::Human => io::log::Format::Human,
            LogFormat::Json => io::log::Format::Json,
        };
        io::log::start(who, format, self.log_level);
    }

    /// The same for a child, by its environment.
    pub fn variables(self) -> [(&'static str, &'static str); 2] {
        let format = match self.log_format {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        };
        [(LOG_FORMAT_VARIABLE, format), (LOG_LEVEL_VARIABLE, self.log_level.name())]
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// Time, level, who, what, then name=value
    Human,
    /// One JSON object in each line
    Json,
}
