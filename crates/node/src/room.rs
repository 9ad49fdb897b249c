//! Room for new data: what members promised this OSD as a primary, and what it promised as a member.
//!
//! A write that has got its version must fit on every acting member, for nothing takes a version
//! back. So a primary gives versions only within *credits*: each giver of leases tells with every
//! grant up to how many bytes, counted since the holder first asked, it has room. A write costs a
//! whole block, the most it can take.
//!
//! ```text
//!   holder                                          giver
//!     given 3, limit 8
//!     │── Renew{given 3, owed 2} ─────────────────▶ │  promised to it: (8 - 3) unused + 2 owed
//!     │ ◀───────────────────── Granted{limit 10} ── │  promised to it: (10 - 3) + 2
//! ```
//!
//! Invariants
//!   1. What a holder may still bring, by writes on their way or by those it may begin, is at most
//!      what the giver counts as promised to it. A limit only grows, so neither lost nor late
//!      messages break that; a holder gives back what it does not use by counting it as given.
//!   2. All that is promised fits into the space that is free, when it is promised.
//!   3. What was promised to a run that is over, or by an earlier run of this OSD, stays promised
//!      until every PG here is active: by then the repairs of all writes it began have come.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockSize, Duration, GIB, MIB, OsdId, PoolId, Time, Version};
use cluster::map::PoolMap;
use format::wire::{Content, Member, PeerBody, PgEntry};

use crate::node::Node;
use crate::notes::PoolNote;

/// The most that one write takes: credits below it may be of no use.
pub const WRITE_BYTES_MAX: u64 = BlockSize::MAX.bytes();
/// A holder gets at most so much ahead of its use.
const SHARE_BYTES_MAX: u64 = 64 * MIB;
/// Most that is promised at a time.
const PROMISED_BYTES_MIN: u64 = 16 * MIB;
const PROMISED_BYTES_MAX: u64 = GIB;
/// So long a write of this OSD's own PGs that had no room comes before those of others.
const OWN_FIRST: Duration = Duration::from_millis(300);
/// While it is not known what earlier runs promised, nothing is where not so many times the most that
/// they can have promised is free.
const UNSURE_SHARE: u64 = 4;
/// Promises of runs that are over keep nobody waiting for longer: then this OSD counts as full.
const EARLIER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Space of this OSD's store.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Of the data area.
    pub size_bytes: u64,
    /// What writes of any block size can surely use now.
    pub sure_bytes: u64,
    /// Free, though it may have to be made ready first.
    pub free_bytes: u64,
    /// It takes no new data.
    pub is_full: bool,
}

/// What a holder tells with a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Given versions to, or given back.
    pub given_bytes: u64,
    /// Of that, what the giver may not have stored.
    pub owed_bytes: u64,
    /// Some room was used, or lacking, since the last claim.
    pub is_wanting: bool,
}

/// What a giver tells with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Up to which `given_bytes` there is room.
    pub limit_bytes: u64,
    /// It takes no new data.
    pub is_full: bool,
    /// What is not used is to be given back.
    pub is_short: bool,
}

/// Whether there is room for a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Room {
    /// There is.
    Enough,
    /// It is known soon.
    Unknown,
    /// There is none.
    Full,
}

/// What a giver promised this OSD.
struct Credit {
    giver: Member,
    given_bytes: u64,
    limit_bytes: u64,
    /// Unused when the last offer came.
    high_bytes: u64,
    is_full: bool,
    is_short: bool,
    /// More is wanted: the lease is to be renewed now.
    wants_more: bool,
    /// It was renewed for that.
    was_asked: bool,
    /// Some was used since the last claim.
    is_in_use: bool,
    /// Some was lacking, and the limit has not grown since.
    is_lacking: bool,
}

/// What this OSD promised a holder.
struct Promise {
    holder: Member,
    claim: Claim,
    limit_bytes: u64,
    /// It begins nothing after that unless it asks again.
    until: Time,
    /// Nothing of it is under way, and it must ask before it begins anything.
    is_void: bool,
    /// It wanted room that there was none of: it comes first.
    is_denied: bool,
}

/// All credits and promises of an OSD.
pub struct Rooms {
    credits: BTreeMap<OsdId, Credit>,
    /// Some credit wants more.
    is_wanting: bool,
    promises: BTreeMap<OsdId, Promise>,
    /// Of all promises together.
    promised_bytes: u64,
    /// Promised to runs that are over; `None`: by earlier runs of this OSD, of unknown size.
    earlier_bytes: Option<u64>,
    earlier_since: Time,
    /// Of this OSD's own PGs: writes that were begun and not answered.
    own_bytes: u64,
    /// A write of those had no room lately: it comes first until then.
    own_first_until: Time,
    /// The least that a write of those lacked here.
    lacking_here: Option<u64>,
}

impl Credit {
    fn unused(&self) -> u64 {
        self.limit_bytes - self.given_bytes
    }
}

impl Promise {
    fn bytes(&self) -> u64 {
        match self.is_void {
            true => 0,
            false => {
                (self.limit_bytes - self.claim.given_bytes).saturating_add(self.claim.owed_bytes)
            }
        }
    }
}

impl Space {
    fn promised_bytes_max(&self) -> u64 {
        (self.size_bytes / 8).clamp(PROMISED_BYTES_MIN, PROMISED_BYTES_MAX)
    }

    fn share_bytes(&self) -> u64 {
        (self.size_bytes / 64).clamp(WRITE_BYTES_MAX, SHARE_BYTES_MAX)
    }
}

impl Rooms {
    /// Of a run that begins now.
    pub fn new(now: Time) -> Rooms {
        Rooms {
            credits: BTreeMap::new(),
            is_wanting: false,
            promises: BTreeMap::new(),
            promised_bytes: 0,
            earlier_bytes: None,
            earlier_since: now,
            own_bytes: 0,
            own_first_until: now,
            lacking_here: None,
        }
    }

    // ---- as a holder ----

    /// There is a connection to this giver.
    pub fn opened(&mut self, giver: Member) {
        if self.credits.get(&giver.osd).is_none_or(|known| known.giver < giver) {
            let credit = Credit {
                giver,
                given_bytes: 0,
                limit_bytes: 0,
                high_bytes: 0,
                is_full: false,
                is_short: false,
                wants_more: false,
                was_asked: false,
                is_in_use: false,
                is_lacking: false,
            };
            self.credits.insert(giver.osd, credit);
        }
    }

    /// What a renewal tells. `owed_bytes`: given versions to, and not answered by this giver or its
    /// earlier runs. `is_timely`: it is not one that [`Rooms::take_wanting`] asked for.
    /// Requires: [`Rooms::opened`].
    pub fn claim(&mut self, giver: OsdId, owed_bytes: u64, is_timely: bool) -> Claim {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        if is_timely && credit.is_short {
            credit.given_bytes = credit.limit_bytes;
        }
        credit.was_asked = !is_timely;
        credit.wants_more = false;
        let is_wanting = std::mem::take(&mut credit.is_in_use) || credit.is_lacking;
        Claim { given_bytes: credit.given_bytes, owed_bytes, is_wanting }
    }

    /// A giver answered. True if a write may go on now that had to wait.
    pub fn offered(&mut self, giver: OsdId, offer: Offer) -> bool {
        let credit = self.credits.get_mut(&giver).expect("a connection to it was opened");
        let has_grown = offer.limit_bytes > credit.limit_bytes;
        credit.limit_bytes = credit.limit_bytes.max(offer.limit_bytes);
        let was_full = std::mem::replace(&mut credit.is_full, offer.is_full);
        credit.is_short = offer.is_short;
        credit.high_bytes = credit.unused();
        credit.was_asked &= !has_grown;
        credit.is_lacking &= !has_grown;
        has_grown || offer.is_full != was_full
    }

    /// Whether this giver has room for a write of so many bytes.
    pub fn at(&mut self, giver: OsdId, bytes: u64) -> Room {
        let Some(credit) = self.credits.get_mut(&giver) else { return Room::Unknown };
        if credit.unused() >= bytes {
            return Room::Enough;
        }
        credit.wants_more |= !credit.was_asked;
        credit.is_lacking = true;
        self.is_wanting |= credit.wants_more;
        if credit.is_full { Room::Full } else { Room::Unknown }
    }

    /// Uses a credit. Requires: there is room.
    pub fn take(&mut self, giver: OsdId, bytes: u64) {
        let credit = self.credits.get_mut(&giver).expect("it has room");
        assert!(credit.unused() >= bytes);
        credit.given_bytes += bytes;
        credit.is_in_use = true;
        let is_low = credit.unused() < credit.high_bytes / 2;
        credit.wants_more |= is_low && !credit.was_asked;
        self.is_wanting |= credit.wants_more;
    }

    /// Givers whose leases are to be renewed now, for more room: each once, until it is renewed in
    /// its time or its limit has grown.
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

    // ---- as a member of this OSD's own PGs ----

    /// Whether this OSD's store has room for a write of so many bytes.
    pub fn here(&mut self, now: Time, space: Space, bytes: u64) -> Room {
        let is_enough = self.unpromised(space) >= bytes;
        self.own_first_until = if is_enough { now } else { now + OWN_FIRST };
        if is_enough {
            return Room::Enough;
        }
        self.lacking_here = Some(self.lacking_here.map_or(bytes, |least| least.min(bytes)));
        if self.is_full(now, space) { Room::Full } else { Room::Unknown }
    }

    /// Whether there is room now that was lacking here; told once. The store tells nobody when it
    /// has made places ready.
    pub fn has_come_here(&mut self, space: Space) -> bool {
        let left = self.unpromised(space);
        self.lacking_here.take_if(|least| *least <= left).is_some()
    }

    /// A write of this OSD's own PGs begins.
    pub fn begin_own(&mut self, bytes: u64) {
        self.own_bytes += bytes;
    }

    /// It was answered.
    pub fn end_own(&mut self, bytes: u64) {
        self.own_bytes -= bytes;
    }

    /// Whether a copy of so many bytes may be taken that nobody was promised room for.
    pub fn has_room_for_copy(&self, space: Space, reserve_bytes: u64, bytes: u64) -> bool {
        let with_reserve = Space {
            sure_bytes: space.sure_bytes + reserve_bytes,
            free_bytes: space.free_bytes + reserve_bytes,
            ..space
        };
        self.unpromised(with_reserve) >= bytes
    }

    // ---- as a giver ----

    /// A holder asks, under a lease that this OSD counts until `until`. The error tells what no
    /// holder of ours does. Requires: it is not an earlier run than one that asked before.
    pub fn offer(
        &mut self,
        now: Time,
        holder: Member,
        claim: Claim,
        until: Time,
        space: Space,
    ) -> Result<Offer, String> {
        self.is_in_run(now, holder);
        let new = || Promise {
            holder,
            claim: Claim { given_bytes: 0, ..claim },
            limit_bytes: 0,
            until,
            is_void: false,
            is_denied: false,
        };
        let promise = self.promises.entry(holder.osd).or_insert_with(new);
        if claim.given_bytes > promise.limit_bytes || claim.given_bytes < promise.claim.given_bytes
        {
            return Err("it gave versions to other data than it was promised room for".into());
        }
        (promise.claim, promise.until, promise.is_void) = (claim, until, false);
        self.sum();
        let left = self.unpromised(space).min(self.unpromised_by_limit(space));
        let share = space.share_bytes();
        let asking = self.promises.len() as u64 + 1;
        let promise = &self.promises[&holder.osd];
        let mut others = self.promises.values().filter(|other| other.holder != holder);
        let are_others_denied = !promise.is_denied
            && (now < self.own_first_until
                || others.any(|other| other.is_denied && now < other.until));
        let promise = self.promises.get_mut(&holder.osd).expect("just made");
        let unused = promise.limit_bytes - claim.given_bytes;
        let wanted = share.saturating_sub(unused);
        // Where there is a write's room for everybody, each gets its part of what is left; the last
        // is for those who use it, by turns.
        let is_for_all =
            left >= asking * WRITE_BYTES_MAX && (claim.is_wanting || left >= asking * share);
        let is_turn = is_for_all || (claim.is_wanting && !are_others_denied);
        let more = match left >= WRITE_BYTES_MAX && is_turn {
            true => wanted.min((left / asking).max(WRITE_BYTES_MAX)),
            false => 0,
        };
        promise.limit_bytes += more;
        promise.is_denied = claim.is_wanting && more == 0 && wanted > 0;
        let limit_bytes = promise.limit_bytes;
        self.sum();
        let is_short = left - more < share;
        Ok(Offer { limit_bytes, is_full: self.is_full(now, space), is_short })
    }

    /// A newer run of a holder is known, or it stopped: it begins nothing more.
    pub fn is_in_run(&mut self, now: Time, newest: Member) {
        if self.promises.get(&newest.osd).is_some_and(|promise| promise.holder < newest) {
            self.end_run(now, newest.osd);
        }
    }

    /// A holder stopped for good.
    pub fn surrendered(&mut self, now: Time, holder: Member) {
        if self.promises.get(&holder.osd).is_some_and(|promise| promise.holder == holder) {
            self.end_run(now, holder.osd);
        }
    }

    fn end_run(&mut self, now: Time, holder: OsdId) {
        let Some(promise) = self.promises.remove(&holder) else { return };
        if let Some(earlier) = &mut self.earlier_bytes {
            if *earlier == 0 {
                self.earlier_since = now;
            }
            *earlier = earlier.saturating_add(promise.bytes());
        }
        self.sum();
    }

    /// Whether [`Rooms::settled`] would change anything.
    pub fn awaits_settling(&self, now: Time) -> bool {
        let is_over = |promise: &Promise| promise.until <= now && !promise.is_void;
        self.earlier_bytes != Some(0) || self.promises.values().any(is_over)
    }

    /// Every PG with a part here is active, led by one of these.
    pub fn settled(&mut self, now: Time, primaries: &BTreeSet<OsdId>) {
        self.earlier_bytes = Some(0);
        for (osd, promise) in &mut self.promises {
            promise.is_void |= promise.until <= now && !primaries.contains(osd);
        }
        self.sum();
    }

    fn sum(&mut self) {
        let bytes = self.promises.values().map(Promise::bytes);
        self.promised_bytes = bytes.fold(0, u64::saturating_add);
    }

    fn unpromised(&self, space: Space) -> u64 {
        let earlier = self.earlier_bytes.unwrap_or(space.promised_bytes_max());
        let begun = self.promised_bytes.saturating_add(self.own_bytes);
        // What was promised earlier need not be ready: repairs wait for that, and hold up nobody else.
        let free = space.free_bytes.saturating_sub(earlier);
        space.sure_bytes.min(free).saturating_sub(begun)
    }

    fn unpromised_by_limit(&self, space: Space) -> u64 {
        let max = space.promised_bytes_max();
        // Runs that end one after the other before all PGs are active leave ever more behind: what
        // they may promise must not come near to what is free.
        let is_unsure = self.earlier_bytes.is_none() && space.free_bytes < UNSURE_SHARE * max;
        let earlier = self.earlier_bytes.unwrap_or(if is_unsure { max } else { 0 });
        max.saturating_sub(
            self.promised_bytes.saturating_add(self.own_bytes).saturating_add(earlier),
        )
    }

    fn is_full(&self, now: Time, space: Space) -> bool {
        let earlier = self.earlier_bytes.unwrap_or(space.promised_bytes_max());
        let is_kept = now.since(self.earlier_since) >= EARLIER_WAIT_MAX
            && space.free_bytes < earlier.saturating_add(WRITE_BYTES_MAX);
        space.is_full || is_kept
    }
}

impl Node {
    /// Space of this OSD's store.
    pub(crate) fn space(&self) -> Space {
        let space = self.store.space();
        Space {
            size_bytes: space.size_bytes,
            sure_bytes: space.sure_bytes,
            free_bytes: space.free_bytes,
            is_full: space.full,
        }
    }

    /// Tells the store which blocks its PGs may bring.
    pub(crate) fn expect_blocks(&mut self) {
        let mine = |known: &&PoolMap| known.pgs.iter().any(|entry| self.has_part(entry));
        let pools = self.map.pools.values().filter(mine);
        let sizes: Vec<BlockSize> = pools.map(|known| known.pool.block_size).collect();
        self.store.expect_blocks(sizes.into_iter());
    }

    /// Whether all members of the PG in `slot` have room for a write of so many bytes.
    pub(crate) fn room_for(&mut self, now: Time, slot: usize, bytes: u64) -> Room {
        if bytes == 0 {
            return Room::Enough;
        }
        let mut here = self.rooms.here(now, self.space(), bytes);
        if here != Room::Enough {
            self.settle_rooms(now);
            here = self.rooms.here(now, self.space(), bytes);
        }
        let givers = self.pgs[slot].lease_givers().iter();
        givers.map(|osd| self.rooms.at(*osd, bytes)).fold(here, Room::max)
    }

    /// Takes it. Requires: there is room.
    pub(crate) fn take_room(&mut self, slot: usize, bytes: u64) {
        if bytes > 0 {
            self.rooms.begin_own(bytes);
            for osd in self.pgs[slot].lease_givers() {
                self.rooms.take(*osd, bytes);
            }
        }
    }

    /// A write was answered: this OSD's own store has taken it.
    pub(crate) fn end_own_room(&mut self, bytes: u64) {
        if bytes > 0 {
            self.rooms.end_own(bytes);
            self.room_came();
        }
    }

    /// Whether a learner here has room for a copy that its primary sends: none that others were
    /// promised room for.
    pub(crate) fn has_room_for_copy(&mut self, now: Time, slot: usize, body: &PeerBody) -> bool {
        let PeerBody::Repair { key, content: Content::Block { .. }, .. } = body else {
            return true;
        };
        let me = self.identity.osd;
        let learns = |entry: &PgEntry| entry.learners.iter().any(|member| member.osd == me);
        let has_place = self.store.version_of(key) > Version::ZERO && !self.store.is_tombstone(key);
        if has_place || !self.pgs[slot].entry().is_some_and(learns) {
            return true;
        }
        let bytes = self.pgs[slot].block_size().bytes();
        let reserve_bytes = self.store.space().reserve_bytes;
        self.settle_rooms(now);
        self.rooms.has_room_for_copy(self.space(), reserve_bytes, bytes)
    }

    /// There may be room for what waits for it.
    pub(crate) fn room_came(&mut self) {
        self.recheck |= std::mem::take(&mut self.waits_for_room);
    }

    /// Lets promises go that nobody can use any more.
    pub(crate) fn settle_rooms(&mut self, now: Time) {
        if !self.rooms.awaits_settling(now) || self.incarnation.is_none() {
            return;
        }
        let is_old = |(pool, noted): (&PoolId, &PoolNote)| {
            self.map.pools.get(pool).is_none_or(|known| known.revision < noted.revision)
        };
        if self.pools_noted.iter().any(is_old) {
            return;
        }
        let mut primaries = BTreeSet::new();
        let entries = self.map.pools.values().flat_map(|known| &known.pgs);
        // A learner's copies were promised to nobody.
        let me = self.identity.osd;
        let acts = |entry: &&PgEntry| entry.acting.iter().any(|member| member.osd == me);
        for entry in entries.filter(acts) {
            let slot = self.pg_slots.get(&entry.pg);
            let pg = slot.map(|slot| &self.pgs[*slot]).filter(|pg| pg.is_activated());
            if pg.and_then(|pg| pg.entry()).is_none_or(|active| active.epoch != entry.epoch) {
                return;
            }
            primaries.extend(entry.primary);
        }
        self.rooms.settled(now, &primaries);
    }
}

#[cfg(test)]
mod tests;
