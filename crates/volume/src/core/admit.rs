//! Cuts requests into parts while there is room for more: in flight (`windows`), and in a lazy volume among what is
//! kept. A request that finds no room of a PG waits for that PG alone (`queue`).
//!
//! Invariants
//!   1. Changes of the same range are cut in the order of their requests.
//!   2. What a PG keeps others from is bounded: its share of what may be in flight and of what may be kept. Where
//!      what other PGs keep leaves no room, a change goes out as durable.

use base::{PgId, PoolId, Time};

use super::ClientCore;
use crate::cut::{StripeSize, volume_size_max};
use crate::part::{Part, Work};
use crate::queue::{Line, Turn};
use crate::request::{Flush, List, NextPart, Progress, Request};
use crate::routes::Target;
use crate::table::RequestKey;
use crate::timers::Timer;
use crate::volume::Attachment;
use crate::windows::{Room, STALL_CHECK_TIME, share_count};
use crate::{Effect, Used, VolumeError, VolumeHandle};

/// The least that may be kept of one PG, in bytes.
const KEPT_SHARE_MIN: u64 = 256 << 10;

/// What to do with the next part of a request.
enum Next {
    /// Cut it; `lazy`: it may be acknowledged before it is durable.
    Part { pg: PgId, weight: u64, lazy: bool },
    /// Wait in these lines.
    Lines(Vec<Line>),
    /// Wait for any room.
    NoRoom,
    /// Wait for this older request, which changes the same range.
    Older(Turn),
    /// Refuse the request: what is kept of its PG waits for space.
    Full,
}

/// How a lazy volume may send a change.
enum Keeping {
    /// As lazy: there is room to keep it.
    Lazily,
    /// As durable: only what other PGs keep is in the way.
    Durably,
    /// Not before a sync of its PG, or a change of its PG, has ended.
    Later,
    /// Not before its PG has space.
    Full,
}

impl ClientCore {
    /// Cuts waiting requests into parts while there is room for more.
    pub(crate) fn admit(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        loop {
            let Some(volume) = self.volumes.get_mut(&handle) else { return };
            let Some(key) = volume.queue.first() else { return };
            let Attachment::Open(attached) = &volume.attachment else { return };
            let Some(stripe_size) = self.routes.stripe_size(attached.pool()) else { return };
            if let Used::Image(image) = &attached.used
                && image.size > volume_size_max(stripe_size)
            {
                self.fail(now, key, VolumeError::OutOfRange, effects);
                continue;
            }
            self.choose_pgs(handle, key);
            let request = &self.requests[key];
            let turn = request.turn;
            if request.is_cut() || request.failure.is_some() {
                self.queue_of(handle).remove(turn);
                self.finish_request(key, effects);
                continue;
            }
            match self.judge_next(handle, key, stripe_size) {
                Next::Part { pg, weight, lazy } => {
                    self.cut_part(handle, key, stripe_size, (pg, weight, lazy));
                }
                Next::Lines(lines) => {
                    let units = self.requests[key].rest_to_change();
                    self.queue_of(handle).wait_in(turn, lines, units);
                }
                Next::Older(older) => {
                    let units = self.requests[key].rest_to_change().expect("it is a change");
                    self.queue_of(handle).wait_for_older(turn, older, units);
                }
                Next::Full => self.fail(now, key, VolumeError::Full, effects),
                Next::NoRoom => return self.watch_stalls(now, handle),
            }
        }
    }

    fn queue_of(&mut self, handle: VolumeHandle) -> &mut crate::queue::Queue {
        &mut self.volumes.get_mut(&handle).expect("the caller knows it").queue
    }

    /// Determines the PGs of a flush or a list, when it is its turn.
    fn choose_pgs(&mut self, handle: VolumeHandle, key: RequestKey) {
        let volume = &self.volumes[&handle];
        let attached = volume.attached().expect("the caller looked");
        match &mut self.requests[key].progress {
            Progress::Flush(flush @ Flush::Undecided) => {
                let first = !volume.synced_all;
                let pgs = if first {
                    let all = self.routes.pgs_of(attached.image()).expect("the pool is known");
                    all.into_iter().collect()
                } else {
                    volume.undurable.keys().map(|pg| pg.number).collect()
                };
                *flush = Flush::Rest { pgs, first };
            }
            Progress::List(list @ List { groups: None, .. }) => {
                list.groups = Some(self.routes.pgs_by_osd(attached.pool(), list.pgs_max));
            }
            _ => {}
        }
    }

    fn judge_next(
        &mut self,
        handle: VolumeHandle,
        key: RequestKey,
        stripe_size: StripeSize,
    ) -> Next {
        let volume = &self.volumes[&handle];
        let attached = volume.attached().expect("the caller looked");
        let pool = attached.pool();
        let shares = self.shares(pool);
        let request = &mut self.requests[key];
        let turn = request.turn;
        // What waits for room of a PG is served in its order, or many small requests would keep a large one
        // out.
        let room = |pg: PgId, weight| match volume.queue.has_older(turn, Line::Room(pg)) {
            true => Room::NoneOfPg,
            false => volume.windows.room(pg, weight, shares),
        };
        let has_room = |number| room(PgId { pool, number }, 0) != Room::NoneOfPg;
        let target = request.next_target(stripe_size, attached.seed(), has_room);
        let pg = self.routes.pg(pool, target).expect("the pool is known");
        let weight = request.next_weight(stripe_size);
        match room(pg, weight) {
            Room::NoneOfPg => {
                let pgs = request.rest_of_pgs().unwrap_or_else(|| vec![pg.number]);
                let line = |number| Line::Room(PgId { pool, number });
                return Next::Lines(pgs.into_iter().map(line).collect());
            }
            Room::NoneOfAll => return Next::NoRoom,
            Room::Free => {}
        }
        let units = request.rest_to_change();
        if let Some(older) = units.and_then(|units| volume.queue.older_change(turn, &units)) {
            return Next::Older(older);
        }
        if !volume.is_lazy() || !request.may_be_lazy() {
            return Next::Part { pg, weight, lazy: false };
        }
        let is_zero = matches!(request.progress, Progress::Zero { .. });
        let is_passed = volume.queue.has_older(turn, Line::Keeping(pg));
        match self.keeping(handle, pg, weight, shares) {
            Keeping::Lazily if is_passed => Next::Lines(vec![Line::Keeping(pg)]),
            Keeping::Lazily => Next::Part { pg, weight, lazy: true },
            Keeping::Durably => Next::Part { pg, weight, lazy: false },
            // A discard frees space, so it is sent as durable and need not be kept.
            Keeping::Full if is_zero => Next::Part { pg, weight, lazy: false },
            Keeping::Full => Next::Full,
            Keeping::Later => Next::Lines(vec![Line::Keeping(pg)]),
        }
    }

    /// Judges how a change of `weight` bytes may be sent. If there is no room to keep it, a sync of what is
    /// kept is under way from then on.
    fn keeping(&mut self, handle: VolumeHandle, pg: PgId, weight: u64, shares: u32) -> Keeping {
        let size_max = self.settings.unsynced_size_max;
        let share = self.kept_share(shares);
        let volume = &self.volumes[&handle];
        // Changes in flight may have to be kept, too.
        let all = volume.unsynced_bytes + volume.byte_count + weight;
        let of_pg = volume.kept_bytes(pg) + volume.windows.bytes_of(pg) + weight;
        let is_empty = volume.unsynced_bytes == 0 && volume.part_count == 0;
        if is_empty || all <= size_max && of_pg <= share {
            return Keeping::Lazily;
        }
        let may_be_kept = volume.kept_bytes(pg) > 0 || volume.windows.has_lazy(pg);
        let keeping = match may_be_kept {
            _ if volume.waits_for_room(pg) => Keeping::Full,
            true => Keeping::Later,
            false => Keeping::Durably,
        };
        let mut to_sync = volume.unsynced_pgs();
        to_sync.retain(|other| all > size_max || *other == pg);
        to_sync.into_iter().for_each(|pg| self.begin_sync(handle, pg));
        keeping
    }

    /// Returns among how many the PGs of a pool share what may be in flight and what may be kept.
    fn shares(&self, pool: PoolId) -> u32 {
        share_count(self.routes.pool(pool).map_or(1, |pool| pool.pg_count))
    }

    /// Returns how many bytes may be kept of one PG.
    pub(super) fn kept_share(&self, shares: u32) -> u64 {
        let size_max = self.settings.unsynced_size_max;
        (size_max / u64::from(shares)).max(KEPT_SHARE_MIN).min(size_max)
    }

    fn cut_part(
        &mut self,
        handle: VolumeHandle,
        key: RequestKey,
        stripe_size: StripeSize,
        (pg, weight, lazy): (PgId, u64, bool),
    ) {
        let request = &mut self.requests[key];
        let volume = self.volumes.get_mut(&handle).expect("the caller looked");
        let attached = volume.attached().expect("the caller looked");
        let (pool, seed) = (attached.pool(), attached.seed());
        let index = request.part_count;
        let part_bytes = |target| self.routes.part_bytes(pool, target);
        let NextPart { target, stripe, mut work } = request.cut(stripe_size, seed, part_bytes);
        if let (Work::Mutate { number, .. }, Target::Hash(hash)) = (&mut work, target) {
            volume.last_number += 1;
            *number = volume.last_number;
            volume.mutations.insert((hash, *number));
        }
        let weight = match &work {
            // A data part takes less memory than its stripe.
            Work::Read { .. } => part_bytes(target).map_or(weight, |bytes| weight.min(bytes)),
            _ => weight,
        };
        volume.part_count += 1;
        volume.byte_count += weight;
        volume.windows.enter(pg, weight, lazy);
        if request.is_cut() {
            volume.queue.remove(request.turn);
        }
        let part = Part { weight, lazy, ..Part::new(key, handle, pg, target, stripe, work) };
        let part = self.parts.insert(Part { index, ..part });
        self.requests[key].open.push(part);
        self.enter_stripe(part);
    }

    /// Checks from time to time which PGs answer, while requests wait for any room.
    fn watch_stalls(&mut self, now: Time, handle: VolumeHandle) {
        let volume = self.volumes.get_mut(&handle).expect("the caller looked");
        if volume.stall_check.is_none() {
            let at = now + STALL_CHECK_TIME;
            volume.stall_check = Some(at);
            self.timers.arm(at, Timer::Stalls(handle));
        }
    }

    /// Handles the expiry of `Timer::Stalls`.
    pub(super) fn check_stalls(&mut self, now: Time, handle: VolumeHandle) {
        let volume = self.volumes.get_mut(&handle).expect("disarmed when it goes");
        volume.stall_check = None;
        if volume.windows.check_stalls() {
            self.watch_stalls(now, handle);
        }
        self.touched.push(handle);
    }

    /// Begins a sync of a PG on behalf of the core itself, ahead of all waiting requests, unless one is under
    /// way.
    pub(crate) fn begin_sync(&mut self, handle: VolumeHandle, pg: PgId) {
        let volume = self.volumes.get_mut(&handle).expect("the caller knows it");
        if volume.own_syncs.contains_key(&pg) {
            return;
        }
        let flush = Flush::Rest { pgs: vec![pg.number], first: false };
        let key = self.requests.insert(Request::own(handle, Progress::Flush(flush)));
        volume.own_syncs.insert(pg, key);
        volume.request_count += 1;
        self.requests[key].turn = volume.queue.add(key, false);
        self.touched.push(handle);
    }

    /// Begins syncs if half of what may be kept of all PGs, or of this one, is kept and no sync of the core
    /// is under way for it.
    pub(super) fn sync_if_half_full(&mut self, handle: VolumeHandle, pg: PgId) {
        let volume = &self.volumes[&handle];
        let kept = |pg: &PgId| volume.kept_bytes(*pg);
        let synced: u64 = volume.own_syncs.keys().map(kept).sum();
        if (volume.unsynced_bytes - synced) * 2 >= self.settings.unsynced_size_max {
            volume.unsynced_pgs().into_iter().for_each(|pg| self.begin_sync(handle, pg));
            return;
        }
        if kept(&pg) * 2 >= self.kept_share(self.shares(pg.pool)) {
            self.begin_sync(handle, pg);
        }
    }
}
