//! Tracks which of the store's sessions are connected, how long the others have been disconnected, and which
//! attaches wait for a disconnected one. This state is lost when the process ends.
//!
//! Invariants
//!   1. `gone` lists exactly the sessions whose place is [`Place::Gone`] and whose end is not queued yet.
//!   2. A waiting attach is retried whenever a session returns or ends.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, SessionId, Time};

use super::job::Job;

/// Maximum number of attaches that wait until a lock's holder returns or ends.
const WAITING_COUNT_MAX: usize = 1_024;

/// The sessions that have not ended, as this process sees them.
#[derive(Default)]
pub(super) struct SessionTracker {
    places: BTreeMap<SessionId, Place>,
    /// Sessions without a connection, by the time at which they lost it.
    gone: BTreeSet<(Time, SessionId)>,
    /// The newest turn of each session: a number that its client increases with each connection.
    turns: BTreeMap<SessionId, u64>,
    /// The time at which each lock was granted, by holding session; only for locks that this monitor granted.
    locked_since: BTreeMap<SessionId, Time>,
    /// Attaches that wait until a lock's holder returns or ends, each with the holder.
    waiting: Vec<(SessionId, Job)>,
}

/// Where a session that has not ended is connected.
enum Place {
    /// Its client is connected.
    Connected { connection: ConnectionId },
    /// Its connection was lost at `since`; the session ends `session_timeout_ms` later unless its
    /// client returns.
    Gone { since: Time },
}

impl SessionTracker {
    /// Tracks a session that is in the store. If it was not tracked yet, its timeout starts now.
    pub(super) fn track(&mut self, now: Time, session: SessionId) {
        if let Entry::Vacant(unknown) = self.places.entry(session) {
            unknown.insert(Place::Gone { since: now });
            self.gone.insert((now, session));
        }
    }

    /// Returns the session's connection, if it has one.
    pub(super) fn connection(&self, session: SessionId) -> Option<ConnectionId> {
        match self.places.get(&session)? {
            Place::Connected { connection } => Some(*connection),
            Place::Gone { .. } => None,
        }
    }

    /// Continues the session over this connection. Requires: its previous place was dropped.
    pub(super) fn connect(&mut self, session: SessionId, connection: ConnectionId) {
        let before = self.places.insert(session, Place::Connected { connection });
        assert!(before.is_none(), "a session is connected once");
    }

    /// Notes that the session has lost its connection.
    pub(super) fn lose_connection(&mut self, now: Time, session: SessionId) {
        self.places.insert(session, Place::Gone { since: now });
        self.gone.insert((now, session));
    }

    /// Forgets the session's place; returns the connection that it had.
    pub(super) fn drop_place(&mut self, session: SessionId) -> Option<ConnectionId> {
        match self.places.remove(&session)? {
            Place::Connected { connection } => Some(connection),
            Place::Gone { since } => {
                self.gone.remove(&(since, session));
                None
            }
        }
    }

    /// Forgets a session that has ended for good; returns the connection that it had.
    pub(super) fn forget(&mut self, session: SessionId) -> Option<ConnectionId> {
        self.locked_since.remove(&session);
        self.turns.remove(&session);
        self.drop_place(session)
    }

    /// Returns the time at which the first session without a connection ends.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Time> {
        self.gone.first().map(|(since, _)| *since + timeout)
    }

    /// Returns a session that has been disconnected for longer than `timeout`. Each session is returned once.
    pub(super) fn next_to_end(&mut self, now: Time, timeout: Duration) -> Option<SessionId> {
        self.deadline(timeout).filter(|due| *due <= now)?;
        self.gone.pop_first().map(|(_, session)| session)
    }

    /// Records the turn in which a client resumed the session; returns whether it is the newest turn.
    pub(super) fn is_newest_turn(&mut self, session: SessionId, turn: u64) -> bool {
        let newest = self.turns.entry(session).or_default();
        let is_newest = turn >= *newest;
        *newest = turn.max(*newest);
        is_newest
    }

    /// Notes the time at which the session was granted a lock.
    pub(super) fn note_lock(&mut self, now: Time, session: SessionId) {
        self.locked_since.insert(session, now);
    }

    /// Returns the time at which the session was granted its lock, if this monitor granted it.
    pub(super) fn locked_since(&self, session: SessionId) -> Option<Time> {
        self.locked_since.get(&session).copied()
    }

    /// Makes an attach wait until the lock's holder returns or ends; returns false if too many are waiting.
    pub(super) fn wait(&mut self, holder: SessionId, attach: Job) -> bool {
        let has_room = self.waiting.len() < WAITING_COUNT_MAX;
        if has_room {
            self.waiting.push((holder, attach));
        }
        has_room
    }

    /// Takes the waiting attaches, in the order of their arrival.
    pub(super) fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, attach)| attach).collect()
    }

    /// Returns the holders that attaches wait for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = SessionId> {
        self.waiting.iter().map(|(holder, _)| *holder)
    }

    /// Drops the waiting attaches of a closed connection.
    pub(super) fn forget_waiting(&mut self, gone: ConnectionId) {
        self.waiting.retain(
            |(_, job)| !matches!(job, Job::OpenSession { connection, .. } if *connection == gone),
        );
    }
}
