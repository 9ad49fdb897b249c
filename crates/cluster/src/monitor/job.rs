//! Jobs: everything that changes the state, what each needs next, and how it ends. `executor.rs` runs
//! them, `job_queue.rs` keeps them in order.

use std::cell::RefCell;
use std::collections::BTreeMap;

use base::{ConnectionId, Incarnation, OsdId, PoolId, SessionId};
use placement::PlanError;
use serde_json::Value;

use super::committed_state::Batch;
use crate::copy::Seen;
use crate::map::ImageInfo;
use crate::message::{Command, Failure};
use crate::records::{Key, MonitorRecord, Record, TaskId};

/// Something to do that changes the state.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes what the store belongs to.
    CreateCluster,
    /// An OSD joins.
    Boot(Boot),
    /// Brings an OSD's record in line with its connection and its report.
    SyncOsd { osd: OsdId },
    /// A client attaches an image.
    OpenSession {
        connection: ConnectionId,
        request: u64,
        image: String,
        read_only: bool,
        lock: bool,
        client: String,
    },
    /// A client detached an image.
    CloseSession { connection: ConnectionId, session: SessionId, unanswered: bool },
    /// A session's connection was gone for too long.
    EndSession { session: SessionId },
    /// Its client is back after that.
    ResumeSession { connection: ConnectionId, session: SessionId },
    /// An operator's command.
    Command { connection: ConnectionId, request: u64, command: Command },
    /// Judges a manual edit of a key.
    Edit { key: Key },
    /// An OSD holds nothing of a removed pool any more.
    PoolCleared { pool: PoolId, osd: OsdId },
    /// Records how far a task is.
    TaskProgress { task: TaskId, pgs_done: u32 },
    /// Writes entries of PGs that need other ones.
    Entries,
    /// Plans a pool anew.
    Replan { pool: PoolId, planned: RefCell<Option<Planned>> },
    /// An OSD was down for so long that its PGs are planned elsewhere.
    OutOsd { osd: OsdId },
    /// A monitor is there.
    MonitorHere(MonitorRecord),
    /// A task has nothing left to do.
    TaskEnd { task: TaskId },
    /// Writes sums of statistics.
    Stats,
    /// What OSDs know comes into a store that is older.
    Restore(Written),
    /// Writes which keys were edited by hand.
    MarkEdited,
}

/// What a job needs next.
pub(super) enum Plan {
    /// Writes; then it is done so, or planned again (`None`).
    Write { batch: Batch, done: Option<Done> },
    /// Nothing more.
    Done(Done),
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum Done {
    Silent,
    Answer(Result<Value, Failure>),
    Booted(Incarnation),
    BootRefused(Failure),
    BootOutdated,
    BootFromFuture,
    SessionOpened(Opened),
    SessionWaits,
    SessionRefused(Failure),
    SessionClosed(SessionId),
    SessionEnded(SessionId),
    SessionSilent(SessionId),
    SessionResumed(SessionId),
    /// No entry needs to be another one.
    EntriesSettled,
    /// A pool's plan is written, or there is none: for what, and why.
    Replanned(Option<(u64, PlanError)>),
    /// A monitor was added, or one has new addresses.
    MonitorsChanged,
    Unlocked(SessionId, Value),
    /// The store has what OSDs know, or the last good values. The operator who asked gets this answer.
    Restored(Value),
    /// Somebody has put back by hand what was edited.
    PutBack,
    /// An edit is in force, or was undone for this reason.
    Edited(Result<(), String>),
}

/// An OSD that joins. Top to bottom in time: its record is written, its PGs' entries follow.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) connection: ConnectionId,
    pub(super) osd: OsdId,
    /// The run that goes on over a new connection; `None`: it just started.
    pub(super) run: Option<Incarnation>,
    pub(super) store: String,
    pub(super) addresses: Vec<String>,
    pub(super) peer_addresses: Vec<String>,
    pub(super) pid: u32,
    pub(super) path: String,
    pub(super) host: String,
    pub(super) supervised: bool,
    pub(super) suspect: bool,
    /// Its disk hangs, or hung not long ago.
    pub(super) stalled: bool,
    /// What it has seen of the cluster.
    pub(super) seen: Seen,
    /// What its record says since this job wrote it.
    pub(super) given: Option<Incarnation>,
}

/// A session as its client is told of it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) session: SessionId,
    pub(super) image: ImageInfo,
    pub(super) locked: bool,
    pub(super) lazy: bool,
}

/// A plan that is being written.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) fingerprint: u64,
    pub(super) targets: Vec<Vec<OsdId>>,
}

/// A draft that is being written.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) records: BTreeMap<Key, Record>,
    pub(super) answer: Value,
}
