//! Writes at their primary, and the syncs that make lazy ones durable.
//!
//! ```text
//!   write ──▶ its turn ──▶ (what its block holds) ──▶ version, sent to all ──▶ acknowledged ──▶ reply
//! ```
//!
//! Invariants
//!   1. A write gets its version when it is sent to all members, and keeps it.
//!   2. A write is acknowledged when every member that must acknowledge it has it durably or, if the write is
//!      lazy, has it in its store.
//!   3. No version is assigned in an epoch that is not active.

use std::ops::Range;

use base::Version;
use base::planted::{self, Bug};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Change, Outcome, PeerBody, Refusal};

use super::ask::Asked;
use super::change::{ChangeHeader, data_size_bytes};
use super::copy::{Job, Purpose};
use super::face::{Changed, Gathering, Needs, Prepared};
use super::operation::{Follower, WriteFor, WriteKind};
use super::slots::WriteSlot;
use super::store_calls::Call;
use super::sync::{FlushFor, SyncWait};
use super::units::{has_unit, merge_bitmaps};
use super::write_queue::{Write, WriteStage};
use super::{Action, MemberSet, Need, Pg, Serving, Ticket, refusal_of};

impl Pg {
    /// Queues a write for its turn among the writes of its block.
    pub(crate) fn write(
        &mut self,
        issuer: WriteFor,
        key: BlockKey,
        kind: WriteKind,
        follower: Option<Follower>,
        actions: &mut Vec<Action>,
    ) {
        let units = self.shape.face.footprint(&kind, self.shape.block_size);
        assert!(!units.is_empty() || matches!(kind, WriteKind::Hold));
        self.queue.push(issuer, key, kind, units, follower);
        self.start_writes(key, actions);
    }

    /// Starts the writes of a block that need not wait any longer. Starts none if the epoch has ended.
    fn start_writes(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        while self.may_copy()
            && let Some(slot) =
                self.queue.startable(key, |write| self.needs(write) == Needs::Nothing)
        {
            self.advance_write(slot, actions);
        }
    }

    /// Returns what must be known before a queued write starts. A hold waits only for its turn.
    fn needs(&self, write: &Write) -> Needs {
        match write.issuer {
            WriteFor::Job(_) | WriteFor::Scrub => Needs::Turn,
            WriteFor::Client(_) | WriteFor::Deletion(_) | WriteFor::Layer { .. } => {
                self.shape.face.needs(&write.kind)
            }
        }
    }

    /// Moves a write to its next stage. Requires: what the present stage waits for has arrived.
    fn advance_write(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let write = &self.queue[slot];
        match write.stage {
            WriteStage::Queued => self.begin_write(slot, actions),
            WriteStage::Examine => self.replicate_as_named(slot, actions),
            WriteStage::Replicate { missing, version, durable, .. } => {
                let is_planted = planted::on(Bug::AckBeforeMembers);
                assert!(self.write_targets.is_acknowledged_without(missing) || is_planted);
                // A sync that began after the version was assigned may have ended meanwhile.
                let durable = durable || self.syncs.covers(version.counter);
                self.queue[slot].stage = WriteStage::Done { version, durable };
                let counts_as_durable = durable || planted::on(Bug::MarkCountsUnflushed);
                self.versions.acknowledge(version, counts_as_durable);
                if !counts_as_durable {
                    self.sync_when_many(actions);
                }
                self.advance_write(slot, actions);
            }
            WriteStage::Done { version, durable } => {
                self.end_write(slot, Ok(Outcome::Written { version, durable }), actions);
            }
        }
    }

    /// Begins a write that has its turn.
    fn begin_write(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let is_hold = matches!(self.queue[slot].issuer, WriteFor::Job(_) | WriteFor::Scrub);
        if self.stripes().is_some() && !is_hold {
            return self.begin_stripe_operation(slot, actions);
        }
        let needs = self.needs(&self.queue[slot]);
        if needs != Needs::Nothing {
            // The write must be the oldest one of its block: what it reads now is never taken back later.
            assert!(self.queue.is_first(slot));
            self.queue[slot].stage = WriteStage::Examine;
        }
        let Write { key, issuer, .. } = self.queue[slot];
        match (needs, issuer) {
            (Needs::Nothing, _) => self.replicate_as_named(slot, actions),
            (Needs::Turn, WriteFor::Job(job)) => self.on_hold(job, slot, actions),
            (Needs::Turn, WriteFor::Scrub) => self.on_scrub_turn(slot, actions),
            (Needs::Turn, _) => unreachable!("only jobs and scrubs hold a block"),
            (Needs::Extents, _) => {
                self.call(
                    Call::Examine(slot),
                    StoreRequest::Extents { key, as_of: AsOf::View },
                    actions,
                );
            }
            (Needs::Pieces, _) => {
                let job = Job::new(key, self.sources(true), Purpose::Operation { slot });
                self.begin_job(job, actions);
            }
        }
    }

    /// Continues an operation when the members have sent the parts of its key that it needs. No other
    /// operation on the key is in flight.
    pub(crate) fn on_pieces(
        &mut self,
        slot: WriteSlot,
        pieces: &dyn Gathering,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active {
            // No more versions are assigned in this epoch: the write is answered when the next epoch begins.
            return;
        }
        let write = &mut self.queue[slot];
        assert!(write.stage == WriteStage::Examine);
        let kind = std::mem::replace(&mut write.kind, WriteKind::HandedOver);
        let lazy = kind.is_lazy();
        match pieces.prepare(kind, &self.buffers) {
            Prepared::Change(change) => self.replicate(slot, change, lazy, actions),
            Prepared::Answer(outcome) => self.end_write(slot, outcome, actions),
        }
    }

    /// Replicates a write as its sender requested it: every member makes the same change.
    fn replicate_as_named(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let kind = std::mem::replace(&mut self.queue[slot].kind, WriteKind::HandedOver);
        let lazy = kind.is_lazy();
        self.replicate(slot, Changed::Everywhere(kind.into_change()), lazy, actions);
    }

    /// Assigns a version to the write and hands the write to every member: to the others by message, in
    /// version order, and to this OSD's store. Each answers when it has the write ([`Pg::on_member_wrote`],
    /// [`Pg::on_own_written`]).
    fn replicate(
        &mut self,
        slot: WriteSlot,
        changed: Changed,
        lazy: bool,
        actions: &mut Vec<Action>,
    ) {
        let epoch = self.entry.as_ref().expect("the PG has an entry").epoch;
        let mark = self.mark();
        assert!(mark <= self.versions.newest());
        let version = self.versions.give(epoch, slot);
        let missing = self.write_targets.targets();
        assert!(missing.has(self.lead().me));
        let write = &mut self.queue[slot];
        assert!(matches!(write.stage, WriteStage::Queued | WriteStage::Examine));
        write.stage = WriteStage::Replicate { missing, version, lazy, durable: true };
        let (key, is_delete) = (write.key, matches!(changed, Changed::Everywhere(Change::Delete)));
        let units =
            if is_delete { 0..self.shape.block_size.unit_count() } else { write.units.clone() };
        self.local_state.on_write(version, key, units, is_delete);
        if lazy {
            self.syncs.gave_lazily(version.counter);
        }
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let header = ChangeHeader { pg, key, block_size, version, lazy };
        self.send_write(header, mark, &changed, actions);
        let lead = self.lead();
        let own = changed.into_change_at(lead.peers[lead.me].position);
        // All parts of a stripe have the same size, so this OSD's part is as large as the learners'.
        self.count_for_learners(version, data_size_bytes(&own));
        self.call(Call::Write(slot), header.into_store_request(own), actions);
    }

    /// Sends a write to the other members that receive writes, together with the mark. Each member gets its
    /// own part of the change.
    fn send_write(
        &mut self,
        header: ChangeHeader,
        mark: Version,
        changed: &Changed,
        actions: &mut Vec<Action>,
    ) {
        let targets = self.write_targets.targets();
        let lead = self.lead();
        lead.mark_told = mark;
        for (index, peer) in lead.peers.iter().enumerate() {
            if index != lead.me && targets.has(index) {
                let body = header.to_message(mark, changed.at(peer.position));
                actions.push(Action::Send { to: peer.member.osd, body });
            }
        }
    }

    /// Notes that a write of this many bytes was sent to learners, which must answer it.
    fn count_for_learners(&mut self, version: Version, bytes: u64) {
        let targets = self.write_targets.targets();
        let lead = self.lead();
        for index in lead.acting.count()..lead.peers.len() {
            if targets.has(index) {
                self.on_sent_to_learner(index, version, bytes);
            }
        }
    }

    /// Handles the store's answer about the block of a compare-and-set, zero or delete. No other write to the
    /// block is in flight.
    pub(crate) fn on_examined(
        &mut self,
        slot: WriteSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active {
            // No more versions are assigned in this epoch: the write is answered when the next epoch begins.
            return;
        }
        let (version, held) = match result {
            Ok(Answer::Extents { version, mut written, damaged }) => {
                merge_bitmaps(&mut written, &damaged);
                (version, written)
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => return self.end_write(slot, Err(refusal_of(error)), actions),
        };
        let write = &mut self.queue[slot];
        assert!(write.stage == WriteStage::Examine);
        if let WriteKind::Change { expected: Some(expected), .. } = write.kind
            && expected != version
        {
            return self.end_write(slot, Err(Refusal::CompareFailed { version }), actions);
        }
        let is_removal = !write.kind.brings_data();
        let is_empty = is_removal && !write.units.clone().any(|unit| has_unit(&held, unit));
        // The write that emptied the block may have been answered before it was durable.
        let durable = !self.versions.is_undurable(version);
        if is_empty && (durable || write.kind.is_lazy()) {
            write.stage = WriteStage::Done { version, durable };
        } else if is_removal && !holds_outside(&held, &write.units) {
            write.kind = WriteKind::DELETE;
        }
        self.advance_write(slot, actions);
    }

    /// Handles the answer of this OSD's own store to a write.
    pub(crate) fn on_own_written(
        &mut self,
        slot: WriteSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead.as_ref().expect("a primary serves");
        let (me, is_alone) = (lead.me, lead.is_alone());
        let error = match result {
            Ok(answer) => {
                let is_durable = answer != Answer::Written;
                assert!(is_durable || self.queue[slot].is_lazy());
                return self.count_copy(me, slot, is_durable, actions);
            }
            Err(error) => error,
        };
        let version = self.queue[slot].version();
        self.local_state.lacks(version.expect("only a replicated write is at the store"));
        let why = "the store has no room for a write".to_owned();
        let member = self.lead().peers[me].member;
        if is_alone {
            // No member has the write, so it never happened. No later write may follow it.
            self.end_epoch(Need::NewEpoch, why, actions);
            return self.end_write(slot, Err(refusal_of(error)), actions);
        }
        self.end_epoch(Need::Failed(member, why.clone()), why, actions);
    }

    /// Handles a member's answer that it has a write. `durable`: the write is durable there; it must be,
    /// unless the write is lazy.
    pub(crate) fn on_member_wrote(
        &mut self,
        index: usize,
        version: Version,
        durable: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        // Before the epoch is active the newest version is of an earlier epoch, so it cannot be used for a
        // check.
        if self.write_targets.is_empty() {
            return Err("an answer to a write before the epoch is active".into());
        }
        if !self.versions.was_given(version) {
            return Err("a version that was never assigned".into());
        }
        if self.shape.objects.is_some() {
            if !durable {
                return Err("a batch was answered before it was durable".into());
            }
            if !self.lead().acting.has(index) {
                self.on_learner_has(index, version, actions);
            }
            self.count_batch(index, version, actions);
            return Ok(());
        }
        if self.stripes().is_some() {
            if !self.lead().acting.has(index) {
                self.on_learner_has(index, version, actions);
            }
            self.on_member_has(index, version, durable, actions);
            return Ok(());
        }
        if !self.lead().acting.has(index) {
            self.on_learner_wrote(index, version, actions);
        }
        // If the write has ended, it did not need this member's copy.
        if let Some(slot) = self.versions.slot(version) {
            assert!(self.queue[slot].version() == Some(version));
            if !durable && !self.queue[slot].is_lazy() {
                return Err(format!(
                    "version {version} is not lazy, but was answered before it was durable"
                ));
            }
            self.count_copy(index, slot, durable, actions);
        }
        Ok(())
    }

    pub(crate) fn count_copy(
        &mut self,
        index: usize,
        slot: WriteSlot,
        is_durable: bool,
        actions: &mut Vec<Action>,
    ) {
        let is_planted = planted::on(Bug::AckBeforeMembers) && self.lead().me == index;
        let WriteStage::Replicate { missing, durable, .. } = &mut self.queue[slot].stage else {
            unreachable!("only a replicated write is in the window");
        };
        missing.take(index);
        *durable &= is_durable;
        if self.write_targets.is_acknowledged_without(*missing) || is_planted {
            self.advance_write(slot, actions);
        }
    }

    /// Stops clients from waiting for a learner: finishes the writes that waited only for it.
    pub(crate) fn await_no_more(&mut self, index: usize, actions: &mut Vec<Action>) {
        if !self.write_targets.require_no_more(index) {
            return;
        }
        self.end_batches(actions);
        for slot in self.versions.slots().collect::<Vec<_>>() {
            let is_held = matches!(self.queue.get(slot).map(|write| write.stage),
                Some(WriteStage::Replicate { missing, .. })
                    if missing.has(index) && self.write_targets.is_acknowledged_without(missing));
            if is_held {
                self.advance_write(slot, actions);
            }
        }
    }

    /// Ends a hold: later writes to its block continue.
    pub(crate) fn release(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let key = self.take_write_out(slot, None, actions);
        self.start_writes(key, actions);
        self.pump(actions);
    }

    pub(crate) fn end_write(
        &mut self,
        slot: WriteSlot,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let key = self.take_write_out(slot, Some(outcome), actions);
        self.start_writes(key, actions);
    }

    /// Removes and answers a write, and lets its followers continue. Does not start later writes to its
    /// block.
    fn take_write_out(
        &mut self,
        slot: WriteSlot,
        outcome: Option<Result<Outcome, Refusal>>,
        actions: &mut Vec<Action>,
    ) -> BlockKey {
        let write = self.queue.take(slot);
        if let WriteStage::Done { version, .. } = write.stage {
            self.end_delta_route(version);
        }
        if self.lead.as_ref().is_some_and(|lead| !lead.unreported.is_empty()) {
            self.report_complete(actions);
        }
        for issuer in write.merged.into_iter().chain([write.issuer]) {
            match (issuer, outcome.clone()) {
                (WriteFor::Client(ticket), Some(outcome)) => {
                    actions.push(Action::Reply { ticket, outcome });
                }
                (WriteFor::Deletion(deletion), Some(outcome)) => {
                    self.on_block_deleted(deletion, outcome, actions);
                }
                (WriteFor::Layer { above, first }, Some(outcome)) => {
                    self.on_layer_read(above, first, outcome, actions);
                }
                (_, outcome) => assert!(outcome.is_none()),
            }
        }
        for follower in write.followers {
            match follower {
                Follower::Read(read) => self.start_read(read, actions),
                Follower::Deletion(deletion) => self.start_deletion(deletion, actions),
            }
        }
        write.key
    }

    pub(crate) fn refuse_queued_writes(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let queued = self.queue.queued_of_clients();
        let refused: Vec<(WriteSlot, Refusal)> =
            queued.filter_map(|(slot, ticket)| Some((slot, judge(ticket)?))).collect();
        // Remove all of them before any other starts: a write that one of them held up may be refused as
        // well.
        let mut keys = Vec::new();
        for (slot, refusal) in refused {
            keys.push(self.take_write_out(slot, Some(Err(refusal)), actions));
        }
        for key in keys {
            self.start_writes(key, actions);
        }
    }

    /// Handles a client's sync: the client wants everything that was answered to be durable.
    pub(crate) fn sync(&mut self, ticket: Ticket, actions: &mut Vec<Action>) {
        match self.syncs.join(ticket) {
            SyncWait::Nothing => {
                actions.push(Action::Reply { ticket, outcome: Ok(Outcome::Synced) });
            }
            SyncWait::Running => {}
            SyncWait::Next => self.begin_sync(actions),
        }
    }

    /// Syncs lazy writes that existed at the last call and that nobody has synced since. Otherwise the mark
    /// and the floor would wait forever for the writes of a client that died. Called periodically.
    pub(crate) fn sync_old(&mut self, actions: &mut Vec<Action>) {
        if self.serving == Serving::Active
            && self.syncs.is_due()
            && self.versions.undurable_count() > 0
        {
            self.begin_sync(actions);
        }
    }

    /// Frees the room that versions of this PG take in members' journals as prepared ones, as far as the
    /// primary can: it makes lazy versions durable, and sends the mark. For PGs of pools with parity.
    pub fn free_room(&mut self, actions: &mut Vec<Action>) {
        if self.serving == Serving::Active && self.versions.undurable_count() > 0 {
            self.begin_sync(actions);
        }
        self.tell_mark(actions);
    }

    /// Begins a sync if many answered lazy writes are not durable.
    fn sync_when_many(&mut self, actions: &mut Vec<Action>) {
        if self.versions.undurable_count() >= self.shape.limits.unsynced_count_max / 2 {
            self.begin_sync(actions);
        }
    }

    /// Returns whether another write may be answered before it is durable.
    pub(crate) fn may_be_lazy(&self) -> bool {
        self.versions.undurable_count() < self.shape.limits.unsynced_count_max
    }

    /// Begins a sync of all versions assigned so far, unless one is in flight.
    pub(crate) fn begin_sync(&mut self, actions: &mut Vec<Action>) {
        if self.syncs.is_running() || self.serving != Serving::Active {
            return;
        }
        let me = self.lead().me;
        let mut missing = self.keepers();
        if planted::on(Bug::SyncOfPrimaryAlone) {
            missing = MemberSet::default();
            missing.add(me);
        }
        self.syncs.begin(self.versions.begun(), missing);
        for index in missing.iter().filter(|index| *index != me) {
            let call = self.lead().asks.ask(index, Asked::Sync);
            self.send(index, PeerBody::Sync { call }, actions);
        }
        self.flush(FlushFor::Lead, actions);
    }

    /// Handles a member's answer to a sync.
    pub(crate) fn on_member_synced(&mut self, index: usize, actions: &mut Vec<Action>) {
        let Some(synced) = self.syncs.on_member_synced(index) else { return };
        self.versions.settle(synced.upto);
        for ticket in synced.tickets {
            actions.push(Action::Reply { ticket, outcome: Ok(Outcome::Synced) });
        }
        if self.syncs.has_waiting() {
            self.begin_sync(actions);
        }
        if self.stripes().is_some() {
            self.on_mark_moved(actions);
        }
    }
}

/// Returns whether a unit outside `units` holds data.
fn holds_outside(held: &[u64], units: &Range<u32>) -> bool {
    let unit_count = held.len() as u32 * 64;
    (0..units.start).chain(units.end..unit_count).any(|unit| has_unit(held, unit))
}
