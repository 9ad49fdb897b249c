//! Tests of leases without nodes: clocks that drift, messages that are lost, processes that restart.

use base::Incarnation;

use super::*;

const PG: PgId = PgId { pool: PoolId::FIRST, number: 3 };
const SPAN: Duration = Duration::from_millis(300);

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn member(osd: u32, run: u64) -> Member {
    Member { osd: OsdId::new(osd).unwrap(), incarnation: Incarnation::new(run) }
}

/// Returns an entry that the first member leads; its revision is ten times its epoch.
fn entry(epoch: u32, acting: &[Member]) -> PgEntry {
    let (epoch, revision) = (Epoch::new(epoch), MapRevision::new(10 * u64::from(epoch)));
    PgEntry { epoch, revision, ..PgEntry::new(PG, acting.iter().copied()) }
}

fn acts_on(revision: u64) -> [(PoolId, MapRevision); 1] {
    [(PG.pool, MapRevision::new(revision))]
}

/// Returns the leases of a process that has run for so long that leases of earlier runs have expired.
fn running() -> Leases {
    Leases::new(Time::ZERO, SPAN)
}

/// Lets `giver` handle a renewal of `holder`, and returns the grant, if any.
fn pass(giver: &mut Leases, now: Time, holder: Member, revision: u64) -> Option<Grant> {
    giver.give(now, holder, 1, &acts_on(revision), SPAN)
}

/// Revokes the lease of the primary of `before`, which `newest` replaces.
fn revoke(giver: &mut Leases, before: &PgEntry, newest: &PgEntry) {
    giver.revoke_from(before.primary_member().expect("it has a primary"), newest);
}

#[test]
fn a_lease_is_valid_from_sending_for_its_span() {
    let (giver, mut holder) = (member(2, 1), running());
    let holds = |holder: &Leases, now| holder.holds(now, giver, PG, Epoch::new(1));
    holder.on_connected(giver);
    assert!(!holds(&holder, at(1_000)));
    let stamp = holder.renew(at(1_000), giver.osd);
    let grant = Grant { stamp, valid_ms: 300, lost: Vec::new() };
    assert_eq!(holder.on_granted(at(1_250), giver.osd, grant), Ok(true));
    assert!(holds(&holder, at(1_299)));
    assert!(!holds(&holder, at(1_300)), "counted from sending");
    assert!(!holder.holds(at(1_260), member(2, 2), PG, Epoch::new(1)), "another run gave nothing");
    assert!(!holder.holds(at(1_260), member(3, 1), PG, Epoch::new(1)));
}

#[test]
fn a_lease_survives_lost_renewals_and_lost_answers_while_others_arrive() {
    let (giver, mut holder) = (member(2, 1), running());
    holder.on_connected(giver);
    let mut valid_since = None;
    for step in 0..100u64 {
        let now = at(1_000 + step * 100);
        let stamp = holder.renew(now, giver.osd);
        // Two of three grants are lost.
        if step % 3 == 0 {
            let grant = Grant { stamp, valid_ms: 301, lost: Vec::new() };
            holder.on_granted(now, giver.osd, grant).unwrap();
            valid_since.get_or_insert(now);
        }
        assert!(holder.holds(now, giver, PG, Epoch::new(1)), "{now:?}");
    }
    assert!(valid_since.is_some());
}

#[test]
fn a_late_or_repeated_grant_does_not_extend_the_lease() {
    let (giver, mut holder) = (member(2, 1), running());
    holder.on_connected(giver);
    let first = holder.renew(at(1_000), giver.osd);
    let second = holder.renew(at(1_100), giver.osd);
    let grant = |stamp| Grant { stamp, valid_ms: 300, lost: Vec::new() };
    assert_eq!(holder.on_granted(at(1_150), giver.osd, grant(second)), Ok(true));
    assert_eq!(holder.on_granted(at(1_390), giver.osd, grant(first)), Ok(false));
    assert_eq!(holder.on_granted(at(1_390), giver.osd, grant(second)), Ok(false));
    assert!(holder.holds(at(1_399), giver, PG, Epoch::new(1)));
    assert!(!holder.holds(at(1_400), giver, PG, Epoch::new(1)));
    for wrong in [0, 3, u64::MAX] {
        assert!(holder.on_granted(at(1_400), giver.osd, grant(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn a_grant_of_an_earlier_connection_is_ignored() {
    let (giver, mut holder) = (member(2, 1), running());
    holder.on_connected(giver);
    let stamp = holder.renew(at(1_000), giver.osd);
    holder.on_connected(giver);
    let grant = Grant { stamp, valid_ms: 300, lost: Vec::new() };
    assert_eq!(holder.on_granted(at(1_010), giver.osd, grant.clone()), Ok(false));
    assert!(!holder.holds(at(1_010), giver, PG, Epoch::new(1)));
    // A lease of the same run survives the loss of its connection; a lease of another run does not.
    let stamp = holder.renew(at(1_020), giver.osd);
    holder.on_granted(at(1_030), giver.osd, Grant { stamp, ..grant }).unwrap();
    holder.on_connected(giver);
    assert!(holder.holds(at(1_040), giver, PG, Epoch::new(1)));
    holder.on_connected(member(2, 2));
    assert!(!holder.holds(at(1_040), giver, PG, Epoch::new(1)));
    assert!(!holder.holds(at(1_040), member(2, 2), PG, Epoch::new(1)));
}

#[test]
fn with_clocks_ten_percent_off_no_holder_outlasts_its_giver() {
    for span_ms in [90u64, 300, 900] {
        let span = Duration::from_millis(span_ms);
        for (holder_rate, giver_rate) in [(0.9, 1.1), (1.1, 0.9), (0.9, 0.9), (1.1, 1.1)] {
            // The renewal is sent and received at the same moment, which is the worst case.
            let valid_real = span.as_secs_f64() / holder_rate;
            let given_real = giver_span(span).as_secs_f64() / giver_rate;
            assert!(valid_real <= given_real, "{span_ms} ms at {holder_rate} and {giver_rate}");
        }
        assert!(renew_every(span).as_nanos() * 3 <= span.as_nanos());
    }
}

#[test]
fn the_lease_of_an_earlier_primary_is_waited_out() {
    let (old, me) = (member(1, 1), member(2, 1));
    let mut giver = running();
    let (before, newest) = (entry(5, &[old, me]), entry(6, &[me]));
    assert!(pass(&mut giver, at(1_000), old, 50).is_some());
    revoke(&mut giver, &before, &newest);
    assert_eq!(giver.is_revoked_until(at(1_010), &newest), Some(at(1_375)));
    assert_eq!(giver.is_revoked_until(at(1_374), &newest), Some(at(1_375)));
    assert_eq!(giver.is_revoked_until(at(1_375), &newest), None);
}

#[test]
fn what_is_revoked_is_not_granted_again_until_the_holder_knows() {
    let (old, me) = (member(1, 1), member(2, 1));
    let mut giver = running();
    let (before, newest) = (entry(5, &[old, me]), entry(6, &[me]));
    pass(&mut giver, at(1_000), old, 50).unwrap();
    revoke(&mut giver, &before, &newest);
    let grant = pass(&mut giver, at(1_100), old, 59).unwrap();
    assert_eq!(grant.lost, [(PG, newest.epoch)]);
    assert_eq!(
        giver.is_revoked_until(at(1_110), &newest),
        Some(at(1_375)),
        "no longer than before"
    );
    // The holder receives this grant, and must not use it for this PG.
    let mut holder = running();
    holder.on_connected(me);
    let stamp = holder.renew(at(1_100), me.osd);
    holder.on_granted(at(1_110), me.osd, Grant { stamp, ..grant }).unwrap();
    assert!(!holder.holds(at(1_120), me, PG, before.epoch));
    assert!(holder.holds(at(1_120), me, PG, newest.epoch), "it is for the newest epoch");
    let other = PgId { number: 4, ..PG };
    assert!(holder.holds(at(1_120), me, other, Epoch::new(1)), "and for other PGs");
    assert!(holder.knows_newer(me.osd, |_| Some(before.epoch)));
    assert!(!holder.knows_newer(me.osd, |_| Some(newest.epoch)));
    // Once the holder acts on the newest entry, there is nothing to wait for.
    let grant = pass(&mut giver, at(1_120), old, 60).unwrap();
    assert_eq!(grant.lost, []);
    assert_eq!(giver.is_revoked_until(at(1_130), &newest), None);
}

#[test]
fn a_pg_that_is_granted_again_wakes_waiting_requests() {
    let (giver, mut holder) = (member(2, 1), running());
    holder.on_connected(giver);
    let say = |holder: &mut Leases, now, lost: Vec<(PgId, Epoch)>| {
        let stamp = holder.renew(now, giver.osd);
        holder.on_granted(now, giver.osd, Grant { stamp, valid_ms: 300, lost })
    };
    assert_eq!(say(&mut holder, at(1_000), vec![(PG, Epoch::new(6))]), Ok(true));
    assert_eq!(say(&mut holder, at(1_100), vec![(PG, Epoch::new(6))]), Ok(false));
    assert_eq!(say(&mut holder, at(1_200), Vec::new()), Ok(true));
    assert_eq!(say(&mut holder, at(1_300), Vec::new()), Ok(false));
    assert_eq!(say(&mut holder, at(1_700), Vec::new()), Ok(true), "it had run out");
}

#[test]
fn the_leases_of_all_earlier_primaries_are_waited_out() {
    let (first, second, me) = (member(1, 1), member(3, 1), member(2, 1));
    let mut giver = running();
    let entries = [entry(5, &[first, me]), entry(6, &[second, me]), entry(7, &[me])];
    pass(&mut giver, at(1_100), first, 50).unwrap();
    pass(&mut giver, at(1_000), second, 50).unwrap();
    revoke(&mut giver, &entries[0], &entries[1]);
    revoke(&mut giver, &entries[1], &entries[2]);
    assert_eq!(giver.is_revoked_until(at(1_110), &entries[2]), Some(at(1_475)));
    // The second primary acts on the newest entry; the lease of the first must still be waited out.
    pass(&mut giver, at(1_120), second, 70).unwrap();
    assert_eq!(giver.is_revoked_until(at(1_130), &entries[2]), Some(at(1_475)));
}

#[test]
fn a_primary_does_not_wait_for_its_own_run_but_for_its_earlier_ones() {
    let (primary, me) = (member(1, 1), member(2, 1));
    let mut giver = running();
    let before = entry(5, &[primary, me]);
    pass(&mut giver, at(1_000), primary, 50).unwrap();
    let newest = entry(6, &[primary]);
    revoke(&mut giver, &before, &newest);
    assert_eq!(giver.is_revoked_until(at(1_010), &newest), None);
    let restarted = entry(7, &[member(1, 2), me]);
    assert!(giver.is_revoked_until(at(1_010), &restarted).is_some());
    // A newer run of the primary exists, so the earlier run is gone.
    giver.on_newer_run(member(1, 2));
    assert_eq!(giver.is_revoked_until(at(1_010), &restarted), None);
}

#[test]
fn a_process_that_just_started_waits_for_leases_of_its_earlier_run() {
    let (old, me) = (member(1, 1), member(2, 2));
    let mut giver = Leases::new(at(5_000), Duration::from_millis(400));
    let (before, newest) = (entry(5, &[old, me]), entry(6, &[me]));
    revoke(&mut giver, &before, &newest);
    assert_eq!(giver.is_revoked_until(at(5_001), &newest), Some(at(5_500)));
    assert_eq!(giver.is_revoked_until(at(5_500), &newest), None);
    // The same holds if the holder has already requested a lease, and if the holder has just restarted.
    let mut giver = Leases::new(at(5_000), Duration::from_millis(400));
    pass(&mut giver, at(5_050), old, 50).unwrap();
    pass(&mut giver, at(5_050), member(1, 2), 50).unwrap();
    revoke(&mut giver, &entry(5, &[member(1, 2), me]), &newest);
    assert_eq!(giver.is_revoked_until(at(5_060), &newest), Some(at(5_500)));
}

#[test]
fn an_earlier_run_of_a_holder_gets_no_lease() {
    let mut giver = running();
    assert!(pass(&mut giver, at(1_000), member(1, 2), 50).is_some());
    assert_eq!(pass(&mut giver, at(1_010), member(1, 1), 50), None);
    // The giver does not wait for a lease of the earlier run either.
    let (before, newest) = (entry(5, &[member(1, 1), member(2, 1)]), entry(6, &[member(2, 1)]));
    revoke(&mut giver, &before, &newest);
    assert_eq!(giver.is_revoked_until(at(1_020), &newest), None);
}

#[test]
fn leases_that_were_given_back_are_not_waited_out() {
    let (old, me) = (member(1, 1), member(2, 1));
    let (before, newest) = (entry(5, &[old, me]), entry(6, &[me]));
    for surrenders_first in [true, false] {
        let mut giver = running();
        pass(&mut giver, at(1_000), old, 50).unwrap();
        if surrenders_first {
            giver.on_surrender(old);
            revoke(&mut giver, &before, &newest);
        } else {
            revoke(&mut giver, &before, &newest);
            giver.on_surrender(old);
        }
        assert_eq!(giver.is_revoked_until(at(1_010), &newest), None);
    }
}

#[test]
fn revocations_of_a_removed_pool_are_forgotten() {
    let (old, me) = (member(1, 1), member(2, 1));
    let mut giver = running();
    pass(&mut giver, at(1_000), old, 50).unwrap();
    revoke(&mut giver, &entry(5, &[old, me]), &entry(6, &[me]));
    giver.forget_pool(PG.pool);
    assert_eq!(giver.give(at(1_010), old, 2, &[], SPAN).unwrap().lost, []);
}

/// A holder and two givers with their own clocks and a lossy network: an old and a new primary never serve at
/// the same time.
#[test]
fn two_primaries_never_serve_at_the_same_time() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % bound
    };
    let (old, me) = (member(1, 1), member(2, 1));
    let (before, newest) = (entry(5, &[old, me]), entry(6, &[me]));
    let mut begun_while_old_could = 0;
    for _ in 0..2_000 {
        let rates = [below(201) + 900, below(201) + 900];
        let clock = |rate: u64, real_us: u64| Time::from_nanos(real_us * rate);
        let (mut holder, mut giver) = (running(), running());
        holder.on_connected(me);
        // Messages in transit: the arrival time and the content of each.
        let mut renewals: VecDeque<(u64, u64)> = VecDeque::new();
        let mut grants: VecDeque<(u64, Grant)> = VecDeque::new();
        let (mut knows, mut delay) = (false, 0);
        let learns_at = 1_500_000 + below(400_000);
        let mut begins_at = None;
        for real in (1_000_000..2_600_000u64).step_by(5_000) {
            let (now_holder, now_giver) = (clock(rates[0], real), clock(rates[1], real));
            delay = if below(50) == 0 { below(300_000) } else { delay / 2 };
            if real % 100_000 == 0 && below(5) > 0 {
                renewals.push_back((real + delay, holder.renew(now_holder, me.osd)));
            }
            if !knows && real >= learns_at {
                knows = true;
                revoke(&mut giver, &before, &newest);
            }
            while renewals.front().is_some_and(|(at, _)| *at <= real) {
                let (_, stamp) = renewals.pop_front().unwrap();
                let grant = giver.give(now_giver, old, stamp, &acts_on(50), SPAN).unwrap();
                if below(5) > 0 {
                    grants.push_back((real + delay, grant));
                }
            }
            while grants.front().is_some_and(|(at, _)| *at <= real) {
                let (_, grant) = grants.pop_front().unwrap();
                holder.on_granted(now_holder, me.osd, grant).unwrap();
            }
            if knows && giver.is_revoked_until(now_giver, &newest).is_none() {
                begins_at.get_or_insert(real);
            }
            let old_serves = holder.holds(now_holder, me, PG, before.epoch);
            assert!(!(old_serves && begins_at.is_some()), "rates {rates:?} at {real} us");
            begun_while_old_could += u64::from(old_serves && knows);
        }
        assert!(begins_at.is_some(), "it does not wait for ever");
    }
    assert!(begun_while_old_could > 1_000, "the case happens");
}
