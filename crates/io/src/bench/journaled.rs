//! The minimum cost of a store with a journal: the data of each turn is copied into one contiguous write to
//! a ring (the journal), and each block is written a second time, to its place, when half of the ring is
//! full.
//!
//! ```text
//!   turn:  [header|data][header|data]... ──one write──▶ ring of the journal ... the whole turn is done
//!   later: data, from the memory of the ring ──one write each──▶ its place
//! ```
//!
//! It has no checksums, index, checkpoints, requests or answers. The cost of a store above this baseline is
//! the cost of the store itself; the cost of this baseline above plain writes is the cost of a journal.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use base::histogram::Histogram;
use base::{BufferMut, BufferPool};
use io_uring::{IoUring, cqueue, opcode, types};

use super::load::{Places, RawLoad, open_filled, range_of, ring};
use super::measured::{Measured, cpu_time};
use crate::{Error, clock};

/// Largest size of the ring, in bytes; the ring uses a quarter of the file.
const RING_SIZE_MAX: u64 = 64 << 20;
/// Maximum number of write-backs (writes of blocks to their places) in flight.
const WRITE_BACKS_MAX: usize = 64;
/// `user_data` of a write to the journal (`GROUP`), and of a write to a place (`WRITE_BACK`).
const GROUP: u64 = 0;
const WRITE_BACK: u64 = 1;

/// Measures random writes through a journal ring on a file. Requires: `load` consists of small random
/// writes.
pub fn journaled(load: &RawLoad) -> Result<Measured, Error> {
    let failed = |error: std::io::Error| Error::new("io_uring", error);
    assert!(!load.is_read);
    let ring_size = (load.size / 4).min(RING_SIZE_MAX) >> 20 << 20;
    let range = range_of(load).min(load.size - ring_size) / load.block_size * load.block_size;
    if load.depth == 0 || range == 0 || load.block_size * load.depth as u64 > ring_size / 8 {
        return Err(Error("the load does not fit into the file".into()));
    }
    let disk = open_filled(&load.path, ring_size + range)?;
    let mut uring = ring(load.depth + WRITE_BACKS_MAX).map_err(failed)?;
    let pool = BufferPool::default();
    let mut run = Run {
        load,
        fd: disk.file().as_raw_fd(),
        header_size: disk.sector_size() as u64,
        places: Places::new(range, load),
        source: pool.take_zeroed(load.block_size as usize),
        ring: pool.take_zeroed(ring_size as usize),
        tail: 0,
        head: 0,
        todo: VecDeque::new(),
        until: None,
        todo_count: 0,
        write_backs: 0,
    };
    let measured = run.measure(&mut uring);
    if measured.is_err() {
        // The kernel may still read this memory, so leak it.
        std::mem::forget(std::mem::replace(&mut run.ring, pool.take(0)));
    }
    measured.map_err(failed)
}

struct Run<'a> {
    load: &'a RawLoad,
    fd: RawFd,
    /// Size of the header before each block in the ring, in bytes: a sector.
    header_size: u64,
    places: Places,
    /// The data that every operation writes.
    source: BufferMut,
    ring: BufferMut,
    /// Bytes written to the ring since the start; the position of the next write.
    tail: u64,
    /// Position in the ring up to which all data has also been written to its places.
    head: u64,
    /// Blocks that still have to be written to their places: (offset in the ring, offset in the file).
    todo: VecDeque<(u64, u64)>,
    /// During a write-back: the value of `tail` when it began.
    until: Option<u64>,
    /// Number of entries of `todo` that are still to be submitted in this write-back.
    todo_count: usize,
    write_backs: usize,
}

impl Run<'_> {
    /// Runs turn after turn until the time is over. The `depth` operations of a turn begin and end
    /// together.
    fn measure(&mut self, uring: &mut IoUring) -> std::io::Result<Measured> {
        let mut histogram = Histogram::default();
        let (begin, cpu_begin) = (clock::now(), cpu_time());
        let mut now = begin;
        while now.since(begin) < self.load.time {
            let began = now;
            self.write_group(uring);
            let mut missing = true;
            while missing || self.tail - self.head > self.ring.len() as u64 - self.group_size() {
                self.write_back(uring);
                uring.submit_and_wait(1)?;
                now = clock::now();
                while let Some(completion) = uring.completion().next() {
                    check(&completion)?;
                    match completion.user_data() {
                        GROUP => missing = false,
                        _ => self.write_backs -= 1,
                    }
                }
            }
            (0..self.load.depth).for_each(|_| histogram.record(now.since(began)));
        }
        while self.write_backs > 0 {
            uring.submit_and_wait(1)?;
            while let Some(completion) = uring.completion().next() {
                check(&completion)?;
                self.write_backs -= 1;
            }
        }
        let (elapsed, cpu) = (now.since(begin), cpu_time().since(cpu_begin));
        Ok(Measured { histogram, elapsed, cpu })
    }

    fn group_size(&self) -> u64 {
        self.load.depth as u64 * (self.header_size + self.load.block_size)
    }

    /// Copies the turn's data into the ring and writes it there.
    fn write_group(&mut self, uring: &mut IoUring) {
        let (size, ring_size) = (self.group_size(), self.ring.len() as u64);
        let rest = ring_size - self.tail % ring_size;
        if size > rest {
            self.tail += rest;
        }
        let at = self.tail % ring_size;
        for index in 0..self.load.depth as u64 {
            let data = at + index * (self.header_size + self.load.block_size) + self.header_size;
            let to = data as usize..(data + self.load.block_size) as usize;
            self.ring[to].copy_from_slice(&self.source);
            self.todo.push_back((data, self.ring.len() as u64 + self.places.next()));
        }
        self.tail += size;
        self.write(uring, (at, at, size), self.load.durable, GROUP);
    }

    /// Starts a write-back if the ring is more than half full, and continues one that has started.
    fn write_back(&mut self, uring: &mut IoUring) {
        if self.until.is_none() && self.tail - self.head > self.ring.len() as u64 / 2 {
            self.until = Some(self.tail);
            // The group whose journal write is in flight must not be written back yet.
            self.todo_count = self.todo.len() - self.load.depth;
        }
        let Some(until) = self.until else { return };
        while self.write_backs < WRITE_BACKS_MAX && self.todo_count > 0 {
            let (from, place) = self.todo.pop_front().expect("counted");
            self.todo_count -= 1;
            self.write_backs += 1;
            self.write(uring, (place, from, self.load.block_size), false, WRITE_BACK);
        }
        if self.todo_count == 0 && self.write_backs == 0 {
            self.head = until - self.group_size();
            self.until = None;
        }
    }

    /// Writes `size` bytes from offset `from` in the ring to offset `place` in the file.
    fn write(
        &self,
        uring: &mut IoUring,
        (place, from, size): (u64, u64, u64),
        durable: bool,
        user_data: u64,
    ) {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let bytes = &self.ring[from as usize..(from + size) as usize];
        let entry = opcode::Write::new(types::Fd(self.fd), bytes.as_ptr(), size as u32)
            .offset(place)
            .rw_flags(flags)
            .build()
            .user_data(user_data);
        // SAFETY: the bytes belong to the ring's memory, which outlives the uring's operations: `measure`
        // returns when all have completed, and if it fails the memory is never freed.
        unsafe { uring.submission().push(&entry) }.expect("the ring has room for all");
    }
}

fn check(completion: &cqueue::Entry) -> std::io::Result<()> {
    match completion.result() {
        1.. => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}
