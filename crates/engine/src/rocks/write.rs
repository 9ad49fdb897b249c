//! The writing thread: batches in groups, creations, removals.
//!
//! A group is one write of RocksDB: all of it takes effect or nothing, and it is in one memtable of each family.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base::{Lsn, PoolId};
use rocksdb::{BoundColumnFamily, WriteBatch};

use super::range_deletion::{GroupPuts, RangeSearch};
use super::{Family, LSN_KEY, Shared, directory, options};
use crate::inflight::Lane;
use format::engine::{
    BATCH_SIZE_MAX, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp,
    FamilyFound, OpenError,
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
/// When a group has searched for the keys of its range deletions for so long, it writes the others as they
/// are; likewise when it has as much of a family as a batch can have.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(100);

pub(super) fn run(shared: &Shared) {
    let mut writer = Writer::new(shared, SEARCH_TIME_MAX);
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
    /// The searches for the keys of range deletions, by family.
    searches: BTreeMap<PoolId, RangeSearch>,
    search_time_max: Duration,
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
    /// What the search for the keys of range deletions took.
    search_time: Duration,
    /// What it has of each family.
    families: BTreeMap<PoolId, Part<'a>>,
    writes: Vec<(EngineOp, PoolId, Lsn, Fate)>,
}

struct Part<'a> {
    family: Arc<Family>,
    column_family: Arc<BoundColumnFamily<'a>>,
    puts: GroupPuts,
    /// The bytes written, and how many range deletions are among them.
    size: usize,
    range_count: u64,
    first: Option<Lsn>,
    last: Lsn,
}

impl<'a> Part<'a> {
    fn new(family: Arc<Family>, column_family: Arc<BoundColumnFamily<'a>>) -> Part<'a> {
        let last = family.applied();
        let puts = GroupPuts::default();
        Part { family, column_family, puts, size: 0, range_count: 0, first: None, last }
    }

    /// Adds a change to the write of the group.
    fn add(&mut self, change: &Change, batch: &mut WriteBatch) {
        self.size += change.size() + RECORD_OVERHEAD;
        match change {
            Change::Put { key, value } => {
                batch.put_cf(&self.column_family, key, value);
                self.puts.add(key.clone());
            }
            Change::Delete { key } => batch.delete_cf(&self.column_family, key),
            Change::DeleteRange { start, end } => {
                batch.delete_range_cf(&self.column_family, start, end);
                self.range_count += 1;
            }
        }
    }
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Shared, search_time_max: Duration) -> Writer<'a> {
        let (failed, searches) = (BTreeMap::new(), BTreeMap::new());
        Writer { shared, failed, searches, search_time_max }
    }

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
                entry.insert(Part::new(family, column_family))
            }
        };
        if lsn <= part.last {
            return Ok(Fate::Ended(Ok(())));
        }
        if self.failed.get(&id).is_some_and(|failed| *failed < lsn) {
            return Err(EngineError::Full);
        }
        let size_before = part.size;
        part.size += RECORD_OVERHEAD;
        for change in changes {
            let keys = match change {
                Change::DeleteRange { start, end }
                    if group.search_time < self.search_time_max && part.size < BATCH_SIZE_MAX =>
                {
                    let begun = Instant::now();
                    let search = self.searches.entry(id).or_default();
                    let place = (&self.shared.database, &part.column_family);
                    let keys = search.keys_in_range(&mut part.puts, place, start, end);
                    group.search_time += begun.elapsed();
                    keys
                }
                _ => None,
            };
            match keys {
                Some(keys) => {
                    let deletions = keys.into_iter().map(|key| Change::Delete { key });
                    deletions.for_each(|deletion| part.add(&deletion, &mut group.batch));
                }
                None => part.add(change, &mut group.batch),
            }
        }
        group.size += part.size - size_before;
        part.first.get_or_insert(lsn);
        part.last = lsn;
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
        for (id, part) in &group.families {
            self.searches.entry(*id).and_modify(|search| search.on_written(&part.puts));
        }
        if result.is_err() {
            self.searches.clear();
        }
        if result.is_ok() {
            for part in group.families.values() {
                let Some(first) = part.first else { continue };
                part.family.unflushed_size.fetch_add(part.size as u64, Ordering::AcqRel);
                part.family.unflushed_range_count.fetch_add(part.range_count, Ordering::AcqRel);
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
        self.shared.flush_if_due();
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
        self.searches.clear();
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
    use std::path::PathBuf;

    use format::engine::{Answer, Identity, Query};

    use super::super::{Rocks, Settings};
    use super::*;

    #[test]
    fn writes_wait_longer_the_further_compactions_are_behind() {
        assert_eq!(wait_of(0), Duration::ZERO);
        assert_eq!(wait_of(FIRST_FILES_FREE), Duration::ZERO);
        assert_eq!(wait_of(FIRST_FILES_FREE + 1), WAIT_BY_FILE);
        assert_eq!(wait_of(FIRST_FILES_FREE + 20), WAIT_BY_FILE * 20);
        assert_eq!(wait_of(u64::MAX), WAIT_BY_FILE * options::FIRST_FILES_STOP);
    }

    /// A directory that goes when the test ends.
    struct Directory(PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// An engine with an empty family, to which groups are written on the test's thread.
    struct Bench {
        engine: Rocks,
        /// Of the writing thread, what it knows from group to group.
        searches: BTreeMap<PoolId, RangeSearch>,
        lsn: u64,
        search_time_max: Duration,
        _directory: Directory,
    }

    impl Bench {
        fn new(test: &str) -> Bench {
            let name = format!("ashlar-engine-write-{}-{test}", std::process::id());
            let directory = Directory(std::env::temp_dir().join(name));
            let identity = Identity { engine: 1, store: 2 };
            let settings = Settings { low_space_min: 0, ..Settings::default() };
            Rocks::create(&directory.0, identity).expect("a new directory");
            let opened = Rocks::open(&directory.0, identity, settings, || {});
            let (engine, _) = opened.expect("it was created");
            // The machine may be busy.
            let search_time_max = Duration::MAX;
            let searches = BTreeMap::new();
            let mut bench =
                Bench { engine, searches, lsn: 0, search_time_max, _directory: directory };
            let (op, compression) = (EngineOp(0), Compression::None);
            bench.turn([EngineEffect::Create { op, family: PoolId::FIRST, compression }]);
            bench
        }

        fn turn(&mut self, requests: impl IntoIterator<Item = EngineEffect>) {
            let mut requests: VecDeque<EngineEffect> = requests.into_iter().collect();
            let mut writer = Writer::new(&self.engine.shared, self.search_time_max);
            writer.searches = std::mem::take(&mut self.searches);
            writer.turn(&mut requests);
            self.searches = writer.searches;
            assert!(requests.is_empty(), "it was more than one group");
        }

        /// Writes batches in one group.
        fn group(&mut self, batches: impl IntoIterator<Item = Vec<Change>>) {
            let mut requests = Vec::new();
            for changes in batches {
                self.lsn += 1;
                let (op, family, lsn) = (EngineOp(self.lsn), PoolId::FIRST, Lsn::new(self.lsn));
                let changes = changes.into();
                requests.push(EngineEffect::Write { op, family, lsn, changes });
            }
            self.turn(requests);
        }

        /// Returns how many records there are.
        fn count(&self) -> usize {
            let (start, count_max) = (Vec::new(), usize::MAX);
            let scan = Query::Scan { start, end: None, count_max, size_max: usize::MAX };
            match self.engine.shared.read_on_thread(EngineOp(0), PoolId::FIRST, &[scan]) {
                EngineEvent::Read { result: Ok(answers), .. } => match answers.as_slice() {
                    [Answer::Records { records, more: false }] => records.count(),
                    answers => unreachable!("{answers:?}"),
                },
                event => unreachable!("{event:?}"),
            }
        }

        /// Returns how many range deletions RocksDB has got.
        fn range_count(&self) -> u64 {
            let family = self.engine.shared.family(PoolId::FIRST).expect("it was created");
            family.unflushed_range_count.load(Ordering::Acquire)
        }
    }

    impl Bench {
        /// Returns how often RocksDB was searched.
        fn search_count(&self) -> u32 {
            self.searches.get(&PoolId::FIRST).map_or(0, |search| search.count)
        }
    }

    fn key(number: u32) -> Vec<u8> {
        format!("{number:05}").into_bytes()
    }

    fn put(number: u32) -> Change {
        Change::Put { key: key(number), value: b"x".to_vec() }
    }

    fn delete(number: u32) -> Change {
        Change::Delete { key: key(number) }
    }

    fn delete_range(start: u32, end: u32) -> Change {
        Change::DeleteRange { start: key(start), end: key(end) }
    }

    #[test]
    fn a_range_of_few_keys_is_deleted_key_by_key() {
        let mut bench = Bench::new("few");
        bench.group([(0..66).map(put).collect()]);
        bench.group([vec![delete_range(100, 200)], vec![delete_range(1, 65)]]);
        assert_eq!((bench.count(), bench.range_count()), (2, 0));
        bench.group([(100..165).map(put).collect()]);
        bench.group([vec![delete_range(100, 165)]]);
        assert_eq!((bench.count(), bench.range_count()), (2, 1));
    }

    /// No iterator sees what a group has put before the range deletion.
    #[test]
    fn a_range_deletion_deletes_what_its_group_has_put_before() {
        let mut bench = Bench::new("group");
        bench.group([vec![put(2), put(3)]]);
        bench.group([
            vec![put(1), put(4), delete_range(4, 5), put(9)],
            vec![delete(3), put(5)],
            vec![delete_range(1, 6), put(6)],
            vec![put(2), delete_range(2, 3)],
        ]);
        assert_eq!((bench.count(), bench.range_count()), (2, 0));
        // 40 of RocksDB and 40 of the group are too many, but not if some are the same.
        bench.group([(100..140).map(put).collect()]);
        bench.group([(140..180).map(put).collect(), vec![delete_range(100, 180)]]);
        assert_eq!((bench.count(), bench.range_count()), (2, 1));
        bench.group([(200..260).map(put).collect()]);
        bench.group([(200..230).map(put).collect(), vec![delete_range(200, 300)]]);
        assert_eq!((bench.count(), bench.range_count()), (2, 1));
    }

    #[test]
    fn behind_many_deleted_keys_a_range_is_deleted_as_a_range() {
        let mut bench = Bench::new("skipped");
        bench.group([(0..1500).map(put).collect(), (0..1499).map(delete).collect()]);
        assert_eq!(bench.count(), 1);
        bench.group([vec![delete_range(0, 1500)]]);
        assert_eq!((bench.count(), bench.range_count()), (0, 1));
        // What lies behind its end is not looked at.
        bench.group([vec![put(0), delete_range(0, 1)], vec![delete_range(0, 1)]]);
        assert_eq!((bench.count(), bench.range_count()), (0, 1));
    }

    /// The search is bounded: what a range deletion has deleted may count again.
    #[test]
    fn a_range_is_deleted_again_as_a_range() {
        let mut bench = Bench::new("again");
        bench.group([(0..65).map(put).collect()]);
        bench.group([vec![delete_range(0, 65)], vec![put(7)], vec![delete_range(0, 65)]]);
        assert_eq!((bench.count(), bench.range_count()), (0, 2));
    }

    #[test]
    fn a_group_does_not_search_for_long() {
        let mut bench = Bench::new("long");
        bench.search_time_max = Duration::from_nanos(1);
        bench.group([vec![put(1), put(5)], vec![delete_range(0, 2)], vec![delete_range(5, 6)]]);
        assert_eq!((bench.count(), bench.range_count()), (0, 1));
    }
    /// Around an empty range nothing is searched again, up to the next keys.
    #[test]
    fn what_is_known_to_be_empty_is_not_searched_until_something_is_put_there() {
        let mut bench = Bench::new("empty");
        bench.group([vec![put(10), put(50), put(60)]]);
        bench.group([vec![delete_range(20, 22)], vec![delete_range(11, 15), delete_range(40, 50)]]);
        assert_eq!((bench.search_count(), bench.range_count()), (1, 0));
        // What this group puts is deleted, and what the group before has put.
        bench.group([vec![put(30), delete_range(30, 31), put(31)]]);
        assert_eq!((bench.search_count(), bench.count()), (1, 4));
        bench.group([vec![delete_range(20, 30), delete_range(31, 32), delete_range(32, 33)]]);
        assert_eq!((bench.search_count(), bench.count()), (2, 3));
        bench.group([vec![delete_range(50, 51), delete_range(51, 60), delete_range(70, 80)]]);
        assert_eq!((bench.search_count(), bench.count()), (5, 2));
        // What begins otherwise is another place: keys 99 and 99999 are no neighbours of key 100.
        bench.group([vec![put(99_999)], vec![delete_range(61, 99)]]);
        assert_eq!(bench.search_count(), 5);
        bench.group([vec![delete_range(100, 101), delete_range(99_998, 99_999)]]);
        assert_eq!((bench.search_count(), bench.count()), (7, 3));
    }

    #[test]
    fn a_new_family_of_the_same_pool_is_searched_anew() {
        let mut bench = Bench::new("anew");
        bench.group([vec![delete_range(20, 22)]]);
        let (op, family, compression) = (EngineOp(0), PoolId::FIRST, Compression::None);
        bench.turn([EngineEffect::Remove { op, family }]);
        assert!(bench.searches.is_empty());
        bench.turn([EngineEffect::Create { op, family, compression }]);
        bench.group([vec![put(21)], vec![delete_range(20, 22)]]);
        assert_eq!((bench.search_count(), bench.count()), (1, 0));
    }

    /// The keys of many objects that were removed lie between those that are left.
    #[test]
    fn beside_many_deleted_keys_neighbours_are_not_looked_at() {
        let mut bench = Bench::new("pause");
        bench.group([(0..200).map(put).collect(), (1..199).map(delete).collect()]);
        bench.group([vec![delete_range(1, 3), delete_range(1, 3)]]);
        assert_eq!((bench.search_count(), bench.range_count(), bench.count()), (2, 0, 2));
    }
}
