//! `ashlar config` and `ashlar state`: what the state store holds.

use base::OsdId;
use clap::Subcommand;

const CONFIG_SET_EXAMPLE: &str = "Examples:
  ashlar config set session_timeout_ms 30s
  ashlar config set nearly_full_percent default";

const STATE_PUT_EXAMPLE: &str = "Examples:
  ashlar state put config/osd_report_ms '{\"name\":\"osd_report_ms\",\"value\":500}'
  ashlar state get osd/2 | jq '.value | .in = false' | ashlar state put osd/2 -";

const STATE_RECOVER_EXAMPLE: &str = "Examples:
  ashlar state recover                          what would be done, and who is missing
  ashlar state recover --yes
  ashlar state recover --they-are-lost 3 --yes  OSDs that never come back";

/// `config`
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// All settings
    #[command(after_help = "Example:\n  ashlar config ls")]
    Ls,
    /// One setting
    #[command(after_help = "Example:\n  ashlar config get session_timeout_ms")]
    Get {
        /// As `config ls` names it
        name: String,
    },
    /// Change a setting; it is in force at once
    #[command(after_help = CONFIG_SET_EXAMPLE)]
    Set {
        /// As `config ls` names it
        name: String,
        /// A number, or with its unit: 30s, 500ms, 85%; or `default`
        value: String,
    },
}

/// `state`
#[derive(Subcommand)]
pub enum StateCommand {
    /// Keys of the state store
    #[command(after_help = "Example:\n  ashlar state ls image/")]
    Ls {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// The JSON value of a key
    #[command(after_help = "Example:\n  ashlar state get pool/1")]
    Get {
        /// The whole key
        key: String,
    },
    /// Write a key that operators may edit: config/NAME, pool/ID, osd/ID; in force at once
    #[command(after_help = STATE_PUT_EXAMPLE)]
    Put {
        /// The whole key
        key: String,
        /// JSON; `-` reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Restore keys that only monitors may write, and that somebody else changed
    #[command(after_help = "Example:\n  ashlar state undo --yes")]
    Undo {
        /// Do it. Without this: show the last good values, exit code 1
        #[arg(long)]
        yes: bool,
    },
    /// Bring a state store that is damaged, or was restored from a backup, up to what OSDs know
    #[command(after_help = STATE_RECOVER_EXAMPLE)]
    Recover {
        /// OSDs that will not answer any more: what they alone know is lost
        #[arg(long, value_name = "OSD", num_args = 1.., value_delimiter = ',')]
        they_are_lost: Vec<OsdId>,
        /// Do it. Without this: say what would be done, exit code 1
        #[arg(long)]
        yes: bool,
    },
    /// Print changes of keys as they happen, until interrupted; with --json one line each
    #[command(after_help = "Example:\n  ashlar state watch pool/")]
    Watch {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
}
