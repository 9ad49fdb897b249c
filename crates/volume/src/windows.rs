//! What one volume or object pool has in flight: a window for each PG inside the window of the whole.
//!
//! A PG that cannot answer fills its own window and no other. The parts of a PG that has answered nothing for a
//! while count for that PG alone, so however many PGs do not answer, the others go on.
//!
//! Invariants
//!   1. The parts in flight of PGs that answer stay within `PARTS_IN_FLIGHT_MAX` and `BYTES_IN_FLIGHT_MAX`, those of
//!      each PG within its share of both; a single part may exceed a limit of bytes.
//!   2. A PG that does not answer gets no more parts until one of those that it has ends.

use std::collections::BTreeMap;

use base::{Duration, PgId};

/// Maximum number of parts in flight at a time.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 256;
/// Maximum number of bytes in flight at a time; a single part may exceed the limit.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 32 << 20;
/// A PG may have this part of what the volume may have in flight (a quarter), or as much as the pool's PGs
/// share, if it has fewer of them.
const PG_SHARE_MIN: u32 = 4;
/// How often PGs are checked for whether they answer, while requests wait for the window of the whole.
pub(crate) const STALL_CHECK_TIME: Duration = Duration::from_millis(500);

/// What is in flight, by PG.
#[derive(Default)]
pub(crate) struct Windows {
    by_pg: BTreeMap<PgId, Window>,
    /// What PGs that answer have in flight.
    total: Load,
}

/// A number of parts and their bytes.
#[derive(Clone, Copy, Default)]
struct Load {
    parts: usize,
    bytes: u64,
}

/// What one PG has in flight: at least one part.
#[derive(Default)]
struct Window {
    load: Load,
    /// How many of the parts are changes that may have to be kept.
    lazy_parts: usize,
    /// Whether a part ended since the last check, or the first one was sent.
    has_moved: bool,
    /// Whether the PG does not answer: its parts do not count for the whole.
    is_stalled: bool,
}

/// Whether one more part may be sent to a PG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Free,
    /// The PG has its share in flight, or does not answer.
    NoneOfPg,
    /// All PGs together have as much in flight as they may.
    NoneOfAll,
}

impl Load {
    fn fits(self, weight: u64, share: u32) -> bool {
        let (parts, bytes) =
            (PARTS_IN_FLIGHT_MAX / share as usize, BYTES_IN_FLIGHT_MAX / u64::from(share));
        self.parts < parts && (self.bytes + weight <= bytes || self.parts == 0)
    }
}

/// Returns into how many shares a limit is divided in a pool with so many PGs: a PG may have one.
pub(crate) fn share_count(pg_count: u32) -> u32 {
    pg_count.clamp(1, PG_SHARE_MIN)
}

impl Windows {
    /// Whether one more part of this weight may be sent to the PG.
    pub(crate) fn room(&self, pg: PgId, weight: u64, shares: u32) -> Room {
        if let Some(window) = self.by_pg.get(&pg)
            && (window.is_stalled || !window.load.fits(weight, shares))
        {
            return Room::NoneOfPg;
        }
        match self.total.fits(weight, 1) {
            true => Room::Free,
            false => Room::NoneOfAll,
        }
    }

    /// Returns the number of bytes that a PG has in flight.
    pub(crate) fn bytes_of(&self, pg: PgId) -> u64 {
        self.by_pg.get(&pg).map_or(0, |window| window.load.bytes)
    }

    /// Whether a PG has changes in flight that may have to be kept.
    pub(crate) fn has_lazy(&self, pg: PgId) -> bool {
        self.by_pg.get(&pg).is_some_and(|window| window.lazy_parts > 0)
    }

    /// Counts a part. Requires: there is room for it.
    pub(crate) fn enter(&mut self, pg: PgId, weight: u64, lazy: bool) {
        let new = || Window { has_moved: true, ..Window::default() };
        let window = self.by_pg.entry(pg).or_insert_with(new);
        assert!(!window.is_stalled);
        window.lazy_parts += usize::from(lazy);
        for load in [&mut window.load, &mut self.total] {
            load.parts += 1;
            load.bytes += weight;
        }
    }

    /// Stops counting a part that has ended.
    pub(crate) fn leave(&mut self, pg: PgId, weight: u64, lazy: bool) {
        let window = self.by_pg.get_mut(&pg).expect("the part was counted");
        if std::mem::take(&mut window.is_stalled) {
            self.total.parts += window.load.parts;
            self.total.bytes += window.load.bytes;
        }
        window.has_moved = true;
        window.lazy_parts -= usize::from(lazy);
        for load in [&mut window.load, &mut self.total] {
            assert!(load.parts > 0);
            assert!(load.bytes >= weight);
            load.parts -= 1;
            load.bytes -= weight;
        }
        if window.load.parts == 0 {
            self.by_pg.remove(&pg);
        }
    }

    /// From now on, leaves out of the whole what PGs have in flight of which no part has ended since the last
    /// check. Returns whether there is such a PG that was not left out before.
    pub(crate) fn check_stalls(&mut self) -> bool {
        let mut has_changed = false;
        for window in self.by_pg.values_mut() {
            if !std::mem::take(&mut window.has_moved) && !window.is_stalled {
                (window.is_stalled, has_changed) = (true, true);
                self.total.parts -= window.load.parts;
                self.total.bytes -= window.load.bytes;
            }
        }
        has_changed
    }

    /// Whether nothing is in flight.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_pg.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use base::PoolId;

    use super::*;

    fn pg(number: u32) -> PgId {
        PgId { pool: PoolId::FIRST, number }
    }

    fn fill(windows: &mut Windows, of: PgId, weight: u64) -> usize {
        (0..)
            .take_while(|_| {
                let is_free = windows.room(of, weight, 4) == Room::Free;
                if is_free {
                    windows.enter(of, weight, false);
                }
                is_free
            })
            .count()
    }

    #[test]
    fn a_pg_fills_its_share_and_all_together_the_whole() {
        let mut windows = Windows::default();
        assert_eq!(fill(&mut windows, pg(1), 1), 64);
        assert_eq!(windows.room(pg(1), 0, 4), Room::NoneOfPg);
        assert_eq!((2..5).map(|number| fill(&mut windows, pg(number), 1)).sum::<usize>(), 192);
        assert_eq!(windows.room(pg(5), 0, 4), Room::NoneOfAll);
        windows.leave(pg(2), 1, false);
        assert_eq!(windows.room(pg(5), 0, 4), Room::Free);
        let mut windows = Windows::default();
        assert_eq!(fill(&mut windows, pg(1), 3 << 20), 2);
        assert_eq!(fill(&mut windows, pg(2), 30 << 20), 0, "more bytes than are left");
        windows.leave(pg(1), 3 << 20, false);
        windows.leave(pg(1), 3 << 20, false);
        assert_eq!(fill(&mut windows, pg(2), 40 << 20), 1, "a large part goes alone");
    }

    #[test]
    fn a_small_pool_shares_by_its_pgs() {
        assert_eq!([0, 1, 2, 3, 4, 5, 1000].map(share_count), [1, 1, 2, 3, 4, 4, 4]);
    }

    #[test]
    fn pgs_that_do_not_answer_do_not_count_for_the_whole() {
        let mut windows = Windows::default();
        for number in 1..5 {
            assert_eq!(fill(&mut windows, pg(number), 1), 64);
        }
        assert!(!windows.check_stalls(), "all are new");
        windows.leave(pg(4), 1, false);
        assert!(windows.check_stalls());
        assert_eq!(windows.room(pg(1), 0, 4), Room::NoneOfPg);
        assert_eq!(fill(&mut windows, pg(5), 1), 64);
        windows.leave(pg(1), 1, false);
        assert_eq!(windows.room(pg(1), 0, 4), Room::Free, "it answers again");
        for number in 1..6 {
            while windows.by_pg.contains_key(&pg(number)) {
                windows.leave(pg(number), 1, false);
            }
        }
        assert!(windows.is_empty());
        assert_eq!((windows.total.parts, windows.total.bytes), (0, 0));
    }
}
