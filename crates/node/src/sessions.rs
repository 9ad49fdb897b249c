//! Connections and sessions: who may send requests, over which connection, and which request is a repeat.
//!
//! Invariants
//!   1. A session is bound to one connection: the one over which its highest sequence arrived.
//!   2. The sequence of a session only grows, over all its connections, because a client gives a new
//!      sequence to each retry. A request whose sequence is not above the highest one seen is a repeat,
//!      or arrives late over a connection that the client has left.
//!   3. A session is remembered while its connection is open, and for a while after its last request. A
//!      session that may have been forgotten is served only over a connection that was opened after that:
//!      over an older connection a request may arrive late that newer ones overtook long ago.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{ConnectionId, Duration, ImageId, MapRevision, SessionId, Time};
use format::door::{Peer, Role};

use crate::session_takeover::SessionTakeovers;

/// How long a session is remembered after its last request. This is longer than a handshake takes, so a
/// connection that the client abandoned before that request either has been accepted by then or never will
/// be.
const REMEMBER: Duration = Duration::from_secs(60);

/// How long a session is remembered while its connection is open and the table is not nearly full. This
/// saves an idle client from having to reconnect; safety does not depend on it.
const REMEMBER_CONNECTED: Duration = Duration::from_secs(3600);

/// All connections and sessions.
#[derive(Default)]
pub struct Sessions {
    connections: BTreeMap<ConnectionId, Connection>,
    sessions: BTreeMap<SessionId, Session>,
    forgotten: Option<Forgotten>,
    /// Sessions that were seen before the map they act on.
    pub(crate) takeovers: SessionTakeovers,
}

/// What is remembered about forgotten sessions.
#[derive(Clone, Copy)]
struct Forgotten {
    /// The highest id of a forgotten session. Ids only grow, so a session with a higher id was never
    /// known.
    session_max: SessionId,
    /// When the last session was forgotten.
    at: Time,
}

/// One open connection.
pub struct Connection {
    pub role: Role,
    opened_at: Time,
    /// The last sequence of requests without a session, which a monitor's tasks send.
    last_sequence: u64,
    /// Requests that have not been answered.
    pub open_count: usize,
}

/// One session.
struct Session {
    connection: ConnectionId,
    /// Number of times the session has moved to another connection.
    binding: u32,
    last_sequence: u64,
    /// Started requests that arrived over `connection`.
    started: u32,
    /// Started requests that arrived over older connections: they must end before any other request
    /// starts.
    started_before: u32,
    /// When the session's last request arrived.
    seen_at: Time,
    /// The image and the revision that its requests have identified.
    names: Names,
}

/// The image and the map revision that a session's requests have identified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names {
    /// The image, if any request identified one.
    pub image: Option<ImageId>,
    /// The lowest map revision that the requests require.
    pub revision: MapRevision,
}

impl Names {
    /// Returns these names updated with those of a later request.
    pub fn and(self, later: Names) -> Names {
        let image = later.image.or(self.image);
        Names { image, revision: self.revision.min(later.revision) }
    }
}

/// How a request is handled, given its session and sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Continue with the request.
    New,
    /// Continue with the request, and drop the requests of its session that wait on other connections.
    Moved,
    /// The request is a repeat, or arrived over a connection that its session has left: do not execute it.
    Repeat,
    /// The session may have been forgotten, and the connection was opened before that, so a repeat cannot be
    /// recognised. Over a new connection it can.
    Forgotten,
    /// There are too many sessions.
    TooMany,
}

impl Sessions {
    /// Adds a connection that was opened, by either side.
    pub fn open(&mut self, now: Time, connection: ConnectionId, peer: Peer) {
        let role = peer.role;
        let new = Connection { role, opened_at: now, last_sequence: 0, open_count: 0 };
        let old = self.connections.insert(connection, new);
        assert!(old.is_none());
    }

    /// Removes a connection that is gone.
    pub fn close(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// Returns a connection, if it is open.
    pub fn connection(&mut self, connection: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&connection)
    }

    /// Handles a request that arrives. Requires: its connection is open.
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

    /// Returns the image and revision that a session's requests have identified, if the session is known.
    pub fn names(&self, session: SessionId) -> Option<Names> {
        self.sessions.get(&session).map(|known| known.names)
    }

    /// Returns whether requests in flight from older connections must end before the session is served.
    pub fn must_wait(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.started_before > 0)
    }

    /// Returns whether the session has left this connection for another one.
    pub fn has_left(&self, session: SessionId, connection: ConnectionId) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.connection != connection)
    }

    /// Records the start of a request of the session, over any connection. Returns the binding for
    /// [`Sessions::end`].
    pub fn start(&mut self, connection: ConnectionId, session: SessionId) -> u32 {
        let Some(known) = self.sessions.get_mut(&session) else { return 0 };
        if known.connection == connection {
            known.started += 1;
            known.binding
        } else {
            // This happens only if a repeat is executed, see `Bug::DuplicateExecuted`.
            known.started_before += 1;
            known.binding.wrapping_sub(1)
        }
    }

    /// Records the end of a started request. Returns true if the session no longer waits for older
    /// connections.
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

    /// Returns whether no connection and no session counts an unanswered request.
    #[cfg(test)]
    pub fn nothing_is_open(&self) -> bool {
        self.connections.values().all(|link| link.open_count == 0)
            && self.sessions.values().all(|known| known.started + known.started_before == 0)
    }

    /// Forgets sessions that have been silent for long. When the table is three quarters full, sessions of
    /// open connections are forgotten as early as others: an OSD is not informed when a session is closed,
    /// and a server of many volumes leaves many closed sessions behind on one connection.
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
