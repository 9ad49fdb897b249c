//! The state store of a cluster with a single monitor: the store in memory, with a durable copy in one
//! `redb` file.
//!
//! ```text
//!   effect ─▶ MemoryState ─▶ changes ─▶ thread: one redb transaction, durable ─▶ events
//! ```
//!
//! A separate thread writes the file, so a hanging disk does not block the owner's loop: the owner receives a
//! `Condition` event, and its requests are answered once the disk responds.
//!
//! Invariants
//!   1. An event is reported only once the changes it contains, and all earlier changes, are durable.
//!   2. After a failed write the content of the file is unknown: the store reports `Failed`, and no event
//!      after it.
//!   3. Only one process has the file open.
//!
//! `docs/internals/state.md` describes the tables of the file.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use base::{Duration, Time};
use cluster::state::memory::{MemoryState, StateChange, StateImage};
use cluster::state::{
    KeyValue, LeaseId, StateEffect, StateEvent, StateRevision, StateStore, WatchId,
};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use crate::Error;

/// The file format that this version writes and reads.
const FORMAT: u64 = 1;
/// Cache for the pages of the file, in bytes. Small, because the store itself is in memory.
const CACHE_SIZE: usize = 4 << 20;

/// Name -> number, for `format`, `revision` and `lease_last` (the last assigned lease).
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Key -> revision, lease (0: none), value.
const KEYS: TableDefinition<&str, (u64, u64, &str)> = TableDefinition::new("keys");
/// Lease -> time to live in nanoseconds.
const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");

/// A write that takes longer than this is reported, and reported again after each further interval of this
/// length.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// How often writes in flight are checked. A longer gap between two checks counts only as this interval: if
/// the process was stopped in between, that does not make its disk slow.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A state store in a file.
pub struct EmbeddedState {
    path: PathBuf,
    core: MemoryState,
    has_failed: bool,
    /// Changes for the thread to write. The thread ends when this sender is dropped.
    writes: Option<Sender<Vec<StateChange>>>,
    /// One result for each item sent to `writes`, in the same order.
    written: Receiver<Result<(), redb::Error>>,
    thread: Option<JoinHandle<()>>,
    /// Events that are not reported yet, in the order of their requests.
    pending: VecDeque<Pending>,
    /// How long the owner's loop has been running (`ran`), and when `ran` was last updated (`looked_at`).
    ran: Time,
    looked_at: Time,
    /// Age in seconds of the oldest write in flight, as last reported.
    trouble: Option<u64>,
}

/// Events that wait until changes are durable.
struct Pending {
    told: Vec<StateEvent>,
    /// Value of `ran` when the request arrived.
    since: Time,
    /// Whether the events wait for a write of their own, not only for earlier writes.
    is_write: bool,
}

impl EmbeddedState {
    /// Creates an empty store. Fails if the file exists.
    ///
    /// The file is renamed to `path` only when it is complete, so a crash leaves either a complete store or
    /// none.
    pub fn create(path: &Path) -> Result<(), Error> {
        if path.exists() {
            return Err(Error::new(path.display(), "a state store already exists at this path"));
        }
        let new = path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::new(new.display(), error));
            }
            _ => {}
        }
        let failed = |error: redb::Error| Error::new(new.display(), error);
        let database = Database::create(&new).map_err(|error| failed(error.into()))?;
        persist(&database, &[]).map_err(failed)?;
        drop(database);
        let renamed = fs::rename(&new, path).and_then(|()| sync_parent(path));
        renamed.map_err(|error| Error::new(path.display(), error))
    }

    /// Opens a store; its leases start again with their full time to live. Errors say what to do: another
    /// process has the store open, a newer version wrote it, it is damaged, or it does not exist.
    ///
    /// This never creates a missing store: an empty store in place of a lost one would assign ids again
    /// that data on the OSDs still uses.
    ///
    /// `wake` is called on another thread whenever `poll` may have events.
    pub fn open(path: &Path, wake: impl Fn() + Send + 'static) -> Result<EmbeddedState, Error> {
        EmbeddedState::open_at(path, crate::now(), wake)
    }

    fn open_at(
        path: &Path,
        now: Time,
        wake: impl Fn() + Send + 'static,
    ) -> Result<EmbeddedState, Error> {
        if !path.exists() {
            let why = "there is no state store at this path; if it was lost, restore it from a \
                       backup (a new cluster gets one when its cluster.toml is created)";
            return Err(Error::new(path.display(), why));
        }
        let opened = Database::builder().set_cache_size(CACHE_SIZE).open(path);
        let database = opened.map_err(|error| open_error(path, error))?;
        EmbeddedState::over(database, path, now, wake)
    }

    fn over(
        database: Database,
        path: &Path,
        now: Time,
        wake: impl Fn() + Send + 'static,
    ) -> Result<EmbeddedState, Error> {
        let image = read_image(&database).map_err(|why| Error::new(path.display(), why))?;
        let core = MemoryState::from_image(now, image);
        let (writes, to_write) = channel();
        let (tell, written) = channel();
        let thread = std::thread::Builder::new().name("state".to_string());
        let thread = thread.spawn(move || write_all(&database, &to_write, &tell, &wake));
        let thread = thread.map_err(|error| Error::new(path.display(), error))?;
        Ok(EmbeddedState {
            path: path.to_path_buf(),
            core,
            has_failed: false,
            writes: Some(writes),
            written,
            thread: Some(thread),
            pending: VecDeque::new(),
            ran: Time::ZERO,
            looked_at: now,
            trouble: None,
        })
    }

    /// Makes `changes` durable, and reports the events `told` once these changes and all earlier ones are
    /// durable.
    fn persist_and_tell(
        &mut self,
        changes: Vec<StateChange>,
        told: Vec<StateEvent>,
        events: &mut Vec<StateEvent>,
    ) {
        if changes.is_empty() && self.pending.is_empty() {
            events.extend(told);
            return;
        }
        let is_write = !changes.is_empty();
        if is_write {
            let writes = self.writes.as_ref().expect("the thread is told to end by drop alone");
            // If the thread has died, sending fails, and `poll` reports that.
            let _ = writes.send(changes);
        }
        self.pending.push_back(Pending { told, since: self.ran, is_write });
    }

    /// Reports the events whose changes have become durable.
    fn take_written(&mut self, events: &mut Vec<StateEvent>) {
        loop {
            let error = match self.written.try_recv() {
                Ok(Ok(())) => {
                    let write = self.pending.pop_front().expect("it was asked for");
                    events.extend(write.told);
                    while let Some(behind) = self.pending.pop_front_if(|next| !next.is_write) {
                        events.extend(behind.told);
                    }
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    "the writer thread has died, which is a bug; see the log".to_string()
                }
            };
            self.has_failed = true;
            self.pending.clear();
            let reason = format!(
                "the state store {} cannot be written: {error}; free space or replace the disk, \
                 then start the monitor again",
                self.path.display()
            );
            events.push(StateEvent::Failed { reason });
            return;
        }
    }

    /// Reports that a write is slow, and later that it has finished.
    fn look(&mut self, now: Time, events: &mut Vec<StateEvent>) {
        self.ran = self.ran + now.since(self.looked_at).min(LOOK_EVERY);
        self.looked_at = now;
        let age =
            self.pending.front().map_or(Duration::ZERO, |oldest| self.ran.since(oldest.since));
        let seconds = (age >= SLOW_AFTER).then(|| age.as_millis() / SLOW_AFTER.as_millis());
        if seconds != self.trouble {
            self.trouble = seconds;
            let trouble = seconds.map(|seconds| {
                format!(
                    "the disk that holds {} has not answered for {seconds} s",
                    self.path.display()
                )
            });
            events.push(StateEvent::Condition { trouble });
        }
    }

    /// Drops events of a cancelled watch that are not reported yet.
    fn forget(&mut self, watch: WatchId) {
        let is_of_it = |event: &StateEvent| match event {
            StateEvent::Watched { watch: of, .. } | StateEvent::WatchLost { watch: of, .. } => {
                *of == watch
            }
            _ => false,
        };
        for pending in &mut self.pending {
            pending.told.retain(|event| !is_of_it(event));
        }
    }
}

impl StateStore for EmbeddedState {
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
        if self.has_failed {
            return;
        }
        if let StateEffect::Unwatch { watch } = &effect {
            self.forget(*watch);
        }
        let (mut told, mut changes) = (Vec::new(), Vec::new());
        self.core.apply_recorded(now, effect, &mut told, &mut changes);
        self.persist_and_tell(changes, told, events);
    }

    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>) {
        if self.has_failed {
            return;
        }
        self.take_written(events);
        if self.has_failed {
            return;
        }
        let (mut told, mut changes) = (Vec::new(), Vec::new());
        self.core.poll_recorded(now, &mut told, &mut changes);
        self.persist_and_tell(changes, told, events);
        self.look(now, events);
    }

    fn deadline(&self) -> Option<Time> {
        if self.has_failed {
            return None;
        }
        let look = (!self.pending.is_empty()).then(|| self.looked_at + LOOK_EVERY);
        self.core.deadline().into_iter().chain(look).min()
    }
}

impl Drop for EmbeddedState {
    /// Blocks until all requested changes are written.
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic is already in the log.
            let _ = thread.join();
        }
    }
}

/// Wakes the owner when the thread ends, even by a panic.
struct WakeAtEnd<'a>(&'a dyn Fn());

impl Drop for WakeAtEnd<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Repeatedly writes all waiting changes as one transaction, until the owner is gone or a write fails.
fn write_all(
    database: &Database,
    writes: &Receiver<Vec<StateChange>>,
    tell: &Sender<Result<(), redb::Error>>,
    wake: &dyn Fn(),
) {
    let _ends = WakeAtEnd(wake);
    while let Ok(mut changes) = writes.recv() {
        let mut count = 1;
        while let Ok(more) = writes.try_recv() {
            changes.extend(more);
            count += 1;
        }
        let failed = persist(database, &changes).err();
        let is_over = failed.is_some();
        // Sending fails only if the owner is gone; then this thread is about to end.
        match failed {
            Some(error) => drop(tell.send(Err(error))),
            None => (0..count).for_each(|_| drop(tell.send(Ok(())))),
        }
        wake();
        if is_over {
            return;
        }
    }
}

fn open_error(path: &Path, error: DatabaseError) -> Error {
    let why = match error {
        DatabaseError::DatabaseAlreadyOpen => {
            "another process has this state store open: a monitor is already running".to_string()
        }
        DatabaseError::UpgradeRequired(_) => {
            "this state store has an older file format: use the version of ashlar that wrote it"
                .to_string()
        }
        DatabaseError::RepairAborted => {
            "this state store was not closed cleanly, and its repair was interrupted".to_string()
        }
        other => format!("cannot open this state store: {other}"),
    };
    Error::new(path.display(), why)
}

/// Writes the changes as one durable transaction. Without changes, creates the tables of an empty store.
fn persist(database: &Database, changes: &[StateChange]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let mut keys = transaction.open_table(KEYS)?;
        let mut leases = transaction.open_table(LEASES)?;
        if changes.is_empty() {
            meta.insert("format", FORMAT)?;
        }
        for change in changes {
            match change {
                StateChange::Revision(revision) => {
                    meta.insert("revision", revision.get())?;
                }
                StateChange::Put(entry) => {
                    let lease = entry.lease.map_or(0, |lease| lease.0);
                    let value = (entry.revision.get(), lease, entry.value.as_str());
                    keys.insert(entry.key.as_str(), value)?;
                }
                StateChange::Delete(key) => {
                    keys.remove(key.as_str())?;
                }
                StateChange::LeaseGranted(lease, time_to_live) => {
                    leases.insert(lease.0, time_to_live.as_nanos())?;
                    meta.insert("lease_last", lease.0)?;
                }
                StateChange::LeaseEnded(lease) => {
                    leases.remove(lease.0)?;
                }
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn read_image(database: &Database) -> Result<StateImage, String> {
    let damaged = |error: redb::Error| format!("the state store is damaged: {error}");
    let transaction = database.begin_read().map_err(|error| damaged(error.into()))?;
    let meta = transaction
        .open_table(META)
        .map_err(|error| format!("the file is not a state store of ashlar: {error}"))?;
    let number = |name: &str| -> Result<Option<u64>, String> {
        let found = meta.get(name).map_err(|error| damaged(error.into()))?;
        Ok(found.map(|value| value.value()))
    };
    match number("format")? {
        Some(FORMAT) => {}
        Some(newer) => {
            return Err(format!(
                "the state store has format {newer}, this version supports {FORMAT}: run a newer version"
            ));
        }
        None => return Err("the file is not a state store of ashlar".to_string()),
    }
    let mut image = StateImage {
        revision: StateRevision::new(number("revision")?.unwrap_or(0)),
        lease_last: number("lease_last")?.unwrap_or(0),
        ..StateImage::default()
    };
    read_tables(&transaction, &mut image).map_err(damaged)?;
    Ok(image)
}

fn read_tables(
    transaction: &redb::ReadTransaction,
    image: &mut StateImage,
) -> Result<(), redb::Error> {
    for row in transaction.open_table(KEYS)?.iter()? {
        let (key, value) = row?;
        let (revision, lease, value) = value.value();
        image.entries.push(KeyValue {
            key: key.value().to_string(),
            value: value.to_string(),
            revision: StateRevision::new(revision),
            lease: (lease > 0).then_some(LeaseId(lease)),
        });
    }
    for row in transaction.open_table(LEASES)?.iter()? {
        let (lease, time_to_live) = row?;
        image.leases.push((LeaseId(lease.value()), Duration::from_nanos(time_to_live.value())));
    }
    Ok(())
}

/// Makes the directory entry of a file durable.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use cluster::state::{Operation, StateRequest, Transaction, TransactionOutcome, conformance};

    /// A directory that is removed when it is dropped.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let name = format!("ashlar-embedded-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open(path: &Path) -> Result<EmbeddedState, Error> {
        EmbeddedState::open_at(path, Time::ZERO, || ())
    }

    /// A state store that waits for the disk when it is polled.
    struct Patient(EmbeddedState);

    impl StateStore for Patient {
        fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
            self.0.apply(now, effect, events);
        }

        fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>) {
            self.0.poll(now, events);
            while !self.0.pending.is_empty() {
                self.0.poll(now, events);
            }
        }

        fn deadline(&self) -> Option<Time> {
            self.0.deadline()
        }
    }

    /// Applies an effect and returns the events that it causes.
    fn answer(state: &mut EmbeddedState, effect: StateEffect) -> Vec<StateEvent> {
        let mut events = Vec::new();
        state.apply(Time::ZERO, effect, &mut events);
        while events.is_empty() {
            state.poll(Time::ZERO, &mut events);
        }
        events
    }

    fn put(state: &mut EmbeddedState, key: &str, revision: u64, lease: Option<LeaseId>) -> u64 {
        let mut transaction = Transaction::new();
        let operation = Operation::Put { key: key.into(), value: "1".into(), lease };
        transaction.write(operation, StateRevision::new(revision));
        let request = StateRequest(1);
        match answer(state, StateEffect::Transact { request, transaction })[..] {
            [
                StateEvent::Transacted {
                    outcome: TransactionOutcome::Committed { revision }, ..
                },
            ] => revision.get(),
            ref events => panic!("{events:?}"),
        }
    }

    #[test]
    fn the_file_store_keeps_the_promises_of_the_trait() {
        let directory = Directory::new("conformance");
        let mut count = 0;
        conformance::run(|| {
            count += 1;
            let path = directory.file(&format!("{count}.redb"));
            EmbeddedState::create(&path).unwrap();
            Box::new(Patient(open(&path).unwrap()))
        });
    }

    /// A disk whose flushes wait while its gate is held.
    #[derive(Debug)]
    struct Gated(redb::backends::InMemoryBackend, Arc<Mutex<()>>);

    impl redb::StorageBackend for Gated {
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            self.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.set_len(len)
        }

        fn sync_data(&self) -> std::io::Result<()> {
            drop(self.1.lock().unwrap());
            self.0.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            self.0.write(offset, data)
        }
    }

    #[test]
    fn a_hanging_disk_is_reported_and_requests_are_answered_later_in_order() {
        let gate = Arc::new(Mutex::new(()));
        let disk = Gated(redb::backends::InMemoryBackend::new(), gate.clone());
        let database = Database::builder().create_with_backend(disk).unwrap();
        persist(&database, &[]).unwrap();
        let (bell, woken) = channel();
        let wake = move || {
            let _ = bell.send(());
        };
        let path = Path::new("/mon/state.redb");
        let mut state = EmbeddedState::over(database, path, Time::ZERO, wake).unwrap();
        let mut events = Vec::new();
        let watch = |number| {
            let (watch, prefix) = (WatchId(number), String::new());
            StateEffect::Watch { watch, prefix, from: StateRevision::new(1) }
        };
        state.apply(Time::ZERO, watch(1), &mut events);
        state.apply(Time::ZERO, watch(2), &mut events);
        events.clear();

        let hangs = gate.lock().unwrap();
        let mut transaction = Transaction::new();
        let operation = Operation::Put { key: "a".into(), value: "1".into(), lease: None };
        transaction.write(operation, StateRevision::ZERO);
        let request = StateRequest(1);
        state.apply(Time::ZERO, StateEffect::Transact { request, transaction }, &mut events);
        let (request, prefix) = (StateRequest(2), "a".to_string());
        let read = StateEffect::Range { request, prefix, after: None, limit: 1 };
        state.apply(Time::ZERO, read, &mut events);
        state.apply(Time::ZERO, StateEffect::Unwatch { watch: WatchId(2) }, &mut events);
        let mut now = Time::ZERO;
        let mut pass = |state: &mut EmbeddedState, events: &mut Vec<StateEvent>, millis| {
            now = now + Duration::from_millis(millis);
            state.poll(now, events);
        };
        // The process was stopped: only 250 ms of this gap count.
        pass(&mut state, &mut events, 60_000);
        (0..3).for_each(|_| pass(&mut state, &mut events, 249));
        assert_eq!(events, []);
        (0..5).for_each(|_| pass(&mut state, &mut events, 250));
        let troubles: Vec<&str> = events
            .iter()
            .map(|event| match event {
                StateEvent::Condition { trouble: Some(text) } => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            troubles,
            [1, 2].map(|age| format!(
                "the disk that holds /mon/state.redb has not answered for {age} s"
            ))
        );
        assert!(state.deadline().is_some());

        events.clear();
        drop(hangs);
        woken.recv().unwrap();
        pass(&mut state, &mut events, 1);
        let [
            StateEvent::Transacted { outcome: TransactionOutcome::Committed { revision }, .. },
            StateEvent::Watched { watch: WatchId(1), .. },
            StateEvent::Range { result: Ok(found), .. },
            StateEvent::Condition { trouble: None },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(found.entries[0].revision, *revision);
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn everything_is_there_after_reopening() {
        let directory = Directory::new("reopen");
        let path = directory.file("state.redb");
        EmbeddedState::create(&path).unwrap();
        let mut state = open(&path).unwrap();
        let request = StateRequest(9);
        let time_to_live = Duration::from_secs(3);
        let events = answer(&mut state, StateEffect::LeaseGrant { request, time_to_live });
        let [StateEvent::Lease { lease, .. }] = events[..] else { panic!("{events:?}") };
        let first = put(&mut state, "a", 0, None);
        put(&mut state, "b", 0, lease);
        put(&mut state, "a", first, None);
        let entries: Vec<KeyValue> = state.core.entries().cloned().collect();
        let revision = state.core.revision();
        drop(state);

        let later = Time::from_nanos(50);
        let mut state = EmbeddedState::open_at(&path, later, || ()).unwrap();
        assert_eq!(state.core.entries().cloned().collect::<Vec<_>>(), entries);
        assert_eq!(state.core.revision(), revision);
        assert_eq!(state.deadline(), Some(later + time_to_live));
        // Revisions from before the reopening are compacted; the lease expires, and stays expired.
        let mut events = Vec::new();
        let (watch, prefix) = (WatchId(1), String::new());
        let from = StateRevision::new(1);
        state.apply(later, StateEffect::Watch { watch, prefix, from }, &mut events);
        assert!(matches!(events[..], [StateEvent::WatchLost { .. }]), "{events:?}");
        state.poll(later + time_to_live, &mut events);
        drop(state);
        let state = EmbeddedState::open_at(&path, later, || ()).unwrap();
        assert_eq!(state.core.entries().count(), 1);
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn a_second_process_is_refused() {
        let directory = Directory::new("second");
        let path = directory.file("state.redb");
        EmbeddedState::create(&path).unwrap();
        let _first = open(&path).unwrap();
        let error = open(&path).err().unwrap();
        assert!(error.0.contains("a monitor is already running"), "{error}");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let directory = Directory::new("newer");
        let path = directory.file("state.redb");
        EmbeddedState::create(&path).unwrap();
        let database = Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", FORMAT + 1).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = open(&path).err().unwrap();
        assert!(error.0.contains("run a newer version"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_a_store_is_refused_and_left_alone() {
        let directory = Directory::new("foreign");
        let path = directory.file("state.redb");
        let error = open(&path).err().unwrap();
        assert!(error.0.contains("state.redb"), "{error}");
        assert!(!path.exists(), "opening makes nothing");
        fs::write(&path, b"not a store at all").unwrap();
        assert!(open(&path).is_err());
        assert!(EmbeddedState::create(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"not a store at all");
        let other = directory.file("other.redb");
        drop(Database::create(&other).unwrap());
        let error = open(&other).err().unwrap();
        assert!(error.0.contains("not a state store of ashlar"), "{error}");
    }

    #[test]
    fn a_crash_while_creating_leaves_no_store() {
        let directory = Directory::new("crash");
        let path = directory.file("state.redb");
        fs::write(path.with_extension("new"), b"half").unwrap();
        EmbeddedState::create(&path).unwrap();
        assert!(!path.with_extension("new").exists());
        assert!(open(&path).is_ok());
    }
}
