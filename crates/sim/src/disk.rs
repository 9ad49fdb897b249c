//! A simulated disk. Which data survives a crash is drawn at random, within the guarantees of `format::door`.
//!
//! ```text
//!   submit ─▶ in flight ──complete──▶ cached (seen by reads, may be lost) ──flush──▶ medium
//!                  └─────────────────── a durable write ───────────────────────────▶
//! ```
//!
//! Invariants
//!   1. The medium survives every crash. `cached` lists completed writes in the order of their completion. A
//!      crash keeps any subset of their sectors; of several writes to one sector that are kept, the last one
//!      wins.
//!   2. Every crash keeps the `pinned` entries of `cached`: these were flushed, or were written durably over
//!      an older cached write. The first entry is never pinned.
//!   3. A sector is never torn; a longer write may be torn at any sector.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{Buffer, BufferMut, BufferPool};
use format::door::{DiskEffect, DiskError, DiskEvent, DiskOp};

use crate::random::{Chance, Random};

const PAGE_SIZE: u64 = 4096;

/// A simulated disk. Uses memory only for pages that were written.
pub struct SimDisk {
    sector_size: u64,
    medium: Vec<Option<Box<[u8]>>>,
    cached: Vec<Written>,
    in_flight: BTreeMap<DiskOp, InFlight>,
    completed_count: u64,
    /// For each page, the value of `completed_count` when it was last written.
    written_last: Vec<u64>,
    /// Bytes that were changed by rot and not written since, with their current value.
    rotten: BTreeMap<u64, u8>,
    /// Sectors that are unreadable until they are written.
    unreadable: BTreeSet<u64>,
    /// The underlying file system, if the disk is a sparse file.
    host: Option<Host>,
}

/// The file system that contains the sparse file. It may run out of space.
struct Host {
    free_bytes: u64,
    /// For each page of the file, whether space is allocated for it.
    held: Vec<bool>,
    /// Pages whose space may be lost in a power cut, each with the value of `completed_count` when it
    /// was reserved.
    loose: Vec<(u64, u64)>,
}

impl Host {
    /// Allocates space for pages until no space is left. Returns whether all pages have space.
    fn take(&mut self, pages: Range<u64>, mut taken: impl FnMut(&mut Host, u64)) -> bool {
        for page in pages {
            if self.held[page as usize] {
                continue;
            }
            if self.free_bytes < PAGE_SIZE {
                return false;
            }
            self.free_bytes -= PAGE_SIZE;
            self.held[page as usize] = true;
            taken(self, page);
        }
        true
    }

    fn give(&mut self, page: u64) {
        if std::mem::take(&mut self.held[page as usize]) {
            self.free_bytes += PAGE_SIZE;
        }
    }
}

fn pages_of(offset: u64, length: u64) -> Range<u64> {
    offset / PAGE_SIZE..(offset + length).div_ceil(PAGE_SIZE)
}

/// A completed write that is still in the disk's cache.
struct Written {
    offset: u64,
    data: Data,
    completed: u64,
    pinned: bool,
}

enum Data {
    Bytes(Vec<Buffer>),
    Zeros(u64),
}

impl Data {
    fn len(&self) -> u64 {
        match self {
            Data::Bytes(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Data::Zeros(length) => *length,
        }
    }

    /// Calls `each` with every sector: its offset and its bytes (`None`: zeros).
    fn for_sectors(&self, offset: u64, sector: u64, mut each: impl FnMut(u64, Option<&[u8]>)) {
        match self {
            Data::Zeros(length) => {
                for at in (offset..offset + length).step_by(sector as usize) {
                    each(at, None);
                }
            }
            Data::Bytes(pieces) => {
                let mut at = offset;
                for piece in pieces {
                    for bytes in piece.chunks_exact(sector as usize) {
                        each(at, Some(bytes));
                        at += sector;
                    }
                }
            }
        }
    }
}

enum InFlight {
    Read { offset: u64, buffer: BufferMut },
    Write { offset: u64, data: Data, durable: bool, asked: u64 },
    Reserve { offset: u64, length: u64 },
    Discard { offset: u64, length: u64 },
    Flush { asked: u64 },
}

/// How a write fails silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFault {
    /// The write is reported as done, but is lost.
    Lost,
    /// The write is reported as done, but goes to another position.
    Misdirected {
        /// The position in bytes; a multiple of the sector size.
        to: u64,
    },
}

/// Counts of the effects of a crash on writes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CrashReport {
    /// Writes of which nothing survived.
    pub lost: u64,
    /// Writes of which only some sectors survived.
    pub torn: u64,
    /// Writes that were unflushed, or even incomplete, but survived completely.
    pub kept: u64,
    /// Writes that survived although an earlier write did not.
    pub reordered: u64,
}

/// The cause of a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// Power failure: every unflushed write may be lost.
    Power,
    /// Death of the process: completed writes stay in the disk's cache, unflushed; only writes in
    /// flight may be lost.
    Process,
}

impl SimDisk {
    /// Creates a disk of zeros. Requires: the size is a multiple of 4 KiB, the sector size 512 or
    /// 4096 bytes.
    pub fn new(size: u64, sector_size: u32) -> SimDisk {
        assert!(size.is_multiple_of(PAGE_SIZE));
        assert!(sector_size == 512 || sector_size == 4096);
        SimDisk {
            sector_size: u64::from(sector_size),
            medium: (0..size / PAGE_SIZE).map(|_| None).collect(),
            cached: Vec::new(),
            in_flight: BTreeMap::new(),
            completed_count: 0,
            written_last: vec![0; (size / PAGE_SIZE) as usize],
            rotten: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            host: None,
        }
    }

    /// Makes the disk a sparse file that has allocated space only before `data_offset`, on a file
    /// system with `free_bytes` of free space. Later calls only set the free space.
    pub fn set_host(&mut self, data_offset: u64, free_bytes: u64) {
        let pages = 0..self.medium.len() as u64;
        match &mut self.host {
            Some(host) => host.free_bytes = free_bytes,
            None => {
                let held = pages.map(|page| page * PAGE_SIZE < data_offset).collect();
                self.host = Some(Host { free_bytes, held, loose: Vec::new() });
            }
        }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.medium.len() as u64 * PAGE_SIZE
    }

    /// Accepts an operation. [`SimDisk::complete`] or [`SimDisk::fail`] must be called to finish it.
    pub fn submit(&mut self, effect: DiskEffect) -> DiskOp {
        let (op, in_flight) = match effect {
            DiskEffect::Read { op, offset, buffer } => {
                self.check_range(offset, buffer.len() as u64);
                (op, InFlight::Read { offset, buffer })
            }
            DiskEffect::Write { op, offset, buffers, durable } => {
                let sector = self.sector_size as usize;
                assert!(buffers.iter().all(|buffer| buffer.len().is_multiple_of(sector)));
                assert!(buffers.iter().all(|buffer| buffer.is_aligned_to(sector)));
                let data = Data::Bytes(buffers);
                self.check_range(offset, data.len());
                (op, InFlight::Write { offset, data, durable, asked: self.completed_count })
            }
            DiskEffect::Flush { op } => (op, InFlight::Flush { asked: self.completed_count }),
            DiskEffect::Reserve { op, offset, length } => {
                self.check_range(offset, length);
                (op, InFlight::Reserve { offset, length })
            }
            DiskEffect::Discard { op, offset, length } => {
                self.check_range(offset, length);
                (op, InFlight::Discard { offset, length })
            }
        };
        let replaced = self.in_flight.insert(op, in_flight);
        assert!(replaced.is_none(), "{op:?} is used twice");
        op
    }

    fn check_range(&self, offset: u64, length: u64) {
        assert!(length > 0);
        assert!(offset.is_multiple_of(self.sector_size));
        assert!(length.is_multiple_of(self.sector_size));
        assert!(offset + length <= self.size(), "{offset}+{length} is beyond the disk's end");
    }

    /// Completes an operation, or fails it if the file system has no space for it. `fault` applies to
    /// writes only. Requires: the operation was submitted, and no crash has happened since.
    pub fn complete(
        &mut self,
        op: DiskOp,
        fault: Option<WriteFault>,
        random: &mut Random,
    ) -> DiskEvent {
        if !self.has_space(op) {
            return self.fail(op, DiskError::NoSpace, random);
        }
        match self.in_flight.remove(&op).expect("an operation ends once") {
            InFlight::Read { offset, mut buffer } => {
                let end = offset + buffer.len() as u64;
                if self.unreadable.range(offset..end).next().is_some() {
                    base::mark!(read_meets_unreadable_sector);
                    let result = Err(DiskError::Io("simulated unreadable sector".into()));
                    return DiskEvent::Read { op, buffer, result };
                }
                self.read(offset, &mut buffer, random);
                return DiskEvent::Read { op, buffer, result: Ok(()) };
            }
            InFlight::Write { offset, data, durable, asked } => {
                if durable {
                    self.reservations_durable(asked);
                }
                match fault {
                    None => self.written(offset, data, durable),
                    Some(WriteFault::Lost) => {}
                    Some(WriteFault::Misdirected { to }) => {
                        self.check_range(to, data.len());
                        self.written(to, data, durable);
                    }
                }
            }
            InFlight::Reserve { .. } => {}
            // The content of a discarded range is unspecified: sometimes it reads as zeros, sometimes
            // as the old data.
            InFlight::Discard { offset, length } => {
                if let Some(host) = &mut self.host {
                    pages_of(offset, length).for_each(|page| host.give(page));
                }
                if random.chance(Chance::percent(50)) {
                    self.written(offset, Data::Zeros(length), false);
                }
            }
            InFlight::Flush { asked } => {
                self.reservations_durable(asked);
                for written in &mut self.cached {
                    written.pinned |= written.completed <= asked;
                }
                self.settle();
            }
        }
        DiskEvent::Done { op, result: Ok(()) }
    }

    /// Allocates the space that a completing operation needs. Returns whether there is enough.
    fn has_space(&mut self, op: DiskOp) -> bool {
        let (Some(host), Some(ends)) = (&mut self.host, self.in_flight.get(&op)) else {
            return true;
        };
        match ends {
            InFlight::Write { offset, data, .. } => {
                host.take(pages_of(*offset, data.len()), |_, _| {})
            }
            InFlight::Reserve { offset, length } => {
                self.completed_count += 1;
                let count = self.completed_count;
                host.take(pages_of(*offset, *length), |host, page| host.loose.push((page, count)))
            }
            InFlight::Read { .. } | InFlight::Discard { .. } | InFlight::Flush { .. } => true,
        }
    }

    fn reservations_durable(&mut self, asked: u64) {
        if let Some(host) = &mut self.host {
            host.loose.retain(|(_, reserved)| *reserved > asked);
        }
    }

    /// Applies a power cut to reservations: space may be lost if its reservation was not flushed and it
    /// holds no data.
    fn lose_reservations(&mut self, random: &mut Random) {
        let medium = &self.medium;
        if let Some(host) = &mut self.host {
            for (page, _) in std::mem::take(&mut host.loose) {
                if medium[page as usize].is_none() && random.chance(Chance::percent(50)) {
                    host.give(page);
                }
            }
        }
    }

    /// Fails an operation. A failed write may have taken effect in part. A failed flush leaves its
    /// writes in the cache, where the next crash may lose them.
    pub fn fail(&mut self, op: DiskOp, error: DiskError, random: &mut Random) -> DiskEvent {
        match self.in_flight.remove(&op).expect("an operation ends once") {
            InFlight::Read { buffer, .. } => {
                return DiskEvent::Read { op, buffer, result: Err(error) };
            }
            InFlight::Write { offset, data, .. } => {
                let kept = self.keep_some(offset, &data, random, &mut CrashReport::default());
                self.settle_kept(Crash::Process, kept);
            }
            InFlight::Reserve { .. } | InFlight::Discard { .. } | InFlight::Flush { .. } => {}
        }
        DiskEvent::Done { op, result: Err(error) }
    }

    fn written(&mut self, offset: u64, data: Data, durable: bool) {
        self.completed_count += 1;
        let (start, end) = (offset, offset + data.len());
        self.unreadable.retain(|sector| !(start..end).contains(sector));
        for page in start / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
            self.written_last[page as usize] = self.completed_count;
        }
        let covers_cached = self
            .cached
            .iter()
            .any(|older| older.offset < end && start < older.offset + older.data.len());
        if durable && !covers_cached {
            self.put(offset, &data);
        } else {
            if durable {
                base::mark!(durable_write_waits_for_cached_ones);
            }
            let completed = self.completed_count;
            self.cached.push(Written { offset, data, completed, pinned: durable });
        }
    }

    /// Moves to the medium all pinned writes that come before the first unpinned one.
    fn settle(&mut self) {
        let pinned = self.cached.iter().take_while(|written| written.pinned).count();
        for written in self.cached.drain(..pinned).collect::<Vec<_>>() {
            self.put(written.offset, &written.data);
        }
    }

    fn put(&mut self, offset: u64, data: &Data) {
        match data {
            Data::Bytes(pieces) => {
                let mut at = offset;
                for piece in pieces {
                    self.put_bytes(at, piece);
                    at += piece.len() as u64;
                }
            }
            Data::Zeros(_) => {
                let medium = &mut self.medium;
                data.for_sectors(offset, self.sector_size, |at, _| {
                    if let Some(page) = &mut medium[(at / PAGE_SIZE) as usize] {
                        let from = (at % PAGE_SIZE) as usize;
                        page[from..from + self.sector_size as usize].fill(0);
                    }
                });
            }
        }
    }

    fn put_bytes(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let from = (at % PAGE_SIZE) as usize;
            let length = bytes.len().min(PAGE_SIZE as usize - from);
            let (now, later) = bytes.split_at(length);
            let page = &mut self.medium[(at / PAGE_SIZE) as usize];
            if page.is_some() || now.iter().any(|byte| *byte != 0) {
                let page = page.get_or_insert_with(|| vec![0; PAGE_SIZE as usize].into());
                page[from..from + length].copy_from_slice(now);
            }
            at += length as u64;
            bytes = later;
        }
    }

    /// Reads the medium overlaid with the cache. For each sector with a write in flight, the read
    /// returns either the old or the new data.
    fn read(&self, offset: u64, into: &mut [u8], random: &mut Random) {
        self.read_cached(offset, into);
        for in_flight in self.in_flight.values() {
            if let InFlight::Write { offset: start, data, .. } = in_flight {
                overlay(*start, data, self.sector_size, offset, into, |_| {
                    random.chance(Chance::percent(50))
                });
            }
        }
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let from = (at % PAGE_SIZE) as usize;
            let length = (into.len() - done).min(PAGE_SIZE as usize - from);
            match &self.medium[(at / PAGE_SIZE) as usize] {
                Some(page) => {
                    into[done..done + length].copy_from_slice(&page[from..from + length]);
                }
                None => into[done..done + length].fill(0),
            }
            done += length;
        }
        for written in &self.cached {
            let (start, data) = (written.offset, &written.data);
            overlay(start, data, self.sector_size, offset, into, |_| true);
        }
    }

    /// Reads the bytes at `offset` as a process that starts now would see them. Requires: no operation
    /// is in flight.
    pub fn peek(&self, offset: u64, into: &mut [u8]) {
        assert!(self.in_flight.is_empty());
        self.read_cached(offset, into);
    }

    /// Reads the bytes at `offset` as all finished writes left them. Requires: no write to them is in flight.
    pub fn peek_done(&self, offset: u64, into: &mut [u8]) {
        self.read_cached(offset, into);
    }

    /// Crashes: drops every operation in flight, without an event, and draws which data survives.
    pub fn crash(&mut self, crash: Crash, random: &mut Random) -> CrashReport {
        let mut report = CrashReport::default();
        let mut in_flight: Vec<InFlight> =
            std::mem::take(&mut self.in_flight).into_values().collect();
        random.shuffle(&mut in_flight);
        if crash == Crash::Power {
            for written in std::mem::take(&mut self.cached) {
                if written.pinned {
                    self.put(written.offset, &written.data);
                } else {
                    let kept = self.keep_some(written.offset, &written.data, random, &mut report);
                    self.settle_kept(crash, kept);
                }
            }
        }
        for operation in in_flight {
            let (offset, data) = match operation {
                InFlight::Write { offset, data, .. } => (offset, data),
                InFlight::Discard { offset, length } => (offset, Data::Zeros(length)),
                InFlight::Read { .. } | InFlight::Reserve { .. } | InFlight::Flush { .. } => {
                    continue;
                }
            };
            let kept = self.keep_some(offset, &data, random, &mut report);
            self.settle_kept(crash, kept);
        }
        if crash == Crash::Power {
            self.lose_reservations(random);
        }
        report
    }

    /// Stores surviving data: on the medium after a power failure, in the cache after the death of the
    /// process.
    fn settle_kept(&mut self, crash: Crash, kept: Vec<(u64, Data)>) {
        for (offset, data) in kept {
            match crash {
                Crash::Power => self.put(offset, &data),
                Crash::Process => self.written(offset, data, false),
            }
        }
    }

    /// Draws which sectors of a write survive: all, none, a prefix, or any subset.
    fn keep_some(
        &self,
        offset: u64,
        data: &Data,
        random: &mut Random,
        report: &mut CrashReport,
    ) -> Vec<(u64, Data)> {
        let sector_count = data.len() / self.sector_size;
        let mode = random.weighted(&[4, 4, 1, 2]);
        let cut = random.below(sector_count + 1);
        let pool = BufferPool::default();
        let mut kept = Vec::new();
        let mut index = 0;
        data.for_sectors(offset, self.sector_size, |at, bytes| {
            let keep = match mode {
                0 => false,
                1 => true,
                2 => index < cut,
                _ => random.chance(Chance::percent(50)),
            };
            index += 1;
            if keep {
                let zeros = Data::Zeros(self.sector_size);
                let data = bytes.map_or(zeros, |bytes| Data::Bytes(vec![pool.copy_of(bytes)]));
                kept.push((at, data));
            }
        });
        match kept.len() as u64 {
            0 => report.lost += 1,
            count if count < sector_count => report.torn += 1,
            _ => {
                report.kept += 1;
                report.reordered += u64::from(report.lost + report.torn > 0);
            }
        }
        kept
    }

    /// Writes bytes directly to the medium of a new disk.
    pub fn install(&mut self, offset: u64, bytes: &[u8]) {
        self.put_bytes(offset, bytes);
    }

    /// Makes a sector unreadable until it is written.
    pub fn break_sector(&mut self, offset: u64) {
        self.unreadable.insert(offset - offset % self.sector_size);
    }

    /// Returns the number of unreadable sectors.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.len()
    }

    /// Makes all sectors readable again. Returns whether any was unreadable.
    pub fn mend_sectors(&mut self) -> bool {
        !std::mem::take(&mut self.unreadable).is_empty()
    }

    /// Flips the bits `mask` of one byte, on the medium and in the cache. Requires: no write to the
    /// byte is in flight.
    pub fn rot(&mut self, offset: u64, mask: u8) {
        assert!(mask != 0);
        let start = offset - offset % self.sector_size;
        let mut sector = vec![0; self.sector_size as usize];
        self.read_cached(start, &mut sector);
        let byte = &mut sector[(offset - start) as usize];
        *byte ^= mask;
        self.rotten.insert(offset, *byte);
        // Rot is not a write, so the page keeps its write count.
        let page = (offset / PAGE_SIZE) as usize;
        let age = self.written_last[page];
        let data = Data::Bytes(vec![BufferPool::default().copy_of(&sector)]);
        self.written(start, data, true);
        self.written_last[page] = age;
    }

    /// Flips the bits `mask` back, unless the byte was written since then.
    pub fn heal(&mut self, offset: u64, mask: u8) {
        let mut byte = [0];
        self.read_cached_byte(offset, &mut byte);
        if self.rotten.remove(&offset) == Some(byte[0]) {
            self.rot(offset, mask);
            self.rotten.remove(&offset);
        }
    }

    fn read_cached_byte(&self, offset: u64, into: &mut [u8; 1]) {
        let start = offset - offset % self.sector_size;
        let mut sector = vec![0; self.sector_size as usize];
        self.read_cached(start, &mut sector);
        into[0] = sector[(offset - start) as usize];
    }

    /// Returns whether no write or discard of the page at this offset is in flight.
    pub fn is_quiet(&self, page: u64) -> bool {
        self.in_flight.values().all(|operation| match operation {
            InFlight::Write { offset, data, .. } => {
                *offset >= page + PAGE_SIZE || offset + data.len() <= page
            }
            InFlight::Discard { offset, length } => {
                *offset >= page + PAGE_SIZE || offset + length <= page
            }
            InFlight::Read { .. } | InFlight::Reserve { .. } | InFlight::Flush { .. } => true,
        })
    }

    /// Returns the number of completed writes; some discards and reservations count, too.
    pub fn completed_count(&self) -> u64 {
        self.completed_count
    }

    /// Returns the value of `completed_count` when the page at this offset was last written.
    pub fn written_last(&self, page: u64) -> u64 {
        self.written_last[(page / PAGE_SIZE) as usize]
    }

    /// Returns the offsets of pages on the medium that were written with data other than zeros.
    pub fn written_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.medium
            .iter()
            .enumerate()
            .filter(|(_, page)| page.is_some())
            .map(|(index, _)| index as u64 * PAGE_SIZE)
    }
}

/// Copies some sectors of a write over the data in `into`: those whose offset `choose` accepts.
fn overlay(
    start: u64,
    data: &Data,
    sector: u64,
    offset: u64,
    into: &mut [u8],
    mut choose: impl FnMut(u64) -> bool,
) {
    let end = offset + into.len() as u64;
    if start >= end || start + data.len() <= offset {
        return;
    }
    data.for_sectors(start, sector, |at, bytes| {
        if at < offset || at >= end || !choose(at) {
            return;
        }
        let from = (at - offset) as usize;
        let target = &mut into[from..from + sector as usize];
        match bytes {
            Some(bytes) => target.copy_from_slice(bytes),
            None => target.fill(0),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        disk: SimDisk,
        random: Random,
        pool: BufferPool,
        op_last: u64,
    }

    impl Bench {
        fn new(seed: u64) -> Bench {
            Bench {
                disk: SimDisk::new(1 << 20, 512),
                random: Random::new(seed, "disk"),
                pool: BufferPool::default(),
                op_last: 0,
            }
        }

        fn op(&mut self) -> DiskOp {
            self.op_last += 1;
            DiskOp(self.op_last)
        }

        fn submit_write(&mut self, offset: u64, length: usize, byte: u8, durable: bool) -> DiskOp {
            let op = self.op();
            let buffers = vec![self.pool.copy_of(&vec![byte; length])];
            self.disk.submit(DiskEffect::Write { op, offset, buffers, durable })
        }

        fn write(&mut self, offset: u64, length: usize, byte: u8, durable: bool) {
            let op = self.submit_write(offset, length, byte, durable);
            self.disk.complete(op, None, &mut self.random);
        }

        fn flush(&mut self) {
            let op = self.op();
            self.disk.submit(DiskEffect::Flush { op });
            self.disk.complete(op, None, &mut self.random);
        }

        fn bytes(&mut self, offset: u64, length: usize) -> Vec<u8> {
            let op = self.op();
            let buffer = self.pool.take(length);
            self.disk.submit(DiskEffect::Read { op, offset, buffer });
            match self.disk.complete(op, None, &mut self.random) {
                DiskEvent::Read { buffer, result: Ok(()), .. } => buffer.to_vec(),
                other => panic!("{other:?}"),
            }
        }

        fn crash(&mut self, crash: Crash) -> CrashReport {
            self.disk.crash(crash, &mut self.random)
        }
    }

    #[test]
    fn flushed_and_durable_writes_survive_every_crash() {
        for seed in 0..200 {
            let mut bench = Bench::new(seed);
            bench.write(0, 4096, 1, false);
            bench.write(8192, 4096, 2, true);
            bench.flush();
            bench.write(0, 512, 3, true);
            bench.crash(Crash::Power);
            assert_eq!(bench.bytes(0, 512), [3; 512]);
            assert_eq!(bench.bytes(512, 3584), [1; 3584]);
            assert_eq!(bench.bytes(8192, 4096), [2; 4096]);
        }
    }

    #[test]
    fn a_durable_write_over_a_cached_one_wins() {
        base::check!(durable_write_waits_for_cached_ones);
        for seed in 0..200 {
            let mut bench = Bench::new(seed);
            bench.write(0, 1024, 1, false);
            bench.write(512, 1024, 2, true);
            assert_eq!(bench.bytes(512, 1024), [2; 1024]);
            bench.crash(Crash::Power);
            assert_eq!(bench.bytes(512, 1024), [2; 1024]);
        }
    }

    #[test]
    fn a_flush_covers_what_was_done_before_it_was_asked() {
        let (mut lost, mut kept) = (false, false);
        for seed in 0..200 {
            let mut bench = Bench::new(seed);
            bench.write(0, 512, 1, false);
            let op = bench.op();
            bench.disk.submit(DiskEffect::Flush { op });
            bench.write(512, 512, 2, false);
            bench.disk.complete(op, None, &mut bench.random);
            bench.crash(Crash::Power);
            assert_eq!(bench.bytes(0, 512), [1; 512]);
            match bench.bytes(512, 512)[0] {
                0 => lost = true,
                _ => kept = true,
            }
        }
        assert!(lost);
        assert!(kept);
    }

    #[test]
    fn unflushed_writes_are_lost_torn_kept_and_reordered() {
        let mut total = CrashReport::default();
        for seed in 0..200 {
            let mut bench = Bench::new(seed);
            bench.write(0, 4096, 1, false);
            bench.submit_write(4096, 4096, 2, true);
            let report = bench.crash(Crash::Power);
            total.lost += report.lost;
            total.torn += report.torn;
            total.kept += report.kept;
            total.reordered += report.reordered;
            let after = bench.bytes(0, 8192);
            assert!(after[..4096].iter().all(|byte| *byte <= 1));
            bench.crash(Crash::Power);
            assert_eq!(bench.bytes(0, 8192), after, "what a crash left stays");
        }
        assert!(total.lost > 20);
        assert!(total.torn > 20);
        assert!(total.kept > 20);
        assert!(total.reordered > 20);
    }

    #[test]
    fn a_dead_process_loses_only_what_was_in_flight_until_the_power_goes() {
        let mut lost_later = false;
        for seed in 0..200 {
            let mut bench = Bench::new(seed);
            bench.write(0, 512, 1, false);
            bench.crash(Crash::Process);
            assert_eq!(bench.bytes(0, 512), [1; 512]);
            bench.crash(Crash::Power);
            lost_later |= bench.bytes(0, 512)[0] == 0;
        }
        assert!(lost_later);
    }

    #[test]
    fn an_unreadable_sector_is_read_again_once_it_is_written() {
        base::check!(read_meets_unreadable_sector);
        let mut bench = Bench::new(1);
        bench.write(0, 4096, 1, true);
        bench.disk.break_sector(700);
        let op = bench.op();
        let buffer = bench.pool.take(1024);
        bench.disk.submit(DiskEffect::Read { op, offset: 0, buffer });
        let event = bench.disk.complete(op, None, &mut bench.random);
        assert!(matches!(event, DiskEvent::Read { result: Err(_), .. }), "{event:?}");
        bench.write(512, 512, 2, true);
        assert_eq!(bench.bytes(0, 1024), [[1; 512], [2; 512]].concat());
    }

    #[test]
    fn rot_changes_one_byte_and_stays() {
        let mut bench = Bench::new(1);
        bench.write(0, 1024, 1, false);
        bench.disk.rot(700, 0x80);
        let after = bench.bytes(0, 1024);
        assert_eq!(after[700], 0x81);
        assert_eq!(after.iter().filter(|byte| **byte != 1).count(), 1);
    }

    #[test]
    fn lost_and_misdirected_writes_are_reported_as_done() {
        let mut bench = Bench::new(1);
        let op = bench.submit_write(0, 512, 1, true);
        bench.disk.complete(op, Some(WriteFault::Lost), &mut bench.random);
        let op = bench.submit_write(512, 512, 2, true);
        let fault = WriteFault::Misdirected { to: 4096 };
        bench.disk.complete(op, Some(fault), &mut bench.random);
        assert_eq!(bench.bytes(0, 1024), [0; 1024]);
        assert_eq!(bench.bytes(4096, 512), [2; 512]);
    }

    #[test]
    fn a_failed_write_may_have_happened_in_part() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut bench = Bench::new(seed);
            let op = bench.submit_write(0, 1024, 1, true);
            let error = DiskError::Io("simulated".into());
            bench.disk.fail(op, error, &mut bench.random);
            let bytes = bench.bytes(0, 1024);
            seen.insert((bytes[0], bytes[512]));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_full_file_system_below_a_sparse_file_takes_nothing_new() {
        for seed in 0..50 {
            let mut bench = Bench::new(seed);
            bench.disk.set_host(4096, 3 * 4096);
            let reserve = |bench: &mut Bench, offset, length| {
                let op = bench.op();
                bench.disk.submit(DiskEffect::Reserve { op, offset, length });
                match bench.disk.complete(op, None, &mut bench.random) {
                    DiskEvent::Done { result, .. } => result,
                    other => panic!("{other:?}"),
                }
            };
            let write = |bench: &mut Bench, offset| {
                let op = bench.submit_write(offset, 4096, 1, false);
                match bench.disk.complete(op, None, &mut bench.random) {
                    DiskEvent::Done { result, .. } => result,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(write(&mut bench, 0), Ok(()));
            assert_eq!(reserve(&mut bench, 8192, 8192), Ok(()));
            assert_eq!(write(&mut bench, 4096), Ok(()));
            assert_eq!(write(&mut bench, 16384), Err(DiskError::NoSpace));
            bench.flush();
            bench.crash(Crash::Power);
            assert_eq!(write(&mut bench, 12288), Ok(()), "a flushed reservation stays");
            assert_eq!(reserve(&mut bench, 16384, 4096), Err(DiskError::NoSpace));
            let op = bench.op();
            bench.disk.submit(DiskEffect::Discard { op, offset: 8192, length: 4096 });
            bench.disk.complete(op, None, &mut bench.random);
            assert_eq!(reserve(&mut bench, 16384, 4096), Ok(()));
            assert_eq!(write(&mut bench, 8192), Err(DiskError::NoSpace));
        }
    }
}
