//! Checks the guarantees of plans: validity, balance, minimum movement, primaries.

use super::*;

fn osd(number: u32) -> OsdId {
    OsdId::new(number).unwrap()
}

fn on_host(number: u32, host: u32, weight: u64) -> Candidate {
    Candidate { osd: osd(number), domain: format!("host{host}"), weight, pgs_elsewhere: 0 }
}

fn candidate(number: u32, weight: u64) -> Candidate {
    on_host(number, number, weight)
}

fn nowhere(pg_count: usize) -> Vec<Vec<OsdId>> {
    vec![Vec::new(); pg_count]
}

fn counts(plan: &[Vec<OsdId>]) -> BTreeMap<OsdId, usize> {
    let mut counts = BTreeMap::new();
    for osd in plan.iter().flatten() {
        *counts.entry(*osd).or_default() += 1;
    }
    counts
}

fn leads(plan: &[Vec<OsdId>]) -> BTreeMap<OsdId, usize> {
    let mut counts = BTreeMap::new();
    for set in plan {
        *counts.entry(set[0]).or_default() += 1;
    }
    counts
}

/// Counts copies on OSDs that did not have them before.
fn moved(before: &[Vec<OsdId>], after: &[Vec<OsdId>]) -> usize {
    let new = |(before, after): (&Vec<OsdId>, &Vec<OsdId>)| {
        after.iter().filter(|osd| !before.contains(osd)).count()
    };
    before.iter().zip(after).map(new).sum()
}

/// A xorshift generator: random enough to vary the tests, and the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Returns the share of each OSD as a fraction: domains are filled evenly, up to one copy of each
/// PG.
fn shares(candidates: &[Candidate], copies: u32, pg_count: usize) -> BTreeMap<OsdId, f64> {
    let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
    for c in candidates {
        *weights.entry(&c.domain).or_default() += c.weight as f64;
    }
    let all = f64::from(copies) * pg_count as f64;
    let held =
        |level: f64| -> f64 { weights.values().map(|w| (w * level).min(pg_count as f64)).sum() };
    let (mut low, mut high) = (0.0, all);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if held(middle) < all { low = middle } else { high = middle }
    }
    let share = |c: &Candidate| {
        let domain = weights[c.domain.as_str()];
        (domain * high).min(pg_count as f64) * c.weight as f64 / domain
    };
    candidates.iter().map(|c| (c.osd, share(c))).collect()
}

/// Checks every guarantee of a plan.
fn check(candidates: &[Candidate], copies: u32, plan: &[Vec<OsdId>]) {
    let domain = |osd: &OsdId| &candidates.iter().find(|c| c.osd == *osd).unwrap().domain;
    for set in plan {
        assert_eq!(set.len(), copies as usize);
        let domains: BTreeSet<_> = set.iter().map(domain).collect();
        assert_eq!(domains.len(), set.len(), "copies share a domain: {set:?}");
    }
    let (counts, leads) = (counts(plan), leads(plan));
    for (osd, share) in shares(candidates, copies, plan.len()) {
        let got = counts.get(&osd).copied().unwrap_or(0);
        assert!((got as f64 - share).abs() < 1.001, "{osd} got {got}, its share is {share}");
        let leads = leads.get(&osd).copied().unwrap_or(0) as f64;
        let fair = got as f64 / f64::from(copies);
        assert!((leads - fair).abs() < 1.0, "{osd} leads {leads}, fair is {fair}");
    }
}

fn random_candidates(random: &mut Random, host_count_max: u64, osds_max: u64) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for host in 0..random.below(host_count_max) + 1 {
        for _ in 0..random.below(osds_max) + 1 {
            let number = candidates.len() as u32 + 1;
            candidates.push(on_host(number, host as u32, random.below(1000) + 1));
        }
    }
    candidates
}

#[test]
fn copies_lie_in_different_domains_and_each_osd_has_its_share() {
    let mut random = Random(7);
    let mut planned = 0;
    for _ in 0..300 {
        let candidates = random_candidates(&mut random, 12, 4);
        let copies = random.below(4) as u32 + 1;
        let pg_count = 1usize << random.below(9);
        match plan(&candidates, copies, &nowhere(pg_count)) {
            Ok(first) => {
                check(&candidates, copies, &first);
                planned += 1;
            }
            Err(PlanError::TooFewDomains { needed, found }) => assert!(found < needed),
        }
    }
    assert!(planned > 200);
}

#[test]
fn changes_keep_all_promises() {
    let mut random = Random(99);
    for _ in 0..60 {
        let mut candidates = random_candidates(&mut random, 10, 3);
        let copies = random.below(3) as u32 + 1;
        let mut current = nowhere(1 << random.below(8));
        for _ in 0..8 {
            match random.below(4) {
                0 if candidates.len() > 1 => {
                    let at = random.below(candidates.len() as u64) as usize;
                    candidates.remove(at);
                }
                1 => {
                    let at = random.below(candidates.len() as u64) as usize;
                    candidates[at].weight = random.below(1000) + 1;
                }
                2 => {
                    let number = candidates.iter().map(|c| c.osd.get()).max().unwrap() + 1;
                    candidates.push(on_host(
                        number,
                        random.below(12) as u32,
                        random.below(1000) + 1,
                    ));
                }
                // A host was renamed: existing copies may share a domain now.
                _ => {
                    let at = random.below(candidates.len() as u64) as usize;
                    candidates[at].domain = format!("host{}", random.below(12));
                }
            }
            let Ok(next) = plan(&candidates, copies, &current) else { continue };
            check(&candidates, copies, &next);
            assert_eq!(plan(&candidates, copies, &next).unwrap(), next, "a plan repeated moves");
            current = next;
        }
    }
}

/// Returns the minimum number of moves over all valid placements, found by exhaustive search, for each
/// distribution of the copies among the OSDs.
fn fewest_moves(
    candidates: &[Candidate],
    copies: u32,
    current: &[Vec<OsdId>],
) -> BTreeMap<Vec<usize>, usize> {
    let sets: Vec<Vec<usize>> = (0..1usize << candidates.len())
        .map(|bits| (0..candidates.len()).filter(|bit| bits >> bit & 1 == 1).collect::<Vec<_>>())
        .filter(|set| {
            let domains: BTreeSet<_> = set.iter().map(|bin| &candidates[*bin].domain).collect();
            set.len() == copies as usize && domains.len() == set.len()
        })
        .collect();
    let mut moves = BTreeMap::from([(vec![0usize; candidates.len()], 0usize)]);
    for held in current {
        let mut next: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for (loads, before) in &moves {
            for set in &sets {
                let mut loads = loads.clone();
                set.iter().for_each(|bin| loads[*bin] += 1);
                let new = set.iter().filter(|bin| !held.contains(&candidates[**bin].osd)).count();
                let fewest = next.entry(loads).or_insert(usize::MAX);
                *fewest = (*fewest).min(before + new);
            }
        }
        moves = next;
    }
    moves
}

/// Whether each OSD and each domain has its share, rounded down or up.
fn is_balanced(candidates: &[Candidate], shares: &BTreeMap<OsdId, f64>, loads: &[usize]) -> bool {
    let mut domains: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (c, load) in candidates.iter().zip(loads) {
        let domain = domains.entry(&c.domain).or_default();
        *domain = (domain.0 + load, domain.1 + shares[&c.osd]);
    }
    let fits = |load: usize, share: f64| (load as f64 - share).abs() < 0.999_999;
    candidates.iter().zip(loads).all(|(c, load)| fits(*load, shares[&c.osd]))
        && domains.values().all(|(load, share)| fits(*load, *share))
}

#[test]
fn nothing_moves_that_could_stay() {
    let mut random = Random(4711);
    let (mut compared, mut all_moves, mut all_fewest) = (0, 0, 0);
    for _ in 0..600 {
        let candidates = random_candidates(&mut random, 4, 2);
        let copies = random.below(3) as u32 + 1;
        let pg_count = random.below(4) as usize + 1;
        // Copies may be anywhere: on removed OSDs, twice in a domain, on too few OSDs.
        let mut current = nowhere(pg_count);
        for set in &mut current {
            for _ in 0..random.below(u64::from(copies) + 2) {
                let place = osd(random.below(candidates.len() as u64 + 1) as u32 + 1);
                if !set.contains(&place) {
                    set.push(place);
                }
            }
        }
        let Ok(next) = plan(&candidates, copies, &current) else { continue };
        check(&candidates, copies, &next);
        let fewest = fewest_moves(&candidates, copies, &current);
        let counts = counts(&next);
        let loads: Vec<usize> =
            candidates.iter().map(|c| counts.get(&c.osd).copied().unwrap_or(0)).collect();
        let got = moved(&current, &next);
        assert_eq!(got, fewest[&loads], "{candidates:?} {current:?} {next:?}");
        let shares = shares(&candidates, copies, pg_count);
        let balanced = fewest.iter().filter(|(loads, _)| is_balanced(&candidates, &shares, loads));
        all_fewest += balanced.map(|(_, moves)| moves).min().expect("at least what was planned");
        all_moves += got;
        compared += 1;
    }
    assert!(compared > 250);
    // Rounding does not consider which sets of OSDs a PG can have: in a few of these tiny pools that costs
    // one move too many.
    println!("{all_moves} moves, with the best rounding {all_fewest}");
    assert!(all_moves * 100 <= all_fewest * 101);
}

#[test]
fn a_new_osd_takes_only_its_share() {
    let mut candidates: Vec<Candidate> = (1..=6).map(|n| candidate(n, 10)).collect();
    let first = plan(&candidates, 2, &nowhere(210)).unwrap();
    candidates.push(candidate(7, 10));
    let second = plan(&candidates, 2, &first).unwrap();
    assert_eq!(moved(&first, &second), 60);
    assert!(counts(&second).values().all(|count| *count == 60));
    assert!(leads(&second).values().all(|count| *count == 30));
}

#[test]
fn no_pg_moves_as_a_whole_where_others_may_move() {
    let mut candidates: Vec<Candidate> = (1..=6).map(|n| candidate(n, 10)).collect();
    let first = plan(&candidates, 2, &nowhere(256)).unwrap();
    candidates.extend((7..=12).map(|n| candidate(n, 10)));
    let second = plan(&candidates, 2, &first).unwrap();
    let whole = first.iter().zip(&second).filter(|(old, new)| !new.iter().any(|o| old.contains(o)));
    assert!(moved(&first, &second) >= 250);
    assert_eq!(whole.count(), 0);
}

#[test]
fn a_lost_osd_moves_only_what_it_had() {
    let mut candidates: Vec<Candidate> = (1..=24).map(|n| on_host(n, n / 2, 10)).collect();
    let first = plan(&candidates, 3, &nowhere(512)).unwrap();
    let lost = candidates.remove(5).osd;
    let second = plan(&candidates, 3, &first).unwrap();
    check(&candidates, 3, &second);
    let had = counts(&first)[&lost];
    // Hosts are balanced as well: a host that has one OSD left may get one copy more or less.
    let moves = moved(&first, &second);
    assert!(moves <= had + had / 100 + 2, "{moves} moves, it had {had}");
    let changed = first.iter().zip(&second).filter(|(old, new)| old[0] != new[0] && old[0] != lost);
    assert!(changed.count() <= 40, "primaries change where nothing else does");
}

#[test]
fn a_domain_larger_than_the_others_together_is_filled() {
    let candidates = [candidate(1, 1000), candidate(2, 10), candidate(3, 20)];
    let planned = plan(&candidates, 2, &nowhere(96)).unwrap();
    check(&candidates, 2, &planned);
    let counts = counts(&planned);
    assert_eq!([counts[&osd(1)], counts[&osd(2)], counts[&osd(3)]], [96, 32, 64]);
    assert_eq!(leads(&planned), BTreeMap::from([(osd(1), 48), (osd(2), 16), (osd(3), 32)]));
}

#[test]
fn parity_is_spread_and_the_primary_stays_first() {
    let mut random = Random(7);
    for _ in 0..200 {
        let data_count = 2 + random.below(4) as usize;
        let count = data_count as u32 + 1 + random.below(3) as u32;
        let osds = count + random.below(6) as u32;
        let candidates: Vec<Candidate> = (1..=osds).map(|n| candidate(n, 10)).collect();
        let planned = plan(&candidates, count, &nowhere(128)).unwrap();
        let mut arranged = planned.clone();
        arrange(&mut arranged, data_count);
        let mut parity: BTreeMap<OsdId, usize> = BTreeMap::new();
        for (before, after) in planned.iter().zip(&arranged) {
            assert_eq!(before[0], after[0]);
            let sorted = |set: &Vec<OsdId>| set.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(sorted(before), sorted(after));
            after[data_count..].iter().for_each(|osd| *parity.entry(*osd).or_default() += 1);
        }
        let share = 128.0 * f64::from(count - data_count as u32) / f64::from(osds);
        let least = candidates.iter().map(|c| parity.get(&c.osd).copied().unwrap_or(0)).min();
        let most = parity.values().copied().max().unwrap_or(0);
        assert!(
            least.unwrap() as f64 >= share - 3.0 && most as f64 <= share + 3.0,
            "{parity:?} {share}"
        );
    }
}

#[test]
fn only_members_that_may_lead_do() {
    let mut random = Random(11);
    for _ in 0..300 {
        let osds = 5 + random.below(8) as u32;
        let candidates: Vec<Candidate> = (1..=osds).map(|n| candidate(n, 10)).collect();
        let first = plan(&candidates, 4, &nowhere(64)).unwrap();
        let limits: Vec<Vec<OsdId>> =
            first.iter().map(|set| set[..2 + random.below(3) as usize].to_vec()).collect();
        let planned = plan_led(&candidates, 4, &first, |pg, _| limits[pg].clone()).unwrap();
        for (set, limit) in planned.iter().zip(&limits) {
            assert!(limit.contains(&set[0]), "{set:?} {limit:?}");
        }
        assert_eq!(
            planned,
            plan_led(&candidates, 4, &planned, |pg, _| limits[pg].clone()).unwrap()
        );
    }
}

#[test]
fn many_small_pools_spread() {
    for copies in 1..=2 {
        let mut candidates: Vec<Candidate> = (1..=4).map(|n| candidate(n, 10)).collect();
        for _ in 0..8 {
            for chosen in &plan(&candidates, copies, &nowhere(1)).unwrap()[0] {
                candidates.iter_mut().find(|c| c.osd == *chosen).unwrap().pgs_elsewhere += 1;
            }
        }
        assert!(candidates.iter().all(|c| c.pgs_elsewhere == 2 * copies));
    }
}

#[test]
fn an_osd_without_weight_gets_nothing() {
    let planned = plan(&[candidate(1, 0), candidate(2, 5)], 1, &nowhere(8)).unwrap();
    assert!(planned.iter().all(|chosen| *chosen == [osd(2)]));
    let none = plan(&[candidate(1, 0)], 1, &nowhere(8));
    assert_eq!(none, Err(PlanError::TooFewDomains { needed: 1, found: 0 }));
}

#[test]
fn copies_need_as_many_domains() {
    let candidates = [candidate(1, 5), candidate(2, 5), on_host(3, 2, 5)];
    let three = plan(&candidates, 3, &nowhere(8));
    assert_eq!(three, Err(PlanError::TooFewDomains { needed: 3, found: 2 }));
}

#[test]
fn an_osd_has_few_peers() {
    let candidates: Vec<Candidate> = (1..=960).map(|n| on_host(n, (n - 1) / 8, 10)).collect();
    let planned = plan(&candidates, 3, &nowhere(8192)).unwrap();
    let mut peers: BTreeMap<OsdId, BTreeSet<OsdId>> = BTreeMap::new();
    for set in &planned {
        for one in set {
            peers.entry(*one).or_default().extend(set.iter().filter(|other| *other != one));
        }
    }
    let all: usize = peers.values().map(BTreeSet::len).sum();
    println!(
        "{} peers on average, {:?} at most",
        all / 960,
        peers.values().map(BTreeSet::len).max()
    );
    assert!(all <= 960 * 20);
    assert!(peers.values().all(|peers| peers.len() >= 6), "few share the work after a failure");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time is printed, nothing depends on it")]
fn a_thousand_osds_are_planned() {
    let began = std::time::Instant::now();
    let mut candidates: Vec<Candidate> =
        (1..=1000).map(|n| on_host(n, n / 10, 900 + u64::from(n % 7) * 50)).collect();
    let first = plan(&candidates, 3, &nowhere(8192)).unwrap();
    let made = began.elapsed();
    check(&candidates, 3, &first);
    candidates.retain(|c| c.osd.get() % 100 != 7);
    let began = std::time::Instant::now();
    let second = plan(&candidates, 3, &first).unwrap();
    let changed = began.elapsed();
    check(&candidates, 3, &second);
    let is_kept = |osd: &OsdId| candidates.iter().any(|c| c.osd == *osd);
    let homeless = first.iter().flatten().filter(|osd| !is_kept(osd)).count();
    let moves = moved(&first, &second);
    println!(
        "8192 PGs with 3 copies on 1000 OSDs: planned in {made:?}; without 10 OSDs in {changed:?}, \
         {moves} moves for {homeless} homeless copies"
    );
    assert!(moves <= homeless + homeless / 100);
}
