//! Guests of a monitor that does not lead: each is taken on to the monitor that does, over a
//! connection of its own, word for word in both directions.
//!
//! ```text
//!   OSD, client, command ──▶ this monitor ──▶ the leading one
//!                        ◀──              ◀──
//! ```
//!
//! So everything that is promised of one connection to the leader (the map before the session, one
//! answer for each request) holds over any monitor, and a guest's connection lives as long as its
//! way to the leader.
//!
//! Invariants
//!   1. What a guest said is sent on once, in order, to one leader. When that connection breaks, or
//!      another monitor leads, the guest's own is closed: it comes again.
//!   2. A guest that waits longer than [`WAIT_SPAN`] is sent away, to try another monitor.
//!   3. A monitor is never taken on: two that believe of each other that they lead would send it
//!      round in circles. Commands that it brings are refused at once: if it waited here until it hears
//!      of the next leader, nobody would know any more whether they were done.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Time};
use format::door::{NetEffect, NetEvent, Peer, Role};
use format::wire::Message;
use serde_json::Value;

use super::{CONNECTION_COUNT_MAX, Effect, failure, to_text};
use crate::message::{Command, Failure, FromMonitor, Guest, ToMonitor};

/// How long a guest waits until it is connected to the leader: as long as a leader's lease lasts,
/// so that few are sent away when one dies.
const WAIT_SPAN: Duration = Duration::from_secs(3);
/// How long until a leader that was not reached is tried again.
const RETRY_SPAN: Duration = Duration::from_millis(100);
/// Messages of one guest that wait for the leader; beyond it the guest is sent away.
const QUEUE_COUNT_MAX: usize = 100;
/// Bytes of all messages that wait for the leader; beyond it guests are sent away.
const QUEUE_SIZE_MAX: usize = 64 << 20;

/// Everybody who is connected to this monitor while it does not lead.
pub(super) struct Guests {
    guests: BTreeMap<ConnectionId, Visit>,
    /// Those of them that do not talk to the leader yet: nothing is due for others.
    unsettled: BTreeSet<ConnectionId>,
    /// Our connections to the leader, and whose words they carry.
    ours: BTreeMap<ConnectionId, ConnectionId>,
    /// The last of our own ids: they are even.
    connection_last: u64,
    /// Where the leader listens; none: nobody is known to lead.
    leader: Vec<String>,
    /// Which address is tried next, modulo their number.
    address: usize,
    queue_size: usize,
}

struct Visit {
    peer: Peer,
    since: Time,
    stage: Stage,
    /// What it said before it was connected to the leader.
    said: Vec<String>,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy)]
enum Stage {
    /// Waits for a leader, or for the time to try it again.
    Waiting { until: Time },
    /// Waits for the connection to the leader.
    Connecting { ours: ConnectionId },
    /// Talks to the leader.
    Open { ours: ConnectionId },
}

impl Guests {
    pub(super) fn new() -> Guests {
        Guests {
            guests: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            ours: BTreeMap::new(),
            connection_last: 0,
            leader: Vec::new(),
            address: 0,
            queue_size: 0,
        }
    }

    /// Takes what the network tells. `lost` is why the state cannot be asked while nobody leads, and
    /// the answer to `status` then: commands do not wait for a leader.
    pub(super) fn on_net(
        &mut self,
        now: Time,
        event: NetEvent,
        lost: Option<(&str, &dyn Fn() -> Value)>,
        effects: &mut Vec<Effect>,
    ) {
        match event {
            NetEvent::Accepted { connection, peer } => {
                if self.guests.len() >= CONNECTION_COUNT_MAX {
                    effects.push(close(connection));
                    return;
                }
                let stage = Stage::Waiting { until: now };
                let visit = Visit { peer, since: now, stage, said: Vec::new() };
                self.guests.insert(connection, visit);
                self.unsettled.insert(connection);
                self.advance(now, connection, effects);
            }
            NetEvent::Connected { connection, peer } => {
                self.reached(now, connection, peer, effects);
            }
            NetEvent::Received { connection, message } => {
                if let Some(guest) = self.ours.get(&connection) {
                    effects.push(send(*guest, message));
                } else {
                    self.said(connection, message, lost, effects);
                }
            }
            NetEvent::Closed { connection, .. } => self.closed(now, connection, effects),
        }
    }

    fn said(
        &mut self,
        guest: ConnectionId,
        message: Message,
        lost: Option<(&str, &dyn Fn() -> Value)>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(visit) = self.guests.get_mut(&guest) else { return };
        if let Stage::Open { ours } = visit.stage {
            effects.push(send(ours, message));
            return;
        }
        if let Message::Control(text) = &message
            && matches!(serde_json::from_str(text), Ok(ToMonitor::Ping))
        {
            effects.push(send(guest, Message::Control(to_text(&FromMonitor::Pong))));
            return;
        }
        // Another monitor, which sends it here by what it knew, waits for the leader itself.
        let is_monitor = Guest::of(visit.peer.role).is_none();
        if (lost.is_some() || is_monitor)
            && let Message::Control(text) = &message
            && let Some((request, command)) = command_of(text)
        {
            effects.push(match lost {
                Some((why, status)) => answer_without_state(guest, request, &command, why, status),
                None => answer(guest, request, Err(no_leader())),
            });
            return;
        }
        // Whoever has not been answered yet has only control messages to send.
        let Message::Control(text) = message else {
            self.send_away(guest, effects);
            return;
        };
        self.queue_size += text.len();
        visit.said.push(text);
        if visit.said.len() > QUEUE_COUNT_MAX || self.queue_size > QUEUE_SIZE_MAX {
            self.send_away(guest, effects);
        }
    }

    /// The leader, or something else that listens where it did, is connected.
    fn reached(&mut self, now: Time, ours: ConnectionId, peer: Peer, effects: &mut Vec<Effect>) {
        let Some(guest) = self.ours.get(&ours).copied() else {
            effects.push(close(ours));
            return;
        };
        if !matches!(peer.role, Role::Monitor(_)) {
            effects.push(close(ours));
            self.closed(now, ours, effects);
            return;
        }
        let visit = self.guests.get_mut(&guest).expect("our connections go with their guests");
        visit.stage = Stage::Open { ours };
        self.unsettled.remove(&guest);
        if let Some(guest) = Guest::of(visit.peer.role) {
            let relay = serde_json::to_string(&ToMonitor::Relay { guest });
            let relay = relay.expect("messages have text keys and plain numbers");
            effects.push(send(ours, Message::Control(relay)));
        }
        for text in std::mem::take(&mut visit.said) {
            self.queue_size -= text.len();
            effects.push(send(ours, Message::Control(text)));
        }
    }

    fn closed(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(guest) = self.ours.remove(&connection) else {
            if let Some(visit) = self.forget(connection) {
                effects.extend(self.leave(visit.stage));
            }
            return;
        };
        self.address = self.address.wrapping_add(1);
        let visit = self.guests.get_mut(&guest).expect("our connections go with their guests");
        if let Stage::Open { .. } = visit.stage {
            self.forget(guest);
            effects.push(close(guest));
        } else {
            visit.stage = Stage::Waiting { until: now + RETRY_SPAN };
        }
    }

    /// Whoever waits for an answer is told that the state cannot be asked, and how things were.
    pub(super) fn answer_commands(
        &mut self,
        why: &str,
        status: &dyn Fn() -> Value,
        effects: &mut Vec<Effect>,
    ) {
        let Guests { guests, queue_size, .. } = self;
        for (guest, visit) in guests {
            visit.said.retain(|text| {
                let Some((request, command)) = command_of(text) else { return true };
                effects.push(answer_without_state(*guest, request, &command, why, status));
                *queue_size -= text.len();
                false
            });
        }
    }

    /// Another monitor leads, or none is known to: who talked to the one before must come again.
    pub(super) fn set_leader(
        &mut self,
        now: Time,
        addresses: Vec<String>,
        effects: &mut Vec<Effect>,
    ) {
        self.leader = addresses;
        self.address = 0;
        for guest in self.guests.keys().copied().collect::<Vec<_>>() {
            let stage = self.guests[&guest].stage;
            effects.extend(self.leave(stage));
            if let Stage::Open { .. } = stage {
                self.forget(guest);
                effects.push(close(guest));
                continue;
            }
            let visit = self.guests.get_mut(&guest).expect("looked at above");
            visit.stage = Stage::Waiting { until: now };
            self.advance(now, guest, effects);
        }
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        for guest in self.unsettled.iter().copied().collect::<Vec<_>>() {
            let visit = &self.guests[&guest];
            if visit.due().is_some_and(|due| due <= now) {
                if visit.since + WAIT_SPAN <= now {
                    self.send_away(guest, effects);
                } else {
                    self.advance(now, guest, effects);
                }
            }
        }
    }

    /// When `tick` is wanted at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        let has_leader = !self.leader.is_empty();
        let due = |visit: &Visit| match visit.stage {
            Stage::Waiting { .. } if !has_leader => Some(visit.since + WAIT_SPAN),
            _ => visit.due(),
        };
        self.unsettled.iter().filter_map(|guest| due(&self.guests[guest])).min()
    }

    /// Names a connection that this monitor makes.
    pub(super) fn next_connection(&mut self) -> ConnectionId {
        self.connection_last += 2;
        ConnectionId::new(self.connection_last)
    }

    /// Connects a guest that waits, if its time has come.
    fn advance(&mut self, now: Time, guest: ConnectionId, effects: &mut Vec<Effect>) {
        let visit = self.guests.get_mut(&guest).expect("the caller has seen it");
        let Stage::Waiting { until } = visit.stage else { return };
        if self.leader.is_empty() || now < until {
            return;
        }
        if Guest::of(visit.peer.role).is_none() {
            self.send_away(guest, effects);
            return;
        }
        let ours = self.next_connection();
        let visit = self.guests.get_mut(&guest).expect("seen above");
        visit.stage = Stage::Connecting { ours };
        self.ours.insert(ours, guest);
        let address = self.leader[self.address % self.leader.len()].clone();
        effects.push(Effect::Net(NetEffect::Connect { connection: ours, address }));
    }

    /// Closes a guest's connection. Commands that did not reach a leader are answered: nothing was
    /// done.
    fn send_away(&mut self, guest: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(visit) = self.forget(guest) else { return };
        effects.extend(self.leave(visit.stage));
        for (request, _) in visit.said.iter().filter_map(|text| command_of(text)) {
            effects.push(answer(guest, request, Err(no_leader())));
        }
        effects.push(close(guest));
    }

    fn forget(&mut self, guest: ConnectionId) -> Option<Visit> {
        let visit = self.guests.remove(&guest)?;
        self.unsettled.remove(&guest);
        self.queue_size -= visit.said.iter().map(String::len).sum::<usize>();
        Some(visit)
    }

    /// Closes our connection of this stage, if there is one.
    fn leave(&mut self, stage: Stage) -> Option<Effect> {
        match stage {
            Stage::Waiting { .. } => None,
            Stage::Connecting { ours } | Stage::Open { ours } => {
                self.ours.remove(&ours).map(|_| close(ours))
            }
        }
    }

    /// This monitor leads: everybody who waits becomes its own, with what they said. Who talked to
    /// another one must come again.
    pub(super) fn hand_over(&mut self, now: Time, effects: &mut Vec<Effect>) -> Vec<NetEvent> {
        self.set_leader(now, Vec::new(), effects);
        self.queue_size = 0;
        let mut events = Vec::new();
        self.unsettled.clear();
        for (connection, visit) in std::mem::take(&mut self.guests) {
            events.push(NetEvent::Accepted { connection, peer: visit.peer });
            let said = visit.said.into_iter();
            events.extend(
                said.map(|text| NetEvent::Received { connection, message: Message::Control(text) }),
            );
        }
        events
    }
}

impl Visit {
    /// When something is to be done for it if nothing happens.
    fn due(&self) -> Option<Time> {
        let end = self.since + WAIT_SPAN;
        match self.stage {
            Stage::Waiting { until } => Some(until.min(end)),
            Stage::Connecting { .. } => Some(end),
            Stage::Open { .. } => None,
        }
    }
}

/// The answer to a command while nobody leads and the store cannot be asked.
fn answer_without_state(
    guest: ConnectionId,
    request: u64,
    command: &Command,
    why: &str,
    status: &dyn Fn() -> Value,
) -> Effect {
    let result = match command {
        Command::Status => Ok(status()),
        _ => Err(no_state(why)),
    };
    answer(guest, request, result)
}

fn answer(guest: ConnectionId, request: u64, result: Result<Value, Failure>) -> Effect {
    let answer = FromMonitor::Answer { request, result };
    send(guest, Message::Control(to_text(&answer)))
}

fn no_leader() -> Failure {
    failure(
        NO_LEADER,
        "no monitor leads the cluster now, or it is not reached",
        "nothing was done; try again, and look whether most monitors and the state store run",
    )
}

/// The refusal of a command while the state store cannot be asked.
pub(super) fn no_state(why: &str) -> Failure {
    let hint = "nothing was done, and what is served goes on; look whether most members of the state \
                store run";
    failure(NO_STATE, why, hint)
}

/// Codes of refusals that say that a command was not done: for want of a leader, or of the state store.
const NO_LEADER: &str = "no_leader";
const NO_STATE: &str = "state_unavailable";

/// Whether a refusal with this code says that nothing was done, and that the same may be done later.
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
