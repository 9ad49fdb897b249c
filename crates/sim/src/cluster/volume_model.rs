//! The model of a volume: the history of each of its registers.
//!
//! A register is a unit. Unaligned writes access only the first units of a volume, where each register is a
//! piece of 512 bytes: so exactly the bytes that such a write changes are checked.

mod change;
mod fences;
mod lazy;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::hash::{pg_of_hash, stripe_hash};
use base::{BlockSize, ImageId, PoolId, Scheme, SessionId, StripeIndex, UNIT_SIZE};
use format::disk::BlockKey;

use crate::pattern;
use crate::register::{History, Moment, NEVER, Value};
use change::{Change, Fences, Unsynced};
pub use change::{ChangeId, Owner, Sent};

/// The granularity of unaligned writes, in bytes.
pub const PIECE_SIZE: u64 = 512;

/// The number of pieces in a unit.
const PIECE_COUNT: u64 = UNIT_SIZE / PIECE_SIZE;

/// The number of units at a volume's start whose registers are pieces.
const FINE_UNIT_COUNT: u64 = 3;

/// One volume under one name, from creation to removal.
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The id of its image, once the id is known.
    pub image: Option<ImageId>,
    /// Its size in units, as last reported to the operator.
    pub units: u64,
    /// The stage of its life cycle.
    pub life: Life,
    /// The complete write after the first attach (see `Plan::prefills`) has been scheduled.
    pub is_filled: bool,
    number: u64,
    registers: BTreeMap<u64, History>,
    open: BTreeMap<ChangeId, Change>,
    /// The smallest size to which the volume was shrunk, until it grows again.
    cut: Option<Cut>,
    seals: Vec<Seal>,
    /// The times at which the volume grew. Key: a piece; value: the moment at which all registers from
    /// that piece on started again with zeros.
    began: BTreeMap<u64, Moment>,
    /// Earlier histories of registers whose history has been restarted.
    ended: Vec<(u64, History)>,
    shape: Shape,
    /// PGs whose loss was accepted, with the moment when this last happened.
    given_up: BTreeMap<u32, Moment>,
    /// Changes that were acknowledged and may still be lost.
    unsynced: Unsynced,
    /// Registers that may have lost an acknowledged change, with the moment when this last happened.
    lost_since: BTreeMap<u64, Moment>,
    /// What sessions have discarded: as long as it is kept it may be sent again.
    discarded: BTreeSet<(SessionId, u64)>,
    /// Sessions that had the volume attached, and the PGs that no longer serve fenced sessions.
    fences: Fences,
}

/// The parameters that determine the PG of a register.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of PGs in the pool.
    pub pg_count: u32,
    /// The number of units in a stripe. In a pool that keeps parity, this is the data of several blocks.
    pub stripe_units: u64,
}

impl Shape {
    /// Returns the shape of the volumes in a pool.
    pub fn new(scheme: Scheme, block_size: BlockSize, pg_count: u32) -> Shape {
        Shape { pg_count, stripe_units: scheme.stripe_bytes(block_size) / UNIT_SIZE }
    }
}

/// The life cycle of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// A command that creates, changes or removes the volume is in progress.
    Changing,
    /// The volume exists.
    Live,
    /// The volume has been removed.
    Gone,
}

/// The part of a volume that was cut off.
#[derive(Clone, Copy)]
struct Cut {
    first_unit: u64,
    /// The task that deletes it has ended. Until then a primary that the monitor does not reach may still
    /// serve a fenced session, and a request to grow the volume is refused.
    is_deleted: bool,
}

/// When all PGs began to refuse old sessions: those of a removed volume, or those that were opened before a
/// shrunk volume grew again.
struct Seal {
    first_unit: u64,
    opened_before: Moment,
    from: Moment,
}

impl Volume {
    /// Returns a volume that does not exist yet. `number` is unique to it.
    pub fn new(name: String, number: u64, units: u64, shape: Shape) -> Volume {
        Volume {
            name,
            units,
            life: Life::Changing,
            is_filled: false,
            image: None,
            number,
            registers: BTreeMap::new(),
            open: BTreeMap::new(),
            cut: None,
            seals: Vec::new(),
            began: BTreeMap::new(),
            ended: Vec::new(),
            shape,
            given_up: BTreeMap::new(),
            unsynced: Unsynced::default(),
            lost_since: BTreeMap::new(),
            discarded: BTreeSet::new(),
            fences: Fences::default(),
        }
    }

    /// Returns the PG that contains a register.
    fn pg_of(&self, register: u64) -> Option<u32> {
        let stripe = register / PIECE_COUNT / self.shape.stripe_units;
        let stripe = StripeIndex::new(u32::try_from(stripe).ok()?);
        Some(pg_of_hash(stripe_hash(self.image?, stripe), self.shape.pg_count))
    }

    /// Returns the volume's stripes: the units of each, the number of its PG, and the key of its blocks in a
    /// pool. In a pool with copies, a stripe is a block.
    pub fn stripes(&self, pool: PoolId) -> impl Iterator<Item = (Range<u64>, u32, BlockKey)> + '_ {
        let size = self.shape.stripe_units;
        let firsts = (0..self.units).step_by(size as usize);
        firsts.filter_map(move |first| {
            let image = self.image?;
            let stripe = StripeIndex::new(u32::try_from(first / size).ok()?);
            let hash = stripe_hash(image, stripe);
            let key = BlockKey { pool, hash, image, stripe };
            Some((first..self.units.min(first + size), pg_of_hash(hash, self.shape.pg_count), key))
        })
    }

    fn place(&self, piece: u64) -> u64 {
        (self.number << 40) | piece
    }

    /// Fills in the data of a write: each piece encodes the value.
    pub fn fill(&self, first_piece: u64, value: Value, bytes: &mut [u8]) {
        for (index, piece) in bytes.chunks_exact_mut(PIECE_SIZE as usize).enumerate() {
            pattern::fill(piece, value, self.place(first_piece + index as u64));
        }
    }

    /// Returns the first piece of each register in a range that covers whole registers.
    fn registers_in(pieces: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let fine_end = FINE_UNIT_COUNT * PIECE_COUNT;
        let fine = pieces.start..pieces.end.min(fine_end).max(pieces.start);
        let coarse = pieces.start.max(fine_end)..pieces.end.max(fine_end);
        debug_assert!(coarse.is_empty() || coarse.start.is_multiple_of(PIECE_COUNT));
        fine.chain(coarse.step_by(PIECE_COUNT as usize))
    }

    /// Returns the range of pieces that unaligned writes may access.
    pub fn fine_pieces(&self) -> Range<u64> {
        0..FINE_UNIT_COUNT.min(self.units) * PIECE_COUNT
    }

    /// Records that a session requests a write, or a discard (value 0).
    pub fn ask(
        &mut self,
        id: ChangeId,
        by: SessionId,
        value: Value,
        pieces: Range<u64>,
        from: Moment,
    ) {
        let change = Change {
            by,
            value,
            from,
            pieces,
            is_unknown: false,
            over_in: BTreeSet::new(),
            done_in: BTreeSet::new(),
        };
        self.open.insert(id, change);
    }

    /// Records that the client was told that the outcome of a change is unknown: it may take effect until a
    /// later change of the same session has taken effect, which waits until the unknown one has ended.
    pub fn unknown(&mut self, id: ChangeId) {
        if let Some(change) = self.open.get_mut(&id) {
            change.is_unknown = true;
        }
    }

    /// Records that the client was told that a change has not taken effect, and never will.
    pub fn never_happens(&mut self, id: ChangeId) {
        self.open.remove(&id);
        self.never_answered(id);
    }

    /// Returns the registers of a range of bytes in a stripe.
    fn registers_at(
        &self,
        stripe: StripeIndex,
        offset: u32,
        length: u32,
    ) -> impl Iterator<Item = u64> + use<> {
        let first = u64::from(stripe.get()) * self.shape.stripe_units * PIECE_COUNT;
        let start = first + u64::from(offset) / PIECE_SIZE;
        Volume::registers_in(&(start..start + u64::from(length) / PIECE_SIZE))
    }

    /// Returns whether a write of whole units contains bytes of a change of which the client was told that
    /// the outcome is unknown. `lazy`: what a PG has acknowledged may be sent again, and so may units that
    /// have bytes of several writes.
    pub fn is_unknown(&self, stripe: StripeIndex, offset: u32, bytes: &[u8], lazy: bool) -> bool {
        let mut registers = self.registers_at(stripe, offset, bytes.len() as u32);
        let start = (u64::from(stripe.get()) * self.shape.stripe_units * UNIT_SIZE
            + u64::from(offset))
            / PIECE_SIZE;
        registers.any(|register| {
            let at = (register - start) * PIECE_SIZE;
            let piece = &bytes[at as usize..(at + PIECE_SIZE) as usize];
            let value = pattern::value_of(piece, self.place(register));
            let change = value.and_then(|value| self.open.get(&value));
            let is_exempt = |change: &Change| {
                lazy && (register < FINE_UNIT_COUNT * PIECE_COUNT
                    || change.done_in.contains(&register))
            };
            change.is_some_and(|change| change.is_unknown && !is_exempt(change))
        })
    }

    /// Returns whether a discard that a session sends can only be one of which the client was told that the
    /// outcome is unknown. `lazy`: what a PG has acknowledged may be sent again.
    pub fn is_unknown_discard(
        &self,
        by: SessionId,
        stripe: StripeIndex,
        (offset, length): (u32, u32),
        lazy: bool,
    ) -> bool {
        let discards = self.open.values().filter(|change| change.by == by && change.value == 0);
        let (unknown, known): (Vec<&Change>, Vec<&Change>) =
            discards.partition(|change| change.is_unknown);
        if unknown.is_empty() {
            return false;
        }
        let is_unknown = |register: u64| {
            let is_there = |change: &&&Change| change.pieces.contains(&register);
            let is_kept = |change: &Change| change.done_in.contains(&register);
            unknown.iter().any(|change| is_there(&change))
                && !known.iter().any(|change| is_there(&change))
                && !(lazy
                    && (self.discarded.contains(&(by, register))
                        || unknown.iter().any(|change| is_kept(change))))
        };
        self.registers_at(stripe, offset, length).any(is_unknown)
    }

    /// Records that a PG acknowledged a write, or a discard, of a range to a session. The client need not
    /// learn it.
    pub fn acknowledged(&mut self, by: SessionId, sent: &Sent) {
        let registers = self.registers_at(sent.stripe, sent.range.0, sent.range.1);
        let registers: BTreeSet<u64> = registers.collect();
        let place = self.place(registers.first().copied().unwrap_or_default());
        let value = match &sent.first_piece {
            Some(piece) => pattern::value_of(piece, place),
            None => Some(0),
        };
        let is_it = |change: &Change| change.by == by && Some(change.value) == value;
        for change in self.open.values_mut().filter(|change| is_it(change)) {
            let pieces = &change.pieces;
            change.done_in.extend(registers.iter().filter(|register| pieces.contains(*register)));
        }
    }

    /// Closes unknown changes that this one, which took effect by `to`, has followed.
    fn follow(&mut self, next: &Change, to: Moment) {
        let is_earlier =
            |change: &Change| change.is_unknown && change.by == next.by && change.from < next.from;
        let ids = self.open.iter().filter(|(_, change)| is_earlier(change)).map(|(id, _)| *id);
        for id in ids.collect::<Vec<_>>() {
            let change = self.open[&id].clone();
            let start = change.pieces.start.max(next.pieces.start);
            let both = start..change.pieces.end.min(next.pieces.end).max(start);
            let registers = Volume::registers_in(&both);
            let open = registers.filter(|register| self.is_open_at(&change, *register));
            for register in open.collect::<Vec<_>>() {
                let history = self.registers.entry(register).or_default();
                history.replaced_write(change.value, change.from, to);
                let open = self.open.get_mut(&id).expect("listed just now");
                open.over_in.insert(register);
            }
        }
    }

    /// Returns the range of an unanswered change.
    pub fn pieces_of(&self, id: ChangeId) -> Option<Range<u64>> {
        self.open.get(&id).map(|change| change.pieces.clone())
    }

    /// Records that a change was acknowledged.
    pub fn done(&mut self, id: ChangeId, to: Moment, repeated: bool) {
        let Some(change) = self.open.remove(&id) else { return };
        self.answered(id, to);
        self.follow(&change, to);
        self.note_discarded(&change);
        for register in Volume::registers_in(&change.pieces) {
            let is_open = self.is_open_at(&change, register);
            let history = self.registers.entry(register).or_default();
            if is_open {
                history.write(change.value, change.from, to, repeated);
            } else {
                history.confirm(change.from, repeated);
            }
        }
    }

    /// Notes what a discard changed, or may have changed in part.
    fn note_discarded(&mut self, change: &Change) {
        if change.value == 0 {
            let registers = Volume::registers_in(&change.pieces);
            self.discarded.extend(registers.map(|register| (change.by, register)));
        }
    }

    /// Records that a change failed: it may have taken effect in part, and will not do so later. A
    /// change that is neither acknowledged nor failed may take effect at any later time, until its
    /// session is fenced and its PG serves a newer session.
    pub fn failed(&mut self, id: ChangeId, to: Moment) {
        let Some(change) = self.open.remove(&id) else { return };
        self.answered(id, to);
        self.note_discarded(&change);
        let registers = Volume::registers_in(&change.pieces);
        let open = registers.filter(|register| self.is_open_at(&change, *register));
        for register in open.collect::<Vec<_>>() {
            let history = self.registers.entry(register).or_default();
            history.failed_write(change.value, change.from, to);
        }
    }

    /// Shrinks the volume to `first_unit` units: registers beyond no longer count.
    pub fn shrunk(&mut self, first_unit: u64) {
        let before = self.cut.map_or(first_unit, |cut| cut.first_unit);
        self.cut = Some(Cut { first_unit: before.min(first_unit), is_deleted: false });
        self.units = first_unit;
    }

    /// Records that all tasks that were there have ended: what was cut off is deleted.
    pub fn tasks_ended(&mut self) {
        if let Some(cut) = &mut self.cut {
            cut.is_deleted = true;
        }
    }

    /// Returns whether the volume may not grow yet: the part that was cut off may not have been deleted.
    pub fn awaits_deletion(&self) -> bool {
        self.cut.is_some_and(|cut| !cut.is_deleted)
    }

    /// Handles a request to grow the volume. The part that was cut off has been deleted, and all sessions
    /// from before the cut are fenced. Registers beyond the cut start again with zeros. Requires: the volume
    /// does not await that deletion.
    pub fn grows(&mut self, now: Moment) {
        let Some(Cut { first_unit, is_deleted }) = self.cut.take() else { return };
        assert!(is_deleted);
        let first_piece = first_unit * PIECE_COUNT;
        let is_old = |(_, change): &(&ChangeId, &Change)| change.pieces.end > first_piece;
        let old: Vec<ChangeId> = self.open.iter().filter(is_old).map(|(id, _)| *id).collect();
        for id in old {
            self.failed(id, now);
        }
        let cut = self.registers.split_off(&first_piece);
        for (register, history) in &cut {
            // If the loss of a PG was accepted, the deletions of the shrink may have been lost, too.
            if self.pg_of(*register).is_some_and(|pg| self.given_up.contains_key(&pg)) {
                self.registers.insert(*register, History::after_loss(history.values(), now));
            }
        }
        self.ended.extend(cut);
        self.seals.push(Seal { first_unit, opened_before: now, from: now });
        self.began.insert(first_piece, now);
    }

    /// Records that the loss of a PG is about to be accepted, at `now` or the next moment. From then
    /// on, each of its registers holds one of its earlier values.
    pub fn give_up(&mut self, pg: u32, now: Moment) {
        let mut former: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
        for (register, history) in
            self.registers.iter().chain(self.ended.iter().map(|(r, h)| (r, h)))
        {
            if self.pg_of(*register) == Some(pg) {
                former.entry(*register).or_default().extend(history.values());
            }
        }
        for (register, values) in former {
            let mut history = self.registers.remove(&register).unwrap_or_default();
            self.leave_open(register, &mut history);
            self.ended.push((register, history));
            self.registers.insert(register, History::after_loss(values, now));
        }
        self.given_up.insert(pg, now);
    }

    /// Records that the volume was removed and its tasks are done: all of its sessions are fenced.
    pub fn removed(&mut self, now: Moment) {
        self.seals.push(Seal { first_unit: 0, opened_before: NEVER, from: now });
    }

    /// Returns whether an operation that was issued at `from` must have been refused. `opened` and
    /// `units` are the moment when its attachment was opened, and the volume's size then.
    pub fn is_fenced(&self, opened: Moment, units: u64, from: Moment) -> bool {
        self.seals
            .iter()
            .any(|seal| opened < seal.opened_before && units > seal.first_unit && from > seal.from)
    }

    /// Closes the history of a register, with all unanswered changes that may still take effect.
    fn leave_open(&self, register: u64, history: &mut History) {
        for change in self.open.values() {
            let mut registers = Volume::registers_in(&change.pieces);
            if registers.any(|other| other == register) && self.is_open_at(change, register) {
                history.write(change.value, change.from, NEVER, true);
            }
        }
    }

    /// Records a read that returned these bytes.
    pub fn read(
        &mut self,
        first_piece: u64,
        bytes: &[u8],
        from: Moment,
        to: Moment,
    ) -> Result<(), String> {
        let mut values = Vec::new();
        for (index, piece) in bytes.chunks_exact(PIECE_SIZE as usize).enumerate() {
            let at = first_piece + index as u64;
            let value = pattern::value_of(piece, self.place(at)).ok_or_else(|| {
                format!("bytes at {} of {} were never written", at * PIECE_SIZE, self.name)
            })?;
            values.push(value);
        }
        let pieces = first_piece..first_piece + values.len() as u64;
        let fine_end = FINE_UNIT_COUNT * PIECE_COUNT;
        for register in Volume::registers_in(&pieces) {
            let index = (register - first_piece) as usize;
            let value = values[index];
            let count = if register < fine_end { 1 } else { PIECE_COUNT as usize };
            if values[index..index + count].iter().any(|other| *other != value) {
                return Err(format!(
                    "the unit at {} of {} is torn: {:?}",
                    register * PIECE_SIZE,
                    self.name,
                    &values[index..index + count]
                ));
            }
            if self.counts(register, from) {
                self.registers.entry(register).or_default().read(value, from, to);
            }
        }
        Ok(())
    }

    /// Returns whether a read that was issued at `from` counts for a register. It does not if the
    /// register is cut off, or if the register was restarted or may have lost data since then.
    fn counts(&self, register: u64, from: Moment) -> bool {
        let is_cut = self.cut.is_some_and(|cut| register >= cut.first_unit * PIECE_COUNT);
        let is_old = self.began.range(..=register).any(|(_, began)| from < *began);
        let lost = self.pg_of(register).and_then(|pg| self.given_up.get(&pg));
        let may_be_lost =
            self.lost_since.get(&register).is_some_and(|lost_since| from <= *lost_since);
        !is_cut && !is_old && !may_be_lost && lost.is_none_or(|lost| from > *lost)
    }

    /// Checks that the operations of every register have a valid order.
    pub fn check(&self) -> Result<(), String> {
        let mut registers = self.registers.clone();
        for change in self.open.values() {
            for register in Volume::registers_in(&change.pieces) {
                if self.is_open_at(change, register) {
                    let history = registers.entry(register).or_default();
                    history.write(change.value, change.from, NEVER, true);
                }
            }
        }
        for (register, history) in registers.iter().chain(self.ended.iter().map(|(r, h)| (r, h))) {
            history.check().map_err(|violation| {
                format!(
                    "volume {}, bytes at {}: {violation}\n{}",
                    self.name,
                    register * PIECE_SIZE,
                    history.table()
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        let shape = Shape { pg_count: 1, stripe_units: 4 };
        let mut volume = Volume::new("v".into(), 1, 16, shape);
        volume.image = ImageId::new(1);
        volume
    }

    fn bytes(volume: &Volume, first_piece: u64, count: u64, value: Value) -> Vec<u8> {
        let mut bytes = vec![0; (count * PIECE_SIZE) as usize];
        volume.fill(first_piece, value, &mut bytes);
        bytes
    }

    #[test]
    fn a_stripe_of_a_pool_with_parity_is_in_one_pg() {
        let scheme = Scheme::ReedSolomon { data: 4, parity: 2 };
        let shape = Shape::new(scheme, BlockSize::DEFAULT, 8);
        let mut volume = Volume::new("v".into(), 1, 16 * 128, shape);
        volume.image = ImageId::new(1);
        assert_eq!(volume.stripes(PoolId::FIRST).count(), 16);
        for (units, pg, key) in volume.stripes(PoolId::FIRST) {
            assert_eq!(units.start, u64::from(key.stripe.get()) * 128);
            assert_eq!(units.end - units.start, 128);
            for unit in units {
                assert_eq!(volume.pg_of(unit * PIECE_COUNT), Some(pg));
            }
        }
    }

    #[test]
    fn units_are_whole_but_for_the_first_ones() {
        let mut volume = volume();
        let fine = volume.fine_pieces().end;
        let mut torn = bytes(&volume, fine, 8, 5);
        let other = bytes(&volume, fine + 4, 4, 6);
        torn[4 * PIECE_SIZE as usize..].copy_from_slice(&other);
        assert!(volume.read(fine, &torn, 1, 2).is_err());
        let mut mixed = bytes(&volume, 0, 8, 5);
        let other = bytes(&volume, 4, 4, 6);
        mixed[4 * PIECE_SIZE as usize..].copy_from_slice(&other);
        volume.ask(5, SessionId::ZERO, 5, 0..8, 1);
        volume.done(5, 2, false);
        volume.ask(6, SessionId::ZERO, 6, 4..8, 3);
        volume.done(6, 4, false);
        assert_eq!(volume.read(0, &mixed, 5, 6), Ok(()));
        assert_eq!(volume.check(), Ok(()));
    }

    #[test]
    fn an_unknown_change_takes_effect_until_a_later_one_of_its_session_has() {
        for (at, value, is_good) in
            [(5, 5, true), (5, 6, true), (7, 6, true), (7, 5, false), (7, 0, false)]
        {
            let mut volume = volume();
            let session = SessionId::new(3);
            volume.ask(5, session, 5, 64..72, 1);
            volume.unknown(5);
            assert!(volume.is_unknown(StripeIndex::new(2), 0, &bytes(&volume, 64, 8, 5), false));
            volume.ask(6, session, 6, 64..72, 2);
            assert!(!volume.is_unknown(StripeIndex::new(2), 0, &bytes(&volume, 64, 8, 6), false));
            volume.done(6, 6, false);
            let found = if value == 0 { vec![0; 4096] } else { bytes(&volume, 64, 8, value) };
            volume.read(64, &found, at, at + 1).expect("its form is good");
            assert_eq!(volume.check().is_ok(), is_good, "{value} at {at}");
        }
    }

    #[test]
    fn late_zeros_of_an_unknown_discard_are_found() {
        for (from, value, is_good) in [(3, 0, true), (9, 5, true), (9, 0, false)] {
            for follows in [true, false] {
                let (mut volume, session) = (volume(), SessionId::new(3));
                volume.ask(4, session, 0, 64..72, 1);
                volume.unknown(4);
                if follows {
                    volume.ask(5, session, 5, 64..72, 2);
                    volume.done(5, 8, false);
                }
                let found = if value == 0 { vec![0; 4096] } else { bytes(&volume, 64, 8, value) };
                volume.read(64, &found, from, 10).expect("its form is good");
                let is_good = if follows { is_good } else { value == 0 };
                assert_eq!(volume.check().is_ok(), is_good, "{value} at {from}");
            }
        }
    }

    #[test]
    fn an_unknown_change_is_sent_again_only_if_it_was_acknowledged_and_is_kept() {
        let (session, stripe) = (SessionId::new(3), StripeIndex::new(2));
        let mut volume = volume();
        for (id, value, pieces) in [(4, 0, 64..72), (5, 5, 72..88)] {
            volume.ask(id, session, value, pieces, id);
        }
        let written = bytes(&volume, 72, 16, 5);
        assert!(!volume.is_unknown_discard(session, stripe, (0, 4096), false));
        assert!(!volume.is_unknown(stripe, 4096, &written, false));
        volume.unknown(4);
        volume.unknown(5);
        for lazy in [false, true] {
            assert!(volume.is_unknown_discard(session, stripe, (0, 4096), lazy));
            assert!(!volume.is_unknown_discard(session, stripe, (4096, 4096), lazy));
            assert!(!volume.is_unknown_discard(SessionId::new(9), stripe, (0, 4096), lazy));
            assert!(volume.is_unknown(stripe, 4096, &written, lazy));
        }
        volume.ask(6, session, 0, 64..72, 6);
        assert!(!volume.is_unknown_discard(session, stripe, (0, 4096), false), "another one");
        volume.never_happens(6);
        let first_piece = Some(written[..512].to_vec());
        volume.acknowledged(session, &Sent { stripe, range: (4096, 4096), first_piece });
        assert!(volume.is_unknown(stripe, 4096, &written, true), "only its first unit is done");
        assert!(!volume.is_unknown(stripe, 4096, &written[..4096], true));
        assert!(volume.is_unknown(stripe, 4096, &written[..4096], false));
        volume.acknowledged(session, &Sent { stripe, range: (0, 4096), first_piece: None });
        assert!(!volume.is_unknown_discard(session, stripe, (0, 4096), true));
        assert!(volume.is_unknown_discard(session, stripe, (0, 4096), false));
    }

    #[test]
    fn what_never_happens_is_not_read() {
        let mut volume = volume();
        volume.ask(5, SessionId::ZERO, 5, 64..72, 1);
        volume.never_happens(5);
        volume.read(64, &bytes(&volume, 64, 8, 5), 3, 4).expect("its form is good");
        assert!(volume.check().is_err());
    }

    #[test]
    fn bytes_of_another_place_are_found() {
        let mut volume = volume();
        let moved = bytes(&volume, 32, 8, 5);
        assert!(volume.read(40, &moved, 1, 2).is_err());
    }

    #[test]
    fn an_accepted_loss_leaves_former_values_and_no_others() {
        for (after, is_good) in [(5, true), (6, true), (0, true), (7, false)] {
            let mut volume = volume();
            for value in [5, 6] {
                volume.ask(value, SessionId::ZERO, value, 64..72, value * 2);
                volume.done(value, value * 2 + 1, false);
            }
            let old = bytes(&volume, 64, 8, 6);
            volume.read(64, &old, 14, 15).expect("its form is good");
            volume.give_up(0, 20);
            let left = if after == 0 { vec![0; 4096] } else { bytes(&volume, 64, 8, after) };
            volume.read(64, &left, 22, 23).expect("its form is good");
            assert_eq!(volume.check().is_ok(), is_good, "{after}");
        }
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        for stale in [false, true] {
            let mut volume = volume();
            volume.ask(5, SessionId::ZERO, 5, 64..72, 1);
            if !stale {
                volume.done(5, 2, false);
            }
            volume.shrunk(8);
            let old = bytes(&volume, 64, 8, 5);
            volume.read(64, &old, 3, 4).expect("its form is good");
            assert_eq!(volume.check(), Ok(()));
            assert!(volume.awaits_deletion());
            assert!(!volume.is_fenced(1, 16, 4), "the PGs need not know of the shrink yet");
            volume.tasks_ended();
            volume.grows(5);
            volume.read(64, &[0; 4096], 6, 7).expect("its form is good");
            assert_eq!(volume.check(), Ok(()));
            volume.read(64, &old, 8, 9).expect("its form is good");
            assert!(volume.check().is_err());
            assert!(volume.is_fenced(1, 16, 6));
            assert!(!volume.is_fenced(6, 16, 7));
        }
    }
}
