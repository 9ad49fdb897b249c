//! Requests that list the objects of several PGs: each PG is asked by itself, like a request that came for it
//! alone, and their pages leave in one reply.
//!
//! Invariants
//!   1. The reply leaves when each PG has answered or refused, and has the page of each that answered.
//!   2. A PG that cannot answer for now is named, so that the client asks for it elsewhere, or again. Any other
//!      refusal is that of the whole request.

use std::collections::BTreeMap;

use base::{BufferPool, ConnectionId, SessionId};
use format::wire::{Outcome, Payload, Refusal};
use objects::page_prefix;

/// Identifies a request: where it came from, its session and sequence.
pub(crate) type ListId = (ConnectionId, SessionId, u64);

/// All open lists.
pub(crate) struct Lists {
    open: BTreeMap<ListId, Gathering>,
    buffers: BufferPool,
}

/// What the PGs of a list have answered so far.
struct Gathering {
    pgs_left: usize,
    pages: Vec<Payload>,
    refused: Vec<u32>,
    failure: Option<Refusal>,
}

impl Lists {
    pub(crate) fn new(buffers: BufferPool) -> Lists {
        Lists { open: BTreeMap::new(), buffers }
    }

    /// Begins to gather the answers of so many PGs. Requires: no list with this id is open.
    pub(crate) fn begin(&mut self, id: ListId, pg_count: usize) {
        let new =
            Gathering { pgs_left: pg_count, pages: Vec::new(), refused: Vec::new(), failure: None };
        let old = self.open.insert(id, new);
        assert!(old.is_none(), "each sequence is served once");
    }

    /// Takes the outcome for a PG. Returns the outcome to reply with, now: that of a list when it is
    /// complete, any other one as it is.
    pub(crate) fn take(
        &mut self,
        id: ListId,
        pg: u32,
        outcome: Result<Outcome, Refusal>,
    ) -> Option<Result<Outcome, Refusal>> {
        let Some(gathering) = self.open.get_mut(&id) else { return Some(outcome) };
        match outcome {
            Ok(Outcome::Looked { answers }) => gathering.pages.push(answers),
            Ok(_) => unreachable!("a PG answers a list with its page"),
            Err(
                Refusal::Stale(_) | Refusal::Busy | Refusal::Incomplete { .. } | Refusal::Corrupted,
            ) => gathering.refused.push(pg),
            Err(refusal) => gathering.failure = Some(refusal),
        }
        gathering.pgs_left -= 1;
        if gathering.pgs_left > 0 {
            return None;
        }
        let Gathering { pages, refused, failure, .. } = self.open.remove(&id).expect("it is open");
        if let Some(refusal) = failure {
            return Some(Err(refusal));
        }
        let pages = pages.iter().map(Payload::bytes).collect::<Option<Vec<&[u8]>>>();
        let Some(pages) = pages else { return Some(Err(Refusal::Corrupted)) };
        let prefixes: Vec<[u8; 4]> = pages.iter().map(|page| page_prefix(page)).collect();
        let parts = prefixes.iter().zip(&pages).flat_map(|(prefix, page)| [&prefix[..], *page]);
        let pages = Payload::joined(parts, &self.buffers);
        Some(Ok(Outcome::Listed { refused, pages }))
    }

    /// Forgets lists that nobody waits for any more.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&ListId) -> bool) {
        self.open.retain(|id, _| !is_over(id));
    }
}
