//! The client's side of lazy writes. Writes that PGs acknowledged but did not make durable are kept (see
//! `unsynced`), written again in each new epoch, and synced before they become too many. The rules and
//! their reasons are in `docs/internals/replay.md`.
//!
//! ```text
//!   new epoch of a PG ─▶ gate shut ─▶ pass: all pieces that this epoch lacks ─▶ (sync, if unsure) ─▶ gate open
//!                            ▲          │ some had no room                                            │
//!                            └─ wait ◀──┴─▶ discards pass, writes are full                            │
//!                         requests of the PG wait in `Stage::Behind` ─────────────▶ route again ◀─────┘
//! ```
//!
//! Invariants
//!   1. While a PG has not acknowledged all kept data in its newest known epoch, a lazy volume sends the PG
//!      only the replay, and during a pause of the replay only discards. Answers of older epochs are ignored.
//!   2. A replay never fails: it is retried until it succeeds or its session is over.

use std::collections::BTreeSet;

use base::planted::{self, Bug};
use base::{PgId, StripeIndex, Time};

use super::ClientCore;
use crate::part::{Part, RETRY_DELAY_MAX, Stage, Work};
use crate::replay::Replay;
use crate::request::{Found, Progress, Request};
use crate::routes::{Route, Target};
use crate::table::{PartKey, RequestKey};
use crate::timers::Timer;
use crate::unsynced::{Content, Gate, Unsynced};
use crate::{Effect, VolumeError, VolumeHandle};

/// Maximum number of parts of one replay in flight at a time.
const REPLAY_PARTS_MAX: usize = 32;

impl ClientCore {
    /// Whether the part must wait for a replay. Begins the replay if none is under way.
    pub(crate) fn is_held_back(
        &mut self,
        now: Time,
        key: PartKey,
        route: Route,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let part = &mut self.parts[key];
        if part.is_replay {
            return false;
        }
        let handle = part.volume;
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        let Some(unsynced) = volume.unsynced.get_mut(&route.pg) else { return false };
        if unsynced.is_level(route.epoch) {
            return false;
        }
        part.stage = Stage::Behind(route.pg);
        unsynced.waiting.push(key);
        if unsynced.gate.is_none() {
            self.begin_replay(now, handle, route, effects);
        }
        true
    }

    /// Whether the part must wait because it reads a range that a change by this client, whose answer was
    /// lost, may have written. The read could return the change, and a power loss could then undo the change
    /// before it is kept. A look waits for mutations of its PG that were given up: an OSD may keep them
    /// waiting while looks pass, and what a look shows behind an unknown outcome must be final.
    pub(crate) fn is_held_read(&mut self, key: PartKey) -> bool {
        let part = &self.parts[key];
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if matches!(part.work, Work::Look { .. }) && volume.given_up.contains_key(&part.pg) {
            volume.held_reads.push(key);
            self.parts[key].stage = Stage::Held;
            return true;
        }
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

    /// Releases the reads that wait for unanswered changes, after a change has ended.
    pub(crate) fn free_reads(&mut self, handle: VolumeHandle) {
        let volume = self.volumes.get_mut(&handle).expect("it outlives its parts");
        for part in std::mem::take(&mut volume.held_reads) {
            self.make_ready(part);
        }
    }

    /// Begins the replay of a PG. Requires: the volume keeps writes of the PG, and no replay of it is
    /// under way.
    fn begin_replay(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        route: Route,
        effects: &mut Vec<Effect>,
    ) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        let unsynced = volume.unsynced.get_mut(&route.pg).expect("the caller knows it");
        assert!(unsynced.gate.is_none());
        let replay = Progress::Replay(Replay::of(route.pg));
        let request = self.requests.insert(Request::own(handle, replay));
        unsynced.gate = Some(Gate { epoch: route.epoch, request, waits_for_room: false });
        volume.request_count += 1;
        self.advance_replay(now, request, effects);
    }

    /// Returns a replay and the changes that it writes again. Requires: the request is a replay.
    fn replayed_by(&mut self, key: RequestKey) -> (&mut Request, &mut Unsynced) {
        let request = &mut self.requests[key];
        let Progress::Replay(replay) = &request.progress else { unreachable!("it is a replay's") };
        let volume = self.volumes.get_mut(&request.volume).expect("it outlives its requests");
        let unsynced = volume.unsynced.get_mut(&replay.pg).expect("it has a gate");
        assert!(unsynced.gate.is_some_and(|gate| gate.request == key));
        (request, unsynced)
    }

    /// Sends more parts of a replay, or opens the gate when all are done.
    pub(crate) fn advance_replay(&mut self, now: Time, key: RequestKey, effects: &mut Vec<Effect>) {
        loop {
            let (request, unsynced) = self.replayed_by(key);
            let Progress::Replay(replay) = &mut request.progress else {
                unreachable!("looked at above")
            };
            if request.open.len() >= REPLAY_PARTS_MAX {
                return;
            }
            let epoch = unsynced.gate.expect("looked at above").epoch;
            let skips = planted::on(Bug::ReplaySkipped);
            let piece = unsynced.next_piece(replay.place, epoch, replay.is_refused);
            let (stripe, work) = match piece.filter(|_| !skips) {
                Some((stripe, range, content)) => {
                    replay.place = (stripe, range.end);
                    (stripe, content.work(range))
                }
                None if !request.open.is_empty() => return,
                None if replay.is_refused => return self.pause_replay(now, key, effects),
                None if unsynced.is_unsure && !replay.is_synced => {
                    replay.is_synced = true;
                    (StripeIndex::ZERO, Work::Sync { covers: 0 })
                }
                None => return self.open_gate(key, effects),
            };
            self.send_replayed(key, stripe, work);
        }
    }

    fn send_replayed(&mut self, key: RequestKey, stripe: StripeIndex, work: Work) {
        let request = &self.requests[key];
        let Progress::Replay(Replay { pg, .. }) = request.progress else {
            unreachable!("it is a replay's")
        };
        let volume = request.volume;
        self.volumes.get_mut(&volume).expect("it outlives its requests").part_count += 1;
        let part = Part::new(key, volume, pg, Target::Pg(pg.number), stripe, work);
        let part = self.parts.insert(Part { lazy: true, is_replay: true, ..part });
        self.requests[key].open.push(part);
        self.make_ready(part);
    }

    /// Handles the refusal of a replayed write because the PG is full: the write is left for the next pass.
    pub(crate) fn on_no_room(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let (request, unsynced) = self.replayed_by(self.parts[key].request);
        let Progress::Replay(replay) = &mut request.progress else {
            unreachable!("looked at above")
        };
        replay.is_refused = true;
        unsynced.gate.as_mut().expect("looked at above").waits_for_room = true;
        self.end_part(now, key, Found::Nothing, effects);
    }

    /// Pauses a replay after a pass in which the PG had no space for some writes. Until the next pass the
    /// replay sends nothing. Waiting discards are sent, since they free space, and waiting writes fail with
    /// `VolumeError::Full`.
    fn pause_replay(&mut self, now: Time, key: RequestKey, effects: &mut Vec<Effect>) {
        let (request, unsynced) = self.replayed_by(key);
        let Progress::Replay(replay) = &mut request.progress else {
            unreachable!("looked at above")
        };
        let until = now + replay.delay;
        replay.delay = replay.delay.doubled_up_to(RETRY_DELAY_MAX);
        request.deadline = Some(until);
        let (handle, pg) = (request.volume, replay.pg);
        let waiting = unsynced.waiting.clone();
        self.timers.arm(until, Timer::Request(key));
        let mut refused = BTreeSet::new();
        for part in waiting {
            match self.parts[part].work {
                Work::Zero { .. } => {
                    self.detach(part);
                    self.parts[part].passes_gate = true;
                    self.make_ready(part);
                }
                Work::Write { .. } | Work::Patch(_) => {
                    refused.insert(self.parts[part].request);
                }
                Work::Read { .. }
                | Work::Extents { .. }
                | Work::Sync { .. }
                | Work::Mutate { .. }
                | Work::Look { .. }
                | Work::List { .. } => {}
            }
        }
        for request in refused {
            self.fail(now, request, VolumeError::Full, effects);
        }
        self.tell_waiting(handle, effects);
        // Writes of the PG that wait for space in the buffer of kept writes fail, too.
        self.volumes.get_mut(&handle).expect("looked at above").queue.wake_all_to_keep(pg);
        self.touched.push(handle);
    }

    /// Ends the pause of a replay. The next pass begins once no discard is in flight, so that no older
    /// replayed write can overtake a newer discard.
    pub(crate) fn begin_pass(&mut self, now: Time, key: RequestKey, effects: &mut Vec<Effect>) {
        let (request, _) = self.replayed_by(key);
        let handle = request.volume;
        let Progress::Replay(replay) = &mut request.progress else {
            unreachable!("looked at above")
        };
        let (pg, until) = (replay.pg, now + replay.delay);
        (replay.place, replay.is_refused) = ((StripeIndex::ZERO, 0), false);
        let is_sent = |(_, part): (PartKey, &Part)| {
            part.volume == handle && matches!(part.stage, Stage::Sent { pg: of, .. } if of == pg)
        };
        if self.parts.iter().any(is_sent) {
            self.requests[key].deadline = Some(until);
            self.timers.arm(until, Timer::Request(key));
        } else {
            self.advance_replay(now, key, effects);
        }
    }

    /// Opens the gate: the PG has acknowledged all kept content in its new epoch, so the parts that waited
    /// are sent.
    fn open_gate(&mut self, key: RequestKey, effects: &mut Vec<Effect>) {
        let (request, unsynced) = self.replayed_by(key);
        let handle = request.volume;
        let Progress::Replay(Replay { pg, .. }) = request.progress else {
            unreachable!("looked at above")
        };
        let gate = unsynced.gate.take().expect("looked at above");
        unsynced.epoch = gate.epoch;
        unsynced.is_unsure = false;
        let waiting = std::mem::take(&mut unsynced.waiting);
        if unsynced.is_over() {
            self.volumes.get_mut(&handle).expect("looked at above").unsynced.remove(&pg);
        }
        self.forget_request(key);
        for part in waiting {
            self.make_ready(part);
        }
        self.tell_waiting(handle, effects);
    }

    /// Ends replays for old epochs, and routes again the parts that waited for these replays.
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
                self.make_ready(part);
            }
        }
    }

    /// Begins at once the replay of each PG that has a newer epoch, even if no request waits for it.
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
            self.begin_replay(now, handle, route, effects);
        }
    }

    /// Ends a request of the core itself, together with its parts.
    pub(crate) fn drop_request(&mut self, key: RequestKey) {
        for part in std::mem::take(&mut self.requests[key].open) {
            self.remove_part(part);
        }
        self.forget_request(key);
    }

    /// Handles the acknowledgement of a change. Requires: the part was sent and has not ended.
    pub(crate) fn on_acknowledged(&mut self, key: PartKey, durable: bool) {
        let part = &self.parts[key];
        let Stage::Sent { pg, epoch, .. } = part.stage else {
            unreachable!("only what was sent is acknowledged")
        };
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if part.is_replay {
            let unsynced = volume.unsynced.get_mut(&pg).expect("it has a gate");
            unsynced.replayed(part.stripe, &part.work.range(), epoch);
            return;
        }
        if !durable {
            volume.undurable_count += 1;
            volume.undurable.insert(pg, volume.undurable_count);
        }
        if !volume.is_lazy() {
            return;
        }
        let (range, content) = Content::of(part);
        if durable {
            if let Some(unsynced) = volume.unsynced.get_mut(&pg) {
                assert!(unsynced.is_of(epoch), "older answers are left with their connections");
                unsynced.overwrite(part.stripe, range);
            }
            return;
        }
        let unsynced = volume.unsynced.entry(pg).or_insert_with(|| Unsynced::new(epoch));
        assert!(unsynced.is_of(epoch), "older answers are left with their connections");
        let count = volume.undurable_count;
        volume.unsynced_bytes += unsynced.acknowledge(epoch, part.stripe, range, content, count);
        let handle = part.volume;
        self.sync_if_half_full(handle, pg);
    }

    /// Handles the end of a sync of the PG. The sync covers the acknowledgements up to the count `covers`.
    pub(crate) fn on_synced(&mut self, handle: VolumeHandle, pg: PgId, covers: u64) {
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

    /// Handles the end of a change without an answer. If the change took effect, readers may see it, and from
    /// then on neither a replay nor a power loss may undo it. So its PG is synced before anything else is
    /// sent to the PG.
    pub(crate) fn ended_unanswered(&mut self, part: &Part) {
        let pg = part.pg;
        let Some(epoch) = self.routes.epoch(pg) else { return };
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        if volume.is_lazy() {
            volume.unsynced.entry(pg).or_insert_with(|| Unsynced::new(epoch)).is_unsure = true;
        }
    }
}
