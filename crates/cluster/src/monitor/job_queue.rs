//! Jobs in the order in which they run, and the one whose transaction is on its way.
//!
//! Invariants
//!   1. At most one transaction is on its way; no job starts before its outcome is known.
//!   2. What others ask for is bounded by `JOB_COUNT_MAX`. What the monitor finds to be due by itself is
//!      not: it is bounded by what there is.

use std::collections::VecDeque;

use super::committed_state::Write;
use super::job::{Boot, Done, Job};
use crate::state::StateRequest;

/// Jobs that may wait for their turn; beyond that, requests are refused with "try again".
const JOB_COUNT_MAX: usize = 10_000;

/// A job whose transaction is on its way.
pub(super) struct InFlight {
    request: StateRequest,
    pub(super) job: Job,
    pub(super) writes: Vec<Write>,
    /// How the job ends with it; `None`: it is planned again.
    pub(super) done: Option<Done>,
}

/// The jobs of a monitor.
#[derive(Default)]
pub(super) struct JobQueue {
    waiting: VecDeque<Job>,
    in_flight: Option<InFlight>,
}

impl JobQueue {
    /// Jobs that wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one more job may be queued, given how many are held back elsewhere.
    pub(super) fn has_room(&self, held_count: usize) -> bool {
        self.waiting.len() + held_count < JOB_COUNT_MAX
    }

    /// Runs the job after all others.
    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Runs the job before all others.
    pub(super) fn push_first(&mut self, job: Job) {
        self.waiting.push_front(job);
    }

    /// Runs the job before all others but edits, which are judged first.
    pub(super) fn push_urgent(&mut self, job: Job) {
        let is_edit = |job: &Job| matches!(job, Job::Edit { .. });
        let place = self.waiting.iter().position(|job| !is_edit(job));
        self.waiting.insert(place.unwrap_or(self.waiting.len()), job);
    }

    /// Runs these jobs, which waited for something else, after all others.
    pub(super) fn extend(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.waiting.extend(jobs);
    }

    /// The next job to plan; none while a transaction is on its way.
    pub(super) fn next(&mut self) -> Option<Job> {
        if self.in_flight.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Boots that wait for their turn.
    pub(super) fn boots(&self) -> impl Iterator<Item = &Boot> {
        self.waiting.iter().filter_map(|job| match job {
            Job::Boot(boot) => Some(boot),
            _ => None,
        })
    }

    /// Whether a transaction is on its way.
    pub(super) fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether this request is the transaction that is on its way.
    pub(super) fn is_awaited(&self, request: StateRequest) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.request == request)
    }

    /// The job's transaction is on its way. Requires: none is.
    pub(super) fn start(
        &mut self,
        request: StateRequest,
        job: Job,
        writes: Vec<Write>,
        done: Option<Done>,
    ) {
        assert!(self.in_flight.is_none(), "one transaction at a time");
        self.in_flight = Some(InFlight { request, job, writes, done });
    }

    /// The outcome of the transaction is known: the next job may start once this one has gone on.
    pub(super) fn take_in_flight(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }
}
