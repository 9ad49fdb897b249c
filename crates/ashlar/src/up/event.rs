//! Events for the main loop of `up`, from its setup, its children and other commands.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use base::OsdId;
use cluster::message::Failure;

use super::protocol::{Request, Work};

/// OSDs that do not start, so that the setup no longer waits for them.
pub type FailedOsds = Arc<Mutex<BTreeSet<OsdId>>>;

/// Which child it is.
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
}

impl Role {
    /// Its name; its log is `NAME.log`.
    pub fn log_name(&self) -> String {
        match self {
            Role::Etcd => "etcd".into(),
            Role::Monitor => "mon.1".into(),
            Role::Osd(osd) => osd.to_string(),
            Role::Nbd => "nbd".into(),
        }
    }
}

/// An event for the main loop.
pub enum Event {
    /// The setup wants this child to run, with these arguments.
    Spawn(Role, Vec<String>),
    /// A run of a child exited; carries the number of the run.
    Exited(Role, u64, std::io::Result<ExitStatus>),
    /// This run of an OSD has joined the cluster, or (false) has not done so in time.
    Started(OsdId, u64, bool),
    /// A request of another command.
    Asked(Request, UnixStream),
    /// What the setup is doing, for people.
    Progress(String),
    /// Progress of a long task of the setup.
    Work(Work),
    /// Volumes can be written, or OSDs were added; carries what to type next.
    Ready(Vec<String>),
    /// The setup failed, or adding OSDs failed.
    Failed(Failure),
    /// SIGTERM or SIGINT.
    Terminate,
}
