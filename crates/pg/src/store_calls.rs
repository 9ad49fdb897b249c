//! Requests to this OSD's store that have not been answered, and the operation to which each answer belongs.
//!
//! Invariants
//!   1. Each call is answered once. Its id is not reused before the answer.
//!   2. A call outlives its epoch. After [`StoreCalls::abandon`] its answer is ignored. But a change counts
//!      as in flight until it ends, and the member does not report its state before that.

use ::objects::queue::TurnId;
use base::{Position, Version};
use blockstore::BlockKey;
use format::wire::KeysWith;
use slab::Slab;

use super::CallId;
use super::slots::{DeletionSlot, ForwardSlot, GatherSlot, JobSlot, ReadSlot, WriteSlot};
use super::sync::FlushFor;
use super::write_queue::WriteQueue;

/// The operation to which an answer of the store belongs.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// A write, zero or delete of this OSD as primary.
    Write(WriteSlot),
    /// A batch of this OSD as primary, with its first version and its last.
    Batch { first: Version, version: Version },
    /// Records that an operation on objects needs, from this one of those that are wanted.
    WantedRecords { turn: TurnId, from: usize },
    /// Records for a read of objects.
    LookRecords { number: u64 },
    /// A part of a block for a read of objects.
    LookBlock { number: u64, index: usize },
    /// Units of a block that an operation on objects needs.
    WantedUnits { turn: TurnId, index: usize },
    /// In pools of objects: keys of this OSD, for the backfill of a learner.
    FillHeads { learner: usize },
    /// In pools of objects: a part of this OSD's log, for the backfill of a learner.
    FillLog { learner: usize },
    /// In pools of objects: records that a page brings to a learner.
    PageRecords { learner: usize },
    /// In pools of objects: a block that a page brings to a learner.
    PageBlock { learner: usize, at: usize },
    /// In pools of objects: a list of keys that the primary asked for. `call`: the number of its request.
    PeerHeads { call: u32, with: KeysWith },
    /// In pools of objects: keys of this OSD, for a scrub.
    CompareKeys { look: u32 },
    /// In pools of objects: values of this OSD, for a repair by a scrub.
    CompareValues { look: u32 },
    /// In pools of objects: records that a scrub makes good here.
    CompareMend { look: u32 },
    /// In pools of objects: a log, or heads, for housekeeping.
    CleaningRecords,
    /// In pools of objects: how far back the log of this OSD goes. `order`: its place among the changes of a
    /// learner that was filled.
    Reach { order: Option<u64> },
    /// In pools of objects: records that another acting member lacks.
    MissingRecords { reading: u32 },
    /// In pools of objects: units of a block that another acting member lacks.
    MissingBlock { reading: u32, index: usize },
    /// In pools of objects: all that this acting member lacks up to a version, with its record.
    ObjectForward { version: Version },
    /// Version and allocation of a block that is about to change.
    Examine(WriteSlot),
    /// Data of a read that has no older layers.
    Fetch(ReadSlot),
    /// Allocation of one layer of a chain.
    Layer { read: ReadSlot, layer: usize },
    /// Data of one part of a chain.
    Part { read: ReadSlot, part: usize },
    /// This OSD's copy of a block.
    Copy(JobSlot),
    /// Which units of a block this OSD lost.
    FindLost(JobSlot),
    /// A repair that restores units that this OSD lost. `units`: number of these units.
    Mend { job: JobSlot, units: usize },
    /// A repair that gives this OSD, as an acting member, the block that the PG adopts.
    Adopt(JobSlot),
    /// A list of blocks newer than some version. The answer comes through [`super::Pg::listed_newer`].
    ListNewer(NewerFor),
    /// A write or batch that the primary sent; of a batch, with its first version and its last.
    Taken { order: u64, first: Version, version: Version },
    /// A repair that the primary sent. `call`: the number of the primary's request.
    PeerRepair { order: u64, call: u32, adds: bool },
    /// A block that the primary asked for.
    PeerCopy { call: u32 },
    /// Units that a client reads here without the primary. The id is one of the PG's direct reads.
    Direct(u64),
    /// A list of blocks to delete. The answer comes through [`super::Pg::listed`].
    ListDeletion(DeletionSlot),
    /// A flush of all changes so far. `covers`: number of changes that the store had answered before they
    /// were durable, when the flush began. `upto`: in pools with parity, versions up to this one are covered,
    /// too.
    Flush { covers: u64, upto: Version, what: FlushFor },
    /// In pools with parity: a version that the store prepares.
    Prepared { version: Version },
    /// Old units of a data part that a version changes.
    OldUnits { version: Version },
    /// This member's parity part as it was before a version.
    OldParity { version: Version },
    /// This OSD's part of a stripe that is being gathered.
    Gather { slot: GatherSlot, position: Position },
    /// A backfilled part for this learner. `call`: the number of the primary's request.
    Filled { call: u32, key: BlockKey },
    /// Prepares a key's adopted state at this member. `call`: the number of the primary's request.
    Forwarded { call: u32 },
    /// Prepares a key's adopted state at this OSD as primary.
    ForwardHere(ForwardSlot),
    /// Makes prepared versions stable. Nobody waits for the answer.
    Commit,
    /// A record that is written as a note.
    Record,
    /// A new floor. Nobody waits for the answer.
    Floor,
    /// Tells the store that the operator gave up the data of this PG that the store lost.
    Absolve,
    /// Tells the store that the data that it lost has been restored: this learner's backfill is complete.
    AbsolveFilled { call: u32 },
    /// The digest of the current key of this OSD's scrub.
    ScrubDigest { look: u32 },
    /// Units that this OSD reads for a repair by its scrub.
    ScrubCopy { look: u32 },
    /// A repair of this OSD by its scrub. `units`: number of repaired units.
    ScrubMend { units: u32 },
    /// A note of this OSD's scrub that is being written.
    ScrubKeep,
    /// The digest of a key for the primary's scrub.
    PeerDigest { call: u32 },
    /// A repair by the primary's scrub. `units`: number of repaired units.
    PeerMend { order: u64, call: u32, units: u32 },
    /// A note of the primary's scrub that is being written.
    PeerKeep { call: u32 },
    /// A change of a past epoch, with its version, if it has one.
    Ending(Option<Version>),
    /// A request whose answer is no longer needed.
    Dropped,
}

/// Who requested a list of newer blocks.
#[derive(Clone, Copy, Debug)]
pub enum NewerFor {
    /// The primary. `call`: the number of its request.
    Peer { call: u32 },
    /// The comparison of acting members at the beginning of an epoch.
    Compare,
    /// The backfill of a learner.
    Fill { learner: usize },
    /// A deletion of stripes.
    Deletion { slot: DeletionSlot },
    /// A scrub's walk.
    Scrub { walk: u32 },
    /// A put of a short object: does any block lie under its hash?
    Put { number: u64, object: usize },
    /// A turn of operations on objects: does any block have the data id that was drawn?
    Drawn { turn: TurnId, first: BlockKey },
}

impl Call {
    /// Returns whether the call may change the state that the member reports when the next epoch begins.
    fn is_change(&self) -> bool {
        match self {
            Call::Write(_)
            | Call::Batch { .. }
            | Call::Mend { .. }
            | Call::Adopt(_)
            | Call::Taken { .. }
            | Call::PeerRepair { .. }
            | Call::ScrubMend { .. }
            | Call::CompareMend { .. }
            | Call::PeerMend { .. }
            | Call::AbsolveFilled { .. }
            | Call::Prepared { .. }
            | Call::Filled { .. }
            | Call::Forwarded { .. }
            | Call::ForwardHere(_)
            | Call::ObjectForward { .. }
            | Call::Reach { .. }
            | Call::Record
            | Call::Flush { .. }
            | Call::Ending(_) => true,
            Call::Examine(_)
            | Call::FillHeads { .. }
            | Call::FillLog { .. }
            | Call::PageRecords { .. }
            | Call::PageBlock { .. }
            | Call::PeerHeads { .. }
            | Call::CompareKeys { .. }
            | Call::CompareValues { .. }
            | Call::WantedRecords { .. }
            | Call::WantedUnits { .. }
            | Call::CleaningRecords
            | Call::MissingRecords { .. }
            | Call::MissingBlock { .. }
            | Call::LookRecords { .. }
            | Call::LookBlock { .. }
            | Call::Fetch(_)
            | Call::Layer { .. }
            | Call::Part { .. }
            | Call::Copy(_)
            | Call::FindLost(_)
            | Call::ListNewer(_)
            | Call::OldUnits { .. }
            | Call::OldParity { .. }
            | Call::Gather { .. }
            | Call::Commit
            | Call::PeerCopy { .. }
            | Call::Direct(_)
            | Call::ListDeletion(_)
            | Call::ScrubDigest { .. }
            | Call::ScrubCopy { .. }
            | Call::ScrubKeep
            | Call::PeerDigest { .. }
            | Call::PeerKeep { .. }
            | Call::Floor
            | Call::Absolve
            | Call::Dropped => false,
        }
    }

    /// Returns the call that replaces this one once the epoch is over.
    fn abandoned(self, writes: &WriteQueue) -> Call {
        match self {
            Call::Record
            | Call::ObjectForward { .. }
            | Call::Floor
            | Call::Absolve
            | Call::Ending(_) => self,
            Call::Flush { covers, upto, .. } => Call::Flush { covers, upto, what: FlushFor::Epoch },
            Call::Write(slot) => Call::Ending(writes[slot].version()),
            Call::Prepared { version } => Call::Ending(Some(version)),
            Call::Taken { first, .. } | Call::Batch { first, .. } => Call::Ending(Some(first)),
            call if call.is_change() => Call::Ending(None),
            _ => Call::Dropped,
        }
    }
}

/// All calls without an answer.
#[derive(Default)]
pub struct StoreCalls {
    calls: Slab<Call>,
    /// Number of calls that are changes.
    change_count: usize,
}

impl StoreCalls {
    /// Registers a request to the store. Returns the id that its answer carries.
    pub fn begin(&mut self, call: Call) -> CallId {
        self.change_count += usize::from(call.is_change());
        let id = CallId(self.calls.insert(call) as u32);
        assert!(self.change_count <= self.calls.len());
        id
    }

    /// Removes and returns the call that the store answered.
    pub fn end(&mut self, id: CallId) -> Call {
        let call = self.calls.remove(id.0 as usize);
        if call.is_change() {
            assert!(self.change_count > 0);
            self.change_count -= 1;
        }
        call
    }

    /// Returns whether a change is in flight.
    pub fn has_changes(&self) -> bool {
        self.change_count > 0
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Marks pending calls so that their answers are ignored: the epoch is over. A change still counts as a
    /// change.
    pub fn abandon(&mut self, writes: &WriteQueue) {
        for (_, call) in &mut self.calls {
            let was_change = call.is_change();
            *call = call.abandoned(writes);
            assert!(call.is_change() == was_change);
        }
    }
}
