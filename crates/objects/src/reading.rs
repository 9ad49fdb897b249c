//! Reads a look: asks the store for what it needs, in rounds, and makes the answers of it.
//! `docs/internals/objects.md`, rules 36 to 38.
//!
//! ```text
//!   look ──▶ needs: records ──▶ supply ──▶ needs: records (further keys of a page) ... ──▶ finish: answers
//!              ▲                      └──▶ needs: blocks of data ──▶ supply ─┘
//!              └── begins again ◀── a batch came between, and touches what the answers show
//! ```
//!
//! Invariants
//!   1. All answers show the state after one version, but for listings of names.
//!   2. A batch that comes between two rounds, and touches what is shown so far, ends pages before it. If data in
//!      blocks has not come yet, all begins again.
//!   3. A batch touches what is shown if it touches a key that was looked for, found or not, or a range of keys
//!      of which a page tells. Data is shown with its head, which each change of the object touches.

use std::collections::BTreeSet;

use base::{UNIT_SIZE, Version};
use bytes::Bytes;
use format::disk::BlockKey;
use format::engine::{Answer, Query, Records};

use crate::head::{Head, HeadContent, Stat, TOMBSTONE, first_byte_has};
use crate::keys::{Key, Kind, Name, attributes_prefix, heads_prefix, records_prefix};
use crate::listing::Listing;
use crate::look::{Listed, Look, Read, ReadAnswer};
use crate::operation::Field;
use crate::paging::{BadRecord, Paging};
use crate::prepare::PoolShape;
use crate::touched::Touched;

/// The most attributes and records that are looked for at once: each value may have 64 KiB.
const VALUES_MAX: usize = 128;
/// The most rounds in which records are read, unless it begins again: then pages end where they are.
pub const ROUNDS_MAX: usize = 64;

/// What has to be read next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// Records of the engine: one request of the store.
    Records(Vec<Query>),
    /// Data in blocks.
    Blocks(Vec<BlockRange>),
}

/// A part of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// The block.
    pub key: BlockKey,
    /// Where the range begins in the block, in bytes: a multiple of 4 KiB.
    pub offset: u32,
    /// Its length in bytes: a multiple of 4 KiB, at least one.
    pub length: u32,
}

/// A look that is being read.
pub struct Reading {
    look: Look,
    shape: PoolShape,
    parts: Vec<Part>,
    /// The version after which what was read is the state. `None`: nothing was read.
    moment: Option<Version>,
    /// The first version above the moment that touches what is shown.
    overtaken_by: Option<Version>,
    rounds_count: usize,
    overtaken_count: u32,
}

/// A read, as far as it has come.
enum Part {
    Head(HeadPart),
    Values(ValuesPart),
    Fields(Paging<Bytes>),
    List(Paging<Listed>),
}

struct HeadPart {
    name: Name,
    /// Offset and length of the data that is wanted. `None`: none is.
    range: Option<(u64, u32)>,
    stage: HeadStage,
}

enum HeadStage {
    /// Waits for the head.
    Head,
    /// Waits for these blocks. `cut`: how many bytes of the first one come before the data.
    Blocks { stat: Stat, blocks: Vec<BlockRange>, cut: usize, length: usize },
    /// The object and its data; `None`: there is none.
    Done(Option<(Stat, Vec<u8>)>),
}

struct ValuesPart {
    name: Name,
    fields: Vec<Field>,
    size_max: usize,
    values: Vec<Option<Vec<u8>>>,
    size: usize,
    is_done: bool,
}

impl Reading {
    /// Begins to read. Requires: [`Look::check`] accepts it.
    pub fn new(look: Look, shape: PoolShape) -> Reading {
        debug_assert_eq!(look.check(), Ok(()));
        let parts = look.reads.iter().map(|read| Part::new(read, shape)).collect();
        Reading {
            look,
            shape,
            parts,
            moment: None,
            overtaken_by: None,
            rounds_count: 0,
            overtaken_count: 0,
        }
    }

    /// Returns what to read next. `None`: the answers are complete.
    pub fn needs(&self) -> Option<Need> {
        let mut values_left = VALUES_MAX;
        let queries = self.parts.iter().flat_map(|part| part.queries(self.shape, &mut values_left));
        let queries: Vec<Query> = queries.collect();
        if !queries.is_empty() {
            return Some(Need::Records(queries));
        }
        let blocks: Vec<BlockRange> = self.parts.iter().flat_map(Part::blocks).copied().collect();
        (!blocks.is_empty()).then_some(Need::Blocks(blocks))
    }

    /// Takes the answers to the queries that [`Reading::needs`] returned. They show the state after this
    /// version of the PG. The error names a record that the engine cannot rightly have.
    pub fn supply_records(
        &mut self,
        version: Version,
        answers: Vec<Answer>,
    ) -> Result<(), BadRecord> {
        let (mut answers, mut values_left) = (answers.into_iter(), VALUES_MAX);
        let is_overtaken = self.overtaken_by.is_some_and(|first| first <= version);
        for part in &mut self.parts {
            let count = part.queries(self.shape, &mut values_left).len();
            let answers: Vec<Answer> = answers.by_ref().take(count).collect();
            assert_eq!(answers.len(), count, "each query has an answer");
            if !is_overtaken || part.is_listing() {
                part.supply(self.shape, answers)?;
            }
        }
        self.rounds_count += 1;
        match is_overtaken {
            true => self.give_way(),
            false => self.moment = Some(version),
        }
        if self.rounds_count >= ROUNDS_MAX {
            self.parts.iter_mut().for_each(Part::stop);
        }
        Ok(())
    }

    /// Takes the content of the blocks that [`Reading::needs`] returned, in the same order. Empty: zeros.
    /// Nothing tells which versions it shows: it may show any batch that was noted.
    pub fn supply_blocks<'a>(&mut self, contents: impl IntoIterator<Item = &'a [u8]>) {
        if self.overtaken_by.is_some() {
            return self.give_way();
        }
        let mut contents = contents.into_iter();
        for part in &mut self.parts {
            if let Part::Head(part) = part {
                part.supply_blocks(&mut contents);
            }
        }
        assert!(contents.next().is_none(), "no other blocks were asked for");
    }

    /// Notes a batch that has a version. Requires: until the answers are complete this is called for each
    /// batch of the PG that gets a version, and after each supply for all batches in flight.
    pub fn note_batch(&mut self, version: Version, touched: &Touched) {
        let is_later = self.moment.is_some_and(|moment| version > moment);
        let of_objects = || self.parts.iter().filter(|part| !part.is_listing());
        if is_later && of_objects().any(|part| part.is_met_by(self.shape, touched)) {
            self.overtaken_by = Some(self.overtaken_by.map_or(version, |first| first.min(version)));
        }
    }

    /// Whether changes touch what is shown: the answers wait for a batch that does.
    pub fn is_met_by(&self, touched: &Touched) -> bool {
        self.parts.iter().any(|part| part.is_met_by(self.shape, touched))
    }

    /// Returns how often it began again.
    pub fn overtaken_count(&self) -> u32 {
        self.overtaken_count
    }

    /// Returns the objects that are read: while no batch changes them, it does not begin again.
    pub fn names(&self) -> BTreeSet<&Name> {
        self.look.names()
    }

    /// Returns the answers, in the order of the reads. Requires: it needs nothing more.
    pub fn finish(self) -> Vec<ReadAnswer> {
        self.parts.into_iter().map(Part::finish).collect()
    }

    /// What was just read is not of the moment of the rest, and is not shown.
    fn give_way(&mut self) {
        self.overtaken_by = None;
        if !self.parts.iter().any(Part::waits_for_blocks) {
            let pages = self.parts.iter_mut().filter(|part| !part.is_listing());
            return pages.for_each(Part::stop);
        }
        for (part, read) in self.parts.iter_mut().zip(&self.look.reads) {
            if !part.is_listing() {
                *part = Part::new(read, self.shape);
            }
        }
        (self.moment, self.rounds_count) = (None, 0);
        self.overtaken_count += 1;
    }
}

impl Part {
    fn new(read: &Read, shape: PoolShape) -> Part {
        let shard = |name: &Name| shape.sharding.shard(name);
        let head = |name: &Name, range| {
            Part::Head(HeadPart { name: name.clone(), range, stage: HeadStage::Head })
        };
        let fields = |listing: &Listing, prefix| {
            let passed = Vec::new();
            Part::Fields(Paging::new(listing.clone(), [prefix], passed, true, |value| {
                Some(Some(value.clone()))
            }))
        };
        match read {
            Read::Stat { name } => head(name, None),
            Read::Data { name, offset, length } => head(name, Some((*offset, *length))),
            Read::Values { name, fields, size_max } => Part::Values(ValuesPart {
                name: name.clone(),
                fields: fields.clone(),
                size_max: *size_max,
                values: Vec::new(),
                size: 0,
                is_done: fields.is_empty(),
            }),
            Read::Attributes { name, listing } => {
                fields(listing, attributes_prefix(shard(name), name))
            }
            Read::Records { name, listing } => fields(listing, records_prefix(shard(name), name)),
            Read::List { shards, listing, with_data, skip } => {
                let (with_data, skip) = (*with_data, *skip);
                let passed = [TOMBSTONE, first_byte_has(skip)];
                let prefixes = shards.iter().map(|shard| heads_prefix(*shard));
                Part::List(Paging::new(
                    listing.clone(),
                    prefixes,
                    passed.into_iter().filter(|flags| flags.mask > 0).collect(),
                    with_data,
                    move |value| listed(value, with_data, skip),
                ))
            }
        }
    }

    /// Returns what to read of records. `values_left`: how many fields may still be looked for in this round.
    fn queries(&self, shape: PoolShape, values_left: &mut usize) -> Vec<Query> {
        match self {
            Part::Head(part) => match part.stage {
                HeadStage::Head => vec![Query::Get { key: head_key(shape, &part.name) }],
                HeadStage::Blocks { .. } | HeadStage::Done(_) => Vec::new(),
            },
            Part::Values(part) => part.queries(shape, values_left),
            Part::Fields(paging) => paging.queries(),
            Part::List(paging) => paging.queries(),
        }
    }

    fn supply(&mut self, shape: PoolShape, answers: Vec<Answer>) -> Result<(), BadRecord> {
        match self {
            Part::Head(part) => {
                answers.into_iter().try_for_each(|answer| part.supply(shape, value_of(answer)))
            }
            Part::Values(part) => {
                answers.into_iter().for_each(|answer| part.supply(value_of(answer)));
                Ok(())
            }
            Part::Fields(paging) => paging.supply(answers.into_iter().map(records_of)),
            Part::List(paging) => paging.supply(answers.into_iter().map(records_of)),
        }
    }

    fn blocks(&self) -> &[BlockRange] {
        match self {
            Part::Head(HeadPart { stage: HeadStage::Blocks { blocks, .. }, .. }) => blocks,
            _ => &[],
        }
    }

    fn waits_for_blocks(&self) -> bool {
        !self.blocks().is_empty()
    }

    fn is_listing(&self) -> bool {
        matches!(self, Part::List(_))
    }

    /// Ends it where it is, if that is possible.
    fn stop(&mut self) {
        match self {
            Part::Head(_) => {}
            Part::Values(part) => part.is_done = true,
            Part::Fields(paging) => paging.stop(),
            Part::List(paging) => paging.stop(),
        }
    }

    fn is_met_by(&self, shape: PoolShape, touched: &Touched) -> bool {
        match self {
            Part::Head(HeadPart { stage: HeadStage::Head, .. }) => false,
            Part::Head(part) => touched.has_key(&head_key(shape, &part.name)),
            Part::Values(part) => {
                let read = &part.fields[..part.values.len()];
                read.iter().any(|field| touched.has_key(&field_key(shape, &part.name, field)))
            }
            Part::Fields(paging) => paging.is_met_by(touched),
            Part::List(paging) => paging.is_met_by(touched),
        }
    }

    fn finish(self) -> ReadAnswer {
        match self {
            Part::Head(HeadPart { range, stage: HeadStage::Done(found), .. }) => match range {
                Some(_) => ReadAnswer::Data(found),
                None => ReadAnswer::Stat(found.map(|(stat, _)| stat)),
            },
            Part::Head(_) => panic!("the head or blocks of it are still needed"),
            Part::Values(part) => ReadAnswer::Values(part.values),
            Part::Fields(paging) => ReadAnswer::Fields(paging.finish()),
            Part::List(paging) => ReadAnswer::List(paging.finish()),
        }
    }
}

impl HeadPart {
    fn supply(&mut self, shape: PoolShape, value: Option<Vec<u8>>) -> Result<(), BadRecord> {
        let bad = || BadRecord { key: head_key(shape, &self.name) };
        let head = value.map(|value| Head::decode(&value).ok_or_else(bad)).transpose()?;
        let found = head.and_then(|head| Some((head.stat()?, head.content)));
        self.stage = match found {
            None => HeadStage::Done(None),
            Some((stat, content)) => self.read(shape, stat, content),
        };
        Ok(())
    }

    /// Returns what is to be done for the data of an object that is there.
    fn read(&self, shape: PoolShape, stat: Stat, content: HeadContent) -> HeadStage {
        let (offset, length) = self.range.unwrap_or((0, 0));
        let start = offset.min(stat.size);
        let end = offset.saturating_add(u64::from(length)).min(stat.size);
        match content {
            HeadContent::Inline(data) => {
                HeadStage::Done(Some((stat, data[start as usize..end as usize].to_vec())))
            }
            HeadContent::Blocks { id, .. } if start < end => {
                let first = start / UNIT_SIZE * UNIT_SIZE;
                let behind = end.next_multiple_of(UNIT_SIZE);
                let size = shape.block_size.bytes();
                let blocks = first / size..behind.div_ceil(size);
                let hash = shape.sharding.hash(&self.name);
                let range = |block: u64| {
                    let (from, to) = (first.max(block * size), behind.min((block + 1) * size));
                    BlockRange {
                        key: id.block_key(shape.pool, hash, block as u32),
                        offset: (from - block * size) as u32,
                        length: (to - from) as u32,
                    }
                };
                let (cut, length) = ((start - first) as usize, (end - start) as usize);
                HeadStage::Blocks { stat, blocks: blocks.map(range).collect(), cut, length }
            }
            HeadContent::Blocks { .. } | HeadContent::Tombstone => {
                HeadStage::Done(Some((stat, Vec::new())))
            }
        }
    }

    fn supply_blocks<'a>(&mut self, contents: &mut impl Iterator<Item = &'a [u8]>) {
        let HeadStage::Blocks { stat, blocks, cut, length } = &self.stage else { return };
        let mut data = Vec::with_capacity(*cut + *length + UNIT_SIZE as usize);
        for block in blocks {
            let content = contents.next().expect("each block was read");
            let size = data.len() + block.length as usize;
            data.extend_from_slice(content);
            assert!(content.is_empty() || data.len() == size, "the whole range was read");
            data.resize(size, 0);
        }
        data.truncate(*cut + *length);
        data.drain(..*cut);
        self.stage = HeadStage::Done(Some((*stat, data)));
    }
}

impl ValuesPart {
    fn queries(&self, shape: PoolShape, values_left: &mut usize) -> Vec<Query> {
        if self.is_done {
            return Vec::new();
        }
        let rest = &self.fields[self.values.len()..];
        let now = &rest[..rest.len().min(*values_left)];
        *values_left -= now.len();
        now.iter().map(|field| Query::Get { key: field_key(shape, &self.name, field) }).collect()
    }

    fn supply(&mut self, value: Option<Vec<u8>>) {
        let size = self.size + value.as_ref().map_or(0, Vec::len);
        self.is_done |= size > self.size_max && !self.values.is_empty();
        if !self.is_done {
            self.values.push(value);
            self.size = size;
            self.is_done = self.values.len() == self.fields.len();
        }
    }
}

fn head_key(shape: PoolShape, name: &Name) -> Vec<u8> {
    key(shape, name, Kind::Head { name: name.clone() })
}

fn field_key(shape: PoolShape, name: &Name, field: &Field) -> Vec<u8> {
    key(shape, name, field.kind_of(name))
}

fn key(shape: PoolShape, name: &Name, kind: Kind) -> Vec<u8> {
    Key { shard: shape.sharding.shard(name), kind }.encode()
}

/// Returns what a listing tells of a head. The inner `None`: nothing, for it is a tombstone or skipped. The
/// outer one: the bytes are no head.
fn listed(value: &Bytes, with_data: bool, skip: u8) -> Option<Option<Listed>> {
    let head = Head::borrowed(value)?;
    let inline = match head.content {
        HeadContent::Inline(data) => Some(data),
        HeadContent::Tombstone | HeadContent::Blocks { .. } => None,
    };
    if inline.and_then(<[u8]>::first).is_some_and(|first| first & skip != 0) {
        return Some(None);
    }
    let data = inline.filter(|_| with_data).map(|data| value.slice_ref(data));
    Some(head.stat().map(|stat| Listed { stat, data }))
}

fn value_of(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Value(value) => value,
        Answer::Records { .. } => panic!("a value was asked for"),
    }
}

fn records_of(answer: Answer) -> (Records, bool) {
    match answer {
        Answer::Records { records, more } => (records, more),
        Answer::Value(_) => panic!("a range was asked for"),
    }
}
