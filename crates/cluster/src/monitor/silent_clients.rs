//! Detects clients that are silent: the process is stopped or hangs, while its kernel keeps the connection.
//!
//! ```text
//!   heard ── nothing for ASK_AFTER ──▶ asked ── nothing for session_timeout_ms (at least SILENCE_MIN), and a
//!     ▲                                  │      session of the client is in somebody's way ──▶ connection closed,
//!     │                                  │      sessions end
//!     └──────────── a message ───────────┘
//! ```
//!
//! `docs/internals/sessions.md` has the rule and its reasons.
//!
//! Invariants
//!   1. Only clients that have announced that they answer are asked.
//!   2. The silence of a client begins with a question that this leader asked over the client's present
//!      connection, and begins anew after this process stood still: it could not hear the client then.
//!   3. `asked` holds clients of `heard` that have sent nothing since the question.

use std::collections::BTreeMap;

use base::{ConnectionId, Duration, SessionId, Time, TraceEvent};

use super::job::{Job, Wants};
use super::{Effect, Monitor, Setting};
use crate::message::{Command, FromMonitor};
use crate::records::{LockRecord, Used};

/// A client from which nothing has come for this long is asked whether it is alive. A client that hears
/// nothing from its monitor sends `Ping` more often: only clients that receive other messages are asked.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// A client that answers may seem silent for this long: if the monitor that relays it hangs, it takes up to
/// 8.5 s until the client leaves that monitor (`heartbeat.rs`), and a second until it is connected elsewhere.
const SILENCE_MIN: Duration = Duration::from_secs(10);
/// How often clients are checked.
const CHECK_SPAN: Duration = Duration::from_secs(1);
/// After a gap of this length between two events the process stood still: clients are checked more often.
pub(super) const STANDSTILL: Duration = Duration::from_secs(2);

/// The clients that answer questions, and those of them that have not answered yet.
#[derive(Default)]
pub(super) struct SilentClients {
    /// The time at which each client's last message arrived.
    heard: BTreeMap<ConnectionId, Time>,
    /// The time at which each client was asked that has sent nothing since.
    asked: BTreeMap<ConnectionId, Time>,
    /// The time of the last check.
    checked: Time,
}

impl SilentClients {
    /// Begins to watch a client that answers questions.
    pub(super) fn watch(&mut self, now: Time, connection: ConnectionId) {
        self.heard.insert(connection, now);
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.heard.remove(&connection);
        self.asked.remove(&connection);
    }

    /// Begins every silence anew: this process stood still.
    pub(super) fn count_anew(&mut self, now: Time) {
        self.asked.values_mut().for_each(|since| *since = now);
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.heard.is_empty()).then(|| self.checked + CHECK_SPAN)
    }

    /// Notes that a message arrived; returns whether it ends a silence.
    fn on_word(&mut self, now: Time, connection: ConnectionId) -> bool {
        let Some(heard) = self.heard.get_mut(&connection) else { return false };
        *heard = now;
        self.asked.remove(&connection).is_some()
    }

    /// Returns the clients that must be asked now, and records that they are.
    fn ask_quiet(&mut self, now: Time) -> Vec<ConnectionId> {
        self.checked = now;
        let is_quiet = |(connection, heard): &(&ConnectionId, &Time)| {
            now.since(**heard) >= ASK_AFTER && !self.asked.contains_key(connection)
        };
        let quiet: Vec<ConnectionId> =
            self.heard.iter().filter(is_quiet).map(|(connection, _)| *connection).collect();
        self.asked.extend(quiet.iter().map(|connection| (*connection, now)));
        quiet
    }
}

impl Monitor {
    /// Notes that a message from a client arrived.
    pub(super) fn on_client_word(&mut self, now: Time, connection: ConnectionId) {
        if self.silent_clients.on_word(now, connection) {
            self.wake_opens();
        }
    }

    /// Asks the clients that have said nothing for a while, and lets attaches continue whose holder has been
    /// silent for too long.
    pub(super) fn ask_silent_clients(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.silent_clients.deadline().is_none_or(|due| now < due) {
            return;
        }
        let nonce = self.event_last;
        for connection in self.silent_clients.ask_quiet(now) {
            self.connections.send(connection, &FromMonitor::Probe { nonce }, effects);
        }
        if self.sessions.awaited().any(|holder| self.overdue_since(now, holder).is_some()) {
            self.wake_opens();
        }
    }

    /// Whether the client of a session is away: its connection is gone, or it has not answered yet.
    pub(super) fn is_away(&self, session: SessionId) -> bool {
        let connection = self.sessions.connection(session);
        connection.is_none_or(|connection| self.silent_clients.asked.contains_key(&connection))
    }

    /// Returns the connection of a session whose client has been silent for too long, and the time at which
    /// the silence began.
    fn overdue_since(&self, now: Time, session: SessionId) -> Option<(ConnectionId, Time)> {
        let connection = self.sessions.connection(session)?;
        let since = *self.silent_clients.asked.get(&connection)?;
        let patience = self.span(Setting::SessionTimeout).max(SILENCE_MIN);
        (since + patience <= now).then_some((connection, since))
    }

    /// Closes the connections of clients that have been silent for too long and are in the job's way, and
    /// queues the ends of their sessions. Returns whether there were any.
    ///
    /// From here on such a session is one whose connection broke when its client fell silent. So the client
    /// may still return until it is fenced, and finds the same as a client that was cut off.
    pub(super) fn leave_silent_clients(
        &mut self,
        now: Time,
        job: &Job,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.silent_clients.asked.is_empty() || self.is_older() {
            return false;
        }
        let in_the_way = self.sessions_in_the_way(job);
        let is_over = |session: &SessionId| {
            self.sessions.connection(*session).is_none()
                || self.overdue_since(now, *session).is_some()
        };
        // A command is refused as long as anybody is in its way: then nobody need go.
        if matches!(job, Job::Command { .. }) && !in_the_way.iter().all(is_over) {
            return false;
        }
        let overdue: BTreeMap<ConnectionId, Time> =
            in_the_way.iter().filter_map(|session| self.overdue_since(now, *session)).collect();
        if overdue.is_empty() {
            return false;
        }
        for (connection, since) in &overdue {
            let mut event = TraceEvent::warn("client does not answer: its sessions end");
            if let Some(client) = self.connections.introduced(*connection) {
                event = event.with("role", &client.role).with("host", &client.host);
                event = event.number("pid", client.pid);
            }
            let event = event.number("silent_ms", now.since(*since).as_millis());
            effects.push(Effect::Trace(event));
            self.close(*since, *connection, effects);
        }
        self.end_gone_sessions(now);
        true
    }

    /// Returns the sessions that have not ended and that keep the job from having an image or a pool for
    /// itself.
    fn sessions_in_the_way(&self, job: &Job) -> Vec<SessionId> {
        let used = match job {
            Job::OpenSession { wants: Wants::Image { name, read_only, lock }, .. } => {
                let image = self.committed.image_named(name).map(|image| image.info.id);
                let is_wanted = *lock && !*read_only;
                let is_open = |lock: &&LockRecord| {
                    self.committed.session(lock.session).is_some_and(|record| !record.ended)
                };
                // Others than the holder decide only where there is none: see `claim_lock`.
                let holder = image.and_then(|image| self.committed.lock(image)).filter(is_open);
                if let Some(holder) = holder {
                    let keeps_out = is_wanted || holder.lazy;
                    return keeps_out.then_some(holder.session).into_iter().collect();
                }
                image.filter(|_| is_wanted).map(Used::Image)
            }
            Job::Command { command, .. } => self.used_to_free(command),
            _ => None,
        };
        let Some(used) = used else { return Vec::new() };
        let open = self.committed.sessions_of(used).filter(|record| !record.ended);
        open.map(|record| record.id).collect()
    }

    /// Returns what no session may use when the command is carried out.
    fn used_to_free(&self, command: &Command) -> Option<Used> {
        match command {
            Command::VolumeRemove { volume, .. } => {
                self.committed.image_named(volume).map(|image| Used::Image(image.info.id))
            }
            Command::VolumeResize { volume, size, shrink: true } => {
                let image = self.committed.image_named(volume)?;
                (*size < image.info.size).then_some(Used::Image(image.info.id))
            }
            Command::PoolRemove { pool, accepted: true } => {
                self.committed.pool_named(pool).map(|record| Used::Pool(record.pool.id))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_gone_leaves_no_question_behind() {
        let mut clients = SilentClients::default();
        let (client, now) = (ConnectionId::new(1), Time::from_nanos(1));
        clients.watch(now, client);
        assert_eq!(clients.ask_quiet(now + ASK_AFTER), [client]);
        clients.forget(client);
        assert!(clients.heard.is_empty() && clients.asked.is_empty());
        assert_eq!(clients.deadline(), None, "nobody is to be asked");
    }
}
