//! What the map means for this OSD: which PGs it leads, and what keeps it from serving them.

use std::collections::BTreeMap;

use base::hash::PG_COUNT_MAX;
use base::{Epoch, MapRevision, PgId, PoolId, Time};
use blockstore::NoteKey;
use cluster::map::{MapDelta, PoolMap};
use cluster::message::{OsdReport, ToMonitor};
use format::wire::{Member, PgEntry};
use pg::{Pg, Record, Serving, Shape};

use crate::Effect;
use crate::node::Node;
use crate::notes::ClusterNote;

impl Node {
    /// A change of the map, or a snapshot.
    pub(crate) fn map_came(&mut self, now: Time, delta: MapDelta, effects: &mut Vec<Effect>) {
        let mut pools: Vec<PoolId> = delta.pools.iter().map(|change| change.pool.id).collect();
        pools.extend(&delta.removed_pools);
        let applied = self.map.apply(delta);
        self.note_is_old = true;
        self.saw_is_due = true;
        for pool in pools {
            self.review_pool(now, pool, effects);
        }
        self.judge_queued(now, effects);
        self.recheck = true;
        if let Err(gap) = applied {
            self.map_gaps.insert(gap.pool);
            if !std::mem::replace(&mut self.gap_was_told, true) {
                self.subscribe(effects);
            }
        }
    }

    /// Asks for the map; of pools with a gap as if nothing of them were known.
    pub(crate) fn subscribe(&mut self, effects: &mut Vec<Effect>) {
        let mut have = self.map_revisions();
        have.retain(|pool, _| !self.map_gaps.contains(pool));
        self.map_gaps.clear();
        self.tell_monitor(&ToMonitor::Subscribe { have }, effects);
    }

    /// Tells which revisions are applied, once nothing of a fenced session is under way.
    pub(crate) fn send_saw(&mut self, effects: &mut Vec<Effect>) {
        if !self.saw_is_due || self.link.joined().is_none() || self.fenced_session_is_served() {
            return;
        }
        self.saw_is_due = false;
        let revisions = self.map_revisions();
        self.tell_monitor(&ToMonitor::OsdSaw { revisions }, effects);
    }

    fn map_revisions(&self) -> BTreeMap<PoolId, MapRevision> {
        self.map.pools.iter().map(|(id, known)| (*id, known.revision)).collect()
    }

    /// Compares all PGs with the map: the OSD has got its incarnation.
    pub(crate) fn review_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let pools: Vec<PoolId> = self.map.pools.keys().copied().collect();
        for pool in pools {
            self.review_pool(now, pool, effects);
        }
    }

    fn review_pool(&mut self, now: Time, pool: PoolId, effects: &mut Vec<Effect>) {
        let mut pgs: Vec<PgId> =
            self.pg_slots.keys().filter(|pg| pg.pool == pool).copied().collect();
        if let Some(known) = self.map.pools.get(&pool) {
            let led = known.pgs.iter().filter(|entry| entry.primary == Some(self.identity.osd));
            let new = led.map(|entry| entry.pg).filter(|pg| !self.pg_slots.contains_key(pg));
            pgs.extend(new.filter(|pg| is_sound(*pg, known)));
        }
        for pg in pgs {
            self.review(now, pg, effects);
        }
    }

    /// Compares one PG with the map: begins to serve its entry, or says why not.
    pub(crate) fn review(&mut self, now: Time, id: PgId, effects: &mut Vec<Effect>) {
        let entry = self.map.pg(id).filter(|entry| entry.primary == Some(self.identity.osd));
        let Some(entry) = entry.cloned() else {
            if let Some(slot) = self.pg_slots.get(&id) {
                self.pgs[*slot].halt("another OSD leads it".into(), &mut self.actions);
            }
            return;
        };
        let slot = self.slot_of(id);
        if epoch_of(&self.pgs[slot]) == Some(entry.epoch) {
            return;
        }
        match self.obstacle(&self.pgs[slot], &entry) {
            Some(why) => self.pgs[slot].halt(why, &mut self.actions),
            None => self.pgs[slot].enter(entry, 1, &mut self.actions),
        }
        self.carry_out(now, slot, effects);
    }

    /// What keeps this OSD from serving an entry that names it as primary; for people.
    fn obstacle(&self, pg: &Pg, entry: &PgEntry) -> Option<String> {
        let id = entry.pg;
        let osd = self.identity.osd;
        let Some(incarnation) = self.incarnation else {
            return Some("this OSD has not joined yet".into());
        };
        if let Some(why) = self.damaged_notes.get(&id) {
            return Some(format!("its note in the store of {osd} cannot be read: {why}"));
        }
        if entry.epoch < pg.epoch_floor() {
            return Some(older(format!(
                "the map names epoch {} of {id}, but {osd} has already served epoch {}",
                entry.epoch,
                pg.epoch_floor()
            )));
        }
        let known = self.map.pools.get(&id.pool).map_or(MapRevision::ZERO, |known| known.revision);
        let noted = self.revisions_noted.get(&id.pool).copied().unwrap_or_default();
        if known < noted {
            return Some(older(format!(
                "the map of pool {} has revision {known}, but {osd} has already seen {noted}",
                id.pool
            )));
        }
        if entry.acting != [Member { osd, incarnation }] || entry.epoch == pg.epoch_floor() {
            return Some(format!("waits for an epoch in which {osd} is in its newest run"));
        }
        if self.store.is_suspect(id) {
            return Some(format!(
                "recovery of {osd} found damage that may have cost acknowledged writes of {id}, \
                 and there is no other copy; `ashlar pg give-up {id}` says what that means"
            ));
        }
        None
    }

    fn slot_of(&mut self, id: PgId) -> usize {
        if let Some(slot) = self.pg_slots.get(&id) {
            return *slot;
        }
        let rules = &self.map.pools[&id.pool].pool;
        let shape = Shape { pg: id, pg_count: rules.pg_count, block_size: rules.block_size };
        let record = self.store.note(NoteKey::Pg(id)).map(Record::decode).transpose();
        let record = record.unwrap_or_else(|why| {
            self.damaged_notes.insert(id, why);
            None
        });
        let last = self.store.last_version(id);
        let is_suspect = self.store.is_suspect(id);
        let floor = base::Version::ZERO;
        let facts = blockstore::PgFacts { last, held: last, hole: None, floor, is_suspect };
        let slot = self.pgs.len();
        self.pgs.push(Pg::new(shape, self.identity.osd, facts, record, self.buffers.clone()));
        self.pg_slots.insert(id, slot);
        slot
    }

    /// The operator gives up what the store lost of a PG: it is served with what is left.
    pub(crate) fn give_up(&mut self, now: Time, id: PgId, effects: &mut Vec<Effect>) {
        let Some(slot) = self.pg_slots.get(&id).copied() else { return };
        self.damaged_notes.remove(&id);
        if self.store.is_suspect(id) {
            self.pgs[slot].absolve(&mut self.actions);
            self.carry_out(now, slot, effects);
        } else {
            self.review(now, id, effects);
        }
    }

    /// Once in a while: reports, lets floors follow, tries again what could not be journaled.
    pub(crate) fn housekeep(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for slot in 0..self.pgs.len() {
            if matches!(self.pgs[slot].serving(), Serving::Idle { .. }) {
                self.review(now, self.pgs[slot].id(), effects);
            }
            self.pgs[slot].raise_floor(&mut self.actions);
            self.carry_out(now, slot, effects);
        }
        self.go_on_clearing(now, effects);
        self.sessions.forget_silent(now, self.settings.sessions_max);
        if self.note_is_old && !self.note_is_open && self.incarnation.is_some() {
            let note = ClusterNote::of(self.identity.cluster, &self.map);
            self.keep_cluster_note(now, note.encode());
        }
        self.gap_was_told = false;
        if self.link.joined().is_some() {
            let report = ToMonitor::OsdReport(self.report());
            self.tell_monitor(&report, effects);
            if !self.map_gaps.is_empty() {
                self.subscribe(effects);
            }
        }
    }

    fn report(&self) -> OsdReport {
        let space = self.store.space();
        let mut report = OsdReport {
            size_bytes: space.size_bytes,
            used_bytes: space.used_bytes,
            full: space.full,
            commit: self.store.commit_mode().to_string(),
            buffered: self.settings.buffered,
            damaged_units: self.store.damaged_units_count(),
            ..OsdReport::default()
        };
        for pg in &self.pgs {
            let id = pg.id();
            let is_led =
                self.map.pg(id).is_some_and(|entry| entry.primary == Some(self.identity.osd));
            // What is left of a removed pool is nobody's.
            report.suspect |= self.map.pg(id).is_some() && self.store.is_suspect(id);
            match pg.serving() {
                Serving::Active => report.active.push(id),
                Serving::Idle { why } if is_led => report.incomplete.push((id, why.clone())),
                _ => {}
            }
        }
        report
    }
}

/// Whether an entry names a PG that its pool can have: the map is text from another process.
fn is_sound(pg: PgId, known: &PoolMap) -> bool {
    let count = known.pool.pg_count;
    let is_count_sound = count.is_power_of_two() && count <= PG_COUNT_MAX;
    is_count_sound && pg.pool == known.pool.id && pg.number < count
}

/// The epoch that a PG serves or is about to serve.
fn epoch_of(pg: &Pg) -> Option<Epoch> {
    match pg.serving() {
        Serving::Idle { .. } => None,
        Serving::Draining { entry } | Serving::Journaling { entry } => Some(entry.epoch),
        Serving::Active => pg.record().map(|record| record.entry.epoch),
    }
}

fn older(what: String) -> String {
    format!(
        "{what}: the state store went back in time; stop the monitor and put the newest copy of its \
         state file back"
    )
}
