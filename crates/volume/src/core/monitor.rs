//! The connection to a monitor, which sends the map and opens sessions. I/O continues without the connection.

use base::{ConnectionId, SessionId, Time, TraceEvent};
use cluster::message::{Failure, FromMonitor, ToMonitor};
use cluster::monitor_link::LinkStep;
use format::door::{CloseReason, NetEffect, Peer, Role};
use format::wire::Message;

use super::ClientCore;
use crate::monitor_contact::Farewell;
use crate::timers::Timer;
use crate::volume::{Attachment, Wants};
use crate::{Attached, Effect, Used, VolumeHandle};

impl ClientCore {
    /// Asks a monitor to attach the volume, now or once one is connected.
    pub(crate) fn ask_open(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let volume = &self.volumes[&handle];
        let Attachment::Opening { ask } = volume.attachment else { return };
        let (name, client) = (volume.name.clone(), self.settings.client.clone());
        let message = match volume.wants {
            Wants::Volume { read_only, lock } => {
                ToMonitor::OpenSession { request: ask, image: name, read_only, lock, client }
            }
            Wants::Pool => ToMonitor::OpenPool { request: ask, pool: name, client },
        };
        self.need_monitor(now, effects);
        if self.monitor.link.open().is_some() {
            self.tell_monitor(&message, effects);
        }
    }

    /// Connects to a monitor, unless one is connected or being connected.
    pub(crate) fn need_monitor(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.monitor.link.is_idle() {
            self.monitor.link.start(now);
            self.move_monitor_link(now, effects);
        }
    }

    /// Informs the monitor that a volume is detached: now, and again on each new connection until a monitor
    /// is known to have received the message. Later attaches take effect after the detach.
    pub(crate) fn close_session(
        &mut self,
        session: SessionId,
        unanswered: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.farewells.push(Farewell { session, unanswered, last_ask: self.last_ask });
        if self.monitor.link.open().is_some() {
            self.tell_monitor(&ToMonitor::CloseSession { session, unanswered }, effects);
        }
    }

    /// Reports to the monitor, for `status`, how many acknowledged bytes of the volume wait for space in the
    /// pool, if the number has changed.
    pub(crate) fn tell_waiting(&mut self, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        if self.monitor.link.open().is_none() {
            return;
        }
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        let waiting_bytes = volume.waiting_bytes();
        if std::mem::replace(&mut volume.told_waiting, waiting_bytes) == waiting_bytes {
            return;
        }
        let Some(attached) = volume.attached() else { return };
        let session = attached.session;
        self.tell_monitor(&ToMonitor::SessionWaits { session, waiting_bytes }, effects);
    }

    /// Whether a monitor is known to have received the close of every closed session. Then any later attach
    /// of these volumes, by any client, takes effect after the close.
    pub fn is_parted(&self) -> bool {
        self.farewells.is_empty()
    }

    /// Returns the addresses of the monitors, for processes that start later, if a monitor sent them and they
    /// differ from those returned by the previous call.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        self.monitor.link.take_told()
    }

    /// Drops the closes that the monitor has received: a later attach was answered.
    fn drop_farewells(&mut self, answered: u64) {
        self.farewells.retain(|farewell| farewell.last_ask >= answered);
    }

    /// Sets `Timer::Monitor` to the deadline of the link.
    fn set_monitor_alarm(&mut self) {
        if let Some(before) = self.monitor.alarm.take() {
            self.timers.disarm(before, Timer::Monitor);
        }
        self.monitor.alarm = self.monitor.link.deadline();
        if let Some(at) = self.monitor.alarm {
            self.timers.arm(at, Timer::Monitor);
        }
    }

    /// Handles the expiry of `Timer::Monitor`.
    pub(crate) fn on_monitor_alarm(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.monitor.alarm = None;
        self.move_monitor_link(now, effects);
    }

    /// Carries out what is due on the link to the monitor.
    fn move_monitor_link(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.monitor.link.step(now) {
            Some(LinkStep::Connect { address, until }) => {
                let connection = self.next_connection();
                self.monitor.link.connecting(connection, until);
                effects.push(Effect::Net(NetEffect::Connect { connection, address }));
            }
            Some(LinkStep::Ask) => self.tell_monitor(&ToMonitor::Ping, effects),
            Some(LinkStep::HangUp { connection }) => self.leave_monitor(now, connection, effects),
            None => {}
        }
        self.set_monitor_alarm();
    }

    pub(crate) fn on_monitor_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        if !matches!(peer.role, Role::Monitor(_)) {
            self.leave_monitor(now, connection, effects);
            return;
        }
        self.monitor.link.on_connected(now, None);
        self.set_monitor_alarm();
        self.monitor.untrusted_count = 0;
        let have = self.routes.revisions();
        self.tell_monitor(&ToMonitor::Subscribe { have }, effects);
        let (role, pid) = (self.settings.client.clone(), self.settings.pid);
        let (host, address) = (self.settings.host.clone(), self.settings.address.clone());
        let answers_probes = true;
        let introduce = ToMonitor::Introduce { role, pid, host, address, answers_probes };
        self.tell_monitor(&introduce, effects);
        for Farewell { session, unanswered, .. } in self.farewells.clone() {
            self.tell_monitor(&ToMonitor::CloseSession { session, unanswered }, effects);
        }
        for handle in self.volumes.keys().copied().collect::<Vec<_>>() {
            match &self.volumes[&handle].attachment {
                Attachment::Opening { .. } => self.ask_open(now, handle, effects),
                Attachment::Open(attached) => {
                    let (session, reign) = (attached.session, attached.reign);
                    let turn = connection.get();
                    self.tell_monitor(&ToMonitor::ResumeSession { session, reign, turn }, effects);
                    self.volumes.get_mut(&handle).expect("listed just now").told_waiting = 0;
                    self.tell_waiting(handle, effects);
                }
                Attachment::Ended => {}
            }
        }
    }

    pub(crate) fn on_monitor_closed(
        &mut self,
        now: Time,
        reason: CloseReason,
        effects: &mut Vec<Effect>,
    ) {
        if std::mem::take(&mut self.monitor.is_told) {
            let what = "the connection to the monitor is lost: I/O continues; connecting to another monitor";
            effects.push(Effect::Trace(TraceEvent::warn(what)));
        }
        self.monitor.resubscribed = false;
        self.monitor.link.on_lost(now);
        self.set_monitor_alarm();
        if let CloseReason::Untrusted(why) = reason {
            self.monitor.untrusted_count += 1;
            if self.monitor.untrusted_count >= self.settings.monitors.len() {
                self.refuse_opening(&why, effects);
            }
        }
    }

    /// Fails all waiting attaches: no monitor trusts this client, so retrying does not help.
    fn refuse_opening(&mut self, why: &str, effects: &mut Vec<Effect>) {
        let opening = |attachment: &Attachment| matches!(attachment, Attachment::Opening { .. });
        let waiting = self.volumes.iter().filter(|(_, volume)| opening(&volume.attachment));
        for handle in waiting.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            let failure = Failure {
                code: "untrusted".to_string(),
                message: format!("the monitor refused the connection: {why}"),
                hint: "check that the file `key` belongs to the monitor's cluster".to_string(),
            };
            self.end_open(handle, Err(failure), effects);
        }
    }

    /// Closes the connection and moves on to the next monitor.
    fn leave_monitor(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.on_monitor_closed(now, CloseReason::Reset, effects);
    }

    pub(crate) fn on_monitor_message(
        &mut self,
        now: Time,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let Some(connection) = self.monitor.link.open() else { return };
        let parsed = match &message {
            Message::Control(text) => serde_json::from_str::<FromMonitor>(text).ok(),
            _ => None,
        };
        let Some(message) = parsed else {
            self.leave_monitor(now, connection, effects);
            return;
        };
        self.monitor.link.on_message(now);
        if message != FromMonitor::Pong {
            self.monitor.link.on_served();
            if !std::mem::replace(&mut self.monitor.is_told, true) {
                effects.push(Effect::Trace(TraceEvent::info("a monitor answers")));
            }
        }
        match message {
            FromMonitor::Map(delta) => {
                let result = self.routes.apply(delta);
                match result {
                    Ok(()) => self.monitor.resubscribed = false,
                    Err(gap) if !self.monitor.resubscribed => {
                        self.monitor.resubscribed = true;
                        let mut have = self.routes.revisions();
                        have.remove(&gap.pool);
                        self.tell_monitor(&ToMonitor::Subscribe { have }, effects);
                    }
                    Err(_) => {}
                }
                self.end_fenced(effects);
                self.on_map_changed(now, effects);
            }
            FromMonitor::Monitors { addresses } => self.monitor.link.learn(addresses),
            FromMonitor::Probe { nonce } => self.tell_monitor(&ToMonitor::Alive { nonce }, effects),
            FromMonitor::SessionOpened { request, session, image, locked, lazy, reign } => {
                let (used, lazy) = (Used::Image(image), locked && lazy);
                self.on_opened(request, Attached { session, reign, used, locked, lazy }, effects);
            }
            FromMonitor::PoolOpened { request, session, pool, reign } => {
                let used = Used::Pool(pool);
                let attached = Attached { session, reign, used, locked: false, lazy: false };
                self.on_opened(request, attached, effects);
            }
            FromMonitor::SessionRefused { request, error } => {
                self.drop_farewells(request);
                if let Some(handle) = self.opening(request) {
                    self.end_open(handle, Err(error), effects);
                }
            }
            FromMonitor::SessionClosed { session } => {
                self.farewells.retain(|farewell| farewell.session != session);
            }
            FromMonitor::SessionEnded { session } => {
                self.farewells.retain(|farewell| farewell.session != session);
                if let Some(handle) = self.volume_of(session) {
                    self.end_session(handle, effects);
                }
            }
            // The other messages are for OSDs and commands.
            _ => {}
        }
    }

    fn on_opened(&mut self, request: u64, attached: Attached, effects: &mut Vec<Effect>) {
        self.drop_farewells(request);
        match self.opening(request) {
            Some(handle) => self.end_open(handle, Ok(attached), effects),
            None => self.close_session(attached.session, false, effects),
        }
    }

    fn end_fenced(&mut self, effects: &mut Vec<Effect>) {
        let fenced = |attached: &Attached| self.routes.is_fenced(attached.pool(), attached.session);
        let attached = self.volumes.iter().filter_map(|(handle, volume)| {
            volume.attached().filter(|attached| fenced(attached)).map(|_| *handle)
        });
        for handle in attached.collect::<Vec<_>>() {
            self.end_session(handle, effects);
        }
    }

    fn opening(&self, asked: u64) -> Option<VolumeHandle> {
        let asks = |attachment: &Attachment| *attachment == Attachment::Opening { ask: asked };
        let found = self.volumes.iter().find(|(_, volume)| asks(&volume.attachment));
        found.map(|(handle, _)| *handle)
    }

    fn volume_of(&self, session: SessionId) -> Option<VolumeHandle> {
        let is = |attached: &Attached| attached.session == session;
        let found = self.volumes.iter().find(|(_, volume)| volume.attached().is_some_and(is));
        found.map(|(handle, _)| *handle)
    }

    fn tell_monitor(&mut self, message: &ToMonitor, effects: &mut Vec<Effect>) {
        let connection = self.monitor.link.open().expect("only a connected monitor is told");
        let text = serde_json::to_string(message).expect("our own types are JSON");
        let message = Message::Control(text);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }
}
