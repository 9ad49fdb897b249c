//! The monitor's logic as a value: events go in, effects come out.
//!
//! ```text
//!   messages ──▶ queries, answered from `committed`
//!            └─▶ jobs ──▶ plan ──▶ transaction ──▶ `committed` ──▶ map, answers
//!                          ▲              │
//!                          └ one at a time┘ unknown, conflict: take leadership, read
//!                                           everything again, then decide
//! ```
//!
//! Invariants
//!   1. `committed` changes only by a transaction that is known to be committed, or by reading the store.
//!   2. At most one transaction is in flight. A job is planned again after each of its
//!      transactions, so a monitor that stops between two of them leaves a state from which the
//!      next monitor continues.
//!   3. Only committed map contents are sent, taken from `committed`.
//!   4. Everything else here (connections, reports, timers) may be lost at any moment.

mod acting;
mod boot;
mod committed_state;
mod connections;
mod copies;
mod edit;
mod election;
mod engine_health;
mod entries;
mod executor;
mod failure_detector;
mod fix;
mod forks;
mod give_up;
mod job;
mod job_queue;
mod leadership;
mod lines;
mod load;
mod lock;
mod monitors;
mod osd;
mod osd_change;
mod pg_health;
mod planning;
mod pool;
mod prepared_room;
mod publish;
mod query;
mod refusal;
mod relay;
mod remedy;
mod removal;
mod restarts;
mod restore;
mod scrub;
mod session;
mod session_tracker;
mod setting;
mod settling;
mod silent_clients;
mod slow_disks;
mod stats;
mod status;
mod store_access;
mod task;
#[cfg(test)]
mod tests;
mod unserved;
mod volume;
mod watch;

use std::collections::BTreeMap;

use base::trace::Level;
use base::{ClusterId, ConnectionId, Duration, MonitorId, OsdId, PgId, Time, TraceEvent};
use format::door::{NetEffect, NetEvent, Peer, Role};
use format::wire::Message;

use crate::heartbeat::LEFT_AFTER;
use crate::map::may_announce;
use crate::message::{Command, Failure, FromMonitor, ToMonitor};
use crate::numbers::{self, NUMBER_MAX};
use crate::records::MonitorRecord;
use crate::settings::Setting;
use crate::state::{StateEffect, StateEvent};
use committed_state::CommittedState;
use connections::{Connections, Introduced};
use edit::Watching;
use entries::Entries;
use failure_detector::FailureDetector;
use fix::FixAsked;
use give_up::{GiveUp, MembersGiveUp, MembersGiveUps};
use job::{Job, Wants};
use job_queue::JobQueue;
use leadership::Leadership;
use osd::OsdLive;
use planning::Planning;
use refusal::{busy, clipped, failure};
use relay::no_state;
use restore::Restore;
use session_tracker::SessionTracker;
use settling::Settling;
use silent_clients::SilentClients;
use slow_disks::SlowDisks;
use stats::Stats;
use store_access::StoreAccess;
use task::Tasks;
use unserved::Unserved;

pub use election::Election;
pub use relay::is_not_done_yet;

/// An event that a monitor handles.
#[derive(Debug)]
pub enum Event {
    /// A network event.
    Net(NetEvent),
    /// A state store event.
    State(StateEvent),
    /// The time that [`Monitor::deadline`] returned has come.
    Tick,
}

/// A request or a report from a monitor to its environment.
#[derive(Debug)]
pub enum Effect {
    /// A request to the network.
    Net(NetEffect),
    /// A request to the state store.
    State(StateEffect),
    /// The state is read and this monitor leads: commands are answered from now on. Emitted each time
    /// the monitor becomes the leader.
    Ready,
    /// Something happened that should be logged.
    Trace(TraceEvent),
    /// The log level in the cluster's settings; `None`: the level that the process was started
    /// with.
    LogLevel(Option<Level>),
    /// The process ends. No effect follows.
    Stop(StopReason),
}

/// Why a monitor stops, as text for people: what happened, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The state store failed, or holds something that this version does not support.
    State(String),
    /// The state store belongs to another cluster.
    OtherCluster(String),
    /// Another monitor leads.
    LostLeadership(String),
    /// This monitor was removed from the cluster.
    Removed(String),
}

/// The identity that a monitor is created with.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster that the monitor belongs to.
    pub cluster: ClusterId,
    /// The monitor's id.
    pub monitor: MonitorId,
    /// The process id, for display.
    pub pid: u32,
    /// The host's name, for display.
    pub host: String,
    /// The addresses that the monitor listens on.
    pub addresses: Vec<String>,
    /// A random number, unique among the processes of this cluster.
    pub nonce: u64,
}

/// The monitor of a cluster: plans placement, publishes the map, manages sessions and tasks.
pub struct Monitor {
    identity: Identity,
    /// The time at which the current event arrived.
    now: Time,
    /// The number of the current event, counted from 1.
    event_last: u64,
    leadership: Leadership,
    store: StoreAccess,
    committed: CommittedState,
    watching: Watching,
    jobs: JobQueue,
    connections: Connections,
    osds: BTreeMap<OsdId, OsdLive>,
    failure_detector: FailureDetector,
    entries: Entries,
    planning: Planning,
    sessions: SessionTracker,
    silent_clients: SilentClients,
    /// Operators that wait for an incomplete PG to be served with the remaining data; the oldest first.
    give_ups: Vec<GiveUp>,
    members_give_ups: MembersGiveUps,
    tasks: Tasks,
    stats: Stats,
    restore: Restore,
    unserved: Unserved,
    settling: Settling,
    slow_disks: SlowDisks,
}

impl Monitor {
    /// Creates a monitor that is the only one of its store. It has not read anything yet, so its deadline is
    /// now.
    pub fn new(identity: Identity) -> Monitor {
        Monitor::under(identity, Leadership::new(None, true), StoreAccess::default())
    }

    /// Like [`Monitor::new`], with a leadership that has just begun.
    fn under(identity: Identity, leadership: Leadership, store: StoreAccess) -> Monitor {
        let reign = identity.nonce;
        Monitor {
            identity,
            now: Time::ZERO,
            event_last: 0,
            leadership,
            store,
            committed: CommittedState::of_reign(reign),
            watching: Watching::default(),
            jobs: JobQueue::default(),
            connections: Connections::default(),
            osds: BTreeMap::new(),
            failure_detector: FailureDetector::default(),
            entries: Entries::default(),
            planning: Planning::default(),
            sessions: SessionTracker::default(),
            silent_clients: SilentClients::default(),
            give_ups: Vec::new(),
            members_give_ups: MembersGiveUps::default(),
            tasks: Tasks::default(),
            stats: Stats::default(),
            restore: Restore::default(),
            unserved: Unserved::default(),
            settling: Settling::default(),
            slow_disks: SlowDisks::default(),
        }
    }

    /// Handles an event. After the effect `Stop`, events are ignored.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.leadership.is_stopped() {
            return;
        }
        if self.event_last > 0 && now.since(self.now) >= LEFT_AFTER {
            self.failure_detector.note_standstill(now);
        }
        if self.event_last > 0 && now.since(self.now) >= silent_clients::STANDSTILL {
            self.silent_clients.count_anew(now);
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
            self.jobs.extend(self.settling.end_if_due(now));
            self.end_gone_sessions(now);
            self.ask_silent_clients(now, effects);
            self.watch_osds(now, effects);
            self.end_give_ups(now, effects);
            self.continue_give_ups(now, effects);
            self.tick_stats(now);
            self.judge_disks(now, effects);
            if self.tasks.take_due(now) {
                self.advance_tasks(now, effects);
            }
            self.queue_entries(now);
            self.queue_plans();
            self.run_jobs(now, effects);
            // Follow-up work of the last job, unless a transaction is in flight: its outcome leads
            // back to this loop.
            while !self.jobs.is_writing() && (self.queue_entries(now) || self.queue_plans()) {
                self.run_jobs(now, effects);
            }
            self.begin_anew(effects);
            self.look_at_unserved(now);
        }
    }

    /// Returns the latest time at which `Tick` is due; `None`: no tick is needed.
    pub fn deadline(&self) -> Option<Time> {
        if !self.is_ready() {
            return self.leadership.deadline();
        }
        let gone = self.sessions.deadline(self.span(Setting::SessionTimeout));
        let give_up = self.give_ups.first().map(|waits| waits.ends);
        let give_up = give_up.into_iter().chain(self.members_give_ups.deadline()).min();
        let osds = self.presence_deadline();
        let (entries, stats) = (self.entries.deadline(), self.stats.deadline());
        let (settling, clients) = (self.settling.deadline(), self.silent_clients.deadline());
        let all = [gone, clients, osds, entries, self.tasks.deadline(), give_up, stats, settling];
        all.into_iter().flatten().chain(self.slow_disks.deadline()).min()
    }

    /// Whether commands that change the state can be executed.
    fn is_ready(&self) -> bool {
        self.leadership.is_ready()
    }

    fn stop(&mut self, reason: StopReason, effects: &mut Vec<Effect>) {
        self.leadership.stop();
        effects.push(Effect::Stop(reason));
    }

    fn setting(&self, setting: Setting) -> u64 {
        setting.value_in(self.committed.changed_settings())
    }

    fn span(&self, setting: Setting) -> Duration {
        setting.span_in(self.committed.changed_settings())
    }

    /// Records which PGs are not served. OSDs report every second, so this check needs no deadline of its
    /// own.
    fn look_at_unserved(&mut self, now: Time) {
        if !self.unserved.is_due(now) {
            return;
        }
        let served = self.served();
        let pools = self.committed.pools();
        let entries = pools.flat_map(|pool| self.committed.pgs(pool.pool.id));
        let unserved: Vec<PgId> =
            entries.filter(|entry| !served(entry)).map(|entry| entry.pg).collect();
        drop(served);
        self.unserved.look(now, unserved);
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, peer } => self.accept(connection, peer, effects),
            NetEvent::Received { connection, message } => {
                if self.connections.is_here(connection) {
                    self.on_word(now, connection);
                    self.on_client_word(now, connection);
                    self.on_message(now, connection, message, effects);
                }
            }
            NetEvent::Closed { connection, .. } => self.forget_connection(now, connection),
            NetEvent::Connected { connection, .. } => {
                // A leader makes no connections; this one was being made when this monitor became
                // leader.
                effects.push(Effect::Net(NetEffect::Close { connection }));
            }
        }
    }

    fn accept(&mut self, connection: ConnectionId, peer: Peer, effects: &mut Vec<Effect>) {
        let is_ours = peer.cluster == self.identity.cluster;
        if !is_ours || !self.connections.accept(connection, peer) {
            effects.push(Effect::Net(NetEffect::Close { connection }));
        }
    }

    /// Removes a connection that is gone or that this monitor closed; work that depended on it
    /// continues without it.
    fn forget_connection(&mut self, now: Time, connection: ConnectionId) {
        let Some(gone) = self.connections.remove(connection) else { return };
        self.give_ups.retain(|waits| waits.connection != connection);
        self.members_give_ups.forget(connection);
        self.sessions.forget_waiting(connection);
        self.silent_clients.forget(connection);
        self.settling.forget(connection);
        self.on_teller_gone(connection);
        for session in gone.sessions {
            self.sessions.lose_connection(now, session);
        }
        if let Some(osd) = gone.osd {
            self.lose_osd_connection(now, osd, connection);
        }
    }

    fn close(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.connections.is_here(connection) {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            self.forget_connection(now, connection);
        }
    }

    /// Closes the connection: the peer violated the protocol.
    fn close_for_protocol(
        &mut self,
        now: Time,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        self.connections.count_protocol_error();
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
                    if self.store.trouble().is_some() =>
                {
                    let status = self.status(now, self.store.trouble());
                    self.connections.answer(connection, request, Ok(status), effects);
                }
                Ok(message) if !self.leadership.has_led() => {
                    if !self.connections.keep_early(connection, message) {
                        self.close(now, connection, effects);
                    }
                }
                Ok(message) => self.on_control(now, connection, message, effects),
                Err(_) => self.close_for_protocol(now, connection, effects),
            },
            Message::Reply(reply) => self.tasks.on_reply(now, connection, reply),
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
        if !self.connections.is_here(connection) {
            return;
        }
        if self.is_from_wrong_role(connection, &message) || says_too_much(&message) {
            self.close_for_protocol(now, connection, effects);
            return;
        }
        match message {
            ToMonitor::Subscribe { have } => self.subscribe(connection, have, effects),
            ToMonitor::Ping => self.connections.send(connection, &FromMonitor::Pong, effects),
            ToMonitor::Introduce { role, pid, host, address, answers_probes } => {
                if answers_probes {
                    self.silent_clients.watch(now, connection);
                }
                let (role, host, address) = (clipped(role), clipped(host), address.map(clipped));
                let introduced = Introduced { role, pid, host, address };
                self.connections.introduce(connection, introduced);
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
                let wants = Wants::Image { name: image, read_only, lock };
                self.open_session(connection, request, wants, client, effects);
            }
            ToMonitor::OpenPool { request, pool, client } => {
                let wants = Wants::Pool { name: pool };
                self.open_session(connection, request, wants, client, effects);
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
            ToMonitor::WatchState { prefix } => {
                self.connections.begin_state_watch(connection, prefix, effects)
            }
            ToMonitor::Command { request, command } => {
                self.on_command(now, connection, request, command, effects);
            }
        }
    }

    /// Whether a peer of this role may not send this message: only OSDs may send messages about OSDs.
    fn is_from_wrong_role(&self, connection: ConnectionId, message: &ToMonitor) -> bool {
        let role = self.connections.role(connection);
        match message {
            ToMonitor::OsdBoot { osd, .. } => !matches!(role, Role::Osd(id, _) if id == *osd),
            ToMonitor::OsdReport(_)
            | ToMonitor::OsdStats(_)
            | ToMonitor::OsdTells { .. }
            | ToMonitor::PgNeeds { .. }
            | ToMonitor::OsdUnreachable { .. }
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
            self.connections.answer(connection, request, result, effects);
            return;
        }
        let text = serde_json::to_string(&command).expect("messages have text keys");
        let event = TraceEvent::debug("an operator's command").with("command", clipped(text));
        effects.push(Effect::Trace(event));
        if let Some(why) = self.store.trouble() {
            self.connections.answer(connection, request, Err(no_state(why)), effects);
        } else if let Command::StateUndo { .. } = command
            && self.jobs.has_room(0)
        {
            self.jobs.push_urgent(Job::Command { connection, request, command });
        } else if self.committed.is_damaged() && !matches!(command, Command::StateRecover { .. }) {
            self.connections.answer(connection, request, Err(self.state_older()), effects);
        } else if matches!(
            command,
            Command::PgScrub { .. } | Command::OsdScrub { .. } | Command::PoolScrub { .. }
        ) {
            let result = self.scrub(&command, effects);
            self.connections.answer(connection, request, result, effects);
        } else if let Command::PgFix { pg, image, stripe, choice, number, accepted } = command {
            let asked = FixAsked { pg, image, stripe, choice, number, accepted };
            let result = self.fix(asked, effects);
            self.connections.answer(connection, request, result, effects);
        } else if let Command::PgGiveUp { pg, accepted, they_are_off: true, older_copy } = command {
            let (since, arrived) = (self.event_last, now);
            let asked =
                MembersGiveUp { connection, request, pg, accepted, older_copy, arrived, since };
            if let Err(error) = self.ask_before_give_up(now, asked) {
                self.connections.answer(connection, request, Err(error), effects);
            }
        } else if let Command::StateRecover { they_are_lost, accepted } = command {
            if let Err(error) = self.restore(connection, request, &they_are_lost, accepted) {
                self.connections.answer(connection, request, Err(error), effects);
            }
        } else if let Err(error) =
            self.try_push_asked(Job::Command { connection, request, command })
        {
            self.connections.answer(connection, request, Err(error), effects);
        }
    }

    fn try_push_job(&mut self, job: Job) -> bool {
        let has_room = self.jobs.has_room(self.settling.held_count());
        if has_room {
            self.jobs.push(job);
        }
        has_room
    }

    /// Queues a requested job, or returns why it cannot be queued.
    fn try_push_asked(&mut self, job: Job) -> Result<(), Failure> {
        if self.is_older() {
            return Err(self.state_older());
        }
        if self.try_push_job(job) { Ok(()) } else { Err(busy()) }
    }
}

/// Whether a peer sends addresses that it may not announce, numbers that were never issued, or too
/// many items.
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
