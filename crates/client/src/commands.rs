//! Commands to the monitors as a value: asks go in, answers come out, whichever monitor answers.
//!
//! Invariants
//!   1. Every ask is answered once, if a monitor comes to be.
//!   2. A command that changes something is sent at most once: when the connection is lost before
//!      its answer, the answer is that nobody knows. One that a monitor refuses for want of a leader, or
//!      of the state store, was not done: it is asked again, of the next monitor.

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

/// How long an address has to answer before the next one is tried: a monitor has several, and some
/// may lie in a network that is gone.
pub(crate) const CONNECT_SPAN: Duration = Duration::from_secs(1);
/// How long after a refusal that may pass the next monitor is asked.
const ASK_AGAIN_SPAN: Duration = Duration::from_millis(500);

/// Asks that are not answered, and the connection they go over.
pub struct Commands {
    monitors: Vec<String>,
    /// Which monitor is tried next, modulo their number.
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
    /// A monitor said that nothing was done, for nobody leads or the state store is away: it is
    /// asked again.
    refused: Option<Failure>,
}

/// Top to bottom is the order in time.
enum State {
    /// Nothing is asked, or the next moment to connect is now.
    Idle,
    Waiting {
        until: Time,
    },
    Connecting {
        connection: ConnectionId,
        /// Another address is tried then; `None`: until the next `tick` sees it.
        until: Option<Time>,
    },
    Open {
        connection: ConnectionId,
        /// What was refused and may be done later is asked again then.
        again: Option<Time>,
    },
}

/// An ask and what was answered.
pub type Answered = (u64, Result<Value, Failure>);

impl Commands {
    /// For the monitors at these addresses. Connections get even ids after `last_connection`,
    /// which must be even and leave room for others on the same reactor.
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

    /// Whether this connection is ours.
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

    /// When `tick` is wanted at the latest.
    pub fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Connecting { until, .. } => until,
            State::Open { again, .. } => again,
            State::Idle => None,
        }
    }

    /// The moment of `deadline` came.
    pub fn tick(&mut self, now: Time, effects: &mut Vec<NetEffect>) {
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        match &mut self.state {
            State::Waiting { .. } if is_due => self.connect(effects),
            State::Connecting { connection, .. } if is_due => {
                effects.push(NetEffect::Close { connection: *connection });
                // Nothing was sent over it, so nothing of it is answered.
                self.lost(now, CloseReason::TimedOut, &mut Vec::new());
            }
            State::Connecting { until, .. } => {
                until.get_or_insert(now + CONNECT_SPAN);
            }
            State::Open { connection, .. } if is_due => {
                let connection = *connection;
                if self.asked.values().any(|asked| asked.sent) {
                    // An answer is on its way over this connection.
                    self.send(connection, effects);
                } else {
                    effects.push(NetEffect::Close { connection });
                    self.lost(now, CloseReason::Reset, &mut Vec::new());
                }
            }
            _ => {}
        }
    }

    /// Asks a command; the number names its answer.
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

    /// Why an ask is not answered yet, if a monitor said so: then nothing was done.
    pub fn refusal(&self, ask: u64) -> Option<&Failure> {
        self.asked.get(&ask).filter(|asked| !asked.sent)?.refused.as_ref()
    }

    /// The answer to an ask is no longer wanted: it will not come. A change that was sent may
    /// happen.
    pub fn forget(&mut self, ask: u64) {
        self.asked.remove(&ask);
    }

    /// Takes what the network tells of our connection.
    pub fn apply(
        &mut self,
        now: Time,
        event: NetEvent,
        effects: &mut Vec<NetEffect>,
        answers: &mut Vec<Answered>,
    ) {
        match event {
            NetEvent::Accepted { .. } => {}
            NetEvent::Connected { connection, peer } => {
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

    /// Sends what is not sent.
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
            let message = "the monitor went away before it answered".to_string();
            let hint = "it may have been done: look before you ask again";
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
            let message = format!("the monitor refuses the connection: {why}");
            let hint = "use the file `key` of this cluster's directory";
            answers.push((request, Err(failure("untrusted", message, hint))));
        }
    }
}

/// Whether a command changes the cluster, so that it must not be repeated unasked.
fn changes(command: &Command) -> bool {
    !matches!(
        command,
        Command::PoolList
            | Command::VolumeList
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
            self.apply(NetEvent::Connected { connection, peer });
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
    fn an_ask_is_answered_by_whichever_monitor_comes() {
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
    fn a_query_is_sent_again_and_a_change_is_not() {
        let mut world = World::new();
        let query = world.ask(Command::VolumeList);
        let change = world.ask(Command::VolumeRemove { volume: "disk".to_string() });
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
    fn a_change_that_found_no_leader_is_asked_of_another_monitor() {
        let mut world = World::new();
        let change = world.ask(Command::VolumeRemove { volume: "disk".to_string() });
        world.effects.truncate(1);
        let connection = world.connect();
        world.effects.clear();
        let nobody = failure("no_leader", "nobody leads".to_string(), "try again");
        let answer = FromMonitor::Answer { request: change, result: Err(nobody.clone()) };
        let text = serde_json::to_string(&answer).expect("JSON");
        world.apply(NetEvent::Received { connection, message: Message::Control(text) });
        assert_eq!(world.commands.refusal(change), Some(&nobody));
        world.close(connection, CloseReason::Reset);
        assert!(world.answers.is_empty(), "it was not done");
        world.wait();
        world.connect();
        assert!(matches!(world.effects.pop(), Some(NetEffect::Send { .. })), "asked again");
        assert_eq!(world.commands.refusal(change), None);
    }

    #[test]
    fn what_is_refused_without_the_state_store_is_asked_of_the_next_monitor_until_it_is_done() {
        let mut world = World::new();
        let list = world.ask(Command::MonitorList);
        let change = world.ask(Command::VolumeRemove { volume: "disk".to_string() });
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
        // While an answer is awaited it is asked over this connection.
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
        assert_eq!(world.answers, [(change, Ok(Value::Null))], "once, and no word of the rest");
    }

    #[test]
    fn an_address_that_does_not_answer_makes_room_for_the_next() {
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
    fn what_is_forgotten_is_neither_sent_nor_answered() {
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
    fn without_trust_every_ask_is_refused() {
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
