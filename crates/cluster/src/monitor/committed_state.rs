//! This monitor's copy of the state store: committed records only.
//!
//! Invariants
//!   1. A record is in this copy only once its transaction is known to be committed.
//!   2. The entries of a pool's PGs lie in shards without gaps, and no entry has a revision above
//!      the pool's. Otherwise the store is marked as damaged.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{ImageId, MapRevision, MonitorId, OsdId, PgId, PoolId, SessionId};
use format::wire::{Member, PgEntry};

use super::pool::check_pool;
use super::refusal::first_names;
use super::{clipped, failure};
use crate::map::{MapDelta, PoolDelta};
use crate::message::Failure;
use crate::records::{
    ChangeRecord, ClusterRecord, CounterName, CounterRecord, FenceRecord, ImageRecord, Key,
    LockRecord, MonitorRecord, OsdRecord, PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record,
    RecoveryRecord, RemovedPoolRecord, Rest, SessionRecord, SettingRecord, StatsRecord, TaskId,
    TaskRecord, Used,
};
use crate::settings::{Changed, Setting};
use crate::state::{KeyValue, Operation, StateRevision, Transaction};
use crate::stats::Table;

/// Maximum size of a record that operators may write, in bytes.
const EDITED_SIZE_MAX: usize = 64 << 10;

/// All records, and the keys that this version does not recognize.
#[derive(Clone, Debug, Default)]
pub(super) struct CommittedState {
    records: BTreeMap<Key, Stored>,
    /// Keys that this version does not recognize: listed for operators, but never written.
    foreign: BTreeMap<String, (StateRevision, String)>,
    /// The values of all setting records, by name.
    changed_settings: Changed,
    /// Manual edits of known keys that have not been checked yet. `records` holds the values in force.
    edits: BTreeMap<Key, Edit>,
    /// Unusable keys, each with the reason. The bad value is in `edits`. Unless `is_edited` is set, this
    /// monitor has never read a good value of these keys.
    damaged: BTreeMap<Key, String>,
    /// Whether the damaged keys were edited by hand while this monitor led: then `records` still holds their
    /// last good values.
    is_edited: bool,
    /// The consistency rule between records that was violated when they were read, if any.
    broken: Option<String>,
    /// The number of this process's reign, unique among all leaders that have written to this store.
    pub(super) reign: u64,
}

/// A manual edit of a key.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    revision: StateRevision,
    /// The new value; `None`: the key was removed.
    pub(super) text: Option<String>,
}

#[derive(Clone, Debug)]
struct Stored {
    revision: StateRevision,
    record: Record,
}

/// Generates a lookup by id and an iterator for one kind of record.
macro_rules! kind {
    ($one:ident, $all:ident, $kind:ident($id:ty) from $first:expr, $record:ty) => {
        pub(super) fn $one(&self, id: $id) -> Option<&$record> {
            match &self.records.get(&Key::$kind(id))?.record {
                Record::$kind(record) => Some(record),
                _ => None,
            }
        }

        pub(super) fn $all(&self) -> impl Iterator<Item = &$record> {
            self.records.range(Key::$kind($first)..).map_while(|(_, stored)| match &stored.record {
                Record::$kind(record) => Some(record),
                _ => None,
            })
        }
    };
}

/// Checks the size of a value that operators may write: several such records, each with fields that this
/// version does not recognize, must fit in one transaction.
pub(super) fn check_size(key: &Key, text: &str) -> Result<(), String> {
    let is_open = matches!(key, Key::Setting(_) | Key::Pool(_) | Key::Osd(_));
    if is_open && text.len() > EDITED_SIZE_MAX {
        let size = text.len();
        return Err(format!("the value has {size} bytes; the limit is {EDITED_SIZE_MAX}"));
    }
    Ok(())
}

impl CommittedState {
    kind!(osd, osds, Osd(OsdId) from OsdId::FIRST, OsdRecord);
    kind!(pool, pools, Pool(PoolId) from PoolId::FIRST, PoolRecord);
    kind!(image, images, Image(ImageId) from ImageId::FIRST, ImageRecord);
    kind!(lock, locks, Lock(ImageId) from ImageId::FIRST, LockRecord);
    kind!(session, sessions, Session(SessionId) from SessionId::ZERO, SessionRecord);
    kind!(removed_pool, removed_pools, RemovedPool(PoolId) from PoolId::FIRST, RemovedPoolRecord);
    kind!(monitor_record, monitor_records, Monitor(MonitorId) from MonitorId::FIRST, MonitorRecord);
    kind!(task, tasks, Task(TaskId) from TaskId(0), TaskRecord);

    pub(super) fn stats(&self) -> impl Iterator<Item = &StatsRecord> {
        let of_stats = self.records.range(Key::Stats(Table::Osd, 0)..);
        of_stats.map_while(|(_, stored)| match &stored.record {
            Record::Stats(record) => Some(record),
            _ => None,
        })
    }

    /// Returns an empty state for a monitor with this reign.
    pub(super) fn of_reign(reign: u64) -> CommittedState {
        CommittedState { reign, ..CommittedState::default() }
    }

    /// Returns the state that a store with these records would have.
    pub(super) fn of_records(records: impl IntoIterator<Item = Record>) -> CommittedState {
        let mut committed = CommittedState::default();
        for record in records {
            committed.insert(record.key(), Stored { revision: StateRevision::ZERO, record });
        }
        committed
    }

    /// Loads a key read from the store. An unusable value marks the store as damaged; a setting that is out
    /// of range is recorded as a manual edit.
    ///
    /// Errors: a key that identifies the owner of the store is damaged.
    pub(super) fn load(&mut self, entry: KeyValue) -> Result<(), String> {
        let Some(key) = Key::parse(&entry.key) else {
            self.foreign.insert(entry.key, (entry.revision, entry.value));
            return Ok(());
        };
        if let Err(error) = check_size(&key, &entry.value) {
            if matches!(key, Key::Setting(_)) {
                self.note_edit(entry.key, entry.revision, Some(entry.value));
                return Ok(());
            }
            self.note_damage(key, entry, error);
            return Ok(());
        }
        let record = match Record::parse(&key, &entry.value) {
            Ok(Record::Setting(record)) if !is_in_range(&record) => {
                self.note_edit(entry.key, entry.revision, Some(entry.value));
                return Ok(());
            }
            // Damaged statistics are not worth an outage. If `change`, the number of the last transaction, is
            // unreadable, the store looks older than the OSDs' records, and `state recover` collects those.
            Err(_) if matches!(key, Key::Setting(_) | Key::Stats(..) | Key::Change) => {
                self.note_edit(entry.key, entry.revision, Some(entry.value));
                return Ok(());
            }
            Err(error) if matches!(key, Key::Cluster | Key::Leader) => {
                return Err(format!("the state store's key {} is damaged: {error}", entry.key));
            }
            // Even an unreadable record shows that a recovery was started.
            Err(_) if key == Key::Recovery => {
                Record::Recovery(RecoveryRecord::of(MonitorId::FIRST))
            }
            Err(error) => {
                self.note_damage(key, entry, error);
                return Ok(());
            }
            Ok(record) => record,
        };
        self.insert(key, Stored { revision: entry.revision, record });
        Ok(())
    }

    /// Records a key whose value must not be used.
    pub(super) fn note_damage(&mut self, key: Key, entry: KeyValue, why: String) {
        self.note_edit(entry.key, entry.revision, Some(entry.value));
        self.damaged.insert(key, why);
    }

    /// Handles a manual edit, made while this monitor led, of a key that only monitors write. If the edit
    /// changed nothing, only its revision is adopted. Otherwise the key is damaged, and the previous value
    /// stays in force.
    pub(super) fn note_guarded_edit(&mut self, key: Key) {
        let Some(edit) = self.edits.get(&key) else { return };
        let text = edit.text.as_ref();
        let found = text.and_then(|text| Record::parse(&key, text).ok());
        let is_same = found.is_some() == text.is_some() && found.as_ref() == self.record(&key);
        if !is_same {
            self.is_edited = true;
            self.damaged.insert(key, "edited by hand".to_string());
            return;
        }
        if let Some(stored) = self.records.get_mut(&key) {
            stored.revision = edit.revision;
        }
        self.edits.remove(&key);
        self.damaged.remove(&key);
    }

    /// Whether the damage comes from manual edits made while this monitor led, so that the last good values
    /// are known.
    pub(super) fn is_edited(&self) -> bool {
        self.is_edited && self.is_damaged()
    }

    /// Marks as damaged the keys that were edited by hand while another monitor led: their values are not
    /// trusted.
    fn note_keys_edited_before(&mut self) {
        let Some(Record::Recovery(record)) = self.record(&Key::Recovery) else { return };
        // The `cluster` key has been checked already: if it belongs to another cluster, the monitor stops.
        let keys = record.edited.clone().into_iter().filter_map(|text| Key::parse(&text));
        for key in keys.filter(|key| *key != Key::Cluster) {
            let (revision, text) = match self.records.remove(&key) {
                Some(stored) => (stored.revision, Some(stored.record.to_json().to_string())),
                None => (StateRevision::ZERO, None),
            };
            self.edits.entry(key.clone()).or_insert(Edit { revision, text });
            self.damaged.insert(key, "edited by hand".to_string());
        }
    }

    /// Checks all loaded records for consistency with each other.
    pub(super) fn judge_rules(&mut self) {
        self.note_keys_edited_before();
        // Records that depend on a damaged key cannot be checked. Records left incomplete by an interrupted
        // recovery are written again by the next recovery.
        if self.damaged.is_empty() && !self.is_being_recovered() {
            self.broken = self.broken_rule();
        }
    }

    /// Whether the store holds records that cannot be used or are inconsistent.
    pub(super) fn is_damaged(&self) -> bool {
        !self.damaged.is_empty() || self.broken.is_some()
    }

    /// Returns the keys whose values cannot be used.
    pub(super) fn damaged_keys(&self) -> impl Iterator<Item = &Key> {
        self.damaged.keys()
    }

    /// Describes the damage for operators; `None`: nothing is damaged.
    pub(super) fn damage(&self) -> Option<String> {
        let why = |(key, why): (&Key, &String)| format!("{key} ({})", clipped(why.clone()));
        let keys: Vec<String> = self.damaged.iter().map(why).collect();
        if keys.is_empty() { self.broken.clone() } else { Some(first_names(&keys)) }
    }

    /// Records a manual edit of a key; `text` is `None` if the key was removed. Returns the key if this
    /// version recognizes it: the caller must then check the edit.
    pub(super) fn note_edit(
        &mut self,
        key: String,
        revision: StateRevision,
        text: Option<String>,
    ) -> Option<Key> {
        let Some(known) = Key::parse(&key) else {
            match text {
                Some(text) => self.foreign.insert(key, (revision, text)),
                None => self.foreign.remove(&key),
            };
            return None;
        };
        self.edits.insert(known.clone(), Edit { revision, text });
        Some(known)
    }

    /// Returns the edit of a key, if there is one that has not been checked yet.
    pub(super) fn edit(&self, key: &Key) -> Option<&Edit> {
        self.edits.get(key)
    }

    /// Returns the keys whose edits have not been checked yet, without the damaged keys.
    pub(super) fn edited_keys(&self) -> impl Iterator<Item = &Key> {
        self.edits.keys().filter(|key| !self.damaged.contains_key(key))
    }

    /// Drops the edit of a key whose value in the store is now in force: no further write is needed.
    pub(super) fn settle_edit(&mut self, key: &Key) {
        if self.edits.remove(key).is_some_and(|edit| edit.text.is_none()) {
            self.remove(key);
        }
    }

    /// Returns the record in force under a key.
    pub(super) fn record(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).map(|stored| &stored.record)
    }

    /// Returns the keys whose revision in the store differs from the revision in this copy. If this monitor
    /// has no transaction in flight, another process has changed them.
    pub(super) fn differences(&self, store: &BTreeMap<String, KeyValue>) -> Vec<String> {
        let known = self.records.keys().chain(self.edits.keys()).map(Key::to_string);
        let mut keys: Vec<String> = known.chain(self.foreign.keys().cloned()).collect();
        keys.extend(store.keys().cloned());
        keys.sort_unstable();
        keys.dedup();
        let there =
            |key: &String| store.get(key).map_or(StateRevision::ZERO, |entry| entry.revision);
        keys.retain(|key| self.revision_of(key) != there(key));
        keys
    }

    /// Returns the revision of any key in this copy; `ZERO`: the key does not exist.
    pub(super) fn revision_of(&self, key: &str) -> StateRevision {
        match Key::parse(key) {
            Some(key) => self.revision(&key),
            None => self.foreign.get(key).map_or(StateRevision::ZERO, |(revision, _)| *revision),
        }
    }

    fn insert(&mut self, key: Key, stored: Stored) {
        if let Record::Setting(record) = &stored.record {
            self.changed_settings.insert(record.name.clone(), record.value);
        }
        self.records.insert(key, stored);
    }

    fn remove(&mut self, key: &Key) {
        if let Key::Setting(name) = key {
            self.changed_settings.remove(name);
        }
        self.records.remove(key);
    }

    /// Returns the settings that differ from their defaults.
    pub(super) fn changed_settings(&self) -> &Changed {
        &self.changed_settings
    }

    /// Describes the first consistency rule between records that is violated, if any. The cause may be a
    /// manual edit or a damaged copy of the store.
    pub(super) fn broken_rule(&self) -> Option<String> {
        self.broken_reference().or_else(|| self.broken_counter())
    }

    /// Describes a counter whose value is below an id in use: it would issue that id again.
    fn broken_counter(&self) -> Option<String> {
        let sessions = self.sessions().map(|record| record.id);
        let fences = self.pools().filter_map(|record| self.fences(record.pool.id));
        let fenced = fences.flat_map(|record| {
            let single = record.fences.iter().map(|fence| fence.session);
            single.chain(record.ranges.iter().map(|(_, last)| *last))
        });
        let pools = self.pools().map(|record| record.pool.id);
        let pools = pools.chain(self.removed_pools().map(|record| record.pool));
        let newest = [
            (CounterName::Image, self.images().map(|r| u64::from(r.info.id.get())).max()),
            (CounterName::Session, sessions.chain(fenced).map(SessionId::get).max()),
            (CounterName::Task, self.tasks().map(|r| r.id.0).max()),
            (CounterName::Pool, pools.map(|pool| u64::from(pool.get())).max()),
            (CounterName::Osd, self.osds().map(|r| u64::from(r.info.id.get())).max()),
            (CounterName::Monitor, self.monitor_records().map(|r| u64::from(r.id.get())).max()),
        ];
        newest.into_iter().find_map(|(name, newest)| {
            let newest = newest.filter(|id| *id > self.counter(name))?;
            Some(format!("{} is below {newest}, which is in use", Key::Counter(name)))
        })
    }

    fn broken_reference(&self) -> Option<String> {
        let broken = self.pools().find_map(|pool| self.broken_pool(pool));
        let no_pool = |key: Key, pool: PoolId| {
            self.pool(pool).is_none().then(|| format!("{key} refers to a pool that does not exist"))
        };
        broken
            .or_else(|| self.images().find_map(|r| no_pool(Key::Image(r.info.id), r.info.pool)))
            .or_else(|| {
                self.sessions().find_map(|record| match record.used {
                    Used::Pool(pool) => no_pool(Key::Session(record.id), pool),
                    Used::Image(_) => None,
                })
            })
            .or_else(|| {
                let ownerless = self.locks().find(|lock| self.session(lock.session).is_none())?;
                let key = Key::Lock(ownerless.image);
                Some(format!("{key} refers to a session that does not exist"))
            })
            .or_else(|| {
                let tasks = self.tasks().filter(|r| self.removed_pool(r.pool).is_none());
                tasks.into_iter().find_map(|r| no_pool(Key::Task(r.id), r.pool))
            })
            .or_else(|| {
                let (key, _) =
                    self.named_images().find(|(_, image)| self.image(*image).is_none())?;
                Some(format!("{key} refers to a volume that does not exist"))
            })
    }

    /// Returns the images that other records refer to, with the keys of those records.
    pub(super) fn named_images(&self) -> impl Iterator<Item = (&Key, ImageId)> {
        self.records.iter().filter_map(|(key, stored)| match &stored.record {
            Record::ImageName(record) => Some((key, record.image)),
            Record::Session(record) => Some((key, record.used.image()?)),
            Record::Lock(record) => Some((key, record.image)),
            _ => None,
        })
    }

    fn broken_pool(&self, pool: &PoolRecord) -> Option<String> {
        let id = pool.pool.id;
        if let Err(why) = check_pool(&pool.pool) {
            return Some(format!("the record of pool {id} cannot be used: {why}"));
        }
        let mut expected = 0;
        for entry in self.pgs(id) {
            if entry.pg.pool != id || entry.pg.number != expected {
                return Some(format!("the entry of PG {} is stored at index {expected}", entry.pg));
            }
            if entry.revision > pool.revision {
                return Some(format!(
                    "the entry of PG {} has a newer revision than its pool's map",
                    entry.pg
                ));
            }
            let is_given = |member: &Member| {
                let record = self.osd(member.osd);
                record.is_some_and(|record| member.incarnation <= record.info.incarnation)
            };
            if !entry.members().all(is_given) {
                return Some(format!(
                    "PG {} has a member with an id or run that was never issued",
                    entry.pg
                ));
            }
            expected += 1;
        }
        let count = pool.pool.pg_count;
        (expected != count).then(|| format!("pool {id} has {expected} of {count} PG entries"))
    }

    /// Returns the record of the last transaction.
    pub(super) fn change(&self) -> ChangeRecord {
        match self.record(&Key::Change) {
            Some(Record::Change(record)) => record.clone(),
            _ => ChangeRecord::default(),
        }
    }

    /// Whether a recovery was started and has not finished, so that these records may be incomplete.
    pub(super) fn is_being_recovered(&self) -> bool {
        self.records.contains_key(&Key::Recovery)
    }

    /// Returns all records in force, by key.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.records.iter().map(|(key, stored)| (key, &stored.record))
    }

    /// Whether the store holds no key except the leader's.
    pub(super) fn is_new(&self) -> bool {
        let is_empty = self.foreign.is_empty() && self.damaged.is_empty();
        is_empty && self.records.keys().all(|key| *key == Key::Leader)
    }

    pub(super) fn cluster(&self) -> Option<&ClusterRecord> {
        match &self.records.get(&Key::Cluster)?.record {
            Record::Cluster(record) => Some(record),
            _ => None,
        }
    }

    pub(super) fn setting(&self, name: &str) -> Option<&SettingRecord> {
        match &self.records.get(&Key::Setting(name.to_string()))?.record {
            Record::Setting(record) => Some(record),
            _ => None,
        }
    }

    /// Returns the revision of a key; `ZERO`: the key does not exist.
    pub(super) fn revision(&self, key: &Key) -> StateRevision {
        if let Some(edit) = self.edits.get(key) {
            return match edit.text {
                Some(_) => edit.revision,
                None => StateRevision::ZERO,
            };
        }
        self.records.get(key).map_or(StateRevision::ZERO, |stored| stored.revision)
    }

    /// Returns all keys that begin with `prefix`, sorted as text.
    pub(super) fn listed(
        &self,
        prefix: &str,
    ) -> BTreeMap<String, (StateRevision, serde_json::Value)> {
        let known = self.records.iter().map(|(key, stored)| (key.to_string(), stored));
        let known = known.filter(|(key, _)| key.starts_with(prefix));
        let foreign = self.foreign.iter().filter(|(key, _)| key.starts_with(prefix));
        let parsed = |text: &String| {
            serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.clone()))
        };
        let damaged = self.damaged.keys().filter_map(|key| Some((key, self.edits.get(key)?)));
        let damaged = damaged.filter_map(|(key, edit)| {
            let text = edit.text.as_ref()?;
            Some((key.to_string(), (edit.revision, parsed(text))))
        });
        known
            .map(|(key, stored)| (key, (stored.revision, stored.record.to_json())))
            .chain(damaged.filter(|(key, _)| key.starts_with(prefix)))
            .chain(foreign.map(|(key, (revision, text))| (key.clone(), (*revision, parsed(text)))))
            .collect()
    }

    /// Returns a monitor of the cluster; removed monitors do not count.
    pub(super) fn monitor(&self, monitor: MonitorId) -> Option<&MonitorRecord> {
        self.monitor_record(monitor).filter(|record| !record.removed)
    }

    pub(super) fn monitors(&self) -> impl Iterator<Item = &MonitorRecord> {
        self.monitor_records().filter(|record| !record.removed)
    }

    pub(super) fn has_removed_monitor(&self, monitor: MonitorId) -> bool {
        self.monitor_record(monitor).is_some_and(|record| record.removed)
    }

    pub(super) fn counter(&self, name: CounterName) -> u64 {
        match self.records.get(&Key::Counter(name)).map(|stored| &stored.record) {
            Some(Record::Counter(record)) => record.last,
            _ => 0,
        }
    }

    /// Returns the id that a counter issues next; an error if it has issued the last one.
    pub(super) fn next_id(&self, name: CounterName) -> Result<u64, Failure> {
        let next = self.counter(name) + 1;
        if next <= name.last() {
            return Ok(next);
        }
        let message = format!("{} has issued its last id", Key::Counter(name));
        Err(failure("invalid", message, "this cluster has used up its ids: create a new cluster"))
    }

    /// Whether this store may already have issued the id.
    pub(super) fn may_be_given(&self, name: CounterName, id: u64) -> bool {
        id <= self.counter(name) || self.damaged.contains_key(&Key::Counter(name))
    }

    pub(super) fn fences(&self, pool: PoolId) -> Option<&FenceRecord> {
        match &self.records.get(&Key::Fence(pool))?.record {
            Record::Fence(record) => Some(record),
            _ => None,
        }
    }

    pub(super) fn pool_named(&self, name: &str) -> Option<&PoolRecord> {
        self.pools().find(|record| record.pool.name == name)
    }

    pub(super) fn image_named(&self, name: &str) -> Option<&ImageRecord> {
        match &self.records.get(&Key::ImageName(name.to_string()))?.record {
            Record::ImageName(record) => self.image(record.image),
            _ => None,
        }
    }

    pub(super) fn sessions_of(&self, used: Used) -> impl Iterator<Item = &SessionRecord> {
        self.sessions().filter(move |session| session.used == used)
    }

    /// Returns the pool that a session uses, or that has the image which it uses.
    pub(super) fn pool_used(&self, used: Used) -> Option<PoolId> {
        match used {
            Used::Image(image) => self.image(image).map(|record| record.info.pool),
            Used::Pool(pool) => Some(pool),
        }
    }

    pub(super) fn shards(&self, pool: PoolId) -> impl Iterator<Item = &PgShardRecord> {
        self.records.range(Key::PgShard(pool, 0)..).map_while(move |(_, stored)| {
            match &stored.record {
                Record::PgShard(record) if record.pool == pool => Some(record),
                _ => None,
            }
        })
    }

    pub(super) fn pgs(&self, pool: PoolId) -> impl Iterator<Item = &PgEntry> {
        self.shards(pool).flat_map(|shard| &shard.pgs)
    }

    pub(super) fn pg(&self, pg: PgId) -> Option<&PgEntry> {
        let key = Key::PgShard(pg.pool, pg.number / PG_SHARD_SIZE);
        match &self.records.get(&key)?.record {
            Record::PgShard(record) => record.pgs.get((pg.number % PG_SHARD_SIZE) as usize),
            _ => None,
        }
    }

    /// Returns the OSDs planned for a PG.
    pub(super) fn targets_of(&self, pg: PgId) -> Option<Vec<OsdId>> {
        let key = Key::PgShard(pg.pool, pg.number / PG_SHARD_SIZE);
        let index = (pg.number % PG_SHARD_SIZE) as usize;
        match &self.records.get(&key)?.record {
            Record::PgShard(record) if index < record.pgs.len() => Some(record.targets_of(index)),
            _ => None,
        }
    }

    /// Returns the highest revision that any OSD's entry has ever had; 0 if there has never been an OSD.
    pub(super) fn osd_revision_max(&self) -> u64 {
        let removed = self.counter(CounterName::OsdRevision);
        self.osds().map(|osd| osd.info.revision).max().unwrap_or(0).max(removed)
    }

    /// Returns the OSD entries with a revision above `watermark`.
    pub(super) fn osd_delta(&self, watermark: u64) -> MapDelta {
        let changed = self.osds().filter(|osd| osd.info.revision > watermark);
        MapDelta { osds: changed.map(|osd| osd.info.clone()).collect(), ..MapDelta::default() }
    }

    /// Returns the ids of all OSDs that were ever removed; empty if none was removed after `watermark`. Ids
    /// are never reused, so an id that was issued and has no record belongs to a removed OSD.
    pub(super) fn removed_osds(&self, watermark: u64) -> Vec<OsdId> {
        if self.counter(CounterName::OsdRevision) <= watermark {
            return Vec::new();
        }
        let last = u32::try_from(self.counter(CounterName::Osd)).unwrap_or(u32::MAX);
        let given = (1..=last).filter_map(OsdId::new);
        given.filter(|osd| self.osd(*osd).is_none()).collect()
    }

    /// Whether this store has not yet issued this revision of the pool's map.
    pub(super) fn lacks_map(&self, pool: PoolId, revision: MapRevision) -> bool {
        match self.pool(pool) {
            Some(record) => record.revision < revision,
            // Ids are never reused: an issued id without a record belongs to a removed pool.
            None => !self.may_be_given(CounterName::Pool, u64::from(pool.get())),
        }
    }

    /// Returns the revision that added the pool's newest fence. A receiver that has this revision has all
    /// fences.
    pub(super) fn fence_revision(&self, pool: PoolId) -> MapRevision {
        let fences = self.fences(pool);
        fences.map_or(MapRevision::ZERO, |record| {
            let newest = record.fences.last().map_or(MapRevision::ZERO, |fence| fence.revision);
            newest.max(record.ranges_revision)
        })
    }

    /// Returns the changes of the pool's map after `since`; `None` if there are none. Every entry and fence
    /// includes the revision that added it, so no history is kept.
    pub(super) fn pool_delta(&self, pool: PoolId, since: MapRevision) -> Option<PoolDelta> {
        let record = self.pool(pool).filter(|record| record.revision > since)?;
        let pgs = self.pgs(pool).filter(|entry| entry.revision > since).cloned().collect();
        let fenced = self.fences(pool);
        let fences = fenced.map_or(&[][..], |record| &record.fences);
        let fences = fences.iter().filter(|fence| fence.revision > since);
        let ranges = fenced.filter(|record| record.ranges_revision > since);
        Some(PoolDelta {
            since,
            revision: record.revision,
            pool: record.pool.clone(),
            pgs,
            fences: fences.map(|fence| fence.session).collect(),
            fence_ranges: ranges.map_or_else(Vec::new, |record| record.ranges.clone()),
        })
    }

    /// Applies the writes of a committed transaction.
    pub(super) fn commit(&mut self, writes: Vec<Write>, revision: StateRevision) {
        for write in writes {
            self.edits.remove(&write.key());
            self.damaged.remove(&write.key());
            match write {
                Write::Put(record) => {
                    self.insert(record.key(), Stored { revision, record });
                }
                Write::Delete(key) => {
                    self.remove(&key);
                }
            }
        }
    }
}

/// Whether a setting may be in force. A setting that this version does not recognize is kept for
/// other versions.
fn is_in_range(record: &SettingRecord) -> bool {
    Setting::named(&record.name).is_none_or(|setting| setting.check(record.value).is_ok())
}

/// One write of a [`Batch`].
#[derive(Clone, Debug)]
pub(super) enum Write {
    Put(Record),
    Delete(Key),
}

impl Write {
    /// Whether OSDs must be informed that their statistics periods are saved.
    pub(super) fn saves_stats(&self) -> bool {
        matches!(self.key(), Key::Stats(..))
    }

    /// Whether the write changes the map, so that the map's receivers must be informed.
    pub(super) fn changes_map(&self) -> bool {
        let puts = matches!(self, Write::Put(Record::Osd(_) | Record::Pool(_)));
        puts || matches!(self, Write::Delete(Key::Osd(_) | Key::Pool(_)))
    }

    /// Whether the write changes a setting.
    pub(super) fn changes_settings(&self) -> bool {
        matches!(self.key(), Key::Setting(_))
    }

    pub(super) fn key(&self) -> Key {
        match self {
            Write::Put(record) => record.key(),
            Write::Delete(key) => key.clone(),
        }
    }
}

/// The writes of one transaction, which compares the leader's key and every key that it writes. The
/// first write is the transaction's number, under `change`.
#[derive(Debug)]
pub(super) struct Batch {
    transaction: Transaction,
    writes: Vec<Write>,
}

impl Batch {
    pub(super) fn new(committed: &CommittedState) -> Batch {
        let change = committed.change();
        let next = change.with(change.last + 1, committed.reign);
        Batch::replacing_change(committed, next)
    }

    /// Begins a transaction of a recovery, whose number continues that of the recovered store.
    pub(super) fn replacing_change(committed: &CommittedState, change: ChangeRecord) -> Batch {
        let mut transaction = Transaction::new();
        if !planted::on(Bug::LeadershipNotCompared) {
            transaction.compare(Key::Leader.to_string(), committed.revision(&Key::Leader));
        }
        let mut batch = Batch { transaction, writes: Vec::new() };
        batch.put(committed, Record::Change(change));
        batch
    }

    /// Whether the batch writes nothing except its number.
    pub(super) fn is_empty(&self) -> bool {
        self.writes.len() <= 1
    }

    /// Adds the writes if all of them fit; `false`: none was added.
    #[must_use]
    pub(super) fn try_add(&mut self, committed: &CommittedState, writes: Vec<Write>) -> bool {
        let operation = |write: &Write| match write {
            Write::Put(record) => Operation::Put {
                key: record.key().to_string(),
                value: record.to_json().to_string(),
                lease: None,
            },
            Write::Delete(key) => Operation::Delete { key: key.to_string() },
        };
        let operations: Vec<Operation> = writes.iter().map(operation).collect();
        if !self.transaction.has_room_for(&operations) {
            return false;
        }
        for (write, operation) in writes.into_iter().zip(operations) {
            self.transaction.write(operation, committed.revision(&write.key()));
            self.writes.push(write);
        }
        true
    }

    /// Adds writes that always fit, because their sizes are limited.
    pub(super) fn add(&mut self, committed: &CommittedState, writes: Vec<Write>) {
        let added = self.try_add(committed, writes);
        assert!(added, "limits keep these records below a transaction");
    }

    pub(super) fn put(&mut self, committed: &CommittedState, record: Record) {
        self.add(committed, vec![Write::Put(record)]);
    }

    pub(super) fn delete(&mut self, committed: &CommittedState, key: Key) {
        self.add(committed, vec![Write::Delete(key)]);
    }

    /// Takes the next id from a counter.
    pub(super) fn next_id(
        &mut self,
        committed: &CommittedState,
        name: CounterName,
    ) -> Result<u64, Failure> {
        let last = committed.next_id(name)?;
        self.put(committed, Record::Counter(CounterRecord { name, last, rest: Rest::new() }));
        Ok(last)
    }

    pub(super) fn into_parts(self) -> (Transaction, Vec<Write>) {
        (self.transaction, self.writes)
    }
}
