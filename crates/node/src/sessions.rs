//! Connections and sessions: who may speak, over which connection, and what is a repeat.
//!
//! Invariants
//!   1. A session is bound to one connection: the one that brought its highest sequence.
//!   2. The sequence of a session only grows, over all its connections, since a client gives a new
//!      one to each retry. What is not above the highest one seen is a repeat, or comes late over
//!      a connection that the client has left.
//!   3. A session is remembered while its connection is open, and long after its last request. A session
//!      that may have been forgotten is served only over a connection that is newer than that: over an
//!      older one a request may arrive late that was overtaken long ago.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{ConnectionId, Duration, ImageId, MapRevision, SessionId, Time};
use format::door::{Peer, Role};

use crate::session_takeover::SessionTakeovers;

/// How long a session is remembered after its last request. Longer than a handshake takes: a connection
/// that the client left before that request has been accepted by then, or never is.
const REMEMBER: Duration = Duration::from_secs(60);

/// How long a session is remembered while its connection is open and the table is not nearly full. It
/// spares an idle client a new connection; safety does not depend on it.
const REMEMBER_CONNECTED: Duration = Duration::from_secs(3600);

/// All connections and sessions.
#[derive(Default)]
pub struct Sessions {
    connections: BTreeMap<ConnectionId, Connection>,
    sessions: BTreeMap<SessionId, Session>,
    forgotten: Option<Forgotten>,
    /// Sessions that were shown before the map they act on.
    pub(crate) takeovers: SessionTakeovers,
}

/// What is left of the sessions that were forgotten.
#[derive(Clone, Copy)]
struct Forgotten {
    /// The highest of them. Ids only grow: a session above it was never known.
    session_max: SessionId,
    /// When the last one was forgotten.
    at: Time,
}

/// One open connection.
pub struct Connection {
    pub role: Role,
    opened_at: Time,
    /// The last sequence without a session: a monitor's tasks.
    last_sequence: u64,
    /// Requests that have not been answered.
    pub open_count: usize,
}

/// One session.
struct Session {
    connection: ConnectionId,
    /// Counts the moves to another connection.
    binding: u32,
    last_sequence: u64,
    /// Started requests that came over `connection`.
    started: u32,
    /// Started requests that came over older connections: they end before anything else starts.
    started_before: u32,
    /// When its last request came.
    seen_at: Time,
    /// What its requests name.
    names: Names,
}

/// What a session's requests have named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names {
    /// The image. Some requests name none.
    pub image: Option<ImageId>,
    /// The lowest revision of the map.
    pub revision: MapRevision,
}

impl Names {
    /// Those of before, and those of one more request.
    pub fn and(self, later: Names) -> Names {
        let image = later.image.or(self.image);
        Names { image, revision: self.revision.min(later.revision) }
    }
}

/// What a request's session and sequence say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Goes on.
    New,
    /// Goes on. Requests of its session that wait on other connections are to be dropped.
    Moved,
    /// It came before, or over a connection that its session has left: not executed.
    Repeat,
    /// Its session may have been forgotten, and its connection is older than that: whether it came
    /// before cannot be told. Over a new connection it can.
    Forgotten,
    /// Too many sessions.
    TooMany,
}

impl Sessions {
    /// A connection was opened, by either side.
    pub fn open(&mut self, now: Time, connection: ConnectionId, peer: Peer) {
        let role = peer.role;
        let new = Connection { role, opened_at: now, last_sequence: 0, open_count: 0 };
        let old = self.connections.insert(connection, new);
        assert!(old.is_none());
    }

    /// A connection is gone.
    pub fn close(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// An open connection.
    pub fn connection(&mut self, connection: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&connection)
    }

    /// A request came. Requires: its connection is open.
    pub fn arrive(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (session, sequence): (SessionId, u64),
        names: Names,
        sessions_max: usize,
    ) -> Arrival {
        let link = self.connections.get_mut(&connection).expect("requests come on open ones");
        if session == SessionId::ZERO {
            if sequence <= link.last_sequence {
                return Arrival::Repeat;
            }
            link.last_sequence = sequence;
            return Arrival::New;
        }
        let Some(known) = self.sessions.get_mut(&session) else {
            let is_forgotten = |forgotten: Forgotten| {
                session <= forgotten.session_max && link.opened_at <= forgotten.at
            };
            let is_served = planted::on(Bug::ForgottenSessionServed);
            if self.forgotten.is_some_and(is_forgotten) && !is_served {
                return Arrival::Forgotten;
            }
            if self.sessions.len() >= sessions_max {
                return Arrival::TooMany;
            }
            let new = Session {
                connection,
                binding: 0,
                last_sequence: sequence,
                started: 0,
                started_before: 0,
                seen_at: now,
                names,
            };
            self.sessions.insert(session, new);
            return Arrival::New;
        };
        known.names = known.names.and(names);
        if sequence <= known.last_sequence {
            let executed = planted::on(Bug::DuplicateExecuted);
            return if executed { Arrival::New } else { Arrival::Repeat };
        }
        known.last_sequence = sequence;
        known.seen_at = now;
        if known.connection == connection {
            return Arrival::New;
        }
        known.started_before += known.started;
        known.started = 0;
        known.connection = connection;
        known.binding += 1;
        Arrival::Moved
    }

    /// What a session that is known has named.
    pub fn names(&self, session: SessionId) -> Option<Names> {
        self.sessions.get(&session).map(|known| known.names)
    }

    /// Whether started requests of older connections must end before the session is served.
    pub fn must_wait(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.started_before > 0)
    }

    /// A request of the session starts, over whichever connection; gives what [`Sessions::end`]
    /// needs.
    pub fn start(&mut self, connection: ConnectionId, session: SessionId) -> u32 {
        let Some(known) = self.sessions.get_mut(&session) else { return 0 };
        if known.connection == connection {
            known.started += 1;
            known.binding
        } else {
            // Only a repeat that is executed, see `Bug::DuplicateExecuted`.
            known.started_before += 1;
            known.binding.wrapping_sub(1)
        }
    }

    /// A started request ended. True if the session need no longer wait for older connections.
    pub fn end(&mut self, session: SessionId, binding: u32) -> bool {
        let Some(known) = self.sessions.get_mut(&session) else { return false };
        if known.binding == binding {
            assert!(known.started > 0);
            known.started -= 1;
            return false;
        }
        assert!(known.started_before > 0);
        known.started_before -= 1;
        known.started_before == 0
    }

    /// Whether no connection and no session counts an open request.
    #[cfg(test)]
    pub fn nothing_is_open(&self) -> bool {
        self.connections.values().all(|link| link.open_count == 0)
            && self.sessions.values().all(|known| known.started + known.started_before == 0)
    }

    /// Forgets sessions that have long been silent. Those of an open connection go as early as
    /// others when the table is three quarters full: nobody tells an OSD that a session was
    /// closed, and a server of many volumes leaves many behind on one connection.
    pub fn forget_silent(&mut self, now: Time, sessions_max: usize) {
        let is_nearly_full = self.sessions.len() >= sessions_max - sessions_max / 4;
        let Sessions { connections, sessions, forgotten, .. } = self;
        sessions.retain(|id, session| {
            let is_connected = connections.contains_key(&session.connection);
            let is_kept = is_connected && !is_nearly_full;
            let span = if is_kept { REMEMBER_CONNECTED } else { REMEMBER };
            let is_silent = now.since(session.seen_at) > span;
            if !is_silent || session.started > 0 || session.started_before > 0 {
                return true;
            }
            let before = forgotten.map_or(SessionId::ZERO, |forgotten| forgotten.session_max);
            *forgotten = Some(Forgotten { session_max: before.max(*id), at: now });
            false
        });
    }
}
