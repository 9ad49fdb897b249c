//! A request's path from its arrival to its reply.
//!
//! ```text
//!   arrive ─▶ role, repeat, limits ─▶ judge ─▶ start ─▶ pg ─▶ reply
//!                                      │  ▲
//!                                      ▼  │ map, activation, older connection, space in the journal
//!                                     waiting ──too long──▶ Busy
//! ```
//!
//! Invariants
//!   1. A request is answered at most once, and only over the connection it arrived on.
//!   2. A change begins only while the leases of all givers are valid, and only if all members have space
//!      for it.
//!   3. A direct read never waits: it is served at once, or its sender asks the primary.
//!   4. What is left of a change, between its pieces, is a request that waits: it is judged like one that
//!      arrives.

use std::collections::BTreeSet;
use std::ops::Range;

use base::planted::{self, Bug};
use base::{ConnectionId, Epoch, MapRevision, OsdId, PgId, SessionId, Time, UNIT_SIZE};
use cluster::numbers::REVISION_MAX;
use format::door::NetEffect;
use format::wire::{
    EngineState, Message, Op, Outcome, PAYLOAD_SIZE_MAX, PgEntry, Refusal, Reply, Request,
};
use pg::{Charge, DELETE_PORTION_MAX, Serving, Ticket};

use super::{Node, Phase};
use crate::Effect;
use crate::columns::Columns;
use crate::pg_table::PgSlot;
use crate::requests::{
    Cut, ObjectNeed, Piece, Scope, Started, Waiting, is_as_of_now, list_of_pg, may_ask, names_of,
    pages_size_max, pgs_of, size_of, work_of,
};
use crate::session_takeover::Takeover;
use crate::sessions::Arrival;
use crate::space_credits::Verdict as Space;

/// A portion of a deletion takes at most one part in this many of the room that a change can have.
const DELETION_SHARE: u64 = 4;

/// What of a request begins next.
#[derive(Default)]
struct Next {
    /// Of a change that is carried out in pieces: the columns of this one. `None`: all of the request.
    columns: Option<Range<u32>>,
    /// What it may take of each member.
    charge: Charge,
}

/// What to do with a request now.
enum Verdict {
    /// Pass this of the request to the PG in this slot.
    Serve(PgSlot, Next),
    /// Pass the request to the PG in this slot, which answers it if it was executed before: there is no room
    /// to execute it.
    ServeRepeat(PgSlot),
    /// Check the request again later.
    Wait,
    /// Check the request again when there may be credit for it.
    WaitForCredit,
    /// Refuse the request for this reason.
    Refuse(Refusal),
}

/// Returns the verdict on a request for which there is no room. What was executed before is not refused.
fn without_room(slot: PgSlot, scope: &Scope) -> Verdict {
    match scope.need.again {
        true => Verdict::ServeRepeat(slot),
        false => Verdict::Refuse(Refusal::Full),
    }
}

impl Node {
    /// Handles a request that arrives from a client or a monitor. All requests enter here.
    pub(super) fn on_request(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let Some(link) = self.sessions.connection(connection) else { return };
        let (session, sequence) = (request.session, request.sequence);
        if !may_ask(link.role, &request) {
            let why = "the sender may not send this kind of request".into();
            let refusal = Err(Refusal::Invalid { why });
            return reply(connection, session, sequence, refusal, effects);
        }
        if request.revision > REVISION_MAX {
            // The revision is invalid, and the request would hold back others until the map reached that
            // revision.
            return self.hang_up(now, connection, effects);
        }
        let open_count = link.open_count;
        let sessions_max = self.settings.sessions_max;
        self.session_shown(now, &request, effects);
        let (id, names) = ((session, sequence), names_of(&request));
        match self.sessions.arrive(now, connection, id, names, sessions_max) {
            Arrival::New => {}
            Arrival::Moved => {
                self.drop_waiting(|waiting| {
                    waiting.request.session == session && waiting.connection != connection
                });
                self.lists.forget(|(over, of, _)| *of == session && *over != connection);
            }
            Arrival::Repeat => return,
            // The client reconnects and repeats its unanswered requests.
            Arrival::Forgotten => return self.hang_up(now, connection, effects),
            Arrival::TooMany => {
                return reply(connection, session, sequence, Err(Refusal::Busy), effects);
            }
        }
        let bytes = size_of(&request.op);
        let pg_count = pgs_of(&request).count();
        if open_count + pg_count > self.settings.connection_requests_max
            || self.requests.count() + pg_count > self.settings.requests_max
            || self.requests.bytes() + bytes > self.settings.request_bytes_max
            || self.phase != Phase::Running
        {
            return reply(connection, session, sequence, Err(Refusal::Busy), effects);
        }
        if !matches!(request.op, Op::List { .. }) {
            return self.admit(now, connection, request, bytes, effects);
        }
        if pages_size_max(&request.op) > u64::from(PAYLOAD_SIZE_MAX) {
            let why = "the pages of so many PGs do not fit one reply".into();
            let refusal = Err(Refusal::Invalid { why });
            return reply(connection, session, sequence, refusal, effects);
        }
        self.lists.begin((connection, session, sequence), pg_count);
        for (pg, epoch) in pgs_of(&request) {
            self.admit(
                now,
                connection,
                list_of_pg(&request, pg, epoch),
                bytes / pg_count as u64,
                effects,
            );
        }
    }

    /// Counts a request of one PG, and serves it, refuses it or lets it wait. `bytes`: what it holds in
    /// memory while it is open.
    fn admit(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        let arrival = self.requests.on_arrival(bytes);
        if let Some(link) = self.sessions.connection(connection) {
            link.open_count += 1;
        }
        let need = ObjectNeed::of(&request.op, !self.engine_lag.is_calm());
        let waiting = Waiting { connection, since: now, arrival, bytes, need, cut: None, request };
        self.judge_and_go(now, waiting, effects);
    }

    /// Replies to a request of a PG. The reply to a list waits for all of its PGs.
    fn answer(
        &mut self,
        connection: ConnectionId,
        (session, sequence): (SessionId, u64),
        pg: PgId,
        outcome: Result<Outcome, Refusal>,
        effects: &mut Vec<Effect>,
    ) {
        let outcome = self.lists.take((connection, session, sequence), pg.number, outcome);
        if let Some(outcome) = outcome {
            reply(connection, session, sequence, outcome, effects);
        }
    }

    /// Records the session of a request, whether or not the request is served. If the session acts on a
    /// newer map than this OSD has, older sessions of the same image wait until this OSD has that map.
    fn session_shown(&mut self, now: Time, request: &Request, effects: &mut Vec<Effect>) {
        let (session, pool) = (request.session, request.pg.pool);
        let known = self.cluster.pool(pool).map(|known| known.revision);
        let is_newer = |revision| known.is_none_or(|known| revision > known);
        if session == SessionId::ZERO || !is_newer(request.revision) {
            return;
        }
        let names = names_of(request);
        let names = self.sessions.names(session).map_or(names, |before| before.and(names));
        let Some(image) = names.image.filter(|_| is_newer(names.revision)) else { return };
        let takeover = Takeover { session, revision: names.revision };
        if self.sessions.takeovers.show((pool, image), takeover, known.is_some()) {
            self.judge_queued(now, effects);
        }
    }

    fn scope_of(&self, Waiting { request, need, .. }: &Waiting) -> Scope {
        let image = names_of(request).image;
        let named = || self.sessions.names(request.session)?.image;
        let deletion_count = match &request.op {
            Op::DeleteRange { .. } => self.deletion_count(request.pg),
            _ => 0,
        };
        Scope { deletion_count, ..Scope::of(request, image.or_else(named), *need) }
    }

    /// Returns how many blocks a portion of a deletion may delete, if the pool keeps parity: so many that it
    /// takes at most a quarter of the room that there can be.
    fn deletion_count(&self, pg: PgId) -> usize {
        let pg = self.pgs.get(pg).filter(|pg| pg.keeps_parity());
        pg.map_or(0, |pg| {
            let most = self.space_credits.most_room(self.space(), &pg.lease_givers());
            let count = most / DELETION_SHARE / pg.room_of(0);
            count.clamp(1, DELETE_PORTION_MAX as u64) as usize
        })
    }

    /// Returns whether this request must wait, because a newer session of its image acts on a map that this
    /// OSD does not have yet.
    fn is_held_back(&self, scope: &Scope) -> bool {
        self.sessions.takeovers.hold_back(scope.pg.pool, scope.image, scope.session)
            && !planted::on(Bug::OlderSessionServedOn)
    }

    /// Serves, refuses or queues a request, depending on the map and the state of its PG.
    pub(super) fn judge_and_go(&mut self, now: Time, waiting: Waiting, effects: &mut Vec<Effect>) {
        let scope = self.scope_of(&waiting);
        let verdict = self.judge(now, &scope, &waiting);
        let may_wait = waiting.since + self.settings.wait_max > now;
        if !matches!(verdict, Verdict::WaitForCredit) || !may_wait {
            self.space_credits.leave(waiting.arrival);
        }
        match verdict {
            Verdict::Serve(slot, next) => {
                self.start(now, (slot, Some(next)), scope, waiting, effects);
            }
            Verdict::ServeRepeat(slot) => self.start(now, (slot, None), scope, waiting, effects),
            Verdict::Wait | Verdict::WaitForCredit if may_wait => {
                self.requests.keep_waiting(waiting);
            }
            Verdict::Wait | Verdict::WaitForCredit => self.refuse(waiting, Refusal::Busy, effects),
            Verdict::Refuse(refusal) => {
                if let Some(work) = work_of(&waiting.request, waiting.since) {
                    self.stats.on_ended(now, work, Err(&refusal));
                }
                self.refuse(waiting, refusal, effects);
            }
        }
    }

    /// Decides whether a request is served now, waits or is refused.
    fn judge(&mut self, now: Time, scope: &Scope, waiting: &Waiting) -> Verdict {
        let arrival = waiting.arrival;
        if scope.is_direct {
            return self.judge_direct(now, scope);
        }
        if let Some(verdict) = self.judge_by_map(scope) {
            return verdict;
        }
        let Some(slot) = self.pgs.slot(scope.pg) else {
            return Verdict::Refuse(Refusal::Stale(None));
        };
        let is_behind_fenced = scope.is_of_objects && self.requests.has_fenced_change(scope.pg);
        let has_left = self.sessions.has_left(scope.session, waiting.connection);
        if waiting.cut.is_some() && has_left {
            // The session was forgotten between two pieces, and has come back over another connection.
            return Verdict::Refuse(Refusal::Stale(None));
        }
        if self.sessions.must_wait(scope.session) || is_behind_fenced {
            return Verdict::Wait;
        }
        if self.requests.must_wait_for_pieces(scope.stripe, arrival) {
            return Verdict::Wait;
        }
        if scope.changes && self.store.is_congested() {
            self.requests.await_store();
            return Verdict::Wait;
        }
        match self.pgs[slot].serving() {
            Serving::Active if self.is_leased(now, slot) => {
                if scope.changes && scope.is_of_objects {
                    let EngineState { is_lagging, is_full, is_low } = self.engine_state(slot);
                    if is_full || (is_low && scope.need.adds) {
                        return without_room(slot, scope);
                    }
                    if is_lagging {
                        return Verdict::Wait;
                    }
                }
                self.judge_credit(now, slot, scope, waiting)
            }
            Serving::Idle { .. } if self.peers.is_waiting_for_grants(scope.pg) => Verdict::Wait,
            Serving::Idle { why } => Verdict::Refuse(self.refusal_while_idle(scope, why)),
            _ => Verdict::Wait,
        }
    }

    /// Returns whether this OSD now holds a lease from every giver of the PG in `slot`, for the PG's epoch.
    fn is_leased(&self, now: Time, slot: PgSlot) -> bool {
        let pg = &self.pgs[slot];
        let Some(entry) = pg.entry() else { return false };
        let grants = |osd: &OsdId| {
            let member = entry.members().find(|member| member.osd == *osd);
            member.is_some_and(|giver| self.leases.holds(now, *giver, entry.pg, entry.epoch))
        };
        pg.lease_givers().iter().all(grants) || planted::on(Bug::ReadWithoutLease)
    }

    /// Decides whether this OSD, as a member that holds a part, passes a direct read to its PG, which then
    /// judges the versions. Requires: the leases of all other members, learners too, and exactly the sender's
    /// epoch.
    fn judge_direct(&self, now: Time, scope: &Scope) -> Verdict {
        let Some(known) = self.cluster.pool(scope.pg.pool) else {
            return Verdict::Refuse(Refusal::AskPrimary);
        };
        if known.is_fenced(scope.session) {
            return Verdict::Refuse(Refusal::Fenced);
        }
        let newest = known.pgs.get(scope.pg.number as usize);
        if let Some(newest) = newest.filter(|newest| scope.epoch < newest.epoch) {
            return Verdict::Refuse(Refusal::Stale(Some(newest.clone())));
        }
        let slot = self.pgs.slot(scope.pg).filter(|slot| {
            let entered = self.pgs[*slot].entry();
            entered.is_some_and(|entry| {
                entry.epoch == scope.epoch
                    && self.cluster.reads_directly(entry)
                    && self.holds_read_leases(now, entry)
            })
        });
        let may_serve = scope.revision <= known.revision
            && self.knows_fences(scope)
            && !self.is_held_back(scope)
            && !self.sessions.must_wait(scope.session);
        let tells = |slot: &PgSlot| {
            // Otherwise what the primary began before it knew a fence may be on its way here.
            scope.revision <= self.pgs[*slot].revision_told()
                || planted::on(Bug::DirectReadBesideFenced)
        };
        match slot.filter(|_| may_serve).filter(tells) {
            Some(slot) => Verdict::Serve(slot, Next::default()),
            None => Verdict::Refuse(Refusal::AskPrimary),
        }
    }

    /// Returns whether this OSD holds leases from all other members of the entry, learners too.
    fn holds_read_leases(&self, now: Time, entry: &PgEntry) -> bool {
        let mut others = entry.members().filter(|member| member.osd != self.identity.osd);
        others.all(|giver| self.leases.holds(now, *giver, entry.pg, entry.epoch))
            || planted::on(Bug::DirectReadWithoutLease)
    }

    /// Returns whether this OSD has the map of each version that came to it in this pool. If not, a version
    /// may be of a session that began after an older one was fenced, and the older one must not see it.
    fn knows_fences(&self, scope: &Scope) -> bool {
        let known = self.cluster.pool(scope.pg.pool).map(|known| known.revision);
        known.is_some_and(|known| self.peers.revision_shown(scope.pg.pool) <= known)
    }

    /// Checks that all members have space and room for a request: a change that has a version must fit.
    fn judge_credit(
        &mut self,
        now: Time,
        slot: PgSlot,
        scope: &Scope,
        waiting: &Waiting,
    ) -> Verdict {
        let (arrival, cut) = (waiting.arrival, waiting.cut.as_deref());
        let mut next = self.next_piece(slot, scope, cut);
        let mut verdict = self.credit_for(now, slot, arrival, next.charge);
        if verdict != Space::Enough && self.space_credits.may_review_help() {
            self.review_demand(now);
            // Shares of room may be others now.
            next = self.next_piece(slot, scope, cut);
            verdict = self.credit_for(now, slot, arrival, next.charge);
        }
        match verdict {
            Space::Enough => {
                assert!(self.pgs[slot].id() == scope.pg);
                Verdict::Serve(slot, next)
            }
            Space::Full => without_room(slot, scope),
            Space::Unknown => {
                if self.pgs[slot].keeps_parity() {
                    self.space_credits.await_room(now);
                }
                Verdict::WaitForCredit
            }
        }
    }

    /// Returns what a request may take of each member. An operation on objects takes the blocks that it may
    /// need, a write of a block that block, and with parity the room of its units. What zeroes a whole stripe
    /// takes no space, and room for no units; a deletion takes that for each of its blocks. Neither waits for
    /// a full giver that has one credit for both, if nothing of the PG can be prepared there.
    fn charge(&self, slot: PgSlot, scope: &Scope) -> Charge {
        let pg = &self.pgs[slot];
        let block_bytes = pg.block_size().bytes();
        if scope.is_of_objects {
            let ObjectNeed { bytes, blocks, .. } = scope.need;
            let bytes = (bytes.div_ceil(block_bytes) + blocks) * block_bytes;
            return Charge { space_bytes: bytes, room_bytes: 0, whole_bytes: bytes };
        }
        let changes_parity = scope.zeroes_bytes > 0 && pg.keeps_parity();
        if !scope.writes_data && !changes_parity && scope.deletion_count == 0 {
            return Charge::default();
        }
        if scope.deletion_count == 0 && !self.frees_stripe(slot, scope) {
            let room_bytes = pg.room_of((scope.changed_bytes / UNIT_SIZE) as u32);
            return Charge { space_bytes: block_bytes, room_bytes, whole_bytes: block_bytes };
        }
        let room_bytes = scope.deletion_count.max(1) as u64 * pg.room_of(0);
        let is_free = pg.has_committed_all() && self.space_credits.has_one_full(&pg.lease_givers());
        let whole_bytes = if is_free { 0 } else { room_bytes.next_multiple_of(block_bytes) };
        Charge { space_bytes: 0, room_bytes, whole_bytes }
    }

    /// Returns what of a request begins next: all of it, or if that needs more room than a member's largest
    /// share, a piece (`docs/internals/stripes.md`, rule 8a). `cut`: what is left of it.
    fn next_piece(&self, slot: PgSlot, scope: &Scope, cut: Option<&Cut>) -> Next {
        let (pg, charge) = (&self.pgs[slot], self.charge(slot, scope));
        let columns = self.columns(slot, scope);
        let is_small = cut.is_none() && charge.room_bytes <= pg.room_of(1);
        if charge.room_bytes == 0 || is_small || columns.count == 0 || scope.compares {
            return Next { columns: None, charge };
        }
        let largest = self.space_credits.most_room(self.space(), &pg.lease_givers());
        if cut.is_none() && charge.room_bytes <= largest {
            return Next { columns: None, charge };
        }
        let fits = |width: &u32| pg.room_of(*width) <= largest;
        let width = (1..=columns.column_count).rev().find(fits).unwrap_or(1);
        let piece = columns.next(cut.map_or(0, |cut| cut.next), width);
        let piece = piece.expect("what has no columns left has ended");
        let space_bytes = if cut.is_none() { charge.space_bytes } else { 0 };
        let room_bytes = pg.room_of(piece.end - piece.start);
        Next { columns: Some(piece), charge: Charge { space_bytes, room_bytes, ..charge } }
    }

    /// Returns the columns that a change has of its stripe.
    fn columns(&self, slot: PgSlot, scope: &Scope) -> Columns {
        Columns {
            first: scope.first_unit,
            count: (scope.changed_bytes / UNIT_SIZE) as u32,
            column_count: self.pgs[slot].block_size().unit_count(),
        }
    }

    /// Returns whether the request zeroes a whole stripe of a pool with parity.
    fn frees_stripe(&self, slot: PgSlot, scope: &Scope) -> bool {
        let pool = self.cluster.pool(scope.pg.pool).filter(|_| self.pgs[slot].keeps_parity());
        pool.is_some_and(|known| scope.zeroes_bytes == known.pool.stripe_bytes())
    }

    /// Returns the refusal for a PG that takes no part. If the only member of a PG lost data, only the
    /// operator can end the wait, so clients get an error that says their data is damaged. If there are
    /// other members, they may have the data, so clients wait, even if it turns out that none of them has
    /// it: `status` then suggests `pg give-up`.
    fn refusal_while_idle(&self, scope: &Scope, why: &str) -> Refusal {
        let pool = self.cluster.pool(scope.pg.pool);
        let is_alone = self.cluster.pg(scope.pg).is_some_and(|entry| entry.acting_count() == 1);
        let is_lost = is_alone && self.is_suspect(scope.pg);
        match pool.filter(|_| scope.session != SessionId::ZERO && is_lost) {
            Some(pool) => {
                let count = (pool.pool.stripe_bytes() / UNIT_SIZE) as u32;
                let words = (0..count).step_by(64);
                let units = words.map(|first| u64::MAX >> (64 - (count - first).min(64))).collect();
                Refusal::Damaged { units }
            }
            None => Refusal::Incomplete { why: why.to_owned() },
        }
    }

    /// Checks a request against the map: its revision, fences, the epoch, the primary, and newer sessions.
    /// Returns `None` if nothing in the map prevents the request.
    fn judge_by_map(&self, scope: &Scope) -> Option<Verdict> {
        let Some(known) = self.cluster.pool(scope.pg.pool) else {
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
            let why = format!("PG {} does not exist in its pool", scope.pg);
            return Some(Verdict::Refuse(Refusal::Invalid { why }));
        };
        let is_compared = !planted::on(Bug::EpochNotCompared);
        if is_compared && scope.epoch > entry.epoch {
            // The sender learned the epoch elsewhere; the map with this epoch has not arrived here yet.
            return Some(Verdict::Wait);
        }
        let is_stale =
            is_compared && scope.epoch < entry.epoch && !planted::on(Bug::OldEpochAccepted);
        if is_stale || !self.cluster.is_primary(entry) {
            return Some(Verdict::Refuse(Refusal::Stale(Some(entry.clone()))));
        }
        self.is_held_back(scope).then_some(Verdict::Wait)
    }

    /// Passes a request, or a piece of it, to its PG. `next`: what begins; `None`: there is no room to
    /// execute it. The space for all pieces is taken with the first one.
    fn start(
        &mut self,
        now: Time,
        (slot, next): (PgSlot, Option<Next>),
        scope: Scope,
        mut waiting: Waiting,
        effects: &mut Vec<Effect>,
    ) {
        let has_room = next.is_some();
        let Next { columns, charge } = next.unwrap_or_default();
        let is_first = waiting.cut.is_none();
        if is_first {
            self.budget.on_request();
            self.scrubbing.on_request();
        }
        let since = waiting.cut.as_ref().map_or(waiting.since, |cut| cut.since);
        let Waiting { connection, bytes, ref request, .. } = waiting;
        let (session, sequence) = (request.session, request.sequence);
        let mut started = Started {
            connection,
            session,
            sequence,
            since,
            scope,
            epoch: self.pgs[slot].entry().map_or(Epoch::ZERO, |entry| entry.epoch),
            bytes,
            binding: self.sessions.start(connection, session),
            work: work_of(request, since),
            charge,
            givers: self.take_credit(slot, charge),
            piece: None,
        };
        let Some(columns) = columns else {
            let ticket = self.requests.start(started);
            let time_of_day = self.scrubbing.time_of_day(now).unwrap_or(0);
            let op = waiting.request.op;
            return self.drive(now, slot, effects, |pg, actions| {
                pg.set_time_of_day(time_of_day);
                if scope.deletion_count > 0 {
                    pg.limit_deletion(scope.deletion_count);
                }
                match has_room {
                    true => pg.execute(ticket, session, op, actions),
                    false => pg.answer_repeat(ticket, session, op, actions),
                }
            });
        };
        let op = request.op.clone();
        let cut = waiting.cut.get_or_insert_with(|| {
            let stripe = scope.stripe.expect("only changes of a stripe are cut");
            self.requests.begin_cut(stripe, waiting.arrival);
            let charge = Charge { space_bytes: charge.space_bytes, ..Charge::default() };
            let givers = started.givers.clone();
            Box::new(Cut { stripe, next: 0, since, is_durable: true, charge, givers })
        });
        cut.next = columns.end;
        started.charge.space_bytes = 0;
        started.piece = Some(Box::new(Piece { is_first, rest: waiting }));
        let ticket = self.requests.start(started);
        self.drive(now, slot, effects, |pg, actions| {
            pg.execute_piece(ticket, op, (columns, is_first), actions);
        });
    }

    /// Returns the outcome of a change one piece of which has ended; `None` if the next one is to begin.
    fn end_piece(
        &mut self,
        now: Time,
        slot: PgSlot,
        piece: Piece,
        scope: &Scope,
        outcome: Result<Outcome, Refusal>,
    ) -> Option<Result<Outcome, Refusal>> {
        let Piece { is_first, mut rest } = piece;
        let cut = rest.cut.as_mut().expect("it has begun");
        let outcome = match outcome {
            Ok(Outcome::Written { version, durable }) => {
                cut.is_durable &= durable;
                let is_left = self.columns(slot, scope).next(cut.next, 1).is_some()
                    && !planted::on(Bug::PiecesLeftOut);
                let session = rest.request.session;
                let may_go_on = self.phase == Phase::Running
                    && self.sessions.connection(rest.connection).is_some()
                    && !self.sessions.has_left(session, rest.connection);
                if is_left && may_go_on {
                    rest.since = now;
                    self.requests.go_on(rest);
                    return None;
                }
                match is_left {
                    false => Ok(Outcome::Written { version, durable: cut.is_durable }),
                    true => Err(Refusal::Stale(None)),
                }
            }
            Err(refusal) if is_first => Err(refusal),
            Err(refusal) => Err(refusal_of_begun(refusal)),
            Ok(_) => unreachable!("a change is answered as written"),
        };
        self.end_cut(&rest);
        self.requests.release_bytes(rest.bytes);
        Some(outcome)
    }

    /// Ends what a change has taken for all of its pieces.
    fn end_cut(&mut self, rest: &Waiting) {
        if let Some(cut) = &rest.cut {
            self.end_credit(&cut.givers, cut.charge);
            self.requests.end_cut(cut.stripe);
        }
    }

    /// Handles the result of a request that the PG in `slot` has executed.
    pub(super) fn on_answer(
        &mut self,
        now: Time,
        slot: PgSlot,
        ticket: Ticket,
        mut outcome: Result<Outcome, Refusal>,
        effects: &mut Vec<Effect>,
    ) {
        let started = self.requests.end(ticket);
        let Started { connection, session, sequence, scope, epoch, binding, .. } = started;
        let Started { work, charge, givers, piece, .. } = started;
        assert!(scope.pg == self.pgs[slot].id());
        self.end_credit(&givers, charge);
        if is_as_of_now(&outcome, scope.writes_data) {
            let entered = self.pgs[slot].entry().is_some_and(|entry| entry.epoch == epoch);
            let is_sure = entered && self.is_leased(now, slot);
            if !is_sure && !planted::on(Bug::ReadWithoutLease) {
                // Another primary may have changed the data since then, so the client must send the request
                // again.
                outcome = Err(Refusal::Busy);
            }
        }
        if scope.is_direct && outcome.is_ok() {
            let entry = self.pgs[slot].entry();
            let is_leased = entry.is_some_and(|entry| self.holds_read_leases(now, entry));
            let known = self.cluster.pool(scope.pg.pool);
            if known.is_some_and(|known| known.is_fenced(scope.session)) {
                outcome = Err(Refusal::Fenced);
            } else if !is_leased || !self.knows_fences(&scope) || self.is_held_back(&scope) {
                outcome = Err(Refusal::AskPrimary);
            }
        }
        if self.sessions.end(session, binding) {
            self.requests.review();
        }
        if let Some(piece) = piece {
            match self.end_piece(now, slot, *piece, &scope, outcome) {
                Some(ended) => outcome = ended,
                None => return,
            }
        }
        if let Err(Refusal::Stale(newest @ None)) = &mut outcome {
            *newest = self.cluster.pg(scope.pg).cloned();
        }
        if let Some(work) = work {
            self.stats.on_ended(now, work, outcome.as_ref());
        }
        if let Some(link) = self.sessions.connection(connection) {
            assert!(link.open_count > 0);
            link.open_count -= 1;
            self.answer(connection, (session, sequence), scope.pg, outcome, effects);
        }
    }

    /// Refuses a request that has not started, or what is left of one.
    fn refuse(&mut self, waiting: Waiting, mut refusal: Refusal, effects: &mut Vec<Effect>) {
        if waiting.cut.is_some() {
            self.end_cut(&waiting);
            refusal = refusal_of_begun(refusal);
        }
        let Waiting { connection, request, bytes, .. } = waiting;
        self.requests.release_bytes(bytes);
        if let Refusal::Stale(newest @ None) = &mut refusal {
            *newest = self.cluster.pg(request.pg).cloned();
        }
        if let Some(link) = self.sessions.connection(connection) {
            assert!(link.open_count > 0);
            link.open_count -= 1;
            let id = (request.session, request.sequence);
            self.answer(connection, id, request.pg, Err(refusal), effects);
        }
    }

    /// Checks all waiting requests again, because something that they may wait for has changed.
    pub(super) fn judge_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for waiting in self.requests.take_waiting() {
            self.judge_and_go(now, waiting, effects);
        }
    }

    /// Checks those again that are the first to wait for credit, and those that come to be. The others stand
    /// behind them.
    pub(super) fn judge_first_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut judged = BTreeSet::new();
        while let Some(arrival) = self.space_credits.first_waiting(&judged) {
            judged.insert(arrival);
            let waiting = self.requests.take_one_waiting(arrival);
            self.judge_and_go(now, waiting.expect("it waits for credit"), effects);
        }
    }

    /// Checks the requests that wait inside PGs again, because the map has changed or a newer session was
    /// seen.
    pub(super) fn judge_queued(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Node { requests, cluster, .. } = self;
        requests.note_fenced(|started| {
            let pool = cluster.pool(started.scope.pg.pool);
            pool.is_some_and(|known| known.is_fenced(started.session))
        });
        let mut refused = Vec::new();
        // A direct read does not wait in its PG, and is judged again when it is answered.
        for (ticket, started) in self.requests.started().filter(|(_, it)| !it.scope.is_direct) {
            let refusal = match self.judge_by_map(&started.scope) {
                Some(Verdict::Refuse(refusal)) => refusal,
                // The client sends the request again; the new request then waits for the map.
                _ if self.is_held_back(&started.scope) => Refusal::Busy,
                _ => continue,
            };
            refused.push((ticket, refusal));
        }
        if refused.is_empty() {
            return;
        }
        for slot in self.pgs.slots() {
            let judge = |ticket: Ticket| {
                let found = refused.binary_search_by_key(&ticket, |(refused, _)| *refused);
                found.ok().map(|index| refused[index].1.clone())
            };
            self.drive(now, slot, effects, |pg, actions| pg.refuse_waiting(judge, actions));
        }
    }

    /// Returns whether a started request belongs to a fenced session. The fence takes effect here only when
    /// no such request is left.
    pub(super) fn fenced_session_is_served(&self) -> bool {
        self.requests.started().any(|(_, started)| {
            let pool = self.cluster.pool(started.scope.pg.pool);
            pool.is_some_and(|known| known.is_fenced(started.session))
        })
    }

    /// Returns whether a change of a fenced session has started in this PG and has not ended.
    pub(super) fn fenced_session_changes(&self, pg: PgId) -> bool {
        let Some(known) = self.cluster.pool(pg.pool) else { return false };
        self.requests.started().any(|(_, started)| {
            let scope = &started.scope;
            scope.pg == pg && scope.changes && known.is_fenced(started.session)
        })
    }

    /// Drops the waiting requests of a connection that is gone.
    pub(super) fn drop_waiting_of(&mut self, connection: ConnectionId) {
        self.drop_waiting(|waiting| waiting.connection == connection);
    }

    fn drop_waiting(&mut self, is_dropped: impl Fn(&Waiting) -> bool) {
        let Node { requests, sessions, space_credits, .. } = self;
        requests.drop_waiting(is_dropped, |waiting| {
            space_credits.leave(waiting.arrival);
            if let Some(cut) = &waiting.cut {
                space_credits.end(&cut.givers, cut.charge);
            }
            if let Some(link) = sessions.connection(waiting.connection) {
                assert!(link.open_count > 0);
                link.open_count -= 1;
            }
        });
        // Who stood behind one of them may find enough.
        requests.on_credit();
    }

    /// Refuses all requests that have not started, because the process ends.
    pub(super) fn refuse_all_waiting(&mut self, effects: &mut Vec<Effect>) {
        for waiting in self.requests.take_waiting() {
            self.space_credits.leave(waiting.arrival);
            self.refuse(waiting, Refusal::Busy, effects);
        }
    }
}

/// Returns the refusal of a change of which some pieces were carried out: all others promise that nothing
/// was.
fn refusal_of_begun(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Stale(_) | Refusal::Corrupted => refusal,
        _ => Refusal::Stale(None),
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
