//! The node's connection to a monitor: joining the cluster, and handling the monitor's messages.

use base::{ConnectionId, Incarnation, StripeIndex, Time, TraceEvent};
use cluster::message::{FromMonitor, ToMonitor};
use cluster::monitor_link::LinkStep;
use cluster::settings::Setting;
use format::door::{NetEffect, Peer, Role};
use format::wire::Message;
use pg::FixRequest;

use super::Node;

use crate::state_rollback::{RECOVERY_SPAN, known_state, seen};
use crate::{Effect, StopReason};

impl Node {
    /// Handles a completed handshake with a monitor: this OSD requests to join.
    pub(super) fn on_monitor_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        self.sessions.open(now, connection, peer);
        let is_ours = peer.cluster == self.identity.cluster;
        if !is_ours || !matches!(peer.role, Role::Monitor(_)) {
            return self.hang_up(now, connection, effects);
        }
        self.link.on_connected(now, Some(now + self.settings.boot_max));
        let boot = ToMonitor::OsdBoot {
            osd: self.identity.osd,
            store: self.identity.store.clone(),
            addresses: self.identity.addresses.clone(),
            peer_addresses: self.identity.peer_addresses.clone(),
            pid: self.identity.pid,
            path: self.identity.path.clone(),
            host: self.identity.host.clone(),
            supervised: self.identity.supervised,
            incarnation: self.cluster.incarnation(),
            suspect: self.store.has_unsettled_damage() || self.notes.has_damaged(),
            stalled: self.disk_watch.is_stalled(),
            damaged_pools: self.store.damaged_families().collect(),
            slow: self.pgs.is_slow_here(),
            seen: seen(&self.cluster, &self.notes, self.state.copy()),
            engine: Some(self.engine.is_open()),
        };
        self.tell_monitor(&boot, effects);
    }

    /// Handles a message from the monitor.
    pub(super) fn on_monitor_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        text: &str,
        effects: &mut Vec<Effect>,
    ) {
        self.link.on_message(now);
        // A newer monitor may send messages that this version does not support: ignore them.
        let Ok(message) = serde_json::from_str::<FromMonitor>(text) else { return };
        match message {
            FromMonitor::OsdBooted { incarnation } => {
                self.on_booted(now, incarnation, effects);
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
            FromMonitor::Map(delta) => self.on_map(now, delta, effects),
            FromMonitor::Monitors { addresses } => self.link.learn(addresses),
            FromMonitor::Scrub { pgs, deep, metadata } => {
                pgs.into_iter().for_each(|pg| self.scrubbing.ask(pg, deep));
                if metadata {
                    self.scrubbing.metadata.ask();
                }
                self.scrubbing.begin(now);
            }
            FromMonitor::Fix { pg, epoch, image, stripe, choice, number, wrong } => {
                let stripe = StripeIndex::new(stripe);
                let request = FixRequest { image, stripe, choice, number };
                self.on_fix(now, (pg, epoch), request, &wrong, effects);
            }
            FromMonitor::Probe { nonce } => self.tell_monitor(&ToMonitor::Alive { nonce }, effects),
            FromMonitor::Active { pgs } => self.reclaim.on_active(&pgs),
            FromMonitor::ClearPool { pool, .. } => self.on_clear_pool(now, pool, effects),
            FromMonitor::StateCopy(part) => {
                let notes = self.state.take(part);
                self.note_state(now, notes);
            }
            FromMonitor::TellAll => self.tell_all(now, connection, effects),
            FromMonitor::Settings { changed } => {
                self.cluster.set_settings(changed);
                effects.push(Effect::LogLevel(self.cluster.log_level()));
                self.notes.want_lease(self.cluster.span(Setting::Lease));
                self.reports.bring_forward(now + self.report_every());
                let told_every = self.cluster.span(Setting::StatsInterval);
                self.stats.at = self.stats.at.min(now + told_every);
            }
            FromMonitor::SlowDisks { osds, stalled } => {
                let (slow, stalled) = (osds.into_iter().collect(), stalled.into_iter().collect());
                self.set_slow_disks(now, pg::SlowDisks { slow, stalled }, effects);
            }
            FromMonitor::StatsSaved { sequence } => self.stats.on_saved(sequence),
            // The arrival of any message shows that the monitor is alive; there is nothing else to do.
            FromMonitor::Pong => {}
            // An OSD never sends the requests that these messages answer.
            FromMonitor::SessionOpened { .. }
            | FromMonitor::PoolOpened { .. }
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

    fn on_booted(&mut self, now: Time, incarnation: Incarnation, effects: &mut Vec<Effect>) {
        self.link.on_served();
        if self.cluster.join(incarnation) {
            effects.push(Effect::Joined { incarnation });
            let event = TraceEvent::info("joined the cluster");
            effects.push(Effect::Trace(event.number("run", incarnation.get())));
        }
        self.subscribe(effects);
        self.review_all(now, effects);
        self.update_connections(now, effects);
        self.tell_unreachable_again(now, effects);
        self.requests.review();
        self.reports.set(now);
        self.stats.begin_connection(now);
        self.scrubbing.begin_connection();
    }

    /// Sends everything that this OSD has recorded to a monitor that recovers the state store.
    fn tell_all(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.link.connection() != Some(connection) || self.link.serving().is_some() {
            return;
        }
        self.link.await_answer(now + RECOVERY_SPAN);
        let mut parts = known_state(&self.store, &self.cluster, &self.notes, self.state.copy());
        let last = parts.pop();
        for part in parts {
            self.tell_monitor(&ToMonitor::OsdTells { part, more: true }, effects);
        }
        let part = last.unwrap_or_default();
        self.tell_monitor(&ToMonitor::OsdTells { part, more: false }, effects);
    }

    /// Sends a message to the monitor, if there is a connection. Lost messages are sent again over the next
    /// connection.
    pub(super) fn tell_monitor(&self, message: &ToMonitor, effects: &mut Vec<Effect>) {
        let Some(connection) = self.link.open() else { return };
        let text = serde_json::to_string(message).expect("plain data with text keys");
        let message = Message::Control(text);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }

    /// Performs the next step that is due on the link to the monitor.
    pub(super) fn move_link(&mut self, now: Time, effects: &mut Vec<Effect>) {
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
}
