//! Since when PGs are not served: what passes by itself within seconds is no error.
//!
//! Lost with this process: after a failover each PG has its seconds anew.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, PgId, Time};
use format::wire::PgEntry;

use super::Monitor;

/// A PG that agrees on a new epoch is served within a second or two; one that is not served for so
/// long waits for something.
const PEERING_SPAN: Duration = Duration::from_secs(10);
/// How often PGs are looked at.
const LOOK_SPAN: Duration = Duration::from_millis(500);

/// PGs that are not served.
#[derive(Default)]
pub(super) struct Unserved {
    since: BTreeMap<PgId, Time>,
    looked: Option<Time>,
}

impl Monitor {
    /// Looks which PGs are served. OSDs report each second: no deadline of its own is needed.
    pub(super) fn look_at_unserved(&mut self, now: Time) {
        if self.unserved.looked.is_some_and(|looked| now.since(looked) < LOOK_SPAN) {
            return;
        }
        let served = self.served();
        let pools = self.committed.pools();
        let entries = pools.flat_map(|pool| self.committed.pgs(pool.pool.id));
        let unserved: Vec<PgId> =
            entries.filter(|entry| !served(entry)).map(|entry| entry.pg).collect();
        drop(served);
        let before = std::mem::take(&mut self.unserved.since);
        let since = |pg: PgId| (pg, before.get(&pg).copied().unwrap_or(now));
        self.unserved.since = unserved.into_iter().map(since).collect();
        self.unserved.looked = Some(now);
    }

    /// Whether a PG was not served at every look for so long that it does not pass by itself.
    pub(super) fn waits_for_long(&self, now: Time, pg: PgId) -> bool {
        let since = self.unserved.since.get(&pg);
        since.is_some_and(|since| now.since(*since) >= PEERING_SPAN)
    }

    /// Tells of entries whether their primary serves them in their epoch.
    pub(super) fn served(&self) -> impl Fn(&PgEntry) -> bool + '_ {
        // One pass with a set: a report's list is long.
        let active: BTreeSet<_> = self
            .osds
            .iter()
            .filter_map(|(osd, live)| Some((osd, live.current_report()?)))
            .flat_map(|(osd, report)| report.active.iter().map(|pg| (*osd, *pg)))
            .collect();
        move |entry| {
            entry.primary_osd().is_some_and(|osd| active.contains(&(osd, entry.pg)))
                && self.is_whole(entry)
                && self.report_of(entry).is_some()
        }
    }
}
