//! What must be read before operations can be prepared: repeats, heads, fields, and units of blocks.
//!
//! ```text
//!   turn begins ─▶ portion: what its operations want, in their order ─▶ prepared as far as that goes ─▶ portion ...
//! ```
//!
//! Invariants
//!   1. Nothing is read for an operation before its turn: until then a batch in flight changes it.
//!   2. A portion has at most 1,024 keys (of operations with at most 16,384 steps, and one more operation), and no more is asked for once it has 4 MiB. What the next operation
//!      wants comes first in it, so each portion brings that further.
//!   3. A turn goes on when all that was asked for has come. If something cannot be read, each operation reads
//!      for itself from then on, and one that needs it is refused; the turn goes on with the next one.

use std::collections::{BTreeMap, BTreeSet};

use ::objects::queue::TurnId;
use ::objects::{DataId, Field, Head, Key, Kind, Name, Repeat, Run, Shard, Sharding, Wants};
use base::{SessionId, UNIT_SIZE};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::disk::UnitSet;
use format::engine::{Answer as Found, Query};
use format::wire::{Content, Refusal};

use super::Objects;
use super::mutate::{EVENT_STEPS_MAX, Earlier, may_be_prepared};
use crate::store_calls::Call;
use crate::{Action, Pg, refusal_of};

/// The most keys of a portion.
const PORTION_KEYS_MAX: usize = 1024;
/// When a portion has so many bytes of values, no more is asked for.
const PORTION_SIZE_MAX: usize = 4 << 20;
/// The most keys of one request to the store. Nothing says how long values are before they are read: so
/// many of the longest ones are as much as a portion may have.
const REQUEST_KEYS_MAX: usize = 64;

/// What is being read for a turn.
#[derive(Default)]
pub struct Wanted {
    keys: Vec<WantedKey>,
    /// Number of keys that were asked for.
    asked_count: usize,
    /// The values that have come, in bytes.
    size: usize,
    blocks: Vec<WantedBlock>,
    /// Number of requests to the store without an answer.
    open_count: usize,
    /// Why something could not be read.
    failed: Option<Refusal>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum WantedKey {
    Head(Name),
    Field(Name, Field),
    /// The repeat of the operation with this number in the queue, by its key.
    Repeat(u64, Vec<u8>),
    /// A key that nobody has: the answer comes in a later event.
    Pause(Shard),
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
    fn encode(&self, sharding: Sharding) -> Vec<u8> {
        let (name, kind) = match self {
            WantedKey::Repeat(_, key) => return key.clone(),
            WantedKey::Pause(shard) => {
                let kind = Kind::Repeat { session: SessionId::ZERO, number: 0 };
                return Key { shard: *shard, kind }.encode();
            }
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
        Key { shard: sharding.shard(name), kind }.encode()
    }

    /// Hands the value over to the turn. Returns false if it is none that such a key can have.
    fn supply(&self, id: TurnId, value: Option<Vec<u8>>, objects: &mut Objects) -> bool {
        let run = &mut objects.turns.get_mut(&id).expect("the turn is being prepared").run;
        match self {
            WantedKey::Head(name) => {
                let head = value.as_deref().map(Head::decode);
                if head == Some(None) {
                    // The next operation of the turn must not take the object for absent.
                    return false;
                }
                run.supply_head(name.clone(), head.flatten());
            }
            WantedKey::Field(name, field) => {
                run.supply_field(name.clone(), field.clone(), value);
            }
            WantedKey::Repeat(number, _) => {
                let earlier = match value.as_deref().map(Repeat::decode) {
                    None => Earlier::NotExecuted,
                    Some(Some(repeat)) => Earlier::Executed(repeat),
                    Some(None) => return false,
                };
                // It may have been refused while it was read.
                if let Some(mutation) = objects.mutations.get_mut(number) {
                    mutation.earlier = earlier;
                }
            }
            WantedKey::Pause(_) => {}
        }
        true
    }
}

impl Pg {
    /// Reads a portion of what the turn's operations want, but for units of blocks. Requires: the next one
    /// wants something.
    pub(super) fn want_records(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let keys = self.portion(id);
        self.read_wanted(id, Wanted { keys, ..Wanted::default() }, actions);
    }

    /// Lets a turn go on in a later event. No cache of the store has the key that is read: no session has
    /// this number.
    pub(super) fn pause(&mut self, id: TurnId, shard: Shard, actions: &mut Vec<Action>) {
        let keys = vec![WantedKey::Pause(shard)];
        self.read_wanted(id, Wanted { keys, ..Wanted::default() }, actions);
    }

    /// Returns what the turn's operations want, in their order.
    fn portion(&mut self, id: TurnId) -> Vec<WantedKey> {
        let sharding = self.pool_shape().sharding;
        let Objects { turns, mutations, .. } = &mut self.objects;
        let turn = turns.get_mut(&id).expect("the turn is being prepared");
        let next = &mutations[turn.left.front().expect("an operation is next")];
        turn.run.forget_for_others(&next.operation);
        let (mut keys, mut seen) = (Vec::new(), BTreeSet::new());
        let count = if turn.reads_alone { 1 } else { turn.left.len() };
        let mut steps = 0;
        for number in turn.left.iter().take(count) {
            // One that is not there was refused while it waited.
            let Some(mutation) = mutations.get(number) else { continue };
            let operation = &mutation.operation;
            let mut add = |key: WantedKey| {
                if seen.insert(key.clone()) {
                    keys.push(key);
                }
            };
            match mutation.earlier {
                Earlier::Executed(_) => continue,
                Earlier::Unknown => {
                    let shard = sharding.shard(&operation.objects[0].name);
                    add(WantedKey::Repeat(*number, mutation.sender.key(shard)));
                }
                Earlier::NotExecuted => {}
            }
            if may_be_prepared(operation, mutation.has_room).is_ok() {
                let Wants { heads, fields, .. } = turn.run.wants(operation);
                heads.into_iter().for_each(|name| add(WantedKey::Head(name)));
                fields.into_iter().for_each(|(name, field)| add(WantedKey::Field(name, field)));
            }
            steps += operation.steps_count();
            if keys.len() >= PORTION_KEYS_MAX || steps >= EVENT_STEPS_MAX {
                break;
            }
        }
        keys.truncate(PORTION_KEYS_MAX);
        keys
    }

    /// Reads the units that the turn's next operation wants.
    pub(super) fn want_units(
        &mut self,
        id: TurnId,
        units: BTreeSet<(DataId, u32)>,
        actions: &mut Vec<Action>,
    ) {
        let (pool, per_block) = (self.shape.pg.pool, self.shape.block_size.unit_count());
        let number = self.objects.turns[&id].left.front().expect("an operation is next");
        // Data in blocks belongs to the only object of an operation.
        let hash = self.hash_of(&self.objects.mutations[number].operation.objects[0].name);
        let mut blocks: BTreeMap<(DataId, u32), UnitSet> = BTreeMap::new();
        for (id, unit) in units {
            let block = blocks.entry((id, unit / per_block)).or_insert(UnitSet::EMPTY);
            block.insert(unit % per_block);
        }
        let block = |((id, block), units): ((DataId, u32), UnitSet)| {
            let key = id.block_key(pool, hash, block);
            WantedBlock { key, id, first: block * per_block, units }
        };
        let blocks = blocks.into_iter().map(block).collect();
        self.read_wanted(id, Wanted { blocks, ..Wanted::default() }, actions);
    }

    fn read_wanted(&mut self, id: TurnId, wanted: Wanted, actions: &mut Vec<Action>) {
        assert!(!wanted.keys.is_empty() || !wanted.blocks.is_empty(), "it says what it wants");
        let block_count = wanted.blocks.len();
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let wanted = turn.wanted.insert(wanted);
        wanted.open_count = block_count;
        self.ask_next_records(id, actions);
        for index in 0..block_count {
            self.ask_units(id, index, actions);
        }
    }

    /// Asks the store for the next wanted records, unless the portion ends here.
    fn ask_next_records(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let wanted = turn.wanted.as_mut().expect("the turn waits for the store");
        let from = wanted.asked_count;
        if from == wanted.keys.len() || wanted.size >= PORTION_SIZE_MAX || wanted.failed.is_some() {
            return;
        }
        wanted.asked_count = wanted.keys.len().min(from + REQUEST_KEYS_MAX);
        wanted.open_count += 1;
        self.ask_records(id, from, true, actions);
    }

    /// Asks the store for wanted records, from this one on.
    fn ask_records(
        &mut self,
        turn: TurnId,
        from: usize,
        from_memory: bool,
        actions: &mut Vec<Action>,
    ) {
        let sharding = self.pool_shape().sharding;
        let keys = self.wanted(turn).keys[from..].iter().take(REQUEST_KEYS_MAX);
        let queries = keys.map(|key| Query::Get { key: key.encode(sharding) }).collect();
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
                    wanted.size += value.as_ref().map_or(0, Vec::len);
                    if !key.supply(id, value, &mut self.objects) {
                        wanted.failed = Some(Refusal::Damaged { units: Vec::new() });
                    }
                }
            }
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(error) => wanted.failed = Some(refusal_of(error)),
        }
        wanted.open_count -= 1;
        self.objects.turns.get_mut(&id).expect("the turn is being prepared").wanted = Some(wanted);
        self.ask_next_records(id, actions);
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
        wanted.open_count -= 1;
        self.on_wanted(id, actions);
    }

    /// Continues a turn when all that it wanted has come.
    fn on_wanted(&mut self, id: TurnId, actions: &mut Vec<Action>) {
        let turn = self.objects.turns.get_mut(&id).expect("the turn is being prepared");
        let Some(Wanted { keys, failed, .. }) = turn.wanted.take_if(|it| it.open_count == 0) else {
            return;
        };
        match failed {
            Some(_) if matches!(keys[..], [WantedKey::Pause(_)]) => {}
            Some(_) if !turn.reads_alone && !keys.is_empty() => turn.reads_alone = true,
            Some(refusal) => self.refuse_front(id, refusal),
            None => {}
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
