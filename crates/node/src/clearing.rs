//! Removing what the store holds of pools that are gone: blocks, tombstones, notes.
//!
//! The OSD does this by itself, for nobody serves such a pool any more: the monitor has removed it
//! from the map before it asks. Doing it again costs nothing, so a restart just begins anew when
//! the monitor asks again.
//!
//! Invariants
//!   1. It begins when nothing of the pool's PGs is under way, and the pool has left the map: so no
//!      block comes behind it.
//!   2. The monitor is told when all of it is durable.

use std::collections::BTreeMap;

use base::hash::{hash_range_of_pg, pg_of_hash};
use base::{PgId, PoolId, Time, Version};
use blockstore::{Answer, NoteKey, Request as StoreRequest, RequestId, StoreError};
use cluster::map::MapDelta;
use cluster::message::ToMonitor;

use crate::Effect;
use crate::node::Node;

/// Blocks deleted at a time: clients come first.
const PORTION_MAX: usize = 256;

/// Pools to clear.
#[derive(Default)]
pub(crate) struct Clearing {
    /// Number of PGs of each, as the monitor asked.
    asked: BTreeMap<PoolId, u32>,
    current: Option<Current>,
}

/// The pool that is being cleared.
struct Current {
    pool: PoolId,
    pg_count: u32,
    stage: Stage,
    /// Answers of the store that are awaited.
    missing: u32,
    /// A request could not be done: the stage is begun again a while later.
    has_failed: bool,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Deletes blocks, a portion at a time.
    Blocks,
    /// Lets tombstones go.
    Tombstones,
    /// Removes notes.
    Notes,
}

impl Node {
    /// The monitor asks to clear a pool.
    pub(crate) fn clear_pool(
        &mut self,
        now: Time,
        pool: PoolId,
        pg_count: u32,
        effects: &mut Vec<Effect>,
    ) {
        if !pg_count.is_power_of_two() || pg_count > base::hash::PG_COUNT_MAX {
            return;
        }
        let delta = MapDelta { removed_pools: vec![pool], ..MapDelta::default() };
        self.map_came(now, delta, effects);
        self.clearing.asked.insert(pool, pg_count);
        self.go_on_clearing(now, effects);
    }

    /// Begins the next step, if nothing keeps it. Called now and then.
    pub(crate) fn go_on_clearing(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.clearing.current.is_none() {
            let quiet = |(pool, _): &(&PoolId, &u32)| self.is_quiet(**pool);
            let Some((&pool, &pg_count)) = self.clearing.asked.iter().find(quiet) else { return };
            let stage = Stage::Blocks;
            let current = Current { pool, pg_count, stage, missing: 0, has_failed: false };
            self.clearing.current = Some(current);
        }
        let current = self.clearing.current.as_mut().expect("just made");
        if current.missing > 0 || self.store.is_congested() {
            return;
        }
        current.has_failed = false;
        self.clear_more(now, effects);
    }

    /// Whether nothing of the pool is served, or under way.
    fn is_quiet(&self, pool: PoolId) -> bool {
        let mut slots = self.pg_slots.iter().filter(|(pg, _)| pg.pool == pool);
        !self.map.pools.contains_key(&pool) && slots.all(|(_, slot)| self.pgs[*slot].is_quiet())
    }

    /// Asks the store for the next part; moves on where a stage has nothing left.
    fn clear_more(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            let current = self.clearing.current.as_ref().expect("the caller has one");
            let (pool, pg_count, stage) = (current.pool, current.pg_count, current.stage);
            let requests = match stage {
                Stage::Blocks => self.deletes(pool, pg_count),
                Stage::Tombstones => self.floors(pool, pg_count),
                Stage::Notes => self.note_removals(pool),
            };
            let current = self.clearing.current.as_mut().expect("as above");
            // One at a time; the store answers those that it refuses at once, too.
            current.missing = u32::try_from(requests.len()).expect("portions are small");
            match (requests.is_empty(), stage) {
                (false, _) => {
                    for request in requests {
                        self.ask_store(now, CALL_CLEARING, request);
                    }
                    return;
                }
                (true, Stage::Blocks) => current.stage = Stage::Tombstones,
                (true, Stage::Tombstones) => current.stage = Stage::Notes,
                (true, Stage::Notes) => {
                    self.clearing.current = None;
                    self.clearing.asked.remove(&pool);
                    self.tell_monitor(&ToMonitor::PoolCleared { pool }, effects);
                    return;
                }
            }
        }
    }

    fn deletes(&self, pool: PoolId, pg_count: u32) -> Vec<StoreRequest> {
        let blocks = self.store.blocks(pool, 0, u32::MAX, None);
        let blocks = blocks.filter(|(_, _, is_tombstone)| !is_tombstone).take(PORTION_MAX);
        let mut newest: BTreeMap<PgId, Version> = BTreeMap::new();
        let delete = |(key, version, _): (blockstore::BlockKey, Version, bool)| {
            let pg = PgId { pool, number: pg_of_hash(key.hash, pg_count) };
            let last = newest.entry(pg).or_insert_with(|| self.store.last_version(pg).max(version));
            *last = last.next_in(last.epoch);
            StoreRequest::Delete { pg, key, version: *last }
        };
        blocks.map(delete).collect()
    }

    /// Floors that let the tombstones go which are left.
    fn floors(&self, pool: PoolId, pg_count: u32) -> Vec<StoreRequest> {
        let floor = |number: u32| {
            let pg = PgId { pool, number };
            let (first, last) = hash_range_of_pg(number, pg_count);
            self.store.blocks(pool, first, last, None).next()?;
            Some(StoreRequest::SetFloor { pg, floor: self.store.last_version(pg) })
        };
        (0..pg_count).filter_map(floor).take(PORTION_MAX).collect()
    }

    fn note_removals(&self, pool: PoolId) -> Vec<StoreRequest> {
        let removal = |(key, _): (NoteKey, &[u8])| match key {
            NoteKey::Pg(pg) if pg.pool == pool => {
                Some(StoreRequest::Note { key, bytes: Vec::new() })
            }
            _ => None,
        };
        self.store.notes().filter_map(removal).take(PORTION_MAX).collect()
    }

    /// The store answered one of the requests.
    pub(crate) fn cleared(
        &mut self,
        now: Time,
        result: Result<Answer, StoreError>,
        effects: &mut Vec<Effect>,
    ) {
        let current = self.clearing.current.as_mut().expect("its requests are awaited");
        assert!(current.missing > 0);
        current.missing -= 1;
        current.has_failed |= result.is_err();
        // What failed is tried again with the next report.
        if current.missing == 0 && !current.has_failed {
            self.clear_more(now, effects);
        }
    }
}

/// The store's requests of a clearing; all alike, for only their number counts.
pub(crate) const CALL_CLEARING: RequestId = RequestId(4);
