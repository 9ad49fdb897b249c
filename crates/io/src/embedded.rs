//! The state store of a cluster on one machine: the store in memory, with a durable copy in one
//! `redb` file.
//!
//! ```text
//!   effect ─▶ MemoryState ─▶ changes ─▶ one redb transaction, durable ─▶ events
//! ```
//!
//! Invariants
//!   1. No event is told before the changes it speaks of are durable.
//!   2. After a failed write nothing is known: the store tells `Failed`, and nothing after it.
//!   3. One process has the file open.
//!
//! The file's tables are told in `docs/internals/state.md`.

use std::fs;
use std::path::{Path, PathBuf};

use base::{Duration, Time};
use cluster::state::{
    KeyValue, LeaseId, MemoryState, StateChange, StateEffect, StateEvent, StateImage,
    StateRevision, StateStore,
};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use crate::Error;

/// Format of the file that this program writes and understands.
const FORMAT: u64 = 1;
/// Memory for the file's pages; the store itself is in memory.
const CACHE_SIZE: usize = 4 << 20;

/// `format`, `revision`, `lease_last`.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Key: its revision, its lease (0: none), its value.
const KEYS: TableDefinition<&str, (u64, u64, &str)> = TableDefinition::new("keys");
/// Lease: its time to live in nanoseconds.
const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");

/// A state store in a file.
pub struct EmbeddedState {
    path: PathBuf,
    database: Database,
    core: MemoryState,
    has_failed: bool,
}

impl EmbeddedState {
    /// Makes an empty store. Fails where there is a file already.
    ///
    /// It gets its name when it is whole, so a crash leaves a store or none.
    pub fn create(path: &Path) -> Result<(), Error> {
        if path.exists() {
            return Err(Error::new(path.display(), "there is a state store already"));
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

    /// Opens a store; its leases begin anew. An error says what to do: another process has it open,
    /// a newer program wrote it, it is damaged, it is not there.
    ///
    /// A store that is not there is never made here: an empty one in place of a lost one would give
    /// ids out again whose data still lies on the OSDs.
    pub fn open(path: &Path) -> Result<EmbeddedState, Error> {
        EmbeddedState::open_at(path, crate::now())
    }

    fn open_at(path: &Path, now: Time) -> Result<EmbeddedState, Error> {
        if !path.exists() {
            let why = "there is no state store; a new cluster's is made with its cluster.toml, a \
                       lost one comes back from a copy";
            return Err(Error::new(path.display(), why));
        }
        let opened = Database::builder().set_cache_size(CACHE_SIZE).open(path);
        let database = opened.map_err(|error| open_error(path, error))?;
        let image = read_image(&database).map_err(|why| Error::new(path.display(), why))?;
        let core = MemoryState::from_image(now, image);
        Ok(EmbeddedState { path: path.to_path_buf(), database, core, has_failed: false })
    }

    /// Makes `changes` durable and then tells `told`; or that the store has failed.
    fn persist_and_tell(
        &mut self,
        changes: &[StateChange],
        told: Vec<StateEvent>,
        events: &mut Vec<StateEvent>,
    ) {
        if !changes.is_empty()
            && let Err(error) = persist(&self.database, changes)
        {
            self.has_failed = true;
            let reason = format!(
                "the state store {} cannot be written: {error}; make room or replace the disk, \
                 then start the monitor again",
                self.path.display()
            );
            events.push(StateEvent::Failed { reason });
            return;
        }
        events.extend(told);
    }
}

impl StateStore for EmbeddedState {
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
        if self.has_failed {
            return;
        }
        let (mut told, mut changes) = (Vec::new(), Vec::new());
        self.core.apply_recorded(now, effect, &mut told, &mut changes);
        self.persist_and_tell(&changes, told, events);
    }

    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>) {
        if self.has_failed {
            return;
        }
        let (mut told, mut changes) = (Vec::new(), Vec::new());
        self.core.poll_recorded(now, &mut told, &mut changes);
        self.persist_and_tell(&changes, told, events);
    }

    fn deadline(&self) -> Option<Time> {
        if self.has_failed { None } else { self.core.deadline() }
    }
}

fn open_error(path: &Path, error: DatabaseError) -> Error {
    let why = match error {
        DatabaseError::DatabaseAlreadyOpen => {
            "another process has this state store open: a monitor runs already".to_string()
        }
        DatabaseError::UpgradeRequired(_) => {
            "this state store has an older file format: use the program that wrote it".to_string()
        }
        DatabaseError::RepairAborted => "it was not closed, and its repair ended early".to_string(),
        other => format!("this is no state store that can be opened: {other}"),
    };
    Error::new(path.display(), why)
}

/// Writes the changes as one durable transaction; an empty store's tables, if there are none.
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
        .map_err(|error| format!("the file is no state store of ours: {error}"))?;
    let number = |name: &str| -> Result<Option<u64>, String> {
        let found = meta.get(name).map_err(|error| damaged(error.into()))?;
        Ok(found.map(|value| value.value()))
    };
    match number("format")? {
        Some(FORMAT) => {}
        Some(newer) => {
            return Err(format!(
                "the state store has format {newer}, this program knows {FORMAT}: run a newer \
                 program"
            ));
        }
        None => return Err("the file is no state store of ours".to_string()),
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

/// Makes a file's name durable.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::state::{
        Operation, StateRequest, Transaction, TransactionOutcome, WatchId, conformance,
    };

    /// A directory that goes with the test.
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

    fn put(state: &mut EmbeddedState, key: &str, revision: u64, lease: Option<LeaseId>) -> u64 {
        let mut transaction = Transaction::new();
        let operation = Operation::Put { key: key.into(), value: "1".into(), lease };
        transaction.write(operation, StateRevision::new(revision));
        let mut events = Vec::new();
        let request = StateRequest(1);
        state.apply(Time::ZERO, StateEffect::Transact { request, transaction }, &mut events);
        match events[..] {
            [
                StateEvent::Transacted {
                    outcome: TransactionOutcome::Committed { revision }, ..
                },
            ] => revision.get(),
            _ => panic!("{events:?}"),
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
            Box::new(EmbeddedState::open_at(&path, Time::ZERO).unwrap())
        });
    }

    #[test]
    fn everything_is_there_after_reopening() {
        let directory = Directory::new("reopen");
        let path = directory.file("state.redb");
        EmbeddedState::create(&path).unwrap();
        let mut state = EmbeddedState::open_at(&path, Time::ZERO).unwrap();
        let mut events = Vec::new();
        let request = StateRequest(9);
        let time_to_live = Duration::from_secs(3);
        state.apply(Time::ZERO, StateEffect::LeaseGrant { request, time_to_live }, &mut events);
        let [StateEvent::Lease { lease, .. }] = events[..] else { panic!("{events:?}") };
        let first = put(&mut state, "a", 0, None);
        put(&mut state, "b", 0, lease);
        put(&mut state, "a", first, None);
        let entries: Vec<KeyValue> = state.core.entries().cloned().collect();
        let revision = state.core.revision();
        drop(state);

        let later = Time::from_nanos(50);
        let mut state = EmbeddedState::open_at(&path, later).unwrap();
        assert_eq!(state.core.entries().cloned().collect::<Vec<_>>(), entries);
        assert_eq!(state.core.revision(), revision);
        assert_eq!(state.deadline(), Some(later + time_to_live));
        // What was before is compacted; the lease ends, and stays ended.
        let mut events = Vec::new();
        let (watch, prefix) = (WatchId(1), String::new());
        let from = StateRevision::new(1);
        state.apply(later, StateEffect::Watch { watch, prefix, from }, &mut events);
        assert!(matches!(events[..], [StateEvent::WatchLost { .. }]), "{events:?}");
        state.poll(later + time_to_live, &mut events);
        drop(state);
        let state = EmbeddedState::open_at(&path, later).unwrap();
        assert_eq!(state.core.entries().count(), 1);
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn a_second_process_is_told_that_one_runs() {
        let directory = Directory::new("second");
        let path = directory.file("state.redb");
        EmbeddedState::create(&path).unwrap();
        let _first = EmbeddedState::open_at(&path, Time::ZERO).unwrap();
        let error = EmbeddedState::open_at(&path, Time::ZERO).err().unwrap();
        assert!(error.0.contains("a monitor runs already"), "{error}");
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
        let error = EmbeddedState::open_at(&path, Time::ZERO).err().unwrap();
        assert!(error.0.contains("run a newer program"), "{error}");
    }

    #[test]
    fn what_is_no_store_is_refused_and_left_alone() {
        let directory = Directory::new("foreign");
        let path = directory.file("state.redb");
        let error = EmbeddedState::open_at(&path, Time::ZERO).err().unwrap();
        assert!(error.0.contains("state.redb"), "{error}");
        assert!(!path.exists(), "opening makes nothing");
        fs::write(&path, b"not a store at all").unwrap();
        assert!(EmbeddedState::open_at(&path, Time::ZERO).is_err());
        assert!(EmbeddedState::create(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"not a store at all");
        let other = directory.file("other.redb");
        drop(Database::create(&other).unwrap());
        let error = EmbeddedState::open_at(&other, Time::ZERO).err().unwrap();
        assert!(error.0.contains("no state store of ours"), "{error}");
    }

    #[test]
    fn a_crash_while_creating_leaves_no_store() {
        let directory = Directory::new("crash");
        let path = directory.file("state.redb");
        fs::write(path.with_extension("new"), b"half").unwrap();
        EmbeddedState::create(&path).unwrap();
        assert!(!path.with_extension("new").exists());
        assert!(EmbeddedState::open_at(&path, Time::ZERO).is_ok());
    }
}
