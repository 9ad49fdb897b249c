//! The requests of one volume or object pool that are not completely cut into parts.
//!
//! ```text
//!   new ──▶ to be judged, oldest first ──cut──▶ parts
//!              │  ▲        │  ▲
//!     no room of │  a part   │  the older one is cut, or has ended
//!     its PG   ▼  of it ends ▼  │
//!         in lines         behind an older one that waits and changes the same range
//! ```
//!
//! Invariants
//!   1. A request is to be judged, or waits in lines, or behind one older request.
//!   2. If the first of a line may go on, it is to be judged; the others of the line are newer.
//!   3. The ranges of all changes that wait are in `ranges`; those that were woken may be there, too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::PgId;

use crate::table::RequestKey;
use crate::waiting_ranges::WaitingRanges;

/// The age of a request among those of its volume; the core's own requests come before those of the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn {
    is_users: bool,
    number: u64,
}

impl Turn {
    /// The turn of a request that never waits in a queue: before all others.
    pub(crate) const NONE: Turn = Turn { is_users: false, number: 0 };
    /// After all others.
    const MAX: Turn = Turn { is_users: true, number: u64::MAX };

    #[cfg(test)]
    pub(crate) fn of_user(number: u64) -> Turn {
        Turn { is_users: true, number }
    }
}

/// Requests that wait for the same thing, in the order of their age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Line {
    /// For room among the parts of a PG that are in flight.
    Room(PgId),
    /// For room among what is kept of a PG.
    Keeping(PgId),
}

/// What a request waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    /// For its turn to be judged.
    Turn,
    /// For any of these: one of the PG of its next part, or one of each PG if their order does not matter.
    Lines(Vec<Line>),
    /// For this older request, which waits and changes what this one changes.
    Older(Turn),
}

/// A request that waits.
struct Waiting {
    key: RequestKey,
    waits: Waits,
    /// The lines that it stood in before it was to be judged: when it is gone from them, the next ones may go
    /// on.
    left: Vec<Line>,
    /// The units that it changes, as in `ranges`.
    range: Option<Range<u64>>,
}

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Queue {
    last: u64,
    waiting: BTreeMap<Turn, Waiting>,
    to_judge: BTreeSet<Turn>,
    lines: BTreeSet<(Line, Turn)>,
    /// Requests behind an older one: the older one, the end of the newer one's range, the newer one.
    behind: BTreeSet<(Turn, u64, Turn)>,
    ranges: WaitingRanges,
}

impl Queue {
    /// Adds a request, which is to be judged. Returns its turn.
    pub(crate) fn add(&mut self, key: RequestKey, is_users: bool) -> Turn {
        self.last += 1;
        let turn = Turn { is_users, number: self.last };
        let new = Waiting { key, waits: Waits::Turn, left: Vec::new(), range: None };
        self.waiting.insert(turn, new);
        self.to_judge.insert(turn);
        turn
    }

    /// Returns the oldest request that is to be judged.
    pub(crate) fn first(&self) -> Option<RequestKey> {
        self.to_judge.first().map(|turn| self.waiting[turn].key)
    }

    /// Returns what a request waits for; `None`: it is not here.
    pub(crate) fn waits(&self, turn: Turn) -> Option<&Waits> {
        self.waiting.get(&turn).map(|it| &it.waits)
    }

    /// Whether an older request waits in this line.
    pub(crate) fn has_older(&self, turn: Turn, line: Line) -> bool {
        self.first_of(line).is_some_and(|first| first < turn)
    }

    /// Returns the newest of the older requests that wait and change some of these units. Requires: all older
    /// requests were judged.
    pub(crate) fn older_change(&self, turn: Turn, units: &Range<u64>) -> Option<Turn> {
        self.ranges.newest_before(units, turn)
    }

    /// Lets a request that was judged wait in these lines. `units`: what it still has to change, if anything.
    pub(crate) fn wait_in(&mut self, turn: Turn, lines: Vec<Line>, units: Option<Range<u64>>) {
        self.place(turn, Waits::Lines(lines), units);
    }

    /// Lets a request that was judged wait for an older one. `units`: what it still has to change.
    pub(crate) fn wait_for_older(&mut self, turn: Turn, older: Turn, units: Range<u64>) {
        assert!(older < turn);
        self.place(turn, Waits::Older(older), Some(units));
    }

    /// Lets the oldest requests be judged that wait for room of the PG.
    pub(crate) fn wake(&mut self, pg: PgId) {
        self.wake_first(Line::Room(pg));
        self.wake_first(Line::Keeping(pg));
    }

    /// Lets all requests be judged that wait to be kept of the PG.
    pub(crate) fn wake_all_to_keep(&mut self, pg: PgId) {
        while let Some(turn) = self.first_of(Line::Keeping(pg)) {
            self.set(turn, Waits::Turn);
        }
    }

    /// Removes a request, if it is here. What waits behind it is judged again.
    pub(crate) fn remove(&mut self, turn: Turn) {
        if !self.waiting.contains_key(&turn) {
            return;
        }
        self.set(turn, Waits::Turn);
        self.set_range(turn, None);
        self.to_judge.remove(&turn);
        let it = self.waiting.remove(&turn).expect("looked at just now");
        it.left.into_iter().for_each(|line| self.wake_first(line));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn first_of(&self, line: Line) -> Option<Turn> {
        let (of, turn) = self.lines.range((line, Turn::NONE)..).next()?;
        (*of == line).then_some(*turn)
    }

    fn wake_first(&mut self, line: Line) {
        if let Some(turn) = self.first_of(line) {
            self.set(turn, Waits::Turn);
        }
    }

    /// Lets a request wait that was judged.
    fn place(&mut self, turn: Turn, waits: Waits, units: Option<Range<u64>>) {
        self.set_range(turn, units);
        self.set(turn, waits);
        let it = self.waiting.get_mut(&turn).expect("the caller knows it");
        let mut left = std::mem::take(&mut it.left);
        left.retain(|line| !self.lines.contains(&(*line, turn)));
        left.into_iter().for_each(|line| self.wake_first(line));
    }

    /// Sets the units that a request still has to change. What waited behind it and overlaps none of them is
    /// judged again.
    fn set_range(&mut self, turn: Turn, units: Option<Range<u64>>) {
        let it = self.waiting.get_mut(&turn).expect("the caller knows it");
        if it.range == units {
            return;
        }
        if let Some(before) = std::mem::replace(&mut it.range, units.clone()) {
            self.ranges.remove(&before, turn);
        }
        let start = units.as_ref().map_or(u64::MAX, |units| units.start);
        if let Some(units) = units {
            self.ranges.insert(&units, turn);
        }
        let free = self.behind.range((turn, 0, Turn::NONE)..=(turn, start, Turn::MAX));
        for (_, _, newer) in free.copied().collect::<Vec<_>>() {
            self.set(newer, Waits::Turn);
        }
    }

    /// Moves a request from one place to another.
    fn set(&mut self, turn: Turn, waits: Waits) {
        let it = self.waiting.get_mut(&turn).expect("the caller knows it");
        let end = it.range.as_ref().map_or(0, |units| units.end);
        let was_there = match std::mem::replace(&mut it.waits, waits.clone()) {
            Waits::Turn => self.to_judge.remove(&turn),
            Waits::Older(older) => self.behind.remove(&(older, end, turn)),
            Waits::Lines(lines) => {
                it.left.clone_from(&lines);
                lines.into_iter().all(|line| self.lines.remove(&(line, turn)))
            }
        };
        assert!(was_there);
        match waits {
            Waits::Turn => _ = self.to_judge.insert(turn),
            Waits::Older(older) => _ = self.behind.insert((older, end, turn)),
            Waits::Lines(lines) => self.lines.extend(lines.into_iter().map(|line| (line, turn))),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::PoolId;

    use super::*;
    use crate::table::Table;

    fn pg(number: u32) -> PgId {
        PgId { pool: PoolId::FIRST, number }
    }

    /// Returns a queue with this many requests of the user, all to be judged.
    fn queue(count: usize) -> (Queue, Vec<(RequestKey, Turn)>) {
        let (mut queue, mut table) = (Queue::default(), Table::<RequestKey, ()>::new());
        let mut add = |_| {
            let key = table.insert(());
            (key, queue.add(key, true))
        };
        let added = (0..count).map(&mut add).collect();
        (queue, added)
    }

    #[test]
    fn requests_are_judged_by_age_and_those_of_the_core_first() {
        let (mut queue, added) = queue(3);
        let own = added[2].0;
        queue.remove(added[2].1);
        let turn = queue.add(own, false);
        assert_eq!(queue.first(), Some(own));
        queue.remove(turn);
        assert_eq!(queue.first(), Some(added[0].0));
    }

    fn room_of(numbers: &[u32]) -> Vec<Line> {
        numbers.iter().map(|number| Line::Room(pg(*number))).collect()
    }

    #[test]
    fn room_of_a_pg_is_told_to_one_after_the_other_until_one_takes_it() {
        let (mut queue, added) = queue(4);
        for (_, turn) in &added[..3] {
            queue.wait_in(*turn, room_of(&[1]), None);
        }
        queue.wait_in(added[3].1, room_of(&[2]), None);
        assert_eq!(queue.first(), None);
        queue.wake(pg(1));
        assert_eq!(queue.first(), Some(added[0].0));
        queue.wait_in(added[0].1, room_of(&[1]), None);
        assert_eq!(queue.first(), None, "there is no room after all");
        assert!(queue.has_older(added[1].1, Line::Room(pg(1))));
        assert!(!queue.has_older(added[0].1, Line::Room(pg(1))));
        queue.wake(pg(1));
        queue.wait_in(added[0].1, room_of(&[2]), Some(0..10));
        assert_eq!(queue.first(), Some(added[1].0), "the room is left");
        assert_eq!(queue.older_change(added[1].1, &(9..12)), Some(added[0].1));
        queue.wait_for_older(added[1].1, added[0].1, 9..12);
        assert_eq!(queue.first(), Some(added[2].0));
        queue.remove(added[0].1);
        assert_eq!(queue.first(), Some(added[1].0), "what it waited for is gone");
        added.iter().for_each(|(_, turn)| queue.remove(*turn));
        assert!(queue.is_empty() && queue.first().is_none());
    }

    #[test]
    fn who_may_go_on_with_any_of_several_pgs_waits_for_all_of_them() {
        for first in [1, 2] {
            let (mut queue, added) = queue(3);
            queue.wait_in(added[0].1, room_of(&[1, 2]), None);
            queue.wait_in(added[1].1, room_of(&[1]), None);
            queue.wait_in(added[2].1, room_of(&[2]), None);
            queue.wake(pg(first));
            assert_eq!(queue.first(), Some(added[0].0));
            queue.wait_in(added[0].1, room_of(&[3 - first]), None);
            let next = added[first as usize].0;
            assert_eq!(queue.first(), Some(next), "it is done with the PG");
            queue.wake(pg(3 - first));
            assert_eq!(queue.first(), Some(added[0].0));
        }
    }

    #[test]
    fn the_next_of_a_line_goes_on_when_the_first_is_gone() {
        let (mut queue, added) = queue(2);
        queue.wait_in(added[0].1, room_of(&[1]), None);
        queue.wait_in(added[1].1, room_of(&[1]), None);
        queue.remove(added[0].1);
        assert_eq!(queue.first(), Some(added[1].0));
    }

    #[test]
    fn to_be_kept_and_room_are_waited_for_apart() {
        let (mut queue, added) = queue(2);
        queue.wait_in(added[0].1, vec![Line::Keeping(pg(1))], None);
        queue.wait_in(added[1].1, room_of(&[1]), None);
        queue.wake(pg(1));
        queue.wait_in(added[0].1, vec![Line::Keeping(pg(1))], None);
        assert_eq!(queue.first(), Some(added[1].0), "the other one may have the room");
    }

    #[test]
    fn only_what_overlaps_no_more_is_judged_again() {
        let (mut queue, added) = queue(4);
        queue.wait_in(added[0].1, room_of(&[1]), Some(0..100));
        for (index, units) in [(1, 10..20), (2, 15..20), (3, 90..110)] {
            let (_, turn) = added[index];
            let older = queue.older_change(turn, &units).expect("they overlap");
            assert_eq!(older, if index == 2 { added[1].1 } else { added[0].1 });
            queue.wait_for_older(turn, older, units);
        }
        assert_eq!(queue.first(), None);
        queue.wake(pg(1));
        queue.wait_in(added[0].1, room_of(&[1]), Some(19..100));
        assert_eq!(queue.first(), None);
        queue.wake(pg(1));
        queue.wait_in(added[0].1, room_of(&[1]), Some(20..100));
        assert_eq!(queue.first(), Some(added[1].0));
        queue.remove(added[1].1);
        assert_eq!(queue.first(), Some(added[2].0));
        assert_eq!(queue.older_change(added[2].1, &(15..20)), None);
        queue.remove(added[2].1);
        assert_eq!(queue.first(), None);
        queue.remove(added[0].1);
        assert_eq!(queue.first(), Some(added[3].0));
    }
}
