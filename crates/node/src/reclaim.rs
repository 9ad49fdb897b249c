//! Removing what nobody needs: of pools that are gone, and of PGs that others hold whole.
//!
//! The OSD does this by itself. A pool has left the map before the monitor asks. A PG's data is
//! superfluous when its entry has all copies in its acting set, no learner, and no part for this
//! OSD: the acting set holds every acknowledged write. Doing it again costs nothing, so after a
//! restart, or when the store could not do it, it just begins anew.
//!
//! Invariants
//!   1. It begins when nothing of the PGs is under way here; from then until it ends or is given
//!      up, this OSD takes no part in the PG. So no block comes behind it.
//!   2. The records go first, durably: data without a record counts for nothing, so a part of it
//!      is never taken for the whole.
//!   3. No record of a PG is read while it is being removed: what this OSD knows of the PG in memory
//!      is never more than what its store has.
//!   4. A map that this OSD's own notes prove older than what it has seen is not believed: in the
//!      newest one this OSD may have a part.
//!   5. The monitor is told of a pool when all of it is gone, durably.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::hash_range_of_pg;
use base::{Duration, Epoch, MapRevision, PgId, PoolId, Time};
use blockstore::{BlockKey, NoteKey, Request as StoreRequest, Store};
use format::wire::{Content, PgEntry};
use pg::Record;

use crate::cluster_view::{ClusterView, is_sound};
use crate::notes::Notes;
use crate::pg_table::PgTable;

/// Blocks removed at a time: clients come first.
const PORTION_MAX: usize = 256;
/// PGs that are looked at between two reports, for data that is superfluous.
const LOOK_COUNT_MAX: usize = 256;
/// PGs that wait at a time until they are believed to be superfluous.
const CANDIDATE_COUNT_MAX: usize = 1024;
/// How long an entry must have called data superfluous before it is removed: enough time for a report of
/// the primary and for the entry that may follow from it.
const SUPERFLUOUS_AFTER: Duration = Duration::from_secs(5);

/// What is to be removed.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Pools that the monitor asked for.
    asked: BTreeSet<PoolId>,
    /// PGs whose data seems to be superfluous: in which epoch, since when. At most
    /// [`CANDIDATE_COUNT_MAX`].
    candidates: BTreeMap<PgId, (Epoch, Time)>,
    /// The last PG that was looked at.
    looked_at: Option<PgId>,
    current: Option<Current>,
}

/// What is being removed; between events some answer of the store is awaited.
struct Current {
    target: Target,
    stage: Stage,
    /// Answers of the store that are awaited.
    missing: u32,
    /// A request could not be done: it is begun anew a while later.
    has_failed: bool,
}

/// Whose data is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Pool(PoolId),
    Pg(PgId),
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Removes the records.
    Records,
    /// Removes blocks and tombstones, a portion at a time.
    Blocks,
}

impl Target {
    fn has(self, pg: PgId) -> bool {
        match self {
            Target::Pool(pool) => pg.pool == pool,
            Target::Pg(id) => pg == id,
        }
    }
}

/// What this OSD holds, and what proves that nobody needs it.
#[derive(Clone, Copy)]
pub(crate) struct Holdings<'a> {
    pub(crate) store: &'a Store,
    pub(crate) cluster: &'a ClusterView,
    pub(crate) notes: &'a Notes,
    pub(crate) pgs: &'a PgTable,
}

/// The next step of a removal.
pub(crate) enum Next {
    /// Ask the store for all of these; each answer goes to [`Reclaim::on_removed`].
    Ask(Vec<StoreRequest>),
    /// All of it is gone, durably.
    Done(Target),
}

/// What an answer of the store leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// Other answers are awaited.
    Wait,
    /// The next part is to be removed.
    GoOn,
    /// Something could not be removed: it is given up for now.
    GiveUp,
}

impl Reclaim {
    /// The monitor asks to remove what is left of a pool.
    pub(crate) fn ask(&mut self, pool: PoolId) {
        self.asked.insert(pool);
    }

    /// Whether something is being removed.
    pub(crate) fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    /// Whether data of the PG is being removed: this OSD takes no part in it meanwhile.
    pub(crate) fn is_removing(&self, pg: PgId) -> bool {
        self.current.as_ref().is_some_and(|current| current.target.has(pg))
    }

    /// Begins to remove what is next, if anything is to be. True if it has begun.
    /// `has_joined`: the map is not an old one. Requires: nothing is under way.
    pub(crate) fn begin(&mut self, now: Time, holdings: Holdings<'_>, has_joined: bool) -> bool {
        assert!(self.current.is_none());
        let mut pools = self.asked.iter().copied().map(Target::Pool);
        let pool = pools.find(|target| holdings.may_remove(*target));
        let target =
            pool.or_else(|| self.superfluous_pg(now, holdings, has_joined).map(Target::Pg));
        self.current = target.map(|target| Current {
            target,
            stage: Stage::Records,
            missing: 0,
            has_failed: false,
        });
        self.current.is_some()
    }

    /// What is being removed. Requires: something is.
    pub(crate) fn target(&self) -> Target {
        self.current.as_ref().expect("a removal is under way").target
    }

    /// The next part; a stage that has nothing left is passed. Requires: all answers have come, and
    /// it is still needed by nobody.
    pub(crate) fn next_part(&mut self, holdings: Holdings<'_>) -> Next {
        let current = self.current.as_mut().expect("a removal is under way");
        assert!(current.missing == 0);
        loop {
            let requests = match current.stage {
                Stage::Records => holdings.record_removals(current.target),
                Stage::Blocks => holdings.block_removals(current.target),
            };
            if !requests.is_empty() {
                // The store answers some at once.
                current.missing = u32::try_from(requests.len()).expect("portions are small");
                return Next::Ask(requests);
            }
            match current.stage {
                Stage::Records => current.stage = Stage::Blocks,
                Stage::Blocks => break,
            }
        }
        let target = current.target;
        self.current = None;
        if let Target::Pool(pool) = target {
            self.asked.remove(&pool);
        }
        Next::Done(target)
    }

    /// The store answered one of the requests.
    pub(crate) fn on_removed(&mut self, is_done: bool) -> Answered {
        let current = self.current.as_mut().expect("its requests are awaited");
        assert!(current.missing > 0);
        current.missing -= 1;
        current.has_failed |= !is_done;
        match (current.missing, current.has_failed) {
            (0, false) => Answered::GoOn,
            (0, true) => Answered::GiveUp,
            _ => Answered::Wait,
        }
    }

    /// The removal cannot be done, or not now. Its progress is dropped: it starts over once all
    /// conditions for a start hold again.
    pub(crate) fn give_up(&mut self) -> Target {
        self.current.take().expect("a removal is under way").target
    }

    /// A PG whose data here has been superfluous for a while; looks at some of them.
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
            |(_, (_, since)): &(&PgId, &(Epoch, Time))| now.since(*since) >= SUPERFLUOUS_AFTER;
        let due = self.candidates.iter().filter(due).map(|(pg, _)| *pg);
        let found = due.into_iter().find(|pg| holdings.is_quiet(Target::Pg(*pg)))?;
        self.candidates.remove(&found);
        Some(found)
    }

    /// Forgets candidates that are none any more, and goes through the PGs of the map for new ones,
    /// a number of them with each call.
    fn look_for_superfluous(&mut self, now: Time, holdings: Holdings<'_>) {
        let Reclaim { candidates, looked_at, .. } = self;
        let cluster = holdings.cluster;
        candidates.retain(|pg, (epoch, _)| {
            let is_of = |entry: &PgEntry| entry.epoch == *epoch;
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
            if has_room && holdings.has_data(entry.pg) && holdings.is_superfluous(entry.pg) {
                candidates.entry(entry.pg).or_insert((entry.epoch, now));
            }
        }
    }
}

impl Holdings<'_> {
    /// Whether what this OSD has of it may be removed now.
    pub(crate) fn may_remove(self, target: Target) -> bool {
        self.is_needless(target) && self.is_quiet(target)
    }

    /// Whether what this OSD has of it is needed by nobody.
    fn is_needless(self, target: Target) -> bool {
        match target {
            Target::Pool(pool) => self.cluster.pool(pool).is_none(),
            Target::Pg(pg) => self.is_superfluous(pg),
        }
    }

    /// Whether nothing of it is served, or under way.
    fn is_quiet(self, target: Target) -> bool {
        self.pgs.are_quiet(|pg| target.has(pg))
    }

    fn has_data(self, pg: PgId) -> bool {
        self.store.note(NoteKey::Pg(pg)).is_some()
            || self.blocks_of(Target::Pg(pg)).next().is_some()
    }

    /// Whether the PG's entry proves that what this OSD has of it is needed by nobody.
    fn is_superfluous(self, pg: PgId) -> bool {
        let Some(known) = self.cluster.pool(pg.pool).filter(|known| is_sound(pg, known)) else {
            return false;
        };
        let Some(entry) = known.pgs.get(pg.number as usize) else { return false };
        !self.cluster.has_part(entry)
            && entry.primary.is_some()
            && entry.learners.is_empty()
            && entry.acting_count() >= known.pool.replicas as usize
            && entry.acting().all(|member| self.cluster.is_up(member))
            && self.is_newer_than_notes(entry, known.revision)
    }

    /// Whether nothing in the store proves that this OSD has seen a newer map, or had a part in this
    /// epoch or a later one.
    fn is_newer_than_notes(self, entry: &PgEntry, revision: MapRevision) -> bool {
        let pg = entry.pg;
        let noted = self.notes.revision(pg.pool);
        let recorded = match self.store.note(NoteKey::Pg(pg)).map(Record::decode) {
            None => Epoch::ZERO,
            Some(Ok(record)) => record.entry.epoch,
            // Its epoch is unknown.
            Some(Err(_)) => return false,
        };
        let begun = self.pgs.get(pg).map_or(Epoch::ZERO, |pg| pg.epoch_floor());
        let held = self.store.facts(pg).held.epoch;
        revision >= noted && entry.epoch > recorded.max(held).max(begun)
    }

    fn blocks_of(&self, target: Target) -> impl Iterator<Item = BlockKey> {
        let (pool, (first, last)) = match target {
            Target::Pool(pool) => (pool, (0, u32::MAX)),
            Target::Pg(pg) => {
                let pg_count = self.cluster.map().pools[&pg.pool].pool.pg_count;
                (pg.pool, hash_range_of_pg(pg.number, pg_count))
            }
        };
        self.store.blocks(pool, first, last, None).map(|(key, ..)| key)
    }

    fn block_removals(self, target: Target) -> Vec<StoreRequest> {
        let removal = |key: BlockKey| {
            let pg = match target {
                Target::Pg(pg) => pg,
                // The PG that it belonged to is no longer known; the store keeps the facts of one.
                Target::Pool(pool) => PgId { pool, number: 0 },
            };
            StoreRequest::Repair { pg, key, content: Content::Gone }
        };
        let removals: Vec<StoreRequest> =
            self.blocks_of(target).take(PORTION_MAX).map(removal).collect();
        match target {
            // Data that was lost is not needed any more.
            Target::Pg(pg) if removals.is_empty() && self.store.is_suspect(pg) => {
                vec![StoreRequest::Absolve { pg }]
            }
            _ => removals,
        }
    }

    fn record_removals(self, target: Target) -> Vec<StoreRequest> {
        let removal = |(key, _): (NoteKey, &[u8])| match key {
            NoteKey::Pg(pg) if target.has(pg) => {
                Some(StoreRequest::Note { key, bytes: Vec::new() })
            }
            _ => None,
        };
        self.store.notes().filter_map(removal).take(PORTION_MAX).collect()
    }
}
