//! Lag: whether the journal, or what waits for the engine, grows faster than the engine takes it. The owner gives
//! no versions to mutations of objects meanwhile. And whether the engine has little space left: then the owner gives
//! versions only to those that add nothing. See rules 14 and 21 of `docs/internals/objects.md`.
//!
//! Invariants
//!   1. A store that lags says so until it is well below where that began.
//!   2. A page is answered when the store does not lag: so a learner's engine is not overrun by its filling.

use std::collections::BTreeSet;

use super::Store;
use crate::{Answer, Effect, RequestId};

/// The store lags from these sixteenths of the journal on, or from this part (1/n) of what may be pending
/// on: so that primaries hold back before batches must wait here.
const BEGINS_AT: (u64, u64) = (12, 16);
const PENDING_SHARE: u64 = 2;
/// It lags until both are below these sixteenths: of the journal, and of that part.
const ENDS_BELOW: u64 = 11;

/// Whether a store lags, and the pages that it answers late.
#[derive(Default)]
pub(super) struct Lag {
    pub is_lagging: bool,
    /// Whether the engine has little space left.
    pub is_low: bool,
    /// Pages that are not durable.
    pub pages: BTreeSet<RequestId>,
    /// Pages that are durable, in the order of their answers.
    late: Vec<RequestId>,
}

impl Store {
    /// Whether the engine takes less than comes. Give no version to a mutation of an object while this is
    /// true.
    pub fn is_lagging(&self) -> bool {
        self.lag.is_lagging
    }

    /// Whether the engine is not so far behind that batches and pages must wait.
    pub(super) fn engine_takes(&self) -> bool {
        (self.pending.size() as u64) < self.settings.engine_backlog_bytes_max
    }

    /// Whether the engine has little space left. Give no version to a mutation of an object that adds
    /// something while this is true.
    pub fn is_engine_low(&self) -> bool {
        self.lag.is_low
    }

    /// Whether the store leaves the space of its file system to its engine.
    pub(super) fn leaves_space(&self) -> bool {
        self.lag.is_low && self.settings.shares_space_with_engine
    }

    /// Looks how far the engine is behind, holds the answers of pages back, and answers those that waited.
    pub(super) fn settle_lag(&mut self, from: usize, effects: &mut Vec<Effect>) {
        if !self.is_open() || !self.pending.has_families() {
            return;
        }
        let journal = &self.parts().journal;
        let (used, size) = (journal.used(), journal.size());
        let pending = self.pending.size() as u64;
        let pending_max = self.settings.engine_backlog_bytes_max / PENDING_SHARE;
        let (sixteenths, all) = BEGINS_AT;
        let lag = &mut self.lag;
        lag.is_lagging = match lag.is_lagging {
            true => used >= size / all * ENDS_BELOW || pending >= pending_max / all * ENDS_BELOW,
            false => used >= size / all * sixteenths || pending >= pending_max,
        };
        if !lag.pages.is_empty() {
            let is_late = |effect: &mut Effect| match effect {
                Effect::Done { id, .. } => lag.pages.remove(id) && lag.is_lagging,
                _ => false,
            };
            let late = effects.extract_if(from.., is_late).filter_map(|effect| match effect {
                Effect::Done { id, .. } => Some(id),
                _ => None,
            });
            lag.late.extend(late.collect::<Vec<RequestId>>());
        }
        if !lag.is_lagging {
            let done = |id| Effect::Done { id, result: Ok(Answer::Durable) };
            effects.extend(lag.late.drain(..).map(done));
        }
    }
}
