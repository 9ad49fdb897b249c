//! Operations on objects: they wait for their turn, and are prepared in it, each on the effects of those
//! before it.
//!
//! Invariants
//!   1. What a turn reads does not change until the turn ends: no other turn of its objects is in flight. Blind
//!      puts read nothing.
//!   2. An event looks at no more than so many steps, however many operations have queued.
//!   3. A blind put stands alone in its turn only if no block lies under the hash of any of its objects: else their
//!      heads are read first, for they name the blocks that go.

use std::collections::VecDeque;

use ::objects::operation::OPERATION_STEPS_MAX;
use ::objects::queue::{Footprint as Place, Turn, TurnId};
use ::objects::{
    Applied, DataId, Name, Operation, OperationRefusal, Repeat, Run, Shard, Stamp, Stop,
    encode_results,
};
use base::hash::object_hash;
use base::planted::{self, Bug};
use base::{Epoch, ImageId, StripeIndex, Version};
use blockstore::BlockKey;
use format::engine::Change;
use format::wire::{ListedBlock, Outcome, Refusal};

use super::page::Footprint;
use super::repeats::Sender;
use super::replicate::{Gated, Planned};
use super::wanted::Wanted;
use super::{Objects, names_of};
use crate::store_calls::{Call, NewerFor};
use crate::{Action, Pg, Ticket};

/// The most steps that are looked at in one event to prepare operations: then the turn goes on in a later
/// one, so that the loop of the OSD does what else has come. The largest operation has a quarter of them.
pub const EVENT_STEPS_MAX: usize = 4 * OPERATION_STEPS_MAX;

/// An operation that is not prepared yet.
pub struct Mutation {
    pub ticket: Ticket,
    pub sender: Sender,
    pub operation: Operation,
    /// Whether there is room to execute it.
    pub has_room: bool,
    pub earlier: Earlier,
    /// The time at which it came, in milliseconds since 1970.
    pub now: u64,
}

/// What is known of earlier sendings of an operation. It is looked for in a turn, and then true until the
/// operation is answered: while it is open here, nothing else executes it.
pub enum Earlier {
    /// None of them was executed.
    NotExecuted,
    /// The repeat must be looked for.
    Unknown,
    /// One of them was executed: the operation is answered by this.
    Executed(Repeat),
}

/// A turn that is being prepared.
pub struct Preparing {
    pub run: Run,
    /// Operations that are not prepared yet, in order.
    pub left: VecDeque<u64>,
    pub done: Vec<Done>,
    /// What is being read.
    pub wanted: Option<Wanted>,
    /// Whether each operation reads for itself: what several wanted together could not be read.
    pub reads_alone: bool,
    /// First blocks of data ids that were drawn: none of the PG may have one.
    drawn: Vec<BlockKey>,
    /// Whether a block has one of them.
    is_taken: bool,
}

/// An operation that was prepared.
pub struct Done {
    pub ticket: Ticket,
    pub sender: Sender,
    /// Its number in the queue.
    pub number: u64,
    /// The shard of its first object: its repeat is there.
    shard: Shard,
    result: Result<Answered, Refused>,
}

/// How an operation is answered.
enum Answered {
    /// It was executed.
    Now(Applied),
    /// It was executed before.
    Before(Repeat),
}

/// Why an operation was not prepared.
enum Refused {
    ByObjects(OperationRefusal),
    ByStore(Refusal),
}

impl Done {
    /// Returns its place among the versions of its run.
    pub fn index(&self) -> Option<u32> {
        match &self.result {
            Ok(Answered::Now(applied)) => applied.index,
            _ => None,
        }
    }

    /// Returns who gets a repeat, and in which shard, if the operation changes something.
    pub fn kept(&self) -> Option<(Sender, Shard)> {
        self.index().map(|_| (self.sender, self.shard))
    }

    /// Returns the operation's repeat, if it changes something. `first`: the first version of its run.
    pub fn repeat(&self, first: Version) -> Option<Change> {
        let Ok(Answered::Now(Applied { results, index: Some(index) })) = &self.result else {
            return None;
        };
        let version = Version { counter: first.counter + u64::from(*index), ..first };
        Some(self.sender.repeat(self.shard, version, results.clone()))
    }

    /// Returns what the operation is answered. `first`: the first version of its run, if that has one.
    fn outcome(self, first: Option<Version>) -> Result<Outcome, Refusal> {
        let of_run = |index: u32| {
            let first = first.expect("a run with changes has versions");
            Version { counter: first.counter + u64::from(index), ..first }
        };
        match self.result {
            Ok(Answered::Now(Applied { results, index })) => {
                let version = index.map_or(Version::ZERO, of_run);
                Ok(Outcome::Mutated { version, results: encode_results(&results) })
            }
            Ok(Answered::Before(Repeat { version, results })) => {
                Ok(Outcome::Mutated { version, results: encode_results(&results) })
            }
            Err(Refused::ByObjects(OperationRefusal::Asserted { object, step, version })) => {
                let version = version.map_or(Version::ZERO, |stamp| match stamp {
                    Stamp::Stored(version) => version,
                    Stamp::Run(index) => of_run(index),
                });
                let (object, step) = (object as u16, step as u16);
                Err(Refusal::Asserted { object, step, version })
            }
            Err(Refused::ByObjects(OperationRefusal::TooLarge { why })) => {
                Err(Refusal::TooLarge { why })
            }
            Err(Refused::ByStore(refusal)) => Err(refusal),
        }
    }
}

impl Pg {
    /// Takes an operation on objects of this PG. `has_room`: whether there is room to execute it; if not,
    /// it is only answered if it was executed before.
    pub(super) fn mutate(
        &mut self,
        ticket: Ticket,
        sender: Sender,
        (operation, has_room): (Operation, bool),
        actions: &mut Vec<Action>,
    ) {
        if let Err(refusal) = self.objects.sessions.begin(sender) {
            return actions.push(Action::Reply { ticket, outcome: Err(refusal) });
        }
        let now = self.time_of_day_ms;
        let number = self.objects.next_number();
        let footprint = Place::Changes(names_of(&operation));
        let earlier = match sender.again && !planted::on(Bug::RepeatExecuted) {
            true => Earlier::Unknown,
            false => Earlier::NotExecuted,
        };
        let is_blind = operation.is_blind_put() && matches!(earlier, Earlier::NotExecuted);
        let mutation = Mutation { ticket, sender, operation, has_room, earlier, now };
        self.objects.mutations.insert(number, mutation);
        match is_blind {
            true => self.look_under_put(number, 0, actions),
            false => self.take_place(number, footprint, actions),
        }
    }

    /// Looks whether a block lies under the hash of an object of a blind put.
    fn look_under_put(&mut self, number: u64, object: usize, actions: &mut Vec<Action>) {
        let name = self.objects.mutations[&number].operation.objects[object].name.clone();
        let first = self.key_under(&name, ImageId::FIRST, 0);
        self.find_block(NewerFor::Put { number, object }, first, actions);
    }

    /// Continues a blind put, now that it is known whether a block lies under the hash of this object.
    pub(crate) fn on_put_looked(
        &mut self,
        (number, object): (u64, usize),
        blocks: &[ListedBlock],
        actions: &mut Vec<Action>,
    ) {
        let Some(mutation) = self.objects.mutations.get(&number) else { return };
        let objects = &mutation.operation.objects;
        let hash = self.hash_of(&objects[object].name);
        let is_under = blocks.first().is_some_and(|block| block.key.hash == hash);
        if !is_under && object + 1 < objects.len() {
            return self.look_under_put(number, object + 1, actions);
        }
        let names = names_of(&mutation.operation);
        let footprint = if is_under { Place::Changes(names) } else { Place::BlindPut(names) };
        self.take_place(number, footprint, actions);
    }

    /// Gives an operation its place in the queue, and begins it if it has its turn.
    fn take_place(&mut self, number: u64, footprint: Place, actions: &mut Vec<Action>) {
        let is_blind = matches!(footprint, Place::BlindPut(_));
        if let Some(turn) = self.objects.queue.add(number, footprint) {
            let run = match is_blind {
                true => Run::new(self.pool_shape()),
                false => Run::that_reads_heads(self.pool_shape()),
            };
            self.begin_turn(turn, run);
            self.pump_objects(actions);
        }
    }

    fn begin_turn(&mut self, turn: Turn, run: Run) {
        let preparing = Preparing {
            run,
            left: turn.tickets.into(),
            done: Vec::new(),
            wanted: None,
            reads_alone: false,
            drawn: Vec::new(),
            is_taken: false,
        };
        self.objects.turns.insert(turn.id, preparing);
        self.objects.ready.push_back(turn.id);
    }

    /// Ends a turn, and begins those that waited for it.
    pub(super) fn end_turn(&mut self, turn: TurnId, actions: &mut Vec<Action>) {
        for next in self.objects.queue.end(turn) {
            let first = next.tickets[0];
            if self.objects.cleaning.waits_as(first) {
                self.begin_cleaning_turn(next.id, actions);
                continue;
            }
            match self.objects.looks.contains_key(&first) {
                true => self.begin_look_turn(next.id, first, actions),
                false => {
                    // Nothing is read before: the batch that has just ended changed it.
                    let run = match planted::on(Bug::WantsReadWhileQueued) {
                        true => Run::on(self.pool_shape(), self.objects.read_early.clone()),
                        false => Run::that_reads_heads(self.pool_shape()),
                    };
                    self.begin_turn(next, run);
                }
            }
        }
    }

    /// Prepares the operations of a turn until all are, or one needs to know more.
    pub(super) fn prepare(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let (epoch, pool) = (self.epoch(), self.shape.pg.pool);
        let sharding = self.pool_shape().sharding;
        let Objects { turns, mutations, queue, draw_count, steps_left, .. } = &mut self.objects;
        let turn = turns.get_mut(&id).expect("the turn is being prepared");
        while let Some(number) = turn.left.front().copied() {
            let Some(Mutation { ticket, sender, operation, has_room, earlier, now }) =
                mutations.get(&number)
            else {
                // It was refused while it waited.
                turn.left.pop_front();
                continue;
            };
            let shard = sharding.shard(&operation.objects[0].name);
            let steps = operation.objects.len() + operation.steps_count();
            if steps > *steps_left && *steps_left < EVENT_STEPS_MAX {
                return self.pause(id, shard, actions);
            }
            *steps_left = steps_left.saturating_sub(steps);
            let done = |result| Done { ticket: *ticket, sender: *sender, number, shard, result };
            match earlier {
                Earlier::Unknown => return self.want_records(id, actions),
                Earlier::Executed(repeat) => {
                    turn.done.push(done(Ok(Answered::Before(repeat.clone()))));
                    mutations.remove(&number);
                    turn.left.pop_front();
                    continue;
                }
                Earlier::NotExecuted => {}
            }
            // An older version may have executed it: then it was answered by its repeat.
            if let Err(refusal) = may_be_prepared(operation, *has_room) {
                turn.done.push(done(Err(Refused::ByStore(refusal))));
                mutations.remove(&number);
                turn.left.pop_front();
                continue;
            }
            let hash = sharding.hash(&operation.objects[0].name);
            let mut draw = || {
                let id = draw(epoch, draw_count);
                turn.drawn.push(id.block_key(pool, hash, 0));
                id
            };
            let result = match turn.run.apply(operation, *now, &mut draw) {
                Ok(applied) => Ok(Answered::Now(applied)),
                Err(Stop::Refused(refusal)) => Err(Refused::ByObjects(refusal)),
                Err(Stop::Wants(wants)) if !wants.units.is_empty() => {
                    return self.want_units(id, wants.units, actions);
                }
                Err(Stop::Wants(_)) => return self.want_records(id, actions),
                Err(Stop::RunIsFull) => {
                    queue.put_back(id, turn.left.make_contiguous());
                    turn.left.clear();
                    break;
                }
            };
            turn.done.push(done(result));
            mutations.remove(&number);
            turn.left.pop_front();
        }
        self.on_turn_prepared(id, actions);
    }

    /// Refuses the operation that is being prepared: what it must read cannot be read.
    pub(super) fn refuse_front(&mut self, id: TurnId, refusal: Refusal) {
        let sharding = self.pool_shape().sharding;
        let Objects { turns, mutations, .. } = &mut self.objects;
        let turn = turns.get_mut(&id).expect("the turn is being prepared");
        let number = turn.left.pop_front().expect("an operation is being prepared");
        // It may have been refused while it was read.
        let mutation = mutations.remove(&number);
        let result = Err(Refused::ByStore(refusal));
        turn.done.extend(mutation.map(|Mutation { ticket, sender, operation, .. }| {
            let shard = sharding.shard(&operation.objects[0].name);
            Done { ticket, sender, number, shard, result }
        }));
    }

    /// Continues a turn whose operations are all prepared.
    fn on_turn_prepared(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        if let Some(first) = turn.drawn.pop() {
            return self.find_block(NewerFor::Drawn { turn: id, first }, first, actions);
        }
        let Preparing { run, mut done, is_taken, .. } =
            self.objects.turns.remove(&id).expect("it was just found");
        if is_taken {
            done.iter_mut().for_each(|done| done.result = Err(Refused::ByStore(Refusal::Busy)));
        } else if run.count() > 0 {
            if planted::on(Bug::WantsReadWhileQueued) {
                self.objects.read_early = run.read().clone();
            }
            let kept = done.iter().filter_map(Done::kept);
            let footprint = Footprint {
                hashes: run.names().map(|name| self.hash_of(name)).collect(),
                repeats: kept.map(|(_, shard)| shard).collect(),
            };
            let planned = Planned::Run(run);
            return self.objects.gate.push_back(Gated { turn: Some(id), planned, done, footprint });
        }
        self.answer_done(done, None, actions);
        self.end_turn(id, actions);
    }

    /// Continues a turn, now that it is known whether a block has a data id that was drawn.
    pub(crate) fn on_drawn_looked(
        &mut self,
        id: TurnId,
        first: BlockKey,
        blocks: &[ListedBlock],
        actions: &mut Vec<Action>,
    ) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let data_id = |key: BlockKey| (key.hash, key.image, key.stripe.get() >> 12);
        turn.is_taken |= blocks.first().is_some_and(|it| data_id(it.key) == data_id(first));
        self.on_turn_prepared(id, actions);
        self.pump_objects(actions);
    }

    /// Asks for the first block of this OSD that is not before `first`.
    fn find_block(&mut self, what: NewerFor, first: BlockKey, actions: &mut Vec<Action>) {
        let call = self.calls.begin(Call::ListNewer(what));
        let (newer_than, after) = (Version::ZERO, before(first));
        actions.push(Action::ListNewer { call, newer_than, after, count_max: 1 });
    }

    fn key_under(&self, name: &Name, image: ImageId, stripe: u32) -> BlockKey {
        let stripe = StripeIndex::new(stripe);
        BlockKey { pool: self.shape.pg.pool, hash: self.hash_of(name), image, stripe }
    }

    /// Answers operations of a turn that has ended. `first`: the first of its versions, if it has any.
    pub(super) fn answer_done(
        &mut self,
        done: Vec<Done>,
        first: Option<Version>,
        actions: &mut Vec<Action>,
    ) {
        for done in done {
            self.objects.sessions.end(done.sender);
            let ticket = done.ticket;
            actions.push(Action::Reply { ticket, outcome: done.outcome(first) });
        }
    }

    /// Answers operations of a turn that could not be carried out. What was executed before is not refused.
    pub(super) fn refuse_done(
        &mut self,
        done: Vec<Done>,
        refusal: &Refusal,
        actions: &mut Vec<Action>,
    ) {
        for done in done {
            self.objects.sessions.end(done.sender);
            let ticket = done.ticket;
            let outcome = match &done.result {
                Ok(Answered::Before(_)) => done.outcome(None),
                _ => Err(refusal.clone()),
            };
            actions.push(Action::Reply { ticket, outcome });
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.entry.as_ref().expect("the PG has an entry").epoch
    }
}

/// Returns why an operation that was not executed before is refused whatever its objects have.
pub(super) fn may_be_prepared(operation: &Operation, has_room: bool) -> Result<(), Refusal> {
    operation.check_ranges().map_err(|why| Refusal::Invalid { why })?;
    if has_room { Ok(()) } else { Err(Refusal::Full) }
}

/// Draws a data id. An epoch is active once, so no two draws of a PG are of the same numbers.
fn draw(epoch: Epoch, count: &mut u64) -> DataId {
    loop {
        *count += 1;
        let numbers = [u64::from(epoch.get()), *count].map(u64::to_le_bytes).concat();
        if let Some(id) = DataId::new(object_hash(&numbers) >> 12) {
            return id;
        }
    }
}

/// Returns the key before this one. `None`: there is none in the pool.
pub fn before(key: BlockKey) -> Option<BlockKey> {
    let (hash, image, stripe) = (key.hash, key.image.get(), key.stripe.get());
    let last = u32::MAX;
    let (hash, image, stripe) = match (stripe, image) {
        (0, 1) => (hash.checked_sub(1)?, last, last),
        (0, _) => (hash, image - 1, last),
        _ => (hash, image, stripe - 1),
    };
    let image = ImageId::new(image).expect("it is not the first one");
    Some(BlockKey { hash, image, stripe: StripeIndex::new(stripe), ..key })
}
