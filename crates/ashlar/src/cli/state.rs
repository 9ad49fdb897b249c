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
  ashlar state recover                          shows what would be done and which OSDs are missing
  ashlar state recover --yes
  ashlar state recover --they-are-lost 3 --yes  for OSDs that are lost for good";

/// `config`
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// List settings
    #[command(after_help = "Example:\n  ashlar config ls")]
    Ls,
    /// Show a setting
    #[command(after_help = "Example:\n  ashlar config get session_timeout_ms")]
    Get {
        /// Name, as in `config ls`
        name: String,
    },
    /// Change a setting; it takes effect at once
    #[command(after_help = CONFIG_SET_EXAMPLE)]
    Set {
        /// Name, as in `config ls`
        name: String,
        /// A number, a number with a unit (30s, 500ms, 85%), or `default`
        value: String,
    },
}

/// `state`
#[derive(Subcommand)]
pub enum StateCommand {
    /// List keys
    #[command(after_help = "Example:\n  ashlar state ls image/")]
    Ls {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Print the JSON value of a key
    #[command(after_help = "Example:\n  ashlar state get pool/1")]
    Get {
        /// The whole key
        key: String,
    },
    /// Write a key that operators may edit (config/NAME, pool/ID, osd/ID); it takes effect at once
    #[command(after_help = STATE_PUT_EXAMPLE)]
    Put {
        /// The whole key
        key: String,
        /// JSON; `-` reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Also write new fields that this version does not know, and that nothing reads
        #[arg(long)]
        force: bool,
    },
    /// Restore keys that only monitors may write but that were edited by hand
    #[command(after_help = "Example:\n  ashlar state undo --yes")]
    Undo {
        /// Restore the values. Without --yes, only print the last good values and exit with code 1
        #[arg(long)]
        yes: bool,
    },
    /// Bring a damaged or restored state store up to date with the OSDs' records
    #[command(after_help = STATE_RECOVER_EXAMPLE)]
    Recover {
        /// OSDs that are lost for good; what only they have recorded is lost too
        #[arg(long, value_name = "OSD", num_args = 1.., value_delimiter = ',')]
        they_are_lost: Vec<OsdId>,
        /// Carry it out. Without --yes, only print what would be done and exit with code 1
        #[arg(long)]
        yes: bool,
    },
    /// Print changes of keys as they happen, until interrupted; with --json, one line per change
    #[command(after_help = "Example:\n  ashlar state watch pool/")]
    Watch {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
}
