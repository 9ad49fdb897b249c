//! Makes writes durable that were answered before they were durable: syncs at the primary and at its members.
//!
//! ```text
//!   lazy write ─▶ all have it ─▶ answered, not durable ─▶ a sync at all of them ─▶ the mark passes it
//! ```
//!
//! Invariants
//!   1. A version that was answered but is not durable stays in the window until a sync that began after the
//!      version was assigned has ended. The sync ends when every acting member, and every learner bound by
//!      then, has answered. Until then the mark, and with it the floor, stay below the version. A learner
//!      that is bound later has all earlier versions durably when it records its last cursor.
//!   2. A sync covers every version assigned before it, answered or not: it is sent to each member after the
//!      writes, and in each store it covers all earlier changes.
//!   3. A member reports its state when the lazy writes that it accepted in earlier epochs are durable: what
//!      it reports survives a loss of power.
//!   4. At most one sync is in flight.

use super::{MemberSet, Ticket};

/// Syncs of an epoch at its primary. Counters are version counters.
#[derive(Default)]
pub struct Syncs {
    /// The sync in flight.
    running: Option<Running>,
    /// Operations that wait for the next sync.
    waiting: Vec<Ticket>,
    /// Counter of the newest version that was assigned to a lazy write.
    newest_lazy: u64,
    /// Syncs have made everything up to this counter durable.
    covered: u64,
    /// The value of `newest_lazy` at the last call of [`Syncs::is_due`].
    seen: u64,
}

struct Running {
    /// The sync covers versions up to this counter.
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
    /// The sync in flight, which covers everything that the client wants.
    Running,
    /// The next sync.
    Next,
}

/// A sync that ended at all members.
pub struct Synced {
    /// Versions up to this counter are durable.
    pub upto: u64,
    /// Operations that waited for it.
    pub tickets: Vec<Ticket>,
}

impl Syncs {
    /// Returns the syncs of an epoch whose versions continue from this counter.
    pub fn new(adopted: u64) -> Syncs {
        Syncs { newest_lazy: adopted, covered: adopted, seen: adopted, ..Syncs::default() }
    }

    /// Notes that a lazy write has received its version.
    pub fn gave_lazily(&mut self, counter: u64) {
        assert!(counter > self.newest_lazy);
        self.newest_lazy = counter;
    }

    /// Returns whether a sync has made this version durable.
    pub fn covers(&self, counter: u64) -> bool {
        counter <= self.covered
    }

    /// Handles a client's sync: the client wants everything that was answered to be durable. Returns what the
    /// sync waits for. Only lazy versions count: others were durable when they were answered.
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

    /// Begins a sync. It covers versions up to `upto`, and ends when the members `missing` have answered.
    pub fn begin(&mut self, upto: u64, missing: MemberSet) {
        assert!(self.running.is_none());
        assert!(upto >= self.newest_lazy);
        let tickets = std::mem::take(&mut self.waiting);
        self.running = Some(Running { upto, missing, tickets });
    }

    /// Notes that a member has completed the sync. Returns the sync if that was the last member.
    pub fn on_member_synced(&mut self, index: usize) -> Option<Synced> {
        let running = self.running.as_mut().expect("a sync is in flight");
        running.missing.take(index);
        let Running { upto, tickets, .. } =
            self.running.take_if(|running| running.missing.is_empty())?;
        assert!(upto >= self.covered);
        self.covered = upto;
        Some(Synced { upto, tickets })
    }

    /// Returns whether an operation waits for the next sync.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether lazy versions that existed at the last call are still not durable. Called
    /// periodically.
    pub fn is_due(&mut self) -> bool {
        let is_due = !self.covers(self.seen);
        self.seen = self.newest_lazy;
        is_due
    }

    /// Returns the operations that wait for a sync.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let running = self.running.iter().flat_map(|running| &running.tickets);
        running.chain(&self.waiting).copied()
    }
}

/// Counts of lazy changes at this OSD's store; they outlive epochs.
#[derive(Default)]
pub struct Unflushed {
    /// Number of changes that were answered before they were durable.
    written: u64,
    /// Number of these changes that are durable.
    flushed: u64,
}

/// Who waits for a flush of this OSD's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushFor {
    /// This OSD as primary.
    Lead,
    /// The primary. `call`: the number of its request.
    Peer { call: u32 },
    /// This OSD as a member of a pool with parity: the versions that it reports as durable must be a prefix.
    Prefix,
    /// A new epoch, which begins when nothing is in flight; or nobody, because the epoch is over.
    Epoch,
}

impl Unflushed {
    /// Counts a change that the store answered before it was durable.
    pub fn wrote(&mut self) {
        self.written += 1;
    }

    /// Returns how many changes a flush that begins now covers.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Notes the end of a flush that covers `covers` changes.
    pub fn flushed(&mut self, covers: u64) {
        assert!(covers <= self.written);
        self.flushed = self.flushed.max(covers);
    }

    /// Returns whether everything that the store answered is durable.
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
