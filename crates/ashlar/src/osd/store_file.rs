//! The file or device that holds the store of an OSD: its path, its lock and its superblock.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use blockstore::{CommitMode, ReadEngine};
use cluster::message::Failure;
use format::disk::{SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock, SuperblockError};
use rustix::fs::{FlockOperation, flock};

use super::engine::EngineToRead;
use crate::output::failure;

/// How long to wait for the lock: the disk of a killed OSD may stay locked for a while.
const LOCK_TIME_MAX: Duration = Duration::from_secs(2);
const LOCK_DELAY: Duration = Duration::from_millis(10);

/// Returns `path` if it is a block device.
pub fn device_at(path: &Path) -> Option<&Path> {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()).then_some(path)
}

/// Returns the file or device that holds the blocks of the OSD at `path`.
pub fn blocks_of(path: &Path) -> PathBuf {
    if device_at(path).is_some() { path.to_owned() } else { path.join("blocks") }
}

/// Returns the name of a commit mode.
pub fn commit_name(commit: CommitMode) -> &'static str {
    match commit {
        CommitMode::Fsync => "fsync",
        CommitMode::Immediate => "immediate",
    }
}

/// Reads the newer copy of a store's superblock: enough to identify the OSD. The node checks the rest.
pub fn superblock_of(blocks: &Path) -> Result<Superblock, Failure> {
    let (file, _) = open_blocks(blocks, false)?;
    let copies = SUPERBLOCK_OFFSETS.into_iter().map(|offset| superblock_at(&file, offset));
    if let Some(superblock) = copies.flatten().max_by_key(|superblock| superblock.sequence) {
        return Ok(superblock);
    }
    // Both copies are damaged: the inspection returns an error with the details.
    inspect_file(blocks, false, None).map(|_| ())?;
    let hint = "use the path given to `ashlar osd create`";
    Err(failure("not_a_store", format!("{} holds no OSD", blocks.display()), hint))
}

/// Opens the file or device of an OSD for reading, and returns it with its size. `lock`: lock it, and fail
/// if the OSD is running.
pub fn open_blocks(blocks: &Path, lock: bool) -> Result<(File, u64), Failure> {
    use std::io::Seek;
    let cannot = |error: std::io::Error| {
        let message = format!("cannot open {}: {error}", blocks.display());
        failure("io", message, "use the path given to `ashlar osd create`")
    };
    let mut file = File::open(blocks).map_err(cannot)?;
    if lock && !can_lock(&file) {
        let message = format!("{} is in use: its OSD is running", blocks.display());
        let hint = "stop it first: `ashlar osd stop ID` if `ashlar up` runs it, otherwise stop its process";
        return Err(failure("busy", message, hint));
    }
    let size = file.seek(std::io::SeekFrom::End(0)).map_err(cannot)?;
    Ok((file, size))
}

/// Locks the file. Returns `false` if a running OSD holds the lock. Waits for an OSD that was just killed:
/// the kernel holds its lock until its I/O in flight has completed.
fn can_lock(file: &File) -> bool {
    let end = std::time::Instant::now() + LOCK_TIME_MAX;
    while flock(file, FlockOperation::NonBlockingLockShared).is_err() {
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOCK_DELAY);
    }
    true
}

/// Describes the store in this file. `engine`: if it has one, that.
pub fn inspect_file(
    blocks: &Path,
    lock: bool,
    engine: Option<&mut EngineToRead>,
) -> Result<blockstore::Inspection, Failure> {
    let (file, size) = open_blocks(blocks, lock)?;
    let mut read = |offset, buffer: &mut [u8]| {
        file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
    };
    let engine = engine.map(|engine| engine as &mut dyn ReadEngine);
    blockstore::inspect(&mut read, size, engine).map_err(|why| {
        let message = format!("{}: {why}", blocks.display());
        let copies = SUPERBLOCK_OFFSETS.map(|offset| superblock_at(&file, offset));
        if copies.iter().any(|copy| matches!(copy, Err(SuperblockError::Newer(_)))) {
            return failure(
                "newer_format",
                message,
                "nothing was changed; use the version of ashlar that wrote it",
            );
        }
        if copies.iter().any(|copy| matches!(copy, Err(SuperblockError::Older(_)))) {
            return failure(
                "older_format",
                message,
                "nothing was changed; use the version of ashlar that wrote it",
            );
        }
        failure("not_a_store", message, "use the path given to `ashlar osd create`")
    })
}

/// Reads one copy of a store's superblock.
fn superblock_at(file: &File, offset: u64) -> Result<Superblock, SuperblockError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut bytes, offset).map_err(|_| SuperblockError::Damaged)?;
    Superblock::decode(&bytes)
}
