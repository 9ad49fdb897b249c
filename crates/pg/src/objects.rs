//! Pools of objects: operations on objects at their primary, and the batches that bring what they change to all
//! members. `docs/internals/objects.md` has the rules; what operations change is computed by the crate
//! `objects`.
//!
//! | question | files |
//! |---|---|
//! | which operations have their turn, and what they change | `mutate`, with `wanted` |
//! | how a batch gets its versions and reaches all members | `replicate` |
//! | what a member does with a batch | `member`, with `batch` |
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
mod member;
pub(crate) mod mutate;
mod replicate;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ::objects::queue::TurnId;
use ::objects::{Name, Operation, PoolShape, Queue};
use format::wire::{Op, Payload, Refusal};

use mutate::{Done, Mutation, Preparing};
use replicate::{Batch, Gated};

use crate::{Action, Pg, Ticket};

/// The operations of an epoch on objects, at its primary.
#[derive(Default)]
pub(crate) struct Objects {
    queue: Queue,
    /// Operations that wait for their turn, or in their turn, by their numbers in the queue.
    mutations: BTreeMap<u64, Mutation>,
    mutation_count: u64,
    /// Turns that are being prepared.
    turns: BTreeMap<TurnId, Preparing>,
    /// Turns whose preparation goes on.
    ready: VecDeque<TurnId>,
    /// What was prepared and has no versions yet, in order.
    gate: VecDeque<Gated>,
    /// Batches with versions that have not ended, in the order of versions.
    in_flight: VecDeque<Batch>,
    /// Number of data ids that were drawn in the epoch.
    draw_count: u64,
}

impl Objects {
    /// Returns the tickets of all operations that have not been answered.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        let done = self.turns.values().map(|turn| &turn.done);
        let done = done.chain(self.gate.iter().map(|gated| &gated.done));
        let done = done.chain(self.in_flight.iter().map(|batch| &batch.done)).flatten();
        let waiting = self.mutations.values().map(|mutation| mutation.ticket);
        waiting.chain(done.map(|done: &Done| done.ticket))
    }
}

impl Pg {
    /// Begins an operation in a pool of objects.
    pub(crate) fn execute_on_objects(&mut self, ticket: Ticket, op: Op, actions: &mut Vec<Action>) {
        let refusal = match op {
            Op::Mutate { operation, .. } => match self.operation_of(&operation) {
                Ok(operation) => return self.mutate(ticket, operation, actions),
                Err(refusal) => refusal,
            },
            Op::Look { .. } => {
                Refusal::Invalid { why: "reads of objects are not built yet".into() }
            }
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
        match names.into_iter().find(|name| !(first..=last).contains(&name.hash())) {
            None => Ok(()),
            Some(name) => {
                let why = format!("the object {name:?} does not belong to this PG");
                Err(Refusal::Invalid { why })
            }
        }
    }

    fn pool_shape(&self) -> PoolShape {
        self.shape.objects.expect("the pool has objects")
    }

    /// Prepares turns and sends batches until all wait for something.
    pub(crate) fn pump_objects(&mut self, actions: &mut Vec<Action>) {
        while let Some(turn) = self.objects.ready.pop_front() {
            self.prepare(turn, actions);
        }
        self.pass_gate(actions);
    }

    /// Refuses the operations that are not prepared yet and for which `judge` returns a refusal. They keep
    /// their places in the queue until their turn.
    pub(crate) fn refuse_waiting_mutations(
        &mut self,
        judge: &mut impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        self.objects.mutations.retain(|_, mutation| {
            let refusal = judge(mutation.ticket);
            let is_refused = refusal.is_some();
            let reply = |refusal| Action::Reply { ticket: mutation.ticket, outcome: Err(refusal) };
            actions.extend(refusal.map(reply));
            !is_refused
        });
    }
}

/// Returns the objects of an operation.
fn names_of(operation: &Operation) -> BTreeSet<Name> {
    operation.objects.iter().map(|object| object.name.clone()).collect()
}
