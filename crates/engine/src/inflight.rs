//! Counts requests under way, so that no queue of an engine grows beyond its bound.

use format::engine::{EngineEffect, EngineEvent, FLUSH_COUNT_MAX, READ_COUNT_MAX, WRITE_COUNT_MAX};

/// Which queue a request goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Write,
    Read,
    Flush,
}

impl Lane {
    pub(crate) fn of(effect: &EngineEffect) -> Lane {
        match effect {
            EngineEffect::Write { .. }
            | EngineEffect::Create { .. }
            | EngineEffect::Remove { .. } => Lane::Write,
            EngineEffect::Read { .. } | EngineEffect::Statistics { .. } => Lane::Read,
            EngineEffect::Flush { .. } => Lane::Flush,
        }
    }

    const fn count_max(self) -> usize {
        match self {
            Lane::Write => WRITE_COUNT_MAX,
            Lane::Read => READ_COUNT_MAX,
            Lane::Flush => FLUSH_COUNT_MAX,
        }
    }
}

/// The requests under way, by lane. A request is under way until its event was taken.
#[derive(Default)]
pub(crate) struct Inflight {
    counts: [usize; 3],
}

impl Inflight {
    /// A request begins. Panics if its lane is full: the caller broke the door's limits.
    pub(crate) fn begin(&mut self, lane: Lane) {
        let count = &mut self.counts[lane as usize];
        assert!(*count < lane.count_max());
        *count += 1;
    }

    /// An event of a request of this lane was taken.
    pub(crate) fn end(&mut self, lane: Lane) {
        let count = &mut self.counts[lane as usize];
        assert!(*count > 0);
        *count -= 1;
    }
}

/// An event on its way out, with the lane of the request that it ends.
pub(crate) type Finished = (Option<Lane>, EngineEvent);

#[cfg(test)]
mod tests {
    use super::{Inflight, Lane, WRITE_COUNT_MAX};

    #[test]
    #[should_panic(expected = "count_max")]
    fn a_lane_takes_no_more_than_its_bound() {
        let mut inflight = Inflight::default();
        for _ in 0..=WRITE_COUNT_MAX {
            inflight.begin(Lane::Write);
        }
    }

    #[test]
    fn lanes_do_not_share_their_bounds() {
        let mut inflight = Inflight::default();
        for _ in 0..WRITE_COUNT_MAX {
            inflight.begin(Lane::Write);
        }
        inflight.begin(Lane::Read);
        inflight.begin(Lane::Flush);
        inflight.end(Lane::Write);
        inflight.begin(Lane::Write);
    }
}
