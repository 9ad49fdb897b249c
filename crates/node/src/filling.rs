//! Limits how fast learners are filled (backfill). Clients come first, but backfill never stops.
//!
//! While clients send requests, one block of one PG is copied at a time. After each 100 ms without a client
//! request the number of blocks doubles, up to the limits. PGs take turns, so a stuck learner does not delay
//! the others. In three turns out of four, the first PGs are those that lack copies or that cannot serve
//! until a learner is complete; in the fourth turn, the first PGs are those whose data is only being moved.

use base::{Duration, Time};
use pg::Serving;

use crate::cluster_view::ClusterView;
use crate::pg_table::{PgSlot, PgTable};

/// Maximum number of repairs of learners under way, for one PG and for all PGs together.
const PG_REPAIRS_MAX: usize = 4;
const OSD_REPAIRS_MAX: usize = 16;
/// Length of a turn. The budget is recomputed at the start of each turn.
const TURN: Duration = Duration::from_millis(100);

/// The number of repairs that may be under way, and how they are divided among PGs.
#[derive(Default)]
pub struct Budget {
    /// When the next turn begins; `None` while no learner is being filled.
    due: Option<Time>,
    /// Number of repairs that may be under way at once.
    count: usize,
    /// Number of turns so far.
    turn: usize,
    /// Whether a client's request has arrived since the turn began.
    is_busy: bool,
}

/// A PG whose learners are being filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    slot: PgSlot,
    /// Whether the PG has fewer copies than its pool requires.
    is_degraded: bool,
}

impl Candidate {
    /// Returns `None` if the PG fills no learners. `copies` is the number that its pool requires. A PG in
    /// `Filling` always counts as degraded: it fills learners without serving because some of its
    /// `acting` members are lost.
    fn of(slot: PgSlot, serving: &Serving, acting: usize, copies: usize) -> Option<Candidate> {
        match serving {
            Serving::Active => Some(Candidate { slot, is_degraded: acting < copies }),
            Serving::Filling => Some(Candidate { slot, is_degraded: true }),
            _ => None,
        }
    }
}

impl Budget {
    /// Returns when the next turn begins.
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Records that a client's request has arrived.
    pub fn on_request(&mut self) {
        self.is_busy = true;
    }

    /// Starts the turns, if they are not running: there may be learners to fill.
    pub fn begin(&mut self, now: Time) {
        self.due.get_or_insert(now);
    }

    /// Begins a turn: divides the repairs among the PGs that this OSD leads and that have learners to
    /// fill. Returns how many repairs each PG may have under way in this turn.
    pub fn begin_turn(
        &mut self,
        now: Time,
        pgs: &PgTable,
        cluster: &ClusterView,
    ) -> Vec<(PgSlot, usize)> {
        let candidates = pgs.iter().filter_map(|(slot, pg)| {
            let entry = pg.entry().filter(|entry| !entry.learners.is_empty())?;
            let count = cluster.pool(entry.pg.pool)?.pool.scheme.position_count() as usize;
            let candidate = Candidate::of(slot, pg.serving(), entry.acting_count(), count);
            candidate.filter(|_| cluster.leads(entry))
        });
        self.share(now, candidates.collect())
    }

    /// Returns each candidate's share for the next turn.
    fn share(&mut self, now: Time, candidates: Vec<Candidate>) -> Vec<(PgSlot, usize)> {
        if candidates.is_empty() {
            *self = Budget::default();
            return Vec::new();
        }
        self.due = Some(now + TURN);
        self.count = match std::mem::take(&mut self.is_busy) {
            true => 1,
            false => (self.count * 2).clamp(1, OSD_REPAIRS_MAX),
        };
        self.turn = self.turn.wrapping_add(1);
        let (mut first, mut second): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.is_degraded);
        if self.turn.is_multiple_of(4) {
            std::mem::swap(&mut first, &mut second);
        }
        for part in [&mut first, &mut second] {
            let count = part.len().max(1);
            part.rotate_left(self.turn % count);
        }
        let mut left = self.count;
        let mut give = |candidate: &Candidate| {
            let share = left.min(PG_REPAIRS_MAX);
            left -= share;
            (candidate.slot, share)
        };
        first.iter().chain(&second).map(&mut give).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn candidates(degraded: usize, misplaced: usize) -> Vec<Candidate> {
        let all = (0..degraded + misplaced).map(|index| {
            let slot = PgSlot::new(index);
            Candidate { slot, is_degraded: index < degraded }
        });
        all.collect()
    }

    fn sum(shares: &[(PgSlot, usize)]) -> usize {
        shares.iter().map(|(_, share)| share).sum()
    }

    #[test]
    fn filling_is_slow_while_clients_come_and_fast_when_none_do() {
        let mut budget = Budget::default();
        budget.begin(at(0));
        assert_eq!(budget.deadline(), Some(at(0)));
        let mut sums = Vec::new();
        for turn in 0..12 {
            if turn < 3 || turn == 9 {
                budget.on_request();
            }
            sums.push(sum(&budget.share(at(turn * 100), candidates(20, 0))));
        }
        assert_eq!(sums, [1, 1, 1, 2, 4, 8, 16, 16, 16, 1, 2, 4]);
        assert_eq!(budget.deadline(), Some(at(1_200)));
        assert_eq!(budget.share(at(1_200), Vec::new()), []);
        assert_eq!(budget.deadline(), None, "nothing is left to fill");
    }

    #[test]
    fn one_pg_has_no_more_than_its_limit() {
        let mut budget = Budget::default();
        for turn in 0..10 {
            let shares = budget.share(at(turn), candidates(2, 1));
            assert!(shares.iter().all(|(_, share)| *share <= PG_REPAIRS_MAX), "{shares:?}");
            assert_eq!(shares.len(), 3, "each is told");
        }
        assert_eq!(sum(&budget.share(at(10), candidates(2, 1))), 12);
    }

    #[test]
    fn a_pg_that_waits_for_its_learner_comes_before_those_that_move() {
        let degraded = |serving: &Serving, acting: usize| {
            Candidate::of(PgSlot::new(0), serving, acting, 3).map(|candidate| candidate.is_degraded)
        };
        assert_eq!(degraded(&Serving::Active, 3), Some(false));
        assert_eq!(degraded(&Serving::Active, 2), Some(true));
        assert_eq!(degraded(&Serving::Filling, 3), Some(true), "lost ones are no copies");
        assert_eq!(degraded(&Serving::Asking, 2), None);
    }

    #[test]
    fn every_pg_has_its_turn_and_those_that_lack_copies_have_more() {
        let mut budget = Budget::default();
        let mut turns = [0; 10];
        for turn in 0..400 {
            budget.on_request();
            for (slot, share) in budget.share(at(turn), candidates(5, 5)) {
                turns[slot.index()] += share;
            }
        }
        assert_eq!(turns.iter().sum::<usize>(), 400);
        assert!(turns[..5].iter().all(|count| *count >= 40), "{turns:?}");
        assert!(turns[5..].iter().all(|count| *count >= 10), "{turns:?}");
        assert!(turns[..5].iter().sum::<usize>() == 300, "{turns:?}");
    }
}
