//! `ashlar bench`.

use std::path::PathBuf;

use base::size::Size;
use clap::{Args, Subcommand, ValueEnum};
use engine::Compression;

use super::object::PoolArg;
use super::osd::CommitArg;
use super::pool::parse_compression;

const BENCH_DISK_EXAMPLE: &str = "\
The loopback echo sends a block in the direction of the load and at most 4KiB in the other direction.

Example:
  ashlar bench disk /mnt/nvme --op randwrite --depth 1";

const BENCH_KV_EXAMPLE: &str = "\
`get`, `put` and `scan` use the records that a fill with the same --records and --prefix wrote.

Example:
  ashlar bench kv --op fill --records 100000 --batch 100 --depth 4
  ashlar bench kv --op get --records 100000 --depth 32";

const BENCH_ENGINE_EXAMPLE: &str = "\
Writes all records in batches, then flushes, gets random records for --seconds, and scans everything.

Example:
  ashlar bench engine /mnt/nvme --compression zstd";

const BENCH_OBJECT_EXAMPLE: &str = "\
`put`, `get` and `ls` use the objects that a fill with the same --records and --prefix put.
`remove` first puts each object, and measures only the removal.

Example:
  ashlar bench object --op fill --records 100 --min-size 4MiB --max-size 8MiB
  ashlar bench object --op remove --records 100000 --batch 100 --min-size 1KiB --max-size 4KiB";

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
    /// Measure small values in a pool of objects end to end. Writes keys that begin with --prefix
    #[command(after_help = BENCH_KV_EXAMPLE)]
    Kv {
        /// Kind of load
        #[arg(long, value_enum, default_value = "fill")]
        op: KvOpArg,
        /// Number of records that the load is spread over
        #[arg(long, value_name = "COUNT", default_value_t = 10_000,
              value_parser = clap::value_parser!(u64).range(1..))]
        records: u64,
        #[command(flatten)]
        load: RecordArgs,
        /// Records of one request of a fill
        #[arg(long, value_name = "COUNT", default_value_t = 100,
              value_parser = clap::value_parser!(u64).range(1..=10_000))]
        batch: u64,
        /// Smallest value
        #[arg(long, value_name = "SIZE", default_value = "300B")]
        min_size: Size,
        /// Largest value, up to 32KiB
        #[arg(long, value_name = "SIZE", default_value = "900B")]
        max_size: Size,
    },
    /// Measure objects in a pool end to end. Writes objects whose names begin with --prefix
    #[command(after_help = BENCH_OBJECT_EXAMPLE)]
    Object {
        /// Kind of load
        #[arg(long, value_enum, default_value = "fill")]
        op: ObjectOpArg,
        /// Number of objects that the load is spread over
        #[arg(long, value_name = "COUNT", default_value_t = 100,
              value_parser = clap::value_parser!(u64).range(1..))]
        records: u64,
        #[command(flatten)]
        load: RecordArgs,
        /// Objects of one request of `fill` and `remove`; objects above 32KiB are put one by one
        #[arg(long, value_name = "COUNT", default_value_t = 1,
              value_parser = clap::value_parser!(u64).range(1..=10_000))]
        batch: u64,
        /// Let `remove` put nothing: a fill with the same --records and --prefix did
        #[arg(long)]
        filled: bool,
        /// Smallest object
        #[arg(long, value_name = "SIZE", default_value = "64KiB")]
        min_size: Size,
        /// Largest object, up to 64MiB
        #[arg(long, value_name = "SIZE", default_value = "1MiB")]
        max_size: Size,
    },
    /// Measure the engine of objects alone, in a scratch directory: what a pool of objects is compared with
    #[command(after_help = BENCH_ENGINE_EXAMPLE)]
    Engine {
        /// Directory for the scratch directory, which is removed at the end
        path: PathBuf,
        /// Number of records
        #[arg(long, value_name = "COUNT", default_value_t = 100_000,
              value_parser = clap::value_parser!(u64).range(1..))]
        records: u64,
        /// Records of one write
        #[arg(long, value_name = "COUNT", default_value_t = 100,
              value_parser = clap::value_parser!(u64).range(1..=1000))]
        batch: u64,
        /// Smallest value
        #[arg(long, value_name = "SIZE", default_value = "300B")]
        min_size: Size,
        /// Largest value, up to 32KiB
        #[arg(long, value_name = "SIZE", default_value = "900B")]
        max_size: Size,
        /// Use random bytes, which cannot be compressed, instead of text
        #[arg(long)]
        incompressible: bool,
        /// Compression of the records
        #[arg(long, value_parser = parse_compression, default_value = "lz4")]
        compression: Compression,
        /// Reads in flight
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
        depth: u32,
        /// Memory of the engine's cache
        #[arg(long, value_name = "SIZE", default_value = "64MiB")]
        memory: Size,
        /// Duration of the random reads in seconds
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86400))]
        seconds: u32,
    },
}

/// Records of a load on a pool of objects.
#[derive(Args)]
pub struct RecordArgs {
    /// What their names begin with
    #[arg(long, default_value = "bench/")]
    pub prefix: String,
    /// Use random bytes, which cannot be compressed, instead of text
    #[arg(long)]
    pub incompressible: bool,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// Duration in seconds; without it random loads take 10, and others end when each record had its turn
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: Option<u32>,
    #[command(flatten)]
    pub pool: PoolArg,
}

/// A kind of load on small values.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvOpArg {
    /// Put each record, --batch together
    Fill,
    /// Put random records, one by one
    Put,
    /// Get random records
    Get,
    /// Read all records in order, page by page
    Scan,
}

/// A kind of load on objects.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectOpArg {
    /// Put each object
    Fill,
    /// Remove each object
    Remove,
    /// Put random objects
    Put,
    /// Get random objects
    Get,
    /// List all names in order, page by page
    Ls,
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
