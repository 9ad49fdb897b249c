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
//!   4. At most one sync is under way.

use super::{MemberSet, Ticket};

/// Syncs of an epoch at its primary. Counters are those of versions.
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
    /// `newest_lazy` when [`Syncs::is_due`] was called last.
    seen: u64,
}

struct Running {
    /// It covers versions up to this counter.
    upto: u64,
    /// Members that have not answered.
    missing: MemberSet,
    tickets: Vec<Ticket>,
}

/// What a client's sync waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncWait {
    /// Nothing: everything that was answered is durable.
    Nothing,
    /// The sync under way, which covers all that it asks for.
    Running,
    /// The next sync.
    Next,
}

/// A sync that ended at all members.
pub struct Synced {
    /// Versions up to this counter are durable.
    pub upto: u64,
    /// Who waited for it.
    pub tickets: Vec<Ticket>,
}

impl Syncs {
    /// Of an epoch whose versions go on from this counter.
    pub fn new(adopted: u64) -> Syncs {
        Syncs { newest_lazy: adopted, covered: adopted, seen: adopted, ..Syncs::default() }
    }

    /// A lazy write got its version.
    pub fn gave_lazily(&mut self, counter: u64) {
        assert!(counter > self.newest_lazy);
        self.newest_lazy = counter;
    }

    /// Whether a sync has made this version durable.
    pub fn covers(&self, counter: u64) -> bool {
        counter <= self.covered
    }

    /// A client wants everything that was answered to be durable. Versions that are not lazy were
    /// answered when they were durable.
    pub fn join(&mut self, ticket: Ticket) -> SyncWait {
        let newest = self.newest_lazy;
        if self.covers(newest) {
            return SyncWait::Nothing;
        }
        match self.running.as_mut().filter(|running| running.upto >= newest) {
            Some(running) => {
                running.tickets.push(ticket);
                SyncWait::Running
            }
            None => {
                self.waiting.push(ticket);
                SyncWait::Next
            }
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// A sync begins: it covers versions up to this counter, and ends when these members have answered.
    pub fn begin(&mut self, upto: u64, missing: MemberSet) {
        assert!(self.running.is_none());
        assert!(upto >= self.newest_lazy);
        let tickets = std::mem::take(&mut self.waiting);
        self.running = Some(Running { upto, missing, tickets });
    }

    /// A member has made durable what came before its sync. `Some`: it was the last one.
    pub fn on_member_synced(&mut self, index: usize) -> Option<Synced> {
        let running = self.running.as_mut().expect("one that was asked is under way");
        running.missing.take(index);
        let Running { upto, tickets, .. } =
            self.running.take_if(|running| running.missing.is_empty())?;
        assert!(upto >= self.covered);
        self.covered = upto;
        Some(Synced { upto, tickets })
    }

    /// Whether somebody waits for the next sync.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether lazy versions that were there when this was called last are not covered. Called now and
    /// then.
    pub fn is_due(&mut self) -> bool {
        let is_due = !self.covers(self.seen);
        self.seen = self.newest_lazy;
        is_due
    }

    /// Operations that wait for a sync.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let running = self.running.iter().flat_map(|running| &running.tickets);
        running.chain(&self.waiting).copied()
    }
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
    /// The primary; `call` is its number.
    Peer { call: u32 },
    /// A new epoch, which begins when nothing is in flight, or no one any more.
    Epoch,
}

impl Unflushed {
    /// The store answered a change that is not durable yet.
    pub fn wrote(&mut self) {
        self.written += 1;
    }

    /// How many changes a flush covers that begins now.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// A flush that covers so many changes ended.
    pub fn flushed(&mut self, covers: u64) {
        assert!(covers <= self.written);
        self.flushed = self.flushed.max(covers);
    }

    /// Whether everything that the store answered is durable.
    pub fn is_empty(&self) -> bool {
        self.flushed == self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_waits_for_the_one_under_way_only_if_that_covers_it() {
        let mut syncs = Syncs::new(5);
        assert_eq!(syncs.join(Ticket(1)), SyncWait::Nothing);
        syncs.gave_lazily(6);
        assert_eq!(syncs.join(Ticket(2)), SyncWait::Next);
        syncs.begin(6, MemberSet::all(2));
        assert_eq!(syncs.join(Ticket(3)), SyncWait::Running);
        syncs.gave_lazily(7);
        assert_eq!(syncs.join(Ticket(4)), SyncWait::Next);
        assert!(syncs.on_member_synced(0).is_none());
        let synced = syncs.on_member_synced(1).unwrap();
        assert_eq!((synced.upto, synced.tickets), (6, vec![Ticket(2), Ticket(3)]));
        assert!(syncs.covers(6) && !syncs.covers(7) && syncs.has_waiting());
    }
}
