//! The requests of one volume or object pool that are not completely cut into parts.
//!
//! ```text
//!   new ──▶ to be judged, oldest first ──cut──▶ parts
//!              │  ▲        │  ▲
//!     no room of │  a part   │  the older one is cut, or has ended
//!     its PG   ▼  of it ends ▼  │
//!           by PG           behind an older one that waits and changes the same range
//! ```
//!
//! Invariants
//!   1. A request is in one of the three places.
//!   2. A PG with room has nobody waiting, or the oldest of them is to be judged.

use std::collections::{BTreeMap, BTreeSet};

use base::PgId;

use crate::table::RequestKey;

/// The age of a request among those of its volume; the core's own requests come before those of the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn {
    is_users: bool,
    number: u64,
}

impl Turn {
    /// The turn of a request that never waits in a queue.
    pub(crate) const NONE: Turn = Turn { is_users: false, number: 0 };
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    /// For its turn to be judged.
    Turn,
    /// For room of the PG of its next part.
    Room(PgId),
    /// For an older request, which waits for room and changes what this one changes.
    Older,
}

/// A request that waits.
struct Waiting {
    key: RequestKey,
    waits: Waits,
    /// The PG of whose room it was told: if it does not take the room, the next one may have it.
    woken_by: Option<PgId>,
}

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Queue {
    last: u64,
    waiting: BTreeMap<Turn, Waiting>,
    to_judge: BTreeSet<Turn>,
    by_pg: BTreeMap<PgId, BTreeSet<Turn>>,
    behind: BTreeSet<Turn>,
}

impl Queue {
    /// Adds a request, which is to be judged. Returns its turn.
    pub(crate) fn add(&mut self, key: RequestKey, is_users: bool) -> Turn {
        self.last += 1;
        let turn = Turn { is_users, number: self.last };
        self.waiting.insert(turn, Waiting { key, waits: Waits::Turn, woken_by: None });
        self.to_judge.insert(turn);
        turn
    }

    /// Returns the oldest request that is to be judged.
    pub(crate) fn first(&self) -> Option<RequestKey> {
        self.to_judge.first().map(|turn| self.waiting[turn].key)
    }

    /// Returns what a request waits for; `None`: it is not here.
    pub(crate) fn waits(&self, turn: Turn) -> Option<Waits> {
        self.waiting.get(&turn).map(|it| it.waits)
    }

    /// Returns the requests that are older than this one, and were judged before it.
    pub(crate) fn older(&self, turn: Turn) -> impl Iterator<Item = RequestKey> + '_ {
        let older = self.waiting.range(..turn);
        older.filter(|(_, it)| it.waits != Waits::Turn).map(|(_, it)| it.key)
    }

    /// Lets a request that was judged wait for room of the PG of its next part.
    pub(crate) fn wait_for_room(&mut self, turn: Turn, pg: PgId) {
        let woken_by = self.set(turn, Waits::Room(pg)).filter(|other| *other != pg);
        woken_by.into_iter().for_each(|other| self.wake(other));
    }

    /// Lets a request that was judged wait for an older one.
    pub(crate) fn wait_for_older(&mut self, turn: Turn) {
        let woken_by = self.set(turn, Waits::Older);
        woken_by.into_iter().for_each(|pg| self.wake(pg));
    }

    /// Lets the oldest request be judged that waits for room of the PG.
    pub(crate) fn wake(&mut self, pg: PgId) {
        if let Some(turn) = self.by_pg.get(&pg).and_then(|turns| turns.first()).copied() {
            self.set(turn, Waits::Turn);
            self.waiting.get_mut(&turn).expect("moved just now").woken_by = Some(pg);
        }
    }

    /// Lets all requests be judged that wait for room of the PG.
    pub(crate) fn wake_all(&mut self, pg: PgId) {
        for turn in self.by_pg.get(&pg).cloned().unwrap_or_default() {
            self.set(turn, Waits::Turn);
        }
    }

    /// Removes a request, if it is here. What waits for older ones is judged again.
    pub(crate) fn remove(&mut self, turn: Turn) {
        if !self.waiting.contains_key(&turn) {
            return;
        }
        let woken_by = self.set(turn, Waits::Turn);
        self.to_judge.remove(&turn);
        self.waiting.remove(&turn);
        self.judge_behind();
        woken_by.into_iter().for_each(|pg| self.wake(pg));
    }

    /// Lets all requests be judged that wait for older ones.
    pub(crate) fn judge_behind(&mut self) {
        for other in self.behind.clone() {
            self.set(other, Waits::Turn);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves a request from one place to another. Returns the PG that had woken it.
    fn set(&mut self, turn: Turn, waits: Waits) -> Option<PgId> {
        let it = self.waiting.get_mut(&turn).expect("the caller knows it");
        let (before, woken_by) = (std::mem::replace(&mut it.waits, waits), it.woken_by.take());
        let was_there = match before {
            Waits::Turn => self.to_judge.remove(&turn),
            Waits::Older => self.behind.remove(&turn),
            Waits::Room(pg) => {
                let turns = self.by_pg.get_mut(&pg).expect("it waits there");
                let was_there = turns.remove(&turn);
                if turns.is_empty() {
                    self.by_pg.remove(&pg);
                }
                was_there
            }
        };
        assert!(was_there);
        match waits {
            Waits::Turn => self.to_judge.insert(turn),
            Waits::Room(pg) => self.by_pg.entry(pg).or_default().insert(turn),
            Waits::Older => self.behind.insert(turn),
        };
        woken_by
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

    #[test]
    fn room_of_a_pg_is_told_to_one_after_the_other_until_one_takes_it() {
        let (mut queue, added) = queue(4);
        for (_, turn) in &added[..3] {
            queue.wait_for_room(*turn, pg(1));
        }
        queue.wait_for_room(added[3].1, pg(2));
        assert_eq!(queue.first(), None);
        queue.wake(pg(1));
        assert_eq!(queue.first(), Some(added[0].0));
        queue.wait_for_room(added[0].1, pg(1));
        assert_eq!(queue.first(), None, "there is no room after all");
        queue.wake(pg(1));
        queue.wait_for_room(added[0].1, pg(2));
        assert_eq!(queue.first(), Some(added[1].0), "the room is left");
        queue.wait_for_older(added[1].1);
        assert_eq!(queue.first(), Some(added[2].0));
        assert!(queue.older(added[2].1).eq([added[0].0, added[1].0]));
        queue.remove(added[0].1);
        assert_eq!(queue.first(), Some(added[1].0), "what it waited for is gone");
        added.iter().for_each(|(_, turn)| queue.remove(*turn));
        assert!(queue.is_empty() && queue.first().is_none());
    }
}
