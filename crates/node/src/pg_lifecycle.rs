//! What the map means for this OSD: in which PGs it has a part, what keeps it from that, and what
//! it reports of them.

use std::collections::BTreeMap;

use base::hash::PG_COUNT_MAX;
use base::planted::{self, Bug};
use base::{MapRevision, OsdId, PgId, PoolId, Time};
use blockstore::{CommitMode, NoteKey};
use cluster::map::{MapDelta, PoolMap};
use cluster::message::{FillingProgress, OsdReport, ToMonitor};
use format::wire::{Member, PgEntry};
use pg::{Absence, Pg, Record, Serving, Shape};

use crate::Effect;
use crate::node::Node;

impl Node {
    /// A change of the map, or a snapshot.
    pub(crate) fn map_came(&mut self, now: Time, delta: MapDelta, effects: &mut Vec<Effect>) {
        let mut pools: Vec<PoolId> = delta.pools.iter().map(|change| change.pool.id).collect();
        pools.extend(&delta.removed_pools);
        for pool in &delta.removed_pools {
            self.leases.forget_pool(*pool);
            self.session_takeovers.forget_pool(*pool);
            self.pools_noted.remove(pool);
        }
        let before = self.entries_replaced(&delta);
        self.trace_fences(&delta, effects);
        let applied = self.map.apply(delta);
        self.see_what_left(&before, effects);
        for entry in &before {
            let newest = self.map.pg(entry.pg).filter(|newest| newest.epoch > entry.epoch);
            if let Some(newest) = newest.filter(|_| entry.primary_osd() != Some(self.identity.osd))
            {
                self.leases.revoke(entry, newest);
            }
        }
        for osd in self.map.osds.values() {
            let newest = Member { osd: osd.id, incarnation: osd.incarnation };
            self.leases.is_in_run(newest);
            self.space_credits.is_in_run(newest);
        }
        self.expect_blocks();
        self.note_is_old = true;
        self.saw_is_due = true;
        for pool in pools {
            if let Some(known) = self.map.pools.get(&pool) {
                self.session_takeovers.map_came(pool, known.revision);
            }
            self.review_pool(now, pool, effects);
        }
        self.judge_queued(now, effects);
        self.update_mesh(now, effects);
        if before.iter().any(|entry| self.leads(entry)) {
            // Who gave a lease for an epoch before need not wait until it has run out.
            self.renew_all(now, effects);
        }
        self.release(now, effects);
        self.recheck = true;
        if let Err(gap) = applied {
            self.map_gaps.insert(gap.pool);
            if !std::mem::replace(&mut self.gap_was_told, true) {
                self.subscribe(effects);
            }
        }
    }

    /// Entries that a delta replaces by others, of PGs in which this OSD had a part.
    fn entries_replaced(&self, delta: &MapDelta) -> Vec<PgEntry> {
        let entries = delta.pools.iter().flat_map(|change| &change.pgs);
        let before = entries.filter_map(|entry| {
            let known = self.map.pg(entry.pg)?;
            (known.epoch < entry.epoch && self.has_part(known)).then(|| known.clone())
        });
        before.collect()
    }

    /// Whether this OSD is an acting member or a learner.
    pub(crate) fn has_part(&self, entry: &PgEntry) -> bool {
        entry.members().any(|member| member.osd == self.identity.osd)
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

    /// The revision of a pool that this OSD had seen before this run.
    pub(crate) fn revision_noted(&self, pool: PoolId) -> MapRevision {
        self.pools_noted.get(&pool).map_or(MapRevision::ZERO, |noted| noted.revision)
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
            let ours = known.pgs.iter().filter(|entry| self.has_part(entry));
            let new = ours.map(|entry| entry.pg).filter(|pg| !self.pg_slots.contains_key(pg));
            pgs.extend(new.filter(|pg| is_sound(*pg, known)));
        }
        for pg in pgs {
            self.review(now, pg, effects);
        }
    }

    /// Compares one PG with the map: takes its part in its entry, or says why not.
    pub(crate) fn review(&mut self, now: Time, id: PgId, effects: &mut Vec<Effect>) {
        self.peers.waiting.remove(&id);
        let Some(entry) = self.map.pg(id).filter(|entry| self.has_part(entry)).cloned() else {
            if let Some(slot) = self.pg_slots.get(&id).copied() {
                self.halt(now, slot, "this OSD has no part in it".into(), effects);
            }
            return;
        };
        let slot = self.slot_of(id, &entry);
        if self.pgs[slot].entry().is_some_and(|entered| entered.epoch == entry.epoch) {
            return;
        }
        let obstacle = self.obstacle(&self.pgs[slot], &entry);
        if let Some(why) = obstacle.as_ref().filter(|_| self.leads(&entry)) {
            self.trace_suspect(id, why, effects);
        }
        if let Some(why) = obstacle.or_else(|| self.wait_for_grants(now, &entry)) {
            return self.halt(now, slot, why, effects);
        }
        let ready: Vec<OsdId> = match self.leads(&entry) {
            true => entry
                .members()
                .filter(|member| self.peer_connections.to_follower(**member).is_some())
                .map(|member| member.osd)
                .collect(),
            false => Vec::new(),
        };
        let copies = self.map.pools[&id.pool].pool.replicas;
        self.trace_enters(&entry, effects);
        self.pgs[slot].enter(entry, copies, &mut self.actions);
        self.carry_out(now, slot, effects);
        for osd in ready {
            self.pgs[slot].peer_ready(osd, &mut self.actions);
            self.carry_out(now, slot, effects);
        }
    }

    fn halt(&mut self, now: Time, slot: usize, why: String, effects: &mut Vec<Effect>) {
        self.trace_halt(slot, &why, effects);
        self.pgs[slot].halt(why, &mut self.actions);
        self.carry_out(now, slot, effects);
    }

    /// The process ends: it leads nothing any more.
    pub(crate) fn leave_all(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for slot in 0..self.pgs.len() {
            let is_led = self.pgs[slot].entry().is_some_and(|entry| self.leads(entry));
            if is_led {
                self.halt(now, slot, "this OSD is being stopped".into(), effects);
            }
        }
    }

    /// A primary begins when no earlier one may serve by a grant of this OSD.
    fn wait_for_grants(&mut self, now: Time, entry: &PgEntry) -> Option<String> {
        if !self.leads(entry) || planted::on(Bug::LeaseNotWaitedOut) {
            return None;
        }
        let until = self.leases.is_revoked_until(now, entry)?;
        self.peers.wait_until(until);
        self.peers.waiting.insert(entry.pg);
        Some("waits until the lease of its earlier primary has run out".into())
    }

    /// What keeps this OSD from its part in an entry; for people.
    fn obstacle(&self, pg: &Pg, entry: &PgEntry) -> Option<String> {
        let id = entry.pg;
        let osd = self.identity.osd;
        let Some(incarnation) = self.incarnation else {
            return Some("this OSD has not joined yet".into());
        };
        if self.is_being_cleared(id) {
            return Some("waits until its old data is removed".into());
        }
        if entry.epoch < pg.epoch_floor() {
            return Some(older(format!(
                "the map names epoch {} of {id}, but {osd} has already served epoch {}",
                entry.epoch,
                pg.epoch_floor()
            )));
        }
        let known = self.map.pools.get(&id.pool).map_or(MapRevision::ZERO, |known| known.revision);
        let noted = self.revision_noted(id.pool);
        if known < noted {
            return Some(older(format!(
                "the map of pool {} has revision {known}, but {osd} has already seen {noted}",
                id.pool
            )));
        }
        let me = Member { osd, incarnation };
        let is_newest = entry.members().any(|member| *member == me);
        if !is_newest || entry.epoch == pg.epoch_floor() {
            return Some(format!("waits for an epoch in which {osd} is in its newest run"));
        }
        if entry.primary.is_none() {
            return Some("waits for a member that may lead it: none is up".into());
        }
        if entry.check().is_err() {
            return Some("its entry breaks the rules of entries: see `ashlar pg describe`".into());
        }
        if self.leads(entry) && self.is_suspect(id) {
            let what = match entry.acting_count() {
                1 => "there is no other copy",
                _ => "no other member can lead it yet",
            };
            let damage = match self.damaged_notes.get(&id) {
                Some(why) => {
                    format!("the note of {id} in the store of {osd} cannot be read ({why})")
                }
                None => format!(
                    "recovery of {osd} found damage that may have cost acknowledged writes of {id}"
                ),
            };
            return Some(format!(
                "{damage}, and {what}; `ashlar pg give-up {id}` says what that means"
            ));
        }
        None
    }

    fn slot_of(&mut self, id: PgId, entry: &PgEntry) -> usize {
        if let Some(slot) = self.pg_slots.get(&id) {
            return *slot;
        }
        // A note that is being removed counts no more.
        let note = self.store.note(NoteKey::Pg(id)).filter(|_| !self.is_being_cleared(id));
        let record = note.and_then(|note| Record::decode(note).ok());
        let mut facts = self.store.facts(id);
        // What an earlier run of this OSD gave to the primary of an earlier epoch may be valid still.
        if self.damaged_notes.contains_key(&id) {
            facts.is_suspect = true;
            self.revoke_from_everybody(entry);
        } else if let Some(record) = record.as_ref().filter(|it| it.entry.epoch < entry.epoch) {
            self.revoke_from_earlier_run(&record.entry.clone(), entry);
        }
        let shape = self.shape_of(id);
        let slot = self.pgs.len();
        let osd = self.identity.osd;
        self.pgs.push(Pg::new(shape, osd, facts, record, self.buffers.clone()));
        self.pg_slots.insert(id, slot);
        slot
    }

    /// Requires: the map has its pool.
    pub(crate) fn shape_of(&self, pg: PgId) -> Shape {
        let rules = &self.map.pools[&pg.pool].pool;
        let limits = self.settings.pg_limits;
        Shape {
            pg,
            pg_count: rules.pg_count,
            block_size: rules.block_size,
            limits,
            face: &pg::Copies,
        }
    }

    fn revoke_from_earlier_run(&mut self, before: &PgEntry, newest: &PgEntry) {
        if before.primary_osd() == Some(self.identity.osd) {
            return;
        }
        self.leases.revoke(before, newest);
        let primary = before.primary_osd().and_then(|osd| self.map.osds.get(&osd));
        if let Some(primary) = primary {
            self.leases.is_in_run(Member { osd: primary.id, incarnation: primary.incarnation });
        }
    }

    /// Nobody knows who led the PG when an earlier run of this OSD had a part in it.
    fn revoke_from_everybody(&mut self, newest: &PgEntry) {
        for osd in self.map.osds.values().filter(|osd| osd.id != self.identity.osd) {
            let member = Member { osd: osd.id, incarnation: osd.incarnation };
            self.leases.revoke_from(member, newest);
        }
    }

    /// Notes of PGs that cannot be read: what is here of those PGs is as suspect as what recovery lost.
    pub(crate) fn find_damaged_notes(&mut self) {
        for (key, note) in self.store.notes() {
            if let (NoteKey::Pg(id), Err(why)) = (key, Record::decode(note)) {
                self.damaged_notes.insert(id, why);
            }
        }
    }

    /// Whether what is here of the PG may lack acknowledged writes, and nobody has settled that.
    pub(crate) fn is_suspect(&self, id: PgId) -> bool {
        let here = self.pg_slots.get(&id).is_some_and(|slot| self.pgs[*slot].is_suspect());
        here || self.store.is_suspect(id)
    }

    /// What keeps the PG in `slot` from its part; for people.
    pub(crate) fn why_idle(&self, slot: usize) -> String {
        match self.pgs[slot].serving() {
            Serving::Idle { why } | Serving::Ended { why } => why.clone(),
            _ => "it is about to take its part".into(),
        }
    }

    /// The operator gives up what the store lost of a PG: it is served with what is left.
    pub(crate) fn give_up(&mut self, now: Time, id: PgId, effects: &mut Vec<Effect>) {
        let Some(slot) = self.pg_slots.get(&id).copied() else { return };
        if self.is_suspect(id) {
            self.pgs[slot].absolve(&mut self.actions);
            self.carry_out(now, slot, effects);
        } else {
            self.review(now, id, effects);
        }
    }

    /// Once in a while: reports, lets floors follow, tries again what could not be journaled.
    pub(crate) fn housekeep(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for slot in 0..self.pgs.len() {
            if self.pgs[slot].entry().is_none() {
                self.review(now, self.pgs[slot].id(), effects);
            }
            let has_part = |entry: &PgEntry| self.has_part(entry);
            if !self.map.pg(self.pgs[slot].id()).is_some_and(has_part) {
                self.pgs[slot].forget_lost();
            }
            self.pgs[slot].raise_floor(&mut self.actions);
            self.fill_meanwhile(now, slot, effects);
            self.pgs[slot].drop_stuck_learners(&mut self.actions);
            self.carry_out(now, slot, effects);
        }
        let is_open = |id: &PgId| match self.pg_slots.get(id) {
            Some(slot) => self.pgs[*slot].is_suspect(),
            None => true,
        };
        self.damaged_notes.retain(|id, _| is_open(id));
        self.trace_states(now, effects);
        self.go_on_clearing(now, effects);
        self.sessions.forget_silent(now, self.settings.sessions_max);
        self.keep_old_note(now);
        self.gap_was_told = false;
        if self.link.joined().is_some() {
            let report = ToMonitor::OsdReport(self.report());
            self.tell_monitor(&report, effects);
            self.tell_needs_again(effects);
            if !self.map_gaps.is_empty() {
                self.subscribe(effects);
            }
        }
    }

    /// While members of a PG are lost, and too many for the monitor to make an entry without them:
    /// learners are filled meanwhile.
    fn fill_meanwhile(&mut self, now: Time, slot: usize, effects: &mut Vec<Effect>) {
        let osds = &self.map.osds;
        let absence = |member: Member| match osds.get(&member.osd) {
            Some(known) if known.up && known.incarnation == member.incarnation => Absence::Awaited,
            Some(known) if known.up || known.in_cluster => Absence::Down,
            Some(_) | None => Absence::Gone,
        };
        let is_immediate = self.store.commit_mode() == CommitMode::Immediate;
        self.pgs[slot].fill_meanwhile(absence, is_immediate, &mut self.actions);
        if matches!(self.pgs[slot].serving(), Serving::Filling) {
            self.budget.begin(now);
        }
        self.carry_out(now, slot, effects);
    }

    fn report(&self) -> OsdReport {
        let space = self.store.space();
        let mut report = OsdReport {
            revisions: self.map_revisions(),
            size_bytes: space.size_bytes,
            used_bytes: space.used_bytes,
            free_bytes: space.free_bytes,
            full: space.full,
            commit: self.store.commit_mode().to_string(),
            buffered: self.settings.buffered,
            damaged_units: self.store.damaged_units_count(),
            stalled: self.disk_watch.is_stalled(),
            oldest_operation_ms: self.store.oldest_operation().as_millis(),
            ..OsdReport::default()
        };
        for (slot, pg) in self.pgs.iter().enumerate() {
            let id = pg.id();
            let Some(entry) = self.map.pg(id) else { continue };
            // What is left of a removed pool is nobody's.
            report.suspect |= pg.is_suspect() || self.store.is_suspect(id);
            if entry.primary_osd() != Some(self.identity.osd) {
                continue;
            }
            match self.waits_for(slot) {
                None => report.active.push(id),
                Some(why) if is_stuck(pg.serving()) => report.incomplete.push((id, why)),
                Some(why) => report.peering.push((id, why)),
            }
            let filling = pg.filling().map(|(osd, done_bytes, left_bytes)| FillingProgress {
                pg: id,
                osd,
                done_bytes,
                left_bytes,
            });
            report.filling.extend(filling);
        }
        report
    }

    /// What a PG that this OSD leads waits for, for people; `None`: it serves.
    pub(crate) fn waits_for(&self, slot: usize) -> Option<String> {
        let pg = &self.pgs[slot];
        let what = match pg.serving() {
            Serving::Active => return None,
            Serving::Idle { why } | Serving::Ended { why } => why.clone(),
            Serving::Draining => "what was begun before is ending".into(),
            Serving::Asking | Serving::Filling => {
                let names = pg.waits_for().into_iter().map(|osd| self.absence_of(slot, osd));
                let learners = pg.filling().map(|(osd, ..)| format!("{osd} is filled meanwhile"));
                names.chain(learners).collect::<Vec<String>>().join(", ")
            }
            Serving::Comparing => "its members are brought to the same blocks".into(),
            Serving::Journaling => "its members write their records".into(),
            Serving::Following => "it takes its part".into(),
        };
        Some(what)
    }

    /// Why a member that a PG waits for has not answered, for people.
    fn absence_of(&self, slot: usize, osd: OsdId) -> String {
        let member = self.pgs[slot]
            .entry()
            .and_then(|entry| entry.members().find(|member| member.osd == osd).copied());
        let is_connected =
            member.is_some_and(|member| self.peer_connections.to_follower(member).is_some());
        match self.map.osds.get(&osd) {
            _ if is_connected => format!("{osd} has not answered yet"),
            Some(known) if known.up => format!("{osd} cannot be reached"),
            _ => format!("{osd} is down"),
        }
    }
}

/// Whether a PG that is not served stays so until something else happens than its members' agreeing.
fn is_stuck(serving: &Serving) -> bool {
    matches!(serving, Serving::Idle { .. } | Serving::Filling)
}

/// Whether an entry names a PG that its pool can have: the map is text from another process.
pub(crate) fn is_sound(pg: PgId, known: &PoolMap) -> bool {
    let count = known.pool.pg_count;
    let is_count_sound = count.is_power_of_two() && count <= PG_COUNT_MAX;
    is_count_sound && pg.pool == known.pool.id && pg.number < count
}

fn older(what: String) -> String {
    format!(
        "{what}: the state store went back in time; `ashlar state recover` brings it up to what OSDs \
         know, or stop the monitor and put the newest copy of its state file back"
    )
}
