//! The client core itself: volumes, requests and their parts. Its other rooms: `monitor` (the map
//! and sessions), `link` and `reply` (OSDs).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::hash::stripe_hash;
use base::planted::{self, Bug};
use base::{
    Buffer, BufferPool, ConnectionId, ImageId, OsdId, PgId, SessionId, StripeIndex, Time,
    TraceEvent,
};
use cluster::message::Failure;
use format::door::{NetEffect, NetEvent};
use slab::Slab;

use crate::cut::{Piece, volume_size_max};
use crate::link::{Link, LinkState};
use crate::monitor::MonitorLink;
use crate::part::{
    CLOSE_SYNC_TIME_MAX, CLOSE_TIME_MAX, Part, PartKey, Patch, PatchStep, RETRY_DELAY_MIN, Stage,
    Work,
};
use crate::request::{Flush, Found, InOrder, Kind, Request, RequestKey, Slice};
use crate::routes::{Routes, Target};
use crate::timers::{Timer, Timers};
use crate::unsynced::Unsynced;
use crate::{
    Answer, Attached, Effect, Event, Operation, RequestId, Settings, VolumeError, VolumeHandle,
};

/// Most parts of one volume under way at a time.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 256;
/// Most bytes of data of one volume under way at a time; one part may go beyond.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 32 << 20;

/// The client core as a value.
pub struct ClientCore {
    pub(crate) settings: Settings,
    pub(crate) pool: BufferPool,
    pub(crate) monitor: MonitorLink,
    pub(crate) routes: Routes,
    pub(crate) links: BTreeMap<OsdId, Link>,
    pub(crate) link_of: BTreeMap<ConnectionId, OsdId>,
    pub(crate) volumes: BTreeMap<VolumeHandle, Volume>,
    pub(crate) requests: Slab<Request>,
    pub(crate) parts: Slab<Part>,
    /// Own writes of a stripe that are not done, in the order they were asked.
    pub(crate) stripes: BTreeMap<(VolumeHandle, StripeIndex), Vec<PartKey>>,
    /// Parts in the stage `Ready`. What one part's end, a message or a new epoch lets go is put here and
    /// routed at the end of [`ClientCore::apply`]: nothing is sent or ended while a list is walked.
    pub(crate) ready: VecDeque<PartKey>,
    /// Parts in the stage `Unrouted`.
    pub(crate) unrouted: Vec<PartKey>,
    /// Links that nobody may wait for any more.
    pub(crate) idle_links: Vec<OsdId>,
    pub(crate) timers: Timers,
    /// Volumes that may have room for more parts, or may have become idle.
    pub(crate) touched: Vec<VolumeHandle>,
    /// Sessions given back, for which no answer of a monitor says yet that it knows.
    pub(crate) farewells: Vec<Farewell>,
    last_connection: u64,
    last_sequence: u64,
    pub(crate) last_ask: u64,
}

/// A volume of the user.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) wants_lock: bool,
    pub(crate) attachment: Attachment,
    /// The user asked to detach it.
    pub(crate) closing: bool,
    /// When what it has sent is no longer awaited, once it is closing.
    close_deadline: Option<Time>,
    /// When the user's patience with the attach ends.
    pub(crate) open_deadline: Option<Time>,
    /// Requests that are not cut to the end, in the order they were asked.
    pub(crate) pending: VecDeque<RequestKey>,
    pub(crate) request_count: usize,
    pub(crate) part_count: usize,
    pub(crate) byte_count: u64,
    /// PGs with acknowledged writes that were not told durable, with the count of the last one.
    pub(crate) undurable: BTreeMap<PgId, u64>,
    /// Writes acknowledged and not told durable, ever.
    pub(crate) undurable_count: u64,
    /// Of a lazy volume: what its PGs acknowledged and did not make durable.
    pub(crate) unsynced: BTreeMap<PgId, Unsynced>,
    /// Bytes of it.
    pub(crate) unsynced_bytes: u64,
    /// Bytes that wait for room, as the monitor was last told.
    pub(crate) told_waiting: u64,
    /// Of a lazy volume: reads that wait for changes of which one sending had no answer.
    pub(crate) held_reads: Vec<PartKey>,
    /// A sync for our own sake that is not done.
    pub(crate) own_sync: Option<RequestKey>,
    /// Closing took too long: what is left is left.
    has_given_up: bool,
    /// Closing, it awaits what is not durable for as long as the session lasts.
    is_patient: bool,
    /// Whether this session has synced every PG of the image.
    synced_all: bool,
    /// A change was given up that had no answer: it may still be on its way.
    has_unanswered: bool,
}

/// What the monitor is told of a session that its user gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Farewell {
    pub(crate) session: SessionId,
    /// A change of it may still be on its way.
    pub(crate) unanswered: bool,
    /// The last ask for an attach before: an answer to a later one says that the monitor knows.
    pub(crate) last_ask: u64,
}

/// Top to bottom is the order in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// Waits for the monitor's answer to this ask.
    Opening { ask: u64 },
    /// Serves.
    Open(Attached),
    /// The session is over.
    Ended,
}

impl Volume {
    pub(crate) fn attached(&self) -> Option<&Attached> {
        match &self.attachment {
            Attachment::Open(attached) => Some(attached),
            Attachment::Opening { .. } | Attachment::Ended => None,
        }
    }

    /// Whether its changes may be answered before they are durable.
    pub(crate) fn is_lazy(&self) -> bool {
        self.attached().is_some_and(|attached| attached.lazy)
    }

    /// Whether a replay waits for room in its PG.
    fn waits_for_room(&self) -> bool {
        let mut gates = self.unsynced.values().filter_map(|unsynced| unsynced.gate);
        gates.any(|gate| gate.waits_for_room)
    }

    /// Bytes that replays have to write and find no room for.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let of_pg = |unsynced: &Unsynced| {
            let gate = unsynced.gate.filter(|gate| gate.waits_for_room)?;
            Some(unsynced.bytes_before(gate.epoch))
        };
        self.unsynced.values().filter_map(of_pg).sum()
    }

    fn has_room(&self, weight: u64) -> bool {
        let fits = self.byte_count + weight <= BYTES_IN_FLIGHT_MAX;
        self.part_count < PARTS_IN_FLIGHT_MAX && (fits || self.part_count == 0)
    }
}

impl ClientCore {
    /// A core with nothing attached. Requires: at least one monitor.
    pub fn new(settings: Settings, pool: BufferPool) -> ClientCore {
        assert!(!settings.monitors.is_empty());
        ClientCore {
            monitor: MonitorLink::new(&settings.monitors),
            settings,
            pool,
            routes: Routes::default(),
            links: BTreeMap::new(),
            link_of: BTreeMap::new(),
            volumes: BTreeMap::new(),
            requests: Slab::new(),
            parts: Slab::new(),
            stripes: BTreeMap::new(),
            ready: VecDeque::new(),
            unrouted: Vec::new(),
            idle_links: Vec::new(),
            timers: Timers::default(),
            touched: Vec::new(),
            farewells: Vec::new(),
            last_connection: 0,
            last_sequence: 0,
            last_ask: 0,
        }
    }

    /// When `Event::Tick` is wanted at the latest; `None`: not before another event.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.deadline()
    }

    /// Takes one event and appends what follows from it.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Net(event) => self.apply_net(now, event, effects),
            Event::Connect => self.need_monitor(now, effects),
            Event::Open { volume, name, read_only, lock } => {
                self.open(now, volume, name, (read_only, lock), effects);
            }
            Event::Close { volume, patient } => self.close(now, volume, patient, effects),
            Event::Request { id, volume, operation } => {
                self.request(now, id, volume, operation, effects);
            }
            Event::Tick => {
                while let Some(timer) = self.timers.pop_due(now) {
                    self.ring(now, timer, effects);
                    self.settle(now, effects);
                }
            }
        }
        self.settle(now, effects);
    }

    /// Routes what was let go, and cuts more where there is room for it, until nothing is left to do.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            if let Some(part) = self.ready.pop_front() {
                self.route(now, part, effects);
            } else if let Some(osd) = self.idle_links.pop() {
                self.rest_link(osd);
            } else if let Some(volume) = self.touched.pop() {
                self.admit(now, volume, effects);
                self.finish_close(volume, effects);
            } else {
                return;
            }
        }
    }

    fn apply_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, .. } => {
                effects.push(Effect::Net(NetEffect::Close { connection }));
            }
            NetEvent::Connected { connection, peer } => {
                if self.monitor.is(connection) {
                    self.monitor_connected(now, connection, peer, effects);
                } else {
                    self.link_connected(now, connection, peer, effects);
                }
            }
            NetEvent::Received { connection, message } => {
                if self.monitor.is(connection) {
                    self.monitor_received(now, message, effects);
                } else {
                    self.link_received(now, connection, message, effects);
                }
            }
            NetEvent::Closed { connection, reason } => {
                if self.monitor.is(connection) {
                    self.monitor_lost(now, reason, effects);
                } else if let Some(osd) = self.link_of.remove(&connection) {
                    self.link_lost(now, osd);
                }
            }
        }
    }

    fn ring(&mut self, now: Time, timer: Timer, effects: &mut Vec<Effect>) {
        match timer {
            Timer::Monitor => self.monitor_alarm(now, effects),
            Timer::Link(osd) => self.connect_link(osd, effects),
            Timer::Part(key) => {
                assert!(matches!(self.parts[key].stage, Stage::Delayed { .. }));
                self.make_ready(key);
            }
            Timer::Request(key) if self.requests[key].is_own() => {
                self.requests[key].deadline = None;
                self.begin_pass(now, key, effects);
            }
            Timer::Request(key) => {
                self.requests[key].deadline = None;
                self.answer(key, Err(VolumeError::TimedOut), effects);
                self.fail(now, key, VolumeError::TimedOut, effects);
            }
            Timer::Open(handle) => {
                let volume = self.volumes.get_mut(&handle).expect("disarmed when it goes");
                volume.open_deadline = None;
                let failure = Failure {
                    code: "timed_out".to_string(),
                    message: format!("no monitor answered in time about volume {}", volume.name),
                    hint: "check that the cluster runs: ashlar status".to_string(),
                };
                self.opened(handle, Err(failure), effects);
            }
            Timer::Close(handle) => {
                let volume = self.volumes.get_mut(&handle).expect("disarmed when it goes");
                volume.close_deadline = None;
                if volume.is_patient && !volume.undurable.is_empty() {
                    self.arm_close(now, handle);
                } else {
                    self.give_up(now, handle, effects);
                }
            }
        }
    }

    // ---- volumes

    fn open(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        name: String,
        (read_only, wants_lock): (bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        self.last_ask += 1;
        let open_deadline = self.settings.retry_for.map(|patience| now + patience);
        if let Some(at) = open_deadline {
            self.timers.arm(at, Timer::Open(handle));
        }
        let volume = Volume {
            name,
            read_only,
            wants_lock,
            attachment: Attachment::Opening { ask: self.last_ask },
            closing: false,
            close_deadline: None,
            open_deadline,
            pending: VecDeque::new(),
            request_count: 0,
            part_count: 0,
            byte_count: 0,
            undurable: BTreeMap::new(),
            undurable_count: 0,
            unsynced: BTreeMap::new(),
            unsynced_bytes: 0,
            told_waiting: 0,
            held_reads: Vec::new(),
            own_sync: None,
            has_given_up: false,
            is_patient: false,
            synced_all: false,
            has_unanswered: false,
        };
        let before = self.volumes.insert(handle, volume);
        assert!(before.is_none());
        self.ask_open(now, handle, effects);
    }

    /// The attach ended, well or not.
    pub(crate) fn opened(
        &mut self,
        handle: VolumeHandle,
        result: Result<Attached, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let volume = self.volumes.get_mut(&handle).expect("only a known volume is opened");
        assert!(matches!(volume.attachment, Attachment::Opening { .. }));
        if let Some(at) = volume.open_deadline.take() {
            self.timers.disarm(at, Timer::Open(handle));
        }
        match &result {
            Ok(attached) => volume.attachment = Attachment::Open(attached.clone()),
            Err(_) => {
                self.volumes.remove(&handle);
            }
        }
        effects.push(Effect::Opened { volume: handle, result });
    }

    fn close(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        is_patient: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(volume) = self.volumes.get_mut(&handle) else {
            effects.push(Effect::Closed { volume: handle });
            return;
        };
        volume.closing = true;
        volume.is_patient = is_patient;
        if let Attachment::Opening { .. } = volume.attachment {
            let failure = Failure {
                code: "closed".to_string(),
                message: format!("volume {} was closed while it was opened", volume.name),
                hint: String::new(),
            };
            self.opened(handle, Err(failure), effects);
            effects.push(Effect::Closed { volume: handle });
            return;
        }
        if volume.close_deadline.is_none() {
            self.arm_close(now, handle);
        }
        let of_volume = self.requests.iter().filter(|(_, request)| request.volume == handle);
        let open = of_volume.filter(|(_, request)| !request.is_own()).map(|(key, _)| key);
        for key in open.collect::<Vec<_>>() {
            self.fail(now, key, VolumeError::Ended, effects);
        }
        self.touched.push(handle);
    }

    fn arm_close(&mut self, now: Time, handle: VolumeHandle) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        let span = if volume.is_lazy() { CLOSE_SYNC_TIME_MAX } else { CLOSE_TIME_MAX };
        volume.close_deadline = Some(now + span);
        self.timers.arm(now + span, Timer::Close(handle));
    }

    /// A closing volume no longer awaits what it has sent. Requires: its requests have failed.
    fn give_up(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        volume.has_given_up = true;
        // What is not synced may be on its way, once more.
        volume.has_unanswered |= !volume.unsynced.is_empty();
        volume.unsynced.values_mut().for_each(|unsynced| unsynced.gate = None);
        let own = self.requests.iter().filter(|(_, it)| it.volume == handle && it.is_own());
        for key in own.map(|(key, _)| key).collect::<Vec<_>>() {
            self.drop_request(key);
        }
        for key in self.parts_where(|part| part.volume == handle) {
            let part = &mut self.parts[key];
            assert!(matches!(part.stage, Stage::Sent { .. }));
            part.is_astray |= part.changes_stripe();
            self.end_part(now, key, Found::Nothing, effects);
        }
    }

    fn finish_close(&mut self, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let Some(volume) = self.volumes.get(&handle) else { return };
        if !volume.closing || volume.request_count > 0 {
            return;
        }
        if volume.is_lazy() && !volume.undurable.is_empty() && !volume.has_given_up {
            self.begin_sync(handle);
            return;
        }
        let volume = self.volumes.remove(&handle).expect("looked at just now");
        assert!(volume.part_count == 0);
        if let Some(at) = volume.close_deadline {
            self.timers.disarm(at, Timer::Close(handle));
        }
        if let Some(attached) = volume.attached() {
            self.close_session(attached.session, volume.has_unanswered, effects);
        }
        effects.push(Effect::Closed { volume: handle });
    }

    /// Whether a volume was attached and its session is over: nothing more is sent for it.
    pub fn is_over(&self, volume: VolumeHandle) -> bool {
        self.volumes.get(&volume).is_some_and(|volume| volume.attachment == Attachment::Ended)
    }

    /// The session is over: every request of its volume ends, whatever becomes of it.
    pub(crate) fn end_session(&mut self, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let parts: Vec<PartKey> = self.parts_where(|part| part.volume == handle);
        for key in parts {
            self.detach(key);
            self.parts.remove(key);
        }
        let first = (handle, StripeIndex::ZERO);
        let last = (handle, StripeIndex::new(u32::MAX));
        let stripes: Vec<_> = self.stripes.range(first..=last).map(|(place, _)| *place).collect();
        for place in stripes {
            self.stripes.remove(&place);
        }
        let of_volume = self.requests.iter().filter(|(_, request)| request.volume == handle);
        let keys: Vec<RequestKey> = of_volume.map(|(key, _)| key).collect();
        for key in keys {
            self.answer(key, Err(VolumeError::Ended), effects);
            self.forget_request(key);
        }
        let volume = self.volumes.get_mut(&handle).expect("only a known volume has a session");
        if let Some(attached) = volume.attached() {
            let what = "the session is over: its volume was taken over, removed or shrunk";
            let event = TraceEvent::warn(what).with("volume", &volume.name);
            effects.push(Effect::Trace(event.with("session", attached.session)));
        }
        volume.attachment = Attachment::Ended;
        volume.part_count = 0;
        volume.byte_count = 0;
        volume.unsynced.clear();
        volume.unsynced_bytes = 0;
        assert!(volume.request_count == 0);
        assert!(volume.pending.is_empty());
        self.touched.push(handle);
    }

    // ---- requests

    fn request(
        &mut self,
        now: Time,
        id: RequestId,
        handle: VolumeHandle,
        operation: Operation,
        effects: &mut Vec<Effect>,
    ) {
        let kind = match self.check(handle, operation) {
            Ok(Some(kind)) => kind,
            Ok(None) => {
                effects.push(Effect::Done { id, result: Ok(Answer::Done) });
                return;
            }
            Err(error) => {
                effects.push(Effect::Done { id, result: Err(error) });
                return;
            }
        };
        let deadline = self.settings.retry_for.map(|patience| now + patience);
        let key = self.requests.insert(Request {
            id: Some(id),
            volume: handle,
            kind,
            part_count: 0,
            parts_open: 0,
            failure: None,
            answered: false,
            deadline,
        });
        if let Some(at) = deadline {
            self.timers.arm(at, Timer::Request(key));
        }
        let volume = self.volumes.get_mut(&handle).expect("checked above");
        volume.request_count += 1;
        volume.pending.push_back(key);
        self.touched.push(handle);
    }

    /// What is to be done; `None`: nothing, it is done already.
    fn check(
        &self,
        handle: VolumeHandle,
        operation: Operation,
    ) -> Result<Option<Kind>, VolumeError> {
        let volume = self.volumes.get(&handle).filter(|volume| !volume.closing);
        let (volume, attached) = volume
            .and_then(|volume| Some((volume, volume.attached()?)))
            .ok_or(VolumeError::Ended)?;
        let size = attached.image.size;
        let range = |offset: u64, length: u64| -> Result<Range<u64>, VolumeError> {
            let end = offset.checked_add(length).filter(|end| *end <= size && length > 0);
            Ok(offset..end.ok_or(VolumeError::OutOfRange)?)
        };
        let writable = || if volume.read_only { Err(VolumeError::ReadOnly) } else { Ok(()) };
        Ok(Some(match operation {
            Operation::Read { offset, length } => {
                Kind::Read { rest: range(offset, length)?, found: InOrder::default() }
            }
            Operation::Extents { offset, length } => {
                Kind::Extents { rest: range(offset, length)?, found: InOrder::default() }
            }
            Operation::Write { offset, data, durable } => {
                writable()?;
                Kind::Write { rest: range(offset, data.len() as u64)?, data, durable }
            }
            Operation::Zero { offset, length, durable } => {
                writable()?;
                Kind::Zero { rest: range(offset, length)?, durable }
            }
            Operation::Flush => {
                let durable = volume.synced_all && volume.undurable.is_empty();
                if durable || volume.read_only {
                    return Ok(None);
                }
                Kind::Flush(Flush::Undecided)
            }
        }))
    }

    /// Cuts parts of waiting requests while the volume has room for them.
    pub(crate) fn admit(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        loop {
            let Some(volume) = self.volumes.get_mut(&handle) else { return };
            let Some(&key) = volume.pending.front() else { return };
            let Attachment::Open(attached) = &volume.attachment else { return };
            let Some(block_size) = self.routes.block_size(attached.image.pool) else { return };
            if attached.image.size > volume_size_max(block_size) {
                self.fail(now, key, VolumeError::OutOfRange, effects);
                continue;
            }
            let request = &mut self.requests[key];
            if let Kind::Flush(flush @ Flush::Undecided) = &mut request.kind {
                let first = !volume.synced_all;
                let pgs = if first {
                    let all = self.routes.pgs_of(&attached.image).expect("the pool is known");
                    all.into_iter().collect()
                } else {
                    volume.undurable.keys().map(|pg| pg.number).collect()
                };
                *flush = Flush::Rest { pgs, first };
            }
            if request.is_cut() || request.failure.is_some() {
                volume.pending.pop_front();
                self.finish_request(key, effects);
                continue;
            }
            let weight = request.next_weight(block_size);
            if !volume.has_room(weight) {
                return;
            }
            let is_zero = matches!(request.kind, Kind::Zero { .. });
            let mut lazy = volume.is_lazy() && request.may_be_lazy();
            if lazy && !self.has_room_to_keep(handle, weight) {
                if !self.volumes[&handle].waits_for_room() {
                    return;
                }
                // Less is kept only when a PG has room. Discards make it: one that is durable is not kept.
                if !is_zero {
                    self.fail(now, key, VolumeError::Full, effects);
                    continue;
                }
                lazy = false;
            }
            let request = &mut self.requests[key];
            let volume = self.volumes.get_mut(&handle).expect("looked at above");
            let image = &volume.attached().expect("looked at above").image;
            let (pool, seed) = (image.pool, image.seed);
            volume.part_count += 1;
            volume.byte_count += weight;
            let index = request.part_count;
            let slice = request.cut(block_size);
            if request.is_cut() {
                // A sync that makes room to keep more may stand before it now.
                volume.pending.retain(|pending| *pending != key);
            }
            let (stripe, target, work) = work_of(slice, seed);
            let part = self.parts.insert(Part {
                request: key,
                volume: handle,
                index,
                pool,
                target,
                stripe,
                work,
                stage: Stage::Held,
                delay: RETRY_DELAY_MIN,
                mismatch_count: 0,
                is_astray: false,
                weight,
                lazy,
                is_replay: false,
                passes_gate: false,
            });
            self.enter_stripe(part);
        }
    }

    /// Remembers the first error of a request; what is not sent of it is dropped.
    pub(crate) fn fail(
        &mut self,
        now: Time,
        key: RequestKey,
        error: VolumeError,
        effects: &mut Vec<Effect>,
    ) {
        let request = &mut self.requests[key];
        if request.failure.is_none() {
            request.failure = Some(error);
        }
        if request.parts_open == 0 {
            self.finish_request(key, effects);
            return;
        }
        let unsent = self
            .parts_where(|part| part.request == key && !matches!(part.stage, Stage::Sent { .. }));
        for part in unsent {
            self.end_part(now, part, Found::Nothing, effects);
        }
    }

    /// Ends the request if nothing of it is left to do.
    fn finish_request(&mut self, key: RequestKey, effects: &mut Vec<Effect>) {
        let request = &mut self.requests[key];
        if !request.is_over() {
            return;
        }
        let volume = self.volumes.get_mut(&request.volume).expect("it outlives its requests");
        if let Kind::Flush(Flush::Rest { first: true, .. }) = request.kind
            && request.failure.is_none()
        {
            volume.synced_all = true;
        }
        let result = request.take_result();
        self.answer(key, result, effects);
        self.forget_request(key);
    }

    fn answer(
        &mut self,
        key: RequestKey,
        result: Result<Answer, VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        let request = &mut self.requests[key];
        if !request.answered {
            request.answered = true;
            let id = request.id.expect("own requests are answered from the start");
            effects.push(Effect::Done { id, result });
        }
    }

    pub(crate) fn forget_request(&mut self, key: RequestKey) {
        let request = self.requests.remove(key);
        assert!(request.answered);
        if let Some(at) = request.deadline {
            self.timers.disarm(at, Timer::Request(key));
        }
        let volume = self.volumes.get_mut(&request.volume).expect("it outlives its requests");
        if !request.is_cut() {
            volume.pending.retain(|pending| *pending != key);
        }
        volume.request_count -= 1;
        volume.own_sync.take_if(|own| *own == key);
        self.touched.push(request.volume);
    }

    // ---- parts

    /// A new part takes its turn among the own writes of its stripe.
    fn enter_stripe(&mut self, key: PartKey) {
        let part = &self.parts[key];
        if part.changes_stripe() {
            let queue = self.stripes.entry((part.volume, part.stripe)).or_default();
            let held = queue.iter().any(|earlier| part.conflicts(&self.parts[*earlier]));
            queue.push(key);
            if held {
                assert!(part.stage == Stage::Held);
                return;
            }
        }
        self.make_ready(key);
    }

    /// A write is done: those that it held go on.
    fn leave_stripe(&mut self, place: (VolumeHandle, StripeIndex), key: PartKey) {
        let queue = self.stripes.get_mut(&place).expect("it entered");
        let turn = queue.iter().position(|other| *other == key).expect("it entered");
        queue.remove(turn);
        if queue.is_empty() {
            self.stripes.remove(&place);
            return;
        }
        let parts = &self.parts;
        let is_free = |turn: usize| {
            let part = &parts[queue[turn]];
            part.stage == Stage::Held
                && !queue[..turn].iter().any(|earlier| part.conflicts(&parts[*earlier]))
        };
        let free: Vec<PartKey> =
            (turn..queue.len()).filter(|turn| is_free(*turn)).map(|turn| queue[turn]).collect();
        for key in free {
            self.make_ready(key);
        }
    }

    /// Lets a part go: it is routed before `apply` returns. Requires: it stands in no list of its stage.
    pub(crate) fn make_ready(&mut self, key: PartKey) {
        self.parts[key].stage = Stage::Ready;
        self.ready.push_back(key);
    }

    /// Sends a part to where it belongs now, or lets it wait for the way to there.
    /// Requires: it stands in no list of its stage.
    fn route(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        part.stage = Stage::Held;
        let passes_gate = std::mem::take(&mut part.passes_gate);
        if self.requests[part.request].failure.is_some() {
            self.end_part(now, key, Found::Nothing, effects);
            return;
        }
        let Some(route) = self.routes.find(part.pool, part.target) else {
            part.stage = Stage::Unrouted;
            self.unrouted.push(key);
            return;
        };
        let is_held_back = !passes_gate && self.is_held_back(now, key, route, effects);
        if is_held_back || self.is_held_read(key) {
            return;
        }
        let part = &mut self.parts[key];
        // OSDs that have several addresses are reached over one network or another.
        let new = || Link::new(route.osd.get() as usize);
        let link = self.links.entry(route.osd).or_insert_with(new);
        if let LinkState::Open { connection, .. } = link.state {
            self.send(key, route, connection, effects);
            return;
        }
        part.stage = Stage::Connecting(route.osd);
        link.waiting.push(key);
        if link.state == LinkState::Idle {
            self.connect_link(route.osd, effects);
        }
    }

    /// A part is over, well or not. Requires: the stage is what it was last given.
    pub(crate) fn end_part(
        &mut self,
        now: Time,
        key: PartKey,
        found: Found,
        effects: &mut Vec<Effect>,
    ) {
        self.detach(key);
        let part = self.parts.remove(key);
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        volume.part_count -= 1;
        volume.byte_count -= part.weight;
        self.touched.push(part.volume);
        let request = &mut self.requests[part.request];
        request.parts_open -= 1;
        if part.is_replay {
            self.advance_replay(now, part.request, effects);
            return;
        }
        if request.failure.is_some() {
            // What was done at last has overtaken all earlier sendings; what was not may not have.
            volume.has_unanswered |= part.is_astray;
            if part.is_astray {
                self.ended_unanswered(&part);
            }
        } else {
            request.put(part.index, found);
            if planted::on(Bug::PartAnsweredForWhole) && matches!(request.kind, Kind::Write { .. })
            {
                self.answer(part.request, Ok(Answer::Done), effects);
            }
        }
        self.finish_request(part.request, effects);
        if part.changes_stripe() {
            self.leave_stripe((part.volume, part.stripe), key);
            self.free_reads(part.volume);
        }
    }

    /// Takes a part out of the list that its stage stands for.
    pub(crate) fn detach(&mut self, key: PartKey) {
        match self.parts[key].stage {
            Stage::Held => {
                let volume = self.volumes.get_mut(&self.parts[key].volume);
                let volume = volume.expect("it outlives its parts");
                volume.held_reads.retain(|other| *other != key);
            }
            Stage::Ready => self.ready.retain(|other| *other != key),
            Stage::Unrouted => self.unrouted.retain(|other| *other != key),
            Stage::Behind(pg) => {
                let volume = self.volumes.get_mut(&self.parts[key].volume);
                let volume = volume.expect("it outlives its parts");
                let unsynced = volume.unsynced.get_mut(&pg).expect("it has waiting parts");
                unsynced.waiting.retain(|other| *other != key);
            }
            Stage::Connecting(osd) => {
                let link = self.links.get_mut(&osd).expect("made when the part came");
                link.waiting.retain(|other| *other != key);
            }
            Stage::Sent { osd, sequence, .. } => {
                let link = self.links.get_mut(&osd).expect("made when the part came");
                link.forget(sequence);
            }
            Stage::Delayed { until, .. } => self.timers.disarm(until, Timer::Part(key)),
        }
        self.parts[key].stage = Stage::Held;
    }

    /// Everything may have room or be idle: looked at before `apply` returns.
    pub(crate) fn touch_all(&mut self) {
        self.touched.extend(self.volumes.keys().copied());
    }

    pub(crate) fn parts_where(&self, wanted: impl Fn(&Part) -> bool) -> Vec<PartKey> {
        self.parts.iter().filter(|(_, part)| wanted(part)).map(|(key, _)| key).collect()
    }

    // ---- names

    /// A new connection; even, as the door asks.
    pub(crate) fn next_connection(&mut self) -> ConnectionId {
        self.last_connection += 2;
        ConnectionId::new(self.last_connection)
    }

    /// Grows with each request of any session, and so of each.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }
}

/// Where a slice goes and what is done there.
fn work_of(slice: Slice, seed: ImageId) -> (StripeIndex, Target, Work) {
    let (piece, work) = match slice {
        Slice::Sync(number) => {
            return (StripeIndex::ZERO, Target::Pg(number), Work::Sync { covers: 0 });
        }
        Slice::Read(piece) => (piece.clone(), Work::Read { range: piece.range }),
        Slice::Extents(piece) => (piece.clone(), Work::Extents { range: piece.range }),
        Slice::Write(piece, bytes) if piece.whole => {
            (piece.clone(), Work::write(piece.range, bytes))
        }
        Slice::Zero(piece) if piece.whole => (piece.clone(), Work::Zero { range: piece.range }),
        Slice::Write(piece, bytes) => (piece.clone(), patch(piece, Some(bytes))),
        Slice::Zero(piece) => (piece.clone(), patch(piece, None)),
    };
    (piece.stripe, Target::Stripe(stripe_hash(seed, piece.stripe)), work)
}

fn patch(piece: Piece, bytes: Option<Buffer>) -> Work {
    Work::Patch(Patch { range: piece.range, bytes, step: PatchStep::Read })
}
