//! The first seconds of a monitor: its store may be a backup, and no OSD has reported what it has seen.
//!
//! A monitor with such a store could give out ids and locks that were given out before. So requests for
//! them wait until an OSD connects that has seen the state and nothing that the store lacks, until the
//! store is proven older, or for five seconds. PG entries wait, too: an epoch that was already used with
//! other members would be mistaken for that earlier one. If no OSD ever ran, nothing waits.
//!
//! Invariant: a job that waits has not begun. So it may be dropped with the connection that requested it.

use base::{ConnectionId, Duration, Time};

use super::job::Job;
use crate::message::Command;

/// Running OSDs connect to a monitor within a second. If none does, waiting jobs run after this
/// span.
const SETTLING_SPAN: Duration = Duration::from_secs(5);

/// The jobs that wait for the first OSD.
#[derive(Default)]
pub(super) struct Settling {
    /// When settling ends at the latest; `None`: it has ended.
    until: Option<Time>,
    held: Vec<Job>,
}

impl Settling {
    /// Begins settling: the store was read for the first time, and it has OSDs that ran.
    pub(super) fn begin(&mut self, now: Time) {
        self.until = Some(now + SETTLING_SPAN);
    }

    /// Returns when settling ends without an OSD.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Whether settling is on: no OSD has reported yet what it has seen.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the number of waiting jobs.
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Whether the job waits for the first OSD.
    pub(super) fn holds(&self, job: &Job) -> bool {
        let gives = match job {
            Job::OpenSession { .. } | Job::Entries | Job::Replan { .. } | Job::OutOsd { .. } => {
                true
            }
            Job::Command { command, .. } => gives_out(command),
            // For a new run, entries of the OSD's PGs would be written.
            Job::Boot(boot) => boot.run.is_none() && boot.seen.change == 0,
            _ => false,
        };
        gives && self.is_on()
    }

    /// Keeps a job until settling ends. Requires: it [`holds`](Settling::holds) the job.
    pub(super) fn hold(&mut self, job: Job) {
        assert!(self.is_on(), "nobody would run it");
        self.held.push(job);
    }

    /// Ends settling and returns the waiting jobs: the store is as new as what an OSD has seen, or
    /// is known to be older.
    pub(super) fn end(&mut self) -> Vec<Job> {
        self.until = None;
        std::mem::take(&mut self.held)
    }

    /// Ends settling if no OSD came in time; returns the waiting jobs, which then run without one.
    pub(super) fn end_if_due(&mut self, now: Time) -> Vec<Job> {
        if self.until.is_some_and(|until| until <= now) { self.end() } else { Vec::new() }
    }

    /// Drops the waiting jobs of a closed connection.
    pub(super) fn forget(&mut self, gone: ConnectionId) {
        self.held.retain(|job| match job {
            Job::OpenSession { connection, .. } | Job::Command { connection, .. } => {
                *connection != gone
            }
            _ => true,
        });
    }
}

/// Whether a command gives out something that may have been given out since a backup, or takes it
/// back.
///
/// Ids of OSDs and monitors do not wait, because they must be made before the first OSD runs: an
/// OSD whose id was given out twice is refused because of its store's identity.
fn gives_out(command: &Command) -> bool {
    matches!(
        command,
        Command::PoolCreate { .. }
            | Command::PoolRemove { .. }
            | Command::VolumeCreate { .. }
            | Command::VolumeResize { .. }
            | Command::VolumeRemove { .. }
            | Command::VolumeUnlock { .. }
            | Command::PgGiveUp { .. }
    )
}
