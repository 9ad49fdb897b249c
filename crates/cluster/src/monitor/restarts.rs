//! OSDs that exit soon after each start. Each start costs the OSD's PGs an epoch, and learners must be filled
//! again. Such an OSD therefore rests for a while, longer each time: PGs that have enough other members do
//! not admit it. A PG that needs the OSD admits it anyway: see `acting.rs`.
//!
//! Invariants
//!   1. A rest ends at most `REST_SPAN_MAX` after the start that caused it.
//!   2. Once an OSD has run for `SOON` after its last rest, its early restarts are counted from zero again.

use base::{Duration, Time};

/// A start counts as an early restart if it follows the previous start, or the end of a rest,
/// within this span.
const SOON: Duration = Duration::from_secs(15);
/// This many early restarts in a row cause a rest.
const SOON_COUNT: u32 = 4;
/// Length of the first rest; each further rest is twice as long.
const REST_SPAN_MIN: Duration = Duration::from_secs(10);
/// The longest rest.
const REST_SPAN_MAX: Duration = Duration::from_secs(60);

/// Starts of one OSD that this monitor process has seen.
#[derive(Default)]
pub(super) struct Starts {
    last: Option<Time>,
    /// Number of early restarts in a row.
    count: u32,
    /// The end of its newest rest.
    rest: Option<Time>,
}

impl Starts {
    /// Returns the end of the current rest, if the OSD rests now.
    pub(super) fn rest(&self, now: Time) -> Option<Time> {
        self.rest.filter(|end| *end > now)
    }

    /// Returns how often the OSD has started in quick succession, the first start included.
    pub(super) fn soon_count(&self) -> u32 {
        self.count.saturating_add(1)
    }

    /// Notes a start; returns the end of the rest that it causes, if it causes one.
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
