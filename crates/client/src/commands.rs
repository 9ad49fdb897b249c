//! Sends commands to the monitors. A pure state machine: requests go in, and answers come out from whichever
//! monitor answers.
//!
//! Invariants
//!   1. Every request is answered once, provided that a monitor becomes reachable.
//!   2. A command that changes something is carried out at most once: if the connection is lost before the
//!      answer arrives, the answer is `unknown`. If a monitor refuses the command because there is no
//!      leader or no state store, it was not carried out, so it is sent to the next monitor.

use std::collections::BTreeMap;

use base::{ConnectionId, Duration, Time};
use cluster::message::{Command, Failure, FromMonitor, ToMonitor};
use cluster::monitor::is_not_done_yet;
use format::door::{CloseReason, NetEffect, NetEvent, Role};
use format::wire::Message;
use serde_json::Value;

use crate::config::failure;

const CONNECT_DELAY_MIN: Duration = Duration::from_millis(10);
const CONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// How long to wait for an answer from an address before the next one is tried: a monitor has several
/// addresses, and some may be in a network that is down.
pub(crate) const CONNECT_SPAN: Duration = Duration::from_secs(1);
/// Delay after a temporary refusal before the command is sent to the next monitor.
const ASK_AGAIN_SPAN: Duration = Duration::from_millis(500);

/// The requests that are not answered yet, and the connection they use.
pub struct Commands {
    monitors: Vec<String>,
    /// Index of the address that is tried next, modulo the number of addresses.
    address: usize,
    state: State,
    delay: Duration,
    untrusted_count: usize,
    last_connection: u64,
    last_ask: u64,
    asked: BTreeMap<u64, Asked>,
}

struct Asked {
    command: Command,
    sent: bool,
    /// Why a monitor has not carried out this command yet: there is no leader, or the state store is
    /// unavailable. The command is sent again.
    refused: Option<Failure>,
}

/// The states of the connection, in chronological order.
enum State {
    /// No request is open and there is no connection; the next request connects at once.
    Idle,
    Waiting {
        until: Time,
    },
    Connecting {
        connection: ConnectionId,
        /// When the next address is tried; `None`: the next `tick` sets it.
        until: Option<Time>,
    },
    Open {
        connection: ConnectionId,
        /// When refused requests are sent again.
        again: Option<Time>,
    },
}

/// A request and its answer.
pub type Answered = (u64, Result<Value, Failure>);

impl Commands {
    /// Creates an empty set of requests for the monitors at these addresses. Connections get the even ids
    /// after `last_connection`, which must be even and must leave room for other users of the same reactor.
    pub fn new(monitors: Vec<String>, last_connection: ConnectionId) -> Commands {
        assert!(!monitors.is_empty());
        assert!(last_connection.get().is_multiple_of(2));
        Commands {
            monitors,
            address: 0,
            state: State::Idle,
            delay: CONNECT_DELAY_MIN,
            untrusted_count: 0,
            last_connection: last_connection.get(),
            last_ask: 0,
            asked: BTreeMap::new(),
        }
    }

    /// Whether this connection belongs to these requests.
    pub fn is(&self, id: ConnectionId) -> bool {
        match self.state {
            State::Idle | State::Waiting { .. } => false,
            State::Connecting { connection, .. } | State::Open { connection, .. } => {
                connection == id
            }
        }
    }

    /// Whether a monitor is connected.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Returns the latest time at which `tick` must be called.
    pub fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Connecting { until, .. } => until,
            State::Open { again, .. } => again,
            State::Idle => None,
        }
    }

    /// Handles a deadline that has passed. Call this at the time of `deadline`.
    pub fn tick(&mut self, now: Time, effects: &mut Vec<NetEffect>) {
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        match &mut self.state {
            State::Waiting { .. } if is_due => self.connect(effects),
            State::Connecting { connection, .. } if is_due => {
                effects.push(NetEffect::Close { connection: *connection });
                // Nothing was sent over this connection, so no answer is lost.
                self.lost(now, CloseReason::TimedOut, &mut Vec::new());
            }
            State::Connecting { until, .. } => {
                until.get_or_insert(now + CONNECT_SPAN);
            }
            State::Open { connection, .. } if is_due => {
                let connection = *connection;
                if self.asked.values().any(|asked| asked.sent) {
                    // Keep this connection: an answer is still expected on it.
                    self.send(connection, effects);
                } else {
                    effects.push(NetEffect::Close { connection });
                    self.lost(now, CloseReason::Reset, &mut Vec::new());
                }
            }
            _ => {}
        }
    }

    /// Sends a command. The returned number identifies its answer.
    pub fn ask(&mut self, command: Command, effects: &mut Vec<NetEffect>) -> u64 {
        self.last_ask += 1;
        self.asked.insert(self.last_ask, Asked { command, sent: false, refused: None });
        match self.state {
            State::Idle => self.connect(effects),
            State::Waiting { .. } | State::Connecting { .. } => {}
            State::Open { connection, .. } => self.send(connection, effects),
        }
        self.last_ask
    }

    /// Returns why a request has to be retried, if a monitor refused it; the refused request was not
    /// carried out.
    pub fn refusal(&self, ask: u64) -> Option<&Failure> {
        self.asked.get(&ask).filter(|asked| !asked.sent)?.refused.as_ref()
    }

    /// Drops a request: its answer will be ignored. A change that was already sent may still be carried out.
    pub fn forget(&mut self, ask: u64) {
        self.asked.remove(&ask);
    }

    /// Handles an event of one of our connections.
    pub fn apply(
        &mut self,
        now: Time,
        event: NetEvent,
        effects: &mut Vec<NetEffect>,
        answers: &mut Vec<Answered>,
    ) {
        match event {
            NetEvent::Accepted { .. } => {}
            NetEvent::Connected { connection, peer, .. } => {
                if matches!(peer.role, Role::Monitor(_)) {
                    self.untrusted_count = 0;
                    self.send(connection, effects);
                } else {
                    effects.push(NetEffect::Close { connection });
                    self.lost(now, CloseReason::Reset, answers);
                }
            }
            NetEvent::Received { message, .. } => self.received(now, message, answers),
            NetEvent::Closed { reason, .. } => self.lost(now, reason, answers),
        }
    }

    fn connect(&mut self, effects: &mut Vec<NetEffect>) {
        self.last_connection += 2;
        let connection = ConnectionId::new(self.last_connection);
        self.state = State::Connecting { connection, until: None };
        let address = self.monitors[self.address].clone();
        effects.push(NetEffect::Connect { connection, address });
    }

    /// Sends all requests that have not been sent yet.
    fn send(&mut self, connection: ConnectionId, effects: &mut Vec<NetEffect>) {
        self.state = State::Open { connection, again: None };
        for (request, asked) in self.asked.iter_mut().filter(|(_, asked)| !asked.sent) {
            asked.sent = true;
            let message = ToMonitor::Command { request: *request, command: asked.command.clone() };
            let text = serde_json::to_string(&message).expect("our own types are JSON");
            effects.push(NetEffect::Send { connection, message: Message::Control(text) });
        }
    }

    fn received(&mut self, now: Time, message: Message, answers: &mut Vec<Answered>) {
        self.delay = CONNECT_DELAY_MIN;
        let Message::Control(text) = message else { return };
        let Ok(FromMonitor::Answer { request, result }) = serde_json::from_str(&text) else {
            return;
        };
        if let Err(error) = &result
            && is_not_done_yet(&error.code)
        {
            if let Some(asked) = self.asked.get_mut(&request)
                && let State::Open { again, .. } = &mut self.state
            {
                (asked.sent, asked.refused) = (false, Some(error.clone()));
                again.get_or_insert(now + ASK_AGAIN_SPAN);
            }
            return;
        }
        if self.asked.remove(&request).is_some() {
            answers.push((request, result));
        }
    }

    fn lost(&mut self, now: Time, reason: CloseReason, answers: &mut Vec<Answered>) {
        self.state = State::Waiting { until: now + self.delay };
        self.delay = self.delay.doubled_up_to(CONNECT_DELAY_MAX);
        self.address = (self.address + 1) % self.monitors.len();
        let unknown = self.asked.iter().filter(|(_, asked)| asked.sent && changes(&asked.command));
        for request in unknown.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.asked.remove(&request);
            let message = "the connection to the monitor was lost before it answered".to_string();
            let hint = "the command may have been carried out: check before you repeat it";
            answers.push((request, Err(failure("unknown", message, hint))));
        }
        for asked in self.asked.values_mut() {
            asked.sent = false;
        }
        if let CloseReason::Untrusted(why) = reason {
            self.untrusted_count += 1;
            if self.untrusted_count >= self.monitors.len() {
                self.refuse_all(&why, answers);
            }
        }
        if self.asked.is_empty() {
            self.state = State::Idle;
        }
    }

    fn refuse_all(&mut self, why: &str, answers: &mut Vec<Answered>) {
        for request in std::mem::take(&mut self.asked).into_keys() {
            let message = format!("the monitor refused the connection: {why}");
            let hint = "check that the file `key` belongs to the monitor's cluster";
            answers.push((request, Err(failure("untrusted", message, hint))));
        }
    }
}

/// Whether a command changes the cluster: such commands are not repeated automatically.
fn changes(command: &Command) -> bool {
    !matches!(
        command,
        Command::PoolList
            | Command::VolumeList
            | Command::SessionState { .. }
            | Command::VolumeInfo { .. }
            | Command::MonitorList
            | Command::OsdList
            | Command::Table { .. }
            | Command::OsdTree
            | Command::PgList { .. }
            | Command::PgDescribe { .. }
            | Command::Status
            | Command::StateList { .. }
            | Command::StateGet { .. }
            | Command::ConfigList
            | Command::ConfigGet { .. }
            | Command::TaskList { .. }
    )
}

#[cfg(test)]
mod tests {
    use base::{ClusterId, MonitorId};
    use format::door::Peer;

    use super::*;

    struct World {
        commands: Commands,
        effects: Vec<NetEffect>,
        answers: Vec<Answered>,
        now: Time,
    }

    impl World {
        fn new() -> World {
            let monitors = vec!["tcp:a:1".to_string(), "tcp:b:1".to_string()];
            World {
                commands: Commands::new(monitors, ConnectionId::ZERO),
                effects: Vec::new(),
                answers: Vec::new(),
                now: Time::ZERO,
            }
        }

        fn ask(&mut self, command: Command) -> u64 {
            self.commands.ask(command, &mut self.effects)
        }

        fn apply(&mut self, event: NetEvent) {
            self.commands.apply(self.now, event, &mut self.effects, &mut self.answers);
        }

        fn connecting(&mut self) -> (ConnectionId, String) {
            match self.effects.pop() {
                Some(NetEffect::Connect { connection, address }) => (connection, address),
                other => panic!("no connect: {other:?}"),
            }
        }

        fn connect(&mut self) -> ConnectionId {
            let (connection, _) = self.connecting();
            let role = Role::Monitor(MonitorId::FIRST);
            let peer = Peer { cluster: ClusterId::new(1), role };
            self.apply(NetEvent::Connected { connection, peer, version: 2 });
            connection
        }

        fn close(&mut self, connection: ConnectionId, reason: CloseReason) {
            self.apply(NetEvent::Closed { connection, reason });
        }

        fn wait(&mut self) {
            self.now = self.commands.deadline().expect("it waits");
            self.commands.tick(self.now, &mut self.effects);
        }
    }

    #[test]
    fn a_request_is_answered_by_whichever_monitor_connects() {
        let mut world = World::new();
        let request = world.ask(Command::Status);
        let (connection, address) = world.connecting();
        assert_eq!(address, "tcp:a:1");
        world.close(connection, CloseReason::Refused);
        world.wait();
        let connection = world.connect();
        assert!(matches!(world.effects.pop(), Some(NetEffect::Send { .. })));
        let result = Ok(serde_json::json!({"health": "ok"}));
        let answer = FromMonitor::Answer { request, result: result.clone() };
        let text = serde_json::to_string(&answer).expect("JSON");
        let received = || Message::Control(text.clone());
        world.apply(NetEvent::Received { connection, message: received() });
        world.apply(NetEvent::Received { connection, message: received() });
        assert_eq!(world.answers, [(request, result)]);
    }

    #[test]
    fn queries_are_sent_again_but_changes_are_not() {
        let mut world = World::new();
        let query = world.ask(Command::VolumeList);
        let change =
            world.ask(Command::VolumeRemove { gateway: false, volume: "disk".to_string() });
        world.effects.truncate(1);
        let connection = world.connect();
        assert_eq!(world.effects.len(), 2);
        world.effects.clear();
        world.close(connection, CloseReason::Reset);
        let [(request, Err(failure))] = &world.answers[..] else { panic!("one answer") };
        assert_eq!((*request, failure.code.as_str()), (change, "unknown"));
        world.wait();
        world.connect();
        let [NetEffect::Send { message: Message::Control(text), .. }] = &world.effects[..] else {
            panic!("one is sent")
        };
        assert!(text.contains(&format!("\"request\":{query}")), "{text}");
    }

    #[test]
    fn a_change_without_a_leader_goes_to_another_monitor() {
        let mut world = World::new();
        let change =
            world.ask(Command::VolumeRemove { gateway: false, volume: "disk".to_string() });
        world.effects.truncate(1);
        let connection = world.connect();
        world.effects.clear();
        let nobody = failure("no_leader", "nobody leads".to_string(), "try again");
        let answer = FromMonitor::Answer { request: change, result: Err(nobody.clone()) };
        let text = serde_json::to_string(&answer).expect("JSON");
        world.apply(NetEvent::Received { connection, message: Message::Control(text) });
        assert_eq!(world.commands.refusal(change), Some(&nobody));
        world.close(connection, CloseReason::Reset);
        assert!(world.answers.is_empty(), "nothing was carried out");
        world.wait();
        world.connect();
        assert!(matches!(world.effects.pop(), Some(NetEffect::Send { .. })), "asked again");
        assert_eq!(world.commands.refusal(change), None);
    }

    #[test]
    fn requests_refused_without_a_state_store_are_retried_until_done() {
        let mut world = World::new();
        let list = world.ask(Command::MonitorList);
        let change =
            world.ask(Command::VolumeRemove { gateway: false, volume: "disk".to_string() });
        let status = world.ask(Command::Status);
        world.effects.truncate(1);
        let mut connection = world.connect();
        let answer = |world: &mut World, connection, request, result: Result<Value, &str>| {
            let refused = |code: &str| failure(code, "the store is away".to_string(), "wait");
            let answer = FromMonitor::Answer { request, result: result.map_err(refused) };
            let text = serde_json::to_string(&answer).expect("JSON");
            world.apply(NetEvent::Received { connection, message: Message::Control(text) });
        };
        let sent = |world: &mut World| {
            let text_of = |effect| match effect {
                NetEffect::Send { message: Message::Control(text), .. } => Some(text),
                _ => None,
            };
            world.effects.drain(..).filter_map(text_of).collect::<Vec<_>>()
        };
        assert_eq!(sent(&mut world).len(), 3);
        for request in [list, change] {
            answer(&mut world, connection, request, Err("state_unavailable"));
        }
        // While an answer is expected on this connection, refused requests are sent again over it too.
        world.wait();
        assert_eq!(sent(&mut world).len(), 2);
        assert!(world.commands.is(connection));
        for request in [list, change] {
            answer(&mut world, connection, request, Err("state_unavailable"));
        }
        answer(&mut world, connection, status, Ok(serde_json::json!({})));
        assert_eq!(std::mem::take(&mut world.answers), [(status, Ok(serde_json::json!({})))]);
        for _ in 0..3 {
            let refused = world.commands.refusal(change).expect("it was refused");
            assert_eq!(refused.code, "state_unavailable");
            let before = world.now;
            world.wait();
            assert_eq!(world.now, before + ASK_AGAIN_SPAN);
            let closed = world.effects.pop();
            assert!(
                matches!(closed, Some(NetEffect::Close { connection: id }) if id == connection)
            );
            world.wait();
            connection = world.connect();
            assert_eq!(sent(&mut world).len(), 2);
            for request in [list, change] {
                answer(&mut world, connection, request, Err("state_unavailable"));
            }
        }
        world.wait();
        world.wait();
        connection = world.connect();
        answer(&mut world, connection, change, Ok(Value::Null));
        assert_eq!(
            world.answers,
            [(change, Ok(Value::Null))],
            "answered once, the forgotten one never"
        );
    }

    #[test]
    fn the_next_address_is_tried_after_one_that_does_not_answer() {
        let mut world = World::new();
        world.ask(Command::Status);
        let (silent, address) = world.connecting();
        assert_eq!(address, "tcp:a:1");
        world.commands.tick(world.now, &mut world.effects);
        assert_eq!(world.commands.deadline(), Some(world.now + CONNECT_SPAN));
        world.wait();
        let closed = world.effects.pop();
        assert!(matches!(closed, Some(NetEffect::Close { connection }) if connection == silent));
        world.wait();
        assert_eq!(world.connecting().1, "tcp:b:1");
    }

    #[test]
    fn a_forgotten_request_is_neither_sent_nor_answered() {
        let mut world = World::new();
        let request = world.ask(Command::VolumeList);
        world.commands.forget(request);
        assert!(world.commands.asked.is_empty());
        let connection = world.connect();
        assert!(world.effects.is_empty());
        let answer = FromMonitor::Answer { request, result: Ok(serde_json::json!([])) };
        let text = serde_json::to_string(&answer).expect("JSON");
        world.apply(NetEvent::Received { connection, message: Message::Control(text) });
        assert!(world.answers.is_empty());
    }

    #[test]
    fn without_trust_every_request_is_refused() {
        let mut world = World::new();
        let request = world.ask(Command::Status);
        for _ in 0..2 {
            let (connection, _) = world.connecting();
            world.close(connection, CloseReason::Untrusted("another key".to_string()));
            if world.answers.is_empty() {
                world.wait();
            }
        }
        let [(answered, Err(failure))] = &world.answers[..] else { panic!("one answer") };
        assert_eq!((*answered, failure.code.as_str()), (request, "untrusted"));
        assert_eq!(world.commands.deadline(), None);
    }
}
