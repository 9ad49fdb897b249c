//! Pools and failure domains to a PG map: pure functions.
//!
//! Invariants
//!   1. The plan is a function of its input: the same input gives the same plan.
//!   2. Every OSD gets its share of the PGs, by weight, rounded down or up to a whole PG.
//!   3. No plan that keeps 2 moves fewer PGs away from where they are.
//!
//! One copy is planned here; several copies need more than rounding.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::OsdId;

/// An OSD that may get PGs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Which.
    pub osd: OsdId,
    /// What copies of a block must not share: the name of its host, or of itself.
    pub domain: String,
    /// Its capacity, in any unit; 0 gets nothing.
    pub weight: u64,
    /// PGs of other pools on it: breaks ties, so that many small pools spread, too.
    pub pgs_elsewhere: u32,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// Fewer failure domains than copies.
    TooFewDomains {
        /// One for each copy.
        needed: u32,
        /// So many have weight.
        found: u32,
    },
    /// More than one copy: this version does not replicate.
    CopiesUnsupported,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::TooFewDomains { needed, found } => {
                write!(f, "{needed} copies need {needed} failure domains, there are {found}")
            }
            PlanError::CopiesUnsupported => f.write_str("this version keeps 1 copy"),
        }
    }
}

impl std::error::Error for PlanError {}

/// Gives each PG its OSDs. `current` tells where PGs are now (`None`: nowhere yet), by number.
pub fn plan(
    candidates: &[Candidate],
    copies: u32,
    current: &[Option<OsdId>],
) -> Result<Vec<OsdId>, PlanError> {
    let candidates: Vec<&Candidate> = candidates.iter().filter(|c| c.weight > 0).collect();
    let domains: BTreeSet<&str> = candidates.iter().map(|c| c.domain.as_str()).collect();
    let found = domains.len() as u32;
    if found < copies.max(1) {
        return Err(PlanError::TooFewDomains { needed: copies, found });
    }
    if copies > 1 {
        return Err(PlanError::CopiesUnsupported);
    }
    let targets = targets(&candidates, current);
    Ok(assign(targets, current))
}

/// How many PGs each OSD gets.
fn targets(candidates: &[&Candidate], current: &[Option<OsdId>]) -> BTreeMap<OsdId, u32> {
    let pg_count = current.len() as u128;
    let weight_sum: u128 = candidates.iter().map(|c| u128::from(c.weight)).sum();
    let share = |c: &Candidate| {
        let product = pg_count * u128::from(c.weight);
        ((product / weight_sum) as u32, product % weight_sum)
    };
    let mut targets: BTreeMap<OsdId, u32> =
        candidates.iter().map(|c| (c.osd, share(c).0)).collect();
    let extra = current.len() - targets.values().sum::<u32>() as usize;

    // A share that is no whole number is rounded up first where that keeps a PG in its place, then
    // where the OSD is emptiest for its weight, then where most is cut off.
    let mut held: BTreeMap<OsdId, u32> = BTreeMap::new();
    for osd in current.iter().flatten() {
        *held.entry(*osd).or_default() += 1;
    }
    let mut may_round_up: Vec<&&Candidate> = candidates.iter().filter(|c| share(c).1 > 0).collect();
    may_round_up.sort_by(|left, right| {
        let stays = |c: &Candidate| held.get(&c.osd).is_some_and(|count| *count > share(c).0);
        let load = |c: &Candidate| u128::from(c.pgs_elsewhere + share(c).0);
        let left_load = load(left) * u128::from(right.weight);
        let right_load = load(right) * u128::from(left.weight);
        (stays(right).cmp(&stays(left)))
            .then(left_load.cmp(&right_load))
            .then(share(right).1.cmp(&share(left).1))
            .then(left.osd.cmp(&right.osd))
    });
    assert!(extra <= may_round_up.len());
    for candidate in &may_round_up[..extra] {
        *targets.get_mut(&candidate.osd).expect("every candidate has a target") += 1;
    }
    targets
}

/// Keeps PGs in place as far as targets allow and deals the others out in turn.
fn assign(mut room: BTreeMap<OsdId, u32>, current: &[Option<OsdId>]) -> Vec<OsdId> {
    let mut planned: Vec<Option<OsdId>> = vec![None; current.len()];
    for (slot, osd) in planned.iter_mut().zip(current) {
        let Some(left) = osd.and_then(|osd| room.get_mut(&osd)) else { continue };
        if *left > 0 {
            *left -= 1;
            *slot = *osd;
        }
    }
    let mut turn: Option<OsdId> = None;
    for slot in planned.iter_mut().filter(|slot| slot.is_none()) {
        room.retain(|_, left| *left > 0);
        let after = room.keys().find(|osd| turn.is_none_or(|last| **osd > last));
        let osd = *after.or_else(|| room.keys().next()).expect("targets sum up to the PG count");
        *room.get_mut(&osd).expect("just found") -= 1;
        turn = Some(osd);
        *slot = Some(osd);
    }
    planned.into_iter().map(|osd| osd.expect("every slot was filled")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osd(number: u32) -> OsdId {
        OsdId::new(number).unwrap()
    }

    fn candidate(number: u32, weight: u64) -> Candidate {
        Candidate { osd: osd(number), domain: format!("host{number}"), weight, pgs_elsewhere: 0 }
    }

    fn counts(plan: &[OsdId]) -> BTreeMap<OsdId, u32> {
        let mut counts = BTreeMap::new();
        for osd in plan {
            *counts.entry(*osd).or_default() += 1;
        }
        counts
    }

    /// xorshift: enough to vary tests, the same each time.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn every_osd_is_within_one_pg_of_its_share() {
        let mut seed = 7;
        for _ in 0..200 {
            let count = random(&mut seed) % 20 + 1;
            let candidates: Vec<Candidate> = (1..=count as u32)
                .map(|number| candidate(number, random(&mut seed) % 1000 + 1))
                .collect();
            let pg_count = 1usize << (random(&mut seed) % 11);
            let planned = plan(&candidates, 1, &vec![None; pg_count]).unwrap();
            assert_eq!(planned.len(), pg_count);
            let counts = counts(&planned);
            let weight_sum: u64 = candidates.iter().map(|c| c.weight).sum();
            for c in &candidates {
                let share = pg_count as f64 * c.weight as f64 / weight_sum as f64;
                let got = f64::from(counts.get(&c.osd).copied().unwrap_or(0));
                assert!((got - share).abs() < 1.0, "{} got {got}, share {share}", c.osd);
            }
        }
    }

    #[test]
    fn a_plan_repeated_moves_nothing() {
        let candidates: Vec<Candidate> = (1..=7).map(|n| candidate(n, u64::from(n) * 10)).collect();
        let first = plan(&candidates, 1, &[None; 128]).unwrap();
        let current: Vec<Option<OsdId>> = first.iter().copied().map(Some).collect();
        assert_eq!(plan(&candidates, 1, &current).unwrap(), first);
    }

    #[test]
    fn a_new_osd_takes_only_its_share() {
        let mut candidates: Vec<Candidate> = (1..=3).map(|n| candidate(n, 10)).collect();
        let first = plan(&candidates, 1, &[None; 128]).unwrap();
        candidates.push(candidate(4, 10));
        let current: Vec<Option<OsdId>> = first.iter().copied().map(Some).collect();
        let second = plan(&candidates, 1, &current).unwrap();
        let moved = first.iter().zip(&second).filter(|(old, new)| old != new).count();
        assert_eq!(moved, 32);
        assert!(counts(&second).values().all(|count| *count == 32));
    }

    #[test]
    fn many_small_pools_spread() {
        let mut candidates: Vec<Candidate> = (1..=4).map(|n| candidate(n, 10)).collect();
        for _ in 0..8 {
            let planned = plan(&candidates, 1, &[None]).unwrap();
            let chosen = candidates.iter_mut().find(|c| c.osd == planned[0]).unwrap();
            chosen.pgs_elsewhere += 1;
        }
        assert!(candidates.iter().all(|c| c.pgs_elsewhere == 2));
    }

    #[test]
    fn an_osd_without_weight_gets_nothing() {
        let planned = plan(&[candidate(1, 0), candidate(2, 5)], 1, &[None; 8]).unwrap();
        assert!(planned.iter().all(|chosen| *chosen == osd(2)));
        let none = plan(&[candidate(1, 0)], 1, &[None; 8]);
        assert_eq!(none, Err(PlanError::TooFewDomains { needed: 1, found: 0 }));
    }

    #[test]
    fn copies_need_as_many_domains() {
        let two = plan(&[candidate(1, 5), candidate(2, 5)], 3, &[None; 8]);
        assert_eq!(two, Err(PlanError::TooFewDomains { needed: 3, found: 2 }));
        let both = plan(&[candidate(1, 5), candidate(2, 5)], 2, &[None; 8]);
        assert_eq!(both, Err(PlanError::CopiesUnsupported));
    }
}
