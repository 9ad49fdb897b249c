//! Promises as values: whatever is lost, late or forgotten, what was begun fits in the end.

use std::collections::VecDeque;

use base::Incarnation;

use super::*;
use crate::node_fuzz::Random;

const WRITE: u64 = WRITE_BYTES_MAX;
const SPAN_MS: u64 = 375;

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn member(osd: u32, run: u64) -> Member {
    Member { osd: OsdId::new(osd).unwrap(), incarnation: Incarnation::new(run) }
}

fn space_of(free: u64) -> Space {
    let size_bytes = 128 * MIB;
    Space { size_bytes, sure_bytes: free, free_bytes: free, is_full: free < WRITE }
}

/// A giver that has run for long.
fn settled() -> Rooms {
    let mut rooms = Rooms::new(Time::ZERO);
    rooms.settled(Time::ZERO, &BTreeSet::new());
    rooms
}

/// The holder asks in time, and has the answer.
fn renew(holder: &mut Rooms, giver: &mut Rooms, from: Member, owed: u64, free: u64) -> Offer {
    let to = member(9, 1);
    holder.opened(to);
    holder.at(to.osd, WRITE);
    let claim = holder.claim(to.osd, owed, true);
    let offer = giver.offer(at(0), from, claim, at(SPAN_MS), space_of(free)).unwrap();
    holder.offered(to.osd, offer);
    offer
}

#[test]
fn a_holder_gives_versions_only_within_what_it_was_promised() {
    let (mut giver, mut holder) = (settled(), settled());
    let to = member(9, 1).osd;
    assert_eq!(holder.at(to, 1), Room::Unknown, "it was promised nothing yet");
    renew(&mut holder, &mut giver, member(1, 1), 0, 100 * MIB);
    let mut count = 0;
    while holder.at(to, WRITE) == Room::Enough {
        holder.take(to, WRITE);
        count += 1;
    }
    assert_eq!(count, 2, "a 64th of the store at a time");
    assert_eq!(holder.take_wanting(), [to], "it asks before its time");
    assert_eq!(holder.take_wanting(), [], "once");
}

#[test]
fn a_full_giver_is_told_from_one_that_is_short_for_now() {
    let (mut giver, mut one, mut other) = (settled(), settled(), settled());
    let to = member(9, 1).osd;
    let offer = renew(&mut one, &mut giver, member(1, 1), 0, WRITE);
    assert!(offer.is_short && !offer.is_full);
    assert_eq!(one.at(to, WRITE), Room::Enough);
    let offer = renew(&mut other, &mut giver, member(2, 1), 0, WRITE);
    assert!(offer.is_short && !offer.is_full);
    assert_eq!(other.at(to, WRITE), Room::Unknown, "another one may give it back");
    // It gives back what it did not use, and gets it again where nobody else asks.
    renew(&mut one, &mut giver, member(1, 1), 0, 0);
    let offer = renew(&mut other, &mut giver, member(2, 1), 0, WRITE);
    assert!(!offer.is_full);
    assert_eq!(other.at(to, WRITE), Room::Enough);
    let offer = renew(&mut one, &mut giver, member(1, 1), 0, WRITE - 1);
    assert!(offer.is_full);
    assert_eq!(one.at(to, WRITE), Room::Full);
    assert!(one.offered(to, Offer { is_full: false, ..offer }), "who waits looks again");
}

#[test]
fn own_writes_and_those_of_others_do_not_use_the_same_room() {
    let (mut giver, mut holder) = (settled(), settled());
    giver.begin_own(2 * WRITE);
    assert_eq!(giver.here(at(0), space_of(3 * WRITE), WRITE), Room::Enough);
    renew(&mut holder, &mut giver, member(1, 1), 0, 3 * WRITE);
    assert_eq!(giver.here(at(0), space_of(3 * WRITE), WRITE), Room::Unknown);
    giver.end_own(2 * WRITE);
    assert_eq!(giver.here(at(0), space_of(3 * WRITE), WRITE), Room::Enough);
    assert_eq!(giver.here(at(0), space_of(WRITE - 1), WRITE), Room::Full);
    assert!(!giver.has_room_for_copy(space_of(WRITE), WRITE - 1, WRITE));
    assert!(giver.has_room_for_copy(space_of(WRITE), WRITE, WRITE));
}

#[test]
fn a_write_that_lacked_room_here_goes_on_as_soon_as_there_is_some() {
    let mut rooms = settled();
    assert!(!rooms.has_come_here(space_of(8 * WRITE)), "nothing waits");
    let short = Space { is_full: false, ..space_of(WRITE - 1) };
    assert_eq!(rooms.here(at(0), short, WRITE), Room::Unknown);
    assert_eq!(rooms.here(at(0), short, 2 * WRITE), Room::Unknown);
    assert!(!rooms.has_come_here(short));
    assert!(rooms.has_come_here(space_of(WRITE)), "the least that was lacking");
    assert!(!rooms.has_come_here(space_of(WRITE)), "once");
}

#[test]
fn who_had_nothing_keeps_nobody_waiting_where_there_is_room_for_all() {
    let (mut giver, mut one, mut other) = (settled(), settled(), settled());
    let to = member(9, 1).osd;
    renew(&mut one, &mut giver, member(1, 1), 0, WRITE - 1);
    assert_ne!(one.at(to, WRITE), Room::Enough, "it wanted what there was none of");
    renew(&mut other, &mut giver, member(2, 1), 0, 2 * WRITE);
    assert_ne!(other.at(to, WRITE), Room::Enough, "the last is for the first");
    let mut third = settled();
    renew(&mut third, &mut giver, member(3, 1), 0, 4 * WRITE);
    assert_eq!(third.at(to, WRITE), Room::Enough, "the first may take long to ask again");
    renew(&mut one, &mut giver, member(1, 1), 0, 4 * WRITE);
    assert_eq!(one.at(to, WRITE), Room::Enough);
}

#[test]
fn what_nobody_remembers_is_kept_free_until_all_pgs_are_active() {
    let mut giver = Rooms::new(at(0));
    let mut holder = settled();
    let offer = renew(&mut holder, &mut giver, member(1, 1), 0, 16 * MIB);
    assert!(!offer.is_full && offer.is_short);
    assert_eq!(offer.limit_bytes, 0, "an earlier run may have promised all of it");
    assert_eq!(giver.here(at(20_000), space_of(16 * MIB), WRITE), Room::Full, "not for ever");
    assert!(giver.awaits_settling(at(0)));
    giver.settled(at(0), &BTreeSet::new());
    assert!(renew(&mut holder, &mut giver, member(1, 1), 0, 16 * MIB).limit_bytes > 0);
    // The same of a holder whose run is over.
    giver.is_in_run(at(1), member(1, 2));
    assert_eq!(giver.here(at(1), space_of(2 * WRITE), WRITE), Room::Unknown);
    giver.settled(at(1), &BTreeSet::new());
    assert_eq!(giver.here(at(1), space_of(2 * WRITE), WRITE), Room::Enough);
}

#[test]
fn a_holder_that_leads_nothing_here_holds_nothing_when_its_lease_ran_out() {
    let (mut giver, mut holder) = (settled(), settled());
    renew(&mut holder, &mut giver, member(1, 1), WRITE, 4 * WRITE);
    let here = |giver: &mut Rooms, now| giver.here(now, space_of(2 * WRITE), WRITE);
    let primaries = BTreeSet::from([member(1, 1).osd]);
    giver.settled(at(SPAN_MS), &primaries);
    assert_eq!(here(&mut giver, at(SPAN_MS)), Room::Unknown, "it may begin again");
    giver.settled(at(SPAN_MS - 1), &BTreeSet::new());
    assert_eq!(here(&mut giver, at(SPAN_MS - 1)), Room::Unknown, "it has a lease");
    giver.settled(at(SPAN_MS), &BTreeSet::new());
    assert_eq!(here(&mut giver, at(SPAN_MS)), Room::Enough);
    let to = member(9, 1).osd;
    let claim = holder.claim(to, WRITE, false);
    giver.offer(at(900), member(1, 1), claim, at(1_300), space_of(0)).unwrap();
    assert_eq!(here(&mut giver, at(900)), Room::Unknown, "it asked again");
}

#[test]
fn claims_that_no_holder_makes_are_refused_or_harmless() {
    let mut giver = settled();
    let claim = |given_bytes, owed_bytes| Claim { given_bytes, owed_bytes, is_wanting: true };
    let mut say = |claim| giver.offer(at(0), member(1, 1), claim, at(SPAN_MS), space_of(64 * MIB));
    assert!(say(claim(1, 0)).is_err(), "it was promised nothing");
    let limit = say(claim(0, 0)).unwrap().limit_bytes;
    assert!(say(claim(limit + 1, 0)).is_err());
    assert_eq!(say(claim(0, u64::MAX)).unwrap().limit_bytes, limit, "nothing is left to promise");
    assert!(say(claim(limit, u64::MAX)).is_ok());
    assert!(say(claim(limit - 1, 0)).is_err(), "what is given is not taken back");
}

/// What goes wrong in a run: a giver, three holders that each lead one PG, and messages on their
/// way.
struct Run {
    random: Random,
    now: Time,
    giver: Rooms,
    giver_run: u64,
    holders: Vec<Holder>,
    used: u64,
    size: u64,
    /// Writes of the giver's own PG that its store has not taken.
    own: u64,
    /// Seed and step.
    at: (u64, u32),
}

struct Holder {
    rooms: Rooms,
    member: Member,
    /// Writes on their way, in blocks; those of an epoch that is over come as repairs.
    writes: u64,
    lost: u64,
    /// What earlier runs left: the repairs of another primary.
    left: u64,
    is_active: bool,
    renewals: VecDeque<Claim>,
    offers: VecDeque<Offer>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let holders = (1..=3).map(|osd| Holder {
            rooms: settled(),
            member: member(osd, 1),
            writes: 0,
            lost: 0,
            left: 0,
            is_active: true,
            renewals: VecDeque::new(),
            offers: VecDeque::new(),
        });
        let holders = holders.collect();
        let size = (20 + seed % 60) * WRITE;
        let (random, giver) = (Random::new(seed), settled());
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
        let primaries = BTreeSet::new();
        let holder = &mut self.holders[index];
        let bytes = (std::mem::take(&mut holder.lost) + std::mem::take(&mut holder.left)) * WRITE;
        holder.is_active = true;
        self.store(bytes);
        if self.holders.iter().all(|holder| holder.is_active) {
            let active = self.holders.iter().map(|holder| holder.member.osd);
            let primaries = active.chain(primaries).collect();
            self.giver.settled(self.now, &primaries);
        }
    }

    fn break_epoch(&mut self, index: usize) {
        let holder = &mut self.holders[index];
        holder.lost += std::mem::take(&mut holder.writes);
        holder.is_active = false;
        holder.renewals.clear();
        holder.offers.clear();
    }

    fn ask(&mut self, index: usize) {
        let giver = member(9, self.giver_run);
        let holder = &mut self.holders[index];
        holder.rooms.opened(giver);
        let owed = (holder.writes + holder.lost) * WRITE;
        let is_timely = self.random.below(2) == 0;
        holder.renewals.push_back(holder.rooms.claim(giver.osd, owed, is_timely));
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(u64::from(self.random.below(40)));
        let index = self.random.below(3) as usize;
        let giver = member(9, self.giver_run);
        match self.random.below(100) {
            0..15 => self.ask(index),
            15..30 => {
                let space = self.space();
                let until = self.now + Duration::from_millis(SPAN_MS);
                let holder = &mut self.holders[index];
                let Some(claim) = holder.renewals.pop_front() else { return };
                let offer = self.giver.offer(self.now, holder.member, claim, until, space);
                let offer = offer.expect("a holder of ours");
                // Some answers are lost with their connection.
                if self.random.below(5) > 0 {
                    self.holders[index].offers.push_back(offer);
                }
            }
            30..45 => {
                let holder = &mut self.holders[index];
                if let Some(offer) = holder.offers.pop_front() {
                    holder.rooms.offered(giver.osd, offer);
                }
            }
            45..70 => {
                let holder = &mut self.holders[index];
                let is_enough = holder.rooms.at(giver.osd, WRITE) == Room::Enough;
                if holder.is_active && is_enough {
                    holder.rooms.take(giver.osd, WRITE);
                    holder.writes += 1;
                }
            }
            70..80 => {
                let count = u64::from(self.random.below(3)).min(self.holders[index].writes);
                self.holders[index].writes -= count;
                self.store(count * WRITE);
            }
            80..85 if self.giver.here(self.now, self.space(), WRITE) == Room::Enough => {
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
                holder.rooms = settled();
                self.giver.is_in_run(self.now, holder.member);
            }
            98 if self.random.below(6) == 0 => {
                // The giver's process dies, and forgets; its own writes reached its journal.
                let own = std::mem::take(&mut self.own);
                self.store(own * WRITE);
                (0..3).for_each(|index| self.break_epoch(index));
                self.giver = Rooms::new(self.now);
                self.giver_run += 1;
                // Nothing is begun without a lease of the new run, and so a connection to it.
                let giver = member(9, self.giver_run);
                self.holders.iter_mut().for_each(|holder| holder.rooms.opened(giver));
            }
            _ => {}
        }
    }
}

#[test]
fn whatever_is_lost_or_forgotten_what_was_begun_fits() {
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
        // In the end somebody who asks gets room, as long as there is any.
        (0..3).for_each(|index| run.break_epoch(index));
        (0..3).for_each(|index| run.peer(index));
        run.used = run.size - 2 * WRITE;
        run.own = 0;
        run.giver.end_own(run.giver.own_bytes);
        let to = member(9, run.giver_run);
        let space = run.space();
        let mut is_served = false;
        for _ in 0..5 {
            run.now = run.now + Duration::from_secs(1);
            for holder in &mut run.holders {
                holder.rooms.opened(to);
                holder.rooms.at(to.osd, WRITE);
                let claim = holder.rooms.claim(to.osd, 0, true);
                let offer = run.giver.offer(run.now, holder.member, claim, run.now, space);
                holder.rooms.offered(to.osd, offer.unwrap());
                is_served |= holder.rooms.at(to.osd, WRITE) == Room::Enough;
            }
        }
        assert!(is_served, "seed {seed}: there is room, and nobody may use it");
    }
    assert!(begun > 20_000, "{begun} writes say little");
}
