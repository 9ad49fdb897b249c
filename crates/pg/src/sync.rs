//! Making durable what was answered before it was: syncs at the primary, and at its members.
//!
//! ```text
//!   lazy write ─▶ all have it ─▶ answered, not durable ─▶ a sync at all of them ─▶ the mark passes it
//! ```
//!
//! Invariants
//!   1. A version that was answered and is not durable stays in the window until a sync that began
//!      after it was given has ended at every acting member and every learner bound by then: the
//!      mark, and with it the floor, stay before it. A learner that is bound later has everything
//!      given before durably when it keeps its last cursor.
//!   2. A sync covers every version given before it, answered or not: it goes to each member behind
//!      the writes, and at each store it covers what came before it.
//!   3. A member states itself when what it took lazily in the epochs before is durable: what it
//!      states outlives a loss of power.

use base::planted::{self, Bug};
use blockstore::{Answer, Request as StoreRequest, StoreError};
use format::wire::{Outcome, PeerBody};

use super::ask::{Ask, Asked};
use super::{Action, Call, MemberSet, Pg, Serving, Ticket};

/// Syncs of an epoch at its primary.
#[derive(Default)]
pub struct Syncs {
    /// The one under way.
    running: Option<Running>,
    /// Who waits for the next one.
    waiting: Vec<Ticket>,
    /// Counter of the newest version that was given to a lazy write.
    newest_lazy: u64,
    /// Up to this counter a sync has made everything durable.
    covered: u64,
    /// `newest_lazy` when [`Pg::sync_old`] was called last.
    seen: u64,
}

struct Running {
    /// It covers versions up to this counter.
    upto: u64,
    /// Members that have not answered.
    missing: MemberSet,
    tickets: Vec<Ticket>,
}

/// Lazy changes at this OSD's store; outlives epochs.
#[derive(Default)]
pub struct Unflushed {
    /// So many changes were answered before they were durable.
    written: u64,
    /// So many of them are durable.
    flushed: u64,
}

/// Who waits for a flush of this OSD's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushFor {
    /// This OSD as primary.
    Lead,
    /// The primary.
    Peer { call: u32 },
    /// A new epoch, which begins when nothing is under way; or nobody any more.
    Epoch,
}

impl Syncs {
    /// Of an epoch whose versions go on from this counter.
    pub fn new(adopted: u64) -> Syncs {
        Syncs { newest_lazy: adopted, covered: adopted, seen: adopted, ..Syncs::default() }
    }

    /// A lazy write got its version.
    pub fn gave_lazily(&mut self, counter: u64) {
        self.newest_lazy = counter;
    }

    /// Whether a sync has made this version durable.
    pub fn covers(&self, counter: u64) -> bool {
        counter <= self.covered
    }

    /// Operations that wait for a sync.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let running = self.running.iter().flat_map(|running| &running.tickets);
        running.chain(&self.waiting).copied()
    }
}

impl Unflushed {
    /// The store answered a change that is not durable yet.
    pub fn wrote(&mut self) {
        self.written += 1;
    }
}

impl Pg {
    /// A client wants everything that was answered to be durable.
    pub(crate) fn sync(&mut self, ticket: Ticket, actions: &mut Vec<Action>) {
        let newest = self.syncs.newest_lazy;
        if self.syncs.covers(newest) {
            // Everything else was answered when it was durable.
            actions.push(Action::Reply { ticket, outcome: Ok(Outcome::Synced) });
            return;
        }
        match self.syncs.running.as_mut().filter(|running| running.upto >= newest) {
            Some(running) => running.tickets.push(ticket),
            None => {
                self.syncs.waiting.push(ticket);
                self.begin_sync(actions);
            }
        }
    }

    /// Makes durable what was there when this was called last and nobody asked to be: else mark and
    /// floor would wait for ever behind the writes of a client that died. Called now and then.
    pub(crate) fn sync_old(&mut self, actions: &mut Vec<Action>) {
        if self.serving != Serving::Active {
            return;
        }
        let is_due = self.window.answered_count() > 0 && !self.syncs.covers(self.syncs.seen);
        self.syncs.seen = self.syncs.newest_lazy;
        if is_due {
            self.begin_sync(actions);
        }
    }

    /// A lazy write was answered: not too many stay so.
    pub(crate) fn sync_when_many(&mut self, actions: &mut Vec<Action>) {
        if self.window.answered_count() >= self.shape.limits.unsynced_count_max / 2 {
            self.begin_sync(actions);
        }
    }

    /// Whether another write may be answered before it is durable.
    pub(crate) fn may_be_lazy(&self) -> bool {
        self.window.answered_count() < self.shape.limits.unsynced_count_max
    }

    /// Begins a sync of all that was given, unless one is under way.
    fn begin_sync(&mut self, actions: &mut Vec<Action>) {
        if self.syncs.running.is_some() || self.serving != Serving::Active {
            return;
        }
        let me = self.lead().me;
        let mut missing = self.keepers();
        if planted::on(Bug::SyncOfPrimaryAlone) {
            missing = MemberSet::default();
            missing.add(me);
        }
        let tickets = std::mem::take(&mut self.syncs.waiting);
        self.syncs.running = Some(Running { upto: self.window.begun(), missing, tickets });
        for index in missing.iter().filter(|index| *index != me) {
            let call = self.ask(Ask { peer: index, what: Asked::Sync });
            self.send(index, PeerBody::Sync { call }, actions);
        }
        self.flush(FlushFor::Lead, actions);
    }

    /// A member has made durable what came before its sync.
    pub(crate) fn member_synced(&mut self, index: usize, actions: &mut Vec<Action>) {
        let running = self.syncs.running.as_mut().expect("one that was asked is under way");
        running.missing.take(index);
        if !running.missing.is_empty() {
            return;
        }
        let running = self.syncs.running.take().expect("looked at above");
        self.syncs.covered = running.upto;
        self.window.settle(running.upto);
        for ticket in running.tickets {
            actions.push(Action::Reply { ticket, outcome: Ok(Outcome::Synced) });
        }
        if !self.syncs.waiting.is_empty() {
            self.begin_sync(actions);
        }
    }

    /// Makes durable what this OSD's store took before.
    pub(crate) fn flush(&mut self, what: FlushFor, actions: &mut Vec<Action>) {
        let covers = self.unflushed.written;
        self.call(Call::Flush { covers, what }, StoreRequest::Sync, actions);
    }

    /// What the store answered so far is durable.
    pub(crate) fn flushed(
        &mut self,
        covers: u64,
        what: FlushFor,
        result: &Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        assert!(result.is_ok(), "a sync needs no room and reads nothing");
        self.unflushed.flushed = self.unflushed.flushed.max(covers);
        match what {
            FlushFor::Lead => {
                let me = self.lead().me;
                self.member_synced(me, actions);
            }
            FlushFor::Peer { call } => self.synced_for_peer(call, actions),
            FlushFor::Epoch => {}
        }
    }

    /// Whether the store answered changes that are not durable yet.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.unflushed.flushed < self.unflushed.written
    }
}
