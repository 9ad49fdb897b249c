//! Credits: the space and the room that members have promised to this OSD as a primary, and those that this OSD
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
//! its version is committed. That is a second credit, counted in the same way: a change takes the room of its
//! units, in steps of 4 KiB. Each primary has a fixed share of the room, whatever is free now, so primaries
//! that need credit of several givers do not wait for each other. A quarter of the room is never promised: it
//! is for the versions that this OSD receives as a learner. An OSD of an older version knows one credit: the
//! lesser of both is promised, and whole blocks are taken.
//!
//! Invariants
//!   1. The bytes that a holder may still write to the giver, by writes that are in transit or that it may
//!      begin, never exceed what the giver counts as promised to it. A limit only grows, so lost or late
//!      messages do not violate this.
//!   2. When space is promised, all promises together fit into the free space; likewise for room.
//!   3. One run of a holder is never promised more than the largest promise. So whatever earlier runs
//!      promised, the writes that an inactive PG still lacks take at most one largest promise.
//!   4. A change takes both kinds of credit of all givers in one event, or none of any.
//!   5. Who waits for credit goes before all who arrived later, at each giver and for each kind by itself.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{BlockSize, Duration, Incarnation, MIB, OsdId, PgId, Time, UNIT_SIZE};
use blockstore::Store;
use format::wire::{Member, PgEntry};
use pg::{Charge, Pg};

use crate::cluster_view::ClusterView;
use crate::credit_lines::{CreditLines, Kind, Place};
use crate::notes::Notes;
use crate::pg_table::PgTable;

/// Maximum number of bytes that are promised to one primary at a time.
const PROMISE_BYTES_MAX: u64 = 64 * MIB;
/// All promises together use at most one part in this many of the store.
const STORE_SHARE: u64 = 8;
/// Minimum number of blocks that are promised to each primary, in blocks of the largest size among its PGs.
const BLOCKS_MIN: u64 = 4;
/// Upper bound of what a prepared write of a holder with one credit uses of the journal: eight bytes of data
/// use nine, for blocks of 64 KiB or more. The rest is the header with checksums and part table, in whole
/// sectors.
const PREPARED_COST: (u64, u64) = (8, 9);
/// More than any change takes.
const CHANGE_BYTES_MAX: u64 = 8 * MIB;
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

/// The numbers that a holder sends with a renewal, of one kind of credit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Claim {
    /// Total bytes of credit that writes have used or that the holder has returned.
    pub begun_bytes: u64,
    /// The part of `begun_bytes` that the giver may not have stored yet.
    pub owed_bytes: u64,
}

/// What a holder claims.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Claims {
    /// Space, or both if there is one credit for both.
    pub space: Claim,
    /// Room; `None` if there is one credit for both.
    pub room: Option<Claim>,
}

/// The numbers that a giver sends with a grant, of one kind of credit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offer {
    /// The value of `begun_bytes` up to which there is credit.
    pub limit_bytes: u64,
    /// Unused credit that the holder may keep; it returns the rest.
    pub share_bytes: u64,
    /// The largest write for which there can be credit, unless some is freed. What needs more space is
    /// refused, what needs more room is cut.
    pub largest_bytes: u64,
}

/// What a giver offers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offers {
    /// Whether the store accepts no new data.
    pub is_full: bool,
    /// Space, or both if there is one credit for both.
    pub space: Offer,
    /// Room; `None` if there is one credit for both.
    pub room: Option<Offer>,
}

/// The result of a check for credit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// There is enough.
    Enough,
    /// There is not enough now, or others waited first.
    Unknown,
    /// There is no space.
    Full,
}

/// Credit of one kind that a giver has promised to this OSD.
#[derive(Default)]
struct Part {
    begun_bytes: u64,
    limit_bytes: u64,
    share_bytes: u64,
    /// The credit that was unused when the last offer arrived.
    high_bytes: u64,
    largest_bytes: u64,
    /// Whether more of this kind was requested. It is requested again after a regular renewal, when the limit
    /// has grown, or when a write was answered.
    was_asked: bool,
}

/// What a giver has promised to this OSD.
struct Credit {
    giver: Member,
    /// Space, or both if there is one credit for both.
    space: Part,
    /// Room; `None` if the giver is of an older version, which has one credit for both.
    room: Option<Part>,
    is_full: bool,
    /// Whether the lease must be renewed now, to request more.
    wants_more: bool,
    /// Whether the last claim is still unanswered.
    is_awaited: bool,
    /// Whether a write was answered since the last claim.
    has_ended: bool,
    /// The stamp of the last renewal that gave all credit back: offers before it are void.
    given_back: u64,
}

/// What this OSD has promised to a holder, of one kind of credit.
#[derive(Default)]
struct Pledge {
    claim: Claim,
    limit_bytes: u64,
}

/// What this OSD has promised to a holder.
struct Promise {
    holder: Member,
    /// Space, or both if there is one credit for both.
    space: Pledge,
    /// Room; `None` if there is one credit for both.
    room: Option<Pledge>,
    /// After this time the holder begins no write unless it renews its lease.
    lease_until: Time,
}

/// The demand on this OSD's store, computed from the map entries that list this OSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Demand {
    /// OSDs that lead a PG in which this OSD has a part.
    pub primaries: BTreeSet<OsdId>,
    /// Those of them that lead one whose pool keeps parity.
    pub parity_primaries: BTreeSet<OsdId>,
    /// The largest block size among these PGs.
    pub block_size: BlockSize,
    /// Room that prepared versions of PGs which are not active here take: it comes back when these are
    /// settled.
    pub kept_room_bytes: u64,
    /// Runs of this OSD and of primaries that may have left writes in PGs that are not active here.
    pub earlier_runs: BTreeSet<(Incarnation, Option<Member>)>,
}

/// All credits and promises of an OSD.
pub struct SpaceCredits {
    credits: BTreeMap<OsdId, Credit>,
    /// What open requests have taken of each giver, whatever its run.
    owed: BTreeMap<OsdId, Charge>,
    lines: CreditLines,
    /// Whether some credit must request more.
    is_wanting: bool,
    /// Whether some credit may have requested more.
    is_asking: bool,
    promises: BTreeMap<OsdId, Promise>,
    /// `None` while the demand is unknown; then nothing is promised.
    demand: Option<Demand>,
    /// Whether entries have changed since `demand` was computed.
    is_demand_old: bool,
    /// Since when space has been reserved for writes of earlier runs; `None` if none is.
    earlier_since: Option<Time>,
    /// What open requests, in PGs that this OSD leads, have taken of its own store.
    own: Charge,
    /// What the first of those lacked that wait for this OSD's own store.
    lacking_here: BTreeMap<Kind, u64>,
    /// When room for prepared versions is to be freed, because a write waits for it; `None` if none waits.
    room_due: Option<Time>,
    /// When that was done last.
    room_freed_at: Time,
}

impl Part {
    /// Returns the credit at a giver that has offered nothing yet, and has not said what is too much.
    fn new() -> Part {
        Part { largest_bytes: u64::MAX, ..Part::default() }
    }

    fn unused(&self) -> u64 {
        assert!(self.begun_bytes <= self.limit_bytes);
        self.limit_bytes - self.begun_bytes
    }

    fn claim(&mut self, owed_bytes: u64, is_timely: bool) -> Claim {
        self.was_asked = !is_timely;
        if is_timely {
            self.begun_bytes += self.unused().saturating_sub(self.share_bytes);
        }
        Claim { begun_bytes: self.begun_bytes, owed_bytes }
    }

    fn give_back(&mut self) {
        (self.begun_bytes, self.share_bytes) = (self.limit_bytes, 0);
    }

    fn on_offer(&mut self, offer: Offer, has_ended: bool) {
        let has_grown = offer.limit_bytes > self.limit_bytes;
        self.limit_bytes = self.limit_bytes.max(offer.limit_bytes);
        self.share_bytes = offer.share_bytes;
        self.largest_bytes = offer.largest_bytes;
        self.high_bytes = self.unused();
        self.was_asked &= !has_grown && !has_ended;
    }

    /// Uses credit. Returns whether more should be requested.
    fn take(&mut self, bytes: u64, is_counted: bool) -> bool {
        assert!(self.unused() >= bytes);
        if is_counted {
            self.begun_bytes += bytes;
        }
        self.unused() < self.high_bytes / 2 && !self.was_asked
    }
}

impl Credit {
    fn parts(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.space).chain(&mut self.room)
    }

    fn part(&mut self, kind: Kind) -> &mut Part {
        match (kind, &mut self.room) {
            (Kind::Room, Some(room)) => room,
            _ => &mut self.space,
        }
    }
}

/// Returns what a change takes of each kind of credit, where it takes any. `is_split`: whether space and room
/// are two credits.
fn kinds_of(charge: Charge, is_split: bool) -> impl Iterator<Item = (Kind, u64)> {
    let (space_bytes, room_bytes) = match is_split {
        true => (charge.space_bytes, charge.room_bytes),
        false => (charge.whole_bytes, 0),
    };
    let kinds = [(Kind::Space, space_bytes), (Kind::Room, room_bytes)];
    kinds.into_iter().filter(|(_, bytes)| *bytes > 0)
}

impl Pledge {
    fn bytes(&self) -> u64 {
        let unused = self.limit_bytes - self.claim.begun_bytes;
        unused.saturating_add(self.claim.owed_bytes)
    }

    fn on_claim(&mut self, claim: Claim) {
        // A late message of an earlier connection carries smaller numbers than those already known.
        self.limit_bytes = self.limit_bytes.max(claim.begun_bytes);
        if claim.begun_bytes >= self.claim.begun_bytes {
            self.claim = claim;
        }
    }
}

impl Promise {
    fn bytes(&self, kind: Kind, demand: &Demand) -> u64 {
        match (kind, &self.room) {
            (Kind::Space, _) => self.space.bytes(),
            (Kind::Room, Some(room)) => room.bytes(),
            (Kind::Room, None) if demand.parity_primaries.is_empty() => 0,
            (Kind::Room, None) => room_for(self.space.bytes()),
        }
    }
}

/// Returns the room that writes of `bytes` bytes take, counted in whole blocks.
fn room_for(bytes: u64) -> u64 {
    bytes.div_ceil(PREPARED_COST.0).saturating_mul(PREPARED_COST.1)
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

    /// Returns how many bytes of writes, in whole blocks, fit into this much room.
    fn writes_within(&self, room_bytes: u64) -> u64 {
        let bytes = room_bytes / PREPARED_COST.1 * PREPARED_COST.0;
        bytes - bytes % self.block_size.bytes()
    }
}

impl SpaceCredits {
    /// Creates the credits of a run that begins now.
    pub fn new() -> SpaceCredits {
        SpaceCredits {
            credits: BTreeMap::new(),
            owed: BTreeMap::new(),
            lines: CreditLines::default(),
            is_wanting: false,
            is_asking: false,
            promises: BTreeMap::new(),
            demand: None,
            is_demand_old: true,
            earlier_since: None,
            own: Charge::default(),
            lacking_here: BTreeMap::new(),
            room_due: None,
            room_freed_at: Time::ZERO,
        }
    }

    // ---- as a holder ----

    /// Handles a new connection to this giver, over which no offer comes that was made before. See
    /// [`SpaceCredits::on_led`].
    pub fn on_connected(&mut self, giver: Member, is_split: bool) {
        self.on_led(giver, is_split);
        self.credits.get_mut(&giver.osd).expect("it is known").given_back = 0;
    }

    /// Handles a new connection to this giver, or that this OSD leads a PG with it again: earlier credit is
    /// returned. `is_split`: whether space and room are two credits; always the same for one run of a giver.
    pub fn on_led(&mut self, giver: Member, is_split: bool) {
        match self.credits.get_mut(&giver.osd).filter(|known| known.giver >= giver) {
            Some(credit) => {
                credit.parts().for_each(|part| part.begun_bytes = part.limit_bytes);
                if is_split {
                    credit.room.get_or_insert_with(Part::new);
                }
            }
            None => {
                let credit = Credit {
                    giver,
                    space: Part::new(),
                    room: is_split.then(Part::new),
                    is_full: false,
                    wants_more: false,
                    is_awaited: false,
                    has_ended: false,
                    given_back: 0,
                };
                self.credits.insert(giver.osd, credit);
            }
        }
    }

    /// Returns the claims for a renewal. `lost`: what this giver, or its earlier runs, may not have stored of
    /// changes in epochs that are over. `is_timely`: whether this is a regular renewal, not one that
    /// [`SpaceCredits::take_wanting`] requested. Requires: [`SpaceCredits::on_connected`].
    pub fn claim(&mut self, giver: OsdId, lost: Charge, is_timely: bool) -> Claims {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        let mut owed = self.owed.get(&giver).copied().unwrap_or_default();
        owed += lost;
        self.is_asking |= !is_timely;
        (credit.wants_more, credit.is_awaited, credit.has_ended) = (false, true, false);
        let is_split = credit.room.is_some();
        let owed_space = if is_split { owed.space_bytes } else { owed.whole_bytes };
        Claims {
            space: credit.space.claim(owed_space, is_timely),
            room: credit.room.as_mut().map(|room| room.claim(owed.room_bytes, is_timely)),
        }
    }

    /// Gives all credit back that is unused, because this OSD leads no PG in which the giver takes part, and
    /// returns the claims for the renewal with this stamp. Requires: [`SpaceCredits::on_connected`].
    pub fn give_back(&mut self, giver: OsdId, stamp: u64, lost: Charge) -> Claims {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        credit.parts().for_each(Part::give_back);
        credit.given_back = stamp;
        self.claim(giver, lost, true)
    }

    /// Handles a giver's offers for the renewal with this stamp: a change that waits may proceed now, or is
    /// refused.
    pub fn on_offer(&mut self, giver: OsdId, stamp: u64, offers: Offers) {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        if stamp < credit.given_back {
            return;
        }
        credit.is_full = offers.is_full;
        credit.is_awaited = false;
        let has_ended = std::mem::take(&mut credit.has_ended);
        credit.space.on_offer(offers.space, has_ended);
        if let (Some(room), Some(offer)) = (&mut credit.room, offers.room) {
            room.on_offer(offer, has_ended);
        }
    }

    /// Returns whether this giver has credit for this many bytes of this kind.
    fn at(&mut self, giver: OsdId, kind: Kind, bytes: u64) -> Verdict {
        let Some(credit) = self.credits.get_mut(&giver) else { return Verdict::Unknown };
        let is_full = credit.is_full && kind == Kind::Space;
        let part = credit.part(kind);
        if part.unused() >= bytes {
            return Verdict::Enough;
        }
        let (is_too_large, was_asked) = (bytes > part.largest_bytes, part.was_asked);
        credit.wants_more |= !was_asked;
        self.is_wanting |= credit.wants_more;
        if is_full || is_too_large { Verdict::Full } else { Verdict::Unknown }
    }

    /// Returns whether a change may begin now: whether this OSD's own store and all givers have credit for
    /// it, and nobody who arrived earlier waits for it there. If it must wait, it keeps its places in the
    /// lines until [`SpaceCredits::leave`].
    pub fn judge(
        &mut self,
        now: Time,
        space: Space,
        givers: &[OsdId],
        arrival: u64,
        charge: Charge,
    ) -> Verdict {
        let mut worst = Verdict::Enough;
        let mut lacking: Vec<(Place, u64)> = Vec::new();
        let mut count = |lines: &CreditLines, place, bytes, verdict: Verdict| {
            let is_behind = verdict == Verdict::Enough && lines.is_behind(place, arrival);
            // What frees space does not wait for ever, and is not refused.
            let is_refused = verdict == Verdict::Full && charge.space_bytes > 0;
            let verdict = match verdict {
                Verdict::Enough if !is_behind => return,
                _ if is_refused => Verdict::Full,
                _ => Verdict::Unknown,
            };
            lacking.push((place, bytes));
            worst = worst.max(verdict);
        };
        for (kind, bytes) in kinds_of(charge, true) {
            let verdict = self.here(now, space, kind, bytes);
            count(&self.lines, (None, kind), bytes, verdict);
        }
        for giver in givers {
            let is_split = self.credits.get(giver).is_none_or(|credit| credit.room.is_some());
            for (kind, bytes) in kinds_of(charge, is_split) {
                let verdict = self.at(*giver, kind, bytes);
                count(&self.lines, (Some(*giver), kind), bytes, verdict);
            }
        }
        if worst == Verdict::Unknown {
            for (place, bytes) in lacking {
                self.lines.join(place, arrival, bytes);
            }
        }
        worst
    }

    /// Returns the most room that a change can have, of this OSD's own store and of all these givers.
    pub fn most_room(&self, space: Space, givers: &[OsdId]) -> u64 {
        let credits = givers.iter().filter_map(|giver| self.credits.get(giver));
        let parts = credits.map(|credit| credit.room.as_ref().unwrap_or(&credit.space));
        let largest = parts.map(|part| part.largest_bytes).min();
        self.most_here(space, Kind::Room).min(largest.unwrap_or(u64::MAX))
    }

    /// Returns whether one of these givers is full and has one credit for both kinds.
    pub fn has_one_full(&self, givers: &[OsdId]) -> bool {
        let mut credits = givers.iter().filter_map(|giver| self.credits.get(giver));
        credits.any(|credit| credit.is_full && credit.room.is_none())
    }

    /// Removes a change from the lines: it is served or gone.
    pub fn leave(&mut self, arrival: u64) {
        self.lines.leave(arrival);
    }

    /// Returns whether a change waits for credit.
    pub fn is_awaited(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Returns the oldest change that is the first of a line and not among these. Those behind it need not be
    /// judged.
    pub fn first_waiting(&self, judged: &BTreeSet<u64>) -> Option<u64> {
        self.lines.first(judged)
    }

    /// Takes credit of this OSD's own store and of all givers. Requires: there is enough.
    pub fn take(&mut self, givers: &[OsdId], charge: Charge) {
        self.own += charge;
        for giver in givers {
            *self.owed.entry(*giver).or_default() += charge;
            let credit = self.credits.get_mut(giver).expect("it has credit");
            for (kind, bytes) in kinds_of(charge, credit.room.is_some()) {
                let is_forgotten = planted::on(Bug::CreditNotCounted)
                    || kind == Kind::Room && planted::on(Bug::RoomNotCounted);
                credit.wants_more |= credit.part(kind).take(bytes, !is_forgotten);
            }
            self.is_wanting |= credit.wants_more;
        }
    }

    /// Ends the use of credit by a change that was answered, so that all members have stored it, or whose
    /// epoch is over. `givers`: those of which it was taken.
    pub fn end(&mut self, givers: &[OsdId], charge: Charge) {
        self.own -= charge;
        for giver in givers {
            *self.owed.get_mut(giver).expect("it was taken") -= charge;
        }
        self.ask_again();
    }

    /// Returns the givers from which more must be requested now, with a lease renewal. Each is returned
    /// at most once before its next regular renewal or the growth of its limit.
    pub fn take_wanting(&mut self) -> Vec<OsdId> {
        if !std::mem::take(&mut self.is_wanting) {
            return Vec::new();
        }
        let wanting = self.credits.iter_mut().filter(|(_, credit)| credit.wants_more);
        let taken = wanting.map(|(osd, credit)| {
            credit.wants_more = false;
            credit.parts().for_each(|part| part.was_asked = true);
            *osd
        });
        taken.collect()
    }

    /// Returns when this OSD must free the room that its versions take in members' journals.
    pub fn room_due(&self) -> Option<Time> {
        self.room_due
    }

    /// Notes that a change in a pool with parity waits for credit: room is to be freed, unless none is waited
    /// for.
    pub fn await_room(&mut self, now: Time) {
        let is_one = self.credits.values().any(|credit| credit.room.is_none());
        if self.lines.has(Kind::Room) || is_one {
            self.room_due = self.room_due.or(Some(now.max(self.room_freed_at + ROOM_PAUSE)));
        }
    }

    /// Records that the room is being freed now: givers may have more to promise, so they are asked again.
    pub fn on_room_freed(&mut self, now: Time) {
        (self.room_due, self.room_freed_at) = (None, now);
        self.ask_again();
    }

    /// Lets changes that still find too little credit request more of givers that were asked before.
    fn ask_again(&mut self) {
        if !std::mem::take(&mut self.is_asking) {
            return;
        }
        for credit in self.credits.values_mut() {
            if credit.is_awaited {
                (credit.has_ended, self.is_asking) = (true, true);
            } else {
                credit.parts().for_each(|part| part.was_asked = false);
            }
        }
    }

    // ---- as a member of this OSD's own PGs ----

    /// Returns whether this OSD's store has credit for this many bytes of this kind.
    fn here(&mut self, now: Time, space: Space, kind: Kind, bytes: u64) -> Verdict {
        if self.has_here(space, kind, bytes) {
            return Verdict::Enough;
        }
        let lacking = self.lacking_here.entry(kind).or_insert(bytes);
        *lacking = bytes.min(*lacking);
        let is_full = match kind {
            Kind::Space => {
                let is_full = self.own.space_bytes == 0 && self.is_full(now, space);
                let most = self.most_coming_here(now, space);
                let is_too_large = self.own.space_bytes == 0 && bytes > most;
                is_full || space.is_full || is_too_large
            }
            Kind::Room => false,
        };
        match is_full || bytes > self.most_here(space, kind) {
            true => Verdict::Full,
            false => Verdict::Unknown,
        }
    }

    /// Returns whether this OSD's store has credit for this many bytes of this kind now.
    fn has_here(&self, space: Space, kind: Kind, bytes: u64) -> bool {
        !self.is_demand_old && self.left_here(space, kind) >= bytes
    }

    /// Returns what is left for writes in PGs that this OSD leads. This OSD may use no more than the maximum
    /// that is promised to any other primary.
    fn left_here(&self, space: Space, kind: Kind) -> u64 {
        let most = if self.demand.is_some() { self.most_here(space, kind) } else { 0 };
        self.unpromised(space, kind).min(most.saturating_sub(self.own_bytes(kind)))
    }

    /// Returns how much of this OSD's store its own PGs may use at a time, if all of it were free.
    fn most_here(&self, space: Space, kind: Kind) -> u64 {
        self.demand.as_ref().map_or(u64::MAX, |demand| match kind {
            Kind::Space => demand.promise_bytes_max(space),
            Kind::Room => self.room_share(space),
        })
    }

    /// Returns what the first change needs of this OSD's store that waits for it: as far as it may use it,
    /// nobody else gets that.
    fn awaited_here(&self, space: Space, kind: Kind) -> u64 {
        let most = self.most_here(space, kind).saturating_sub(self.own_bytes(kind));
        self.lines.need((None, kind)).min(most)
    }

    fn own_bytes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Space => self.own.space_bytes,
            Kind::Room => self.own.room_bytes,
        }
    }

    /// Returns whether a change lacks something here that a review of the demand may bring.
    pub fn may_review_help(&self) -> bool {
        !self.lacking_here.is_empty() && self.is_demand_due()
    }

    /// Returns whether what was lacking here is available now; true only once. Must be polled, because the
    /// store sends no event when more space is ready.
    pub fn has_come_here(&mut self, space: Space) -> bool {
        let mut lacking = std::mem::take(&mut self.lacking_here);
        let before = lacking.len();
        lacking.retain(|kind, least| self.left_here(space, *kind) < *least);
        let has_come = lacking.len() < before;
        self.lacking_here = lacking;
        has_come
    }

    /// Returns whether a copy of `bytes` bytes, for which no space was promised, may be stored. `room_bytes`:
    /// the room that it takes as a prepared version. The part that is kept for learners may be used.
    pub fn may_take_copy(
        &self,
        space: Space,
        reserve_bytes: u64,
        (bytes, room_bytes): (u64, u64),
    ) -> bool {
        let with_reserve = Space {
            sure_bytes: space.sure_bytes + reserve_bytes,
            free_bytes: space.free_bytes + reserve_bytes,
            room_bytes: space.room_bytes + space.room_bytes_max / LEARNER_SHARE,
            ..space
        };
        self.unpromised(with_reserve, Kind::Space) >= bytes
            && (room_bytes == 0 || self.unpromised(with_reserve, Kind::Room) >= room_bytes)
    }

    // ---- as a giver ----

    /// Handles a holder's claims, under a lease that this OSD counts as valid until `lease_until`.
    /// Requires: no newer run of this holder has sent a claim.
    pub fn offer(
        &mut self,
        now: Time,
        holder: Member,
        claims: Claims,
        lease_until: Time,
        space: Space,
    ) -> Offers {
        self.on_newer_run(holder);
        let (pledge, is_split) = (Pledge::default, claims.room.is_some());
        let promise = self.promises.entry(holder.osd).or_insert_with(|| Promise {
            holder,
            space: pledge(),
            room: is_split.then(pledge),
            lease_until,
        });
        promise.lease_until = lease_until;
        promise.space.on_claim(claims.space);
        if let Some(claim) = claims.room {
            promise.room.get_or_insert_with(pledge).on_claim(claim);
        }
        let is_one = !is_split;
        let (space_share, room_share) = (self.share(space), self.room_share_of(holder, space));
        let share = if is_one { self.lesser(space_share, room_share) } else { space_share };
        let mut free = self.offerable(space, Kind::Space);
        if is_one {
            free = self.lesser(free, self.offerable(space, Kind::Room));
        }
        let limit_bytes = self.pledge(holder.osd, Kind::Space, share, free);
        let largest = self.largest_share(now, space);
        let largest_bytes = if is_one { self.lesser(largest, room_share) } else { largest };
        let offer = Offer { limit_bytes, share_bytes: share, largest_bytes };
        let room = claims.room.map(|_| {
            let free = self.offerable(space, Kind::Room);
            let limit_bytes =
                self.pledge(holder.osd, Kind::Room, room_share, free - free % UNIT_SIZE);
            let largest_bytes = self.most_here(space, Kind::Room);
            Offer { limit_bytes, share_bytes: room_share, largest_bytes }
        });
        let is_full = self.is_full(now, space) || largest_bytes < self.block_bytes();
        Offers { is_full, space: offer, room }
    }

    /// Promises a holder what it lacks of its share, as far as it is free, and returns the limit.
    fn pledge(&mut self, holder: OsdId, kind: Kind, share_bytes: u64, free_bytes: u64) -> u64 {
        let promise = self.promises.get_mut(&holder).expect("it has made a claim");
        let pledge = match (kind, &mut promise.room) {
            (Kind::Room, Some(room)) => room,
            _ => &mut promise.space,
        };
        let more = free_bytes.min(share_bytes.saturating_sub(pledge.bytes()));
        // A holder may claim any number.
        pledge.limit_bytes = pledge.limit_bytes.saturating_add(more);
        pledge.limit_bytes
    }

    /// Returns the lesser of space and of what fits into room, in whole blocks, for a holder that has one
    /// credit for both. Where no pool keeps parity, room does not count.
    fn lesser(&self, space_bytes: u64, room_bytes: u64) -> u64 {
        let demand = self.demand.as_ref().filter(|demand| !demand.parity_primaries.is_empty());
        let Some(demand) = demand else { return space_bytes };
        let space_bytes = space_bytes - space_bytes % demand.block_size.bytes();
        space_bytes.min(demand.writes_within(room_bytes))
    }

    /// Returns whether open requests have taken nothing.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let is_nothing = |charge: &Charge| *charge == Charge::default();
        is_nothing(&self.own) && self.owed.values().all(is_nothing)
    }

    /// Returns whether space is promised to an OSD.
    #[cfg(test)]
    pub(crate) fn is_promised_to(&self, holder: OsdId) -> bool {
        self.promises.contains_key(&holder)
    }

    /// Handles the claims of a holder that leads no PG with this OSD: nothing is promised to it, and what was
    /// promised before ends.
    pub fn offer_nothing(&mut self, holder: Member, claims: Claims) -> Offers {
        self.on_newer_run(holder);
        self.on_surrender(holder);
        let nothing = |claim: Claim| Offer {
            limit_bytes: claim.begun_bytes,
            share_bytes: 0,
            largest_bytes: u64::MAX,
        };
        Offers { is_full: false, space: nothing(claims.space), room: claims.room.map(nothing) }
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

    /// Returns what may be promised, including what is already promised.
    fn promisable(&self, space: Space, kind: Kind) -> u64 {
        let all = match kind {
            Kind::Space => self.usable(space),
            Kind::Room if self.demand.is_none() => 0,
            Kind::Room => space.room_bytes.saturating_sub(space.room_bytes_max / LEARNER_SHARE),
        };
        all.saturating_sub(self.own_bytes(kind))
    }

    /// Returns the space for writes.
    fn usable(&self, space: Space) -> u64 {
        // Space reserved for earlier runs need not be ready: repairs wait until it is.
        let free = space.free_bytes.saturating_sub(self.earlier_bytes(space));
        space.sure_bytes.min(free)
    }

    fn unpromised(&self, space: Space, kind: Kind) -> u64 {
        let Some(demand) = &self.demand else { return 0 };
        let promised = self.promises.values().map(|promise| promise.bytes(kind, demand));
        promised.fold(self.promisable(space, kind), u64::saturating_sub)
    }

    /// Returns what may be promised to a holder now.
    fn offerable(&self, space: Space, kind: Kind) -> u64 {
        self.unpromised(space, kind).saturating_sub(self.awaited_here(space, kind))
    }

    /// Returns the part of all room for prepared versions that each primary of PGs with parity may use, and
    /// each one that has one credit for both kinds. One part more is counted, because a former primary keeps
    /// its promise until its lease has expired. What PGs that are not active keep is not divided, but changes
    /// of one unit wait for it: they are refused only where they never fit.
    fn room_share(&self, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return 0 };
        let has_parity = |osd: &OsdId| demand.parity_primaries.contains(osd);
        let others = self.promises.iter().filter(|(osd, _)| !has_parity(osd));
        let with_one = others.filter(|(_, promise)| promise.room.is_none()).count();
        let count = (demand.parity_primaries.len() + with_one) as u64 + 1;
        let all = room_of_primaries(space.room_bytes_max);
        let least = pg::room_of_version(1).min(all / count);
        let share = (all.saturating_sub(demand.kept_room_bytes) / count).max(least);
        share - share % UNIT_SIZE
    }

    /// Returns the share of space that is promised to each primary: the fixed maximum, or an equal part of
    /// the available space if that is less.
    fn share(&self, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return 0 };
        let usable = self.usable(space).saturating_sub(self.own.space_bytes);
        demand.promise_bytes(space).min(usable / demand.primary_count())
    }

    /// Returns the share of room of a holder: none if it leads no PG with parity here. One that has one
    /// credit for both needs room for all that it writes.
    fn room_share_of(&self, holder: Member, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return 0 };
        let promise = self.promises.get(&holder.osd);
        let is_one = promise.is_some_and(|promise| promise.room.is_none());
        match is_one || demand.parity_primaries.contains(&holder.osd) {
            true => self.room_share(space),
            false => 0,
        }
    }

    fn block_bytes(&self) -> u64 {
        self.demand.as_ref().map_or(0, |demand| demand.block_size.bytes())
    }

    /// Returns whether the free space, including what is being made ready, is less than one block for
    /// each primary.
    fn is_full(&self, now: Time, space: Space) -> bool {
        space.is_full || self.largest_share(now, space) < self.block_bytes()
    }

    /// Returns the largest share of space that a primary can have, unless some is freed.
    fn largest_share(&self, now: Time, space: Space) -> u64 {
        let Some(demand) = &self.demand else { return u64::MAX };
        let free = self.coming_bytes(now, space) / demand.primary_count();
        demand.promise_bytes(space).min(free)
    }

    /// Returns the most space that this OSD's own PGs can have, unless some is freed: other primaries keep
    /// their shares, although they may use none of it.
    fn most_coming_here(&self, now: Time, space: Space) -> u64 {
        let others = self.demand.as_ref().map_or(0, |demand| demand.primary_count() - 1);
        let kept = others.saturating_mul(self.largest_share(now, space));
        self.coming_bytes(now, space).saturating_sub(kept)
    }

    /// Returns how many bytes of the store must be ready for what waits here, or so that each primary can
    /// have as much for a change as it was told of; 0 if they are.
    pub fn bytes_wanted(&self, now: Time, space: Space) -> u64 {
        let Some(demand) = self.demand.as_ref().filter(|_| space.is_growing) else { return 0 };
        let promised = self.promises.values().map(|promise| promise.bytes(Kind::Space, demand));
        let lacking = self.lacking_here.get(&Kind::Space).copied().unwrap_or(0);
        let here = if lacking > 0 {
            promised.fold(self.own.space_bytes + lacking, u64::saturating_add)
        } else {
            0
        };
        let largest = self.largest_share(now, space).min(CHANGE_BYTES_MAX);
        let shares = if self.share(space) < largest {
            largest.saturating_mul(demand.primary_count())
        } else {
            0
        };
        here.max(shares)
    }

    /// Returns the free space for writes, including what is being made ready.
    fn coming_bytes(&self, now: Time, space: Space) -> u64 {
        let is_kept_long = self.earlier_since.is_some_and(|at| now.since(at) >= EARLIER_WAIT_MAX);
        let earlier = if is_kept_long { self.earlier_bytes(space) } else { 0 };
        let ready = if space.is_growing { u64::MAX } else { space.sure_bytes };
        let free = space.free_bytes.saturating_sub(earlier).min(ready);
        free.saturating_sub(self.own.space_bytes)
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

/// Returns for how many primaries of PGs with parity a store has room, each for a change of one unit at
/// least.
pub(crate) fn parity_primaries_max(store: &Store) -> u32 {
    let shares = room_of_primaries(store.prepared_room().bytes_max) / pg::room_of_version(1);
    // A share more is kept for a former primary.
    u32::try_from(shares).unwrap_or(u32::MAX).saturating_sub(1)
}

/// Returns the part of all room that is not kept for learners.
fn room_of_primaries(room_bytes_max: u64) -> u64 {
    room_bytes_max - room_bytes_max / LEARNER_SHARE
}

impl SpaceCredits {
    /// Computes the demand from the entries; `None` while some entries may be missing.
    pub(crate) fn demand_of(
        &self,
        cluster: &ClusterView,
        notes: &Notes,
        pgs: &PgTable,
        store: &Store,
    ) -> Option<Demand> {
        let me = cluster.me()?;
        for (pool, noted) in notes.pools() {
            cluster.pool(pool).filter(|known| known.revision >= noted.revision)?;
        }
        let mut demand = Demand {
            primaries: BTreeSet::new(),
            block_size: BlockSize::MIN,
            parity_primaries: BTreeSet::new(),
            kept_room_bytes: kept_room_bytes(cluster, pgs, store),
            earlier_runs: BTreeSet::new(),
        };
        for (_, known) in cluster.pools() {
            for entry in known.pgs.iter().filter(|entry| cluster.has_part(entry)) {
                demand.primaries.extend(entry.primary_osd());
                demand.block_size = demand.block_size.max(known.pool.block_size);
                if !known.pool.scheme.is_whole_everywhere() {
                    demand.parity_primaries.extend(entry.primary_osd());
                }
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
        let counts = |holder| holder == me || self.has_promise(holder);
        is_active(entry, pg) && entry.primary_member().is_some_and(counts)
    }
}

/// Returns whether the PG is active here in the epoch of this entry.
fn is_active(entry: &PgEntry, pg: Option<&Pg>) -> bool {
    let pg = pg.filter(|pg| pg.is_activated());
    pg.and_then(|pg| pg.entry()).is_some_and(|entered| entered.epoch == entry.epoch)
}

/// Returns the room that prepared versions of PGs which are not active here take.
fn kept_room_bytes(cluster: &ClusterView, pgs: &PgTable, store: &Store) -> u64 {
    let is_kept = |pg: &PgId| !cluster.pg(*pg).is_some_and(|entry| is_active(entry, pgs.get(*pg)));
    store.prepared_pgs().filter(is_kept).map(|pg| store.prepared_room_used_by(pg)).sum()
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
