//! Operations on stripes at their primary.
//!
//! ```text
//!   queued ──its turn──▶ (units of others, the table) ──▶ version: a part, parity or a skip for each member
//!                                                           │ differences of data parts to parity
//!                                                           ▼
//!                        reply ◀── all members have it and everything before it
//! ```
//!
//! Invariants
//!   1. Operations on one stripe take turns, including reads. Writes that wait for a stripe are merged into
//!      its next version.
//!   2. The parity of units that change in all data parts is encoded here. All other parity is computed from
//!      the differences of the data parts. If a data part has no member, this OSD computes its difference,
//!      after reconstructing the old units from `k` other parts.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{MapRevision, Position, UNIT_SIZE, Version};
use blockstore::BlockKey;
use format::wire::{Change, Content, Outcome, PartChange, PeerBody, Refusal};

use super::Stripes;
use super::gather::{Gather, Inconsistent};
use super::parity::{difference, encode_rows};
use super::part::{Part, UnitData, content};
use super::patch::Patch;
use super::peering::Forward;
use crate::ask::Asked;
use crate::face::Source;
use crate::operation::{Wants, WriteKind};
use crate::slots::{GatherSlot, JobSlot, WriteSlot};
use crate::store_calls::Call;
use crate::units::{Units, units_of};
use crate::write_queue::WriteStage;
use crate::{Action, MemberSet, Pg, Serving};
use blockstore::{Answer, AsOf, Request as StoreRequest, StoreError};

/// After a difference did not arrive, those of this many versions go through the primary: the connection that
/// lost it may lose the next ones, too, and each of them would be asked for only after a while.
pub const DETOURS: u32 = 256;

/// A gathering in progress at the primary.
pub struct GatherJob {
    pub key: BlockKey,
    pub gather: Gather,
    /// The version as of which the stripe is read; `None`: its newest state.
    pub as_of: Option<Version>,
    pub purpose: GatherFor,
}

/// What a gathering is for.
pub enum GatherFor {
    /// The operation in this slot.
    Operation(WriteSlot),
    /// A key that is being brought to the adopted version at acting members.
    Forward(Box<Forward>),
    /// The backfill of a learner.
    Fill { job: JobSlot, learner: usize },
    /// A difference for which the data member lost old units.
    Delta(Box<DamagedDelta>),
}

/// The members that get the differences of a version, and the differences that this OSD has not passed on.
pub struct DeltaRoute {
    /// The stripe's key.
    key: BlockKey,
    /// Members with parity that were sent the version, including learners.
    targets: MemberSet,
    /// Data parts whose difference has not arrived here, with the units of that difference.
    parts: BTreeMap<Position, Units>,
    /// Number of differences that have not been passed on.
    missing: usize,
    /// Whether the data members send the differences straight to the targets, which are acting members. This
    /// OSD passes on only those that a data member sends here, or that a target asks for.
    is_direct: bool,
    /// The change that the version makes.
    patch: Box<Patch>,
}

/// A difference that lacks the units that the data member lost, or all units because it was lost itself.
pub struct DamagedDelta {
    version: Version,
    part: Position,
    delta: Part,
}

impl Pg {
    pub(crate) fn stripes(&self) -> Option<&'static Stripes> {
        self.shape.face.stripes()
    }

    /// Begins an operation on a stripe at its turn.
    pub(crate) fn begin_stripe_operation(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let stripes = self.stripes().expect("the pool has parity");
        assert!(self.queue.is_first(slot) || planted::on(Bug::ReadBesideSibling));
        self.queue[slot].stage = WriteStage::Examine;
        self.merge_waiting(slot, stripes);
        let sources = self.sources(true);
        let is_there = |part: usize| sources.iter().any(|it| it.position.index() == part);
        let (wants, wants_table) = self.wanted_for(slot, stripes, is_there);
        let key = self.queue[slot].key;
        let block_size = self.shape.block_size;
        let gather = Gather::new(stripes, block_size, sources, wants, wants_table);
        let purpose = GatherFor::Operation(slot);
        self.begin_gather(GatherJob { key, gather, as_of: None, purpose }, actions);
    }

    /// Collects what a write changes, and merges into it the writes that wait behind it.
    fn merge_waiting(&mut self, slot: WriteSlot, stripes: &Stripes) {
        let block_size = self.shape.block_size;
        let WriteKind::Change { change, expected, lazy, columns } = &self.queue[slot].kind else {
            return;
        };
        let (mut lazy, is_plain) = (*lazy, expected.is_none());
        let mut patch = match change {
            Change::Delete => Patch::delete(),
            change => {
                let mut patch = Patch::default();
                patch.add(change.clone(), columns.clone(), stripes, block_size);
                patch
            }
        };
        let is_write = matches!(change, Change::Write { .. });
        while is_plain
            && is_write
            && let Some(next) = self.queue.mergeable(slot)
        {
            let next = self.queue.take(next);
            let WriteKind::Change { change, lazy: is_lazy, columns, .. } = next.kind else {
                unreachable!("only plain writes are merged");
            };
            patch.add(change, columns, stripes, block_size);
            lazy &= is_lazy;
            let head = &mut self.queue[slot];
            head.merged.push(next.issuer);
            head.changed_units = head.changed_units.saturating_add(next.changed_units);
            head.followers.extend(next.followers);
        }
        let head = &mut self.queue[slot];
        if let WriteKind::Change { lazy: is_lazy, .. } = &mut head.kind {
            *is_lazy = lazy;
        }
        head.patch = Some(Box::new(patch));
    }

    /// Returns the units that an operation must read before it starts, by position, and whether it also needs
    /// the stripe's part table.
    fn wanted_for(
        &self,
        slot: WriteSlot,
        stripes: &Stripes,
        is_there: impl Fn(usize) -> bool,
    ) -> (BTreeMap<usize, Units>, bool) {
        let write = &self.queue[slot];
        match (&write.kind, &write.patch) {
            (WriteKind::Read { wants: Wants::Data { offset, length }, .. }, _) => {
                let (first, end) = units_of(*offset, *length);
                let parts = stripes.split(first..end, self.shape.block_size);
                (parts.map(|(part, units)| (part, Units::from_range(units))).collect(), false)
            }
            (WriteKind::Read { wants: Wants::Allocation, .. }, _) => (BTreeMap::new(), true),
            (WriteKind::Change { change, expected, .. }, Some(patch)) => {
                let rows = patch.rows(stripes.data_count());
                let away = patch.parts().filter(|part| !is_there(*part));
                let wants = away.map(|part| (part, patch.units(part).without(&rows)));
                let wants = wants.filter(|(_, units)| !units.is_empty()).collect();
                let is_write = matches!(change, Change::Write { .. });
                (wants, !is_write || expected.is_some())
            }
            _ => unreachable!("it is an operation that has begun"),
        }
    }

    /// Begins a gathering.
    pub(crate) fn begin_gather(&mut self, job: GatherJob, actions: &mut Vec<Action>) {
        let slot = self.lead().gathers.insert(job);
        self.gather_on(slot, actions);
    }

    /// Requests units that are missing; if none are, ends the gathering.
    fn gather_on(&mut self, slot: GatherSlot, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        let lead = self.lead();
        let (me, job) = (lead.me, &mut lead.gathers[slot]);
        let (key, as_of, asks) = (job.key, job.as_of, job.gather.asks());
        for (source, units) in asks {
            let units = units.words(block_size);
            let position = source.position;
            if source.index == me {
                let as_of = as_of.map_or(AsOf::View, AsOf::Version);
                let request = StoreRequest::Copy { key, units, as_of };
                self.call(Call::Gather { slot, position }, request, actions);
            } else {
                let call = self.lead().asks.ask(source.index, Asked::Gather { slot, position });
                self.send(source.index, PeerBody::Fetch { call, key, units, as_of }, actions);
            }
        }
        if !self.lead().gathers[slot].gather.is_waiting() {
            self.on_gather_end(slot, actions);
        }
    }

    /// Adds this OSD's own part to a gathering.
    pub(crate) fn on_own_part(
        &mut self,
        (slot, position): (GatherSlot, Position),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Copy { content }) = result else {
            unreachable!("the store answers a copy with a copy");
        };
        let part = Part::of(content, self.shape.block_size, false);
        let part = part.expect("the store knows the size of its blocks");
        let took = self.lead().gathers[slot].gather.take(position.index(), part);
        match took {
            Ok(()) => self.gather_on(slot, actions),
            Err(why) => panic!("{why} in this OSD's own store"),
        }
    }

    /// Adds a member's part to a gathering.
    pub(crate) fn on_peer_part(
        &mut self,
        (slot, position): (GatherSlot, Position),
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let part = Part::of(content, self.shape.block_size, true)?;
        self.check_version(part.version.max(part.deleted))?;
        self.lead().gathers[slot].gather.take(position.index(), part)?;
        self.gather_on(slot, actions);
        Ok(())
    }

    fn on_gather_end(&mut self, slot: GatherSlot, actions: &mut Vec<Action>) {
        let job = self.lead().gathers.remove(slot);
        let is_kept = matches!(job.purpose, GatherFor::Operation(_) | GatherFor::Fill { .. });
        let damaged = Some(job.key).filter(|_| is_kept && job.gather.has_lost());
        match job.purpose {
            GatherFor::Operation(slot) => self.on_stripe_gathered(slot, &job.gather, actions),
            GatherFor::Fill { job: slot, learner } => {
                self.on_fill_gathered((slot, learner), job.key, &job.gather, actions);
            }
            GatherFor::Delta(damaged) => {
                self.on_delta_gathered(*damaged, (job.key, &job.gather), actions)
            }
            GatherFor::Forward(forward) => {
                self.on_forward_gathered(job.key, *forward, job.gather, actions);
            }
        }
        if let Some(key) = damaged {
            self.want_look(key, actions);
        }
    }

    /// Continues an operation when everything that it needs has been gathered.
    fn on_stripe_gathered(&mut self, slot: WriteSlot, gather: &Gather, actions: &mut Vec<Action>) {
        if self.serving != Serving::Active {
            // No more versions are assigned in this epoch: the write is answered when the next epoch begins.
            return;
        }
        if matches!(self.queue[slot].kind, WriteKind::Read { .. }) {
            return self.on_stripe_read(slot, gather, actions);
        }
        match self.judge_change(slot, gather) {
            Ok(None) => self.replicate_stripe(slot, gather, actions),
            Ok(Some(outcome)) => self.end_write(slot, Ok(outcome), actions),
            Err(refusal) => self.end_write(slot, Err(refusal), actions),
        }
    }

    /// Decides what a change does, now that its stripe is known. Returns an outcome if nothing changes.
    fn judge_change(
        &mut self,
        slot: WriteSlot,
        gather: &Gather,
    ) -> Result<Option<Outcome>, Refusal> {
        let write = &self.queue[slot];
        let WriteKind::Change { change, expected, .. } = &write.kind else {
            unreachable!("it changes its key");
        };
        let table = gather.table().map_err(|Inconsistent| Refusal::Corrupted)?;
        if matches!((change, expected), (Change::Write { .. }, None)) {
            return Ok(None);
        }
        let table = table.ok_or(Refusal::Corrupted)?;
        let patch = write.patch.as_ref().expect("it was made when the write began");
        let version = match patch.is_delete() {
            true => table.version(),
            false => patch.parts().map(|part| table.parts[part].version).max().unwrap_or_default(),
        };
        if expected.is_some_and(|expected| expected != version) {
            return Err(Refusal::CompareFailed { version });
        }
        if write.kind.brings_data() {
            return Ok(None);
        }
        let removed = |part: usize| match patch.is_delete() {
            true => table.parts[part].written,
            false => table.parts[part].written.within(&patch.units(part)),
        };
        let parts = 0..table.parts.len();
        let is_empty = parts.clone().all(|part| removed(part).is_empty());
        let leaves = |part: usize| !table.parts[part].written.without(&removed(part)).is_empty();
        let leaves_data = parts.clone().any(leaves);
        // The write that emptied the range may have been answered before it was durable.
        let newest = table.version();
        let durable = !self.versions.is_undurable(newest);
        if is_empty && (durable || write.kind.is_lazy()) {
            return Ok(Some(Outcome::Written { version, durable }));
        }
        if !leaves_data {
            let write = &mut self.queue[slot];
            write.kind = WriteKind::DELETE;
            (write.changed_units, write.brings) = (0, false);
            write.patch = Some(Box::new(Patch::delete()));
        }
        Ok(None)
    }

    /// Assigns a version to the write, and sends each member the change of its part.
    fn replicate_stripe(&mut self, slot: WriteSlot, gather: &Gather, actions: &mut Vec<Action>) {
        let stripes = self.stripes().expect("the pool has parity");
        let epoch = self.entry.as_ref().expect("an epoch is served").epoch;
        let mark = self.mark();
        let version = self.versions.give(epoch, slot);
        let missing = self.write_targets.targets();
        let write = &mut self.queue[slot];
        assert!(write.stage == WriteStage::Examine);
        let lazy = write.kind.is_lazy();
        write.kind = WriteKind::HandedOver;
        write.stage = WriteStage::Replicate { missing, version, lazy, durable: true };
        let (key, patch) = (write.key, write.patch.take().expect("it was made at the beginning"));
        if lazy {
            self.syncs.gave_lazily(version.counter);
        }
        let parity = self.parity_targets(key, missing, stripes);
        let acting = self.lead().acting;
        let detours_left = self.lead().detours_left;
        self.lead().detours_left = detours_left.saturating_sub(1);
        let is_direct = detours_left == 0 && parity.iter().all(|index| acting.has(index));
        let plan = Plan::new(stripes, &patch, version, (!parity.is_empty(), is_direct), self);
        let lead = self.lead();
        lead.mark_told = mark;
        let parts = plan.differing();
        if !parity.is_empty() && !parts.is_empty() {
            let (targets, missing, patch) = (parity, parts.len(), patch.clone());
            let route = DeltaRoute { key, targets, parts, missing, is_direct, patch };
            lead.deltas.insert(version, route);
        }
        let positions: Vec<(usize, Position)> =
            missing.iter().map(|index| (index, lead.peers[index].position)).collect();
        for (index, position) in positions {
            let is_learner = !self.lead().acting.has(index);
            let body = match stripes.is_data(position) || parity.has(index) {
                true => plan.message(position, is_learner, key, mark, lazy, self),
                false => skip(version, mark, lazy),
            };
            self.count_for_learner(index, version, &body);
            self.send_to_any(index, body, actions);
        }
        self.send_absent_deltas(key, &plan, gather, actions);
    }

    /// Returns the members with parity that can apply a change of this stripe. A learner that does not have
    /// the stripe yet gets it by backfill.
    fn parity_targets(
        &mut self,
        key: BlockKey,
        targets: MemberSet,
        stripes: &Stripes,
    ) -> MemberSet {
        let mut parity = MemberSet::default();
        for index in targets.iter() {
            let lead = self.lead();
            let is_acting = lead.acting.has(index);
            if stripes.is_data(lead.peers[index].position) {
                continue;
            }
            let filler = self.filler(index).filter(|_| !is_acting);
            let is_early = planted::on(Bug::DeltaToUnfilledLearner);
            if is_acting || filler.as_ref().is_some_and(|filler| filler.has(key) || is_early) {
                parity.add(index);
            } else if let Some(filler) = filler.filter(|_| !planted::on(Bug::SkippedNotFilled)) {
                filler.skip(key);
            }
        }
        parity
    }

    /// Counts the bytes of a version that a learner must acknowledge.
    fn count_for_learner(&mut self, index: usize, version: Version, body: &PeerBody) {
        let content = match body {
            PeerBody::Part { content, .. } | PeerBody::Parity { content, .. } => content,
            _ => return,
        };
        if let Content::Block { units, .. } = content
            && !self.lead().acting.has(index)
        {
            let count: u32 = units.iter().map(|word| word.count_ones()).sum();
            self.on_sent_to_learner(index, version, u64::from(count) * UNIT_SIZE);
        }
    }

    fn send_to_any(&mut self, index: usize, body: PeerBody, actions: &mut Vec<Action>) {
        if index != self.lead().me {
            return self.send(index, body, actions);
        }
        let took = self.on_stripe_version(body, actions);
        took.expect("what this OSD sends is sound");
    }

    /// Sends the differences of data parts that have no member.
    fn send_absent_deltas(
        &mut self,
        key: BlockKey,
        plan: &Plan<'_>,
        gather: &Gather,
        actions: &mut Vec<Action>,
    ) {
        if !plan.has_parity {
            return;
        }
        let block_size = self.shape.block_size;
        for part in plan.patch.parts() {
            let units = plan.patch.units(part).without(&plan.rows_units);
            if units.is_empty() || !plan.is_absent(part) {
                continue;
            }
            let table = gather.table().ok().flatten();
            let before = table.map_or(Version::ZERO, |table| table.parts[part].version);
            let old = gather.part(part, units, before, &self.buffers);
            let old = old.expect("a stripe that contradicts itself is not changed");
            let new = |unit: u32| plan.patch.unit(part, unit).cloned();
            let content = difference(&old, new, units, block_size, &self.buffers);
            let part = Position::new(part as u8).expect("a stripe has few parts");
            self.expect_delta_no_more(plan.version, part);
            self.pass_delta(plan.version, key, part, content, actions);
        }
    }

    /// Handles a difference that a data member sent: passes it to the members with parity.
    pub(crate) fn on_delta(
        &mut self,
        index: usize,
        (version, key, part): (Version, BlockKey, Position),
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let was_given = self.versions.was_given(version);
        let lead = self.lead();
        if !was_given || lead.peers[index].position != part || !lead.acting.has(index) {
            return Err("a difference that was not requested".into());
        }
        let route = lead.deltas.get(&version);
        let Some(wanted) = route.and_then(|route| route.parts.get(&part).copied()) else {
            // A member asked for it, and this OSD made it meanwhile.
            return Ok(());
        };
        if route.is_some_and(|route| route.key != key) {
            return Err("a difference of another stripe".into());
        }
        let delta = Part::of(content.clone(), self.shape.block_size, true)?;
        if delta.units.with(&delta.damaged) != wanted {
            return Err("a difference has other units than requested".into());
        }
        self.complete_delta(version, key, part, content, actions);
        Ok(())
    }

    /// Notes that a difference has arrived.
    fn expect_delta_no_more(&mut self, version: Version, part: Position) {
        let route = self.lead().deltas.get_mut(&version).expect("the difference was asked for");
        let units = route.parts.remove(&part);
        assert!(units.is_some(), "it comes once");
    }

    /// Passes a difference on. If the data member lost old units, they are first reconstructed from other
    /// parts, as of the version before: otherwise the units of parity would be lost, too.
    pub(crate) fn complete_delta(
        &mut self,
        version: Version,
        key: BlockKey,
        part: Position,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let block_size = self.shape.block_size;
        let delta = Part::of(content.clone(), block_size, false).expect("it was checked");
        self.expect_delta_no_more(version, part);
        if delta.damaged.is_empty() || self.serving != Serving::Active {
            return self.pass_delta(version, key, part, content, actions);
        }
        let others = self.sources(true).into_iter().filter(|source| source.position != part);
        self.make_delta(key, DamagedDelta { version, part, delta }, others.collect(), actions);
    }

    /// Reads or reconstructs the old units that a difference lacks.
    fn make_delta(
        &mut self,
        key: BlockKey,
        damaged: DamagedDelta,
        sources: Vec<Source>,
        actions: &mut Vec<Action>,
    ) {
        let (stripes, block_size) = (self.stripes(), self.shape.block_size);
        let stripes = stripes.expect("the pool has parity");
        let DamagedDelta { version, part, delta } = &damaged;
        let wants = BTreeMap::from([(part.index(), delta.damaged)]);
        let gather = Gather::new(stripes, block_size, sources, wants, false);
        let as_of = Some(Version { counter: version.counter - 1, ..*version });
        let purpose = GatherFor::Delta(Box::new(damaged));
        self.begin_gather(GatherJob { key, gather, as_of, purpose }, actions);
    }

    /// Handles a parity member's request for a difference that has not arrived there. This OSD makes it from
    /// the old units, which the data member still has: the mark is below the version while a parity member
    /// lacks it.
    pub(crate) fn on_delta_wanted(
        &mut self,
        index: usize,
        (version, part): (Version, Position),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let stripes = self.stripes().ok_or("the pool has no parity")?;
        let (was_given, own_position) = (self.versions.was_given(version), self.own_position());
        let lead = self.lead();
        let has_parity = !stripes.is_data(lead.peers[index].position);
        if !has_parity || !lead.acting.has(index) || !was_given {
            return Err("a difference was requested that does not exist".into());
        }
        let route = lead.deltas.get(&version);
        let wanted =
            route.and_then(|route| Some((route.key, *route.parts.get(&part)?, route.is_direct)));
        // Otherwise it has been passed on, or this OSD is reading or making it.
        if let Some((key, units, is_direct)) = wanted
            && part != own_position
            && self.serving == Serving::Active
        {
            let none = Part::nothing(self.shape.block_size);
            let delta = Part { units: Units::default(), damaged: units, ..none };
            self.expect_delta_no_more(version, part);
            if is_direct {
                self.lead().detours_left = DETOURS;
            }
            let sources = self.sources(true);
            self.make_delta(key, DamagedDelta { version, part, delta }, sources, actions);
        }
        Ok(())
    }

    /// Notes that a write has ended: all acting members have its differences.
    pub(crate) fn end_delta_route(&mut self, version: Version) {
        let Some(lead) = &mut self.lead else { return };
        if lead.deltas.get(&version).is_some_and(|route| route.is_direct) {
            lead.deltas.remove(&version);
        }
    }

    /// Continues when the old units that a data member lost have been reconstructed, as far as possible.
    fn on_delta_gathered(
        &mut self,
        damaged: DamagedDelta,
        (key, gather): (BlockKey, &Gather),
        actions: &mut Vec<Action>,
    ) {
        let DamagedDelta { version, part, mut delta } = damaged;
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let Some(route) = self.lead().deltas.get(&version) else { return };
        if let Some(part) = gather.held(part.index()) {
            delta.version = part.version;
        }
        let old = gather.part(part.index(), delta.damaged, delta.version, &buffers);
        if let Ok(old) = old {
            let new = |unit: u32| route.patch.unit(part.index(), unit).cloned();
            let made = difference(&old, new, delta.damaged, block_size, &buffers);
            let made = Part::of(made, block_size, false).expect("it was made here");
            delta.units = delta.units.with(&made.units);
            delta.damaged = made.damaged;
            delta.written.extend(made.written);
        }
        // The part may have held nothing: then its version is zero.
        let Part { version: before, units, damaged, written, table, .. } = delta;
        let content = content(before, block_size, units, damaged, &written, table, &buffers);
        self.pass_delta(version, key, part, content, actions);
    }

    /// Passes a difference to the members with parity that were sent its version.
    pub(crate) fn pass_delta(
        &mut self,
        version: Version,
        key: BlockKey,
        part: Position,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active {
            // The epoch has ended: the version may not have reached a member whose connection broke.
            return;
        }
        let lead = self.lead();
        let (me, acting) = (lead.me, lead.acting);
        let route = lead.deltas.get_mut(&version).expect("the difference was asked for");
        assert!(route.missing > 0 && !route.parts.contains_key(&part));
        route.missing -= 1;
        let targets = route.targets;
        if route.missing == 0 {
            lead.deltas.remove(&version);
        }
        // A learner that was dropped meanwhile gets nothing.
        let is_there =
            |index: &usize| acting.has(*index) || self.write_targets.targets().has(*index);
        for index in targets.iter().filter(is_there).collect::<Vec<_>>() {
            let content = content.clone();
            if index == me {
                let took = self.on_parity_delta(version, key, part, content, actions);
                if let Err(why) = took {
                    self.end_epoch(crate::Need::NewEpoch, why, actions);
                }
            } else {
                let body = PeerBody::ParityDelta { version, key, part, content };
                self.send(index, body, actions);
            }
        }
    }

    /// Notes that a member has all versions up to `upto`. `durable`: they are durable there.
    pub(crate) fn on_member_has(
        &mut self,
        index: usize,
        upto: Version,
        durable: bool,
        actions: &mut Vec<Action>,
    ) {
        let slots: Vec<WriteSlot> = self.versions.slots().collect();
        for slot in slots {
            let Some(write) = self.queue.get(slot) else { continue };
            let WriteStage::Replicate { missing, version, lazy, .. } = write.stage else {
                continue;
            };
            if version <= upto && missing.has(index) && (durable || lazy) {
                self.count_copy(index, slot, durable, actions);
            }
        }
        self.on_mark_moved(actions);
    }
}

/// The changes that one version makes at each position.
struct Plan<'a> {
    stripes: &'static Stripes,
    patch: &'a Patch,
    version: Version,
    /// The units that change in all data parts; `rows` is their parity, by parity part.
    rows_units: Units,
    rows: Vec<BTreeMap<u32, UnitData>>,
    /// Whether any member with parity applies the version.
    has_parity: bool,
    /// Whether data members send their differences to the members with parity themselves.
    is_direct: bool,
    /// The positions with an acting member.
    present: Vec<Position>,
}

impl<'a> Plan<'a> {
    fn new(
        stripes: &'static Stripes,
        patch: &'a Patch,
        version: Version,
        (has_parity, is_direct): (bool, bool),
        pg: &Pg,
    ) -> Plan<'a> {
        let entry = pg.entry.as_ref().expect("an epoch is served");
        let present: Vec<Position> = entry.filled().map(|(position, _)| position).collect();
        let rows_units = patch.rows(stripes.data_count());
        let rows = encode_rows(stripes, patch, rows_units, &pg.buffers);
        Plan { stripes, patch, version, rows_units, rows, has_parity, is_direct, present }
    }

    /// Returns the data parts whose difference the members with parity need, with the units of each
    /// difference.
    fn differing(&self) -> BTreeMap<Position, Units> {
        let units = |part: usize| {
            let position = Position::new(part as u8).expect("a stripe has few parts");
            (position, self.patch.units(part).without(&self.rows_units))
        };
        self.patch.parts().map(units).filter(|(_, units)| !units.is_empty()).collect()
    }

    fn is_absent(&self, part: usize) -> bool {
        self.present.iter().all(|position| position.index() != part)
    }

    /// Returns the message to the member at a position.
    fn message(
        &self,
        position: Position,
        is_learner: bool,
        key: BlockKey,
        mark: Version,
        lazy: bool,
        pg: &Pg,
    ) -> PeerBody {
        let (version, patch, block_size) = (self.version, self.patch, pg.shape.block_size);
        let part = position.index();
        if let Some(parity) = self.stripes.parity_index(position) {
            let (none, rows) = (Units::default(), &self.rows[parity]);
            let content = match patch.is_delete() {
                true => Content::Tombstone { version },
                false => {
                    let (units, table) = (self.rows_units, Vec::new());
                    content(version, block_size, units, none, rows, table, &pg.buffers)
                }
            };
            let changes = self.changes(pg);
            return PeerBody::Parity { version, mark, key, lazy, content, changes };
        }
        let units = patch.units(part);
        if !patch.is_delete() && units.is_empty() {
            return skip(version, mark, lazy);
        }
        let content = patch.content(part, version, block_size, &pg.buffers);
        let wanted = match self.has_parity && !is_learner {
            true => units.without(&self.rows_units),
            false => Units::default(),
        };
        let is_direct = self.is_direct && !wanted.is_empty();
        let differences = wanted.words(block_size);
        let revision = MapRevision::ZERO;
        PeerBody::Part { version, mark, revision, key, lazy, content, differences, is_direct }
    }

    /// Returns the changes of the data parts, as they are described to members with parity.
    fn changes(&self, pg: &Pg) -> Vec<PartChange> {
        let block_size = pg.shape.block_size;
        let change = |part: usize| {
            let units = self.patch.units(part);
            PartChange {
                part: Position::new(part as u8).expect("a stripe has few parts"),
                units: units.words(block_size),
                written: self.patch.written(part).words(block_size),
                differences: units.without(&self.rows_units).words(block_size),
            }
        };
        self.patch.parts().map(change).collect()
    }
}

/// Returns the message that a version changes nothing at a member. The node adds the map's revision.
fn skip(version: Version, mark: Version, lazy: bool) -> PeerBody {
    PeerBody::Skip { version, mark, revision: MapRevision::ZERO, lazy }
}
