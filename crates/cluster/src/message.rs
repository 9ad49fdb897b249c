//! Control messages: JSON text inside `format::wire::Message::Control`.
//!
//! Unknown fields are ignored, so that a newer peer may send more fields.
//!
//! The monitor's own requests to OSDs (`Op::DeleteRange` and `Op::Zero` of recorded tasks) are data
//! messages with `SessionId::ZERO`, sent over the connection that the OSD made to the monitor. Each carries
//! a map revision that is at least the revision in which the task's fences were published.

use std::collections::{BTreeMap, BTreeSet};

use base::{
    BlockSize, Choice, Duration, Epoch, ImageId, Incarnation, MapRevision, MonitorId, OsdId, PgId,
    PoolId, Position, Scheme, SessionId,
};
use format::door::Role;
use format::engine::Compression;
use format::wire::{Member, PgEntry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::copy::{CopyPart, KnownState, Seen};
use crate::map::{FailureDomain, ImageInfo, MapDelta, Pool};
use crate::revisions_by_pool;
use crate::settings::Changed;
use crate::stats::{Latencies, OsdStats, Table};

/// Messages from an OSD, a client or a command to a monitor.
// A report is made once a second: what it takes on its way does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToMonitor {
    /// Requests the map now, and every later change. Sent again after a gap.
    Subscribe {
        /// Revisions that the sender has, by pool; empty if the sender has no map.
        #[serde(with = "revisions_by_pool")]
        have: BTreeMap<PoolId, MapRevision>,
    },
    /// Asks whether the monitor is alive. The leader answers with `Pong`; another monitor relays
    /// the message to the leader.
    Ping,
    /// Identifies the sending process, for `status`. OSDs identify themselves when they boot.
    Introduce {
        /// The kind of process: `nbd`, `bench`.
        role: String,
        /// The process id.
        pid: u32,
        /// The name of the process's host.
        host: String,
        /// The address where the process serves, if any.
        address: Option<String>,
        /// Whether the process answers [`FromMonitor::Probe`]; older clients do not.
        #[serde(default)]
        answers_probes: bool,
    },
    /// An OSD's process has started and opened its store.
    OsdBoot {
        /// The OSD's id, from its superblock.
        osd: OsdId,
        /// Identity of the store, 32 hexadecimal digits: a different store may not boot as this
        /// OSD.
        store: String,
        /// Addresses where the OSD listens.
        addresses: Vec<String>,
        /// More addresses where the OSD listens for other OSDs only, on their own network.
        #[serde(default)]
        peer_addresses: Vec<String>,
        /// The OSD's process id.
        pid: u32,
        /// The OSD's directory or device, for display.
        path: String,
        /// Name of the OSD's host, for placement.
        host: String,
        /// Whether `ashlar up` started the OSD, and restarts it.
        #[serde(default)]
        supervised: bool,
        /// `Some`: the same run continues over a new connection, so no epoch ends. `None`: a new
        /// run.
        #[serde(default)]
        incarnation: Option<Incarnation>,
        /// Whether recovery found damage that may have cost acknowledged writes: in each PG the OSD then
        /// counts as absent until backfill has completed.
        #[serde(default)]
        suspect: bool,
        /// As in [`OsdReport::stalled`].
        #[serde(default)]
        stalled: bool,
        /// As in [`OsdReport::damaged_pools`].
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        damaged_pools: BTreeSet<PoolId>,
        /// As in [`OsdReport::slow`].
        #[serde(default)]
        slow: bool,
        /// The newest state that the OSD has seen of the cluster: a state store that lacks any of it was set
        /// back to an older state.
        #[serde(default)]
        seen: Seen,
        /// Whether the OSD has an engine, which keeps records of objects; `None`: an older version, which
        /// does not say.
        #[serde(default)]
        engine: Option<bool>,
    },
    /// A part of the OSD's records about the cluster, in answer to [`FromMonitor::TellAll`].
    OsdTells {
        /// This part; the lists of all parts are concatenated.
        part: KnownState,
        /// Whether more parts follow.
        more: bool,
    },
    /// An OSD's state, sent about once a second.
    OsdReport(OsdReport),
    /// The OSD's statistics since its last such message; sent about every `stats_interval_ms` while
    /// it is active.
    OsdStats(OsdStats),
    /// PGs whose primary is this OSD need a new entry. The message is repeated until the epoch of the entry
    /// has ended.
    PgNeeds {
        /// What each of these PGs needs.
        needs: Vec<PgNeed>,
    },
    /// A peer does not answer this OSD. Sent about once a second while this lasts.
    OsdUnreachable {
        /// The OSD.
        osd: OsdId,
        /// The run that this OSD was connected to.
        incarnation: Incarnation,
        /// How the peer's absence was detected.
        how: Unreachable,
    },
    /// The first message on a connection over which a monitor relays a peer to the leader; all
    /// later messages are the peer's.
    Relay {
        /// The role of the process whose connection is relayed.
        role: RelayedRole,
    },
    /// A monitor that does not lead identifies itself; it stays connected.
    MonitorHere {
        /// The monitor.
        monitor: MonitorId,
        /// Addresses where the monitor listens.
        addresses: Vec<String>,
        /// The monitor's process id.
        pid: u32,
        /// Name of the monitor's host.
        host: String,
    },
    /// The OSD was asked to stop and no longer serves: its PGs need not wait for it to return.
    OsdLeaves,
    /// The answer to [`FromMonitor::Probe`], over the connection on which the probe arrived.
    Alive {
        /// Copied from the probe.
        nonce: u64,
    },
    /// The OSD has applied these map revisions: from now on it refuses requests with older ones.
    OsdSaw {
        /// The revisions, by pool.
        #[serde(with = "revisions_by_pool")]
        revisions: BTreeMap<PoolId, MapRevision>,
    },
    /// The OSD has durably deleted everything it held of this removed pool.
    PoolCleared {
        /// The removed pool.
        pool: PoolId,
    },
    /// Attach an image.
    OpenSession {
        /// Copied into the answer, to match it to this request.
        request: u64,
        /// The image's name.
        image: String,
        /// Whether the client will only read.
        read_only: bool,
        /// Whether the client wants the image's lock, if no other session has the image. A reader
        /// gets no lock.
        #[serde(default)]
        lock: bool,
        /// What attaches the image, for display: `nbd`, `bench`.
        client: String,
    },
    /// Open an object pool. Answered by [`FromMonitor::PoolOpened`] or [`FromMonitor::SessionRefused`]; the
    /// session continues and ends like that of an image.
    OpenPool {
        /// Copied into the answer, to match it to this request.
        request: u64,
        /// The pool's name.
        pool: String,
        /// What opens the pool, for display: `object`, `bench`.
        client: String,
    },
    /// A session continues over this new connection.
    ResumeSession {
        /// The session.
        session: SessionId,
        /// The reign from [`FromMonitor::SessionOpened`]; 0: that message had none.
        #[serde(default)]
        reign: u64,
        /// A number that grows with each connection of this client, so that a message that arrives late,
        /// through a monitor that the client has left, is recognized as older.
        #[serde(default)]
        turn: u64,
    },
    /// Writes of a session that are acknowledged but not yet durable must be written again, and the pool has
    /// no room for some of them. Sent again whenever the number of bytes changes.
    SessionWaits {
        /// The session.
        session: SessionId,
        /// The number of bytes that wait; 0: nothing waits any more.
        waiting_bytes: u64,
    },
    /// The image is detached.
    CloseSession {
        /// The session.
        session: SessionId,
        /// Whether the client gave up on a change without receiving an answer. The change may still be in
        /// flight, so the session is fenced before the image is attached again, removed or made smaller.
        #[serde(default)]
        unanswered: bool,
    },
    /// Requests every later change of the state store.
    WatchState {
        /// Only changes of keys with this prefix are sent.
        prefix: String,
    },
    /// An operator's command.
    Command {
        /// Copied into the answer, to match it to this request.
        request: u64,
        /// The command.
        command: Command,
    },
}

/// Messages from a monitor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromMonitor {
    /// A change of the map, or a snapshot.
    Map(MapDelta),
    /// The answer to [`ToMonitor::Ping`].
    Pong,
    /// The answer to [`ToMonitor::MonitorHere`] from a monitor that was removed from the cluster.
    MonitorRemoved,
    /// Where monitors listen; connected monitors come first. Sent to everyone who receives the map.
    Monitors {
        /// The addresses; a monitor may have several.
        addresses: Vec<String>,
    },
    /// The OSD has joined the cluster and must subscribe to the map next.
    OsdBooted {
        /// The number of the OSD's run, never used before by this OSD.
        incarnation: Incarnation,
    },
    /// The state store is older than the OSDs' records: the OSD must send all its records over this
    /// connection. It joins over a later connection, once the state is recovered.
    TellAll,
    /// A part of the copy that OSDs keep of the state store: see [`crate::copy`]. OSDs that have
    /// joined receive the whole copy first, then each change.
    StateCopy(CopyPart),
    /// The OSD may not join; retrying will not help.
    OsdRefused {
        /// Why the OSD may not join, and what to do.
        error: Failure,
    },
    /// An operator requests a scrub of these PGs, whose primary is this OSD. The OSD's reports show the
    /// result.
    Scrub {
        /// The PGs.
        pgs: Vec<PgId>,
        /// Whether the scrub reads all data.
        deep: bool,
        /// Whether the OSD also checks the metadata of its own store.
        #[serde(default)]
        metadata: bool,
    },
    /// An operator decides what is right of a damaged block (`pg fix`). The OSD's reports show the result.
    /// Applies only in the epoch in which the operator saw the damage, and only to that damage.
    Fix {
        /// The PG, whose primary is this OSD.
        pg: PgId,
        /// The epoch of the PG's entry.
        epoch: Epoch,
        /// The image of the block.
        image: ImageId,
        /// The number of the block in its image.
        stripe: u32,
        /// What the operator decides.
        choice: Choice,
        /// The number of the request.
        number: u64,
        /// The damage, as the OSD's report described it.
        wrong: String,
    },
    /// These PGs are active in these epochs, as their primaries report. Sent to an OSD that has asked
    /// ([`OsdReport::leftovers`]).
    Active {
        /// The PGs, each with the epoch of its entry.
        pgs: Vec<(PgId, Epoch)>,
    },
    /// Requests an immediate answer: the monitor checks whether an OSD is absent, whether a boot is still
    /// wanted, or whether a client's process runs.
    Probe {
        /// Copied into the answer, to match it to this probe.
        nonce: u64,
    },
    /// A pool was removed: the OSD stops serving it and deletes its data. It answers with
    /// [`ToMonitor::PoolCleared`].
    ClearPool {
        /// The removed pool.
        pool: PoolId,
        /// Number of PGs that the pool had.
        pg_count: u32,
    },
    /// The sums that include these periods of the OSD's run are in the state store: the OSD may
    /// drop the periods.
    StatsSaved {
        /// The last of these periods; all earlier ones are saved too.
        sequence: u64,
    },
    /// The settings used by OSDs that differ from their defaults. Sent to an OSD when it has
    /// joined, and after each change.
    Settings {
        /// All such settings, by name.
        changed: Changed,
    },
    /// OSDs whose disks are many times slower than those of their peers: primaries read from other members
    /// where they can. Sent to an OSD when it has joined, and after each change; replaces the previous list.
    /// Only performance depends on it.
    SlowDisks {
        /// The OSDs.
        osds: Vec<OsdId>,
        /// OSDs whose disks hang: primaries that avoid a slow disk do not read from these OSDs.
        stalled: Vec<OsdId>,
    },
    /// The answer to [`ToMonitor::WatchState`]: the changes of the state store follow.
    StateWatched,
    /// A key of the state store has changed.
    StateChanged {
        /// The store's revision with the change; several keys may change at one revision.
        revision: u64,
        /// The key.
        key: String,
        /// The new value, cut if it is too long for a message; `None`: the key was deleted.
        value: Option<serde_json::Value>,
    },
    /// Changes of the state store were missed, and no more will be sent: read everything again and
    /// start a new watch.
    StateWatchLost,
    /// An image is attached.
    SessionOpened {
        /// Copied from the request.
        request: u64,
        /// The new session.
        session: SessionId,
        /// The image to which the session is attached.
        image: ImageInfo,
        /// Whether the session holds the image's lock.
        #[serde(default)]
        locked: bool,
        /// Whether writes of the session may be acknowledged before they are durable; only possible with
        /// the lock.
        #[serde(default)]
        lazy: bool,
        /// The client returns this value when it resumes the session: see `records::SessionRecord`.
        #[serde(default)]
        reign: u64,
    },
    /// An object pool is open.
    PoolOpened {
        /// Copied from the request.
        request: u64,
        /// The new session.
        session: SessionId,
        /// The pool.
        pool: Pool,
        /// As in [`FromMonitor::SessionOpened`].
        reign: u64,
    },
    /// A session could not be opened.
    SessionRefused {
        /// Copied from the request.
        request: u64,
        /// Why it was refused.
        error: Failure,
    },
    /// The state store has recorded the end of a session that its client closed. The session's lock is free,
    /// unless the session must be fenced first.
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The session has ended (disconnected for too long, or fenced): the client must attach again.
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// The answer to a command.
    Answer {
        /// Copied from the request.
        request: u64,
        /// The command's JSON result.
        result: Result<serde_json::Value, Failure>,
    },
}

/// Why something was refused: `code` is for programs, the rest is for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Stable name of the error: `not_found`, `exists`, `busy`, `invalid`, `cannot_place`, ...
    pub code: String,
    /// What happened, and where.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// The state of an OSD, as reported by the OSD itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OsdReport {
    /// The map revisions that this report is based on, by pool.
    #[serde(with = "revisions_by_pool")]
    pub revisions: BTreeMap<PoolId, MapRevision>,
    /// Size of the OSD's data area in bytes.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that writes may still use.
    pub free_bytes: u64,
    /// Whether the OSD refuses writes because it has no free space.
    pub full: bool,
    /// Whether recovery found damage that is not resolved yet.
    pub suspect: bool,
    /// How the OSD's store commits: `fsync` or `immediate`.
    pub commit: String,
    /// Whether the file system refused O_DIRECT, so that the store's I/O is buffered.
    pub buffered: bool,
    /// PGs that the OSD serves as primary.
    pub active: Vec<PgId>,
    /// PGs whose primary is this OSD and that it cannot serve, with the reason.
    pub incomplete: Vec<(PgId, String)>,
    /// PGs whose primary is this OSD and of which it may have lost acknowledged writes.
    #[serde(default)]
    pub suspect_pgs: Vec<PgId>,
    /// PGs whose primary is this OSD and that are peering, with what they wait for.
    #[serde(default)]
    pub peering: Vec<(PgId, String)>,
    /// Number of units found damaged and not rewritten since.
    pub damaged_units: u64,
    /// Errors of the disk since the store was opened.
    #[serde(default)]
    pub media: MediaErrors,
    /// Operations of the disk since the store was opened.
    #[serde(default)]
    pub disk: DiskWork,
    /// Whether the last [`FromMonitor::SlowDisks`] listed this OSD; a new leader starts from this value.
    #[serde(default)]
    pub slow: bool,
    /// Age of the oldest pending read, write or flush of the disk, in milliseconds.
    #[serde(default)]
    pub oldest_operation_ms: u64,
    /// Whether the disk hangs, or hung and has not completed an operation since.
    #[serde(default)]
    pub stalled: bool,
    /// Pools of objects in whose records here a read or a compaction met damage: other copies must replace
    /// those of this OSD.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub damaged_pools: BTreeSet<PoolId>,
    /// For how many primaries of PGs with parity the journal has room, each for a change of one unit at
    /// least; `None`: the OSD is of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity_primaries_max: Option<u32>,
    /// The turns of the OSD's loop.
    #[serde(default)]
    pub turns: TurnTimes,
    /// The OSD's engine; `None`: it has none, or its figures are not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Box<EngineReport>>,
    /// Progress of backfill in PGs whose primary is this OSD.
    #[serde(default)]
    pub filling: Vec<FillingProgress>,
    /// PGs with parity of which this OSD has data that it needs no longer if the PG is active in this epoch:
    /// the monitor answers with [`FromMonitor::Active`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<(PgId, Epoch)>,
    /// What this OSD has of PGs of which no acting member is up and it is none; `None`: the OSD is of an
    /// older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_copies: Option<Vec<OlderCopy>>,
    /// Scrubs of PGs whose primary is this OSD: only the rows that changed since they were last sent over
    /// this connection.
    #[serde(default)]
    pub scrubs: Vec<ScrubRow>,
}

/// What an OSD has of a PG that others have served since. Only in pools in which each member holds the whole
/// PG: of parts that are not of one time nothing can be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OlderCopy {
    /// The PG.
    pub pg: PgId,
    /// The epoch of the OSD's record: in a later one it had everything never again.
    pub epoch: Epoch,
    /// The version up to which it has everything, as epoch and counter.
    pub complete: (Epoch, u64),
    /// Why the PG cannot be served from this copy, for people; `None`: it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
}

/// The engine of an OSD. Counters only grow while the engine is open.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineReport {
    /// The records of each pool of objects.
    pub families: Vec<FamilyReport>,
    /// Capacity of the cache, in bytes.
    pub cache_bytes: u64,
    /// Bytes of the cache in use.
    pub cache_used_bytes: u64,
    /// Number of blocks found in the cache.
    pub cache_hits: u64,
    /// Number of blocks not found in the cache.
    pub cache_misses: u64,
    /// How the engine holds writes back: `none`, `slowed`, `stopped`.
    pub stall: String,
    /// Number of flushes and compactions that failed.
    pub background_errors: u64,
    /// Whether something waits for space in the engine's file system.
    pub waits_for_space: bool,
    /// Whether little space is left in it.
    pub low_on_space: bool,
    /// Bytes of the journal that are kept because the engine does not have all of them durably.
    pub behind_bytes: u64,
    /// Number of lookups of a record, for a client's read, that the cache of values answered, without the
    /// engine.
    pub value_hits: u64,
    /// Number of lookups of a record, for a client's read, that the engine answered.
    pub value_misses: u64,
    /// Bytes of the cache of values in use.
    pub value_bytes: u64,
}

/// The records of a pool in an OSD's engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FamilyReport {
    /// The pool.
    pub pool: PoolId,
    /// How they are compressed.
    pub compression: Compression,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes in memory that are not on disk yet.
    pub memory_bytes: u64,
    /// Approximate number of records.
    pub records: u64,
    /// Approximate number of bytes that compactions have yet to rewrite.
    pub compaction_bytes_left: u64,
    /// Whether a compaction met damage, so that the records are not compacted any more.
    pub damaged: bool,
}

/// The state of scrubs of a PG. Times are seconds since 1970; 0: never.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubRow {
    /// The PG.
    pub pg: PgId,
    /// Start time of the last completed scrub, light or deep.
    pub light_at: u64,
    /// Start time of the last completed deep scrub.
    pub deep_at: u64,
    /// Depth of the running scrub; `None`: no scrub is running.
    #[serde(default)]
    pub running: Option<String>,
    /// Progress of the running scrub, in percent.
    #[serde(default)]
    pub percent: u32,
    /// Number of blocks with damage that is not repaired.
    #[serde(default)]
    pub damaged: u64,
    /// Number of blocks that scrubs repaired.
    #[serde(default)]
    pub repaired: u64,
    /// Whether the next scrub is late by half of its interval.
    #[serde(default)]
    pub overdue: bool,
    /// Some of the damaged blocks: image, stripe, description of the damage.
    #[serde(default)]
    pub blocks: Vec<(ImageId, u32, String)>,
    /// OSDs that hold wrong copies of the damaged blocks.
    #[serde(default)]
    pub osds: Vec<OsdId>,
    /// The result of the last decision of an operator about a damaged block.
    #[serde(default)]
    pub fixed: Option<FixedRow>,
}

/// The result of an operator's decision about a damaged block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FixedRow {
    /// The number of the request.
    pub number: u64,
    /// The image of the block.
    pub image: ImageId,
    /// The number of the block in its image.
    pub stripe: u32,
    /// `done`; `partly`: it was done, and other damage of the block is left; `refused`.
    pub outcome: String,
    /// Why it was refused.
    #[serde(default)]
    pub why: Option<String>,
}

/// Error counters of a disk. They only grow while the disk's store is open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct MediaErrors {
    /// Number of failed reads; retries are not counted.
    pub read_errors: u64,
    /// Number of units that could not be read or did not match their checksum, including units repaired
    /// since.
    pub units: u64,
}

/// Counters of the disk operations of one kind. They only grow while the disk's store is open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DiskOperations {
    /// Number of completed operations.
    pub count: u64,
    /// Total duration of the completed operations, in nanoseconds.
    pub nanos: u64,
}

/// Counters of disk operations, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskWork {
    /// Reads of data and of index leaves.
    pub reads: DiskOperations,
    /// Journal writes.
    pub writes: DiskOperations,
    /// Flushes of the journal.
    pub flushes: DiskOperations,
}

/// How long the turns of an OSD's loop took, since it started: each time it handles what has come. Nothing
/// else is done meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnTimes {
    /// Counts of turns by their times.
    pub times: Latencies,
    /// The longest one, in microseconds.
    pub longest_us: u64,
}

impl TurnTimes {
    /// Counts a turn.
    pub fn record(&mut self, time: Duration) {
        self.times.record(time);
        self.longest_us = self.longest_us.max(time.as_nanos() / 1000);
    }

    /// Returns the figures, for people and programs. `None`: no turn was counted, or no OSD of ours counts
    /// so.
    pub fn value(&self) -> Option<Value> {
        let micros = |time: Duration| time.as_nanos() / 1000;
        let percentile = |percent| self.times.percentile(percent).map(micros);
        let steps = self.times.is_sound().then(|| self.times.steps());
        let steps = steps?.map(|(time, count)| json!({ "up_to_us": micros(time), "count": count }));
        Some(json!({
            "count": self.times.count(),
            "p50_us": percentile(50)?,
            "p99_us": percentile(99)?,
            "longest_us": self.longest_us,
            "histogram": steps.collect::<Vec<_>>(),
        }))
    }
}

impl OsdReport {
    /// Whether the OSD had this entry, or a newer one, when it made the report.
    pub fn knows(&self, entry: &PgEntry) -> bool {
        self.revisions.get(&entry.pg.pool).is_some_and(|told| *told >= entry.revision)
    }
}

/// Progress of a learner's backfill.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FillingProgress {
    /// The PG.
    pub pg: PgId,
    /// The learner.
    pub osd: OsdId,
    /// Bytes copied in this epoch.
    pub done_bytes: u64,
    /// Approximate bytes still to be compared or copied; `None`: not known yet, because the
    /// backfill waits for its turn.
    #[serde(default)]
    pub left_bytes: Option<u64>,
}

/// A request of a PG's primary for a new entry. Valid only for the epoch in which the need arose: a late
/// message has no effect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PgNeed {
    /// The PG.
    pub pg: PgId,
    /// The epoch of the PG's entry.
    pub epoch: Epoch,
    /// What the PG needs.
    pub what: Need,
}

/// What a PG needs: see [`PgNeed`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A new epoch with the same members: a connection broke, or an activation failed.
    NewEpoch,
    /// This learner is complete. Until the epoch ends, the primary acknowledges writes only once
    /// the learner has them too.
    Complete(Member),
    /// This member cannot continue (it is full, or does not keep up); the text is for people.
    Failed(Member, String),
    /// In pools with parity: this learner had this position when the PG was last active, and gets it back.
    /// Who has the position now was filled since, and may lack what was acknowledged.
    Return(Member, Position),
    /// In pools with parity: this OSD as a learner, whether or not the plan has it. It was left out of the
    /// entry, and may have acknowledged versions that too few acting members have. Holds beyond this epoch,
    /// until the PG is active.
    CallBack(OsdId),
}

/// The kind of peer whose connection a monitor relays to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayedRole {
    /// A client of volumes, or an operator's command.
    Client,
    /// An OSD, as identified in its handshake.
    Osd(OsdId, Incarnation),
}

impl RelayedRole {
    /// Returns the role to relay; `None`: a monitor's connection is never relayed.
    pub fn of(role: Role) -> Option<RelayedRole> {
        match role {
            Role::Client => Some(RelayedRole::Client),
            Role::Osd(osd, incarnation) => Some(RelayedRole::Osd(osd, incarnation)),
            Role::Monitor(_) => None,
        }
    }

    /// Returns the role in the handshake.
    pub fn role(self) -> Role {
        match self {
            RelayedRole::Client => Role::Client,
            RelayedRole::Osd(osd, incarnation) => Role::Osd(osd, incarnation),
        }
    }
}

/// How a peer's absence was detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unreachable {
    /// The peer's connection was reset, and nothing listens at its addresses: its process is gone.
    Refused,
    /// The peer has been silent for a second.
    Silent,
    /// The peer is the primary of PGs of which the reporting OSD is a member, and has not requested a lease
    /// from that OSD for a second.
    Missed,
}

/// What an operator may choose of a pool of objects, beside what every pool has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ObjectOptions {
    /// The number of shards; `None`: four for each PG.
    pub shards: Option<u32>,
    /// How records are compressed; `None`: lz4.
    pub compression: Option<Compression>,
    /// Whether its names are grouped: see [`base::hash::NameHash`].
    #[serde(default)]
    pub grouped: bool,
}

/// Operator commands that the monitor carries out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Command {
    /// Create a pool.
    PoolCreate {
        /// The pool's name.
        pool: String,
        /// The scheme; `None`: 2 copies, or 1 if there is only one OSD. Older programs send the number of
        /// copies as `replicas`.
        #[serde(alias = "replicas")]
        scheme: Option<Scheme>,
        /// Minimum number of members for writes; `None`: [`Scheme::min_size_default`].
        min_size: Option<u32>,
        /// Number of PGs; `None`: derived from the number of OSDs and members.
        pg_count: Option<u32>,
        /// The failure domain: two members of a PG must not share one; `None`: host.
        failure_domain: Option<FailureDomain>,
        /// Block size; `None`: 128 KiB, or 64 KiB in a pool of objects.
        block_size: Option<BlockSize>,
        /// `Some`: a pool of objects; `None`: of blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        objects: Option<ObjectOptions>,
    },
    /// Change a pool.
    PoolSet {
        /// The pool's name.
        pool: String,
        /// The pool's new name.
        rename: Option<String>,
        /// The new scheme: more parity parts of the same code.
        scheme: Option<Scheme>,
        /// Minimum number of members for writes.
        min_size: Option<u32>,
        /// The failure domain: two members of a PG must not share one. Data moves to comply with it.
        failure_domain: Option<FailureDomain>,
    },
    /// Remove a pool without volumes.
    PoolRemove {
        /// The pool's name.
        pool: String,
        /// Whether the loss of what is in the pool is accepted: a pool of objects is removed with all of
        /// them, and without this the command fails.
        #[serde(default)]
        accepted: bool,
    },
    /// List all pools.
    PoolList,
    /// Create a volume.
    VolumeCreate {
        /// The volume's name.
        volume: String,
        /// Size in bytes.
        size: u64,
        /// The volume's pool; `None`: the only pool.
        pool: Option<String>,
        /// Whether it holds data of a gateway's objects.
        #[serde(default)]
        gateway: bool,
    },
    /// List all volumes but those of gateways.
    VolumeList,
    /// Tell whether a session is over: no monitor has it any more, so nothing that it sent can take effect.
    SessionState {
        /// The session.
        session: SessionId,
    },
    /// Describe one volume.
    VolumeInfo {
        /// The volume's name.
        volume: String,
    },
    /// Change a volume's size.
    VolumeResize {
        /// The volume's name.
        volume: String,
        /// New size in bytes.
        size: u64,
        /// Must be set to make the volume smaller.
        shrink: bool,
    },
    /// Remove a volume.
    VolumeRemove {
        /// The volume's name.
        volume: String,
        /// Whether a volume of a gateway may be removed, too.
        #[serde(default)]
        gateway: bool,
    },
    /// Fence the holder of a volume's lock, so that the lock is free.
    VolumeUnlock {
        /// The volume's name.
        volume: String,
        /// Accepts the loss of the holder's unflushed writes. Without this the command fails with
        /// an error that identifies the holder.
        #[serde(default)]
        accepted: bool,
    },
    /// Assign an id to a new OSD.
    OsdCreate {
        /// Identity of the OSD's store, 32 hexadecimal digits.
        store: String,
    },
    /// Plan no PGs for the OSD: its data moves to other OSDs, while it keeps serving.
    OsdOut {
        /// The OSD.
        osd: OsdId,
    },
    /// Plan PGs for the OSD again.
    OsdIn {
        /// The OSD.
        osd: OsdId,
    },
    /// Remove an OSD that is down and that no PG needs. Its id is never reused.
    OsdRemove {
        /// The OSD.
        osd: OsdId,
    },
    /// Assign an id to a new monitor.
    MonitorCreate,
    /// List all monitors.
    MonitorList,
    /// Remove a monitor that does not run. Its id is never reused.
    MonitorRemove {
        /// The monitor.
        monitor: MonitorId,
    },
    /// List OSDs: the rows of `status.osds`.
    OsdList,
    /// List OSDs, pools or volumes with their statistics, by id, as many as fit in one answer:
    /// `{"rows": [...], "more": true}`.
    Table {
        /// The kind of row.
        table: Table,
        /// Return only rows with ids above this one; 0: all.
        after: u32,
    },
    /// Show hosts and their OSDs, grouped by failure domain.
    OsdTree,
    /// List all PGs.
    PgList {
        /// The pool whose PGs are listed; `None`: all pools.
        pool: Option<String>,
    },
    /// Describe one PG.
    PgDescribe {
        /// The PG.
        pg: PgId,
    },
    /// Scrub one PG. Answered once the request has been sent to the PG's primary.
    PgScrub {
        /// The PG.
        pg: PgId,
        /// Whether the scrub reads all data.
        #[serde(default)]
        deep: bool,
    },
    /// Scrub all PGs of which an OSD is a member.
    OsdScrub {
        /// The OSD.
        osd: OsdId,
        /// Whether the scrub reads all data.
        #[serde(default)]
        deep: bool,
    },
    /// Scrub all PGs of a pool.
    PoolScrub {
        /// The pool's name.
        pool: String,
        /// Whether the scrub reads all data.
        #[serde(default)]
        deep: bool,
    },
    /// Decide what is right of a block that a scrub listed as damaged. Answered once the decision has been
    /// sent to the PG's primary.
    PgFix {
        /// The PG.
        pg: PgId,
        /// The image of the block.
        image: ImageId,
        /// The number of the block in its image.
        stripe: u32,
        /// What is right.
        choice: Choice,
        /// A number that the result of this request names.
        number: u64,
        /// Whether the operator has confirmed it; without this the command fails with an error that
        /// describes what would be done.
        #[serde(default)]
        accepted: bool,
    },
    /// Accept the loss of data of an incomplete PG. Answered when its OSD serves it, or, with
    /// `they_are_off`, when it continues without the members that are down.
    PgGiveUp {
        /// The PG.
        pg: PgId,
        /// Whether the loss is accepted; without this the command fails with an error that
        /// describes what would be lost.
        #[serde(default)]
        accepted: bool,
        /// The operator confirms that the members that are down are switched off and stay off until
        /// they have the new map: the PG continues with the remaining members.
        #[serde(default)]
        they_are_off: bool,
        /// With `they_are_off`: if no acting member is left, the PG continues with the newest older copy of
        /// another OSD that is up. What was acknowledged since is lost.
        #[serde(default)]
        older_copy: bool,
    },
    /// Show the whole state of the cluster, as in `status --json`.
    Status,
    /// List keys and values of the state store.
    StateList {
        /// Only keys with this prefix are listed.
        prefix: String,
    },
    /// Read one key of the state store.
    StateGet {
        /// The key.
        key: String,
    },
    /// Write a key of the state store that people are allowed to write.
    StatePut {
        /// The key.
        key: String,
        /// The new value, as JSON text.
        value: String,
        /// Whether the value may have new fields that this version does not recognize.
        #[serde(default)]
        force: bool,
    },
    /// Restore keys that only monitors write and that were edited by hand.
    StateUndo {
        /// Whether to write the keys; without this the command fails with an error that lists what would be
        /// written.
        #[serde(default)]
        accepted: bool,
    },
    /// Restore a state store that is older than the OSDs' records, from those records.
    StateRecover {
        /// OSDs that are lost for good.
        #[serde(default)]
        they_are_lost: Vec<OsdId>,
        /// Whether to restore the store; without this the command fails with an error that describes what
        /// would be done.
        #[serde(default)]
        accepted: bool,
    },
    /// List all settings.
    ConfigList,
    /// Show one setting.
    ConfigGet {
        /// The setting's name.
        setting: String,
    },
    /// Change a setting.
    ConfigSet {
        /// The setting's name.
        setting: String,
        /// Text that `Setting::parse` accepts; `None`: the default.
        value: Option<String>,
    },
    /// List recorded tasks (removal, shrink) and their progress.
    TaskList {
        /// The image whose tasks are listed; `None`: all images.
        image: Option<ImageId>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(message: ToMonitor) {
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<ToMonitor>(&text).unwrap(), message, "{text}");
    }

    #[test]
    fn messages_are_read_back_as_written() {
        let revisions = BTreeMap::from([(PoolId::FIRST, MapRevision::new(7))]);
        round_trip(ToMonitor::Subscribe { have: revisions.clone() });
        round_trip(ToMonitor::OsdSaw { revisions });
        let pg = PgId { pool: PoolId::FIRST, number: 3 };
        round_trip(ToMonitor::OsdReport(OsdReport {
            revisions: BTreeMap::from([(PoolId::FIRST, MapRevision::new(9))]),
            active: vec![pg],
            incomplete: vec![(pg, "why".into())],
            suspect_pgs: vec![pg],
            ..OsdReport::default()
        }));
        let answer = FromMonitor::Answer {
            request: 1,
            result: Err(Failure { code: "x".into(), message: "y".into(), hint: "z".into() }),
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FromMonitor>(&text).unwrap(), answer, "{text}");
        let command = Command::PoolCreate {
            pool: "p".into(),
            scheme: Some(Scheme::ReedSolomon { data: 4, parity: 2 }),
            min_size: None,
            pg_count: Some(8),
            failure_domain: Some(FailureDomain::Osd),
            block_size: Some(BlockSize::DEFAULT),
            objects: Some(ObjectOptions {
                shards: Some(64),
                compression: Some(Compression::ZlibBest),
                grouped: true,
            }),
        };
        round_trip(ToMonitor::Command { request: 2, command });
        let text = serde_json::to_string(&FromMonitor::Map(MapDelta::default())).unwrap();
        assert_eq!(
            serde_json::from_str::<FromMonitor>(&text).unwrap(),
            FromMonitor::Map(MapDelta::default())
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = r#"{"type":"close_session","session":5,"colour":"red"}"#;
        let read: ToMonitor = serde_json::from_str(text).unwrap();
        let session = SessionId::new(5);
        assert_eq!(read, ToMonitor::CloseSession { session, unanswered: false });
    }
}
