//! This OSD's engine: whether there is one, the families of its object pools, and its figures.
//!
//! ```text
//!   a pool of objects has a PG here ─┬─ no engine ──▶ its PGs wait, and say why
//!                                    └─ engine ──▶ Request::Family ──▶ its PGs may take part
//! ```
//!
//! Invariants
//!   1. No PG of a pool of objects takes part in an epoch before the pool's family is there.
//!   2. A family is created only while the map has its pool. The removal of a pool waits for the creation of its
//!      family, so it meets every family.
//!   3. A family that cannot be created holds up no other: it is asked for again in the next report interval.

use std::collections::{BTreeMap, BTreeSet};

use base::PoolId;
use blockstore::{EngineFound, Store, StoreError};
use cluster::message::{EngineReport, FamilyReport};
use format::engine::{EngineEffect, EngineOp, FamilyStatistics, Stall, Statistics};

/// The engine of an OSD, which keeps the records of objects.
#[derive(Clone, Debug)]
pub enum Engine {
    /// It is open, and this is what was found.
    Open(EngineFound),
    /// There is none, and PGs of pools of objects wait. The text says why, and what to do.
    None(String),
}

/// Ids of the node's own requests to the engine begin here; the store counts from 1.
const FIRST_OP: u64 = 1 << 63;

/// A family that could not be created.
struct FailedFamily {
    why: StoreError,
    /// Whether it is asked for again.
    is_due: bool,
}

/// The engine, as the node sees it.
pub(crate) struct LocalEngine {
    engine: Engine,
    /// The pools whose families are being created.
    creating: BTreeSet<PoolId>,
    /// Pools whose families could not be created.
    failed: BTreeMap<PoolId, FailedFamily>,
    op_count: u64,
    /// Whether figures were asked for and have not come.
    is_asked: bool,
    statistics: Option<Statistics>,
}

impl LocalEngine {
    pub(crate) fn new(engine: Engine) -> LocalEngine {
        LocalEngine {
            engine,
            creating: BTreeSet::new(),
            failed: BTreeMap::new(),
            op_count: 0,
            is_asked: false,
            statistics: None,
        }
    }

    /// Whether there is an engine, which PGs of pools of objects need.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.engine, Engine::Open(_))
    }

    /// Returns whether to ask the store for the family of this pool of objects now, and to pass the answer to
    /// [`LocalEngine::on_created`].
    pub(crate) fn begin_creation(&mut self, pool: PoolId, store: &Store) -> bool {
        let is_tried = self.failed.get(&pool).is_some_and(|failed| !failed.is_due);
        let is_wanted = self.is_open() && !store.has_family(pool) && !is_tried;
        is_wanted && self.creating.insert(pool)
    }

    /// Handles the store's answer to the creation of a family. Returns whether it is there.
    pub(crate) fn on_created(&mut self, pool: PoolId, result: Result<(), StoreError>) -> bool {
        assert!(self.creating.remove(&pool), "it was asked for");
        self.failed.remove(&pool);
        if let Err(why) = result {
            self.failed.insert(pool, FailedFamily { why, is_due: false });
            return false;
        }
        true
    }

    /// Forgets that the family of a removed pool could not be created.
    pub(crate) fn forget_failure(&mut self, pool: PoolId) {
        self.failed.remove(&pool);
    }

    /// Lets families that could not be created be asked for again.
    pub(crate) fn try_again(&mut self) {
        self.failed.values_mut().for_each(|failed| failed.is_due = true);
    }

    /// Returns whether the family of this pool is being created.
    pub(crate) fn is_creating(&self, pool: PoolId) -> bool {
        self.creating.contains(&pool)
    }

    /// Returns why PGs of this pool of objects cannot take part, as text for operators; `None`: they can.
    pub(crate) fn obstacle(&self, pool: PoolId, store: &Store) -> Option<String> {
        match &self.engine {
            Engine::Open(_) if store.has_family(pool) => None,
            Engine::Open(_) => Some(match self.failed.get(&pool) {
                Some(FailedFamily { why, .. }) => format!(
                    "the engine has no place for the pool's records yet, and is asked again: {why:?}"
                ),
                None => "waiting until the engine has a place for the pool's records".to_owned(),
            }),
            Engine::None(why) => Some(why.clone()),
        }
    }

    /// Returns whether the family of this pool of objects is not there yet, but will be.
    pub(crate) fn awaits_family(&self, pool: PoolId, store: &Store) -> bool {
        self.is_open() && !store.has_family(pool)
    }

    /// Returns a request for the engine's figures, unless it is under way or there is no engine.
    pub(crate) fn ask_statistics(&mut self) -> Option<EngineEffect> {
        if self.is_asked || !self.is_open() {
            return None;
        }
        self.is_asked = true;
        let op = EngineOp(FIRST_OP + self.op_count);
        self.op_count += 1;
        Some(EngineEffect::Statistics { op })
    }

    pub(crate) fn on_statistics(&mut self, statistics: Statistics) {
        self.is_asked = false;
        self.statistics = Some(statistics);
    }

    /// Returns the engine's figures, as far as they have come.
    pub(crate) fn report(&self, store: &Store) -> Option<EngineReport> {
        let Statistics {
            families,
            cache_size,
            cache_used,
            cache_hit_count,
            cache_miss_count,
            stall,
            background_error_count,
        } = self.statistics.as_ref()?;
        let stall = match stall {
            Stall::None => "none",
            Stall::Slowed(_) => "slowed",
            Stall::Stopped => "stopped",
        };
        let values = store.value_cache();
        Some(EngineReport {
            families: families.iter().map(family_report).collect(),
            cache_bytes: *cache_size,
            cache_used_bytes: *cache_used,
            cache_hits: *cache_hit_count,
            cache_misses: *cache_miss_count,
            stall: stall.to_owned(),
            background_errors: *background_error_count,
            waits_for_space: store.waits_for_engine_space(),
            low_on_space: store.is_engine_low(),
            behind_bytes: store.engine_behind(),
            value_hits: values.hit_count,
            value_misses: values.miss_count,
            value_bytes: values.used_bytes,
        })
    }
}

fn family_report(family: &FamilyStatistics) -> FamilyReport {
    FamilyReport {
        pool: family.family,
        compression: family.compression,
        disk_bytes: family.disk_size,
        memory_bytes: family.memtable_size,
        records: family.record_count_estimate,
        compaction_bytes_left: family.compaction_size_pending,
        damaged: family.is_damaged,
    }
}

#[cfg(test)]
mod tests {
    use blockstore::Settings;

    use super::*;

    #[test]
    fn a_family_that_cannot_be_created_holds_up_no_other() {
        let identity = format::engine::Identity { engine: 1, store: 1 };
        let engine = Engine::Open(EngineFound { identity, families: Vec::new() });
        let mut engine = LocalEngine::new(engine);
        let (pool, settings) = (base::BufferPool::default(), Settings::default());
        // It has no families, as no recovery has found any.
        let store = Store::open(settings, pool, 1 << 30, &mut Vec::new());
        let [first, second] = [1, 2].map(|number| PoolId::new(number).unwrap());
        assert!(engine.begin_creation(first, &store));
        assert!(!engine.begin_creation(first, &store), "it is being created");
        assert!(engine.begin_creation(second, &store), "at the same time");
        assert!(!engine.on_created(first, Err(StoreError::Unordered)));
        assert!(engine.is_creating(second) && !engine.is_creating(first));
        let why = engine.obstacle(first, &store).unwrap();
        assert!(why.contains("Unordered"), "{why}");
        assert!(!engine.begin_creation(first, &store), "not before the next report");
        engine.try_again();
        assert!(engine.begin_creation(first, &store));
        assert!(engine.on_created(first, Ok(())) && engine.on_created(second, Ok(())));
        assert!(!engine.obstacle(first, &store).unwrap().contains("Unordered"));
    }
}
