//! What is known of an object pool: which operations users asked for, what they were answered, and what was
//! executed. At the end of a run all of it must fit together (`object_judge.rs`).
//!
//! Each change that takes effect has a version, and the versions of a PG order its changes. What is executed
//! is seen where it enters an engine: with the changes goes the repeat, which names session, number and
//! version. So changes whose answers nobody got are known, too.
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

use base::hash::pg_of_hash;
use base::{SessionId, Version};
use objects::model::MODIFIED;
use objects::{
    Field, Look, Name, Operation, PageEntry, Read, ReadAnswer, Repeat, Shard, Stat, StepResult,
    decode_answers, decode_pages, decode_results,
};
use volume::{Answer, VolumeError};

use crate::register::Moment;

/// What is known of an object pool.
pub struct ObjectHistory {
    pub(super) pg_count: u32,
    shard_count: u32,
    pub(super) asks: Vec<Ask>,
    /// The operations that were sent, by session and number.
    pub(super) sent: BTreeMap<(SessionId, u64), usize>,
    /// What entered an engine, by PG and version.
    pub(super) executed: BTreeMap<(u32, Version), Executed>,
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
pub(super) struct Ask {
    pub(super) pg: u32,
    pub(super) session: SessionId,
    pub(super) what: What,
    pub(super) from: Moment,
    /// The highest version of the PG that had been answered when it began.
    pub(super) lowest: Version,
    /// The number of an operation that was sent.
    pub(super) number: Option<u64>,
    pub(super) end: Option<(Moment, End)>,
}

#[derive(Debug)]
pub(super) enum What {
    Change { operation: Operation, bytes: Vec<u8> },
    Look(Look),
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum End {
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
    /// It was refused for want of space, or because it is too large, or given up before it could happen.
    Refused,
    /// It may have been carried out or not.
    Unsure,
    Looked(Vec<ReadAnswer>),
}

/// What an engine was told of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Executed {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) results: Vec<StepResult>,
}

/// An object that is only added to, by one each time.
#[derive(Default)]
struct Counter {
    sums: BTreeSet<i64>,
    /// Additions that may have been carried out.
    asked: i64,
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
        pg_of_hash(name.hash(objects::NameHash::Plain), self.pg_count)
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

    /// Returns bytes that no operation has had. Each operation must have some: by what it asks for it is
    /// known which one is sent under a number.
    pub fn tag(&self) -> [u8; 8] {
        (self.asks.len() as u64).to_le_bytes()
    }

    /// Records that a user asks for an operation, which is like no other. Returns the number of the request.
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
            if let Some((_, end)) = &self.asks[*ask].end {
                return Err(format!(
                    "number {number} of {session} is sent again, but it is {end:?}"
                ));
            }
            return match &self.asks[*ask].what {
                What::Change { bytes, .. } if bytes == sent => Ok(true),
                _ => Err(format!("number {number} of session {session} names two operations")),
            };
        }
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

    /// Returns the numbers of PGs and of shards.
    pub fn shape(&self) -> (u32, u32) {
        (self.pg_count, self.shard_count)
    }

    /// Returns the number of the PG that has a shard.
    pub fn pg_of_shard(&self, shard: Shard) -> u32 {
        u32::from(shard.get()) / (self.shard_count / self.pg_count)
    }

    /// Records that the repeat of an operation enters an engine.
    pub fn executed(
        &mut self,
        shard: Shard,
        (session, number): (SessionId, u64),
        repeat: Repeat,
    ) -> Result<(), String> {
        let pg = self.pg_of_shard(shard);
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
            (What::Change { .. }, Err(VolumeError::Full | VolumeError::Unavailable { .. })) => {
                End::Refused
            }
            // Those of several objects keep all data in heads.
            (What::Change { operation, .. }, Err(VolumeError::TooLarge { .. }))
                if operation.objects.len() > 1 =>
            {
                End::Refused
            }
            (What::Look(_), Err(VolumeError::Ended | VolumeError::Unavailable { .. }))
            | (What::Change { .. }, Err(VolumeError::Ended | VolumeError::Unknown)) => End::Unsure,
            (What::Look(look), Ok(Answer::Looked(bytes))) => {
                let answers = decode_answers(&bytes.into()).ok_or("answers cannot be decoded")?;
                if answers.len() != look.reads.len() {
                    return Err(format!("{} answers to {look:?}", answers.len()));
                }
                let look = look.clone();
                End::Looked(self.noted(pg, &look, answers)?)
            }
            (what, result) => {
                let result: String = format!("{result:?}").chars().take(400).collect();
                return Err(format!("{result} is answered to {what:?}"));
            }
        };
        self.ends(number, to, end);
        Ok(())
    }

    /// Records the answer to a list of the whole pool, which is a look of each PG, by its number. Returns how
    /// many PGs are to be asked alone.
    pub fn listed(
        &mut self,
        looks: &[usize],
        result: &Result<Answer, VolumeError>,
        to: Moment,
    ) -> Result<usize, String> {
        let (pages, refused) = match result {
            Ok(Answer::Listed { pages, refused }) => (pages, refused),
            Err(VolumeError::Ended | VolumeError::Unavailable { .. }) => {
                looks.iter().for_each(|number| self.ends(*number, to, End::Unsure));
                return Ok(0);
            }
            other => return Err(format!("a list is answered with {other:?}")),
        };
        let distinct: BTreeSet<&u32> = refused.iter().filter(|pg| **pg < self.pg_count).collect();
        if distinct.len() != refused.len() {
            return Err(format!("PGs that are refused: {refused:?}"));
        }
        // Pages do not say of which PG they are, but names do.
        let (mut named, mut empty) = (BTreeMap::new(), Vec::new());
        for bytes in pages {
            let found = decode_pages(&bytes.clone().into()).ok_or("pages cannot be decoded")?;
            for page in found {
                match page.entries.first() {
                    Some(PageEntry::Key(key, _)) => {
                        let name = Name::new(key).ok_or("a name that is none is listed")?;
                        let pg = self.pg_of(&name);
                        if named.insert(pg, page).is_some() {
                            return Err(format!("two pages of PG {pg} in a list"));
                        }
                    }
                    Some(PageEntry::CommonPrefix(_)) => {
                        return Err(format!("a common prefix without a delimiter: {page:?}"));
                    }
                    None if page.next.is_some() => {
                        return Err(format!("a page has nothing, and is not the last: {page:?}"));
                    }
                    None => empty.push(page),
                }
            }
        }
        for (pg, number) in (0..).zip(looks) {
            let page = match (refused.contains(&pg), named.remove(&pg)) {
                (true, Some(_)) => return Err(format!("PG {pg} is listed and refused")),
                (true, None) => {
                    self.ends(*number, to, End::Unsure);
                    continue;
                }
                (false, Some(page)) => page,
                (false, None) => empty.pop().ok_or("a list has fewer pages than PGs")?,
            };
            let What::Look(look) = &self.asks[*number].what else { unreachable!("it is a look") };
            let look = look.clone();
            let answers = self.noted(pg, &look, vec![ReadAnswer::List(page)])?;
            self.ends(*number, to, End::Looked(answers));
        }
        match empty.is_empty() && named.is_empty() {
            true => Ok(refused.len()),
            false => Err("a list has more pages than PGs".into()),
        }
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
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use objects::{Assertion, ObjectChange, ObjectSteps, encode_answers, encode_results};

    use super::*;

    const SESSION: SessionId = SessionId::new(7);

    fn version(counter: u64) -> Version {
        if counter == 0 { Version::ZERO } else { Version { epoch: Epoch::new(2), counter } }
    }

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).unwrap()
    }

    /// Asks for an addition to `a`. If it has a version, it is sent and executed.
    fn add(history: &mut ObjectHistory, at: Moment, number: u64, sum: i64) -> (usize, Executed) {
        let changes = vec![ObjectChange::Add(counter_field(), 1)];
        let steps = ObjectSteps { name: name(b"a"), assertions: Vec::new(), changes };
        let (ask, bytes) = history.ask_change(SESSION, Operation { objects: vec![steps] }, at);
        assert_eq!(history.sent(SESSION, number, &bytes), Ok(false));
        assert_eq!(history.sent(SESSION, number, &bytes), Ok(true));
        let results = vec![StepResult::Sum(sum)];
        (ask, Executed { session: SESSION, number, results })
    }

    fn enter(history: &mut ObjectHistory, counter: u64, executed: &Executed) {
        let Executed { session, number, results } = executed.clone();
        let repeat = Repeat { version: version(counter), results };
        assert_eq!(history.executed(Shard::new(0), (session, number), repeat), Ok(()));
    }

    fn acknowledge(history: &mut ObjectHistory, ask: usize, at: Moment, counter: u64, sum: i64) {
        let results = encode_results(&[StepResult::Sum(sum)]);
        let answer = Answer::Mutated { version: version(counter), results };
        assert_eq!(history.answered(ask, Ok(answer), at), Ok(()));
    }

    /// Two additions, from moment 10 to 20 and from 30 to 40.
    fn two() -> ObjectHistory {
        let mut history = ObjectHistory::new(1, 4);
        for (at, number) in [(10, 1), (30, 2)] {
            let (ask, executed) = add(&mut history, at, number, number as i64);
            enter(&mut history, number, &executed);
            acknowledge(&mut history, ask, at + 10, number, number as i64);
        }
        history
    }

    fn judge(history: &ObjectHistory) -> Result<(), String> {
        history.judge(|_, _| true)
    }

    /// Reads the number in `a` between two moments.
    fn read(history: &mut ObjectHistory, from: Moment, to: Moment, sum: i64) {
        let (name, fields) = (name(b"a"), vec![counter_field()]);
        let look = Look { reads: vec![Read::Values { name, fields, size_max: 100 }] };
        // The caller may begin it late, as if nothing had been answered then.
        let ask = history.ask_look(SESSION, 0, look, from);
        history.asks[ask].lowest = version(u64::from(from > 20) + u64::from(from > 40));
        let value = (sum > 0).then(|| sum.to_le_bytes().to_vec());
        let bytes = encode_answers(&[ReadAnswer::Values(vec![value])]);
        assert_eq!(history.answered(ask, Ok(Answer::Looked(bytes)), to), Ok(()));
    }

    #[test]
    fn a_read_shows_a_state_between_its_begin_and_its_end() {
        for (from, to, sums) in [(1, 5, 0..=0), (1, 15, 0..=1), (25, 26, 1..=1), (25, 35, 1..=2)] {
            for sum in 0..=3 {
                let mut history = two();
                read(&mut history, from, to, sum);
                assert_eq!(judge(&history).is_ok(), sums.contains(&sum), "{from} {to} {sum}");
            }
        }
    }

    #[test]
    fn an_operation_that_is_executed_twice_is_found() {
        let mut history = two();
        let (_, executed) = add(&mut history, 50, 3, 3);
        enter(&mut history, 3, &executed);
        assert_eq!(judge(&history), Ok(()), "nobody knows yet whether it is answered");
        enter(&mut history, 4, &executed);
        assert!(judge(&history).unwrap_err().contains("executed"));
        // An epoch that followed has not adopted it.
        assert_eq!(history.judge(|_, it| it < version(4)), Ok(()));
    }

    #[test]
    fn what_is_acknowledged_is_there_and_what_is_refused_is_not() {
        let mut history = two();
        let (ask, executed) = add(&mut history, 50, 3, 3);
        acknowledge(&mut history, ask, 60, 3, 3);
        assert!(judge(&history).is_err());
        enter(&mut history, 3, &executed);
        assert_eq!(judge(&history), Ok(()));
        let mut history = two();
        let (ask, executed) = add(&mut history, 50, 3, 3);
        assert_eq!(history.answered(ask, Err(VolumeError::Full), 60), Ok(()));
        assert_eq!(judge(&history), Ok(()));
        enter(&mut history, 3, &executed);
        assert!(judge(&history).is_err());
    }

    #[test]
    fn results_are_those_of_the_model_and_versions_have_the_order_of_time() {
        let mut history = two();
        let (ask, executed) = add(&mut history, 50, 3, 4);
        enter(&mut history, 3, &executed);
        acknowledge(&mut history, ask, 60, 3, 4);
        assert!(judge(&history).is_err(), "the sum is 3");
        // The second one was asked for when the first one had been answered, and stands before it.
        let mut history = ObjectHistory::new(1, 4);
        let (first, executed) = add(&mut history, 10, 1, 2);
        enter(&mut history, 2, &executed);
        acknowledge(&mut history, first, 20, 2, 2);
        let (second, executed) = add(&mut history, 30, 2, 1);
        enter(&mut history, 1, &executed);
        acknowledge(&mut history, second, 40, 1, 1);
        assert!(judge(&history).is_err());
    }

    #[test]
    fn a_refusal_is_right_at_some_moment() {
        for (assertion, told, is_right) in [
            (Assertion::Absent, 2, true),
            (Assertion::Absent, 1, false),
            (Assertion::Exists, 2, false),
            (Assertion::Version(version(1)), 2, true),
        ] {
            let mut history = two();
            let steps = ObjectSteps {
                name: name(b"a"),
                assertions: vec![assertion],
                changes: vec![ObjectChange::Remove],
            };
            let operation = Operation { objects: vec![steps] };
            let (ask, bytes) = history.ask_change(SESSION, operation, 50);
            assert_eq!(history.sent(SESSION, 3, &bytes), Ok(false));
            let error = VolumeError::Asserted { object: 0, step: 0, version: version(told) };
            assert_eq!(history.answered(ask, Err(error), 60), Ok(()));
            assert_eq!(judge(&history).is_ok(), is_right);
        }
    }

    #[test]
    fn a_counter_has_what_was_acknowledged_and_no_more_than_was_asked_for() {
        let mut history = ObjectHistory::new(1, 4);
        let counter = name(b"n1");
        for number in 1..=3 {
            let changes = vec![ObjectChange::Add(counter_field(), 1)];
            let steps = ObjectSteps { name: counter.clone(), assertions: Vec::new(), changes };
            let (ask, _) = history.ask_change(SESSION, Operation { objects: vec![steps] }, 1);
            match number {
                3 => history.given_up(ask, 9),
                _ => acknowledge(&mut history, ask, 9, number, number as i64),
            }
        }
        let is_right =
            |sum: i64| history.judge_counter(&counter, &[Some(sum.to_le_bytes().to_vec())]).is_ok();
        assert_eq!([1, 2, 3, 4].map(is_right), [false, true, true, false]);
    }
}
