//! The first moments of a monitor: its store may be a backup, and no OSD has told what it has seen.
//!
//! Ids and locks that such a store gives out it may have given out before. So who asks for them waits
//! until an OSD comes that has seen the state, and nothing that the store lacks, until the store is proven
//! older, or for five seconds. So do entries of PGs: an epoch that was given before, for other members,
//! would look like one of another way the PG was served. Where no OSD ever ran nothing waits.
//!
//! Invariant: what waits has not begun. So it may be forgotten with the connection of who asked.

use base::{ConnectionId, Duration, Incarnation, Time};

use super::Monitor;
use super::job::{Boot, Job};
use crate::message::Command;
use crate::records::OsdRecord;

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
    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Jobs that wait.
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }
}

impl Monitor {
    /// Everything was read for the first time.
    pub(super) fn begin_settling(&mut self, now: Time) {
        let has_run = |record: &OsdRecord| record.info.incarnation > Incarnation::ZERO;
        if self.committed.osds().any(has_run) {
            self.settling.until = Some(now + SETTLING_SPAN);
        }
    }

    /// Whether no OSD has said yet what it has seen.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.until.is_some()
    }

    /// Whether the job waits for the first OSD.
    pub(super) fn waits_for_osds(&self, job: &Job) -> bool {
        let gives = match job {
            Job::OpenSession { .. } | Job::Entries | Job::Replan { .. } | Job::OutOsd { .. } => {
                true
            }
            Job::Command { command, .. } => gives_out(command),
            // With a new run entries of its PGs would be written.
            Job::Boot(boot) => boot.run.is_none() && boot.seen.change == 0,
            _ => false,
        };
        gives && self.settling.until.is_some()
    }

    pub(super) fn hold(&mut self, job: Job) {
        self.settling.held.push(job);
    }

    /// An OSD would join: what it has seen may be enough.
    pub(super) fn settle_by(&mut self, boot: &Boot) {
        let waits = self.settling.until.is_some();
        let has_seen = waits && boot.seen.change > 0 && self.admitted(boot).is_ok();
        if has_seen && self.why_older_than(boot).is_none() {
            self.settle();
        }
    }

    /// The store is as new as an OSD, or known to be older: what waited is judged.
    pub(super) fn settle(&mut self) {
        self.settling.until = None;
        self.jobs.extend(self.settling.held.drain(..));
    }

    pub(super) fn end_settling(&mut self, now: Time) {
        if self.settling.until.is_some_and(|until| until <= now) {
            self.settle();
        }
    }

    /// The connection is gone, and with it who waited.
    pub(super) fn forget_held(&mut self, gone: ConnectionId) {
        self.settling.held.retain(|job| match job {
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
