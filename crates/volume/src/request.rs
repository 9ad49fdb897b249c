//! One request of the user: what is left to cut, and the answer as it grows.

use std::collections::VecDeque;
use std::ops::Range;

use base::{BlockSize, Buffer, Time, UNIT_SIZE};

use crate::cut::{self, Cut};
use crate::replay::Replay;
use crate::{Answer, Extent, Piece, RequestId, VolumeError, VolumeHandle};

/// Place of a request in the core's table; used again after the request is gone.
pub(crate) type RequestKey = usize;

/// A request that is not yet over.
pub(crate) struct Request {
    /// As the user names it; `None`: it is our own, answered to nobody.
    pub(crate) id: Option<RequestId>,
    pub(crate) volume: VolumeHandle,
    pub(crate) kind: Kind,
    /// Parts cut so far.
    pub(crate) part_count: u32,
    /// Parts cut and not done.
    pub(crate) parts_open: u32,
    /// The first error of a part. Nothing more of the request is sent; what was sent is awaited.
    pub(crate) failure: Option<VolumeError>,
    /// The user has the answer; the request stays until what was sent of it has ended.
    pub(crate) answered: bool,
    /// When the user's patience ends.
    pub(crate) deadline: Option<Time>,
}

/// What is asked; `rest` is not cut yet.
pub(crate) enum Kind {
    Read {
        rest: Range<u64>,
        found: InOrder<Piece>,
    },
    Write {
        rest: Range<u64>,
        data: Buffer,
        durable: bool,
    },
    Zero {
        rest: Range<u64>,
        durable: bool,
    },
    Extents {
        rest: Range<u64>,
        found: InOrder<Vec<Extent>>,
    },
    Flush(Flush),
    /// Own alone.
    Replay(Replay),
}

/// Which PGs a flush still goes to.
pub(crate) enum Flush {
    /// Not known before the flush's turn comes.
    Undecided,
    /// These PGs remain.
    Rest {
        pgs: Vec<u32>,
        /// Whether it goes to every PG of the image: the session's first.
        first: bool,
    },
}

/// What is to be made a part of, cut from a request.
pub(crate) enum Slice {
    Read(cut::Piece),
    Write(cut::Piece, Buffer),
    Zero(cut::Piece),
    Extents(cut::Piece),
    Sync(u32),
}

/// What a part found.
pub(crate) enum Found {
    Nothing,
    Piece(Piece),
    Extents(Vec<Extent>),
}

impl Request {
    /// A request for our own sake: it has no deadline and does not fail.
    pub(crate) fn own(volume: VolumeHandle, kind: Kind) -> Request {
        Request {
            id: None,
            volume,
            kind,
            part_count: 0,
            parts_open: 0,
            failure: None,
            answered: true,
            deadline: None,
        }
    }

    /// Whether it is for our own sake.
    pub(crate) fn is_own(&self) -> bool {
        self.id.is_none()
    }

    /// Whether it changes something and may be answered before it is durable.
    pub(crate) fn may_be_lazy(&self) -> bool {
        matches!(self.kind, Kind::Write { durable: false, .. } | Kind::Zero { durable: false, .. })
    }

    pub(crate) fn is_cut(&self) -> bool {
        match &self.kind {
            Kind::Read { rest, .. }
            | Kind::Write { rest, .. }
            | Kind::Zero { rest, .. }
            | Kind::Extents { rest, .. } => rest.is_empty(),
            Kind::Replay(_) => false,
            Kind::Flush(Flush::Undecided) => false,
            Kind::Flush(Flush::Rest { pgs, .. }) => pgs.is_empty(),
        }
    }

    /// Whether it needs nothing more: all parts are done, or it failed and nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.parts_open == 0 && (self.failure.is_some() || self.is_cut())
    }

    /// Bytes of memory the next part will take, at most.
    pub(crate) fn next_weight(&self, block_size: BlockSize) -> u64 {
        match &self.kind {
            Kind::Read { rest, .. } => (rest.end - rest.start).min(block_size.bytes()),
            // What a lazy change keeps is whole units, and zeros take memory, too.
            Kind::Write { rest, .. } => {
                (rest.end - rest.start).next_multiple_of(UNIT_SIZE).min(block_size.bytes())
            }
            Kind::Zero { .. } => UNIT_SIZE,
            Kind::Extents { .. } | Kind::Flush(_) | Kind::Replay(_) => 0,
        }
    }

    /// Cuts the next part off. Requires: something is left, and a flush is decided.
    pub(crate) fn cut(&mut self, block_size: BlockSize) -> Slice {
        assert!(!self.is_cut());
        self.part_count += 1;
        self.parts_open += 1;
        match &mut self.kind {
            Kind::Read { rest, .. } => Slice::Read(take_piece(Cut::Blocks, rest, block_size)),
            Kind::Zero { rest, .. } => Slice::Zero(take_piece(Cut::Units, rest, block_size)),
            Kind::Extents { rest, .. } => Slice::Extents(take_piece(Cut::Blocks, rest, block_size)),
            Kind::Replay(_) => unreachable!("a replay makes its parts itself"),
            Kind::Write { rest, data, .. } => {
                let from = data.len() - (rest.end - rest.start) as usize;
                let piece = take_piece(Cut::Units, rest, block_size);
                let bytes = data.slice(from..from + piece.range.len());
                Slice::Write(piece, bytes)
            }
            Kind::Flush(flush) => match flush {
                Flush::Undecided => unreachable!("a flush is decided before it is cut"),
                Flush::Rest { pgs, .. } => Slice::Sync(pgs.pop().expect("something is left")),
            },
        }
    }

    /// Takes what the part of this index found.
    pub(crate) fn put(&mut self, index: u32, part: Found) {
        match (&mut self.kind, part) {
            (Kind::Read { found, .. }, Found::Piece(piece)) => {
                found.put(index, piece, append_piece);
            }
            (Kind::Extents { found, .. }, Found::Extents(extents)) => {
                found.put(index, extents, append_extents);
            }
            (_, Found::Nothing) => {}
            _ => unreachable!("a part finds what its request asks"),
        }
    }

    /// The answer for the user. Requires: it is over, or the answer is an error.
    pub(crate) fn take_result(&mut self) -> Result<Answer, VolumeError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        Ok(match &mut self.kind {
            Kind::Read { found, .. } => Answer::Data(found.take_all()),
            Kind::Extents { found, .. } => {
                let extents = found.take_all();
                Answer::Extents(extents.into_iter().flatten().collect())
            }
            Kind::Write { .. } | Kind::Zero { .. } | Kind::Flush(_) | Kind::Replay(_) => {
                Answer::Done
            }
        })
    }
}

fn take_piece(cut: Cut, rest: &mut Range<u64>, block_size: BlockSize) -> cut::Piece {
    let piece = cut::first_piece(cut, rest.clone(), block_size);
    rest.start += piece.range.len() as u64;
    assert!(rest.start <= rest.end);
    piece
}

/// Puts what comes in any order into the order of its index.
pub(crate) struct InOrder<T> {
    done: Vec<T>,
    /// Index of the first of `waiting`.
    next: u32,
    waiting: VecDeque<Option<T>>,
}

impl<T> Default for InOrder<T> {
    fn default() -> InOrder<T> {
        InOrder { done: Vec::new(), next: 0, waiting: VecDeque::new() }
    }
}

impl<T> InOrder<T> {
    fn put(&mut self, index: u32, item: T, append: impl Fn(&mut Vec<T>, T)) {
        assert!(index >= self.next);
        let place = (index - self.next) as usize;
        if place >= self.waiting.len() {
            self.waiting.resize_with(place + 1, || None);
        }
        assert!(self.waiting[place].is_none());
        self.waiting[place] = Some(item);
        while let Some(Some(_)) = self.waiting.front() {
            let item = self.waiting.pop_front().flatten().expect("looked at just now");
            append(&mut self.done, item);
            self.next += 1;
        }
    }

    fn take_all(&mut self) -> Vec<T> {
        assert!(self.waiting.is_empty());
        std::mem::take(&mut self.done)
    }
}

fn append_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let (Some(Piece::Zeros(before)), Piece::Zeros(more)) = (pieces.last_mut(), &piece) {
        *before += more;
    } else {
        pieces.push(piece);
    }
}

/// All extents so far are one list, so that neighbours differ across parts too.
fn append_extents(lists: &mut Vec<Vec<Extent>>, extents: Vec<Extent>) {
    let Some(list) = lists.first_mut() else {
        lists.push(extents);
        return;
    };
    for extent in extents {
        push_extent(list, extent);
    }
}

/// Appends an extent; neighbours that are alike become one.
pub(crate) fn push_extent(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.allocated == extent.allocated => last.length += extent.length,
        _ => extents.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_out_of_order_is_put_in_order() {
        let mut found = InOrder::default();
        found.put(2, 'c', Vec::push);
        found.put(0, 'a', Vec::push);
        assert_eq!(found.done, ['a']);
        found.put(1, 'b', Vec::push);
        assert_eq!(found.take_all(), ['a', 'b', 'c']);
    }

    #[test]
    fn neighbouring_zeros_and_extents_become_one() {
        let mut pieces = vec![Piece::Zeros(3)];
        append_piece(&mut pieces, Piece::Zeros(4));
        assert_eq!(pieces, [Piece::Zeros(7)]);
        let hole = |length| Extent { length, allocated: false };
        let data = |length| Extent { length, allocated: true };
        let mut lists = vec![vec![data(1), hole(2)]];
        append_extents(&mut lists, vec![hole(5), data(1)]);
        assert_eq!(lists, [[data(1), hole(7), data(1)]]);
    }
}
