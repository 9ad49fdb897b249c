//! The connection to a monitor: the map and the sessions come over it. I/O goes on without it.

use base::{ConnectionId, Duration, SessionId, Time};
use cluster::message::{Failure, FromMonitor, ToMonitor};
use format::door::{CloseReason, NetEffect, Peer, Role};
use format::wire::Message;

use crate::core::{Attachment, ClientCore, Farewell};
use crate::link::{CONNECT_DELAY_MAX, CONNECT_DELAY_MIN};
use crate::timers::Timer;
use crate::{Attached, Effect, VolumeHandle};

/// Addresses of monitors that are remembered besides the configured ones.
const ADDRESS_COUNT_MAX: usize = 800;

/// Where the connection to the monitors stands.
pub(crate) struct MonitorLink {
    state: MonitorState,
    /// The next delay; back to the shortest with each message.
    delay: Duration,
    /// Where monitors listen, as one of them said.
    told: Vec<String>,
    /// They are others than before, and nobody has taken note of that.
    is_news: bool,
    /// Which address is tried next, modulo their number: first those that were told.
    address: usize,
    /// Handshakes that failed one after another for want of trust.
    untrusted_count: usize,
    /// A first map was asked for after a gap and has not come.
    resubscribed: bool,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MonitorState {
    /// Nobody needs it yet.
    Idle,
    /// Waits for `Timer::Monitor`.
    Waiting,
    /// Waits for the handshake.
    Connecting { connection: ConnectionId },
    /// Serves.
    Open { connection: ConnectionId },
}

impl MonitorLink {
    pub(crate) fn new() -> MonitorLink {
        MonitorLink {
            state: MonitorState::Idle,
            delay: CONNECT_DELAY_MIN,
            told: Vec::new(),
            is_news: false,
            address: 0,
            untrusted_count: 0,
            resubscribed: false,
        }
    }

    /// Whether this is the connection to a monitor.
    pub(crate) fn is(&self, id: ConnectionId) -> bool {
        match self.state {
            MonitorState::Idle | MonitorState::Waiting => false,
            MonitorState::Connecting { connection } | MonitorState::Open { connection } => {
                connection == id
            }
        }
    }
}

impl ClientCore {
    /// Asks the monitor to attach the volume, now or when one is connected.
    pub(crate) fn ask_open(&mut self, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let volume = &self.volumes[&handle];
        let Attachment::Opening { ask } = volume.attachment else { return };
        let message = ToMonitor::OpenSession {
            request: ask,
            image: volume.name.clone(),
            read_only: volume.read_only,
            lock: volume.wants_lock,
            client: self.settings.client.clone(),
        };
        self.need_monitor(effects);
        if matches!(self.monitor.state, MonitorState::Open { .. }) {
            self.tell_monitor(&message, effects);
        }
    }

    /// Connects to a monitor, unless that is done or under way.
    pub(crate) fn need_monitor(&mut self, effects: &mut Vec<Effect>) {
        match self.monitor.state {
            MonitorState::Idle => self.connect_monitor(effects),
            MonitorState::Waiting | MonitorState::Connecting { .. } | MonitorState::Open { .. } => {
            }
        }
    }

    /// Tells the monitor that a volume is detached: now, and again on each new connection until
    /// one is known to have heard it. What is attached later is attached after that.
    pub(crate) fn close_session(
        &mut self,
        session: SessionId,
        unanswered: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.farewells.push(Farewell { session, unanswered, last_ask: self.last_ask });
        if matches!(self.monitor.state, MonitorState::Open { .. }) {
            self.tell_monitor(&ToMonitor::CloseSession { session, unanswered }, effects);
        }
    }

    /// Whether a monitor is known to have heard of every session that was given back: who attaches
    /// one of their volumes now, from wherever, comes after them.
    pub fn is_parted(&self) -> bool {
        self.farewells.is_empty()
    }

    /// Where monitors listen, if one of them said so and it is another list than the one taken before:
    /// for those who start later.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        std::mem::take(&mut self.monitor.is_news).then(|| self.monitor.told.clone())
    }

    /// The monitor answered an ask: it has heard what it was told before that.
    fn drop_farewells(&mut self, answered: u64) {
        self.farewells.retain(|farewell| farewell.last_ask >= answered);
    }

    pub(crate) fn connect_monitor(&mut self, effects: &mut Vec<Effect>) {
        let addresses: Vec<&String> =
            self.monitor.told.iter().chain(&self.settings.monitors).collect();
        let address = addresses[self.monitor.address % addresses.len()].clone();
        let connection = self.next_connection();
        self.monitor.state = MonitorState::Connecting { connection };
        effects.push(Effect::Net(NetEffect::Connect { connection, address }));
    }

    pub(crate) fn monitor_connected(
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
        self.monitor.state = MonitorState::Open { connection };
        self.monitor.untrusted_count = 0;
        let have = self.routes.revisions();
        self.tell_monitor(&ToMonitor::Subscribe { have }, effects);
        let (role, pid) = (self.settings.client.clone(), self.settings.pid);
        let address = self.settings.address.clone();
        self.tell_monitor(&ToMonitor::Introduce { role, pid, address }, effects);
        for Farewell { session, unanswered, .. } in self.farewells.clone() {
            self.tell_monitor(&ToMonitor::CloseSession { session, unanswered }, effects);
        }
        for handle in self.volumes.keys().copied().collect::<Vec<_>>() {
            match &self.volumes[&handle].attachment {
                Attachment::Opening { .. } => self.ask_open(handle, effects),
                Attachment::Open(attached) => {
                    let (session, reign) = (attached.session, attached.reign);
                    self.tell_monitor(&ToMonitor::ResumeSession { session, reign }, effects);
                }
                Attachment::Ended => {}
            }
        }
    }

    pub(crate) fn monitor_lost(
        &mut self,
        now: Time,
        reason: CloseReason,
        effects: &mut Vec<Effect>,
    ) {
        self.monitor.resubscribed = false;
        self.monitor.address = self.monitor.address.wrapping_add(1);
        self.monitor.state = MonitorState::Waiting;
        self.timers.arm(now + self.monitor.delay, Timer::Monitor);
        self.monitor.delay = self.monitor.delay.doubled_up_to(CONNECT_DELAY_MAX);
        if let CloseReason::Untrusted(why) = reason {
            self.monitor.untrusted_count += 1;
            if self.monitor.untrusted_count >= self.settings.monitors.len() {
                self.refuse_opening(&why, effects);
            }
        }
    }

    /// No monitor trusts us: trying again will not help those who wait for an attach.
    fn refuse_opening(&mut self, why: &str, effects: &mut Vec<Effect>) {
        let opening = |attachment: &Attachment| matches!(attachment, Attachment::Opening { .. });
        let waiting = self.volumes.iter().filter(|(_, volume)| opening(&volume.attachment));
        for handle in waiting.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            let failure = Failure {
                code: "untrusted".to_string(),
                message: format!("the monitor refuses the connection: {why}"),
                hint: "use the file `key` of this cluster's directory".to_string(),
            };
            self.opened(handle, Err(failure), effects);
        }
    }

    /// Closes the connection from our side and goes on to the next monitor.
    fn leave_monitor(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.monitor_lost(now, CloseReason::Reset, effects);
    }

    pub(crate) fn monitor_received(
        &mut self,
        now: Time,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let MonitorState::Open { connection } = self.monitor.state else { return };
        let parsed = match &message {
            Message::Control(text) => serde_json::from_str::<FromMonitor>(text).ok(),
            _ => None,
        };
        let Some(message) = parsed else {
            self.leave_monitor(now, connection, effects);
            return;
        };
        self.monitor.delay = CONNECT_DELAY_MIN;
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
                self.map_changed(now, effects);
            }
            FromMonitor::Monitors { mut addresses } => {
                addresses.truncate(ADDRESS_COUNT_MAX);
                self.monitor.is_news |= self.monitor.told != addresses;
                self.monitor.told = addresses;
            }
            FromMonitor::SessionOpened { request, session, image, locked, lazy, reign } => {
                self.drop_farewells(request);
                match self.opening(request) {
                    Some(handle) => {
                        let attached =
                            Attached { session, reign, image, locked, lazy: locked && lazy };
                        self.opened(handle, Ok(attached), effects);
                    }
                    None => self.close_session(session, false, effects),
                }
            }
            FromMonitor::SessionRefused { request, error } => {
                self.drop_farewells(request);
                if let Some(handle) = self.opening(request) {
                    self.opened(handle, Err(error), effects);
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
            // The others are meant for OSDs and commands.
            _ => {}
        }
    }

    fn end_fenced(&mut self, effects: &mut Vec<Effect>) {
        let fenced =
            |attached: &Attached| self.routes.is_fenced(attached.image.pool, attached.session);
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
        let MonitorState::Open { connection } = self.monitor.state else {
            unreachable!("only a connected monitor is told")
        };
        let text = serde_json::to_string(message).expect("our own types are JSON");
        let message = Message::Control(text);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }
}
