//! Tests of space credits without nodes: whatever is lost, late or forgotten, every write that was begun
//! fits.

use std::collections::VecDeque;

use super::*;
use crate::node_fuzz::Random;

const BLOCK: BlockSize = BlockSize::MAX;
const WRITE: u64 = BLOCK.bytes();
const SPAN_MS: u64 = 375;

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn member(osd: u32, run: u64) -> Member {
    Member { osd: OsdId::new(osd).unwrap(), incarnation: Incarnation::new(run) }
}

fn space_of(free: u64) -> Space {
    let size_bytes = 1024 * MIB;
    Space {
        size_bytes,
        sure_bytes: free,
        free_bytes: free,
        is_growing: false,
        is_full: free < WRITE,
        room_bytes_max: 0,
        room_bytes: 0,
    }
}

fn demand(primary_count: u32, earlier_runs: &[(u64, Member)]) -> Demand {
    Demand {
        primaries: (1..=primary_count).map(|osd| member(osd, 1).osd).collect(),
        block_size: BLOCK,
        parity_primaries: BTreeSet::new(),
        kept_room_bytes: 0,
        earlier_runs: earlier_runs
            .iter()
            .map(|(run, holder)| (Incarnation::new(*run), Some(*holder)))
            .collect(),
    }
}

/// Returns a giver whose PGs are all active and are led by this many primaries.
fn giver_with(primary_count: u32) -> SpaceCredits {
    let mut credits = SpaceCredits::new();
    credits.on_demand(Time::ZERO, Some(demand(primary_count, &[])), |_| true);
    credits
}

/// What a write of a pool of copies takes.
fn copies(bytes: u64) -> Charge {
    Charge { space_bytes: bytes, room_bytes: 0, whole_bytes: bytes }
}

/// What a write of a pool with parity takes, with this room for its version.
fn parity(room_bytes: u64) -> Charge {
    Charge { space_bytes: WRITE, room_bytes, whole_bytes: WRITE }
}

fn claims(begun_bytes: u64, owed_bytes: u64) -> Claims {
    Claims { space: Claim { begun_bytes, owed_bytes }, room: Some(Claim::default()) }
}

/// The claims of a holder that has one credit for both kinds.
fn one_claim(begun_bytes: u64, owed_bytes: u64) -> Claims {
    Claims { space: Claim { begun_bytes, owed_bytes }, room: None }
}

impl SpaceCredits {
    fn space_at(&mut self, giver: OsdId, bytes: u64) -> Verdict {
        self.at(giver, Kind::Space, bytes)
    }

    fn space_here(&mut self, now: Time, space: Space, bytes: u64) -> Verdict {
        self.here(now, space, Kind::Space, bytes)
    }

    fn begin_own(&mut self, bytes: u64) {
        self.take(&[], copies(bytes));
    }

    fn end_own(&mut self, bytes: u64) {
        self.end(&[], copies(bytes));
    }

    /// Takes credit of a giver, for a change that is answered at once.
    fn take_at(&mut self, giver: OsdId, charge: Charge) {
        self.take(&[giver], charge);
        self.own = Charge::default();
        self.owed.clear();
    }

    fn may_begin_at(&mut self, giver: OsdId, charge: Charge) -> bool {
        let Some(credit) = self.credits.get(&giver) else { return false };
        let kinds = kinds_of(charge, credit.room.is_some());
        kinds
            .fold(true, |all, (kind, bytes)| all & (self.at(giver, kind, bytes) == Verdict::Enough))
    }
}

/// Sends a regular renewal from the holder, and delivers the giver's answer.
fn renew(
    holder: &mut SpaceCredits,
    giver: &mut SpaceCredits,
    from: Member,
    owed: u64,
    free: u64,
) -> Offers {
    let to = member(9, 1);
    if !holder.credits.contains_key(&to.osd) {
        holder.on_connected(to, true);
    }
    let claim = holder.claim(to.osd, copies(owed), true);
    let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(free));
    holder.on_offer(to.osd, 1, offer);
    offer
}

/// Begins all writes that the holder may begin now, and returns how many.
fn begin_all(holder: &mut SpaceCredits) -> u64 {
    let to = member(9, 1).osd;
    let mut count = 0;
    while holder.space_at(to, WRITE) == Verdict::Enough {
        holder.take_at(to, copies(WRITE));
        count += 1;
    }
    count
}

#[test]
fn a_holder_begins_writes_only_within_what_it_was_promised() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    let to = member(9, 1).osd;
    assert_eq!(holder.space_at(to, 1), Verdict::Unknown, "nothing was promised yet");
    renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB);
    assert_eq!(begin_all(&mut holder), 64 * MIB / WRITE, "less than half of an eighth of a GiB");
    assert_eq!(holder.take_wanting(), [to], "it asks before its time");
    assert_eq!(holder.take_wanting(), [], "once");
    renew(&mut holder, &mut giver, member(1, 1), 56 * MIB, 512 * MIB);
    assert_eq!(begin_all(&mut holder), 8 * MIB / WRITE, "what is on its way counts");
}

#[test]
fn room_is_freed_at_once_and_then_after_a_pause_and_givers_are_asked_again() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    let to = member(9, 1).osd;
    renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB);
    begin_all(&mut holder);
    assert_eq!(holder.take_wanting(), [to]);
    holder.claim(to, copies(64 * MIB), false);
    let space = Offer { limit_bytes: 0, share_bytes: 0, largest_bytes: u64::MAX };
    holder.on_offer(to, 1, Offers { is_full: false, space, room: None });
    holder.await_room(at(9));
    assert_eq!(holder.room_due(), None, "nobody waits for room");
    holder.lines.join((Some(to), Kind::Room), 1, 1);
    assert_eq!(holder.space_at(to, WRITE), Verdict::Unknown);
    assert_eq!(holder.take_wanting(), [], "it was asked");
    holder.await_room(at(10));
    holder.await_room(at(11));
    assert_eq!(holder.room_due(), Some(at(10)));
    holder.on_room_freed(at(10));
    assert_eq!(holder.space_at(to, WRITE), Verdict::Unknown);
    assert_eq!(holder.take_wanting(), [to]);
    holder.await_room(at(11));
    assert_eq!(holder.room_due(), Some(at(12)));
}

#[test]
fn a_holder_that_used_all_at_once_asks_again_when_writes_were_answered() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    let (from, to) = (member(1, 1), member(9, 1).osd);
    renew(&mut holder, &mut giver, from, 0, 512 * MIB);
    let begun = begin_all(&mut holder);
    holder.own = copies(begun * WRITE);
    let mut ask = |holder: &mut SpaceCredits, owed, answered| {
        assert_eq!(holder.space_at(to, WRITE), Verdict::Unknown);
        assert_eq!(holder.take_wanting(), [to]);
        let before = holder.credits[&to].space.limit_bytes;
        let claim = holder.claim(to, copies(owed), false);
        if answered > 0 {
            holder.end_own(answered);
        }
        let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(512 * MIB));
        holder.on_offer(to, 1, offer);
        (offer.space.limit_bytes > before, holder.credits[&to].space.was_asked)
    };
    assert_eq!(ask(&mut holder, 64 * MIB, 0), (false, true), "all of it is on its way");
    assert_eq!(holder.space_at(to, WRITE), Verdict::Unknown);
    assert_eq!(holder.take_wanting(), [], "nothing has changed");
    holder.end_own(WRITE);
    let meanwhile = ask(&mut holder, 64 * MIB, WRITE);
    assert_eq!(meanwhile, (false, false), "one was answered meanwhile");
    assert_eq!(ask(&mut holder, 62 * MIB, 0), (true, false));
    assert_eq!(begin_all(&mut holder), 2);
}

#[test]
fn each_of_many_primaries_gets_four_blocks_while_there_is_space() {
    let mut giver = giver_with(50);
    for (free, each, is_full) in [(400, 4, false), (100, 2, false), (49, 0, true)] {
        for osd in 1..=50 {
            let mut holder = SpaceCredits::new();
            giver.on_newer_run(member(osd, free));
            let offer = renew(&mut holder, &mut giver, member(osd, free), 0, free * WRITE);
            assert_eq!(begin_all(&mut holder), each, "of {free}");
            assert_eq!(offer.is_full, is_full);
            assert_eq!(holder.space_at(member(9, 1).osd, WRITE) == Verdict::Full, is_full);
        }
        giver = giver_with(50);
    }
}

#[test]
fn writes_wait_for_space_that_is_being_made_ready_and_for_no_other() {
    let mut giver = giver_with(4);
    let space = Space { sure_bytes: 3 * WRITE, is_growing: true, ..space_of(64 * WRITE) };
    let claim = claims(0, 0);
    assert!(!giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space).is_full);
    let space = Space { is_growing: false, ..space };
    assert!(giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space).is_full);
}

/// A giver of which PGs keep parity, and those of `parity_count` primaries.
fn giver_of_parity(primary_count: u32, parity_count: u32) -> SpaceCredits {
    let mut credits = SpaceCredits::new();
    let parity_primaries = (1..=parity_count).map(|osd| member(osd, 1).osd).collect();
    let demand = Demand { parity_primaries, ..demand(primary_count, &[]) };
    credits.on_demand(Time::ZERO, Some(demand), |_| true);
    credits
}

/// Space with this much room for prepared versions, of which `free` is free.
fn space_with_room(all: u64, free: u64) -> Space {
    Space { room_bytes_max: all, room_bytes: free, ..space_of(64 * WRITE) }
}

#[test]
fn room_is_promised_beside_space_and_copies_need_none() {
    let mut giver = giver_of_parity(4, 2);
    let space = space_with_room(16 * MIB, 16 * MIB);
    for osd in 1..=2 {
        let offers = giver.offer(at(0), member(osd, 1), claims(0, 0), at(SPAN_MS), space);
        let limit = 4 * MIB;
        let room = Offer { limit_bytes: limit, share_bytes: limit, largest_bytes: limit };
        assert_eq!(offers.room, Some(room), "a third of three quarters: one part is its own");
        assert_eq!(offers.space.limit_bytes, 16 * MIB, "as if no pool kept parity");
    }
    let of_copies = giver.offer(at(0), member(3, 1), claims(0, 0), at(SPAN_MS), space);
    assert_eq!(of_copies.space.limit_bytes, 16 * MIB);
    assert_eq!(of_copies.room.unwrap().limit_bytes, 0, "it leads no PG with parity");
    assert_eq!(giver.here(at(0), space, Kind::Room, 4 * MIB), Verdict::Enough);
    assert_eq!(giver.here(at(0), space, Kind::Room, 4 * MIB + 1), Verdict::Full, "never enough");
    giver.take(&[], parity(UNIT_SIZE));
    assert_eq!(giver.here(at(0), space, Kind::Room, 4 * MIB), Verdict::Unknown, "its own share");
    assert_eq!(giver.space_here(at(0), space, WRITE), Verdict::Enough, "room is not space");
    // What is kept for learners is not promised: a quarter, and what is left of the shares.
    let left = 8 * MIB - UNIT_SIZE;
    assert!(giver.may_take_copy(space, 0, (WRITE, left)));
    assert!(!giver.may_take_copy(space, 0, (WRITE, left + 1)), "promises are kept");
    assert!(giver.may_take_copy(space, 0, (WRITE, 0)), "a copy takes no room");
}

#[test]
fn what_is_prepared_lessens_the_room_that_is_promised_but_not_the_share() {
    let mut giver = giver_of_parity(2, 2);
    let mut offer = |holder, begun_bytes, free| {
        let room = Some(Claim { begun_bytes, owed_bytes: 0 });
        let claims = Claims { room, ..claims(0, 0) };
        let space = space_with_room(16 * MIB, free);
        let offers = giver.offer(at(0), holder, claims, at(SPAN_MS), space);
        let room = offers.room.unwrap();
        (room.limit_bytes, room.share_bytes, offers.is_full)
    };
    assert_eq!(offer(member(1, 1), 0, 16 * MIB), (4 * MIB, 4 * MIB, false));
    // Its writes were prepared here, those of others too, and none is committed.
    let (limit, share, _) = offer(member(1, 1), 4 * MIB, 6 * MIB);
    assert_eq!((limit, share), (6 * MIB, 4 * MIB), "the rest is for learners");
    assert_eq!(offer(member(2, 1), 0, 6 * MIB), (0, 4 * MIB, false), "no room is never full");
    // They were committed: the room is there again.
    assert_eq!(offer(member(2, 1), 0, 10 * MIB), (4 * MIB, 4 * MIB, false));
}

#[test]
fn room_is_taken_by_need_in_steps_of_a_unit() {
    let mut giver = giver_of_parity(1, 1);
    let mut holder = SpaceCredits::new();
    let to = member(9, 1);
    holder.on_connected(to, true);
    let claim = holder.claim(to.osd, Charge::default(), true);
    let space = space_with_room(2 * MIB, 2 * MIB);
    let offers = giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space);
    holder.on_offer(to.osd, 1, offers);
    let small = parity(2 * UNIT_SIZE);
    let mut count = 0;
    // More writes than there can be without a limit by room.
    while count < 64 && holder.may_begin_at(to.osd, small) {
        holder.credits.get_mut(&to.osd).unwrap().space.limit_bytes += WRITE;
        holder.take_at(to.osd, small);
        count += 1;
    }
    assert_eq!(count, 64, "half a share of {WRITE} bytes");
    let of_share = holder.credits[&to.osd].room.as_ref().unwrap().unused();
    assert_eq!(of_share, 256 * 1024, "half of three quarters, less what was taken");
    holder.take_at(to.osd, Charge { space_bytes: 0, ..parity(of_share) });
    let zero = Charge { space_bytes: 0, ..parity(UNIT_SIZE) };
    assert!(!holder.may_begin_at(to.osd, zero), "zeros of a stripe wait as well");
    assert!(holder.may_begin_at(to.osd, copies(WRITE)), "a copy does not");
    let odd = space_with_room(2 * MIB + 1, 2 * MIB + 1);
    assert_eq!(giver.most_here(odd, Kind::Room) % UNIT_SIZE, 0);
}

#[test]
fn a_holder_of_the_older_version_has_one_credit_in_whole_blocks() {
    let mut giver = giver_of_parity(2, 1);
    let all = 16 * WRITE * 9 / 8;
    let space = space_with_room(all, all);
    let offers = giver.offer(at(0), member(1, 1), one_claim(0, 0), at(SPAN_MS), space);
    assert_eq!(offers.room, None, "it would not understand it");
    let lesser = 6 * WRITE;
    assert_eq!(
        (offers.space.limit_bytes, offers.space.share_bytes, offers.space.largest_bytes),
        (lesser, lesser, lesser),
        "half of three quarters of the room: less than the share of space"
    );
    // What it was promised counts for both kinds.
    assert_eq!(giver.unpromised(space, Kind::Space), (64 - 6) * WRITE);
    assert_eq!(giver.unpromised(space, Kind::Room), all / 4 * 3 - lesser / 8 * 9);
    let mut small = giver_of_parity(1, 1);
    let little = space_with_room(2 * WRITE, 2 * WRITE);
    let offers = small.offer(at(0), member(1, 1), one_claim(0, 0), at(SPAN_MS), little);
    assert_eq!((offers.space.limit_bytes, offers.is_full), (0, true), "parts are not promised");
    let mut copies = giver_of_parity(1, 0);
    let offers = copies.offer(at(0), member(1, 1), one_claim(0, 0), at(SPAN_MS), little);
    assert_eq!(offers.space.limit_bytes, 64 * WRITE, "no pool keeps parity");
}

#[test]
fn beside_holders_of_the_older_version_each_primary_with_parity_has_room() {
    let mut giver = giver_of_parity(4, 1);
    let space = space_with_room(64 * MIB, 64 * MIB);
    // Two of them lead only copies, and have one credit for both kinds.
    for osd in [2, 3] {
        giver.offer(at(0), member(osd, 1), one_claim(0, 0), at(SPAN_MS), space);
    }
    let offers = giver.offer(at(0), member(1, 1), claims(0, 0), at(SPAN_MS), space);
    let room = offers.room.unwrap();
    assert_eq!((room.limit_bytes, room.share_bytes), (12 * MIB, 12 * MIB), "one of four parts");
    // This OSD has such a part, too.
    assert_eq!(giver.here(at(0), space, Kind::Room, 9 * MIB), Verdict::Enough);
    assert_eq!(giver.here(at(0), space, Kind::Room, 12 * MIB + 1), Verdict::Full);
}

#[test]
fn what_the_own_store_is_waited_for_is_offered_to_nobody() {
    let mut giver = giver_of_parity(2, 2);
    let charge = parity(3 * MIB);
    // All that may be promised is prepared.
    let taken = space_with_room(16 * MIB, 4 * MIB);
    assert_eq!(giver.judge(at(0), taken, &[], 1, charge), Verdict::Unknown);
    assert_eq!(giver.judge(at(0), taken, &[], 2, parity(UNIT_SIZE)), Verdict::Unknown);
    let mut free = 4 * MIB;
    let mut room_of = |giver: &mut SpaceCredits, more| {
        free += more;
        let space = space_with_room(16 * MIB, free);
        let offers = giver.offer(at(0), member(2, 1), claims(0, 0), at(SPAN_MS), space);
        (offers.room.unwrap().limit_bytes, giver.judge(at(0), space, &[], 1, charge))
    };
    assert_eq!(room_of(&mut giver, 2 * MIB), (0, Verdict::Unknown), "it is the own write's");
    assert_eq!(room_of(&mut giver, MIB), (0, Verdict::Enough));
    giver.leave(1);
    giver.take(&[], charge);
    assert_eq!(room_of(&mut giver, MIB).0, MIB - UNIT_SIZE, "less what the next one waits for");
}

#[test]
fn of_a_giver_of_the_older_version_whole_blocks_are_taken() {
    let mut holder = SpaceCredits::new();
    let to = member(9, 1);
    holder.on_connected(to, false);
    let claim = holder.claim(to.osd, Charge::default(), true);
    assert_eq!(claim.room, None, "it would not understand it");
    let space = Offer { limit_bytes: 2 * WRITE, share_bytes: 2 * WRITE, largest_bytes: WRITE };
    holder.on_offer(to.osd, 1, Offers { is_full: false, space, room: None });
    let zero = Charge { space_bytes: 0, ..parity(UNIT_SIZE) };
    holder.take(&[to.osd], parity(2 * UNIT_SIZE));
    holder.take(&[to.osd], zero);
    assert!(!holder.may_begin_at(to.osd, zero));
    let claim = holder.claim(to.osd, Charge::default(), true).space;
    assert_eq!((claim.begun_bytes, claim.owed_bytes), (2 * WRITE, 2 * WRITE));
    holder.end(&[to.osd], zero);
    assert_eq!(holder.claim(to.osd, Charge::default(), true).space.owed_bytes, WRITE);
    // It is full: what brings data is refused, what frees a stripe waits.
    holder.on_offer(to.osd, 2, Offers { is_full: true, space, room: None });
    let parity_primaries = BTreeSet::from([member(1, 1).osd]);
    holder.on_demand(at(0), Some(Demand { parity_primaries, ..demand(1, &[]) }), |_| true);
    let here = space_with_room(64 * MIB, 64 * MIB);
    assert_eq!(holder.judge(at(0), here, &[to.osd], 1, parity(UNIT_SIZE)), Verdict::Full);
    assert!(!holder.is_awaited(), "who is refused does not wait");
    assert_eq!(holder.judge(at(0), here, &[to.osd], 2, zero), Verdict::Unknown);
}

/// Returns a primary with two givers of which it has space without end, and this much room.
fn primary_with_room(of_first: u64, of_second: u64) -> (SpaceCredits, [OsdId; 2], Space) {
    let mut holder = SpaceCredits::new();
    let givers = [member(8, 1), member(9, 1)];
    for (giver, bytes) in givers.into_iter().zip([of_first, of_second]) {
        holder.on_connected(giver, true);
        let offer = |limit_bytes| Offer { limit_bytes, share_bytes: MIB, largest_bytes: MIB };
        let offers = Offers { is_full: false, space: offer(1 << 40), room: Some(offer(bytes)) };
        holder.on_offer(giver.osd, 1, offers);
    }
    let parity_primaries = BTreeSet::from([member(1, 1).osd]);
    holder.on_demand(at(0), Some(Demand { parity_primaries, ..demand(1, &[]) }), |_| true);
    (holder, givers.map(|giver| giver.osd), space_with_room(64 * MIB, 64 * MIB))
}

/// Sets how much room is unused at a giver.
fn grant_room(holder: &mut SpaceCredits, giver: OsdId, bytes: u64) {
    let room = holder.credits.get_mut(&giver).unwrap().room.as_mut().unwrap();
    room.limit_bytes = room.begun_bytes + bytes;
}

#[test]
fn a_small_write_does_not_take_what_a_large_one_waits_for() {
    let (mut holder, [first, second], space) = primary_with_room(4 * UNIT_SIZE, 4 * UNIT_SIZE);
    let both = [first, second];
    let (large, small) = (parity(8 * UNIT_SIZE), parity(2 * UNIT_SIZE));
    let judge = |holder: &mut SpaceCredits, givers: &[OsdId], arrival, charge| {
        holder.judge(at(0), space, givers, arrival, charge)
    };
    assert_eq!(judge(&mut holder, &both, 1, large), Verdict::Unknown);
    assert_eq!(judge(&mut holder, &both, 2, small), Verdict::Unknown, "it stands behind");
    assert_eq!(judge(&mut holder, &[second], 3, small), Verdict::Unknown, "there, too");
    assert_eq!(judge(&mut holder, &both, 4, copies(WRITE)), Verdict::Enough, "another kind");
    assert_eq!(holder.first_waiting(&BTreeSet::new()), Some(1));
    let judged = BTreeSet::from([1]);
    assert_eq!(holder.first_waiting(&judged), None, "none behind it is judged again");
    // There is enough at one giver, then at both: it kept its place at each.
    grant_room(&mut holder, first, 8 * UNIT_SIZE);
    assert_eq!(judge(&mut holder, &both, 1, large), Verdict::Unknown);
    assert_eq!(judge(&mut holder, &[first], 5, small), Verdict::Unknown, "it lacked there once");
    grant_room(&mut holder, second, 8 * UNIT_SIZE);
    assert_eq!(judge(&mut holder, &both, 1, large), Verdict::Enough);
    holder.leave(1);
    holder.take(&both, large);
    assert_eq!(holder.first_waiting(&BTreeSet::new()), Some(2));
    grant_room(&mut holder, first, 2 * UNIT_SIZE);
    grant_room(&mut holder, second, 2 * UNIT_SIZE);
    assert_eq!(judge(&mut holder, &both, 2, small), Verdict::Enough);
}

#[test]
fn credit_is_taken_of_all_givers_or_of_none() {
    let (mut holder, givers, space) = primary_with_room(8 * UNIT_SIZE, UNIT_SIZE);
    let charge = parity(2 * UNIT_SIZE);
    assert_eq!(holder.judge(at(0), space, &givers, 1, charge), Verdict::Unknown);
    let nothing = (Charge::default(), true);
    let unused = |holder: &SpaceCredits| holder.credits[&givers[0]].room.as_ref().unwrap().unused();
    assert_eq!((holder.own, holder.owed.is_empty()), nothing);
    assert_eq!(unused(&holder), 8 * UNIT_SIZE);
    grant_room(&mut holder, givers[1], 2 * UNIT_SIZE);
    assert_eq!(holder.judge(at(0), space, &givers, 1, charge), Verdict::Enough);
    holder.take(&givers, charge);
    assert_eq!((unused(&holder), holder.own), (6 * UNIT_SIZE, charge));
    assert_eq!(holder.owed.values().copied().collect::<Vec<_>>(), [charge, charge]);
}

#[test]
fn what_needs_more_room_than_any_share_is_refused_and_what_frees_space_is_not() {
    let (mut holder, givers, space) = primary_with_room(0, 0);
    let large = parity(MIB + UNIT_SIZE);
    assert_eq!(holder.judge(at(0), space, &givers, 1, large), Verdict::Full);
    let (zero, large) = (Charge { space_bytes: 0, ..large }, parity(MIB));
    assert_eq!(holder.judge(at(0), space, &givers, 2, zero), Verdict::Unknown);
    assert_eq!(holder.judge(at(0), space, &givers, 3, large), Verdict::Unknown, "it waits");
}

#[test]
fn planted_bugs_of_credits_are_found() {
    let promised = room_is_taken_by_need_in_steps_of_a_unit;
    assert!(planted::fails(Bug::RoomNotCounted, promised), "room is not counted");
    let passing = a_small_write_does_not_take_what_a_large_one_waits_for;
    assert!(planted::fails(Bug::SmallWritePasses, passing), "a small write passes");
}

#[test]
fn with_more_primaries_each_gives_back_what_exceeds_its_share() {
    let (mut giver, mut one, mut other) = (giver_with(1), SpaceCredits::new(), SpaceCredits::new());
    let first = renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    assert_eq!(first.space.limit_bytes, 64 * MIB);
    giver.on_demand(at(1), Some(demand(8, &[])), |_| true);
    let offer = renew(&mut other, &mut giver, member(2, 1), 0, 80 * MIB);
    assert_eq!(offer.space.limit_bytes, 10 * MIB, "an eighth of what is left");
    assert_eq!(giver.unpromised(space_of(80 * MIB), Kind::Space), 6 * MIB);
    // The holder learns its share from this answer, and returns the excess with the next renewal.
    let again = renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    let again = again.space;
    assert_eq!((again.limit_bytes, again.share_bytes), (64 * MIB, 10 * MIB), "a limit never falls");
    renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    assert_eq!(giver.unpromised(space_of(80 * MIB), Kind::Space), 60 * MIB);
    assert_eq!(begin_all(&mut one), 10 * MIB / WRITE);
}

#[test]
fn own_writes_and_those_of_others_do_not_use_the_same_space() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    giver.begin_own(2 * WRITE);
    assert_eq!(giver.space_here(at(0), space_of(4 * WRITE), WRITE), Verdict::Enough);
    renew(&mut holder, &mut giver, member(1, 1), 0, 4 * WRITE);
    assert_eq!(giver.space_here(at(0), space_of(3 * WRITE), WRITE), Verdict::Unknown);
    giver.end_own(2 * WRITE);
    assert_eq!(giver.space_here(at(0), space_of(3 * WRITE), WRITE), Verdict::Enough);
    assert_eq!(giver.space_here(at(0), space_of(WRITE - 1), WRITE), Verdict::Full);
    assert!(!giver.may_take_copy(space_of(WRITE), WRITE - 1, (WRITE, 0)));
    assert!(giver.may_take_copy(space_of(WRITE), WRITE, (WRITE, 0)));
    giver.begin_own(64 * MIB);
    assert_eq!(
        giver.space_here(at(0), space_of(512 * MIB), WRITE),
        Verdict::Unknown,
        "its own limit"
    );
}

#[test]
fn a_write_that_lacked_space_here_goes_on_as_soon_as_there_is_some() {
    let mut credits = giver_with(1);
    assert!(!credits.has_come_here(space_of(8 * WRITE)), "nothing waits");
    let short = Space { sure_bytes: WRITE - 1, is_growing: true, ..space_of(8 * WRITE) };
    assert_eq!(credits.space_here(at(0), short, WRITE), Verdict::Unknown);
    assert_eq!(credits.space_here(at(0), short, 2 * WRITE), Verdict::Unknown);
    assert!(!credits.has_come_here(short));
    assert!(credits.has_come_here(space_of(WRITE)), "the least that was lacking");
    assert!(!credits.has_come_here(space_of(WRITE)), "once");
}

#[test]
fn nothing_is_promised_before_all_entries_are_known() {
    let (mut giver, mut holder) = (SpaceCredits::new(), SpaceCredits::new());
    let offer = renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB);
    assert_eq!((offer.space.limit_bytes, offer.is_full), (0, false));
    assert_eq!(giver.space_here(at(0), space_of(512 * MIB), WRITE), Verdict::Unknown);
    giver.on_demand(at(0), Some(demand(1, &[])), |_| true);
    assert_eq!(
        renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB).space.limit_bytes,
        64 * MIB
    );
}

#[test]
fn what_earlier_runs_promised_is_kept_free_once_however_often_they_restart() {
    let mut giver = SpaceCredits::new();
    // One PG stays inactive: its record lists one run of this OSD and one run of its primary.
    let waiting = demand(1, &[(3, member(1, 1))]);
    for _ in 0..20 {
        giver = SpaceCredits::new();
        giver.on_demand(at(0), Some(waiting.clone()), |_| true);
    }
    for run in 1..20 {
        let claim = claims(0, 0);
        giver.offer(at(0), member(1, run), claim, at(SPAN_MS), space_of(512 * MIB));
        giver.on_demand(at(0), Some(waiting.clone()), |_| true);
    }
    assert_eq!(giver.unpromised(space_of(512 * MIB), Kind::Space), (512 - 64 - 64) * MIB);
    // If only the space for earlier runs is left, writes wait, but not for ever.
    let space = space_of(64 * MIB + WRITE / 2);
    assert_eq!(giver.space_here(at(0), space, WRITE / 2), Verdict::Unknown);
    assert_eq!(giver.space_here(at(10_000), space, WRITE / 2), Verdict::Full);
    giver.on_demand(at(10_000), Some(demand(1, &[])), |_| true);
    assert_eq!(giver.space_here(at(10_000), space, WRITE / 2), Verdict::Enough);
}

#[test]
fn a_holder_that_leads_nothing_here_holds_nothing_once_it_cannot_begin_a_write() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    renew(&mut holder, &mut giver, member(1, 1), WRITE, 256 * MIB);
    let none = || Some(demand(0, &[]));
    let left =
        |giver: &SpaceCredits| 256 * MIB - giver.unpromised(space_of(256 * MIB), Kind::Space);
    giver.on_demand(at(SPAN_MS - 1), none(), |_| false);
    assert_eq!(left(&giver), 64 * MIB, "it has a lease");
    assert!(giver.is_demand_due(), "that it has none tells only time");
    giver.on_demand(at(SPAN_MS), none(), |_| true);
    assert_eq!(left(&giver), 64 * MIB, "it may ask over its old connection");
    assert!(giver.is_demand_due());
    giver.on_demand(at(SPAN_MS), none(), |_| false);
    assert_eq!(left(&giver), 0);
    assert!(!giver.is_demand_due());
    // The holder connects again, and its earlier credit is gone.
    holder.on_connected(member(9, 1), true);
    giver.on_demand(at(SPAN_MS), Some(demand(1, &[])), |_| true);
    renew(&mut holder, &mut giver, member(1, 1), 0, 16 * MIB);
    assert_eq!(begin_all(&mut holder), 16 * MIB / WRITE);
}

#[test]
fn a_write_that_is_larger_than_any_share_is_refused() {
    let (mut giver, mut holder) = (giver_with(64), SpaceCredits::new());
    let (to, from) = (member(9, 1).osd, member(1, 1));
    // Each of the 64 primaries has 4 MiB: the least that is promised.
    let largest = renew(&mut holder, &mut giver, from, 0, 1024 * MIB).space.largest_bytes;
    assert_eq!(largest, 4 * WRITE);
    assert_eq!(holder.space_at(to, largest), Verdict::Enough);
    assert_eq!(holder.space_at(to, largest + 1), Verdict::Full, "it would wait for ever");
    // Here it is the same, with what is there for all primaries.
    let mut here = giver_with(64);
    let most = 64 * MIB;
    assert_eq!(here.space_here(at(0), space_of(1024 * MIB), most), Verdict::Enough);
    assert_eq!(here.space_here(at(0), space_of(1024 * MIB), most + 1), Verdict::Full);
    here.begin_own(most);
    assert_eq!(
        here.space_here(at(0), space_of(1024 * MIB), most),
        Verdict::Unknown,
        "others may end"
    );
    assert_eq!(here.space_here(at(0), space_of(1024 * MIB), most + 1), Verdict::Full);
}

#[test]
fn a_large_write_waits_for_space_that_is_coming_and_is_refused_when_it_is_gone() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    let (to, from) = (member(9, 1), member(1, 1));
    holder.on_connected(to, true);
    let mut offer = |holder: &mut SpaceCredits, space| {
        let claim = holder.claim(to.osd, Charge::default(), true);
        let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space);
        holder.on_offer(to.osd, 1, offer);
    };
    let coming = Space { sure_bytes: 4 * MIB, is_growing: true, ..space_of(64 * MIB) };
    offer(&mut holder, coming);
    assert_eq!(holder.space_at(to.osd, 3 * WRITE), Verdict::Unknown, "its share grows");
    offer(&mut holder, space_of(4 * MIB));
    assert_eq!(holder.space_at(to.osd, 3 * WRITE), Verdict::Full);
    assert_eq!(holder.space_at(to.osd, 2 * WRITE), Verdict::Enough, "small ones go on");
    offer(&mut holder, space_of(64 * MIB));
    assert_eq!(holder.space_at(to.osd, 3 * WRITE), Verdict::Enough, "space was freed");
}

#[test]
fn a_holder_that_leads_nothing_here_gives_its_credit_back() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    let (to, from) = (member(9, 1), member(1, 1));
    renew(&mut holder, &mut giver, from, WRITE, 256 * MIB);
    // Its renewals 2 and 3, as primary and as a member that only reads.
    let claim = holder.claim(to.osd, copies(WRITE), true);
    let late = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(512 * MIB));
    let claim = holder.give_back(to.osd, 3, copies(WRITE));
    assert_eq!(holder.space_at(to.osd, WRITE), Verdict::Unknown);
    let nothing = giver.offer_nothing(from, claim);
    holder.on_offer(to.osd, 2, late);
    assert_eq!(begin_all(&mut holder), 0, "it came before");
    holder.on_offer(to.osd, 3, nothing);
    assert_eq!(begin_all(&mut holder), 0);
    // It leads again.
    holder.on_led(to, true);
    holder.on_offer(to.osd, 2, late);
    assert_eq!(begin_all(&mut holder), 0, "it still came before");
    renew(&mut holder, &mut giver, from, 0, 16 * MIB);
    assert_eq!(begin_all(&mut holder), 0, "an offer of renewal 1 is void");
    let claim = holder.claim(to.osd, Charge::default(), true);
    let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(16 * MIB));
    holder.on_offer(to.osd, 4, offer);
    assert_eq!(begin_all(&mut holder), 16 * MIB / WRITE);
}

#[test]
fn claims_that_no_holder_makes_are_harmless() {
    for is_split in [true, false] {
        let mut giver = giver_of_parity(1, 1);
        let space = space_with_room(16 * MIB, 16 * MIB);
        let mut say = |begun_bytes, owed_bytes| {
            let claim = Claim { begun_bytes, owed_bytes };
            let claims = Claims { space: claim, room: is_split.then_some(claim) };
            let offers = giver.offer(at(0), member(1, 1), claims, at(SPAN_MS), space);
            offers.room.unwrap_or(offers.space).limit_bytes
        };
        let limit = say(0, 0);
        assert_eq!(say(0, u64::MAX), limit, "nothing is left to promise");
        assert_eq!(say(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(say(u64::MAX, 0), u64::MAX, "it owes nothing, so it may have more");
        assert_eq!(say(limit, 0), u64::MAX, "it is a late one");
        // A holder that knows two kinds, and then one, and the other way round.
        let other = if is_split { one_claim(limit, 0) } else { claims(limit, 0) };
        giver.offer(at(0), member(1, 1), other, at(SPAN_MS), space);
    }
}

/// The state of a random run: a giver, three holders that each lead one PG, and messages in transit.
struct Run {
    random: Random,
    now: Time,
    giver: SpaceCredits,
    giver_run: u64,
    holders: Vec<Holder>,
    used: u64,
    size: u64,
    /// Room that prepared versions take, and all of it.
    room_used: u64,
    room_size: u64,
    /// Writes in the giver's own PG that its store has not stored yet.
    own: u64,
    /// The seed and the step, for messages.
    at: (u64, u32),
}

struct Holder {
    credits: SpaceCredits,
    member: Member,
    /// Whether it is of a version that knows both kinds of credit.
    is_split: bool,
    /// What a write of its PG takes. The last holder leads a PG of copies.
    charge: Charge,
    /// Writes in transit, in blocks; those of an earlier epoch arrive as repairs.
    writes: u64,
    lost: u64,
    /// Writes of earlier runs that have not arrived: another primary sends them as repairs.
    left: u64,
    is_active: bool,
    is_connected: bool,
    /// The runs of the giver and of the holder in the last activation.
    record: (Incarnation, Member),
    /// Whether it leads the PG. While it does not, it gives its credit back.
    leads: bool,
    stamp: u64,
    /// Renewals in transit: stamp, whether the holder leads, and claim.
    renewals: VecDeque<(u64, bool, Claims)>,
    offers: VecDeque<(u64, Offers)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let holders = (1..=3).map(|osd| Holder {
            credits: SpaceCredits::new(),
            member: member(osd, 1),
            is_split: !(seed >> osd).is_multiple_of(3),
            charge: if osd < 3 { parity(WRITE / 8 * 9) } else { copies(WRITE) },
            writes: 0,
            lost: 0,
            left: 0,
            is_active: true,
            is_connected: false,
            record: (Incarnation::new(1), member(osd, 1)),
            leads: true,
            stamp: 0,
            renewals: VecDeque::new(),
            offers: VecDeque::new(),
        });
        let holders = holders.collect();
        let size = (20 + seed % 60) * WRITE;
        let (random, giver) = (Random::new(seed), giver_of_parity(3, 2));
        let room_size = (8 + seed % 16) * WRITE;
        Run {
            random,
            now: at(0),
            giver,
            giver_run: 1,
            holders,
            used: 0,
            size,
            room_used: 0,
            room_size,
            own: 0,
            at: (0, 0),
        }
    }

    fn space(&self) -> Space {
        let free = self.size - self.used;
        let room_bytes_max = self.room_size;
        let room_bytes = self.room_size - self.room_used;
        Space { size_bytes: self.size, room_bytes_max, room_bytes, ..space_of(free) }
    }

    fn store(&mut self, bytes: u64) {
        self.used += bytes;
        assert!(self.used <= self.size, "a write that has a version does not fit: {:?}", self.at);
    }

    /// Prepares a version that arrives. What is kept for learners is not for it.
    fn prepare(&mut self, bytes: u64) {
        self.room_used += bytes;
        let max = self.room_size - self.room_size / LEARNER_SHARE;
        assert!(self.room_used <= max, "a version has no room: {:?}", self.at);
    }

    fn peer(&mut self, index: usize) {
        let giver_run = Incarnation::new(self.giver_run);
        let giver = member(9, self.giver_run);
        let holder = &mut self.holders[index];
        if !holder.leads && holder.is_connected {
            holder.credits.on_led(giver, holder.is_split);
        }
        let bytes = (std::mem::take(&mut holder.lost) + std::mem::take(&mut holder.left)) * WRITE;
        (holder.is_active, holder.leads) = (true, true);
        holder.record = (giver_run, holder.member);
        self.store(bytes);
        self.review();
    }

    /// Computes the giver's demand from its entries.
    fn review(&mut self) {
        let is_over =
            |holder: &&Holder| !holder.is_active || !self.giver.has_promise(holder.member);
        let over = self.holders.iter().filter(is_over);
        let runs = over.map(|holder| (holder.record.0, Some(holder.record.1)));
        let parity_primaries = (1..3).map(|osd| member(osd, 1).osd).collect();
        let earlier_runs = runs.collect();
        let demand = Demand { earlier_runs, parity_primaries, ..demand(3, &[]) };
        self.giver.on_demand(self.now, Some(demand), |_| true);
    }

    fn end_epoch(&mut self, index: usize) {
        let holder = &mut self.holders[index];
        let writes = std::mem::take(&mut holder.writes);
        for _ in 0..writes {
            holder.credits.end(&[member(9, 1).osd], holder.charge);
        }
        holder.lost += writes;
        holder.is_active = false;
    }

    fn break_epoch(&mut self, index: usize) {
        self.end_epoch(index);
        let holder = &mut self.holders[index];
        holder.renewals.clear();
        holder.offers.clear();
        holder.is_connected = false;
    }

    fn ask(&mut self, index: usize) {
        let giver = member(9, self.giver_run);
        let holder = &mut self.holders[index];
        if !std::mem::replace(&mut holder.is_connected, true) {
            holder.credits.on_connected(giver, holder.is_split);
        }
        let mut owed = Charge::default();
        (0..holder.lost).for_each(|_| owed += holder.charge);
        let is_timely = self.random.below(2) == 0;
        holder.stamp += 1;
        let claim = match holder.leads {
            true => holder.credits.claim(giver.osd, owed, is_timely),
            false => holder.credits.give_back(giver.osd, holder.stamp, owed),
        };
        holder.renewals.push_back((holder.stamp, holder.leads, claim));
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(u64::from(self.random.below(40)));
        let index = self.random.below(3) as usize;
        self.review();
        let giver = member(9, self.giver_run);
        match self.random.below(100) {
            0..15 => self.ask(index),
            15..30 => {
                let space = self.space();
                let until = self.now + Duration::from_millis(SPAN_MS);
                let holder = &mut self.holders[index];
                let Some((stamp, leads, claim)) = holder.renewals.pop_front() else { return };
                let from = holder.member;
                let offer = match leads {
                    true => self.giver.offer(self.now, from, claim, until, space),
                    false => self.giver.offer_nothing(from, claim),
                };
                // Some answers are lost when the connection breaks.
                if self.random.below(5) > 0 {
                    self.holders[index].offers.push_back((stamp, offer));
                }
            }
            30..45 => {
                let holder = &mut self.holders[index];
                if let Some((stamp, offer)) = holder.offers.pop_front() {
                    holder.credits.on_offer(giver.osd, stamp, offer);
                }
            }
            45..70 => {
                let holder = &mut self.holders[index];
                let is_enough = holder.credits.may_begin_at(giver.osd, holder.charge);
                if holder.is_active && is_enough {
                    holder.credits.take(&[giver.osd], holder.charge);
                    holder.writes += 1;
                }
            }
            70..80 => {
                let count = u64::from(self.random.below(3)).min(self.holders[index].writes);
                let holder = &mut self.holders[index];
                holder.writes -= count;
                let charge = holder.charge;
                (0..count).for_each(|_| holder.credits.end(&[giver.osd], charge));
                self.store(count * WRITE);
                self.prepare(count * charge.room_bytes);
            }
            80..85 if self.giver.space_here(self.now, self.space(), WRITE) == Verdict::Enough => {
                self.giver.begin_own(WRITE);
                self.own += 1;
            }
            85..88 => {
                let own = std::mem::take(&mut self.own);
                self.store(own * WRITE);
                self.giver.end_own(own * WRITE);
            }
            88..91 if self.random.below(2) == 0 => {
                self.room_used = 0;
            }
            88..91 => self.used -= (u64::from(self.random.below(6)) * WRITE).min(self.used),
            91 => self.break_epoch(index),
            92..97 => self.peer(index),
            97 if self.random.below(3) == 0 => {
                // The holder's process dies.
                self.break_epoch(index);
                let holder = &mut self.holders[index];
                assert!(holder.credits.owed.values().all(|owed| *owed == Charge::default()));
                holder.left += std::mem::take(&mut holder.lost);
                let run = holder.member.incarnation.get() + 1;
                holder.member.incarnation = Incarnation::new(run);
                holder.credits = SpaceCredits::new();
                self.giver.on_newer_run(holder.member);
            }
            99 => {
                // Another OSD leads the PG; the connection stays.
                self.end_epoch(index);
                self.holders[index].leads = false;
            }
            98 if self.random.below(6) == 0 => {
                // The giver's process dies and loses its state; its own writes are in its journal.
                let own = std::mem::take(&mut self.own);
                self.store(own * WRITE);
                (0..3).for_each(|index| self.break_epoch(index));
                self.giver = SpaceCredits::new();
                self.giver_run += 1;
                // No write begins without a lease of the new run, which requires a connection to that run.
                let giver = member(9, self.giver_run);
                for holder in &mut self.holders {
                    holder.credits.on_connected(giver, holder.is_split);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_begun_write_fits_whatever_messages_are_lost() {
    let mut begun = 0;
    for seed in 0..400 {
        let mut run = Run::new(seed);
        for step in 0..3_000 {
            run.at = (seed, step);
            let before: u64 = run.holders.iter().map(|holder| holder.writes).sum();
            run.step();
            let after: u64 = run.holders.iter().map(|holder| holder.writes).sum();
            begun += after.saturating_sub(before);
        }
        // After all faults, a holder that requests space gets some, as long as there is any.
        (0..3).for_each(|index| run.break_epoch(index));
        (0..3).for_each(|index| run.peer(index));
        let own = std::mem::take(&mut run.own);
        run.store(own * WRITE);
        run.used = run.size / 2;
        run.giver.end_own(run.giver.own.space_bytes);
        run.room_used = 0;
        let to = member(9, run.giver_run);
        let space = run.space();
        let mut is_served = false;
        for _ in 0..5 {
            run.now = run.now + Duration::from_secs(1);
            run.review();
            for holder in &mut run.holders {
                holder.credits.on_connected(to, holder.is_split);
                let claim = holder.credits.claim(to.osd, Charge::default(), true);
                let offer = run.giver.offer(run.now, holder.member, claim, run.now, space);
                holder.credits.on_offer(to.osd, u64::MAX, offer);
                is_served |= holder.credits.may_begin_at(to.osd, holder.charge);
            }
        }
        assert!(is_served, "seed {seed}: there is room, and nobody may use it");
    }
    assert!(begun > 20_000, "{begun} writes say little");
}
