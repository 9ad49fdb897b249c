//! The engine of an OSD, which keeps the records of objects: where it lies, and how it is opened and added.
//!
//! The superblock of the store says whether there is one. An engine that it does not name, but that names this
//! store, was being added when the process ended: the store takes it now.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{OsdId, PoolId};
use blockstore::{EngineFound, ReadEngine, StoreId};
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

/// Opens the engine, if there is one. `memory`: bytes for its cache; what was written last takes about as
/// much. `obstacle`: why none can be added. An OSD that has no engine yet is not kept from starting by what
/// is in the directory: it serves all other pools.
pub fn open(
    directory: Option<&Path>,
    superblock: &Superblock,
    obstacle: Option<&str>,
    memory: u64,
    wake: impl Fn() + Send + Sync + 'static,
) -> Result<(Option<Rocks>, Engine), Failure> {
    let (osd, store) = (superblock.osd, superblock.store.get());
    let settings = Settings {
        cache_size: memory,
        write_buffer_size: (memory / 4).clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX),
        ..Settings::default()
    };
    let open = |directory: &Path, identity: Identity| {
        let (rocks, families) = Rocks::open(directory, identity, settings, wake)?;
        Ok((Some(rocks), Engine::Open(EngineFound { identity, families })))
    };
    let without = |why: String| Ok((None, Engine::None(why)));
    match (superblock.engine.map(EngineId::get), directory) {
        (Some(_), None) => Err(without_name(osd)),
        (Some(engine), Some(directory)) => {
            open(directory, Identity { engine, store }).map_err(|error| cannot_open(osd, &error))
        }
        (None, None) => without(without_directory(osd)),
        (None, Some(_)) if let Some(why) = obstacle => without(why.to_owned()),
        (None, Some(directory)) => {
            let found = Rocks::identity(directory);
            let opened = found.and_then(|found| match found {
                // If it is another store's, the opening says so.
                Some(found) => open(directory, Identity { store, ..found }),
                None => Ok((None, Engine::Addable)),
            });
            opened.or_else(|error| without(cannot_add(&error)))
        }
    }
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

/// Opens the engine of a store that is not running, if there is one, and changes nothing.
pub fn open_to_read(
    directory: Option<&Path>,
    superblock: &Superblock,
) -> Result<Option<EngineToRead>, Failure> {
    let (osd, store) = (superblock.osd, superblock.store.get());
    let Some(engine) = superblock.engine.map(EngineId::get) else { return Ok(None) };
    let directory = directory.ok_or_else(|| without_name(osd))?;
    let identity = Identity { engine, store };
    let opened = RocksReadOnly::open(directory, identity, &Settings::default());
    let (rocks, families) = opened.map_err(|error| cannot_open(osd, &error))?;
    Ok(Some(EngineToRead { rocks, found: EngineFound { identity, families } }))
}

/// Returns the refusal to go on without the name of the directory.
fn without_name(osd: OsdId) -> Failure {
    failure(
        "engine",
        format!("{osd} needs its engine, which keeps the records of objects"),
        "name the engine's directory with --objects DIR",
    )
}

/// Creates the engine of a store that has none.
pub fn add(directory: &Path, store: StoreId) -> Result<(), OpenError> {
    // 0 stands for no engine.
    let engine = u128::from_le_bytes(io::random_bytes()).max(1);
    Rocks::create(directory, Identity { engine, store: store.get() })
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
    if let Ok(Some(opened)) = open_to_read(Some(&directory), &superblock)
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

/// Returns why pools of objects wait where an engine cannot be added.
pub fn cannot_add(error: &OpenError) -> String {
    format!(
        "an engine for records of objects could not be added ({error}): mend that, and start the OSD \
         again"
    )
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

    /// Returns the superblock of a store with this engine.
    fn superblock(engine: Option<u128>) -> Superblock {
        let created = blockstore::create(&CreateOptions {
            cluster: base::ClusterId::new(1),
            osd: OsdId::FIRST,
            store: OURS,
            size: STORE_SIZE_MIN,
            sector_size: 4096,
            commit: CommitMode::Fsync,
            engine: engine.and_then(EngineId::new),
        });
        let images = created.expect("it can be made").images;
        let first = images.iter().find(|(offset, _)| *offset == SUPERBLOCK_OFFSETS[0]);
        Superblock::decode(&first.expect("it has one").1).expect("it is new")
    }

    fn opened(directory: &Path, engine: Option<u128>) -> Result<Engine, Failure> {
        open(Some(directory), &superblock(engine), None, 1 << 20, || {}).map(|(_, engine)| engine)
    }

    #[test]
    fn an_engine_that_was_being_added_is_taken_and_no_other() {
        let place = std::env::temp_dir().join(format!("ashlar-{}-engine", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        let directory = place.join("objects");
        let none = |engine| match engine {
            Ok(Engine::None(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(matches!(opened(&directory, None), Ok(Engine::Addable)));
        add(&directory, OURS).expect("the place is empty");
        let Ok(Engine::Open(found)) = opened(&directory, None) else { panic!("it is ours") };
        assert_eq!((found.identity.store, found.families), (OURS.get(), vec![]));
        let engine = found.identity.engine;
        assert!(matches!(opened(&directory, Some(engine)), Ok(Engine::Open(_))));
        let refused = opened(&directory, Some(engine + 1)).expect_err("it is another one");
        assert!(refused.message.contains("this store has engine"), "{refused:?}");
        fs::remove_dir_all(&directory).expect("it is there");
        let refused = opened(&directory, Some(engine)).expect_err("it is gone");
        assert!(refused.message.contains("has no engine"), "{refused:?}");
        // An OSD without an engine starts, whatever lies there.
        add(&directory, OTHERS).expect("the place is empty");
        assert!(none(opened(&directory, None)).contains("this store has engine"));
        fs::remove_dir_all(&directory).expect("it is there");
        fs::write(&directory, "a file").expect("writable");
        none(opened(&directory, None));
        fs::remove_dir_all(&place).expect("it is there");
    }
}
