//! `ashlar volume` and `ashlar nbd`.

use base::size::Size;
use clap::{Args, Subcommand};

use super::listen::{LISTEN, parse_listen};
use super::log_args::LogArgs;

pub(super) const NBD_EXAMPLE: &str = "Example:
  ashlar nbd --listen tcp:127.0.0.1:10809
  nbdinfo --list nbd://127.0.0.1";

/// `volume`
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Make a volume; it takes space as it is written
    #[command(after_help = "Example:\n  ashlar volume create disk1 --size 20GiB")]
    Create {
        /// Letters, digits, `.`, `_`, `-`; at most 63
        name: String,
        /// A multiple of 4 KiB
        #[arg(long)]
        size: Size,
        /// Not needed while there is one pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// All volumes
    #[command(after_help = "Example:\n  ashlar volume ls --json")]
    Ls,
    /// One volume
    #[command(after_help = "Example:\n  ashlar volume info disk1")]
    Info {
        /// Its name
        name: String,
    },
    /// Make a volume larger, or with --shrink smaller
    #[command(after_help = "Example:\n  ashlar volume resize disk1 40GiB")]
    Resize {
        /// Its name
        name: String,
        /// The new size, a multiple of 4 KiB
        size: Size,
        /// Accept that data beyond the new size is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Remove a volume and its data; refused while it is attached
    #[command(after_help = "Example:\n  ashlar volume rm disk1")]
    Rm {
        /// Its name
        name: String,
    },
    /// Take a volume's lock from a client that hangs; it is cut off for ever
    #[command(
        after_help = "Examples:\n  ashlar volume unlock disk1          who has the lock?\n  \
                            ashlar volume unlock disk1 --yes"
    )]
    Unlock {
        /// Its name
        name: String,
        /// Cut the holder off. Without this: say who has the lock, exit code 1
        #[arg(long)]
        yes: bool,
    },
}

/// `nbd`
#[derive(Args)]
pub struct NbdArgs {
    /// Serve only these; default: all volumes
    pub volumes: Vec<String>,
    /// Where to listen; default: unix:DIR/nbd.sock
    #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
    pub listen: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Take no locks: several servers may serve a volume, and each write waits for the disks
    #[arg(long)]
    pub shared: bool,
    /// With a lock: most data of a volume that is acknowledged but not flushed
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_unsynced)]
    pub unsynced: Size,
    #[command(flatten)]
    pub log: LogArgs,
    /// End when this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

fn parse_unsynced(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let min = Size(volume::UNSYNCED_SIZE_MIN);
    if size >= min { Ok(size) } else { Err(format!("at least {min}")) }
}
