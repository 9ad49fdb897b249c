//! The disk of one OSD: a file or block device, opened exclusively and, if possible, with O_DIRECT; and the
//! jobs that io_uring executes on it.
//!
//! Invariants
//!   1. Only one process can have a disk open for writing: a second one receives a clear error.
//!   2. A job is reported as done only when all its bytes are read or written; after a short read or write
//!      the job continues with the rest.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Buffer, BufferMut};
use format::door::{DiskEffect, DiskError, DiskEvent, DiskOp};
use io_uring::{opcode, squeue, types};
use rustix::fs::{
    AtFlags, FlockOperation, SeekFrom, StatxFlags, flock, ioctl_blksszget, seek, statx,
};
use rustix::io::Errno;

use crate::Error;

/// How long to retry locking, in milliseconds: the kernel holds the lock of a killed process until its last
/// operations have completed.
const LOCK_WAIT_MS: u64 = 5_000;
const LOCK_RETRY_MS: u64 = 20;
/// Maximum number of buffers in one vectored write (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// An opened file or block device.
#[derive(Debug)]
pub struct Disk {
    file: File,
    path: PathBuf,
    size: u64,
    sector_size: u32,
    buffered: bool,
    is_device: bool,
}

impl Disk {
    /// Opens a disk for reading and writing, exclusively for this process.
    pub fn open(path: &Path) -> Result<Disk, Error> {
        for _ in 0..LOCK_WAIT_MS / LOCK_RETRY_MS {
            if let Some(disk) = Disk::open_with(path, true)?
                && disk.try_lock()?
            {
                return Ok(disk);
            }
            std::thread::sleep(std::time::Duration::from_millis(LOCK_RETRY_MS));
        }
        Err(in_use(path))
    }

    /// Opens a disk for inspection, without a lock; the caller must not write.
    pub fn open_read_only(path: &Path) -> Result<Disk, Error> {
        Disk::open_with(path, false)?.ok_or_else(|| in_use(path))
    }

    /// Opens a disk. Returns `None` if it is a device that another process has opened exclusively.
    fn open_with(path: &Path, write: bool) -> Result<Option<Disk>, Error> {
        let failed = |error| Error::new(format!("cannot open {}", path.display()), error);
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            let what = path.display();
            return Err(Error(format!("{what} is neither a regular file nor a block device")));
        }
        let exclusive = if is_device && write { libc::O_EXCL } else { 0 };
        let open = |direct| {
            let flags = libc::O_CLOEXEC | exclusive | direct;
            OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
        };
        let direct = match open(libc::O_DIRECT) {
            Ok(file) => direct_sector_size(&file, is_device).map(|size| (file, size)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let buffered = direct.is_none();
        let (file, sector_size) = match direct {
            Some(direct) => direct,
            None => (open(0).map_err(failed)?, 4096),
        };
        let size = seek(&file, SeekFrom::End(0)).map_err(|error| failed(error.into()))?;
        let path = path.to_path_buf();
        Ok(Some(Disk { file, path, size, sector_size, buffered, is_device }))
    }

    fn try_lock(&self) -> Result<bool, Error> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            Err(error) => Err(Error::new(format!("cannot lock {}", self.path.display()), error)),
        }
    }

    /// Returns the path of the disk.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of a logical block in bytes: 512 or 4096.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Whether I/O goes through the page cache because O_DIRECT does not work here.
    pub fn buffered(&self) -> bool {
        self.buffered
    }

    /// Whether the disk is a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Reads `buffer.len()` bytes at `offset`, blocking. For commands, not for the reactor's loop.
    pub fn read_blocking(&self, offset: u64, buffer: &mut BufferMut) -> Result<(), Error> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset).map_err(|error| {
            let length = buffer.len();
            Error::new(
                format!("cannot read {length} bytes at {offset} of {}", self.path.display()),
                error,
            )
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Builds the job that carries out an effect.
    pub(crate) fn job(&self, effect: DiskEffect) -> Box<DiskJob> {
        let (op, offset, length, work) = match effect {
            DiskEffect::Read { op, offset, buffer } => {
                (op, offset, buffer.len() as u64, Work::Read(buffer))
            }
            DiskEffect::Write { op, offset, buffers, durable } => {
                let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
                (op, offset, length, Work::Write { buffers, durable })
            }
            DiskEffect::Flush { op } => (op, 0, 0, Work::Flush),
            DiskEffect::Reserve { op, offset, length } => (op, offset, length, Work::Reserve),
            DiskEffect::Discard { op, offset, length } => (op, offset, length, Work::Discard),
        };
        let fd = self.file.as_raw_fd();
        Box::new(DiskJob { op, fd, offset, length, done: 0, work, pieces: Vec::new() })
    }
}

fn in_use(path: &Path) -> Error {
    Error(format!(
        "{} is in use by another process: an OSD runs on it already, or it is mounted",
        path.display()
    ))
}

/// Returns the logical block size of a file opened with O_DIRECT: 512 or 4096. `None` if direct I/O does
/// not work after all, or works only with larger blocks.
fn direct_sector_size(file: &File, is_device: bool) -> Option<u32> {
    let size = if is_device {
        ioctl_blksszget(file).ok()?
    } else {
        let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN);
        match found.stx_dio_offset_align {
            // The file system does not report its alignment: 4 KiB works on every disk.
            _ if !told => 4096,
            0 => return None,
            size => size.max(found.stx_dio_mem_align),
        }
    };
    match size {
        0..=512 => Some(512),
        513..=4096 => Some(4096),
        _ => None,
    }
}

/// An operation in flight; it owns the memory that the kernel reads or writes.
pub(crate) struct DiskJob {
    op: DiskOp,
    fd: RawFd,
    offset: u64,
    length: u64,
    done: u64,
    work: Work,
    /// The iovec array that the kernel reads, for writes of several buffers.
    pieces: Vec<libc::iovec>,
}

enum Work {
    Read(BufferMut),
    Write { buffers: Vec<Buffer>, durable: bool },
    Flush,
    Reserve,
    Discard,
}

/// The state of a job after a completion.
pub(crate) enum Progress {
    /// Only a part is done: submit the job again for the rest.
    More(Box<DiskJob>),
    /// The job has ended, with or without an error.
    Done(DiskEvent),
}

impl DiskJob {
    /// Returns the io_uring entry for the part that is not done yet. The entry points to memory that `self`
    /// owns.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        assert!(self.done <= self.length);
        let fd = types::Fd(self.fd);
        let offset = self.offset + self.done;
        match &mut self.work {
            Work::Read(buffer) => {
                assert!(buffer.len() as u64 == self.length);
                let rest = &mut buffer[self.done as usize..];
                let length = u32::try_from(rest.len()).expect("buffers are smaller than 4 GiB");
                opcode::Read::new(fd, rest.as_mut_ptr(), length).offset(offset).build()
            }
            Work::Write { buffers, durable } => {
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                if let [buffer] = buffers.as_slice() {
                    let rest = &buffer[self.done as usize..];
                    let length = u32::try_from(rest.len()).expect("smaller than 4 GiB");
                    let write = opcode::Write::new(fd, rest.as_ptr(), length);
                    return write.offset(offset).rw_flags(flags).build();
                }
                gather(buffers, self.done, &mut self.pieces);
                let (pieces, count) = (self.pieces.as_ptr(), self.pieces.len() as u32);
                opcode::Writev::new(fd, pieces, count).offset(offset).rw_flags(flags).build()
            }
            Work::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Work::Reserve => {
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, self.length).offset(offset).mode(mode).build()
            }
            Work::Discard => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, self.length).offset(offset).mode(mode).build()
            }
        }
    }

    /// Handles a completion with `result`: a number of bytes, or a negative errno.
    pub(crate) fn advance(mut self: Box<Self>, result: i32) -> Progress {
        let again = [-libc::EINTR, -libc::EAGAIN];
        if again.contains(&result) {
            return Progress::More(self);
        }
        if result < 0 {
            return Progress::Done(self.end_with_error(-result));
        }
        let by_bytes = matches!(self.work, Work::Read(_) | Work::Write { .. });
        if by_bytes {
            self.done += result as u64;
            assert!(self.done <= self.length);
            if self.done < self.length && result > 0 {
                return Progress::More(self);
            }
            if self.done < self.length {
                let error = self.describe("reached the end of the disk");
                return Progress::Done(self.end(Err(DiskError::Io(error))));
            }
            assert!(self.done == self.length, "a job is done when all of its bytes are");
        }
        Progress::Done(self.end(Ok(())))
    }

    fn end_with_error(self, errno: i32) -> DiskEvent {
        // A block device has no space to reserve and refuses the call (some with ENODEV): that is no error.
        let unsupported = [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOTTY, libc::ENODEV];
        let is_about_space = matches!(self.work, Work::Reserve | Work::Discard);
        if is_about_space && unsupported.contains(&errno) {
            return self.end(Ok(()));
        }
        // A flush that fails with ENOSPC has lost written data, so it is reported as an I/O error, not as a
        // full disk.
        let is_flush = matches!(self.work, Work::Flush);
        let result = match errno {
            libc::ENOSPC | libc::EDQUOT if !is_flush => Err(DiskError::NoSpace),
            _ => {
                let error = std::io::Error::from_raw_os_error(errno);
                Err(DiskError::Io(self.describe(&error.to_string())))
            }
        };
        self.end(result)
    }

    fn describe(&self, what: &str) -> String {
        let (offset, length) = (self.offset, self.length);
        match &self.work {
            Work::Read(_) => format!("read of {length} bytes at {offset}: {what}"),
            Work::Write { .. } => format!("write of {length} bytes at {offset}: {what}"),
            Work::Flush => format!("flush: {what}"),
            Work::Reserve => format!("reservation of {length} bytes at {offset}: {what}"),
            Work::Discard => format!("discard of {length} bytes at {offset}: {what}"),
        }
    }

    fn end(self, result: Result<(), DiskError>) -> DiskEvent {
        match self.work {
            Work::Read(buffer) => DiskEvent::Read { op: self.op, buffer, result },
            _ => DiskEvent::Done { op: self.op, result },
        }
    }
}

/// Fills `pieces` with the rest of `buffers` after their first `done` bytes, at most as many as one call
/// accepts.
fn gather(buffers: &[Buffer], mut done: u64, pieces: &mut Vec<libc::iovec>) {
    pieces.clear();
    for buffer in buffers {
        if done >= buffer.len() as u64 {
            done -= buffer.len() as u64;
            continue;
        }
        if pieces.len() == PIECES_MAX {
            break;
        }
        let rest = &buffer[done as usize..];
        done = 0;
        let iov_base = rest.as_ptr().cast_mut().cast();
        pieces.push(libc::iovec { iov_base, iov_len: rest.len() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::BufferPool;

    fn job(work: Work, length: u64) -> Box<DiskJob> {
        let pieces = Vec::new();
        Box::new(DiskJob { op: DiskOp(1), fd: -1, offset: 4096, length, done: 0, work, pieces })
    }

    fn done(progress: Progress) -> Result<(), DiskError> {
        match progress {
            Progress::Done(DiskEvent::Done { result, .. } | DiskEvent::Read { result, .. }) => {
                result
            }
            Progress::More(_) => panic!("it has ended"),
        }
    }

    #[test]
    fn a_partial_write_is_continued() {
        let pool = BufferPool::default();
        let buffers: Vec<Buffer> = (0..3).map(|i| pool.copy_of(&[i; 4096])).collect();
        let mut job = job(Work::Write { buffers, durable: true }, 3 * 4096);
        job.entry();
        assert_eq!(job.pieces.len(), 3);
        let Progress::More(mut job) = job.advance(4096 + 512) else {
            panic!("two thirds are left")
        };
        job.entry();
        assert_eq!(job.pieces.iter().map(|p| p.iov_len).collect::<Vec<_>>(), [4096 - 512, 4096]);
        let Progress::More(job) = job.advance(-libc::EINTR) else { panic!("it was interrupted") };
        assert_eq!(done(job.advance(2 * 4096 - 512)), Ok(()));
    }

    #[test]
    fn many_pieces_are_written_with_several_calls() {
        let pool = BufferPool::default();
        let buffers = vec![pool.copy_of(&[1; 512]); PIECES_MAX + 5];
        let mut job = job(Work::Write { buffers, durable: false }, (PIECES_MAX as u64 + 5) * 512);
        job.entry();
        assert_eq!(job.pieces.len(), PIECES_MAX);
        let Progress::More(mut job) = job.advance(PIECES_MAX as i32 * 512) else {
            panic!("five are left")
        };
        job.entry();
        assert_eq!(job.pieces.len(), 5);
    }

    #[test]
    fn disk_errors_are_classified() {
        let write = || job(Work::Write { buffers: vec![], durable: false }, 4096);
        assert_eq!(done(write().advance(-libc::ENOSPC)), Err(DiskError::NoSpace));
        assert_eq!(done(write().advance(-libc::EDQUOT)), Err(DiskError::NoSpace));
        let Err(DiskError::Io(text)) = done(write().advance(-libc::EIO)) else { panic!("EIO") };
        assert!(text.starts_with("write of 4096 bytes at 4096: Input/output error"), "{text}");
        let read = job(Work::Read(BufferPool::default().take(4096)), 4096);
        assert!(matches!(done(read.advance(0)), Err(DiskError::Io(_))), "the end of the disk");
        assert_eq!(done(job(Work::Discard, 4096).advance(-libc::EOPNOTSUPP)), Ok(()));
        assert!(done(job(Work::Discard, 4096).advance(-libc::EIO)).is_err());
        assert_eq!(done(job(Work::Reserve, 4096).advance(-libc::EOPNOTSUPP)), Ok(()));
        assert_eq!(done(job(Work::Reserve, 4096).advance(-libc::ENOSPC)), Err(DiskError::NoSpace));
        assert!(done(job(Work::Flush, 0).advance(-libc::EOPNOTSUPP)).is_err());
        let lost = done(job(Work::Flush, 0).advance(-libc::ENOSPC));
        assert!(matches!(lost, Err(DiskError::Io(_))), "{lost:?}");
    }
}
