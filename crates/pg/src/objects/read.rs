//! Reads of objects: they wait for nothing that has no version, and are answered when all members have what
//! they show.
//!
//! Invariants
//!   1. Each batch that gets a version while a read goes on is told to it, and after each answer of the store
//!      all batches in flight are.
//!   2. A complete read is answered when all batches have ended that touch what it shows, and had a version
//!      when it was complete.

use ::objects::queue::{Footprint, TurnId};
use ::objects::{Look, NameQuery, Need, Reading, Shard, encode_answers};
use base::planted::{self, Bug};
use base::{Buffer, Version};
use blockstore::{Answer, AsOf, Request as StoreRequest, StoreError};
use format::wire::{Outcome, Payload, Refusal};

use super::replicate::Batch;
use crate::store_calls::Call;
use crate::{Action, Pg, Ticket, refusal_of};

/// A read that changes have overtaken so often waits for its turn among them.
const OVERTAKEN_MAX: u32 = 3;

/// A read that has not been answered.
pub struct Looking {
    pub ticket: Ticket,
    reading: Reading,
    stage: LookStage,
    /// Its turn among the changes of its objects, if it needed one.
    turn: Option<TurnId>,
}

/// How far a read has got.
enum LookStage {
    /// Waits for records.
    Records,
    /// Waits for these parts of blocks; `None`: it has not come.
    Blocks(Vec<Option<Buffer>>),
    /// Waits for its turn.
    Queued,
    /// Is complete, and waits for the end of this batch.
    Complete(Version),
}

impl Pg {
    /// Begins to read objects.
    pub(super) fn begin_look(&mut self, ticket: Ticket, look: Look, actions: &mut Vec<Action>) {
        let reading = Reading::new(look, self.pool_shape());
        let number = self.objects.next_number();
        let looking = Looking { ticket, reading, stage: LookStage::Records, turn: None };
        self.objects.looks.insert(number, looking);
        self.read_on(number, actions);
    }

    /// Decodes what to read, and checks that it is of this PG.
    pub(super) fn look_of(&self, payload: &Payload) -> Result<Look, Refusal> {
        let bytes = payload.bytes().ok_or(Refusal::Corrupted)?;
        let look = Look::decode(bytes).map_err(|why| Refusal::Invalid { why })?;
        self.check_names(look.names())?;
        let shards = self.shards();
        let is_of_pg = |shard: &Shard| shards.contains(shard);
        match look.shards(self.pool_shape().sharding).iter().all(is_of_pg) {
            true => Ok(look),
            false => Err(Refusal::Invalid { why: "a shard does not belong to this PG".into() }),
        }
    }

    /// Decodes which of the PG's objects to list.
    pub(super) fn list_of(&self, payload: &Payload) -> Result<Look, Refusal> {
        let invalid = |why| Refusal::Invalid { why };
        let bytes = payload.bytes().ok_or(Refusal::Corrupted)?;
        let query = NameQuery::decode(bytes).map_err(invalid)?;
        let (first, last) = self.shards().into_inner();
        let shards = (first.get()..=last.get()).map(Shard::new);
        let look = query.look(shards);
        look.check().map_err(invalid)?;
        Ok(look)
    }

    /// Reads what a read needs next, or completes it.
    fn read_on(&mut self, number: u64, actions: &mut Vec<Action>) {
        let looking = self.objects.looks.get_mut(&number).expect("the read is open");
        if looking.reading.overtaken_count() >= OVERTAKEN_MAX && looking.turn.is_none() {
            looking.stage = LookStage::Queued;
            let names = looking.reading.names().into_iter().cloned().collect();
            let turn = self.objects.queue.add(number, Footprint::Read(names));
            turn.into_iter().for_each(|turn| self.begin_look_turn(turn.id, number, actions));
            return;
        }
        match looking.reading.needs() {
            None => self.complete_look(number, actions),
            Some(Need::Records(_)) => {
                looking.stage = LookStage::Records;
                self.ask_look_records(number, true, actions);
            }
            Some(Need::Blocks(ranges)) => {
                looking.stage = LookStage::Blocks(vec![None; ranges.len()]);
                for (index, range) in ranges.into_iter().enumerate() {
                    let (key, offset, length) = (range.key, range.offset, range.length);
                    let request = StoreRequest::Read { key, offset, length, as_of: AsOf::View };
                    self.call(Call::LookBlock { number, index }, request, actions);
                }
            }
        }
    }

    /// Lets a read go on that has its turn: no change of its objects is in flight now.
    pub(super) fn begin_look_turn(&mut self, turn: TurnId, number: u64, actions: &mut Vec<Action>) {
        self.objects.looks.get_mut(&number).expect("the read is open").turn = Some(turn);
        self.read_on(number, actions);
    }

    fn ask_look_records(&mut self, number: u64, from_memory: bool, actions: &mut Vec<Action>) {
        let Some(Need::Records(queries)) = self.objects.looks[&number].reading.needs() else {
            unreachable!("it waits for records")
        };
        let request =
            StoreRequest::Records { pg: self.shape.pg, queries, from_memory, caches: true };
        self.call(Call::LookRecords { number }, request, actions);
    }

    /// Handles the store's answer to a request for records.
    pub(crate) fn on_look_records(
        &mut self,
        number: u64,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Some(looking) = self.objects.looks.get_mut(&number) else { return };
        let came = match result {
            Err(StoreError::WouldBlock) => return self.ask_look_records(number, false, actions),
            Ok(Answer::Records { version, answers }) => {
                let came = looking.reading.supply_records(version, answers);
                came.map_err(|_| Refusal::Damaged { units: Vec::new() })
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => Err(refusal_of(error)),
        };
        match came {
            Ok(()) => self.on_look_supplied(number, actions),
            Err(refusal) => self.end_look(number, Err(refusal), actions),
        }
    }

    /// Handles the store's answer to a request for a part of a block.
    pub(crate) fn on_look_block(
        &mut self,
        number: u64,
        index: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Some(looking) = self.objects.looks.get_mut(&number) else { return };
        let LookStage::Blocks(blocks) = &mut looking.stage else {
            unreachable!("it waits for blocks")
        };
        match result {
            Ok(Answer::Read { data, .. }) => blocks[index] = Some(data),
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(StoreError::Damaged { .. }) => {
                let refusal = Refusal::Damaged { units: Vec::new() };
                return self.end_look(number, Err(refusal), actions);
            }
            Err(error) => return self.end_look(number, Err(refusal_of(error)), actions),
        }
        if blocks.iter().any(Option::is_none) {
            return;
        }
        let contents = blocks.iter().flatten().map(|data| &data[..]);
        looking.reading.supply_blocks(contents);
        self.on_look_supplied(number, actions);
    }

    fn on_look_supplied(&mut self, number: u64, actions: &mut Vec<Action>) {
        let looking = self.objects.looks.get_mut(&number).expect("the read is open");
        for batch in &self.objects.in_flight {
            looking.note(batch);
        }
        self.read_on(number, actions);
        // Its turn may have ended.
        self.pump_objects(actions);
    }

    /// Tells the reads that go on of a batch that has its versions now.
    pub(super) fn tell_looks(&mut self, batch: &Batch) {
        for looking in self.objects.looks.values_mut() {
            looking.note(batch);
        }
    }

    /// Completes a read: it is answered when all members have what it shows.
    fn complete_look(&mut self, number: u64, actions: &mut Vec<Action>) {
        let looking = self.objects.looks.get_mut(&number).expect("the read is open");
        if let Some(turn) = looking.turn.take() {
            self.end_turn(turn, actions);
        }
        let looking = self.objects.looks.get_mut(&number).expect("the read is open");
        let is_met = |batch: &&Batch| {
            batch.touched.values().any(|touched| looking.reading.is_met_by(touched))
        };
        match self.objects.in_flight.iter().rev().find(is_met) {
            Some(batch) if !planted::on(Bug::ReadShowsUnacknowledged) => {
                looking.stage = LookStage::Complete(batch.version);
            }
            _ => self.answer_look(number, actions),
        }
    }

    /// Answers the complete reads that waited for batches up to this version.
    pub(super) fn answer_looks(&mut self, ended: Version, actions: &mut Vec<Action>) {
        let is_due = |(number, looking): (&u64, &Looking)| match looking.stage {
            LookStage::Complete(version) if version <= ended => Some(*number),
            _ => None,
        };
        for number in self.objects.looks.iter().filter_map(is_due).collect::<Vec<_>>() {
            self.answer_look(number, actions);
        }
    }

    fn answer_look(&mut self, number: u64, actions: &mut Vec<Action>) {
        let Looking { ticket, reading, .. } =
            self.objects.looks.remove(&number).expect("the read is open");
        let answers = Payload::new(&encode_answers(&reading.finish()), &self.buffers);
        actions.push(Action::Reply { ticket, outcome: Ok(Outcome::Looked { answers }) });
    }

    /// Ends a read that cannot go on.
    fn end_look(
        &mut self,
        number: u64,
        outcome: Result<Outcome, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let Looking { ticket, turn, .. } =
            self.objects.looks.remove(&number).expect("the read is open");
        actions.push(Action::Reply { ticket, outcome });
        if let Some(turn) = turn {
            self.end_turn(turn, actions);
            self.pump_objects(actions);
        }
    }
}

impl Looking {
    #[cfg(test)]
    pub fn has_place(&self) -> bool {
        self.is_queued() || self.turn.is_some()
    }

    fn note(&mut self, batch: &Batch) {
        if !matches!(self.stage, LookStage::Complete(_)) {
            batch.touched.values().for_each(|it| self.reading.note_batch(batch.version, it));
        }
    }

    /// Whether the read waits for its turn among the changes.
    pub fn is_queued(&self) -> bool {
        matches!(self.stage, LookStage::Queued)
    }
}
