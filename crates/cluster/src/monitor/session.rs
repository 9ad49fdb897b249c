//! Sessions: attachments of images, and clients of object pools. The record of a session is written to the store before the client is
//! informed, and is kept until the session is fenced, or is closed with no request in flight. The connection
//! of a session is recorded only in this process.
//!
//! A session whose client is away for `session_timeout_ms` is marked `ended`: from then on it blocks no
//! other client, and the next attach of its image fences it. Until that fence its client may return and
//! continue, because no other client has attached the image. A client is away if its connection is gone, or
//! if it does not answer (`silent_clients.rs`).

use base::planted::{self, Bug};
use base::{ConnectionId, SessionId, Time};

use super::committed_state::Batch;
use super::connections::Introduced;
use super::job::{Done, Found, Job, Opened, Plan, Wants};
use super::lock::Claim;
use super::volume::{FENCE_RANGE_COUNT_MAX, is_far_behind};
use super::{Effect, Monitor, Setting, clipped, failure};
use crate::message::{Failure, FromMonitor};
use crate::records::{CounterName, FenceRecord, Record, Rest, SessionRecord, Used};

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

    /// Queues the waiting attaches again, after a session has returned or ended, or its time is over.
    pub(super) fn wake_opens(&mut self) {
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

    pub(super) fn open_session(
        &mut self,
        connection: ConnectionId,
        request: u64,
        wants: Wants,
        client: String,
        effects: &mut Vec<Effect>,
    ) {
        let job = Job::OpenSession { connection, request, wants, client: clipped(client) };
        if let Err(error) = self.try_push_asked(job) {
            let refused = FromMonitor::SessionRefused { request, error };
            self.connections.send(connection, &refused, effects);
        }
    }

    pub(super) fn plan_open_session(
        &self,
        now: Time,
        connection: ConnectionId,
        wants: &Wants,
        client: &str,
    ) -> Plan {
        if !self.connections.is_here(connection) {
            return Plan::Done(Done::Silent);
        }
        let planned = match wants {
            Wants::Image { name, read_only, lock } => {
                self.plan_attach(now, name, (*read_only, *lock), client)
            }
            Wants::Pool { name } => self.plan_open_pool(name, client),
        };
        planned.unwrap_or_else(|error| Plan::Done(Done::SessionRefused(error)))
    }

    fn plan_attach(
        &self,
        now: Time,
        name: &str,
        (read_only, lock): (bool, bool),
        client: &str,
    ) -> Result<Plan, Failure> {
        let image =
            self.committed.image_named(name).ok_or_else(|| super::volume::no_volume(name))?;
        let used = Used::Image(image.info.id);
        // Fence the image's ended sessions first: an OSD that has seen a request of the new session then
        // refuses late writes of the ended ones.
        if let Some(fencing) = self.fence_ended_sessions(used, image.info.pool)? {
            return Ok(fencing);
        }
        let granted = match self.claim_lock(now, &image.info, lock && !read_only) {
            Claim::Granted { lazy } => Some(lazy),
            Claim::Without => None,
            Claim::Waits { holder } => return Ok(Plan::Done(Done::SessionWaits(holder))),
            Claim::Refused(error) => return Err(error),
        };
        let (mut batch, session) = self.record_session(used, read_only, client)?;
        if let Some(lazy) = granted {
            self.put_lock(&mut batch, &image.info, session, lazy);
        }
        let (locked, lazy) = (granted.is_some(), granted.unwrap_or(false));
        let found = Found::Image { image: image.info.clone(), locked, lazy };
        Ok(Plan::Write { batch, done: Some(Done::SessionOpened(Opened { session, found })) })
    }

    fn plan_open_pool(&self, name: &str, client: &str) -> Result<Plan, Failure> {
        let pool = &self.pool_to_change(name)?.pool;
        if !pool.has_objects() {
            let message = format!("pool {} is one of volumes, not of objects", pool.name);
            let hint = "`ashlar pool create NAME --kind object` makes one";
            return Err(failure("invalid", message, hint));
        }
        let used = Used::Pool(pool.id);
        // As with an image; and an ended session that is fenced is over, so that the results that the OSDs
        // keep for its client can go.
        if let Some(fencing) = self.fence_ended_sessions(used, pool.id)? {
            return Ok(fencing);
        }
        let (batch, session) = self.record_session(used, false, client)?;
        let found = Found::Pool(pool.clone());
        Ok(Plan::Write { batch, done: Some(Done::SessionOpened(Opened { session, found })) })
    }

    /// Begins the transaction that records a new session.
    fn record_session(
        &self,
        used: Used,
        read_only: bool,
        client: &str,
    ) -> Result<(Batch, SessionId), Failure> {
        let committed = &self.committed;
        if committed.sessions().count() >= SESSION_COUNT_MAX {
            return Err(failure(
                "busy",
                format!("the cluster already has {SESSION_COUNT_MAX} sessions"),
                "detach volumes, or remove volumes that are not needed",
            ));
        }
        let mut batch = Batch::new(committed);
        let id = SessionId::new(batch.next_id(committed, CounterName::Session)?);
        let record = SessionRecord {
            id,
            used,
            client: client.to_string(),
            read_only,
            ended: false,
            reign: committed.reign,
            rest: Rest::new(),
        };
        batch.put(committed, Record::Session(record));
        Ok((batch, id))
    }

    pub(super) fn plan_close_session(&self, session: SessionId, unanswered: bool) -> Plan {
        let Some(record) = self.committed.session(session) else {
            return Plan::Done(Done::SessionClosed(session));
        };
        if !unanswered && let Some(plan) = self.fence_closed(record) {
            return plan;
        }
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

    /// Plans the end of a session that its client closes, with a fence for it and for all that were closed
    /// before it. `None`: few were closed since the last fence, or OSDs keep nothing of them.
    fn fence_closed(&self, record: &SessionRecord) -> Option<Plan> {
        let Used::Pool(pool) = record.used else { return None };
        let joined = self.committed.fences(pool).map_or(SessionId::ZERO, FenceRecord::joined);
        // Each open session may lie between two ranges: where these are many, they are left to sessions that
        // need them.
        let is_due = is_far_behind(joined, record.id)
            && self.committed.sessions_of(record.used).count() < FENCE_RANGE_COUNT_MAX / 2;
        let done = Some(Done::SessionClosed(record.id));
        is_due.then(|| self.fence_sessions(pool, vec![record.id], done).ok()).flatten()
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
