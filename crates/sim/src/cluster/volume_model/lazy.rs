//! Checks writes that are acknowledged before they are durable. They have exactly the guarantees of a disk
//! with a write cache.
//!
//! Writes that a flush has covered are never lost. A lock holder that stays alive always sees its own
//! acknowledged writes: this needs no rule here, because its registers are checked like all others. Other
//! writes may be lost only if their client is gone and all members of their PG (with parity: so many that the
//! others cannot make the write) have lost power since the write was requested.
//!
//! ```text
//!   requested ──▶ acknowledged ──▶ covered by a flush: never lost
//!       │                ▲ only after the client is gone and all members of the PG have lost power
//!       └────────────────┴──▶ each register holds one of the values that no safe write replaced
//! ```

use std::collections::BTreeSet;

use super::Volume;
use super::change::{ChangeId, Owner, Unsafe};
use crate::register::{Moment, NEVER};

impl Volume {
    /// Marks a change that was just requested as lazy: it may be acknowledged before it is durable.
    pub fn asked_lazily(&mut self, id: ChangeId, owner: Owner) {
        let change = &self.open[&id];
        let (pieces, from) = (change.pieces.clone(), change.from);
        let change = Unsafe { owner, pieces, from, to: NEVER, left: None };
        self.unsynced.changes.insert(id, change);
    }

    pub(super) fn answered(&mut self, id: ChangeId, to: Moment) {
        if let Some(change) = self.unsynced.changes.get_mut(&id) {
            change.to = to;
        }
    }

    pub(super) fn never_answered(&mut self, id: ChangeId) {
        self.unsynced.changes.remove(&id);
    }

    /// Records that a flush which was requested at `from` succeeded. It covers all changes that had
    /// been acknowledged by then, and all changes of other attachments that were gone by then.
    pub fn flushed(&mut self, from: Moment, by: Owner) {
        let is_gone =
            |change: &Unsafe| change.owner != by && change.left.is_some_and(|left| left < from);
        self.unsynced.changes.retain(|_, change| change.to > from && !is_gone(change));
    }

    /// Records that all members of a PG have lost power since the moment `since`. Returns whether a
    /// change may have been lost.
    pub fn lost_power(&mut self, pg: u32, since: Moment, now: Moment) -> bool {
        let power_lost = self.unsynced.power_lost.entry(pg).or_default();
        if *power_lost >= since {
            return false;
        }
        *power_lost = since;
        let lost = self.unsynced.changes.values().filter(|change| change.left.is_some());
        let registers = lost.flat_map(|change| Volume::registers_in(&change.pieces));
        let registers: BTreeSet<u64> = registers.filter(|it| self.is_of(*it, pg)).collect();
        self.lose(registers, now)
    }

    /// Records that these attachments are gone: their clients can no longer retransmit changes. Returns
    /// whether a change may have been lost.
    pub fn left_by(&mut self, is_gone: impl Fn(Owner) -> bool, now: Moment) -> bool {
        let mut registers = BTreeSet::new();
        for change in self.unsynced.changes.values_mut() {
            if change.left.is_none() && is_gone(change.owner) {
                change.left = Some(now);
                registers.extend(Volume::registers_in(&change.pieces));
            }
        }
        self.lose(registers, now)
    }

    fn is_of(&self, register: u64, pg: u32) -> bool {
        self.pg_of(register).is_none_or(|known| known == pg)
    }

    fn lose(&mut self, registers: BTreeSet<u64>, now: Moment) -> bool {
        let mut lost = false;
        for register in registers {
            lost |= self.lose_of(register, now);
        }
        lost
    }

    /// From now on, lets the register hold any of the values that no safe write has replaced. Returns
    /// whether a change may have been lost.
    fn lose_of(&mut self, register: u64, now: Moment) -> bool {
        let began = self.began.range(..=register).map(|(_, began)| *began).max().unwrap_or(0);
        let power_lost = |pg: &u32| self.is_of(register, *pg);
        let power_lost = self
            .unsynced
            .power_lost
            .iter()
            .filter(|(pg, _)| power_lost(pg))
            .map(|(_, power_lost)| *power_lost);
        let power_lost = power_lost.max().unwrap_or(0);
        let is_lost = |change: &&Unsafe| {
            let touches = || Volume::registers_in(&change.pieces).any(|other| other == register);
            change.left.is_some() && (began..power_lost).contains(&change.from) && touches()
        };
        let lost = self.unsynced.changes.values().filter(is_lost);
        let lost: BTreeSet<Moment> = lost.map(|change| change.from).collect();
        if lost.is_empty() {
            return false;
        }
        let Some(history) = self.registers.get_mut(&register) else { return false };
        let Some(next) = history.after_power_loss(&lost, now) else { return false };
        let mut history = std::mem::replace(history, next);
        self.leave_open(register, &mut history);
        self.ended.push((register, history));
        self.lost_since.insert(register, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use base::{ImageId, SessionId};

    use super::super::{PIECE_SIZE, Shape};
    use super::*;
    use crate::register::Value;

    const ME: Owner = (0, 1);
    const PIECES: Range<u64> = 64..72;

    fn volume() -> Volume {
        let shape = Shape { pg_count: 1, stripe_units: 4 };
        let mut volume = Volume::new("v".into(), 1, 16, shape);
        volume.image = ImageId::new(1);
        volume
    }

    fn write(volume: &mut Volume, value: Value, from: Moment, lazily: bool) {
        volume.ask(value, SessionId::ZERO, value, PIECES, from);
        if lazily {
            volume.asked_lazily(value, ME);
        }
        volume.done(value, from + 1, false);
    }

    fn reads(mut volume: Volume, values: &[Value], at: Moment) -> bool {
        for (index, value) in values.iter().enumerate() {
            let mut bytes = vec![0; 8 * PIECE_SIZE as usize];
            if *value != 0 {
                volume.fill(PIECES.start, *value, &mut bytes);
            }
            let from = at + 2 * index as Moment;
            volume.read(PIECES.start, &bytes, from, from + 1).expect("its form is good");
        }
        volume.check().is_ok()
    }

    /// Returns a volume on which write 5 is safe, and writes 6 and 7 are lazy.
    fn written() -> Volume {
        let mut volume = volume();
        write(&mut volume, 5, 1, false);
        write(&mut volume, 6, 3, true);
        write(&mut volume, 7, 5, true);
        volume
    }

    #[test]
    fn what_is_not_synced_goes_only_with_its_client_and_the_power_of_all() {
        for (is_gone, is_dark) in [(false, false), (true, false), (false, true), (true, true)] {
            for gone_first in [false, true] {
                for value in [0, 5, 6, 7] {
                    let mut volume = written();
                    let mut may_lose = false;
                    for leave in [gone_first, !gone_first] {
                        if leave && is_gone {
                            may_lose |= volume.left_by(|owner| owner == ME, 20);
                        }
                        if !leave && is_dark {
                            may_lose |= volume.lost_power(0, 15, 20);
                        }
                    }
                    assert_eq!(may_lose, is_gone && is_dark);
                    let is_good = value == 7 || may_lose && value != 0;
                    assert_eq!(reads(volume, &[value, value], 30), is_good, "{value}");
                }
            }
        }
    }

    fn lose_all(mut volume: Volume) -> Volume {
        volume.left_by(|_| true, 20);
        volume.lost_power(0, 15, 22);
        volume
    }

    #[test]
    fn what_is_left_is_one_value_and_stays() {
        assert!(!reads(lose_all(written()), &[5, 6], 30));
        assert!(!reads(lose_all(written()), &[7, 5], 30));
    }

    #[test]
    fn what_a_flush_covered_stays() {
        let mut volume = written();
        volume.flushed(5, ME);
        for (value, is_good) in [(5, false), (6, true), (7, true)] {
            let mut volume = written();
            volume.flushed(5, ME);
            assert_eq!(reads(lose_all(volume), &[value], 30), is_good, "{value}");
        }
        volume.flushed(8, ME);
        assert!(!volume.left_by(|_| true, 20));
        assert!(!volume.lost_power(0, 15, 22));
    }

    #[test]
    fn a_flush_of_who_was_overruled_covers_nothing_that_it_has_under_way() {
        for (by, may_lose) in [(ME, true), ((1, 1), false)] {
            let mut volume = written();
            volume.ask(8, SessionId::ZERO, 8, PIECES, 7);
            volume.asked_lazily(8, ME);
            volume.left_by(|owner| owner == ME, 8);
            volume.flushed(9, by);
            volume.done(8, 10, false);
            assert_eq!(volume.lost_power(0, 15, 20), may_lose);
        }
    }

    #[test]
    fn power_that_was_lost_before_takes_nothing() {
        let mut volume = written();
        assert!(!volume.lost_power(0, 2, 19));
        assert!(!volume.left_by(|_| true, 20));
    }

    #[test]
    fn a_safe_write_replaces_what_is_not_synced() {
        let mut volume = written();
        write(&mut volume, 8, 9, false);
        assert!(!reads(lose_all(volume), &[7], 30));
        let mut volume = written();
        write(&mut volume, 8, 9, false);
        assert!(reads(lose_all(volume), &[8], 30));
    }

    #[test]
    fn zeros_may_be_left_only_where_they_were() {
        let mut volume = volume();
        write(&mut volume, 6, 3, true);
        assert!(reads(lose_all(volume), &[0], 30), "it held zeros at first");
        assert!(!reads(lose_all(written()), &[0], 30));
    }

    #[test]
    fn what_another_wrote_since_is_not_lost_with_it() {
        let mut volume = written();
        volume.left_by(|_| true, 8);
        volume.ask(8, SessionId::ZERO, 8, PIECES, 9);
        volume.asked_lazily(8, (1, 1));
        volume.done(8, 10, false);
        assert!(!volume.lost_power(0, 15, 20), "its client lives and writes it again");
        assert!(reads(volume, &[8], 30));
    }

    #[test]
    fn what_a_living_client_had_at_a_loss_of_power_may_be_lost_when_it_goes() {
        const NEXT: Owner = (1, 1);
        for (is_flushed, is_gone) in [(false, false), (false, true), (true, true)] {
            for value in [0, 5, 6, 7, 8] {
                // The last write of a client that has gone, without an answer.
                let mut volume = volume();
                volume.ask(5, SessionId::ZERO, 5, PIECES, 1);
                volume.asked_lazily(5, ME);
                volume.left_by(|owner| owner == ME, 2);
                volume.failed(5, 10);
                // The next client has two answers; a write of both units and others has failed.
                for (id, from) in [(6, 12), (7, 14), (8, 16)] {
                    volume.ask(id, SessionId::ZERO, id, PIECES, from);
                    volume.asked_lazily(id, NEXT);
                    match id {
                        8 => volume.failed(id, from + 1),
                        _ => volume.done(id, from + 1, false),
                    }
                }
                if is_flushed {
                    volume.flushed(16, NEXT);
                }
                volume.lost_power(0, 20, 20);
                if is_gone {
                    volume.left_by(|owner| owner == NEXT, 24);
                }
                let is_good = match value {
                    7 | 8 => true,
                    _ => is_gone && !is_flushed,
                };
                assert_eq!(reads(volume, &[value], 30), is_good, "{value} {is_gone} {is_flushed}");
            }
        }
    }
}
