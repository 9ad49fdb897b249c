//! Everything that changes a block: writes, zeroes and deletions.

use std::ops::Range;

use base::Version;
use base::planted::{self, Bug};
use blockstore::{Answer, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Change, Outcome, PeerBody, Refusal};

use super::copy::{Job, Purpose};
use super::face::{Changed, Gathering, Needs, Prepared};
use super::operation::{Follower, WriteFor, WriteKind};
use super::{
    Action, Call, MemberSet, Need, Pg, Serving, Ticket, has_unit, next_version, refusal_of,
};

/// One write at its primary.
pub struct Write {
    pub issuer: WriteFor,
    pub key: BlockKey,
    /// Its place in the order of all writes of the PG.
    pub order: u64,
    /// The units it changes.
    pub units: Range<u32>,
    kind: WriteKind,
    stage: WriteStage,
    /// What waits for its end.
    pub followers: Vec<Follower>,
}

/// How far a write has come. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteStage {
    /// Waits for earlier writes of its block.
    Queued,
    /// Waits for the block's version and allocation, or for the end of a hold.
    Examine,
    /// Waits until every acting member and every bound learner has made `version` durable, or has
    /// it, if it is `lazy`. `durable`: wherever it is so far, it is durable.
    Replicate { missing: MemberSet, version: Version, lazy: bool, durable: bool },
    /// Everywhere, or found needless: the block has `version`.
    Done { version: Version, durable: bool },
}

impl Write {
    /// Its version, once it has one.
    pub fn version(&self) -> Option<Version> {
        match self.stage {
            WriteStage::Replicate { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Whether it has no version yet, and may bring data.
    pub fn may_bring_data(&self) -> bool {
        matches!(self.kind, WriteKind::Write { .. })
    }

    /// Whether it changes nothing.
    pub fn changes_nothing(&self) -> bool {
        self.kind.changes_nothing()
    }

    /// Whether it has its version, and this member did not answer it.
    pub fn is_missing(&self, index: usize) -> bool {
        match self.stage {
            WriteStage::Replicate { missing, .. } => missing.has(index),
            _ => false,
        }
    }
}

impl Pg {
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
        let order = self.queued_next;
        self.queued_next += 1;
        let slot = self.writes.insert(Write {
            issuer,
            key,
            order,
            units,
            kind,
            stage: WriteStage::Queued,
            followers: follower.into_iter().collect(),
        });
        self.queue.insert((key, order), slot);
        self.start_writes(key, actions);
    }

    /// Starts the writes of a block that need wait no longer; none in an epoch that ended.
    fn start_writes(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        while self.may_copy()
            && let Some(slot) = self.startable(key)
        {
            self.advance_write(slot, actions);
        }
    }

    /// The oldest queued write of a block, if nothing stands before it.
    fn startable(&self, key: BlockKey) -> Option<usize> {
        let mut is_first = true;
        for (_, slot) in self.queue.range((key, 0)..=(key, u64::MAX)) {
            let write = &self.writes[*slot];
            match write.stage {
                WriteStage::Queued if is_first || self.needs(write) == Needs::Nothing => {
                    return Some(*slot);
                }
                WriteStage::Queued | WriteStage::Examine => return None,
                WriteStage::Replicate { .. } | WriteStage::Done { .. } => is_first = false,
            }
        }
        None
    }

    /// What must be known before a queued write starts; a hold waits for its turn alone.
    fn needs(&self, write: &Write) -> Needs {
        match write.issuer {
            WriteFor::Job(_) => Needs::Turn,
            WriteFor::Client(_) | WriteFor::Deletion(_) => self.shape.face.needs(&write.kind),
        }
    }

    /// Moves a write to its next stage. The caller has seen that what the stage waits for came.
    fn advance_write(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let write = &self.writes[slot];
        match write.stage {
            WriteStage::Queued => self.begin_write(slot, actions),
            WriteStage::Examine => self.replicate_as_named(slot, actions),
            WriteStage::Replicate { missing, version, durable, .. } => {
                let is_planted = planted::on(Bug::AckBeforeMembers);
                assert!(missing.within(self.ack_required).is_empty() || is_planted);
                // A sync that began after it was given may have ended meanwhile.
                let durable = durable || self.syncs.covers(version.counter);
                assert!(version <= self.newest && version.epoch == self.newest.epoch);
                self.writes[slot].stage = WriteStage::Done { version, durable };
                if durable || planted::on(Bug::MarkCountsUnflushed) {
                    self.window.end(version.counter);
                } else {
                    self.window.answer(version.counter);
                    self.sync_when_many(actions);
                }
                self.advance_write(slot, actions);
            }
            WriteStage::Done { version, durable } => {
                self.end_write(slot, Ok(Outcome::Written { version, durable }), actions);
            }
        }
    }

    /// A write has its turn.
    fn begin_write(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let (needs, write) = (self.needs(&self.writes[slot]), &mut self.writes[slot]);
        let key = write.key;
        if needs != Needs::Nothing {
            write.stage = WriteStage::Examine;
            // What it is about to read is never taken back.
            let order = write.order;
            assert!(self.queue.range((key, 0)..(key, order)).next().is_none());
        }
        match (needs, write.issuer) {
            (Needs::Nothing, _) => self.replicate_as_named(slot, actions),
            (Needs::Turn, WriteFor::Job(job)) => self.on_hold(job, slot, actions),
            (Needs::Turn, _) => unreachable!("a hold is a job's"),
            (Needs::Extents, _) => {
                self.call(Call::Examine(slot), StoreRequest::Extents { key }, actions);
            }
            (Needs::Pieces, _) => {
                let job = Job::new(key, self.sources(true), Purpose::Operation { slot });
                self.begin_job(job, actions);
            }
        }
    }

    /// What an operation has to know of its key has come from the members. No other one of it is under
    /// way.
    pub(crate) fn on_pieces(
        &mut self,
        slot: usize,
        pieces: &dyn Gathering,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active {
            // No version is given any more: it is answered when the next epoch comes.
            return;
        }
        let write = &mut self.writes[slot];
        assert!(write.stage == WriteStage::Examine);
        let kind = std::mem::replace(&mut write.kind, WriteKind::HandedOver);
        let lazy = kind.is_lazy();
        match pieces.prepare(kind, &self.buffers) {
            Prepared::Change(change) => self.replicate(slot, change, lazy, actions),
            Prepared::Answer(outcome) => self.end_write(slot, outcome, actions),
        }
    }

    /// Every member does what the write's sender named.
    fn replicate_as_named(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let write = &mut self.writes[slot];
        let kind = std::mem::replace(&mut write.kind, WriteKind::HandedOver);
        let lazy = kind.is_lazy();
        self.replicate(slot, Changed::Everywhere(kind.into_change()), lazy, actions);
    }

    /// Gives the write its version and hands it to every member.
    fn replicate(&mut self, slot: usize, changed: Changed, lazy: bool, actions: &mut Vec<Action>) {
        let epoch = self.entry.as_ref().expect("an epoch is served").epoch;
        let mark = self.mark();
        let version = next_version(self.newest, epoch);
        assert!(version > self.newest && version.counter == self.newest.counter + 1);
        assert!(mark <= self.newest);
        let write = &mut self.writes[slot];
        assert!(matches!(write.stage, WriteStage::Queued | WriteStage::Examine));
        let missing = self.write_targets;
        write.stage = WriteStage::Replicate { missing, version, lazy, durable: true };
        let (pg, key, block_size) = (self.shape.pg, write.key, self.shape.block_size);
        let mut units = write.units.clone();
        if matches!(changed, Changed::Everywhere(Change::Delete)) {
            self.has_tombstones = true;
            units = 0..block_size.unit_count();
        }
        let lead = self.lead.as_mut().expect("a primary serves");
        lead.mark_told = mark;
        let (acting_count, peer_count) = (lead.acting.count(), lead.peers.len());
        for (index, peer) in lead.peers.iter().enumerate() {
            if index != lead.me && self.write_targets.has(index) {
                let change = changed.at(peer.position);
                let body = PeerBody::Write { version, mark, key, block_size, lazy, change };
                actions.push(Action::Send { to: peer.member.osd, body });
            }
        }
        let change = changed.into_change_at(lead.peers[lead.me].position);
        // Pieces of a stripe are of one size.
        let bytes = match &change {
            Change::Write { data, .. } => data.len() as u64,
            Change::Zero { .. } | Change::Delete => 0,
        };
        for index in acting_count..peer_count {
            if self.write_targets.has(index) {
                self.learner_sent(index, version, bytes);
            }
        }
        let request = match change {
            Change::Write { offset, checksums, data } => {
                StoreRequest::Write { pg, key, block_size, version, offset, checksums, data, lazy }
            }
            Change::Zero { offset, length } => {
                StoreRequest::Zero { pg, key, block_size, version, offset, length, lazy }
            }
            Change::Delete => StoreRequest::Delete { pg, key, version },
        };
        if lazy {
            self.syncs.gave_lazily(version.counter);
        }
        self.newest = version;
        self.local_state.wrote(version);
        self.changes.add(version, key, units);
        let counter = self.window.begin(slot);
        assert!(counter == version.counter);
        self.call(Call::Write(slot), request, actions);
    }

    /// The block of a compare-and-set, zero or delete is known; no other write of it is under way.
    pub(crate) fn on_examined(
        &mut self,
        slot: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active {
            // No version is given any more: it is answered when the next epoch comes.
            return;
        }
        let (version, held) = match result {
            Ok(Answer::Extents { version, mut written, damaged }) => {
                merge_bitmaps(&mut written, &damaged);
                (version, written)
            }
            Ok(_) => unreachable!("the store answers extents with extents"),
            Err(error) => return self.end_write(slot, Err(refusal_of(error)), actions),
        };
        let write = &mut self.writes[slot];
        assert!(write.stage == WriteStage::Examine);
        if let WriteKind::Write { expected: Some(expected), .. } = write.kind
            && expected != version
        {
            return self.end_write(slot, Err(Refusal::CompareFailed { version }), actions);
        }
        let is_removal = !matches!(write.kind, WriteKind::Write { .. });
        let is_empty = is_removal && !write.units.clone().any(|unit| has_unit(&held, unit));
        // What emptied it may have been answered before it was durable.
        let is_current = version.epoch == self.newest.epoch;
        let durable = !(is_current && self.window.is_answered(version.counter));
        if is_empty && (durable || write.kind.is_lazy()) {
            write.stage = WriteStage::Done { version, durable };
        } else if is_removal && !holds_outside(&held, &write.units) {
            write.kind = WriteKind::Delete;
        }
        self.advance_write(slot, actions);
    }

    /// This OSD's own store ended its part.
    pub(crate) fn on_own_written(
        &mut self,
        slot: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead.as_ref().expect("a primary serves");
        let (me, is_alone) = (lead.me, lead.peers.len() == 1);
        match result {
            Ok(answer) => self.count_copy(me, slot, answer != Answer::Written, actions),
            Err(error) => {
                let WriteStage::Replicate { version, .. } = self.writes[slot].stage else {
                    unreachable!("only a replicated write is at the store");
                };
                self.local_state.lacks(version);
                let why = "its store has no room for a write".to_owned();
                let member = self.lead().peers[me].member;
                if is_alone {
                    // Nobody has it: it never happened. Nothing may come behind it.
                    self.end_epoch(Need::NewEpoch, why, actions);
                    return self.end_write(slot, Err(refusal_of(error)), actions);
                }
                self.end_epoch(Need::Failed(member, why.clone()), why, actions);
            }
        }
    }

    /// A member has a write; durably, if it says so or the write is not lazy.
    pub(crate) fn on_member_wrote(
        &mut self,
        index: usize,
        version: Version,
        durable: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        // In an epoch that is not active yet `newest` is of an earlier one.
        if self.write_targets.is_empty() {
            return Err("a write that ends before the epoch is active".into());
        }
        if version > self.newest || version.epoch != self.newest.epoch {
            return Err("a version that was not given".into());
        }
        if !self.lead().acting.has(index) {
            self.on_learner_wrote(index, version, actions);
        }
        // One that ended needed no copy of this member.
        if let Some(slot) = self.window.slot(version.counter) {
            let is_lazy =
                matches!(self.writes[slot].stage, WriteStage::Replicate { lazy: true, .. });
            if !durable && !is_lazy {
                return Err(format!("version {version} is not lazy, and was not made durable"));
            }
            self.count_copy(index, slot, durable, actions);
        }
        Ok(())
    }

    fn count_copy(
        &mut self,
        index: usize,
        slot: usize,
        is_durable: bool,
        actions: &mut Vec<Action>,
    ) {
        let is_planted = planted::on(Bug::AckBeforeMembers) && self.lead().me == index;
        let WriteStage::Replicate { missing, durable, .. } = &mut self.writes[slot].stage else {
            unreachable!("only a replicated write is in the window");
        };
        missing.take(index);
        *durable &= is_durable;
        if missing.within(self.ack_required).is_empty() || is_planted {
            self.advance_write(slot, actions);
        }
    }

    /// Clients wait for a learner no longer: goes on with what waited for it alone.
    pub(crate) fn await_no_more(&mut self, index: usize, actions: &mut Vec<Action>) {
        if !self.ack_required.has(index) {
            return;
        }
        self.ack_required.take(index);
        for slot in self.window.slots().collect::<Vec<_>>() {
            let is_held = matches!(self.writes.get(slot).map(|write| write.stage),
                Some(WriteStage::Replicate { missing, .. })
                    if missing.has(index) && missing.within(self.ack_required).is_empty());
            if is_held {
                self.advance_write(slot, actions);
            }
        }
    }

    /// A hold ended: later writes of its block go on.
    pub(crate) fn release(&mut self, slot: usize, actions: &mut Vec<Action>) {
        let key = self.take_write_out(slot, None, actions);
        self.start_writes(key, actions);
        self.pump(actions);
    }

    fn end_write(
        &mut self,
        slot: usize,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let key = self.take_write_out(slot, Some(outcome), actions);
        self.start_writes(key, actions);
    }

    /// Answers a write and lets its followers go on; later writes of its block are not started.
    fn take_write_out(
        &mut self,
        slot: usize,
        outcome: Option<Result<Outcome, Refusal>>,
        actions: &mut Vec<Action>,
    ) -> BlockKey {
        let write = self.writes.remove(slot);
        let removed = self.queue.remove(&(write.key, write.order));
        assert!(removed == Some(slot));
        if self.lead.as_ref().is_some_and(|lead| !lead.unreported.is_empty()) {
            self.report_complete(actions);
        }
        match (write.issuer, outcome) {
            (WriteFor::Client(ticket), Some(outcome)) => {
                actions.push(Action::Reply { ticket, outcome });
            }
            (WriteFor::Deletion(deletion), Some(outcome)) => {
                self.on_block_deleted(deletion, outcome, actions);
            }
            (_, outcome) => assert!(outcome.is_none()),
        }
        for follower in write.followers {
            match follower {
                Follower::Read(read) => self.start_read(read, actions),
                Follower::Deletion(deletion) => self.start_deletion(deletion, actions),
            }
        }
        write.key
    }

    /// The newest unfinished write of a block, older than `order`, that changes one of `units`.
    pub(crate) fn write_before(
        &self,
        key: BlockKey,
        units: &Range<u32>,
        order: u64,
    ) -> Option<usize> {
        if planted::on(Bug::ReadOfUnfinishedWrite) {
            return None;
        }
        let older = self.queue.range((key, 0)..(key, order));
        older.rev().map(|(_, slot)| *slot).find(|slot| {
            let write = &self.writes[*slot].units;
            write.start < units.end && units.start < write.end
        })
    }

    /// An unfinished write of a block, not older than `order`, that changes one of `units` and that
    /// a version of the block includes.
    pub(crate) fn write_seen(
        &self,
        key: BlockKey,
        units: &Range<u32>,
        order: u64,
        seen: Version,
    ) -> Option<usize> {
        let newer = self.queue.range((key, order)..=(key, u64::MAX));
        newer.map(|(_, slot)| *slot).find(|slot| {
            let write = &self.writes[*slot];
            let is_seen = match write.stage {
                WriteStage::Replicate { version, .. } => version <= seen,
                _ => false,
            };
            is_seen && write.units.start < units.end && units.start < write.units.end
        })
    }

    pub(crate) fn refuse_queued_writes(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let mut refused = Vec::new();
        for (slot, write) in &self.writes {
            if let WriteFor::Client(ticket) = write.issuer
                && write.stage == WriteStage::Queued
                && let Some(refusal) = judge(ticket)
            {
                refused.push((slot, refusal));
            }
        }
        // All go before any other starts: what one made way for may be refused as well.
        let mut keys = Vec::new();
        for (slot, refusal) in refused {
            keys.push(self.take_write_out(slot, Some(Err(refusal)), actions));
        }
        for key in keys {
            self.start_writes(key, actions);
        }
    }
}

/// Adds the bits of `other` to `bitmap`.
pub fn merge_bitmaps(bitmap: &mut Vec<u64>, other: &[u64]) {
    if bitmap.len() < other.len() {
        bitmap.resize(other.len(), 0);
    }
    for (word, more) in bitmap.iter_mut().zip(other) {
        *word |= more;
    }
}

/// Whether a unit outside of `units` holds something.
fn holds_outside(held: &[u64], units: &Range<u32>) -> bool {
    let unit_count = held.len() as u32 * 64;
    (0..units.start).chain(units.end..unit_count).any(|unit| has_unit(held, unit))
}
