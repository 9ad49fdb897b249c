//! Contents of the state store: its keys and the JSON values under them. See `docs/internals/state.md`.
//!
//! Invariants
//!   1. A record identifies its own key: the text under a key parses to a record of that key.
//!   2. Fields that this version does not recognize are preserved when it writes a record again.
//!   3. Text that contains a number that cannot have been issued is not accepted as a record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::{
    BlockSize, ClusterId, ImageId, Incarnation, MapRevision, MonitorId, OsdId, PoolId, SessionId,
    SessionRange, StripeIndex,
};
use format::wire::PgEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::map::{ImageInfo, OsdInfo, Pool};
use crate::numbers::{self, NUMBER_MAX, number};
use crate::record_errors::parse;
use crate::stats::{NewestPeriods, Rows, Table};

/// Format of the state store that this version reads and writes.
pub const STATE_FORMAT: u32 = 1;

/// Number of PG entries under one key.
pub const PG_SHARD_SIZE: u32 = 256;

/// Id of a recorded task; never reused.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A counter that issues ids, so that no id is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterName {
    /// Images and layers.
    Image,
    /// OSDs.
    Osd,
    /// Pools.
    Pool,
    /// Sessions.
    Session,
    /// Tasks.
    Task,
    /// Monitors.
    Monitor,
    /// Revisions of the OSD table: the highest one that a removed OSD had.
    #[serde(rename = "osd_revision")]
    OsdRevision,
}

impl CounterName {
    const ALL: [(&'static str, CounterName); 7] = [
        ("image", CounterName::Image),
        ("osd", CounterName::Osd),
        ("pool", CounterName::Pool),
        ("session", CounterName::Session),
        ("task", CounterName::Task),
        ("monitor", CounterName::Monitor),
        ("osd_revision", CounterName::OsdRevision),
    ];

    /// Returns the highest id that this counter may issue.
    pub(crate) fn last(self) -> u64 {
        match self {
            CounterName::Image | CounterName::Pool | CounterName::Monitor => {
                u64::from(numbers::ID_MAX)
            }
            CounterName::Osd => u64::from(numbers::OSD_MAX),
            CounterName::Session => numbers::SESSION_MAX.get(),
            CounterName::Task | CounterName::OsdRevision => NUMBER_MAX,
        }
    }
}

/// A key of the state store. The order of the variants is not the order of keys in the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    /// `cluster`
    Cluster,
    /// `leader`
    Leader,
    /// `monitor/ID`
    Monitor(MonitorId),
    /// `config/NAME`
    Setting(String),
    /// `counter/NAME`
    Counter(CounterName),
    /// `osd/ID`
    Osd(OsdId),
    /// `pool/ID`
    Pool(PoolId),
    /// `pg/POOL/SHARD`
    PgShard(PoolId, u32),
    /// `fence/POOL`
    Fence(PoolId),
    /// `image/ID`
    Image(ImageId),
    /// `index/image/NAME`
    ImageName(String),
    /// `lock/IMAGE`
    Lock(ImageId),
    /// `session/ID`
    Session(SessionId),
    /// `task/ID`
    Task(TaskId),
    /// `removed_pool/ID`
    RemovedPool(PoolId),
    /// `stats/TABLE/SHARD`
    Stats(Table, u32),
    /// `change`
    Change,
    /// `recovery`
    Recovery,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Cluster => f.write_str("cluster"),
            Key::Leader => f.write_str("leader"),
            Key::Monitor(id) => write!(f, "monitor/{}", id.get()),
            Key::Setting(name) => write!(f, "config/{name}"),
            Key::Counter(name) => {
                let text = CounterName::ALL.iter().find(|(_, counter)| counter == name);
                write!(f, "counter/{}", text.expect("ALL has every counter").0)
            }
            Key::Osd(id) => write!(f, "osd/{}", id.get()),
            Key::Pool(id) => write!(f, "pool/{}", id.get()),
            Key::PgShard(pool, shard) => write!(f, "pg/{}/{shard}", pool.get()),
            Key::Fence(pool) => write!(f, "fence/{}", pool.get()),
            Key::Image(id) => write!(f, "image/{}", id.get()),
            Key::ImageName(name) => write!(f, "index/image/{name}"),
            Key::Lock(id) => write!(f, "lock/{}", id.get()),
            Key::Session(id) => write!(f, "session/{id}"),
            Key::Task(id) => write!(f, "task/{id}"),
            Key::RemovedPool(id) => write!(f, "removed_pool/{}", id.get()),
            Key::Stats(table, shard) => write!(f, "stats/{}/{shard}", table.name()),
            Key::Change => f.write_str("change"),
            Key::Recovery => f.write_str("recovery"),
        }
    }
}

impl Key {
    /// Parses a key; `None`: this version does not recognize it.
    pub fn parse(text: &str) -> Option<Key> {
        let key = match text {
            "cluster" => Key::Cluster,
            "leader" => Key::Leader,
            "change" => Key::Change,
            "recovery" => Key::Recovery,
            _ => {
                let (kind, rest) = text.split_once('/')?;
                match kind {
                    "monitor" => Key::Monitor(MonitorId::new(rest.parse().ok()?)?),
                    "config" => Key::Setting(rest.to_string()),
                    "counter" => {
                        let found = CounterName::ALL.iter().find(|(text, _)| *text == rest);
                        Key::Counter(found?.1)
                    }
                    "osd" => Key::Osd(OsdId::new(rest.parse().ok()?)?),
                    "pool" => Key::Pool(PoolId::new(rest.parse().ok()?)?),
                    "pg" => {
                        let (pool, shard) = rest.split_once('/')?;
                        Key::PgShard(PoolId::new(pool.parse().ok()?)?, shard.parse().ok()?)
                    }
                    "fence" => Key::Fence(PoolId::new(rest.parse().ok()?)?),
                    "image" => Key::Image(ImageId::new(rest.parse().ok()?)?),
                    "index" => Key::ImageName(rest.strip_prefix("image/")?.to_string()),
                    "lock" => Key::Lock(ImageId::new(rest.parse().ok()?)?),
                    "session" => Key::Session(SessionId::new(rest.parse().ok()?)),
                    "task" => Key::Task(TaskId(rest.parse().ok()?)),
                    "removed_pool" => Key::RemovedPool(PoolId::new(rest.parse().ok()?)?),
                    "stats" => {
                        let (name, shard) = rest.split_once('/')?;
                        let table = Table::ALL.into_iter().find(|table| table.name() == name)?;
                        Key::Stats(table, shard.parse().ok()?)
                    }
                    _ => return None,
                }
            }
        };
        // `osd/01` would mean the same as `osd/1`; only one spelling is allowed.
        (key.to_string() == text).then_some(key)
    }
}

/// Fields that a newer version wrote.
pub type Rest = BTreeMap<String, Value>;

/// `cluster`: the cluster that the store belongs to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The cluster.
    pub id: ClusterId,
    /// [`STATE_FORMAT`] of the version that created the store.
    pub format: u32,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `leader`: the monitor that may change the state. Every transaction compares this key's revision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// The leading monitor.
    pub monitor: MonitorId,
    /// The number of times that leadership was taken.
    pub run: u64,
    /// The leading monitor's process id.
    pub pid: u32,
    /// Addresses where the leading monitor listens.
    pub addresses: Vec<String>,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `monitor/ID`: a monitor of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MonitorRecord {
    /// The monitor's id.
    pub id: MonitorId,
    /// Addresses where the monitor listens; empty if it never ran.
    pub addresses: Vec<String>,
    /// The monitor's process id.
    pub pid: u32,
    /// Name of the monitor's host, for display.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Whether the monitor was removed. Its record remains, so that a process that uses its id is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

impl MonitorRecord {
    /// Returns the record of a running monitor, with the values that its process reported.
    pub fn of_run(id: MonitorId, addresses: Vec<String>, pid: u32, host: String) -> MonitorRecord {
        MonitorRecord { id, addresses, pid, host, removed: false, rest: Rest::new() }
    }
}

/// `config/NAME`: a setting that differs from its default.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SettingRecord {
    /// The setting's name.
    pub name: String,
    /// The setting's value.
    pub value: u64,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `counter/NAME`: the last id issued.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CounterRecord {
    /// The counter's name.
    pub name: CounterName,
    /// The last id issued; 0: none yet.
    pub last: u64,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `osd/ID`: an OSD that belongs to the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OsdRecord {
    /// The public description of the OSD. The incarnation counts the OSD's runs; when the description
    /// changes, its revision becomes higher than that of every other OSD.
    #[serde(flatten)]
    pub info: OsdInfo,
    /// Identity of the OSD's store, 32 hexadecimal digits.
    pub store: String,
    /// The host that the OSD reported; empty before its first boot.
    pub host: String,
    /// The OSD's directory or device, for display.
    pub path: String,
    /// Whether `ashlar up` started the OSD, and restarts it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supervised: bool,
    /// The OSD's process id.
    pub pid: u32,
    /// Size of the OSD's data area in bytes, as last reported; 0: not reported yet.
    pub size_bytes: u64,
    /// Whether recovery at the start of the current run found damage that may have cost acknowledged writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspect: bool,
    /// Whether the OSD has an engine for records of objects, as it said when it last joined; `None`: it did
    /// not say, as older versions do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<bool>,
    /// Who took the OSD out of the cluster, if it is out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_by: Option<OutBy>,
    /// The OSD's location as set by an operator, if one was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Box<TreePlace>>,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// An OSD's location among failure domains, as set by an operator; it overrides what the OSD reports.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TreePlace {
    /// The name of the host.
    pub host: String,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Who took an OSD out of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutBy {
    /// An operator: the OSD stays out.
    Operator,
    /// The monitor, because the OSD was down for `osd_out_after_ms`: the OSD is in again when it returns.
    Monitor,
}

/// `pool/ID`: a pool and the revision of its map.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolRecord {
    /// The pool's rules.
    #[serde(flatten)]
    pub pool: Pool,
    /// The revision of the pool's map: PG entries and fences contain the revision at which they last changed.
    pub revision: MapRevision,
    /// The fingerprint of the input from which the PGs were planned: see `monitor/planning.rs`.
    #[serde(default)]
    pub planned_for: u64,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `pg/POOL/SHARD`: the entries of [`PG_SHARD_SIZE`] PGs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PgShardRecord {
    /// The pool.
    pub pool: PoolId,
    /// Number of the shard: it holds the PGs from number `shard * PG_SHARD_SIZE` on.
    pub shard: u32,
    /// The entries, in order of PG number.
    pub pgs: Vec<PgEntry>,
    /// The plan, in the same order: an OSD for each copy, the preferred primary first. Empty: each PG is
    /// planned where it is now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Vec<OsdId>>,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `fence/POOL`: sessions that the pool's OSDs permanently refuse.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FenceRecord {
    /// The pool.
    pub pool: PoolId,
    /// Single fenced sessions, each with the revision that added it.
    pub fences: Vec<Fence>,
    /// Ranges of fenced sessions, from a first to a last one, in order: all earlier sessions that have no
    /// record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<SessionRange>,
    /// The revision at which the ranges last changed.
    #[serde(default, skip_serializing_if = "is_no_revision")]
    pub ranges_revision: MapRevision,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// A session that is permanently refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fence {
    /// The session.
    pub session: SessionId,
    /// The revision of the pool's map that added it.
    pub revision: MapRevision,
}

/// `image/ID`: a volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The description that its clients receive.
    #[serde(flatten)]
    pub info: ImageInfo,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `index/image/NAME`: finds an image by its name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageNameRecord {
    /// The name.
    pub name: String,
    /// The image.
    pub image: ImageId,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `lock/IMAGE`: the one session that holds the image's lock. Removed with that session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LockRecord {
    /// The image.
    pub image: ImageId,
    /// The session that holds the lock.
    pub session: SessionId,
    /// Whether the holder's writes may be acknowledged before they are durable: then no other
    /// session may have the image attached, not even for reading.
    pub lazy: bool,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `session/ID`: an attachment. Removed when the session is closed cleanly, or fenced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The session's id.
    pub id: SessionId,
    /// What the session uses.
    #[serde(flatten)]
    pub used: Used,
    /// What opened the session, for display.
    pub client: String,
    /// Whether the session only reads.
    pub read_only: bool,
    /// Whether the session has ended: it was without a connection for too long, or was closed with an
    /// unanswered change. Requests of the session may still be in flight. The next attach of the image, or
    /// the next client that opens the pool, fences the session; until then its client may resume it.
    pub ended: bool,
    /// The reign that opened the session: see [`ChangeRecord`]. After the store was restored from a backup,
    /// two sessions can have the same id, but they have different reigns. 0: unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reign: u64,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// What a session uses: `"image":ID`, or `"pool":ID`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Used {
    /// An attached image.
    Image(ImageId),
    /// An object pool.
    Pool(PoolId),
}

impl Used {
    /// Returns the image, if it is one.
    pub fn image(self) -> Option<ImageId> {
        match self {
            Used::Image(image) => Some(image),
            Used::Pool(_) => None,
        }
    }
}

/// `task/ID`: long work on an image, recorded before it begins.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The task's id.
    pub id: TaskId,
    /// The reason why the task deletes blocks.
    pub kind: TaskKind,
    /// The image whose blocks are deleted.
    pub image: ImageId,
    /// The image's name when the task began, for display.
    pub name: String,
    /// Seed of the hash of the image's stripes.
    pub seed: ImageId,
    /// The pool that holds the blocks.
    pub pool: PoolId,
    /// The pool's block size.
    pub block_size: BlockSize,
    /// The first stripe to delete.
    pub from: StripeIndex,
    /// If the new size cuts a stripe: the end of that stripe, which must be zeroed.
    pub zero: Option<ZeroRange>,
    /// The revision of the pool's map that all OSDs that are up must have applied before the work starts, so
    /// that no OSD still serves the image's fenced sessions.
    pub fence_revision: MapRevision,
    /// The number of PGs that are finished, counted from PG 0: these have nothing left to delete.
    pub pgs_done: u32,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `removed_pool/ID`: a removed pool of which OSDs still hold data.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RemovedPoolRecord {
    /// The removed pool.
    pub pool: PoolId,
    /// The pool's former name, for display; another pool may have that name now.
    pub name: String,
    /// Number of PGs that the pool had.
    pub pg_count: u32,
    /// OSDs that have not yet reported that they deleted the pool's data.
    pub osds: BTreeSet<OsdId>,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `stats/TABLE/SHARD`: sums of the OSDs' counters, for some rows of a table. Nothing else depends on these
/// sums.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatsRecord {
    /// The table.
    pub table: Table,
    /// Number of the shard. A row never changes its shard.
    pub shard: u32,
    /// The rows, by id.
    pub rows: Rows,
    /// For each OSD, the newest period that had been received when the shard was written: the rows include
    /// all periods up to this one.
    pub newest: NewestPeriods,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// `change`: the number of the last transaction, and which reign made which transactions. If two
/// stores diverged from one state, the same number belongs to different reigns.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// The number of the last transaction.
    pub last: u64,
    /// The last reigns, oldest first: the first transaction of each reign, and the reign's number.
    #[serde(default)]
    pub reigns: Vec<(u64, u64)>,
    /// The number of the transaction that the last restore continued from: the restore took into account
    /// everything that OSDs had seen up to this number.
    #[serde(default)]
    pub recovered: u64,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Maximum number of reigns in the record.
const REIGN_COUNT_MAX: usize = 16;

impl ChangeRecord {
    /// Returns this record as it is after a transaction with this number, made by this reign.
    pub fn with(&self, change: u64, reign: u64) -> ChangeRecord {
        let mut next = ChangeRecord { last: change, ..self.clone() };
        if next.reigns.last().is_none_or(|(_, last)| *last != reign) {
            next.reigns.push((change, reign));
            let surplus = next.reigns.len().saturating_sub(REIGN_COUNT_MAX);
            next.reigns.drain(..surplus);
        }
        next
    }

    /// Returns the reign that made a transaction; `None`: the transaction is too old.
    pub fn reign_of(&self, change: u64) -> Option<u64> {
        let mut newest_first = self.reigns.iter().rev();
        newest_first.find(|(first, _)| *first <= change).map(|(_, reign)| *reign)
    }

    /// Whether this store includes the transaction that an OSD has seen, and all transactions before it.
    pub fn has(&self, change: u64, reign: u64) -> bool {
        let is_ours = || self.reign_of(change).is_none_or(|ours| ours == reign);
        change <= self.recovered || (change <= self.last && is_ours())
    }
}

/// `recovery`: the store must not be used. Either a recovery is still writing the state from the
/// OSDs' records, or a key that only monitors write was edited by hand.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryRecord {
    /// The monitor that wrote this record.
    pub monitor: MonitorId,
    /// Keys that were edited by hand while that monitor led: their values are not trusted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edited: Vec<String>,
    /// Fields that this version does not recognize.
    #[serde(flatten)]
    pub rest: Rest,
}

impl RecoveryRecord {
    /// Returns the record that this monitor writes.
    pub fn of(monitor: MonitorId) -> RecoveryRecord {
        RecoveryRecord { monitor, edited: Vec::new(), rest: Rest::new() }
    }
}

/// The reason for a task that deletes blocks of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// The image was removed.
    Remove,
    /// The image was made smaller.
    Shrink,
}

/// A range of one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ZeroRange {
    /// The stripe.
    pub stripe: StripeIndex,
    /// Offset within the stripe, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// The value under a key.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    /// Under `cluster`.
    Cluster(ClusterRecord),
    /// Under `leader`.
    Leader(LeaderRecord),
    /// Under `monitor/ID`.
    Monitor(MonitorRecord),
    /// Under `config/NAME`.
    Setting(SettingRecord),
    /// Under `counter/NAME`.
    Counter(CounterRecord),
    /// Under `osd/ID`.
    Osd(OsdRecord),
    /// Under `pool/ID`.
    Pool(PoolRecord),
    /// Under `pg/POOL/SHARD`.
    PgShard(PgShardRecord),
    /// Under `fence/POOL`.
    Fence(FenceRecord),
    /// Under `image/ID`.
    Image(ImageRecord),
    /// Under `index/image/NAME`.
    ImageName(ImageNameRecord),
    /// Under `lock/IMAGE`.
    Lock(LockRecord),
    /// Under `session/ID`.
    Session(SessionRecord),
    /// Under `task/ID`.
    Task(TaskRecord),
    /// Under `removed_pool/ID`.
    RemovedPool(RemovedPoolRecord),
    /// Under `stats/TABLE/SHARD`.
    Stats(StatsRecord),
    /// Under `change`.
    Change(ChangeRecord),
    /// Under `recovery`.
    Recovery(RecoveryRecord),
}

impl Record {
    /// Returns the key that the record belongs to.
    pub fn key(&self) -> Key {
        match self {
            Record::Cluster(_) => Key::Cluster,
            Record::Leader(_) => Key::Leader,
            Record::Monitor(record) => Key::Monitor(record.id),
            Record::Setting(record) => Key::Setting(record.name.clone()),
            Record::Counter(record) => Key::Counter(record.name),
            Record::Osd(record) => Key::Osd(record.info.id),
            Record::Pool(record) => Key::Pool(record.pool.id),
            Record::PgShard(record) => Key::PgShard(record.pool, record.shard),
            Record::Fence(record) => Key::Fence(record.pool),
            Record::Image(record) => Key::Image(record.info.id),
            Record::ImageName(record) => Key::ImageName(record.name.clone()),
            Record::Lock(record) => Key::Lock(record.image),
            Record::Session(record) => Key::Session(record.id),
            Record::Task(record) => Key::Task(record.id),
            Record::RemovedPool(record) => Key::RemovedPool(record.pool),
            Record::Stats(record) => Key::Stats(record.table, record.shard),
            Record::Change(_) => Key::Change,
            Record::Recovery(_) => Key::Recovery,
        }
    }

    /// Returns the record as a JSON value.
    pub fn to_json(&self) -> Value {
        let value = match self {
            Record::Cluster(record) => serde_json::to_value(record),
            Record::Leader(record) => serde_json::to_value(record),
            Record::Monitor(record) => serde_json::to_value(record),
            Record::Setting(record) => serde_json::to_value(record),
            Record::Counter(record) => serde_json::to_value(record),
            Record::Osd(record) => serde_json::to_value(record),
            Record::Pool(record) => serde_json::to_value(record),
            Record::PgShard(record) => serde_json::to_value(record),
            Record::Fence(record) => serde_json::to_value(record),
            Record::Image(record) => serde_json::to_value(record),
            Record::ImageName(record) => serde_json::to_value(record),
            Record::Lock(record) => serde_json::to_value(record),
            Record::Session(record) => serde_json::to_value(record),
            Record::Task(record) => serde_json::to_value(record),
            Record::RemovedPool(record) => serde_json::to_value(record),
            Record::Stats(record) => serde_json::to_value(record),
            Record::Change(record) => serde_json::to_value(record),
            Record::Recovery(record) => serde_json::to_value(record),
        };
        value.expect("records have text keys and plain numbers")
    }

    /// Parses the record in a text found under `key`. An error says what is wrong with the text.
    pub fn parse(key: &Key, text: &str) -> Result<Record, String> {
        let record = match key {
            Key::Cluster => Record::Cluster(parse(text)?),
            Key::Leader => Record::Leader(parse(text)?),
            Key::Monitor(_) => Record::Monitor(parse(text)?),
            Key::Setting(_) => Record::Setting(parse(text)?),
            Key::Counter(_) => Record::Counter(parse(text)?),
            Key::Osd(_) => Record::Osd(parse(text)?),
            Key::Pool(_) => Record::Pool(parse(text)?),
            Key::PgShard(..) => Record::PgShard(parse(text)?),
            Key::Fence(_) => Record::Fence(parse(text)?),
            Key::Image(_) => Record::Image(parse(text)?),
            Key::ImageName(_) => Record::ImageName(parse(text)?),
            Key::Lock(_) => Record::Lock(parse(text)?),
            Key::Session(_) => Record::Session(parse(text)?),
            Key::Task(_) => Record::Task(parse(text)?),
            Key::RemovedPool(_) => Record::RemovedPool(parse(text)?),
            Key::Stats(..) => Record::Stats(parse(text)?),
            Key::Change => Record::Change(parse(text)?),
            Key::Recovery => Record::Recovery(parse(text)?),
        };
        if record.key() != *key {
            return Err(format!("the value is the record of another key, {}", record.key()));
        }
        record.check_numbers()?;
        Ok(record)
    }

    /// Checks that all numbers in the record may have been issued. The error identifies one that cannot have
    /// been.
    pub(crate) fn check_numbers(&self) -> Result<(), String> {
        match self {
            Record::Monitor(record) => numbers::check_monitor(record.id),
            Record::Counter(record) => number("last", record.last, record.name.last()),
            Record::Osd(record) => {
                numbers::check_osd(record.info.id)?;
                number("revision", record.info.revision, NUMBER_MAX)?;
                number("incarnation", record.info.incarnation.get(), NUMBER_MAX)?;
                number("size_bytes", record.size_bytes, NUMBER_MAX)
            }
            Record::Pool(record) => {
                numbers::check_pool(record.pool.id)?;
                numbers::check_revision(record.revision)
            }
            Record::PgShard(record) => record.pgs.iter().try_for_each(numbers::check_entry),
            Record::Fence(record) => record.check_numbers(),
            Record::Image(record) => numbers::check_image(record.info.id),
            Record::Lock(record) => numbers::check_session(record.session),
            Record::Session(record) => numbers::check_session(record.id),
            Record::Task(record) => {
                number("id", record.id.0, NUMBER_MAX)?;
                numbers::check_revision(record.fence_revision)
            }
            Record::RemovedPool(record) => numbers::check_pool(record.pool),
            Record::Stats(record) => record.newest.values().try_for_each(|newest| {
                number("incarnation", newest.incarnation.get(), NUMBER_MAX)?;
                number("sequence", newest.sequence, NUMBER_MAX)
            }),
            Record::Change(record) => {
                number("last", record.last, NUMBER_MAX)?;
                number("recovered", record.recovered, NUMBER_MAX)?;
                let mut firsts = record.reigns.iter().map(|(first, _)| *first);
                firsts.try_for_each(|first| number("first change of a reign", first, NUMBER_MAX))
            }
            Record::Cluster(_)
            | Record::Leader(_)
            | Record::Setting(_)
            | Record::ImageName(_)
            | Record::Recovery(_) => Ok(()),
        }
    }
}

fn is_no_revision(revision: &MapRevision) -> bool {
    *revision == MapRevision::ZERO
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl FenceRecord {
    /// Returns the number of fences; each range counts as one.
    pub fn count(&self) -> usize {
        self.fences.len() + self.ranges.len()
    }

    /// Returns the last session of all ranges. In a pool of objects, all before it have a fence, but for
    /// those that had a record when they were joined.
    pub fn joined(&self) -> SessionId {
        self.ranges.last().map_or(SessionId::ZERO, |(_, last)| *last)
    }

    fn check_numbers(&self) -> Result<(), String> {
        numbers::check_pool(self.pool)?;
        for fence in &self.fences {
            numbers::check_session(fence.session)?;
            numbers::check_revision(fence.revision)?;
        }
        numbers::check_ranges(&self.ranges)?;
        numbers::check_revision(self.ranges_revision)
    }
}

impl SessionRecord {
    /// Whether this is the session that a client received under this reign; 0 (unknown) matches any reign.
    pub fn is_of(&self, reign: u64) -> bool {
        self.reign == 0 || reign == 0 || self.reign == reign
    }
}

impl OsdRecord {
    /// Returns the record of an OSD that has never run.
    pub fn new(id: OsdId, store: String, revision: u64) -> OsdRecord {
        let info = OsdInfo {
            id,
            revision,
            addresses: Vec::new(),
            peer_addresses: Vec::new(),
            incarnation: Incarnation::ZERO,
            up: false,
            in_cluster: true,
        };
        OsdRecord {
            info,
            store,
            host: String::new(),
            path: String::new(),
            supervised: false,
            pid: 0,
            size_bytes: 0,
            suspect: false,
            engine: None,
            out_by: None,
            tree: None,
            rest: Rest::new(),
        }
    }
}

impl PgShardRecord {
    /// Returns the OSDs planned for the entry at this index.
    pub fn targets_of(&self, index: usize) -> Vec<OsdId> {
        match self.targets.get(index) {
            Some(targets) if !targets.is_empty() => targets.clone(),
            _ => self.pgs[index].acting().map(|member| member.osd).collect(),
        }
    }
}

impl OsdRecord {
    /// Returns the host that counts as the OSD's failure domain: the one set by an operator, otherwise the
    /// one that the OSD reported.
    pub fn tree_host(&self) -> &str {
        self.tree.as_ref().map_or(&self.host, |place| &place.host)
    }

    /// Whether PGs of a pool may be planned on the OSD, as far as its engine goes. An OSD of an older version
    /// keeps the PGs of objects that are planned on it, and gets no others.
    pub fn may_keep(&self, has_objects: bool, is_planned: bool) -> bool {
        !has_objects || self.engine.unwrap_or(is_planned)
    }

    /// Sets whether the planner assigns PGs to the OSD, and if not, who took it out.
    pub fn set_in(&mut self, is_in: bool, by: OutBy) {
        if self.info.in_cluster != is_in {
            self.info.in_cluster = is_in;
            self.out_by = (!is_in).then_some(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_texts_are_inverse() {
        let pool = PoolId::new(3).unwrap();
        let keys = [
            Key::Cluster,
            Key::Leader,
            Key::Monitor(MonitorId::FIRST),
            Key::Setting("session_timeout_ms".into()),
            Key::Counter(CounterName::Image),
            Key::Osd(OsdId::FIRST),
            Key::Pool(pool),
            Key::PgShard(pool, 7),
            Key::Fence(pool),
            Key::Image(ImageId::FIRST),
            Key::ImageName("a.b".into()),
            Key::Lock(ImageId::FIRST),
            Key::Session(SessionId::new(9)),
            Key::Task(TaskId(2)),
            Key::RemovedPool(pool),
            Key::Stats(Table::Osd, 0),
            Key::Stats(Table::Volume, 12),
            Key::Change,
            Key::Recovery,
        ];
        for key in keys {
            assert_eq!(Key::parse(&key.to_string()), Some(key));
        }
        let wrong = ["", "osd", "osd/0", "osd/01", "pg/1", "counter/x", "index/pool/a", "other/1"];
        for wrong in wrong.into_iter().chain(["stats/osd", "stats/host/0", "stats/osd/00"]) {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_fields_are_kept() {
        let text = r#"{"id":1,"revision":4,"addresses":["unix:a"],"incarnation":2,"up":true,
            "in":true,"store":"00","host":"h","path":"p","pid":7,"size_bytes":5,"rack":"r1"}"#;
        let record = Record::parse(&Key::Osd(OsdId::FIRST), text).unwrap();
        let written = record.to_json();
        assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(written["rack"], "r1");
    }

    #[test]
    fn a_store_has_what_its_own_reigns_did() {
        let store = ChangeRecord::default().with(1, 70).with(2, 70).with(3, 80);
        let backup = ChangeRecord::default().with(1, 70);
        assert_eq!(store.reigns, [(1, 70), (3, 80)]);
        assert!(store.has(2, 70) && store.has(3, 80) && store.has(0, 0));
        assert!(!store.has(4, 80), "it has not done that yet");
        assert!(!backup.has(2, 70) && !backup.has(3, 80));
        // Two histories that diverge from one state have the same numbers, but different transactions.
        let other = backup.with(2, 90).with(3, 90);
        assert!(!other.has(2, 70) && !other.has(3, 80));
        let restored =
            ChangeRecord { last: 3, recovered: 3, ..ChangeRecord::default() }.with(4, 90);
        assert!(restored.has(2, 70) && restored.has(3, 80) && !restored.has(4, 80));
        let many = (0..100).fold(ChangeRecord::default(), |r, n| r.with(n + 1, n));
        assert!(many.reigns.len() == 16 && many.has(3, 1), "nobody knows that any more");
    }

    #[test]
    fn a_record_under_a_foreign_key_is_refused() {
        let text = r#"{"name":"osd","last":4}"#;
        assert!(Record::parse(&Key::Counter(CounterName::Osd), text).is_ok());
        let error = Record::parse(&Key::Counter(CounterName::Pool), text).unwrap_err();
        assert!(error.contains("counter/osd"), "{error}");
        assert!(Record::parse(&Key::Cluster, "rubbish").is_err());
    }
}
