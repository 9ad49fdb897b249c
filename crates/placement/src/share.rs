//! Computes how many copies each OSD gets.
//!
//! Invariants
//!   1. The capacities sum up to the number of copies; within a domain, at most to the number of PGs.
//!   2. The capacity of each OSD and of each domain is its share, rounded down or up.
//!   3. Shares are rounded so that the most copies stay in place. Among equal choices, the OSDs with the
//!      fewest copies for their weight are rounded up.

use crate::Candidate;

/// An OSD of a domain, or a domain of the cluster: the parts among which copies are divided.
struct Part {
    weight: u128,
    /// Number of copies of other pools.
    elsewhere: u128,
    /// The share rounded down: the minimum number of copies for the part.
    whole: usize,
    /// The fraction that was cut off by rounding down; only comparable among parts of the same whole.
    rest: u128,
    /// Number of copies above `whole` that the part already holds: rounding up to them moves no copy.
    stays: usize,
}

/// Returns the number of copies of each candidate. `domains`: the domain number of each candidate;
/// `held`: the candidates that each PG has now. Requires: at least as many domains as copies.
pub(crate) fn capacities(
    candidates: &[&Candidate],
    domains: &[usize],
    copies: u32,
    held: &[Vec<usize>],
) -> Vec<usize> {
    let domain_count = domains.iter().max().map_or(0, |last| last + 1);
    let mut weights = vec![0u128; domain_count];
    for (candidate, domain) in candidates.iter().zip(domains) {
        weights[*domain] += u128::from(candidate.weight);
    }
    let shares = water_filled(&weights, held.len() as u128, u128::from(copies));
    let mut held_count = vec![0usize; candidates.len()];
    for bin in held.iter().flatten() {
        held_count[*bin] += 1;
    }

    // The share of each OSD, rounded down.
    let mut members: Vec<Vec<(usize, Part)>> = weights.iter().map(|_| Vec::new()).collect();
    for (bin, (candidate, domain)) in candidates.iter().zip(domains).enumerate() {
        let weight = u128::from(candidate.weight);
        let (amount, of) = shares[*domain];
        let product = amount * weight;
        let whole = (product / of) as usize;
        let rest = product % of;
        let stays = usize::from(rest > 0 && held_count[bin] > whole);
        let elsewhere = u128::from(candidate.pgs_elsewhere);
        members[*domain].push((bin, Part { weight, elsewhere, whole, rest, stays }));
    }

    // Round the domains first: the fractions cut off from a domain's OSDs add up to that of the domain.
    let mut parts = Vec::new();
    for (members, (weight, (amount, of))) in members.iter().zip(weights.iter().zip(&shares)) {
        let sum = |value: fn(&Part) -> usize| members.iter().map(|(_, part)| value(part)).sum();
        let (wholes, stays): (usize, usize) = (sum(|part| part.whole), sum(|part| part.stays));
        let whole = (amount * weight / of) as usize;
        parts.push(Part {
            weight: *weight,
            elsewhere: members.iter().map(|(_, part)| part.elsewhere).sum(),
            whole,
            rest: amount * weight % of,
            stays: stays.saturating_sub(whole - wholes),
        });
    }
    let all = held.len() * copies as usize;
    let of_domains = rounded(&parts, all);

    let mut capacities = vec![0; candidates.len()];
    for (members, count) in members.into_iter().zip(of_domains) {
        let (bins, parts): (Vec<usize>, Vec<Part>) = members.into_iter().unzip();
        for (bin, count) in bins.into_iter().zip(rounded(&parts, count)) {
            capacities[bin] = count;
        }
    }
    capacities
}

/// Returns the share of each domain, as (amount, of): the domain gets amount x its weight / of. No domain
/// gets more than one copy of each PG.
fn water_filled(weights: &[u128], pg_count: u128, copies: u128) -> Vec<(u128, u128)> {
    let mut largest_first: Vec<usize> = (0..weights.len()).collect();
    largest_first.sort_by_key(|domain| std::cmp::Reverse(weights[*domain]));
    let mut shares = vec![(0, 1); weights.len()];
    let mut amount = pg_count * copies;
    let mut weight_left: u128 = weights.iter().sum();
    for domain in largest_first {
        let weight = weights[domain];
        if amount * weight > pg_count * weight_left {
            shares[domain] = (pg_count, weight);
            amount -= pg_count;
            weight_left -= weight;
        } else {
            shares[domain] = (amount, weight_left);
        }
    }
    shares
}

/// Rounds up as many parts as needed for a total of `sum`.
fn rounded(parts: &[Part], sum: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = parts.iter().map(|part| part.whole).collect();
    let extra = sum - counts.iter().sum::<usize>();
    let mut may: Vec<usize> = (0..parts.len()).filter(|index| parts[*index].rest > 0).collect();
    may.sort_by(|left, right| {
        let (left, right) = (&parts[*left], &parts[*right]);
        let left_load = (left.elsewhere + left.whole as u128) * right.weight;
        let right_load = (right.elsewhere + right.whole as u128) * left.weight;
        ((right.stays > 0).cmp(&(left.stays > 0)))
            .then(left_load.cmp(&right_load))
            .then(right.rest.cmp(&left.rest))
    });
    assert!(extra <= may.len(), "what rounding cut off is less than one of each part");
    for index in &may[..extra] {
        counts[*index] += 1;
    }
    counts
}
