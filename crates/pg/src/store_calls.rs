//! Requests to this OSD's store that have no answer yet, and what each answer belongs to.
//!
//! Invariants
//!   1. Each call is answered once; its id is not reused before.
//!   2. A call outlives its epoch. After [`StoreCalls::abandon`] its answer reaches nobody, but changes
//!      still count until they end: no member states itself before that.

use base::Version;
use slab::Slab;

use super::CallId;
use super::slots::{DeletionSlot, JobSlot, ReadSlot, WriteSlot};
use super::sync::FlushFor;
use super::write_queue::WriteQueue;

/// What an answer of the store belongs to.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// A write, zero or delete of this OSD as primary.
    Write(WriteSlot),
    /// Version and allocation of a block that is about to change.
    Examine(WriteSlot),
    /// All data of a read without older layers.
    Fetch(ReadSlot),
    /// Allocation of one layer of a chain.
    Layer { read: ReadSlot, layer: usize },
    /// Data of one part of a chain.
    Part { read: ReadSlot, part: usize },
    /// This OSD's copy of a block.
    Copy(JobSlot),
    /// Which units of a block this OSD lost.
    FindLost(JobSlot),
    /// Those units, written again; how many.
    Mend { job: JobSlot, units: usize },
    /// The newest version of a block, for this OSD as an acting member.
    Adopt(JobSlot),
    /// Blocks newer than some version; answered by [`super::Pg::listed_newer`].
    ListNewer(NewerFor),
    /// A write that the primary sent.
    Taken { order: u64, version: Version },
    /// A repair that the primary sent; `call` is the primary's number.
    PeerRepair { order: u64, call: u32 },
    /// A block that the primary asked for.
    PeerCopy { call: u32 },
    /// Blocks to delete; answered by [`super::Pg::listed`].
    ListDeletion(DeletionSlot),
    /// Everything so far, durably. `covers`: so many changes were answered before they were durable.
    Flush { covers: u64, what: FlushFor },
    /// A record.
    Record,
    /// A floor; nobody waits for it.
    Floor,
    /// The operator gave up what the store lost of this PG.
    Absolve,
    /// A learner is filled: what its store lost is here again.
    AbsolveFilled { call: u32 },
    /// A change of an epoch that is over; its version, if it has one.
    Ending(Option<Version>),
    /// Nobody waits for it any more.
    Dropped,
}

/// Who wants a list of newer blocks.
#[derive(Clone, Copy, Debug)]
pub enum NewerFor {
    /// The primary, under its number.
    Peer { call: u32 },
    /// The comparison of the acting members.
    Compare,
    /// The backfill of a learner.
    Fill { learner: usize },
}

impl Call {
    /// Whether it may change what the member states when the next epoch begins.
    fn is_change(&self) -> bool {
        match self {
            Call::Write(_)
            | Call::Mend { .. }
            | Call::Adopt(_)
            | Call::Taken { .. }
            | Call::PeerRepair { .. }
            | Call::AbsolveFilled { .. }
            | Call::Record
            | Call::Flush { .. }
            | Call::Ending(_) => true,
            Call::Examine(_)
            | Call::Fetch(_)
            | Call::Layer { .. }
            | Call::Part { .. }
            | Call::Copy(_)
            | Call::FindLost(_)
            | Call::ListNewer(_)
            | Call::PeerCopy { .. }
            | Call::ListDeletion(_)
            | Call::Floor
            | Call::Absolve
            | Call::Dropped => false,
        }
    }

    /// What its answer is for once the epoch is over.
    fn abandoned(self, writes: &WriteQueue) -> Call {
        match self {
            Call::Record | Call::Floor | Call::Absolve | Call::Ending(_) => self,
            Call::Flush { covers, .. } => Call::Flush { covers, what: FlushFor::Epoch },
            Call::Write(slot) => Call::Ending(writes[slot].version()),
            Call::Taken { version, .. } => Call::Ending(Some(version)),
            call if call.is_change() => Call::Ending(None),
            _ => Call::Dropped,
        }
    }
}

/// All calls without an answer.
#[derive(Default)]
pub struct StoreCalls {
    calls: Slab<Call>,
    /// How many of them are changes.
    change_count: usize,
}

impl StoreCalls {
    /// A request goes to the store; returns the id that its answer names.
    pub fn begin(&mut self, call: Call) -> CallId {
        self.change_count += usize::from(call.is_change());
        let id = CallId(self.calls.insert(call) as u32);
        assert!(self.change_count <= self.calls.len());
        id
    }

    /// The store answered.
    pub fn end(&mut self, id: CallId) -> Call {
        let call = self.calls.remove(id.0 as usize);
        if call.is_change() {
            assert!(self.change_count > 0);
            self.change_count -= 1;
        }
        call
    }

    /// Whether a change is under way.
    pub fn has_changes(&self) -> bool {
        self.change_count > 0
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The epoch is over: pending answers are ignored. A change still counts as a change.
    pub fn abandon(&mut self, writes: &WriteQueue) {
        for (_, call) in &mut self.calls {
            let was_change = call.is_change();
            *call = call.abandoned(writes);
            assert!(call.is_change() == was_change);
        }
    }
}
