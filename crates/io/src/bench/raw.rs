//! Plain io_uring on a file, with O_DIRECT where the file system allows it.

use std::os::fd::{AsRawFd, RawFd};

use base::histogram::Histogram;
use base::{BufferMut, BufferPool, Time};
use io_uring::{IoUring, opcode, squeue, types};

use super::load::{Places, RawLoad, open_filled, range_of, ring};
use super::measured::{Measured, cpu_time};
use crate::{Error, clock};

/// Measures plain io_uring on a file, with O_DIRECT where the file system allows it.
pub fn raw(load: &RawLoad) -> Result<Measured, Error> {
    let failed = |error: std::io::Error| Error::new("io_uring", error);
    let range = range_of(load);
    if range == 0 || load.depth == 0 || !load.block_size.is_multiple_of(4096) {
        return Err(Error("the load does not fit into the file".into()));
    }
    let disk = open_filled(&load.path, range)?;
    let mut uring = ring(load.depth).map_err(failed)?;
    let pool = BufferPool::default();
    let slots: Vec<Slot> = (0..load.depth)
        .map(|_| Slot { buffer: pool.take_zeroed(load.block_size as usize), began: Time::ZERO })
        .collect();
    let places = Places::new(range, load);
    let mut run = Run { load, fd: disk.file().as_raw_fd(), places, slots };
    run.measure(&mut uring).map_err(failed)
}

struct Slot {
    buffer: BufferMut,
    began: Time,
}

struct Run<'a> {
    load: &'a RawLoad,
    fd: RawFd,
    places: Places,
    slots: Vec<Slot>,
}

impl Run<'_> {
    fn measure(&mut self, uring: &mut IoUring) -> std::io::Result<Measured> {
        let mut histogram = Histogram::default();
        let (begin, cpu_begin) = (clock::now(), cpu_time());
        let mut in_flight = 0;
        for slot in 0..self.slots.len() {
            self.start(uring, slot, begin);
            in_flight += 1;
        }
        let mut now = begin;
        let mut result = Ok(());
        while in_flight > 0 {
            if let Err(error) = uring.submit_and_wait(1) {
                // The kernel may still use the buffers, so leak them.
                std::mem::forget(std::mem::take(&mut self.slots));
                return Err(error);
            }
            now = clock::now();
            loop {
                let Some(completion) = uring.completion().next() else { break };
                let slot = completion.user_data() as usize;
                in_flight -= 1;
                if completion.result() as i64 != self.load.block_size as i64 {
                    result = Err(std::io::Error::from_raw_os_error(-completion.result().min(-1)));
                    continue;
                }
                histogram.record(now.since(self.slots[slot].began));
                if now.since(begin) < self.load.time && result.is_ok() {
                    self.start(uring, slot, now);
                    in_flight += 1;
                }
            }
        }
        let (elapsed, cpu) = (now.since(begin), cpu_time().since(cpu_begin));
        result.map(|()| Measured { histogram, elapsed, cpu })
    }

    fn start(&mut self, uring: &mut IoUring, slot: usize, now: Time) {
        let offset = self.places.next();
        let entry = self.entry(slot, offset);
        self.slots[slot].began = now;
        // SAFETY: the buffer belongs to the slot, which is not used again before the completion of this
        // entry; `measure` returns only when all completions have arrived, or when the ring itself fails, and
        // then the buffers are never freed.
        unsafe { uring.submission().push(&entry) }.expect("the ring holds `depth` entries");
    }

    fn entry(&mut self, slot: usize, offset: u64) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        let buffer = &mut self.slots[slot].buffer;
        let length = self.load.block_size as u32;
        let entry = if self.load.is_read {
            opcode::Read::new(fd, buffer.as_mut_ptr(), length).offset(offset).build()
        } else {
            let flags = if self.load.durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, buffer.as_ptr(), length).offset(offset).rw_flags(flags).build()
        };
        entry.user_data(slot as u64)
    }
}
