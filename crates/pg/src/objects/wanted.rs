//! What must be read before an operation can be prepared: its repeat, heads, fields, and units of blocks.
//!
//! Invariants
//!   1. A turn goes on when all that was asked for has come. If something cannot be read, the operation that
//!      needs it is refused, and the turn goes on with the next one.

use std::collections::BTreeMap;

use ::objects::queue::TurnId;
use ::objects::{DataId, Field, Head, Key, Kind, Name, Repeat, Run, Shard, Wants};
use base::UNIT_SIZE;
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::disk::UnitSet;
use format::engine::{Answer as Found, QUERY_COUNT_MAX, Query};
use format::wire::{Content, Refusal};

use super::mutate::Preparing;
use crate::store_calls::Call;
use crate::{Action, Pg, refusal_of};

/// What is being read for a turn.
pub struct Wanted {
    keys: Vec<WantedKey>,
    blocks: Vec<WantedBlock>,
    /// Number of requests to the store without an answer.
    open_count: usize,
    /// Why something could not be read.
    failed: Option<Refusal>,
}

enum WantedKey {
    Head(Name),
    Field(Name, Field),
    /// The repeat of the operation with this number in the queue, by its key.
    Repeat(u64, Vec<u8>),
}

/// Units of a block.
struct WantedBlock {
    key: BlockKey,
    id: DataId,
    /// The first unit of the block, among those of the object.
    first: u32,
    units: UnitSet,
}

impl WantedKey {
    fn encode(&self, shard_count: u32) -> Vec<u8> {
        let (name, kind) = match self {
            WantedKey::Repeat(_, key) => return key.clone(),
            WantedKey::Head(name) => (name, Kind::Head { name: name.clone() }),
            WantedKey::Field(name, field) => {
                let name_of = name.clone();
                let kind = match field {
                    Field::Attribute(attribute) => {
                        Kind::Attribute { name: name_of, attribute: attribute.clone() }
                    }
                    Field::Record(key) => Kind::Record { name: name_of, key: key.clone() },
                };
                (name, kind)
            }
        };
        Key { shard: Shard::of_hash(name.hash(), shard_count), kind }.encode()
    }

    /// Hands the value over to the turn. Returns false if it is none that such a key can have.
    fn supply(&self, turn: &mut Preparing, value: Option<Vec<u8>>) -> bool {
        match self {
            WantedKey::Head(name) => {
                let head = value.as_deref().map(Head::decode);
                if head == Some(None) {
                    // The next operation of the turn must not take the object for absent.
                    return false;
                }
                turn.run.supply_head(name.clone(), head.flatten());
                turn.knows_head = true;
                true
            }
            WantedKey::Field(name, field) => {
                turn.run.supply_field(name.clone(), field.clone(), value);
                true
            }
            WantedKey::Repeat(number, _) => {
                let repeat = value.as_deref().map(Repeat::decode);
                let is_sound = repeat != Some(None);
                turn.repeat = repeat.flatten().map(|repeat| (*number, repeat));
                is_sound
            }
        }
    }
}

impl Pg {
    /// Reads the heads of the objects of the turn's next operation.
    pub(super) fn want_heads(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let number = self.objects.turns[&id].left.front().expect("an operation is next");
        let objects = &self.objects.mutations[number].operation.objects;
        let heads = objects.iter().map(|steps| steps.name.clone()).collect();
        self.want(id, Wants { heads, ..Wants::default() }, actions);
    }

    /// Looks for the repeat of the turn's next operation.
    pub(super) fn want_repeat(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let shard_count = self.pool_shape().shard_count;
        let number = *self.objects.turns[&id].left.front().expect("an operation is next");
        let mutation = self.objects.mutations.get_mut(&number).expect("it was just found");
        mutation.is_unsure = false;
        let shard = Shard::of_hash(mutation.operation.objects[0].name.hash(), shard_count);
        let keys = vec![WantedKey::Repeat(number, mutation.sender.key(shard))];
        self.read_wanted(id, keys, Vec::new(), actions);
    }

    /// Reads what the turn's next operation wants.
    pub(super) fn want(&mut self, id: TurnId, wants: Wants, actions: &mut Vec<Action>) {
        let Wants { heads, fields, units } = wants;
        let heads = heads.into_iter().map(WantedKey::Head);
        let fields = fields.into_iter().map(|(name, field)| WantedKey::Field(name, field));
        let keys: Vec<WantedKey> = heads.chain(fields).collect();
        let (pool, per_block) = (self.shape.pg.pool, self.shape.block_size.unit_count());
        let number = self.objects.turns[&id].left.front().expect("an operation is next");
        // Data in blocks belongs to the only object of an operation.
        let name = &self.objects.mutations[number].operation.objects[0].name;
        let mut blocks: BTreeMap<(DataId, u32), UnitSet> = BTreeMap::new();
        for (id, unit) in units {
            let block = blocks.entry((id, unit / per_block)).or_insert(UnitSet::EMPTY);
            block.insert(unit % per_block);
        }
        let block = |((id, block), units): ((DataId, u32), UnitSet)| {
            let key = id.block_key(pool, name, block);
            WantedBlock { key, id, first: block * per_block, units }
        };
        self.read_wanted(id, keys, blocks.into_iter().map(block).collect(), actions);
    }

    fn read_wanted(
        &mut self,
        id: TurnId,
        keys: Vec<WantedKey>,
        blocks: Vec<WantedBlock>,
        actions: &mut Vec<Action>,
    ) {
        let starts: Vec<usize> = (0..keys.len()).step_by(QUERY_COUNT_MAX).collect();
        let (count, open_count) = (blocks.len(), starts.len() + blocks.len());
        assert!(open_count > 0, "what wants something says what");
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        turn.wanted = Some(Wanted { keys, blocks, open_count, failed: None });
        for from in starts {
            self.ask_records(id, from, true, actions);
        }
        for index in 0..count {
            self.ask_units(id, index, actions);
        }
    }

    /// Asks the store for wanted records, from this one on.
    fn ask_records(
        &mut self,
        turn: TurnId,
        from: usize,
        from_memory: bool,
        actions: &mut Vec<Action>,
    ) {
        let shard_count = self.pool_shape().shard_count;
        let keys = &self.wanted(turn).keys[from..];
        let queries = keys.iter().take(QUERY_COUNT_MAX);
        let queries = queries.map(|key| Query::Get { key: key.encode(shard_count) }).collect();
        let request =
            StoreRequest::Records { pg: self.shape.pg, queries, from_memory, caches: false };
        self.call(Call::WantedRecords { turn, from }, request, actions);
    }

    fn ask_units(&mut self, turn: TurnId, index: usize, actions: &mut Vec<Action>) {
        let WantedBlock { key, units, .. } = self.wanted(turn).blocks[index];
        let units = units.words(self.shape.block_size.unit_count());
        let request = StoreRequest::Copy { key, units, as_of: AsOf::View };
        self.call(Call::WantedUnits { turn, index }, request, actions);
    }

    fn wanted(&self, turn: TurnId) -> &Wanted {
        self.objects.turns[&turn].wanted.as_ref().expect("the turn waits for the store")
    }

    /// Handles the store's answer to a request for wanted records.
    pub(crate) fn on_wanted_records(
        &mut self,
        id: TurnId,
        from: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if result == Err(StoreError::WouldBlock) {
            return self.ask_records(id, from, false, actions);
        }
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let mut wanted = turn.wanted.take().expect("the turn waits for the store");
        match result {
            Ok(Answer::Records { answers, .. }) => {
                for (key, answer) in wanted.keys[from..].iter().zip(answers) {
                    let Found::Value(value) = answer else {
                        unreachable!("keys have values as answers")
                    };
                    if !key.supply(turn, value) {
                        wanted.failed = Some(Refusal::Damaged { units: Vec::new() });
                    }
                }
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => wanted.failed = Some(refusal_of(error)),
        }
        turn.wanted = Some(wanted);
        self.on_wanted(id, actions);
    }

    /// Handles the store's answer to a request for wanted units of a block.
    pub(crate) fn on_wanted_units(
        &mut self,
        id: TurnId,
        index: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let wanted = turn.wanted.as_mut().expect("the turn waits for the store");
        match result {
            Ok(Answer::Copy { content }) => {
                if !wanted.blocks[index].supply(&mut turn.run, &content) {
                    wanted.failed = Some(Refusal::Damaged { units: Vec::new() });
                }
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => wanted.failed = Some(refusal_of(error)),
        }
        self.on_wanted(id, actions);
    }

    /// Continues a turn when all that it wanted has come.
    fn on_wanted(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let wanted = turn.wanted.as_mut().expect("the turn waits for the store");
        wanted.open_count -= 1;
        if wanted.open_count > 0 {
            return;
        }
        let failed = turn.wanted.take().and_then(|wanted| wanted.failed);
        if let Some(refusal) = failed {
            self.refuse_front(id, refusal);
        }
        self.objects.ready.push_back(id);
        self.pump_objects(actions);
    }
}

impl WantedBlock {
    /// Hands the units over to the run. Returns false if one of them is lost.
    fn supply(&self, run: &mut Run, content: &Content) -> bool {
        let (written, damaged, data) = match content {
            Content::Gone | Content::Tombstone { .. } => (UnitSet::EMPTY, UnitSet::EMPTY, None),
            Content::Block { written, damaged, data, .. } => {
                (UnitSet::from_slice(written), UnitSet::from_slice(damaged), data.as_ref())
            }
        };
        let mut data = data.map(|data| &data[..]).unwrap_or_default().chunks(UNIT_SIZE as usize);
        let mut has_all = true;
        for unit in self.units.iter() {
            let content = written.contains(unit).then(|| data.next().expect("it is written"));
            has_all &= !damaged.contains(unit);
            run.supply_unit(self.id, self.first + unit, content.map(<[u8]>::to_vec));
        }
        has_all
    }
}
