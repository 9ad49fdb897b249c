//! Chooses the OSDs of each PG, as a minimum-cost flow.
//!
//! ```text
//!            copies        1             1               capacity
//!   source ────────▶ PG ──────▶ slot ────────▶ OSD ─────────────────▶ sink
//!                        (PG and domain)  costs 0 where the copy is now, otherwise 1
//! ```
//!
//! The algorithm repeatedly finds the cheapest path for one more copy until all copies are placed (successive
//! shortest paths). A path may undo earlier placements: a full OSD gives up a copy, whose PG gets another
//! place. Arcs from a PG to all OSDs are not stored but computed from the state: memory use is proportional
//! to the map.
//!
//! Invariants
//!   1. After every step, no other placement with the same number of copies costs less. So no cycle of arcs
//!      has a negative cost, and the cost of paths never decreases from step to step.
//!   2. A PG has at most one copy in a domain; an OSD has at most as many copies as its capacity.

use std::collections::VecDeque;

/// Number of different orders of the domains in which free places are assigned. For each further copy, an OSD
/// shares PGs with about this many other OSDs. More orders would spread recovery work over more OSDs, but
/// need more connections.
const ARRANGEMENT_COUNT: usize = 8;
/// Cost of a node to which no path is known.
const FAR: i32 = i32::MAX;
/// Parent of a node at which a path begins.
const NO_PARENT: usize = usize::MAX;

/// Places `copies` copies of each PG. `domains` and `capacities` are given for each bin (OSD);
/// `held` lists the bins that each PG has now. The capacities sum up to the number of all copies,
/// and within a domain at most to one for each PG. The returned bins of a PG are in order.
pub(crate) fn assign(
    domains: &[usize],
    capacities: &[usize],
    copies: usize,
    held: &[Vec<usize>],
) -> Vec<Vec<usize>> {
    let mut flow = Flow::new(domains, capacities, copies, held);
    flow.keep();
    let mut cost_min = 0;
    let mut search = Search::new(&flow);
    while flow.placed < held.len() * copies {
        let (cost, end) = search.cheapest(&flow, cost_min);
        assert!(cost >= cost_min, "paths never get cheaper");
        let is_first_move = cost_min == 0 && cost > 0;
        cost_min = cost;
        if is_first_move {
            flow.deal();
        } else {
            flow.apply(&search.path(&flow, end));
        }
    }
    for bins in &mut flow.placed_in {
        bins.sort_unstable();
    }
    flow.placed_in
}

struct Flow<'a> {
    domains: &'a [usize],
    copies: usize,
    held: &'a [Vec<usize>],
    bins_of_domain: Vec<Vec<usize>>,
    /// The bins that hold a copy of each PG.
    placed_in: Vec<Vec<usize>>,
    /// The PGs that have a copy in each bin.
    pgs: Vec<Vec<usize>>,
    /// Number of copies that still fit, by bin and by domain.
    room: Vec<usize>,
    room_of_domain: Vec<usize>,
    /// Number of copies placed.
    placed: usize,
}

impl<'a> Flow<'a> {
    fn new(
        domains: &'a [usize],
        capacities: &[usize],
        copies: usize,
        held: &'a [Vec<usize>],
    ) -> Flow<'a> {
        let domain_count = domains.iter().max().map_or(0, |last| last + 1);
        let mut bins_of_domain = vec![Vec::new(); domain_count];
        let mut room_of_domain = vec![0; domain_count];
        for (bin, domain) in domains.iter().enumerate() {
            bins_of_domain[*domain].push(bin);
            room_of_domain[*domain] += capacities[bin];
        }
        assert_eq!(capacities.iter().sum::<usize>(), held.len() * copies);
        assert!(room_of_domain.iter().all(|room| *room <= held.len()));
        Flow {
            domains,
            copies,
            held,
            bins_of_domain,
            placed_in: vec![Vec::new(); held.len()],
            pgs: vec![Vec::new(); domains.len()],
            room: capacities.to_vec(),
            room_of_domain,
            placed: 0,
        }
    }

    fn cost(&self, pg: usize, bin: usize) -> i32 {
        i32::from(!self.held[pg].contains(&bin))
    }

    fn uses(&self, pg: usize, domain: usize) -> bool {
        self.placed_in[pg].iter().any(|bin| self.domains[*bin] == domain)
    }

    fn put(&mut self, pg: usize, bin: usize) {
        assert!(self.room[bin] > 0);
        self.room[bin] -= 1;
        self.room_of_domain[self.domains[bin]] -= 1;
        self.placed += 1;
        self.pgs[bin].push(pg);
        self.placed_in[pg].push(bin);
    }

    fn take(&mut self, pg: usize, bin: usize) {
        self.room[bin] += 1;
        self.room_of_domain[self.domains[bin]] += 1;
        self.placed -= 1;
        let at = self.pgs[bin].iter().position(|other| *other == pg).expect("it is placed there");
        self.pgs[bin].swap_remove(at);
        let at = self.placed_in[pg].iter().position(|other| *other == bin).expect("as above");
        self.placed_in[pg].swap_remove(at);
    }

    /// Keeps copies where they are, up to the capacity of each bin. Bins above their capacity take turns to
    /// give up one copy: that of the PG that has lost the fewest copies.
    fn keep(&mut self) {
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); self.domains.len()];
        for (pg, bins) in self.held.iter().enumerate() {
            let mut kept: Vec<usize> = Vec::new();
            for bin in bins {
                let is_free = |other: &usize| self.domains[*other] != self.domains[*bin];
                if kept.len() < self.copies && kept.iter().all(is_free) {
                    kept.push(*bin);
                    wanted[*bin].push(pg);
                }
            }
        }
        let mut lost_count = vec![0usize; self.held.len()];
        let mut is_over = true;
        while is_over {
            is_over = false;
            for (bin, pgs) in wanted.iter_mut().enumerate() {
                if pgs.len() > self.room[bin] {
                    let least = (0..pgs.len()).min_by_key(|at| (lost_count[pgs[*at]], pgs[*at]));
                    let pg = pgs.swap_remove(least.expect("it has more than fit"));
                    lost_count[pg] += 1;
                    is_over = true;
                }
            }
        }
        for (bin, pgs) in wanted.into_iter().enumerate() {
            pgs.into_iter().for_each(|pg| self.put(pg, bin));
        }
    }

    /// Assigns free places to PGs while no other copy has to move for it: each to the domain with the most
    /// room, and there to the bin with the most room. Each placement is a path that costs one move.
    fn deal(&mut self) {
        let domain_count = self.bins_of_domain.len();
        for pg in 0..self.held.len() {
            // The order of the domains differs in each round over all domains; after some rounds, so does the
            // order of their bins.
            let lap = pg * self.copies / domain_count;
            let of_domains = lap % ARRANGEMENT_COUNT;
            let of_bins = lap / ARRANGEMENT_COUNT % ARRANGEMENT_COUNT;
            while self.placed_in[pg].len() < self.copies {
                let free = (0..domain_count)
                    .filter(|domain| self.room_of_domain[*domain] > 0 && !self.uses(pg, *domain));
                let roomiest = free.max_by_key(|domain| {
                    (self.room_of_domain[*domain], mixed(*domain, of_domains))
                });
                let Some(domain) = roomiest else { break };
                let bins = self.bins_of_domain[domain].iter();
                let bin = bins.max_by_key(|bin| (self.room[**bin], mixed(**bin, of_bins)));
                self.put(pg, *bin.expect("a domain with room has bins"));
            }
        }
    }

    /// Moves copies along a path of nodes, from a PG that lacks a copy to a bin with room.
    fn apply(&mut self, path: &[Node]) {
        // First remove copies, then add them: a slot must be free before it is filled again.
        let mut comes = Vec::new();
        let mut at: Option<usize> = None;
        for node in path {
            match *node {
                Node::Pg(pg) => at = Some(pg),
                Node::Slot { pg, bin } => {
                    self.take(pg, bin);
                    at = Some(pg);
                }
                Node::Bin(bin) => comes.push((at.expect("a path begins at a PG"), bin)),
            }
        }
        for (pg, bin) in comes {
            assert!(!self.uses(pg, self.domains[bin]));
            self.put(pg, bin);
        }
    }
}

/// Returns a pseudo-random number, the same for the same input.
fn mixed(index: usize, arrangement: usize) -> u64 {
    let mut value = (index as u64 + 1) ^ ((arrangement as u64 + 1) << 32);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[derive(Clone, Copy)]
enum Node {
    /// A PG that may take a place in a domain it does not use.
    Pg(usize),
    /// A copy that its bin gives up: it may go to another bin of its domain, or leave the domain.
    Slot { pg: usize, bin: usize },
    /// A bin that receives a copy, and either has room or gives one up.
    Bin(usize),
}

/// A search for the cheapest path: labels are corrected until none can be improved (costs may be negative:
/// undoing the move of a copy refunds its cost).
struct Search {
    pg_count: usize,
    bin_count: usize,
    copies: usize,
    /// For each node: cost of the best known path to it, and the previous node.
    costs: Vec<i32>,
    parents: Vec<usize>,
    queue: VecDeque<usize>,
    is_queued: Vec<bool>,
    /// An upper bound of the costs of all bins.
    bin_cost_max: i32,
}

impl Search {
    fn new(flow: &Flow<'_>) -> Search {
        let (pg_count, bin_count) = (flow.held.len(), flow.domains.len());
        let node_count = pg_count * (1 + flow.copies) + bin_count;
        Search {
            pg_count,
            bin_count,
            copies: flow.copies,
            costs: vec![FAR; node_count],
            parents: vec![NO_PARENT; node_count],
            queue: VecDeque::new(),
            is_queued: vec![false; node_count],
            bin_cost_max: FAR,
        }
    }

    /// Returns the number of a slot's node. Nodes are numbered: first PGs, then bins, then slots by
    /// the bin's index in its PG's list.
    fn slot_number(&self, flow: &Flow<'_>, pg: usize, bin: usize) -> usize {
        let at = flow.placed_in[pg].iter().position(|other| *other == bin);
        self.pg_count + self.bin_count + pg * self.copies + at.expect("the bin has this PG")
    }

    fn node(&self, flow: &Flow<'_>, number: usize) -> Node {
        if number < self.pg_count {
            return Node::Pg(number);
        }
        let number = number - self.pg_count;
        if number < self.bin_count {
            return Node::Bin(number);
        }
        let slot = number - self.bin_count;
        let pg = slot / self.copies;
        Node::Slot { pg, bin: flow.placed_in[pg][slot % self.copies] }
    }

    /// Returns the cost of the cheapest path from a PG that lacks a copy to a bin with room, and the node of
    /// that bin. Requires: no path costs less than `cost_min`.
    fn cheapest(&mut self, flow: &Flow<'_>, cost_min: i32) -> (i32, usize) {
        self.costs.fill(FAR);
        self.parents.fill(NO_PARENT);
        self.is_queued.fill(false);
        self.queue.clear();
        self.bin_cost_max = FAR;
        for pg in 0..self.pg_count {
            if flow.placed_in[pg].len() < flow.copies {
                self.costs[pg] = 0;
                self.queue.push_back(pg);
                self.is_queued[pg] = true;
            }
        }
        while let Some(number) = self.queue.pop_front() {
            self.is_queued[number] = false;
            let cost = self.costs[number];
            match self.node(flow, number) {
                Node::Pg(pg) => self.leave_pg(flow, pg, cost),
                Node::Slot { pg, bin } => self.leave_slot(flow, number, pg, bin, cost),
                Node::Bin(bin) if flow.room[bin] > 0 => {
                    if cost == cost_min {
                        return (cost, number);
                    }
                }
                Node::Bin(bin) => {
                    for pg in &flow.pgs[bin] {
                        let slot = self.slot_number(flow, *pg, bin);
                        self.improve(slot, number, cost - flow.cost(*pg, bin));
                    }
                }
            }
        }
        let ends = (0..self.bin_count).filter(|bin| flow.room[*bin] > 0);
        let end = ends.map(|bin| self.pg_count + bin).min_by_key(|number| self.costs[*number]);
        let end = end.expect("what is not placed has room somewhere");
        assert!(self.costs[end] < FAR, "capacities of domains leave a way");
        (self.costs[end], end)
    }

    fn leave_pg(&mut self, flow: &Flow<'_>, pg: usize, cost: i32) {
        for bin in &flow.held[pg] {
            if !flow.uses(pg, flow.domains[*bin]) {
                self.improve(self.pg_count + bin, pg, cost);
            }
        }
        if cost + 1 >= self.bin_cost_max {
            return;
        }
        self.bin_cost_max = cost + 1;
        for bin in 0..self.bin_count {
            if !flow.uses(pg, flow.domains[bin]) {
                self.improve(self.pg_count + bin, pg, cost + 1);
            } else {
                self.bin_cost_max = self.bin_cost_max.max(self.costs[self.pg_count + bin]);
            }
        }
    }

    fn leave_slot(&mut self, flow: &Flow<'_>, number: usize, pg: usize, bin: usize, cost: i32) {
        self.improve(pg, number, cost);
        if cost >= self.bin_cost_max {
            return;
        }
        for other in &flow.bins_of_domain[flow.domains[bin]] {
            if *other != bin {
                self.improve(self.pg_count + other, number, cost + flow.cost(pg, *other));
            }
        }
    }

    fn improve(&mut self, number: usize, parent: usize, cost: i32) {
        if cost >= self.costs[number] {
            return;
        }
        let is_cheap = cost <= self.costs[parent];
        self.costs[number] = cost;
        self.parents[number] = parent;
        if self.is_queued[number] {
            return;
        }
        self.is_queued[number] = true;
        if is_cheap {
            self.queue.push_front(number);
        } else {
            self.queue.push_back(number);
        }
    }

    /// Returns the path found to this node, from its beginning.
    fn path(&self, flow: &Flow<'_>, end: usize) -> Vec<Node> {
        let mut path = Vec::new();
        let mut number = end;
        while number != NO_PARENT {
            path.push(self.node(flow, number));
            number = self.parents[number];
        }
        path.reverse();
        path
    }
}
