//! Where the sessions of the store are connected, since when those that are not are gone, and which
//! attaches wait for one of them. Lost with this process.
//!
//! Invariants
//!   1. A session is in `gone` exactly while it is known as [`Place::Gone`], until its end is queued.
//!   2. An attach that waits is judged again whenever a session comes back or ends.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, SessionId, Time};

use super::job::Job;

/// Attaches that wait for what becomes of a lock's holder.
const WAITING_COUNT_MAX: usize = 1_024;

/// The sessions that have not ended, as this process sees them.
#[derive(Default)]
pub(super) struct SessionTracker {
    places: BTreeMap<SessionId, Place>,
    /// Sessions without a connection, by the time since when.
    gone: BTreeSet<(Time, SessionId)>,
    /// The newest turn in which the client of a session resumed it.
    turns: BTreeMap<SessionId, u64>,
    /// When locks were granted, by their holders; only those that this monitor granted.
    locked_since: BTreeMap<SessionId, Time>,
    /// Attaches that wait for what becomes of a lock's holder.
    waiting: Vec<Job>,
}

/// Where a session that has not ended is connected.
enum Place {
    /// Its client is there.
    Connected { connection: ConnectionId },
    /// Its connection is gone since then; it ends `session_timeout_ms` later unless it comes back.
    Gone { since: Time },
}

impl SessionTracker {
    /// The session is in the store. If it is not tracked yet, its timeout starts now.
    pub(super) fn track(&mut self, now: Time, session: SessionId) {
        if let Entry::Vacant(unknown) = self.places.entry(session) {
            unknown.insert(Place::Gone { since: now });
            self.gone.insert((now, session));
        }
    }

    /// Where the session is connected, if it is.
    pub(super) fn connection(&self, session: SessionId) -> Option<ConnectionId> {
        match self.places.get(&session)? {
            Place::Connected { connection } => Some(*connection),
            Place::Gone { .. } => None,
        }
    }

    /// The session goes on over this connection. Requires: it was dropped from where it was.
    pub(super) fn connect(&mut self, session: SessionId, connection: ConnectionId) {
        let before = self.places.insert(session, Place::Connected { connection });
        assert!(before.is_none(), "a session is connected once");
    }

    /// The session has no connection any more.
    pub(super) fn lose_connection(&mut self, now: Time, session: SessionId) {
        self.places.insert(session, Place::Gone { since: now });
        self.gone.insert((now, session));
    }

    /// Forgets where the session is; tells the connection that it had.
    pub(super) fn drop_place(&mut self, session: SessionId) -> Option<ConnectionId> {
        match self.places.remove(&session)? {
            Place::Connected { connection } => Some(connection),
            Place::Gone { since } => {
                self.gone.remove(&(since, session));
                None
            }
        }
    }

    /// The session is gone for good; tells the connection that it had.
    pub(super) fn forget(&mut self, session: SessionId) -> Option<ConnectionId> {
        self.locked_since.remove(&session);
        self.turns.remove(&session);
        self.drop_place(session)
    }

    /// When the first session without a connection ends.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Time> {
        self.gone.first().map(|(since, _)| *since + timeout)
    }

    /// A session whose connection was gone for too long; each is told once.
    pub(super) fn next_to_end(&mut self, now: Time, timeout: Duration) -> Option<SessionId> {
        self.deadline(timeout).filter(|due| *due <= now)?;
        self.gone.pop_first().map(|(_, session)| session)
    }

    /// Whether this is the newest turn in which the session was resumed; then it is noted.
    pub(super) fn is_newest_turn(&mut self, session: SessionId, turn: u64) -> bool {
        let newest = self.turns.entry(session).or_default();
        let is_newest = turn >= *newest;
        *newest = turn.max(*newest);
        is_newest
    }

    /// The session was granted a lock.
    pub(super) fn note_lock(&mut self, now: Time, session: SessionId) {
        self.locked_since.insert(session, now);
    }

    /// When the session was granted its lock, if this monitor did that.
    pub(super) fn locked_since(&self, session: SessionId) -> Option<Time> {
        self.locked_since.get(&session).copied()
    }

    /// An attach waits until the lock's holder is back, or has ended; false if too many wait.
    pub(super) fn wait(&mut self, attach: Job) -> bool {
        let has_room = self.waiting.len() < WAITING_COUNT_MAX;
        if has_room {
            self.waiting.push(attach);
        }
        has_room
    }

    /// Attaches that waited, in the order in which they came.
    pub(super) fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.waiting)
    }

    /// The connection is gone, and with it who waited.
    pub(super) fn forget_waiting(&mut self, gone: ConnectionId) {
        self.waiting.retain(
            |job| !matches!(job, Job::OpenSession { connection, .. } if *connection == gone),
        );
    }
}
