//! Requests that have not been answered: those that wait, and those that their PGs have.
//!
//! Invariants
//!   1. `bytes` is the sum over all requests that have arrived and were not answered or dropped.
//!   2. What waits is judged again, whole, each time something that it may wait for has changed.
//!   3. A started request ends once.

use std::collections::VecDeque;

use base::{ConnectionId, Duration, Epoch, ImageId, MapRevision, PgId, SessionId, Time};
use format::door::Role;
use format::wire::{Op, Outcome, PAYLOAD_SIZE_MAX, Refusal, Request};
use pg::Ticket;
use slab::Slab;

use crate::sessions::Names;
use crate::stats::Work;

/// All requests that have not been answered.
#[derive(Default)]
pub(crate) struct Requests {
    /// In the order they came.
    waiting: VecDeque<Waiting>,
    started: Slab<Started>,
    /// Bytes that all of them write or read.
    bytes: u64,
    /// Something that waiting requests may wait for has changed.
    is_review_due: bool,
    /// A request waits until it is known whether all members have space for it.
    is_space_awaited: bool,
    /// A request waits until the store is no longer congested.
    is_store_awaited: bool,
}

/// A request that waits: for the map, an activation, an older connection of its session, or space.
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    /// When it came.
    pub(crate) since: Time,
    pub(crate) request: Request,
}

/// What a reply needs, and what a later judgement needs.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    pub(crate) connection: ConnectionId,
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
    pub(crate) scope: Scope,
    /// The PG's, when it started.
    pub(crate) epoch: Epoch,
    pub(crate) bytes: u64,
    /// Which of its session's connections it came on.
    pub(crate) binding: u32,
    /// What is counted of it.
    pub(crate) work: Option<Work>,
    /// What the members are to have space for.
    pub(crate) space_bytes: u64,
}

/// What a request is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) session: SessionId,
    pub(crate) pg: PgId,
    /// The one that its session has, if that ever named it.
    pub(crate) image: Option<ImageId>,
    pub(crate) epoch: Epoch,
    pub(crate) revision: MapRevision,
    /// It brings data: refused while the store is full.
    pub(crate) writes_data: bool,
    /// It takes room in the journal: waits while there is none.
    pub(crate) changes: bool,
}

impl Requests {
    /// Number of requests that have not been answered.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len() + self.started.len()
    }

    /// Bytes that they write or read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all have been answered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        assert!(self.count() > 0 || self.bytes == 0);
        self.count() == 0
    }

    /// A request was let in. It waits or starts next, or is refused.
    pub(crate) fn on_arrival(&mut self, request: &Request) {
        self.bytes += size_of(&request.op);
    }

    /// A request that has not started is refused.
    pub(crate) fn on_refusal(&mut self, request: &Request) {
        self.release_bytes(size_of(&request.op));
    }

    fn release_bytes(&mut self, bytes: u64) {
        assert!(self.bytes >= bytes);
        self.bytes -= bytes;
    }

    // ---- those that wait

    /// Keeps a request until something changes that it may wait for.
    pub(crate) fn keep_waiting(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// All that wait, to be judged again.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Drops waiting requests; `on_drop` is told the connection of each.
    pub(crate) fn drop_waiting(
        &mut self,
        is_dropped: impl Fn(&Waiting) -> bool,
        mut on_drop: impl FnMut(ConnectionId),
    ) {
        let mut bytes = 0;
        self.waiting.retain(|waiting| {
            if !is_dropped(waiting) {
                return true;
            }
            bytes += size_of(&waiting.request.op);
            on_drop(waiting.connection);
            false
        });
        self.release_bytes(bytes);
    }

    /// When the oldest waiting request has waited `wait_max`.
    pub(crate) fn deadline(&self, wait_max: Duration) -> Option<Time> {
        self.waiting.front().map(|oldest| oldest.since + wait_max)
    }

    /// Something has changed that waiting requests may wait for.
    pub(crate) fn review(&mut self) {
        self.is_review_due = true;
    }

    /// Whether they are to be judged again; told once.
    pub(crate) fn take_review(&mut self) -> bool {
        std::mem::take(&mut self.is_review_due)
    }

    /// A request waits until it is known whether all members have space for it.
    pub(crate) fn await_space(&mut self) {
        self.is_space_awaited = true;
    }

    /// Whether a request waits for space.
    pub(crate) fn is_space_awaited(&self) -> bool {
        self.is_space_awaited
    }

    /// There may be space for what waits for it.
    pub(crate) fn on_space(&mut self) {
        self.is_review_due |= std::mem::take(&mut self.is_space_awaited);
    }

    /// A request waits until the store is no longer congested.
    pub(crate) fn await_store(&mut self) {
        self.is_store_awaited = true;
    }

    /// Whether a request waits until the store is no longer congested.
    pub(crate) fn is_store_awaited(&self) -> bool {
        self.is_store_awaited
    }

    /// The store is no longer congested.
    pub(crate) fn on_store(&mut self) {
        self.is_review_due |= std::mem::take(&mut self.is_store_awaited);
    }

    // ---- those that their PGs have

    /// A request goes to its PG.
    pub(crate) fn start(&mut self, started: Started) -> Ticket {
        let index = self.started.insert(started);
        Ticket(u32::try_from(index).expect("the settings bound open requests"))
    }

    /// Its PG answered. Requires: it started, and has not ended.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Started {
        let started = self.started.remove(ticket.0 as usize);
        self.release_bytes(started.bytes);
        started
    }

    /// Whether any request has started and not ended.
    pub(crate) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// All that have started and not ended, by ascending tickets.
    pub(crate) fn started(&self) -> impl Iterator<Item = (Ticket, &Started)> {
        self.started.iter().map(|(index, started)| (Ticket(index as u32), started))
    }
}

impl Scope {
    /// Of a request of this image, if it or its session names one.
    pub(crate) fn of(request: &Request, image: Option<ImageId>) -> Scope {
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
pub(crate) fn names_of(request: &Request) -> Names {
    let image = match &request.op {
        Op::Read { place, .. }
        | Op::Write { place, .. }
        | Op::Zero { place, .. }
        | Op::Extents { place, .. } => Some(place.image),
        Op::Sync | Op::DeleteRange { .. } => None,
    };
    Names { image, revision: request.revision }
}

/// What statistics count for a request that came at `since`. Requests of the monitor's tasks are not
/// counted.
pub(crate) fn work_of(request: &Request, since: Time) -> Option<Work> {
    let is_of_client = request.session != SessionId::ZERO;
    is_of_client.then(|| Work::of(request.pg.pool, &request.op, since)).flatten()
}

/// Bytes that an operation holds in memory while it is open. (A longer read is refused by its PG.)
pub(crate) fn size_of(op: &Op) -> u64 {
    match op {
        Op::Read { length, .. } => u64::from((*length).min(PAYLOAD_SIZE_MAX)),
        Op::Write { data, .. } => data.len() as u64,
        Op::Zero { .. } | Op::Extents { .. } | Op::Sync | Op::DeleteRange { .. } => 0,
    }
}

/// Whether the outcome tells how things are: true only while no other primary can change them.
/// That a write happened is true whatever comes after it; that a range held nothing to zero, or an
/// image no block to delete, is not.
pub(crate) fn is_as_of_now(outcome: &Result<Outcome, Refusal>, is_write: bool) -> bool {
    match outcome {
        Ok(Outcome::Written { .. }) => !is_write,
        Ok(_) | Err(Refusal::CompareFailed { .. } | Refusal::Damaged { .. }) => true,
        Err(_) => false,
    }
}

/// Whether a peer of this role may ask this at all.
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
