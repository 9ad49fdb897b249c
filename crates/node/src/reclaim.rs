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
use blockstore::{Answer, NoteKey, Request as StoreRequest, StoreError};
use cluster::map::MapDelta;
use cluster::message::ToMonitor;
use format::wire::{Content, PgEntry};
use pg::{Pg, Record};

use crate::Effect;
use crate::node::CALL_CLEARING;
use crate::node::Node;
use crate::pg_lifecycle::is_sound;

/// Blocks removed at a time: clients come first.
const PORTION_MAX: usize = 256;
/// PGs that are looked at between two reports, for data that is superfluous.
const LOOK_COUNT_MAX: usize = 256;
/// PGs that wait at a time until they are believed to be superfluous.
const CANDIDATE_COUNT_MAX: usize = 1024;
/// So long an entry has said that data is superfluous before that is believed: a report of its
/// primary, and what follows from it, has had its time.
const SUPERFLUOUS_AFTER: Duration = Duration::from_secs(5);

/// What is to be cleared.
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

/// What is being cleared; between events some answer of the store is awaited.
struct Current {
    target: Target,
    stage: Stage,
    /// Answers of the store that are awaited.
    missing: u32,
    /// A request could not be done: it is begun anew a while later.
    has_failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
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

impl Node {
    /// The monitor asks to clear a pool.
    pub(crate) fn clear_pool(&mut self, now: Time, pool: PoolId, effects: &mut Vec<Effect>) {
        let delta = MapDelta { removed_pools: vec![pool], ..MapDelta::default() };
        self.map_came(now, delta, effects);
        self.reclaim.asked.insert(pool);
        self.go_on_clearing(now, effects);
    }

    /// Begins to clear what is next, if nothing keeps it. Called now and then.
    pub(crate) fn go_on_clearing(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.reclaim.current.is_some() || self.store.is_congested() {
            return;
        }
        let Some(target) = self.next_target(now) else { return };
        let stage = Stage::Records;
        self.reclaim.current = Some(Current { target, stage, missing: 0, has_failed: false });
        self.clear_more(now, effects);
    }

    /// Whether data of the PG is being removed: this OSD takes no part in it meanwhile.
    pub(crate) fn is_being_cleared(&self, pg: PgId) -> bool {
        self.reclaim.current.as_ref().is_some_and(|current| current.target.has(pg))
    }

    fn next_target(&mut self, now: Time) -> Option<Target> {
        let mut pools = self.reclaim.asked.iter().copied().map(Target::Pool);
        let pool = pools.find(|target| self.is_needless(*target) && self.is_quiet(*target));
        pool.or_else(|| self.superfluous_pg(now).map(Target::Pg))
    }

    /// Whether what this OSD has of it is needed by nobody.
    fn is_needless(&self, target: Target) -> bool {
        match target {
            Target::Pool(pool) => !self.map.pools.contains_key(&pool),
            Target::Pg(pg) => self.is_superfluous(pg),
        }
    }

    /// Whether nothing of it is served, or under way.
    fn is_quiet(&self, target: Target) -> bool {
        let mut slots = self.pg_slots.iter().filter(|(pg, _)| target.has(**pg));
        slots.all(|(_, slot)| self.pgs[*slot].is_quiet())
    }

    /// A PG whose data here has been superfluous for a while; looks at some of them.
    fn superfluous_pg(&mut self, now: Time) -> Option<PgId> {
        if self.link.joined().is_none() {
            // The map may be old.
            self.reclaim.candidates.clear();
            return None;
        }
        self.look_for_superfluous(now);
        let candidates = self.reclaim.candidates.iter();
        let due = candidates.filter(|(_, (_, since))| now.since(*since) >= SUPERFLUOUS_AFTER);
        let found = due.map(|(pg, _)| *pg).find(|pg| self.is_quiet(Target::Pg(*pg)))?;
        self.reclaim.candidates.remove(&found);
        Some(found)
    }

    /// Forgets candidates that are none any more, and goes through the PGs of the map for new ones,
    /// a number of them with each call.
    fn look_for_superfluous(&mut self, now: Time) {
        let mut candidates = std::mem::take(&mut self.reclaim.candidates);
        candidates.retain(|pg, (epoch, _)| {
            self.is_superfluous(*pg) && self.map.pg(*pg).is_some_and(|entry| entry.epoch == *epoch)
        });
        let from = self.reclaim.looked_at;
        let pools = self.map.pools.range(from.map_or(PoolId::FIRST, |pg| pg.pool)..);
        let entries = pools.flat_map(|(_, known)| &known.pgs);
        let next = entries.filter(|entry| from.is_none_or(|from| from < entry.pg));
        let next: Vec<&PgEntry> = next.take(LOOK_COUNT_MAX).collect();
        let looked_at = match next.len() < LOOK_COUNT_MAX {
            true => None,
            false => next.last().map(|entry| entry.pg),
        };
        for entry in next {
            let has_room = candidates.len() < CANDIDATE_COUNT_MAX;
            if has_room && self.has_data(entry.pg) && self.is_superfluous(entry.pg) {
                candidates.entry(entry.pg).or_insert((entry.epoch, now));
            }
        }
        self.reclaim.looked_at = looked_at;
        self.reclaim.candidates = candidates;
    }

    fn has_data(&self, pg: PgId) -> bool {
        self.store.note(NoteKey::Pg(pg)).is_some()
            || self.blocks_of(Target::Pg(pg)).next().is_some()
    }

    /// Whether the PG's entry proves that what this OSD has of it is needed by nobody.
    fn is_superfluous(&self, pg: PgId) -> bool {
        let Some(known) = self.map.pools.get(&pg.pool).filter(|known| is_sound(pg, known)) else {
            return false;
        };
        let Some(entry) = known.pgs.get(pg.number as usize) else { return false };
        let is_there = |member: &format::wire::Member| {
            let osd = self.map.osds.get(&member.osd);
            osd.is_some_and(|osd| osd.up && osd.incarnation == member.incarnation)
        };
        !self.has_part(entry)
            && entry.primary.is_some()
            && entry.learners.is_empty()
            && entry.acting_count() >= known.pool.replicas as usize
            && entry.acting().all(is_there)
            && self.is_newer_than_notes(entry, known.revision)
    }

    /// Whether nothing in the store proves that this OSD has seen a newer map, or had a part in this
    /// epoch or a later one.
    fn is_newer_than_notes(&self, entry: &PgEntry, revision: MapRevision) -> bool {
        let pg = entry.pg;
        let noted = self.revision_noted(pg.pool);
        let recorded = match self.store.note(NoteKey::Pg(pg)).map(Record::decode) {
            None => Epoch::ZERO,
            Some(Ok(record)) => record.entry.epoch,
            // Nobody knows which epoch it is of.
            Some(Err(_)) => return false,
        };
        let begun = self.pg_slots.get(&pg).map(|slot| self.pgs[*slot].epoch_floor());
        let held = self.store.facts(pg).held.epoch;
        revision >= noted && entry.epoch > recorded.max(held).max(begun.unwrap_or(Epoch::ZERO))
    }

    /// The PG begins anew as one of which this OSD knows nothing. Requires: it is quiet.
    fn forget_record(&mut self, id: PgId) {
        self.damaged_notes.remove(&id);
        let Some(slot) = self.pg_slots.get(&id).copied() else { return };
        assert!(self.pgs[slot].is_quiet());
        let shape = self.shape_of(id);
        let facts = self.store.facts(id);
        self.pgs[slot] = Pg::new(shape, self.identity.osd, facts, None, self.buffers.clone());
    }

    /// Asks the store for the next part; moves on where a stage has nothing left.
    fn clear_more(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            let current = self.reclaim.current.as_ref().expect("the caller has one");
            let (target, stage) = (current.target, current.stage);
            if !self.is_needless(target) || !self.is_quiet(target) {
                return self.give_up_clearing(now, effects);
            }
            if let Target::Pg(pg) = target {
                self.forget_record(pg);
            }
            let requests = match stage {
                Stage::Records => self.record_removals(target),
                Stage::Blocks => self.block_removals(target),
            };
            let current = self.reclaim.current.as_mut().expect("as above");
            // The store answers some at once.
            current.missing = u32::try_from(requests.len()).expect("portions are small");
            match (requests.is_empty(), stage) {
                (false, _) => {
                    for request in requests {
                        self.ask_store(now, CALL_CLEARING, request);
                    }
                    return;
                }
                (true, Stage::Records) => current.stage = Stage::Blocks,
                (true, Stage::Blocks) => {
                    self.reclaim.current = None;
                    if let Target::Pool(pool) = target {
                        self.reclaim.asked.remove(&pool);
                        self.tell_monitor(&ToMonitor::PoolCleared { pool }, effects);
                    }
                    return self.go_on_clearing(now, effects);
                }
            }
        }
    }

    /// It cannot be done, or not now. Nothing of it is kept: it begins anew when all that a
    /// beginning demands is so again.
    fn give_up_clearing(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let given_up = self.reclaim.current.take().expect("the caller has one");
        if let Target::Pg(pg) = given_up.target {
            // Without a record this OSD takes its part as one that has nothing.
            self.review(now, pg, effects);
        }
    }

    fn blocks_of(&self, target: Target) -> impl Iterator<Item = blockstore::BlockKey> {
        let (pool, (first, last)) = match target {
            Target::Pool(pool) => (pool, (0, u32::MAX)),
            Target::Pg(pg) => (pg.pool, hash_range_of_pg(pg.number, self.shape_of(pg).pg_count)),
        };
        self.store.blocks(pool, first, last, None).map(|(key, ..)| key)
    }

    fn block_removals(&self, target: Target) -> Vec<StoreRequest> {
        let removal = |key: blockstore::BlockKey| {
            let pg = match target {
                Target::Pg(pg) => pg,
                // Which PG it was of is known to nobody any more; the store keeps the facts of one.
                Target::Pool(pool) => PgId { pool, number: 0 },
            };
            StoreRequest::Repair { pg, key, content: Content::Gone }
        };
        let removals: Vec<StoreRequest> =
            self.blocks_of(target).take(PORTION_MAX).map(removal).collect();
        match target {
            // What was lost of it is not missed any more.
            Target::Pg(pg) if removals.is_empty() && self.store.is_suspect(pg) => {
                vec![StoreRequest::Absolve { pg }]
            }
            _ => removals,
        }
    }

    fn record_removals(&self, target: Target) -> Vec<StoreRequest> {
        let removal = |(key, _): (NoteKey, &[u8])| match key {
            NoteKey::Pg(pg) if target.has(pg) => {
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
        let current = self.reclaim.current.as_mut().expect("its requests are awaited");
        assert!(current.missing > 0);
        current.missing -= 1;
        current.has_failed |= result.is_err();
        match (current.missing, current.has_failed) {
            (0, false) => self.clear_more(now, effects),
            (0, true) => self.give_up_clearing(now, effects),
            _ => {}
        }
    }
}
