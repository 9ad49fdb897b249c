//! The node as a value: events in, effects out.
//!
//! After each event `settle` restores what always holds: the store's answers have reached their
//! PGs, the PGs' actions are carried out, and what may go on has gone on.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{
    BufferPool, ConnectionId, Duration, Incarnation, OsdId, PgId, PoolId, Time, TraceEvent, Version,
};
use blockstore::{NoteKey, Request as StoreRequest, RequestId, Store};
use cluster::copy::Seen;
use cluster::map::ClusterMap;
use cluster::message::{FromMonitor, Need, ToMonitor};
use cluster::settings::{Changed, Setting};
use format::door::{CloseReason, NetEffect, NetEvent, Peer, Role};
use format::wire::{ListedBlock, Member, Message, PeerBody};
use pg::{Action, CallId, Listing, Pg};

use crate::disk_watch::DiskWatch;
use crate::filling::Budget;
use crate::leases::Leases;
use crate::lines::Lines;
use crate::link::{Link, LinkStage, LinkStep};
use crate::notes::{ClusterNote, PoolNote};
use crate::peer_connections::PeerConnections;
use crate::peers::Peers;
use crate::reclaim::Reclaim;
use crate::requests::Requests;
use crate::session_takeover::SessionTakeovers;
use crate::sessions::Sessions;
use crate::space_credits::SpaceCredits;
use crate::state_log::StateLog;
use crate::stats::Stats;
use crate::{Effect, Event, Identity, Settings, StopReason};

/// One OSD.
pub struct Node {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) buffers: BufferPool,
    /// Settings of the cluster that differ from their defaults, as the monitor told.
    pub(crate) cluster_settings: Changed,
    pub(crate) phase: Phase,
    pub(crate) store: Store,
    store_effects: Vec<blockstore::Effect>,
    store_effects_spare: Vec<blockstore::Effect>,
    pub(crate) link: Link,
    pub(crate) connections: ConnectionIds,
    pub(crate) peer_connections: PeerConnections,
    pub(crate) leases: Leases,
    pub(crate) space_credits: SpaceCredits,
    /// A request waits until it is known whether a member has space for it.
    pub(crate) waits_for_space: bool,
    /// The longest span of a lease that this OSD may have given in any run, as its store has noted.
    lease_noted: Duration,
    pub(crate) peers: Peers,
    pub(crate) budget: Budget,
    /// This run's number, once the monitor has given it.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) map: ClusterMap,
    /// Pools of which a change came that does not follow what is known.
    pub(crate) map_gaps: BTreeSet<PoolId>,
    /// The monitor was asked about a gap since the last report.
    pub(crate) gap_was_told: bool,
    /// Pools as this OSD had seen them before this run, without those that are gone.
    pub(crate) pools_noted: BTreeMap<PoolId, PoolNote>,
    /// Notes of PGs that cannot be read, and why.
    pub(crate) damaged_notes: BTreeMap<PgId, String>,
    pub(crate) reclaim: Reclaim,
    pub(crate) sessions: Sessions,
    pub(crate) session_takeovers: SessionTakeovers,
    pub(crate) requests: Requests,
    /// What the monitor told of the state store.
    pub(crate) state: StateLog,
    /// The newest run of this OSD, and the revisions of maps, that its records of PGs name.
    pub(crate) recorded: Seen,
    /// PGs this OSD has or had a part in, in this run.
    pub(crate) pgs: Vec<Pg>,
    pub(crate) pg_slots: BTreeMap<PgId, usize>,
    pub(crate) actions: Vec<Action>,
    actions_spare: Vec<Action>,
    pub(crate) report_at: Time,
    pub(crate) disk_watch: DiskWatch,
    pub(crate) lines: Lines,
    pub(crate) stats: Stats,
    /// Once the process is asked to end: how long what was started is waited for.
    drain_until: Time,
    /// Something that waiting requests may wait for has changed.
    pub(crate) recheck: bool,
    /// A PG was given up: it may be served now.
    review_is_due: bool,
    /// The next PG that is served is reported at once.
    report_is_due: bool,
    /// A request waits until the store is no longer congested.
    pub(crate) waits_for_store: bool,
    /// The applied revisions are to be told to the monitor.
    pub(crate) saw_is_due: bool,
    /// The map differs from the note in the store.
    pub(crate) note_is_old: bool,
    /// The note is on its way to the store's journal, and with it this span.
    pub(crate) note_is_open: Option<Duration>,
}

/// Names the connections that this OSD opens: even numbers, each once.
#[derive(Default)]
pub(crate) struct ConnectionIds(u64);

impl ConnectionIds {
    pub fn next(&mut self) -> ConnectionId {
        self.0 += 2;
        ConnectionId::new(self.0)
    }
}

/// The life of a node. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Waits for the store's recovery.
    Opening,
    /// Serves.
    Running,
    /// Waits until what was started has ended.
    Draining,
    /// Waits for the store's last flush.
    Syncing,
    /// Waits until every operation that was asked of the disk has ended.
    Closing,
    /// Takes no event any more.
    Stopped,
}

/// The span of a lease where no setting tells.
pub(crate) const LEASE_DEFAULT: Duration =
    Duration::from_millis(Setting::Lease.definition().default);

/// The node's own requests to its store.
const CALL_CLUSTER_NOTE: RequestId = RequestId(1);
const CALL_LAST_SYNC: RequestId = RequestId(2);
const CALL_LAST_RECORD: RequestId = RequestId(3);
/// All of a reclaim are alike, for only their number counts.
pub(crate) const CALL_CLEARING: RequestId = RequestId(4);
/// A durable write that shows that the disk answers, of what is there already.
pub(crate) const CALL_PROBE: RequestId = RequestId(5);
/// All of the state's log are alike, too.
const CALL_STATE_NOTE: RequestId = RequestId(6);

/// A PG's request to the store: which PG and which call.
fn request_id(slot: usize, call: CallId) -> RequestId {
    RequestId((slot as u64 + 1) << 32 | u64::from(call.0))
}

/// The inverse of [`request_id`]; `None` for the node's own requests.
fn pg_call(id: RequestId) -> Option<(usize, CallId)> {
    let slot = (id.0 >> 32).checked_sub(1)? as usize;
    Some((slot, CallId(id.0 as u32)))
}

impl Node {
    /// Begins a run: opens the store on a device of `device_size` bytes, then joins the cluster.
    /// Ends with [`Effect::Stop`]. Requires: at least one monitor address.
    pub fn new(
        identity: Identity,
        settings: Settings,
        pool: BufferPool,
        device_size: u64,
        now: Time,
        effects: &mut Vec<Effect>,
    ) -> Node {
        let mut store_effects = Vec::new();
        let store =
            Store::open(settings.store.clone(), pool.clone(), device_size, &mut store_effects);
        let link =
            Link::new(identity.monitors.clone(), settings.reconnect_min, settings.reconnect_max);
        let stalls = settings.stalls.clone();
        let mut node = Node {
            identity,
            settings,
            buffers: pool,
            cluster_settings: Changed::new(),
            phase: Phase::Opening,
            store,
            store_effects,
            store_effects_spare: Vec::new(),
            link,
            connections: ConnectionIds::default(),
            peer_connections: PeerConnections::default(),
            leases: Leases::new(now, LEASE_DEFAULT),
            space_credits: SpaceCredits::new(),
            waits_for_space: false,
            lease_noted: LEASE_DEFAULT,
            peers: Peers::default(),
            budget: Budget::default(),
            incarnation: None,
            map: ClusterMap::default(),
            map_gaps: BTreeSet::new(),
            gap_was_told: false,
            pools_noted: BTreeMap::new(),
            damaged_notes: BTreeMap::new(),
            reclaim: Reclaim::default(),
            sessions: Sessions::default(),
            session_takeovers: SessionTakeovers::default(),
            requests: Requests::default(),
            state: StateLog::default(),
            recorded: Seen::default(),
            pgs: Vec::new(),
            pg_slots: BTreeMap::new(),
            actions: Vec::new(),
            actions_spare: Vec::new(),
            report_at: now,
            disk_watch: DiskWatch::new(now, stalls),
            lines: Lines::default(),
            stats: Stats::new(now),
            drain_until: now,
            recheck: false,
            review_is_due: false,
            report_is_due: false,
            waits_for_store: false,
            saw_is_due: false,
            note_is_old: false,
            note_is_open: None,
        };
        node.settle(now, effects);
        node
    }

    /// Takes one event.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.store.runs(now);
        match event {
            Event::Disk(event) => {
                let event = blockstore::Event::Disk(event);
                self.store.apply(now, event, &mut self.store_effects);
            }
            Event::Net(event) => self.net(now, event, effects),
            Event::Tick => self.tick(now, effects),
            Event::Shutdown => self.shut_down(now, effects),
        }
        self.settle(now, effects);
    }

    /// Hands what the turn's events wrote to the disk as one journal write. The owner calls it at
    /// the end of each turn of its loop.
    pub fn finish_turn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.store.submit(&mut self.store_effects);
        self.settle(now, effects);
    }

    /// Where monitors listen, if one of them said so and it is another list than the one taken before:
    /// for the next run.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        self.link.take_told()
    }

    /// Where a monitor is looked for, if none knows this run now.
    pub fn seeks_monitor(&self) -> Option<&[String]> {
        self.link.is_seeking().then(|| self.link.addresses())
    }

    /// When the node wants an [`Event::Tick`]; may change with every event.
    pub fn deadline(&self) -> Option<Time> {
        if self.phase == Phase::Stopped {
            return None;
        }
        let is_running = self.phase == Phase::Running;
        let report = is_running.then(|| self.report_at.min(self.stats.at).min(self.disk_watch.at));
        let waiting = self.requests.deadline(self.settings.wait_max);
        let draining = (self.phase == Phase::Draining).then_some(self.drain_until);
        let own = [self.store.deadline(), report, waiting, draining];
        let others =
            [self.link.deadline(), self.peer_connections.deadline(), self.peers.deadline()];
        let all = own.into_iter().chain(others).chain([self.budget.deadline()]);
        all.flatten().min()
    }

    /// What the store's recovery found, for the log. Meaningful once the node has asked for a
    /// monitor.
    pub fn recovery_report(&self) -> blockstore::RecoveryReport {
        self.store.recovery_report()
    }

    /// Whether every request has been answered and every connection's count says so.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.sessions.nothing_is_open()
    }

    fn net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, peer } => {
                self.accepted(now, connection, peer, effects);
            }
            NetEvent::Connected { connection, peer } => {
                self.connected(now, connection, peer, effects);
            }
            NetEvent::Received { connection, message } => match message {
                message if self.peer_connections.has(connection) => {
                    self.osd_said(now, connection, message, effects);
                }
                Message::Request(request) => self.request_came(now, connection, request, effects),
                Message::Control(text) if self.link.connection() == Some(connection) => {
                    self.monitor_said(now, connection, &text, effects);
                }
                Message::Control(_) | Message::Reply(_) | Message::Peer(_) | Message::Lease(_) => {
                    self.hang_up(now, connection, effects);
                }
            },
            NetEvent::Closed { connection, reason } => {
                self.closed(now, connection, reason == CloseReason::Refused, effects);
            }
        }
    }

    fn accepted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        let is_ours = peer.cluster == self.identity.cluster;
        if !is_ours || !matches!(self.phase, Phase::Opening | Phase::Running) {
            effects.push(Effect::Net(NetEffect::Close { connection }));
            return;
        }
        match peer.role {
            Role::Client | Role::Monitor(_) => self.sessions.open(now, connection, peer),
            Role::Osd(osd, incarnation) => {
                self.osd_accepted(now, connection, Member { osd, incarnation }, effects);
            }
        }
    }

    fn connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        if self.peer_connections.has(connection) {
            return self.osd_connected(now, connection, peer, effects);
        }
        if self.link.connection() != Some(connection) {
            return;
        }
        self.sessions.open(now, connection, peer);
        let is_ours = peer.cluster == self.identity.cluster;
        if !is_ours || !matches!(peer.role, Role::Monitor(_)) {
            return self.hang_up(now, connection, effects);
        }
        self.link.connected(now);
        self.link.booting(connection, now + self.settings.boot_max);
        let boot = ToMonitor::OsdBoot {
            osd: self.identity.osd,
            store: self.identity.store.clone(),
            addresses: self.identity.addresses.clone(),
            peer_addresses: self.identity.peer_addresses.clone(),
            pid: self.identity.pid,
            path: self.identity.path.clone(),
            host: self.identity.host.clone(),
            supervised: self.identity.supervised,
            incarnation: self.incarnation,
            suspect: self.store.has_unsettled_damage() || !self.damaged_notes.is_empty(),
            stalled: self.disk_watch.is_stalled(),
            seen: self.seen(),
        };
        self.tell_monitor(&boot, effects);
    }

    /// How often this OSD reports.
    fn report_every(&self) -> Duration {
        Setting::OsdReport.span_in(&self.cluster_settings)
    }

    /// How long the leases are that this OSD gives. A longer one than ever before is given once the
    /// store has noted it: a later run waits for as long.
    pub(crate) fn lease_span(&self) -> Duration {
        self.lease_wanted().min(self.lease_noted)
    }

    fn lease_wanted(&self) -> Duration {
        Setting::Lease.span_in(&self.cluster_settings)
    }

    /// Closes a connection; no event of it follows.
    pub(crate) fn hang_up(
        &mut self,
        now: Time,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.closed(now, connection, false, effects);
    }

    /// A connection is gone, or never came to be. `refused`: nobody listens at its address.
    fn closed(
        &mut self,
        now: Time,
        connection: ConnectionId,
        refused: bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.peer_connections.has(connection) {
            return self.osd_closed(now, connection, refused, effects);
        }
        self.drop_waiting_of(connection);
        self.sessions.close(connection);
        if self.link.connection() == Some(connection) {
            if self.link.joined().is_some() {
                let event = TraceEvent::debug("the connection to the monitor is gone");
                effects.push(Effect::Trace(event));
            }
            self.link.lose(now);
        }
    }

    fn monitor_said(
        &mut self,
        now: Time,
        connection: ConnectionId,
        text: &str,
        effects: &mut Vec<Effect>,
    ) {
        self.link.word(now);
        // What a newer monitor says and we do not know is not for us.
        let Ok(message) = serde_json::from_str::<FromMonitor>(text) else { return };
        match message {
            FromMonitor::OsdBooted { incarnation } => {
                self.booted(now, connection, incarnation, effects);
            }
            FromMonitor::OsdRefused { error } => {
                let event = TraceEvent::error("the monitor refuses this OSD");
                let event = event.with("code", &error.code).with("why", &error.message);
                effects.push(Effect::Trace(event));
                let why = format!("{}; {}", error.message, error.hint);
                self.stop(
                    match error.code.as_str() {
                        "not_found" => StopReason::Removed(error.message),
                        _ => StopReason::Refused(why),
                    },
                    effects,
                );
            }
            FromMonitor::Map(delta) => self.map_came(now, delta, effects),
            FromMonitor::Monitors { addresses } => self.link.learn(addresses),
            FromMonitor::GiveUp { pg, epoch, incarnation } => {
                let is_seen = self.map.pg(pg).is_some_and(|entry| entry.epoch == epoch);
                if is_seen && self.incarnation == Some(incarnation) {
                    self.give_up(now, pg, effects);
                }
            }
            FromMonitor::Probe { nonce } => self.tell_monitor(&ToMonitor::Alive { nonce }, effects),
            FromMonitor::ClearPool { pool, .. } => self.clear_pool(now, pool, effects),
            FromMonitor::StateCopy(part) => {
                let notes = self.state.take(part);
                self.note_state(now, notes);
            }
            FromMonitor::TellAll => self.tell_all(now, connection, effects),
            FromMonitor::Settings { changed } => {
                self.cluster_settings = changed;
                let level = Setting::log_level_in(&self.cluster_settings);
                effects.push(Effect::LogLevel(level));
                self.note_is_old |= self.lease_wanted() > self.lease_noted;
                self.report_at = self.report_at.min(now + self.report_every());
                let told_every = Setting::StatsInterval.span_in(&self.cluster_settings);
                self.stats.at = self.stats.at.min(now + told_every);
            }
            FromMonitor::StatsSaved { sequence } => self.stats.saved(sequence),
            // It was a word of the monitor, which is all that was asked for.
            FromMonitor::Pong => {}
            // Answers to questions that an OSD does not ask.
            FromMonitor::SessionOpened { .. }
            | FromMonitor::MonitorRemoved
            | FromMonitor::SessionRefused { .. }
            | FromMonitor::SessionClosed { .. }
            | FromMonitor::SessionEnded { .. }
            | FromMonitor::StateWatched
            | FromMonitor::StateChanged { .. }
            | FromMonitor::StateWatchLost
            | FromMonitor::Answer { .. } => {}
        }
    }

    fn booted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) {
        self.link.join(connection);
        if self.incarnation != Some(incarnation) {
            self.incarnation = Some(incarnation);
            effects.push(Effect::Joined { incarnation });
            let event = TraceEvent::info("joined the cluster");
            effects.push(Effect::Trace(event.number("run", incarnation.get())));
        }
        self.subscribe(effects);
        self.saw_is_due = true;
        self.review_all(now, effects);
        self.update_mesh(now, effects);
        self.tell_unreachable_again(now, effects);
        self.recheck = true;
        self.report_at = now;
        self.stats.begin_connection(now);
    }

    /// Says something to the monitor, if there is a connection; what is lost is said again after
    /// the next one.
    pub(crate) fn tell_monitor(&self, message: &ToMonitor, effects: &mut Vec<Effect>) {
        let Some(connection) = self.link.open() else { return };
        let text = serde_json::to_string(message).expect("plain data with text keys");
        let message = Message::Control(text);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.store.deadline().is_some_and(|deadline| deadline <= now) {
            self.store.apply(now, blockstore::Event::Tick, &mut self.store_effects);
        }
        if self.link.deadline().is_some_and(|deadline| deadline <= now) {
            self.move_link(now, effects);
        }
        if self.peer_connections.deadline().is_some_and(|deadline| deadline <= now) {
            self.tick_mesh(now, effects);
        }
        if self.peers.deadline().is_some_and(|deadline| deadline <= now) {
            self.tick_peers(now, effects);
        }
        if self.budget.deadline().is_some_and(|deadline| deadline <= now) {
            self.share_repairs(now, effects);
        }
        let oldest = self.requests.deadline(self.settings.wait_max);
        if oldest.is_some_and(|deadline| deadline <= now) {
            self.recheck = true;
        }
        if self.phase == Phase::Running && self.disk_watch.at <= now {
            self.watch_disk(now, effects);
        }
        if self.phase == Phase::Running && self.report_at <= now {
            self.report_at = now + self.report_every();
            self.housekeep(now, effects);
        }
        if self.phase == Phase::Running && self.stats.at <= now {
            self.tell_stats(now, effects);
        }
    }

    /// The time that the link waited for has come.
    fn move_link(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.link.step(now) {
            Some(LinkStep::Connect { address, until }) => {
                let connection = self.connections.next();
                self.link.connecting(connection, until);
                effects.push(Effect::Net(NetEffect::Connect { connection, address }));
            }
            Some(LinkStep::Ask) => self.tell_monitor(&ToMonitor::Ping, effects),
            Some(LinkStep::HangUp { connection }) => self.hang_up(now, connection, effects),
            None => {}
        }
    }

    fn shut_down(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Opening => self.stop(StopReason::Shutdown, effects),
            Phase::Running => self.begin_end(now, effects),
            Phase::Draining | Phase::Syncing | Phase::Closing | Phase::Stopped => {
                self.disk_watch.stay_away();
            }
        }
    }

    /// Ends what was started, then the store's work.
    pub(crate) fn begin_end(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.phase = Phase::Draining;
        self.drain_until = now + self.settings.wait_max;
        self.refuse_all_waiting(effects);
    }

    pub(crate) fn stop(&mut self, reason: StopReason, effects: &mut Vec<Effect>) {
        self.phase = Phase::Stopped;
        effects.push(Effect::Stop(reason));
    }

    /// Restores what holds between events.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            self.take_store_effects(now, effects);
            if self.phase == Phase::Stopped {
                return;
            }
            if self.phase == Phase::Closing {
                match self.disk_watch.is_leaving() {
                    true if !self.store.is_idle() => {}
                    true => return self.stop(StopReason::Stalled, effects),
                    false => return self.stop(StopReason::Shutdown, effects),
                }
            }
            if self.waits_for_store && !self.store.is_congested() {
                self.waits_for_store = false;
                self.recheck = true;
            }
            self.look_for_space(now);
            let is_drained = !self.requests.any_started() || self.drain_until <= now;
            if self.phase == Phase::Draining && is_drained {
                self.phase = Phase::Syncing;
                self.leave_all(now, effects);
                self.surrender_all(effects);
                self.tell_stats(now, effects);
                self.tell_monitor(&ToMonitor::OsdLeaves, effects);
                self.link.end();
                // What a restored state store may lack.
                self.keep_old_note(now);
                self.ask_store(now, CALL_LAST_SYNC, StoreRequest::Sync);
            }
            if std::mem::take(&mut self.review_is_due) {
                self.review_all(now, effects);
                self.report_is_due = true;
            }
            if std::mem::take(&mut self.recheck) {
                self.judge_waiting(now, effects);
            } else if self.store_effects.is_empty() {
                break;
            }
        }
        self.tell_new_needs(effects);
        self.send_saw(effects);
        self.renew_for_space(now, effects);
    }

    fn take_store_effects(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while !self.store_effects.is_empty() {
            let spare = std::mem::take(&mut self.store_effects_spare);
            let mut batch = std::mem::replace(&mut self.store_effects, spare);
            for effect in batch.drain(..) {
                if self.phase != Phase::Stopped {
                    self.store_said(now, effect, effects);
                }
            }
            self.store_effects_spare = batch;
        }
    }

    fn store_said(&mut self, now: Time, effect: blockstore::Effect, effects: &mut Vec<Effect>) {
        match effect {
            blockstore::Effect::Disk(effect) => effects.push(Effect::Disk(effect)),
            blockstore::Effect::Opened => self.store_opened(now, effects),
            blockstore::Effect::Done { id, result } => match pg_call(id) {
                Some((slot, call)) => {
                    self.pgs[slot].store_done(call, result, &mut self.actions);
                    self.carry_out(now, slot, effects);
                }
                None if id == CALL_LAST_SYNC => {
                    self.ask_store(now, CALL_LAST_RECORD, StoreRequest::Record);
                }
                None if id == CALL_STATE_NOTE => {
                    self.state.noted(result.is_ok());
                    if result.is_ok() {
                        let notes = self.state.tidy();
                        self.note_state(now, notes);
                    }
                }
                None if id == CALL_CLEARING => self.cleared(now, result, effects),
                None if id == CALL_LAST_RECORD => self.phase = Phase::Closing,
                None if id == CALL_PROBE => self.probed(result.is_ok()),
                None => {
                    assert!(id == CALL_CLUSTER_NOTE);
                    let span = self.note_is_open.take().expect("one note at a time");
                    match result {
                        Ok(_) => self.lease_noted = self.lease_noted.max(span),
                        Err(_) => self.note_is_old = true,
                    }
                }
            },
            blockstore::Effect::Stopped { reason } => {
                self.stop(StopReason::Store(reason), effects);
            }
        }
    }

    /// The store is recovered: if it is the right one, the node joins.
    fn store_opened(&mut self, now: Time, effects: &mut Vec<Effect>) {
        assert!(self.phase == Phase::Opening);
        if let Err(reason) = self.check_store() {
            return self.stop(StopReason::Store(reason), effects);
        }
        if self.store.has_unsettled_damage() {
            let what = "the store is suspect: recovery found damage that may have cost writes";
            effects.push(Effect::Trace(TraceEvent::warn(what)));
        }
        self.find_damaged_notes();
        for (pg, why) in &self.damaged_notes {
            let event = TraceEvent::warn("the note of a PG cannot be read: the PG is suspect");
            effects.push(Effect::Trace(event.with("pg", pg).with("why", why)));
        }
        self.phase = Phase::Running;
        let is_forgotten = planted::on(Bug::LongerLeaseForgotten);
        let span = if is_forgotten { LEASE_DEFAULT } else { self.lease_noted };
        self.leases = Leases::new(now, span);
        self.space_credits = SpaceCredits::new();
        self.report_at = now + self.report_every();
        self.link.stage = LinkStage::Down { until: now };
        self.move_link(now, effects);
    }

    fn check_store(&mut self) -> Result<(), String> {
        let found = self.store.identity();
        let Identity { cluster, osd, store, path, .. } = &self.identity;
        if found.cluster != *cluster {
            let found = found.cluster;
            return Err(format!("{path} belongs to cluster {found}, not to {cluster}"));
        }
        if found.osd != *osd || found.store.to_string() != *store {
            let (other, id) = (found.osd, found.store);
            return Err(format!("{path} is store {id} of {other}, not store {store} of {osd}"));
        }
        self.recorded = self.seen_in_records();
        self.state = StateLog::read(self.store.notes());
        let Some(note) = self.store.note(NoteKey::Cluster) else { return Ok(()) };
        let note = ClusterNote::decode(note)
            .map_err(|why| format!("the note on the cluster in {path} cannot be read: {why}"))?;
        self.lease_noted = self.lease_noted.max(note.lease());
        self.pools_noted = note.pools_by_id();
        Ok(())
    }

    /// Notes what changed since the last note, unless one is on its way.
    pub(crate) fn keep_old_note(&mut self, now: Time) {
        let notes = self.state.tidy();
        self.note_state(now, notes);
        if self.note_is_old && self.note_is_open.is_none() && self.incarnation.is_some() {
            self.keep_cluster_note(now);
        }
    }

    fn note_state(&mut self, now: Time, notes: Vec<StoreRequest>) {
        for note in notes {
            self.ask_store(now, CALL_STATE_NOTE, note);
        }
    }

    pub(crate) fn keep_cluster_note(&mut self, now: Time) {
        let span = self.lease_noted.max(self.lease_wanted());
        let mut note = ClusterNote::of(self.identity.cluster, &self.map, span);
        note.keep_newer(&self.pools_noted);
        self.note_is_old = false;
        self.note_is_open = Some(span);
        let request = StoreRequest::Note { key: NoteKey::Cluster, bytes: note.encode() };
        self.ask_store(now, CALL_CLUSTER_NOTE, request);
    }

    pub(crate) fn ask_store(&mut self, now: Time, id: RequestId, request: StoreRequest) {
        let event = blockstore::Event::Request { id, request };
        self.store.apply(now, event, &mut self.store_effects);
    }

    /// Carries out what the PG in `slot` asks, in order. Follows each call into a PG.
    pub(crate) fn carry_out(&mut self, now: Time, slot: usize, effects: &mut Vec<Effect>) {
        while !self.actions.is_empty() {
            let spare = std::mem::take(&mut self.actions_spare);
            let mut batch = std::mem::replace(&mut self.actions, spare);
            for action in batch.drain(..) {
                match action {
                    Action::Store { call, request } => {
                        self.stats.asked(&request);
                        self.ask_store(now, request_id(slot, call), request);
                    }
                    Action::List { call, listing } => {
                        let keys = self.list(slot, &listing);
                        self.pgs[slot].listed(call, keys, &mut self.actions);
                    }
                    Action::ListNewer { call, newer_than, after, count_max } => {
                        let (blocks, is_last) = self.list_newer(slot, newer_than, after, count_max);
                        self.pgs[slot].listed_newer(call, blocks, is_last, &mut self.actions);
                    }
                    Action::Send { to, body } => {
                        assert!(to != self.identity.osd, "a PG tells itself by a call");
                        self.send(now, slot, to, body, effects);
                    }
                    Action::Need(need) => self.pg_needs(slot, need),
                    Action::Reply { ticket, outcome } => {
                        self.answer(now, slot, ticket, outcome, effects);
                    }
                    Action::Activated => {
                        self.trace_active(now, slot, effects);
                        self.recheck = true;
                        self.budget.begin(now);
                        if std::mem::take(&mut self.report_is_due) {
                            // An operator waits for it.
                            self.report_at = now;
                        }
                    }
                    Action::Absolved => self.review_is_due = true,
                }
            }
            self.actions_spare = batch;
        }
    }

    fn list(&self, slot: usize, listing: &Listing) -> Vec<blockstore::BlockKey> {
        let pool = self.pgs[slot].id().pool;
        let (first, last) = listing.hashes;
        let blocks = self.store.blocks(pool, first, last, listing.after);
        let wanted = blocks.filter(|(key, _, is_tombstone)| {
            key.image == listing.image && key.stripe >= listing.from && !is_tombstone
        });
        wanted.map(|(key, ..)| key).take(listing.count_max).collect()
    }

    /// Blocks of a PG with versions above `newer_than`, tombstones included, and whether no other
    /// follows.
    fn list_newer(
        &self,
        slot: usize,
        newer_than: Version,
        after: Option<blockstore::BlockKey>,
        count_max: usize,
    ) -> (Vec<ListedBlock>, bool) {
        let pool = self.pgs[slot].id().pool;
        let (first, last) = self.pgs[slot].hashes();
        let blocks = self.store.blocks(pool, first, last, after);
        let mut newer = blocks
            .filter(|(_, version, _)| *version > newer_than)
            .map(|(key, version, is_tombstone)| ListedBlock { key, version, is_tombstone });
        let listed: Vec<ListedBlock> = newer.by_ref().take(count_max).collect();
        (listed, newer.next().is_none())
    }

    /// Sends what the PG in `slot` says to another member of its entry.
    fn send(
        &mut self,
        now: Time,
        slot: usize,
        to: OsdId,
        body: PeerBody,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.pgs[slot].entry().cloned() else { return };
        if matches!(body, PeerBody::Query { .. }) {
            self.query_sent(now, &entry, to);
        }
        self.send_to_member(&entry, to, body, effects);
    }

    fn pg_needs(&mut self, slot: usize, need: pg::Need) {
        let Some(entry) = self.pgs[slot].entry() else { return };
        let (id, epoch) = (entry.pg, entry.epoch);
        let what = match need {
            pg::Need::NewEpoch => Need::NewEpoch,
            pg::Need::Complete(member) => Need::Complete(member),
            pg::Need::Failed(member, why) => Need::Failed(member, why),
        };
        self.need(id, epoch, what);
    }
}
