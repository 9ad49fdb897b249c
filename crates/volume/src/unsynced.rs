//! Changes that a PG acknowledged but did not make durable. They are kept until a sync covers them, and
//! written again in each new epoch of the PG before anything else is sent to the PG.
//!
//! Invariants
//!   1. For each unit only the newest acknowledged content is kept. So a replay never returns a unit to older
//!      content, even if the replay is aborted.
//!   2. While the gate is open (`gate` is `None`), the PG has acknowledged all kept content in
//!      `epoch`.
//!   3. Kept content takes no more memory than the changes acknowledged since the last sync.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::{Buffer, Checksum, Epoch, StripeIndex, UNIT_SIZE};

use crate::cut::units_around;
use crate::part::{Part, Patch, PatchStep, Work};
use crate::table::{PartKey, RequestKey};

/// Changes that the client may have to write again to one PG.
pub(crate) struct Unsynced {
    /// The epoch in which the PG has acknowledged all kept content.
    pub(crate) epoch: Epoch,
    /// Kept content by stripe and first byte within the stripe; ranges do not overlap.
    kept: BTreeMap<(StripeIndex, u32), Kept>,
    /// Acknowledged changes that no sync covers, oldest first: (the volume's count, bytes).
    acknowledged: VecDeque<(u64, u64)>,
    /// The sum of these bytes.
    acknowledged_bytes: u64,
    /// Whether a change ended without an answer. The change may have overwritten kept content, and a replay
    /// would undo it after a reader saw it. So nothing else is sent to the PG before a sync.
    pub(crate) is_unsure: bool,
    /// The replay that the PG's requests wait for, if one is under way.
    pub(crate) gate: Option<Gate>,
    /// Parts of this PG in the stage `Behind`.
    pub(crate) waiting: Vec<PartKey>,
}

/// A replay under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    /// The epoch that the replay is for.
    pub(crate) epoch: Epoch,
    /// The request that the replay's parts belong to.
    pub(crate) request: RequestKey,
    /// Whether the PG had no space for some of the writes in the last pass.
    pub(crate) waits_for_room: bool,
}

/// The content of a range of whole units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Zeros,
    Data { data: Buffer, checksums: Vec<Checksum> },
}

struct Kept {
    end: u32,
    content: Content,
    /// The volume's count of undurable acknowledgements when this one was counted.
    count: u64,
    /// The epoch in which the PG last acknowledged the content.
    epoch: Epoch,
}

impl Content {
    /// Returns the range of a change and the content of the range after the change. Requires: the part is a
    /// change that was sent.
    pub(crate) fn of(part: &Part) -> (Range<u32>, Content) {
        match &part.work {
            Work::Zero { range } => (range.clone(), Content::Zeros),
            Work::Write { range, data, checksums } => {
                (range.clone(), Content::Data { data: data.clone(), checksums: checksums.clone() })
            }
            Work::Patch(Patch {
                range, step: PatchStep::Write { data, checksums, .. }, ..
            }) => (
                units_around(range),
                Content::Data { data: data.clone(), checksums: checksums.clone() },
            ),
            _ => unreachable!("only changes are acknowledged"),
        }
    }

    /// Returns the work that writes this content. Requires: `range` is whole units, as long as the
    /// content.
    pub(crate) fn work(self, range: Range<u32>) -> Work {
        match self {
            Content::Zeros => Work::Zero { range },
            Content::Data { data, checksums } => {
                assert!(data.len() == range.len());
                Work::Write { range, data, checksums }
            }
        }
    }

    /// Returns the content of a range within this content. Requires: whole units.
    fn slice(&self, range: Range<usize>) -> Content {
        let unit = UNIT_SIZE as usize;
        match self {
            Content::Zeros => Content::Zeros,
            Content::Data { data, checksums } => Content::Data {
                checksums: checksums[range.start / unit..range.end / unit].to_vec(),
                data: data.slice(range),
            },
        }
    }
}

impl Unsynced {
    pub(crate) fn new(epoch: Epoch) -> Unsynced {
        Unsynced {
            epoch,
            kept: BTreeMap::new(),
            acknowledged: VecDeque::new(),
            acknowledged_bytes: 0,
            is_unsure: false,
            gate: None,
            waiting: Vec::new(),
        }
    }

    /// Whether a request that carries this epoch may be sent to the PG.
    pub(crate) fn is_level(&self, epoch: Epoch) -> bool {
        self.gate.is_none() && !self.is_unsure && self.epoch == epoch
    }

    /// Returns the number of bytes of the changes that no sync covers.
    pub(crate) fn bytes(&self) -> u64 {
        self.acknowledged_bytes
    }

    /// Whether syncs cover all changes, so that there is nothing to replay.
    pub(crate) fn is_covered(&self) -> bool {
        self.acknowledged.is_empty()
    }

    /// Whether this entry can be dropped.
    pub(crate) fn is_over(&self) -> bool {
        let is_idle = self.gate.is_none() && self.waiting.is_empty();
        self.is_covered() && !self.is_unsure && is_idle
    }

    /// Whether an answer that belongs to this epoch is from the newest known epoch.
    pub(crate) fn is_of(&self, epoch: Epoch) -> bool {
        epoch == self.gate.map_or(self.epoch, |gate| gate.epoch)
    }

    /// Keeps a change that was acknowledged but is not durable. Returns the number of bytes that the change
    /// counts.
    pub(crate) fn acknowledge(
        &mut self,
        epoch: Epoch,
        stripe: StripeIndex,
        range: Range<u32>,
        content: Content,
        count: u64,
    ) -> u64 {
        assert!(self.acknowledged.back().is_none_or(|(last, _)| *last < count));
        self.overwrite(stripe, range.clone());
        // Zeros, too, take some memory.
        let bytes = match &content {
            Content::Zeros => UNIT_SIZE,
            Content::Data { data, .. } => data.len() as u64,
        };
        self.acknowledged.push_back((count, bytes));
        self.acknowledged_bytes += bytes;
        self.kept.insert((stripe, range.start), Kept { end: range.end, content, count, epoch });
        bytes
    }

    /// Drops the kept content of this range: the PG has newer content, which is durable or will be
    /// kept next.
    pub(crate) fn overwrite(&mut self, stripe: StripeIndex, range: Range<u32>) {
        let before = self.kept.range((stripe, 0)..(stripe, range.end));
        let touched = before.rev().take_while(|(_, kept)| kept.end > range.start);
        let touched: Vec<_> = touched.map(|(place, _)| *place).collect();
        for place in touched {
            let (_, start) = place;
            let old = self.kept.remove(&place).expect("found just now");
            let part = |from: u32, to: u32| Kept {
                end: to,
                content: old.content.slice((from - start) as usize..(to - start) as usize),
                count: old.count,
                epoch: old.epoch,
            };
            if start < range.start {
                self.kept.insert(place, part(start, range.start));
            }
            if old.end > range.end {
                self.kept.insert((stripe, range.end), part(range.end, old.end));
            }
        }
    }

    /// Drops all changes up to this count, which are durable now. Returns the number of bytes freed.
    pub(crate) fn sync(&mut self, covers: u64) -> u64 {
        let mut bytes = 0;
        while let Some((count, more)) = self.acknowledged.front().copied()
            && count <= covers
        {
            self.acknowledged.pop_front();
            bytes += more;
        }
        self.kept.retain(|_, kept| kept.count > covers);
        self.acknowledged_bytes -= bytes;
        bytes
    }

    /// Returns the first piece from `place` on that was not acknowledged in this epoch; with `zeros_only`,
    /// considers only pieces of zeros.
    pub(crate) fn next_piece(
        &self,
        place: (StripeIndex, u32),
        epoch: Epoch,
        zeros_only: bool,
    ) -> Option<(StripeIndex, Range<u32>, Content)> {
        let mut rest = self.kept.range(place..);
        let is_wanted =
            |kept: &Kept| kept.epoch != epoch && (!zeros_only || kept.content == Content::Zeros);
        let (&(stripe, start), kept) = rest.find(|(_, kept)| is_wanted(kept))?;
        Some((stripe, start..kept.end, kept.content.clone()))
    }

    /// Records that the PG acknowledged this piece again. Requires: the range is exactly one piece.
    pub(crate) fn replayed(&mut self, stripe: StripeIndex, range: &Range<u32>, epoch: Epoch) {
        let kept = self.kept.get_mut(&(stripe, range.start)).expect("nothing changes it meanwhile");
        assert!(kept.end == range.end);
        kept.epoch = epoch;
    }

    /// Returns the number of bytes of kept content that were not acknowledged in this epoch.
    pub(crate) fn bytes_before(&self, epoch: Epoch) -> u64 {
        let old = self.kept.iter().filter(|(_, kept)| kept.epoch != epoch);
        old.map(|((_, start), kept)| u64::from(kept.end - start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use base::BufferPool;

    use super::*;
    use crate::part::checksums_of;

    const UNIT: u32 = UNIT_SIZE as u32;
    const FIRST: Epoch = Epoch::new(1);

    fn data(units: u32, byte: u8) -> Content {
        let data = BufferPool::default().copy_of(&vec![byte; (units * UNIT) as usize]);
        Content::Data { checksums: checksums_of(&data), data }
    }

    fn range(first: u32, end: u32) -> Range<u32> {
        first * UNIT..end * UNIT
    }

    /// Returns the kept content as rows: stripe, first unit, number of units, and the byte that the units
    /// hold.
    fn held(unsynced: &Unsynced) -> Vec<(u32, u32, u32, u8)> {
        let row = |(stripe, range, content): (StripeIndex, Range<u32>, Content)| {
            let byte = match content {
                Content::Zeros => 0,
                Content::Data { data, checksums } => {
                    assert_eq!(data.len(), range.len());
                    assert_eq!(checksums, checksums_of(&data));
                    data[0]
                }
            };
            (stripe.get(), range.start / UNIT, (range.end - range.start) / UNIT, byte)
        };
        let mut pieces = Vec::new();
        let mut place = (StripeIndex::ZERO, 0);
        while let Some(piece) = unsynced.next_piece(place, Epoch::new(2), false) {
            place = (piece.0, piece.1.end);
            pieces.push(row(piece));
        }
        pieces
    }

    fn stripe(number: u32) -> StripeIndex {
        StripeIndex::new(number)
    }

    #[test]
    fn a_unit_has_its_newest_content_alone() {
        let mut unsynced = Unsynced::new(FIRST);
        unsynced.acknowledge(FIRST, stripe(1), range(0, 4), data(4, 1), 1);
        unsynced.acknowledge(FIRST, stripe(2), range(0, 4), data(4, 9), 2);
        unsynced.acknowledge(FIRST, stripe(1), range(1, 2), Content::Zeros, 3);
        assert_eq!(held(&unsynced), [(1, 0, 1, 1), (1, 1, 1, 0), (1, 2, 2, 1), (2, 0, 4, 9)]);
        unsynced.acknowledge(FIRST, stripe(1), range(0, 3), data(3, 2), 4);
        assert_eq!(held(&unsynced), [(1, 0, 3, 2), (1, 3, 1, 1), (2, 0, 4, 9)]);
    }

    #[test]
    fn durable_content_is_not_kept_nor_what_it_replaced() {
        let mut unsynced = Unsynced::new(FIRST);
        unsynced.acknowledge(FIRST, stripe(1), range(0, 4), data(4, 1), 1);
        unsynced.overwrite(stripe(1), range(2, 8));
        assert_eq!(held(&unsynced), [(1, 0, 2, 1)]);
        assert!(!unsynced.is_covered());
    }

    #[test]
    fn a_sync_lets_go_what_it_covers_and_its_whole_weight() {
        let mut unsynced = Unsynced::new(FIRST);
        assert_eq!(
            unsynced.acknowledge(FIRST, stripe(1), range(0, 4), data(4, 1), 3),
            4 * UNIT_SIZE
        );
        assert_eq!(
            unsynced.acknowledge(FIRST, stripe(1), range(0, 3), data(3, 2), 5),
            3 * UNIT_SIZE
        );
        assert_eq!(
            unsynced.acknowledge(FIRST, stripe(3), range(0, 8), Content::Zeros, 8),
            UNIT_SIZE
        );
        assert_eq!(unsynced.sync(2), 0);
        assert_eq!(unsynced.sync(4), 4 * UNIT_SIZE);
        assert_eq!(held(&unsynced), [(1, 0, 3, 2), (3, 0, 8, 0)]);
        assert_eq!(unsynced.sync(8), 4 * UNIT_SIZE);
        assert!(unsynced.is_over());
    }

    #[test]
    fn ranges_that_only_touch_stay_whole() {
        let mut unsynced = Unsynced::new(FIRST);
        unsynced.acknowledge(FIRST, stripe(1), range(0, 2), data(2, 1), 1);
        unsynced.acknowledge(FIRST, stripe(1), range(4, 6), data(2, 2), 2);
        unsynced.acknowledge(FIRST, stripe(1), range(2, 4), data(2, 3), 3);
        assert_eq!(held(&unsynced), [(1, 0, 2, 1), (1, 2, 2, 3), (1, 4, 2, 2)]);
    }

    #[test]
    fn pieces_that_an_epoch_acknowledged_are_not_written_again_in_it() {
        let (first, second) = (FIRST, Epoch::new(2));
        let mut unsynced = Unsynced::new(first);
        unsynced.acknowledge(first, stripe(1), range(0, 4), data(4, 1), 1);
        unsynced.acknowledge(first, stripe(2), range(0, 2), Content::Zeros, 2);
        let start = (StripeIndex::ZERO, 0);
        let next = |unsynced: &Unsynced, zeros_only| {
            unsynced.next_piece(start, second, zeros_only).map(|(stripe, ..)| stripe.get())
        };
        assert_eq!((next(&unsynced, false), next(&unsynced, true)), (Some(1), Some(2)));
        unsynced.replayed(stripe(1), &range(0, 4), second);
        assert_eq!(next(&unsynced, false), Some(2));
        assert_eq!(unsynced.bytes_before(second), 2 * UNIT_SIZE);
        unsynced.overwrite(stripe(1), range(1, 2));
        assert_eq!(next(&unsynced, false), Some(2), "what is left of a piece keeps its epoch");
        unsynced.replayed(stripe(2), &range(0, 2), second);
        assert_eq!(next(&unsynced, false), None);
        assert_eq!(
            unsynced.next_piece(start, Epoch::new(3), false).map(|it| it.1),
            Some(range(0, 1))
        );
    }
}
