//! What is known of an object pool: which operations users asked for, what they were answered, and what was
//! executed. At the end of a run all of it must fit together.
//!
//! Each change that takes effect has a version, and the versions of a PG order its changes. What is executed is
//! seen where it enters an engine: with the changes goes the repeat, which names session, number and version. So
//! changes whose answers nobody got are known, too.
//!
//! ```text
//!   versions of a PG    1     2     3     4     5
//!                    ●──┬──●──┬──●──┬──●──┬──●──┬──●   states of the plain model
//!                          └───────────┘
//!                     a read shows one of these: not older than what had been answered before it began, and
//!                     without what was asked for after it ended
//! ```
//!
//! Invariants checked
//!   1. An operation is executed once, however often it is sent, and one that was refused is not executed.
//!   2. The plain model, given all changes in the order of their versions, has the results that were answered
//!      and that the repeats hold.
//!   3. What a read shows, and why an operation was refused, is true of a state between its begin and its end.
//!   4. An acknowledged change is among those that were executed.
//!   5. No two additions to a counter have the same sum, and at the end a counter has what was acknowledged.
//!   6. A version of an object has one time of change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use base::hash::pg_of_hash;
use base::{SessionId, Version};
use objects::model::{MODIFIED, Models, is_answer, listed, model};
use objects::{
    Field, Listed, Look, Name, Operation, PageEntry, Read, ReadAnswer, Repeat, Shard, Stat,
    StepResult, decode_answers, decode_results,
};
use volume::{Answer, VolumeError};

use crate::register::Moment;

/// What is known of an object pool.
pub struct ObjectHistory {
    pg_count: u32,
    shard_count: u32,
    asks: Vec<Ask>,
    /// The operations that were sent, by session and number.
    sent: BTreeMap<(SessionId, u64), usize>,
    /// What entered an engine, by PG and version.
    executed: BTreeMap<(u32, Version), Executed>,
    /// The highest version of each PG that was answered.
    answered: BTreeMap<u32, Version>,
    /// The version of each object in its last answer.
    known: BTreeMap<Name, Version>,
    /// When each version of an object was made, as reads say.
    modified: BTreeMap<(Name, Version), u64>,
    counters: BTreeMap<Name, Counter>,
    /// The number of operations without an answer.
    open_count: usize,
}

/// A request of a user.
#[derive(Debug)]
struct Ask {
    pg: u32,
    session: SessionId,
    what: What,
    from: Moment,
    /// The highest version of the PG that had been answered when it began.
    lowest: Version,
    /// The number of an operation that was sent.
    number: Option<u64>,
    end: Option<(Moment, End)>,
}

#[derive(Debug)]
enum What {
    Change { operation: Operation, bytes: Vec<u8> },
    Look(Look),
}

/// How a request ended.
#[derive(Debug)]
enum End {
    /// The operation was carried out; version zero: it changed nothing.
    Changed {
        version: Version,
        results: Vec<StepResult>,
    },
    /// An assertion is not true, or a number cannot be added to.
    Asserted {
        object: usize,
        step: usize,
        version: Version,
    },
    /// It was refused for want of space.
    Full,
    /// It may have been carried out or not.
    Unsure,
    Looked(Vec<ReadAnswer>),
}

/// What an engine was told of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Executed {
    session: SessionId,
    number: u64,
    results: Vec<StepResult>,
}

/// An object that is only added to, by one each time.
#[derive(Default)]
struct Counter {
    sums: BTreeSet<i64>,
    /// Additions that may have been carried out.
    asked: i64,
}

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

/// The record of a counter that is added to.
pub fn counter_field() -> Field {
    Field::Record(b"n".to_vec())
}

/// Returns whether an object is only used as a counter.
pub fn is_counter(name: &Name) -> bool {
    name.bytes().starts_with(b"n")
}

impl ObjectHistory {
    /// Returns what is known of a pool that nobody has used.
    pub fn new(pg_count: u32, shard_count: u32) -> ObjectHistory {
        ObjectHistory {
            pg_count,
            shard_count,
            asks: Vec::new(),
            sent: BTreeMap::new(),
            executed: BTreeMap::new(),
            answered: BTreeMap::new(),
            known: BTreeMap::new(),
            modified: BTreeMap::new(),
            counters: BTreeMap::new(),
            open_count: 0,
        }
    }

    /// Returns the PG of an object.
    pub fn pg_of(&self, name: &Name) -> u32 {
        pg_of_hash(name.hash(), self.pg_count)
    }

    /// Returns the shards of a PG.
    pub fn shards_of(&self, pg: u32) -> Vec<Shard> {
        let count = self.shard_count / self.pg_count;
        (pg * count..(pg + 1) * count).map(|shard| Shard::new(shard as u16)).collect()
    }

    /// Returns the version of an object in its last answer.
    pub fn known_version(&self, name: &Name) -> Version {
        self.known.get(name).copied().unwrap_or_default()
    }

    /// Records that a user asks for an operation. Returns the number of the request.
    pub fn ask_change(
        &mut self,
        session: SessionId,
        operation: Operation,
        from: Moment,
    ) -> (usize, Vec<u8>) {
        for object in operation.objects.iter().filter(|object| is_counter(&object.name)) {
            self.counters.entry(object.name.clone()).or_default().asked += 1;
        }
        let (pg, bytes) = (self.pg_of(&operation.objects[0].name), operation.encode());
        let what = What::Change { operation, bytes: bytes.clone() };
        self.open_count += 1;
        (self.ask(pg, session, what, from), bytes)
    }

    /// Records that a user asks what objects of a PG are. Returns the number of the request.
    pub fn ask_look(&mut self, session: SessionId, pg: u32, look: Look, from: Moment) -> usize {
        self.ask(pg, session, What::Look(look), from)
    }

    fn ask(&mut self, pg: u32, session: SessionId, what: What, from: Moment) -> usize {
        let lowest = self.answered.get(&pg).copied().unwrap_or_default();
        self.asks.push(Ask { pg, session, what, from, lowest, number: None, end: None });
        self.asks.len() - 1
    }

    /// Records that an operation is sent. Returns whether it was sent before.
    pub fn sent(&mut self, session: SessionId, number: u64, sent: &[u8]) -> Result<bool, String> {
        if let Some(ask) = self.sent.get(&(session, number)) {
            return match &self.asks[*ask].what {
                What::Change { bytes, .. } if bytes == sent => Ok(true),
                _ => Err(format!("number {number} of session {session} names two operations")),
            };
        }
        // What is equal is sent in the order in which it was asked for.
        let is_it = |ask: &Ask| {
            ask.session == session
                && ask.number.is_none()
                && matches!(&ask.what, What::Change { bytes, .. } if bytes == sent)
        };
        let ask = self.asks.iter().position(is_it);
        let ask = ask.ok_or_else(|| format!("nobody asked for number {number} of {session}"))?;
        self.asks[ask].number = Some(number);
        self.sent.insert((session, number), ask);
        Ok(false)
    }

    /// Records that the repeat of an operation enters an engine.
    pub fn executed(
        &mut self,
        shard: Shard,
        (session, number): (SessionId, u64),
        repeat: Repeat,
    ) -> Result<(), String> {
        let pg = u32::from(shard.get()) / (self.shard_count / self.pg_count);
        let Repeat { version, results } = repeat;
        let executed = Executed { session, number, results };
        let known = self.executed.entry((pg, version)).or_insert_with(|| executed.clone());
        match *known == executed {
            true => Ok(()),
            false => Err(format!("{version} of PG {pg} is {known:?} and {executed:?}")),
        }
    }

    /// Records the answer to a request.
    pub fn answered(
        &mut self,
        number: usize,
        result: Result<Answer, VolumeError>,
        to: Moment,
    ) -> Result<(), String> {
        let ask = &self.asks[number];
        let pg = ask.pg;
        let end = match (&ask.what, result) {
            (What::Change { operation, .. }, Ok(Answer::Mutated { version, results })) => {
                let results = decode_results(&results).ok_or("results cannot be decoded")?;
                let highest = self.answered.entry(pg).or_default();
                *highest = version.max(*highest);
                for object in &operation.objects {
                    if version > Version::ZERO {
                        self.known.insert(object.name.clone(), version);
                    }
                    if let (true, [StepResult::Sum(sum)]) = (is_counter(&object.name), &results[..])
                    {
                        let counter = self.counters.entry(object.name.clone()).or_default();
                        if !counter.sums.insert(*sum) {
                            return Err(format!("{:?} was {sum} for two additions", object.name));
                        }
                    }
                }
                End::Changed { version, results }
            }
            (What::Change { .. }, Err(VolumeError::Asserted { object, step, version })) => {
                End::Asserted { object: object.into(), step: step.into(), version }
            }
            (What::Change { .. }, Err(VolumeError::Full)) => End::Full,
            (_, Err(VolumeError::Ended | VolumeError::TimedOut)) => End::Unsure,
            (What::Look(look), Ok(Answer::Looked(bytes))) => {
                let answers = decode_answers(&bytes).ok_or("answers cannot be decoded")?;
                if answers.len() != look.reads.len() {
                    return Err(format!("{} answers to {look:?}", answers.len()));
                }
                let look = look.clone();
                End::Looked(self.noted(pg, &look, answers)?)
            }
            (what, result) => return Err(format!("{what:?} is answered {result:?}")),
        };
        self.ends(number, to, end);
        Ok(())
    }

    /// Records that nobody waits for an answer any more.
    pub fn given_up(&mut self, number: usize, to: Moment) {
        self.ends(number, to, End::Unsure);
    }

    fn ends(&mut self, number: usize, to: Moment, end: End) {
        let ask = &mut self.asks[number];
        self.open_count -= usize::from(matches!(ask.what, What::Change { .. }));
        let before = ask.end.replace((to, end));
        assert!(before.is_none(), "the caller forgets what was answered");
    }

    /// Notes what answers say of objects. Returns them with the times that the model has.
    fn noted(
        &mut self,
        pg: u32,
        look: &Look,
        mut answers: Vec<ReadAnswer>,
    ) -> Result<Vec<ReadAnswer>, String> {
        for (read, answer) in look.reads.iter().zip(&mut answers) {
            match answer {
                ReadAnswer::Stat(Some(stat)) | ReadAnswer::Data(Some((stat, _))) => {
                    let name = read.name().ok_or("a listing is answered with an object")?;
                    self.note_stat(pg, name, stat)?;
                }
                ReadAnswer::List(page) => {
                    for entry in &mut page.entries {
                        let PageEntry::Key(key, listed) = entry else { continue };
                        let name = Name::new(key).ok_or("a name that is none is listed")?;
                        self.note_stat(pg, &name, &mut listed.stat)?;
                    }
                }
                ReadAnswer::Values(values) if self.open_count == 0 => {
                    if let Read::Values { name, fields, .. } = read
                        && fields[..] == [counter_field()]
                    {
                        self.judge_counter(name, values)?;
                    }
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    fn note_stat(&mut self, pg: u32, name: &Name, stat: &mut Stat) -> Result<(), String> {
        let modified = std::mem::replace(&mut stat.modified, MODIFIED);
        let known = *self.modified.entry((name.clone(), stat.version)).or_insert(modified);
        if known != modified {
            return Err(format!(
                "{} of {name:?} was made at {known} and at {modified}",
                stat.version
            ));
        }
        let highest = self.answered.entry(pg).or_default();
        *highest = stat.version.max(*highest);
        self.known.insert(name.clone(), stat.version);
        Ok(())
    }

    /// Checks what a counter is while nothing is under way.
    fn judge_counter(&self, name: &Name, values: &[Option<Vec<u8>>]) -> Result<(), String> {
        let Some(counter) = self.counters.get(name) else { return Ok(()) };
        let value = match values {
            [Some(value)] => i64::from_le_bytes(
                value.clone().try_into().map_err(|_| format!("{name:?} is {value:?}"))?,
            ),
            _ => 0,
        };
        let acknowledged = counter.sums.len() as i64;
        match (acknowledged..=counter.asked).contains(&value) {
            true => Ok(()),
            false => Err(format!(
                "{name:?} is {value} after {acknowledged} acknowledged additions of {}",
                counter.asked
            )),
        }
    }

    /// Checks everything. `is_kept`: whether a version of a PG was adopted by all epochs that followed its own.
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
                let there = listed(&part(&mut std::iter::once(name)), *with_data);
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
