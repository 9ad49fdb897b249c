//! Clients that do not answer, over monitors that relay them.

use crate::message::{FromMonitor, ToMonitor};

use super::{monitors_with_volume, seconds};

#[test]
fn a_relayed_holder_is_asked_and_left_like_any_other() {
    let mut monitors = monitors_with_volume(3);
    let holder = monitors.client(1);
    let (role, host) = ("nbd".to_string(), "h".to_string());
    let introduce =
        ToMonitor::Introduce { role, pid: 7, host, address: None, answers_probes: true };
    monitors.say(holder, &introduce);
    let (session, locked) = monitors.ask_lock_over(holder).unwrap().unwrap();
    assert!(locked);
    for _ in 0..10 {
        monitors.advance(seconds(3));
        let nonce = monitors.clients[holder].said.drain(..).find_map(|message| match message {
            FromMonitor::Probe { nonce } => Some(nonce),
            _ => None,
        });
        monitors.say(holder, &ToMonitor::Alive { nonce: nonce.expect("it was asked") });
    }
    assert_eq!(monitors.ask_lock(2).1, Some(Err("locked".into())));

    monitors.advance(seconds(13));
    assert!(!monitors.clients[holder].is_closed, "nobody wants the lock");
    let (next, locked) = monitors.ask_lock(2).1.unwrap().unwrap();
    assert!(locked && next > session);
    assert!(monitors.clients[holder].is_closed);
    let fences = monitors.stored("fence/1").unwrap();
    assert_eq!(fences["fences"][0]["session"], serde_json::to_value(session).unwrap());
}
