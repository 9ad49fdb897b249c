//! Chooses the primary of each PG among its OSDs. "To lead" means here: to be the primary.
//!
//! Invariants
//!   1. The number of PGs that an OSD leads is the number it is in, divided by the number of copies,
//!      rounded down or up.
//!   2. A PG keeps its primary where invariant 1 allows it.
//!   3. Only members that are allowed to lead are chosen. If some members are not allowed to, invariant 1
//!      holds as far as possible.

use std::collections::VecDeque;

/// Puts the primary of each PG first in its set; the others stay in order. `room`: how many sets
/// each bin is in; `now`: the bin that leads each PG now; `may_lead`: the bins of each set that may lead.
pub(crate) fn elect(
    room: &[usize],
    copies: usize,
    now: &[Option<usize>],
    may_lead: &[Vec<usize>],
    sets: &mut [Vec<usize>],
) {
    let mut leads = Leads::new(room, copies, sets.len());
    for (pg, set) in may_lead.iter().enumerate() {
        if let Some(primary) = now[pg].filter(|bin| set.contains(bin)) {
            leads.set(pg, primary);
        }
    }
    for (pg, set) in may_lead.iter().enumerate() {
        if leads.primaries[pg].is_none() {
            // Choose the OSD with the smallest share of the PGs that it may lead; among equals, take turns.
            let load = |bin: &usize| leads.pgs[*bin].len() * 1024 / leads.most[*bin].max(1);
            let turn = |at: usize| (at + set.len() - pg % set.len()) % set.len();
            let (_, bin) = (set.iter().enumerate())
                .min_by_key(|(at, bin)| (load(bin), turn(*at)))
                .expect("each set has a bin that may lead");
            leads.set(pg, *bin);
        }
    }
    leads.level(may_lead);
    for (set, primary) in sets.iter_mut().zip(leads.primaries) {
        let primary = primary.expect("each PG got one");
        let at = set.iter().position(|bin| *bin == primary).expect("it is of the set");
        set[..=at].rotate_right(1);
    }
}

struct Leads {
    /// Minimum and maximum number of PGs that each bin should lead.
    least: Vec<usize>,
    most: Vec<usize>,
    primaries: Vec<Option<usize>>,
    /// PGs that each bin leads.
    pgs: Vec<Vec<usize>>,
}

impl Leads {
    fn new(room: &[usize], copies: usize, pg_count: usize) -> Leads {
        Leads {
            least: room.iter().map(|count| count / copies).collect(),
            most: room.iter().map(|count| count.div_ceil(copies)).collect(),
            primaries: vec![None; pg_count],
            pgs: vec![Vec::new(); room.len()],
        }
    }

    fn set(&mut self, pg: usize, primary: usize) {
        if let Some(before) = self.primaries[pg].replace(primary) {
            let at = self.pgs[before].iter().position(|other| *other == pg);
            self.pgs[before].swap_remove(at.expect("a primary leads"));
        }
        self.pgs[primary].push(pg);
    }

    /// Balances how many PGs the bins lead. If each bin led a fraction 1/copies of each of its PGs, all
    /// shares would be exact. So if all members may lead, a solution in whole numbers exists within the
    /// limits, and a sequence of moves reaches it.
    fn level(&mut self, sets: &[Vec<usize>]) {
        for bin in 0..self.pgs.len() {
            while self.pgs[bin].len() > self.most[bin] {
                let is_below = |leads: &Leads, to: usize| leads.pgs[to].len() < leads.most[to];
                if !self.hand_on(sets, &[bin], is_below) {
                    break;
                }
            }
        }
        let bins = 0..self.pgs.len();
        while bins.clone().any(|bin| self.pgs[bin].len() < self.least[bin]) {
            let may_lead_fewer = |bin: &usize| self.pgs[*bin].len() > self.least[*bin];
            let from: Vec<usize> = bins.clone().filter(may_lead_fewer).collect();
            if !self.hand_on(sets, &from, |leads, to| leads.pgs[to].len() < leads.least[to]) {
                break;
            }
        }
    }

    /// Moves the lead of one PG from a bin of `from` to a bin that `may_take` it, with the fewest changes:
    /// the first bin passes a PG to another bin of the PG's set, that bin passes on another PG, and so on.
    /// Returns whether such a sequence was found.
    fn hand_on(
        &mut self,
        sets: &[Vec<usize>],
        from: &[usize],
        may_take: impl Fn(&Leads, usize) -> bool,
    ) -> bool {
        let mut is_seen = vec![false; self.pgs.len()];
        // For each bin, the PG whose lead would move to the bin.
        let mut comes: Vec<Option<usize>> = vec![None; self.pgs.len()];
        let mut queue: VecDeque<usize> = from.iter().copied().collect();
        for bin in from {
            is_seen[*bin] = true;
        }
        while let Some(bin) = queue.pop_front() {
            if comes[bin].is_some() && may_take(self, bin) {
                let mut to = bin;
                while let Some(pg) = comes[to] {
                    let before = self.primaries[pg].expect("each PG got one");
                    self.set(pg, to);
                    to = before;
                }
                return true;
            }
            for pg in &self.pgs[bin] {
                for to in &sets[*pg] {
                    if !std::mem::replace(&mut is_seen[*to], true) {
                        comes[*to] = Some(*pg);
                        queue.push_back(*to);
                    }
                }
            }
        }
        false
    }
}
