//! OSDs: connecting to them, sending parts, and what their replies and refusals lead to.

use base::checksum::first_mismatch;
use base::planted::{self, Bug};
use base::{
    Buffer, BufferPool, Checksum, ConnectionId, Incarnation, OsdId, Time, UNIT_SIZE, Version,
};
use format::door::{NetEffect, Peer, Role};
use format::wire::{Message, Outcome, Refusal, Reply, Request};

use crate::core::ClientCore;
use crate::cut::units_around;
use crate::link::{CONNECT_DELAY_MIN, LinkState};
use crate::part::{MISMATCH_COUNT_MAX, PartKey, Patch, PatchStep, Stage, Work, checksums_of};
use crate::request::{Found, push_extent};
use crate::routes::Route;
use crate::timers::Timer;
use crate::{Effect, Extent, Piece, VolumeError};

impl ClientCore {
    // ---- connections

    /// Connects to the next address of an OSD. Requires: no connection and no timer.
    pub(crate) fn connect_link(&mut self, osd: OsdId, effects: &mut Vec<Effect>) {
        let link = self.links.get_mut(&osd).expect("made when a part came");
        assert!(link.in_flight.is_empty());
        let Some(info) = self.routes.osd(osd).filter(|info| !info.addresses.is_empty()) else {
            // The next change of its entry brings an address.
            link.state = LinkState::Idle;
            return;
        };
        let address = info.addresses[link.address % info.addresses.len()].clone();
        link.address = link.address.wrapping_add(1);
        link.revision = info.revision;
        let connection = self.next_connection();
        self.link_of.insert(connection, osd);
        let link = self.links.get_mut(&osd).expect("looked at above");
        link.state = LinkState::Connecting { connection };
        effects.push(Effect::Net(NetEffect::Connect { connection, address }));
    }

    pub(crate) fn link_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        let Some(&osd) = self.link_of.get(&connection) else { return };
        let incarnation = match peer.role {
            Role::Osd(id, incarnation) if id == osd => incarnation,
            // Somebody else listens at its old address.
            _ => {
                self.drop_link(now, osd, connection, effects);
                return;
            }
        };
        let link = self.links.get_mut(&osd).expect("made before it was connected");
        assert!(link.state == LinkState::Connecting { connection });
        link.state = LinkState::Open { connection, incarnation };
        for part in std::mem::take(&mut link.waiting) {
            self.make_ready(part);
        }
    }

    /// The connection is gone: what was sent on it goes out again on the next one.
    pub(crate) fn link_lost(&mut self, now: Time, osd: OsdId) {
        let link = self.links.get_mut(&osd).expect("made before it was connected");
        let until = now + link.next_delay();
        link.state = LinkState::Waiting { until };
        self.timers.arm(until, Timer::Link(osd));
        let sent = std::mem::take(&mut link.in_flight);
        for in_flight in sent {
            let part = &mut self.parts[in_flight.part];
            part.is_astray |= part.changes_stripe();
            self.make_ready(in_flight.part);
        }
        self.idle_links.push(osd);
    }

    fn drop_link(
        &mut self,
        now: Time,
        osd: OsdId,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        self.link_of.remove(&connection);
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.link_lost(now, osd);
    }

    /// Nobody waits for it: it is not connected again before somebody does.
    pub(crate) fn rest_link(&mut self, osd: OsdId) {
        let link = self.links.get_mut(&osd).expect("asked for by its owner");
        if let LinkState::Waiting { until } = link.state
            && link.waiting.is_empty()
        {
            self.timers.disarm(until, Timer::Link(osd));
            link.state = LinkState::Idle;
        }
    }

    // ---- the map

    /// Everything whose way may have changed goes its new way.
    pub(crate) fn map_changed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.links.keys().copied().collect::<Vec<_>>() {
            self.renew_link(now, osd, effects);
        }
        self.leave_old_gates();
        let (routes, volumes) = (&self.routes, &self.volumes);
        let moved = self.parts_where(|part| match part.stage {
            Stage::Sent { osd, pg, epoch, .. } => {
                // Its PG went on without that OSD, which may never answer.
                let route = routes.find(part.pool, part.target);
                let is_newer = routes.epoch(pg).is_some_and(|known| known > epoch);
                // An answer that a replay has overtaken would be believed although it was undone.
                let is_lazy = volumes[&part.volume].is_lazy();
                is_newer && (is_lazy || route.is_some_and(|route| route.osd != osd))
            }
            Stage::Delayed { pg, epoch, .. } => routes.epoch(pg).is_some_and(|known| known > epoch),
            Stage::Unrouted | Stage::Connecting(_) => true,
            Stage::Held | Stage::Ready | Stage::Behind(_) => false,
        });
        for key in moved {
            let part = &mut self.parts[key];
            part.is_astray |= matches!(part.stage, Stage::Sent { .. }) && part.changes_stripe();
            self.send_again(key);
        }
        self.idle_links.extend(self.links.keys());
        self.replay_new_epochs(now, effects);
        self.touch_all();
    }

    /// Connects at once to an OSD whose entry changed, and leaves a run of it that is over.
    fn renew_link(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        let link = self.links.get_mut(&osd).expect("listed just now");
        let Some(info) = self.routes.osd(osd) else { return };
        match link.state {
            LinkState::Waiting { until } if info.revision != link.revision => {
                self.timers.disarm(until, Timer::Link(osd));
                link.delay = CONNECT_DELAY_MIN;
                self.connect_link(osd, effects);
            }
            LinkState::Open { connection, incarnation }
                if incarnation != Incarnation::ZERO && incarnation < info.incarnation =>
            {
                self.drop_link(now, osd, connection, effects);
            }
            _ => {}
        }
    }

    // ---- requests and replies

    /// Sends a part. Requires: the link of the route is open on `connection`.
    pub(crate) fn send(
        &mut self,
        key: PartKey,
        route: Route,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = self.next_sequence();
        let part = &mut self.parts[key];
        let volume = &self.volumes[&part.volume];
        let attached = volume.attached().expect("parts end with the session");
        assert!(route.pg.pool == attached.image.pool);
        if let Work::Sync { covers } = &mut part.work {
            *covers = volume.undurable_count;
        }
        let request = Request {
            session: attached.session,
            sequence,
            pg: route.pg,
            epoch: route.epoch,
            revision: route.revision,
            op: part.op(&attached.image),
        };
        part.stage = Stage::Sent { osd: route.osd, pg: route.pg, epoch: route.epoch, sequence };
        let link = self.links.get_mut(&route.osd).expect("it is open");
        link.sent(sequence, key);
        let message = Message::Request(request);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }

    pub(crate) fn link_received(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        // Connections we left have no entry: their late replies end here.
        let Some(&osd) = self.link_of.get(&connection) else { return };
        let Message::Reply(reply) = message else {
            self.drop_link(now, osd, connection, effects);
            return;
        };
        let link = self.links.get_mut(&osd).expect("it has a connection");
        link.delay = CONNECT_DELAY_MIN;
        if let Some(key) = link.find(reply.sequence) {
            self.replied(now, key, reply, effects);
        }
    }

    fn replied(&mut self, now: Time, key: PartKey, reply: Reply, effects: &mut Vec<Effect>) {
        let volume = &self.volumes[&self.parts[key].volume];
        let attached = volume.attached().expect("parts end with the session");
        if reply.session != attached.session {
            return;
        }
        match reply.outcome {
            Ok(outcome) => self.done(now, key, outcome, effects),
            Err(refusal) => self.refused(now, key, refusal, effects),
        }
    }

    fn done(&mut self, now: Time, key: PartKey, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Stage::Sent { pg, .. } = self.parts[key].stage else {
            unreachable!("only what was sent is answered")
        };
        let part = &mut self.parts[key];
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        match (&mut part.work, outcome) {
            (Work::Read { range }, Outcome::Read { checksums, data, .. }) => {
                let (units, range) = (units_around(range), range.clone());
                let found = match verify(units.len(), &checksums, &data) {
                    Verdict::Zeros => None,
                    Verdict::Data => Some(data),
                    Verdict::Mismatch => return self.mismatched(now, key, effects),
                };
                let skip = (range.start - units.start) as usize;
                let found = match found {
                    None => Piece::Zeros(range.len() as u64),
                    Some(data) => Piece::Data(data.slice(skip..skip + range.len())),
                };
                self.end_part(now, key, Found::Piece(found), effects);
            }
            (Work::Patch(patch), Outcome::Read { version, checksums, data })
                if matches!(patch.step, PatchStep::Read) =>
            {
                let old = match verify(UNIT_SIZE as usize, &checksums, &data) {
                    Verdict::Zeros => None,
                    Verdict::Data => Some(data),
                    Verdict::Mismatch => return self.mismatched(now, key, effects),
                };
                patch.step = patched(&self.pool, patch, version, old);
                self.send_again(key);
            }
            (
                Work::Write { .. }
                | Work::Zero { .. }
                | Work::Patch(Patch { step: PatchStep::Write { .. }, .. }),
                Outcome::Written { durable, .. },
            ) => {
                if volume.is_lazy() && !part.lazy && !durable {
                    let why = "its answer is not durable, as was asked".to_string();
                    return self.end_failed(now, key, VolumeError::Invalid { why }, effects);
                }
                self.acknowledged(key, durable);
                self.end_part(now, key, Found::Nothing, effects);
            }
            (Work::Extents { range }, Outcome::Extents { bitmap })
                if bitmap.len() * 64 >= (range.end as usize).div_ceil(UNIT_SIZE as usize) =>
            {
                let extents = extents_of(&bitmap, range.start, range.end);
                self.end_part(now, key, Found::Extents(extents), effects);
            }
            (Work::Sync { covers }, Outcome::Synced) => {
                let is_late = planted::on(Bug::SyncCoversLaterWrites);
                let covers = if is_late { volume.undurable_count } else { *covers };
                let handle = part.volume;
                self.synced(handle, pg, covers);
                self.end_part(now, key, Found::Nothing, effects);
            }
            _ => {
                let why = "its answer does not fit what was asked".to_string();
                self.end_failed(now, key, VolumeError::Invalid { why }, effects);
            }
        }
    }

    fn refused(&mut self, now: Time, key: PartKey, refusal: Refusal, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        let Stage::Sent { pg, .. } = part.stage else {
            unreachable!("only what was sent is refused")
        };
        match refusal {
            Refusal::Stale(told) => {
                let told = told.filter(|entry| entry.pg == pg);
                if told.is_some_and(|entry| self.routes.learn(entry)) {
                    self.send_again(key);
                    self.map_changed(now, effects);
                } else {
                    self.delay(now, key, effects);
                }
            }
            Refusal::Busy | Refusal::Incomplete { .. } | Refusal::Corrupted => {
                self.delay(now, key, effects);
            }
            Refusal::CompareFailed { .. } => match &mut part.work {
                Work::Patch(patch) => {
                    patch.step = PatchStep::Read;
                    self.send_again(key);
                }
                _ => {
                    let why = "it compared a version that was not given".to_string();
                    self.end_failed(now, key, VolumeError::Invalid { why }, effects);
                }
            },
            Refusal::Fenced => {
                let volume = part.volume;
                self.end_session(volume, effects);
            }
            Refusal::Full if part.is_replay => self.found_no_room(now, key, effects),
            Refusal::Full => self.end_failed(now, key, VolumeError::Full, effects),
            Refusal::Damaged { .. } => {
                self.end_failed(now, key, VolumeError::Damaged, effects);
            }
            Refusal::Invalid { why } => {
                self.end_failed(now, key, VolumeError::Invalid { why }, effects);
            }
        }
    }

    /// Sends a part again that was answered, without delay.
    fn send_again(&mut self, key: PartKey) {
        self.detach(key);
        self.make_ready(key);
    }

    /// Sends a refused part again after a while, or when its PG has a newer entry.
    fn delay(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let Stage::Sent { pg, epoch, .. } = self.parts[key].stage else {
            unreachable!("only what was sent is refused")
        };
        if self.requests[self.parts[key].request].failure.is_some() {
            self.end_part(now, key, Found::Nothing, effects);
            return;
        }
        self.detach(key);
        let part = &mut self.parts[key];
        let until = now + part.next_delay();
        part.stage = Stage::Delayed { until, pg, epoch };
        self.timers.arm(until, Timer::Part(key));
    }

    /// The answer of a read does not match its checksums: it was damaged on the way, or worse.
    fn mismatched(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        part.mismatch_count += 1;
        if part.mismatch_count < MISMATCH_COUNT_MAX {
            self.delay(now, key, effects);
        } else {
            self.end_failed(now, key, VolumeError::Damaged, effects);
        }
    }

    fn end_failed(
        &mut self,
        now: Time,
        key: PartKey,
        error: VolumeError,
        effects: &mut Vec<Effect>,
    ) {
        let request = self.parts[key].request;
        if self.requests[request].is_own() {
            // What was acknowledged is not given up: it is tried for as long as the session lives.
            return self.delay(now, key, effects);
        }
        self.fail(now, request, error, effects);
        self.end_part(now, key, Found::Nothing, effects);
    }
}

/// The unit as it is to be: `old` (or zeros) with the patch's bytes in it.
fn patched(pool: &BufferPool, patch: &Patch, expected: Version, old: Option<Buffer>) -> PatchStep {
    let mut unit = match old {
        None => pool.take_zeroed(UNIT_SIZE as usize),
        Some(old) => {
            let mut unit = pool.take(UNIT_SIZE as usize);
            unit.copy_from_slice(&old);
            unit
        }
    };
    let skip = patch.range.start as usize % UNIT_SIZE as usize;
    let target = &mut unit[skip..skip + patch.range.len()];
    match &patch.bytes {
        Some(bytes) => target.copy_from_slice(bytes),
        None => target.fill(0),
    }
    let data = unit.freeze();
    let checksums = checksums_of(&data);
    PatchStep::Write { expected, data, checksums }
}

enum Verdict {
    Zeros,
    Data,
    Mismatch,
}

/// Judges the answer of a read of `length` bytes.
fn verify(length: usize, checksums: &[Checksum], data: &Buffer) -> Verdict {
    if checksums.is_empty() && data.is_empty() {
        return Verdict::Zeros;
    }
    let fits = data.len() == length && checksums.len() == length / UNIT_SIZE as usize;
    if fits && first_mismatch(data, checksums).is_none() {
        Verdict::Data
    } else {
        Verdict::Mismatch
    }
}

/// The range's extents, from the stripe's bitmap of written units.
fn extents_of(bitmap: &[u64], start: u32, end: u32) -> Vec<Extent> {
    let unit_size = UNIT_SIZE as u32;
    let mut extents = Vec::new();
    let mut at = start;
    while at < end {
        let unit = at / unit_size;
        let unit_end = ((unit + 1) * unit_size).min(end);
        let allocated = bitmap[unit as usize / 64] >> (unit % 64) & 1 == 1;
        push_extent(&mut extents, Extent { length: u64::from(unit_end - at), allocated });
        at = unit_end;
    }
    extents
}
