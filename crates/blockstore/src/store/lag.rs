//! Lag: whether the journal, or what waits for the engine, grows faster than the engine takes it. The owner gives
//! no versions to mutations of objects meanwhile. And whether the engine has little space left: then it gives versions
//! only to those that add nothing. See rules 14 and 21 of `docs/internals/objects.md`.
//!
//! Invariants
//!   1. A store that lags says so until it is well below where that began.
//!   2. A page is answered when the store does not lag, and one that adds records when the engine has space: so a
//!      learner's engine is not overrun by its filling.

use std::collections::BTreeMap;

use super::Store;
use super::batch::PENDING_SIZE_MAX;
use crate::{Answer, Effect, RequestId};

/// The store lags from these sixteenths of the journal, or of what may be pending, on.
const BEGINS_AT: (u64, u64) = (12, 16);
/// It lags until both are below these sixteenths.
const ENDS_BELOW: u64 = 11;

/// Whether a store lags, and the pages that it answers late.
#[derive(Default)]
pub(super) struct Lag {
    is_lagging: bool,
    /// Whether the engine has little space left.
    is_low: bool,
    /// Pages that are not durable, and whether they add records.
    pages: BTreeMap<RequestId, bool>,
    /// Pages that are durable, in the order of their answers.
    late: Vec<(RequestId, bool)>,
}

impl Lag {
    /// Notes a page that was journaled. `adds`: whether it adds records.
    pub fn begin_page(&mut self, id: RequestId, adds: bool) {
        self.pages.insert(id, adds);
    }
}

impl Store {
    /// Whether the engine takes less than comes. Give no version to a mutation of an object while this is
    /// true.
    pub fn is_lagging(&self) -> bool {
        self.lag.is_lagging
    }

    /// Whether the engine has little space left. Give no version to a mutation of an object that adds
    /// something while this is true.
    pub fn is_engine_low(&self) -> bool {
        self.lag.is_low
    }

    /// The engine has little space left, or again enough.
    pub(super) fn on_engine_space(&mut self, is_low: bool) {
        self.lag.is_low = is_low;
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
        let (pending, pending_max) = (self.pending.size() as u64, PENDING_SIZE_MAX as u64);
        let (sixteenths, all) = BEGINS_AT;
        let lag = &mut self.lag;
        lag.is_lagging = match lag.is_lagging {
            true => used >= size / all * ENDS_BELOW || pending >= pending_max / all * ENDS_BELOW,
            false => used >= size / all * sixteenths || pending >= pending_max,
        };
        let Lag { is_lagging, is_low, pages, late } = lag;
        let is_late = |adds: bool| *is_lagging || (*is_low && adds);
        if !pages.is_empty() {
            let mut is_page = |effect: &mut Effect| match effect {
                Effect::Done { id, .. } => match pages.remove(id).filter(|adds| is_late(*adds)) {
                    Some(adds) => {
                        late.push((*id, adds));
                        true
                    }
                    None => false,
                },
                _ => false,
            };
            effects.extract_if(from.., &mut is_page).for_each(drop);
        }
        let is_due = |(_, adds): &mut (RequestId, bool)| !is_late(*adds);
        let done = |(id, _)| Effect::Done { id, result: Ok(Answer::Durable) };
        effects.extend(late.extract_if(.., is_due).map(done));
    }
}
