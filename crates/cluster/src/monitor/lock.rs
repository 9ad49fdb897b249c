//! Locks of images: a session that holds the lock has exclusive use of the image, and its writes may be
//! acknowledged before they are durable.
//!
//! An attach receives the lock only while no other session that has not ended has the image attached. The
//! transaction that removes the holder's session, after a clean close or a fence, also removes the lock. So
//! once the lock is free, no OSD that has seen a request of the next holder executes requests of the previous
//! one.
//!
//! Invariants
//!   1. While a lazy holder has an image attached, no other session has it attached.
//!   2. The holder of a lock has a session record, which may be marked as ended.

use base::planted::{self, Bug};
use base::{PoolId, SessionId, Time};
use serde_json::{Value, json};

use super::committed_state::{Batch, Write};
use super::connections::Introduced;
use super::job::{Done, Plan};
use super::{Monitor, failure};
use crate::map::ImageInfo;
use crate::message::Failure;
use crate::records::{Key, LockRecord, Record, Rest, SessionRecord, Used};

/// The effect of an image's lock on an attach.
pub(super) enum Claim {
    /// The attach receives the lock.
    Granted {
        /// Whether the session's writes may be acknowledged before they are durable.
        lazy: bool,
    },
    /// The image is attached without the lock.
    Without,
    /// The holder is away: its connection is gone, or it does not answer. The attach waits until the holder
    /// returns, or ends and is fenced.
    Waits { holder: SessionId },
    /// The attach is refused.
    Refused(Failure),
}

impl Monitor {
    /// Decides whether an attach receives the lock. Requires: the ended sessions of the image are fenced.
    pub(super) fn claim_lock(&self, now: Time, image: &ImageInfo, wanted: bool) -> Claim {
        let holder = self.committed.lock(image.id).and_then(|lock| {
            let record = self.committed.session(lock.session).filter(|record| !record.ended)?;
            Some((lock, record))
        });
        let Some((lock, record)) = holder else {
            let mut others =
                self.committed.sessions_of(Used::Image(image.id)).filter(|record| !record.ended);
            let is_free = others.next().is_none() || planted::on(Bug::LazyWithoutLock);
            return if wanted && is_free {
                Claim::Granted { lazy: self.is_lazy(image.pool) }
            } else {
                Claim::Without
            };
        };
        let holder = record.id;
        match (lock.lazy, self.is_away(holder)) {
            (true, true) if planted::on(Bug::AbsentHolderPassedOver) => Claim::Without,
            (true, true) => Claim::Waits { holder },
            (true, false) => Claim::Refused(self.locked(now, image, record)),
            // Late writes of the previous holder must not arrive after writes of the next one.
            (false, true) if wanted => Claim::Waits { holder },
            (false, _) => Claim::Without,
        }
    }

    /// Whether durable writes to a pool require a flush: some OSD of the pool does not write
    /// through its disk's cache, or has not reported that it does.
    fn is_lazy(&self, pool: PoolId) -> bool {
        let members = self.committed.pgs(pool).flat_map(|pg| pg.members());
        members.into_iter().any(|member| {
            let live = self.osds.get(&member.osd);
            let report = live.and_then(|live| live.current_report());
            report.is_none_or(|report| report.commit != "immediate")
        })
    }

    /// Returns the refusal of an attach: which session holds the lock, since when, and what to do.
    fn locked(&self, now: Time, image: &ImageInfo, holder: &SessionRecord) -> Failure {
        let name = &image.name;
        let introduced = self.process_of_session(holder.id);
        let process = |who: &Introduced| format!(", process {} on {}", who.pid, who.host);
        let process = introduced.map_or_else(String::new, process);
        let since = match self.sessions.locked_since(holder.id) {
            Some(since) => format!("for {:.0} seconds", now.since(since).as_secs_f64()),
            None => "since before this monitor became the leader".to_string(),
        };
        failure(
            "locked",
            format!(
                "volume {name} is locked by session {} of {}{process} {since}",
                holder.id, holder.client
            ),
            format!(
                "detach it there, or serve it with `--shared` everywhere; \
                 `ashlar volume unlock {name}` takes the lock from a client that hangs"
            ),
        )
    }

    /// Adds the lock granted to an attach to the transaction of that attach.
    pub(super) fn put_lock(
        &self,
        batch: &mut Batch,
        image: &ImageInfo,
        session: SessionId,
        lazy: bool,
    ) {
        let record = LockRecord { image: image.id, session, lazy, rest: Rest::new() };
        batch.put(&self.committed, Record::Lock(record));
    }

    /// Returns the writes that remove a session and the lock that it holds, if any.
    pub(super) fn removal_of(&self, session: SessionId) -> Vec<Write> {
        let mut writes = vec![Write::Delete(Key::Session(session))];
        let record = self.committed.session(session);
        let lock = record.and_then(|record| self.committed.lock(record.used.image()?));
        if let Some(lock) = lock.filter(|lock| lock.session == session) {
            writes.push(Write::Delete(Key::Lock(lock.image)));
        }
        writes
    }

    pub(super) fn plan_volume_unlock(&self, name: &str, accepted: bool) -> Result<Plan, Failure> {
        let committed = &self.committed;
        let image = committed.image_named(name).ok_or_else(|| super::volume::no_volume(name))?;
        let Some(lock) = committed.lock(image.info.id) else {
            let message = format!("volume {name} is not locked");
            return Err(failure("not_locked", message, "there is nothing to do"));
        };
        let holder = lock.session;
        let client = committed.session(holder).map_or("", |record| &record.client);
        if !accepted {
            return Err(failure(
                "not_confirmed",
                format!("session {holder} of {client} holds the lock on volume {name}"),
                "after unlocking, that client can never write again and its pending requests fail: \
                 confirm with --yes",
            ));
        }
        let answer = json!({ "volume": name, "session": holder, "client": client });
        self.fence_sessions(image.info.pool, vec![holder], Some(Done::Unlocked(holder, answer)))
    }

    /// Returns a lock as commands show it.
    pub(super) fn lock_row(&self, image: &ImageInfo) -> Value {
        match self.committed.lock(image.id) {
            Some(lock) => json!({ "session": lock.session, "lazy": lock.lazy }),
            None => Value::Null,
        }
    }
}
