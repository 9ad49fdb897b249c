//! The first moments of a monitor: its store may be a backup, and no OSD has told what it has seen.
//!
//! Such a store may give out ids and locks that were given out before. So whoever asks for them waits
//! until an OSD comes that has seen the state, and nothing that the store lacks, until the store is proven
//! older, or for five seconds. So do entries of PGs: an epoch that was given before, for other members,
//! would look like one of another way the PG was served. Where no OSD ever ran nothing waits.
//!
//! Invariant: what waits has not begun. So it may be forgotten with the connection of who asked.

use base::{ConnectionId, Duration, Time};

use super::job::Job;
use crate::message::Command;

/// OSDs that run come to a monitor within a second. Where none does, operators go on after this.
const SETTLING_SPAN: Duration = Duration::from_secs(5);

/// What waits for the first OSD.
#[derive(Default)]
pub(super) struct Settling {
    /// It is over then at the latest; `None`: it is over.
    until: Option<Time>,
    held: Vec<Job>,
}

impl Settling {
    /// Everything was read for the first time, and there are OSDs that ran.
    pub(super) fn begin(&mut self, now: Time) {
        self.until = Some(now + SETTLING_SPAN);
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Whether no OSD has said yet what it has seen.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Jobs that wait.
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
            // With a new run entries of its PGs would be written.
            Job::Boot(boot) => boot.run.is_none() && boot.seen.change == 0,
            _ => false,
        };
        gives && self.is_on()
    }

    /// Keeps a job until it is over. Requires: it [`holds`](Settling::holds) it.
    pub(super) fn hold(&mut self, job: Job) {
        assert!(self.is_on(), "nobody would run it");
        self.held.push(job);
    }

    /// The store is as new as an OSD, or known to be older: what waited is judged now.
    pub(super) fn end(&mut self) -> Vec<Job> {
        self.until = None;
        std::mem::take(&mut self.held)
    }

    /// The jobs that waited, once they have waited long enough for an OSD and run without.
    pub(super) fn end_if_due(&mut self, now: Time) -> Vec<Job> {
        if self.until.is_some_and(|until| until <= now) { self.end() } else { Vec::new() }
    }

    /// The connection is gone: drops its waiting jobs.
    pub(super) fn forget(&mut self, gone: ConnectionId) {
        self.held.retain(|job| match job {
            Job::OpenSession { connection, .. } | Job::Command { connection, .. } => {
                *connection != gone
            }
            _ => true,
        });
    }
}

/// Whether a command gives out what may have been given since a backup, or takes it back.
///
/// Ids of OSDs and monitors do not wait, for those must be made before the first one runs: an OSD whose id
/// was given twice is refused by its store's identity.
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
