//! RocksDB behind the engine's door, on threads of its own.
//!
//! ```text
//!   submit ─▶ writes  ──▶ one thread: batches in groups, families ─┐
//!          ─▶ flushes ──▶ one thread                               ├─▶ events ─▶ wake, take_events
//!          ─▶ reads   ──▶ `read_threads` threads                   ┘
//!                         one thread: space, and what gets some back
//!          ─▶ reads from memory: at once
//! ```
//!
//! Invariants
//!   1. Only the writing thread changes families and their records. It publishes the lsn of a family (`applied`) after
//!      RocksDB has the batch, and before the batch's event.
//!   2. `flushed` of a family is a value that `applied` had before a flush began that succeeded. Every batch above it
//!      is at or above `unflushed`.
//!   3. After a failure that may have changed something, the engine is poisoned, and every request ends with that.

// This file and those below it are the edge: they use threads and files.
#![allow(clippy::disallowed_methods)]

mod directory;
mod empty_ranges;
mod options;
mod queue;
mod range_deletion;
mod read;
mod read_only;
mod space;
mod statistics;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::{Lsn, PoolId};
use rocksdb::{BoundColumnFamily, Cache, DBWithThreadMode, ErrorKind, MultiThreaded, Options};

use crate::inflight::{Finished, Inflight, Lane};
use directory::Opened;
use format::engine::{
    Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FamilyFound, Identity, OpenError,
};
pub use options::Settings;
use queue::{Popped, Queue};
use read::MemoryTime;
pub use read_only::RocksReadOnly;
use space::SpaceWatch;

type Database = DBWithThreadMode<MultiThreaded>;

/// The key of the record that holds a family's lsn. Keys of callers are not empty.
const LSN_KEY: &[u8] = b"";
/// How often the flushing thread looks for failures of RocksDB's own work.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How often a flush that RocksDB did not wait for is looked at.
const MEMTABLE_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// How often such a flush is requested again.
const FLUSH_REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A family is flushed when so many range deletions lie in its memtable: each read after a new one sorts all.
const RANGE_COUNT_MAX: u64 = 1000;

/// An open engine.
pub struct Rocks {
    shared: Arc<Shared>,
    inflight: Inflight,
    memory_time: MemoryTime,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads see.
struct Shared {
    directory: PathBuf,
    database: Database,
    /// Has the counters of the statistics.
    options: Options,
    cache: Cache,
    settings: Settings,
    families: RwLock<BTreeMap<PoolId, Arc<Family>>>,
    /// What failed first.
    poison: OnceLock<String>,
    writes: Queue<EngineEffect>,
    reads: Queue<EngineEffect>,
    flushes: Queue<FlushRequest>,
    /// Nothing comes through it: it says when the engine closes.
    reclaims: Queue<()>,
    /// Whether a flush of our own is in the queue.
    is_flush_queued: AtomicBool,
    background_error_count: AtomicU64,
    space: Mutex<SpaceWatch>,
    /// Held while the list of damaged column families is written.
    damaged_file: Mutex<()>,
    events: Mutex<Vec<Finished>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Family {
    id: PoolId,
    compression: Compression,
    /// The name of its column family.
    name: String,
    is_damaged: bool,
    /// Whether a read met damage, and the next opening knows it.
    is_noted: AtomicBool,
    progress: Mutex<Progress>,
    /// About how many bytes were written since the last flush began, and how many one writes that is under
    /// way.
    unflushed_size: AtomicU64,
    flushing_size: AtomicU64,
    /// How many range deletions were written since the last flush began.
    unflushed_range_count: AtomicU64,
}

/// How far a family is.
struct Progress {
    /// The lsn of its last batch.
    applied: Lsn,
    /// All batches up to here are durable, and that was told.
    flushed: Lsn,
    /// The first batch that may not be durable.
    unflushed: Option<Lsn>,
    /// The first batch since the last flush began.
    since_flush: Option<Lsn>,
}

impl Progress {
    /// RocksDB has batches from the first to the last of these lsns.
    fn on_written(&mut self, first: Lsn, last: Lsn) {
        self.applied = last;
        self.unflushed.get_or_insert(first);
        self.since_flush.get_or_insert(first);
    }

    /// Returns the lsn that is durable when the flush succeeds.
    fn on_flush_begins(&mut self) -> Lsn {
        self.since_flush = None;
        self.applied
    }

    /// The flush that began last succeeded. Returns whether that is news.
    fn on_flushed(&mut self, lsn: Lsn) -> bool {
        self.unflushed = self.since_flush;
        let is_news = self.flushed < lsn;
        self.flushed = self.flushed.max(lsn);
        is_news
    }
}

struct FlushRequest {
    /// `None`: begun by the engine itself.
    op: Option<EngineOp>,
    family: PoolId,
}

impl Family {
    fn new(found: FamilyFound) -> Arc<Family> {
        let FamilyFound { family, compression, lsn, is_damaged } = found;
        let progress = Progress { applied: lsn, flushed: lsn, unflushed: None, since_flush: None };
        Arc::new(Family {
            id: family,
            compression,
            name: directory::column_family_name(family, compression),
            is_damaged,
            is_noted: AtomicBool::new(false),
            progress: Mutex::new(progress),
            unflushed_size: AtomicU64::new(0),
            flushing_size: AtomicU64::new(0),
            unflushed_range_count: AtomicU64::new(0),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    fn applied(&self) -> Lsn {
        self.progress().applied
    }
}

impl Rocks {
    /// Creates an engine without families in a directory that is empty, is not there, or has the rest of an
    /// unfinished creation or removal. It is durable when this returns.
    pub fn create(directory: &Path, identity: Identity) -> Result<(), OpenError> {
        directory::create(directory, identity)
    }

    /// Returns who the engine in the directory is; `None`: there is none, or its creation or removal was
    /// interrupted.
    pub fn identity(directory: &Path) -> Result<Option<Identity>, OpenError> {
        directory::identity(directory)
    }

    /// Replaces an engine that was lost, or cannot be opened, by an empty one with the same identity.
    /// Whatever is left of the old one goes. Requires: no process has it open. If this process dies
    /// meanwhile, the engine is [missing](OpenError::Missing) until this is called again.
    pub fn renew(directory: &Path, identity: Identity) -> Result<(), OpenError> {
        directory::renew(directory, identity)
    }

    /// Removes the engine with this identity from the directory.
    pub fn destroy(directory: &Path, identity: Identity) -> Result<(), OpenError> {
        directory::destroy(directory, identity)
    }

    /// Opens the engine with this identity, and says which families it has. `wake` is called on other threads
    /// when there are events to take.
    pub fn open(
        directory: &Path,
        identity: Identity,
        settings: Settings,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Rocks, Vec<FamilyFound>), OpenError> {
        let Opened { database, options, cache, found } =
            directory::open(directory, identity, &settings)?;
        let families = found.iter().map(|found| (found.family, Family::new(*found)));
        let read_threads = settings.read_threads.max(1);
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            database,
            options,
            cache,
            settings,
            families: RwLock::new(families.collect()),
            poison: OnceLock::new(),
            writes: Queue::new(),
            reads: Queue::new(),
            flushes: Queue::new(),
            reclaims: Queue::new(),
            is_flush_queued: AtomicBool::new(false),
            background_error_count: AtomicU64::new(0),
            space: Mutex::default(),
            damaged_file: Mutex::new(()),
            events: Mutex::new(Vec::new()),
            wake: Box::new(wake),
        });
        shared.look_at_space();
        let mut engine = Rocks {
            shared,
            inflight: Inflight::default(),
            memory_time: MemoryTime::default(),
            threads: Vec::new(),
        };
        engine.start("engine-write", write::run)?;
        engine.start("engine-flush", |shared| shared.run_flushes())?;
        engine.start("engine-reclaim", |shared| shared.run_reclaims())?;
        for _ in 0..read_threads {
            engine.start("engine-read", |shared| shared.run_reads())?;
        }
        Ok((engine, found))
    }

    fn start(&mut self, name: &str, run: fn(&Shared)) -> Result<(), OpenError> {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let _guard = AbortOnPanic;
            run(&shared);
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = started.map_err(|error| OpenError::Io(format!("thread {name}: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Accepts a request. Panics if it breaks the limits of the door.
    pub fn submit(&mut self, effect: EngineEffect) {
        effect.verify();
        let lane = Lane::of(&effect);
        self.inflight.begin(lane);
        match effect {
            EngineEffect::Read { op, family, queries, from_memory: true } => {
                let event = self.memory_time.read(&self.shared, op, family, &queries);
                self.shared.tell(Some(lane), event);
            }
            EngineEffect::Flush { op, family } => {
                self.shared.flushes.push(FlushRequest { op: Some(op), family });
            }
            effect if lane == Lane::Write => self.shared.writes.push(effect),
            effect => self.shared.reads.push(effect),
        }
    }

    /// Adds the events that came since the last call. The caller's loop calls it once in each turn.
    pub fn take_events(&mut self, events: &mut Vec<EngineEvent>) {
        self.memory_time = MemoryTime::default();
        let taken = std::mem::take(&mut *lock(&self.shared.events));
        for (lane, event) in taken {
            if let Some(lane) = lane {
                self.inflight.end(lane);
            }
            events.push(event);
        }
    }
}

/// Waits for the requests that are being carried out, and forgets those that wait. RocksDB flushes what it
/// has.
impl Drop for Rocks {
    fn drop(&mut self) {
        self.shared.writes.close();
        self.shared.reads.close();
        self.shared.flushes.close();
        self.shared.reclaims.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Rocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rocks").field("path", &self.shared.database.path()).finish()
    }
}

/// A failed assertion ends the process, on these threads as on the one of the logic: nobody waits for an
/// answer that never comes.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Locks a mutex whose holders never panic while the process goes on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Hands an event out.
    fn tell(&self, lane: Option<Lane>, event: EngineEvent) {
        self.tell_all([(lane, event)]);
    }

    fn tell_all(&self, told: impl IntoIterator<Item = Finished>) {
        let mut events = lock(&self.events);
        let was_empty = events.is_empty();
        events.extend(told);
        let is_news = was_empty && !events.is_empty();
        drop(events);
        if is_news {
            (self.wake)();
        }
    }

    fn family(&self, id: PoolId) -> Result<Arc<Family>, EngineError> {
        let families = self.families.read().unwrap_or_else(PoisonError::into_inner);
        families.get(&id).cloned().ok_or(EngineError::NoFamily)
    }

    fn families(&self) -> Vec<Arc<Family>> {
        let families = self.families.read().unwrap_or_else(PoisonError::into_inner);
        families.values().cloned().collect()
    }

    fn column_family(&self, family: &Family) -> Result<Arc<BoundColumnFamily<'_>>, EngineError> {
        self.database.cf_handle(&family.name).ok_or(EngineError::NoFamily)
    }

    fn usable(&self) -> Result<(), EngineError> {
        match self.poison.get() {
            Some(text) => Err(EngineError::Poisoned { text: text.clone() }),
            None => Ok(()),
        }
    }

    /// Poisons the engine, and returns the error.
    fn poison(&self, text: String) -> EngineError {
        if self.poison.set(text.clone()).is_ok() {
            self.note_damage(&text);
            self.tell(None, EngineEvent::Poisoned { text });
        }
        let text = self.poison.get().expect("it was set").clone();
        EngineError::Poisoned { text }
    }

    /// If the error names files of families, the next opening does not compact these families (rule 17).
    fn note_damage(&self, text: &str) {
        let files = self.database.live_files().unwrap_or_default();
        let named = files.into_iter().filter(|file| text.contains(&file.name));
        let families = named.map(|file| file.column_family_name);
        // Without the note the next opening ends in the same way, and so it says.
        self.add_damaged(families.collect());
    }

    /// Notes column families as damaged, if that is possible.
    fn add_damaged(&self, names: BTreeSet<String>) {
        let _guard = lock(&self.damaged_file);
        let _ = directory::add_damaged(&self.directory, names);
    }

    /// A read met damage in a family: it stays known when the engine is opened again.
    fn note_damaged_read(&self, family: &Family) {
        if !family.is_damaged && !family.is_noted.swap(true, Ordering::Relaxed) {
            // Without the note the next opening believes the family until a read meets the damage again.
            self.add_damaged([family.name.clone()].into());
        }
    }

    /// What a failed write, flush, creation or removal means.
    fn judge(&self, what: &str, error: &rocksdb::Error) -> EngineError {
        if is_full(error) {
            EngineError::Full
        } else if error.kind() == ErrorKind::ColumnFamilyDropped {
            EngineError::NoFamily
        } else {
            self.poison(format!("{what}: {error}"))
        }
    }

    fn run_reads(&self) {
        while let Some(effect) = self.reads.pop() {
            let event = match effect {
                EngineEffect::Read { op, family, queries, .. } => {
                    self.read_on_thread(op, family, &queries)
                }
                EngineEffect::Statistics { op } => {
                    self.check_health();
                    EngineEvent::Statistics { op, statistics: self.statistics() }
                }
                effect => unreachable!("{effect:?} is not a read"),
            };
            self.tell(Some(Lane::Read), event);
        }
    }

    fn run_flushes(&self) {
        loop {
            match self.flushes.pop_within(HEALTH_CHECK_INTERVAL) {
                Popped::Item(request) => {
                    let result = self.flush(&request);
                    if let Some(op) = request.op {
                        self.tell(Some(Lane::Flush), EngineEvent::Done { op, result });
                    }
                }
                Popped::Nothing => self.check_health(),
                Popped::Closed => return,
            }
        }
    }

    fn flush(&self, request: &FlushRequest) -> Result<(), EngineError> {
        if request.op.is_none() {
            self.is_flush_queued.store(false, Ordering::Release);
        }
        self.usable()?;
        let family = self.family(request.family)?;
        let column_family = self.column_family(&family)?;
        let lsn = family.progress().on_flush_begins();
        let size = family.unflushed_size.swap(0, Ordering::AcqRel);
        let range_count = family.unflushed_range_count.swap(0, Ordering::AcqRel);
        family.flushing_size.store(size, Ordering::Release);
        let flushed = self.flush_memtables(&family, &column_family);
        family.flushing_size.store(0, Ordering::Release);
        if let Err(error) = flushed {
            family.unflushed_size.fetch_add(size, Ordering::AcqRel);
            family.unflushed_range_count.fetch_add(range_count, Ordering::AcqRel);
            return Err(error);
        }
        // The lock holds up the removal of the family: nobody takes this event for one of its successor.
        let families = self.families.read().unwrap_or_else(PoisonError::into_inner);
        if !families.get(&family.id).is_some_and(|found| Arc::ptr_eq(found, &family)) {
            return Err(EngineError::NoFamily);
        }
        if family.progress().on_flushed(lsn) {
            self.tell(None, EngineEvent::Flushed { family: family.id, lsn });
        }
        Ok(())
    }

    /// Flushes what the family has in memory, and returns when it is in files that the manifest names.
    ///
    /// What RocksDB 7.8 says of a flush is not enough: after a flush failed for want of space, and went on by
    /// itself later, RocksDB calls all further flushes done when they have only begun (see "No space" in
    /// `docs/internals/engine.md`). Its list of memtables is right: a full memtable leaves it when its file,
    /// and the manifest that names the file, are written and flushed. A flush exchanges the memtable before
    /// it returns, so once that list is empty, all that the family had before is durable.
    fn flush_memtables(
        &self,
        family: &Family,
        column_family: &Arc<BoundColumnFamily<'_>>,
    ) -> Result<(), EngineError> {
        let judge = |error| self.judge(&format!("flush of pool {}", family.id), &error);
        loop {
            self.database.flush_cf(column_family).map_err(judge)?;
            // Nobody repeats a flush that failed, and the memtables of a family that was removed stay in the
            // list: the next request tells.
            let ask_again = Instant::now() + FLUSH_REPEAT_INTERVAL;
            while Instant::now() < ask_again {
                if self.full_memtable_count(family, column_family)? == 0 {
                    return Ok(());
                }
                self.usable()?;
                self.probe().map_err(judge)?;
                thread::sleep(MEMTABLE_CHECK_INTERVAL);
            }
        }
    }

    /// Memtables that take no more records, and are not in files yet.
    fn full_memtable_count(
        &self,
        family: &Family,
        column_family: &Arc<BoundColumnFamily<'_>>,
    ) -> Result<u64, EngineError> {
        let name = rocksdb::properties::NUM_IMMUTABLE_MEM_TABLE;
        match self.database.property_int_value_cf(column_family, name) {
            Ok(Some(count)) => Ok(count),
            unknown => {
                Err(self
                    .poison(format!("memtables of pool {} are unknown: {unknown:?}", family.id)))
            }
        }
    }

    /// Fails if RocksDB refuses writes, because its own work failed. Changes nothing.
    fn probe(&self) -> Result<(), rocksdb::Error> {
        self.database.write_opt(Default::default(), &options::write_options())
    }

    /// Begins a flush of the family that needs it most, if all together have too many unflushed bytes, or
    /// that family too many range deletions.
    fn flush_if_due(&self) {
        let size_max = self.settings.write_buffer_size.max(1);
        let (mut total, mut neediest) = (0, None);
        for family in self.families() {
            let size = family.unflushed_size.load(Ordering::Acquire);
            let range_count = family.unflushed_range_count.load(Ordering::Acquire);
            total += size;
            let need = size.saturating_mul(RANGE_COUNT_MAX) / size_max + range_count;
            neediest = neediest.max(Some((need, family.id)));
        }
        let Some((need, family)) = neediest else { return };
        let is_due = total >= size_max || need >= RANGE_COUNT_MAX;
        if is_due && !self.is_flush_queued.swap(true, Ordering::AcqRel) {
            self.flushes.push(FlushRequest { op: None, family });
        }
    }

    /// Asks RocksDB whether its own work failed.
    fn check_health(&self) {
        let count = self.number(rocksdb::properties::BACKGROUND_ERRORS);
        if count <= self.background_error_count.swap(count, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.probe() {
            // Fullness is told to those who write.
            let _ = self.judge("background work", &error);
        }
    }
}

/// Whether an error says that the file system is full. RocksDB has no code for it in its C interface.
fn is_full(error: &rocksdb::Error) -> bool {
    let text: &str = error.as_ref();
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| text.contains(words))
}
