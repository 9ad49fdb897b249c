//! The simulated network: connections with the guarantees of the network interface.
//!
//! Messages of a connection arrive in order, each at most once, until the connection breaks, which may happen
//! at any byte. Each end then learns of the break at its own time. Bytes before the break still arrive, at
//! once or long after their sender has continued over another connection. Messages are encoded to their wire
//! format and decoded again.
//!
//! Invariants
//!   1. Events of one end arrive in the order of its queue, at times that never decrease.
//!   2. `Closed` is the last event of an end. An end that its owner closed gets no `Closed`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{BufferPool, ConnectionId, Duration, Time};
use format::door::{CloseReason, NetEvent, Peer};
use format::wire::{self, Message, PROTOCOL_VERSIONS};

use super::process::Process;
use crate::random::{Chance, Random};

/// The longest time until a failed connection attempt is reported, in milliseconds: the reactor's
/// timeout for addresses that are not host names.
const CONNECT_TIME_MAX: u64 = 2000;

/// Identifies one end of a connection: the connection's number, and the side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EndId {
    connection: usize,
    side: usize,
}

impl EndId {
    fn other(self) -> EndId {
        EndId { connection: self.connection, side: 1 - self.side }
    }
}

/// How the network treats messages.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The mean latency of a message, in nanoseconds.
    pub latency: u64,
    /// The chance that a message takes up to a thousand times as long.
    pub delay: Chance,
    /// The chance that a bit of a message's data flips in transit.
    pub corrupt_payload: Chance,
    /// The chance that a bit of a message's header or body flips in transit.
    pub corrupt_frame: Chance,
}

impl Weather {
    /// Returns the same network without its faults.
    pub fn calm(self) -> Weather {
        Weather {
            delay: Chance::NEVER,
            corrupt_payload: Chance::NEVER,
            corrupt_frame: Chance::NEVER,
            ..self
        }
    }
}

/// An event that arrives at an end.
enum Parcel {
    Accepted(Peer),
    Connected(Peer, u16),
    Frame { kind: Kind, bytes: Vec<u8>, payload: Option<base::Buffer> },
    Closed(CloseReason),
}

impl Parcel {
    /// Returns the number of bytes that the parcel occupies on the connection.
    fn length(&self) -> u64 {
        match self {
            Parcel::Frame { bytes, payload, .. } => {
                (bytes.len() + payload.as_ref().map_or(0, |payload| payload.len())) as u64
            }
            Parcel::Accepted(_) | Parcel::Connected(..) | Parcel::Closed(_) => 0,
        }
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Request,
    Reply,
    Control,
    Peer,
    Lease,
}

impl Kind {
    fn of(message: &Message) -> Kind {
        match message {
            Message::Request(_) => Kind::Request,
            Message::Reply(_) => Kind::Reply,
            Message::Control(_) => Kind::Control,
            Message::Peer(_) => Kind::Peer,
            Message::Lease(_) => Kind::Lease,
        }
    }
}

/// Counts of what the network did to messages.
#[derive(Clone, Copy, Default, Debug)]
pub struct FaultCounts {
    /// Messages in whose data a bit flipped.
    pub corrupted_payloads: u64,
    /// Messages in whose header or body a bit flipped.
    pub corrupted_frames: u64,
    /// Messages that were delayed.
    pub delayed: u64,
    /// Requests lost when their connection broke.
    pub lost_requests: u64,
    /// Replies lost when their connection broke.
    pub lost_replies: u64,
    /// Messages to or from a monitor lost when their connection broke.
    pub lost_controls: u64,
    /// Messages between members of a PG lost when their connection broke.
    pub lost_peers: u64,
    /// Messages about leases lost when their connection broke.
    pub lost_leases: u64,
    /// Connections that broke in the middle of a frame.
    pub torn_frames: u64,
    /// Connections whose bytes kept arriving after the sender had learned of the break.
    pub lingering: u64,
}

struct End {
    process: Process,
    id: ConnectionId,
    /// The process still receives events at this end.
    open: bool,
    /// Messages sent from this end are dropped, because the connection is broken.
    mute: bool,
    queue: VecDeque<(Time, Parcel)>,
}

/// All connections of a run.
pub struct Net {
    random: Random,
    pool: BufferPool,
    weather: Weather,
    ends: Vec<[End; 2]>,
    by_id: BTreeMap<(Process, ConnectionId), EndId>,
    /// Pairs of processes: no message gets from the first to the second.
    cuts: BTreeSet<(Process, Process)>,
    accepted_last: u64,
    /// Processes that speak only the lowest protocol version, as those of an older version do.
    pub old_processes: BTreeSet<Process>,
    /// The faults injected so far.
    pub counts: FaultCounts,
}

/// An end with an event to deliver, and the time of delivery.
pub type Wake = (Time, EndId);

impl Net {
    /// Returns a network without connections.
    pub fn new(random: Random, pool: BufferPool, weather: Weather) -> Net {
        Net {
            random,
            pool,
            weather,
            ends: Vec::new(),
            by_id: BTreeMap::new(),
            cuts: BTreeSet::new(),
            accepted_last: 1,
            old_processes: BTreeSet::new(),
            counts: FaultCounts::default(),
        }
    }

    /// Changes how messages are treated from now on.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Limits the mean latency of messages from now on, in nanoseconds.
    pub fn calm_down(&mut self, latency: u64) {
        self.weather.latency = self.weather.latency.min(latency);
    }

    /// Returns the process of an end, and the process at the other end.
    pub fn processes(&self, id: EndId) -> (Process, Process) {
        let ends = &self.ends[id.connection];
        (ends[id.side].process, ends[1 - id.side].process)
    }

    /// Returns the process at the other end of a connection.
    pub fn peer_of(&self, process: Process, id: ConnectionId) -> Option<Process> {
        let end = self.by_id.get(&(process, id))?;
        Some(self.processes(*end).1)
    }

    /// Returns whether both ends still have this connection open.
    pub fn is_open(&self, process: Process, id: ConnectionId) -> bool {
        let Some(end) = self.by_id.get(&(process, id)) else { return false };
        let [one, other] = &self.ends[end.connection];
        one.open && other.open
    }

    fn end(&mut self, id: EndId) -> &mut End {
        &mut self.ends[id.connection][id.side]
    }

    fn latency(&mut self) -> Duration {
        let usual = 1 + self.random.below(self.weather.latency * 2);
        if self.random.chance(self.weather.delay) {
            self.counts.delayed += 1;
            return Duration::from_nanos(usual * self.random.scale(10..1000));
        }
        Duration::from_nanos(usual)
    }

    /// Queues a parcel after all others for an end.
    fn push(&mut self, at: Time, end: EndId, parcel: Parcel) -> Wake {
        let queue = &mut self.end(end).queue;
        let at = queue.back().map_or(at, |(last, _)| at.max(*last));
        queue.push_back((at, parcel));
        (at, end)
    }

    /// Starts a connection from a process. The caller must call [`Net::arrive`] at the returned time.
    pub fn connect(
        &mut self,
        now: Time,
        from: Process,
        id: ConnectionId,
        to: Process,
    ) -> (Time, EndId) {
        self.accepted_last += 2;
        let accepted = ConnectionId::new(self.accepted_last);
        let end =
            |process, id| End { process, id, open: false, mute: false, queue: VecDeque::new() };
        self.ends.push([end(from, id), end(to, accepted)]);
        let asker = EndId { connection: self.ends.len() - 1, side: 0 };
        self.end(asker).open = true;
        let before = self.by_id.insert((from, id), asker);
        assert!(before.is_none(), "{from:?} uses {id:?} twice");
        (now + self.latency(), asker)
    }

    /// Handles a connection attempt that reaches its target. `peers`: what the target learns about the
    /// caller, and the caller about the target. `None`: nobody listens.
    pub fn arrive(&mut self, now: Time, asker: EndId, peers: Option<(Peer, Peer)>) -> Vec<Wake> {
        let (from, to) = (self.end(asker).process, self.end(asker.other()).process);
        if !self.end(asker).open {
            return Vec::new();
        }
        // A handshake needs both directions of the network.
        if self.is_cut(from, to) || self.is_cut(to, from) {
            let after = Duration::from_millis(self.random.range(300..CONNECT_TIME_MAX));
            return vec![self.push(now + after, asker, Parcel::Closed(CloseReason::TimedOut))];
        }
        let Some((of_asker, of_target)) = peers else {
            let at = now + self.latency();
            return vec![self.push(at, asker, Parcel::Closed(CloseReason::Refused))];
        };
        let target = asker.other();
        self.end(target).open = true;
        let id = self.end(target).id;
        self.by_id.insert((to, id), target);
        let at = now + self.latency();
        let is_old = |process| self.old_processes.contains(&process);
        let versions = PROTOCOL_VERSIONS;
        let version = if is_old(from) || is_old(to) { versions.start() } else { versions.end() };
        let version = *version;
        vec![
            self.push(now, target, Parcel::Accepted(of_asker)),
            self.push(at, asker, Parcel::Connected(of_target, version)),
        ]
    }

    /// Sends a message from a process.
    pub fn send(
        &mut self,
        now: Time,
        from: Process,
        id: ConnectionId,
        message: &Message,
    ) -> Option<Wake> {
        let end = *self.by_id.get(&(from, id))?;
        let kind = Kind::of(message);
        if self.end(end).mute {
            self.count_lost(kind);
            return None;
        }
        let mut bytes = Vec::new();
        let mut payload = wire::encode(message, &mut bytes);
        if self.random.chance(self.weather.corrupt_frame) {
            self.counts.corrupted_frames += 1;
            let at = self.random.index(bytes.len());
            bytes[at] ^= 1 << self.random.below(8);
        } else if let Some(data) = payload.as_ref().filter(|data| !data.is_empty())
            && self.random.chance(self.weather.corrupt_payload)
        {
            self.counts.corrupted_payloads += 1;
            let mut copy = self.pool.take(data.len());
            copy.copy_from_slice(data);
            let at = self.random.index(copy.len());
            copy[at] ^= 1 << self.random.below(8);
            payload = Some(copy.freeze());
        }
        let at = now + self.latency();
        Some(self.push(at, end.other(), Parcel::Frame { kind, bytes, payload }))
    }

    /// Closes a process's end. The other end learns of it after everything that was sent before has
    /// arrived.
    pub fn close(&mut self, now: Time, from: Process, id: ConnectionId) -> Option<Wake> {
        let end = self.by_id.remove(&(from, id))?;
        self.end(end).open = false;
        self.end(end).queue.clear();
        let at = now + self.latency();
        self.lose(at, end.other(), CloseReason::Reset, false)
    }

    /// Informs an end that its connection is gone. With `cut`, only a prefix of the bytes in transit to
    /// the end arrives.
    fn lose(&mut self, at: Time, end: EndId, reason: CloseReason, cut: bool) -> Option<Wake> {
        self.end(end.other()).mute = true;
        self.end(end).mute = true;
        let is_over = |(_, parcel): &(Time, Parcel)| matches!(parcel, Parcel::Closed(_));
        if !self.end(end).open || self.end(end).queue.iter().any(is_over) {
            return None;
        }
        if cut {
            self.cut_short(end);
        }
        Some(self.push(at, end, Parcel::Closed(reason)))
    }

    /// Drops the bytes in transit to an end, from a random byte on.
    fn cut_short(&mut self, end: EndId) {
        let total: u64 = self.end(end).queue.iter().map(|(_, parcel)| parcel.length()).sum();
        let all_sent = self.random.chance(Chance::percent(30));
        let mut left = if all_sent { total } else { self.random.below(total + 1) };
        let mut lost = Vec::new();
        let mut is_torn = false;
        self.end(end).queue.retain(|(_, parcel)| match parcel {
            // Kept: an end must learn that the connection exists before it learns that the connection
            // is gone.
            Parcel::Accepted(_) | Parcel::Connected(..) | Parcel::Closed(_) => true,
            Parcel::Frame { kind, .. } if parcel.length() > left => {
                is_torn |= left > 0;
                left = 0;
                lost.push(*kind);
                false
            }
            Parcel::Frame { .. } => {
                left -= parcel.length();
                true
            }
        });
        self.counts.torn_frames += u64::from(is_torn);
        lost.into_iter().for_each(|kind| self.count_lost(kind));
    }

    /// Drops everything that is in transit to an end.
    fn lose_frames(&mut self, end: EndId) {
        let mut lost = Vec::new();
        self.end(end).queue.retain(|(_, parcel)| match parcel {
            // Kept: an end must learn that the connection exists before it learns that the connection
            // is gone.
            Parcel::Accepted(_) => true,
            Parcel::Connected(..) | Parcel::Closed(_) => false,
            Parcel::Frame { kind, .. } => {
                lost.push(*kind);
                false
            }
        });
        lost.into_iter().for_each(|kind| self.count_lost(kind));
    }

    fn count_lost(&mut self, kind: Kind) {
        match kind {
            Kind::Request => self.counts.lost_requests += 1,
            Kind::Reply => self.counts.lost_replies += 1,
            Kind::Control => self.counts.lost_controls += 1,
            Kind::Peer => self.counts.lost_peers += 1,
            Kind::Lease => self.counts.lost_leases += 1,
        }
    }

    /// Breaks a connection. Each end learns of it at its own time. `lingers`: bytes to the end that
    /// accepted the connection are still in kernels and switches, and arrive late.
    fn break_connection(
        &mut self,
        now: Time,
        connection: usize,
        reason: CloseReason,
        longest: Duration,
        lingers: bool,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        for side in 0..2 {
            let after = Duration::from_nanos(self.random.below(longest.as_nanos()));
            let end = EndId { connection, side };
            let told = self.lose(now + after, end, reason.clone(), true);
            if lingers && side == 1 && told.is_some() {
                wakes.extend(self.put_off(end));
            }
            wakes.extend(told);
        }
        wakes
    }

    /// Returns the number of messages in transit to an end.
    fn frame_count(&self, end: EndId) -> usize {
        let queue = &self.ends[end.connection][end.side].queue;
        queue.iter().filter(|(_, parcel)| matches!(parcel, Parcel::Frame { .. })).count()
    }

    /// Delays the messages in transit to an end, from a random message on.
    fn put_off(&mut self, end: EndId) -> Option<Wake> {
        let late = Duration::from_millis(self.random.scale(1..8000));
        let frame_count = self.frame_count(end);
        // All parcels may arrive in time except the last one, which reports that the connection is
        // gone.
        let first = self.random.index(frame_count.max(1));
        let comes_late = frame_count > 0;
        let queue = &mut self.end(end).queue;
        for (at, _) in queue.range_mut(first..) {
            *at = *at + late;
        }
        let front = queue.front().map(|(at, _)| (*at, end));
        self.counts.lingering += u64::from(comes_late);
        front
    }

    /// Breaks one connection, if any exists.
    pub fn break_any(&mut self, now: Time) -> Option<(Process, Process, Vec<Wake>)> {
        let live: Vec<usize> = (0..self.ends.len()).filter(|index| self.is_live(*index)).collect();
        if live.is_empty() {
            return None;
        }
        // Most connections are idle most of the time; breaking a loaded one tests more.
        let is_loaded = |index: &usize| {
            let end = EndId { connection: *index, side: 1 };
            self.frame_count(end) > 0
        };
        let loaded: Vec<usize> = live.iter().copied().filter(is_loaded).collect();
        let prefers = !loaded.is_empty() && self.random.chance(Chance::percent(70));
        let connection = *self.random.pick(if prefers { &loaded } else { &live });
        let [one, other] = &self.ends[connection];
        let (one, other) = (one.process, other.process);
        let longest = Duration::from_millis(self.random.scale(1..500));
        let lingers = self.random.chance(Chance::percent(50));
        let reason = CloseReason::Reset;
        let wakes = self.break_connection(now, connection, reason, longest, lingers);
        Some((one, other, wakes))
    }

    fn is_live(&self, connection: usize) -> bool {
        self.ends[connection].iter().all(|end| end.open && !end.mute)
    }

    /// Handles the death of a process: its ends receive nothing more, and its peers learn of it.
    /// `silent`: the peers learn of it only after a while, as when the host loses power.
    pub fn process_died(&mut self, now: Time, process: Process, silent: bool) -> Vec<Wake> {
        let mut wakes = Vec::new();
        for id in self.connections_of(process) {
            let end = self.by_id[&(process, id)];
            self.by_id.remove(&(process, id));
            self.end(end).open = false;
            self.end(end).queue.clear();
            let (reason, after) = if silent {
                (CloseReason::TimedOut, Duration::from_millis(self.random.range(500..5000)))
            } else {
                (CloseReason::Reset, self.latency())
            };
            wakes.extend(self.lose(now + after, end.other(), reason, true));
        }
        wakes
    }

    /// Makes the connections of a process that neither sends nor receives anything time out within a
    /// span.
    pub fn time_out(&mut self, now: Time, process: Process, within: Duration) -> Vec<Wake> {
        let ends: Vec<EndId> =
            self.connections_of(process).iter().map(|id| self.by_id[&(process, *id)]).collect();
        let break_off = |end: EndId| {
            self.break_connection(now, end.connection, CloseReason::TimedOut, within, false)
        };
        ends.into_iter().flat_map(break_off).collect()
    }

    /// Makes the connections between two processes time out within a span.
    pub fn time_out_between(
        &mut self,
        now: Time,
        one: Process,
        other: Process,
        within: Duration,
    ) -> Vec<Wake> {
        let connections = self.between(one, other).into_iter();
        let wakes = connections.flat_map(|connection| {
            self.break_connection(now, connection, CloseReason::TimedOut, within, false)
        });
        wakes.collect()
    }

    /// Breaks the connections that a process opened. The process learns of it at once. What it has sent
    /// over them arrives late, and only then do the other ends learn of the break.
    pub fn leave_behind(&mut self, now: Time, process: Process, late: Duration) -> Vec<Wake> {
        let ends: Vec<EndId> =
            self.connections_of(process).iter().map(|id| self.by_id[&(process, *id)]).collect();
        let mut wakes = Vec::new();
        for end in ends.into_iter().filter(|end| end.side == 0) {
            wakes.extend(self.lose(now, end, CloseReason::Reset, true));
            wakes.extend(self.lose(now, end.other(), CloseReason::Reset, false));
            let queue = &mut self.end(end.other()).queue;
            queue.iter_mut().for_each(|(at, _)| *at = *at + late);
            wakes.extend(queue.front().map(|(at, _)| (*at, end.other())));
        }
        wakes
    }

    /// Handles the clean exit of a process: its peers receive everything that it sent before they learn
    /// of the exit.
    pub fn process_left(&mut self, now: Time, process: Process) -> Vec<Wake> {
        let mine = self.connections_of(process);
        mine.into_iter().filter_map(|id| self.close(now, process, id)).collect()
    }

    fn connections_of(&self, process: Process) -> Vec<ConnectionId> {
        let all = (process, ConnectionId::ZERO)..=(process, ConnectionId::new(u64::MAX));
        self.by_id.range(all).map(|((_, id), _)| *id).collect()
    }

    fn pair(one: Process, other: Process) -> (Process, Process) {
        if one < other { (one, other) } else { (other, one) }
    }

    fn is_cut(&self, from: Process, to: Process) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Returns whether no messages are being held back between any two processes.
    pub fn is_whole(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Returns whether every process has learned of every connection that broke.
    pub fn is_settled(&self) -> bool {
        self.ends.iter().flatten().all(|end| !end.open || !end.mute)
    }

    /// Holds back all messages from one process to another, and in the other direction too if `both`,
    /// until the cut is healed. No connection breaks.
    pub fn hold_back(&mut self, from: Process, to: Process, both: bool) {
        self.cuts.insert((from, to));
        if both {
            self.cuts.insert((to, from));
        }
    }

    /// Like [`Net::hold_back`], but some of the connections break, and the others only stall.
    pub fn cut(&mut self, now: Time, from: Process, to: Process, both: bool) -> Vec<Wake> {
        self.hold_back(from, to, both);
        let mut wakes = Vec::new();
        for connection in self.between(from, to) {
            if self.random.chance(Chance::percent(70)) {
                let longest = Duration::from_millis(self.random.scale(10..4000));
                let reason = CloseReason::TimedOut;
                // Messages to the end that opened the connection are lost. Messages to the other end
                // may wait in kernels until the two processes reach each other again.
                let waits = self.random.chance(Chance::percent(50));
                for side in 0..if waits { 1 } else { 2 } {
                    let end = EndId { connection, side };
                    let (receiver, sender) = self.processes(end);
                    if self.is_cut(sender, receiver) {
                        self.lose_frames(end);
                    }
                }
                wakes.extend(self.break_connection(now, connection, reason, longest, false));
            }
        }
        wakes
    }

    /// Returns whether a connection between the two processes exists or is being opened.
    pub fn has_connection(&self, one: Process, other: Process) -> bool {
        !self.between(one, other).is_empty()
    }

    fn between(&self, one: Process, other: Process) -> Vec<usize> {
        (0..self.ends.len())
            .filter(|index| self.is_live(*index) && self.is_between(*index, one, other))
            .collect()
    }

    fn is_between(&self, connection: usize, one: Process, other: Process) -> bool {
        let [a, b] = &self.ends[connection];
        Net::pair(a.process, b.process) == Net::pair(one, other)
    }

    /// Heals the cuts between two processes, in both directions.
    pub fn heal(&mut self, now: Time, one: Process, other: Process) -> Vec<Wake> {
        self.cuts.remove(&(one, other));
        self.cuts.remove(&(other, one));
        // Includes connections that broke meanwhile: their `Closed` events are queued after the
        // messages that were held back.
        (0..self.ends.len())
            .filter(|index| self.is_between(*index, one, other))
            .flat_map(|connection| (0..2).map(move |side| EndId { connection, side }))
            .filter(|end| !self.ends[end.connection][end.side].queue.is_empty())
            .map(|end| (now, end))
            .collect()
    }

    /// Heals all cuts.
    pub fn heal_all(&mut self, now: Time) -> Vec<Wake> {
        let cuts = std::mem::take(&mut self.cuts);
        cuts.into_iter().flat_map(|(from, to)| self.heal(now, from, to)).collect()
    }

    /// Removes and returns the next event of an end, if it is due. Also returns when to call this
    /// function again.
    pub fn deliver(&mut self, now: Time, id: EndId) -> (Option<(Process, NetEvent)>, Option<Wake>) {
        let other = self.end(id.other()).process;
        let process = self.end(id).process;
        let is_cut = self.is_cut(other, process);
        let end = self.end(id);
        if !end.open {
            return (None, None);
        }
        let Some((at, parcel)) = end.queue.front() else { return (None, None) };
        let news = matches!(parcel, Parcel::Closed(_));
        if *at > now || (is_cut && !news) {
            return (None, None);
        }
        let (_, parcel) = end.queue.pop_front().expect("just seen");
        let connection = end.id;
        let again = end.queue.front().map(|(at, _)| ((*at).max(now), id));
        let event = match parcel {
            Parcel::Accepted(peer) => NetEvent::Accepted { connection, peer },
            Parcel::Connected(peer, version) => NetEvent::Connected { connection, peer, version },
            Parcel::Frame { bytes, payload, .. } => match self.decode(&bytes, payload) {
                Ok(message) => NetEvent::Received { connection, message },
                Err(why) => return (Some(self.protocol_error(id, why)), None),
            },
            Parcel::Closed(reason) => {
                self.end(id).open = false;
                self.by_id.remove(&(process, connection));
                NetEvent::Closed { connection, reason }
            }
        };
        (Some((process, event)), again)
    }

    fn decode(
        &self,
        bytes: &[u8],
        payload: Option<base::Buffer>,
    ) -> Result<Message, wire::DecodeError> {
        let (header, body) = bytes.split_first_chunk().expect("a frame has a header");
        let header = wire::decode_header(header)?;
        let payload_length = payload.as_ref().map_or(0, |payload| payload.len());
        if header.body_length as usize != body.len()
            || header.payload_length as usize != payload_length
        {
            return Err(wire::DecodeError("the lengths are others".into()));
        }
        wire::decode(&header, body, payload, &self.pool)
    }

    /// Closes an end that has received a protocol violation.
    fn protocol_error(&mut self, id: EndId, why: wire::DecodeError) -> (Process, NetEvent) {
        base::mark!(nonsense_closes_the_connection);
        let (process, connection) = (self.end(id).process, self.end(id).id);
        self.end(id).open = false;
        self.end(id).queue.clear();
        self.by_id.remove(&(process, connection));
        (process, NetEvent::Closed { connection, reason: CloseReason::Protocol(why.0) })
    }

    /// Informs the other end of a connection that was closed after a protocol violation.
    pub fn reset_other(&mut self, now: Time, id: EndId) -> Option<Wake> {
        if self.end(id).open || self.end(id).mute {
            return None;
        }
        let at = now + self.latency();
        self.lose(at, id.other(), CloseReason::Reset, false)
    }
}

#[cfg(test)]
mod tests {
    use base::ClusterId;
    use format::door::Role;

    use super::*;

    const ONE: Process = Process::Client(0);
    const TWO: Process = Process::Osd(0);
    const ID: ConnectionId = ConnectionId::new(2);

    /// A network whose time the test controls.
    struct Bench {
        net: Net,
        due: BTreeSet<Wake>,
        now: Time,
    }

    impl Bench {
        fn new(seed: u64, weather: Weather) -> Bench {
            let net = Net::new(Random::new(seed, "net"), BufferPool::default(), weather);
            let mut bench = Bench { net, due: BTreeSet::new(), now: Time::ZERO };
            let (at, end) = bench.net.connect(Time::ZERO, ONE, ID, TWO);
            let peer = Peer { cluster: ClusterId::new(1), role: Role::Client };
            bench.due.extend(bench.net.arrive(at, end, Some((peer, peer))));
            bench
        }

        fn send(&mut self, number: u64) {
            let message = Message::Control(number.to_string());
            self.due.extend(self.net.send(self.now, ONE, ID, &message));
        }

        /// Runs until nothing more arrives. Returns the events of the target.
        fn run(&mut self) -> Vec<NetEvent> {
            let mut events = Vec::new();
            while let Some((at, end)) = self.due.pop_first() {
                self.now = self.now.max(at);
                let (event, again) = self.net.deliver(self.now, end);
                self.due.extend(again);
                self.due.extend(self.net.reset_other(self.now, end));
                events.extend(event.filter(|(process, _)| *process == TWO).map(|(_, it)| it));
            }
            events
        }
    }

    const CALM: Weather = Weather {
        latency: 1000,
        delay: Chance::NEVER,
        corrupt_payload: Chance::NEVER,
        corrupt_frame: Chance::NEVER,
    };

    fn numbers(events: &[NetEvent]) -> Vec<u64> {
        let number = |event: &NetEvent| match event {
            NetEvent::Received { message: Message::Control(text), .. } => text.parse().ok(),
            _ => None,
        };
        events.iter().filter_map(number).collect()
    }

    #[test]
    fn messages_come_in_order_and_a_first_part_of_them_if_it_breaks() {
        let mut cut_short = 0;
        for seed in 0..100 {
            let weather = Weather { delay: Chance::percent(20), ..CALM };
            let mut bench = Bench::new(seed, weather);
            assert!(matches!(bench.run()[..], [NetEvent::Accepted { .. }]));
            (0..10).for_each(|number| bench.send(number));
            let (_, _, wakes) = bench.net.break_any(bench.now).expect("one is live");
            bench.due.extend(wakes);
            let events = bench.run();
            let got = numbers(&events);
            assert_eq!(got, (0..got.len() as u64).collect::<Vec<_>>());
            assert!(matches!(events.last(), Some(NetEvent::Closed { .. })));
            cut_short += u64::from(got.len() < 10);
            bench.send(10);
            assert!(bench.run().is_empty());
        }
        assert!(cut_short > 20);
    }

    #[test]
    fn a_connection_breaks_at_any_byte_and_what_came_before_it_may_come_late() {
        let (mut torn, mut lost, mut late) = (0, 0, 0);
        for seed in 0..200 {
            let mut bench = Bench::new(seed, CALM);
            bench.run();
            (0..4).for_each(|number| bench.send(number));
            let sent_at = bench.now;
            let (_, _, wakes) = bench.net.break_any(bench.now).expect("one is live");
            bench.due.extend(wakes);
            let events = bench.run();
            let got = numbers(&events);
            assert_eq!(got, (0..got.len() as u64).collect::<Vec<_>>());
            let counts = bench.net.counts;
            assert_eq!(counts.lost_controls, 4 - got.len() as u64);
            assert!(counts.torn_frames <= counts.lost_controls);
            torn += counts.torn_frames;
            lost += counts.lost_controls;
            late += u64::from(counts.lingering > 0 && bench.now.since(sent_at).as_millis() > 500);
        }
        assert!(torn > 50, "{torn}");
        assert!(lost > 150, "{lost}");
        assert!(late > 10, "{late}");
    }

    #[test]
    fn a_cut_holds_messages_back_until_it_heals_or_breaks_the_connection() {
        let (mut held, mut broken) = (0, 0);
        for seed in 0..100 {
            let mut bench = Bench::new(seed, CALM);
            bench.run();
            bench.due.extend(bench.net.cut(bench.now, ONE, TWO, true));
            bench.send(7);
            let events = bench.run();
            assert!(numbers(&events).is_empty());
            let is_broken = matches!(events[..], [NetEvent::Closed { .. }]);
            bench.due.extend(bench.net.heal(bench.now, ONE, TWO));
            let after = numbers(&bench.run());
            assert_eq!(after, if is_broken { vec![] } else { vec![7] });
            if is_broken { broken += 1 } else { held += 1 }
        }
        assert!(held > 10);
        assert!(broken > 10);
    }

    #[test]
    fn a_cut_one_way_holds_back_that_way_only() {
        for (from, to, is_held) in [(ONE, TWO, true), (TWO, ONE, false)] {
            let mut bench = Bench::new(1, CALM);
            bench.run();
            bench.net.hold_back(from, to, false);
            bench.send(7);
            assert_eq!(numbers(&bench.run()), if is_held { vec![] } else { vec![7] });
            assert!(!bench.net.is_whole());
            bench.due.extend(bench.net.heal(bench.now, ONE, TWO));
            assert_eq!(numbers(&bench.run()), if is_held { vec![7] } else { vec![] });
            assert!(bench.net.is_whole());
        }
    }

    #[test]
    fn a_silent_process_loses_its_connections_in_time_and_then_everybody_knows() {
        let mut bench = Bench::new(1, CALM);
        bench.run();
        assert!(bench.net.is_settled());
        let (from, within) = (bench.now, Duration::from_secs(2));
        bench.due.extend(bench.net.time_out(from, ONE, within));
        assert!(!bench.net.is_settled());
        let events = bench.run();
        assert!(matches!(events[..], [NetEvent::Closed { reason: CloseReason::TimedOut, .. }]));
        assert!(bench.now.since(from) <= within);
        assert!(bench.net.is_settled());
    }

    #[test]
    fn a_flipped_bit_of_a_frame_closes_the_connection() {
        base::check!(nonsense_closes_the_connection);
        let weather = Weather { corrupt_frame: Chance::percent(100), ..CALM };
        let mut bench = Bench::new(1, weather);
        bench.run();
        bench.send(1);
        let events = bench.run();
        let reason = CloseReason::Protocol(String::new());
        let same =
            |other: &CloseReason| std::mem::discriminant(other) == std::mem::discriminant(&reason);
        assert!(matches!(&events[..], [NetEvent::Closed { reason, .. }] if same(reason)));
    }

    #[test]
    fn peers_of_a_dead_process_learn_it() {
        let mut bench = Bench::new(1, CALM);
        bench.run();
        bench.send(1);
        bench.due.extend(bench.net.process_died(bench.now, ONE, false));
        assert!(matches!(bench.run().last(), Some(NetEvent::Closed { .. })));
    }
}
