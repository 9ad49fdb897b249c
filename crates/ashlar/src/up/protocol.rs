//! What other commands ask of a running `up`, and what it answers: JSON lines over DIR/up.sock.

use std::path::PathBuf;

use base::OsdId;
use cluster::message::Failure;
use serde::{Deserialize, Serialize};

use crate::cli::{CommitArg, UpArgs};

/// What `up` is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Answer when a volume can be written.
    Wait,
    /// Answer which children do not run and are to.
    Ended,
    /// Stop all children and end.
    Down,
    /// Make the OSDs that are missing, and answer when they are up.
    AddOsds(WantedOsds),
    /// Stop an OSD until it is started by hand.
    StopOsd {
        /// Which.
        osd: OsdId,
    },
    /// Start a stopped OSD.
    StartOsd {
        /// Which.
        osd: OsdId,
    },
}

/// What `up` answers: any number of `Progress` and `Work`, then one of the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// What is happening, for people.
    Progress {
        /// One line.
        line: String,
    },
    /// How far long work is.
    Work(Work),
    /// Children that do not run and are to.
    Ended {
        /// In the order of their names.
        children: Vec<EndedChild>,
    },
    /// It is done.
    Done {
        /// What to type next, or nothing.
        #[serde(default)]
        next: Vec<String>,
        /// OSDs that do not start: the cluster is ready without them.
        #[serde(default)]
        osds_failed: Vec<OsdId>,
    },
    /// It cannot be done.
    Failed {
        /// Why.
        error: Failure,
    },
}

/// A child that ended by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedChild {
    /// Its name, like `osd.2`.
    pub child: String,
    /// How it ended.
    pub status: String,
    /// When it is started again, from now; never, if there is nothing.
    pub again_in_ms: Option<u64>,
    /// Where its log is.
    pub log: PathBuf,
}

/// How far long work is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work {
    /// What is done, for people.
    pub title: String,
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes there are to do.
    pub total_bytes: u64,
}

/// The OSDs that there are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WantedOsds {
    /// How many; none: those that are there, or as many as a new cluster has.
    pub count: Option<u32>,
    /// Size of one that is made, in bytes.
    pub size: u64,
    /// Commit mode of one that is made.
    pub commit: Option<CommitArg>,
}

impl WantedOsds {
    /// As the command line says.
    pub fn of(args: &UpArgs) -> WantedOsds {
        WantedOsds { count: args.osds, size: args.osd_size.0, commit: args.commit }
    }
}
