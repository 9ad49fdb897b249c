//! What the suite tests: an engine behind its door, with a way to crash and to damage it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base::{Lsn, PoolId};
use engine::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FamilyFound,
    Folding, Identity, OpenError, Query, Records, Rocks, Settings, Statistics, Twin,
};

pub const IDENTITY: Identity = Identity { engine: 0xe, store: 0x5 };
/// Nothing takes so long, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn pool(number: u32) -> PoolId {
    PoolId::new(number).expect("not 0")
}

pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Change {
    Change::Put { key: key.as_ref().to_vec(), value: value.as_ref().to_vec() }
}

pub fn delete(key: impl AsRef<[u8]>) -> Change {
    Change::Delete { key: key.as_ref().to_vec() }
}

pub fn delete_range(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Change {
    Change::DeleteRange { start: start.as_ref().to_vec(), end: end.as_ref().to_vec() }
}

pub fn get(key: impl AsRef<[u8]>) -> Query {
    Query::Get { key: key.as_ref().to_vec() }
}

/// A value of 1,000 bytes that names its key, for tests that damage it.
pub fn large_value(key: &str) -> Vec<u8> {
    let mut value = format!("value of {key};").into_bytes();
    value.resize(1000, b'.');
    value
}

pub fn scan(start: &[u8], end: Option<&[u8]>, count_max: usize, size_max: usize) -> Query {
    Query::Scan { start: start.to_vec(), end: end.map(<[u8]>::to_vec), count_max, size_max }
}

/// A list of records whose keys go on behind the same first bytes.
pub fn list(start: &[u8], end: Option<&[u8]>, count_max: usize, folding: &Folding) -> Query {
    let (start, end, folding) = (start.to_vec(), end.map(<[u8]>::to_vec), folding.clone());
    Query::List { start, end, count_max, size_max: usize::MAX, folding }
}

/// Returns where a list goes on behind its last record.
pub fn behind_listed(records: &Records, folding: &Folding) -> Vec<u8> {
    let (key, value) = records.iter().last().expect("a record, or the end");
    let common = folding.common_prefix(key, value);
    match common.map(format::engine::behind) {
        Some(behind) => behind.expect("not the last key of all"),
        None => [key, &[0]].concat(),
    }
}

/// A directory that goes when the test ends.
pub struct TempDirectory(pub PathBuf);

impl TempDirectory {
    pub fn new() -> TempDirectory {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ashlar-engine-test-{}-{number}", std::process::id());
        // No test cuts the power, so nobody needs to wait for a disk.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = parent.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a new directory");
        TempDirectory(path)
    }
}

impl TempDirectory {
    pub fn copy(&self) -> TempDirectory {
        let directory = TempDirectory::new();
        copy(&self.0, &directory.0);
        directory
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn settings() -> Settings {
    Settings {
        cache_size: 8 << 20,
        write_buffer_size: 4 << 20,
        low_space_min: 0,
        ..Settings::default()
    }
}

/// An engine behind its door.
pub trait Engine: Sized {
    /// Whether it does things by itself while time passes.
    const IS_THREADED: bool;
    fn create() -> Self;
    fn submit(&mut self, effect: EngineEffect);
    /// Waits until something may have happened, and adds what did.
    fn wait(&mut self, events: &mut Vec<EngineEvent>);
    /// Opens it again after a crash. Requires: nothing is under way.
    fn crash(self) -> (Self, Vec<FamilyFound>);
    /// Damages the record with this key, whose value is a large one, uncompressed. All batches may become
    /// durable.
    fn corrupt(self, family: PoolId, key: &str) -> Self;
    /// Compacts now, if it does not do so by itself.
    fn compact(&mut self);
}

pub struct RealEngine {
    pub engine: Rocks,
    pub directory: TempDirectory,
    woken: mpsc::Receiver<()>,
}

impl RealEngine {
    pub fn open(directory: TempDirectory, settings: Settings) -> (RealEngine, Vec<FamilyFound>) {
        RealEngine::try_open(directory, settings).expect("it was created")
    }

    pub fn try_open(
        directory: TempDirectory,
        settings: Settings,
    ) -> Result<(RealEngine, Vec<FamilyFound>), OpenError> {
        let (wake, woken) = mpsc::channel();
        let wake = move || {
            let _ = wake.send(());
        };
        let (engine, found) = Rocks::open(&directory.0, IDENTITY, settings, wake)?;
        Ok((RealEngine { engine, directory, woken }, found))
    }

    /// Opens a copy of what is in files now: what a kill would leave. A compaction that ends while files are
    /// copied makes a copy that does not open, which no kill would leave: then it is copied again.
    pub fn open_copy(&self) -> (RealEngine, Vec<FamilyFound>) {
        let begun = Instant::now();
        loop {
            match RealEngine::try_open(self.directory.copy(), settings()) {
                Ok(opened) => return opened,
                Err(error) if matches!(error, OpenError::Corrupt(_)) => {
                    assert!(begun.elapsed() < PATIENCE, "{error}");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else if let Err(error) = fs::copy(entry.path(), target) {
            // RocksDB removes what it does not need; if it needs the file, the copy does not open.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}

/// Changes a byte of a record in the files of a closed engine. Requires: it has a large value, uncompressed.
pub fn damage(directory: &Path, key: &str) {
    let text = format!("value of {key};").into_bytes();
    let mut count = 0;
    for entry in fs::read_dir(directory.join("rocksdb")).expect("a directory").flatten() {
        if entry.path().extension().is_none_or(|ending| ending != "sst") {
            continue;
        }
        let mut bytes = fs::read(entry.path()).expect("a file");
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at] ^= 0x20;
            fs::write(entry.path(), bytes).expect("a file");
            count += 1;
        }
    }
    assert_eq!(count, 1, "files with the key");
}

impl Engine for RealEngine {
    const IS_THREADED: bool = true;

    fn create() -> RealEngine {
        let directory = TempDirectory::new();
        Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
        RealEngine::open(directory, settings()).0
    }

    fn submit(&mut self, effect: EngineEffect) {
        self.engine.submit(effect);
    }

    fn wait(&mut self, events: &mut Vec<EngineEvent>) {
        self.woken.recv_timeout(PATIENCE).expect("an event in time");
        self.engine.take_events(events);
    }

    /// What is in files now is what a kill would leave: nothing is under way, and there is no log.
    fn crash(self) -> (RealEngine, Vec<FamilyFound>) {
        self.open_copy()
    }

    fn corrupt(self, _: PoolId, key: &str) -> RealEngine {
        let RealEngine { engine, directory, .. } = self;
        drop(engine);
        damage(&directory.0, key);
        RealEngine::open(directory, settings()).0
    }

    /// RocksDB does when a family has four files. This is time enough to notice it.
    fn compact(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A small generator of random numbers: the suite's choices repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}

pub struct TwinEngine {
    pub twin: Twin,
    pub random: Random,
}

impl Engine for TwinEngine {
    const IS_THREADED: bool = false;

    fn create() -> TwinEngine {
        TwinEngine { twin: Twin::create(IDENTITY), random: Random::new(1) }
    }

    fn submit(&mut self, effect: EngineEffect) {
        self.twin.submit(effect, &mut |end| self.random.below(end));
    }

    fn wait(&mut self, events: &mut Vec<EngineEvent>) {
        let before = events.len();
        self.twin.take_events(events);
        while events.len() == before {
            assert!(self.twin.step(&mut |end| self.random.below(end)), "no event is left");
            if self.random.below(16) == 0 {
                self.twin.flush_some(&mut |end| self.random.below(end));
            }
            self.twin.take_events(events);
        }
    }

    fn crash(mut self) -> (TwinEngine, Vec<FamilyFound>) {
        self.twin.crash(&mut |end| self.random.below(end));
        let found = self.twin.open(IDENTITY).expect("the same identity");
        (self, found)
    }

    fn corrupt(mut self, family: PoolId, key: &str) -> TwinEngine {
        while self.twin.flush_some(&mut |end| end - 1) {}
        let end = format!("{key}\0");
        assert_eq!(self.twin.corrupt(family, key.as_bytes(), end.as_bytes()), 1);
        self
    }

    fn compact(&mut self) {
        self.twin.compact_damage(&mut |end| self.random.below(end));
    }
}

/// Issues requests to an engine, and waits for their events.
pub struct Client<E> {
    pub engine: E,
    last_op: u64,
    /// Events that nobody has waited for yet, in order.
    pub events: Vec<EngineEvent>,
}

impl<E: Engine> Client<E> {
    pub fn new(engine: E) -> Client<E> {
        Client { engine, last_op: 0, events: Vec::new() }
    }

    pub fn create() -> Client<E> {
        Client::new(E::create())
    }

    pub fn op(&mut self) -> EngineOp {
        self.last_op += 1;
        EngineOp(self.last_op)
    }

    pub fn crash(self) -> (Client<E>, Vec<FamilyFound>) {
        let (engine, found) = self.engine.crash();
        (Client { engine, last_op: self.last_op, events: Vec::new() }, found)
    }

    pub fn corrupt(self, family: u32, key: &str) -> Client<E> {
        let engine = self.engine.corrupt(pool(family), key);
        Client { engine, last_op: self.last_op, events: Vec::new() }
    }

    /// Waits for the first event that fits, and takes it.
    pub fn wait_for(&mut self, fits: impl Fn(&EngineEvent) -> bool) -> EngineEvent {
        loop {
            if let Some(at) = self.events.iter().position(&fits) {
                return self.events.remove(at);
            }
            self.engine.wait(&mut self.events);
        }
    }

    /// Forgets events that have come.
    pub fn forget(&mut self, is_forgotten: impl Fn(&EngineEvent) -> bool) {
        self.events.retain(|event| !is_forgotten(event));
    }

    pub fn wait_done(&mut self, op: EngineOp) -> Result<(), EngineError> {
        let fits =
            |event: &EngineEvent| matches!(event, EngineEvent::Done { op: o, .. } if *o == op);
        match self.wait_for(fits) {
            EngineEvent::Done { result, .. } => result,
            event => unreachable!("{event:?}"),
        }
    }

    pub fn begin_write(&mut self, family: u32, lsn: u64, changes: Vec<Change>) -> EngineOp {
        let (op, family, lsn) = (self.op(), pool(family), Lsn::new(lsn));
        let changes = changes.into();
        self.engine.submit(EngineEffect::Write { op, family, lsn, changes });
        op
    }

    pub fn write(
        &mut self,
        family: u32,
        lsn: u64,
        changes: Vec<Change>,
    ) -> Result<(), EngineError> {
        let op = self.begin_write(family, lsn, changes);
        self.wait_done(op)
    }

    pub fn create_family(
        &mut self,
        family: u32,
        compression: Compression,
    ) -> Result<(), EngineError> {
        let (op, family) = (self.op(), pool(family));
        self.engine.submit(EngineEffect::Create { op, family, compression });
        self.wait_done(op)
    }

    pub fn remove_family(&mut self, family: u32) -> Result<(), EngineError> {
        let (op, family) = (self.op(), pool(family));
        self.engine.submit(EngineEffect::Remove { op, family });
        self.wait_done(op)
    }

    pub fn begin_flush(&mut self, family: u32) -> EngineOp {
        let (op, family) = (self.op(), pool(family));
        self.engine.submit(EngineEffect::Flush { op, family });
        op
    }

    pub fn flush(&mut self, family: u32) -> Result<(), EngineError> {
        let op = self.begin_flush(family);
        self.wait_done(op)
    }

    /// The highest lsn that was told as flushed since the last question; checks that it never went back.
    pub fn take_flushed(&mut self, family: u32) -> Option<u64> {
        let family = pool(family);
        let mut highest = None;
        self.events.retain(|event| match event {
            EngineEvent::Flushed { family: f, lsn } if *f == family => {
                assert!(highest < Some(lsn.get()));
                highest = Some(lsn.get());
                false
            }
            _ => true,
        });
        highest
    }

    pub fn begin_read(&mut self, family: u32, queries: Vec<Query>, from_memory: bool) -> EngineOp {
        let (op, family) = (self.op(), pool(family));
        self.engine.submit(EngineEffect::Read { op, family, queries, from_memory });
        op
    }

    pub fn wait_read(&mut self, op: EngineOp) -> (u64, Result<Vec<Answer>, EngineError>) {
        let fits =
            |event: &EngineEvent| matches!(event, EngineEvent::Read { op: o, .. } if *o == op);
        match self.wait_for(fits) {
            EngineEvent::Read { contains, result, .. } => (contains.get(), result),
            event => unreachable!("{event:?}"),
        }
    }

    pub fn read(&mut self, family: u32, queries: Vec<Query>) -> Result<Vec<Answer>, EngineError> {
        let op = self.begin_read(family, queries, false);
        self.wait_read(op).1
    }

    pub fn get(
        &mut self,
        family: u32,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        match self.read(family, vec![get(key)])?.remove(0) {
            Answer::Value(value) => Ok(value),
            answer => unreachable!("{answer:?}"),
        }
    }

    pub fn scan(&mut self, family: u32, query: Query) -> Result<(Records, bool), EngineError> {
        match self.read(family, vec![query])?.remove(0) {
            Answer::Records { records, more } => Ok((records, more)),
            answer => unreachable!("{answer:?}"),
        }
    }

    /// All records of a family.
    pub fn all(&mut self, family: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = scan(b"", None, usize::MAX, usize::MAX);
        let (records, more) = self.scan(family, all).expect("readable");
        assert!(!more);
        records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    pub fn statistics(&mut self) -> Statistics {
        let op = self.op();
        self.engine.submit(EngineEffect::Statistics { op });
        let fits = |event: &EngineEvent| matches!(event, EngineEvent::Statistics { op: o, .. } if *o == op);
        match self.wait_for(fits) {
            EngineEvent::Statistics { statistics, .. } => statistics,
            event => unreachable!("{event:?}"),
        }
    }
}
