//! Pools of objects: operations on objects at their primary, and the batches that bring what they change to all
//! members. `docs/internals/objects.md` has the rules; what operations change is computed by the crate
//! `objects`.
//!
//! | question | files |
//! |---|---|
//! | which operations have their turn, and what they change | `mutate`, with `wanted` |
//! | how a batch gets its versions and reaches all members | `replicate` |
//! | what a member does with a batch | `member`, with `batch` |
//! | how members that differ come together | `forward`, with `log` |
//! | how logs are cut, and tombstones and repeats go | `clean` |
//! | how objects are read | `read` |
//! | which operations were executed before | `repeats` |
//! | how a scrub compares records | `compare` |
//! | how a learner is brought to what the primary has | `fill`, with `catch_up`, `walk` and `page` |
//!
//! ```text
//!   operation ─▶ Queue ─▶ turn: prepared, with reads ─▶ gate ─▶ versions, sent to all ─▶ acknowledged ─▶ replies
//!                  ▲                                                                        │
//!                  └──────────────────────────── the next turn of its objects ◀─────────────┘
//! ```
//!
//! Invariants
//!   1. A turn ends when what it changes is at all acting members and bound learners. Until then no other turn
//!      of its objects begins, except that blind puts follow each other.
//!   2. All in flight, together, fit one entry of a journal.
//!   3. Nothing of a turn is answered before the turn ends: answers may show what its other operations change.

pub(crate) mod batch;
mod catch_up;
mod clean;
mod compare;
mod fill;
mod forward;
pub(crate) mod log;
mod member;
pub(crate) mod mutate;
mod page;
mod read;
pub(crate) mod repeats;
mod replicate;
mod walk;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ::objects::queue::TurnId;
use ::objects::{Name, Operation, PoolShape, Queue, ReadRecords, RunSize, Shard};
use base::{SessionId, SessionRange, Version};
use blockstore::Request as StoreRequest;
use format::engine::Query;
use format::wire::{Op, Payload, Refusal};

use clean::Cleaning;
use compare::{Compared, Comparing};
use fill::Fill;
use forward::Forwarding;
use mutate::{Done, Mutation, Preparing};
use read::Looking;
use repeats::{Sender, Sessions};
use replicate::{Batch, Gated};

use crate::store_calls::Call;
use crate::{Action, Pg, Serving, Ticket};

/// The operations of an epoch on objects, at its primary.
#[derive(Default)]
pub(crate) struct Objects {
    queue: Queue,
    /// Operations that wait for their turn, or in their turn, by their numbers in the queue.
    mutations: BTreeMap<u64, Mutation>,
    /// Reads that have not been answered, by their numbers in the queue.
    looks: BTreeMap<u64, Looking>,
    number_last: u64,
    /// Turns that are being prepared.
    turns: BTreeMap<TurnId, Preparing>,
    /// Turns whose preparation goes on.
    ready: VecDeque<TurnId>,
    /// How many steps may still be looked at in this event, to prepare operations.
    steps_left: usize,
    /// What was prepared and has no versions yet, in order.
    gate: VecDeque<Gated>,
    /// Batches with versions that have not ended, in the order of versions.
    in_flight: VecDeque<Batch>,
    /// What all of them take in an entry.
    in_flight_size: RunSize,
    /// Up to which version each member has answered.
    counted: BTreeMap<usize, Version>,
    /// Learners that are being filled, by their indices.
    fills: BTreeMap<usize, Fill>,
    sessions: Sessions,
    forwarding: Forwarding,
    cleaning: Cleaning,
    /// Pages of a learner whose answers wait until its engine has space.
    pub late_pages: Vec<u32>,
    /// The page of records that a scrub compares, and where it goes on.
    comparing: Option<Comparing>,
    compared: Option<Compared>,
    /// Number of data ids that were drawn in the epoch.
    draw_count: u64,
    /// What a planted bug takes for what the store has.
    read_early: ReadRecords,
}

impl Objects {
    /// Returns the number of blocks in batches that a member has not answered.
    pub fn missing_blocks(&self, index: usize) -> usize {
        let missing = self.in_flight.iter().filter(|batch| batch.is_missing(index));
        missing.map(|batch| batch.block_count).sum()
    }

    /// Returns the number of the next operation in the queue.
    fn next_number(&mut self) -> u64 {
        self.number_last += 1;
        self.number_last
    }

    /// Returns the place of the next operation among all.
    pub fn order_next(&self) -> u64 {
        self.number_last + 1
    }

    /// Returns whether a mutation has not ended that came before this place.
    pub fn has_open_before(&self, order: u64) -> bool {
        let done = self.turns.values().map(|turn| &turn.done);
        let done = done.chain(self.gate.iter().map(|gated| &gated.done));
        let mut done = done.chain(self.in_flight.iter().map(|batch| &batch.done)).flatten();
        let is_waiting =
            self.mutations.first_key_value().is_some_and(|(number, _)| *number < order);
        is_waiting || done.any(|done| done.number < order)
    }

    /// Returns how many reads wait for their turn, or have it.
    #[cfg(test)]
    pub fn reads_in_turn(&self) -> usize {
        self.looks.values().filter(|it| it.has_place()).count()
    }

    /// Returns the tickets of all operations that have not been answered.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let done = self.turns.values().map(|turn| &turn.done);
        let done = done.chain(self.gate.iter().map(|gated| &gated.done));
        let done = done.chain(self.in_flight.iter().map(|batch| &batch.done)).flatten();
        let waiting = self.mutations.values().map(|mutation| mutation.ticket);
        let looks = self.looks.values().map(|looking| looking.ticket);
        waiting.chain(looks).chain(done.map(|done: &Done| done.ticket))
    }
}

impl Pg {
    /// Says which sessions of the pool are over, in order: their repeats are deleted. Requires: from now on,
    /// OSDs refuse what these sessions send, and so do the primaries of all later epochs.
    pub fn note_over(&mut self, over: &Arc<[SessionRange]>) {
        self.objects.sessions.note_over(over);
    }

    /// Begins an operation in a pool of objects.
    pub(crate) fn execute_on_objects(
        &mut self,
        ticket: Ticket,
        session: SessionId,
        (op, has_room): (Op, bool),
        actions: &mut Vec<Action>,
    ) {
        let refusal = match op {
            Op::Mutate { number, lowest, again, operation } => {
                match self.operation_of(&operation) {
                    Ok(operation) => {
                        let sender = Sender { session, number, lowest, again };
                        return self.mutate(ticket, sender, (operation, has_room), actions);
                    }
                    Err(refusal) => refusal,
                }
            }
            Op::Look { reads } => match self.look_of(&reads) {
                Ok(look) => return self.begin_look(ticket, look, actions),
                Err(refusal) => refusal,
            },
            Op::List { names, .. } => match self.list_of(&names) {
                Ok(look) => return self.begin_look(ticket, look, actions),
                Err(refusal) => refusal,
            },
            _ => Refusal::Invalid { why: "the pool has objects, not blocks".into() },
        };
        actions.push(Action::Reply { ticket, outcome: Err(refusal) });
    }

    /// Decodes an operation, and checks that its objects are of this PG.
    fn operation_of(&self, payload: &Payload) -> Result<Operation, Refusal> {
        let bytes = payload.bytes().ok_or(Refusal::Corrupted)?;
        let operation = Operation::decode(bytes).map_err(|why| Refusal::Invalid { why })?;
        self.check_names(operation.objects.iter().map(|object| &object.name))?;
        Ok(operation)
    }

    fn check_names<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Result<(), Refusal> {
        let (first, last) = self.shape.hashes();
        match names.into_iter().find(|name| !(first..=last).contains(&self.hash_of(name))) {
            None => Ok(()),
            Some(name) => {
                let why = format!("the object {name:?} does not belong to this PG");
                Err(Refusal::Invalid { why })
            }
        }
    }

    /// Returns the shards of the PG.
    fn shards(&self) -> RangeInclusive<Shard> {
        let (first, last) = self.shape.hashes();
        let shard_count = self.pool_shape().sharding.shard_count;
        Shard::of_hash(first, shard_count)..=Shard::of_hash(last, shard_count)
    }

    /// Returns the number of shards of the PG; 0: it has no objects.
    pub fn shard_count(&self) -> u32 {
        let count = || u32::from(self.shards().end().get() - self.shards().start().get()) + 1;
        self.shape.objects.map_or(0, |_| count())
    }

    fn shard_list(&self) -> impl Iterator<Item = Shard> + use<> {
        let shards = self.shards();
        (shards.start().get()..=shards.end().get()).map(Shard::new)
    }

    /// Reads records of this OSD.
    fn read_records(&mut self, call: Call, queries: Vec<Query>, actions: &mut Vec<Action>) {
        let request =
            StoreRequest::Records { pg: self.shape.pg, queries, from_memory: false, caches: false };
        self.call(call, request, actions);
    }

    fn hash_of(&self, name: &Name) -> u32 {
        self.pool_shape().sharding.hash(name)
    }

    fn pool_shape(&self) -> PoolShape {
        self.shape.objects.expect("the pool has objects")
    }

    /// Prepares turns, sends batches, scrubs and fills learners until all wait for something. If the epoch
    /// has ended, what is not sent is answered when the next one begins.
    pub(crate) fn pump_objects(&mut self, actions: &mut Vec<Action>) {
        if self.shape.objects.is_none() {
            return;
        }
        self.objects.steps_left = mutate::EVENT_STEPS_MAX;
        while self.serving == Serving::Active
            && let Some(turn) = self.objects.ready.pop_front()
        {
            self.prepare(turn, actions);
        }
        self.pass_gate(actions);
        self.pump_scrub(actions);
        self.pump_fills(actions);
        self.report_complete(actions);
    }

    /// Refuses operations that wait for their turn, or are not prepared in it yet, and for which `judge`
    /// returns a refusal. They keep their places in the queue until their turn.
    pub(crate) fn refuse_waiting_mutations(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let mut is_kept = |ticket: Ticket| {
            let refusal = judge(ticket);
            let is_kept = refusal.is_none();
            actions.extend(refusal.map(|it| Action::Reply { ticket, outcome: Err(it) }));
            is_kept
        };
        let Objects { mutations, sessions, .. } = &mut self.objects;
        mutations.retain(|_, mutation| {
            let is_kept = is_kept(mutation.ticket);
            if !is_kept {
                sessions.end(mutation.sender);
            }
            is_kept
        });
        self.objects.looks.retain(|_, it| !it.is_queued() || is_kept(it.ticket));
    }
}

/// Returns the objects of an operation.
fn names_of(operation: &Operation) -> BTreeSet<Name> {
    operation.objects.iter().map(|object| object.name.clone()).collect()
}
