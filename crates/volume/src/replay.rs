//! The owner's side of lazy acknowledgement: what PGs acknowledged and have not made durable is kept
//! (see `unsynced`), written again in each new epoch, and synced before it is too much.
//!
//! ```text
//!   new epoch of a PG ─▶ gate shut ─▶ replay of what is kept ─▶ (sync, if unsure) ─▶ gate open
//!                         requests of the PG wait in `Stage::Behind` ──────────────▶ route again
//! ```
//!
//! A write of a replay may be refused for want of room. If the PG holds what it would write, nothing is to be
//! written. If it was lost, the replay waits for room, and meanwhile nothing else hangs: what is kept is
//! laid over what reads find, discards are done by the replay, before its writes, and whatever else
//! waits is refused as full.
//!
//! Invariants
//!   1. Of a lazy volume nothing but a replay is on its way to a PG whose kept data is not all with
//!      the newest known epoch, and reads over which it is laid; answers of older epochs count for nothing.
//!   2. A replay never ends in an error: it is tried until it is done, or its session is over.

use std::collections::VecDeque;
use std::ops::Range;

use base::planted::{self, Bug};
use base::{PgId, StripeIndex, Time};

use crate::core::ClientCore;
use crate::part::{Part, PartKey, Patch, PatchStep, RETRY_DELAY_MIN, Stage, Work};
use crate::request::{Flush, Found, Kind, Request, RequestKey};
use crate::routes::{Route, Target};
use crate::unsynced::{Content, Gate, Unsynced};
use crate::{Effect, VolumeError, VolumeHandle};

/// Most parts of one replay under way.
const REPLAY_PARTS_MAX: u32 = 32;

/// What is left of a replay.
pub(crate) struct Replay {
    pub(crate) pg: PgId,
    pub(crate) rest: VecDeque<(StripeIndex, Range<u32>, Content)>,
    /// The sync after it was sent, or none is needed so far.
    pub(crate) is_synced: bool,
}

impl ClientCore {
    /// Whether the part waits for a replay, which begins if none is under way.
    pub(crate) fn is_held_back(
        &mut self,
        now: Time,
        key: PartKey,
        route: Route,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let part = &mut self.parts[key];
        part.is_overlaid = false;
        if part.is_replay {
            return false;
        }
        let handle = part.volume;
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        let Some(unsynced) = volume.unsynced.get_mut(&route.pg) else { return false };
        if unsynced.is_level(route.epoch) {
            return false;
        }
        let is_starved = unsynced.gate.is_some_and(|gate| gate.is_starved);
        if is_starved && part.reads_stripe() {
            part.is_overlaid = true;
            return false;
        }
        part.stage = Stage::Behind(route.pg);
        part.is_noted = false;
        unsynced.waiting.push(key);
        if unsynced.gate.is_none() {
            self.begin_replay(now, handle, route, false, effects);
        } else if is_starved {
            self.relieve(now, handle, route.pg, effects);
        }
        true
    }

    /// Whether the part reads what an own change under way may have written whose answer was lost.
    /// It waits: it could show the change, and then a loss of power could take that back before the
    /// change is kept.
    pub(crate) fn is_held_read(&mut self, key: PartKey) -> bool {
        let part = &self.parts[key];
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if !volume.is_lazy() || !part.reads_stripe() {
            return false;
        }
        let Some(changes) = self.stripes.get(&(part.volume, part.stripe)) else { return false };
        let range = part.work.range();
        let is_lost = |change: &PartKey| {
            let change = &self.parts[*change];
            let theirs = change.work.range();
            change.is_astray && theirs.start < range.end && range.start < theirs.end
        };
        if !changes.iter().any(is_lost) {
            return false;
        }
        volume.held_reads.push(key);
        self.parts[key].stage = Stage::Held;
        true
    }

    /// A change ended: reads that waited may go on.
    pub(crate) fn free_reads(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        effects: &mut Vec<Effect>,
    ) {
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        for part in std::mem::take(&mut volume.held_reads) {
            self.parts[part].stage = Stage::Unrouted;
            self.route(now, part, effects);
        }
    }

    /// Requires: the volume keeps something of the PG, and no replay of it is under way.
    fn begin_replay(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        route: Route,
        is_starved: bool,
        effects: &mut Vec<Effect>,
    ) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        let unsynced = volume.unsynced.get_mut(&route.pg).expect("the caller knows it");
        assert!(unsynced.gate.is_none());
        let is_new_epoch = unsynced.epoch != route.epoch;
        let skips = planted::on(Bug::ReplaySkipped);
        let rest = if is_new_epoch && !skips { unsynced.pieces() } else { VecDeque::new() };
        let replay = Replay { pg: route.pg, rest, is_synced: false };
        let request = self.requests.insert(Request::own(handle, Kind::Replay(replay)));
        unsynced.gate = Some(Gate { epoch: route.epoch, request, is_starved });
        volume.request_count += 1;
        self.advance_replay(now, request, effects);
    }

    /// Sends more of a replay, or opens the gate when all of it is done.
    pub(crate) fn advance_replay(&mut self, now: Time, key: RequestKey, effects: &mut Vec<Effect>) {
        loop {
            let request = &mut self.requests[key];
            let handle = request.volume;
            let Kind::Replay(replay) = &mut request.kind else {
                unreachable!("only a replay is advanced")
            };
            let pg = replay.pg;
            let volume = self.volumes.get_mut(&handle).expect("it outlives its requests");
            let unsynced = volume.unsynced.get_mut(&pg).expect("it has a gate");
            let gate = unsynced.gate.expect("it is shut while a replay is under way");
            assert!(gate.request == key);
            if request.parts_open >= REPLAY_PARTS_MAX {
                break;
            }
            let (stripe, work) = match replay.rest.pop_front() {
                Some((stripe, range, Content::Zeros)) => (stripe, Work::Zero { range }),
                Some((stripe, range, Content::Data { data, checksums })) => {
                    (stripe, Work::Write { range, data, checksums })
                }
                None if request.parts_open > 0 => break,
                None if unsynced.is_unsure && !replay.is_synced => {
                    replay.is_synced = true;
                    (StripeIndex::ZERO, Work::Sync { covers: 0 })
                }
                None => return self.open_gate(now, key, effects),
            };
            // Discards are answered as soon as they are done here: a durable one may be among them.
            let lazy = !(gate.is_starved && matches!(work, Work::Zero { .. }));
            request.parts_open += 1;
            volume.part_count += 1;
            let part = self.parts.insert(Part {
                request: key,
                volume: handle,
                index: 0,
                pool: pg.pool,
                target: Target::Pg(pg.number),
                stripe,
                work,
                stage: Stage::Held,
                delay: RETRY_DELAY_MIN,
                mismatch_count: 0,
                is_astray: false,
                weight: 0,
                lazy,
                is_replay: true,
                is_overlaid: false,
                is_noted: false,
            });
            self.route(now, part, effects);
        }
        let Request { volume, kind: Kind::Replay(Replay { pg, .. }), .. } = self.requests[key]
        else {
            unreachable!("only a replay is advanced")
        };
        self.relieve(now, volume, pg, effects);
    }

    /// A write of a replay is refused for want of room: it needs none if the PG holds what it would write.
    pub(crate) fn compare_instead(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        assert!(part.is_replay);
        let Work::Write { range, data, checksums } = &part.work else {
            return self.delay(now, key, effects);
        };
        let (range, data, checksums) = (range.clone(), data.clone(), checksums.clone());
        part.work = Work::Compare { range, data, checksums };
        self.send_again(now, key, effects);
    }

    /// The PG does not hold what was to be written again, and has no room for it.
    pub(crate) fn found_lost(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        let (Stage::Sent { pg, .. }, Work::Compare { range, data, checksums }) =
            (part.stage, &part.work)
        else {
            unreachable!("only a comparison finds that")
        };
        let (range, data, checksums) = (range.clone(), data.clone(), checksums.clone());
        part.work = Work::Write { range, data, checksums };
        let handle = part.volume;
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        let unsynced = volume.unsynced.get_mut(&pg).expect("it has a gate");
        unsynced.gate.as_mut().expect("a replay is under way").is_starved = true;
        self.delay(now, key, effects);
        self.relieve(now, handle, pg, effects);
    }

    /// Lets nothing hang behind a replay that finds no room.
    fn relieve(&mut self, now: Time, handle: VolumeHandle, pg: PgId, effects: &mut Vec<Effect>) {
        let of_pg = |core: &ClientCore| {
            let unsynced = core.volumes.get(&handle)?.unsynced.get(&pg)?;
            let gate = unsynced.gate.filter(|gate| gate.is_starved)?;
            Some((gate, unsynced.waiting.clone()))
        };
        let Some((_, waiting)) = of_pg(self) else { return };
        for key in waiting {
            // The end of one may have ended others.
            let waits = self.parts.get(key).is_some_and(|part| part.stage == Stage::Behind(pg));
            if !waits {
                continue;
            }
            let part = &self.parts[key];
            let request = part.request;
            if part.reads_stripe() {
                self.send_again(now, key, effects);
            } else if !matches!(part.work, Work::Zero { .. }) && !self.requests[request].is_own() {
                self.fail(now, request, VolumeError::Full, effects);
            }
        }
        let Some((gate, waiting)) = of_pg(self) else { return };
        let is_zero = |(_, part): (PartKey, &Part)| {
            part.request == gate.request && matches!(part.work, Work::Zero { .. })
        };
        let Kind::Replay(replay) = &self.requests[gate.request].kind else {
            unreachable!("it is a replay's")
        };
        let zeros_wait =
            replay.rest.front().is_some_and(|(.., content)| *content == Content::Zeros);
        if !zeros_wait && !self.parts.iter().any(is_zero) {
            // What was noted is durable in this epoch.
            let is_done = |part: &Part| part.stage == Stage::Behind(pg) && part.is_noted;
            if waiting.iter().any(|key| is_done(&self.parts[*key])) {
                let volume = self.volumes.get_mut(&handle).expect("it has a gate");
                volume.unsynced.get_mut(&pg).expect("it has a gate").forget_zeros();
            }
            for key in waiting {
                if self.parts.get(key).is_some_and(is_done) {
                    self.end_part(now, key, Found::Nothing, effects);
                }
            }
        }
        self.note_discards(now, handle, pg, effects);
    }

    /// Takes discards that wait behind a replay without room into what is kept: it has them done before it
    /// writes, and writes nothing that they would take.
    fn note_discards(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        pg: PgId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(route) = self.routes.find(pg.pool, Target::Pg(pg.number)) else { return };
        let Some(volume) = self.volumes.get_mut(&handle) else { return };
        let Some(unsynced) = volume.unsynced.get_mut(&pg) else { return };
        let Some(gate) = unsynced.gate.filter(|gate| gate.is_starved) else { return };
        // What was sent may wait for room there, and be done after a discard that overtakes it.
        let is_sent = |(_, part): (PartKey, &Part)| {
            part.request == gate.request && matches!(part.stage, Stage::Sent { .. })
        };
        if self.parts.iter().any(is_sent) {
            return;
        }
        let mut is_any_new = false;
        for key in unsynced.waiting.clone() {
            let part = &mut self.parts[key];
            let Work::Zero { range } = &part.work else { continue };
            if !std::mem::replace(&mut part.is_noted, true) {
                is_any_new = true;
                volume.undurable_count += 1;
                volume.undurable.insert(pg, volume.undurable_count);
                unsynced.note_zeros(part.stripe, range.clone(), volume.undurable_count);
            }
        }
        if is_any_new {
            unsynced.gate = None;
            self.drop_request(gate.request);
            self.begin_replay(now, handle, route, true, effects);
        }
    }

    /// Lays what is kept over what a read found that went past a replay. `None`: the replay is over, and
    /// may have written after the read.
    pub(crate) fn overlay(
        &self,
        key: PartKey,
        units: Range<u32>,
    ) -> Option<Vec<(Range<u32>, Content)>> {
        let part = &self.parts[key];
        let Stage::Sent { pg, epoch, .. } = part.stage else {
            unreachable!("only what was sent is answered")
        };
        let unsynced = self.volumes[&part.volume].unsynced.get(&pg)?;
        let gate = unsynced.gate.filter(|gate| gate.is_starved)?;
        (gate.epoch == epoch).then(|| unsynced.kept_of(part.stripe, units).collect())
    }

    /// The PG has everything in its new epoch: what waited goes on.
    fn open_gate(&mut self, now: Time, key: RequestKey, effects: &mut Vec<Effect>) {
        let request = &self.requests[key];
        let handle = request.volume;
        let Kind::Replay(Replay { pg, .. }) = request.kind else {
            unreachable!("only a replay ends at a gate")
        };
        self.forget_request(key);
        let volume = self.volumes.get_mut(&handle).expect("it outlives its requests");
        let unsynced = volume.unsynced.get_mut(&pg).expect("it has a gate");
        let gate = unsynced.gate.take().expect("it is shut while a replay is under way");
        unsynced.epoch = gate.epoch;
        unsynced.is_unsure = false;
        let waiting = std::mem::take(&mut unsynced.waiting);
        if unsynced.is_over() {
            volume.unsynced.remove(&pg);
        }
        for part in &waiting {
            self.parts[*part].stage = Stage::Unrouted;
        }
        for part in waiting {
            self.route(now, part, effects);
        }
    }

    /// Breaks off replays for epochs that are over; what waited for them is routed anew.
    pub(crate) fn leave_old_gates(&mut self) {
        let mut old = Vec::new();
        for volume in self.volumes.values_mut() {
            for (pg, unsynced) in &mut volume.unsynced {
                let known = self.routes.epoch(*pg);
                if let Some(gate) = unsynced.gate.take_if(|gate| known != Some(gate.epoch)) {
                    old.push((gate.request, std::mem::take(&mut unsynced.waiting)));
                }
            }
        }
        for (request, waiting) in old {
            self.drop_request(request);
            for part in waiting {
                self.parts[part].stage = Stage::Unrouted;
                self.unrouted.push(part);
            }
        }
    }

    /// Replays at once what PGs with a newer epoch may have lost, asked for or not.
    pub(crate) fn replay_new_epochs(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut due = Vec::new();
        for (handle, volume) in &self.volumes {
            for (pg, unsynced) in &volume.unsynced {
                let route = self.routes.find(pg.pool, Target::Pg(pg.number));
                let Some(route) = route else { continue };
                if unsynced.gate.is_none() && unsynced.epoch != route.epoch {
                    due.push((*handle, route));
                }
            }
        }
        for (handle, route) in due {
            self.begin_replay(now, handle, route, false, effects);
        }
    }

    /// Ends an own request and whatever is under way of it.
    pub(crate) fn drop_request(&mut self, key: RequestKey) {
        for part in self.parts_where(|part| part.request == key) {
            self.detach(part);
            let part = self.parts.remove(part);
            let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
            volume.part_count -= 1;
            volume.byte_count -= part.weight;
        }
        self.forget_request(key);
    }

    /// A change of a lazy volume was acknowledged. Requires: it was sent and not ended.
    pub(crate) fn acknowledged(&mut self, key: PartKey, durable: bool) {
        let part = &self.parts[key];
        let Stage::Sent { pg, epoch, .. } = part.stage else {
            unreachable!("only what was sent is acknowledged")
        };
        if part.is_replay {
            return;
        }
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if !durable {
            volume.undurable_count += 1;
            volume.undurable.insert(pg, volume.undurable_count);
        }
        if !volume.is_lazy() {
            return;
        }
        let (range, content) = part.content();
        if durable {
            if let Some(unsynced) = volume.unsynced.get_mut(&pg) {
                assert!(unsynced.epoch == epoch, "older answers are left with their connections");
                unsynced.overwrite(part.stripe, range);
            }
            return;
        }
        let unsynced = volume.unsynced.entry(pg).or_insert_with(|| Unsynced::new(epoch));
        assert!(unsynced.epoch == epoch, "older answers are left with their connections");
        let count = volume.undurable_count;
        volume.unsynced_bytes += unsynced.acknowledge(part.stripe, range, content, count);
        if volume.unsynced_bytes * 2 >= self.settings.unsynced_size_max {
            self.begin_sync(self.parts[key].volume);
        }
    }

    /// A sync of the PG ended that was sent at this count.
    pub(crate) fn synced(&mut self, handle: VolumeHandle, pg: PgId, covers: u64) {
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        if volume.undurable.get(&pg).is_some_and(|last| *last <= covers) {
            volume.undurable.remove(&pg);
        }
        if let Some(unsynced) = volume.unsynced.get_mut(&pg) {
            volume.unsynced_bytes -= unsynced.sync(covers);
            if unsynced.is_over() {
                volume.unsynced.remove(&pg);
            }
        }
    }

    /// A change ended without an answer to its last sending. If it happened it may be seen, and then
    /// neither a later replay nor a loss of power may undo it: its PG is synced before anything
    /// else goes there.
    pub(crate) fn ended_unanswered(&mut self, part: &Part) {
        let Some(pg) = self.routes.pg(part.pool, part.target) else { return };
        let Some(epoch) = self.routes.epoch(pg) else { return };
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if volume.is_lazy() {
            volume.unsynced.entry(pg).or_insert_with(|| Unsynced::new(epoch)).is_unsure = true;
        }
    }

    /// Syncs the volume for our own sake, before anything that waits. Tells whether that is new.
    pub(crate) fn begin_sync(&mut self, handle: VolumeHandle) -> bool {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        if volume.own_sync.is_some() {
            return false;
        }
        let request = self.requests.insert(Request::own(handle, Kind::Flush(Flush::Undecided)));
        volume.own_sync = Some(request);
        volume.request_count += 1;
        volume.pending.push_front(request);
        self.touched.push(handle);
        true
    }

    /// Whether a change of so many bytes finds room among what is kept. If not, a sync is under way
    /// or something is in flight.
    pub(crate) fn has_room_to_keep(&mut self, handle: VolumeHandle, weight: u64) -> bool {
        let volume = &self.volumes[&handle];
        // What is in flight may have to be kept.
        let sum = volume.unsynced_bytes + volume.byte_count + weight;
        let is_empty = volume.unsynced_bytes == 0 && volume.part_count == 0;
        if is_empty || sum <= self.settings.unsynced_size_max {
            return true;
        }
        if volume.unsynced_bytes > 0 {
            self.begin_sync(handle);
        }
        false
    }
}

impl Part {
    /// What the range holds once this change has happened. Requires: a change that was sent.
    fn content(&self) -> (Range<u32>, Content) {
        match &self.work {
            Work::Zero { range } => (range.clone(), Content::Zeros),
            Work::Write { range, data, checksums } => {
                (range.clone(), Content::Data { data: data.clone(), checksums: checksums.clone() })
            }
            Work::Patch(Patch {
                range, step: PatchStep::Write { data, checksums, .. }, ..
            }) => (
                crate::cut::units_around(range),
                Content::Data { data: data.clone(), checksums: checksums.clone() },
            ),
            _ => unreachable!("only changes are acknowledged"),
        }
    }
}
