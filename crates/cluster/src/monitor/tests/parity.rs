//! Pools with parity: records, placement, sizes, and how changes affect them.

use std::collections::BTreeMap;

use base::{Duration, Epoch, GIB, KIB, MIB, OsdId, Position, Scheme, StripeIndex};
use format::wire::{Learner, PgEntry};
use serde_json::{Value, json};

use super::rig::{Rig, osd_id};
use crate::map::FailureDomain;
use crate::message::{Command, Need};
use crate::records::Record;
use crate::stats::Table;

const EC_4_2: Scheme = Scheme::ReedSolomon { data: 4, parity: 2 };

/// Returns a cluster with a pool of scheme `ec 4+2`; all OSDs are up.
fn with_parity(osd_count: u32, pg_count: u32) -> Rig {
    let mut rig = Rig::new();
    for number in 1..=osd_count {
        rig.add_osd(number);
    }
    rig.command(create("p", EC_4_2, pg_count)).unwrap();
    assert_eq!(rig.entries().len() as u32, pg_count);
    rig
}

fn create(pool: &str, scheme: Scheme, pg_count: u32) -> Command {
    Command::PoolCreate {
        pool: pool.into(),
        scheme: Some(scheme),
        min_size: None,
        pg_count: Some(pg_count),
        failure_domain: Some(FailureDomain::Osd),
        block_size: None,
        objects: None,
    }
}

fn set(scheme: Scheme, min_size: Option<u32>) -> Command {
    Command::PoolSet {
        pool: "p".into(),
        rename: None,
        scheme: Some(scheme),
        min_size,
        failure_domain: None,
    }
}

fn pool_row(rig: &mut Rig) -> Value {
    rig.rows(Table::Pool)[0].clone()
}

/// Returns the message of the check with this code in `status`.
fn message_of(rig: &mut Rig, code: &str) -> String {
    let status = rig.status();
    let checks = status["checks"].as_array().unwrap();
    let named = checks.iter().find(|check| check["code"] == code);
    named.unwrap_or_else(|| panic!("no {code}: {checks:?}"))["message"]
        .as_str()
        .unwrap()
        .to_string()
}

/// Checks that every PG is where it should be, and that its primary holds data.
fn assert_whole(rig: &Rig, scheme: Scheme) {
    for entry in rig.entries() {
        assert_eq!(entry.positions.len() as u32, scheme.position_count());
        assert_eq!(entry.acting_count(), entry.positions.len(), "{entry:?}");
        assert!(entry.learners.is_empty());
        assert!(scheme.has_data(entry.primary.unwrap()), "{entry:?}");
    }
}

#[test]
fn a_pool_with_parity_has_a_member_for_each_part() {
    let mut rig = with_parity(8, 64);
    assert_whole(&rig, EC_4_2);
    let row = pool_row(&mut rig);
    assert_eq!((&row["scheme"], &row["min_size"]), (&json!("ec 4+2"), &json!(5)));
    assert_eq!((&row["data_parts"], &row["parity_parts"]), (&json!(4), &json!(2)));
    assert_eq!((&row["stripe_size"], &row["replicas"]), (&json!(512 * KIB), &Value::Null));
    let free = 8 * ((10 << 30) - MIB);
    assert_eq!(row["available_bytes"], free / 6 * 4 + free % 6 * 4 / 6);
    let mut roles: BTreeMap<u32, [u32; 3]> = BTreeMap::new();
    for entry in rig.entries() {
        for (position, member) in entry.filled() {
            let counts = roles.entry(member.osd.get()).or_default();
            counts[0] += u32::from(entry.primary == Some(position));
            counts[1] += u32::from(EC_4_2.has_data(position));
            counts[2] += 1;
        }
    }
    for (osd, [leads, data, all]) in roles {
        assert_eq!((leads, all), (8, 48), "osd.{osd}");
        assert!((30..=34).contains(&data), "osd.{osd} has {data} data parts of {all}");
    }
}

#[test]
fn a_journal_without_room_for_all_primaries_is_told_from_a_full_disk() {
    // Eight OSDs share all PGs, so eight lead PGs of each.
    let mut rig = with_parity(8, 64);
    rig.report(3, |report| report.parity_primaries_max = Some(8));
    assert!(
        rig.status()["checks"].as_array().unwrap().iter().all(|it| it["code"] != "osd_no_room")
    );
    rig.report(3, |report| report.parity_primaries_max = Some(7));
    let message = message_of(&mut rig, "osd_no_room");
    assert!(message.contains("osd.3") && message.contains("only 7 of the 8"), "{message}");
    let refused = rig.command(create("q", EC_4_2, 64)).unwrap_err();
    assert!(refused.message.contains("osd.3"), "{refused:?}");
    rig.command(create("q", Scheme::Copies { count: 3 }, 64)).expect("copies prepare nothing");
    rig.report(3, |report| report.parity_primaries_max = Some(8));
    rig.command(Command::PoolRemove { pool: "q".into(), accepted: false }).unwrap();
    rig.command(create("q", EC_4_2, 64)).expect("each primary has room");
}

#[test]
fn records_of_pools_with_parity_and_of_earlier_versions_are_read() {
    let mut rig = with_parity(6, 8);
    rig.restart();
    rig.tick();
    assert_eq!((rig.stopped.clone(), &pool_row(&mut rig)["scheme"]), (None, &json!("ec 4+2")));
    let key = crate::records::Key::parse("pool/1").unwrap();
    let mut text = rig.monitor.committed.record(&key).unwrap().to_json();
    let fields = text.as_object_mut().unwrap();
    fields.remove("scheme");
    fields.insert("replicas".into(), json!(3));
    fields.insert("colour".into(), json!("red"));
    let read = Record::parse(&key, &text.to_string()).unwrap();
    let Record::Pool(pool) = &read else { unreachable!() };
    assert_eq!(pool.pool.scheme, Scheme::Copies { count: 3 });
    let again = read.to_json();
    assert_eq!((&again["scheme"], &again["colour"]), (&json!("3 copies"), &json!("red")));
    assert_eq!(again["replicas"], Value::Null);
}

#[test]
fn volumes_are_cut_at_stripes() {
    let mut rig = with_parity(6, 8);
    rig.make_volume("v", GIB).unwrap();
    // The task waits for osd.6.
    rig.crash_osd(6);
    let size = 3 * 512 * KIB + 128 * KIB;
    let shrink = Command::VolumeResize { volume: "v".into(), size, shrink: true };
    rig.command(shrink).unwrap();
    let task = rig.monitor.committed.tasks().next().unwrap();
    assert_eq!(task.from, StripeIndex::new(4));
    let zero = task.zero.unwrap();
    assert_eq!(
        (zero.stripe, u64::from(zero.offset), u64::from(zero.length)),
        (StripeIndex::new(3), 128 * KIB, 384 * KIB)
    );
}

#[test]
fn clients_see_the_bytes_that_they_wrote() {
    let mut rig = with_parity(6, 8);
    rig.make_volume("v", GIB).unwrap();
    for number in 1..=6 {
        rig.space(number, &[(1, 10 * MIB)], true);
    }
    rig.intervals(2);
    let used = 6 * 10 * MIB * 4;
    assert_eq!(pool_row(&mut rig)["used_bytes"], used);
    assert_eq!(rig.rows(Table::Volume)[0]["used_bytes"], used);
}

#[test]
fn a_lost_member_is_replaced_at_its_position() {
    let mut rig = with_parity(8, 64);
    let before = rig.entries();
    rig.kill_osd(8);
    rig.advance(Duration::from_secs(602));
    rig.fill();
    assert_whole(&rig, EC_4_2);
    for (before, now) in before.iter().zip(rig.entries()) {
        for (position, member) in before.filled() {
            let stays = member.osd != osd_id(8);
            assert_eq!(now.member_at(position) == Some(*member), stays, "{before:?} {now:?}");
        }
    }
    let mut leads: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in rig.entries() {
        *leads.entry(entry.primary_osd().unwrap().get()).or_default() += 1;
    }
    assert!(leads.values().all(|count| (7..=12).contains(count)), "{leads:?}");
}

#[test]
fn parity_can_be_added_and_nothing_else_of_a_scheme_changes() {
    let mut rig = with_parity(8, 16);
    let code = |data, parity| Scheme::ReedSolomon { data, parity };
    for (wanted, min_size) in [
        (code(4, 1), None),
        (code(5, 2), None),
        (Scheme::Xor { data: 4 }, None),
        (Scheme::Copies { count: 3 }, None),
        (EC_4_2, Some(3)),
        (code(4, 3), Some(8)),
    ] {
        assert_eq!(rig.command(set(wanted, min_size)).unwrap_err().code, "invalid", "{wanted}");
    }
    assert_eq!(rig.command(set(code(4, 4), None)).unwrap()["scheme"], "ec 4+4");
    assert_eq!(pool_row(&mut rig)["min_size"], 5);
    let first = rig.entries();
    assert!(first.iter().all(|entry| entry.positions.len() == 8 && entry.learners.len() == 2));
    let places = |entry: &format::wire::PgEntry| {
        let places = entry.learners.iter().map(|learner| learner.position.get());
        places.collect::<Vec<u8>>()
    };
    assert!(first.iter().all(|entry| places(entry) == [6, 7]), "the others stay");
    (1..=8).for_each(|number| rig.report(number, |_| {}));
    assert!(rig.checks().contains(&"pg_degraded".to_string()));
    rig.fill();
    assert_whole(&rig, code(4, 4));
    // There is no OSD for a seventh member.
    let mut rig = with_parity(6, 8);
    assert_eq!(rig.command(set(code(4, 3), None)).unwrap_err().code, "cannot_place");
}

#[test]
fn a_pg_with_fewer_members_than_parts_is_not_given_up() {
    let mut rig = with_parity(6, 1);
    let entry = rig.entry(0);
    let at = |index: u8| entry.member_at(Position::new(index).unwrap()).unwrap().osd.get();
    rig.kill_osd(at(5));
    assert_eq!(rig.entry(0).acting_count(), 5);
    assert!(!rig.checks().contains(&"pg_last_copy".to_string()));
    rig.kill_osd(at(4));
    assert_eq!(rig.entry(0).acting_count(), 5, "the minimum is five");
    let give_up = |accepted| Command::PgGiveUp {
        pg: entry.pg,
        accepted,
        they_are_off: true,
        older_copy: false,
    };
    let asked = rig.command(give_up(false)).unwrap_err();
    assert_eq!(asked.code, "not_accepted");
    rig.kill_osd(at(3));
    let refused = rig.command(give_up(true)).unwrap_err();
    assert_eq!(refused.code, "unavailable");
    assert!(refused.message.contains("at least 4 are needed"), "{}", refused.message);
    rig.boot(at(3));
    rig.report(at(3), |_| {});
    rig.command(give_up(true)).unwrap();
    assert_eq!(rig.entry(0).acting_count(), 4);
    rig.report(rig.entry(0).primary_osd().unwrap().get(), |_| {});
    assert!(rig.checks().contains(&"pg_last_copy".to_string()));
}

#[test]
fn a_host_that_has_too_many_members_is_named() {
    let mut rig = with_parity(6, 8);
    let message = message_of(&mut rig, "host_loss_stops_pool");
    assert!(
        message.contains("can lose 1 of its members and continue, but host h has 6"),
        "{message}"
    );
    let mut rig = Rig::with_copies(3, 3, 2, 8);
    assert!(!rig.checks().contains(&"host_loss_stops_pool".to_string()));
}

#[test]
fn a_record_that_no_pool_can_have_is_not_used() {
    for (field, bad, why) in [
        ("min_size", json!(3), "min_size with scheme ec 4+2 must be from 4 to 6, not 3"),
        ("block_size", json!(16 * KIB), "blocks with ec 4+2 must be at least 64 KiB, not 16 KiB"),
        (
            "pg_count",
            json!(16384),
            "a pool with scheme ec 4+2 can have at most 8192 PGs, not 16384",
        ),
    ] {
        let mut rig = with_parity(6, 8);
        let key = crate::records::Key::parse("pool/1").unwrap();
        let mut edited = rig.monitor.committed.record(&key).unwrap().to_json();
        edited[field] = bad;
        rig.hand_writes("pool/1", Some(&edited.to_string()));
        assert_eq!(pool_row(&mut rig)["scheme"], "ec 4+2");
        let message = message_of(&mut rig, "state_edit_undone");
        assert!(message.contains("pool/1"), "{message}");
        // A change made while no monitor leads has no earlier value to be restored.
        rig.hand_writes_unseen("pool/1", Some(&edited.to_string()));
        rig.restart();
        rig.tick();
        let message = message_of(&mut rig, "state_damaged");
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn the_map_of_a_pool_fits_in_one_message() {
    let mut rig = Rig::new();
    for number in 1..=20 {
        rig.add_osd(number);
    }
    let create = |scheme, pg_count| Command::PoolCreate {
        pool: "p".into(),
        scheme: Some(scheme),
        min_size: None,
        pg_count: Some(pg_count),
        failure_domain: Some(FailureDomain::Osd),
        block_size: None,
        objects: None,
    };
    let widest = Scheme::ReedSolomon { data: 16, parity: 4 };
    let error = rig.command(create(widest, 4096)).unwrap_err();
    assert_eq!((&error.code[..], error.hint.contains("from 1 to 2048")), ("invalid", true));
    rig.command(create(widest, 2048)).unwrap();
    let map = serde_json::to_string(&rig.entries()).unwrap();
    assert!(map.len() < 4 << 20, "{}", map.len());
}

/// Returns an OSD that is not in the entry.
fn outside(entry: &PgEntry) -> OsdId {
    (1..).map(osd_id).find(|osd| entry.members().all(|member| member.osd != *osd)).unwrap()
}

#[test]
fn an_osd_that_a_primary_calls_back_learns_until_the_pg_is_active() {
    let mut rig = with_parity(8, 1);
    let entry = rig.entry(0);
    let osd = outside(&entry);
    rig.need(&entry, Need::CallBack(osd));
    let called = rig.entry(0);
    assert_eq!(called.learning().map(|member| member.osd).collect::<Vec<_>>(), [osd]);
    assert_eq!(called.positions, entry.positions);
    // The next epochs have it, too, although their primary has not asked yet.
    rig.need(&called, Need::NewEpoch);
    rig.advance(Duration::from_millis(10));
    let next = rig.entry(0);
    assert_eq!((next.epoch, &next.learners), (called.epoch.next(), &called.learners));
    // It has more than the present member at this position.
    let Learner { member, .. } = next.learners[0];
    let position = Position::new(3).unwrap();
    rig.need(&next, Need::Return(member, position));
    let back = rig.entry(0);
    assert_eq!((back.member_at(position), back.learner(osd)), (Some(member), None));
    let other = outside(&back);
    rig.need(&back, Need::CallBack(other));
    let waits = rig.entry(0);
    assert!(waits.learner(other).is_some());
    let primary = waits.primary_osd().unwrap().get();
    rig.report(primary, |report| report.active.clear());
    assert_eq!(rig.entry(0), waits);
    rig.report(primary, |_| {});
    assert_eq!(rig.entry(0).learner(other), None, "it is active without it");
}

#[test]
fn osds_that_are_called_back_replace_learners_of_the_plan() {
    let mut rig = with_parity(14, 1);
    let entry = rig.entry(0);
    // Three members are lost, and learners of the plan are to replace them.
    let members: Vec<u32> = entry.acting().map(|member| member.osd.get()).collect();
    for number in &members[3..] {
        rig.crash_osd(*number);
        rig.command(Command::OsdOut { osd: osd_id(*number) }).unwrap();
    }
    rig.advance(Duration::from_secs(30));
    let entry = rig.entry(0);
    assert_eq!((entry.acting_count(), entry.learners.len()), (6, 3), "{entry:?}");
    let planned = entry.learners.clone();
    let others: Vec<OsdId> = (1..=14)
        .map(osd_id)
        .filter(|osd| entry.members().all(|member| member.osd != *osd))
        .take(5)
        .collect();
    for osd in &others {
        let now = rig.entry(0);
        rig.need(&now, Need::CallBack(*osd));
    }
    let now = rig.entry(0);
    assert_eq!(now.learners.len(), 6, "{now:?}");
    assert!(others.iter().all(|osd| now.learner(*osd).is_some()), "{now:?}");
    let left = planned.iter().filter(|it| now.learner(it.member.osd).is_some()).count();
    assert_eq!(left, 1);
}

#[test]
fn an_osd_with_data_left_over_is_told_which_pgs_are_active() {
    let mut rig = with_parity(8, 1);
    let entry = rig.entry(0);
    let (osd, primary) = (outside(&entry), entry.primary_osd().unwrap());
    let asks = |rig: &mut Rig, epoch: Epoch| {
        let told = (entry.pg, epoch);
        rig.report(osd.get(), |report| report.leftovers.push(told));
        std::mem::take(&mut rig.osds.get_mut(&osd).unwrap().active)
    };
    rig.report(primary.get(), |report| report.active.clear());
    assert_eq!(asks(&mut rig, entry.epoch), [], "its primary does not serve it");
    rig.report(primary.get(), |_| {});
    assert_eq!(asks(&mut rig, entry.epoch), [(entry.pg, entry.epoch)]);
    rig.need(&entry, Need::NewEpoch);
    rig.advance(Duration::from_millis(10));
    let next = rig.entry(0);
    assert_eq!(asks(&mut rig, entry.epoch), [], "that epoch is over");
    assert_eq!(asks(&mut rig, next.epoch), [], "nothing is known of the new one");
}
