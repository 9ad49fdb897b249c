//! The node as one value: events in, effects out.
//!
//! After each event `settle` restores the invariants: the store's results have reached their PGs, the
//! PGs' actions are carried out, and everything that may proceed has proceeded.
//!
//! Each module below carries out the decisions of the type with the same name; the types in `src/` are
//! independent of the node.

mod engine_lag;
mod monitor;
mod peer_connections;
mod peers;
mod pg_lifecycle;
mod reclaim;
mod requests;
mod space_credits;

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{BufferPool, ConnectionId, Duration, Epoch, OsdId, PgId, Time, TraceEvent, Version};
use blockstore::{Answer, BlockKey, NoteKey, Request as StoreRequest, StoreError};
use cluster::message::{Need, ToMonitor, TurnTimes};
use cluster::monitor_link::MonitorLink;
use cluster::settings::Setting;
use format::door::{CloseReason, NetEffect, NetEvent, Peer, Role};
use format::engine::EngineEvent;
use format::wire::{Activation, ListedBlock, Member, Message, PeerBody};
use pg::{Action, Finding, FixRequest, Listing, Pg, ScrubEvent, ScrubNote, SlowDisks};

use crate::cluster_view::ClusterView;
use crate::connection_ids::ConnectionIds;
use crate::disk_watch::{DiskWatch, LookStep, Stalls};
use crate::engine_lag::EngineLag;
use crate::filling::Budget;
use crate::leases::{LEASE_DEFAULT, Leases, giver_span};
use crate::lines::{Lines, faults_text, trace_checked, trace_metadata, trace_scrub};
use crate::lists::Lists;
use crate::local_engine::LocalEngine;
use crate::local_store::{LocalStore, StoreCall};
use crate::metadata_check::Step;
use crate::notes::Notes;
use crate::peer_connections::PeerConnections;
use crate::peers::{Overdue, Peers, is_query};
use crate::pg_table::{PgSlot, PgTable};
use crate::reclaim::Reclaim;
use crate::report::{Explainer, ReportSchedule, report};
use crate::requests::Requests;
use crate::scrubbing::{Begin, Go, Scrubbing, Turn};
use crate::sessions::Sessions;
use crate::space_credits::SpaceCredits;
use crate::state_log::StateLog;
use crate::stats::Stats;
use crate::{Effect, Engine, Event, Identity, Settings, StopReason};

/// One OSD.
pub struct Node {
    identity: Identity,
    settings: Settings,
    phase: Phase,
    // The local store with its engine, and this OSD's view of the cluster.
    pub(crate) store: LocalStore,
    pub(crate) engine: LocalEngine,
    pub(crate) cluster: ClusterView,
    notes: Notes,
    /// The copy of the state store that the monitor sends.
    state: StateLog,
    pub(crate) pgs: PgTable,
    // The connection to the monitor.
    link: MonitorLink,
    connections: ConnectionIds,
    reports: ReportSchedule,
    turns: TurnTimes,
    stats: Stats,
    lines: Lines,
    // Connections and messages with other OSDs.
    pub(crate) peer_connections: PeerConnections,
    peers: Peers,
    leases: Leases,
    pub(crate) space_credits: SpaceCredits,
    engine_lag: EngineLag,
    // Sessions and requests of clients.
    sessions: Sessions,
    pub(crate) requests: Requests,
    /// Requests that list the objects of several PGs.
    lists: Lists,
    // Background work.
    budget: Budget,
    scrubbing: Scrubbing,
    pub(crate) reclaim: Reclaim,
    disk_watch: DiskWatch,
    /// Number of pools with damaged records here, of which the monitor was told.
    damaged_told: usize,
    /// The operator gave up lost data of a PG, so the PG may be able to serve now: all PGs must be reviewed.
    review_is_due: bool,
    /// The PGs that this run may have lost something of, each with the first epoch that it was to lead.
    losses: BTreeMap<PgId, Epoch>,
}

/// The phases of a node, in order of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waits for the store's recovery.
    Opening,
    /// Serves requests.
    Running,
    /// Waits until started requests have finished, but not beyond this time.
    Draining { until: Time },
    /// Waits for the store's last flush.
    Syncing,
    /// Before the next run in this process: waits until every disk operation has finished.
    Closing,
    /// Ignores all events.
    Stopped,
}

impl Node {
    /// Begins a run: opens the store on a device of `device_size` bytes, then joins the cluster. The run
    /// ends with [`Effect::Stop`]. Requires: at least one monitor address.
    pub fn new(
        identity: Identity,
        settings: Settings,
        pool: BufferPool,
        device_size: u64,
        now: Time,
        effects: &mut Vec<Effect>,
    ) -> Node {
        let found = match &settings.engine {
            Engine::Open(found) => Some(found.clone()),
            Engine::None(_) => None,
        };
        let store = LocalStore::open(settings.store.clone(), pool.clone(), device_size, found);
        let Settings { reconnect_min, reconnect_max, .. } = settings;
        let link = MonitorLink::new(identity.monitors.clone(), reconnect_min, reconnect_max);
        let mut node = Node {
            phase: Phase::Opening,
            store,
            engine: LocalEngine::new(settings.engine.clone()),
            cluster: ClusterView::new(identity.osd),
            notes: Notes::unread(),
            state: StateLog::default(),
            lists: Lists::new(pool.clone()),
            pgs: PgTable::new(identity.osd, pool, settings.pg_limits),
            link,
            connections: ConnectionIds::default(),
            reports: ReportSchedule::new(now),
            turns: TurnTimes::default(),
            stats: Stats::new(now),
            lines: Lines::default(),
            peer_connections: PeerConnections::default(),
            peers: Peers::default(),
            leases: Leases::new(now, LEASE_DEFAULT),
            space_credits: SpaceCredits::new(),
            engine_lag: EngineLag::default(),
            sessions: Sessions::default(),
            requests: Requests::default(),
            budget: Budget::default(),
            scrubbing: Scrubbing::default(),
            reclaim: Reclaim::default(),
            disk_watch: DiskWatch::new(now, settings.stalls.clone()),
            damaged_told: 0,
            review_is_due: false,
            losses: BTreeMap::new(),
            identity,
            settings,
        };
        node.settle(now, effects);
        node
    }

    /// Handles one event.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.store.runs(now);
        match event {
            Event::Disk(event) => {
                self.store.apply(now, blockstore::Event::Disk(event));
            }
            Event::Engine(EngineEvent::Statistics { statistics, .. }) => {
                self.engine.on_statistics(statistics);
            }
            Event::Engine(event) => self.store.apply(now, blockstore::Event::Engine(event)),
            Event::Net(event) => self.on_net(now, event, effects),
            Event::Tick => self.on_tick(now, effects),
            Event::Shutdown => self.on_shutdown(now, effects),
        }
        self.settle(now, effects);
    }

    /// Submits everything that the events of this turn have written, as one journal write. The owner calls
    /// this at the end of each turn of its loop.
    pub fn finish_turn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.store.submit();
        self.settle(now, effects);
    }

    /// Counts a turn of the owner's loop.
    pub fn note_turn(&mut self, time: Duration) {
        self.turns.record(time);
    }

    /// Returns the addresses of the monitors for the next run, if a monitor sent a list that differs from the
    /// one returned before.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        self.link.take_told()
    }

    /// Returns the addresses at which this OSD looks for a monitor, or `None` while a monitor serves it.
    pub fn seeks_monitor(&self) -> Option<&[String]> {
        self.link.is_seeking().then(|| self.link.addresses())
    }

    /// Returns when the node needs an [`Event::Tick`]. May change with every event.
    pub fn deadline(&self) -> Option<Time> {
        if self.phase == Phase::Stopped {
            return None;
        }
        let is_running = self.phase == Phase::Running;
        let report =
            is_running.then(|| self.reports.at().min(self.stats.at).min(self.disk_watch.at));
        let waiting = self.requests.deadline(self.settings.wait_max);
        let draining = match self.phase {
            Phase::Draining { until } => Some(until),
            _ => None,
        };
        let own = [self.store.deadline(), report, waiting, draining];
        let others =
            [self.link.deadline(), self.peer_connections.deadline(), self.peers.deadline()];
        let all = own
            .into_iter()
            .chain(others)
            .chain([self.budget.deadline(), self.scrubbing.deadline()])
            .chain([self.space_credits.room_due()]);
        all.flatten().min()
    }

    /// Returns the history of stalls for the next run of this process.
    pub fn stalls(&self) -> Stalls {
        self.disk_watch.for_next_run()
    }

    /// Returns the result of the store's recovery, for the log. Meaningful once the node has tried to connect
    /// to a monitor.
    pub fn recovery_report(&self) -> blockstore::RecoveryReport {
        self.store.recovery_report()
    }

    /// Returns whether every request has been answered and no connection counts an unanswered request.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.sessions.nothing_is_open()
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, peer } => {
                self.on_accepted(now, connection, peer, effects);
            }
            NetEvent::Connected { connection, peer, version } => {
                self.on_connected(now, connection, (peer, version), effects);
            }
            NetEvent::Received { connection, message } => match message {
                message if self.peer_connections.has(connection) => {
                    self.on_osd_message(now, connection, message, effects);
                }
                Message::Request(request) => self.on_request(now, connection, request, effects),
                Message::Control(text) if self.link.connection() == Some(connection) => {
                    self.on_monitor_message(now, connection, &text, effects);
                }
                Message::Control(_) | Message::Reply(_) | Message::Peer(_) | Message::Lease(_) => {
                    self.hang_up(now, connection, effects);
                }
            },
            NetEvent::Closed { connection, reason } => {
                self.on_closed(now, connection, reason == CloseReason::Refused, effects);
            }
        }
    }

    fn on_accepted(
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
                self.on_osd_accepted(now, connection, Member { osd, incarnation }, effects);
            }
        }
    }

    fn on_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (peer, version): (Peer, u16),
        effects: &mut Vec<Effect>,
    ) {
        if self.peer_connections.has(connection) {
            self.on_osd_connected(now, connection, (peer, version), effects);
        } else if self.link.connection() == Some(connection) {
            self.on_monitor_connected(now, connection, peer, effects);
        }
    }

    /// Returns the interval between reports of this OSD.
    fn report_every(&self) -> Duration {
        self.cluster.span(Setting::OsdReport)
    }

    /// Returns the span of the leases that this OSD gives.
    fn lease_span(&self) -> Duration {
        self.notes.lease_allowed(self.cluster.span(Setting::Lease))
    }

    /// Closes a connection. No event of this connection follows.
    fn hang_up(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.on_closed(now, connection, false, effects);
    }

    /// Handles a connection that is gone or could not be made. `refused`: nothing listens at its address.
    fn on_closed(
        &mut self,
        now: Time,
        connection: ConnectionId,
        refused: bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.peer_connections.has(connection) {
            return self.on_osd_closed(now, connection, refused, effects);
        }
        self.drop_waiting_of(connection);
        self.lists.forget(|(over, _, _)| *over == connection);
        self.sessions.close(connection);
        if self.link.connection() == Some(connection) {
            if self.link.serving().is_some() {
                let event = TraceEvent::debug("the connection to the monitor is gone");
                effects.push(Effect::Trace(event));
            }
            self.link.on_lost(now);
        }
    }

    fn on_tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.store.deadline().is_some_and(|deadline| deadline <= now) {
            self.store.apply(now, blockstore::Event::Tick);
        }
        if self.link.deadline().is_some_and(|deadline| deadline <= now) {
            self.move_link(now, effects);
        }
        if self.peer_connections.deadline().is_some_and(|deadline| deadline <= now) {
            self.tick_connections(now, effects);
        }
        if self.peers.deadline().is_some_and(|deadline| deadline <= now) {
            self.tick_peers(now, effects);
        }
        if self.budget.deadline().is_some_and(|deadline| deadline <= now) {
            self.share_repairs(now, effects);
        }
        if self.scrubbing.deadline().is_some_and(|deadline| deadline <= now) {
            self.scrub_turn(now, effects);
        }
        let oldest = self.requests.deadline(self.settings.wait_max);
        if oldest.is_some_and(|deadline| deadline <= now) {
            self.requests.review();
        }
        if self.space_credits.room_due().is_some_and(|deadline| deadline <= now) {
            self.free_room(now, effects);
        }
        if self.phase == Phase::Running && self.disk_watch.at <= now {
            self.watch_disk(now, effects);
            self.tend_stripes(now, effects);
            self.refuse_held(now, effects);
        }
        if self.phase == Phase::Running && self.reports.at() <= now {
            self.reports.set(now + self.report_every());
            self.housekeep(now, effects);
        }
        if self.phase == Phase::Running && self.stats.at <= now {
            self.tell_stats(now, effects);
        }
    }

    /// Checks the age of the disk's oldest operation. A change of the disk's state is reported at once.
    fn watch_disk(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let slow_after = self.cluster.span(Setting::DiskSlow);
        let look = self.disk_watch.look(now, &self.store, slow_after, effects);
        let damaged_count = self.store.damaged_families().count();
        let is_damaged_anew =
            std::mem::replace(&mut self.damaged_told, damaged_count) < damaged_count;
        if look.is_report_due || is_damaged_anew {
            self.reports.set(now);
        }
        match look.next {
            Some(LookStep::Leave) => self.begin_end(now, effects),
            Some(LookStep::Probe(request)) => self.store.ask(now, StoreCall::Probe, *request),
            None => {}
        }
    }

    /// In pools with parity: sends marks, since the room that prepared versions take in the members' journals
    /// is free again once they are committed, and small journals would be full before the next report; asks
    /// primaries for differences that were lost on their way.
    fn tend_stripes(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.requests.on_credit();
        for slot in self.pgs.slots() {
            if self.pgs[slot].keeps_parity() {
                let pg = self.pgs[slot].id();
                let is_due = self.peers.is_untold(pg) && !self.fenced_session_changes(pg);
                if is_due {
                    self.peers.tell(pg);
                }
                self.drive(now, slot, effects, |pg, actions| {
                    if is_due {
                        pg.tell_revision(actions);
                    }
                    pg.tell_mark(actions);
                    pg.ask_for_deltas(actions);
                });
            }
        }
    }

    /// Sends a report, and does other periodic work. Called once per report interval.
    fn housekeep(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.engine.try_again();
        self.tend_families(now);
        self.tend_pgs(now, effects);
        self.scrubbing.begin(now);
        let Node { cluster, store, pgs, peer_connections, lines, .. } = self;
        let explainer = Explainer { cluster, connections: peer_connections };
        lines.trace_states(now, store, pgs, explainer, effects);
        self.reclaim_next(now, effects);
        self.sessions.forget_silent(now, self.settings.sessions_max);
        self.keep_notes(now);
        let has_gaps = self.cluster.begin_report();
        if self.link.serving().is_none() {
            return;
        }
        let Node { cluster, store, pgs, peer_connections, .. } = self;
        let explainer = Explainer { cluster, connections: peer_connections };
        let mut report = report(store, pgs, explainer, &self.disk_watch, self.settings.buffered);
        report.engine = self.engine.report(&self.store).map(Box::new);
        report.turns = self.turns.clone();
        effects.extend(self.engine.ask_statistics().map(Effect::Engine));
        report.scrubs = self.scrubbing.rows_to_tell(now, pgs, cluster);
        report.leftovers = self.reclaim.leftovers();
        self.tell_monitor(&ToMonitor::OsdReport(report), effects);
        self.tell_needs_again(effects);
        if has_gaps {
            self.subscribe(effects);
        }
    }

    /// Sends the monitor the counters that have changed since the last call, if any.
    fn tell_stats(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.stats.at = now + self.cluster.span(Setting::StatsInterval);
        if self.link.serving().is_none() {
            return;
        }
        for stats in self.stats.take_untold(&mut self.store, &self.pgs, &self.cluster) {
            self.tell_monitor(&ToMonitor::OsdStats(stats), effects);
        }
    }

    /// Performs one turn of scrubbing.
    fn scrub_turn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Running {
            return self.scrubbing.end();
        }
        let checked_at = self.notes.checked_at();
        let Turn { recall, looking, born, scrub, metadata, day } =
            self.scrubbing.begin_turn(now, &self.pgs, &self.cluster, checked_at);
        if checked_at == 0 && day > 0 {
            self.notes.set_checked_at(day);
        }
        if let Some(Step::Read { after, page_count }) = metadata {
            let request = StoreRequest::CheckMetadata { after, page_count };
            self.store.ask(now, StoreCall::Metadata, request);
        }
        for slot in recall {
            self.drive(now, slot, effects, |pg, actions| pg.recall_scrubs(actions));
        }
        for slot in looking {
            self.drive(now, slot, effects, |pg, actions| pg.limit_look(now, actions));
        }
        for slot in born {
            self.drive(now, slot, effects, |pg, actions| pg.begin_scrub_schedule(day, actions));
        }
        let Some(Go { slot, begin, bytes, repairs }) = scrub else { return };
        let has_begun = self.drive(now, slot, effects, |pg, actions| {
            let begun = begin
                .map(|Begin { deep, on_demand }| pg.begin_scrub(deep, on_demand, day, actions));
            pg.scrub(bytes, repairs, day, actions);
            begun == Some(true)
        });
        if has_begun {
            self.scrubbing.on_begun(self.pgs[slot].id());
        }
    }

    /// Handles the end of a portion of the metadata's check.
    fn on_metadata_read(
        &mut self,
        now: Time,
        result: Result<Answer, StoreError>,
        effects: &mut Vec<Effect>,
    ) {
        let Ok(Answer::Metadata(report)) = result else {
            unreachable!("the store never refuses it")
        };
        report.findings.iter().for_each(|finding| trace_metadata(finding, effects));
        if let Some(ended) = self.scrubbing.metadata.on_portion(&report) {
            trace_checked(ended, effects);
            if let Some(day) = self.scrubbing.day(now) {
                self.notes.set_checked_at(day);
            }
        }
    }

    /// Passes an operator's decision about a damaged block on to its PG, if it is of the PG's epoch. `wrong`:
    /// the damage, as it was reported.
    fn on_fix(
        &mut self,
        now: Time,
        (id, epoch): (PgId, Epoch),
        request: FixRequest,
        wrong: &str,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.pgs.slot(id).filter(|_| self.phase == Phase::Running) else { return };
        if self.pgs[slot].entry().is_none_or(|entry| entry.epoch != epoch) {
            return;
        }
        let is_as_seen = |finding: &Finding| faults_text(finding) == wrong;
        self.drive(now, slot, effects, |pg, actions| pg.fix(request, is_as_seen, actions));
        // Looks have a time limit, which the turns check.
        self.scrubbing.begin(now);
    }

    /// Returns the scrub notes of the PGs that this OSD leads, as far as they are known.
    pub fn scrubs(&self) -> impl Iterator<Item = (PgId, &ScrubNote)> {
        let known = self.pgs.iter().filter(|(_, pg)| pg.knows_scrubs());
        known.map(|(_, pg)| (pg.id(), pg.scrub_note()))
    }

    /// Returns the newest activation of a PG that this OSD has recorded as an acting member.
    pub fn activation(&self, pg: PgId) -> Option<Activation> {
        let record = self.pgs.get(pg)?.record()?;
        record.entry.acting_member(self.identity.osd)?;
        record.history.last().copied()
    }

    /// Sets the time of day, in milliseconds since 1970. Only the schedule of scrubs uses it, and what
    /// objects tell of their last change.
    pub fn set_time_of_day(&mut self, now: Time, unix_ms: u64) {
        self.scrubbing.set_time_of_day(now, unix_ms);
    }

    fn on_shutdown(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Opening => self.stop(StopReason::Shutdown, effects),
            Phase::Running => self.begin_end(now, effects),
            Phase::Draining { .. } | Phase::Syncing | Phase::Closing | Phase::Stopped => {
                self.disk_watch.stay_away();
            }
        }
    }

    /// Begins to stop: waits for started requests to end, then closes the store.
    fn begin_end(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.phase = Phase::Draining { until: now + self.settings.wait_max };
        self.refuse_all_waiting(effects);
    }

    fn stop(&mut self, reason: StopReason, effects: &mut Vec<Effect>) {
        self.phase = Phase::Stopped;
        effects.push(Effect::Stop(reason));
    }

    /// Restores the invariants that hold between events.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            self.take_store_effects(now, effects);
            if self.phase == Phase::Stopped {
                return;
            }
            if self.phase == Phase::Closing {
                // The next run in this process must not meet operations of this one.
                match self.disk_watch.is_leaving() {
                    false => return self.stop(StopReason::Shutdown, effects),
                    true if self.store.is_idle() => return self.stop(StopReason::Stalled, effects),
                    true => {}
                }
            }
            if self.requests.is_store_awaited() && !self.store.is_congested() {
                self.requests.on_store();
            }
            self.look_for_space(now);
            self.settle_engine_lag(now, effects);
            if let Phase::Draining { until } = self.phase
                && (!self.requests.has_started() || until <= now)
            {
                self.on_drained(now, effects);
            }
            if std::mem::take(&mut self.review_is_due) {
                self.review_all(now, effects);
                self.reports.await_active();
            }
            if self.requests.take_review() {
                self.judge_waiting(now, effects);
            } else if let Some(rest) = self.requests.take_cut_due() {
                self.judge_and_go(now, rest, effects);
            } else if self.requests.take_credit_due() {
                self.judge_first_waiting(now, effects);
            } else if !self.store.has_effects() {
                break;
            }
        }
        assert!(!self.pgs.has_actions());
        self.tell_new_needs(effects);
        self.send_saw(effects);
        self.renew_for_space(now, effects);
    }

    /// Leaves the cluster: started requests have finished, or the time limit for them has passed.
    fn on_drained(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.phase = Phase::Syncing;
        self.leave_all(now, effects);
        self.surrender_all(effects);
        self.tell_stats(now, effects);
        self.tell_monitor(&ToMonitor::OsdLeaves, effects);
        self.link.end();
        // A later run uses this note to detect a state store that was restored from a backup, and to
        // recover it.
        self.keep_notes(now);
        self.store.ask(now, StoreCall::LastSync, StoreRequest::Sync);
    }

    fn take_store_effects(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.store.has_effects() {
            let mut batch = self.store.take_effects();
            for effect in batch.drain(..) {
                if self.phase != Phase::Stopped {
                    self.on_store_effect(now, effect, effects);
                }
            }
            self.store.give_back(batch);
        }
    }

    fn on_store_effect(
        &mut self,
        now: Time,
        effect: blockstore::Effect,
        effects: &mut Vec<Effect>,
    ) {
        match effect {
            blockstore::Effect::Disk(effect) => effects.push(Effect::Disk(effect)),
            blockstore::Effect::Engine(effect) => effects.push(Effect::Engine(effect)),
            blockstore::Effect::Opened => self.on_store_opened(now, effects),
            blockstore::Effect::Stopped { reason } => {
                self.stop(StopReason::Store(reason), effects);
            }
            blockstore::Effect::Done { id, result } => match StoreCall::of(id) {
                StoreCall::Pg(slot, call) => {
                    self.drive(now, slot, effects, |pg, actions| {
                        pg.store_done(call, result, actions);
                    });
                }
                StoreCall::ClusterNote => self.notes.on_written(result.is_ok()),
                StoreCall::StateNote => {
                    self.state.on_noted(result.is_ok());
                    if result.is_ok() {
                        self.tidy_state(now);
                    }
                }
                StoreCall::Reclaim => self.on_reclaim_answer(now, result, effects),
                StoreCall::Metadata => self.on_metadata_read(now, result, effects),
                StoreCall::Family(pool) => {
                    self.on_family_created(now, pool, result.map(drop), effects);
                }
                StoreCall::Probe => self.disk_watch.on_probed(&self.store, result.is_ok()),
                StoreCall::LastSync => {
                    self.store.ask(now, StoreCall::LastRecord, StoreRequest::Record);
                }
                StoreCall::LastRecord => self.phase = Phase::Closing,
            },
        }
    }

    /// Handles the end of the store's recovery: if this is the store of this OSD, the node joins the
    /// cluster.
    fn on_store_opened(&mut self, now: Time, effects: &mut Vec<Effect>) {
        assert!(self.phase == Phase::Opening);
        if let Err(reason) = self.check_store() {
            return self.stop(StopReason::Store(reason), effects);
        }
        if self.store.has_unsettled_damage() {
            let what = "the store is suspect: recovery found damage that may have lost writes";
            effects.push(Effect::Trace(TraceEvent::warn(what)));
        }
        for (pg, why) in self.notes.damaged() {
            let event = TraceEvent::warn("the note of a PG cannot be read: the PG is suspect");
            effects.push(Effect::Trace(event.with("pg", pg).with("why", why)));
        }
        self.phase = Phase::Running;
        let is_forgotten = planted::on(Bug::LongerLeaseForgotten);
        let span = if is_forgotten { LEASE_DEFAULT } else { self.notes.lease_span() };
        self.leases = Leases::new(now, span);
        self.space_credits = SpaceCredits::new();
        self.reports.set(now + self.report_every());
        self.link.start(now);
        self.move_link(now, effects);
    }

    /// Checks that the store belongs to this OSD, and reads its notes.
    fn check_store(&mut self) -> Result<(), String> {
        let found = self.store.identity();
        let Identity { cluster, osd, store, path, .. } = &self.identity;
        if found.cluster != *cluster {
            let found = found.cluster;
            return Err(format!("{path} belongs to cluster {found}, not to {cluster}"));
        }
        if found.osd != *osd || found.store.to_string() != *store {
            let (other, id) = (found.osd, found.store);
            return Err(format!("{path} holds store {id} of {other}, not store {store} of {osd}"));
        }
        self.state = StateLog::read(self.store.notes());
        self.notes = Notes::read(&self.store, *osd)
            .map_err(|why| format!("the cluster note in {path} cannot be read: {why}"))?;
        Ok(())
    }

    /// Writes the note about the cluster if it is out of date and not already being written.
    fn keep_notes(&mut self, now: Time) {
        self.tidy_state(now);
        if self.notes.is_due() && self.cluster.me().is_some() {
            let lease = self.cluster.span(Setting::Lease);
            let bytes = self.notes.begin(self.identity.cluster, self.cluster.map(), lease);
            let request = StoreRequest::Note { key: NoteKey::Cluster, bytes };
            self.store.ask(now, StoreCall::ClusterNote, request);
        }
    }

    /// Rewrites the log of the state store's copy if it is too long.
    fn tidy_state(&mut self, now: Time) {
        let notes = self.state.tidy();
        self.note_state(now, notes);
    }

    fn note_state(&mut self, now: Time, notes: Vec<StoreRequest>) {
        for note in notes {
            self.store.ask(now, StoreCall::StateNote, note);
        }
    }

    // ---- PGs

    /// Calls into a PG and carries out the actions that it requests.
    fn drive<R>(
        &mut self,
        now: Time,
        slot: PgSlot,
        effects: &mut Vec<Effect>,
        call: impl FnOnce(&mut Pg, &mut Vec<Action>) -> R,
    ) -> R {
        assert!(!self.pgs.has_actions());
        let result = self.pgs.call(slot, call);
        self.carry_out(now, slot, effects);
        result
    }

    /// Handles the monitor's list of slow disks. The list affects only which OSDs serve reads.
    fn set_slow_disks(&mut self, now: Time, disks: SlowDisks, effects: &mut Vec<Effect>) {
        let slots: Vec<PgSlot> = self.pgs.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.drive(now, slot, effects, |pg, actions| pg.set_slow_disks(&disks, actions));
        }
        self.pgs.set_slow_disks(disks);
    }

    /// Carries out the actions of the PG in `slot`, in order, including further actions that result from
    /// them.
    fn carry_out(&mut self, now: Time, slot: PgSlot, effects: &mut Vec<Effect>) {
        while self.pgs.has_actions() {
            let mut batch = self.pgs.take_actions();
            for action in batch.drain(..) {
                self.carry_out_one(now, slot, action, effects);
            }
            self.pgs.give_back(batch);
        }
    }

    fn carry_out_one(
        &mut self,
        now: Time,
        slot: PgSlot,
        action: Action,
        effects: &mut Vec<Effect>,
    ) {
        match action {
            Action::StoreUnpromised { call, request }
                if !self.may_take_repair(now, slot, &request) =>
            {
                let full = Err(StoreError::Full);
                self.pgs.call(slot, |pg, actions| pg.store_done(call, full, actions));
            }
            Action::Store { call, request } | Action::StoreUnpromised { call, request } => {
                self.stats.on_asked(&request);
                self.store.ask(now, StoreCall::Pg(slot, call), request);
            }
            Action::List { call, listing } => {
                let keys = self.list(slot, &listing);
                self.pgs.call(slot, |pg, actions| pg.listed(call, keys, actions));
            }
            Action::ListNewer { call, newer_than, after, count_max } => {
                let (blocks, is_last) = self.list_newer(slot, newer_than, after, count_max);
                self.pgs.call(slot, |pg, actions| pg.listed_newer(call, blocks, is_last, actions));
            }
            Action::Send { to, body } => {
                assert!(to != self.identity.osd, "a PG tells itself by a call");
                self.send(now, slot, to, body, effects);
            }
            Action::SendDelta { to, delta } => {
                if let Some(entry) = self.pgs[slot].entry().cloned() {
                    self.send_delta(&entry, &to, *delta, effects);
                }
            }
            Action::Need(need) => self.on_need(slot, need),
            Action::Reply { ticket, outcome } => {
                self.on_answer(now, slot, ticket, outcome, effects);
            }
            Action::Activated => {
                self.lines.trace_active(now, &self.pgs[slot], effects);
                self.requests.review();
                self.budget.begin(now);
                self.reports.on_active(now);
            }
            Action::Absolved => {
                self.losses.remove(&self.pgs[slot].id());
                self.review_is_due = true;
            }
            Action::Scrub(event) => {
                if let ScrubEvent::Fixed(_) = event {
                    self.reports.bring_forward(now);
                }
                trace_scrub(self.pgs[slot].id(), &event, effects);
            }
        }
    }

    fn list(&self, slot: PgSlot, listing: &Listing) -> Vec<BlockKey> {
        let pool = self.pgs[slot].id().pool;
        let (first, last) = listing.hashes;
        let blocks = self.store.blocks(pool, first, last, listing.after);
        let wanted = blocks.filter(|(key, _, is_tombstone)| {
            key.image == listing.image && key.stripe >= listing.from && !is_tombstone
        });
        wanted.map(|(key, ..)| key).take(listing.count_max).collect()
    }

    /// Returns blocks of a PG with versions above `newer_than`, including tombstones, and whether the list
    /// ends with them.
    fn list_newer(
        &self,
        slot: PgSlot,
        newer_than: Version,
        after: Option<BlockKey>,
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

    /// Sends a message of the PG in `slot` to another member of its entry.
    fn send(
        &mut self,
        now: Time,
        slot: PgSlot,
        to: OsdId,
        mut body: PeerBody,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.pgs[slot].entry().cloned() else { return };
        if matches!(body, PeerBody::Mark { .. }) && self.fenced_session_changes(entry.pg) {
            self.peers.leave_untold(entry.pg);
        } else if let PeerBody::Part { revision, .. }
        | PeerBody::Skip { revision, .. }
        | PeerBody::Mark { revision, .. } = &mut body
        {
            *revision = self.cluster.pool(entry.pg.pool).map_or(*revision, |known| known.revision);
        }
        if is_query(&body) {
            let query = Overdue { pg: entry.pg, osd: to, epoch: entry.epoch };
            self.peers.on_query_sent(now, query, giver_span(self.lease_span()));
        }
        self.send_to_member(&entry, to, body, effects);
    }

    fn on_need(&mut self, slot: PgSlot, need: pg::Need) {
        let Some(entry) = self.pgs[slot].entry() else { return };
        let what = match need {
            pg::Need::NewEpoch => Need::NewEpoch,
            pg::Need::Complete(member) => Need::Complete(member),
            pg::Need::Failed(member, why) => Need::Failed(member, why),
            pg::Need::Return(member, position) => Need::Return(member, position),
            pg::Need::CallBack(osd) => Need::CallBack(osd),
        };
        self.peers.need(entry.pg, entry.epoch, what);
    }
}
