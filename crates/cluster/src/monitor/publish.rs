//! Publishing the map: a snapshot, then deltas, to every subscriber.
//!
//! A delta is computed from the revisions that the receiver has: every entry contains the revision at which
//! it last changed. So no history is kept, and a receiver may be arbitrarily far behind.

use std::collections::BTreeMap;

use base::{ConnectionId, MapRevision, PoolId};

use super::connections::{Subscription, to_text};
use super::{Effect, Monitor};
use crate::map::MapDelta;
use crate::message::FromMonitor;
use crate::records::CounterName;

/// Maximum number of OSD entries in one message: it stays below 4 MiB even with the longest addresses.
const OSDS_PER_MESSAGE_MAX: usize = 1000;

/// Maximum number of ids of removed OSDs in one message.
const REMOVED_PER_MESSAGE_MAX: usize = 100_000;

impl Monitor {
    pub(super) fn subscribe(
        &mut self,
        connection: ConnectionId,
        have: BTreeMap<PoolId, MapRevision>,
        effects: &mut Vec<Effect>,
    ) {
        let lacks =
            |(pool, revision): (&PoolId, &MapRevision)| self.committed.lacks_map(*pool, *revision);
        if let Some(osd) = self.connections.osd(connection).filter(|_| have.iter().any(lacks)) {
            return self.on_proven_older(format!("{osd} has a newer map"), effects);
        }
        // An older store may lack a pool that still exists: nothing is sent about it.
        let is_known = |pool: PoolId| {
            let id = u64::from(pool.get());
            self.committed.pool(pool).is_some()
                || self.committed.may_be_given(CounterName::Pool, id)
        };
        let have = have.into_iter().filter(|(pool, _)| is_known(*pool));
        let have: BTreeMap<PoolId, MapRevision> =
            have.filter(|(_, revision)| *revision > MapRevision::ZERO).collect();
        self.connections.subscribe(connection, Subscription { pools: have, osds: 0 });
        self.send_map(connection, true, effects);
        self.send_monitors(connection, effects);
    }

    /// Sends every subscriber the changes since the last message to it.
    pub(super) fn publish(&mut self, effects: &mut Vec<Effect>) {
        let mut cache = Texts::new(self.committed.osd_revision_max());
        for connection in self.connections.subscribers().collect::<Vec<_>>() {
            self.send_map_cached(connection, false, &mut cache, effects);
        }
    }

    /// Sends a receiver the changes of the map that it lacks. If `asked`, a message is sent even if there are
    /// none.
    pub(super) fn send_map(
        &mut self,
        connection: ConnectionId,
        asked: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut cache = Texts::new(self.committed.osd_revision_max());
        self.send_map_cached(connection, asked, &mut cache, effects);
    }

    fn send_map_cached(
        &mut self,
        connection: ConnectionId,
        asked: bool,
        cache: &mut Texts,
        effects: &mut Vec<Effect>,
    ) {
        // Between the transactions of a recovery, a pool has its new revision but not yet all its entries. In
        // a damaged store, an unreadable record must not be taken for a removed one.
        if self.committed.is_being_recovered() || self.committed.is_damaged() {
            return;
        }
        let Some(subscription) = self.connections.subscription_mut(connection) else { return };
        let mut texts: Vec<String> = Vec::new();
        let newest = cache.osd_revision;
        if subscription.osds < newest {
            let osds = cache.osds.entry(subscription.osds);
            let osds = osds.or_insert_with(|| {
                let delta = self.committed.osd_delta(subscription.osds);
                let chunks = delta.osds.chunks(OSDS_PER_MESSAGE_MAX);
                let delta = |osds: &[_]| MapDelta { osds: osds.to_vec(), ..MapDelta::default() };
                let mut texts: Vec<String> =
                    chunks.map(|osds| to_text(&FromMonitor::Map(delta(osds)))).collect();
                let removed = self.committed.removed_osds(subscription.osds);
                texts.extend(removed.chunks(REMOVED_PER_MESSAGE_MAX).map(|removed| {
                    let removed_osds = removed.to_vec();
                    to_text(&FromMonitor::Map(MapDelta { removed_osds, ..MapDelta::default() }))
                }));
                texts
            });
            texts.extend(osds.iter().cloned());
            subscription.osds = newest;
        }
        let committed = &self.committed;
        let gone = subscription.pools.extract_if(.., |pool, _| committed.pool(*pool).is_none());
        let removed_pools: Vec<PoolId> = gone.map(|(pool, _)| pool).collect();
        if !removed_pools.is_empty() {
            texts.push(to_text(&FromMonitor::Map(MapDelta {
                removed_pools,
                ..MapDelta::default()
            })));
        }
        for record in self.committed.pools() {
            let pool = record.pool.id;
            let since = subscription.pools.get(&pool).copied().unwrap_or_default();
            if since >= record.revision {
                continue;
            }
            let text = cache.pools.entry((pool, since)).or_insert_with(|| {
                let delta = self.committed.pool_delta(pool, since).into_iter().collect();
                to_text(&FromMonitor::Map(MapDelta { pools: delta, ..MapDelta::default() }))
            });
            texts.push(text.clone());
            subscription.pools.insert(pool, record.revision);
        }
        if asked && texts.is_empty() {
            texts.push(to_text(&FromMonitor::Map(MapDelta::default())));
        }
        for text in texts {
            self.connections.send_text(connection, text, effects);
        }
    }
}

/// Messages for one change, shared by receivers that are at the same revision.
struct Texts {
    /// The highest revision of an OSD's entry.
    osd_revision: u64,
    osds: BTreeMap<u64, Vec<String>>,
    pools: BTreeMap<(PoolId, MapRevision), String>,
}

impl Texts {
    fn new(osd_revision: u64) -> Texts {
        Texts { osd_revision, osds: BTreeMap::new(), pools: BTreeMap::new() }
    }
}
