//! The effect of the map on this OSD's PGs: in which of them it has a part, what prevents it from taking
//! part, and how their learners are filled.
//!
//! Invariants
//!   1. A PG either is in the newest epoch in the map, or takes no part.
//!   2. A primary enters an epoch only when no earlier primary may serve under a grant of this OSD.

use base::planted::{self, Bug};
use base::{MapRevision, OsdId, PgId, PoolId, Time, TraceEvent};
use blockstore::{CommitMode, NoteKey, Request as StoreRequest, StoreError};
use cluster::map::{MapDelta, PoolKind};
use cluster::message::ToMonitor;
use format::engine::Compression;
use format::wire::{Member, PgEntry};
use pg::{Absence, Pg, Record, ScrubNote, Serving};

use super::{Node, Phase};
use crate::cluster_view::is_sound;
use crate::local_store::StoreCall;
use crate::pg_table::PgSlot;
use crate::{Effect, StopReason, lines};

impl Node {
    /// Handles a change to the map, or a whole map.
    pub(super) fn on_map(&mut self, now: Time, delta: MapDelta, effects: &mut Vec<Effect>) {
        let mut pools: Vec<PoolId> = delta.pools.iter().map(|change| change.pool.id).collect();
        pools.extend(&delta.removed_pools);
        for pool in &delta.removed_pools {
            self.leases.forget_pool(*pool);
            self.engine.forget_failure(*pool);
            self.sessions.takeovers.forget_pool(*pool);
            self.notes.forget_pool(*pool);
        }
        let before = self.entries_replaced(&delta);
        lines::trace_fences(&self.cluster, &self.sessions, &delta, effects);
        let applied = self.cluster.apply(delta);
        self.leave_stalled(&before, effects);
        self.revoke_replaced(&before);
        self.expect_blocks();
        self.notes.map_changed();
        self.tend_families(now);
        for pool in &pools {
            if let Some(known) = self.cluster.pool(*pool) {
                self.sessions.takeovers.on_map(*pool, known.revision);
            }
            self.review_pool(now, *pool, effects);
        }
        self.judge_queued(now, effects);
        for slot in self.pgs.slots() {
            if self.pgs[slot].keeps_parity() && pools.contains(&self.pgs[slot].id().pool) {
                self.drive(now, slot, effects, pg::Pg::tell_revision);
            }
        }
        self.update_connections(now, effects);
        let may_serve =
            |entry: &PgEntry| self.cluster.leads(entry) || self.cluster.reads_directly(entry);
        if before.iter().any(may_serve) {
            // Then OSDs that gave a lease for an earlier epoch need not wait until that lease expires.
            self.renew_all(now, effects);
        }
        self.release(now, effects);
        self.requests.review();
        if let Err(gap) = applied
            && self.cluster.note_gap(&gap)
        {
            self.subscribe(effects);
        }
    }

    /// Returns the current entries that a delta replaces by newer epochs, of PGs in which this OSD has a
    /// part.
    fn entries_replaced(&self, delta: &MapDelta) -> Vec<PgEntry> {
        let entries = delta.pools.iter().flat_map(|change| &change.pgs);
        let before = entries.filter_map(|entry| {
            let known = self.cluster.pg(entry.pg)?;
            let is_ours = known.epoch < entry.epoch && self.cluster.has_part(known);
            is_ours.then(|| known.clone())
        });
        before.collect()
    }

    /// Handles a hung disk: if a PG continues without this OSD, the store must be reopened.
    fn leave_stalled(&mut self, before: &[PgEntry], effects: &mut Vec<Effect>) {
        let has_part = |entry: &PgEntry| self.cluster.has_part(entry);
        let has_left = |entry: &PgEntry| !self.cluster.pg(entry.pg).is_some_and(has_part);
        if before.iter().any(has_left) && self.disk_watch.on_pg_left() {
            self.stop(StopReason::Stalled, effects);
        }
    }

    /// Revokes the leases of those who served under these entries, which newer entries have replaced.
    fn revoke_replaced(&mut self, before: &[PgEntry]) {
        for entry in before {
            let newest = self.cluster.pg(entry.pg).filter(|newest| newest.epoch > entry.epoch);
            let Some(newest) = newest else { continue };
            for holder in self.cluster.lease_holders(entry) {
                self.leases.revoke_from(holder, newest);
            }
        }
        for osd in self.cluster.osds() {
            let newest = Member { osd: osd.id, incarnation: osd.incarnation };
            self.leases.on_newer_run(newest);
            self.space_credits.on_newer_run(newest);
        }
    }

    /// Requests the map from the monitor; pools with a gap are sent from the start.
    pub(super) fn subscribe(&mut self, effects: &mut Vec<Effect>) {
        let have = self.cluster.known_for_subscription();
        self.tell_monitor(&ToMonitor::Subscribe { have }, effects);
    }

    /// Reports the applied revisions to the monitor, once no request of a fenced session is running.
    pub(super) fn send_saw(&mut self, effects: &mut Vec<Effect>) {
        if !self.cluster.is_saw_due()
            || self.link.serving().is_none()
            || self.fenced_session_is_served()
        {
            return;
        }
        let revisions = self.cluster.take_saw();
        self.tell_monitor(&ToMonitor::OsdSaw { revisions }, effects);
    }

    /// Reviews all PGs against the map.
    pub(super) fn review_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let pools: Vec<PoolId> = self.cluster.pools().map(|(id, _)| id).collect();
        for pool in pools {
            self.review_pool(now, pool, effects);
        }
    }

    fn review_pool(&mut self, now: Time, pool: PoolId, effects: &mut Vec<Effect>) {
        let mut pgs: Vec<PgId> = self.pgs.of_pool(pool).collect();
        if let Some(known) = self.cluster.pool(pool) {
            let ours = known.pgs.iter().filter(|entry| self.cluster.has_part(entry));
            let new = ours.map(|entry| entry.pg).filter(|pg| self.pgs.slot(*pg).is_none());
            pgs.extend(new.filter(|pg| is_sound(*pg, known)));
        }
        for pg in pgs {
            self.review(now, pg, effects);
        }
    }

    /// Reviews one PG against the map: enters the epoch of its entry, or halts the PG with the reason.
    pub(super) fn review(&mut self, now: Time, id: PgId, effects: &mut Vec<Effect>) {
        self.peers.stop_waiting(id);
        let entry = self.cluster.pg(id).filter(|entry| self.cluster.has_part(entry));
        let Some(entry) = entry.cloned() else {
            if let Some(slot) = self.pgs.slot(id) {
                self.halt(now, slot, "this OSD is not a member of the PG".into(), effects);
            }
            return;
        };
        let slot = self.slot_of(id, &entry);
        if self.pgs[slot].entry().is_some_and(|entered| entered.epoch == entry.epoch) {
            return;
        }
        let obstacle = self.obstacle(&self.pgs[slot], &entry);
        let leads = self.cluster.leads(&entry);
        let loss = self.loss(&entry).filter(|_| obstacle.is_none());
        // What was lost was so when this run began, so what was given up since it was told is that.
        let told = loss.as_ref().map(|_| *self.losses.entry(id).or_insert(entry.epoch));
        if told.is_some_and(|epoch| entry.given_up > epoch) {
            // Absolved, it is reviewed again.
            self.halt(now, slot, format!("giving up what {} lost", self.identity.osd), effects);
            return self.drive(now, slot, effects, |pg, actions| pg.absolve(actions));
        }
        let obstacle = obstacle.or(loss);
        if let Some(why) = obstacle.as_ref().filter(|_| leads && self.is_suspect(id)) {
            self.lines.trace_suspect(id, why, effects);
        }
        if let Some(why) = obstacle.or_else(|| self.wait_for_grants(now, &entry)) {
            return self.halt(now, slot, why, effects);
        }
        assert!(self.pgs[slot].epoch_floor() < entry.epoch);
        let is_connected = |member: &&Member| self.peer_connections.to_follower(**member).is_some();
        let ready: Vec<OsdId> = match leads {
            true => entry.members().filter(is_connected).map(|member| member.osd).collect(),
            false => Vec::new(),
        };
        let scheme = self.cluster.map().pools[&id.pool].pool.scheme;
        lines::trace_enters(&self.cluster, &entry, effects);
        let first_lost = self.store.first_lost(id);
        self.drive(now, slot, effects, |pg, actions| pg.enter(entry, scheme, first_lost, actions));
        for osd in ready {
            self.drive(now, slot, effects, |pg, actions| pg.peer_ready(osd, actions));
        }
    }

    fn halt(&mut self, now: Time, slot: PgSlot, why: String, effects: &mut Vec<Effect>) {
        lines::trace_halt(&self.pgs[slot], &why, effects);
        self.drive(now, slot, effects, |pg, actions| pg.halt(why, actions));
    }

    /// Halts all PGs that this OSD leads, because the process ends.
    pub(super) fn leave_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for slot in self.pgs.slots() {
            let is_led = self.pgs[slot].entry().is_some_and(|entry| self.cluster.leads(entry));
            if is_led {
                self.halt(now, slot, "this OSD is being stopped".into(), effects);
            }
        }
    }

    /// Returns why a primary must wait, if an earlier one may still serve under a grant of this OSD.
    fn wait_for_grants(&mut self, now: Time, entry: &PgEntry) -> Option<String> {
        if !self.cluster.leads(entry) || planted::on(Bug::LeaseNotWaitedOut) {
            return None;
        }
        let until = self.leases.is_revoked_until(now, entry)?;
        self.peers.wait_for_grants(entry.pg, until);
        Some("waiting for the lease of the previous primary to expire".into())
    }

    /// Returns what prevents this OSD from taking part in an entry's epoch, as text for operators.
    fn obstacle(&self, pg: &Pg, entry: &PgEntry) -> Option<String> {
        let id = entry.pg;
        let osd = self.identity.osd;
        let Some(me) = self.cluster.me() else {
            return Some("this OSD has not joined yet".into());
        };
        if self.reclaim.is_removing(id) {
            return Some("waiting for the PG's old data to be removed".into());
        }
        let has_objects = self.cluster.pool(id.pool).is_some_and(|known| known.pool.has_objects());
        if let Some(why) = has_objects.then(|| self.engine.obstacle(id.pool, &self.store)).flatten()
        {
            return Some(why);
        }
        if entry.epoch < pg.epoch_floor() {
            return Some(older(format!(
                "the map has epoch {} of {id}, but {osd} has already served epoch {}",
                entry.epoch,
                pg.epoch_floor()
            )));
        }
        let known = self.cluster.pool(id.pool).map_or(MapRevision::ZERO, |known| known.revision);
        let noted = self.notes.revision(id.pool);
        if known < noted {
            return Some(older(format!(
                "the map of pool {} has revision {known}, but {osd} has already seen {noted}",
                id.pool
            )));
        }
        let is_newest = entry.members().any(|member| *member == me);
        if !is_newest || entry.epoch == pg.epoch_floor() {
            return Some(format!("waiting for an epoch that includes the newest run of {osd}"));
        }
        if entry.primary.is_none() {
            return Some("waiting for a member that may lead the PG; none is up".into());
        }
        if entry.check().is_err() {
            return Some("the PG's entry is invalid: see `ashlar pg describe`".into());
        }
        None
    }

    /// Returns what this OSD, as primary, may have lost, as text for operators.
    fn loss(&self, entry: &PgEntry) -> Option<String> {
        let (id, osd) = (entry.pg, self.identity.osd);
        if self.cluster.leads(entry) && self.is_suspect(id) {
            let what = match entry.acting_count() {
                1 => "there is no other copy",
                _ => "no other member can lead the PG yet",
            };
            let damage = match self.notes.damage_of(id) {
                Some(why) => {
                    format!("the note of {id} in the store of {osd} cannot be read ({why})")
                }
                None => format!(
                    "recovery of {osd} found damage that may have lost acknowledged writes of {id}"
                ),
            };
            return Some(format!(
                "{damage}, and {what}; `ashlar pg give-up {id}` shows what would be lost"
            ));
        }
        None
    }

    /// Sees to it that the engine has a family for each pool of objects that has a PG here. Called with each
    /// map, and once per report interval.
    pub(super) fn tend_families(&mut self, now: Time) {
        if self.phase != Phase::Running {
            return;
        }
        let families = self.cluster.pools().filter_map(|(id, known)| match known.pool.kind {
            PoolKind::Object { compression, .. } => {
                let is_ours = known.pgs.iter().any(|entry| self.cluster.has_part(entry));
                is_ours.then_some((id, compression))
            }
            PoolKind::Block => None,
        });
        let families: Vec<(PoolId, Compression)> = families.collect();
        for (pool, compression) in families {
            if self.engine.begin_creation(pool, &self.store) {
                let request = StoreRequest::Family { pool, compression: Some(compression) };
                self.store.ask(now, StoreCall::Family(pool), request);
            }
        }
    }

    /// Handles the store's answer to the creation of a family: the pool's PGs may take part. A creation
    /// that failed is asked for again in the next report interval.
    pub(super) fn on_family_created(
        &mut self,
        now: Time,
        pool: PoolId,
        result: Result<(), StoreError>,
        effects: &mut Vec<Effect>,
    ) {
        if let Err(error) = &result {
            let what = "the engine has no place for the records of a pool yet";
            let event = TraceEvent::warn(what).with("pool", pool);
            effects.push(Effect::Trace(event.with("why", format!("{error:?}"))));
        }
        let is_done = self.engine.on_created(pool, result);
        if is_done && self.phase == Phase::Running {
            self.review_pool(now, pool, effects);
            self.release(now, effects);
        }
    }

    /// Returns whether PGs of this pool of objects take part as soon as the engine has the pool's family.
    pub(super) fn awaits_family(&self, pool: PoolId) -> bool {
        let has_objects = self.cluster.pool(pool).is_some_and(|known| known.pool.has_objects());
        has_objects && self.engine.awaits_family(pool, &self.store)
    }

    fn slot_of(&mut self, id: PgId, entry: &PgEntry) -> PgSlot {
        if let Some(slot) = self.pgs.slot(id) {
            return slot;
        }
        // A note that is being removed is ignored.
        let note = self.store.note(NoteKey::Pg(id)).filter(|_| !self.reclaim.is_removing(id));
        let record = note.and_then(|note| Record::decode(note).ok());
        let scrubs = self.store.note(NoteKey::Scrub(id)).filter(|_| record.is_some());
        // If the scrub note is missing or cannot be read, all scrubs are due: they find again what the note
        // listed.
        let scrubs = scrubs.and_then(|note| ScrubNote::decode(id, note).ok()).unwrap_or_default();
        let mut facts = self.store.facts(id);
        // A lease that an earlier run of this OSD gave to the primary of an earlier epoch, or to another
        // member that answered direct reads, may still be valid.
        if self.notes.damage_of(id).is_some() {
            facts.is_suspect = true;
            self.revoke_from_everybody(entry);
        } else if let Some(record) = record.as_ref().filter(|it| it.entry.epoch < entry.epoch) {
            self.revoke_from_earlier_run(&record.entry, entry);
        }
        let rules = &self.cluster.map().pools[&id.pool].pool;
        self.pgs.add(id, rules, facts, record, scrubs)
    }

    fn revoke_from_earlier_run(&mut self, before: &PgEntry, newest: &PgEntry) {
        for holder in self.cluster.lease_holders(before) {
            self.leases.revoke_from(holder, newest);
            if let Some(known) = self.cluster.osd(holder.osd) {
                let newest = Member { osd: known.id, incarnation: known.incarnation };
                self.leases.on_newer_run(newest);
            }
        }
    }

    /// Revokes the PG from every other OSD, because it is unknown which of them led the PG while an earlier
    /// run of this OSD had a part in it.
    fn revoke_from_everybody(&mut self, newest: &PgEntry) {
        for osd in self.cluster.osds().filter(|osd| osd.id != self.identity.osd) {
            let member = Member { osd: osd.id, incarnation: osd.incarnation };
            self.leases.revoke_from(member, newest);
        }
    }

    /// Returns whether this OSD's data of the PG may lack acknowledged writes and this has not been resolved
    /// yet.
    pub(super) fn is_suspect(&self, id: PgId) -> bool {
        self.pgs.get(id).is_some_and(Pg::is_suspect) || self.store.is_suspect(id)
    }

    /// Checks waiting PGs against the map again, and retries what could not be journaled. Called once per
    /// report interval.
    pub(super) fn tend_pgs(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for slot in self.pgs.slots() {
            let id = self.pgs[slot].id();
            if self.pgs[slot].entry().is_none() {
                self.review(now, id, effects);
            }
            let has_part = |entry: &PgEntry| self.cluster.has_part(entry);
            if !self.cluster.pg(id).is_some_and(has_part) {
                self.pgs.call(slot, |pg, _| pg.forget_lost());
            }
            if let Some(over) = self.cluster.over(id.pool) {
                self.pgs.call(slot, |pg, _| pg.note_over(over));
            }
            self.drive(now, slot, effects, |pg, actions| pg.raise_floor(actions));
            self.fill_meanwhile(now, slot, effects);
            self.drive(now, slot, effects, |pg, actions| pg.drop_stuck_learners(actions));
        }
        let pgs = &self.pgs;
        self.notes.keep_damage(|id| pgs.get(id).is_none_or(Pg::is_suspect));
    }

    /// Fills learners while a PG has lost so many members that the monitor cannot create an entry without
    /// those members.
    fn fill_meanwhile(&mut self, now: Time, slot: PgSlot, effects: &mut Vec<Effect>) {
        let Node { cluster, store, pgs, .. } = self;
        let absence = |member: Member| match cluster.osd(member.osd) {
            Some(known) if known.up && known.incarnation == member.incarnation => Absence::Awaited,
            Some(known) if known.up || known.in_cluster => Absence::Down,
            Some(_) | None => Absence::Gone,
        };
        let is_immediate = store.commit_mode() == CommitMode::Immediate;
        pgs.call(slot, |pg, actions| pg.fill_meanwhile(absence, is_immediate, actions));
        if matches!(self.pgs[slot].serving(), Serving::Filling) {
            self.budget.begin(now);
        }
        self.carry_out(now, slot, effects);
    }

    /// Begins a turn of backfill: divides the repairs among the PGs that fill learners.
    pub(super) fn share_repairs(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (slot, share) in self.budget.begin_turn(now, &self.pgs, &self.cluster) {
            self.drive(now, slot, effects, |pg, actions| pg.fill(share, actions));
        }
    }
}

fn older(what: String) -> String {
    format!(
        "{what}: the state store was set back to an older state; run `ashlar state recover` to \
         bring it up to date with the OSDs, or stop the monitor and restore the newest copy of its \
         state file"
    )
}
