//! Batches at their primary: the gate, their versions, and how they reach all members.
//!
//! Invariants
//!   1. Batches get their versions in the order in which they were prepared, each a run without a gap, and are
//!      sent to all members at once.
//!   2. A batch ends when every member that must acknowledge it has it durably; all before it have ended then.

use std::collections::{BTreeMap, VecDeque};

use ::objects::queue::TurnId;
use ::objects::{Prepared, Run, RunSize, Shard, Touched};
use base::Version;
use blockstore::{Answer, Batch as StoreBatch, Request as StoreRequest, StoreError};
use format::engine::Change;
use format::wire::{PeerBody, Refusal};

use super::log::log_of;
use super::mutate::Done;
use super::page::Footprint;
use super::{Objects, batch};
use crate::store_calls::Call;
use crate::{Action, MemberSet, Need, Pg, Serving, Ticket, refusal_of};

/// What was prepared, and waits for its versions.
pub struct Gated {
    /// `None`: no objects wait for it.
    pub turn: Option<TurnId>,
    pub planned: Planned,
    pub done: Vec<Done>,
    pub footprint: Footprint,
}

/// What a batch will change.
pub enum Planned {
    /// What operations change.
    Run(Run),
    /// Housekeeping: changes that members have alike, and those of their logs.
    Cleaning { records: Vec<Change>, log: Vec<Change> },
}

impl Planned {
    fn size(&self) -> RunSize {
        match self {
            Planned::Run(run) => run.size(),
            Planned::Cleaning { records, log } => {
                let mut size = RunSize::of_records(records);
                size += RunSize::of_records(log);
                size
            }
        }
    }

    /// Returns the number of its versions.
    fn count(&self) -> u32 {
        match self {
            Planned::Run(run) => run.count(),
            Planned::Cleaning { .. } => 1,
        }
    }

    /// Returns what it changes from this version on, and what of the logs beside their own record.
    fn finish(self, first: Version) -> (Prepared, Vec<Change>) {
        match self {
            Planned::Run(run) => (run.finish(first), Vec::new()),
            Planned::Cleaning { records, log } => {
                (Prepared { version: first, records, blocks: Vec::new() }, log)
            }
        }
    }
}

/// A batch that not all members have.
pub struct Batch {
    turn: Option<TurnId>,
    is_cleaning: bool,
    pub done: Vec<Done>,
    first: Version,
    /// The last of its versions.
    pub version: Version,
    /// Members that have not answered.
    missing: MemberSet,
    size: RunSize,
    /// Number of blocks of which it brings units.
    pub block_count: usize,
    pub footprint: Footprint,
    pub touched: BTreeMap<Shard, Touched>,
}

impl Batch {
    /// Returns whether this member has not answered it.
    pub fn is_missing(&self, index: usize) -> bool {
        self.missing.has(index)
    }
}

impl Pg {
    /// Gives versions to what was prepared, as far as all in flight would fit one entry. What a page stops
    /// stops only what follows it in the same object.
    pub(super) fn pass_gate(&mut self, actions: &mut Vec<Action>) {
        let (mut at, mut stopped) = (0, Footprint::default());
        while self.serving == Serving::Active
            && !self.holds_versions
            && !self.is_gate_held()
            && !self.is_gate_held_by_scrub()
            && let Some(gated) = self.objects.gate.get(at)
        {
            let footprint = &gated.footprint;
            if self.is_stopped_by_fills(footprint) || !stopped.hashes.is_disjoint(&footprint.hashes)
            {
                stopped.hashes.extend(&footprint.hashes);
                at += 1;
                continue;
            }
            let mut size = gated.planned.size();
            size += self.objects.in_flight_size;
            if !self.objects.in_flight.is_empty() && size.check().is_err() {
                return;
            }
            let gated = self.objects.gate.remove(at).expect("it was just found");
            self.send_batch(gated, actions);
        }
    }

    /// Says whether operations get no versions for now, since a store that must take them lags.
    pub fn hold_versions(&mut self, holds: bool, actions: &mut Vec<Action>) {
        self.holds_versions = holds;
        if self.shape.objects.is_some() {
            self.pump_objects(actions);
        }
    }

    /// Whether operations get no versions for now.
    pub fn holds_versions(&self) -> bool {
        self.holds_versions
    }

    /// Answers as *busy* what waits for versions, or for its turn.
    pub(super) fn refuse_gated(&mut self, actions: &mut Vec<Action>) {
        let gate = std::mem::take(&mut self.objects.gate);
        let (refused, kept) = gate.into_iter().partition(|gated| !gated.done.is_empty());
        self.objects.gate = kept;
        self.refuse_all(refused, actions);
    }

    fn refuse_all(&mut self, refused: VecDeque<Gated>, actions: &mut Vec<Action>) {
        for Gated { turn, done, .. } in refused {
            self.refuse_done(done, &Refusal::Busy, actions);
            if let Some(turn) = turn {
                self.end_turn(turn, actions);
            }
        }
    }

    /// Answers as *busy* what waits for versions, or for its turn, and which `is_overdue`. A turn is prepared
    /// as a whole, so all of it goes.
    pub fn refuse_held(&mut self, is_overdue: impl Fn(Ticket) -> bool, actions: &mut Vec<Action>) {
        let has_overdue = |gated: &Gated| gated.done.iter().any(|done| is_overdue(done.ticket));
        let gate = std::mem::take(&mut self.objects.gate).into_iter();
        let (overdue, kept) = gate.partition(has_overdue);
        self.objects.gate = kept;
        self.refuse_all(overdue, actions);
        let mut judge = |ticket| is_overdue(ticket).then_some(Refusal::Busy);
        self.refuse_waiting_mutations(&mut judge, actions);
        self.pump_objects(actions);
    }

    /// Gives a batch its versions, and hands it to every member: to the others by message, in version order,
    /// and to this OSD's store.
    fn send_batch(&mut self, gated: Gated, actions: &mut Vec<Action>) {
        let Gated { turn, planned, done, footprint } = gated;
        let is_cleaning = matches!(planned, Planned::Cleaning { .. });
        let (epoch, mark, after) = (self.epoch(), self.mark(), self.versions.newest());
        assert!(mark <= after);
        let mut size = planned.size();
        let first = self.versions.give_run(epoch, planned.count());
        let (mut prepared, log) = planned.finish(first);
        let sessions = &mut self.objects.sessions;
        let sweeps = sessions.sweep(done.iter().filter_map(Done::kept));
        // What is in flight with it has room for a forward.
        size += RunSize::of_records(&sweeps);
        prepared.records.extend(sweeps);
        prepared.records.extend(done.iter().filter_map(|done| done.repeat(first)));
        done.iter().filter_map(Done::kept).for_each(|(sender, shard)| sessions.keep(sender, shard));
        let version = prepared.version;
        assert!(version == self.versions.newest());
        let missing = self.write_targets.targets();
        assert!(missing.has(self.lead().me));
        self.local_state.on_batch(version);
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let touched = Touched::of(&prepared, self.pool_shape());
        prepared.records.extend(log_of(&touched, version, block_size));
        prepared.records.extend(log);
        self.objects.cleaning.note(touched.values());
        let (content, changes) = batch::encode(prepared, block_size, &self.buffers);
        let lead = self.lead();
        lead.mark_told = mark;
        let (me, acting) = (lead.me, lead.acting);
        for index in missing.iter().filter(|index| *index != me) {
            if !acting.has(index) {
                self.on_sent_to_learner(index, version, content.data.len() as u64);
            }
            let body = PeerBody::Batch { after, version, mark, content: content.clone() };
            self.send(index, body, actions);
        }
        let block_count = changes.blocks.len();
        let batch = Batch {
            turn,
            is_cleaning,
            done,
            first,
            version,
            missing,
            size,
            block_count,
            footprint,
            touched,
        };
        self.tell_looks(&batch);
        self.objects.in_flight_size += size;
        self.objects.in_flight.push_back(batch);
        let batch::Changes { records, blocks } = changes;
        let batch = StoreBatch { pg, block_size, after, version, records, blocks, note: None };
        self.call(Call::Batch { first, version }, StoreRequest::Batch(batch), actions);
    }

    /// Returns the versions of housekeeping in flight.
    #[cfg(test)]
    pub(crate) fn cleanings_in_flight(&self) -> impl Iterator<Item = Version> {
        let batches = self.objects.in_flight.iter().filter(|batch| batch.is_cleaning);
        batches.map(|batch| batch.version)
    }

    /// Returns the versions in flight, each with the operation that has it.
    #[cfg(test)]
    pub(crate) fn objects_in_flight(&self) -> Vec<(Version, crate::Ticket)> {
        let of_batch = |batch: &Batch| {
            let first = batch.first;
            let versions = batch.done.iter().filter_map(move |done| {
                let counter = first.counter + u64::from(done.index()?);
                Some((Version { counter, ..first }, done.ticket))
            });
            versions.collect::<Vec<_>>()
        };
        self.objects.in_flight.iter().flat_map(of_batch).collect()
    }

    /// Handles the answer of this OSD's own store to a batch.
    pub(crate) fn on_own_batch(
        &mut self,
        (first, version): (Version, Version),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead.as_ref().expect("a primary serves");
        let (me, is_alone) = (lead.me, lead.is_alone());
        let error = match result {
            Ok(_) => return self.count_batch(me, version, actions),
            Err(error) => error,
        };
        self.local_state.lacks_batch(first);
        let why = "the store has no room for a batch".to_owned();
        let member = self.lead().peers[me].member;
        if !is_alone {
            return self.end_epoch(Need::Failed(member, why.clone()), why, actions);
        }
        // No member has the batch, so it never happened. No later one may follow it.
        self.end_epoch(Need::NewEpoch, why, actions);
        let in_flight = &mut self.objects.in_flight;
        let index = in_flight.iter().position(|batch| batch.version == version);
        let batch = index.and_then(|index| in_flight.remove(index));
        let batch = batch.expect("it has not ended");
        self.objects.in_flight_size -= batch.size;
        self.refuse_done(batch.done, &refusal_of(error), actions);
    }

    /// Notes that a member has all batches up to this version.
    pub(crate) fn count_batch(
        &mut self,
        index: usize,
        version: Version,
        actions: &mut Vec<Action>,
    ) {
        let Objects { in_flight, counted, .. } = &mut self.objects;
        let before = counted.insert(index, version).unwrap_or(Version::ZERO);
        let from = in_flight.partition_point(|batch| batch.version <= before);
        let end = in_flight.partition_point(|batch| batch.version <= version);
        // An answer that comes late counts nothing.
        in_flight.iter_mut().take(end).skip(from).for_each(|batch| batch.missing.take(index));
        counted.insert(index, version.max(before));
        self.end_batches(actions);
    }

    /// Ends the batches that every member has that must acknowledge them.
    pub(crate) fn end_batches(&mut self, actions: &mut Vec<Action>) {
        while let Some(first) = self.objects.in_flight.front()
            && self.write_targets.is_acknowledged_without(first.missing)
        {
            let batch = self.objects.in_flight.pop_front().expect("it was just found");
            self.objects.in_flight_size -= batch.size;
            self.versions.end_run(batch.first, batch.version);
            self.answer_done(batch.done, Some(batch.first), actions);
            if let Some(turn) = batch.turn {
                self.end_turn(turn, actions);
            }
            self.answer_looks(batch.version, actions);
            if batch.is_cleaning {
                self.on_cleaned(actions);
            }
        }
        self.pump_objects(actions);
    }
}
