//! Watches the state store for changes.

use base::{ConnectionId, Duration, Time};
use cluster::message::{Failure, FromMonitor, ToMonitor};
use format::door::{CloseReason, NetEffect, NetEvent, Role};
use format::wire::Message;
use io::{Event, Reactor};
use serde_json::Value;

use crate::call::{client_reactor, no_reactor};
use crate::config::{Config, failure, no_monitor_answers};

const RING_ENTRIES: u32 = 16;
/// How long to try to connect to a monitor.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long an address has to answer before the next one is tried.
const CONNECT_DELAY: Duration = Duration::from_millis(100);

/// A change to the state store.
#[derive(Clone, PartialEq, Debug)]
pub struct StateChange {
    /// The revision of the store that contains this change.
    pub revision: u64,
    /// The key.
    pub key: String,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Value>,
}

/// Reports every change to keys with this prefix, in order, from now on: calls `tell` with `None` once the
/// watch has started, then with each change, until it returns `false`.
///
/// Errors: no monitor answers; the monitor disconnected, or it missed changes. Changes after an error are
/// not reported.
pub fn watch_state(
    config: &Config,
    prefix: &str,
    mut tell: impl FnMut(Option<StateChange>) -> bool,
) -> Result<(), Failure> {
    let mut reactor = client_reactor(config, RING_ENTRIES)?;
    let connection = connect(config, &mut reactor)?;
    let watch = ToMonitor::WatchState { prefix: prefix.to_string() };
    let text = serde_json::to_string(&watch).expect("our own types are JSON");
    reactor.net(NetEffect::Send { connection, message: Message::Control(text) });
    let mut events = Vec::new();
    loop {
        reactor.turn(None, &mut events).map_err(|error| no_reactor(&error))?;
        for event in events.drain(..) {
            let change = match event {
                Event::Net(NetEvent::Received { message: Message::Control(text), .. }) => {
                    match serde_json::from_str(&text) {
                        Ok(FromMonitor::StateWatched) => None,
                        Ok(FromMonitor::StateChanged { revision, key, value }) => {
                            Some(StateChange { revision, key, value })
                        }
                        Ok(FromMonitor::StateWatchLost) => return Err(missed("missed changes")),
                        // Messages that only newer versions support are ignored.
                        _ => continue,
                    }
                }
                Event::Net(NetEvent::Closed { .. }) => return Err(missed("disconnected")),
                _ => continue,
            };
            if !tell(change) {
                return Ok(());
            }
        }
    }
}

fn missed(what: &str) -> Failure {
    let hint =
        "later changes are not reported: start the watch again, and compare with `ashlar state ls`";
    failure("interrupted", format!("the monitor {what}"), hint)
}

/// Connects to whichever monitor answers.
fn connect(config: &Config, reactor: &mut Reactor) -> Result<ConnectionId, Failure> {
    let end = reactor.now() + CONNECT_TIME_MAX;
    let mut events = Vec::new();
    let mut last_reason = None;
    for (number, address) in (1..).zip(config.file.monitors.iter().cycle()) {
        let connection = ConnectionId::new(2 * number);
        reactor.net(NetEffect::Connect { connection, address: address.clone() });
        match answer_of(reactor, connection, end, &mut events)? {
            Some(Ok(())) => return Ok(connection),
            Some(Err(reason)) => last_reason = Some(reason),
            None => break,
        }
        if reactor.now() >= end {
            break;
        }
        let next = reactor.now() + CONNECT_DELAY;
        while reactor.now() < next {
            reactor.turn(Some(next), &mut events).map_err(|error| no_reactor(&error))?;
            events.clear();
        }
    }
    if let Some(CloseReason::Untrusted(why)) = last_reason {
        let message = format!("the monitor refused the connection: {why}");
        return Err(failure(
            "untrusted",
            message,
            "check that the file `key` belongs to the monitor's cluster",
        ));
    }
    Err(no_monitor_answers(config))
}

/// Waits for the outcome of a connection attempt; returns `None` if `end` passes first.
fn answer_of(
    reactor: &mut Reactor,
    connection: ConnectionId,
    end: Time,
    events: &mut Vec<Event>,
) -> Result<Option<Result<(), CloseReason>>, Failure> {
    while reactor.now() < end {
        reactor.turn(Some(end), events).map_err(|error| no_reactor(&error))?;
        for event in events.drain(..) {
            match event {
                Event::Net(NetEvent::Connected { connection: id, peer, .. })
                    if id == connection =>
                {
                    if matches!(peer.role, Role::Monitor(_)) {
                        return Ok(Some(Ok(())));
                    }
                    reactor.net(NetEffect::Close { connection });
                    return Ok(Some(Err(CloseReason::Reset)));
                }
                Event::Net(NetEvent::Closed { connection: id, reason }) if id == connection => {
                    return Ok(Some(Err(reason)));
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_a_stopped_cluster_is_unreachable() {
        let config = Config::without_monitor();
        let mut reactor = client_reactor(&config, RING_ENTRIES).expect("io_uring works");
        let mut events = Vec::new();
        let connection = ConnectionId::new(2);
        let address = config.file.monitors[0].clone();
        reactor.net(NetEffect::Connect { connection, address });
        let end = reactor.now() + CONNECT_TIME_MAX;
        let answer = answer_of(&mut reactor, connection, end, &mut events).expect("it turns");
        assert_eq!(answer, Some(Err(CloseReason::Refused)));
    }
}
