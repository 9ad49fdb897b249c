//! Restoring a backup of the state store.

use base::{ConnectionId, Duration, Epoch, MapRevision, OsdId, PoolId, SessionId};

use super::rig::{Mishap, Rig, osd_id};
use crate::copy::{Activated, CopyKeeper};
use crate::message::{Command, Failure, FromMonitor, ToMonitor};
use crate::numbers::EPOCH_MAX;
use crate::state::memory::MemoryState;

const GIB: u64 = 1 << 30;

fn recover(rig: &mut Rig, lost: &[u32], accepted: bool) -> Result<serde_json::Value, Failure> {
    let they_are_lost: Vec<OsdId> = lost.iter().map(|number| osd_id(*number)).collect();
    rig.command(Command::StateRecover { they_are_lost, accepted })
}

/// Restores a backup: the monitor is a new process, and all peers that were connected must reconnect.
fn restore(rig: &mut Rig, backup: &MemoryState) {
    rig.store = backup.clone();
    rig.restart();
    rig.tick();
    rig.advance(Duration::from_millis(10));
}

/// Breaks the connections of these OSDs, and keeps the OSDs from reconnecting.
fn stop(rig: &mut Rig, numbers: &[u32]) {
    for number in numbers {
        if let Some(connection) = rig.osds[&osd_id(*number)].connection {
            rig.break_connection(connection);
        }
    }
}

fn come_again(rig: &mut Rig, numbers: &[u32]) {
    for number in numbers {
        rig.boot(*number);
        rig.report(*number, |_| {});
    }
}

fn is_older(rig: &mut Rig) -> bool {
    rig.checks().contains(&"state_older".to_string())
}

fn volumes(rig: &mut Rig) -> Vec<String> {
    let rows = rig.command(Command::VolumeList).unwrap();
    let name = |row: &serde_json::Value| row["name"].as_str().unwrap().to_string();
    let mut names: Vec<String> = rows.as_array().unwrap().iter().map(name).collect();
    names.sort();
    names
}

#[test]
fn one_change_since_the_backup_is_enough_to_refuse_it() {
    // Only the OSDs' copies show that a volume was created: no entry, run or map has changed.
    let mut rig = Rig::with_pool(2, 8);
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    restore(&mut rig, &backup);
    assert!(is_older(&mut rig));
    assert_eq!(rig.make_volume("x", GIB).unwrap_err().code, "state_older");
    let connected = rig.open.len();
    let client = rig.client();
    let refused = rig.open_session(client, "w").unwrap().unwrap_err();
    assert_eq!(refused.code, "state_older");
    assert!(connected >= 2, "OSDs wait with the monitor");
    assert!(rig.osds.values().all(|osd| osd.refused.is_none()), "their I/O goes on");
}

#[test]
fn a_store_that_is_not_older_is_neither_refused_nor_recovered() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("w", GIB).unwrap();
    let newest = rig.store.clone();
    restore(&mut rig, &newest);
    assert!(!is_older(&mut rig));
    assert_eq!(recover(&mut rig, &[], true).unwrap_err().code, "invalid");
    rig.make_volume("x", GIB).unwrap();
}

#[test]
fn what_was_done_since_the_backup_comes_back() {
    let mut rig = Rig::with_pool(3, 8);
    for name in ["old", "gone", "grown"] {
        rig.make_volume(name, GIB).unwrap();
    }
    let backup = rig.store.clone();
    rig.make_volume("new", GIB).unwrap();
    rig.remove_volume("gone").unwrap();
    let grow = Command::VolumeResize { volume: "grown".into(), size: 4 * GIB, shrink: false };
    rig.command(grow).unwrap();
    rig.add_osd(4);
    rig.make_pool("later", 8).unwrap();
    let create = Command::VolumeCreate {
        gateway: false,
        volume: "there".into(),
        size: GIB,
        pool: Some("later".into()),
    };
    rig.command(create).unwrap();
    let set = Command::ConfigSet { setting: "osd_grace_ms".into(), value: Some("500".into()) };
    rig.command(set).unwrap();
    let before = rig.entries();
    let newest: u64 = rig.monitor.committed.change().last;
    let revisions: Vec<MapRevision> =
        rig.monitor.committed.pools().map(|record| record.revision).collect();
    let images: Vec<_> = rig.monitor.committed.images().cloned().collect();

    restore(&mut rig, &backup);
    assert!(is_older(&mut rig));
    let error = recover(&mut rig, &[], false).unwrap_err();
    assert_eq!(error.code, "not_accepted");
    for part in ["restored: new, there", "removed after the backup: gone"] {
        assert!(error.message.contains(part), "{}", error.message);
    }
    let answer = recover(&mut rig, &[], true).unwrap();
    assert_eq!(answer["volumes_back"], serde_json::json!(["new", "there"]));
    assert_eq!(rig.stopped, None);
    rig.tick();
    assert!(!is_older(&mut rig));
    assert_eq!(volumes(&mut rig), ["grown", "new", "old", "there"]);
    assert_eq!(rig.monitor.committed.images().cloned().collect::<Vec<_>>(), images);
    let setting = rig.command(Command::ConfigGet { setting: "osd_grace_ms".into() }).unwrap();
    assert_eq!(setting["value"], 500);

    // All numbers are above those that were seen, and all OSDs join without a new run.
    let runs: Vec<_> = rig.osds.values().map(|osd| osd.incarnation).collect();
    come_again(&mut rig, &[1, 2, 3, 4]);
    assert_eq!(rig.osds.values().map(|osd| osd.incarnation).collect::<Vec<_>>(), runs);
    assert!(rig.osds.values().all(|osd| osd.refused.is_none()));
    assert!(!is_older(&mut rig));
    assert!(rig.monitor.committed.change().last > newest);
    for (record, revision) in rig.monitor.committed.pools().zip(revisions) {
        assert!(record.revision > revision);
    }
    for entry in rig.entries() {
        let known = before.iter().find(|known| known.pg == entry.pg).unwrap();
        assert!(entry.epoch > known.epoch, "{entry:?}");
        assert_eq!(entry.positions, known.positions);
        for osd in rig.osds.values() {
            assert_eq!(osd.map.pg(entry.pg).unwrap().epoch, entry.epoch, "they have taken it");
        }
    }
    let create = Command::VolumeCreate {
        gateway: false,
        volume: "next".into(),
        size: GIB,
        pool: Some("p".into()),
    };
    let made = rig.command(create).unwrap();
    let highest = images.iter().map(|image| image.info.id.get()).max().unwrap();
    assert!(made["id"].as_u64().unwrap() > u64::from(highest) + 1);
    // After another restart the store counts as up to date.
    rig.restart();
    rig.tick();
    assert!(!is_older(&mut rig));
}

#[test]
fn all_osds_must_have_told_or_be_declared_lost() {
    let mut rig = Rig::with_pool(3, 8);
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    stop(&mut rig, &[3]);
    restore(&mut rig, &backup);
    let error = recover(&mut rig, &[], true).unwrap_err();
    assert_eq!(error.code, "unavailable");
    assert!(error.message.starts_with("osd.3 has not reported"), "{}", error.message);
    assert_eq!(recover(&mut rig, &[2, 3], true).unwrap_err().code, "invalid", "osd.2 is here");
    assert_eq!(recover(&mut rig, &[3, 9], true).unwrap_err().code, "not_found");
    let error = recover(&mut rig, &[3], false).unwrap_err();
    assert!(
        error.message.contains("anything that only osd.3 had recorded is lost"),
        "{}",
        error.message
    );
    recover(&mut rig, &[3], true).unwrap();
    come_again(&mut rig, &[1, 2]);
    assert_eq!(volumes(&mut rig), ["w"]);
    // An OSD that was declared lost but returns gets a run that was never issued, and may join.
    let before = rig.osds[&osd_id(3)].incarnation.unwrap();
    rig.osds.get_mut(&osd_id(3)).unwrap().incarnation = None;
    come_again(&mut rig, &[3]);
    assert!(!is_older(&mut rig));
    assert!(rig.osds[&osd_id(3)].incarnation.unwrap() > before);
}

#[test]
fn an_osd_that_keeps_quiet_is_waited_for() {
    let mut rig = Rig::with_pool(2, 8);
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    rig.osds.get_mut(&osd_id(2)).unwrap().is_mute = true;
    restore(&mut rig, &backup);
    let error = recover(&mut rig, &[], true).unwrap_err();
    assert!(error.message.starts_with("osd.2 has not reported"), "{}", error.message);
}

#[test]
fn the_cluster_that_went_on_from_a_backup_is_left_behind() {
    // osd.1 was down since the backup was made. It joins the old store, which continues with osd.1 until its
    // transaction number reaches or exceeds that of the newer state. osd.2 has seen the newer state.
    for count in [1, 2, 8] {
        let mut rig = Rig::new();
        rig.add_osd(1);
        rig.add_osd(2);
        rig.make_replicated("p", 2, Some(1), 8).unwrap();
        stop(&mut rig, &[1]);
        rig.advance(Duration::from_secs(10));
        let backup = rig.store.clone();
        rig.make_volume("true", GIB).unwrap();
        stop(&mut rig, &[2]);
        restore(&mut rig, &backup);
        rig.boot(1);
        assert!(!is_older(&mut rig), "osd.1 does not know better");
        for number in 0..count {
            rig.make_volume(&format!("false{number}"), GIB).unwrap();
        }
        rig.boot(2);
        assert!(is_older(&mut rig), "{count} changes hide nothing");
        rig.boot(1);
        let answer = recover(&mut rig, &[], true).unwrap();
        assert_eq!(answer["has_copy"], true);
        come_again(&mut rig, &[1, 2]);
        assert!(!is_older(&mut rig), "what osd.1 saw of the false one counts no more");
        assert_eq!(volumes(&mut rig), ["true"]);
    }
}

#[test]
fn a_recovery_is_begun_anew_wherever_the_monitor_ends() {
    let backup_of = || {
        let mut rig = Rig::with_pool(3, 8);
        let backup = rig.store.clone();
        // More records than fit in one transaction.
        for number in 0..150 {
            rig.make_volume(&format!("v{number}"), GIB).unwrap();
        }
        restore(&mut rig, &backup);
        rig
    };
    for count in 1..=6 {
        for mishap in Mishap::all_of(count) {
            let mut rig = backup_of();
            rig.transactions = 0;
            rig.mishap = mishap;
            let client = rig.client();
            let lost = Vec::new();
            let command = Command::StateRecover { they_are_lost: lost, accepted: true };
            rig.command_over(client, command);
            rig.mishap = Mishap::None;
            rig.tick();
            rig.advance(Duration::from_secs(1));
            assert_eq!(rig.stopped, None, "{mishap:?}");
            if is_older(&mut rig) {
                assert_eq!(rig.make_volume("x", GIB).unwrap_err().code, "state_older");
                recover(&mut rig, &[], true).unwrap();
            }
            come_again(&mut rig, &[1, 2, 3]);
            assert!(!is_older(&mut rig), "{mishap:?}");
            assert_eq!(volumes(&mut rig).len(), 150, "{mishap:?}");
            assert_eq!(rig.stored("recovery"), None);
        }
    }
}

#[test]
fn the_entry_of_the_highest_epoch_is_taken_from_whoever_has_it() {
    let mut rig = Rig::new();
    for number in 1..=3 {
        rig.add_osd(number);
    }
    rig.make_replicated("p", 2, Some(1), 1).unwrap();
    let backup = rig.store.clone();
    let first = rig.entries()[0].clone();
    // The PG continues on other OSDs.
    let leaves = first.acting().next().unwrap().osd.get();
    rig.command(Command::OsdOut { osd: osd_id(leaves) }).unwrap();
    rig.fill();
    let newest = rig.entries()[0].clone();
    assert!(newest.epoch > first.epoch && newest.positions != first.positions, "{newest:?}");
    restore(&mut rig, &backup);
    assert_eq!(rig.entries()[0].epoch, first.epoch);
    recover(&mut rig, &[], true).unwrap();
    rig.tick();
    let taken = rig.entries()[0].clone();
    assert_eq!(taken.positions, newest.positions);
    assert!(taken.epoch >= Epoch::new(newest.epoch.get() + 1000));
    assert!(!rig.monitor.committed.osd(osd_id(leaves)).unwrap().info.in_cluster);
}

#[test]
fn a_copy_that_breaks_a_rule_is_refused_before_anything_is_written() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    for osd in rig.osds.values_mut() {
        let mut copy = osd.copy.copy().clone();
        copy.records.get_mut("image/2").unwrap()["pool"] = serde_json::json!(77);
        osd.copy = CopyKeeper::new(copy);
    }
    restore(&mut rig, &backup);
    let error = recover(&mut rig, &[], true).unwrap_err();
    assert_eq!(error.code, "invalid");
    assert!(
        error.message.contains("image/2 refers to a pool that does not exist"),
        "{}",
        error.message
    );
    assert_eq!((rig.stored("recovery"), rig.stored("image/2")), (None, None));
    assert!(is_older(&mut rig));
}

/// Whether all OSDs permanently refuse the session.
fn is_fenced(rig: &Rig, session: SessionId) -> bool {
    let pools = || rig.osds.values().flat_map(|osd| osd.map.pools.values());
    pools().next().is_some() && pools().all(|pool| pool.is_fenced(session))
}

/// Attaches `v` with its lock; returns the session, and its reign, which is needed to resume the session.
fn attach(rig: &mut Rig, client: ConnectionId) -> (SessionId, u64) {
    rig.ask_lock(client, "v", false);
    let inbox = rig.inbox[&client].iter().rev();
    let mut opened = inbox.filter_map(|message| match message {
        FromMonitor::SessionOpened { session, reign, .. } => Some((*session, *reign)),
        _ => None,
    });
    opened.next().expect("it is attached")
}

fn go_on(rig: &mut Rig, (session, reign): (SessionId, u64)) -> ConnectionId {
    let client = rig.client();
    rig.say(client, &ToMonitor::ResumeSession { session, reign, turn: 0 });
    client
}

fn has_ended(rig: &Rig, client: ConnectionId, session: SessionId) -> bool {
    let inbox = rig.inbox.get(&client).into_iter().flatten();
    inbox.into_iter().any(|message| *message == FromMonitor::SessionEnded { session })
}

#[test]
fn a_session_opened_after_the_backup_goes_on_after_the_restore() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let backup = rig.store.clone();
    let client = rig.client();
    let opened = attach(&mut rig, client);
    let have: std::collections::BTreeMap<_, _> = rig
        .monitor
        .committed
        .pools()
        .map(|record| (record.pool.id, record.revision.next()))
        .collect();
    stop(&mut rig, &[1, 2]);
    restore(&mut rig, &backup);
    // Before an OSD has reported, the store may be a backup. A client cannot prove that the store is up to
    // date, and is not told that its session has ended.
    let client = go_on(&mut rig, opened);
    rig.say(client, &ToMonitor::Subscribe { have });
    assert!(!has_ended(&rig, client, opened.0) && !rig.open.contains(&client));
    come_again(&mut rig, &[1, 2]);
    assert!(is_older(&mut rig));
    let waiting = go_on(&mut rig, opened);
    rig.advance(Duration::from_secs(20));
    recover(&mut rig, &[], true).unwrap();
    assert!(!has_ended(&rig, waiting, opened.0));
    come_again(&mut rig, &[1, 2]);
    let client = go_on(&mut rig, opened);
    assert!(!has_ended(&rig, client, opened.0) && !is_fenced(&rig, opened.0));
    assert_eq!(rig.monitor.sessions.connection(opened.0), Some(client));
    let other = rig.client();
    let asked = rig.ask_lock(other, "v", false);
    assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked");
}

#[test]
fn nothing_is_given_out_before_an_osd_has_spoken_or_had_its_time() {
    let asks = |rig: &mut Rig| {
        let client = rig.client();
        let asked = rig.ask_lock(client, "v", false);
        let create =
            Command::VolumeCreate { gateway: false, volume: "w".into(), size: GIB, pool: None };
        let operator = rig.client();
        assert_eq!(rig.command_over(operator, create), None);
        assert!(rig.lock_answer(client, asked).is_none());
        (client, asked)
    };
    let new = || {
        let mut rig = Rig::with_pool(2, 8);
        rig.make_volume("v", GIB).unwrap();
        rig
    };
    // The store is a backup: requests are refused as soon as this is known.
    let mut rig = new();
    let backup = rig.store.clone();
    let client = rig.client();
    attach(&mut rig, client);
    stop(&mut rig, &[1, 2]);
    restore(&mut rig, &backup);
    let (client, asked) = asks(&mut rig);
    rig.boot(1);
    assert_eq!(rig.lock_answer(client, asked).unwrap().unwrap_err().code, "state_older");
    // The store is not a backup: requests are granted once the first OSD has joined, or after a timeout.
    for comes in [true, false] {
        let mut rig = new();
        let newest = rig.store.clone();
        stop(&mut rig, &[1, 2]);
        restore(&mut rig, &newest);
        let (client, asked) = asks(&mut rig);
        let gone = rig.client();
        rig.ask_lock(gone, "v", false);
        rig.break_connection(gone);
        match comes {
            true => {
                // An OSD that has seen nothing of the state does not prove that the store is up to date.
                let copy = std::mem::take(&mut rig.osds.get_mut(&osd_id(1)).unwrap().copy);
                rig.boot(1);
                assert!(rig.lock_answer(client, asked).is_none());
                stop(&mut rig, &[1]);
                rig.osds.get_mut(&osd_id(1)).unwrap().copy = copy;
                rig.boot(1);
            }
            false => {
                rig.advance(Duration::from_millis(4_900));
                assert!(rig.lock_answer(client, asked).is_none());
                rig.advance(Duration::from_millis(200));
            }
        }
        assert!(rig.lock_answer(client, asked).unwrap().is_ok());
        assert_eq!(volumes(&mut rig), ["v", "w"]);
        assert_eq!(rig.monitor.committed.sessions().count(), 1, "who is gone is forgotten");
    }
    // If no OSD has ever run, nothing waits.
    let mut rig = Rig::new();
    rig.command(Command::OsdCreate { store: super::rig::store_of(1) }).unwrap();
    rig.restart();
    rig.tick();
    let operator = rig.client();
    let create =
        Command::VolumeCreate { gateway: false, volume: "w".into(), size: GIB, pool: None };
    assert!(rig.command_over(operator, create).is_some());
}

#[test]
fn no_entry_of_a_pg_is_written_before_an_osd_has_spoken() {
    let mut rig = Rig::with_copies(2, 2, 1, 1);
    let (entry, shard) = (rig.entry(0), rig.stored("pg/1/0").unwrap().value);
    rig.kill_osd(2);
    assert!(rig.entry(0).epoch > entry.epoch);
    // The backup is from the moment when the OSD is down but no entry reflects that yet.
    stop(&mut rig, &[1]);
    rig.hand_writes_unseen("pg/1/0", Some(&shard));
    // The transaction number of the store is as new as the entry.
    let change = rig.stored("change").unwrap().value;
    rig.hand_writes_unseen("change", Some(&change));
    let backup = rig.store.clone();
    restore(&mut rig, &backup);
    rig.advance(Duration::from_millis(4_900));
    assert_eq!(rig.entry(0), entry, "its epoch may have been given, for others");
    rig.boot(1);
    assert!(rig.entry(0).epoch > entry.epoch, "{:?}", rig.entry(0));
}

/// Two sessions with the same id: one opened after the backup was made, one after it was restored.
struct GivenTwice {
    rig: Rig,
    backup: MemoryState,
    true_one: (SessionId, u64),
    false_one: (SessionId, u64),
    /// The connection of the second session's client.
    holder: ConnectionId,
}

fn given_twice() -> GivenTwice {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let backup = rig.store.clone();
    let client = rig.client();
    let true_one = attach(&mut rig, client);
    stop(&mut rig, &[1, 2]);
    restore(&mut rig, &backup);
    // No OSD reports for so long that the old store comes into use.
    rig.advance(Duration::from_secs(6));
    let holder = rig.client();
    let false_one = attach(&mut rig, holder);
    assert!(true_one.0 == false_one.0 && true_one != false_one);
    GivenTwice { rig, backup, true_one, false_one, holder }
}

#[test]
fn a_session_whose_id_was_given_twice_is_nobody_elses() {
    let GivenTwice { mut rig, true_one, false_one, holder, .. } = given_twice();
    come_again(&mut rig, &[1, 2]);
    assert!(is_older(&mut rig));
    let client = go_on(&mut rig, true_one);
    assert_eq!(rig.monitor.sessions.connection(true_one.0), Some(holder), "it is not the other's");
    assert!(!has_ended(&rig, client, true_one.0));
    // OSDs cannot distinguish the two sessions, so both end.
    let error = recover(&mut rig, &[], false).unwrap_err();
    assert!(error.message.contains("1 attached clients will be detached"), "{}", error.message);
    recover(&mut rig, &[], true).unwrap();
    come_again(&mut rig, &[1, 2]);
    assert!(is_fenced(&rig, true_one.0));
    for session in [true_one, false_one] {
        let client = go_on(&mut rig, session);
        assert!(has_ended(&rig, client, session.0));
    }
    assert!(!is_older(&mut rig));
}

#[test]
fn a_session_of_a_way_that_was_left_behind_has_ended() {
    let GivenTwice { mut rig, backup, true_one, false_one, .. } = given_twice();
    // The backup is restored once more: only the second session's client has seen changes since the first
    // restore.
    restore(&mut rig, &backup);
    come_again(&mut rig, &[1, 2]);
    recover(&mut rig, &[], true).unwrap();
    come_again(&mut rig, &[1, 2]);
    let client = go_on(&mut rig, false_one);
    assert!(has_ended(&rig, client, false_one.0) && !is_older(&mut rig));
    let client = go_on(&mut rig, true_one);
    assert!(!has_ended(&rig, client, true_one.0) && !is_fenced(&rig, true_one.0));
    assert_eq!(rig.monitor.sessions.connection(true_one.0), Some(client));
}

#[test]
fn nobody_is_told_of_a_map_that_is_being_recovered_before_it_is_whole() {
    let mut rig = Rig::with_pool(3, 8);
    let backup = rig.store.clone();
    for number in 0..150 {
        rig.make_volume(&format!("v{number}"), GIB).unwrap();
    }
    restore(&mut rig, &backup);
    let client = rig.client();
    let mut map = crate::map::ClusterMap::default();
    rig.subscribe(client, &mut map).unwrap();
    let before = map.pools[&PoolId::FIRST].revision;
    recover(&mut rig, &[], true).unwrap();
    rig.read_map(client, &mut map).unwrap();
    assert_eq!(map.pools[&PoolId::FIRST].revision, before);
    rig.tick();
    let client = rig.client();
    rig.subscribe(client, &mut map).unwrap();
    assert_eq!(map.pools[&PoolId::FIRST].pgs, rig.entries());
}

#[test]
fn numbers_that_never_were_are_refused_and_stop_no_monitor() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    for (key, field) in [("counter/image", "last"), ("pool/1", "revision")] {
        let told: Vec<_> = rig.osds.values().map(|osd| osd.copy.copy().clone()).collect();
        for osd in rig.osds.values_mut() {
            let mut copy = osd.copy.copy().clone();
            copy.records.get_mut(key).unwrap()[field] = serde_json::json!(u64::MAX);
            osd.copy = CopyKeeper::new(copy);
        }
        restore(&mut rig, &backup);
        let error = recover(&mut rig, &[], true).unwrap_err();
        assert!(error.message.contains("is out of range"), "{}", error.message);
        for (osd, copy) in rig.osds.values_mut().zip(told) {
            osd.copy = CopyKeeper::new(copy);
        }
    }
    // An OSD that sends an impossible number is disconnected, and its report does not count.
    let pool = rig.osds.get_mut(&osd_id(2)).unwrap().map.pools.get_mut(&PoolId::FIRST).unwrap();
    pool.fence_ranges.push((SessionId::new(1), SessionId::new(u64::MAX)));
    let told = |rig: &mut Rig| {
        restore(rig, &backup);
        rig.boot(2);
        recover(rig, &[], true).unwrap_err().message
    };
    let message = told(&mut rig);
    assert!(message.starts_with("osd.2 has not reported"), "{message}");
    let pool = rig.osds.get_mut(&osd_id(2)).unwrap().map.pools.get_mut(&PoolId::FIRST).unwrap();
    pool.fence_ranges.clear();
    pool.pgs[0].epoch = Epoch::new(EPOCH_MAX.get() + 1);
    let message = told(&mut rig);
    assert!(message.starts_with("osd.2 has not reported"), "{message}");
    // This is the last valid epoch: no higher one can be issued.
    let pool = rig.osds.get_mut(&osd_id(2)).unwrap().map.pools.get_mut(&PoolId::FIRST).unwrap();
    pool.pgs[0].epoch = EPOCH_MAX;
    let message = told(&mut rig);
    assert!(message.contains("pg/1/0: PG 1.0: the epoch is out of range"), "{message}");
    assert_eq!((rig.stored("recovery"), rig.stored("image/2")), (None, None));
}

#[test]
fn sessions_that_nobody_remembers_are_fenced_and_their_ids_not_given_again() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.make_volume("x", GIB).unwrap();
    let backup = rig.store.clone();
    let keeps = rig.client();
    let (kept, _) = rig.open_session(keeps, "x").unwrap().unwrap();
    // All OSDs die before they have recorded this session in their copies of the state.
    let noted: Vec<_> = rig.osds.values().map(|osd| osd.copy.copy().clone()).collect();
    let client = rig.client();
    let opened = attach(&mut rig, client);
    for (osd, copy) in rig.osds.values_mut().zip(noted) {
        osd.copy = CopyKeeper::new(copy);
    }
    for round in 0..2 {
        restore(&mut rig, &backup);
        recover(&mut rig, &[], true).unwrap();
        come_again(&mut rig, &[1, 2]);
        assert!(is_fenced(&rig, opened.0) && !is_fenced(&rig, kept), "round {round}");
        let late = go_on(&mut rig, opened);
        assert!(has_ended(&rig, late, opened.0));
        assert!(!is_older(&mut rig));
    }
    let next = rig.client();
    let (session, _) = attach(&mut rig, next);
    assert!(session.get() > 20_000 && !is_fenced(&rig, session));
    // The same holds for a client that has the complete map.
    let late = rig.client();
    let mut map = crate::map::ClusterMap::default();
    rig.subscribe(late, &mut map).unwrap();
    assert!(map.pools.values().all(|pool| pool.is_fenced(opened.0) && !pool.is_fenced(session)));
}

#[test]
fn a_client_that_is_silent_goes_on_after_a_recovery_unless_another_had_its_image() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    let backup = rig.store.clone();
    let client = rig.client();
    let opened = attach(&mut rig, client);
    rig.break_connection(client);
    rig.advance(Duration::from_secs(20));
    assert!(rig.monitor.committed.session(opened.0).unwrap().ended);
    restore(&mut rig, &backup);
    recover(&mut rig, &[], true).unwrap();
    come_again(&mut rig, &[1, 2]);
    assert!(!is_fenced(&rig, opened.0));
    let back = go_on(&mut rig, opened);
    assert!(!has_ended(&rig, back, opened.0));
    assert_eq!(rig.monitor.sessions.connection(opened.0), Some(back));
    rig.break_connection(back);
    rig.advance(Duration::from_secs(20));
    let next = rig.client();
    attach(&mut rig, next);
    assert!(is_fenced(&rig, opened.0));
}

#[test]
fn a_pg_that_was_served_in_two_ways_is_refused_until_one_is_declared_lost() {
    let mut rig = Rig::with_copies(2, 2, 1, 1);
    let backup = rig.store.clone();
    let both = rig.entry(0);
    // First osd.1 continues alone; then the old store continues with osd.2 alone.
    rig.kill_osd(2);
    let alone = rig.entry(0);
    assert_eq!(alone.acting_count(), 1, "{alone:?}");
    stop(&mut rig, &[1]);
    restore(&mut rig, &backup);
    rig.boot(2);
    rig.report(2, |_| {});
    rig.advance(Duration::from_secs(10));
    let stale = rig.entry(0);
    assert_eq!(
        (stale.acting_count(), stale.acting().next().unwrap().osd),
        (1, osd_id(2)),
        "{stale:?}"
    );
    assert!(stale.epoch > alone.epoch, "{stale:?}");
    // The fork is also detected if both branches have epochs with the same numbers.
    let known = [both.epoch, alone.epoch, stale.epoch];
    for epochs in [vec![both.epoch, stale.epoch], known.to_vec()] {
        let record = |epochs: Vec<Epoch>| vec![Activated { pg: both.pg, epochs }];
        let osd = |rig: &mut Rig, number: u32, epochs| {
            rig.osds.get_mut(&osd_id(number)).unwrap().activated = record(epochs);
            rig.boot(number);
        };
        osd(&mut rig, 1, vec![both.epoch, alone.epoch]);
        assert!(is_older(&mut rig));
        osd(&mut rig, 2, epochs);
        let error = recover(&mut rig, &[], true).unwrap_err();
        assert_eq!(error.code, "forked");
        for part in [&both.pg.to_string()[..], "osd.1, osd.2 served them"] {
            assert!(error.message.contains(part), "{}", error.message);
        }
    }
    assert_eq!(recover(&mut rig, &[2], true).unwrap_err().code, "invalid", "it is here");
    // The branch that continued from the backup is abandoned: the backup is restored again, and osd.2 stays
    // down.
    stop(&mut rig, &[2]);
    restore(&mut rig, &backup);
    let answer = recover(&mut rig, &[2], true).unwrap();
    assert_eq!(answer["osds_told"], 1);
    rig.tick();
    assert_eq!(rig.entry(0).positions, alone.positions);
}

#[test]
fn two_entries_of_one_epoch_are_refused_also_if_one_is_the_stores() {
    let mut rig = Rig::with_copies(2, 2, 1, 1);
    let backup = rig.store.clone();
    rig.make_volume("w", GIB).unwrap();
    let pg = rig.entry(0).pg;
    let known = rig.osds.get_mut(&osd_id(1)).unwrap().map.pools.get_mut(&pg.pool).unwrap();
    known.pgs[0].primary = None;
    stop(&mut rig, &[2]);
    restore(&mut rig, &backup);
    let error = recover(&mut rig, &[2], true).unwrap_err();
    assert_eq!(error.code, "forked", "{error:?}");
    assert!(
        error.message.contains(&format!("PG {pg} exists in two versions")),
        "{}",
        error.message
    );
}
