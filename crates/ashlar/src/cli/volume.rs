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
    /// Create a volume; it uses space only as data is written
    #[command(after_help = "Example:\n  ashlar volume create disk1 --size 20GiB")]
    Create {
        /// Up to 63 letters, digits, `.`, `_` and `-`
        name: String,
        /// Size, a multiple of 4 KiB
        #[arg(long)]
        size: Size,
        /// Pool to create it in; required if there are several
        #[arg(long)]
        pool: Option<String>,
    },
    /// List volumes
    #[command(after_help = "Example:\n  ashlar volume ls --json")]
    Ls {
        /// With the volumes that hold data of gateways
        #[arg(long)]
        all: bool,
    },
    /// Show a volume: size, lock, clients, load
    #[command(after_help = "Example:\n  ashlar volume info disk1")]
    Info {
        /// Name of the volume
        name: String,
    },
    /// Make a volume larger, or smaller with --shrink
    #[command(after_help = "Example:\n  ashlar volume resize disk1 40GiB")]
    Resize {
        /// Name of the volume
        name: String,
        /// The new size, a multiple of 4 KiB
        size: Size,
        /// Allow a smaller size; data beyond it is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Delete a volume and its data; refused while it is attached
    #[command(after_help = "Example:\n  ashlar volume rm disk1")]
    Rm {
        /// Name of the volume
        name: String,
    },
    /// Take a volume's lock away from a client that hangs; its session can never write again after that
    #[command(
        after_help = "Examples:\n  ashlar volume unlock disk1          shows who holds the lock\n  \
                            ashlar volume unlock disk1 --yes"
    )]
    Unlock {
        /// Name of the volume
        name: String,
        /// Take the lock away. Without --yes, only print who holds the lock and exit with code 1
        #[arg(long)]
        yes: bool,
    },
}

/// `nbd`
#[derive(Args)]
pub struct NbdArgs {
    /// Volumes to serve [default: all]
    pub volumes: Vec<String>,
    /// Address to listen on [default: unix:DIR/nbd.sock]
    #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
    pub listen: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Take no locks, so that several servers can serve one volume; each write then waits until it is
    /// durable
    #[arg(long)]
    pub shared: bool,
    /// Maximum amount of data per volume that may be acknowledged but not yet durable; not used with --shared
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_unsynced)]
    pub unsynced: Size,
    #[command(flatten)]
    pub log: LogArgs,
    /// Exit when the process with this id exits
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

fn parse_unsynced(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let min = Size(volume::UNSYNCED_SIZE_MIN);
    if size >= min { Ok(size) } else { Err(format!("must be at least {min}")) }
}
