//! Events for the main loop of `up`, from the setup, the children and other commands.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use base::OsdId;
use cluster::message::Failure;

use super::protocol::{NextSteps, Request, Work};

/// OSDs that fail to start; the setup does not wait for them.
pub type FailedOsds = Arc<Mutex<BTreeSet<OsdId>>>;

/// The role of a child of `up`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The etcd that holds the state.
    Etcd,
    /// The monitor.
    Monitor,
    /// A storage daemon.
    Osd(OsdId),
    /// The NBD server.
    Nbd,
    /// The S3 gateway.
    Gateway,
}

impl Role {
    /// Returns the name of the child; its log is `NAME.log`.
    pub fn log_name(&self) -> String {
        match self {
            Role::Etcd => "etcd".into(),
            Role::Monitor => "mon.1".into(),
            Role::Osd(osd) => osd.to_string(),
            Role::Nbd => "nbd".into(),
            Role::Gateway => "gateway".into(),
        }
    }
}

/// An event for the main loop.
pub enum Event {
    /// The setup requests the start of this child, with these arguments.
    Spawn(Role, Vec<String>),
    /// A child exited; the number says which run of the child.
    Exited(Role, u64, std::io::Result<ExitStatus>),
    /// This run of an OSD has joined the cluster (`true`), or has not joined in time (`false`).
    Started(OsdId, u64, bool),
    /// A request from another command.
    Asked(Request, UnixStream),
    /// A message that says what the setup is doing.
    Progress(String),
    /// Progress of a long task of the setup.
    Work(Work),
    /// Volumes can be written, or OSDs were added.
    Ready(NextSteps),
    /// The setup failed, or adding OSDs failed.
    Failed(Failure),
    /// SIGTERM or SIGINT was received.
    Terminate,
}
