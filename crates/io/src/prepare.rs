//! Prepares the disk of a new OSD: measures the disk and writes the initial contents of the store.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::BufferPool;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use crate::disk::Disk;
use crate::{Error, clock};

/// Bytes per write when ranges are filled with zeros.
const FILL_SIZE: usize = 4 << 20;
/// Bytes after which the data is flushed, so that reported progress is really on the disk.
const FLUSH_DISTANCE: u64 = 64 << 20;
/// Number and size (in bytes) of the durable writes that are timed.
const TRIAL_COUNT: usize = 32;
const TRIAL_SIZE: usize = 4096;

/// Measured properties of a directory or block device for an OSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Size of a block device in bytes; `None` for a directory.
    pub size: Option<u64>,
    /// Size of a logical block in bytes: 512 or 4096.
    pub sector_size: u32,
    /// Whether O_DIRECT works.
    pub direct: bool,
    /// Whether the disk has a volatile write cache; `None` if the kernel does not report it.
    pub write_cache: Option<bool>,
    /// Median time of a durable 4 KiB write in microseconds.
    pub durable_write_us: u64,
}

/// Measures a directory or block device without changing data: for timing it writes to a temporary file, or
/// writes back the data that the device already holds.
pub fn probe(path: &Path) -> Result<Probe, Error> {
    let failed = |error| Error::new(format!("cannot examine {}", path.display()), error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.file_type().is_block_device() {
        let disk = Disk::open(path)?;
        let offset = disk.size().saturating_sub(TRIAL_SIZE as u64) / 4096 * 4096;
        let durable_write_us = time_durable_writes(&disk, offset)?;
        let write_cache = write_cache_of(metadata.rdev());
        return Ok(found(&disk, Some(disk.size()), write_cache, durable_write_us));
    }
    if !metadata.is_dir() {
        let what = path.display();
        return Err(Error(format!("{what} is neither a directory nor a block device")));
    }
    let trial = Trial(path.join(format!(".ashlar-probe.{}", std::process::id())));
    let file = create_new(&trial.0).map_err(failed)?;
    file.write_all_at(&[0; TRIAL_SIZE], 0).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    let disk = Disk::open(&trial.0)?;
    // Remove the name now; the file stays open. So no file is left behind if this process is killed.
    drop(trial);
    let durable_write_us = time_durable_writes(&disk, 0)?;
    Ok(found(&disk, None, write_cache_of(metadata.dev()), durable_write_us))
}

fn found(
    disk: &Disk,
    size: Option<u64>,
    write_cache: Option<bool>,
    durable_write_us: u64,
) -> Probe {
    let (sector_size, direct) = (disk.sector_size(), !disk.buffered());
    Probe { size, sector_size, direct, write_cache, durable_write_us }
}

/// A file that is removed when it is dropped.
struct Trial(PathBuf);

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Times durable writes of the data that is already at `offset`; returns the median in microseconds.
fn time_durable_writes(disk: &Disk, offset: u64) -> Result<u64, Error> {
    let mut buffer = BufferPool::default().take(TRIAL_SIZE);
    disk.read_blocking(offset, &mut buffer)?;
    let mut times = Vec::with_capacity(TRIAL_COUNT);
    for _ in 0..TRIAL_COUNT {
        let begin = clock::now();
        let pieces = [IoSlice::new(&buffer)];
        let written = pwritev2(disk.file(), &pieces, offset, ReadWriteFlags::DSYNC);
        if written != Ok(TRIAL_SIZE) {
            let what = format!("a durable write to {} failed", disk.path().display());
            return Err(Error::new(
                what,
                written.err().map_or("short write".into(), |e| e.to_string()),
            ));
        }
        times.push(clock::now().since(begin).as_nanos() / 1000);
    }
    times.sort_unstable();
    Ok(times[TRIAL_COUNT / 2])
}

/// Returns whether the kernel reports a volatile write cache for a device number; for a partition, that of
/// its disk.
fn write_cache_of(device: u64) -> Option<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = format!("/sys/dev/block/{major}:{minor}");
    let read = |path: &str| std::fs::read_to_string(format!("{folder}/{path}")).ok();
    let text = read("queue/write_cache").or_else(|| read("../queue/write_cache"))?;
    Some(text.trim() == "write back")
}

fn create_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The contents of a new store, in ranges of (offset, length) in bytes.
#[derive(Clone, Copy, Debug)]
pub struct NewStore<'a> {
    /// Ranges to fill with zeros.
    pub zero: &'a [(u64, u64)],
    /// Ranges that must be allocated and read as zeros; zeros need not actually be written.
    pub clear: &'a [(u64, u64)],
    /// (offset, bytes) to write after the ranges are zeroed; whole sectors.
    pub images: &'a [(u64, Vec<u8>)],
}

/// Creates a store at `path`: a new file of `size` bytes, or a block device of at least that size. Zeroes
/// and clears the ranges, flushes, then writes the images and flushes. `progress` is called with (bytes
/// done, total bytes).
///
/// If the process is killed at any point, no incomplete store remains at `path`. A file is written with the
/// extension `new` and renamed to `path` at the end; leftovers of an earlier call are overwritten. A device
/// cannot be renamed, but it holds no valid store until the images, which include the superblocks, are
/// written last.
///
/// After an error the incomplete file is removed.
pub fn prepare(
    path: &Path,
    size: u64,
    store: &NewStore<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let failed = |error| Error::new(format!("cannot write {}", path.display()), error);
    let is_device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    if is_device {
        let disk = Disk::open(path)?;
        if disk.size() < size {
            let (path, has) = (path.display(), disk.size());
            return Err(Error(format!("{path} has only {has} of the {size} bytes requested")));
        }
        return fill(disk.file(), size, store, progress).map_err(failed);
    }
    let new = path.with_extension("new");
    let file = claim_new(&new, path)?;
    let result = file
        .set_len(size)
        .and_then(|()| fill_new(&file, size, store, progress))
        .and_then(|()| std::fs::rename(&new, path));
    if result.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    result.and_then(|()| sync_names_of(path)).map_err(failed)
}

/// Opens `new` exclusively and empties it. Fails if another process is creating the same store, or if
/// `path` already exists.
fn claim_new(new: &Path, path: &Path) -> Result<File, Error> {
    let failed = |error| Error::new(format!("cannot write {}", new.display()), error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(new).map_err(failed)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error(format!("another process is creating {}", path.display())));
    }
    // Check this under the lock: another process may have renamed the file to `path` after it was opened
    // here.
    if path.exists() {
        if let Ok(ours) = file.metadata()
            && std::fs::metadata(new).is_ok_and(|found| found.ino() == ours.ino())
        {
            let _ = std::fs::remove_file(new);
        }
        return Err(Error(format!("{} already exists", path.display())));
    }
    file.set_len(0).map_err(failed)?;
    Ok(file)
}

/// Fills a new file. Reserves the space first, so that it is contiguous and a full disk is noticed early.
fn fill_new(
    file: &File,
    size: u64,
    store: &NewStore<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> std::io::Result<()> {
    for (offset, length) in store.zero.iter().chain(store.clear) {
        match fallocate(file, FallocateFlags::empty(), *offset, *length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fill(file, size, store, progress)
}

fn fill(
    file: &File,
    size: u64,
    store: &NewStore<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> std::io::Result<()> {
    let lengths = store.zero.iter().chain(store.clear).map(|(_, length)| length);
    let total = lengths.sum::<u64>();
    let mut done = 0;
    progress(0, total);
    for (ranges, is_written) in [(store.zero, true), (store.clear, false)] {
        for (offset, length) in ranges {
            assert!(offset + length <= size);
            for at in (*offset..offset + length).step_by(FLUSH_DISTANCE as usize) {
                let portion = (offset + length - at).min(FLUSH_DISTANCE);
                if is_written || !clear(file, at, portion)? {
                    write_zeros(file, at, portion)?;
                    file.sync_data()?;
                }
                done += portion;
                progress(done, total);
            }
        }
    }
    file.sync_all()?;
    let longest = store.images.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0);
    let mut aligned = BufferPool::default().take(longest);
    for (offset, bytes) in store.images {
        assert!(offset + bytes.len() as u64 <= size);
        aligned[..bytes.len()].copy_from_slice(bytes);
        file.write_all_at(&aligned[..bytes.len()], *offset)?;
    }
    file.sync_all()?;
    progress(total, total);
    Ok(())
}

/// Lets the file system or device zero a range, if possible without writing. Returns `false` if this is not
/// supported.
fn clear(file: &File, offset: u64, length: u64) -> std::io::Result<bool> {
    match fallocate(file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, length) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &File, offset: u64, length: u64) -> std::io::Result<()> {
    let zeros = BufferPool::default().take_zeroed(FILL_SIZE);
    for at in (offset..offset + length).step_by(FILL_SIZE) {
        let portion = (offset + length - at).min(FILL_SIZE as u64);
        file.write_all_at(&zeros[..portion as usize], at)?;
    }
    Ok(())
}

/// Makes the directory entry of a new file durable, and the entry of its directory, which may be new too.
fn sync_names_of(path: &Path) -> std::io::Result<()> {
    sync_folder_of(path)?;
    match path.parent().filter(|folder| folder.file_name().is_some()) {
        Some(folder) => sync_folder_of(folder),
        None => Ok(()),
    }
}

/// Makes the creation or removal of a directory entry durable.
pub(crate) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Replaces the file at `path`, or creates it, with these bytes and this mode. A crash leaves either the
/// old file or the complete new one. Requires: no other process replaces the file at the same time.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    put_in_place(path, bytes, mode, |_| Ok(()))
        .map_err(|error| Error::new(format!("cannot write {}", path.display()), error))
}

/// Like [`replace_file`], but calls `prepare` with the new, still empty file before it replaces the old
/// one.
pub(crate) fn put_in_place(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    prepare: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let new = path.with_extension("new");
    if let Err(error) = std::fs::remove_file(&new)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    prepare(&file)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    sync_folder_of(path)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory that is removed when it is dropped.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the temporary folder is writable");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_store_is_written_and_never_over_another() {
        let folder = Folder::new("prepare");
        let path = folder.0.join("blocks");
        let (zero, clear) = ([(1 << 20, 9 << 20)], [(16 << 20, 70 << 20)]);
        let images = [(4096, vec![7; 8192]), (0, vec![9; 4096])];
        let store = NewStore { zero: &zero, clear: &clear, images: &images };
        let mut steps = Vec::new();
        let mut progress = |done, total| steps.push((done, total));
        prepare(&path, 128 << 20, &store, &mut progress).expect("there is space");
        let total = 79 << 20;
        assert_eq!(steps.first(), Some(&(0, total)));
        assert_eq!(steps.last(), Some(&(total, total)));
        assert!(steps.len() > 2 && steps.is_sorted());
        let metadata = path.metadata().expect("it was made");
        assert_eq!(metadata.len(), 128 << 20);
        assert!(metadata.blocks() * 512 >= total, "journal and checkpoints are not sparse");
        assert!(metadata.blocks() * 512 < 100 << 20, "the data area is");
        let bytes = std::fs::read(&path).expect("it was made");
        assert!(bytes[..4096].iter().all(|byte| *byte == 9));
        assert!(bytes[4096..12288].iter().all(|byte| *byte == 7));
        assert!(bytes[12288..].iter().all(|byte| *byte == 0));
        let error = prepare(&path, 128 << 20, &store, &mut |_, _| ());
        assert!(error.expect_err("it exists").0.contains("exists"));
        assert_eq!(std::fs::read(&path).expect("untouched").len(), 128 << 20);
    }

    #[test]
    fn a_store_gets_its_name_only_when_complete() {
        let folder = Folder::new("prepare-name");
        let (path, new) = (folder.0.join("blocks"), folder.0.join("blocks.new"));
        // A leftover of a killed process: longer, and full of other bytes.
        std::fs::write(&new, vec![0x55; 3 << 20]).expect("ours");
        let (zero, images) = ([(4096, 1 << 20)], [(0, vec![9; 4096])]);
        let store = NewStore { zero: &zero, clear: &[], images: &images };
        let mut seen = 0;
        let mut progress = |_, _| {
            assert!(new.exists() && !path.exists());
            let second = prepare(&path, 2 << 20, &store, &mut |_, _| ());
            assert!(second.expect_err("one at a time").0.contains("another process"));
            seen += 1;
        };
        prepare(&path, 2 << 20, &store, &mut progress).expect("there is space");
        assert!(seen >= 2);
        let bytes = std::fs::read(&path).expect("it has its name");
        assert!(bytes.len() == 2 << 20 && bytes[4096..].iter().all(|byte| *byte == 0));
        assert!(!new.exists());
        assert!(prepare(&path, 2 << 20, &store, &mut |_, _| ()).is_err());
        assert!(!new.exists(), "a refusal leaves nothing");
    }

    #[test]
    fn a_failed_creation_leaves_nothing() {
        let folder = Folder::new("prepare-full");
        let path = folder.0.join("blocks");
        let too_much = 1 << 60;
        let ranges = [(0, too_much)];
        for (zero, clear) in [(&ranges[..], &[][..]), (&[], &ranges)] {
            let store = NewStore { zero, clear, images: &[] };
            assert!(prepare(&path, too_much, &store, &mut |_, _| ()).is_err());
            assert_eq!(std::fs::read_dir(&folder.0).expect("ours").count(), 0);
        }
    }

    #[test]
    fn a_directory_is_probed_and_left_as_it_was() {
        let folder = Folder::new("probe");
        let probe = probe(&folder.0).expect("a directory");
        assert_eq!(probe.size, None);
        assert!([512, 4096].contains(&probe.sector_size));
        assert_eq!(std::fs::read_dir(&folder.0).expect("ours").count(), 0);
        assert!(super::probe(&folder.0.join("none")).is_err());
        std::fs::write(folder.0.join("file"), "x").expect("ours");
        let error = super::probe(&folder.0.join("file")).expect_err("a file");
        assert!(error.0.contains("neither a directory nor a block device"), "{error}");
    }
}
