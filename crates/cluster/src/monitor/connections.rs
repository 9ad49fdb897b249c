//! The peers connected to this monitor, and the messages sent to them.
//!
//! Invariants
//!   1. Nothing is sent over a connection that is gone.
//!   2. `order` grows with each connection: of two connections of one peer, the one with the higher
//!      order is newer.

use std::collections::{BTreeMap, VecDeque};

use base::{ConnectionId, MapRevision, MonitorId, OsdId, PoolId, SessionId};
use format::door::{NetEffect, Peer, Role};
use format::wire::{CONTROL_SIZE_MAX, Message};
use serde_json::Value;

use super::Effect;
use super::refusal::failure;
use crate::message::{Failure, FromMonitor, ToMonitor};

/// Maximum number of connections; beyond it, new ones are closed.
pub(super) const CONNECTION_COUNT_MAX: usize = 50_000;
/// Maximum number of messages that are kept until the state is first read; beyond it, connections are closed.
const EARLY_COUNT_MAX: usize = 10_000;

/// The connections of a monitor.
#[derive(Default)]
pub(super) struct Connections {
    here: BTreeMap<ConnectionId, Connection>,
    order_last: u64,
    /// Messages that arrived before the state was first read, in order.
    early: VecDeque<(ConnectionId, ToMonitor)>,
    /// The number of peers that violated the protocol.
    protocol_errors: u64,
}

/// A connected peer.
struct Connection {
    peer: Peer,
    order: u64,
    /// Whether the peer receives the map, and which revisions it has.
    subscription: Option<Subscription>,
    /// The OSD that has joined over this connection.
    osd: Option<OsdId>,
    /// The monitor that identified itself over this connection; it counts as present while the connection
    /// lasts.
    monitor: Option<MonitorId>,
    /// The sessions that use this connection, each with the number of its bytes that wait for free space.
    sessions: BTreeMap<SessionId, u64>,
    /// The prefix of the keys that the peer watches.
    state_watch: Option<String>,
    introduced: Option<Introduced>,
}

impl Connection {
    fn new(peer: Peer, order: u64) -> Connection {
        Connection {
            peer,
            order,
            subscription: None,
            osd: None,
            monitor: None,
            sessions: BTreeMap::new(),
            state_watch: None,
            introduced: None,
        }
    }
}

/// The map revisions that a receiver has.
#[derive(Clone, Default)]
pub(super) struct Subscription {
    /// The revision of each pool's map.
    pub(super) pools: BTreeMap<PoolId, MapRevision>,
    /// The highest revision of an OSD's entry.
    pub(super) osds: u64,
}

/// A peer's description of itself, for `status`.
pub(super) struct Introduced {
    pub(super) role: String,
    pub(super) pid: u32,
    pub(super) host: String,
    pub(super) address: Option<String>,
}

/// The OSD and the sessions of a closed connection.
pub(super) struct Gone {
    pub(super) osd: Option<OsdId>,
    pub(super) sessions: Vec<SessionId>,
}

impl Connections {
    /// Registers a connected peer; false if there are too many.
    pub(super) fn accept(&mut self, connection: ConnectionId, peer: Peer) -> bool {
        if self.here.len() >= CONNECTION_COUNT_MAX {
            return false;
        }
        self.order_last += 1;
        self.here.insert(connection, Connection::new(peer, self.order_last));
        true
    }

    /// Removes a connection that is gone.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Gone> {
        let state = self.here.remove(&connection)?;
        Some(Gone { osd: state.osd, sessions: state.sessions.into_keys().collect() })
    }

    /// Starts over, keeping at most the connection `kept`, as if it were new. Returns the other connections.
    pub(super) fn begin_anew(
        &mut self,
        kept: Option<ConnectionId>,
    ) -> (Connections, Vec<ConnectionId>) {
        let mut anew = Connections { order_last: self.order_last, ..Connections::default() };
        let mut others = Vec::new();
        for (connection, state) in std::mem::take(&mut self.here) {
            if Some(connection) == kept {
                anew.here.insert(connection, Connection::new(state.peer, state.order));
            } else {
                others.push(connection);
            }
        }
        (anew, others)
    }

    pub(super) fn is_here(&self, connection: ConnectionId) -> bool {
        self.here.contains_key(&connection)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.here.keys().copied()
    }

    fn here_mut(&mut self, connection: ConnectionId) -> &mut Connection {
        self.here.get_mut(&connection).expect("a message comes over a connection that is here")
    }

    /// Returns the role that the peer gave in the handshake. Requires: the connection exists.
    pub(super) fn role(&self, connection: ConnectionId) -> Role {
        self.here[&connection].peer.role
    }

    /// Notes that a monitor that does not lead relays a peer of this role over its connection.
    pub(super) fn set_relayed_role(&mut self, connection: ConnectionId, role: Role) {
        self.here_mut(connection).peer.role = role;
    }

    /// Returns the position of this connection in the order of all connections; `None`: the connection is
    /// gone.
    pub(super) fn order(&self, connection: ConnectionId) -> Option<u64> {
        self.here.get(&connection).map(|state| state.order)
    }

    /// Returns the OSD that has joined over the connection.
    pub(super) fn osd(&self, connection: ConnectionId) -> Option<OsdId> {
        self.here.get(&connection)?.osd
    }

    /// Notes that an OSD has joined over the connection.
    pub(super) fn set_osd(&mut self, connection: ConnectionId, osd: OsdId) {
        self.here_mut(connection).osd = Some(osd);
    }

    /// Returns the connections over which an OSD has joined.
    pub(super) fn with_osds(&self) -> impl Iterator<Item = ConnectionId> {
        let joined = self.here.iter().filter(|(_, state)| state.osd.is_some());
        joined.map(|(connection, _)| *connection)
    }

    /// Notes that a monitor that does not lead is present as long as the connection lasts.
    pub(super) fn set_monitor(&mut self, connection: ConnectionId, monitor: MonitorId) {
        self.here_mut(connection).monitor = Some(monitor);
    }

    /// Returns the connections of monitors that do not lead.
    pub(super) fn with_monitors(&self) -> impl Iterator<Item = ConnectionId> {
        let monitors = self.here.iter().filter(|(_, state)| state.monitor.is_some());
        monitors.map(|(connection, _)| *connection)
    }

    pub(super) fn has_monitor(&self, monitor: MonitorId) -> bool {
        self.here.values().any(|state| state.monitor == Some(monitor))
    }

    pub(super) fn introduce(&mut self, connection: ConnectionId, introduced: Introduced) {
        self.here_mut(connection).introduced = Some(introduced);
    }

    /// Returns the peer's description of itself, if the peer is connected and has sent one.
    pub(super) fn introduced(&self, connection: ConnectionId) -> Option<&Introduced> {
        self.here.get(&connection)?.introduced.as_ref()
    }

    /// Returns the peers' descriptions of themselves, in the order of their connections' ids.
    pub(super) fn all_introduced(&self) -> impl Iterator<Item = &Introduced> {
        self.here.values().filter_map(|state| state.introduced.as_ref())
    }

    /// Subscribes the peer to the map; it already has these revisions.
    pub(super) fn subscribe(&mut self, connection: ConnectionId, has: Subscription) {
        self.here_mut(connection).subscription = Some(has);
    }

    /// Returns the connections that receive the map.
    pub(super) fn subscribers(&self) -> impl Iterator<Item = ConnectionId> {
        let subscribed = self.here.iter().filter(|(_, state)| state.subscription.is_some());
        subscribed.map(|(connection, _)| *connection)
    }

    /// Returns the map revisions that the peer has, if it receives the map.
    pub(super) fn subscription_mut(
        &mut self,
        connection: ConnectionId,
    ) -> Option<&mut Subscription> {
        self.here.get_mut(&connection)?.subscription.as_mut()
    }

    /// Notes that a session uses the connection; false if the connection is already gone.
    pub(super) fn add_session(&mut self, connection: ConnectionId, session: SessionId) -> bool {
        let state = self.here.get_mut(&connection);
        state.map(|state| state.sessions.insert(session, 0)).is_some()
    }

    pub(super) fn remove_session(&mut self, connection: ConnectionId, session: SessionId) {
        if let Some(state) = self.here.get_mut(&connection) {
            state.sessions.remove(&session);
        }
    }

    /// Notes how many bytes of a session that uses the connection wait for free space.
    pub(super) fn note_waiting(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        waiting_bytes: u64,
    ) {
        let state = self.here.get_mut(&connection);
        if let Some(known) = state.and_then(|state| state.sessions.get_mut(&session)) {
            *known = waiting_bytes;
        }
    }

    /// Returns the sessions with bytes that wait for free space, each with the number of bytes.
    pub(super) fn waiting_sessions(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let all = self.here.values().flat_map(|state| &state.sessions);
        all.filter(|(_, bytes)| **bytes > 0).map(|(session, bytes)| (*session, *bytes))
    }

    /// Notes that the peer watches the keys with this prefix.
    pub(super) fn watch_state(&mut self, connection: ConnectionId, prefix: String) {
        self.here_mut(connection).state_watch = Some(prefix);
    }

    /// Returns the connections that watch keys, with the prefix of each.
    pub(super) fn state_watchers(&self) -> impl Iterator<Item = (ConnectionId, &str)> {
        let watching = self.here.iter();
        watching.filter_map(|(id, state)| Some((*id, state.state_watch.as_deref()?)))
    }

    /// Ends all watches, and returns their connections.
    pub(super) fn end_state_watches(&mut self) -> Vec<ConnectionId> {
        let watching = self.here.iter_mut();
        let ended = watching.filter_map(|(id, state)| state.state_watch.take().map(|_| *id));
        ended.collect()
    }

    /// Keeps a message until the state is first read; false if too many are kept.
    pub(super) fn keep_early(&mut self, connection: ConnectionId, message: ToMonitor) -> bool {
        let has_room = self.early.len() < EARLY_COUNT_MAX;
        if has_room {
            self.early.push_back((connection, message));
        }
        has_room
    }

    /// Returns the kept messages, in the order of arrival.
    pub(super) fn take_early(&mut self) -> VecDeque<(ConnectionId, ToMonitor)> {
        std::mem::take(&mut self.early)
    }

    /// Counts a protocol violation by a peer.
    pub(super) fn count_protocol_error(&mut self) {
        self.protocol_errors += 1;
    }

    pub(super) fn protocol_errors(&self) -> u64 {
        self.protocol_errors
    }

    /// Answers a request, or reports that the answer is too long.
    pub(super) fn answer(
        &self,
        connection: ConnectionId,
        request: u64,
        result: Result<Value, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let answer = FromMonitor::Answer { request, result };
        let text = to_text(&answer);
        if text.len() <= CONTROL_SIZE_MAX as usize {
            self.send_text(connection, text, effects);
            return;
        }
        let error = failure(
            "too_large",
            "the answer is too long for one message",
            "narrow the request: give a pool or a longer prefix",
        );
        let answer = FromMonitor::Answer { request, result: Err(error) };
        self.send(connection, &answer, effects);
    }

    pub(super) fn send(
        &self,
        connection: ConnectionId,
        message: &FromMonitor,
        effects: &mut Vec<Effect>,
    ) {
        self.send_text(connection, to_text(message), effects);
    }

    pub(super) fn send_text(
        &self,
        connection: ConnectionId,
        text: String,
        effects: &mut Vec<Effect>,
    ) {
        assert!(text.len() <= CONTROL_SIZE_MAX as usize, "limits keep messages short");
        if self.here.contains_key(&connection) {
            let message = Message::Control(text);
            effects.push(Effect::Net(NetEffect::Send { connection, message }));
        }
    }
}

/// Returns a message as the text that is sent.
pub(super) fn to_text(message: &FromMonitor) -> String {
    serde_json::to_string(message).expect("messages have text keys and plain numbers")
}
