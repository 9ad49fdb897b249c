//! Sessions: attachments of images. The record of a session is written to the store before the client is
//! informed, and is kept until the session is fenced, or is closed with no request in flight. The connection
//! of a session is recorded only in this process.
//!
//! A session whose client is silent for `session_timeout_ms` is marked `ended`: from then on it blocks no
//! other client, and the next attach of its image fences it. Until that fence its client may return and
//! continue, because no other client has attached the image.

use base::planted::{self, Bug};
use base::{ConnectionId, SessionId, Time};

use super::committed_state::Batch;
use super::connections::Introduced;
use super::job::{Done, Job, Opened, Plan};
use super::lock::Claim;
use super::{Effect, Monitor, Setting, failure};
use crate::message::FromMonitor;
use crate::records::{CounterName, Record, Rest, SessionRecord};

/// Maximum number of sessions in the store, including ended ones. An ended session is removed with
/// its image, or when it is fenced.
pub(super) const SESSION_COUNT_MAX: usize = 100_000;

impl Monitor {
    /// Tracks every session in the store that has not ended. For sessions that are not connected, the timeout
    /// starts now.
    pub(super) fn track_sessions(&mut self, now: Time) {
        let open = self.committed.sessions().filter(|record| !record.ended);
        let open: Vec<SessionId> = open.map(|record| record.id).collect();
        for session in open {
            self.sessions.track(now, session);
        }
        self.wake_opens();
    }

    /// Notes how many acknowledged but unflushed bytes of a session wait for free space.
    pub(super) fn on_session_waits(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        waiting_bytes: u64,
    ) {
        self.connections.note_waiting(connection, session, waiting_bytes);
    }

    /// Returns the sessions with writes that wait for free space, each with the number of bytes.
    pub(super) fn waiting_sessions(&self) -> impl Iterator<Item = (&SessionRecord, u64)> {
        let waiting = self.connections.waiting_sessions();
        waiting.filter_map(|(session, bytes)| Some((self.committed.session(session)?, bytes)))
    }

    /// Returns the process that uses a session, if it is connected and has introduced itself.
    pub(super) fn process_of_session(&self, session: SessionId) -> Option<&Introduced> {
        let connection = self.sessions.connection(session)?;
        self.connections.introduced(connection)
    }

    /// Continues the session over this connection, or without a connection if this one is already closed.
    pub(super) fn connect_session(
        &mut self,
        now: Time,
        session: SessionId,
        connection: ConnectionId,
    ) {
        if let Some(before) = self.sessions.drop_place(session) {
            self.connections.remove_session(before, session);
        }
        if self.connections.add_session(connection, session) {
            self.sessions.connect(session, connection);
        } else {
            self.sessions.lose_connection(now, session);
        }
        self.wake_opens();
    }

    /// Stops tracking a session that has ended for good.
    pub(super) fn forget_session(&mut self, session: SessionId) {
        if let Some(connection) = self.sessions.forget(session) {
            self.connections.remove_session(connection, session);
        }
        self.wake_opens();
    }

    /// Queues the waiting attaches again, after a session has returned or ended for good.
    fn wake_opens(&mut self) {
        self.jobs.extend(self.sessions.take_waiting());
    }

    /// Informs the client of a session that has ended, if it is connected.
    pub(super) fn on_session_ended(&mut self, session: SessionId, effects: &mut Vec<Effect>) {
        if let Some(connection) = self.sessions.connection(session) {
            self.connections.send(connection, &FromMonitor::SessionEnded { session }, effects);
        }
        self.forget_session(session);
    }

    /// Queues the end of sessions that have been disconnected for too long.
    pub(super) fn end_gone_sessions(&mut self, now: Time) {
        let timeout = self.span(Setting::SessionTimeout);
        while let Some(session) = self.sessions.next_to_end(now, timeout) {
            self.jobs.push(Job::EndSession { session });
        }
    }

    pub(super) fn resume_session(
        &mut self,
        now: Time,
        connection: ConnectionId,
        session: SessionId,
        (reign, turn): (u64, u64),
        effects: &mut Vec<Effect>,
    ) {
        let ours = self.committed.session(session).filter(|record| record.is_of(reign));
        let is_ended = ours.map(|record| record.ended);
        if is_ended.is_some() && !self.sessions.is_newest_turn(session, turn) {
            // The client has left this connection, which will be closed, and is connected over another one.
            return;
        }
        match is_ended {
            Some(false) => self.connect_session(now, session, connection),
            Some(true) => {
                // The client reconnects and sends the request again.
                if !self.try_push_job(Job::ResumeSession { connection, session }) {
                    self.close(now, connection, effects);
                }
            }
            // A session that is missing from an older store is checked later, when the store has been
            // restored and the client reconnects.
            None if self.is_older() => {}
            None if self.settling.is_on() => self.close(now, connection, effects),
            None => {
                self.connections.send(connection, &FromMonitor::SessionEnded { session }, effects)
            }
        }
    }

    /// Whether this connection may close the session: its own client may; if that client is not
    /// connected, anyone with the cluster's key may.
    pub(super) fn may_close_session(&self, connection: ConnectionId, session: SessionId) -> bool {
        self.sessions.connection(session).is_none_or(|owner| owner == connection)
    }

    pub(super) fn plan_open_session(
        &self,
        now: Time,
        connection: ConnectionId,
        image: &str,
        (read_only, lock): (bool, bool),
        client: &str,
    ) -> Plan {
        let committed = &self.committed;
        if !self.connections.is_here(connection) {
            return Plan::Done(Done::Silent);
        }
        let Some(image) = committed.image_named(image) else {
            return Plan::Done(Done::SessionRefused(super::volume::no_volume(image)));
        };
        // Fence the image's ended sessions first: an OSD that has seen a request of the new session then
        // refuses late writes of the ended ones.
        match self.fence_ended_sessions(image) {
            Ok(None) => {}
            Ok(Some(fencing)) => return fencing,
            Err(error) => return Plan::Done(Done::SessionRefused(error)),
        }
        let granted = match self.claim_lock(now, &image.info, lock && !read_only) {
            Claim::Granted { lazy } => Some(lazy),
            Claim::Without => None,
            Claim::Waits => return Plan::Done(Done::SessionWaits),
            Claim::Refused(error) => return Plan::Done(Done::SessionRefused(error)),
        };
        if committed.sessions().count() >= SESSION_COUNT_MAX {
            let error = failure(
                "busy",
                format!("the cluster already has {SESSION_COUNT_MAX} sessions"),
                "detach volumes, or remove volumes that are not needed",
            );
            return Plan::Done(Done::SessionRefused(error));
        }
        let mut batch = Batch::new(committed);
        let id = match batch.next_id(committed, CounterName::Session) {
            Ok(id) => SessionId::new(id),
            Err(error) => return Plan::Done(Done::SessionRefused(error)),
        };
        let record = SessionRecord {
            id,
            image: image.info.id,
            client: client.to_string(),
            read_only,
            ended: false,
            reign: committed.reign,
            rest: Rest::new(),
        };
        batch.put(committed, Record::Session(record));
        if let Some(lazy) = granted {
            self.put_lock(&mut batch, &image.info, id, lazy);
        }
        let opened = Opened {
            session: id,
            image: image.info.clone(),
            locked: granted.is_some(),
            lazy: granted.unwrap_or(false),
        };
        Plan::Write { batch, done: Some(Done::SessionOpened(opened)) }
    }

    pub(super) fn plan_close_session(&self, session: SessionId, unanswered: bool) -> Plan {
        let Some(record) = self.committed.session(session) else {
            return Plan::Done(Done::SessionClosed(session));
        };
        let mut batch = Batch::new(&self.committed);
        if unanswered && !planted::on(Bug::UncleanCloseNotFenced) {
            let record = SessionRecord { ended: true, ..record.clone() };
            batch.put(&self.committed, Record::Session(record));
        } else {
            // An ended session may be closed too: its client has no request in flight.
            batch.add(&self.committed, self.removal_of(session));
        }
        Plan::Write { batch, done: Some(Done::SessionClosed(session)) }
    }

    /// Plans the return of a client that was silent for too long: its session continues, unless it
    /// was fenced.
    pub(super) fn plan_resume_session(&self, session: SessionId) -> Plan {
        let Some(record) = self.committed.session(session) else {
            return Plan::Done(Done::SessionEnded(session));
        };
        if !record.ended {
            return Plan::Done(Done::SessionResumed(session));
        }
        let mut batch = Batch::new(&self.committed);
        let record = SessionRecord { ended: false, ..record.clone() };
        batch.put(&self.committed, Record::Session(record));
        Plan::Write { batch, done: Some(Done::SessionResumed(session)) }
    }

    /// Handles the end of a silent session, once that is recorded. The client may have returned while the
    /// record was written.
    pub(super) fn on_session_silent(&mut self, session: SessionId) {
        match self.sessions.connection(session) {
            Some(connection) => self.jobs.push(Job::ResumeSession { connection, session }),
            None => self.forget_session(session),
        }
    }

    pub(super) fn plan_end_session(&self, session: SessionId) -> Plan {
        let Some(record) = self.committed.session(session) else {
            return Plan::Done(Done::SessionClosed(session));
        };
        if self.sessions.connection(session).is_some() {
            return Plan::Done(Done::Silent);
        }
        let mut batch = Batch::new(&self.committed);
        let record = SessionRecord { ended: true, ..record.clone() };
        batch.put(&self.committed, Record::Session(record));
        Plan::Write { batch, done: Some(Done::SessionSilent(session)) }
    }
}
