//! A block store in memory: journal order, crashes that lose what was not durable, holes.
//!
//! Entries become durable in journal order; the data of some ("large") entries becomes durable separately. A
//! loss of power keeps what is durable and a part of the rest that fits the order; an entry whose data is
//! missing is dropped with the later ones of its block. The end of the process keeps what is written. Lazy
//! entries are answered when they are written, and become durable when a later entry must be durable.
//!
//! Versions of pools with parity are prepared: they lie above the stable blocks until they are committed. A
//! commit has no journal entry of its own: each entry carries the version up to which everything was
//! committed when the entry was made.

use std::collections::{BTreeMap, VecDeque};

use base::checksum::checksum_units;
use base::{Buffer, BufferPool, Checksum, Epoch, Version};
use blockstore::{Answer, AsOf, BlockKey, NoteKey, PgFacts, Request, StoreError};
use format::wire::{Content, Digest, ListedBlock};

use super::{BLOCK_SIZE, UNIT, UNITS};
use crate::CallId;

/// A block: the value of each unit, 0 where nothing was written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Block {
    pub version: Version,
    pub units: BTreeMap<u32, u32>,
    pub damaged: u64,
    pub is_tombstone: bool,
    /// The part table of a parity part.
    pub table: Vec<u8>,
}

/// A version that may still be taken back.
#[derive(Clone)]
struct Prepared {
    key: BlockKey,
    content: Content,
    is_of_peering: bool,
    /// Whether data that arrived with the version is lost.
    has_lost: bool,
}

#[derive(Clone, Default)]
pub struct State {
    pub blocks: BTreeMap<BlockKey, Block>,
    pub note: Option<Vec<u8>>,
    pub scrub_note: Option<Vec<u8>>,
    pub floor: Version,
    pub last: Version,
    pub held: Version,
    pub hole: Option<Version>,
    pub is_suspect: bool,
    prepared: BTreeMap<Version, Prepared>,
    committed: Version,
}

struct Entry {
    call: CallId,
    request: Request,
    /// The version up to which everything was committed when the entry was made.
    committed: Version,
    data: Data,
    is_answered: bool,
}

/// The progress of an entry's data. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Data {
    Missing,
    Written,
    Durable,
}

#[derive(Default)]
pub struct Store {
    /// The state that is durable and no longer in the journal.
    base: State,
    /// The state with all entries of the journal applied.
    pub now: State,
    journal: VecDeque<Entry>,
    /// Number of entries of the journal that are durable.
    durable_count: usize,
    /// Number of entries of the journal that are written.
    written_count: usize,
    /// Number of entries of the journal for which durability was requested.
    wanted_count: usize,
    /// Whether requests are answered only when they are durable.
    pub is_immediate: bool,
    /// Number of flushes that made something durable.
    pub flush_count: usize,
    /// Answers of requests that change nothing.
    answers: VecDeque<(CallId, Result<Answer, StoreError>)>,
    /// The calls in `answers` that requested a digest: it is computed when the answer is delivered.
    digests: BTreeMap<CallId, (BlockKey, bool)>,
    /// Whether writes are refused.
    pub is_full: bool,
    /// Whether repairs are refused.
    pub refuses_repairs: bool,
    refused: Option<Epoch>,
}

impl Store {
    /// Simulates a disk that lies: after the end of the process the disk holds an earlier state.
    pub fn roll_back(&mut self, state: State) {
        *self = Store { base: state.clone(), now: state, ..Store::default() };
    }
}

/// Returns the bytes of units with these values.
pub fn data_of(values: &[u32]) -> (Vec<Checksum>, Buffer) {
    let mut bytes = vec![0; values.len() * UNIT as usize];
    for (unit, value) in bytes.chunks_mut(UNIT as usize).zip(values) {
        unit[..4].copy_from_slice(&value.to_le_bytes());
    }
    let mut checksums = Vec::new();
    checksum_units(&bytes, &mut checksums);
    (checksums, BufferPool::default().copy_of(&bytes))
}

/// Returns the values of units with these bytes.
pub fn values_of(data: &[u8], units: u32) -> Vec<u32> {
    if data.is_empty() {
        return vec![0; units as usize];
    }
    let units = data.chunks(UNIT as usize);
    units.map(|unit| u32::from_le_bytes(unit[..4].try_into().unwrap())).collect()
}

impl State {
    fn wrote(&mut self, version: Version) {
        if self.hole.is_some_and(|hole| hole.epoch != version.epoch) {
            self.hole = None;
        }
        self.last = self.last.max(version);
        self.held = self.held.max(version);
    }

    /// Returns what a key holds.
    pub fn at(&self, key: BlockKey, as_of: AsOf) -> Option<Block> {
        let mut block = self.blocks.get(&key).cloned();
        let upto = match as_of {
            AsOf::Stable => return block,
            AsOf::View => None,
            AsOf::Version(version) => Some(version),
        };
        let prepared = self.prepared.iter().filter(|(version, prepared)| {
            prepared.key == key && upto.is_none_or(|upto| **version <= upto)
        });
        for (_, Prepared { content, .. }) in prepared {
            change(&mut block, content);
        }
        block
    }

    /// Returns all keys with their newest state, including prepared versions.
    pub fn view(&self) -> BTreeMap<BlockKey, Block> {
        let prepared = self.prepared.values().map(|prepared| prepared.key);
        let keys = self.blocks.keys().copied().chain(prepared);
        keys.filter_map(|key| Some((key, self.at(key, AsOf::View)?))).collect()
    }

    fn commit(&mut self, upto: Version) {
        if upto <= self.committed {
            return;
        }
        self.committed = upto;
        while let Some(first) = self.prepared.first_entry()
            && *first.key() <= upto
        {
            let Prepared { key, content, .. } = first.remove();
            self.repair(key, &content);
        }
    }

    fn apply(&mut self, request: &Request, committed: Version) {
        self.commit(committed);
        match request {
            Request::Prepare { key, version, content, replaces, .. } => {
                match replaces {
                    Some(above) => {
                        let is_kept =
                            |version: &Version, it: &Prepared| it.key != *key || *version <= *above;
                        self.prepared.retain(|version, it| is_kept(version, it));
                        self.held = self.held.max(*version);
                    }
                    None => self.wrote(*version),
                }
                let known = self.at(*key, AsOf::View).map_or(Version::ZERO, |it| it.version);
                assert!(known < *version, "versions of a key only grow");
                let (key, content) = (*key, content.clone());
                let is_of_peering = replaces.is_some();
                let prepared = Prepared { key, content, is_of_peering, has_lost: false };
                assert!(self.prepared.insert(*version, prepared).is_none(), "one key for each");
            }
            Request::Skip { version, .. } => self.wrote(*version),
            Request::Settle { note, upto, .. } => {
                assert!(self.committed <= *upto);
                self.note = note.as_ref().map(|(_, bytes)| bytes.clone());
                self.commit(*upto);
                self.prepared.clear();
                self.last = *upto;
            }
            Request::Write { key, version, offset, data, .. } => {
                self.wrote(*version);
                let block = self.blocks.entry(*key).or_default();
                assert!(block.version < *version, "versions of a block only grow");
                block.version = *version;
                block.is_tombstone = false;
                let count = data.len() as u32 / UNIT;
                for (index, value) in (0..).zip(values_of(data, count)) {
                    let unit = offset / UNIT + index;
                    block.units.insert(unit, value);
                    block.damaged &= !(1 << unit);
                }
            }
            Request::Zero { key, version, offset, length, .. } => {
                self.wrote(*version);
                let block = self.blocks.entry(*key).or_default();
                assert!(block.version < *version, "versions of a block only grow");
                block.version = *version;
                for unit in offset / UNIT..(offset + length) / UNIT {
                    block.units.remove(&unit);
                    block.damaged &= !(1 << unit);
                }
            }
            Request::Delete { key, version, .. } => {
                self.wrote(*version);
                let block = self.blocks.entry(*key).or_default();
                assert!(block.version < *version, "versions of a block only grow");
                *block = Block { version: *version, is_tombstone: true, ..Block::default() };
            }
            Request::Repair { key, content, .. } => {
                let is_prepared = self.prepared.values().any(|prepared| prepared.key == *key);
                assert!(!is_prepared, "a repair meets a prepared version of its key");
                self.repair(*key, content);
            }
            Request::Note { key: NoteKey::Scrub(_), bytes } => {
                self.scrub_note = Some(bytes.clone());
            }
            Request::Note { bytes, .. } => self.note = Some(bytes.clone()),
            Request::SetFloor { floor, .. } => {
                self.floor = *floor;
                let is_gone = |block: &Block| block.is_tombstone && block.version <= *floor;
                self.blocks.retain(|_, block| !is_gone(block));
            }
            Request::Absolve { .. } => self.is_suspect = false,
            Request::Sync => {}
            other => panic!("{other:?} changes nothing"),
        }
    }

    fn repair(&mut self, key: BlockKey, content: &Content) {
        match content {
            Content::Gone => {
                self.blocks.remove(&key);
            }
            Content::Tombstone { version } => {
                self.held = self.held.max(*version);
                let block = Block { version: *version, is_tombstone: true, ..Block::default() };
                self.blocks.insert(key, block);
            }
            Content::Block { version, .. } => {
                self.held = self.held.max(*version);
                let mut block = self.blocks.remove(&key);
                change(&mut block, content);
                self.blocks.extend(block.map(|block| (key, block)));
            }
        }
    }
}

/// Applies a content to a block: replaces its units, or deletes the block.
fn change(block: &mut Option<Block>, content: &Content) {
    let (version, units, written, damaged, data, table) = match content {
        Content::Gone => return *block = None,
        Content::Tombstone { version } => {
            let is_tombstone = true;
            *block = Some(Block { version: *version, is_tombstone, ..Block::default() });
            return;
        }
        Content::Block { version, units, written, damaged, data, table, .. } => {
            (version, units, written, damaged, data, table)
        }
    };
    let block = block.get_or_insert_default();
    block.version = *version;
    block.is_tombstone = false;
    if !table.is_empty() {
        block.table = table.clone();
    }
    let data = data.as_ref().map(|data| &data[..]).unwrap_or_default();
    let count = written[0].count_ones();
    let mut values = values_of(data, count).into_iter();
    for unit in (0..UNITS).filter(|unit| units[0] & (1 << unit) != 0) {
        block.units.remove(&unit);
        block.damaged &= !(1 << unit);
        if written[0] & (1 << unit) != 0 {
            block.units.insert(unit, values.next().unwrap());
        }
        if damaged[0] & (1 << unit) != 0 {
            block.damaged |= 1 << unit;
        }
    }
}

fn key_of(request: &Request) -> Option<BlockKey> {
    match request {
        Request::Write { key, .. }
        | Request::Zero { key, .. }
        | Request::Delete { key, .. }
        | Request::Prepare { key, .. }
        | Request::Repair { key, .. } => Some(*key),
        _ => None,
    }
}

fn is_lazy(request: &Request) -> bool {
    matches!(
        request,
        Request::Write { lazy: true, .. }
            | Request::Zero { lazy: true, .. }
            | Request::Prepare { lazy: true, .. }
            | Request::Skip { lazy: true, .. }
    )
}

fn version_of(request: &Request) -> Option<Version> {
    match request {
        Request::Write { version, .. }
        | Request::Zero { version, .. }
        | Request::Delete { version, .. }
        | Request::Prepare { version, replaces: None, .. }
        | Request::Skip { version, .. } => Some(*version),
        _ => None,
    }
}

fn is_prefix(request: &Request) -> bool {
    matches!(request, Request::Prepare { .. } | Request::Skip { .. })
}

impl Store {
    pub fn facts(&self) -> PgFacts {
        let State { last, held, hole, floor, is_suspect, committed, .. } = self.now;
        PgFacts { last, held, hole, floor, is_suspect, committed }
    }

    /// Accepts a request. `is_large`: the data of the request becomes durable separately from its entry.
    pub fn ask(&mut self, call: CallId, request: Request, is_large: bool) {
        match request {
            Request::Read { key, offset, length, .. } => {
                let answer = self.read(key, offset, length);
                self.answers.push_back((call, answer));
            }
            Request::Extents { key, .. } => {
                let block = self.now.blocks.get(&key).cloned().unwrap_or_default();
                let written = block.units.keys().fold(0u64, |bits, unit| bits | 1 << unit);
                let answer = Answer::Extents {
                    version: block.version,
                    written: vec![written & !block.damaged],
                    damaged: vec![block.damaged],
                };
                self.answers.push_back((call, Ok(answer)));
            }
            Request::Digest { key, deep } => {
                self.digests.insert(call, (key, deep));
                self.answers.push_back((call, Ok(Answer::Digest(Digest::Gone))));
            }
            Request::Commit { upto, .. } => {
                let is_lost = self.undurable().any(|version| version <= upto);
                assert!(!is_lost, "what is committed is durable");
                self.now.commit(upto);
                self.answers.push_back((call, Ok(Answer::Committed)));
            }
            Request::Settle { upto, .. } if upto < self.now.committed => {
                self.answers.push_back((call, Err(StoreError::AboveSettled)));
            }
            Request::Copy { key, units, as_of } => {
                let content = self.copy(key, &units, as_of);
                self.answers.push_back((call, Ok(Answer::Copy { content })));
            }
            request if self.refuses(&request) => {
                let epoch = version_of(&request).map(|version| version.epoch);
                self.refused = epoch.or(self.refused);
                self.answers.push_back((call, Err(StoreError::Full)));
            }
            request => {
                if let (true, Some(version)) = (is_prefix(&request), version_of(&request))
                    && version.epoch == self.now.last.epoch
                {
                    let next = self.now.last.counter + 1;
                    assert_eq!(version.counter, next, "a gap in the versions of an epoch");
                }
                let committed = self.now.committed;
                self.now.apply(&request, committed);
                let has_data = !is_large || key_of(&request).is_none();
                let data = if has_data { Data::Durable } else { Data::Missing };
                let is_wanted = !is_lazy(&request) || self.is_immediate;
                let is_answered = false;
                self.journal.push_back(Entry { call, request, committed, data, is_answered });
                if is_wanted {
                    self.wanted_count = self.journal.len();
                }
            }
        }
    }

    /// Returns whether a request is refused. After a version that was refused, no later one of its epoch is
    /// accepted.
    fn refuses(&self, request: &Request) -> bool {
        if self.refuses_repairs && matches!(request, Request::Repair { .. }) {
            return true;
        }
        let version = version_of(request);
        version.is_some_and(|version| self.is_full || self.refused == Some(version.epoch))
    }

    fn read(&self, key: BlockKey, offset: u32, length: u32) -> Result<Answer, StoreError> {
        let block = self.now.blocks.get(&key).cloned().unwrap_or_default();
        let units = offset / UNIT..(offset + length) / UNIT;
        if units.clone().any(|unit| block.damaged & (1 << unit) != 0) {
            return Err(StoreError::Damaged { units: vec![block.damaged] });
        }
        let values: Vec<u32> =
            units.map(|unit| block.units.get(&unit).copied().unwrap_or(0)).collect();
        let is_zero = values.iter().all(|value| *value == 0);
        let (checksums, data) = if is_zero { data_of(&[]) } else { data_of(&values) };
        Ok(Answer::Read { version: block.version, checksums, data })
    }

    fn copy(&self, key: BlockKey, units: &[u64], as_of: AsOf) -> Content {
        let Some(block) = self.now.at(key, as_of) else { return Content::Gone };
        if block.is_tombstone {
            return Content::Tombstone { version: block.version };
        }
        let units = units.first().copied().unwrap_or((1 << UNITS) - 1);
        let damaged = units & block.damaged;
        let is_written = |unit: &u32| (units & !damaged) & (1 << unit) != 0;
        let written: Vec<u32> =
            block.units.keys().copied().filter(|unit| is_written(unit)).collect();
        let values: Vec<u32> = written.iter().map(|unit| block.units[unit]).collect();
        let (checksums, data) = data_of(&values);
        Content::Block {
            version: block.version,
            block_size: BLOCK_SIZE,
            units: vec![units],
            written: vec![written.iter().fold(0, |bits, unit| bits | 1 << unit)],
            damaged: vec![damaged],
            checksums,
            data: Some(data).filter(|data| !data.is_empty()),
            table: block.table,
        }
    }

    fn digest(&self, key: BlockKey, deep: bool) -> Digest {
        let Some(block) = self.now.at(key, AsOf::View) else { return Digest::Gone };
        if block.is_tombstone {
            return Digest::Tombstone { version: block.version };
        }
        // A light digest does not read the data, so it does not find the damage.
        let damaged = if deep { block.damaged } else { 0 };
        let is_written = |unit: &u32| damaged & (1 << unit) == 0;
        let written: Vec<u32> =
            block.units.keys().copied().filter(|unit| is_written(unit)).collect();
        let values: Vec<u32> = written.iter().map(|unit| block.units[unit]).collect();
        Digest::Block {
            version: block.version,
            written: vec![written.iter().fold(0, |bits, unit| bits | 1 << unit)],
            damaged: vec![damaged],
            checksums: data_of(&values).0,
            table: block.table,
        }
    }

    /// Returns a page of blocks with versions above `newer_than`.
    pub fn list(
        &self,
        newer_than: Version,
        after: Option<BlockKey>,
        count_max: usize,
    ) -> (Vec<ListedBlock>, bool) {
        let view = self.now.view();
        let blocks = view.into_iter().filter(|(key, block)| {
            after.is_none_or(|after| *key > after) && block.version > newer_than
        });
        let mut listed: Vec<ListedBlock> = blocks
            .map(|(key, block)| ListedBlock {
                key,
                version: block.version,
                is_tombstone: block.is_tombstone,
            })
            .collect();
        let is_last = listed.len() <= count_max;
        listed.truncate(count_max);
        (listed, is_last)
    }

    /// Writes more of the journal, and the data of one entry.
    pub fn write(&mut self, entries: usize, data_of: usize) {
        self.written_count = (self.written_count + entries).min(self.journal.len());
        if let Some(entry) = self.journal.get_mut(data_of) {
            entry.data = entry.data.max(Data::Written);
        }
    }

    /// Makes more of the journal durable, as far as that was requested.
    pub fn advance(&mut self, entries: usize, data_of: usize) {
        self.write(0, data_of);
        let durable = (self.durable_count + entries).min(self.wanted_count);
        let is_data_wanted = data_of < self.wanted_count;
        if durable > self.durable_count || is_data_wanted {
            self.flush_count += usize::from(durable > self.durable_count);
            self.durable_count = self.durable_count.max(durable);
            self.written_count = self.written_count.max(durable);
            // A flush covers all that was written before it.
            for entry in self.journal.iter_mut().filter(|entry| entry.data == Data::Written) {
                entry.data = Data::Durable;
            }
        }
        self.shorten();
    }

    /// Removes entries that are durable and answered from the journal.
    fn shorten(&mut self) {
        while self.durable_count > 0
            && let Some(first) = self.journal.front()
            && first.is_answered
            && first.data == Data::Durable
        {
            let first = self.journal.pop_front().unwrap();
            self.base.apply(&first.request, first.committed);
            self.durable_count -= 1;
            self.written_count -= 1;
            self.wanted_count = self.wanted_count.saturating_sub(1);
        }
    }

    /// Returns the versions that a loss of power may lose.
    pub fn undurable(&self) -> impl Iterator<Item = Version> + '_ {
        let entries =
            self.journal.iter().enumerate().filter(|(index, entry)| {
                *index >= self.durable_count || entry.data != Data::Durable
            });
        entries.filter_map(|(_, entry)| version_of(&entry.request))
    }

    /// Returns the number of answers that can be delivered now; the caller chooses one.
    pub fn ready(&self) -> usize {
        self.answers.len() + self.ready_entries().count()
    }

    /// Returns whether every answer was delivered.
    pub fn is_idle(&self) -> bool {
        self.answers.is_empty() && self.journal.iter().all(|entry| entry.is_answered)
    }

    fn ready_entries(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.written_count).filter(|index| {
            let entry = &self.journal[*index];
            let key = key_of(&entry.request);
            let is_sync = matches!(entry.request, Request::Sync | Request::Settle { .. });
            let needs = match self.is_answered_early(entry) {
                true => Data::Written,
                false => Data::Durable,
            };
            let is_covered = |earlier: &Entry| {
                let is_other = key.is_none() || key_of(&earlier.request) != key;
                earlier.data >= needs || (is_other && !is_sync)
            };
            let is_there = entry.data >= needs && self.journal.iter().take(*index).all(is_covered);
            let is_far = needs == Data::Written || *index < self.durable_count;
            !entry.is_answered && is_far && is_there
        })
    }

    /// Returns whether an entry is answered as soon as it is written.
    fn is_answered_early(&self, entry: &Entry) -> bool {
        is_lazy(&entry.request) && !self.is_immediate
    }

    /// Delivers one of the answers that are ready.
    pub fn take(&mut self, choice: usize) -> (CallId, Result<Answer, StoreError>) {
        if choice < self.answers.len() {
            let (call, answer) = self.answers.remove(choice).unwrap();
            let Some((key, deep)) = self.digests.remove(&call) else { return (call, answer) };
            // A change may have overtaken the digest.
            return (call, Ok(Answer::Digest(self.digest(key, deep))));
        }
        let index = self.ready_entries().nth(choice - self.answers.len()).unwrap();
        let entry = &mut self.journal[index];
        entry.is_answered = true;
        let call = entry.call;
        let is_early = self.is_answered_early(&self.journal[index]);
        self.shorten();
        (call, Ok(if is_early { Answer::Written } else { Answer::Durable }))
    }

    /// Ends the process: written entries are kept.
    pub fn end(&mut self) {
        self.durable_count = self.written_count;
        for entry in self.journal.iter_mut().filter(|entry| entry.data == Data::Written) {
            entry.data = Data::Durable;
        }
        self.crash(0);
    }

    /// Loses power. `more`: this many entries that were not durable are kept nevertheless.
    pub fn crash(&mut self, more: usize) {
        let kept = (self.durable_count + more).min(self.journal.len());
        let mut state = self.base.clone();
        let mut dropped: Vec<BlockKey> = Vec::new();
        let mut hole: Option<Version> = None;
        for entry in self.journal.drain(..).take(kept) {
            let key = key_of(&entry.request);
            let is_kept = entry.data == Data::Durable;
            let is_dropped = key.is_some_and(|key| !is_kept || dropped.contains(&key));
            if is_dropped {
                let is_early = is_lazy(&entry.request);
                assert!(!entry.is_answered || is_early, "what was answered is never dropped");
                dropped.extend(key);
                let version = version_of(&entry.request);
                hole =
                    version.map(|version| hole.map_or(version, |hole| hole.min(version))).or(hole);
            } else {
                state.apply(&entry.request, entry.committed);
            }
        }
        if let Some(hole) = hole.filter(|hole| hole.epoch >= state.last.epoch) {
            let known = state.hole.filter(|known| known.epoch == hole.epoch);
            state.hole = Some(known.map_or(hole, |known| known.min(hole)));
        }
        self.base = state.clone();
        self.now = state;
        self.durable_count = 0;
        self.written_count = 0;
        self.wanted_count = 0;
        self.refused = None;
        self.answers.clear();
        self.digests.clear();
    }

    /// Damages the store so that it may lack acknowledged writes: some blocks are missing or old.
    pub fn lose(&mut self, is_lost: impl Fn(&BlockKey) -> bool) {
        assert!(self.journal.is_empty());
        self.now.blocks.retain(|key, _| !is_lost(key));
        self.now.is_suspect = true;
        self.base = self.now.clone();
    }

    /// Replaces the disk with an empty one.
    pub fn replace_disk(&mut self) {
        let is_immediate = self.is_immediate;
        *self = Store { is_immediate, ..Store::default() };
        self.now.is_suspect = true;
        self.base = self.now.clone();
    }

    /// Changes the durable content of a block silently.
    pub fn alter(&mut self, key: BlockKey, change: impl Fn(&mut State, BlockKey)) {
        for state in [&mut self.base, &mut self.now] {
            change(state, key);
        }
    }

    /// Returns the oldest prepared version that lost data. Versions prepared by peering do not count.
    pub fn first_lost(&self) -> Option<Version> {
        let mut prepared = self.now.prepared.iter();
        let is_lost = |it: &Prepared| it.has_lost && !it.is_of_peering;
        prepared.find(|(_, it)| is_lost(it)).map(|(version, _)| *version)
    }

    /// Returns the prepared versions that hold data, with their keys.
    pub fn prepared_data(&self) -> Vec<(Version, BlockKey)> {
        let has_data = |content: &Content| match content {
            Content::Block { written, .. } => written[0] != 0,
            Content::Gone | Content::Tombstone { .. } => false,
        };
        let prepared = self.now.prepared.iter().filter(|(_, it)| has_data(&it.content));
        prepared.map(|(version, it)| (*version, it.key)).collect()
    }

    /// Damages the data of a prepared version; its header stays whole. Requires: the process has ended.
    pub fn damage_prepared(&mut self, version: Version) {
        assert!(self.journal.is_empty());
        let prepared = self.now.prepared.get_mut(&version).expect("it is prepared");
        let Content::Block { written, damaged, .. } = &mut prepared.content else {
            panic!("a version without data")
        };
        damaged[0] |= written[0];
        prepared.has_lost = true;
        self.base = self.now.clone();
    }

    /// Makes a unit unreadable.
    pub fn damage(&mut self, key: BlockKey, unit: u32) {
        for state in [&mut self.base, &mut self.now] {
            if let Some(block) = state.blocks.get_mut(&key)
                && block.units.contains_key(&unit)
            {
                block.damaged |= 1 << unit;
            }
        }
    }
}
