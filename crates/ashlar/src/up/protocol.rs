//! Requests from other commands to a running `up`, and its answers: JSON lines over DIR/up.sock.

use std::path::PathBuf;

use base::OsdId;
use cluster::message::Failure;
use serde::{Deserialize, Serialize};

use crate::cli::{CommitArg, UpArgs};

/// A request to `up`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Answer once volumes can be written.
    Wait,
    /// Report which children exited although they should run.
    Ended,
    /// Stop all children and exit.
    Down,
    /// Create the OSDs that are missing, and answer once they are up.
    AddOsds(WantedOsds),
    /// Stop an OSD; it stays stopped until a `StartOsd` request.
    StopOsd {
        /// The OSD to stop.
        osd: OsdId,
    },
    /// Start a stopped OSD.
    StartOsd {
        /// The OSD to start.
        osd: OsdId,
    },
}

/// An answer from `up`: any number of `Progress` and `Work`, then exactly one of the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// A message that says what `up` is doing.
    Progress {
        /// One line.
        line: String,
    },
    /// Progress of a long task.
    Work(Work),
    /// Children that exited although they should run.
    Ended {
        /// The children, sorted by name.
        children: Vec<EndedChild>,
    },
    /// The request was carried out.
    Done {
        /// What to tell the user; may be empty.
        #[serde(flatten)]
        steps: NextSteps,
        /// OSDs that fail to start; the cluster is ready without them.
        #[serde(default)]
        osds_failed: Vec<OsdId>,
    },
    /// The request failed.
    Failed {
        /// The reason.
        error: Failure,
    },
}

/// What a user is told of a cluster that is ready.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NextSteps {
    /// Commands to suggest.
    #[serde(default)]
    pub next: Vec<String>,
    /// The S3 gateway, if there is one.
    #[serde(default)]
    pub gateway: Option<GatewayAccess>,
}

/// How to reach the gateway.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GatewayAccess {
    /// Its address.
    pub url: String,
    /// The region that signatures name.
    pub region: String,
    /// The key of the first user, told once, by the `up` that created it.
    #[serde(flatten)]
    pub key: Option<GatewayKey>,
}

/// An access key with its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayKey {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

impl std::fmt::Debug for GatewayKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.access_key)
    }
}

impl NextSteps {
    /// Returns the same without what is told once.
    pub fn again(&self) -> NextSteps {
        let mut steps = self.clone();
        if let Some(gateway) = &mut steps.gateway {
            gateway.key = None;
        }
        steps
    }
}

/// A child that exited although it should run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedChild {
    /// Name of the child, such as `osd.2`.
    pub child: String,
    /// Exit status of the child, as text.
    pub status: String,
    /// Time until the child is restarted, in milliseconds; `None` if it is not restarted.
    pub again_in_ms: Option<u64>,
    /// Path of the child's log.
    pub log: PathBuf,
}

/// Progress of a long task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work {
    /// What is being done, as text.
    pub title: String,
    /// Bytes done so far.
    pub done_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

/// The OSDs that the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WantedOsds {
    /// Number of OSDs; `None`: the existing ones, or the default number for a new cluster.
    pub count: Option<u32>,
    /// Size of each new OSD, in bytes.
    pub size: u64,
    /// Commit mode of each new OSD; `None`: chosen by measuring the disk.
    pub commit: Option<CommitArg>,
}

impl WantedOsds {
    /// Returns the OSDs that the command line requests.
    pub fn of(args: &UpArgs) -> WantedOsds {
        WantedOsds { count: args.osds, size: args.osd_size.0, commit: args.commit }
    }
}
