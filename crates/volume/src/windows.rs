//! What one volume or object pool has in flight: a window for each PG inside the window of the whole.
//!
//! A PG that cannot answer fills its own window and no other. While requests wait for the window of the whole, a PG
//! may have in flight what it ends in two checks. The parts of one that has more count for that PG alone, so however
//! many PGs are silent or slow, the others go on.
//!
//! Invariants
//!   1. The parts in flight of PGs within their limits stay within `PARTS_IN_FLIGHT_MAX` and `BYTES_IN_FLIGHT_MAX`, those
//!      of each PG within its share of both; a single part may exceed a limit of bytes.
//!   2. A PG with as many parts as its limit, or more, gets none.

use std::collections::BTreeMap;

use base::{Duration, PgId};

/// Maximum number of parts in flight at a time.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 256;
/// Maximum number of bytes in flight at a time; a single part may exceed the limit.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 32 << 20;
/// A PG may have this part of what the volume may have in flight (a quarter), or as much as the pool's PGs
/// share, if it has fewer of them.
const PG_SHARE_MIN: u32 = 4;
/// How often it is counted what PGs have ended, while requests wait for the window of the whole.
pub(crate) const STALL_CHECK_TIME: Duration = Duration::from_millis(500);

/// What is in flight, by PG.
#[derive(Default)]
pub(crate) struct Windows {
    by_pg: BTreeMap<PgId, Window>,
    /// What PGs within their limits have in flight.
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
    /// Whether the first part was sent since the last check.
    is_new: bool,
    /// How many parts have ended since the last check.
    ended: usize,
    /// How many parts the PG may have, by what it ended before the last check; `None`: its share.
    limit: Option<usize>,
}

/// Whether one more part may be sent to a PG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Free,
    /// The PG has its share in flight, or its limit.
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

    fn replace(&mut self, before: Load, after: Load) {
        self.parts = self.parts - before.parts + after.parts;
        self.bytes = self.bytes - before.bytes + after.bytes;
    }
}

impl Window {
    /// Returns how many parts the PG may have. What has ended since the last check counts, too: a PG that
    /// answers again need not wait for the next check.
    fn limit(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| limit.max(2 * self.ended))
    }

    /// Returns what counts for the whole.
    fn counted(&self) -> Load {
        if self.load.parts <= self.limit() { self.load } else { Load::default() }
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
            && (window.load.parts >= window.limit() || !window.load.fits(weight, shares))
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
        let new = || Window { is_new: true, ..Window::default() };
        let window = self.by_pg.entry(pg).or_insert_with(new);
        assert!(window.load.parts < window.limit());
        window.lazy_parts += usize::from(lazy);
        for load in [&mut window.load, &mut self.total] {
            load.parts += 1;
            load.bytes += weight;
        }
    }

    /// Stops counting a part that has ended.
    pub(crate) fn leave(&mut self, pg: PgId, weight: u64, lazy: bool) {
        let window = self.by_pg.get_mut(&pg).expect("the part was counted");
        assert!(window.load.parts > 0);
        assert!(window.load.bytes >= weight);
        let before = window.counted();
        window.ended += 1;
        window.lazy_parts -= usize::from(lazy);
        window.load.parts -= 1;
        window.load.bytes -= weight;
        self.total.replace(before, window.counted());
        if window.load.parts == 0 {
            self.by_pg.remove(&pg);
        }
    }

    /// Sets the limit of each PG: twice what it ended since the last check. Returns whether a PG has reached
    /// its limit, so that another check is due.
    pub(crate) fn check_stalls(&mut self) -> bool {
        let mut is_limited = false;
        for window in self.by_pg.values_mut() {
            let before = window.counted();
            let (is_new, ended) =
                (std::mem::take(&mut window.is_new), std::mem::take(&mut window.ended));
            window.limit = (!is_new).then_some(2 * ended);
            is_limited |= window.load.parts >= window.limit();
            self.total.replace(before, window.counted());
        }
        is_limited
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
        for _ in 0..40 {
            windows.leave(pg(4), 1, false);
        }
        assert!(windows.check_stalls());
        assert_eq!(windows.room(pg(1), 0, 4), Room::NoneOfPg);
        assert_eq!(windows.total.parts, 24, "those of the PG that answers");
        assert_eq!(fill(&mut windows, pg(5), 1), 64);
        windows.leave(pg(1), 1, false);
        assert_eq!(windows.room(pg(1), 0, 4), Room::NoneOfPg, "it may have no more than two");
        for _ in 0..21 {
            windows.leave(pg(1), 1, false);
        }
        assert_eq!(windows.room(pg(1), 0, 4), Room::Free, "it answers again");
        for number in 1..6 {
            while windows.by_pg.contains_key(&pg(number)) {
                windows.leave(pg(number), 1, false);
            }
        }
        assert!(windows.is_empty());
        assert_eq!((windows.total.parts, windows.total.bytes), (0, 0));
    }

    #[test]
    fn slow_pgs_hold_no_more_of_the_whole_than_they_end_in_two_checks() {
        let mut windows = Windows::default();
        let slow = 1..5;
        for number in slow.clone() {
            assert_eq!(fill(&mut windows, pg(number), 1 << 17), 64);
        }
        assert_eq!(windows.room(pg(5), 0, 4), Room::NoneOfAll);
        for check in 0..100 {
            // What waits for them is older, and takes the room first.
            for number in slow.clone() {
                windows.leave(pg(number), 1 << 17, false);
                fill(&mut windows, pg(number), 1 << 17);
            }
            let is_limited = windows.check_stalls();
            if check == 0 {
                continue;
            }
            assert!(is_limited);
            assert!(windows.total.parts <= 8);
            assert_eq!(fill(&mut windows, pg(5), 1 << 17), 64, "in check {check}");
            while windows.by_pg.contains_key(&pg(5)) {
                windows.leave(pg(5), 1 << 17, false);
            }
        }
        assert!(slow.clone().all(|number| windows.by_pg[&pg(number)].load.parts <= 2));
        // They are fast again.
        for _ in 0..200 {
            windows.leave(pg(1), 1 << 17, false);
            fill(&mut windows, pg(1), 1 << 17);
        }
        assert_eq!(windows.by_pg[&pg(1)].load.parts, 64);
    }
}
