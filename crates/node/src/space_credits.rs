//! Space credits: the space that members have promised to this OSD as a primary, and the space that this OSD
//! has promised as a member.
//!
//! A write that has its version must fit on every acting member, because a version is never taken back. So a
//! primary begins a write only within the *credit* of each lease giver: the number of bytes, counted since
//! the primary's first request, for which the giver keeps space free. Each write is charged a whole block,
//! the maximum that it can use. The rules are in `docs/internals/pg.md`, "Room".
//!
//! ```text
//!   holder                                          giver
//!     begun 3, limit 8
//!     │── Renew{begun 3, owed 2} ─────────────────▶ │  promised to it: (8 - 3) unused + 2 owed
//!     │ ◀──────────────────── Granted{limit 10} ─── │  promised to it: (10 - 3) + 2
//! ```
//!
//! In pools with parity a write is prepared at each member first, so it also needs room in the journal until
//! its version is committed. What such an OSD promises is limited by that room, too, and consists of whole
//! blocks, so that a holder can use what it has. Each primary has a fixed share of the room, whatever is free
//! now, so primaries that need credit of several givers do not wait for each other. A quarter of the room is
//! never promised: it is for the versions that this OSD receives as a learner.
//!
//! Invariants
//!   1. The bytes that a holder may still write to the giver, by writes that are in transit or that it may
//!      begin, never exceed what the giver counts as promised to it. A limit only grows, so lost or late
//!      messages do not violate this.
//!   2. When space is promised, all promises together fit into the free space.
//!   3. One run of a holder is never promised more than the largest promise. So whatever earlier runs
//!      promised, the writes that an inactive PG still lacks take at most one largest promise.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{BlockSize, Duration, Incarnation, MIB, OsdId, Time};
use blockstore::Store;
use format::wire::{Member, PgEntry};
use pg::Pg;

use crate::cluster_view::ClusterView;
use crate::notes::Notes;
use crate::pg_table::PgTable;

/// Maximum number of bytes that are promised to one primary at a time.
const PROMISE_BYTES_MAX: u64 = 64 * MIB;
/// All promises together use at most one part in this many of the store.
const STORE_SHARE: u64 = 8;
/// Minimum number of blocks that are promised to each primary, in blocks of the largest size among its PGs.
const BLOCKS_MIN: u64 = 4;
/// Upper bound of what a prepared write uses of the journal: eight bytes of data use nine, for blocks of
/// 64 KiB or more. The rest is the header with checksums and part table, in whole sectors.
const PREPARED_COST: (u64, u64) = (8, 9);
/// The part of the room for prepared versions that is kept for learners: one in this many.
const LEARNER_SHARE: u64 = 4;
/// Minimum time between two attempts to free room for prepared versions while writes wait for it.
const ROOM_PAUSE: Duration = Duration::from_millis(2);
/// How long writes wait for space that is reserved for writes of earlier runs; after that this OSD counts as
/// full.
const EARLIER_WAIT_MAX: Duration = Duration::from_secs(10);

/// The space of this OSD's store.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Size of the data area.
    pub size_bytes: u64,
    /// The part of the free space that is ready: writes of any block size can use it now.
    pub sure_bytes: u64,
    /// Free space, part of which may have to be made ready first.
    pub free_bytes: u64,
    /// Whether more of the free space is being made ready.
    pub is_growing: bool,
    /// Whether the store accepts no new data.
    pub is_full: bool,
    /// Room for prepared versions: how many bytes of the journal they may take together.
    pub room_bytes_max: u64,
    /// The part of it that is free.
    pub room_bytes: u64,
}

/// The numbers that a holder sends with a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Total bytes of credit that writes have used or that the holder has returned.
    pub begun_bytes: u64,
    /// The part of `begun_bytes` that the giver may not have stored yet.
    pub owed_bytes: u64,
}

/// The numbers that a giver sends with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The value of `begun_bytes` up to which there is space.
    pub limit_bytes: u64,
    /// Unused credit that the holder may keep; it returns the rest.
    pub share_bytes: u64,
    /// Whether the store accepts no new data.
    pub is_full: bool,
    /// The largest write for which there can be credit, unless space is freed. Larger ones are refused.
    pub largest_bytes: u64,
}

/// The result of a check for space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// There is enough space.
    Enough,
    /// It is not known yet whether there is space.
    Unknown,
    /// There is no space.
    Full,
}

/// Space that a giver has promised to this OSD.
struct Credit {
    giver: Member,
    begun_bytes: u64,
    limit_bytes: u64,
    share_bytes: u64,
    /// The credit that was unused when the last offer arrived.
    high_bytes: u64,
    is_full: bool,
    largest_bytes: u64,
    /// The largest write that has found too little since the last offer, and waits.
    waiting_bytes: u64,
    /// Whether the lease must be renewed now, to request more space.
    wants_more: bool,
    /// Whether more space was requested. It is requested again after a regular renewal, when the limit has
    /// grown, or when a write was answered.
    was_asked: bool,
    /// Whether the last claim is still unanswered.
    is_awaited: bool,
    /// Whether a write was answered since the last claim.
    has_ended: bool,
    /// The stamp of the last renewal that gave all credit back: offers before it are void.
    given_back: u64,
}

/// Space that this OSD has promised to a holder.
struct Promise {
    holder: Member,
    claim: Claim,
    limit_bytes: u64,
    /// After this time the holder begins no write unless it renews its lease.
    lease_until: Time,
}

/// The demand on this OSD's store, computed from the map entries that list this OSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Demand {
    /// OSDs that lead a PG in which this OSD has a part.
    pub primaries: BTreeSet<OsdId>,
    /// The largest block size among these PGs.
    pub block_size: BlockSize,
    /// Whether the pool of one of these PGs keeps parity.
    pub keeps_parity: bool,
    /// Runs of this OSD and of primaries that may have left writes in PGs that are not active here.
    pub earlier_runs: BTreeSet<(Incarnation, Option<Member>)>,
}

/// All credits and promises of an OSD.
pub struct SpaceCredits {
    credits: BTreeMap<OsdId, Credit>,
    /// Whether some credit must request more space.
    is_wanting: bool,
    /// Whether some credit may have requested more space.
    is_asking: bool,
    promises: BTreeMap<OsdId, Promise>,
    /// `None` while the demand is unknown; then nothing is promised.
    demand: Option<Demand>,
    /// Whether entries have changed since `demand` was computed.
    is_demand_old: bool,
    /// Since when space has been reserved for writes of earlier runs; `None` if none is.
    earlier_since: Option<Time>,
    /// Bytes of writes that were begun and not answered, in PGs that this OSD leads.
    own_bytes: u64,
    /// Size of the smallest write in these PGs that found too little space here.
    lacking_here: Option<u64>,
    /// When room for prepared versions is to be freed, because a write waits for it; `None` if none waits.
    room_due: Option<Time>,
    /// When that was done last.
    room_freed_at: Time,
}

impl Credit {
    fn unused(&self) -> u64 {
        assert!(self.begun_bytes <= self.limit_bytes);
        self.limit_bytes - self.begun_bytes
    }
}

impl Promise {
    fn bytes(&self) -> u64 {
        let unused = self.limit_bytes - self.claim.begun_bytes;
        unused.saturating_add(self.claim.owed_bytes)
    }
}

impl Demand {
    /// Returns the maximum that is promised to any primary, regardless of the number of primaries.
    fn promise_bytes_max(&self, space: Space) -> u64 {
        self.at_least(PROMISE_BYTES_MAX.min(space.size_bytes / STORE_SHARE))
    }

    fn promise_bytes(&self, space: Space) -> u64 {
        let part = space.size_bytes / STORE_SHARE / self.primary_count();
        self.at_least(PROMISE_BYTES_MAX.min(part))
    }

    fn at_least(&self, bytes: u64) -> u64 {
        bytes.max(BLOCKS_MIN * self.block_size.bytes())
    }

    fn primary_count(&self) -> u64 {
        self.primaries.len().max(1) as u64
    }

    fn earlier_bytes(&self, space: Space) -> u64 {
        self.promise_bytes_max(space).saturating_mul(self.earlier_runs.len() as u64)
    }

    /// Returns how many bytes of writes `room_bytes` of room for prepared versions is enough for, apart from
    /// the part that is kept for learners.
    fn writes_with_room(&self, space: Space, room_bytes: u64) -> u64 {
        let for_primaries = room_bytes.saturating_sub(space.room_bytes_max / LEARNER_SHARE);
        match self.keeps_parity {
            true => for_primaries / PREPARED_COST.1 * PREPARED_COST.0,
            false => u64::MAX,
        }
    }

    /// Returns the part of all room for prepared versions that each primary may use. One part more is
    /// counted, because a former primary keeps its promise until its lease has expired.
    fn room_share(&self, space: Space) -> u64 {
        let all = self.writes_with_room(space, space.room_bytes_max);
        self.in_whole_blocks(all / (self.primary_count() + 1))
    }

    /// Rounds a number of bytes down to whole blocks, if a pool keeps parity.
    fn in_whole_blocks(&self, bytes: u64) -> u64 {
        if self.keeps_parity { bytes - bytes % self.block_size.bytes() } else { bytes }
    }
}

impl SpaceCredits {
    /// Creates the credits of a run that begins now.
    pub fn new() -> SpaceCredits {
        SpaceCredits {
            credits: BTreeMap::new(),
            is_wanting: false,
            is_asking: false,
            promises: BTreeMap::new(),
            demand: None,
            is_demand_old: true,
            earlier_since: None,
            own_bytes: 0,
            lacking_here: None,
            room_due: None,
            room_freed_at: Time::ZERO,
        }
    }

    // ---- as a holder ----

    /// Handles a new connection to this giver: credit from an earlier connection is returned.
    pub fn on_connected(&mut self, giver: Member) {
        match self.credits.get_mut(&giver.osd).filter(|known| known.giver >= giver) {
            Some(credit) => {
                (credit.begun_bytes, credit.given_back) = (credit.limit_bytes, 0);
            }
            None => {
                let credit = Credit {
                    giver,
                    begun_bytes: 0,
                    limit_bytes: 0,
                    share_bytes: 0,
                    high_bytes: 0,
                    is_full: false,
                    largest_bytes: u64::MAX,
                    waiting_bytes: 0,
                    wants_more: false,
                    was_asked: false,
                    is_awaited: false,
                    has_ended: false,
                    given_back: 0,
                };
                self.credits.insert(giver.osd, credit);
            }
        }
    }

    /// Returns the claim for a renewal. `owed_bytes`: bytes of writes that were begun and that this giver or
    /// its earlier runs have not answered. `is_timely`: whether this is a regular renewal, not one that
    /// [`SpaceCredits::take_wanting`] requested. Requires: [`SpaceCredits::on_connected`].
    pub fn claim(&mut self, giver: OsdId, owed_bytes: u64, is_timely: bool) -> Claim {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        credit.was_asked = !is_timely;
        self.is_asking |= credit.was_asked;
        (credit.wants_more, credit.is_awaited, credit.has_ended) = (false, true, false);
        if is_timely {
            credit.begun_bytes += credit.unused().saturating_sub(credit.share_bytes);
        }
        Claim { begun_bytes: credit.begun_bytes, owed_bytes }
    }

    /// Gives all credit back that is unused, because this OSD leads no PG in which the giver takes part, and
    /// returns the claim for the renewal with this stamp. Requires: [`SpaceCredits::on_connected`].
    pub fn give_back(&mut self, giver: OsdId, stamp: u64, owed_bytes: u64) -> Claim {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        credit.begun_bytes = credit.limit_bytes;
        (credit.share_bytes, credit.given_back) = (0, stamp);
        self.claim(giver, owed_bytes, true)
    }

    /// Handles a giver's offer for the renewal with this stamp. Returns true if a write that had to wait may
    /// proceed now, or is refused.
    pub fn on_offer(&mut self, giver: OsdId, stamp: u64, offer: Offer) -> bool {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        if stamp < credit.given_back {
            return false;
        }
        let has_grown = offer.limit_bytes > credit.limit_bytes;
        credit.limit_bytes = credit.limit_bytes.max(offer.limit_bytes);
        credit.share_bytes = offer.share_bytes;
        let was_full = std::mem::replace(&mut credit.is_full, offer.is_full);
        credit.largest_bytes = offer.largest_bytes;
        let is_too_large = std::mem::take(&mut credit.waiting_bytes) > offer.largest_bytes;
        credit.high_bytes = credit.unused();
        credit.is_awaited = false;
        let has_ended = std::mem::take(&mut credit.has_ended);
        credit.was_asked &= !has_grown && !has_ended;
        has_grown || has_ended || offer.is_full != was_full || is_too_large
    }

    /// Returns whether this giver has space for a write of `bytes` bytes.
    pub fn at(&mut self, giver: OsdId, bytes: u64) -> Verdict {
        let Some(credit) = self.credits.get_mut(&giver) else { return Verdict::Unknown };
        if credit.unused() >= bytes {
            return Verdict::Enough;
        }
        credit.wants_more |= !credit.was_asked;
        self.is_wanting |= credit.wants_more;
        if credit.is_full || bytes > credit.largest_bytes {
            return Verdict::Full;
        }
        credit.waiting_bytes = credit.waiting_bytes.max(bytes);
        Verdict::Unknown
    }

    /// Uses credit of this giver. Requires: there is enough.
    pub fn take(&mut self, giver: OsdId, bytes: u64) {
        let credit = self.credits.get_mut(&giver).expect("it has space");
        assert!(credit.unused() >= bytes);
        if !planted::on(Bug::CreditNotCounted) {
            credit.begun_bytes += bytes;
        }
        credit.wants_more |= credit.unused() < credit.high_bytes / 2 && !credit.was_asked;
        self.is_wanting |= credit.wants_more;
    }

    /// Returns the givers from which more space must be requested now, with a lease renewal. Each is returned
    /// at most once before its next regular renewal or the growth of its limit.
    pub fn take_wanting(&mut self) -> Vec<OsdId> {
        if !std::mem::take(&mut self.is_wanting) {
            return Vec::new();
        }
        let wanting = self.credits.iter_mut().filter(|(_, credit)| credit.wants_more);
        let taken = wanting.map(|(osd, credit)| {
            (credit.wants_more, credit.was_asked) = (false, true);
            *osd
        });
        taken.collect()
    }

    /// Records that a write in a pool with parity waits for space, perhaps only for room in a journal.
    pub fn await_room(&mut self, now: Time) {
        self.room_due = self.room_due.or(Some(now.max(self.room_freed_at + ROOM_PAUSE)));
    }

    /// Returns when this OSD must free the room that its versions take in members' journals.
    pub fn room_due(&self) -> Option<Time> {
        self.room_due
    }

    /// Records that the room is being freed now: givers may have more to promise, so they are asked again.
    pub fn on_room_freed(&mut self, now: Time) {
        (self.room_due, self.room_freed_at) = (None, now);
        self.ask_again();
    }

    /// Lets writes that still find too little credit request more of givers that were asked before.
    fn ask_again(&mut self) {
        if !std::mem::take(&mut self.is_asking) {
            return;
        }
        for credit in self.credits.values_mut().filter(|credit| credit.was_asked) {
            (credit.was_asked, credit.has_ended) = (credit.is_awaited, credit.is_awaited);
            self.is_asking |= credit.is_awaited;
        }
    }

    // ---- as a member of this OSD's own PGs ----

    /// Returns whether this OSD's store has space for a write of `bytes` bytes.
    pub fn here(&mut self, now: Time, space: Space, bytes: u64) -> Verdict {
        if !self.is_demand_old && self.left_here(space) >= bytes {
            return Verdict::Enough;
        }
        self.lacking_here = Some(self.lacking_here.map_or(bytes, |least| least.min(bytes)));
        let is_full = self.own_bytes == 0 && self.is_full(now, space);
        let is_too_large = bytes > self.most_here(space)
            || self.own_bytes == 0 && bytes > self.coming_bytes(now, space);
        match is_full || space.is_full || is_too_large {
            true => Verdict::Full,
            false => Verdict::Unknown,
        }
    }

    /// Returns the space for writes in PGs that this OSD leads. This OSD may use no more than the maximum
    /// that is promised to any other primary.
    fn left_here(&self, space: Space) -> u64 {
        let most = if self.demand.is_some() { self.most_here(space) } else { 0 };
        self.unpromised(space).min(most.saturating_sub(self.own_bytes))
    }

    /// Returns how much of this OSD's space its own PGs may use at a time, if all of it were free.
    fn most_here(&self, space: Space) -> u64 {
        let demand = self.demand.as_ref();
        demand.map_or(u64::MAX, |it| it.promise_bytes_max(space).min(it.room_share(space)))
    }

    /// Returns whether space that was lacking here is available now; true only once. Must be polled, because
    /// the store sends no event when more space is ready.
    pub fn has_come_here(&mut self, space: Space) -> bool {
        let left = self.left_here(space);
        self.lacking_here.take_if(|least| *least <= left).is_some()
    }

    /// Records that a write of a PG that this OSD leads begins.
    pub fn begin_own(&mut self, bytes: u64) {
        self.own_bytes += bytes;
    }

    /// Records that such a write was answered.
    pub fn end_own(&mut self, bytes: u64) {
        assert!(self.own_bytes >= bytes);
        self.own_bytes -= bytes;
        self.ask_again();
    }

    /// Returns whether a copy of `bytes` bytes, for which no space was promised, may be stored. The part
    /// of the room for prepared versions that is kept for learners may be used.
    pub fn may_take_copy(&self, space: Space, reserve_bytes: u64, bytes: u64) -> bool {
        let with_reserve = Space {
            sure_bytes: space.sure_bytes + reserve_bytes,
            free_bytes: space.free_bytes + reserve_bytes,
            room_bytes: space.room_bytes + space.room_bytes_max / LEARNER_SHARE,
            ..space
        };
        self.unpromised(with_reserve) >= bytes
    }

    // ---- as a giver ----

    /// Handles a holder's claim, under a lease that this OSD counts as valid until `lease_until`.
    /// Requires: no newer run of this holder has sent a claim.
    pub fn offer(
        &mut self,
        now: Time,
        holder: Member,
        claim: Claim,
        lease_until: Time,
        space: Space,
    ) -> Offer {
        self.on_newer_run(holder);
        let limit_bytes = claim.begun_bytes;
        let new = || Promise { holder, claim, limit_bytes, lease_until };
        let promise = self.promises.entry(holder.osd).or_insert_with(new);
        // A late message of an earlier connection carries smaller numbers than those already known.
        promise.limit_bytes = promise.limit_bytes.max(claim.begun_bytes);
        if claim.begun_bytes >= promise.claim.begun_bytes {
            promise.claim = claim;
        }
        promise.lease_until = lease_until;
        let promised_bytes = promise.bytes();
        let share_bytes = self.share(space);
        let more = self.unpromised(space).min(share_bytes.saturating_sub(promised_bytes));
        let more = self.demand.as_ref().map_or(0, |demand| demand.in_whole_blocks(more));
        let promise = self.promises.get_mut(&holder.osd).expect("just made");
        promise.limit_bytes += more;
        let limit_bytes = promise.limit_bytes;
        let (is_full, largest_bytes) = (self.is_full(now, space), self.largest_share(now, space));
        Offer { limit_bytes, share_bytes, is_full, largest_bytes }
    }

    /// Returns whether space is promised to an OSD.
    #[cfg(test)]
    pub(crate) fn is_promised_to(&self, holder: OsdId) -> bool {
        self.promises.contains_key(&holder)
    }

    /// Handles the claim of a holder that leads no PG with this OSD: nothing is promised to it, and what was
    /// promised before ends.
    pub fn offer_nothing(&mut self, holder: Member, claim: Claim) -> Offer {
        self.on_newer_run(holder);
        self.on_surrender(holder);
        let limit_bytes = claim.begun_bytes;
        Offer { limit_bytes, share_bytes: 0, is_full: false, largest_bytes: u64::MAX }
    }

    /// Ends the promise to earlier runs of a holder: they begin no more writes.
    pub fn on_newer_run(&mut self, newest: Member) {
        if self.promises.get(&newest.osd).is_some_and(|promise| promise.holder < newest) {
            self.end_run(newest.osd);
        }
    }

    /// Handles a holder's surrender: the holder begins no more writes.
    pub fn on_surrender(&mut self, holder: Member) {
        if self.has_promise(holder) {
            self.end_run(holder.osd);
        }
    }

    /// Writes that the holder began are still counted, through the PGs that were active under it.
    fn end_run(&mut self, holder: OsdId) {
        self.promises.remove(&holder);
        self.is_demand_old = true;
    }

    fn has_promise(&self, holder: Member) -> bool {
        self.promises.get(&holder.osd).is_some_and(|promise| promise.holder == holder)
    }

    /// Records that entries of this OSD have changed: nothing more is promised until
    /// [`SpaceCredits::on_demand`].
    pub fn on_entries_changed(&mut self) {
        self.is_demand_old = true;
    }

    /// Returns whether the demand must be computed again: if entries have changed, while the demand is
    /// unknown, while space is reserved for earlier runs, or while an idle promise must still end.
    pub(crate) fn is_demand_due(&self) -> bool {
        let awaits = |demand: &Demand| !demand.earlier_runs.is_empty();
        let is_due = self.is_demand_old || self.demand.as_ref().is_none_or(awaits);
        is_due || self.has_idle_promise()
    }

    /// Returns whether space is promised to an OSD that leads no PG here any more.
    pub(crate) fn has_idle_promise(&self) -> bool {
        let leads = |demand: &Demand, osd| demand.primaries.contains(osd);
        let demand = self.demand.as_ref();
        demand.is_some_and(|demand| self.promises.keys().any(|osd| !leads(demand, osd)))
    }

    /// Sets the current demand. `is_connected`: whether a holder may still send claims over an open
    /// connection.
    pub fn on_demand(
        &mut self,
        now: Time,
        demand: Option<Demand>,
        is_connected: impl Fn(OsdId) -> bool,
    ) {
        self.is_demand_old = false;
        if let Some(Demand { primaries, earlier_runs, .. }) = &demand {
            // An OSD that leads no PG here and has no lease cannot begin writes. When it connects again, it
            // returns the credit that it did not use.
            self.promises.retain(|osd, promise| {
                primaries.contains(osd) || now < promise.lease_until || is_connected(*osd)
            });
            let since = self.earlier_since.unwrap_or(now);
            self.earlier_since = (!earlier_runs.is_empty()).then_some(since);
        }
        self.demand = demand;
    }

    fn earlier_bytes(&self, space: Space) -> u64 {
        match &self.demand {
            Some(demand) => demand.earlier_bytes(space),
            None => u64::MAX,
        }
    }

    /// Returns the space that may be promised, including the space that is already promised.
    fn promisable(&self, space: Space) -> u64 {
        let room = self.demand.as_ref().map(|it| it.writes_with_room(space, space.room_bytes));
        self.usable(space).min(room.unwrap_or(0)).saturating_sub(self.own_bytes)
    }

    /// Returns the space for writes, regardless of the room for prepared versions.
    fn usable(&self, space: Space) -> u64 {
        // Space reserved for earlier runs need not be ready: repairs wait until it is.
        let free = space.free_bytes.saturating_sub(self.earlier_bytes(space));
        space.sure_bytes.min(free)
    }

    fn unpromised(&self, space: Space) -> u64 {
        let promised = self.promises.values().map(Promise::bytes);
        promised.fold(self.promisable(space), u64::saturating_sub)
    }

    /// Returns the share that is promised to each primary: the fixed maximum, or an equal part of the
    /// available space if that is less.
    fn share(&self, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return 0 };
        let usable = self.usable(space).saturating_sub(self.own_bytes) / demand.primary_count();
        let share = demand.promise_bytes(space).min(usable).min(demand.room_share(space));
        demand.in_whole_blocks(share)
    }

    /// Returns whether the free space, including what is being made ready, is less than one block for
    /// each primary; or the journal is so small that prepared versions have no room for that.
    fn is_full(&self, now: Time, space: Space) -> bool {
        let block_bytes = self.demand.as_ref().map_or(0, |demand| demand.block_size.bytes());
        space.is_full || self.largest_share(now, space) < block_bytes
    }

    /// Returns the largest share that a primary can have, unless space is freed.
    fn largest_share(&self, now: Time, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return u64::MAX };
        let free = self.coming_bytes(now, space) / demand.primary_count();
        let share = demand.promise_bytes(space).min(demand.room_share(space));
        demand.in_whole_blocks(share.min(free))
    }

    /// Returns the free space for writes, including what is being made ready.
    fn coming_bytes(&self, now: Time, space: Space) -> u64 {
        let is_kept_long = self.earlier_since.is_some_and(|at| now.since(at) >= EARLIER_WAIT_MAX);
        let earlier = if is_kept_long { self.earlier_bytes(space) } else { 0 };
        let ready = if space.is_growing { u64::MAX } else { space.sure_bytes };
        let free = space.free_bytes.saturating_sub(earlier).min(ready);
        free.saturating_sub(self.own_bytes)
    }
}

// ---- demand from the entries of this OSD

/// Returns the space of this OSD's store.
pub(crate) fn space_of(store: &Store) -> Space {
    let (space, room) = (store.space(), store.prepared_room());
    Space {
        size_bytes: space.size_bytes,
        sure_bytes: space.sure_bytes,
        free_bytes: space.free_bytes,
        is_growing: space.is_growing,
        is_full: space.full,
        room_bytes_max: room.bytes_max,
        room_bytes: room.free_bytes(),
    }
}

impl SpaceCredits {
    /// Computes the demand from the entries; `None` while some entries may be missing.
    pub(crate) fn demand_of(
        &self,
        cluster: &ClusterView,
        notes: &Notes,
        pgs: &PgTable,
    ) -> Option<Demand> {
        let me = cluster.me()?;
        for (pool, noted) in notes.pools() {
            cluster.pool(pool).filter(|known| known.revision >= noted.revision)?;
        }
        let mut demand = Demand {
            primaries: BTreeSet::new(),
            block_size: BlockSize::MIN,
            keeps_parity: false,
            earlier_runs: BTreeSet::new(),
        };
        for (_, known) in cluster.pools() {
            for entry in known.pgs.iter().filter(|entry| cluster.has_part(entry)) {
                demand.primaries.extend(entry.primary_osd());
                demand.block_size = demand.block_size.max(known.pool.block_size);
                demand.keeps_parity |= !known.pool.scheme.is_whole_everywhere();
                // No space is promised for copies that a learner receives.
                let acts = entry.position_of(me.osd).is_some();
                if acts && !self.has_all_begun(me, entry, pgs.get(entry.pg)) {
                    demand.earlier_runs.extend(begun_in(me.osd, pgs.get(entry.pg)));
                }
            }
        }
        Some(demand)
    }

    /// Returns whether all writes begun in the PG have arrived here, or are counted in the promise to its
    /// current primary.
    fn has_all_begun(&self, me: Member, entry: &PgEntry, pg: Option<&Pg>) -> bool {
        let pg = pg.filter(|pg| pg.is_activated());
        let is_active = pg.and_then(|pg| pg.entry()).is_some_and(|it| it.epoch == entry.epoch);
        let counts = |holder| holder == me || self.has_promise(holder);
        is_active && entry.primary_member().is_some_and(counts)
    }
}

/// Returns the runs of this OSD and of the primary in the last activation: they may have begun writes that
/// have not arrived here. Returns `None` for a PG without a record.
fn begun_in(me: OsdId, pg: Option<&Pg>) -> Option<(Incarnation, Option<Member>)> {
    let Some(pg) = pg else { return Some((Incarnation::ZERO, None)) };
    let entry = &pg.record()?.entry;
    let mine = entry.members().find(|member| member.osd == me);
    Some((mine.map_or(Incarnation::ZERO, |member| member.incarnation), entry.primary_member()))
}

#[cfg(test)]
mod tests;
