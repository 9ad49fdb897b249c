//! Recorded tasks: deleting the blocks of removed volumes, and those cut off by shrinking a volume.
//!
//! A task processes its pool PG by PG, with requests to each primary over the connection that the
//! OSD made to this monitor. Deleting is idempotent, so work that was done but not recorded is
//! repeated after a restart. A PG whose primary is absent waits; the others continue.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::{pg_of_hash, stripe_hash};
use base::{ConnectionId, Duration, PgId, SessionId, Time};
use format::door::NetEffect;
use format::wire::{Message, Op, Outcome, Place, Refusal, Reply, Request};
use serde_json::{Value, json};

use super::committed_state::{Batch, CommittedState};
use super::job::{Done, Job, Plan};
use super::{Effect, Monitor};
use crate::records::{Key, Record, TaskId, TaskKind, TaskRecord, ZeroRange};

/// Maximum number of requests of one task in flight: few, because clients have priority.
const ASKED_COUNT_MAX: usize = 8;
/// Number of steps in which a task's progress is recorded.
const PROGRESS_PARTS: u32 = 8;
/// Delay before a request to a busy or stale OSD is repeated.
const RETRY_SPAN: Duration = Duration::from_millis(200);
/// Delay before a request to an OSD that is absent, or cannot carry it out, is repeated.
const AWAY_SPAN: Duration = Duration::from_secs(1);

/// The state of a task in this process.
pub(super) struct TaskRun {
    stage: TaskStage,
    /// Blocks deleted by this process.
    blocks_deleted: u64,
    /// What the task waits for, as text for operators.
    waits_for: Option<String>,
    is_progress_queued: bool,
    /// The time at which this process began to delete, and how many PGs were done by then.
    began: Option<(Time, u32)>,
    /// Estimated time left at the rate so far; `None`: unknown.
    time_left: Option<Duration>,
}

/// The stages of a task, in the order in which they occur.
enum TaskStage {
    /// Waits until every OSD of the pool that is up has seen the fences.
    Fence,
    /// Deletes portion by portion.
    Delete(Portions),
    /// Waits for the transaction that removes the task's record.
    End,
}

/// A unit of a task's work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Portion {
    /// The stripe that contains the new end of the volume: its part beyond that end is zeroed.
    Zero,
    /// One PG.
    Pg(u32),
}

/// The progress of a task's portions.
struct Portions {
    /// The first PG that has not been requested yet.
    next: u32,
    /// Portions to be requested at a later time, ordered by that time.
    later: BTreeSet<(Time, Portion)>,
    /// Portions in flight, by sequence number of the request.
    asked: BTreeMap<u64, (Portion, ConnectionId)>,
    /// PGs at or after `done_up_to` that are already done.
    done: BTreeSet<u32>,
    /// PGs before this one are done.
    done_up_to: u32,
}

impl Portions {
    fn of(record: &TaskRecord, now: Time) -> Portions {
        let zero = record.zero.map(|_| (now, Portion::Zero));
        Portions {
            next: record.pgs_done,
            later: zero.into_iter().collect(),
            asked: BTreeMap::new(),
            done: BTreeSet::new(),
            done_up_to: record.pgs_done,
        }
    }

    /// Takes the next portion to request.
    fn take(&mut self, now: Time, pg_count: u32) -> Option<Portion> {
        if let Some((time, portion)) = self.later.first().copied()
            && time <= now
        {
            self.later.pop_first();
            return Some(portion);
        }
        if self.next < pg_count {
            self.next += 1;
            return Some(Portion::Pg(self.next - 1));
        }
        None
    }

    fn mark_done(&mut self, portion: Portion) {
        if let Portion::Pg(number) = portion {
            self.done.insert(number);
        }
        while self.done.remove(&self.done_up_to) {
            self.done_up_to += 1;
        }
    }

    fn done_count(&self) -> u32 {
        self.done_up_to + self.done.len() as u32
    }

    /// Returns the estimated time left, at the rate since `began`; `None`: nothing was done since then.
    fn time_left(&self, now: Time, began: (Time, u32), pg_count: u32) -> Option<Duration> {
        let done = self.done_count();
        let left = u64::from(pg_count.saturating_sub(done));
        let nanos = now.since(began.0).as_nanos().checked_div(u64::from(done - began.1))?;
        Some(Duration::from_nanos(nanos.saturating_mul(left)))
    }

    fn is_done(&self, pg_count: u32) -> bool {
        self.done_up_to == pg_count && self.later.is_empty() && self.asked.is_empty()
    }
}

/// The state of all recorded tasks in this process.
#[derive(Default)]
pub(super) struct Tasks {
    runs: BTreeMap<TaskId, TaskRun>,
    /// The last sequence number assigned to a request; no number is used twice.
    sequence_last: u64,
    /// Whether something happened for which a task may be waiting.
    has_news: bool,
}

impl Tasks {
    /// Tracks exactly the recorded tasks: adds new ones, and forgets those whose records are gone.
    fn track(&mut self, committed: &CommittedState) {
        self.has_news = true;
        self.runs.retain(|id, _| committed.task(*id).is_some());
        for record in committed.tasks() {
            self.runs.entry(record.id).or_insert(TaskRun {
                stage: TaskStage::Fence,
                blocks_deleted: 0,
                waits_for: None,
                is_progress_queued: false,
                began: None,
                time_left: None,
            });
        }
    }

    /// Notes that something happened for which a task may be waiting.
    pub(super) fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Whether tasks should continue now; clears `has_news`.
    pub(super) fn take_due(&mut self, now: Time) -> bool {
        std::mem::take(&mut self.has_news) || self.deadline().is_some_and(|due| due <= now)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence_last += 1;
        self.sequence_last
    }

    /// Returns what a task waits for, as text for operators.
    pub(super) fn waits_for(&self, task: TaskId) -> Option<&str> {
        self.runs.get(&task)?.waits_for.as_deref()
    }

    /// Handles a reply to one of the requests.
    pub(super) fn on_reply(&mut self, now: Time, connection: ConnectionId, reply: Reply) {
        let is_asked = |run: &TaskRun| match &run.stage {
            TaskStage::Delete(portions) => {
                let asked = portions.asked.get(&reply.sequence);
                asked.is_some_and(|(_, asked)| *asked == connection)
            }
            _ => false,
        };
        let Some(run) = self.runs.values_mut().find(|run| is_asked(run)) else { return };
        let TaskStage::Delete(portions) = &mut run.stage else { return };
        let (portion, _) = portions.asked.remove(&reply.sequence).expect("just seen");
        self.has_news = true;
        match (portion, reply.outcome) {
            (Portion::Pg(_), Ok(Outcome::Deleted { count, complete })) => {
                run.blocks_deleted += u64::from(count);
                if portions.later.is_empty() {
                    run.waits_for = None;
                }
                if complete {
                    portions.mark_done(portion);
                } else {
                    portions.later.insert((now, portion));
                }
            }
            (Portion::Zero, Ok(Outcome::Written { .. })) => portions.mark_done(portion),
            (_, Err(Refusal::Busy | Refusal::Stale(_))) => {
                portions.later.insert((now + RETRY_SPAN, portion));
            }
            (_, outcome) => {
                let why = match &outcome {
                    Ok(_) => "an answer to another request".to_owned(),
                    Err(refusal) => refusal.to_string(),
                };
                run.waits_for =
                    Some(format!("an OSD that can perform the deletion; one answered: {why}"));
                portions.later.insert((now + AWAY_SPAN, portion));
            }
        }
    }

    /// Requeues the requests that were sent over a closed connection.
    pub(super) fn requeue_requests(&mut self, now: Time, connection: ConnectionId) {
        self.has_news = true;
        for run in self.runs.values_mut() {
            let TaskStage::Delete(portions) = &mut run.stage else { continue };
            let lost = portions.asked.extract_if(.., |_, (_, asked)| *asked == connection);
            let lost: Vec<Portion> = lost.map(|(_, (portion, _))| portion).collect();
            portions.later.extend(lost.into_iter().map(|portion| (now, portion)));
        }
    }

    /// Notes that a task's progress is recorded in the store.
    pub(super) fn on_progress_recorded(&mut self, task: TaskId) {
        if let Some(run) = self.runs.get_mut(&task) {
            run.is_progress_queued = false;
            self.has_news = true;
        }
    }

    /// Returns the time at which a portion must be requested again.
    pub(super) fn deadline(&self) -> Option<Time> {
        let next = |run: &TaskRun| match &run.stage {
            TaskStage::Delete(portions) if portions.asked.len() < ASKED_COUNT_MAX => {
                portions.later.first().map(|(time, _)| *time)
            }
            _ => None,
        };
        self.runs.values().filter_map(next).min()
    }
}

impl Monitor {
    /// Tracks exactly the recorded tasks.
    pub(super) fn track_tasks(&mut self) {
        self.tasks.track(&self.committed);
    }

    pub(super) fn advance_tasks(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.committed.is_damaged() {
            return;
        }
        self.ask_to_clear_pools(effects);
        let ids: Vec<TaskId> = self.tasks.runs.keys().copied().collect();
        for id in ids {
            let mut run = self.tasks.runs.remove(&id).expect("just listed");
            let record = self.committed.task(id).expect("only recorded tasks run").clone();
            self.advance_task(now, &record, &mut run, effects);
            self.tasks.runs.insert(id, run);
        }
    }

    fn advance_task(
        &mut self,
        now: Time,
        record: &TaskRecord,
        run: &mut TaskRun,
        effects: &mut Vec<Effect>,
    ) {
        let Some(pool) = self.committed.pool(record.pool) else {
            // The pool was removed meanwhile; this record is deleted with the rest of the pool.
            run.waits_for = None;
            return;
        };
        let pg_count = pool.pool.pg_count;
        if matches!(run.stage, TaskStage::Fence) {
            let behind = self.osd_that_has_not_seen(record.pool, record.fence_revision);
            run.waits_for = behind.map(|osd| format!("{osd} to refuse the volume's old sessions"));
            if behind.is_some() {
                return;
            }
            run.stage = TaskStage::Delete(Portions::of(record, now));
            run.began = Some((now, record.pgs_done));
        }
        let TaskStage::Delete(portions) = &mut run.stage else { return };
        while portions.asked.len() < ASKED_COUNT_MAX
            && let Some(portion) = portions.take(now, pg_count)
        {
            match self.ask(record, portion, effects) {
                Ok((sequence, connection)) => {
                    portions.asked.insert(sequence, (portion, connection));
                }
                Err(why) => {
                    run.waits_for = Some(why);
                    portions.later.insert((now + AWAY_SPAN, portion));
                }
            }
        }
        let pace = run.began.filter(|_| run.waits_for.is_none());
        run.time_left = pace.and_then(|began| portions.time_left(now, began, pg_count));
        let step = (pg_count / PROGRESS_PARTS).max(1);
        if portions.is_done(pg_count) {
            run.stage = TaskStage::End;
            self.jobs.push(Job::TaskEnd { task: record.id });
        } else if portions.done_up_to >= record.pgs_done + step && !run.is_progress_queued {
            run.is_progress_queued = true;
            let pgs_done = portions.done_up_to;
            self.jobs.push(Job::TaskProgress { task: record.id, pgs_done });
        }
    }

    /// Sends the request for a portion to the PG's primary. An error describes the absent OSD.
    fn ask(
        &mut self,
        record: &TaskRecord,
        portion: Portion,
        effects: &mut Vec<Effect>,
    ) -> Result<(u64, ConnectionId), String> {
        let pool = self.committed.pool(record.pool).expect("the caller saw it");
        let (number, op) = match portion {
            Portion::Pg(number) => {
                (number, Op::DeleteRange { image: record.image, from: record.from })
            }
            Portion::Zero => {
                let ZeroRange { stripe, offset, length } =
                    record.zero.expect("asked only where the record has it");
                let place = Place { image: record.image, seed: record.seed, stripe };
                let hash = stripe_hash(record.seed, stripe);
                (
                    pg_of_hash(hash, pool.pool.pg_count),
                    Op::Zero { place, offset, length, lazy: false },
                )
            }
        };
        let pg = PgId { pool: record.pool, number };
        let entry = self.committed.pg(pg).expect("every PG has an entry");
        let Some(osd) = entry.primary_osd() else { return Err(format!("a member of PG {pg}")) };
        let live = self.osds.get(&osd).and_then(|live| live.connection);
        let Some(connection) = live else { return Err(format!("{osd}, which is down")) };
        let sequence = self.tasks.next_sequence();
        let message = Message::Request(Request {
            session: SessionId::ZERO,
            sequence,
            pg,
            epoch: entry.epoch,
            revision: pool.revision,
            op,
        });
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
        Ok((sequence, connection))
    }

    pub(super) fn plan_task_progress(&self, task: TaskId, pgs_done: u32) -> Plan {
        let Some(record) = self.committed.task(task) else { return Plan::Done(Done::Silent) };
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Task(TaskRecord { pgs_done, ..record.clone() }));
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    pub(super) fn plan_task_end(&self, task: TaskId) -> Plan {
        if self.committed.task(task).is_none() {
            return Plan::Done(Done::Silent);
        }
        let mut batch = Batch::new(&self.committed);
        batch.delete(&self.committed, Key::Task(task));
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    /// Returns a task as commands show it.
    pub(super) fn task_row(&self, record: &TaskRecord) -> Value {
        let pool = self.committed.pool(record.pool);
        let run = self.tasks.runs.get(&record.id);
        let (state, pgs_done) = match run.map(|run| &run.stage) {
            None | Some(TaskStage::Fence) => ("fencing", record.pgs_done),
            Some(TaskStage::Delete(portions)) => ("deleting", portions.done_count()),
            Some(TaskStage::End) => ("ending", pool.map_or(0, |pool| pool.pool.pg_count)),
        };
        json!({
            "id": record.id,
            "kind": match record.kind { TaskKind::Remove => "remove", TaskKind::Shrink => "shrink" },
            "image": record.image,
            "name": record.name,
            "pool": pool.map(|pool| &pool.pool.name),
            "state": state,
            "pgs_total": pool.map(|pool| pool.pool.pg_count),
            "pgs_done": pgs_done,
            "eta_seconds": run.and_then(|run| run.time_left).map(|left| left.as_millis().div_ceil(1_000)),
            "blocks_deleted": run.map_or(0, |run| run.blocks_deleted),
            "waits_for": run.and_then(|run| run.waits_for.as_ref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_pace_and_is_unknown_without_progress() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let mut portions = Portions {
            next: 10,
            later: BTreeSet::new(),
            asked: BTreeMap::new(),
            done: BTreeSet::new(),
            done_up_to: 2,
        };
        assert_eq!(portions.time_left(at(5), (at(1), 2), 10), None);
        // PG 3 is done before PG 2: two of eight PGs are done after four seconds.
        portions.mark_done(Portion::Pg(3));
        portions.mark_done(Portion::Pg(2));
        assert_eq!(portions.time_left(at(5), (at(1), 2), 10), Some(Duration::from_secs(12)));
        portions.mark_done(Portion::Pg(5));
        assert_eq!(portions.time_left(at(7), (at(1), 2), 10), Some(Duration::from_secs(10)));
    }
}
