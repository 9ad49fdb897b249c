//! Placement: computes the PG map from pools and failure domains. Pure functions.
//!
//! ```text
//!   candidates ── share ──▶ copies of each OSD ── flow ──▶ OSDs of each PG ── primary ──▶ the first of each
//! ```
//!
//! Invariants
//!   1. The plan is a function of its input: the same input gives the same plan.
//!   2. No two copies of a PG share a failure domain.
//!   3. Every OSD and every failure domain gets its share of the copies, by weight, rounded down or up. If
//!      a domain's share is larger than it may hold (one copy of each PG), it is filled, and the others
//!      share the rest.
//!   4. No other plan with the same number of copies on every OSD leaves more copies where they are.
//!   5. Every OSD is the primary of its share of the PGs it is in, rounded down or up. If the caller limits
//!      which members may lead, this holds as far as the limits allow.

mod flow;
mod primary;
mod share;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::OsdId;

/// An OSD that may get PGs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The OSD; each appears once.
    pub osd: OsdId,
    /// The failure domain of the OSD, which copies of a block must not share: the name of its host, or its
    /// own name.
    pub domain: String,
    /// The capacity of the OSD, in any unit; an OSD with 0 gets no copies.
    pub weight: u64,
    /// Number of PG copies of other pools on the OSD. Breaks ties, so that many small pools together are also
    /// spread evenly.
    pub pgs_elsewhere: u32,
}

/// The reason why no plan is possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// There are fewer failure domains than copies.
    TooFewDomains {
        /// Domains needed: one for each copy.
        needed: u32,
        /// Domains with a weight above 0.
        found: u32,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::TooFewDomains { needed, found } => {
                write!(f, "it needs {needed} failure domains, but there are {found}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Returns for each PG, by number, an OSD for each of its `copies` (at least one): the preferred
/// primary first, then the others by id. `current` lists where the copies are now, the primary
/// first; an empty list: nowhere yet. Copies move if their OSD is not a candidate, or shares a
/// domain with an earlier copy.
pub fn plan(
    candidates: &[Candidate],
    copies: u32,
    current: &[Vec<OsdId>],
) -> Result<Vec<Vec<OsdId>>, PlanError> {
    plan_led(candidates, copies, current, |_, set| set.to_vec())
}

/// Plans like [`plan`]. `leaders` returns the planned OSDs of a PG that may be its primary; if it returns
/// none, any of them may.
pub fn plan_led(
    candidates: &[Candidate],
    copies: u32,
    current: &[Vec<OsdId>],
    leaders: impl Fn(usize, &[OsdId]) -> Vec<OsdId>,
) -> Result<Vec<Vec<OsdId>>, PlanError> {
    let copies = copies.max(1);
    let mut candidates: Vec<&Candidate> = candidates.iter().filter(|c| c.weight > 0).collect();
    candidates.sort_by_key(|c| c.osd);
    let domains: BTreeSet<&str> = candidates.iter().map(|c| c.domain.as_str()).collect();
    let found = domains.len() as u32;
    if found < copies {
        return Err(PlanError::TooFewDomains { needed: copies, found });
    }

    let bins: BTreeMap<OsdId, usize> = candidates.iter().map(|c| c.osd).zip(0..).collect();
    let bin_of = |osd: &OsdId| bins.get(osd).copied();
    let held: Vec<Vec<usize>> =
        current.iter().map(|osds| osds.iter().filter_map(bin_of).collect()).collect();
    let domain_of = |c: &&Candidate| domains.range(..c.domain.as_str()).count();
    let domains: Vec<usize> = candidates.iter().map(domain_of).collect();

    let room = share::capacities(&candidates, &domains, copies, &held);
    let mut sets = flow::assign(&domains, &room, copies as usize, &held);
    let leads: Vec<Option<usize>> =
        current.iter().map(|osds| osds.first().and_then(bin_of)).collect();
    let name =
        |set: &[usize]| -> Vec<OsdId> { set.iter().map(|bin| candidates[*bin].osd).collect() };
    let may_lead = |(pg, set): (usize, &Vec<usize>)| -> Vec<usize> {
        let named = leaders(pg, &name(set));
        let may: Vec<usize> =
            set.iter().copied().filter(|bin| named.contains(&candidates[*bin].osd)).collect();
        if may.is_empty() { set.clone() } else { may }
    };
    let may_lead: Vec<Vec<usize>> = sets.iter().enumerate().map(may_lead).collect();
    primary::elect(&room, copies as usize, &leads, &may_lead, &mut sets);
    assert!(sets.len() == current.len(), "each PG has a set");
    assert!(sets.iter().all(|set| set.len() == copies as usize), "each copy has an OSD");
    Ok(sets.iter().map(|set| name(set)).collect())
}

/// Orders the OSDs of each PG of a new pool by position: the primary stays first, then the other OSDs for
/// data (`data_count` in all), then those for parity. Every OSD gets about its share of the parity.
pub fn arrange(sets: &mut [Vec<OsdId>], data_count: usize) {
    let mut counts: BTreeMap<OsdId, (usize, usize)> = BTreeMap::new();
    for osd in sets.iter().flatten() {
        counts.entry(*osd).or_default().1 += 1;
    }
    for (pg, set) in sets.iter_mut().enumerate() {
        let Some(others) = set.get_mut(1..).filter(|others| !others.is_empty()) else { continue };
        let turn = pg % others.len();
        others.rotate_left(turn);
        // The sort is stable: among equals, the rotation decides which OSDs hold parity.
        others.sort_by_key(|osd| {
            let (parity, all) = counts[osd];
            std::cmp::Reverse(parity * 1024 / all)
        });
        for osd in set.get(data_count..).unwrap_or_default() {
            counts.get_mut(osd).expect("counted above").0 += 1;
        }
    }
}
