//! The engine of an OSD, which keeps the records of objects: where it lies, and how it is opened and added.
//!
//! The superblock of the store says whether there is one. An engine that it does not name, but that names this
//! store, was being added when the process ended: the store takes it now.

use std::path::{Path, PathBuf};

use base::OsdId;
use blockstore::{EngineFound, StoreId};
use cluster::message::Failure;
use engine::{Identity, OpenError, Rocks, Settings};
use format::disk::{EngineId, Superblock};
use node::Engine;

use super::store_file::device_at;
use crate::output::failure;

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

/// Opens the engine, if there is one. `memory`: bytes for its cache; what was written last takes about as
/// much.
pub fn open(
    directory: Option<&Path>,
    superblock: &Superblock,
    memory: u64,
    wake: impl Fn() + Send + Sync + 'static,
) -> Result<(Option<Rocks>, Engine), Failure> {
    let (osd, store) = (superblock.osd, superblock.store.get());
    let named = superblock.engine.map(EngineId::get);
    let Some(directory) = directory else {
        return match named {
            Some(_) => Err(failure(
                "engine",
                format!("{osd} needs its engine, which keeps the records of objects"),
                "name the engine's directory with --objects DIR",
            )),
            None => Ok((None, Engine::None(without_directory(osd)))),
        };
    };
    let cannot = |error: OpenError| cannot_open(osd, &error);
    let identity = match named {
        Some(engine) => Identity { engine, store },
        None => match Rocks::identity(directory).map_err(cannot)? {
            // If it is another store's, the opening says so.
            Some(found) => Identity { store, ..found },
            None => return Ok((None, Engine::Addable)),
        },
    };
    let settings = Settings {
        cache_size: memory,
        write_buffer_size: (memory / 4).clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX),
        ..Settings::default()
    };
    let (rocks, families) = Rocks::open(directory, identity, settings, wake).map_err(cannot)?;
    Ok((Some(rocks), Engine::Open(EngineFound { identity, families })))
}

/// Creates the engine of a store that has none.
pub fn add(directory: &Path, store: StoreId) -> Result<(), OpenError> {
    // 0 stands for no engine.
    let engine = u128::from_le_bytes(io::random_bytes()).max(1);
    Rocks::create(directory, Identity { engine, store: store.get() })
}

/// Returns why pools of objects wait where no engine can be added.
fn without_directory(osd: OsdId) -> String {
    format!(
        "{osd} has no directory for records of objects: start it again with --objects DIR, on a file \
         system of its own or of the system's disk"
    )
}

fn cannot_open(osd: OsdId, error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::Missing(_) => {
            "its records are there only: put the directory back, or name it with --objects DIR; if \
             it is lost, wipe the OSD and create it again: it is filled from the others"
        }
        OpenError::Foreign(_) => {
            "name the directory that belongs to this OSD with --objects DIR; `ashlar osd ls` shows \
             which OSD has which disk"
        }
        OpenError::InUse(_) => "another process has it open: stop that one first",
        OpenError::TooNew(_) => "use the version of ashlar that wrote it",
        OpenError::Corrupt(_) => {
            "check its disk; if it is lost, wipe the OSD and create it again: it is filled from the \
             others"
        }
        OpenError::Full(_) => "make space in its file system",
        OpenError::Occupied(_) | OpenError::Io(_) => "check the path and its permissions",
    };
    failure("engine", format!("the engine of {osd} cannot be opened: {error}"), hint)
}
