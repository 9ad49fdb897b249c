//! Sends one command to a monitor and waits for the answer.

use std::collections::BTreeSet;

use base::{ConnectionId, Duration};
use cluster::message::{Command, Failure};
use format::door::{Peer, Role};
use io::{Event, Options, Reactor, Trust};
use serde_json::Value;

use crate::commands::{CONNECT_SPAN, Commands};
use crate::config::{Config, failure, no_monitor_answers};
use crate::keeper::{addresses_of, is_news, keep};

/// Size of the submission queue. Small, because a command needs only a few operations at a time.
const RING_ENTRIES: u32 = 16;

/// Creates a reactor that identifies itself to its peers as a client of the cluster.
pub(crate) fn client_reactor(config: &Config, entries: u32) -> Result<Reactor, Failure> {
    let options = Options { entries, ..Options::default() };
    let mut reactor = Reactor::new(options).map_err(|error| no_reactor(&error))?;
    let peer = Peer { cluster: config.file.cluster, role: Role::Client };
    reactor.set_trust(Trust { key: config.key.clone(), peer });
    Ok(reactor)
}

pub(crate) fn no_reactor(error: &std::io::Error) -> Failure {
    let hint = "use Linux 6.1 or newer and allow io_uring: sysctl kernel.io_uring_disabled=0";
    failure("io_uring", format!("io_uring does not work: {error}"), hint)
}

/// Returns the addresses of all monitors, as reported by whichever monitor answers.
///
/// Errors: as [`call`].
pub fn monitors(config: &Config, timeout: std::time::Duration) -> Result<Vec<String>, Failure> {
    call(config, Command::MonitorList, timeout).map(|rows| addresses_of(&rows))
}

/// Sends one command to whichever monitor answers, and waits up to `timeout` for the answer. Waits for the
/// first connection only about a sixth of `timeout`, but long enough to try each address. Also writes the
/// monitor's list of monitors to cluster.toml, if that file is writable.
///
/// Errors: the monitor's; `unreachable` (no monitor answers), `no_leader` and `state_unavailable` (retried
/// until the timeout; nothing was done), `timed_out` and `unknown` (the command may have been carried
/// out), `untrusted`.
pub fn call(
    config: &Config,
    command: Command,
    timeout: std::time::Duration,
) -> Result<Value, Failure> {
    call_reporting(config, command, timeout, |_| {})
}

/// Like [`call`], but also calls `report` once for each distinct reason for which the command is retried.
///
/// Errors: as [`call`].
pub fn call_reporting(
    config: &Config,
    command: Command,
    timeout: std::time::Duration,
    mut report: impl FnMut(&Failure),
) -> Result<Value, Failure> {
    let mut reported = BTreeSet::new();
    let mut reactor = client_reactor(config, RING_ENTRIES)?;
    let mut commands = Commands::new(config.file.monitors.clone(), ConnectionId::ZERO);
    let (mut events, mut effects, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let timeout = Duration::from_nanos(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    let start = reactor.now();
    let end = start + timeout;
    // Give each address enough time to answer.
    let addresses = config.file.monitors.len() as u64 + 1;
    let connect_max = Duration::from_nanos(timeout.as_nanos() / 6);
    let connect_max = connect_max.max(Duration::from_nanos(CONNECT_SPAN.as_nanos() * addresses));
    let connect_end = end.min(start + connect_max);
    let mut was_connected = false;
    // The list is requested first, so it is answered first.
    let list = commands.ask(Command::MonitorList, &mut effects);
    let ask = commands.ask(command, &mut effects);
    loop {
        commands.tick(reactor.now(), &mut effects);
        for effect in effects.drain(..) {
            reactor.net(effect);
        }
        let mut done = None;
        for (asked, result) in answers.drain(..) {
            if asked == ask {
                done = Some(result);
            } else if asked == list {
                learn(config, result);
            }
        }
        if let Some(result) = done {
            return result;
        }
        if let Some(refusal) = commands.refusal(ask)
            && reported.insert(refusal.code.clone())
        {
            report(refusal);
        }
        was_connected |= commands.is_connected();
        let limit = if was_connected { end } else { connect_end };
        if reactor.now() >= limit {
            let refusal = commands.refusal(ask).cloned();
            return Err(refusal.unwrap_or_else(|| too_late(config, was_connected)));
        }
        let deadline = commands.deadline().map_or(limit, |deadline| deadline.min(limit));
        reactor.turn(Some(deadline), &mut events).map_err(|error| no_reactor(&error))?;
        let now = reactor.now();
        for event in events.drain(..) {
            if let Event::Net(event) = event {
                commands.apply(now, event, &mut effects, &mut answers);
            }
        }
    }
}

/// Writes the list of monitors to cluster.toml. The command succeeds even if this fails; daemons log such
/// errors.
fn learn(config: &Config, list: Result<Value, Failure>) {
    let Ok(rows) = list else { return };
    let told = addresses_of(&rows);
    if is_news(config, &told) {
        let _ = keep(config, &told);
    }
}

fn too_late(config: &Config, was_connected: bool) -> Failure {
    if was_connected {
        let message = "the monitor did not answer in time".to_string();
        return failure(
            "timed_out",
            message,
            "the command may still be carried out: check before you repeat it",
        );
    }
    no_monitor_answers(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_a_stopped_cluster_is_unreachable() {
        let config = Config::without_monitor();
        let timeout = std::time::Duration::from_millis(300);
        let error = call(&config, Command::Status, timeout).expect_err("no monitor runs");
        assert_eq!(error.code, "unreachable");
        assert!(error.message.contains("ashlar.sock"), "{}", error.message);
    }
}
