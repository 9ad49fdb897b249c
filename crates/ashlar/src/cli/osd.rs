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
  ashlar osd out 2          its data moves to the others
  ashlar osd tree           PGS of osd.2 goes to 0
  ashlar osd stop 2 && ashlar osd rm 2";

const OSD_RM_EXAMPLE: &str = "Examples:
  ashlar osd rm 2           an OSD that `osd out` emptied, and that is stopped
  ashlar osd out 3          one whose disk is lost: others get its copies first,
  ashlar osd rm 3           then it is forgotten";

/// `osd`
#[derive(Subcommand)]
pub enum OsdCommand {
    /// Make a new OSD in a directory, or on a block device
    #[command(after_help = OSD_CREATE_EXAMPLE)]
    Create {
        /// A directory (made if missing), or an empty block device
        path: PathBuf,
        /// Size; needed for a directory, the whole device otherwise
        #[arg(long)]
        size: Option<Size>,
        /// When a write counts as done; found by measuring if not given
        #[arg(long, value_enum)]
        commit: Option<CommitArg>,
    },
    /// Run the storage daemon of a directory or device
    #[command(after_help = "Example:\n  ashlar osd run /var/lib/ashlar/osd.4 --detach")]
    Run {
        /// As given to `osd create`
        path: PathBuf,
        /// Where to listen; default: in the networks of cluster.toml, or on 127.0.0.1
        #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
        listen: Option<String>,
        /// Memory for caches
        #[arg(long, default_value = "128MiB")]
        memory: Size,
        /// Return when it serves, and leave it in the background; its log is PATH/osd.log, that of a
        /// device lies beside cluster.toml
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        log: LogArgs,
        /// End when this process ends
        #[arg(long, hide = true)]
        parent: Option<u32>,
    },
    /// Start an OSD that was stopped, under `up`
    #[command(after_help = "Example:\n  ashlar osd start 2")]
    Start {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Stop an OSD under `up`; it stays stopped until `osd start`
    #[command(after_help = "Example:\n  ashlar osd stop osd.2")]
    Stop {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Empty an OSD: its data moves to other OSDs while it goes on serving
    #[command(after_help = OSD_OUT_EXAMPLE)]
    Out {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Use an OSD again that was taken out
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
    /// All OSDs
    #[command(after_help = "Example:\n  ashlar osd ls --json")]
    Ls,
    /// Hosts and their OSDs, as failure domains see them: weight, state, space
    #[command(after_help = "Example:\n  ashlar osd tree")]
    Tree,
    /// What is on a disk: superblock, journal, counts
    #[command(after_help = "Example:\n  ashlar osd inspect .ashlar/osd.1")]
    Inspect {
        /// As given to `osd create`
        path: PathBuf,
    },
    /// Read everything on a stopped OSD's disk and verify it; exit code 1 if something is wrong
    #[command(after_help = "Example:\n  ashlar osd check .ashlar/osd.1")]
    Check {
        /// As given to `osd create`
        path: PathBuf,
    },
}

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub enum CommitArg {
    /// After a flush of the disk's cache
    Fsync,
    /// Each write goes through the disk's cache
    Immediate,
}

impl CommitArg {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CommitArg::Fsync => "fsync",
            CommitArg::Immediate => "immediate",
        }
    }

    /// The commit mode of a store.
    pub fn mode(self) -> CommitMode {
        match self {
            CommitArg::Fsync => CommitMode::Fsync,
            CommitArg::Immediate => CommitMode::Immediate,
        }
    }
}
