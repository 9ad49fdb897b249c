//! Jobs: everything that changes the state, what each job needs next, and how it ends. `executor.rs`
//! runs them, `job_queue.rs` keeps them in order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Incarnation, OsdId, PgId, PoolId, SessionId};
use placement::PlanError;
use serde_json::Value;

use super::committed_state::Batch;
use super::give_up::MembersGiveUp;
use crate::copy::Seen;
use crate::map::{ImageInfo, Pool};
use crate::message::{Command, Failure};
use crate::records::{Key, MonitorRecord, Record, TaskId};

/// A unit of work that changes the state.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes the record that identifies the cluster that the store belongs to.
    CreateCluster,
    /// An OSD joins.
    Boot(Boot),
    /// Brings an OSD's record in line with its connection and its report.
    SyncOsd { osd: OsdId },
    /// A client attaches an image, or opens an object pool.
    OpenSession { connection: ConnectionId, request: u64, wants: Wants, client: String },
    /// A client detached an image.
    CloseSession { connection: ConnectionId, session: SessionId, unanswered: bool },
    /// Ends a session that was disconnected for too long.
    EndSession { session: SessionId },
    /// Reopens an ended session whose client has returned.
    ResumeSession { connection: ConnectionId, session: SessionId },
    /// An operator's command.
    Command { connection: ConnectionId, request: u64, command: Command },
    /// An operator gives up members of a PG that are off. All other members have been heard from.
    GiveUpMembers(MembersGiveUp),
    /// Checks a manual edit of a key.
    Edit { key: Key },
    /// An OSD no longer holds anything of a removed pool.
    PoolCleared { pool: PoolId, osd: OsdId },
    /// Records the progress of a task.
    TaskProgress { task: TaskId, pgs_done: u32 },
    /// Writes new entries for PGs that need them.
    Entries,
    /// Plans a pool again.
    Replan { pool: PoolId, planned: RefCell<Option<Planned>> },
    /// Takes out an OSD that was down for so long that its PGs must be planned on other OSDs.
    OutOsd { osd: OsdId },
    /// Records that a monitor is present.
    MonitorHere(MonitorRecord),
    /// A task is finished.
    TaskEnd { task: TaskId },
    /// Writes sums of statistics.
    Stats,
    /// Writes the state assembled from the OSDs' records to a store that is older or damaged.
    Restore(Written),
    /// Records which keys were edited by hand.
    MarkEdited,
}

/// What a client wants to use.
#[derive(Debug)]
pub(super) enum Wants {
    /// The image with this name.
    Image { name: String, read_only: bool, lock: bool },
    /// The object pool with this name.
    Pool { name: String },
}

/// What a job needs next.
pub(super) enum Plan {
    /// Writes the batch; then the job is done (`done`), or is planned again (`None`).
    Write { batch: Batch, done: Option<Done> },
    /// Writes nothing more: the job is done.
    Done(Done),
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum Done {
    Silent,
    Answer(Result<Value, Failure>),
    Booted(Incarnation),
    BootRefused(Failure),
    BootOutdated,
    BootFromFuture,
    SessionOpened(Opened),
    /// An attach waits until this holder of the lock returns or ends.
    SessionWaits(SessionId),
    SessionRefused(Failure),
    SessionClosed(SessionId),
    SessionEnded(SessionId),
    SessionSilent(SessionId),
    SessionResumed(SessionId),
    /// No entry needs to change.
    EntriesSettled,
    /// A pool needs no further planning (`None`), or cannot be placed: the fingerprint of the planner's
    /// input, and the reason.
    Replanned(Option<(u64, PlanError)>),
    /// A monitor was added, or a monitor has new addresses.
    MonitorsChanged,
    Unlocked(SessionId, Value),
    /// The primary of this PG is told to serve it without what its store lost.
    GivenUp(PgId),
    /// The store has been restored from the OSDs' records, or its last good values have been written back;
    /// with the answer to the operator.
    Restored(Value),
    /// An operator has restored the values of edited keys by hand.
    PutBack,
    /// An edit took effect, or was undone for this reason.
    Edited(Result<(), String>),
}

/// An OSD that joins. Its record is written first, then the entries of its PGs.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) connection: ConnectionId,
    pub(super) osd: OsdId,
    /// The run that continues over a new connection; `None`: the OSD just started.
    pub(super) run: Option<Incarnation>,
    pub(super) store: String,
    pub(super) addresses: Vec<String>,
    pub(super) peer_addresses: Vec<String>,
    pub(super) pid: u32,
    pub(super) path: String,
    pub(super) host: String,
    pub(super) supervised: bool,
    pub(super) suspect: bool,
    /// Whether the OSD's disk hangs, or hung recently.
    pub(super) stalled: bool,
    /// Pools in whose records the OSD met damage.
    pub(super) damaged_pools: BTreeSet<PoolId>,
    /// Whether an earlier leader told the OSD that its disk is slow.
    pub(super) slow: bool,
    /// What the OSD has seen of the cluster.
    pub(super) seen: Seen,
    /// Whether the OSD has an engine; `None`: it does not say.
    pub(super) engine: Option<bool>,
    /// The incarnation in the OSD's record, once this job has written it.
    pub(super) given: Option<Incarnation>,
}

/// A session as reported to its client.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) session: SessionId,
    pub(super) found: Found,
}

/// What a session uses.
#[derive(Debug)]
pub(super) enum Found {
    Image { image: ImageInfo, locked: bool, lazy: bool },
    Pool(Pool),
}

/// A plan that is being written.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) fingerprint: u64,
    pub(super) targets: Vec<Vec<OsdId>>,
}

/// The draft of a restored state that is being written.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) records: BTreeMap<Key, Record>,
    pub(super) answer: Value,
}
