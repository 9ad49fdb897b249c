//! The engine of an OSD, which keeps the records of objects: where it lies, and how it is created and opened.
//!
//! The superblock of the store says which one it is. An engine that it does not name, but that names this store, was
//! created with the OSD, or by a start that was interrupted: the store takes it now.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::{OsdId, PoolId, TraceEvent};
use blockstore::{EngineFound, ReadEngine, StoppedStore, StoreId};
use cluster::message::Failure;
use engine::{Identity, OpenError, Rocks, RocksReadOnly, Settings};
use format::disk::{EngineId, Superblock};
use node::Engine;
use serde_json::json;

use super::store_file::{blocks_of, device_at, open_blocks, superblock_of};
use crate::output::{Format, failure, print_json};

/// The directory of the engine, beside the file of an OSD in a directory.
const DIRECTORY: &str = "objects";
/// Limits of the bytes of records in memory, before they are written to a file.
const WRITE_BUFFER_BYTES_MIN: u64 = 8 << 20;
const WRITE_BUFFER_BYTES_MAX: u64 = 64 << 20;

/// Returns the directory of the OSD's engine: the one that was named, or one beside the file of blocks. A
/// device has none unless it was named.
pub fn directory_of(path: &Path, named: Option<&Path>) -> Option<PathBuf> {
    let beside = || device_at(path).is_none().then(|| path.join(DIRECTORY));
    let absolute = |named: &Path| std::path::absolute(named).unwrap_or_else(|_| named.to_owned());
    named.map(absolute).or_else(beside)
}

/// Returns whether the directory of the engine lies in the file system of the OSD's blocks.
pub fn shares_space(path: &Path, objects: Option<&Path>) -> bool {
    let file_system = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let of_blocks = file_system(&blocks_of(path));
    objects.and_then(file_system).is_some_and(|of_engine| Some(of_engine) == of_blocks)
}

/// Opens the engine of the OSD at `path`, in this directory. Creates it if there is none yet. `memory`:
/// bytes for its cache; what was written last takes about as much.
///
/// Volumes do not depend on an engine that holds nothing: if it is missing or does not open, it is made anew
/// in the OSD's own directory. (Elsewhere a file system may not be mounted.) If that fails, too, the OSD runs
/// without one.
pub fn open(
    path: &Path,
    directory: Option<&Path>,
    superblock: &Superblock,
    memory: u64,
    wake: impl Fn() + Clone + Send + Sync + 'static,
) -> Result<(Option<Rocks>, Engine), Failure> {
    let settings = Settings {
        cache_size: memory,
        write_buffer_size: (memory / 4).clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX),
        ..Settings::default()
    };
    let osd = superblock.osd;
    let content = || match superblock.engine {
        None => Content::Nothing,
        Some(_) => content_of(path),
    };
    let Some(directory) = directory else {
        return match content() {
            Content::Records => Err(without_name(osd)),
            Content::Nothing | Content::Unknown => Ok(without(without_directory(osd))),
        };
    };
    let identity = identity_of(directory, superblock);
    let open = || Rocks::open(directory, identity, settings.clone(), wake.clone());
    let opened = open().or_else(|error| {
        let is_new = superblock.engine.is_none() && matches!(error, OpenError::Missing(_));
        let is_lost = matches!(error, OpenError::Missing(_) | OpenError::Corrupt(_));
        if is_new {
            Rocks::create(directory, identity)?;
        } else if is_lost && is_own(path, directory) && content() == Content::Nothing {
            let what = "the engine held nothing and is made anew";
            io::log::write(&TraceEvent::warn(what).with("why", &error));
            Rocks::renew(directory, identity)?;
        } else {
            return Err(error);
        }
        open()
    });
    match opened {
        Ok((rocks, families)) => {
            Ok((Some(rocks), Engine::Open(EngineFound { identity, families })))
        }
        Err(error) if content() == Content::Records => Err(cannot_open(osd, &error)),
        Err(error) => Ok(without(format!(
            "its engine can neither be opened nor made ({error}): mend that, and start {osd} again"
        ))),
    }
}

/// What an engine holds that cannot be opened, by what its store knows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    /// There are records in it, or there may be.
    Records,
    /// The store cannot be opened either, and says why when that is tried.
    Unknown,
}

fn content_of(path: &Path) -> Content {
    let Ok((file, size)) = open_blocks(&blocks_of(path), false) else { return Content::Unknown };
    let mut read = |offset, buffer: &mut [u8]| {
        file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
    };
    match StoppedStore::needs_no_engine(&mut read, size) {
        Ok(true) => Content::Nothing,
        Ok(false) => Content::Records,
        Err(_) => Content::Unknown,
    }
}

/// Returns what an OSD without an engine runs with, and logs why.
fn without(why: String) -> (Option<Rocks>, Engine) {
    let event = TraceEvent::warn("this OSD has no engine for records of objects");
    io::log::write(&event.with("why", &why));
    (None, Engine::None(why))
}

/// Returns who the engine of a store is, or is to be: who the superblock names; else who lies there since an
/// earlier start created it; else a new one.
fn identity_of(directory: &Path, superblock: &Superblock) -> Identity {
    let found = || Rocks::identity(directory).ok().flatten().map(|found| found.engine);
    // 0 stands for no engine.
    let new = || u128::from_le_bytes(io::random_bytes()).max(1);
    let engine = superblock.engine.map(EngineId::get).or_else(found).unwrap_or_else(new);
    Identity { engine, store: superblock.store.get() }
}

/// Whether the engine lies in the OSD's own directory.
fn is_own(path: &Path, directory: &Path) -> bool {
    device_at(path).is_none() && directory == path.join(DIRECTORY)
}

/// Returns these directories of engines by the stores to which they belong.
pub fn by_stores(directories: &[PathBuf]) -> Result<BTreeMap<StoreId, &Path>, Failure> {
    let mut by_stores = BTreeMap::new();
    for directory in directories {
        let found = Rocks::identity(directory).map_err(|error| {
            let message = format!("{}: {error}", directory.display());
            failure("engine", message, "check the path and its permissions")
        })?;
        let Some(identity) = found else {
            let message = format!("{} has no records of objects", directory.display());
            return Err(failure(
                "engine",
                message,
                "name the directory given to `ashlar osd run --objects`",
            ));
        };
        if by_stores.insert(StoreId::new(identity.store), directory.as_path()).is_some() {
            let message =
                format!("{} and another directory belong to one OSD", directory.display());
            return Err(failure("invalid", message, "name one of them"));
        }
    }
    Ok(by_stores)
}

/// An engine that is only read, for checks.
pub struct EngineToRead {
    rocks: RocksReadOnly,
    found: EngineFound,
}

impl ReadEngine for EngineToRead {
    fn found(&self) -> EngineFound {
        self.found.clone()
    }

    fn walk(
        &mut self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        self.rocks.walk(family, on_record)
    }
}

/// Opens the engine of the stopped OSD at `path`, if it has one, and changes nothing. One that cannot be
/// opened is none, unless it holds records.
pub fn open_to_read(
    path: &Path,
    directory: Option<&Path>,
    superblock: &Superblock,
) -> Result<Option<EngineToRead>, Failure> {
    let (osd, store) = (superblock.osd, superblock.store.get());
    let Some(engine) = superblock.engine.map(EngineId::get) else { return Ok(None) };
    let identity = Identity { engine, store };
    let opened = directory.ok_or_else(|| without_name(osd)).and_then(|directory| {
        let opened = RocksReadOnly::open(directory, identity, &Settings::default());
        opened.map_err(|error| cannot_open(osd, &error))
    });
    match opened {
        Ok((rocks, families)) => {
            Ok(Some(EngineToRead { rocks, found: EngineFound { identity, families } }))
        }
        Err(error) if content_of(path) == Content::Records => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns the refusal to go on without the name of the directory.
fn without_name(osd: OsdId) -> Failure {
    failure(
        "engine",
        format!("{osd} needs its engine, which keeps the records of objects"),
        "name the engine's directory with --objects DIR",
    )
}

/// Creates the engine of a new OSD in its own directory. The error says why that cannot be done: the OSD
/// tries again when it starts.
pub fn create(path: &Path, store: StoreId) -> Result<(), OpenError> {
    let engine = u128::from_le_bytes(io::random_bytes()).max(1);
    Rocks::create(&path.join(DIRECTORY), Identity { engine, store: store.get() })
}

/// Runs `ashlar osd new-engine`: replaces the engine of a stopped OSD by an empty one. The store sees that it
/// lacks what it had, so that nobody takes an empty copy for a whole one.
pub fn renew(
    path: &Path,
    objects: Option<&Path>,
    accepted: bool,
    format: Format,
) -> Result<(), Failure> {
    let blocks = blocks_of(path);
    let _lock = open_blocks(&blocks, true)?;
    let superblock = superblock_of(&blocks)?;
    let (osd, store) = (superblock.osd, superblock.store.get());
    let Some(engine) = superblock.engine.map(EngineId::get) else {
        let message = format!("{osd} has no engine: it keeps no records of objects");
        return Err(failure("not_found", message, "start it as it is"));
    };
    let directory = directory_of(path, objects).ok_or_else(|| without_name(osd))?;
    if let Ok(Some(opened)) = open_to_read(path, Some(&directory), &superblock)
        && opened.found.families.iter().all(|family| !family.is_damaged)
    {
        let message = format!("the engine of {osd} can be opened: its records are there");
        return Err(failure("invalid", message, "start the OSD, or check it: `ashlar osd check`"));
    }
    if !accepted {
        let message = format!(
            "{osd} loses its copies of all objects: they are made anew from other OSDs, and those of \
             which nobody else has a copy are lost"
        );
        let hint = "`ashlar pool ls` shows how many copies pools keep; confirm with --yes";
        return Err(failure("confirm", message, hint));
    }
    Rocks::renew(&directory, Identity { engine, store }).map_err(|error| {
        let Failure { code, hint, .. } = cannot_open(osd, &error);
        failure(&code, format!("the engine of {osd} cannot be replaced: {error}"), hint)
    })?;
    match format {
        Format::Json => print_json(&json!({ "osd": osd, "objects": directory }))?,
        Format::Text => print_line!("{osd} has an empty engine: start it, and it is filled")?,
    }
    Ok(())
}

/// Returns why pools of objects wait where an engine has no place.
fn without_directory(osd: OsdId) -> String {
    format!(
        "{osd} has no directory for records of objects: start it again with --objects DIR, on a file \
         system of its own or of the system's disk"
    )
}

fn cannot_open(osd: OsdId, error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::Missing(_) => {
            "its records are there only: mount its disk, put the directory back, or name it with \
             --objects DIR; if it is lost, `ashlar osd new-engine PATH` gives the OSD an empty one, \
             which is filled from the others"
        }
        OpenError::Foreign(_) => {
            "name the directory that belongs to this OSD with --objects DIR; `ashlar osd ls` shows \
             which OSD has which disk"
        }
        OpenError::InUse(_) => "another process has it open: stop that one first",
        OpenError::TooNew(_) => "use the version of ashlar that wrote it",
        OpenError::Corrupt(_) => {
            "check its disk; if it is lost, `ashlar osd new-engine PATH` gives the OSD an empty one, \
             which is filled from the others"
        }
        OpenError::Full(_) => "make space in its file system",
        OpenError::Occupied(_) | OpenError::Io(_) => "check the path and its permissions",
    };
    failure("engine", format!("the engine of {osd} cannot be opened: {error}"), hint)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use blockstore::{CommitMode, CreateOptions, STORE_SIZE_MIN};
    use format::disk::SUPERBLOCK_OFFSETS;

    use super::*;

    const OURS: StoreId = StoreId::new(5);
    const OTHERS: StoreId = StoreId::new(6);

    /// The directory of an OSD with a new store.
    struct Place(PathBuf);

    impl Place {
        /// Creates the store. `engine`: who its superblock names.
        fn new(name: &str, engine: Option<u128>) -> Place {
            let place = std::env::temp_dir().join(format!("ashlar-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&place);
            fs::create_dir_all(&place).expect("writable");
            let place = Place(place);
            place.write_store(engine);
            place
        }

        fn write_store(&self, engine: Option<u128>) {
            let created = blockstore::create(&CreateOptions {
                cluster: base::ClusterId::new(1),
                osd: OsdId::FIRST,
                store: OURS,
                size: STORE_SIZE_MIN,
                sector_size: 4096,
                commit: CommitMode::Fsync,
                engine: engine.and_then(EngineId::new),
            });
            let file = fs::File::create(self.0.join("blocks")).expect("writable");
            file.set_len(STORE_SIZE_MIN).expect("writable");
            for (offset, bytes) in created.expect("it can be made").images {
                file.write_all_at(&bytes, offset).expect("writable");
            }
        }

        /// Writes over both copies of the superblock one that is suspect.
        fn make_suspect(&self) {
            let superblock = superblock_of(&self.0.join("blocks")).expect("it has one");
            let suspect = Some(base::Lsn::new(4096));
            let bytes = Superblock { suspect, ..superblock }.encode();
            let file = fs::File::options().write(true).open(self.0.join("blocks"));
            let file = file.expect("it is there");
            for offset in SUPERBLOCK_OFFSETS {
                file.write_all_at(&bytes, offset).expect("writable");
            }
        }

        fn own(&self) -> PathBuf {
            self.0.join(DIRECTORY)
        }

        fn open(&self, directory: &Path) -> Result<Engine, Failure> {
            let superblock = superblock_of(&self.0.join("blocks"))?;
            let opened = open(&self.0, Some(directory), &superblock, 1 << 20, || {});
            opened.map(|(_, engine)| engine)
        }

        /// Returns the id of the engine that is opened.
        fn opened(&self, directory: &Path) -> u128 {
            match self.open(directory) {
                Ok(Engine::Open(found)) => {
                    assert_eq!((found.identity.store, found.families), (OURS.get(), vec![]));
                    found.identity.engine
                }
                other => panic!("{other:?}"),
            }
        }

        /// Returns why the OSD runs without an engine.
        fn none(&self, directory: &Path) -> String {
            match self.open(directory) {
                Ok(Engine::None(why)) => why,
                other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_start_creates_the_engine_of_an_osd_or_takes_the_one_that_is_there() {
        let place = Place::new("engine-new", None);
        let engine = place.opened(&place.own());
        assert_eq!(place.opened(&place.own()), engine, "the superblock did not name it yet");
        place.write_store(Some(engine));
        assert_eq!(place.opened(&place.own()), engine);
        // `osd create` made it.
        let place = Place::new("engine-made", None);
        create(&place.0, OURS).expect("the place is empty");
        let made = Rocks::identity(&place.own()).expect("readable").expect("there").engine;
        assert_eq!(place.opened(&place.own()), made);
        // Its creation was interrupted.
        fs::remove_dir_all(place.own().join("rocksdb")).expect("it is there");
        fs::rename(place.own().join("engine"), place.own().join("engine.unfinished")).expect("so");
        place.opened(&place.own());
        // Where the operator said.
        place.opened(&place.0.join("named"));
    }

    #[test]
    fn an_engine_that_holds_nothing_is_made_anew_in_the_directory_of_its_osd() {
        let place = Place::new("engine-renewed", None);
        let engine = place.opened(&place.own());
        let damage = || fs::remove_file(place.own().join("rocksdb/CURRENT")).expect("it is there");
        for named in [None, Some(engine)] {
            place.write_store(named);
            damage();
            assert_eq!(place.opened(&place.own()), engine);
        }
        fs::remove_dir_all(place.own()).expect("it is there");
        assert_eq!(place.opened(&place.own()), engine, "it is lost");
        // Another directory may be one that is not mounted.
        let away = place.0.join("away");
        assert!(place.none(&away).contains("has no engine"));
        assert!(!away.exists());
    }

    #[test]
    fn an_engine_that_may_hold_something_stays_as_it_is() {
        let place = Place::new("engine-kept", None);
        let engine = place.opened(&place.own());
        place.write_store(Some(engine));
        place.make_suspect();
        fs::remove_file(place.own().join("rocksdb/CURRENT")).expect("it is there");
        let refused =
            place.open(&place.own()).expect_err("damage may have taken what names a family");
        assert!(refused.hint.contains("osd new-engine"), "{refused:?}");
        fs::remove_dir_all(place.own()).expect("it is there");
        let refused = place.open(&place.own()).expect_err("it is gone");
        assert!(refused.message.contains("has no engine"), "{refused:?}");
        assert!(!place.own().exists());
    }

    #[test]
    fn whatever_lies_in_the_place_of_an_engine_that_holds_nothing_the_osd_starts() {
        let place = Place::new("engine-foreign", None);
        Rocks::create(&place.own(), Identity { engine: 1, store: OTHERS.get() }).expect("empty");
        assert!(place.none(&place.own()).contains("this store has engine"));
        let found = Rocks::identity(&place.own()).expect("readable").expect("there");
        assert_eq!(found.store, OTHERS.get(), "it is not touched");
        place.write_store(Some(9));
        assert!(place.none(&place.own()).contains("this store has engine"));
        fs::remove_dir_all(place.own()).expect("it is there");
        fs::write(place.own(), "a file").expect("writable");
        place.none(&place.own());
    }
}
