//! `ashlar osd create`: measures the disk, requests an id from a monitor, writes an empty store.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::OsdId;
use base::size::MIB;
use blockstore::{CommitMode, CreateOptions, StoreId};
use client::Config;
use cluster::message::{Command, Failure};
use serde_json::{Value, json};

use super::engine;
use super::store_file::{blocks_of, commit_name, device_at};
use crate::call::COMMAND_TIME_MAX;
use crate::cli::CommitArg;
use crate::output::{Format, Progress, failure, print_json, size_text};

/// If a durable 4 KiB write takes at most this many microseconds, the disk's cache is protected against
/// power loss (or the file is in memory), and making each write durable at once costs almost nothing.
const FAST_WRITE_US_MAX: u64 = 100;

/// The parameters of a new OSD.
pub struct CreateRequest<'a> {
    /// Where to create the OSD.
    pub place: Place<'a>,
    /// Size in bytes; required for a directory.
    pub size: Option<u64>,
    /// Commit mode; if `None`, chosen by measuring the disk.
    pub commit: Option<CommitArg>,
}

/// Where to create an OSD.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// In this directory, which is created if missing, or on this block device.
    At(&'a Path),
    /// In a new directory `osd.ID` inside this one.
    Within(&'a Path),
}

impl Place<'_> {
    /// Returns the directory or device for the OSD with this id.
    fn of(self, osd: OsdId) -> PathBuf {
        match self {
            Place::At(path) => path.to_owned(),
            Place::Within(dir) => dir.join(osd.to_string()),
        }
    }
}

/// An OSD that was created.
pub struct CreatedOsd {
    /// The measurements of the disk and the options that were chosen, as text.
    pub summary: String,
    /// The same as JSON.
    pub value: Value,
}

/// Runs `ashlar osd create`.
pub fn create(
    config: &Config,
    path: &Path,
    size: Option<u64>,
    commit: Option<CommitArg>,
    format: Format,
) -> Result<(), Failure> {
    let mut progress = None;
    let request = CreateRequest { place: Place::At(path), size, commit };
    let created = create_osd(config, &request, &mut |done, total| {
        progress
            .get_or_insert_with(|| Progress::new(format, "writing the journal", total))
            .set(done);
    })?;
    drop(progress);
    match format {
        Format::Json => print_json(&created.value)?,
        Format::Text => {
            print_line!("{}", created.summary)?;
            print_line!("Start it with: ashlar osd run {}", path.display())?;
        }
    }
    Ok(())
}

/// Creates an OSD: measures the disk, requests an id from a monitor, writes an empty store. `progress` is
/// called with (bytes done, total bytes).
pub fn create_osd(
    config: &Config,
    request: &CreateRequest,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CreatedOsd, Failure> {
    // Make all checks that can fail before a monitor assigns an id.
    let device = match request.place {
        Place::At(path) => {
            refuse_existing(path)?;
            device_at(path).is_some()
        }
        Place::Within(_) => false,
    };
    if !device && request.size.is_none() {
        let hint = "specify the size, for example --size 100GiB";
        return Err(failure("invalid", "an OSD in a directory needs a size", hint));
    }
    let (Place::At(path) | Place::Within(path)) = request.place;
    let cannot = |error: io::Error| {
        let message = format!("cannot create an OSD at {}: {error}", path.display());
        failure("io", message, "check the path, its permissions and free space")
    };
    let missing = first_missing(path).filter(|_| !device);
    if !device {
        fs::create_dir_all(path).map_err(|error| cannot(io::Error::new(path.display(), error)))?;
    }
    let checked = io::probe(path).map_err(cannot).and_then(|probe| {
        let options = options_of(config, request, &probe);
        let refused = |error: blockstore::CreateError| {
            failure("invalid", error.to_string(), "choose another --size")
        };
        blockstore::create(&options).map_err(refused)?;
        Ok((probe, options))
    });
    if checked.is_err() {
        remove_empty(path, missing);
    }
    let (probe, mut options) = checked?;
    match unfinished_osd(config, request.place)? {
        Some((store, osd)) => (options.store, options.osd) = (store, osd),
        None => {
            if let Some(claim) = claim_of(request.place) {
                let text = format!("{}\n", options.store);
                io::replace_file(&claim, text.as_bytes(), 0o600).map_err(cannot)?;
            }
            options.osd = register(config, options.store)?;
        }
    }
    let created = write_store(&options, &probe, &request.place.of(options.osd), progress)?;
    if let Some(claim) = claim_of(request.place) {
        remove_claim(&claim)?;
    }
    Ok(created)
}

/// Returns the highest directory of a path that is not there yet.
fn first_missing(path: &Path) -> Option<&Path> {
    path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).last()
}

/// Removes the empty directories from `path` up to `first`, which this process created.
fn remove_empty(path: &Path, first: Option<&Path>) {
    let Some(first) = first else { return };
    for dir in path.ancestors().take_while(|dir| dir.starts_with(first)) {
        // Where something is in it, it stays.
        if fs::remove_dir(dir).is_err() {
            return;
        }
    }
}

/// Returns the path of the claim file. It holds the identity of a store from before the OSD's id is
/// requested until the store is complete, so that a later attempt gets the same id even if this process is
/// killed. A device has no room for a claim file: there an interrupted attempt leaves an id unused.
fn claim_of(place: Place<'_>) -> Option<PathBuf> {
    let (Place::At(path) | Place::Within(path)) = place;
    device_at(path).is_none().then(|| path.join("unfinished-osd"))
}

fn remove_claim(claim: &Path) -> Result<(), Failure> {
    fs::remove_file(claim).map_err(|error| {
        let message = format!("cannot remove {}: {error}", claim.display());
        failure("io", message, "check the permissions of its directory and remove the file by hand")
    })
}

/// Returns the OSD whose creation at this place was interrupted, if any.
pub fn unfinished_osd(
    config: &Config,
    place: Place<'_>,
) -> Result<Option<(StoreId, OsdId)>, Failure> {
    let Some(claim) = claim_of(place) else { return Ok(None) };
    let Ok(text) = fs::read_to_string(&claim) else { return Ok(None) };
    let Ok(number) = u128::from_str_radix(text.trim_end(), 16) else {
        // This is not a claim file that ashlar wrote: those are replaced atomically, so they are complete.
        remove_claim(&claim)?;
        return Ok(None);
    };
    let store = StoreId::new(number);
    let osd = register(config, store)?;
    if blocks_of(&place.of(osd)).exists() {
        // The store is complete; only its claim file was not removed yet.
        remove_claim(&claim)?;
        return Ok(None);
    }
    Ok(Some((store, osd)))
}

/// Returns the id of the OSD with this store: a new id, or the id that the store already has.
fn register(config: &Config, store: StoreId) -> Result<OsdId, Failure> {
    let command = Command::OsdCreate { store: store.to_string() };
    let answer = client::call(config, command, COMMAND_TIME_MAX)?;
    let osd = answer["id"].as_u64().and_then(|id| OsdId::new(u32::try_from(id).ok()?));
    osd.ok_or_else(|| {
        let hint = "run the same version on all hosts; compare `ashlar --version`";
        failure("protocol", "the monitor returned no OSD id", hint)
    })
}

/// Returns the options that are fixed for the life of the store. The OSD's id is still unknown.
fn options_of(config: &Config, request: &CreateRequest, probe: &io::Probe) -> CreateOptions {
    let fast = probe.durable_write_us <= FAST_WRITE_US_MAX;
    CreateOptions {
        cluster: config.file.cluster,
        osd: OsdId::FIRST,
        store: StoreId::new(u128::from_le_bytes(io::random_bytes())),
        size: request.size.or(probe.size).unwrap_or_default() / MIB * MIB,
        sector_size: probe.sector_size,
        engine: None,
        commit: match request.commit {
            Some(commit) => commit.mode(),
            None if fast => CommitMode::Immediate,
            None => CommitMode::Fsync,
        },
    }
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    let exists = |what: &str| {
        let message = format!("{} {what}", path.display());
        Err(failure("exists", message, "use another path, or wipe this one by hand first"))
    };
    if let Some(device) = device_at(path) {
        return match is_empty(device) {
            Ok(true) => Ok(()),
            Ok(false) => exists("is not empty: there is data in its first or last MiB"),
            Err(error) => exists(&format!("cannot be read: {error}")),
        };
    }
    // Check the path as given, and also with links and `..` resolved if its parent exists.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = absolute.parent().and_then(|parent| fs::canonicalize(parent).ok());
    if absolute.starts_with("/dev") || parent.is_some_and(|parent| parent.starts_with("/dev")) {
        let message = format!("{} is not a block device", path.display());
        let hint = "list the devices with `lsblk`; a directory for an OSD must be outside of /dev";
        return Err(failure("invalid", message, hint));
    }
    if path.join("blocks").exists() {
        return exists("already holds an OSD");
    }
    if path.join("objects").exists() {
        return exists("holds the records of objects of an earlier OSD, in objects/");
    }
    if path.exists() && !path.is_dir() {
        return exists("is neither a directory nor a block device");
    }
    Ok(())
}

/// Whether the first and last MiB of a device are zero: file systems and partition tables put their
/// signatures there.
fn is_empty(device: &Path) -> std::io::Result<bool> {
    use std::io::Seek;
    let mut file = File::open(device)?;
    let size = file.seek(std::io::SeekFrom::End(0))?;
    let mut bytes = vec![0; MIB.min(size) as usize];
    for offset in [0, size - bytes.len() as u64] {
        file.read_exact_at(&mut bytes, offset)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write_store(
    options: &CreateOptions,
    probe: &io::Probe,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CreatedOsd, Failure> {
    let cannot = |error: io::Error| {
        let message = format!("cannot create an OSD at {}: {error}", path.display());
        failure("io", message, "check the path, its permissions and free space")
    };
    if device_at(path).is_none() {
        fs::create_dir_all(path).map_err(|error| cannot(io::Error::new(path.display(), error)))?;
    }
    let (osd, size, commit) = (options.osd, options.size, options.commit);
    let created = blockstore::create(options)
        .map_err(|error| failure("invalid", error.to_string(), "choose another --size"))?;
    let store =
        io::NewStore { zero: &created.zero, clear: &created.clear, images: &created.images };
    io::prepare(&blocks_of(path), size, &store, progress).map_err(cannot)?;
    // The store is complete, and volumes need no engine. A start creates it if this process ends before.
    let objects = match device_at(path) {
        Some(_) => "no engine for objects: start it with --objects DIR to have one".to_owned(),
        None => match engine::create(path, options.store) {
            Ok(()) => "an engine for objects in objects/".to_owned(),
            Err(error) => format!("no engine for objects yet, its start tries again: {error}"),
        },
    };
    let cache = match probe.write_cache {
        Some(true) => "has a write cache",
        Some(false) => "has no volatile write cache",
        None => "does not report whether it has a write cache",
    };
    let direct =
        if probe.direct { "O_DIRECT works" } else { "O_DIRECT is not supported: I/O is buffered" };
    let summary = format!(
        "{osd}: {} at {}; sectors of {} bytes, {direct}; the disk {cache}, a durable 4 KiB write \
         takes {} us: commit mode {}; {objects}",
        size_text(size),
        path.display(),
        probe.sector_size,
        probe.durable_write_us,
        commit_name(commit),
    );
    let value = json!({
        "id": osd, "path": path, "size_bytes": size, "sector_size": probe.sector_size,
        "direct": probe.direct, "write_cache": probe.write_cache,
        "durable_write_us": probe.durable_write_us, "commit": commit_name(commit),
    });
    Ok(CreatedOsd { summary, value })
}
