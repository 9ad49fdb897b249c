//! One request, of the user or of the core itself: what remains to be cut into parts, and the answer
//! so far.

use std::collections::VecDeque;
use std::ops::Range;

use base::hash::stripe_hash;
use base::{Buffer, Epoch, ImageId, StripeIndex, Time, UNIT_SIZE};
use format::wire::Payload;

use crate::cut::{self, Cut, StripeSize};
use crate::part::Work;
use crate::queue::Turn;
use crate::replay::Replay;
use crate::routes::Target;
use crate::table::PartKey;
use crate::{Answer, Extent, Piece, RequestId, VolumeError, VolumeHandle};

/// A request that has not ended.
pub(crate) struct Request {
    /// The id chosen by the user; `None`: the core itself made the request, and no answer is sent.
    pub(crate) id: Option<RequestId>,
    pub(crate) volume: VolumeHandle,
    pub(crate) progress: Progress,
    /// The age of the request, by which it waits to be cut.
    pub(crate) turn: Turn,
    /// Number of parts cut so far.
    pub(crate) part_count: u32,
    /// The parts that were cut and have not ended, in no order.
    pub(crate) open: Vec<PartKey>,
    /// The first error of a part. After it no further part is sent, but parts already sent are awaited.
    pub(crate) failure: Option<VolumeError>,
    /// Whether the answer was returned to the user; the request stays until its sent parts have ended.
    pub(crate) answered: bool,
    /// Whether a part changed something.
    pub(crate) has_changed: bool,
    /// When the request times out; for a paused replay: when the next pass begins.
    pub(crate) deadline: Option<Time>,
}

/// Progress of an [`crate::Operation`]: `rest` is the range that is not cut yet, within the volume;
/// `found` collects the results of the parts.
pub(crate) enum Progress {
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
    /// An operation on objects, or reads of them: one part.
    Objects {
        target: Target,
        /// What is to be done; `None`: it is cut.
        work: Option<Work>,
        found: Option<Answer>,
    },
    List(List),
    /// A replay; only the core itself creates this request.
    Replay(Replay),
}

/// The PGs that a flush must still be sent to.
pub(crate) enum Flush {
    /// The PGs are determined when it is the flush's turn.
    Undecided,
    /// The flush must still be sent to these PGs.
    Rest {
        pgs: Vec<u32>,
        /// Whether the flush covers every PG of the image, as the first flush of a session does.
        first: bool,
    },
}

/// A list of the objects of all PGs: one part for each OSD.
pub(crate) struct List {
    pub(crate) names: Payload,
    pub(crate) page_size_max: u64,
    pub(crate) pgs_max: usize,
    /// The PGs that must still be asked, together if one OSD leads them. `None`: they are grouped when it is
    /// the list's turn.
    pub(crate) groups: Option<Vec<Vec<u32>>>,
    pub(crate) pages: Vec<Vec<u8>>,
    pub(crate) refused: Vec<u32>,
}

/// The next part of a request.
pub(crate) struct NextPart {
    pub(crate) target: Target,
    /// The stripe of the part; 0 for a sync, which has no stripe.
    pub(crate) stripe: StripeIndex,
    pub(crate) work: Work,
}

/// The result of a part.
pub(crate) enum Found {
    Nothing,
    Piece(Piece),
    Extents(Vec<Extent>),
    Objects(Answer),
    Pages { pages: Vec<u8>, refused: Vec<u32> },
}

impl Request {
    /// Creates a request of the core itself, which neither times out nor fails.
    pub(crate) fn own(volume: VolumeHandle, progress: Progress) -> Request {
        Request {
            id: None,
            volume,
            progress,
            turn: Turn::NONE,
            part_count: 0,
            open: Vec::new(),
            failure: None,
            answered: true,
            has_changed: false,
            deadline: None,
        }
    }

    /// Whether the core itself made the request.
    pub(crate) fn is_own(&self) -> bool {
        self.id.is_none()
    }

    /// Whether the request is a change that may be acknowledged before it is durable.
    pub(crate) fn may_be_lazy(&self) -> bool {
        matches!(
            self.progress,
            Progress::Write { durable: false, .. } | Progress::Zero { durable: false, .. }
        )
    }

    /// Returns the range that is not cut yet, in units of the volume, if the request changes it.
    pub(crate) fn rest_to_change(&self) -> Option<Range<u64>> {
        match &self.progress {
            Progress::Write { rest, .. } | Progress::Zero { rest, .. } => {
                Some(rest.start / UNIT_SIZE..rest.end.div_ceil(UNIT_SIZE))
            }
            _ => None,
        }
    }

    /// Returns the PGs with any of which a flush or a list may go on, once they are determined; `None`: only
    /// the next part of the request says which.
    pub(crate) fn rest_of_pgs(&self) -> Option<Vec<u32>> {
        match &self.progress {
            Progress::Flush(Flush::Rest { pgs, .. }) => Some(pgs.clone()),
            Progress::List(List { groups: Some(groups), .. }) => {
                Some(groups.iter().map(|group| group[0]).collect())
            }
            _ => None,
        }
    }

    /// Whether the request is completely cut into parts.
    pub(crate) fn is_cut(&self) -> bool {
        match &self.progress {
            Progress::Read { rest, .. }
            | Progress::Write { rest, .. }
            | Progress::Zero { rest, .. }
            | Progress::Extents { rest, .. } => rest.is_empty(),
            Progress::Objects { work, .. } => work.is_none(),
            Progress::List(list) => list.groups.as_ref().is_some_and(Vec::is_empty),
            Progress::Replay(_) => false,
            Progress::Flush(Flush::Undecided) => false,
            Progress::Flush(Flush::Rest { pgs, .. }) => pgs.is_empty(),
        }
    }

    /// Whether the request can end: all parts are done, or it failed and no part is in flight.
    pub(crate) fn is_over(&self) -> bool {
        self.open.is_empty() && (self.failure.is_some() || self.is_cut())
    }

    /// Returns the maximum number of bytes of memory that the next part can take.
    pub(crate) fn next_weight(&self, stripe_size: StripeSize) -> u64 {
        match &self.progress {
            Progress::Read { rest, .. } => (rest.end - rest.start).min(stripe_size.bytes()),
            // A lazy change is kept in whole units, and zeros take memory, too.
            Progress::Write { rest, .. } => {
                (rest.end - rest.start).next_multiple_of(UNIT_SIZE).min(stripe_size.bytes())
            }
            Progress::Zero { .. } => UNIT_SIZE,
            Progress::Objects { work, .. } => work.as_ref().map_or(0, Work::object_size),
            Progress::List(list) => {
                let next = list.groups.as_ref().and_then(|groups| groups.last());
                next.map_or(0, |pgs| list.names.size() + list.page_size_max * pgs.len() as u64)
            }
            Progress::Extents { .. } | Progress::Flush(_) | Progress::Replay(_) => 0,
        }
    }

    /// Returns the target of the next part, for the image with this seed (`None`: for an object pool). Of
    /// several PGs whose order does not matter, one is taken that `has_room`, if there is one. Requires: as
    /// for [`Request::cut`].
    pub(crate) fn next_target(
        &mut self,
        stripe_size: StripeSize,
        seed: Option<ImageId>,
        has_room: impl Fn(u32) -> bool,
    ) -> Target {
        match &mut self.progress {
            Progress::Read { rest, .. }
            | Progress::Write { rest, .. }
            | Progress::Zero { rest, .. }
            | Progress::Extents { rest, .. } => {
                let stripe = cut::first_piece(Cut::Stripes, rest.clone(), stripe_size).stripe;
                Target::Hash(stripe_hash(seed.expect("only a volume has stripes"), stripe))
            }
            Progress::Flush(Flush::Rest { pgs, .. }) => {
                if let Some(place) = pgs.iter().rposition(|pg| has_room(*pg)) {
                    let last = pgs.len() - 1;
                    pgs.swap(place, last);
                }
                Target::Pg(*pgs.last().expect("something is left"))
            }
            Progress::Objects { target, .. } => *target,
            Progress::List(list) => {
                let groups = list.groups.as_mut().expect("they are determined");
                if let Some(place) = groups.iter().rposition(|group| has_room(group[0])) {
                    let last = groups.len() - 1;
                    groups.swap(place, last);
                }
                Target::Pg(groups.last().expect("something is left")[0])
            }
            Progress::Flush(Flush::Undecided) | Progress::Replay(_) => {
                unreachable!("neither is cut")
            }
        }
    }

    /// Cuts the next part, for the image with this seed (`None`: for an object pool). `part_bytes`: the
    /// size of the data parts of a stripe, if each is read where it lies. Requires: something is left to
    /// cut, and the PGs of a flush are determined; the caller adds the part to those that are open.
    pub(crate) fn cut(
        &mut self,
        stripe_size: StripeSize,
        seed: Option<ImageId>,
        part_bytes: impl Fn(Target) -> Option<u64>,
    ) -> NextPart {
        assert!(!self.is_cut());
        let hash = |stripe| stripe_hash(seed.expect("only a volume has stripes"), stripe);
        self.part_count += 1;
        let (piece, work) = match &mut self.progress {
            Progress::Read { rest, .. } => {
                let stripe = cut::first_piece(Cut::Stripes, rest.clone(), stripe_size).stripe;
                let part_bytes = part_bytes(Target::Hash(hash(stripe)));
                let cut = part_bytes.map_or(Cut::Stripes, Cut::Parts);
                let piece = take_piece(cut, rest, stripe_size);
                let work = Work::Read { range: piece.range.clone() };
                (piece, work)
            }
            Progress::Extents { rest, .. } => {
                let piece = take_piece(Cut::Stripes, rest, stripe_size);
                let work = Work::Extents { range: piece.range.clone() };
                (piece, work)
            }
            Progress::Zero { rest, .. } => {
                let piece = take_piece(Cut::Units, rest, stripe_size);
                let range = piece.range.clone();
                let work = match piece.whole {
                    true => Work::Zero { range },
                    false => Work::patch(range, None),
                };
                (piece, work)
            }
            Progress::Write { rest, data, .. } => {
                let from = data.len() - (rest.end - rest.start) as usize;
                let piece = take_piece(Cut::Units, rest, stripe_size);
                let range = piece.range.clone();
                let bytes = data.slice(from..from + range.len());
                let work = match piece.whole {
                    true => Work::write(range, bytes),
                    false => Work::patch(range, Some(bytes)),
                };
                (piece, work)
            }
            Progress::Flush(Flush::Rest { pgs, .. }) => {
                let target = Target::Pg(pgs.pop().expect("something is left"));
                let work = Work::Sync { covers: 0 };
                return NextPart { target, stripe: StripeIndex::ZERO, work };
            }
            Progress::Flush(Flush::Undecided) => {
                unreachable!("a flush is decided before it is cut")
            }
            Progress::Objects { target, work, .. } => {
                let (target, work) = (*target, work.take().expect("something is left"));
                return NextPart { target, stripe: StripeIndex::ZERO, work };
            }
            Progress::List(list) => {
                let next = list.groups.as_mut().and_then(Vec::pop);
                let mut pgs = next.expect("something is left").into_iter();
                let target = Target::Pg(pgs.next().expect("a group has a PG"));
                let work = Work::List {
                    beside: pgs.map(|pg| (pg, Epoch::ZERO)).collect(),
                    names: list.names.clone(),
                    page_size_max: list.page_size_max,
                };
                return NextPart { target, stripe: StripeIndex::ZERO, work };
            }
            Progress::Replay(_) => unreachable!("a replay makes its parts itself"),
        };
        let target = Target::Hash(hash(piece.stripe));
        NextPart { target, stripe: piece.stripe, work }
    }

    /// Adds the result of the part with this index.
    pub(crate) fn put(&mut self, index: u32, part: Found) {
        match (&mut self.progress, part) {
            (Progress::Read { found, .. }, Found::Piece(piece)) => {
                found.put(index, piece, append_piece);
            }
            (Progress::Extents { found, .. }, Found::Extents(extents)) => {
                found.put(index, extents, append_extents);
            }
            (Progress::Objects { found, .. }, Found::Objects(answer)) => *found = Some(answer),
            (Progress::List(list), Found::Pages { pages, refused }) => {
                list.pages.push(pages);
                list.refused.extend(refused);
            }
            (_, Found::Nothing) => {}
            _ => unreachable!("a part finds what its request asks"),
        }
    }

    /// Removes and returns the answer for the user. Requires: the request is over, or has failed.
    pub(crate) fn take_result(&mut self) -> Result<Answer, VolumeError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        Ok(match &mut self.progress {
            Progress::Read { found, .. } => Answer::Data(found.take_all()),
            Progress::Extents { found, .. } => {
                let extents = found.take_all();
                Answer::Extents(extents.into_iter().flatten().collect())
            }
            Progress::Write { rest, .. } | Progress::Zero { rest, .. } => {
                assert!(rest.is_empty());
                Answer::Done
            }
            Progress::Objects { found, .. } => found.take().expect("its part has ended"),
            Progress::List(list) => Answer::Listed {
                pages: std::mem::take(&mut list.pages),
                refused: std::mem::take(&mut list.refused),
            },
            Progress::Flush(_) | Progress::Replay(_) => Answer::Done,
        })
    }
}

fn take_piece(cut: Cut, rest: &mut Range<u64>, stripe_size: StripeSize) -> cut::Piece {
    let piece = cut::first_piece(cut, rest.clone(), stripe_size);
    rest.start += piece.range.len() as u64;
    assert!(rest.start <= rest.end);
    piece
}

/// Collects items that arrive in any order, and returns them in the order of their indexes.
pub(crate) struct InOrder<T> {
    done: Vec<T>,
    /// Index of the first element of `waiting`.
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
    if let (Some(Piece::Hole(before)), Piece::Hole(more)) = (pieces.last_mut(), &piece) {
        *before += more;
    } else {
        pieces.push(piece);
    }
}

/// Appends to the single list of extents collected so far, so that adjacent extents of different parts are
/// merged too.
fn append_extents(lists: &mut Vec<Vec<Extent>>, extents: Vec<Extent>) {
    let Some(list) = lists.first_mut() else {
        lists.push(extents);
        return;
    };
    for extent in extents {
        push_extent(list, extent);
    }
}

/// Appends an extent; merges it with the last extent if both have the same state.
fn push_extent(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.allocated == extent.allocated => last.length += extent.length,
        _ => extents.push(extent),
    }
}

/// Returns the extents of a range, from the stripe's bitmap of written units.
pub(crate) fn extents_of(bitmap: &[u64], start: u32, end: u32) -> Vec<Extent> {
    let unit_size = UNIT_SIZE as u32;
    let mut extents = Vec::new();
    let mut at = start;
    while at < end {
        let unit = at / unit_size;
        let unit_end = ((unit + 1) * unit_size).min(end);
        let allocated = bitmap[unit as usize / 64] >> (unit % 64) & 1 == 1;
        push_extent(&mut extents, Extent { length: u64::from(unit_end - at), allocated });
        at = unit_end;
    }
    extents
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
        let mut pieces = vec![Piece::Hole(3)];
        append_piece(&mut pieces, Piece::Hole(4));
        assert_eq!(pieces, [Piece::Hole(7)]);
        let hole = |length| Extent { length, allocated: false };
        let data = |length| Extent { length, allocated: true };
        let mut lists = vec![vec![data(1), hole(2)]];
        append_extents(&mut lists, vec![hole(5), data(1)]);
        assert_eq!(lists, [[data(1), hole(7), data(1)]]);
    }
}
