//! Tests of each row of the table, and of the invariants under random events.

use base::{Epoch, MapRevision, PgId, PoolId, Scheme};

use super::*;

mod script;

fn osd(number: u32) -> OsdId {
    OsdId::new(number).unwrap()
}

fn member(number: u32, run: u64) -> Member {
    Member { osd: osd(number), incarnation: Incarnation::new(run) }
}

/// Returns an entry with this many positions. The members take the first positions; the learners get the
/// empty positions, and after these the filled ones, from the last to the first.
fn entry(copies: usize, primary: u32, acting: &[Member], learners: &[Member]) -> PgEntry {
    let pg = PgId { pool: PoolId::FIRST, number: 0 };
    let mut entry = PgEntry::new(pg, acting.iter().copied()).led_by(osd(primary));
    (entry.epoch, entry.revision) = (Epoch::new(5), MapRevision::new(1));
    entry.positions.resize(copies, None);
    let all: Vec<Position> = Position::all().take(copies).collect();
    let (filled, empty) = all.split_at(acting.len());
    let positions = empty.iter().chain(filled.iter().rev());
    let learner =
        |(member, position): (&Member, &Position)| Learner { member: *member, position: *position };
    entry.learners = learners.iter().zip(positions).map(learner).collect();
    entry.check().expect("an entry that can be");
    entry
}

fn acting(entry: &PgEntry) -> Vec<Member> {
    entry.acting().copied().collect()
}

fn learning(entry: &PgEntry) -> Vec<Member> {
    entry.learning().copied().collect()
}

/// A pool of a few OSDs: all up in their first run, last heard from in event 10.
#[derive(Clone)]
struct Scene {
    scheme: Scheme,
    copies: usize,
    min_size: usize,
    targets: Vec<OsdId>,
    standings: BTreeMap<OsdId, Standing>,
    damaged: BTreeSet<OsdId>,
    complete: BTreeSet<Member>,
    returning: BTreeMap<Position, Member>,
    barred: BTreeMap<OsdId, u64>,
    links: Links,
    renew: bool,
}

impl Scene {
    fn new(osd_count: u32, targets: &[u32], min_size: usize) -> Scene {
        let standing = Standing {
            incarnation: Incarnation::new(1),
            up: true,
            suspect: false,
            heard: 10,
            noticed: 0,
            rests: false,
            disk: DiskStanding::default(),
        };
        Scene {
            scheme: Scheme::Copies { count: targets.len() as u8 },
            copies: targets.len(),
            min_size,
            targets: targets.iter().map(|number| osd(*number)).collect(),
            standings: (1..=osd_count).map(|number| (osd(number), standing)).collect(),
            damaged: BTreeSet::new(),
            complete: BTreeSet::new(),
            returning: BTreeMap::new(),
            barred: BTreeMap::new(),
            links: Links::default(),
            renew: false,
        }
    }

    /// Makes the pool one with parity, so that positions are roles.
    fn of_parity(mut self, parity: u8) -> Scene {
        self.scheme = Scheme::ReedSolomon { data: self.copies as u8 - parity, parity };
        self
    }

    fn with(mut self, number: u32, change: impl FnOnce(&mut Standing)) -> Scene {
        change(self.standings.get_mut(&osd(number)).unwrap());
        self
    }

    /// Marks an OSD down; the other OSDs have been heard from since.
    fn down(self, number: u32) -> Scene {
        self.with(number, |standing| {
            (standing.up, standing.heard, standing.noticed) = (false, 0, 9)
        })
    }

    /// Makes an OSD's disk hang; the other OSDs have been heard from since.
    fn stalled(self, number: u32) -> Scene {
        self.with(number, |standing| {
            standing.noticed = 9;
            standing.disk.stalled = true;
            standing.disk.since = Time::from_nanos(100);
        })
    }

    /// An OSD met damage in its records of the pool.
    fn damaged(mut self, number: u32) -> Scene {
        self.damaged.insert(osd(number));
        self.with(number, |standing| standing.noticed = 9)
    }

    /// Breaks the links from an OSD to these others; the monitor still hears from all of them.
    fn cut(mut self, from: u32, to: &[u32]) -> Scene {
        self.links.broken.extend(to.iter().map(|to| ((osd(from), osd(*to)), 9)));
        self
    }

    /// Makes the first OSD report that it cannot reach the second.
    fn doubt(mut self, from: u32, to: u32) -> Scene {
        self.links.doubted.insert((osd(from), osd(to)));
        self
    }

    fn complete(mut self, member: Member) -> Scene {
        self.complete.insert(member);
        self
    }

    fn next(&self, entry: &PgEntry) -> Option<PgEntry> {
        next_entry(
            entry,
            Given {
                called_back: BTreeSet::new(),
                scheme: self.scheme,
                min_size: self.min_size,
                targets: &self.targets,
                standings: &self.standings,
                damaged: self.damaged.clone(),
                complete: self.complete.clone(),
                returning: self.returning.clone(),
                barred: self.barred.clone(),
                links: &self.links,
                renew: self.renew,
            },
        )
    }
}

/// Checks the next entry, in which all members must be in their first run.
fn assert_next(scene: &Scene, before: &PgEntry, primary: u32, acting: &[u32], learners: &[u32]) {
    let next = scene.next(before).expect("there is a next entry");
    let (is_acting, is_learning) = (next.acting(), next.learning());
    let is_acting: Vec<u32> = is_acting.map(|member| member.osd.get()).collect();
    let is_learning: Vec<u32> = is_learning.map(|member| member.osd.get()).collect();
    assert_eq!((&is_acting[..], &is_learning[..]), (acting, learners));
    assert_eq!((next.primary_osd(), next.epoch), (Some(osd(primary)), before.epoch.next()));
    next.check().expect("it can be");
}

#[test]
fn where_all_is_as_planned_nothing_changes() {
    let scene = Scene::new(4, &[1, 2, 3], 2);
    let rest = entry(3, 1, &[member(3, 1), member(1, 1), member(2, 1)], &[]);
    assert_eq!(scene.next(&rest), None);
    let other = rest.led_by(osd(2));
    assert_next(&scene, &other, 1, &[3, 1, 2], &[]);
    assert_next(&scene.down(2), &other, 1, &[3, 1], &[]);
}

#[test]
fn an_osd_that_rests_is_taken_in_only_where_it_is_needed() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let restarted = |standing: &mut Standing| {
        (standing.incarnation, standing.rests) = (Incarnation::new(2), true);
        standing.noticed = 9;
    };
    let scene = Scene::new(4, &[1, 2, 3], 2).with(1, restarted);
    assert_next(&scene, &entry(3, 1, &all, &[]), 2, &[2, 3], &[]);
    let unheard = scene.clone().with(3, |s| s.heard = 8);
    let next = unheard.next(&entry(3, 1, &all, &[])).unwrap();
    assert_eq!(acting(&next), [member(1, 2), all[1], all[2]]);
    // The OSD does not become a learner before its rest is over, if the others suffice.
    assert_eq!(scene.next(&entry(3, 2, &all[1..], &[])), None);
    assert_next(&scene, &entry(3, 2, &all[1..2], &[]), 2, &[2], &[1, 3]);
    let over = scene.clone().with(1, |standing| standing.rests = false);
    assert_eq!(learning(&over.next(&entry(3, 2, &all[1..], &[])).unwrap()), [member(1, 2)]);
    // A member whose run is already in the entry is not removed.
    assert_eq!(
        scene.next(&entry(3, 2, &[all[1], all[2], member(1, 2)], &[])).unwrap().acting_count(),
        3
    );
    let learns = entry(3, 2, &all[1..], &[member(1, 2)]);
    assert_eq!(scene.next(&learns), None);
    assert_eq!(scene.clone().complete(member(1, 2)).next(&learns).unwrap().acting_count(), 3);
    // Without the OSD, too few members would be left: it remains a member, or becomes a learner.
    let needed = scene.clone().down(2);
    let next = needed.next(&entry(3, 1, &all, &[])).unwrap();
    assert_eq!(acting(&next), [member(1, 2), member(2, 1), member(3, 1)]);
    let few = Scene::new(3, &[1, 2, 3], 3).with(1, restarted);
    assert_eq!(learning(&few.next(&entry(3, 2, &all[1..], &[])).unwrap()), [member(1, 2)]);
    let alone = Scene::new(1, &[1], 1).with(1, restarted);
    assert_eq!(acting(&alone.next(&entry(1, 1, &all[..1], &[])).unwrap()), [member(1, 2)]);
}

#[test]
fn a_primary_that_reaches_too_few_leaves_the_lead_to_one_that_reaches_enough() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let rest = entry(3, 1, &all, &[]);
    let scene = Scene::new(3, &[1, 2, 3], 2);
    let cut = scene.clone().cut(1, &[2, 3]);
    assert_next(&cut, &rest, 2, &[2, 3], &[]);
    // The OSD that was cut off does not become a learner while it reports that it cannot reach the primary.
    assert_eq!(cut.next(&entry(3, 2, &all[1..], &[])), None);
    assert_next(&scene, &entry(3, 2, &all[1..], &[]), 2, &[2, 3], &[1]);
    // Nothing changes until the remaining members have been heard from.
    assert_eq!(cut.clone().with(3, |s| s.heard = 8).next(&rest), None);
    // Reports of the same links from the other side change nothing.
    assert_next(&cut.clone().cut(2, &[1]).cut(3, &[1]), &rest, 2, &[2, 3], &[]);
    // If the primary can reach enough members, or no other member can reach more, it remains primary.
    assert_next(&scene.clone().cut(1, &[2]), &rest, 1, &[1, 3], &[]);
    assert_eq!(cut.clone().cut(3, &[2]).next(&rest), None, "2 and 3 are parted, too");
    let two = entry(3, 1, &all[..2], &[]);
    assert_eq!(Scene::new(2, &[1, 2], 2).cut(1, &[2]).next(&two), None);
    assert_next(&Scene::new(2, &[1, 2], 1).cut(1, &[2]), &two, 1, &[1], &[]);
    let mut failed = cut;
    failed.barred.insert(osd(3), 9);
    assert_eq!(failed.next(&rest), None, "3 failed");
}

#[test]
fn nobody_leaves_for_a_broken_link_while_the_primary_may_be_the_one_that_is_cut_off() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let rest = entry(3, 1, &all, &[]);
    let scene = Scene::new(3, &[1, 2, 3], 2).cut(1, &[2]);
    assert_eq!(scene.clone().doubt(1, 3).next(&rest), None);
    assert_next(&scene.clone().doubt(3, 1), &rest, 1, &[1, 3], &[]);
    assert_next(&scene.clone().cut(1, &[3]).doubt(1, 3), &rest, 2, &[2, 3], &[]);
    // A member that may not be able to reach more members does not become primary.
    let both = scene.cut(1, &[3]);
    assert_eq!(both.clone().doubt(2, 3).next(&rest), None);
    let four = [all[0], all[1], all[2], member(4, 1)];
    let wide = Scene::new(4, &[1, 2, 3, 4], 3).cut(1, &[2, 3]);
    assert_next(&wide, &entry(4, 1, &four, &[]), 4, &[1, 2, 3, 4], &[]);
    assert_eq!(wide.next(&entry(4, 4, &four, &[])), None, "the plan's first does not lead yet");
    assert_next(&wide.doubt(4, 2), &entry(4, 1, &four, &[]), 3, &[2, 3, 4], &[]);
}

#[test]
fn an_epoch_that_is_asked_for_has_the_same_members() {
    let mut scene = Scene::new(3, &[1, 2, 3], 2);
    scene.renew = true;
    let rest = entry(3, 1, &[member(1, 1), member(2, 1), member(3, 1)], &[]);
    assert_next(&scene, &rest, 1, &[1, 2, 3], &[]);
}

#[test]
fn a_new_run_of_a_member_is_a_new_epoch_with_the_same_set() {
    let scene = Scene::new(3, &[1, 2, 3], 2).with(2, |s| s.incarnation = Incarnation::new(2));
    let rest = entry(3, 1, &[member(1, 1), member(2, 1), member(3, 1)], &[]);
    let next = scene.next(&rest).unwrap();
    assert_eq!(acting(&next), [member(1, 1), member(2, 2), member(3, 1)]);
    assert_eq!(scene.next(&next), None);
}

#[test]
fn a_lost_member_goes_when_the_others_were_heard_since() {
    let rest = entry(3, 1, &[member(1, 1), member(2, 1), member(3, 1)], &[]);
    let scene = Scene::new(3, &[1, 2, 3], 2).down(2);
    assert_next(&scene, &rest, 1, &[1, 3], &[]);
    assert_eq!(scene.clone().with(3, |s| s.heard = 8).next(&rest), None, "3 may be gone, too");
    assert_eq!(scene.clone().with(3, |s| s.heard = 0).next(&rest), None, "3 is not connected");
    let mut scene = Scene::new(3, &[1, 2, 3], 2);
    scene.barred.insert(osd(2), 9);
    assert_next(&scene, &rest, 1, &[1, 3], &[]);
    scene.barred.insert(osd(2), 11);
    assert_eq!(scene.next(&rest), None);
    let suspect = Scene::new(3, &[1, 2, 3], 2).with(2, |s| {
        (s.incarnation, s.suspect, s.noticed) = (Incarnation::new(2), true, 9);
    });
    assert_next(&suspect, &rest, 1, &[1, 3], &[2]);
    assert_eq!(suspect.with(3, |s| s.heard = 8).next(&rest), None, "nor is it taken in");
}

#[test]
fn a_run_that_may_have_lost_data_is_taken_in_only_where_all_may_have() {
    let damaged = |s: &mut Standing| (s.incarnation, s.suspect) = (Incarnation::new(2), true);
    let two = entry(2, 1, &[member(1, 1), member(2, 1)], &[]);
    let scene = Scene::new(2, &[1, 2], 2).with(2, damaged);
    assert_eq!(scene.next(&two), None, "1 is whole, and too few");
    let mut barred = Scene::new(2, &[1, 2], 1).with(2, damaged);
    barred.barred.insert(osd(1), 9);
    assert_eq!(barred.next(&two), None, "1 is whole, and barred");
    assert_eq!(
        scene.clone().down(1).next(&two).unwrap().positions,
        two.positions,
        "1 may come back"
    );
    let all = scene.with(1, damaged).next(&two).unwrap();
    assert_eq!(acting(&all), [member(1, 2), member(2, 2)]);
}

#[test]
fn nobody_goes_below_the_minimum_and_one_that_is_up_leads() {
    let rest = entry(3, 1, &[member(1, 1), member(2, 1), member(3, 1)], &[]);
    let scene = Scene::new(3, &[1, 2, 3], 2).down(1).down(3);
    assert_next(&scene, &rest, 2, &[1, 2, 3], &[]);
    let all_down = scene.down(2);
    assert_eq!(all_down.next(&rest), None, "nobody speaks for it, and no epoch is spent on that");
    let two = entry(2, 1, &[member(1, 1), member(2, 1)], &[]);
    assert_next(&Scene::new(2, &[1, 2], 1).down(1), &two, 2, &[2], &[]);
    let one = entry(2, 2, &[member(2, 1)], &[]);
    assert_eq!(Scene::new(2, &[1, 2], 1).down(1).down(2).next(&one), None);
}

#[test]
fn a_learner_gets_in_by_a_report_of_its_run_alone() {
    let filling = entry(2, 1, &[member(1, 1)], &[member(2, 1)]);
    let scene = Scene::new(2, &[2, 1], 1);
    assert_eq!(scene.next(&filling), None);
    assert_next(&scene.clone().complete(member(2, 1)), &filling, 2, &[1, 2], &[]);
    assert_eq!(scene.clone().complete(member(2, 2)).next(&filling), None);
    let restarted = scene.complete(member(2, 1)).with(2, |s| s.incarnation = Incarnation::new(2));
    let next = restarted.next(&filling).unwrap();
    assert_eq!((acting(&next), learning(&next)), (vec![member(1, 1)], vec![member(2, 2)]));
}

#[test]
fn a_complete_learner_joins_and_lost_members_leave_in_one_change() {
    let filling = entry(3, 1, &[member(1, 1), member(2, 1)], &[member(3, 1)]);
    let scene = Scene::new(3, &[1, 2, 3], 2).down(2);
    assert_eq!(scene.next(&filling), None);
    assert_next(&scene.complete(member(3, 1)), &filling, 1, &[1, 3], &[]);
}

/// Returns each learner's OSD and position.
fn roles(entry: &PgEntry) -> Vec<(u32, u8)> {
    entry.learners.iter().map(|it| (it.member.osd.get(), it.position.get())).collect()
}

#[test]
fn where_positions_are_roles_a_learner_gets_the_one_it_was_filled_for() {
    let all = [1, 2, 3, 4].map(|number| member(number, 1));
    // OSD 4 is not in the plan, so OSD 5 learns for its position. Meanwhile OSD 1 is lost.
    let scene = Scene::new(6, &[1, 2, 3, 5], 3).of_parity(2);
    let filling = scene.next(&entry(4, 1, &all, &[])).unwrap();
    assert_eq!(roles(&filling), [(5, 3)]);
    let lost = scene.clone().down(1);
    let gone = lost.next(&filling).unwrap();
    assert_eq!((gone.member_at(Position::FIRST), roles(&gone)), (None, vec![(5, 3)]));
    let complete = lost.complete(member(5, 1));
    let next = complete.next(&filling).unwrap();
    assert_eq!(next.positions, [None, Some(all[1]), Some(all[2]), Some(member(5, 1))]);
    // In a pool with copies, OSD 5 would have taken the position of the lost member.
    let copies = Scene { scheme: Scheme::Copies { count: 4 }, ..complete };
    let next = copies.next(&filling).unwrap();
    assert_eq!(next.member_at(Position::FIRST), Some(member(5, 1)));
    // The OSD that replaces the lost member learns at the same time.
    let replanned = Scene::new(6, &[2, 3, 5, 6], 3).of_parity(2);
    let replanned = replanned.down(1);
    assert_eq!(roles(&replanned.next(&gone).unwrap()), [(5, 3), (6, 0)]);
}

#[test]
fn where_positions_are_roles_complete_learners_of_lost_positions_replace_them_in_one_change() {
    let all = [1, 2, 3, 4].map(|number| member(number, 1));
    let scene = Scene::new(6, &[1, 2, 5, 6], 3).of_parity(2).down(3).down(4);
    let filling = scene.next(&entry(4, 1, &all, &[])).unwrap();
    assert_eq!((filling.acting_count(), roles(&filling)), (4, vec![(5, 2), (6, 3)]));
    let next = scene.complete(member(6, 1)).next(&filling).unwrap();
    let positions = [Some(all[0]), Some(all[1]), None, Some(member(6, 1))];
    assert_eq!((&next.positions[..], roles(&next)), (&positions[..], vec![(5, 2)]));
}

#[test]
fn more_parity_gives_an_entry_more_positions() {
    let all = [1, 2, 3].map(|number| member(number, 1));
    let scene = Scene::new(4, &[1, 2, 3, 4], 2).of_parity(2);
    let before = entry(3, 1, &all, &[]);
    let next = scene.next(&before).unwrap();
    assert_eq!(next.positions[..3], before.positions);
    assert_eq!((next.positions.len(), roles(&next)), (4, vec![(4, 3)]));
    let done = scene.clone().complete(member(4, 1)).next(&next).unwrap();
    assert_eq!((done.acting_count(), scene.next(&done)), (4, None));
}

#[test]
fn one_with_data_leads_where_there_is_one() {
    let all = [2, 3, 1].map(|number| member(number, 1));
    let scene = Scene::new(3, &[1, 3, 2], 2).of_parity(1);
    assert_next(&scene, &entry(3, 1, &all, &[]), 3, &[2, 3, 1], &[]);
    // If the plan has a new first OSD, that OSD learns for a position with data.
    let scene = Scene::new(5, &[5, 4, 1], 2).of_parity(1);
    assert_eq!(roles(&scene.next(&entry(3, 2, &all[..1], &[])).unwrap()), [(5, 1), (4, 2)]);
}

#[test]
fn a_complete_learner_waits_until_lost_members_leave_in_one_change() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let scene = Scene::new(5, &[1, 4, 5], 3).down(2).down(3);
    let rest = entry(3, 1, &all, &[]);
    assert_next(&scene, &rest, 1, &[1, 2, 3], &[4, 5]);
    let filling = scene.next(&rest).unwrap();
    let positions: Vec<u8> = filling.learners.iter().map(|it| it.position.get()).collect();
    assert_eq!(positions, [1, 2]);
    let one = scene.complete(member(5, 1));
    assert_eq!(one.next(&filling), None, "with one of them they are too few");
    let both = one.complete(member(4, 1));
    assert_next(&both, &filling, 1, &[1, 4, 5], &[]);
    assert_eq!(both.clone().with(1, |s| s.heard = 8).next(&filling), None, "1 was not heard");
}

#[test]
fn members_stay_at_their_positions() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let scene = Scene::new(4, &[1, 3, 4], 2);
    let degraded = scene.clone().down(2).next(&entry(3, 1, &all, &[])).unwrap();
    assert_eq!(degraded.positions, [Some(all[0]), None, Some(all[2])]);
    let new = Learner { member: member(4, 1), position: Position::new(1).unwrap() };
    assert_eq!(degraded.learners, [new]);
    let filled = scene.clone().down(2).complete(member(4, 1)).next(&degraded).unwrap();
    assert_eq!(filled.positions, [Some(all[0]), Some(member(4, 1)), Some(all[2])]);
    // If all members are sound, a learner is filled for the member that is not in the plan.
    let moves = scene.next(&entry(3, 1, &all, &[])).unwrap();
    assert_eq!((&moves.learners[..], &acting(&moves)[..]), (&[new][..], &all[..]));
    // When another member is lost meanwhile, the learner is filled for that member's position first.
    let lost = scene.clone().down(3).next(&moves).unwrap();
    let again = Learner { position: Position::new(2).unwrap(), ..new };
    assert_eq!((lost.learners, acting(&moves)), (vec![again], all.to_vec()));
    let complete = scene.down(3).complete(member(4, 1)).next(&moves).unwrap();
    assert_eq!(complete.positions, [Some(all[0]), Some(all[1]), Some(member(4, 1))]);
}

#[test]
fn a_learner_for_the_position_of_a_member_that_is_well_waits_while_another_one_is_not() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let scene = Scene::new(4, &[1, 3, 4], 3).complete(member(4, 1));
    let moves = entry(3, 1, &all, &[member(4, 1)]);
    assert_next(&scene, &moves, 1, &[1, 4, 3], &[]);
    let stalled = scene.clone().stalled(1).stalled(3);
    assert_eq!(stalled.next(&moves), None);
}

#[test]
fn copies_move_one_by_one_and_their_number_never_falls() {
    let mut now = entry(3, 1, &[member(1, 1), member(2, 1), member(3, 1)], &[]);
    let mut scene = Scene::new(6, &[4, 5, 6], 2);
    let mut steps = 0;
    while let Some(next) = scene.next(&now) {
        assert_eq!(next.acting_count(), 3);
        assert!(next.learners.len() <= 1);
        scene.complete = next.learning().copied().collect();
        now = next;
        steps += 1;
    }
    assert_eq!(steps, 4);
    let acting: BTreeSet<u32> = now.acting().map(|member| member.osd.get()).collect();
    assert_eq!((acting, now.primary_osd()), ([4, 5, 6].into(), Some(osd(4))));
}

#[test]
fn a_member_whose_disk_hangs_goes_where_others_are_enough() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let scene = Scene::new(3, &[1, 2, 3], 2);
    for (hangs, primary) in [(1, 2), (3, 1)] {
        let next = scene.clone().stalled(hangs).next(&entry(3, 1, &all, &[])).unwrap();
        let rest: Vec<Member> = all.iter().copied().filter(|m| m.osd != osd(hangs)).collect();
        assert_eq!((next.primary_osd(), acting(&next)), (Some(osd(primary)), rest));
        assert!(next.learners.is_empty());
    }
    // The OSD does not become a learner as long as its disk hangs.
    assert_eq!(scene.clone().stalled(3).next(&entry(3, 1, &all[..2], &[])), None);
    let back = scene.next(&entry(3, 1, &all[..2], &[])).unwrap();
    assert_eq!(learning(&back), [member(3, 1)]);
    // A learner whose disk hangs is removed as well, and a complete one does not become a member.
    let next = scene.clone().stalled(3).next(&entry(3, 1, &all[..2], &all[2..])).unwrap();
    assert_eq!((&acting(&next)[..], &next.learners[..]), (&all[..2], &[][..]));
    let mut complete = Scene::new(3, &[1, 3], 2).stalled(3);
    complete.complete.insert(member(3, 1));
    let one_is_filled = entry(3, 1, &all[..1], &all[2..]);
    assert_eq!(complete.next(&one_is_filled), None, "too few others: the entry stays");
}

#[test]
fn a_member_with_damaged_records_goes_where_others_are_enough_and_comes_back_without() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let scene = Scene::new(3, &[1, 2, 3], 2);
    let next = scene.clone().damaged(1).next(&entry(3, 1, &all, &[])).unwrap();
    assert_eq!((next.primary_osd(), &acting(&next)[..]), (Some(osd(2)), &all[1..]));
    assert!(next.learners.is_empty());
    assert_eq!(
        scene.clone().damaged(1).next(&next),
        None,
        "it is no learner as long as they are there"
    );
    assert_eq!(learning(&scene.next(&next).unwrap()), [member(1, 1)]);
    // Where too few others are there, it stays, and another one leads, which can read everything.
    let two = Scene::new(3, &[1, 2], 2).damaged(1);
    let next = two.next(&entry(2, 1, &all[..2], &[])).unwrap();
    assert_eq!((next.primary_osd(), &acting(&next)[..]), (Some(osd(2)), &all[..2]));
    assert_eq!(two.next(&next), None);
    assert_eq!(two.damaged(2).next(&next), None, "nobody can");
    let alone = Scene::new(3, &[1], 1).damaged(1);
    assert_eq!(alone.next(&entry(2, 1, &all[..1], &[])), None, "it serves what it can read");
}

#[test]
fn where_too_few_disks_answer_no_epoch_begins() {
    let all = [member(1, 1), member(2, 1), member(3, 1)];
    let now = entry(3, 1, &all, &[]);
    let scene = Scene::new(3, &[1, 2, 3], 2);
    assert_eq!(scene.clone().stalled(1).stalled(2).next(&now), None);
    assert_eq!(scene.clone().stalled(1).stalled(2).stalled(3).next(&now), None);
    // A member that is down is not removed either, because the member whose disk hangs does not count.
    let one_left = scene.clone().stalled(1).down(3);
    assert_eq!(one_left.next(&now), None);
    // The others must have been heard from since.
    let unheard = scene.clone().stalled(1).with(2, |standing| standing.heard = 5);
    assert_eq!(unheard.next(&now), None);
    // Reports that arrive together are evaluated together, even if one is of a disk that responds again.
    let new = scene.clone().stalled(1).with(2, |standing| standing.disk.is_new = true);
    assert_eq!(new.next(&now), None);
    // A disk that has not finished an earlier operation may hang too.
    let began = |at| Some(Time::from_nanos(at));
    let late = scene.clone().stalled(1).with(2, |standing| standing.disk.oldest = began(99));
    assert_eq!(late.next(&now), None);
    let busy = scene.stalled(1).with(2, |standing| standing.disk.oldest = began(100));
    assert_eq!(acting(&busy.next(&now).unwrap()), all[1..]);
}

/// A model of which members have every acknowledged write.
struct World {
    scene: Scene,
    entry: PgEntry,
    event: u64,
    /// OSDs that have every acknowledged write.
    whole: BTreeSet<OsdId>,
    /// OSDs whose stores have lost acknowledged writes and have not been refilled since.
    damaged: BTreeSet<OsdId>,
    random: u64,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn is_there(&self, member: &Member) -> bool {
        let standing = self.scene.standings[&member.osd];
        standing.up && standing.incarnation == member.incarnation
    }

    /// Makes a random event happen.
    fn disturb(&mut self) {
        self.event += 1;
        let count = self.scene.standings.len() as u64;
        let id = osd(self.draw(count) as u32 + 1);
        let (kind, event) = (self.draw(18), self.event);
        let is_damaged = self.draw(8) == 0 || self.damaged.contains(&id);
        let standing = self.scene.standings.get_mut(&id).unwrap();
        match kind {
            0 | 1 => (standing.up, standing.heard, standing.noticed) = (false, 0, event),
            2..=4 if !standing.up => {
                standing.up = true;
                if kind < 4 {
                    standing.incarnation = standing.incarnation.next();
                    standing.rests = event % 4 == 0;
                    standing.suspect = is_damaged;
                    if is_damaged {
                        standing.noticed = event;
                        self.whole.remove(&id);
                        self.damaged.insert(id);
                    }
                }
            }
            5 | 6 if standing.up => standing.heard = event,
            7 => {
                self.scene.barred.insert(id, event);
            }
            8 => {
                self.scene.barred.remove(&id);
            }
            9 => self.replan(),
            10 => self.scene.renew = !self.scene.renew,
            11 | 12 => {
                let other = osd(self.draw(count) as u32 + 1);
                if other != id {
                    self.scene.links.broken.insert((id, other), event);
                }
            }
            15 if !standing.disk.stalled => {
                standing.noticed = event;
                standing.disk.stalled = true;
                standing.disk.since = Time::from_nanos(event);
                standing.disk.is_new = event % 2 == 0;
            }
            16 => (standing.disk.stalled, standing.disk.is_new) = (false, event % 4 == 0),
            17 => {
                standing.disk.oldest = (event % 2 == 0).then(|| Time::from_nanos(event - 5));
                standing.disk.is_new = false;
            }
            13 => self.scene.links.broken.retain(|(from, to), _| *from != id && *to != id),
            _ => self.serve(),
        }
    }

    fn replan(&mut self) {
        let count = self.scene.standings.len() as u64;
        let mut numbers: Vec<u32> = (1..=count as u32).collect();
        for place in 0..numbers.len() {
            let other = place + self.draw((numbers.len() - place) as u64) as usize;
            numbers.swap(place, other);
        }
        self.scene.targets = numbers[..self.scene.copies].iter().map(|n| osd(*n)).collect();
    }

    /// Acknowledges writes if all acting members are present and undamaged; a learner may be filled.
    fn serve(&mut self) {
        let is_good =
            |member: &Member| self.is_there(member) && !self.damaged.contains(&member.osd);
        let primary = self.entry.primary_osd().expect("somebody leads");
        let reaches = |member: &Member| !self.scene.links.is_broken(primary, member.osd);
        // Learners that were reported complete are bound: no write is acknowledged without them.
        let bound = self.entry.learning().filter(|member| self.scene.complete.contains(member));
        let needed: Vec<Member> = self.entry.acting().chain(bound).copied().collect();
        if !needed.iter().all(|member| is_good(member) && reaches(member)) {
            return;
        }
        let needed: BTreeSet<OsdId> = needed.iter().map(|member| member.osd).collect();
        assert!(needed.is_subset(&self.whole), "{:?}", self.entry);
        self.whole = needed;
        for learner in learning(&self.entry) {
            if self.is_there(&learner) && self.draw(2) == 0 {
                self.whole.insert(learner.osd);
                self.damaged.remove(&learner.osd);
                self.scene.complete.insert(learner);
            }
        }
    }

    /// Makes the monitor compute the next entry.
    fn step(&mut self) {
        let before = self.entry.clone();
        let Some(next) = self.scene.next(&before) else { return };
        assert_eq!(next.epoch, before.epoch.next());
        next.check().expect("it can be");
        assert_eq!(next.positions.len(), self.scene.copies);
        let is_role = !self.scene.scheme.is_whole_everywhere();
        let ids = |entry: &PgEntry| -> BTreeSet<OsdId> { entry.acting().map(|m| m.osd).collect() };
        let (was, is) = (ids(&before), ids(&next));
        for osd in was.intersection(&is) {
            assert_eq!(before.position_of(*osd), next.position_of(*osd), "{before:?} {next:?}");
        }
        for member in next.acting().filter(|member| !was.contains(&member.osd)) {
            assert!(before.learning().any(|it| it == member), "it was a learner: {member:?}");
            assert!(self.scene.complete.contains(member), "it was reported: {member:?}");
            assert!(self.is_there(member));
            let learned = before.learner(member.osd).map(|learner| learner.position);
            assert!(!is_role || learned == next.position_of(member.osd), "{before:?} {next:?}");
        }
        for learner in next.learners.iter().filter(|_| is_role) {
            let known = before.learner(learner.member.osd).map(|known| known.position);
            let holder = known.and_then(|position| next.member_at(position));
            let is_needed = known.is_some()
                && holder.is_none_or(|member| !self.scene.targets.contains(&member.osd));
            assert!(!is_needed || known == Some(learner.position), "{before:?} {next:?}");
        }
        if was.difference(&is).next().is_some() {
            assert!(is.len() >= self.scene.min_size, "{before:?} {next:?}");
            assert!(next.acting().all(|member| self.is_there(member)));
            let hangs = |member: &&Member| self.scene.standings[&member.osd].disk.stalled;
            let answering = next.acting_count() - next.acting().filter(hangs).count();
            assert!(answering >= self.scene.min_size, "{before:?} {next:?}");
            let heard = |member: &Member| {
                let standing = self.scene.standings[&member.osd];
                standing.heard > 0 || standing.disk.stalled
            };
            assert!(next.acting().all(heard));
        }
        assert!(next.learning().all(|member| self.is_there(member)));
        let enough = self.scene.scheme.data_count() as usize;
        let has_whole = |entry: &PgEntry| {
            entry.acting().filter(|m| self.whole.contains(&m.osd)).count() >= enough
        };
        assert!(!has_whole(&before) || has_whole(&next), "{before:?} {next:?}");
        let primary = next.primary_osd().expect("somebody leads");
        assert!(is.contains(&primary));
        let has_up = next.acting().any(|m| self.scene.standings[&m.osd].up);
        assert!(!has_up || self.scene.standings[&primary].up, "{next:?}");
        self.entry = next;
        self.scene.complete.clear();
    }
}

impl World {
    /// Checks that the entry stops changing if there are no further events.
    fn comes_to_rest(&mut self) {
        let renew = std::mem::take(&mut self.scene.renew);
        for _ in 0..20 {
            self.step();
        }
        assert_eq!(self.scene.next(&self.entry), None, "{:?}", self.scene.links);
        self.scene.renew = renew;
    }
}

#[test]
fn whatever_comes_what_was_acknowledged_stays_among_the_members() {
    for seed in base::seeds(1..=3_000) {
        let scheme = match seed % 8 {
            0..4 => Scheme::Copies { count: (seed % 4 + 1) as u8 },
            4 => Scheme::Xor { data: 2 },
            5 => Scheme::ReedSolomon { data: 2, parity: 2 },
            6 => Scheme::ReedSolomon { data: 4, parity: 2 },
            _ => Scheme::ReedSolomon { data: 3, parity: 1 },
        };
        let copies = scheme.position_count();
        let targets: Vec<u32> = (1..=copies).collect();
        let scene = Scene::new(copies + 2, &targets, scheme.min_size_default() as usize);
        let scene = Scene { scheme, ..scene };
        let acting: Vec<Member> = targets.iter().map(|number| member(*number, 1)).collect();
        let mut world = World {
            whole: acting.iter().map(|member| member.osd).collect(),
            entry: entry(copies as usize, 1, &acting, &[]),
            scene,
            damaged: BTreeSet::new(),
            event: 10,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        for _ in 0..60 {
            world.disturb();
            world.scene.renew &= world.draw(4) == 0;
            world.step();
            world.comes_to_rest();
        }
        // All OSDs return, and lost data is given up: the final entry is as planned.
        world.whole = world.scene.standings.keys().copied().collect();
        world.scene.renew = false;
        world.scene.barred.clear();
        world.scene.links = Links::default();
        world.event += 1;
        for standing in world.scene.standings.values_mut() {
            (standing.up, standing.suspect, standing.heard) = (true, false, world.event);
            standing.rests = false;
            standing.disk = DiskStanding::default();
        }
        for _ in 0..30 {
            world.step();
            world.scene.complete = world.entry.learning().copied().collect();
        }
        assert_eq!(world.scene.next(&world.entry), None, "seed {seed}");
        let acting: BTreeSet<OsdId> = world.entry.acting().map(|m| m.osd).collect();
        assert_eq!(acting, world.scene.targets.iter().copied().collect(), "seed {seed}");
        let leads = world.entry.primary.expect("everybody is up");
        let (first, leader) = (world.scene.targets[0], world.entry.primary_osd());
        let first_has_data = world.entry.position_of(first).is_some_and(|at| scheme.has_data(at));
        assert!(scheme.has_data(leads), "seed {seed}");
        assert!(leader == Some(first) || !first_has_data, "seed {seed}");
    }
}

#[test]
fn a_learner_gets_back_the_position_that_it_had() {
    // OSD 5 was filled in the place of OSD 2 while others were lost, and the PG was not active since.
    let mut scene = Scene::new(5, &[1, 2, 3, 4], 3).of_parity(2);
    let mut entry = entry(4, 1, &[1, 5, 3, 4].map(|it| member(it, 1)), &[]);
    let member = member(2, 1);
    let position = Position::new(3).unwrap();
    entry.learners = vec![Learner { member, position }];
    let position = Position::new(1).unwrap();
    scene.returning.insert(position, member);
    let next = scene.next(&entry).expect("an entry");
    assert_eq!(next.member_at(position), Some(member));
    assert_eq!(next.position_of(osd(5)), None);
    // Not in another run.
    let scene = scene.with(2, |standing| standing.incarnation = Incarnation::new(2));
    let next = scene.next(&entry).expect("an entry");
    assert_eq!(next.position_of(osd(5)), Some(position));
}
