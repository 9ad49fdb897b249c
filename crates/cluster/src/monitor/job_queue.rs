//! Jobs in the order in which they run, and the job whose transaction is in flight.
//!
//! Invariants
//!   1. At most one transaction is in flight; no job starts before its outcome is known.
//!   2. Jobs that others request are bounded by `JOB_COUNT_MAX`. Jobs that the monitor itself creates are
//!      not, because their number is bounded by the number of objects in the cluster.

use std::collections::VecDeque;

use super::committed_state::Write;
use super::job::{Boot, Done, Job};
use crate::state::StateRequest;

/// Maximum number of waiting jobs; beyond it, requests are refused with "try again".
const JOB_COUNT_MAX: usize = 10_000;

/// A job whose transaction is in flight.
pub(super) struct InFlight {
    request: StateRequest,
    pub(super) job: Job,
    pub(super) writes: Vec<Write>,
    /// The result of the job if the transaction commits; `None`: the job is planned again.
    pub(super) done: Option<Done>,
}

/// The jobs of a monitor.
#[derive(Default)]
pub(super) struct JobQueue {
    waiting: VecDeque<Job>,
    in_flight: Option<InFlight>,
}

impl JobQueue {
    /// Returns the number of jobs that wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one more job may be queued, given the number of jobs that wait elsewhere.
    pub(super) fn has_room(&self, held_count: usize) -> bool {
        self.waiting.len() + held_count < JOB_COUNT_MAX
    }

    /// Queues the job after all others.
    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Queues the job before all others.
    pub(super) fn push_first(&mut self, job: Job) {
        self.waiting.push_front(job);
    }

    /// Queues the job before all others except edits, which are checked first.
    pub(super) fn push_urgent(&mut self, job: Job) {
        let is_edit = |job: &Job| matches!(job, Job::Edit { .. });
        let place = self.waiting.iter().position(|job| !is_edit(job));
        self.waiting.insert(place.unwrap_or(self.waiting.len()), job);
    }

    /// Queues these jobs, which were waiting for something else, after all others.
    pub(super) fn extend(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.waiting.extend(jobs);
    }

    /// Returns the next job to plan; `None` while a transaction is in flight.
    pub(super) fn next(&mut self) -> Option<Job> {
        if self.in_flight.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Returns the boots that wait for their turn.
    pub(super) fn boots(&self) -> impl Iterator<Item = &Boot> {
        self.waiting.iter().filter_map(|job| match job {
            Job::Boot(boot) => Some(boot),
            _ => None,
        })
    }

    /// Whether a transaction is in flight.
    pub(super) fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether this request is the transaction in flight.
    pub(super) fn is_awaited(&self, request: StateRequest) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.request == request)
    }

    /// Records that the job's transaction is in flight. Requires: no other transaction is.
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

    /// Takes the job in flight, whose outcome is now known: the next job may start once this one
    /// has been handled.
    pub(super) fn take_in_flight(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }
}
