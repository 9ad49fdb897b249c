//! The writing thread: batches in groups, creations, removals.
//!
//! A group is one write of RocksDB: all of it takes effect or nothing, and it is in one memtable of each family.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use base::{Lsn, PoolId};
use rocksdb::{BoundColumnFamily, WriteBatch};

use super::{Family, LSN_KEY, Shared, directory, options};
use crate::inflight::Lane;
use format::engine::{
    Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FamilyFound, OpenError,
};

/// RocksDB's name for the count of files at the first level.
const FIRST_FILES: &str = "rocksdb.num-files-at-level0";
/// No further batch joins a group of so many bytes.
const GROUP_SIZE: usize = 1 << 20;
/// While a family has more files at its first level, its writes are slowed.
const FIRST_FILES_FREE: u64 = 16;
/// How long a mebibyte waits for each file beyond that. Half of the files that stop RocksDB make 5 MiB per
/// second of it.
const WAIT_BY_FILE: Duration = Duration::from_millis(3);
/// No group waits longer, so that the engine can be closed.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// What a record takes in a memtable, besides its key and its value.
const RECORD_OVERHEAD: usize = 64;

pub(super) fn run(shared: &Shared) {
    let mut writer = Writer { shared, failed: BTreeMap::new() };
    while let Some(mut requests) = shared.writes.pop_all() {
        while !requests.is_empty() {
            writer.turn(&mut requests);
            shared.look_at_space();
        }
    }
}

/// How long a mebibyte waits in a family with so many files at its first level.
fn wait_of(first_files: u64) -> Duration {
    let beyond = first_files.saturating_sub(FIRST_FILES_FREE);
    WAIT_BY_FILE * u32::try_from(beyond).unwrap_or(u32::MAX).min(options::FIRST_FILES_STOP)
}

impl Shared {
    /// How long a mebibyte of a family waits, because compactions do not keep up. Of a damaged family nothing
    /// is compacted.
    pub(super) fn compaction_wait(
        &self,
        family: &Family,
        column_family: &Arc<BoundColumnFamily<'_>>,
    ) -> Duration {
        if family.is_damaged {
            return Duration::ZERO;
        }
        let count = self.database.property_value_cf(column_family, FIRST_FILES).ok().flatten();
        wait_of(count.and_then(|count| count.parse().ok()).unwrap_or(0))
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    /// Of each family whose write failed, the lsn of that write, until it is repeated.
    failed: BTreeMap<PoolId, Lsn>,
}

/// What becomes of a write.
enum Fate {
    /// It is in the group.
    Joined,
    /// It ended.
    Ended(Result<(), EngineError>),
}

/// The batches that become one write of RocksDB.
#[derive(Default)]
struct Group<'a> {
    batch: WriteBatch,
    size: usize,
    /// Of each family, the handle, the bytes written, and the last lsn.
    families: BTreeMap<PoolId, Part<'a>>,
    writes: Vec<(EngineOp, PoolId, Lsn, Fate)>,
}

struct Part<'a> {
    family: Arc<Family>,
    column_family: Arc<BoundColumnFamily<'a>>,
    size: usize,
    first: Option<Lsn>,
    last: Lsn,
}

impl<'a> Writer<'a> {
    /// Carries out the first request, or the group of writes at the front.
    fn turn(&mut self, requests: &mut VecDeque<EngineEffect>) {
        let mut group = Group::default();
        while group.size < GROUP_SIZE {
            match requests.pop_front() {
                Some(EngineEffect::Write { op, family, lsn, changes }) => {
                    let fate = match self.join(&mut group, family, lsn, &changes) {
                        Ok(fate) => fate,
                        Err(error) => Fate::Ended(Err(error)),
                    };
                    group.writes.push((op, family, lsn, fate));
                }
                Some(other) if group.writes.is_empty() => return self.change_families(other),
                Some(other) => {
                    requests.push_front(other);
                    break;
                }
                None => break,
            }
        }
        self.write(group);
    }

    /// Adds a batch to the group, or says why it ends without being written.
    fn join(
        &mut self,
        group: &mut Group<'a>,
        id: PoolId,
        lsn: Lsn,
        changes: &[Change],
    ) -> Result<Fate, EngineError> {
        self.shared.usable()?;
        let part = match group.families.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let family = self.shared.family(id)?;
                let column_family = self.shared.column_family(&family)?;
                let last = family.applied();
                entry.insert(Part { family, column_family, size: 0, first: None, last })
            }
        };
        if lsn <= part.last {
            return Ok(Fate::Ended(Ok(())));
        }
        if self.failed.get(&id).is_some_and(|failed| *failed < lsn) {
            return Err(EngineError::Full);
        }
        for change in changes {
            match change {
                Change::Put { key, value } => group.batch.put_cf(&part.column_family, key, value),
                Change::Delete { key } => group.batch.delete_cf(&part.column_family, key),
                Change::DeleteRange { start, end } => {
                    group.batch.delete_range_cf(&part.column_family, start, end);
                }
            }
        }
        let size: usize = changes.iter().map(|change| change.size() + RECORD_OVERHEAD).sum();
        part.size += size + RECORD_OVERHEAD;
        part.first.get_or_insert(lsn);
        part.last = lsn;
        group.size += size;
        Ok(Fate::Joined)
    }

    fn write(&mut self, mut group: Group<'a>) {
        let is_joined = |fate: &Fate| matches!(fate, Fate::Joined);
        let mut result = Ok(());
        if group.writes.iter().any(|(.., fate)| is_joined(fate)) {
            for part in group.families.values().filter(|part| part.first.is_some()) {
                let lsn = part.last.get().to_le_bytes();
                group.batch.put_cf(&part.column_family, LSN_KEY, lsn);
            }
            self.wait_for_compactions(&group);
            let written = self.shared.database.write_opt(group.batch, &options::write_options());
            result = written.map_err(|error| self.shared.judge("write", &error));
        }
        if result.is_ok() {
            for part in group.families.values() {
                let Some(first) = part.first else { continue };
                part.family.unflushed_size.fetch_add(part.size as u64, Ordering::AcqRel);
                part.family.progress().on_written(first, part.last);
            }
        }
        let mut told = Vec::with_capacity(group.writes.len());
        for (op, family, lsn, fate) in group.writes {
            let result = match fate {
                Fate::Ended(result) => result,
                Fate::Joined => result.clone(),
            };
            match &result {
                Ok(()) => {
                    if self.failed.get(&family).is_some_and(|failed| *failed <= lsn) {
                        self.failed.remove(&family);
                    }
                }
                Err(EngineError::NoFamily) => {}
                Err(_) => {
                    self.failed.entry(family).or_insert(lsn);
                }
            }
            told.push((Some(Lane::Write), EngineEvent::Done { op, result }));
        }
        self.shared.tell_all(told);
        self.shared.flush_if_large();
    }

    /// Slows the writes of families that compactions do not keep up with. RocksDB would do so, but it lets
    /// flushes wait meanwhile, too, and those hold up the journal.
    fn wait_for_compactions(&self, group: &Group<'a>) {
        let written = group.families.values().filter(|part| part.first.is_some());
        let waits =
            written.map(|part| self.shared.compaction_wait(&part.family, &part.column_family));
        let wait = waits.max().unwrap_or_default();
        if !wait.is_zero() {
            let share = group.size as f64 / f64::from(1 << 20);
            thread::sleep(wait.mul_f64(share).min(WAIT_MAX));
        }
    }

    fn change_families(&mut self, effect: EngineEffect) {
        let (op, result) = match effect {
            EngineEffect::Create { op, family, compression } => {
                (op, self.create_family(family, compression))
            }
            EngineEffect::Remove { op, family } => (op, self.remove_family(family)),
            effect => unreachable!("{effect:?} changes no family"),
        };
        self.shared.tell(Some(Lane::Write), EngineEvent::Done { op, result });
    }

    fn create_family(&mut self, id: PoolId, compression: Compression) -> Result<(), EngineError> {
        self.shared.usable()?;
        if let Ok(family) = self.shared.family(id) {
            let found = family.compression;
            let is_same = found == compression;
            return if is_same { Ok(()) } else { Err(EngineError::OtherCompression { found }) };
        }
        self.refuse_if_full(id)?;
        let found = FamilyFound { family: id, compression, lsn: Lsn::ZERO, is_damaged: false };
        let family = Family::new(found);
        let options =
            options::family_options(&self.shared.settings, &self.shared.cache, compression);
        let created = self.shared.database.create_cf(&family.name, &options);
        created.map_err(|error| self.shared.judge(&format!("creation of pool {id}"), &error))?;
        let mut families = self.shared.families.write().unwrap_or_else(PoisonError::into_inner);
        families.insert(id, family);
        Ok(())
    }

    /// RocksDB would change its families although it refuses writes. If it could not write its manifest then,
    /// it would not get going again: an assertion of it fails.
    fn refuse_if_full(&self, id: PoolId) -> Result<(), EngineError> {
        let probed = self.shared.probe();
        probed.map_err(|error| self.shared.judge(&format!("families, pool {id}"), &error))
    }

    fn remove_family(&mut self, id: PoolId) -> Result<(), EngineError> {
        self.shared.usable()?;
        let Ok(family) = self.shared.family(id) else { return Ok(()) };
        self.refuse_if_full(id)?;
        if family.is_damaged || family.is_noted.load(Ordering::Relaxed) {
            // Before: the next family of this name is not damaged.
            let forgotten = {
                let _guard = super::lock(&self.shared.damaged_file);
                directory::remove_damaged(&self.shared.directory, &family.name)
            };
            forgotten.map_err(|error| match error {
                OpenError::Full(_) => EngineError::Full,
                error => self.shared.poison(error.to_string()),
            })?;
        }
        let removed = self.shared.database.drop_cf(&family.name);
        removed.map_err(|error| self.shared.judge(&format!("removal of pool {id}"), &error))?;
        self.failed.remove(&id);
        let mut families = self.shared.families.write().unwrap_or_else(PoisonError::into_inner);
        families.remove(&id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_wait_longer_the_further_compactions_are_behind() {
        assert_eq!(wait_of(0), Duration::ZERO);
        assert_eq!(wait_of(FIRST_FILES_FREE), Duration::ZERO);
        assert_eq!(wait_of(FIRST_FILES_FREE + 1), WAIT_BY_FILE);
        assert_eq!(wait_of(FIRST_FILES_FREE + 20), WAIT_BY_FILE * 20);
        assert_eq!(wait_of(u64::MAX), WAIT_BY_FILE * options::FIRST_FILES_STOP);
    }
}
