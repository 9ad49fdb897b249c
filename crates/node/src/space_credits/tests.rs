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
        keeps_parity: false,
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

/// Sends a regular renewal from the holder, and delivers the giver's answer.
fn renew(
    holder: &mut SpaceCredits,
    giver: &mut SpaceCredits,
    from: Member,
    owed: u64,
    free: u64,
) -> Offer {
    let to = member(9, 1);
    if !holder.credits.contains_key(&to.osd) {
        holder.on_connected(to);
    }
    let claim = holder.claim(to.osd, owed, true);
    let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(free));
    holder.on_offer(to.osd, 1, offer);
    offer
}

/// Begins all writes that the holder may begin now, and returns how many.
fn begin_all(holder: &mut SpaceCredits) -> u64 {
    let to = member(9, 1).osd;
    let mut count = 0;
    while holder.at(to, WRITE) == Verdict::Enough {
        holder.take(to, WRITE);
        count += 1;
    }
    count
}

#[test]
fn a_holder_begins_writes_only_within_what_it_was_promised() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    let to = member(9, 1).osd;
    assert_eq!(holder.at(to, 1), Verdict::Unknown, "nothing was promised yet");
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
    holder.claim(to, 64 * MIB, false);
    let nothing = Offer { limit_bytes: 0, share_bytes: 0, is_full: false, largest_bytes: u64::MAX };
    holder.on_offer(to, 1, nothing);
    assert_eq!(holder.at(to, WRITE), Verdict::Unknown);
    assert_eq!(holder.take_wanting(), [], "it was asked");
    assert_eq!(holder.room_due(), None);
    holder.await_room(at(10));
    holder.await_room(at(11));
    assert_eq!(holder.room_due(), Some(at(10)));
    holder.on_room_freed(at(10));
    assert_eq!(holder.at(to, WRITE), Verdict::Unknown);
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
    holder.begin_own(begun * WRITE);
    let mut ask = |holder: &mut SpaceCredits, owed, answered| {
        assert_eq!(holder.at(to, WRITE), Verdict::Unknown);
        assert_eq!(holder.take_wanting(), [to]);
        let claim = holder.claim(to, owed, false);
        if answered > 0 {
            holder.end_own(answered);
        }
        let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(512 * MIB));
        holder.on_offer(to, 1, offer)
    };
    assert!(!ask(&mut holder, 64 * MIB, 0), "all of it is on its way");
    assert_eq!(holder.at(to, WRITE), Verdict::Unknown);
    assert_eq!(holder.take_wanting(), [], "nothing has changed");
    holder.end_own(WRITE);
    assert!(ask(&mut holder, 64 * MIB, WRITE), "one was answered meanwhile");
    assert!(ask(&mut holder, 62 * MIB, 0));
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
            assert_eq!(holder.at(member(9, 1).osd, WRITE) == Verdict::Full, is_full);
        }
        giver = giver_with(50);
    }
}

#[test]
fn writes_wait_for_space_that_is_being_made_ready_and_for_no_other() {
    let mut giver = giver_with(4);
    let space = Space { sure_bytes: 3 * WRITE, is_growing: true, ..space_of(64 * WRITE) };
    let claim = Claim { begun_bytes: 0, owed_bytes: 0 };
    assert!(!giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space).is_full);
    let space = Space { is_growing: false, ..space };
    assert!(giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space).is_full);
}

/// A giver of which PGs keep parity.
fn giver_of_parity(primary_count: u32) -> SpaceCredits {
    let mut credits = SpaceCredits::new();
    let demand = Demand { keeps_parity: true, ..demand(primary_count, &[]) };
    credits.on_demand(Time::ZERO, Some(demand), |_| true);
    credits
}

/// Space of which the room for prepared versions holds `blocks` blocks, of which `free` are free.
fn space_with_room(blocks: u64, free: u64) -> Space {
    let room = |blocks| blocks * WRITE * 9 / 8;
    Space { room_bytes_max: room(blocks), room_bytes: room(free), ..space_of(64 * WRITE) }
}

#[test]
fn room_for_prepared_versions_limits_what_is_promised() {
    let mut giver = giver_of_parity(2);
    let claim = Claim { begun_bytes: 0, owed_bytes: 0 };
    let space = space_with_room(16, 16);
    let mut offer = |holder| giver.offer(at(0), holder, claim, at(SPAN_MS), space).limit_bytes;
    assert_eq!(offer(member(1, 1)), 4 * WRITE, "a third of three quarters: one part is its own");
    assert_eq!(offer(member(2, 1)), 4 * WRITE);
    assert_eq!(giver.here(at(0), space, 4 * WRITE), Verdict::Enough);
    assert_eq!(giver.here(at(0), space, 4 * WRITE + 1), Verdict::Full, "the rest is for learners");
    assert!(giver.may_take_copy(space, 0, 8 * WRITE));
    assert!(!giver.may_take_copy(space, 0, 9 * WRITE), "promises are kept");
    let mut copies = giver_with(2);
    let all = copies.offer(at(0), member(1, 1), claim, at(SPAN_MS), space).limit_bytes;
    assert_eq!(all, 32 * WRITE, "copies need no such room");
}

#[test]
fn what_is_prepared_lessens_what_is_promised_but_not_the_share() {
    let mut giver = giver_of_parity(2);
    let mut offer = |holder, begun_bytes, owed_bytes, free| {
        let claim = Claim { begun_bytes, owed_bytes };
        giver.offer(at(0), holder, claim, at(SPAN_MS), space_with_room(16, free))
    };
    let first = offer(member(1, 1), 0, 0, 16);
    assert_eq!((first.limit_bytes, first.share_bytes), (4 * WRITE, 4 * WRITE));
    // Its writes were prepared here, those of others too, and none is committed.
    let again = offer(member(1, 1), 4 * WRITE, 0, 6);
    assert_eq!(
        (again.limit_bytes, again.share_bytes),
        (6 * WRITE, 4 * WRITE),
        "the rest is for learners"
    );
    let other = offer(member(2, 1), 0, 0, 6);
    assert_eq!((other.limit_bytes, other.share_bytes, other.is_full), (0, 4 * WRITE, false));
    // They were committed: the room is there again.
    assert_eq!(offer(member(2, 1), 0, 0, 10).limit_bytes, 4 * WRITE);
}

#[test]
fn parts_of_a_block_are_not_promised() {
    let mut giver = giver_of_parity(2);
    let claim = Claim { begun_bytes: 0, owed_bytes: 0 };
    let mut offer = |blocks| {
        let space = space_with_room(blocks, blocks);
        giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space)
    };
    let small = offer(3);
    assert_eq!((small.limit_bytes, small.share_bytes), (0, 0), "each would get three quarters");
    assert!(small.is_full, "a journal this small is never enough");
    let enough = offer(7);
    assert_eq!((enough.limit_bytes, enough.share_bytes), (WRITE, WRITE));
    assert!(!enough.is_full);
}

#[test]
fn with_more_primaries_each_gives_back_what_exceeds_its_share() {
    let (mut giver, mut one, mut other) = (giver_with(1), SpaceCredits::new(), SpaceCredits::new());
    let first = renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    assert_eq!(first.limit_bytes, 64 * MIB);
    giver.on_demand(at(1), Some(demand(8, &[])), |_| true);
    let offer = renew(&mut other, &mut giver, member(2, 1), 0, 80 * MIB);
    assert_eq!(offer.limit_bytes, 10 * MIB, "an eighth of what is left");
    assert_eq!(giver.unpromised(space_of(80 * MIB)), 6 * MIB);
    // The holder learns its share from this answer, and returns the excess with the next renewal.
    let again = renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    assert_eq!((again.limit_bytes, again.share_bytes), (64 * MIB, 10 * MIB), "a limit never falls");
    renew(&mut one, &mut giver, member(1, 1), 0, 80 * MIB);
    assert_eq!(giver.unpromised(space_of(80 * MIB)), 60 * MIB);
    assert_eq!(begin_all(&mut one), 10 * MIB / WRITE);
}

#[test]
fn own_writes_and_those_of_others_do_not_use_the_same_space() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    giver.begin_own(2 * WRITE);
    assert_eq!(giver.here(at(0), space_of(4 * WRITE), WRITE), Verdict::Enough);
    renew(&mut holder, &mut giver, member(1, 1), 0, 4 * WRITE);
    assert_eq!(giver.here(at(0), space_of(3 * WRITE), WRITE), Verdict::Unknown);
    giver.end_own(2 * WRITE);
    assert_eq!(giver.here(at(0), space_of(3 * WRITE), WRITE), Verdict::Enough);
    assert_eq!(giver.here(at(0), space_of(WRITE - 1), WRITE), Verdict::Full);
    assert!(!giver.may_take_copy(space_of(WRITE), WRITE - 1, WRITE));
    assert!(giver.may_take_copy(space_of(WRITE), WRITE, WRITE));
    giver.begin_own(64 * MIB);
    assert_eq!(giver.here(at(0), space_of(512 * MIB), WRITE), Verdict::Unknown, "its own limit");
}

#[test]
fn a_write_that_lacked_space_here_goes_on_as_soon_as_there_is_some() {
    let mut credits = giver_with(1);
    assert!(!credits.has_come_here(space_of(8 * WRITE)), "nothing waits");
    let short = Space { sure_bytes: WRITE - 1, is_growing: true, ..space_of(8 * WRITE) };
    assert_eq!(credits.here(at(0), short, WRITE), Verdict::Unknown);
    assert_eq!(credits.here(at(0), short, 2 * WRITE), Verdict::Unknown);
    assert!(!credits.has_come_here(short));
    assert!(credits.has_come_here(space_of(WRITE)), "the least that was lacking");
    assert!(!credits.has_come_here(space_of(WRITE)), "once");
}

#[test]
fn nothing_is_promised_before_all_entries_are_known() {
    let (mut giver, mut holder) = (SpaceCredits::new(), SpaceCredits::new());
    let offer = renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB);
    assert_eq!((offer.limit_bytes, offer.is_full), (0, false));
    assert_eq!(giver.here(at(0), space_of(512 * MIB), WRITE), Verdict::Unknown);
    giver.on_demand(at(0), Some(demand(1, &[])), |_| true);
    assert_eq!(renew(&mut holder, &mut giver, member(1, 1), 0, 512 * MIB).limit_bytes, 64 * MIB);
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
        let claim = Claim { begun_bytes: 0, owed_bytes: 0 };
        giver.offer(at(0), member(1, run), claim, at(SPAN_MS), space_of(512 * MIB));
        giver.on_demand(at(0), Some(waiting.clone()), |_| true);
    }
    assert_eq!(giver.unpromised(space_of(512 * MIB)), (512 - 64 - 64) * MIB);
    // If only the space for earlier runs is left, writes wait, but not for ever.
    let space = space_of(64 * MIB + WRITE / 2);
    assert_eq!(giver.here(at(0), space, WRITE / 2), Verdict::Unknown);
    assert_eq!(giver.here(at(10_000), space, WRITE / 2), Verdict::Full);
    giver.on_demand(at(10_000), Some(demand(1, &[])), |_| true);
    assert_eq!(giver.here(at(10_000), space, WRITE / 2), Verdict::Enough);
}

#[test]
fn a_holder_that_leads_nothing_here_holds_nothing_once_it_cannot_begin_a_write() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    renew(&mut holder, &mut giver, member(1, 1), WRITE, 256 * MIB);
    let none = || Some(demand(0, &[]));
    let left = |giver: &SpaceCredits| 256 * MIB - giver.unpromised(space_of(256 * MIB));
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
    holder.on_connected(member(9, 1));
    giver.on_demand(at(SPAN_MS), Some(demand(1, &[])), |_| true);
    renew(&mut holder, &mut giver, member(1, 1), 0, 16 * MIB);
    assert_eq!(begin_all(&mut holder), 16 * MIB / WRITE);
}

#[test]
fn a_write_that_is_larger_than_any_share_is_refused() {
    let (mut giver, mut holder) = (giver_with(64), SpaceCredits::new());
    let (to, from) = (member(9, 1).osd, member(1, 1));
    // Each of the 64 primaries has 4 MiB: the least that is promised.
    let largest = renew(&mut holder, &mut giver, from, 0, 1024 * MIB).largest_bytes;
    assert_eq!(largest, 4 * WRITE);
    assert_eq!(holder.at(to, largest), Verdict::Enough);
    assert_eq!(holder.at(to, largest + 1), Verdict::Full, "it would wait for ever");
    // Here it is the same, with what is there for all primaries.
    let mut here = giver_with(64);
    let most = 64 * MIB;
    assert_eq!(here.here(at(0), space_of(1024 * MIB), most), Verdict::Enough);
    assert_eq!(here.here(at(0), space_of(1024 * MIB), most + 1), Verdict::Full);
    here.begin_own(most);
    assert_eq!(here.here(at(0), space_of(1024 * MIB), most), Verdict::Unknown, "others may end");
    assert_eq!(here.here(at(0), space_of(1024 * MIB), most + 1), Verdict::Full);
}

#[test]
fn a_large_write_waits_for_space_that_is_coming_and_is_refused_when_it_is_gone() {
    let (mut giver, mut holder) = (giver_with(2), SpaceCredits::new());
    let (to, from) = (member(9, 1), member(1, 1));
    holder.on_connected(to);
    let mut offer = |holder: &mut SpaceCredits, space| {
        let claim = holder.claim(to.osd, 0, true);
        let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space);
        holder.on_offer(to.osd, 1, offer)
    };
    let coming = Space { sure_bytes: 4 * MIB, is_growing: true, ..space_of(64 * MIB) };
    offer(&mut holder, coming);
    assert_eq!(holder.at(to.osd, 3 * WRITE), Verdict::Unknown, "its share grows");
    assert!(offer(&mut holder, space_of(4 * MIB)), "it is judged again");
    assert_eq!(holder.at(to.osd, 3 * WRITE), Verdict::Full);
    assert_eq!(holder.at(to.osd, 2 * WRITE), Verdict::Enough, "small ones go on");
    offer(&mut holder, space_of(64 * MIB));
    assert_eq!(holder.at(to.osd, 3 * WRITE), Verdict::Enough, "space was freed");
}

#[test]
fn a_holder_that_leads_nothing_here_gives_its_credit_back() {
    let (mut giver, mut holder) = (giver_with(1), SpaceCredits::new());
    let (to, from) = (member(9, 1), member(1, 1));
    renew(&mut holder, &mut giver, from, WRITE, 256 * MIB);
    // Its renewals 2 and 3, as primary and as a member that only reads.
    let claim = holder.claim(to.osd, WRITE, true);
    let late = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(512 * MIB));
    let claim = holder.give_back(to.osd, 3, WRITE);
    assert_eq!(holder.at(to.osd, WRITE), Verdict::Unknown);
    let nothing = giver.offer_nothing(from, claim);
    assert!(!holder.on_offer(to.osd, 2, late), "it came before");
    assert!(!holder.on_offer(to.osd, 3, nothing));
    assert_eq!(begin_all(&mut holder), 0);
    // It leads again.
    renew(&mut holder, &mut giver, from, 0, 16 * MIB);
    assert_eq!(begin_all(&mut holder), 0, "an offer of renewal 1 is void");
    let claim = holder.claim(to.osd, 0, true);
    let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(16 * MIB));
    assert!(holder.on_offer(to.osd, 4, offer));
    assert_eq!(begin_all(&mut holder), 16 * MIB / WRITE);
}

#[test]
fn claims_that_no_holder_makes_are_harmless() {
    let mut giver = giver_with(1);
    let claim = |begun_bytes, owed_bytes| Claim { begun_bytes, owed_bytes };
    let mut say = |claim| giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space_of(64 * MIB));
    let limit = say(claim(0, 0)).limit_bytes;
    assert_eq!(say(claim(0, u64::MAX)).limit_bytes, limit, "nothing is left to promise");
    assert_eq!(say(claim(u64::MAX, u64::MAX)).limit_bytes, u64::MAX);
    assert_eq!(say(claim(limit, 0)).limit_bytes, u64::MAX, "it is a late one");
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
    /// Writes in the giver's own PG that its store has not stored yet.
    own: u64,
    /// The seed and the step, for messages.
    at: (u64, u32),
}

struct Holder {
    credits: SpaceCredits,
    member: Member,
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
    renewals: VecDeque<(u64, bool, Claim)>,
    offers: VecDeque<(u64, Offer)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let holders = (1..=3).map(|osd| Holder {
            credits: SpaceCredits::new(),
            member: member(osd, 1),
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
        let (random, giver) = (Random::new(seed), giver_with(3));
        Run { random, now: at(0), giver, giver_run: 1, holders, used: 0, size, own: 0, at: (0, 0) }
    }

    fn space(&self) -> Space {
        let free = self.size - self.used;
        Space { size_bytes: self.size, ..space_of(free) }
    }

    fn store(&mut self, bytes: u64) {
        self.used += bytes;
        assert!(self.used <= self.size, "a write that has a version does not fit: {:?}", self.at);
    }

    fn peer(&mut self, index: usize) {
        let giver_run = Incarnation::new(self.giver_run);
        let holder = &mut self.holders[index];
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
        let demand = Demand { earlier_runs: runs.collect(), ..demand(3, &[]) };
        self.giver.on_demand(self.now, Some(demand), |_| true);
    }

    fn end_epoch(&mut self, index: usize) {
        let holder = &mut self.holders[index];
        holder.lost += std::mem::take(&mut holder.writes);
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
            holder.credits.on_connected(giver);
        }
        let owed = (holder.writes + holder.lost) * WRITE;
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
                let is_enough = holder.credits.at(giver.osd, WRITE) == Verdict::Enough;
                if holder.is_active && is_enough {
                    holder.credits.take(giver.osd, WRITE);
                    holder.writes += 1;
                }
            }
            70..80 => {
                let count = u64::from(self.random.below(3)).min(self.holders[index].writes);
                self.holders[index].writes -= count;
                self.store(count * WRITE);
            }
            80..85 if self.giver.here(self.now, self.space(), WRITE) == Verdict::Enough => {
                self.giver.begin_own(WRITE);
                self.own += 1;
            }
            85..88 => {
                let own = std::mem::take(&mut self.own);
                self.store(own * WRITE);
                self.giver.end_own(own * WRITE);
            }
            88..91 => self.used -= (u64::from(self.random.below(6)) * WRITE).min(self.used),
            91 => self.break_epoch(index),
            92..97 => self.peer(index),
            97 if self.random.below(3) == 0 => {
                // The holder's process dies.
                self.break_epoch(index);
                let holder = &mut self.holders[index];
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
                self.holders.iter_mut().for_each(|holder| holder.credits.on_connected(giver));
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
        run.giver.end_own(run.giver.own_bytes);
        let to = member(9, run.giver_run);
        let space = run.space();
        let mut is_served = false;
        for _ in 0..5 {
            run.now = run.now + Duration::from_secs(1);
            run.review();
            for holder in &mut run.holders {
                holder.credits.on_connected(to);
                let claim = holder.credits.claim(to.osd, 0, true);
                let offer = run.giver.offer(run.now, holder.member, claim, run.now, space);
                holder.credits.on_offer(to.osd, u64::MAX, offer);
                is_served |= holder.credits.at(to.osd, WRITE) == Verdict::Enough;
            }
        }
        assert!(is_served, "seed {seed}: there is room, and nobody may use it");
    }
    assert!(begun > 20_000, "{begun} writes say little");
}
