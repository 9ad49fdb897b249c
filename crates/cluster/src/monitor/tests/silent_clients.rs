//! Clients whose process is stopped while their connection stays: who is asked, when their sessions end, and
//! what happens if they go on.

use base::{ConnectionId, Duration, GIB, Scheme, SessionId, TraceEvent};
use format::door::{CloseReason, NetEvent};
use format::wire::Message;

use super::rig::{Rig, osd_id};
use crate::message::{Command, Failure, FromMonitor, ObjectOptions, ToMonitor};
use crate::monitor::Event;

/// Returns a cluster with volume `v` on an OSD in commit mode `fsync`, whose locks are lazy.
fn rig() -> Rig {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.report(1, |report| report.commit = "fsync".into());
    rig
}

fn introduce(answers_probes: bool) -> ToMonitor {
    let (role, host) = ("nbd".to_string(), "h".to_string());
    ToMonitor::Introduce { role, pid: 7, host, address: None, answers_probes }
}

fn resume(session: SessionId) -> ToMonitor {
    ToMonitor::ResumeSession { session, reign: 0, turn: 1 }
}

impl Rig {
    /// Returns a client that answers the monitor's questions.
    fn new_client(&mut self) -> ConnectionId {
        let client = self.client();
        self.say(client, &introduce(true));
        client
    }

    /// Returns a client that answers, and the session with which it holds the lock of `v`.
    fn holder(&mut self) -> (ConnectionId, SessionId) {
        let client = self.new_client();
        let (session, locked, _) = self.attach(client).unwrap().unwrap();
        assert!(locked);
        (client, session)
    }

    fn attach(&mut self, client: ConnectionId) -> Option<Result<(SessionId, bool, bool), Failure>> {
        let asked = self.ask_lock(client, "v", false);
        self.lock_answer(client, asked)
    }

    /// Answers the questions that a client has received; returns their number.
    fn answer_probes(&mut self, client: ConnectionId) -> usize {
        let inbox = self.inbox.entry(client).or_default();
        let nonces: Vec<u64> = inbox
            .iter()
            .filter_map(|message| match message {
                FromMonitor::Probe { nonce } => Some(*nonce),
                _ => None,
            })
            .collect();
        inbox.retain(|message| !matches!(message, FromMonitor::Probe { .. }));
        for nonce in &nonces {
            self.say(client, &ToMonitor::Alive { nonce: *nonce });
        }
        nonces.len()
    }

    fn has_fenced(&self, session: SessionId) -> bool {
        self.osds[&osd_id(1)].map.pools.values().any(|pool| pool.is_fenced(session))
    }
}

#[test]
fn a_stopped_holder_keeps_its_session_until_somebody_wants_its_lock() {
    let mut rig = rig();
    let (holder, session) = rig.holder();
    let before = rig.stored("session/1");
    rig.advance(Duration::from_secs(600));
    assert_eq!(rig.stored("session/1"), before, "nobody wants it");
    assert!(rig.open.contains(&holder));

    let other = rig.new_client();
    let (next, locked, lazy) = rig.attach(other).unwrap().unwrap();
    assert!(locked && lazy && next > session);
    assert!(rig.has_fenced(session));
    assert!(!rig.open.contains(&holder), "it finds out when it goes on");
    let warns = |line: &TraceEvent| line.to_string().contains("client does not answer");
    assert!(rig.lines.iter().any(warns));
    let back = rig.new_client();
    rig.say(back, &resume(session));
    assert_eq!(rig.inbox[&back].back(), Some(&FromMonitor::SessionEnded { session }));
}

#[test]
fn an_attach_waits_for_a_holder_that_has_not_answered_yet() {
    let mut rig = rig();
    let (holder, session) = rig.holder();
    rig.advance(Duration::from_secs(3));
    let other = rig.new_client();
    let asked = rig.ask_lock(other, "v", false);
    let reader = rig.new_client();
    let read = rig.ask_lock(reader, "v", true);
    assert_eq!((rig.lock_answer(other, asked), rig.lock_answer(reader, read)), (None, None));
    assert_eq!(rig.answer_probes(holder), 1, "one question is enough");
    assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked");
    assert_eq!(rig.lock_answer(reader, read).unwrap().unwrap_err().code, "locked");

    rig.advance(Duration::from_secs(5));
    let asked = rig.ask_lock(other, "v", false);
    // The last question was asked 1 s to 2 s after the last answer, and the clock is looked at each second.
    rig.advance(Duration::from_millis(5_900));
    assert_eq!(rig.lock_answer(other, asked), None, "it may still answer");
    rig.advance(Duration::from_millis(2_200));
    assert!(rig.lock_answer(other, asked).unwrap().unwrap().1);
    assert!(rig.has_fenced(session));
}

#[test]
fn a_short_timeout_leaves_a_client_the_time_to_leave_a_monitor_that_hangs() {
    let mut rig = rig();
    let (setting, value) = ("session_timeout_ms".to_string(), Some("1s".to_string()));
    rig.command(Command::ConfigSet { setting, value }).unwrap();
    let (_, session) = rig.holder();
    rig.advance(Duration::from_secs(3));
    let other = rig.new_client();
    let asked = rig.ask_lock(other, "v", false);
    rig.advance(Duration::from_secs(7));
    assert_eq!(rig.lock_answer(other, asked), None, "it may be on its way to another monitor");
    let back = rig.new_client();
    rig.say(back, &resume(session));
    assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
    rig.advance(Duration::from_secs(3));
    let asked = rig.ask_lock(other, "v", false);
    rig.advance(Duration::from_secs(11));
    assert!(rig.lock_answer(other, asked).unwrap().unwrap().1, "it has not answered, either");
}

#[test]
fn a_holder_that_answers_or_says_anything_else_keeps_its_lock() {
    let mut rig = rig();
    let (holder, session) = rig.holder();
    let mut answered = 0;
    for second in 0..60 {
        rig.advance(Duration::from_secs(1));
        if second < 30 {
            answered += rig.answer_probes(holder);
        } else {
            rig.say(holder, &ToMonitor::Ping);
        }
    }
    assert!(answered >= 10);
    let other = rig.client();
    assert_eq!(rig.attach(other).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
}

#[test]
fn a_silent_client_beside_a_holder_that_answers_is_in_nobodys_way() {
    let mut rig = Rig::with_pool(1, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.report(1, |report| report.commit = "immediate".into());
    let holder = rig.new_client();
    assert!(rig.attach(holder).unwrap().unwrap().1);
    let silent = rig.new_client();
    let (session, locked, _) = rig.attach(silent).unwrap().unwrap();
    assert!(!locked, "it shares the volume");
    for _ in 0..60 {
        rig.advance(Duration::from_secs(1));
        rig.answer_probes(holder);
    }
    let other = rig.new_client();
    assert!(!rig.attach(other).unwrap().unwrap().1, "the holder has the lock");
    let removed = rig.command(Command::VolumeRemove { gateway: false, volume: "v".into() });
    assert_eq!(removed.unwrap_err().code, "busy");
    assert!(!rig.has_fenced(session) && rig.open.contains(&silent));
}

#[test]
fn a_client_of_an_older_version_is_not_asked_and_keeps_its_lock() {
    let mut rig = rig();
    let holder = rig.client();
    rig.say(holder, &introduce(false));
    let (session, ..) = rig.attach(holder).unwrap().unwrap();
    rig.advance(Duration::from_secs(60));
    assert_eq!(rig.answer_probes(holder), 0);
    let other = rig.new_client();
    assert_eq!(rig.attach(other).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
}

#[test]
fn time_in_which_the_monitor_stood_still_does_not_count() {
    let mut rig = rig();
    let (holder, session) = rig.holder();
    rig.advance(Duration::from_secs(3));
    // The monitor's host is suspended. Then the attach arrives before the holder's answer.
    rig.now = rig.now + Duration::from_secs(3_600);
    let other = rig.client();
    let asked = rig.ask_lock(other, "v", false);
    rig.advance(Duration::from_secs(5));
    assert_eq!(rig.lock_answer(other, asked), None);
    rig.answer_probes(holder);
    assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
}

#[test]
fn a_new_leader_counts_from_when_it_could_hear_the_holder() {
    for resumes in [false, true] {
        let mut rig = rig();
        let (_, session) = rig.holder();
        rig.advance(Duration::from_secs(60));
        rig.restart();
        rig.tick();
        if resumes {
            let back = rig.new_client();
            rig.say(back, &resume(session));
        }
        let other = rig.client();
        let asked = rig.ask_lock(other, "v", false);
        let asked = if resumes {
            assert_eq!(rig.lock_answer(other, asked).unwrap().unwrap_err().code, "locked");
            rig.advance(Duration::from_secs(2));
            rig.ask_lock(other, "v", false)
        } else {
            asked
        };
        rig.advance(Duration::from_millis(if resumes { 7_900 } else { 9_900 }));
        assert_eq!(rig.lock_answer(other, asked), None);
        rig.advance(Duration::from_secs(3));
        assert!(rig.lock_answer(other, asked).unwrap().unwrap().1, "{resumes}");
        assert!(rig.has_fenced(session));
    }
}

#[test]
fn a_holder_that_goes_on_over_another_connection_is_judged_by_that_one() {
    let mut rig = rig();
    let (_, session) = rig.holder();
    rig.advance(Duration::from_secs(60));
    // The monitor that relayed the first connection hangs.
    let back = rig.new_client();
    rig.say(back, &resume(session));
    let other = rig.client();
    assert_eq!(rig.attach(other).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
}

/// The holder goes on when its connection is closed and the end of its session is not recorded yet.
#[test]
fn a_holder_that_returns_before_the_fence_is_fenced_or_goes_on() {
    let mut rig = rig();
    let (_, session) = rig.holder();
    rig.advance(Duration::from_secs(60));
    let (other, back) = (rig.client(), rig.client());
    let text = serde_json::to_string(&resume(session)).unwrap();
    let (connection, message) = (back, Message::Control(text));
    let returns = Event::Net(NetEvent::Received { connection, message });
    let asked = rig.ask_lock_before(other, "v", returns);
    assert!(rig.lock_answer(other, asked).unwrap().unwrap().1);
    assert!(rig.has_fenced(session));
    assert_eq!(rig.inbox[&back].back(), Some(&FromMonitor::SessionEnded { session }));

    // The client that wanted the lock is gone before the fence: the holder goes on.
    let mut rig = self::rig();
    let (_, session) = rig.holder();
    rig.advance(Duration::from_secs(60));
    let (other, back) = (rig.client(), rig.client());
    let (connection, reason) = (other, CloseReason::Reset);
    rig.ask_lock_before(other, "v", Event::Net(NetEvent::Closed { connection, reason }));
    assert!(rig.stored("session/1").unwrap().value.contains("\"ended\":true"));
    rig.say(back, &resume(session));
    assert_eq!(rig.attach(back).unwrap().unwrap_err().code, "locked");
    assert!(!rig.has_fenced(session));
}

#[test]
fn stopped_clients_without_the_lock_are_in_the_way_of_it_and_of_removal() {
    let mut rig = rig();
    let stopped = rig.new_client();
    let (first, _) = rig.open_session(stopped, "v").unwrap().unwrap();
    let (other, living) = (rig.client(), rig.new_client());
    rig.advance(Duration::from_secs(3));
    assert!(!rig.attach(other).unwrap().unwrap().1, "it may still answer");
    assert_eq!(rig.remove_volume("v").unwrap_err().code, "busy");
    rig.break_connection(other);
    rig.advance(Duration::from_secs(20));
    assert!(rig.open_session(living, "v").unwrap().is_ok(), "a client that shares wants no lock");
    assert!(rig.open.contains(&stopped));
    let shrink = Command::VolumeResize { volume: "v".into(), size: GIB / 2, shrink: true };
    assert_eq!(rig.command(shrink.clone()).unwrap_err().code, "busy", "of the living one");
    assert!(rig.open.contains(&stopped), "nothing would come of its end");
    rig.break_connection(living);
    rig.advance(Duration::from_secs(11));
    rig.command(shrink).unwrap();
    assert!(rig.has_fenced(first));

    let stopped = rig.new_client();
    let (second, _) = rig.open_session(stopped, "v").unwrap().unwrap();
    rig.advance(Duration::from_secs(13));
    let holder = rig.client();
    assert!(rig.attach(holder).unwrap().unwrap().1);
    assert!(rig.has_fenced(second));
}

#[test]
fn a_stopped_lazy_holder_does_not_keep_a_reader_out() {
    let mut rig = rig();
    let (holder, session) = rig.holder();
    rig.advance(Duration::from_secs(20));
    let reader = rig.new_client();
    let read = rig.ask_lock(reader, "v", true);
    assert!(rig.lock_answer(reader, read).unwrap().is_ok());
    assert!(rig.has_fenced(session) && !rig.open.contains(&holder));
}

#[test]
fn commands_that_free_nothing_of_a_volume_end_no_session() {
    let mut rig = rig();
    let stopped = rig.new_client();
    rig.open_session(stopped, "v").unwrap().unwrap();
    rig.advance(Duration::from_secs(20));
    let resize = |size, shrink| Command::VolumeResize { volume: "v".into(), size, shrink };
    rig.command(resize(GIB, true)).unwrap();
    rig.command(resize(2 * GIB, true)).unwrap();
    assert_eq!(rig.command(resize(GIB, false)).unwrap_err().code, "invalid");
    assert!(rig.open.contains(&stopped), "it is in nobody's way");
    rig.command(resize(GIB, true)).unwrap();
    assert!(!rig.open.contains(&stopped));
}

#[test]
fn a_client_that_was_cut_off_does_not_protect_a_stopped_one() {
    let mut rig = rig();
    let (stopped, gone) = (rig.new_client(), rig.client());
    rig.open_session(stopped, "v").unwrap().unwrap();
    rig.open_session(gone, "v").unwrap().unwrap();
    rig.advance(Duration::from_secs(20));
    rig.break_connection(gone);
    assert_eq!(rig.remove_volume("v").unwrap_err().code, "busy", "the other one may come back");
    assert!(!rig.open.contains(&stopped));
}

#[test]
fn a_stopped_client_does_not_keep_an_object_pool() {
    let mut rig = Rig::with_pool(1, 8);
    let create = Command::PoolCreate {
        pool: "o".into(),
        scheme: Some(Scheme::Copies { count: 1 }),
        min_size: None,
        pg_count: Some(8),
        failure_domain: None,
        block_size: None,
        objects: Some(ObjectOptions::default()),
    };
    rig.command(create).unwrap();
    let stopped = rig.new_client();
    let (request, pool, client) = (1, "o".to_string(), "test".to_string());
    rig.say(stopped, &ToMonitor::OpenPool { request, pool, client });
    assert!(rig.stored("session/1").is_some());
    let remove = |accepted| Command::PoolRemove { pool: "o".into(), accepted };
    rig.advance(Duration::from_secs(5));
    assert_eq!(rig.command(remove(true)).unwrap_err().code, "busy");
    rig.advance(Duration::from_secs(10));
    assert_eq!(rig.command(remove(false)).unwrap_err().code, "busy");
    assert!(rig.open.contains(&stopped), "nothing is to be removed yet");
    rig.command(remove(true)).unwrap();
    assert!(!rig.open.contains(&stopped));
}
