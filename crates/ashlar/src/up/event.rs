//! What reaches the main loop of `up`, from its setup, its children and other commands.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use base::OsdId;
use cluster::message::Failure;

use super::protocol::{Request, Work};

/// OSDs that the setup waits for no longer, for they do not start.
pub type FailedOsds = Arc<Mutex<BTreeSet<OsdId>>>;

/// Names a child: also the name of its log.
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
    /// The name of its log, without `.log`.
    pub fn log_name(&self) -> String {
        match self {
            Role::Etcd => "etcd".into(),
            Role::Monitor => "mon.1".into(),
            Role::Osd(osd) => osd.to_string(),
            Role::Nbd => "nbd".into(),
        }
    }
}

/// What reaches the main loop.
pub enum Event {
    /// The setup wants a child.
    Spawn(Role, Vec<String>),
    /// A child ended; carries which of its runs.
    Exited(Role, u64, std::io::Result<ExitStatus>),
    /// A run of an OSD has joined the cluster, or has not for long.
    Started(OsdId, u64, bool),
    /// Another command asks.
    Asked(Request, UnixStream),
    /// The setup says what it does.
    Progress(String),
    /// How far a work of the setup is.
    Work(Work),
    /// A volume can be written, or OSDs were added; carries what to type next.
    Ready(Vec<String>),
    /// The setup failed, or the adding of OSDs.
    Failed(Failure),
    /// SIGTERM or SIGINT.
    Terminate,
}
