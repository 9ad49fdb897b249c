//! `ashlar osd`.

use std::path::PathBuf;

use base::OsdId;
use base::size::Size;
use blockstore::CommitMode;
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::listen::{LISTEN, parse_listen};
use super::log_args::LogArgs;

const OSD_CREATE_EXAMPLE: &str = "Examples:
  ashlar osd create /var/lib/ashlar/osd.4 --size 100GiB
  ashlar osd create /dev/nvme0n1p2 --commit immediate";

const OSD_OUT_EXAMPLE: &str = "Examples:
  ashlar osd out 2          moves its data to the other OSDs
  ashlar osd tree           done when PGS of osd.2 is 0
  ashlar osd stop 2 && ashlar osd rm 2";

const OSD_RM_EXAMPLE: &str = "Examples:
  ashlar osd rm 2           an OSD that `osd out` emptied and that is stopped
  ashlar osd out 3          an OSD whose disk is lost: first restore its copies on other OSDs,
  ashlar osd rm 3           then remove it";

/// `osd`
#[derive(Subcommand)]
pub enum OsdCommand {
    /// Create an OSD in a directory or on a block device
    #[command(after_help = OSD_CREATE_EXAMPLE)]
    Create {
        /// A directory (created if missing), or an empty block device
        path: PathBuf,
        /// Size; required for a directory [default: the whole block device]
        #[arg(long)]
        size: Option<Size>,
        /// When a write is durable [default: chosen by measuring the disk]
        #[arg(long, value_enum)]
        commit: Option<CommitArg>,
    },
    /// Run an OSD
    #[command(after_help = "Example:\n  ashlar osd run /var/lib/ashlar/osd.4 --detach")]
    Run {
        /// The path given to `osd create`
        path: PathBuf,
        /// Address to listen on [default: the networks of cluster.toml, or 127.0.0.1]
        #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
        listen: Option<String>,
        /// Directory for records of objects, on any file system; a block device keeps objects only with it
        /// [default: PATH/objects, if PATH is a directory]
        #[arg(long, value_name = "DIR")]
        objects: Option<PathBuf>,
        /// Memory for caches; records of objects take up to twice as much more
        #[arg(long, default_value = "128MiB")]
        memory: Size,
        /// Memory for values of objects that were read, each as it was asked for; 0: none
        #[arg(long, default_value = "64MiB", value_name = "SIZE")]
        value_cache: Size,
        /// Run in the background; return once the OSD is ready. Logs to PATH/osd.log, or for a device to a
        /// file next to cluster.toml
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        log: LogArgs,
        /// Exit when the process with this id exits
        #[arg(long, hide = true)]
        parent: Option<u32>,
    },
    /// Start an OSD again after `osd stop`; for clusters that `up` runs
    #[command(after_help = "Example:\n  ashlar osd start 2")]
    Start {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Stop an OSD until `osd start`; for clusters that `up` runs
    #[command(after_help = "Example:\n  ashlar osd stop osd.2")]
    Stop {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Move all data off an OSD; the OSD keeps serving I/O meanwhile
    #[command(after_help = OSD_OUT_EXAMPLE)]
    Out {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Use an OSD again after `osd out`
    #[command(after_help = "Example:\n  ashlar osd in 2")]
    In {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Remove an OSD that is stopped and empty, or lost; its id is never used again
    #[command(after_help = OSD_RM_EXAMPLE)]
    Rm {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Compare the copies of all placement groups on an OSD now; with --deep, also check its own metadata
    #[command(after_help = "Example:\n  ashlar osd scrub 2 --deep")]
    Scrub {
        /// 2 or osd.2
        osd: OsdId,
        /// Read all data and compare it with its checksums
        #[arg(long)]
        deep: bool,
    },
    /// List OSDs
    #[command(after_help = "Example:\n  ashlar osd ls --json")]
    Ls,
    /// List hosts and their OSDs with weight, state and space
    #[command(after_help = "Example:\n  ashlar osd tree")]
    Tree,
    /// Show the contents of a stopped OSD's disk: superblock, journal, counts
    #[command(after_help = "Example:\n  ashlar osd inspect .ashlar/osd.1")]
    Inspect {
        /// The path given to `osd create`
        path: PathBuf,
        /// The directory of its records of objects, if it is not beside its file of blocks
        #[arg(long, value_name = "DIR")]
        objects: Option<PathBuf>,
    },
    /// Replace the engine of a stopped OSD, which keeps its records of objects, by an empty one: for an
    /// engine that is lost, or cannot be opened any more. Its copies of objects are made anew from other OSDs
    #[command(after_help = "Example:\n  ashlar osd new-engine /var/lib/ashlar/osd.4 --yes")]
    NewEngine {
        /// The path given to `osd create`
        path: PathBuf,
        /// The directory of its records of objects, if it is not beside its file of blocks
        #[arg(long, value_name = "DIR")]
        objects: Option<PathBuf>,
        /// Confirm: what is left of the old engine is removed
        #[arg(long)]
        yes: bool,
    },
    /// Read and verify everything on the disk of a stopped OSD; exit code 1 if it is damaged
    #[command(after_help = "Example:\n  ashlar osd check .ashlar/osd.1")]
    Check {
        /// The path given to `osd create`
        path: PathBuf,
        /// The directory of its records of objects, if it is not beside its file of blocks
        #[arg(long, value_name = "DIR")]
        objects: Option<PathBuf>,
    },
}

/// When a write is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub enum CommitArg {
    /// After the disk's cache is flushed
    Fsync,
    /// As soon as it is written; all writes are write-through
    Immediate,
}

impl CommitArg {
    /// Returns the name of this value on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CommitArg::Fsync => "fsync",
            CommitArg::Immediate => "immediate",
        }
    }

    /// Returns the commit mode of the store.
    pub fn mode(self) -> CommitMode {
        match self {
            CommitArg::Fsync => CommitMode::Fsync,
            CommitArg::Immediate => CommitMode::Immediate,
        }
    }
}
