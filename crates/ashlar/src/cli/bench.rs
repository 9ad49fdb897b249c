//! `ashlar bench`.

use std::path::PathBuf;

use base::size::Size;
use clap::{Args, Subcommand, ValueEnum};

use super::osd::CommitArg;

const BENCH_DISK_EXAMPLE: &str = "\
In the echo a block goes the way it goes in the load, and at most 4KiB come the other way.

Example:
  ashlar bench disk /mnt/nvme --op randwrite --depth 1";

/// `bench`
#[derive(Subcommand)]
pub enum BenchCommand {
    /// A volume, through its whole path. Writing modes overwrite the volume
    #[command(after_help = "Example:\n  ashlar bench volume disk1 --op randwrite --depth 32")]
    Volume {
        /// Its name
        name: String,
        /// How
        #[command(flatten)]
        load: LoadArgs,
    },
    /// The store on a scratch file in a directory, beside raw io_uring on the same file and a loopback
    /// echo, both of the same block size and depth
    #[command(after_help = BENCH_DISK_EXAMPLE)]
    Disk {
        /// A directory; the scratch file is removed at the end
        path: PathBuf,
        /// How
        #[command(flatten)]
        load: LoadArgs,
        /// Size of the scratch file
        #[arg(long, default_value = "1GiB")]
        size: Size,
        /// When a write counts as done
        #[arg(long, value_enum, default_value = "immediate")]
        commit: CommitArg,
    },
}

/// What a measurement does.
#[derive(Args, Clone)]
pub struct LoadArgs {
    /// What to do
    #[arg(long, value_enum, default_value = "randwrite")]
    pub op: OpArg,
    /// Bytes of one operation
    #[arg(long, default_value = "4KiB")]
    pub block_size: Size,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
}

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Writes at random places
    Randwrite,
    /// Reads at random places
    Randread,
    /// Writes one after another
    Write,
    /// Reads one after another
    Read,
}
