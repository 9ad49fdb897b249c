//! At every transaction of a scenario, the monitor ends or the store replies "unknown".

use std::collections::BTreeSet;

use base::{Duration, GIB};
use serde_json::Value;

use super::rig::{CLUSTER, Mishap, Rig, identity, osd_id};
use crate::map::ClusterMap;
use crate::message::{Command, FromMonitor, ToMonitor};
use crate::monitor::{Event, Identity, StopReason};
use crate::state::memory::MemoryState;
use crate::state::{
    Operation, StateEffect, StateEvent, StateRequest, StateRevision, StateStore, Transaction,
};

/// The scenario: OSDs boot; a pool, a volume and a session are created; the session is lost; an OSD restarts;
/// the volume is removed, with a fence and a task. A command that is repeated may already have been executed.
fn life(rig: &mut Rig, pg_count: u32) {
    for number in 1..=2 {
        rig.add_osd(number);
    }
    let made = rig.make_pool("p", pg_count);
    assert!(made.is_ok() || made.unwrap_err().code == "exists");
    let made = rig.make_volume("v", GIB);
    assert!(made.is_ok() || made.unwrap_err().code == "exists");
    let client = rig.client();
    let opened = rig.open_session(client, "v");
    rig.break_connection(client);
    rig.advance(Duration::from_secs(12));
    rig.kill_osd(2);
    rig.boot(2);
    let mut removed = rig.remove_volume("v");
    if removed.as_ref().is_err_and(|error| error.code == "busy") {
        // After a restart, the monitor starts the timeouts of sessions again.
        rig.advance(Duration::from_secs(12));
        removed = rig.remove_volume("v");
    }
    assert!(removed.is_ok() || removed.unwrap_err().code == "not_found");
    rig.advance(Duration::from_secs(30));
    if let Some(Ok((session, _))) = opened {
        let pool = rig.osds[&osd_id(1)].map.pools.values().next().unwrap();
        assert!(pool.is_fenced(session));
    }
}

/// Checks the final state, which must be the same whatever went wrong.
fn check_end(rig: &mut Rig) {
    assert_eq!(rig.stopped, None);
    assert_eq!(rig.tasks(), [] as [Value; 0]);
    assert_eq!(rig.command(Command::VolumeList).unwrap(), Value::Array(vec![]));
    let keys: BTreeSet<String> = rig.store.entries().map(|entry| entry.key.clone()).collect();
    for prefix in ["image/", "index/", "session/", "task/"] {
        assert!(!keys.iter().any(|key| key.starts_with(prefix)), "{prefix} is left over");
    }
    let client = rig.client();
    let mut map = ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    let pool = map.pools.values().next().unwrap();
    let deleted: BTreeSet<_> =
        rig.osds.values().flat_map(|osd| osd.deleted.iter().map(|(pg, ..)| *pg)).collect();
    assert_eq!(deleted.len(), pool.pgs.len(), "every PG was asked to delete");
    for entry in &pool.pgs {
        let member = entry.positions[0].unwrap();
        assert_eq!(member.incarnation, map.osds[&member.osd].incarnation);
        assert!(entry.revision <= pool.revision);
    }
    for number in 1..=2 {
        let osd = &rig.osds[&osd_id(number)];
        assert_eq!(osd.refused, None);
        assert_eq!(osd.incarnation, Some(map.osds[&osd_id(number)].incarnation));
        assert_eq!(osd.map, map, "osd.{number} has the newest map");
        assert!(map.osds[&osd_id(number)].up);
    }
}

/// A number of PGs that needs two shards.
const PG_COUNT: u32 = 512;

fn live_with(mishap: impl Fn(u32) -> Mishap) {
    let mut rig = Rig::new();
    life(&mut rig, PG_COUNT);
    check_end(&mut rig);
    assert!(rig.transactions > 20);
    for transaction in 1..=rig.transactions {
        let mut rig = Rig::new();
        rig.mishap = mishap(transaction);
        life(&mut rig, PG_COUNT);
        check_end(&mut rig);
    }
}

#[test]
fn a_monitor_killed_at_any_effect_goes_on() {
    let mut rig = Rig::new();
    life(&mut rig, 8);
    assert!(rig.effects > 40);
    for effect in 1..=rig.effects {
        let mut rig = Rig::new();
        rig.mishap = Mishap::KillAtEffect(effect);
        life(&mut rig, 8);
        check_end(&mut rig);
    }
}

#[test]
fn a_monitor_killed_before_any_transaction_goes_on() {
    live_with(Mishap::KillBefore);
}

#[test]
fn a_monitor_killed_after_any_transaction_goes_on() {
    live_with(Mishap::KillAfter);
}

#[test]
fn an_unknown_outcome_that_happened_is_recognised() {
    live_with(Mishap::UnknownHappened);
}

#[test]
fn an_unknown_outcome_that_did_not_happen_is_done_again() {
    live_with(Mishap::UnknownLost);
}

#[test]
fn a_transaction_that_lands_late_does_no_harm() {
    live_with(Mishap::UnknownLate);
}

#[test]
fn ids_and_incarnations_are_never_given_twice() {
    let mut rig = Rig::with_pool(1, 8);
    let mut ids = BTreeSet::new();
    for round in 1..=4 {
        let row = rig.make_volume("v", GIB).unwrap();
        assert!(ids.insert(row["id"].as_u64().unwrap()));
        rig.remove_volume("v").unwrap();
        rig.kill_osd(1);
        rig.restart();
        rig.boot(1);
        let incarnation = rig.osds[&osd_id(1)].incarnation.unwrap();
        assert_eq!(incarnation.get(), round + 1);
    }
}

#[test]
fn a_session_survives_the_restart_of_the_monitor() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    let client = rig.client();
    let (session, _) = rig.open_session(client, "v").unwrap().unwrap();
    rig.restart();
    rig.tick();
    let client = rig.client();
    rig.say(client, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    rig.advance(Duration::from_secs(60));
    assert_eq!(rig.remove_volume("v").unwrap_err().code, "busy");
    rig.restart();
    rig.tick();
    rig.advance(Duration::from_secs(11));
    assert!(rig.remove_volume("v").is_ok(), "it did not come back");
}

#[test]
fn osds_that_do_not_come_back_after_a_restart_are_down() {
    let mut rig = Rig::with_pool(2, 8);
    rig.osds.get_mut(&osd_id(2)).unwrap().connection = None;
    rig.restart();
    rig.advance(Duration::from_secs(4));
    assert!(rig.osds[&osd_id(1)].map.osds[&osd_id(2)].up);
    rig.advance(Duration::from_secs(2));
    assert!(!rig.osds[&osd_id(1)].map.osds[&osd_id(2)].up);
}

#[test]
fn a_store_that_cannot_be_asked_is_asked_again() {
    let mut rig = Rig::new();
    rig.is_store_away = true;
    rig.restart();
    rig.advance(Duration::from_secs(1));
    rig.is_store_away = false;
    let client = rig.client();
    assert_eq!(rig.command_over(client, Command::VolumeList), None, "it waits");
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.inbox[&client].len(), 1, "what came early is answered");
}

#[test]
fn status_says_why_the_store_cannot_be_asked_before_the_first_reading() {
    let mut rig = Rig::new();
    let trouble = |text: Option<&str>| {
        Event::State(StateEvent::Condition { trouble: text.map(str::to_string) })
    };
    let check = |answer: &FromMonitor| match answer {
        FromMonitor::Answer { result: Ok(status), .. } => status["checks"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|check| check["code"] == "state_unavailable")
            .map(|check| (check["severity"].clone(), check["message"].clone())),
        other => panic!("{other:?}"),
    };
    rig.is_store_away = true;
    rig.restart();
    rig.tick();
    let client = rig.client();
    assert_eq!(rig.command_over(client, Command::VolumeList), None);
    assert_eq!(rig.command_over(client, Command::Status), None, "it may be there in a moment");
    rig.event(trouble(Some("no etcd at x")));
    let waited = rig.inbox.get_mut(&client).unwrap().pop_front().unwrap();
    assert_eq!(check(&waited), Some(("error".into(), "no etcd at x".into())));
    assert!(rig.command_over(client, Command::Status).is_some(), "answered at once");
    rig.inbox.get_mut(&client).unwrap().clear();

    rig.is_store_away = false;
    rig.event(trouble(None));
    rig.advance(Duration::from_secs(1));
    assert_eq!(rig.inbox[&client].len(), 1, "the list that waited");
    assert!(!rig.checks().contains(&"state_unavailable".to_string()));
    // Once the store has been read, PGs are served even if it cannot be reached.
    rig.event(trouble(Some("etcd is gone")));
    assert_eq!(rig.status()["health"], "warn");
}

#[test]
fn a_store_that_is_not_of_this_cluster_is_refused() {
    let put = |store: &mut MemoryState, key: &str, value: &str| {
        let mut transaction = Transaction::new();
        let revision = store.entries().find(|entry| entry.key == key);
        let revision = revision.map_or(StateRevision::ZERO, |entry| entry.revision);
        let operation = Operation::Put { key: key.into(), value: value.into(), lease: None };
        transaction.write(operation, revision);
        let effect = StateEffect::Transact { request: StateRequest(0), transaction };
        store.apply(base::Time::ZERO, effect, &mut Vec::new());
    };
    let good = Rig::with_pool(1, 8).store;
    let cases = [
        ("cluster", r#"{"id":"00000000000000000000000000000001","format":1}"#.to_string()),
        ("cluster", format!(r#"{{"id":"{CLUSTER}","format":2}}"#)),
        ("cluster", "{}".to_string()),
    ];
    for (key, value) in cases {
        let mut store = good.clone();
        put(&mut store, key, &value);
        let stopped = Rig::over(store).stopped;
        match &stopped {
            Some(StopReason::OtherCluster(_)) => assert!(value.contains("0001")),
            Some(StopReason::State(_)) => assert!(!value.contains("0001")),
            other => panic!("{key} {value}: {other:?}"),
        }
    }
    let mut store = MemoryState::default();
    put(&mut store, "strange", "1");
    assert!(matches!(Rig::over(store).stopped, Some(StopReason::State(_))));
}

#[test]
fn a_monitor_that_lost_leadership_ends() {
    let mut rig = Rig::with_pool(1, 8);
    let other = Identity { pid: 999, ..identity() };
    let mut usurper = Rig::over(rig.store.clone());
    usurper.monitor = crate::monitor::Monitor::new(other);
    usurper.tick();
    rig.store = usurper.store;
    let client = rig.client();
    let create =
        Command::VolumeCreate { gateway: false, volume: "v".into(), size: GIB, pool: None };
    assert_eq!(rig.command_over(client, create), None);
    assert!(matches!(rig.stopped, Some(StopReason::LostLeadership(_))));
    assert!(!rig.store.entries().any(|entry| entry.key.starts_with("image/")));
}

#[test]
fn a_store_older_than_an_osd_changes_nothing() {
    // An OSD reports a run or a map revision that this store has not issued.
    for goes_on in [true, false] {
        let mut rig = Rig::with_pool(1, 8);
        let backup = rig.store.clone();
        for _ in 0..3 {
            rig.kill_osd(1);
            rig.boot(1);
        }
        assert!(rig.checks().iter().all(|check| check != "state_older"));
        rig.store = backup;
        if !goes_on {
            rig.osds.get_mut(&osd_id(1)).unwrap().incarnation = None;
        }
        rig.restart();
        rig.tick();
        assert_eq!(rig.make_volume("w", GIB).unwrap_err().code, "state_older");
        assert_eq!(rig.status()["health"], "error");
        assert!(rig.checks().contains(&"state_older".to_string()));
        assert_eq!(rig.osds[&osd_id(1)].refused, None, "its I/O goes on");
    }
}
