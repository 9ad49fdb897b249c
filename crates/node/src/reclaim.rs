//! Removes data that is no longer needed: data of removed pools, and of PGs that other OSDs hold completely.
//!
//! A pool's data is removed when the monitor requests it, after the pool has left the map. For PGs the OSD
//! decides: it checks whether the PG's entry has all copies in its acting set, has no learner, and does not
//! list this OSD. Then the acting set of a replicated pool holds every acknowledged write, and the data here
//! is superfluous. That of a pool with parity does so once the entry is active, which this OSD asks the
//! monitor: members that were filled while too few others were left may lack writes that this OSD has. A
//! repeated removal does no harm, so after a restart or a failed store request the removal simply starts
//! over.
//!
//! The data of a pool whose records are damaged here is removed as a whole, the family of the engine with it, once
//! all PGs of the pool have left this OSD: then it is a member that has nothing, and is filled from the others.
//!
//! Invariants
//!   1. A removal begins when nothing of its PGs is under way here. From then until it ends or is given up,
//!      this OSD takes no part in these PGs, so no block arrives after its removal.
//!   2. The records are removed first, durably: data without a record is ignored, so partly removed data is
//!      never mistaken for complete data. Versions that are only prepared are dropped next, and then blocks.
//!   3. No record of a PG is read while it is being removed: this OSD's state of the PG in memory never
//!      claims more than its store has.
//!   4. No data is removed because of a map that is older than this OSD's own notes: this OSD may have a part
//!      in the newest map.
//!   5. Of each PG of objects without a record this OSD has looked, in this run, whether records of objects are
//!      left: a removal may have ended between the two, and no block may tell of it.
//!   6. A pool is reported to the monitor as cleared when all of its data is gone, durably.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::hash_range_of_pg;
use base::{BlockSize, Duration, Epoch, MapRevision, PgId, PoolId, Scheme, Time, Version};
use blockstore::{Answer, BlockKey, NoteKey, Page, Request as StoreRequest, Store, StoreError};
use cluster::map::PoolKind;
use format::engine::{Answer as Found, Change, Query};
use format::wire::{Content, PgEntry};
use objects::{Shard, keys};
use pg::Record;

use crate::cluster_view::{ClusterView, is_sound};
use crate::local_engine::LocalEngine;
use crate::notes::Notes;
use crate::pg_table::PgTable;

/// Keys of the engine: the first one, and the first one behind them.
type KeyRange = (Vec<u8>, Vec<u8>);

/// Maximum number of records or blocks removed at a time: clients come first.
const PORTION_MAX: usize = 256;
/// Number of PGs that are checked for superfluous data in each report interval.
const LOOK_COUNT_MAX: usize = 256;
/// Maximum number of PGs that are candidates for removal, while it is not certain that their data is
/// superfluous.
const CANDIDATE_COUNT_MAX: usize = 1024;
/// How long the same entry must have made the data superfluous before the data is removed. This leaves enough
/// time for a report of the primary and for the entry that may follow from it.
const SUPERFLUOUS_AFTER: Duration = Duration::from_secs(5);

/// A damaged copy is removed only if so many others are left.
const LEFT_COPIES_MIN: usize = 2;

/// The data that must be removed, and the removal under way.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Pools that the monitor requested this OSD to clear.
    asked: BTreeSet<PoolId>,
    /// PGs whose data seems to be superfluous. At most [`CANDIDATE_COUNT_MAX`].
    candidates: BTreeMap<PgId, Candidate>,
    /// Pools with damaged records here of which no PG has a part for this OSD any more, and since when.
    left_pools: BTreeMap<PoolId, Time>,
    /// The last PG that was checked.
    looked_at: Option<PgId>,
    /// PGs of objects of which no records are left here.
    without_keys: BTreeSet<PgId>,
    current: Option<Current>,
}

/// A PG whose data seems to be superfluous.
struct Candidate {
    /// The epoch of the entry that shows this.
    epoch: Epoch,
    /// Since when it has shown this.
    since: Time,
    /// Whether the acting set is known to hold every acknowledged write: the PG is replicated, or the monitor
    /// has told that it is active in this epoch.
    has_all: bool,
}

/// The removal under way. Between events at least one result of the store is awaited.
struct Current {
    target: Target,
    stage: Stage,
    /// Number of results awaited from the store.
    missing: u32,
    /// Whether a request has failed: then the removal starts over later.
    has_failed: bool,
}

/// The pool or PG whose data is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Pool(PoolId),
    /// A pool that is still there: its records are damaged here, and are replaced by those of other copies.
    DamagedPool(PoolId),
    Pg(PgId),
}

/// The stages of a removal, in the order in which they occur.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Removes the records, durably.
    Records,
    /// Drops versions that are only prepared: a block that has such versions cannot be removed.
    Prepared,
    /// Looks whether records of objects of the PG are left.
    Look,
    /// Removes them.
    Keys,
    /// Removes blocks and tombstones, up to [`PORTION_MAX`] at a time.
    Blocks,
    /// Removes the family of a pool of objects, with all its records.
    Family,
}

impl Target {
    fn has(self, pg: PgId) -> bool {
        match self {
            Target::Pool(pool) | Target::DamagedPool(pool) => pg.pool == pool,
            Target::Pg(id) => pg == id,
        }
    }
}

/// The data that this OSD holds, and the state that proves that it is no longer needed.
#[derive(Clone, Copy)]
pub(crate) struct Holdings<'a> {
    pub(crate) store: &'a Store,
    pub(crate) cluster: &'a ClusterView,
    pub(crate) notes: &'a Notes,
    pub(crate) pgs: &'a PgTable,
    pub(crate) engine: &'a LocalEngine,
}

/// The next step of a removal.
pub(crate) enum Next {
    /// Send all of these requests to the store; pass each result to [`Reclaim::on_removed`].
    Ask(Vec<StoreRequest>),
    /// All data for the target is removed, durably.
    Done(Target),
}

/// What to do after a result from the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// Wait for the other results.
    Wait,
    /// Remove the next part.
    GoOn,
    /// A request has failed: give up the removal for now.
    GiveUp,
}

impl Reclaim {
    /// Handles the monitor's request to clear a pool.
    pub(crate) fn ask(&mut self, pool: PoolId) {
        self.asked.insert(pool);
    }

    /// Returns whether a removal is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    /// Returns whether the PG's data is being removed. During a removal this OSD takes no part in the PG.
    pub(crate) fn is_removing(&self, pg: PgId) -> bool {
        self.current.as_ref().is_some_and(|current| current.target.has(pg))
    }

    /// Begins the next removal, if there is one. Returns true if a removal has begun. `has_joined`: whether a
    /// monitor serves this OSD, so that the map is current. Requires: no removal is under way.
    pub(crate) fn begin(&mut self, now: Time, holdings: Holdings<'_>, has_joined: bool) -> bool {
        assert!(self.current.is_none());
        let mut pools = self.asked.iter().copied().map(Target::Pool);
        let pool = pools.find(|target| holdings.may_remove(*target));
        let damaged = self.damaged_pool(now, holdings, has_joined).map(Target::DamagedPool);
        let target = pool
            .or(damaged)
            .or_else(|| self.superfluous_pg(now, holdings, has_joined).map(Target::Pg));
        if let Some(Target::Pg(pg)) = target {
            self.without_keys.remove(&pg);
        }
        self.current = target.map(|target| Current {
            target,
            stage: Stage::Records,
            missing: 0,
            has_failed: false,
        });
        self.current.is_some()
    }

    /// Returns what is being removed. Requires: a removal is under way.
    pub(crate) fn target(&self) -> Target {
        self.current.as_ref().expect("a removal is under way").target
    }

    /// Returns the requests for the next part; skips a stage that has nothing left to remove. Requires: no
    /// result is awaited, and the data is still not needed.
    pub(crate) fn next_part(&mut self, holdings: Holdings<'_>) -> Next {
        let current = self.current.as_mut().expect("a removal is under way");
        assert!(current.missing == 0);
        loop {
            let requests = match current.stage {
                Stage::Records => holdings.record_removals(current.target),
                Stage::Prepared => holdings.settles(current.target),
                Stage::Look => holdings.key_look(current.target),
                Stage::Keys => holdings.key_removal(current.target),
                Stage::Blocks => holdings.block_removals(current.target),
                Stage::Family => holdings.family_removal(current.target),
            };
            if !requests.is_empty() {
                // Set the count first: the store completes some requests at once.
                current.missing = u32::try_from(requests.len()).expect("portions are small");
                return Next::Ask(requests);
            }
            match current.stage {
                Stage::Records => current.stage = Stage::Prepared,
                Stage::Prepared => current.stage = Stage::Look,
                Stage::Look | Stage::Keys => current.stage = Stage::Blocks,
                Stage::Blocks => current.stage = Stage::Family,
                Stage::Family => break,
            }
        }
        let target = current.target;
        self.current = None;
        match target {
            Target::Pool(pool) | Target::DamagedPool(pool) => {
                self.asked.remove(&pool);
                self.without_keys.retain(|pg| pg.pool != pool);
            }
            Target::Pg(pg) if holdings.object_shape(pg).is_some() => {
                self.without_keys.insert(pg);
            }
            Target::Pg(_) => {}
        }
        Next::Done(target)
    }

    /// Handles the store's result for one of the requests.
    pub(crate) fn on_removed(&mut self, result: &Result<Answer, StoreError>) -> Answered {
        let current = self.current.as_mut().expect("its requests are awaited");
        assert!(current.missing > 0);
        current.missing -= 1;
        match (current.stage, result) {
            (Stage::Look, Ok(answer)) => {
                current.stage = if has_records(answer) { Stage::Keys } else { Stage::Blocks };
            }
            // What cannot be read can be removed.
            (Stage::Look, Err(StoreError::RecordsDamaged { .. })) => current.stage = Stage::Keys,
            (Stage::Keys, Ok(_)) => current.stage = Stage::Blocks,
            (_, result) => current.has_failed |= result.is_err(),
        }
        match (current.missing, current.has_failed) {
            (0, false) => Answered::GoOn,
            (0, true) => Answered::GiveUp,
            _ => Answered::Wait,
        }
    }

    /// Gives up the removal, at least for now, and discards its progress. The removal starts over once all
    /// conditions for it hold again.
    pub(crate) fn give_up(&mut self) -> Target {
        self.current.take().expect("a removal is under way").target
    }

    /// Returns the PGs of which this OSD must know whether they are active, and in which epochs.
    pub(crate) fn leftovers(&self) -> Vec<(PgId, Epoch)> {
        let asked = self.candidates.iter().filter(|(_, candidate)| !candidate.has_all);
        asked.map(|(pg, candidate)| (*pg, candidate.epoch)).collect()
    }

    /// Handles the monitor's answer that these PGs are active in these epochs.
    pub(crate) fn on_active(&mut self, pgs: &[(PgId, Epoch)]) {
        for (pg, epoch) in pgs {
            let candidate = self.candidates.get_mut(pg).filter(|it| it.epoch == *epoch);
            if let Some(candidate) = candidate {
                candidate.has_all = true;
            }
        }
    }

    /// Returns a pool with damaged records here that all of its PGs have left for long enough.
    fn damaged_pool(
        &mut self,
        now: Time,
        holdings: Holdings<'_>,
        has_joined: bool,
    ) -> Option<PoolId> {
        let damaged = holdings.store.damaged_families();
        let left: BTreeSet<PoolId> =
            damaged.filter(|pool| has_joined && holdings.is_left(*pool)).collect();
        self.left_pools.retain(|pool, _| left.contains(pool));
        for pool in left {
            self.left_pools.entry(pool).or_insert(now);
        }
        let is_due = |(pool, since): &(&PoolId, &Time)| {
            now.since(**since) >= SUPERFLUOUS_AFTER
                && holdings.is_quiet(Target::DamagedPool(**pool))
        };
        let pool = self.left_pools.iter().find(is_due).map(|(pool, _)| *pool)?;
        self.left_pools.remove(&pool);
        Some(pool)
    }

    /// Checks some PGs, and returns one whose data here has been superfluous for long enough.
    fn superfluous_pg(
        &mut self,
        now: Time,
        holdings: Holdings<'_>,
        has_joined: bool,
    ) -> Option<PgId> {
        if !has_joined {
            // The map may be old.
            self.candidates.clear();
            return None;
        }
        self.look_for_superfluous(now, holdings);
        let due =
            |(_, it): &(&PgId, &Candidate)| it.has_all && now.since(it.since) >= SUPERFLUOUS_AFTER;
        let due = self.candidates.iter().filter(due).map(|(pg, _)| *pg);
        let found = due.into_iter().find(|pg| holdings.is_quiet(Target::Pg(*pg)))?;
        self.candidates.remove(&found);
        Some(found)
    }

    /// Drops candidates whose data is no longer superfluous, and checks up to [`LOOK_COUNT_MAX`] further
    /// PGs of the map.
    fn look_for_superfluous(&mut self, now: Time, holdings: Holdings<'_>) {
        let Reclaim { candidates, looked_at, without_keys, .. } = self;
        let cluster = holdings.cluster;
        candidates.retain(|pg, candidate| {
            let is_of = |entry: &PgEntry| entry.epoch == candidate.epoch;
            holdings.is_superfluous(*pg) && cluster.pg(*pg).is_some_and(is_of)
        });
        let pools = cluster.map().pools.range(looked_at.map_or(PoolId::FIRST, |pg| pg.pool)..);
        let entries = pools.flat_map(|(_, known)| &known.pgs);
        let next = entries.filter(|entry| looked_at.is_none_or(|from| from < entry.pg));
        let next: Vec<&PgEntry> = next.take(LOOK_COUNT_MAX).collect();
        *looked_at = match next.len() < LOOK_COUNT_MAX {
            true => None,
            false => next.last().map(|entry| entry.pg),
        };
        for entry in next {
            let has_room = candidates.len() < CANDIDATE_COUNT_MAX;
            let has_data = holdings.has_data(entry.pg)
                || holdings.object_shape(entry.pg).is_some() && !without_keys.contains(&entry.pg);
            if has_room && has_data && holdings.is_superfluous(entry.pg) {
                let scheme = cluster.pool(entry.pg.pool).map(|known| known.pool.scheme);
                candidates.entry(entry.pg).or_insert(Candidate {
                    epoch: entry.epoch,
                    since: now,
                    has_all: scheme.is_some_and(Scheme::is_whole_everywhere),
                });
            }
        }
    }
}

impl Holdings<'_> {
    /// Returns whether this OSD may remove its data for the target now.
    pub(crate) fn may_remove(self, target: Target) -> bool {
        self.is_needless(target) && self.is_quiet(target)
    }

    /// Returns whether this OSD no longer needs its data for the target.
    fn is_needless(self, target: Target) -> bool {
        match target {
            Target::Pool(pool) => self.cluster.pool(pool).is_none(),
            Target::DamagedPool(pool) => self.is_left(pool),
            Target::Pg(pg) => self.is_superfluous(pg),
        }
    }

    /// Returns whether all PGs of a replicated pool go on without this OSD: their acting members have all
    /// that was acknowledged. The pool may lack copies, that of this OSD above all. Nobody has read the
    /// others' copies as a whole, so there must be two at least: a single one may rot elsewhere.
    fn is_left(self, pool: PoolId) -> bool {
        let Some(known) = self.cluster.pool(pool) else { return false };
        let goes_on = |entry: &PgEntry| {
            is_sound(entry.pg, known)
                && !self.cluster.has_part(entry)
                && entry.primary.is_some()
                && entry.acting_count() >= (known.pool.min_size as usize).max(LEFT_COPIES_MIN)
                && entry.acting().all(|member| self.cluster.is_up(member))
                && self.is_newer_than_notes(entry, known.revision)
        };
        known.pool.scheme.is_whole_everywhere() && known.pgs.iter().all(goes_on)
    }

    /// Returns whether no PG of the target serves or has anything in progress, and its family is not being
    /// created.
    fn is_quiet(self, target: Target) -> bool {
        let is_creating = match target {
            Target::Pool(pool) | Target::DamagedPool(pool) => self.engine.is_creating(pool),
            Target::Pg(_) => false,
        };
        !is_creating && self.pgs.are_quiet(|pg| target.has(pg))
    }

    fn has_data(self, pg: PgId) -> bool {
        self.store.note(NoteKey::Pg(pg)).is_some()
            || self.store.note(NoteKey::Scrub(pg)).is_some()
            || self.blocks_of(Target::Pg(pg)).next().is_some()
    }

    /// Returns whether the PG's entry proves that this OSD no longer needs its data for the PG.
    fn is_superfluous(self, pg: PgId) -> bool {
        let Some(known) = self.cluster.pool(pg.pool).filter(|known| is_sound(pg, known)) else {
            return false;
        };
        let Some(entry) = known.pgs.get(pg.number as usize) else { return false };
        !self.cluster.has_part(entry)
            && entry.primary.is_some()
            && entry.learners.is_empty()
            && entry.acting_count() >= known.pool.scheme.position_count() as usize
            && entry.acting().all(|member| self.cluster.is_up(member))
            && self.is_newer_than_notes(entry, known.revision)
    }

    /// Returns whether nothing in the store proves that this OSD has seen a newer map, or had a part in this
    /// epoch or a later one.
    fn is_newer_than_notes(self, entry: &PgEntry, revision: MapRevision) -> bool {
        let pg = entry.pg;
        let noted = self.notes.revision(pg.pool);
        let recorded = match self.store.note(NoteKey::Pg(pg)).map(Record::decode) {
            None => Epoch::ZERO,
            Some(Ok(record)) => record.entry.epoch,
            // The epoch of a record that cannot be read is unknown.
            Some(Err(_)) => return false,
        };
        let begun = self.pgs.get(pg).map_or(Epoch::ZERO, |pg| pg.epoch_floor());
        let held = self.store.facts(pg).held.epoch;
        revision >= noted && entry.epoch > recorded.max(held).max(begun)
    }

    fn blocks_of(&self, target: Target) -> impl Iterator<Item = BlockKey> {
        let (pool, (first, last)) = match target {
            Target::Pool(pool) | Target::DamagedPool(pool) => (pool, (0, u32::MAX)),
            Target::Pg(pg) => {
                let pg_count = self.cluster.map().pools[&pg.pool].pool.pg_count;
                (pg.pool, hash_range_of_pg(pg.number, pg_count))
            }
        };
        self.store.blocks(pool, first, last, None).map(|(key, ..)| key)
    }

    /// Returns the number of shards of the PG's pool and its block size, if it is one of objects that has a
    /// place for its records here.
    fn object_shape(&self, pg: PgId) -> Option<(u32, BlockSize)> {
        let rules = &self.cluster.pool(pg.pool)?.pool;
        match rules.kind {
            PoolKind::Object { shards, .. } if self.store.has_family(pg.pool) => {
                Some((shards, rules.block_size))
            }
            _ => None,
        }
    }

    /// Returns the range of the PG's keys, and the block size, if it has records of objects.
    fn keys_of(&self, target: Target) -> Option<(PgId, KeyRange, BlockSize)> {
        let Target::Pg(pg) = target else { return None };
        let (shard_count, block_size) = self.object_shape(pg)?;
        let pg_count = self.cluster.map().pools[&pg.pool].pool.pg_count;
        let (first, last) = hash_range_of_pg(pg.number, pg_count);
        let shard = |hash| Shard::of_hash(hash, shard_count);
        Some((pg, keys::shards_range(shard(first), shard(last)), block_size))
    }

    fn key_look(self, target: Target) -> Vec<StoreRequest> {
        let look = |(pg, (start, end), _): (PgId, (Vec<u8>, Vec<u8>), BlockSize)| {
            let queries = vec![Query::Scan { start, end: Some(end), count_max: 1, size_max: 1 }];
            StoreRequest::Records { pg, queries, from_memory: false, caches: false }
        };
        self.keys_of(target).map(look).into_iter().collect()
    }

    fn key_removal(self, target: Target) -> Vec<StoreRequest> {
        let removal = |(pg, (start, end), block_size): (PgId, (Vec<u8>, Vec<u8>), BlockSize)| {
            let records = vec![Change::DeleteRange { start, end }];
            let version = Version::ZERO;
            StoreRequest::Page(Page { pg, block_size, version, records, blocks: Vec::new() })
        };
        self.keys_of(target).map(removal).into_iter().collect()
    }

    fn block_removals(self, target: Target) -> Vec<StoreRequest> {
        let removal = |key: BlockKey| {
            let pg = match target {
                Target::Pg(pg) => pg,
                // The PG of such a block is no longer known, so the store records these removals under PG 0.
                Target::Pool(pool) | Target::DamagedPool(pool) => PgId { pool, number: 0 },
            };
            StoreRequest::Repair { pg, key, content: Content::Gone }
        };
        let removals: Vec<StoreRequest> =
            self.blocks_of(target).take(PORTION_MAX).map(removal).collect();
        match target {
            // If this store lost data of the PG, that data is no longer needed: end the suspicion.
            Target::Pg(pg) if removals.is_empty() && self.store.is_suspect(pg) => {
                vec![StoreRequest::Absolve { pg }]
            }
            _ => removals,
        }
    }

    fn record_removals(self, target: Target) -> Vec<StoreRequest> {
        let removal = |(key, _): (NoteKey, &[u8])| match key {
            NoteKey::Pg(pg) | NoteKey::Scrub(pg) if target.has(pg) => {
                Some(StoreRequest::Note { key, bytes: Vec::new() })
            }
            _ => None,
        };
        self.store.notes().filter_map(removal).take(PORTION_MAX).collect()
    }

    fn family_removal(self, target: Target) -> Vec<StoreRequest> {
        let (Target::Pool(pool) | Target::DamagedPool(pool)) = target else { return Vec::new() };
        let is_stray = |(odd, is_stray): (PoolId, bool)| odd == pool && is_stray;
        let is_there = self.store.has_family(pool) || self.store.odd_families().any(is_stray);
        let removal = || StoreRequest::Family { pool, compression: None };
        is_there.then(removal).into_iter().collect()
    }

    fn settles(self, target: Target) -> Vec<StoreRequest> {
        let pgs = self.store.prepared_pgs().filter(|pg| target.has(*pg));
        let settle = |pg| {
            let upto = self.store.facts(pg).committed;
            StoreRequest::Settle { pg, note: None, upto }
        };
        pgs.take(PORTION_MAX).map(settle).collect()
    }
}

/// Whether a look found records.
fn has_records(answer: &Answer) -> bool {
    let Answer::Records { answers, .. } = answer else { return false };
    answers
        .iter()
        .any(|found| matches!(found, Found::Records { records, .. } if !records.is_empty()))
}
