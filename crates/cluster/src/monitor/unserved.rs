//! Tracks how long PGs have not been served. A pause that ends within seconds is not an error.
//!
//! This state is lost when the process ends: after a failover, the time of each PG starts again
//! from zero.

use std::collections::BTreeMap;

use base::{Duration, PgId, Time};

/// A peering PG is normally served within a second or two. A PG that is not served for this long is stuck
/// waiting for something.
const PEERING_SPAN: Duration = Duration::from_secs(10);
/// How often PGs are checked.
const LOOK_SPAN: Duration = Duration::from_millis(500);

/// PGs that are not served, and the time of the last check.
#[derive(Default)]
pub(super) struct Unserved {
    since: BTreeMap<PgId, Time>,
    looked: Option<Time>,
}

impl Unserved {
    /// Whether it is time to check the PGs.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.looked.is_none_or(|looked| now.since(looked) >= LOOK_SPAN)
    }

    /// Notes that these PGs, and no others, are currently not served.
    pub(super) fn look(&mut self, now: Time, unserved: Vec<PgId>) {
        let before = std::mem::take(&mut self.since);
        let since = |pg: PgId| (pg, before.get(&pg).copied().unwrap_or(now));
        self.since = unserved.into_iter().map(since).collect();
        self.looked = Some(now);
    }

    /// Whether every check for `PEERING_SPAN` found the PG unserved, so that the operator is informed.
    pub(super) fn waits_for_long(&self, now: Time, pg: PgId) -> bool {
        self.since.get(&pg).is_some_and(|since| now.since(*since) >= PEERING_SPAN)
    }
}
