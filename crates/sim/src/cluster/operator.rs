//! The operator: the jobs to do, in order, and the current command.

use std::collections::{BTreeSet, VecDeque};

use base::{ConnectionId, OsdId, PgId, Time};
use cluster::settings::Setting;

/// One job of the operator.
#[derive(Clone, Debug)]
pub enum Job {
    /// Assigns an id to an OSD and starts the OSD.
    CreateOsd(usize),
    /// Creates the pool.
    CreatePool,
    /// Creates the object pool.
    CreateObjectPool,
    /// Creates a volume.
    Create(usize),
    /// Removes a volume.
    Remove(usize),
    /// Resizes a volume to this many units.
    Resize(usize, u64),
    /// Takes the lock of a volume away from its holder.
    Unlock(usize),
    /// Sets a setting to this many milliseconds.
    Set(Setting, u64),
    /// Removes the pool.
    RemovePool,
    /// Removes the object pool, with all objects.
    RemoveObjectPool,
    /// Searches for suspect PGs that wait for the operator.
    FindSuspect,
    /// Accepts the loss of a suspect PG.
    GiveUp(u32),
    /// Searches for PGs that wait for members whose disks are lost.
    FindLost,
    /// Lets a PG continue without members whose disks are lost.
    GiveUpMembers(PgId),
    /// Marks an OSD as out, or brings it back in.
    SetOut(usize, bool),
    /// Removes an OSD whose disk is lost.
    RemoveOsd(usize),
    /// Recovers a state store that was restored from a backup, using the newer state that OSDs have.
    Recover {
        /// When the backup was restored.
        since: Time,
        /// OSDs that never return.
        lost: Vec<OsdId>,
    },
    /// Undoes manual edits of keys.
    Undo,
    /// Waits until no task is left.
    AwaitTasks,
    /// Waits until no OSD uses space.
    AwaitEmpty,
}

/// The operator's process.
#[derive(Default)]
pub struct Operator {
    pub(super) connection: Option<ConnectionId>,
    pub(super) is_connected: bool,
    pub(super) connection_last: u64,
    pub(super) request_last: u64,
    /// The jobs, in order.
    pub jobs: VecDeque<Job>,
    /// The request number of the first job's command, while its reply is pending.
    pub(super) waiting: Option<u64>,
    pub(super) tries: u64,
    /// When an attempt at the first job was interrupted: the command may still be executed.
    pub(super) cut_off: Option<Time>,
    /// The run is ending: everything is being removed.
    pub(super) removes_all: bool,
    /// The last reply, as text for people.
    pub last: String,
    /// The loss of a suspect PG has been accepted.
    pub(super) gave_up: bool,
    /// Volumes whose creation was interrupted: the command may be executed late, even after the volume
    /// was removed.
    pub(super) unsure: BTreeSet<usize>,
}

impl Operator {
    /// Finishes the first job.
    pub(super) fn finish_job(&mut self) {
        self.jobs.pop_front();
        self.tries = 0;
        self.cut_off = None;
    }

    /// Puts a job before all others.
    pub(super) fn do_first(&mut self, job: Job) {
        self.jobs.push_front(job);
        self.tries = 0;
    }

    /// Handles the loss of the connection. Returns whether a command was pending, which may still be
    /// executed.
    pub(super) fn disconnected(&mut self, now: Time) -> bool {
        self.connection = None;
        self.is_connected = false;
        if self.waiting.take().is_none() {
            return false;
        }
        self.cut_off = Some(now);
        if let Some(Job::Create(volume)) = self.jobs.front() {
            self.unsure.insert(*volume);
        }
        true
    }

    /// Returns whether the current job takes the volume's lock away from its holder.
    pub(super) fn is_unlocking(&self, volume: usize) -> bool {
        matches!(self.jobs.front(), Some(Job::Unlock(other)) if *other == volume)
    }
}
