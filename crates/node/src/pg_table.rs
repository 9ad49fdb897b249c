//! The PGs of this OSD, and the actions that they have requested and that have not been carried out yet.
//!
//! Invariants
//!   1. A PG keeps its slot for the whole run.
//!   2. Between events the list of actions is empty: a caller carries out the actions of one PG before it
//!      calls into another.

use std::collections::BTreeMap;
use std::ops::Index;

use base::{BufferPool, OsdId, PgId, PoolId};
use blockstore::PgFacts;
use cluster::map::{Pool, PoolKind};
use objects::{PoolShape, Sharding};
use pg::{Action, Limits, Pg, Record, ScrubNote, Shape, SlowDisks};

/// Index of a PG in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PgSlot(usize);

impl PgSlot {
    /// Creates the slot with this index, without checking that the table has it.
    pub(crate) fn new(index: usize) -> PgSlot {
        PgSlot(index)
    }

    /// Returns the index of the slot, from 0.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// All PGs that this OSD has had a part in during this run.
pub(crate) struct PgTable {
    osd: OsdId,
    buffers: BufferPool,
    limits: Limits,
    /// OSDs whose disks are slow, as last reported by the monitor.
    slow_disks: SlowDisks,
    pgs: Vec<Pg>,
    slots: BTreeMap<PgId, PgSlot>,
    /// Actions requested by the PG that was called last.
    actions: Vec<Action>,
    /// An empty list with spare capacity, so that taking a batch allocates nothing.
    spare: Vec<Action>,
}

impl PgTable {
    /// Creates an empty table.
    pub(crate) fn new(osd: OsdId, buffers: BufferPool, limits: Limits) -> PgTable {
        PgTable {
            osd,
            buffers,
            limits,
            slow_disks: SlowDisks::default(),
            pgs: Vec::new(),
            slots: BTreeMap::new(),
            actions: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Returns the slot of a PG, if it has one.
    pub(crate) fn slot(&self, id: PgId) -> Option<PgSlot> {
        self.slots.get(&id).copied()
    }

    /// Returns a PG, if it is in the table.
    pub(crate) fn get(&self, id: PgId) -> Option<&Pg> {
        self.slot(id).map(|slot| &self[slot])
    }

    /// Returns the ids of all PGs, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PgId> + '_ {
        self.slots.keys().copied()
    }

    /// Returns all PGs, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PgSlot, &Pg)> {
        self.pgs.iter().enumerate().map(|(index, pg)| (PgSlot(index), pg))
    }

    /// Returns all slots. The table may grow during the iteration.
    pub(crate) fn slots(&self) -> impl Iterator<Item = PgSlot> + use<> {
        (0..self.pgs.len()).map(PgSlot)
    }

    /// Adds a PG. `facts`: what the store records about the PG. `record`: its record, if the PG has been
    /// active here. `scrubs`: its note on scrubs.
    pub(crate) fn add(
        &mut self,
        id: PgId,
        rules: &Pool,
        facts: PgFacts,
        record: Option<Record>,
        scrubs: ScrubNote,
    ) -> PgSlot {
        let slot = PgSlot(self.pgs.len());
        let before = self.slots.insert(id, slot);
        assert!(before.is_none());
        let mut pg = self.make(id, rules, facts, record);
        pg.know_scrubs(scrubs);
        self.pgs.push(pg);
        slot
    }

    /// Resets the PG in `slot` to a PG that this OSD has no record of. Requires: the PG is quiet.
    pub(crate) fn begin_anew(&mut self, slot: PgSlot, rules: &Pool, facts: PgFacts) {
        let pg = &self.pgs[slot.0];
        assert!(pg.is_quiet());
        self.pgs[slot.0] = self.make(pg.id(), rules, facts, None);
    }

    fn make(&self, id: PgId, rules: &Pool, facts: PgFacts, record: Option<Record>) -> Pg {
        let shape = Shape {
            pg: id,
            pg_count: rules.pg_count,
            block_size: rules.block_size,
            limits: self.limits,
            face: pg::face_of(rules.scheme),
            objects: shape_of_objects(rules),
        };
        let mut pg = Pg::new(shape, self.osd, facts, record, self.buffers.clone());
        let mut actions = Vec::new();
        pg.set_slow_disks(&self.slow_disks, &mut actions);
        assert!(actions.is_empty(), "no read waits yet");
        pg
    }

    /// Returns whether the monitor last reported this OSD's disk as slow.
    pub(crate) fn is_slow_here(&self) -> bool {
        self.slow_disks.slow.contains(&self.osd)
    }

    /// Sets the monitor's list of slow disks, for PGs that are created from now on.
    pub(crate) fn set_slow_disks(&mut self, disks: SlowDisks) {
        self.slow_disks = disks;
    }

    /// Calls into a PG. The caller must then carry out the PG's actions, see [`PgTable::take_actions`].
    pub(crate) fn call<R>(
        &mut self,
        slot: PgSlot,
        call: impl FnOnce(&mut Pg, &mut Vec<Action>) -> R,
    ) -> R {
        call(&mut self.pgs[slot.0], &mut self.actions)
    }

    /// Returns whether there are actions that have not been taken.
    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns the actions of the PG called last, in order. Give the list back to [`PgTable::give_back`].
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.actions, spare)
    }

    /// Keeps the memory of a list whose actions have been carried out, for reuse.
    pub(crate) fn give_back(&mut self, carried_out: Vec<Action>) {
        assert!(carried_out.is_empty());
        self.spare = carried_out;
    }

    /// Returns whether all PGs for which `is_meant` returns true are quiet: none serves or has anything under
    /// way.
    pub(crate) fn are_quiet(&self, is_meant: impl Fn(PgId) -> bool) -> bool {
        self.iter().filter(|(_, pg)| is_meant(pg.id())).all(|(_, pg)| pg.is_quiet())
    }

    /// Returns the PGs of one pool, ascending.
    pub(crate) fn of_pool(&self, pool: PoolId) -> impl Iterator<Item = PgId> + '_ {
        self.ids().filter(move |id| id.pool == pool)
    }
}

impl Index<PgSlot> for PgTable {
    type Output = Pg;

    fn index(&self, slot: PgSlot) -> &Pg {
        &self.pgs[slot.0]
    }
}

/// Returns the shape of a pool of objects; `None`: the pool has volumes.
fn shape_of_objects(rules: &Pool) -> Option<PoolShape> {
    match rules.kind {
        PoolKind::Block => None,
        PoolKind::Object { shards, names, .. } => {
            let sharding = Sharding { shard_count: shards, names };
            Some(PoolShape { pool: rules.id, sharding, block_size: rules.block_size })
        }
    }
}
