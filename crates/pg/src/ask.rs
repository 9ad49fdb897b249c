//! The requests of a primary to its members, and the state of each exchange.
//!
//! Invariants
//!   1. Each request is answered once, by the member to which it was sent.

use base::Position;
use blockstore::BlockKey;
use slab::Slab;

use super::slots::{DeletionSlot, ForwardSlot, GatherSlot, JobSlot, ReadSlot};

/// How far the exchange with a member has got. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contact {
    /// There is no connection.
    Away,
    /// The primary has requested the member's state.
    Asked,
    /// The member's store is finishing operations of an earlier epoch.
    Draining,
    /// The member has reported its state.
    Known,
    /// The member cannot continue in this epoch.
    Out,
}

/// What the primary requested from a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A list of blocks, to compare those of the acting members.
    Compare,
    /// A list of blocks that a learner holds and that the PG did not adopt.
    Intake,
    /// A list of a learner's blocks, for a full comparison.
    Listing,
    /// A block for a job.
    Fetch { job: JobSlot },
    /// Units of a block for a client's read, because this OSD's disk is slow.
    Read { read: ReadSlot },
    /// Units that are no longer needed: the read did not wait for the member.
    GivenUpRead,
    /// A repair, so that all acting members have the same blocks.
    Adopt { job: JobSlot },
    /// Units of a stripe.
    Gather { slot: GatherSlot, position: Position },
    /// A request to prepare a key's adopted state.
    Forward { slot: ForwardSlot },
    /// In pools of objects: what another acting member lacks.
    ObjectGather { source: usize },
    /// In pools of objects: a request to take what the member lacks.
    ObjectForward,
    /// A page of an acting member's blocks, for a learner's backfill.
    FillList { learner: usize },
    /// A block of a learner's backfill.
    Fill { key: BlockKey, bytes: u64 },
    /// In pools of objects: a list of a learner's keys.
    Heads,
    /// In pools of objects: a page of a learner's backfill.
    Page { bytes: u64 },
    /// A request to make a learner's cursor durable.
    Progress,
    /// A request to make everything sent so far durable.
    Sync,
    /// A page of keys, for a deletion of stripes.
    DeletionList { slot: DeletionSlot },
    /// A page of keys, for a scrub.
    ScrubList { walk: u32 },
    /// The member's digest of the current key of a scrub.
    Scrub { look: u32 },
    /// Units for a repair by a scrub.
    ScrubFetch { look: u32 },
    /// A repair by a scrub.
    Mend,
    /// In pools of objects: keys with checksums, for a scrub.
    Keys { look: u32 },
    /// In pools of objects: a value, for a repair by a scrub.
    Value { look: u32 },
    /// In pools of objects: a repair of records by a scrub.
    MendRecords { look: u32 },
    /// The member's note on scrubs.
    Recall,
    /// A request to store a note on scrubs.
    Keep,
    /// A request to record that the member no longer reports a version that is dropped.
    Drop,
}

/// Requests that have not been answered, by the number that the answer carries.
#[derive(Default)]
pub struct Asks {
    asks: Slab<Ask>,
}

#[derive(Clone, Copy)]
struct Ask {
    /// The member's index.
    peer: usize,
    what: Asked,
}

impl Asks {
    /// Registers a request to a member; returns its number.
    pub fn ask(&mut self, peer: usize, what: Asked) -> u32 {
        self.asks.insert(Ask { peer, what }) as u32
    }

    /// Removes a request that a member answered, and returns it. Returns an error if the member had no such
    /// request.
    pub fn answered(&mut self, peer: usize, call: u32) -> Result<Asked, String> {
        let ask = self.asks.get(call as usize).filter(|ask| ask.peer == peer).copied();
        let ask = ask.ok_or("an unsolicited answer")?;
        self.asks.remove(call as usize);
        Ok(ask.what)
    }

    /// Gives up a request for a read's units: the answer will be dropped. Returns whether the request was
    /// still open.
    pub fn give_up_read(&mut self, call: u32, read: ReadSlot) -> bool {
        let is_read = |ask: &&mut Ask| ask.what == Asked::Read { read };
        let found = self.asks.get_mut(call as usize).filter(is_read);
        found.map(|ask| ask.what = Asked::GivenUpRead).is_some()
    }

    /// Drops all open requests to this member.
    pub fn forget(&mut self, peer: usize) {
        self.asks.retain(|_, ask| ask.peer != peer);
    }
}
