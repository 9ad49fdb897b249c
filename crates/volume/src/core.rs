//! The client core itself: volumes, requests and their parts.
//!
//! The modules of the core: `monitor` (the map and sessions), `admit` (which parts may go), `send` and `reply`
//! (OSDs), `give_up` (deadlines), `replay` (lazy volumes).

mod admit;
mod give_up;
mod monitor;
mod replay;
mod reply;
mod send;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::planted::{self, Bug};
use base::{BufferPool, ConnectionId, PgId, StripeIndex, Time, TraceEvent, UNIT_SIZE};
use cluster::message::Failure;
use format::door::{NetEffect, NetEvent};
use format::wire::{PAYLOAD_SIZE_MAX, Payload};

use crate::link::Links;
use crate::monitor_contact::{Farewell, MonitorContact};
use crate::part::{Part, Stage, Work};
use crate::queue::Turn;
use crate::request::{Flush, Found, InOrder, List, Progress, Request};
use crate::routes::{Routes, Target};
use crate::table::{PartKey, RequestKey, Table};
use crate::timers::{Timer, Timers};
use crate::volume::{Attachment, Volume, Wants};
use crate::windows::Windows;
use crate::{
    Answer, Attached, Effect, Event, Operation, Place, RequestId, Settings, Used, VolumeError,
    VolumeHandle,
};

/// The client core as a value.
pub struct ClientCore {
    pub(crate) settings: Settings,
    pub(crate) pool: BufferPool,
    pub(crate) monitor: MonitorContact,
    pub(crate) routes: Routes,
    links: Links,
    pub(crate) volumes: BTreeMap<VolumeHandle, Volume>,
    pub(crate) requests: Table<RequestKey, Request>,
    /// The requests of the user, by the ids that it chose.
    requests_by_id: BTreeMap<RequestId, RequestKey>,
    pub(crate) parts: Table<PartKey, Part>,
    /// This client's unfinished changes to each stripe, in the order in which they were requested.
    pub(crate) stripes: BTreeMap<(VolumeHandle, StripeIndex), Vec<PartKey>>,
    /// Parts in the stage `Ready`. Parts that an event releases are queued here and routed at the end
    /// of [`ClientCore::apply`], so that no part is sent or ended while a list is iterated.
    pub(crate) ready: VecDeque<PartKey>,
    /// Parts in the stage `Unrouted`.
    pub(crate) unrouted: Vec<PartKey>,
    pub(crate) timers: Timers,
    /// Volumes to check before `apply` returns: they may have room for more parts, or may have become
    /// idle.
    pub(crate) touched: Vec<VolumeHandle>,
    /// Closed sessions, until a monitor is known to have received the close.
    pub(crate) farewells: Vec<Farewell>,
    last_connection: u64,
    last_sequence: u64,
    pub(crate) last_ask: u64,
}

impl ClientCore {
    /// Creates a core without volumes. Requires: at least one monitor.
    pub fn new(settings: Settings, pool: BufferPool) -> ClientCore {
        assert!(!settings.monitors.is_empty());
        ClientCore {
            monitor: MonitorContact::new(&settings.monitors),
            settings,
            pool,
            routes: Routes::default(),
            links: Links::default(),
            volumes: BTreeMap::new(),
            requests: Table::new(),
            requests_by_id: BTreeMap::new(),
            parts: Table::new(),
            stripes: BTreeMap::new(),
            ready: VecDeque::new(),
            unrouted: Vec::new(),
            timers: Timers::default(),
            touched: Vec::new(),
            farewells: Vec::new(),
            last_connection: 0,
            last_sequence: 0,
            last_ask: 0,
        }
    }

    /// Returns the preferred size and alignment of operations on an attached volume: a power of two. One unit
    /// while the volume's pool is not known.
    pub fn optimal_io_bytes(&self, handle: VolumeHandle) -> u64 {
        let attached = self.volumes.get(&handle).and_then(Volume::attached);
        let pool = attached.and_then(|attached| self.routes.pool(attached.pool()));
        pool.map_or(UNIT_SIZE, |pool| pool.optimal_io_bytes())
    }

    /// Returns the time at which `Event::Tick` is due; `None`: no timer is armed.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.deadline()
    }

    /// Handles one event and appends its effects.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Net(event) => self.on_net(now, event, effects),
            Event::Connect => self.need_monitor(now, effects),
            Event::Open { volume, name, read_only, lock } => {
                self.on_open(now, volume, name, Wants::Volume { read_only, lock }, effects);
            }
            Event::OpenPool { pool, name } => {
                self.on_open(now, pool, name, Wants::Pool, effects);
            }
            Event::Close { volume, patient } => self.on_close(now, volume, patient, effects),
            Event::Request { id, volume, operation, deadline } => {
                self.on_request(now, id, volume, operation, deadline, effects);
            }
            Event::Cancel { id } => self.on_cancel(now, id, effects),
            Event::Tick => {
                while let Some(timer) = self.timers.pop_due(now) {
                    self.on_timer(now, timer, effects);
                    self.settle(now, effects);
                }
            }
        }
        self.settle(now, effects);
    }

    /// Routes the parts that are ready and cuts more parts where volumes have room, until nothing is left to
    /// do.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            if let Some(part) = self.ready.pop_front() {
                self.route(now, part, effects);
            } else if let Some(osd) = self.links.pop_idle() {
                self.rest_link(osd);
            } else if let Some(volume) = self.touched.pop() {
                self.admit(now, volume, effects);
                self.finish_close(volume, effects);
            } else {
                return;
            }
        }
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        match event {
            NetEvent::Accepted { connection, .. } => {
                effects.push(Effect::Net(NetEffect::Close { connection }));
            }
            NetEvent::Connected { connection, peer, .. } => {
                if self.monitor.link.connection() == Some(connection) {
                    self.on_monitor_connected(now, connection, peer, effects);
                } else {
                    self.on_osd_connected(now, connection, peer, effects);
                }
            }
            NetEvent::Received { connection, message } => {
                if self.monitor.link.connection() == Some(connection) {
                    self.on_monitor_message(now, message, effects);
                } else {
                    self.on_osd_message(now, connection, message, effects);
                }
            }
            NetEvent::Closed { connection, reason } => {
                if self.monitor.link.connection() == Some(connection) {
                    self.on_monitor_closed(now, reason, effects);
                } else if let Some(osd) = self.links.forget(connection) {
                    self.on_osd_closed(now, osd);
                }
            }
        }
    }

    fn on_timer(&mut self, now: Time, timer: Timer, effects: &mut Vec<Effect>) {
        match timer {
            Timer::Monitor => self.on_monitor_alarm(now, effects),
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
                if planted::on(Bug::GivenUpWithoutDeadline) {
                    let is_beside = |other: &RequestKey| {
                        *other != key && self.requests[*other].deadline.is_none()
                    };
                    let beside = self.requests_by_id.values().copied().filter(is_beside);
                    for other in beside.collect::<Vec<_>>() {
                        self.give_up_request(now, other, effects);
                    }
                }
                self.give_up_request(now, key, effects);
            }
            Timer::Stalls(handle) => self.check_stalls(now, handle),
            Timer::Open(handle) => {
                let volume = self.volumes.get_mut(&handle).expect("disarmed when it goes");
                volume.open_deadline = None;
                let failure = Failure {
                    code: "timed_out".to_string(),
                    message: format!(
                        "no monitor answered in time to attach volume {}",
                        volume.name
                    ),
                    hint: "check that the cluster is running: ashlar status".to_string(),
                };
                self.end_open(handle, Err(failure), effects);
            }
            Timer::Close(handle) => {
                let volume = self.volumes.get_mut(&handle).expect("disarmed when it goes");
                let closing = volume.closing.as_mut().expect("armed while it closes");
                closing.deadline = None;
                if closing.is_patient && !volume.undurable.is_empty() {
                    self.arm_close(now, handle);
                } else {
                    self.give_up(now, handle, effects);
                }
            }
        }
    }

    // ---- volumes

    fn on_open(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        name: String,
        wants: Wants,
        effects: &mut Vec<Effect>,
    ) {
        self.last_ask += 1;
        let open_deadline = self.settings.retry_for.map(|patience| now + patience);
        if let Some(at) = open_deadline {
            self.timers.arm(at, Timer::Open(handle));
        }
        let volume = Volume::opening(name, wants, self.last_ask, open_deadline);
        let before = self.volumes.insert(handle, volume);
        assert!(before.is_none());
        self.ask_open(now, handle, effects);
    }

    /// Ends an attach, with success or failure.
    pub(crate) fn end_open(
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

    fn on_close(
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
        let closing = volume.closing.get_or_insert_default();
        closing.is_patient = is_patient;
        let is_armed = closing.deadline.is_some();
        if let Attachment::Opening { .. } = volume.attachment {
            let failure = Failure {
                code: "closed".to_string(),
                message: format!("volume {} was closed before it was attached", volume.name),
                hint: String::new(),
            };
            self.end_open(handle, Err(failure), effects);
            effects.push(Effect::Closed { volume: handle });
            return;
        }
        if !is_armed {
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
        let until = now + volume.close_time_max();
        volume.closing.as_mut().expect("it closes").deadline = Some(until);
        self.timers.arm(until, Timer::Close(handle));
    }

    /// Stops waiting for answers for a closing volume. Requires: its requests have failed.
    fn give_up(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        volume.closing.as_mut().expect("it closes").has_given_up = true;
        // Replayed writes may still be in transit to an OSD.
        volume.has_unanswered |= !volume.unsynced.is_empty();
        volume.unsynced.values_mut().for_each(|unsynced| unsynced.gate = None);
        let own = self.requests.iter().filter(|(_, it)| it.volume == handle && it.is_own());
        for key in own.map(|(key, _)| key).collect::<Vec<_>>() {
            self.drop_request(key);
        }
        for key in self.parts_where(|part| part.volume == handle) {
            let part = &mut self.parts[key];
            assert!(matches!(part.stage, Stage::Sent { .. }));
            part.on_answer_lost();
            self.end_part(now, key, Found::Nothing, effects);
        }
    }

    fn finish_close(&mut self, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let Some(volume) = self.volumes.get(&handle) else { return };
        let Some(closing) = volume.closing.as_ref().filter(|_| volume.request_count == 0) else {
            return;
        };
        if volume.is_lazy() && !volume.undurable.is_empty() && !closing.has_given_up {
            let pgs: Vec<PgId> = volume.undurable.keys().copied().collect();
            pgs.into_iter().for_each(|pg| self.begin_sync(handle, pg));
            return;
        }
        let deadline = closing.deadline;
        let volume = self.volumes.remove(&handle).expect("looked at just now");
        assert!(volume.part_count == 0);
        assert!(volume.byte_count == 0);
        if let Some(at) = deadline {
            self.timers.disarm(at, Timer::Close(handle));
        }
        if let Some(at) = volume.stall_check {
            self.timers.disarm(at, Timer::Stalls(handle));
        }
        if let Some(attached) = volume.attached() {
            self.close_session(attached.session, volume.has_unanswered, effects);
        }
        effects.push(Effect::Closed { volume: handle });
    }

    /// Whether a volume was attached and its session is over, so that nothing more is sent for it.
    pub fn is_over(&self, volume: VolumeHandle) -> bool {
        self.volumes.get(&volume).is_some_and(|volume| volume.attachment == Attachment::Ended)
    }

    /// Handles the end of a session: every request of its volume fails.
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
            let what = "the session is over: it was fenced, or its volume was removed or shrunk";
            let event = TraceEvent::warn(what).with("volume", &volume.name);
            effects.push(Effect::Trace(event.with("session", attached.session)));
        }
        volume.attachment = Attachment::Ended;
        volume.part_count = 0;
        volume.byte_count = 0;
        volume.windows = Windows::default();
        volume.mutations.clear();
        volume.given_up.clear();
        volume.unsynced.clear();
        volume.unsynced_bytes = 0;
        assert!(volume.request_count == 0);
        assert!(volume.queue.is_empty());
        self.touched.push(handle);
    }

    // ---- requests

    fn on_request(
        &mut self,
        now: Time,
        id: RequestId,
        handle: VolumeHandle,
        operation: Operation,
        deadline: Option<Time>,
        effects: &mut Vec<Effect>,
    ) {
        let progress = match self.check(handle, operation) {
            Ok(Some(progress)) => progress,
            Ok(None) => {
                effects.push(Effect::Done { id, result: Ok(Answer::Done) });
                return;
            }
            Err(error) => {
                effects.push(Effect::Done { id, result: Err(error) });
                return;
            }
        };
        let key = self.requests.insert(Request {
            id: Some(id),
            volume: handle,
            progress,
            turn: Turn::NONE,
            part_count: 0,
            open: Vec::new(),
            failure: None,
            answered: false,
            has_changed: false,
            deadline,
        });
        self.requests_by_id.insert(id, key);
        if let Some(at) = deadline {
            self.timers.arm(at.max(now), Timer::Request(key));
            self.requests[key].deadline = Some(at.max(now));
        }
        let volume = self.volumes.get_mut(&handle).expect("checked above");
        volume.request_count += 1;
        self.requests[key].turn = volume.queue.add(key, true);
        self.touched.push(handle);
    }

    /// Checks an operation and returns the work it needs; `None`: the operation is already done.
    fn check(
        &self,
        handle: VolumeHandle,
        operation: Operation,
    ) -> Result<Option<Progress>, VolumeError> {
        let volume = self.volumes.get(&handle).filter(|volume| volume.closing.is_none());
        let (volume, attached) = volume
            .and_then(|volume| Some((volume, volume.attached()?)))
            .ok_or(VolumeError::Ended)?;
        let image = match (&attached.used, &operation) {
            (
                Used::Pool(_),
                Operation::Mutate { .. } | Operation::Look { .. } | Operation::List { .. },
            ) => None,
            (Used::Image(image), _) => Some(image),
            (Used::Pool(_), _) => return Err(wrong_kind("an object pool has no blocks")),
        };
        let size = image.map_or(0, |image| image.size);
        let range = |offset: u64, length: u64| -> Result<Range<u64>, VolumeError> {
            let end = offset.checked_add(length).filter(|end| *end <= size && length > 0);
            Ok(offset..end.ok_or(VolumeError::OutOfRange)?)
        };
        let writable = || if volume.is_read_only() { Err(VolumeError::ReadOnly) } else { Ok(()) };
        Ok(Some(match operation {
            Operation::Read { offset, length } => {
                Progress::Read { rest: range(offset, length)?, found: InOrder::default() }
            }
            Operation::Extents { offset, length } => {
                Progress::Extents { rest: range(offset, length)?, found: InOrder::default() }
            }
            Operation::Write { offset, data, durable } => {
                writable()?;
                Progress::Write { rest: range(offset, data.len() as u64)?, data, durable }
            }
            Operation::Zero { offset, length, durable } => {
                writable()?;
                Progress::Zero { rest: range(offset, length)?, durable }
            }
            Operation::Flush => {
                let durable = volume.synced_all && volume.undurable.is_empty();
                if durable || volume.is_read_only() {
                    return Ok(None);
                }
                Progress::Flush(Flush::Undecided)
            }
            Operation::Mutate { .. } | Operation::Look { .. } | Operation::List { .. }
                if image.is_some() =>
            {
                return Err(wrong_kind("a volume has no objects"));
            }
            Operation::Mutate { hash, operation } => {
                let operation = self.payload(&operation)?;
                let work = Work::Mutate { number: 0, lowest: 0, again: false, operation };
                Progress::Objects { target: Target::Hash(hash), work: Some(work), found: None }
            }
            Operation::Look { at, reads, answers_size_max } => {
                let target = match at {
                    Place::Hash(hash) => Target::Hash(hash),
                    Place::Pg(number) => Target::Pg(number),
                };
                let work = Work::Look { reads: self.payload(&reads)?, answers_size_max };
                Progress::Objects { target, work: Some(work), found: None }
            }
            Operation::List { names, page_size_max, pgs_max } => Progress::List(List {
                names: self.payload(&names)?,
                page_size_max,
                pgs_max,
                groups: None,
                pages: Vec::new(),
                refused: Vec::new(),
            }),
        }))
    }

    fn payload(&self, bytes: &[u8]) -> Result<Payload, VolumeError> {
        match bytes.len() <= PAYLOAD_SIZE_MAX as usize {
            true => Ok(Payload::new(bytes, &self.pool)),
            false => {
                let why = format!("{} bytes are too many for one message", bytes.len());
                Err(VolumeError::TooLarge { why })
            }
        }
    }

    /// Records the first error of a request and drops its unsent parts.
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
        let volume = self.volumes.get_mut(&request.volume).expect("it outlives its requests");
        volume.queue.remove(request.turn);
        self.touched.push(request.volume);
        if request.open.is_empty() {
            self.finish_request(key, effects);
            return;
        }
        for part in &request.open {
            let part = &mut self.parts[*part];
            if part.may_happen() && matches!(part.work, Work::Mutate { .. }) && !part.is_given_up {
                part.is_given_up = true;
                *volume.given_up.entry(part.pg).or_default() += 1;
            }
        }
        let mut unsent = request.open.clone();
        unsent.retain(|part| !matches!(self.parts[*part].stage, Stage::Sent { .. }));
        for part in unsent {
            self.end_part(now, part, Found::Nothing, effects);
        }
    }

    /// Ends the request if no further part or answer is awaited.
    fn finish_request(&mut self, key: RequestKey, effects: &mut Vec<Effect>) {
        let request = &mut self.requests[key];
        if !request.is_over() {
            return;
        }
        let volume = self.volumes.get_mut(&request.volume).expect("it outlives its requests");
        if let Progress::Flush(Flush::Rest { first: true, .. }) = request.progress
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
            self.requests_by_id.remove(&id);
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
        volume.queue.remove(request.turn);
        volume.request_count -= 1;
        if request.is_own() {
            volume.own_syncs.retain(|_, own| *own != key);
        }
        self.touched.push(request.volume);
    }

    // ---- parts

    /// Queues a new part behind this client's earlier writes of the same stripe.
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

    /// Removes a finished write from its stripe's queue and releases the writes that waited for it.
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

    /// Makes a part ready: it is routed before `apply` returns. Requires: the part is in no list.
    pub(crate) fn make_ready(&mut self, key: PartKey) {
        self.parts[key].stage = Stage::Ready;
        self.ready.push_back(key);
    }

    /// Ends a part, with success or failure. Requires: the part is in the list of its stage.
    pub(crate) fn end_part(
        &mut self,
        now: Time,
        key: PartKey,
        found: Found,
        effects: &mut Vec<Effect>,
    ) {
        let part = self.remove_part(key);
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        let request = &mut self.requests[part.request];
        let place = request.open.iter().position(|other| *other == key).expect("it is open");
        request.open.swap_remove(place);
        if part.is_replay {
            self.advance_replay(now, part.request, effects);
            return;
        }
        // A part that failed may have been carried out when it was sent before.
        request.has_changed |= part.may_have_happened;
        if request.failure.is_some() {
            // A part that succeeded has superseded its earlier sends. A part that failed may still arrive at
            // an OSD.
            volume.has_unanswered |= part.is_astray;
            if part.is_astray {
                self.ended_unanswered(&part);
            }
        } else {
            request.put(part.index, found);
            if planted::on(Bug::PartAnsweredForWhole)
                && matches!(request.progress, Progress::Write { .. })
            {
                self.answer(part.request, Ok(Answer::Done), effects);
            }
        }
        self.finish_request(part.request, effects);
        if part.changes_stripe() {
            self.leave_stripe((part.volume, part.stripe), key);
        }
        if part.changes_stripe() || part.is_given_up {
            self.free_reads(part.volume);
        }
    }

    /// Removes a part from all lists but the one of its stripe.
    pub(crate) fn remove_part(&mut self, key: PartKey) -> Part {
        self.detach(key);
        let part = self.parts.remove(key);
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        assert!(volume.part_count > 0);
        assert!(volume.byte_count >= part.weight);
        volume.part_count -= 1;
        volume.byte_count -= part.weight;
        if !part.is_replay {
            volume.windows.leave(part.pg, part.weight, part.lazy);
        }
        volume.queue.wake(part.pg);
        if let (Work::Mutate { number, .. }, Target::Hash(hash)) = (&part.work, part.target) {
            volume.mutations.remove(&(hash, *number));
        }
        if part.is_given_up {
            let count = volume.given_up.get_mut(&part.pg).expect("it is counted");
            *count -= 1;
            if *count == 0 {
                volume.given_up.remove(&part.pg);
            }
        }
        self.touched.push(part.volume);
        part
    }

    /// Removes a part from the list of its stage.
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
            Stage::Connecting(osd) => self.links[osd].waiting.retain(|other| *other != key),
            Stage::Sent { osd, sequence, .. } => self.links[osd].forget(sequence),
            Stage::Delayed { until, .. } => self.timers.disarm(until, Timer::Part(key)),
        }
        self.parts[key].stage = Stage::Held;
    }

    /// Marks every volume to be checked for room or idleness before `apply` returns.
    pub(crate) fn touch_all(&mut self) {
        self.touched.extend(self.volumes.keys().copied());
    }

    pub(crate) fn parts_where(&self, wanted: impl Fn(&Part) -> bool) -> Vec<PartKey> {
        self.parts.iter().filter(|(_, part)| wanted(part)).map(|(key, _)| key).collect()
    }

    // ---- names

    /// Returns the id of a new connection: an even number, as the network requires.
    pub(crate) fn next_connection(&mut self) -> ConnectionId {
        self.last_connection += 2;
        ConnectionId::new(self.last_connection)
    }

    /// Returns the next sequence number. All sessions share one counter, so the numbers grow within
    /// each.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }
}

fn wrong_kind(why: &str) -> VolumeError {
    VolumeError::Invalid { why: why.to_string() }
}
