//! One OSD as one value. Every event enters through `Node::apply(now, event, &mut effects)`. The node
//! connects the block store, the PGs, the sessions and the other OSDs.
//!
//! ```text
//!              ┌──────────── Node ─────────────┐
//!   Net ─────▶ │ sessions ─▶ requests ─▶ pg::Pg│ ─▶ Net (replies)
//!   (OSDs) ──▶ │ connections ─▶ peers ─▶  ▲    │ ─▶ Net (OSDs)
//!              │    ▲            ▲        │    │
//!   (monitor)  │   link ─▶ map ──┘        ▼    │
//!   Disk ────▶ │               blockstore::Store│ ─▶ Disk
//!   Engine ──▶ │                               │ ─▶ Engine
//!              └───────────────────────────────┘
//! ```
//!
//! `node.rs` wires the parts together. Each file in `src/` holds one part's state and decisions and is
//! independent of the node; the file of the same name in `node/` receives the events and carries out these
//! decisions.
//!
//! | file | what it holds |
//! |---|---|
//! | `node.rs` | the `Node` value: events in, effects out, the phases of the process |
//! | `cluster_view.rs` | the cluster map, the settings, and this OSD's place in them |
//! | `local_store.rs` | the store, and the caller of each request to it |
//! | `local_engine.rs` | the engine: whether there is one, and the families of object pools in it |
//! | `pg_table.rs` | the PGs, and the actions that they request |
//! | `node/pg_lifecycle.rs` | the effect of the map on this OSD's PGs |
//! | `node/monitor.rs` | the connection to a monitor, and its messages |
//! | `lane.rs`, `peer_connections.rs` | connections with other OSDs |
//! | `leases.rs` | leases that this OSD holds, and those that it has given |
//! | `check_objects.rs` | whether records and blocks of a store that is not running agree |
//! | `engine_lag.rs` | whether engines lag or are full: then mutations of objects wait, or are refused |
//! | `space_credits.rs` | space and room that members promise to a primary |
//! | `credit_lines.rs` | who waits for which credit, in the order of arrival |
//! | `peers.rs` | messages between members of PGs: who may send them, and when they are handled |
//! | `requests.rs` | a request's path from its arrival to its reply |
//! | `sessions.rs` | connections and sessions: who may send requests, and which request is a repeat |
//! | `session_takeover.rs` | sessions that were seen before the map they act on |
//! | `filling.rs` | how fast learners are filled |
//! | `reclaim.rs` | removing data that is no longer needed |
//! | `disk_watch.rs` | a disk that is slow or hangs |
//! | `report.rs`, `stats.rs`, `lines.rs` | reports to the monitor, and lines of the log |
//! | `notes.rs` | the parts of the map that the store keeps for later runs |
//! | `state_log.rs` | the copy of the state store, as a log of differences |
//! | `state_rollback.rs` | how a state store that went back in time is detected |
//! | `compare.rs` | comparing the copies of stopped OSDs |

mod check_objects;
mod cluster_view;
mod columns;
mod compare;
mod connection_ids;
mod credit_lines;
mod disk_watch;
mod engine_lag;
mod filling;
mod lane;
mod leases;
mod lines;
mod lists;
mod local_engine;
mod local_store;
mod metadata_check;
mod node;
mod notes;
mod peer_connections;
mod peers;
mod pg_table;
mod reclaim;
mod report;
mod requests;
mod scrubbing;
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
use format::engine::{EngineEffect, EngineEvent};

pub use check_objects::check_objects;
pub use compare::{Comparison, compare};
pub use disk_watch::Stalls;
pub use local_engine::Engine;
pub use node::Node;

/// An input of a node.
#[derive(Debug)]
pub enum Event {
    /// An event from its disk.
    Disk(DiskEvent),
    /// An event from its engine.
    Engine(EngineEvent),
    /// An event from the network.
    Net(NetEvent),
    /// The time that `Node::deadline` returned has come.
    Tick,
    /// The process is asked to stop: the node finishes the requests that have started, then returns
    /// [`Effect::Stop`].
    Shutdown,
}

/// An output of a node.
#[derive(Debug)]
pub enum Effect {
    /// A request to the disk.
    Disk(DiskEffect),
    /// A request to the engine. Only if [`Settings::engine`] is open.
    Engine(EngineEffect),
    /// A request to the network.
    Net(NetEffect),
    /// The store is recovered and the monitor has assigned an incarnation, which handshakes of later
    /// connections must contain.
    Joined {
        /// This run's number.
        incarnation: Incarnation,
    },
    /// A line for the log.
    Trace(TraceEvent),
    /// The log level in the cluster's settings; `None`: use the level that the process was started with.
    LogLevel(Option<Level>),
    /// The process must end. No effect follows.
    Stop(StopReason),
}

/// Why a node ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// [`Event::Shutdown`] was received.
    Shutdown,
    /// The disk hung and PGs continued without this OSD; now the disk responds. The process starts a new run
    /// with [`Node::stalls`]. Every disk operation has ended.
    Stalled,
    /// The store is poisoned, or is not the store of this OSD. The text says what happened, where, and
    /// what to do.
    Store(String),
    /// The cluster has no record of this OSD: it was removed.
    Removed(String),
    /// The monitor refuses this OSD, and would refuse it again.
    Refused(String),
}

/// A node's identity and its addresses.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The id of the OSD.
    pub osd: OsdId,
    /// Identity of the store, 32 hexadecimal digits.
    pub store: String,
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// Where this OSD listens for clients, monitors and other OSDs.
    pub addresses: Vec<String>,
    /// Further addresses, for other OSDs only.
    pub peer_addresses: Vec<String>,
    /// The process id, for `status`.
    pub pid: u32,
    /// The directory or device, for `status` and messages.
    pub path: String,
    /// The name of the host, for `status` and for placement.
    pub host: String,
    /// Whether `ashlar up` started the process.
    pub supervised: bool,
}

/// Settings of a node. The defaults are safe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of the store.
    pub store: blockstore::Settings,
    /// The OSD's engine.
    pub engine: Engine,
    /// Whether the device does not support O_DIRECT, so that the store is buffered; for `status`.
    pub buffered: bool,
    /// Maximum number of unanswered requests of one connection; further ones are answered `Busy`.
    pub connection_requests_max: usize,
    /// Maximum number of unanswered requests of all connections; further ones are answered `Busy`.
    pub requests_max: usize,
    /// Maximum number of bytes that unanswered requests write or read; further requests are answered
    /// `Busy`.
    pub request_bytes_max: u64,
    /// Maximum number of sessions that are remembered.
    pub sessions_max: usize,
    /// How long a request waits for the map, an activation, space, or requests on an older connection of
    /// its session; after that it is answered `Busy`.
    pub wait_max: Duration,
    /// Minimum delay before the next monitor address is tried.
    pub reconnect_min: Duration,
    /// Maximum delay before the next monitor address is tried.
    pub reconnect_max: Duration,
    /// Timeout for a monitor's reply to a boot message.
    pub boot_max: Duration,
    /// Limits on what one PG holds at once.
    pub pg_limits: pg::Limits,
    /// The history of stalls of the previous run in this process.
    pub stalls: Stalls,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            store: blockstore::Settings::default(),
            engine: Engine::None("this OSD has no engine for records of objects".to_owned()),
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
