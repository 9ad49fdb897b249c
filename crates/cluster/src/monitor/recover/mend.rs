//! A state store that is damaged: it has a key that cannot be used, or records that do not fit together,
//! and they were so when this monitor first read them. (What another hand does while a monitor leads is
//! undone from what that knows: see `edit.rs`.)
//!
//! It is treated as one that is older than what OSDs know: nothing is guessed and nothing is changed, no OSD
//! joins, nobody is sent a map. Whatever another hand writes then makes the monitor read everything anew;
//! and `state recover` takes what lacks from OSDs.
//!
//! | of a damaged key | the recovery takes |
//! |---|---|
//! | `pg/`, `fence/`, `index/` | what it makes of what OSDs know, as ever |
//! | `lock/` | nothing: sessions of that image end, for one of them may have been lazy |
//! | `task/` | nothing: an old one may delete what is in use again |
//! | `image/` | the newest copy of it, and no task of that volume: its size may have been another one then |
//! | `pool/` | the newest copy of it that an OSD has, or what an OSD's map says |
//! | others | the newest copy of it |
//!
//! Invariant: no volume, pool or counter is left out. Without a copy the recovery is refused.

use std::collections::BTreeSet;

use base::{ImageId, PoolId};

use super::{Draft, Failure, failure};
use crate::copy::{is_copied, kind_of};
use crate::map::Pool;
use crate::monitor::Monitor;
use crate::records::{CounterRecord, Key, PoolRecord, Record, Rest};

/// What to do about a store that is damaged.
pub(super) const DAMAGED_HINT: &str = "start all OSDs, then `ashlar state recover` takes it from what they \
                                       know; or write with etcdctl what stood there last: an older value \
                                       would be believed, and data lost";

impl Monitor {
    /// Another hand has written what may mend the store.
    pub(in crate::monitor) fn read_all_anew(&mut self) {
        self.recovery.is_outdated = true;
    }
}

impl Draft<'_> {
    /// Takes what lacks because it is damaged in the store.
    pub(super) fn mend(&mut self) -> Result<(), Failure> {
        let contents = self.contents;
        if !contents.is_damaged() {
            return Ok(());
        }
        self.take_counters();
        let is_lacking = |draft: &Draft<'_>, key: &Key| is_copied(key) && !draft.is_from_copy(key);
        for key in contents.damaged_keys().filter(|key| is_lacking(self, key)).collect::<Vec<_>>() {
            match key {
                Key::Lock(_) | Key::Task(_) => {}
                Key::Pool(pool) => self.take_pool(*pool),
                Key::Image(image) => self.take_image(*image),
                _ => self.records.extend(self.spare(key).map(|record| (key.clone(), record))),
            }
            match key {
                _ if self.records.contains_key(key) => self.mended.push(key.to_string()),
                Key::Pool(_) | Key::Image(_) | Key::Counter(_) | Key::RemovedPool(_) => {
                    return Err(nobody_told(key));
                }
                _ => self.dropped.push(key.to_string()),
            }
        }
        for image in contents.named_images().map(|(_, image)| image).collect::<BTreeSet<_>>() {
            let key = Key::Image(image);
            if !self.records.contains_key(&key) && !self.is_from_copy(&key) {
                self.take_image(image);
                if !self.records.contains_key(&key) {
                    return Err(nobody_told(&key));
                }
                self.mended.push(key.to_string());
            }
        }
        for key in contents.damaged_keys().filter(|key| is_lacking(self, key)).collect::<Vec<_>>() {
            if let Key::Lock(image) = key {
                self.end_sessions_of(*image);
            }
        }
        let images = self.records.values().filter_map(|record| match record {
            Record::Image(record) => Some(record.info.pool),
            _ => None,
        });
        let pools: BTreeSet<PoolId> = images.collect();
        for pool in pools {
            let key = Key::Pool(pool);
            if !self.records.contains_key(&key) && !self.is_from_copy(&key) {
                self.take_pool(pool);
                self.mended.push(key.to_string());
            }
        }
        Ok(())
    }

    /// Whether the key's kind is that of a copy which the store lacks.
    fn is_from_copy(&self, key: &Key) -> bool {
        let copy = self.recovery.copy.as_ref();
        copy.is_some_and(|copy| !copy.lacks(kind_of(&key.to_string())))
    }

    /// What the newest copy has under a key.
    fn spare(&self, key: &Key) -> Option<Record> {
        let value = self.recovery.spare.as_ref()?.records.get(&key.to_string())?;
        Record::parse(key, &value.to_string()).ok()
    }

    /// Counters that are lower than copied ones were lowered by another hand.
    fn take_counters(&mut self) {
        let copied = self.recovery.spare.iter().flat_map(|copy| copy.records.keys());
        let copied = copied.filter_map(|text| match Key::parse(text)? {
            key @ Key::Counter(_) => self.spare(&key),
            _ => None,
        });
        for record in copied.collect::<Vec<_>>() {
            if let Record::Counter(CounterRecord { name, last, .. }) = record {
                let last = last.max(self.counter(name));
                self.put(Record::Counter(CounterRecord { name, last, rest: Rest::new() }));
            }
        }
    }

    fn take_pool(&mut self, pool: PoolId) {
        let told = self.told().flat_map(|told| &told.pools).filter(|seen| seen.pool.id == pool);
        let told = told.max_by_key(|seen| seen.revision).map(|seen| {
            let (pool, revision) = (seen.pool.clone(), seen.revision);
            Record::Pool(PoolRecord { pool, revision, planned_for: 0, rest: Rest::new() })
        });
        if let Some(record) = self.spare(&Key::Pool(pool)).or(told) {
            self.put(record);
        }
    }

    /// Data lies by it; OSDs have it of a monitor, and a record may have it of another hand.
    pub(super) fn keep_what_pools_never_change(&mut self) {
        for mut record in self.pools() {
            let mut told = self.told().flat_map(|told| &told.pools).map(|seen| &seen.pool);
            let Some(told) = told.find(|told| told.id == record.pool.id) else { continue };
            let frozen = |pool: &Pool| (pool.replicas, pool.pg_count, pool.block_size);
            if frozen(told) == frozen(&record.pool) {
                continue;
            }
            (record.pool.replicas, record.pool.pg_count) = (told.replicas, told.pg_count);
            record.pool.block_size = told.block_size;
            record.pool.min_size = record.pool.min_size.min(told.replicas);
            self.mended.push(Key::Pool(told.id).to_string());
            self.put(Record::Pool(record));
        }
    }

    /// A shrink since that copy is in the copy's size, or is not: its task may go on behind what is in use.
    fn take_image(&mut self, image: ImageId) {
        let key = Key::Image(image);
        let Some(record) = self.spare(&key) else { return };
        self.records
            .retain(|_, record| !matches!(record, Record::Task(task) if task.image == image));
        self.records.insert(key, record);
    }

    /// Ids without a record are fenced.
    fn end_sessions_of(&mut self, image: ImageId) {
        let mut ended_count = 0;
        self.records.retain(|_, record| match record {
            Record::Session(session) if session.image == image => {
                ended_count += usize::from(!session.ended);
                false
            }
            _ => true,
        });
        self.lock_ended_count += ended_count;
    }
}

fn nobody_told(key: &Key) -> Failure {
    let message = format!("no OSD has told what was in the damaged {key}");
    failure("invalid", message, DAMAGED_HINT)
}
