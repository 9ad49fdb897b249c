//! The operator: what is to be done, in order, and the command that is under way.

use std::collections::{BTreeSet, VecDeque};

use base::{ConnectionId, OsdId, PgId, Time};
use cluster::settings::Setting;

/// One job of the operator.
#[derive(Clone, Debug)]
pub enum Job {
    /// Gives an OSD its id and starts it.
    CreateOsd(usize),
    /// Creates the pool.
    CreatePool,
    /// Creates a volume.
    Create(usize),
    /// Removes a volume.
    Remove(usize),
    /// Resizes a volume to so many units.
    Resize(usize, u64),
    /// Takes the lock of a volume from its holder.
    Unlock(usize),
    /// Sets a setting to so many milliseconds.
    Set(Setting, u64),
    /// Removes the pool.
    RemovePool,
    /// Looks for suspect PGs, which wait for the operator.
    FindSuspect,
    /// Accepts the loss of a suspect PG.
    GiveUp(u32),
    /// Looks for PGs that wait for members whose disks are lost.
    FindLost,
    /// Lets such a PG go on without these members.
    GiveUpMembers(PgId),
    /// Puts an OSD out of the cluster, or back in.
    SetOut(usize, bool),
    /// Removes an OSD whose disk is lost.
    RemoveOsd(usize),
    /// Recovers a state store that was restored from a backup, from what OSDs know.
    Recover {
        /// When the backup was put back.
        since: Time,
        /// OSDs that never come back.
        lost: Vec<OsdId>,
    },
    /// Has manual edits of keys undone.
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
    /// The command of the first job that is under way.
    pub(super) waiting: Option<u64>,
    pub(super) tries: u64,
    /// A try of it was cut off then, and may still be done.
    pub(super) cut_off: Option<Time>,
    /// It is the end: everything goes.
    pub(super) removes_all: bool,
    /// What was last answered, for people.
    pub last: String,
    /// A loss was accepted.
    pub(super) gave_up: bool,
    /// Volumes of which a creation was interrupted: it may be done late, even after a removal.
    pub(super) unsure: BTreeSet<usize>,
}

impl Operator {
    /// The first job is over.
    pub(super) fn finish_job(&mut self) {
        self.jobs.pop_front();
        self.tries = 0;
        self.cut_off = None;
    }

    /// A job that comes before all others.
    pub(super) fn do_first(&mut self, job: Job) {
        self.jobs.push_front(job);
        self.tries = 0;
    }

    /// Its connection is gone. Whether a command was under way, which may still be done.
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

    /// Whether the volume's lock is being taken from its holder.
    pub(super) fn is_unlocking(&self, volume: usize) -> bool {
        matches!(self.jobs.front(), Some(Job::Unlock(other)) if *other == volume)
    }
}
