//! What a primary asks its members, and the state of each exchange.
//!
//! Invariants
//!   1. A question is answered once, by the member that was asked.

use blockstore::BlockKey;
use slab::Slab;

use super::slots::JobSlot;

/// How far the talk with a member is. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contact {
    /// There is no connection.
    Away,
    /// It was asked how it stands.
    Asked,
    /// It answered.
    Known,
    /// It cannot go on in this epoch.
    Out,
}

/// What a member was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Blocks, to compare those of acting members.
    Compare,
    /// Blocks that a learner holds and the PG did not adopt.
    Intake,
    /// Blocks of a learner, for a full comparison.
    Listing,
    /// A block for a job.
    Fetch { job: JobSlot },
    /// A repair for the same blocks on all acting members.
    Adopt { job: JobSlot },
    /// A block of a learner's backfill.
    Fill { key: BlockKey, bytes: u64 },
    /// A learner's cursor.
    Progress,
    /// Everything so far, durably.
    Sync,
    /// A record by which it states nothing of a version that goes.
    Drop,
}

/// Questions whose answers are missing, by the number that the answer names.
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
    /// A member is asked; returns the question's number.
    pub fn ask(&mut self, peer: usize, what: Asked) -> u32 {
        self.asks.insert(Ask { peer, what }) as u32
    }

    /// A member answered; the error: it was not asked that.
    pub fn answered(&mut self, peer: usize, call: u32) -> Result<Asked, String> {
        let ask = self.asks.get(call as usize).filter(|ask| ask.peer == peer).copied();
        let ask = ask.ok_or("an answer that was not asked for")?;
        self.asks.remove(call as usize);
        Ok(ask.what)
    }

    /// Nothing is expected of this member any more.
    pub fn forget(&mut self, peer: usize) {
        self.asks.retain(|_, ask| ask.peer != peer);
    }
}
