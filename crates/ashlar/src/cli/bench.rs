//! `ashlar bench`.

use std::path::PathBuf;

use base::size::Size;
use clap::{Args, Subcommand, ValueEnum};

use super::osd::CommitArg;

const BENCH_DISK_EXAMPLE: &str = "\
The loopback echo sends a block in the direction of the load and at most 4KiB in the other direction.

Example:
  ashlar bench disk /mnt/nvme --op randwrite --depth 1";

/// `bench`
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Measure a volume end to end. Write loads overwrite its data
    #[command(after_help = "Example:\n  ashlar bench volume disk1 --op randwrite --depth 32")]
    Volume {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Measure the store on a scratch file, and for comparison raw io_uring on the same file and a
    /// loopback echo, both with the same block size and depth
    #[command(after_help = BENCH_DISK_EXAMPLE)]
    Disk {
        /// Directory for the scratch file, which is removed at the end
        path: PathBuf,
        #[command(flatten)]
        load: LoadArgs,
        /// Size of the scratch file
        #[arg(long, default_value = "1GiB")]
        size: Size,
        /// When a write is durable
        #[arg(long, value_enum, default_value = "immediate")]
        commit: CommitArg,
    },
}

/// The load of a measurement.
#[derive(Args, Clone)]
pub struct LoadArgs {
    /// Kind of load
    #[arg(long, value_enum, default_value = "randwrite")]
    pub op: OpArg,
    /// Size of one operation
    #[arg(long, default_value = "4KiB")]
    pub block_size: Size,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
}

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Random writes
    Randwrite,
    /// Random reads
    Randread,
    /// Sequential writes
    Write,
    /// Sequential reads
    Read,
}
