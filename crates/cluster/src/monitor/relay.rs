//! Relayed connections: a monitor that does not lead forwards each connection to the leader, over a separate
//! connection, message by message in both directions.
//!
//! ```text
//!   OSD, client, command ──▶ this monitor ──▶ the leader
//!                        ◀──              ◀──
//! ```
//!
//! So every guarantee of a connection to the leader (the map before the session, one reply to each request)
//! also holds for a connection to any other monitor, and a relayed connection lives as long as its connection
//! to the leader.
//!
//! Invariants
//!   1. Messages that came over a relayed connection are forwarded once, in order, to one leader. When the
//!      connection to the leader breaks, or another monitor leads, the relayed connection is closed and its
//!      process reconnects.
//!   2. A connection that waits longer than [`WAIT_SPAN`] for a leader is closed, to try another monitor.
//!   3. A monitor's own connection is never relayed: if two monitors took each other for the leader, they
//!      would forward it in a loop. Commands that arrive over it are refused at once: if a command waited
//!      here for the next leader, nobody could tell whether it was carried out.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Time};
use format::door::{NetEffect, NetEvent, Peer, Role};
use format::wire::Message;
use serde_json::Value;

use super::connections::{CONNECTION_COUNT_MAX, to_text};
use super::{Effect, failure};
use crate::message::{Command, Failure, FromMonitor, RelayedRole, ToMonitor};

/// How long a connection waits for a leader: longer than a leader's lease lasts, so that few connections are
/// closed when a leader dies.
const WAIT_SPAN: Duration = Duration::from_secs(3);
/// Delay before the next attempt to connect to a leader that could not be reached.
const RETRY_SPAN: Duration = Duration::from_millis(100);
/// Maximum number of messages of one connection that wait for the leader; beyond this the
/// connection is closed.
const QUEUE_COUNT_MAX: usize = 100;
/// Maximum number of bytes of all messages that wait for the leader; beyond this, connections are closed.
const QUEUE_SIZE_MAX: usize = 64 << 20;

/// All connections to this monitor while it does not lead.
pub(super) struct Relay {
    relayed: BTreeMap<ConnectionId, RelayedConnection>,
    /// Relayed connections that have no open connection to the leader yet: timers run only for
    /// these.
    unsettled: BTreeSet<ConnectionId>,
    /// This monitor's connections to the leader, each with the relayed connection that it carries.
    ours: BTreeMap<ConnectionId, ConnectionId>,
    /// The last connection id that this monitor assigned; these ids are even.
    connection_last: u64,
    /// The leader's addresses; empty if no leader is known.
    leader: Vec<String>,
    /// Index of the address to try next, modulo the number of addresses.
    address: usize,
    queue_size: usize,
}

struct RelayedConnection {
    peer: Peer,
    since: Time,
    stage: Stage,
    /// Messages that the peer sent before the connection to the leader was open.
    said: Vec<String>,
}

/// The stages of a relayed connection, in the order in which they occur.
#[derive(Clone, Copy)]
enum Stage {
    /// Waits for a leader, or for the time of the next attempt.
    Waiting { until: Time },
    /// Waits for the connection to the leader.
    Connecting { ours: ConnectionId },
    /// Connected to the leader.
    Open { ours: ConnectionId },
}

impl Relay {
    pub(super) fn new() -> Relay {
        Relay {
            relayed: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            ours: BTreeMap::new(),
            connection_last: 0,
            leader: Vec::new(),
            address: 0,
            queue_size: 0,
        }
    }

    /// Handles a network event. `lost` is set while the state store cannot be used and nobody leads: the
    /// reason, and the answer to `status`. In that case commands do not wait for a leader.
    pub(super) fn on_net(
        &mut self,
        now: Time,
        event: NetEvent,
        lost: Option<(&str, &dyn Fn() -> Value)>,
        effects: &mut Vec<Effect>,
    ) {
        match event {
            NetEvent::Accepted { connection, peer } => {
                if self.relayed.len() >= CONNECTION_COUNT_MAX {
                    effects.push(close(connection));
                    return;
                }
                let stage = Stage::Waiting { until: now };
                let entry = RelayedConnection { peer, since: now, stage, said: Vec::new() };
                self.relayed.insert(connection, entry);
                self.unsettled.insert(connection);
                self.advance(now, connection, effects);
            }
            NetEvent::Connected { connection, peer, .. } => {
                self.reached(now, connection, peer, effects);
            }
            NetEvent::Received { connection, message } => {
                if let Some(theirs) = self.ours.get(&connection) {
                    effects.push(send(*theirs, message));
                } else {
                    self.said(connection, message, lost, effects);
                }
            }
            NetEvent::Closed { connection, .. } => self.closed(now, connection, effects),
        }
    }

    fn said(
        &mut self,
        theirs: ConnectionId,
        message: Message,
        lost: Option<(&str, &dyn Fn() -> Value)>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.relayed.get_mut(&theirs) else { return };
        if let Stage::Open { ours } = entry.stage {
            effects.push(send(ours, message));
            return;
        }
        if let Message::Control(text) = &message
            && matches!(serde_json::from_str(text), Ok(ToMonitor::Ping))
        {
            effects.push(send(theirs, Message::Control(to_text(&FromMonitor::Pong))));
            return;
        }
        // The command comes from another monitor, which took this one for the leader and can wait
        // for the leader itself.
        let is_monitor = RelayedRole::of(entry.peer.role).is_none();
        if (lost.is_some() || is_monitor)
            && let Message::Control(text) = &message
            && let Some((request, command)) = command_of(text)
        {
            effects.push(match lost {
                Some((why, status)) => answer_without_state(theirs, request, &command, why, status),
                None => answer(theirs, request, Err(no_leader())),
            });
            return;
        }
        // A peer that has not been answered yet sends only control messages.
        let Message::Control(text) = message else {
            self.send_away(theirs, effects);
            return;
        };
        self.queue_size += text.len();
        entry.said.push(text);
        if entry.said.len() > QUEUE_COUNT_MAX || self.queue_size > QUEUE_SIZE_MAX {
            self.send_away(theirs, effects);
        }
    }

    /// Handles an established connection to the leader's address. The peer is the leader, or another process
    /// that listens there now.
    fn reached(&mut self, now: Time, ours: ConnectionId, peer: Peer, effects: &mut Vec<Effect>) {
        let Some(theirs) = self.ours.get(&ours).copied() else {
            effects.push(close(ours));
            return;
        };
        if !matches!(peer.role, Role::Monitor(_)) {
            effects.push(close(ours));
            self.closed(now, ours, effects);
            return;
        }
        let entry = self.relayed.get_mut(&theirs).expect("our connections go with theirs");
        entry.stage = Stage::Open { ours };
        self.unsettled.remove(&theirs);
        if let Some(role) = RelayedRole::of(entry.peer.role) {
            let relay = serde_json::to_string(&ToMonitor::Relay { role });
            let relay = relay.expect("messages have text keys and plain numbers");
            effects.push(send(ours, Message::Control(relay)));
        }
        for text in std::mem::take(&mut entry.said) {
            self.queue_size -= text.len();
            effects.push(send(ours, Message::Control(text)));
        }
    }

    fn closed(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(theirs) = self.ours.remove(&connection) else {
            if let Some(entry) = self.forget(connection) {
                effects.extend(self.leave(entry.stage));
            }
            return;
        };
        self.address = self.address.wrapping_add(1);
        let entry = self.relayed.get_mut(&theirs).expect("our connections go with theirs");
        if let Stage::Open { .. } = entry.stage {
            self.forget(theirs);
            effects.push(close(theirs));
        } else {
            entry.stage = Stage::Waiting { until: now + RETRY_SPAN };
        }
    }

    /// Answers the waiting commands, because the state store cannot be used. `status` returns the last known
    /// state.
    pub(super) fn answer_commands(
        &mut self,
        why: &str,
        status: &dyn Fn() -> Value,
        effects: &mut Vec<Effect>,
    ) {
        let Relay { relayed, queue_size, .. } = self;
        for (theirs, entry) in relayed {
            entry.said.retain(|text| {
                let Some((request, command)) = command_of(text) else { return true };
                effects.push(answer_without_state(*theirs, request, &command, why, status));
                *queue_size -= text.len();
                false
            });
        }
    }

    /// Handles a change of leader: another monitor leads, or none is known. Peers relayed to the
    /// previous leader must reconnect.
    pub(super) fn set_leader(
        &mut self,
        now: Time,
        addresses: Vec<String>,
        effects: &mut Vec<Effect>,
    ) {
        self.leader = addresses;
        self.address = 0;
        for theirs in self.relayed.keys().copied().collect::<Vec<_>>() {
            let stage = self.relayed[&theirs].stage;
            effects.extend(self.leave(stage));
            if let Stage::Open { .. } = stage {
                self.forget(theirs);
                effects.push(close(theirs));
                continue;
            }
            let entry = self.relayed.get_mut(&theirs).expect("looked at above");
            entry.stage = Stage::Waiting { until: now };
            self.advance(now, theirs, effects);
        }
    }

    /// Closes connections that have waited too long, and connects the others to the leader if that is due.
    pub(super) fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        for theirs in self.unsettled.iter().copied().collect::<Vec<_>>() {
            let entry = &self.relayed[&theirs];
            if entry.due().is_some_and(|due| due <= now) {
                if entry.since + WAIT_SPAN <= now {
                    self.send_away(theirs, effects);
                } else {
                    self.advance(now, theirs, effects);
                }
            }
        }
    }

    /// Returns the latest time at which `tick` must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let has_leader = !self.leader.is_empty();
        let due = |entry: &RelayedConnection| match entry.stage {
            Stage::Waiting { .. } if !has_leader => Some(entry.since + WAIT_SPAN),
            _ => entry.due(),
        };
        self.unsettled.iter().filter_map(|theirs| due(&self.relayed[theirs])).min()
    }

    /// Returns an id for a connection that this monitor makes.
    pub(super) fn next_connection(&mut self) -> ConnectionId {
        self.connection_last += 2;
        ConnectionId::new(self.connection_last)
    }

    /// Connects to the leader on behalf of a waiting connection, if that is due.
    fn advance(&mut self, now: Time, theirs: ConnectionId, effects: &mut Vec<Effect>) {
        let entry = self.relayed.get_mut(&theirs).expect("the caller has seen it");
        let Stage::Waiting { until } = entry.stage else { return };
        if self.leader.is_empty() || now < until {
            return;
        }
        if RelayedRole::of(entry.peer.role).is_none() {
            self.send_away(theirs, effects);
            return;
        }
        let ours = self.next_connection();
        let entry = self.relayed.get_mut(&theirs).expect("seen above");
        entry.stage = Stage::Connecting { ours };
        self.ours.insert(ours, theirs);
        let address = self.leader[self.address % self.leader.len()].clone();
        effects.push(Effect::Net(NetEffect::Connect { connection: ours, address }));
    }

    /// Closes a relayed connection. Its commands that did not reach a leader are answered with a
    /// refusal: they were not carried out.
    fn send_away(&mut self, theirs: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(entry) = self.forget(theirs) else { return };
        effects.extend(self.leave(entry.stage));
        for (request, _) in entry.said.iter().filter_map(|text| command_of(text)) {
            effects.push(answer(theirs, request, Err(no_leader())));
        }
        effects.push(close(theirs));
    }

    fn forget(&mut self, theirs: ConnectionId) -> Option<RelayedConnection> {
        let entry = self.relayed.remove(&theirs)?;
        self.unsettled.remove(&theirs);
        self.queue_size -= entry.said.iter().map(String::len).sum::<usize>();
        Some(entry)
    }

    /// Closes this monitor's connection to the leader that belongs to the stage, if there is one.
    fn leave(&mut self, stage: Stage) -> Option<Effect> {
        match stage {
            Stage::Waiting { .. } => None,
            Stage::Connecting { ours } | Stage::Open { ours } => {
                self.ours.remove(&ours).map(|_| close(ours))
            }
        }
    }

    /// Handles the start of this monitor's leadership: returns the waiting connections and their messages, so
    /// that this monitor serves them itself. Peers relayed to another monitor must reconnect.
    pub(super) fn hand_over(&mut self, now: Time, effects: &mut Vec<Effect>) -> Vec<NetEvent> {
        self.set_leader(now, Vec::new(), effects);
        self.queue_size = 0;
        let mut events = Vec::new();
        self.unsettled.clear();
        for (connection, entry) in std::mem::take(&mut self.relayed) {
            events.push(NetEvent::Accepted { connection, peer: entry.peer });
            let said = entry.said.into_iter();
            events.extend(
                said.map(|text| NetEvent::Received { connection, message: Message::Control(text) }),
            );
        }
        events
    }
}

impl RelayedConnection {
    /// Returns the time at which this connection needs attention if no event arrives.
    fn due(&self) -> Option<Time> {
        let end = self.since + WAIT_SPAN;
        match self.stage {
            Stage::Waiting { until } => Some(until.min(end)),
            Stage::Connecting { .. } => Some(end),
            Stage::Open { .. } => None,
        }
    }
}

/// Returns the answer to a command while nobody leads and the state store cannot be used.
fn answer_without_state(
    theirs: ConnectionId,
    request: u64,
    command: &Command,
    why: &str,
    status: &dyn Fn() -> Value,
) -> Effect {
    let result = match command {
        Command::Status => Ok(status()),
        _ => Err(no_state(why)),
    };
    answer(theirs, request, result)
}

fn answer(theirs: ConnectionId, request: u64, result: Result<Value, Failure>) -> Effect {
    let answer = FromMonitor::Answer { request, result };
    send(theirs, Message::Control(to_text(&answer)))
}

fn no_leader() -> Failure {
    failure(
        NO_LEADER,
        "no monitor leads the cluster now, or the leader cannot be reached",
        "nothing was changed; check that a majority of the monitors and the state store are \
         running, and try again",
    )
}

/// Returns the refusal of a command while the state store cannot be used.
pub(super) fn no_state(why: &str) -> Failure {
    let hint = "nothing was changed, and I/O continues; check that a majority of the state store's \
                members are running";
    failure(NO_STATE, why, hint)
}

/// Codes of refusals of commands that were not carried out: there was no leader, or no state store.
const NO_LEADER: &str = "no_leader";
const NO_STATE: &str = "state_unavailable";

/// Whether a refusal with this code means that nothing was done, and that the same command may
/// succeed later.
pub fn is_not_done_yet(code: &str) -> bool {
    [NO_LEADER, NO_STATE].contains(&code)
}

fn close(connection: ConnectionId) -> Effect {
    Effect::Net(NetEffect::Close { connection })
}

fn send(connection: ConnectionId, message: Message) -> Effect {
    Effect::Net(NetEffect::Send { connection, message })
}

fn command_of(text: &str) -> Option<(u64, Command)> {
    match serde_json::from_str(text) {
        Ok(ToMonitor::Command { request, command }) => Some((request, command)),
        _ => None,
    }
}
