//! The log: what each batch touched, by version, and what a member that lacks the newest ones gets of it.
//! `docs/internals/objects.md`, rules 44, 47 and 50.
//!
//! ```text
//!   log above a version ─▶ keys, ranges, units ─▶ read as they are now ─▶ one batch: ranges gone, then records, blocks
//! ```
//!
//! Invariants
//!   1. What is read is the state as of the version up to which this OSD is complete: nothing changes meanwhile.
//!   2. What a range names needs no scan: what is in it now was named by that record of the log or a later one.
//!   3. What comes of it fits one entry, or is refused as too large.

use std::collections::{BTreeMap, VecDeque};

use ::objects::keys::{log_range, reach_range};
use ::objects::{Key, Kind, LogKey, PoolShape, Shard, Touched};
use base::planted::{self, Bug};
use base::{BlockSize, Version};
use format::disk::{BODY_SIZE_MAX, BlockChange, BlockKey, UnitSet};
use format::engine::{Answer as Found, Change, Query};
use format::wire::{BATCH_UNITS_SIZE_MAX, Content};

use super::page::lines_of;

/// The most shards whose logs are asked for at once.
const SHARDS_AT_ONCE: usize = 16;
/// A shard has few reaches: each new one replaces all lower ones.
const REACHES_MAX: usize = 64;
/// The most log records of a shard: what was in flight has fewer.
const RECORDS_MAX: usize = 1 << 14;
/// The most keys that are asked for at once.
const KEYS_AT_ONCE: usize = 64;
/// The most blocks that are asked for at once.
const BLOCKS_AT_ONCE: usize = 8;

/// Returns the log records of a batch or forward, one for each shard that it touches.
pub fn log_of(
    touched: &BTreeMap<Shard, Touched>,
    version: Version,
    block_size: BlockSize,
) -> impl Iterator<Item = Change> {
    let count = if planted::on(Bug::LogRecordMissing) { 1 } else { touched.len() };
    let touched = touched.iter().take(count);
    touched.map(move |(shard, touched)| touched.log_record(*shard, version, block_size))
}

/// Returns the changes by which the log of a shard says that it names all that happened above this version
/// alone. It never says so of less than before: the highest reach counts.
pub fn reach_of(shard: Shard, version: Version) -> [Change; 2] {
    let (start, end) = reach_range(shard, Some(version));
    let key = Key { shard, kind: Kind::Reach(version) }.encode();
    [Change::DeleteRange { start, end }, Change::Put { key, value: Vec::new() }]
}

/// Returns the query for the reaches of a shard, of which there are few.
pub fn reach_query(shard: Shard) -> Query {
    let (start, end) = reach_range(shard, None);
    Query::Scan { start, end: Some(end), count_max: REACHES_MAX, size_max: BODY_SIZE_MAX }
}

/// Returns the reach of a shard. `None`: it is not known what the log names.
pub fn reach_in(found: &Found) -> Option<Version> {
    let Found::Records { records, more: false } = found else { return None };
    let (key, _) = records.iter().last()?;
    match Key::decode(key)?.kind {
        Kind::Reach(version) => Some(version),
        _ => None,
    }
}

/// Why a member does not get what it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// It fits no entry, or the log does not go back so far.
    TooLarge,
    /// Some of it cannot be read.
    Unreadable,
}

/// What must be read next.
pub enum Step {
    /// These records.
    Records(Vec<Query>),
    /// These units of blocks.
    Blocks(Vec<(BlockKey, UnitSet)>),
    /// Nothing: all has come.
    Done,
}

/// What a member lacks, while it is read.
pub struct Reading {
    shape: PoolShape,
    /// The version up to which the member is complete.
    after: Version,
    /// The version up to which it is complete then.
    version: Version,
    /// Planted: the oldest record of the log alone counts, and names the version.
    is_by_record: bool,
    /// Shards whose logs are not read yet.
    shards: VecDeque<Shard>,
    touched: Touched,
    log_size: usize,
    /// Keys that are not read yet, and those that are being read.
    keys: VecDeque<Vec<u8>>,
    keys_asked: Vec<Vec<u8>>,
    blocks: VecDeque<(BlockKey, UnitSet)>,
    blocks_asked: Vec<(BlockKey, Option<Content>)>,
    found: Missing,
    size: usize,
}

/// What a member lacks.
#[derive(Default)]
pub struct Missing {
    pub records: Vec<Change>,
    /// Each with the data of its units.
    pub blocks: Vec<(BlockChange, Vec<u8>)>,
    /// How much data the units have, in bytes.
    units_size: usize,
}

impl Reading {
    /// Begins to read what a member lacks that is complete up to `after`, as of `version`.
    pub fn new(
        shape: PoolShape,
        shards: impl IntoIterator<Item = Shard>,
        after: Version,
        version: Version,
    ) -> Reading {
        Reading {
            shape,
            after,
            version,
            is_by_record: planted::on(Bug::ForwardByKeys),
            shards: shards.into_iter().collect(),
            touched: Touched::default(),
            log_size: 0,
            keys: VecDeque::new(),
            keys_asked: Vec::new(),
            blocks: VecDeque::new(),
            blocks_asked: Vec::new(),
            found: Missing::default(),
            size: 0,
        }
    }

    /// Returns what must be read next. Requires: what was asked for before has come.
    pub fn next(&mut self) -> Step {
        if !self.shards.is_empty() {
            let shards = self.shards.iter().take(SHARDS_AT_ONCE);
            return Step::Records(shards.flat_map(|shard| self.log_queries(*shard)).collect());
        }
        if !self.keys.is_empty() {
            let count = self.keys.len().min(KEYS_AT_ONCE);
            self.keys_asked = self.keys.drain(..count).collect();
            let get = |key: &Vec<u8>| Query::Get { key: key.clone() };
            return Step::Records(self.keys_asked.iter().map(get).collect());
        }
        if !self.blocks.is_empty() {
            let count = self.blocks.len().min(BLOCKS_AT_ONCE);
            let asked: Vec<(BlockKey, UnitSet)> = self.blocks.drain(..count).collect();
            self.blocks_asked = asked.iter().map(|(key, _)| (*key, None)).collect();
            return Step::Blocks(asked);
        }
        Step::Done
    }

    fn log_queries(&self, shard: Shard) -> [Query; 2] {
        let (start, end) = log_range(shard, self.after);
        let (count_max, size_max) = (RECORDS_MAX, BODY_SIZE_MAX);
        [reach_query(shard), Query::Scan { start, end: Some(end), count_max, size_max }]
    }

    /// Takes the records that were asked for last.
    pub fn supply_records(&mut self, answers: Vec<Found>) -> Result<(), ReadError> {
        if self.shards.is_empty() {
            let keys = std::mem::take(&mut self.keys_asked);
            for (key, answer) in keys.into_iter().zip(answers) {
                let Found::Value(value) = answer else {
                    unreachable!("keys have values as answers")
                };
                self.add(match value {
                    Some(value) => Change::Put { key, value },
                    None => Change::Delete { key },
                })?;
            }
            return Ok(());
        }
        self.shards.drain(..answers.len() / 2);
        let mut answers = answers.into_iter();
        while let (Some(reach), Some(log)) = (answers.next(), answers.next()) {
            if reach_in(&reach).is_none_or(|reach| reach > self.after) {
                return Err(ReadError::TooLarge);
            }
            let Found::Records { records, more: false } = log else {
                return Err(ReadError::TooLarge);
            };
            for (key, value) in records.iter() {
                self.take_log(key, value)?;
            }
        }
        match self.shards.is_empty() {
            true => self.plan(),
            false => Ok(()),
        }
    }

    fn take_log(&mut self, key: &[u8], value: &[u8]) -> Result<(), ReadError> {
        let version = match Key::decode(key) {
            Some(Key { kind: Kind::Log(LogKey { version, .. }), .. }) => version,
            _ => return Err(ReadError::Unreadable),
        };
        let PoolShape { pool, block_size, .. } = self.shape;
        let touched = Touched::decode(value, pool, block_size).ok_or(ReadError::Unreadable)?;
        self.log_size += key.len() + value.len();
        if self.log_size > BODY_SIZE_MAX {
            return Err(ReadError::TooLarge);
        }
        if self.is_by_record && version != self.version {
            if version > self.version {
                return Ok(());
            }
            (self.version, self.touched) = (version, Touched::default());
        }
        self.touched.add(&touched);
        Ok(())
    }

    /// Plans what is read of what the log names.
    fn plan(&mut self) -> Result<(), ReadError> {
        let Touched { keys, ranges, blocks } = std::mem::take(&mut self.touched);
        for (start, end) in ranges {
            self.add(Change::DeleteRange { start, end })?;
        }
        self.keys = keys.into_keys().collect();
        let all = UnitSet::first(self.shape.block_size.unit_count());
        let units = |(key, units): (BlockKey, Option<UnitSet>)| (key, units.unwrap_or(all));
        self.blocks = blocks.into_iter().map(units).collect();
        Ok(())
    }

    fn add(&mut self, change: Change) -> Result<(), ReadError> {
        self.size += change.size();
        self.found.records.push(change);
        match self.size <= BODY_SIZE_MAX {
            true => Ok(()),
            false => Err(ReadError::TooLarge),
        }
    }

    /// Takes a block that was asked for, by its place among them. Returns whether all have come.
    pub fn supply_block(&mut self, index: usize, content: Content) -> Result<bool, ReadError> {
        self.blocks_asked[index].1 = Some(content);
        if self.blocks_asked.iter().any(|(_, content)| content.is_none()) {
            return Ok(false);
        }
        for (key, content) in std::mem::take(&mut self.blocks_asked) {
            self.add_block(key, content.expect("all have come"))?;
        }
        Ok(true)
    }

    fn add_block(&mut self, key: BlockKey, content: Content) -> Result<(), ReadError> {
        if let Content::Block { damaged, .. } = &content
            && !UnitSet::from_slice(damaged).is_empty()
        {
            return Err(ReadError::Unreadable);
        }
        let lines = lines_of(key, &content, self.version);
        self.found.units_size += lines.iter().map(|(_, data)| data.len()).sum::<usize>();
        self.found.blocks.extend(lines);
        match self.found.units_size <= BATCH_UNITS_SIZE_MAX {
            true => Ok(()),
            false => Err(ReadError::TooLarge),
        }
    }

    /// Returns the version up to which the member is complete then.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns what the member lacks. Requires: all has come.
    pub fn finish(self) -> Missing {
        self.found
    }
}
