//! One of several monitors: it leads under a lease from the store, or relays its connections to the monitor
//! that leads.
//!
//! ```text
//!   Rest ─▶ Looking ─┬─▶ Granting ─▶ Leading (the lease is renewed) ──┐
//!    ▲               └─▶ Following (watches the leader's key) ──┐     │ lease over, another leads
//!    └──────────────────────────────────────────────────────────┴─────┘
//! ```
//!
//! Invariants
//!   1. A separate [`Monitor`] performs the leader's work. It is created when a lease is granted, and set
//!      aside with its whole state when leadership is lost: this state is never compared with
//!      what another leader has written since. Only `status` is answered from it, while nobody leads.
//!   2. The leader's key is attached to the lease. While the key is attached to another monitor's lease, no
//!      monitor takes it, so one leadership ends before the next begins.
//!   3. Safety rests on comparing the leader's key in every transaction. Clocks only decide when to
//!      give up leadership.

use base::planted::{self, Bug};
use base::{ConnectionId, Duration, MonitorId, Time, TraceEvent};
use format::door::{NetEffect, NetEvent, Role};
use format::wire::Message;
use serde_json::Value;

use super::edit::UndoneEdits;
use super::leadership::Leadership;
use super::lines::trace_endpoints;
use super::monitors::removed_text;
use super::relay::Relay;
use super::store_access::StoreAccess;
use super::{Effect, Event, Identity, Monitor, StopReason};
use crate::message::{FromMonitor, ToMonitor};
use crate::records::{Key, Record};
use crate::settings::Setting;
use crate::state::{
    KeyValue, LeaseId, RangeAnswer, StateEffect, StateEvent, StateRequest, StateRevision,
    Unavailable, WatchId,
};

/// The time to live of the leader's lease, the shortest that etcd grants.
const LEASE_SPAN: Duration = Duration::from_secs(2);
/// The interval at which the leader renews its lease.
const RENEW_SPAN: Duration = Duration::from_millis(500);
/// Delay before an unreachable store is tried again.
const REST_SPAN: Duration = Duration::from_millis(100);
/// Delay before this monitor tries again to connect to the leader.
const REGISTER_SPAN: Duration = Duration::from_millis(500);
/// The bit that marks ids of requests and watches made in this file; ids made by [`Monitor`] are lower.
const OWN: u64 = 1 << 63;

/// One of several monitors that share a state store, or the only one.
pub struct Election {
    identity: Identity,
    may_create: bool,
    stage: Stage,
    relay: Relay,
    registration: Registration,
    lease: Option<Lease>,
    own_last: u64,
    /// The number of times that this monitor began to lead.
    lead_count: u64,
    /// The store access, as the last [`Monitor`] of this process left it.
    store: StoreAccess,
    /// Edits that were undone: manual edits of the leader's key, and edits that the last
    /// [`Monitor`] of this process undid.
    undone: UndoneEdits,
    /// The request that checks whether the lease of a deleted leader's key is still alive: if it is, the key
    /// was removed by hand.
    suspicion: Option<StateRequest>,
    /// The state of this monitor when it last led, as long as no other monitor is known to have led since.
    last_led: Option<LastLed>,
    /// The leader according to the last log line about leadership.
    leader_told: Option<MonitorId>,
}

/// The monitor's state when it last led.
struct LastLed {
    monitor: Box<Monitor>,
    /// The time at which it stopped leading.
    at: Time,
}

/// The stages of a monitor, in the order in which they occur.
enum Stage {
    /// Waits until it is time to read the leader's key.
    Rest { until: Time },
    /// Waits for the leader's key to be read.
    Looking { request: StateRequest },
    /// Another monitor leads: waits until the leader's key changes.
    Following { watch: WatchId, leader: Option<Leader> },
    /// Nobody leads: waits until a lease is granted.
    Granting { request: StateRequest },
    /// Leads, or is about to lead. Once it serves, it owns the connections.
    Leading { monitor: Box<Monitor>, is_serving: bool },
    /// The process is about to end: waits until this monitor's lease is revoked.
    Retiring { request: StateRequest },
    /// Stopped: further events are ignored.
    Over,
}

/// Another monitor that leads.
#[derive(PartialEq, Eq)]
struct Leader {
    monitor: MonitorId,
    lease: LeaseId,
    addresses: Vec<String>,
}

struct Lease {
    id: LeaseId,
    /// The time at which this monitor considers the lease expired, unless it is renewed.
    ends: Time,
    renew: Time,
    /// A renewal request that has not been answered yet.
    asked: Option<StateRequest>,
}

/// This monitor's own connection to the leader, which shows the leader that this monitor is present.
#[derive(Default)]
struct Registration {
    connection: Option<ConnectionId>,
    retry: Option<Time>,
    /// Index of the leader's address to try next, modulo the number of addresses.
    address: usize,
}

impl Election {
    /// Creates a monitor that has not sent any request yet: its deadline is now. Other monitors may use
    /// the same store. An empty store is treated as a new cluster only if `may_create` is set.
    pub fn new(identity: Identity, may_create: bool) -> Election {
        Election {
            identity,
            may_create,
            stage: Stage::Rest { until: Time::ZERO },
            relay: Relay::new(),
            registration: Registration::default(),
            lease: None,
            own_last: 0,
            lead_count: 0,
            store: StoreAccess::default(),
            undone: UndoneEdits::default(),
            suspicion: None,
            last_led: None,
            leader_told: None,
        }
    }

    /// Creates the only monitor of a store, which nobody else can open: it leads at once, without a
    /// lease.
    pub fn only(identity: Identity) -> Election {
        let monitor = Box::new(Monitor::new(identity.clone()));
        let stage = Stage::Leading { monitor, is_serving: true };
        Election { stage, ..Election::new(identity, true) }
    }

    /// Handles an event. Once the effect `Stop` was emitted, further events are ignored.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            _ if matches!(self.stage, Stage::Over) => return,
            Event::Net(event) => self.on_net(now, event, effects),
            Event::State(event) => self.on_state(now, event, effects),
            Event::Tick => self.tell_monitor(now, Event::Tick, effects),
        }
        self.advance(now, effects);
        self.trace_leader(effects);
    }

    /// Logs which monitor leads, if that has changed.
    fn trace_leader(&mut self, effects: &mut Vec<Effect>) {
        let leader = self.leader();
        if leader == self.leader_told || matches!(self.stage, Stage::Over) {
            return;
        }
        self.leader_told = leader;
        effects.push(Effect::Trace(match leader {
            Some(leader) if leader == self.identity.monitor => {
                TraceEvent::info("this monitor leads")
            }
            Some(leader) => TraceEvent::info("another monitor leads").with("leader", leader),
            None => TraceEvent::warn("no monitor leads"),
        }));
    }

    /// Returns the latest time at which `Tick` is due; `None`: no tick is needed.
    pub fn deadline(&self) -> Option<Time> {
        let stage = match &self.stage {
            Stage::Rest { until } => Some(*until),
            Stage::Leading { monitor, .. } => monitor.deadline(),
            Stage::Over => return None,
            _ => None,
        };
        let lease = self.lease.as_ref().and_then(|lease| match lease.asked {
            None => Some(lease.renew),
            Some(_) => (!self.keeps_ended_lease()).then_some(lease.ends),
        });
        [stage, lease, self.relay.deadline(), self.registration.retry].into_iter().flatten().min()
    }

    /// Returns the leading monitor, to this monitor's knowledge.
    pub fn leader(&self) -> Option<MonitorId> {
        match &self.stage {
            Stage::Following { leader, .. } => leader.as_ref().map(|leader| leader.monitor),
            Stage::Leading { monitor, is_serving: true } if monitor.leadership.has_led() => {
                Some(self.identity.monitor)
            }
            _ => None,
        }
    }

    /// Gives up leadership because the process is about to end, so that another monitor may lead at
    /// once. `is_retired` reports when this is done.
    pub fn retire(&mut self, effects: &mut Vec<Effect>) {
        self.stage = match self.lease.take() {
            Some(Lease { id: lease, .. }) => {
                let request = self.next_request();
                effects.push(Effect::State(StateEffect::LeaseRevoke { request, lease }));
                Stage::Retiring { request }
            }
            None => Stage::Over,
        };
    }

    /// Whether the process may end without making the other monitors wait until its lease expires.
    pub fn is_retired(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn next_request(&mut self) -> StateRequest {
        self.own_last += 1;
        StateRequest(OWN | self.own_last)
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        if let Stage::Leading { is_serving: true, .. } = self.stage {
            self.tell_monitor(now, Event::Net(event), effects);
            return;
        }
        match &event {
            NetEvent::Connected { connection, peer, .. }
                if self.registration.connection == Some(*connection) =>
            {
                if matches!(peer.role, Role::Monitor(_)) {
                    self.tell_presence(*connection, effects);
                } else {
                    self.leave_leader(effects);
                    self.registration.retry = Some(now + REGISTER_SPAN);
                }
            }
            NetEvent::Closed { connection, .. }
                if self.registration.connection == Some(*connection) =>
            {
                self.registration.connection = None;
                self.registration.address = self.registration.address.wrapping_add(1);
                self.registration.retry = Some(now + REGISTER_SPAN);
            }
            NetEvent::Received { connection, message }
                if self.registration.connection == Some(*connection) =>
            {
                let Message::Control(text) = message else { return };
                match serde_json::from_str(text) {
                    Ok(FromMonitor::MonitorRemoved) => {
                        self.stage = Stage::Over;
                        let why = removed_text(self.identity.monitor);
                        effects.push(Effect::Stop(StopReason::Removed(why)));
                    }
                    Ok(FromMonitor::Settings { changed }) => {
                        effects.push(Effect::LogLevel(Setting::log_level_in(&changed)));
                    }
                    _ => {}
                }
            }
            _ => {
                let is_lost = self.leader().is_none();
                let Election { identity, store, last_led, relay, .. } = self;
                let status = || status_without_state(now, identity, store.trouble(), last_led);
                let lost = store.trouble().filter(|_| is_lost);
                let lost = lost.map(|trouble| (trouble, &status as &dyn Fn() -> Value));
                relay.on_net(now, event, lost, effects);
            }
        }
    }

    fn on_state(&mut self, now: Time, event: StateEvent, effects: &mut Vec<Effect>) {
        match event {
            StateEvent::Failed { reason } => {
                self.stage = Stage::Over;
                effects.push(Effect::Stop(StopReason::State(reason)));
            }
            StateEvent::Range { request, result } if request.0 & OWN != 0 => {
                self.on_leader_read(now, request, result, effects);
            }
            StateEvent::Lease { request, lease } => self.on_lease(now, request, lease, effects),
            StateEvent::Watched { watch, changes, .. } if watch.0 & OWN != 0 => {
                let is_leader = |(key, _): &(String, Option<KeyValue>)| *key == leader_key();
                if let Some((_, entry)) = changes.into_iter().rfind(is_leader) {
                    self.on_leader_changed(now, watch, entry, effects);
                }
            }
            StateEvent::WatchLost { watch, .. } if watch.0 & OWN != 0 => {
                if matches!(self.stage, Stage::Following { watch: ours, .. } if ours == watch) {
                    self.look(effects);
                }
            }
            event => {
                match &event {
                    StateEvent::Condition { trouble } => {
                        self.on_condition(now, trouble.clone(), effects);
                    }
                    StateEvent::Endpoints(found) => {
                        trace_endpoints(self.store.endpoints(), found, effects);
                        self.store.on_endpoints(found.clone());
                    }
                    _ => {}
                }
                self.tell_monitor(now, Event::State(event), effects);
            }
        }
    }

    /// Records whether the store can be reached. Commands that wait for a leader are answered with the
    /// reason why there is none.
    fn on_condition(&mut self, now: Time, trouble: Option<String>, effects: &mut Vec<Effect>) {
        match (self.store.trouble(), &trouble) {
            (None, Some(why)) => {
                let event = TraceEvent::error("the state store cannot be reached");
                effects.push(Effect::Trace(event.with("why", why)));
            }
            (Some(_), None) => {
                let event = TraceEvent::info("the state store can be reached again");
                effects.push(Effect::Trace(event));
            }
            _ => {}
        }
        self.store.on_condition(trouble);
        let is_lost = self.leader().is_none();
        let Election { identity, store, last_led, relay, .. } = self;
        if let Some(why) = store.trouble().filter(|_| is_lost) {
            let status = || status_without_state(now, identity, store.trouble(), last_led);
            relay.answer_commands(why, &status, effects);
        }
    }

    /// Reads the leader's key, to find out which monitor leads.
    fn look(&mut self, effects: &mut Vec<Effect>) {
        let request = self.next_request();
        self.stage = Stage::Looking { request };
        let (prefix, after, limit) = (leader_key(), None, 1);
        effects.push(Effect::State(StateEffect::Range { request, prefix, after, limit }));
    }

    fn on_leader_read(
        &mut self,
        now: Time,
        answered: StateRequest,
        result: Result<RangeAnswer, Unavailable>,
        effects: &mut Vec<Effect>,
    ) {
        if !matches!(self.stage, Stage::Looking { request } if request == answered) {
            return;
        }
        let Ok(answer) = result else {
            self.stage = Stage::Rest { until: now + REST_SPAN };
            return;
        };
        let found = answer.entries.into_iter().find(|entry| entry.key == leader_key());
        let leads =
            |entry: &KeyValue| entry.lease.is_some() && !planted::on(Bug::LeadershipTakenOver);
        match found.filter(leads) {
            Some(entry) => self.follow(now, &entry, answer.revision, effects),
            None => self.seek_lease(now, effects),
        }
    }

    /// Follows another monitor, which leads according to the store at `revision`.
    fn follow(
        &mut self,
        now: Time,
        entry: &KeyValue,
        revision: StateRevision,
        effects: &mut Vec<Effect>,
    ) {
        self.own_last += 1;
        let watch = WatchId(OWN | self.own_last);
        let (prefix, from) = (leader_key(), revision.next());
        effects.push(Effect::State(StateEffect::Watch { watch, prefix, from }));
        self.stage = Stage::Following { watch, leader: None };
        self.meet_leader(now, entry, effects);
    }

    fn on_leader_changed(
        &mut self,
        now: Time,
        told: WatchId,
        entry: Option<KeyValue>,
        effects: &mut Vec<Effect>,
    ) {
        if !matches!(self.stage, Stage::Following { watch, .. } if watch == told) {
            return;
        }
        match entry {
            Some(entry) if entry.lease.is_some() => {
                self.meet_leader(now, &entry, effects);
                return;
            }
            // No monitor writes the key without a lease: somebody edited it.
            Some(_) => self.undone.note_leader(now),
            None => self.probe_lost_lease(effects),
        }
        effects.push(Effect::State(StateEffect::Unwatch { watch: told }));
        self.seek_lease(now, effects);
    }

    /// Finds out whether the leader's key was deleted with its lease or removed by hand. Nothing is attached
    /// to that lease any more, so renewing it is harmless and shows whether it is still alive.
    fn probe_lost_lease(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Following { leader: Some(leader), .. } = &self.stage else { return };
        let lease = leader.lease;
        let request = self.next_request();
        self.suspicion = Some(request);
        effects.push(Effect::State(StateEffect::LeaseRenew { request, lease }));
    }

    /// Records that the leader's key was edited or removed by hand.
    fn note_leader_edited(&mut self, now: Time) {
        match &mut self.stage {
            Stage::Leading { monitor, .. } => monitor.watching.undone.note_leader(now),
            _ => self.undone.note_leader(now),
        }
    }

    /// Handles a new value of the leader's key. An unreadable value is ignored: it is deleted when its lease
    /// ends.
    fn meet_leader(&mut self, now: Time, entry: &KeyValue, effects: &mut Vec<Effect>) {
        let parsed = match Record::parse(&Key::Leader, &entry.value) {
            Ok(Record::Leader(record)) => Some(record),
            _ => None,
        };
        // A record with this monitor's id is from an earlier run, whose process is gone.
        let parsed = parsed.filter(|record| record.monitor != self.identity.monitor);
        let Stage::Following { leader, .. } = &mut self.stage else { return };
        let parsed = parsed.zip(entry.lease).map(|(record, lease)| Leader {
            monitor: record.monitor,
            lease,
            addresses: record.addresses,
        });
        // The same leader has written its key again.
        if *leader == parsed && leader.is_some() {
            return;
        }
        let addresses = parsed.as_ref().map_or(Vec::new(), |leader| leader.addresses.clone());
        *leader = parsed;
        self.last_led = None;
        self.leave_leader(effects);
        self.registration.retry = (!addresses.is_empty()).then_some(now);
        self.relay.set_leader(now, addresses, effects);
    }

    /// Requests a lease because nobody leads, or uses the lease that this monitor still has.
    fn seek_lease(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.leave_leader(effects);
        self.relay.set_leader(now, Vec::new(), effects);
        if self.lease.as_ref().is_some_and(|lease| now < lease.ends) {
            self.lead();
            return;
        }
        self.lease = None;
        let request = self.next_request();
        self.stage = Stage::Granting { request };
        let time_to_live = LEASE_SPAN;
        effects.push(Effect::State(StateEffect::LeaseGrant { request, time_to_live }));
    }

    fn on_lease(
        &mut self,
        now: Time,
        answered: StateRequest,
        answer: Option<LeaseId>,
        effects: &mut Vec<Effect>,
    ) {
        if self.suspicion == Some(answered) {
            self.suspicion = None;
            if answer.is_some() {
                self.note_leader_edited(now);
            }
            return;
        }
        match &mut self.stage {
            Stage::Granting { request } if *request == answered => match answer {
                Some(id) => {
                    let (ends, renew) = (now + LEASE_SPAN, now + RENEW_SPAN);
                    self.lease = Some(Lease { id, ends, renew, asked: None });
                    self.lead();
                }
                None => self.stage = Stage::Rest { until: now + REST_SPAN },
            },
            Stage::Retiring { request } if *request == answered => self.stage = Stage::Over,
            _ => {
                let Some(lease) = &mut self.lease else { return };
                if lease.asked.take_if(|asked| *asked == answered).is_none() {
                    return;
                }
                if answer.is_some() {
                    (lease.ends, lease.renew) = (now + LEASE_SPAN, now + RENEW_SPAN);
                } else {
                    self.lease = None;
                    self.lose(now, "the state store has revoked this monitor's lease", effects);
                }
            }
        }
    }

    /// Tries to lead under the lease.
    fn lead(&mut self) {
        // The store may have been restored from a backup since this process last led, so leading again begins
        // a new reign.
        self.lead_count += 1;
        let nonce = self.identity.nonce.wrapping_add(self.lead_count);
        let identity = Identity { nonce, ..self.identity.clone() };
        let lease = self.lease.as_ref().map(|lease| lease.id);
        let leadership = Leadership::new(lease, self.may_create);
        let mut monitor = Box::new(Monitor::under(identity, leadership, self.store.clone()));
        monitor.watching.undone = std::mem::take(&mut self.undone);
        self.stage = Stage::Leading { monitor, is_serving: false };
    }

    /// Passes an event to the leading part of this monitor, if it leads or is about to lead.
    fn tell_monitor(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        let Stage::Leading { monitor, is_serving } = &mut self.stage else { return };
        let told = effects.len();
        monitor.apply(now, event, effects);
        let stops = |effect: &Effect| matches!(effect, Effect::Stop(_));
        if let Some(place) = effects[told..].iter().position(stops) {
            let is_lost =
                matches!(effects[told + place], Effect::Stop(StopReason::LostLeadership(_)));
            if is_lost && monitor.leadership.lease().is_some() {
                effects.truncate(told + place);
                self.lose(now, "another monitor holds the leader key", effects);
            } else {
                self.stage = Stage::Over;
            }
            return;
        }
        if monitor.leadership.has_led() && !*is_serving {
            *is_serving = true;
            self.last_led = None;
            for event in self.relay.hand_over(now, effects) {
                self.tell_monitor(now, Event::Net(event), effects);
            }
        }
    }

    /// Stops leading: OSDs and clients reconnect to this monitor or to another one.
    fn lose(&mut self, now: Time, why: &str, effects: &mut Vec<Effect>) {
        let rest = Stage::Rest { until: now };
        let Stage::Leading { mut monitor, .. } = std::mem::replace(&mut self.stage, rest) else {
            return;
        };
        if monitor.leadership.has_led() {
            let event = TraceEvent::warn("this monitor no longer leads").with("why", why);
            effects.push(Effect::Trace(event));
        }
        self.store = monitor.store.clone();
        self.undone = std::mem::take(&mut monitor.watching.undone);
        for connection in monitor.connections.ids() {
            effects.push(Effect::Net(NetEffect::Close { connection }));
        }
        if let Some(watch) = monitor.watching.watch {
            effects.push(Effect::State(StateEffect::Unwatch { watch }));
        }
        // If the leader's key is still this monitor's, it is deleted with the lease.
        if let Some(Lease { id: lease, .. }) = self.lease.take() {
            let request = self.next_request();
            // If the lease is still alive, its key was removed by hand.
            self.suspicion = monitor.leadership.has_led().then_some(request);
            effects.push(Effect::State(StateEffect::LeaseRevoke { request, lease }));
        }
        if monitor.leadership.has_led() {
            self.last_led = Some(LastLed { monitor, at: now });
        }
    }

    /// Does everything that is due at this time.
    fn advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if matches!(self.stage, Stage::Over) {
            return;
        }
        if let Some(lease) = &mut self.lease {
            if lease.renew <= now && lease.asked.is_none() {
                self.own_last += 1;
                let request = StateRequest(OWN | self.own_last);
                lease.asked = Some(request);
                let lease = lease.id;
                effects.push(Effect::State(StateEffect::LeaseRenew { request, lease }));
            } else if lease.ends <= now && !self.keeps_ended_lease() {
                self.lease = None;
                self.lose(now, "this monitor's lease expired before it was renewed", effects);
            }
        }
        if matches!(self.stage, Stage::Rest { until } if until <= now) {
            self.look(effects);
        }
        // The new monitor requests the leader's key with its first event.
        if let Stage::Leading { monitor, is_serving: false } = &self.stage
            && monitor.deadline() == Some(Time::ZERO)
        {
            self.tell_monitor(now, Event::Tick, effects);
        }
        if self.registration.retry.is_some_and(|retry| retry <= now) {
            self.tell_leader(effects);
        }
        self.relay.tick(now, effects);
    }

    /// Whether no other monitor could lead: then this one continues to serve while the store is
    /// unreachable.
    fn keeps_ended_lease(&self) -> bool {
        match &self.stage {
            Stage::Leading { monitor, is_serving: true } => monitor.is_only(),
            _ => false,
        }
    }

    /// Connects to the leader, to show that this monitor is present.
    fn tell_leader(&mut self, effects: &mut Vec<Effect>) {
        self.registration.retry = None;
        let Stage::Following { leader: Some(leader), .. } = &self.stage else { return };
        if leader.addresses.is_empty() {
            return;
        }
        let address = leader.addresses[self.registration.address % leader.addresses.len()].clone();
        let connection = self.relay.next_connection();
        self.registration.connection = Some(connection);
        effects.push(Effect::Net(NetEffect::Connect { connection, address }));
    }

    fn tell_presence(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let here = ToMonitor::MonitorHere {
            monitor: self.identity.monitor,
            addresses: self.identity.addresses.clone(),
            pid: self.identity.pid,
            host: self.identity.host.clone(),
        };
        let text = serde_json::to_string(&here);
        let text = text.expect("messages have text keys and plain numbers");
        let message = Message::Control(text);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }

    fn leave_leader(&mut self, effects: &mut Vec<Effect>) {
        self.registration.retry = None;
        if let Some(connection) = self.registration.connection.take() {
            effects.push(Effect::Net(NetEffect::Close { connection }));
        }
    }
}

fn leader_key() -> String {
    Key::Leader.to_string()
}

/// Answers `status` for a monitor that cannot reach the store: with its last state as the leader,
/// if it was the last leader.
fn status_without_state(
    now: Time,
    identity: &Identity,
    trouble: Option<&str>,
    last_led: &Option<LastLed>,
) -> Value {
    let Some(LastLed { monitor, at }) = last_led else {
        return Monitor::new(identity.clone()).status(now, trouble);
    };
    let mut status = monitor.status(*at, trouble);
    status["seconds_old"] = now.since(*at).as_secs_f64().round().into();
    status
}
