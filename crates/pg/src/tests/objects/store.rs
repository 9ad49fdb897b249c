//! A store of records and blocks in memory: batches may have to wait for room, then are seen at once, and answered
//! in order.

use std::collections::{BTreeMap, VecDeque};

use ::objects::keys::{is_log, is_own, object_of};
use ::objects::model::{Model, Models};
use ::objects::{Head, HeadContent, Key, Kind, NameHash, Shard};
use base::checksum::checksum_units;
use base::{Buffer, BufferPool, Epoch, SessionId, Version};
use blockstore::{Answer, Batch, BlockKey, Page, PgFacts, Request, StoreError};
use format::disk::{BlockAction, BlockChange, NoteKey, UnitSet};
use format::engine::{Answer as Found, Change, Query, Records, behind};
use format::wire::{Content, Digest, ListedBlock};

use crate::objects::log::reach_of;

use super::super::{BLOCK_SIZE, UNIT, UNITS};
use crate::CallId;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Block {
    version: Version,
    units: BTreeMap<u32, Vec<u8>>,
}

/// What a store keeps.
struct Kept {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    blocks: BTreeMap<BlockKey, Block>,
    note: Option<Vec<u8>>,
    last: Version,
}

#[derive(Default)]
pub struct Store {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    blocks: BTreeMap<BlockKey, Block>,
    pub note: Option<Vec<u8>>,
    /// The note on scrubs.
    pub scrub_note: Option<Vec<u8>>,
    /// The newest version that the store has, and the newest one that it has answered.
    pub last: Version,
    pub durable: Version,
    /// Changes without an answer, in order, each with its version, if it has one.
    changes: VecDeque<(CallId, Option<Version>)>,
    /// Whether a crash takes changes without an answer.
    pub is_fragile: bool,
    /// What the store had before each of `changes`, if a crash may take them.
    before: VecDeque<Kept>,
    reads: Vec<(CallId, Request)>,
    /// The number of keys that each request for records had.
    pub keys_asked: Vec<usize>,
    /// Batches and pages that wait for room, in order.
    waiting: VecDeque<(CallId, Request)>,
    /// Whether batches are refused.
    pub is_full: bool,
    /// Whether records and blocks cannot be read.
    pub is_damaged: bool,
    /// The newest epoch in which a batch was refused: later ones of it are, too.
    refused_epoch: Epoch,
    refused: VecDeque<CallId>,
    /// Number of forwards that it took.
    pub forward_count: usize,
    /// Number of ranges of objects that pages emptied.
    pub page_range_count: usize,
}

impl Store {
    pub fn facts(&self) -> PgFacts {
        PgFacts {
            last: self.last,
            committed: Version::ZERO,
            held: self.last,
            hole: None,
            floor: Version::ZERO,
            is_suspect: false,
        }
    }

    /// Takes a request. `has_room`: a batch need not wait, unless another one does.
    pub fn ask(&mut self, call: CallId, request: Request, has_room: bool) {
        let is_change =
            matches!(request, Request::Batch(_) | Request::Page(_) | Request::Note { .. });
        if is_change && (!has_room || !self.waiting.is_empty()) {
            return self.waiting.push_back((call, request));
        }
        let kept = self.is_fragile.then(|| self.kept());
        let version = match request {
            Request::Batch(batch) if self.refuses(&batch) => {
                if batch.note.is_none() {
                    self.refused_epoch = batch.version.epoch;
                }
                return self.refused.push_back(call);
            }
            Request::Page(Page { records, blocks, .. }) => {
                let is_range_of_object = |change: &&Change| match change {
                    Change::DeleteRange { start, .. } => object_of(start).is_some(),
                    _ => false,
                };
                self.page_range_count += records.iter().filter(is_range_of_object).count();
                self.apply(records, blocks);
                None
            }
            Request::Batch(batch) => {
                let is_forward = batch.note.is_some();
                let is_first = self.last.epoch < batch.version.epoch;
                let is_next = batch.after == self.last || is_first;
                assert!(
                    is_forward || is_next && batch.version > self.last,
                    "{} follows {}",
                    batch.after,
                    self.last
                );
                self.last = self.last.max(batch.version);
                self.forward_count += usize::from(is_forward);
                if let Some((_, note)) = batch.note {
                    self.note = Some(note);
                }
                self.apply(batch.records, batch.blocks);
                Some(self.last)
            }
            Request::Note { key: NoteKey::Scrub(_), bytes } => {
                self.scrub_note = Some(bytes);
                None
            }
            Request::Note { bytes, .. } => {
                self.note = Some(bytes);
                None
            }
            Request::Repair { key, content, .. } => {
                self.repair(key, content);
                None
            }
            Request::SetFloor { .. } | Request::Sync | Request::Absolve { .. } => None,
            request => {
                if let Request::Records { queries, .. } = &request {
                    self.keys_asked.push(queries.len());
                }
                return self.reads.push((call, request));
            }
        };
        self.before.extend(kept);
        self.changes.push_back((call, version));
    }

    fn refuses(&self, batch: &Batch) -> bool {
        let is_of_refused = batch.note.is_none() && batch.version.epoch == self.refused_epoch;
        self.is_full || is_of_refused
    }

    fn kept(&self) -> Kept {
        let (records, blocks) = (self.records.clone(), self.blocks.clone());
        Kept { records, blocks, note: self.note.clone(), last: self.last }
    }

    /// The process dies: of the changes without an answer so many stay.
    pub fn crash(&mut self, stay_count: usize) {
        if let Some(Kept { records, blocks, note, last }) = self.before.drain(..).nth(stay_count) {
            (self.records, self.blocks, self.note, self.last) = (records, blocks, note, last);
        }
        self.changes.clear();
        self.reads.clear();
        self.waiting.clear();
        self.refused.clear();
    }

    /// Returns how many changes have no answer.
    pub fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// Panics unless both stores have the same records, but those that are a member's own, and blocks.
    pub fn assert_equals(&self, other: &Store) {
        let shared = |store: &Store| {
            let records = store.records.clone().into_iter();
            records.filter(|(key, _)| !is_own(key)).collect::<BTreeMap<_, _>>()
        };
        let (own, its) = (shared(self), shared(other));
        assert_eq!(own.keys().collect::<Vec<_>>(), its.keys().collect::<Vec<_>>());
        assert!(own == its, "a record differs");
        assert_eq!(self.blocks, other.blocks);
    }

    /// Returns the session of each repeat.
    pub fn repeats(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.records.keys().filter_map(|key| match Key::decode(key).expect("a key").kind {
            Kind::Repeat { session, .. } => Some(session),
            _ => None,
        })
    }

    /// Returns another store with the same content, for a member that loses what comes now.
    pub fn copy_of_all(&self) -> Store {
        Store {
            records: self.records.clone(),
            blocks: self.blocks.clone(),
            note: self.note.clone(),
            last: self.last,
            durable: self.durable,
            ..Store::default()
        }
    }

    fn apply(&mut self, records: Vec<Change>, blocks: Vec<(BlockChange, Buffer)>) {
        let reaches = self.reaches();
        self.apply_changes(records, blocks);
        for (shard, reach) in reaches {
            assert!(
                self.reaches().get(&shard) >= Some(&reach),
                "a log says that it goes back further"
            );
        }
    }

    /// Returns the reach of each shard that has one.
    fn reaches(&self) -> BTreeMap<Shard, Version> {
        let reach = |key: &Vec<u8>| match Key::decode(key).expect("a key") {
            Key { shard, kind: Kind::Reach(version) } => Some((shard, version)),
            _ => None,
        };
        self.records.keys().filter(|key| is_log(key)).filter_map(reach).collect()
    }

    /// The logs do not say how far back they go.
    pub fn forget_reaches(&mut self) {
        let kind = |key: &Vec<u8>| Key::decode(key).expect("a key").kind;
        self.records.retain(|key, _| !matches!(kind(key), Kind::Reach(_)));
    }

    fn apply_changes(&mut self, records: Vec<Change>, blocks: Vec<(BlockChange, Buffer)>) {
        for change in records {
            match change {
                Change::Put { key, value } => {
                    self.records.insert(key, value);
                }
                Change::Delete { key } => {
                    self.records.remove(&key);
                }
                Change::DeleteRange { start, end } => {
                    self.records.retain(|key, _| *key < start || *key >= end);
                }
            }
        }
        for (change, data) in blocks {
            if change.action == BlockAction::Gone {
                self.blocks.remove(&change.key);
                continue;
            }
            let block = self.blocks.entry(change.key).or_default();
            block.version = change.version;
            let mut pieces = data.chunks(UNIT as usize);
            for unit in change.units.iter() {
                match change.action {
                    BlockAction::Units => {
                        block.units.insert(unit, pieces.next().unwrap().to_vec());
                    }
                    _ => drop(block.units.remove(&unit)),
                }
            }
        }
    }

    /// Lets the oldest batch that waits for room go on. Returns whether there was one.
    pub fn make_room(&mut self) -> bool {
        let Some((call, request)) = self.waiting.pop_front() else { return false };
        let rest = std::mem::take(&mut self.waiting);
        self.ask(call, request, true);
        self.waiting = rest;
        true
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns how many requests may be answered next: each read, or the oldest change.
    pub fn open_count(&self) -> usize {
        let refused = usize::from(!self.refused.is_empty());
        self.reads.len() + refused + usize::from(!self.changes.is_empty())
    }

    /// Answers a request. `is_cold`: memory does not have what reads ask for.
    pub fn answer(&mut self, at: usize, is_cold: bool) -> (CallId, Result<Answer, StoreError>) {
        if at >= self.reads.len()
            && let Some(call) = self.refused.pop_front()
        {
            return (call, Err(StoreError::Full));
        }
        if at == self.reads.len() {
            let (call, version) = self.changes.pop_front().unwrap();
            self.before.pop_front();
            self.durable = version.unwrap_or(self.durable);
            return (call, Ok(Answer::Durable));
        }
        let (call, request) = self.reads.remove(at);
        let result = match request {
            _ if self.is_damaged => Err(StoreError::Damaged { units: Vec::new() }),
            Request::Records { from_memory: true, .. } if is_cold => Err(StoreError::WouldBlock),
            Request::Records { queries, .. } => {
                let answers = queries.iter().map(|query| self.find(query)).collect();
                Ok(Answer::Records { version: self.last, answers })
            }
            Request::Copy { key, units, .. } => {
                Ok(Answer::Copy { content: self.copy(key, UnitSet::from_slice(&units)) })
            }
            Request::Read { key, offset, length, .. } => {
                let units = offset / UNIT..(offset + length) / UNIT;
                let block = self.blocks.get(&key);
                let unit = |unit| block.and_then(|block| block.units.get(&unit)).cloned();
                let none = vec![0; UNIT as usize];
                let bytes: Vec<u8> =
                    units.flat_map(|it| unit(it).unwrap_or_else(|| none.clone())).collect();
                let data = buffer(&bytes);
                let version = block.map_or(Version::ZERO, |block| block.version);
                Ok(Answer::Read { version, checksums: checksums(&bytes), data })
            }
            Request::Digest { key, .. } => Ok(Answer::Digest(self.digest(key))),
            other => panic!("{other:?}"),
        };
        (call, result)
    }

    fn digest(&self, key: BlockKey) -> Digest {
        match self.copy(key, UnitSet::first(UNITS)) {
            Content::Block { version, written, damaged, checksums, table, .. } => {
                Digest::Block { version, written, damaged, checksums, table }
            }
            _ => Digest::Gone,
        }
    }

    /// Writes these units of a block as they are elsewhere.
    fn repair(&mut self, key: BlockKey, content: Content) {
        let Content::Block { version, units, written, data, .. } = content else {
            panic!("objects have no tombstones of blocks")
        };
        let block = self.blocks.entry(key).or_default();
        block.version = version;
        for unit in UnitSet::from_slice(&units).iter() {
            block.units.remove(&unit);
        }
        let data = data.map(|data| data.to_vec()).unwrap_or_default();
        let pieces = data.chunks(UNIT as usize).map(<[u8]>::to_vec);
        block.units.extend(UnitSet::from_slice(&written).iter().zip(pieces));
    }

    /// The store has these records instead, or no more.
    pub fn alter(&mut self, alter: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>)) {
        alter(&mut self.records);
    }

    /// The first unit of each block has other data. Returns how many blocks there are.
    pub fn alter_blocks(&mut self) -> usize {
        let units = self.blocks.values_mut().flat_map(|block| block.units.values_mut().next());
        units.map(|unit| unit[0] ^= 1).count()
    }

    fn find(&self, query: &Query) -> Found {
        let Some(scan) = query.scan() else {
            let Query::Get { key } = query else { unreachable!("all others scan") };
            return Found::Value(self.records.get(key).cloned());
        };
        let (mut records, mut from) = (Records::default(), scan.start.to_vec());
        while let Some((key, value)) = self.records.range(from..).next()
            && scan.end.is_none_or(|end| &key[..] < end)
        {
            if scan.is_full(&records) {
                return Found::Records { records, more: true };
            }
            records.push(key, value);
            let behind = scan.common_prefix(key, value).and_then(behind);
            from = behind.unwrap_or_else(|| [&key[..], &[0]].concat());
        }
        Found::Records { records, more: false }
    }

    fn copy(&self, key: BlockKey, units: UnitSet) -> Content {
        let Some(block) = self.blocks.get(&key) else { return Content::Gone };
        let mut written = UnitSet::EMPTY;
        let there = units.iter().filter(|unit| block.units.contains_key(unit));
        there.for_each(|unit| written.insert(unit));
        let bytes: Vec<u8> =
            written.iter().flat_map(|unit| block.units[&unit].iter().copied()).collect();
        Content::Block {
            version: block.version,
            block_size: BLOCK_SIZE,
            units: units.words(UNITS),
            written: written.words(UNITS),
            damaged: UnitSet::EMPTY.words(UNITS),
            checksums: checksums(&bytes),
            data: (!bytes.is_empty()).then(|| buffer(&bytes)),
            table: Vec::new(),
        }
    }

    /// Returns the first blocks after a key.
    pub fn blocks_after(&self, after: Option<BlockKey>, count_max: usize) -> Vec<ListedBlock> {
        let behind = self.blocks.iter().filter(|(key, _)| Some(**key) > after);
        let listed = |(key, block): (&BlockKey, &Block)| ListedBlock {
            key: *key,
            version: block.version,
            is_tombstone: false,
        };
        behind.map(listed).take(count_max).collect()
    }

    /// Returns the number of objects that are incomplete.
    pub fn incomplete_count(&self) -> usize {
        let kind = |key: &Vec<u8>| Key::decode(key).expect("a key").kind;
        self.records.keys().filter(|key| matches!(kind(key), Kind::Incomplete { .. })).count()
    }

    /// The log of a shard is gone, and says so.
    pub fn cut_log(&mut self, shard: Shard) {
        self.records.retain(|key, _| Shard::of_key(key) != shard || !is_log(key));
        self.apply(reach_of(shard, self.last).into(), Vec::new());
    }

    /// Returns the number of log records.
    pub fn log_count(&self) -> usize {
        let is_log = |key: &&Vec<u8>| {
            let kind = Key::decode(key).expect("a key").kind;
            matches!(kind, Kind::Log(_))
        };
        self.records.keys().filter(is_log).count()
    }

    /// Returns the number of objects that were removed, and are not forgotten.
    pub fn tombstone_count(&self) -> usize {
        let is_tombstone = |(key, value): &(&Vec<u8>, &Vec<u8>)| {
            matches!(Key::decode(key).expect("a key").kind, Kind::Head { .. })
                && Head::is_tombstone(value)
        };
        self.records.iter().filter(is_tombstone).count()
    }

    /// Returns the number of records of objects.
    pub fn record_count(&self) -> usize {
        let kind = |key: &Vec<u8>| Key::decode(key).expect("a key").kind;
        self.records.keys().filter(|key| matches!(kind(key), Kind::Record { .. })).count()
    }

    /// Returns the number of repeats.
    pub fn repeat_count(&self) -> usize {
        self.repeats().count()
    }

    /// Returns the objects. Panics if a block belongs to none of them.
    pub fn objects(&self) -> Models {
        let mut objects = Models::new();
        let mut blocks_count = 0;
        for (key, value) in &self.records {
            match Key::decode(key).expect("a key").kind {
                Kind::Head { name } => {
                    let head = Head::decode(value).expect("a head");
                    let data = match head.content {
                        HeadContent::Tombstone => continue,
                        HeadContent::Inline(data) => data,
                        HeadContent::Blocks { id, size } => {
                            let mut data = vec![0; size as usize];
                            for (at, piece) in data.chunks_mut(UNIT as usize).enumerate() {
                                let (at, pool) = (at as u32, base::PoolId::FIRST);
                                let key =
                                    id.block_key(pool, name.hash(NameHash::Plain), at / UNITS);
                                let block = self.blocks.get(&key);
                                blocks_count +=
                                    usize::from(block.is_some() && at.is_multiple_of(UNITS));
                                let unit = block.and_then(|it| it.units.get(&(at % UNITS)));
                                let unit = unit.map_or(&[0; UNIT as usize][..], |unit| unit);
                                piece.copy_from_slice(&unit[..piece.len()]);
                            }
                            data
                        }
                    };
                    objects.insert(name, (head.version, Model { data, ..Model::default() }));
                }
                // Heads come before attributes and records.
                Kind::Attribute { name, attribute } => {
                    let (_, object) = objects.get_mut(&name).expect("it has an object");
                    object.attributes.insert(attribute, value.clone());
                }
                Kind::Record { name, key } => {
                    let (_, object) = objects.get_mut(&name).expect("it has an object");
                    object.records.insert(key, value.clone());
                }
                Kind::Repeat { .. } | Kind::Log(_) | Kind::Reach(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(blocks_count, self.blocks.len(), "each block belongs to an object");
        objects
    }
}

fn buffer(bytes: &[u8]) -> Buffer {
    BufferPool::default().copy_of(bytes)
}

fn checksums(bytes: &[u8]) -> Vec<base::Checksum> {
    let mut checksums = Vec::new();
    checksum_units(bytes, &mut checksums);
    checksums
}
