//! Direct reads: a member answers a read of its own data part, without the primary. Rules 31 to 33 of
//! `docs/internals/stripes.md`. The node checks the map and the leases.
//!
//! ```text
//!   read ──▶ judged ──▶ store ──▶ judged again ──▶ reply
//!              └────────────────────────┴──▶ refused: the client asks the primary
//! ```
//!
//! Invariants
//!   1. Nothing is answered before the epoch serves: then it is settled at all acting members.
//!   2. Nothing is answered of a unit that a version above the known mark changes: such a version may still be
//!      taken back, or may have been written at this member alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::planted::{self, Bug};
use base::{ImageId, Version};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Outcome, Place, Refusal};

use super::part::{Part, UnitData};
use crate::store_calls::Call;
use crate::units::{Units, units_of};
use crate::{Action, Pg, Ticket};

/// Direct reads that are at the store.
#[derive(Default)]
pub struct DirectReads {
    reads: BTreeMap<u64, DirectRead>,
    /// The id of the next read. Ids are not reused: an answer of the store may come after its read has ended.
    next: u64,
}

struct DirectRead {
    ticket: Ticket,
    key: BlockKey,
    units: Range<u32>,
    /// Whether there are older layers, which may hold data where this one has holes.
    has_parents: bool,
}

impl DirectReads {
    /// Returns the tickets of all reads.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.reads.values().map(|read| read.ticket)
    }

    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Forgets all reads: they have been answered.
    pub fn clear(&mut self) {
        self.reads.clear();
    }
}

/// The units of this member's part that versions above the mark change.
#[derive(Default)]
pub struct UnsettledUnits {
    /// The versions in order, each with its key.
    order: VecDeque<(Version, BlockKey)>,
    /// By key, the versions in order.
    by_key: BTreeMap<BlockKey, VecDeque<(Version, Units)>>,
}

impl UnsettledUnits {
    /// Adds a version that changes these units. Requires: it is above all earlier ones.
    pub fn add(&mut self, version: Version, key: BlockKey, units: Units) {
        assert!(self.order.back().is_none_or(|(last, _)| *last < version));
        self.order.push_back((version, key));
        self.by_key.entry(key).or_default().push_back((version, units));
    }

    /// Forgets the versions up to the mark.
    pub fn settle(&mut self, mark: Version) {
        while let Some((_, key)) = self.order.pop_front_if(|(version, _)| *version <= mark) {
            let of_key = self.by_key.get_mut(&key).expect("both have the version");
            of_key.pop_front();
            if of_key.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    /// Returns whether a version changes one of these units.
    fn touches(&self, key: BlockKey, units: &Units) -> bool {
        let of_key = self.by_key.get(&key).into_iter().flatten();
        of_key.into_iter().any(|(_, changed)| !changed.within(units).is_empty())
    }
}

impl Pg {
    /// Begins a direct read; ends with exactly one [`Action::Reply`]. Requires: the range was checked.
    pub(crate) fn read_direct(
        &mut self,
        ticket: Ticket,
        place: Place,
        (offset, length): (u32, u32),
        parents: &[ImageId],
        actions: &mut Vec<Action>,
    ) {
        let key = self.shape.key(place);
        let units = self.units_of_own_part(offset, length);
        let is_slow =
            |pg: &Pg| pg.slow_disks.slow.contains(&pg.me) || pg.slow_disks.stalled.contains(&pg.me);
        let units = units.filter(|units| !is_slow(self) && self.is_settled(key, units));
        let Some(units) = units else {
            let outcome = Err(Refusal::AskPrimary);
            return actions.push(Action::Reply { ticket, outcome });
        };
        let wanted = Units::from_range(units.clone()).words(self.shape.block_size);
        let id = self.directs.next;
        self.directs.next += 1;
        let has_parents = !parents.is_empty();
        self.directs.reads.insert(id, DirectRead { ticket, key, units, has_parents });
        let request = StoreRequest::Copy { key, units: wanted, as_of: AsOf::View };
        self.call(Call::Direct(id), request, actions);
    }

    /// Returns the units of this member's data part that a range of the stripe covers; `None`: it covers
    /// other parts, or this member has no data part.
    fn units_of_own_part(&self, offset: u32, length: u32) -> Option<Range<u32>> {
        let stripes = self.stripes()?;
        self.entry.as_ref()?.position_of(self.me).filter(|it| stripes.is_data(*it))?;
        let (first, end) = units_of(offset, length);
        let mut parts = stripes.split(first..end, self.shape.block_size);
        let (part, units) = parts.next()?;
        let is_own = part == self.own_position().index() && parts.next().is_none();
        is_own.then_some(units)
    }

    /// Returns whether nothing of these units in this member's view can be taken back or is missing: the
    /// epoch serves, and no version above the mark changes them.
    fn is_settled(&mut self, key: BlockKey, units: &Range<u32>) -> bool {
        let Some(follow) = self.follow.as_ref().filter(|follow| follow.is_serving()) else {
            return false;
        };
        let mark = follow.mark();
        let Some(member) = &mut self.stripe_member else { return false };
        member.unsettled.settle(mark);
        !member.unsettled.touches(key, &Units::from_range(units.clone()))
            || planted::on(Bug::DirectReadAboveMark)
    }

    /// Handles what the store has of a direct read's units.
    pub(crate) fn on_direct_read(
        &mut self,
        id: u64,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Some(read) = self.directs.reads.remove(&id) else { return };
        let DirectRead { ticket, key, units, has_parents } = read;
        let part = self.part_of_copy(result);
        let outcome = match self.is_settled(key, &units) {
            true => self.outcome_of_direct(part, units, has_parents),
            false => Err(Refusal::AskPrimary),
        };
        actions.push(Action::Reply { ticket, outcome });
    }

    fn outcome_of_direct(
        &self,
        part: Part,
        units: Range<u32>,
        has_parents: bool,
    ) -> Result<Outcome, Refusal> {
        let is_readable = units.clone().all(|unit| part.units.has(unit));
        let has_hole = units.clone().any(|unit| !part.written.contains_key(&unit));
        if !is_readable || (has_hole && has_parents) {
            return Err(Refusal::AskPrimary);
        }
        let version = part.version.max(part.deleted);
        let written: BTreeMap<u32, UnitData> =
            part.written.into_iter().filter(|(unit, _)| units.contains(unit)).collect();
        Ok(super::read::outcome_of(version, units, &written, &self.buffers))
    }

    /// Refuses the direct reads that wait for this OSD's store, because its disk does not answer.
    pub(crate) fn give_up_direct_reads(&mut self, actions: &mut Vec<Action>) {
        if self.slow_disks.stalled.contains(&self.me) {
            for ticket in self.directs.tickets() {
                actions.push(Action::Reply { ticket, outcome: Err(Refusal::AskPrimary) });
            }
            self.directs.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    use super::*;

    #[test]
    fn units_are_unsettled_until_the_mark_passes_their_version() {
        let version = |counter| Version { epoch: Epoch::new(1), counter };
        let key = |stripe| BlockKey {
            pool: PoolId::FIRST,
            hash: 0,
            image: ImageId::FIRST,
            stripe: StripeIndex::new(stripe),
        };
        let units = Units::from_range;
        let mut unsettled = UnsettledUnits::default();
        unsettled.add(version(1), key(1), units(0..2));
        unsettled.add(version(3), key(2), units(0..1));
        unsettled.add(version(4), key(1), units(2..3));
        assert!(unsettled.touches(key(1), &units(1..2)));
        assert!(unsettled.touches(key(1), &units(2..5)));
        assert!(!unsettled.touches(key(1), &units(3..5)));
        assert!(!unsettled.touches(key(3), &units(0..5)));
        unsettled.settle(version(2));
        assert!(!unsettled.touches(key(1), &units(0..2)));
        assert!(unsettled.touches(key(1), &units(0..3)));
        assert!(unsettled.touches(key(2), &units(0..1)));
        unsettled.settle(version(4));
        assert!(unsettled.order.is_empty() && unsettled.by_key.is_empty());
    }
}
