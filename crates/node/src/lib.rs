//! One OSD as one value: `Node::apply(now, event, &mut effects)` is the only door into it.
//! Joins the block store, the PGs, the sessions and the other OSDs.
//!
//! ```text
//!              ┌──────────── Node ─────────────┐
//!   Net ─────▶ │ sessions ─▶ requests ─▶ pg::Pg│ ─▶ Net (replies)
//!   (OSDs) ──▶ │ connections ─▶ peers ─▶  ▲    │ ─▶ Net (OSDs)
//!              │    ▲            ▲        │    │
//!   (monitor)  │   link ─▶ map ──┘        ▼    │
//!   Disk ────▶ │               blockstore::Store│ ─▶ Disk
//!              └───────────────────────────────┘
//! ```
//!
//! `node.rs` wires the parts together. A file of `src/` holds one part's state and its decisions, and
//! knows no node; the file of the same name under `node/` takes the events and carries them out.
//!
//! | file | what it holds |
//! |---|---|
//! | `node.rs` | the value: events in, effects out, the life of the process |
//! | `cluster_view.rs` | the cluster map, the settings, and this OSD's place in them |
//! | `local_store.rs` | the store, and who asked it for what |
//! | `pg_table.rs` | the PGs, and what they ask |
//! | `node/pg_lifecycle.rs` | what the map means for this OSD's PGs |
//! | `node/monitor.rs` | the connection to a monitor, and what it says |
//! | `lane.rs`, `peer_connections.rs` | connections with other OSDs |
//! | `leases.rs` | by whose leave this OSD serves, and to whom it gave its own |
//! | `space_credits.rs` | space that members promise a primary |
//! | `peers.rs` | what members of PGs say to each other: who may, and when |
//! | `requests.rs` | a request's way from its arrival to its reply |
//! | `sessions.rs` | connections and sessions: who may speak, what is a repeat |
//! | `session_takeover.rs` | sessions that were shown before the map they act on |
//! | `filling.rs` | how fast learners are filled |
//! | `reclaim.rs` | removing what nobody needs |
//! | `disk_watch.rs` | a disk that is slow or hangs |
//! | `report.rs`, `stats.rs`, `lines.rs` | what the monitor and the log are told |
//! | `notes.rs` | what the store keeps of the map for later runs |
//! | `state_log.rs` | the copy of the state store, as a log of differences |
//! | `state_rollback.rs` | how a state store that went back in time is recognised |
//! | `compare.rs` | comparing the copies of stopped OSDs |

mod cluster_view;
mod compare;
mod connection_ids;
mod disk_watch;
mod filling;
mod lane;
mod leases;
mod lines;
mod local_store;
mod node;
mod notes;
mod peer_connections;
mod peers;
mod pg_table;
mod reclaim;
mod report;
mod requests;
mod session_takeover;
mod sessions;
mod space_credits;
mod state_log;
mod state_rollback;
mod stats;

#[cfg(test)]
mod cluster_fuzz;
#[cfg(test)]
mod compare_tests;
#[cfg(test)]
mod node_fuzz;
#[cfg(test)]
mod tests;

use base::trace::Level;
use base::{ClusterId, Duration, Incarnation, MIB, OsdId, TraceEvent};
use format::door::{DiskEffect, DiskEvent, NetEffect, NetEvent};

pub use compare::{Comparison, compare};
pub use disk_watch::Stalls;
pub use node::Node;

/// An input of a node.
#[derive(Debug)]
pub enum Event {
    /// From its disk.
    Disk(DiskEvent),
    /// From the network.
    Net(NetEvent),
    /// The deadline of `Node::deadline` came.
    Tick,
    /// The process is to end: the node finishes what was started, then gives [`Effect::Stop`].
    Shutdown,
}

/// An output of a node.
#[derive(Debug)]
pub enum Effect {
    /// Ask the disk.
    Disk(DiskEffect),
    /// Ask the network.
    Net(NetEffect),
    /// The store is recovered and the monitor has given an incarnation: the handshake of later
    /// connections names it.
    Joined {
        /// This run's number.
        incarnation: Incarnation,
    },
    /// Something happened that is worth a line of the log.
    Trace(TraceEvent),
    /// The log level that the settings of the cluster ask for; `None`: the one that the process was started
    /// with.
    LogLevel(Option<Level>),
    /// The process ends. No effect follows.
    Stop(StopReason),
}

/// Why a node ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// By [`Event::Shutdown`].
    Shutdown,
    /// Its disk hung, PGs went on without it, and now the disk answers: the process starts a new run with
    /// [`Node::stalls`]. Every disk operation has ended.
    Stalled,
    /// Its store is poisoned, or is not the store of this OSD: what happened, where, what to do.
    Store(String),
    /// The cluster does not know this OSD: it was removed.
    Removed(String),
    /// The monitor refuses it, and will refuse it again.
    Refused(String),
}

/// Who a node is, and where it listens.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub osd: OsdId,
    /// Identity of its store, 32 hexadecimal digits.
    pub store: String,
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// Where this OSD listens for clients, monitors and other OSDs.
    pub addresses: Vec<String>,
    /// Further addresses, for other OSDs only.
    pub peer_addresses: Vec<String>,
    /// Its process id, for `status`.
    pub pid: u32,
    /// Its directory or device, for `status` and messages.
    pub path: String,
    /// Its host, for `status` and the placement.
    pub host: String,
    /// Whether `ashlar up` started it.
    pub supervised: bool,
}

/// Settings of a node. The defaults are safe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of its store.
    pub store: blockstore::Settings,
    /// Whether the device refused O_DIRECT and the store is buffered, for `status`.
    pub buffered: bool,
    /// Most unanswered requests of one connection; further ones are answered `Busy`.
    pub connection_requests_max: usize,
    /// Most unanswered requests of all connections; further ones are answered `Busy`.
    pub requests_max: usize,
    /// Most bytes that unanswered requests write or read; further requests are answered `Busy`.
    pub request_bytes_max: u64,
    /// Most sessions that are remembered.
    pub sessions_max: usize,
    /// How long a request waits for the map, an activation, space, or an older connection of its session;
    /// then it is answered `Busy`.
    pub wait_max: Duration,
    /// First and longest delay before the next monitor address is tried.
    pub reconnect_min: Duration,
    /// See `reconnect_min`.
    pub reconnect_max: Duration,
    /// Timeout for the answer of a monitor to a boot.
    pub boot_max: Duration,
    /// Bounds on what one PG holds at once.
    pub pg_limits: pg::Limits,
    /// What the run before in this process knew about its disk.
    pub stalls: Stalls,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            store: blockstore::Settings::default(),
            buffered: false,
            connection_requests_max: 1024,
            requests_max: 16 * 1024,
            request_bytes_max: 256 * MIB,
            sessions_max: 64 * 1024,
            wait_max: Duration::from_secs(5),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            boot_max: Duration::from_secs(5),
            pg_limits: pg::Limits::default(),
            stalls: Stalls::default(),
        }
    }
}
