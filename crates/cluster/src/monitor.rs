//! The monitor's logic as a value: events go in, effects come out.
//!
//! ```text
//!   messages ──▶ queries, answered from `committed`
//!            └─▶ jobs ──▶ plan ──▶ transaction ──▶ `committed` ──▶ map, answers
//!                          ▲              │
//!                          └ one at a time┘ unknown, conflict: take leadership, read
//!                                           everything anew, then decide
//! ```
//!
//! Invariants
//!   1. `committed` changes only by a transaction that is known committed, or by reading the store.
//!   2. At most one transaction is in flight; a job is planned anew after each of its transactions,
//!      so a monitor that ends between two leaves a state from which the next one goes on.
//!   3. What is sent of the map is what `committed` says: committed.
//!   4. Everything else here (connections, reports, timers) may be lost at any moment.

mod acting;
mod boot;
mod committed_state;
mod copies;
mod edit;
mod election;
mod entries;
mod executor;
mod failure_detector;
mod forks;
mod give_up;
mod job;
mod job_queue;
mod lines;
mod load;
mod lock;
mod monitors;
mod osd;
mod osd_change;
mod planning;
mod pool;
mod publish;
mod query;
mod refusal;
mod relay;
mod remedy;
mod removal;
mod restarts;
mod restore;
mod session;
mod setting;
mod settling;
mod stats;
mod status;
mod task;
#[cfg(test)]
mod tests;
mod unserved;
mod volume;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::trace::Level;
use base::{ClusterId, ConnectionId, Duration, MonitorId, OsdId, SessionId, Time, TraceEvent};
use format::door::{NetEffect, NetEvent, Peer, Role};
use format::wire::{CONTROL_SIZE_MAX, Message};

use crate::heartbeat::LEFT_AFTER;
use crate::map::may_announce;
use crate::message::{Command, Failure, FromMonitor, ToMonitor};
use crate::numbers::{self, NUMBER_MAX};
use crate::records::{MonitorRecord, TaskId};
use crate::settings::Setting;
use crate::state::{Endpoints, LeaseId, StateEffect, StateEvent, StateRequest, StateRevision};
use committed_state::CommittedState;
use edit::Watching;
use entries::Entries;
use failure_detector::FailureDetector;
use give_up::{GIVE_UP_SPAN, GiveUp};
use job::Job;
use job_queue::JobQueue;
use load::Stage;
use osd::OsdLive;
use planning::Planning;
use publish::Subscription;
use refusal::{busy, clipped, failure};
use relay::no_state;
use restore::Restore;
use session::SessionLive;
use settling::Settling;
use stats::Stats;
use task::TaskRun;
use unserved::Unserved;

pub use election::Election;
pub use relay::is_not_done_yet;

/// Messages kept while the state is first read; beyond it connections are closed.
const EARLY_COUNT_MAX: usize = 10_000;
/// Connections; beyond it new ones are closed.
const CONNECTION_COUNT_MAX: usize = 50_000;

/// What a monitor is told.
#[derive(Debug)]
pub enum Event {
    /// From the network.
    Net(NetEvent),
    /// From the state store.
    State(StateEvent),
    /// The deadline of [`Monitor::deadline`] came.
    Tick,
}

/// What a monitor asks.
#[derive(Debug)]
pub enum Effect {
    /// Ask the network.
    Net(NetEffect),
    /// Ask the state store.
    State(StateEffect),
    /// The state is read and this monitor leads: commands are answered from now on. Told each time
    /// that it comes to lead.
    Ready,
    /// Something happened that is worth a line of the log.
    Trace(TraceEvent),
    /// The level of the log that the settings of the cluster ask for; `None`: the one that the process
    /// was started with.
    LogLevel(Option<Level>),
    /// The process ends. No effect follows.
    Stop(StopReason),
}

/// Why a monitor ends; for people: what happened, where, what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The state store failed, or holds what this program does not understand.
    State(String),
    /// The state store belongs to another cluster.
    OtherCluster(String),
    /// Another monitor leads.
    LostLeadership(String),
    /// This monitor was removed from the cluster.
    Removed(String),
}

/// What a monitor is made with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// Which monitor.
    pub monitor: MonitorId,
    /// Its process, for people.
    pub pid: u32,
    /// Name of its host, for people.
    pub host: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// A random number: no other process of this cluster has it.
    pub nonce: u64,
}

/// The monitor of a cluster: plans placement, hands out the map, keeps sessions and tasks.
pub struct Monitor {
    identity: Identity,
    /// When the event came that is being applied.
    now: Time,
    /// Its number, counted from 1.
    event_last: u64,
    /// What it leads under, where other monitors use the same store.
    lease: Option<LeaseId>,
    /// Whether an empty store is that of a new cluster.
    may_create: bool,
    stage: Stage,
    /// Whether this process has led before: then another leader ends it.
    has_led: bool,
    /// The store's revision when this process began to lead, once it has.
    led_from: Option<StateRevision>,
    /// What another hand wrote from then on, while a monitor said that the store is damaged, is believed.
    believes_from: Option<StateRevision>,
    /// Since when; `ZERO` before that.
    led_since: Time,
    committed: CommittedState,
    request_last: u64,
    watching: Watching,
    jobs: JobQueue,
    early: VecDeque<(ConnectionId, ToMonitor)>,
    connections: BTreeMap<ConnectionId, Connection>,
    order_last: u64,
    osds: BTreeMap<OsdId, OsdLive>,
    failure_detector: FailureDetector,
    entries: Entries,
    planning: Planning,
    sessions: BTreeMap<SessionId, SessionLive>,
    /// When locks were granted, by their holders; only those that this monitor granted.
    locked_since: BTreeMap<SessionId, Time>,
    /// Attaches that wait for what becomes of a lock's holder.
    waiting_opens: Vec<Job>,
    /// Sessions without a connection, by the time since when.
    sessions_gone: BTreeSet<(Time, SessionId)>,
    /// The newest turn in which the client of a session resumed it.
    session_turns: BTreeMap<SessionId, u64>,
    /// This process stood still, until then: who is connected may have left it for that.
    back_since: Option<Time>,
    /// Operators that wait for a PG to be served with what is left; the oldest first.
    give_ups: Vec<GiveUp>,
    tasks: BTreeMap<TaskId, TaskRun>,
    stats: Stats,
    task_sequence_last: u64,
    /// Whether something happened that a task may wait for.
    has_task_news: bool,
    restore: Restore,
    unserved: Unserved,
    settling: Settling,
    /// Why the store cannot be asked, if it cannot; for people.
    state_trouble: Option<String>,
    /// What is wrong at its addresses.
    endpoints: Endpoints,
    /// Peers that sent what none of ours sends.
    protocol_errors: u64,
}

/// A peer that is connected.
struct Connection {
    peer: Peer,
    /// Grows with each connection that is accepted.
    order: u64,
    /// Whether it gets the map, and what of it was sent.
    subscription: Option<Subscription>,
    /// The OSD that has joined over it.
    osd: Option<OsdId>,
    /// The monitor that is there as long as it lasts.
    monitor: Option<MonitorId>,
    /// Bytes that wait for room, of each session that goes on over it.
    sessions: BTreeMap<SessionId, u64>,
    /// It is told changes of keys that begin so.
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

/// What a peer says of itself, for `status`.
struct Introduced {
    role: String,
    pid: u32,
    host: String,
    address: Option<String>,
}

impl Monitor {
    /// A monitor that has not read anything yet: its deadline is now.
    pub fn new(identity: Identity) -> Monitor {
        let reign = identity.nonce;
        Monitor {
            identity,
            now: Time::ZERO,
            event_last: 0,
            lease: None,
            may_create: true,
            stage: Stage::New,
            has_led: false,
            led_from: None,
            believes_from: None,
            led_since: Time::ZERO,
            committed: CommittedState::of_reign(reign),
            request_last: 0,
            watching: Watching::default(),
            jobs: JobQueue::default(),
            early: VecDeque::new(),
            connections: BTreeMap::new(),
            order_last: 0,
            osds: BTreeMap::new(),
            failure_detector: FailureDetector::default(),
            entries: Entries::default(),
            planning: Planning::default(),
            sessions: BTreeMap::new(),
            locked_since: BTreeMap::new(),
            waiting_opens: Vec::new(),
            sessions_gone: BTreeSet::new(),
            session_turns: BTreeMap::new(),
            back_since: None,
            give_ups: Vec::new(),
            tasks: BTreeMap::new(),
            stats: Stats::default(),
            task_sequence_last: 0,
            has_task_news: false,
            restore: Restore::default(),
            unserved: Unserved::default(),
            settling: Settling::default(),
            state_trouble: None,
            endpoints: Endpoints::default(),
            protocol_errors: 0,
        }
    }

    /// The only door. After `Stop` was told, nothing happens any more.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if matches!(self.stage, Stage::Stopped) {
            return;
        }
        if self.event_last > 0 && now.since(self.now) >= LEFT_AFTER {
            self.back_since = Some(now);
        }
        self.now = now;
        self.event_last += 1;
        match event {
            Event::Net(event) => self.on_net(now, event, effects),
            Event::State(event) => self.on_state(now, event, effects),
            Event::Tick => {}
        }
        self.advance_load(now, effects);
        self.begin_anew(effects);
        self.compare_watched(effects);
        if self.is_ready() {
            self.end_settling(now);
            self.end_gone_sessions(now);
            self.watch_osds(now, effects);
            self.end_give_ups(now, effects);
            self.tick_stats(now);
            if self.has_task_news || self.task_deadline().is_some_and(|due| due <= now) {
                self.has_task_news = false;
                self.advance_tasks(now, effects);
            }
            self.queue_entries(now);
            self.queue_plans();
            self.run_jobs(now, effects);
            // What the last job led to, where no transaction is on its way that comes back here.
            while !self.jobs.is_writing() && (self.queue_entries(now) || self.queue_plans()) {
                self.run_jobs(now, effects);
            }
            self.begin_anew(effects);
            self.look_at_unserved(now);
        }
    }

    /// When `Tick` is due at the latest, if ever.
    pub fn deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::New => Some(Time::ZERO),
            Stage::Rest { until } => Some(*until),
            Stage::Ready => {
                let gone = self.sessions_gone.first();
                let gone = gone.map(|(since, _)| *since + self.span(Setting::SessionTimeout));
                let give_up = self.give_ups.first().map(|waits| waits.ends);
                let osds = self.presence_deadline();
                let (entries, stats) = (self.entries.deadline(), self.stats.deadline());
                let settling = self.settling.deadline();
                let all = [gone, osds, entries, self.task_deadline(), give_up, stats, settling];
                all.into_iter().flatten().min()
            }
            Stage::ReadLeader { .. } | Stage::Lead { .. } | Stage::Load { .. } => None,
            Stage::Stopped => None,
        }
    }

    /// Whether commands that change the state are carried out.
    fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    fn stop(&mut self, reason: StopReason, effects: &mut Vec<Effect>) {
        self.stage = Stage::Stopped;
        effects.push(Effect::Stop(reason));
    }

    fn next_request(&mut self) -> StateRequest {
        self.request_last += 1;
        StateRequest(self.request_last)
    }

    fn setting(&self, setting: Setting) -> u64 {
        setting.value_in(self.committed.changed_settings())
    }

    fn span(&self, setting: Setting) -> Duration {
        setting.span_in(self.committed.changed_settings())
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, peer } => self.accept(connection, peer, effects),
            NetEvent::Received { connection, message } => {
                if self.connections.contains_key(&connection) {
                    self.word_came(now, connection);
                    self.on_message(now, connection, message, effects);
                }
            }
            NetEvent::Closed { connection, .. } => self.forget_connection(now, connection),
            NetEvent::Connected { connection, .. } => {
                // One that leads connects to nobody; this was on its way when it began to.
                effects.push(Effect::Net(NetEffect::Close { connection }));
            }
        }
    }

    fn accept(&mut self, connection: ConnectionId, peer: Peer, effects: &mut Vec<Effect>) {
        let is_ours = peer.cluster == self.identity.cluster;
        if !is_ours || self.connections.len() >= CONNECTION_COUNT_MAX {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            return;
        }
        self.order_last += 1;
        self.connections.insert(connection, Connection::new(peer, self.order_last));
    }

    /// The connection is gone, or closed by us: what depended on it goes on without it.
    fn forget_connection(&mut self, now: Time, connection: ConnectionId) {
        let Some(state) = self.connections.remove(&connection) else { return };
        self.give_ups.retain(|waits| waits.connection != connection);
        self.forget_opens(connection);
        self.forget_held(connection);
        self.teller_gone(connection);
        for session in state.sessions.into_keys() {
            self.lose_session_connection(now, session);
        }
        if let Some(osd) = state.osd {
            self.lose_osd_connection(now, osd, connection);
        }
    }

    fn close(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.connections.contains_key(&connection) {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            self.forget_connection(now, connection);
        }
    }

    /// The peer sent what no peer of ours sends.
    fn close_for_protocol(
        &mut self,
        now: Time,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        self.protocol_errors += 1;
        self.close(now, connection, effects);
    }

    fn on_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            Message::Control(text) => match serde_json::from_str::<ToMonitor>(&text) {
                Ok(ToMonitor::Ping) => self.on_control(now, connection, ToMonitor::Ping, effects),
                Ok(ToMonitor::Command { request, command: Command::Status })
                    if self.state_trouble.is_some() =>
                {
                    self.answer(
                        connection,
                        request,
                        Ok(self.status(now, self.state_trouble.as_deref())),
                        effects,
                    );
                }
                Ok(_) if !self.has_led && self.early.len() >= EARLY_COUNT_MAX => {
                    self.close(now, connection, effects);
                }
                Ok(message) if !self.has_led => self.early.push_back((connection, message)),
                Ok(message) => self.on_control(now, connection, message, effects),
                Err(_) => self.close_for_protocol(now, connection, effects),
            },
            Message::Reply(reply) => self.on_task_reply(now, connection, reply),
            Message::Request(_) | Message::Peer(_) | Message::Lease(_) => {
                self.close_for_protocol(now, connection, effects);
            }
        }
    }

    fn on_control(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: ToMonitor,
        effects: &mut Vec<Effect>,
    ) {
        if !self.connections.contains_key(&connection) {
            return;
        }
        if self.is_from_wrong_role(connection, &message) || says_too_much(&message) {
            self.close_for_protocol(now, connection, effects);
            return;
        }
        match message {
            ToMonitor::Subscribe { have } => self.subscribe(connection, have, effects),
            ToMonitor::Ping => self.send(connection, &FromMonitor::Pong, effects),
            ToMonitor::Introduce { role, pid, host, address } => {
                let (role, host, address) = (clipped(role), clipped(host), address.map(clipped));
                let introduced = Introduced { role, pid, host, address };
                let state = self.connections.get_mut(&connection).expect("checked above");
                state.introduced = Some(introduced);
            }
            ToMonitor::OsdBoot { .. } => self.on_boot(now, connection, message, effects),
            ToMonitor::OsdTells { part, more } => {
                self.on_tells(now, connection, part, more, effects);
            }
            ToMonitor::OsdReport(report) => self.on_report(now, connection, report, effects),
            ToMonitor::OsdStats(stats) if stats.is_sound() => {
                self.on_stats(now, connection, &stats, effects);
            }
            ToMonitor::OsdStats(_) => self.close_for_protocol(now, connection, effects),
            ToMonitor::OsdSaw { revisions } => self.on_saw(connection, &revisions),
            ToMonitor::PoolCleared { pool } => self.on_pool_cleared(now, connection, pool, effects),
            ToMonitor::PgNeeds { needs } => self.on_needs(now, connection, needs),
            ToMonitor::OsdUnreachable { osd, incarnation, how } => {
                self.on_unreachable(now, connection, osd, incarnation, how, effects);
            }
            ToMonitor::Alive { nonce } => self.on_alive(now, connection, nonce, effects),
            ToMonitor::OsdLeaves => self.on_leaves(now, connection, effects),
            ToMonitor::Relay { role } => self.on_relay(connection, &role),
            ToMonitor::MonitorHere { monitor, addresses, pid, host } => {
                let record = MonitorRecord::of_run(monitor, addresses, pid, clipped(host));
                self.on_monitor_here(connection, record, effects);
            }
            ToMonitor::OpenSession { request, image, read_only, lock, client } => {
                let client = clipped(client);
                let job = Job::OpenSession { connection, request, image, read_only, lock, client };
                if let Err(error) = self.try_push_asked(job) {
                    let refused = FromMonitor::SessionRefused { request, error };
                    self.send(connection, &refused, effects);
                }
            }
            ToMonitor::ResumeSession { session, reign, turn } => {
                self.resume_session(now, connection, session, (reign, turn), effects);
            }
            ToMonitor::SessionWaits { session, waiting_bytes } => {
                self.on_session_waits(connection, session, waiting_bytes);
            }
            ToMonitor::CloseSession { session, unanswered } => {
                if self.may_close_session(connection, session) {
                    self.try_push_job(Job::CloseSession { connection, session, unanswered });
                }
            }
            ToMonitor::WatchState { prefix } => self.watch_state(connection, prefix, effects),
            ToMonitor::Command { request, command } => {
                self.on_command(now, connection, request, command, effects);
            }
        }
    }

    /// OSDs alone speak for OSDs.
    fn is_from_wrong_role(&self, connection: ConnectionId, message: &ToMonitor) -> bool {
        let role = self.connections[&connection].peer.role;
        match message {
            ToMonitor::OsdBoot { osd, .. } => !matches!(role, Role::Osd(id, _) if id == *osd),
            ToMonitor::OsdReport(_)
            | ToMonitor::OsdStats(_)
            | ToMonitor::OsdTells { .. }
            | ToMonitor::PgNeeds { .. }
            | ToMonitor::OsdUnreachable { .. }
            | ToMonitor::Alive { .. }
            | ToMonitor::OsdLeaves
            | ToMonitor::OsdSaw { .. }
            | ToMonitor::PoolCleared { .. } => !matches!(role, Role::Osd(..)),
            ToMonitor::Relay { .. } => self.is_no_monitor(connection, None),
            ToMonitor::MonitorHere { monitor, .. } => {
                self.is_no_monitor(connection, Some(*monitor))
            }
            _ => false,
        }
    }

    fn on_command(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: u64,
        command: Command,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(result) = self.query(now, &command) {
            self.answer(connection, request, result, effects);
            return;
        }
        let text = serde_json::to_string(&command).expect("messages have text keys");
        let event = TraceEvent::debug("an operator's command").with("command", clipped(text));
        effects.push(Effect::Trace(event));
        if let Some(why) = &self.state_trouble {
            self.answer(connection, request, Err(no_state(why)), effects);
        } else if let Command::StateUndo { .. } = command
            && self.jobs.has_room(0)
        {
            self.jobs.push_urgent(Job::Command { connection, request, command });
        } else if self.committed.is_damaged() && !matches!(command, Command::StateRecover { .. }) {
            self.answer(connection, request, Err(self.state_older()), effects);
        } else if let Command::PgGiveUp { pg, accepted, they_are_off: false } = command {
            let asked = GiveUp { pg, connection, request, ends: now + GIVE_UP_SPAN };
            if let Err(error) = self.give_up(asked, accepted, effects) {
                self.answer(connection, request, Err(error), effects);
            }
        } else if let Command::StateRecover { they_are_lost, accepted } = command {
            if let Err(error) = self.restore(connection, request, &they_are_lost, accepted) {
                self.answer(connection, request, Err(error), effects);
            }
        } else if let Err(error) =
            self.try_push_asked(Job::Command { connection, request, command })
        {
            self.answer(connection, request, Err(error), effects);
        }
    }

    fn try_push_job(&mut self, job: Job) -> bool {
        let has_room = self.jobs.has_room(self.settling.held_count());
        if has_room {
            self.jobs.push(job);
        }
        has_room
    }

    /// Queues what somebody asked for, or says why not.
    fn try_push_asked(&mut self, job: Job) -> Result<(), Failure> {
        if self.is_older() {
            return Err(self.state_older());
        }
        if self.try_push_job(job) { Ok(()) } else { Err(busy()) }
    }

    fn answer(
        &self,
        connection: ConnectionId,
        request: u64,
        result: Result<serde_json::Value, Failure>,
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
            "the answer is longer than a message may be",
            "ask for less: name a pool, or a longer prefix",
        );
        let answer = FromMonitor::Answer { request, result: Err(error) };
        self.send(connection, &answer, effects);
    }

    fn send(&self, connection: ConnectionId, message: &FromMonitor, effects: &mut Vec<Effect>) {
        self.send_text(connection, to_text(message), effects);
    }

    fn send_text(&self, connection: ConnectionId, text: String, effects: &mut Vec<Effect>) {
        assert!(text.len() <= CONTROL_SIZE_MAX as usize, "limits keep messages short");
        if self.connections.contains_key(&connection) {
            let message = Message::Control(text);
            effects.push(Effect::Net(NetEffect::Send { connection, message }));
        }
    }
}

fn to_text(message: &FromMonitor) -> String {
    serde_json::to_string(message).expect("messages have text keys and plain numbers")
}

/// Whether somebody says to listen where nobody may, to have seen what there never was, or too much.
fn says_too_much(message: &ToMonitor) -> bool {
    match message {
        ToMonitor::OsdBoot { osd, addresses, peer_addresses, incarnation, seen, .. } => {
            !may_announce(addresses)
                || !may_announce(peer_addresses)
                || !seen.is_sound()
                || numbers::check_osd(*osd).is_err()
                || incarnation.is_some_and(|run| run.get() > NUMBER_MAX)
        }
        ToMonitor::OsdReport(report) => report.size_bytes > NUMBER_MAX,
        ToMonitor::OsdTells { part, .. } => !part.is_sound(),
        ToMonitor::MonitorHere { monitor, addresses, .. } => {
            !may_announce(addresses) || numbers::check_monitor(*monitor).is_err()
        }
        _ => false,
    }
}
