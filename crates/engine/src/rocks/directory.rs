//! The directory of an engine: who it is, its creation, its removal, its opening.
//!
//! ```text
//!   engine             the identity; there only while the database beside it is complete
//!   engine.unfinished  the identity while a creation or removal is under way
//!   damaged            the column families in which a compaction met damage, one a line; none if it is not there
//!   rocksdb/           the database
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Lsn, PoolId, crc32c};
use rocksdb::{Cache, ColumnFamilyDescriptor, ErrorKind, Options};

use super::{Database, LSN_KEY, Settings, is_full, options};
use format::engine::{Compression, FamilyFound, Identity, OpenError};

const FIRST_LINE: &str = "ashlar engine 1";
const IDENTITY_FILE: &str = "engine";
const UNFINISHED_FILE: &str = "engine.unfinished";
const DATABASE: &str = "rocksdb";
const DAMAGED_FILE: &str = "damaged";
const DAMAGED_FILE_NEW: &str = "damaged.new";
/// What RocksDB says when another process, or this one, has the database open. Paths may have a "lock", too.
const LOCK_WORDS: [&str; 3] =
    ["While lock file", "lock hold by current process", "a file for lock"];

pub(super) fn column_family_name(id: PoolId, compression: Compression) -> String {
    format!("{id}.{compression}")
}

fn parse_column_family_name(name: &str) -> Option<(PoolId, Compression)> {
    let (id, compression) = name.split_once('.')?;
    let id = id.parse().ok().and_then(PoolId::new)?;
    Some((id, Compression::from_name(compression)?))
}

fn io_error(path: &Path, error: &io::Error) -> OpenError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::Full(text),
        _ => OpenError::Io(text),
    }
}

fn database_error(path: &Path, error: &rocksdb::Error) -> OpenError {
    let text = format!("{}: {error}", path.display());
    if is_full(error) {
        OpenError::Full(text)
    } else if LOCK_WORDS.iter().any(|words| text.contains(words))
        && error.kind() == ErrorKind::IOError
    {
        OpenError::InUse(text)
    } else {
        OpenError::Corrupt(text)
    }
}

fn sync_directory(directory: &Path) -> Result<(), OpenError> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| io_error(directory, &error))
}

fn text_of(identity: Identity) -> String {
    let Identity { engine, store } = identity;
    let text = format!("{FIRST_LINE}\nengine {engine:032x}\nstore {store:032x}\n");
    let checksum = crc32c(text.as_bytes()).get();
    format!("{text}checksum {checksum:08x}\n")
}

fn parse_identity(path: &Path, text: &str) -> Result<Identity, OpenError> {
    let first_line = text.lines().next().unwrap_or_default();
    if first_line != FIRST_LINE && first_line.starts_with("ashlar engine ") {
        let why = "a newer version of ashlar made this engine";
        return Err(OpenError::TooNew(format!("{}: {why} ({first_line})", path.display())));
    }
    let number = |prefix: &str| {
        let digits = text.lines().find_map(|line| line.strip_prefix(prefix))?;
        u128::from_str_radix(digits, 16).ok()
    };
    let identity = number("engine ").zip(number("store "));
    let identity = identity.map(|(engine, store)| Identity { engine, store });
    identity
        .filter(|identity| text_of(*identity) == text)
        .ok_or_else(|| OpenError::Corrupt(format!("{}: damaged", path.display())))
}

/// Returns who the engine in the directory is; `None`: there is none.
pub(super) fn identity(directory: &Path) -> Result<Option<Identity>, OpenError> {
    identity_in(&directory.join(IDENTITY_FILE))
}

fn identity_in(path: &Path) -> Result<Option<Identity>, OpenError> {
    match fs::read(path) {
        Ok(bytes) => parse_identity(path, &String::from_utf8_lossy(&bytes)).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(path, &error)),
    }
}

/// Checks that the directory has the engine with this identity.
fn check_identity(directory: &Path, expected: Identity) -> Result<(), OpenError> {
    let Some(found) = identity(directory)? else {
        let unfinished = directory.join(UNFINISHED_FILE).exists();
        let why = if unfinished { ": its creation or removal was interrupted" } else { "" };
        let directory = directory.display();
        return Err(OpenError::Missing(format!("{directory} has no engine{why}")));
    };
    check_same(directory, found, expected)
}

fn check_same(directory: &Path, found: Identity, expected: Identity) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    let directory = directory.display();
    Err(OpenError::Foreign(format!("{directory} has {found}; this store has {expected}")))
}

pub(super) fn create(directory: &Path, identity: Identity) -> Result<(), OpenError> {
    let wrong = |error: io::Error| io_error(directory, &error);
    fs::create_dir_all(directory).map_err(wrong)?;
    let unfinished = directory.join(UNFINISHED_FILE);
    let is_unfinished = unfinished.exists();
    let ours = [UNFINISHED_FILE, DATABASE, DAMAGED_FILE, DAMAGED_FILE_NEW];
    refuse_others(directory, if is_unfinished { &ours } else { &[] })?;
    let mut file = File::create(&unfinished).map_err(wrong)?;
    file.write_all(text_of(identity).as_bytes()).map_err(wrong)?;
    file.sync_all().map_err(wrong)?;
    sync_directory(directory)?;
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_directory(parent)?;
    }
    remove_database(directory)?;

    let path = directory.join(DATABASE);
    let wrong_database = |error| database_error(&path, &error);
    let settings = Settings { cache_size: 1 << 20, ..Settings::default() };
    let cache = options::cache(&settings).map_err(wrong_database)?;
    let mut options = options::database_options(&settings, &cache, true);
    let log = TextLog::create(&mut options)?;
    drop(Database::open(&options, &path).map_err(wrong_database)?);
    drop(log);
    sync_directory(&path)?;
    fs::rename(&unfinished, directory.join(IDENTITY_FILE)).map_err(wrong)?;
    sync_directory(directory)
}

pub(super) fn destroy(directory: &Path, identity: Identity) -> Result<(), OpenError> {
    let wrong = |error: io::Error| io_error(directory, &error);
    check_identity(directory, identity)?;
    // Nobody removes the files of an engine that is open.
    drop(open(directory, identity, &Settings::default())?);
    let unfinished = directory.join(UNFINISHED_FILE);
    fs::rename(directory.join(IDENTITY_FILE), &unfinished).map_err(wrong)?;
    sync_directory(directory)?;
    remove_database(directory)?;
    fs::remove_file(&unfinished).map_err(wrong)?;
    sync_directory(directory)
}

/// Fails if anything but these files lies in the directory. One that is not there has nothing.
fn refuse_others(directory: &Path, ours: &[&str]) -> Result<(), OpenError> {
    let wrong = |error: io::Error| io_error(directory, &error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(wrong)?,
    };
    for entry in entries {
        let name = entry.map_err(wrong)?.file_name();
        if !ours.iter().any(|ours| name == **ours) {
            let (directory, name) = (directory.display(), name.display());
            return Err(OpenError::Occupied(format!("{directory} is not empty: it has {name}")));
        }
    }
    Ok(())
}

pub(super) fn renew(directory: &Path, identity: Identity) -> Result<(), OpenError> {
    let wrong = |error: io::Error| io_error(directory, &error);
    let unfinished = directory.join(UNFINISHED_FILE);
    for path in [directory.join(IDENTITY_FILE), unfinished.clone()] {
        // What another store has, or a newer version made, stays as it is.
        match identity_in(&path) {
            Ok(Some(found)) => check_same(directory, found, identity)?,
            Err(error @ OpenError::TooNew(_)) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    let ours = [IDENTITY_FILE, UNFINISHED_FILE, DATABASE, DAMAGED_FILE, DAMAGED_FILE_NEW];
    refuse_others(directory, &ours)?;
    if directory.join(IDENTITY_FILE).exists() {
        fs::rename(directory.join(IDENTITY_FILE), &unfinished).map_err(wrong)?;
        sync_directory(directory)?;
    } else if directory.join(DATABASE).exists() && !unfinished.exists() {
        // The file that named it is lost.
        File::create(&unfinished).map_err(wrong)?;
    }
    create(directory, identity)
}

fn remove_database(directory: &Path) -> Result<(), OpenError> {
    for name in [DAMAGED_FILE, DAMAGED_FILE_NEW] {
        let path = directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&path, &error));
            }
            _ => {}
        }
    }
    let path = directory.join(DATABASE);
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&path, &error)),
        _ => sync_directory(directory),
    }
}

/// Returns the names of the column families that are noted as damaged.
fn damaged(directory: &Path) -> Result<BTreeSet<String>, OpenError> {
    let path = directory.join(DAMAGED_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(io_error(&path, &error)),
    }
}

/// Notes column families as damaged; durable when this returns.
pub(super) fn add_damaged(directory: &Path, names: BTreeSet<String>) -> Result<(), OpenError> {
    if names.is_empty() {
        return Ok(());
    }
    write_damaged(directory, &damaged(directory)?.union(&names).cloned().collect())
}

/// Notes that a column family is not damaged; durable when this returns.
pub(super) fn remove_damaged(directory: &Path, name: &str) -> Result<(), OpenError> {
    let mut names = damaged(directory)?;
    names.remove(name);
    write_damaged(directory, &names)
}

fn write_damaged(directory: &Path, names: &BTreeSet<String>) -> Result<(), OpenError> {
    let path = directory.join(DAMAGED_FILE_NEW);
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&path, directory.join(DAMAGED_FILE))
    });
    written.map_err(|error| io_error(&path, &error))?;
    sync_directory(directory)
}

/// The directory of RocksDB's text log, in memory. It goes once the database is open; the file stays, without
/// a name, as long as the database.
///
/// RocksDB wants to have such a file. Beside the database it would be the end of the process: a RocksDB with
/// assertions, as Debian's is, aborts when it writes to its log again after "no space".
struct TextLog(PathBuf);

impl TextLog {
    fn create(options: &mut Options) -> Result<TextLog, OpenError> {
        // Those that a killed process left behind are in the way.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for parent in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            loop {
                let number = COUNT.fetch_add(1, Ordering::Relaxed);
                let name = format!("ashlar-engine-{}-{number}", std::process::id());
                let path = parent.join(name);
                match fs::DirBuilder::new().mode(0o700).create(&path) {
                    Ok(()) => {
                        options.set_db_log_dir(&path);
                        return Ok(TextLog(path));
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(_) => break,
                }
            }
        }
        let text = "neither /dev/shm nor the directory for temporary files can be written";
        Err(OpenError::Io(text.to_owned()))
    }
}

impl Drop for TextLog {
    fn drop(&mut self) {
        // What is left there does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An open database, and what belongs to it.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) options: Options,
    pub(super) cache: Cache,
    pub(super) found: Vec<FamilyFound>,
}

/// A database that is only read.
pub(super) struct OpenedToRead {
    pub(super) database: Database,
    pub(super) found: Vec<FamilyFound>,
    /// The file of its text log lies there.
    _log: TextLog,
}

/// Opens the database, and lists its families.
pub(super) fn open(
    directory: &Path,
    identity: Identity,
    settings: &Settings,
) -> Result<Opened, OpenError> {
    let found = open_with(directory, identity, settings, |options, path, descriptors| {
        Database::open_cf_descriptors(options, path, descriptors)
    });
    found.map(|(opened, _)| opened)
}

/// Opens the database and changes nothing, and lists its families.
pub(super) fn open_to_read(
    directory: &Path,
    identity: Identity,
    settings: &Settings,
) -> Result<OpenedToRead, OpenError> {
    let opened = open_with(directory, identity, settings, |options, path, descriptors| {
        Database::open_cf_descriptors_read_only(options, path, descriptors, false)
    });
    let (Opened { database, found, .. }, _log) = opened?;
    Ok(OpenedToRead { database, found, _log })
}

fn open_with(
    directory: &Path,
    identity: Identity,
    settings: &Settings,
    open: impl FnOnce(&Options, &Path, Vec<ColumnFamilyDescriptor>) -> Result<Database, rocksdb::Error>,
) -> Result<(Opened, TextLog), OpenError> {
    check_identity(directory, identity)?;
    let path: PathBuf = directory.join(DATABASE);
    let wrong = |error| database_error(&path, &error);
    let cache = options::cache(settings).map_err(wrong)?;
    let mut options = options::database_options(settings, &cache, false);
    let log = TextLog::create(&mut options)?;
    let damaged = damaged(directory)?;
    let mut families = Vec::new();
    let mut descriptors = vec![ColumnFamilyDescriptor::new("default", options.clone())];
    for name in Database::list_cf(&options, &path).map_err(wrong)? {
        if name == "default" {
            continue;
        }
        let Some((family, compression)) = parse_column_family_name(&name) else {
            let text = format!("{}: unknown column family {name:?}", path.display());
            return Err(OpenError::TooNew(text));
        };
        let mut family_options = options::family_options(settings, &cache, compression);
        family_options.set_disable_auto_compactions(damaged.contains(&name));
        descriptors.push(ColumnFamilyDescriptor::new(&name, family_options));
        families.push((name, family, compression));
    }
    let database = open(&options, &path, descriptors).map_err(wrong)?;
    let mut found = Vec::new();
    for (name, family, compression) in families {
        let lsn = read_lsn(&database, &name).map_err(|text| {
            OpenError::Corrupt(format!("{}: lsn of pool {family}: {text}", path.display()))
        })?;
        let is_damaged = damaged.contains(&name);
        found.push(FamilyFound { family, compression, lsn, is_damaged });
    }
    found.sort_by_key(|found| found.family);
    Ok((Opened { database, options, cache, found }, log))
}

fn read_lsn(database: &Database, name: &str) -> Result<Lsn, String> {
    let column_family = database.cf_handle(name).ok_or("the column family is not open")?;
    let Some(bytes) = database.get_cf(&column_family, LSN_KEY).map_err(String::from)? else {
        return Ok(Lsn::ZERO);
    };
    let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| "damaged")?;
    Ok(Lsn::new(u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const IDENTITY: Identity = Identity { engine: 0xabc, store: 7 };

    #[test]
    fn identity_file_has_these_bytes() {
        let text = "ashlar engine 1\nengine 00000000000000000000000000000abc\n\
                    store 00000000000000000000000000000007\nchecksum ";
        assert!(text_of(IDENTITY).starts_with(text), "{}", text_of(IDENTITY));
        assert_eq!(parse_identity(Path::new("x"), &text_of(IDENTITY)), Ok(IDENTITY));
    }

    #[test]
    fn every_change_of_a_byte_of_the_identity_is_noticed() {
        let good = text_of(IDENTITY).into_bytes();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let parsed = parse_identity(Path::new("x"), &String::from_utf8_lossy(&bad));
            assert!(parsed.is_err(), "byte {at}");
        }
        let newer = String::from_utf8_lossy(&good).replace("engine 1\n", "engine 2\n");
        let parsed = parse_identity(Path::new("x"), &newer);
        assert!(matches!(parsed, Err(OpenError::TooNew(_))), "{parsed:?}");
    }

    #[test]
    fn names_of_column_families_are_read_back() {
        let id = PoolId::new(7).expect("not 0");
        assert_eq!(column_family_name(id, Compression::ZlibBest), "7.zlib-best");
        for compression in Compression::ALL {
            let name = column_family_name(id, compression);
            assert_eq!(parse_column_family_name(&name), Some((id, compression)));
        }
        for bad in ["0.lz4", "7", "7.", "7.lz5", "x.lz4"] {
            assert_eq!(parse_column_family_name(bad), None, "{bad}");
        }
    }
}
