//! A test rig: a monitor with an in-memory store, minimal OSDs, and clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::trace::Level;
use base::{
    ClusterId, ConnectionId, Duration, Incarnation, MapRevision, MonitorId, OsdId, PgId, PoolId,
    Scheme, SessionId, Time, TraceEvent,
};
use format::door::{CloseReason, NetEffect, NetEvent, Peer, Role};
use format::wire::{Member, Message, Op, Outcome, PgEntry, Refusal, Reply, Request};
use serde_json::Value;

use crate::copy::{Activated, CopyKeeper, KnownState, PoolSeen, Seen};
use crate::map::{ClusterMap, FailureDomain, ImageInfo};
use crate::message::{
    Command, Failure, FromMonitor, Need, OsdReport, PgNeed, ToMonitor, Unreachable,
};
use crate::monitor::{Effect, Event, Identity, Monitor, StopReason};
use crate::settings::Changed;
use crate::state::memory::MemoryState;
use crate::state::{
    KeyValue, Operation, RangeAnswer, StateEffect, StateEvent, StateRequest, StateRevision,
    StateStore, Transaction, TransactionOutcome, Unavailable,
};

pub const CLUSTER: ClusterId = ClusterId::new(0xabc);

pub fn identity() -> Identity {
    Identity {
        cluster: CLUSTER,
        monitor: MonitorId::FIRST,
        pid: 100,
        host: "h".into(),
        addresses: vec!["unix:mon".into()],
        nonce: 100,
    }
}

/// A fault at one of the next transactions or effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// No fault: transactions are applied and acknowledged.
    None,
    /// The monitor's process ends before effect `n` of any kind (counted from 1).
    KillAtEffect(u32),
    /// The monitor's process ends before transaction `n` (counted from 1) reaches the store.
    KillBefore(u32),
    /// The monitor's process ends after transaction `n` was applied and before it receives the answer.
    KillAfter(u32),
    /// Transaction `n` is applied, but the reply is "unknown".
    UnknownHappened(u32),
    /// Transaction `n` is not applied; the reply is "unknown".
    UnknownLost(u32),
    /// Transaction `n` is applied only with the next effect; the reply is "unknown".
    UnknownLate(u32),
}

impl Mishap {
    /// Returns all faults of transaction `n`.
    pub fn all_of(n: u32) -> [Mishap; 5] {
        [
            Mishap::KillBefore(n),
            Mishap::KillAfter(n),
            Mishap::UnknownHappened(n),
            Mishap::UnknownLost(n),
            Mishap::UnknownLate(n),
        ]
    }
}

/// An OSD that holds no data.
#[derive(Default)]
pub struct FakeOsd {
    pub connection: Option<ConnectionId>,
    pub incarnation: Option<Incarnation>,
    pub path: String,
    pub host: String,
    /// What it says of its engine.
    pub engine: Option<bool>,
    /// Whether the OSD's next run begins with damage.
    pub suspect: bool,
    pub map: ClusterMap,
    pub refused: Option<Failure>,
    /// Whether the OSD does not report which map revisions it has seen.
    pub is_slow_to_see: bool,
    /// Whether the OSD hangs: it receives and sends nothing, while its connection remains open.
    pub is_silent: bool,
    /// Task requests that the OSD has executed.
    pub deleted: Vec<(PgId, Op, MapRevision)>,
    /// Number of portions left until each PG's deletion is complete.
    pub portions: BTreeMap<PgId, u32>,
    /// The OSD's reply to task requests; `None`: it executes them.
    pub refusal: Option<Refusal>,
    /// PGs with data left over here that are active.
    pub active: Vec<(PgId, base::Epoch)>,
    /// PGs that the OSD was asked to scrub, and whether a deep scrub was requested.
    pub scrubs: Vec<(PgId, bool)>,
    /// Number of requests to check its metadata.
    pub metadata_checks: u32,
    /// Decisions of operators about damaged blocks.
    pub fixes: Vec<FromMonitor>,
    pub settings: Changed,
    pub slow_disks: Vec<OsdId>,
    pub cleared: Vec<PoolId>,
    /// Statistics periods that the monitor reported as saved, in order.
    pub saved: Vec<u64>,
    /// The OSD's copy of the state.
    pub copy: CopyKeeper,
    /// The epochs in the records of the OSD's PGs.
    pub activated: Vec<Activated>,
    /// Whether the OSD does not send its records.
    pub is_mute: bool,
}

impl FakeOsd {
    fn seen(&self) -> Seen {
        let copy = self.copy.copy();
        let pools = self.map.pools.iter().map(|(id, pool)| (*id, pool.revision)).collect();
        let incarnation = self.incarnation.unwrap_or_default();
        Seen { change: copy.change, reign: copy.reign, incarnation, pools }
    }

    /// Returns the OSD's records, in two parts.
    fn tells(&self, id: OsdId) -> [ToMonitor; 2] {
        let is_ours = |entry: &&PgEntry| entry.members().any(|member| member.osd == id);
        let entries = self.map.pools.values().flat_map(|pool| &pool.pgs).filter(is_ours);
        let pools = self.map.pools.values().map(|known| PoolSeen {
            pool: known.pool.clone(),
            revision: known.revision,
            fences: known.fences.iter().copied().collect(),
            fence_ranges: known.fence_ranges.clone(),
        });
        let osd_revision = self.map.osds.values().map(|osd| osd.revision).max().unwrap_or(0);
        let (entries, activated) = (entries.cloned().collect(), self.activated.clone());
        let first = KnownState { entries, activated, ..KnownState::default() };
        let copy = self.copy.copy().clone();
        let pools = pools.collect();
        let last = KnownState { pools, osd_revision, copy, ..KnownState::default() };
        [
            ToMonitor::OsdTells { part: first, more: true },
            ToMonitor::OsdTells { part: last, more: false },
        ]
    }
}

pub struct Rig {
    pub now: Time,
    pub store: MemoryState,
    pub monitor: Monitor,
    pub osds: BTreeMap<OsdId, FakeOsd>,
    /// Messages received by clients, by connection.
    pub inbox: BTreeMap<ConnectionId, VecDeque<FromMonitor>>,
    pub open: BTreeSet<ConnectionId>,
    pub stopped: Option<StopReason>,
    /// Log lines.
    pub lines: Vec<TraceEvent>,
    /// The log level last requested by the settings.
    pub level: Option<Level>,
    pub mishap: Mishap,
    pub transactions: u32,
    pub effects: u32,
    pub kills: u32,
    pub is_store_away: bool,
    connection_last: u64,
    request_last: u64,
    late: Option<StateEffect>,
    events: VecDeque<Event>,
    /// The watch events held back while the store's watch is slow.
    slow: Option<Vec<StateEvent>>,
}

pub fn osd_id(number: u32) -> OsdId {
    OsdId::new(number).unwrap()
}

pub fn store_of(number: u32) -> String {
    format!("{number:032x}")
}

impl Rig {
    pub fn new() -> Rig {
        Rig::over(MemoryState::default())
    }

    pub fn over(store: MemoryState) -> Rig {
        let mut rig = Rig {
            now: Time::from_nanos(1),
            store,
            monitor: Monitor::new(identity()),
            osds: BTreeMap::new(),
            inbox: BTreeMap::new(),
            open: BTreeSet::new(),
            stopped: None,
            lines: Vec::new(),
            level: None,
            mishap: Mishap::None,
            transactions: 0,
            effects: 0,
            kills: 0,
            is_store_away: false,
            connection_last: 1,
            request_last: 0,
            late: None,
            slow: None,
            events: VecDeque::new(),
        };
        rig.tick();
        rig
    }

    /// Returns a cluster with all OSDs up and a pool of `pg_count` PGs.
    pub fn with_pool(osd_count: u32, pg_count: u32) -> Rig {
        let mut rig = Rig::new();
        for number in 1..=osd_count {
            rig.add_osd(number);
        }
        rig.make_pool("p", pg_count).unwrap();
        rig
    }

    pub fn tick(&mut self) {
        self.event(Event::Tick);
    }

    pub fn event(&mut self, event: Event) {
        self.events.push_back(event);
        self.settle();
    }

    /// Handles events until none is left.
    fn settle(&mut self) {
        let mut steps = 0;
        while let Some(event) = self.events.pop_front() {
            steps += 1;
            assert!(steps < 1_000_000, "the monitor goes round in circles");
            let mut effects = Vec::new();
            self.monitor.apply(self.now, event, &mut effects);
            for effect in effects {
                if !self.effect(effect) {
                    self.restart();
                    break;
                }
            }
        }
    }

    /// Advances the clock, with a tick at every deadline on the way.
    pub fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(deadline) = self.monitor.deadline()
            && deadline <= end
        {
            self.now = self.now.max(deadline) + Duration::from_nanos(1);
            self.tick();
        }
        self.now = self.now.max(end);
        self.tick();
    }

    /// Ends the process and starts another one on the same store; all peers reconnect.
    pub fn restart(&mut self) {
        self.kills += 1;
        self.mishap = Mishap::None;
        self.events.clear();
        self.monitor = Monitor::new(Identity {
            pid: 100 + self.kills,
            host: "h".into(),
            nonce: 100 + u64::from(self.kills),
            ..identity()
        });
        let open: Vec<ConnectionId> = std::mem::take(&mut self.open).into_iter().collect();
        let boots: Vec<OsdId> = self
            .osds
            .iter()
            .filter(|(_, osd)| osd.connection.is_some_and(|connection| open.contains(&connection)))
            .map(|(id, _)| *id)
            .collect();
        for osd in boots {
            self.queue_boot(osd);
        }
        self.events.push_back(Event::Tick);
    }

    /// Carries out an effect; `false`: the process ended.
    fn effect(&mut self, effect: Effect) -> bool {
        if let Effect::Trace(event) = effect {
            self.lines.push(event);
            return true;
        }
        self.effects += 1;
        if self.mishap == Mishap::KillAtEffect(self.effects) {
            return false;
        }
        match effect {
            Effect::Ready => {}
            Effect::LogLevel(level) => self.level = level,
            Effect::Trace(_) => unreachable!("taken above"),
            Effect::Stop(reason) => self.stopped = Some(reason),
            Effect::State(effect) => return self.state_effect(effect),
            Effect::Net(NetEffect::Connect { .. }) => panic!("a monitor connects to nobody"),
            Effect::Net(NetEffect::Close { connection }) => {
                assert!(self.open.remove(&connection), "closed twice: {connection}");
            }
            Effect::Net(NetEffect::Send { connection, message }) => {
                if self.open.contains(&connection) {
                    self.deliver(connection, message);
                }
            }
        }
        true
    }

    fn state_effect(&mut self, effect: StateEffect) -> bool {
        let mut events = Vec::new();
        if let StateEffect::Range { request, .. } = &effect
            && self.is_store_away
        {
            let event = StateEvent::Range { request: *request, result: Err(Unavailable) };
            self.events.push_back(Event::State(event));
            return true;
        }
        if let Some(late) = self.late.take() {
            let mut events = Vec::new();
            self.store.apply(self.now, late, &mut events);
            events.retain(|event| !matches!(event, StateEvent::Transacted { .. }));
            self.store_told(events);
        }
        let StateEffect::Transact { request, .. } = &effect else {
            self.store.apply(self.now, effect, &mut events);
            self.store_told(events);
            return true;
        };
        let request = *request;
        self.transactions += 1;
        let count = self.transactions;
        if self.mishap == Mishap::KillBefore(count) {
            return false;
        }
        if self.mishap == Mishap::UnknownLate(count) {
            self.late = Some(effect);
        } else if self.mishap != Mishap::UnknownLost(count) {
            self.store.apply(self.now, effect, &mut events);
        }
        if self.mishap == Mishap::KillAfter(count) {
            return false;
        }
        let is_unknown = [
            Mishap::UnknownHappened(count),
            Mishap::UnknownLost(count),
            Mishap::UnknownLate(count),
        ];
        if is_unknown.contains(&self.mishap) {
            let outcome = TransactionOutcome::Unknown;
            events.retain(|event| !matches!(event, StateEvent::Transacted { .. }));
            events.push(StateEvent::Transacted { request, outcome });
        }
        self.store_told(events);
        true
    }

    fn store_told(&mut self, events: Vec<StateEvent>) {
        for event in events {
            match &mut self.slow {
                Some(slow) if matches!(event, StateEvent::Watched { .. }) => slow.push(event),
                _ => self.events.push_back(Event::State(event)),
            }
        }
    }

    /// Makes the store hold back watch events from now on; it still replies to requests.
    pub fn tell_slowly(&mut self) {
        self.slow = Some(Vec::new());
    }

    /// Delivers the watch events that were held back.
    pub fn tell_all(&mut self) {
        self.events.extend(self.slow.take().expect("it was slow").into_iter().map(Event::State));
        self.settle();
    }

    /// Writes or removes a key by hand.
    pub fn hand_writes(&mut self, key: &str, value: Option<&str>) {
        self.hand_writes_unseen(key, value);
        self.settle();
    }

    /// Like `hand_writes`, but the monitor is not notified before its next event.
    pub fn hand_writes_unseen(&mut self, key: &str, value: Option<&str>) {
        let revision = self.stored(key).map_or(StateRevision::ZERO, |entry| entry.revision);
        let key = key.to_string();
        let mut transaction = Transaction::new();
        let operation = match value {
            Some(value) => Operation::Put { key, value: value.to_string(), lease: None },
            None => Operation::Delete { key },
        };
        transaction.write(operation, revision);
        let effect = StateEffect::Transact { request: StateRequest(0), transaction };
        let mut events = Vec::new();
        self.store.apply(self.now, effect, &mut events);
        let is_committed = |event: &StateEvent| {
            let outcome = TransactionOutcome::Committed { revision: self.revision() };
            *event == StateEvent::Transacted { request: StateRequest(0), outcome }
        };
        assert!(events.iter().any(is_committed), "{events:?}");
        self.store_told(events);
    }

    /// Drops the store's events that the monitor has not received yet.
    pub fn forget_told(&mut self) {
        self.events.clear();
    }

    /// Returns the store's value of a key.
    pub fn stored(&self, key: &str) -> Option<KeyValue> {
        let entries = self.store_range(key).entries;
        entries.into_iter().find(|entry| entry.key == key)
    }

    fn revision(&self) -> StateRevision {
        self.store_range("").revision
    }

    fn store_range(&self, prefix: &str) -> RangeAnswer {
        let request = StateRequest(0);
        let (prefix, limit) = (prefix.to_string(), 1000);
        let effect = StateEffect::Range { request, prefix, after: None, limit };
        let mut events = Vec::new();
        self.store.clone().apply(self.now, effect, &mut events);
        match events.pop() {
            Some(StateEvent::Range { result: Ok(answer), .. }) => answer,
            other => panic!("no answer: {other:?}"),
        }
    }

    fn deliver(&mut self, connection: ConnectionId, message: Message) {
        let osd = self.osds.iter().find(|(_, osd)| osd.connection == Some(connection));
        let osd = osd.map(|(id, _)| *id);
        match (osd, message) {
            (Some(osd), Message::Request(request)) => self.osd_request(osd, request),
            (Some(osd), Message::Control(text)) => {
                let message: FromMonitor = serde_json::from_str(&text).unwrap();
                self.osd_heard(osd, message);
            }
            (None, Message::Control(text)) => {
                let message: FromMonitor = serde_json::from_str(&text).unwrap();
                if matches!(message, FromMonitor::Monitors { .. }) {
                    return;
                }
                self.inbox.entry(connection).or_default().push_back(message);
            }
            (_, message) => panic!("not for a client: {message:?}"),
        }
    }

    fn osd_heard(&mut self, id: OsdId, message: FromMonitor) {
        let osd = self.osds.get_mut(&id).unwrap();
        let connection = osd.connection.unwrap();
        if osd.is_silent {
            return;
        }
        match message {
            FromMonitor::OsdBooted { incarnation } => {
                osd.incarnation = Some(incarnation);
                let have = osd.map.pools.iter().map(|(id, pool)| (*id, pool.revision)).collect();
                self.queue(connection, &ToMonitor::Subscribe { have });
                self.queue_saw(id);
            }
            FromMonitor::OsdRefused { error } => osd.refused = Some(error),
            FromMonitor::Map(delta) => {
                osd.map.apply(delta).expect("deltas follow one another");
                self.queue_saw(id);
            }
            FromMonitor::Scrub { pgs, deep, metadata } => {
                osd.scrubs.extend(pgs.into_iter().map(|pg| (pg, deep)));
                osd.metadata_checks += u32::from(metadata);
            }
            fix @ FromMonitor::Fix { .. } => osd.fixes.push(fix),
            FromMonitor::Monitors { .. } => {}
            FromMonitor::StateCopy(part) => {
                osd.copy.take(part);
            }
            FromMonitor::TellAll if osd.is_mute => {}
            FromMonitor::TellAll => {
                for part in osd.tells(id) {
                    self.queue(connection, &part);
                }
            }
            FromMonitor::Active { pgs } => osd.active.extend(pgs),
            FromMonitor::Settings { changed } => osd.settings = changed,
            FromMonitor::SlowDisks { osds, .. } => osd.slow_disks = osds,
            FromMonitor::StatsSaved { sequence } => osd.saved.push(sequence),
            FromMonitor::Probe { nonce } => self.queue(connection, &ToMonitor::Alive { nonce }),
            FromMonitor::ClearPool { pool, .. } => {
                osd.map.pools.remove(&pool);
                osd.cleared.push(pool);
                self.queue(connection, &ToMonitor::PoolCleared { pool });
            }
            other => panic!("not for an OSD: {other:?}"),
        }
    }

    fn queue_saw(&mut self, id: OsdId) {
        let osd = &self.osds[&id];
        if !osd.is_slow_to_see {
            let revisions = osd.map.pools.iter().map(|(id, pool)| (*id, pool.revision)).collect();
            self.queue(osd.connection.unwrap(), &ToMonitor::OsdSaw { revisions });
        }
    }

    pub fn say_saw(&mut self, number: u32) {
        self.osds.get_mut(&osd_id(number)).unwrap().is_slow_to_see = false;
        self.queue_saw(osd_id(number));
        self.settle();
    }

    fn osd_request(&mut self, id: OsdId, request: Request) {
        let osd = self.osds.get_mut(&id).unwrap();
        assert_eq!(request.session, SessionId::ZERO);
        let known = osd.map.pg(request.pg).expect("the monitor knows less than we");
        assert!(request.revision <= osd.map.pools[&request.pg.pool].revision);
        let outcome = if let Some(refusal) = osd.refusal.clone() {
            Err(refusal)
        } else if known.epoch != request.epoch {
            Err(Refusal::Stale(Some(known.clone())))
        } else {
            osd.deleted.push((request.pg, request.op.clone(), request.revision));
            match request.op {
                Op::DeleteRange { .. } => {
                    let left = osd.portions.entry(request.pg).or_default();
                    let complete = *left == 0;
                    *left = left.saturating_sub(1);
                    Ok(Outcome::Deleted { count: 1, complete })
                }
                Op::Zero { .. } => {
                    Ok(Outcome::Written { version: base::Version::ZERO, durable: true })
                }
                other => panic!("not of the monitor: {other:?}"),
            }
        };
        let reply = Reply { session: request.session, sequence: request.sequence, outcome };
        let connection = osd.connection.unwrap();
        let message = Message::Reply(reply);
        self.events.push_back(Event::Net(NetEvent::Received { connection, message }));
    }

    fn queue(&mut self, connection: ConnectionId, message: &ToMonitor) {
        let message = Message::Control(serde_json::to_string(message).unwrap());
        self.events.push_back(Event::Net(NetEvent::Received { connection, message }));
    }

    /// Sends a message right after a tick at `span` from now, before the store replies to the requests made
    /// by that tick.
    pub fn say_behind_tick(
        &mut self,
        span: Duration,
        connection: ConnectionId,
        message: &ToMonitor,
    ) {
        self.now = self.now + span;
        self.events.push_back(Event::Tick);
        self.queue(connection, message);
        self.settle();
    }

    pub fn say(&mut self, connection: ConnectionId, message: &ToMonitor) {
        self.queue(connection, message);
        self.settle();
    }

    pub fn accept(&mut self, role: Role) -> ConnectionId {
        let connection = self.queue_accept(role);
        self.settle();
        connection
    }

    fn queue_accept(&mut self, role: Role) -> ConnectionId {
        self.connection_last += 2;
        let connection = ConnectionId::new(self.connection_last);
        self.open.insert(connection);
        let peer = Peer { cluster: CLUSTER, role };
        self.events.push_back(Event::Net(NetEvent::Accepted { connection, peer }));
        connection
    }

    pub fn client(&mut self) -> ConnectionId {
        self.accept(Role::Client)
    }

    pub fn break_connection(&mut self, connection: ConnectionId) {
        if self.open.remove(&connection) {
            let reason = CloseReason::Reset;
            self.event(Event::Net(NetEvent::Closed { connection, reason }));
        }
    }

    /// Creates an OSD, starts it, and sends its first report.
    pub fn add_osd(&mut self, number: u32) {
        let made = self.command(Command::OsdCreate { store: store_of(number) }).unwrap();
        assert_eq!(made["id"], number);
        let (path, host) = (format!("/osd{number}"), "h".to_string());
        let osd = FakeOsd { path, host, engine: Some(true), ..FakeOsd::default() };
        self.osds.insert(osd_id(number), osd);
        self.boot(number);
        self.report(number, |_| {});
    }

    pub fn boot_message(&self, id: OsdId) -> ToMonitor {
        let osd = &self.osds[&id];
        ToMonitor::OsdBoot {
            osd: id,
            store: store_of(id.get()),
            addresses: vec![format!("unix:osd{}", id.get())],
            peer_addresses: Vec::new(),
            pid: 1000 + id.get(),
            path: osd.path.clone(),
            host: osd.host.clone(),
            supervised: false,
            incarnation: osd.incarnation,
            suspect: osd.suspect,
            stalled: false,
            damaged_pools: BTreeSet::new(),
            slow: osd.slow_disks.contains(&id),
            seen: osd.seen(),
            engine: osd.engine,
        }
    }

    fn queue_boot(&mut self, id: OsdId) {
        let connection = self.queue_accept(Role::Osd(id, Incarnation::ZERO));
        self.osds.get_mut(&id).unwrap().connection = Some(connection);
        let message = self.boot_message(id);
        self.queue(connection, &message);
    }

    /// Connects an OSD: as the same run, if it already has one.
    pub fn boot(&mut self, number: u32) {
        self.queue_boot(osd_id(number));
        self.settle();
    }

    /// Makes an OSD report that it cannot reach the current run of another one.
    pub fn unreachable(&mut self, from: u32, to: u32, how: Unreachable) {
        let incarnation = self.monitor.committed.osd(osd_id(to)).unwrap().info.incarnation;
        let connection = self.osds[&osd_id(from)].connection.unwrap();
        self.say(connection, &ToMonitor::OsdUnreachable { osd: osd_id(to), incarnation, how });
    }

    /// Ends the OSD's process, and waits until the OSD is marked down.
    pub fn kill_osd(&mut self, number: u32) {
        self.crash_osd(number);
        self.advance(Duration::from_millis(301));
    }

    /// Ends the OSD's process.
    pub fn crash_osd(&mut self, number: u32) {
        let osd = self.osds.get_mut(&osd_id(number)).unwrap();
        osd.incarnation = None;
        osd.map = ClusterMap::default();
        if let Some(connection) = osd.connection.take() {
            self.break_connection(connection);
        }
    }

    /// Sends a report that the OSD serves the PGs assigned to it, changed by `edit`.
    pub fn report(&mut self, number: u32, edit: impl FnOnce(&mut OsdReport)) {
        let osd = &self.osds[&osd_id(number)];
        let entries = osd.map.pools.values().flat_map(|pool| &pool.pgs);
        let led = entries.filter(|entry| entry.primary_osd() == Some(osd_id(number)));
        let mut report = OsdReport {
            revisions: osd.map.pools.iter().map(|(pool, map)| (*pool, map.revision)).collect(),
            size_bytes: 10 << 30,
            used_bytes: 1 << 20,
            free_bytes: (10 << 30) - (1 << 20),
            active: led.map(|entry| entry.pg).collect(),
            ..OsdReport::default()
        };
        edit(&mut report);
        let connection = osd.connection.unwrap();
        self.say(connection, &ToMonitor::OsdReport(report));
    }

    /// Returns the answer to a command. If the monitor ends meanwhile, the command is repeated over a new
    /// connection.
    pub fn command(&mut self, command: Command) -> Result<Value, Failure> {
        for _ in 0..100 {
            let connection = self.client();
            let result = self.command_over(connection, command.clone());
            self.break_connection(connection);
            if let Some(result) = result {
                return result;
            }
            self.advance(Duration::from_millis(200));
        }
        panic!("no answer to {command:?}");
    }

    /// Returns the answer to a command, if it arrives at once.
    pub fn command_over(
        &mut self,
        connection: ConnectionId,
        command: Command,
    ) -> Option<Result<Value, Failure>> {
        self.request_last += 1;
        let asked = self.request_last;
        self.say(connection, &ToMonitor::Command { request: asked, command });
        let inbox = self.inbox.get_mut(&connection)?;
        let answered = |message: &FromMonitor| match message {
            FromMonitor::Answer { request, result } if *request == asked => Some(result.clone()),
            _ => None,
        };
        inbox.iter().find_map(answered)
    }

    pub fn make_pool(&mut self, pool: &str, pg_count: u32) -> Result<Value, Failure> {
        self.command(Command::PoolCreate {
            pool: pool.into(),
            scheme: Some(Scheme::Copies { count: 1 }),
            min_size: None,
            pg_count: Some(pg_count),
            failure_domain: None,
            block_size: None,
            objects: None,
        })
    }

    /// Returns a cluster with all OSDs up and a pool whose failure domain is the OSD.
    pub fn with_copies(osd_count: u32, replicas: u32, min_size: u32, pg_count: u32) -> Rig {
        let mut rig = Rig::new();
        for number in 1..=osd_count {
            rig.add_osd(number);
        }
        rig.make_replicated("p", replicas, Some(min_size), pg_count).unwrap();
        rig
    }

    pub fn make_replicated(
        &mut self,
        pool: &str,
        replicas: u32,
        min_size: Option<u32>,
        pg_count: u32,
    ) -> Result<Value, Failure> {
        self.command(Command::PoolCreate {
            pool: pool.into(),
            scheme: Some(Scheme::Copies { count: replicas as u8 }),
            min_size,
            pg_count: Some(pg_count),
            failure_domain: Some(FailureDomain::Osd),
            block_size: None,
            objects: None,
        })
    }

    /// Returns the committed entries of all PGs.
    pub fn entries(&self) -> Vec<PgEntry> {
        let committed = &self.monitor.committed;
        let pools = committed.pools().map(|pool| pool.pool.id);
        pools.flat_map(|pool| committed.pgs(pool)).cloned().collect()
    }

    pub fn entry(&self, number: u32) -> PgEntry {
        self.entries()[number as usize].clone()
    }

    /// Returns the planned OSDs of each PG of the first pool.
    pub fn targets(&self) -> Vec<Vec<OsdId>> {
        self.monitor.targets(PoolId::FIRST).collect()
    }

    /// Makes the entry's primary report a need.
    pub fn need(&mut self, entry: &PgEntry, what: Need) {
        self.need_from(entry.primary_osd().unwrap(), entry, what);
    }

    pub fn need_from(&mut self, from: OsdId, entry: &PgEntry, what: Need) {
        let osd = &self.osds[&from];
        let needs = vec![PgNeed { pg: entry.pg, epoch: entry.epoch, what }];
        self.say(osd.connection.unwrap(), &ToMonitor::PgNeeds { needs });
    }

    /// For PGs whose members are all present, makes the primaries report their learners complete, until no
    /// learner is left.
    pub fn fill(&mut self) {
        for _ in 0..100 {
            let is_there = |member: &Member| {
                let osd = &self.osds[&member.osd];
                osd.incarnation == Some(member.incarnation) && osd.connection.is_some()
            };
            let can_fill =
                |entry: &PgEntry| !entry.learners.is_empty() && entry.members().all(is_there);
            let filling: Vec<PgEntry> = self.entries().into_iter().filter(can_fill).collect();
            if filling.is_empty() {
                return;
            }
            let mut needs: BTreeMap<OsdId, Vec<PgNeed>> = BTreeMap::new();
            for entry in filling {
                let complete = |member: &Member| PgNeed {
                    pg: entry.pg,
                    epoch: entry.epoch,
                    what: Need::Complete(*member),
                };
                let of_primary = needs.entry(entry.primary_osd().unwrap()).or_default();
                of_primary.extend(entry.learning().map(complete));
            }
            for (osd, needs) in needs {
                let connection = self.osds[&osd].connection.unwrap();
                self.say(connection, &ToMonitor::PgNeeds { needs });
            }
        }
        panic!("learners are never done: {:?}", self.entries());
    }

    pub fn make_volume(&mut self, volume: &str, size: u64) -> Result<Value, Failure> {
        self.command(Command::VolumeCreate {
            gateway: false,
            volume: volume.into(),
            size,
            pool: None,
        })
    }

    pub fn remove_volume(&mut self, volume: &str) -> Result<Value, Failure> {
        self.command(Command::VolumeRemove { gateway: false, volume: volume.into() })
    }

    pub fn tasks(&mut self) -> Vec<Value> {
        let rows = self.command(Command::TaskList { image: None }).unwrap();
        rows.as_array().unwrap().clone()
    }

    pub fn open_session(
        &mut self,
        connection: ConnectionId,
        image: &str,
    ) -> Option<Result<(SessionId, ImageInfo), Failure>> {
        self.request_last += 1;
        let asked = self.request_last;
        let message = ToMonitor::OpenSession {
            request: asked,
            image: image.into(),
            read_only: false,
            lock: false,
            client: "test".into(),
        };
        self.say(connection, &message);
        let inbox = self.inbox.get_mut(&connection)?;
        inbox.iter().find_map(|message| match message {
            FromMonitor::SessionOpened { request, session, image, .. } if *request == asked => {
                Some(Ok((*session, image.clone())))
            }
            FromMonitor::SessionRefused { request, error } if *request == asked => {
                Some(Err(error.clone()))
            }
            _ => None,
        })
    }

    /// Requests the image with its lock, or for reading; returns the id of the request.
    pub fn ask_lock(&mut self, connection: ConnectionId, image: &str, read_only: bool) -> u64 {
        let request = self.queue_ask_lock(connection, image, read_only);
        self.settle();
        request
    }

    /// Requests the image with its lock; `next` happens before the store answers what the monitor then asks.
    pub fn ask_lock_before(&mut self, connection: ConnectionId, image: &str, next: Event) -> u64 {
        let request = self.queue_ask_lock(connection, image, false);
        self.event(next);
        request
    }

    fn queue_ask_lock(&mut self, connection: ConnectionId, image: &str, read_only: bool) -> u64 {
        self.request_last += 1;
        let (request, image, client) = (self.request_last, image.into(), "test".into());
        let ask = ToMonitor::OpenSession { request, image, read_only, lock: true, client };
        self.queue(connection, &ask);
        request
    }

    /// Returns the answer to a request made by `ask_lock`: the session, and whether it is locked and lazy.
    pub fn lock_answer(
        &mut self,
        connection: ConnectionId,
        asked: u64,
    ) -> Option<Result<(SessionId, bool, bool), Failure>> {
        self.inbox.get(&connection)?.iter().find_map(|message| match message {
            FromMonitor::SessionOpened { request, session, locked, lazy, .. }
                if *request == asked =>
            {
                Some(Ok((*session, *locked, *lazy)))
            }
            FromMonitor::SessionRefused { request, error } if *request == asked => {
                Some(Err(error.clone()))
            }
            _ => None,
        })
    }

    /// Subscribes a client to the map.
    pub fn subscribe(
        &mut self,
        connection: ConnectionId,
        map: &mut ClusterMap,
    ) -> Result<usize, PoolId> {
        let have = map.pools.iter().map(|(id, pool)| (*id, pool.revision)).collect();
        self.say(connection, &ToMonitor::Subscribe { have });
        self.read_map(connection, map)
    }

    /// Applies the map messages that the client received; returns their number.
    pub fn read_map(
        &mut self,
        connection: ConnectionId,
        map: &mut ClusterMap,
    ) -> Result<usize, PoolId> {
        let inbox = self.inbox.entry(connection).or_default();
        let mut count = 0;
        for message in std::mem::take(inbox) {
            match message {
                FromMonitor::Map(delta) => {
                    count += 1;
                    map.apply(delta).map_err(|gap| gap.pool)?;
                }
                other => inbox.push_back(other),
            }
        }
        Ok(count)
    }

    pub fn status(&mut self) -> Value {
        self.command(Command::Status).unwrap()
    }

    pub fn checks(&mut self) -> Vec<String> {
        let status = self.status();
        let checks = status["checks"].as_array().unwrap();
        checks.iter().map(|check| check["code"].as_str().unwrap().to_string()).collect()
    }

    /// Returns the severity and the hint of the check with this code in `status`.
    pub fn check(&mut self, code: &str) -> (String, String) {
        let status = self.status();
        let checks = status["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["code"] == code);
        let check = check.unwrap_or_else(|| panic!("no {code} in {checks:?}"));
        let text = |key: &str| check[key].as_str().unwrap().to_string();
        (text("severity"), text("hint"))
    }
}
