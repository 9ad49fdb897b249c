//! Recent data of the journal in memory, so that reads and write-back need not fetch it.
//!
//! Invariants
//!   1. Pieces are in the order of their lsns and do not overlap.
//!   2. Data that is not on the disk yet is never dropped.

use std::collections::VecDeque;

use base::{Buffer, Lsn};

/// Pieces of the journal as they were written.
pub struct JournalCache {
    pieces: VecDeque<(Lsn, Buffer)>,
    bytes: u64,
    bytes_max: u64,
}

impl JournalCache {
    pub fn new(bytes_max: u64) -> JournalCache {
        JournalCache { pieces: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds the piece that begins at `lsn`, after all others.
    pub fn push(&mut self, lsn: Lsn, piece: Buffer) {
        assert!(self.pieces.back().is_none_or(|(last, _)| *last < lsn));
        self.bytes += piece.len() as u64;
        self.pieces.push_back((lsn, piece));
    }

    /// Returns `size` bytes from `lsn` on, if they are within one piece.
    pub fn get(&self, lsn: Lsn, size: usize) -> Option<Buffer> {
        let at = self.pieces.partition_point(|(start, _)| *start <= lsn).checked_sub(1)?;
        let (start, piece) = &self.pieces[at];
        slice_at(*start, piece, lsn, size)
    }

    /// Drops the oldest pieces until the limit is met. Pieces that are not yet written, from `written` on,
    /// are kept.
    pub fn shrink(&mut self, written: Lsn) {
        while self.bytes > self.bytes_max && self.drop_first_before(written) {}
    }

    /// Drops all pieces before `head`.
    pub fn trim(&mut self, head: Lsn) {
        while self.drop_first_before(head) {}
    }

    /// Drops the oldest piece if it ends at or before `end`.
    fn drop_first_before(&mut self, end: Lsn) -> bool {
        let first = self.pieces.pop_front_if(|(lsn, piece)| lsn.advance(piece.len() as u64) <= end);
        self.bytes -= first.as_ref().map_or(0, |(_, piece)| piece.len() as u64);
        first.is_some()
    }
}

/// Returns `size` bytes at `lsn` from a buffer that begins at `start`, if the buffer contains them.
pub fn slice_at(start: Lsn, buffer: &Buffer, lsn: Lsn, size: usize) -> Option<Buffer> {
    let from = (start <= lsn).then(|| lsn.since(start) as usize)?;
    (from + size <= buffer.len()).then(|| buffer.slice(from..from + size))
}
