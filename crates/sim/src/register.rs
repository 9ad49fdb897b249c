//! Checks the linearizability of one register (a unit of a volume) from the history of its
//! operations.
//!
//! Every written value is unique, except zero, which all discards write. A moment is a number that increases
//! with each event of the run. An operation takes effect between its `from` and `to`. An unanswered operation
//! has no `to`: it may take effect at any later time, or never.
//!
//! A write that was retransmitted after a failure (`repeated`) may take effect more than once, but never
//! after its answer. Every other write takes effect once.
//!
//! ```text
//!   write A  |-----|
//!   read = A           |---|             A holds from A's end to the read's start:
//!   write B      |--------------|        B can take effect before or after that zone,
//!   write C          |-|                 C only inside it: a violation
//! ```
//!
//! Method: if a value is read after all moments at which it can have been written, the value must have held
//! in between: this time is a *zone*. A valid order of all operations exists exactly if no two zones of
//! different values overlap and every other operation has a possible moment outside the zones of other
//! values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A point in time of the run; increases with each event.
pub type Moment = u64;

/// The content of a register: zero, or the unique number of the write that wrote it.
pub type Value = u64;

/// The `to` of an unanswered operation.
pub const NEVER: Moment = Moment::MAX;

/// The history of one register, which initially holds zero.
#[derive(Clone, Default, Debug)]
pub struct History {
    writes: Vec<Write>,
    reads: Vec<Read>,
    leftover: Option<Leftover>,
}

/// The possible contents of a register whose history begins after a loss of data.
#[derive(Clone, Debug)]
struct Leftover {
    /// The values that it may hold.
    values: BTreeSet<Value>,
    /// Whether it may hold zero.
    or_zero: bool,
    /// The moment at which the history begins.
    from: Moment,
    /// After a loss of power: what was there before it.
    before: Option<Box<Before>>,
}

/// A history that a loss of power ended. A later loss may show that more of its writes are gone: those of a
/// client that was still there and could have retransmitted them.
#[derive(Clone, Debug)]
struct Before {
    history: History,
    /// When the writes were requested that may have been gone then.
    lost: BTreeSet<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    value: Value,
    from: Moment,
    to: Moment,
    repeated: bool,
    /// Whether the write certainly took effect, because it was acknowledged.
    happened: bool,
    /// Whether another write certainly took effect after it, and by `to`.
    replaced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    value: Value,
    from: Moment,
    to: Moment,
}

/// The reason why a history's operations have no valid order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A value was read before any write can have written it.
    FromNowhere {
        /// The value that was read.
        value: Value,
        /// When the read was requested and when it was answered.
        read: (Moment, Moment),
    },
    /// Two values must have held at the same time.
    Overlap {
        /// The value that was read late, and the start and end of the time during which it must have
        /// held.
        held: (Value, Moment, Moment),
        /// The other value, and the start and end of the time during which it must have held.
        other: (Value, Moment, Moment),
    },
    /// An operation on another value lies entirely within the time in which a value must have held.
    Inside {
        /// The value that was read late, and the start and end of the time during which it must have
        /// held.
        held: (Value, Moment, Moment),
        /// The value that was written or read within that time, with the start and end of the
        /// operation.
        other: (Value, Moment, Moment),
    },
    /// A value was read by an operation that began after a later write had taken effect.
    Replaced {
        /// The value that was read.
        value: Value,
        /// When the later write had taken effect.
        at: Moment,
        /// When the read was requested and when it was answered.
        read: (Moment, Moment),
    },
    /// Zero was read at a time when only other values can have held.
    NotZero {
        /// When the read was requested and when it was answered.
        read: (Moment, Moment),
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::FromNowhere { value, read: (from, to) } => {
                write!(f, "the read at {from}..{to} returned {value}, which nobody had written")
            }
            Violation::Overlap { held: (value, from, to), other: (other, start, end) } => write!(
                f,
                "{value} must have held during {from}..{to} and {other} during {start}..{end}"
            ),
            Violation::Inside { held: (value, from, to), other: (other, start, end) } => write!(
                f,
                "{value} must have held during {from}..{to}, yet {other} was written or read \
                 wholly within, at {start}..{end}"
            ),
            Violation::Replaced { value, at, read: (from, to) } => write!(
                f,
                "the read at {from}..{to} returned {value}, which a later write had replaced by {at}"
            ),
            Violation::NotZero { read: (from, to) } => {
                write!(f, "the read at {from}..{to} returned zeros that nobody wrote in time")
            }
        }
    }
}

/// A time during which a value must have held.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: Value,
    from: Moment,
    to: Moment,
}

impl Zone {
    fn triple(self) -> (Value, Moment, Moment) {
        (self.value, self.from, self.to)
    }
}

impl Leftover {
    /// Returns the values other than zero that it may hold, and whether it may hold zero, if the writes
    /// requested at the moments `lost` may be gone as well.
    fn possible(&self, lost: &BTreeSet<Moment>) -> (BTreeSet<Value>, bool) {
        match &self.before {
            Some(before) => before.history.possible(&(&before.lost | lost)),
            None => (self.values.clone(), self.or_zero),
        }
    }
}

impl History {
    /// Creates a history that begins after a loss of data at `from`: the register holds zero, or one of
    /// the values that it held before. No operation takes effect at `from` or at the next moment.
    pub fn after_loss(before: impl IntoIterator<Item = Value>, from: Moment) -> History {
        let values = before.into_iter().collect();
        let leftover = Leftover { values, or_zero: true, from, before: None };
        History { leftover: Some(leftover), ..History::default() }
    }

    /// Creates a history that begins at `now`, when any of the writes that were requested at the
    /// moments `lost` may be gone. The register may hold any value that has not certainly been replaced
    /// by a later write outside `lost`. No operation takes effect at `now` or at the next moment.
    /// Returns `None` if there is only one such value.
    pub fn after_power_loss(&self, lost: &BTreeSet<Moment>, now: Moment) -> Option<History> {
        let (values, or_zero) = self.possible(lost);
        let is_sure = values.len() + usize::from(or_zero) < 2;
        let before = || Some(Box::new(Before { history: self.clone(), lost: lost.clone() }));
        (!is_sure).then(|| {
            let leftover = Leftover { values, or_zero, from: now, before: before() };
            History { leftover: Some(leftover), ..History::default() }
        })
    }

    /// Returns the values other than zero that no later write outside `lost` has certainly replaced, and
    /// whether the register may hold zero.
    fn possible(&self, lost: &BTreeSet<Moment>) -> (BTreeSet<Value>, bool) {
        let safe = self.writes.iter().filter(|write| write.happened && !lost.contains(&write.from));
        let safe = safe.map(|write| write.from).max().unwrap_or(0);
        let left = self.writes.iter().filter(|write| write.to >= safe);
        let mut values: BTreeSet<Value> = left.map(|write| write.value).collect();
        let mut or_zero = values.remove(&0);
        match &self.leftover {
            Some(leftover) if leftover.from + 1 >= safe => {
                let (former, zero) = leftover.possible(lost);
                values.extend(former);
                or_zero |= zero;
            }
            None if safe == 0 => or_zero = true,
            _ => {}
        }
        (values, or_zero)
    }

    /// Returns every value that the register may have held.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        let left = self.leftover.iter().flat_map(|leftover| leftover.values.iter().copied());
        self.writes.iter().map(|write| write.value).chain(left)
    }

    /// Adds a write, or a discard (value 0). `to` is [`NEVER`] if the write was not answered.
    /// `repeated`: it may have been sent more than once.
    pub fn write(&mut self, value: Value, from: Moment, to: Moment, repeated: bool) {
        assert!(from < to);
        let happened = to != NEVER;
        self.writes.push(Write { value, from, to, repeated, happened, replaced: false });
    }

    /// Adds a write that failed: between `from` and `to` it took effect any number of times, or not at
    /// all.
    pub fn failed_write(&mut self, value: Value, from: Moment, to: Moment) {
        assert!(from < to);
        let (repeated, happened, replaced) = (true, false, false);
        self.writes.push(Write { value, from, to, repeated, happened, replaced });
    }

    /// Adds a write that took effect any number of times, or not at all, before another one, which took
    /// effect by `to`: no read that begins later finds it.
    pub fn replaced_write(&mut self, value: Value, from: Moment, to: Moment) {
        self.failed_write(value, from, to);
        self.writes.last_mut().expect("added just now").replaced = true;
    }

    /// Records that the write requested at `from`, which was added as failed, was acknowledged after
    /// all: it took effect.
    pub fn confirm(&mut self, from: Moment, repeated: bool) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.from == from) {
            (write.happened, write.repeated) = (true, repeated);
        }
    }

    /// Adds an answered read.
    pub fn read(&mut self, value: Value, from: Moment, to: Moment) {
        assert!(from < to);
        self.reads.push(Read { value, from, to });
    }

    /// Returns the history as text: all operations, sorted by their start.
    pub fn table(&self) -> String {
        let end = |to: Moment| if to == NEVER { "never".to_string() } else { to.to_string() };
        let writes = self.writes.iter().map(|write| {
            let kind = match (write.happened, write.repeated) {
                (false, _) => "unsure write",
                (true, true) => "repeated write",
                (true, false) => "write",
            };
            (write.from, format!("  {}..{} {kind} {}", write.from, end(write.to), write.value))
        });
        let reads = self.reads.iter().map(|read| {
            (read.from, format!("  {}..{} read {}", read.from, end(read.to), read.value))
        });
        let mut lines: Vec<(Moment, String)> = writes.chain(reads).collect();
        lines.sort();
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Checks that the operations have a valid order. Takes O(n log n).
    pub fn check(&self) -> Result<(), Violation> {
        if let Some(left) = self.left() {
            let mut history = History { leftover: None, ..self.clone() };
            history.writes.push(left);
            return history.check();
        }
        let mut clusters = self.clusters()?;
        let zeros = clusters.remove(&0).expect("the register held zero at first");
        let mut zones = Vec::new();
        // (value, from, to): the value must have held at some moment between `from` and `to`, both
        // included.
        let mut wants = Vec::new();
        for (value, cluster) in &clusters {
            cluster.find_replaced(*value)?;
            cluster.demands(*value, &mut zones, &mut wants);
        }
        let zeros = Zeros::new(zeros, &mut zones, &mut wants);
        let zones = Zones::new(zones)?;
        for want in wants {
            zones.allow(want)?;
        }
        zeros.check(&zones)
    }

    /// Returns a write that stands for the value that the register held after a loss: a value that no
    /// later write wrote, preferably one that was read.
    fn left(&self) -> Option<Write> {
        let Leftover { values, or_zero, from, .. } = self.leftover.as_ref()?;
        let may_be = |value: &Value| {
            values.contains(value) && !self.writes.iter().any(|write| write.value == *value)
        };
        let read = self.reads.iter().map(|read| read.value).find(may_be);
        // None of the possible values was read since. So any of them will do, and none is needed if
        // zero is possible.
        let unread = || values.iter().copied().find(may_be).filter(|_| !or_zero);
        let value = read.or_else(unread)?;
        let to = from + 1;
        let (repeated, happened, replaced) = (false, true, false);
        (value != 0).then_some(Write { value, from: *from, to, repeated, happened, replaced })
    }

    /// Groups the operations by value, and adds the write of the initial zero.
    fn clusters(&self) -> Result<BTreeMap<Value, Cluster>, Violation> {
        let mut clusters: BTreeMap<Value, Cluster> = BTreeMap::new();
        let (repeated, happened, replaced) = (false, true, false);
        let first = Write { value: 0, from: 0, to: 0, repeated, happened, replaced };
        for write in std::iter::once(first).chain(self.writes.iter().copied()) {
            clusters.entry(write.value).or_default().writes.push(write);
        }
        for read in &self.reads {
            let nowhere = Violation::FromNowhere { value: read.value, read: (read.from, read.to) };
            let cluster = clusters.get_mut(&read.value).ok_or(nowhere.clone())?;
            if cluster.writes.iter().all(|write| write.from > read.to) {
                return Err(nowhere);
            }
            cluster.reads.push(*read);
        }
        Ok(clusters)
    }
}

/// All operations on one value.
#[derive(Default)]
struct Cluster {
    writes: Vec<Write>,
    reads: Vec<Read>,
}

type Want = (Value, Moment, Moment);

impl Cluster {
    /// Finds a read of a unique value that began when another write had replaced it.
    fn find_replaced(&self, value: Value) -> Result<(), Violation> {
        let Some(write) = self.writes.iter().find(|write| write.replaced) else { return Ok(()) };
        match self.reads.iter().find(|read| read.from > write.to) {
            Some(read) => {
                Err(Violation::Replaced { value, at: write.to, read: (read.from, read.to) })
            }
            None => Ok(()),
        }
    }

    /// Adds the zone and the wants of a unique value. Requires: the value has one write.
    fn demands(&self, value: Value, zones: &mut Vec<Zone>, wants: &mut Vec<Want>) {
        assert_eq!(self.writes.len(), 1, "a value other than zero is written once");
        let write = self.writes[0];
        let last_from = self.reads.iter().map(|read| read.from).max();
        if !write.repeated {
            // The write takes effect once, so one continuous interval must explain all operations on
            // the value.
            let from = self.reads.iter().map(|read| read.to).fold(write.to, Moment::min);
            let to = last_from.unwrap_or(0).max(write.from);
            if from < to {
                zones.push(Zone { value, from, to });
            } else if write.happened || !self.reads.is_empty() {
                wants.push((value, to, from));
            }
            return;
        }
        if let Some(to) = last_from.filter(|last| *last > write.to) {
            zones.push(Zone { value, from: write.to, to });
        }
        if write.happened {
            wants.push((value, write.from, write.to));
        }
        for read in &self.reads {
            if read.from <= write.to {
                wants.push((value, read.from.max(write.from), read.to.min(write.to)));
            }
        }
    }
}

/// Zero may have many writes. Each read of zero is explained by the write that constrains the order
/// least: any concurrent write, or else the last write before the read that was not replaced.
struct Zeros {
    writes_by_end: Vec<Write>,
    /// Reads that a concurrent write may explain.
    reads: Vec<Read>,
}

impl Zeros {
    /// Adds the zones and wants of zero. Reads that a concurrent write may explain are kept for later.
    fn new(cluster: Cluster, zones: &mut Vec<Zone>, wants: &mut Vec<Want>) -> Zeros {
        let Cluster { writes: mut writes_by_end, mut reads } = cluster;
        writes_by_end.sort_unstable_by_key(|write| write.to);
        let answered = writes_by_end.iter().filter(|write| write.happened && write.to != 0);
        wants.extend(answered.map(|write| (0, write.from, write.to)));
        reads.retain(|read| {
            let ended = writes_by_end.partition_point(|write| write.to < read.from);
            let choice = writes_by_end[ended..].iter().any(|write| write.from < read.to);
            if !choice {
                let last = last_left(&writes_by_end[..ended]).expect("zero was there at first");
                zones.push(Zone { value: 0, from: last.to, to: read.from });
            }
            choice
        });
        Zeros { writes_by_end, reads }
    }

    fn check(&self, zones: &Zones) -> Result<(), Violation> {
        for read in &self.reads {
            let ended = self.writes_by_end.partition_point(|write| write.to < read.from);
            let (before, meeting) = self.writes_by_end.split_at(ended);
            let mut allowed = meeting
                .iter()
                .filter(|write| write.from < read.to)
                .map(|write| zones.allow((0, read.from.max(write.from), read.to.min(write.to))));
            let late =
                last_left(before).map(|last| Zone { value: 0, from: last.to, to: read.from });
            if !allowed.any(|result| result.is_ok())
                && !late.is_some_and(|zone| zones.allow_zone(zone))
            {
                return Err(Violation::NotZero { read: (read.from, read.to) });
            }
        }
        Ok(())
    }
}

/// Returns the last write that was not replaced.
fn last_left(writes: &[Write]) -> Option<&Write> {
    writes.iter().rev().find(|write| !write.replaced)
}

/// Zones in chronological order; no two zones of different values overlap.
struct Zones(Vec<Zone>);

impl Zones {
    fn new(mut zones: Vec<Zone>) -> Result<Zones, Violation> {
        zones.sort_unstable_by_key(|zone| (zone.from, zone.to));
        for pair in zones.windows(2) {
            if pair[1].from < pair[0].to && pair[0].value != pair[1].value {
                return Err(Violation::Overlap { held: pair[0].triple(), other: pair[1].triple() });
            }
        }
        Ok(Zones(zones))
    }

    /// Rejects an interval that lies entirely within the zone of another value.
    fn allow(&self, want: Want) -> Result<(), Violation> {
        let (value, from, to) = want;
        let next = self.0.partition_point(|zone| zone.from <= from);
        let Some(zone) = self.0[..next].last() else { return Ok(()) };
        if zone.value != value && to <= zone.to {
            return Err(Violation::Inside { held: zone.triple(), other: want });
        }
        Ok(())
    }

    /// Returns whether another zone fits between the existing zones.
    fn allow_zone(&self, new: Zone) -> bool {
        let next = self.0.partition_point(|zone| zone.from < new.to);
        self.0[..next].last().is_none_or(|zone| zone.to <= new.from || zone.value == new.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Chance, Random};

    #[test]
    fn a_loss_leaves_one_former_value_or_zero() {
        let check = |reads: &[Value]| {
            let mut history = History::after_loss([7, 8], 10);
            for (index, value) in reads.iter().enumerate() {
                let at = 20 + 2 * index as Moment;
                history.read(*value, at, at + 1);
            }
            history.write(9, 15, 100, true);
            history.check()
        };
        assert_eq!(check(&[7, 7]), Ok(()));
        assert_eq!(check(&[8, 9]), Ok(()));
        assert_eq!(check(&[0, 0]), Ok(()));
        assert_eq!(check(&[0, 9, 9]), Ok(()));
        assert!(check(&[7, 8]).is_err(), "it was one of them");
        assert!(check(&[0, 7]).is_err(), "zero was what was left");
        assert!(check(&[7, 0]).is_err(), "nobody wrote zeros");
        assert!(check(&[6]).is_err(), "it never had that");
        assert!(check(&[7, 9, 7]).is_err(), "it was overwritten");
    }

    #[test]
    fn a_later_loss_may_take_what_an_earlier_one_had_left() {
        let mut first = History::default();
        first.failed_write(5, 1, 15);
        first.write(6, 10, 14, false);
        first.write(7, 16, 20, false);
        first.failed_write(8, 18, 21);
        // Write 5 may be gone. That changes nothing: write 7 replaced it, or write 8 did.
        let second = first.after_power_loss(&BTreeSet::from([1]), 30).expect("7 or 8");
        let reads = |history: &History, value| {
            let mut history = history.clone();
            history.read(value, 50, 51);
            history.check().is_ok()
        };
        for (value, is_good) in [(0, false), (5, false), (6, false), (7, true), (8, true)] {
            assert_eq!(reads(&second, value), is_good, "{value}, after the first loss");
        }
        // Write 5 may have been flushed in the meantime, if it was not gone: then `lost` lacks it.
        for lost in [&[1, 16][..], &[16]] {
            let third = second.after_power_loss(&lost.iter().copied().collect(), 40);
            let third = third.expect("several values");
            for (value, is_good) in [(0, false), (5, true), (6, true), (7, true), (8, true)] {
                assert_eq!(reads(&third, value), is_good, "{value}, without write 7");
            }
        }
        let third = second.after_power_loss(&BTreeSet::from([1, 10, 16]), 40);
        assert!(reads(&third.expect("several values"), 0), "each write may be gone");
        // A write that was not lost follows both losses.
        let mut second = second;
        second.write(9, 32, 33, false);
        assert!(second.after_power_loss(&BTreeSet::from([1, 10, 16]), 40).is_none(), "only 9");
    }

    #[test]
    fn a_sequence_of_writes_and_reads_is_in_order() {
        let mut history = History::default();
        history.read(0, 1, 2);
        history.write(7, 3, 4, false);
        history.read(7, 5, 6);
        history.write(0, 7, 8, false);
        history.read(0, 9, 10);
        assert_eq!(history.check(), Ok(()));
    }

    #[test]
    fn a_stale_read_is_found() {
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.write(8, 3, 4, false);
        history.read(7, 5, 6);
        assert!(matches!(history.check(), Err(Violation::Inside { held: (7, ..), .. })));
    }

    #[test]
    fn a_lost_write_is_found() {
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.read(0, 3, 4);
        assert!(matches!(history.check(), Err(Violation::Inside { held: (0, 0, 3), .. })));
    }

    #[test]
    fn a_resurrected_value_is_found() {
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.write(0, 3, 4, false);
        history.read(0, 5, 6);
        history.read(7, 7, 8);
        assert!(history.check().is_err());
        // The same holds if no read has returned the zeros of the discard.
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.write(0, 3, 4, false);
        history.read(7, 7, 8);
        assert!(history.check().is_err());
    }

    #[test]
    fn a_value_from_nowhere_or_from_the_future_is_found() {
        let mut history = History::default();
        history.read(9, 1, 2);
        assert!(matches!(history.check(), Err(Violation::FromNowhere { value: 9, .. })));
        let mut history = History::default();
        history.read(9, 1, 2);
        history.write(9, 3, 4, false);
        assert!(matches!(history.check(), Err(Violation::FromNowhere { value: 9, .. })));
    }

    #[test]
    fn reads_that_go_back_are_found() {
        // Both writes are unanswered: each order of the two contradicts one pair of reads.
        let mut history = History::default();
        history.write(7, 1, 20, false);
        history.write(8, 2, 21, false);
        history.read(7, 3, 4);
        history.read(8, 5, 6);
        assert_eq!(history.check(), Ok(()));
        history.read(7, 7, 8);
        assert!(matches!(history.check(), Err(Violation::Inside { .. })));
    }

    #[test]
    fn a_repeated_write_may_take_effect_twice_but_not_after_its_answer() {
        let mut history = History::default();
        history.write(7, 1, 20, true);
        history.write(8, 2, 21, false);
        history.read(7, 3, 4);
        history.read(8, 5, 6);
        history.read(7, 7, 8);
        assert_eq!(history.check(), Ok(()));
        history.read(8, 22, 23);
        assert!(history.check().is_err(), "8 took effect once, before 7 did again");
        let mut history = History::default();
        history.write(7, 1, 4, true);
        history.write(8, 5, 6, false);
        history.read(8, 7, 8);
        history.read(7, 9, 10);
        assert!(matches!(
            history.check(),
            Err(Violation::Overlap { .. } | Violation::Inside { .. })
        ));
    }

    #[test]
    fn an_unanswered_write_may_happen_late_or_never() {
        let mut history = History::default();
        history.write(7, 1, NEVER, true);
        history.write(8, 2, 3, false);
        history.read(8, 4, 5);
        assert_eq!(history.check(), Ok(()));
        history.read(7, 6, 7);
        assert_eq!(history.check(), Ok(()));
        let mut history = History::default();
        history.write(7, 1, NEVER, false);
        history.read(7, 2, 3);
        history.read(0, 4, 5);
        assert!(history.check().is_err(), "once seen it stays");
    }

    #[test]
    fn a_failed_write_may_have_happened_but_does_not_later() {
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.failed_write(8, 3, 4);
        history.read(7, 5, 6);
        assert_eq!(history.check(), Ok(()));
        history.read(8, 7, 8);
        assert!(history.check().is_err());
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.failed_write(8, 3, 4);
        history.read(8, 7, 8);
        assert_eq!(history.check(), Ok(()));
    }

    #[test]
    fn zeros_are_explained_by_any_discard() {
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.write(0, 3, 10, false);
        history.read(0, 4, 5);
        history.read(7, 6, 7);
        assert!(history.check().is_err(), "7 was gone by 5");
        let mut history = History::default();
        history.write(7, 1, 2, false);
        history.write(0, 3, 4, false);
        history.write(8, 5, 6, false);
        history.write(0, 7, 8, false);
        history.read(0, 9, 10);
        assert_eq!(history.check(), Ok(()));
        history.write(9, 11, 12, false);
        history.read(0, 13, 14);
        assert!(history.check().is_err());
    }

    /// Draws a history from the simulation of a real register, so that a valid order exists.
    fn real_history(random: &mut Random, length: usize) -> (History, Vec<Read>) {
        let mut history = History::default();
        let mut value = 0;
        let mut open: Vec<(Value, Moment, bool, bool)> = Vec::new();
        let mut reads: Vec<(Moment, Option<Value>)> = Vec::new();
        let mut answered = Vec::new();
        let mut moment = 0;
        let mut value_last = 0;
        for _ in 0..length {
            moment += 1;
            match random.below(7) {
                0 => {
                    let zero = random.chance(Chance::percent(20));
                    value_last += 1;
                    let new = if zero { 0 } else { value_last };
                    open.push((new, moment, random.chance(Chance::percent(30)), false));
                }
                1 => reads.push((moment, None)),
                2 if !open.is_empty() => {
                    let write = random.index(open.len());
                    let (new, _, repeated, done) = &mut open[write];
                    if *repeated || !*done {
                        value = *new;
                        *done = true;
                    }
                }
                3 if !reads.is_empty() => {
                    let read = random.index(reads.len());
                    reads[read].1 = Some(value);
                }
                4 if open.iter().any(|write| write.3) => {
                    let write = open.iter().position(|write| write.3).expect("there is one");
                    let (new, from, repeated, _) = open.remove(write);
                    history.write(new, from, moment, repeated);
                }
                5 if reads.iter().any(|read| read.1.is_some()) => {
                    let read = reads.iter().position(|read| read.1.is_some()).expect("is one");
                    let (from, seen) = reads.remove(read);
                    answered.push(Read { value: seen.expect("seen"), from, to: moment });
                }
                _ => {}
            }
        }
        for (new, from, repeated, _) in open {
            history.write(new, from, NEVER, repeated);
        }
        for read in &answered {
            history.read(read.value, read.from, read.to);
        }
        (history, answered)
    }

    #[test]
    fn histories_of_a_real_register_pass() {
        for seed in 0..3000 {
            let (history, _) = real_history(&mut Random::new(seed, "test"), 80);
            assert_eq!(history.check(), Ok(()), "seed {seed}: {history:?}");
        }
    }

    #[test]
    fn a_changed_read_is_mostly_found() {
        let mut found = 0;
        let mut tried = 0;
        for seed in 0..1000 {
            let mut random = Random::new(seed, "test");
            let (mut history, reads) = real_history(&mut random, 80);
            if reads.len() < 4 {
                continue;
            }
            let read = random.index(history.reads.len());
            let other = history.writes[random.index(history.writes.len())].value;
            if history.reads[read].value != other {
                history.reads[read].value = other;
                tried += 1;
                found += u32::from(history.check().is_err());
            }
        }
        assert!(tried > 500);
        assert!(found * 3 > tried, "{found} of {tried}");
    }

    /// Checks a small history by trying all orders of its operations.
    fn by_brute_force(history: &History) -> bool {
        fn go(history: &History, done: u32, value: Value) -> bool {
            let writes = history.writes.len();
            let count = writes + history.reads.len();
            let ends = |index: usize| match index < writes {
                true => history.writes[index].to,
                false => history.reads[index - writes].to,
            };
            let left = |index: &usize| done & (1 << index) == 0;
            if (0..count).filter(left).all(|index| ends(index) == NEVER) {
                return true;
            }
            let first_end = (0..count).filter(left).map(ends).min().expect("one is left");
            (0..count).filter(left).any(|index| {
                let (from, new) = match index < writes {
                    true => (history.writes[index].from, history.writes[index].value),
                    false => {
                        let read = history.reads[index - writes];
                        if read.value != value {
                            return false;
                        }
                        (read.from, value)
                    }
                };
                from < first_end && go(history, done | (1 << index), new)
            })
        }
        go(history, 0, 0)
    }

    #[test]
    fn unique_values_are_judged_exactly_as_by_trying_all_orders() {
        let (mut good, mut bad) = (0, 0);
        for seed in 0..4000 {
            let mut random = Random::new(seed, "test");
            let mut moments: Vec<Moment> = (1..=16).collect();
            random.shuffle(&mut moments);
            let mut history = History::default();
            for (index, pair) in moments.chunks_exact(2).enumerate() {
                let (from, to) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
                if index < 4 {
                    let to = if random.chance(Chance::percent(10)) { NEVER } else { to };
                    history.write(index as u64 + 1, from, to, false);
                } else {
                    history.read(random.below(5), from, to);
                }
            }
            let expected = by_brute_force(&history);
            assert_eq!(history.check().is_ok(), expected, "seed {seed}: {history:?}");
            if expected { good += 1 } else { bad += 1 }
        }
        assert!(good > 100);
        assert!(bad > 100);
    }
}
