//! Several monitors with one store: one leads under its lease, the others relay their connections to it.

mod endpoints;
mod lines;
mod removal;
mod silent;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{ConnectionId, Duration, Incarnation, MonitorId, Scheme, SessionId, Time, TraceEvent};
use format::door::{CloseReason, NetEffect, NetEvent, Peer, Role};
use format::wire::Message;
use serde_json::{Value, json};

use super::rig::{CLUSTER, osd_id, store_of};
use crate::copy::Seen;
use crate::message::{Command, Failure, FromMonitor, OsdReport, ToMonitor};
use crate::monitor::{Effect, Election, Event, Identity, StopReason};
use crate::state::memory::MemoryState;
use crate::state::{
    Operation, StateEffect, StateEvent, StateRequest, StateRevision, StateStore, Transaction,
    TransactionOutcome, Unavailable, WatchId,
};

/// The process at an end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Election(usize),
    Client(usize),
}

type End = (Who, ConnectionId);

/// A client, an OSD or a command, with the messages that it received.
#[derive(Default)]
struct Client {
    said: VecDeque<FromMonitor>,
    is_closed: bool,
}

/// Monitors that communicate with each other and with their common store without delay.
struct Monitors {
    now: Time,
    store: MemoryState,
    processes: Vec<Option<Election>>,
    /// Monitors that get no reply from the store.
    cut: BTreeSet<usize>,
    /// Requests from these monitors and events for them, held back until the store replies again.
    held: Vec<(usize, StateEffect)>,
    held_events: Vec<(usize, StateEvent)>,
    /// Transactions with an unknown outcome that may still be applied.
    late: Vec<(usize, StateEffect)>,
    /// Monitors whose transactions are applied but answered with "unknown".
    unsure: BTreeSet<usize>,
    ends: BTreeMap<End, End>,
    clients: Vec<Client>,
    events: VecDeque<(usize, Event)>,
    connection_last: u64,
    stopped: Vec<StopReason>,
    /// Log lines, each with its monitor.
    lines: Vec<(usize, TraceEvent)>,
}

/// The shift that makes the ids of each monitor distinct in the shared store.
const OF_MONITOR: u32 = 48;

fn outer(monitor: usize, id: u64) -> u64 {
    id | (monitor as u64 + 1) << OF_MONITOR
}

fn inner(id: u64) -> Option<(usize, u64)> {
    let monitor = (id >> OF_MONITOR & 0xff).checked_sub(1)?;
    Some((monitor as usize, id & !(0xff << OF_MONITOR)))
}

impl Monitors {
    fn new(count: usize) -> Monitors {
        let mut monitors = Monitors {
            now: Time::from_nanos(1),
            store: MemoryState::default(),
            processes: Vec::new(),
            cut: BTreeSet::new(),
            held: Vec::new(),
            held_events: Vec::new(),
            late: Vec::new(),
            unsure: BTreeSet::new(),
            ends: BTreeMap::new(),
            clients: Vec::new(),
            events: VecDeque::new(),
            connection_last: 1,
            stopped: Vec::new(),
            lines: Vec::new(),
        };
        for number in 0..count {
            monitors.processes.push(None);
            monitors.start(number);
        }
        monitors
    }

    fn start(&mut self, number: usize) {
        let identity = Identity {
            cluster: CLUSTER,
            monitor: MonitorId::new(number as u32 + 1).unwrap(),
            pid: 100,
            host: "h".into(),
            addresses: vec![format!("mon{number}")],
            nonce: 1000 * (number as u64 + 1),
        };
        self.processes[number] = Some(Election::new(identity, true));
        self.events.push_back((number, Event::Tick));
        self.settle();
    }

    /// Makes the store report to a monitor that it cannot be reached, or that it can be reached again.
    fn trouble(&mut self, number: usize, why: Option<&str>) {
        let trouble = why.map(str::to_string);
        self.events.push_back((number, Event::State(StateEvent::Condition { trouble })));
        self.settle();
    }

    /// Kills the monitor's process.
    fn kill(&mut self, number: usize) {
        self.processes[number] = None;
        self.held.retain(|(monitor, _)| *monitor != number);
        self.held_events.retain(|(monitor, _)| *monitor != number);
        self.events.retain(|(monitor, _)| *monitor != number);
        let ends = self.ends.keys().copied().filter(|(who, _)| *who == Who::Election(number));
        for end in ends.collect::<Vec<_>>() {
            self.break_off(end);
        }
        self.settle();
    }

    fn settle(&mut self) {
        let mut steps = 0;
        loop {
            let mut told = Vec::new();
            self.store.poll(self.now, &mut told);
            self.take_state(told);
            let Some((number, event)) = self.events.pop_front() else { return };
            steps += 1;
            assert!(steps < 100_000, "monitors go round in circles");
            let Some(monitor) = &mut self.processes[number] else { continue };
            let mut effects = Vec::new();
            monitor.apply(self.now, event, &mut effects);
            for effect in effects {
                self.effect(number, effect);
            }
        }
    }

    fn effect(&mut self, number: usize, effect: Effect) {
        match effect {
            Effect::Ready | Effect::LogLevel(_) => {}
            Effect::Trace(event) => self.lines.push((number, event)),
            Effect::Stop(reason) => {
                self.stopped.push(reason);
                self.kill(number);
            }
            Effect::State(effect) => self.state_effect(number, effect),
            Effect::Net(NetEffect::Connect { connection, address }) => {
                let to: usize = address.strip_prefix("mon").unwrap().parse().unwrap();
                let here = (Who::Election(number), connection);
                if self.processes[to].is_none() {
                    let reason = CloseReason::Refused;
                    self.tell(here, NetEvent::Closed { connection, reason });
                    return;
                }
                self.connect(here, to, Role::Monitor(monitor_id(number)));
                let peer = Peer { cluster: CLUSTER, role: Role::Monitor(monitor_id(to)) };
                self.tell(here, NetEvent::Connected { connection, peer, version: 2 });
            }
            Effect::Net(NetEffect::Send { connection, message }) => {
                if let Some(there) = self.ends.get(&(Who::Election(number), connection)).copied() {
                    self.tell(there, NetEvent::Received { connection: there.1, message });
                }
            }
            Effect::Net(NetEffect::Close { connection }) => {
                self.break_off((Who::Election(number), connection));
                // No further events of this connection are delivered, not even the event that it is closed.
                self.events.retain(|(monitor, event)| {
                    let Event::Net(event) = event else { return true };
                    let (NetEvent::Accepted { connection: id, .. }
                    | NetEvent::Connected { connection: id, .. }
                    | NetEvent::Received { connection: id, .. }
                    | NetEvent::Closed { connection: id, .. }) = event;
                    *monitor != number || *id != connection
                });
            }
        }
    }

    fn connect(&mut self, here: End, to: usize, role: Role) {
        self.connection_last += 2;
        let connection = ConnectionId::new(self.connection_last);
        let there = (Who::Election(to), connection);
        self.ends.insert(here, there);
        self.ends.insert(there, here);
        let peer = Peer { cluster: CLUSTER, role };
        self.tell(there, NetEvent::Accepted { connection, peer });
    }

    /// Breaks a connection at one end, and notifies the other end.
    fn break_off(&mut self, here: End) {
        if let Some(there) = self.ends.remove(&here) {
            self.ends.remove(&there);
            let reason = CloseReason::Reset;
            self.tell(there, NetEvent::Closed { connection: there.1, reason });
        }
    }

    fn tell(&mut self, (who, _): End, event: NetEvent) {
        match who {
            Who::Election(number) => self.events.push_back((number, Event::Net(event))),
            Who::Client(client) => match event {
                NetEvent::Received { message: Message::Control(text), .. } => {
                    self.clients[client].said.push_back(serde_json::from_str(&text).unwrap());
                }
                NetEvent::Closed { .. } => self.clients[client].is_closed = true,
                other => panic!("not for a client: {other:?}"),
            },
        }
    }

    fn state_effect(&mut self, number: usize, effect: StateEffect) {
        let away = self.cut.contains(&number);
        let unsure = self.unsure.contains(&number);
        let request = |id: StateRequest| StateRequest(outer(number, id.0));
        let watch = |id: WatchId| WatchId(outer(number, id.0));
        let effect = match effect {
            StateEffect::Range { request, .. } if away => {
                let event = StateEvent::Range { request, result: Err(Unavailable) };
                self.events.push_back((number, Event::State(event)));
                return;
            }
            StateEffect::Transact { request, transaction } if away => {
                let outcome = TransactionOutcome::Unknown;
                let event = StateEvent::Transacted { request, outcome };
                self.events.push_back((number, Event::State(event)));
                self.late.push((number, StateEffect::Transact { request, transaction }));
                return;
            }
            // Other requests are held back until the store can be reached again.
            effect if away => {
                self.held.push((number, effect));
                return;
            }
            StateEffect::Range { request: id, prefix, after, limit } => {
                StateEffect::Range { request: request(id), prefix, after, limit }
            }
            StateEffect::Transact { request: id, transaction } => {
                StateEffect::Transact { request: request(id), transaction }
            }
            StateEffect::Watch { watch: id, prefix, from } => {
                StateEffect::Watch { watch: watch(id), prefix, from }
            }
            StateEffect::Unwatch { watch: id } => StateEffect::Unwatch { watch: watch(id) },
            StateEffect::LeaseGrant { request: id, time_to_live } => {
                StateEffect::LeaseGrant { request: request(id), time_to_live }
            }
            StateEffect::LeaseRenew { request: id, lease } => {
                StateEffect::LeaseRenew { request: request(id), lease }
            }
            StateEffect::LeaseRevoke { request: id, lease } => {
                StateEffect::LeaseRevoke { request: request(id), lease }
            }
            StateEffect::Compact { .. } => panic!("monitors compact nothing"),
        };
        let mut told = Vec::new();
        self.store.apply(self.now, effect, &mut told);
        if unsure {
            for event in &mut told {
                if let StateEvent::Transacted { outcome, .. } = event {
                    *outcome = TransactionOutcome::Unknown;
                }
            }
        }
        self.take_state(told);
    }

    fn take_state(&mut self, told: Vec<StateEvent>) {
        for event in told {
            let (id, event) = match event {
                StateEvent::Range { request: StateRequest(id), result } => {
                    let request = StateRequest(inner(id).map_or(0, |(_, id)| id));
                    (id, StateEvent::Range { request, result })
                }
                StateEvent::Transacted { request: StateRequest(id), outcome } => {
                    let request = StateRequest(inner(id).map_or(0, |(_, id)| id));
                    (id, StateEvent::Transacted { request, outcome })
                }
                StateEvent::Lease { request: StateRequest(id), lease } => {
                    let request = StateRequest(inner(id).map_or(0, |(_, id)| id));
                    (id, StateEvent::Lease { request, lease })
                }
                StateEvent::Watched { watch: WatchId(id), revision, changes } => {
                    let watch = WatchId(inner(id).map_or(0, |(_, id)| id));
                    (id, StateEvent::Watched { watch, revision, changes })
                }
                other => panic!("not in these tests: {other:?}"),
            };
            let Some((number, _)) = inner(id) else { continue };
            if self.cut.contains(&number) {
                self.held_events.push((number, event));
            } else if self.processes[number].is_some() {
                self.events.push_back((number, Event::State(event)));
            }
        }
    }

    /// Makes the store reply to all monitors again, and delivers everything that was held back.
    fn mend(&mut self) {
        self.cut.clear();
        self.unsure.clear();
        let told = std::mem::take(&mut self.held_events);
        self.events.extend(told.into_iter().map(|(number, event)| (number, Event::State(event))));
        for (number, effect) in std::mem::take(&mut self.held) {
            self.state_effect(number, effect);
        }
        self.settle();
    }

    /// Applies a late transaction, provided that its comparisons still hold.
    fn land_late(&mut self) {
        let Some((number, StateEffect::Transact { request, transaction })) = self.late.pop() else {
            return;
        };
        // The requester has already been answered with "unknown".
        let request = StateRequest(outer(number, request.0));
        let mut told = Vec::new();
        let effect = StateEffect::Transact { request, transaction };
        self.store.apply(self.now, effect, &mut told);
        told.retain(|event| !matches!(event, StateEvent::Transacted { .. }));
        self.take_state(told);
        self.settle();
    }

    /// Advances the clock, with a tick at every deadline on the way.
    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let processes = self.processes.iter().flatten().filter_map(Election::deadline);
            let next = processes.chain(self.store.deadline()).min();
            let next = next.filter(|next| *next <= end).unwrap_or(end);
            self.now = self.now.max(next) + Duration::from_nanos(1);
            for number in 0..self.processes.len() {
                self.events.push_back((number, Event::Tick));
            }
            self.settle();
            if self.now > end {
                return;
            }
        }
    }

    fn connection_of(&mut self, monitor: usize, role: Role) -> usize {
        let client = self.clients.len();
        self.clients.push(Client::default());
        self.connect((Who::Client(client), ConnectionId::new(2)), monitor, role);
        self.settle();
        client
    }

    fn client(&mut self, monitor: usize) -> usize {
        self.connection_of(monitor, Role::Client)
    }

    fn say(&mut self, client: usize, message: &ToMonitor) {
        let Some(there) = self.ends.get(&(Who::Client(client), ConnectionId::new(2))).copied()
        else {
            return;
        };
        let message = Message::Control(serde_json::to_string(message).unwrap());
        self.tell(there, NetEvent::Received { connection: there.1, message });
        self.settle();
    }

    fn answer(&mut self, client: usize) -> Option<Result<Value, Failure>> {
        let said = std::mem::take(&mut self.clients[client].said);
        said.into_iter().find_map(|message| match message {
            FromMonitor::Answer { result, .. } => Some(result),
            _ => None,
        })
    }

    /// Sends a command to one monitor; returns the answer if it arrives at once.
    fn ask(&mut self, monitor: usize, command: Command) -> Option<Result<Value, Failure>> {
        let client = self.client(monitor);
        self.say(client, &ToMonitor::Command { request: 1, command });
        let answer = self.answer(client);
        self.break_off((Who::Client(client), ConnectionId::new(2)));
        self.settle();
        answer
    }

    fn boot(&mut self, monitor: usize, number: u32, incarnation: Option<Incarnation>) -> usize {
        let role = Role::Osd(osd_id(number), incarnation.unwrap_or_default());
        let client = self.connection_of(monitor, role);
        let boot = ToMonitor::OsdBoot {
            osd: osd_id(number),
            store: store_of(number),
            addresses: vec![format!("unix:osd{number}")],
            peer_addresses: Vec::new(),
            pid: 1000,
            path: "/osd".into(),
            host: "h".into(),
            supervised: false,
            incarnation,
            suspect: false,
            stalled: false,
            damaged_pools: std::collections::BTreeSet::new(),
            slow: false,
            seen: Seen::default(),
            engine: Some(true),
        };
        self.say(client, &boot);
        let asked = self.clients[client].said.iter().find_map(|message| match message {
            FromMonitor::Probe { nonce } => Some(*nonce),
            _ => None,
        });
        if let Some(nonce) = asked {
            self.say(client, &ToMonitor::Alive { nonce });
        }
        client
    }

    fn leaders(&self) -> Vec<usize> {
        let leads = |number: &usize| {
            self.processes[*number].as_ref().and_then(Election::leader) == Some(monitor_id(*number))
        };
        (0..self.processes.len()).filter(leads).collect()
    }

    fn leader(&self) -> usize {
        let leaders = self.leaders();
        assert_eq!(leaders.len(), 1, "one leads: {leaders:?}");
        leaders[0]
    }

    /// Writes or removes a key by hand.
    fn hand_writes(&mut self, key: &str, value: Option<&str>) {
        let entry = self.store.entries().find(|entry| entry.key == key);
        let revision = entry.map_or(StateRevision::ZERO, |entry| entry.revision);
        let key = key.to_string();
        let operation = match value {
            Some(value) => Operation::Put { key, value: value.to_string(), lease: None },
            None => Operation::Delete { key },
        };
        let mut transaction = Transaction::new();
        transaction.write(operation, revision);
        let effect = StateEffect::Transact { request: StateRequest(0), transaction };
        let mut told = Vec::new();
        self.store.apply(self.now, effect, &mut told);
        self.take_state(told);
        self.settle();
    }

    /// Returns the checks with this code from `status` of one monitor.
    fn checks(&mut self, monitor: usize, code: &str) -> Vec<Value> {
        let status = self.ask(monitor, Command::Status).expect("answered").expect("a status");
        let checks = status["checks"].as_array().unwrap().clone();
        checks.into_iter().filter(|check| check["code"] == code).collect()
    }

    /// Returns the keys whose edits were undone, according to `status`.
    fn undone(&mut self, monitor: usize) -> Vec<String> {
        let key = |check: Value| {
            let text = check["message"].as_str().unwrap().to_string();
            text.split("edit of ").nth(1).unwrap().split(' ').next().unwrap().to_string()
        };
        let mut keys: Vec<String> =
            self.checks(monitor, "state_edit_undone").into_iter().map(key).collect();
        keys.sort();
        keys
    }

    fn stored(&self, key: &str) -> Option<Value> {
        let entry = self.store.entries().find(|entry| entry.key == key)?;
        Some(serde_json::from_str(&entry.value).unwrap())
    }

    /// Ends the monitor's process cleanly.
    fn retire(&mut self, number: usize) {
        let mut effects = Vec::new();
        self.processes[number].as_mut().unwrap().retire(&mut effects);
        for effect in effects {
            self.effect(number, effect);
        }
        self.settle();
        assert!(self.processes[number].as_ref().unwrap().is_retired());
        self.kill(number);
    }
}

fn monitor_id(number: usize) -> MonitorId {
    MonitorId::new(number as u32 + 1).unwrap()
}

fn osd_create(number: u32) -> Command {
    Command::OsdCreate { store: store_of(number) }
}

fn pool_create() -> Command {
    Command::PoolCreate {
        pool: "p".into(),
        scheme: Some(Scheme::Copies { count: 1 }),
        min_size: None,
        pg_count: Some(4),
        failure_domain: None,
        block_size: None,
        objects: None,
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn one_of_several_monitors_leads_and_all_know_it() {
    let mut monitors = Monitors::new(3);
    assert_eq!(monitors.leader(), 0);
    monitors.advance(seconds(30));
    assert_eq!(monitors.leader(), 0, "its lease is renewed");
    for number in 0..3 {
        let monitor = monitors.processes[number].as_ref().unwrap();
        assert_eq!(monitor.leader(), Some(monitor_id(0)));
        let rows = monitors.ask(number, Command::MonitorList).unwrap().unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["up"] == true), "{rows:?}");
        assert_eq!(rows.iter().filter(|row| row["leads"] == true).count(), 1);
    }
    assert_eq!(monitors.stored("monitor/3").unwrap()["addresses"], serde_json::json!(["mon2"]));
}

#[test]
fn any_monitor_takes_commands_and_osds_to_the_leader() {
    let mut monitors = Monitors::new(3);
    for (monitor, number) in [(0, 1), (1, 2), (2, 3)] {
        let made = monitors.ask(monitor, osd_create(number)).unwrap().unwrap();
        assert_eq!(made["id"], number);
        let client = monitors.boot(monitor, number, None);
        let booted = FromMonitor::OsdBooted { incarnation: Incarnation::new(1) };
        assert!(
            monitors.clients[client].said.contains(&booted),
            "{:?}",
            monitors.clients[client].said
        );
    }
    assert_eq!(monitors.stored("osd/3").unwrap()["up"], true);
    // A relayed peer keeps its role: an OSD is treated as an OSD, a client as a client.
    let client = monitors.client(1);
    let needs = ToMonitor::PoolCleared { pool: base::PoolId::FIRST };
    monitors.say(client, &needs);
    assert!(monitors.clients[client].is_closed, "a client does not speak for OSDs");
    let client = monitors.client(0);
    monitors.say(client, &ToMonitor::Relay { role: crate::message::RelayedRole::Client });
    assert!(
        monitors.clients[client].is_closed,
        "only the role of a relayed connection is accepted, and only from monitors"
    );
}

#[test]
fn over_any_monitor_the_leader_says_that_it_is_there() {
    let mut monitors = Monitors::new(2);
    let clients = [monitors.client(0), monitors.client(1)];
    for client in clients {
        monitors.say(client, &ToMonitor::Ping);
        assert_eq!(monitors.clients[client].said, [FromMonitor::Pong]);
    }
}

#[test]
fn subscribers_are_told_where_monitors_listen() {
    let mut monitors = Monitors::new(2);
    let client = monitors.client(1);
    monitors.say(client, &ToMonitor::Subscribe { have: BTreeMap::new() });
    let told = |monitors: &Monitors| {
        let mut addresses =
            monitors.clients[client].said.iter().filter_map(|message| match message {
                FromMonitor::Monitors { addresses } => Some(addresses.clone()),
                _ => None,
            });
        addresses.next_back().unwrap()
    };
    assert_eq!(told(&monitors), ["mon0", "mon1"]);
    monitors.processes.push(None);
    monitors.start(2);
    assert_eq!(told(&monitors), ["mon0", "mon1", "mon2"]);
}

#[test]
fn when_the_leader_dies_another_one_leads_after_its_lease() {
    let mut monitors = Monitors::new(3);
    monitors.ask(1, osd_create(1)).unwrap().unwrap();
    let osd = monitors.boot(1, 1, None);
    monitors.kill(0);
    assert!(monitors.clients[osd].is_closed, "it must come again");
    assert_eq!(monitors.leaders(), [0usize; 0]);
    // A peer that connects while nobody leads waits for the next leader.
    let waits = monitors.boot(2, 1, Some(Incarnation::new(1)));
    monitors.advance(seconds(1));
    assert_eq!(monitors.leaders(), [0usize; 0], "its lease has not ended");
    monitors.advance(seconds(1));
    let leader = monitors.leader();
    assert_ne!(leader, 0);
    let booted = FromMonitor::OsdBooted { incarnation: Incarnation::new(1) };
    monitors.advance(seconds(1));
    assert!(monitors.clients[waits].said.contains(&booted), "the same run goes on");
    // The monitor that was killed returns, and follows the new leader.
    monitors.start(0);
    monitors.advance(seconds(10));
    assert_eq!(monitors.leader(), leader);
    assert!(monitors.ask(0, osd_create(2)).unwrap().is_ok());
}

#[test]
fn a_leader_that_retires_is_followed_at_once() {
    let mut monitors = Monitors::new(2);
    monitors.retire(0);
    assert_eq!(monitors.leader(), 1);
    assert!(monitors.ask(1, osd_create(1)).unwrap().is_ok());
}

#[test]
fn a_leader_cut_off_from_the_store_closes_its_connections() {
    let mut monitors = Monitors::new(3);
    monitors.ask(0, osd_create(1)).unwrap().unwrap();
    let osd = monitors.boot(0, 1, None);
    let over = monitors.boot(1, 1, Some(Incarnation::new(1)));
    assert!(!monitors.clients[over].is_closed);
    monitors.cut.insert(0);
    monitors.advance(seconds(4));
    assert!(monitors.clients[osd].is_closed && monitors.clients[over].is_closed);
    let leader = monitors.leader();
    assert_ne!(leader, 0);
    // Transactions of other monitors are not undone when this monitor returns.
    monitors.ask(leader, osd_create(2)).unwrap().unwrap();
    // A command sent to the cut-off monitor is refused.
    let lost = monitors.client(0);
    monitors.say(lost, &ToMonitor::Command { request: 1, command: osd_create(9) });
    monitors.advance(seconds(4));
    let error = monitors.answer(lost).unwrap().unwrap_err();
    assert_eq!(error.code, "no_leader");
    assert!(monitors.clients[lost].is_closed);
    monitors.mend();
    monitors.advance(seconds(4));
    assert_eq!(monitors.leader(), leader);
    assert!(monitors.stored("osd/2").is_some());
    assert_eq!(monitors.ask(0, Command::OsdList).unwrap().unwrap().as_array().unwrap().len(), 2);
}

#[test]
fn a_leader_whose_key_was_gone_for_a_moment_believes_the_store() {
    let mut monitors = Monitors::new(1);
    monitors.ask(0, osd_create(1)).unwrap().unwrap();
    let record = monitors.stored("osd/1").unwrap();
    // Change the store without notifying the monitor, as if another monitor had led, written, and died.
    monitors.cut.insert(0);
    let mut transaction = Transaction::new();
    let revision = |key: &str| {
        let entry = monitors.store.entries().find(|entry| entry.key == key);
        entry.map_or(StateRevision::ZERO, |entry| entry.revision)
    };
    let mut newer = record.clone();
    newer["pid"] = 77.into();
    let value = newer.to_string();
    let put = Operation::Put { key: "osd/1".into(), value, lease: None };
    transaction.write(put, revision("osd/1"));
    transaction.write(Operation::Delete { key: "leader".into() }, revision("leader"));
    let effect = StateEffect::Transact { request: StateRequest(0), transaction };
    monitors.store.apply(monitors.now, effect, &mut Vec::new());
    monitors.mend();
    // The monitor's next transaction detects the change.
    monitors.ask(0, osd_create(2));
    monitors.advance(seconds(5));
    assert_eq!(monitors.leader(), 0);
    assert_eq!(monitors.stored("osd/1"), Some(newer), "it was not taken for an edit and undone");
}

#[test]
fn a_manual_edit_of_the_leaders_key_is_named_beside_those_named_before() {
    for bad in [Some("{}"), None] {
        let mut monitors = Monitors::new(1);
        monitors.ask(0, osd_create(1)).unwrap().unwrap();
        monitors.hand_writes("osd/1", Some("{}"));
        monitors.hand_writes("change", Some("{}"));
        assert_eq!(monitors.undone(0), ["change", "osd/1"]);
        monitors.hand_writes("leader", bad);
        monitors.advance(seconds(1));
        assert_eq!(monitors.leader(), 0);
        assert_eq!(monitors.undone(0), ["change", "leader", "osd/1"], "{bad:?}");
        monitors.ask(0, osd_create(2)).unwrap().unwrap();
        // The same holds after the monitor has become the leader again.
        monitors.cut.insert(0);
        monitors.advance(seconds(1));
        monitors.mend();
        monitors.hand_writes("leader", bad);
        monitors.advance(seconds(1));
        assert_eq!(monitors.undone(0), ["change", "leader", "osd/1"]);
    }
}

#[test]
fn the_next_leader_names_a_manual_edit_of_the_leaders_key_and_no_lease_that_ended() {
    for bad in [Some("{}"), None] {
        let mut monitors = Monitors::new(3);
        monitors.hand_writes("leader", bad);
        monitors.advance(seconds(3));
        let leader = monitors.leader();
        assert_eq!(monitors.undone(leader), ["leader"], "{bad:?} {leader}");
    }
    let mut monitors = Monitors::new(3);
    monitors.retire(0);
    monitors.advance(seconds(1));
    assert_eq!(monitors.undone(monitors.leader()), [""; 0], "it was given back");
    monitors.kill(monitors.leader());
    monitors.advance(seconds(3));
    assert_eq!(monitors.undone(monitors.leader()), [""; 0], "it ran out");
}

#[test]
fn the_only_monitor_serves_on_while_the_store_is_away() {
    let mut monitors = Monitors::new(1);
    monitors.ask(0, osd_create(1)).unwrap().unwrap();
    monitors.advance(seconds(1));
    let client = monitors.client(0);
    monitors.cut.insert(0);
    monitors.advance(seconds(30));
    assert!(!monitors.clients[client].is_closed);
    let rows = monitors.ask(0, Command::OsdList).unwrap().unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    // A command that changes the state is refused, and is not executed later.
    monitors.trouble(0, Some("etcd is silent"));
    let refused = monitors.ask(0, osd_create(2)).unwrap().unwrap_err();
    assert_eq!((&*refused.code, &*refused.message), ("state_unavailable", "etcd is silent"));
    assert_eq!(monitors.ask(0, Command::OsdList).unwrap().unwrap(), rows);
    monitors.trouble(0, None);
    monitors.mend();
    monitors.advance(seconds(4));
    assert_eq!(monitors.ask(0, Command::OsdList).unwrap().unwrap(), rows);
    monitors.ask(0, osd_create(2)).unwrap().unwrap();
}

#[test]
fn a_former_leader_refuses_relayed_connections() {
    let mut monitors = Monitors::new(2);
    monitors.cut.extend([0, 1]);
    monitors.advance(seconds(4));
    assert_eq!(monitors.leaders(), [0; 0]);
    // The second monitor has not noticed yet that the first one no longer leads.
    let client = monitors.client(1);
    let create = ToMonitor::Command { request: 1, command: osd_create(1) };
    monitors.say(client, &create);
    assert_eq!(monitors.answer(client).unwrap().unwrap_err().code, "no_leader");
    monitors.mend();
    monitors.advance(seconds(1));
    let rows = monitors.ask(1, Command::OsdList).unwrap().unwrap();
    assert_eq!(rows, json!([]), "it was not done");
}

#[test]
fn a_command_is_not_done_by_a_monitor_that_refused_it_while_it_waited() {
    let mut monitors = Monitors::new(1);
    monitors.kill(0);
    monitors.cut.insert(0);
    monitors.start(0);
    let early = monitors.client(0);
    monitors.say(early, &ToMonitor::Command { request: 1, command: osd_create(1) });
    assert!(monitors.answer(early).is_none(), "a leader is waited for");
    monitors.trouble(0, Some("etcd is silent"));
    assert_eq!(monitors.answer(early).unwrap().unwrap_err().code, "state_unavailable");
    let late = monitors.client(0);
    monitors.say(late, &ToMonitor::Command { request: 1, command: osd_create(2) });
    assert_eq!(monitors.answer(late).unwrap().unwrap_err().code, "state_unavailable");
    monitors.advance(seconds(1));
    monitors.trouble(0, None);
    monitors.mend();
    monitors.advance(seconds(1));
    assert_eq!(monitors.leaders(), [0]);
    let rows = monitors.ask(0, Command::OsdList).unwrap().unwrap();
    assert_eq!(rows, json!([]));
    for client in [early, late] {
        assert!(monitors.answer(client).is_none() && !monitors.clients[client].is_closed);
    }
}

#[test]
fn while_nobody_can_lead_commands_are_refused_at_once_and_status_tells_how_things_were() {
    let mut monitors = Monitors::new(2);
    monitors.ask(0, osd_create(1)).unwrap().unwrap();
    monitors.advance(seconds(4));
    let led = monitors.leader();
    for number in [0, 1] {
        monitors.cut.insert(number);
        monitors.trouble(number, Some("etcd has no leader"));
    }
    monitors.advance(seconds(30));
    assert_eq!(monitors.leaders(), [0; 0]);
    for number in [0, 1] {
        let refused = monitors.ask(number, Command::OsdList).unwrap().unwrap_err();
        assert_eq!(
            (&*refused.code, &*refused.message),
            ("state_unavailable", "etcd has no leader")
        );
        let status = monitors.ask(number, Command::Status).unwrap().unwrap();
        assert_eq!(status["osds"].as_array().unwrap().len(), 1, "monitor {number}: {status}");
        let checks = status["checks"].as_array().unwrap();
        let lost = checks.iter().find(|check| check["code"] == "state_unavailable").unwrap();
        assert_eq!(
            (&lost["severity"], &lost["message"]),
            (&json!("warn"), &json!("etcd has no leader"))
        );
        let age = status["seconds_old"].as_f64().unwrap();
        assert!((27.0..=30.0).contains(&age), "{age}");
    }
    for number in [0, 1] {
        monitors.trouble(number, None);
    }
    monitors.mend();
    monitors.advance(seconds(4));
    let status = monitors.ask(led, Command::Status).unwrap().unwrap();
    assert_eq!(status["seconds_old"], Value::Null);
}

#[test]
fn a_store_that_does_not_say_what_became_of_transactions_stops_nobody_for_good() {
    let mut monitors = Monitors::new(2);
    monitors.unsure.insert(0);
    let client = monitors.client(1);
    monitors.say(client, &ToMonitor::Command { request: 1, command: osd_create(1) });
    monitors.advance(Duration::from_millis(300));
    monitors.mend();
    monitors.advance(seconds(1));
    assert!(monitors.answer(client).unwrap().is_ok());
    assert_eq!(monitors.leader(), 0);
}

#[test]
fn a_relayed_connection_that_waits_too_long_is_sent_to_another_monitor() {
    let mut monitors = Monitors::new(1);
    monitors.kill(0);
    monitors.cut.insert(0);
    monitors.start(0);
    let osd = monitors.boot(0, 1, None);
    monitors.advance(seconds(2));
    assert!(!monitors.clients[osd].is_closed);
    // The OSD waits for a leader; this monitor itself answers a ping.
    assert!(monitors.clients[osd].said.is_empty());
    monitors.say(osd, &ToMonitor::Ping);
    assert_eq!(monitors.clients[osd].said, [FromMonitor::Pong]);
    monitors.advance(seconds(2));
    assert!(monitors.clients[osd].is_closed);
}

#[test]
fn an_empty_store_is_no_new_cluster_for_a_monitor_that_may_not_make_one() {
    let mut monitors = Monitors::new(0);
    let identity = Identity {
        cluster: CLUSTER,
        monitor: MonitorId::FIRST,
        pid: 100,
        host: "h".into(),
        addresses: vec!["mon0".into()],
        nonce: 1,
    };
    monitors.processes.push(Some(Election::new(identity, false)));
    monitors.events.push_back((0, Event::Tick));
    monitors.settle();
    let [StopReason::State(why)] = &monitors.stopped[..] else { panic!("{:?}", monitors.stopped) };
    assert!(why.contains("ashlar init"), "{why}");
    assert_eq!(monitors.stored("cluster"), None);
}

#[test]
fn a_monitor_that_is_not_there_is_warned_of_until_it_is_back_or_forgotten() {
    let mut monitors = Monitors::new(3);
    monitors.advance(seconds(4));
    let pids = |monitors: &mut Monitors| {
        let status = monitors.ask(0, Command::Status).unwrap().unwrap();
        let rows = status["processes"].as_array().unwrap().clone();
        let mons = rows.into_iter().filter(|row| row["role"] == "mon");
        mons.map(|row| row["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(monitors.checks(0, "monitor_down"), [Value::Null; 0]);
    assert_eq!(pids(&mut monitors), [1, 2, 3]);
    monitors.ask(0, Command::MonitorCreate).unwrap().unwrap();
    let [made] = &monitors.checks(0, "monitor_down")[..] else { panic!("one has never run") };
    assert_eq!(
        (&made["severity"], &made["message"]),
        (&"info".into(), &"mon.4 has never run".into())
    );
    monitors.ask(0, Command::MonitorRemove { monitor: monitor_id(3) }).unwrap().unwrap();
    monitors.kill(1);
    monitors.kill(2);
    let down = monitors.checks(0, "monitor_down");
    assert_eq!(down.len(), 2, "{down:?}");
    assert!(down.iter().all(|check| check["severity"] == "warn"), "{down:?}");
    assert!(down[0]["message"].as_str().unwrap().contains("mon.2"), "{down:?}");
    assert!(down[0]["hint"].as_str().unwrap().contains("ashlar mon rm"), "{down:?}");
    assert_eq!(pids(&mut monitors), [1]);
    monitors.start(1);
    monitors.advance(seconds(1));
    monitors.ask(0, Command::MonitorRemove { monitor: monitor_id(2) }).unwrap().unwrap();
    assert_eq!(monitors.checks(0, "monitor_down"), [Value::Null; 0]);
    // When another monitor becomes the leader, the remaining monitors have some time to connect.
    monitors.retire(0);
    assert_eq!(monitors.checks(1, "monitor_down"), [Value::Null; 0]);
    monitors.advance(seconds(4));
    assert_eq!(monitors.checks(1, "monitor_down").len(), 1);
}

#[test]
fn two_monitors_that_each_take_the_other_for_the_leader_relay_nothing_in_a_circle() {
    let mut monitors = Monitors::new(2);
    // The second monitor knows that the first leads, but does not relay a connection from a monitor.
    let other = monitors.connection_of(1, Role::Monitor(monitor_id(0)));
    assert!(monitors.clients[other].is_closed);
}

/// A pseudo-random generator with a fixed seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Checks that every acknowledged change is in the store, whatever happens to monitors, and that no id is
/// issued twice. Returns the number of OSDs created.
fn live_through(seed: u64) -> usize {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut monitors = Monitors::new(3);
    let mut made: BTreeMap<u64, u32> = BTreeMap::new();
    let mut asked: BTreeMap<usize, u32> = BTreeMap::new();
    for number in 1..=60 {
        let monitor = chance.below(3);
        match chance.below(10) {
            0 => monitors.kill(monitor),
            1 => drop(monitors.cut.insert(monitor)),
            2 => drop(monitors.unsure.insert(monitor)),
            3 => monitors.mend(),
            4 => monitors.land_late(),
            _ => {}
        }
        if monitors.processes[monitor].is_none() && chance.below(2) == 0 {
            monitors.start(monitor);
        }
        if monitors.processes[monitor].is_some() {
            let client = monitors.client(monitor);
            asked.insert(client, number);
            let command = osd_create(number);
            monitors.say(client, &ToMonitor::Command { request: 1, command });
        }
        monitors.advance(Duration::from_millis(chance.below(1500) as u64));
        for (client, number) in &asked {
            if let Some(Ok(answer)) = monitors.answer(*client) {
                let before = made.insert(answer["id"].as_u64().unwrap(), *number);
                assert_eq!(before, None, "seed {seed}: an id was given twice");
            }
        }
    }
    monitors.mend();
    while !monitors.late.is_empty() {
        monitors.land_late();
    }
    for monitor in 0..3 {
        if monitors.processes[monitor].is_none() {
            monitors.start(monitor);
        }
    }
    monitors.advance(seconds(10));
    monitors.leader();
    assert_eq!(monitors.stopped, [], "seed {seed}");
    for (id, number) in &made {
        let record = monitors.stored(&format!("osd/{id}"));
        let record = record.unwrap_or_else(|| panic!("seed {seed}: osd {id} is gone"));
        assert_eq!(record["store"], store_of(*number), "seed {seed}");
    }
    made.len()
}

#[test]
fn no_schedule_of_dead_cut_off_and_unsure_monitors_loses_what_was_answered() {
    let counts: Vec<usize> = base::seeds(1..=300).map(live_through).collect();
    let done: usize = counts.iter().sum();
    assert!(done > 5 * counts.len(), "something was done: {counts:?}");
}

/// The session and whether it has the lock, or the reason for the refusal.
type Granted = Result<(SessionId, bool), String>;

impl Monitors {
    /// Requests the lock on volume `v` from one monitor.
    fn ask_lock(&mut self, monitor: usize) -> (usize, Option<Granted>) {
        let client = self.client(monitor);
        (client, self.ask_lock_over(client))
    }

    fn ask_lock_over(&mut self, client: usize) -> Option<Granted> {
        let image = "v".to_string();
        let (request, read_only, lock, client_name) = (1, false, true, "test".to_string());
        let open = ToMonitor::OpenSession { request, image, read_only, lock, client: client_name };
        self.say(client, &open);
        self.lock_answer(client)
    }

    fn lock_answer(&mut self, client: usize) -> Option<Granted> {
        let said = std::mem::take(&mut self.clients[client].said);
        said.into_iter().find_map(|message| match message {
            FromMonitor::SessionOpened { session, locked, lazy, .. } => {
                assert_eq!(locked, lazy, "no OSD has said that it writes through");
                Some(Ok((session, locked)))
            }
            FromMonitor::SessionRefused { error, .. } => Some(Err(error.code)),
            _ => None,
        })
    }

    fn leave(&mut self, client: usize) {
        self.break_off((Who::Client(client), ConnectionId::new(2)));
        self.settle();
    }
}

/// Returns monitors in a cluster with one OSD and volume `v`.
fn monitors_with_volume(count: usize) -> Monitors {
    let mut monitors = Monitors::new(count);
    monitors.ask(0, osd_create(1)).unwrap().unwrap();
    let osd = monitors.boot(0, 1, None);
    let report = OsdReport { size_bytes: 10 << 30, used_bytes: 1 << 20, ..OsdReport::default() };
    monitors.say(osd, &ToMonitor::OsdReport(report));
    monitors.ask(0, pool_create()).unwrap().unwrap();
    let create =
        Command::VolumeCreate { gateway: false, volume: "v".into(), size: 1 << 30, pool: None };
    monitors.ask(0, create).unwrap().unwrap();
    monitors
}

#[test]
fn a_lock_holds_whichever_monitors_its_holder_and_others_are_connected_to() {
    let mut monitors = monitors_with_volume(3);
    assert_eq!(monitors.leader(), 0);
    let (holder, granted) = monitors.ask_lock(1);
    let (session, locked) = granted.unwrap().unwrap();
    assert!(locked);
    for monitor in 0..3 {
        assert_eq!(monitors.ask_lock(monitor).1, Some(Err("locked".into())));
    }
    // If the holder's connection to one monitor is lost, attaches at other monitors wait too.
    monitors.leave(holder);
    let (next, answer) = monitors.ask_lock(2);
    assert_eq!(answer, None);
    let back = monitors.client(1);
    monitors.say(back, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    assert_eq!(monitors.lock_answer(next), Some(Err("locked".into())));
    // The holder releases the lock over that connection, and is notified.
    monitors.say(back, &ToMonitor::CloseSession { session, unanswered: false });
    assert!(monitors.clients[back].said.contains(&FromMonitor::SessionClosed { session }));
    assert!(monitors.ask_lock(2).1.unwrap().unwrap().1);
}

#[test]
fn a_lock_outlives_the_leader_and_its_holder_has_time_to_come_back() {
    let mut monitors = monitors_with_volume(3);
    let (holder, granted) = monitors.ask_lock(1);
    let (session, _) = granted.unwrap().unwrap();
    monitors.kill(0);
    assert!(monitors.clients[holder].is_closed);
    // Before the next monitor leads, another client requests the lock; then the holder returns.
    let (other, answer) = monitors.ask_lock(2);
    assert_eq!(answer, None);
    monitors.advance(seconds(7));
    assert_eq!(monitors.lock_answer(other), None, "the holder may come back");
    let back = monitors.client(1);
    monitors.say(back, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    assert_eq!(monitors.lock_answer(other), Some(Err("locked".into())));
    // A holder that does not return is fenced before the next client receives the lock.
    monitors.leave(back);
    let (next, answer) = monitors.ask_lock(2);
    assert_eq!(answer, None);
    monitors.advance(seconds(11));
    let (new, locked) = monitors.lock_answer(next).unwrap().unwrap();
    assert!(locked && new > session);
    let fences = monitors.stored("fence/1").unwrap();
    assert_eq!(fences["fences"][0]["session"], serde_json::to_value(session).unwrap());
}
