//! Judges an object pool at the end of a run: replays all changes on the plain model, in the order of their
//! versions, and looks for a state that fits each answer.
//!
//! ```text
//!   versions of a PG    1     2     3     4     5
//!                    ●──┬──●──┬──●──┬──●──┬──●──┬──●   states of the plain model
//!                          └───────────┘
//!                     a read shows one of these: not older than what had been answered before it began, and
//!                     without what was asked for after it ended
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use base::{SessionId, Version};
use objects::model::{Models, is_answer, listed, model};
use objects::{Listed, Look, Name, Operation, PageEntry, Read, ReadAnswer, StepResult};

use super::object_history::{Ask, End, Executed, ObjectHistory, What};
use crate::register::Moment;

/// Something that must be true of one of the states of a PG.
struct Claim<'a> {
    /// The number of versions in the first and in the last state that may be meant.
    states: (usize, usize),
    ask: &'a Ask,
    what: ClaimWhat<'a>,
}

enum ClaimWhat<'a> {
    Refused { operation: &'a Operation, at: (usize, usize), version: Version },
    ChangedNothing { operation: &'a Operation, results: &'a [StepResult] },
    Shown { look: &'a Look, answers: &'a [ReadAnswer] },
    Listed { name: Name, with_data: bool, found: Option<&'a Listed> },
}

impl ObjectHistory {
    /// Checks everything. `is_kept`: whether a version of a PG was adopted by all epochs that followed its
    /// own.
    pub fn judge(&self, is_kept: impl Fn(u32, Version) -> bool) -> Result<(), String> {
        let mut once: BTreeMap<(SessionId, u64), Version> = BTreeMap::new();
        for pg in 0..self.pg_count {
            let of_pg = self.executed.range((pg, Version::ZERO)..(pg + 1, Version::ZERO));
            let kept = of_pg.filter(|((_, version), _)| is_kept(pg, *version));
            let changes: Vec<(Version, &Executed)> =
                kept.map(|((_, version), executed)| (*version, executed)).collect();
            for (version, executed) in &changes {
                let Executed { session, number, .. } = executed;
                if let Some(before) = once.insert((*session, *number), *version) {
                    return Err(format!(
                        "operation {number} of session {session} was executed as {before} and again as \
                         {version} of PG {pg}"
                    ));
                }
            }
            self.judge_pg(pg, &changes)?;
        }
        Ok(())
    }

    /// Checks all that concerns a PG; these changes were executed.
    fn judge_pg(&self, pg: u32, changes: &[(Version, &Executed)]) -> Result<(), String> {
        let mut asked: Vec<&Ask> = Vec::new();
        for (version, executed) in changes {
            let ask = self.sent.get(&(executed.session, executed.number));
            let ask = ask.ok_or_else(|| format!("{version} of PG {pg} was never sent"))?;
            asked.push(&self.asks[*ask]);
        }
        // For each number of changes, when the last of them was asked for.
        let begun = asked.iter().scan(0, |last: &mut Moment, ask| {
            *last = ask.from.max(*last);
            Some(*last)
        });
        let begun: Vec<Moment> = begun.collect();
        let states = |ask: &Ask, to: Moment| {
            let first = changes.partition_point(|(version, _)| *version <= ask.lowest);
            (first, begun.partition_point(|begun| *begun <= to))
        };
        let mut claims = Vec::new();
        for ask in self.asks.iter().filter(|ask| ask.pg == pg) {
            let Some((to, end)) = &ask.end else { continue };
            let states = states(ask, *to);
            match self.judge_end(ask, end, states, changes)? {
                Some(what) => claims.push(Claim { states, ask, what }),
                None => claims.extend(self.listed_claims(ask, end, states)?),
            }
        }
        replay(pg, changes, &asked, claims)
    }

    /// Checks how a request ended. Returns what must be true of a state.
    fn judge_end<'a>(
        &self,
        ask: &'a Ask,
        end: &'a End,
        states: (usize, usize),
        changes: &[(Version, &Executed)],
    ) -> Result<Option<ClaimWhat<'a>>, String> {
        let own = || {
            let is_it = |(_, it): &(Version, &Executed)| {
                it.session == ask.session && Some(it.number) == ask.number
            };
            changes.iter().position(is_it)
        };
        match (&ask.what, end) {
            (What::Change { .. }, End::Changed { version, results })
                if *version > Version::ZERO =>
            {
                let Some(at) = own().filter(|at| changes[*at].0 == *version) else {
                    return Err(format!("{version} was acknowledged, but is not there: {ask:?}"));
                };
                let (first, last) = states;
                if *results != changes[at].1.results {
                    return Err(format!("{ask:?} has {:?} in its repeat", changes[at].1));
                }
                match (first..last).contains(&at) {
                    true => Ok(None),
                    false => {
                        Err(format!("{version} has no place among what was asked for: {ask:?}"))
                    }
                }
            }
            (What::Change { .. }, End::Unsure) => Ok(None),
            (What::Change { operation, .. }, end) => {
                if let Some(at) = own() {
                    return Err(format!("{ask:?} was executed as {}", changes[at].0));
                }
                match end {
                    End::Changed { results, .. } => {
                        Ok(Some(ClaimWhat::ChangedNothing { operation, results }))
                    }
                    End::Asserted { object, step, version } => {
                        let (at, version) = ((*object, *step), *version);
                        Ok(Some(ClaimWhat::Refused { operation, at, version }))
                    }
                    _ => Ok(None),
                }
            }
            (What::Look(look), End::Looked(answers)) => {
                let is_list = matches!(look.reads[..], [Read::List { .. }]);
                Ok((!is_list).then_some(ClaimWhat::Shown { look, answers }))
            }
            (What::Look(_), _) => Ok(None),
        }
    }

    /// Returns what a listing says of each object: it shows no single moment.
    fn listed_claims<'a>(
        &self,
        ask: &'a Ask,
        end: &'a End,
        states: (usize, usize),
    ) -> Result<Vec<Claim<'a>>, String> {
        let (What::Look(look), End::Looked(answers)) = (&ask.what, end) else {
            return Ok(Vec::new());
        };
        let ([Read::List { listing, with_data, .. }], [ReadAnswer::List(page)]) =
            (&look.reads[..], &answers[..])
        else {
            return Ok(Vec::new());
        };
        let mut found: BTreeMap<&[u8], &Listed> = BTreeMap::new();
        for entry in &page.entries {
            let PageEntry::Key(key, listed) = entry else {
                return Err(format!("a common prefix without a delimiter: {page:?}"));
            };
            let is_in_order = found.last_key_value().is_none_or(|(last, _)| *last < &key[..]);
            let is_before_next = page.next.as_ref().is_none_or(|next| key < next);
            if !is_in_order || !is_before_next || *key < listing.from {
                return Err(format!("a page is not in order: {page:?}"));
            }
            found.insert(key, listed);
        }
        // All objects that were ever named in the PG.
        let named = self.asks.iter().filter(|it| it.pg == ask.pg).flat_map(|it| match &it.what {
            What::Change { operation, .. } => &operation.objects[..],
            What::Look(_) => &[],
        });
        let mut names: BTreeSet<Name> = named.map(|object| object.name.clone()).collect();
        names.extend(found.keys().filter_map(|key| Name::new(key)));
        let is_told = |name: &Name| {
            let name = name.bytes();
            let is_before = |end: &Vec<u8>| name < &end[..];
            name >= &listing.from[..] && page.next.as_ref().is_none_or(is_before)
        };
        let claim = |name: Name| {
            let found = found.get(name.bytes()).copied();
            let what = ClaimWhat::Listed { name, with_data: *with_data, found };
            Claim { states, ask, what }
        };
        Ok(names.into_iter().filter(is_told).map(claim).collect())
    }
}

/// Makes all changes on the plain model, and checks the claims where they may be true.
fn replay(
    pg: u32,
    changes: &[(Version, &Executed)],
    asked: &[&Ask],
    mut claims: Vec<Claim<'_>>,
) -> Result<(), String> {
    claims.sort_by_key(|claim| std::cmp::Reverse(claim.states.0));
    let (mut objects, mut open) = (Models::new(), Vec::new());
    for state in 0..=changes.len() {
        if let Some(at) = state.checked_sub(1) {
            let (version, executed) = changes[at];
            let What::Change { operation, .. } = &asked[at].what else {
                unreachable!("only changes have numbers")
            };
            let outcome = on_objects(&mut objects, operation, version);
            if outcome != Ok((executed.results.clone(), true)) {
                return Err(format!(
                    "{version} of PG {pg} has {:?}, but is {outcome:?}: {operation:?}",
                    executed.results
                ));
            }
        }
        while let Some(claim) = claims.pop_if(|claim| claim.states.0 <= state) {
            open.push(claim);
        }
        open.retain(|claim: &Claim<'_>| !claim.is_true(&objects));
        if let Some(claim) = open.iter().find(|claim| claim.states.1 <= state) {
            return Err(claim.complaint(pg, changes, &objects));
        }
    }
    match claims.first().or(open.first()) {
        Some(claim) => Err(claim.complaint(pg, changes, &objects)),
        None => Ok(()),
    }
}

/// Makes an operation on the objects that it names.
fn on_objects(
    objects: &mut Models,
    operation: &Operation,
    version: Version,
) -> objects::model::Outcome {
    let names = || operation.objects.iter().map(|object| &object.name);
    let mut named: Models = names().filter_map(|name| objects.remove_entry(name)).collect();
    let outcome = model(&mut named, operation, version);
    objects.append(&mut named);
    outcome
}

impl Claim<'_> {
    fn is_true(&self, objects: &Models) -> bool {
        let part = |names: &mut dyn Iterator<Item = &Name>| -> Models {
            let found = names.filter_map(|name| objects.get_key_value(name));
            found.map(|(name, object)| (name.clone(), object.clone())).collect()
        };
        let outcome = |operation: &Operation| {
            let mut named = part(&mut operation.objects.iter().map(|object| &object.name));
            model(&mut named, operation, Version::ZERO)
        };
        match &self.what {
            ClaimWhat::Refused { operation, at, version } => {
                let steps = &operation.objects[at.0];
                let known = objects.get(&steps.name).map_or(Version::ZERO, |(version, _)| *version);
                // Where a number cannot be added to, earlier operations of its run count.
                let is_version = known == *version || at.1 >= steps.assertions.len();
                is_version && outcome(operation) == Err(*at)
            }
            ClaimWhat::ChangedNothing { operation, results } => {
                outcome(operation) == Ok((results.to_vec(), false))
            }
            ClaimWhat::Shown { look, answers } => {
                let mut pairs = look.reads.iter().zip(*answers);
                pairs.all(|(read, answer)| is_answer(read, answer, objects))
            }
            ClaimWhat::Listed { name, with_data, found } => {
                let there = listed(&part(&mut std::iter::once(name)), *with_data, 0);
                there.get(name.bytes()) == *found
            }
        }
    }

    fn complaint(&self, pg: u32, changes: &[(Version, &Executed)], last: &Models) -> String {
        let version = |state: usize| match state.checked_sub(1) {
            Some(at) => changes[at].0,
            None => Version::ZERO,
        };
        let (first, end) = self.states;
        let what: &dyn Debug = match &self.what {
            ClaimWhat::Listed { name, .. } => name,
            _ => &"it",
        };
        let text = format!(
            "no state of PG {pg} from {} to {} is as {what:?} was told: {:?}; the last one: {last:?}",
            version(first),
            version(end),
            self.ask
        );
        text.chars().take(6000).collect()
    }
}
