//! Unanswered requests: those that wait here, and those that have been passed to their PGs.
//!
//! Invariants
//!   1. `bytes` is the sum over all requests that have arrived and have not been answered or dropped.
//!   2. All waiting requests go through all checks again each time something that they may wait for has
//!      changed. Where that is credit, only the first of each line does (`credit_lines`).
//!   3. A started request ends exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{
    ConnectionId, Duration, Epoch, ImageId, MapRevision, OsdId, PgId, SessionId, StripeIndex, Time,
    UNIT_SIZE, Version,
};
use format::door::Role;
use format::wire::{Op, Outcome, PAYLOAD_SIZE_MAX, Refusal, Request};
use objects::{Look, NameQuery, Operation};
use pg::{Charge, Ticket};
use slab::Slab;

use crate::sessions::Names;
use crate::stats::Work;

/// Operations on objects of up to this size are decoded to know what space they need.
const DECODED_SIZE_MAX: u64 = 64 << 10;

/// All requests that have not been answered.
#[derive(Default)]
pub(crate) struct Requests {
    /// Waiting requests by the number of their arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The number of the last arrival.
    arrival: u64,
    started: Slab<Started>,
    /// Changes of fenced sessions in pools of objects that have not ended.
    fenced: BTreeMap<u32, PgId>,
    /// Bytes that all of these requests write or read.
    bytes: u64,
    /// Whether something that waiting requests may wait for has changed.
    is_review_due: bool,
    /// Whether the first of those that wait for credit are due for a check: there may be some.
    is_credit_due: bool,
    /// Whether a request waits until the store is no longer congested.
    is_store_awaited: bool,
    /// The changes that are carried out in pieces and have begun, by their stripes.
    cuts: BTreeMap<Stripe, u64>,
    /// Whether a request waits until the last piece of such a change has ended.
    is_cut_awaited: bool,
    /// Those of them of which a piece has ended: the next one may begin.
    cuts_due: Vec<u64>,
}

/// A stripe of a PG.
pub(crate) type Stripe = (PgId, ImageId, StripeIndex);

/// A change that is carried out in pieces and has begun (`docs/internals/stripes.md`, rule 8a).
pub(crate) struct Cut {
    pub(crate) stripe: Stripe,
    /// The first column that is left.
    pub(crate) next: u32,
    /// When the request arrived.
    pub(crate) since: Time,
    /// Whether all pieces that have ended are durable.
    pub(crate) is_durable: bool,
    /// The space that was taken for all pieces, and the givers of which it was taken.
    pub(crate) charge: Charge,
    pub(crate) givers: Arc<[OsdId]>,
}

/// A piece that was passed to its PG, and the request that it is a part of.
pub(crate) struct Piece {
    /// Whether it is the first one of the request.
    pub(crate) is_first: bool,
    pub(crate) rest: Waiting,
}

/// A request that waits for the map, an activation, requests on an older connection of its session, or
/// space.
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    /// When the request arrived.
    pub(crate) since: Time,
    /// The number of its arrival.
    pub(crate) arrival: u64,
    /// Bytes that it holds in memory while it is open.
    pub(crate) bytes: u64,
    /// See [`Scope::need`].
    pub(crate) need: ObjectNeed,
    /// What is left of the change, if a piece of it was carried out.
    pub(crate) cut: Option<Box<Cut>>,
    pub(crate) request: Request,
}

/// A request that was passed to its PG: what is needed for the reply and for later checks.
pub(crate) struct Started {
    pub(crate) connection: ConnectionId,
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
    /// When the request arrived.
    pub(crate) since: Time,
    pub(crate) scope: Scope,
    /// The PG's epoch when the request started.
    pub(crate) epoch: Epoch,
    pub(crate) bytes: u64,
    /// Which of its session's connections it arrived on, see `Sessions::start`.
    pub(crate) binding: u32,
    /// What the statistics count for this request.
    pub(crate) work: Option<Work>,
    /// The credit that the request has taken, and the givers of which it did, besides this OSD itself.
    pub(crate) charge: Charge,
    pub(crate) givers: Arc<[OsdId]>,
    /// Of a piece of a change: what else is needed to go on.
    pub(crate) piece: Option<Box<Piece>>,
}

/// The properties of a request that decide whether it is served.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) session: SessionId,
    pub(crate) pg: PgId,
    /// The image that the request identifies, or else the one that an earlier request of its session
    /// identified.
    pub(crate) image: Option<ImageId>,
    pub(crate) epoch: Epoch,
    pub(crate) revision: MapRevision,
    /// Whether the request writes data; then it is refused while the store is full.
    pub(crate) writes_data: bool,
    /// What an operation on objects may take.
    pub(crate) need: ObjectNeed,
    /// Number of bytes that the request zeroes; in pools with parity this changes parity.
    pub(crate) zeroes_bytes: u64,
    /// Number of bytes that the request writes or zeroes.
    pub(crate) changed_bytes: u64,
    /// The stripe that it changes, or of which it reads.
    pub(crate) stripe: Option<Stripe>,
    /// The first unit that it changes.
    pub(crate) first_unit: u32,
    /// Whether the write depends on what its block holds.
    pub(crate) compares: bool,
    /// In pools with parity: how many blocks the request may delete, each with a version of its own.
    pub(crate) deletion_count: usize,
    /// Whether the request uses space in the journal; then it waits while there is none.
    pub(crate) changes: bool,
    /// Whether this OSD is asked as the member that holds a part, and not as the primary.
    pub(crate) is_direct: bool,
    /// Whether the request is one of a pool of objects.
    pub(crate) is_of_objects: bool,
}

impl Requests {
    /// Returns the number of requests that have not been answered.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len() + self.started.len()
    }

    /// Returns how many bytes the unanswered requests write or read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether all requests have been answered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        assert!(self.count() > 0 || self.bytes == 0);
        self.count() == 0
    }

    /// Counts an accepted request, and returns the number of its arrival. The request then waits, starts or
    /// is refused.
    pub(crate) fn on_arrival(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        self.arrival += 1;
        self.arrival
    }

    /// Counts the bytes of a request no longer: it is answered or dropped.
    pub(crate) fn release_bytes(&mut self, bytes: u64) {
        assert!(self.bytes >= bytes);
        self.bytes -= bytes;
    }

    // ---- waiting requests

    /// Keeps a request until something that it may wait for changes.
    pub(crate) fn keep_waiting(&mut self, waiting: Waiting) {
        self.waiting.insert(waiting.arrival, waiting);
    }

    /// Takes all waiting requests, in order of arrival, to be checked again.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(&mut self.waiting).into_values()
    }

    /// Takes a waiting request, to be checked again.
    pub(crate) fn take_one_waiting(&mut self, arrival: u64) -> Option<Waiting> {
        self.waiting.remove(&arrival)
    }

    /// Drops waiting requests; calls `on_drop` with each.
    pub(crate) fn drop_waiting(
        &mut self,
        is_dropped: impl Fn(&Waiting) -> bool,
        mut on_drop: impl FnMut(&Waiting),
    ) {
        let mut bytes = 0;
        let Requests { waiting, cuts, is_review_due, is_cut_awaited, .. } = self;
        waiting.retain(|_, waiting| {
            if !is_dropped(waiting) {
                return true;
            }
            if let Some(cut) = &waiting.cut {
                cuts.remove(&cut.stripe);
                *is_review_due |= std::mem::take(is_cut_awaited);
            }
            bytes += waiting.bytes;
            on_drop(waiting);
            false
        });
        self.release_bytes(bytes);
    }

    /// Returns when a waiting request will have waited for `wait_max`.
    pub(crate) fn deadline(&self, wait_max: Duration) -> Option<Time> {
        // Those that have not begun wait since they arrived: the first of them is the oldest.
        let begun_count = self.waiting.values().take_while(|waiting| waiting.cut.is_some()).count();
        let first = self.waiting.values().take(begun_count + 1);
        first.map(|waiting| waiting.since).min().map(|oldest| oldest + wait_max)
    }

    /// Makes all waiting requests due for a check: something that they may wait for has changed.
    pub(crate) fn review(&mut self) {
        self.is_review_due = true;
    }

    /// Returns whether waiting requests are due for a check, and clears that flag.
    pub(crate) fn take_review(&mut self) -> bool {
        std::mem::take(&mut self.is_review_due)
    }

    /// Makes the first of those that wait for credit due for a check: there may be some now.
    pub(crate) fn on_credit(&mut self) {
        self.is_credit_due = true;
    }

    /// Returns whether they are due, and clears that flag.
    pub(crate) fn take_credit_due(&mut self) -> bool {
        std::mem::take(&mut self.is_credit_due)
    }

    /// Records that a request waits until the store is no longer congested.
    pub(crate) fn await_store(&mut self) {
        self.is_store_awaited = true;
    }

    /// Returns whether a request waits until the store is no longer congested.
    pub(crate) fn is_store_awaited(&self) -> bool {
        self.is_store_awaited
    }

    /// Makes waiting requests due for a check if one waits for the store, which is no longer congested.
    pub(crate) fn on_store(&mut self) {
        self.is_review_due |= std::mem::take(&mut self.is_store_awaited);
    }

    // ---- requests passed to their PGs

    /// Records that a request is passed to its PG.
    pub(crate) fn start(&mut self, started: Started) -> Ticket {
        let index = self.started.insert(started);
        Ticket(u32::try_from(index).expect("the settings bound open requests"))
    }

    /// Notes the changes of fenced sessions that have started in pools of objects.
    pub(crate) fn note_fenced(&mut self, is_fenced: impl Fn(&Started) -> bool) {
        let fenced = self.started.iter().filter(|(_, started)| {
            started.scope.changes && started.scope.is_of_objects && is_fenced(started)
        });
        self.fenced = fenced.map(|(index, started)| (index as u32, started.scope.pg)).collect();
    }

    /// Returns whether a change of a fenced session has not ended in this PG of objects. Until then nothing
    /// of other sessions begins there: reads of objects do not wait for what has no version yet.
    pub(crate) fn has_fenced_change(&self, pg: PgId) -> bool {
        self.fenced.values().any(|of| *of == pg)
    }

    /// Ends a request that its PG has answered; what is left of it, if it was a piece, still counts.
    /// Requires: it has started and has not ended.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Started {
        let started = self.started.remove(ticket.0 as usize);
        if started.piece.is_none() {
            self.release_bytes(started.bytes);
        }
        self.is_review_due |= self.fenced.remove(&ticket.0).is_some();
        started
    }

    // ---- changes that are carried out in pieces

    /// Records that a change begins whose first piece leaves others.
    pub(crate) fn begin_cut(&mut self, stripe: Stripe, arrival: u64) {
        let before = self.cuts.insert(stripe, arrival);
        assert!(before.is_none_or(|before| before == arrival), "others wait");
    }

    /// Returns whether another change of the stripe has begun, and pieces of it are left.
    pub(crate) fn must_wait_for_pieces(&mut self, stripe: Option<Stripe>, arrival: u64) -> bool {
        let begun = stripe.and_then(|stripe| self.cuts.get(&stripe));
        let must_wait = begun.is_some_and(|begun| *begun != arrival);
        self.is_cut_awaited |= must_wait;
        must_wait
    }

    /// Keeps what is left of a change until the next piece may begin, which is to be checked next.
    pub(crate) fn go_on(&mut self, rest: Waiting) {
        self.cuts_due.push(rest.arrival);
        self.keep_waiting(rest);
    }

    /// Takes a change whose next piece is to be checked.
    pub(crate) fn take_cut_due(&mut self) -> Option<Waiting> {
        while let Some(arrival) = self.cuts_due.pop() {
            let waiting = self.waiting.remove(&arrival);
            if waiting.is_some() {
                return waiting;
            }
        }
        None
    }

    /// Records that a change has ended of which a piece has begun: others of the stripe may begin.
    pub(crate) fn end_cut(&mut self, stripe: Stripe) {
        let begun = self.cuts.remove(&stripe);
        assert!(begun.is_some());
        self.is_review_due |= std::mem::take(&mut self.is_cut_awaited);
    }

    /// Returns whether any request has started and not ended.
    pub(crate) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Returns all requests that have started and not ended, by ascending tickets.
    pub(crate) fn started(&self) -> impl Iterator<Item = (Ticket, &Started)> {
        self.started.iter().map(|(index, started)| (Ticket(index as u32), started))
    }
}

impl Scope {
    /// Creates the scope of a request. `image`: the image that the request or its session identifies, if any.
    pub(crate) fn of(request: &Request, image: Option<ImageId>, need: ObjectNeed) -> Scope {
        Scope {
            session: request.session,
            pg: request.pg,
            image,
            epoch: request.epoch,
            revision: request.revision,
            writes_data: matches!(request.op, Op::Write { .. }),
            zeroes_bytes: match request.op {
                Op::Zero { length, .. } => u64::from(length),
                _ => 0,
            },
            changed_bytes: match &request.op {
                Op::Zero { length, .. } => u64::from(*length),
                Op::Write { data, .. } => data.len() as u64,
                _ => 0,
            },
            stripe: match &request.op {
                Op::Zero { place, .. }
                | Op::Write { place, .. }
                | Op::Read { place, .. }
                | Op::Extents { place, .. } => Some((request.pg, place.image, place.stripe)),
                _ => None,
            },
            first_unit: match &request.op {
                Op::Zero { offset, .. } | Op::Write { offset, .. } => *offset / UNIT_SIZE as u32,
                _ => 0,
            },
            compares: matches!(request.op, Op::Write { expected: Some(_), .. }),
            deletion_count: 0,
            need,
            changes: match request.op {
                Op::Write { .. } | Op::Zero { .. } | Op::DeleteRange { .. } | Op::Mutate { .. } => {
                    true
                }
                Op::Read { .. }
                | Op::ReadPart { .. }
                | Op::Extents { .. }
                | Op::Sync
                | Op::Look { .. }
                | Op::List { .. } => false,
            },
            is_direct: matches!(request.op, Op::ReadPart { .. }),
            is_of_objects: request.op.is_of_objects(),
        }
    }
}

/// What an operation on objects may take of each member.
#[derive(Clone, Copy, Default)]
pub(crate) struct ObjectNeed {
    /// How many bytes it may write to blocks that have no place yet.
    pub(crate) bytes: u64,
    /// The number of such blocks of which it may write a part.
    pub(crate) blocks: u64,
    /// Whether it may add to what is kept.
    pub(crate) adds: bool,
    /// Whether it may have been executed already.
    pub(crate) again: bool,
}

impl ObjectNeed {
    /// Returns what the operation needs. A long one is not decoded for that unless it `must_be`: all of its
    /// bytes count.
    pub(crate) fn of(op: &Op, must_be: bool) -> ObjectNeed {
        let Op::Mutate { operation, again, .. } = op else { return ObjectNeed::default() };
        let size = operation.size();
        let decoded = || operation.bytes().and_then(|bytes| Operation::decode(bytes).ok());
        let (bytes, blocks, adds) =
            match (must_be || size <= DECODED_SIZE_MAX).then(decoded).flatten() {
                Some(operation) => {
                    let (bytes, blocks) = operation.block_need();
                    (bytes, blocks, operation.may_add())
                }
                None => (size, 2, true),
            };
        ObjectNeed { bytes, blocks, adds, again: *again }
    }
}

/// Returns the image and the map revision that a request identifies for its session.
pub(crate) fn names_of(request: &Request) -> Names {
    let image = match &request.op {
        Op::Read { place, .. }
        | Op::ReadPart { place, .. }
        | Op::Write { place, .. }
        | Op::Zero { place, .. }
        | Op::Extents { place, .. } => Some(place.image),
        Op::Sync
        | Op::DeleteRange { .. }
        | Op::Mutate { .. }
        | Op::Look { .. }
        | Op::List { .. } => None,
    };
    Names { image, revision: request.revision }
}

/// Returns what statistics count for a request that arrived at `since`. Requests of the monitor's tasks
/// are not counted.
pub(crate) fn work_of(request: &Request, since: Time) -> Option<Work> {
    let is_of_client = request.session != SessionId::ZERO;
    is_of_client.then(|| Work::of(request.pg.pool, &request.op, since)).flatten()
}

/// Returns the bytes that an operation holds in memory while it is open. (Its PG refuses a longer read.)
pub(crate) fn size_of(op: &Op) -> u64 {
    match op {
        Op::Read { length, .. } | Op::ReadPart { length, .. } => {
            u64::from((*length).min(PAYLOAD_SIZE_MAX))
        }
        Op::Write { data, .. } => data.len() as u64,
        Op::Mutate { operation, .. } => operation.size(),
        Op::Look { reads } => {
            let look = reads.bytes().and_then(|bytes| Look::decode(bytes).ok());
            reads.size() + look.map_or(0, |look| look.answers_size_max() as u64)
        }
        // Each of its PGs holds the same.
        Op::List { beside, names } => names.size() * (1 + beside.len() as u64) + pages_size_max(op),
        Op::Zero { .. } | Op::Extents { .. } | Op::Sync | Op::DeleteRange { .. } => 0,
    }
}

/// Returns the PGs that a request asks, each with the sender's epoch.
pub(crate) fn pgs_of(request: &Request) -> impl Iterator<Item = (PgId, Epoch)> {
    let beside: &[(u32, Epoch)] = match &request.op {
        Op::List { beside, .. } => beside,
        _ => &[],
    };
    let pool = request.pg.pool;
    let beside = beside.iter().map(move |(number, epoch)| (PgId { pool, number: *number }, *epoch));
    std::iter::once((request.pg, request.epoch)).chain(beside)
}

/// Returns what a list asks of one of its PGs. Requires: the request is a list.
pub(crate) fn list_of_pg(request: &Request, pg: PgId, epoch: Epoch) -> Request {
    let Op::List { names, .. } = &request.op else { unreachable!("only lists are of several PGs") };
    let op = Op::List { beside: Vec::new(), names: names.clone() };
    Request { pg, epoch, op, ..*request }
}

/// Returns the most bytes that the pages of a list take together.
pub(crate) fn pages_size_max(op: &Op) -> u64 {
    let Op::List { beside, names } = op else { return 0 };
    let query = names.bytes().and_then(|bytes| NameQuery::decode(bytes).ok());
    (1 + beside.len() as u64) * query.map_or(0, |query| query.answer_size_max() as u64)
}

/// Returns whether the outcome describes the current state. Such an outcome is valid only while no other
/// primary can change that state. The fact that data was written stays true whatever happens later, but a
/// range that had nothing to zero, or an image that had no block to delete, may have changed since.
pub(crate) fn is_as_of_now(outcome: &Result<Outcome, Refusal>, is_write: bool) -> bool {
    match outcome {
        Ok(Outcome::Written { .. }) => !is_write,
        Ok(Outcome::Mutated { version, .. }) => *version == Version::ZERO,
        Ok(_)
        | Err(
            Refusal::CompareFailed { .. }
            | Refusal::Damaged { .. }
            | Refusal::Asserted { .. }
            | Refusal::TooLarge { .. },
        ) => true,
        Err(_) => false,
    }
}

/// Returns whether a peer in this role may send this kind of request at all.
pub(crate) fn may_ask(role: Role, request: &Request) -> bool {
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
