//! The store's side of the interface to the disk: gives each operation an id, remembers its purpose, and
//! retries writes for which the file system had no space.
//!
//! A read that fails is repeated in smaller and smaller pieces. A transient error then loses nothing, and a
//! permanent one loses only the pieces that stay unreadable.
//!
//! `Disk` tracks the age of its oldest read, write or flush. Each piece of a repeated read has its own age,
//! because a disk that answers is not hung. Age counts only while the owner's loop runs, so that a paused
//! host does not look like a hung disk.
//!
//! Invariant: an operation is in `in_flight` from its effect to its event, or in `refused` until
//! it is retried.

use std::ops::Range;

use base::planted::{self, Bug};
use base::{Buffer, BufferMut, BufferPool, Checksum, Duration, Lsn, Time};
use format::door::{DiskEffect, DiskOp};
use slab::Slab;

use crate::allocator::Place;
use crate::disk_figures::DiskFigures;
use crate::metadata::Target;
use crate::pages::LeafGroupId;
use crate::{Answer, BlockKey, Effect, RequestId, StoreError};

/// A piece counts as unreadable after this many failed reads.
const READ_ATTEMPTS_MAX: u32 = 4;
/// A failed read is repeated in pieces of this size, in bytes; a piece that fails is repeated in smaller
/// pieces.
const LONG_PIECE_SIZE: usize = 64 << 10;
/// How long a write or reservation that found no space waits before it is retried.
pub const NO_SPACE_RETRY: Duration = Duration::from_millis(500);
/// Maximum part of the time between two turns of the owner's loop that counts as running.
const GAP_MAX: Duration = Duration::from_millis(250);

/// Which part of a read request an operation reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPart {
    /// Data in the block's place.
    Place,
    /// Data in the journal, starting at this unit of the range.
    Journal(u32),
}

/// What an operation is for.
#[derive(Debug)]
pub enum Purpose {
    /// The group of journal entries that begins here is written.
    Group(Lsn),
    /// The out-of-line data of the journal entry at this lsn is written to one of its places.
    Large { lsn: Lsn, index: usize },
    /// Entries and their data are flushed.
    Flush,
    /// A part of a read request is read.
    Read(RequestId, ReadPart),
    /// A leaf is read.
    Leaf { page: u32, checksum: Checksum },
    /// Data of a prepared version, beginning at this lsn, is read to be journaled again.
    GatherRead(Lsn),
    /// Journal data of a block is read to be written back, starting at this unit.
    WriteBackRead { key: BlockKey, unit: u32 },
    /// A block is written back.
    WriteBack,
    /// The data area is flushed before the checkpoint's pages are written.
    FlushData,
    /// A page of this group of leaves is written.
    LeafWrite(LeafGroupId),
    /// A page of a stream is written.
    StreamWrite,
    /// All pages are flushed before the root is written.
    FlushPages,
    /// The root is written.
    RootWrite,
    /// The root is flushed.
    FlushRoot,
    /// Space in the file system is reserved for these locations.
    Reserve(Range<u32>),
    /// Freed places are discarded before they are allocated again.
    Discard(Vec<Place>),
    /// A check reads a piece of the metadata.
    Metadata(Target),
    /// A damaged copy of the superblock is written again.
    SuperblockWrite,
    /// The copy of the superblock is flushed.
    SuperblockFlush,
    /// Recovery reads; its stage determines what.
    RecoveryRead,
    /// Recovery reads a leaf; `index` is its position in the directory.
    RecoveryLeaf { index: usize },
    /// Recovery writes; its stage determines what.
    RecoveryWrite,
    /// Recovery flushes.
    RecoveryFlush,
}

/// The parameters of an operation, to repeat it.
#[derive(Debug)]
enum Again {
    Write { offset: u64, buffers: Vec<Buffer>, durable: bool },
    Reserve { offset: u64, length: u64 },
    Read { offset: u64 },
    Piece(Box<Pieces>),
}

/// A failed read that is repeated in pieces, one after another.
#[derive(Debug)]
struct Pieces {
    offset: u64,
    /// What was read so far. Unreadable pieces stay zeros.
    whole: BufferMut,
    piece_size: usize,
    /// Where the piece being read begins.
    at: usize,
    /// The end of the last long piece that failed. Up to here, reads use small pieces.
    small_until: usize,
    attempts: u32,
    lost: Vec<Range<usize>>,
}

impl Pieces {
    fn piece(&self) -> Range<usize> {
        let size = if self.at < self.small_until { self.piece_size } else { LONG_PIECE_SIZE };
        self.at..(self.at + size.max(self.piece_size)).min(self.whole.len())
    }

    /// Handles the end of a read of the current piece; `None`: it failed. Returns whether there is more to
    /// read.
    fn on_piece(&mut self, bytes: Option<&[u8]>) -> bool {
        let piece = self.piece();
        self.attempts += 1;
        match bytes {
            Some(bytes) => self.whole[piece.clone()].copy_from_slice(bytes),
            None if piece.len() > self.piece_size => {
                self.small_until = piece.end;
                self.attempts = 0;
                return true;
            }
            None if self.attempts < READ_ATTEMPTS_MAX => return true,
            None => self.lost.push(piece.clone()),
        }
        self.attempts = 0;
        self.at = piece.end;
        self.at < self.whole.len()
    }
}

/// A finished read.
pub struct ReadDone {
    pub purpose: Purpose,
    pub bytes: Buffer,
    /// Ranges that the disk could not read. They are zeros in `bytes`, so only the checksum of zeros
    /// matches them.
    pub lost: Vec<Range<usize>>,
}

/// An operation in flight, and its purpose.
#[derive(Debug)]
struct InFlight {
    purpose: Purpose,
    again: Option<Again>,
    /// Whether this is a retry after the file system had no space.
    is_retry: bool,
    /// When the operation began, on the clock of [`Disk::ran`].
    begun: Time,
}

/// What a step of the store uses to start I/O and to answer requests.
pub struct Io<'a> {
    pub disk: &'a mut Disk,
    pub pool: &'a BufferPool,
    pub effects: &'a mut Vec<Effect>,
}

impl Io<'_> {
    /// Reads `size` bytes into a new buffer.
    pub fn read(&mut self, purpose: Purpose, offset: u64, size: usize) {
        let buffer = self.pool.take(size);
        let op = self.disk.begin(purpose, Some(Again::Read { offset }));
        self.effects.push(Effect::Disk(DiskEffect::Read { op, offset, buffer }));
    }

    /// Writes the buffers one after another.
    pub fn write(&mut self, purpose: Purpose, offset: u64, buffers: Vec<Buffer>, durable: bool) {
        self.disk.write(purpose, offset, buffers, durable, self.effects);
    }

    /// Makes all earlier writes durable.
    pub fn flush(&mut self, purpose: Purpose) {
        let op = self.disk.begin(purpose, None);
        self.effects.push(Effect::Disk(DiskEffect::Flush { op }));
    }

    /// Reserves space in the file system for a range. Only recovery's reservations are retried here.
    pub fn reserve(&mut self, purpose: Purpose, offset: u64, length: u64) {
        self.disk.reserve(purpose, offset, length, self.effects);
    }

    /// Returns the space of a range to the device or file system.
    pub fn discard(&mut self, purpose: Purpose, offset: u64, length: u64) {
        let op = self.disk.begin(purpose, None);
        self.effects.push(Effect::Disk(DiskEffect::Discard { op, offset, length }));
    }

    /// Answers a request.
    pub fn done(&mut self, id: RequestId, result: Result<Answer, StoreError>) {
        self.effects.push(Effect::Done { id, result });
    }
}

/// Operations of one store on its disk.
pub struct Disk {
    /// Number of operations so far. Forms the upper half of each id, so that no id is reused.
    count: u32,
    /// Operations in flight. The upper half of an operation's id is stored here; the lower half is the index.
    in_flight: Slab<(u32, InFlight)>,
    refused: Vec<InFlight>,
    retry_at: Option<Time>,
    /// Retries in flight. The file system counts as full until one of them succeeds.
    retries: usize,
    /// How long the owner's loop has run.
    ran: Time,
    turn: Option<Time>,
    figures: DiskFigures,
}

impl Disk {
    pub fn new() -> Disk {
        Disk {
            count: 0,
            in_flight: Slab::new(),
            refused: Vec::new(),
            retry_at: None,
            retries: 0,
            ran: Time::ZERO,
            turn: None,
            figures: DiskFigures::default(),
        }
    }

    /// Counts the time since the last turn of the owner's loop, up to the limit.
    pub fn runs(&mut self, now: Time) {
        let gap = self.turn.map_or(Duration::ZERO, |turn| now.since(turn));
        let counts = if planted::on(Bug::PauseCountedAsAge) { gap } else { gap.min(GAP_MAX) };
        self.ran = self.ran + counts;
        self.turn = Some(now);
    }

    /// Returns how long the oldest read, write or flush has been in flight.
    pub fn oldest(&self) -> Duration {
        let is_of_space =
            |purpose: &Purpose| matches!(purpose, Purpose::Reserve(_) | Purpose::Discard(_));
        let in_flight = self.in_flight.iter().map(|(_, (_, in_flight))| in_flight);
        let begun = in_flight.filter(|it| !is_of_space(&it.purpose)).map(|it| it.begun).min();
        begun.map_or(Duration::ZERO, |begun| self.ran.since(begun))
    }

    /// Returns how long the owner's loop has run.
    pub fn ran(&self) -> Time {
        self.ran
    }

    /// Returns the counters of disk operations.
    pub fn figures(&self) -> DiskFigures {
        self.figures
    }

    /// Counts a finished operation.
    fn count(&mut self, ended: &InFlight) {
        let span = self.ran.since(ended.begun);
        match ended.purpose {
            Purpose::Read(..) | Purpose::Leaf { .. } => self.figures.reads.count(span),
            Purpose::Group(_) => self.figures.writes.count(span),
            Purpose::Flush => self.figures.flushes.count(span),
            Purpose::Large { .. }
            | Purpose::WriteBackRead { .. }
            | Purpose::WriteBack
            | Purpose::LeafWrite(_)
            | Purpose::StreamWrite
            | Purpose::RootWrite
            | Purpose::FlushData
            | Purpose::FlushPages
            | Purpose::FlushRoot
            | Purpose::Reserve(_)
            | Purpose::Discard(_)
            | Purpose::GatherRead(_)
            | Purpose::Metadata(_)
            | Purpose::SuperblockWrite
            | Purpose::SuperblockFlush
            | Purpose::RecoveryRead
            | Purpose::RecoveryLeaf { .. }
            | Purpose::RecoveryWrite
            | Purpose::RecoveryFlush => {}
        }
    }

    /// Whether no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn begin(&mut self, purpose: Purpose, again: Option<Again>) -> DiskOp {
        self.count = self.count.wrapping_add(1);
        let in_flight = InFlight { purpose, again, is_retry: false, begun: self.ran };
        let index = self.in_flight.insert((self.count, in_flight));
        DiskOp(u64::from(self.count) << 32 | index as u64)
    }

    fn get(&self, op: DiskOp) -> &InFlight {
        let (count, in_flight) = &self.in_flight[op.0 as u32 as usize];
        assert!(*count == (op.0 >> 32) as u32, "each operation ends once");
        in_flight
    }

    fn remove(&mut self, op: DiskOp) -> InFlight {
        let (count, in_flight) = self.in_flight.remove(op.0 as u32 as usize);
        assert!(count == (op.0 >> 32) as u32, "each operation ends once");
        in_flight
    }

    /// Writes the buffers one after another.
    fn write(
        &mut self,
        purpose: Purpose,
        offset: u64,
        buffers: Vec<Buffer>,
        durable: bool,
        effects: &mut Vec<Effect>,
    ) -> DiskOp {
        assert!(buffers.iter().all(|buffer| buffer.len().is_multiple_of(512)));
        let again = Again::Write { offset, buffers: buffers.clone(), durable };
        let op = self.begin(purpose, Some(again));
        effects.push(Effect::Disk(DiskEffect::Write { op, offset, buffers, durable }));
        op
    }

    /// Reserves space in the file system for a range. Only recovery's reservations are retried here.
    fn reserve(
        &mut self,
        purpose: Purpose,
        offset: u64,
        length: u64,
        effects: &mut Vec<Effect>,
    ) -> DiskOp {
        let is_asked_again = matches!(purpose, Purpose::RecoveryWrite);
        let again = is_asked_again.then_some(Again::Reserve { offset, length });
        let op = self.begin(purpose, again);
        effects.push(Effect::Disk(DiskEffect::Reserve { op, offset, length }));
        op
    }

    /// Removes a finished operation, and returns its purpose.
    pub fn end(&mut self, op: DiskOp) -> Purpose {
        let ended = self.remove(op);
        self.count(&ended);
        self.retries -= usize::from(ended.is_retry);
        ended.purpose
    }

    /// Handles a finished read. Returns `None` if the read failed and is repeated in pieces down to
    /// `piece_size` bytes.
    pub fn on_read(
        &mut self,
        (op, mut buffer, is_read): (DiskOp, BufferMut, bool),
        piece_size: usize,
        pool: &BufferPool,
        effects: &mut Vec<Effect>,
    ) -> Option<ReadDone> {
        let ended = self.remove(op);
        match is_read {
            true => self.count(&ended),
            // Pieces are read only because the whole read failed, so all their failures count as one error.
            false => {
                let is_piece = matches!(ended.again, Some(Again::Piece(_)));
                self.figures.read_errors += u64::from(!is_piece);
            }
        }
        let InFlight { purpose, again, .. } = ended;
        let pieces = match again {
            Some(Again::Read { .. }) if is_read => {
                return Some(ReadDone { purpose, bytes: buffer.freeze(), lost: Vec::new() });
            }
            Some(Again::Read { offset }) => {
                buffer.fill(0);
                let whole = buffer;
                Box::new(Pieces {
                    offset,
                    whole,
                    piece_size,
                    at: 0,
                    small_until: 0,
                    attempts: 0,
                    lost: Vec::new(),
                })
            }
            Some(Again::Piece(mut pieces)) => {
                if !pieces.on_piece(is_read.then_some(&buffer[..])) {
                    let Pieces { whole, lost, .. } = *pieces;
                    return Some(ReadDone { purpose, bytes: whole.freeze(), lost });
                }
                pieces
            }
            Some(Again::Write { .. } | Again::Reserve { .. }) | None => {
                unreachable!("it is no read")
            }
        };
        let offset = pieces.offset + pieces.at as u64;
        let size = pieces.piece().len();
        let buffer = pool.take(size);
        let op = self.begin(purpose, Some(Again::Piece(pieces)));
        effects.push(Effect::Disk(DiskEffect::Read { op, offset, buffer }));
        None
    }

    /// Handles an operation for which the file system had no space. Returns whether it will be retried. A
    /// retry writes the same bytes at the same place, so a part that was already written does no harm.
    pub fn refuse(&mut self, op: DiskOp, now: Time) -> bool {
        if self.get(op).again.is_none() {
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

    /// Returns when refused operations are retried.
    pub fn deadline(&self) -> Option<Time> {
        self.retry_at
    }

    /// Retries refused operations once the retry time has come.
    pub fn retry(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        for InFlight { purpose, again, .. } in std::mem::take(&mut self.refused) {
            let op = match again.expect("only what can be repeated is refused") {
                Again::Write { offset, buffers, durable } => {
                    self.write(purpose, offset, buffers, durable, effects)
                }
                Again::Reserve { offset, length } => self.reserve(purpose, offset, length, effects),
                Again::Read { .. } | Again::Piece(_) => unreachable!("reads need no space"),
            };
            self.in_flight[op.0 as u32 as usize].1.is_retry = true;
            self.retries += 1;
        }
    }
}
