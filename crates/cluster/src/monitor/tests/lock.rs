//! Locks of images: who receives a lock, who waits, who is refused, and how a lock is taken away.

use base::{Duration, GIB, SessionId};
use serde_json::json;

use super::rig::{Rig, osd_id};
use crate::message::{Command, Failure, ToMonitor};

/// Returns a cluster with volume `v` on two OSDs in commit mode `fsync`.
fn rig() -> Rig {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    for number in [1, 2] {
        rig.report(number, |report| report.commit = "fsync".into());
    }
    rig
}

/// Returns a cluster with volume `v` on two OSDs in commit mode `immediate`.
fn immediate_rig() -> Rig {
    let mut rig = rig();
    for number in [1, 2] {
        rig.report(number, |report| report.commit = "immediate".into());
    }
    rig
}

fn close(session: SessionId, unanswered: bool) -> ToMonitor {
    ToMonitor::CloseSession { session, unanswered }
}

fn unlock(accepted: bool) -> Command {
    Command::VolumeUnlock { volume: "v".into(), accepted }
}

impl Rig {
    fn lock(
        &mut self,
        connection: base::ConnectionId,
    ) -> Option<Result<(SessionId, bool, bool), Failure>> {
        let asked = self.ask_lock(connection, "v", false);
        self.lock_answer(connection, asked)
    }

    fn is_fenced(&self, session: SessionId) -> bool {
        let map = &self.osds[&osd_id(1)].map;
        map.pools.values().any(|pool| pool.is_fenced(session))
    }
}

#[test]
fn a_lazy_holder_keeps_everybody_out_until_it_closes() {
    let mut rig = rig();
    let (holder, other) = (rig.client(), rig.client());
    let (session, locked, lazy) = rig.lock(holder).unwrap().unwrap();
    assert!(locked && lazy);
    rig.advance(Duration::from_secs(7));
    let refused = rig.lock(other).unwrap().unwrap_err();
    assert_eq!(refused.code, "locked");
    assert_eq!(refused.message, "volume v is locked by session 1 of test for 7 seconds");
    assert!(refused.hint.contains("ashlar volume unlock v"), "{}", refused.hint);
    let asked = rig.ask_lock(other, "v", true);
    assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked", "readers too");
    assert_eq!(rig.open_session(other, "v").unwrap().unwrap_err().code, "locked");
    let row = rig.command(Command::VolumeInfo { volume: "v".into() }).unwrap();
    assert_eq!(row["lock"], json!({ "session": 1, "lazy": true }));
    let mut shown = json!({
        "id": 1, "client": "test", "read_only": false,
        "pid": null, "host": null, "address": null,
    });
    assert_eq!(row["sessions"], json!([shown]));
    let introduce = ToMonitor::Introduce {
        role: "nbd".into(),
        pid: 12,
        host: "h".into(),
        address: Some("unix:/a".into()),
        answers_probes: false,
    };
    rig.say(holder, &introduce);
    let row = rig.command(Command::VolumeInfo { volume: "v".into() }).unwrap();
    (shown["pid"], shown["host"], shown["address"]) = (json!(12), json!("h"), json!("unix:/a"));
    assert_eq!(row["sessions"], json!([shown]));
    rig.say(holder, &close(session, false));
    assert_eq!(rig.stored("lock/1"), None);
    let told = rig.inbox.get_mut(&holder).unwrap().pop_back();
    assert_eq!(told, Some(crate::message::FromMonitor::SessionClosed { session }));
    let (_, locked, lazy) = rig.lock(other).unwrap().unwrap();
    assert!(locked && lazy);
    assert!(!rig.is_fenced(session), "it was closed cleanly");
}

#[test]
fn a_holder_whose_disks_write_through_is_not_lazy_and_shares() {
    let mut rig = immediate_rig();
    let (holder, other) = (rig.client(), rig.client());
    let (_, locked, lazy) = rig.lock(holder).unwrap().unwrap();
    assert_eq!((locked, lazy), (true, false));
    let (_, locked, lazy) = rig.lock(other).unwrap().unwrap();
    assert_eq!((locked, lazy), (false, false));
    assert!(rig.open_session(other, "v").unwrap().is_ok());
}

#[test]
fn one_disk_that_flushes_or_says_nothing_makes_the_holder_lazy() {
    for says in [Some("fsync"), None] {
        let mut rig = immediate_rig();
        match says {
            Some(mode) => rig.report(2, |report| report.commit = mode.into()),
            None => rig.kill_osd(2),
        }
        let holder = rig.client();
        let (_, locked, lazy) = rig.lock(holder).unwrap().unwrap();
        assert!(locked && lazy, "{says:?}");
    }
}

#[test]
fn a_lock_is_not_granted_while_another_session_has_the_image() {
    let mut rig = rig();
    let (first, second) = (rig.client(), rig.client());
    let (shared, _) = rig.open_session(first, "v").unwrap().unwrap();
    let (mine, locked, lazy) = rig.lock(second).unwrap().unwrap();
    assert_eq!((locked, lazy), (false, false));
    rig.say(first, &close(shared, false));
    rig.say(second, &close(mine, false));
    assert!(rig.lock(second).unwrap().unwrap().1);
}

#[test]
fn a_reader_gets_no_lock() {
    let mut rig = rig();
    let client = rig.client();
    let asked = rig.ask_lock(client, "v", true);
    let (_, locked, lazy) = rig.lock_answer(client, asked).unwrap().unwrap();
    assert_eq!((locked, lazy), (false, false));
    assert_eq!(rig.stored("lock/1"), None);
}

#[test]
fn an_attach_waits_for_a_holder_that_is_gone_and_fences_it_when_it_has_ended() {
    for mut rig in [rig(), immediate_rig()] {
        let (holder, next) = (rig.client(), rig.client());
        let (old, ..) = rig.lock(holder).unwrap().unwrap();
        rig.break_connection(holder);
        let asked = rig.ask_lock(next, "v", false);
        rig.advance(Duration::from_millis(9_900));
        assert_eq!(rig.lock_answer(next, asked), None, "it may come back");
        rig.advance(Duration::from_millis(200));
        let (session, locked, _) = rig.lock_answer(next, asked).unwrap().unwrap();
        assert!(locked && session > old);
        assert!(rig.is_fenced(old));
    }
}

#[test]
fn an_attach_that_waits_is_judged_when_the_holder_is_back_or_has_closed() {
    let mut rig = rig();
    let (holder, next) = (rig.client(), rig.client());
    let (session, ..) = rig.lock(holder).unwrap().unwrap();
    rig.break_connection(holder);
    let asked = rig.ask_lock(next, "v", false);
    let back = rig.client();
    rig.say(back, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    assert_eq!(rig.lock_answer(next, asked).unwrap().unwrap_err().code, "locked");
    rig.break_connection(back);
    let asked = rig.ask_lock(next, "v", false);
    let back = rig.client();
    rig.say(back, &close(session, false));
    assert!(rig.lock_answer(next, asked).unwrap().unwrap().1);
}

#[test]
fn an_attach_that_waits_goes_with_its_connection() {
    let mut rig = rig();
    let (holder, next) = (rig.client(), rig.client());
    rig.lock(holder).unwrap().unwrap();
    rig.break_connection(holder);
    rig.ask_lock(next, "v", false);
    rig.break_connection(next);
    rig.advance(Duration::from_secs(11));
    assert_eq!(rig.stored("session/2"), None);
}

#[test]
fn a_holder_that_closed_with_a_change_on_its_way_is_fenced_by_the_next() {
    let mut rig = rig();
    let client = rig.client();
    let (old, ..) = rig.lock(client).unwrap().unwrap();
    rig.say(client, &close(old, true));
    assert!(rig.stored("lock/1").is_some());
    assert!(rig.lock(client).unwrap().unwrap().1);
    assert!(rig.is_fenced(old));
}

#[test]
fn unlock_fences_the_holder_before_the_lock_is_free() {
    let mut rig = rig();
    let (holder, next) = (rig.client(), rig.client());
    assert_eq!(rig.command(unlock(true)).unwrap_err().code, "not_locked");
    let (old, ..) = rig.lock(holder).unwrap().unwrap();
    let asked = rig.command(unlock(false)).unwrap_err();
    assert_eq!(asked.code, "not_confirmed");
    assert_eq!(asked.message, "session 1 of test holds the lock on volume v");
    assert!(rig.stored("lock/1").is_some());
    let answer = rig.command(unlock(true)).unwrap();
    assert_eq!(answer["session"], 1);
    assert!(rig.is_fenced(old));
    let told = rig.inbox.get_mut(&holder).unwrap().pop_back();
    assert_eq!(told, Some(crate::message::FromMonitor::SessionEnded { session: old }));
    assert_eq!((rig.stored("lock/1"), rig.stored("session/1")), (None, None));
    assert!(rig.lock(next).unwrap().unwrap().1);
}

#[test]
fn a_lock_outlives_the_monitor_and_goes_with_its_image() {
    let mut rig = rig();
    let client = rig.client();
    let (session, ..) = rig.lock(client).unwrap().unwrap();
    rig.restart();
    rig.tick();
    let client = rig.client();
    rig.say(client, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    let refused = rig.lock(client).unwrap().unwrap_err();
    assert!(
        refused.message.ends_with("since before this monitor became the leader"),
        "{}",
        refused.message
    );
    rig.say(client, &close(session, true));
    rig.remove_volume("v").unwrap();
    assert_eq!(rig.stored("lock/1"), None);
}

#[test]
fn a_holder_that_was_silent_keeps_its_lock_until_somebody_else_attaches() {
    let mut rig = rig();
    let (holder, other) = (rig.client(), rig.client());
    let (session, ..) = rig.lock(holder).unwrap().unwrap();
    rig.break_connection(holder);
    rig.advance(Duration::from_secs(60));
    let back = rig.client();
    rig.say(back, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    assert_eq!(rig.lock(other).unwrap().unwrap_err().code, "locked");
    rig.break_connection(back);
    rig.advance(Duration::from_secs(60));
    assert!(rig.lock(other).unwrap().unwrap().1);
    assert!(rig.is_fenced(session));
    let late = rig.client();
    rig.say(late, &ToMonitor::ResumeSession { session, reign: 0, turn: 0 });
    let told = rig.inbox.get_mut(&late).unwrap().pop_back();
    assert_eq!(told, Some(crate::message::FromMonitor::SessionEnded { session }));
}
