//! Leases by which PGs are read while too few members are there: nobody else leads as long as one runs.

use base::{Duration, Epoch, PgId};
use format::wire::PgEntry;

use super::rig::{Rig, osd_id};
use crate::message::{Command, Need, READ_LEASE_PG_COUNT_MAX, ToMonitor, Unreachable};

/// Whether somebody waited for a lease of 600 ms as the monitor counts it, and no longer.
fn is_waited_out(waited: Duration) -> bool {
    (750..800).contains(&waited.as_millis())
}

/// One PG of three copies that needs two, its primary, and the others.
fn rig() -> (Rig, u32, [u32; 2]) {
    let rig = Rig::with_copies(3, 3, 2, 1);
    let primary = rig.entry(0).primary.unwrap().get();
    let others: Vec<u32> = (1..=3).filter(|number| *number != primary).collect();
    (rig, primary, others.try_into().unwrap())
}

/// An OSD asks to let PGs be read; those that it is granted.
fn ask(rig: &mut Rig, number: u32, pgs: &[(PgId, Epoch)]) -> Vec<PgId> {
    let osd = rig.osds.get_mut(&osd_id(number)).unwrap();
    let (connection, stamp) = (osd.connection.unwrap(), osd.reads.len() as u64 + 1);
    rig.say(connection, &ToMonitor::ReadLease { stamp, pgs: pgs.to_vec() });
    let (answered, valid_ms, granted) = rig.osds[&osd_id(number)].reads.last().unwrap().clone();
    assert_eq!((answered, valid_ms), (stamp, 600));
    granted
}

fn newest(rig: &Rig) -> [(PgId, Epoch); 1] {
    let entry = rig.entry(0);
    [(entry.pg, entry.epoch)]
}

/// An OSD's host is cut off: its process goes on.
fn cut_off(rig: &mut Rig, number: u32) {
    let osd = rig.osds.get_mut(&osd_id(number)).unwrap();
    let connection = osd.connection.take().unwrap();
    rig.break_connection(connection);
}

/// How long it takes from now until another OSD leads than this one.
fn other_leads_after(rig: &mut Rig, number: u32) -> Duration {
    let begin = rig.now;
    while rig.entry(0).primary == Some(osd_id(number)) {
        rig.advance(Duration::from_millis(5));
        assert!(rig.now.since(begin) < Duration::from_secs(20), "{:?}", rig.entry(0));
    }
    rig.now.since(begin)
}

fn acting(entry: &PgEntry) -> Vec<u32> {
    let mut acting: Vec<u32> = entry.acting.iter().map(|member| member.osd.get()).collect();
    acting.sort_unstable();
    acting
}

/// All but the primary go, and it reads; then it is cut off, and they come back.
fn read_and_swap(hands_back: bool) -> Duration {
    let (mut rig, primary, others) = rig();
    others.iter().for_each(|number| rig.crash_osd(*number));
    rig.advance(Duration::from_secs(5));
    let entry = rig.entry(0);
    assert_eq!((acting(&entry), entry.primary), (vec![1, 2, 3], Some(osd_id(primary))));
    assert_eq!(ask(&mut rig, primary, &[(entry.pg, entry.epoch)]), [entry.pg]);
    if hands_back {
        assert_eq!(ask(&mut rig, primary, &[]), []);
    }
    let given_at = rig.now;
    cut_off(&mut rig, primary);
    others.iter().for_each(|number| rig.boot(*number));
    let back = rig.entry(0);
    assert_eq!(back.primary, Some(osd_id(primary)), "the same one leads: nothing waits");
    assert!(back.epoch > entry.epoch);
    rig.unreachable(others[0], primary, Unreachable::Refused);
    other_leads_after(&mut rig, primary);
    assert_eq!(acting(&rig.entry(0)), others);
    rig.now.since(given_at)
}

#[test]
fn another_osd_leads_when_the_lease_of_the_one_before_has_run_out() {
    let waited = read_and_swap(false);
    assert!(is_waited_out(waited), "{waited:?}");
    let waited = read_and_swap(true);
    assert!(waited < Duration::from_millis(100), "{waited:?}: it was handed back");
}

#[test]
fn a_lease_is_given_to_the_primary_of_the_newest_entry_alone() {
    let (mut rig, primary, others) = rig();
    let [(pg, epoch)] = newest(&rig);
    for wrong in [Epoch::new(epoch.get() - 1), epoch.next()] {
        assert_eq!(ask(&mut rig, primary, &[(pg, wrong)]), []);
    }
    assert_eq!(ask(&mut rig, others[0], &[(pg, epoch)]), []);
    assert_eq!(ask(&mut rig, primary, &[(PgId { number: 7, ..pg }, epoch)]), []);
    assert_eq!(ask(&mut rig, primary, &[(pg, epoch)]), [pg]);
    // Nor while another entry is on its way to the store.
    let entry = rig.entry(0);
    rig.need(&entry, Need::NewEpoch);
    let connection = rig.osds[&osd_id(primary)].connection.unwrap();
    let question = ToMonitor::ReadLease { stamp: 99, pgs: vec![(pg, epoch)] };
    rig.say_behind_tick(Duration::from_millis(11), connection, &question);
    assert_eq!(rig.osds[&osd_id(primary)].reads.last(), Some(&(99, 600, Vec::new())));
    assert_eq!(rig.entry(0).epoch, epoch.next());
}

#[test]
fn who_asks_for_more_than_there_can_be_is_hung_up_on() {
    let (mut rig, primary, _) = rig();
    let [one] = newest(&rig);
    let connection = rig.osds[&osd_id(primary)].connection.unwrap();
    let pgs = vec![one; READ_LEASE_PG_COUNT_MAX + 1];
    rig.say(connection, &ToMonitor::ReadLease { stamp: 1, pgs });
    assert!(!rig.open.contains(&connection));
    // Nor may a client.
    let client = rig.client();
    rig.say(client, &ToMonitor::ReadLease { stamp: 1, pgs: vec![one] });
    assert!(!rig.open.contains(&client));
}

#[test]
fn a_lease_is_not_renewed_while_another_osd_is_to_lead() {
    let (mut rig, primary, others) = rig();
    let pgs = newest(&rig);
    assert_eq!(ask(&mut rig, primary, &pgs).len(), 1);
    let given_at = rig.now;
    // It is heard here, and reaches nobody: others are to go on without it.
    for _ in 0..2 {
        for number in others {
            rig.unreachable(primary, number, Unreachable::Silent);
        }
        rig.advance(Duration::from_millis(300));
        assert_eq!(ask(&mut rig, primary, &pgs).len(), 1, "nobody else is to lead yet");
    }
    let mut refused = 0;
    while rig.entry(0).primary == Some(osd_id(primary)) {
        for number in others {
            rig.unreachable(primary, number, Unreachable::Silent);
            rig.report(number, |_| {});
        }
        rig.advance(Duration::from_millis(50));
        refused += usize::from(ask(&mut rig, primary, &pgs).is_empty());
        assert!(rig.now.since(given_at) < Duration::from_secs(10), "{:?}", rig.entry(0));
    }
    assert!(refused >= 10, "{refused}: it waits until the lease has run out");
}

/// How a holder has come back to the monitor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Not,
    /// Its boot came, and nothing that shows that it still has this connection.
    Booted,
    Joined,
}

/// Who is back holds nothing any more; but a boot may be an echo from before it was given the lease.
fn assert_waited(waited: Duration, back: Back) {
    if back == Back::Joined {
        assert!(waited < Duration::from_millis(100), "{waited:?}");
    } else {
        assert!(is_waited_out(waited), "{waited:?}");
    }
}

#[test]
fn a_new_leader_waits_for_leases_it_knows_nothing_of() {
    for back in [Back::Not, Back::Booted, Back::Joined] {
        let (mut rig, primary, others) = rig();
        rig.advance(Duration::from_secs(5));
        if back == Back::Not {
            cut_off(&mut rig, primary);
        }
        rig.osds.get_mut(&osd_id(primary)).unwrap().is_silent = back == Back::Booted;
        rig.restart();
        rig.tick();
        let begin = rig.now;
        if back != Back::Not {
            // What it held it lost with its connection, if that is its newest.
            cut_off(&mut rig, primary);
        }
        rig.unreachable(others[0], primary, Unreachable::Refused);
        other_leads_after(&mut rig, primary);
        let waited = rig.now.since(begin);
        assert_waited(waited, back);
    }
}

#[test]
fn a_lease_ends_with_the_run_and_with_the_connection_of_its_holder() {
    for (is_new_run, back) in [(false, Back::Booted), (false, Back::Joined), (true, Back::Joined)] {
        let (mut rig, primary, others) = rig();
        rig.advance(Duration::from_secs(5));
        let pgs = newest(&rig);
        assert_eq!(ask(&mut rig, primary, &pgs).len(), 1);
        let given_at = rig.now;
        match is_new_run {
            true => rig.crash_osd(primary),
            false => cut_off(&mut rig, primary),
        }
        rig.osds.get_mut(&osd_id(primary)).unwrap().is_silent = back == Back::Booted;
        rig.boot(primary);
        cut_off(&mut rig, primary);
        rig.unreachable(others[0], primary, Unreachable::Refused);
        other_leads_after(&mut rig, primary);
        let waited = rig.now.since(given_at);
        assert_waited(waited, back);
    }
}

#[test]
fn a_pg_does_not_wait_for_its_own_primary_when_members_come_back() {
    for hands_back in [true, false] {
        let mut rig = Rig::with_copies(2, 2, 2, 1);
        let planned = rig.entry(0).primary.unwrap().get();
        let other = 3 - planned;
        rig.crash_osd(planned);
        rig.advance(Duration::from_secs(5));
        let entry = rig.entry(0);
        assert_eq!((acting(&entry), entry.primary), (vec![1, 2], Some(osd_id(other))));
        assert_eq!(ask(&mut rig, other, &[(entry.pg, entry.epoch)]), [entry.pg]);
        let given_at = rig.now;
        rig.boot(planned);
        let back = rig.entry(0);
        assert!(back.epoch > entry.epoch, "the member's new run is there at once");
        assert_eq!(back.primary, Some(osd_id(other)), "it may let the PG be read");
        assert_eq!(rig.now, given_at);
        // The one that is planned leads when the lease is over.
        if hands_back {
            assert_eq!(ask(&mut rig, other, &[]), []);
        }
        other_leads_after(&mut rig, other);
        let waited = rig.now.since(given_at);
        assert_eq!(hands_back, waited < Duration::from_millis(100), "{waited:?}");
        assert!(hands_back || is_waited_out(waited), "{waited:?}");
    }
}

#[test]
fn nothing_is_given_up_while_the_one_that_is_off_may_let_it_be_read() {
    let (mut rig, primary, others) = rig();
    others.iter().for_each(|number| rig.crash_osd(*number));
    rig.advance(Duration::from_secs(5));
    let pgs = newest(&rig);
    assert_eq!(ask(&mut rig, primary, &pgs).len(), 1);
    let given_at = rig.now;
    cut_off(&mut rig, primary);
    rig.boot(others[0]);
    rig.unreachable(others[0], primary, Unreachable::Refused);
    let give_up = Command::PgGiveUp { pg: pgs[0].0, accepted: true, they_are_off: true };
    let error = rig.command(give_up.clone()).unwrap_err();
    assert_eq!(error.code, "busy");
    assert!(error.message.contains("may be read"), "{}", error.message);
    other_leads_after(&mut rig, primary);
    assert!(is_waited_out(rig.now.since(given_at)));
    assert_eq!(rig.command(give_up).unwrap()["osd"], others[0]);
    assert_eq!(acting(&rig.entry(0)), [others[0]]);
}
