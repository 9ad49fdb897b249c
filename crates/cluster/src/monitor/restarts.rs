//! OSDs that end soon after each start. Each start costs their PGs an epoch, and learners are filled
//! again. So such an OSD rests for a while, longer each time: PGs that have enough other members do not take
//! it in. A PG that needs it takes it all the same: see `acting.rs`.
//!
//! Invariants
//!   1. A rest ends, `REST_SPAN_MAX` after the start that led to it at the latest.
//!   2. An OSD that ran for `SOON` after its last rest begins anew.

use base::{Duration, Time};

/// A start so soon after the one before, or after a rest, counts.
const SOON: Duration = Duration::from_secs(15);
/// So many such starts in a row lead to a rest.
const SOON_COUNT: u32 = 4;
/// The first rest; twice as long each time.
const REST_SPAN_MIN: Duration = Duration::from_secs(10);
/// The longest one.
const REST_SPAN_MAX: Duration = Duration::from_secs(60);

/// Starts of one OSD, as far as this process knows.
#[derive(Default)]
pub(super) struct Starts {
    last: Option<Time>,
    /// Starts that came soon, one after the other.
    count: u32,
    /// When its newest rest ends.
    rest: Option<Time>,
}

impl Starts {
    /// When the rest ends that it has now.
    pub(super) fn rest(&self, now: Time) -> Option<Time> {
        self.rest.filter(|end| *end > now)
    }

    /// How often it started one soon after the other.
    pub(super) fn soon_count(&self) -> u32 {
        self.count.saturating_add(1)
    }

    /// It started; tells when the rest ends that this leads to.
    pub(super) fn note(&mut self, now: Time) -> Option<Time> {
        let rested = self.rest.unwrap_or(Time::ZERO);
        let is_soon = self.last.is_some_and(|last| now < last.max(rested) + SOON);
        self.count = if is_soon { self.count.saturating_add(1) } else { 0 };
        self.last = Some(now);
        let surplus = self.count.checked_sub(SOON_COUNT)?;
        let nanos = REST_SPAN_MIN.as_nanos().saturating_mul(1 << surplus.min(30));
        let span = Duration::from_nanos(nanos).min(REST_SPAN_MAX);
        self.rest = Some(now + span);
        self.rest
    }
}
