//! The first seconds of a monitor: no OSD has reported yet what it has seen, so the store may be a restored
//! backup.
//!
//! A monitor with such a store could issue ids and locks that have been issued before. So requests for ids
//! and locks wait until an OSD connects that has seen the state but nothing that the store lacks, until the
//! store is proven older, or for five seconds. New PG entries wait too: an epoch that has been used before
//! with other members would be mistaken for the earlier one. If no OSD has ever run, nothing waits.
//!
//! Invariant: a waiting job has not begun. So it may be dropped with the connection that requested it.

use base::{ConnectionId, Duration, Time};

use super::give_up::MembersGiveUp;
use super::job::Job;
use crate::message::Command;

/// Running OSDs connect to a monitor within a second. If none does, waiting jobs run after this
/// span.
const SETTLING_SPAN: Duration = Duration::from_secs(5);

/// The jobs that wait for the first OSD.
#[derive(Default)]
pub(super) struct Settling {
    /// The latest time at which settling ends; `None`: it has ended.
    until: Option<Time>,
    held: Vec<Job>,
}

impl Settling {
    /// Begins settling: the store was read for the first time, and it has OSDs that have run.
    pub(super) fn begin(&mut self, now: Time) {
        self.until = Some(now + SETTLING_SPAN);
    }

    /// Returns the time at which settling ends without an OSD.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Whether the monitor is settling: no OSD has reported yet what it has seen.
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
            Job::OpenSession { .. }
            | Job::GiveUpMembers(_)
            | Job::Entries
            | Job::Replan { .. }
            | Job::OutOsd { .. } => true,
            Job::Command { command, .. } => gives_out(command),
            // A boot with a new run writes new entries of the OSD's PGs.
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

    /// Ends settling and returns the waiting jobs: an OSD has shown that the store is up to date,
    /// or the store is known to be older.
    pub(super) fn end(&mut self) -> Vec<Job> {
        self.until = None;
        std::mem::take(&mut self.held)
    }

    /// Ends settling if no OSD has connected in time; returns the waiting jobs, which then run anyway.
    pub(super) fn end_if_due(&mut self, now: Time) -> Vec<Job> {
        if self.until.is_some_and(|until| until <= now) { self.end() } else { Vec::new() }
    }

    /// Drops the waiting jobs of a closed connection.
    pub(super) fn forget(&mut self, gone: ConnectionId) {
        self.held.retain(|job| match job {
            Job::OpenSession { connection, .. }
            | Job::Command { connection, .. }
            | Job::GiveUpMembers(MembersGiveUp { connection, .. }) => *connection != gone,
            _ => true,
        });
    }
}

/// Whether a command issues something that may already have been issued since a backup was made, or revokes
/// something.
///
/// Ids of OSDs and monitors do not wait, because they must be issued before the first OSD runs: an OSD whose
/// id was issued twice is refused because of its store's identity.
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
