//! PGs with several copies: OSDs die, return, are added and taken out.

use std::collections::BTreeSet;

use base::{Duration, OsdId, Scheme};
use format::wire::{Member, PgEntry};
use serde_json::json;

use super::rig::{Mishap, Rig, osd_id};
use crate::message::{Command, Failure, Need, Unreachable};
use crate::records::OutBy;

fn osds<'a>(members: impl Iterator<Item = &'a Member>) -> BTreeSet<u32> {
    members.map(|member| member.osd.get()).collect()
}

fn code<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    result.unwrap_err().code
}

/// Checks that every PG is as planned: the plan's first OSD is primary, and members are in their newest runs.
fn assert_at_rest(rig: &Rig) {
    for (entry, targets) in rig.entries().iter().zip(rig.targets()) {
        let planned: BTreeSet<u32> = targets.iter().map(|osd| osd.get()).collect();
        assert_eq!(osds(entry.acting()), planned, "{entry:?}");
        assert_eq!(entry.learners, [], "{entry:?}");
        assert_eq!(entry.primary_osd(), Some(targets[0]), "{entry:?}");
        for member in entry.acting() {
            let run = rig.monitor.committed.osd(member.osd).unwrap().info.incarnation;
            assert_eq!(member.incarnation, run, "{entry:?}");
        }
    }
}

fn up(rig: &Rig, number: u32) -> bool {
    rig.monitor.committed.osd(osd_id(number)).unwrap().info.up
}

/// Returns the members and learners of each PG, without runs.
fn sets(rig: &Rig) -> Vec<(BTreeSet<u32>, BTreeSet<u32>)> {
    rig.entries().iter().map(|entry| (osds(entry.acting()), osds(entry.learning()))).collect()
}

#[test]
fn a_pool_of_copies_is_planned_and_balanced() {
    let rig = Rig::with_copies(4, 3, 2, 64);
    assert_at_rest(&rig);
    for number in 1..=4 {
        let entries = rig.entries();
        let holds = entries.iter().filter(|entry| osds(entry.acting()).contains(&number)).count();
        let leads =
            entries.iter().filter(|entry| entry.primary_osd() == Some(osd_id(number))).count();
        assert_eq!((holds, leads), (48, 16), "osd.{number}");
    }
}

#[test]
fn a_member_that_dies_leaves_and_comes_back_through_learning() {
    let mut rig = Rig::with_copies(3, 2, 1, 64);
    let before = rig.entries();
    rig.crash_osd(2);
    rig.advance(Duration::from_millis(299));
    assert_eq!(rig.entries(), before, "it may come back");
    rig.advance(Duration::from_millis(2));
    for (old, new) in before.iter().zip(rig.entries()) {
        if !osds(old.acting()).contains(&2) {
            assert_eq!(*old, new);
            continue;
        }
        assert_eq!(new.epoch, old.epoch.next(), "one epoch for one failure");
        assert_eq!((new.acting_count(), new.learners.len()), (1, 0));
        assert_eq!(new.primary_osd(), new.acting().next().map(|m| m.osd));
    }
    rig.boot(2);
    for (old, new) in before.iter().zip(rig.entries()) {
        if osds(old.acting()).contains(&2) {
            assert_eq!(osds(new.learning()), [2].into());
            assert_eq!(new.learners[0].member.incarnation.get(), 2);
            assert_ne!(new.primary_osd(), Some(osd_id(2)));
        }
    }
    rig.fill();
    assert_at_rest(&rig);
    for (old, new) in before.iter().zip(rig.entries()) {
        let epochs = new.epoch.get() - old.epoch.get();
        assert_eq!(epochs, if osds(old.acting()).contains(&2) { 3 } else { 0 });
    }
}

#[test]
fn a_member_that_restarts_within_the_grace_stays() {
    let mut rig = Rig::with_copies(3, 2, 1, 64);
    let before = rig.entries();
    rig.crash_osd(2);
    rig.boot(2);
    rig.advance(Duration::from_secs(5));
    for (old, new) in before.iter().zip(rig.entries()) {
        assert_eq!(osds(old.acting()), osds(new.acting()));
        assert_eq!(new.epoch.get() - old.epoch.get(), u32::from(osds(old.acting()).contains(&2)));
    }
    assert_at_rest(&rig);
}

#[test]
fn nobody_leaves_below_the_minimum_and_the_pg_goes_on_when_enough_are_back() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.crash_osd(2);
    rig.crash_osd(3);
    rig.advance(Duration::from_secs(5));
    for entry in rig.entries() {
        assert_eq!(osds(entry.acting()), [1, 2, 3].into());
        assert_eq!(entry.primary_osd(), Some(osd_id(1)), "one that is up speaks for it");
    }
    rig.boot(3);
    for entry in rig.entries() {
        assert_eq!((osds(entry.acting()), osds(entry.learning())), ([1, 3].into(), [].into()));
    }
    rig.boot(2);
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn a_second_failure_keeps_the_last_copy_in_its_place() {
    let mut rig = Rig::with_copies(2, 2, 1, 8);
    rig.kill_osd(1);
    rig.kill_osd(2);
    assert!(sets(&rig).iter().all(|(acting, _)| *acting == [2].into()));
    // Only the OSD that missed writes returns: the PGs do not continue from its older data.
    rig.boot(1);
    assert!(sets(&rig).iter().all(|(acting, _)| *acting == [2].into()));
    rig.boot(2);
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn a_learner_that_knew_none_of_the_lost_is_heard_before_they_leave_for_it() {
    let mut rig = Rig::with_copies(4, 3, 2, 1);
    let before = rig.entry(0);
    let (left, lost) = (osds(before.acting().take(1)), osds(before.acting().skip(1)));
    let spare = (1..=4).find(|number| !osds(before.acting()).contains(number)).unwrap();
    lost.iter().for_each(|number| rig.crash_osd(*number));
    rig.advance(Duration::from_secs(5));
    let osd = osd_id(*lost.first().unwrap());
    rig.command(Command::OsdOut { osd }).unwrap();
    let waiting = rig.entry(0);
    assert_eq!(
        (osds(waiting.acting()), osds(waiting.learning())),
        (osds(before.acting()), [spare].into())
    );
    rig.need(&waiting, Need::Complete(waiting.learners[0].member));
    let goes_on = rig.entry(0);
    assert_eq!(osds(goes_on.acting()), left.into_iter().chain([spare]).collect());
}

#[test]
fn nobody_leaves_before_the_others_were_heard() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.osds.get_mut(&osd_id(1)).unwrap().is_silent = true;
    rig.crash_osd(2);
    rig.advance(Duration::from_millis(400));
    assert!(!up(&rig, 2));
    assert!(sets(&rig).iter().all(|(acting, _)| acting.len() == 3), "osd.1 may be dead, too");
    rig.advance(Duration::from_millis(400));
    assert!(!up(&rig, 1), "it did not answer");
    assert!(sets(&rig).iter().all(|(acting, _)| acting.len() == 3), "two of three are gone");
    assert!(rig.entries().iter().all(|entry| entry.primary_osd() == Some(osd_id(3))));
    // The connection of osd.1 was closed, and the same run returns.
    rig.osds.get_mut(&osd_id(1)).unwrap().is_silent = false;
    rig.boot(1);
    assert!(sets(&rig).iter().all(|(acting, _)| *acting == [1, 3].into()));
}

#[test]
fn an_awaited_osd_is_down_at_once_when_a_peer_finds_nobody_there() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    rig.crash_osd(2);
    rig.unreachable(1, 2, Unreachable::Refused);
    assert!(!up(&rig, 2));
    assert!(sets(&rig).iter().all(|(acting, _)| !acting.contains(&2)));
    // The peer's report arrives before the monitor's own connection is reset.
    rig.unreachable(1, 3, Unreachable::Refused);
    assert!(up(&rig, 3), "it answers here");
    rig.crash_osd(3);
    rig.tick();
    assert!(!up(&rig, 3));
}

#[test]
fn a_cluster_that_starts_as_a_whole_keeps_its_members() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    let before = sets(&rig);
    (1..=3).for_each(|number| rig.crash_osd(number));
    rig.restart();
    rig.boot(1);
    // The peers of osd.1 have not started yet, and osd.1 reports that.
    rig.unreachable(1, 2, Unreachable::Refused);
    rig.unreachable(1, 3, Unreachable::Refused);
    rig.advance(Duration::from_millis(1500));
    rig.boot(2);
    assert_eq!(sets(&rig), before);
    // An OSD that does not connect is eventually marked down.
    rig.unreachable(1, 3, Unreachable::Refused);
    rig.advance(Duration::from_millis(600));
    rig.unreachable(1, 3, Unreachable::Refused);
    rig.tick();
    assert!(!up(&rig, 3));
    assert!(sets(&rig).iter().all(|(acting, _)| !acting.contains(&3)));
}

#[test]
fn a_process_that_hangs_is_down_within_three_seconds_and_comes_back_as_the_same_run() {
    for is_said in [false, true] {
        let mut rig = Rig::with_copies(3, 2, 1, 8);
        rig.osds.get_mut(&osd_id(2)).unwrap().is_silent = true;
        let mut waited = 0;
        while up(&rig, 2) {
            rig.advance(Duration::from_millis(100));
            waited += 100;
            if is_said && waited >= 1000 {
                rig.unreachable(1, 2, Unreachable::Silent);
            }
        }
        assert!(waited <= if is_said { 1800 } else { 2800 }, "{waited} ms");
        assert!(sets(&rig).iter().all(|(acting, _)| !acting.contains(&2)));
        rig.osds.get_mut(&osd_id(2)).unwrap().is_silent = false;
        rig.boot(2);
        assert_eq!(rig.osds[&osd_id(2)].incarnation.unwrap().get(), 1);
        rig.fill();
        assert_at_rest(&rig);
    }
}

#[test]
fn an_osd_that_leaves_is_down_without_grace_and_its_pgs_go_on() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    let connection = rig.osds[&osd_id(2)].connection.unwrap();
    let before = rig.now;
    rig.say(connection, &crate::message::ToMonitor::OsdLeaves);
    assert!(!up(&rig, 2));
    assert_eq!(rig.now, before);
    assert!(rig.entries().iter().all(|entry| !osds(entry.acting()).contains(&2)));
}

#[test]
fn reports_about_an_earlier_run_take_no_osd_down() {
    let mut rig = Rig::with_copies(3, 2, 1, 8);
    let connection = rig.osds[&osd_id(1)].connection.unwrap();
    rig.crash_osd(2);
    rig.boot(2);
    rig.crash_osd(2);
    let old = crate::message::ToMonitor::OsdUnreachable {
        osd: osd_id(2),
        incarnation: base::Incarnation::new(1),
        how: Unreachable::Refused,
    };
    rig.say(connection, &old);
    assert!(up(&rig, 2), "that was another run: this one has its grace");
}

#[test]
fn a_broken_link_parts_two_osds_where_one_leads_the_other_and_nowhere_else() {
    let mut rig = Rig::with_copies(3, 2, 1, 64);
    let before = rig.entries();
    let led = |entry: &PgEntry| {
        entry.primary_osd() == Some(osd_id(1)) && osds(entry.acting()).contains(&2)
    };
    assert!(before.iter().any(led));
    for _ in 0..2 {
        rig.unreachable(1, 2, Unreachable::Silent);
        assert_eq!(rig.entries(), before, "once is not enough");
        rig.advance(Duration::from_millis(500));
    }
    rig.unreachable(1, 2, Unreachable::Silent);
    assert!(up(&rig, 2));
    for (old, new) in before.iter().zip(rig.entries()) {
        if led(old) {
            assert_eq!((osds(new.acting()), osds(new.learning())), ([1].into(), [].into()));
        } else {
            assert_eq!(*old, new);
        }
    }
    assert!(rig.checks().contains(&"link_broken".to_string()));
    rig.advance(Duration::from_secs(6));
    rig.fill();
    assert_at_rest(&rig);
    assert!(!rig.checks().contains(&"link_broken".to_string()));
}

#[test]
fn an_osd_that_starts_again_and_again_rests_longer_each_time_and_is_there_where_it_is_needed() {
    let mut rig = Rig::with_copies(3, 2, 1, 16);
    let takes_part = |rig: &Rig| {
        let entries = rig.entries();
        let mut members = entries.iter().flat_map(PgEntry::members);
        let run = rig.monitor.committed.osd(osd_id(1)).unwrap().info.incarnation;
        members.any(|member| *member == Member { osd: osd_id(1), incarnation: run })
    };
    let rests = |rig: &mut Rig| rig.checks().contains(&"osd_restarting".to_string());
    for _ in 0..3 {
        rig.kill_osd(1);
        rig.boot(1);
        assert!(takes_part(&rig) && !rests(&mut rig));
        rig.fill();
        rig.advance(Duration::from_secs(1));
    }
    let mut waits = Vec::new();
    for is_quick in [false, true, false, true, false] {
        // An OSD that returns before it is marked down is still a member when it returns.
        let span = if is_quick { Duration::from_millis(1) } else { Duration::from_secs(1) };
        rig.crash_osd(1);
        rig.advance(span);
        assert_eq!(up(&rig, 1), is_quick);
        rig.boot(1);
        let mut waited = 0;
        while !takes_part(&rig) {
            assert!(rests(&mut rig));
            rig.advance(Duration::from_secs(1));
            waited += 1;
        }
        waits.push(waited);
        rig.fill();
    }
    assert_eq!(waits, [10, 20, 40, 60, 60]);
    // The OSD has the last copy of its PGs, which are served at once in spite of the rest.
    for number in 2..=3 {
        rig.kill_osd(number);
    }
    rig.kill_osd(1);
    rig.boot(1);
    assert!(rests(&mut rig) && takes_part(&rig));
    for entry in rig.entries().iter().filter(|entry| osds(entry.acting()) == [1].into()) {
        assert_eq!(entry.primary_osd(), Some(osd_id(1)));
    }
    // After the OSD has run for a while, its early restarts are counted from zero again.
    rig.boot(2);
    rig.boot(3);
    for _ in 0..4 {
        rig.advance(Duration::from_secs(20));
        rig.fill();
    }
    assert_at_rest(&rig);
    rig.kill_osd(1);
    rig.boot(1);
    assert!(takes_part(&rig) && !rests(&mut rig));
}

/// Makes the first OSD of each pair report repeatedly that it cannot reach the second.
fn say(rig: &mut Rig, links: &[(u32, u32)]) {
    for _ in 0..3 {
        for (from, to) in links {
            rig.unreachable(*from, *to, Unreachable::Silent);
        }
        rig.advance(Duration::from_secs(1));
    }
}

#[test]
fn a_primary_that_only_the_monitor_reaches_does_not_keep_its_pgs_from_the_others() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    let before = rig.entries();
    let leads = |entry: &PgEntry| entry.primary_osd() == Some(osd_id(1));
    assert!(before.iter().any(leads));
    say(&mut rig, &[(1, 2), (1, 3)]);
    for (old, new) in before.iter().zip(rig.entries()) {
        if leads(old) {
            assert_eq!((osds(new.acting()), osds(new.learning())), ([2, 3].into(), [].into()));
            assert!(!leads(&new));
            assert_eq!(new.epoch, old.epoch.next(), "one epoch for it");
        } else {
            assert_eq!(*old, new, "they reach it, as far as they say");
        }
    }
    assert!(up(&rig, 1));
    // The links work again.
    rig.advance(Duration::from_secs(6));
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn osds_that_accuse_each_other_change_entries_less_and_less_often() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    let first = rig.entries();
    let span = 20 * 60;
    for _ in 0..span {
        // Primaries report the members that they cannot reach: all links of osd.1 are broken in
        // both directions.
        let mut said = BTreeSet::new();
        for entry in rig.entries() {
            let from = entry.primary_osd().unwrap().get();
            let members = entry.members();
            let others = members.map(|member| member.osd.get()).filter(|other| *other != from);
            said.extend(others.filter(|other| [from, *other].contains(&1)).map(|to| (from, to)));
        }
        for (from, to) in said {
            rig.unreachable(from, to, Unreachable::Silent);
        }
        rig.advance(Duration::from_secs(1));
    }
    for (old, new) in first.iter().zip(rig.entries()) {
        assert!(osds(new.acting()).is_superset(&[2, 3].into()), "{new:?}");
        let epochs = new.epoch.get() - old.epoch.get();
        assert!(epochs <= 2 * (4 + span / 60), "{epochs} epochs");
    }
    rig.advance(Duration::from_secs(61));
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn a_member_that_failed_its_primary_comes_back_later_each_time() {
    let mut rig = Rig::with_copies(3, 2, 1, 1);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let entry = rig.entry(0);
        let other = *entry.acting().find(|m| Some(m.osd) != entry.primary_osd()).unwrap();
        rig.need(&entry, Need::Failed(other, "its store is full".into()));
        assert_eq!(rig.entry(0).acting_count(), 1);
        assert_eq!(rig.entry(0).learners, []);
        let mut waited = 0;
        while rig.entry(0).learners.is_empty() {
            rig.advance(Duration::from_secs(1));
            waited += 1;
        }
        waits.push(waited);
        rig.fill();
    }
    assert_eq!(waits, [5, 10, 20]);
}

#[test]
fn a_primary_gets_the_epoch_it_asks_for_once_and_not_too_often() {
    let mut rig = Rig::with_copies(2, 2, 1, 1);
    let first = rig.entry(0);
    rig.need(&first, Need::NewEpoch);
    rig.advance(Duration::from_millis(10));
    let second = rig.entry(0);
    assert_eq!(second.epoch, first.epoch.next());
    assert_eq!((&second.positions, second.primary), (&first.positions, first.primary));
    rig.need(&first, Need::NewEpoch);
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.entry(0), second, "that epoch is over");
    let start = rig.now;
    for _ in 0..8 {
        let entry = rig.entry(0);
        rig.need(&entry, Need::NewEpoch);
        while rig.entry(0) == entry {
            rig.advance(Duration::from_millis(10));
        }
    }
    assert!(rig.now.since(start) > Duration::from_secs(5), "{:?}", rig.now.since(start));
}

#[test]
fn only_a_report_of_this_epoch_and_these_runs_makes_a_learner_a_member() {
    let mut rig = Rig::with_copies(3, 2, 1, 1);
    let entry = rig.entry(0);
    let other = entry.acting().find(|m| Some(m.osd) != entry.primary_osd()).unwrap().osd.get();
    rig.kill_osd(other);
    rig.boot(other);
    let filling = rig.entry(0);
    let learner = filling.learners[0].member;
    let wrong = [
        Need::Complete(Member { incarnation: base::Incarnation::new(1), ..learner }),
        Need::Complete(Member {
            osd: osd_id(6 - other - filling.primary_osd().unwrap().get()),
            ..learner
        }),
    ];
    for what in wrong {
        rig.need(&filling, what);
        assert_eq!(rig.entry(0), filling);
    }
    let mut old = filling.clone();
    old.epoch = entry.epoch;
    rig.need(&old, Need::Complete(learner));
    assert_eq!(rig.entry(0), filling);
    // The report comes from the learner itself, not from the primary.
    rig.need_from(learner.osd, &filling, Need::Complete(learner));
    assert_eq!(rig.entry(0), filling);
    rig.need(&filling, Need::Complete(learner));
    assert_eq!(rig.entry(0).acting_count(), 2);
    let done = rig.entry(0);
    rig.need(&filling, Need::Complete(learner));
    assert_eq!(rig.entry(0), done, "said again");
}

#[test]
fn a_complete_learner_that_dies_is_no_member() {
    let mut rig = Rig::with_copies(3, 2, 1, 1);
    let entry = rig.entry(0);
    let other = entry.acting().find(|m| Some(m.osd) != entry.primary_osd()).unwrap().osd.get();
    rig.kill_osd(other);
    rig.boot(other);
    let filling = rig.entry(0);
    rig.kill_osd(other);
    rig.need(&filling, Need::Complete(filling.learners[0].member));
    assert_eq!(rig.entry(0).acting_count(), 1);
    assert_eq!(rig.entry(0).learners, []);
}

#[test]
fn an_osd_that_is_added_gets_its_share_through_learning() {
    let mut rig = Rig::with_copies(3, 2, 1, 64);
    let before = rig.entries();
    rig.add_osd(4);
    let moves = |rig: &Rig| rig.entries().iter().filter(|e| !e.learners.is_empty()).count();
    assert_eq!(moves(&rig), 32);
    assert!(rig.entries().iter().all(|entry| entry.acting_count() == 2));
    rig.fill();
    assert_at_rest(&rig);
    let of_four = rig.entries().iter().filter(|e| osds(e.acting()).contains(&4)).count();
    assert_eq!(of_four, 32);
    let stayed =
        before.iter().zip(rig.entries()).filter(|(a, b)| osds(a.acting()) == osds(b.acting()));
    assert_eq!(stayed.count(), 32);
}

#[test]
fn an_osd_that_stays_away_goes_out_and_is_in_again_when_it_returns() {
    let mut rig = Rig::with_copies(4, 2, 1, 64);
    rig.kill_osd(4);
    let quiet = rig.entries();
    rig.advance(Duration::from_secs(599));
    assert_eq!(rig.entries(), quiet);
    rig.advance(Duration::from_secs(2));
    assert!(rig.entries().iter().all(|entry| entry.acting_count() + entry.learners.len() == 2));
    assert!(rig.checks().contains(&"osd_out".to_string()));
    rig.fill();
    assert_at_rest(&rig);
    assert!(rig.entries().iter().all(|entry| !osds(entry.acting()).contains(&4)));
    rig.boot(4);
    rig.report(4, |_| {});
    rig.fill();
    assert_at_rest(&rig);
    let of_four = rig.entries().iter().filter(|e| osds(e.acting()).contains(&4)).count();
    assert_eq!(of_four, 32);
    assert!(!rig.checks().contains(&"osd_out".to_string()));
}

#[test]
fn nobody_goes_out_where_too_few_would_be_left() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.kill_osd(3);
    rig.advance(Duration::from_secs(700));
    assert!(rig.monitor.committed.osd(osd_id(3)).unwrap().info.in_cluster, "copies need it");
    let mut rig = Rig::with_copies(4, 1, 1, 8);
    for number in 2..=4 {
        rig.kill_osd(number);
    }
    rig.advance(Duration::from_secs(1000));
    let is_in = |number: &u32| rig.monitor.committed.osd(osd_id(*number)).unwrap().info.in_cluster;
    assert_eq!((1..=4).filter(is_in).count(), 2, "half of them stay");
}

#[test]
fn an_osd_taken_out_is_emptied_while_it_serves_and_then_forgotten() {
    let mut rig = Rig::with_copies(4, 2, 1, 64);
    let osd = osd_id(4);
    assert_eq!(code(rig.command(Command::OsdRemove { osd })), "busy");
    assert_eq!(rig.command(Command::OsdOut { osd }).unwrap(), json!({ "id": 4, "in": false }));
    for (acting, _) in sets(&rig) {
        assert_eq!(acting.len(), 2, "nothing is given up before another has it");
    }
    rig.fill();
    assert_at_rest(&rig);
    assert!(sets(&rig).iter().all(|(acting, _)| !acting.contains(&4)));
    assert_eq!(code(rig.command(Command::OsdRemove { osd })), "busy");
    rig.kill_osd(4);
    rig.boot(4);
    assert!(!rig.monitor.committed.osd(osd).unwrap().info.in_cluster, "an operator's word stands");
    rig.kill_osd(4);
    rig.command(Command::OsdRemove { osd }).unwrap();
    assert_eq!(code(rig.command(Command::OsdRemove { osd })), "not_found");
    assert_eq!(rig.stored("osd/4"), None);
    // Receivers of the map still learn of the next change, and the id is not issued again.
    rig.command(Command::OsdOut { osd: osd_id(3) }).unwrap();
    assert!(!rig.osds[&osd_id(1)].map.osds[&osd_id(3)].in_cluster);
    rig.command(Command::OsdIn { osd: osd_id(3) }).unwrap();
    rig.osds.remove(&osd);
    rig.add_osd(5);
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
}

#[test]
fn an_osd_that_is_forgotten_holds_up_no_removed_pool() {
    let mut rig = Rig::with_copies(3, 1, 1, 8);
    rig.command(Command::OsdOut { osd: osd_id(3) }).unwrap();
    rig.fill();
    rig.kill_osd(3);
    rig.make_replicated("q", 2, None, 8).unwrap();
    rig.command(Command::PoolRemove { pool: "q".into(), accepted: false }).unwrap();
    assert_eq!(rig.tasks().len(), 1);
    rig.command(Command::OsdRemove { osd: osd_id(3) }).unwrap();
    assert_eq!(rig.tasks().len(), 0);
}

#[test]
fn a_damaged_store_that_restarts_counts_as_absent() {
    let mut rig = Rig::with_copies(3, 2, 1, 64);
    rig.osds.get_mut(&osd_id(2)).unwrap().suspect = true;
    rig.crash_osd(2);
    rig.boot(2);
    for entry in rig.entries() {
        assert!(!osds(entry.acting()).contains(&2), "{entry:?}");
    }
    assert!(sets(&rig).iter().any(|(_, learners)| *learners == [2].into()));
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn a_damaged_store_is_no_member_while_a_better_one_may_come() {
    let mut rig = Rig::with_copies(2, 2, 1, 8);
    rig.crash_osd(1);
    rig.crash_osd(2);
    rig.advance(Duration::from_secs(1));
    rig.osds.get_mut(&osd_id(2)).unwrap().suspect = true;
    rig.boot(2);
    for entry in rig.entries() {
        let two = entry.acting().find(|member| member.osd == osd_id(2)).unwrap();
        assert_eq!(two.incarnation.get(), 1, "its new run is not taken in");
    }
    rig.crash_osd(2);
    rig.osds.get_mut(&osd_id(2)).unwrap().suspect = false;
    rig.boot(2);
    for entry in rig.entries() {
        let two = entry.acting().find(|member| member.osd == osd_id(2)).unwrap();
        assert_eq!(two.incarnation.get(), 1, "another start fills nothing");
    }
    rig.boot(1);
    assert!(sets(&rig).iter().all(|sets| *sets == ([1].into(), [2].into())));
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn an_epoch_ends_with_each_change_and_no_epoch_comes_twice() {
    let mut rig = Rig::with_copies(4, 3, 2, 16);
    let mut seen: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut last = rig.entries();
    let mut random = 7u64;
    for _ in 0..300 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let number = (random % 4 + 1) as u32;
        let is_there = rig.osds[&osd_id(number)].connection.is_some();
        match random / 16 % 4 {
            0 if is_there => rig.crash_osd(number),
            1 if !is_there => rig.boot(number),
            2 => rig.advance(Duration::from_millis(random % 1000)),
            3 => rig.fill(),
            _ => rig.restart(),
        }
        for (old, new) in last.iter().zip(rig.entries()) {
            let is_same = old.has_same_members(&new);
            assert!(is_same || new.epoch > old.epoch, "{old:?} {new:?}");
            if new.epoch > old.epoch {
                assert!(seen.insert((new.pg.number, new.epoch.get())));
            }
        }
        last = rig.entries();
    }
    for number in 1..=4 {
        if rig.osds[&osd_id(number)].connection.is_none() {
            rig.boot(number);
        }
    }
    rig.advance(Duration::from_secs(1));
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn members_that_are_off_are_given_up_by_name_alone() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.make_volume("v", base::GIB).unwrap();
    let pg = rig.entry(0).pg;
    let give_up =
        |accepted| Command::PgGiveUp { pg, accepted, they_are_off: true, older_copy: false };
    assert_eq!(code(rig.command(give_up(true))), "invalid", "nobody is off");
    rig.crash_osd(2);
    assert_eq!(code(rig.command(give_up(true))), "invalid", "it may come back");
    rig.advance(Duration::from_secs(1));
    assert_eq!(code(rig.command(give_up(true))), "invalid", "two of three go on by themselves");
    rig.kill_osd(3);
    rig.kill_osd(1);
    let left = rig.entry(0);
    assert_eq!(code(rig.command(give_up(true))), "unavailable");
    rig.boot(1);
    assert_eq!(osds(rig.entry(0).acting()), [1, 3].into());
    rig.report(1, |report| report.damaged_units = 1);
    let error = rig.command(give_up(false)).unwrap_err();
    assert_eq!(error.code, "not_accepted");
    for part in ["osd.3", "(v)", "cannot be undone"] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    // The primary reports that it cannot serve the PG. The remaining member has every acknowledged write.
    rig.report(1, |report| {
        report.active.clear();
        report.incomplete = vec![(pg, "it waits for osd.3".into())];
    });
    let error = rig.command(give_up(false)).unwrap_err();
    for part in ["osd.3", "cannot be undone", "No acknowledged write is lost: osd.1 has"] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    for accepted in [false, true] {
        let plain = Command::PgGiveUp { pg, accepted, they_are_off: false, older_copy: false };
        let error = rig.command(plain).unwrap_err();
        assert_eq!(error.code, "invalid");
        assert!(error.hint.contains(&format!("give-up {pg} --they-are-off")), "{error:?}");
    }
    let given_up = rig.command(give_up(true)).unwrap();
    assert_eq!(given_up, json!({ "pg": pg.to_string(), "osd": 1, "given_up": [3] }));
    let entry = rig.entry(0);
    assert_eq!((osds(entry.acting()), entry.primary_osd()), ([1].into(), Some(osd_id(1))));
    assert!(entry.epoch > left.epoch);
    assert_eq!(osds(rig.entry(1).acting()), [1, 3].into(), "the others are not given up");
    // Members that return do not become members again with their old data.
    rig.boot(3);
    rig.boot(2);
    assert_eq!((osds(rig.entry(0).acting())), [1].into());
    rig.fill();
    assert_at_rest(&rig);
}

#[test]
fn what_people_write_of_pools_and_osds_is_followed() {
    let mut rig = Rig::with_copies(4, 3, 3, 16);
    rig.kill_osd(4);
    let waits =
        |rig: &Rig| rig.entries().iter().filter(|entry| osds(entry.acting()).contains(&4)).count();
    assert_eq!(waits(&rig), 12, "all three copies must be there");
    let set = Command::PoolSet {
        pool: "p".into(),
        rename: None,
        scheme: None,
        min_size: Some(2),
        failure_domain: None,
    };
    rig.command(set).unwrap();
    assert_eq!(waits(&rig), 0);
    let mut record: serde_json::Value =
        serde_json::from_str(&rig.stored("osd/4").unwrap().value).unwrap();
    record["in"] = json!(false);
    rig.hand_writes("osd/4", Some(&record.to_string()));
    assert_eq!(rig.monitor.committed.osd(osd_id(4)).unwrap().out_by, Some(OutBy::Operator));
    rig.fill();
    assert_at_rest(&rig);
    assert!(sets(&rig).iter().all(|(acting, _)| acting.len() == 3 && !acting.contains(&4)));
}

/// The scenario: an OSD dies and returns, another is taken out, and one is added.
fn life(rig: &mut Rig) {
    rig.kill_osd(2);
    rig.boot(2);
    rig.fill();
    let _ = rig.command(Command::OsdOut { osd: osd_id(1) }).unwrap();
    rig.advance(Duration::from_secs(6));
    rig.fill();
    rig.kill_osd(1);
    rig.advance(Duration::from_secs(6));
    rig.fill();
}

#[test]
fn monitors_that_end_anywhere_lead_to_the_same_place() {
    let mut rig = Rig::with_copies(4, 2, 1, 512);
    rig.transactions = 0;
    life(&mut rig);
    assert_at_rest(&rig);
    let count = rig.transactions;
    assert!((5..40).contains(&count), "{count} transactions");
    for transaction in 1..=count {
        for mishap in Mishap::all_of(transaction) {
            let mut rig = Rig::with_copies(4, 2, 1, 512);
            (rig.transactions, rig.mishap) = (0, mishap);
            life(&mut rig);
            assert_eq!(rig.stopped, None, "{mishap:?}");
            assert_at_rest(&rig);
            let ones = sets(&rig).iter().filter(|(acting, _)| acting.contains(&1)).count();
            assert_eq!(ones, 0, "{mishap:?}");
        }
    }
}

#[test]
fn ten_thousand_pgs_of_a_failure_are_few_transactions() {
    let mut rig = Rig::new();
    for number in 1..=4 {
        rig.add_osd(number);
    }
    for pool in ["a", "b"] {
        rig.make_replicated(pool, 3, None, 4096).unwrap();
    }
    rig.make_replicated("c", 3, None, 2048).unwrap();
    let before = rig.entries();
    assert_eq!(before.len(), 10_240);
    rig.transactions = 0;
    rig.kill_osd(2);
    let changed = before.iter().zip(rig.entries()).filter(|(old, new)| *old != new).count();
    assert_eq!(changed, 7_680);
    assert!(rig.transactions <= 4, "{} transactions", rig.transactions);
}

#[test]
fn the_largest_pool_can_be_made_whatever_its_copies() {
    let mut rig = Rig::new();
    for number in 1..=8 {
        rig.add_osd(number);
    }
    for mishap in [Mishap::None, Mishap::KillAfter(1), Mishap::KillBefore(2)] {
        (rig.transactions, rig.mishap) = (0, mishap);
        rig.make_replicated("p", 8, None, 8192).unwrap();
        assert!(rig.transactions > 1);
        assert_at_rest(&rig);
        rig.command(Command::PoolRemove { pool: "p".into(), accepted: false }).unwrap();
        assert_eq!(rig.entries(), []);
    }
    // Shards of an interrupted pool creation do not become shards of a smaller pool.
    (rig.transactions, rig.mishap) = (0, Mishap::KillAfter(1));
    let client = rig.client();
    let create = Command::PoolCreate {
        pool: "p".into(),
        scheme: Some(Scheme::Copies { count: 8 }),
        min_size: None,
        pg_count: Some(8192),
        failure_domain: Some(crate::map::FailureDomain::Osd),
        block_size: None,
        objects: None,
    };
    assert_eq!(rig.command_over(client, create), None);
    rig.make_replicated("small", 2, None, 8).unwrap();
    rig.restart();
    rig.tick();
    assert_eq!(rig.stopped, None);
    assert_eq!(rig.entries().len(), 8);
    assert_eq!(rig.store.entries().filter(|entry| entry.key.starts_with("pg/")).count(), 1);
}

#[test]
fn a_failure_domain_may_change_where_the_copies_can_follow() {
    let mut rig = Rig::with_copies(4, 2, 1, 64);
    let set = |domain| Command::PoolSet {
        pool: "p".into(),
        rename: None,
        scheme: None,
        min_size: None,
        failure_domain: Some(domain),
    };
    let error = rig.command(set(crate::map::FailureDomain::Host)).unwrap_err();
    assert_eq!(error.code, "cannot_place");
    assert!(error.hint.contains("--failure-domain osd"), "{}", error.hint);
    for number in 3..=4 {
        rig.osds.get_mut(&osd_id(number)).unwrap().host = "other".into();
        rig.kill_osd(number);
        rig.boot(number);
    }
    rig.fill();
    rig.command(set(crate::map::FailureDomain::Host)).unwrap();
    rig.fill();
    assert_at_rest(&rig);
    let host = |osd: &OsdId| if osd.get() < 3 { 1 } else { 2 };
    for targets in rig.targets() {
        assert_ne!(host(&targets[0]), host(&targets[1]));
    }
}

#[test]
fn a_damaged_member_is_given_up_with_those_that_are_off_and_does_not_lead() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    let entry = rig.entry(0);
    let numbers: Vec<u32> = entry.acting().map(|member| member.osd.get()).collect();
    let (damaged, whole, off) = (numbers[0], numbers[1], numbers[2]);
    for number in &numbers {
        rig.crash_osd(*number);
    }
    rig.advance(Duration::from_secs(1));
    rig.osds.get_mut(&osd_id(damaged)).unwrap().suspect = true;
    rig.boot(damaged);
    rig.boot(whole);
    let waits = rig.entry(0);
    assert_eq!(osds(waits.acting()), [1, 2, 3].into());
    let give_up =
        Command::PgGiveUp { pg: entry.pg, accepted: true, they_are_off: true, older_copy: false };
    let given_up = rig.command(give_up).unwrap();
    assert_eq!(given_up["given_up"], json!([damaged, off]));
    let next = rig.entry(0);
    assert_eq!((osds(next.acting()), next.primary_osd()), ([whole].into(), Some(osd_id(whole))));
}

#[test]
fn others_are_heard_again_before_a_pg_goes_on_without_one_that_missed_a_monitors_start() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.crash_osd(2);
    rig.restart();
    rig.tick();
    rig.advance(Duration::from_millis(4_500));
    let before = rig.entries();
    assert!(up(&rig, 2) && before.iter().all(|entry| osds(entry.acting()).contains(&2)));
    rig.osds.get_mut(&osd_id(3)).unwrap().is_silent = true;
    rig.advance(Duration::from_millis(600));
    assert!(!up(&rig, 2) && up(&rig, 3));
    let has_two = |entry: &PgEntry| osds(entry.acting()).contains(&2);
    assert!(rig.entries().iter().all(has_two), "osd.3 was not heard since");
    rig.osds.get_mut(&osd_id(3)).unwrap().is_silent = false;
    rig.boot(3);
    assert!(!rig.entries().iter().any(has_two));
}

#[test]
fn after_a_monitors_start_those_who_went_on_are_believed_and_those_who_just_started_wait() {
    for how in [Unreachable::Silent, Unreachable::Refused] {
        let mut rig = Rig::with_copies(3, 3, 2, 8);
        rig.crash_osd(3);
        rig.restart();
        rig.tick();
        rig.unreachable(1, 3, how);
        rig.advance(Duration::from_millis(750));
        assert!(!up(&rig, 3), "osd.1 ran all the time");
        assert!(!rig.entries().iter().any(|entry| osds(entry.acting()).contains(&3)));

        // The whole cluster was switched off.
        let mut rig = Rig::with_copies(3, 3, 2, 8);
        for number in 1..=3 {
            rig.crash_osd(number);
        }
        rig.restart();
        rig.tick();
        rig.boot(1);
        rig.boot(2);
        rig.unreachable(1, 3, how);
        rig.advance(Duration::from_millis(1_900));
        assert!(up(&rig, 3), "it may be about to start");
        rig.unreachable(1, 3, how);
        rig.advance(Duration::from_millis(750));
        assert!(!up(&rig, 3));
    }
}

#[test]
fn a_primary_that_its_member_misses_is_asked_and_a_new_leader_does_not_await_it_for_long() {
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    let before = rig.entries();
    for _ in 0..4 {
        rig.unreachable(1, 3, Unreachable::Missed);
        rig.advance(Duration::from_millis(500));
    }
    assert!(up(&rig, 3) && rig.entries() == before, "it answers");
    assert!(!rig.checks().contains(&"link_broken".to_string()));
    rig.osds.get_mut(&osd_id(3)).unwrap().is_silent = true;
    rig.unreachable(1, 3, Unreachable::Missed);
    rig.advance(Duration::from_millis(750));
    assert!(!up(&rig, 3), "it does not");

    let mut rig = Rig::with_copies(3, 3, 2, 8);
    rig.crash_osd(3);
    rig.restart();
    rig.tick();
    rig.unreachable(1, 3, Unreachable::Missed);
    rig.advance(Duration::from_millis(750));
    assert!(!up(&rig, 3), "osd.1 ran all the time");

    let mut rig = Rig::with_copies(3, 3, 2, 8);
    for number in 1..=3 {
        rig.crash_osd(number);
    }
    rig.restart();
    rig.tick();
    rig.boot(1);
    rig.boot(2);
    rig.advance(Duration::from_millis(3_000));
    rig.unreachable(1, 3, Unreachable::Missed);
    rig.advance(Duration::from_millis(1_900));
    assert!(up(&rig, 3), "all have just started, and it may take longer");
}

#[test]
fn a_link_that_is_known_as_broken_parts_the_members_of_new_pgs_too() {
    let mut rig = Rig::new();
    for number in 1..=3 {
        rig.add_osd(number);
    }
    for _ in 0..2 {
        rig.unreachable(1, 2, Unreachable::Silent);
        rig.advance(Duration::from_millis(500));
    }
    rig.unreachable(1, 2, Unreachable::Silent);
    assert!(rig.checks().contains(&"link_broken".to_string()));
    rig.make_replicated("p", 3, Some(2), 8).unwrap();
    rig.unreachable(1, 2, Unreachable::Silent);
    rig.tick();
    for entry in rig.entries() {
        let parted = entry.primary_osd() == Some(osd_id(1));
        assert_eq!(osds(entry.acting()).contains(&2), !parted, "{entry:?}");
    }
    assert!(rig.entries().iter().any(|entry| entry.primary_osd() == Some(osd_id(1))));
}

#[test]
fn an_epoch_that_is_asked_for_after_many_failures_waits_no_longer_than_five_seconds() {
    let mut rig = Rig::with_copies(2, 2, 2, 1);
    for _ in 0..7 {
        let entry = rig.entry(0);
        let other = *entry.acting().find(|m| Some(m.osd) != entry.primary_osd()).unwrap();
        rig.need(&entry, Need::Failed(other, "its store is full".into()));
        let mut waited = 0;
        while rig.entry(0).epoch == entry.epoch {
            rig.advance(Duration::from_secs(1));
            waited += 1;
            assert!(waited <= 61);
        }
    }
    let entry = rig.entry(0);
    rig.need(&entry, Need::NewEpoch);
    rig.advance(Duration::from_secs(6));
    assert!(rig.entry(0).epoch > entry.epoch);
}
