//! The store's side of the disk door: names operations, remembers what each is for, and holds
//! writes that the file system had no space for until they are done.
//!
//! Invariant: an operation is in `in_flight` from its effect to its event, or in `refused` until
//! it is asked again.

use std::collections::VecDeque;
use std::ops::Range;

use base::{BlockSize, Buffer, BufferMut, BufferPool, Checksum, Duration, Lsn, Time};
use format::door::{DiskEffect, DiskOp};

use crate::read::ReadPart;
use crate::{BlockKey, Effect, RequestId};

/// How long a write or reservation without space waits before it is tried again.
pub const NO_SPACE_RETRY: Duration = Duration::from_millis(500);

/// What an operation is for.
#[derive(Debug)]
pub enum Purpose {
    /// The group of journal entries that begins here is written.
    Group(Lsn),
    /// The out-of-line data of this entry is written.
    Large(Lsn),
    /// Entries and their data are flushed.
    Flush,
    /// A part of a request to read.
    Read(RequestId, ReadPart),
    /// A leaf is fetched.
    Leaf { page: u32, checksum: Checksum },
    /// Journal data of a block is read, to be written back: from which unit on.
    WriteBackRead { key: BlockKey, unit: u32 },
    /// A block is written back.
    WriteBack,
    /// The data area is flushed before the checkpoint's pages are written.
    FlushData,
    /// A page of this group of leaves is written.
    LeafWrite(u64),
    /// A page of a stream is written.
    StreamWrite,
    /// All pages are flushed before the root is written.
    FlushPages,
    /// The root is written.
    RootWrite,
    /// The root is flushed.
    FlushRoot,
    /// Space of the file system is reserved behind these locations.
    Reserve(Range<u32>),
    /// Freed blocks are discarded before they are allocated again.
    Discard(Vec<(u32, BlockSize)>),
    /// Recovery reads; what, its stage knows.
    RecoveryRead,
    /// A leaf is read at start: its position in the directory, and for which time.
    RecoveryLeaf { index: usize, attempt: u32 },
    /// Recovery writes; what, its stage knows.
    RecoveryWrite,
    /// Recovery flushes.
    RecoveryFlush,
}

/// What is asked again if there was no space for it, as it was asked.
#[derive(Debug)]
enum Again {
    Write { offset: u64, buffers: Vec<Buffer>, durable: bool },
    Reserve { offset: u64, length: u64 },
}

/// An operation on its way, and what it is for.
#[derive(Debug)]
struct InFlight {
    purpose: Purpose,
    again: Option<Again>,
    /// It was refused for want of space before.
    is_retry: bool,
}

/// Operations of one store on its disk.
pub struct Disk {
    /// The first operation in `in_flight`; they are numbered in order.
    op_first: u64,
    /// `None`: it ended, before the first one.
    in_flight: VecDeque<Option<InFlight>>,
    refused: Vec<InFlight>,
    retry_at: Option<Time>,
    /// Writes in flight that were refused before: there is no space until one of them is done.
    retries: usize,
}

impl Disk {
    pub fn new() -> Disk {
        Disk {
            op_first: 1,
            in_flight: VecDeque::new(),
            refused: Vec::new(),
            retry_at: None,
            retries: 0,
        }
    }

    fn begin(&mut self, purpose: Purpose, again: Option<Again>) -> DiskOp {
        self.in_flight.push_back(Some(InFlight { purpose, again, is_retry: false }));
        DiskOp(self.op_first + self.in_flight.len() as u64 - 1)
    }

    fn get_mut(&mut self, op: DiskOp) -> &mut Option<InFlight> {
        let index = op.0.checked_sub(self.op_first).expect("each operation ends once");
        &mut self.in_flight[index as usize]
    }

    fn remove(&mut self, op: DiskOp) -> InFlight {
        let ended = self.get_mut(op).take().expect("each operation ends once");
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.op_first += 1;
        }
        ended
    }

    /// Reads `size` bytes into a new buffer.
    pub fn read(
        &mut self,
        pool: &BufferPool,
        purpose: Purpose,
        offset: u64,
        size: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.read_into(pool.take(size), purpose, offset, effects);
    }

    /// Reads into a buffer.
    pub fn read_into(
        &mut self,
        buffer: BufferMut,
        purpose: Purpose,
        offset: u64,
        effects: &mut Vec<Effect>,
    ) {
        let op = self.begin(purpose, None);
        effects.push(Effect::Disk(DiskEffect::Read { op, offset, buffer }));
    }

    /// Writes the buffers one after another.
    pub fn write(
        &mut self,
        purpose: Purpose,
        offset: u64,
        buffers: Vec<Buffer>,
        durable: bool,
        effects: &mut Vec<Effect>,
    ) {
        assert!(buffers.iter().all(|buffer| buffer.len().is_multiple_of(512)));
        let again = Again::Write { offset, buffers: buffers.clone(), durable };
        let op = self.begin(purpose, Some(again));
        effects.push(Effect::Disk(DiskEffect::Write { op, offset, buffers, durable }));
    }

    /// Makes everything durable that was done before.
    pub fn flush(&mut self, purpose: Purpose, effects: &mut Vec<Effect>) {
        let op = self.begin(purpose, None);
        effects.push(Effect::Disk(DiskEffect::Flush { op }));
    }

    /// Has space of the file system behind a range. Where there is none, recovery asks again.
    pub fn reserve(
        &mut self,
        purpose: Purpose,
        offset: u64,
        length: u64,
        effects: &mut Vec<Effect>,
    ) {
        let is_asked_again = matches!(purpose, Purpose::RecoveryWrite);
        let again = is_asked_again.then_some(Again::Reserve { offset, length });
        let op = self.begin(purpose, again);
        effects.push(Effect::Disk(DiskEffect::Reserve { op, offset, length }));
    }

    /// Gives space back.
    pub fn discard(
        &mut self,
        purpose: Purpose,
        offset: u64,
        length: u64,
        effects: &mut Vec<Effect>,
    ) {
        let op = self.begin(purpose, None);
        effects.push(Effect::Disk(DiskEffect::Discard { op, offset, length }));
    }

    /// The operation ended: what it was for.
    pub fn end(&mut self, op: DiskOp) -> Purpose {
        let ended = self.remove(op);
        self.retries -= usize::from(ended.is_retry);
        ended.purpose
    }

    /// The file system had no space. True: it will be asked again. The bytes and the place stay the
    /// same, so a part already done does no harm.
    pub fn refuse(&mut self, op: DiskOp, now: Time) -> bool {
        if self.get_mut(op).as_ref().is_none_or(|in_flight| in_flight.again.is_none()) {
            return false;
        }
        let refused = self.remove(op);
        self.retries -= usize::from(refused.is_retry);
        self.refused.push(refused);
        self.retry_at.get_or_insert(now + NO_SPACE_RETRY);
        true
    }

    /// Whether a write waits for space in the file system.
    pub fn has_no_space(&self) -> bool {
        !self.refused.is_empty() || self.retries > 0
    }

    /// When writes without space are tried again.
    pub fn deadline(&self) -> Option<Time> {
        self.retry_at
    }

    /// Asks refused writes again when it is time.
    pub fn retry(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        for InFlight { purpose, again, .. } in std::mem::take(&mut self.refused) {
            match again.expect("only what can be asked again is refused") {
                Again::Write { offset, buffers, durable } => {
                    self.write(purpose, offset, buffers, durable, effects);
                }
                Again::Reserve { offset, length } => {
                    self.reserve(purpose, offset, length, effects);
                }
            }
            let again = self.in_flight.back_mut().and_then(Option::as_mut).expect("just asked");
            again.is_retry = true;
            self.retries += 1;
        }
    }
}
