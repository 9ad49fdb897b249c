//! A request's way from its arrival to its reply.
//!
//! ```text
//!   arrive ─▶ role, repeat, limits ─▶ judge ─▶ start ─▶ pg ─▶ reply
//!                                      │  ▲
//!                                      ▼  │ map, activation, older connection, space in the journal
//!                                     waiting ──too long──▶ Busy
//! ```
//!
//! Invariants
//!   1. What waits is judged again, whole, each time something it may wait for has changed.
//!   2. A request is answered at most once, and only over the connection it came on.

use std::collections::VecDeque;

use base::planted::{self, Bug};
use base::{ConnectionId, Epoch, ImageId, MapRevision, OsdId, PgId, SessionId, Time};
use cluster::numbers::REVISION_MAX;
use format::door::{NetEffect, Role};
use format::wire::{Message, Op, Outcome, PAYLOAD_SIZE_MAX, Refusal, Reply, Request};
use pg::{Serving, Ticket};
use slab::Slab;

use crate::Effect;
use crate::node::{Node, Phase};
use crate::session_takeover::Takeover;
use crate::sessions::{Arrival, Names};
use crate::space_credits::Verdict as Space;
use crate::stats::Work;

/// Requests that have not been answered.
#[derive(Default)]
pub struct Requests {
    /// In the order they came.
    waiting: VecDeque<Waiting>,
    started: Slab<Started>,
    /// Bytes that all of them write or read.
    bytes: u64,
}

struct Waiting {
    connection: ConnectionId,
    since: Time,
    request: Request,
}

/// What a reply needs, and what a later judgement needs.
#[derive(Clone, Copy)]
struct Started {
    connection: ConnectionId,
    session: SessionId,
    sequence: u64,
    scope: Scope,
    /// The PG's, when it started.
    epoch: Epoch,
    bytes: u64,
    /// Which of its session's connections it came on.
    binding: u32,
    /// What is counted of it.
    work: Option<Work>,
    /// What the members are to have space for.
    space_bytes: u64,
}

/// What a request is judged by.
#[derive(Clone, Copy)]
struct Scope {
    session: SessionId,
    pg: PgId,
    /// The one that its session has, if that ever named it.
    image: Option<ImageId>,
    epoch: Epoch,
    revision: MapRevision,
    /// It brings data: refused while the store is full.
    writes_data: bool,
    /// It takes room in the journal: waits while there is none.
    changes: bool,
}

/// What is to be done with a request now.
enum Verdict {
    /// Hand it to the PG in this slot.
    Serve(usize),
    /// Judge it again later.
    Wait,
    /// It cannot be done so.
    Refuse(Refusal),
}

impl Requests {
    /// Number of requests that have not been answered.
    fn count(&self) -> usize {
        self.waiting.len() + self.started.len()
    }

    /// Whether all have been answered.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        assert!(self.count() > 0 || self.bytes == 0);
        self.count() == 0
    }

    /// Whether any request has started and not ended.
    pub fn any_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// When the oldest waiting request has waited `wait_max`.
    pub fn deadline(&self, wait_max: base::Duration) -> Option<Time> {
        self.waiting.front().map(|oldest| oldest.since + wait_max)
    }
}

impl Scope {
    fn of(request: &Request, image: Option<ImageId>) -> Scope {
        Scope {
            session: request.session,
            pg: request.pg,
            image,
            epoch: request.epoch,
            revision: request.revision,
            writes_data: matches!(request.op, Op::Write { .. }),
            changes: match request.op {
                Op::Write { .. } | Op::Zero { .. } | Op::DeleteRange { .. } => true,
                Op::Read { .. } | Op::Extents { .. } | Op::Sync => false,
            },
        }
    }
}

/// What a request says of its session.
fn names_of(request: &Request) -> Names {
    let image = match &request.op {
        Op::Read { place, .. }
        | Op::Write { place, .. }
        | Op::Zero { place, .. }
        | Op::Extents { place, .. } => Some(place.image),
        Op::Sync | Op::DeleteRange { .. } => None,
    };
    Names { image, revision: request.revision }
}

/// What is counted of a request that came at `since`: what the monitor's tasks ask is not.
fn work_of(request: &Request, since: Time) -> Option<Work> {
    let is_of_client = request.session != SessionId::ZERO;
    is_of_client.then(|| Work::of(request.pg.pool, &request.op, since)).flatten()
}

/// Bytes that an operation holds in memory while it is open. (A longer read is refused by its PG.)
fn size_of(op: &Op) -> u64 {
    match op {
        Op::Read { length, .. } => u64::from((*length).min(PAYLOAD_SIZE_MAX)),
        Op::Write { data, .. } => data.len() as u64,
        Op::Zero { .. } | Op::Extents { .. } | Op::Sync | Op::DeleteRange { .. } => 0,
    }
}

/// Whether the outcome tells how things are: true only while no other primary can change them.
/// That a write happened is true whatever comes after it; that a range held nothing to zero, or an
/// image no block to delete, is not.
fn is_as_of_now(outcome: &Result<Outcome, Refusal>, is_write: bool) -> bool {
    match outcome {
        Ok(Outcome::Written { .. }) => !is_write,
        Ok(_) | Err(Refusal::CompareFailed { .. } | Refusal::Damaged { .. }) => true,
        Err(_) => false,
    }
}

/// Whether a peer of this role may ask this at all.
fn may_ask(role: Role, request: &Request) -> bool {
    match role {
        Role::Client => {
            request.session != SessionId::ZERO && !matches!(request.op, Op::DeleteRange { .. })
        }
        Role::Monitor(_) => {
            request.session == SessionId::ZERO
                && matches!(request.op, Op::DeleteRange { .. } | Op::Zero { lazy: false, .. })
        }
        Role::Osd(..) => false,
    }
}

impl Node {
    /// A request came.
    pub(crate) fn request_came(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let Some(link) = self.sessions.connection(connection) else { return };
        let (session, sequence) = (request.session, request.sequence);
        if !may_ask(link.role, &request) {
            let why = "this peer may not ask this".into();
            let refusal = Err(Refusal::Invalid { why });
            return reply(connection, session, sequence, refusal, effects);
        }
        if request.revision > REVISION_MAX {
            // It would hold back others until that map comes.
            return self.hang_up(now, connection, effects);
        }
        let open_count = link.open_count;
        let sessions_max = self.settings.sessions_max;
        self.session_shown(now, &request, effects);
        let (id, names) = ((session, sequence), names_of(&request));
        match self.sessions.arrive(now, connection, id, names, sessions_max) {
            Arrival::New => {}
            Arrival::Moved => self.drop_waiting(|waiting| {
                waiting.request.session == session && waiting.connection != connection
            }),
            Arrival::Repeat => return,
            // Its client connects again, and sends again what has no answer.
            Arrival::Forgotten => return self.hang_up(now, connection, effects),
            Arrival::TooMany => {
                return reply(connection, session, sequence, Err(Refusal::Busy), effects);
            }
        }
        let bytes = size_of(&request.op);
        if open_count >= self.settings.connection_requests_max
            || self.requests.count() >= self.settings.requests_max
            || self.requests.bytes + bytes > self.settings.request_bytes_max
            || self.phase != Phase::Running
        {
            return reply(connection, session, sequence, Err(Refusal::Busy), effects);
        }
        self.requests.bytes += bytes;
        if let Some(link) = self.sessions.connection(connection) {
            link.open_count += 1;
        }
        self.judge_and_go(now, Waiting { connection, since: now, request }, effects);
    }

    /// A request shows its session, whatever becomes of it: if that acts on a map which this OSD does
    /// not have, older sessions of the same image are served no more until it has it.
    fn session_shown(&mut self, now: Time, request: &Request, effects: &mut Vec<Effect>) {
        let (session, pool) = (request.session, request.pg.pool);
        let known = self.map.pools.get(&pool).map(|known| known.revision);
        let is_newer = |revision| known.is_none_or(|known| revision > known);
        if session == SessionId::ZERO || !is_newer(request.revision) {
            return;
        }
        let names = names_of(request);
        let names = self.sessions.names(session).map_or(names, |before| before.and(names));
        let Some(image) = names.image.filter(|_| is_newer(names.revision)) else { return };
        let takeover = Takeover { session, revision: names.revision };
        if self.session_takeovers.show((pool, image), takeover, known.is_some()) {
            self.judge_queued(now, effects);
        }
    }

    fn scope_of(&self, request: &Request) -> Scope {
        let image = names_of(request).image;
        let named = || self.sessions.names(request.session)?.image;
        Scope::of(request, image.or_else(named))
    }

    /// Whether a newer session of the same image was shown, and the map that it acts on is not here.
    fn is_held_back(&self, scope: &Scope) -> bool {
        self.session_takeovers.hold_back(scope.pg.pool, scope.image, scope.session)
            && !planted::on(Bug::OlderSessionServedOn)
    }

    /// Serves, refuses or queues a request, as the map and its PG stand now.
    fn judge_and_go(&mut self, now: Time, waiting: Waiting, effects: &mut Vec<Effect>) {
        let Waiting { connection, since, request } = waiting;
        match self.judge(now, &self.scope_of(&request)) {
            Verdict::Serve(slot) => self.start(now, slot, connection, (since, request), effects),
            Verdict::Wait if since + self.settings.wait_max > now => {
                self.requests.waiting.push_back(Waiting { connection, since, request });
            }
            Verdict::Wait => self.refuse(connection, &request, Refusal::Busy, effects),
            Verdict::Refuse(refusal) => {
                if let Some(work) = work_of(&request, since) {
                    self.stats.ended(now, work, Err(&refusal));
                }
                self.refuse(connection, &request, refusal, effects);
            }
        }
    }

    /// Compares what a request acts on with what this OSD knows.
    fn judge(&mut self, now: Time, scope: &Scope) -> Verdict {
        if let Some(verdict) = self.judge_by_map(scope) {
            return verdict;
        }
        let Some(slot) = self.pg_slots.get(&scope.pg).copied() else {
            return Verdict::Refuse(Refusal::Stale(None));
        };
        if self.sessions.must_wait(scope.session) {
            return Verdict::Wait;
        }
        if scope.changes && self.store.is_congested() {
            self.waits_for_store = true;
            return Verdict::Wait;
        }
        match self.pgs[slot].serving() {
            Serving::Active if self.is_leased(now, slot) => self.judge_space(now, slot, scope),
            Serving::Idle { .. } if self.peers.waiting.contains(&scope.pg) => Verdict::Wait,
            Serving::Idle { why } => Verdict::Refuse(self.refusal_while_idle(scope, why)),
            _ => Verdict::Wait,
        }
    }

    /// Whether all other members grant, now, that the PG in `slot` is served in its epoch.
    fn is_leased(&self, now: Time, slot: usize) -> bool {
        let pg = &self.pgs[slot];
        let Some(entry) = pg.entry() else { return false };
        let grants = |osd: &OsdId| {
            let member = entry.members().find(|member| member.osd == *osd);
            member.is_some_and(|giver| self.leases.holds(now, *giver, entry.pg, entry.epoch))
        };
        pg.lease_givers().iter().all(grants) || planted::on(Bug::ReadWithoutLease)
    }

    /// Whether all members have space for what a request brings: once it has a version it must fit.
    fn judge_space(&mut self, now: Time, slot: usize, scope: &Scope) -> Verdict {
        match self.space_for(now, slot, self.space_bytes(slot, scope)) {
            Space::Enough => {
                assert!(self.pgs[slot].id() == scope.pg);
                Verdict::Serve(slot)
            }
            Space::Full => Verdict::Refuse(Refusal::Full),
            Space::Unknown => {
                self.waits_for_space = true;
                Verdict::Wait
            }
        }
    }

    /// What a request may take of each member.
    fn space_bytes(&self, slot: usize, scope: &Scope) -> u64 {
        if scope.writes_data { self.pgs[slot].block_size().bytes() } else { 0 }
    }

    /// Nobody but the operator ends the wait of a PG whose only member lost data: its clients are told
    /// that their data is damaged. Where there are other members they may have it, so clients wait, also if
    /// it turns out that none has: `status` then names `pg give-up`.
    fn refusal_while_idle(&self, scope: &Scope, why: &str) -> Refusal {
        let pool = self.map.pools.get(&scope.pg.pool);
        let is_alone = self.map.pg(scope.pg).is_some_and(|entry| entry.acting_count() == 1);
        let is_lost = is_alone && self.is_suspect(scope.pg);
        match pool.filter(|_| scope.session != SessionId::ZERO && is_lost) {
            Some(pool) => {
                let count = pool.pool.block_size.unit_count();
                let words = (0..count).step_by(64);
                let units = words.map(|first| u64::MAX >> (64 - (count - first).min(64))).collect();
                Refusal::Damaged { units }
            }
            None => Refusal::Incomplete { why: why.to_owned() },
        }
    }

    /// What the map says against a request: revision, fence, epoch, primary; or that another one acts on
    /// a newer map.
    fn judge_by_map(&self, scope: &Scope) -> Option<Verdict> {
        let Some(known) = self.map.pools.get(&scope.pg.pool) else {
            let may_come = scope.revision > MapRevision::ZERO;
            let refusal = Verdict::Refuse(Refusal::Stale(None));
            return Some(if may_come { Verdict::Wait } else { refusal });
        };
        if scope.revision > known.revision && !planted::on(Bug::RevisionNotCompared) {
            return Some(Verdict::Wait);
        }
        if known.is_fenced(scope.session) && !planted::on(Bug::FenceIgnored) {
            return Some(Verdict::Refuse(Refusal::Fenced));
        }
        let Some(entry) = known.pgs.get(scope.pg.number as usize) else {
            let why = format!("{} is no PG of its pool", scope.pg);
            return Some(Verdict::Refuse(Refusal::Invalid { why }));
        };
        let is_compared = !planted::on(Bug::EpochNotCompared);
        if is_compared && scope.epoch > entry.epoch {
            // Its sender learned the epoch elsewhere: the map with it is on its way to us.
            return Some(Verdict::Wait);
        }
        let is_stale =
            is_compared && scope.epoch < entry.epoch && !planted::on(Bug::OldEpochAccepted);
        if is_stale || entry.primary_osd() != Some(self.identity.osd) {
            return Some(Verdict::Refuse(Refusal::Stale(Some(entry.clone()))));
        }
        self.is_held_back(scope).then_some(Verdict::Wait)
    }

    fn start(
        &mut self,
        now: Time,
        slot: usize,
        connection: ConnectionId,
        (since, request): (Time, Request),
        effects: &mut Vec<Effect>,
    ) {
        let scope = self.scope_of(&request);
        let work = work_of(&request, since);
        self.budget.client_came();
        let Request { session, sequence, op, .. } = request;
        let bytes = size_of(&op);
        let binding = self.sessions.start(connection, session);
        let epoch = self.pgs[slot].entry().map_or(Epoch::ZERO, |entry| entry.epoch);
        let space_bytes = self.space_bytes(slot, &scope);
        self.take_space(slot, space_bytes);
        let started = Started {
            connection,
            session,
            sequence,
            scope,
            epoch,
            bytes,
            binding,
            work,
            space_bytes,
        };
        let ticket = Ticket(self.requests.started.insert(started) as u32);
        self.pgs[slot].execute(ticket, op, &mut self.actions);
        self.carry_out(now, slot, effects);
    }

    /// The PG in `slot` answered.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        slot: usize,
        ticket: Ticket,
        mut outcome: Result<Outcome, Refusal>,
        effects: &mut Vec<Effect>,
    ) {
        let started = self.requests.started.remove(ticket.0 as usize);
        let Started {
            connection,
            session,
            sequence,
            scope,
            epoch,
            bytes,
            binding,
            work,
            space_bytes,
        } = started;
        self.end_own_space(space_bytes);
        if is_as_of_now(&outcome, scope.writes_data) {
            let entered = self.pgs[slot].entry().is_some_and(|entry| entry.epoch == epoch);
            let is_sure = entered && self.is_leased(now, slot);
            if !is_sure && !planted::on(Bug::ReadWithoutLease) {
                // Another primary may have changed what was read; the client asks again.
                outcome = Err(Refusal::Busy);
            }
        }
        if let Err(Refusal::Stale(newest @ None)) = &mut outcome {
            *newest = self.map.pg(scope.pg).cloned();
        }
        if let Some(work) = work {
            self.stats.ended(now, work, outcome.as_ref().map(|_| ()));
        }
        self.requests.bytes -= bytes;
        if self.sessions.end(session, binding) {
            self.recheck = true;
        }
        if let Some(link) = self.sessions.connection(connection) {
            link.open_count -= 1;
            reply(connection, session, sequence, outcome, effects);
        }
    }

    /// Refuses a request that has not started.
    fn refuse(
        &mut self,
        connection: ConnectionId,
        request: &Request,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        self.requests.bytes -= size_of(&request.op);
        if let Some(link) = self.sessions.connection(connection) {
            link.open_count -= 1;
            reply(connection, request.session, request.sequence, Err(refusal), effects);
        }
    }

    /// Judges all that waits again: something that a request may wait for has changed.
    pub(crate) fn judge_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for waiting in std::mem::take(&mut self.requests.waiting) {
            self.judge_and_go(now, waiting, effects);
        }
    }

    /// Judges what waits inside the PGs again: the map has changed, or somebody acts on a newer one.
    pub(crate) fn judge_queued(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut refused = Vec::new();
        for (ticket, started) in &self.requests.started {
            let refusal = match self.judge_by_map(&started.scope) {
                Some(Verdict::Refuse(refusal)) => refusal,
                // Its client asks again, and then it waits for the map.
                _ if self.is_held_back(&started.scope) => Refusal::Busy,
                _ => continue,
            };
            refused.push((Ticket(ticket as u32), refusal));
        }
        if refused.is_empty() {
            return;
        }
        for slot in 0..self.pgs.len() {
            let judge = |ticket: Ticket| {
                let found = refused.binary_search_by_key(&ticket, |(refused, _)| *refused);
                found.ok().map(|index| refused[index].1.clone())
            };
            self.pgs[slot].refuse_waiting(judge, &mut self.actions);
            self.carry_out(now, slot, effects);
        }
    }

    /// Whether a started request's session is fenced: until it has ended, this OSD has not done
    /// with the session.
    pub(crate) fn fenced_session_is_served(&self) -> bool {
        self.requests.started.iter().any(|(_, started)| {
            let pool = self.map.pools.get(&started.scope.pg.pool);
            pool.is_some_and(|known| known.is_fenced(started.session))
        })
    }

    /// A connection is gone: what waits of it is dropped.
    pub(crate) fn drop_waiting_of(&mut self, connection: ConnectionId) {
        self.drop_waiting(|waiting| waiting.connection == connection);
    }

    fn drop_waiting(&mut self, is_dropped: impl Fn(&Waiting) -> bool) {
        let Node { requests, sessions, .. } = self;
        requests.waiting.retain(|waiting| {
            if !is_dropped(waiting) {
                return true;
            }
            requests.bytes -= size_of(&waiting.request.op);
            if let Some(link) = sessions.connection(waiting.connection) {
                link.open_count -= 1;
            }
            false
        });
    }

    /// The process ends: what has not started is left to the next run.
    pub(crate) fn refuse_all_waiting(&mut self, effects: &mut Vec<Effect>) {
        for waiting in std::mem::take(&mut self.requests.waiting) {
            self.refuse(waiting.connection, &waiting.request, Refusal::Busy, effects);
        }
    }
}

fn reply(
    connection: ConnectionId,
    session: SessionId,
    sequence: u64,
    outcome: Result<Outcome, Refusal>,
    effects: &mut Vec<Effect>,
) {
    let message = Message::Reply(Reply { session, sequence, outcome });
    effects.push(Effect::Net(NetEffect::Send { connection, message }));
}
